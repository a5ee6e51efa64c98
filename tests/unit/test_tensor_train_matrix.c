/* Tensor-train matrices as word embeddings: shapes, sizes of the paper's model, and what a model
 * does with a table that is tied, has a head of its own, has lost ranks or all of them. */
#include "support/small_model.h"

#include <stdlib.h>

static const tt_train_matrix_shape paper = {4, {16, 20, 10, 10}, {4, 4, 8, 6}, {1, 32, 32, 32, 1}};

static void expect_refused(tt_status status, const tt_error *error, const char *words)
{
    assert_int_equal(status, TT_INVALID_INPUT);
    if (strstr(error->message, words) == NULL) {
        fail_msg("expected '%s' in '%s'", words, error->message);
    }
}

/* --- shapes --- */

static void test_sizes(void **state)
{
    (void)state;
    tt_error error = {0};
    small_succeed(tt_train_matrix_shape_check(&paper, 30522, 768, "words", &error), &error);
    tt_train_shape train = tt_train_matrix_train(&paper);
    assert_int_equal(train.input_order, 2);
    assert_int_equal(tt_train_core_size(&train), 167808);
    assert_int_equal(tt_train_matrix_size(&paper), 167808 + 96);
    assert_int_equal(tt_train_matrix_row_work(&paper), 32 * 768);
}

static void test_refused_shapes(void **state)
{
    (void)state;
    tt_error error = {0};
    tt_train_matrix_shape shape = paper;
    expect_refused(tt_train_matrix_shape_check(&shape, 32001, 768, "words", &error), &error,
                   "words: vocabulary modes multiply to 32000, expected at least 32001");
    expect_refused(tt_train_matrix_shape_check(&shape, 30522, 769, "words", &error), &error,
                   "hidden modes multiply to 768, expected 769");
    shape.rows[2] = 0;
    expect_refused(tt_train_matrix_shape_check(&shape, 30522, 768, "words", &error), &error,
                   "vocabulary mode 3: expected a size of 1 or more, found 0");
    shape = paper;
    shape.ranks[3] = 61;
    expect_refused(tt_train_matrix_shape_check(&shape, 30522, 768, "words", &error), &error,
                   "rank 3 of 3: expected 1 to 60");
    shape.order = 1;
    expect_refused(tt_train_matrix_shape_check(&shape, 30522, 768, "words", &error), &error,
                   "expected 2 to 16 cores, found 1");
    expect_refused(tt_train_matrix_shape_choose(100, 7, 2, 4, &shape, &error), &error,
                   "cannot be cut into 2 modes");
}

static void test_chosen_shapes(void **state)
{
    (void)state;
    static const struct {
        int64_t vocabulary, width;
        int order;
    } wanted[] = {{30522, 768, 4}, {30522, 768, 3}, {50265, 1024, 2},
                  {97, 24, 3},     {5, 16, 4},      {1, 4, 2}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        tt_error error = {0};
        tt_train_matrix_shape shape;
        int64_t vocabulary = wanted[i].vocabulary, rows = 1;
        small_succeed(tt_train_matrix_shape_choose(vocabulary, wanted[i].width, wanted[i].order, 9,
                                                   &shape, &error),
                      &error);
        small_succeed(
            tt_train_matrix_shape_check(&shape, vocabulary, wanted[i].width, "words", &error),
            &error);
        for (int k = 0; k < shape.order; k++) {
            rows *= shape.rows[k];
            assert_true(k == 0 || shape.rows[k] <= shape.rows[k - 1]);
        }
        assert_true(rows < 2 * vocabulary && (vocabulary < 50 || 5 * rows <= 6 * vocabulary));
    }
}

/* --- the paper's model --- */

static tt_linear_form train_form(int64_t m1, int64_t m2, int64_t m3, int64_t m4, int64_t m5,
                                 int64_t m6)
{
    tt_linear_form form = {TT_TENSOR_TRAIN,
                           {6, 3, {m1, m2, m3, m4, m5, m6}, {1, m1, 30, 30, 30, m6, 1}}};
    return form;
}

static tt_configuration paper_model(void)
{
    tt_configuration configuration = {.vocabulary_size = 30522,
                                      .hidden_size = 768,
                                      .layers = 6,
                                      .heads = 12,
                                      .intermediate_size = 3072,
                                      .max_positions = 512,
                                      .segment_types = 2,
                                      .layer_norm_epsilon = 1e-9f,
                                      .initializer_range = 0.02f,
                                      .threshold = 0.01f,
                                      .embedding = {.form = TT_TENSOR_TRAIN, .shape = paper}};
    configuration.maps[TT_MAP_ATTENTION] = train_form(12, 8, 8, 8, 8, 12);
    configuration.maps[TT_MAP_INTERMEDIATE] = train_form(12, 8, 8, 12, 16, 16);
    configuration.maps[TT_MAP_OUTPUT] = train_form(16, 16, 12, 8, 8, 12);
    configuration.maps[TT_MAP_POOLER] = configuration.maps[TT_MAP_ATTENTION];
    return configuration;
}

static void test_six_encoder_parameters(void **state)
{
    (void)state;
    tt_error error = {0};
    tt_configuration configuration = paper_model();
    tt_configuration twin = tt_configuration_dense_twin(&configuration);
    assert_int_equal(tt_configuration_classification_parameters(&configuration, 3), 1490157);
    assert_int_equal(tt_configuration_classification_parameters(&twin, 3), 66957315);
    tt_model model;
    tt_device *device = test_device(1);
    small_succeed(
        tt_model_create_classification(&model, device, &configuration, 3, 1, false, &error),
        &error);
    assert_int_equal(tt_parameters_size(&model.parameters), 1490157);
    tt_model_free(&model);
    tt_device_destroy(&device);
}

/* --- models --- */

static void make_run(small_run *run, const tt_configuration *configuration, int classes,
                     int threads)
{
    small_run_create(run, threads, configuration, classes, 42);
    small_run_plan(run, SMALL_ROWS, true);
}

/* d loss / d parameters, along one direction for all of them, by central differences. */
static void check_slope(const tt_configuration *configuration, int classes)
{
    small_run run;
    small_batch made;
    small_batch_make(&made, small_masked_counts, 3);
    make_run(&run, configuration, classes, 2);
    small_run_step(&run, &made.batch, SMALL_ROWS);
    tt_parameters *parameters = &run.model.parameters;
    int64_t total = parameters->total;
    float *gradient = small_gradients(&run);
    float *values = test_copy_out(run.device, parameters->values, tt_floats(total));
    float *moved = test_host(tt_floats(total));
    double slope = 0.0, losses[2];
    for (int64_t i = 0; i < total; i++) {
        slope += (double)gradient[i] * (double)gradient[i];
    }
    double step = 0.002 / slope;
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < total; i++) {
            moved[i] = values[i] + (float)((side ? step : -step) * (double)gradient[i]);
        }
        run.device->copy_in(run.device, parameters->values, moved, tt_floats(total));
        small_run_forward(&run, &made.batch);
        losses[side] = small_loss(&run);
    }
    double found = (losses[1] - losses[0]) / (2.0 * step);
    if (fabs(found - slope) > 5e-3 * slope) {
        fail_msg("slope: expected %.6g, found %.6g", slope, found);
    }
    free(gradient);
    free(values);
    free(moved);
    small_run_free(&run);
}

static void test_slopes(void **state)
{
    (void)state;
    if (test_device_precision() != TEST_F32) {
        skip(); /* differences are too small for other precisions */
    }
    tt_configuration tied = small_words_configuration(false),
                     untied = small_words_configuration(true);
    check_slope(&tied, 0);
    check_slope(&untied, 0);
    check_slope(&tied, SMALL_CLASSES);
}

static void test_untied_head(void **state)
{
    (void)state;
    tt_configuration configuration = small_words_configuration(true);
    tt_configuration tied = small_words_configuration(false);
    small_run run;
    make_run(&run, &configuration, 0, 1);
    const tt_parameters *parameters = &run.model.parameters;
    int64_t table = (int64_t)SMALL_VOCABULARY * SMALL_HIDDEN;
    assert_true(tt_parameters_find(parameters, "cls.predictions.decoder.weight") >= 0);
    assert_int_equal(tt_configuration_pretraining_parameters(&configuration),
                     tt_parameters_size(parameters));
    assert_int_equal(tt_configuration_pretraining_parameters(&tied) + table,
                     tt_parameters_size(parameters));
    small_run_free(&run);
    /* A dense table may have such a head too. */
    configuration.embedding.form = TT_DENSE;
    make_run(&run, &configuration, 0, 1);
    assert_int_equal(tt_configuration_pretraining_parameters(&configuration),
                     tt_parameters_size(parameters));
    small_run_free(&run);
}

static void test_micro_batches(void **state)
{
    (void)state;
    tt_configuration configuration = small_words_configuration(false);
    small_batch made;
    small_batch_make(&made, small_masked_counts, 3);
    small_run run;
    make_run(&run, &configuration, 0, 2);
    small_run_step(&run, &made.batch, SMALL_ROWS);
    float *whole = small_gradients(&run);
    small_run_step(&run, &made.batch, 3);
    small_expect_gradients(&run, whole, small_tolerance(2e-6));
    free(whole);
    small_run_free(&run);
}

static void test_same_bits(void **state)
{
    (void)state;
    tt_configuration configuration = small_words_configuration(false);
    small_batch made;
    small_batch_make(&made, small_masked_counts, 3);
    float *first = NULL;
    for (int turn = 0; turn < 3; turn++) {
        small_run run;
        make_run(&run, &configuration, 0, 2);
        small_run_step(&run, &made.batch, 5);
        float *found = small_gradients(&run);
        size_t bytes = tt_floats(run.model.parameters.total);
        if (first == NULL) {
            first = found;
        } else {
            assert_memory_equal(found, first, bytes);
            free(found);
        }
        small_run_free(&run);
    }
    free(first);
}

/* --- tables that have lost ranks --- */

static void create_from_shapes(small_run *run, const tt_configuration *configuration,
                               const tt_train_shape *left)
{
    tt_error error = {0};
    tt_layer_shape item = {.name = "bert.embeddings.word_embeddings", .shape = *left};
    tt_layer_shapes shapes = {&item, 1};
    tt_model_kind kind = {.with_moments = false};
    make_run(run, configuration, 0, 1);
    tt_model_free(&run->model);
    small_succeed(tt_model_create(&run->model, run->device, configuration, &kind, &shapes, &error),
                  &error);
    small_succeed(tt_model_initialize(&run->model, 42, &error), &error);
    run->model.encoder.step = run->step;
    small_run_plan(run, SMALL_ROWS, true);
}

static void test_fewer_ranks(void **state)
{
    (void)state;
    tt_configuration configuration = small_words_configuration(false);
    tt_train_shape left = tt_train_matrix_train(&configuration.embedding.shape);
    left.ranks[1] = 2;
    left.ranks[2] = 5;
    small_run run;
    create_from_shapes(&run, &configuration, &left);
    const tt_train_matrix *matrix = &run.model.encoder.words.matrix;
    assert_false(matrix->removed);
    assert_int_equal(matrix->shape.ranks[1], 2);
    assert_int_equal(matrix->shape.ranks[2], 5);
    small_batch made;
    small_batch_make(&made, small_masked_counts, 3);
    small_run_step(&run, &made.batch, SMALL_ROWS);
    small_expect_finite(&run);
    small_run_free(&run);

    tt_error error = {0};
    tt_layer_shape item = {.name = "bert.embeddings.word_embeddings", .shape = left};
    tt_layer_shapes shapes = {&item, 1};
    tt_model model;
    tt_model_kind kind = {.with_moments = false};
    tt_device *device = test_device(1);
    item.shape.ranks[2] = 7;
    expect_refused(tt_model_create(&model, device, &configuration, &kind, &shapes, &error), &error,
                   "rank 2: expected at most 6");
    tt_model_free(&model);
    item.shape.modes[0]++;
    expect_refused(tt_model_create(&model, device, &configuration, &kind, &shapes, &error), &error,
                   "differ from those of the configuration");
    tt_model_free(&model);
    tt_device_destroy(&device);
}

/* A table of zeros learns nothing, and the rest learns as with a table whose diagonal is 0. */
static void test_removed_table(void **state)
{
    (void)state;
    tt_configuration configuration = small_words_configuration(false);
    tt_train_shape left = tt_train_matrix_train(&configuration.embedding.shape);
    left.ranks[2] = 0;
    small_batch made;
    small_batch_make(&made, small_masked_counts, 3);
    small_run removed, pruned;
    create_from_shapes(&removed, &configuration, &left);
    small_run_step(&removed, &made.batch, SMALL_ROWS);
    tt_parameters *few = &removed.model.parameters;
    assert_int_equal(tt_parameters_find(few, "bert.embeddings.word_embeddings.core_1"), -1);

    make_run(&pruned, &configuration, 0, 1);
    pruned.model.encoder.training = false;
    tt_parameters *all = &pruned.model.parameters;
    tt_parameters_fill(all,
                       tt_parameters_find(all, "bert.embeddings.word_embeddings."
                                               "rank_diagonal_2"),
                       0.0f);
    small_run_step(&pruned, &made.batch, SMALL_ROWS);
    assert_true(fabs(small_loss(&pruned) - small_loss(&removed)) < small_tolerance(1e-6) * 4);
    float *expected = small_gradients(&pruned), *found = small_gradients(&removed);
    for (int i = 0; i < few->count; i++) {
        const tt_parameter *item = &few->items[i];
        const tt_parameter *same = &all->items[tt_parameters_find(all, item->name)];
        small_expect_range(item->name, found + item->offset, expected + same->offset, 0,
                           item->count, 10.0 * small_tolerance(1e-6));
    }
    free(expected);
    free(found);

    tt_error error = {0};
    tt_layer_shapes shapes;
    small_succeed(tt_model_shapes(&removed.model, &shapes, &error), &error);
    const tt_train_shape *listed = tt_layer_shapes_find(&shapes, "bert.embeddings.word_embeddings");
    assert_non_null(listed);
    assert_true(tt_train_is_removed(listed));
    free(shapes.items);
    small_run_free(&removed);
    small_run_free(&pruned);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),         cmocka_unit_test(test_refused_shapes),
        cmocka_unit_test(test_chosen_shapes), cmocka_unit_test(test_six_encoder_parameters),
        cmocka_unit_test(test_slopes),        cmocka_unit_test(test_untied_head),
        cmocka_unit_test(test_micro_batches), cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_fewer_ranks),   cmocka_unit_test(test_removed_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

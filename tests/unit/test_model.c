/* Whole models: gradients against central differences of the loss, the forms of a block and the
 * cutting of a batch, which must change nothing, and batches at the edge of what there can be. */
#include "models/encoder_block.h"
#include "support/small_model.h"

/* Diagonals that differ, some entries of each pruned. */
static void draw_diagonals(small_run *run)
{
    tt_parameters *parameters = &run->model.parameters;
    tt_random random;
    tt_random_start(&random, 4, 4);
    for (int i = 0; i < parameters->count; i++) {
        const tt_parameter *item = &parameters->items[i];
        for (int64_t j = 0; item->group == TT_GROUP_DIAGONALS && j < item->count; j++) {
            float value = 0.7f + 0.6f * tt_random_uniform(&random);
            value = j == 1 ? -0.5f : value;
            run->device->copy_in(run->device, tt_parameters_value(parameters, i) + j, &value,
                                 sizeof value);
        }
    }
}

static void make_run(small_run *run, int threads, const tt_configuration *configuration,
                     int classes, tt_form_choice choice)
{
    small_run_create(run, threads, configuration, classes, 42);
    draw_diagonals(run);
    tt_parameters_fill_normal(&run->model.parameters, run->model.encoder.segment, 0.1f, 42);
    run->model.encoder.form_choice = choice;
    small_run_plan(run, SMALL_ROWS, true);
}

/* --- central differences --------------------------------------------------------------------- */

/* parameter = original + distance * direction, all on the host but the parameter. */
static double loss_at(small_run *run, const tt_batch *batch, int id, const float *original,
                      const double *direction, double distance)
{
    int64_t count = run->model.parameters.items[id].count;
    float *moved = malloc((size_t)count * sizeof *moved);
    assert_non_null(moved);
    for (int64_t i = 0; i < count; i++) {
        moved[i] = (float)(original[i] + distance * direction[i]);
    }
    run->device->copy_in(run->device, tt_parameters_value(&run->model.parameters, id), moved,
                         (size_t)count * sizeof *moved);
    free(moved);
    small_run_forward(run, batch);
    return small_loss(run);
}

/* Derivative of the loss along `direction`, by differences of fourth order. */
static double derivative(small_run *run, const tt_batch *batch, int id, const double *direction,
                         double step)
{
    int64_t count = run->model.parameters.items[id].count;
    size_t bytes = (size_t)count * sizeof(float);
    float *value = tt_parameters_value(&run->model.parameters, id), *original = malloc(bytes);
    assert_non_null(original);
    run->device->copy_out(run->device, original, value, bytes);
    double near = loss_at(run, batch, id, original, direction, step) -
                  loss_at(run, batch, id, original, direction, -step);
    double far = loss_at(run, batch, id, original, direction, 2.0 * step) -
                 loss_at(run, batch, id, original, direction, -2.0 * step);
    run->device->copy_in(run->device, value, original, bytes);
    free(original);
    return (8.0 * near - far) / (12.0 * step);
}

/* A step that changes the loss by about 0.02, or as large as the weights allow. */
static double step_for(double slope)
{
    double step = slope > 0.0 ? 0.02 / slope : 1.0;
    return step < 0.02 ? step : 0.02;
}

static void expect_derivative(const char *name, const char *what, double found, double expected,
                              double step)
{
    /* The loss carries rounding errors of some 1e-7. */
    double tolerance = 0.01 * fabs(expected) + 1e-6 / step;
    if (!(fabs(found - expected) <= tolerance)) {
        fail_msg("%s, %s: gradient says %.6g, differences %.6g", name, what, expected, found);
    }
}

/* Along the gradient itself the derivative is its norm; along an axis, that entry. */
static void check_parameter(small_run *run, const tt_batch *batch, int id, const float *gradient)
{
    const tt_parameter *item = &run->model.parameters.items[id];
    double *direction = calloc((size_t)item->count, sizeof *direction), norm = 0.0;
    int64_t largest = 0;
    assert_non_null(direction);
    for (int64_t i = 0; i < item->count; i++) {
        norm += (double)gradient[i] * gradient[i];
        largest = fabsf(gradient[i]) > fabsf(gradient[largest]) ? i : largest;
    }
    norm = sqrt(norm);
    for (int64_t i = 0; i < item->count; i++) {
        direction[i] = norm > 0.0 ? gradient[i] / norm : 1.0 / sqrt((double)item->count);
    }
    double step = step_for(norm);
    expect_derivative(item->name, "along the gradient", derivative(run, batch, id, direction, step),
                      norm, step);
    int entries = test_device_is_simulated() && id % 4 != 0 ? 0 : 2; /* each takes four passes */
    for (int64_t i = 0; i < entries; i++) {
        int64_t place = i == 0 ? largest : (i * 7919 + id) % item->count;
        memset(direction, 0, (size_t)item->count * sizeof *direction);
        direction[place] = 1.0;
        step = step_for(fabs((double)gradient[place]));
        expect_derivative(item->name, "one entry", derivative(run, batch, id, direction, step),
                          gradient[place], step);
    }
    free(direction);
}

static void check_gradients(const tt_configuration *configuration, int classes,
                            tt_form_choice choice)
{
    if (test_device_precision() != TEST_F32) {
        skip(); /* differences of losses so near to each other are all rounding */
    }
    small_run run;
    small_batch made;
    make_run(&run, 1, configuration, classes, choice);
    small_batch_make(&made, small_masked_counts, 1);
    if (classes > 0) {
        made.sentences[0] = classes - 1;
    }
    small_run_step(&run, &made.batch, SMALL_ROWS);
    float *gradients = small_gradients(&run);
    double loss = small_loss(&run);
    small_run_forward(&run, &made.batch);
    assert_true(small_loss(&run) == loss);
    for (int id = 0; id < run.model.parameters.count; id++) {
        check_parameter(&run, &made.batch, id, gradients + run.model.parameters.items[id].offset);
    }
    free(gradients);
    small_run_free(&run);
}

static void test_gradients_dense(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_DENSE);
    check_gradients(&configuration, 0, TT_FORM_BY_COST);
}

static void test_gradients_tensor_train(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    check_gradients(&configuration, 0, TT_FORM_ALWAYS_WIDE);
    configuration.gelu = TT_GELU_TANH;
    check_gradients(&configuration, 0, TT_FORM_ALWAYS_THIN);
}

static void test_gradients_classification(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    check_gradients(&configuration, SMALL_CLASSES, TT_FORM_BY_COST);
}

/* --- what must change nothing ---------------------------------------------------------------- */

static void expect_forms(const small_run *run, tt_block_form form)
{
    for (int layer = 0; layer < run->model.configuration.layers; layer++) {
        assert_int_equal(run->model.encoder.blocks[layer].attention_form, form);
        assert_int_equal(run->model.encoder.blocks[layer].feed_forward_form, form);
    }
}

static void expect_close(double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance * fabs(expected))) {
        fail_msg("expected %.9g, found %.9g", expected, found);
    }
}

static void test_forms_agree(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    small_run wide, thin;
    small_batch made;
    small_batch_make(&made, small_masked_counts, 1);
    make_run(&wide, 1, &configuration, 0, TT_FORM_ALWAYS_WIDE);
    make_run(&thin, 1, &configuration, 0, TT_FORM_ALWAYS_THIN);
    expect_forms(&wide, TT_WIDE);
    expect_forms(&thin, TT_THIN);
    small_run_step(&wide, &made.batch, SMALL_ROWS);
    small_run_step(&thin, &made.batch, SMALL_ROWS);
    for (int place = 0; place < TT_LOSS_COUNT; place++) {
        expect_close(small_statistic(&thin, place), small_statistic(&wide, place),
                     small_tolerance(1e-5));
    }
    float *expected = small_gradients(&wide);
    small_expect_gradients(&thin, expected, small_tolerance(1e-5));
    free(expected);
    small_run_free(&wide);
    small_run_free(&thin);
}

/* A dense model has no thin form, whatever is asked for. */
static void test_dense_is_wide(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_DENSE);
    small_run run;
    char text[256];
    make_run(&run, 1, &configuration, 0, TT_FORM_ALWAYS_THIN);
    expect_forms(&run, TT_WIDE);
    tt_encoder_explain(&run.model.encoder, 1, text, sizeof text);
    assert_non_null(strstr(text, "block 1: attention wide"));
    assert_non_null(strstr(text, "feed-forward wide"));
    small_run_free(&run);
}

/* Micro-batches with no masked token at all among them, and a smaller last one. */
static void check_micro_batches(tt_form form, int classes)
{
    const int64_t micro[] = {4, 2, 1, 3};
    tt_configuration configuration = small_configuration(form);
    configuration.initializer_range = configuration.train_deviation = 0.1f;
    small_run run;
    small_batch made;
    small_batch_make(&made, small_masked_counts, 1);
    make_run(&run, 1, &configuration, classes, TT_FORM_ALWAYS_THIN);
    small_run_step(&run, &made.batch, SMALL_ROWS);
    float *expected = small_gradients(&run);
    double loss = small_loss(&run);
    for (size_t m = 0; m < sizeof micro / sizeof micro[0]; m++) {
        small_run_step(&run, &made.batch, micro[m]);
        expect_close(small_loss(&run), loss, small_tolerance(1e-6));
        small_expect_gradients(&run, expected, small_tolerance(1e-6));
    }
    free(expected);
    small_run_free(&run);
}

static void test_micro_batches(void **state)
{
    (void)state;
    check_micro_batches(TT_DENSE, 0);
    check_micro_batches(TT_TENSOR_TRAIN, 0);
    check_micro_batches(TT_TENSOR_TRAIN, SMALL_CLASSES);
}

static void test_threads_agree(void **state)
{
    (void)state;
    const tt_form forms[] = {TT_DENSE, TT_TENSOR_TRAIN};
    for (int i = 0; i < 2; i++) {
        tt_configuration configuration = small_configuration(forms[i]);
        small_run one, two;
        small_batch made;
        small_batch_make(&made, small_masked_counts, 1);
        make_run(&one, 1, &configuration, 0, TT_FORM_ALWAYS_THIN);
        small_run_step(&one, &made.batch, SMALL_ROWS);
        make_run(&two, 2, &configuration, 0, TT_FORM_ALWAYS_THIN);
        small_run_step(&two, &made.batch, SMALL_ROWS);
        expect_close(small_loss(&two), small_loss(&one), small_tolerance(1e-5));
        float *expected = small_gradients(&one);
        small_expect_gradients(&two, expected, small_tolerance(1e-5));
        free(expected);
        small_run_free(&one);
        small_run_free(&two);
    }
}

static void expect_same_bits(const small_run *first, const float *a, const small_run *second,
                             const float *b, int64_t count)
{
    float *found = test_copy_out(first->device, a, tt_floats(count));
    float *expected = test_copy_out(second->device, b, tt_floats(count));
    assert_memory_equal(found, expected, tt_floats(count));
    free(found);
    free(expected);
}

/* The same seed gives the same bits, parameters and gradients, and another seed others. */
static void test_same_bits(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    for (int threads = 1; threads <= 2 && threads <= test_device_threads(); threads++) {
        small_run first, second;
        small_batch made;
        small_batch_make(&made, small_masked_counts, 1);
        make_run(&first, threads, &configuration, 0, TT_FORM_BY_COST);
        make_run(&second, threads, &configuration, 0, TT_FORM_BY_COST);
        small_run_step(&first, &made.batch, 3);
        small_run_step(&second, &made.batch, 3);
        const tt_parameters *a = &first.model.parameters, *b = &second.model.parameters;
        expect_same_bits(&first, a->values, &second, b->values, a->total);
        expect_same_bits(&first, a->gradients, &second, b->gradients, a->total + TT_STATISTICS);
        second.model.encoder.seed++; /* other dropout masks */
        small_run_step(&second, &made.batch, 3);
        assert_true(small_loss(&first) != small_loss(&second));
        small_run_free(&second);
        small_run_create(&second, threads, &configuration, 0, 43);
        float *values = test_copy_out(first.device, a->values, tt_floats(a->total));
        float *others = test_copy_out(second.device, b->values, tt_floats(a->total));
        assert_memory_not_equal(values, others, tt_floats(a->total));
        free(values);
        free(others);
        small_run_free(&first);
        small_run_free(&second);
    }
}

/* A second plan, smaller, larger or without gradients, computes the same. */
static void test_plans(void **state)
{
    (void)state;
    const tt_form forms[] = {TT_DENSE, TT_TENSOR_TRAIN};
    for (int i = 0; i < 2; i++) {
        tt_configuration configuration = small_configuration(forms[i]);
        small_run run;
        small_batch made;
        small_batch_make(&made, small_masked_counts, 1);
        make_run(&run, 1, &configuration, 0, TT_FORM_BY_COST);
        small_run_step(&run, &made.batch, 2);
        float *expected = small_gradients(&run);
        small_run_plan(&run, 2, true);
        small_run_step(&run, &made.batch, 2);
        small_expect_gradients(&run, expected, 0.0);
        run.model.encoder.training = false;
        small_run_plan(&run, SMALL_ROWS, true);
        small_run_forward(&run, &made.batch);
        double loss = small_loss(&run);
        size_t bytes = tt_model_activation_bytes(&run.model);
        small_run_plan(&run, SMALL_ROWS, false);
        small_run_forward(&run, &made.batch);
        assert_true(small_loss(&run) == loss);
        assert_true(tt_model_activation_bytes(&run.model) < bytes);
        free(expected);
        small_run_free(&run);
    }
}

/* The number before `title` on the list's next line. */
static long long counted(FILE *list, const char *title)
{
    char line[200], *rest;
    assert_non_null(fgets(line, sizeof line, list));
    long long count = strtoll(line, &rest, 10);
    assert_string_equal(rest, title);
    return count;
}

/* Kernels and library calls that making the factors and contracting their gradients take; where
 * nobody counts them, the operations. */
static int64_t launches_of_contraction(int64_t layers)
{
    small_run run;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    configuration.layers = layers;
    make_run(&run, 1, &configuration, 0, TT_FORM_BY_COST);
    tt_train_work work = tt_train_set_work(&run.model.trains);
    assert_true(work.singles > 3 * run.model.trains.count);
    long long kernels = work.calls, calls = 0;
    tt_device *device = run.device;
    device->launches_print(device, NULL);
    tt_model_materialise(&run.model);
    tt_model_end_step(&run.model);
    device->synchronize(device);
    FILE *list = tmpfile();
    assert_non_null(list);
    if (device->launches_print(device, list)) {
        rewind(list);
        kernels = counted(list, "  kernels\n");
        calls = counted(list, "  library calls\n");
        assert_true(calls > 0);
    }
    fclose(list);
    small_run_free(&run);
    return kernels + calls;
}

static void test_launches_do_not_grow_with_layers(void **state)
{
    (void)state;
    assert_int_equal(launches_of_contraction(1), launches_of_contraction(5));
}

/* A vocabulary of an odd size costs the products over it nothing: every row of logits begins at a
 * boundary that tensor cores take. */
static void test_rows_of_logits_are_aligned(void **state)
{
    (void)state;
    small_run run;
    small_batch made;
    tt_configuration configuration = small_configuration(TT_DENSE);
    small_batch_make(&made, small_masked_counts, 1);
    make_run(&run, 1, &configuration, 0, TT_FORM_BY_COST);
    small_run_forward(&run, &made.batch);
    tt_masked_lm_inputs inputs = {.count = 2};
    tt_matrix logits = tt_masked_lm_head_logits(&run.model.masked_lm, &inputs);
    assert_int_equal(logits.columns, SMALL_VOCABULARY);
    assert_true(SMALL_VOCABULARY % 8 != 0);
    assert_int_equal((size_t)logits.data % 16, 0);
    assert_int_equal((size_t)logits.stride * tt_type_size(logits.type) % 16, 0);
    small_run_free(&run);
}

/* What stands in padding, ids or segments, changes nothing. */
static void test_padding(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    const tt_form_choice choices[] = {TT_FORM_ALWAYS_WIDE, TT_FORM_ALWAYS_THIN};
    for (int i = 0; i < 2; i++) {
        small_run run;
        small_batch made;
        small_batch_make(&made, small_masked_counts, 1);
        make_run(&run, 1, &configuration, 0, choices[i]);
        small_run_step(&run, &made.batch, SMALL_ROWS);
        double loss = small_loss(&run);
        float *expected = small_gradients(&run);
        for (int j = 0; j < SMALL_ROWS * SMALL_LENGTH; j++) {
            if (!made.mask[j]) {
                made.ids[j] = 5;
                made.segments[j] = 1;
            }
        }
        small_run_step(&run, &made.batch, SMALL_ROWS);
        assert_true(small_loss(&run) == loss);
        small_expect_gradients(&run, expected, small_tolerance(1e-6));
        free(expected);
        small_run_free(&run);
    }
}

/* --- batches at the edge --------------------------------------------------------------------- */

static void test_no_masked_token(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    small_run run;
    small_batch made;
    make_run(&run, 1, &configuration, 0, TT_FORM_BY_COST);
    small_batch_make(&made, NULL, 1);
    small_run_step(&run, &made.batch, SMALL_ROWS);
    assert_true(small_statistic(&run, TT_MASKED_LOSS) == 0.0);
    assert_true(small_statistic(&run, TT_SENTENCE_LOSS) > 0.0);
    small_expect_finite(&run);
    for (int row = 0; row < SMALL_ROWS; row++) {
        made.sentences[row] = -1;
    }
    small_run_step(&run, &made.batch, SMALL_ROWS);
    assert_true(small_loss(&run) == 0.0);
    float *gradients = small_gradients(&run);
    for (int64_t j = 0; j < run.model.parameters.total; j++) {
        assert_true(gradients[j] == 0.0f);
    }
    free(gradients);
    small_run_free(&run);
}

/* All sentences follow each other: a loss like any other. */
static void test_one_label_only(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    small_run run;
    small_batch made;
    double sums[2];
    make_run(&run, 1, &configuration, 0, TT_FORM_BY_COST);
    small_batch_make(&made, small_masked_counts, 1);
    for (int label = 0; label < 2; label++) {
        for (int row = 0; row < SMALL_ROWS; row++) {
            made.sentences[row] = label;
        }
        small_run_step(&run, &made.batch, SMALL_ROWS);
        small_expect_finite(&run);
        sums[label] = small_statistic(&run, TT_SENTENCE_LOSS);
    }
    /* -log p and -log (1 - p) of eight rows. */
    assert_true(sums[0] > 0.0 && sums[1] > 0.0 && sums[0] + sums[1] > 2 * SMALL_ROWS * log(2.0));
    small_run_free(&run);
}

/* Sequences of nothing but padding, as a last batch may hold. */
static void test_empty_rows(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    const tt_form_choice choices[] = {TT_FORM_ALWAYS_WIDE, TT_FORM_ALWAYS_THIN};
    for (int i = 0; i < 2; i++) {
        small_run run;
        small_batch made;
        make_run(&run, 1, &configuration, 0, choices[i]);
        small_batch_make(&made, small_masked_counts, 1);
        for (int row = 2; row < 4; row++) { /* which have no masked token */
            memset(made.mask + (ptrdiff_t)row * SMALL_LENGTH, 0, SMALL_LENGTH);
            made.sentences[row] = -1;
        }
        small_run_step(&run, &made.batch, SMALL_ROWS);
        assert_true(isfinite(small_loss(&run)));
        small_expect_finite(&run);
        small_run_free(&run);
    }
}

/* --- the vocabulary in chunks ---------------------------------------------------------------- */

enum {
    WIDE_VOCABULARY = 110000,
    FEWER_WORDS = 1100, /* where a wide one takes too long, and more rows at a time */
    CHUNK = 128,
    MASKED = 300,
    HIDDEN_ROWS = 20,
    HIDDEN = 4,
    STATES = HIDDEN_ROWS * HIDDEN,
};

/* The head alone on masked positions [first, first + count) of the hidden states. */
static void run_head(small_run *run, const int32_t *rows, const int32_t *labels, int64_t first,
                     int64_t count, tt_matrix hidden, tt_matrix d_hidden)
{
    float *statistics = tt_parameters_statistics(&run->model.parameters);
    tt_masked_lm_inputs inputs = {.count = count,
                                  .rows = rows + first,
                                  .labels = labels + first,
                                  .scale = run->scales,
                                  .loss_sum = statistics + TT_MASKED_LOSS,
                                  .correct_sum = statistics + TT_MASKED_CORRECT};
    tt_masked_lm_head_run(&run->model.masked_lm, &inputs, hidden, d_hidden);
}

/* All positions, `piece` at a time. Returns the gradient; that of the hidden states in d_hidden. */
static float *run_pieces(small_run *run, const int32_t *rows, const int32_t *labels, int64_t piece,
                         tt_matrix hidden, tt_matrix d_hidden)
{
    tt_parameters *parameters = &run->model.parameters;
    run->device->zero(run->device, d_hidden.data, tt_type_bytes(d_hidden.type, STATES));
    run->device->zero(run->device, parameters->gradients,
                      ((size_t)parameters->total + TT_STATISTICS) * sizeof(float));
    for (int64_t first = 0; first < MASKED; first += piece) {
        run_head(run, rows, labels, first, piece, hidden, d_hidden);
    }
    return small_gradients(run);
}

/* Hidden states, or a place for their gradients, in the device's compute type. */
static tt_matrix make_states(tt_device *device, const double *values)
{
    size_t bytes = tt_type_bytes(device->compute, STATES);
    tt_matrix states =
        tt_matrix_dense(device->allocate(device, bytes), HIDDEN_ROWS, HIDDEN, device->compute);
    assert_non_null(states.data);
    if (values != NULL) {
        test_write_matrix(device, states, values);
    }
    return states;
}

/* So many masked tokens of so large a vocabulary that their logits are made in three chunks: the
 * same as three calls whose logits fit at once. */
static void check_chunks(small_run *run, const int32_t *rows, const int32_t *labels,
                         tt_matrix hidden)
{
    tt_device *device = run->device;
    tt_matrix d_hidden = make_states(device, NULL), d_again = make_states(device, NULL);
    float *expected = run_pieces(run, rows, labels, MASKED / 3, hidden, d_hidden);
    double loss = small_statistic(run, TT_MASKED_LOSS);
    assert_true(MASKED > 2 * run->model.masked_lm.chunk && MASKED / 3 < run->model.masked_lm.chunk);
    free(run_pieces(run, rows, labels, MASKED, hidden, d_again));
    expect_close(small_statistic(run, TT_MASKED_LOSS), loss, small_tolerance(1e-5));
    small_expect_gradients(run, expected, small_tolerance(1e-6));
    double *found = test_read_matrix(device, d_again), *wanted = test_read_matrix(device, d_hidden);
    for (int i = 0; i < STATES; i++) {
        assert_true(fabs(found[i] - wanted[i]) <= small_tolerance(1e-6) * (1e-2 + fabs(wanted[i])));
    }
    free(found);
    free(wanted);
    free(expected);
    device->release(device, d_hidden.data);
    device->release(device, d_again.data);
}

static void test_chunks(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_DENSE);
    configuration.vocabulary_size = test_device_is_cuda() ? FEWER_WORDS : WIDE_VOCABULARY;
    configuration.hidden_size = configuration.intermediate_size = HIDDEN;
    configuration.heads = configuration.layers = 1;
    small_run run;
    tt_error error = {0};
    small_run_create(&run, 1, &configuration, 0, 1);
    small_succeed(tt_model_plan(&run.model, 1, SMALL_LENGTH, MASKED, true, &error), &error);
    if (test_device_is_cuda()) {
        run.model.masked_lm.chunk = CHUNK;
    }
    int32_t rows[MASKED], labels[MASKED];
    double hidden[STATES];
    float scale = 1.0f / MASKED;
    tt_random random;
    tt_random_start(&random, 1, 1);
    for (int i = 0; i < MASKED; i++) {
        rows[i] = (int32_t)tt_random_below(&random, HIDDEN_ROWS);
        labels[i] = (int32_t)tt_random_below(&random, (uint32_t)configuration.vocabulary_size);
        hidden[i % STATES] = tt_random_normal(&random);
    }
    run.device->copy_in(run.device, run.scales, &scale, sizeof scale);
    tt_matrix states = make_states(run.device, hidden);
    void *device_rows = test_copy_in(run.device, rows, sizeof rows);
    void *device_labels = test_copy_in(run.device, labels, sizeof labels);
    check_chunks(&run, device_rows, device_labels, states);
    run.device->release(run.device, states.data);
    run.device->release(run.device, device_rows);
    run.device->release(run.device, device_labels);
    small_run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_dense),
        cmocka_unit_test(test_gradients_tensor_train),
        cmocka_unit_test(test_gradients_classification),
        cmocka_unit_test(test_forms_agree),
        cmocka_unit_test(test_dense_is_wide),
        cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_threads_agree),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_launches_do_not_grow_with_layers),
        cmocka_unit_test(test_rows_of_logits_are_aligned),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_no_masked_token),
        cmocka_unit_test(test_one_label_only),
        cmocka_unit_test(test_empty_rows),
        cmocka_unit_test(test_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

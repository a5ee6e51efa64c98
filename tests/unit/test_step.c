/* One step of training on one rank: what its losses mean, that it learns, what it leaves alone. */
#include "launch/step.h"
#include "support/small_model.h"

static const tt_world alone = {.rank = 0, .size = 1, .local_size = 1};

/* A model with all that a step needs. */
typedef struct {
    tt_device *device;
    tt_model model;
    tt_optimizer *optimizer;
    tt_step step;
} fixture;

static tt_optimizer_options options_for(bool trust_ratio, double learning_rate)
{
    return (tt_optimizer_options){
        .schedule = {.kind = TT_SCHEDULE_CONSTANT},
        .learning_rate = {learning_rate, learning_rate / 2.0, learning_rate / 4.0},
        .total_steps = 1000,
        .rule = {.beta1 = 0.9f,
                 .beta2 = 0.999f,
                 .epsilon = 1e-6f,
                 .weight_decay = 0.01f,
                 .clip_norm = 1.0f,
                 .threshold = 0.01f,
                 .trust_ratio = trust_ratio},
        .loss_count = TT_LOSS_COUNT};
}

static const tt_step_sizes small_sizes = {
    .rows = SMALL_ROWS,
    .micro_batch = 3, /* which does not divide the rows */
    .sequence_length = SMALL_LENGTH,
    .max_predictions = SMALL_PREDICTIONS,
};

static tt_status try_fixture(fixture *f, const tt_configuration *configuration,
                             const tt_optimizer_options *options, tt_error *error)
{
    TT_TRY(tt_model_create_pretraining(&f->model, f->device, configuration, 42, options, error));
    f->model.encoder.seed = 7;
    if (options) {
        TT_TRY(tt_optimizer_create(&f->model.parameters, options, &f->optimizer, error));
    }
    return tt_step_create(&f->step, &f->model, f->optimizer, &alone, NULL, &small_sizes, error);
}

/* `options` NULL: for evaluation only. */
static void make_fixture(fixture *f, const tt_configuration *configuration,
                         const tt_optimizer_options *options)
{
    tt_error error = {0};
    *f = (fixture){.device = test_device(1)};
    small_succeed(try_fixture(f, configuration, options, &error), &error);
}

static void free_fixture(fixture *f)
{
    tt_step_destroy(&f->step);
    tt_optimizer_destroy(&f->optimizer);
    tt_model_free(&f->model);
    tt_device_destroy(&f->device);
}

static tt_step_result train(fixture *f, const tt_batch *batch, int64_t number)
{
    assert_int_equal(tt_step_load(&f->step, batch, false), TT_STEP_GO_ON);
    tt_step_run(&f->step, number, number);
    return tt_step_read(&f->step);
}

static tt_step_result evaluate(fixture *f, const tt_batch *first, const tt_batch *second)
{
    tt_step_begin_evaluation(&f->step);
    tt_step_load(&f->step, first, false);
    tt_step_evaluate(&f->step);
    if (second) {
        tt_step_load(&f->step, second, false);
        tt_step_evaluate(&f->step);
    }
    return tt_step_end_evaluation(&f->step);
}

/* A parameter's or a moment's numbers, all of them, to compare with later. */
static void *keep(const fixture *f, const float *buffer)
{
    return test_copy_out(f->device, buffer, tt_floats(f->model.parameters.total));
}

static void expect_kept(const fixture *f, void *kept, const float *buffer)
{
    void *now = keep(f, buffer);
    assert_memory_equal(now, kept, (size_t)f->model.parameters.total * sizeof(float));
    free(now);
    free(kept);
}

static void expect_close(double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance * fabs(expected))) {
        fail_msg("expected %.9g, found %.9g", expected, found);
    }
}

/* --- what losses mean ------------------------------------------------------------------------ */

/* A model whose weights are 0: whatever it reads, its logits are the biases of its heads. */
static void make_constant_model(fixture *f, const tt_optimizer_options *options, float *bias,
                                float pair[2])
{
    tt_configuration configuration = small_configuration(TT_DENSE);
    configuration.initializer_range = 0.0f;
    make_fixture(f, &configuration, options);
    tt_random random;
    tt_random_start(&random, 2, 2);
    for (int i = 0; i < SMALL_VOCABULARY; i++) {
        bias[i] = tt_random_normal(&random);
    }
    pair[0] = 0.3f;
    pair[1] = -0.9f;
    tt_parameters *parameters = &f->model.parameters;
    float *target =
        tt_parameters_value(parameters, tt_parameters_find(parameters, "cls.predictions.bias"));
    f->device->copy_in(f->device, target, bias, SMALL_VOCABULARY * sizeof *bias);
    target = tt_parameters_value(parameters,
                                 tt_parameters_find(parameters, "cls.seq_relationship.bias"));
    f->device->copy_in(f->device, target, pair, 2 * sizeof *pair);
}

static double log_sum(const float *logits, int count)
{
    double sum = 0.0;
    for (int i = 0; i < count; i++) {
        sum += exp((double)logits[i]);
    }
    return log(sum);
}

static int largest_of(const float *logits, int count)
{
    int largest = 0;
    for (int i = 1; i < count; i++) {
        largest = logits[i] > logits[largest] ? i : largest;
    }
    return largest;
}

/* Sums over the labels of a batch that are there: count, losses, hits. */
static void count_labels(const int32_t *labels, int count, const float *logits, int classes,
                         double sums[3])
{
    for (int i = 0; i < count; i++) {
        if (labels[i] >= 0) {
            sums[0] += 1.0;
            sums[1] += log_sum(logits, classes) - (double)logits[labels[i]];
            sums[2] += labels[i] == largest_of(logits, classes);
        }
    }
}

static void expect_result(const tt_step_result *result, const double masked[3],
                          const double sentences[3])
{
    assert_true(result->masked_count == masked[0]);
    assert_true(result->sentence_count == sentences[0]);
    expect_close(result->masked_lm_loss, masked[1] / masked[0], 1e-6);
    expect_close(result->next_sentence_loss, sentences[1] / sentences[0], 1e-6);
    expect_close(result->masked_lm_accuracy, masked[2] / masked[0], 1e-6);
    expect_close(result->next_sentence_accuracy, sentences[2] / sentences[0], 1e-6);
    assert_true(result->finite);
}

/* Means over masked tokens and over labelled sequences, however these are spread over
 * micro-batches and evaluated batches. */
static void test_losses_are_means(void **state)
{
    (void)state;
    const int other_counts[SMALL_ROWS] = {0, 5, 0, 1, 0, 0, 4, 0};
    float bias[SMALL_VOCABULARY], pair[2];
    double masked[3] = {0}, sentences[3] = {0};
    small_batch first, second;
    fixture f;
    tt_optimizer_options options = options_for(false, 1e-3);
    make_constant_model(&f, &options, bias, pair);
    small_batch_make(&first, small_masked_counts, 1);
    small_batch_make(&second, other_counts, 2);
    first.labels[0] = second.labels[SMALL_PREDICTIONS] = largest_of(bias, SMALL_VOCABULARY);

    count_labels(first.labels, SMALL_ROWS * SMALL_PREDICTIONS, bias, SMALL_VOCABULARY, masked);
    count_labels(first.sentences, SMALL_ROWS, pair, 2, sentences);
    tt_step_result result = evaluate(&f, &first.batch, NULL);
    expect_result(&result, masked, sentences);
    count_labels(second.labels, SMALL_ROWS * SMALL_PREDICTIONS, bias, SMALL_VOCABULARY, masked);
    count_labels(second.sentences, SMALL_ROWS, pair, 2, sentences);
    result = evaluate(&f, &first.batch, &second.batch);
    expect_result(&result, masked, sentences);

    double of_second[3] = {0}, its_sentences[3] = {0};
    count_labels(second.labels, SMALL_ROWS * SMALL_PREDICTIONS, bias, SMALL_VOCABULARY, of_second);
    count_labels(second.sentences, SMALL_ROWS, pair, 2, its_sentences);
    result = train(&f, &second.batch, 0);
    expect_result(&result, of_second, its_sentences);
    free_fixture(&f);
}

static void test_nothing_masked(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    tt_optimizer_options options = options_for(false, 1e-3);
    small_batch made;
    fixture f;
    make_fixture(&f, &configuration, &options);
    small_batch_make(&made, NULL, 1);
    tt_step_result result = train(&f, &made.batch, 0);
    assert_true(result.finite);
    assert_true(result.masked_lm_loss == 0.0 && result.masked_count == 0.0);
    assert_true(result.next_sentence_loss > 0.0);
    assert_int_equal(tt_optimizer_updates(f.optimizer), 1);
    free_fixture(&f);
}

static void test_norm_and_rates(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    tt_optimizer_options options = options_for(false, 4e-3);
    small_batch made;
    fixture f;
    make_fixture(&f, &configuration, &options);
    small_batch_make(&made, small_masked_counts, 1);
    tt_step_result result = train(&f, &made.batch, 0);
    float *gradients = keep(&f, f.model.parameters.gradients);
    double sum = 0.0;
    for (int64_t i = 0; i < f.model.parameters.total; i++) {
        sum += (double)gradients[i] * gradients[i];
    }
    free(gradients);
    expect_close(result.gradient_norm, sqrt(sum), 1e-5);
    for (int group = 0; group < TT_GROUP_COUNT; group++) {
        expect_close(result.learning_rate[group], options.learning_rate[group], 1e-6);
    }
    free_fixture(&f);
}

static void test_calls(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_DENSE);
    small_batch made;
    fixture f;
    make_fixture(&f, &configuration, NULL);
    small_batch_make(&made, small_masked_counts, 1);
    assert_int_equal(tt_step_load(&f.step, &made.batch, false), TT_STEP_GO_ON);
    assert_int_equal(tt_step_load(&f.step, &made.batch, true), TT_STEP_STOP);
    assert_int_equal(tt_step_load(&f.step, NULL, true), TT_STEP_BROKEN);
    tt_step_result result = evaluate(&f, &made.batch, NULL); /* without an optimizer */
    assert_true(result.masked_lm_loss > 0.0);
    free_fixture(&f);
}

/* --- learning -------------------------------------------------------------------------------- */

/* Loss of the last of `steps` steps on one batch. */
static tt_step_result learn(tt_form form, bool trust_ratio, double learning_rate, int steps)
{
    tt_configuration configuration = small_configuration(form);
    configuration.initializer_range = 0.1f;
    configuration.train_deviation = 0.1f;
    configuration.dropout = configuration.attention_dropout = 0.0f;
    tt_optimizer_options options = options_for(trust_ratio, learning_rate);
    options.schedule.kind = TT_SCHEDULE_LINEAR; /* down to 0, so that it comes to rest */
    options.total_steps = steps;
    small_batch made;
    fixture f;
    tt_step_result result = {0};
    make_fixture(&f, &configuration, &options);
    small_batch_make(&made, small_masked_counts, 1);
    for (int number = 0; number < steps; number++) {
        result = train(&f, &made.batch, number);
        assert_true(result.finite);
        if (number == 0) {
            assert_true(result.masked_lm_loss > 4.0 && result.next_sentence_loss > 0.5);
        }
    }
    assert_int_equal(tt_optimizer_updates(f.optimizer), steps);
    free_fixture(&f);
    return result;
}

static void expect_learnt(tt_step_result result)
{
    if (!(result.masked_lm_loss < 0.2 && result.next_sentence_loss < 0.2)) {
        fail_msg("losses %g and %g", result.masked_lm_loss, result.next_sentence_loss);
    }
    assert_true(result.masked_lm_accuracy == 1.0 && result.next_sentence_accuracy == 1.0);
}

static void test_adamw_learns(void **state)
{
    (void)state;
    if (!test_device_is_simulated()) {
        expect_learnt(learn(TT_DENSE, false, 4e-2, 120));
    }
    expect_learnt(learn(TT_TENSOR_TRAIN, false, 4e-2, 120));
}

static void test_lamb_learns(void **state)
{
    (void)state;
    expect_learnt(learn(TT_DENSE, true, 4e-2, 200));
    if (!test_device_is_simulated()) {
        expect_learnt(learn(TT_TENSOR_TRAIN, true, 4e-2, 200));
    }
}

/* --- what is left alone ---------------------------------------------------------------------- */

static void test_non_finite(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    tt_optimizer_options options = options_for(false, 1e-3);
    small_batch made;
    fixture f;
    make_fixture(&f, &configuration, &options);
    small_batch_make(&made, small_masked_counts, 1);
    train(&f, &made.batch, 0);

    tt_parameters *parameters = &f.model.parameters;
    float poison = NAN, healthy;
    float *victim = tt_parameters_value(
        parameters, tt_parameters_find(parameters, "bert.encoder.layer.1.output.dense.core_2"));
    f.device->copy_out(f.device, &healthy, victim, sizeof healthy);
    f.device->copy_in(f.device, victim, &poison, sizeof poison);
    void *values = keep(&f, parameters->values);
    void *first = keep(&f, parameters->first_moment), *second = keep(&f, parameters->second_moment);
    tt_step_result result = train(&f, &made.batch, 1);
    assert_false(result.finite);
    assert_int_equal(tt_optimizer_updates(f.optimizer), 1);
    expect_kept(&f, values, parameters->values);
    expect_kept(&f, first, parameters->first_moment);
    expect_kept(&f, second, parameters->second_moment);

    f.device->copy_in(f.device, victim, &healthy, sizeof healthy);
    result = train(&f, &made.batch, 2);
    assert_true(result.finite);
    assert_int_equal(tt_optimizer_updates(f.optimizer), 2);
    free_fixture(&f);
}

/* Evaluation sees no dropout, changes neither values nor moments, and training goes on after it as
 * it would have without. */
static void test_evaluation(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    tt_optimizer_options options = options_for(false, 1e-3);
    small_batch made, other;
    fixture f, undisturbed;
    small_batch_make(&made, small_masked_counts, 1);
    small_batch_make(&other, small_masked_counts, 2);
    make_fixture(&f, &configuration, &options);
    make_fixture(&undisturbed, &configuration, &options);
    train(&f, &made.batch, 0);
    train(&undisturbed, &made.batch, 0);

    tt_parameters *parameters = &f.model.parameters;
    void *values = keep(&f, parameters->values), *first = keep(&f, parameters->first_moment);
    tt_step_result evaluated = evaluate(&f, &other.batch, NULL);
    tt_step_result again = evaluate(&f, &other.batch, NULL);
    expect_kept(&f, values, parameters->values);
    expect_kept(&f, first, parameters->first_moment);
    assert_int_equal(tt_optimizer_updates(f.optimizer), 1);
    assert_true(evaluated.masked_lm_loss == again.masked_lm_loss);

    tt_step_result trained = train(&f, &other.batch, 1);
    tt_step_result expected = train(&undisturbed, &other.batch, 1);
    assert_true(trained.masked_lm_loss == expected.masked_lm_loss);
    assert_true(trained.gradient_norm == expected.gradient_norm);
    assert_true(trained.masked_lm_loss != evaluated.masked_lm_loss); /* dropout is back */
    expect_kept(&f, keep(&undisturbed, undisturbed.model.parameters.values), parameters->values);
    free_fixture(&f);
    free_fixture(&undisturbed);
}

/* The same step number draws the same masks, another one others. */
static void test_step_number(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    tt_optimizer_options options = options_for(false, 0.0);
    small_batch made;
    fixture f;
    options.rule.weight_decay = 0.0f; /* nothing moves */
    make_fixture(&f, &configuration, &options);
    small_batch_make(&made, small_masked_counts, 1);
    tt_step_result first = train(&f, &made.batch, 5), same = train(&f, &made.batch, 5);
    tt_step_result next = train(&f, &made.batch, 6);
    assert_true(first.masked_lm_loss == same.masked_lm_loss);
    assert_true(first.gradient_norm == same.gradient_norm);
    assert_true(first.masked_lm_loss != next.masked_lm_loss);
    free_fixture(&f);
}

/* --- captured steps -------------------------------------------------------------------------- */

enum { CAPTURED_STEPS = 5 };

/* Steps that follow each other, every other one's result read only while the next one runs. */
static void run_steps(const tt_configuration *configuration, bool captures,
                      tt_step_result results[CAPTURED_STEPS], float **values, size_t *value_bytes)
{
    tt_optimizer_options options = options_for(false, 1e-2);
    options.schedule.kind = TT_SCHEDULE_LINEAR;
    options.total_steps = (int64_t)2 * CAPTURED_STEPS;
    fixture f;
    make_fixture(&f, configuration, &options);
    f.step.captures = f.step.captures && captures;
    for (int i = 0; i < CAPTURED_STEPS; i++) {
        small_batch made;
        small_batch_make(&made, i == 2 ? NULL : small_masked_counts, (uint64_t)i);
        assert_int_equal(tt_step_load(&f.step, &made.batch, false), TT_STEP_GO_ON);
        tt_step_run(&f.step, i, i);
        if (i % 2 == 1) {
            results[i - 1] = tt_step_read_earlier(&f.step);
            results[i] = tt_step_read(&f.step);
        }
    }
    results[CAPTURED_STEPS - 1] = tt_step_read(&f.step);
    tt_error error = {0};
    small_succeed(tt_step_check(&f.step, &error), &error);
    const tt_parameters *parameters = &f.model.parameters;
    *value_bytes = (size_t)parameters->total * sizeof(float);
    *values = malloc(*value_bytes);
    f.device->copy_out(f.device, *values, parameters->values, *value_bytes);
    assert_int_equal(f.step.graph != NULL, f.device->captures && captures);
    free_fixture(&f);
}

/* A step of the device's own and one given call by call have the same bits. */
static void test_captured_step(void **state)
{
    (void)state;
    const tt_configuration configurations[] = {small_configuration(TT_DENSE),
                                               small_configuration(TT_TENSOR_TRAIN),
                                               small_words_configuration(false)};
    for (int i = 0; i < 3; i++) {
        tt_configuration configuration = configurations[i];
        tt_step_result captured[CAPTURED_STEPS], given[CAPTURED_STEPS];
        float *captured_values, *given_values;
        size_t value_bytes;
        run_steps(&configuration, true, captured, &captured_values, &value_bytes);
        run_steps(&configuration, false, given, &given_values, &value_bytes);
        for (int j = 0; j < CAPTURED_STEPS; j++) {
            assert_true(captured[j].masked_lm_loss == given[j].masked_lm_loss);
            assert_true(captured[j].next_sentence_loss == given[j].next_sentence_loss);
            assert_true(captured[j].gradient_norm == given[j].gradient_norm);
            assert_true(captured[j].masked_count == given[j].masked_count);
            assert_true(captured[j].learning_rate[0] == given[j].learning_rate[0]);
            assert_true(j == 0 || captured[j].learning_rate[0] != captured[j - 1].learning_rate[0]);
        }
        assert_memory_equal(captured_values, given_values, value_bytes);
        free(captured_values);
        free(given_values);
    }
}

/* --- memory ---------------------------------------------------------------------------------- */

static void *(*real_allocate)(tt_device *device, size_t bytes);
static int allocations, allocations_allowed;

static void *counting_allocate(tt_device *device, size_t bytes)
{
    allocations++;
    return allocations <= allocations_allowed ? real_allocate(device, bytes) : NULL;
}

static void test_no_allocation_in_a_step(void **state)
{
    (void)state;
    const tt_configuration configurations[] = {small_configuration(TT_DENSE),
                                               small_configuration(TT_TENSOR_TRAIN),
                                               small_words_configuration(false)};
    for (int i = 0; i < 3; i++) {
        tt_configuration configuration = configurations[i];
        tt_optimizer_options options = options_for(true, 1e-3);
        small_batch made;
        fixture f;
        make_fixture(&f, &configuration, &options);
        small_batch_make(&made, small_masked_counts, 1);
        if (f.device->captures) { /* the first step brings the device's tables up */
            train(&f, &made.batch, 0);
            evaluate(&f, &made.batch, &made.batch);
        }
        real_allocate = f.device->allocate;
        allocations = allocations_allowed = 0;
        f.device->allocate = counting_allocate;
        train(&f, &made.batch, 1);
        train(&f, &made.batch, 2);
        evaluate(&f, &made.batch, &made.batch);
        assert_int_equal(allocations, 0);
        f.device->allocate = real_allocate;
        free_fixture(&f);
    }
}

/* Whichever allocation fails: an error that says so, and everything can be freed. */
static void test_no_memory(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    tt_optimizer_options options = options_for(false, 1e-3);
    tt_status status = TT_OUT_OF_MEMORY;
    for (int allowed = 0; status != TT_OK; allowed++) {
        tt_error error = {0};
        fixture f = {.device = test_device(1)};
        assert_true(allowed < 100);
        real_allocate = f.device->allocate;
        allocations = 0;
        allocations_allowed = allowed;
        f.device->allocate = counting_allocate;
        status = try_fixture(&f, &configuration, &options, &error);
        if (status != TT_OK) {
            assert_int_equal(status, TT_OUT_OF_MEMORY);
            assert_non_null(strstr(error.message, "no memory for "));
        }
        free_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_are_means), cmocka_unit_test(test_nothing_masked),
        cmocka_unit_test(test_norm_and_rates),   cmocka_unit_test(test_calls),
        cmocka_unit_test(test_adamw_learns),     cmocka_unit_test(test_lamb_learns),
        cmocka_unit_test(test_non_finite),       cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_step_number),      cmocka_unit_test(test_no_allocation_in_a_step),
        cmocka_unit_test(test_no_memory),        cmocka_unit_test(test_captured_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

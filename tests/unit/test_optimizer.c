/* The optimizer against plain double-precision AdamW and LAMB, and what it must leave alone. */
#include "core/optimizer.h"
#include "ops/ops_test.h"

typedef struct {
    tt_device *device;
    tt_parameters parameters;
    tt_optimizer *optimizer;
    tt_optimizer_options options;
} fixture;

typedef struct {
    tt_group group;
    bool decays;
    int64_t count;
} kind;

/* Added in another order than the flat buffers have them; one larger than a block of the update. */
static const kind kinds[] = {
    {TT_GROUP_DENSE, true, 40001}, {TT_GROUP_CORES, true, 1},     {TT_GROUP_DIAGONALS, false, 33},
    {TT_GROUP_DENSE, false, 768},  {TT_GROUP_CORES, true, 20000}, {TT_GROUP_DIAGONALS, false, 7},
    {TT_GROUP_DENSE, true, 3605},  {TT_GROUP_CORES, false, 129},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static tt_optimizer_options default_options(bool trust_ratio)
{
    return (tt_optimizer_options){.rule = {.beta1 = 0.9f,
                                           .beta2 = 0.999f,
                                           .epsilon = 1e-6f,
                                           .weight_decay = 0.01f,
                                           .clip_norm = 1.0f,
                                           .threshold = 0.01f,
                                           .trust_ratio = trust_ratio},
                                  .schedule = {.kind = TT_SCHEDULE_LINEAR, .warmup_fraction = 0.2},
                                  .learning_rate = {1e-2, 3e-2, 5e-3},
                                  .total_steps = 10,
                                  .loss_count = 2};
}

static void write_floats(fixture *f, float *target, const float *values, int64_t count)
{
    f->device->copy_in(f->device, target, values, (size_t)count * sizeof *values);
}

static void make_fixture(fixture *f, int threads, tt_optimizer_options options, const kind *all,
                         int count)
{
    tt_error error = {0};
    *f = (fixture){.device = test_device(threads), .options = options};
    tt_parameters_init(&f->parameters, f->device);
    for (int i = 0; i < count; i++) {
        char name[32];
        tt_parameter_id id;
        snprintf(name, sizeof name, "parameter_%d", i);
        assert_int_equal(tt_parameters_add(&f->parameters, name, all[i].group, all[i].decays, 1,
                                           &all[i].count, &id, &error),
                         TT_OK);
    }
    assert_int_equal(tt_parameters_allocate(&f->parameters, true, &error), TT_OK);
    if (tt_optimizer_create(&f->parameters, &options, &f->optimizer, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
}

static void free_fixture(fixture *f)
{
    tt_optimizer_destroy(&f->optimizer);
    assert_null(f->optimizer);
    tt_parameters_free(&f->parameters);
    tt_device_destroy(&f->device);
}

static void fill_normal(fixture *f, float *buffer, double mean, double deviation, uint64_t seed)
{
    for (int i = 0; i < f->parameters.count; i++) {
        const tt_parameter *item = &f->parameters.items[i];
        float *values = test_host((size_t)item->count * sizeof *values);
        tt_random random;
        tt_random_start(&random, seed, (uint64_t)i);
        for (int64_t j = 0; j < item->count; j++) {
            values[j] = (float)(mean + deviation * tt_random_normal(&random));
        }
        write_floats(f, buffer + item->offset, values, item->count);
        free(values);
    }
}

static double *read_floats(const fixture *f, const float *source, int64_t count)
{
    return test_read_matrix(f->device, tt_matrix_f32((float *)source, 1, count));
}

/* The optimizer as the textbook has it, in double. */
typedef struct {
    double *values, *first, *second;
    int updates;
} reference;

static double reference_factor(const fixture *f, const double *gradients, double *norm)
{
    double sum = 0.0;
    for (int64_t i = 0; i < f->parameters.total; i++) {
        sum += gradients[i] * gradients[i];
    }
    *norm = sqrt(sum);
    double limit = f->options.rule.clip_norm;
    return limit > 0.0 && *norm > limit ? limit / *norm : 1.0;
}

static void reference_parameter(const fixture *f, reference *r, const tt_parameter *item,
                                const double *gradients, double factor, double rate)
{
    const tt_update_rule *rule = &f->options.rule;
    double *direction = test_host((size_t)item->count * sizeof *direction);
    double value_squares = 0.0, direction_squares = 0.0;
    for (int64_t i = 0; i < item->count; i++) {
        int64_t at = item->offset + i;
        double g = gradients[at] * factor;
        r->first[at] = rule->beta1 * r->first[at] + (1.0 - rule->beta1) * g;
        r->second[at] = rule->beta2 * r->second[at] + (1.0 - rule->beta2) * g * g;
        double first = r->first[at] / (1.0 - pow(rule->beta1, r->updates));
        double second = r->second[at] / (1.0 - pow(rule->beta2, r->updates));
        direction[i] = first / (sqrt(second) + rule->epsilon) +
                       (item->decays ? rule->weight_decay * r->values[at] : 0.0);
        value_squares += r->values[at] * r->values[at];
        direction_squares += direction[i] * direction[i];
    }
    if (rule->trust_ratio && item->decays && value_squares > 0.0 && direction_squares > 0.0) {
        rate *= sqrt(value_squares / direction_squares);
    }
    for (int64_t i = 0; i < item->count; i++) {
        int64_t at = item->offset + i;
        double before = r->values[at];
        r->values[at] -= rate * direction[i];
        if (item->group == TT_GROUP_DIAGONALS &&
            !(before > rule->threshold && r->values[at] > rule->threshold)) {
            r->values[at] = r->first[at] = r->second[at] = 0.0;
        }
    }
    free(direction);
}

static void reference_step(const fixture *f, reference *r, const double *gradients, int step)
{
    const tt_optimizer_options *o = &f->options;
    double norm, factor = reference_factor(f, gradients, &norm);
    double schedule = tt_schedule_factor(&o->schedule, step, o->total_steps);
    r->updates++;
    for (int i = 0; i < f->parameters.count; i++) {
        const tt_parameter *item = &f->parameters.items[i];
        reference_parameter(f, r, item, gradients, factor,
                            o->learning_rate[item->group] * schedule);
    }
}

static void expect_state(fixture *f, const reference *r)
{
    int64_t total = f->parameters.total;
    double *values = read_floats(f, f->parameters.values, total);
    double *first = read_floats(f, f->parameters.first_moment, total);
    double *second = read_floats(f, f->parameters.second_moment, total);
    for (int i = 0; i < f->parameters.count; i++) {
        const tt_parameter *item = &f->parameters.items[i];
        int64_t at = item->offset;
        ops_test_close(item->name, values + at, r->values + at, item->count, 1e-5);
        ops_test_close("first moment", first + at, r->first + at, item->count, 1e-5);
        ops_test_close("second moment", second + at, r->second + at, item->count, 1e-5);
    }
    /* The gaps between parameters too. */
    ops_test_close("whole buffer", values, r->values, total, 1e-5);
    free(values);
    free(first);
    free(second);
}

static reference make_reference(fixture *f)
{
    int64_t total = f->parameters.total;
    return (reference){read_floats(f, f->parameters.values, total),
                       read_floats(f, f->parameters.first_moment, total),
                       read_floats(f, f->parameters.second_moment, total), 0};
}

static void free_reference(reference *r)
{
    free(r->values);
    free(r->first);
    free(r->second);
}

static void check_several_steps(int threads, bool trust_ratio, float clip_norm)
{
    fixture f;
    tt_optimizer_options options = default_options(trust_ratio);
    options.rule.clip_norm = clip_norm;
    make_fixture(&f, threads, options, kinds, KINDS);
    fill_normal(&f, f.parameters.values, 0.05, 0.05, 1);
    reference r = make_reference(&f);
    for (int step = 0; step < 6; step++) {
        fill_normal(&f, f.parameters.gradients, 0.0, 0.02 * (step + 1), 10 + (uint64_t)step);
        double *gradients = read_floats(&f, f.parameters.gradients, f.parameters.total);
        tt_optimizer_prepare_step(f.optimizer, step + 100, step);
        tt_optimizer_apply(f.optimizer);
        reference_step(&f, &r, gradients, step);
        expect_state(&f, &r);

        double norm, factor = reference_factor(&f, gradients, &norm);
        tt_step_state state = tt_optimizer_read_state(f.optimizer);
        assert_true(fabs(state.gradient_norm / norm - 1.0) < 1e-6);
        assert_true(fabs(state.gradient_factor / factor - 1.0) < 1e-6);
        assert_true(state.finite == 1.0f);
        assert_int_equal(state.step, step + 100);
        assert_int_equal(state.updates, step + 1);
        free(gradients);
    }
    free_reference(&r);
    free_fixture(&f);
}

static void test_adamw(void **state)
{
    (void)state;
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        check_several_steps(threads, false, 1.0f);
    }
    check_several_steps(1, false, 0.0f);
    check_several_steps(1, false, 1e6f);
}

static void test_lamb(void **state)
{
    (void)state;
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        check_several_steps(threads, true, 1.0f);
    }
}

/* torch.optim.AdamW, float64: lr 0.01, betas 0.9 and 0.999, eps 1e-6, weight decay 0.01. */
static void test_adamw_is_that_of_torch(void **state)
{
    (void)state;
    const kind one = {TT_GROUP_DENSE, true, 5};
    const float values[] = {0.5f, -1.0f, 2.0f, 0.0f, 1e-3f};
    const float gradients[3][5] = {{0.1f, -0.2f, 0.3f, 0.0f, 5.0f},
                                   {0.2f, 0.1f, -0.3f, 1e-4f, -2.0f},
                                   {-0.1f, 0.05f, 0.7f, -1e-4f, 0.5f}};
    const double expected[3][5] = {
        {0.4899501, -0.98990005, 1.989800033, 0.0, -0.009000098},
        {0.4802493458, -0.9871377064, 1.990127367, -0.0073376245, -0.01245525556},
        {0.4760004575, -0.9864251087, 1.98467498, -0.006890533708, -0.01570521871}};
    fixture f;
    tt_optimizer_options options = default_options(false);
    options.rule.clip_norm = 0.0f;
    options.schedule = (tt_schedule){.kind = TT_SCHEDULE_CONSTANT};
    options.learning_rate[TT_GROUP_DENSE] = 1e-2;
    make_fixture(&f, 1, options, &one, 1);
    write_floats(&f, f.parameters.values, values, 5);
    for (int step = 0; step < 3; step++) {
        write_floats(&f, f.parameters.gradients, gradients[step], 5);
        tt_optimizer_prepare_step(f.optimizer, step, step);
        tt_optimizer_apply(f.optimizer);
        double *found = read_floats(&f, f.parameters.values, 5);
        for (int i = 0; i < 5; i++) {
            assert_true(fabs(found[i] - expected[step][i]) < 2e-7 + 1e-6 * fabs(expected[step][i]));
        }
        free(found);
    }
    free_fixture(&f);
}

static void test_trust_ratio_is_one_for_zero_weights(void **state)
{
    (void)state;
    const kind one = {TT_GROUP_DENSE, true, 3};
    const float gradients[] = {0.5f, -0.5f, 0.25f};
    fixture f;
    tt_optimizer_options options = default_options(true);
    options.schedule = (tt_schedule){.kind = TT_SCHEDULE_CONSTANT};
    make_fixture(&f, 1, options, &one, 1);
    write_floats(&f, f.parameters.gradients, gradients, 3);
    tt_optimizer_prepare_step(f.optimizer, 0, 0);
    tt_optimizer_apply(f.optimizer);
    double *values = read_floats(&f, f.parameters.values, 3);
    const double expected[] = {-5e-3, 5e-3, -5e-3};
    ops_test_close("first step from zero", values, expected, 3, 1e-4);
    free(values);
    free_fixture(&f);
}

/* Entries at 0, below 0 and just above the threshold; strong gradients and old moments pull at all.
 */
static void test_pruned_diagonals_stay_pruned(void **state)
{
    (void)state;
    const kind one = {TT_GROUP_DIAGONALS, false, 6};
    const float values[] = {1.0f, 0.0f, -0.5f, 0.01f, 0.0101f, 0.5f};
    const float gradients[] = {0.1f, -1.0f, -1.0f, -1.0f, 1.0f, -0.1f};
    const float moments[] = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
    fixture f;
    make_fixture(&f, 1, default_options(false), &one, 1);
    write_floats(&f, f.parameters.values, values, 6);
    write_floats(&f, f.parameters.first_moment, moments, 6);
    write_floats(&f, f.parameters.second_moment, moments, 6);
    for (int step = 0; step < 3; step++) {
        write_floats(&f, f.parameters.gradients, gradients, 6);
        tt_optimizer_prepare_step(f.optimizer, step, step);
        tt_optimizer_apply(f.optimizer);
        double *found = read_floats(&f, f.parameters.values, 6);
        double *first = read_floats(&f, f.parameters.first_moment, 6);
        double *second = read_floats(&f, f.parameters.second_moment, 6);
        assert_true(found[0] > 0.5 && found[5] > 0.1);
        assert_true(first[0] != 0.0 && second[0] != 0.0);
        for (int i = 1; i <= 4; i++) {
            assert_true(found[i] == 0.0 && first[i] == 0.0 && second[i] == 0.0);
        }
        free(found);
        free(first);
        free(second);
    }
    free_fixture(&f);
}

static void expect_unchanged(fixture *f, const reference *r)
{
    int64_t total = f->parameters.total;
    double *values = read_floats(f, f->parameters.values, total);
    double *first = read_floats(f, f->parameters.first_moment, total);
    double *second = read_floats(f, f->parameters.second_moment, total);
    ops_test_equal("values", values, r->values, total);
    ops_test_equal("first moment", first, r->first, total);
    ops_test_equal("second moment", second, r->second, total);
    free(values);
    free(first);
    free(second);
}

static void check_skipped(bool trust_ratio, float bad_gradient, float bad_loss)
{
    fixture f;
    make_fixture(&f, 2, default_options(trust_ratio), kinds, KINDS);
    fill_normal(&f, f.parameters.values, 0.05, 0.05, 1);
    fill_normal(&f, f.parameters.gradients, 0.0, 0.02, 2);
    tt_optimizer_prepare_step(f.optimizer, 0, 0);
    tt_optimizer_apply(f.optimizer);
    reference r = make_reference(&f);

    int64_t last = f.parameters.total - 16;
    write_floats(&f, f.parameters.gradients + last, &bad_gradient, 1);
    write_floats(&f, tt_parameters_statistics(&f.parameters) + 1, &bad_loss, 1);
    tt_optimizer_prepare_step(f.optimizer, 1, 1);
    tt_optimizer_apply(f.optimizer);
    tt_step_state state = tt_optimizer_read_state(f.optimizer);
    assert_true(state.finite == 0.0f);
    assert_int_equal(state.step, 1);
    assert_int_equal(state.updates, 1);
    expect_unchanged(&f, &r);

    /* The next good step goes on as if the bad one had not been. */
    const float zero = 0.0f;
    write_floats(&f, tt_parameters_statistics(&f.parameters) + 1, &zero, 1);
    fill_normal(&f, f.parameters.gradients, 0.0, 0.02, 3);
    double *gradients = read_floats(&f, f.parameters.gradients, f.parameters.total);
    tt_optimizer_prepare_step(f.optimizer, 2, 2);
    tt_optimizer_apply(f.optimizer);
    r.updates = 1;
    reference_step(&f, &r, gradients, 2);
    expect_state(&f, &r);
    free(gradients);
    free_reference(&r);
    free_fixture(&f);
}

static void test_steps_that_are_not_finite(void **state)
{
    (void)state;
    check_skipped(false, NAN, 0.0f);
    check_skipped(true, INFINITY, 0.0f);
    check_skipped(false, -INFINITY, 0.0f);
    check_skipped(false, 1.0f, NAN);
}

/* Gradients whose squares do not fit single precision are still finite. */
static void test_large_gradients_are_clipped(void **state)
{
    (void)state;
    const kind one = {TT_GROUP_DENSE, false, 2};
    const float gradients[] = {3e25f, 4e25f};
    fixture f;
    make_fixture(&f, 1, default_options(false), &one, 1);
    write_floats(&f, f.parameters.gradients, gradients, 2);
    tt_optimizer_prepare_step(f.optimizer, 0, 0);
    tt_optimizer_apply(f.optimizer);
    tt_step_state now = tt_optimizer_read_state(f.optimizer);
    assert_true(now.finite == 1.0f);
    assert_true(fabs(now.gradient_norm / 5e25 - 1.0) < 1e-6);
    double *first = read_floats(&f, f.parameters.first_moment, 2);
    assert_true(fabs(first[0] - 0.06) < 1e-7 && fabs(first[1] - 0.08) < 1e-7);
    free(first);
    free_fixture(&f);
}

static void copy_floats(fixture *target, float *to, const fixture *source, const float *from)
{
    size_t bytes = (size_t)source->parameters.total * sizeof(float);
    float *host = test_host(bytes);
    source->device->copy_out(source->device, host, from, bytes);
    target->device->copy_in(target->device, to, host, bytes);
    free(host);
}

static void copy_state(fixture *target, const fixture *source)
{
    copy_floats(target, target->parameters.values, source, source->parameters.values);
    copy_floats(target, target->parameters.first_moment, source, source->parameters.first_moment);
    copy_floats(target, target->parameters.second_moment, source, source->parameters.second_moment);
    tt_optimizer_restore(target->optimizer, tt_optimizer_updates(source->optimizer));
}

/* Values, moments and the count of updates carried to a new optimizer go on to the same bits, with
 * any number of threads. */
static void test_restored_optimizer_continues(void **state)
{
    (void)state;
    for (int trust_ratio = 0; trust_ratio <= 1; trust_ratio++) {
        fixture all, part;
        make_fixture(&all, 1, default_options(trust_ratio), kinds, KINDS);
        make_fixture(&part, 3, default_options(trust_ratio), kinds, KINDS);
        fill_normal(&all, all.parameters.values, 0.05, 0.05, 1);
        for (int step = 0; step < 4; step++) {
            if (step == 2) {
                copy_state(&part, &all);
            }
            fill_normal(&all, all.parameters.gradients, 0.0, 0.02, 10 + (uint64_t)step);
            tt_optimizer_prepare_step(all.optimizer, step, step);
            tt_optimizer_apply(all.optimizer);
            if (step >= 2) {
                copy_floats(&part, part.parameters.gradients, &all, all.parameters.gradients);
                tt_optimizer_prepare_step(part.optimizer, step, step);
                tt_optimizer_apply(part.optimizer);
            }
        }
        reference r = make_reference(&all);
        expect_unchanged(&part, &r);
        assert_int_equal(tt_optimizer_updates(part.optimizer), 4);
        free_reference(&r);
        free_fixture(&all);
        free_fixture(&part);
    }
}

/* Nothing to move is a step like any other: it counts. */
static void test_steps_without_parameters_count(void **state)
{
    (void)state;
    for (int trust_ratio = 0; trust_ratio <= 1; trust_ratio++) {
        fixture f;
        make_fixture(&f, 1, default_options(trust_ratio), NULL, 0);
        for (int step = 0; step < 3; step++) {
            tt_optimizer_prepare_step(f.optimizer, step, step);
            tt_optimizer_apply(f.optimizer);
            assert_int_equal(tt_optimizer_updates(f.optimizer), step + 1);
        }
        assert_true(tt_optimizer_read_state(f.optimizer).gradient_norm == 0.0f);
        free_fixture(&f);
    }
}

static bool segments_in_order;

static void record_order(tt_device *device, const tt_update_rule *rule, const tt_update *update)
{
    (void)device;
    (void)rule;
    segments_in_order = update->count == KINDS;
    for (int i = 1; i < update->count; i++) {
        const tt_segment *before = &update->segments[i - 1];
        segments_in_order =
            segments_in_order && before->offset + before->count <= update->segments[i].offset;
    }
}

static void test_segments_are_in_order_of_offset(void **state)
{
    (void)state;
    fixture f;
    make_fixture(&f, 1, default_options(false), kinds, KINDS);
    tt_ops recording = *f.device->ops;
    recording.update = record_order;
    f.device->ops = &recording;
    tt_optimizer_apply(f.optimizer);
    assert_true(segments_in_order);
    free_fixture(&f);
}

static void test_options_are_checked(void **state)
{
    (void)state;
    fixture f;
    tt_error error = {0};
    make_fixture(&f, 1, default_options(false), kinds, KINDS);
    tt_optimizer_options bad[9];
    for (int i = 0; i < 9; i++) {
        bad[i] = default_options(false);
    }
    bad[0].rule.beta1 = 1.0f;
    bad[1].rule.beta2 = -0.1f;
    bad[2].rule.epsilon = 0.0f;
    bad[3].rule.weight_decay = NAN;
    bad[4].rule.clip_norm = -1.0f;
    bad[5].learning_rate[1] = INFINITY;
    bad[6].total_steps = 0;
    bad[7].loss_count = TT_STATISTICS + 1;
    bad[8].schedule.warmup_fraction = 2.0;
    for (int i = 0; i < 9; i++) {
        tt_optimizer *optimizer = NULL;
        assert_int_equal(tt_optimizer_create(&f.parameters, &bad[i], &optimizer, &error),
                         TT_INVALID_INPUT);
        assert_null(optimizer);
        assert_non_null(strstr(error.message, "expected"));
    }
    free_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_lamb),
        cmocka_unit_test(test_adamw_is_that_of_torch),
        cmocka_unit_test(test_trust_ratio_is_one_for_zero_weights),
        cmocka_unit_test(test_pruned_diagonals_stay_pruned),
        cmocka_unit_test(test_steps_that_are_not_finite),
        cmocka_unit_test(test_large_gradients_are_clipped),
        cmocka_unit_test(test_restored_optimizer_continues),
        cmocka_unit_test(test_steps_without_parameters_count),
        cmocka_unit_test(test_segments_are_in_order_of_offset),
        cmocka_unit_test(test_options_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The rank objective against its formulas in double precision: sizes, the branch, and gradients by
 * central differences; and that a stage which stops at its target ends there. */
#include "core/optimizer.h"
#include "core/rank.h"
#include "ops/ops_test.h"

#define THRESHOLD 0.01f

enum {
    TRAINS = 5,
    REST = 11,
    LOSSES = 2,
    REMOVED = 3, /* the train that has lost a link */
    FOLLOWER = 4 /* the one that needs it */
};

/* Orders 2 to 6; a rank above the width of a warp. */
static const tt_train_shape shapes[TRAINS] = {
    {.order = 2, .input_order = 1, .modes = {5, 7}, .ranks = {1, 4, 1}},
    {.order = 4, .input_order = 2, .modes = {3, 4, 2, 5}, .ranks = {1, 3, 6, 4, 1}},
    {.order = 6, .input_order = 3, .modes = {4, 3, 2, 3, 2, 4}, .ranks = {1, 4, 9, 35, 9, 4, 1}},
    {.order = 3, .input_order = 1, .modes = {4, 3, 2}, .ranks = {1, 4, 2, 1}},
    {.order = 2, .input_order = 1, .modes = {3, 6}, .ranks = {1, 2, 1}},
};

typedef struct {
    tt_device *device;
    tt_parameters parameters;
    tt_train_set trains;
    tt_rank_objective *objective;
    tt_rank_settings *settings; /* device, as are the next two */
    float *scales, *holds;
    /* Host, [total]: before a run and after it. */
    float *values, *gradients, *values_after, *gradients_after, *moments_after[2];
    tt_rank_record record;
    float holds_after;
} fixture;

static void expect_ok(tt_status status, const tt_error *error)
{
    if (status != TT_OK) {
        fail_msg("%s", error->message);
    }
}

static float *diagonal(const fixture *f, float *buffer, int train, int link)
{
    return buffer + f->parameters.items[f->trains.trains[train].diagonals[link]].offset;
}

static void draw_numbers(const fixture *f)
{
    tt_random random;
    tt_random_start(&random, 5, 1);
    for (int i = 0; i < f->parameters.count; i++) {
        const tt_parameter *item = &f->parameters.items[i];
        for (int64_t j = item->offset; j < item->offset + item->count; j++) {
            f->values[j] = item->group == TT_GROUP_DIAGONALS
                               ? 1.6f * tt_random_uniform(&random) - 0.3f
                               : tt_random_normal(&random);
            f->gradients[j] = tt_random_normal(&random);
        }
    }
    /* At the threshold is below it. */
    diagonal(f, f->values, 1, 1)[2] = THRESHOLD;
    for (int64_t j = 0; j < shapes[REMOVED].ranks[2]; j++) {
        diagonal(f, f->values, REMOVED, 1)[j] = j % 2 ? 0.0f : -0.5f;
    }
}

static void allocate(fixture *f)
{
    size_t bytes = tt_floats(f->parameters.total);
    float **arrays[] = {&f->values,          &f->gradients,        &f->values_after,
                        &f->gradients_after, &f->moments_after[0], &f->moments_after[1]};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        *arrays[i] = test_host(bytes);
    }
    f->settings = f->device->allocate(f->device, sizeof *f->settings);
    f->scales = f->device->allocate(f->device, tt_floats(LOSSES));
    f->holds = f->device->allocate(f->device, sizeof *f->holds);
}

static fixture *make_fixture(int train_count)
{
    fixture *f = test_host(sizeof *f);
    tt_error error;
    int64_t rest = REST;
    int index;
    f->device = test_device(2);
    tt_parameters_init(&f->parameters, f->device);
    tt_train_set_init(&f->trains, &f->parameters, THRESHOLD);
    for (int t = 0; t < train_count; t++) {
        char name[32];
        snprintf(name, sizeof name, "train%d", t);
        expect_ok(tt_train_set_add(&f->trains, name, &shapes[t], -1, &index, &error), &error);
    }
    if (train_count > FOLLOWER) {
        tt_train_set_need(&f->trains, FOLLOWER, 0);
        tt_train_set_need(&f->trains, FOLLOWER, REMOVED);
    }
    expect_ok(
        tt_parameters_add(&f->parameters, "rest", TT_GROUP_DENSE, true, 1, &rest, &index, &error),
        &error);
    expect_ok(tt_parameters_allocate(&f->parameters, true, &error), &error);
    expect_ok(tt_rank_objective_create(&f->trains, &f->objective, &error), &error);
    allocate(f);
    return f;
}

static fixture *make_drawn_fixture(void)
{
    fixture *f = make_fixture(TRAINS);
    draw_numbers(f);
    return f;
}

static void free_fixture(fixture *f)
{
    tt_device *device = f->device;
    tt_rank_objective_destroy(&f->objective);
    assert_null(f->objective);
    tt_rank_objective_destroy(&f->objective);
    device->release(device, f->settings);
    device->release(device, f->scales);
    device->release(device, f->holds);
    tt_train_set_free(&f->trains);
    tt_parameters_free(&f->parameters);
    tt_device_destroy(&device);
    free(f->values);
    free(f->gradients);
    free(f->values_after);
    free(f->gradients_after);
    free(f->moments_after[0]);
    free(f->moments_after[1]);
    free(f);
}

/* Sums of two losses and what they are multiplied by; their products add up to `loss`. */
static void put_losses(fixture *f, double loss)
{
    const float scales[LOSSES] = {0.25f, 0.5f};
    const float sums[LOSSES] = {(float)(loss - 0.5) * 4.0f, 1.0f};
    f->device->copy_in(f->device, f->scales, scales, sizeof scales);
    f->device->copy_in(f->device, tt_parameters_statistics(&f->parameters), sums, sizeof sums);
}

static void read_floats(const fixture *f, float *host, const float *memory)
{
    f->device->copy_out(f->device, host, memory, tt_floats(f->parameters.total));
}

static void run(fixture *f, const tt_rank_settings *settings, double loss)
{
    tt_device *device = f->device;
    const tt_parameters *p = &f->parameters;
    size_t bytes = tt_floats(p->total);
    float *moments = test_host(bytes);
    for (int64_t i = 0; i < p->total; i++) {
        moments[i] = 0.5f;
    }
    device->copy_in(device, p->values, f->values, bytes);
    device->copy_in(device, p->gradients, f->gradients, bytes);
    device->copy_in(device, p->first_moment, moments, bytes);
    device->copy_in(device, p->second_moment, moments, bytes);
    device->copy_in(device, f->settings, settings, sizeof *settings);
    put_losses(f, loss);
    tt_rank_objective_apply(f->objective, f->settings, f->scales, LOSSES, f->holds);
    read_floats(f, f->values_after, p->values);
    read_floats(f, f->gradients_after, p->gradients);
    read_floats(f, f->moments_after[0], p->first_moment);
    read_floats(f, f->moments_after[1], p->second_moment);
    device->copy_out(device, &f->record, tt_rank_objective_record(f->objective), sizeof f->record);
    device->copy_out(device, &f->holds_after, f->holds, sizeof f->holds_after);
    test_device_check(device);
    free(moments);
}

/* --- the formulas ----------------------------------------------------------------------------- */

/* The objective as a function of all values; which entries are kept is that of the fixture's. */
typedef struct {
    const fixture *f;
    const tt_rank_settings *settings;
    double loss;
} objective;

typedef struct {
    double size, relaxed_size, sum, entries, squares;
} measures;

static bool kept(const fixture *f, int train, int link, int64_t place)
{
    int order = f->trains.trains[train].shape.order;
    return link == 0 || link == order || diagonal(f, f->values, train, link - 1)[place] > THRESHOLD;
}

/* |D_link|_0 and |D_link|_1 of a train. */
static void link_norms(const fixture *f, const double *x, int train, int link, double norms[2])
{
    const tt_train *t = &f->trains.trains[train];
    norms[0] = norms[1] = link == 0 || link == t->shape.order ? 1.0 : 0.0;
    if (link > 0 && link < t->shape.order) {
        const double *values = x + f->parameters.items[t->diagonals[link - 1]].offset;
        for (int64_t j = 0; j < t->shape.ranks[link]; j++) {
            norms[0] += kept(f, train, link, j);
            norms[1] += kept(f, train, link, j) ? values[j] : 0.0;
        }
    }
}

static bool is_removed(const fixture *f, const double *x, int train)
{
    bool removed = false;
    for (int k = 1; k < f->trains.trains[train].shape.order; k++) {
        double norms[2];
        link_norms(f, x, train, k, norms);
        removed = removed || norms[0] == 0.0;
    }
    return removed || (train == FOLLOWER && is_removed(f, x, REMOVED));
}

static double core_squares(const fixture *f, const double *x, int train, int k)
{
    const tt_train *t = &f->trains.trains[train];
    const double *core = x + f->parameters.items[t->cores[k]].offset;
    int64_t left = t->shape.ranks[k], mode = t->shape.modes[k], right = t->shape.ranks[k + 1];
    double squares = 0.0;
    for (int64_t i = 0; i < left * mode * right; i++) {
        bool counts = kept(f, train, k, i / (mode * right)) && kept(f, train, k + 1, i % right);
        squares += counts ? core[i] * core[i] : 0.0;
    }
    return squares;
}

static measures measure(const fixture *f, const double *x)
{
    measures m = {0};
    for (int train = 0; train < f->trains.count; train++) {
        const tt_train_shape *shape = &f->trains.trains[train].shape;
        for (int k = 0; k < shape->order && !is_removed(f, x, train); k++) {
            double left[2], right[2];
            link_norms(f, x, train, k, left);
            link_norms(f, x, train, k + 1, right);
            m.size += left[0] * (double)shape->modes[k] * right[0];
            m.relaxed_size += left[1] * (double)shape->modes[k] * right[1];
            m.entries += k > 0 ? left[0] : 0.0;
            m.sum += k > 0 ? left[1] : 0.0;
            m.squares += core_squares(f, x, train, k);
        }
    }
    return m;
}

/* Whether a late stage works on the size. */
static bool size_leads(const tt_rank_settings *s, double loss, double size)
{
    if (s->stops_at_target && size <= s->target) {
        return false;
    }
    return s->of_the_mean ? (loss - s->target_loss) / loss < (size - s->target) / size
                          : s->w1 * (loss - s->target_loss) < s->w2 * (size - s->target) / s->unit;
}

/* Up to constants. */
static double objective_value(const void *context, const double *x)
{
    const objective *o = context;
    const tt_rank_settings *s = o->settings;
    measures m = measure(o->f, x);
    double loss = o->loss;
    if (s->stage == TT_RANKS_LEFT) {
        return loss;
    }
    double penalty = s->of_the_mean ? m.sum / m.entries : m.relaxed_size / s->unit;
    double squares = s->beta * m.squares;
    if (s->stage == TT_RANKS_EARLY) {
        return loss + s->gamma * penalty + squares;
    }
    bool there = s->stops_at_target && m.size <= s->target;
    double always = there ? 0.0 : (s->of_the_mean ? s->gamma : s->rho) * penalty;
    double leading = size_leads(s, loss, m.size) ? s->w2 * penalty : s->w1 * loss;
    return s->rho * loss + always + leading + squares;
}

/* --- values and gradients -----------------------------------------------------------------------
 */

static void expect_near(const char *what, double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance * fmax(1.0, fabs(expected)))) {
        fail_msg("%s: expected %.12g, found %.12g", what, expected, found);
    }
}

static void expect_record(const fixture *f, const objective *o, const double *x)
{
    measures m = measure(f, x);
    const tt_rank_settings *s = o->settings;
    tt_rank_branch branch = s->stage != TT_RANKS_LATE        ? TT_BRANCH_NONE
                            : size_leads(s, o->loss, m.size) ? TT_BRANCH_SIZE
                                                             : TT_BRANCH_LOSS;
    assert_true(f->record.size == m.size);
    expect_near("relaxed size", f->record.relaxed_size, m.relaxed_size, 1e-12);
    expect_near("mean", f->record.mean_diagonal, m.sum / m.entries, 1e-12);
    expect_near("loss", f->record.loss, o->loss, 1e-7);
    assert_int_equal(f->record.branch, branch);
    assert_int_equal(f->record.pruned, 0);
    assert_true(f->holds_after == (s->stops_at_target ? 1.0f : 0.0f));
    assert_true(tt_rank_objective_size(f->objective) == (int64_t)m.size);
}

static void expect_objective(fixture *f, const tt_rank_settings *settings, double loss)
{
    run(f, settings, loss);
    int64_t total = f->parameters.total;
    size_t bytes = (size_t)total * sizeof(double);
    double *x = test_host(bytes), *expected = test_host(bytes), *found = test_host(bytes);
    for (int64_t i = 0; i < total; i++) {
        x[i] = f->values[i];
    }
    objective o = {f, settings, loss};
    expect_record(f, &o, x);
    /* What the loss's gradient is multiplied by is the objective's slope in the loss. */
    objective above = {f, settings, loss + 1e-5}, below = {f, settings, loss - 1e-5};
    double slope = (objective_value(&above, x) - objective_value(&below, x)) / 2e-5;
    ops_test_differences(objective_value, &o, x, total, expected);
    double penalty = 0.0;
    for (int64_t i = 0; i < total; i++) {
        penalty += expected[i] * expected[i];
        expected[i] += slope * f->gradients[i];
        found[i] = f->gradients_after[i];
        expect_near("gradient", found[i], expected[i], 1e-6);
    }
    bool stands =
        settings->stage == TT_RANKS_LEFT ||
        (settings->stops_at_target && f->record.size <= settings->target && settings->beta == 0.0f);
    assert_true(stands ? penalty == 0.0 : penalty > 1e-8);
    assert_memory_equal(f->values_after, f->values, tt_floats(total));
    free(x);
    free(expected);
    free(found);
}

static const tt_rank_settings left = {.unit = 700, .gamma = 3, .beta = 2, .rho = 5};
static const tt_rank_settings early = {
    .unit = 700, .stage = TT_RANKS_EARLY, .gamma = 0.3f, .beta = 0.02f};
static const tt_rank_settings late = {.unit = 700,
                                      .stage = TT_RANKS_LATE,
                                      .target = 250,
                                      .gamma = 0.25f,
                                      .rho = 0.5f,
                                      .w1 = 1.5f,
                                      .w2 = 2.0f,
                                      .target_loss = 2.0f};

static void hold_entry(const fixture *f, int train, int link, int64_t place)
{
    diagonal(f, f->values, train, link)[place] = tt_least_kept(THRESHOLD);
}

static void test_left_alone(void **state)
{
    (void)state;
    fixture *f = make_drawn_fixture();
    expect_objective(f, &left, 2.5);
    assert_memory_equal(f->gradients_after, f->gradients, tt_floats(f->parameters.total));
    /* After a stage that stopped: what it held stays held. */
    tt_rank_settings after = left;
    after.stops_at_target = 1;
    hold_entry(f, 0, 0, 1);
    expect_objective(f, &after, 2.5);
    assert_memory_equal(f->gradients_after, f->gradients, tt_floats(f->parameters.total));
    free_fixture(f);
}

static void test_early_stage(void **state)
{
    (void)state;
    fixture *f = make_drawn_fixture();
    tt_rank_settings s = early;
    expect_objective(f, &s, 2.5);
    s.beta = 0;
    expect_objective(f, &s, 2.5);
    s.of_the_mean = 1;
    expect_objective(f, &s, 2.5);
    s.beta = 0.7f;
    expect_objective(f, &s, 2.5);
    free_fixture(f);
}

/* Both branches of both forms, and both right beside the loss at which they are equal. */
static void test_late_stage(void **state)
{
    (void)state;
    fixture *f = make_drawn_fixture();
    run(f, &left, 1.0);
    double size = f->record.size;
    assert_true(size > late.target);
    for (int i = 0; i < 8; i++) {
        tt_rank_settings s = late;
        s.of_the_mean = i & 1;
        s.stops_at_target = (i >> 1) & 1;
        s.beta = i & 4 ? 0.01f : 0.0f;
        double even = s.of_the_mean ? s.target_loss * size / s.target
                                    : s.target_loss + s.w2 / s.w1 * (size - s.target) / s.unit;
        expect_objective(f, &s, even - 1e-3);
        assert_int_equal(f->record.branch, TT_BRANCH_SIZE);
        expect_objective(f, &s, even + 1e-3);
        assert_int_equal(f->record.branch, TT_BRANCH_LOSS);
        expect_objective(f, &s, 0.5);
        assert_int_equal(f->record.branch, TT_BRANCH_SIZE);
    }
    free_fixture(f);
}

/* At the target and below it, stopping there or not. */
static void test_late_stage_there(void **state)
{
    (void)state;
    fixture *f = make_drawn_fixture();
    run(f, &left, 1.0);
    double size = f->record.size;
    for (int i = 0; i < 8; i++) {
        tt_rank_settings s = late;
        s.of_the_mean = i & 1;
        s.stops_at_target = (i >> 1) & 1;
        s.target = i & 4 ? size : size + 1;
        expect_objective(f, &s, 0.7); /* further below its target than the size is */
        assert_int_equal(f->record.branch, s.stops_at_target ? TT_BRANCH_LOSS : TT_BRANCH_SIZE);
        expect_objective(f, &s, 3.0);
        assert_int_equal(f->record.branch, TT_BRANCH_LOSS);
    }
    free_fixture(f);
}

/* --- coming down to a target --------------------------------------------------------------------
 */

static bool is_pruned(const fixture *f, int train, int link, int64_t place)
{
    bool zero = diagonal(f, f->values_after, train, link)[place] == 0.0f;
    for (int i = 0; i < 2; i++) {
        float moment = diagonal(f, f->moments_after[i], train, link)[place];
        assert_true(moment == (zero ? 0.0f : 0.5f));
    }
    return zero;
}

/* Train 0 has modes 5 and 7 around one link of four; an entry is 12 core entries. Train 1's ranks
 * are 3, 6, 4 with modes 3, 4, 2, 5: an entry of its middle link is 3 * 4 + 4 * 2, one of its last
 * 6 * 2 + 5, or 5 * 2 + 5 once the middle link has 5. */
static void test_held_entries_give_way(void **state)
{
    (void)state;
    fixture *f = make_fixture(2);
    for (int64_t i = 0; i < f->parameters.total; i++) {
        f->values[i] = 1.0f;
    }
    hold_entry(f, 0, 0, 1);
    hold_entry(f, 0, 0, 3);
    hold_entry(f, 1, 1, 5);
    hold_entry(f, 1, 1, 3);
    hold_entry(f, 1, 2, 0);
    run(f, &left, 1.0);
    double whole = f->record.size;
    assert_true(whole == 4 * 12 + (3 * 3 + 3 * 4 * 6 + 6 * 2 * 4 + 4 * 5));
    const struct {
        double target;
        int32_t pruned;
    } cases[] = {{whole, 0},      {whole - 1, 1},  {whole - 20, 1}, {whole - 21, 2},
                 {whole - 32, 2}, {whole - 33, 3}, {whole - 47, 3}, {1, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tt_rank_settings s = late;
        s.target = cases[i].target;
        s.stops_at_target = 1;
        run(f, &s, 0.5);
        assert_int_equal(f->record.pruned, cases[i].pruned);
        /* The highest place first, one a link: 5 of train 1, 3 of train 0, 0 of train 1. */
        assert_true(is_pruned(f, 1, 1, 5) == (cases[i].pruned >= 1));
        assert_true(is_pruned(f, 0, 0, 3) == (cases[i].pruned >= 2));
        assert_true(is_pruned(f, 1, 2, 0) == (cases[i].pruned >= 3));
        assert_false(is_pruned(f, 1, 1, 3) || is_pruned(f, 0, 0, 1) || is_pruned(f, 0, 0, 2));
        assert_true(f->record.size <= s.target || i + 1 == sizeof cases / sizeof *cases);
        assert_true(f->record.size == (double)tt_rank_objective_size(f->objective));
        s.stops_at_target = 0;
        run(f, &s, 0.5);
        assert_int_equal(f->record.pruned, 0);
    }
    free_fixture(f);
}

/* Train 0 (12 core entries) has one entry left and train 1 holds it no more than its own. */
static void test_last_entry(void **state)
{
    (void)state;
    fixture *f = make_fixture(2);
    for (int64_t i = 0; i < f->parameters.total; i++) {
        f->values[i] = 1.0f;
    }
    for (int64_t j = 1; j < 4; j++) {
        diagonal(f, f->values, 0, 0)[j] = 0.0f;
    }
    hold_entry(f, 0, 0, 0);
    run(f, &left, 1.0);
    double whole = f->record.size;
    for (int i = 11; i <= 13; i++) {
        tt_rank_settings s = late;
        s.target = whole - i;
        s.stops_at_target = 1;
        run(f, &s, 0.5);
        assert_int_equal(f->record.pruned, i >= 12);
        assert_true(f->record.size == (i >= 12 ? whole - 12 : whole));
    }
    free_fixture(f);
}

/* Nor does a train go with which others would go that are not to go. */
static void test_last_entry_of_others(void **state)
{
    (void)state;
    fixture *f = make_fixture(TRAINS);
    for (int64_t i = 0; i < f->parameters.total; i++) {
        f->values[i] = 1.0f;
    }
    diagonal(f, f->values, REMOVED, 1)[1] = 0.0f;
    hold_entry(f, REMOVED, 1, 0);
    run(f, &left, 1.0);
    double whole = f->record.size;
    int32_t own = 4 * 4 + 4 * 3 + 2, others = 2 * (3 + 6);
    for (int32_t less = own; less <= own + others + 1; less++) {
        tt_rank_settings s = late;
        s.target = whole - less;
        s.stops_at_target = 1;
        run(f, &s, 0.5);
        assert_int_equal(f->record.pruned, less >= own + others);
        assert_true(f->record.size == whole - (less >= own + others ? own + others : 0));
        assert_true(f->record.size == (double)tt_rank_objective_size(f->objective));
    }
    free_fixture(f);
}

/* A step whose loss is not finite changes no value. */
static void test_loss_that_is_not_finite(void **state)
{
    (void)state;
    fixture *f = make_drawn_fixture();
    hold_entry(f, 0, 0, 1);
    tt_rank_settings s = late;
    s.target = 1;
    s.stops_at_target = 1;
    const double losses[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        run(f, &s, losses[i]);
        assert_int_equal(f->record.pruned, 0);
        assert_memory_equal(f->values_after, f->values, tt_floats(f->parameters.total));
        assert_false(isfinite(f->record.loss));
    }
    s.target = 1e6;
    run(f, &s, 1.0);
    assert_int_equal(f->record.pruned, 0);
    free_fixture(f);
}

static tt_optimizer *make_optimizer(const fixture *f, double rate)
{
    tt_optimizer_options options = {
        .schedule = {.kind = TT_SCHEDULE_CONSTANT},
        .learning_rate = {rate, rate, rate},
        .total_steps = 1000,
        .rule = {.beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-6f, .threshold = THRESHOLD},
        .loss_count = LOSSES};
    tt_optimizer *optimizer;
    tt_error error;
    expect_ok(tt_optimizer_create(&f->parameters, &options, &optimizer, &error), &error);
    return optimizer;
}

/* All diagonals are equal and come down together, several slices a step: a stage that stops at its
 * target ends less than the largest slice below it and stays there; one that does not leaves
 * nothing. Returns the last size. */
static double descend(fixture *f, bool stops, double target, int steps)
{
    tt_optimizer *optimizer = make_optimizer(f, 0.05);
    tt_device *device = f->device;
    const tt_parameters *p = &f->parameters;
    size_t bytes = tt_floats(p->total);
    tt_rank_settings s = late;
    s.stops_at_target = stops;
    s.target = target;
    for (int64_t i = 0; i < p->total; i++) {
        f->values[i] = 1.0f;
    }
    device->copy_in(device, p->values, f->values, bytes);
    device->zero(device, p->first_moment, bytes);
    device->zero(device, p->second_moment, bytes);
    device->copy_in(device, f->settings, &s, sizeof s);
    put_losses(f, 0.5);
    tt_rank_record record = {0};
    for (int step = 0; step < steps; step++) {
        double before = record.size;
        device->zero(device, p->gradients, bytes);
        tt_optimizer_prepare_step(optimizer, step, step);
        tt_rank_objective_apply(f->objective, f->settings, f->scales, LOSSES,
                                tt_optimizer_holds(optimizer));
        tt_optimizer_apply(optimizer);
        device->copy_out(device, &record, tt_rank_objective_record(f->objective), sizeof record);
        assert_true(step == 0 || record.size <= before);
        assert_true(step == 0 || !stops || before > target || record.size == before);
    }
    tt_optimizer_destroy(&optimizer);
    return record.size;
}

static void test_a_target_is_met(void **state)
{
    (void)state;
    fixture *f = make_fixture(TRAINS);
    const double targets[] = {150, 450, 1350};
    for (int i = 0; i < 3; i++) {
        double target = targets[i], size = descend(f, true, target, 90);
        /* The largest slice, beside the link of rank 35, has 3 * 35 + 2 * 4 entries. */
        assert_true(size <= target && size > target - (3 * 35 + 2 * 4));
    }
    assert_true(descend(f, false, 450, 90) == 0.0);
    free_fixture(f);
}

/* Where nothing holds it, an update prunes; where it holds, what comes down stays just above. */
static void test_updates_that_hold(void **state)
{
    (void)state;
    fixture *f = make_fixture(1);
    tt_device *device = f->device;
    const tt_parameters *p = &f->parameters;
    for (int holds = 0; holds < 2; holds++) {
        tt_optimizer *optimizer = make_optimizer(f, 0.05);
        float *values = diagonal(f, f->values, 0, 0), *after = diagonal(f, f->values_after, 0, 0);
        const float start[] = {0.5f, 0.03f, THRESHOLD, 0.02f};
        for (int64_t i = 0; i < p->total; i++) {
            f->gradients[i] = 1.0f;
        }
        memcpy(values, start, sizeof start);
        diagonal(f, f->gradients, 0, 0)[3] = -1.0f;
        device->copy_in(device, p->values, f->values, tt_floats(p->total));
        device->copy_in(device, p->gradients, f->gradients, tt_floats(p->total));
        device->zero(device, p->first_moment, tt_floats(p->total));
        device->zero(device, p->second_moment, tt_floats(p->total));
        put_losses(f, 1.0);
        float flag = (float)holds;
        device->copy_in(device, tt_optimizer_holds(optimizer), &flag, sizeof flag);
        tt_optimizer_prepare_step(optimizer, 0, 0);
        tt_optimizer_apply(optimizer);
        read_floats(f, f->values_after, p->values);
        assert_true(fabs((double)after[0] - 0.45) < 1e-5);
        assert_true(after[1] == (holds ? tt_least_kept(THRESHOLD) : 0.0f));
        assert_true(after[2] == 0.0f);
        assert_true(fabs((double)after[3] - 0.07) < 1e-5);
        tt_optimizer_destroy(&optimizer);
    }
    assert_true(tt_least_kept(THRESHOLD) > THRESHOLD);
    free_fixture(f);
}

static void test_no_trains(void **state)
{
    (void)state;
    fixture *f = make_fixture(0);
    for (int64_t i = 0; i < REST; i++) {
        f->gradients[i] = (float)(i + 1);
    }
    tt_rank_settings s = late;
    run(f, &s, 3.0);
    assert_true(f->record.size == 0.0 && f->record.relaxed_size == 0.0);
    assert_true(f->record.mean_diagonal == 0.0);
    assert_int_equal(f->record.branch, TT_BRANCH_LOSS);
    assert_int_equal(tt_rank_objective_size(f->objective), 0);
    for (int64_t i = 0; i < REST; i++) {
        assert_true(f->gradients_after[i] == 2.0f * f->gradients[i]);
    }
    free_fixture(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left_alone),
        cmocka_unit_test(test_early_stage),
        cmocka_unit_test(test_late_stage),
        cmocka_unit_test(test_late_stage_there),
        cmocka_unit_test(test_held_entries_give_way),
        cmocka_unit_test(test_last_entry),
        cmocka_unit_test(test_last_entry_of_others),
        cmocka_unit_test(test_loss_that_is_not_finite),
        cmocka_unit_test(test_a_target_is_met),
        cmocka_unit_test(test_updates_that_hold),
        cmocka_unit_test(test_no_trains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Stages: which steps they take, what a step is told and says, and steps that train ranks. */
#include "launch/stages.h"
#include "support/scratch.h"
#include "support/small_model.h"

static tt_recipe recipe;

/* --- which steps -------------------------------------------------------------------------------
 */

static void read_recipe(const char *stages)
{
    static const char base[] =
        "model: {preset: small, vocabulary_size: 97}\n"
        "tensor_train: {form: tensor_train, rank: 4}\n"
        "phases:\n"
        "  - {sequence_length: 32, steps: 10, global_batch: 8, learning_rate: 1e-3}\n"
        "  - {sequence_length: 32, steps: 20, global_batch: 4, learning_rate: 1e-3}\n"
        "stages: %s\n";
    char text[2048];
    tt_error error;
    snprintf(text, sizeof text, base, stages);
    expect_success(tt_recipe_parse("test", text, strlen(text), NULL, 0, &recipe, &error), &error);
}

/* Rows of both phases: epochs of 4 and of 10 steps. */
static const int64_t phase_rows[TT_RECIPE_PHASES] = {32, 40};

static void expect_span(const tt_stage_plan *plan, int number, int64_t first, int64_t end)
{
    if (plan->spans[number].first != first || plan->spans[number].end != end) {
        fail_msg("stage %d: expected steps %lld to %lld, found %lld to %lld", number,
                 (long long)first, (long long)end, (long long)plan->spans[number].first,
                 (long long)plan->spans[number].end);
    }
}

static tt_stage_plan planned(const char *stages)
{
    tt_stage_plan plan;
    tt_error error;
    read_recipe(stages);
    expect_success(tt_stages_plan(&recipe, phase_rows, &plan, &error), &error);
    return plan;
}

static void refuse_plan(const char *stages, const char *fragment)
{
    tt_stage_plan plan;
    tt_error error;
    read_recipe(stages);
    expect_failure(tt_stages_plan(&recipe, phase_rows, &plan, &error), &error, fragment);
}

static void test_steps(void **state)
{
    (void)state;
    tt_stage_plan plan = planned("[{steps: 7}, {steps: 8}]");
    assert_int_equal(plan.count, 2);
    assert_false(tt_stages_count_epochs(&recipe));
    expect_span(&plan, 0, 0, 7);
    expect_span(&plan, 1, 7, 15);
    assert_int_equal(tt_stages_at(&plan, 0), 0);
    assert_int_equal(tt_stages_at(&plan, 6), 0);
    assert_int_equal(tt_stages_at(&plan, 7), 1);
    assert_int_equal(tt_stages_at(&plan, 14), 1);
    assert_int_equal(tt_stages_at(&plan, 15), -1);
    plan = planned("[{steps: 29}, {steps: 1000}]");
    expect_span(&plan, 1, 29, 30); /* cut off at the run's end */
    plan = planned("[]");
    assert_int_equal(plan.count, 0);
    assert_int_equal(tt_stages_at(&plan, 0), -1);
}

/* An epoch is what it is in the phase that its steps are in. */
static void test_epochs(void **state)
{
    (void)state;
    tt_stage_plan plan = planned("[{epochs: 2}, {epochs: 0.3}, {steps: 1}]");
    assert_true(tt_stages_count_epochs(&recipe));
    expect_span(&plan, 0, 0, 8);
    expect_span(&plan, 1, 8, 10);
    expect_span(&plan, 2, 10, 11);
    /* 2.5 epochs are the first phase; half an epoch of the second has 5 steps. */
    plan = planned("[{epochs: 3}, {epochs: 0.01}]");
    expect_span(&plan, 0, 0, 15);
    expect_span(&plan, 1, 15, 16);
    plan = planned("[{steps: 9}, {epochs: 1.25}]");
    expect_span(&plan, 1, 9, 20);
    plan = planned("[{epochs: 100}]");
    expect_span(&plan, 0, 0, 30);
}

static void test_stages_without_steps(void **state)
{
    (void)state;
    refuse_plan("[{steps: 30}, {steps: 1}]",
                "stages.1: expected a step before the run ends with step 30, found a stage with no "
                "steps, after step 30");
    refuse_plan("[{epochs: 5}, {steps: 1}]", "stages.1: expected a step before");
}

/* --- what a step is told and says ----------------------------------------------------------------
 */

static const tt_world alone = {.rank = 0, .size = 1, .local_size = 1};

typedef struct {
    tt_device *device;
    tt_model model;
    tt_optimizer *optimizer;
    tt_step step;
} fixture;

static void make_fixture(fixture *f, double diagonal_rate)
{
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    tt_optimizer_options options = {.schedule = {.kind = TT_SCHEDULE_CONSTANT},
                                    .learning_rate = {1e-3, diagonal_rate, 1e-3},
                                    .total_steps = 1000,
                                    .rule = {.beta1 = 0.9f,
                                             .beta2 = 0.999f,
                                             .epsilon = 1e-6f,
                                             .clip_norm = 1.0f,
                                             .threshold = 0.01f},
                                    .loss_count = TT_LOSS_COUNT};
    tt_step_sizes sizes = {.rows = SMALL_ROWS,
                           .micro_batch = 3,
                           .sequence_length = SMALL_LENGTH,
                           .max_predictions = SMALL_PREDICTIONS};
    tt_error error = {0};
    *f = (fixture){.device = test_device(1)};
    small_succeed(
        tt_model_create_pretraining(&f->model, f->device, &configuration, 42, true, &error),
        &error);
    small_succeed(tt_optimizer_create(&f->model.parameters, &options, &f->optimizer, &error),
                  &error);
    small_succeed(tt_step_create(&f->step, &f->model, f->optimizer, &alone, NULL, &sizes, &error),
                  &error);
    small_succeed(tt_step_train_ranks(&f->step, &error), &error);
}

static void free_fixture(fixture *f)
{
    tt_step_destroy(&f->step);
    tt_optimizer_destroy(&f->optimizer);
    tt_model_free(&f->model);
    tt_device_destroy(&f->device);
}

static int64_t core_entries(const tt_model *model)
{
    const tt_parameters *parameters = &model->parameters;
    int64_t count = 0;
    for (int i = 0; i < parameters->count; i++) {
        count += parameters->items[i].group == TT_GROUP_CORES ? parameters->items[i].count : 0;
    }
    return count;
}

static void give_step(fixture *f, int64_t number)
{
    small_batch made;
    small_batch_make(&made, small_masked_counts, (uint64_t)number);
    assert_int_equal(tt_step_load(&f->step, &made.batch, false), TT_STEP_GO_ON);
    tt_step_run(&f->step, number, number);
}

static bool enter(fixture *f, const tt_stage_plan *plan, tt_training_state *state, int64_t step)
{
    bool began;
    tt_error error;
    state->step = step;
    small_succeed(tt_stages_enter(&recipe, plan, state, &f->step, &began, &error), &error);
    return began;
}

static void set_link(fixture *f, int train, int link, float value)
{
    tt_parameters *parameters = &f->model.parameters;
    tt_parameter_id id = f->model.trains.trains[train].diagonals[link];
    tt_parameters_fill(parameters, id, value);
}

/* The size is measured where a stage begins, is its unit to its end, and goes over a checkpoint. */
static void test_entering(void **state)
{
    (void)state;
    fixture f;
    make_fixture(&f, 1e-3);
    tt_stage_plan plan =
        planned("[{steps: 2, gamma: 0.5, beta: 3}, {kind: late, steps: 2, target_loss: 1.5, "
                "target_ratio: 0.25, rho: 0.3, w1: 2, w2: 4, beta: 5}]");
    tt_training_state saved = {0};
    int64_t whole = core_entries(&f.model);
    assert_true(enter(&f, &plan, &saved, 0));
    const tt_rank_settings *s = &f.step.stage;
    assert_true(saved.stage == 1 && saved.stage_size == whole && s->unit == (double)whole);
    assert_true(s->stage == TT_RANKS_EARLY && s->gamma == 0.5f && s->beta == 3.0f);
    assert_true(!s->of_the_mean && !s->stops_at_target && s->number == 0);
    set_link(&f, 1, 1, 0.0f); /* train 1, a key map, is gone, and so is its query, train 0 */
    assert_false(enter(&f, &plan, &saved, 1));
    assert_true(saved.stage_size == whole && s->unit == (double)whole);
    tt_training_state resumed = {.stage = saved.stage, .stage_size = saved.stage_size};
    assert_false(enter(&f, &plan, &resumed, 1));
    assert_true(s->unit == (double)whole);

    int64_t left = whole - 2 * tt_train_core_size(&f.model.trains.trains[1].shape);
    assert_true(enter(&f, &plan, &saved, 2));
    assert_true(saved.stage == 2 && saved.stage_size == left && s->unit == (double)left);
    assert_true(s->stage == TT_RANKS_LATE && s->target == 0.25 * (double)left);
    assert_true(s->rho == 0.3f && s->w1 == 2.0f && s->w2 == 4.0f && s->target_loss == 1.5f);
    assert_true(s->stops_at_target && s->beta == 5.0f && s->number == 1);
    char text[256];
    tt_stages_describe(&recipe, &plan, &saved, &f.model, text, sizeof text);
    assert_non_null(strstr(text, "stage late: steps 3 to 4, from "));
    assert_non_null(strstr(text, "towards a loss of 1.5"));
    assert_false(enter(&f, &plan, &saved, 4));
    assert_true(s->stage == TT_RANKS_LEFT && s->number == -1 && s->unit == (double)left);
    assert_true(s->stops_at_target);
    recipe.rank.objective = TT_RECIPE_REFERENCE;
    assert_false(enter(&f, &plan, &saved, 3));
    assert_true(s->of_the_mean);
    free_fixture(&f);
}

static void test_target_parameters(void **state)
{
    (void)state;
    fixture f;
    tt_error error;
    make_fixture(&f, 1e-3);
    int64_t besides = 0;
    for (int i = 0; i < f.model.parameters.count; i++) {
        const tt_parameter *item = &f.model.parameters.items[i];
        besides += item->group == TT_GROUP_DENSE ? item->count : 0;
    }
    int64_t most = tt_configuration_pretraining_parameters(&f.model.configuration);
    char many[160];
    snprintf(many, sizeof many, "[{kind: late, steps: 5, target_loss: 1, target_parameters: %lld}]",
             (long long)most + 1);
    read_recipe(many);
    expect_failure(tt_stages_check_targets(&recipe, &f.model, &error), &error,
                   "stages.0.target_parameters: expected at most ");
    for (int over = 0; over < 2; over++) {
        char stages[160], expected[160];
        snprintf(stages, sizeof stages,
                 "[{kind: late, steps: 5, target_loss: 1, target_parameters: %lld}]",
                 (long long)besides + over);
        tt_stage_plan plan = planned(stages);
        tt_status status = tt_stages_check_targets(&recipe, &f.model, &error);
        snprintf(expected, sizeof expected,
                 "stages.0.target_parameters: expected more than %lld, which the model has with "
                 "every tensor-train map removed",
                 (long long)besides);
        if (over > 0) {
            tt_training_state saved = {0};
            expect_success(status, &error);
            assert_true(enter(&f, &plan, &saved, 0));
            assert_true(f.step.stage.target == (double)over);
        } else {
            expect_failure(status, &error, expected);
        }
    }
    free_fixture(&f);
}

/* --- steps that train ranks ----------------------------------------------------------------------
 */

enum { STEPS = 36, EARLY = 6 };

typedef struct {
    tt_step_result results[STEPS];
    float *values;
    size_t bytes;
} course;

/* An early stage, then a late one that first works on the size and then on the loss. Every other
 * result is read only while the next step runs. */
static course run_course(bool captures)
{
    course c = {0};
    fixture f;
    tt_error error = {0};
    make_fixture(&f, 0.05);
    f.step.captures = f.step.captures && captures;
    tt_stage_plan plan =
        planned("[{steps: 6, gamma: 0.2, beta: 1e-4}, {kind: late, steps: 24, target_loss: 20, "
                "target_ratio: 0.6, w2: 4}]");
    tt_training_state saved = {0};
    for (int i = 0; i < STEPS; i++) {
        assert_true(enter(&f, &plan, &saved, i) == (i == 0 || i == EARLY));
        give_step(&f, i);
        if (i % 2 == 1) {
            c.results[i - 1] = tt_step_read_earlier(&f.step);
            c.results[i] = tt_step_read(&f.step);
        }
    }
    small_succeed(tt_step_check(&f.step, &error), &error);
    assert_int_equal(f.step.graph != NULL, f.device->captures && captures);
    c.bytes = (size_t)f.model.parameters.total * sizeof(float);
    c.values = malloc(c.bytes);
    f.device->copy_out(f.device, c.values, f.model.parameters.values, c.bytes);
    free_fixture(&f);
    return c;
}

/* One captured step serves both stages and both branches, with the bits of steps given call by
 * call; and the size comes down to the target. */
static void test_course(void **state)
{
    (void)state;
    course captured = run_course(true), given = run_course(false);
    bool on_size = false, on_loss = false;
    for (int i = 0; i < STEPS; i++) {
        const tt_step_result *a = &captured.results[i], *b = &given.results[i];
        assert_true(a->has_ranks && a->finite);
        assert_memory_equal(&a->ranks, &b->ranks, sizeof a->ranks);
        assert_true(a->masked_lm_loss == b->masked_lm_loss);
        assert_true(a->gradient_norm == b->gradient_norm);
        assert_int_equal(a->stage.number, i < EARLY ? 0 : i < 30 ? 1 : -1);
        assert_true((a->ranks.branch == TT_BRANCH_NONE) == (a->stage.number != 1));
        assert_true(i < 30 || a->ranks.size == captured.results[29].ranks.size);
        on_size = on_size || a->ranks.branch == TT_BRANCH_SIZE;
        on_loss = on_loss || a->ranks.branch == TT_BRANCH_LOSS;
        double loss = a->masked_lm_loss + a->next_sentence_loss;
        assert_true(fabs(a->ranks.loss - loss) <= 1e-5 * loss);
    }
    assert_memory_equal(captured.values, given.values, captured.bytes);
    assert_true(on_size && on_loss);
    double ratio = captured.results[29].ranks.size / captured.results[29].stage.unit;
    if (!(ratio <= 0.6 && ratio >= 0.98 * 0.6)) {
        fail_msg("expected a size within 2 %% of 0.6, found %g", ratio);
    }
    free(captured.values);
    free(given.values);
}

static void test_report(void **state)
{
    (void)state;
    planned("[{name: first, steps: 6}]");
    tt_metrics_record record = {0};
    tt_step_result result = {.has_ranks = false};
    tt_stages_report(&recipe, &result, &record);
    assert_false(record.has_ranks);
    result =
        (tt_step_result){.has_ranks = true,
                         .stage = {.unit = 200, .number = 0},
                         .ranks = {.size = 50, .relaxed_size = 12.5, .branch = TT_BRANCH_SIZE}};
    tt_stages_report(&recipe, &result, &record);
    assert_true(record.has_ranks && record.size == 50 && record.relaxed_size == 12.5);
    assert_true(record.size_ratio == 0.25);
    assert_string_equal(record.stage, "first");
    assert_string_equal(record.branch, "size");
    result.stage.number = -1;
    result.ranks.branch = TT_BRANCH_NONE;
    tt_stages_report(&recipe, &result, &record);
    assert_true(record.stage == NULL && record.branch == NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_stages_without_steps),
        cmocka_unit_test(test_entering),
        cmocka_unit_test(test_target_parameters),
        cmocka_unit_test(test_course),
        cmocka_unit_test(test_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

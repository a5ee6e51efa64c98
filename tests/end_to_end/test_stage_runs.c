/* Runs in which ranks are trained: an early stage, then a late one that comes down to its target
 * and goes on learning; resumed in the middle; begun from another run's checkpoint; refused. */
#include "support/training.h"

#include <math.h>

enum { STEPS = 90, EARLY = 20, LATE_END = 80, FIRST_PHASE = 50 };

/* Diagonals move fast, so that few steps do; the late stage reaches over both phases, and ten steps
 * of no stage follow. */
static const char stage_recipe[] =
    "name: stages\n"
    "seed: 3\n"
    "output: run\n"
    "model: {preset: small, max_positions: 64}\n"
    "tensor_train: {form: tensor_train, rank: 8}\n"
    "data: {tokenizer: tokenizer.model, max_predictions: 8}\n"
    "phases:\n"
    "  - {name: short, sequence_length: 32, steps: 50, global_batch: 8, learning_rate: 2e-3,\n"
    "     diagonal_learning_rate: 4e-2, warmup: 0, decay: constant,\n"
    "     train: length32/train_*.hdf5}\n"
    "  - {name: long, sequence_length: 64, steps: 40, global_batch: 8, learning_rate: 2e-3,\n"
    "     diagonal_learning_rate: 4e-2, warmup: 0, decay: constant,\n"
    "     train: length64/train_*.hdf5}\n"
    "stages:\n"
    "  - {kind: early, steps: 20, gamma: 0.02, beta: 1e-6}\n"
    "  - {kind: late, steps: 60, target_loss: 6, target_ratio: 0.5, w2: 20}\n"
    "checkpoint: {interval: 1, keep: 100}\n"
    "log: {interval: 1}\n";

static int set_up(void **state)
{
    if (training_setup(state) != 0) {
        return -1;
    }
    scratch_write(scratch_path("stages.yaml"), stage_recipe, strlen(stage_recipe));
    TRAIN(.recipe = "stages.yaml", .arguments = {"output=whole"});
    assert_int_equal(metrics_lines("whole"), STEPS);
    return 0;
}

/* Whether line `line` of a run's metrics holds `text`. */
static bool line_has(const char *output, int line, const char *text)
{
    char *from = metrics_from(output, line), *end = strchr(from, '\n');
    assert_non_null(end);
    *end = '\0';
    bool has = strstr(from, text) != NULL;
    free(from);
    return has;
}

static void expect_target(const char *output, int line, double target)
{
    double ratio = metric(output, line, "size_ratio");
    if (!(ratio <= target && ratio >= 0.98 * target)) {
        fail_msg("%s: expected a size within 2 %% of %g, found %g", output, target, ratio);
    }
}

static void test_stages_follow_each_other(void **state)
{
    (void)state;
    double start = metric("whole", 1, "size"), before = start;
    int on_size = 0, on_loss = 0;
    for (int line = 1; line <= STEPS; line++) {
        bool early = line <= EARLY, late = !early && line <= LATE_END;
        assert_true(line_has("whole", line, "\"stage\": \"early\"") == early);
        assert_true(line_has("whole", line, "\"stage\": \"late\"") == late);
        assert_true(line_has("whole", line, "\"stage\": null") == (!early && !late));
        assert_true(line_has("whole", line, "\"branch\": null") == !late);
        on_size += line_has("whole", line, "\"branch\": \"size\"");
        on_loss += line_has("whole", line, "\"branch\": \"loss\"");
        double size = metric("whole", line, "size");
        assert_true(size > 0 && size <= before);
        assert_true(line <= LATE_END || size == before);
        assert_true(metric("whole", line, "relaxed_size") > 0);
        before = size;
    }
    assert_true(metric("whole", 1, "size_ratio") == 1.0);
    assert_true(metric("whole", 1, "relaxed_size") == start);
    assert_true(on_size >= 5 && on_loss >= 5);
    expect_target("whole", LATE_END, 0.5);
}

static void test_what_is_said(void **state)
{
    (void)state;
    training_end end =
        run_training(&(training){.recipe = "stages.yaml", .arguments = {"output=said"}});
    assert_int_equal(end.status, 0);
    expect_in_log(end.log, "stage early: steps 1 to 20, from ");
    expect_in_log(end.log, "stage late: steps 21 to 80, from ");
    expect_in_log(end.log, ", towards a loss of 6\n");
    expect_in_log(end.log, "  late 0.");
    free(end.log);
    expect_same_metrics("said", "whole");
}

/* In the early stage, at both ends of the late one and of its phases, on its way down, and when it
 * has come there. */
static void test_resumed_in_a_stage(void **state)
{
    (void)state;
    static const int steps[] = {7, EARLY - 1, EARLY, EARLY + 1, 43, FIRST_PHASE, 70, LATE_END};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char argument[96], output[64], from[128];
        snprintf(output, sizeof output, "from%d", steps[i]);
        snprintf(argument, sizeof argument, "output=%s", output);
        snprintf(from, sizeof from, "--resume-from=whole/checkpoints/step_%08d", steps[i]);
        TRAIN(.recipe = "stages.yaml", .arguments = {argument, from});
        char *found = metrics_from(output, 1), *expected = metrics_from("whole", steps[i] + 1);
        assert_string_equal(found, expected);
        free(found);
        free(expected);
    }
}

static void test_two_ranks(void **state)
{
    (void)state;
    TRAIN(.ranks = 2, .recipe = "stages.yaml", .arguments = {"output=two"});
    for (int line = 1; line <= 12; line++) {
        double expected = metric("whole", line, "relaxed_size");
        assert_true(metric("two", line, "size") == metric("whole", line, "size"));
        assert_true(fabs(metric("two", line, "relaxed_size") - expected) <= 1e-4 * expected);
    }
    expect_target("two", LATE_END, 0.5);
}

static void test_reference_objective(void **state)
{
    (void)state;
    TRAIN(.recipe = "stages.yaml",
          .arguments = {"output=reference", "rank.objective=reference", "stages.0.gamma=0.01",
                        "stages.1.w2=1", "stages.1.target_loss=20"});
    expect_target("reference", LATE_END, 0.5);
}

/* A late stage alone, from a checkpoint of a run without stages; then another from there, whose
 * target is a ratio of the smaller size. */
static void test_from_a_finished_checkpoint(void **state)
{
    (void)state;
    TRAIN(.recipe = "stages.yaml",
          .arguments = {"output=plain", "phases.1.steps=2", "stages.0.steps=1", "stages.0.gamma=0",
                        "stages.1.steps=1", "stages.1.target_ratio=1"});
#define LATE_ONLY                                                                                  \
    "stages.0.kind=late", "stages.0.steps=85", "stages.0.target_loss=6", "stages.0.w2=20",         \
        "stages.1.steps=5", "stages.1.target_ratio=1"
    TRAIN(.recipe = "stages.yaml",
          .arguments = {"output=smaller", "initialize=plain/checkpoints/step_00000052",
                        "stages.0.target_ratio=0.8", LATE_ONLY});
    double start = metric("smaller", 1, "size");
    assert_true(start == metric("plain", 52, "size"));
    expect_target("smaller", 85, 0.8);
    TRAIN(.recipe = "stages.yaml",
          .arguments = {"output=smallest", "initialize=smaller/checkpoints/step_00000090",
                        "stages.0.target_ratio=0.5", LATE_ONLY});
    /* What the last stage held above the threshold may go in this one's first step. */
    double unit = metric("smallest", 1, "size") / metric("smallest", 1, "size_ratio");
    assert_true(fabs(unit - metric("smaller", 90, "size")) < 1e-6 * unit);
    expect_target("smallest", 85, 0.5);
    assert_true(metric("smallest", 85, "size") <= 0.4 * start);
}

static void expect_refused(const char *argument, const char *fragment)
{
    training_end end = run_training(
        &(training){.recipe = "stages.yaml", .arguments = {"output=refused", argument, "--check"}});
    expect_training_failure(&end, fragment);
    free(end.log);
}

static void test_refused(void **state)
{
    (void)state;
    expect_refused("stages.0.steps=90", "stages.1: expected a step before the run ends with step "
                                        "90, found a stage with no steps");
    expect_refused("stages.0.steps=0", "stages.0: expected steps or epochs above 0, found a stage "
                                       "with no steps");
    expect_refused("stages.1.target_loss=inf", "stages.1.target_loss: expected a number from 0");
    expect_refused("stages.1.target_ratio=0", "a model with every map removed");
    expect_refused("tensor_train.threshold=0", "tensor_train.threshold: expected a number above 0");
    expect_refused("tensor_train.form=dense", "stages: expected a recipe with tensor-train maps");
    training_end end =
        run_training(&(training){.recipe = "stages.yaml",
                                 .arguments = {"output=refused", "stages.1.target_ratio=0",
                                               "stages.1.target_parameters=5000", "--check"}});
    expect_training_failure(&end, "stages.1.target_parameters: expected more than ");
    expect_in_log(end.log, "which the model has with every tensor-train map removed; found 5000");
    free(end.log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_follow_each_other),
        cmocka_unit_test(test_what_is_said),
        cmocka_unit_test(test_resumed_in_a_stage),
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_reference_objective),
        cmocka_unit_test(test_from_a_finished_checkpoint),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}

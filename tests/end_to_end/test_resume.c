/* A run that was broken off goes on as if it had not been: without what depends on the clock, its
 * metrics are those of an undisturbed run, byte for byte. */
#include "support/training.h"

#include <math.h>

/* An undisturbed run that kept a checkpoint of every step, and the same on two ranks. */
static int set_up(void **state)
{
    if (training_setup(state) != 0) {
        return -1;
    }
    TRAIN(.arguments = {"output=whole", "checkpoint.interval=1", "checkpoint.keep=100"});
    TRAIN(.ranks = 2, .arguments = {"output=whole2"});
    assert_int_equal(metrics_lines("whole"), TRAINING_STEPS);
    return 0;
}

/* Different in every run, and named so that it can be had again. */
static unsigned pick_seed(void)
{
    const char *text = getenv("TTRAIN_TEST_SEED");
    unsigned seed = text ? (unsigned)strtoul(text, NULL, 10)
                         : (unsigned)time(NULL) ^ ((unsigned)getpid() << 12);
    print_message("TTRAIN_TEST_SEED=%u\n", seed);
    return seed;
}

static training resumed(int ranks, const char *output_argument)
{
    return (training){.ranks = ranks,
                      .arguments = {output_argument, "--resume", "checkpoint.interval=2"}};
}

/* Sends `number` to `target` (0: the started program) once `lines` lines of metrics are there.
 * False when the run was over before. */
/* Breaks a run off three times at steps drawn by chance, each time a little later, then lets it
 * end.
 */
static void break_off_at_random(int ranks, const char *output, const char *expected)
{
    unsigned seed = pick_seed();
    char argument[64];
    snprintf(argument, sizeof argument, "output=%s", output);
    training run = resumed(ranks, argument);
    for (int i = 0; i < 3; i++) {
        int status, lines = 1 + i * 7 + (int)(rand_r(&seed) % 7);
        program started = start_training(&run);
        if (wait_for_lines(&started, output, lines, &status)) {
            kill(ranks > 0 ? rank_process(ranks - 1) : started.pid, SIGKILL);
            program_wait(&started, FAILURE_SECONDS);
        }
    }
    train(&run);
    expect_same_metrics(output, expected);
}

static void test_killed_at_random(void **state)
{
    (void)state;
    break_off_at_random(0, "killed", "whole");
}

static void test_killed_at_random_on_two_ranks(void **state)
{
    (void)state;
    break_off_at_random(2, "killed2", "whole2");
}

/* From the checkpoint of every kind of step: next to an epoch's, a validation's and a phase's end,
 * and in the middle of the second phase. */
static void test_from_any_step(void **state)
{
    (void)state;
    static const int steps[] = {1,
                                9,
                                10,
                                TRAINING_FIRST_STEPS - 1,
                                TRAINING_FIRST_STEPS,
                                TRAINING_FIRST_STEPS + 1,
                                TRAINING_FIRST_STEPS + 8,
                                TRAINING_STEPS - 1};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char output[64], argument[128], from[128], *found, *expected;
        snprintf(output, sizeof output, "from%d", steps[i]);
        snprintf(argument, sizeof argument, "output=%s", output);
        snprintf(from, sizeof from, "--resume-from=whole/checkpoints/step_%08d", steps[i]);
        TRAIN(.arguments = {argument, from});
        found = metrics_from(output, 1);
        expected = metrics_from("whole", steps[i] + 1);
        assert_string_equal(found, expected);
        free(found);
        free(expected);
    }
}

/* One shard of few sequences, so that several epochs pass: steps of the first epoch, its end, and a
 * later one. */
static void test_across_epochs(void **state)
{
    (void)state;
    static const int steps[] = {2, 5, 8, 13};
#define EPOCHS                                                                                     \
    "phases.0.train=length32/train_00000.hdf5", "phases.0.global_batch=32", "phases.1.steps=2",    \
        "checkpoint.interval=1", "checkpoint.keep=100"
    TRAIN(.arguments = {"output=epochs", EPOCHS});
    assert_true(metric("epochs", 1, "epoch") == 0);
    assert_true(metric("epochs", 14, "epoch") >= 2);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char output[64], argument[128], from[128], *found, *expected;
        snprintf(output, sizeof output, "epochs_from%d", steps[i]);
        snprintf(argument, sizeof argument, "output=%s", output);
        snprintf(from, sizeof from, "--resume-from=epochs/checkpoints/step_%08d", steps[i]);
        TRAIN(.arguments = {argument, from, EPOCHS});
        found = metrics_from(output, 1);
        expected = metrics_from("epochs", steps[i] + 1);
        assert_string_equal(found, expected);
        free(found);
        free(expected);
    }
}

/* --- signals --- */

/* A rate that does not depend on the number of steps, so that this can be chosen afterwards. */
#define STEADY "phases.0.decay=constant", "phases.0.warmup=0", "phases.1.steps=2"

static program start_and_signal(int ranks, const char *output, const char *wrapper, int number,
                                int rank)
{
    char argument[64];
    int status;
    snprintf(argument, sizeof argument, "output=%s", output);
    program started = start_training(
        &(training){.ranks = ranks,
                    .arguments = {argument, STEADY, "phases.0.steps=1000000"},
                    .wrapper = wrapper,
                    .mpirun_arguments = {"--mca", "odls_base_sigkill_timeout", "5"}});
    assert_true(wait_for_lines(&started, output, 7, &status));
    assert_int_equal(kill(rank < 0 ? started.pid : rank_process(rank), number), 0);
    return started;
}

/* The run has saved the step that it ended with. Goes on from there for some steps, into the next
 * phase, and compares with a run that nobody stopped. */
static void expect_saved(int ranks, const char *output)
{
    char argument[96], whole_argument[96], whole[80], steps[64];
    int step = metrics_lines(output);
    assert_true(step >= 7);
    assert_true(has_checkpoint(output, step));
    snprintf(argument, sizeof argument, "output=%s", output);
    snprintf(whole, sizeof whole, "%s_whole", output);
    snprintf(whole_argument, sizeof whole_argument, "output=%s", whole);
    snprintf(steps, sizeof steps, "phases.0.steps=%d", step + 3);
    TRAIN(.ranks = ranks, .arguments = {argument, STEADY, steps, "--resume"});
    TRAIN(.ranks = ranks, .arguments = {whole_argument, STEADY, steps});
    assert_int_equal(metrics_lines(output), step + 5);
    expect_same_metrics(output, whole);
}

static void expect_said(const char *output, const char *log)
{
    expect_in_log(log, "go on with the same command and --resume");
    assert_int_equal(count_lines(log, "stopped after step "), 1);
    assert_int_equal(strtol(strstr(log, "stopped after step ") + 19, NULL, 10),
                     metrics_lines(output));
}

static void stop_and_go_on(int ranks, const char *output, int number, int rank)
{
    program started = start_and_signal(ranks, output, NULL, number, rank);
    training_end end = end_training(&started, FAILURE_SECONDS);
    if (end.status != 0) {
        fail_msg("status %d: %s", end.status, end_of(end.log));
    }
    expect_said(output, end.log);
    expect_saved(ranks, output);
    free(end.log);
}

static void test_sigterm(void **state)
{
    (void)state;
    stop_and_go_on(0, "terminated", SIGTERM, -1);
}

static void test_sigint_and_sigusr1(void **state)
{
    (void)state;
    stop_and_go_on(0, "interrupted", SIGINT, -1);
    stop_and_go_on(0, "warned", SIGUSR1, -1);
}

/* One rank gets the signal; all leave after the same step. */
static void test_sigterm_to_one_rank(void **state)
{
    (void)state;
    stop_and_go_on(2, "terminated_one", SIGTERM, 1);
}

/* mpirun passes SIGUSR1 on and waits. */
static void test_sigusr1_to_the_launcher(void **state)
{
    (void)state;
    stop_and_go_on(2, "warned_launcher", SIGUSR1, -1);
}

/* mpirun waits a second, or as long as it was told, before it passes SIGTERM on and as long again
 * before it kills the ranks; its own status says that it was ended. */
static void test_sigterm_to_the_launcher(void **state)
{
    (void)state;
    program started = start_and_signal(2, "terminated_launcher", "own_stderr", SIGTERM, -1);
    training_end end = end_training(&started, FAILURE_SECONDS);
    char *said = scratch_read(scratch_path("stderr.0"), NULL);
    expect_said("terminated_launcher", said);
    expect_saved(2, "terminated_launcher");
    free(said);
    free(end.log);
}

/* --- other numbers of ranks --- */

static void test_other_number_of_ranks(void **state)
{
    (void)state;
    static const int ranks[] = {2, 4, 1};
    for (int i = 0; i < 3; i++) {
        char output[64], argument[128];
        snprintf(output, sizeof output, "to%d", ranks[i]);
        snprintf(argument, sizeof argument, "output=%s", output);
        TRAIN(.ranks = ranks[i],
              .arguments = {argument, "--resume-from=whole/checkpoints/step_00000012"});
        assert_int_equal(metrics_lines(output), TRAINING_STEPS - 12);
        for (int line = 1; line <= TRAINING_STEPS - 12; line++) {
            double found = metric(output, line, "loss");
            double expected = metric("whole", line + 12, "loss");
            assert_true(metric(output, line, "samples") == metric("whole", line + 12, "samples"));
            assert_true(fabs(found - expected) <= 1e-4 * expected);
        }
    }
}

/* --- what there is to resume --- */

static void test_nothing_there(void **state)
{
    (void)state;
    training_end end = run_training(&(training){.arguments = {"output=nothing", "--resume"}});
    assert_int_equal(end.status, 0);
    expect_in_log(end.log, "nothing to resume from in nothing/checkpoints: starting\n");
    free(end.log);
    expect_same_metrics("nothing", "whole");
}

/* A run that is done stays as it is. */
static void test_finished_run(void **state)
{
    (void)state;
    TRAIN(.arguments = {"output=finished"});
    training_end end = run_training(&(training){.arguments = {"output=finished", "--resume"}});
    assert_int_equal(end.status, 0);
    expect_in_log(end.log, "resuming from finished/checkpoints/step_00000024\n");
    expect_in_log(end.log, "done: 24 steps");
    free(end.log);
    expect_same_metrics("finished", "whole");
}

/* More steps than the run was begun with: it goes on where it was done. */
static void test_longer_phase(void **state)
{
    (void)state;
    TRAIN(.arguments = {"output=longer", "phases.1.steps=8"});
    TRAIN(.arguments = {"output=longer", "--resume"});
    assert_int_equal(metrics_lines("longer"), TRAINING_STEPS);
}

static void flip_byte(const char *output, int step, const char *file, long place)
{
    char name[256];
    snprintf(name, sizeof name, "%s/checkpoints/step_%08d/%s", output, step, file);
    FILE *stream = fopen(scratch_path(name), "r+b");
    assert_non_null(stream);
    fseek(stream, place, SEEK_SET);
    int byte = fgetc(stream);
    fseek(stream, place, SEEK_SET);
    fputc(byte ^ 0x10, stream);
    assert_int_equal(fclose(stream), 0);
}

static void test_damaged_checkpoint(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json",
                                        "manifest.json"};
    TRAIN(.arguments = {"output=damaged"});
    for (int i = 0; i < 4; i++) {
        flip_byte("damaged", TRAINING_STEPS, files[i], 300);
        training_end end = run_training(&(training){.arguments = {"output=damaged", "--resume"}});
        assert_int_equal(end.status, 0);
        assert_int_equal(count_lines(end.log, "ttrain: warning: checkpoint left out: "), 1);
        expect_in_log(end.log, files[i]);
        expect_in_log(end.log, "resuming from damaged/checkpoints/step_00000020\n");
        free(end.log);
        expect_same_metrics("damaged", "whole");
    }
}

/* Nothing whole is left: the run does not silently begin again. */
static void test_damaged_checkpoints_only(void **state)
{
    (void)state;
    TRAIN(.arguments = {"output=ruined", "checkpoint.keep=1", "checkpoint.keep_best=false"});
    char *before = metrics_from("ruined", 1);
    flip_byte("ruined", TRAINING_STEPS, "model.safetensors", 5000);
    training_end end =
        run_training(&(training){.ranks = 2, .arguments = {"output=ruined", "--resume"}});
    expect_training_failure(&end, "ruined/checkpoints: expected a whole checkpoint, found damaged "
                                  "ones only");
    free(end.log);
    char *after = metrics_from("ruined", 1);
    assert_string_equal(after, before);
    free(before);
    free(after);
}

/* A run killed while a checkpoint took its name: what only missed its rename is taken, what was
 * written in part is removed. */
static void test_unfinished_checkpoint(void **state)
{
    (void)state;
    TRAIN(.arguments = {"output=unfinished"});
    assert_int_equal(rename(scratch_path("unfinished/checkpoints/step_00000024"),
                            scratch_path("unfinished/checkpoints/.tmp_step_00000024")),
                     0);
    assert_int_equal(mkdir(scratch_path("unfinished/checkpoints/.tmp_step_00000025"), 0777), 0);
    scratch_write(scratch_path("unfinished/checkpoints/.tmp_step_00000025/model.safetensors"),
                  "half", 4);
    training_end end = run_training(&(training){.arguments = {"output=unfinished", "--resume"}});
    assert_int_equal(end.status, 0);
    expect_in_log(end.log, "resuming from unfinished/checkpoints/step_00000024\n");
    free(end.log);
    assert_int_not_equal(access(scratch_path("unfinished/checkpoints/.tmp_step_00000025"), F_OK),
                         0);
}

/* --- what does not go together with the checkpoint --- */

static void expect_not_resumed(const char *const *arguments, const char *fragment)
{
    training run = {.ranks = 2};
    for (int i = 0; arguments[i]; i++) {
        run.arguments[i] = arguments[i];
    }
    training_end end = run_training(&run);
    expect_training_failure(&end, fragment);
    free(end.log);
}

#define NOT_RESUMED(FRAGMENT, ...)                                                                 \
    expect_not_resumed((const char *const[]){__VA_ARGS__, NULL}, FRAGMENT)

static void test_other_recipe(void **state)
{
    (void)state;
#define FROM_12 "output=other", "--resume-from=whole/checkpoints/step_00000012"
    NOT_RESUMED("seed: expected 3, as in whole/checkpoints/step_00000012; found 4", FROM_12,
                "seed=4");
    NOT_RESUMED("phases.0.global_batch: expected 8, as in ", FROM_12, "phases.0.global_batch=4");
    NOT_RESUMED("phases.0.steps: expected at least 12, ", FROM_12, "phases.0.steps=11");
    NOT_RESUMED("whole/checkpoints/step_00000012", FROM_12, "model.layers=3");
    NOT_RESUMED("whole/checkpoints/step_00000012", FROM_12, "tensor_train.rank=4");
    NOT_RESUMED("whole/checkpoints/step_00000012", FROM_12, "tensor_train.form=dense");
    NOT_RESUMED("whole/checkpoints/step_00009999", "output=other",
                "--resume-from=whole/checkpoints/step_00009999");
    NOT_RESUMED("output: whole2 has a checkpoint of step 24, later than ", "output=whole2",
                "--resume-from=whole/checkpoints/step_00000012");
    assert_int_not_equal(access(scratch_path("other"), F_OK), 0);
}

/* Weights alone: the run begins at its first step, with another loss than from fresh weights. */
static void test_initial_weights(void **state)
{
    (void)state;
    TRAIN(.arguments = {"output=weights", "initialize=whole/checkpoints/step_00000024"});
    assert_int_equal(metrics_lines("weights"), TRAINING_STEPS);
    assert_true(metric("weights", 1, "step") == 1);
    assert_true(metric("weights", 1, "masked_lm_loss") <
                metric("whole", 1, "masked_lm_loss") - 0.2);
    training_end end = run_training(
        &(training){.ranks = 2, .arguments = {"output=none", "initialize=whole/checkpoints/none"}});
    expect_training_failure(&end, "whole/checkpoints/none");
    free(end.log);
}

/* The resumed run has other shards: it says so, and goes on. */
static void test_other_shards(void **state)
{
    (void)state;
    training_end end = run_training(&(training){
        .arguments = {"output=other_shards", "--resume-from=whole/checkpoints/step_00000012",
                      "phases.0.train=length32/train_00000.hdf5"}});
    assert_int_equal(end.status, 0);
    expect_in_log(end.log, "ttrain: warning: the training shards are not those");
    free(end.log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_at_random),
        cmocka_unit_test(test_killed_at_random_on_two_ranks),
        cmocka_unit_test(test_from_any_step),
        cmocka_unit_test(test_across_epochs),
        cmocka_unit_test(test_sigterm),
        cmocka_unit_test(test_sigint_and_sigusr1),
        cmocka_unit_test(test_sigterm_to_one_rank),
        cmocka_unit_test(test_sigusr1_to_the_launcher),
        cmocka_unit_test(test_sigterm_to_the_launcher),
        cmocka_unit_test(test_other_number_of_ranks),
        cmocka_unit_test(test_nothing_there),
        cmocka_unit_test(test_finished_run),
        cmocka_unit_test(test_longer_phase),
        cmocka_unit_test(test_damaged_checkpoint),
        cmocka_unit_test(test_damaged_checkpoints_only),
        cmocka_unit_test(test_unfinished_checkpoint),
        cmocka_unit_test(test_other_recipe),
        cmocka_unit_test(test_initial_weights),
        cmocka_unit_test(test_other_shards),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}

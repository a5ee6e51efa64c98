/* What goes wrong while a run is under way: the disk fills up, numbers run away, files go bad. The
 * run ends with one line, and what was saved before stays good. */
#include "support/training.h"

#include "data/shard.h"

#include <math.h>
#include <sys/mount.h>

/* --- a full disk --- */

/* A file system of its own that is too small for a second checkpoint; false where it cannot be had.
 */
static bool mount_small(const char *path, const char *options)
{
    assert_int_equal(mkdir(path, 0777), 0);
    return mount("tmpfs", path, "tmpfs", 0, options) == 0;
}

/* Whole checkpoints only: the failed one left nothing behind. */
static void expect_only_checkpoint(const char *output, int step)
{
    char name[128];
    int count = 0;
    snprintf(name, sizeof name, "%s/checkpoints", output);
    DIR *folder = opendir(scratch_path(name));
    assert_non_null(folder);
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(folder);
    assert_int_equal(count, 1);
    assert_true(has_checkpoint(output, step));
}

static void fill_disk(int ranks)
{
    char folder[32], output[64];
    snprintf(folder, sizeof folder, "small%d", ranks);
    snprintf(output, sizeof output, "output=%s/run", folder);
    if (!mount_small(scratch_path(folder), "size=1200k")) {
        skip();
    }
    training_end end = run_training(&(training){.ranks = ranks, .arguments = {output}});
    snprintf(output, sizeof output, "%s/run", folder);
    int lines = metrics_lines(output);
    expect_only_checkpoint(output, 5);
    umount(scratch_path(folder));
    expect_training_failure(&end, "not enough disk space for a checkpoint");
    assert_int_equal(lines, 10);
    free(end.log);
}

static void test_full_disk(void **state)
{
    (void)state;
    fill_disk(0);
}

static void test_full_disk_on_two_ranks(void **state)
{
    (void)state;
    fill_disk(2);
}

/* The system refuses in the middle of a file, which no look at the free space foretells. */
static void test_write_that_fails(void **state)
{
    (void)state;
    TRAIN(.arguments = {"output=limited", "phases.0.steps=5", "phases.1.steps=1",
                        "checkpoint.keep=1"});
    training_end end = run_training(&(training){
        .arguments = {"output=limited", "--resume", "phases.1.steps=9"}, .file_limit = 200000});
    expect_training_failure(&end, "limited/checkpoints/.tmp_step_00000010/optimizer.safetensors: "
                                  "cannot be written: File too large");
    free(end.log);
    expect_only_checkpoint("limited", 6);
    /* With room again, the run goes on from there. */
    TRAIN(.arguments = {"output=limited", "--resume", "phases.1.steps=9"});
    assert_int_equal(metrics_lines("limited"), 14);
}

/* Metrics are data, too: a line that cannot be written ends the run. */
static void test_metrics_that_cannot_be_written(void **state)
{
    (void)state;
    training_end end = run_training(
        &(training){.arguments = {"output=short", "checkpoint.interval=0", "log.tensorboard=off"},
                    .file_limit = 6000});
    expect_training_failure(&end, "short/metrics.jsonl: cannot be written: File too large");
    free(end.log);
    end = run_training(
        &(training){.arguments = {"output=events", "checkpoint.interval=0"}, .file_limit = 6000});
    expect_training_failure(&end, "events/events.out.tfevents.");
    free(end.log);
}

/* --- numbers that run away --- */

#define RUNS_AWAY                                                                                  \
    "phases.1.learning_rate=100", "phases.1.core_learning_rate=100", "phases.1.warmup=0",          \
        "nonfinite_limit=4", "validation.interval=0", "checkpoint.interval=4"

static void run_away(int ranks, const char *output)
{
    char argument[64];
    snprintf(argument, sizeof argument, "output=%s", output);
    training_end end =
        run_training(&(training){.ranks = ranks, .arguments = {argument, RUNS_AWAY}});
    expect_training_failure(&end, ": 4 steps in a row had a loss or gradient that is not finite");
    assert_int_equal(count_lines(end.log, "ttrain: warning: step "), 4);
    expect_in_log(end.log, "first bad gradient: ");
    free(end.log);
    /* The step that went too far is the second phase's first; checkpoints of steps that were
     * skipped have not replaced the one from before. */
    assert_true(has_checkpoint(output, TRAINING_FIRST_STEPS));
    assert_false(has_checkpoint(output, TRAINING_FIRST_STEPS + 2));
    assert_int_equal(metrics_lines(output), TRAINING_FIRST_STEPS + 4);
    assert_true(metric(output, TRAINING_FIRST_STEPS + 4, "skipped_steps") == 3);
    /* From there it can be trained on with a sensible rate. */
    TRAIN(.ranks = ranks, .arguments = {argument, "--resume"});
    assert_int_equal(metrics_lines(output), TRAINING_STEPS);
    assert_true(metric(output, TRAINING_STEPS, "skipped_steps") == 0);
    assert_true(isfinite(metric(output, TRAINING_STEPS, "loss")));
}

static void test_not_a_number(void **state)
{
    (void)state;
    run_away(0, "away");
}

static void test_not_a_number_on_two_ranks(void **state)
{
    (void)state;
    run_away(2, "away2");
}

/* Fresh weights that are far from a uniform guess are told. */
static void test_first_loss(void **state)
{
    (void)state;
    training_end end =
        run_training(&(training){.arguments = {"output=loud", "model.initializer_range=1",
                                               "phases.0.steps=2", "phases.1.steps=1"}});
    assert_int_equal(end.status, 0);
    assert_int_equal(count_lines(end.log, "ttrain: warning: the first masked LM loss is "), 1);
    free(end.log);
    end = run_training(
        &(training){.arguments = {"output=quiet", "phases.0.steps=2", "phases.1.steps=1"}});
    assert_int_equal(end.status, 0);
    assert_null(strstr(end.log, "warning"));
    free(end.log);
}

/* A shard whose masked token is always the same. */
static void write_monotonous_shard(const char *name, int32_t label, int64_t rows)
{
    enum { LENGTH = 12 };
    const tt_shard_info info = {.masking = TT_MASKING_STATIC,
                                .sequence_length = LENGTH,
                                .max_predictions = 1,
                                .vocabulary_size = 50,
                                .special = {0, 1, 2, 3, 4}};
    tt_shard_writer *writer;
    tt_error error;
    expect_success(tt_shard_writer_create(scratch_path(name), &info, &writer, &error), &error);
    for (int64_t i = 0; i < rows; i++) {
        int32_t ids[LENGTH], position = 3;
        uint8_t segments[LENGTH] = {0};
        for (int j = 0; j < LENGTH; j++) {
            ids[j] = j == 0 ? 2 : j == LENGTH - 1 ? 3 : j == 3 ? 4 : 5 + (int32_t)((i + j) % 40);
        }
        const tt_shard_row row = {.length = LENGTH,
                                  .input_ids = ids,
                                  .segment_ids = segments,
                                  .masked_count = 1,
                                  .masked_positions = &position,
                                  .masked_ids = &label};
        expect_success(tt_shard_writer_append(writer, &row, &error), &error);
    }
    expect_success(tt_shard_writer_close(&writer, &error), &error);
}

/* Hundreds of sequences have one answer, two batches another: an epoch's loss leaps where they
 * come. */
static void test_spike(void **state)
{
    (void)state;
    static const char recipe[] =
        "output: spike\n"
        "model: {preset: small, vocabulary_size: 50, max_positions: 12}\n"
        "data: {train: [usual.hdf5, odd.hdf5], max_predictions: 1}\n"
        "phases:\n"
        "  - {sequence_length: 12, steps: 310, global_batch: 4, learning_rate: 1e-3}\n";
    write_monotonous_shard("usual.hdf5", 7, 600);
    scratch_write(scratch_path("spike.yaml"), recipe, sizeof recipe - 1);
    write_monotonous_shard("odd.hdf5", 7, 8);
    training_end even =
        run_training(&(training){.recipe = "spike.yaml", .arguments = {"output=even"}});
    write_monotonous_shard("odd.hdf5", 13, 8);
    training_end leap = run_training(&(training){.recipe = "spike.yaml", .arguments = {NULL}});
    assert_int_equal(even.status, 0);
    assert_int_equal(leap.status, 0);
    assert_int_equal(count_lines(even.log, "ttrain: warning: the loss leapt"), 0);
    assert_true(count_lines(leap.log, "ttrain: warning: the loss leapt to ") >= 1);
    expect_in_log(leap.log, " standard deviations above the mean of the steps before (mean ");
    free(even.log);
    free(leap.log);
}

/* --- validation shards that go bad --- */

static void test_validation_shard_that_goes_bad(void **state)
{
    (void)state;
    size_t length;
    int status;
    char *bytes = scratch_read(scratch_path("length32/validation_00000.hdf5"), &length);
    scratch_write(scratch_path("spoilt.hdf5"), bytes, length);
    free(bytes);
    program started = start_training(
        &(training){.ranks = 2,
                    .arguments = {"output=spoilt", "phases.0.validation=spoilt.hdf5",
                                  "phases.0.steps=1000000", "checkpoint.interval=0"}});
    assert_true(wait_for_lines(&started, "spoilt", 3, &status));
    assert_int_equal(truncate(scratch_path("spoilt.hdf5"), 3000), 0);
    training_end end = end_training(&started, FAILURE_SECONDS);
    expect_training_failure(&end, "spoilt.hdf5: ");
    free(end.log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_full_disk_on_two_ranks),
        cmocka_unit_test(test_write_that_fails),
        cmocka_unit_test(test_metrics_that_cannot_be_written),
        cmocka_unit_test(test_not_a_number),
        cmocka_unit_test(test_not_a_number_on_two_ranks),
        cmocka_unit_test(test_first_loss),
        cmocka_unit_test(test_spike),
        cmocka_unit_test(test_validation_shard_that_goes_bad),
    };
    return cmocka_run_group_tests(tests, training_setup, scratch_teardown);
}

/* One rank goes wrong: the whole job ends within seconds, says why in one line, and leaves no rank
 * behind. */
#include "support/training.h"

/* Steps enough that no run here comes to its end by itself. */
#define ENDLESS "phases.0.steps=1000000", "validation.interval=0", "checkpoint.interval=0"

static bool is_alive(pid_t process)
{
    return kill(process, 0) == 0;
}

/* Both ranks are gone soon after the launcher. */
static void expect_no_rank_left(int ranks)
{
    double until = program_clock() + FAILURE_SECONDS;
    for (int rank = 0; rank < ranks; rank++) {
        pid_t process = rank_process(rank);
        while (is_alive(process)) {
            if (program_clock() > until) {
                kill(process, SIGKILL);
                fail_msg("rank %d is still there", rank);
            }
            program_sleep(0.02);
        }
    }
}

static program start_endless(const char *output, const char *watchdog)
{
    char folder[128];
    static char setting[64];
    snprintf(folder, sizeof folder, "output=%s", output);
    snprintf(setting, sizeof setting, "TTRAIN_WATCHDOG_SECONDS=%s", watchdog);
    program started = start_training(
        &(training){.ranks = 2, .arguments = {folder, ENDLESS}, .environment = {setting}});
    int status;
    if (!wait_for_lines(&started, output, 3, &status)) {
        fail_msg("ended with status %d: %s", status, end_of(program_log(&started)));
    }
    return started;
}

static void test_killed_rank(void **state)
{
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        const char *output = rank == 0 ? "killed0" : "killed1";
        program started = start_endless(output, "1800");
        assert_int_equal(kill(rank_process(rank), SIGKILL), 0);
        training_end end = end_training(&started, FAILURE_SECONDS);
        assert_int_not_equal(end.status, 0);
        expect_no_rank_left(2);
        free(end.log);
    }
}

static void test_killed_launcher(void **state)
{
    (void)state;
    program started = start_endless("orphans", "1800");
    program_kill(&started, SIGKILL);
    assert_int_equal(program_wait(&started, FAILURE_SECONDS), 128 + SIGKILL);
    expect_no_rank_left(2);
}

/* The other rank waits in a collective call that the stopped one never reaches. */
static void test_stopped_rank(void **state)
{
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        char expected[64];
        program started = start_endless(rank == 0 ? "stopped0" : "stopped1", "10");
        assert_int_equal(kill(rank_process(rank), SIGSTOP), 0);
        training_end end = end_training(&started, FAILURE_SECONDS);
        snprintf(expected, sizeof expected, "rank %d on ", 1 - rank);
        expect_training_failure(&end, expected);
        expect_training_failure(&end, " stands still: ");
        expect_training_failure(&end, " for more than 10 s (TTRAIN_WATCHDOG_SECONDS)");
        if (!strstr(end.log, "waiting for the other ranks") &&
            !strstr(end.log, "all-reduce of gradients")) {
            fail_msg("expected what the rank waited for: %s", end_of(end.log));
        }
        expect_no_rank_left(2);
        free(end.log);
    }
}

/* A rank that is stopped for less than the limit does no harm. */
static void test_paused_rank(void **state)
{
    (void)state;
    program started = start_endless("paused", "60");
    pid_t process = rank_process(1);
    assert_int_equal(kill(process, SIGSTOP), 0);
    program_sleep(1.0);
    int lines = metrics_lines("paused"), status;
    assert_int_equal(kill(process, SIGCONT), 0);
    assert_true(wait_for_lines(&started, "paused", lines + 3, &status));
    assert_int_equal(kill(process, SIGTERM), 0);
    training_end end = end_training(&started, FAILURE_SECONDS);
    assert_int_equal(end.status, 0);
    free(end.log);
}

static void test_watchdog_setting(void **state)
{
    (void)state;
    training_end end = run_training(&(training){.ranks = 2,
                                                .arguments = {"output=setting"},
                                                .environment = {"TTRAIN_WATCHDOG_SECONDS=soon"}});
    expect_training_failure(&end, "TTRAIN_WATCHDOG_SECONDS: expected a number of seconds from 0 "
                                  "(off) to 1e9, found 'soon'");
    free(end.log);
    TRAIN(.ranks = 2, .arguments = {"output=off", "phases.0.steps=2", "phases.1.steps=2"},
          .environment = {"TTRAIN_WATCHDOG_SECONDS=0"});
}

/* --- ranks that see different files --- */

static void copy_file(const char *from, const char *to)
{
    size_t length;
    char *bytes = scratch_read(from, &length);
    scratch_write(to, bytes, length);
    free(bytes);
}

static void make_rank_folders(void)
{
    static const char *const files[] = {
        "recipe.yaml",
        "tokenizer.model",
        "length32/train_00000.hdf5",
        "length32/train_00001.hdf5",
        "length32/train_00002.hdf5",
        "length32/train_00003.hdf5",
        "length32/train_00004.hdf5",
        "length32/train_00005.hdf5",
        "length64/train_00000.hdf5",
    };
    for (int rank = 0; rank < 2; rank++) {
        static const char *const folders[] = {"", "/length32", "/length64"};
        char name[128];
        snprintf(name, sizeof name, "rank%d", rank);
        scratch_remove(scratch_path(name));
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "rank%d%s", rank, folders[i]);
            assert_int_equal(mkdir(scratch_path(name), 0777), 0);
        }
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            snprintf(name, sizeof name, "rank%d/%s", rank, files[i]);
            copy_file(scratch_path(files[i]), scratch_path(name));
        }
    }
}

#define OWN_FOLDERS                                                                                \
    .ranks = 2, .wrapper = "own_folder",                                                           \
    .arguments = {ENDLESS, "phases.0.validation=[]", "phases.1.validation=[]"}

static void expect_refused(const char *fragment)
{
    training_end end = run_training(&(training){OWN_FOLDERS});
    expect_training_failure(&end, fragment);
    free(end.log);
}

static void test_shard_missing_on_one_rank(void **state)
{
    (void)state;
    make_rank_folders();
    unlink(scratch_path("rank1/length64/train_00000.hdf5"));
    expect_refused("rank 1: phases.1.train: expected shards that match length64/train_*.hdf5, "
                   "found none");
}

static void test_other_shards_on_one_rank(void **state)
{
    (void)state;
    make_rank_folders();
    unlink(scratch_path("rank1/length32/train_00003.hdf5"));
    expect_refused("the ranks disagree about the training shards");
}

static void test_other_recipe_on_one_rank(void **state)
{
    (void)state;
    make_rank_folders();
    copy_file(scratch_path("recipe.yaml"), scratch_path("rank1/recipe.yaml"));
    FILE *recipe = fopen(scratch_path("rank1/recipe.yaml"), "a");
    assert_non_null(recipe);
    fputs("threads: 1\n", recipe);
    fclose(recipe);
    expect_refused("the ranks disagree about the recipe");
}

static void test_no_recipe_on_one_rank(void **state)
{
    (void)state;
    make_rank_folders();
    unlink(scratch_path("rank1/recipe.yaml"));
    expect_refused("rank 1: recipe.yaml: ");
}

/* A rank that only checks would leave the other waiting for it. */
static void test_check_on_one_rank(void **state)
{
    (void)state;
    write_script("check_on_rank_1", "#!/bin/sh\n"
                                    "[ $OMPI_COMM_WORLD_RANK = 0 ] || set -- \"$@\" --check\n"
                                    "exec \"$@\"\n");
    training_end end =
        run_training(&(training){.ranks = 2, .wrapper = "check_on_rank_1", .arguments = {ENDLESS}});
    expect_training_failure(&end, "the ranks disagree about --check");
    free(end.log);
}

/* More shards than a loader keeps, so that it comes back to the files later on. */
static training_end spoil_shards_of_rank_1(bool remove)
{
    make_rank_folders();
    program started = start_training(&(training){OWN_FOLDERS});
    int status;
    assert_true(wait_for_lines(&started, "rank0/run", 3, &status));
    for (int i = 0; i < 6; i++) {
        char name[64];
        snprintf(name, sizeof name, "rank1/length32/train_%05d.hdf5", i);
        if (remove) {
            assert_int_equal(unlink(scratch_path(name)), 0);
        } else {
            assert_int_equal(truncate(scratch_path(name), 1000), 0);
        }
    }
    return end_training(&started, FAILURE_SECONDS);
}

static void test_shard_that_disappears(void **state)
{
    (void)state;
    training_end end = spoil_shards_of_rank_1(true);
    expect_training_failure(&end, "rank 1: length32/train_0000");
    free(end.log);
}

static void test_shard_that_is_cut_short(void **state)
{
    (void)state;
    training_end end = spoil_shards_of_rank_1(false);
    expect_training_failure(&end, "rank 1: length32/train_0000");
    free(end.log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_rank),
        cmocka_unit_test(test_killed_launcher),
        cmocka_unit_test(test_stopped_rank),
        cmocka_unit_test(test_paused_rank),
        cmocka_unit_test(test_watchdog_setting),
        cmocka_unit_test(test_shard_missing_on_one_rank),
        cmocka_unit_test(test_other_shards_on_one_rank),
        cmocka_unit_test(test_other_recipe_on_one_rank),
        cmocka_unit_test(test_no_recipe_on_one_rank),
        cmocka_unit_test(test_check_on_one_rank),
        cmocka_unit_test(test_shard_that_disappears),
        cmocka_unit_test(test_shard_that_is_cut_short),
    };
    return cmocka_run_group_tests(tests, training_setup, scratch_teardown);
}

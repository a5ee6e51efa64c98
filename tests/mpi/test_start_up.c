/* What a run says about its world, and launchers that start several processes without MPI knowing.
 */
#include "support/training.h"

static void test_world_line(void **state)
{
    (void)state;
    char host[64] = "", expected[128];
    gethostname(host, sizeof host - 1);
    training_end end = run_training(&(training){
        .ranks = 3,
        .arguments = {"--check", "phases.0.global_batch=9", "phases.1.global_batch=9"}});
    assert_int_equal(end.status, 0);
    snprintf(expected, sizeof expected, "3 ranks on %s: 0-2, device cpu\n", host);
    expect_in_log(end.log, expected);
    assert_int_equal(count_lines(end.log, "test: "), 1);
    free(end.log);
    end = run_training(&(training){.arguments = {"--check"}});
    assert_int_equal(end.status, 0);
    snprintf(expected, sizeof expected, "1 rank on %s, device cpu\n", host);
    expect_in_log(end.log, expected);
    free(end.log);
    /* --check writes nothing. */
    assert_int_not_equal(access(scratch_path("run"), F_OK), 0);
}

/* Each rank in a name space of its own takes itself for another machine. */
static void test_several_hosts(void **state)
{
    (void)state;
    write_script("own_host",
                 "#!/bin/sh\n"
                 "exec unshare --uts sh -c '\n"
                 "hostname node$((OMPI_COMM_WORLD_RANK / 2)) && exec \"$@\"' sh \"$@\"\n");
    program_call call = {.arguments = {"unshare", "--uts", "true"}};
    program probe = program_start(&call);
    if (program_wait(&probe, FAILURE_SECONDS) != 0) {
        skip();
    }
    training_end end = run_training(
        &(training){.ranks = 4,
                    .wrapper = "own_host",
                    .arguments = {"output=hosts", "phases.0.steps=2", "phases.1.steps=2"}});
    assert_int_equal(end.status, 0);
    expect_in_log(end.log, "4 ranks on node0: 0-1; node1: 2-3, device cpu\n");
    free(end.log);
}

static void expect_mismatch(const char *setting)
{
    training_end end = run_training(
        &(training){.arguments = {"output=mismatch"}, .environment = {setting, PROGRAM_USES_MPI}});
    expect_training_failure(&end, "the launcher started 2 processes but MPI sees 1: ");
    free(end.log);
    assert_int_not_equal(access(scratch_path("mismatch"), F_OK), 0);
}

static void test_launcher_without_mpi(void **state)
{
    (void)state;
    expect_mismatch("OMPI_COMM_WORLD_SIZE=2");
    expect_mismatch("PMI_SIZE=2");
    expect_mismatch("SLURM_STEP_NUM_TASKS=2");
}

static void test_check(void **state)
{
    (void)state;
    training_end end =
        run_training(&(training){.ranks = 2, .arguments = {"--check", "phases.1.train=nowhere/*"}});
    expect_training_failure(&end, "phases.1.train: expected shards that match nowhere/*");
    free(end.log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world_line),
        cmocka_unit_test(test_several_hosts),
        cmocka_unit_test(test_launcher_without_mpi),
        cmocka_unit_test(test_check),
    };
    return cmocka_run_group_tests(tests, training_setup, scratch_teardown);
}

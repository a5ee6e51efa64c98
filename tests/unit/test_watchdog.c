/* The watchdog ends a process that stands still, lets one alone that moves, and reads its limit
 * from the environment. Each case is a process of its own. */
#include "support/program.h"

#include "dist/watchdog.h"

static tt_world world = {.size = 1, .local_size = 1, .host = "here"};

static void nap(double seconds)
{
    program_sleep(seconds);
}

static tt_watchdog *start(const char *limit)
{
    tt_watchdog *watchdog;
    tt_error error;
    setenv("TTRAIN_WATCHDOG_SECONDS", limit, 1);
    if (tt_watchdog_start(&world, &watchdog, &error) != TT_OK) {
        _exit(3);
    }
    return watchdog;
}

static void stand_still(void)
{
    tt_watchdog *watchdog = start("0.2");
    tt_watchdog_begin(watchdog, 17, "beginning");
    tt_watchdog_note(watchdog, "all-reduce of gradients");
    nap(20);
}

/* Each activity is shorter than the limit, all together are longer. */
static void move(void)
{
    tt_watchdog *watchdog = start("2");
    tt_watchdog_begin(watchdog, 1, "beginning");
    for (int i = 0; i < 20; i++) {
        nap(0.15);
        tt_watchdog_note(watchdog, "moving");
    }
    tt_watchdog_end(watchdog);
    tt_watchdog_stop(&watchdog);
    _exit(watchdog ? 4 : 0);
}

/* Between steps the clock stands. */
static void rest(void)
{
    tt_watchdog *watchdog = start("0.2");
    nap(0.6);
    tt_watchdog_begin(watchdog, 1, "beginning");
    tt_watchdog_end(watchdog);
    nap(0.6);
    tt_watchdog_stop(&watchdog);
    _exit(0);
}

static void off(void)
{
    tt_watchdog *watchdog = start("0");
    tt_watchdog_begin(watchdog, 1, "beginning");
    tt_watchdog_note(watchdog, "standing");
    tt_watchdog_end(watchdog);
    bool none = watchdog == NULL;
    tt_watchdog_stop(&watchdog);
    _exit(none ? 0 : 4);
}

/* Runs `body` in a process of its own; its status. What it says goes to the file "said". */
static int run_apart(void (*body)(void))
{
    pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        program_redirect(scratch_path("said"), STDERR_FILENO);
        body();
        _exit(5);
    }
    program started = {.pid = process};
    snprintf(started.log, sizeof started.log, "%s", scratch_path("said"));
    return program_wait(&started, 15);
}

static void test_stands_still(void **state)
{
    (void)state;
    assert_int_equal(run_apart(stand_still), 1);
    char *said = scratch_read(scratch_path("said"), NULL);
    assert_string_equal(said,
                        "ttrain pretrain: rank 0 on here: step 17 stands still: all-reduce of "
                        "gradients for more than 0.2 s (TTRAIN_WATCHDOG_SECONDS); ending the "
                        "job\n");
    free(said);
}

static void test_moves(void **state)
{
    (void)state;
    assert_int_equal(run_apart(move), 0);
}

static void test_rests(void **state)
{
    (void)state;
    assert_int_equal(run_apart(rest), 0);
}

static void test_off(void **state)
{
    (void)state;
    assert_int_equal(run_apart(off), 0);
}

static void test_bad_limits(void **state)
{
    (void)state;
    static const char *const limits[] = {"-1", "nan", "10s", "inf", "1e10", " "};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        tt_watchdog *watchdog;
        tt_error error;
        setenv("TTRAIN_WATCHDOG_SECONDS", limits[i], 1);
        expect_failure(tt_watchdog_start(&world, &watchdog, &error), &error,
                       "TTRAIN_WATCHDOG_SECONDS: expected a number of seconds");
        assert_null(watchdog);
    }
    unsetenv("TTRAIN_WATCHDOG_SECONDS");
}

static void test_default(void **state)
{
    (void)state;
    tt_watchdog *watchdog;
    tt_error error;
    unsetenv("TTRAIN_WATCHDOG_SECONDS");
    expect_success(tt_watchdog_start(&world, &watchdog, &error), &error);
    assert_non_null(watchdog);
    tt_watchdog_stop(&watchdog);
    assert_null(watchdog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stands_still), cmocka_unit_test(test_moves),
        cmocka_unit_test(test_rests),        cmocka_unit_test(test_off),
        cmocka_unit_test(test_bad_limits),   cmocka_unit_test(test_default),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

/* A loss that leaps is told; one that falls steeply, is noisy or hardly moves is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/random.h"
#include "launch/loss_watch.h"

#include <math.h>

typedef struct {
    tt_loss_watch watch;
    tt_random random;
    int step;
} run;

static run start(void)
{
    run started = {.step = 0};
    tt_random_start(&started.random, 11, 0);
    return started;
}

/* Falls as losses do, with noise of this size. */
static double loss_at(run *course, double noise)
{
    double uniform = (double)tt_random_below(&course->random, 1000000) / 1e6;
    return 2.0 + 8.0 * exp(-course->step++ / 40.0) + noise * (2.0 * uniform - 1.0);
}

static int spikes(run *course, int steps, double noise)
{
    int count = 0;
    for (int i = 0; i < steps; i++) {
        tt_loss_course ignored;
        count += tt_loss_watch_spikes(&course->watch, loss_at(course, noise), &ignored);
    }
    return count;
}

static void test_usual_losses(void **state)
{
    (void)state;
    static const double noises[] = {0.0, 0.001, 0.05, 1.0};
    for (int i = 0; i < 4; i++) {
        run course = start();
        assert_int_equal(spikes(&course, 3000, noises[i]), 0);
    }
}

static void test_leap(void **state)
{
    (void)state;
    run course = start();
    tt_loss_course held;
    assert_int_equal(spikes(&course, 300, 0.1), 0);
    assert_true(tt_loss_watch_spikes(&course.watch, 3.0, &held));
    assert_true(fabs(held.mean - 2.0) < 0.1);
    assert_true(held.deviation > 0.02 && held.deviation < 0.12);
    /* It does not hide the next one, and does not make the usual look odd. */
    assert_int_equal(spikes(&course, 5, 0.1), 0);
    assert_true(tt_loss_watch_spikes(&course.watch, 4.0, &held));
}

static void test_fall(void **state)
{
    (void)state;
    run course = start();
    tt_loss_course held;
    assert_int_equal(spikes(&course, 300, 0.1), 0);
    assert_false(tt_loss_watch_spikes(&course.watch, 0.1, &held));
}

static void test_first_steps(void **state)
{
    (void)state;
    run course = start();
    tt_loss_course held;
    assert_int_equal(spikes(&course, 50, 0.01), 0);
    assert_false(tt_loss_watch_spikes(&course.watch, 100.0, &held));
}

/* What stays high is the new course. */
static void test_new_course(void **state)
{
    (void)state;
    run course = start();
    tt_loss_course held;
    int count = 0;
    spikes(&course, 300, 0.1);
    for (int i = 0; i < 200; i++) {
        count += tt_loss_watch_spikes(&course.watch, 6.0, &held);
    }
    assert_int_equal(count, 10);
}

static void test_not_finite(void **state)
{
    (void)state;
    run course = start();
    tt_loss_course held;
    spikes(&course, 300, 0.1);
    tt_loss_watch before = course.watch;
    assert_false(tt_loss_watch_spikes(&course.watch, (double)NAN, &held));
    assert_false(tt_loss_watch_spikes(&course.watch, (double)INFINITY, &held));
    assert_true(before.mean == course.watch.mean && before.count == course.watch.count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_usual_losses), cmocka_unit_test(test_leap),
        cmocka_unit_test(test_fall),         cmocka_unit_test(test_first_steps),
        cmocka_unit_test(test_new_course),   cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Learning-rate schedules against their formulas. */
#include "core/schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void expect(double actual, double expected)
{
    if (!(fabs(actual - expected) < 1e-12)) {
        fail_msg("expected %.15g, found %.15g", expected, actual);
    }
}

static void test_constant(void **state)
{
    (void)state;
    tt_schedule schedule = {.kind = TT_SCHEDULE_CONSTANT};
    expect(tt_schedule_factor(&schedule, 0, 10), 1.0);
    expect(tt_schedule_factor(&schedule, 9, 10), 1.0);
    schedule.warmup_fraction = 0.4;
    expect(tt_schedule_factor(&schedule, 0, 10), 0.25);
    expect(tt_schedule_factor(&schedule, 2, 10), 0.75);
    expect(tt_schedule_factor(&schedule, 3, 10), 1.0);
    expect(tt_schedule_factor(&schedule, 4, 10), 1.0);
}

static void test_linear(void **state)
{
    (void)state;
    tt_schedule schedule = {.kind = TT_SCHEDULE_LINEAR, .warmup_fraction = 0.2, .final = 0.1};
    expect(tt_schedule_factor(&schedule, 9, 100), 0.5);
    expect(tt_schedule_factor(&schedule, 19, 100), 1.0);
    expect(tt_schedule_factor(&schedule, 59, 100), 0.55);
    expect(tt_schedule_factor(&schedule, 99, 100), 0.1);
    expect(tt_schedule_factor(&schedule, 1000, 100), 0.1);
    /* Continuous: no step moves the factor by more than the steeper slope. */
    double before = 0.0;
    for (int64_t step = 0; step < 100; step++) {
        double factor = tt_schedule_factor(&schedule, step, 100);
        assert_true(fabs(factor - before) <= 1.0 / 20 + 1e-12);
        before = factor;
    }
    schedule.final = 0.0;
    expect(tt_schedule_factor(&schedule, 99, 100), 0.0);
}

/* The published phase 1 of NVIDIA's recipe: 7,038 steps, warm-up 0.2843, power 0.5. */
static void test_polynomial(void **state)
{
    (void)state;
    const int64_t total = 7038;
    tt_schedule schedule = {
        .kind = TT_SCHEDULE_POLYNOMIAL, .warmup_fraction = 0.2843, .power = 0.5};
    expect(tt_schedule_factor(&schedule, 0, total), 1.0 / 7038 / 0.2843);
    expect(tt_schedule_factor(&schedule, 1999, total), 2000.0 / 7038 / 0.2843);
    /* s / total reaches the warm-up fraction with s = 2001, where the curve takes over. */
    expect(tt_schedule_factor(&schedule, 2000, total), sqrt(1.0 - 2001.0 / 7038));
    expect(tt_schedule_factor(&schedule, 5000, total), sqrt(1.0 - 5001.0 / 7038));
    expect(tt_schedule_factor(&schedule, total - 1, total), 0.0);
}

static void test_borders(void **state)
{
    (void)state;
    tt_schedule schedule = {.kind = TT_SCHEDULE_LINEAR, .warmup_fraction = 1.0, .final = 0.5};
    expect(tt_schedule_factor(&schedule, 4, 10), 0.5);
    expect(tt_schedule_factor(&schedule, 9, 10), 1.0);
    schedule.warmup_fraction = 0.0;
    expect(tt_schedule_factor(&schedule, 0, 1), 0.5);
    schedule = (tt_schedule){.kind = TT_SCHEDULE_POLYNOMIAL, .power = 1.0};
    expect(tt_schedule_factor(&schedule, 0, 4), 0.75);
}

static void test_check(void **state)
{
    (void)state;
    tt_error error = {0};
    tt_schedule good = {TT_SCHEDULE_LINEAR, 0.1, 0.0, 0.0};
    assert_int_equal(tt_schedule_check(&good, &error), TT_OK);
    const tt_schedule bad[] = {
        {TT_SCHEDULE_CONSTANT, -0.1, 0.0, 0.0},  {TT_SCHEDULE_CONSTANT, 1.1, 0.0, 0.0},
        {TT_SCHEDULE_CONSTANT, NAN, 0.0, 0.0},   {TT_SCHEDULE_LINEAR, 0.1, 1.5, 0.0},
        {TT_SCHEDULE_POLYNOMIAL, 0.1, 0.0, 0.0}, {TT_SCHEDULE_POLYNOMIAL, 0.1, 0.0, INFINITY},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(tt_schedule_check(&bad[i], &error), TT_INVALID_INPUT);
        assert_non_null(strstr(error.message, "found"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant),   cmocka_unit_test(test_linear),
        cmocka_unit_test(test_polynomial), cmocka_unit_test(test_borders),
        cmocka_unit_test(test_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

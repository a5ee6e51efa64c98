/* Dropout: that the masks are the ones core/random.h defines, whatever the shape of the work. */
#include "core/cpu/dropout.h"
#include "ops/ops_test.h"

enum { STEP = 41, MASK = 8 * 512 };

static void check_dropout(tt_device *device, ops_test_shape shape)
{
    uint32_t step = STEP;
    uint32_t *device_step = test_copy_in(device, &step, sizeof step);
    const float probabilities[] = {0.0f, 0.1f, 0.5f, 0.999999f};
    for (int p = 0; p < 4; p++) {
        tt_dropout dropout = {.probability = probabilities[p],
                              .seed = 0x123456789ABCDEFull,
                              .step = device_step,
                              .site = 17,
                              .first_row = 0xFFFFFFF0u};
        ops_test_matrix x = ops_test_random(device, shape.rows, shape.columns, shape.gap, 1.0, 1);
        double *expected = ops_test_read(&x);
        for (int64_t i = 0; i < shape.rows * shape.columns; i++) {
            double multiplier =
                probabilities[p] > 0.999f
                    ? 0.0
                    : ops_test_multiplier(&dropout, STEP, i / shape.columns, i % shape.columns);
            expected[i] = test_rounded(device->compute, expected[i] * multiplier);
        }
        device->ops->dropout(device, x.view, &dropout);
        double *actual = ops_test_read(&x);
        if (probabilities[p] > 0.999f) {
            /* The threshold cannot reach 65536: a kept element is rare, and finite. */
            for (int64_t i = 0; i < shape.rows * shape.columns; i++) {
                assert_true(isfinite(actual[i]));
            }
        } else {
            ops_test_equal("dropout", actual, expected, shape.rows * shape.columns);
        }
        free(actual);
        free(expected);
        ops_test_free(&x);
    }
    device->release(device, device_step);
}

static void test_masks(void **state)
{
    (void)state;
    ops_test_all_shapes(check_dropout, INT64_MAX);
}

static void test_row(void **state)
{
    (void)state;
    uint32_t step = 3;
    tt_dropout dropout = {
        .probability = 0.3f, .seed = 99, .step = &step, .site = 5, .first_row = 1000};
    float multipliers[1300];
    for (int64_t columns = 1; columns <= 1300; columns = columns * 5 / 3 + 1) {
        for (int64_t j = 0; j < 1300; j++) {
            multipliers[j] = (float)OPS_TEST_SENTINEL;
        }
        tt_dropout_row(&dropout, 7, columns, multipliers);
        for (int64_t j = 0; j < 1300; j++) {
            double expected = j < columns ? ops_test_multiplier(&dropout, 3, 7, j)
                                          : (double)(float)OPS_TEST_SENTINEL;
            assert_true(multipliers[j] == expected);
        }
    }
}

static double kept_fraction(tt_device *device, const tt_dropout *dropout, double *sum)
{
    const int64_t rows = 64, columns = 4096;
    ops_test_matrix x = ops_test_fill(device, rows, columns, 0, 1.0);
    device->ops->dropout(device, x.view, dropout);
    double *values = ops_test_read(&x);
    int64_t kept = 0;
    *sum = 0.0;
    for (int64_t i = 0; i < rows * columns; i++) {
        kept += values[i] != 0.0;
        *sum += values[i] / (double)(rows * columns);
    }
    free(values);
    ops_test_free(&x);
    return (double)kept / (double)(rows * columns);
}

static void test_expectation(void **state)
{
    (void)state;
    tt_device *device = test_device(2);
    uint32_t step = STEP;
    tt_dropout dropout = {.seed = 7, .site = 1};
    dropout.step = test_copy_in(device, &step, sizeof step);
    const float probabilities[] = {0.1f, 0.25f, 0.9f};
    for (int p = 0; p < 3; p++) {
        double sum;
        dropout.probability = probabilities[p];
        double kept = kept_fraction(device, &dropout, &sum);
        double deviation = sqrt(probabilities[p] * (1.0 - probabilities[p]) / (64 * 4096));
        assert_true(fabs(kept - (1.0 - probabilities[p])) < 5.0 * deviation);
        assert_true(fabs(sum - 1.0) < 5.0 * deviation / (1.0 - probabilities[p]));
    }
    device->release(device, (void *)dropout.step);
    tt_device_destroy(&device);
}

static double *mask_of(tt_device *device, const tt_dropout *dropout)
{
    ops_test_matrix x = ops_test_fill(device, 8, 512, 0, 1.0);
    device->ops->dropout(device, x.view, dropout);
    double *values = ops_test_read(&x);
    ops_test_free(&x);
    return values;
}

static int64_t agreements(const double *a, const double *b, int64_t count)
{
    int64_t equal = 0;
    for (int64_t i = 0; i < count; i++) {
        equal += a[i] == b[i];
    }
    return equal;
}

/* Another seed, site, step or first row gives another mask; rows are numbered globally. */
static void test_independence(void **state)
{
    (void)state;
    tt_device *device = test_device(1);
    uint32_t steps[] = {STEP, STEP + 1};
    uint32_t *device_steps = test_copy_in(device, steps, sizeof steps);
    tt_dropout base = {.probability = 0.5f, .seed = 7, .step = device_steps, .site = 1};
    tt_dropout others[] = {base, base, base, base};
    others[0].seed = 8;
    others[1].site = 2;
    others[2].step = device_steps + 1;
    others[3].first_row = 4;
    double *mask = mask_of(device, &base);
    for (int i = 0; i < 4; i++) {
        double *other = mask_of(device, &others[i]);
        int64_t equal = agreements(mask, other, MASK);
        assert_true(equal > 1800 && equal < 2300);
        if (i == 3) {
            ops_test_equal("rows from 4 on", other, mask + MASK / 2, MASK / 2);
        }
        free(other);
    }
    double *again = mask_of(device, &base);
    ops_test_equal("the same mask again", again, mask, MASK);
    free(again);
    free(mask);
    device->release(device, device_steps);
    tt_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_row),
        cmocka_unit_test(test_expectation),
        cmocka_unit_test(test_independence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

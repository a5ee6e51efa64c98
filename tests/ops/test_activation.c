/* Bias, GELU and tanh, forward and backward. */
#include "ops/ops_test.h"

static double gelu(tt_gelu kind, double x)
{
    if (kind == TT_GELU_ERF) {
        return 0.5 * x * erfc(-x / sqrt(2.0));
    }
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

static double gelu_derivative(tt_gelu kind, double x)
{
    const double step = 1e-5;
    return (gelu(kind, x + step) - gelu(kind, x - step)) / (2.0 * step);
}

static void add_column_sums(const double *rows, ops_test_shape shape, double *sums)
{
    for (int64_t i = 0; i < shape.rows * shape.columns; i++) {
        sums[i % shape.columns] += rows[i];
    }
}

static void check_bias(tt_device *device, ops_test_shape shape)
{
    int64_t count = shape.rows * shape.columns;
    ops_test_matrix y = ops_test_random(device, shape.rows, shape.columns, shape.gap, 1.0, 1);
    ops_test_matrix bias = ops_test_random_f32(device, 1, shape.columns, 0, 1.0, 2);
    double *expected = ops_test_read(&y), *values = ops_test_read(&bias);
    double *sums = ops_test_read(&bias);
    add_column_sums(expected, shape, sums);
    device->ops->add_bias_backward(device, y.view, ops_test_data(&bias));
    ops_test_expect("bias gradient", &bias, sums);

    ops_test_matrix added = ops_test_from_f32(device, 1, shape.columns, 0, values);
    for (int64_t i = 0; i < count; i++) {
        expected[i] += values[i % shape.columns];
    }
    device->ops->add_bias(device, y.view, ops_test_data(&added));
    ops_test_expect_rounded("bias", &y, expected);
    free(expected);
    free(values);
    free(sums);
    ops_test_free(&y);
    ops_test_free(&bias);
    ops_test_free(&added);
}

static void test_bias(void **state)
{
    (void)state;
    ops_test_all_shapes(check_bias, INT64_MAX);
}

static void check_gelu_forward(tt_device *device, ops_test_shape shape, tt_gelu kind, bool biased)
{
    int64_t count = shape.rows * shape.columns;
    ops_test_matrix x = ops_test_random(device, shape.rows, shape.columns, shape.gap, 2.0, 3);
    ops_test_matrix bias = ops_test_random_f32(device, 1, shape.columns, 0, 1.0, 4);
    ops_test_matrix y = ops_test_fill(device, shape.rows, shape.columns, 2, 0.0);
    double *sum = ops_test_read(&x), *bias_values = ops_test_read(&bias);
    double *expected = test_host((size_t)count * sizeof *expected);
    for (int64_t i = 0; i < count; i++) {
        sum[i] += biased ? bias_values[i % shape.columns] : 0.0;
        expected[i] = gelu(kind, sum[i]);
    }
    device->ops->gelu_forward(device, kind, x.view, biased ? ops_test_data(&bias) : NULL, y.view);
    ops_test_expect_rounded("x + bias", &x, sum);
    ops_test_expect("gelu", &y, expected);
    free(sum);
    free(bias_values);
    free(expected);
    ops_test_free(&x);
    ops_test_free(&bias);
    ops_test_free(&y);
}

/* What a backward pass from (x, dy) should give. */
typedef struct {
    double *x, *output, *gradient, *sums;
} gelu_reference;

static gelu_reference make_gelu_reference(const ops_test_matrix *x, const ops_test_matrix *dy,
                                          const ops_test_matrix *bias, tt_gelu kind)
{
    int64_t columns = x->view.columns, count = x->view.rows * columns;
    gelu_reference r = {ops_test_read(x), ops_test_read(x), ops_test_read(dy), ops_test_read(bias)};
    for (int64_t i = 0; i < count; i++) {
        r.output[i] = gelu(kind, r.x[i]);
        r.gradient[i] *= gelu_derivative(kind, r.x[i]);
        r.sums[i % columns] += r.gradient[i];
    }
    return r;
}

static void check_gelu_backward(tt_device *device, ops_test_shape shape, tt_gelu kind)
{
    ops_test_matrix x = ops_test_random(device, shape.rows, shape.columns, shape.gap, 2.0, 5);
    ops_test_matrix given = ops_test_random(device, shape.rows, shape.columns, 1, 1.0, 6);
    ops_test_matrix old = ops_test_random_f32(device, 1, shape.columns, 0, 1.0, 7);
    gelu_reference r = make_gelu_reference(&x, &given, &old, kind);
    ops_test_free(&given);
    ops_test_free(&old);
    for (int variant = 0; variant < 8; variant++) {
        bool in_place = variant & 1, with_output = variant & 2, with_bias = variant & 4;
        ops_test_matrix dy = ops_test_random(device, shape.rows, shape.columns, 1, 1.0, 6);
        ops_test_matrix dx = ops_test_fill(device, shape.rows, shape.columns, 3, 7.0);
        ops_test_matrix y = ops_test_fill(device, shape.rows, shape.columns, 2, 0.0);
        ops_test_matrix bias = ops_test_random_f32(device, 1, shape.columns, 0, 1.0, 7);
        tt_matrix none = {NULL, 0, 0, 0, TT_F32};
        device->ops->gelu_backward(device, kind, x.view, dy.view, in_place ? dy.view : dx.view,
                                   with_output ? y.view : none,
                                   with_bias ? ops_test_data(&bias) : NULL);
        ops_test_expect("gelu gradient", in_place ? &dy : &dx, r.gradient);
        ops_test_expect_equal("x after the backward pass", &x, r.x);
        if (with_output) {
            ops_test_expect("gelu again", &y, r.output);
        }
        if (with_bias) {
            ops_test_expect("gelu bias gradient", &bias, r.sums);
        }
        ops_test_free(&dy);
        ops_test_free(&dx);
        ops_test_free(&y);
        ops_test_free(&bias);
    }
    free(r.x);
    free(r.output);
    free(r.gradient);
    free(r.sums);
    ops_test_free(&x);
}

static void check_gelu(tt_device *device, ops_test_shape shape)
{
    for (tt_gelu kind = TT_GELU_ERF; kind <= TT_GELU_TANH; kind++) {
        check_gelu_forward(device, shape, kind, false);
        check_gelu_forward(device, shape, kind, true);
        check_gelu_backward(device, shape, kind);
    }
}

static void test_gelu(void **state)
{
    (void)state;
    ops_test_all_shapes(check_gelu, INT64_MAX);
}

/* Values that a training run meets only when something goes wrong. */
static void test_gelu_at_extremes(void **state)
{
    (void)state;
    tt_device *device = test_device(1);
    const double inputs[] = {0.0, -0.0, 1e-30, -1e-30, 20.0, -20.0, 3e4, -3e4, NAN};
    enum { COUNT = sizeof inputs / sizeof inputs[0] };
    for (tt_gelu kind = TT_GELU_ERF; kind <= TT_GELU_TANH; kind++) {
        ops_test_matrix x = ops_test_from(device, 1, COUNT, 0, inputs);
        ops_test_matrix y = ops_test_fill(device, 1, COUNT, 0, 7.0);
        double *rounded = ops_test_read(&x);
        device->ops->gelu_forward(device, kind, x.view, NULL, y.view);
        double *values = ops_test_read(&y);
        for (int i = 0; i < COUNT - 1; i++) {
            double bound = (device->compute == TT_BF16 ? 4e-3 : 1e-6) * fabs(rounded[i]);
            assert_true(fabs(values[i] - gelu(kind, rounded[i])) <= bound);
        }
        assert_true(isnan(values[COUNT - 1]));
        free(rounded);
        free(values);
        ops_test_free(&x);
        ops_test_free(&y);
    }
    tt_device_destroy(&device);
}

static void check_tanh(tt_device *device, ops_test_shape shape)
{
    int64_t count = shape.rows * shape.columns;
    for (int biased = 0; biased <= 1; biased++) {
        ops_test_matrix x = ops_test_random(device, shape.rows, shape.columns, shape.gap, 1.0, 8);
        ops_test_matrix bias = ops_test_random_f32(device, 1, shape.columns, 0, 0.5, 9);
        ops_test_matrix dy = ops_test_random(device, shape.rows, shape.columns, 1, 1.0, 10);
        ops_test_matrix dx = ops_test_fill(device, shape.rows, shape.columns, 2, 7.0);
        double *expected = ops_test_read(&x), *bias_values = ops_test_read(&bias);
        for (int64_t i = 0; i < count; i++) {
            expected[i] = tanh(expected[i] + (biased ? bias_values[i % shape.columns] : 0.0));
        }
        device->ops->tanh_forward(device, x.view, biased ? ops_test_data(&bias) : NULL, x.view);
        ops_test_expect("tanh", &x, expected);

        double *gradient = ops_test_read(&dy), *y = ops_test_read(&x);
        for (int64_t i = 0; i < count; i++) {
            gradient[i] *= 1.0 - y[i] * y[i];
        }
        add_column_sums(gradient, shape, bias_values);
        device->ops->tanh_backward(device, x.view, dy.view, dx.view,
                                   biased ? ops_test_data(&bias) : NULL);
        ops_test_expect("tanh gradient", &dx, gradient);
        if (biased) {
            ops_test_expect("tanh bias gradient", &bias, bias_values);
        }
        free(expected);
        free(bias_values);
        free(gradient);
        free(y);
        ops_test_free(&x);
        ops_test_free(&bias);
        ops_test_free(&dy);
        ops_test_free(&dx);
    }
}

static void test_tanh(void **state)
{
    (void)state;
    ops_test_all_shapes(check_tanh, INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_gelu_at_extremes),
        cmocka_unit_test(test_tanh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

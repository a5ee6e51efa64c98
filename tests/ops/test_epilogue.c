/* Products whose bias, or bias and GELU, come with them. */
#include "ops/ops_test.h"

/* Sizes and gaps that vector loads and cuBLASLt's epilogues like, and others. */
static const struct {
    int64_t m, n, k, gap;
} shapes[] = {{1, 1, 1, 0}, {64, 96, 32, 0}, {33, 48, 30, 16}, {50, 31, 17, 3}, {9, 24, 0, 0}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static double gelu(tt_gelu kind, double x)
{
    return kind == TT_GELU_ERF
               ? 0.5 * x * (1.0 + erf(x / sqrt(2.0)))
               : 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

typedef struct {
    ops_test_matrix x, weight, bias, sum, y;
    tt_product product; /* y = x weight^T, as a linear map is */
    double *expected;   /* of x weight^T + bias */
} epilogue_case;

static epilogue_case make_case(tt_device *device, int shape, tt_epilogue epilogue)
{
    int64_t m = shapes[shape].m, n = shapes[shape].n, k = shapes[shape].k, gap = shapes[shape].gap;
    epilogue_case made = {.x = ops_test_random(device, m, k, gap, 1.0, 1),
                          .weight = ops_test_random(device, n, k, 0, 0.5, 2),
                          .bias = ops_test_random_f32(device, 1, n, 0, 1.0, 3),
                          .sum = ops_test_fill(device, m, n, gap, NAN),
                          .y = ops_test_fill(device, m, n, gap, NAN)};
    made.product = (tt_product){.transpose_b = true,
                                .alpha = 1.0f,
                                .a = made.x.view,
                                .b = made.weight.view,
                                .c = made.y.view,
                                .epilogue = epilogue,
                                .bias = ops_test_data(&made.bias),
                                .before_gelu = made.sum.view};
    double *x = ops_test_read(&made.x), *weight = ops_test_read(&made.weight);
    double *bias = ops_test_read(&made.bias);
    made.expected = test_host((size_t)(m * n) * sizeof *made.expected);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = bias[j];
            for (int64_t l = 0; l < k; l++) {
                sum += x[i * k + l] * weight[j * k + l];
            }
            made.expected[i * n + j] = sum;
        }
    }
    free(x);
    free(weight);
    free(bias);
    return made;
}

static void free_case(epilogue_case *made)
{
    free(made->expected);
    ops_test_free(&made->x);
    ops_test_free(&made->weight);
    ops_test_free(&made->bias);
    ops_test_free(&made->sum);
    ops_test_free(&made->y);
}

static void test_bias(void **state)
{
    (void)state;
    tt_device *device = test_device(2);
    for (int shape = 0; shape < SHAPES; shape++) {
        epilogue_case made = make_case(device, shape, TT_EPILOGUE_BIAS);
        device->ops->multiply(device, &made.product);
        ops_test_expect("product + bias", &made.y, made.expected);

        /* Added to what is there. */
        made.product.beta = 1.0f;
        device->ops->multiply(device, &made.product);
        for (int64_t i = 0; i < made.y.view.rows * made.y.view.columns; i++) {
            made.expected[i] *= 2.0;
        }
        ops_test_expect("product + bias, added", &made.y, made.expected);
        free_case(&made);
    }
    tt_device_destroy(&device);
}

static void check_gelu(tt_device *device, int shape, tt_gelu kind)
{
    epilogue_case made = make_case(device, shape, TT_EPILOGUE_GELU);
    made.product.gelu = kind;
    for (int call = 0; call < 2; call++) { /* the second one finds what the first chose */
        device->ops->multiply(device, &made.product);
        ops_test_expect("before GELU", &made.sum, made.expected);
    }
    for (int64_t i = 0; i < made.y.view.rows * made.y.view.columns; i++) {
        made.expected[i] = gelu(kind, made.expected[i]);
    }
    ops_test_expect("GELU", &made.y, made.expected);
    free_case(&made);
}

static void test_gelu(void **state)
{
    (void)state;
    tt_device *device = test_device(2);
    for (int shape = 0; shape < SHAPES; shape++) {
        check_gelu(device, shape, TT_GELU_ERF);
        check_gelu(device, shape, TT_GELU_TANH);
    }
    tt_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_gelu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

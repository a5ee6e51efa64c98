/* The tiled feed-forward block between two tensor trains, forward and backward, against plain loops
 * in double precision. */
#include "ops/ops_test.h"

typedef struct {
    int64_t tokens, inner, r1, r2;
    int64_t gap;
} block_shape;

/* Operands in the order in which central differences walk over them. */
enum { U1, B1, BIAS, A2, OPERANDS };

typedef struct {
    tt_device *device;
    block_shape s;
    tt_gelu gelu;
    ops_test_matrix operand[OPERANDS], gradient[OPERANDS]; /* gradient[U1] is dU1 */
    ops_test_matrix u2, d_u2, workspace;
    tt_thin_feed_forward operation;
} fixture;

static void operand_size(block_shape s, int operand, int64_t *rows, int64_t *columns)
{
    const int64_t sizes[OPERANDS][2] = {
        {s.tokens, s.r1}, {s.r1, s.inner}, {1, s.inner}, {s.inner, s.r2}};
    *rows = sizes[operand][0];
    *columns = sizes[operand][1];
}

static void make_operands(fixture *f)
{
    /* Activations around 1, where GELU bends. */
    const double deviations[OPERANDS] = {1.0, 1.0 / sqrt((double)f->s.r1), 0.5,
                                         1.0 / sqrt((double)f->s.inner)};
    for (int i = 0; i < OPERANDS; i++) {
        int64_t rows, columns, gap = i == BIAS ? 0 : f->s.gap + i;
        operand_size(f->s, i, &rows, &columns);
        tt_type compute = f->device->compute;
        f->operand[i] = ops_test_make_random(f->device, i == BIAS ? TT_F32 : compute, rows, columns,
                                             gap, deviations[i], 1 + (uint64_t)i);
        f->gradient[i] = ops_test_make_random(f->device, i == U1 ? compute : TT_F32, rows, columns,
                                              i == BIAS ? 0 : gap + 1, 1.0, 11 + (uint64_t)i);
    }
}

static fixture make_fixture(tt_device *device, block_shape s, tt_gelu gelu)
{
    fixture f = {.device = device, .s = s, .gelu = gelu};
    make_operands(&f);
    f.u2 = ops_test_fill(device, s.tokens, s.r2, s.gap, NAN);
    f.d_u2 = ops_test_random(device, s.tokens, s.r2, s.gap + 2, 1.0, 21);
    f.operation = (tt_thin_feed_forward){.u1 = f.operand[U1].view,
                                         .b1 = f.operand[B1].view,
                                         .bias = ops_test_data(&f.operand[BIAS]),
                                         .a2 = f.operand[A2].view,
                                         .b1_gradient = f.gradient[B1].view,
                                         .a2_gradient = f.gradient[A2].view,
                                         .bias_gradient = ops_test_data(&f.gradient[BIAS]),
                                         .gelu = gelu};
    size_t bytes = device->ops->thin_feed_forward_workspace(device, &f.operation);
    f.workspace = ops_test_workspace(device, bytes);
    f.operation.workspace = ops_test_data(&f.workspace);
    return f;
}

static void free_fixture(fixture *f)
{
    for (int i = 0; i < OPERANDS; i++) {
        ops_test_free(&f->operand[i]);
        ops_test_free(&f->gradient[i]);
    }
    free(ops_test_read(&f->workspace));
    ops_test_free(&f->workspace);
    ops_test_free(&f->u2);
    ops_test_free(&f->d_u2);
}

/* --- double precision ------------------------------------------------------------------------ */

static double gelu_value(tt_gelu kind, double x)
{
    double z = sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
    return kind == TT_GELU_ERF ? 0.5 * x * (1.0 + erf(x / sqrt(2.0))) : 0.5 * x * (1.0 + tanh(z));
}

static double gelu_slope(tt_gelu kind, double x)
{
    if (kind == TT_GELU_ERF) {
        return 0.5 * (1.0 + erf(x / sqrt(2.0))) + x * exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
    }
    double slope = sqrt(2.0 / M_PI), t = tanh(slope * (x + 0.044715 * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope * (1.0 + 3.0 * 0.044715 * x * x);
}

/* Row `token` of U1 B1 + b1. */
static void inner_row(const fixture *f, const double *const operand[OPERANDS], int64_t token,
                      double *row)
{
    memcpy(row, operand[BIAS], (size_t)f->s.inner * sizeof *row);
    for (int64_t i = 0; i < f->s.r1; i++) {
        double u = operand[U1][token * f->s.r1 + i];
        for (int64_t j = 0; j < f->s.inner; j++) {
            row[j] += u * operand[B1][i * f->s.inner + j];
        }
    }
}

static void reference_forward(const fixture *f, const double *const operand[OPERANDS], double *u2)
{
    double *row = test_host((size_t)f->s.inner * sizeof *row);
    for (int64_t token = 0; token < f->s.tokens; token++) {
        inner_row(f, operand, token, row);
        double *to = u2 + token * f->s.r2;
        memset(to, 0, (size_t)f->s.r2 * sizeof *to);
        for (int64_t j = 0; j < f->s.inner; j++) {
            double active = gelu_value(f->gelu, row[j]);
            for (int64_t k = 0; k < f->s.r2; k++) {
                to[k] += active * operand[A2][j * f->s.r2 + k];
            }
        }
    }
    free(row);
}

/* gradient[U1] is overwritten, the others are added to. */
static void reference_backward(const fixture *f, const double *const operand[OPERANDS],
                               const double *d_u2, double *const gradient[OPERANDS])
{
    int64_t inner = f->s.inner, r1 = f->s.r1, r2 = f->s.r2;
    double *row = test_host((size_t)inner * sizeof *row);
    memset(gradient[U1], 0, (size_t)(f->s.tokens * r1) * sizeof *row);
    for (int64_t token = 0; token < f->s.tokens; token++) {
        inner_row(f, operand, token, row);
        for (int64_t j = 0; j < inner; j++) {
            double active = gelu_value(f->gelu, row[j]), d = 0.0;
            for (int64_t k = 0; k < r2; k++) {
                d += d_u2[token * r2 + k] * operand[A2][j * r2 + k];
                gradient[A2][j * r2 + k] += d_u2[token * r2 + k] * active;
            }
            d *= gelu_slope(f->gelu, row[j]);
            gradient[BIAS][j] += d;
            for (int64_t i = 0; i < r1; i++) {
                gradient[U1][token * r1 + i] += d * operand[B1][i * inner + j];
                gradient[B1][i * inner + j] += d * operand[U1][token * r1 + i];
            }
        }
    }
    free(row);
}

/* --- tests ----------------------------------------------------------------------------------- */

static void check_block(tt_device *device, block_shape s, tt_gelu gelu)
{
    static const char *const names[OPERANDS] = {"dU1", "dB1", "bias gradient", "dA2"};
    fixture f = make_fixture(device, s, gelu);
    double *operand[OPERANDS], *gradient[OPERANDS];
    double *u2 = test_host((size_t)(s.tokens * s.r2) * sizeof *u2);
    double *d_u2 = ops_test_read(&f.d_u2);
    for (int i = 0; i < OPERANDS; i++) {
        operand[i] = ops_test_read(&f.operand[i]);
        gradient[i] = ops_test_read(&f.gradient[i]);
    }
    reference_forward(&f, (const double *const *)operand, u2);
    reference_backward(&f, (const double *const *)operand, d_u2, gradient);
    device->ops->thin_feed_forward_forward(device, &f.operation, f.u2.view);
    device->ops->thin_feed_forward_backward(device, &f.operation, f.d_u2.view, f.gradient[U1].view);
    ops_test_expect("U2", &f.u2, u2);
    for (int i = 0; i < OPERANDS; i++) {
        ops_test_expect(names[i], &f.gradient[i], gradient[i]);
        free(operand[i]);
        free(gradient[i]);
    }
    free(u2);
    free(d_u2);
    free_fixture(&f);
}

/* Below, at and above the sizes of tiles, and odd. */
static const block_shape shapes[] = {
    {1, 1, 1, 1, 0},      {5, 7, 3, 2, 1},     {33, 100, 8, 5, 0},   {191, 383, 3, 7, 2},
    {192, 384, 5, 4, 0},  {193, 385, 7, 3, 1}, {400, 33, 11, 13, 0}, {13, 1537, 30, 30, 0},
    {385, 400, 13, 9, 3}, {20, 3072, 6, 6, 0}, {2, 17, 1, 40, 0},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void check_all(tt_gelu gelu)
{
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        tt_device *device = test_device(threads);
        for (int i = 0; i < SHAPES; i++) {
            check_block(device, shapes[i], gelu);
        }
        tt_device_destroy(&device);
    }
}

static void test_gelu_erf(void **state)
{
    (void)state;
    check_all(TT_GELU_ERF);
}

static void test_gelu_tanh(void **state)
{
    (void)state;
    check_all(TT_GELU_TANH);
}

typedef struct {
    const fixture *f;
    const double *weights; /* of the entries of U2 */
} weighted;

static int64_t split(const fixture *f, const double *x, const double *operand[OPERANDS])
{
    int64_t used = 0;
    for (int i = 0; i < OPERANDS; i++) {
        int64_t rows, columns;
        operand_size(f->s, i, &rows, &columns);
        operand[i] = x + used;
        used += rows * columns;
    }
    return used;
}

static double weighted_output(const void *context, const double *x)
{
    const weighted *w = context;
    const double *operand[OPERANDS];
    double u2[16] = {0}, sum = 0.0;
    split(w->f, x, operand);
    reference_forward(w->f, operand, u2);
    for (int64_t i = 0; i < w->f->s.tokens * w->f->s.r2; i++) {
        sum += w->weights[i] * u2[i];
    }
    return sum;
}

/* The formulas above are themselves checked against central differences. */
static void test_reference_against_differences(void **state)
{
    (void)state;
    enum { COUNT = 3 * 2 + 2 * 5 + 5 + 5 * 3 };
    const tt_gelu kinds[] = {TT_GELU_ERF, TT_GELU_TANH};
    for (int kind = 0; kind < 2; kind++) {
        fixture f = {.s = {3, 5, 2, 3, 0}, .gelu = kinds[kind]};
        double x[COUNT], found[COUNT] = {0}, expected[COUNT], weights[9];
        tt_random random;
        tt_random_start(&random, 3, 1);
        for (int i = 0; i < COUNT; i++) {
            x[i] = tt_random_normal(&random);
            weights[i % 9] = tt_random_normal(&random);
        }
        const double *operand[OPERANDS];
        double *gradient[OPERANDS];
        assert_int_equal(split(&f, x, operand), COUNT);
        for (int i = 0; i < OPERANDS; i++) {
            gradient[i] = found + (operand[i] - x);
        }
        weighted w = {&f, weights};
        reference_backward(&f, operand, weights, gradient);
        ops_test_differences(weighted_output, &w, x, COUNT, expected);
        ops_test_close("reference", found, expected, COUNT, 1e-8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gelu_erf),
        cmocka_unit_test(test_gelu_tanh),
        cmocka_unit_test(test_reference_against_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

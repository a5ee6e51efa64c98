/* The joint between two thin halves, forward and backward, against plain loops in double
 * precision. */
#include "ops/ops_test.h"

static const float epsilon = 1e-5f;
enum { STEP = 7 };

typedef struct {
    int64_t tokens, hidden, rank, next; /* next 0: nothing thin follows */
    float probability;
} joint_shape;

/* Operands in the order in which central differences walk over them, [rows, columns]. */
enum { U, B, BIAS, RESIDUAL, WEIGHT, SHIFT, A_NEXT, OPERANDS };

static void operand_size(joint_shape s, int operand, int64_t *rows, int64_t *columns)
{
    const int64_t sizes[OPERANDS][2] = {{s.tokens, s.rank},   {s.rank, s.hidden}, {1, s.hidden},
                                        {s.tokens, s.hidden}, {1, s.hidden},      {1, s.hidden},
                                        {s.hidden, s.next}};
    *rows = sizes[operand][0];
    *columns = sizes[operand][1];
}

static int64_t operand_count(joint_shape s, int operand)
{
    int64_t rows, columns;
    operand_size(s, operand, &rows, &columns);
    return rows * columns;
}

typedef struct {
    tt_device *device;
    joint_shape s;
    uint32_t *step;
    ops_test_matrix operand[OPERANDS], gradient[OPERANDS];
    ops_test_matrix normalized, inverse_deviation, u_next, d_u_next, workspace;
    tt_thin_joint operation;
} fixture;

static void make_operands(fixture *f)
{
    tt_type compute = f->device->compute;
    for (int i = 0; i < OPERANDS; i++) {
        int64_t rows, columns;
        operand_size(f->s, i, &rows, &columns);
        bool vector = i == BIAS || i == WEIGHT || i == SHIFT;
        int64_t gap = vector ? 0 : i + 1;
        double deviation = i == B        ? 1.0 / sqrt((double)f->s.rank)
                           : i == A_NEXT ? 1.0 / sqrt((double)f->s.hidden)
                                         : 1.0;
        f->operand[i] = ops_test_make_random(f->device, vector ? TT_F32 : compute, rows, columns,
                                             gap, deviation, 1 + (uint64_t)i);
        f->gradient[i] = ops_test_make_random(f->device, i == U || i == RESIDUAL ? compute : TT_F32,
                                              rows, columns, gap, 1.0, 11 + (uint64_t)i);
    }
}

static void set_operation(fixture *f)
{
    tt_matrix none = {NULL, 0, 0, 0, TT_F32};
    tt_residual_norm norm = {.bias = ops_test_data(&f->operand[BIAS]),
                             .weight = ops_test_data(&f->operand[WEIGHT]),
                             .shift = ops_test_data(&f->operand[SHIFT]),
                             .bias_gradient = ops_test_data(&f->gradient[BIAS]),
                             .weight_gradient = ops_test_data(&f->gradient[WEIGHT]),
                             .shift_gradient = ops_test_data(&f->gradient[SHIFT]),
                             .epsilon = epsilon,
                             .dropout = {.probability = f->s.probability,
                                         .seed = 3,
                                         .step = f->step,
                                         .site = 4,
                                         .first_row = 100},
                             .state = {f->normalized.view, ops_test_data(&f->inverse_deviation)}};
    f->operation =
        (tt_thin_joint){.norm = norm,
                        .u = f->operand[U].view,
                        .b = f->operand[B].view,
                        .b_gradient = f->gradient[B].view,
                        .a_next = f->s.next > 0 ? f->operand[A_NEXT].view : none,
                        .a_next_gradient = f->s.next > 0 ? f->gradient[A_NEXT].view : none};
    size_t bytes = f->device->ops->thin_joint_workspace(f->device, &f->operation);
    f->workspace = ops_test_workspace(f->device, bytes);
    f->operation.workspace = ops_test_data(&f->workspace);
}

static fixture make_fixture(tt_device *device, joint_shape s)
{
    uint32_t step = STEP;
    fixture f = {.device = device, .s = s};
    f.step = test_copy_in(device, &step, sizeof step);
    make_operands(&f);
    f.normalized = ops_test_fill(device, s.tokens, s.hidden, 2, NAN);
    f.inverse_deviation = ops_test_fill_f32(device, 1, s.tokens, 0, NAN);
    f.u_next = ops_test_fill(device, s.tokens, s.next, 1, NAN);
    f.d_u_next = ops_test_random(device, s.tokens, s.next, 3, 1.0, 21);
    set_operation(&f);
    return f;
}

static void free_fixture(fixture *f)
{
    ops_test_matrix *all[] = {&f->normalized, &f->inverse_deviation, &f->u_next, &f->d_u_next,
                              &f->workspace};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(ops_test_read(all[i]));
        ops_test_free(all[i]);
    }
    for (int i = 0; i < OPERANDS; i++) {
        ops_test_free(&f->operand[i]);
        ops_test_free(&f->gradient[i]);
    }
    f->device->release(f->device, f->step);
}

/* --- double precision ------------------------------------------------------------------------ */

/* Row `token` of the normalised sum; returns 1 / deviation. */
static double normalized_row(const fixture *f, const double *const operand[OPERANDS], int64_t token,
                             double *row)
{
    int64_t hidden = f->s.hidden;
    double mean = 0.0, variance = 0.0;
    for (int64_t j = 0; j < hidden; j++) {
        row[j] = operand[BIAS][j];
        for (int64_t r = 0; r < f->s.rank; r++) {
            row[j] += operand[U][token * f->s.rank + r] * operand[B][r * hidden + j];
        }
        row[j] *= ops_test_multiplier(&f->operation.norm.dropout, STEP, token, j);
        row[j] += operand[RESIDUAL][token * hidden + j];
        mean += row[j] / (double)hidden;
    }
    for (int64_t j = 0; j < hidden; j++) {
        row[j] -= mean;
        variance += row[j] * row[j] / (double)hidden;
    }
    double inverse = 1.0 / sqrt(variance + (double)epsilon);
    for (int64_t j = 0; j < hidden; j++) {
        row[j] *= inverse;
    }
    return inverse;
}

static void reference_forward(const fixture *f, const double *const operand[OPERANDS], double *y,
                              double *u_next)
{
    int64_t hidden = f->s.hidden, next = f->s.next;
    memset(u_next, 0, (size_t)(f->s.tokens * next) * sizeof *u_next);
    for (int64_t token = 0; token < f->s.tokens; token++) {
        double *row = y + token * hidden;
        normalized_row(f, operand, token, row);
        for (int64_t j = 0; j < hidden; j++) {
            row[j] = row[j] * operand[WEIGHT][j] + operand[SHIFT][j];
            for (int64_t r = 0; r < next; r++) {
                u_next[token * next + r] += row[j] * operand[A_NEXT][j * next + r];
            }
        }
    }
}

/* One token: from what reaches y (d_y, which d_u_next is added to) to the gradient of the sum. */
static void reference_norm_backward(const fixture *f, const double *const operand[OPERANDS],
                                    const double *d_u_next, double *const gradient[OPERANDS],
                                    const double *row, double inverse, double *d_y)
{
    int64_t hidden = f->s.hidden, next = f->s.next;
    double mean = 0.0, product_mean = 0.0;
    for (int64_t j = 0; j < hidden; j++) {
        double y = row[j] * operand[WEIGHT][j] + operand[SHIFT][j];
        for (int64_t r = 0; r < next; r++) {
            d_y[j] += d_u_next[r] * operand[A_NEXT][j * next + r];
            gradient[A_NEXT][j * next + r] += y * d_u_next[r];
        }
        gradient[WEIGHT][j] += d_y[j] * row[j];
        gradient[SHIFT][j] += d_y[j];
        d_y[j] *= operand[WEIGHT][j];
        mean += d_y[j] / (double)hidden;
        product_mean += d_y[j] * row[j] / (double)hidden;
    }
    for (int64_t j = 0; j < hidden; j++) {
        d_y[j] = (d_y[j] - mean - row[j] * product_mean) * inverse;
    }
}

/* gradient[RESIDUAL] is what reaches y on entry; gradient[U] is overwritten, others are added to.
 */
static void reference_backward(const fixture *f, const double *const operand[OPERANDS],
                               const double *d_u_next, double *const gradient[OPERANDS])
{
    int64_t hidden = f->s.hidden, rank = f->s.rank;
    double *row = test_host((size_t)hidden * sizeof *row);
    memset(gradient[U], 0, (size_t)(f->s.tokens * rank) * sizeof *row);
    for (int64_t token = 0; token < f->s.tokens; token++) {
        double *d_sum = gradient[RESIDUAL] + token * hidden;
        double inverse = normalized_row(f, operand, token, row);
        reference_norm_backward(f, operand, d_u_next + token * f->s.next, gradient, row, inverse,
                                d_sum);
        for (int64_t j = 0; j < hidden; j++) {
            double d = d_sum[j] * ops_test_multiplier(&f->operation.norm.dropout, STEP, token, j);
            gradient[BIAS][j] += d;
            for (int64_t r = 0; r < rank; r++) {
                gradient[U][token * rank + r] += d * operand[B][r * hidden + j];
                gradient[B][r * hidden + j] += d * operand[U][token * rank + r];
            }
        }
    }
    free(row);
}

/* --- tests ----------------------------------------------------------------------------------- */

static void check_forward(fixture *f, const double *const operand[OPERANDS])
{
    joint_shape s = f->s;
    double *y = test_host((size_t)(s.tokens * s.hidden) * sizeof *y);
    double *u_next = test_host((size_t)(s.tokens * s.next) * sizeof *u_next);
    double *row = test_host((size_t)s.hidden * sizeof *row);
    reference_forward(f, operand, y, u_next);
    f->device->ops->thin_joint_forward(f->device, &f->operation, f->operand[RESIDUAL].view,
                                       f->u_next.view);
    ops_test_expect("y", &f->operand[RESIDUAL], y);
    if (s.next > 0) {
        ops_test_expect("u_next", &f->u_next, u_next);
    }
    double *inverse = ops_test_read(&f->inverse_deviation);
    for (int64_t token = 0; token < s.tokens; token++) {
        double expected = normalized_row(f, operand, token, row);
        assert_true(fabs(inverse[token] - expected) < test_device_tolerance() * expected);
        memcpy(y + token * s.hidden, row, (size_t)s.hidden * sizeof *row);
    }
    ops_test_expect("normalized", &f->normalized, y);
    free(y);
    free(u_next);
    free(row);
    free(inverse);
}

static void check_joint(tt_device *device, joint_shape s)
{
    static const char *const names[OPERANDS] = {"d_u",
                                                "dB",
                                                "bias gradient",
                                                "gradient of the residual",
                                                "weight gradient",
                                                "shift gradient",
                                                "dA"};
    fixture f = make_fixture(device, s);
    double *operand[OPERANDS], *gradient[OPERANDS], *d_u_next = ops_test_read(&f.d_u_next);
    for (int i = 0; i < OPERANDS; i++) {
        operand[i] = ops_test_read(&f.operand[i]);
        gradient[i] = ops_test_read(&f.gradient[i]);
    }
    check_forward(&f, (const double *const *)operand);
    reference_backward(&f, (const double *const *)operand, d_u_next, gradient);
    device->ops->thin_joint_backward(device, &f.operation, f.d_u_next.view,
                                     f.gradient[RESIDUAL].view, f.gradient[U].view);
    for (int i = 0; i < OPERANDS; i++) {
        if (operand_count(s, i) > 0) {
            ops_test_expect(names[i], &f.gradient[i], gradient[i]);
        }
        free(operand[i]);
        free(gradient[i]);
    }
    free(d_u_next);
    free_fixture(&f);
}

/* Below, at and above the tile of tokens, and odd. */
static const joint_shape shapes[] = {
    {1, 8, 1, 1, 0.0f},      {5, 33, 3, 7, 0.1f},     {127, 100, 5, 0, 0.0f},
    {128, 65, 30, 90, 0.1f}, {129, 24, 4, 13, 0.25f}, {300, 768, 12, 0, 0.1f},
    {400, 96, 30, 30, 0.0f}, {270, 17, 11, 5, 0.5f},  {129, 24, 0, 13, 0.1f},
    {70, 40, 0, 0, 0.1f},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void test_joint(void **state)
{
    (void)state;
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        tt_device *device = test_device(threads);
        for (int i = 0; i < SHAPES; i++) {
            check_joint(device, shapes[i]);
        }
        tt_device_destroy(&device);
    }
}

typedef struct {
    const fixture *f;
    const double *d_y, *d_u_next; /* weights of the entries of y and u_next */
} weighted;

static void split(joint_shape s, double *x, double *operand[OPERANDS])
{
    for (int i = 0; i < OPERANDS; i++) {
        operand[i] = x;
        x += operand_count(s, i);
    }
}

static double weighted_output(const void *context, const double *x)
{
    const weighted *w = context;
    enum { ROOM = 64 };
    double y[ROOM], u_next[ROOM], copy[4 * ROOM], sum = 0.0;
    double *operand[OPERANDS];
    joint_shape s = w->f->s;
    int64_t count = 0;
    for (int i = 0; i < OPERANDS; i++) {
        count += operand_count(s, i);
    }
    memcpy(copy, x, (size_t)count * sizeof *copy);
    split(s, copy, operand);
    reference_forward(w->f, (const double *const *)operand, y, u_next);
    for (int64_t i = 0; i < s.tokens * s.hidden; i++) {
        sum += w->d_y[i] * y[i];
    }
    for (int64_t i = 0; i < s.tokens * s.next; i++) {
        sum += w->d_u_next[i] * u_next[i];
    }
    return sum;
}

/* The formulas above are themselves checked against central differences. */
static void test_reference_against_differences(void **state)
{
    (void)state;
    enum { ROOM = 256 };
    fixture f = {.s = {3, 6, 2, 4, 0.25f}};
    f.operation.norm.dropout = (tt_dropout){.probability = 0.25f, .seed = 3, .site = 4};
    double x[ROOM], found[ROOM] = {0}, expected[ROOM], d_y[18], d_u_next[12];
    double *operand[OPERANDS], *gradient[OPERANDS];
    tt_random random;
    tt_random_start(&random, 3, 1);
    for (int i = 0; i < ROOM; i++) {
        x[i] = tt_random_normal(&random);
        d_y[i % 18] = tt_random_normal(&random);
        d_u_next[i % 12] = tt_random_normal(&random);
    }
    split(f.s, x, operand);
    split(f.s, found, gradient);
    memcpy(gradient[RESIDUAL], d_y, sizeof d_y);
    reference_backward(&f, (const double *const *)operand, d_u_next, gradient);
    int64_t count = operand[A_NEXT] - x + operand_count(f.s, A_NEXT);
    weighted w = {&f, d_y, d_u_next};
    ops_test_differences(weighted_output, &w, x, count, expected);
    ops_test_close("reference", found, expected, count, 1e-8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joint),
        cmocka_unit_test(test_reference_against_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

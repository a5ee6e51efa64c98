/* LayerNorm of residual + dropout(x + bias), forward, output again, and backward. */
#include "ops/ops_test.h"

static const double epsilon = 1e-5;
enum { STEP = 12 };

typedef struct {
    float probability;
    bool residual, bias;
    bool in_place; /* y over x, d_sum over dy, and dx over d_sum where dropout allows it */
} variant;

/* All operands of one joint. */
typedef struct {
    tt_device *device;
    ops_test_shape shape;
    variant v;
    uint32_t *step;
    ops_test_matrix x, residual, bias, weight, shift, normalized, inverse_deviation;
    ops_test_matrix bias_gradient, weight_gradient, shift_gradient;
    tt_residual_norm norm;
    tt_matrix residual_view;
} fixture;

static fixture make_fixture(tt_device *device, ops_test_shape shape, variant v)
{
    int64_t rows = shape.rows, columns = shape.columns, gap = shape.gap;
    uint32_t step = STEP;
    fixture f = {.device = device, .shape = shape, .v = v};
    f.step = test_copy_in(device, &step, sizeof step);
    f.x = ops_test_random(device, rows, columns, gap, 1.0, 1);
    f.residual = ops_test_random(device, rows, columns, gap + 1, 1.0, 2);
    f.bias = ops_test_random_f32(device, 1, columns, 0, 1.0, 3);
    f.weight = ops_test_random_f32(device, 1, columns, 0, 1.0, 4);
    f.shift = ops_test_random_f32(device, 1, columns, 0, 1.0, 5);
    f.normalized = ops_test_fill(device, rows, columns, gap + 2, 7.0);
    f.inverse_deviation = ops_test_fill_f32(device, 1, rows, 0, 7.0);
    f.bias_gradient = ops_test_random_f32(device, 1, columns, 0, 1.0, 6);
    f.weight_gradient = ops_test_random_f32(device, 1, columns, 0, 1.0, 7);
    f.shift_gradient = ops_test_random_f32(device, 1, columns, 0, 1.0, 8);
    f.residual_view = v.residual ? f.residual.view : (tt_matrix){NULL, 0, 0, 0, TT_F32};
    f.norm = (tt_residual_norm){.bias = v.bias ? ops_test_data(&f.bias) : NULL,
                                .weight = ops_test_data(&f.weight),
                                .shift = ops_test_data(&f.shift),
                                .bias_gradient = v.bias ? ops_test_data(&f.bias_gradient) : NULL,
                                .weight_gradient = ops_test_data(&f.weight_gradient),
                                .shift_gradient = ops_test_data(&f.shift_gradient),
                                .epsilon = (float)epsilon,
                                .dropout = {.probability = v.probability,
                                            .seed = 3,
                                            .step = f.step,
                                            .site = 4,
                                            .first_row = 100},
                                .state = {f.normalized.view, ops_test_data(&f.inverse_deviation)}};
    return f;
}

static void free_fixture(fixture *f)
{
    ops_test_matrix *all[] = {&f->x,
                              &f->residual,
                              &f->bias,
                              &f->weight,
                              &f->shift,
                              &f->normalized,
                              &f->inverse_deviation,
                              &f->bias_gradient,
                              &f->weight_gradient,
                              &f->shift_gradient};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ops_test_free(all[i]);
    }
    f->device->release(f->device, f->step);
}

/* The operands in double precision, [x, residual, bias, weight, shift] in one array, so that
 * central differences can walk over them. */
typedef struct {
    const fixture *f;
    const double *dy;
} reference;

static int64_t place(const fixture *f, int operand)
{
    int64_t n = f->shape.rows * f->shape.columns, h = f->shape.columns;
    const int64_t places[] = {0, n, 2 * n, 2 * n + h, 2 * n + 2 * h, 2 * n + 3 * h};
    return places[operand];
}

static double *operands(const fixture *f)
{
    const ops_test_matrix *parts[] = {&f->x, &f->residual, &f->bias, &f->weight, &f->shift};
    double *all = test_host((size_t)place(f, 5) * sizeof *all);
    for (int i = 0; i < 5; i++) {
        double *part = ops_test_read(parts[i]);
        memcpy(all + place(f, i), part, (size_t)(place(f, i + 1) - place(f, i)) * sizeof *all);
        free(part);
    }
    return all;
}

/* Row i of the normalized sum; returns 1 / deviation. */
static double normalized_row(const fixture *f, const double *all, int64_t i, double *row)
{
    int64_t h = f->shape.columns;
    double mean = 0.0, variance = 0.0;
    for (int64_t j = 0; j < h; j++) {
        double x = all[i * h + j] + (f->v.bias ? all[place(f, 2) + j] : 0.0);
        row[j] = x * ops_test_multiplier(&f->norm.dropout, STEP, i, j) +
                 (f->v.residual ? all[place(f, 1) + i * h + j] : 0.0);
        mean += row[j] / (double)h;
    }
    for (int64_t j = 0; j < h; j++) {
        variance += (row[j] - mean) * (row[j] - mean) / (double)h;
    }
    for (int64_t j = 0; j < h; j++) {
        row[j] = (row[j] - mean) / sqrt(variance + (double)f->norm.epsilon);
    }
    return 1.0 / sqrt(variance + (double)f->norm.epsilon);
}

static void check_forward(tt_device *device, ops_test_shape shape, variant v)
{
    fixture f = make_fixture(device, shape, v);
    int64_t rows = shape.rows, h = shape.columns;
    ops_test_matrix y = ops_test_fill(device, rows, h, 1, 7.0);
    double *all = operands(&f), *normalized = ops_test_read(&f.normalized);
    double *expected = ops_test_read(&y), *inverse = ops_test_read(&f.inverse_deviation);
    for (int64_t i = 0; i < rows; i++) {
        inverse[i] = normalized_row(&f, all, i, normalized + i * h);
        for (int64_t j = 0; j < h; j++) {
            expected[i * h + j] =
                normalized[i * h + j] * all[place(&f, 3) + j] + all[place(&f, 4) + j];
        }
    }
    const ops_test_matrix *target = v.in_place ? &f.x : &y;
    device->ops->residual_norm_forward(device, &f.norm, f.x.view, f.residual_view, target->view);
    ops_test_expect("normalized", &f.normalized, normalized);
    ops_test_expect("1 / deviation", &f.inverse_deviation, inverse);
    ops_test_expect("LayerNorm", target, expected);

    ops_test_matrix again = ops_test_fill(device, rows, h, 3, 7.0);
    device->ops->residual_norm_output(device, &f.norm, again.view);
    ops_test_expect("LayerNorm again", &again, expected);
    free(all);
    free(normalized);
    free(expected);
    free(inverse);
    ops_test_free(&y);
    ops_test_free(&again);
    free_fixture(&f);
}

/* What the backward pass should give, sums of parameter gradients added to what was there. */
typedef struct {
    double *d_sum, *dx, *weight, *shift, *bias;
} gradients;

static gradients reference_backward(const fixture *f, const double *all, const double *dy)
{
    int64_t rows = f->shape.rows, h = f->shape.columns;
    size_t bytes = (size_t)(rows * h) * sizeof(double);
    gradients g = {test_host(bytes), test_host(bytes), ops_test_read(&f->weight_gradient),
                   ops_test_read(&f->shift_gradient), ops_test_read(&f->bias_gradient)};
    double *row = test_host((size_t)h * sizeof *row);
    for (int64_t i = 0; i < rows; i++) {
        double inverse = normalized_row(f, all, i, row), mean = 0.0, product_mean = 0.0;
        for (int64_t j = 0; j < h; j++) {
            double scaled = dy[i * h + j] * all[place(f, 3) + j];
            mean += scaled / (double)h;
            product_mean += scaled * row[j] / (double)h;
            g.weight[j] += dy[i * h + j] * row[j];
            g.shift[j] += dy[i * h + j];
        }
        for (int64_t j = 0; j < h; j++) {
            double scaled = dy[i * h + j] * all[place(f, 3) + j];
            g.d_sum[i * h + j] = (scaled - mean - row[j] * product_mean) * inverse;
            g.dx[i * h + j] =
                g.d_sum[i * h + j] * ops_test_multiplier(&f->norm.dropout, STEP, i, j);
            g.bias[j] += g.dx[i * h + j];
        }
    }
    free(row);
    return g;
}

static void free_gradients(gradients *g)
{
    free(g->d_sum);
    free(g->dx);
    free(g->weight);
    free(g->shift);
    free(g->bias);
}

/* A row whose sum hardly varies, and a row of one column, have a gradient that is all rounding: it
 * is compared on the scale of dy * weight / deviation. */
static void expect_row_gradient(const char *what, const ops_test_matrix *actual,
                                const double *expected, double scale)
{
    double *values = ops_test_read(actual);
    int64_t count = actual->view.rows * actual->view.columns;
    double difference = 0.0, size = 0.0;
    for (int64_t i = 0; i < count; i++) {
        difference += (values[i] - expected[i]) * (values[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    if (!(sqrt(difference) <= test_device_tolerance() * fmax(sqrt(size), scale))) {
        fail_msg("%s: distance %.3g of %.3g", what, sqrt(difference), fmax(sqrt(size), scale));
    }
    free(values);
}

static void check_backward(tt_device *device, ops_test_shape shape, variant v)
{
    fixture f = make_fixture(device, shape, v);
    int64_t rows = shape.rows, h = shape.columns;
    ops_test_matrix scratch = ops_test_fill(device, rows, h, 0, 7.0);
    device->ops->residual_norm_forward(device, &f.norm, f.x.view, f.residual_view, scratch.view);

    ops_test_matrix dy = ops_test_random(device, rows, h, 1, 1.0, 9);
    ops_test_matrix d_sum = ops_test_fill(device, rows, h, 2, 7.0);
    ops_test_matrix dx = ops_test_fill(device, rows, h, 3, 7.0);
    double *all = operands(&f), *dy_values = ops_test_read(&dy);
    gradients g = reference_backward(&f, all, dy_values);
    const ops_test_matrix *d_sum_target = v.in_place ? &dy : &d_sum;
    const ops_test_matrix *dx_target = v.in_place && v.probability == 0.0f ? d_sum_target : &dx;
    device->ops->residual_norm_backward(device, &f.norm, dy.view, d_sum_target->view,
                                        dx_target->view);
    double scale = h == 1 ? sqrt((double)rows / epsilon) : 0.0;
    expect_row_gradient("gradient of the sum", d_sum_target, g.d_sum, scale);
    expect_row_gradient("gradient of x", dx_target, g.dx, scale);
    ops_test_expect("weight gradient", &f.weight_gradient, g.weight);
    ops_test_expect("shift gradient", &f.shift_gradient, g.shift);
    if (v.bias) {
        expect_row_gradient("bias gradient", &f.bias_gradient, g.bias, scale);
    }
    free_gradients(&g);
    free(all);
    free(dy_values);
    ops_test_free(&scratch);
    ops_test_free(&dy);
    ops_test_free(&d_sum);
    ops_test_free(&dx);
    free_fixture(&f);
}

static const variant variants[] = {
    {0.0f, true, true, false},  {0.1f, true, true, false},   {0.25f, true, true, true},
    {0.0f, false, false, true}, {0.1f, false, false, false}, {0.0f, true, false, true},
    {0.5f, false, true, false},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static void check_all_forward(tt_device *device, ops_test_shape shape)
{
    for (int i = 0; i < VARIANTS; i++) {
        check_forward(device, shape, variants[i]);
    }
}

static void check_all_backward(tt_device *device, ops_test_shape shape)
{
    for (int i = 0; i < VARIANTS; i++) {
        check_backward(device, shape, variants[i]);
    }
}

static void test_forward(void **state)
{
    (void)state;
    ops_test_all_shapes(check_all_forward, 4096);
}

static void test_backward(void **state)
{
    (void)state;
    ops_test_all_shapes(check_all_backward, 4096);
}

static double weighted_output(const void *context, const double *all)
{
    const reference *r = context;
    const fixture *f = r->f;
    int64_t h = f->shape.columns;
    double row[64], sum = 0.0;
    for (int64_t i = 0; i < f->shape.rows; i++) {
        normalized_row(f, all, i, row);
        for (int64_t j = 0; j < h; j++) {
            sum += r->dy[i * h + j] * (row[j] * all[place(f, 3) + j] + all[place(f, 4) + j]);
        }
    }
    return sum;
}

/* The formulas above are themselves checked against central differences of the forward pass. */
static void test_reference_against_differences(void **state)
{
    (void)state;
    tt_device *device = test_device(1);
    ops_test_shape shape = {3, 9, 0};
    fixture f = make_fixture(device, shape, (variant){0.25f, true, true, false});
    ops_test_matrix dy = ops_test_random(device, 3, 9, 0, 1.0, 9);
    double *all = operands(&f), *dy_values = ops_test_read(&dy);
    gradients g = reference_backward(&f, all, dy_values);
    double *before[] = {ops_test_read(&f.bias_gradient), ops_test_read(&f.weight_gradient),
                        ops_test_read(&f.shift_gradient)};
    double *sums[] = {g.bias, g.weight, g.shift};
    reference r = {&f, dy_values};
    double *differences = test_host((size_t)place(&f, 5) * sizeof *differences);
    ops_test_differences(weighted_output, &r, all, place(&f, 5), differences);
    ops_test_close("dx", g.dx, differences, 27, 1e-8);
    ops_test_close("d residual", g.d_sum, differences + place(&f, 1), 27, 1e-8);
    for (int i = 0; i < 3; i++) {
        for (int64_t j = 0; j < 9; j++) {
            sums[i][j] -= before[i][j];
        }
        ops_test_close("d parameter", sums[i], differences + place(&f, 2 + i), 9, 1e-8);
        free(before[i]);
    }
    free_gradients(&g);
    free(all);
    free(dy_values);
    free(differences);
    ops_test_free(&dy);
    free_fixture(&f);
    tt_device_destroy(&device);
}

/* A large mean must not eat the variance. */
static void test_large_mean(void **state)
{
    (void)state;
    enum { COUNT = 4 * 768 };
    tt_device *device = test_device(1);
    ops_test_shape shape = {4, 768, 0};
    fixture f = make_fixture(device, shape, (variant){0.0f, false, false, false});
    double *all = operands(&f), *normalized = ops_test_read(&f.normalized);
    for (int64_t i = 0; i < COUNT; i++) {
        all[i] += 1000.0;
    }
    ops_test_matrix x = ops_test_from(device, 4, 768, 0, all);
    double *rounded = ops_test_read(&x);
    memcpy(all, rounded, COUNT * sizeof *all);
    for (int64_t i = 0; i < 4; i++) {
        normalized_row(&f, all, i, normalized + i * 768);
    }
    device->ops->residual_norm_forward(device, &f.norm, x.view, f.residual_view, x.view);
    ops_test_expect("normalized", &f.normalized, normalized);
    free(all);
    free(normalized);
    free(rounded);
    ops_test_free(&x);
    free_fixture(&f);
    tt_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_reference_against_differences),
        cmocka_unit_test(test_large_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

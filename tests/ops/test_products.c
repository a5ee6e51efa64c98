/* Products, copies, and tensor-train cores scaled by their diagonals. */
#include "ops/ops_test.h"

/* --- products -------------------------------------------------------------------------------- */

typedef struct {
    int64_t m, n, k;
} sizes;

typedef struct {
    bool transpose_a, transpose_b;
    float alpha, beta;
} variant;

/* Types of the operands and of the result that a device is asked for. */
typedef struct {
    tt_type operands, result;
} product_types;

/* Activations from activations; gradients of parameters from activations; and what lies between
 * parameters and the factors made of them. */
static product_types numbered_types(const tt_device *device, int number)
{
    const product_types all[] = {
        {device->compute, device->compute}, {device->compute, TT_F32}, {TT_F32, TT_F32}};
    return all[number % 3];
}

typedef struct {
    ops_test_matrix a, b, c;
    tt_product product;
    double *expected; /* of c */
} product_case;

static double entry(const double *matrix, int64_t columns, bool transposed, int64_t i, int64_t j)
{
    return transposed ? matrix[j * columns + i] : matrix[i * columns + j];
}

static double *reference_product(const product_case *made, sizes s, variant v)
{
    double *a = ops_test_read(&made->a), *b = ops_test_read(&made->b);
    double *c = ops_test_read(&made->c);
    for (int64_t i = 0; i < s.m; i++) {
        for (int64_t j = 0; j < s.n; j++) {
            double sum = 0.0;
            for (int64_t l = 0; l < s.k; l++) {
                sum += entry(a, made->a.view.columns, v.transpose_a, i, l) *
                       entry(b, made->b.view.columns, v.transpose_b, l, j);
            }
            double before = v.beta == 0.0f ? 0.0 : (double)v.beta * c[i * s.n + j];
            c[i * s.n + j] = (double)v.alpha * sum + before;
        }
    }
    free(a);
    free(b);
    return c;
}

static ops_test_matrix make_operand(tt_device *device, tt_type type, bool transposed, int64_t rows,
                                    int64_t columns, int64_t gap, uint64_t seed)
{
    return ops_test_make_random(device, type, transposed ? columns : rows,
                                transposed ? rows : columns, gap, 1.0, seed);
}

static product_case make_product(tt_device *device, product_types types, sizes s, variant v,
                                 int64_t gap, uint64_t seed)
{
    product_case made = {
        .a = make_operand(device, types.operands, v.transpose_a, s.m, s.k, gap, seed),
        .b = make_operand(device, types.operands, v.transpose_b, s.k, s.n, 2 * gap, seed + 1),
        /* With beta 0 the product must not even read what was there. */
        .c = v.beta == 0.0f
                 ? ops_test_make_equal(device, types.result, s.m, s.n, 3 * gap, NAN)
                 : ops_test_make_random(device, types.result, s.m, s.n, 3 * gap, 1.0, seed + 2)};
    made.expected = reference_product(&made, s, v);
    made.product = (tt_product){.transpose_a = v.transpose_a,
                                .transpose_b = v.transpose_b,
                                .alpha = v.alpha,
                                .beta = v.beta,
                                .a = made.a.view,
                                .b = made.b.view,
                                .c = made.c.view};
    return made;
}

static void check_and_free_product(product_case *made)
{
    double *found = ops_test_read(&made->c);
    ops_test_close("product", found, made->expected, made->c.view.rows * made->c.view.columns,
                   made->a.view.type == TT_F32 ? test_device_f32_tolerance()
                                               : test_device_tolerance());
    free(found);
    free(made->expected);
    ops_test_free(&made->a);
    ops_test_free(&made->b);
    ops_test_free(&made->c);
}

static const sizes product_sizes[] = {
    {1, 1, 1},    {3, 5, 7},     {1, 130, 30}, {130, 1, 257}, {64, 30, 768},
    {97, 33, 31}, {200, 100, 1}, {30, 240, 8}, {129, 65, 12},
};
static const variant scalings[] = {
    {.alpha = 1.0f, .beta = 0.0f},
    {.alpha = 1.0f, .beta = 1.0f},
    {.alpha = 0.125f, .beta = 0.0f},
    {.alpha = -0.5f, .beta = 2.0f},
};
enum {
    PRODUCT_SIZES = sizeof product_sizes / sizeof product_sizes[0],
    SCALINGS = sizeof scalings / sizeof scalings[0],
    PRODUCTS = PRODUCT_SIZES * SCALINGS * 4,
};

/* Product number `number` of all combinations of sizes, scalings and transposes. */
static product_case numbered_product(tt_device *device, product_types types, int number)
{
    variant v = scalings[number / 4 % SCALINGS];
    v.transpose_a = number % 2 == 1;
    v.transpose_b = number / 2 % 2 == 1;
    return make_product(device, types, product_sizes[number / 4 / SCALINGS], v, number % 3,
                        100 * (uint64_t)number);
}

static void test_multiply(void **state)
{
    (void)state;
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        tt_device *device = test_device(threads);
        for (int i = 0; i < PRODUCTS; i++) {
            product_case made = numbered_product(device, numbered_types(device, i / 3), i);
            device->ops->multiply(device, &made.product);
            check_and_free_product(&made);
        }
        tt_device_destroy(&device);
    }
}

static void test_multiply_nothing(void **state)
{
    (void)state;
    tt_device *device = test_device(1);
    product_case made =
        make_product(device, numbered_types(device, 0), (sizes){4, 5, 6}, scalings[1], 1, 1);
    double *before = ops_test_read(&made.c);
    tt_product empty = made.product;
    empty.a.rows = empty.c.rows = 0;
    device->ops->multiply(device, &empty);
    empty = made.product;
    empty.b.columns = empty.c.columns = 0;
    device->ops->multiply(device, &empty);
    double *after = ops_test_read(&made.c);
    ops_test_equal("untouched", after, before, 20);
    free(before);
    free(after);
    device->ops->multiply(device, &made.product);
    check_and_free_product(&made);
    tt_device_destroy(&device);
}

static void test_multiply_group(void **state)
{
    (void)state;
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        tt_device *device = test_device(threads);
        product_case all[PRODUCTS];
        tt_product list[PRODUCTS];
        for (int i = 0; i < PRODUCTS; i++) {
            all[i] = numbered_product(device, (product_types){TT_F32, TT_F32}, i);
            list[i] = all[i].product;
        }
        device->ops->multiply_group(device, NULL, 0);
        device->ops->multiply_group(device, list, PRODUCTS);
        for (int i = 0; i < PRODUCTS; i++) {
            check_and_free_product(&all[i]);
        }
        tt_device_destroy(&device);
    }
}

/* --- copies ---------------------------------------------------------------------------------- */

enum { COPIES = 2 * OPS_TEST_SHAPES };

static void check_copies(tt_device *device, tt_type from, tt_type to)
{
    ops_test_matrix sources[COPIES], targets[COPIES];
    double *expected[COPIES];
    tt_copy list[COPIES];
    for (int i = 0; i < COPIES; i++) {
        ops_test_shape shape = ops_test_shapes[i / 2];
        int64_t count = shape.rows * shape.columns;
        bool accumulate = i % 2 == 1;
        sources[i] = ops_test_make_random(device, from, shape.rows, shape.columns, shape.gap, 1.0,
                                          2 * (uint64_t)i);
        targets[i] = ops_test_make_random(device, to, shape.rows, shape.columns,
                                          shape.gap / 2 + i % 2, 1.0, 2 * (uint64_t)i + 1);
        double *source = ops_test_read(&sources[i]);
        expected[i] = ops_test_read(&targets[i]);
        for (int64_t j = 0; j < count; j++) {
            double sum = accumulate ? (float)(expected[i][j] + source[j]) : source[j];
            expected[i][j] = test_rounded(to, sum);
        }
        free(source);
        list[i] = (tt_copy){sources[i].view, targets[i].view, accumulate};
    }
    device->ops->copy_group(device, NULL, 0);
    device->ops->copy_group(device, list, COPIES);
    for (int i = 0; i < COPIES; i++) {
        ops_test_expect_equal("copy", &targets[i], expected[i]);
        free(expected[i]);
        ops_test_free(&sources[i]);
        ops_test_free(&targets[i]);
    }
}

static void test_copy_group(void **state)
{
    (void)state;
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        tt_device *device = test_device(threads);
        check_copies(device, TT_F32, TT_F32);
        if (device->compute != TT_F32) {
            check_copies(device, device->compute, device->compute);
            check_copies(device, device->compute, TT_F32);
            check_copies(device, TT_F32, device->compute);
        }
        tt_device_destroy(&device);
    }
}

/* --- scaled cores ---------------------------------------------------------------------------- */

static const float threshold = 1e-2f;

typedef struct {
    ops_test_matrix core, diagonal, scaled, scaled_gradient, core_gradient, diagonal_gradient;
    tt_scaled_core operation;
} core_case;

/* Around the threshold, on it, and far from it on both sides; the rest is random. */
static double diagonal_entry(int64_t j, tt_random *random)
{
    const float special[] = {threshold,
                             nextafterf(threshold, 1.0f),
                             nextafterf(threshold, 0.0f),
                             0.0f,
                             -0.0f,
                             -threshold,
                             -1.0f,
                             1.0f};
    int64_t count = sizeof special / sizeof special[0];
    return j < count ? special[j] : tt_random_normal(random);
}

static core_case make_core(tt_device *device, int64_t rows, int64_t rank, uint64_t seed)
{
    double *diagonal = test_host((size_t)rank * sizeof *diagonal);
    tt_random random;
    tt_random_start(&random, seed, 9);
    for (int64_t j = 0; j < rank; j++) {
        diagonal[j] = diagonal_entry(j, &random);
    }
    core_case made = {.core = ops_test_random_f32(device, rows, rank, 0, 1.0, seed),
                      .diagonal = ops_test_from_f32(device, 1, rank, 0, diagonal),
                      .scaled = ops_test_fill_f32(device, rows, rank, 0, NAN),
                      .scaled_gradient = ops_test_random_f32(device, rows, rank, 0, 1.0, seed + 1),
                      .core_gradient = ops_test_random_f32(device, rows, rank, 0, 1.0, seed + 2),
                      .diagonal_gradient = ops_test_random_f32(device, 1, rank, 0, 1.0, seed + 3)};
    made.operation = (tt_scaled_core){.core = ops_test_data(&made.core),
                                      .diagonal = ops_test_data(&made.diagonal),
                                      .scaled = ops_test_data(&made.scaled),
                                      .scaled_gradient = ops_test_data(&made.scaled_gradient),
                                      .core_gradient = ops_test_data(&made.core_gradient),
                                      .diagonal_gradient = ops_test_data(&made.diagonal_gradient),
                                      .rows = rows,
                                      .rank = rank,
                                      .threshold = threshold};
    free(diagonal);
    return made;
}

static void free_core(core_case *made)
{
    ops_test_free(&made->core);
    ops_test_free(&made->diagonal);
    ops_test_free(&made->scaled);
    ops_test_free(&made->scaled_gradient);
    ops_test_free(&made->core_gradient);
    ops_test_free(&made->diagonal_gradient);
}

static const int64_t core_shapes[][2] = {{1, 1},    {12, 9},   {1, 40},   {33, 17},  {360, 30},
                                         {5, 8},    {240, 30}, {7, 64},   {64, 7},   {2, 12},
                                         {900, 31}, {31, 900}, {128, 96}, {300, 11}, {11, 300}};
enum { CORES = sizeof core_shapes / sizeof core_shapes[0] };

static double kept(double value)
{
    return value > (double)threshold ? value : 0.0;
}

static void check_scaled(const core_case *made)
{
    double *core = ops_test_read(&made->core), *diagonal = ops_test_read(&made->diagonal);
    double *scaled = ops_test_read(&made->scaled);
    int64_t rank = made->operation.rank;
    for (int64_t i = 0; i < made->operation.rows * rank; i++) {
        core[i] = (float)(core[i] * kept(diagonal[i % rank]));
    }
    ops_test_equal("scaled core", scaled, core, made->operation.rows * rank);
    free(core);
    free(diagonal);
    free(scaled);
}

static void check_scaled_backward(core_case *made, double *core_before, double *diagonal_before)
{
    double *core = ops_test_read(&made->core), *diagonal = ops_test_read(&made->diagonal);
    double *gradient = ops_test_read(&made->scaled_gradient);
    double *diagonal_after = ops_test_read(&made->diagonal_gradient);
    int64_t rank = made->operation.rank;
    double *expected = test_host((size_t)rank * sizeof *expected);
    memcpy(expected, diagonal_before, (size_t)rank * sizeof *expected);
    for (int64_t i = 0; i < made->operation.rows * rank; i++) {
        double scale = kept(diagonal[i % rank]);
        core_before[i] += gradient[i] * scale;
        expected[i % rank] += scale > 0.0 ? gradient[i] * core[i] : 0.0;
    }
    for (int64_t j = 0; j < rank; j++) {
        if (kept(diagonal[j]) == 0.0) {
            assert_true(diagonal_after[j] == diagonal_before[j]);
        }
    }
    ops_test_expect("core gradient", &made->core_gradient, core_before);
    ops_test_expect("diagonal gradient", &made->diagonal_gradient, expected);
    free(core);
    free(diagonal);
    free(gradient);
    free(diagonal_after);
    free(expected);
    free(core_before);
    free(diagonal_before);
}

static void check_cores(tt_device *device)
{
    core_case all[CORES];
    tt_scaled_core list[CORES];
    double *core_before[CORES], *diagonal_before[CORES];
    for (int i = 0; i < CORES; i++) {
        all[i] = make_core(device, core_shapes[i][0], core_shapes[i][1], 10 * (uint64_t)i);
        list[i] = all[i].operation;
        core_before[i] = ops_test_read(&all[i].core_gradient);
        diagonal_before[i] = ops_test_read(&all[i].diagonal_gradient);
    }
    device->ops->scale_cores(device, NULL, 0);
    device->ops->scale_cores_backward(device, NULL, 0);
    device->ops->scale_cores(device, list, CORES);
    device->ops->scale_cores_backward(device, list, CORES);
    for (int i = 0; i < CORES; i++) {
        check_scaled(&all[i]);
        check_scaled_backward(&all[i], core_before[i], diagonal_before[i]);
        free_core(&all[i]);
    }
}

static void test_scale_cores(void **state)
{
    (void)state;
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        tt_device *device = test_device(threads);
        check_cores(device);
        tt_device_destroy(&device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_multiply),       cmocka_unit_test(test_multiply_nothing),
        cmocka_unit_test(test_multiply_group), cmocka_unit_test(test_copy_group),
        cmocka_unit_test(test_scale_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Matrices made into tensor trains: exact where ranks allow, the singular values' tail where not.
 */
#include "core/tensor_train_svd.h"

#include "core/linear.h"
#include "support/test_device.h"

#include <math.h>
#include <stdlib.h>

static double *random_matrix(int64_t rows, int64_t columns, uint32_t seed)
{
    double *matrix = malloc((size_t)(rows * columns) * sizeof *matrix);
    assert_non_null(matrix);
    for (int64_t i = 0; i < rows * columns; i++) {
        seed = seed * 1664525U + 1013904223U;
        matrix[i] = (double)(seed >> 8) / (double)(1 << 24) - 0.5;
    }
    return matrix;
}

/* [inputs, outputs] of rank `rank`. */
static double *low_rank_matrix(int64_t inputs, int64_t outputs, int64_t rank)
{
    double *left = random_matrix(inputs, rank, 1), *right = random_matrix(rank, outputs, 2);
    double *matrix = calloc((size_t)(inputs * outputs), sizeof *matrix);
    assert_non_null(matrix);
    for (int64_t i = 0; i < inputs; i++) {
        for (int64_t k = 0; k < rank; k++) {
            for (int64_t j = 0; j < outputs; j++) {
                matrix[i * outputs + j] += left[i * rank + k] * right[k * outputs + j];
            }
        }
    }
    free(left);
    free(right);
    return matrix;
}

/* Entry (i_1...i_m) of the train, by the product of slices. */
static double entry(const tt_train_shape *shape, double *const *cores, int64_t flat)
{
    double row[256] = {1.0}, next[256];
    int64_t below = tt_train_inputs(shape) * tt_train_outputs(shape);
    for (int k = 0; k < shape->order; k++) {
        below /= shape->modes[k];
        int64_t index = flat / below % shape->modes[k], rank = shape->ranks[k + 1];
        assert_true(rank <= 256);
        for (int64_t j = 0; j < rank; j++) {
            next[j] = 0.0;
            for (int64_t i = 0; i < shape->ranks[k]; i++) {
                next[j] += row[i] * cores[k][(i * shape->modes[k] + index) * rank + j];
            }
        }
        memcpy(row, next, (size_t)rank * sizeof *row);
    }
    return row[0];
}

static double distance(const tt_train_shape *shape, double *const *cores, const double *matrix)
{
    int64_t count = tt_train_inputs(shape) * tt_train_outputs(shape);
    double squares = 0.0, norm = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double difference = entry(shape, cores, i) - matrix[i];
        squares += difference * difference;
        norm += matrix[i] * matrix[i];
    }
    return sqrt(squares / norm);
}

static tt_train_shape shape_of(int64_t inputs, int64_t outputs, int order, int64_t rank)
{
    tt_train_shape shape;
    tt_error error = {0};
    if (tt_train_shape_choose(inputs, outputs, order, order, rank, &shape, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
    return shape;
}

static void check_fit(int64_t inputs, int64_t outputs, int order, int64_t rank,
                      const double *matrix, double tolerance)
{
    tt_train_shape shape = shape_of(inputs, outputs, order, rank), fitted;
    double *cores[TT_MAX_ORDER], error_said;
    tt_error error = {0};
    assert_int_equal(tt_train_from_matrix(&shape, matrix, &fitted, cores, &error_said, &error),
                     TT_OK);
    assert_int_equal(tt_train_shape_check(&fitted, inputs, outputs, "fitted", &error), TT_OK);
    double measured = distance(&fitted, cores, matrix);
    if (measured > tolerance || fabs(measured - error_said) > 1e-6 + 0.5 * measured) {
        fail_msg("%lld x %lld, order %d, rank %lld: error %g, said %g", (long long)inputs,
                 (long long)outputs, order, (long long)rank, measured, error_said);
    }
    for (int k = 0; k < shape.order; k++) {
        free(cores[k]);
    }
}

static void test_full_ranks_hold_any_matrix(void **state)
{
    (void)state;
    for (int order = 1; order <= 3; order++) {
        double *matrix = random_matrix(24, 36, 7);
        check_fit(24, 36, order, 10000, matrix, 1e-12);
        free(matrix);
    }
}

static void test_a_matrix_of_low_rank_needs_no_more(void **state)
{
    (void)state;
    double *matrix = low_rank_matrix(32, 24, 3);
    tt_train_shape shape = shape_of(32, 24, 2, 10000), fitted;
    double *cores[TT_MAX_ORDER], relative_error;
    tt_error error = {0};
    assert_int_equal(tt_train_from_matrix(&shape, matrix, &fitted, cores, &relative_error, &error),
                     TT_OK);
    assert_int_equal(fitted.ranks[shape.input_order], 3);
    assert_true(distance(&fitted, cores, matrix) < 1e-12);
    for (int k = 0; k < shape.order; k++) {
        free(cores[k]);
    }
    free(matrix);
}

/* Singular values 3, 2, 1: with rank 2 the last is lost, with rank 1 the last two. */
static void test_what_is_cut_is_the_tail(void **state)
{
    (void)state;
    const double matrix[9] = {0, 3, 0, 2, 0, 0, 0, 0, 1};
    for (int64_t rank = 1; rank <= 3; rank++) {
        tt_train_shape shape = {
            .order = 2, .input_order = 1, .modes = {3, 3}, .ranks = {1, rank, 1}};
        tt_train_shape fitted;
        double *cores[TT_MAX_ORDER], relative_error;
        tt_error error = {0};
        assert_int_equal(
            tt_train_from_matrix(&shape, matrix, &fitted, cores, &relative_error, &error), TT_OK);
        double tail = rank == 1 ? 5.0 : rank == 2 ? 1.0 : 0.0;
        assert_true(fabs(relative_error - sqrt(tail / 14.0)) < 1e-9);
        assert_true(fabs(distance(&fitted, cores, matrix) - relative_error) < 1e-9);
        free(cores[0]);
        free(cores[1]);
    }
}

static void test_zero_and_nothing_to_cut(void **state)
{
    (void)state;
    double zeros[16 * 16] = {0};
    tt_train_shape shape = shape_of(16, 16, 2, 4), fitted;
    double *cores[TT_MAX_ORDER], relative_error;
    tt_error error = {0};
    assert_int_equal(tt_train_from_matrix(&shape, zeros, &fitted, cores, &relative_error, &error),
                     TT_OK);
    assert_true(relative_error == 0.0);
    for (int i = 0; i < 16 * 16; i++) {
        assert_true(entry(&fitted, cores, i) == 0.0);
    }
    for (int k = 0; k < shape.order; k++) {
        free(cores[k]);
    }
}

/* The map of `linear` as [inputs, outputs], from its products with unit vectors. */
static double *map_of(tt_linear *linear, tt_device *device)
{
    int64_t inputs = linear->inputs, outputs = linear->outputs;
    float *x = device->allocate(device, tt_floats(inputs * inputs));
    float *y = device->allocate(device, tt_floats(inputs * outputs));
    float *u = device->allocate(device, tt_floats(inputs * 256));
    float *units = calloc((size_t)(inputs * inputs), sizeof *units);
    assert_non_null(units);
    for (int64_t i = 0; i < inputs; i++) {
        units[i * inputs + i] = 1.0f;
    }
    device->copy_in(device, x, units, tt_floats(inputs * inputs));
    tt_linear_forward(linear, tt_matrix_f32(x, inputs, inputs),
                      tt_matrix_f32(u, inputs, linear->rank), tt_matrix_f32(y, inputs, outputs));
    double *map = test_read_matrix(device, tt_matrix_f32(y, inputs, outputs));
    device->release(device, x);
    device->release(device, y);
    device->release(device, u);
    free(units);
    return map;
}

/* `drawn` is 0 or 1: what the map holds beside the matrix. */
static void check_around(tt_form form, float drawn)
{
    tt_device *device = test_device(1);
    tt_parameters parameters;
    tt_train_set trains;
    tt_parameters_init(&parameters, device);
    tt_train_set_init(&trains, &parameters, 0.01f);
    tt_linear linear;
    tt_linear_form asked = {.form = form, .shape = shape_of(32, 24, 2, 8)};
    tt_error error = {0};
    assert_int_equal(
        tt_linear_add(&linear, "map", 32, 24, &asked, NULL, &parameters, &trains, &error), TT_OK);
    assert_int_equal(tt_parameters_allocate(&parameters, false, &error), TT_OK);
    assert_int_equal(tt_train_set_plan(&trains, &error), TT_OK);
    /* All ranks 1, so that the train has slices left. */
    double matrix[32 * 24];
    for (int i = 0; i < 32 * 24; i++) {
        matrix[i] = 0.7;
    }
    tt_linear_initialize(&linear, drawn, 5);
    if (tt_linear_initialize_around(&linear, matrix, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
    tt_parameters_round(&parameters);
    tt_train_set_materialise(&trains);
    double *map = map_of(&linear, device), squares = 0.0;
    for (int i = 0; i < 32 * 24; i++) {
        squares += (map[i] - matrix[i]) * (map[i] - matrix[i]);
    }
    double deviation = sqrt(squares / (32 * 24));
    if (drawn == 0.0f ? deviation > 1e-6 : deviation < 0.2 || deviation > 1.5) {
        fail_msg("form %d, drawn with deviation %g: what is beside the matrix has %g", (int)form,
                 (double)drawn, deviation);
    }
    free(map);
    tt_train_set_free(&trains);
    tt_parameters_free(&parameters);
    tt_device_destroy(&device);
}

static void test_a_map_is_drawn_around_a_matrix(void **state)
{
    (void)state;
    check_around(TT_DENSE, 0.0f);
    check_around(TT_DENSE, 1.0f);
    check_around(TT_TENSOR_TRAIN, 0.0f);
    check_around(TT_TENSOR_TRAIN, 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_ranks_hold_any_matrix),
        cmocka_unit_test(test_a_matrix_of_low_rank_needs_no_more),
        cmocka_unit_test(test_what_is_cut_is_the_tail),
        cmocka_unit_test(test_zero_and_nothing_to_cut),
        cmocka_unit_test(test_a_map_is_drawn_around_a_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What the tests of a device's operations share: matrices on the device with sentinels around them
 * and between their rows, double-precision copies of them, and comparison. The tests know no device
 * but the one that test_device makes, and reach its memory by copies alone.
 *
 * Activations have the device's compute type; what is f32 on every device (parameters, their
 * gradients, statistics, scratch memory) is made by the functions whose names end in _f32. An
 * operand's double-precision copy is read back from the device, so it is rounded as the operand is.
 */
#ifndef TT_TESTS_OPS_OPS_TEST_H
#define TT_TESTS_OPS_OPS_TEST_H

#include "support/test_device.h"

#include <math.h>

enum { OPS_TEST_GUARD = 64 /* elements before and after */ };

/* A number that no operation computes: what it changes was written out of bounds. */
#define OPS_TEST_SENTINEL (-8.6093e30)

typedef struct {
    tt_device *device;
    void *memory; /* on the device, guards included */
    tt_matrix view;
} ops_test_matrix;

static inline int64_t ops_test_elements(const ops_test_matrix *matrix)
{
    return matrix->view.rows * matrix->view.stride + 2 * OPS_TEST_GUARD;
}

/* Rows of `values` [rows, columns]; `gap` sentinels lie between two rows. */
static inline ops_test_matrix ops_test_make(tt_device *device, tt_type type, int64_t rows,
                                            int64_t columns, int64_t gap, const double *values)
{
    ops_test_matrix matrix = {.device = device, .view = {NULL, rows, columns, columns + gap, type}};
    int64_t elements = ops_test_elements(&matrix);
    size_t bytes = (size_t)elements * tt_type_size(type);
    void *host = test_host(bytes);
    for (int64_t i = 0; i < elements; i++) {
        test_store(host, type, i, OPS_TEST_SENTINEL);
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            test_store(host, type, OPS_TEST_GUARD + i * (columns + gap) + j,
                       values[i * columns + j]);
        }
    }
    matrix.memory = test_copy_in(device, host, bytes);
    matrix.view.data = (char *)matrix.memory + OPS_TEST_GUARD * tt_type_size(type);
    free(host);
    return matrix;
}

static inline ops_test_matrix ops_test_make_equal(tt_device *device, tt_type type, int64_t rows,
                                                  int64_t columns, int64_t gap, double value)
{
    double *values = test_host((size_t)(rows * columns) * sizeof *values);
    for (int64_t i = 0; i < rows * columns; i++) {
        values[i] = value;
    }
    ops_test_matrix matrix = ops_test_make(device, type, rows, columns, gap, values);
    free(values);
    return matrix;
}

/* Normally distributed, from a stream of its own for each seed. */
static inline ops_test_matrix ops_test_make_random(tt_device *device, tt_type type, int64_t rows,
                                                   int64_t columns, int64_t gap, double deviation,
                                                   uint64_t seed)
{
    double *values = test_host((size_t)(rows * columns) * sizeof *values);
    tt_random random;
    tt_random_start(&random, seed, 1);
    for (int64_t i = 0; i < rows * columns; i++) {
        values[i] = deviation * tt_random_normal(&random);
    }
    ops_test_matrix matrix = ops_test_make(device, type, rows, columns, gap, values);
    free(values);
    return matrix;
}

static inline ops_test_matrix ops_test_from(tt_device *device, int64_t rows, int64_t columns,
                                            int64_t gap, const double *values)
{
    return ops_test_make(device, device->compute, rows, columns, gap, values);
}

static inline ops_test_matrix ops_test_from_f32(tt_device *device, int64_t rows, int64_t columns,
                                                int64_t gap, const double *values)
{
    return ops_test_make(device, TT_F32, rows, columns, gap, values);
}

static inline ops_test_matrix ops_test_fill(tt_device *device, int64_t rows, int64_t columns,
                                            int64_t gap, double value)
{
    return ops_test_make_equal(device, device->compute, rows, columns, gap, value);
}

static inline ops_test_matrix ops_test_fill_f32(tt_device *device, int64_t rows, int64_t columns,
                                                int64_t gap, double value)
{
    return ops_test_make_equal(device, TT_F32, rows, columns, gap, value);
}

static inline ops_test_matrix ops_test_random(tt_device *device, int64_t rows, int64_t columns,
                                              int64_t gap, double deviation, uint64_t seed)
{
    return ops_test_make_random(device, device->compute, rows, columns, gap, deviation, seed);
}

static inline ops_test_matrix ops_test_random_f32(tt_device *device, int64_t rows, int64_t columns,
                                                  int64_t gap, double deviation, uint64_t seed)
{
    return ops_test_make_random(device, TT_F32, rows, columns, gap, deviation, seed);
}

/* Scratch memory of `bytes`, full of what must not be read. */
static inline ops_test_matrix ops_test_workspace(tt_device *device, size_t bytes)
{
    assert_true(bytes % sizeof(float) == 0);
    return ops_test_fill_f32(device, 1, (int64_t)(bytes / sizeof(float)), 0, NAN);
}

/* The rows in double precision, to be freed; fails where a sentinel has changed. */
static inline double *ops_test_read(const ops_test_matrix *matrix)
{
    const tt_matrix view = matrix->view;
    int64_t elements = ops_test_elements(matrix);
    const double sentinel = test_rounded(view.type, OPS_TEST_SENTINEL);
    void *host =
        test_copy_out(matrix->device, matrix->memory, (size_t)elements * tt_type_size(view.type));
    double *values = test_host((size_t)(view.rows * view.columns) * sizeof *values);
    for (int64_t i = 0; i < elements; i++) {
        int64_t place = i - OPS_TEST_GUARD;
        double value = test_load(host, view.type, i);
        if (place >= 0 && place < view.rows * view.stride && place % view.stride < view.columns) {
            values[place / view.stride * view.columns + place % view.stride] = value;
        } else if (value != sentinel) {
            fail_msg("written out of bounds: %lld elements from the start of [%lld, %lld] with "
                     "stride %lld",
                     (long long)place, (long long)view.rows, (long long)view.columns,
                     (long long)view.stride);
        }
    }
    free(host);
    return values;
}

static inline void ops_test_free(ops_test_matrix *matrix)
{
    matrix->device->release(matrix->device, matrix->memory);
    matrix->memory = NULL;
}

/* The address that operations take for what is f32 on every device. */
static inline float *ops_test_data(const ops_test_matrix *matrix)
{
    assert_int_equal(matrix->view.type, TT_F32);
    return matrix->view.data;
}

/* Relative Frobenius distance, which `tolerance` bounds. Returns it. */
static inline double ops_test_close(const char *what, const double *actual, const double *expected,
                                    int64_t count, double tolerance)
{
    double difference = 0.0, size = 0.0;
    for (int64_t i = 0; i < count; i++) {
        difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    double distance = size > 0.0 ? sqrt(difference / size) : sqrt(difference);
    if (!(distance <= tolerance)) {
        fail_msg("%s: relative distance %.3g above %.3g (%lld numbers)", what, distance, tolerance,
                 (long long)count);
    }
    return distance;
}

/* What a device matrix holds now, within what the device's precision allows. */
static inline void ops_test_expect(const char *what, const ops_test_matrix *actual,
                                   const double *expected)
{
    double *values = ops_test_read(actual);
    ops_test_close(what, values, expected, actual->view.rows * actual->view.columns,
                   test_device_tolerance());
    free(values);
}

/* The same for what is right but for a rounding or two to the matrix's type. */
static inline void ops_test_expect_rounded(const char *what, const ops_test_matrix *actual,
                                           const double *expected)
{
    double *values = ops_test_read(actual);
    ops_test_close(what, values, expected, actual->view.rows * actual->view.columns,
                   actual->view.type == TT_BF16 ? 4e-3 : 2e-7);
    free(values);
}

static inline void ops_test_equal(const char *what, const double *actual, const double *expected,
                                  int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (actual[i] != expected[i]) {
            fail_msg("%s: entry %lld: expected %.9g, found %.9g", what, (long long)i, expected[i],
                     actual[i]);
        }
    }
}

/* Every entry as expected, to the bit. */
static inline void ops_test_expect_equal(const char *what, const ops_test_matrix *actual,
                                         const double *expected)
{
    double *values = ops_test_read(actual);
    ops_test_equal(what, values, expected, actual->view.rows * actual->view.columns);
    free(values);
}

/* A function of many numbers whose gradient is tested. */
typedef double (*ops_test_function)(const void *context, const double *x);

/* Gradient by central differences, one entry after the other. */
static inline void ops_test_differences(ops_test_function function, const void *context, double *x,
                                        int64_t count, double *gradient)
{
    const double step = 1e-5;
    for (int64_t i = 0; i < count; i++) {
        double kept = x[i];
        x[i] = kept + step;
        double above = function(context, x);
        x[i] = kept - step;
        double below = function(context, x);
        x[i] = kept;
        gradient[i] = (above - below) / (2.0 * step);
    }
}

/* Shapes that operations on rows are put through: odd ones, one that needs several threads, and
 * one that is wider than a thread's scratch memory. */
typedef struct {
    int64_t rows, columns, gap;
} ops_test_shape;

static const ops_test_shape ops_test_shapes[] = {
    {1, 1, 0},    {7, 1, 2},     {1, 7, 0},     {5, 33, 3},
    {33, 768, 0}, {131, 515, 5}, {64, 1024, 0}, {3, 70001, 1},
};
enum { OPS_TEST_SHAPES = sizeof ops_test_shapes / sizeof ops_test_shapes[0] };

/* Calls `check` with a device of 1, 2, ... threads and every shape not wider than `widest`. */
static inline void ops_test_all_shapes(void (*check)(tt_device *device, ops_test_shape shape),
                                       int64_t widest)
{
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        tt_device *device = test_device(threads);
        for (int i = 0; i < OPS_TEST_SHAPES; i++) {
            if (ops_test_shapes[i].columns <= widest) {
                check(device, ops_test_shapes[i]);
            }
        }
        tt_device_destroy(&device);
    }
}

/* The 16-bit number that core/random.h defines for an element of a dropout site, and from it the
 * element's multiplier. */
static inline double ops_test_multiplier(const tt_dropout *dropout, uint32_t step, int64_t row,
                                         int64_t column)
{
    if (dropout->probability == 0.0f) {
        return 1.0;
    }
    tt_random_block block =
        tt_random_philox(dropout->seed, (uint32_t)(column / 8), dropout->first_row + (uint32_t)row,
                         dropout->site, step);
    uint32_t word = block.word[column % 8 / 2];
    uint32_t number = column % 2 == 0 ? word & 0xFFFFu : word >> 16;
    uint32_t threshold = (uint32_t)floor((double)dropout->probability * 65536.0 + 0.5);
    return number >= threshold ? (double)(65536.0f / (float)(65536 - threshold)) : 0.0;
}

#endif

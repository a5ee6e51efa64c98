/* What the tests of a device's operations share: matrices on the device with sentinels around them
 * and between their rows, double-precision copies of them, and comparison. The tests know no device
 * but the one that ops_test_device makes. */
#ifndef TT_TESTS_OPS_OPS_TEST_H
#define TT_TESTS_OPS_OPS_TEST_H

#include "core/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { OPS_TEST_GUARD = 64 /* floats before and after */, OPS_TEST_THREADS = 3 };

/* A number that no operation computes: what it changes was written out of bounds. */
#define OPS_TEST_SENTINEL (-8.6093e30f)

static inline tt_device *ops_test_device(int threads)
{
    tt_device *device = NULL;
    tt_error error = {0};
    if (tt_device_create_cpu(threads, &device, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
    return device;
}

typedef struct {
    tt_device *device;
    float *memory; /* on the device, guards included */
    tt_matrix view;
} ops_test_matrix;

static inline size_t ops_test_floats(const ops_test_matrix *matrix)
{
    return (size_t)(matrix->view.rows * matrix->view.stride) + 2 * (size_t)OPS_TEST_GUARD;
}

static inline void *ops_test_host(size_t bytes)
{
    void *memory = calloc(1, bytes > 0 ? bytes : 1);
    assert_non_null(memory);
    return memory;
}

static inline void *ops_test_copy(tt_device *device, const void *host, size_t bytes)
{
    void *memory = device->allocate(device, bytes);
    assert_non_null(memory);
    device->copy_in(device, memory, host, bytes);
    return memory;
}

/* Rows of `values` [rows, columns]; `gap` sentinels lie between two rows. */
static inline ops_test_matrix ops_test_from(tt_device *device, int64_t rows, int64_t columns,
                                            int64_t gap, const double *values)
{
    ops_test_matrix matrix = {.device = device,
                              .view = {NULL, rows, columns, columns + gap, TT_F32}};
    size_t floats = ops_test_floats(&matrix);
    float *host = ops_test_host(floats * sizeof *host);
    for (size_t i = 0; i < floats; i++) {
        host[i] = OPS_TEST_SENTINEL;
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            host[OPS_TEST_GUARD + i * (columns + gap) + j] = (float)values[i * columns + j];
        }
    }
    matrix.memory = ops_test_copy(device, host, floats * sizeof *host);
    matrix.view.data = matrix.memory + OPS_TEST_GUARD;
    free(host);
    return matrix;
}

static inline ops_test_matrix ops_test_fill(tt_device *device, int64_t rows, int64_t columns,
                                            int64_t gap, double value)
{
    double *values = ops_test_host((size_t)(rows * columns) * sizeof *values);
    for (int64_t i = 0; i < rows * columns; i++) {
        values[i] = value;
    }
    ops_test_matrix matrix = ops_test_from(device, rows, columns, gap, values);
    free(values);
    return matrix;
}

/* Normally distributed, from a stream of its own for each seed. */
static inline ops_test_matrix ops_test_random(tt_device *device, int64_t rows, int64_t columns,
                                              int64_t gap, double deviation, uint64_t seed)
{
    double *values = ops_test_host((size_t)(rows * columns) * sizeof *values);
    tt_random random;
    tt_random_start(&random, seed, 1);
    for (int64_t i = 0; i < rows * columns; i++) {
        values[i] = deviation * tt_random_normal(&random);
    }
    ops_test_matrix matrix = ops_test_from(device, rows, columns, gap, values);
    free(values);
    return matrix;
}

/* The rows in double precision, to be freed; fails where a sentinel has changed. */
static inline double *ops_test_read(const ops_test_matrix *matrix)
{
    tt_device *device = matrix->device;
    int64_t rows = matrix->view.rows, columns = matrix->view.columns, stride = matrix->view.stride;
    size_t floats = ops_test_floats(matrix);
    float *host = ops_test_host(floats * sizeof *host);
    double *values = ops_test_host((size_t)(rows * columns) * sizeof *values);
    device->synchronize(device);
    device->copy_out(device, host, matrix->memory, floats * sizeof *host);
    for (size_t i = 0; i < floats; i++) {
        int64_t place = (int64_t)i - OPS_TEST_GUARD;
        if (place >= 0 && place < rows * stride && place % stride < columns) {
            values[place / stride * columns + place % stride] = host[i];
        } else if (host[i] != OPS_TEST_SENTINEL) {
            fail_msg("written out of bounds: %lld floats from the start of [%lld, %lld] with "
                     "stride %lld",
                     (long long)place, (long long)rows, (long long)columns, (long long)stride);
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

static inline float *ops_test_data(const ops_test_matrix *matrix)
{
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

/* ops_test_close on what a device matrix holds now. */
static inline void ops_test_expect(const char *what, const ops_test_matrix *actual,
                                   const double *expected, double tolerance)
{
    double *values = ops_test_read(actual);
    ops_test_close(what, values, expected, actual->view.rows * actual->view.columns, tolerance);
    free(values);
}

static inline void ops_test_expect_equal(const char *what, const double *actual,
                                         const double *expected, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (actual[i] != expected[i]) {
            fail_msg("%s: entry %lld: expected %.9g, found %.9g", what, (long long)i, expected[i],
                     actual[i]);
        }
    }
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
    for (int threads = 1; threads <= OPS_TEST_THREADS; threads++) {
        tt_device *device = ops_test_device(threads);
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

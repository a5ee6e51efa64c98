/* The device that the tests of operations, layers and models run on, how exact its results are, and
 * numbers of its types. A build for the CPU alone has the CPU device; any other has the CUDA device
 * (a GPU, or the simulator of one), and the CPU's where TTRAIN_TEST_DEVICE=cpu asks for it.
 * TTRAIN_TEST_PRECISION is f32 (the default), tf32 or bf16; the CPU device has f32 alone. */
#ifndef TT_TESTS_SUPPORT_TEST_DEVICE_H
#define TT_TESTS_SUPPORT_TEST_DEVICE_H

#include "core/ops.h"
#ifdef TTRAIN_CUDA
#include "core/cuda/cuda.h"
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What CTest takes for skipped. */
enum { TEST_DEVICE_SKIPPED = 77 };

typedef enum { TEST_F32, TEST_TF32, TEST_BF16 } test_precision;

static inline bool test_device_is_cuda(void)
{
#ifdef TTRAIN_CUDA
    const char *asked = getenv("TTRAIN_TEST_DEVICE");
    return asked == NULL || strcmp(asked, "cpu") != 0;
#else
    return false;
#endif
}

/* Whether a kernel's threads are fibers of one thread of the CPU, for which large shapes are slow.
 */
static inline bool test_device_is_simulated(void)
{
#ifdef TTRAIN_SIMULATOR
    return test_device_is_cuda();
#else
    return false;
#endif
}

static inline test_precision test_device_precision(void)
{
    static const char *const names[] = {"f32", "tf32", "bf16"};
    const char *asked = getenv("TTRAIN_TEST_PRECISION");
    for (int i = 0; asked != NULL && i < 3; i++) {
        if (strcmp(asked, names[i]) == 0) {
            return (test_precision)i;
        }
    }
    return TEST_F32;
}

/* Relative bound of the results of an operation on activations. */
static inline double test_device_tolerance(void)
{
    const double bounds[] = {1e-5, 2e-3, 2e-2};
    return bounds[test_device_precision()];
}

/* The same for an operation on f32 numbers alone. */
static inline double test_device_f32_tolerance(void)
{
    return test_device_precision() == TEST_TF32 ? test_device_tolerance() : 1e-5;
}

#ifdef TTRAIN_CUDA
/* Ends the program where there is no device. */
static inline tt_status test_device_create_cuda(tt_device **device, tt_error *error)
{
    tt_error reason = {0};
    if (tt_cuda_device_count(&reason) == 0) {
        printf("skipped: %s\n", reason.message);
        exit(TEST_DEVICE_SKIPPED);
    }
    tt_cuda_options options = {
        .compute = test_device_precision() == TEST_BF16 ? TT_BF16 : TT_F32,
        .tf32 = test_device_precision() == TEST_TF32,
    };
    return tt_device_create_cuda(&options, device, error);
}
#endif

/* `threads` counts on the CPU alone. */
static inline tt_device *test_device(int threads)
{
    tt_device *device = NULL;
    tt_error error = {0};
    tt_status status = TT_OK;
#ifdef TTRAIN_CUDA
    if (test_device_is_cuda()) {
        status = test_device_create_cuda(&device, &error);
    }
#endif
    if (!test_device_is_cuda()) {
        if (test_device_precision() != TEST_F32) {
            fail_msg("the CPU device computes in f32");
        }
        status = tt_device_create_cpu(threads, &device, &error);
    }
    if (status != TT_OK) {
        fail_msg("%s", error.message);
    }
    return device;
}

/* Tests that sweep numbers of threads go from 1 to this. */
static inline int test_device_threads(void)
{
    return test_device_is_cuda() ? 1 : 3;
}

/* Waits for the device, and fails where one of its calls has. */
static inline void test_device_check(tt_device *device)
{
    tt_error error = {0};
    device->synchronize(device);
    if (device->check(device, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
}

static inline void *test_host(size_t bytes)
{
    void *memory = calloc(1, bytes > 0 ? bytes : 1);
    assert_non_null(memory);
    return memory;
}

/* A copy of `bytes` of host memory, in the device's. */
static inline void *test_copy_in(tt_device *device, const void *host, size_t bytes)
{
    void *memory = device->allocate(device, bytes);
    assert_non_null(memory);
    device->copy_in(device, memory, host, bytes);
    return memory;
}

/* A copy of `bytes` of device memory, to be freed. */
static inline void *test_copy_out(tt_device *device, const void *memory, size_t bytes)
{
    void *host = test_host(bytes);
    device->copy_out(device, host, memory, bytes);
    test_device_check(device);
    return host;
}

/* --- numbers of either type ------------------------------------------------------------------- */

/* The nearest bf16, ties to even; NaN stays NaN. */
static inline uint16_t test_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) {
        return (uint16_t)(bits >> 16 | 0x40);
    }
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static inline float test_from_bf16(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

static inline void test_store(void *array, tt_type type, int64_t place, double value)
{
    if (type == TT_BF16) {
        ((uint16_t *)array)[place] = test_bf16((float)value);
    } else {
        ((float *)array)[place] = (float)value;
    }
}

static inline double test_load(const void *array, tt_type type, int64_t place)
{
    return type == TT_BF16 ? (double)test_from_bf16(((const uint16_t *)array)[place])
                           : (double)((const float *)array)[place];
}

/* `value` as a number of that type. */
static inline double test_rounded(tt_type type, double value)
{
    return type == TT_BF16 ? (double)test_from_bf16(test_bf16((float)value)) : (double)(float)value;
}

/* Rows of a device matrix in double precision, next to each other; to be freed. */
static inline double *test_read_matrix(tt_device *device, tt_matrix matrix)
{
    int64_t span = matrix.rows == 0 ? 0 : (matrix.rows - 1) * matrix.stride + matrix.columns;
    void *host = test_copy_out(device, matrix.data, (size_t)span * tt_type_size(matrix.type));
    double *values = test_host((size_t)(matrix.rows * matrix.columns) * sizeof *values);
    for (int64_t i = 0; i < matrix.rows * matrix.columns; i++) {
        values[i] =
            test_load(host, matrix.type, i / matrix.columns * matrix.stride + i % matrix.columns);
    }
    free(host);
    return values;
}

/* The other way; what lies between the rows stays. */
static inline void test_write_matrix(tt_device *device, tt_matrix matrix, const double *values)
{
    size_t size = tt_type_size(matrix.type);
    int64_t span = matrix.rows == 0 ? 0 : (matrix.rows - 1) * matrix.stride + matrix.columns;
    void *host = test_copy_out(device, matrix.data, (size_t)span * size);
    for (int64_t i = 0; i < matrix.rows * matrix.columns; i++) {
        test_store(host, matrix.type, i / matrix.columns * matrix.stride + i % matrix.columns,
                   values[i]);
    }
    device->copy_in(device, matrix.data, host, (size_t)span * size);
    free(host);
}

#endif

/* What the CUDA sources share: the device's state, how a kernel is launched, and how it names
 * shared memory. Only core/cuda/ includes this. The same sources are compiled by nvcc for a GPU and
 * by the C++ compiler against tests/simulator/, where TTRAIN_SIMULATOR is defined. */
#ifndef TT_CORE_CUDA_CUDA_DEVICE_H
#define TT_CORE_CUDA_CUDA_DEVICE_H

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

extern "C" {
#include "core/cuda/cuda.h"
#include "core/ops.h"
}

/* tt_device.state of a CUDA device. */
typedef struct tt_cuda_state {
    int ordinal; /* of the device in this process */
    int multiprocessors;
    char name[32];            /* "cuda:0" */
    char hardware[256];       /* "NVIDIA H200" */
    cudaStream_t stream;      /* all operations, in order */
    cudaStream_t copy_stream; /* batches on their way up */
    cudaEvent_t cleared;      /* the newest allocation holds zeros */
    /* A slot's uploads have arrived; its target is no longer read; its downloads have arrived. */
    cudaEvent_t uploaded[TT_TRANSFER_SLOTS], used[TT_TRANSFER_SLOTS], downloaded[TT_TRANSFER_SLOTS];
    cublasHandle_t blas;
    cublasLtHandle_t blas_lt;
    bool tf32;                /* products of f32 operands may round them to TF32 */
    bool capturing;           /* between capture_begin and capture_end */
    bool failed;              /* an earlier call failed: nothing is launched any more */
    tt_error failure;         /* what the first failed call said */
    void *products_workspace; /* of cuBLAS, fixed so that a captured step may use it */
    size_t products_workspace_bytes;
    float *scratch; /* device memory for partial sums of reductions */
    size_t scratch_floats;
    struct tt_cuda_constants *constants;
    struct tt_cuda_products *products; /* algorithms chosen so far */
} tt_cuda_state;

static inline tt_cuda_state *tt_cuda(const tt_device *device)
{
    return (tt_cuda_state *)device->state;
}

/* Notes the first failure with the name of the call or kernel; later launches then do nothing, and
 * tt_device.check reports it. True when `status` is cudaSuccess. */
bool tt_cuda_good(tt_device *device, cudaError_t status, const char *what);
bool tt_cublas_good(tt_device *device, cublasStatus_t status, const char *what);

/* Notes a failure in words. */
void tt_cuda_refuse(tt_device *device, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The address of `bytes` in device memory that hold what `host` holds. Tables of operands are the
 * same at every step: they go up when first seen, in the eager step before a capture, and are found
 * by their content after that. NULL, with the failure noted, where a capture meets a new one. */
const void *tt_cuda_constant(tt_device *device, const void *host, size_t bytes);

/* Of a new device, in this order, and of one that goes; each releases what it finds, NULL too. */
bool tt_cuda_constants_create(tt_device *device);
void tt_cuda_constants_destroy(tt_device *device);
bool tt_cuda_products_create(tt_device *device);
void tt_cuda_products_destroy(tt_device *device);

/* TT_LAUNCH(device, grid, block, shared_bytes, kernel, arguments...): puts a kernel into the
 * device's stream. `kernel` is a name; an instance of a template is given one first:
 *     auto rows_kernel = softmax_rows<float, 128>;
 *     TT_LAUNCH(device, rows, 128, 0, rows_kernel, x, y);
 *
 * TT_SHARED(type, name): one object of the block in shared memory, of a fixed type, at the start of
 * the kernel. TT_SHARED_ARRAY(type, name): the dynamic shared memory of the launch, once a kernel.
 */
#ifdef TTRAIN_SIMULATOR
#define TT_LAUNCH(device, grid, block, shared_bytes, kernel, ...)                                  \
    do {                                                                                           \
        if (!tt_cuda(device)->failed) {                                                            \
            tt_cuda_good(device,                                                                   \
                         simulator_launch(#kernel, __FILE__, __LINE__, dim3(grid), dim3(block),    \
                                          shared_bytes, tt_cuda(device)->stream, kernel,           \
                                          __VA_ARGS__),                                            \
                         #kernel);                                                                 \
        }                                                                                          \
    } while (0)
#define TT_SHARED(type, name)                                                                      \
    static char name##_key;                                                                        \
    type &name = *static_cast<type *>(simulator_shared(sizeof(type), alignof(type), &name##_key))
#define TT_SHARED_ARRAY(type, name)                                                                \
    type *const name = static_cast<type *>(simulator_dynamic_shared())
#else
#define TT_LAUNCH(device, grid, block, shared_bytes, kernel, ...)                                  \
    do {                                                                                           \
        if (!tt_cuda(device)->failed) {                                                            \
            kernel<<<grid, block, shared_bytes, tt_cuda(device)->stream>>>(__VA_ARGS__);           \
            tt_cuda_good(device, cudaGetLastError(), #kernel);                                     \
        }                                                                                          \
    } while (0)
#define TT_SHARED(type, name) __shared__ type name
#define TT_SHARED_ARRAY(type, name)                                                                \
    extern __shared__ __align__(128) unsigned char tt_dynamic_shared[];                            \
    type *const name = reinterpret_cast<type *>(tt_dynamic_shared)
#endif

/* Element types of activations: float, and bf16 read and written through float. */
template <typename T> static __device__ inline float tt_load(const T *from);
template <> __device__ inline float tt_load<float>(const float *from)
{
    return *from;
}
template <> __device__ inline float tt_load<__nv_bfloat16>(const __nv_bfloat16 *from)
{
    return __bfloat162float(*from);
}
static __device__ inline void tt_store(float *to, float value)
{
    *to = value;
}
static __device__ inline void tt_store(__nv_bfloat16 *to, float value)
{
    *to = __float2bfloat16_rn(value);
}

#endif

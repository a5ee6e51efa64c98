/* Rows of activations in kernels: several neighbouring elements at a time, as f32 in registers.
 *
 * A kernel over rows is a template of the element type T and of the width W of a pack. W is 8 where
 * every row begins at a 16-byte boundary (8 bf16 are one load, 8 f32 two), and 1 otherwise, where
 * the lanes of a warp read neighbouring elements instead. */
#ifndef TT_CORE_CUDA_PACK_CUH
#define TT_CORE_CUDA_PACK_CUH

#include "core/cuda/cuda_device.h"

#include <assert.h>

template <int W> struct tt_pack {
    float value[W];
};

/* What a kernel needs of a matrix of T. */
template <typename T> struct tt_rows {
    T *data;
    int64_t stride;

    __device__ T *at(int64_t row, int64_t column) const
    {
        return data + row * stride + column;
    }
};

template <typename T> static inline tt_rows<T> tt_rows_of(tt_matrix matrix)
{
    return {static_cast<T *>(matrix.data), matrix.stride};
}

/* Eight elements as one or two vector loads or stores. */
template <typename T> struct alignas(16) tt_eight {
    T element[8];
};

/* The W elements at `from`. */
template <int W, typename T>
static __device__ __forceinline__ tt_pack<W> tt_load_pack(const T *from)
{
    tt_pack<W> pack;
    if (W == 1) {
        pack.value[0] = tt_load(from);
    } else {
        tt_eight<T> raw = *reinterpret_cast<const tt_eight<T> *>(from);
#pragma unroll
        for (int i = 0; i < W; i++) {
            pack.value[i] = tt_load(&raw.element[i]);
        }
    }
    return pack;
}

template <int W, typename T>
static __device__ __forceinline__ void tt_store_pack(T *to, const tt_pack<W> &pack)
{
    if (W == 1) {
        tt_store(to, pack.value[0]);
    } else {
        tt_eight<T> raw;
#pragma unroll
        for (int i = 0; i < W; i++) {
            tt_store(&raw.element[i], pack.value[i]);
        }
        *reinterpret_cast<tt_eight<T> *>(to) = raw;
    }
}

/* The same at the end of a row, where only `left` elements are in it, if that is fewer than W; the
 * others are 0, and are not stored. */
template <int W, typename T>
static __device__ __forceinline__ tt_pack<W> tt_load_last_pack(const T *from, int left)
{
    if (left >= W) {
        return tt_load_pack<W>(from);
    }
    tt_pack<W> pack;
#pragma unroll
    for (int i = 0; i < W; i++) {
        pack.value[i] = i < left ? tt_load(from + i) : 0.0f;
    }
    return pack;
}

template <int W, typename T>
static __device__ __forceinline__ void tt_store_last_pack(T *to, const tt_pack<W> &pack, int left)
{
    if (left >= W) {
        tt_store_pack(to, pack);
        return;
    }
#pragma unroll
    for (int i = 0; i < W; i++) {
        if (i < left) {
            tt_store(to + i, pack.value[i]);
        }
    }
}

template <int W>
static __device__ __forceinline__ void tt_add_pack(tt_pack<W> &sum, const tt_pack<W> &addend)
{
#pragma unroll
    for (int i = 0; i < W; i++) {
        sum.value[i] += addend.value[i];
    }
}

/* What a value of f32 is once stored as T. */
template <typename T> static __device__ __forceinline__ float tt_rounded(float value)
{
    T stored;
    tt_store(&stored, value);
    return tt_load(&stored);
}

/* Whether rows may be read and written in packs of 8, and are whole packs; NULL may. */
static inline bool tt_wide(tt_matrix matrix)
{
    size_t size = matrix.type == TT_BF16 ? sizeof(__nv_bfloat16) : sizeof(float);
    return matrix.data == nullptr ||
           (reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && matrix.columns % 8 == 0 &&
            static_cast<size_t>(matrix.stride) * size % 16 == 0);
}

static inline bool tt_wide(const float *row)
{
    return reinterpret_cast<uintptr_t>(row) % 16 == 0;
}

template <typename OPERAND, typename NEXT, typename... OPERANDS>
static inline bool tt_wide(OPERAND operand, NEXT next, OPERANDS... operands)
{
    return tt_wide(operand) && tt_wide(next, operands...);
}

/* Calls function<T, W>(...) for a type of activations and the width that the operands allow. */
#define TT_FOR_ACTIVATIONS(type, wide, function, ...)                                              \
    do {                                                                                           \
        if ((type) == TT_BF16) {                                                                   \
            if (wide) {                                                                            \
                function<__nv_bfloat16, 8>(__VA_ARGS__);                                           \
            } else {                                                                               \
                function<__nv_bfloat16, 1>(__VA_ARGS__);                                           \
            }                                                                                      \
        } else if (wide) {                                                                         \
            function<float, 8>(__VA_ARGS__);                                                       \
        } else {                                                                                   \
            function<float, 1>(__VA_ARGS__);                                                       \
        }                                                                                          \
    } while (0)

static __host__ __device__ inline int64_t tt_ceil_div(int64_t count, int64_t size)
{
    return (count + size - 1) / size;
}

/* A grid for elementwise kernels: thread (x, y) of the grid has pack x of rows y, y + height, ...,
 * height being the rows of the grid. Two waves of threads fill the device; each keeps what it read
 * of a bias for all its rows. */
typedef struct {
    dim3 grid, block;
} tt_row_grid;

static inline tt_row_grid tt_grid_for_rows(const tt_device *device, int64_t rows, int64_t columns,
                                           int width)
{
    enum { THREADS = 256, WAVE = 4096 /* threads a multiprocessor */ };
    assert(columns < INT32_MAX - 8192);
    int64_t packs = tt_ceil_div(columns, width);
    unsigned across = 1;
    while (across < 32 && across < packs) {
        across *= 2;
    }
    unsigned down = THREADS / across;
    int64_t strips = tt_ceil_div(packs, across);
    int64_t most = tt_ceil_div(rows, down);
    int64_t enough = tt_ceil_div(
        static_cast<int64_t>(tt_cuda(device)->multiprocessors) * WAVE / THREADS, strips);
    int64_t height = enough < most ? enough : most;
    height = height < 65535 ? height : 65535;
    return {dim3(static_cast<unsigned>(strips), static_cast<unsigned>(height)), dim3(across, down)};
}

/* This thread's place in such a grid. */
template <int W> static __device__ __forceinline__ int tt_grid_column()
{
    return static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) * W);
}

static __device__ __forceinline__ int64_t tt_grid_row()
{
    return static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
}

static __device__ __forceinline__ int64_t tt_grid_height()
{
    return static_cast<int64_t>(gridDim.y) * blockDim.y;
}

#endif

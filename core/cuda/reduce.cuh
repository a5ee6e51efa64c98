/* Sums in a fixed order: of a warp, of a block, and of the columns of a matrix through partial sums
 * in the device's scratch memory. */
#ifndef TT_CORE_CUDA_REDUCE_CUH
#define TT_CORE_CUDA_REDUCE_CUH

#include "core/cuda/pack.cuh"

/* All lanes take part, and all get the same bits: both sides of an exchange add the same two. */
template <typename NUMBER> static __device__ __forceinline__ NUMBER tt_warp_sum(NUMBER value)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
    }
    return value;
}

static __device__ __forceinline__ float tt_warp_max(float value)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
    }
    return value;
}

template <typename NUMBER, int COUNT> struct tt_warp_partials {
    NUMBER value[COUNT][32];
};

/* Replaces each value by its sum over the block, the warps added in their order. All threads of a
 * one-dimensional block of whole warps take part. */
template <typename NUMBER, int COUNT>
static __device__ __forceinline__ void tt_block_sum(NUMBER (&values)[COUNT])
{
    typedef tt_warp_partials<NUMBER, COUNT> partials_type;
    TT_SHARED(partials_type, partials);
    unsigned warp = threadIdx.x / 32, warps = blockDim.x / 32;
    __syncthreads(); /* an earlier sum may still be read */
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        NUMBER sum = tt_warp_sum(values[i]);
        if (threadIdx.x % 32 == 0) {
            partials.value[i][warp] = sum;
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        NUMBER sum = partials.value[i][0];
        for (unsigned w = 1; w < warps; w++) {
            sum += partials.value[i][w];
        }
        values[i] = sum;
    }
}

/* Column sums. A kernel runs on blocks of 32 x 8 threads; block (x, y) has a strip of 32 W columns
 * and of the rows every 8 * chunks-th, so that each thread adds up its W columns in registers.
 * tt_store_column_sums adds the eight rows of threads and writes partial sums [chunks, columns],
 * which tt_add_column_sums adds to the gradients in a second kernel. */
enum { TT_COLUMN_THREADS_DOWN = 8 };

typedef struct {
    dim3 grid, block;
    float *partials; /* [chunks, columns] in scratch memory, behind what the caller keeps there */
    int chunks;
} tt_column_plan;

/* `arrays` column sums of that width in one kernel; `kept` floats of scratch memory are in use. */
static inline tt_column_plan tt_plan_columns(const tt_device *device, int64_t rows, int64_t columns,
                                             int width, int arrays, int64_t kept)
{
    const tt_cuda_state *state = tt_cuda(device);
    assert(columns < INT32_MAX - 8192);
    int64_t strips = tt_ceil_div(columns, 32 * static_cast<int64_t>(width));
    int64_t enough = tt_ceil_div(4 * static_cast<int64_t>(state->multiprocessors), strips);
    int64_t most = tt_ceil_div(rows, TT_COLUMN_THREADS_DOWN);
    kept = tt_ceil_div(kept, 64) * 64;
    int64_t room = (static_cast<int64_t>(state->scratch_floats) - kept) / (columns * arrays);
    int64_t chunks = enough < most ? enough : most;
    chunks = chunks < room ? chunks : room;
    assert(chunks >= 1 && chunks <= 65535);
    return {dim3(static_cast<unsigned>(strips), static_cast<unsigned>(chunks)),
            dim3(32, TT_COLUMN_THREADS_DOWN), state->scratch + kept, static_cast<int>(chunks)};
}

template <int W> struct tt_column_tile {
    float sum[TT_COLUMN_THREADS_DOWN][32 * W];
};

/* All threads of the block take part. Array number `array` of `arrays`. */
template <int W>
static __device__ __forceinline__ void tt_store_column_sums(const tt_pack<W> &sums, float *partials,
                                                            int columns, int array, int arrays)
{
    TT_SHARED(tt_column_tile<W>, tile);
    __syncthreads(); /* an earlier array may still be read */
#pragma unroll
    for (int i = 0; i < W; i++) {
        tile.sum[threadIdx.y][threadIdx.x * W + i] = sums.value[i];
    }
    __syncthreads();
    int place = static_cast<int>(threadIdx.y * 32 + threadIdx.x);
    int column = static_cast<int>(blockIdx.x) * 32 * W + place;
    if (place < 32 * W && column < columns) {
        float sum = tile.sum[0][place];
#pragma unroll
        for (int y = 1; y < TT_COLUMN_THREADS_DOWN; y++) {
            sum += tile.sum[y][place];
        }
        partials[(static_cast<int64_t>(blockIdx.y) * arrays + array) * columns + column] = sum;
    }
}

/* Where the column sums of up to three arrays go; NULL where nowhere. */
typedef struct {
    float *array[3];
} tt_column_targets;

template <typename NUMBER>
__global__ void __launch_bounds__(256)
    tt_add_partials(const NUMBER *partials, int chunks, int64_t columns, tt_column_targets targets)
{
    TT_SHARED(tt_column_tile<1>, tile);
    int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
    float *target = blockIdx.y == 0   ? targets.array[0]
                    : blockIdx.y == 1 ? targets.array[1]
                                      : targets.array[2];
    if (target == nullptr) {
        return;
    }
    float sum = 0.0f;
    if (column < columns) {
        int64_t stride = columns * gridDim.y;
        const NUMBER *from = partials + blockIdx.y * columns + column;
#pragma unroll 4
        for (int chunk = static_cast<int>(threadIdx.y); chunk < chunks;
             chunk += TT_COLUMN_THREADS_DOWN) {
            sum += from[chunk * stride];
        }
    }
    tile.sum[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
#pragma unroll
        for (int y = 1; y < TT_COLUMN_THREADS_DOWN; y++) {
            sum += tile.sum[y][threadIdx.x];
        }
        target[column] += sum;
    }
}

/* targets[a] += sum over chunks of partials[chunk, a]; partials [chunks, arrays, columns]. */
static inline void tt_add_column_sums(tt_device *device, const float *partials, int chunks,
                                      int arrays, int64_t columns, tt_column_targets targets)
{
    auto add_partials = tt_add_partials<float>;
    dim3 grid(static_cast<unsigned>(tt_ceil_div(columns, 32)), static_cast<unsigned>(arrays));
    TT_LAUNCH(device, grid, dim3(32, TT_COLUMN_THREADS_DOWN), 0, add_partials, partials, chunks,
              columns, targets);
}

#endif

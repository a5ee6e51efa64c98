/* Products with a thin side, for what lies between tensor trains: activations times factors (of the
 * same type) and maps (f32), and the gradients of those, which are sums over all tokens. Sums over
 * tokens are cut into ranges whose partial sums a second kernel adds in order. */
#ifndef TT_CORE_CUDA_THIN_PRODUCT_CUH
#define TT_CORE_CUDA_THIN_PRODUCT_CUH

#include "core/cuda/tile.cuh"

/* --- pieces of kernels ----------------------------------------------------------------------- */

/* band += a b for a band of a tile, b being rows [0, depth) of an operand, which pass through
 * `room`, EDGE rows of `ld` elements. All warps take part, and all are done with `room` and have
 * written `a` before it returns to be filled. */
template <typename T, int W, typename S>
static __device__ inline void tt_multiply_rows(tt_band<T, W> &band, const T *a, int ld, T *room,
                                               const tt_operand<S> &b, int rows, int head,
                                               int columns)
{
    constexpr int EDGE = tt_tile<T>::EDGE;
    for (int k = 0; k < rows; k += EDGE) {
        int depth = tt_round_up(rows - k < EDGE ? rows - k : EDGE, TT_BAND);
        __syncthreads();
        tt_tile_load(room, ld, depth, columns, b, k, rows, 0, head);
        __syncthreads();
        tt_band_multiply<false, false>(band, a + k, ld, room, ld, depth, columns);
    }
}

/* band += a b^T, b having `rows` rows of b.width columns; room for W rows of EDGE / 2 + PAD. */
template <typename T, int W, typename S>
static __device__ inline void tt_multiply_transposed(tt_band<T, W> &band, const T *a, int lda,
                                                     T *room, const tt_operand<S> &b, int rows,
                                                     int head)
{
    constexpr int DEPTH = tt_tile<T>::EDGE / 2, LD = DEPTH + tt_tile<T>::PAD;
    int columns = tt_round_up(rows, TT_BAND);
    for (int k = 0; k < b.width; k += DEPTH) {
        int depth = tt_round_up(b.width - k < DEPTH ? b.width - k : DEPTH, TT_BAND);
        __syncthreads();
        tt_tile_load(room, LD, columns, depth, b, 0, rows, k, head);
        __syncthreads();
        tt_band_multiply<false, true>(band, a + k, lda, room, LD, depth, columns);
    }
}

/* --- sums of partial results ----------------------------------------------------------------- */

/* target = or += the sum over `count` partial results [rows, columns], in their order. */
template <typename T, bool ADD>
__global__ void __launch_bounds__(256)
    tt_sum_partials(const float *partials, int count, int64_t rows, int64_t columns, T *target,
                    int64_t row_stride, int64_t column_stride)
{
    int64_t all = rows * columns;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e < all; e += step) {
        float sum = 0.0f;
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            sum += partials[i * all + e];
        }
        T *to = target + e / columns * row_stride + e % columns * column_stride;
        tt_store(to, ADD ? tt_load(to) + sum : sum);
    }
}

template <typename T, bool ADD>
static inline void tt_add_up(tt_device *device, const float *partials, int count, int64_t rows,
                             int64_t columns, T *target, int64_t row_stride, int64_t column_stride)
{
    auto sum_partials = tt_sum_partials<T, ADD>;
    int64_t blocks = tt_ceil_div(rows * columns, 256);
    if (blocks > 0) {
        TT_LAUNCH(device, (unsigned)(blocks < 65535 ? blocks : 65535), 256, 0, sum_partials,
                  partials, count, rows, columns, target, row_stride, column_stride);
    }
}

/* --- gradients of factors -------------------------------------------------------------------- */

/* Entry (m, n) of head h of partial result z, at partials[z * all + m * row + h * head + n], is the
 * sum over the z-th range of tokens of a[token, h, m] * b[token, h, n]. */
typedef struct {
    int tokens, range; /* tokens of one partial result */
    int rows, columns;
    int64_t all, row, head;
} tt_token_product;

enum { TT_TOKEN_COLUMNS = 64 /* of a block's tile of the result */ };

template <typename T> static constexpr size_t tt_token_product_bytes(void)
{
    constexpr int EDGE = tt_tile<T>::EDGE, PAD = tt_tile<T>::PAD;
    return (size_t)(EDGE * (EDGE + PAD) + EDGE * (TT_TOKEN_COLUMNS + PAD)) * sizeof(T) +
           tt_tile<T>::WARPS * TT_SCRATCH * sizeof(float);
}

/* Blocks: x tiles of rows, y heads * tiles of columns, z ranges of tokens. */
template <typename T>
__global__ void __launch_bounds__(tt_tile<T>::THREADS, 4)
    tt_token_product_kernel(tt_token_product product, tt_operand<T> a, tt_operand<T> b,
                            float *partials)
{
    constexpr int EDGE = tt_tile<T>::EDGE, PAD = tt_tile<T>::PAD, W = TT_TOKEN_COLUMNS;
    TT_SHARED_ARRAY(unsigned char, memory);
    T *left = reinterpret_cast<T *>(memory), *right = left + EDGE * (EDGE + PAD);
    float *scratch = reinterpret_cast<float *>(right + EDGE * (W + PAD)) + tt_warp() * TT_SCRATCH;
    tt_places<T> places;
    tt_find_places(scratch, &places);
    int across = tt_round_up(product.columns, W) / W;
    int head = (int)blockIdx.y / across, column = (int)blockIdx.y % across * W;
    int first = (int)blockIdx.x * EDGE, band = tt_warp() * TT_BAND;
    int live = product.columns - column < W ? product.columns - column : W;
    int live_rows = product.rows - first < EDGE ? product.rows - first : EDGE;
    int columns = tt_round_up(live, TT_BAND), rows = tt_round_up(live_rows, TT_BAND);
    int token = (int)blockIdx.z * product.range;
    int end = token + product.range < product.tokens ? token + product.range : product.tokens;
    tt_band<T, W> sums;
    tt_band_clear(sums);
    for (; token < end; token += EDGE) {
        __syncthreads();
        tt_tile_load(left, EDGE + PAD, EDGE, rows, a, token, end, first, head);
        tt_tile_load(right, W + PAD, EDGE, columns, b, token, end, column, head);
        __syncthreads();
        if (band < rows) {
            tt_band_multiply<true, false>(sums, left + band, EDGE + PAD, right, W + PAD, EDGE,
                                          columns);
        }
    }
    float *to = partials + blockIdx.z * product.all + head * product.head;
    tt_band_each(sums, places, columns, [&](int, int i, int j, float &x) {
        if (band + i < live_rows && j < live) {
            to[(first + band + i) * product.row + column + j] = x;
        }
    });
}

/* Enough ranges of tokens to fill the device, of 256 tokens at least. */
static inline int tt_token_ranges(const tt_device *device, int64_t tokens, int64_t rows,
                                  int64_t columns, int64_t heads)
{
    int64_t blocks = tt_ceil_div(rows, 64) * tt_ceil_div(columns, TT_TOKEN_COLUMNS) * heads;
    if (blocks == 0 || tokens == 0) { /* a map of rank 0 */
        return 0;
    }
    int64_t enough = tt_ceil_div(2 * (int64_t)tt_cuda(device)->multiprocessors, blocks);
    int64_t most = tt_ceil_div(tokens, 256);
    return (int)(enough < most ? enough : most);
}

/* Makes `ranges` partial results; `product.range` is set here. */
template <typename T>
static inline void tt_token_multiply(tt_device *device, tt_token_product product, int heads,
                                     int ranges, tt_operand<T> a, tt_operand<T> b, float *partials)
{
    constexpr int EDGE = tt_tile<T>::EDGE;
    auto kernel = tt_token_product_kernel<T>;
    if (ranges == 0) {
        return;
    }
    product.range = tt_round_up((int)tt_ceil_div(product.tokens, ranges), EDGE);
    dim3 grid((unsigned)tt_ceil_div(product.rows, EDGE),
              (unsigned)(heads * tt_ceil_div(product.columns, TT_TOKEN_COLUMNS)), (unsigned)ranges);
    TT_LAUNCH(device, grid, tt_tile<T>::THREADS, tt_token_product_bytes<T>(), kernel, product, a, b,
              partials);
}

/* --- activations times factors --------------------------------------------------------------- */

/* result [rows, columns] = (or +=, with ADD) a b, or a b^T with B; a has `depth` columns. Blocks: x
 * tiles of rows, y tiles of columns. */
template <typename T, bool B, bool ADD>
__global__ void __launch_bounds__(tt_tile<T>::THREADS, 4)
    tt_row_product_kernel(tt_operand<T> a, tt_operand<T> b, T *result, int64_t stride, int rows,
                          int columns, int depth)
{
    constexpr int EDGE = tt_tile<T>::EDGE, PAD = tt_tile<T>::PAD, W = TT_TOKEN_COLUMNS;
    constexpr int LD = EDGE + PAD, LD_B = B ? LD : W + PAD;
    TT_SHARED_ARRAY(unsigned char, memory);
    T *left = reinterpret_cast<T *>(memory), *right = left + EDGE * LD;
    float *scratch = reinterpret_cast<float *>(right + W * LD) + tt_warp() * TT_SCRATCH;
    tt_places<T> places;
    tt_find_places(scratch, &places);
    int row = (int)blockIdx.x * EDGE;
    int column = (int)blockIdx.y * W, band = tt_warp() * TT_BAND;
    int live = columns - column < W ? columns - column : W, padded = tt_round_up(live, TT_BAND);
    tt_band<T, W> sums;
    tt_band_clear(sums);
    for (int k = 0; k < depth; k += EDGE) {
        int deep = tt_round_up(depth - k < EDGE ? depth - k : EDGE, TT_BAND);
        __syncthreads();
        tt_tile_load(left, LD, EDGE, deep, a, row, rows, k, 0);
        if (B) {
            tt_tile_load(right, LD_B, padded, deep, b, column, columns, k, 0);
        } else {
            tt_tile_load(right, LD_B, deep, padded, b, k, depth, column, 0);
        }
        __syncthreads();
        tt_band_multiply<false, B>(sums, left + band * LD, LD, right, LD_B, deep, padded);
    }
    __syncthreads();
    T *tile = right + band * (W + PAD);
    tt_band_store(tile, W + PAD, sums, places, padded);
    __syncwarp();
    result += (int64_t)(row + band) * stride + column;
    for (int i = 0; i < TT_BAND && row + band + i < rows; i++) {
        for (int j = tt_lane(); j < live; j += 32) {
            T *to = result + i * stride + j;
            float value = tt_load(tile + i * (W + PAD) + j);
            tt_store(to, ADD ? tt_load(to) + value : value);
        }
    }
}

/* `b` has as many columns as the result (or as `a`, with B). */
template <typename T, bool B, bool ADD>
static inline void tt_row_multiply(tt_device *device, tt_matrix a, tt_matrix b, tt_matrix result)
{
    constexpr int EDGE = tt_tile<T>::EDGE, PAD = tt_tile<T>::PAD, W = TT_TOKEN_COLUMNS;
    constexpr size_t bytes = (size_t)(EDGE + W) * (EDGE + PAD) * sizeof(T) +
                             tt_tile<T>::WARPS * TT_SCRATCH * sizeof(float);
    static_assert(EDGE * (W + PAD) <= W * (EDGE + PAD), "a tile of results fits where b was");
    auto kernel = tt_row_product_kernel<T, B, ADD>;
    if (result.rows == 0 || result.columns == 0) {
        return;
    }
    dim3 grid((unsigned)tt_ceil_div(a.rows, EDGE), (unsigned)tt_ceil_div(result.columns, W));
    TT_LAUNCH(device, grid, tt_tile<T>::THREADS, bytes, kernel,
              tt_operand_ready(tt_operand_of<T>(a, 0, a.columns)),
              tt_operand_ready(tt_operand_of<T>(b, 0, b.columns)), static_cast<T *>(result.data),
              result.stride, (int)a.rows, (int)result.columns, (int)a.columns);
}

#endif

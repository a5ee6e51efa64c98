/* The feed-forward block between two tensor trains, tile by tile: EDGE tokens by EDGE inner units
 * of the wide activation exist at a time, in registers and shared memory.
 *
 * Floor of the forward pass, a token: inner * (r1 + r2) multiplications and inner GELUs for r1 + r2
 * activations moved, so memory is no bound at all; at rank 30 the GELUs, some 25 f32 instructions
 * each, take three times as long as the products on tensor cores do, which is what this kernel is
 * bound by. With the wide activation in memory it would be written and read once at least, 4 *
 * inner bytes a token in bf16, which takes about as long by itself. Backward, 2.5 times the
 * products and one GELU with its derivative are the floor; d_U1 is a sum over units and the
 * factors' gradients are sums over tokens, so two passes make each of them in a fixed order, and
 * the activation twice.
 */
#include "core/cuda/cuda_ops.h"
#include "core/cuda/gelu.cuh"
#include "core/cuda/thin_product.cuh"

template <typename T> struct block_operands {
    tt_operand<T> u1, d_u2, b1, a2;
    const float *bias;
    int tokens, range; /* tokens of a block in the pass over units */
    int inner, r1, r2;
    int units; /* of a block in the passes over tokens */
    tt_gelu gelu;
};

/* Partial results: of U2 or d_U1 by ranges of units [tokens, rank], of the factors' gradients by
 * ranges of tokens: d_B1 transposed [inner, r1], d_A2 [inner, r2], bias [inner]. */
typedef struct {
    float *tokens, *b1, *a2, *bias;
} block_partials;

/* Shared memory of a block and this thread's place in it. */
template <typename T, int W> struct block_room {
    static constexpr int EDGE = tt_tile<T>::EDGE, WARPS = tt_tile<T>::WARPS;
    static constexpr int LD = W + tt_tile<T>::PAD, LD_P = EDGE + tt_tile<T>::PAD;
    static constexpr int STEP = 32; /* columns of the activation in registers at a time */
    static constexpr size_t bytes = (size_t)(3 * EDGE * LD + W * LD_P + EDGE * LD_P) * sizeof(T) +
                                    (size_t)(WARPS * TT_SCRATCH + EDGE) * sizeof(float);

    T *u1, *d_u2; /* [EDGE tokens, W] */
    T *b1;        /* [W, EDGE units] */
    T *a2;        /* [EDGE units, W] */
    T *p;         /* this warp's band of a tile of the activation, or of its gradient */
    float *scratch, *bias;
    tt_places<T> places;
    int band, live_1, live_2;

    __device__ block_room(unsigned char *memory, const block_operands<T> &operands)
    {
        u1 = reinterpret_cast<T *>(memory);
        d_u2 = u1 + EDGE * LD;
        a2 = d_u2 + EDGE * LD;
        b1 = a2 + EDGE * LD;
        T *all_p = b1 + W * LD_P;
        band = tt_warp() * TT_BAND;
        p = all_p + band * LD_P;
        scratch = reinterpret_cast<float *>(all_p + EDGE * LD_P) + tt_warp() * TT_SCRATCH;
        bias = reinterpret_cast<float *>(all_p + EDGE * LD_P) + WARPS * TT_SCRATCH;
        live_1 = tt_round_up(operands.r1, TT_BAND);
        live_2 = tt_round_up(operands.r2, TT_BAND);
        tt_find_places(scratch, &places);
    }

    __device__ void load_units(const block_operands<T> &operands, int unit)
    {
        tt_tile_load(b1, LD_P, live_1, EDGE, operands.b1, 0, operands.r1, unit, 0);
        tt_tile_load(a2, LD, EDGE, live_2, operands.a2, unit, operands.inner, 0, 0);
        for (int j = (int)threadIdx.x; j < EDGE; j += (int)blockDim.x) {
            bias[j] = unit + j < operands.inner ? operands.bias[unit + j] : 0.0f;
        }
    }
};

static __device__ inline float gelu_of(tt_gelu kind, float x, float *derivative)
{
    return kind == TT_GELU_ERF ? tt_gelu_of<TT_GELU_ERF>(x, derivative)
                               : tt_gelu_of<TT_GELU_TANH>(x, derivative);
}

/* The rows of a band to partial results [rows, columns]. */
template <typename T, int W>
static __device__ inline void write_rows(tt_band<T, W> &band, const tt_places<T> &places, float *to,
                                         int columns, int rows)
{
    tt_band_each(band, places, tt_round_up(columns, TT_BAND),
                 [&](int, int row, int column, float &x) {
                     if (row < rows && column < columns) {
                         to[row * columns + column] = x;
                     }
                 });
}

/* Blocks: x tiles of tokens, y ranges of units. */
template <typename T, int W>
__global__ void __launch_bounds__(tt_tile<T>::THREADS, W <= 32 ? 4 : 1)
    thin_feed_forward_forward(block_operands<T> operands, float *partials)
{
    typedef block_room<T, W> room_type;
    constexpr int EDGE = room_type::EDGE, LD = room_type::LD, LD_P = room_type::LD_P;
    TT_SHARED_ARRAY(unsigned char, memory);
    room_type room(memory, operands);
    int token = (int)blockIdx.x * EDGE;
    int unit = (int)blockIdx.y * operands.units;
    int end = unit + operands.units < operands.inner ? unit + operands.units : operands.inner;
    tt_tile_load(room.u1, LD, EDGE, room.live_1, operands.u1, token, operands.tokens, 0, 0);
    tt_band<T, W> sums;
    tt_band_clear(sums);
    for (; unit < end; unit += EDGE) {
        __syncthreads();
        room.load_units(operands, unit);
        __syncthreads();
        tt_band<T, EDGE> inner;
        tt_band_clear(inner);
        tt_band_multiply<false, false>(inner, room.u1 + room.band * LD, LD, room.b1, LD_P,
                                       room.live_1, EDGE);
        tt_band_each(inner, room.places, EDGE, [&](int, int row, int column, float &x) {
            float unused;
            tt_store(room.p + row * LD_P + column,
                     gelu_of(operands.gelu, x + room.bias[column], &unused));
        });
        __syncwarp();
        tt_band_multiply<false, false>(sums, room.p, LD_P, room.a2, LD, EDGE, room.live_2);
        __syncwarp();
    }
    token += room.band;
    write_rows(sums, room.places,
               partials + ((int64_t)blockIdx.y * operands.tokens + token) * operands.r2,
               operands.r2, operands.tokens - token);
}

/* d_U1; blocks as in the forward pass. */
template <typename T, int W>
__global__ void __launch_bounds__(tt_tile<T>::THREADS, W <= 32 ? 4 : 1)
    thin_feed_forward_d_tokens(block_operands<T> operands, float *partials)
{
    typedef block_room<T, W> room_type;
    constexpr int EDGE = room_type::EDGE, LD = room_type::LD, LD_P = room_type::LD_P;
    TT_SHARED_ARRAY(unsigned char, memory);
    room_type room(memory, operands);
    int token = (int)blockIdx.x * EDGE;
    int unit = (int)blockIdx.y * operands.units;
    int end = unit + operands.units < operands.inner ? unit + operands.units : operands.inner;
    tt_tile_load(room.u1, LD, EDGE, room.live_1, operands.u1, token, operands.tokens, 0, 0);
    tt_tile_load(room.d_u2, LD, EDGE, room.live_2, operands.d_u2, token, operands.tokens, 0, 0);
    tt_band<T, W> sums;
    tt_band_clear(sums);
    for (; unit < end; unit += EDGE) {
        __syncthreads();
        room.load_units(operands, unit);
        __syncthreads();
        tt_band<T, EDGE> inner, d_inner;
        tt_band_clear(inner);
        tt_band_clear(d_inner);
        tt_band_multiply<false, false>(inner, room.u1 + room.band * LD, LD, room.b1, LD_P,
                                       room.live_1, EDGE);
        tt_band_multiply<false, true>(d_inner, room.d_u2 + room.band * LD, LD, room.a2, LD,
                                      room.live_2, EDGE);
#pragma unroll
        for (int j = 0; j < EDGE / TT_BAND; j++) {
#pragma unroll
            for (int i = 0; i < TT_PART; i++) {
                int row = room.places.row(i), column = j * TT_BAND + room.places.column(i);
                float derivative;
                gelu_of(operands.gelu, inner.at(j, i) + room.bias[column], &derivative);
                tt_store(room.p + row * LD_P + column, d_inner.at(j, i) * derivative);
            }
        }
        __syncwarp();
        tt_band_multiply<false, true>(sums, room.p, LD_P, room.b1, LD_P, EDGE, room.live_1);
        __syncwarp();
    }
    token += room.band;
    write_rows(sums, room.places,
               partials + ((int64_t)blockIdx.y * operands.tokens + token) * operands.r1,
               operands.r1, operands.tokens - token);
}

/* What STEP tokens of the tiles from `token` on give to the gradients of a band of units: rows of
 * the bands are units. */
template <int STEP, typename T, int W>
static __device__ inline void add_tokens(const block_room<T, W> &room, tt_gelu gelu, int token,
                                         const float (&bias)[TT_PART], float (&bias_sums)[TT_PART],
                                         tt_band<T, W> &b1_sums, tt_band<T, W> &a2_sums)
{
    typedef block_room<T, W> room_type;
    constexpr int LD = room_type::LD, LD_P = room_type::LD_P;
    const T *u1 = room.u1 + token * LD, *d_u2 = room.d_u2 + token * LD;
    tt_band<T, STEP> inner, d_inner;
    tt_band_clear(inner);
    tt_band_clear(d_inner);
    tt_band_multiply<true, true>(inner, room.b1 + room.band, LD_P, u1, LD, room.live_1, STEP);
    tt_band_multiply<false, true>(d_inner, room.a2 + room.band * LD, LD, d_u2, LD, room.live_2,
                                  STEP);
#pragma unroll
    for (int j = 0; j < STEP / TT_BAND; j++) {
#pragma unroll
        for (int i = 0; i < TT_PART; i++) {
            int row = room.places.row(i), column = j * TT_BAND + room.places.column(i);
            float derivative, active = gelu_of(gelu, inner.at(j, i) + bias[i], &derivative);
            tt_store(room.p + row * LD_P + column, active);
            d_inner.at(j, i) *= derivative;
            bias_sums[i] += d_inner.at(j, i);
        }
    }
    __syncwarp();
    tt_band_multiply<false, false>(a2_sums, room.p, LD_P, d_u2, LD, STEP, room.live_2);
    __syncwarp();
    tt_band_store(room.p, LD_P, d_inner, room.places, STEP);
    __syncwarp();
    tt_band_multiply<false, false>(b1_sums, room.p, LD_P, u1, LD, STEP, room.live_1);
    __syncwarp();
}

/* Gradients of the factors and of the bias. Blocks: x tiles of units, y ranges of tokens. */
template <typename T, int W>
__global__ void __launch_bounds__(tt_tile<T>::THREADS, W <= 32 ? 4 : 1)
    thin_feed_forward_d_units(block_operands<T> operands, block_partials partials)
{
    typedef block_room<T, W> room_type;
    constexpr int EDGE = room_type::EDGE, LD = room_type::LD;
    TT_SHARED_ARRAY(unsigned char, memory);
    room_type room(memory, operands);
    int unit = (int)blockIdx.x * EDGE;
    int token = (int)blockIdx.y * operands.range, end = token + operands.range;
    end = end < operands.tokens ? end : operands.tokens;
    float bias[TT_PART], bias_sums[TT_PART] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    tt_band<T, W> b1_sums, a2_sums;
    tt_band_clear(b1_sums);
    tt_band_clear(a2_sums);
    room.load_units(operands, unit);
    __syncthreads();
    tt_rows_get(room.bias + room.band, room.places, bias);
    for (; token < end; token += EDGE) {
        __syncthreads();
        tt_tile_load(room.u1, LD, EDGE, room.live_1, operands.u1, token, end, 0, 0);
        tt_tile_load(room.d_u2, LD, EDGE, room.live_2, operands.d_u2, token, end, 0, 0);
        __syncthreads();
        for (int step = 0; step < EDGE; step += room_type::STEP) {
            add_tokens<room_type::STEP>(room, operands.gelu, step, bias, bias_sums, b1_sums,
                                        a2_sums);
        }
    }
    unit += room.band;
    int64_t row = (int64_t)blockIdx.y * operands.inner + unit;
    write_rows(b1_sums, room.places, partials.b1 + row * operands.r1, operands.r1,
               operands.inner - unit);
    write_rows(a2_sums, room.places, partials.a2 + row * operands.r2, operands.r2,
               operands.inner - unit);
    float sum = tt_rows_reduce<false>(bias_sums, room.places, room.scratch);
    if (tt_lane() % 2 == 0 && unit + tt_lane() / 2 < operands.inner) {
        partials.bias[row + tt_lane() / 2] = sum;
    }
}

/* --- the host's side ------------------------------------------------------------------------- */

/* Into how many ranges units and tokens are cut, and the workspace in floats. */
typedef struct {
    int64_t tokens, inner, r1, r2;
    int64_t units, unit_ranges;
    int64_t range, token_ranges;
    size_t floats;
} block_plan;

static block_plan plan_of(const tt_device *device, const tt_thin_feed_forward *block)
{
    int64_t edge = block->u1.type == TT_BF16 ? tt_tile<__nv_bfloat16>::EDGE : tt_tile<float>::EDGE;
    int64_t wanted = 4 * (int64_t)tt_cuda(device)->multiprocessors;
    block_plan plan = {};
    plan.tokens = block->u1.rows;
    plan.inner = block->b1.columns;
    plan.r1 = block->u1.columns;
    plan.r2 = block->a2.columns;
    int64_t token_tiles = tt_ceil_div(plan.tokens, edge),
            unit_tiles = tt_ceil_div(plan.inner, edge);
    plan.units = tt_ceil_div(unit_tiles, tt_ceil_div(wanted, token_tiles)) * edge;
    plan.unit_ranges = tt_ceil_div(plan.inner, plan.units);
    plan.range = tt_ceil_div(token_tiles, tt_ceil_div(wanted, unit_tiles)) * edge;
    plan.token_ranges = tt_ceil_div(plan.tokens, plan.range);
    int64_t rank = plan.r1 > plan.r2 ? plan.r1 : plan.r2;
    int64_t by_units = plan.unit_ranges * plan.tokens * rank;
    int64_t by_tokens = plan.token_ranges * plan.inner * (plan.r1 + plan.r2 + 1);
    plan.floats = (size_t)(by_units > by_tokens ? by_units : by_tokens);
    return plan;
}

size_t tt_cuda_thin_feed_forward_workspace(tt_device *device, const tt_thin_feed_forward *block)
{
    return plan_of(device, block).floats * sizeof(float);
}

template <typename T>
static block_operands<T> operands_of(const tt_thin_feed_forward *block, const block_plan &plan,
                                     tt_matrix d_u2)
{
    block_operands<T> operands = {};
    operands.u1 = tt_operand_ready(tt_operand_of<T>(block->u1, 0, plan.r1));
    operands.d_u2 = tt_operand_ready(tt_operand_of<T>(d_u2, 0, plan.r2));
    operands.b1 = tt_operand_ready(tt_operand_of<T>(block->b1, 0, plan.inner));
    operands.a2 = tt_operand_ready(tt_operand_of<T>(block->a2, 0, plan.r2));
    operands.bias = block->bias;
    operands.tokens = (int)plan.tokens;
    operands.range = (int)plan.range;
    operands.inner = (int)plan.inner;
    operands.r1 = (int)plan.r1;
    operands.r2 = (int)plan.r2;
    operands.units = (int)plan.units;
    operands.gelu = block->gelu;
    return operands;
}

template <typename T, int W>
static void forward(tt_device *device, const tt_thin_feed_forward *block, tt_matrix u2)
{
    block_plan plan = plan_of(device, block);
    float *partials = static_cast<float *>(block->workspace);
    auto kernel = thin_feed_forward_forward<T, W>;
    size_t bytes = block_room<T, W>::bytes;
    if (tt_shared_memory(device, kernel, bytes)) {
        dim3 grid((unsigned)tt_ceil_div(plan.tokens, tt_tile<T>::EDGE), (unsigned)plan.unit_ranges);
        TT_LAUNCH(device, grid, tt_tile<T>::THREADS, bytes, kernel, operands_of<T>(block, plan, {}),
                  partials);
        tt_add_up<T, false>(device, partials, (int)plan.unit_ranges, plan.tokens, plan.r2,
                            static_cast<T *>(u2.data), u2.stride, 1);
    }
}

/* += the partial results of the pass over units. */
static void add_factor_gradients(tt_device *device, const tt_thin_feed_forward *block,
                                 const block_plan &plan, const block_partials &partials)
{
    int ranges = (int)plan.token_ranges;
    tt_add_up<float, true>(device, partials.b1, ranges, plan.inner, plan.r1,
                           static_cast<float *>(block->b1_gradient.data), 1,
                           block->b1_gradient.stride);
    tt_add_up<float, true>(device, partials.a2, ranges, plan.inner, plan.r2,
                           static_cast<float *>(block->a2_gradient.data), block->a2_gradient.stride,
                           1);
    tt_add_up<float, true>(device, partials.bias, ranges, 1, plan.inner, block->bias_gradient, 0,
                           1);
}

template <typename T, int W>
static void backward(tt_device *device, const tt_thin_feed_forward *block, tt_matrix d_u2,
                     tt_matrix d_u1)
{
    block_plan plan = plan_of(device, block);
    block_operands<T> operands = operands_of<T>(block, plan, d_u2);
    auto tokens = thin_feed_forward_d_tokens<T, W>;
    auto units = thin_feed_forward_d_units<T, W>;
    size_t bytes = block_room<T, W>::bytes;
    if (!tt_shared_memory(device, tokens, bytes) || !tt_shared_memory(device, units, bytes)) {
        return;
    }
    float *partials = static_cast<float *>(block->workspace);
    dim3 grid((unsigned)tt_ceil_div(plan.tokens, tt_tile<T>::EDGE), (unsigned)plan.unit_ranges);
    TT_LAUNCH(device, grid, tt_tile<T>::THREADS, bytes, tokens, operands, partials);
    tt_add_up<T, false>(device, partials, (int)plan.unit_ranges, plan.tokens, plan.r1,
                        static_cast<T *>(d_u1.data), d_u1.stride, 1);
    block_partials factors = {};
    factors.b1 = partials;
    factors.a2 = factors.b1 + plan.token_ranges * plan.inner * plan.r1;
    factors.bias = factors.a2 + plan.token_ranges * plan.inner * plan.r2;
    dim3 unit_grid((unsigned)tt_ceil_div(plan.inner, tt_tile<T>::EDGE),
                   (unsigned)plan.token_ranges);
    TT_LAUNCH(device, unit_grid, tt_tile<T>::THREADS, bytes, units, operands, factors);
    add_factor_gradients(device, block, plan, factors);
}

/* function<T, W>(...) for the type of activations and the narrowest tile that holds both ranks. */
#define FOR_RANKS(block, function, ...)                                                            \
    do {                                                                                           \
        int64_t r1 = (block)->u1.columns, r2 = (block)->a2.columns, rank = r1 > r2 ? r1 : r2;      \
        if (rank > TT_CUDA_LARGEST_THIN_RANK) {                                                    \
            tt_cuda_refuse(device, "thin feed-forward block of rank %lld, the kernels take %d",    \
                           (long long)rank, TT_CUDA_LARGEST_THIN_RANK);                            \
            break;                                                                                 \
        }                                                                                          \
        if ((block)->u1.type == TT_BF16) {                                                         \
            if (rank <= 32) {                                                                      \
                function<__nv_bfloat16, 32>(__VA_ARGS__);                                          \
            } else if (rank <= 64) {                                                               \
                function<__nv_bfloat16, 64>(__VA_ARGS__);                                          \
            } else {                                                                               \
                function<__nv_bfloat16, 128>(__VA_ARGS__);                                         \
            }                                                                                      \
        } else if (rank <= 64) {                                                                   \
            function<float, 64>(__VA_ARGS__);                                                      \
        } else {                                                                                   \
            function<float, 128>(__VA_ARGS__);                                                     \
        }                                                                                          \
    } while (0)

void tt_cuda_thin_feed_forward_forward(tt_device *device, const tt_thin_feed_forward *block,
                                       tt_matrix u2)
{
    FOR_RANKS(block, forward, device, block, u2);
}

void tt_cuda_thin_feed_forward_backward(tt_device *device, const tt_thin_feed_forward *block,
                                        tt_matrix d_u2, tt_matrix d_u1)
{
    FOR_RANKS(block, backward, device, block, d_u2, d_u1);
}

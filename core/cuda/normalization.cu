/* Bias, dropout, residual and LayerNorm in one pass, forward and backward.
 *
 * Elements that each must move, a row having `columns` of 2 (bf16) or 4 (f32) bytes: forward reads
 * x and the residual and writes the normalized row and y: 4; output 2; backward reads dy and the
 * normalized row and writes d_sum and dx: 4, or 3 where they are one. The partial sums of the
 * gradients of weight, shift and bias add 3 rows of f32 for every 4 rows at most, far fewer in
 * training.
 *
 * Rows of packs up to TT_ROW_COLUMNS wide stay in registers from the first load to the last store:
 * a warp a row up to 1024 columns forward, else a block a row. Other shapes take kernels that read
 * a row again for each of its sums. */
#include "core/cuda/cuda_ops.h"
#include "core/cuda/dropout.cuh"
#include "core/cuda/reduce.cuh"

enum {
    TT_ROW_THREADS = 256,  /* most threads that share a row, and threads of a block */
    TT_FORWARD_PACKS = 4,  /* most packs of a row that a thread holds */
    TT_BACKWARD_PACKS = 2, /* where each pack takes six registers an element */
    TT_PACK = 8
};

/* A tt_residual_norm and the operands of its forward pass, for kernels. */
template <typename T> struct tt_norm_operands {
    const float *bias, *weight, *shift;
    float epsilon;
    tt_dropout_site dropout;
    tt_rows<const T> x, residual; /* residual.data may be NULL */
    tt_rows<T> normalized, y;
    float *inverse_deviation;
    int64_t rows;
    int columns;
};

/* residual + dropout(x + bias) of W columns. */
template <int W, typename T>
static __device__ __forceinline__ tt_pack<W> tt_sum_pack(const tt_norm_operands<T> &o,
                                                         uint32_t step, int64_t row, int column)
{
    tt_pack<W> pack = tt_load_pack<W>(o.x.at(row, column));
    if (o.bias != nullptr) {
        tt_add_pack(pack, tt_load_pack<W>(o.bias + column));
    }
    tt_dropout_apply(o.dropout, step, row, column, pack.value);
    if (o.residual.data != nullptr) {
        tt_add_pack(pack, tt_load_pack<W>(o.residual.at(row, column)));
    }
    return pack;
}

/* Writes the normalized pack, and y from what that holds once rounded, so that
 * residual_norm_output gives the same y. */
template <int W, typename T>
static __device__ __forceinline__ void tt_store_norm(const tt_norm_operands<T> &o, int64_t row,
                                                     int column, tt_pack<W> pack)
{
    tt_store_pack(o.normalized.at(row, column), pack);
    tt_pack<W> weight = tt_load_pack<W>(o.weight + column);
    tt_pack<W> shift = tt_load_pack<W>(o.shift + column);
#pragma unroll
    for (int i = 0; i < W; i++) {
        pack.value[i] = tt_rounded<T>(pack.value[i]) * weight.value[i] + shift.value[i];
    }
    tt_store_pack(o.y.at(row, column), pack);
}

/* Sums over the threads that share a row: a warp or the block. */
template <int COUNT> static __device__ __forceinline__ void tt_row_sum(float (&values)[COUNT])
{
    if (blockDim.x == 32) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            values[i] = tt_warp_sum(values[i]);
        }
    } else {
        tt_block_sum(values);
    }
}

/* 1 / deviation from sums of (value - mean) and of its square; `rest` becomes what rounding left of
 * the mean. */
static __device__ __forceinline__ float tt_inverse_deviation(float epsilon, int columns,
                                                             float squares, float *rest)
{
    *rest /= static_cast<float>(columns);
    float variance = squares / static_cast<float>(columns) - *rest * *rest;
    return 1.0f / sqrtf(fmaxf(variance, 0.0f) + epsilon);
}

/* blockDim.x threads share a row and hold PACKS packs each; blockDim.y rows a block. */
template <typename T, int PACKS>
__global__ void __launch_bounds__(TT_ROW_THREADS) tt_norm_rows(tt_norm_operands<T> o)
{
    int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= o.rows) {
        return; /* a whole warp, and no block waits for it */
    }
    uint32_t step = tt_dropout_step(o.dropout);
    tt_pack<TT_PACK> packs[PACKS];
    float mean[1] = {0.0f};
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int column = TT_PACK * static_cast<int>(p * blockDim.x + threadIdx.x);
        packs[p] = {};
        if (column < o.columns) {
            packs[p] = tt_sum_pack<TT_PACK>(o, step, row, column);
        }
#pragma unroll
        for (int i = 0; i < TT_PACK; i++) {
            mean[0] += packs[p].value[i];
        }
    }
    tt_row_sum(mean);
    mean[0] /= static_cast<float>(o.columns);
    float moments[2] = {0.0f, 0.0f};
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int column = TT_PACK * static_cast<int>(p * blockDim.x + threadIdx.x);
#pragma unroll
        for (int i = 0; i < TT_PACK; i++) {
            float centred = column < o.columns ? packs[p].value[i] - mean[0] : 0.0f;
            moments[0] += centred;
            moments[1] += centred * centred;
        }
    }
    tt_row_sum(moments);
    float inverse = tt_inverse_deviation(o.epsilon, o.columns, moments[1], &moments[0]);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int column = TT_PACK * static_cast<int>(p * blockDim.x + threadIdx.x);
        if (column < o.columns) {
#pragma unroll
            for (int i = 0; i < TT_PACK; i++) {
                packs[p].value[i] = (packs[p].value[i] - mean[0] - moments[0]) * inverse;
            }
            tt_store_norm(o, row, column, packs[p]);
        }
    }
    if (threadIdx.x == 0) {
        o.inverse_deviation[row] = inverse;
    }
}

/* A block a row, of any width and alignment: the sum before the norm is formed three times. */
template <typename T>
__global__ void __launch_bounds__(TT_ROW_THREADS) tt_norm_any_rows(tt_norm_operands<T> o)
{
    int64_t row = blockIdx.x;
    uint32_t step = tt_dropout_step(o.dropout);
    float mean[1] = {0.0f};
    for (int column = static_cast<int>(threadIdx.x); column < o.columns;
         column += static_cast<int>(blockDim.x)) {
        mean[0] += tt_sum_pack<1>(o, step, row, column).value[0];
    }
    tt_row_sum(mean);
    mean[0] /= static_cast<float>(o.columns);
    float moments[2] = {0.0f, 0.0f};
    for (int column = static_cast<int>(threadIdx.x); column < o.columns;
         column += static_cast<int>(blockDim.x)) {
        float centred = tt_sum_pack<1>(o, step, row, column).value[0] - mean[0];
        moments[0] += centred;
        moments[1] += centred * centred;
    }
    tt_row_sum(moments);
    float inverse = tt_inverse_deviation(o.epsilon, o.columns, moments[1], &moments[0]);
    for (int column = static_cast<int>(threadIdx.x); column < o.columns;
         column += static_cast<int>(blockDim.x)) {
        tt_pack<1> pack = tt_sum_pack<1>(o, step, row, column);
        pack.value[0] = (pack.value[0] - mean[0] - moments[0]) * inverse;
        tt_store_norm(o, row, column, pack);
    }
    if (threadIdx.x == 0) {
        o.inverse_deviation[row] = inverse;
    }
}

/* Threads for a row that nobody else shares the block with. */
static unsigned tt_threads_for_row(int64_t columns)
{
    return columns < TT_ROW_THREADS ? 32 * static_cast<unsigned>(tt_ceil_div(columns, 32))
                                    : static_cast<unsigned>(TT_ROW_THREADS);
}

template <typename T>
static void tt_launch_norm(tt_device *device, const tt_norm_operands<T> &operands, bool wide)
{
    const int64_t warp_columns = 32 * TT_PACK;
    int64_t packs = tt_ceil_div(operands.columns, warp_columns);
    if (!wide || packs > TT_FORWARD_PACKS * TT_ROW_THREADS / 32) {
        auto norm_any_rows = tt_norm_any_rows<T>;
        TT_LAUNCH(device, static_cast<unsigned>(operands.rows),
                  tt_threads_for_row(operands.columns), 0, norm_any_rows, operands);
        return;
    }
    auto norm_rows = packs == 1   ? tt_norm_rows<T, 1>
                     : packs == 2 ? tt_norm_rows<T, 2>
                     : packs == 3 ? tt_norm_rows<T, 3>
                                  : tt_norm_rows<T, TT_FORWARD_PACKS>;
    unsigned warps = static_cast<unsigned>(tt_ceil_div(packs, TT_FORWARD_PACKS));
    unsigned rows_together = warps == 1 ? 4 : 1;
    TT_LAUNCH(device, static_cast<unsigned>(tt_ceil_div(operands.rows, rows_together)),
              dim3(32 * warps, rows_together), 0, norm_rows, operands);
}

template <typename T>
static void tt_forward(tt_device *device, const tt_residual_norm *norm, tt_matrix x,
                       tt_matrix residual, tt_matrix y)
{
    tt_norm_operands<T> operands = {norm->bias,
                                    norm->weight,
                                    norm->shift,
                                    norm->epsilon,
                                    tt_dropout_site_of(&norm->dropout),
                                    tt_rows_of<const T>(x),
                                    tt_rows_of<const T>(residual),
                                    tt_rows_of<T>(norm->state.normalized),
                                    tt_rows_of<T>(y),
                                    norm->state.inverse_deviation,
                                    x.rows,
                                    static_cast<int>(x.columns)};
    tt_launch_norm(
        device, operands,
        tt_wide(x, residual, y, norm->state.normalized, norm->bias, norm->weight, norm->shift));
}

void tt_cuda_residual_norm_forward(tt_device *device, const tt_residual_norm *norm, tt_matrix x,
                                   tt_matrix residual, tt_matrix y)
{
    assert(x.rows == y.rows && x.columns == y.columns && x.type == y.type);
    assert(norm->state.normalized.rows == x.rows && norm->state.normalized.columns == x.columns);
    assert(norm->state.normalized.type == x.type);
    assert(residual.data == nullptr || residual.type == x.type);
    if (x.rows == 0) {
        return;
    }
    if (x.type == TT_BF16) {
        tt_forward<__nv_bfloat16>(device, norm, x, residual, y);
    } else {
        tt_forward<float>(device, norm, x, residual, y);
    }
}

template <typename T, int W>
__global__ void __launch_bounds__(256)
    tt_norm_output_rows(tt_rows<const T> normalized, int64_t rows, int columns, const float *weight,
                        const float *shift, tt_rows<T> y)
{
    int column = tt_grid_column<W>();
    if (column >= columns) {
        return;
    }
    tt_pack<W> weight_pack = tt_load_pack<W>(weight + column);
    tt_pack<W> shift_pack = tt_load_pack<W>(shift + column);
    for (int64_t row = tt_grid_row(); row < rows; row += tt_grid_height()) {
        tt_pack<W> pack = tt_load_pack<W>(normalized.at(row, column));
#pragma unroll
        for (int i = 0; i < W; i++) {
            pack.value[i] = pack.value[i] * weight_pack.value[i] + shift_pack.value[i];
        }
        tt_store_pack(y.at(row, column), pack);
    }
}

template <typename T, int W>
static void tt_launch_output(tt_device *device, const tt_residual_norm *norm, tt_matrix y)
{
    tt_row_grid plan = tt_grid_for_rows(device, y.rows, y.columns, W);
    auto norm_output_rows = tt_norm_output_rows<T, W>;
    TT_LAUNCH(device, plan.grid, plan.block, 0, norm_output_rows,
              tt_rows_of<const T>(norm->state.normalized), y.rows, static_cast<int>(y.columns),
              norm->weight, norm->shift, tt_rows_of<T>(y));
}

void tt_cuda_residual_norm_output(tt_device *device, const tt_residual_norm *norm, tt_matrix y)
{
    assert(norm->state.normalized.type == y.type);
    if (y.rows > 0) {
        TT_FOR_ACTIVATIONS(y.type, tt_wide(y, norm->state.normalized, norm->weight, norm->shift),
                           tt_launch_output, device, norm, y);
    }
}

/* The operands of the backward pass. */
template <typename T> struct tt_norm_gradient_operands {
    const float *weight, *inverse_deviation;
    tt_dropout_site dropout;
    tt_rows<const T> normalized, dy;
    tt_rows<T> d_sum, dx; /* dx.data NULL: it is d_sum */
    float *partials;      /* [chunks, 3, columns]: weight, shift, bias */
    int64_t rows;
    int columns;
};

/* Column sums of a thread: gradients of weight, shift and bias. */
template <int W> struct tt_norm_sums {
    tt_pack<W> weight, shift, bias;
};

/* d_sum = (g - mean(g) - normalized * mean(g * normalized)) / deviation with g = dy * weight, for
 * W columns; dx is that with dropout applied. means: of g and of g * normalized. */
template <int W, typename T>
static __device__ __forceinline__ void
tt_norm_gradient_pack(const tt_norm_gradient_operands<T> &o, uint32_t step, int64_t row, int column,
                      const tt_pack<W> &dy, const tt_pack<W> &normalized, const tt_pack<W> &weight,
                      const float (&means)[2], float inverse, tt_norm_sums<W> &sums)
{
    tt_pack<W> d_sum;
#pragma unroll
    for (int i = 0; i < W; i++) {
        float centred = dy.value[i] * weight.value[i] - means[0] - normalized.value[i] * means[1];
        d_sum.value[i] = centred * inverse;
        sums.weight.value[i] += dy.value[i] * normalized.value[i];
        sums.shift.value[i] += dy.value[i];
    }
    tt_store_pack(o.d_sum.at(row, column), d_sum);
    tt_dropout_apply(o.dropout, step, row, column, d_sum.value);
    if (o.dx.data != nullptr) {
        tt_store_pack(o.dx.at(row, column), d_sum);
    }
    tt_add_pack(sums.bias, d_sum);
}

template <int W>
static __device__ __forceinline__ void tt_add_means(const tt_pack<W> &dy,
                                                    const tt_pack<W> &normalized,
                                                    const tt_pack<W> &weight, float (&means)[2])
{
#pragma unroll
    for (int i = 0; i < W; i++) {
        float weighted = dy.value[i] * weight.value[i];
        means[0] += weighted;
        means[1] += weighted * normalized.value[i];
    }
}

/* A block has the rows blockIdx.x, blockIdx.x + gridDim.x, ... one after the other, and a thread
 * the same PACKS packs of each, whose column sums it keeps in registers. */
template <typename T, int PACKS>
__global__ void __launch_bounds__(TT_ROW_THREADS)
    tt_norm_gradient_rows(tt_norm_gradient_operands<T> o)
{
    uint32_t step = tt_dropout_step(o.dropout);
    tt_norm_sums<TT_PACK> sums[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        sums[p] = {};
    }
    for (int64_t row = blockIdx.x; row < o.rows; row += gridDim.x) {
        tt_pack<TT_PACK> dy[PACKS], normalized[PACKS];
        float means[2] = {0.0f, 0.0f};
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int column = TT_PACK * static_cast<int>(p * blockDim.x + threadIdx.x);
            if (column < o.columns) {
                dy[p] = tt_load_pack<TT_PACK>(o.dy.at(row, column));
                normalized[p] = tt_load_pack<TT_PACK>(o.normalized.at(row, column));
                tt_add_means(dy[p], normalized[p], tt_load_pack<TT_PACK>(o.weight + column), means);
            }
        }
        tt_row_sum(means);
        means[0] /= static_cast<float>(o.columns);
        means[1] /= static_cast<float>(o.columns);
        float inverse = o.inverse_deviation[row];
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int column = TT_PACK * static_cast<int>(p * blockDim.x + threadIdx.x);
            if (column < o.columns) {
                tt_norm_gradient_pack(o, step, row, column, dy[p], normalized[p],
                                      tt_load_pack<TT_PACK>(o.weight + column), means, inverse,
                                      sums[p]);
            }
        }
    }
    float *partials = o.partials + static_cast<int64_t>(blockIdx.x) * 3 * o.columns;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int column = TT_PACK * static_cast<int>(p * blockDim.x + threadIdx.x);
        if (column < o.columns) {
            tt_store_pack(partials + column, sums[p].weight);
            tt_store_pack(partials + o.columns + column, sums[p].shift);
            tt_store_pack(partials + 2 * o.columns + column, sums[p].bias);
        }
    }
}

/* The same for any width and alignment, in two kernels: the means of each row, then column strips.
 */
template <typename T>
__global__ void __launch_bounds__(TT_ROW_THREADS)
    tt_norm_gradient_means(tt_norm_gradient_operands<T> o, float *row_means)
{
    int64_t row = blockIdx.x;
    float means[2] = {0.0f, 0.0f};
    for (int column = static_cast<int>(threadIdx.x); column < o.columns;
         column += static_cast<int>(blockDim.x)) {
        tt_add_means(tt_load_pack<1>(o.dy.at(row, column)),
                     tt_load_pack<1>(o.normalized.at(row, column)),
                     tt_load_pack<1>(o.weight + column), means);
    }
    tt_row_sum(means);
    if (threadIdx.x == 0) {
        row_means[2 * row] = means[0] / static_cast<float>(o.columns);
        row_means[2 * row + 1] = means[1] / static_cast<float>(o.columns);
    }
}

template <typename T>
__global__ void __launch_bounds__(256)
    tt_norm_gradient_strips(tt_norm_gradient_operands<T> o, const float *row_means)
{
    uint32_t step = tt_dropout_step(o.dropout);
    int column = tt_grid_column<1>();
    tt_norm_sums<1> sums = {};
    if (column < o.columns) {
        tt_pack<1> weight = tt_load_pack<1>(o.weight + column);
        for (int64_t row = tt_grid_row(); row < o.rows; row += tt_grid_height()) {
            float means[2] = {row_means[2 * row], row_means[2 * row + 1]};
            tt_norm_gradient_pack(o, step, row, column, tt_load_pack<1>(o.dy.at(row, column)),
                                  tt_load_pack<1>(o.normalized.at(row, column)), weight, means,
                                  o.inverse_deviation[row], sums);
        }
    }
    tt_store_column_sums(sums.weight, o.partials, o.columns, 0, 3);
    tt_store_column_sums(sums.shift, o.partials, o.columns, 1, 3);
    tt_store_column_sums(sums.bias, o.partials, o.columns, 2, 3);
}

/* Blocks of a grid whose blocks have a row each at a time: 16 warps a multiprocessor, but four rows
 * a block at least, as each leaves partial sums. */
static unsigned tt_gradient_blocks(const tt_device *device, int64_t rows, int64_t columns,
                                   unsigned warps)
{
    const tt_cuda_state *state = tt_cuda(device);
    int64_t enough = static_cast<int64_t>(state->multiprocessors) * tt_ceil_div(16, warps);
    int64_t most = tt_ceil_div(rows, 4);
    int64_t room = static_cast<int64_t>(state->scratch_floats) / (3 * columns);
    int64_t blocks = enough < most ? enough : most;
    blocks = blocks < room ? blocks : room;
    assert(blocks >= 1);
    return static_cast<unsigned>(blocks);
}

/* Returns the number of partial sums of each column. */
template <typename T>
static int tt_launch_norm_gradient(tt_device *device, tt_norm_gradient_operands<T> *operands)
{
    int64_t columns = operands->columns;
    int64_t warps = tt_ceil_div(columns, 32 * TT_PACK);
    auto norm_gradient_rows = tt_norm_gradient_rows<T, 1>;
    if (warps > TT_ROW_THREADS / 32) {
        norm_gradient_rows = tt_norm_gradient_rows<T, TT_BACKWARD_PACKS>;
        warps = tt_ceil_div(warps, TT_BACKWARD_PACKS);
    }
    unsigned blocks =
        tt_gradient_blocks(device, operands->rows, columns, static_cast<unsigned>(warps));
    operands->partials = tt_cuda(device)->scratch;
    TT_LAUNCH(device, blocks, 32 * static_cast<unsigned>(warps), 0, norm_gradient_rows, *operands);
    return static_cast<int>(blocks);
}

template <typename T>
static int tt_launch_any_norm_gradient(tt_device *device, tt_norm_gradient_operands<T> *operands)
{
    float *row_means = tt_cuda(device)->scratch;
    tt_column_plan plan =
        tt_plan_columns(device, operands->rows, operands->columns, 1, 3, 2 * operands->rows);
    operands->partials = plan.partials;
    auto norm_gradient_means = tt_norm_gradient_means<T>;
    TT_LAUNCH(device, static_cast<unsigned>(operands->rows), tt_threads_for_row(operands->columns),
              0, norm_gradient_means, *operands, row_means);
    auto norm_gradient_strips = tt_norm_gradient_strips<T>;
    TT_LAUNCH(device, plan.grid, plan.block, 0, norm_gradient_strips, *operands, row_means);
    return plan.chunks;
}

template <typename T>
static void tt_backward(tt_device *device, const tt_residual_norm *norm, tt_matrix dy,
                        tt_matrix d_sum, tt_matrix dx)
{
    tt_matrix normalized = norm->state.normalized;
    tt_norm_gradient_operands<T> operands = {norm->weight,
                                             norm->state.inverse_deviation,
                                             tt_dropout_site_of(&norm->dropout),
                                             tt_rows_of<const T>(normalized),
                                             tt_rows_of<const T>(dy),
                                             tt_rows_of<T>(d_sum),
                                             tt_rows_of<T>(dx),
                                             nullptr,
                                             dy.rows,
                                             static_cast<int>(dy.columns)};
    if (dx.data == d_sum.data) {
        operands.dx.data = nullptr;
    }
    bool fits = dy.columns <= TT_BACKWARD_PACKS * TT_PACK * TT_ROW_THREADS;
    bool wide =
        fits && dy.columns % TT_PACK == 0 && tt_wide(normalized, dy, d_sum, dx, norm->weight);
    int chunks = wide ? tt_launch_norm_gradient(device, &operands)
                      : tt_launch_any_norm_gradient(device, &operands);
    tt_add_column_sums(device, operands.partials, chunks, 3, dy.columns,
                       {{norm->weight_gradient, norm->shift_gradient, norm->bias_gradient}});
}

void tt_cuda_residual_norm_backward(tt_device *device, const tt_residual_norm *norm, tt_matrix dy,
                                    tt_matrix d_sum, tt_matrix dx)
{
    assert(norm->dropout.probability == 0.0f || dx.data != d_sum.data);
    assert(dy.rows == dx.rows && dy.columns == dx.columns && dy.type == dx.type);
    assert(dy.type == d_sum.type && dy.type == norm->state.normalized.type);
    if (dy.rows == 0) {
        return;
    }
    if (dy.type == TT_BF16) {
        tt_backward<__nv_bfloat16>(device, norm, dy, d_sum, dx);
    } else {
        tt_backward<float>(device, norm, dy, d_sum, dx);
    }
}

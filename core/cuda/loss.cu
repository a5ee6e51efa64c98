/* Cross-entropy over rows of logits, with its gradient in their place.
 *
 * Elements that must move: the loss reads each logit once. The gradient needs the whole row's sum
 * first, so it reads each again (from the second-level cache, where a batch of rows fits there) and
 * writes it. The first kernel has a block a row; the second works on strips of columns, so that it
 * reads the bias once for many rows and adds up the bias gradient in registers. Rows without a
 * label are not read: their gradient is written as 0. */
#include "core/cuda/cuda_ops.h"
#include "core/cuda/reduce.cuh"

#include <float.h>

/* What the first kernel leaves of each row. */
typedef struct {
    float *largest; /* logit */
    float *factor;  /* 1 / sum of exponentials of logit - largest */
    float *loss;
    float *correct; /* 1 or 0 */
} tt_row_losses;

enum { TT_LOSS_THREADS = 256, TT_ROW_NUMBERS = 4 };

/* Largest number so far, and the sum of exponentials relative to it. */
typedef struct {
    float largest, sum;
} tt_running_sum;

static __device__ __forceinline__ void tt_raise(tt_running_sum &running, float largest)
{
    float raised = fmaxf(running.largest, largest);
    running.sum *= expf(running.largest - raised);
    running.largest = raised;
}

/* The running sums of all threads in one, in a fixed order; and whether any saw a larger logit. */
static __device__ __forceinline__ void tt_join(tt_running_sum &running, bool &beaten)
{
    typedef tt_warp_partials<float, 1> partials_type;
    TT_SHARED(partials_type, largest);
    float warp_largest = tt_warp_max(running.largest);
    if (threadIdx.x % 32 == 0) {
        largest.value[0][threadIdx.x / 32] = warp_largest;
    }
    __syncthreads();
    float block_largest = largest.value[0][0];
    for (unsigned warp = 1; warp < blockDim.x / 32; warp++) {
        block_largest = fmaxf(block_largest, largest.value[0][warp]);
    }
    tt_raise(running, block_largest);
    float sums[2] = {running.sum, beaten ? 1.0f : 0.0f};
    tt_block_sum(sums);
    running.sum = sums[0];
    beaten = sums[1] > 0.0f;
}

template <typename T, int W>
__global__ void __launch_bounds__(TT_LOSS_THREADS)
    tt_loss_rows(tt_rows<const T> logits, int classes, const float *bias, const int32_t *labels,
                 tt_row_losses losses)
{
    int64_t row = blockIdx.x;
    int32_t label = labels[row];
    if (label < 0) {
        if (threadIdx.x == 0) {
            losses.loss[row] = 0.0f;
            losses.correct[row] = 0.0f;
        }
        return;
    }
    float label_logit = tt_load(logits.at(row, label)) + (bias != nullptr ? bias[label] : 0.0f);
    bool beaten = false; /* by a larger logit, or by an equal one before it */
    tt_running_sum running = {-FLT_MAX, 0.0f};
    for (int column = static_cast<int>(threadIdx.x) * W; column < classes;
         column += TT_LOSS_THREADS * W) {
        int left = classes - column;
        tt_pack<W> pack = tt_load_last_pack<W>(logits.at(row, column), left);
        if (bias != nullptr) {
            tt_add_pack(pack, tt_load_last_pack<W>(bias + column, left));
        }
        float largest = -FLT_MAX;
#pragma unroll
        for (int i = 0; i < W; i++) {
            pack.value[i] = i < left ? pack.value[i] : -INFINITY;
            largest = fmaxf(largest, pack.value[i]);
            beaten = beaten || pack.value[i] > label_logit ||
                     (pack.value[i] == label_logit && column + i < label);
        }
        tt_raise(running, largest);
#pragma unroll
        for (int i = 0; i < W; i++) {
            running.sum += expf(pack.value[i] - running.largest);
        }
    }
    tt_join(running, beaten);
    if (threadIdx.x == 0) {
        losses.largest[row] = running.largest;
        losses.factor[row] = 1.0f / running.sum;
        losses.loss[row] = logf(running.sum) + (running.largest - label_logit);
        losses.correct[row] = !beaten && label_logit == label_logit ? 1.0f : 0.0f;
    }
}

/* Adds the losses and correct rows to the sums, in the order of rows; one block does it. */
static __device__ __forceinline__ void tt_add_losses(tt_row_losses losses, int64_t rows,
                                                     float *loss_sum, float *correct_sum)
{
    double sums[2] = {0.0, 0.0};
    for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
        sums[0] += losses.loss[row];
        sums[1] += losses.correct[row];
    }
    tt_block_sum(sums);
    if (threadIdx.x == 0) {
        *loss_sum += static_cast<float>(sums[0]);
        *correct_sum += static_cast<float>(sums[1]);
    }
}

template <typename NUMBER>
__global__ void __launch_bounds__(TT_LOSS_THREADS)
    tt_sum_losses(tt_row_losses losses, int64_t rows, NUMBER *loss_sum, NUMBER *correct_sum)
{
    tt_add_losses(losses, rows, loss_sum, correct_sum);
}

/* (softmax - one-hot) * scale in place of the logits, by strips of columns. */
template <typename T, int W>
__global__ void __launch_bounds__(256)
    tt_loss_gradient(tt_rows<T> logits, int64_t rows, int classes, const float *bias,
                     const int32_t *labels, const float *gradient_scale, tt_row_losses losses,
                     float *partials)
{
    int column = tt_grid_column<W>(), left = classes - column;
    tt_pack<W> sum = {};
    if (left > 0) {
        float scale = *gradient_scale;
        tt_pack<W> bias_pack = {};
        if (bias != nullptr) {
            bias_pack = tt_load_last_pack<W>(bias + column, left);
        }
#pragma unroll 2
        for (int64_t row = tt_grid_row(); row < rows; row += tt_grid_height()) {
            int label = labels[row];
            tt_pack<W> gradient = {};
            if (label >= 0) {
                float largest = losses.largest[row], factor = losses.factor[row];
                gradient = tt_load_last_pack<W>(logits.at(row, column), left);
#pragma unroll
                for (int i = 0; i < W; i++) {
                    float share = expf(gradient.value[i] + bias_pack.value[i] - largest) * factor;
                    gradient.value[i] = (share - (column + i == label ? 1.0f : 0.0f)) * scale;
                }
                tt_add_pack(sum, gradient);
            }
            tt_store_last_pack(logits.at(row, column), gradient, left);
        }
    }
    if (partials != nullptr) {
        tt_store_column_sums(sum, partials, classes, 0, 1);
    }
}

template <typename T, int W>
static void tt_launch_loss_gradient(tt_device *device, const tt_cross_entropy *loss,
                                    tt_row_losses losses)
{
    tt_matrix logits = loss->logits;
    tt_column_plan plan =
        tt_plan_columns(device, logits.rows, logits.columns, W, 1, TT_ROW_NUMBERS * logits.rows);
    bool with_bias = loss->bias_gradient != nullptr;
    auto loss_gradient = tt_loss_gradient<T, W>;
    TT_LAUNCH(device, plan.grid, plan.block, 0, loss_gradient, tt_rows_of<T>(logits), logits.rows,
              static_cast<int>(logits.columns), loss->bias, loss->labels, loss->gradient_scale,
              losses, with_bias ? plan.partials : nullptr);
    if (with_bias) {
        tt_add_column_sums(device, plan.partials, plan.chunks, 1, logits.columns,
                           {{loss->bias_gradient}});
    }
}

template <typename T, int W>
static void tt_launch_cross_entropy(tt_device *device, const tt_cross_entropy *loss)
{
    tt_matrix logits = loss->logits;
    float *scratch = tt_cuda(device)->scratch;
    assert(static_cast<size_t>(TT_ROW_NUMBERS * logits.rows) <= tt_cuda(device)->scratch_floats);
    tt_row_losses losses = {scratch, scratch + logits.rows, scratch + 2 * logits.rows,
                            scratch + 3 * logits.rows};
    auto loss_rows = tt_loss_rows<T, W>;
    TT_LAUNCH(device, static_cast<unsigned>(logits.rows), TT_LOSS_THREADS, 0, loss_rows,
              tt_rows_of<const T>(logits), static_cast<int>(logits.columns), loss->bias,
              loss->labels, losses);
    auto sum_losses = tt_sum_losses<float>;
    TT_LAUNCH(device, 1, TT_LOSS_THREADS, 0, sum_losses, losses, logits.rows, loss->loss_sum,
              loss->correct_sum);
    if (loss->gradient_scale != nullptr) {
        tt_launch_loss_gradient<T, W>(device, loss, losses);
    }
}

void tt_cuda_cross_entropy(tt_device *device, const tt_cross_entropy *loss)
{
    if (loss->logits.rows > 0) {
        tt_matrix padded = loss->logits; /* rows need not be whole packs, but begin at them */
        padded.columns = padded.stride;
        TT_FOR_ACTIVATIONS(loss->logits.type, tt_wide(padded, loss->bias), tt_launch_cross_entropy,
                           device, loss);
    }
}

/* Biases, GELU, tanh and dropout: elementwise passes bound by memory. Bytes that each must move, an
 * element being 2 (bf16) or 4 (f32): add_bias, dropout and tanh forward 2 elements; GELU forward 2,
 * and 3 where there is a bias, as x is written back; GELU and tanh backward 3, and one more where
 * GELU makes its output again; add_bias_backward 1. Column sums add less than a hundredth to that.
 */
#include "core/cuda/cuda_ops.h"
#include "core/cuda/dropout.cuh"
#include "core/cuda/gelu.cuh"
#include "core/cuda/reduce.cuh"

template <typename T, int W>
__global__ void __launch_bounds__(256)
    tt_add_bias_rows(tt_rows<T> y, int64_t rows, int columns, const float *bias)
{
    int column = tt_grid_column<W>();
    if (column >= columns) {
        return;
    }
    tt_pack<W> bias_pack = tt_load_pack<W>(bias + column);
    for (int64_t row = tt_grid_row(); row < rows; row += tt_grid_height()) {
        tt_pack<W> pack = tt_load_pack<W>(y.at(row, column));
        tt_add_pack(pack, bias_pack);
        tt_store_pack(y.at(row, column), pack);
    }
}

template <typename T, int W>
static void tt_launch_add_bias(tt_device *device, tt_matrix y, const float *bias)
{
    tt_row_grid plan = tt_grid_for_rows(device, y.rows, y.columns, W);
    auto add_bias_rows = tt_add_bias_rows<T, W>;
    TT_LAUNCH(device, plan.grid, plan.block, 0, add_bias_rows, tt_rows_of<T>(y), y.rows,
              static_cast<int>(y.columns), bias);
}

void tt_cuda_add_bias(tt_device *device, tt_matrix y, const float *bias)
{
    if (y.rows > 0) {
        TT_FOR_ACTIVATIONS(y.type, tt_wide(y, bias), tt_launch_add_bias, device, y, bias);
    }
}

template <typename T, int W>
__global__ void __launch_bounds__(256)
    tt_column_sum_rows(tt_rows<const T> dy, int64_t rows, int columns, float *partials)
{
    int column = tt_grid_column<W>();
    tt_pack<W> sum = {};
    if (column < columns) {
#pragma unroll 4
        for (int64_t row = tt_grid_row(); row < rows; row += tt_grid_height()) {
            tt_add_pack(sum, tt_load_pack<W>(dy.at(row, column)));
        }
    }
    tt_store_column_sums(sum, partials, columns, 0, 1);
}

template <typename T, int W>
static void tt_launch_add_bias_backward(tt_device *device, tt_matrix dy, float *bias_gradient)
{
    tt_column_plan plan = tt_plan_columns(device, dy.rows, dy.columns, W, 1, 0);
    auto column_sum_rows = tt_column_sum_rows<T, W>;
    TT_LAUNCH(device, plan.grid, plan.block, 0, column_sum_rows, tt_rows_of<const T>(dy), dy.rows,
              static_cast<int>(dy.columns), plan.partials);
    tt_add_column_sums(device, plan.partials, plan.chunks, 1, dy.columns, {{bias_gradient}});
}

void tt_cuda_add_bias_backward(tt_device *device, tt_matrix dy, float *bias_gradient)
{
    if (dy.rows > 0) {
        TT_FOR_ACTIVATIONS(dy.type, tt_wide(dy), tt_launch_add_bias_backward, device, dy,
                           bias_gradient);
    }
}

/* What GELU takes in is what x holds once rounded: the backward pass then computes the same. */
template <tt_gelu KIND, typename T, int W>
__global__ void __launch_bounds__(256)
    tt_gelu_rows(tt_rows<T> x, int64_t rows, int columns, const float *bias, tt_rows<T> y)
{
    int column = tt_grid_column<W>();
    if (column >= columns) {
        return;
    }
    tt_pack<W> bias_pack = {};
    if (bias != nullptr) {
        bias_pack = tt_load_pack<W>(bias + column);
    }
    for (int64_t row = tt_grid_row(); row < rows; row += tt_grid_height()) {
        tt_pack<W> pack = tt_load_pack<W>(x.at(row, column));
        if (bias != nullptr) {
            tt_add_pack(pack, bias_pack);
            tt_store_pack(x.at(row, column), pack);
        }
#pragma unroll
        for (int i = 0; i < W; i++) {
            pack.value[i] = tt_gelu_value<KIND>(tt_rounded<T>(pack.value[i]));
        }
        tt_store_pack(y.at(row, column), pack);
    }
}

template <typename T, int W>
static void tt_launch_gelu_forward(tt_device *device, tt_gelu kind, tt_matrix x, const float *bias,
                                   tt_matrix y)
{
    tt_row_grid plan = tt_grid_for_rows(device, x.rows, x.columns, W);
    auto gelu_rows =
        kind == TT_GELU_ERF ? tt_gelu_rows<TT_GELU_ERF, T, W> : tt_gelu_rows<TT_GELU_TANH, T, W>;
    TT_LAUNCH(device, plan.grid, plan.block, 0, gelu_rows, tt_rows_of<T>(x), x.rows,
              static_cast<int>(x.columns), bias, tt_rows_of<T>(y));
}

void tt_cuda_gelu_forward(tt_device *device, tt_gelu kind, tt_matrix x, const float *bias,
                          tt_matrix y)
{
    assert(x.rows == y.rows && x.columns == y.columns && x.type == y.type);
    if (x.rows > 0) {
        TT_FOR_ACTIVATIONS(x.type, tt_wide(x, bias, y), tt_launch_gelu_forward, device, kind, x,
                           bias, y);
    }
}

template <tt_gelu KIND, typename T, int W>
__global__ void __launch_bounds__(256)
    tt_gelu_gradient_rows(tt_rows<const T> x, int64_t rows, int columns, tt_rows<const T> dy,
                          tt_rows<T> dx, tt_rows<T> y, float *partials)
{
    int column = tt_grid_column<W>();
    tt_pack<W> sum = {};
    if (column < columns) {
#pragma unroll 1 /* more rows at once cost more registers than they save time */
        for (int64_t row = tt_grid_row(); row < rows; row += tt_grid_height()) {
            tt_pack<W> value = tt_load_pack<W>(x.at(row, column));
            tt_pack<W> gradient = tt_load_pack<W>(dy.at(row, column));
#pragma unroll
            for (int i = 0; i < W; i++) {
                float derivative;
                value.value[i] = tt_gelu_of<KIND>(value.value[i], &derivative);
                gradient.value[i] *= derivative;
            }
            tt_store_pack(dx.at(row, column), gradient);
            if (y.data != nullptr) {
                tt_store_pack(y.at(row, column), value);
            }
            tt_add_pack(sum, gradient);
        }
    }
    if (partials != nullptr) {
        tt_store_column_sums(sum, partials, columns, 0, 1);
    }
}

template <typename T, int W>
static void tt_launch_gelu_backward(tt_device *device, tt_gelu kind, tt_matrix x, tt_matrix dy,
                                    tt_matrix dx, tt_matrix y, float *bias_gradient)
{
    tt_column_plan plan = tt_plan_columns(device, x.rows, x.columns, W, 1, 0);
    auto gelu_gradient_rows = kind == TT_GELU_ERF ? tt_gelu_gradient_rows<TT_GELU_ERF, T, W>
                                                  : tt_gelu_gradient_rows<TT_GELU_TANH, T, W>;
    TT_LAUNCH(device, plan.grid, plan.block, 0, gelu_gradient_rows, tt_rows_of<const T>(x), x.rows,
              static_cast<int>(x.columns), tt_rows_of<const T>(dy), tt_rows_of<T>(dx),
              tt_rows_of<T>(y), bias_gradient != nullptr ? plan.partials : nullptr);
    if (bias_gradient != nullptr) {
        tt_add_column_sums(device, plan.partials, plan.chunks, 1, x.columns, {{bias_gradient}});
    }
}

void tt_cuda_gelu_backward(tt_device *device, tt_gelu kind, tt_matrix x, tt_matrix dy, tt_matrix dx,
                           tt_matrix y, float *bias_gradient)
{
    assert(x.rows == dy.rows && x.columns == dy.columns && x.type == dy.type);
    assert(x.rows == dx.rows && x.columns == dx.columns && x.type == dx.type);
    if (x.rows > 0) {
        TT_FOR_ACTIVATIONS(x.type, tt_wide(x, dy, dx, y), tt_launch_gelu_backward, device, kind, x,
                           dy, dx, y, bias_gradient);
    }
}

template <typename T, int W>
__global__ void __launch_bounds__(256)
    tt_tanh_rows(tt_rows<const T> x, int64_t rows, int columns, const float *bias, tt_rows<T> y)
{
    int column = tt_grid_column<W>();
    if (column >= columns) {
        return;
    }
    tt_pack<W> bias_pack = {};
    if (bias != nullptr) {
        bias_pack = tt_load_pack<W>(bias + column);
    }
    for (int64_t row = tt_grid_row(); row < rows; row += tt_grid_height()) {
        tt_pack<W> pack = tt_load_pack<W>(x.at(row, column));
#pragma unroll
        for (int i = 0; i < W; i++) {
            pack.value[i] = tanhf(pack.value[i] + bias_pack.value[i]);
        }
        tt_store_pack(y.at(row, column), pack);
    }
}

template <typename T, int W>
static void tt_launch_tanh_forward(tt_device *device, tt_matrix x, const float *bias, tt_matrix y)
{
    tt_row_grid plan = tt_grid_for_rows(device, x.rows, x.columns, W);
    auto tanh_rows = tt_tanh_rows<T, W>;
    TT_LAUNCH(device, plan.grid, plan.block, 0, tanh_rows, tt_rows_of<const T>(x), x.rows,
              static_cast<int>(x.columns), bias, tt_rows_of<T>(y));
}

void tt_cuda_tanh_forward(tt_device *device, tt_matrix x, const float *bias, tt_matrix y)
{
    assert(x.rows == y.rows && x.columns == y.columns && x.type == y.type);
    if (x.rows > 0) {
        TT_FOR_ACTIVATIONS(x.type, tt_wide(x, bias, y), tt_launch_tanh_forward, device, x, bias, y);
    }
}

template <typename T, int W>
__global__ void __launch_bounds__(256)
    tt_tanh_gradient_rows(tt_rows<const T> y, int64_t rows, int columns, tt_rows<const T> dy,
                          tt_rows<T> dx, float *partials)
{
    int column = tt_grid_column<W>();
    tt_pack<W> sum = {};
    if (column < columns) {
        for (int64_t row = tt_grid_row(); row < rows; row += tt_grid_height()) {
            tt_pack<W> value = tt_load_pack<W>(y.at(row, column));
            tt_pack<W> gradient = tt_load_pack<W>(dy.at(row, column));
#pragma unroll
            for (int i = 0; i < W; i++) {
                gradient.value[i] *= 1.0f - value.value[i] * value.value[i];
            }
            tt_store_pack(dx.at(row, column), gradient);
            tt_add_pack(sum, gradient);
        }
    }
    if (partials != nullptr) {
        tt_store_column_sums(sum, partials, columns, 0, 1);
    }
}

template <typename T, int W>
static void tt_launch_tanh_backward(tt_device *device, tt_matrix y, tt_matrix dy, tt_matrix dx,
                                    float *bias_gradient)
{
    tt_column_plan plan = tt_plan_columns(device, y.rows, y.columns, W, 1, 0);
    auto tanh_gradient_rows = tt_tanh_gradient_rows<T, W>;
    TT_LAUNCH(device, plan.grid, plan.block, 0, tanh_gradient_rows, tt_rows_of<const T>(y), y.rows,
              static_cast<int>(y.columns), tt_rows_of<const T>(dy), tt_rows_of<T>(dx),
              bias_gradient != nullptr ? plan.partials : nullptr);
    if (bias_gradient != nullptr) {
        tt_add_column_sums(device, plan.partials, plan.chunks, 1, y.columns, {{bias_gradient}});
    }
}

void tt_cuda_tanh_backward(tt_device *device, tt_matrix y, tt_matrix dy, tt_matrix dx,
                           float *bias_gradient)
{
    assert(y.rows == dy.rows && y.columns == dy.columns && y.type == dy.type);
    assert(y.rows == dx.rows && y.columns == dx.columns && y.type == dx.type);
    if (y.rows > 0) {
        TT_FOR_ACTIVATIONS(y.type, tt_wide(y, dy, dx), tt_launch_tanh_backward, device, y, dy, dx,
                           bias_gradient);
    }
}

template <typename T, int W>
__global__ void __launch_bounds__(256)
    tt_dropout_rows(tt_rows<T> x, int64_t rows, int columns, tt_dropout_site site)
{
    int column = tt_grid_column<W>();
    if (column >= columns) {
        return;
    }
    uint32_t step = tt_dropout_step(site);
    for (int64_t row = tt_grid_row(); row < rows; row += tt_grid_height()) {
        tt_pack<W> pack = tt_load_pack<W>(x.at(row, column));
        tt_dropout_apply(site, step, row, column, pack.value);
        tt_store_pack(x.at(row, column), pack);
    }
}

template <typename T, int W>
static void tt_launch_dropout(tt_device *device, tt_matrix x, const tt_dropout *dropout)
{
    tt_row_grid plan = tt_grid_for_rows(device, x.rows, x.columns, W);
    auto dropout_rows = tt_dropout_rows<T, W>;
    TT_LAUNCH(device, plan.grid, plan.block, 0, dropout_rows, tt_rows_of<T>(x), x.rows,
              static_cast<int>(x.columns), tt_dropout_site_of(dropout));
}

void tt_cuda_dropout(tt_device *device, tt_matrix x, const tt_dropout *dropout)
{
    if (x.rows > 0 && dropout->probability > 0.0f) {
        TT_FOR_ACTIVATIONS(x.type, tt_wide(x), tt_launch_dropout, device, x, dropout);
    }
}

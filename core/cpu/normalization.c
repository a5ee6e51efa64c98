#include "core/cpu/normalization.h"

#include "core/cpu/dropout.h"
#include "core/cpu/lanes.h"

/* Every row is walked several times, but a row stays in the first-level cache: memory sees each
 * operand once. */

static void tt_add_rows(const float *a, const float *b, int64_t count, float *sum)
{
#pragma omp simd
    for (int64_t j = 0; j < count; j++) {
        sum[j] = a[j] + b[j];
    }
}

static void tt_add_to_row(const float *addend, int64_t count, float *row)
{
#pragma omp simd
    for (int64_t j = 0; j < count; j++) {
        row[j] += addend[j];
    }
}

/* row = residual + dropout(x + bias) for row i; returns the sum of its entries. */
static float tt_residual_row(const tt_residual_norm *norm, const float *x_row,
                             const float *residual_row, int64_t i, float *row)
{
    const float *bias = norm->bias;
    int64_t columns = norm->state.normalized.columns;
    float multipliers[TT_DROPOUT_SPAN], sum = 0.0f;
    for (int64_t first = 0; first < columns; first += TT_DROPOUT_SPAN) {
        int64_t count = tt_dropout_span_length(columns, first);
        float *span = row + first;
        if (bias != NULL) {
            tt_add_rows(x_row + first, bias + first, count, span);
        } else {
            memcpy(span, x_row + first, (size_t)count * sizeof *span);
        }
        if (norm->dropout.probability > 0.0f) {
            tt_dropout_span(&norm->dropout, i, first, count, multipliers);
#pragma omp simd
            for (int64_t j = 0; j < count; j++) {
                span[j] *= multipliers[j];
            }
        }
        if (residual_row != NULL) {
            tt_add_to_row(residual_row + first, count, span);
        }
        sum += tt_row_sum(span, count);
    }
    return sum;
}

/* Replaces a row by (row - mean) / deviation, writes y_row = row * weight + shift and returns
 * 1 / deviation. The variance is taken around the mean, as a difference of sums would cancel, and
 * what rounding left of the mean of the centred row is taken off too. */
static float tt_normalize_row(const tt_residual_norm *norm, float sum, int64_t columns, float *row,
                              float *y_row)
{
    const float *weight = norm->weight, *shift = norm->shift;
    float mean = sum / (float)columns, rest, squares;
    tt_row_moments(row, mean, columns, &rest, &squares);
    rest /= (float)columns;
    float variance = squares / (float)columns - rest * rest;
    float inverse_deviation = 1.0f / sqrtf((variance > 0.0f ? variance : 0.0f) + norm->epsilon);
#pragma omp simd
    for (int64_t j = 0; j < columns; j++) {
        row[j] = (row[j] - mean - rest) * inverse_deviation;
        y_row[j] = row[j] * weight[j] + shift[j];
    }
    return inverse_deviation;
}

void tt_norm_row_forward(const tt_residual_norm *norm, int64_t i, const float *x_row,
                         const float *residual_row, float *y_row)
{
    float *row = tt_cpu_row(norm->state.normalized, i);
    float sum = tt_residual_row(norm, x_row, residual_row, i, row);
    norm->state.inverse_deviation[i] =
        tt_normalize_row(norm, sum, norm->state.normalized.columns, row, y_row);
}

void tt_norm_row_output(const tt_residual_norm *norm, int64_t i, float *y_row)
{
    const float *normalized = tt_cpu_row(norm->state.normalized, i);
    const float *weight = norm->weight, *shift = norm->shift;
    int64_t columns = norm->state.normalized.columns;
#pragma omp simd
    for (int64_t j = 0; j < columns; j++) {
        y_row[j] = normalized[j] * weight[j] + shift[j];
    }
}

void tt_cpu_residual_norm_forward(tt_device *device, const tt_residual_norm *norm, tt_matrix x,
                                  tt_matrix residual, tt_matrix y)
{
    assert(x.rows == y.rows && x.columns == y.columns);
    assert(norm->state.normalized.rows == x.rows && norm->state.normalized.columns == x.columns);
#pragma omp parallel for num_threads(tt_cpu_row_team(device, x)) schedule(static)
    for (int64_t i = 0; i < x.rows; i++) {
        tt_norm_row_forward(norm, i, tt_cpu_row(x, i),
                            residual.data != NULL ? tt_cpu_row(residual, i) : NULL,
                            tt_cpu_row(y, i));
    }
}

void tt_cpu_residual_norm_output(tt_device *device, const tt_residual_norm *norm, tt_matrix y)
{
#pragma omp parallel for num_threads(tt_cpu_row_team(device, y)) schedule(static)
    for (int64_t i = 0; i < y.rows; i++) {
        tt_norm_row_output(norm, i, tt_cpu_row(y, i));
    }
}

/* d_sum = (g - mean(g) - normalized * mean(g * normalized)) / deviation with g = dy * weight. */
static void tt_normalize_gradient_row(const tt_residual_norm *norm, int64_t i, const float *dy_row,
                                      float *d_sum_row, tt_norm_partials partials)
{
    const float *normalized = tt_cpu_row(norm->state.normalized, i), *weight = norm->weight;
    int64_t columns = norm->state.normalized.columns;
    float sum = 0.0f, product_sum = 0.0f;
#pragma omp simd reduction(+ : sum, product_sum)
    for (int64_t j = 0; j < columns; j++) {
        float product = dy_row[j] * normalized[j];
        sum += dy_row[j] * weight[j];
        product_sum += product * weight[j];
        partials.weight[j] += product;
        partials.shift[j] += dy_row[j];
    }
    float mean = sum / (float)columns, product_mean = product_sum / (float)columns;
    float inverse_deviation = norm->state.inverse_deviation[i];
#pragma omp simd
    for (int64_t j = 0; j < columns; j++) {
        float centred = dy_row[j] * weight[j] - mean - normalized[j] * product_mean;
        d_sum_row[j] = centred * inverse_deviation;
    }
}

/* dx = dropout(d_sum) for row i. */
static void tt_dropout_gradient_row(const tt_residual_norm *norm, int64_t i, const float *d_sum_row,
                                    float *dx_row)
{
    int64_t columns = norm->state.normalized.columns;
    if (norm->dropout.probability == 0.0f) {
        if (dx_row != d_sum_row) {
            memcpy(dx_row, d_sum_row, (size_t)columns * sizeof *dx_row);
        }
        return;
    }
    float multipliers[TT_DROPOUT_SPAN];
    for (int64_t first = 0; first < columns; first += TT_DROPOUT_SPAN) {
        int64_t count = tt_dropout_span_length(columns, first);
        tt_dropout_span(&norm->dropout, i, first, count, multipliers);
#pragma omp simd
        for (int64_t j = 0; j < count; j++) {
            dx_row[first + j] = d_sum_row[first + j] * multipliers[j];
        }
    }
}

void tt_norm_row_backward(const tt_residual_norm *norm, int64_t i, const float *dy_row,
                          float *d_sum_row, float *dx_row, tt_norm_partials partials)
{
    tt_normalize_gradient_row(norm, i, dy_row, d_sum_row, partials);
    tt_dropout_gradient_row(norm, i, d_sum_row, dx_row);
    if (norm->bias_gradient != NULL) {
        int64_t columns = norm->state.normalized.columns;
#pragma omp simd
        for (int64_t j = 0; j < columns; j++) {
            partials.bias[j] += dx_row[j];
        }
    }
}

tt_norm_partials tt_norm_start_partials(const tt_device *device, const tt_residual_norm *norm)
{
    int64_t columns = norm->state.normalized.columns;
    float *scratch = tt_cpu_start_partials(device, 3 * columns);
    return (tt_norm_partials){scratch, scratch + columns, scratch + 2 * columns};
}

void tt_norm_add_partials(const tt_device *device, const tt_residual_norm *norm)
{
    int64_t columns = norm->state.normalized.columns;
    tt_cpu_add_partials(device, 0, columns, norm->weight_gradient);
    tt_cpu_add_partials(device, columns, columns, norm->shift_gradient);
    if (norm->bias_gradient != NULL) {
        tt_cpu_add_partials(device, 2 * columns, columns, norm->bias_gradient);
    }
}

void tt_cpu_residual_norm_backward(tt_device *device, const tt_residual_norm *norm, tt_matrix dy,
                                   tt_matrix d_sum, tt_matrix dx)
{
    assert(norm->dropout.probability == 0.0f || dx.data != d_sum.data);
    assert(dy.rows == dx.rows && dy.columns == dx.columns);
    assert(3 * dy.columns <= TT_CPU_THREAD_SCRATCH);
#pragma omp parallel num_threads(tt_cpu_row_team(device, dy))
    {
        tt_norm_partials partials = tt_norm_start_partials(device, norm);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < dy.rows; i++) {
            tt_norm_row_backward(norm, i, tt_cpu_row(dy, i), tt_cpu_row(d_sum, i),
                                 tt_cpu_row(dx, i), partials);
        }
        tt_norm_add_partials(device, norm);
    }
}

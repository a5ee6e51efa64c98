#include "core/cpu/cpu_ops.h"
#include "core/cpu/dropout.h"
#include "core/cpu/gelu.h"
#include "core/cpu/vector_math.h"

/* The loops are compiled once for each kind: a choice inside them would compute both. */
#define TT_FOR_EACH_KIND inline __attribute__((always_inline))

static TT_FOR_EACH_KIND float tt_gelu_of(tt_gelu kind, float x, float *derivative)
{
    return kind == TT_GELU_ERF ? tt_gelu_erf(x, derivative) : tt_gelu_tanh(x, derivative);
}

static TT_FOR_EACH_KIND void tt_gelu_loop(tt_gelu kind, const float *x, int64_t count, float *y)
{
    float unused;
#pragma omp simd private(unused)
    for (int64_t j = 0; j < count; j++) {
        y[j] = tt_gelu_of(kind, x[j], &unused);
    }
}

/* dx = dy * gelu'(x), dx may be dy; y = gelu(x) unless y is NULL. */
static TT_FOR_EACH_KIND void tt_gelu_gradient_loop(tt_gelu kind, const float *x, const float *dy,
                                                   int64_t count, float *dx, float *y)
{
    float derivative;
    if (y == NULL) {
#pragma omp simd private(derivative)
        for (int64_t j = 0; j < count; j++) {
            tt_gelu_of(kind, x[j], &derivative);
            dx[j] = dy[j] * derivative;
        }
        return;
    }
#pragma omp simd private(derivative)
    for (int64_t j = 0; j < count; j++) {
        y[j] = tt_gelu_of(kind, x[j], &derivative);
        dx[j] = dy[j] * derivative;
    }
}

static void tt_gelu_row(tt_gelu kind, const float *x, int64_t count, float *y)
{
    if (kind == TT_GELU_ERF) {
        tt_gelu_loop(TT_GELU_ERF, x, count, y);
    } else {
        tt_gelu_loop(TT_GELU_TANH, x, count, y);
    }
}

static void tt_gelu_gradient_row(tt_gelu kind, const float *x, const float *dy, int64_t count,
                                 float *dx, float *y)
{
    if (kind == TT_GELU_ERF) {
        tt_gelu_gradient_loop(TT_GELU_ERF, x, dy, count, dx, y);
    } else {
        tt_gelu_gradient_loop(TT_GELU_TANH, x, dy, count, dx, y);
    }
}

static inline void tt_add_row(const float *source, int64_t count, float *target)
{
#pragma omp simd
    for (int64_t j = 0; j < count; j++) {
        target[j] += source[j];
    }
}

void tt_cpu_add_bias(tt_device *device, tt_matrix y, const float *bias)
{
#pragma omp parallel for num_threads(tt_cpu_row_team(device, y)) schedule(static)
    for (int64_t i = 0; i < y.rows; i++) {
        tt_add_row(bias, y.columns, tt_cpu_row(y, i));
    }
}

static void tt_add_bias_backward_block(tt_device *device, tt_matrix dy, float *bias_gradient)
{
#pragma omp parallel num_threads(tt_cpu_row_team(device, dy))
    {
        float *partial = tt_cpu_start_partials(device, dy.columns);
#pragma omp for schedule(static)
        for (int64_t group = 0; group < (dy.rows + 3) / 4; group++) {
            int64_t first = 4 * group;
            if (first + 4 > dy.rows) {
                for (int64_t i = first; i < dy.rows; i++) {
                    tt_add_row(tt_cpu_row(dy, i), dy.columns, partial);
                }
                continue;
            }
            const float *a = tt_cpu_row(dy, first), *b = a + dy.stride, *c = b + dy.stride,
                        *d = c + dy.stride;
#pragma omp simd
            for (int64_t j = 0; j < dy.columns; j++) {
                partial[j] += (a[j] + b[j]) + (c[j] + d[j]);
            }
        }
        tt_cpu_add_partials(device, 0, dy.columns, bias_gradient);
    }
}

void tt_cpu_add_bias_backward(tt_device *device, tt_matrix dy, float *bias_gradient)
{
    for (int64_t first = 0; first < dy.columns; first += TT_CPU_THREAD_SCRATCH) {
        tt_matrix block = tt_cpu_column_block(dy, first);
        tt_add_bias_backward_block(device, block, bias_gradient + first);
    }
}

void tt_cpu_gelu_forward(tt_device *device, tt_gelu kind, tt_matrix x, const float *bias,
                         tt_matrix y)
{
    assert(x.rows == y.rows && x.columns == y.columns);
#pragma omp parallel for num_threads(tt_cpu_row_team(device, x)) schedule(static)
    for (int64_t i = 0; i < x.rows; i++) {
        if (bias != NULL) {
            tt_add_row(bias, x.columns, tt_cpu_row(x, i));
        }
        tt_gelu_row(kind, tt_cpu_row(x, i), x.columns, tt_cpu_row(y, i));
    }
}

static void tt_gelu_backward_block(tt_device *device, tt_gelu kind, tt_matrix x, tt_matrix dy,
                                   tt_matrix dx, tt_matrix y, float *bias_gradient)
{
#pragma omp parallel num_threads(tt_cpu_row_team(device, x))
    {
        float *partial = NULL;
        if (bias_gradient != NULL) {
            partial = tt_cpu_start_partials(device, x.columns);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < x.rows; i++) {
            float *dx_row = tt_cpu_row(dx, i);
            tt_gelu_gradient_row(kind, tt_cpu_row(x, i), tt_cpu_row(dy, i), x.columns, dx_row,
                                 y.data != NULL ? tt_cpu_row(y, i) : NULL);
            if (partial != NULL) {
                tt_add_row(dx_row, x.columns, partial);
            }
        }
        if (partial != NULL) {
            tt_cpu_add_partials(device, 0, x.columns, bias_gradient);
        }
    }
}

void tt_cpu_gelu_backward(tt_device *device, tt_gelu kind, tt_matrix x, tt_matrix dy, tt_matrix dx,
                          tt_matrix y, float *bias_gradient)
{
    assert(x.rows == dy.rows && x.columns == dy.columns);
    assert(x.rows == dx.rows && x.columns == dx.columns);
    for (int64_t first = 0; first < x.columns; first += TT_CPU_THREAD_SCRATCH) {
        tt_gelu_backward_block(device, kind, tt_cpu_column_block(x, first),
                               tt_cpu_column_block(dy, first), tt_cpu_column_block(dx, first),
                               y.data != NULL ? tt_cpu_column_block(y, first) : y,
                               bias_gradient != NULL ? bias_gradient + first : NULL);
    }
}

void tt_cpu_tanh_forward(tt_device *device, tt_matrix x, const float *bias, tt_matrix y)
{
    assert(x.rows == y.rows && x.columns == y.columns);
#pragma omp parallel for num_threads(tt_cpu_row_team(device, x)) schedule(static)
    for (int64_t i = 0; i < x.rows; i++) {
        const float *x_row = tt_cpu_row(x, i);
        float *y_row = tt_cpu_row(y, i);
        if (bias != NULL) {
#pragma omp simd
            for (int64_t j = 0; j < x.columns; j++) {
                y_row[j] = tt_tanh(x_row[j] + bias[j]);
            }
        } else {
#pragma omp simd
            for (int64_t j = 0; j < x.columns; j++) {
                y_row[j] = tt_tanh(x_row[j]);
            }
        }
    }
}

static void tt_tanh_backward_block(tt_device *device, tt_matrix y, tt_matrix dy, tt_matrix dx,
                                   float *bias_gradient)
{
#pragma omp parallel num_threads(tt_cpu_row_team(device, y))
    {
        float *partial = NULL;
        if (bias_gradient != NULL) {
            partial = tt_cpu_start_partials(device, y.columns);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < y.rows; i++) {
            const float *y_row = tt_cpu_row(y, i), *dy_row = tt_cpu_row(dy, i);
            float *dx_row = tt_cpu_row(dx, i);
#pragma omp simd
            for (int64_t j = 0; j < y.columns; j++) {
                dx_row[j] = dy_row[j] * (1.0f - y_row[j] * y_row[j]);
            }
            if (partial != NULL) {
                tt_add_row(dx_row, y.columns, partial);
            }
        }
        if (partial != NULL) {
            tt_cpu_add_partials(device, 0, y.columns, bias_gradient);
        }
    }
}

void tt_cpu_tanh_backward(tt_device *device, tt_matrix y, tt_matrix dy, tt_matrix dx,
                          float *bias_gradient)
{
    assert(y.rows == dy.rows && y.columns == dy.columns);
    assert(y.rows == dx.rows && y.columns == dx.columns);
    for (int64_t first = 0; first < y.columns; first += TT_CPU_THREAD_SCRATCH) {
        tt_tanh_backward_block(device, tt_cpu_column_block(y, first),
                               tt_cpu_column_block(dy, first), tt_cpu_column_block(dx, first),
                               bias_gradient != NULL ? bias_gradient + first : NULL);
    }
}

void tt_cpu_dropout(tt_device *device, tt_matrix x, const tt_dropout *dropout)
{
    if (dropout->probability == 0.0f) {
        return;
    }
#pragma omp parallel for num_threads(tt_cpu_row_team(device, x)) schedule(static)
    for (int64_t i = 0; i < x.rows; i++) {
        float multipliers[TT_DROPOUT_SPAN];
        for (int64_t first = 0; first < x.columns; first += TT_DROPOUT_SPAN) {
            int64_t count = tt_dropout_span_length(x.columns, first);
            float *span = tt_cpu_row(x, i) + first;
            tt_dropout_span(dropout, i, first, count, multipliers);
#pragma omp simd
            for (int64_t j = 0; j < count; j++) {
                span[j] *= multipliers[j];
            }
        }
    }
}

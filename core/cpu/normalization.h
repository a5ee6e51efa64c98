/* The residual norm a row at a time, for operations that make or use rows while they are in cache.
 * Rows are numbered as in the norm's state. */
#ifndef TT_CORE_CPU_NORMALIZATION_H
#define TT_CORE_CPU_NORMALIZATION_H

#include "core/cpu/cpu_ops.h"

/* y_row = norm(residual_row + dropout(x_row + bias)); fills the state of row i. residual_row may be
 * NULL; y_row may be residual_row. */
void tt_norm_row_forward(const tt_residual_norm *norm, int64_t i, const float *x_row,
                         const float *residual_row, float *y_row);
/* y_row again from the state. */
void tt_norm_row_output(const tt_residual_norm *norm, int64_t i, float *y_row);

/* A thread's partial column sums in a backward pass: started by every thread of a parallel region,
 * added to by rows, and added to the gradients, in the order of threads, after a barrier. */
typedef struct {
    float *weight, *shift, *bias;
} tt_norm_partials;

tt_norm_partials tt_norm_start_partials(const tt_device *device, const tt_residual_norm *norm);
void tt_norm_add_partials(const tt_device *device, const tt_residual_norm *norm);

/* d_sum_row (may be dy_row): gradient before the norm; dx_row: that with dropout applied. */
void tt_norm_row_backward(const tt_residual_norm *norm, int64_t i, const float *dy_row,
                          float *d_sum_row, float *dx_row, tt_norm_partials partials);

#endif

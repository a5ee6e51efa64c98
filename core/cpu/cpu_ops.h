/* The operations of the CPU device, one declaration for each entry of tt_ops (core/ops.h says what
 * they do), and the little that their implementations share. Only core/cpu/ includes this. */
#ifndef TT_CORE_CPU_CPU_OPS_H
#define TT_CORE_CPU_CPU_OPS_H

#include "core/ops.h"

#include <assert.h>
#include <omp.h>
#include <string.h>

/* Floats of scratch memory that each thread has. Column sums keep one partial sum a column here, so
 * that a wide matrix is read once; wider matrices than this fits are walked in column blocks. */
enum { TT_CPU_THREAD_SCRATCH = 65536 };

/* tt_device.state of the CPU device. */
typedef struct {
    float *scratch; /* 64-byte aligned, threads * TT_CPU_THREAD_SCRATCH floats at least */
    size_t scratch_floats;
} tt_cpu_state;

static inline float *tt_cpu_thread_scratch(const tt_device *device, int thread)
{
    const tt_cpu_state *state = device->state;
    assert((size_t)(thread + 1) * TT_CPU_THREAD_SCRATCH <= state->scratch_floats);
    return state->scratch + (size_t)thread * TT_CPU_THREAD_SCRATCH;
}

/* How many threads a loop over `elements` is worth: a thread more for each 16384. */
static inline int tt_cpu_team(const tt_device *device, int64_t elements)
{
    int64_t worth = 1 + elements / 16384;
    return worth < device->threads ? (int)worth : device->threads;
}

static inline int tt_cpu_row_team(const tt_device *device, tt_matrix matrix)
{
    return tt_cpu_team(device, matrix.rows * matrix.columns);
}

static inline float *tt_cpu_row(tt_matrix matrix, int64_t row)
{
    assert(matrix.type == TT_F32);
    return (float *)matrix.data + row * matrix.stride;
}

/* Columns [first, first + TT_CPU_THREAD_SCRATCH) of `matrix`, or those that are left. */
static inline tt_matrix tt_cpu_column_block(tt_matrix matrix, int64_t first)
{
    int64_t left = matrix.columns - first;
    return tt_matrix_columns(matrix, first,
                             left < TT_CPU_THREAD_SCRATCH ? left : TT_CPU_THREAD_SCRATCH);
}

/* Column sums in a parallel region: every thread starts its partial sums at 0, adds rows to them,
 * and after a barrier tt_cpu_add_partials adds the partial sums of all threads, in the order of
 * threads, to `sums`. `first` and `count` are places in the threads' scratch memory. */
static inline float *tt_cpu_start_partials(const tt_device *device, int64_t count)
{
    assert(count <= TT_CPU_THREAD_SCRATCH);
    float *partial = tt_cpu_thread_scratch(device, omp_get_thread_num());
    memset(partial, 0, (size_t)count * sizeof *partial);
    return partial;
}

static inline void tt_cpu_add_partials(const tt_device *device, int64_t first, int64_t count,
                                       float *sums)
{
    int team = omp_get_num_threads();
    int64_t piece = (count / team + 16) / 16 * 16;
    int64_t start = piece * omp_get_thread_num();
    int64_t end = start + piece < count ? start + piece : count;
    for (int thread = 0; thread < team; thread++) {
        const float *partial = tt_cpu_thread_scratch(device, thread) + first;
#pragma omp simd
        for (int64_t j = start; j < end; j++) {
            sums[j] += partial[j];
        }
    }
}

void tt_cpu_multiply(tt_device *device, const tt_product *product);
void tt_cpu_multiply_group(tt_device *device, const tt_product *products, int count);
void tt_cpu_copy_group(tt_device *device, const tt_copy *copies, int count);
void tt_cpu_scale_cores(tt_device *device, const tt_scaled_core *cores, int count);
void tt_cpu_scale_cores_backward(tt_device *device, const tt_scaled_core *cores, int count);
void tt_cpu_add_bias(tt_device *device, tt_matrix y, const float *bias);
void tt_cpu_add_bias_backward(tt_device *device, tt_matrix dy, float *bias_gradient);
void tt_cpu_gelu_forward(tt_device *device, tt_gelu kind, tt_matrix x, const float *bias,
                         tt_matrix y);
void tt_cpu_gelu_backward(tt_device *device, tt_gelu kind, tt_matrix x, tt_matrix dy, tt_matrix dx,
                          tt_matrix y, float *bias_gradient);
void tt_cpu_tanh_forward(tt_device *device, tt_matrix x, const float *bias, tt_matrix y);
void tt_cpu_tanh_backward(tt_device *device, tt_matrix y, tt_matrix dy, tt_matrix dx,
                          float *bias_gradient);
void tt_cpu_dropout(tt_device *device, tt_matrix x, const tt_dropout *dropout);
void tt_cpu_residual_norm_forward(tt_device *device, const tt_residual_norm *norm, tt_matrix x,
                                  tt_matrix residual, tt_matrix y);
void tt_cpu_residual_norm_output(tt_device *device, const tt_residual_norm *norm, tt_matrix y);
void tt_cpu_residual_norm_backward(tt_device *device, const tt_residual_norm *norm, tt_matrix dy,
                                   tt_matrix d_sum, tt_matrix dx);
void tt_cpu_embedding_forward(tt_device *device, const tt_embedding *embedding, tt_matrix y);
void tt_cpu_embedding_backward(tt_device *device, const tt_embedding *embedding, tt_matrix dy,
                               void *workspace);
size_t tt_cpu_embedding_workspace(tt_device *device, int64_t tokens, int64_t vocabulary);
void tt_cpu_distinct_ids(tt_device *device, const tt_distinct *distinct);
size_t tt_cpu_distinct_ids_workspace(tt_device *device, int64_t count, int64_t bound);
void tt_cpu_slice_products_forward(tt_device *device, const tt_slice_products *products,
                                   tt_matrix rows);
void tt_cpu_slice_products_backward(tt_device *device, const tt_slice_products *products,
                                    tt_matrix d_rows);
size_t tt_cpu_slice_products_workspace(tt_device *device, const tt_slice_products *products);
void tt_cpu_gather_rows(tt_device *device, tt_matrix x, const int32_t *index, tt_matrix y);
void tt_cpu_scatter_rows(tt_device *device, tt_matrix dy, const int32_t *index, tt_matrix dx);
void tt_cpu_cross_entropy(tt_device *device, const tt_cross_entropy *loss);
void tt_cpu_attention_forward(tt_device *device, const tt_attention *attention, tt_matrix context);
void tt_cpu_attention_backward(tt_device *device, const tt_attention *attention,
                               tt_matrix d_context, tt_matrix dq, tt_matrix dk, tt_matrix dv);
size_t tt_cpu_attention_workspace(tt_device *device, const tt_attention *attention);
void tt_cpu_thin_attention_forward(tt_device *device, const tt_thin_attention *attention,
                                   tt_matrix u_o);
void tt_cpu_thin_attention_backward(tt_device *device, const tt_thin_attention *attention,
                                    tt_matrix d_u_o, tt_matrix d_u);
size_t tt_cpu_thin_attention_workspace(tt_device *device, const tt_thin_attention *attention);
void tt_cpu_thin_feed_forward_forward(tt_device *device, const tt_thin_feed_forward *block,
                                      tt_matrix u2);
void tt_cpu_thin_feed_forward_backward(tt_device *device, const tt_thin_feed_forward *block,
                                       tt_matrix d_u2, tt_matrix d_u1);
size_t tt_cpu_thin_feed_forward_workspace(tt_device *device, const tt_thin_feed_forward *block);
void tt_cpu_thin_joint_forward(tt_device *device, const tt_thin_joint *joint, tt_matrix hidden,
                               tt_matrix u_next);
void tt_cpu_thin_joint_backward(tt_device *device, const tt_thin_joint *joint, tt_matrix d_u_next,
                                tt_matrix d_hidden, tt_matrix d_u);
size_t tt_cpu_thin_joint_workspace(tt_device *device, const tt_thin_joint *joint);
void tt_cpu_gradient_check(tt_device *device, const tt_update_rule *rule, const tt_update *update);
void tt_cpu_update(tt_device *device, const tt_update_rule *rule, const tt_update *update);
size_t tt_cpu_update_workspace(tt_device *device, const tt_segment *segments, int count);
void tt_cpu_rank_objective(tt_device *device, const tt_rank_terms *terms);
size_t tt_cpu_rank_objective_workspace(tt_device *device, int link_count);

#endif

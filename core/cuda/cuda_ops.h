/* The operations of the CUDA device, one declaration for each entry of tt_ops: core/ops.h says what
 * they do. Only core/cuda/ includes this. */
#ifndef TT_CORE_CUDA_CUDA_OPS_H
#define TT_CORE_CUDA_CUDA_OPS_H

#include "core/cuda/cuda_device.h"

/* What the tiles of attention and of the feed-forward block are wide enough for. */
enum { TT_CUDA_LARGEST_THIN_RANK = 128, TT_CUDA_LARGEST_HEAD = 128 };

extern "C" {

void tt_cuda_multiply(tt_device *device, const tt_product *product);
void tt_cuda_multiply_group(tt_device *device, const tt_product *products, int count);
void tt_cuda_copy_group(tt_device *device, const tt_copy *copies, int count);
void tt_cuda_scale_cores(tt_device *device, const tt_scaled_core *cores, int count);
void tt_cuda_scale_cores_backward(tt_device *device, const tt_scaled_core *cores, int count);
void tt_cuda_add_bias(tt_device *device, tt_matrix y, const float *bias);
void tt_cuda_add_bias_backward(tt_device *device, tt_matrix dy, float *bias_gradient);
void tt_cuda_gelu_forward(tt_device *device, tt_gelu kind, tt_matrix x, const float *bias,
                          tt_matrix y);
void tt_cuda_gelu_backward(tt_device *device, tt_gelu kind, tt_matrix x, tt_matrix dy, tt_matrix dx,
                           tt_matrix y, float *bias_gradient);
void tt_cuda_tanh_forward(tt_device *device, tt_matrix x, const float *bias, tt_matrix y);
void tt_cuda_tanh_backward(tt_device *device, tt_matrix y, tt_matrix dy, tt_matrix dx,
                           float *bias_gradient);
void tt_cuda_dropout(tt_device *device, tt_matrix x, const tt_dropout *dropout);
void tt_cuda_residual_norm_forward(tt_device *device, const tt_residual_norm *norm, tt_matrix x,
                                   tt_matrix residual, tt_matrix y);
void tt_cuda_residual_norm_output(tt_device *device, const tt_residual_norm *norm, tt_matrix y);
void tt_cuda_residual_norm_backward(tt_device *device, const tt_residual_norm *norm, tt_matrix dy,
                                    tt_matrix d_sum, tt_matrix dx);
void tt_cuda_embedding_forward(tt_device *device, const tt_embedding *embedding, tt_matrix y);
void tt_cuda_embedding_backward(tt_device *device, const tt_embedding *embedding, tt_matrix dy,
                                void *workspace);
size_t tt_cuda_embedding_workspace(tt_device *device, int64_t tokens, int64_t vocabulary);
void tt_cuda_distinct_ids(tt_device *device, const tt_distinct *distinct);
size_t tt_cuda_distinct_ids_workspace(tt_device *device, int64_t count, int64_t bound);
void tt_cuda_slice_products_forward(tt_device *device, const tt_slice_products *products,
                                    tt_matrix rows);
void tt_cuda_slice_products_backward(tt_device *device, const tt_slice_products *products,
                                     tt_matrix d_rows);
size_t tt_cuda_slice_products_workspace(tt_device *device, const tt_slice_products *products);
void tt_cuda_gather_rows(tt_device *device, tt_matrix x, const int32_t *index, tt_matrix y);
void tt_cuda_scatter_rows(tt_device *device, tt_matrix dy, const int32_t *index, tt_matrix dx);
void tt_cuda_cross_entropy(tt_device *device, const tt_cross_entropy *loss);
void tt_cuda_attention_forward(tt_device *device, const tt_attention *attention, tt_matrix context);
void tt_cuda_attention_backward(tt_device *device, const tt_attention *attention,
                                tt_matrix d_context, tt_matrix dq, tt_matrix dk, tt_matrix dv);
size_t tt_cuda_attention_workspace(tt_device *device, const tt_attention *attention);
void tt_cuda_thin_attention_forward(tt_device *device, const tt_thin_attention *attention,
                                    tt_matrix u_o);
void tt_cuda_thin_attention_backward(tt_device *device, const tt_thin_attention *attention,
                                     tt_matrix d_u_o, tt_matrix d_u);
size_t tt_cuda_thin_attention_workspace(tt_device *device, const tt_thin_attention *attention);
void tt_cuda_thin_feed_forward_forward(tt_device *device, const tt_thin_feed_forward *block,
                                       tt_matrix u2);
void tt_cuda_thin_feed_forward_backward(tt_device *device, const tt_thin_feed_forward *block,
                                        tt_matrix d_u2, tt_matrix d_u1);
size_t tt_cuda_thin_feed_forward_workspace(tt_device *device, const tt_thin_feed_forward *block);
void tt_cuda_thin_joint_forward(tt_device *device, const tt_thin_joint *joint, tt_matrix hidden,
                                tt_matrix u_next);
void tt_cuda_thin_joint_backward(tt_device *device, const tt_thin_joint *joint, tt_matrix d_u_next,
                                 tt_matrix d_hidden, tt_matrix d_u);
size_t tt_cuda_thin_joint_workspace(tt_device *device, const tt_thin_joint *joint);
void tt_cuda_gradient_check(tt_device *device, const tt_update_rule *rule, const tt_update *update);
void tt_cuda_update(tt_device *device, const tt_update_rule *rule, const tt_update *update);
size_t tt_cuda_update_workspace(tt_device *device, const tt_segment *segments, int count);
void tt_cuda_rank_objective(tt_device *device, const tt_rank_terms *terms);
size_t tt_cuda_rank_objective_workspace(tt_device *device, int link_count);

} /* extern "C" */

#endif

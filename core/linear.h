/* A linear map y = x W^T + bias, dense or as a tensor train. The dense weight is [outputs, inputs],
 * as Hugging Face stores it. A map leaves its bias to whoever reads y next, since every reader
 * makes a pass over y anyway (GELU, attention, the residual norm); tt_linear.bias is theirs to add.
 *
 * A train that has lost all its ranks is a removed map: W is 0, the bias is all that is stored and
 * learnt, and its products are those without an inner dimension. */
#ifndef TT_CORE_LINEAR_H
#define TT_CORE_LINEAR_H

#include "core/tensor_train.h"

typedef enum { TT_DENSE, TT_TENSOR_TRAIN, TT_REMOVED } tt_form;

/* How a map is to be stored: `shape` counts for TT_TENSOR_TRAIN only. TT_REMOVED is not asked for;
 * a map becomes it by the table of shapes. */
typedef struct {
    tt_form form;
    tt_train_shape shape;
} tt_linear_form;

typedef struct {
    tt_form form;
    int64_t inputs, outputs;
    int64_t rank; /* r_d, the width of u; 0 for a dense map and a removed one */
    tt_parameters *parameters;
    tt_train_set *trains;
    tt_parameter_id weight, bias;
    int train;
    tt_train_shape shape; /* of a tensor train; of a removed map, with its inner ranks 0 */
} tt_linear;

/* Registers "<name>.weight" [outputs, inputs], or the cores and diagonals "<name>.core_1"..., and
 * "<name>.bias" [outputs]. `neighbour`: the map just added before with the same input, or NULL; as
 * tensor trains both then share one input product.
 *
 * Where the table trains->shapes names the map, its ranks are those of the table, which must have
 * the modes of `form` and ranks no larger; with a rank of 0 it is removed, a dense map too (whose
 * entry has two modes, inputs and outputs). */
tt_status tt_linear_add(tt_linear *linear, const char *name, int64_t inputs, int64_t outputs,
                        const tt_linear_form *form, const tt_linear *neighbour,
                        tt_parameters *parameters, tt_train_set *trains, tt_error *error);

/* Draws dense weights and assembled tensor-train entries with this standard deviation; bias 0. */
void tt_linear_initialize(const tt_linear *linear, float deviation, uint64_t seed);
/* After that: puts `matrix` [inputs, outputs] on top of what was drawn. A dense map becomes their
 * sum; a tensor train gives the matrix the ranks that it needs and keeps what was drawn in the
 * others. Fails for want of memory, and where the ranks cannot hold the matrix; ranks that a table
 * of shapes has cut (their values come from a checkpoint) hold what they can. */
tt_status tt_linear_initialize_around(const tt_linear *linear, const double *matrix,
                                      tt_error *error);

/* Numbers learnt with the bias, and what the dense twin has. */
int64_t tt_linear_size(const tt_linear *linear);
int64_t tt_linear_dense_size(const tt_linear *linear);

/* "bert.encoder.layer.0.output.dense": the map's name, as it was given. */
void tt_linear_name(const tt_linear *linear, char *name, size_t size);

const float *tt_linear_bias(const tt_linear *linear);
float *tt_linear_bias_gradient(const tt_linear *linear);
/* The tensor train of the map. */
const tt_train *tt_linear_train(const tt_linear *linear);

/* y = x W^T. As a tensor train: u = x A [rows, rank], y = u B; the backward pass needs u again. A
 * dense map does not touch u, a removed one neither x nor u. */
void tt_linear_forward(const tt_linear *linear, tt_matrix x, tt_matrix u, tt_matrix y);
/* The same with the bias and GELU: y = gelu(before), before = x W^T + bias. */
void tt_linear_forward_gelu(const tt_linear *linear, tt_gelu gelu, tt_matrix x, tt_matrix u,
                            tt_matrix before, tt_matrix y);
/* y = u B alone, for tensor trains. */
void tt_linear_expand(const tt_linear *linear, tt_matrix u, tt_matrix y);

/* Adds to the gradient of W (of dA and dB); then dx = beta dx + dy W unless dx.data is NULL. With
 * beta 0, dx may be x itself. du: scratch, [rows, rank]. The bias is not touched. */
void tt_linear_backward(const tt_linear *linear, tt_matrix x, tt_matrix u, tt_matrix dy,
                        tt_matrix du, float beta, tt_matrix dx);
/* The half of the backward pass next to y: dB += u^T dy, du = dy B^T. */
void tt_linear_expand_backward(const tt_linear *linear, tt_matrix u, tt_matrix dy, tt_matrix du);

/* The half next to x, for the maps first..last that share their input and lie side by side in
 * u [rows, sum of ranks]: u = x [A ...]; then d[A ...] += x^T du, dx = beta dx + du [A ...]^T. */
void tt_linear_contract(const tt_linear *first, const tt_linear *last, tt_matrix x, tt_matrix u);
void tt_linear_contract_backward(const tt_linear *first, const tt_linear *last, tt_matrix x,
                                 tt_matrix du, float beta, tt_matrix dx);

/* c = op(a) op(b) + beta c, op being the transpose where asked. */
void tt_linear_multiply(tt_device *device, bool transpose_a, bool transpose_b, tt_matrix a,
                        tt_matrix b, float beta, tt_matrix c);

#endif

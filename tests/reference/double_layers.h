/* The layers of a BERT encoder in double precision, forward and backward, as plain loops. A layer
 * keeps what its backward pass needs; gradients of parameters are added to tt_double_tensor, those
 * of activations overwrite, unless said otherwise. */
#ifndef TT_TESTS_DOUBLE_LAYERS_H
#define TT_TESTS_DOUBLE_LAYERS_H

#include "tests/reference/double_tensors.h"
#include "tests/reference/double_train.h"

#include <stdbool.h>

/* Arrays of one forward and backward pass, freed together. */
typedef struct {
    double **arrays;
    int count;
} tt_double_pool;

double *tt_double_pool_array(tt_double_pool *pool, int64_t count); /* zeroed */
void tt_double_pool_free(tt_double_pool *pool);

/* A linear map y = x W + bias; W [inputs, outputs] is the transpose of a stored dense weight, or a
 * tensor train multiplied out. */
typedef struct {
    int64_t inputs, outputs;
    double *weight, *weight_gradient;
    tt_double_tensor *bias;
    tt_double_tensor *dense; /* [outputs, inputs], or NULL and: */
    tt_double_train train;
} tt_double_map;

void tt_double_map_dense(tt_double_map *map, tt_double_tensor *weight, tt_double_tensor *bias,
                         tt_double_pool *pool);
void tt_double_map_train(tt_double_map *map, const tt_double_train *train, tt_double_tensor *bias,
                         tt_double_pool *pool);
/* y [rows, outputs] from x [rows, inputs]. */
void tt_double_map_forward(const tt_double_map *map, int64_t rows, const double *x, double *y);
/* dx may be NULL; it is added to. */
void tt_double_map_backward(tt_double_map *map, int64_t rows, const double *x, const double *dy,
                            double *dx);
/* Hands the gradient of W to the tensors it was made of; after the last backward call. */
void tt_double_map_finish(const tt_double_map *map);

typedef struct {
    int64_t width;
    double epsilon;
    tt_double_tensor *weight, *bias;
    double *normalized, *inverse_deviation; /* of the forward pass */
} tt_double_norm;

/* y = LayerNorm(x), row by row. */
void tt_double_norm_forward(tt_double_norm *norm, int64_t rows, const double *x, double *y,
                            tt_double_pool *pool);
void tt_double_norm_backward(const tt_double_norm *norm, int64_t rows, const double *dy,
                             double *dx);

/* The exact GELU, x * P(normal < x), or its approximation by tanh, and its derivative. */
double tt_double_gelu(bool by_tanh, double x);
double tt_double_gelu_slope(bool by_tanh, double x);

/* Mean over rows of -log softmax(logits)[label]; `gradient` of that mean, same shape as logits. */
double tt_double_cross_entropy(int64_t rows, int64_t classes, const double *logits,
                               const int32_t *labels, double *gradient);

/* A post-norm block: y1 = norm(x + attention(x)), y = norm(y1 + outer(gelu(inner(y1)))). Keys whose
 * mask is 0 are seen by no query. */
typedef struct {
    int64_t batch, sequence, heads;
    bool gelu_by_tanh;
    const int32_t *mask; /* [batch, sequence] */
    tt_double_map query, key, value, output, inner, outer;
    tt_double_norm attention_norm, output_norm;
    const double *x; /* what follows is of the forward pass, x by reference */
    double *q, *k, *v, *probabilities, *context, *middle, *wide, *active;
} tt_double_block;

void tt_double_block_forward(tt_double_block *block, const double *x, double *y,
                             tt_double_pool *pool);
void tt_double_block_backward(tt_double_block *block, const double *dy, double *dx,
                              tt_double_pool *pool);

#endif

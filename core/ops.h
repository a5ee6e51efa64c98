/* The mathematics a device offers: one table of operations, filled by core/cpu/ and core/cuda/.
 *
 * Conventions
 *  - Matrices are row-major views on device memory. `tokens` are rows: batch * sequence, the row of
 *    sequence b, position s being b * sequence + s.
 *  - Activations, and what a product multiplies them with (weights, factors of tensor trains), have
 *    the device's compute type; parameters, their gradients, statistics and everything the
 * optimizer touches are f32. So a, b of a large product have one type, and c may be f32 beside bf16
 * a, b.
 *  - Operations named *_backward ADD to parameter gradients (micro-batches accumulate) and
 * OVERWRITE gradients of activations, unless they say otherwise.
 *  - Results do not depend on timing: every sum has a fixed order for a given number of threads.
 *  - An operation allocates nothing. Where it needs scratch memory it takes it from the caller, of
 * the size that its *_workspace function states.
 *  - Callers guarantee shapes; a violation is a programming error and asserted, not reported. */
#ifndef TT_CORE_OPS_H
#define TT_CORE_OPS_H

#include "core/device.h"
#include "core/random.h"

typedef struct {
    void *data;
    int64_t rows, columns;
    int64_t stride; /* elements from one row to the next */
    tt_type type;
} tt_matrix;

/* A dense view with stride == columns. */
static inline tt_matrix tt_matrix_dense(void *data, int64_t rows, int64_t columns, tt_type type)
{
    tt_matrix matrix = {data, rows, columns, columns, type};
    return matrix;
}

static inline tt_matrix tt_matrix_f32(float *data, int64_t rows, int64_t columns)
{
    return tt_matrix_dense(data, rows, columns, TT_F32);
}

/* The element at `row` and `column`; NULL where the view has no memory and begins there. */
static inline void *tt_matrix_at(tt_matrix matrix, int64_t row, int64_t column)
{
    return (char *)matrix.data + tt_type_bytes(matrix.type, row * matrix.stride + column);
}

/* The view on columns [first, first + count) of `matrix`. */
static inline tt_matrix tt_matrix_columns(tt_matrix matrix, int64_t first, int64_t count)
{
    matrix.data = tt_matrix_at(matrix, 0, first);
    matrix.columns = count;
    return matrix;
}

/* The view on rows [first, first + count) of `matrix`. */
static inline tt_matrix tt_matrix_rows(tt_matrix matrix, int64_t first, int64_t count)
{
    matrix.data = tt_matrix_at(matrix, first, 0);
    matrix.rows = count;
    return matrix;
}

typedef enum { TT_GELU_ERF, TT_GELU_TANH } tt_gelu;

/* What a product does to c last: c += bias on every row; or, before_gelu being that sum, c =
 * gelu(before_gelu). */
typedef enum { TT_EPILOGUE_NONE, TT_EPILOGUE_BIAS, TT_EPILOGUE_GELU } tt_epilogue;

/* c = alpha op(a) op(b) + beta c, op being the transpose where asked; a and b have the same type.
 * An epilogue saves a pass over c where the device has one product for both: multiply alone takes
 * it, TT_EPILOGUE_GELU with beta 0 alone. */
typedef struct {
    bool transpose_a, transpose_b;
    float alpha, beta;
    tt_matrix a, b, c;
    tt_epilogue epilogue;
    const float *bias;     /* [columns of c] */
    tt_matrix before_gelu; /* shape and type of c: what gelu_backward needs */
    tt_gelu gelu;
} tt_product;

/* target = source (or target += source), element by element; shapes equal, strides free. On a CUDA
 * device the types may differ: values are rounded to the target's. */
typedef struct {
    tt_matrix source, target;
    bool accumulate;
} tt_copy;

/* One core of a tensor train with the diagonal on its right link: scaled[i, j] = core[i, j] *
 * kept(diagonal[j]), where kept(v) is v above the threshold and 0 otherwise. rows = r_{k-1} n_k. */
typedef struct {
    const float *core, *diagonal; /* [rows, rank], [rank] */
    float *scaled;                /* [rows, rank] */
    const float *scaled_gradient; /* [rows, rank]: d loss / d scaled */
    float *core_gradient;         /* [rows, rank]: += scaled_gradient * kept(diagonal) */
    float *diagonal_gradient; /* [rank]: += sum over rows of scaled_gradient * core, 0 if pruned */
    int64_t rows, rank;
    float threshold;
} tt_scaled_core;

/* What LayerNorm's forward pass leaves for its backward pass. */
typedef struct {
    tt_matrix normalized;     /* [tokens, hidden]: (x - mean) / deviation, before scale and shift */
    float *inverse_deviation; /* [tokens] */
} tt_norm_state;

/* y = LayerNorm(residual + dropout(x + bias)): the joint after each half of an encoder block.
 * With `residual.data` NULL it is LayerNorm(dropout(x + bias)); with `bias` NULL no bias is added.
 * [tokens, hidden] throughout; weight, shift and bias [hidden]. */
typedef struct {
    const float *bias, *weight, *shift;
    float *bias_gradient, *weight_gradient, *shift_gradient;
    float epsilon;
    tt_dropout dropout;
    tt_norm_state state;
} tt_residual_norm;

/* Embedding sum: row(token) = word[id] + position[s] + segment[segment_id]. */
typedef struct {
    const int32_t *ids, *segments; /* [batch, sequence] */
    int64_t batch, sequence, vocabulary, hidden;
    const float *word, *position, *segment;
    float *word_gradient, *position_gradient, *segment_gradient;
} tt_embedding;

/* The distinct numbers among ids. */
typedef struct {
    const int32_t *ids; /* [count], each at least 0 and below `bound` */
    int64_t count, bound;
    int32_t *distinct; /* [min(count, bound)]: ascending; behind the last one -1 */
    int32_t *places;   /* [count]: ids[i] == distinct[places[i]] */
    void *workspace;
} tt_distinct;

/* Rows that are products of slices: row i of [count, left_columns * right_columns] is
 * P[id / right_slices] Q[id % right_slices], id being ids[i]. */
typedef struct {
    const int32_t *ids; /* [count]: ascending, each once; -1 behind the last one */
    int64_t count;
    int64_t left_slices, right_slices, left_columns, right_columns, rank;
    const float *left;                     /* P: [left_slices, left_columns, rank] */
    const float *right;                    /* Q: [right_slices, rank, right_columns] */
    float *left_gradient, *right_gradient; /* the same shapes */
    void *workspace;                       /* of the backward pass */
} tt_slice_products;

/* Cross-entropy of rows of logits with integer labels; rows with label < 0 count nothing. */
typedef struct {
    tt_matrix logits;      /* [rows, classes]; overwritten by its gradient when `gradient_scale` */
    const float *bias;     /* [classes], added to the logits first; may be NULL */
    float *bias_gradient;  /* [classes], += ; used with gradient_scale */
    const int32_t *labels; /* [rows] */
    const float
        *gradient_scale; /* one number in device memory (1 / global count); NULL: loss only */
    float *loss_sum;     /* += sum of losses */
    float *correct_sum;  /* += rows whose largest logit is the label (lowest index wins ties) */
} tt_cross_entropy;

/* Scaled dot-product attention on per-head operands that are already projected.
 * q, k, v: [tokens, hidden], without their biases, which are [hidden] (may be NULL); head h owns
 * columns [h * hidden / heads, (h + 1) * hidden / heads). mask [batch, sequence]: 0 marks padding
 * keys. context [tokens, hidden] = dropout(softmax((q + bq)(k + bk)^T / sqrt(width) + mask)) (v +
 * bv). Scores are never stored; the backward pass forms them again from q, k and `log_sum_exp`. */
typedef struct {
    int64_t batch, sequence, heads;
    tt_matrix q, k, v;
    const float *q_bias, *k_bias, *v_bias;
    const uint8_t *mask;
    tt_dropout dropout; /* row: (sequence number * heads + head) * sequence + query; column: key */
    float *log_sum_exp; /* [batch, heads, sequence] */
    void *workspace;
} tt_attention;

/* The same attention in the space of tensor-train ranks. For head h, with U^ = [U, 1]:
 * scores U^_q M_h U^_k^T, output U_o = sum over h of dropout(softmax(scores + mask)) U^_v N_h,
 * where M_h = B^_q,h B^_k,h^T / sqrt(width) and N_h = B^_v,h A_o,h are made once a step from the
 * factors (B^ is B with the bias as last row). Ranks of q, k and v may be 0: of a removed map the
 * column of ones is left. */
typedef struct {
    int64_t batch, sequence, heads;
    tt_matrix u; /* [tokens, rq + rk + rv]: U_q, U_k, U_v side by side */
    int64_t rank_q, rank_k, rank_v, rank_o;
    const float *score_map;    /* M: [rq + 1, heads, rk + 1] */
    const float *output_map;   /* N: [heads, rv + 1, ro] */
    float *score_map_gradient; /* the same shapes, += */
    float *output_map_gradient;
    const uint8_t *mask;
    tt_dropout dropout; /* as in tt_attention */
    float *log_sum_exp; /* [batch, heads, sequence] */
    void *workspace;
} tt_thin_attention;

/* The feed-forward block between two tensor trains, tile by tile, without wide memory:
 * U2 [tokens, r2] = GELU(U1 B1 + b1) A2, U1 [tokens, r1], B1 [r1, inner], A2 [inner, r2]. */
typedef struct {
    tt_matrix u1;
    tt_matrix b1;      /* output factor of the first map */
    const float *bias; /* [inner] */
    tt_matrix a2;      /* input factor of the second map */
    tt_matrix b1_gradient, a2_gradient;
    float *bias_gradient;
    tt_gelu gelu;
    void *workspace;
} tt_thin_feed_forward;

/* Where a thin half of a block ends and the next begins, the only place where the residual stream
 * is wide: y = LayerNorm(residual + dropout(u B + bias)), u_next = y A_next. `norm` holds bias and
 * norm, `b` [rank, hidden] the output factor of the half that ends, `a_next` [hidden, ranks] the
 * input factors of the half that begins; a_next.data NULL: what follows reads y itself. Of rank 0,
 * u B is 0 and b.data may be NULL. */
typedef struct {
    tt_residual_norm norm;
    tt_matrix u, b, b_gradient;
    tt_matrix a_next, a_next_gradient;
    void *workspace;
} tt_thin_joint;

/* One tensor for the optimizer: a piece of the flat buffers. */
typedef struct {
    int64_t offset, count;
    int group; /* tt_group: chooses the learning rate */
    bool decays;
} tt_segment;

/* What the optimizer passes read from device memory, so that a captured step needs no host value.
 * Each member has one writer: the host writes `step` and the learning rates before the step,
 * gradient_check the next three; update adds 1 to `updates` when it was one. */
typedef struct {
    uint32_t step;          /* dropout's counter: optimizer steps attempted so far */
    float learning_rate[3]; /* by tt_group, for this step */
    uint32_t updates;       /* updates made so far: bias correction counts these */
    float gradient_norm;    /* global 2-norm before clipping */
    float gradient_factor;  /* what clipping multiplies gradients by */
    float finite;           /* 1 when loss and gradients are finite, else 0: no update */
    float holds; /* 1: this update prunes nothing; rank_objective writes it, 0 where nobody does */
} tt_step_state;

/* What a diagonal entry is kept at where an update holds: the least number above the threshold. */
float tt_least_kept(float threshold);

typedef struct {
    float beta1, beta2, epsilon, weight_decay;
    float clip_norm;  /* 0: no clipping */
    float threshold;  /* diagonals at or below it become 0 for good */
    bool trust_ratio; /* LAMB instead of AdamW */
} tt_update_rule;

typedef struct {
    const tt_segment *segments; /* host memory, in order of offset */
    int count;
    int64_t total; /* floats in the flat buffers */
    float *values, *gradients, *first_moment, *second_moment;
    const float *loss_sums; /* device: checked for finiteness together with the gradients */
    int loss_count;
    tt_step_state *state; /* device */
    void *workspace;
} tt_update;

enum { TT_MOST_NEEDS = 3 };

/* The tables of the rank objective (core/rank.h says what it is), all in device memory. A tensor
 * has `order` cores, core_first on, and order - 1 links between them, link_first on; it is removed
 * with the first tensor in `needs` that has lost a link. */
typedef struct {
    int32_t order, core_first, link_first;
    int32_t need_count, needs[TT_MOST_NEEDS];
} tt_rank_tensor;

typedef struct {
    float *values, *gradients, *first_moment, *second_moment; /* [rank], of the diagonal */
    int32_t rank, tensor;
} tt_rank_link;

typedef struct {
    const float *values;
    float *gradients;              /* [left rank, mode, right rank] */
    int64_t left, mode, right;     /* of that shape */
    int32_t left_link, right_link; /* the diagonals on both sides; -1: none, the rank is 1 */
    int32_t tensor;
} tt_rank_core;

/* A diagonal's entry. */
typedef struct {
    int32_t link, place;
} tt_rank_entry;

/* What the host decides for a step. All 0: ranks are left alone, sizes are measured. */
typedef enum { TT_RANKS_LEFT, TT_RANKS_EARLY, TT_RANKS_LATE } tt_rank_stage;

typedef struct {
    double unit;   /* core entries that count as size 1 */
    double target; /* late: core entries to come down to */
    float gamma, beta, rho, w1, w2, target_loss;
    int32_t stage;           /* tt_rank_stage */
    int32_t of_the_mean;     /* the reference's form: mean diagonal entry instead of size */
    int32_t stops_at_target; /* late: prune no further than the target; after it: not at all */
    int32_t number;          /* of the stage in the recipe; the device does not read it */
} tt_rank_settings;

typedef enum { TT_BRANCH_NONE, TT_BRANCH_LOSS, TT_BRANCH_SIZE } tt_rank_branch;

/* What a step's rank objective came to. */
typedef struct {
    double size, relaxed_size; /* core entries: S and its relaxation */
    double mean_diagonal;      /* over the entries that are left; 0 without any */
    double loss;               /* mean over the whole step */
    int32_t branch;            /* tt_rank_branch: what the late stage works on */
    int32_t pruned;            /* entries that the objective itself has set to 0 in this step */
} tt_rank_record;

typedef struct {
    const tt_rank_tensor *tensors;
    const tt_rank_link *links;
    const tt_rank_core *cores;
    const tt_rank_entry
        *entries; /* of all links, in the order in which they give way to a target */
    int tensor_count, link_count, core_count;
    int64_t entry_count;
    float threshold;
    float *gradients; /* [gradient_count]: all of the model's */
    int64_t gradient_count;
    const float *loss_sums, *loss_scales; /* device: the loss is the sum of their products */
    int loss_count;
    const tt_rank_settings *settings; /* device */
    tt_rank_record *record;           /* device */
    float *holds;                     /* device: of the tt_step_state that the update reads */
    void *workspace;
} tt_rank_terms;

typedef struct tt_ops {
    /* Products. multiply: one large product. multiply_group: many small independent ones at once,
     * all in f32 and without epilogue. */
    void (*multiply)(tt_device *device, const tt_product *product);
    void (*multiply_group)(tt_device *device, const tt_product *products, int count);
    void (*copy_group)(tt_device *device, const tt_copy *copies, int count);

    /* Tensor-train cores, all layers at once. */
    void (*scale_cores)(tt_device *device, const tt_scaled_core *cores, int count);
    void (*scale_cores_backward)(tt_device *device, const tt_scaled_core *cores, int count);

    /* y += bias on every row; bias_gradient += column sums of dy. */
    void (*add_bias)(tt_device *device, tt_matrix y, const float *bias);
    void (*add_bias_backward)(tt_device *device, tt_matrix dy, float *bias_gradient);

    /* y = gelu(x + bias); `x` is overwritten with x + bias, which the backward pass needs.
     * bias may be NULL. Backward: dx = dy * gelu'(x) (dx may be dy), y = gelu(x) again unless
     * y.data is NULL, bias_gradient += column sums of dx unless NULL. */
    void (*gelu_forward)(tt_device *device, tt_gelu kind, tt_matrix x, const float *bias,
                         tt_matrix y);
    void (*gelu_backward)(tt_device *device, tt_gelu kind, tt_matrix x, tt_matrix dy, tt_matrix dx,
                          tt_matrix y, float *bias_gradient);
    /* y = tanh(x + bias), in place allowed; backward from y: dx = dy (1 - y^2). */
    void (*tanh_forward)(tt_device *device, tt_matrix x, const float *bias, tt_matrix y);
    void (*tanh_backward)(tt_device *device, tt_matrix y, tt_matrix dy, tt_matrix dx,
                          float *bias_gradient);
    /* In place; the same call serves forward and backward. */
    void (*dropout)(tt_device *device, tt_matrix x, const tt_dropout *dropout);

    /* residual_norm_forward: y from x and residual (y may be x or residual).
     * residual_norm_output: y = normalized * weight + shift again, from the state alone.
     * residual_norm_backward: from dy, `d_sum` = gradient of the sum before the norm (which is the
     * residual's), and `dx` = gradient of x (d_sum with dropout applied). d_sum may be dy; when
     * dropout is 0, dx may be d_sum. */
    void (*residual_norm_forward)(tt_device *device, const tt_residual_norm *norm, tt_matrix x,
                                  tt_matrix residual, tt_matrix y);
    void (*residual_norm_output)(tt_device *device, const tt_residual_norm *norm, tt_matrix y);
    void (*residual_norm_backward)(tt_device *device, const tt_residual_norm *norm, tt_matrix dy,
                                   tt_matrix d_sum, tt_matrix dx);

    void (*embedding_forward)(tt_device *device, const tt_embedding *embedding, tt_matrix y);
    void (*embedding_backward)(tt_device *device, const tt_embedding *embedding, tt_matrix dy,
                               void *workspace);
    size_t (*embedding_workspace)(tt_device *device, int64_t tokens, int64_t vocabulary);

    void (*distinct_ids)(tt_device *device, const tt_distinct *distinct);
    size_t (*distinct_ids_workspace)(tt_device *device, int64_t count, int64_t bound);
    /* Rows whose id is -1 are left as they are (forward) and count nothing (backward); rows may
     * have any type forward, d_rows are f32. Each slice's gradient is a sum over the rows that it
     * is part of, in their order. */
    void (*slice_products_forward)(tt_device *device, const tt_slice_products *products,
                                   tt_matrix rows);
    void (*slice_products_backward)(tt_device *device, const tt_slice_products *products,
                                    tt_matrix d_rows);
    size_t (*slice_products_workspace)(tt_device *device, const tt_slice_products *products);

    /* y[i] = x[index[i]]; scatter: dx[index[i]] += dy[i] (rows of dx named once or more, in order
     * of i). */
    void (*gather_rows)(tt_device *device, tt_matrix x, const int32_t *index, tt_matrix y);
    void (*scatter_rows)(tt_device *device, tt_matrix dy, const int32_t *index, tt_matrix dx);

    void (*cross_entropy)(tt_device *device, const tt_cross_entropy *loss);

    void (*attention_forward)(tt_device *device, const tt_attention *attention, tt_matrix context);
    /* dq, dk, dv (overwritten) are the gradients after the biases, whose own are their column sums.
     */
    void (*attention_backward)(tt_device *device, const tt_attention *attention,
                               tt_matrix d_context, tt_matrix dq, tt_matrix dk, tt_matrix dv);
    size_t (*attention_workspace)(tt_device *device, const tt_attention *attention);

    /* u_o [tokens, ro]; backward: d_u [tokens, rq + rk + rv] overwritten. */
    void (*thin_attention_forward)(tt_device *device, const tt_thin_attention *attention,
                                   tt_matrix u_o);
    void (*thin_attention_backward)(tt_device *device, const tt_thin_attention *attention,
                                    tt_matrix d_u_o, tt_matrix d_u);
    size_t (*thin_attention_workspace)(tt_device *device, const tt_thin_attention *attention);

    void (*thin_feed_forward_forward)(tt_device *device, const tt_thin_feed_forward *block,
                                      tt_matrix u2);
    void (*thin_feed_forward_backward)(tt_device *device, const tt_thin_feed_forward *block,
                                       tt_matrix d_u2, tt_matrix d_u1);
    size_t (*thin_feed_forward_workspace)(tt_device *device, const tt_thin_feed_forward *block);

    /* Forward: `hidden` is the residual on entry and y on return; u_next [tokens, ranks].
     * Backward: d_hidden is on entry what reaches y by other ways than u_next, on return the
     * gradient of the residual; d_u [tokens, rank] is overwritten. */
    void (*thin_joint_forward)(tt_device *device, const tt_thin_joint *joint, tt_matrix hidden,
                               tt_matrix u_next);
    void (*thin_joint_backward)(tt_device *device, const tt_thin_joint *joint, tt_matrix d_u_next,
                                tt_matrix d_hidden, tt_matrix d_u);
    size_t (*thin_joint_workspace)(tt_device *device, const tt_thin_joint *joint);

    /* gradient_check: state->gradient_norm, gradient_factor and finite, from the whole gradient and
     * the loss sums. update: AdamW or LAMB on every segment where finite is 1, which adds 1 to
     * state->updates; where it is 0, nothing changes. Diagonals that lie at or below the threshold
     * before or after the update become 0, and so do their moments: what is pruned stays so. */
    void (*gradient_check)(tt_device *device, const tt_update_rule *rule, const tt_update *update);
    void (*update)(tt_device *device, const tt_update_rule *rule, const tt_update *update);
    size_t (*update_workspace)(tt_device *device, const tt_segment *segments, int count);

    /* Between the all-reduce and gradient_check: turns the gradients of the loss into those of the
     * step's rank objective (core/rank.h), writes the record and `holds`. Where a late stage
     * stops at its target, entries that an update has held at tt_least_kept are set to 0, with
     * their moments, in the order of `entries`, at most one a link, until the size is at the
     * target; never a link's last one where the size would be below the target then. */
    void (*rank_objective)(tt_device *device, const tt_rank_terms *terms);
    size_t (*rank_objective_workspace)(tt_device *device, int link_count);

    /* Thin attention and the thin feed-forward block take ranks up to this; 0: any. */
    int64_t largest_thin_rank;
} tt_ops;

extern const tt_ops tt_cpu_ops;

#endif

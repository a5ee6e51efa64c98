/* Attention and feed-forward: the operations alone, then the halves of an encoder block and a whole
 * block, dense and as tensor trains in their forms. */
#include "launch/bench_ops.h"

#include <stdlib.h>

typedef enum { DENSE, WIDE, THIN, FORMS } block_form; /* WIDE and THIN: tensor trains */
enum { ATTENTION, FEED_FORWARD, BLOCK, PARTS };
enum { NORM_BEFORE, NORM_ATTENTION, NORM_OUTPUT, NORMS };

typedef struct {
    tt_device *device;
    tt_bench_memory memory;
    tt_parameters parameters;
    tt_train_set trains;
    tt_linear dense[TT_BENCH_MAPS], train[TT_BENCH_MAPS];
    tt_attention attention;
    tt_thin_attention thin_attention;
    tt_thin_feed_forward thin_feed_forward;
    tt_residual_norm norms[NORMS];
    tt_matrix x, middle, y, branch, d_x, d_middle, d_y; /* [tokens, hidden] */
    tt_matrix context, d_context;
    tt_matrix qkv, d_qkv;                 /* [tokens, 3 hidden] */
    tt_matrix inner, activation, d_inner; /* [tokens, inner] */
    tt_matrix u_qkv, d_u_qkv;             /* [tokens, 3 rank] */
    tt_matrix u_o, u_1, u_2, d_u, d_u2;   /* [tokens, rank] */
} operands;

/* --- halves, as models/encoder_block.c composes them ------------------------------------------ */

static tt_matrix third(tt_matrix matrix, int i)
{
    return tt_matrix_columns(matrix, i * matrix.columns / 3, matrix.columns / 3);
}

static void attention_forward(operands *o, block_form form)
{
    const tt_linear *maps = form == DENSE ? o->dense : o->train;
    const tt_linear *output = &maps[TT_BENCH_ATTENTION_OUTPUT];
    if (form == THIN) {
        tt_linear_contract(&maps[TT_BENCH_QUERY], &maps[TT_BENCH_VALUE], o->x, o->u_qkv);
        o->device->ops->thin_attention_forward(o->device, &o->thin_attention, o->u_o);
        tt_linear_expand(output, o->u_o, o->branch);
        return;
    }
    for (int i = TT_BENCH_QUERY; i <= TT_BENCH_VALUE; i++) {
        tt_linear_forward(&maps[i], o->x, third(o->u_qkv, i), third(o->qkv, i));
    }
    o->device->ops->attention_forward(o->device, &o->attention, o->context);
    tt_linear_forward(output, o->context, o->u_o, o->branch);
}

static void attention_backward(operands *o, block_form form)
{
    const tt_ops *ops = o->device->ops;
    const tt_linear *maps = form == DENSE ? o->dense : o->train;
    const tt_linear *output = &maps[TT_BENCH_ATTENTION_OUTPUT];
    if (form == THIN) {
        tt_linear_expand_backward(output, o->u_o, o->branch, o->d_u);
        ops->thin_attention_backward(o->device, &o->thin_attention, o->d_u, o->d_u_qkv);
        tt_linear_contract_backward(&maps[TT_BENCH_QUERY], &maps[TT_BENCH_VALUE], o->x, o->d_u_qkv,
                                    1.0f, o->d_x);
        return;
    }
    tt_linear_backward(output, o->context, o->u_o, o->branch, o->d_u, 0.0f, o->d_context);
    ops->attention_backward(o->device, &o->attention, o->d_context, third(o->d_qkv, 0),
                            third(o->d_qkv, 1), third(o->d_qkv, 2));
    for (int i = TT_BENCH_QUERY; i <= TT_BENCH_VALUE; i++) {
        tt_matrix d_map = third(o->d_qkv, i);
        if (i != TT_BENCH_KEY) { /* softmax cancels the key's bias */
            ops->add_bias_backward(o->device, d_map, tt_linear_bias_gradient(&maps[i]));
        }
        tt_linear_backward(&maps[i], o->x, third(o->u_qkv, i), d_map, o->d_u, 1.0f, o->d_x);
    }
}

static void feed_forward_forward(operands *o, block_form form)
{
    const tt_linear *maps = form == DENSE ? o->dense : o->train;
    const tt_linear *first = &maps[TT_BENCH_INTERMEDIATE], *second = &maps[TT_BENCH_OUTPUT];
    if (form == THIN) {
        tt_linear_contract(first, first, o->middle, o->u_1);
        o->device->ops->thin_feed_forward_forward(o->device, &o->thin_feed_forward, o->u_2);
        tt_linear_expand(second, o->u_2, o->branch);
        return;
    }
    tt_linear_forward(first, o->middle, o->u_1, o->inner);
    o->device->ops->gelu_forward(o->device, TT_GELU_ERF, o->inner, tt_linear_bias(first),
                                 o->activation);
    tt_linear_forward(second, o->activation, o->u_2, o->branch);
}

static void feed_forward_backward(operands *o, block_form form)
{
    const tt_ops *ops = o->device->ops;
    const tt_linear *maps = form == DENSE ? o->dense : o->train;
    const tt_linear *first = &maps[TT_BENCH_INTERMEDIATE], *second = &maps[TT_BENCH_OUTPUT];
    if (form == THIN) {
        tt_linear_expand_backward(second, o->u_2, o->branch, o->d_u2);
        ops->thin_feed_forward_backward(o->device, &o->thin_feed_forward, o->d_u2, o->d_u);
        tt_linear_contract_backward(first, first, o->middle, o->d_u, 1.0f, o->d_middle);
        return;
    }
    ops->gelu_forward(o->device, TT_GELU_ERF, o->inner, NULL, o->activation);
    tt_linear_backward(second, o->activation, o->u_2, o->branch, o->d_u, 0.0f, o->d_inner);
    ops->gelu_backward(o->device, TT_GELU_ERF, o->inner, o->d_inner, o->d_inner, (tt_matrix){0},
                       tt_linear_bias_gradient(first));
    tt_linear_backward(first, o->middle, o->u_1, o->d_inner, o->d_u, 1.0f, o->d_middle);
}

static void block_forward(operands *o, block_form form)
{
    const tt_ops *ops = o->device->ops;
    attention_forward(o, form);
    ops->residual_norm_forward(o->device, &o->norms[NORM_ATTENTION], o->branch, o->x, o->middle);
    feed_forward_forward(o, form);
    ops->residual_norm_forward(o->device, &o->norms[NORM_OUTPUT], o->branch, o->middle, o->y);
}

/* The inputs of both halves are formed again from the norms' states, as the encoder does. */
static void block_backward(operands *o, block_form form)
{
    const tt_ops *ops = o->device->ops;
    ops->residual_norm_backward(o->device, &o->norms[NORM_OUTPUT], o->d_y, o->d_middle, o->branch);
    ops->residual_norm_output(o->device, &o->norms[NORM_ATTENTION], o->middle);
    feed_forward_backward(o, form);
    ops->residual_norm_backward(o->device, &o->norms[NORM_ATTENTION], o->d_middle, o->d_x,
                                o->branch);
    ops->residual_norm_output(o->device, &o->norms[NORM_BEFORE], o->x);
    attention_backward(o, form);
}

/* --- cases ------------------------------------------------------------------------------------ */

static void run_attention(void *user, int backward)
{
    operands *o = user;
    if (backward) {
        o->device->ops->attention_backward(o->device, &o->attention, o->d_context,
                                           third(o->d_qkv, 0), third(o->d_qkv, 1),
                                           third(o->d_qkv, 2));
    } else {
        o->device->ops->attention_forward(o->device, &o->attention, o->context);
    }
}

static void run_thin_attention(void *user, int backward)
{
    operands *o = user;
    if (backward) {
        o->device->ops->thin_attention_backward(o->device, &o->thin_attention, o->d_u, o->d_u_qkv);
    } else {
        o->device->ops->thin_attention_forward(o->device, &o->thin_attention, o->u_o);
    }
}

static void run_thin_feed_forward(void *user, int backward)
{
    operands *o = user;
    if (backward) {
        o->device->ops->thin_feed_forward_backward(o->device, &o->thin_feed_forward, o->d_u2,
                                                   o->d_u);
    } else {
        o->device->ops->thin_feed_forward_forward(o->device, &o->thin_feed_forward, o->u_2);
    }
}

static void run_part(void *user, int variant)
{
    static void (*const parts[PARTS][2])(operands *, block_form) = {
        [ATTENTION] = {attention_forward, attention_backward},
        [FEED_FORWARD] = {feed_forward_forward, feed_forward_backward},
        [BLOCK] = {block_forward, block_backward},
    };
    int backward = variant / FORMS % 2, part = variant / FORMS / 2;
    parts[part][backward](user, (block_form)(variant % FORMS));
}

/* Multiplications and additions of scores and contexts, forward. */
static double attention_flops(const tt_bench_sizes *sizes, block_form form)
{
    double tokens = (double)sizes->tokens, keys = (double)sizes->sequence;
    double rank = (double)sizes->rank, wide = rank + 1;
    if (form != THIN) {
        return 4 * tokens * keys * (double)sizes->hidden;
    }
    return 2 * tokens * (double)sizes->heads * (wide * wide + 2 * keys * wide + wide * rank);
}

/* Forward, a part of a block. */
static double part_flops(const tt_bench_sizes *sizes, int part, block_form form)
{
    double tokens = (double)sizes->tokens, hidden = (double)sizes->hidden;
    double inner = (double)sizes->inner, rank = (double)sizes->rank;
    switch (part) {
    case ATTENTION: {
        double a_map = form == DENSE ? hidden * hidden
                       : form == WIDE
                           ? 2 * rank * hidden
                           : rank * hidden; /* one side of each map is in the thin space */
        return 2 * tokens * 4 * a_map + attention_flops(sizes, form);
    }
    case FEED_FORWARD:
        return 2 * tokens * 2 * (form == DENSE ? hidden * inner : rank * (hidden + inner));
    default:
        return part_flops(sizes, ATTENTION, form) + part_flops(sizes, FEED_FORWARD, form);
    }
}

static double weight_bytes(const tt_bench_sizes *sizes, int part, block_form form)
{
    double hidden = (double)sizes->hidden, inner = (double)sizes->inner;
    double rank = (double)sizes->rank;
    switch (part) {
    case ATTENTION:
        return 4.0 * 4 * (form == DENSE ? hidden * hidden : 2 * rank * hidden);
    case FEED_FORWARD:
        return 4.0 * 2 * (form == DENSE ? hidden * inner : rank * (hidden + inner));
    default:
        return weight_bytes(sizes, ATTENTION, form) + weight_bytes(sizes, FEED_FORWARD, form);
    }
}

static tt_bench_case case_of_part(const tt_bench_sizes *sizes, int part, int backward,
                                  block_form form)
{
    static const char *const names[PARTS][2] = {
        [ATTENTION] = {"attention half forward", "attention half backward"},
        [FEED_FORWARD] = {"feed-forward half forward", "feed-forward half backward"},
        [BLOCK] = {"encoder block forward", "encoder block backward"},
    };
    static const char *const forms[PARTS][FORMS] = {
        [ATTENTION] = {"dense", "tensor train, wide", "tensor train, thin"},
        [FEED_FORWARD] = {"dense", "tensor train, wide", "tensor train, tiled"},
        [BLOCK] = {"dense", "tensor train, wide", "tensor train, thin"},
    };
    double stream = 4.0 * (double)(sizes->tokens * sizes->hidden);
    double weights = weight_bytes(sizes, part, form), flops = part_flops(sizes, part, form);
    return (tt_bench_case){.operation = names[part][backward],
                           .form = forms[part][form],
                           .run = run_part,
                           .variant = (part * 2 + backward) * FORMS + (int)form,
                           .bytes = backward ? 4 * stream + 3 * weights : 2 * stream + weights,
                           .flops = backward ? 2 * flops : flops};
}

static int list(const tt_bench_sizes *sizes, tt_bench_case *cases)
{
    double stream = 4.0 * (double)(sizes->tokens * sizes->hidden);
    double thin = 4.0 * (double)(sizes->tokens * sizes->rank);
    double factors = 4.0 * 2 * (double)(sizes->inner * sizes->rank);
    double wide_flops = attention_flops(sizes, WIDE), thin_flops = attention_flops(sizes, THIN);
    double tiled_flops = 4.0 * (double)(sizes->tokens * sizes->inner * sizes->rank);
    const tt_bench_case alone[] = {
        {"attention_forward", "full width", run_attention, 0, 4 * stream, wide_flops},
        {"thin_attention_forward", "width of ranks", run_thin_attention, 0, 4 * thin, thin_flops},
        {"attention_backward", "full width", run_attention, 1, 7 * stream, 2 * wide_flops},
        {"thin_attention_backward", "width of ranks", run_thin_attention, 1, 7 * thin,
         2 * thin_flops},
        {"thin_feed_forward_forward", "by tiles", run_thin_feed_forward, 0, 2 * thin + factors,
         tiled_flops},
        {"thin_feed_forward_backward", "by tiles", run_thin_feed_forward, 1, 3 * thin + 3 * factors,
         2 * tiled_flops},
    };
    int count = 0;
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        cases[count++] = alone[i];
    }
    for (int part = 0; part < PARTS; part++) {
        for (int variant = 0; variant < 2 * FORMS; variant++) {
            cases[count++] =
                case_of_part(sizes, part, variant / FORMS, (block_form)(variant % FORMS));
        }
    }
    return count;
}

/* --- operands --------------------------------------------------------------------------------- */

static tt_status create_maps(operands *o, const tt_bench_sizes *sizes, tt_error *error)
{
    tt_parameters_init(&o->parameters, o->device);
    tt_train_set_init(&o->trains, &o->parameters, 0.01f);
    TT_TRY(
        tt_bench_add_maps(o->dense, "dense", TT_DENSE, sizes, &o->parameters, &o->trains, error));
    TT_TRY(tt_bench_add_maps(o->train, "train", TT_TENSOR_TRAIN, sizes, &o->parameters, &o->trains,
                             error));
    TT_TRY(tt_parameters_allocate(&o->parameters, false, error));
    TT_TRY(tt_train_set_plan(&o->trains, error));
    for (int i = 0; i < TT_BENCH_MAPS; i++) {
        tt_linear_initialize(&o->dense[i], 0.02f, 1);
        tt_linear_initialize(&o->train[i], 0.02f, 1);
    }
    tt_train_set_materialise(&o->trains);
    return TT_OK;
}

static void create_matrices(operands *o, const tt_bench_sizes *sizes)
{
    const struct {
        tt_matrix *matrix;
        int64_t columns;
    } list[] = {
        {&o->x, sizes->hidden},         {&o->middle, sizes->hidden},
        {&o->y, sizes->hidden},         {&o->branch, sizes->hidden},
        {&o->d_x, sizes->hidden},       {&o->d_middle, sizes->hidden},
        {&o->d_y, sizes->hidden},       {&o->context, sizes->hidden},
        {&o->d_context, sizes->hidden}, {&o->qkv, 3 * sizes->hidden},
        {&o->d_qkv, 3 * sizes->hidden}, {&o->inner, sizes->inner},
        {&o->activation, sizes->inner}, {&o->d_inner, sizes->inner},
        {&o->u_qkv, 3 * sizes->rank},   {&o->d_u_qkv, 3 * sizes->rank},
        {&o->u_o, sizes->rank},         {&o->u_1, sizes->rank},
        {&o->u_2, sizes->rank},         {&o->d_u, sizes->rank},
        {&o->d_u2, sizes->rank},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        *list[i].matrix = tt_bench_matrix(&o->memory, sizes->tokens, list[i].columns);
    }
}

static void create_norms(operands *o, const tt_bench_sizes *sizes, tt_dropout dropout)
{
    tt_bench_memory *memory = &o->memory;
    float *vectors[6];
    for (int i = 0; i < 6; i++) {
        vectors[i] = tt_bench_floats(memory, sizes->hidden);
    }
    for (int i = 0; i < NORMS; i++) {
        dropout.site = 2 + (uint32_t)i;
        o->norms[i] = (tt_residual_norm){
            .bias = vectors[0],
            .weight = vectors[1],
            .shift = vectors[2],
            .bias_gradient = vectors[3],
            .weight_gradient = vectors[4],
            .shift_gradient = vectors[5],
            .epsilon = 1e-12f,
            .dropout = dropout,
            .state = {.normalized = tt_bench_matrix(memory, sizes->tokens, sizes->hidden),
                      .inverse_deviation = tt_bench_floats(memory, sizes->tokens)},
        };
    }
}

static void create_attention(operands *o, const tt_bench_sizes *sizes, tt_dropout dropout,
                             const uint8_t *mask)
{
    tt_bench_memory *memory = &o->memory;
    int64_t rank = sizes->rank, heads = sizes->heads;
    float *log_sum_exp = tt_bench_floats(memory, heads * sizes->tokens);
    o->attention = (tt_attention){
        .batch = sizes->batch,
        .sequence = sizes->sequence,
        .heads = heads,
        .q = third(o->qkv, 0),
        .k = third(o->qkv, 1),
        .v = third(o->qkv, 2),
        .q_bias = tt_linear_bias(&o->dense[TT_BENCH_QUERY]),
        .k_bias = tt_linear_bias(&o->dense[TT_BENCH_KEY]),
        .v_bias = tt_linear_bias(&o->dense[TT_BENCH_VALUE]),
        .mask = mask,
        .dropout = dropout,
        .log_sum_exp = log_sum_exp,
    };
    o->thin_attention = (tt_thin_attention){
        .batch = sizes->batch,
        .sequence = sizes->sequence,
        .heads = heads,
        .u = o->u_qkv,
        .rank_q = rank,
        .rank_k = rank,
        .rank_v = rank,
        .rank_o = rank,
        .score_map = tt_bench_floats(memory, (rank + 1) * heads * (rank + 1)),
        .output_map = tt_bench_floats(memory, heads * (rank + 1) * rank),
        .score_map_gradient = tt_bench_floats(memory, (rank + 1) * heads * (rank + 1)),
        .output_map_gradient = tt_bench_floats(memory, heads * (rank + 1) * rank),
        .mask = mask,
        .dropout = dropout,
        .log_sum_exp = log_sum_exp,
    };
}

static void create_feed_forward(operands *o)
{
    const tt_linear *map = &o->train[TT_BENCH_INTERMEDIATE];
    const tt_train *first = tt_linear_train(map);
    const tt_train *second = tt_linear_train(&o->train[TT_BENCH_OUTPUT]);
    o->thin_feed_forward = (tt_thin_feed_forward){
        .u1 = o->u_1,
        .b1 = first->b,
        .bias = tt_linear_bias(map),
        .a2 = second->a,
        .b1_gradient = first->b_gradient,
        .a2_gradient = second->a_gradient,
        .bias_gradient = tt_linear_bias_gradient(map),
        .gelu = TT_GELU_ERF,
    };
}

/* One workspace that serves each operation in its turn. */
static void create_workspace(operands *o)
{
    const tt_ops *ops = o->device->ops;
    const size_t sizes[] = {
        ops->attention_workspace(o->device, &o->attention),
        ops->thin_attention_workspace(o->device, &o->thin_attention),
        ops->thin_feed_forward_workspace(o->device, &o->thin_feed_forward),
    };
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bytes = sizes[i] > bytes ? sizes[i] : bytes;
    }
    void *workspace = tt_bench_zeros(&o->memory, bytes);
    o->attention.workspace = workspace;
    o->thin_attention.workspace = workspace;
    o->thin_feed_forward.workspace = workspace;
}

static const uint8_t *create_mask(operands *o, const tt_bench_sizes *sizes)
{
    uint8_t *mask = tt_bench_zeros(&o->memory, (size_t)sizes->tokens);
    const uint8_t token = 1;
    for (int64_t i = 0; mask != NULL && i < sizes->tokens; i++) {
        o->device->copy_in(o->device, mask + i, &token, sizeof token);
    }
    return mask;
}

static tt_status create(tt_device *device, const tt_bench_sizes *sizes, void **result,
                        tt_error *error)
{
    operands *o = calloc(1, sizeof *o);
    *result = o;
    if (o == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for operands");
    }
    o->device = device;
    o->memory.device = device;
    TT_TRY(create_maps(o, sizes, error));
    create_matrices(o, sizes);
    TT_TRY(tt_bench_memory_check(&o->memory, error));
    tt_dropout dropout = {.probability = (float)sizes->dropout,
                          .seed = 1,
                          .step = tt_bench_zeros(&o->memory, sizeof(uint32_t)),
                          .site = 1};
    create_norms(o, sizes, dropout);
    create_attention(o, sizes, dropout, create_mask(o, sizes));
    create_feed_forward(o);
    create_workspace(o);
    TT_TRY(tt_bench_memory_check(&o->memory, error));
    /* A backward pass reads what its forward pass has left. */
    device->ops->residual_norm_output(device, &o->norms[NORM_BEFORE], o->x);
    for (int form = DENSE; form < FORMS; form++) {
        block_forward(o, (block_form)form);
    }
    return TT_OK;
}

static void destroy(void *user)
{
    operands *o = user;
    if (o != NULL) {
        tt_bench_memory_release(&o->memory);
        tt_train_set_free(&o->trains);
        tt_parameters_free(&o->parameters);
        free(o);
    }
}

const tt_bench_family tt_bench_blocks = {list, create, destroy};

/* Attention and feed-forward: the operations alone, then the halves of an encoder block and a whole
 * block, dense and as tensor trains in their forms. */
#include "launch/bench_ops.h"

#include <stdlib.h>

typedef enum { DENSE, WIDE, THIN, FORMS } block_form; /* WIDE and THIN: tensor trains */
enum { ATTENTION, FEED_FORWARD, HALVES, BLOCK = HALVES, PARTS };
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
    tt_matrix hidden, branch, d_hidden; /* [tokens, hidden] */
    tt_matrix context, d_context;
    tt_matrix qkv, d_qkv;                 /* [tokens, 3 hidden] */
    tt_matrix inner, activation, d_inner; /* [tokens, inner] */
    tt_matrix u_qkv, d_u_qkv;             /* [tokens, 3 rank] */
    tt_matrix u_o, u_1, u_2, d_u, d_u2;   /* [tokens, rank] */
    tt_matrix d_y, d_u_next; /* gradients that come from what follows, which no run overwrites:
                                [tokens, hidden], [tokens, 3 rank] */
    void *workspace;         /* serves each operation in its turn */
} operands;

/* --- halves, as models/encoder_block.c composes them ------------------------------------------ */

static tt_matrix third(tt_matrix matrix, int i)
{
    return tt_matrix_columns(matrix, i * matrix.columns / 3, matrix.columns / 3);
}

/* The joint after a half, with the input factors of a following half of kind `next`. */
static tt_thin_joint joint_after(const operands *o, int half, int next)
{
    const tt_linear *maps = o->train;
    const tt_train *ending =
        tt_linear_train(&maps[half == ATTENTION ? TT_BENCH_ATTENTION_OUTPUT : TT_BENCH_OUTPUT]);
    int first = maps[next == ATTENTION ? TT_BENCH_QUERY : TT_BENCH_INTERMEDIATE].train;
    int last = maps[next == ATTENTION ? TT_BENCH_VALUE : TT_BENCH_INTERMEDIATE].train;
    return (tt_thin_joint){
        .norm = o->norms[half == ATTENTION ? NORM_ATTENTION : NORM_OUTPUT],
        .u = half == ATTENTION ? o->u_o : o->u_2,
        .b = ending->b,
        .b_gradient = ending->b_gradient,
        .a_next = tt_train_set_input_factors(&o->trains, first, last),
        .a_next_gradient = tt_train_set_input_gradients(&o->trains, first, last),
        .workspace = o->workspace,
    };
}

static void joint_forward(operands *o, int half, int next)
{
    tt_thin_joint joint = joint_after(o, half, next);
    o->device->ops->thin_joint_forward(o->device, &joint, o->hidden,
                                       next == ATTENTION ? o->u_qkv : o->u_1);
}

static void joint_backward(operands *o, int half, int next, tt_matrix d_u_next)
{
    tt_thin_joint joint = joint_after(o, half, next);
    o->device->ops->thin_joint_backward(o->device, &joint, d_u_next, o->d_hidden, o->d_u2);
}

/* The gradient of the u of a following half of kind `next`, from outside. */
static tt_matrix outer_gradient(const operands *o, int next)
{
    return next == ATTENTION ? o->d_u_next
                             : tt_matrix_f32(o->d_u_next.data, o->d_u.rows, o->d_u.columns);
}

static void attention_forward(operands *o, const tt_linear *maps)
{
    for (int i = TT_BENCH_QUERY; i <= TT_BENCH_VALUE; i++) {
        tt_linear_forward(&maps[i], o->hidden, third(o->u_qkv, i), third(o->qkv, i));
    }
    o->device->ops->attention_forward(o->device, &o->attention, o->context);
    tt_linear_forward(&maps[TT_BENCH_ATTENTION_OUTPUT], o->context, o->u_o, o->branch);
}

static void attention_backward(operands *o, const tt_linear *maps)
{
    const tt_ops *ops = o->device->ops;
    tt_linear_backward(&maps[TT_BENCH_ATTENTION_OUTPUT], o->context, o->u_o, o->branch, o->d_u,
                       0.0f, o->d_context);
    ops->attention_backward(o->device, &o->attention, o->d_context, third(o->d_qkv, 0),
                            third(o->d_qkv, 1), third(o->d_qkv, 2));
    for (int i = TT_BENCH_QUERY; i <= TT_BENCH_VALUE; i++) {
        tt_matrix d_map = third(o->d_qkv, i);
        if (i != TT_BENCH_KEY) { /* softmax cancels the key's bias */
            ops->add_bias_backward(o->device, d_map, tt_linear_bias_gradient(&maps[i]));
        }
        tt_linear_backward(&maps[i], o->hidden, third(o->u_qkv, i), d_map, o->d_u, 1.0f,
                           o->d_hidden);
    }
}

static void feed_forward_forward(operands *o, const tt_linear *maps)
{
    const tt_linear *first = &maps[TT_BENCH_INTERMEDIATE];
    tt_linear_forward(first, o->hidden, o->u_1, o->inner);
    o->device->ops->gelu_forward(o->device, TT_GELU_ERF, o->inner, tt_linear_bias(first),
                                 o->activation);
    tt_linear_forward(&maps[TT_BENCH_OUTPUT], o->activation, o->u_2, o->branch);
}

static void feed_forward_backward(operands *o, const tt_linear *maps)
{
    const tt_ops *ops = o->device->ops;
    const tt_linear *first = &maps[TT_BENCH_INTERMEDIATE];
    ops->gelu_forward(o->device, TT_GELU_ERF, o->inner, NULL, o->activation);
    tt_linear_backward(&maps[TT_BENCH_OUTPUT], o->activation, o->u_2, o->branch, o->d_u, 0.0f,
                       o->d_inner);
    ops->gelu_backward(o->device, TT_GELU_ERF, o->inner, o->d_inner, o->d_inner, (tt_matrix){0},
                       tt_linear_bias_gradient(first));
    tt_linear_backward(first, o->hidden, o->u_1, o->d_inner, o->d_u, 1.0f, o->d_hidden);
}

/* From `hidden`, thin from the half's u, to `hidden` after the norm, thin also to the next u. */
static void half_forward(operands *o, block_form form, int half, int next)
{
    const tt_ops *ops = o->device->ops;
    if (form == THIN) {
        if (half == ATTENTION) {
            ops->thin_attention_forward(o->device, &o->thin_attention, o->u_o);
        } else {
            ops->thin_feed_forward_forward(o->device, &o->thin_feed_forward, o->u_2);
        }
        joint_forward(o, half, next);
        return;
    }
    const tt_linear *maps = form == DENSE ? o->dense : o->train;
    if (half == ATTENTION) {
        attention_forward(o, maps);
    } else {
        feed_forward_forward(o, maps);
    }
    ops->residual_norm_forward(o->device,
                               &o->norms[half == ATTENTION ? NORM_ATTENTION : NORM_OUTPUT],
                               o->branch, o->hidden, o->hidden);
}

/* A wide half forms its input again from the state of the norm before it. */
static void wide_half_backward(operands *o, const tt_linear *maps, int half, tt_matrix d_y)
{
    const tt_ops *ops = o->device->ops;
    bool attends = half == ATTENTION;
    ops->residual_norm_backward(o->device, &o->norms[attends ? NORM_ATTENTION : NORM_OUTPUT], d_y,
                                o->d_hidden, o->branch);
    ops->residual_norm_output(o->device, &o->norms[attends ? NORM_BEFORE : NORM_ATTENTION],
                              o->hidden);
    if (attends) {
        attention_backward(o, maps);
    } else {
        feed_forward_backward(o, maps);
    }
}

static void thin_half_backward(operands *o, int half, int next, tt_matrix d_u_next)
{
    const tt_ops *ops = o->device->ops;
    joint_backward(o, half, next, d_u_next);
    if (half == ATTENTION) {
        ops->thin_attention_backward(o->device, &o->thin_attention, o->d_u2, o->d_u_qkv);
    } else {
        ops->thin_feed_forward_backward(o->device, &o->thin_feed_forward, o->d_u2, o->d_u);
    }
}

static void part_forward(operands *o, block_form form, int part)
{
    if (part == BLOCK) {
        half_forward(o, form, ATTENTION, FEED_FORWARD);
        half_forward(o, form, FEED_FORWARD, ATTENTION);
    } else {
        half_forward(o, form, part, part);
    }
}

static void part_backward(operands *o, block_form form, int part)
{
    const tt_linear *maps = form == DENSE ? o->dense : o->train;
    if (form == THIN && part == BLOCK) {
        thin_half_backward(o, FEED_FORWARD, ATTENTION, outer_gradient(o, ATTENTION));
        thin_half_backward(o, ATTENTION, FEED_FORWARD, o->d_u);
    } else if (form == THIN) {
        thin_half_backward(o, part, part, outer_gradient(o, part));
    } else if (part == BLOCK) {
        wide_half_backward(o, maps, FEED_FORWARD, o->d_y);
        wide_half_backward(o, maps, ATTENTION, o->d_hidden);
    } else {
        wide_half_backward(o, maps, part, o->d_y);
    }
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
        o->device->ops->thin_attention_backward(o->device, &o->thin_attention, o->d_u2, o->d_u_qkv);
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

static void run_joint(void *user, int variant)
{
    operands *o = user;
    int half = variant % HALVES, next = 1 - half;
    if (variant / HALVES) {
        joint_backward(o, half, next, outer_gradient(o, next));
    } else {
        joint_forward(o, half, next);
    }
}

static void run_part(void *user, int variant)
{
    block_form form = (block_form)(variant % FORMS);
    int backward = variant / FORMS % 2, part = variant / FORMS / 2;
    if (backward) {
        part_backward(user, form, part);
    } else {
        part_forward(user, form, part);
    }
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
    /* The stream in and out and the state of each norm; wide, also that of the norm before. */
    int forward_streams = part == BLOCK ? 4 : 3;
    int backward_streams = forward_streams + (form == THIN ? 0 : 1);
    return (tt_bench_case){.operation = names[part][backward],
                           .form = forms[part][form],
                           .run = run_part,
                           .variant = (part * 2 + backward) * FORMS + (int)form,
                           .bytes = backward ? backward_streams * stream + 3 * weights
                                             : forward_streams * stream + weights,
                           .flops = backward ? 2 * flops : flops};
}

static tt_bench_case case_of_joint(const tt_bench_sizes *sizes, int half, int backward)
{
    double stream = 4.0 * (double)(sizes->tokens * sizes->hidden);
    double ranks = (double)sizes->rank * (half == ATTENTION ? 1 : 3), rank = (double)sizes->rank;
    double factors = 4.0 * (double)sizes->hidden * (rank + ranks);
    double thin = 4.0 * (double)sizes->tokens * ((backward ? 2 * rank : rank) + ranks);
    double flops = 2.0 * (double)(sizes->tokens * sizes->hidden) * (rank + ranks);
    return (tt_bench_case){.operation = backward ? "thin_joint_backward" : "thin_joint_forward",
                           .form = half == ATTENTION ? "attention to inner" : "inner to attention",
                           .run = run_joint,
                           .variant = backward * HALVES + half,
                           .bytes = 3 * stream + thin + (backward ? 3 : 1) * factors,
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
    for (int variant = 0; variant < 2 * HALVES; variant++) {
        cases[count++] = case_of_joint(sizes, variant % HALVES, variant / HALVES);
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
        {&o->hidden, sizes->hidden},    {&o->branch, sizes->hidden},
        {&o->d_hidden, sizes->hidden},  {&o->d_y, sizes->hidden},
        {&o->context, sizes->hidden},   {&o->d_context, sizes->hidden},
        {&o->qkv, 3 * sizes->hidden},   {&o->d_qkv, 3 * sizes->hidden},
        {&o->inner, sizes->inner},      {&o->activation, sizes->inner},
        {&o->d_inner, sizes->inner},    {&o->u_qkv, 3 * sizes->rank},
        {&o->d_u_qkv, 3 * sizes->rank}, {&o->d_u_next, 3 * sizes->rank},
        {&o->u_o, sizes->rank},         {&o->u_1, sizes->rank},
        {&o->u_2, sizes->rank},         {&o->d_u, sizes->rank},
        {&o->d_u2, sizes->rank},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        *list[i].matrix = tt_bench_matrix(&o->memory, sizes->tokens, list[i].columns);
    }
}

/* Small, so that the gradient a joint takes and leaves in place stays bounded over many runs. */
static float *create_norm_weight(operands *o, int64_t hidden)
{
    const float value = 0.125f;
    return tt_bench_filled(&o->memory, &value, sizeof value, hidden);
}

static void create_norms(operands *o, const tt_bench_sizes *sizes, tt_dropout dropout)
{
    tt_bench_memory *memory = &o->memory;
    float *weight = create_norm_weight(o, sizes->hidden), *vectors[5];
    for (int i = 0; i < 5; i++) {
        vectors[i] = tt_bench_floats(memory, sizes->hidden);
    }
    for (int i = 0; i < NORMS; i++) {
        dropout.site = 2 + (uint32_t)i;
        o->norms[i] = (tt_residual_norm){
            .bias = vectors[0],
            .weight = weight,
            .shift = vectors[1],
            .bias_gradient = vectors[2],
            .weight_gradient = vectors[3],
            .shift_gradient = vectors[4],
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

static void create_workspace(operands *o)
{
    const tt_ops *ops = o->device->ops;
    size_t bytes = ops->attention_workspace(o->device, &o->attention);
    const size_t thin[] = {
        ops->thin_attention_workspace(o->device, &o->thin_attention),
        ops->thin_feed_forward_workspace(o->device, &o->thin_feed_forward),
    };
    for (size_t i = 0; i < sizeof thin / sizeof *thin; i++) {
        bytes = thin[i] > bytes ? thin[i] : bytes;
    }
    for (int i = 0; i < HALVES * HALVES; i++) {
        tt_thin_joint joint = joint_after(o, i / HALVES, i % HALVES);
        size_t size = ops->thin_joint_workspace(o->device, &joint);
        bytes = size > bytes ? size : bytes;
    }
    o->workspace = tt_bench_zeros(&o->memory, bytes);
    o->attention.workspace = o->workspace;
    o->thin_attention.workspace = o->workspace;
    o->thin_feed_forward.workspace = o->workspace;
}

static const uint8_t *create_mask(operands *o, const tt_bench_sizes *sizes)
{
    const uint8_t token = 1;
    return tt_bench_filled(&o->memory, &token, sizeof token, sizes->tokens);
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
    device->ops->residual_norm_output(device, &o->norms[NORM_BEFORE], o->hidden);
    for (int form = DENSE; form < FORMS; form++) {
        part_forward(o, (block_form)form, BLOCK);
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

const tt_bench_family tt_bench_blocks = {.list = list, .create = create, .destroy = destroy};

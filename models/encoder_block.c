#include "models/encoder_block.h"

#include <math.h>
#include <stdio.h>

/* --- parameters ------------------------------------------------------------------------------ */

const tt_linear *tt_block_map(const tt_encoder_block *block, int number)
{
    const tt_linear *const maps[TT_BLOCK_MAPS] = {&block->query,        &block->key,
                                                  &block->value,        &block->attention_output,
                                                  &block->intermediate, &block->output};
    return maps[number];
}

int tt_block_needs(const tt_encoder_block *block, const tt_linear *map,
                   const tt_linear *needs[TT_MOST_NEEDS])
{
    const struct {
        const tt_linear *map, *needs[TT_MOST_NEEDS];
    } rules[TT_BLOCK_MAPS] = {
        {&block->query, {&block->key, &block->value, &block->attention_output}},
        {&block->key, {&block->value, &block->attention_output}},
        {&block->value, {&block->attention_output}},
        {&block->attention_output, {&block->value}},
        {&block->intermediate, {&block->output}},
        {&block->output, {&block->intermediate}},
    };
    int rule = 0, count = 0;
    while (rules[rule].map != map) {
        rule++;
    }
    for (; count < TT_MOST_NEEDS && rules[rule].needs[count]; count++) {
        needs[count] = rules[rule].needs[count];
    }
    return count;
}

/* Tells the set which trains go with which. */
static void list_needs(const tt_encoder *encoder, const tt_encoder_block *block)
{
    for (int i = 0; i < TT_BLOCK_MAPS; i++) {
        const tt_linear *map = tt_block_map(block, i), *needs[TT_MOST_NEEDS];
        int count = tt_block_needs(block, map, needs);
        for (int n = 0; n < count && map->form == TT_TENSOR_TRAIN; n++) {
            if (needs[n]->form == TT_TENSOR_TRAIN) {
                tt_train_set_need(encoder->trains, map->train, needs[n]->train);
            }
        }
    }
}

tt_status tt_encoder_block_create(tt_encoder *encoder, int layer, tt_error *error)
{
    tt_encoder_block *block = &encoder->blocks[layer];
    const tt_configuration *configuration = &encoder->configuration;
    int64_t hidden = configuration->hidden_size, inner = configuration->intermediate_size;
    const tt_linear_form *maps = configuration->maps;
    const struct {
        tt_linear *map;
        const char *name;
        int64_t inputs, outputs;
        tt_map_kind kind;
        const tt_linear *neighbour;
    } list[] = {
        {&block->query, "attention.self.query", hidden, hidden, TT_MAP_ATTENTION, NULL},
        {&block->key, "attention.self.key", hidden, hidden, TT_MAP_ATTENTION, &block->query},
        {&block->value, "attention.self.value", hidden, hidden, TT_MAP_ATTENTION, &block->key},
        {&block->attention_output, "attention.output.dense", hidden, hidden, TT_MAP_ATTENTION,
         NULL},
        {&block->intermediate, "intermediate.dense", hidden, inner, TT_MAP_INTERMEDIATE, NULL},
        {&block->output, "output.dense", inner, hidden, TT_MAP_OUTPUT, NULL},
    };
    char name[128];
    block->first_parameter = encoder->parameters->count;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        bool passes_key = list[i].neighbour == &block->key && block->key.form == TT_REMOVED;
        snprintf(name, sizeof name, "bert.encoder.layer.%d.%s", layer, list[i].name);
        TT_TRY(tt_linear_add(list[i].map, name, list[i].inputs, list[i].outputs,
                             &maps[list[i].kind], passes_key ? &block->query : list[i].neighbour,
                             encoder->parameters, encoder->trains, error));
    }
    list_needs(encoder, block);
    snprintf(name, sizeof name, "bert.encoder.layer.%d.attention.output.LayerNorm", layer);
    TT_TRY(tt_norm_add(&block->attention_norm, name, hidden, encoder->parameters, error));
    snprintf(name, sizeof name, "bert.encoder.layer.%d.output.LayerNorm", layer);
    TT_TRY(tt_norm_add(&block->output_norm, name, hidden, encoder->parameters, error));
    block->parameters_end = encoder->parameters->count;
    block->dropout_site = 1 + 3 * (uint32_t)layer; /* site 0 is the embeddings' */
    return TT_OK;
}

void tt_encoder_block_initialize(tt_encoder *encoder, int layer, uint64_t seed)
{
    const tt_encoder_block *block = &encoder->blocks[layer];
    for (int i = 0; i < TT_BLOCK_MAPS; i++) {
        const tt_linear *map = tt_block_map(block, i);
        tt_linear_initialize(map, tt_configuration_deviation(&encoder->configuration, map), seed);
    }
    tt_norm_initialize(&block->attention_norm, encoder->parameters);
    tt_norm_initialize(&block->output_norm, encoder->parameters);
}

/* --- which form costs less ------------------------------------------------------------------- */

static bool is_train(const tt_linear *map)
{
    return map->form == TT_TENSOR_TRAIN;
}

/* Removed maps are no hindrance to thin attention. */
static bool attention_is_trains(const tt_encoder_block *block)
{
    return block->query.form != TT_DENSE && block->key.form != TT_DENSE &&
           block->value.form != TT_DENSE && is_train(&block->attention_output);
}

bool tt_encoder_block_skips(const tt_encoder_block *block, int half)
{
    return (half == 0 ? &block->attention_output : &block->output)->form == TT_REMOVED;
}

/* Multiplications of a map's full output from its input, one row. */
static double map_cost(const tt_linear *map)
{
    return map->form == TT_DENSE ? (double)map->inputs * (double)map->outputs
                                 : (double)map->rank * (double)(map->inputs + map->outputs);
}

/* A number that passes through memory once more costs about as much as this many multiplications.
 */
static const double traffic_cost = 16.0;

static double attention_cost(const tt_encoder *encoder, const tt_encoder_block *block,
                             tt_block_form form, int64_t sequence)
{
    double hidden = (double)encoder->configuration.hidden_size;
    double heads = (double)encoder->configuration.heads, keys = (double)sequence;
    if (form == TT_WIDE) {
        double maps = map_cost(&block->query) + map_cost(&block->key) + map_cost(&block->value) +
                      map_cost(&block->attention_output);
        return maps + 2.0 * keys * hidden + traffic_cost * 4.0 * hidden;
    }
    if (!attention_is_trains(block)) {
        return INFINITY;
    }
    double rq = (double)block->query.rank, rk = (double)block->key.rank;
    double rv = (double)block->value.rank, ro = (double)block->attention_output.rank;
    double per_head = rq * rk + keys * rk + keys * rv + rv * ro;
    return hidden * (rq + rk + rv + ro) + heads * per_head;
}

static double feed_forward_cost(const tt_encoder_block *block, tt_block_form form)
{
    double products = map_cost(&block->intermediate) + map_cost(&block->output);
    if (form == TT_WIDE) {
        return products + traffic_cost * 2.0 * (double)block->intermediate.outputs;
    }
    return is_train(&block->intermediate) && is_train(&block->output) ? products : INFINITY;
}

/* Whether the device has the thin form of a half for these ranks. */
static bool device_has_thin(const tt_encoder *encoder, const tt_encoder_block *block, int half)
{
    const tt_linear *const maps[2][4] = {
        {&block->query, &block->key, &block->value, &block->attention_output},
        {&block->intermediate, &block->output, NULL, NULL}};
    int64_t largest = encoder->device->ops->largest_thin_rank;
    for (int i = 0; i < 4 && largest > 0 && maps[half][i] != NULL; i++) {
        if (maps[half][i]->rank > largest) {
            return false;
        }
    }
    return true;
}

double tt_encoder_block_cost(const tt_encoder *encoder, int layer, int half, tt_block_form form,
                             int64_t sequence)
{
    const tt_encoder_block *block = &encoder->blocks[layer];
    bool skips = tt_encoder_block_skips(block, half);
    if (skips || form == TT_SKIPPED) {
        return skips && form == TT_SKIPPED ? 0.0 : INFINITY;
    }
    if (form == TT_THIN && !device_has_thin(encoder, block, half)) {
        return INFINITY;
    }
    return half == 0 ? attention_cost(encoder, block, form, sequence)
                     : feed_forward_cost(block, form);
}

/* --- operands -------------------------------------------------------------------------------- */

size_t tt_plan_reserve(const tt_encoder *encoder, int64_t rows, int64_t columns)
{
    return tt_arena_reserve(&encoder->plan->arena,
                            tt_type_bytes(encoder->device->compute, rows * columns));
}

tt_matrix tt_plan_matrix(const tt_encoder *encoder, size_t offset, int64_t rows, int64_t columns)
{
    return tt_matrix_dense(tt_arena_at(&encoder->plan->arena, offset), rows, columns,
                           encoder->device->compute);
}

tt_dropout tt_encoder_dropout(const tt_encoder *encoder, float probability, uint32_t site,
                              const tt_encoder_inputs *inputs, int64_t row_factor)
{
    return (tt_dropout){.probability = encoder->training ? probability : 0.0f,
                        .seed = encoder->seed,
                        .step = encoder->step,
                        .site = site,
                        .first_row =
                            (uint32_t)(inputs->first_sequence * inputs->sequence * row_factor)};
}

static void *at(const tt_encoder *encoder, size_t offset)
{
    return tt_arena_at(&encoder->plan->arena, offset);
}

tt_thin_attention tt_block_thin_attention(const tt_encoder *encoder, int layer,
                                          const tt_encoder_inputs *inputs)
{
    const tt_encoder_block *block = &encoder->blocks[layer];
    const tt_configuration *configuration = &encoder->configuration;
    int64_t ranks = block->query.rank + block->key.rank + block->value.rank;
    return (tt_thin_attention){
        .batch = inputs->batch,
        .sequence = inputs->sequence,
        .heads = configuration->heads,
        .u = tt_plan_matrix(encoder, block->room.u_qkv, inputs->batch * inputs->sequence, ranks),
        .rank_q = block->query.rank,
        .rank_k = block->key.rank,
        .rank_v = block->value.rank,
        .rank_o = block->attention_output.rank,
        .score_map = block->maps.score_map,
        .output_map = block->maps.output_map,
        .score_map_gradient = block->maps.score_map_gradient,
        .output_map_gradient = block->maps.output_map_gradient,
        .mask = inputs->mask,
        .dropout = tt_encoder_dropout(encoder, configuration->attention_dropout,
                                      block->dropout_site, inputs, configuration->heads),
        .log_sum_exp = at(encoder, block->room.log_sum_exp),
        .workspace = at(encoder, encoder->plan->shared.workspace)};
}

tt_attention tt_block_attention(const tt_encoder *encoder, int layer,
                                const tt_encoder_inputs *inputs)
{
    const tt_encoder_block *block = &encoder->blocks[layer];
    const tt_configuration *configuration = &encoder->configuration;
    int64_t hidden = configuration->hidden_size;
    tt_matrix qkv =
        tt_plan_matrix(encoder, block->room.qkv, inputs->batch * inputs->sequence, 3 * hidden);
    return (tt_attention){.batch = inputs->batch,
                          .sequence = inputs->sequence,
                          .heads = configuration->heads,
                          .q = tt_matrix_columns(qkv, 0, hidden),
                          .k = tt_matrix_columns(qkv, hidden, hidden),
                          .v = tt_matrix_columns(qkv, 2 * hidden, hidden),
                          .q_bias = tt_linear_bias(&block->query),
                          .k_bias = tt_linear_bias(&block->key),
                          .v_bias = tt_linear_bias(&block->value),
                          .mask = inputs->mask,
                          .dropout =
                              tt_encoder_dropout(encoder, configuration->attention_dropout,
                                                 block->dropout_site, inputs, configuration->heads),
                          .log_sum_exp = at(encoder, block->room.log_sum_exp),
                          .workspace = at(encoder, encoder->plan->shared.workspace)};
}

tt_thin_feed_forward tt_block_thin_feed_forward(const tt_encoder *encoder, int layer,
                                                int64_t tokens)
{
    const tt_encoder_block *block = &encoder->blocks[layer];
    const tt_train *first = tt_linear_train(&block->intermediate);
    const tt_train *second = tt_linear_train(&block->output);
    return (tt_thin_feed_forward){
        .u1 = tt_plan_matrix(encoder, block->room.u_1, tokens, block->intermediate.rank),
        .b1 = first->rounded_b,
        .bias = tt_linear_bias(&block->intermediate),
        .a2 = second->rounded_a,
        .b1_gradient = first->b_gradient,
        .a2_gradient = second->a_gradient,
        .bias_gradient = tt_linear_bias_gradient(&block->intermediate),
        .gelu = encoder->configuration.gelu,
        .workspace = at(encoder, encoder->plan->shared.workspace)};
}

tt_residual_norm tt_block_norm(const tt_encoder *encoder, int layer, int half,
                               const tt_encoder_inputs *inputs)
{
    const tt_encoder_block *block = &encoder->blocks[layer];
    const tt_configuration *configuration = &encoder->configuration;
    const tt_linear *map = half == 0 ? &block->attention_output : &block->output;
    int64_t tokens = inputs->batch * inputs->sequence;
    tt_norm_state state = {
        .normalized = tt_plan_matrix(
            encoder, half == 0 ? block->room.attention_normalized : block->room.output_normalized,
            tokens, configuration->hidden_size),
        .inverse_deviation = at(encoder, half == 0 ? block->room.attention_deviation
                                                   : block->room.output_deviation)};
    tt_residual_norm norm =
        tt_norm_operation(half == 0 ? &block->attention_norm : &block->output_norm,
                          encoder->parameters, configuration->layer_norm_epsilon, state);
    norm.bias = tt_linear_bias(map);
    norm.bias_gradient = tt_linear_bias_gradient(map);
    norm.dropout = tt_encoder_dropout(encoder, configuration->dropout,
                                      block->dropout_site + 1 + (uint32_t)half, inputs, 1);
    return norm;
}

static tt_block_form form_of(const tt_encoder *encoder, int layer, int half)
{
    const tt_encoder_block *block = &encoder->blocks[layer];
    return half == 0 ? block->attention_form : block->feed_forward_form;
}

static bool is_thin(const tt_encoder *encoder, int layer, int half)
{
    return form_of(encoder, layer, half) == TT_THIN;
}

/* Whether a half ends in a joint: it is thin, or skipped, which is thin of rank 0. */
static bool ends_thin(const tt_encoder *encoder, int layer, int half)
{
    return form_of(encoder, layer, half) != TT_WIDE;
}

/* Whether the joint after a half goes on into the next one, which is thin as well. */
static bool feeds_next(const tt_encoder *encoder, int layer, int half)
{
    int next_layer = layer + half;
    return ends_thin(encoder, layer, half) && next_layer < encoder->configuration.layers &&
           is_thin(encoder, next_layer, 1 - half);
}

/* Whether a half's u is made, and its input factor's gradient taken, by the joint before it. */
static bool is_fed(const tt_encoder *encoder, int layer, int half)
{
    return half == 1 ? feeds_next(encoder, layer, 0)
                     : layer > 0 && feeds_next(encoder, layer - 1, 1);
}

static const tt_linear *input_map(const tt_encoder_block *block, int number)
{
    const tt_linear *const maps[] = {&block->query, &block->key, &block->value};
    return maps[number];
}

const tt_linear *tt_block_first_input(const tt_encoder_block *block)
{
    for (int i = 0; i < 3; i++) {
        if (is_train(input_map(block, i))) {
            return input_map(block, i);
        }
    }
    return NULL;
}

const tt_linear *tt_block_last_input(const tt_encoder_block *block)
{
    for (int i = 2; i >= 0; i--) {
        if (is_train(input_map(block, i))) {
            return input_map(block, i);
        }
    }
    return NULL;
}

tt_thin_joint tt_block_joint(const tt_encoder *encoder, int layer, int half,
                             const tt_encoder_inputs *inputs)
{
    const tt_encoder_block *block = &encoder->blocks[layer];
    const tt_linear *map = half == 0 ? &block->attention_output : &block->output;
    tt_thin_joint joint = {.norm = tt_block_norm(encoder, layer, half, inputs),
                           .u = tt_plan_matrix(encoder,
                                               half == 0 ? block->room.u_o : block->room.u_2,
                                               inputs->batch * inputs->sequence, map->rank),
                           .b = tt_matrix_dense(NULL, 0, map->outputs, encoder->device->compute),
                           .b_gradient = tt_matrix_f32(NULL, 0, map->outputs),
                           .workspace = at(encoder, encoder->plan->shared.workspace)};
    if (is_train(map)) {
        joint.b = tt_linear_train(map)->rounded_b;
        joint.b_gradient = tt_linear_train(map)->b_gradient;
    }
    const tt_encoder_block *next = &encoder->blocks[layer + half];
    if (feeds_next(encoder, layer, half) && (half == 0 || tt_block_first_input(next))) {
        int first = half == 0 ? next->intermediate.train : tt_block_first_input(next)->train;
        int last = half == 0 ? next->intermediate.train : tt_block_last_input(next)->train;
        joint.a_next = tt_train_set_input_factors(encoder->trains, first, last);
        joint.a_next_gradient = tt_train_set_input_gradients(encoder->trains, first, last);
    }
    return joint;
}

/* --- forward --------------------------------------------------------------------------------- */

/* The operands that both passes of a half name over and over. */
typedef struct {
    tt_encoder_block *block;
    const tt_ops *ops;
    tt_device *device;
    tt_matrix hidden, branch, d_hidden;
    tt_matrix u_qkv, u_o, u_1, u_2;
    int64_t tokens, width, inner;
} block_view;

static block_view view_of(tt_encoder *encoder, int layer, const tt_encoder_inputs *inputs)
{
    tt_encoder_block *block = &encoder->blocks[layer];
    const tt_shared_room *shared = &encoder->plan->shared;
    int64_t tokens = inputs->batch * inputs->sequence;
    int64_t width = encoder->configuration.hidden_size;
    int64_t ranks = block->query.rank + block->key.rank + block->value.rank;
    return (block_view){
        .block = block,
        .ops = encoder->device->ops,
        .device = encoder->device,
        .hidden = tt_plan_matrix(encoder, shared->hidden, tokens, width),
        .branch = tt_plan_matrix(encoder, shared->branch, tokens, width),
        .d_hidden = tt_plan_matrix(encoder, shared->d_hidden, tokens, width),
        .u_qkv = tt_plan_matrix(encoder, block->room.u_qkv, tokens, ranks),
        .u_o = tt_plan_matrix(encoder, block->room.u_o, tokens, block->attention_output.rank),
        .u_1 = tt_plan_matrix(encoder, block->room.u_1, tokens, block->intermediate.rank),
        .u_2 = tt_plan_matrix(encoder, block->room.u_2, tokens, block->output.rank),
        .tokens = tokens,
        .width = width,
        .inner = encoder->configuration.intermediate_size};
}

/* The three maps that read the attention half's input, with where each map's u lies in u_qkv. */
static void qkv_maps(const tt_encoder_block *block, const tt_linear *maps[3], int64_t columns[3])
{
    maps[0] = &block->query;
    maps[1] = &block->key;
    maps[2] = &block->value;
    columns[0] = 0;
    columns[1] = block->query.rank;
    columns[2] = block->query.rank + block->key.rank;
}

static void wide_attention_forward(tt_encoder *encoder, int layer, const tt_encoder_inputs *inputs,
                                   const block_view *view)
{
    tt_attention attention = tt_block_attention(encoder, layer, inputs);
    tt_matrix targets[3] = {attention.q, attention.k, attention.v};
    const tt_linear *maps[3];
    int64_t columns[3];
    qkv_maps(view->block, maps, columns);
    for (int i = 0; i < 3; i++) {
        tt_linear_forward(maps[i], view->hidden,
                          tt_matrix_columns(view->u_qkv, columns[i], maps[i]->rank), targets[i]);
    }
    tt_matrix context =
        tt_plan_matrix(encoder, view->block->room.context, view->tokens, view->width);
    view->ops->attention_forward(view->device, &attention, context);
    tt_linear_forward(&view->block->attention_output, context, view->u_o, view->branch);
}

static void thin_attention_forward(tt_encoder *encoder, int layer, const tt_encoder_inputs *inputs,
                                   const block_view *view)
{
    tt_thin_attention attention = tt_block_thin_attention(encoder, layer, inputs);
    const tt_linear *first = tt_block_first_input(view->block);
    if (first && !is_fed(encoder, layer, 0)) {
        tt_linear_contract(first, tt_block_last_input(view->block), view->hidden, view->u_qkv);
    }
    view->ops->thin_attention_forward(view->device, &attention, view->u_o);
}

static void wide_feed_forward_forward(tt_encoder *encoder, const block_view *view)
{
    tt_matrix inner = tt_plan_matrix(encoder, view->block->room.inner, view->tokens, view->inner);
    tt_matrix activation =
        tt_plan_matrix(encoder, encoder->plan->shared.activation, view->tokens, view->inner);
    tt_linear_forward_gelu(&view->block->intermediate, encoder->configuration.gelu, view->hidden,
                           view->u_1, inner, activation);
    tt_linear_forward(&view->block->output, activation, view->u_2, view->branch);
}

static void thin_feed_forward_forward(tt_encoder *encoder, int layer, const block_view *view)
{
    tt_thin_feed_forward block = tt_block_thin_feed_forward(encoder, layer, view->tokens);
    if (!is_fed(encoder, layer, 1)) {
        tt_linear_contract(&view->block->intermediate, &view->block->intermediate, view->hidden,
                           view->u_1);
    }
    view->ops->thin_feed_forward_forward(view->device, &block, view->u_2);
}

/* The u of the half that follows. */
static tt_matrix next_u(const tt_encoder *encoder, int layer, int half, const block_view *view)
{
    if (!feeds_next(encoder, layer, half)) {
        return (tt_matrix){0};
    }
    if (half == 0) {
        return view->u_1;
    }
    const tt_encoder_block *next = &encoder->blocks[layer + 1];
    int64_t ranks = next->query.rank + next->key.rank + next->value.rank;
    return tt_plan_matrix(encoder, next->room.u_qkv, view->tokens, ranks);
}

static void close_half(tt_encoder *encoder, int layer, int half, const tt_encoder_inputs *inputs,
                       const block_view *view)
{
    if (ends_thin(encoder, layer, half)) {
        tt_thin_joint joint = tt_block_joint(encoder, layer, half, inputs);
        view->ops->thin_joint_forward(view->device, &joint, view->hidden,
                                      next_u(encoder, layer, half, view));
    } else {
        tt_residual_norm norm = tt_block_norm(encoder, layer, half, inputs);
        view->ops->residual_norm_forward(view->device, &norm, view->branch, view->hidden,
                                         view->hidden);
    }
}

void tt_encoder_block_forward(tt_encoder *encoder, int layer, const tt_encoder_inputs *inputs)
{
    block_view view = view_of(encoder, layer, inputs);
    if (view.block->attention_form == TT_THIN) {
        thin_attention_forward(encoder, layer, inputs, &view);
    } else if (view.block->attention_form == TT_WIDE) {
        wide_attention_forward(encoder, layer, inputs, &view);
    }
    close_half(encoder, layer, 0, inputs, &view);
    if (view.block->feed_forward_form == TT_THIN) {
        thin_feed_forward_forward(encoder, layer, &view);
    } else if (view.block->feed_forward_form == TT_WIDE) {
        wide_feed_forward_forward(encoder, &view);
    }
    close_half(encoder, layer, 1, inputs, &view);
}

/* --- backward -------------------------------------------------------------------------------- */

static tt_matrix scratch_u(const tt_encoder *encoder, const block_view *view, int64_t columns)
{
    return tt_plan_matrix(encoder, encoder->plan->shared.d_u, view->tokens, columns);
}

static tt_matrix scratch_u2(const tt_encoder *encoder, const block_view *view, int64_t columns)
{
    return tt_plan_matrix(encoder, encoder->plan->shared.d_u2, view->tokens, columns);
}

static void wide_feed_forward_backward(tt_encoder *encoder, const block_view *view)
{
    const tt_shared_room *shared = &encoder->plan->shared;
    tt_encoder_block *block = view->block;
    tt_gelu gelu = encoder->configuration.gelu;
    tt_matrix inner = tt_plan_matrix(encoder, block->room.inner, view->tokens, view->inner);
    tt_matrix activation = tt_plan_matrix(encoder, shared->activation, view->tokens, view->inner);
    tt_matrix d_inner = activation; /* its gradient takes its place */
    view->ops->gelu_forward(view->device, gelu, inner, NULL, activation);
    tt_linear_backward(&block->output, activation, view->u_2, view->branch,
                       scratch_u(encoder, view, block->output.rank), 0.0f, d_inner);
    view->ops->gelu_backward(view->device, gelu, inner, d_inner, d_inner, (tt_matrix){0},
                             tt_linear_bias_gradient(&block->intermediate));
    tt_linear_backward(&block->intermediate, view->hidden, view->u_1, d_inner,
                       scratch_u(encoder, view, block->intermediate.rank), 1.0f, view->d_hidden);
}

/* d_u2 lies ready: the joint after this half has left it. */
static void thin_feed_forward_backward(tt_encoder *encoder, int layer, const block_view *view)
{
    tt_encoder_block *block = view->block;
    tt_thin_feed_forward operation = tt_block_thin_feed_forward(encoder, layer, view->tokens);
    tt_matrix d_u1 = scratch_u(encoder, view, block->intermediate.rank);
    view->ops->thin_feed_forward_backward(view->device, &operation,
                                          scratch_u2(encoder, view, block->output.rank), d_u1);
    if (!is_fed(encoder, layer, 1)) {
        tt_linear_contract_backward(&block->intermediate, &block->intermediate, view->hidden, d_u1,
                                    1.0f, view->d_hidden);
    }
}

static void wide_attention_backward(tt_encoder *encoder, int layer, const tt_encoder_inputs *inputs,
                                    const block_view *view)
{
    const tt_shared_room *shared = &encoder->plan->shared;
    tt_encoder_block *block = view->block;
    tt_attention attention = tt_block_attention(encoder, layer, inputs);
    tt_matrix context = tt_plan_matrix(encoder, block->room.context, view->tokens, view->width);
    tt_matrix d_context = tt_plan_matrix(encoder, shared->d_context, view->tokens, view->width);
    tt_matrix d_qkv = tt_plan_matrix(encoder, shared->d_qkv, view->tokens, 3 * view->width);
    tt_linear_backward(&block->attention_output, context, view->u_o, view->branch,
                       scratch_u(encoder, view, block->attention_output.rank), 0.0f, d_context);
    tt_matrix d_map[3];
    for (int i = 0; i < 3; i++) {
        d_map[i] = tt_matrix_columns(d_qkv, i * view->width, view->width);
    }
    view->ops->attention_backward(view->device, &attention, d_context, d_map[0], d_map[1],
                                  d_map[2]);
    const tt_linear *maps[3];
    int64_t columns[3];
    qkv_maps(block, maps, columns);
    for (int i = 0; i < 3; i++) {
        /* The key's bias is a constant along the keys, which softmax cancels; without key, so is
         * all that queries do. */
        if (maps[i] == &block->value ||
            (maps[i] == &block->query && block->key.form != TT_REMOVED)) {
            view->ops->add_bias_backward(view->device, d_map[i], tt_linear_bias_gradient(maps[i]));
        }
        tt_linear_backward(maps[i], view->hidden,
                           tt_matrix_columns(view->u_qkv, columns[i], maps[i]->rank), d_map[i],
                           scratch_u(encoder, view, maps[i]->rank), 1.0f, view->d_hidden);
    }
}

/* d_u_o lies ready: the joint after this half has left it. */
static void thin_attention_backward(tt_encoder *encoder, int layer, const tt_encoder_inputs *inputs,
                                    const block_view *view)
{
    tt_encoder_block *block = view->block;
    tt_thin_attention attention = tt_block_thin_attention(encoder, layer, inputs);
    tt_matrix d_u = scratch_u(encoder, view, view->u_qkv.columns);
    view->ops->thin_attention_backward(
        view->device, &attention, scratch_u2(encoder, view, block->attention_output.rank), d_u);
    const tt_linear *first = tt_block_first_input(block);
    if (first && !is_fed(encoder, layer, 0)) {
        tt_linear_contract_backward(first, tt_block_last_input(block), view->hidden, d_u, 1.0f,
                                    view->d_hidden);
    }
}

/* Gradient of the stream before the norm in d_hidden; that of the half's output in branch (wide)
 * or, taken on to its u, in the second scratch u (thin). */
static void open_half(tt_encoder *encoder, int layer, int half, const tt_encoder_inputs *inputs,
                      const block_view *view)
{
    if (ends_thin(encoder, layer, half)) {
        tt_thin_joint joint = tt_block_joint(encoder, layer, half, inputs);
        tt_matrix d_next = scratch_u(encoder, view, joint.a_next.columns);
        view->ops->thin_joint_backward(view->device, &joint, d_next, view->d_hidden,
                                       scratch_u2(encoder, view, joint.u.columns));
    } else {
        tt_residual_norm norm = tt_block_norm(encoder, layer, half, inputs);
        view->ops->residual_norm_backward(view->device, &norm, view->d_hidden, view->d_hidden,
                                          view->branch);
    }
}

void tt_encoder_block_input(tt_encoder *encoder, int layer, const tt_encoder_inputs *inputs)
{
    block_view view = view_of(encoder, layer, inputs);
    if (layer > 0) {
        tt_residual_norm norm = tt_block_norm(encoder, layer - 1, 1, inputs);
        view.ops->residual_norm_output(view.device, &norm, view.hidden);
    } else {
        tt_encoder_embedding_output(encoder, inputs);
    }
}

/* The input of a half in `hidden` again, where the half needs it itself. */
static void recall_input(tt_encoder *encoder, int layer, int half, const tt_encoder_inputs *inputs,
                         const block_view *view)
{
    if (is_fed(encoder, layer, half) || form_of(encoder, layer, half) == TT_SKIPPED) {
        return;
    }
    if (half == 0) {
        tt_encoder_block_input(encoder, layer, inputs);
    } else {
        tt_residual_norm norm = tt_block_norm(encoder, layer, 0, inputs);
        view->ops->residual_norm_output(view->device, &norm, view->hidden);
    }
}

void tt_encoder_block_backward(tt_encoder *encoder, int layer, const tt_encoder_inputs *inputs)
{
    block_view view = view_of(encoder, layer, inputs);
    open_half(encoder, layer, 1, inputs, &view);
    recall_input(encoder, layer, 1, inputs, &view);
    if (is_thin(encoder, layer, 1)) {
        thin_feed_forward_backward(encoder, layer, &view);
    } else if (!ends_thin(encoder, layer, 1)) {
        wide_feed_forward_backward(encoder, &view);
    }
    open_half(encoder, layer, 0, inputs, &view);
    recall_input(encoder, layer, 0, inputs, &view);
    if (is_thin(encoder, layer, 0)) {
        thin_attention_backward(encoder, layer, inputs, &view);
    } else if (!ends_thin(encoder, layer, 0)) {
        wide_attention_backward(encoder, layer, inputs, &view);
    }
}

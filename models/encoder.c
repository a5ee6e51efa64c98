#include "models/encoder.h"

#include "models/encoder_block.h"
#include "models/positions.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* --- parameters ------------------------------------------------------------------------------ */

tt_status tt_norm_add(tt_norm_ids *ids, const char *name, int64_t hidden, tt_parameters *parameters,
                      tt_error *error)
{
    char full_name[160];
    snprintf(full_name, sizeof full_name, "%s.weight", name);
    TT_TRY(tt_parameters_add(parameters, full_name, TT_GROUP_DENSE, false, 1, &hidden, &ids->weight,
                             error));
    snprintf(full_name, sizeof full_name, "%s.bias", name);
    return tt_parameters_add(parameters, full_name, TT_GROUP_DENSE, false, 1, &hidden, &ids->shift,
                             error);
}

void tt_norm_initialize(const tt_norm_ids *ids, tt_parameters *parameters)
{
    tt_parameters_fill(parameters, ids->weight, 1.0f);
    tt_parameters_fill(parameters, ids->shift, 0.0f);
}

tt_residual_norm tt_norm_operation(const tt_norm_ids *ids, const tt_parameters *parameters,
                                   float epsilon, tt_norm_state state)
{
    return (tt_residual_norm){.weight = tt_parameters_value(parameters, ids->weight),
                              .shift = tt_parameters_value(parameters, ids->shift),
                              .weight_gradient = tt_parameters_gradient(parameters, ids->weight),
                              .shift_gradient = tt_parameters_gradient(parameters, ids->shift),
                              .epsilon = epsilon,
                              .state = state};
}

tt_status tt_encoder_create(tt_encoder *encoder, const tt_configuration *configuration,
                            tt_parameters *parameters, tt_train_set *trains, tt_error *error)
{
    TT_TRY(tt_configuration_check(configuration, error));
    TT_TRY(tt_positions_check(configuration, error));
    *encoder = (tt_encoder){.configuration = *configuration,
                            .device = parameters->device,
                            .parameters = parameters,
                            .trains = trains};
    encoder->blocks = calloc((size_t)configuration->layers, sizeof *encoder->blocks);
    if (!encoder->blocks) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for %lld encoder blocks",
                            (long long)configuration->layers);
    }
    int64_t hidden = configuration->hidden_size;
    const struct {
        const char *name;
        int64_t rows;
        tt_parameter_id *id;
    } tables[] = {
        {"bert.embeddings.position_embeddings.weight", configuration->max_positions,
         &encoder->position},
        {"bert.embeddings.token_type_embeddings.weight", configuration->segment_types,
         &encoder->segment},
    };
    TT_TRY(tt_word_table_create(&encoder->words, configuration, parameters, trains, error));
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        TT_TRY(tt_parameters_add(parameters, tables[i].name, TT_GROUP_DENSE, true, 2,
                                 (int64_t[]){tables[i].rows, hidden}, tables[i].id, error));
    }
    TT_TRY(tt_norm_add(&encoder->norm, "bert.embeddings.LayerNorm", hidden, parameters, error));
    for (int layer = 0; layer < configuration->layers; layer++) {
        TT_TRY(tt_encoder_block_create(encoder, layer, error));
    }
    return TT_OK;
}

tt_status tt_encoder_initialize(tt_encoder *encoder, uint64_t seed, tt_error *error)
{
    TT_TRY(tt_positions_initialize(encoder, seed, error));
    tt_norm_initialize(&encoder->norm, encoder->parameters);
    for (int layer = 0; layer < encoder->configuration.layers; layer++) {
        tt_encoder_block_initialize(encoder, layer, seed);
    }
    return tt_positions_initialize_attention(encoder, error);
}

/* --- planning activations --- */

static int64_t ranks_qkv(const tt_encoder_block *block)
{
    return block->query.rank + block->key.rank + block->value.rank;
}

static void choose_forms(tt_encoder *encoder, int64_t sequence)
{
    for (int layer = 0; layer < encoder->configuration.layers; layer++) {
        tt_encoder_block *block = &encoder->blocks[layer];
        for (int half = 0; half < 2; half++) {
            double wide = tt_encoder_block_cost(encoder, layer, half, TT_WIDE, sequence);
            double thin = tt_encoder_block_cost(encoder, layer, half, TT_THIN, sequence);
            bool takes_thin = encoder->form_choice == TT_FORM_BY_COST
                                  ? thin < wide
                                  : encoder->form_choice == TT_FORM_ALWAYS_THIN && isfinite(thin);
            *(half == 0 ? &block->attention_form : &block->feed_forward_form) =
                tt_encoder_block_skips(block, half) ? TT_SKIPPED
                : takes_thin                        ? TT_THIN
                                                    : TT_WIDE;
        }
    }
}

static void reserve_block(tt_encoder *encoder, tt_encoder_block *block, int64_t tokens)
{
    tt_arena *arena = &encoder->plan->arena;
    int64_t hidden = encoder->configuration.hidden_size;
    tt_block_room *room = &block->room;
    room->u_qkv = tt_plan_reserve(encoder, tokens, ranks_qkv(block));
    room->u_o = tt_plan_reserve(encoder, tokens, block->attention_output.rank);
    room->u_1 = tt_plan_reserve(encoder, tokens, block->intermediate.rank);
    room->u_2 = tt_plan_reserve(encoder, tokens, block->output.rank);
    if (block->attention_form == TT_WIDE) {
        room->qkv = tt_plan_reserve(encoder, tokens, 3 * hidden);
        room->context = tt_plan_reserve(encoder, tokens, hidden);
    }
    if (block->attention_form != TT_SKIPPED) {
        room->log_sum_exp =
            tt_arena_reserve(arena, tt_floats(tokens * encoder->configuration.heads));
    }
    room->attention_normalized = tt_plan_reserve(encoder, tokens, hidden);
    room->attention_deviation = tt_arena_reserve(arena, tt_floats(tokens));
    if (block->feed_forward_form == TT_WIDE) {
        room->inner = tt_plan_reserve(encoder, tokens, encoder->configuration.intermediate_size);
    }
    room->output_normalized = tt_plan_reserve(encoder, tokens, hidden);
    room->output_deviation = tt_arena_reserve(arena, tt_floats(tokens));
}

/* What a forward pass alone may overwrite from block to block. */
static void reserve_blocks(tt_encoder *encoder, int64_t tokens)
{
    tt_arena *arena = &encoder->plan->arena;
    size_t mark = tt_arena_mark(arena), furthest = mark;
    for (int layer = 0; layer < encoder->configuration.layers; layer++) {
        reserve_block(encoder, &encoder->blocks[layer], tokens);
        if (!encoder->plan->with_gradients) {
            furthest = tt_arena_mark(arena) > furthest ? tt_arena_mark(arena) : furthest;
            tt_arena_rewind(arena, mark);
        }
    }
    if (!encoder->plan->with_gradients) {
        tt_arena_reserve(arena, furthest - mark);
    }
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t joint_workspace(tt_encoder *encoder, int layer, int half,
                              const tt_encoder_inputs *inputs)
{
    tt_thin_joint joint = tt_block_joint(encoder, layer, half, inputs);
    return encoder->device->ops->thin_joint_workspace(encoder->device, &joint);
}

static size_t block_workspace(tt_encoder *encoder, int layer, const tt_encoder_inputs *inputs)
{
    const tt_encoder_block *block = &encoder->blocks[layer];
    tt_device *device = encoder->device;
    const tt_ops *ops = device->ops;
    size_t size = 0;
    if (block->attention_form == TT_THIN) {
        tt_thin_attention attention = tt_block_thin_attention(encoder, layer, inputs);
        size = ops->thin_attention_workspace(device, &attention);
    } else if (block->attention_form == TT_WIDE) {
        tt_attention attention = tt_block_attention(encoder, layer, inputs);
        size = ops->attention_workspace(device, &attention);
    }
    if (block->attention_form != TT_WIDE) {
        size = larger(size, joint_workspace(encoder, layer, 0, inputs));
    }
    if (block->feed_forward_form == TT_THIN) {
        tt_thin_feed_forward operation =
            tt_block_thin_feed_forward(encoder, layer, inputs->batch * inputs->sequence);
        size = larger(size, ops->thin_feed_forward_workspace(device, &operation));
    }
    if (block->feed_forward_form != TT_WIDE) {
        size = larger(size, joint_workspace(encoder, layer, 1, inputs));
    }
    return size;
}

static size_t workspace_size(tt_encoder *encoder)
{
    tt_encoder_inputs inputs = {.batch = encoder->plan->batch, .sequence = encoder->plan->sequence};
    int64_t tokens = inputs.batch * inputs.sequence;
    size_t size = encoder->device->ops->embedding_workspace(encoder->device, tokens,
                                                            encoder->configuration.vocabulary_size);
    size = larger(size, tt_word_table_workspace(&encoder->words, tokens));
    for (int layer = 0; layer < encoder->configuration.layers; layer++) {
        size = larger(size, block_workspace(encoder, layer, &inputs));
    }
    return size;
}

static void reserve_shared(tt_encoder *encoder, int64_t tokens, size_t scratch_bytes)
{
    const tt_configuration *configuration = &encoder->configuration;
    tt_arena *arena = &encoder->plan->arena;
    tt_shared_room *shared = &encoder->plan->shared;
    int64_t hidden = configuration->hidden_size, rank = 0;
    bool wide_attention = false, wide_feed_forward = false;
    for (int layer = 0; layer < configuration->layers; layer++) {
        const tt_encoder_block *block = &encoder->blocks[layer];
        int64_t widths[] = {rank, ranks_qkv(block), block->attention_output.rank,
                            block->intermediate.rank, block->output.rank};
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            rank = widths[i] > rank ? widths[i] : rank;
        }
        wide_attention = wide_attention || block->attention_form == TT_WIDE;
        wide_feed_forward = wide_feed_forward || block->feed_forward_form == TT_WIDE;
    }
    int64_t backward = encoder->plan->with_gradients ? tokens : 0; /* rows */
    shared->hidden = tt_plan_reserve(encoder, tokens, hidden);
    shared->branch = tt_plan_reserve(encoder, tokens, hidden);
    tt_word_table_reserve(&encoder->words, arena, tokens, shared->branch,
                          tt_type_bytes(encoder->device->compute, tokens * hidden));
    shared->embedding_normalized = tt_plan_reserve(encoder, tokens, hidden);
    shared->embedding_deviation = tt_arena_reserve(arena, tt_floats(tokens));
    shared->d_hidden = tt_plan_reserve(encoder, backward, hidden);
    size_t scratch = tt_arena_mark(arena);
    shared->workspace = tt_arena_reserve(arena, workspace_size(encoder));
    shared->d_u = tt_plan_reserve(encoder, backward, rank);
    shared->d_u2 = tt_plan_reserve(encoder, backward, rank);
    /* The halves of a block never run at once, so their wide scratch shares its place. */
    size_t mark = tt_arena_mark(arena), wide = 0;
    if (wide_attention) {
        shared->d_context = tt_plan_reserve(encoder, backward, hidden);
        shared->d_qkv = tt_plan_reserve(encoder, backward, 3 * hidden);
        wide = tt_arena_mark(arena) - mark;
        tt_arena_rewind(arena, mark);
    }
    if (wide_feed_forward) {
        shared->activation = tt_plan_reserve(encoder, tokens, configuration->intermediate_size);
        wide = larger(wide, tt_arena_mark(arena) - mark);
        tt_arena_rewind(arena, mark);
    }
    tt_arena_reserve(arena, larger(mark + wide, scratch + scratch_bytes) - mark);
}

/* --- the maps of thin attention --- */

static int64_t score_map_size(const tt_encoder *encoder, const tt_encoder_block *block)
{
    return (block->query.rank + 1) * encoder->configuration.heads * (block->key.rank + 1);
}

static int64_t output_map_size(const tt_encoder *encoder, const tt_encoder_block *block)
{
    return encoder->configuration.heads * (block->value.rank + 1) * block->attention_output.rank;
}

/* B with the row of the bias behind it, and its gradient; of a removed map the bias itself. */
static tt_matrix with_bias_row(const tt_linear *map)
{
    if (map->form == TT_REMOVED) {
        return tt_matrix_f32(tt_parameters_value(map->parameters, map->bias), 1, map->outputs);
    }
    tt_matrix b = tt_linear_train(map)->b;
    b.rows++;
    return b;
}

static tt_matrix with_bias_row_gradient(const tt_linear *map)
{
    if (map->form == TT_REMOVED) {
        return tt_matrix_f32(tt_linear_bias_gradient(map), 1, map->outputs);
    }
    tt_matrix gradient = tt_linear_train(map)->b_gradient;
    gradient.rows++;
    return gradient;
}

static void add_product(tt_product *list, int *count, bool transpose_a, bool transpose_b,
                        float alpha, float beta, tt_matrix a, tt_matrix b, tt_matrix c)
{
    list[(*count)++] = (tt_product){.transpose_a = transpose_a,
                                    .transpose_b = transpose_b,
                                    .alpha = alpha,
                                    .beta = beta,
                                    .a = a,
                                    .b = b,
                                    .c = c};
}

/* M_h = B^_q,h B^_k,h^T / sqrt(width) and its gradients. Without key, scores are constants along
 * the keys, which softmax cancels, and nothing has a gradient; without query, the key's bias adds
 * one, as ever. */
static void list_score_map(tt_encoder *encoder, const tt_encoder_block *block, int64_t head)
{
    tt_encoder_plan *plan = encoder->plan;
    int64_t heads = encoder->configuration.heads;
    int64_t width = encoder->configuration.hidden_size / heads, column = head * width;
    float scale = 1.0f / sqrtf((float)width);
    tt_matrix bq = tt_matrix_columns(with_bias_row(&block->query), column, width);
    tt_matrix bk = tt_matrix_columns(with_bias_row(&block->key), column, width);
    tt_matrix d_bq = tt_matrix_columns(with_bias_row_gradient(&block->query), column, width);
    tt_matrix d_bk = tt_matrix_columns(with_bias_row_gradient(&block->key), column, width);
    tt_matrix map = tt_matrix_f32(block->maps.score_map, bq.rows, heads * bk.rows);
    tt_matrix d_map = tt_matrix_f32(block->maps.score_map_gradient, bq.rows, heads * bk.rows);
    map = tt_matrix_columns(map, head * bk.rows, bk.rows);
    d_map = tt_matrix_columns(d_map, head * bk.rows, bk.rows);
    add_product(plan->map_products, &plan->map_product_count, false, true, scale, 0, bq, bk, map);
    if (block->key.form == TT_REMOVED) {
        return;
    }
    add_product(plan->map_backward, &plan->map_backward_count, false, false, scale, 1, d_map, bk,
                d_bq);
    add_product(plan->map_backward, &plan->map_backward_count, true, false, scale, 1, d_map, bq,
                d_bk);
}

/* N_h = B^_v,h A_o,h and its gradients. */
static void list_output_map(tt_encoder *encoder, const tt_encoder_block *block, int64_t head)
{
    tt_encoder_plan *plan = encoder->plan;
    int64_t width = encoder->configuration.hidden_size / encoder->configuration.heads;
    const tt_train *o = tt_linear_train(&block->attention_output);
    tt_matrix bv = tt_matrix_columns(with_bias_row(&block->value), head * width, width);
    tt_matrix d_bv = tt_matrix_columns(with_bias_row_gradient(&block->value), head * width, width);
    tt_matrix ao = tt_matrix_rows(o->a, head * width, width);
    tt_matrix d_ao = tt_matrix_rows(o->a_gradient, head * width, width);
    int64_t offset = head * bv.rows * ao.columns;
    tt_matrix map = tt_matrix_f32(block->maps.output_map + offset, bv.rows, ao.columns);
    tt_matrix d_map = tt_matrix_f32(block->maps.output_map_gradient + offset, bv.rows, ao.columns);
    add_product(plan->map_products, &plan->map_product_count, false, false, 1, 0, bv, ao, map);
    add_product(plan->map_backward, &plan->map_backward_count, false, true, 1, 1, d_map, ao, d_bv);
    add_product(plan->map_backward, &plan->map_backward_count, true, false, 1, 1, bv, d_map, d_ao);
}

static void list_biases(tt_encoder *encoder, const tt_encoder_block *block)
{
    tt_encoder_plan *plan = encoder->plan;
    const tt_linear *maps[] = {&block->query, &block->key, &block->value};
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
        if (maps[i]->form == TT_REMOVED) {
            continue; /* its bias is used where it lies */
        }
        const tt_train *train = tt_linear_train(maps[i]);
        tt_matrix row = tt_matrix_rows(train->b, train->b.rows, 1);
        tt_matrix d_row = tt_matrix_rows(train->b_gradient, train->b.rows, 1);
        tt_matrix bias = row, d_bias = row;
        bias.data = tt_parameters_value(encoder->parameters, maps[i]->bias);
        d_bias.data = tt_linear_bias_gradient(maps[i]);
        plan->bias_in[plan->bias_in_count++] = (tt_copy){.source = bias, .target = row};
        /* The key's bias has no gradient: softmax cancels it; nor has the query's without key. */
        if (maps[i] == &block->value ||
            (maps[i] == &block->query && block->key.form != TT_REMOVED)) {
            plan->bias_out[plan->bias_out_count++] =
                (tt_copy){.source = d_row, .target = d_bias, .accumulate = true};
        }
    }
}

static void reserve_maps(tt_encoder *encoder, size_t *offsets)
{
    tt_encoder_plan *plan = encoder->plan;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            plan->map_gradients_begin = tt_arena_mark(&plan->maps);
        }
        for (int layer = 0; layer < encoder->configuration.layers; layer++) {
            const tt_encoder_block *block = &encoder->blocks[layer];
            if (block->attention_form == TT_THIN) {
                offsets[4 * layer + 2 * pass] =
                    tt_arena_reserve(&plan->maps, tt_floats(score_map_size(encoder, block)));
                offsets[4 * layer + 2 * pass + 1] =
                    tt_arena_reserve(&plan->maps, tt_floats(output_map_size(encoder, block)));
            }
        }
    }
    plan->map_gradients_end = tt_arena_mark(&plan->maps);
}

static void list_maps(tt_encoder *encoder, const size_t *offsets)
{
    tt_arena *arena = &encoder->plan->maps;
    for (int layer = 0; layer < encoder->configuration.layers; layer++) {
        tt_encoder_block *block = &encoder->blocks[layer];
        if (block->attention_form != TT_THIN) {
            continue;
        }
        const size_t *offset = offsets + (size_t)4 * (size_t)layer;
        block->maps = (tt_thin_maps){tt_arena_at(arena, offset[0]), tt_arena_at(arena, offset[1]),
                                     tt_arena_at(arena, offset[2]), tt_arena_at(arena, offset[3])};
        list_biases(encoder, block);
        for (int64_t head = 0; head < encoder->configuration.heads; head++) {
            list_score_map(encoder, block, head);
            list_output_map(encoder, block, head);
        }
    }
}

static bool allocate_map_lists(tt_encoder_plan *plan, size_t layers, size_t heads)
{
    plan->map_products = calloc(2 * layers * heads, sizeof *plan->map_products);
    plan->map_backward = calloc(4 * layers * heads, sizeof *plan->map_backward);
    plan->bias_in = calloc(3 * layers, sizeof *plan->bias_in);
    plan->bias_out = calloc(3 * layers, sizeof *plan->bias_out);
    return plan->map_products && plan->map_backward && plan->bias_in && plan->bias_out;
}

static tt_status plan_maps(tt_encoder *encoder, tt_error *error)
{
    tt_encoder_plan *plan = encoder->plan;
    size_t layers = (size_t)encoder->configuration.layers;
    tt_arena_init(&plan->maps, encoder->device);
    size_t *offsets = calloc(4 * layers, sizeof *offsets);
    bool complete =
        allocate_map_lists(plan, layers, (size_t)encoder->configuration.heads) && offsets;
    if (!complete) {
        free(offsets);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the plan of thin attention");
    }
    reserve_maps(encoder, offsets);
    tt_status status = tt_arena_allocate(&plan->maps, "the maps of thin attention", error);
    if (status == TT_OK) {
        list_maps(encoder, offsets);
    }
    free(offsets);
    return status;
}

/* --- plan ------------------------------------------------------------------------------------- */

static void free_plan(tt_encoder *encoder)
{
    tt_encoder_plan *plan = encoder->plan;
    if (plan) {
        free(plan->map_products);
        free(plan->map_backward);
        free(plan->bias_in);
        free(plan->bias_out);
        if (plan->maps.device) {
            tt_arena_free(&plan->maps);
        }
        if (plan->arena.device) {
            tt_arena_free(&plan->arena);
        }
        free(plan);
    }
    encoder->plan = NULL;
}

tt_status tt_encoder_plan_activations(tt_encoder *encoder, int64_t batch, int64_t sequence,
                                      bool with_gradients, size_t scratch_bytes, tt_error *error)
{
    if (sequence > encoder->configuration.max_positions) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "sequence length %lld: expected at most model.max_positions %lld",
                            (long long)sequence, (long long)encoder->configuration.max_positions);
    }
    free_plan(encoder);
    encoder->plan = calloc(1, sizeof *encoder->plan);
    if (!encoder->plan) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the encoder's plan");
    }
    encoder->plan->batch = batch;
    encoder->plan->sequence = sequence;
    encoder->plan->with_gradients = with_gradients;
    tt_arena_init(&encoder->plan->arena, encoder->device);
    choose_forms(encoder, sequence);
    TT_TRY(plan_maps(encoder, error));
    reserve_shared(encoder, batch * sequence, scratch_bytes);
    reserve_blocks(encoder, batch * sequence);
    return tt_arena_allocate(&encoder->plan->arena, "activations", error);
}

void tt_encoder_free(tt_encoder *encoder)
{
    free_plan(encoder);
    tt_word_table_free(&encoder->words);
    free(encoder->blocks);
    encoder->blocks = NULL;
}

void *tt_encoder_scratch(const tt_encoder *encoder)
{
    return tt_arena_at(&encoder->plan->arena, encoder->plan->shared.workspace);
}

size_t tt_encoder_activation_bytes(const tt_encoder *encoder)
{
    return encoder->plan->arena.capacity + encoder->plan->maps.capacity;
}

static const char *form_name(tt_block_form form)
{
    return form == TT_SKIPPED ? "skipped" : form == TT_THIN ? "thin" : "wide";
}

void tt_encoder_explain(const tt_encoder *encoder, int layer, char *text, size_t size)
{
    const tt_encoder_block *block = &encoder->blocks[layer];
    int64_t sequence = encoder->plan->sequence;
    snprintf(text, size,
             "block %d: attention %s (multiplications a token: wide %.4g, thin %.4g), feed-forward "
             "%s (wide %.4g, thin %.4g)",
             layer, form_name(block->attention_form),
             tt_encoder_block_cost(encoder, layer, 0, TT_WIDE, sequence),
             tt_encoder_block_cost(encoder, layer, 0, TT_THIN, sequence),
             form_name(block->feed_forward_form),
             tt_encoder_block_cost(encoder, layer, 1, TT_WIDE, sequence),
             tt_encoder_block_cost(encoder, layer, 1, TT_THIN, sequence));
}

/* --- running --- */

void tt_encoder_materialise(tt_encoder *encoder)
{
    tt_encoder_plan *plan = encoder->plan;
    tt_device *device = encoder->device;
    tt_word_table_materialise(&encoder->words);
    device->ops->copy_group(device, plan->bias_in, plan->bias_in_count);
    device->ops->multiply_group(device, plan->map_products, plan->map_product_count);
    device->zero(device, tt_arena_at(&plan->maps, plan->map_gradients_begin),
                 plan->map_gradients_end - plan->map_gradients_begin);
}

void tt_encoder_contract(tt_encoder *encoder)
{
    tt_encoder_plan *plan = encoder->plan;
    tt_device *device = encoder->device;
    device->ops->multiply_group(device, plan->map_backward, plan->map_backward_count);
    device->ops->copy_group(device, plan->bias_out, plan->bias_out_count);
    tt_word_table_contract(&encoder->words);
}

bool tt_encoder_block_range(const tt_encoder *encoder, int layer, int64_t *offset, int64_t *count)
{
    const tt_parameters *parameters = encoder->parameters;
    const tt_encoder_block *block = &encoder->blocks[layer];
    bool last = layer + 1 == encoder->configuration.layers;
    *offset = *count = 0;
    int64_t end = parameters->total;
    for (int i = parameters->count - 1; i >= block->first_parameter; i--) {
        const tt_parameter *item = &parameters->items[i];
        if (item->group == TT_GROUP_DENSE) {
            end = last || i < block->parameters_end ? end : item->offset;
            *offset = item->offset;
        }
    }
    *count = end - *offset;
    return block->attention_form != TT_THIN; /* where contract adds to gradients of biases */
}

static tt_embedding embedding_of(const tt_encoder *encoder, const tt_encoder_inputs *inputs)
{
    const tt_parameters *parameters = encoder->parameters;
    return (tt_embedding){.ids = inputs->ids,
                          .segments = inputs->segments,
                          .batch = inputs->batch,
                          .sequence = inputs->sequence,
                          .vocabulary = encoder->configuration.vocabulary_size,
                          .hidden = encoder->configuration.hidden_size,
                          .position = tt_parameters_value(parameters, encoder->position),
                          .segment = tt_parameters_value(parameters, encoder->segment),
                          .position_gradient =
                              tt_parameters_gradient(parameters, encoder->position),
                          .segment_gradient = tt_parameters_gradient(parameters, encoder->segment)};
}

static tt_residual_norm embedding_norm(const tt_encoder *encoder, const tt_encoder_inputs *inputs)
{
    const tt_shared_room *shared = &encoder->plan->shared;
    tt_norm_state state = {.normalized = tt_plan_matrix(encoder, shared->embedding_normalized,
                                                        inputs->batch * inputs->sequence,
                                                        encoder->configuration.hidden_size),
                           .inverse_deviation =
                               tt_arena_at(&encoder->plan->arena, shared->embedding_deviation)};
    return tt_norm_operation(&encoder->norm, encoder->parameters,
                             encoder->configuration.layer_norm_epsilon, state);
}

static tt_matrix stream(const tt_encoder *encoder, size_t offset, const tt_encoder_inputs *inputs)
{
    return tt_plan_matrix(encoder, offset, inputs->batch * inputs->sequence,
                          encoder->configuration.hidden_size);
}

static tt_dropout embedding_dropout(const tt_encoder *encoder, const tt_encoder_inputs *inputs)
{
    return tt_encoder_dropout(encoder, encoder->configuration.dropout, 0, inputs, 1);
}

void tt_encoder_embedding_output(tt_encoder *encoder, const tt_encoder_inputs *inputs)
{
    tt_matrix hidden = stream(encoder, encoder->plan->shared.hidden, inputs);
    tt_residual_norm norm = embedding_norm(encoder, inputs);
    tt_dropout dropout = embedding_dropout(encoder, inputs);
    encoder->device->ops->residual_norm_output(encoder->device, &norm, hidden);
    encoder->device->ops->dropout(encoder->device, hidden, &dropout);
}

tt_matrix tt_encoder_forward(tt_encoder *encoder, const tt_encoder_inputs *inputs)
{
    const tt_ops *ops = encoder->device->ops;
    tt_matrix hidden = stream(encoder, encoder->plan->shared.hidden, inputs);
    tt_embedding embedding = embedding_of(encoder, inputs);
    tt_residual_norm norm = embedding_norm(encoder, inputs);
    tt_dropout dropout = embedding_dropout(encoder, inputs);
    void *workspace = tt_encoder_scratch(encoder);
    tt_word_table_look_up(&encoder->words, &embedding, workspace);
    ops->embedding_forward(encoder->device, &embedding, hidden);
    ops->residual_norm_forward(encoder->device, &norm, hidden, (tt_matrix){0}, hidden);
    ops->dropout(encoder->device, hidden, &dropout);
    for (int layer = 0; layer < encoder->configuration.layers; layer++) {
        tt_encoder_block_forward(encoder, layer, inputs);
    }
    return hidden;
}

tt_matrix tt_encoder_output_gradient(tt_encoder *encoder, const tt_encoder_inputs *inputs)
{
    return stream(encoder, encoder->plan->shared.d_hidden, inputs);
}

void tt_encoder_backward(tt_encoder *encoder, const tt_encoder_inputs *inputs)
{
    const tt_ops *ops = encoder->device->ops;
    tt_matrix d_hidden = stream(encoder, encoder->plan->shared.d_hidden, inputs);
    for (int layer = (int)encoder->configuration.layers - 1; layer >= 0; layer--) {
        tt_encoder_block_backward(encoder, layer, inputs);
        if (encoder->block_done) {
            encoder->block_done(encoder->block_done_user, layer);
        }
    }
    tt_embedding embedding = embedding_of(encoder, inputs);
    tt_residual_norm norm = embedding_norm(encoder, inputs);
    tt_dropout dropout = embedding_dropout(encoder, inputs);
    ops->dropout(encoder->device, d_hidden, &dropout);
    ops->residual_norm_backward(encoder->device, &norm, d_hidden, d_hidden, d_hidden);
    void *workspace = tt_encoder_scratch(encoder);
    tt_word_table_begin_backward(&encoder->words, &embedding);
    ops->embedding_backward(encoder->device, &embedding, d_hidden, workspace);
    tt_word_table_end_backward(&encoder->words, d_hidden.rows, workspace);
}

#include "launch/model_recipe.h"

#include "models/model.h"

#include <stdio.h>

/* Modes a side that are tried when the recipe leaves the order open: three, as in the paper, or
 * what the width's factors allow. */
enum { AUTOMATIC_MODES = 3 };

static tt_status choose_modes(const tt_recipe_map *map, int64_t inputs, int64_t outputs,
                              const char *name, tt_train_shape *shape, tt_error *error)
{
    if (map->order > 0) {
        int input_order = (int)(map->order / 2);
        if (tt_train_shape_choose(inputs, outputs, input_order, (int)map->order - input_order, 1,
                                  shape, error) != TT_OK) {
            return tt_error_prefix(error, "%s.order", name);
        }
        return TT_OK;
    }
    for (int input_order = AUTOMATIC_MODES; input_order >= 1; input_order--) {
        for (int output_order = AUTOMATIC_MODES; output_order >= 1; output_order--) {
            if (tt_train_shape_choose(inputs, outputs, input_order, output_order, 1, shape,
                                      error) == TT_OK) {
                return TT_OK;
            }
        }
    }
    return error->status;
}

static tt_status take_modes(const tt_recipe_map *map, int64_t inputs, int64_t outputs,
                            const char *name, tt_train_shape *shape, tt_error *error)
{
    if (map->input_mode_count == 0 && map->output_mode_count == 0) {
        return choose_modes(map, inputs, outputs, name, shape, error);
    }
    if (map->input_mode_count == 0 || map->output_mode_count == 0) {
        return tt_error_set(
            error, TT_INVALID_INPUT,
            "%s: expected both input_modes and output_modes or neither, found only %s", name,
            map->input_mode_count ? "input_modes" : "output_modes");
    }
    *shape = (tt_train_shape){.order = (int)(map->input_mode_count + map->output_mode_count),
                              .input_order = (int)map->input_mode_count};
    for (int k = 0; k < shape->order; k++) {
        shape->modes[k] = k < shape->input_order ? map->input_modes[k]
                                                 : map->output_modes[k - shape->input_order];
    }
    return TT_OK;
}

static void set_uniform_ranks(tt_train_shape *shape, int64_t rank)
{
    for (int k = 0; k <= shape->order; k++) {
        int64_t limit = tt_train_rank_limit(shape, k);
        shape->ranks[k] = rank < limit ? rank : limit;
    }
}

static tt_status take_ranks(const tt_recipe_map *map, const char *name, tt_train_shape *shape,
                            tt_error *error)
{
    if (map->rank_count > 0) {
        if ((int)map->rank_count != shape->order - 1) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s.ranks: expected %d inner ranks for %d modes, found %d", name,
                                shape->order - 1, shape->order, (int)map->rank_count);
        }
        shape->ranks[0] = shape->ranks[shape->order] = 1;
        for (int k = 1; k < shape->order; k++) {
            shape->ranks[k] = map->ranks[k - 1];
        }
        return TT_OK;
    }
    int64_t rank = map->rank;
    if (map->compression > 0) {
        int64_t target = tt_train_rank_for_compression(shape, map->compression);
        rank = rank > 0 && rank < target ? rank : target;
    }
    if (rank < 1) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: a tensor train needs one of ranks, rank and compression", name);
    }
    set_uniform_ranks(shape, rank);
    return TT_OK;
}

static tt_status take_map(const tt_recipe *recipe, tt_map_kind kind,
                          tt_configuration *configuration, tt_error *error)
{
    /* Both enumerations list the same kinds in the same order. */
    const tt_recipe_map *map = &recipe->tensor_train.maps[kind];
    tt_linear_form *form = &configuration->maps[kind];
    form->form = map->form == TT_RECIPE_TENSOR_TRAIN ? TT_TENSOR_TRAIN : TT_DENSE;
    if (form->form == TT_DENSE) {
        return TT_OK;
    }
    char name[64];
    snprintf(name, sizeof name, "tensor_train.%s", tt_recipe_map_name((tt_recipe_map_kind)kind));
    int64_t inputs, outputs;
    tt_configuration_map_size(configuration, kind, &inputs, &outputs);
    TT_TRY(take_modes(map, inputs, outputs, name, &form->shape, error));
    return take_ranks(map, name, &form->shape, error);
}

/* The same for the word embeddings: four cores, as in the paper, or what the width allows. */
enum { AUTOMATIC_CORES = 4 };

static tt_status choose_embedding_modes(const tt_recipe_embedding *embedding,
                                        const tt_configuration *configuration,
                                        tt_train_matrix_shape *shape, tt_error *error)
{
    int first = embedding->order > 0 ? (int)embedding->order : AUTOMATIC_CORES;
    int last = embedding->order > 0 ? first : 2;
    tt_status status = TT_OK;
    for (int order = first; order >= last; order--) {
        status =
            tt_train_matrix_shape_choose(configuration->vocabulary_size, configuration->hidden_size,
                                         order, embedding->rank, shape, error);
        if (status == TT_OK) {
            return TT_OK;
        }
    }
    return tt_error_prefix(error, "tensor_train.embedding");
}

static tt_status take_embedding(const tt_recipe_embedding *embedding,
                                tt_configuration *configuration, tt_error *error)
{
    tt_train_matrix_shape *shape = &configuration->embedding.shape;
    configuration->embedding.untied = !embedding->tied;
    configuration->embedding.form =
        embedding->form == TT_RECIPE_EMBEDDING_DENSE ? TT_DENSE : TT_TENSOR_TRAIN;
    if (embedding->form == TT_RECIPE_EMBEDDING_DENSE) {
        return TT_OK;
    }
    if (embedding->vocabulary_mode_count == 0) {
        TT_TRY(choose_embedding_modes(embedding, configuration, shape, error));
    } else {
        *shape = (tt_train_matrix_shape){.order = (int)embedding->vocabulary_mode_count};
        for (int k = 0; k < shape->order; k++) {
            shape->rows[k] = embedding->vocabulary_modes[k];
            shape->columns[k] = embedding->hidden_modes[k];
        }
    }
    if (embedding->rank_count > 0 && (int)embedding->rank_count != shape->order - 1) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "tensor_train.embedding.ranks: expected %d inner ranks for %d cores, "
                            "found %d",
                            shape->order - 1, shape->order, (int)embedding->rank_count);
    }
    tt_train_shape train = tt_train_matrix_train(shape);
    for (int k = 0; k <= shape->order; k++) {
        bool inner = k > 0 && k < shape->order;
        int64_t limit = tt_train_rank_limit(&train, k), rank = embedding->rank;
        shape->ranks[k] = !inner                      ? 1
                          : embedding->rank_count > 0 ? embedding->ranks[k - 1]
                          : rank < limit              ? rank
                                                      : limit;
    }
    return TT_OK;
}

tt_status tt_model_recipe_configuration(const tt_recipe *recipe, int64_t vocabulary_size,
                                        tt_configuration *configuration, tt_error *error)
{
    const tt_recipe_model *model = &recipe->model;
    *configuration = (tt_configuration){
        .vocabulary_size = model->vocabulary_size > 0 ? model->vocabulary_size : vocabulary_size,
        .hidden_size = model->hidden_size,
        .layers = model->layers,
        .heads = model->heads,
        .intermediate_size = model->intermediate_size,
        .max_positions = model->max_positions,
        .segment_types = model->segment_types,
        .gelu = model->activation,
        .dropout = (float)model->dropout,
        .attention_dropout = (float)model->attention_dropout,
        .layer_norm_epsilon = (float)model->layer_norm_epsilon,
        .initializer_range = (float)model->initializer_range,
        .position_initializer = model->position_initializer,
        .next_sentence = model->next_sentence,
        .threshold = (float)recipe->tensor_train.threshold,
        .train_deviation = (float)recipe->tensor_train.initial_deviation};
    for (int kind = 0; kind < TT_MAP_KINDS; kind++) {
        TT_TRY(take_map(recipe, kind, configuration, error));
    }
    TT_TRY(take_embedding(&recipe->tensor_train.embedding, configuration, error));
    return tt_configuration_check(configuration, error);
}

int64_t tt_model_recipe_parameters(const tt_recipe *recipe, const tt_configuration *configuration)
{
    return recipe->task.kind == TT_TASK_NONE
               ? tt_configuration_pretraining_parameters(configuration)
               : tt_configuration_classification_parameters(configuration,
                                                            tt_task_classes(recipe->task.kind));
}

tt_optimizer_options tt_model_recipe_optimizer(const tt_recipe *recipe, int phase)
{
    const tt_recipe_phase *section = &recipe->phases[phase];
    const tt_recipe_optimizer *optimizer = &recipe->optimizer;
    const tt_schedule_kind kinds[] = {[TT_RECIPE_DECAY_LINEAR] = TT_SCHEDULE_LINEAR,
                                      [TT_RECIPE_DECAY_POLYNOMIAL] = TT_SCHEDULE_POLYNOMIAL,
                                      [TT_RECIPE_DECAY_CONSTANT] = TT_SCHEDULE_CONSTANT};
    return (tt_optimizer_options){
        .rule = {.beta1 = (float)optimizer->beta1,
                 .beta2 = (float)optimizer->beta2,
                 .epsilon = (float)optimizer->epsilon,
                 .weight_decay = (float)optimizer->weight_decay,
                 .clip_norm = (float)optimizer->clip_norm,
                 .threshold = (float)recipe->tensor_train.threshold,
                 .trust_ratio = optimizer->kind == TT_RECIPE_LAMB},
        .schedule = {.kind = kinds[section->decay],
                     .warmup_fraction = section->warmup,
                     .final = 0.0,
                     .power = section->power},
        .learning_rate = {[TT_GROUP_CORES] = section->core_learning_rate,
                          [TT_GROUP_DIAGONALS] = section->diagonal_learning_rate,
                          [TT_GROUP_DENSE] = section->learning_rate},
        .total_steps = section->steps,
        .loss_count = TT_LOSS_COUNT};
}

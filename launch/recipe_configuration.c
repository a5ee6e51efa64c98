#include "launch/recipe_configuration.h"

#include <string.h>

enum { TT_MODES_A_SIDE = 3 };

_Static_assert((int)TT_RECIPE_MAP_COUNT == (int)TT_MAP_KINDS, "the two lists of maps are one");
_Static_assert((int)TT_RECIPE_ATTENTION == (int)TT_MAP_ATTENTION, "in the same order");
_Static_assert((int)TT_RECIPE_TRANSFORM == (int)TT_MAP_TRANSFORM, "from end to end");

/* Prime factors of a width: the most modes that it can be cut into. */
static int factor_count(int64_t size)
{
    int count = 0;
    for (int64_t p = 2; p * p <= size; p++) {
        for (; size % p == 0; size /= p) {
            count++;
        }
    }
    return count + (size > 1);
}

/* How many modes each side gets. */
static void choose_orders(const tt_recipe_map *map, int64_t inputs, int64_t outputs, int *input,
                          int *output)
{
    int factors_in = factor_count(inputs), factors_out = factor_count(outputs);
    if (map->order > 0) {
        *input = (int)(map->order + 1) / 2;
        *output = (int)map->order - *input;
    } else {
        *input = factors_in < TT_MODES_A_SIDE ? factors_in : TT_MODES_A_SIDE;
        *output = factors_out < TT_MODES_A_SIDE ? factors_out : TT_MODES_A_SIDE;
    }
    *input = map->input_mode_count > 0 ? (int)map->input_mode_count : *input;
    *output = map->output_mode_count > 0 ? (int)map->output_mode_count : *output;
}

static tt_status choose_modes(const tt_recipe_map *map, int64_t inputs, int64_t outputs,
                              tt_train_shape *shape, tt_error *error)
{
    int input, output;
    choose_orders(map, inputs, outputs, &input, &output);
    bool all_given = map->input_mode_count > 0 && map->output_mode_count > 0;
    if (all_given) {
        *shape = (tt_train_shape){.order = input + output, .input_order = input};
    } else {
        TT_TRY(tt_train_shape_choose(inputs, outputs, map->input_mode_count > 0 ? 1 : input,
                                     map->output_mode_count > 0 ? 1 : output, 1, shape, error));
        /* A side that is given takes the place of the one mode that stood for it. */
        int chosen_in = shape->input_order, chosen_out = shape->order - shape->input_order;
        int64_t chosen[TT_MAX_ORDER];
        memcpy(chosen, shape->modes, sizeof chosen);
        memcpy(shape->modes, chosen, (size_t)chosen_in * sizeof chosen[0]);
        memcpy(shape->modes + input, chosen + chosen_in, (size_t)chosen_out * sizeof chosen[0]);
        shape->order = input + output;
        shape->input_order = input;
    }
    if (map->input_mode_count > 0) {
        memcpy(shape->modes, map->input_modes, (size_t)input * sizeof shape->modes[0]);
    }
    if (map->output_mode_count > 0) {
        memcpy(shape->modes + input, map->output_modes, (size_t)output * sizeof shape->modes[0]);
    }
    return TT_OK;
}

static tt_status choose_ranks(const tt_recipe_map *map, tt_train_shape *shape, tt_error *error)
{
    shape->ranks[0] = shape->ranks[shape->order] = 1;
    if (map->rank_count > 0) {
        if (map->rank_count != (uint64_t)shape->order - 1) {
            return tt_error_set(
                error, TT_INVALID_INPUT, "ranks: expected %d inner ranks for %d modes, found %llu",
                shape->order - 1, shape->order, (unsigned long long)map->rank_count);
        }
        memcpy(shape->ranks + 1, map->ranks, map->rank_count * sizeof shape->ranks[0]);
        return TT_OK;
    }
    int64_t rank = map->rank > 0 ? map->rank : INT64_MAX;
    if (map->compression > 0) {
        int64_t reaching = tt_train_rank_for_compression(shape, map->compression);
        rank = reaching < rank ? reaching : rank;
    }
    for (int link = 1; link < shape->order; link++) {
        int64_t limit = tt_train_rank_limit(shape, link);
        shape->ranks[link] = rank < limit ? rank : limit;
    }
    return TT_OK;
}

static tt_status choose_form(const tt_recipe *recipe, tt_map_kind kind,
                             tt_configuration *configuration, tt_error *error)
{
    const tt_recipe_map *map = &recipe->tensor_train.maps[kind];
    tt_linear_form *form = &configuration->maps[kind];
    form->form = map->form == TT_RECIPE_TENSOR_TRAIN ? TT_TENSOR_TRAIN : TT_DENSE;
    if (form->form == TT_DENSE) {
        return TT_OK;
    }
    int64_t inputs, outputs;
    tt_configuration_map_size(configuration, kind, &inputs, &outputs);
    tt_status status = choose_modes(map, inputs, outputs, &form->shape, error);
    if (status == TT_OK) {
        status = choose_ranks(map, &form->shape, error);
    }
    if (status != TT_OK) {
        const char *name = tt_recipe_map_name((tt_recipe_map_kind)kind);
        return tt_error_prefix(error, "tensor_train.%s", name);
    }
    return TT_OK;
}

static tt_status choose_vocabulary(const tt_recipe *recipe, int64_t vocabulary_size,
                                   int64_t *chosen, tt_error *error)
{
    *chosen = recipe->model.vocabulary_size;
    if (*chosen == 0) {
        *chosen = vocabulary_size;
    }
    if (*chosen < 1) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "model.vocabulary_size: expected a size, found none here nor in a "
                            "tokenizer or shard");
    }
    if (*chosen < vocabulary_size) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "model.vocabulary_size: expected at least the %lld ids of the data, "
                            "found %lld",
                            (long long)vocabulary_size, (long long)*chosen);
    }
    return TT_OK;
}

tt_status tt_recipe_configuration(const tt_recipe *recipe, int64_t vocabulary_size,
                                  tt_configuration *configuration, tt_error *error)
{
    const tt_recipe_model *model = &recipe->model;
    *configuration = (tt_configuration){
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
        .next_sentence = model->next_sentence,
        .threshold = (float)recipe->tensor_train.threshold,
        .train_deviation = (float)recipe->tensor_train.initial_deviation,
    };
    TT_TRY(choose_vocabulary(recipe, vocabulary_size, &configuration->vocabulary_size, error));
    for (int kind = 0; kind < TT_MAP_KINDS; kind++) {
        TT_TRY(choose_form(recipe, (tt_map_kind)kind, configuration, error));
    }
    return tt_configuration_check(configuration, error);
}

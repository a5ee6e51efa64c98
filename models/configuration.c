#include "models/configuration.h"

#include <math.h>
#include <stdio.h>

void tt_configuration_map_size(const tt_configuration *configuration, tt_map_kind kind,
                               int64_t *inputs, int64_t *outputs)
{
    *inputs = kind == TT_MAP_OUTPUT ? configuration->intermediate_size : configuration->hidden_size;
    *outputs =
        kind == TT_MAP_INTERMEDIATE ? configuration->intermediate_size : configuration->hidden_size;
}

static const char *const map_names[TT_MAP_KINDS] = {"attention", "intermediate", "output", "pooler",
                                                    "transform"};

static tt_status check_size(const char *name, int64_t value, int64_t limit, tt_error *error)
{
    if (value < 1 || value > limit) {
        return tt_error_set(error, TT_INVALID_INPUT, "model.%s: expected 1 to %lld, found %lld",
                            name, (long long)limit, (long long)value);
    }
    return TT_OK;
}

static tt_status check_share(const char *name, float value, tt_error *error)
{
    if (!(value >= 0.0f && value < 1.0f)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "model.%s: expected at least 0 and below 1, found %g", name, value);
    }
    return TT_OK;
}

tt_status tt_configuration_check(const tt_configuration *configuration, tt_error *error)
{
    TT_TRY(check_size("vocabulary_size", configuration->vocabulary_size, INT32_MAX, error));
    TT_TRY(check_size("hidden_size", configuration->hidden_size, 1 << 20, error));
    TT_TRY(check_size("layers", configuration->layers, 1024, error));
    TT_TRY(check_size("heads", configuration->heads, 1024, error));
    TT_TRY(check_size("intermediate_size", configuration->intermediate_size, 1 << 22, error));
    TT_TRY(check_size("max_positions", configuration->max_positions, 1 << 20, error));
    TT_TRY(check_size("segment_types", configuration->segment_types, 64, error));
    TT_TRY(check_share("dropout", configuration->dropout, error));
    TT_TRY(check_share("attention_dropout", configuration->attention_dropout, error));
    if (configuration->hidden_size % configuration->heads != 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "model.heads: expected a divisor of hidden_size %lld, found %lld",
                            (long long)configuration->hidden_size, (long long)configuration->heads);
    }
    if (!(configuration->layer_norm_epsilon > 0.0f)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "model.layer_norm_epsilon: expected above 0, found %g",
                            configuration->layer_norm_epsilon);
    }
    if (!(configuration->threshold > 0.0f)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "tensor_train.threshold: expected above 0, found %g",
                            configuration->threshold);
    }
    for (int kind = 0; kind < TT_MAP_KINDS; kind++) {
        if (configuration->maps[kind].form == TT_TENSOR_TRAIN) {
            int64_t inputs, outputs;
            char name[64];
            snprintf(name, sizeof name, "tensor_train.%s", map_names[kind]);
            tt_configuration_map_size(configuration, kind, &inputs, &outputs);
            TT_TRY(tt_train_shape_check(&configuration->maps[kind].shape, inputs, outputs, name,
                                        error));
        }
    }
    if (configuration->embedding.form == TT_TENSOR_TRAIN) {
        TT_TRY(tt_train_matrix_shape_check(
            &configuration->embedding.shape, configuration->vocabulary_size,
            configuration->hidden_size, "tensor_train.embedding", error));
    }
    return TT_OK;
}

tt_configuration tt_configuration_dense_twin(const tt_configuration *configuration)
{
    tt_configuration twin = *configuration;
    for (int kind = 0; kind < TT_MAP_KINDS; kind++) {
        twin.maps[kind].form = TT_DENSE;
    }
    twin.embedding.form = TT_DENSE;
    return twin;
}

float tt_configuration_deviation(const tt_configuration *configuration, const tt_linear *map)
{
    if (map->form == TT_DENSE) {
        return configuration->initializer_range;
    }
    return configuration->train_deviation > 0.0f
               ? configuration->train_deviation
               : sqrtf(1.0f / (float)(map->inputs + map->outputs));
}

/* Of `count` maps of a kind, with their biases. */
static int64_t map_parameters(const tt_configuration *configuration, tt_map_kind kind,
                              int64_t count)
{
    int64_t inputs, outputs;
    tt_configuration_map_size(configuration, kind, &inputs, &outputs);
    const tt_linear_form *form = &configuration->maps[kind];
    int64_t size = form->form == TT_TENSOR_TRAIN ? tt_train_size(&form->shape) : inputs * outputs;
    return count * (size + outputs);
}

static int64_t word_parameters(const tt_configuration *configuration)
{
    return configuration->embedding.form == TT_TENSOR_TRAIN
               ? tt_train_matrix_size(&configuration->embedding.shape)
               : configuration->vocabulary_size * configuration->hidden_size;
}

static int64_t encoder_parameters(const tt_configuration *configuration)
{
    int64_t hidden = configuration->hidden_size, layers = configuration->layers;
    int64_t rows = configuration->max_positions + configuration->segment_types;
    int64_t norms = 2 * layers + 1;
    return word_parameters(configuration) + rows * hidden + norms * 2 * hidden +
           map_parameters(configuration, TT_MAP_ATTENTION, 4 * layers) +
           map_parameters(configuration, TT_MAP_INTERMEDIATE, layers) +
           map_parameters(configuration, TT_MAP_OUTPUT, layers);
}

int64_t tt_configuration_pretraining_parameters(const tt_configuration *configuration)
{
    int64_t hidden = configuration->hidden_size;
    int64_t total = encoder_parameters(configuration) + 2 * hidden + configuration->vocabulary_size;
    total += map_parameters(configuration, TT_MAP_TRANSFORM, 1);
    if (configuration->embedding.untied) {
        total += configuration->vocabulary_size * hidden;
    }
    if (configuration->next_sentence) {
        total += map_parameters(configuration, TT_MAP_POOLER, 1) + 2 * hidden + 2;
    }
    return total;
}

int64_t tt_configuration_classification_parameters(const tt_configuration *configuration,
                                                   int64_t classes)
{
    return encoder_parameters(configuration) + map_parameters(configuration, TT_MAP_POOLER, 1) +
           classes * (configuration->hidden_size + 1);
}

/* Multiplications of one row through a map of a kind. */
static double map_work(const tt_configuration *configuration, tt_map_kind kind)
{
    int64_t inputs, outputs;
    tt_configuration_map_size(configuration, kind, &inputs, &outputs);
    const tt_linear_form *form = &configuration->maps[kind];
    if (form->form == TT_TENSOR_TRAIN) {
        return (double)form->shape.ranks[form->shape.input_order] * (double)(inputs + outputs);
    }
    return (double)inputs * (double)outputs;
}

double tt_configuration_flops(const tt_configuration *configuration, int64_t sequences,
                              int64_t sequence_length, int64_t predictions)
{
    double hidden = (double)configuration->hidden_size;
    double block = 4 * map_work(configuration, TT_MAP_ATTENTION) +
                   map_work(configuration, TT_MAP_INTERMEDIATE) +
                   map_work(configuration, TT_MAP_OUTPUT) + 2 * (double)sequence_length * hidden;
    double token_work = (double)configuration->layers * block;
    double masked_work =
        map_work(configuration, TT_MAP_TRANSFORM) + hidden * (double)configuration->vocabulary_size;
    double sentence_work =
        configuration->next_sentence ? map_work(configuration, TT_MAP_POOLER) + 2 * hidden : 0;
    double forward =
        (double)sequence_length * token_work + (double)predictions * masked_work + sentence_work;
    return 2.0 * 3.0 * (double)sequences * forward;
}

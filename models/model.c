#include "models/model.h"

#include "models/encoder_block.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tt_status create_heads(tt_model *model, tt_error *error)
{
    const tt_configuration *configuration = &model->configuration;
    if (model->kind.classes > 0) {
        TT_TRY(tt_sentence_head_create(&model->sentence, &model->encoder, "classifier",
                                       model->kind.classes, configuration->dropout, error));
        model->has_sentence = true;
        return TT_OK;
    }
    TT_TRY(tt_masked_lm_head_create(&model->masked_lm, &model->encoder, error));
    model->encoder.words.decodes = !configuration->embedding.untied;
    model->has_masked_lm = true;
    if (configuration->next_sentence) {
        TT_TRY(tt_sentence_head_create(&model->sentence, &model->encoder, "cls.seq_relationship", 2,
                                       0.0f, error));
        model->has_sentence = true;
    }
    return TT_OK;
}

tt_status tt_model_create(tt_model *model, tt_device *device, const tt_configuration *configuration,
                          const tt_model_kind *kind, const tt_layer_shapes *shapes, tt_error *error)
{
    *model = (tt_model){.configuration = *configuration, .kind = *kind};
    tt_parameters_init(&model->parameters, device);
    tt_train_set_init(&model->trains, &model->parameters, configuration->threshold);
    model->trains.shapes = shapes && shapes->count > 0 ? shapes : NULL;
    TT_TRY(tt_encoder_create(&model->encoder, configuration, &model->parameters, &model->trains,
                             error));
    TT_TRY(create_heads(model, error));
    TT_TRY(tt_parameters_allocate(&model->parameters, kind->with_moments, error));
    TT_TRY(tt_train_set_plan(&model->trains, error));
    return tt_word_table_plan(&model->encoder.words, error);
}

tt_status tt_model_initialize(tt_model *model, uint64_t seed, tt_error *error)
{
    TT_TRY(tt_encoder_initialize(&model->encoder, seed, error));
    if (model->has_masked_lm) {
        tt_masked_lm_head_initialize(&model->masked_lm, seed);
    }
    if (model->has_sentence) {
        tt_sentence_head_initialize(&model->sentence, seed);
    }
    model->trains.shapes = NULL;
    return TT_OK;
}

tt_status tt_model_create_pretraining(tt_model *model, tt_device *device,
                                      const tt_configuration *configuration, uint64_t seed,
                                      bool with_moments, tt_error *error)
{
    tt_model_kind kind = {.with_moments = with_moments};
    TT_TRY(tt_model_create(model, device, configuration, &kind, NULL, error));
    return tt_model_initialize(model, seed, error);
}

tt_status tt_model_create_classification(tt_model *model, tt_device *device,
                                         const tt_configuration *configuration, int64_t classes,
                                         uint64_t seed, bool with_moments, tt_error *error)
{
    tt_model_kind kind = {.classes = classes, .with_moments = with_moments};
    TT_TRY(tt_model_create(model, device, configuration, &kind, NULL, error));
    return tt_model_initialize(model, seed, error);
}

/* --- maps ------------------------------------------------------------------------------------ */

int tt_model_map_count(const tt_model *model)
{
    return TT_BLOCK_MAPS * (int)model->configuration.layers + (model->has_masked_lm ? 1 : 0) +
           (model->has_sentence ? 2 : 0);
}

const tt_linear *tt_model_map(const tt_model *model, int number)
{
    int in_blocks = TT_BLOCK_MAPS * (int)model->configuration.layers;
    if (number < in_blocks) {
        return tt_block_map(&model->encoder.blocks[number / TT_BLOCK_MAPS], number % TT_BLOCK_MAPS);
    }
    const tt_linear *const heads[] = {&model->masked_lm.transform, &model->sentence.pooler,
                                      &model->sentence.classifier};
    return heads[number - in_blocks + (model->has_masked_lm ? 0 : 1)];
}

static void add_shape(tt_layer_shapes *shapes, const char *name, const tt_train_shape *shape)
{
    tt_layer_shape *item = &shapes->items[shapes->count++];
    snprintf(item->name, sizeof item->name, "%s", name);
    item->shape = *shape;
}

tt_status tt_model_shapes(const tt_model *model, tt_layer_shapes *shapes, tt_error *error)
{
    int maps = tt_model_map_count(model);
    *shapes = (tt_layer_shapes){.items = calloc((size_t)maps + 1, sizeof *shapes->items)};
    if (!shapes->items) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the table of shapes");
    }
    const tt_word_table *words = &model->encoder.words;
    if (words->form != TT_DENSE) {
        tt_train_shape shape = tt_train_matrix_train(&words->matrix.shape);
        add_shape(shapes, "bert.embeddings.word_embeddings", &shape);
    }
    for (int i = 0; i < maps; i++) {
        const tt_linear *map = tt_model_map(model, i);
        if (map->form != TT_DENSE) {
            char name[128];
            tt_linear_name(map, name, sizeof name);
            add_shape(shapes, name, &map->shape);
        }
    }
    return TT_OK;
}

/* Multiplications of one row through a map. */
static double work_of(const tt_linear *map)
{
    return map->form == TT_DENSE ? (double)map->inputs * (double)map->outputs
                                 : (double)map->rank * (double)(map->inputs + map->outputs);
}

double tt_model_flops(const tt_model *model, int64_t sequences, int64_t sequence_length,
                      int64_t predictions)
{
    const tt_configuration *configuration = &model->configuration;
    double flops = tt_configuration_flops(configuration, sequences, sequence_length, predictions);
    int in_blocks = TT_BLOCK_MAPS * (int)configuration->layers;
    for (int i = 0; i < tt_model_map_count(model); i++) {
        static const tt_map_kind kinds[TT_BLOCK_MAPS] = {TT_MAP_ATTENTION,    TT_MAP_ATTENTION,
                                                         TT_MAP_ATTENTION,    TT_MAP_ATTENTION,
                                                         TT_MAP_INTERMEDIATE, TT_MAP_OUTPUT};
        const tt_linear *map = tt_model_map(model, i);
        tt_map_kind kind = i < in_blocks                        ? kinds[i % TT_BLOCK_MAPS]
                           : map == &model->masked_lm.transform ? TT_MAP_TRANSFORM
                                                                : TT_MAP_POOLER;
        const tt_linear_form *form = &configuration->maps[kind];
        if (form->form != TT_TENSOR_TRAIN || map == &model->sentence.classifier) {
            continue;
        }
        double rows = kind == TT_MAP_TRANSFORM ? (double)predictions
                      : kind == TT_MAP_POOLER  ? 1.0
                                               : (double)sequence_length;
        double asked = (double)form->shape.ranks[form->shape.input_order] *
                       (double)(map->inputs + map->outputs);
        bool skips = map->form == TT_REMOVED && i < in_blocks && i % TT_BLOCK_MAPS == 3;
        asked += skips ? 2.0 * (double)sequence_length * (double)map->inputs : 0.0;
        flops -= 6.0 * (double)sequences * rows * (asked - work_of(map));
    }
    return flops;
}

/* --- activations and steps ------------------------------------------------------------------- */

tt_status tt_model_plan(tt_model *model, int64_t batch, int64_t sequence, int64_t max_predictions,
                        bool with_gradients, tt_error *error)
{
    int64_t masked = batch * max_predictions;
    size_t scratch =
        model->has_masked_lm ? tt_masked_lm_head_scratch_bytes(&model->masked_lm, masked) : 0;
    TT_TRY(tt_encoder_plan_activations(&model->encoder, batch, sequence, with_gradients, scratch,
                                       error));
    if (model->has_masked_lm) {
        TT_TRY(tt_masked_lm_head_plan(&model->masked_lm, masked, error));
    }
    if (model->has_sentence) {
        TT_TRY(tt_sentence_head_plan(&model->sentence, batch, sequence, error));
    }
    return TT_OK;
}

void tt_model_free(tt_model *model)
{
    if (model->has_masked_lm) {
        tt_masked_lm_head_free(&model->masked_lm);
    }
    if (model->has_sentence) {
        tt_sentence_head_free(&model->sentence);
    }
    tt_encoder_free(&model->encoder);
    tt_train_set_free(&model->trains);
    tt_parameters_free(&model->parameters);
    *model = (tt_model){0};
}

size_t tt_model_activation_bytes(const tt_model *model)
{
    size_t bytes = tt_encoder_activation_bytes(&model->encoder);
    bytes += model->has_masked_lm ? tt_masked_lm_head_bytes(&model->masked_lm) : 0;
    bytes += model->has_sentence ? tt_sentence_head_bytes(&model->sentence) : 0;
    return bytes + tt_train_set_bytes(&model->trains) + tt_word_table_bytes(&model->encoder.words);
}

void tt_model_begin_step(tt_model *model)
{
    tt_parameters *parameters = &model->parameters;
    tt_device *device = parameters->device;
    device->zero(device, parameters->gradients,
                 ((size_t)parameters->total + TT_STATISTICS) * sizeof(float));
    tt_model_materialise(model);
}

void tt_model_materialise(tt_model *model)
{
    tt_device *device = model->parameters.device;
    device->range_push(device, "materialise");
    tt_parameters_round(&model->parameters);
    tt_train_set_materialise(&model->trains);
    tt_encoder_materialise(&model->encoder);
    device->range_pop(device);
}

static void run_heads(tt_model *model, const tt_model_inputs *inputs, tt_matrix hidden,
                      tt_matrix d_hidden)
{
    float *statistics = tt_parameters_statistics(&model->parameters);
    if (model->has_masked_lm) {
        tt_masked_lm_inputs masked = {.count = inputs->masked_count,
                                      .rows = inputs->masked_rows,
                                      .labels = inputs->masked_labels,
                                      .scale = inputs->masked_scale,
                                      .loss_sum = statistics + TT_MASKED_LOSS,
                                      .correct_sum = statistics + TT_MASKED_CORRECT};
        tt_masked_lm_head_run(&model->masked_lm, &masked, hidden, d_hidden);
    }
    if (model->has_sentence) {
        tt_sentence_inputs sentence = {.labels = inputs->sentence_labels,
                                       .scale = inputs->sentence_scale,
                                       .loss_sum = statistics + TT_SENTENCE_LOSS,
                                       .correct_sum = statistics + TT_SENTENCE_CORRECT};
        tt_sentence_head_run(&model->sentence, &inputs->batch, &sentence, hidden, d_hidden);
    }
}

void tt_model_run(tt_model *model, const tt_model_inputs *inputs, bool backward)
{
    tt_device *device = model->parameters.device;
    device->range_push(device, "encoder, forward");
    tt_matrix hidden = tt_encoder_forward(&model->encoder, &inputs->batch);
    device->range_pop(device);
    tt_matrix d_hidden = {0};
    if (backward) {
        d_hidden = tt_encoder_output_gradient(&model->encoder, &inputs->batch);
        device->zero(device, d_hidden.data,
                     tt_type_bytes(d_hidden.type, d_hidden.rows * d_hidden.columns));
    }
    device->range_push(device, "heads and losses");
    run_heads(model, inputs, hidden, d_hidden);
    device->range_pop(device);
    if (backward) {
        device->range_push(device, "encoder, backward");
        tt_encoder_backward(&model->encoder, &inputs->batch);
        device->range_pop(device);
    }
}

void tt_model_end_step(tt_model *model)
{
    tt_device *device = model->parameters.device;
    device->range_push(device, "contract");
    tt_encoder_contract(&model->encoder);
    tt_train_set_contract(&model->trains);
    device->range_pop(device);
}

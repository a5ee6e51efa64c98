#include "models/model.h"

static tt_status create(tt_model *model, tt_device *device, const tt_configuration *configuration,
                        tt_error *error)
{
    *model = (tt_model){.configuration = *configuration};
    tt_parameters_init(&model->parameters, device);
    tt_train_set_init(&model->trains, &model->parameters, configuration->threshold);
    return tt_encoder_create(&model->encoder, configuration, &model->parameters, &model->trains,
                             error);
}

static tt_status finish(tt_model *model, uint64_t seed, bool with_moments, tt_error *error)
{
    TT_TRY(tt_parameters_allocate(&model->parameters, with_moments, error));
    TT_TRY(tt_train_set_plan(&model->trains, error));
    TT_TRY(tt_encoder_initialize(&model->encoder, seed, error));
    if (model->has_masked_lm) {
        tt_masked_lm_head_initialize(&model->masked_lm, seed);
    }
    if (model->has_sentence) {
        tt_sentence_head_initialize(&model->sentence, seed);
    }
    return TT_OK;
}

tt_status tt_model_create_pretraining(tt_model *model, tt_device *device,
                                      const tt_configuration *configuration, uint64_t seed,
                                      bool with_moments, tt_error *error)
{
    TT_TRY(create(model, device, configuration, error));
    TT_TRY(tt_masked_lm_head_create(&model->masked_lm, &model->encoder, error));
    model->has_masked_lm = true;
    if (configuration->next_sentence) {
        TT_TRY(tt_sentence_head_create(&model->sentence, &model->encoder, "cls.seq_relationship", 2,
                                       0.0f, error));
        model->has_sentence = true;
    }
    return finish(model, seed, with_moments, error);
}

tt_status tt_model_create_classification(tt_model *model, tt_device *device,
                                         const tt_configuration *configuration, int64_t classes,
                                         uint64_t seed, bool with_moments, tt_error *error)
{
    TT_TRY(create(model, device, configuration, error));
    TT_TRY(tt_sentence_head_create(&model->sentence, &model->encoder, "classifier", classes,
                                   configuration->dropout, error));
    model->has_sentence = true;
    return finish(model, seed, with_moments, error);
}

tt_status tt_model_plan(tt_model *model, int64_t batch, int64_t sequence, int64_t max_predictions,
                        bool with_gradients, tt_error *error)
{
    TT_TRY(tt_encoder_plan_activations(&model->encoder, batch, sequence, with_gradients, error));
    if (model->has_masked_lm) {
        TT_TRY(tt_masked_lm_head_plan(&model->masked_lm, batch * max_predictions, error));
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
    return bytes + tt_train_set_bytes(&model->trains);
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

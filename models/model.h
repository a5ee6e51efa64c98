/* A whole model: an encoder with the heads of a task.
 *
 *  - pre-training: the masked-language-model head, and next-sentence prediction when the
 *    configuration has it; names as in Hugging Face's BertForPreTraining;
 *  - classification: one label a sequence; names as in BertForSequenceClassification.
 *
 * A step, whatever the task:
 *
 *     tt_model_begin_step(model);              gradients and statistics 0; factors from cores
 *     for each micro-batch: tt_model_run(model, &inputs, true);
 *     tt_model_end_step(model);                chain rule into cores and diagonals
 *
 * after which parameters.gradients holds the gradient of
 *     sum(masked losses) * masked_scale + sum(sentence losses) * sentence_scale. */
#ifndef TT_MODELS_MODEL_H
#define TT_MODELS_MODEL_H

#include "models/masked_lm_head.h"
#include "models/sentence_head.h"

/* Places in the parameters' statistics; those before TT_LOSS_COUNT must be finite. */
enum {
    TT_MASKED_LOSS,
    TT_SENTENCE_LOSS,
    TT_LOSS_COUNT,
    TT_MASKED_CORRECT = TT_LOSS_COUNT,
    TT_SENTENCE_CORRECT,
};

/* Which heads a model has, and whether it can be trained. */
typedef struct {
    int64_t classes; /* of a classification; 0: pre-training */
    bool with_moments;
} tt_model_kind;

typedef struct {
    tt_configuration configuration;
    tt_model_kind kind;
    tt_parameters parameters;
    tt_train_set trains;
    tt_encoder encoder;
    bool has_masked_lm, has_sentence;
    tt_masked_lm_head masked_lm;
    tt_sentence_head sentence;
} tt_model;

/* Device buffers of a micro-batch. */
typedef struct {
    tt_encoder_inputs batch;
    int64_t masked_count;
    const int32_t *masked_rows, *masked_labels; /* [masked_count]: token row, original id */
    const int32_t *sentence_labels;             /* [batch] */
    const float *masked_scale, *sentence_scale; /* device: 1 / the whole step's counts */
} tt_model_inputs;

/* Registers and allocates all parameters, their values 0. `shapes`: the maps and tables that have
 * less than the configuration says (see tt_linear_add), the caller's, until the model is
 * initialized; NULL: none has. The model must stay where it is. */
tt_status tt_model_create(tt_model *model, tt_device *device, const tt_configuration *configuration,
                          const tt_model_kind *kind, const tt_layer_shapes *shapes,
                          tt_error *error);
/* Draws all values. */
tt_status tt_model_initialize(tt_model *model, uint64_t seed, tt_error *error);
/* Both in one, without a table of shapes. */
tt_status tt_model_create_pretraining(tt_model *model, tt_device *device,
                                      const tt_configuration *configuration, uint64_t seed,
                                      bool with_moments, tt_error *error);
tt_status tt_model_create_classification(tt_model *model, tt_device *device,
                                         const tt_configuration *configuration, int64_t classes,
                                         uint64_t seed, bool with_moments, tt_error *error);
/* Activations for micro-batches of up to `batch` sequences of `sequence` tokens with up to
 * `max_predictions` masked positions each; may be called again. */
tt_status tt_model_plan(tt_model *model, int64_t batch, int64_t sequence, int64_t max_predictions,
                        bool with_gradients, tt_error *error);
void tt_model_free(tt_model *model);

/* All linear maps, encoder first: query, key, value, output, intermediate and output map of each
 * block, then those of the heads. */
int tt_model_map_count(const tt_model *model);
const tt_linear *tt_model_map(const tt_model *model, int number);
/* The shapes of the word table and of all maps, in their order, that are or were tensor trains; to
 * be freed with free(shapes->items). */
tt_status tt_model_shapes(const tt_model *model, tt_layer_shapes *shapes, tt_error *error);

/* As tt_configuration_flops, for the maps as they are. */
double tt_model_flops(const tt_model *model, int64_t sequences, int64_t sequence_length,
                      int64_t predictions);

/* Bytes of activations and of tensor-train factors; parameters and optimizer come on top. */
size_t tt_model_activation_bytes(const tt_model *model);

void tt_model_begin_step(tt_model *model);
/* Factors alone, for evaluation. */
void tt_model_materialise(tt_model *model);
/* Losses and hits are added to the statistics. `backward`: gradients too. */
void tt_model_run(tt_model *model, const tt_model_inputs *inputs, bool backward);
void tt_model_end_step(tt_model *model);

#endif

/* The masked-language-model head, on masked positions only:
 *
 *     t = norm(gelu(x[masked] W^T + b)),  logits = t E^T + c,  E the word embeddings (tied),
 *
 * or a dense table of its own, "cls.predictions.decoder.weight", where the configuration unties
 * them. A tensor-train matrix is multiplied out once a step for this, or used slice by slice.
 *
 * Loss, gradient of the logits and both products of the backward pass are done a chunk of rows at a
 * time, so that the logits of a whole batch never exist together. */
#ifndef TT_MODELS_MASKED_LM_HEAD_H
#define TT_MODELS_MASKED_LM_HEAD_H

#include "models/encoder.h"
#include "models/word_decoder.h"

typedef struct {
    tt_linear transform;
    tt_norm_ids norm;
    tt_parameter_id bias;    /* [vocabulary] */
    tt_parameter_id decoder; /* [vocabulary, hidden], where untied */
    const tt_encoder *encoder;

    tt_word_decoder by_slices;

    tt_arena arena;
    int64_t chunk; /* rows of logits at a time */
    size_t gathered, u, d_u, inner, activation, normalized, deviation, d_output;
} tt_masked_lm_head;

/* Device buffers of a micro-batch. */
typedef struct {
    int64_t count;                 /* masked positions; 0 is fine */
    const int32_t *rows;           /* [count]: token row of each */
    const int32_t *labels;         /* [count]: original ids; below 0 counts nothing */
    const float *scale;            /* device: 1 / masked positions of the whole step */
    float *loss_sum, *correct_sum; /* += */
} tt_masked_lm_inputs;

/* Registers "cls.predictions.*". The encoder must be created before. */
tt_status tt_masked_lm_head_create(tt_masked_lm_head *head, const tt_encoder *encoder,
                                   tt_error *error);
void tt_masked_lm_head_initialize(tt_masked_lm_head *head, uint64_t seed);
/* What the encoder's scratch must hold for up to `count` masked positions a micro-batch: logits. */
size_t tt_masked_lm_head_scratch_bytes(const tt_masked_lm_head *head, int64_t count);
/* Room for those positions beside that. */
tt_status tt_masked_lm_head_plan(tt_masked_lm_head *head, int64_t count, tt_error *error);
void tt_masked_lm_head_free(tt_masked_lm_head *head);
size_t tt_masked_lm_head_bytes(const tt_masked_lm_head *head);

/* Adds loss and hits. With d_hidden.data, adds parameter gradients too, and adds the gradient of
 * `hidden` to d_hidden at the masked rows. */
void tt_masked_lm_head_run(tt_masked_lm_head *head, const tt_masked_lm_inputs *inputs,
                           tt_matrix hidden, tt_matrix d_hidden);

/* The logits, bias not yet added, of the last run's last chunk, when it ran without gradients;
 * valid until the encoder's next pass. */
tt_matrix tt_masked_lm_head_logits(const tt_masked_lm_head *head,
                                   const tt_masked_lm_inputs *inputs);

#endif

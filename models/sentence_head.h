/* A decision about a whole sequence from its first token: pooler (a linear map and tanh), dropout,
 * and a dense classifier with cross-entropy. Next-sentence prediction and sentence classification
 * are both this. */
#ifndef TT_MODELS_SENTENCE_HEAD_H
#define TT_MODELS_SENTENCE_HEAD_H

#include "models/encoder.h"

typedef struct {
    tt_linear pooler, classifier;
    int64_t classes;
    float dropout; /* on the pooled output; 0 in pre-training */
    uint32_t dropout_site;
    const tt_encoder *encoder;

    tt_arena arena;
    int64_t sequence;
    size_t first_rows, gathered, u, d_u, pooled, dropped, d_pooled, logits;
} tt_sentence_head;

/* Device buffers of a micro-batch. */
typedef struct {
    const int32_t *labels;         /* [batch]; below 0 counts nothing */
    const float *scale;            /* device: 1 / labels of the whole step */
    float *loss_sum, *correct_sum; /* += */
} tt_sentence_inputs;

/* Registers "bert.pooler.dense.*" and "<classifier>.*". The encoder must be created before. */
tt_status tt_sentence_head_create(tt_sentence_head *head, const tt_encoder *encoder,
                                  const char *classifier, int64_t classes, float dropout,
                                  tt_error *error);
void tt_sentence_head_initialize(tt_sentence_head *head, uint64_t seed);
tt_status tt_sentence_head_plan(tt_sentence_head *head, int64_t batch, int64_t sequence,
                                tt_error *error);
void tt_sentence_head_free(tt_sentence_head *head);
size_t tt_sentence_head_bytes(const tt_sentence_head *head);

/* Adds loss and hits. With d_hidden.data, adds parameter gradients too, and adds the gradient of
 * `hidden` to d_hidden at the first tokens. */
void tt_sentence_head_run(tt_sentence_head *head, const tt_encoder_inputs *batch,
                          const tt_sentence_inputs *inputs, tt_matrix hidden, tt_matrix d_hidden);

/* The logits [batch, classes], bias not yet added, of the last run, when it ran without gradients.
 */
tt_matrix tt_sentence_head_logits(const tt_sentence_head *head, const tt_encoder_inputs *batch);

#endif

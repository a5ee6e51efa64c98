/* Whole models in double precision with all their gradients, dropout off: BERT with its two
 * pre-training heads, and the six-encoder classifier of the reference files. Parameters go by the
 * names the reference files use; sizes are those of the parameters.
 *
 * A linear map of the BERT model is dense ("<map>.weight" [out, in]) or, where there is no such
 * parameter, a tensor train ("<map>.core_1", ..., "<map>.rank_diagonal_1", ..., the first half of
 * the cores carrying the inputs). */
#ifndef TT_TESTS_DOUBLE_MODEL_H
#define TT_TESTS_DOUBLE_MODEL_H

#include "tests/reference/double_tensors.h"

typedef struct {
    tt_double_tensors *parameters;
    int64_t heads;
    double epsilon;   /* of every LayerNorm */
    double threshold; /* diagonal entries at or below it count as zero */
    bool gelu_by_tanh;
} tt_double_model;

/* NVIDIA's shard layout; a masked position of 0 ends a row's list. */
typedef struct {
    int64_t batch, sequence, max_predictions;
    int32_t *input_ids, *segment_ids, *mask; /* [batch, sequence] */
    int32_t *masked_positions, *masked_ids;  /* [batch, max_predictions]; the classifier has none */
    int32_t *labels;                         /* [batch]: next sentence, or class */
} tt_double_batch;

void tt_double_batch_free(tt_double_batch *batch);
/* The datasets of the group `batch`; `with_masks`: those of the masked positions too, under the
 * names that pre-training files use. */
tt_status tt_double_batch_read(const tt_reference_file *file, bool with_masks,
                               tt_double_batch *batch, tt_error *error);

typedef struct {
    double loss, masked_lm_loss, next_sentence_loss; /* the classifier has `loss` only */
    int64_t masked_count, vocabulary, classes;
    double *masked_lm_logits; /* [masked_count, vocabulary], in order of batch, then position */
    double *logits;           /* [batch, classes] */
} tt_double_result;

void tt_double_result_free(tt_double_result *result);

/* Both set every gradient of the parameters to that of `loss`. BERT's loss is the mean over masked
 * positions plus the mean over sequences; the classifier's the mean over sequences. */
void tt_double_model_bert(const tt_double_model *model, const tt_double_batch *batch,
                          tt_double_result *result);
void tt_double_model_six_encoder(const tt_double_model *model, const tt_double_batch *batch,
                                 tt_double_result *result);

#endif

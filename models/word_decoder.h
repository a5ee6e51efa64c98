/* Logits of a tensor-train matrix of words without the dense table: rows x times E^T, two factors
 * one after the other.
 *
 * With slices P [left, h_L, r] and Q [right, r, h_R] of core/tensor_train_matrix.h and x seen as
 * [h_L, h_R], the logit of word (i, j) is the sum over h_L and r of P_i times (x Q_j^T): for each
 * of `right` slices one product that is r wide, then for each row one of [left, h_L r] with [h_L r,
 * right]. Multiplications a row: (right width + left right h_L) r, instead of vocabulary width;
 * memory: what the products of one slice take, instead of the table and its gradient. All in f32.
 */
#ifndef TT_MODELS_WORD_DECODER_H
#define TT_MODELS_WORD_DECODER_H

#include "models/word_table.h"

typedef struct {
    const tt_word_table *words;
    const tt_arena *arena;
    tt_product *products;
    int64_t left_slices; /* those that hold words */
    size_t chains, d_chains, partials, zeros;
} tt_word_decoder;

/* Reserves room for up to `rows` rows in `arena`, and makes room for lists; frees what an earlier
 * plan has. */
tt_status tt_word_decoder_plan(tt_word_decoder *decoder, const tt_word_table *words,
                               tt_arena *arena, int64_t rows, tt_error *error);
void tt_word_decoder_free(tt_word_decoder *decoder);

/* Elements that a row of logits needs: the vocabulary and what fills the last slice. */
int64_t tt_word_decoder_width(const tt_word_table *words);

/* logits = x E^T; x [rows, width] without gaps, logits [rows, vocabulary] with rows that are
 * tt_word_decoder_width or more apart. */
void tt_word_decoder_forward(const tt_word_decoder *decoder, tt_matrix x, tt_matrix logits);
/* Adds to the gradients of P and Q; dx = d_logits E. After forward on the same x; what fills the
 * last slice is set to 0. */
void tt_word_decoder_backward(const tt_word_decoder *decoder, tt_matrix x, tt_matrix d_logits,
                              tt_matrix dx);

#endif

/* Masked-language-model targets as BERT draws them: of a row with `length` tokens,
 * min(max_predictions, max(1, round(probability * length))) tokens are predicted (halves round to
 * even); of these 80 % become the mask id, 10 % a random id that is not special, 10 % stay.
 * Special tokens and padding are never drawn. */
#ifndef TT_DATA_MASKING_H
#define TT_DATA_MASKING_H

#include "core/error.h"
#include "core/random.h"
#include "data/shard.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double probability;     /* share of tokens to predict, in (0, 1]; BERT's is 0.15 */
    bool whole_word;        /* all pieces of a word or none */
    int max_predictions;    /* room for targets in a row */
    int vocabulary_size;    /* of the tokenizer; random ids are drawn below it */
    tt_special_ids special; /* never predicted, never drawn as random ids; -1: does not exist,
                               which the mask id may not be */
} tt_masking_options;

typedef struct tt_masking tt_masking;

/* Refuses options that cannot be met: a probability outside (0, 1], no room, special ids outside
 * the vocabulary, a mask id equal to another special id, a vocabulary of special ids only.
 * `sequence_length` is the longest row that will be masked. */
tt_status tt_masking_create(const tt_masking_options *options, int sequence_length,
                            tt_masking **masking, tt_error *error);

/* Masks one row in place. `ids` [length] holds its tokens without padding, at most
 * the sequence length; `special_tokens_mask`
 * [length] has TT_TOKEN_ bits, NULL means that each token is a word and only special ids are
 * excluded. Writes the targets' positions, ascending, and the ids that stood there to `positions`
 * and `labels` [max_predictions] and returns their number: 0 only when no token may be masked.
 * The result is a pure function of the arguments and of the numbers that `random` yields.
 * With whole words, words that no longer fit are passed over; when none fits, one word is masked
 * in part. */
int tt_masking_apply(tt_masking *masking, tt_random *random, int length, int32_t *ids,
                     const uint8_t *special_tokens_mask, int32_t *positions, int32_t *labels);

/* Sets the pointer to NULL; NULL inside is fine. */
void tt_masking_free(tt_masking **masking);

#endif

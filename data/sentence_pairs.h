/* Sentence pairs for next-sentence prediction, as BERT makes them: [CLS] A [SEP] B [SEP].
 *
 * The sentences of a document are gathered until they fill a target length: the room for tokens
 * (sequence length - 3), or in `short_probability` of the cases a random shorter one. A is a random
 * number of the gathered sentences. B is the rest of them (label 0), or, with probability 1/2 and
 * always where only one sentence was gathered, starts at a random sentence of another document
 * (label 1); the sentences that B would have taken are then put back. A pair that is too long loses
 * tokens from its longer half, at its front or its back by the toss of a coin.
 *
 * Where the pool holds no other document, B is what follows A and the label 0; where nothing
 * follows, there is no pair. */
#ifndef TT_DATA_SENTENCE_PAIRS_H
#define TT_DATA_SENTENCE_PAIRS_H

#include "core/random.h"
#include "data/shard.h"
#include "data/token_pool.h"

typedef struct {
    int sequence_length;      /* at least 8 */
    double short_probability; /* 0.1 */
    tt_special_ids special;
    const uint8_t *token_bits; /* TT_TOKEN_ bits of every id, [vocabulary size] */
} tt_sentence_pair_options;

typedef struct {
    int length;                /* tokens, special ones included */
    const int32_t *ids;        /* [length] */
    const uint8_t *segments;   /* [length] */
    const uint8_t *token_bits; /* [length] */
    int next_sentence_label;   /* 1: B comes from another document */
} tt_sentence_pair;

/* Receives one pair, valid during the call. */
typedef tt_status (*tt_sentence_pair_sink)(void *user, const tt_sentence_pair *pair,
                                           tt_error *error);

/* Makes the pairs of one document of the pool. They are a pure function of the pool, the options
 * and the numbers that `random` yields. */
tt_status tt_sentence_pairs_make(const tt_sentence_pair_options *options, const tt_token_pool *pool,
                                 int64_t document, tt_random *random, tt_sentence_pair_sink sink,
                                 void *user, tt_error *error);

#endif

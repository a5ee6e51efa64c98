/* Tokenised documents in memory: the buffer from which sentence pairs are made. */
#ifndef TT_DATA_TOKEN_POOL_H
#define TT_DATA_TOKEN_POOL_H

#include "core/error.h"

#include <stdint.h>

/* Documents lie one after the other, as sentences, as tokens. Start with all zero. */
typedef struct {
    int32_t *tokens;
    int64_t *sentence_ends; /* [sentence_count]: the number of tokens up to there */
    int64_t *document_ends; /* [document_count]: the number of sentences up to there */
    int64_t token_count, sentence_count, document_count;
    int64_t token_capacity, sentence_capacity, document_capacity;
} tt_token_pool;

/* Adds one sentence to the document under way. An empty one adds nothing. */
tt_status tt_token_pool_add_sentence(tt_token_pool *pool, const int32_t *tokens, int64_t count,
                                     tt_error *error);
/* Ends the document under way; one without sentences is none. */
tt_status tt_token_pool_end_document(tt_token_pool *pool, tt_error *error);
/* Empties the pool and keeps its memory. */
void tt_token_pool_clear(tt_token_pool *pool);
void tt_token_pool_free(tt_token_pool *pool);

/* Sentences of a document, numbered from 0. */
int64_t tt_token_pool_sentences(const tt_token_pool *pool, int64_t document);
/* The tokens of one sentence; their number goes to `*count`. */
const int32_t *tt_token_pool_sentence(const tt_token_pool *pool, int64_t document, int64_t sentence,
                                      int64_t *count);

#endif

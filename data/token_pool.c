#include "data/token_pool.h"

#include <stdlib.h>
#include <string.h>

/* Grows an array of `size`-byte elements so that it holds `needed` of them. */
static tt_status grow(void *array, size_t size, int64_t needed, int64_t *capacity, tt_error *error)
{
    if (needed <= *capacity) {
        return TT_OK;
    }
    int64_t larger = *capacity > 0 ? *capacity : 1024;
    while (larger < needed) {
        larger += larger / 2;
    }
    void **target = array;
    void *moved = realloc(*target, (size_t)larger * size);
    if (moved == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory to buffer %lld tokenised items",
                            (long long)larger);
    }
    *target = moved;
    *capacity = larger;
    return TT_OK;
}

tt_status tt_token_pool_add_sentence(tt_token_pool *pool, const int32_t *tokens, int64_t count,
                                     tt_error *error)
{
    if (count == 0) {
        return TT_OK;
    }
    TT_TRY(grow((void *)&pool->tokens, sizeof *pool->tokens, pool->token_count + count,
                &pool->token_capacity, error));
    TT_TRY(grow((void *)&pool->sentence_ends, sizeof *pool->sentence_ends, pool->sentence_count + 1,
                &pool->sentence_capacity, error));
    memcpy(pool->tokens + pool->token_count, tokens, (size_t)count * sizeof *tokens);
    pool->token_count += count;
    pool->sentence_ends[pool->sentence_count++] = pool->token_count;
    return TT_OK;
}

tt_status tt_token_pool_end_document(tt_token_pool *pool, tt_error *error)
{
    int64_t before = pool->document_count > 0 ? pool->document_ends[pool->document_count - 1] : 0;
    if (pool->sentence_count == before) {
        return TT_OK;
    }
    TT_TRY(grow((void *)&pool->document_ends, sizeof *pool->document_ends, pool->document_count + 1,
                &pool->document_capacity, error));
    pool->document_ends[pool->document_count++] = pool->sentence_count;
    return TT_OK;
}

void tt_token_pool_clear(tt_token_pool *pool)
{
    pool->token_count = 0;
    pool->sentence_count = 0;
    pool->document_count = 0;
}

void tt_token_pool_free(tt_token_pool *pool)
{
    free(pool->tokens);
    free(pool->sentence_ends);
    free(pool->document_ends);
    *pool = (tt_token_pool){0};
}

static int64_t first_sentence(const tt_token_pool *pool, int64_t document)
{
    return document > 0 ? pool->document_ends[document - 1] : 0;
}

int64_t tt_token_pool_sentences(const tt_token_pool *pool, int64_t document)
{
    return pool->document_ends[document] - first_sentence(pool, document);
}

const int32_t *tt_token_pool_sentence(const tt_token_pool *pool, int64_t document, int64_t sentence,
                                      int64_t *count)
{
    int64_t index = first_sentence(pool, document) + sentence;
    int64_t start = index > 0 ? pool->sentence_ends[index - 1] : 0;
    *count = pool->sentence_ends[index] - start;
    return pool->tokens + start;
}

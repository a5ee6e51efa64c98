#include "data/sentence_pairs.h"

#include <stdlib.h>
#include <string.h>

/* A run of sentences of one document. Sentences of a document lie side by side in the pool, so a
 * run is one array of tokens. */
typedef struct {
    const int32_t *tokens;
    int64_t count;
} token_run;

typedef struct {
    const tt_sentence_pair_options *options;
    const tt_token_pool *pool;
    int64_t document, sentences;
    tt_random *random;
    tt_sentence_pair_sink sink;
    void *user;
    int32_t *ids; /* [sequence length] each: the row under construction */
    uint8_t *segments, *token_bits;
} pair_maker;

static token_run run_of(const tt_token_pool *pool, int64_t document, int64_t first, int64_t end)
{
    token_run run = {0};
    for (int64_t i = first; i < end; i++) {
        int64_t count = 0;
        const int32_t *tokens = tt_token_pool_sentence(pool, document, i, &count);
        run.tokens = run.tokens != NULL ? run.tokens : tokens;
        run.count += count;
    }
    return run;
}

/* Sentences from `first` on until they reach `target` tokens; `*end` is the one behind the last. */
static token_run gather(const tt_token_pool *pool, int64_t document, int64_t first, int64_t target,
                        int64_t *end)
{
    int64_t sentences = tt_token_pool_sentences(pool, document);
    int64_t total = 0;
    *end = first;
    while (*end < sentences && total < target) {
        int64_t count = 0;
        tt_token_pool_sentence(pool, document, (*end)++, &count);
        total += count;
    }
    return run_of(pool, document, first, *end);
}

static int64_t draw(tt_random *random, int64_t bound)
{
    return tt_random_below(random, bound < UINT32_MAX ? (uint32_t)bound : UINT32_MAX);
}

/* The start of a random sentence of another document, which the caller knows to exist. */
static token_run random_run(const pair_maker *maker, int64_t target)
{
    int64_t other = draw(maker->random, maker->pool->document_count - 1);
    other += other >= maker->document;
    int64_t first = draw(maker->random, tt_token_pool_sentences(maker->pool, other));
    int64_t end = 0;
    return gather(maker->pool, other, first, target, &end);
}

/* Cuts the longer run, token by token from a random end, until both fit. Only the number of tokens
 * lost at each end matters, so the work is bounded by what is cut, not by moving tokens. */
static void trim_pair(tt_random *random, token_run *a, token_run *b, int64_t room)
{
    while (a->count + b->count > room) {
        token_run *longer = a->count > b->count ? a : b;
        if (tt_random_u32(random) & 1) {
            longer->tokens++;
        }
        longer->count--;
    }
}

static int put_token(pair_maker *maker, int at, int32_t id, int segment)
{
    maker->ids[at] = id;
    maker->segments[at] = (uint8_t)segment;
    maker->token_bits[at] = maker->options->token_bits[id];
    return at + 1;
}

static tt_status emit(pair_maker *maker, token_run a, token_run b, int label, tt_error *error)
{
    const tt_special_ids *special = &maker->options->special;
    trim_pair(maker->random, &a, &b, maker->options->sequence_length - 3);
    int at = put_token(maker, 0, special->cls, 0);
    for (int64_t i = 0; i < a.count; i++) {
        at = put_token(maker, at, a.tokens[i], 0);
    }
    at = put_token(maker, at, special->sep, 0);
    for (int64_t i = 0; i < b.count; i++) {
        at = put_token(maker, at, b.tokens[i], 1);
    }
    at = put_token(maker, at, special->sep, 1);
    const tt_sentence_pair pair = {at, maker->ids, maker->segments, maker->token_bits, label};
    return maker->sink(maker->user, &pair, error);
}

static int64_t target_length(const pair_maker *maker)
{
    int64_t room = maker->options->sequence_length - 3;
    if (tt_random_uniform(maker->random) < maker->options->short_probability) {
        return 2 + draw(maker->random, room - 1);
    }
    return room;
}

/* Makes one pair of the sentences [first, end) and sets `*next` to the first one that it did not
 * use. */
static tt_status make_pair(pair_maker *maker, int64_t first, int64_t end, int64_t target,
                           int64_t *next, tt_error *error)
{
    int64_t gathered = end - first;
    int64_t a_end = gathered >= 2 ? first + 1 + draw(maker->random, gathered - 1) : end;
    token_run a = run_of(maker->pool, maker->document, first, a_end);
    bool random_next = gathered == 1 || (tt_random_u32(maker->random) & 1);
    *next = end;
    if (random_next && maker->pool->document_count > 1) {
        int64_t wanted = target - a.count;
        token_run b = random_run(maker, wanted > 1 ? wanted : 1);
        *next = a_end;
        return emit(maker, a, b, 1, error);
    }
    token_run b = run_of(maker->pool, maker->document, a_end, end);
    if (gathered == 1) {
        b = gather(maker->pool, maker->document, end, target, next);
    }
    return b.count > 0 ? emit(maker, a, b, 0, error) : TT_OK;
}

static tt_status make_all(pair_maker *maker, tt_error *error)
{
    int64_t first = 0;
    while (first < maker->sentences) {
        int64_t target = target_length(maker);
        int64_t end = 0;
        gather(maker->pool, maker->document, first, target, &end);
        TT_TRY(make_pair(maker, first, end, target, &first, error));
    }
    return TT_OK;
}

tt_status tt_sentence_pairs_make(const tt_sentence_pair_options *options, const tt_token_pool *pool,
                                 int64_t document, tt_random *random, tt_sentence_pair_sink sink,
                                 void *user, tt_error *error)
{
    size_t length = (size_t)options->sequence_length;
    pair_maker maker = {.options = options,
                        .pool = pool,
                        .document = document,
                        .sentences = tt_token_pool_sentences(pool, document),
                        .random = random,
                        .sink = sink,
                        .user = user};
    maker.ids = malloc(length * sizeof *maker.ids);
    maker.segments = malloc(length);
    maker.token_bits = malloc(length);
    tt_status status;
    if (maker.ids == NULL || maker.segments == NULL || maker.token_bits == NULL) {
        status = tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for a row of %zu tokens", length);
    } else {
        status = make_all(&maker, error);
    }
    free(maker.ids);
    free(maker.segments);
    free(maker.token_bits);
    return status;
}

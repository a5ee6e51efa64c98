#include "data/prepare.h"

#include "data/file.h"
#include "data/masking.h"
#include "data/sentence.h"
#include "data/sentence_pairs.h"
#include "data/shard_set.h"
#include "data/token_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_LIMIT = 4096, SPLIT_STREAM = 0 };

/* One of the two splits: what waits to be paired, and where it goes. */
typedef struct {
    tt_token_pool pool;
    tt_shard_set *shards;   /* NULL: the split is not asked for */
    uint64_t random_stream; /* of the next pass over the buffer; those of the other split are odd */
    int duplicates;
    int64_t *rows; /* in the summary */
} split;

typedef struct {
    const tt_prepare_options *options;
    const tt_tokenizer *tokenizer;
    tt_prepare_summary *summary;
    split train, validation;
    tt_random split_random;
    tt_sentence_pair_options pairs;
    tt_masking *masking; /* static masking only */
    tt_random mask_random;
    int32_t *ids, *positions, *labels; /* of the row being masked */
    split *current;
    tt_encoding encoding;
} preparation;

tt_prepare_options tt_prepare_default_options(void)
{
    return (tt_prepare_options){
        .source = "",
        .sequence_length = 128,
        .masking = TT_MASKING_DYNAMIC,
        .mask_probability = 0.15,
        .short_probability = 0.1,
        .duplicates = 1,
        .rows_per_shard = 131072,
        .buffer_tokens = 33554432,
        .seed = 1,
    };
}

int tt_prepare_usual_predictions(int sequence_length)
{
    int usual = (int)((int64_t)sequence_length * 5 / 32);
    return usual > 1 ? usual : 1;
}

static tt_status check_options(const tt_prepare_options *options, tt_error *error)
{
    if (options->sequence_length < 8 || options->sequence_length > 65536) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "sequence length: expected 8 to 65536, found %d",
                            options->sequence_length);
    }
    if (!(options->validation_fraction >= 0 && options->validation_fraction < 1)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "validation fraction: expected 0 to below 1, found %g",
                            options->validation_fraction);
    }
    if (!(options->short_probability >= 0 && options->short_probability <= 1)) {
        return tt_error_set(error, TT_INVALID_INPUT, "short probability: expected 0 to 1, found %g",
                            options->short_probability);
    }
    if (options->duplicates < 1) {
        return tt_error_set(error, TT_INVALID_INPUT, "duplicates: expected at least 1, found %d",
                            options->duplicates);
    }
    if (options->rows_per_shard < 1 || options->rows_per_shard > INT32_MAX) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "rows per shard: expected 1 to 2147483647, found %lld",
                            (long long)options->rows_per_shard);
    }
    if (options->buffer_tokens < 1) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "buffer: expected at least 1 token, found %lld",
                            (long long)options->buffer_tokens);
    }
    return TT_OK;
}

static tt_status start_masking(preparation *preparation, tt_error *error)
{
    const tt_prepare_options *options = preparation->options;
    if (options->masking == TT_MASKING_DYNAMIC) {
        return TT_OK;
    }
    const tt_masking_options masking = {
        .probability = options->mask_probability,
        .whole_word = options->whole_word,
        .max_predictions = options->max_predictions,
        .vocabulary_size = tt_tokenizer_vocabulary_size(preparation->tokenizer),
        .special = tt_tokenizer_special(preparation->tokenizer),
    };
    TT_TRY(tt_masking_create(&masking, options->sequence_length, &preparation->masking, error));
    size_t predictions = (size_t)options->max_predictions;
    preparation->ids = malloc((size_t)options->sequence_length * sizeof *preparation->ids);
    preparation->positions = malloc(predictions * sizeof *preparation->positions);
    preparation->labels = malloc(predictions * sizeof *preparation->labels);
    if (preparation->ids == NULL || preparation->positions == NULL || preparation->labels == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for a row of %d tokens",
                            options->sequence_length);
    }
    return TT_OK;
}

static tt_shard_info shard_info(const preparation *preparation)
{
    const tt_prepare_options *options = preparation->options;
    const tt_tokenizer *tokenizer = preparation->tokenizer;
    tt_shard_info info = {
        .masking = options->masking,
        .sequence_length = options->sequence_length,
        .max_predictions = options->masking == TT_MASKING_STATIC ? options->max_predictions : 0,
        .vocabulary_size = tt_tokenizer_vocabulary_size(tokenizer),
        .vocabulary_hash = tt_tokenizer_vocabulary_hash(tokenizer),
        .tokenizer_hash = tt_tokenizer_hash(tokenizer),
        .special = tt_tokenizer_special(tokenizer),
        .seed = options->seed,
    };
    snprintf(info.source, sizeof info.source, "%s", options->source);
    return info;
}

static tt_status start_splits(preparation *preparation, tt_error *error)
{
    const tt_prepare_options *options = preparation->options;
    TT_TRY(tt_file_make_folder(options->output, error));
    if (!options->overwrite) {
        TT_TRY(tt_shard_set_refuse_existing(options->output, "train", error));
        TT_TRY(tt_shard_set_refuse_existing(options->output, "validation", error));
    }
    tt_shard_info info = shard_info(preparation);
    tt_shard_set_options set = {.folder = options->output,
                                .prefix = "train",
                                .shards = options->shards,
                                .rows_per_shard = options->rows_per_shard};
    TT_TRY(tt_shard_set_open(&set, &info, &preparation->train.shards, error));
    if (options->validation_fraction > 0) {
        set.prefix = "validation";
        set.shards = 0;
        TT_TRY(tt_shard_set_open(&set, &info, &preparation->validation.shards, error));
    }
    return TT_OK;
}

/* Masks the pair if masks are drawn now, and writes it. */
static tt_status write_pair(void *user, const tt_sentence_pair *pair, tt_error *error)
{
    preparation *preparation = user;
    tt_prepare_summary *summary = preparation->summary;
    tt_shard_row row = {.length = pair->length,
                        .input_ids = pair->ids,
                        .segment_ids = pair->segments,
                        .next_sentence_label = pair->next_sentence_label};
    if (preparation->masking == NULL) {
        row.special_tokens_mask = pair->token_bits;
    } else {
        memcpy(preparation->ids, pair->ids, (size_t)pair->length * sizeof *pair->ids);
        row.masked_count = tt_masking_apply(preparation->masking, &preparation->mask_random,
                                            pair->length, preparation->ids, pair->token_bits,
                                            preparation->positions, preparation->labels);
        row.input_ids = preparation->ids;
        row.masked_positions = preparation->positions;
        row.masked_ids = preparation->labels;
    }
    TT_TRY(tt_shard_set_append(preparation->current->shards, &row, error));
    (*preparation->current->rows)++;
    summary->row_tokens += pair->length;
    summary->random_next_rows += pair->next_sentence_label;
    summary->masked_tokens += row.masked_count;
    return TT_OK;
}

static void shuffle(int64_t *order, int64_t count, tt_random *random)
{
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = tt_random_below(random, (uint32_t)(i + 1));
        int64_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

/* One pass over the buffer: its documents in random order, each paired anew. */
static tt_status write_pass(preparation *preparation, split *split, int64_t *order, tt_error *error)
{
    tt_random random;
    tt_random_start(&random, preparation->options->seed, split->random_stream);
    tt_random_start(&preparation->mask_random, preparation->options->seed,
                    split->random_stream + 2);
    split->random_stream += 4;
    preparation->current = split;
    const tt_token_pool *pool = &split->pool;
    shuffle(order, pool->document_count, &random);
    for (int64_t i = 0; i < pool->document_count; i++) {
        tt_shard_set_start_document(split->shards);
        TT_TRY(tt_sentence_pairs_make(&preparation->pairs, pool, order[i], &random, write_pair,
                                      preparation, error));
    }
    return TT_OK;
}

/* Writes what the split's buffer holds and empties it. */
static tt_status flush_split(preparation *preparation, split *split, tt_error *error)
{
    int64_t count = split->pool.document_count;
    if (count == 0) {
        return TT_OK;
    }
    int64_t *order = calloc((size_t)count, sizeof *order);
    if (order == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the order of %lld documents",
                            (long long)count);
    }
    for (int64_t i = 0; i < count; i++) {
        order[i] = i;
    }
    tt_status status = TT_OK;
    for (int pass = 0; pass < split->duplicates && status == TT_OK; pass++) {
        status = write_pass(preparation, split, order, error);
    }
    free(order);
    tt_token_pool_clear(&split->pool);
    return status;
}

static tt_status add_line(preparation *preparation, tt_token_pool *pool, const char *line,
                          tt_error *error)
{
    tt_prepare_summary *summary = preparation->summary;
    tt_encoding *encoding = &preparation->encoding;
    int32_t unknown = tt_tokenizer_special(preparation->tokenizer).unknown;
    size_t left = strlen(line);
    while (left > 0) {
        size_t length = tt_sentence_length(line, left);
        TT_TRY(tt_tokenizer_encode(preparation->tokenizer, line, length, encoding, error));
        TT_TRY(tt_token_pool_add_sentence(pool, encoding->ids, encoding->count, error));
        for (int64_t i = 0; i < encoding->count; i++) {
            summary->unknown_tokens += encoding->ids[i] == unknown;
        }
        summary->sentences += encoding->count > 0;
        summary->tokens += encoding->count;
        while (length < left && line[length] == ' ') {
            length++;
        }
        line += length;
        left -= length;
    }
    return TT_OK;
}

static int64_t pool_bytes(const tt_token_pool *pool)
{
    return pool->token_capacity * (int64_t)sizeof *pool->tokens +
           pool->sentence_capacity * (int64_t)sizeof *pool->sentence_ends +
           pool->document_capacity * (int64_t)sizeof *pool->document_ends;
}

static tt_status add_document(preparation *preparation, const tt_document *document,
                              tt_error *error)
{
    const tt_prepare_options *options = preparation->options;
    tt_prepare_summary *summary = preparation->summary;
    bool validates = tt_random_uniform(&preparation->split_random) < options->validation_fraction;
    split *split = validates ? &preparation->validation : &preparation->train;
    for (int64_t i = 0; i < document->line_count; i++) {
        TT_TRY(add_line(preparation, &split->pool, document->lines[i], error));
    }
    TT_TRY(tt_token_pool_end_document(&split->pool, error));
    summary->documents++;
    summary->validation_documents += validates;
    int64_t bytes =
        pool_bytes(&preparation->train.pool) + pool_bytes(&preparation->validation.pool);
    summary->buffer_bytes = bytes > summary->buffer_bytes ? bytes : summary->buffer_bytes;
    if (split->pool.token_count >= options->buffer_tokens) {
        TT_TRY(flush_split(preparation, split, error));
    }
    return TT_OK;
}

static tt_status read_corpus(preparation *preparation, tt_corpus *corpus,
                             tt_prepare_progress progress, void *user, tt_error *error)
{
    for (;;) {
        const tt_document *document = NULL;
        TT_TRY(tt_corpus_next(corpus, &document, error));
        if (document == NULL) {
            break;
        }
        TT_TRY(add_document(preparation, document, error));
        if (progress != NULL) {
            progress(user, corpus, preparation->summary);
        }
    }
    TT_TRY(flush_split(preparation, &preparation->train, error));
    return flush_split(preparation, &preparation->validation, error);
}

static tt_status check_result(const preparation *preparation, tt_error *error)
{
    const tt_prepare_options *options = preparation->options;
    const tt_prepare_summary *summary = preparation->summary;
    int64_t train_documents = summary->documents - summary->validation_documents;
    if (summary->documents == 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "expected text, found no document in the input");
    }
    if (train_documents < options->shards) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "expected at least as many training documents as shards (%d), found "
                            "%lld; give fewer shards or --rows-per-shard",
                            options->shards, (long long)train_documents);
    }
    if (summary->train_rows == 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "expected rows to train on, found none in %lld documents",
                            (long long)train_documents);
    }
    if (options->validation_fraction > 0 && summary->validation_rows == 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "expected rows to validate on, found none: %lld of %lld documents fell "
                            "to validation at fraction %g; give a larger fraction or another seed",
                            (long long)summary->validation_documents, (long long)summary->documents,
                            options->validation_fraction);
    }
    return TT_OK;
}

static tt_status copy_tokenizer(const tt_prepare_options *options, tt_error *error)
{
    if (options->tokenizer_path == NULL) {
        return TT_OK;
    }
    char path[PATH_LIMIT];
    if (snprintf(path, sizeof path, "%s/tokenizer.model", options->output) >= (int)sizeof path) {
        return tt_error_set(error, TT_INVALID_INPUT, "%.200s...: path too long", options->output);
    }
    void *bytes = NULL;
    size_t size = 0;
    TT_TRY(tt_file_read(options->tokenizer_path, (size_t)1 << 30, &bytes, &size, error));
    tt_status status = tt_file_write(path, bytes, size, error);
    free(bytes);
    return status;
}

static tt_status finish(preparation *preparation, tt_error *error)
{
    const tt_prepare_options *options = preparation->options;
    split *train = &preparation->train;
    split *validation = &preparation->validation;
    TT_TRY(check_result(preparation, error));
    TT_TRY(tt_shard_set_finish(train->shards, error));
    preparation->summary->train_shards = tt_shard_set_shards(train->shards);
    if (validation->shards != NULL) {
        TT_TRY(tt_shard_set_finish(validation->shards, error));
        preparation->summary->validation_shards = tt_shard_set_shards(validation->shards);
    }
    TT_TRY(copy_tokenizer(options, error));
    TT_TRY(tt_shard_set_publish(&train->shards, error));
    if (validation->shards != NULL) {
        return tt_shard_set_publish(&validation->shards, error);
    }
    return tt_shard_set_remove_existing(options->output, "validation", error);
}

static void free_preparation(preparation *preparation)
{
    tt_shard_set_abandon(&preparation->train.shards);
    tt_shard_set_abandon(&preparation->validation.shards);
    tt_token_pool_free(&preparation->train.pool);
    tt_token_pool_free(&preparation->validation.pool);
    tt_masking_free(&preparation->masking);
    tt_encoding_free(&preparation->encoding);
    free(preparation->ids);
    free(preparation->positions);
    free(preparation->labels);
}

tt_status tt_prepare_shards(tt_corpus *corpus, const tt_tokenizer *tokenizer,
                            const tt_prepare_options *options, tt_prepare_progress progress,
                            void *user, tt_prepare_summary *summary, tt_error *error)
{
    *summary = (tt_prepare_summary){0};
    TT_TRY(check_options(options, error));
    preparation preparation = {
        .options = options,
        .tokenizer = tokenizer,
        .summary = summary,
        .train = {.random_stream = 4,
                  .duplicates = options->duplicates,
                  .rows = &summary->train_rows},
        .validation = {.random_stream = 5, .duplicates = 1, .rows = &summary->validation_rows},
        .pairs = {.sequence_length = options->sequence_length,
                  .short_probability = options->short_probability,
                  .special = tt_tokenizer_special(tokenizer),
                  .token_bits = tt_tokenizer_token_bits(tokenizer)},
    };
    tt_random_start(&preparation.split_random, options->seed, SPLIT_STREAM);
    tt_status status = start_masking(&preparation, error);
    if (status == TT_OK) {
        status = start_splits(&preparation, error);
    }
    if (status == TT_OK) {
        status = read_corpus(&preparation, corpus, progress, user, error);
    }
    if (status == TT_OK) {
        status = finish(&preparation, error);
    }
    free_preparation(&preparation);
    return status;
}

#include "data/tokenizer.h"

#include "core/random.h"
#include "data/file.h"
#include "data/sentencepiece_shim.h"
#include "data/wordpiece.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    MODEL_FILE_LIMIT =
        1 << 30, /* far above any real model, so that a wrong file is not read whole */
    LONGEST_TRAINING_LINE = 8192, /* bytes; a longer line is cut */
};

/* One of the two. */
struct tt_tokenizer {
    tt_sentencepiece *model;
    tt_wordpiece *words;
    int vocabulary_size;
    tt_special_ids special;
    uint64_t hash, vocabulary_hash;
    uint8_t *token_bits;
};

tt_tokenizer_options tt_tokenizer_default_options(void)
{
    return (tt_tokenizer_options){
        .model = TT_TOKENIZER_UNIGRAM,
        .vocabulary_size = 8000,
        .character_coverage = 0.9995,
        .max_lines = 1000000,
        .threads = 2,
        .seed = 1,
    };
}

/* The lines to train on: all of the input, or an even sample of it, each at most
 * LONGEST_TRAINING_LINE bytes. */
typedef struct {
    char **lines; /* [count]; NULL once handed out */
    int64_t count, capacity, handed_out;
    int64_t seen; /* lines of the input so far */
    int64_t limit;
    tt_random random;
} line_sample;

/* The place of the next line in the sample (reservoir sampling), or -1 where it is passed over. */
static int64_t place_in_sample(line_sample *sample)
{
    int64_t number = sample->seen++;
    if (number < sample->limit) {
        return sample->count++;
    }
    uint64_t draw = (uint64_t)tt_random_u32(&sample->random) << 32;
    draw |= tt_random_u32(&sample->random);
    int64_t place = (int64_t)(draw % (uint64_t)sample->seen);
    return place < sample->limit ? place : -1;
}

static tt_status add_line(line_sample *sample, const char *line, size_t length, tt_error *error)
{
    int64_t place = place_in_sample(sample);
    if (place < 0) {
        return TT_OK;
    }
    if (place >= sample->capacity) {
        int64_t capacity = sample->capacity > 0 ? 2 * sample->capacity : 1024;
        char **lines = realloc(sample->lines, (size_t)capacity * sizeof(char *));
        if (lines == NULL) {
            sample->count--;
            return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for %lld lines to train on",
                                (long long)capacity);
        }
        memset(lines + sample->capacity, 0, (size_t)(capacity - sample->capacity) * sizeof(char *));
        sample->lines = lines;
        sample->capacity = capacity;
    }
    free(sample->lines[place]);
    sample->lines[place] = strndup(line, length);
    return sample->lines[place] != NULL
               ? TT_OK
               : tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for a line to train on");
}

static tt_status read_lines(line_sample *sample, tt_tokenizer_next_line next, void *user,
                            tt_error *error)
{
    for (;;) {
        const char *line = NULL;
        TT_TRY(next(user, &line, error));
        if (line == NULL) {
            return TT_OK;
        }
        while (*line != '\0') {
            size_t length = strnlen(line, LONGEST_TRAINING_LINE);
            while (line[length] != '\0' && length > LONGEST_TRAINING_LINE - 4 &&
                   ((unsigned char)line[length] & 0xC0) == 0x80) {
                length--;
            }
            TT_TRY(add_line(sample, line, length, error));
            line += length;
        }
    }
}

/* Hands out the sample to the library, which copies what it takes. */
static const char *next_training_line(void *user, size_t *length)
{
    line_sample *sample = user;
    if (sample->handed_out > 0) {
        free(sample->lines[sample->handed_out - 1]);
        sample->lines[sample->handed_out - 1] = NULL;
    }
    if (sample->handed_out == sample->count) {
        return NULL;
    }
    const char *line = sample->lines[sample->handed_out++];
    *length = strlen(line);
    return line;
}

static void free_sample(line_sample *sample)
{
    for (int64_t i = 0; i < sample->count; i++) {
        free(sample->lines[i]);
    }
    free(sample->lines);
}

static tt_status check_options(const tt_tokenizer_options *options, tt_error *error)
{
    if (options->vocabulary_size < 8 || options->vocabulary_size > 1 << 24) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "vocabulary size: expected 8 to 16777216, found %d",
                            options->vocabulary_size);
    }
    if (!(options->character_coverage >= 0.98 && options->character_coverage <= 1)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "character coverage: expected 0.98 to 1, found %g",
                            options->character_coverage);
    }
    if (options->max_lines < 1 || options->max_lines > INT_MAX) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "lines to train on: expected 1 to 2147483647, found %lld",
                            (long long)options->max_lines);
    }
    if (options->threads < 1 || options->threads > 1024) {
        return tt_error_set(error, TT_INVALID_INPUT, "threads: expected 1 to 1024, found %d",
                            options->threads);
    }
    return TT_OK;
}

static void *train_model(const tt_tokenizer_options *options, line_sample *sample, size_t *size,
                         char *message, size_t message_size)
{
    char vocabulary_size[16], coverage[32], threads[16], longest[16];
    snprintf(vocabulary_size, sizeof vocabulary_size, "%d", options->vocabulary_size);
    snprintf(coverage, sizeof coverage, "%.6f", options->character_coverage);
    snprintf(threads, sizeof threads, "%d", options->threads);
    snprintf(longest, sizeof longest, "%d", LONGEST_TRAINING_LINE);
    const tt_sentencepiece_setting settings[] = {
        {"model_type", options->model == TT_TOKENIZER_BPE ? "bpe" : "unigram"},
        {"normalization_rule_name", options->lower_case ? "nmt_nfkc_cf" : "nmt_nfkc"},
        {"vocab_size", vocabulary_size},
        {"character_coverage", coverage},
        {"max_sentence_length", longest},
        {"num_threads", threads},
        {"byte_fallback", "false"},
        {"pad_id", "0"},
        {"unk_id", "1"},
        {"bos_id", "2"},
        {"eos_id", "3"},
        {"pad_piece", "[PAD]"},
        {"unk_piece", "[UNK]"},
        {"bos_piece", "[CLS]"},
        {"eos_piece", "[SEP]"},
        {"control_symbols", "[MASK]"},
    };
    return tt_sentencepiece_train(settings, sizeof settings / sizeof settings[0],
                                  next_training_line, sample, size, message, message_size);
}

static tt_status tokenizer_from_bytes(const char *path, const void *bytes, size_t size,
                                      tt_tokenizer **tokenizer, tt_error *error);

/* What was just trained must stand up to the checks of opening it, at the promised ids. */
static tt_status check_trained(const char *path, const void *bytes, size_t size, tt_error *error)
{
    tt_tokenizer *tokenizer = NULL;
    TT_TRY(tokenizer_from_bytes(path, bytes, size, &tokenizer, error));
    tt_special_ids found = tokenizer->special;
    tt_tokenizer_close(&tokenizer);
    if (found.pad != 0 || found.unknown != 1 || found.cls != 2 || found.sep != 3 ||
        found.mask != 4) {
        return tt_error_set(error, TT_DEVICE_FAILED,
                            "%s: expected special pieces at ids 0 to 4, found %d %d %d %d %d", path,
                            found.pad, found.unknown, found.cls, found.sep, found.mask);
    }
    return TT_OK;
}

static tt_status train_on_sample(const tt_tokenizer_options *options, line_sample *sample,
                                 const char *path, tt_error *error)
{
    if (sample->count == 0) {
        return tt_error_set(error, TT_INVALID_INPUT, "training a tokenizer: the input has no text");
    }
    char message[512] = "";
    size_t size = 0;
    void *bytes = train_model(options, sample, &size, message, sizeof message);
    if (bytes == NULL) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "training a tokenizer of %d pieces on %lld lines: %s",
                            options->vocabulary_size, (long long)sample->count, message);
    }
    tt_status status = check_trained(path, bytes, size, error);
    if (status == TT_OK) {
        status = tt_file_write(path, bytes, size, error);
    }
    free(bytes);
    return status;
}

tt_status tt_tokenizer_train(const tt_tokenizer_options *options, tt_tokenizer_next_line next,
                             void *user, const char *path, tt_error *error)
{
    TT_TRY(check_options(options, error));
    line_sample sample = {.limit = options->max_lines};
    tt_random_start(&sample.random, options->seed, 0);
    tt_status status = read_lines(&sample, next, user, error);
    if (status == TT_OK) {
        status = train_on_sample(options, &sample, path, error);
    }
    free_sample(&sample);
    return status;
}

static const char *piece_of(const tt_tokenizer *tokenizer, int id)
{
    return tokenizer->words != NULL ? tt_wordpiece_piece(tokenizer->words, id)
                                    : tt_sentencepiece_piece(tokenizer->model, id);
}

static tt_status find_special(const tt_tokenizer *tokenizer, const char *path, const char *piece,
                              int32_t *id, tt_error *error)
{
    *id = tokenizer->words != NULL ? tt_wordpiece_find(tokenizer->words, piece)
                                   : tt_sentencepiece_find(tokenizer->model, piece);
    if (*id < 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected a %s with the pieces [PAD] [UNK] [CLS] [SEP] [MASK], "
                            "found none named %s",
                            path, tokenizer->words != NULL ? "vocabulary" : "model", piece);
    }
    if (tokenizer->words != NULL) {
        return TT_OK;
    }
    bool is_unknown = tt_sentencepiece_is_unknown(tokenizer->model, *id);
    if (strcmp(piece, "[UNK]") == 0 ? !is_unknown
                                    : !tt_sentencepiece_is_control(tokenizer->model, *id)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected %s to be %s, found a piece of ordinary text", path, piece,
                            strcmp(piece, "[UNK]") == 0 ? "the unknown piece" : "a control piece");
    }
    return TT_OK;
}

static bool is_special(const tt_tokenizer *tokenizer, int id)
{
    const tt_special_ids *special = &tokenizer->special;
    return id == special->pad || id == special->unknown || id == special->cls ||
           id == special->sep || id == special->mask;
}

/* In SentencePiece the unknown piece stands for characters without a piece; a space mark before
 * them is a piece of its own, so it always continues a word. */
static uint8_t token_bits(const tt_tokenizer *tokenizer, int id)
{
    static const char space_mark[] = "\xE2\x96\x81"; /* U+2581 */
    const char *piece = piece_of(tokenizer, id);
    if (tokenizer->words != NULL) {
        bool continues = strncmp(piece, "##", 2) == 0 && piece[2] != '\0';
        return is_special(tokenizer, id) ? TT_TOKEN_NEVER_MASKED
               : continues               ? TT_TOKEN_CONTINUES_WORD
                                         : 0;
    }
    if (tt_sentencepiece_is_unknown(tokenizer->model, id)) {
        return TT_TOKEN_NEVER_MASKED | TT_TOKEN_CONTINUES_WORD;
    }
    if (tt_sentencepiece_is_control(tokenizer->model, id)) {
        return TT_TOKEN_NEVER_MASKED;
    }
    return strncmp(piece, space_mark, sizeof space_mark - 1) == 0 ? 0 : TT_TOKEN_CONTINUES_WORD;
}

static tt_status fill_tables(tt_tokenizer *tokenizer, const char *path, tt_error *error)
{
    int count = tokenizer->vocabulary_size;
    tokenizer->token_bits = calloc((size_t)count, 1);
    XXH64_state_t *hash = XXH64_createState();
    if (tokenizer->token_bits == NULL || hash == NULL) {
        XXH64_freeState(hash);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for %d pieces", path, count);
    }
    XXH64_reset(hash, 0);
    for (int id = 0; id < count; id++) {
        tokenizer->token_bits[id] = token_bits(tokenizer, id);
        const char *piece = piece_of(tokenizer, id);
        XXH64_update(hash, piece, strlen(piece));
        XXH64_update(hash, "\n", 1);
    }
    tokenizer->vocabulary_hash = XXH64_digest(hash);
    XXH64_freeState(hash);
    return TT_OK;
}

static tt_status fill_tokenizer(tt_tokenizer *tokenizer, const char *path, tt_error *error)
{
    tokenizer->vocabulary_size = tokenizer->words != NULL ? tt_wordpiece_size(tokenizer->words)
                                                          : tt_sentencepiece_size(tokenizer->model);
    if (tokenizer->vocabulary_size < 6) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected a SentencePiece model of at least 6 pieces, found %d",
                            path, tokenizer->vocabulary_size);
    }
    tt_special_ids *special = &tokenizer->special;
    TT_TRY(find_special(tokenizer, path, "[PAD]", &special->pad, error));
    TT_TRY(find_special(tokenizer, path, "[UNK]", &special->unknown, error));
    TT_TRY(find_special(tokenizer, path, "[CLS]", &special->cls, error));
    TT_TRY(find_special(tokenizer, path, "[SEP]", &special->sep, error));
    TT_TRY(find_special(tokenizer, path, "[MASK]", &special->mask, error));
    return fill_tables(tokenizer, path, error);
}

static tt_status load_model(tt_tokenizer *tokenizer, const char *path, const void *bytes,
                            size_t size, tt_error *error)
{
    char message[512] = "";
    tokenizer->model = tt_sentencepiece_load(bytes, size, message, sizeof message);
    return tokenizer->model != NULL
               ? TT_OK
               : tt_error_set(error, TT_INVALID_INPUT,
                              "%s: expected a SentencePiece model or a WordPiece vocabulary, found "
                              "a file of %zu bytes that is neither (%s)",
                              path, size, message);
}

static tt_status tokenizer_from_bytes(const char *path, const void *bytes, size_t size,
                                      tt_tokenizer **tokenizer, tt_error *error)
{
    *tokenizer = calloc(1, sizeof **tokenizer);
    if (*tokenizer == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory", path);
    }
    (*tokenizer)->hash = XXH64(bytes, size, 0);
    tt_status status = tt_wordpiece_recognize(path, bytes, size)
                           ? tt_wordpiece_load(path, bytes, size, &(*tokenizer)->words, error)
                           : load_model(*tokenizer, path, bytes, size, error);
    if (status == TT_OK) {
        status = fill_tokenizer(*tokenizer, path, error);
    }
    if (status != TT_OK) {
        tt_tokenizer_close(tokenizer);
    }
    return status;
}

tt_status tt_tokenizer_open(const char *path, tt_tokenizer **tokenizer, tt_error *error)
{
    *tokenizer = NULL;
    void *bytes = NULL;
    size_t size = 0;
    TT_TRY(tt_file_read(path, MODEL_FILE_LIMIT, &bytes, &size, error));
    tt_status status = tokenizer_from_bytes(path, bytes, size, tokenizer, error);
    free(bytes);
    return status;
}

void tt_tokenizer_close(tt_tokenizer **tokenizer)
{
    if (*tokenizer != NULL) {
        if ((*tokenizer)->model != NULL) {
            tt_sentencepiece_free((*tokenizer)->model);
        }
        tt_wordpiece_free((*tokenizer)->words);
        free((*tokenizer)->token_bits);
        free(*tokenizer);
        *tokenizer = NULL;
    }
}

int tt_tokenizer_vocabulary_size(const tt_tokenizer *tokenizer)
{
    return tokenizer->vocabulary_size;
}

tt_special_ids tt_tokenizer_special(const tt_tokenizer *tokenizer)
{
    return tokenizer->special;
}

uint64_t tt_tokenizer_hash(const tt_tokenizer *tokenizer)
{
    return tokenizer->hash;
}

uint64_t tt_tokenizer_vocabulary_hash(const tt_tokenizer *tokenizer)
{
    return tokenizer->vocabulary_hash;
}

const char *tt_tokenizer_piece(const tt_tokenizer *tokenizer, int32_t id)
{
    return piece_of(tokenizer, id);
}

const uint8_t *tt_tokenizer_token_bits(const tt_tokenizer *tokenizer)
{
    return tokenizer->token_bits;
}

static bool grow_encoding(tt_encoding *encoding)
{
    int64_t capacity = encoding->capacity ? 2 * encoding->capacity : 256;
    int32_t *ids = realloc(encoding->ids, (size_t)capacity * sizeof *ids);
    encoding->ids = ids ? ids : encoding->ids;
    uint32_t *begin = realloc(encoding->begin, (size_t)capacity * sizeof *begin);
    encoding->begin = begin ? begin : encoding->begin;
    uint32_t *end = realloc(encoding->end, (size_t)capacity * sizeof *end);
    encoding->end = end ? end : encoding->end;
    if (ids == NULL || begin == NULL || end == NULL) {
        return false;
    }
    encoding->capacity = capacity;
    return true;
}

static void add_piece(void *user, int32_t id, uint32_t begin, uint32_t end)
{
    tt_encoding *encoding = user;
    if (encoding->count == encoding->capacity && !grow_encoding(encoding)) {
        encoding->failed = true;
        return;
    }
    encoding->ids[encoding->count] = id;
    encoding->begin[encoding->count] = begin;
    encoding->end[encoding->count] = end;
    encoding->count++;
}

tt_status tt_tokenizer_encode(const tt_tokenizer *tokenizer, const char *text, size_t length,
                              tt_encoding *encoding, tt_error *error)
{
    char message[512];
    encoding->count = 0;
    encoding->failed = false;
    if (length > INT_MAX) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "encoding a text: expected at most 2147483647 bytes, found %zu",
                            length);
    }
    if (tokenizer->words != NULL) {
        tt_wordpiece_encode(tokenizer->words, text, length, tokenizer->special.unknown, add_piece,
                            encoding);
    } else if (!tt_sentencepiece_encode(tokenizer->model, text, length, add_piece, encoding,
                                        message, sizeof message)) {
        return tt_error_set(error, TT_DEVICE_FAILED, "encoding a text of %zu bytes: %s", length,
                            message);
    }
    if (encoding->failed) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "encoding a text of %zu bytes: no memory",
                            length);
    }
    return TT_OK;
}

void tt_encoding_free(tt_encoding *encoding)
{
    free(encoding->ids);
    free(encoding->begin);
    free(encoding->end);
    *encoding = (tt_encoding){0};
}

/* Pieces with spaces between words. */
static char *join_words(const tt_tokenizer *tokenizer, const int32_t *ids, int64_t count)
{
    size_t room = 1, used = 0;
    for (int64_t i = 0; i < count; i++) {
        room += strlen(piece_of(tokenizer, ids[i])) + 1;
    }
    char *text = malloc(room);
    for (int64_t i = 0; text != NULL && i < count; i++) {
        const char *piece = piece_of(tokenizer, ids[i]);
        bool continues = (tokenizer->token_bits[ids[i]] & TT_TOKEN_CONTINUES_WORD) != 0;
        if (is_special(tokenizer, ids[i])) {
            continue;
        }
        used += (size_t)snprintf(text + used, room - used, "%s%s",
                                 continues || used == 0 ? "" : " ", piece + (continues ? 2 : 0));
    }
    if (text != NULL) {
        text[used] = '\0';
    }
    return text;
}

tt_status tt_tokenizer_decode(const tt_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                              char **text, tt_error *error)
{
    char message[512] = "no memory";
    *text = NULL;
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= tokenizer->vocabulary_size) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "decoding: expected ids below %d, found %d at position %lld",
                                tokenizer->vocabulary_size, ids[i], (long long)i);
        }
    }
    *text = tokenizer->words != NULL ? join_words(tokenizer, ids, count)
                                     : tt_sentencepiece_decode(tokenizer->model, ids, (size_t)count,
                                                               message, sizeof message);
    if (*text == NULL) {
        return tt_error_set(error, TT_DEVICE_FAILED, "decoding %lld ids: %s", (long long)count,
                            message);
    }
    return TT_OK;
}

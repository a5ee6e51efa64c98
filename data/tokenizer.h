/* Sub-word tokenizer: a SentencePiece model, or a WordPiece vocabulary as BERT's (wordpiece.h),
 * with the five special pieces [PAD], [UNK], [CLS], [SEP] and [MASK]. Training makes SentencePiece
 * models and puts them at the ids 0 to 4; everyone else asks the model for them.
 *
 * The special pieces are control pieces: text never yields them, not even a literal "[MASK]".
 * Encoding may run in several threads on one tokenizer, each with its own tt_encoding. */
#ifndef TT_DATA_TOKENIZER_H
#define TT_DATA_TOKENIZER_H

#include "core/error.h"
#include "data/shard.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tt_tokenizer tt_tokenizer;

typedef enum { TT_TOKENIZER_UNIGRAM, TT_TOKENIZER_BPE } tt_tokenizer_model;

typedef struct {
    tt_tokenizer_model model;
    int vocabulary_size;       /* special pieces included */
    bool lower_case;           /* fold case on top of NFKC (nmt_nfkc_cf instead of nmt_nfkc) */
    double character_coverage; /* share of all characters that get a piece, in [0.98, 1] */
    int64_t max_lines;         /* train on at most this many lines, drawn evenly from all */
    int threads;               /* another number may move scores in their last bits */
    uint32_t seed;             /* settles which lines are drawn */
} tt_tokenizer_options;

/* unigram, 8,000 pieces, case kept, coverage 0.9995, 1,000,000 lines, 2 threads, seed 1. */
tt_tokenizer_options tt_tokenizer_default_options(void);

/* Hands out the training text: sets `*line` to the next line (NUL-terminated UTF-8, valid until the
 * next call) or to NULL at the end. */
typedef tt_status (*tt_tokenizer_next_line)(void *user, const char **line, tt_error *error);

/* Trains a model and writes it to `path`. The same lines and options give the same file. Fails
 * where the text is empty, or holds too few or too many different characters for the vocabulary. */
tt_status tt_tokenizer_train(const tt_tokenizer_options *options, tt_tokenizer_next_line next,
                             void *user, const char *path, tt_error *error);

/* Opens a model or a vocabulary. Refuses a file that is neither, lacks one of the five special
 * pieces, or has one that ordinary text could yield. */
tt_status tt_tokenizer_open(const char *path, tt_tokenizer **tokenizer, tt_error *error);
/* Frees everything and sets the pointer to NULL. */
void tt_tokenizer_close(tt_tokenizer **tokenizer);

int tt_tokenizer_vocabulary_size(const tt_tokenizer *tokenizer);
tt_special_ids tt_tokenizer_special(const tt_tokenizer *tokenizer);
/* xxh64 of the model file, seed 0. */
uint64_t tt_tokenizer_hash(const tt_tokenizer *tokenizer);
/* xxh64 of all pieces, each followed by a newline, seed 0. */
uint64_t tt_tokenizer_vocabulary_hash(const tt_tokenizer *tokenizer);
/* The piece with this id, 0 <= id < vocabulary size. */
const char *tt_tokenizer_piece(const tt_tokenizer *tokenizer, int32_t id);

/* TT_TOKEN_ bits of every id, [vocabulary size], owned by the tokenizer: special and other control
 * pieces are never masked; a piece without a leading space mark (U+2581), in WordPiece one with a
 * leading "##", continues the word before it. */
const uint8_t *tt_tokenizer_token_bits(const tt_tokenizer *tokenizer);

/* Pieces of one text, in order. Start with all zero; reused by the next call; freed once at the
 * end. */
typedef struct {
    int64_t count, capacity;
    int32_t *ids;
    uint32_t *begin, *end; /* piece i stands for the bytes [begin[i], end[i]) of the text */
    bool failed;           /* used while encoding */
} tt_encoding;

/* Encodes `length` bytes of text, at most 2^31 - 1. Invalid UTF-8 becomes [UNK]; WordPiece drops
 * it.
 */
tt_status tt_tokenizer_encode(const tt_tokenizer *tokenizer, const char *text, size_t length,
                              tt_encoding *encoding, tt_error *error);
void tt_encoding_free(tt_encoding *encoding);

/* The text of `count` ids, NUL-terminated, which the caller frees. Control pieces give no text. */
tt_status tt_tokenizer_decode(const tt_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                              char **text, tt_error *error);

#endif

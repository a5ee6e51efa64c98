/* From a corpus to shards: documents are split into sentences, tokenised, paired
 * (data/sentence_pairs.h) and written, with masks drawn now (static) or while training (dynamic).
 *
 * Documents are buffered until `buffer_tokens` tokens have come together; pairs, random next
 * sentences among them, are made within the buffer. So memory is bounded by about 4 bytes a token
 * of the buffer and of one document, whatever the size of the corpus. Documents of the validation
 * split are buffered and written apart. The result is a pure function of corpus, tokenizer and
 * options. */
#ifndef TT_DATA_PREPARE_H
#define TT_DATA_PREPARE_H

#include "data/corpus.h"
#include "data/shard.h"
#include "data/tokenizer.h"

typedef struct {
    const char *output;         /* folder for train_*.hdf5 and validation_*.hdf5; made if missing */
    const char *tokenizer_path; /* copied beside the shards as tokenizer.model; NULL: not copied */
    const char *source;         /* the shards' attribute of this name */
    int sequence_length;        /* 8 to 65536 */
    tt_masking_kind masking;
    /* Static masking only. */
    int max_predictions;     /* room for masked tokens in a row */
    double mask_probability; /* 0.15 */
    bool whole_word;
    double short_probability;   /* 0.1 */
    int duplicates;             /* times that each training document is paired anew */
    double validation_fraction; /* share of documents, in [0, 1) */
    int shards;                 /* training shards; 0: by rows_per_shard */
    int64_t rows_per_shard;     /* also for validation */
    int64_t buffer_tokens;
    uint64_t seed;
    bool overwrite; /* replace shards that are there already */
} tt_prepare_options;

typedef struct {
    int64_t documents, sentences, tokens; /* of the corpus */
    int64_t unknown_tokens;               /* that are [UNK] */
    int64_t validation_documents;
    int64_t train_rows, validation_rows;
    int64_t row_tokens;       /* in all rows, without padding */
    int64_t random_next_rows; /* label 1 */
    int64_t masked_tokens;    /* static masking only */
    int train_shards, validation_shards;
    int64_t buffer_bytes; /* most memory that the buffers took */
} tt_prepare_summary;

/* BERT's numbers: sequence length 128, dynamic masking, one duplicate, no validation, 131,072 rows
 * a shard, a buffer of 33,554,432 tokens, seed 1. */
tt_prepare_options tt_prepare_default_options(void);

/* Called after every document with what has been done so far. */
typedef void (*tt_prepare_progress)(void *user, const tt_corpus *corpus,
                                    const tt_prepare_summary *summary);

/* Writes the shards of a corpus. Fails, leaving no shard behind, on an error of the corpus, where
 * shards stand there already, where there are fewer documents than shards, or where a split asked
 * for gets no row. `progress` may be NULL. */
tt_status tt_prepare_shards(tt_corpus *corpus, const tt_tokenizer *tokenizer,
                            const tt_prepare_options *options, tt_prepare_progress progress,
                            void *user, tt_prepare_summary *summary, tt_error *error);

/* Writes the documents of a corpus as plain text, one line a paragraph and a blank line after each
 * document. Of `summary` only the number of documents is filled in. */
tt_status tt_prepare_text(tt_corpus *corpus, const char *path, tt_prepare_progress progress,
                          void *user, tt_prepare_summary *summary, tt_error *error);

/* Trains a tokenizer on the sentences of a corpus. */
tt_status tt_prepare_tokenizer(tt_corpus *corpus, const tt_tokenizer_options *options,
                               const char *path, tt_prepare_progress progress, void *user,
                               tt_prepare_summary *summary, tt_error *error);

/* The room for masked tokens that is usual for a length: 20 for 128, 80 for 512. */
int tt_prepare_usual_predictions(int sequence_length);

#endif

/* HDF5 shards of tokenised sequences, one row a sequence.
 *
 * Two layouts are read. NVIDIA's BERT layout (no attributes): input_ids [N, S], input_mask [N, S],
 * segment_ids [N, S], masked_lm_positions [N, P], masked_lm_ids [N, P], next_sentence_labels [N], of any
 * integer type, chunked and compressed as they like; the first zero in masked_lm_positions ends a row's
 * list. Our own adds attributes (format version, sequence length, vocabulary size and hash, tokenizer hash,
 * special ids, source, seed), and for dynamic masking leaves the two masked_lm sets out and stores
 * special_tokens_mask [N, S] instead (1: never masked).
 *
 * Opening checks what can be checked without reading rows; reading checks every row. A failure names
 * file, dataset, row, the value found and the one expected. */
#ifndef TT_DATA_SHARD_H
#define TT_DATA_SHARD_H

#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { TT_SHARD_VERSION = 1 };

typedef enum { TT_MASKING_STATIC, TT_MASKING_DYNAMIC } tt_masking_kind;

typedef struct {
    int32_t pad, unknown, cls, sep, mask;
} tt_special_ids;

/* What a shard's attributes say; for NVIDIA's layout version is 0 and unknown fields are 0, "" or -1. */
typedef struct {
    int version;
    tt_masking_kind masking;
    int64_t rows;
    int sequence_length;
    int max_predictions; /* P; 0 for dynamic masking */
    int vocabulary_size;
    uint64_t tokenizer_hash; /* xxh64 of the tokenizer file */
    tt_special_ids special;
    char source[256];
    uint64_t seed;
} tt_shard_info;

/* A shard's rows in memory: arrays as in the file, in the narrowest type that fits. */
typedef struct {
    tt_shard_info info;
    int32_t *input_ids;              /* [rows, S] */
    uint8_t *attention_mask;         /* [rows, S]: 1 = token, 0 = padding */
    uint8_t *segment_ids;            /* [rows, S] */
    uint8_t *special_tokens_mask;    /* [rows, S]; NULL for static masking */
    int32_t *masked_positions;       /* [rows, P]; 0 ends the list; NULL for dynamic masking */
    int32_t *masked_ids;             /* [rows, P] */
    uint8_t *next_sentence_labels;   /* [rows]: 1 = the second segment is a random one */
} tt_shard;

#endif

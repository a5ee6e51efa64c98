/* HDF5 shards of tokenised sequences, one row a sequence.
 *
 * Two layouts are read. NVIDIA's BERT layout (no attributes): input_ids [N, S], input_mask [N, S],
 * segment_ids [N, S], masked_lm_positions [N, P], masked_lm_ids [N, P], next_sentence_labels [N],
 * of any integer type, chunked and compressed as they like; the first zero in masked_lm_positions
 * ends a row's list. Our own adds attributes (data/README.md lists them), and for dynamic masking
 * leaves the two masked_lm sets out and stores special_tokens_mask [N, S] instead.
 *
 * Inspecting checks what can be checked without reading rows; reading checks every row. A failure
 * names file, dataset, row, the value found and the one expected.
 *
 * Every function may be called from any thread: one lock guards the HDF5 library, which is not
 * thread-safe by itself. A writer belongs to one thread at a time. */
#ifndef TT_DATA_SHARD_H
#define TT_DATA_SHARD_H

#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { TT_SHARD_VERSION = 1 };

/* TT_MASKING_NONE: rows of a task, in memory only; nothing is predicted but their label. */
typedef enum { TT_MASKING_STATIC, TT_MASKING_DYNAMIC, TT_MASKING_NONE } tt_masking_kind;

/* Bits of an entry of special_tokens_mask. */
enum {
    TT_TOKEN_NEVER_MASKED = 1,  /* a special token or padding */
    TT_TOKEN_CONTINUES_WORD = 2 /* belongs to the word of the token before it */
};

typedef struct {
    int32_t pad, unknown, cls, sep, mask;
} tt_special_ids;

/* What a shard's attributes say; for NVIDIA's layout version is 0 and unknown fields are 0, "" or
 * -1. */
typedef struct {
    int version;
    tt_masking_kind masking;
    int64_t rows; /* at most INT32_MAX */
    int sequence_length;
    int max_predictions; /* P; 0 for dynamic masking */
    int vocabulary_size;
    uint64_t vocabulary_hash; /* xxh64 of all pieces, each followed by a newline; 0: not known */
    uint64_t tokenizer_hash;  /* xxh64 of the tokenizer file */
    tt_special_ids special;
    char source[256]; /* where the text came from, for people */
    uint64_t seed;
} tt_shard_info;

/* A shard's rows in memory: arrays as in the file, in the narrowest type that fits. */
typedef struct {
    tt_shard_info info;
    int32_t *input_ids;            /* [rows, S] */
    uint8_t *attention_mask;       /* [rows, S]: 1 = token, 0 = padding; ones come first */
    uint8_t *segment_ids;          /* [rows, S] */
    uint8_t *special_tokens_mask;  /* [rows, S], TT_TOKEN_ bits; NULL for static masking */
    int32_t *masked_positions;     /* [rows, P]; 0 ends the list; NULL for dynamic masking */
    int32_t *masked_ids;           /* [rows, P] */
    uint8_t *next_sentence_labels; /* [rows]: 1 = the second segment is a random one; of a task's
                                      rows: the class */
} tt_shard;

/* What the caller can use; a field of 0 accepts everything. */
typedef struct {
    int sequence_length;
    int vocabulary_size;     /* ids at or above it, or a shard made for more of them, are refused */
    int max_predictions;     /* a shard with room for more masked positions is refused */
    uint64_t tokenizer_hash; /* compared where the shard knows its own */
} tt_shard_expectations;

/* Attributes and shapes of the file at `path`, without reading rows. Refuses a file that is not
 * HDF5 or is cut short, an unknown version, missing datasets, types that are not integers, wrong
 * ranks, datasets that disagree with each other or with the attributes, and a shard without rows.
 */
tt_status tt_shard_inspect(const char *path, tt_shard_info *info, tt_error *error);

/* Compares `info` of `path` with what the caller can use. */
tt_status tt_shard_expect(const char *path, const tt_shard_info *info,
                          const tt_shard_expectations *expectations, tt_error *error);

/* Reads the whole file into memory and checks every value: masks are ones followed by zeros with at
 * least one token; ids lie in the vocabulary; segments and labels are 0 or 1; masked positions
 * ascend, lie inside the row's tokens, and nothing follows the end of their list.
 * `expectations` may be NULL. Free with tt_shard_free. */
tt_status tt_shard_read(const char *path, const tt_shard_expectations *expectations,
                        tt_shard **shard, tt_error *error);
/* Sets the pointer to NULL; NULL inside is fine. */
void tt_shard_free(tt_shard **shard);

/* One row to write. The writer pads it to the sequence length. */
typedef struct {
    int length;                         /* tokens, [CLS] and [SEP] included */
    const int32_t *input_ids;           /* [length]; for static masking with the masks applied */
    const uint8_t *segment_ids;         /* [length] */
    const uint8_t *special_tokens_mask; /* [length], TT_TOKEN_ bits; dynamic masking only */
    int masked_count;                   /* static masking only, as are the next two */
    const int32_t *masked_positions;    /* [masked_count], ascending, never 0 */
    const int32_t *masked_ids;          /* [masked_count]: the ids before masking */
    int next_sentence_label;            /* 0 or 1 */
} tt_shard_row;

typedef struct tt_shard_writer tt_shard_writer;

/* Starts a shard that will stand at `path` once it is closed; until then it is `path`.tmp, and what
 * a broken run left under that name is overwritten. Of `info`, version and rows are ignored. Memory
 * stays at a few hundred rows whatever the number of rows. Static shards can be read by NVIDIA's
 * reader too. */
tt_status tt_shard_writer_create(const char *path, const tt_shard_info *info,
                                 tt_shard_writer **writer, tt_error *error);
/* Appends a row after checking it as the reader would. After an error only tt_shard_writer_abandon
 * may follow. */
tt_status tt_shard_writer_append(tt_shard_writer *writer, const tt_shard_row *row, tt_error *error);
/* Rows appended so far. */
int64_t tt_shard_writer_rows(const tt_shard_writer *writer);
/* Writes the attributes, syncs the file and gives it its name. Frees the writer and sets the
 * pointer to NULL in any case; on an error, a shard without rows among them, no file is left. */
tt_status tt_shard_writer_close(tt_shard_writer **writer, tt_error *error);
/* Frees the writer and removes the unfinished file; NULL inside is fine. */
void tt_shard_writer_abandon(tt_shard_writer **writer);

#endif

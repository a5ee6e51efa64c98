/* What the reader and the writer of shards share; private to them. */
#ifndef TT_DATA_SHARD_HDF5_H
#define TT_DATA_SHARD_HDF5_H

#include "data/shard.h"

#include <hdf5.h>
#include <stddef.h>

#define TT_SHARD_INPUT_IDS "input_ids"
#define TT_SHARD_INPUT_MASK "input_mask"
#define TT_SHARD_SEGMENT_IDS "segment_ids"
#define TT_SHARD_SPECIAL_TOKENS_MASK "special_tokens_mask"
#define TT_SHARD_MASKED_POSITIONS "masked_lm_positions"
#define TT_SHARD_MASKED_IDS "masked_lm_ids"
#define TT_SHARD_LABELS "next_sentence_labels"

#define TT_SHARD_VERSION_ATTRIBUTE "ttrain_shard_version"
#define TT_SHARD_MASKING_ATTRIBUTE "masking"
#define TT_SHARD_ROWS_ATTRIBUTE "rows"
#define TT_SHARD_SOURCE_ATTRIBUTE "source"

/* Attributes that are copies of a field of tt_shard_info. */
typedef struct {
    const char *name;
    size_t offset; /* in tt_shard_info */
} tt_shard_field;

enum { TT_SHARD_INTS = 8, TT_SHARD_HASHES = 3 };
extern const tt_shard_field tt_shard_ints[TT_SHARD_INTS];     /* 32-bit, signed */
extern const tt_shard_field tt_shard_hashes[TT_SHARD_HASHES]; /* 64-bit, unsigned */

/* Refuses attributes that no shard can have. */
tt_status tt_shard_check_info(const char *path, const tt_shard_info *info, tt_error *error);

/* HDF5 is not thread-safe as Debian builds it, and it prints an error stack where it fails. Between
 * these two calls the library belongs to the caller and is silent. */
void tt_shard_hdf5_lock(void);
void tt_shard_hdf5_unlock(void);

/* Fills the error with "path: what: HDF5: the cause of its latest failure". */
tt_status tt_shard_hdf5_failed(const char *path, const char *what, tt_error *error);

#endif

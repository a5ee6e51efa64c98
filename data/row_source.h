/* Where a loader's rows come from: pieces that are read into memory one at a time, each a tt_shard.
 * A piece is an HDF5 shard, or the rows of a task that stand in memory already. */
#ifndef TT_DATA_ROW_SOURCE_H
#define TT_DATA_ROW_SOURCE_H

#include "data/shard.h"

typedef struct tt_row_source tt_row_source;

struct tt_row_source {
    int count;                /* pieces */
    const char *const *names; /* [count]: of files, for errors */
    void *user;
    /* What the piece holds, without its rows. */
    tt_status (*inspect)(const tt_row_source *source, int index, tt_shard_info *info,
                         tt_error *error);
    /* Its rows, until release. Called by one thread at a time. */
    tt_status (*read)(const tt_row_source *source, int index,
                      const tt_shard_expectations *expectations, tt_shard **shard, tt_error *error);
    /* Sets the pointer to NULL; NULL inside is fine. Called from any thread. */
    void (*release)(const tt_row_source *source, tt_shard **shard);
};

/* HDF5 shards, each read anew. `paths` stays the caller's. */
tt_row_source tt_row_source_files(const char *const *paths, int count);
/* Shards in memory, which stay the caller's, as `names` does; nothing is freed. */
tt_row_source tt_row_source_memory(tt_shard *const *shards, const char *const *names, int count);

#endif

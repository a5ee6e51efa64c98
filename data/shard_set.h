/* A set of shards written together: <folder>/<prefix>_00000.hdf5, <prefix>_00001.hdf5, ... They
 * appear all at once when the set is closed; until then they are in <folder>/incomplete/. */
#ifndef TT_DATA_SHARD_SET_H
#define TT_DATA_SHARD_SET_H

#include "data/shard.h"

typedef struct tt_shard_set tt_shard_set;

typedef struct {
    const char *folder;     /* exists */
    const char *prefix;     /* "train" */
    int shards;             /* this many, filled evenly; all are open at once */
    int64_t rows_per_shard; /* where shards is 0: as many as it takes, one after the other */
} tt_shard_set_options;

enum { TT_SHARD_SET_MOST_OPEN = 512 };

/* Removes what a broken run left of this set in <folder>/incomplete/. */
tt_status tt_shard_set_open(const tt_shard_set_options *options, const tt_shard_info *info,
                            tt_shard_set **set, tt_error *error);
/* Says that the rows to come are of another document. With a given number of shards, rows of one
 * document go to one shard, the one with the fewest rows. */
void tt_shard_set_start_document(tt_shard_set *set);
tt_status tt_shard_set_append(tt_shard_set *set, const tt_shard_row *row, tt_error *error);
int64_t tt_shard_set_rows(const tt_shard_set *set);
int tt_shard_set_shards(const tt_shard_set *set);
/* Closes all shards, still out of sight. Fails where one of a given number of shards got no row. */
tt_status tt_shard_set_finish(tt_shard_set *set, tt_error *error);
/* Moves the finished shards to their place, after removing older ones of this prefix. Frees the set
 * in any case and sets the pointer to NULL; on an error no shard of this set is left. */
tt_status tt_shard_set_publish(tt_shard_set **set, tt_error *error);
/* Frees the set and removes its files; NULL inside is fine. */
void tt_shard_set_abandon(tt_shard_set **set);

/* Fails, naming one, where shards <prefix>_*.hdf5 stand in the folder. */
tt_status tt_shard_set_refuse_existing(const char *folder, const char *prefix, tt_error *error);
/* Removes the shards <prefix>_*.hdf5 of the folder. */
tt_status tt_shard_set_remove_existing(const char *folder, const char *prefix, tt_error *error);

#endif

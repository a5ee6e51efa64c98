/* Batches for training: a global order of samples that every rank derives by itself, and a thread
 * that reads ahead.
 *
 * Order. Sample number n of a run belongs to epoch n / rows and place n % rows. An epoch's order is
 * a pure function of (seed, epoch): shards in a shuffled order, and within a shard its rows in a
 * shuffled order. Step t takes samples [t * global_batch, (t + 1) * global_batch), rank r the r-th
 * of `world_size` equal slices. So another number of ranks sees the same samples in the same order,
 * seeking to a step costs nothing, and a batch may run over the end of an epoch.
 *
 * Masking. Static masks come from the file; dynamic ones are drawn from (seed, sample number), so
 * they too are the same for any number of ranks. */
#ifndef TT_DATA_LOADER_H
#define TT_DATA_LOADER_H

#include "data/masking.h"
#include "data/shard.h"

typedef struct tt_loader tt_loader;

typedef struct {
    const char *const *paths; /* shards, sorted by name */
    int path_count;
    int sequence_length;     /* what the model expects; a shard that differs is refused */
    int vocabulary_size;     /* ids at or above it are refused */
    uint64_t tokenizer_hash; /* 0: not checked; shards without attributes are not checked */
    int max_predictions;     /* a row's room for masked positions; a shard with more is refused */
    tt_masking_options masking; /* used for shards without masks */
    uint64_t seed;
    int64_t global_batch;
    int rank, world_size; /* global_batch % world_size == 0 */
    int64_t first_step;
    bool shuffle;      /* false: file order, for validation */
    int64_t last_step; /* read ahead no further than this many steps in all; 0: no end */
} tt_loader_options;

/* One rank's share of a step, all arrays owned by the loader. */
typedef struct {
    int64_t rows; /* global_batch / world_size */
    int sequence_length, max_predictions;
    int32_t *input_ids;            /* [rows, S], masks applied */
    uint8_t *attention_mask;       /* [rows, S] */
    int32_t *segment_ids;          /* [rows, S] */
    int32_t *masked_positions;     /* [rows, P]; -1 from the end of a row's list on */
    int32_t *masked_labels;        /* [rows, P]; -1 likewise */
    int32_t *next_sentence_labels; /* [rows]; -1 for rows that only fill up a last batch */
    int64_t masked_count;          /* entries >= 0 in masked_labels */
    int64_t first_sample;          /* global number of row 0 */
    double wait_seconds;           /* time the caller waited for this batch */
} tt_batch;

/* Opens every shard, checks that they agree with the options and each other, and starts the thread.
 * Refuses: no path, an empty shard, fewer rows in all than world_size. */
tt_status tt_loader_open(const tt_loader_options *options, tt_loader **loader, tt_error *error);
/* The next step's batch; valid until the next call. */
tt_status tt_loader_next(tt_loader *loader, tt_batch **batch, tt_error *error);
/* Rows in all shards together, i.e. samples in an epoch. */
int64_t tt_loader_rows(const tt_loader *loader);
/* A hash of every shard's rows count, lengths and attributes, for checkpoints and logs. */
uint64_t tt_loader_fingerprint(const tt_loader *loader);
/* Stops the thread and frees everything; sets the pointer to NULL. */
void tt_loader_close(tt_loader **loader);

#endif

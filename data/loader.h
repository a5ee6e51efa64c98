/* Batches for training: a global order of samples that every rank derives by itself, and threads
 * that read ahead.
 *
 * Order. Sample number n of a run belongs to epoch n / rows and place n % rows. An epoch's order is
 * a pure function of (seed, epoch): shards in a shuffled order, and within a shard its rows in a
 * shuffled order. Step t takes samples [t * global_batch, (t + 1) * global_batch), rank r the r-th
 * of `world_size` equal slices. So another number of ranks sees the same samples in the same order,
 * seeking to a step costs nothing, and a batch may run over the end of an epoch. Shards may have
 * any number of rows each.
 *
 * Without shuffling, for validation, samples come in the order of the files, each once; rows
 * beyond the epoch's end only fill up a batch.
 *
 * Masking. Static masks come from the file; dynamic ones are drawn from (seed, sample number), so
 * they too are the same for any number of ranks.
 *
 * Threads. One reads the next shard while the current one is used; it alone calls HDF5. One
 * assembles up to three batches ahead. Memory stays below three shards. A failure of either comes
 * out of tt_loader_next once the batches before it are used up. */
#ifndef TT_DATA_LOADER_H
#define TT_DATA_LOADER_H

#include "data/masking.h"
#include "data/row_source.h"

typedef struct tt_loader tt_loader;

typedef struct {
    const char *const *paths; /* HDF5 shards, sorted by name; used where `source` is NULL */
    int path_count;
    const tt_row_source *source; /* copied; what it points to must outlive the loader, its names
                                    excepted */
    int sequence_length;         /* what the model expects; a shard that differs is refused */
    int vocabulary_size;         /* ids at or above it are refused */
    uint64_t tokenizer_hash;     /* 0: not checked; shards without attributes are not checked */
    int max_predictions; /* a row's room for masked positions; a shard with more is refused; may
                            be 0 where the source's rows have none */
    tt_masking_options masking; /* used for shards without masks: probability and whole_word; the
                                   other fields come from the shards and max_predictions */
    uint64_t seed;
    int64_t global_batch;
    int rank, world_size; /* global_batch % world_size == 0 */
    int64_t first_step;
    bool shuffle;      /* false: file order, for validation */
    int64_t last_step; /* the number of steps in all, after which the stream ends; 0: no end
                          with shuffling, else the steps that an epoch takes */
} tt_loader_options;

/* One rank's share of a step, all arrays owned by the loader. A row that only fills up a batch has
 * one token, the padding id at place 0, and -1 for all labels and positions. */
typedef struct {
    int64_t rows; /* global_batch / world_size */
    int sequence_length, max_predictions;
    int32_t *input_ids;            /* [rows, S], masks applied */
    uint8_t *attention_mask;       /* [rows, S] */
    int32_t *segment_ids;          /* [rows, S] */
    int32_t *masked_positions;     /* [rows, P]; -1 from the end of a row's list on */
    int32_t *masked_labels;        /* [rows, P]; -1 likewise */
    int32_t *next_sentence_labels; /* [rows]: of a task's rows their class; -1 for rows that only
                                      fill up a last batch */
    int64_t masked_count;          /* entries >= 0 in masked_labels */
    int64_t first_sample;          /* global number of row 0 */
    double wait_seconds;           /* time the caller waited for this batch */
} tt_batch;

/* Frees the arrays, and sets the pointers to NULL. For batches that are not a loader's. */
void tt_batch_free(tt_batch *batch);

/* Opens every shard, checks that they agree with the options and each other, and starts the
 * threads. Refuses: no path, an empty shard, shards that do not go together (both are named), fewer
 * rows in all than world_size. The options are copied. */
tt_status tt_loader_open(const tt_loader_options *options, tt_loader **loader, tt_error *error);
/* The next step's batch, first that of first_step; valid until the next call. NULL after the
 * last step. After a failure every call fails in the same way. */
tt_status tt_loader_next(tt_loader *loader, tt_batch **batch, tt_error *error);
/* Rows in all shards together, i.e. samples in an epoch. */
int64_t tt_loader_rows(const tt_loader *loader);
/* A hash of every shard's number of rows, lengths and attributes, for checkpoints and logs. */
uint64_t tt_loader_fingerprint(const tt_loader *loader);
/* Stops the threads and frees everything; sets the pointer to NULL. NULL inside is fine. */
void tt_loader_close(tt_loader **loader);

#endif

/* The order in which samples are seen: pure functions of (seed, epoch), so that every rank derives
 * the same one and any step is reached without reading what lies before it. */
#ifndef TT_DATA_SAMPLE_ORDER_H
#define TT_DATA_SAMPLE_ORDER_H

#include "core/error.h"
#include "core/random.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t seed;
    bool shuffle; /* false: shards and rows in the order of the files, in every epoch */
    int shard_count;
    int64_t *shard_rows; /* [shard_count] */
    int64_t rows;        /* their sum: samples in an epoch */
    int64_t epoch;       /* that `shards` is for; -1: none yet */
    int *shards;         /* [shard_count]: shards in the epoch's order */
} tt_sample_order;

/* The samples that an epoch takes from one shard: a stretch of the stream of samples. */
typedef struct {
    int64_t epoch;
    int shard;
    int64_t first, end; /* sample numbers, over all epochs */
} tt_sample_stretch;

/* `shard_rows` [shard_count] is copied; each is at least 1 and at most INT32_MAX. */
tt_status tt_sample_order_start(tt_sample_order *order, uint64_t seed, bool shuffle,
                                int shard_count, const int64_t *shard_rows, tt_error *error);
void tt_sample_order_free(tt_sample_order *order);

/* The stretch that sample number `sample` >= 0 lies in. */
tt_sample_stretch tt_sample_order_find(tt_sample_order *order, int64_t sample);

/* Fills `rows` [stretch->end - stretch->first] with the row of each of the stretch's samples. */
void tt_sample_order_rows(const tt_sample_order *order, const tt_sample_stretch *stretch,
                          uint32_t *rows);

/* The numbers that draw the masks of sample number `sample`. */
void tt_sample_order_masks(uint64_t seed, int64_t sample, tt_random *random);

#endif

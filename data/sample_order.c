#include "data/sample_order.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Keeps the streams of one seed apart, from each other and from the trainer's own. */
typedef enum { SHARD_ORDER = 1, ROW_ORDER, MASKS } purpose;

static void start_stream(tt_random *random, uint64_t seed, purpose purpose, int64_t outer,
                         int64_t inner)
{
    const uint64_t name[] = {seed, (uint64_t)purpose, (uint64_t)outer};
    tt_random_start(random, XXH64(name, sizeof name, 0), (uint64_t)inner);
}

tt_status tt_sample_order_start(tt_sample_order *order, uint64_t seed, bool shuffle,
                                int shard_count, const int64_t *shard_rows, tt_error *error)
{
    *order = (tt_sample_order){
        .seed = seed, .shuffle = shuffle, .shard_count = shard_count, .epoch = -1};
    order->shard_rows = malloc((size_t)shard_count * sizeof *order->shard_rows);
    order->shards = malloc((size_t)shard_count * sizeof *order->shards);
    if (order->shard_rows == NULL || order->shards == NULL) {
        tt_sample_order_free(order);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the order of %d shards",
                            shard_count);
    }
    for (int i = 0; i < shard_count; i++) {
        order->shard_rows[i] = shard_rows[i];
        order->rows += shard_rows[i];
    }
    return TT_OK;
}

void tt_sample_order_free(tt_sample_order *order)
{
    free(order->shard_rows);
    free(order->shards);
    order->shard_rows = NULL;
    order->shards = NULL;
}

static void order_shards(tt_sample_order *order, int64_t epoch)
{
    order->epoch = epoch;
    for (int i = 0; i < order->shard_count; i++) {
        order->shards[i] = i;
    }
    if (!order->shuffle) {
        return;
    }
    tt_random random;
    start_stream(&random, order->seed, SHARD_ORDER, epoch, 0);
    for (int i = order->shard_count - 1; i > 0; i--) {
        int j = (int)tt_random_below(&random, (uint32_t)i + 1);
        int shard = order->shards[i];
        order->shards[i] = order->shards[j];
        order->shards[j] = shard;
    }
}

tt_sample_stretch tt_sample_order_find(tt_sample_order *order, int64_t sample)
{
    int64_t epoch = sample / order->rows;
    if (epoch != order->epoch) {
        order_shards(order, epoch);
    }
    int64_t first = epoch * order->rows;
    int place = 0;
    while (sample >= first + order->shard_rows[order->shards[place]]) {
        first += order->shard_rows[order->shards[place]];
        place++;
    }
    int shard = order->shards[place];
    return (tt_sample_stretch){epoch, shard, first, first + order->shard_rows[shard]};
}

void tt_sample_order_rows(const tt_sample_order *order, const tt_sample_stretch *stretch,
                          uint32_t *rows)
{
    uint32_t count = (uint32_t)(stretch->end - stretch->first);
    for (uint32_t i = 0; i < count; i++) {
        rows[i] = i;
    }
    if (!order->shuffle) {
        return;
    }
    tt_random random;
    start_stream(&random, order->seed, ROW_ORDER, stretch->epoch, stretch->shard);
    for (uint32_t i = count - 1; i > 0; i--) {
        uint32_t j = tt_random_below(&random, i + 1);
        uint32_t row = rows[i];
        rows[i] = rows[j];
        rows[j] = row;
    }
}

void tt_sample_order_masks(uint64_t seed, int64_t sample, tt_random *random)
{
    start_stream(random, seed, MASKS, 0, sample);
}

/* What a run came to: the numbers of a row of `ttrain table`. */
#ifndef TT_LAUNCH_TABLE_RUN_H
#define TT_LAUNCH_TABLE_RUN_H

#include "core/error.h"
#include "core/tensor_train.h"

#include <stdbool.h>
#include <stdint.h>

/* Ranks of one tensor train, or of the tensor-train matrix of an embedding, as they are left: links
 * whose diagonal has so many entries above the threshold. */
typedef struct {
    char name[128];
    int order;
    int64_t ranks[TT_MAX_ORDER + 1]; /* [order + 1] */
    bool removed;                    /* a link has none left */
} tt_table_layer;

typedef struct {
    char name[512]; /* of the recipe */
    char checkpoint[4096];
    int64_t step;
    /* Learnable numbers. `tensorized`: those in cores and diagonals, slices whose entry is pruned
     * not counted; `other`: all that is not in a tensor train. */
    int64_t tensorized, other;
    int64_t dense;                               /* of the whole model with every map dense */
    double validation_loss, validation_accuracy; /* NAN: not known */
    /* Core entries left over those with which the last stage began, and what a late stage was asked
     * for; NAN: no such stage. */
    double size_ratio, target_ratio;
    tt_table_layer *layers;
    int layer_count;
} tt_table_run;

/* Reads the newest checkpoint of a run's folder, or the checkpoint at `path` itself, and what the
 * run's metrics say about it. Free with tt_table_run_free, in any case. */
tt_status tt_table_run_read(const char *path, tt_table_run *run, tt_error *error);
void tt_table_run_free(tt_table_run *run);

#endif

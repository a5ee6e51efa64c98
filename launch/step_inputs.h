/* What a step reads: a batch, packed as the device wants it, and what the host decides for the
 * step.
 *
 * All of it lies in one piece of memory, which goes up in one copy. On a device that works by
 * itself it goes through pinned memory and a place of its own on the device, two of each in turn,
 * so that the next batch goes up while the device computes; then within the device to where every
 * step finds it, since a captured step reads the same addresses each time. */
#ifndef TT_LAUNCH_STEP_INPUTS_H
#define TT_LAUNCH_STEP_INPUTS_H

#include "core/optimizer.h"
#include "data/loader.h"

typedef struct {
    int64_t rows;        /* sequences of this rank in a step */
    int64_t micro_batch; /* of them at a time */
    int64_t sequence_length;
    int64_t max_predictions; /* of a sequence */
} tt_step_sizes;

/* The parts of the piece. Masked positions are packed by micro-batch, as rows within it. */
typedef struct {
    tt_step_settings *settings;
    tt_rank_settings *ranks;
    float *scales; /* 1 / masked positions, 1 / labelled sequences */
    int32_t *ids, *segments, *masked_rows, *masked_labels, *sentence_labels;
    uint8_t *mask;
} tt_step_parts;

typedef struct {
    tt_device *device;
    tt_step_sizes sizes;
    size_t bytes;
    void *memory;        /* device: what the step reads */
    tt_step_parts parts; /* of memory */
    int slots;           /* 1, or TT_TRANSFER_SLOTS where the device works by itself */
    int slot;            /* the one that is written now */
    void *pinned[TT_TRANSFER_SLOTS];
    tt_step_parts host[TT_TRANSFER_SLOTS]; /* of pinned */
    void *staged[TT_TRANSFER_SLOTS];       /* device; NULL where there is one slot */

    /* Where each micro-batch's masked positions begin, and how many there are. On a device that
     * captures steps these are the same for every batch: room is padded with row 0 and label -1. */
    int64_t *masked_begin, *masked_count;
    int64_t micro_batches;
} tt_step_inputs;

tt_status tt_step_inputs_create(tt_step_inputs *inputs, tt_device *device,
                                const tt_step_sizes *sizes, tt_error *error);
/* What was created only in part is fine, and so is all zero. */
void tt_step_inputs_destroy(tt_step_inputs *inputs);

/* Turns to the next slot, waits until it may be written, and packs a batch of sizes.rows rows. */
void tt_step_inputs_pack(tt_step_inputs *inputs, const tt_batch *batch);
/* Where the host writes the settings and scales of the batch packed last. */
tt_step_parts *tt_step_inputs_host(tt_step_inputs *inputs);
/* Takes it all to where the step reads it, in order with the device's work. */
void tt_step_inputs_upload(tt_step_inputs *inputs);

#endif

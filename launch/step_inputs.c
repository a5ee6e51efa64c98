#include "launch/step_inputs.h"

#include <stdlib.h>
#include <string.h>

/* The parts of a piece of memory at `base`, each at a 64-byte boundary; returns its size. */
static size_t lay_out(const tt_step_sizes *sizes, char *base, tt_step_parts *parts)
{
    size_t tokens = (size_t)(sizes->rows * sizes->sequence_length);
    size_t masked = (size_t)(sizes->rows * sizes->max_predictions);
    const size_t bytes[] = {sizeof *parts->settings,
                            sizeof *parts->ranks,
                            2 * sizeof *parts->scales,
                            tokens * sizeof *parts->ids,
                            tokens * sizeof *parts->segments,
                            masked * sizeof *parts->masked_rows,
                            masked * sizeof *parts->masked_labels,
                            (size_t)sizes->rows * sizeof *parts->sentence_labels,
                            tokens * sizeof *parts->mask};
    enum { COUNT = sizeof bytes / sizeof *bytes };
    void *at[COUNT];
    size_t used = 0;
    for (int i = 0; i < COUNT; i++) {
        at[i] = base ? base + used : NULL;
        used += (bytes[i] + 63) & ~(size_t)63;
    }
    *parts = (tt_step_parts){at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8]};
    return used;
}

static bool allocate(tt_step_inputs *inputs)
{
    tt_device *device = inputs->device;
    inputs->memory = device->allocate(device, inputs->bytes);
    bool complete = inputs->memory != NULL;
    for (int slot = 0; slot < inputs->slots; slot++) {
        inputs->pinned[slot] = device->allocate_host(device, inputs->bytes);
        complete = complete && inputs->pinned[slot];
        if (inputs->slots > 1) {
            inputs->staged[slot] = device->allocate(device, inputs->bytes);
            complete = complete && inputs->staged[slot];
        }
    }
    return complete;
}

/* Fixed places for masked positions, as many as there may be. */
static void fix_masked(tt_step_inputs *inputs)
{
    const tt_step_sizes *sizes = &inputs->sizes;
    for (int64_t i = 0; i < inputs->micro_batches; i++) {
        int64_t row = i * sizes->micro_batch, left = sizes->rows - row;
        int64_t rows = left < sizes->micro_batch ? left : sizes->micro_batch;
        inputs->masked_begin[i] = row * sizes->max_predictions;
        inputs->masked_count[i] = rows * sizes->max_predictions;
    }
}

tt_status tt_step_inputs_create(tt_step_inputs *inputs, tt_device *device,
                                const tt_step_sizes *sizes, tt_error *error)
{
    *inputs = (tt_step_inputs){.device = device,
                               .sizes = *sizes,
                               .slots = device->captures ? TT_TRANSFER_SLOTS : 1,
                               .micro_batches =
                                   (sizes->rows + sizes->micro_batch - 1) / sizes->micro_batch};
    inputs->bytes = lay_out(sizes, NULL, &inputs->parts);
    inputs->masked_begin = calloc((size_t)inputs->micro_batches, sizeof(int64_t));
    inputs->masked_count = calloc((size_t)inputs->micro_batches, sizeof(int64_t));
    if (!inputs->masked_begin || !inputs->masked_count || !allocate(inputs)) {
        return tt_device_no_memory(device, "the inputs of a step", inputs->bytes, error);
    }
    lay_out(sizes, inputs->memory, &inputs->parts);
    for (int slot = 0; slot < inputs->slots; slot++) {
        lay_out(sizes, inputs->pinned[slot], &inputs->host[slot]);
    }
    fix_masked(inputs);
    return TT_OK;
}

void tt_step_inputs_destroy(tt_step_inputs *inputs)
{
    tt_device *device = inputs->device;
    for (int slot = 0; device && slot < TT_TRANSFER_SLOTS; slot++) {
        device->release_host(device, inputs->pinned[slot]);
        device->release(device, inputs->staged[slot]);
    }
    if (device) {
        device->release(device, inputs->memory);
    }
    free(inputs->masked_begin);
    free(inputs->masked_count);
    *inputs = (tt_step_inputs){0};
}

/* Packs the batch's masked positions, micro-batch by micro-batch, as rows counted within it. */
static void pack_masked(tt_step_inputs *inputs, const tt_batch *batch, tt_step_parts *host)
{
    const tt_step_sizes *sizes = &inputs->sizes;
    int64_t predictions = batch->max_predictions, used = 0;
    bool pads = inputs->device->captures;
    for (int64_t i = 0; i < inputs->micro_batches; i++) {
        int64_t first = i * sizes->micro_batch, end = first + sizes->micro_batch;
        int64_t room = inputs->masked_begin[i] + inputs->masked_count[i];
        used = pads ? inputs->masked_begin[i] : used;
        int64_t begin = used;
        for (int64_t row = first; row < end && row < batch->rows; row++) {
            const int32_t *positions = batch->masked_positions + row * predictions;
            for (int64_t p = 0; p < predictions && positions[p] >= 0; p++) {
                host->masked_rows[used] =
                    (int32_t)((row - first) * batch->sequence_length) + positions[p];
                host->masked_labels[used++] = batch->masked_labels[row * predictions + p];
            }
        }
        for (; pads && used < room; used++) {
            host->masked_rows[used] = 0;
            host->masked_labels[used] = -1;
        }
        if (!pads) {
            inputs->masked_begin[i] = begin;
            inputs->masked_count[i] = used - begin;
        }
    }
}

void tt_step_inputs_pack(tt_step_inputs *inputs, const tt_batch *batch)
{
    inputs->slot = (inputs->slot + 1) % inputs->slots;
    inputs->device->uploads_settled(inputs->device, inputs->slot);
    tt_step_parts *host = tt_step_inputs_host(inputs);
    size_t tokens = (size_t)(batch->rows * batch->sequence_length);
    memcpy(host->ids, batch->input_ids, tokens * sizeof *host->ids);
    memcpy(host->segments, batch->segment_ids, tokens * sizeof *host->segments);
    memcpy(host->mask, batch->attention_mask, tokens * sizeof *host->mask);
    memcpy(host->sentence_labels, batch->next_sentence_labels,
           (size_t)batch->rows * sizeof *host->sentence_labels);
    pack_masked(inputs, batch, host);
}

tt_step_parts *tt_step_inputs_host(tt_step_inputs *inputs)
{
    return &inputs->host[inputs->slot];
}

void tt_step_inputs_upload(tt_step_inputs *inputs)
{
    tt_device *device = inputs->device;
    int slot = inputs->slot;
    void *staged = inputs->staged[slot];
    device->range_push(device, "upload of a batch");
    device->uploads_begin(device, slot);
    device->upload(device, staged ? staged : inputs->memory, inputs->pinned[slot], inputs->bytes);
    device->uploads_end(device, slot);
    device->uploads_wait(device, slot);
    if (staged) {
        device->copy(device, inputs->memory, staged, inputs->bytes);
    }
    device->uploads_used(device, slot);
    device->range_pop(device);
}

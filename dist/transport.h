/* What carries collectives: the calls behind collectives.h, filled by MPI (collectives.c) and by
 * NCCL (nccl.c, in programs that have a CUDA device). Not for others to include.
 *
 * Every call has the meaning that collectives.h gives; the world has more than one rank, and the
 * plan is checked, the same on all ranks, and outlives the next plan. */
#ifndef TT_DIST_TRANSPORT_H
#define TT_DIST_TRANSPORT_H

#include "dist/collectives.h"

typedef struct {
    bool captures;
    void (*destroy)(void *state);
    tt_status (*plan)(void *state, const tt_gradient_plan *plan, tt_error *error);
    void (*begin)(void *state, int index);
    void (*finish)(void *state);
    void (*sum)(void *state, float *values, int64_t count);
    void (*broadcast)(void *state, void *memory, int64_t bytes);
    tt_status (*check)(void *state, tt_error *error);
} tt_transport_calls;

/* `description` gets a few words for the log. All ranks call it together and get the same status.
 */
tt_status tt_nccl_create(const tt_world *world, tt_device *device, tt_type gradients,
                         const tt_transport_calls **calls, void **state, char *description,
                         size_t description_size, tt_error *error);

#endif

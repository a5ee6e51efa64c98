/* What the ranks add up and share of a device's memory: gradients with their statistics, sums of an
 * evaluation, parameters. On a CUDA device NCCL carries it, on the CPU device MPI.
 *
 * Every rank calls the same functions in the same order with the same sizes. A plan settles what a
 * step reduces, and compares it over all ranks before the first collective call. After that the
 * calls are asynchronous: they take their place in the order of the device's work (CPU: they have
 * finished when they return) and, with NCCL, may be captured together with it.
 *
 * Sums have a fixed order: the same call gives the same bits on every rank and every time.
 *
 * With NCCL a thread watches the communicator. When a peer is lost, it writes one line to stderr,
 * aborts the communicator, and ends all ranks with status 1; so no rank waits for a dead one.
 *
 * In a world of one every call does nothing. */
#ifndef TT_DIST_COLLECTIVES_H
#define TT_DIST_COLLECTIVES_H

#include "core/device.h"
#include "dist/world.h"

typedef struct tt_collectives tt_collectives;

typedef enum {
    TT_TRANSPORT_AUTO, /* NCCL on a CUDA device, MPI on the CPU device */
    TT_TRANSPORT_NCCL, /* refused on the CPU device */
    TT_TRANSPORT_MPI,  /* on a CUDA device through host memory: slow and not capturable, but two
                          ranks  may share a device */
} tt_transport;

typedef struct {
    tt_transport transport;
    tt_type gradients; /* type in which NCCL carries gradients; MPI always carries f32 */
} tt_collectives_options;

/* Numbers [offset, offset + count) of the gradients. */
typedef struct {
    int64_t offset, count;
} tt_gradient_range;

/* What one step reduces. */
typedef struct {
    float *gradients;        /* device memory: gradient_count numbers and, right behind them, */
    int64_t gradient_count;  /* statistic_count more that travel in f32 whatever the type of */
    int64_t statistic_count; /* gradients: losses and counts */
    const tt_gradient_range
        *early;      /* ranges that are final before the backward pass has ended, in */
    int early_count; /* the order in which they are; they must not overlap */
} tt_gradient_plan;

/* All ranks call it together, each with its own device. Fails, with the same error on every rank,
 * where the ranks' options or versions of NCCL differ, where two ranks have one device (unless the
 * transport is MPI), or where NCCL cannot connect them within TTRAIN_NCCL_SECONDS (default 300).
 * `world` and `device` must outlive the collectives. */
tt_status tt_collectives_create(const tt_world *world, tt_device *device,
                                const tt_collectives_options *options, tt_collectives **collectives,
                                tt_error *error);

/* Releases everything and sets the pointer to NULL; NULL is fine. Where something failed, the
 * communicator is aborted instead, which waits for nobody. */
void tt_collectives_destroy(tt_collectives **collectives);

/* "NCCL 2.27.7, gradients in bf16", "MPI": for a line of the log. Valid until destroy. */
const char *tt_collectives_describe(const tt_collectives *collectives);

/* Whether the calls below may be captured. */
bool tt_collectives_captures(const tt_collectives *collectives);

/* Settles what begin and finish reduce, in place of an earlier plan, and allocates what that takes.
 * All ranks call it together; fails on every rank when their plans differ. */
tt_status tt_collectives_plan(tt_collectives *collectives, const tt_gradient_plan *plan,
                              tt_error *error);

/* Early range `index` of the plan is final once the work given to the device so far is done: its
 * sum may start, beside whatever the device is given next. Called once a step for each early range,
 * in their order. Nobody may touch the range until finish. */
void tt_collectives_begin(tt_collectives *collectives, int index);
/* Sums all of the plan's numbers that no begin has named, and waits for the sums begun: work given
 * to the device after this sees the sum over all ranks in gradients and statistics. */
void tt_collectives_finish(tt_collectives *collectives);

/* values[i] = sum over ranks, in f32. Device memory. */
void tt_collectives_sum(tt_collectives *collectives, float *values, int64_t count);
/* Rank 0's bytes for everybody. Device memory. */
void tt_collectives_broadcast(tt_collectives *collectives, void *memory, int64_t bytes);

/* The first failure of a call since create, on this rank; the work that failed was not done. Cheap
 * enough for every step. */
tt_status tt_collectives_check(tt_collectives *collectives, tt_error *error);

#endif

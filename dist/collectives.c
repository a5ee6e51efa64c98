#include "dist/collectives.h"

#include "dist/transport.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tt_collectives {
    const tt_world *world;
    tt_device *device;
    const tt_transport_calls *calls; /* NULL in a world of one */
    void *state;                     /* the transport's own */
    char description[128];
    tt_gradient_plan plan;
    tt_gradient_range *early; /* the plan's own copy */
    int begun;                /* early ranges named in this step */
};

static bool is_on_host(const tt_device *device)
{
    return strcmp(device->name, "cpu") == 0;
}

/* --- MPI --- */

/* Bytes of a GPU's memory that pass through the host at a time. */
enum { STAGING = 1 << 22 };

typedef struct {
    const tt_world *world;
    tt_device *device;
    const tt_gradient_plan *plan;
    char *staging; /* host memory; NULL where device memory is */
} tt_mpi;

static void mpi_destroy(void *state)
{
    tt_mpi *mpi = state;
    free(mpi->staging);
    free(mpi);
}

static tt_status mpi_plan(void *state, const tt_gradient_plan *plan, tt_error *error)
{
    (void)error;
    ((tt_mpi *)state)->plan = plan;
    return TT_OK;
}

/* One call over everything is faster than several, so nothing starts early. */
static void mpi_begin(void *state, int index)
{
    (void)state;
    (void)index;
}

typedef void tt_host_call(const tt_world *world, void *bytes, int64_t count);

static void sum_on_host(const tt_world *world, void *bytes, int64_t count)
{
    tt_world_sum(world, bytes, count / (int64_t)sizeof(float));
}

/* Has `call` work on device memory, piece by piece where the host cannot reach it. */
static void through_host(tt_mpi *mpi, void *memory, int64_t bytes, tt_host_call *call)
{
    tt_device *device = mpi->device;
    if (!mpi->staging) {
        call(mpi->world, memory, bytes);
        return;
    }
    for (int64_t i = 0; i < bytes; i += STAGING) {
        int64_t length = bytes - i < STAGING ? bytes - i : STAGING;
        char *at = (char *)memory + i;
        device->copy_out(device, mpi->staging, at, (size_t)length);
        device->synchronize(device);
        call(mpi->world, mpi->staging, length);
        device->copy_in(device, at, mpi->staging, (size_t)length);
        device->synchronize(device);
    }
}

static void mpi_sum(void *state, float *values, int64_t count)
{
    through_host(state, values, count * (int64_t)sizeof(float), sum_on_host);
}

static void mpi_finish(void *state)
{
    const tt_gradient_plan *plan = ((tt_mpi *)state)->plan;
    mpi_sum(state, plan->gradients, plan->gradient_count + plan->statistic_count);
}

static void mpi_broadcast(void *state, void *memory, int64_t bytes)
{
    through_host(state, memory, bytes, tt_world_broadcast);
}

/* A call of MPI that fails ends the job by itself. */
static tt_status mpi_check(void *state, tt_error *error)
{
    (void)state;
    (void)error;
    return TT_OK;
}

static const tt_transport_calls mpi_calls = {.captures = false,
                                             .destroy = mpi_destroy,
                                             .plan = mpi_plan,
                                             .begin = mpi_begin,
                                             .finish = mpi_finish,
                                             .sum = mpi_sum,
                                             .broadcast = mpi_broadcast,
                                             .check = mpi_check};

static tt_status create_mpi(tt_collectives *collectives, tt_error *error)
{
    bool on_host = is_on_host(collectives->device);
    tt_mpi *mpi = calloc(1, sizeof *mpi);
    char *staging = on_host ? NULL : malloc(STAGING);
    bool complete = mpi && (on_host || staging);
    tt_status status = tt_world_agree(
        collectives->world,
        complete ? TT_OK : tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the collectives"),
        error);
    if (status != TT_OK || !complete) {
        free(mpi);
        free(staging);
        return status;
    }
    *mpi = (tt_mpi){.world = collectives->world, .device = collectives->device, .staging = staging};
    collectives->calls = &mpi_calls;
    collectives->state = mpi;
    snprintf(collectives->description, sizeof collectives->description, "MPI%s",
             on_host ? "" : " through host memory");
    return TT_OK;
}

/* --- making one --- */

static tt_status create_transport(tt_collectives *collectives,
                                  const tt_collectives_options *options, tt_error *error)
{
    const tt_device *device = collectives->device;
    if (options->transport == TT_TRANSPORT_NCCL && is_on_host(device)) {
        tt_error_set(error, TT_INVALID_INPUT,
                     "collectives: NCCL needs a CUDA device, found device %s", device->name);
        error->shared = true;
        return TT_INVALID_INPUT;
    }
    if (collectives->world->size == 1) {
        snprintf(collectives->description, sizeof collectives->description, "none (one rank)");
        return TT_OK;
    }
    if (options->transport == TT_TRANSPORT_MPI || is_on_host(device)) {
        return create_mpi(collectives, error);
    }
#ifdef TTRAIN_CUDA
    return tt_nccl_create(collectives->world, collectives->device, options->gradients,
                          &collectives->calls, &collectives->state, collectives->description,
                          sizeof collectives->description, error);
#else
    return tt_error_set(error, TT_INVALID_INPUT,
                        "collectives: device %s needs transport MPI in a program without NCCL",
                        device->name);
#endif
}

tt_status tt_collectives_create(const tt_world *world, tt_device *device,
                                const tt_collectives_options *options, tt_collectives **collectives,
                                tt_error *error)
{
    *collectives = NULL;
    uint64_t choice = (uint64_t)options->transport << 8 | (uint64_t)options->gradients;
    TT_TRY(tt_world_same(world, "how gradients are reduced (transport and type)", choice, error));
    TT_TRY(tt_world_same(world, "the kind of device", is_on_host(device), error));
    tt_collectives *created = calloc(1, sizeof *created);
    tt_status status = tt_world_agree(
        world,
        created ? TT_OK : tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the collectives"),
        error);
    if (status == TT_OK && created) {
        created->world = world;
        created->device = device;
        status = create_transport(created, options, error);
    }
    if (status != TT_OK) {
        free(created);
        return status;
    }
    *collectives = created;
    return TT_OK;
}

void tt_collectives_destroy(tt_collectives **collectives)
{
    tt_collectives *ending = *collectives;
    *collectives = NULL;
    if (!ending) {
        return;
    }
    if (ending->calls) {
        ending->calls->destroy(ending->state);
    }
    free(ending->early);
    free(ending);
}

const char *tt_collectives_describe(const tt_collectives *collectives)
{
    return collectives->description;
}

bool tt_collectives_captures(const tt_collectives *collectives)
{
    return !collectives->calls || collectives->calls->captures;
}

/* --- the plan --- */

static tt_status check_ranges(const tt_gradient_plan *plan, tt_error *error)
{
    for (int i = 0; i < plan->early_count; i++) {
        tt_gradient_range range = plan->early[i];
        int64_t end = range.offset + range.count;
        if (range.offset < 0 || range.count <= 0 ||
            range.count > plan->gradient_count - range.offset) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "collectives: early range %d is [%lld, %lld) of %lld gradients", i,
                                (long long)range.offset, (long long)end,
                                (long long)plan->gradient_count);
        }
        for (int j = 0; j < i; j++) {
            tt_gradient_range other = plan->early[j];
            if (range.offset < other.offset + other.count &&
                other.offset < range.offset + range.count) {
                return tt_error_set(error, TT_INVALID_INPUT,
                                    "collectives: early ranges %d and %d overlap", j, i);
            }
        }
    }
    return TT_OK;
}

static tt_status copy_plan(tt_collectives *collectives, const tt_gradient_plan *plan,
                           tt_error *error)
{
    TT_TRY(check_ranges(plan, error));
    size_t count = (size_t)plan->early_count;
    tt_gradient_range *early = calloc(count + 1, sizeof *early);
    if (!early) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the plan of the collectives");
    }
    if (count > 0) {
        memcpy(early, plan->early, count * sizeof *early);
    }
    free(collectives->early);
    collectives->early = early;
    collectives->plan = *plan;
    collectives->plan.early = early;
    collectives->begun = 0;
    return TT_OK;
}

static uint64_t mix(uint64_t hash, int64_t value)
{
    hash = (hash ^ (uint64_t)value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

static uint64_t hash_ranges(const tt_gradient_plan *plan)
{
    uint64_t hash = mix(0, plan->statistic_count);
    for (int i = 0; i < plan->early_count; i++) {
        hash = mix(mix(hash, plan->early[i].offset), plan->early[i].count);
    }
    return hash;
}

tt_status tt_collectives_plan(tt_collectives *collectives, const tt_gradient_plan *plan,
                              tt_error *error)
{
    const tt_world *world = collectives->world;
    TT_TRY(tt_world_agree(world, copy_plan(collectives, plan, error), error));
    TT_TRY(tt_world_same(world, "the number of gradients to reduce", (uint64_t)plan->gradient_count,
                         error));
    TT_TRY(tt_world_same(world, "the ranges of gradients to reduce", hash_ranges(plan), error));
    if (!collectives->calls) {
        return TT_OK;
    }
    tt_status status = collectives->calls->plan(collectives->state, &collectives->plan, error);
    return tt_world_agree(world, status, error);
}

/* --- in a step --- */

void tt_collectives_begin(tt_collectives *collectives, int index)
{
    assert(index == collectives->begun && index < collectives->plan.early_count);
    collectives->begun++;
    if (collectives->calls) {
        collectives->calls->begin(collectives->state, index);
    }
}

void tt_collectives_finish(tt_collectives *collectives)
{
    assert(collectives->begun == collectives->plan.early_count);
    collectives->begun = 0;
    if (collectives->calls) {
        collectives->calls->finish(collectives->state);
    }
}

void tt_collectives_sum(tt_collectives *collectives, float *values, int64_t count)
{
    if (collectives->calls) {
        collectives->calls->sum(collectives->state, values, count);
    }
}

void tt_collectives_broadcast(tt_collectives *collectives, void *memory, int64_t bytes)
{
    if (collectives->calls) {
        collectives->calls->broadcast(collectives->state, memory, bytes);
    }
}

tt_status tt_collectives_check(tt_collectives *collectives, tt_error *error)
{
    return collectives->calls ? collectives->calls->check(collectives->state, error) : TT_OK;
}

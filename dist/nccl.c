#include "core/clock.h"
#include "core/cuda/cuda.h"
#include "core/ops.h"
#include "dist/transport.h"

#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    CONNECT_SECONDS = 300, /* that ranks may take to find each other */
    BUS_ID = 32,           /* bytes of a device's PCI address */
    WATCH_MICROSECONDS = 100000,
    SETTLE_MICROSECONDS = 50,
};

typedef struct {
    const tt_world *world;
    tt_device *device;
    tt_type gradients;
    ncclComm_t comm;
    cudaStream_t stream;    /* all collectives, in one order */
    cudaEvent_t begin, end; /* the device's stream has come to where a collective may start; and
                               back */
    const tt_gradient_plan *plan;
    tt_gradient_range *rest; /* what no early range names */
    int rest_count;
    char *rounded; /* device memory: the gradients in bf16 where they travel so */

    pthread_t watcher;
    bool watched;
    pthread_mutex_t mutex; /* held while the watcher looks at comm */
    bool stop;             /* under the mutex */
    atomic_bool lost;      /* a peer is, and the communicator about to be aborted: the job ends */
    char reason[512];      /* set before `lost` */
} tt_nccl;

static void pause_for(long microseconds)
{
    struct timespec time = {.tv_nsec = microseconds * 1000};
    nanosleep(&time, NULL);
}

/* --- what goes wrong --- */

/* "remote process exited or there was a network error (rank 1 is gone)" */
static void describe_failure(ncclComm_t comm, ncclResult_t result, char *text, size_t size)
{
    const char *detail = ncclGetLastError(comm);
    bool has_detail = detail && *detail;
    snprintf(text, size, "%s%s%s%s", ncclGetErrorString(result), has_detail ? " (" : "",
             has_detail ? detail : "", has_detail ? ")" : "");
}

/* Waits until the communicator has come to the end of a call that returned `result`. */
static ncclResult_t settle(ncclComm_t comm, ncclResult_t result)
{
    double until = tt_clock_seconds() + CONNECT_SECONDS;
    while (result == ncclInProgress && tt_clock_seconds() < until) {
        ncclResult_t failed = ncclCommGetAsyncError(comm, &result);
        if (failed != ncclSuccess) {
            return failed;
        }
        if (result == ncclInProgress) {
            pause_for(SETTLE_MICROSECONDS);
        }
    }
    return result;
}

/* After a call in a step: notes with the device that it failed. */
static bool nccl_good(tt_nccl *nccl, ncclResult_t result, const char *what)
{
    result = settle(nccl->comm, result);
    if (result != ncclSuccess) {
        char why[512];
        describe_failure(nccl->comm, result, why, sizeof why);
        tt_cuda_fail(nccl->device, what, why);
    }
    return result == ncclSuccess;
}

static bool cuda_good(tt_nccl *nccl, cudaError_t status, const char *what)
{
    if (status != cudaSuccess) {
        tt_cuda_fail(nccl->device, what, cudaGetErrorString(status));
    }
    return status == cudaSuccess;
}

static bool is_sound(const tt_nccl *nccl)
{
    tt_error error;
    return !atomic_load(&nccl->lost) && nccl->device->check(nccl->device, &error) == TT_OK;
}

/* --- the thread that watches for lost peers --- */

static void abort_comm(void *comm)
{
    ncclCommAbort(comm);
}

/* The main thread goes on as soon as the communicator is aborted, and must know by then. */
static _Noreturn void end_job(tt_nccl *nccl, ncclResult_t result)
{
    char line[768];
    describe_failure(nccl->comm, result, nccl->reason, sizeof nccl->reason);
    atomic_store(&nccl->lost, true);
    snprintf(line, sizeof line, "ttrain pretrain: rank %d on %s: NCCL: %s; ending the job\n",
             nccl->world->rank, nccl->world->host, nccl->reason);
    tt_world_give_up(nccl->world, line, abort_comm, nccl->comm);
}

static void *watch(void *argument)
{
    tt_nccl *nccl = argument;
    cudaSetDevice(tt_cuda_ordinal(nccl->device));
    for (;;) {
        ncclResult_t result = ncclSuccess;
        pthread_mutex_lock(&nccl->mutex);
        bool stop = nccl->stop;
        if (!stop && ncclCommGetAsyncError(nccl->comm, &result) == ncclSuccess &&
            result != ncclSuccess && result != ncclInProgress) {
            end_job(nccl, result);
        }
        pthread_mutex_unlock(&nccl->mutex);
        if (stop) {
            return NULL;
        }
        pause_for(WATCH_MICROSECONDS);
    }
}

static tt_status start_watcher(tt_nccl *nccl, tt_error *error)
{
    /* Signals are the main thread's business. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&nccl->watcher, NULL, watch, nccl);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        return tt_error_set(error, TT_IO_FAILED,
                            "the thread that watches NCCL cannot be started: %s", strerror(failed));
    }
    nccl->watched = true;
    return TT_OK;
}

static void stop_watcher(tt_nccl *nccl)
{
    if (nccl->watched) {
        pthread_mutex_lock(&nccl->mutex);
        nccl->stop = true;
        pthread_mutex_unlock(&nccl->mutex);
        pthread_join(nccl->watcher, NULL);
        nccl->watched = false;
    }
}

/* --- meeting --- */

static void write_version(int version, char *text, size_t size)
{
    /* Versions before 2.9 have one digit for each part. */
    int scale = version >= 10000 ? 10000 : 1000;
    snprintf(text, size, "%d.%d.%d", version / scale, version % scale / 100, version % 100);
}

/* All ranks come to the same result. */
static tt_status agree_on_version(const tt_world *world, char *version, size_t size,
                                  tt_error *error)
{
    int own[2] = {0, world->rank}, lowest[2], highest[2];
    ncclGetVersion(&own[0]);
    MPI_Allreduce(own, lowest, 1, MPI_2INT, MPI_MINLOC, MPI_COMM_WORLD);
    MPI_Allreduce(own, highest, 1, MPI_2INT, MPI_MAXLOC, MPI_COMM_WORLD);
    write_version(own[0], version, size);
    if (lowest[0] == highest[0]) {
        return TT_OK;
    }
    char old[32], new[32];
    write_version(lowest[0], old, sizeof old);
    write_version(highest[0], new, sizeof new);
    tt_error_set(error, TT_PEER_FAILED,
                 "rank %d has NCCL %s and rank %d has NCCL %s: expected one version on all hosts",
                 lowest[1], old, highest[1], new);
    error->shared = true;
    return TT_PEER_FAILED;
}

typedef struct {
    char host[TT_WORLD_HOST], bus[BUS_ID];
} tt_place;

/* All ranks come to the same result. */
static tt_status compare_places(const tt_place *places, int count, tt_error *error)
{
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++) {
            if (memcmp(&places[i], &places[j], sizeof *places) == 0) {
                tt_error_set(error, TT_INVALID_INPUT,
                             "ranks %d and %d both have the device at %s of %s: NCCL expects one "
                             "device a rank",
                             j, i, places[i].bus, places[i].host);
                error->shared = true;
                return TT_INVALID_INPUT;
            }
        }
    }
    return TT_OK;
}

static tt_status check_places(const tt_world *world, const tt_device *device, tt_error *error)
{
    tt_place own = {.bus = ""}, *places = calloc((size_t)world->size, sizeof *places);
    memcpy(own.host, world->host, sizeof own.host);
    cudaError_t found = cudaDeviceGetPCIBusId(own.bus, BUS_ID, tt_cuda_ordinal(device));
    tt_status status = TT_OK;
    if (!places) {
        status = tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the list of devices");
    } else if (found != cudaSuccess) {
        status = tt_error_set(error, TT_DEVICE_FAILED, "cudaDeviceGetPCIBusId: %s",
                              cudaGetErrorString(found));
    }
    status = tt_world_agree(world, status, error);
    if (status == TT_OK && places) {
        MPI_Allgather(&own, sizeof own, MPI_BYTE, places, sizeof own, MPI_BYTE, MPI_COMM_WORLD);
        status = compare_places(places, world->size, error);
    }
    free(places);
    return status;
}

static tt_status connect_ranks(tt_nccl *nccl, tt_error *error)
{
    const tt_world *world = nccl->world;
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    tt_status status = TT_OK;
    ncclResult_t result = world->rank == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
    if (result != ncclSuccess) {
        status =
            tt_error_set(error, TT_PEER_FAILED, "ncclGetUniqueId: %s", ncclGetErrorString(result));
    }
    TT_TRY(tt_world_share(world, status, error));
    tt_world_broadcast(world, &id, sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    result = ncclCommInitRankConfig(&nccl->comm, world->size, id, world->rank, &config);
    result = nccl->comm ? settle(nccl->comm, result) : result;
    if (result == ncclInProgress) {
        status = tt_error_set(error, TT_PEER_FAILED,
                              "NCCL did not connect the ranks within %d s (NCCL_DEBUG=INFO says "
                              "what it waits for)",
                              CONNECT_SECONDS);
    } else if (result != ncclSuccess) {
        char why[512];
        describe_failure(nccl->comm, result, why, sizeof why);
        status = tt_error_set(error, TT_PEER_FAILED, "NCCL cannot connect the ranks: %s", why);
    }
    status = tt_world_agree(world, status, error);
    if (status != TT_OK && nccl->comm) {
        ncclCommAbort(nccl->comm);
        nccl->comm = NULL;
    }
    return status;
}

static tt_status create_stream(tt_nccl *nccl, tt_error *error)
{
    int least = 0, greatest = 0;
    cudaError_t status = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (status == cudaSuccess) {
        /* First in line for multiprocessors: peers wait for a collective, nobody for a kernel. */
        status = cudaStreamCreateWithPriority(&nccl->stream, cudaStreamNonBlocking, greatest);
    }
    if (status == cudaSuccess) {
        status = cudaEventCreateWithFlags(&nccl->begin, cudaEventDisableTiming);
    }
    if (status == cudaSuccess) {
        status = cudaEventCreateWithFlags(&nccl->end, cudaEventDisableTiming);
    }
    return status == cudaSuccess
               ? TT_OK
               : tt_error_set(error, TT_DEVICE_FAILED, "the stream for NCCL on %s: %s",
                              nccl->device->name, cudaGetErrorString(status));
}

/* --- making and ending --- */

static void close_comm(tt_nccl *nccl)
{
    /* While the watcher still looks: what runs may wait for a peer that is gone. */
    bool orderly =
        nccl->comm && is_sound(nccl) && cudaStreamSynchronize(nccl->stream) == cudaSuccess;
    stop_watcher(nccl);
    if (orderly && settle(nccl->comm, ncclCommFinalize(nccl->comm)) == ncclSuccess) {
        ncclCommDestroy(nccl->comm);
    } else if (nccl->comm) {
        ncclCommAbort(nccl->comm);
    }
}

static void nccl_destroy(void *state)
{
    tt_nccl *nccl = state;
    close_comm(nccl);
    if (nccl->begin) {
        cudaEventDestroy(nccl->begin);
    }
    if (nccl->end) {
        cudaEventDestroy(nccl->end);
    }
    if (nccl->stream) {
        cudaStreamDestroy(nccl->stream);
    }
    nccl->device->release(nccl->device, nccl->rounded);
    pthread_mutex_destroy(&nccl->mutex);
    free(nccl->rest);
    free(nccl);
}

/* --- the plan --- */

static int compare_ranges(const void *a, const void *b)
{
    int64_t first = ((const tt_gradient_range *)a)->offset;
    int64_t second = ((const tt_gradient_range *)b)->offset;
    return (first > second) - (first < second);
}

/* Lists what lies between the early ranges in [0, total). */
static tt_status find_rest(tt_nccl *nccl, const tt_gradient_plan *plan, int64_t total,
                           tt_error *error)
{
    size_t count = (size_t)plan->early_count;
    tt_gradient_range *early = calloc(count + 1, sizeof *early);
    free(nccl->rest);
    nccl->rest = calloc(count + 1, sizeof *nccl->rest);
    nccl->rest_count = 0;
    if (!early || !nccl->rest) {
        free(early);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the ranges that NCCL reduces");
    }
    memcpy(early, plan->early, count * sizeof *early);
    qsort(early, count, sizeof *early, compare_ranges);
    early[count] = (tt_gradient_range){.offset = total};
    int64_t at = 0;
    for (size_t i = 0; i <= count; i++) {
        if (early[i].offset > at) {
            nccl->rest[nccl->rest_count++] =
                (tt_gradient_range){.offset = at, .count = early[i].offset - at};
        }
        at = early[i].offset + early[i].count;
    }
    free(early);
    return TT_OK;
}

static tt_status nccl_plan(void *state, const tt_gradient_plan *plan, tt_error *error)
{
    tt_nccl *nccl = state;
    tt_device *device = nccl->device;
    bool rounds = nccl->gradients == TT_BF16;
    nccl->plan = plan;
    /* In f32 the statistics travel as more gradients. */
    int64_t total = plan->gradient_count + (rounds ? 0 : plan->statistic_count);
    TT_TRY(find_rest(nccl, plan, total, error));
    device->release(device, nccl->rounded);
    nccl->rounded = NULL;
    if (!rounds) {
        return TT_OK;
    }
    size_t bytes = (size_t)plan->gradient_count * sizeof(uint16_t);
    nccl->rounded = device->allocate(device, bytes);
    if (!nccl->rounded) {
        return tt_error_set(error, TT_OUT_OF_MEMORY,
                            "device %s: no memory for %.1f MiB of gradients in bf16 (reducing them "
                            "in f32 takes none)",
                            device->name, (double)bytes / 1048576.0);
    }
    return TT_OK;
}

/* --- in a step --- */

/* What follows in NCCL's stream waits for what the device was given so far. */
static bool fork_stream(tt_nccl *nccl)
{
    return cuda_good(nccl, cudaEventRecord(nccl->begin, tt_cuda_stream(nccl->device)),
                     "cudaEventRecord") &&
           cuda_good(nccl, cudaStreamWaitEvent(nccl->stream, nccl->begin, 0),
                     "cudaStreamWaitEvent");
}

/* What the device is given from now on waits for the collectives begun so far. */
static void join_stream(tt_nccl *nccl)
{
    if (cuda_good(nccl, cudaEventRecord(nccl->end, nccl->stream), "cudaEventRecord")) {
        cuda_good(nccl, cudaStreamWaitEvent(tt_cuda_stream(nccl->device), nccl->end, 0),
                  "cudaStreamWaitEvent");
    }
}

static ncclResult_t reduce(tt_nccl *nccl, void *values, int64_t count, ncclDataType_t type)
{
    return ncclAllReduce(values, values, (size_t)count, type, ncclSum, nccl->comm, nccl->stream);
}

static ncclResult_t reduce_range(tt_nccl *nccl, tt_gradient_range range)
{
    if (nccl->gradients == TT_BF16) {
        return reduce(nccl, nccl->rounded + (size_t)range.offset * sizeof(uint16_t), range.count,
                      ncclBfloat16);
    }
    return reduce(nccl, nccl->plan->gradients + range.offset, range.count, ncclFloat32);
}

/* Gradients to bf16 for their way, or back. */
static void convert(tt_nccl *nccl, const tt_gradient_range *ranges, int count, bool back)
{
    tt_device *device = nccl->device;
    for (int i = 0; i < count && nccl->gradients == TT_BF16; i++) {
        tt_matrix wide =
            tt_matrix_f32(nccl->plan->gradients + ranges[i].offset, 1, ranges[i].count);
        tt_matrix narrow =
            tt_matrix_dense(nccl->rounded + (size_t)ranges[i].offset * sizeof(uint16_t), 1,
                            ranges[i].count, TT_BF16);
        tt_copy copy = {.source = back ? narrow : wide, .target = back ? wide : narrow};
        device->ops->copy_group(device, &copy, 1);
    }
}

static void nccl_begin(void *state, int index)
{
    tt_nccl *nccl = state;
    const tt_gradient_range *range = &nccl->plan->early[index];
    convert(nccl, range, 1, false);
    if (is_sound(nccl) && fork_stream(nccl)) {
        nccl_good(nccl, reduce_range(nccl, *range), "ncclAllReduce of early gradients");
    }
}

/* All that is left, as one launch. */
static ncclResult_t reduce_rest(tt_nccl *nccl)
{
    const tt_gradient_plan *plan = nccl->plan;
    ncclResult_t result = ncclGroupStart();
    for (int i = 0; i < nccl->rest_count && result == ncclSuccess; i++) {
        result = reduce_range(nccl, nccl->rest[i]);
    }
    if (nccl->gradients == TT_BF16 && plan->statistic_count > 0 && result == ncclSuccess) {
        result = reduce(nccl, plan->gradients + plan->gradient_count, plan->statistic_count,
                        ncclFloat32);
    }
    ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

static void nccl_finish(void *state)
{
    tt_nccl *nccl = state;
    convert(nccl, nccl->rest, nccl->rest_count, false);
    if (is_sound(nccl) && fork_stream(nccl) &&
        nccl_good(nccl, reduce_rest(nccl), "ncclAllReduce of gradients")) {
        join_stream(nccl);
        const tt_gradient_range all = {.count = nccl->plan->gradient_count};
        convert(nccl, &all, 1, true);
    }
}

static void nccl_sum(void *state, float *values, int64_t count)
{
    tt_nccl *nccl = state;
    if (is_sound(nccl) && fork_stream(nccl) &&
        nccl_good(nccl, reduce(nccl, values, count, ncclFloat32), "ncclAllReduce")) {
        join_stream(nccl);
    }
}

static void nccl_broadcast(void *state, void *memory, int64_t bytes)
{
    tt_nccl *nccl = state;
    if (is_sound(nccl) && fork_stream(nccl) &&
        nccl_good(
            nccl,
            ncclBroadcast(memory, memory, (size_t)bytes, ncclUint8, 0, nccl->comm, nccl->stream),
            "ncclBroadcast")) {
        join_stream(nccl);
    }
}

static tt_status nccl_check(void *state, tt_error *error)
{
    tt_nccl *nccl = state;
    if (atomic_load(&nccl->lost)) {
        return tt_error_set(error, TT_PEER_FAILED, "NCCL: %s", nccl->reason);
    }
    return nccl->device->check(nccl->device, error);
}

static const tt_transport_calls nccl_calls = {.captures = true,
                                              .destroy = nccl_destroy,
                                              .plan = nccl_plan,
                                              .begin = nccl_begin,
                                              .finish = nccl_finish,
                                              .sum = nccl_sum,
                                              .broadcast = nccl_broadcast,
                                              .check = nccl_check};

static tt_status connect_and_watch(tt_nccl *nccl, tt_error *error)
{
    const tt_world *world = nccl->world;
    TT_TRY(check_places(world, nccl->device, error));
    TT_TRY(tt_world_agree(world, create_stream(nccl, error), error));
    TT_TRY(connect_ranks(nccl, error));
    return tt_world_agree(world, start_watcher(nccl, error), error);
}

tt_status tt_nccl_create(const tt_world *world, tt_device *device, tt_type gradients,
                         const tt_transport_calls **calls, void **state, char *description,
                         size_t description_size, tt_error *error)
{
    char version[32];
    TT_TRY(agree_on_version(world, version, sizeof version, error));
    tt_nccl *nccl = calloc(1, sizeof *nccl);
    tt_status status = tt_world_agree(
        world, nccl ? TT_OK : tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for NCCL"), error);
    if (status != TT_OK || !nccl) {
        free(nccl);
        return status;
    }
    nccl->world = world;
    nccl->device = device;
    nccl->gradients = gradients;
    pthread_mutex_init(&nccl->mutex, NULL);
    status = connect_and_watch(nccl, error);
    if (status != TT_OK) {
        nccl_destroy(nccl);
        return status;
    }
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    snprintf(description, description_size, "NCCL %s, gradients in %s%s", version,
             gradients == TT_BF16 ? "bf16" : "f32",
             blocking && strcmp(blocking, "1") == 0
                 ? "; CUDA_LAUNCH_BLOCKING=1 is set, with which NCCL may hang"
                 : "");
    *calls = &nccl_calls;
    *state = nccl;
    return TT_OK;
}

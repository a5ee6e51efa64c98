#include "nccl_communicator.hpp"

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <unistd.h>

using simulator_nccl::communicator;
using simulator_nccl::member;

/* Streams run on threads of their own and carry collectives over MPI from there, while the program
 * asks for less. */
extern "C" int MPI_Init_thread(int *argc, char ***argv, int, int *provided)
{
    return PMPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, provided);
}

enum { GOODBYE_TAG = 99 };

static void pause_shortly()
{
    timespec pause = {0, 200000};
    nanosleep(&pause, nullptr);
}

static int library_version()
{
    const char *text = getenv("TTRAIN_SIMULATOR_NCCL_VERSION");
    return text && *text ? static_cast<int>(strtol(text, nullptr, 10)) : NCCL_VERSION_CODE;
}

static int current_device()
{
    int device = 0;
    cudaGetDevice(&device);
    return device;
}

/* Whether all processes of MPI take part; ends the program where they cannot be joined. */
static void check_mpi(int size, int rank)
{
    int initialised = 0, finalised = 0, level = 0, world_size = 0, world_rank = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (!initialised || finalised) {
        simulator_fail("ncclCommInitRank: %d ranks, but MPI is not running", size);
    }
    MPI_Query_thread(&level);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    if (level != MPI_THREAD_MULTIPLE || world_size != size || world_rank != rank) {
        simulator_fail("ncclCommInitRank: rank %d of %d; MPI has rank %d of %d and thread level %d "
                       "(expected the same rank, and level %d)",
                       rank, size, world_rank, world_size, level, MPI_THREAD_MULTIPLE);
    }
}

communicator::communicator(int size, int rank, uint64_t id, bool blocking)
    : size(size), rank(rank), device(current_device()), blocking(blocking)
{
    own_.id = id;
    own_.process = getpid();
    own_.device = device;
    own_.version = library_version();
    gethostname(own_.host, sizeof own_.host - 1);
    cudaDeviceGetPCIBusId(own_.bus, sizeof own_.bus, device);
    members_.assign(static_cast<size_t>(size), own_);
    if (size == 1) {
        step_ = ready;
        return;
    }
    check_mpi(size, rank);
    /* Peers wait for work of this process whatever its main thread does. */
    simulator_run_in_background(true);
    MPI_Comm_idup(MPI_COMM_WORLD, &mpi_, &request_);
}

void communicator::advance()
{
    int done = 0;
    if (step_ == ready || aborted_) {
        return;
    }
    MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
    if (!done) {
        return;
    }
    if (step_ == meeting) {
        MPI_Iallgather(&own_, sizeof own_, MPI_BYTE, members_.data(), sizeof own_, MPI_BYTE, mpi_,
                       &request_);
        step_ = introducing;
        return;
    }
    step_ = ready;
    check_members();
}

void communicator::check_members()
{
    char reason[256] = "";
    for (int i = 0; i < size && !*reason; i++) {
        const member &one = members_[static_cast<size_t>(i)];
        if (one.id != own_.id) {
            snprintf(reason, sizeof reason, "rank %d joined with another unique id", i);
        } else if (one.version != own_.version) {
            snprintf(reason, sizeof reason, "rank %d has NCCL %d, rank %d has %d", i, one.version,
                     rank, own_.version);
        }
        for (int j = 0; j < i && !*reason; j++) {
            const member &other = members_[static_cast<size_t>(j)];
            if (strcmp(one.bus, other.bus) == 0 && strcmp(one.host, other.host) == 0) {
                snprintf(reason, sizeof reason, "ranks %d and %d have one device, %s of %s", j, i,
                         one.bus, one.host);
            }
        }
    }
    if (*reason) {
        error_ = ncclInvalidUsage;
        last_error_ = reason;
    }
}

ncclResult_t communicator::state()
{
    std::lock_guard<std::mutex> lock(mutex_);
    advance();
    if (error_ != ncclSuccess) {
        return error_;
    }
    if (step_ != ready) {
        return ncclInProgress;
    }
    if (pretended_ > 0) {
        pretended_--;
        return ncclInProgress;
    }
    return ncclSuccess;
}

ncclResult_t communicator::error()
{
    std::lock_guard<std::mutex> lock(mutex_);
    return error_;
}

ncclResult_t communicator::check_ready(const char *call)
{
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (error_ != ncclSuccess || (step_ == ready && pretended_ == 0)) {
            return error_;
        }
    }
    return fail(ncclInvalidArgument,
                "%s: the communicator is used before ncclCommGetAsyncError said ncclSuccess", call);
}

ncclResult_t communicator::fail(ncclResult_t result, const char *format, ...)
{
    char reason[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    std::lock_guard<std::mutex> lock(mutex_);
    if (error_ == ncclSuccess) {
        error_ = result;
        last_error_ = reason;
    }
    return result;
}

std::string communicator::last_error()
{
    std::lock_guard<std::mutex> lock(mutex_);
    return last_error_;
}

void communicator::pretend_progress()
{
    std::lock_guard<std::mutex> lock(mutex_);
    pretended_ = 1;
}

std::string communicator::name_of(int member_rank) const
{
    const member &one = members_[static_cast<size_t>(member_rank)];
    return "rank " + std::to_string(member_rank) + " (process " + std::to_string(one.process) +
           " on " + one.host + ")";
}

/* --- peers that are gone --- */

/* A process that has ended but that its parent has not yet asked about counts as dead. */
static bool is_dead(int process)
{
    if (kill(process, 0) != 0) {
        return errno == ESRCH;
    }
    char path[64], state = '?';
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) {
            state = '?';
        }
        fclose(file);
    }
    return state == 'Z' || state == 'X';
}

void communicator::look_for_lost_peers()
{
    int left = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, GOODBYE_TAG, mpi_, &left, &status);
    if (left) {
        fail(ncclRemoteError, "%s aborted the communicator", name_of(status.MPI_SOURCE).c_str());
    }
    for (int i = 0; i < size; i++) {
        const member &one = members_[static_cast<size_t>(i)];
        if (i != rank && strcmp(one.host, own_.host) == 0 && is_dead(one.process)) {
            fail(ncclRemoteError, "%s is gone", name_of(i).c_str());
        }
    }
}

void communicator::abort()
{
    aborted_ = true;
    std::lock_guard<std::mutex> lock(mutex_);
    for (int i = 0; i < size && step_ == ready && mpi_ != MPI_COMM_NULL; i++) {
        if (i != rank) {
            MPI_Request request;
            MPI_Isend(nullptr, 0, MPI_BYTE, i, GOODBYE_TAG, mpi_, &request);
            MPI_Request_free(&request);
        }
    }
}

void communicator::release()
{
    int finalised = 0;
    released_ = true;
    MPI_Finalized(&finalised);
    std::lock_guard<std::mutex> lock(mutex_);
    if (!finalised && !aborted_ && step_ == ready && mpi_ != MPI_COMM_NULL) {
        MPI_Comm_free(&mpi_);
    }
}

/* --- the interface --- */

ncclResult_t ncclGetVersion(int *version)
{
    if (!version) {
        return ncclInvalidArgument;
    }
    *version = library_version();
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    if (!id) {
        return ncclInvalidArgument;
    }
    static std::atomic<int> made{0};
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "simulator %d %lld.%09ld %d", getpid(),
             static_cast<long long>(now.tv_sec), now.tv_nsec, made++);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    static thread_local std::string text;
    text = comm ? comm->inside->last_error() : "";
    return text.c_str();
}

static uint64_t hash_id(const ncclUniqueId &id)
{
    uint64_t hash = 14695981039346656037u;
    for (char byte : id.internal) {
        hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211u;
    }
    return hash;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    if (!comm || nranks < 1 || rank < 0 || rank >= nranks || strncmp(id.internal, "sim", 3) != 0 ||
        (config && (config->size != sizeof *config || config->magic != 0xcafebeefu))) {
        return ncclInvalidArgument;
    }
    if (simulator_forbidden_in_capture("ncclCommInitRank") != cudaSuccess) {
        return ncclInvalidUsage;
    }
    bool blocking = !config || config->blocking != 0;
    auto inside = std::make_shared<communicator>(nranks, rank, hash_id(id), blocking);
    *comm = new ncclComm{inside};
    if (!blocking) {
        return ncclInProgress;
    }
    ncclResult_t result;
    while ((result = inside->state()) == ncclInProgress) {
        pause_shortly();
    }
    return result;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(comm, nranks, id, rank, nullptr);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    if (!comm || !error) {
        return ncclInvalidArgument;
    }
    *error = comm->inside->state();
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (!comm) {
        return ncclInvalidArgument;
    }
    communicator &inside = *comm->inside;
    if (inside.unfinished > 0) {
        simulator_fail("ncclCommFinalize: %lld collectives have not run yet",
                       static_cast<long long>(inside.unfinished));
    }
    if (inside.blocking) {
        return ncclSuccess;
    }
    inside.pretend_progress();
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm) {
        return ncclSuccess;
    }
    if (simulator_forbidden_in_capture("ncclCommDestroy") != cudaSuccess) {
        return ncclInvalidUsage;
    }
    if (comm->inside->unfinished > 0) {
        simulator_fail("ncclCommDestroy: %lld collectives have not run yet",
                       static_cast<long long>(comm->inside->unfinished));
    }
    comm->inside->release();
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (!comm) {
        return ncclSuccess;
    }
    comm->inside->abort();
    comm->inside->release();
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    if (!comm || !count) {
        return ncclInvalidArgument;
    }
    *count = comm->inside->size;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    if (!comm || !rank) {
        return ncclInvalidArgument;
    }
    *rank = comm->inside->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    if (!comm || !device) {
        return ncclInvalidArgument;
    }
    *device = comm->inside->device;
    return ncclSuccess;
}

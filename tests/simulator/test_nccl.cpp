/* The simulated NCCL: each scenario runs under mpirun as processes of this program, which plant a
 * mistake or die, and the test reads what they said. */
#include "nccl.h"
#include "nccl_communicator.hpp"
#include "planted.hpp"
#include "simulator.h"

#include <cmath>
#include <ctime>
#include <vector>

#define CHECK_NCCL(call) CHECK((call) == ncclSuccess)

namespace
{

const double patience = 60.0; /* seconds on a busy machine */

/* --- one rank --- */

int size, rank;

double now()
{
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void pause_shortly()
{
    timespec pause = {0, 1000000};
    nanosleep(&pause, nullptr);
}

ncclResult_t state_of(ncclComm_t comm)
{
    ncclResult_t result = ncclSuccess;
    CHECK_NCCL(ncclCommGetAsyncError(comm, &result));
    return result;
}

ncclResult_t settle(ncclComm_t comm)
{
    double until = now() + patience;
    ncclResult_t result;
    while ((result = state_of(comm)) == ncclInProgress && now() < until) {
        pause_shortly();
    }
    return result;
}

/* Ranks of one host take devices of their own unless `device` says otherwise. */
ncclComm_t connect(bool blocking = true, int device = -1, ncclResult_t expected = ncclSuccess)
{
    CHECK_CUDA(cudaSetDevice(device >= 0 ? device : rank));
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    if (rank == 0) {
        CHECK_NCCL(ncclGetUniqueId(&id));
    }
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    ncclComm_t comm = nullptr;
    ncclResult_t result = ncclCommInitRankConfig(&comm, size, id, rank, &config);
    CHECK(blocking ? result == expected : result == ncclInProgress);
    CHECK(settle(comm) == expected);
    return comm;
}

cudaStream_t new_stream()
{
    cudaStream_t stream;
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

template <typename T> T *on_device(const std::vector<T> &from)
{
    T *memory = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void **>(&memory), from.size() * sizeof(T)));
    CHECK_CUDA(cudaMemcpy(memory, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    return memory;
}

template <typename T> std::vector<T> on_host(const T *from, size_t count)
{
    std::vector<T> to(count);
    CHECK_CUDA(cudaMemcpy(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
}

/* A rank's numbers; whoever knows the rank knows them. */
std::vector<float> numbers_of(int whose, size_t count)
{
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++) {
        values[i] = std::sin(static_cast<float>(i) + 0.1f * static_cast<float>(whose)) /
                    static_cast<float>(whose + 1);
    }
    return values;
}

void sums()
{
    ncclComm_t comm = connect();
    cudaStream_t stream = new_stream();
    int count = 0, own = -1;
    CHECK_NCCL(ncclCommCount(comm, &count));
    CHECK_NCCL(ncclCommUserRank(comm, &own));
    CHECK(count == size && own == rank);
    for (size_t length : {1u, 3u, 1037u}) {
        std::vector<float> expected = numbers_of(0, length);
        for (int i = 1; i < size; i++) {
            std::vector<float> other = numbers_of(i, length);
            for (size_t j = 0; j < length; j++) {
                expected[j] += other[j];
            }
        }
        float *values = on_device(numbers_of(rank, length));
        CHECK_NCCL(ncclAllReduce(values, values, length, ncclFloat32, ncclSum, comm, stream));
        /* Peers get on while this rank's main thread waits for something else. */
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK_CUDA(cudaStreamSynchronize(stream));
        CHECK(on_host(values, length) == expected);
    }
    CHECK_NCCL(ncclCommDestroy(comm));
}

void other_types()
{
    ncclComm_t comm = connect();
    cudaStream_t stream = new_stream();
    double *wide = on_device(std::vector<double>{1.0 + rank, -1.0 - rank});
    double *largest = on_device(std::vector<double>{0.0, 0.0});
    uint16_t *narrow = on_device(std::vector<uint16_t>{0x3F80, 0x4000}); /* 1 and 2 */
    uint8_t *bytes = on_device(std::vector<uint8_t>{static_cast<uint8_t>(rank), 7});
    CHECK_NCCL(ncclGroupStart());
    CHECK_NCCL(ncclAllReduce(wide, largest, 2, ncclFloat64, ncclMax, comm, stream));
    CHECK_NCCL(ncclAllReduce(narrow, narrow, 2, ncclBfloat16, ncclSum, comm, stream));
    CHECK_NCCL(ncclBroadcast(bytes, bytes, 2, ncclUint8, size - 1, comm, stream));
    CHECK_NCCL(ncclGroupEnd());
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK(on_host(largest, 2) == (std::vector<double>{static_cast<double>(size), -1.0}));
    std::vector<uint16_t> sums =
        size == 2 ? std::vector<uint16_t>{0x4000, 0x4080} : std::vector<uint16_t>{0x4080, 0x4100};
    CHECK(on_host(narrow, 2) == sums);
    CHECK(on_host(bytes, 2) == (std::vector<uint8_t>{static_cast<uint8_t>(size - 1), 7}));
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    CHECK_NCCL(ncclCommDestroy(comm));
}

/* A collective on a stream of its own within a capture, as the trainer has it. */
void captured()
{
    ncclComm_t comm = connect();
    cudaStream_t stream = new_stream(), side = new_stream();
    cudaEvent_t begin, end;
    CHECK_CUDA(cudaEventCreateWithFlags(&begin, cudaEventDisableTiming));
    CHECK_CUDA(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
    float *values = on_device(std::vector<float>{1.0f, 2.0f, 3.0f});
    CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK_CUDA(cudaEventRecord(begin, stream));
    CHECK_CUDA(cudaStreamWaitEvent(side, begin, 0));
    CHECK_NCCL(ncclAllReduce(values, values, 3, ncclFloat32, ncclSum, comm, side));
    CHECK_CUDA(cudaEventRecord(end, side));
    CHECK_CUDA(cudaStreamWaitEvent(stream, end, 0));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 3; i++) {
        CHECK_CUDA(cudaGraphLaunch(executable, stream));
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK_CUDA(cudaStreamSynchronize(stream));
    float factor = static_cast<float>(size * size * size);
    CHECK(on_host(values, 3) == (std::vector<float>{factor, 2.0f * factor, 3.0f * factor}));
    CHECK_NCCL(ncclCommDestroy(comm));
}

void without_blocking()
{
    ncclComm_t comm = connect(false);
    cudaStream_t stream = new_stream();
    float *values = on_device(std::vector<float>{1.0f});
    CHECK(ncclAllReduce(values, values, 1, ncclFloat32, ncclSum, comm, stream) == ncclInProgress);
    CHECK_NCCL(settle(comm));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK(on_host(values, 1)[0] == static_cast<float>(size));
    CHECK(ncclCommFinalize(comm) == ncclInProgress);
    CHECK_NCCL(settle(comm));
    CHECK_NCCL(ncclCommDestroy(comm));
}

/* --- planted mistakes --- */

void reduce_mismatched(size_t count, ncclDataType_t type, ncclRedOp_t operation)
{
    ncclComm_t comm = connect();
    cudaStream_t stream = new_stream();
    float *values = on_device(numbers_of(rank, 2048));
    CHECK_NCCL(ncclAllReduce(values, values, count, type, operation, comm, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
}

void other_count()
{
    reduce_mismatched(rank == 1 ? 1000 : 1024, ncclFloat32, ncclSum);
}

void other_type()
{
    reduce_mismatched(1024, rank == 1 ? ncclBfloat16 : ncclFloat32, ncclSum);
}

void other_operation()
{
    reduce_mismatched(1024, ncclFloat32, rank == 1 ? ncclMax : ncclSum);
}

void one_device()
{
    ncclComm_t comm = connect(true, 0, ncclInvalidUsage);
    fprintf(stderr, "rank %d: %s\n", rank, ncclGetLastError(comm));
    CHECK_NCCL(ncclCommAbort(comm));
}

void two_streams()
{
    ncclComm_t comm = connect();
    float *values = on_device(std::vector<float>{1.0f});
    cudaStream_t stream = new_stream();
    CHECK_NCCL(ncclAllReduce(values, values, 1, ncclFloat32, ncclSum, comm, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK(ncclAllReduce(values, values, 1, ncclFloat32, ncclSum, comm, new_stream()) ==
          ncclInvalidUsage);
    fprintf(stderr, "rank %d: %s\n", rank, ncclGetLastError(comm));
    CHECK_NCCL(ncclCommAbort(comm));
}

void too_soon()
{
    ncclComm_t comm = connect(false);
    float *values = on_device(std::vector<float>{1.0f});
    cudaStream_t stream = new_stream();
    CHECK(ncclAllReduce(values, values, 1, ncclFloat32, ncclSum, comm, stream) == ncclInProgress);
    CHECK(ncclAllReduce(values, values, 1, ncclFloat32, ncclSum, comm, stream) ==
          ncclInvalidArgument);
    fprintf(stderr, "rank %d: %s\n", rank, ncclGetLastError(comm));
    CHECK_NCCL(ncclCommAbort(comm));
}

/* --- lost peers --- */

/* Rank 0 waits for a peer that `leave` takes out; it must learn of it, and get free by aborting. */
void lose_a_peer(void (*leave)(ncclComm_t comm))
{
    ncclComm_t comm = connect();
    cudaStream_t stream = new_stream();
    float *values = on_device(numbers_of(rank, 100));
    CHECK_NCCL(ncclAllReduce(values, values, 100, ncclFloat32, ncclSum, comm, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    if (rank == 1) {
        leave(comm);
    }
    CHECK_NCCL(ncclAllReduce(values, values, 100, ncclFloat32, ncclSum, comm, stream));
    double until = now() + patience;
    while (state_of(comm) == ncclSuccess && now() < until) {
        pause_shortly();
    }
    fprintf(stderr, "rank %d: %s: %s\n", rank, ncclGetErrorString(state_of(comm)),
            ncclGetLastError(comm));
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    CHECK_NCCL(ncclCommAbort(comm));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    fprintf(stderr, "rank %d is free\n", rank);
    _exit(0);
}

void killed_peer()
{
    lose_a_peer([](ncclComm_t) { raise(SIGKILL); });
}

void aborting_peer()
{
    lose_a_peer([](ncclComm_t comm) {
        CHECK_NCCL(ncclCommAbort(comm));
        double until = now() + 2.0;
        while (now() < until) { /* alive, and MPI gets on */
            pause_shortly();
            int flag;
            MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
        }
        _exit(0);
    });
}

struct scenario {
    const char *name;
    void (*body)();
};

const scenario scenarios[] = {
    {"sums", sums},
    {"other_types", other_types},
    {"captured", captured},
    {"without_blocking", without_blocking},
    {"other_count", other_count},
    {"other_type", other_type},
    {"other_operation", other_operation},
    {"one_device", one_device},
    {"two_streams", two_streams},
    {"too_soon", too_soon},
    {"killed_peer", killed_peer},
    {"aborting_peer", aborting_peer},
};

int run_rank(const char *name)
{
    int level = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
    CHECK(level == MPI_THREAD_MULTIPLE);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (const scenario &one : scenarios) {
        if (strcmp(one.name, name) == 0) {
            one.body();
            MPI_Finalize();
            return 0;
        }
    }
    return 2;
}

/* --- the test --- */

planted::outcome launch(const char *name, int ranks, const char *more = "--tag-output")
{
    static char program[4096];
    CHECK(readlink("/proc/self/exe", program, sizeof program - 1) > 0);
    return planted::run([=] {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
        setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
        setenv("TTRAIN_SIMULATOR_DEVICES", "4", 1);
        /* What MPI's plug-ins leave behind cannot be told from leaks of the program. */
        setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
        dup2(STDERR_FILENO, STDOUT_FILENO);
        std::string count = std::to_string(ranks);
        execlp(TTRAIN_MPIRUN, "mpirun", "-np", count.c_str(), "--oversubscribe", "--bind-to",
               "none", more, program, "rank", name, static_cast<char *>(nullptr));
        _exit(127);
    });
}

void expect_good(const char *name, int ranks)
{
    planted::outcome result = launch(name, ranks);
    if (!result.ended_well()) {
        fprintf(stderr, "%s\n", result.said.c_str());
    }
    CHECK(result.ended_well());
}

} // namespace

static void test_good_calls()
{
    for (int ranks : {2, 4}) {
        expect_good("sums", ranks);
        expect_good("other_types", ranks);
        expect_good("captured", ranks);
    }
    expect_good("without_blocking", 2);
}

static void test_mismatches()
{
    planted::outcome result = launch("other_count", 2);
    CHECK(!result.ended_well());
    planted::expect(result, "ncclAllReduce of 1024 elements of float32, sum");
    planted::expect(result, "ncclAllReduce of 1000 elements of float32, sum");
    planted::expect(result, "rank 0 calls");
    planted::expect(result, "rank 1 calls");
    result = launch("other_type", 2);
    CHECK(!result.ended_well());
    planted::expect(result, "ncclAllReduce of 1024 elements of bfloat16, sum");
    result = launch("other_operation", 2);
    CHECK(!result.ended_well());
    planted::expect(result, "ncclAllReduce of 1024 elements of float32, max");
}

static void test_misuse()
{
    planted::outcome result = launch("one_device", 2);
    CHECK(result.ended_well());
    planted::expect(result, "ranks 0 and 1 have one device, ");
    result = launch("two_streams", 2);
    CHECK(result.ended_well());
    planted::expect(result, "ncclAllReduce: the communicator was used in another stream before");
    result = launch("too_soon", 2);
    CHECK(result.ended_well());
    planted::expect(result, "used before ncclCommGetAsyncError said ncclSuccess");
}

/* mpirun itself ends the others when a rank dies, unless it is told to let them recover. */
static void test_lost_peers()
{
    planted::outcome result = launch("killed_peer", 2, "--enable-recovery");
    planted::expect(result, "rank 0: remote process exited or there was a network error: rank 1 "
                            "(process ");
    planted::expect(result, " is gone");
    planted::expect(result, "rank 0 is free");
    result = launch("aborting_peer", 2, "--enable-recovery");
    planted::expect(result, " aborted the communicator");
    planted::expect(result, "rank 0 is free");
}

int main(int count, char **arguments)
{
    if (count == 3 && strcmp(arguments[1], "rank") == 0) {
        return run_rank(arguments[2]);
    }
    static const planted::test tests[] = {
        {"sums, types, capture", test_good_calls},
        {"planted: count, type, operation that differ", test_mismatches},
        {"planted: one device, two streams, a call too soon", test_misuse},
        {"planted: lost peers", test_lost_peers},
    };
    return planted::run_all(tests, sizeof tests / sizeof *tests);
}

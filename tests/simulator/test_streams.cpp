/* Streams, events, pinned memory, capture and graphs: the order of things, and what breaks it. */
#include "cuda_runtime.h"
#include "planted.hpp"
#include "simulator.h"
#include "simulator_runtime.hpp"

#include <cstring>
#include <thread>
#include <vector>

#define LAUNCH(stream, kernel, ...)                                                                \
    CHECK_CUDA(simulator_launch(#kernel, __FILE__, __LINE__, 1, 32, 0, stream, kernel, __VA_ARGS__))

namespace
{

using planted::expect;
using planted::expect_abort;
using planted::run;

constexpr size_t bytes = 32 * sizeof(float);

struct setup {
    cudaStream_t compute, upload;
    cudaEvent_t event;
    float *x, *y;           /* on the device, zero */
    float *pinned, *result; /* pinned host memory */

    setup()
    {
        CHECK_CUDA(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
        CHECK_CUDA(cudaStreamCreateWithFlags(&upload, cudaStreamNonBlocking));
        CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        CHECK_CUDA(cudaMalloc(&x, bytes));
        CHECK_CUDA(cudaMalloc(&y, bytes));
        CHECK_CUDA(cudaMallocHost(&pinned, bytes));
        CHECK_CUDA(cudaMallocHost(&result, bytes));
        CHECK_CUDA(cudaMemset(x, 0, bytes));
        CHECK_CUDA(cudaMemset(y, 0, bytes));
        CHECK_CUDA(cudaDeviceSynchronize());
        fill(1.0F);
    }
    ~setup()
    {
        CHECK_CUDA(cudaDeviceSynchronize());
        CHECK_CUDA(cudaFree(x));
        CHECK_CUDA(cudaFree(y));
        CHECK_CUDA(cudaFreeHost(pinned));
        CHECK_CUDA(cudaFreeHost(result));
        CHECK_CUDA(cudaEventDestroy(event));
        CHECK_CUDA(cudaStreamDestroy(compute));
        CHECK_CUDA(cudaStreamDestroy(upload));
    }
    setup(const setup &) = delete;
    setup &operator=(const setup &) = delete;
    void fill(float value)
    {
        for (int i = 0; i < 32; i++) {
            pinned[i] = value;
        }
    }
};

__global__ void add_to(const float *x, float *y)
{
    y[threadIdx.x] += x[threadIdx.x];
}

float first_of(const float *y)
{
    float value = 0.0F;
    CHECK_CUDA(cudaMemcpy(&value, y, sizeof(value), cudaMemcpyDeviceToHost));
    return value;
}

/* An upload that the compute stream waits for by an event. */
void ordered_upload()
{
    for (uint64_t seed = 0; seed < 10; seed++) {
        simulator_set_seed(seed);
        setup with;
        CHECK_CUDA(
            cudaMemcpyAsync(with.x, with.pinned, bytes, cudaMemcpyHostToDevice, with.upload));
        CHECK_CUDA(cudaEventRecord(with.event, with.upload));
        CHECK_CUDA(cudaStreamWaitEvent(with.compute, with.event));
        LAUNCH(with.compute, add_to, with.x, with.y);
        CHECK(cudaStreamQuery(with.compute) == cudaSuccess);
        CHECK_CUDA(cudaStreamSynchronize(with.compute));
        CHECK(first_of(with.y) == 1.0F);
    }
}

/* The same without the event. */
void unordered_upload(uint64_t seed)
{
    simulator_set_seed(seed);
    setup with;
    CHECK_CUDA(cudaMemcpyAsync(with.x, with.pinned, bytes, cudaMemcpyHostToDevice, with.upload));
    LAUNCH(with.compute, add_to, with.x, with.y);
    CHECK_CUDA(cudaDeviceSynchronize());
}

void missing_dependency()
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        const planted::outcome result = run([seed] { unordered_upload(seed); });
        expect_abort(result, "missing dependency between streams: ");
        expect_abort(result, "copy to the device");
        expect_abort(result, "kernel add_to (");
    }
}

/* A pointer that is left in the padding of an argument is none. */
void left_in_padding()
{
    struct argument {
        int64_t number;
        bool flag;
    } one;
    const void *pointer = nullptr;
    setup with;
    memcpy(static_cast<void *>(&one.flag), &with.x, sizeof(with.x));
    simulator::clear_padding(one);
    memcpy(&pointer, &one.flag, sizeof(pointer));
    CHECK(reinterpret_cast<uintptr_t>(pointer) <= 255);
}

/* The second upload must wait until the kernel has read the first. */
void upload_over_what_is_being_read()
{
    const planted::outcome result = run([] {
        setup with;
        CHECK_CUDA(
            cudaMemcpyAsync(with.x, with.pinned, bytes, cudaMemcpyHostToDevice, with.upload));
        CHECK_CUDA(cudaEventRecord(with.event, with.upload));
        CHECK_CUDA(cudaStreamWaitEvent(with.compute, with.event));
        LAUNCH(with.compute, add_to, with.x, with.y);
        CHECK_CUDA(
            cudaMemcpyAsync(with.x, with.pinned, bytes, cudaMemcpyHostToDevice, with.upload));
        CHECK_CUDA(cudaDeviceSynchronize());
    });
    expect_abort(result, "missing dependency between streams: ");
}

void library_calls_race_too()
{
    const planted::outcome result = run([] {
        setup with;
        float *x = with.x;
        CHECK_CUDA(simulator_enqueue(with.compute, "someGemm", [x] { x[3] = 1.0F; },
                                     {simulator_writes(x, bytes)}));
        CHECK_CUDA(simulator_enqueue(with.upload, "someReduce", [x] { x[3] = 2.0F; },
                                     {simulator_reads(x + 8, 8), simulator_writes(x + 8, 8)}));
        CHECK_CUDA(cudaDeviceSynchronize());
    });
    expect_abort(result, "someGemm");
    expect_abort(result, "someReduce");
    expect_abort(run([] {
                     setup with;
                     simulator_enqueue(with.compute, "someGemm", [] {},
                                       {simulator_reads(with.x, bytes + 4)});
                 }),
                 "someGemm reads 132 bytes at ");
}

/* Columns of one matrix that different streams work on do not meet. */
void columns_do_not_race()
{
    setup with;
    float *x = with.x;
    CHECK_CUDA(simulator_enqueue(with.compute, "left", [] {}, {simulator_writes(x, 8, 4, 32)}));
    CHECK_CUDA(
        simulator_enqueue(with.upload, "right", [] {}, {simulator_writes(x + 2, 24, 4, 32)}));
    CHECK_CUDA(cudaDeviceSynchronize());
}

void pinned_overwritten_early()
{
    expect_abort(run([] {
                     setup with;
                     CHECK_CUDA(cudaMemcpyAsync(with.x, with.pinned, bytes, cudaMemcpyHostToDevice,
                                                with.upload));
                     with.fill(2.0F);
                     CHECK_CUDA(cudaStreamSynchronize(with.upload));
                 }),
                 "copy to the device of 128 bytes from pinned memory ");
    setup with;
    CHECK_CUDA(cudaMemcpyAsync(with.x, with.pinned, bytes, cudaMemcpyHostToDevice, with.upload));
    CHECK_CUDA(cudaEventRecord(with.event, with.upload));
    CHECK_CUDA(cudaEventSynchronize(with.event));
    with.fill(2.0F);
    CHECK_CUDA(cudaMemcpyAsync(with.x, with.pinned, bytes, cudaMemcpyHostToDevice, with.upload));
    CHECK_CUDA(cudaStreamSynchronize(with.upload));
    CHECK(first_of(with.x) == 2.0F);
}

/* What a copy will write is nothing before it has run. */
void pinned_read_early()
{
    setup with;
    with.result[0] = 5.0F;
    CHECK_CUDA(cudaMemcpyAsync(with.result, with.y, bytes, cudaMemcpyDeviceToHost, with.compute));
    CHECK(with.result[0] != with.result[0]);
    CHECK_CUDA(cudaStreamSynchronize(with.compute));
    CHECK(with.result[0] == 0.0F);
}

/* Pageable memory is taken at once. */
void pageable_copies()
{
    setup with;
    std::vector<float> host(32, 3.0F);
    CHECK_CUDA(cudaMemcpyAsync(with.x, host.data(), bytes, cudaMemcpyHostToDevice, with.compute));
    host.assign(32, 4.0F);
    CHECK_CUDA(cudaMemcpyAsync(host.data(), with.x, bytes, cudaMemcpyDeviceToHost, with.compute));
    CHECK(host[0] == 3.0F);
}

void capture_step(setup *with)
{
    CHECK_CUDA(cudaStreamBeginCapture(with->compute, cudaStreamCaptureModeThreadLocal));
    CHECK_CUDA(
        cudaMemcpyAsync(with->x, with->pinned, bytes, cudaMemcpyHostToDevice, with->compute));
    CHECK_CUDA(cudaEventRecord(with->event, with->compute));
    CHECK_CUDA(cudaStreamWaitEvent(with->upload, with->event));
    LAUNCH(with->upload, add_to, with->x, with->y);
    CHECK_CUDA(cudaEventRecord(with->event, with->upload));
    CHECK_CUDA(cudaStreamWaitEvent(with->compute, with->event));
    LAUNCH(with->compute, add_to, with->x, with->y);
}

void capture_and_replay()
{
    setup with;
    simulator_launch_reset();
    capture_step(&with);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CHECK_CUDA(cudaStreamEndCapture(with.compute, &graph));
    size_t nodes = 0;
    CHECK_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == 3);
    CHECK(simulator_launch_count(SIMULATOR_KERNEL) == 0);
    CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    CHECK_CUDA(cudaGraphDestroy(graph));
    CHECK(first_of(with.y) == 0.0F);
    for (int i = 1; i <= 3; i++) {
        with.fill(static_cast<float>(i));
        CHECK_CUDA(cudaGraphLaunch(executable, with.compute));
        CHECK_CUDA(cudaStreamSynchronize(with.compute));
        CHECK(first_of(with.y) == static_cast<float>(i * (i + 1)));
    }
    CHECK(simulator_launch_count(SIMULATOR_KERNEL) == 6);
    CHECK(simulator_launch_count(SIMULATOR_GRAPH) == 3);
    CHECK_CUDA(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphLaunch(nullptr, with.compute) == cudaErrorInvalidResourceHandle);
}

void destroyed_handles()
{
    cudaEvent_t event = nullptr;
    cudaStream_t stream = nullptr;
    CHECK_CUDA(cudaStreamCreate(&stream));
    CHECK_CUDA(cudaEventCreate(&event));
    CHECK_CUDA(cudaEventDestroy(event));
    CHECK(cudaEventRecord(event, stream) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamWaitEvent(stream, event) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventQuery(event) == cudaErrorInvalidResourceHandle);
    CHECK_CUDA(cudaStreamDestroy(stream));
    CHECK(cudaStreamQuery(stream) == cudaErrorInvalidResourceHandle);
    CHECK(simulator_live_objects() == 0);
}

/* Two branches of a graph that touch the same memory. */
void race_inside_a_graph()
{
    const planted::outcome result = run([] {
        setup with;
        CHECK_CUDA(cudaStreamBeginCapture(with.compute, cudaStreamCaptureModeGlobal));
        CHECK_CUDA(cudaEventRecord(with.event, with.compute));
        CHECK_CUDA(cudaStreamWaitEvent(with.upload, with.event));
        CHECK_CUDA(cudaMemsetAsync(with.x, 0, bytes, with.upload));
        LAUNCH(with.compute, add_to, with.x, with.y);
        CHECK_CUDA(cudaEventRecord(with.event, with.upload));
        CHECK_CUDA(cudaStreamWaitEvent(with.compute, with.event));
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        CHECK_CUDA(cudaStreamEndCapture(with.compute, &graph));
        CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
        CHECK_CUDA(cudaGraphLaunch(executable, with.compute));
        CHECK_CUDA(cudaStreamSynchronize(with.compute));
    });
    expect_abort(result, "missing dependency between streams: ");
}

/* `call` must fail in a capture, name itself, and spoil the capture. */
void forbidden(const char *name, cudaError_t (*call)(setup *))
{
    const planted::outcome result = run([call] {
        setup with;
        CHECK_CUDA(cudaStreamBeginCapture(with.compute, cudaStreamCaptureModeThreadLocal));
        LAUNCH(with.compute, add_to, with.x, with.y);
        const cudaError_t status = call(&with);
        CHECK(status == cudaErrorStreamCaptureUnsupported ||
              status == cudaErrorStreamCaptureImplicit);
        CHECK(simulator_launch("k", "f", 1, 1, 32, 0, with.compute, add_to, with.x, with.y) ==
              cudaErrorStreamCaptureInvalidated);
        cudaGraph_t graph = nullptr;
        CHECK(cudaStreamEndCapture(with.compute, &graph) == cudaErrorStreamCaptureInvalidated);
        CHECK(graph == nullptr);
        LAUNCH(with.compute, add_to, with.x, with.y);
        CHECK_CUDA(cudaStreamSynchronize(with.compute));
    });
    expect(result, (std::string(name) + " during capture: ").c_str());
    if (!result.ended_well()) {
        fprintf(stderr, "%s\n", result.said.c_str());
    }
    CHECK(result.ended_well());
}

void forbidden_during_capture()
{
    forbidden("cudaMalloc", [](setup *) {
        void *memory = nullptr;
        return cudaMalloc(&memory, 100);
    });
    forbidden("cudaFree", [](setup *with) { return cudaFree(with->y); });
    forbidden("cudaHostAlloc", [](setup *) {
        void *memory = nullptr;
        return cudaMallocHost(&memory, 100);
    });
    forbidden("cudaDeviceSynchronize", [](setup *) { return cudaDeviceSynchronize(); });
    forbidden("cudaStreamSynchronize",
              [](setup *with) { return cudaStreamSynchronize(with->compute); });
    forbidden("cudaStreamSynchronize",
              [](setup *with) { return cudaStreamSynchronize(with->upload); });
    forbidden("cudaStreamQuery", [](setup *with) { return cudaStreamQuery(with->compute); });
    forbidden("cudaEventQuery", [](setup *with) { return cudaEventQuery(with->event); });
    forbidden("cudaMemcpy", [](setup *with) {
        float value = 0.0F;
        return cudaMemcpy(&value, with->y, sizeof(value), cudaMemcpyDeviceToHost);
    });
    forbidden("cudaMemcpyAsync", [](setup *with) {
        float value = 0.0F;
        return cudaMemcpyAsync(with->y, &value, sizeof(value), cudaMemcpyHostToDevice,
                               with->compute);
    });
}

void captures_must_join()
{
    setup with;
    CHECK_CUDA(cudaStreamBeginCapture(with.compute, cudaStreamCaptureModeGlobal));
    CHECK_CUDA(cudaEventRecord(with.event, with.compute));
    CHECK_CUDA(cudaStreamWaitEvent(with.upload, with.event));
    LAUNCH(with.upload, add_to, with.x, with.y);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(with.compute, &graph) == cudaErrorStreamCaptureUnjoined);
    /* An event from before the capture cannot order it. */
    CHECK_CUDA(cudaEventRecord(with.event, with.upload));
    CHECK_CUDA(cudaStreamBeginCapture(with.compute, cudaStreamCaptureModeGlobal));
    CHECK(cudaStreamWaitEvent(with.compute, with.event) == cudaErrorStreamCaptureIsolation);
    CHECK(cudaStreamEndCapture(with.compute, &graph) == cudaErrorStreamCaptureInvalidated);
}

/* A thread-local capture lets other threads allocate; a global one does not. */
void other_threads_during_capture()
{
    setup with;
    cudaGraph_t graph = nullptr;
    const auto allocate_elsewhere = [] {
        cudaError_t status = cudaSuccess;
        std::thread([&status] {
            void *memory = nullptr;
            status = cudaMalloc(&memory, 100);
            if (status == cudaSuccess) {
                cudaFree(memory);
            }
        }).join();
        return status;
    };
    CHECK_CUDA(cudaStreamBeginCapture(with.compute, cudaStreamCaptureModeThreadLocal));
    CHECK_CUDA(allocate_elsewhere());
    CHECK_CUDA(cudaStreamEndCapture(with.compute, &graph));
    CHECK_CUDA(cudaGraphDestroy(graph));
    CHECK_CUDA(cudaStreamBeginCapture(with.compute, cudaStreamCaptureModeGlobal));
    CHECK(allocate_elsewhere() == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamEndCapture(with.compute, &graph) == cudaErrorStreamCaptureInvalidated);
}

/* Work that waits for something outside lets other streams go on. */
void polled_work()
{
    setup with;
    float *x = with.x;
    int polls = 0;
    CHECK_CUDA(simulator_enqueue_polled(with.upload, "someCollective",
                                        [x, &polls] {
                                            return [x, &polls] {
                                                x[0] = 7.0F;
                                                return ++polls == 5;
                                            };
                                        },
                                        {simulator_writes(x, bytes)}));
    CHECK_CUDA(cudaEventRecord(with.event, with.upload));
    CHECK_CUDA(cudaStreamWaitEvent(with.compute, with.event));
    LAUNCH(with.compute, add_to, with.x, with.y);
    CHECK_CUDA(cudaStreamSynchronize(with.compute));
    CHECK(polls == 5 && first_of(with.y) == 7.0F);
    CHECK(simulator_launch_count_of("someCollective") == 1);
}

void background_progress()
{
    setup with;
    volatile int done = 0;
    simulator_run_in_background(true);
    CHECK_CUDA(cudaLaunchHostFunc(
        with.compute, [](void *flag) { *static_cast<volatile int *>(flag) = 1; },
        const_cast<int *>(&done)));
    for (int i = 0; i < 2000 && done == 0; i++) {
        usleep(10000);
    }
    CHECK(done == 1);
}

const planted::test tests[] = {
    {"an event orders an upload and a kernel", ordered_upload},
    {"a missing event is caught", missing_dependency},
    {"what is left in padding is no pointer", left_in_padding},
    {"an upload over what is still read is caught", upload_over_what_is_being_read},
    {"library calls that race are caught", library_calls_race_too},
    {"columns of a matrix do not race", columns_do_not_race},
    {"pinned memory overwritten early is caught", pinned_overwritten_early},
    {"pinned memory read early shows", pinned_read_early},
    {"pageable memory is taken at once", pageable_copies},
    {"a captured step replays", capture_and_replay},
    {"destroyed handles are refused", destroyed_handles},
    {"a race inside a graph is caught", race_inside_a_graph},
    {"what a capture forbids is refused by name", forbidden_during_capture},
    {"captured streams must join", captures_must_join},
    {"other threads during a capture", other_threads_during_capture},
    {"polled work", polled_work},
    {"work goes on in the background", background_progress},
};

} // namespace

int main()
{
    return planted::run_all(tests, sizeof(tests) / sizeof(*tests));
}

#include "core/cuda/cuda_ops.h"

#include <nvtx3/nvToolsExt.h>
#ifdef TTRAIN_SIMULATOR
#include <simulator.h>
#endif

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" const tt_ops tt_cuda_ops;

struct tt_graph {
    cudaGraphExec_t executable;
    size_t nodes;
};

/* --- failures -------------------------------------------------------------------------------- */

void tt_cuda_refuse(tt_device *device, const char *format, ...)
{
    tt_cuda_state *state = tt_cuda(device);
    if (state->failed) {
        return;
    }
    state->failed = true;
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    tt_error_set(&state->failure, TT_DEVICE_FAILED, "%s: %s", device->name, message);
}

bool tt_cuda_good(tt_device *device, cudaError_t status, const char *what)
{
    if (status == cudaSuccess) {
        return true;
    }
    bool first = !tt_cuda(device)->failed;
    tt_cuda_refuse(device, "%s: %s (%s)", what, cudaGetErrorString(status),
                   cudaGetErrorName(status));
    if (first && status == cudaErrorMemoryAllocation) {
        tt_cuda(device)->failure.status = TT_OUT_OF_MEMORY;
    }
    return false;
}

bool tt_cublas_good(tt_device *device, cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS) {
        return true;
    }
    tt_cuda_refuse(device, "%s: %s (%s)", what, cublasGetStatusString(status),
                   cublasGetStatusName(status));
    return false;
}

void tt_cuda_fail(tt_device *device, const char *what, const char *why)
{
    tt_cuda_refuse(device, "%s: %s", what, why);
}

/* Whether `what` may be done now: nothing failed, and no step is being captured. */
static bool may(tt_device *device, const char *what)
{
    if (tt_cuda(device)->capturing) {
        tt_cuda_refuse(device, "%s while a step is being captured", what);
    }
    return !tt_cuda(device)->failed;
}

/* --- order ------------------------------------------------------------------------------------ */

static void wait_for(tt_device *device, cudaStream_t stream, cudaEvent_t event)
{
    if (!tt_cuda(device)->failed) {
        tt_cuda_good(device, cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
    }
}

static void record(tt_device *device, cudaEvent_t event, cudaStream_t stream)
{
    if (!tt_cuda(device)->failed) {
        tt_cuda_good(device, cudaEventRecord(event, stream), "cudaEventRecord");
    }
}

/* --- memory ---------------------------------------------------------------------------------- */

/* Too little memory is the caller's to report; it is no failure of the device. */
static bool enough(tt_device *device, cudaError_t status, const char *what)
{
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return false;
    }
    return tt_cuda_good(device, status, what);
}

static void zero(tt_device *device, void *device_memory, size_t bytes)
{
    tt_cuda_state *state = tt_cuda(device);
    if (bytes > 0 && !state->failed) {
        tt_cuda_good(device, cudaMemsetAsync(device_memory, 0, bytes, state->stream),
                     "cudaMemsetAsync");
    }
}

/* Uploads into the memory come after the zeros. */
static void *allocate(tt_device *device, size_t bytes)
{
    void *memory = nullptr;
    bytes = bytes > 0 ? bytes : 1;
    if (!may(device, "an allocation") ||
        !enough(device, cudaMalloc(&memory, bytes), "cudaMalloc")) {
        return nullptr;
    }
    zero(device, memory, bytes);
    record(device, tt_cuda(device)->cleared, tt_cuda(device)->stream);
    wait_for(device, tt_cuda(device)->copy_stream, tt_cuda(device)->cleared);
    return memory;
}

/* cudaFree waits for what still uses the memory. */
static void release(tt_device *device, void *memory)
{
    if (memory != nullptr) {
        tt_cuda_good(device, cudaFree(memory), "cudaFree");
    }
}

static void memory_left(tt_device *device, size_t *available, size_t *total)
{
    if (!tt_cuda_good(device, cudaMemGetInfo(available, total), "cudaMemGetInfo")) {
        *available = *total = 0;
    }
}

static void *allocate_host(tt_device *device, size_t bytes)
{
    void *memory = nullptr;
    bytes = bytes > 0 ? bytes : 1;
    if (!may(device, "an allocation") ||
        !enough(device, cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "cudaHostAlloc")) {
        return nullptr;
    }
    memset(memory, 0, bytes);
    return memory;
}

static void release_host(tt_device *device, void *memory)
{
    if (memory != nullptr) {
        tt_cuda_good(device, cudaFreeHost(memory), "cudaFreeHost");
    }
}

/* --- copies ---------------------------------------------------------------------------------- */

static void synchronize(tt_device *device)
{
    if (may(device, "waiting for the device")) {
        tt_cuda_good(device, cudaStreamSynchronize(tt_cuda(device)->stream),
                     "waiting for the device");
    }
}

/* Ordinary memory is copied away before the call returns; pinned memory is read later, so that the
 * promise to the caller takes a wait. */
static void copy_in(tt_device *device, void *device_memory, const void *host, size_t bytes)
{
    if (bytes == 0 || !may(device, "a copy from the host")) {
        return;
    }
    cudaPointerAttributes attributes;
    if (!tt_cuda_good(device, cudaPointerGetAttributes(&attributes, host),
                      "cudaPointerGetAttributes")) {
        return;
    }
    tt_cuda_good(device,
                 cudaMemcpyAsync(device_memory, host, bytes, cudaMemcpyHostToDevice,
                                 tt_cuda(device)->stream),
                 "a copy from the host");
    if (attributes.type != cudaMemoryTypeUnregistered) {
        synchronize(device);
    }
}

static void copy_out(tt_device *device, void *host, const void *device_memory, size_t bytes)
{
    if (bytes == 0 || !may(device, "a copy to the host")) {
        return;
    }
    tt_cuda_good(device,
                 cudaMemcpyAsync(host, device_memory, bytes, cudaMemcpyDeviceToHost,
                                 tt_cuda(device)->stream),
                 "a copy to the host");
    synchronize(device);
}

static void copy(tt_device *device, void *to, const void *from, size_t bytes)
{
    tt_cuda_state *state = tt_cuda(device);
    if (bytes > 0 && !state->failed) {
        tt_cuda_good(device,
                     cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, state->stream),
                     "a copy within the device");
    }
}

/* An error inside a kernel shows at a later call; asking whether the stream is busy is one. */
static tt_status check(tt_device *device, tt_error *error)
{
    tt_cuda_state *state = tt_cuda(device);
    if (!state->failed && !state->capturing) {
        cudaError_t status = cudaStreamQuery(state->stream);
        if (status != cudaErrorNotReady) {
            tt_cuda_good(device, status, "the work given to the device");
        }
    }
    if (state->failed) {
        *error = state->failure;
        return error->status;
    }
    return TT_OK;
}

/* --- transfers beside the computation -------------------------------------------------------- */

static void settle(tt_device *device, cudaEvent_t event)
{
    if (may(device, "waiting for a transfer")) {
        tt_cuda_good(device, cudaEventSynchronize(event), "waiting for a transfer");
    }
}

static void uploads_begin(tt_device *device, int slot)
{
    wait_for(device, tt_cuda(device)->copy_stream, tt_cuda(device)->used[slot]);
}

static void upload(tt_device *device, void *device_memory, const void *pinned, size_t bytes)
{
    tt_cuda_state *state = tt_cuda(device);
    if (bytes > 0 && !state->failed) {
        tt_cuda_good(device,
                     cudaMemcpyAsync(device_memory, pinned, bytes, cudaMemcpyHostToDevice,
                                     state->copy_stream),
                     "an upload");
    }
}

static void uploads_end(tt_device *device, int slot)
{
    record(device, tt_cuda(device)->uploaded[slot], tt_cuda(device)->copy_stream);
}

static void uploads_wait(tt_device *device, int slot)
{
    wait_for(device, tt_cuda(device)->stream, tt_cuda(device)->uploaded[slot]);
}

static void uploads_used(tt_device *device, int slot)
{
    record(device, tt_cuda(device)->used[slot], tt_cuda(device)->stream);
}

static void uploads_settled(tt_device *device, int slot)
{
    settle(device, tt_cuda(device)->uploaded[slot]);
}

static void download(tt_device *device, void *pinned, const void *device_memory, size_t bytes)
{
    tt_cuda_state *state = tt_cuda(device);
    if (bytes > 0 && !state->failed) {
        tt_cuda_good(
            device,
            cudaMemcpyAsync(pinned, device_memory, bytes, cudaMemcpyDeviceToHost, state->stream),
            "a download");
    }
}

static void downloads_end(tt_device *device, int slot)
{
    record(device, tt_cuda(device)->downloaded[slot], tt_cuda(device)->stream);
}

static void downloads_settled(tt_device *device, int slot)
{
    settle(device, tt_cuda(device)->downloaded[slot]);
}

/* --- capture --------------------------------------------------------------------------------- */

/* Thread-local: what other threads of the process do, NCCL's watchdog for one, is their affair. */
static bool capture_begin(tt_device *device)
{
    tt_cuda_state *state = tt_cuda(device);
    if (!may(device, "a capture")) {
        return false;
    }
    state->capturing = tt_cuda_good(
        device, cudaStreamBeginCapture(state->stream, cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
    return state->capturing;
}

static tt_graph *capture_end(tt_device *device)
{
    tt_cuda_state *state = tt_cuda(device);
    if (!state->capturing) {
        return nullptr;
    }
    state->capturing = false;
    cudaGraph_t recorded = nullptr;
    bool good = tt_cuda_good(device, cudaStreamEndCapture(state->stream, &recorded),
                             "cudaStreamEndCapture") &&
                !state->failed;
    tt_graph *graph = good ? static_cast<tt_graph *>(calloc(1, sizeof(tt_graph))) : nullptr;
    if (graph != nullptr &&
        !tt_cuda_good(device, cudaGraphInstantiate(&graph->executable, recorded, 0),
                      "cudaGraphInstantiate")) {
        free(graph);
        graph = nullptr;
    }
    if (graph != nullptr) {
        tt_cuda_good(device, cudaGraphGetNodes(recorded, nullptr, &graph->nodes),
                     "cudaGraphGetNodes");
    }
    if (recorded != nullptr) {
        tt_cuda_good(device, cudaGraphDestroy(recorded), "cudaGraphDestroy");
    }
    if (graph != nullptr) {
        tt_cuda_good(device, cudaGraphUpload(graph->executable, state->stream), "cudaGraphUpload");
    }
    return graph;
}

static void graph_run(tt_device *device, tt_graph *graph)
{
    if (!tt_cuda(device)->failed) {
        tt_cuda_good(device, cudaGraphLaunch(graph->executable, tt_cuda(device)->stream),
                     "cudaGraphLaunch");
    }
}

/* The runtime lets a launch that still runs finish. */
static void graph_destroy(tt_device *device, tt_graph *graph)
{
    if (graph != nullptr) {
        tt_cuda_good(device, cudaGraphExecDestroy(graph->executable), "cudaGraphExecDestroy");
        free(graph);
    }
}

static int64_t graph_nodes(tt_device *, const tt_graph *graph)
{
    return static_cast<int64_t>(graph->nodes);
}

/* --- for people ------------------------------------------------------------------------------ */

static void range_push(tt_device *, const char *name)
{
    nvtxRangePushA(name);
}

static void range_pop(tt_device *)
{
    nvtxRangePop();
}

static bool launches_print(tt_device *, FILE *stream)
{
#ifdef TTRAIN_SIMULATOR
    if (stream != nullptr) {
        simulator_launch_print(stream);
    }
    simulator_launch_reset();
    return true;
#else
    (void)stream;
    return false;
#endif
}

/* --- creation -------------------------------------------------------------------------------- */

/* Fails where an earlier call did, with what that said. */
static tt_status settled(tt_device *device, tt_error *error)
{
    if (tt_cuda(device)->failed) {
        *error = tt_cuda(device)->failure;
        return error->status;
    }
    return TT_OK;
}

static void destroy_event(cudaEvent_t event)
{
    if (event != nullptr) {
        cudaEventDestroy(event);
    }
}

static void destroy(tt_device *device)
{
    tt_cuda_state *state = tt_cuda(device);
    if (state->stream != nullptr) {
        cudaStreamSynchronize(state->stream);
    }
    tt_cuda_products_destroy(device);
    tt_cuda_constants_destroy(device);
    release(device, state->scratch);
    release(device, state->products_workspace);
    if (state->blas_lt != nullptr) {
        cublasLtDestroy(state->blas_lt);
    }
    if (state->blas != nullptr) {
        cublasDestroy(state->blas);
    }
    destroy_event(state->cleared);
    for (int slot = 0; slot < TT_TRANSFER_SLOTS; slot++) {
        destroy_event(state->uploaded[slot]);
        destroy_event(state->used[slot]);
        destroy_event(state->downloaded[slot]);
    }
    for (cudaStream_t stream : {state->copy_stream, state->stream}) {
        if (stream != nullptr) {
            cudaStreamDestroy(stream);
        }
    }
    free(state);
    free(device);
}

static void create_event(tt_device *device, cudaEvent_t *event)
{
    tt_cuda_good(device, cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                 "cudaEventCreateWithFlags");
}

static void create_streams(tt_device *device)
{
    tt_cuda_state *state = tt_cuda(device);
    for (cudaStream_t *stream : {&state->stream, &state->copy_stream}) {
        tt_cuda_good(device, cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking),
                     "cudaStreamCreateWithFlags");
    }
    create_event(device, &state->cleared);
    for (int slot = 0; slot < TT_TRANSFER_SLOTS; slot++) {
        create_event(device, &state->uploaded[slot]);
        create_event(device, &state->used[slot]);
        create_event(device, &state->downloaded[slot]);
    }
}

/* Both grow with the device: split products and reductions need memory for each multiprocessor. */
static tt_status create_work_memory(tt_device *device, tt_error *error)
{
    enum { WORKSPACE = 256 << 10, REDUCED_COLUMNS = 32768, PARTIAL_SUMS = 4 };
    tt_cuda_state *state = tt_cuda(device);
    size_t multiprocessors = static_cast<size_t>(state->multiprocessors);
    state->products_workspace_bytes = multiprocessors * WORKSPACE;
    state->scratch_floats = multiprocessors * PARTIAL_SUMS * REDUCED_COLUMNS;
    state->products_workspace = allocate(device, state->products_workspace_bytes);
    size_t scratch_bytes = state->scratch_floats * sizeof(float);
    state->scratch = static_cast<float *>(allocate(device, scratch_bytes));
    TT_TRY(settled(device, error));
    if (state->products_workspace == nullptr || state->scratch == nullptr) {
        return tt_device_no_memory(device, "work areas of products and reductions",
                                   state->products_workspace_bytes + scratch_bytes, error);
    }
    return TT_OK;
}

static tt_status create_libraries(tt_device *device, tt_error *error)
{
    tt_cuda_state *state = tt_cuda(device);
    if (tt_cublas_good(device, cublasCreate(&state->blas), "cublasCreate") &&
        tt_cublas_good(device, cublasLtCreate(&state->blas_lt), "cublasLtCreate") &&
        tt_cublas_good(device, cublasSetStream(state->blas, state->stream), "cublasSetStream")) {
        /* After the stream, which sets the workspace back. */
        tt_cublas_good(device,
                       cublasSetWorkspace(state->blas, state->products_workspace,
                                          state->products_workspace_bytes),
                       "cublasSetWorkspace");
    }
    TT_TRY(settled(device, error));
    if (!tt_cuda_constants_create(device) || !tt_cuda_products_create(device)) {
        TT_TRY(settled(device, error));
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the CUDA device");
    }
    return TT_OK;
}

static __global__ void nothing(int *)
{
}

/* Whether the hardware can run what was compiled, and what is asked for. */
static tt_status check_hardware(const tt_device *device, const cudaDeviceProp *properties,
                                tt_error *error)
{
    if (device->compute == TT_BF16 && properties->major < 8) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s (%s, compute capability %d.%d) has no bf16, which needs 8.0 or "
                            "newer: compute in f32 there",
                            device->name, properties->name, properties->major, properties->minor);
    }
    cudaFuncAttributes attributes;
    cudaError_t status =
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(nothing));
    if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
        cudaGetLastError();
        return tt_error_set(error, TT_DEVICE_FAILED,
                            "%s (%s, compute capability %d.%d): this ttrain was not built for it "
                            "(CMAKE_CUDA_ARCHITECTURES)",
                            device->name, properties->name, properties->major, properties->minor);
    }
    if (status != cudaSuccess) {
        return tt_error_set(error, TT_DEVICE_FAILED, "%s (%s): %s", device->name, properties->name,
                            cudaGetErrorString(status));
    }
    return TT_OK;
}

static tt_status open_device(tt_device *device, tt_error *error)
{
    tt_cuda_state *state = tt_cuda(device);
    cudaDeviceProp properties;
    tt_cuda_good(device, cudaSetDevice(state->ordinal), "cudaSetDevice");
    tt_cuda_good(device, cudaGetDeviceProperties(&properties, state->ordinal),
                 "cudaGetDeviceProperties");
    TT_TRY(settled(device, error));
    snprintf(state->hardware, sizeof state->hardware, "%s", properties.name);
    state->multiprocessors = properties.multiProcessorCount;
    TT_TRY(check_hardware(device, &properties, error));
    create_streams(device);
    TT_TRY(settled(device, error));
    TT_TRY(create_work_memory(device, error));
    return create_libraries(device, error);
}

static void fill_device(tt_device *device, const tt_cuda_options *options)
{
    tt_cuda_state *state = tt_cuda(device);
    state->ordinal = options->ordinal;
    state->tf32 = options->tf32;
    snprintf(state->name, sizeof state->name, "cuda:%d", options->ordinal);
    device->name = state->name;
    device->hardware = state->hardware;
    device->ops = &tt_cuda_ops;
    device->threads = 1;
    device->compute = options->compute;
    device->allocate = allocate;
    device->release = release;
    device->memory = memory_left;
    device->allocate_host = allocate_host;
    device->release_host = release_host;
    device->copy_in = copy_in;
    device->copy_out = copy_out;
    device->copy = copy;
    device->zero = zero;
    device->synchronize = synchronize;
    device->check = check;
    device->destroy = destroy;
    device->uploads_begin = uploads_begin;
    device->upload = upload;
    device->uploads_end = uploads_end;
    device->uploads_wait = uploads_wait;
    device->uploads_used = uploads_used;
    device->uploads_settled = uploads_settled;
    device->download = download;
    device->downloads_end = downloads_end;
    device->downloads_settled = downloads_settled;
    device->captures = true;
    device->capture_begin = capture_begin;
    device->capture_end = capture_end;
    device->graph_run = graph_run;
    device->graph_destroy = graph_destroy;
    device->graph_nodes = graph_nodes;
    device->range_push = range_push;
    device->range_pop = range_pop;
    device->launches_print = launches_print;
}

tt_status tt_device_create_cuda(const tt_cuda_options *options, tt_device **device, tt_error *error)
{
    int count = tt_cuda_device_count(error);
    if (count == 0) {
        return error->status;
    }
    if (options->ordinal < 0 || options->ordinal >= count) {
        return tt_error_set(error, TT_INVALID_INPUT, "CUDA device: expected 0 to %d, found %d",
                            count - 1, options->ordinal);
    }
    tt_device *created = static_cast<tt_device *>(calloc(1, sizeof(tt_device)));
    tt_cuda_state *state = static_cast<tt_cuda_state *>(calloc(1, sizeof(tt_cuda_state)));
    if (created == nullptr || state == nullptr) {
        free(state);
        free(created);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the CUDA device");
    }
    created->state = state;
    fill_device(created, options);
    tt_status status = open_device(created, error);
    if (status != TT_OK) {
        tt_device_destroy(&created);
    }
    *device = created;
    return status;
}

/* --- what there is --------------------------------------------------------------------------- */

/* Why there is no device: cudaGetDeviceCount failed with `status`, or counted 0. */
static void say_why_none(cudaError_t status, tt_error *reason)
{
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (driver == 0) {
        tt_error_set(reason, TT_DEVICE_FAILED,
                     "no CUDA device: this machine has no NVIDIA driver (libcuda.so.1)");
    } else if (status == cudaErrorInsufficientDriver) {
        tt_error_set(reason, TT_DEVICE_FAILED,
                     "no CUDA device: the NVIDIA driver is too old: it knows CUDA %d.%d, this "
                     "ttrain needs %d.0 or newer",
                     driver / 1000, driver % 1000 / 10, runtime / 1000);
    } else if (status == cudaErrorNoDevice || status == cudaSuccess) {
        tt_error_set(reason, TT_DEVICE_FAILED, "no CUDA device: the driver shows none%s%s%s",
                     visible ? " (CUDA_VISIBLE_DEVICES is \"" : "", visible ? visible : "",
                     visible ? "\")" : "");
    } else {
        tt_error_set(reason, TT_DEVICE_FAILED, "no CUDA device: %s (%s)",
                     cudaGetErrorString(status), cudaGetErrorName(status));
    }
}

int tt_cuda_device_count(tt_error *reason)
{
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count > 0) {
        return count;
    }
    say_why_none(status, reason);
    cudaGetLastError();
    return 0;
}

tt_status tt_cuda_choose_device(int local_rank, int local_ranks, bool share, int *ordinal,
                                tt_error *error)
{
    int count = tt_cuda_device_count(error);
    if (count == 0) {
        return error->status;
    }
    /* A launcher may show each rank one device of its own; NCCL's set-up compares which. */
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    bool own = count == 1 && visible != nullptr && strchr(visible, ',') == nullptr;
    if (local_ranks > count && !share && !own) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%d ranks on this host, but %d CUDA device%s: start at most one rank "
                            "for each device",
                            local_ranks, count, count == 1 ? "" : "s");
    }
    *ordinal = local_rank % count;
    return TT_OK;
}

const char *tt_cuda_hardware(const tt_device *device)
{
    return tt_cuda(device)->hardware;
}

int tt_cuda_ordinal(const tt_device *device)
{
    return tt_cuda(device)->ordinal;
}

void *tt_cuda_stream(const tt_device *device)
{
    return tt_cuda(device)->stream;
}

/* --- the table ------------------------------------------------------------------------------- */

/* In the order of tt_ops. */
extern "C" const tt_ops tt_cuda_ops = {
    tt_cuda_multiply,
    tt_cuda_multiply_group,
    tt_cuda_copy_group,
    tt_cuda_scale_cores,
    tt_cuda_scale_cores_backward,
    tt_cuda_add_bias,
    tt_cuda_add_bias_backward,
    tt_cuda_gelu_forward,
    tt_cuda_gelu_backward,
    tt_cuda_tanh_forward,
    tt_cuda_tanh_backward,
    tt_cuda_dropout,
    tt_cuda_residual_norm_forward,
    tt_cuda_residual_norm_output,
    tt_cuda_residual_norm_backward,
    tt_cuda_embedding_forward,
    tt_cuda_embedding_backward,
    tt_cuda_embedding_workspace,
    tt_cuda_distinct_ids,
    tt_cuda_distinct_ids_workspace,
    tt_cuda_slice_products_forward,
    tt_cuda_slice_products_backward,
    tt_cuda_slice_products_workspace,
    tt_cuda_gather_rows,
    tt_cuda_scatter_rows,
    tt_cuda_cross_entropy,
    tt_cuda_attention_forward,
    tt_cuda_attention_backward,
    tt_cuda_attention_workspace,
    tt_cuda_thin_attention_forward,
    tt_cuda_thin_attention_backward,
    tt_cuda_thin_attention_workspace,
    tt_cuda_thin_feed_forward_forward,
    tt_cuda_thin_feed_forward_backward,
    tt_cuda_thin_feed_forward_workspace,
    tt_cuda_thin_joint_forward,
    tt_cuda_thin_joint_backward,
    tt_cuda_thin_joint_workspace,
    tt_cuda_gradient_check,
    tt_cuda_update,
    tt_cuda_update_workspace,
    tt_cuda_rank_objective,
    tt_cuda_rank_objective_workspace,
    TT_CUDA_LARGEST_THIN_RANK,
};

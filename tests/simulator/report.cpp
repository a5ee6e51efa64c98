/* Messages, the environment's settings, the record of launches, what is left at exit. */
#include "runtime.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <unistd.h>

namespace simulator
{

thread_local const char *running_name = nullptr;
thread_local const site *running_site = nullptr;

namespace
{

thread_local cudaError_t last_error = cudaSuccess;

struct record {
    std::mutex lock;
    int64_t kinds[SIMULATOR_KINDS] = {};
    std::map<std::string, int64_t> names;
};

record &launches()
{
    static record *kept = new record; /* outlives every destructor */
    return *kept;
}

std::atomic<uint64_t> chosen_seed{0};
std::atomic<bool> seed_known{false};

void write_line(const char *text)
{
    std::string line = "simulator: ";
    line += text;
    line += '\n';
    for (size_t done = 0; done < line.size();) {
        const ssize_t count = write(STDERR_FILENO, line.data() + done, line.size() - done);
        if (count <= 0) {
            break;
        }
        done += static_cast<size_t>(count);
    }
}

std::string formatted(const char *format, va_list arguments)
{
    char text[2048];
    vsnprintf(text, sizeof(text), format, arguments);
    return text;
}

std::string coordinates(unsigned int x, unsigned int y, unsigned int z)
{
    char text[64];
    snprintf(text, sizeof(text), "(%u,%u,%u)", x, y, z);
    return text;
}

} // namespace

int64_t setting(const char *name, int64_t otherwise, int64_t least, int64_t most)
{
    const char *text = getenv(name);
    if (text == nullptr || *text == '\0') {
        return otherwise;
    }
    char *end = nullptr;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0' || value < least || value > most) {
        simulator_fail("environment %s: expected a number from %lld to %lld, found \"%s\"", name,
                       static_cast<long long>(least), static_cast<long long>(most), text);
    }
    return value;
}

uint64_t seed()
{
    if (!seed_known.load()) {
        chosen_seed = static_cast<uint64_t>(setting("TTRAIN_SIMULATOR_SEED", 1, 0, INT64_MAX));
        seed_known = true;
    }
    return chosen_seed.load();
}

std::string place(site where)
{
    if (where.file == nullptr) {
        return "";
    }
    return std::string(where.file) + ":" + std::to_string(where.line);
}

std::string running_place()
{
    if (running_name == nullptr) {
        return "";
    }
    std::string text = running_name;
    if (running_site != nullptr && running_site->file != nullptr) {
        text = "kernel " + text + " (" + place(*running_site) + ")";
    }
    if (in_kernel()) {
        text += ", block " + coordinates(blockIdx.x, blockIdx.y, blockIdx.z) + ", thread " +
                coordinates(threadIdx.x, threadIdx.y, threadIdx.z);
    }
    return text;
}

void warn(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_line(formatted(format, arguments).c_str());
    va_end(arguments);
}

cudaError_t result(cudaError_t status)
{
    if (status != cudaSuccess && status != cudaErrorNotReady) {
        last_error = status;
    }
    return status;
}

cudaError_t refuse(cudaError_t status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_line(formatted(format, arguments).c_str());
    va_end(arguments);
    return result(status);
}

void count_launch(simulator_kind kind, const char *name)
{
    record &kept = launches();
    const std::lock_guard<std::mutex> held(kept.lock);
    kept.kinds[kind]++;
    kept.names[name]++;
}

namespace
{

void at_exit()
{
    int found = live_allocations(true);
    const int64_t objects = simulator_live_objects() - found;
    if (objects > 0) {
        warn("leak: %lld streams, events or graphs were never destroyed",
             static_cast<long long>(objects));
        found++;
    }
    if (found > 0 && setting("TTRAIN_SIMULATOR_LEAKS", 0, 0, 1) == 1) {
        fflush(nullptr);
        _exit(1);
    }
}

} // namespace

void report_leaks_at_exit()
{
    static const int registered = atexit(at_exit);
    (void)registered;
}

} // namespace simulator

void simulator_fail(const char *format, ...)
{
    std::string text = simulator::running_place();
    if (!text.empty()) {
        text += ": ";
    }
    va_list arguments;
    va_start(arguments, format);
    text += simulator::formatted(format, arguments);
    va_end(arguments);
    simulator::write_line(text.c_str());
    abort();
}

uint64_t simulator_random()
{
    static std::atomic<uint64_t> calls{0};
    return simulator::random(simulator::seed() * 0x2545f4914f6cdd1dULL + ++calls).next();
}

extern "C" {

int64_t simulator_launch_count(simulator_kind kind)
{
    simulator::record &kept = simulator::launches();
    const std::lock_guard<std::mutex> held(kept.lock);
    return kind < SIMULATOR_KINDS ? kept.kinds[kind] : 0;
}

int64_t simulator_launch_count_of(const char *name)
{
    simulator::record &kept = simulator::launches();
    const std::lock_guard<std::mutex> held(kept.lock);
    const auto found = kept.names.find(name);
    return found == kept.names.end() ? 0 : found->second;
}

void simulator_launch_reset(void)
{
    simulator::record &kept = simulator::launches();
    const std::lock_guard<std::mutex> held(kept.lock);
    for (int64_t &count : kept.kinds) {
        count = 0;
    }
    kept.names.clear();
}

void simulator_launch_print(FILE *stream)
{
    static const char *const titles[SIMULATOR_KINDS] = {
        "kernels", "library calls", "copies", "memsets", "graph launches", "host functions"};
    simulator::record &kept = simulator::launches();
    const std::lock_guard<std::mutex> held(kept.lock);
    for (int kind = 0; kind < SIMULATOR_KINDS; kind++) {
        fprintf(stream, "%8lld  %s\n", static_cast<long long>(kept.kinds[kind]), titles[kind]);
    }
    std::vector<std::pair<std::string, int64_t>> rows(kept.names.begin(), kept.names.end());
    std::stable_sort(rows.begin(), rows.end(),
                     [](const auto &a, const auto &b) { return a.second > b.second; });
    for (const auto &[name, count] : rows) {
        fprintf(stream, "%8lld    %s\n", static_cast<long long>(count), name.c_str());
    }
}

void simulator_set_seed(uint64_t seed)
{
    simulator::chosen_seed = seed;
    simulator::seed_known = true;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = simulator::last_error;
    simulator::last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return simulator::last_error;
}

} /* extern "C" */

namespace
{

struct error_text {
    cudaError_t error;
    const char *name, *text;
};
const error_text error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure",
     "the graph update was not performed"},
};

const error_text *text_of(cudaError_t error)
{
    for (const error_text &entry : error_texts) {
        if (entry.error == error) {
            return &entry;
        }
    }
    return nullptr;
}

} // namespace

extern "C" {

const char *cudaGetErrorName(cudaError_t error)
{
    const error_text *entry = text_of(error);
    return entry != nullptr ? entry->name : "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t error)
{
    const error_text *entry = text_of(error);
    return entry != nullptr ? entry->text : "unknown error";
}

} /* extern "C" */

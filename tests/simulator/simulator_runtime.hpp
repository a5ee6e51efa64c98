/* How the simulated libraries (cuBLAS, cuBLASLt, NCCL) put work into a stream. They are the
 * counterpart of kernels: their work runs when the stream gets there, on a thread that may touch
 * device memory, and may be captured into a graph and run again and again. */
#ifndef TT_SIMULATOR_RUNTIME_HPP
#define TT_SIMULATOR_RUNTIME_HPP

#include "cuda_runtime_api.h"

#include <cstdint>
#include <functional>
#include <vector>

/* Memory that a piece of work touches: `height` rows of `width` bytes, `pitch` bytes apart. */
struct simulator_range {
    const void *memory;
    size_t width;
    size_t height;
    size_t pitch;
    bool write; /* written only (after the call it is all defined); else read only */
};

inline simulator_range simulator_reads(const void *memory, size_t width, size_t height = 1,
                                       size_t pitch = 0)
{
    return simulator_range{memory, width, height, pitch, false};
}
inline simulator_range simulator_writes(void *memory, size_t width, size_t height = 1,
                                        size_t pitch = 0)
{
    return simulator_range{memory, width, height, pitch, true};
}

/* Puts `work` into the stream. Ranges must name all device memory that it touches (memory that is
 * both read and written is named twice); they are checked against the live allocations here, and
 * for conflicts with other streams when the work runs. A range that lies in no allocation ends the
 * program with a line that names the call. `name` must live as long as the program.
 *
 * `work` owns copies of all it needs; it runs once for each time the stream or graph gets there, on
 * a thread that may touch device memory, and so may OpenMP threads that it starts. It must call no
 * CUDA function.
 *
 * Returns cudaErrorStreamCaptureInvalidated and the like, as a kernel launch does. */
cudaError_t simulator_enqueue(cudaStream_t stream, const char *name, std::function<void()> work,
                              std::vector<simulator_range> ranges);

/* The same for work that waits for others (a collective): `start` is called when the stream gets
 * there and returns a function that is then called again and again until it returns true. Other
 * streams go on in between. */
cudaError_t simulator_enqueue_polled(cudaStream_t stream, const char *name,
                                     std::function<std::function<bool()>()> start,
                                     std::vector<simulator_range> ranges);

/* Called by work that finds the addresses of its operands only when it runs (pointer arrays in
 * device memory): checks these ranges as simulator_enqueue and the stream do those named before.
 * `name` is that of the call. */
void simulator_touch(const char *name, const std::vector<simulator_range> &ranges);

/* For a library call that synchronises or allocates: with a stream of this thread in capture it
 * invalidates the capture, prints a line that names the call, and returns the error that the call
 * should return; else cudaSuccess. */
cudaError_t simulator_forbidden_in_capture(const char *call);

/* Lets queues move on from a thread of the simulator's own while the host does not synchronise,
 * as a GPU does. Needed where another process waits for work of this one; work may then run on a
 * thread that the program does not know. */
void simulator_run_in_background(bool enabled);

/* The device that a stream belongs to; that of the calling thread for stream 0. */
int simulator_stream_device(cudaStream_t stream);
/* Whether all of [memory, memory + bytes) lies in one live allocation of device memory. */
bool simulator_is_device_memory(const void *memory, size_t bytes);

/* Opens device memory to the calling thread while the object lives. For code that runs outside
 * simulator_enqueue; nests. */
class simulator_device_access
{
  public:
    simulator_device_access();
    ~simulator_device_access();
    simulator_device_access(const simulator_device_access &) = delete;
    simulator_device_access &operator=(const simulator_device_access &) = delete;
};

/* Numbers that depend on the seed alone: the n-th call of a process gives the same number. */
uint64_t simulator_random();

/* Prints "simulator: " and the message, with what runs on this thread, and aborts. */
[[noreturn]] void simulator_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif

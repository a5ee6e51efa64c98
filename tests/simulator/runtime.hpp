/* What the parts of the simulator share. Only this folder includes it.
 *
 *   report.cpp   messages, the record of launches, what is left at exit
 *   device.cpp   devices and their properties, from the environment
 *   memory.cpp   device and pinned memory, its protection, faults
 *   fiber.cpp    switching between stacks
 *   block.cpp    threads of a block: barriers, warps, shared memory; blocks over host threads
 *   stream.cpp   work in streams, its order, events; races between streams
 *   copy.cpp     copies and memset
 *   graph.cpp    capture and replay
 *   check.cpp    every access of a kernel, where the build instruments them
 */
#ifndef TT_SIMULATOR_INTERNAL_HPP
#define TT_SIMULATOR_INTERNAL_HPP

#include "cuda_runtime.h"
#include "simulator.h"
#include "simulator_runtime.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#if defined(__SANITIZE_ADDRESS__)
#define SIMULATOR_ASAN 1
#else
#define SIMULATOR_ASAN 0
#endif

namespace simulator
{

/* Fresh memory holds this in every 16 bits: a signalling NaN as bf16 and as f32, a large number as
 * an integer. Slack around allocations holds `canary_byte`. */
static constexpr uint16_t poison_half = 0x7fa5;
static constexpr uint32_t poison_word = 0x7fa57fa5U;
static constexpr unsigned char canary_byte = 0xc7;

/* A small generator, good enough to shuffle. */
class random
{
  public:
    explicit random(uint64_t seed = 0) : state(seed)
    {
    }
    uint64_t next()
    {
        state += 0x9e3779b97f4a7c15ULL;
        uint64_t bits = state;
        bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
        bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
        return bits ^ (bits >> 31);
    }
    uint32_t below(uint32_t limit)
    {
        return static_cast<uint32_t>(((next() >> 32) * limit) >> 32);
    }

  private:
    uint64_t state;
};

/* report.cpp */

/* The environment's value as a number, checked; a value that is none ends the program. */
int64_t setting(const char *name, int64_t otherwise, int64_t least, int64_t most);
uint64_t seed();
/* What the fatal message names: the work that runs on this thread. */
extern thread_local const char *running_name;
extern thread_local const site *running_site;
/* One line on standard error that begins with "simulator: ". */
void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Writes "kernel k (file:line), block (x,y,z), thread (x,y,z)" of this thread; empty for none. */
std::string running_place();
std::string place(site where);
void count_launch(simulator_kind kind, const char *name);
/* Notes `status` as the thread's last error and returns it. */
cudaError_t result(cudaError_t status);
/* result(status), after a line that says why. */
cudaError_t refuse(cudaError_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void report_leaks_at_exit();

/* device.cpp */

struct device_model {
    int count;
    cudaError_t missing; /* why there is no device; cudaSuccess when there is one */
    int driver;
    int major, minor;
    int multiprocessors;
    size_t memory; /* of each device */
};
const device_model &devices();
int current_device();
/* cudaSuccess where devices can be used and `device` is one; else the error, noted. */
cudaError_t usable(int device);

/* memory.cpp */

struct allocation {
    char *begin;
    size_t bytes;
    char *pages;
    size_t page_bytes;
    int number; /* from 1, in order of allocation */
    int device; /* -1: pinned host memory; -2: host memory registered by its owner */
    bool live;

    bool holds(const void *memory, size_t size) const
    {
        const char *at = static_cast<const char *>(memory);
        return at >= begin && size <= bytes && at <= begin + (bytes - size);
    }
    const char *end() const
    {
        return begin + bytes;
    }
};

/* Faults are reported by the simulator from here on; called again and again, because test programs
 * and the libraries they use take them over too. */
void handle_faults();
/* Device memory is readable and writable for the calling thread between the two; nests. */
void open_device_memory();
void close_device_memory();
/* The same for all OpenMP threads of the calling thread's team. */
void open_device_memory_to_openmp();
void close_device_memory_to_openmp();

/* The allocation, live or freed, whose pages or guards an address lies in; NULL for none. The
 * object lives as long as the process. */
const allocation *find_allocation(const void *memory);
/* The live allocation that holds all of the range and lies on a device (pinned: on none). */
const allocation *find_device_range(const void *memory, size_t bytes);
const allocation *find_pinned_range(const void *memory, size_t bytes);
bool in_device_region(const void *memory);
/* "3 of 4096 bytes on device 0", with where `memory` lies in it. */
std::string describe_allocation(const allocation &which, const void *memory);
/* Ends the program where the bytes around an allocation have been written. */
void check_canaries(const allocation &which);
void check_all_canaries();
int live_allocations(bool print);
void poison(void *memory, size_t bytes);

/* fiber.cpp */

struct fiber {
    void *stack_pointer;
    char *stack; /* lowest address; NULL for the thread's own stack */
    size_t stack_bytes;
    void *sanitizer_stack;
};
static constexpr size_t fiber_stack_bytes = SIMULATOR_ASAN ? 256 << 10 : 128 << 10;
/* `entry` must never return. `color` shifts the top so that stacks do not share cache sets. */
void fiber_create(fiber *created, void (*entry)(), unsigned int color);
/* Runs `to` until somebody switches back to `from`. */
void fiber_switch(fiber *from, fiber *to);
/* What a fiber calls first when it runs for the first time; `scheduler` stands for the stack of the
 * host thread. */
void fiber_started(fiber *scheduler);
/* Whether an address lies in the guard below a fiber's stack, or in such a stack. */
bool in_fiber_guard(const void *memory);
bool in_fiber_stack(const void *memory);

/* block.cpp */

/* Runs all blocks of a kernel; returns when they are done. `order` seeds the shuffles. */
void run_kernel(const kernel &work, uint64_t order);
/* Whether this thread of the host is inside a kernel. */
bool in_kernel();
size_t dynamic_shared_limit(const void *function);
/* The number of the GPU thread that runs, in its block; -1 outside kernels. */
extern __thread int check_thread;
/* The index of any thread of the running block. */
std::string thread_text(int number);
/* Whether an address lies in the arguments of the running kernel. */
bool holds_arguments(const void *memory);

/* stream.cpp */

/* Something that a stream or a graph does: what it is, what it touches, how it runs. */
struct work {
    simulator_kind kind;
    const char *name;
    site where; /* of a kernel's launch; file NULL for others */
    std::vector<simulator_range> ranges;
    /* Called when its turn comes; returns NULL when it finished at once, else what to poll. */
    std::function<std::function<bool()>(uint64_t order)> start;
    bool counted;
    bool marker; /* an event or the end of a graph: touches nothing */
    /* Pinned memory of a copy. What is read must still be the same when its turn comes. */
    const void *pinned;
    size_t pinned_bytes;
    bool pinned_write;
};
typedef std::shared_ptr<const work> work_ptr;

/* For every lane (a stream, or one line of a graph) the last of its operations that is known to
 * come before. */
typedef std::vector<uint32_t> clock;
void join(clock &into, const clock &from);

struct operation {
    work_ptr what;
    int lane;
    uint32_t turn; /* in its lane, from 1 */
    clock known;
    std::vector<std::shared_ptr<operation>> followers;
    int waits; /* operations that must finish before */
    bool done;
    double finished; /* seconds, for events */
    bool pinned_checked;
    uint64_t pinned_hash;
    std::function<bool()> poll;
};
typedef std::shared_ptr<operation> operation_ptr;

struct capture;

} // namespace simulator

struct CUstream_st {
    int device;
    int lane;
    bool blocking; /* ordered with the legacy stream */
    bool legacy;
    simulator::operation_ptr tail;                  /* the last operation put in */
    std::vector<simulator::operation_ptr> wait_for; /* before the next one */
    simulator::capture *capture;                    /* while it is being captured */
    std::vector<int> capture_tail;                  /* nodes that the next one follows */
};

struct CUevent_st {
    bool timed;
    simulator::operation_ptr last;
    simulator::capture *capture; /* recorded in a capture: the nodes it stands for */
    uint64_t capture_number;
    std::vector<int> nodes;
};

namespace simulator
{

/* Guards streams, events, graphs and queues; never held while work runs. */
extern std::mutex state;
typedef std::unique_lock<std::mutex> guard;

/* The stream that a handle means for this thread; NULL, with the error noted, for a bad one. */
CUstream_st *resolve(cudaStream_t stream);
int new_lane();
/* Puts work into a stream or its capture. */
cudaError_t submit(cudaStream_t stream, work &&what);
/* The operation that this thread of the host runs now; NULL for none. */
const operation *running_operation();
/* With `state` held: one operation after `before`, in `lane`. */
operation_ptr put(work_ptr what, int lane, const std::vector<operation_ptr> &before);
/* With `state` held: what the next operation of a stream must follow. */
std::vector<operation_ptr> stream_order(CUstream_st *stream);
void set_stream_tail(CUstream_st *stream, const operation_ptr &tail);
/* Runs work until `last` is done (all there is, for NULL). */
void drain(guard &held, const operation_ptr &last);
/* The same for all there is, with `state` not held. */
void drain_all();
/* Runs up to a few operations; true when `last` is done. */
bool advance(guard &held, const operation_ptr &last);
void host_knows(const operation_ptr &done);

/* graph.cpp */

struct node {
    work_ptr what;
    std::vector<int> after; /* indices of earlier nodes */
    int line;               /* which of the captured streams */
};
struct capture {
    uint64_t number;
    CUstream_st *origin;
    cudaStreamCaptureMode mode;
    std::thread::id owner;
    bool invalid;
    std::vector<node> nodes;
    std::vector<CUstream_st *> streams; /* origin first */
    bool ended;
};
/* All with `state` held, if not said otherwise. */
cudaError_t capture_work(CUstream_st *stream, work_ptr what);
cudaError_t capture_record(CUstream_st *stream, CUevent_st *event);
cudaError_t capture_wait(CUstream_st *stream, CUevent_st *event);
/* For calls that are unsafe in any capture (allocation, waiting, queries): the error, with the
 * capture invalidated and a line that names the call, while a capture forbids it to this thread.
 * With `state` not held. */
cudaError_t forbidden(const char *call);
/* The same for a call on one stream, which must not be in capture itself. */
cudaError_t forbidden_on(CUstream_st *stream, const char *call);
cudaError_t forbidden_on_event(CUevent_st *event, const char *call);
cudaError_t forbidden_on_legacy(const char *call);
/* For what cannot be captured, `why` it is not: refused only where that stream is in capture. With
 * `state` not held. */
cudaError_t forbidden_in(cudaStream_t stream, const char *call, const char *why);
int live_graphs();

/* race.cpp */

/* Holds an operation that is about to run against all that ran before, and remembers it. */
void check_races(const operation &who);
void check_ranges(const operation &who, const std::vector<simulator_range> &ranges);
/* Drops what the host has waited for; for when nothing is pending. */
void forget_races(const clock &host);

/* check.cpp: told what happens, so that accesses can be judged; nothing in builds without it. */
bool checks_accesses();
void check_device_region(char *begin, size_t bytes);
void check_allocated(const allocation &which);
void check_freed(const allocation &which);
void check_work_begins(const operation &who);
void check_work_ends(const work &what);
void check_work_ranges(const std::vector<simulator_range> &ranges);
void check_shared_region(char *begin, size_t bytes);
void check_block_begins(char *dynamic, size_t dynamic_bytes);
void check_shared_begins(char *object, size_t bytes);
void check_block_meets();
void check_warp_meets(int warp);
void check_block_ends();

} // namespace simulator

#endif

/* What goes into streams: kernels, library calls, copies, memsets, host functions. */
#include "runtime.hpp"

#include <algorithm>

namespace simulator
{

namespace
{

work describe(simulator_kind kind, const char *name)
{
    work made = {};
    made.kind = kind;
    made.name = name;
    made.counted = true;
    return made;
}

/* The launch's limits, checked as the driver does. */
cudaError_t check_launch(const kernel &what)
{
    const dim3 &grid = what.grid, &block = what.block;
    const std::string where = place(what.where);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0 ||
        grid.x > 2147483647U || grid.y > 65535 || grid.z > 65535 || block.x > 1024 ||
        block.y > 1024 || block.z > 64 || block.x * block.y * block.z > 1024) {
        return refuse(cudaErrorInvalidConfiguration,
                      "kernel %s (%s): a launch cannot have %u x %u x %u blocks of %u x %u x %u "
                      "threads",
                      what.name, where.c_str(), grid.x, grid.y, grid.z, block.x, block.y, block.z);
    }
    const size_t limit = dynamic_shared_limit(what.function);
    if (what.shared_bytes > limit) {
        return refuse(cudaErrorInvalidValue,
                      "kernel %s (%s): %zu bytes of dynamic shared memory; it has been allowed %zu",
                      what.name, where.c_str(), what.shared_bytes, limit);
    }
    if (devices().major < 8) {
        return refuse(cudaErrorNoKernelImageForDevice,
                      "kernel %s (%s): compiled for compute capability 8.0 and 9.0, device has "
                      "%d.%d",
                      what.name, where.c_str(), devices().major, devices().minor);
    }
    return cudaSuccess;
}

/* Device memory that the kernel's pointers point at, to be held against copies in other streams.
 * How far it reads or writes from there is not known here, so only the first bytes count. A pointer
 * inside a structure counts as read. */
void guess_range(const void *pointer, bool write, std::vector<simulator_range> *ranges)
{
    if (in_device_region(pointer)) {
        const allocation *which = find_device_range(pointer, 1);
        if (which != nullptr) {
            const char *at = static_cast<const char *>(pointer);
            const size_t left = static_cast<size_t>(which->end() - at);
            ranges->push_back({pointer, std::min<size_t>(left, 4), 1, 0, write});
        }
    }
}

std::vector<simulator_range> guess_ranges(const kernel &what)
{
    std::vector<simulator_range> ranges;
    for (const parameter &one : what.parameters) {
        const char *at = static_cast<const char *>(one.where);
        for (size_t offset = 0; offset + sizeof(void *) <= one.bytes; offset += sizeof(void *)) {
            const void *pointer = nullptr;
            memcpy(&pointer, at + offset, sizeof(pointer));
            guess_range(pointer, one.kind == parameter_kind::pointer, &ranges);
        }
    }
    return ranges;
}

void check_operands(const char *name, const std::vector<simulator_range> &ranges)
{
    for (const simulator_range &range : ranges) {
        if (range.width == 0 || range.height == 0) {
            continue;
        }
        const size_t bytes = (range.height - 1) * range.pitch + range.width;
        if (find_device_range(range.memory, bytes) == nullptr &&
            find_pinned_range(range.memory, bytes) == nullptr) {
            const allocation *near = find_allocation(range.memory);
            simulator_fail("%s %s %zu bytes at %s", name, range.write ? "writes" : "reads", bytes,
                           near != nullptr ? describe_allocation(*near, range.memory).c_str()
                                           : "host memory or none");
        }
    }
}

void drop_empty(std::vector<simulator_range> *ranges)
{
    ranges->erase(std::remove_if(ranges->begin(), ranges->end(),
                                 [](const simulator_range &range) {
                                     return range.width == 0 || range.height == 0;
                                 }),
                  ranges->end());
}

/* Where one side of a copy lies. */
enum class side { device, pinned, pageable };

struct copy {
    void *to;
    size_t to_pitch;
    const void *from;
    size_t from_pitch;
    size_t width, height;

    size_t span(size_t pitch) const
    {
        return (height - 1) * pitch + width;
    }
    void run() const
    {
        for (size_t row = 0; row < height; row++) {
            memmove(static_cast<char *>(to) + row * to_pitch,
                    static_cast<const char *>(from) + row * from_pitch, width);
        }
    }
};

/* False, with a line that says why, where the address is device memory but not all of the range. */
bool find_side(const char *call, const void *memory, size_t bytes, side *found)
{
    if (in_device_region(memory)) {
        *found = side::device;
        if (find_device_range(memory, bytes) != nullptr) {
            return true;
        }
        const allocation *near = find_allocation(memory);
        refuse(cudaErrorInvalidValue, "%s of %zu bytes at %s", call, bytes,
               near != nullptr ? describe_allocation(*near, memory).c_str() : "no allocation");
        return false;
    }
    *found = find_pinned_range(memory, bytes) != nullptr ? side::pinned : side::pageable;
    return true;
}

bool direction_fits(cudaMemcpyKind kind, side to, side from)
{
    switch (kind) {
    case cudaMemcpyHostToHost:
        return to != side::device && from != side::device;
    case cudaMemcpyHostToDevice:
        return to == side::device && from != side::device;
    case cudaMemcpyDeviceToHost:
        return to != side::device && from == side::device;
    case cudaMemcpyDeviceToDevice:
        return to == side::device && from == side::device;
    case cudaMemcpyDefault:
        return true;
    }
    return false;
}

const char *copy_name(side to, side from)
{
    if (to == side::device) {
        return from == side::device ? "copy on the device" : "copy to the device";
    }
    return "copy to the host";
}

work copy_work(const copy &what, side to, side from)
{
    work made = describe(SIMULATOR_COPY, copy_name(to, from));
    if (from == side::device) {
        made.ranges.push_back(simulator_reads(what.from, what.width, what.height, what.from_pitch));
    }
    if (to == side::device) {
        made.ranges.push_back(simulator_writes(what.to, what.width, what.height, what.to_pitch));
    }
    if (from == side::pinned) {
        made.pinned = what.from;
        made.pinned_bytes = what.span(what.from_pitch);
    } else if (to == side::pinned) {
        made.pinned = what.to;
        made.pinned_bytes = what.span(what.to_pitch);
        made.pinned_write = true;
    }
    made.start = [what](uint64_t) -> std::function<bool()> {
        what.run();
        return nullptr;
    };
    return made;
}

/* Pageable memory cannot be read later: it is taken at once. In a capture there is no "at once". */
cudaError_t copy_from_pageable(const copy &what, side to, cudaStream_t stream, const char *call)
{
    auto taken = std::make_shared<std::vector<char>>(what.width * what.height);
    copy in{taken->data(), what.width, what.from, what.from_pitch, what.width, what.height};
    in.run();
    copy out{what.to, what.to_pitch, taken->data(), what.width, what.width, what.height};
    work made = copy_work(out, to, side::pageable);
    made.start = [out, taken](uint64_t) -> std::function<bool()> {
        out.run();
        return nullptr;
    };
    const cudaError_t status = forbidden_in(stream, call, "copies from pageable memory");
    return status != cudaSuccess ? status : submit(stream, std::move(made));
}

cudaError_t start_copy(const copy &what, cudaMemcpyKind kind, cudaStream_t stream, const char *call,
                       bool wait)
{
    if (what.width == 0 || what.height == 0) {
        return usable(current_device());
    }
    side to = side::device, from = side::device;
    if (!find_side(call, what.to, what.span(what.to_pitch), &to) ||
        !find_side(call, what.from, what.span(what.from_pitch), &from)) {
        return cudaErrorInvalidValue;
    }
    if (!direction_fits(kind, to, from)) {
        return refuse(cudaErrorInvalidValue, "%s: the direction does not fit the addresses %p, %p",
                      call, what.to, what.from);
    }
    if (from == side::pageable && !wait) {
        return copy_from_pageable(what, to, stream, call);
    }
    cudaError_t status = cudaSuccess;
    if (to == side::pageable && !wait) {
        status = forbidden_in(stream, call, "copies to pageable memory");
        wait = true;
    }
    if (status == cudaSuccess) {
        status = submit(stream, copy_work(what, to, from));
    }
    return status == cudaSuccess && wait ? cudaStreamSynchronize(stream) : status;
}

} // namespace

cudaError_t launch(kernel &&what, cudaStream_t stream)
{
    cudaError_t status = usable(current_device());
    if (status == cudaSuccess) {
        status = check_launch(what);
    }
    if (status != cudaSuccess) {
        return status;
    }
    work made = describe(SIMULATOR_KERNEL, what.name);
    made.where = what.where;
    made.ranges = guess_ranges(what);
    auto kept = std::make_shared<const kernel>(std::move(what));
    const std::vector<simulator_range> touched = made.ranges;
    made.start = [kept, touched](uint64_t order) -> std::function<bool()> {
        run_kernel(*kept, order);
        for (const simulator_range &range : touched) {
            const allocation *which = find_allocation(range.memory);
            if (which->live) {
                check_canaries(*which);
            }
        }
        return nullptr;
    };
    return submit(stream, std::move(made));
}

} // namespace simulator

using namespace simulator;

cudaError_t simulator_enqueue(cudaStream_t stream, const char *name, std::function<void()> run,
                              std::vector<simulator_range> ranges)
{
    check_operands(name, ranges);
    work made = describe(SIMULATOR_LIBRARY, name);
    made.ranges = std::move(ranges);
    drop_empty(&made.ranges);
    made.start = [run = std::move(run)](uint64_t) -> std::function<bool()> {
        run();
        return nullptr;
    };
    return submit(stream, std::move(made));
}

cudaError_t simulator_enqueue_polled(cudaStream_t stream, const char *name,
                                     std::function<std::function<bool()>()> start,
                                     std::vector<simulator_range> ranges)
{
    check_operands(name, ranges);
    work made = describe(SIMULATOR_LIBRARY, name);
    made.ranges = std::move(ranges);
    drop_empty(&made.ranges);
    made.start = [start = std::move(start)](uint64_t) { return start(); };
    return submit(stream, std::move(made));
}

void simulator_touch(const char *name, const std::vector<simulator_range> &ranges)
{
    const operation *who = running_operation();
    if (who == nullptr) {
        simulator_fail("%s touches memory outside its turn in a stream", name);
    }
    check_operands(name, ranges);
    std::vector<simulator_range> kept = ranges;
    drop_empty(&kept);
    check_ranges(*who, kept);
    check_work_ranges(kept);
}

extern "C" {

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return start_copy({to, 0, from, 0, bytes, 1}, kind, stream, "cudaMemcpyAsync", false);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    if (to_pitch < width || from_pitch < width) {
        return result(cudaErrorInvalidPitchValue);
    }
    return start_copy({to, to_pitch, from, from_pitch, width, height}, kind, stream,
                      "cudaMemcpy2DAsync", false);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    const cudaError_t status = forbidden("cudaMemcpy");
    return status != cudaSuccess
               ? status
               : start_copy({to, 0, from, 0, bytes, 1}, kind, nullptr, "cudaMemcpy", true);
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    if (bytes == 0) {
        return usable(current_device());
    }
    if (find_device_range(memory, bytes) == nullptr) {
        const allocation *near = find_allocation(memory);
        return refuse(cudaErrorInvalidValue, "cudaMemsetAsync of %zu bytes at %s", bytes,
                      near != nullptr ? describe_allocation(*near, memory).c_str()
                                      : "no allocation");
    }
    work made = describe(SIMULATOR_SET, "memset");
    made.ranges.push_back(simulator_writes(memory, bytes));
    made.start = [memory, value, bytes](uint64_t) -> std::function<bool()> {
        memset(memory, value, bytes);
        return nullptr;
    };
    return submit(stream, std::move(made));
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    const cudaError_t status = forbidden("cudaMemset");
    return status != cudaSuccess ? status : cudaMemsetAsync(memory, value, bytes, nullptr);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    work made = describe(SIMULATOR_HOST, "host function");
    made.start = [function, data](uint64_t) -> std::function<bool()> {
        function(data);
        return nullptr;
    };
    return submit(stream, std::move(made));
}

} /* extern "C" */

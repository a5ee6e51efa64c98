/* Work in streams: when it runs, and in which order.
 *
 * Nothing runs when it is put in. Operations form a graph (each follows the one before it in its
 * stream, and the events that the stream waits for), and they run when somebody waits for one of
 * them: as late as can be. Which of those that could run goes next is drawn from the seed. */
#include "runtime.hpp"

#include <algorithm>
#include <ctime>
#include <unistd.h>

namespace simulator
{

std::mutex state;

namespace
{

struct queues {
    std::condition_variable changed;
    bool driven = false; /* some thread runs operations */
    std::vector<operation_ptr> ready, polled;
    int64_t pending = 0;
    uint64_t executed = 0;
    random order{0};
    bool seeded = false;
    std::vector<uint32_t> turns;  /* the last of each lane */
    std::vector<uint32_t> favour; /* of each lane: who goes first now */
    int favour_left = 0;
    clock host;                          /* what the host has waited for */
    std::map<int, CUstream_st *> legacy; /* of each device */
    std::vector<CUstream_st *> streams;
    std::vector<CUevent_st *> events;
    /* Pinned memory that operations which have not run yet will read or write. */
    struct pinned_use {
        const operation *by;
        const char *begin, *end;
        bool write;
    };
    std::vector<pinned_use> pinned;
    uint64_t activity = 0; /* calls so far, for the background thread */
    bool background = false;
};

queues &all()
{
    static auto *kept = new queues;
    return *kept;
}

thread_local const operation *running = nullptr;

double now()
{
    timespec time = {};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

uint64_t hash(const void *memory, size_t bytes)
{
    const char *at = static_cast<const char *>(memory);
    uint64_t sum = bytes;
    while (bytes > 0) {
        uint64_t word = 0;
        const size_t part = std::min(bytes, sizeof(word));
        memcpy(&word, at, part);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15ULL;
        sum ^= sum >> 29;
        at += part;
        bytes -= part;
    }
    return sum;
}

bool overlaps(const queues::pinned_use &use, const void *memory, size_t bytes)
{
    const char *begin = static_cast<const char *>(memory);
    return begin < use.end && use.begin < begin + bytes;
}

/* Pinned memory that is to be read must keep what it holds, so its hash is taken; pinned memory
 * that is to be written holds nothing that counts from now on, and is poisoned. Neither where other
 * operations that have not run yet have to do with it. */
void note_pinned(operation *made)
{
    const work &what = *made->what;
    if (what.pinned == nullptr) {
        return;
    }
    bool shared = false;
    for (const queues::pinned_use &use : all().pinned) {
        if (overlaps(use, what.pinned, what.pinned_bytes) && (use.write || what.pinned_write)) {
            shared = true;
        }
    }
    made->pinned_checked = !shared && !what.pinned_write;
    if (made->pinned_checked) {
        made->pinned_hash = hash(what.pinned, what.pinned_bytes);
    } else if (!shared) {
        poison(const_cast<void *>(what.pinned), what.pinned_bytes);
    }
    const char *begin = static_cast<const char *>(what.pinned);
    all().pinned.push_back({made, begin, begin + what.pinned_bytes, what.pinned_write});
}

void check_pinned(const operation &one)
{
    const work &what = *one.what;
    if (one.pinned_checked && hash(what.pinned, what.pinned_bytes) != one.pinned_hash) {
        simulator_fail("%s of %zu bytes from pinned memory %p: the host overwrote it before the "
                       "stream had read it",
                       what.name, what.pinned_bytes, what.pinned);
    }
}

void finish(const operation_ptr &one)
{
    queues &in = all();
    one->done = true;
    one->finished = now();
    one->poll = nullptr;
    if (one->what->pinned != nullptr) {
        in.pinned.erase(std::remove_if(in.pinned.begin(), in.pinned.end(),
                                       [&](const auto &use) { return use.by == one.get(); }),
                        in.pinned.end());
    }
    for (const operation_ptr &follower : one->followers) {
        if (--follower->waits == 0) {
            in.ready.push_back(follower);
        }
    }
    one->followers.clear();
    if (--in.pending == 0) {
        forget_races(in.host);
    }
}

/* Runs on the calling thread, without the lock. True when it finished. */
bool execute(operation *one, uint64_t order)
{
    const work &what = *one->what;
    if (what.marker) {
        return true;
    }
    running = one;
    running_name = what.name;
    running_site = &what.where;
    check_pinned(*one);
    check_races(*one);
    if (what.kind == SIMULATOR_LIBRARY) {
        open_device_memory_to_openmp();
    } else if (what.kind != SIMULATOR_HOST) {
        open_device_memory();
    }
    check_work_begins(*one);
    one->poll = what.start(order);
    const bool done = one->poll == nullptr;
    if (done) {
        check_work_ends(what);
    }
    if (what.kind == SIMULATOR_LIBRARY) {
        close_device_memory_to_openmp();
    } else if (what.kind != SIMULATOR_HOST) {
        close_device_memory();
    }
    running = nullptr;
    running_name = nullptr;
    running_site = nullptr;
    return done;
}

bool poll_once(operation *one)
{
    running = one;
    running_name = one->what->name;
    running_site = &one->what->where;
    open_device_memory();
    const bool done = one->poll();
    if (done) {
        check_work_ends(*one->what);
    }
    close_device_memory();
    running = nullptr;
    running_name = nullptr;
    running_site = nullptr;
    return done;
}

/* The ready operation whose lane is in favour; favours change every few operations. */
operation_ptr take_ready()
{
    queues &in = all();
    if (!in.seeded) {
        in.order = random(seed() * 0x9e3779b97f4a7c15ULL + 77);
        in.seeded = true;
    }
    if (in.favour_left-- <= 0 || in.favour.size() != in.turns.size()) {
        in.favour.resize(in.turns.size());
        for (uint32_t &favour : in.favour) {
            favour = in.order.below(1 << 20);
        }
        in.favour_left = static_cast<int>(in.order.below(24));
    }
    size_t best = 0;
    for (size_t i = 1; i < in.ready.size(); i++) {
        const auto rank = [&](size_t which) {
            const operation &one = *in.ready[which];
            return std::make_pair(in.favour[static_cast<size_t>(one.lane)], one.turn);
        };
        if (rank(i) < rank(best)) {
            best = i;
        }
    }
    operation_ptr taken = in.ready[best];
    in.ready.erase(in.ready.begin() + static_cast<std::ptrdiff_t>(best));
    return taken;
}

void poll_all(guard &held)
{
    queues &in = all();
    std::vector<operation_ptr> open = in.polled;
    bool any = false;
    held.unlock();
    std::vector<operation_ptr> done;
    for (const operation_ptr &one : open) {
        if (poll_once(one.get())) {
            done.push_back(one);
            any = true;
        }
    }
    if (!any) {
        usleep(20);
    }
    held.lock();
    for (const operation_ptr &one : done) {
        in.polled.erase(std::find(in.polled.begin(), in.polled.end(), one));
        finish(one);
    }
}

/* One step: an operation, or a look at those that wait for others. False where nothing is left. */
bool step(guard &held)
{
    queues &in = all();
    if (in.driven) {
        in.changed.wait(held);
        return true;
    }
    if (in.ready.empty() && in.polled.empty()) {
        return false;
    }
    in.driven = true;
    if (!in.ready.empty()) {
        const operation_ptr one = take_ready();
        const uint64_t order = seed() * 0xda942042e4dd58b5ULL + ++in.executed;
        held.unlock();
        const bool done = execute(one.get(), order);
        held.lock();
        if (done) {
            finish(one);
        } else {
            in.polled.push_back(one);
        }
    }
    if (!in.polled.empty()) {
        poll_all(held);
    }
    in.driven = false;
    in.changed.notify_all();
    return true;
}

bool is_event(const CUevent_st *event)
{
    const auto &events = all().events;
    return std::find(events.begin(), events.end(), event) != events.end();
}

CUstream_st *make_stream(int device, bool blocking, bool legacy)
{
    auto *made = new CUstream_st{};
    made->device = device;
    made->lane = new_lane();
    made->blocking = blocking;
    made->legacy = legacy;
    return made;
}

} // namespace

void join(clock &into, const clock &from)
{
    if (into.size() < from.size()) {
        into.resize(from.size());
    }
    for (size_t i = 0; i < from.size(); i++) {
        into[i] = std::max(into[i], from[i]);
    }
}

const operation *running_operation()
{
    return running;
}

int new_lane()
{
    all().turns.push_back(0);
    return static_cast<int>(all().turns.size()) - 1;
}

CUstream_st *resolve(cudaStream_t stream)
{
    queues &in = all();
    if (stream == nullptr || stream == cudaStreamLegacy) {
        CUstream_st *&legacy = in.legacy[current_device()];
        if (legacy == nullptr) {
            legacy = make_stream(current_device(), true, true);
        }
        return legacy;
    }
    if (std::find(in.streams.begin(), in.streams.end(), stream) == in.streams.end()) {
        refuse(cudaErrorInvalidResourceHandle, "no such stream: %p", static_cast<void *>(stream));
        return nullptr;
    }
    return stream;
}

operation_ptr put(work_ptr what, int lane, const std::vector<operation_ptr> &before)
{
    queues &in = all();
    handle_faults();
    auto made = std::make_shared<operation>();
    made->what = std::move(what);
    made->lane = lane;
    made->known = in.host;
    for (const operation_ptr &one : before) {
        join(made->known, one->known);
        if (!one->done) {
            one->followers.push_back(made);
            made->waits++;
        }
    }
    made->turn = ++in.turns[static_cast<size_t>(lane)];
    if (made->known.size() <= static_cast<size_t>(lane)) {
        made->known.resize(static_cast<size_t>(lane) + 1);
    }
    made->known[static_cast<size_t>(lane)] = made->turn;
    if (made->what->counted) {
        count_launch(made->what->kind, made->what->name);
    }
    note_pinned(made.get());
    in.pending++;
    in.activity++;
    if (made->waits == 0) {
        in.ready.push_back(made);
    }
    return made;
}

std::vector<operation_ptr> stream_order(CUstream_st *stream)
{
    queues &in = all();
    std::vector<operation_ptr> before;
    before.swap(stream->wait_for);
    if (stream->tail != nullptr) {
        before.push_back(stream->tail);
    }
    if (stream->legacy) {
        for (const CUstream_st *other : in.streams) {
            if (other->device == stream->device && other->blocking && other->tail != nullptr) {
                before.push_back(other->tail);
            }
        }
    } else if (stream->blocking) {
        const auto legacy = in.legacy.find(stream->device);
        if (legacy != in.legacy.end() && legacy->second->tail != nullptr) {
            before.push_back(legacy->second->tail);
        }
    }
    return before;
}

void set_stream_tail(CUstream_st *stream, const operation_ptr &tail)
{
    stream->tail = tail;
}

void host_knows(const operation_ptr &done)
{
    join(all().host, done->known);
}

void drain(guard &held, const operation_ptr &last)
{
    queues &in = all();
    handle_faults();
    while (last != nullptr ? !last->done : in.pending > 0) {
        if (!step(held)) {
            simulator_fail("work in streams waits for an event that never comes");
        }
    }
    if (last != nullptr) {
        host_knows(last);
    }
}

void drain_all()
{
    guard held(state);
    drain(held, nullptr);
    join(all().host, all().turns);
}

bool advance(guard &held, const operation_ptr &last)
{
    for (int steps = 0; steps < 64 && !last->done; steps++) {
        if (!step(held)) {
            break;
        }
    }
    if (last->done) {
        host_knows(last);
    }
    return last->done;
}

cudaError_t submit(cudaStream_t stream, work &&what)
{
    const cudaError_t status = usable(current_device());
    if (status != cudaSuccess) {
        return status;
    }
    guard held(state);
    CUstream_st *to = resolve(stream);
    if (to == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    auto kept = std::make_shared<const work>(std::move(what));
    if (to->capture != nullptr) {
        return result(capture_work(to, kept));
    }
    if (to->legacy) {
        const cudaError_t refused = forbidden_on_legacy(kept->name);
        if (refused != cudaSuccess) {
            return refused;
        }
    }
    set_stream_tail(to, put(kept, to->lane, stream_order(to)));
    return cudaSuccess;
}

int64_t live_streams_and_events()
{
    guard held(state);
    return static_cast<int64_t>(all().streams.size()) + static_cast<int64_t>(all().events.size());
}

namespace
{

/* Moves work on while the host is idle, as a GPU would. */
void background_main()
{
    uint64_t seen = 0;
    for (;;) {
        usleep(5000);
        guard held(state);
        queues &in = all();
        if (!in.background || in.activity != seen) {
            seen = in.activity;
            continue;
        }
        for (int steps = 0; steps < 256 && in.pending > 0 && in.activity == seen; steps++) {
            step(held);
        }
    }
}

} // namespace

} // namespace simulator

using namespace simulator;

void simulator_run_in_background(bool enabled)
{
    guard held(state);
    static pid_t started = 0;
    all().background = enabled;
    if (enabled && started != getpid()) {
        started = getpid();
        std::thread(background_main).detach();
    }
}

int simulator_stream_device(cudaStream_t stream)
{
    guard held(state);
    const CUstream_st *of = resolve(stream);
    return of != nullptr ? of->device : -1;
}

extern "C" {

int64_t simulator_live_objects(void)
{
    return live_allocations(false) + live_streams_and_events() + live_graphs();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    const cudaError_t status = usable(current_device());
    if (status == cudaSuccess) {
        report_leaks_at_exit();
        guard held(state);
        *stream = make_stream(current_device(), (flags & cudaStreamNonBlocking) == 0, false);
        all().streams.push_back(*stream);
    }
    return status;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
    (void)priority;
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return usable(current_device());
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    guard held(state);
    CUstream_st *of = resolve(stream);
    if (of == nullptr || of->legacy) {
        return result(cudaErrorInvalidResourceHandle);
    }
    if (of->capture != nullptr) {
        return forbidden_on(of, "cudaStreamDestroy");
    }
    auto &streams = all().streams;
    streams.erase(std::find(streams.begin(), streams.end(), of));
    delete of;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    guard held(state);
    CUstream_st *of = resolve(stream);
    if (of == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    const cudaError_t status = forbidden_on(of, "cudaStreamSynchronize");
    if (status != cudaSuccess) {
        return status;
    }
    for (const operation_ptr &before : stream_order(of)) {
        drain(held, before);
    }
    held.unlock();
    check_all_canaries();
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    guard held(state);
    CUstream_st *of = resolve(stream);
    if (of == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    const cudaError_t status = forbidden_on(of, "cudaStreamQuery");
    if (status != cudaSuccess) {
        return status;
    }
    const operation_ptr last = of->tail;
    return last == nullptr || advance(held, last) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t status = usable(current_device());
    if (status == cudaSuccess) {
        status = forbidden("cudaDeviceSynchronize");
    }
    if (status == cudaSuccess) {
        drain_all();
        check_all_canaries();
    }
    return status;
}

cudaError_t cudaDeviceReset(void)
{
    return cudaDeviceSynchronize();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    (void)flags;
    guard held(state);
    CUstream_st *of = resolve(stream);
    if (of == nullptr || !is_event(event)) {
        return result(cudaErrorInvalidResourceHandle);
    }
    if (event->capture != nullptr || of->capture != nullptr) {
        return result(capture_wait(of, event));
    }
    if (event->last != nullptr) {
        of->wait_for.push_back(event->last);
    }
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    const cudaError_t status = usable(current_device());
    if (status == cudaSuccess) {
        report_leaks_at_exit();
        guard held(state);
        *event = new CUevent_st{};
        (*event)->timed = (flags & cudaEventDisableTiming) == 0;
        all().events.push_back(*event);
    }
    return status;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    guard held(state);
    if (!is_event(event)) {
        return result(cudaErrorInvalidResourceHandle);
    }
    auto &events = all().events;
    events.erase(std::find(events.begin(), events.end(), event));
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    guard held(state);
    CUstream_st *of = resolve(stream);
    if (of == nullptr || !is_event(event)) {
        return result(cudaErrorInvalidResourceHandle);
    }
    if (of->capture != nullptr) {
        return result(capture_record(of, event));
    }
    if (of->legacy) {
        const cudaError_t refused = forbidden_on_legacy("cudaEventRecord");
        if (refused != cudaSuccess) {
            return refused;
        }
    }
    static const work_ptr mark = [] {
        auto made = std::make_shared<work>();
        made->name = "event";
        made->kind = SIMULATOR_HOST;
        made->marker = true;
        return made;
    }();
    event->last = put(mark, of->lane, stream_order(of));
    event->capture = nullptr;
    event->nodes.clear();
    set_stream_tail(of, event->last);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    guard held(state);
    if (!is_event(event)) {
        return result(cudaErrorInvalidResourceHandle);
    }
    cudaError_t status = forbidden_on_event(event, "cudaEventQuery");
    if (status == cudaSuccess && event->last != nullptr && !advance(held, event->last)) {
        status = cudaErrorNotReady;
    }
    return status;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    guard held(state);
    if (!is_event(event)) {
        return result(cudaErrorInvalidResourceHandle);
    }
    const cudaError_t status = forbidden_on_event(event, "cudaEventSynchronize");
    if (status == cudaSuccess && event->last != nullptr) {
        const operation_ptr last = event->last;
        drain(held, last);
    }
    return status;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    guard held(state);
    if (!is_event(start) || !is_event(end) || !start->timed || !end->timed ||
        start->last == nullptr || end->last == nullptr) {
        return result(cudaErrorInvalidResourceHandle);
    }
    if (!start->last->done || !end->last->done) {
        return cudaErrorNotReady;
    }
    *milliseconds = static_cast<float>(1e3 * (end->last->finished - start->last->finished));
    return cudaSuccess;
}

} /* extern "C" */

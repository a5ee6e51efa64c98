/* The threads of a block, one stack each, and blocks over the threads of the host.
 *
 * A worker runs one block at a time. Its threads run one after the other until they wait at a
 * barrier or for their warp, or end; the next one is taken from a list that every barrier shuffles
 * anew. A stack goes back as soon as its thread has ended, so that a kernel without barriers runs
 * on one stack and switches never. */
#include "runtime.hpp"

#include <algorithm>
#include <numeric>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unordered_map>

#if SIMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#endif

__thread uint3 threadIdx;
__thread uint3 blockIdx;
__thread dim3 blockDim;
__thread dim3 gridDim;

namespace simulator
{

__thread int check_thread = -1;

namespace
{

constexpr int most_threads = 1024;
constexpr int lanes = 32;
constexpr int orders = 16; /* prepared shuffles of one length */
constexpr size_t static_limit = 48 << 10;
constexpr size_t shared_limit = 227 << 10;
constexpr size_t shared_bytes = 320 << 10;
constexpr size_t shared_alignment = 128;
constexpr size_t shared_gap = 32; /* between objects, holding canary bytes */

enum class status : uint8_t { ready, at_barrier, at_warp, ended };

struct gpu_thread {
    fiber *stack;
    uint3 index;
    status now;
    uint8_t lane;
    uint8_t warp;
    site where;
    uint32_t mask;
    uint64_t value, result;
    int argument;
};

/* Lanes of a warp that wait for the rest of their mask. */
struct meeting {
    uint32_t mask, arrived;
    warp_operation operation;
    site where;
};

struct gpu_warp {
    uint32_t exists, ended;
    int meeting_count;
    meeting meetings[lanes];
};

struct shared_object {
    const void *key;
    char *begin;
    size_t bytes;
};

/* Shuffled orders of `count` things: ascending, descending, and random ones. */
struct shuffles {
    int count = 0;
    uint64_t seed = 0;
    std::vector<uint16_t> rows;

    void prepare(int wanted, uint64_t with)
    {
        if (count == wanted && seed == with) {
            return;
        }
        count = wanted;
        seed = with;
        rows.resize(static_cast<size_t>(orders) * static_cast<size_t>(wanted));
        random generator(with * 1000003 + static_cast<uint64_t>(wanted));
        for (int row = 0; row < orders; row++) {
            uint16_t *order = rows.data() + static_cast<size_t>(row) * static_cast<size_t>(wanted);
            std::iota(order, order + wanted, static_cast<uint16_t>(0));
            if (row == 1) {
                std::reverse(order, order + wanted);
            }
            for (int i = wanted; row > 1 && i > 1; i--) {
                std::swap(order[i - 1], order[generator.below(static_cast<uint32_t>(i))]);
            }
        }
    }
    const uint16_t *row(uint64_t number) const
    {
        return rows.data() + (number % orders) * static_cast<size_t>(count);
    }
};

struct worker {
    const kernel *work = nullptr;
    gpu_thread *current = nullptr;
    fiber scheduler = {};
    int total = 0, ready_count = 0, waiting = 0, ended = 0;
    site barrier = {};
    random order;
    shuffles block_orders, warp_orders;
    std::vector<fiber *> free_stacks;
    unsigned int stack_count = 0;
    char *shared = nullptr;
    size_t shared_used = 0, dynamic_bytes = 0;
    char *dynamic = nullptr;
    std::vector<shared_object> objects;
    gpu_thread threads[most_threads];
    gpu_warp warps[most_threads / lanes];
    uint16_t ready[most_threads];

    worker();
    void run_block(const kernel &what, uint64_t block, uint64_t seed);
    void begin_block(uint64_t block);
    void end_block();
    void check_gap(const char *gap, size_t bytes, size_t object_bytes);
    fiber *stack();
    fiber *take_next(fiber *own);
    void leave();
    void release(const uint16_t *row, uint32_t chosen, gpu_warp *warp);
    void finish_meeting(gpu_warp *warp, int number);
    void check_warp(gpu_warp *warp);
    void thread_ended();
    [[noreturn]] void diverged();
};

thread_local worker *self = nullptr;

worker *this_worker()
{
    if (self == nullptr) {
        self = new worker;
    }
    return self;
}

std::string index_text(const gpu_thread &of)
{
    char text[64];
    snprintf(text, sizeof(text), "(%u,%u,%u)", of.index.x, of.index.y, of.index.z);
    return text;
}

/* Faults of kernels are reported from a stack of their own: theirs may be what overflowed. */
void provide_signal_stack()
{
    stack_t now = {};
    if (sigaltstack(nullptr, &now) == 0 && (now.ss_flags & SS_DISABLE) != 0) {
        static constexpr size_t bytes = 128 << 10;
        stack_t own = {};
        own.ss_sp =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        own.ss_size = bytes;
        if (own.ss_sp != MAP_FAILED) {
            sigaltstack(&own, nullptr);
        }
    }
}

/* The body of every stack: threads of blocks, one after the other, for ever. */
void stack_main()
{
    fiber *const own = self->current->stack;
    fiber_started(&self->scheduler);
    for (;;) {
        worker *at = self;
        at->work->invoke(at->work->arguments.get());
        at->thread_ended();
        fiber *to = at->take_next(own);
        if (to != own) {
            at->free_stacks.push_back(own);
            fiber_switch(own, to);
        }
    }
}

worker::worker()
{
    provide_signal_stack();
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    char *memory = static_cast<char *>(
        mmap(nullptr, shared_bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory == MAP_FAILED ||
        mprotect(memory + page, shared_bytes, PROT_READ | PROT_WRITE) != 0) {
        simulator_fail("no memory for the shared memory of a block");
    }
    shared = memory + page;
    check_shared_region(shared, shared_bytes);
}

fiber *worker::stack()
{
    if (free_stacks.empty()) {
        fiber *made = new fiber();
        fiber_create(made, stack_main, stack_count++);
        return made;
    }
    fiber *taken = free_stacks.back();
    free_stacks.pop_back();
    return taken;
}

/* Makes the next ready thread the current one and returns the stack to go on with: `own`, whose
 * thread has ended, where the next one has not begun; the scheduler's where none is ready. */
fiber *worker::take_next(fiber *own)
{
    if (ready_count == 0) {
        current = nullptr;
        check_thread = -1;
        return &scheduler;
    }
    gpu_thread *next = &threads[ready[--ready_count]];
    if (next->stack == nullptr) {
        next->stack = own != nullptr ? own : stack();
    }
    current = next;
    next->now = status::ready;
    threadIdx = next->index;
    check_thread = static_cast<int>(next - threads);
    return next->stack;
}

/* The current thread waits: goes on with another one, and returns when it is its turn again. */
void worker::leave()
{
    fiber *from = current->stack;
    fiber *to = take_next(nullptr);
    if (to != from) {
        fiber_switch(from, to);
    }
}

void worker::begin_block(uint64_t block)
{
    const dim3 &grid = work->grid;
    const dim3 &size = work->block;
    gridDim = grid;
    blockDim = size;
    blockIdx.x = static_cast<unsigned int>(block % grid.x);
    blockIdx.y = static_cast<unsigned int>(block / grid.x % grid.y);
    blockIdx.z = static_cast<unsigned int>(block / grid.x / grid.y);
    uint3 index = {0, 0, 0};
    for (int i = 0; i < total; i++) {
        gpu_thread &one = threads[i];
        one.stack = nullptr;
        one.index = index;
        one.now = status::ready;
        one.lane = static_cast<uint8_t>(i % lanes);
        one.warp = static_cast<uint8_t>(i / lanes);
        if (++index.x == size.x) {
            index.x = 0;
            if (++index.y == size.y) {
                index.y = 0;
                index.z++;
            }
        }
    }
    for (int warp = 0; warp * lanes < total; warp++) {
        const int count = std::min(lanes, total - warp * lanes);
        warps[warp].exists = count == lanes ? 0xffffffffU : (1U << count) - 1;
        warps[warp].ended = 0;
        warps[warp].meeting_count = 0;
    }
    waiting = ended = 0;
    objects.clear();
    shared_used = 0;
    dynamic_bytes = work->shared_bytes;
    dynamic = shared + shared_bytes -
              (dynamic_bytes + shared_alignment - 1) / shared_alignment * shared_alignment;
#if SIMULATOR_ASAN
    ASAN_POISON_MEMORY_REGION(shared, shared_bytes);
    ASAN_UNPOISON_MEMORY_REGION(dynamic, dynamic_bytes);
#else
    memset(dynamic + dynamic_bytes, canary_byte,
           static_cast<size_t>(shared + shared_bytes - dynamic) - dynamic_bytes);
#endif
    if (dynamic_bytes > 0) {
        poison(dynamic, dynamic_bytes);
    }
    check_block_begins(dynamic, dynamic_bytes);
    release(block_orders.row(order.next()), 0, nullptr);
}

/* All threads of the block (no warp) or the chosen lanes of a warp become ready, in the order of
 * `row`. */
void worker::release(const uint16_t *row, uint32_t chosen, gpu_warp *warp)
{
    if (warp == nullptr) {
        memcpy(ready, row, static_cast<size_t>(total) * sizeof(*ready));
        ready_count = total;
        return;
    }
    const int first = static_cast<int>(warp - warps) * lanes;
    /* Mostly the warp goes on at once; now and then all others go first. */
    if (ready_count > 0 && (order.next() & 7U) == 0) {
        const int count = __builtin_popcount(chosen);
        memmove(ready + count, ready, static_cast<size_t>(ready_count) * sizeof(*ready));
        ready_count += count;
        int at = 0;
        for (int i = 0; i < lanes; i++) {
            if ((chosen >> row[i] & 1U) != 0) {
                ready[at++] = static_cast<uint16_t>(first + row[i]);
            }
        }
        return;
    }
    for (int i = 0; i < lanes; i++) {
        if ((chosen >> row[i] & 1U) != 0) {
            ready[ready_count++] = static_cast<uint16_t>(first + row[i]);
        }
    }
}

void worker::end_block()
{
    for (const shared_object &object : objects) {
        check_gap(object.begin + object.bytes, shared_gap, object.bytes);
    }
    check_gap(dynamic + dynamic_bytes,
              static_cast<size_t>(shared + shared_bytes - dynamic) - dynamic_bytes, dynamic_bytes);
    check_block_ends();
}

/* The bytes behind an object of shared memory must be as they were. */
void worker::check_gap(const char *gap, size_t bytes, size_t object_bytes)
{
    for (size_t i = 0; !SIMULATOR_ASAN && i < bytes; i++) {
        if (static_cast<unsigned char>(gap[i]) != canary_byte) {
            simulator_fail("a thread of block (%u,%u,%u) wrote past the end of shared memory of "
                           "%zu bytes",
                           blockIdx.x, blockIdx.y, blockIdx.z, object_bytes);
        }
    }
}

void worker::run_block(const kernel &what, uint64_t block, uint64_t seed)
{
    work = &what;
    order = random(seed);
    total = static_cast<int>(what.block.x * what.block.y * what.block.z);
    block_orders.prepare(total, simulator::seed());
    warp_orders.prepare(lanes, simulator::seed());
    begin_block(block);
    fiber *first = take_next(nullptr);
    fiber_switch(&scheduler, first);
    if (ended != total) {
        diverged();
    }
    end_block();
}

void worker::thread_ended()
{
    current->now = status::ended;
    ended++;
    gpu_warp *warp = &warps[current->warp];
    warp->ended |= 1U << current->lane;
    if (warp->meeting_count > 0) {
        check_warp(warp);
    }
}

/* Nothing is ready, and not all threads have ended: some wait for others that never come. */
void worker::diverged()
{
    const gpu_thread *barrier_thread = nullptr, *warp_thread = nullptr, *ended_thread = nullptr;
    int at_barrier = 0;
    for (int i = 0; i < total; i++) {
        const gpu_thread &one = threads[i];
        if (one.now == status::at_barrier) {
            barrier_thread = &one;
            at_barrier++;
        } else if (one.now == status::at_warp) {
            warp_thread = &one;
        } else if (one.now == status::ended) {
            ended_thread = &one;
        }
    }
    const std::string where =
        barrier_thread != nullptr ? place(barrier_thread->where) : place(warp_thread->where);
    const gpu_thread *first = barrier_thread != nullptr ? barrier_thread : warp_thread;
    const std::string block = "block (" + std::to_string(blockIdx.x) + "," +
                              std::to_string(blockIdx.y) + "," + std::to_string(blockIdx.z) + ")";
    if (barrier_thread != nullptr && warp_thread == nullptr) {
        simulator_fail("divergent barrier in %s: %d of %d threads, such as %s, wait at "
                       "__syncthreads (%s); %d, such as %s, have ended",
                       block.c_str(), at_barrier, total, index_text(*first).c_str(), where.c_str(),
                       ended, index_text(*ended_thread).c_str());
    }
    if (barrier_thread != nullptr) {
        simulator_fail("divergent barrier in %s: thread %s waits at __syncthreads (%s), thread %s "
                       "for lanes 0x%08x of its warp (%s)",
                       block.c_str(), index_text(*first).c_str(), where.c_str(),
                       index_text(*warp_thread).c_str(), warp_thread->mask,
                       place(warp_thread->where).c_str());
    }
    simulator_fail("divergent warp in %s: thread %s waits for lanes 0x%08x (%s), which wait "
                   "elsewhere",
                   block.c_str(), index_text(*first).c_str(), first->mask, where.c_str());
}

/* Meetings that only waited for a lane that has ended by now. */
void worker::check_warp(gpu_warp *warp)
{
    for (int i = warp->meeting_count - 1; i >= 0; i--) {
        const meeting &one = warp->meetings[i];
        if ((one.mask & warp->exists & ~warp->ended & ~one.arrived) == 0) {
            finish_meeting(warp, i);
        }
    }
}

uint64_t vote(warp_operation operation, uint32_t arrived, uint32_t ayes)
{
    switch (operation) {
    case warp_operation::ballot:
        return ayes;
    case warp_operation::any:
        return ayes != 0;
    case warp_operation::all:
        return ayes == arrived;
    default:
        return 0;
    }
}

void worker::finish_meeting(gpu_warp *warp, int number)
{
    const meeting met = warp->meetings[number];
    warp->meetings[number] = warp->meetings[--warp->meeting_count];
    gpu_thread *first = &threads[(warp - warps) * lanes];
    if (met.operation == warp_operation::shuffle) {
        for (uint32_t left = met.arrived; left != 0; left &= left - 1) {
            gpu_thread &lane = first[__builtin_ctz(left)];
            const bool there = (met.arrived >> lane.argument & 1U) != 0;
            /* What a lane that takes no part would give is undefined. */
            lane.result = there ? first[lane.argument].value
                                : static_cast<uint64_t>(poison_word) << 32 | poison_word;
        }
    } else if (met.operation == warp_operation::matrix) {
        if (met.arrived != 0xffffffffU) {
            simulator_fail("a wmma operation (%s) needs all 32 lanes of the warp",
                           place(met.where).c_str());
        }
        warp_matrix *operands[lanes];
        for (int i = 0; i < lanes; i++) {
            memcpy(&operands[i], &first[i].value, sizeof(uint64_t));
        }
        operands[0]->run(operands);
    } else {
        uint32_t ayes = 0;
        for (uint32_t left = met.arrived; left != 0; left &= left - 1) {
            const int lane = __builtin_ctz(left);
            ayes |= static_cast<uint32_t>(first[lane].value & 1U) << lane;
        }
        const uint64_t outcome = vote(met.operation, met.arrived, ayes);
        for (uint32_t left = met.arrived; left != 0; left &= left - 1) {
            first[__builtin_ctz(left)].result = outcome;
        }
    }
    check_warp_meets(static_cast<int>(warp - warps));
    release(warp_orders.row(order.next()), met.arrived, warp);
}

/* Blocks over the threads of the host. */

struct job {
    const kernel *work;
    uint64_t blocks, step, offset, seed;
    std::atomic<uint64_t> next{0};
};

struct pool {
    pid_t owner = 0; /* a child has none of its parent's threads */
    int helpers = 0;
    std::mutex lock;
    std::condition_variable wake, idle;
    job *running = nullptr;
    uint64_t generation = 0;
    int busy = 0;
    int wanted = 0;
};

pool *helpers = nullptr;
std::mutex helpers_lock;

uint64_t mix(uint64_t a, uint64_t b)
{
    return random(a * 0xd1342543de82ef95ULL + b).next();
}

/* Blocks in an order of the seed's: block (i * step + offset) mod blocks, step coprime to blocks.
 */
void run_blocks(job *what)
{
    worker *at = this_worker();
    const char *name = running_name;
    const site *where = running_site;
    running_name = what->work->name;
    running_site = &what->work->where;
    for (;;) {
        const uint64_t turn = what->next.fetch_add(1);
        if (turn >= what->blocks) {
            break;
        }
        __extension__ typedef unsigned __int128 wide;
        const uint64_t block = static_cast<uint64_t>(
            (static_cast<wide>(turn) * what->step + what->offset) % what->blocks);
        at->run_block(*what->work, block, mix(what->seed, block));
    }
    running_name = name;
    running_site = where;
}

void helper_main(pool *of)
{
    open_device_memory();
    provide_signal_stack();
    uint64_t seen = 0;
    std::unique_lock<std::mutex> held(of->lock);
    for (;;) {
        of->wake.wait(held, [&] { return of->generation != seen && of->running != nullptr; });
        seen = of->generation;
        if (of->wanted == 0) {
            continue;
        }
        of->wanted--;
        of->busy++;
        job *what = of->running;
        held.unlock();
        run_blocks(what);
        held.lock();
        if (--of->busy == 0) {
            of->idle.notify_all();
        }
    }
}

int host_threads()
{
    cpu_set_t set;
    int count = 1;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        count = CPU_COUNT(&set);
    }
    static const int chosen = static_cast<int>(setting("TTRAIN_SIMULATOR_THREADS", count, 1, 1024));
    return chosen;
}

pool *this_pool()
{
    const std::lock_guard<std::mutex> held(helpers_lock);
    if (helpers == nullptr || helpers->owner != getpid()) {
        helpers = new pool;
        helpers->owner = getpid();
        helpers->helpers = host_threads() - 1;
        for (int i = 0; i < helpers->helpers; i++) {
            std::thread(helper_main, helpers).detach();
        }
    }
    return helpers;
}

job order_blocks(const kernel &work, uint64_t order)
{
    random generator(order);
    const uint64_t blocks = static_cast<uint64_t>(work.grid.x) * work.grid.y * work.grid.z;
    uint64_t step = generator.next() % blocks;
    while (std::gcd(step, blocks) != 1) {
        step = (step + 1) % blocks;
        if (blocks == 1) {
            break;
        }
    }
    return {&work, blocks, step, generator.next() % blocks, generator.next()};
}

} // namespace

bool in_kernel()
{
    return self != nullptr && self->current != nullptr;
}

std::string thread_text(int number)
{
    return index_text(self->threads[number]);
}

bool holds_arguments(const void *memory)
{
    const char *at = static_cast<const char *>(memory);
    const char *begin = static_cast<const char *>(self->work->arguments.get());
    return at >= begin && at < begin + self->work->arguments_bytes;
}

void run_kernel(const kernel &work, uint64_t order)
{
    job what{nullptr, 0, 0, 0, 0};
    const job ordered = order_blocks(work, order);
    what.work = ordered.work;
    what.blocks = ordered.blocks;
    what.step = ordered.step;
    what.offset = ordered.offset;
    what.seed = ordered.seed;
    const uint64_t threads = what.blocks * work.block.x * work.block.y * work.block.z;
    pool *of = what.blocks > 1 && threads >= 512 ? this_pool() : nullptr;
    if (of == nullptr || of->helpers == 0) {
        run_blocks(&what);
        return;
    }
    {
        const std::lock_guard<std::mutex> held(of->lock);
        of->running = &what;
        of->generation++;
        of->wanted = static_cast<int>(
            std::min<uint64_t>(static_cast<uint64_t>(of->helpers), what.blocks - 1));
    }
    of->wake.notify_all();
    run_blocks(&what);
    std::unique_lock<std::mutex> held(of->lock);
    of->running = nullptr;
    of->wanted = 0;
    of->idle.wait(held, [&] { return of->busy == 0; });
}

unsigned int lane()
{
    return self->current->lane;
}

void block_barrier(site where)
{
    worker *at = self;
    if (at == nullptr || at->current == nullptr) {
        simulator_fail("__syncthreads (%s) outside a kernel", place(where).c_str());
    }
    at->current->now = status::at_barrier;
    at->current->where = where;
    if (at->waiting++ == 0) {
        at->barrier = where;
    } else if (at->barrier.line != where.line ||
               (at->barrier.file != where.file && strcmp(at->barrier.file, where.file) != 0)) {
        simulator_fail("divergent barrier: this thread is at __syncthreads (%s), others of the "
                       "block at __syncthreads (%s)",
                       place(where).c_str(), place(at->barrier).c_str());
    }
    if (at->waiting == at->total) {
        at->waiting = 0;
        check_block_meets();
        at->release(at->block_orders.row(at->order.next()), 0, nullptr);
    }
    at->leave();
}

uint64_t warp_meet(warp_operation operation, unsigned int mask, uint64_t value, int argument,
                   site where)
{
    worker *at = self;
    if (at == nullptr || at->current == nullptr) {
        simulator_fail("a warp operation (%s) outside a kernel", place(where).c_str());
    }
    gpu_thread *one = at->current;
    gpu_warp *warp = &at->warps[one->warp];
    if ((mask >> one->lane & 1U) == 0) {
        simulator_fail("a warp operation (%s) whose mask 0x%08x leaves out the calling lane %d",
                       place(where).c_str(), mask, one->lane);
    }
    one->now = status::at_warp;
    one->where = where;
    one->mask = mask;
    one->value = value;
    one->argument = argument;
    int number = 0;
    while (number < warp->meeting_count && warp->meetings[number].mask != mask) {
        number++;
    }
    meeting *met = &warp->meetings[number];
    if (number == warp->meeting_count) {
        warp->meeting_count++;
        *met = {mask, 0, operation, where};
    } else if (met->operation != operation || met->where.line != where.line) {
        simulator_fail("divergent warp: this lane is at %s, others of mask 0x%08x at %s",
                       place(where).c_str(), mask, place(met->where).c_str());
    }
    met->arrived |= 1U << one->lane;
    if ((mask & warp->exists & ~warp->ended & ~met->arrived) == 0) {
        at->finish_meeting(warp, number);
    }
    at->leave();
    return one->result;
}

/* Limits of dynamic shared memory that kernels have been given. */
static std::mutex limits_lock;
static std::unordered_map<const void *, size_t> &limits()
{
    static auto *kept = new std::unordered_map<const void *, size_t>;
    return *kept;
}

size_t dynamic_shared_limit(const void *function)
{
    const std::lock_guard<std::mutex> held(limits_lock);
    const auto found = limits().find(function);
    return found == limits().end() ? static_limit : found->second;
}

} // namespace simulator

using namespace simulator;

void *simulator_shared(size_t bytes, size_t alignment, const void *key)
{
    worker *at = self;
    if (at == nullptr || at->current == nullptr) {
        simulator_fail("shared memory outside a kernel");
    }
    for (const shared_object &object : at->objects) {
        if (object.key == key) {
            return object.begin;
        }
    }
    const size_t unit = std::max<size_t>(alignment, 16);
    const size_t begin = (at->shared_used + unit - 1) / unit * unit;
    if (begin + bytes > static_limit) {
        simulator_fail("more than 48 KB of shared objects");
    }
    if (begin + bytes + at->dynamic_bytes > shared_limit) {
        simulator_fail("more than 227 KB of shared memory");
    }
    char *memory = at->shared + begin;
#if SIMULATOR_ASAN
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
#else
    memset(memory + bytes, canary_byte, shared_gap);
#endif
    poison(memory, bytes);
    check_shared_begins(memory, bytes);
    at->objects.push_back({key, memory, bytes});
    at->shared_used = begin + bytes + shared_gap;
    return memory;
}

void *simulator_dynamic_shared()
{
    worker *at = self;
    if (at == nullptr || at->current == nullptr) {
        simulator_fail("shared memory outside a kernel");
    }
    if (at->dynamic_bytes == 0) {
        simulator_fail("dynamic shared memory, but the launch gives none");
    }
    return at->dynamic;
}

extern "C" {

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) {
        return usable(current_device());
    }
    cudaDeviceProp properties;
    cudaError_t status = cudaGetDeviceProperties(&properties, current_device());
    if (status != cudaSuccess) {
        return status;
    }
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        static_cast<size_t>(value) > properties.sharedMemPerBlockOptin) {
        return refuse(cudaErrorInvalidValue,
                      "cudaFuncSetAttribute: %d bytes of dynamic shared memory; a block has %zu",
                      value, properties.sharedMemPerBlockOptin);
    }
    const std::lock_guard<std::mutex> held(limits_lock);
    limits()[kernel] = std::max<size_t>(static_cast<size_t>(value), static_limit);
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel)
{
    const cudaError_t status = usable(current_device());
    if (status == cudaSuccess) {
        *attributes = cudaFuncAttributes();
        attributes->maxThreadsPerBlock = most_threads;
        attributes->numRegs = 64;
        attributes->binaryVersion = devices().major * 10 + devices().minor;
        attributes->ptxVersion = attributes->binaryVersion;
        attributes->maxDynamicSharedSizeBytes = static_cast<int>(dynamic_shared_limit(kernel));
    }
    return status;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                          int block_threads, size_t bytes)
{
    (void)kernel;
    cudaDeviceProp properties;
    const cudaError_t status = cudaGetDeviceProperties(&properties, current_device());
    if (status != cudaSuccess) {
        return status;
    }
    if (block_threads < 1 || block_threads > most_threads) {
        return result(cudaErrorInvalidValue);
    }
    int fit = std::min(properties.maxBlocksPerMultiProcessor, 2048 / block_threads);
    const size_t each = bytes + properties.reservedSharedMemPerBlock;
    fit = std::min(fit, static_cast<int>(properties.sharedMemPerMultiprocessor / each));
    *blocks = fit;
    return cudaSuccess;
}

} /* extern "C" */

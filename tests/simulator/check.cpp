/* Judging every access of a kernel. In builds with TTRAIN_SIMULATOR_CHECK the compiler puts a call
 * before each load and store of the kernels (it is asked for the instrumentation of
 * ThreadSanitizer); the functions it calls are here instead of in ThreadSanitizer's library. They
 * hold each access against what is known of those bytes: whether they exist, whether anybody wrote
 * them, and who touched them last without anything in between that orders the two.
 *
 * Of each two bytes of device memory the last writer and the last reader are kept (which operation
 * of a stream, which thread of which block), of each byte of shared memory the last writer and
 * reader since the last barrier. */
#include "runtime.hpp"

#include <algorithm>
#include <cerrno>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef TTRAIN_SIMULATOR_CHECK

namespace simulator
{

bool checks_accesses()
{
    return false;
}
void check_device_region(char *, size_t)
{
}
void check_allocated(const allocation &)
{
}
void check_freed(const allocation &)
{
}
void check_work_begins(const operation &)
{
}
void check_work_ends(const work &)
{
}
void check_work_ranges(const std::vector<simulator_range> &)
{
}
void check_shared_region(char *, size_t)
{
}
void check_block_begins(char *, size_t)
{
}
void check_shared_begins(char *, size_t)
{
}
void check_block_meets()
{
}
void check_warp_meets(int)
{
}
void check_block_ends()
{
}

} // namespace simulator

#else

namespace simulator
{

bool checks_accesses()
{
    return true;
}

namespace
{

enum byte_state : unsigned char { absent, undefined, defined };

/* Who touched two bytes of device memory last. An operation's number stands for its place in the
 * order of streams; `who` is the block and the thread. */
struct device_record {
    uint32_t writer, write_who;
    uint32_t reader, read_who;
};

struct shared_record {
    uint32_t write_epoch, read_epoch; /* barriers so far, over all blocks */
    uint32_t write_warp, read_warp;   /* meetings of the warp so far */
    uint16_t writer, reader;
    bool several;       /* lanes of one warp have read it since */
    bool several_warps; /* or of more than one */
};

struct numbered {
    int lane;
    uint32_t turn;
    std::string title;
};

struct device_shadow {
    char *region = nullptr;
    size_t bytes = 0;
    unsigned char *state = nullptr;
    device_record *records = nullptr;
    std::deque<numbered> operations; /* by number, from 1 */
    uint32_t running = 0;            /* number of the one that runs */
    clock known;                     /* of it */
    std::mutex lock;
};

device_shadow &device()
{
    static auto *kept = new device_shadow;
    return *kept;
}

/* Of the worker that this thread of the host is. */
struct shared_shadow {
    char *begin;
    size_t bytes;
    unsigned char *state;
    shared_record *records;
    uint32_t epoch;
    uint32_t warp_epochs[32];
    std::vector<std::pair<size_t, size_t>> *used; /* offset and bytes of objects of this block */
    uint32_t block;
    bool synchronised; /* the block has used an atomic: it may know what others did */
    uint32_t ordered_for;
    uint32_t ordered[64]; /* numbers of operations known to come before that one */
};

__thread shared_shadow shared;

void *reserve_shadow(size_t bytes)
{
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        simulator_fail("no address space to check accesses: %s", strerror(errno));
    }
    return memory;
}

/* " at file:line" of an instruction of this program, where the tool that knows is installed. */
std::string code_place(const void *instruction)
{
    struct found {
        uintptr_t address, base;
    } of = {reinterpret_cast<uintptr_t>(instruction), 0};
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *data) {
            static_cast<found *>(data)->base = info->dlpi_addr;
            return 1; /* the program itself comes first */
        },
        &of);
    char command[128];
    snprintf(command, sizeof(command), "addr2line -e /proc/%d/exe 0x%zx 2>/dev/null", getpid(),
             static_cast<size_t>(of.address - of.base - 1));
    std::string text;
    FILE *pipe = popen(command, "r");
    if (pipe != nullptr) {
        char line[512];
        if (fgets(line, sizeof(line), pipe) != nullptr && line[0] != '?') {
            text = std::string(" at ") + line;
            text.erase(text.find_last_not_of("\n") + 1);
        }
        pclose(pipe);
    }
    return text;
}

struct access {
    char *at;
    unsigned int bytes;
    bool write;
    const void *code;

    const char *verb() const
    {
        return write ? "writes" : "reads";
    }
};

std::string describe_device(const void *at)
{
    const allocation *which = find_allocation(at);
    char text[64];
    snprintf(text, sizeof(text), "%p, no allocation of device memory", at);
    return which != nullptr ? describe_allocation(*which, at) : text;
}

[[noreturn]] void fail_state(const access &what, unsigned int offset, unsigned char state)
{
    const std::string where = describe_device(what.at + offset);
    if (state == absent) {
        simulator_fail("%s %u bytes out of bounds%s: %s", what.verb(), what.bytes,
                       code_place(what.code).c_str(), where.c_str());
    }
    simulator_fail("reads memory that was never written%s: %s", code_place(what.code).c_str(),
                   where.c_str());
}

/* Whether operation `number` is known to come before the one that runs. */
bool comes_before(uint32_t number)
{
    device_shadow &in = device();
    shared_shadow &own = shared;
    if (own.ordered_for != in.running) {
        own.ordered_for = in.running;
        memset(own.ordered, 0, sizeof(own.ordered));
    }
    uint32_t &kept = own.ordered[number % 64];
    if (kept == number) {
        return true;
    }
    const std::lock_guard<std::mutex> held(in.lock);
    const numbered &one = in.operations[number - 1];
    const size_t lane = static_cast<size_t>(one.lane);
    if (lane < in.known.size() && one.turn <= in.known[lane]) {
        kept = number;
        return true;
    }
    return false;
}

[[noreturn]] void fail_streams(const access &what, uint32_t other, bool wrote)
{
    std::string title;
    {
        const std::lock_guard<std::mutex> held(device().lock);
        title = device().operations[other - 1].title;
    }
    simulator_fail("missing dependency between streams: %s %s what this %s%s, and nothing orders "
                   "them: %s",
                   title.c_str(), wrote ? "writes" : "reads", what.verb(),
                   code_place(what.code).c_str(), describe_device(what.at).c_str());
}

[[noreturn]] void fail_blocks(const access &what, uint32_t who, bool wrote)
{
    simulator_fail("race between blocks: %s%s what thread %u of block %u %s in the same launch: %s",
                   what.verb(), code_place(what.code).c_str(), who % 1024, who / 1024,
                   wrote ? "wrote" : "read", describe_device(what.at).c_str());
}

/* One access of a kernel against the records of the two bytes. Blocks of one launch may not touch
 * what another one writes, unless they have used an atomic before, which may tell them that it is
 * theirs now. */
void check_record(const access &what, device_record *record, uint32_t who)
{
    const uint32_t running = device().running;
    const uint32_t writer = __atomic_load_n(&record->writer, __ATOMIC_RELAXED);
    const uint32_t write_who = __atomic_load_n(&record->write_who, __ATOMIC_RELAXED);
    if (writer != 0 && writer != running && !comes_before(writer)) {
        fail_streams(what, writer, true);
    }
    if (writer == running && write_who / 1024 != who / 1024 && !shared.synchronised) {
        fail_blocks(what, write_who, true);
    }
    if (!what.write) {
        __atomic_store_n(&record->reader, running, __ATOMIC_RELAXED);
        __atomic_store_n(&record->read_who, who, __ATOMIC_RELAXED);
        return;
    }
    const uint32_t reader = __atomic_load_n(&record->reader, __ATOMIC_RELAXED);
    const uint32_t read_who = __atomic_load_n(&record->read_who, __ATOMIC_RELAXED);
    if (reader != 0 && reader != running && !comes_before(reader)) {
        fail_streams(what, reader, false);
    }
    if (reader == running && read_who / 1024 != who / 1024 && !shared.synchronised) {
        fail_blocks(what, read_who, false);
    }
    __atomic_store_n(&record->writer, running, __ATOMIC_RELAXED);
    __atomic_store_n(&record->write_who, who, __ATOMIC_RELAXED);
}

void check_device_access(const access &what, size_t offset, bool atomic)
{
    device_shadow &in = device();
    unsigned char *state = in.state + offset;
    for (unsigned int i = 0; i < what.bytes; i++) {
        if (state[i] != defined && (state[i] == absent || !what.write || atomic)) {
            fail_state(what, i, state[i]);
        }
        if (what.write) {
            state[i] = defined;
        }
    }
    if (atomic) {
        return;
    }
    const uint32_t who = shared.block * 1024 + check_thread;
    for (size_t pair = offset / 2; pair <= (offset + what.bytes - 1) / 2; pair++) {
        check_record(what, &in.records[pair], who);
    }
}

[[noreturn]] void fail_shared(const access &what, size_t offset, int other, bool wrote)
{
    simulator_fail("race in shared memory: %s byte %zu%s, which thread %s %s with no barrier in "
                   "between",
                   what.verb(), offset, code_place(what.code).c_str(), thread_text(other).c_str(),
                   wrote ? "wrote" : "read");
}

/* Whether an access by `other`, when its warp had met `meetings` times, is unordered with one by
 * this thread now, both since the last barrier. */
bool unordered(int other, uint32_t meetings)
{
    const int self = check_thread;
    return other != self && (other / 32 != self / 32 || meetings == shared.warp_epochs[self / 32]);
}

void check_shared_record(const access &what, size_t offset)
{
    shared_record &record = shared.records[offset];
    const uint32_t epoch = shared.epoch;
    const uint16_t self = static_cast<uint16_t>(check_thread);
    if (record.write_epoch == epoch && unordered(record.writer, record.write_warp)) {
        fail_shared(what, offset, record.writer, true);
    }
    if (!what.write) {
        const bool others = record.read_epoch == epoch && record.reader != self;
        record.several_warps =
            record.read_epoch == epoch && (record.several_warps || record.reader / 32 != self / 32);
        record.several = others && record.reader / 32 == self / 32 &&
                         record.read_warp == shared.warp_epochs[self / 32];
        record.read_epoch = epoch;
        record.reader = self;
        record.read_warp = shared.warp_epochs[self / 32];
        return;
    }
    if (record.read_epoch == epoch &&
        (unordered(record.reader, record.read_warp) || record.several_warps ||
         (record.several && record.read_warp == shared.warp_epochs[self / 32]))) {
        fail_shared(what, offset, record.reader, false);
    }
    record.write_epoch = epoch;
    record.writer = self;
    record.write_warp = shared.warp_epochs[self / 32];
}

void check_shared_access(const access &what, size_t offset, bool atomic)
{
    for (unsigned int i = 0; i < what.bytes; i++) {
        unsigned char &state = shared.state[offset + i];
        if (state == absent) {
            simulator_fail("%s %u bytes of shared memory out of bounds%s", what.verb(), what.bytes,
                           code_place(what.code).c_str());
        }
        if (state == undefined && (!what.write || atomic)) {
            simulator_fail("reads shared memory that was never written%s",
                           code_place(what.code).c_str());
        }
        if (what.write) {
            state = defined;
        }
        if (!atomic) {
            check_shared_record(what, offset + i);
        }
    }
}

/* Constants of the program may be read; nothing else that is the host's may be touched. */
bool is_constant(const void *memory)
{
    struct search {
        uintptr_t address;
        bool found;
    } of = {reinterpret_cast<uintptr_t>(memory), false};
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *data) {
            search *wanted = static_cast<search *>(data);
            for (int i = 0; i < info->dlpi_phnum; i++) {
                const auto &header = info->dlpi_phdr[i];
                const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
                if (header.p_type == PT_LOAD && (header.p_flags & PF_W) == 0 &&
                    wanted->address - begin < header.p_memsz) {
                    wanted->found = true;
                }
            }
            return 0;
        },
        &of);
    return of.found;
}

void check_other_access(const access &what)
{
    if (in_fiber_stack(what.at) || find_pinned_range(what.at, what.bytes) != nullptr ||
        (!what.write && (holds_arguments(what.at) || is_constant(what.at)))) {
        return;
    }
    simulator_fail("%s host memory at %p%s", what.verb(), static_cast<void *>(what.at),
                   code_place(what.code).c_str());
}

inline void check_access(void *memory, unsigned int bytes, bool write, bool atomic,
                         const void *code)
{
    if (check_thread < 0 || bytes == 0) {
        return;
    }
    const access what = {static_cast<char *>(memory), bytes, write, code};
    const uintptr_t at = reinterpret_cast<uintptr_t>(memory);
    const size_t in_device = at - reinterpret_cast<uintptr_t>(device().region);
    const size_t in_shared = at - reinterpret_cast<uintptr_t>(shared.begin);
    if (in_device < device().bytes) {
        check_device_access(what, in_device, atomic);
    } else if (in_shared < shared.bytes) {
        check_shared_access(what, in_shared, atomic);
    } else if (at - (reinterpret_cast<uintptr_t>(&threadIdx) - 4096) > 8192 &&
               at - reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) > 16384) {
        check_other_access(what);
    }
    if (atomic && in_device < device().bytes) {
        shared.synchronised = true;
    }
}

/* Of device and shared memory; how the compiler copies what the CPU holds is its own affair. */
void check_aligned(void *memory, unsigned int bytes, bool write, const void *code)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(memory);
    if (check_thread >= 0 && at % bytes != 0 &&
        (at - reinterpret_cast<uintptr_t>(device().region) < device().bytes ||
         at - reinterpret_cast<uintptr_t>(shared.begin) < shared.bytes)) {
        simulator_fail("%s %u bytes at %p, which is not a multiple of that%s",
                       write ? "writes" : "reads", bytes, memory, code_place(code).c_str());
    }
}

void set_state(const void *begin, size_t bytes, byte_state to)
{
    memset(device().state + (static_cast<const char *>(begin) - device().region), to, bytes);
}

/* An operand of a library call or copy, row by row, as one access. */
void check_operand(const simulator_range &range)
{
    if (!in_device_region(range.memory)) {
        return;
    }
    device_shadow &in = device();
    char *row = static_cast<char *>(const_cast<void *>(range.memory));
    for (size_t i = 0; i < range.height; i++, row += range.pitch) {
        const size_t offset = static_cast<size_t>(row - in.region);
        const access what = {row, static_cast<unsigned int>(range.width), range.write, nullptr};
        for (size_t byte = 0; !range.write && byte < range.width; byte++) {
            if (in.state[offset + byte] != defined) {
                simulator_fail("reads memory that was never written: %s",
                               describe_device(row + byte).c_str());
            }
        }
        for (size_t pair = offset / 2; pair <= (offset + range.width - 1) / 2; pair++) {
            check_record(what, &in.records[pair], 0);
        }
        if (range.write) {
            memset(in.state + offset, defined, range.width);
        }
    }
}

} // namespace

void check_device_region(char *begin, size_t bytes)
{
    device_shadow &in = device();
    in.region = begin;
    in.bytes = bytes;
    in.state = static_cast<unsigned char *>(reserve_shadow(bytes));
    in.records = static_cast<device_record *>(reserve_shadow(bytes / 2 * sizeof(device_record)));
}

void check_allocated(const allocation &which)
{
    if (which.device >= 0) {
        set_state(which.begin, which.bytes, undefined);
    }
}

void check_freed(const allocation &which)
{
    if (which.device >= 0) {
        set_state(which.begin, which.bytes, absent);
        const size_t offset = static_cast<size_t>(which.pages - device().region);
        madvise(device().state + offset, which.page_bytes, MADV_DONTNEED);
        madvise(&device().records[offset / 2], which.page_bytes / 2 * sizeof(device_record),
                MADV_DONTNEED);
    }
}

void check_work_begins(const operation &who)
{
    device_shadow &in = device();
    {
        const std::lock_guard<std::mutex> held(in.lock);
        const std::string where = place(who.what->where);
        in.operations.push_back(
            {who.lane, who.turn,
             where.empty() ? who.what->name
                           : "kernel " + std::string(who.what->name) + " (" + where + ")"});
        in.running = static_cast<uint32_t>(in.operations.size());
        in.known = who.known;
    }
    if (who.what->kind != SIMULATOR_KERNEL) {
        check_work_ranges(who.what->ranges);
    }
}

void check_work_ends(const work &)
{
}

void check_work_ranges(const std::vector<simulator_range> &ranges)
{
    for (const simulator_range &range : ranges) {
        if (!range.write) {
            check_operand(range);
        }
    }
    for (const simulator_range &range : ranges) {
        if (range.write) {
            check_operand(range);
        }
    }
}

void check_shared_region(char *begin, size_t bytes)
{
    shared.begin = begin;
    shared.bytes = bytes;
    shared.state = static_cast<unsigned char *>(reserve_shadow(bytes));
    shared.records = static_cast<shared_record *>(reserve_shadow(bytes * sizeof(shared_record)));
    shared.used = new std::vector<std::pair<size_t, size_t>>;
}

void check_shared_begins(char *object, size_t bytes)
{
    const size_t offset = static_cast<size_t>(object - shared.begin);
    memset(shared.state + offset, undefined, bytes);
    shared.used->push_back({offset, bytes});
}

void check_block_begins(char *dynamic, size_t dynamic_bytes)
{
    shared.epoch++;
    shared.synchronised = false;
    shared.block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    check_shared_begins(dynamic, dynamic_bytes);
}

void check_block_meets()
{
    shared.epoch++;
}

void check_warp_meets(int warp)
{
    shared.warp_epochs[warp]++;
}

void check_block_ends()
{
    for (const auto &[offset, bytes] : *shared.used) {
        memset(shared.state + offset, absent, bytes);
    }
    shared.used->clear();
}

} // namespace simulator

using simulator::check_access;
using simulator::check_aligned;

#define CODE __builtin_return_address(0)

#define ACCESSES(bytes)                                                                            \
    void __tsan_read##bytes(void *at)                                                              \
    {                                                                                              \
        check_aligned(at, bytes, false, CODE);                                                     \
        check_access(at, bytes, false, false, CODE);                                               \
    }                                                                                              \
    void __tsan_write##bytes(void *at)                                                             \
    {                                                                                              \
        check_aligned(at, bytes, true, CODE);                                                      \
        check_access(at, bytes, true, false, CODE);                                                \
    }                                                                                              \
    void __tsan_unaligned_read##bytes(void *at)                                                    \
    {                                                                                              \
        check_access(at, bytes, false, false, CODE);                                               \
    }                                                                                              \
    void __tsan_unaligned_write##bytes(void *at)                                                   \
    {                                                                                              \
        check_access(at, bytes, true, false, CODE);                                                \
    }

#define ATOMIC_UPDATE(bits, type, name, builtin)                                                   \
    type __tsan_atomic##bits##_##name(volatile type *at, type value, int)                          \
    {                                                                                              \
        check_access(const_cast<type *>(at), bits / 8, true, true, CODE);                          \
        return builtin(at, value, __ATOMIC_SEQ_CST);                                               \
    }

#define ATOMICS(bits, type)                                                                        \
    type __tsan_atomic##bits##_load(const volatile type *at, int)                                  \
    {                                                                                              \
        check_access(const_cast<type *>(at), bits / 8, false, true, CODE);                         \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                              \
    }                                                                                              \
    void __tsan_atomic##bits##_store(volatile type *at, type value, int)                           \
    {                                                                                              \
        check_access(const_cast<type *>(at), bits / 8, true, true, CODE);                          \
        __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                             \
    }                                                                                              \
    ATOMIC_UPDATE(bits, type, exchange, __atomic_exchange_n)                                       \
    ATOMIC_UPDATE(bits, type, fetch_add, __atomic_fetch_add)                                       \
    ATOMIC_UPDATE(bits, type, fetch_sub, __atomic_fetch_sub)                                       \
    ATOMIC_UPDATE(bits, type, fetch_and, __atomic_fetch_and)                                       \
    ATOMIC_UPDATE(bits, type, fetch_or, __atomic_fetch_or)                                         \
    ATOMIC_UPDATE(bits, type, fetch_xor, __atomic_fetch_xor)                                       \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile type *at, type *expected,           \
                                                      type value, int, int)                        \
    {                                                                                              \
        check_access(const_cast<type *>(at), bits / 8, true, true, CODE);                          \
        return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST,           \
                                           __ATOMIC_SEQ_CST);                                      \
    }                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile type *at, type *expected, type value, \
                                                    int, int)                                      \
    {                                                                                              \
        check_access(const_cast<type *>(at), bits / 8, true, true, CODE);                          \
        return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST,           \
                                           __ATOMIC_SEQ_CST);                                      \
    }

/* What the compiler calls; the names are ThreadSanitizer's. */
extern "C" {

void __tsan_init(void);
void __tsan_init(void)
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void)
{
}
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_vptr_read(void **)
{
}
void __tsan_read_range(void *at, unsigned long bytes)
{
    check_access(at, static_cast<unsigned int>(bytes), false, false, CODE);
}
void __tsan_write_range(void *at, unsigned long bytes)
{
    check_access(at, static_cast<unsigned int>(bytes), true, false, CODE);
}
void __tsan_atomic_thread_fence(int)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int)
{
}

ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
ATOMICS(8, char)
ATOMICS(16, short)
ATOMICS(32, int)
ATOMICS(64, long)

} /* extern "C" */

#endif

int simulator_checks_accesses(void)
{
    return simulator::checks_accesses() ? 1 : 0;
}

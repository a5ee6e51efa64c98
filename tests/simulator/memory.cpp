/* Device memory and pinned host memory: where they lie, who may touch them, what is around them. */
#include "runtime.hpp"

#include <cerrno>
#include <cinttypes>
#include <cstdlib>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#if SIMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace simulator
{

namespace
{

/* Addresses are never used twice, so that memory that was freed stays out of reach. */
constexpr size_t region_bytes = static_cast<size_t>(4) << 40;
constexpr size_t alignment = 256;
constexpr int pinned = -1;
constexpr int registered = -2;

struct memory_state {
    std::mutex lock;
    char *device_region = nullptr, *device_next = nullptr;
    char *host_region = nullptr, *host_next = nullptr;
    int key = -1; /* protection key of device memory; -1: protected for all threads together */
    int open = 0; /* without a key: how many have it open */
    int numbers = 0;
    std::map<uintptr_t, allocation *> all; /* by first byte of their pages */
    std::vector<size_t> used;              /* bytes of each device */
    int64_t used_all = 0, peak = 0;
    struct sigaction before = {};
    struct sigaction before_bus = {};
};

thread_local int open_depth = 0;

size_t page_size()
{
    static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

char *reserve()
{
    void *memory =
        mmap(nullptr, region_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        simulator_fail("no address space for simulated memory: %s", strerror(errno));
    }
    return static_cast<char *>(memory);
}

void fault(int signal, siginfo_t *info, void *context);

/* Takes faults over from whoever has them, and remembers who. */
void take_signal(int signal, struct sigaction *before)
{
    struct sigaction now = {};
    if (sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
        now.sa_sigaction == fault) {
        return;
    }
    *before = now;
    struct sigaction action = {};
    action.sa_sigaction = fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
}

memory_state *make_state()
{
    auto *made = new memory_state;
    made->device_region = made->device_next = reserve();
    made->host_region = made->host_next = reserve();
    made->used.resize(static_cast<size_t>(devices().count) + 1);
    const char *protection = getenv("TTRAIN_SIMULATOR_PROTECTION");
    if (protection == nullptr || strcmp(protection, "mprotect") != 0) {
        made->key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    }
    if (made->key >= 0 &&
        pkey_mprotect(made->device_region, region_bytes, PROT_NONE, made->key) != 0) {
        simulator_fail("pkey_mprotect: %s", strerror(errno));
    }
    check_device_region(made->device_region, region_bytes);
    take_signal(SIGSEGV, &made->before);
    take_signal(SIGBUS, &made->before_bus);
    report_leaks_at_exit();
    return made;
}

memory_state &memory()
{
    static memory_state *const kept = make_state();
    return *kept;
}

int protect(const allocation &which, int protection)
{
    const int key = memory().key;
    if (which.device >= 0 && key >= 0) {
        return pkey_mprotect(which.pages, which.page_bytes, protection, key);
    }
    return mprotect(which.pages, which.page_bytes, protection);
}

/* With the lock held: all live device memory becomes readable and writable, or nothing. */
void protect_all(int protection)
{
    for (const auto &[begin, which] : memory().all) {
        if (which->device >= 0 && which->live) {
            protect(*which, protection);
        }
    }
}

void fill_slack(const allocation &which)
{
    const size_t front = static_cast<size_t>(which.begin - which.pages);
    const size_t back = which.page_bytes - front - which.bytes;
    memset(which.pages, canary_byte, front);
    memset(which.begin + which.bytes, canary_byte, back);
#if SIMULATOR_ASAN
    ASAN_POISON_MEMORY_REGION(which.pages, front);
    ASAN_POISON_MEMORY_REGION(which.begin + which.bytes, back);
#endif
}

/* With the lock held. NULL where the system has no more memory. */
allocation *carve(size_t bytes, int device)
{
    memory_state &in = memory();
    char *&next = device >= 0 ? in.device_next : in.host_next;
    const char *region = device >= 0 ? in.device_region : in.host_region;
    const size_t page = page_size();
    const size_t wanted = (bytes + alignment - 1) / alignment * alignment;
    const size_t page_bytes = (wanted + page - 1) / page * page;
    if (page_bytes + 2 * page > static_cast<size_t>(region + region_bytes - next)) {
        return nullptr;
    }
    auto *made = new allocation{};
    made->pages = next + page;
    made->page_bytes = page_bytes;
    made->begin = made->pages + page_bytes - wanted;
    made->bytes = bytes;
    made->device = device;
    made->live = true;
    if (protect(*made, PROT_READ | PROT_WRITE) != 0) {
        delete made;
        return nullptr;
    }
    next += page_bytes + page;
    made->number = ++in.numbers;
    in.all[reinterpret_cast<uintptr_t>(made->pages)] = made;
    return made;
}

allocation *allocate(size_t bytes, int device)
{
    memory_state &in = memory();
    open_device_memory();
    allocation *made = nullptr;
    {
        const std::lock_guard<std::mutex> held(in.lock);
        size_t *used = device >= 0 ? &in.used[static_cast<size_t>(device)] : nullptr;
        if (used == nullptr || (bytes <= devices().memory && *used <= devices().memory - bytes)) {
            made = carve(bytes, device);
        }
        if (made != nullptr && used != nullptr) {
            *used += bytes;
            in.used_all += static_cast<int64_t>(bytes);
            in.peak = std::max(in.peak, in.used_all);
        }
    }
    if (made != nullptr) {
        poison(made->begin, bytes);
        fill_slack(*made);
        check_allocated(*made);
    }
    close_device_memory();
    return made;
}

void release(allocation *which)
{
    memory_state &in = memory();
    open_device_memory();
    check_canaries(*which);
    check_freed(*which);
    close_device_memory();
    const std::lock_guard<std::mutex> held(in.lock);
    which->live = false;
    if (which->device >= 0) {
        in.used[static_cast<size_t>(which->device)] -= which->bytes;
        in.used_all -= static_cast<int64_t>(which->bytes);
    }
#if SIMULATOR_ASAN
    ASAN_POISON_MEMORY_REGION(which->pages, which->page_bytes);
#endif
    protect(*which, PROT_NONE);
    madvise(which->pages, which->page_bytes, MADV_DONTNEED);
}

/* With the lock held, or in a fault. The allocation whose pages lie at or below an address. */
allocation *at_or_below(const void *address)
{
    memory_state &in = memory();
    auto found = in.all.upper_bound(reinterpret_cast<uintptr_t>(address));
    if (found == in.all.begin()) {
        return nullptr;
    }
    return (--found)->second;
}

allocation *find(const void *address)
{
    allocation *which = at_or_below(address);
    const char *at = static_cast<const char *>(address);
    /* The guard page behind it belongs to it too. */
    return which != nullptr && at < which->pages + which->page_bytes + page_size() ? which
                                                                                   : nullptr;
}

allocation *begins_at(const void *address, int device_or_pinned)
{
    const std::lock_guard<std::mutex> held(memory().lock);
    allocation *which = find(address);
    if (which == nullptr || !which->live || which->begin != address) {
        return nullptr;
    }
    const bool same =
        device_or_pinned >= 0 ? which->device >= 0 : which->device == device_or_pinned;
    return same ? which : nullptr;
}

} // namespace

std::string describe_allocation(const allocation &which, const void *address)
{
    const char *at = static_cast<const char *>(address);
    char text[256];
    char where[64];
    if (at < which.begin) {
        snprintf(where, sizeof(where), "%td bytes before", which.begin - at);
    } else if (at < which.end()) {
        snprintf(where, sizeof(where), "byte %td of", at - which.begin);
    } else {
        snprintf(where, sizeof(where), "%td bytes past the end of", at - which.end());
    }
    char kind[64];
    if (which.device >= 0) {
        snprintf(kind, sizeof(kind), "memory of device %d", which.device);
    } else {
        snprintf(kind, sizeof(kind), "pinned host memory");
    }
    snprintf(text, sizeof(text), "%p, %s allocation %d (%zu bytes of %s%s)", address, where,
             which.number, which.bytes, kind, which.live ? "" : ", freed");
    return text;
}

namespace
{

/* What an address of a fault is, as well as it can be told. */
std::string describe_address(const void *address)
{
    const std::unique_lock<std::mutex> held(memory().lock, std::try_to_lock);
    const allocation *which = held.owns_lock() ? find(address) : nullptr;
    if (which != nullptr) {
        return describe_allocation(*which, address);
    }
    const allocation *behind = held.owns_lock() && in_device_region(address)
                                   ? find(static_cast<const char *>(address) + page_size())
                                   : nullptr;
    if (behind != nullptr) {
        return describe_allocation(*behind, address);
    }
    char text[64];
    snprintf(text, sizeof(text), "%p, %s", address,
             in_device_region(address) ? "no allocation of device memory" : "no such memory");
    return text;
}

void fault(int signal, siginfo_t *info, void *context)
{
    (void)context;
    const void *address = info->si_addr;
    if (in_fiber_guard(address)) {
        simulator_fail("the thread's stack of %zu KB is full", fiber_stack_bytes >> 10);
    }
    if (running_name != nullptr) {
        simulator_fail("illegal access to %s", describe_address(address).c_str());
    }
    if (in_device_region(address)) {
        simulator_fail("host code touched device memory at %s", describe_address(address).c_str());
    }
    /* Not ours: what was there before decides. */
    sigaction(signal, signal == SIGBUS ? &memory().before_bus : &memory().before, nullptr);
}

} // namespace

void handle_faults()
{
    take_signal(SIGSEGV, &memory().before);
    take_signal(SIGBUS, &memory().before_bus);
}

void open_device_memory()
{
    memory_state &in = memory();
    if (open_depth++ > 0) {
        return;
    }
    if (in.key >= 0) {
        pkey_set(in.key, 0);
        return;
    }
    const std::lock_guard<std::mutex> held(in.lock);
    if (in.open++ == 0) {
        protect_all(PROT_READ | PROT_WRITE);
    }
}

void close_device_memory()
{
    memory_state &in = memory();
    if (--open_depth > 0) {
        return;
    }
    if (in.key >= 0) {
        pkey_set(in.key, PKEY_DISABLE_ACCESS);
        return;
    }
    const std::lock_guard<std::mutex> held(in.lock);
    if (--in.open == 0) {
        protect_all(PROT_NONE);
    }
}

void open_device_memory_to_openmp()
{
    open_device_memory();
    if (memory().key >= 0) {
#pragma omp parallel
        open_device_memory();
    }
}

void close_device_memory_to_openmp()
{
    if (memory().key >= 0) {
#pragma omp parallel
        close_device_memory();
    }
    close_device_memory();
}

bool in_device_region(const void *address)
{
    const char *at = static_cast<const char *>(address);
    const char *region = memory().device_region;
    return at >= region && at < region + region_bytes;
}

const allocation *find_allocation(const void *address)
{
    const std::lock_guard<std::mutex> held(memory().lock);
    return find(address);
}

const allocation *find_device_range(const void *address, size_t bytes)
{
    const allocation *which = in_device_region(address) ? find_allocation(address) : nullptr;
    return which != nullptr && which->live && which->holds(address, bytes) ? which : nullptr;
}

const allocation *find_pinned_range(const void *address, size_t bytes)
{
    const allocation *which = find_allocation(address);
    return which != nullptr && which->live && which->device < 0 && which->holds(address, bytes)
               ? which
               : nullptr;
}

void poison(void *at, size_t bytes)
{
    char *to = static_cast<char *>(at);
    const uint64_t four = 0x7fa57fa57fa57fa5ULL;
    size_t done = 0;
    for (; done + sizeof(four) <= bytes; done += sizeof(four)) {
        memcpy(to + done, &four, sizeof(four));
    }
    memcpy(to + done, &four, bytes - done);
}

void check_canaries(const allocation &which)
{
#if !SIMULATOR_ASAN
    if (which.device == registered) {
        return;
    }
    const char *end = which.pages + which.page_bytes;
    for (const char *at = which.pages; at < end; at++) {
        if (at == which.begin) {
            at += which.bytes;
            if (at == end) {
                break;
            }
        }
        if (static_cast<unsigned char>(*at) != canary_byte) {
            simulator_fail("out-of-bounds write at %s", describe_allocation(which, at).c_str());
        }
    }
#else
    (void)which;
#endif
}

void check_all_canaries()
{
#if !SIMULATOR_ASAN
    std::vector<const allocation *> live;
    {
        const std::lock_guard<std::mutex> held(memory().lock);
        for (const auto &[begin, which] : memory().all) {
            if (which->live) {
                live.push_back(which);
            }
        }
    }
    open_device_memory();
    for (const allocation *which : live) {
        check_canaries(*which);
    }
    close_device_memory();
#endif
}

int live_allocations(bool print)
{
    int count = 0;
    const std::lock_guard<std::mutex> held(memory().lock);
    for (const auto &[begin, which] : memory().all) {
        if (which->live) {
            count++;
            if (print) {
                warn("leak: allocation %d of %zu bytes of %s was never freed", which->number,
                     which->bytes, which->device >= 0 ? "device memory" : "pinned host memory");
            }
        }
    }
    return count;
}

} // namespace simulator

using namespace simulator;

#if SIMULATOR_ASAN
/* Called when AddressSanitizer has found something: says which kernel does it. */
extern "C" void __asan_on_error(void);
void __asan_on_error(void)
{
    if (running_name != nullptr) {
        warn("%s: bad access, found by AddressSanitizer", running_place().c_str());
    }
}
#endif

simulator_device_access::simulator_device_access()
{
    open_device_memory();
}

simulator_device_access::~simulator_device_access()
{
    close_device_memory();
}

bool simulator_is_device_memory(const void *address, size_t bytes)
{
    return find_device_range(address, bytes) != nullptr;
}

extern "C" {

int64_t simulator_device_bytes(void)
{
    const std::lock_guard<std::mutex> held(memory().lock);
    return memory().used_all;
}

int64_t simulator_device_bytes_peak(void)
{
    const std::lock_guard<std::mutex> held(memory().lock);
    return memory().peak;
}

cudaError_t cudaMalloc(void **to, size_t bytes)
{
    cudaError_t status = usable(current_device());
    if (status == cudaSuccess) {
        status = forbidden("cudaMalloc");
    }
    if (status != cudaSuccess) {
        return status;
    }
    *to = nullptr;
    if (bytes == 0) {
        return cudaSuccess;
    }
    const allocation *made = allocate(bytes, current_device());
    if (made == nullptr) {
        return result(cudaErrorMemoryAllocation);
    }
    *to = made->begin;
    return cudaSuccess;
}

cudaError_t cudaFree(void *address)
{
    cudaError_t status = usable(current_device());
    if (status == cudaSuccess) {
        status = forbidden("cudaFree");
    }
    if (status != cudaSuccess || address == nullptr) {
        return status;
    }
    allocation *which = begins_at(address, 0);
    if (which == nullptr) {
        return refuse(cudaErrorInvalidValue, "cudaFree: %p was not allocated, or freed before",
                      address);
    }
    drain_all();
    release(which);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **to, size_t bytes, unsigned int flags)
{
    (void)flags;
    cudaError_t status = usable(current_device());
    if (status == cudaSuccess) {
        status = forbidden("cudaHostAlloc");
    }
    if (status != cudaSuccess) {
        return status;
    }
    *to = nullptr;
    if (bytes == 0) {
        return cudaSuccess;
    }
    const allocation *made = allocate(bytes, pinned);
    if (made == nullptr) {
        return result(cudaErrorMemoryAllocation);
    }
    *to = made->begin;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **to, size_t bytes)
{
    return cudaHostAlloc(to, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *address)
{
    cudaError_t status = usable(current_device());
    if (status == cudaSuccess) {
        status = forbidden("cudaFreeHost");
    }
    if (status != cudaSuccess || address == nullptr) {
        return status;
    }
    allocation *which = begins_at(address, pinned);
    if (which == nullptr) {
        return refuse(cudaErrorInvalidValue, "cudaFreeHost: %p was not allocated, or freed before",
                      address);
    }
    drain_all();
    release(which);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned int flags)
{
    (void)flags;
    const cudaError_t status = usable(current_device());
    if (status != cudaSuccess) {
        return status;
    }
    const std::lock_guard<std::mutex> held(memory().lock);
    if (find(address) != nullptr) {
        return result(cudaErrorHostMemoryAlreadyRegistered);
    }
    auto *made = new allocation{};
    made->begin = made->pages = static_cast<char *>(address);
    made->bytes = made->page_bytes = bytes;
    made->device = registered;
    made->number = ++memory().numbers;
    made->live = true;
    memory().all[reinterpret_cast<uintptr_t>(address)] = made;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *address)
{
    allocation *which = begins_at(address, registered);
    if (which == nullptr) {
        return result(cudaErrorHostMemoryNotRegistered);
    }
    drain_all();
    const std::lock_guard<std::mutex> held(memory().lock);
    which->live = false;
    memory().all.erase(reinterpret_cast<uintptr_t>(address));
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *address)
{
    const cudaError_t status = usable(current_device());
    if (status != cudaSuccess) {
        return status;
    }
    *attributes = cudaPointerAttributes();
    const allocation *which = find_allocation(address);
    void *same = const_cast<void *>(address);
    if (which == nullptr || !which->live || !which->holds(address, 1)) {
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->hostPointer = same;
    } else if (which->device >= 0) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->device = which->device;
        attributes->devicePointer = same;
    } else {
        attributes->type = cudaMemoryTypeHost;
        attributes->devicePointer = attributes->hostPointer = same;
    }
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    const cudaError_t status = usable(current_device());
    if (status == cudaSuccess) {
        const std::lock_guard<std::mutex> held(memory().lock);
        *total_bytes = devices().memory;
        *free_bytes = devices().memory - memory().used[static_cast<size_t>(current_device())];
    }
    return status;
}

} /* extern "C" */

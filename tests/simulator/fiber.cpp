/* Switching between stacks: a few instructions on x86-64 and AArch64, ucontext elsewhere. */
#include "runtime.hpp"

#include <cstdlib>
#include <sys/mman.h>

#if SIMULATOR_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__) || defined(__aarch64__)
#define SIMULATOR_OWN_SWITCH 1
#else
#define SIMULATOR_OWN_SWITCH 0
#include <ucontext.h>
#endif

#if SIMULATOR_OWN_SWITCH
/* Saves the registers that a call must preserve on the running stack, keeps its address in *from,
 * and goes on with the stack `to`, saved the same way. */
extern "C" void simulator_switch_stack(void **from, void *to);
#endif

#if defined(__x86_64__)
static constexpr int saved_words = 6;
static constexpr int return_word = 6;
asm(R"(
    .text
    .p2align 4
    .globl simulator_switch_stack
    .hidden simulator_switch_stack
    .type simulator_switch_stack, @function
simulator_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size simulator_switch_stack, . - simulator_switch_stack
)");
#elif defined(__aarch64__)
static constexpr int saved_words = 20;
static constexpr int return_word = 11;
asm(R"(
    .text
    .p2align 4
    .globl simulator_switch_stack
    .hidden simulator_switch_stack
    .type simulator_switch_stack, %function
simulator_switch_stack:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x2, sp
    str x2, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size simulator_switch_stack, . - simulator_switch_stack
)");
#endif

namespace simulator
{

namespace
{

constexpr size_t guard_bytes = 64 << 10;

/* Stacks of this process, for telling an overflow from other faults. */
std::mutex stacks_lock;
std::vector<char *> &stacks()
{
    static auto *kept = new std::vector<char *>;
    return *kept;
}

} // namespace

void fiber_create(fiber *created, void (*entry)(), unsigned int color)
{
    void *memory = mmap(nullptr, guard_bytes + fiber_stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, guard_bytes, PROT_NONE) != 0) {
        simulator_fail("no memory for the stack of a thread");
    }
    created->stack = static_cast<char *>(memory) + guard_bytes;
    created->stack_bytes = fiber_stack_bytes;
    created->sanitizer_stack = nullptr;
    {
        const std::lock_guard<std::mutex> held(stacks_lock);
        stacks().push_back(static_cast<char *>(memory));
    }
    char *top = created->stack + fiber_stack_bytes - static_cast<size_t>(color % 61) * 192;
    top -= reinterpret_cast<uintptr_t>(top) % 64;
#if SIMULATOR_OWN_SWITCH
    void **frame = reinterpret_cast<void **>(top) - 4 - saved_words;
    /* The word that the switch returns to lies 16-byte aligned on x86-64. */
    frame -= (reinterpret_cast<uintptr_t>(frame + return_word) % 16) / sizeof(void *);
    for (int word = 0; word < saved_words + 4; word++) {
        frame[word] = nullptr;
    }
    frame[return_word] = reinterpret_cast<void *>(entry);
    created->stack_pointer = frame;
#else
    ucontext_t *context = new ucontext_t;
    getcontext(context);
    context->uc_stack.ss_sp = created->stack;
    context->uc_stack.ss_size = static_cast<size_t>(top - created->stack);
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    created->stack_pointer = context;
#endif
}

void fiber_switch(fiber *from, fiber *to)
{
#if SIMULATOR_ASAN
    __sanitizer_start_switch_fiber(&from->sanitizer_stack, to->stack, to->stack_bytes);
#endif
#if SIMULATOR_OWN_SWITCH
    simulator_switch_stack(&from->stack_pointer, to->stack_pointer);
#else
    if (from->stack_pointer == nullptr) {
        from->stack_pointer = new ucontext_t;
    }
    swapcontext(static_cast<ucontext_t *>(from->stack_pointer),
                static_cast<ucontext_t *>(to->stack_pointer));
#endif
#if SIMULATOR_ASAN
    __sanitizer_finish_switch_fiber(from->sanitizer_stack, nullptr, nullptr);
#endif
}

void fiber_started(fiber *scheduler)
{
#if SIMULATOR_ASAN
    const void *bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    /* The first fiber of a thread is entered from the thread's own stack. */
    if (scheduler->stack == nullptr) {
        scheduler->stack = const_cast<char *>(static_cast<const char *>(bottom));
        scheduler->stack_bytes = bytes;
    }
#else
    (void)scheduler;
#endif
}

bool in_fiber_guard(const void *memory)
{
    const char *at = static_cast<const char *>(memory);
    const std::unique_lock<std::mutex> held(stacks_lock, std::try_to_lock);
    if (!held.owns_lock()) {
        return false;
    }
    for (const char *guard : stacks()) {
        if (at >= guard && at < guard + guard_bytes) {
            return true;
        }
    }
    return false;
}

bool in_fiber_stack(const void *memory)
{
    const char *at = static_cast<const char *>(memory);
    const std::lock_guard<std::mutex> held(stacks_lock);
    for (const char *guard : stacks()) {
        if (at >= guard + guard_bytes && at < guard + guard_bytes + fiber_stack_bytes) {
            return true;
        }
    }
    return false;
}

} // namespace simulator

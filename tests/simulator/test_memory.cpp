/* Memory: who may touch it, what it holds at first, where it ends, what is left behind. */
#include "cuda_runtime.h"
#include "planted.hpp"
#include "simulator.h"

#include <cmath>
#include <vector>

#define LAUNCH(grid, block, kernel, ...)                                                           \
    CHECK_CUDA(simulator_launch(#kernel, __FILE__, __LINE__, grid, block, 0, nullptr, kernel,      \
                                __VA_ARGS__))

namespace
{

using planted::expect;
using planted::expect_abort;
using planted::run;

float *device_floats(size_t count)
{
    float *memory = nullptr;
    CHECK_CUDA(cudaMalloc(&memory, count * sizeof(float)));
    return memory;
}

__global__ void store_at(float *to, int index)
{
    if (threadIdx.x == 5) {
        to[index] = 1.0F;
    }
}

__global__ void copy_floats(const float *from, float *to)
{
    to[threadIdx.x] = from[threadIdx.x];
}

void host_touches_device_memory(const char *protection)
{
    const auto read = [] {
        volatile float *memory = device_floats(100);
        CHECK(memory[7] >= 0.0F || true);
    };
    const auto write = [] {
        float *memory = device_floats(100);
        CHECK_CUDA(cudaMemset(memory, 0, 400));
        CHECK_CUDA(cudaDeviceSynchronize());
        *static_cast<volatile float *>(memory + 7) = 1.0F;
    };
    expect_abort(run(read, {protection}), "host code touched device memory at ");
    expect_abort(run(write, {protection}),
                 "byte 28 of allocation 1 (400 bytes of memory of device 0)");
}

void host_touches()
{
    host_touches_device_memory("TTRAIN_SIMULATOR_PROTECTION=");
    host_touches_device_memory("TTRAIN_SIMULATOR_PROTECTION=mprotect");
}

/* Test programs take signals over; the simulator takes them back. */
void other_handlers()
{
    expect_abort(run([] {
                     float *memory = device_floats(100);
                     signal(SIGSEGV, [](int) { _exit(0); });
                     LAUNCH(1, 32, store_at, memory, 1 << 28);
                     cudaDeviceSynchronize();
                 }),
                 "kernel store_at (");
}

void kernels_work_under_either_protection()
{
    for (const char *protection :
         {"TTRAIN_SIMULATOR_PROTECTION=", "TTRAIN_SIMULATOR_PROTECTION=mprotect"}) {
        const planted::outcome result = run(
            [] {
                float *memory = device_floats(64);
                LAUNCH(1, 32, store_at, memory, 3);
                CHECK_CUDA(cudaDeviceSynchronize());
                CHECK_CUDA(cudaFree(memory));
            },
            {protection});
        CHECK(result.ended_well());
    }
}

/* Beyond the end by one element, and before the beginning: one thread of the kernel is named, or at
 * least the kernel and the allocation. */
void out_of_bounds()
{
    const auto store = [](int index) {
        return run([index] {
            float *memory = device_floats(100);
            CHECK_CUDA(cudaMemset(memory, 0, 400));
            LAUNCH(1, 32, store_at, memory, index);
            cudaDeviceSynchronize();
        });
    };
#if defined(__SANITIZE_ADDRESS__)
    expect(store(100), "AddressSanitizer: use-after-poison");
    expect(store(100), "kernel store_at (");
    expect(store(-1), "AddressSanitizer: use-after-poison");
#else
    expect_abort(store(100), "kernel store_at (");
    expect_abort(store(100), " past the end of allocation 1 (400 bytes of memory of device 0)");
    expect_abort(store(-1), "kernel store_at (");
#endif
    /* So far away that there is a guard page, or nothing at all. */
    expect_abort(store(2000), "kernel store_at (");
    expect_abort(store(2000), "block (0,0,0), thread (5,0,0): ");
    expect_abort(store(1 << 28), "thread (5,0,0): ");
}

void freed_memory()
{
    const planted::outcome result = run([] {
        float *memory = device_floats(100);
        CHECK_CUDA(cudaFree(memory));
        LAUNCH(1, 32, store_at, memory, 1);
        cudaDeviceSynchronize();
    });
    expect(result, "kernel store_at (");
#if defined(__SANITIZE_ADDRESS__)
    expect(result, "AddressSanitizer: use-after-poison");
#else
    expect(result, "freed");
#endif
    CHECK(!result.ended_well());
    const planted::outcome twice = run([] {
        float *memory = device_floats(100);
        CHECK_CUDA(cudaFree(memory));
        CHECK(cudaFree(memory) == cudaErrorInvalidValue);
    });
    expect(twice, "cudaFree: ");
}

/* Fresh memory holds NaNs that go through every sum; where accesses are checked, reading it ends
 * the program. */
void uninitialised_memory()
{
    const auto body = [] {
        float *from = device_floats(32);
        float *to = device_floats(32);
        LAUNCH(1, 32, copy_floats, from, to);
        std::vector<float> found(32);
        CHECK_CUDA(cudaMemcpy(found.data(), to, 128, cudaMemcpyDeviceToHost));
        for (const float value : found) {
            CHECK(std::isnan(value));
        }
        CHECK_CUDA(cudaFree(from));
        CHECK_CUDA(cudaFree(to));
    };
    const planted::outcome result = run(body);
    if (simulator_checks_accesses() != 0) {
        expect_abort(result, "kernel copy_floats (");
        expect_abort(result, "reads memory that was never written");
    } else {
        CHECK(result.ended_well());
    }
}

__global__ void read_shared(float *to)
{
    float *const shared = static_cast<float *>(simulator_dynamic_shared());
    to[threadIdx.x] = shared[threadIdx.x];
}

void uninitialised_shared_memory()
{
    const planted::outcome result = run([] {
        float *to = device_floats(32);
        CHECK_CUDA(simulator_launch("read_shared", __FILE__, __LINE__, 1, 32, 128, nullptr,
                                    read_shared, to));
        std::vector<float> found(32);
        CHECK_CUDA(cudaMemcpy(found.data(), to, 128, cudaMemcpyDeviceToHost));
        for (const float value : found) {
            CHECK(std::isnan(value));
        }
        CHECK_CUDA(cudaFree(to));
    });
    if (simulator_checks_accesses() != 0) {
        expect_abort(result, "kernel read_shared (");
        expect_abort(result, "reads shared memory that was never written");
    } else {
        CHECK(result.ended_well());
    }
}

__global__ void past_shared(float *to)
{
    static char key;
    struct few {
        float of[8];
    };
    few &shared = *static_cast<few *>(simulator_shared(sizeof(few), alignof(few), &key));
    float *const at = shared.of;
    at[8 + threadIdx.x % 4] = 1.0F;
    to[0] = 1.0F;
}

void out_of_shared_bounds()
{
    const planted::outcome result = run([] {
        float *to = device_floats(32);
        LAUNCH(1, 4, past_shared, to);
        cudaDeviceSynchronize();
    });
#if defined(__SANITIZE_ADDRESS__)
    expect(result, "AddressSanitizer: use-after-poison");
#else
    expect_abort(result, "kernel past_shared (");
#endif
}

void out_of_memory()
{
    const planted::outcome result = run(
        [] {
            void *memory = nullptr;
            CHECK(cudaMalloc(&memory, 65 << 20) == cudaErrorMemoryAllocation);
            CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
            CHECK_CUDA(cudaMalloc(&memory, 60 << 20));
            void *more = nullptr;
            CHECK(cudaMalloc(&more, 5 << 20) == cudaErrorMemoryAllocation);
            size_t left = 0, total = 0;
            CHECK_CUDA(cudaMemGetInfo(&left, &total));
            CHECK(left == 4 << 20 && total == 64 << 20);
            CHECK_CUDA(cudaFree(memory));
            CHECK(simulator_device_bytes() == 0 && simulator_device_bytes_peak() == 60 << 20);
        },
        {"TTRAIN_SIMULATOR_MEMORY=64"});
    CHECK(result.ended_well());
}

void leaks()
{
    const auto body = [] {
        device_floats(25);
        cudaStream_t stream = nullptr;
        CHECK_CUDA(cudaStreamCreate(&stream));
    };
    const planted::outcome result = run(body);
    expect(result, "leak: allocation 1 of 100 bytes of device memory was never freed");
    expect(result, "leak: 1 streams, events or graphs were never destroyed");
    CHECK(result.ended_well());
    CHECK(!run(body, {"TTRAIN_SIMULATOR_LEAKS=1"}).ended_well());
}

void copies_beyond_the_end()
{
    float *memory = device_floats(10);
    std::vector<float> host(20);
    CHECK(cudaMemcpy(memory, host.data(), 44, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(host.data(), memory, 40, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemset(memory + 1, 0, 40) == cudaErrorInvalidValue);
    CHECK(cudaMemset(host.data(), 0, 40) == cudaErrorInvalidValue);
}

void devices()
{
    const auto count_is = [](int wanted, cudaError_t error) {
        return [wanted, error] {
            int count = -1;
            CHECK(cudaGetDeviceCount(&count) == error && count == wanted);
        };
    };
    CHECK(run(count_is(3, cudaSuccess), {"TTRAIN_SIMULATOR_DEVICES=3"}).ended_well());
    CHECK(run(count_is(0, cudaErrorNoDevice), {"TTRAIN_SIMULATOR_DEVICES=0"}).ended_well());
    CHECK(run(count_is(0, cudaErrorInsufficientDriver), {"TTRAIN_SIMULATOR_DRIVER=11040"})
              .ended_well());
    expect_abort(run(count_is(0, cudaSuccess), {"TTRAIN_SIMULATOR_DEVICES=many"}),
                 "environment TTRAIN_SIMULATOR_DEVICES: expected a number from 0 to 64");
    const planted::outcome old = run(
        [] {
            cudaDeviceProp properties;
            CHECK_CUDA(cudaGetDeviceProperties(&properties, 0));
            CHECK(properties.major == 7 && properties.minor == 0);
            float *memory = device_floats(10);
            CHECK(simulator_launch("store_at", "f", 1, 1, 32, 0, nullptr, store_at, memory, 1) ==
                  cudaErrorNoKernelImageForDevice);
        },
        {"TTRAIN_SIMULATOR_COMPUTE_CAPABILITY=7.0"});
    CHECK(old.ended_well());
}

const planted::test tests[] = {
    {"host code that touches device memory is caught", host_touches},
    {"faults are taken back from others", other_handlers},
    {"kernels work with and without protection keys", kernels_work_under_either_protection},
    {"accesses out of bounds are caught", out_of_bounds},
    {"freed memory is caught", freed_memory},
    {"uninitialised device memory shows", uninitialised_memory},
    {"uninitialised shared memory shows", uninitialised_shared_memory},
    {"writes past shared objects are caught", out_of_shared_bounds},
    {"memory runs out where the limit says", out_of_memory},
    {"leaks are reported", leaks},
    {"copies beyond an allocation are refused", copies_beyond_the_end},
    {"devices are what the environment says", devices},
};

} // namespace

int main()
{
    return planted::run_all(tests, sizeof(tests) / sizeof(*tests));
}

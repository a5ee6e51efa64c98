/* Kernels: what a correct one computes, whatever the seed, and how broken ones are caught. */
#include "mma.h"
#include "planted.hpp"
#include "simulator.h"

#include <csignal>
#include <vector>

#define LAUNCH(grid, block, shared, stream, kernel, ...)                                           \
    CHECK_CUDA(simulator_launch(#kernel, __FILE__, __LINE__, grid, block, shared, stream, kernel,  \
                                __VA_ARGS__))
#define SHARED(type, name)                                                                         \
    static char name##_key;                                                                        \
    type &name = *static_cast<type *>(simulator_shared(sizeof(type), alignof(type), &name##_key))
#define SHARED_ARRAY(type, name) type *const name = static_cast<type *>(simulator_dynamic_shared())

namespace
{

template <typename T> T *on_device(const std::vector<T> &from)
{
    T *memory = nullptr;
    CHECK_CUDA(cudaMalloc(&memory, from.size() * sizeof(T)));
    CHECK_CUDA(cudaMemcpy(memory, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    return memory;
}

template <typename T> std::vector<T> on_host(const T *from, size_t count)
{
    std::vector<T> to(count);
    CHECK_CUDA(cudaMemcpy(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
}

__global__ void add_one(int count, const float *x, float *y)
{
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) {
        y[i] = x[i] + 1.0F;
    }
}

void plain_launch()
{
    std::vector<float> x(1000);
    for (size_t i = 0; i < x.size(); i++) {
        x[i] = static_cast<float>(i);
    }
    float *from = on_device(x);
    float *to = on_device(x);
    LAUNCH(8, 128, 0, nullptr, add_one, 1000, from, to);
    const std::vector<float> y = on_host(to, x.size());
    for (size_t i = 0; i < x.size(); i++) {
        CHECK(y[i] == x[i] + 1.0F);
    }
    CHECK(simulator_launch_count(SIMULATOR_KERNEL) == 1);
    CHECK(simulator_launch_count_of("add_one") == 1);
    CHECK_CUDA(cudaFree(from));
    CHECK_CUDA(cudaFree(to));
    CHECK(simulator_live_objects() == 0);
}

/* Sums a block's numbers by shuffles, then over warps through shared memory. */
__global__ void sum_blocks(const float *x, float *sums)
{
    struct partial {
        float of_warp[32];
    };
    SHARED(partial, part);
    float value = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, lanes);
    }
    if (threadIdx.x % 32 == 0) {
        part.of_warp[threadIdx.x / 32] = value;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        value = threadIdx.x < blockDim.x / 32 ? part.of_warp[threadIdx.x] : 0.0F;
        for (unsigned int lanes = 16; lanes > 0; lanes /= 2) {
            value += __shfl_down_sync(0xffffffffu, value, lanes);
        }
        if (threadIdx.x == 0) {
            sums[blockIdx.x] = value;
        }
    }
}

std::vector<float> block_sums()
{
    std::vector<float> x(40 * 256);
    for (size_t i = 0; i < x.size(); i++) {
        x[i] = static_cast<float>(i % 97) * 0.37F;
    }
    const float *from = on_device(x);
    float *to = on_device(std::vector<float>(40));
    LAUNCH(40, 256, 0, nullptr, sum_blocks, from, to);
    return on_host(to, 40);
}

void reductions_do_not_depend_on_the_seed()
{
    simulator_set_seed(0);
    const std::vector<float> first = block_sums();
    for (uint64_t seed = 1; seed < 12; seed++) {
        simulator_set_seed(seed);
        CHECK(block_sums() == first);
    }
}

/* The same without the barrier. */
__global__ void sum_without_barrier(const float *x, float *sums)
{
    SHARED_ARRAY(float, part);
    part[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x == 0) {
        float sum = 0.0F;
        for (unsigned int i = 0; i < blockDim.x; i++) {
            sum += part[i];
        }
        sums[0] = sum;
    }
}

void missing_barrier()
{
    const float *from = on_device(std::vector<float>(64, 1.0F));
    float *to = on_device(std::vector<float>(1));
    int wrong = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        simulator_set_seed(seed);
        LAUNCH(1, 64, 64 * sizeof(float), nullptr, sum_without_barrier, from, to);
        wrong += on_host(to, 1)[0] != 64.0F;
    }
    CHECK(wrong > 15);
}

void missing_barrier_shows()
{
    if (simulator_checks_accesses() == 0) {
        missing_barrier();
        return;
    }
    planted::expect_abort(planted::run(missing_barrier), "kernel sum_without_barrier (");
}

__global__ void barrier_for_some(int *out)
{
    if (threadIdx.x == 3) {
        return;
    }
    __syncthreads();
    out[threadIdx.x] = 1;
}

__global__ void barriers_in_two_places(int *out)
{
    if (threadIdx.x < 16) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}

__global__ void shuffle_of_half_a_warp(int *out)
{
    int value = 1;
    if (threadIdx.x < 16) {
        value = __shfl_xor_sync(0xffffffffu, value, 1);
    }
    __syncthreads();
    out[threadIdx.x] = value;
}

template <typename K> planted::outcome launch_alone(const char *name, K kernel)
{
    return planted::run([&] {
        int *out = nullptr;
        CHECK_CUDA(cudaMalloc(&out, 64 * sizeof(int)));
        CHECK_CUDA(simulator_launch(name, __FILE__, __LINE__, 1, 64, 0, nullptr, kernel, out));
        cudaDeviceSynchronize();
    });
}

void divergent_barriers()
{
    planted::expect_abort(launch_alone("barrier_for_some", barrier_for_some), "divergent barrier");
    planted::expect_abort(launch_alone("barrier_for_some", barrier_for_some),
                          "kernel barrier_for_some (");
    planted::expect_abort(launch_alone("barriers_in_two_places", barriers_in_two_places),
                          "divergent barrier: this thread is at __syncthreads");
    planted::expect_abort(launch_alone("shuffle_of_half_a_warp", shuffle_of_half_a_warp),
                          "divergent");
}

__global__ void tile_product(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *d)
{
    namespace wmma = nvcuda::wmma;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.5F);
    for (int k = 0; k < 32; k += 16) {
        wmma::load_matrix_sync(left, a + k, 32);
        wmma::load_matrix_sync(right, b + k, 32);
        wmma::mma_sync(sum, left, right, sum);
    }
    for (int i = 0; i < sum.num_elements; i++) {
        sum.x[i] *= 2.0F;
    }
    wmma::store_matrix_sync(d, sum, 24, wmma::mem_row_major);
}

void matrix_products()
{
    std::vector<__nv_bfloat16> a(16 * 32), b(16 * 32);
    for (size_t i = 0; i < a.size(); i++) {
        a[i] = static_cast<float>(i % 7) - 3.0F;
        b[i] = static_cast<float>(i % 5) - 2.0F;
    }
    float *d = on_device(std::vector<float>(16 * 24));
    LAUNCH(1, 32, 0, nullptr, tile_product, on_device(a), on_device(b), d);
    const std::vector<float> found = on_host(d, 16 * 24);
    for (size_t row = 0; row < 16; row++) {
        for (size_t column = 0; column < 16; column++) {
            float sum = 0.5F;
            for (size_t k = 0; k < 32; k++) {
                sum += static_cast<float>(a[row * 32 + k]) * static_cast<float>(b[column * 32 + k]);
            }
            CHECK(found[row * 24 + column] == 2.0F * sum);
        }
    }
}

__global__ void votes_and_atomics(unsigned int *out, int *count)
{
    const unsigned int odd = __ballot_sync(0xffffffffu, threadIdx.x % 2);
    const int any = __any_sync(0xffffffffu, threadIdx.x == 40);
    const int all = __all_sync(0xffffffffu, threadIdx.x < 64);
    atomicAdd(count, 1);
    if (threadIdx.x % 32 == 0) {
        out[threadIdx.x / 32] = odd + static_cast<unsigned int>(any + 2 * all);
    }
}

void votes()
{
    unsigned int *out = on_device(std::vector<unsigned int>(2));
    int *count = on_device(std::vector<int>(1));
    LAUNCH(1, 64, 0, nullptr, votes_and_atomics, out, count);
    const std::vector<unsigned int> found = on_host(out, 2);
    CHECK(found[0] == 0xaaaaaaaau + 2 && found[1] == 0xaaaaaaaau + 3);
    CHECK(on_host(count, 1)[0] == 64);
}

__global__ void fill_stack(float *out)
{
    volatile char large[300 << 10];
    large[threadIdx.x] = 1;
    large[sizeof(large) - 1] = 2;
    out[0] = static_cast<float>(large[threadIdx.x]);
}

void stack_overflow()
{
    planted::expect_abort(planted::run([] {
                              float *out = on_device(std::vector<float>(1));
                              LAUNCH(1, 1, 0, nullptr, fill_stack, out);
                              cudaDeviceSynchronize();
                          }),
                          "kernel fill_stack (");
}

void bad_launches()
{
    float *out = on_device(std::vector<float>(1));
    CHECK(simulator_launch("k", "f", 1, 0, 1, 0, nullptr, fill_stack, out) ==
          cudaErrorInvalidConfiguration);
    CHECK(simulator_launch("k", "f", 1, 1, 2048, 0, nullptr, fill_stack, out) ==
          cudaErrorInvalidConfiguration);
    CHECK(simulator_launch("k", "f", 1, 1, 32, 50 << 10, nullptr, fill_stack, out) ==
          cudaErrorInvalidValue);
    CHECK_CUDA(
        cudaFuncSetAttribute(fill_stack, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
    CHECK(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
}

const planted::test tests[] = {
    {"a plain launch", plain_launch},
    {"reductions do not depend on the seed", reductions_do_not_depend_on_the_seed},
    {"a missing barrier shows", missing_barrier_shows},
    {"divergent barriers are caught", divergent_barriers},
    {"matrix products of a warp", matrix_products},
    {"votes and atomics", votes},
    {"a full stack is caught", stack_overflow},
    {"launches beyond the limits are refused", bad_launches},
};

} // namespace

int main()
{
    return planted::run_all(tests, sizeof(tests) / sizeof(*tests));
}

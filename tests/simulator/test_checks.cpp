/* What only a build that judges every access catches (TTRAIN_SIMULATOR_CHECK); skipped elsewhere.
 */
#include "cuda_runtime.h"
#include "planted.hpp"
#include "simulator.h"

#include <vector>

#define LAUNCH(grid, block, kernel, ...)                                                           \
    CHECK_CUDA(simulator_launch(#kernel, __FILE__, __LINE__, grid, block, 0, nullptr, kernel,      \
                                __VA_ARGS__))

namespace
{

using planted::expect_abort;
using planted::run;

float *zeros(size_t count)
{
    float *memory = nullptr;
    CHECK_CUDA(cudaMalloc(&memory, count * sizeof(float)));
    CHECK_CUDA(cudaMemset(memory, 0, count * sizeof(float)));
    return memory;
}

template <typename K, typename... A>
planted::outcome launch_alone(unsigned int blocks, K kernel, A... arguments)
{
    return run([=] {
        CHECK_CUDA(simulator_launch("planted", __FILE__, __LINE__, blocks, 64, 0, nullptr, kernel,
                                    zeros(1024), arguments...));
        CHECK_CUDA(cudaDeviceSynchronize());
    });
}

struct row {
    float of[64];
};

row &shared_row()
{
    static char key;
    return *static_cast<row *>(simulator_shared(sizeof(row), alignof(row), &key));
}

/* Each thread reads what its neighbour wrote: without a barrier, with one, and overwriting what the
 * neighbour may still have to read. */
__global__ void neighbour(float *out, int barriers)
{
    row &shared = shared_row();
    shared.of[threadIdx.x] = 0.0F;
    __syncthreads();
    shared.of[threadIdx.x] = 1.0F;
    if (barriers > 0) {
        __syncthreads();
    }
    const float value = shared.of[(threadIdx.x + 1) % 64];
    if (barriers > 1) {
        __syncthreads();
    }
    shared.of[threadIdx.x] = value;
    out[threadIdx.x] = value;
}

/* The same inside each warp. */
__global__ void neighbour_lane(float *out, bool together)
{
    row &shared = shared_row();
    shared.of[threadIdx.x] = 0.0F;
    __syncthreads();
    shared.of[threadIdx.x] = 1.0F;
    if (together) {
        __syncwarp();
    }
    out[threadIdx.x] = shared.of[threadIdx.x / 32 * 32 + (threadIdx.x + 1) % 32];
}

void shared_races()
{
    expect_abort(launch_alone(1, neighbour, 0), "race in shared memory: ");
    expect_abort(launch_alone(1, neighbour, 0), "kernel planted (");
    expect_abort(launch_alone(1, neighbour, 1), "race in shared memory: ");
    CHECK(launch_alone(1, neighbour, 2).ended_well());
    expect_abort(launch_alone(1, neighbour_lane, false), "race in shared memory: ");
    CHECK(launch_alone(1, neighbour_lane, true).ended_well());
}

/* Blocks that read and write the same memory. */
__global__ void neighbour_block(float *out)
{
    const unsigned int i = blockIdx.x * 64 + threadIdx.x;
    out[i] = out[(i + 64) % (gridDim.x * 64)] + 1.0F;
}

__global__ void own_block(float *out)
{
    out[blockIdx.x * 64 + threadIdx.x] += 1.0F;
}

/* Partial results that the last block to come adds up. */
__global__ void last_block_adds(float *out, unsigned int *arrived)
{
    out[blockIdx.x] = 1.0F;
    __threadfence();
    struct flag {
        bool last;
    };
    static char key;
    flag &shared = *static_cast<flag *>(simulator_shared(sizeof(flag), alignof(flag), &key));
    if (threadIdx.x == 0) {
        shared.last = atomicAdd(arrived, 1U) == gridDim.x - 1;
    }
    __syncthreads();
    if (shared.last && threadIdx.x == 0) {
        float sum = 0.0F;
        for (unsigned int i = 0; i < gridDim.x; i++) {
            sum += out[i];
        }
        out[gridDim.x] = sum;
    }
}

void block_races()
{
    expect_abort(launch_alone(8, neighbour_block), "race between blocks: ");
    CHECK(launch_alone(8, own_block).ended_well());
    const planted::outcome result = run([] {
        unsigned int *arrived = reinterpret_cast<unsigned int *>(zeros(1));
        LAUNCH(8, 64, last_block_adds, zeros(9), arrived);
        CHECK_CUDA(cudaDeviceSynchronize());
    });
    CHECK(result.ended_well());
}

__global__ void read_pointer(float *out, const float *from)
{
    out[threadIdx.x] = from[0];
}

__global__ void move_four(float *out, int offset)
{
    if (threadIdx.x == 0) {
        *reinterpret_cast<float4 *>(out + 100) = *reinterpret_cast<const float4 *>(out + offset);
    }
}

void other_mistakes()
{
    static float on_host = 1.0F;
    expect_abort(launch_alone(1, read_pointer, static_cast<const float *>(&on_host)),
                 "reads host memory at ");
    expect_abort(launch_alone(1, move_four, 3), "which is not a multiple of that");
    CHECK(launch_alone(1, move_four, 4).ended_well());
    expect_abort(run([] {
                     float *memory = nullptr;
                     CHECK_CUDA(cudaMalloc(&memory, 400));
                     std::vector<float> host(100);
                     cudaMemcpy(host.data(), memory, 400, cudaMemcpyDeviceToHost);
                 }),
                 "copy to the host: reads memory that was never written: ");
}

/* Far from the beginning of the operands, where a plain build does not look. */
__global__ void store_far(float *to)
{
    to[900] = 1.0F;
}

void exact_streams()
{
    const planted::outcome result = run([] {
        cudaStream_t streams[2];
        float *memory = zeros(1024);
        CHECK_CUDA(cudaDeviceSynchronize());
        for (cudaStream_t &stream : streams) {
            CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            CHECK_CUDA(simulator_launch("store_far", __FILE__, __LINE__, 1, 1, 0, stream, store_far,
                                        memory));
        }
        CHECK_CUDA(cudaDeviceSynchronize());
    });
    expect_abort(result, "missing dependency between streams: kernel store_far (");
}

const planted::test tests[] = {
    {"races in shared memory", shared_races},
    {"races between blocks", block_races},
    {"host pointers, misaligned vectors, copies of nothing", other_mistakes},
    {"streams are compared by what kernels touch", exact_streams},
};

} // namespace

int main()
{
    if (simulator_checks_accesses() == 0) {
        printf("skipped: this build does not judge accesses\n");
        return 77;
    }
    return planted::run_all(tests, sizeof(tests) / sizeof(*tests));
}

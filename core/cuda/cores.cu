#include "core/cuda/cuda_ops.h"
#include "core/cuda/reduce.cuh"
#include "core/cuda/tasks.cuh"

#include <climits>
#include <cstdlib>

/* Tensor-train cores of all layers, scaled by their diagonals. */
typedef struct {
    const float *core, *diagonal;
    float *scaled;
    const float *scaled_gradient;
    float *core_gradient, *diagonal_gradient;
    int64_t rows, rank;
    int64_t first_tile;
    float threshold;
    int32_t unused;
} core_task;

enum { THREADS = 256, THREAD_ELEMENTS = 4, TILE = THREADS * THREAD_ELEMENTS };
/* The backward pass: a block has a strip of a core's columns, and each of its threads every
 * DOWN-th row of one of them. */
enum { ACROSS = 32, DOWN = 16 };

static __device__ __forceinline__ float kept(float value, float threshold)
{
    return value > threshold ? value : 0.0f;
}

static __global__ void __launch_bounds__(THREADS) scale_tiles(const core_task *tasks, int count)
{
    const core_task *task = tt_find_task(tasks, count, blockIdx.x);
    int64_t first = (blockIdx.x - task->first_tile) * TILE + static_cast<int>(threadIdx.x);
    int64_t elements = task->rows * task->rank;
#pragma unroll
    for (int j = 0; j < THREAD_ELEMENTS; j++) {
        int64_t i = first + j * THREADS;
        if (i < elements) {
            int64_t column;
            tt_divide(i, task->rank, &column);
            task->scaled[i] = task->core[i] * kept(task->diagonal[column], task->threshold);
        }
    }
}

typedef struct {
    float value[DOWN][ACROSS];
} strip_sums;

static __global__ void __launch_bounds__(ACROSS *DOWN)
    scale_strips_backward(const core_task *tasks, int count)
{
    TT_SHARED(strip_sums, sums);
    const core_task *task = tt_find_task(tasks, count, blockIdx.x);
    int64_t column = (blockIdx.x - task->first_tile) * ACROSS + static_cast<int>(threadIdx.x);
    bool inside = column < task->rank;
    float diagonal = inside ? kept(task->diagonal[column], task->threshold) : 0.0f;
    float sum = 0.0f;
    if (inside) {
        for (int64_t row = threadIdx.y; row < task->rows; row += DOWN) {
            int64_t i = row * task->rank + column;
            float gradient = task->scaled_gradient[i];
            task->core_gradient[i] += gradient * diagonal;
            sum += gradient * task->core[i];
        }
    }
    sums.value[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && diagonal > 0.0f) {
#pragma unroll
        for (int y = 1; y < DOWN; y++) {
            sum += sums.value[y][threadIdx.x];
        }
        task->diagonal_gradient[column] += sum;
    }
}

/* Tiles of a core in either pass. */
static int64_t element_tiles(const tt_scaled_core *core)
{
    return tt_ceil_div(core->rows * core->rank, TILE);
}

static int64_t strips(const tt_scaled_core *core)
{
    return tt_ceil_div(core->rank, ACROSS);
}

static core_task task_of(const tt_scaled_core *core, int64_t first_tile)
{
    core_task task = {};
    task.core = core->core;
    task.diagonal = core->diagonal;
    task.scaled = core->scaled;
    task.scaled_gradient = core->scaled_gradient;
    task.core_gradient = core->core_gradient;
    task.diagonal_gradient = core->diagonal_gradient;
    task.rows = core->rows;
    task.rank = core->rank;
    task.first_tile = first_tile;
    task.threshold = core->threshold;
    return task;
}

typedef struct {
    const core_task *tasks; /* device memory; NULL where there is nothing to do */
    int count;
    unsigned tiles;
} core_table;

static core_table make_table(tt_device *device, const tt_scaled_core *cores, int count,
                             int64_t (*tiles_of)(const tt_scaled_core *core))
{
    core_table table = {};
    if (count == 0 || tt_cuda(device)->failed) {
        return table;
    }
    core_task *tasks = static_cast<core_task *>(malloc(static_cast<size_t>(count) * sizeof *tasks));
    if (tasks == nullptr) {
        tt_cuda_refuse(device, "no memory for a list of %d cores", count);
        return table;
    }
    int64_t tiles = 0;
    for (int i = 0; i < count; i++) {
        if (cores[i].rows > 0 && cores[i].rank > 0) {
            tasks[table.count++] = task_of(&cores[i], tiles);
            tiles += tiles_of(&cores[i]);
        }
    }
    assert(tiles <= INT_MAX);
    table.tiles = static_cast<unsigned>(tiles);
    if (table.count > 0) {
        table.tasks = static_cast<const core_task *>(
            tt_cuda_constant(device, tasks, static_cast<size_t>(table.count) * sizeof *tasks));
    }
    free(tasks);
    return table;
}

void tt_cuda_scale_cores(tt_device *device, const tt_scaled_core *cores, int count)
{
    core_table table = make_table(device, cores, count, element_tiles);
    if (table.tasks != nullptr) {
        TT_LAUNCH(device, table.tiles, THREADS, 0, scale_tiles, table.tasks, table.count);
    }
}

void tt_cuda_scale_cores_backward(tt_device *device, const tt_scaled_core *cores, int count)
{
    core_table table = make_table(device, cores, count, strips);
    if (table.tasks != nullptr) {
        TT_LAUNCH(device, table.tiles, dim3(ACROSS, DOWN), 0, scale_strips_backward, table.tasks,
                  table.count);
    }
}

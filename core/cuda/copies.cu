#include "core/cuda/cuda_ops.h"
#include "core/cuda/tasks.cuh"

#include <climits>
#include <cstdlib>

/* A copy whose rows follow each other without a gap on both sides is one long row. */
typedef struct {
    const void *source;
    void *target;
    int64_t rows, columns, source_stride, target_stride;
    int64_t row_packs; /* packs in a row */
    int64_t first_tile;
    bool source_bf16, target_bf16, wide, accumulate;
    bool unused[4];
} copy_task;

enum { THREADS = 256, THREAD_PACKS = 4, TILE = THREADS * THREAD_PACKS, WIDE = 8 };

template <typename S, typename T, int W>
static __device__ __forceinline__ void copy_tile(const copy_task *task, int64_t first)
{
    const S *source = static_cast<const S *>(task->source);
    T *target = static_cast<T *>(task->target);
    int64_t packs = task->rows * task->row_packs;
#pragma unroll
    for (int i = 0; i < THREAD_PACKS; i++) {
        int64_t number = first + i * THREADS + static_cast<int>(threadIdx.x);
        if (number < packs) {
            int64_t pack, row = tt_divide(number, task->row_packs, &pack);
            int64_t column = pack * W;
            int left = task->columns - column < W ? static_cast<int>(task->columns - column) : W;
            T *to = target + row * task->target_stride + column;
            tt_pack<W> value =
                tt_load_last_pack<W>(source + row * task->source_stride + column, left);
            if (task->accumulate) {
                tt_pack<W> sum = tt_load_last_pack<W>(to, left);
                tt_add_pack(sum, value);
                value = sum;
            }
            tt_store_last_pack(to, value, left);
        }
    }
}

template <typename S, typename T>
static __device__ __forceinline__ void copy_tile_of(const copy_task *task, int64_t first)
{
    if (task->wide) {
        copy_tile<S, T, WIDE>(task, first);
    } else {
        copy_tile<S, T, 1>(task, first);
    }
}

static __global__ void __launch_bounds__(THREADS) copy_tiles(const copy_task *tasks, int count)
{
    const copy_task *task = tt_find_task(tasks, count, blockIdx.x);
    int64_t first = (blockIdx.x - task->first_tile) * TILE;
    if (task->source_bf16) {
        if (task->target_bf16) {
            copy_tile_of<__nv_bfloat16, __nv_bfloat16>(task, first);
        } else {
            copy_tile_of<__nv_bfloat16, float>(task, first);
        }
    } else if (task->target_bf16) {
        copy_tile_of<float, __nv_bfloat16>(task, first);
    } else {
        copy_tile_of<float, float>(task, first);
    }
}

/* Whether each of the rows begins at a 16-byte boundary. */
static bool begins_aligned(tt_matrix matrix, int64_t rows)
{
    size_t row = static_cast<size_t>(matrix.stride) * tt_type_size(matrix.type);
    return reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && (rows == 1 || row % 16 == 0);
}

static copy_task task_of(const tt_copy *copy, int64_t first_tile)
{
    copy_task task = {};
    task.source = copy->source.data;
    task.target = copy->target.data;
    task.rows = copy->source.rows;
    task.columns = copy->source.columns;
    task.source_stride = copy->source.stride;
    task.target_stride = copy->target.stride;
    task.first_tile = first_tile;
    task.source_bf16 = copy->source.type == TT_BF16;
    task.target_bf16 = copy->target.type == TT_BF16;
    task.accumulate = copy->accumulate;
    if (task.source_stride == task.columns && task.target_stride == task.columns) {
        task.columns *= task.rows;
        task.rows = 1;
    }
    task.wide = begins_aligned(copy->source, task.rows) && begins_aligned(copy->target, task.rows);
    task.row_packs = tt_ceil_div(task.columns, task.wide ? WIDE : 1);
    return task;
}

void tt_cuda_copy_group(tt_device *device, const tt_copy *copies, int count)
{
    if (count == 0 || tt_cuda(device)->failed) {
        return;
    }
    copy_task *tasks = static_cast<copy_task *>(malloc(static_cast<size_t>(count) * sizeof *tasks));
    if (tasks == nullptr) {
        tt_cuda_refuse(device, "no memory for a list of %d copies", count);
        return;
    }
    int used = 0;
    int64_t tiles = 0;
    for (int i = 0; i < count; i++) {
        const tt_copy *copy = &copies[i];
        assert(copy->source.rows == copy->target.rows &&
               copy->source.columns == copy->target.columns);
        if (copy->source.rows > 0 && copy->source.columns > 0) {
            tasks[used] = task_of(copy, tiles);
            tiles += tt_ceil_div(tasks[used].rows * tasks[used].row_packs, TILE);
            used++;
        }
    }
    assert(tiles <= INT_MAX);
    const copy_task *table =
        used > 0 ? static_cast<const copy_task *>(
                       tt_cuda_constant(device, tasks, static_cast<size_t>(used) * sizeof *tasks))
                 : nullptr;
    free(tasks);
    if (table != nullptr) {
        TT_LAUNCH(device, static_cast<unsigned>(tiles), THREADS, 0, copy_tiles, table, used);
    }
}

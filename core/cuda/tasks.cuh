/* One launch for many small pieces of work: a table of tasks in device memory, each cut into tiles
 * of one block each, so that the number of launches does not grow with the number of layers. A task
 * has a member first_tile, the number of its first tile. */
#ifndef TT_CORE_CUDA_TASKS_CUH
#define TT_CORE_CUDA_TASKS_CUH

#include "core/cuda/pack.cuh"

/* The task that tile `tile` belongs to: the last one that begins at it or before. */
template <typename TASK>
static __device__ __forceinline__ const TASK *tt_find_task(const TASK *tasks, int count,
                                                           int64_t tile)
{
    int first = 0, end = count;
    while (end - first > 1) {
        int middle = (first + end) / 2;
        if (tasks[middle].first_tile <= tile) {
            first = middle;
        } else {
            end = middle;
        }
    }
    return tasks + first;
}

/* quotient = number / divisor and the remainder, both at least 0; 32-bit division where that will
 * do is several times faster. */
static __device__ __forceinline__ int64_t tt_divide(int64_t number, int64_t divisor,
                                                    int64_t *remainder)
{
    if (((number | divisor) >> 32) == 0) {
        unsigned quotient = static_cast<unsigned>(number) / static_cast<unsigned>(divisor);
        *remainder = static_cast<unsigned>(number) - quotient * static_cast<unsigned>(divisor);
        return quotient;
    }
    int64_t quotient = number / divisor;
    *remainder = number - quotient * divisor;
    return quotient;
}

#endif

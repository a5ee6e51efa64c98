/* Sorting of ids: tiles by counting, then every key to its place among all tiles. Equal keys stay
 * in order; the number of launches is two, whatever the number of keys. */
#ifndef TT_CORE_CUDA_SORT_CUH
#define TT_CORE_CUDA_SORT_CUH

#include "core/cuda/pack.cuh"

enum {
    TT_TILE = 512, /* ids sorted by one block */
    TT_MOST_LISTS = 3
};

/* What is sorted: `count` keys each of up to three lists, and where the stages leave them. */
typedef struct {
    const int32_t *keys[TT_MOST_LISTS];
    int32_t *tile_keys, *tile_places; /* [lists, count]: sorted within tiles */
    int32_t *sorted_keys, *order;     /* [lists, count]: sorted; order: the places they came from */
    int64_t count;
} tt_sorting;

static __device__ __forceinline__ const int32_t *tt_keys_of_list(const tt_sorting &sorting,
                                                                 unsigned list)
{
    return list == 0 ? sorting.keys[0] : list == 1 ? sorting.keys[1] : sorting.keys[2];
}

typedef struct {
    int32_t key[TT_TILE];
} tt_key_tile;

/* Sorts TT_TILE keys by counting, for each, those that come before it. Equal keys stay in order. */
template <typename KEY> __global__ void __launch_bounds__(TT_TILE) tt_sort_tile(tt_sorting sorting)
{
    TT_SHARED(tt_key_tile, tile);
    const KEY *keys = tt_keys_of_list(sorting, blockIdx.y);
    int64_t first = static_cast<int64_t>(blockIdx.x) * TT_TILE;
    int64_t left = sorting.count - first;
    int here = static_cast<int>(threadIdx.x),
        count = left < TT_TILE ? static_cast<int>(left) : TT_TILE;
    KEY key = here < count ? keys[first + here] : 0;
    tile.key[here] = key;
    __syncthreads();
    if (here >= count) {
        return;
    }
    int before = 0;
#pragma unroll 8
    for (int j = 0; j < count; j++) {
        KEY other = tile.key[j];
        before += other < key || (other == key && j < here) ? 1 : 0;
    }
    int64_t place = blockIdx.y * sorting.count + first + before;
    sorting.tile_keys[place] = key;
    sorting.tile_places[place] = static_cast<int32_t>(first + here);
}

/* How many of `count` sorted keys are below `key`, or not above it. */
static __device__ __forceinline__ int tt_keys_before(const int32_t *keys, int count, int32_t key,
                                                     bool equal_too)
{
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        int32_t other = keys[middle];
        if (other < key || (equal_too && other == key)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Moves each key from its tile to its place among all: the keys before it in every tile. */
template <typename KEY> __global__ void __launch_bounds__(256) tt_merge_tiles(tt_sorting sorting)
{
    int64_t from = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (from >= sorting.count) {
        return;
    }
    int64_t list = blockIdx.y * sorting.count;
    const KEY *tile_keys = sorting.tile_keys + list;
    KEY key = tile_keys[from];
    int64_t own_tile = from / TT_TILE, place = from % TT_TILE;
    for (int64_t tile = 0; tile * TT_TILE < sorting.count; tile++) {
        if (tile != own_tile) {
            int64_t left = sorting.count - tile * TT_TILE;
            place += tt_keys_before(tile_keys + tile * TT_TILE,
                                    left < TT_TILE ? static_cast<int>(left) : TT_TILE, key,
                                    tile < own_tile);
        }
    }
    sorting.sorted_keys[list + place] = key;
    sorting.order[list + place] = sorting.tile_places[list + from];
}

/* int32 numbers that sorting takes: four arrays a list. */
static int64_t tt_sorting_numbers(int64_t count, int lists)
{
    return 4 * count * lists;
}

static tt_sorting tt_sort(tt_device *device, const int32_t *const *keys, int lists, int64_t count,
                          void *memory)
{
    int32_t *numbers = static_cast<int32_t *>(memory);
    tt_sorting sorting = {{keys[0], lists > 1 ? keys[1] : nullptr, nullptr},
                          numbers,
                          numbers + lists * count,
                          numbers + 2 * lists * count,
                          numbers + 3 * lists * count,
                          count};
    auto sort_tile = tt_sort_tile<int32_t>;
    TT_LAUNCH(
        device,
        dim3(static_cast<unsigned>(tt_ceil_div(count, TT_TILE)), static_cast<unsigned>(lists)),
        TT_TILE, 0, sort_tile, sorting);
    auto merge_tiles = tt_merge_tiles<int32_t>;
    TT_LAUNCH(device,
              dim3(static_cast<unsigned>(tt_ceil_div(count, 256)), static_cast<unsigned>(lists)),
              256, 0, merge_tiles, sorting);
    return sorting;
}

#endif

/* Distinct ids, and rows that are products of slices.
 *
 * Bytes that each must move: distinct_ids reads the ids and writes twice as many numbers;
 * slice_products_forward reads the slices that occur and writes the rows; slice_products_backward
 * reads the rows twice and reads and writes the gradients of the slices that occur.
 *
 * Nothing depends on how many ids are distinct but what a block finds to do, so that a captured
 * step serves every batch. A slice's gradient belongs to one block, which adds up its rows in their
 * order. */
#include "core/cuda/cuda_ops.h"
#include "core/cuda/sort.cuh"

/* --- distinct ids ----------------------------------------------------------------------------- */

enum { NUMBERING = 1024 /* threads of the one block that numbers keys */ };

size_t tt_cuda_distinct_ids_workspace(tt_device *device, int64_t count, int64_t bound)
{
    (void)device;
    (void)bound;
    return static_cast<size_t>(tt_sorting_numbers(count, 1)) * sizeof(int32_t);
}

typedef struct {
    int32_t in_warp[NUMBERING / 32];
} warp_counts;

/* Numbers the runs of sorted keys from 0: a run's key goes to `distinct`, its number to the places
 * that its keys came from. */
static __global__ void __launch_bounds__(NUMBERING)
    number_keys(tt_sorting sorting, int32_t *distinct, int64_t room, int32_t *places)
{
    TT_SHARED(warp_counts, counts);
    int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    int32_t found = 0; /* runs that begin before this turn */
    for (int64_t first = 0; first < sorting.count; first += NUMBERING) {
        int64_t i = first + thread;
        int32_t key = i < sorting.count ? sorting.sorted_keys[i] : -1;
        bool begins = i < sorting.count && (i == 0 || sorting.sorted_keys[i - 1] != key);
        unsigned ballot = __ballot_sync(0xFFFFFFFFu, begins);
        if (lane == 0) {
            counts.in_warp[warp] = __popc(ballot);
        }
        __syncthreads();
        int32_t number = found + __popc(ballot & (0xFFFFFFFFu >> (31 - lane))) - 1;
        for (int w = 0; w < NUMBERING / 32; w++) {
            int32_t in_warp = counts.in_warp[w];
            number += w < warp ? in_warp : 0;
            found += in_warp;
        }
        if (begins) {
            distinct[number] = key;
        }
        if (i < sorting.count) {
            places[sorting.order[i]] = number;
        }
        __syncthreads();
    }
    for (int64_t i = found + thread; i < room; i += NUMBERING) {
        distinct[i] = -1;
    }
}

void tt_cuda_distinct_ids(tt_device *device, const tt_distinct *distinct)
{
    if (distinct->count == 0) {
        return;
    }
    int64_t room = distinct->count < distinct->bound ? distinct->count : distinct->bound;
    tt_sorting sorting = tt_sort(device, &distinct->ids, 1, distinct->count, distinct->workspace);
    TT_LAUNCH(device, 1, NUMBERING, 0, number_keys, sorting, distinct->distinct, room,
              distinct->places);
}

/* --- products of slices ----------------------------------------------------------------------- */

enum { ACROSS = 32, DOWN = 8, TILE_ROWS = 16, TILE_COLUMNS = 64, TILE_INNER = 32 };

/* Entry (i, j) of an operand lies at data[i * row + j * column]. */
typedef struct {
    const float *data;
    int64_t row, column;
} operand;

typedef struct {
    float a[TILE_ROWS][TILE_INNER + 1];
    float b[TILE_INNER][TILE_COLUMNS + 1];
} operand_tiles;

/* A thread's part of a tile of the result: rows y and y + DOWN, columns x and x + ACROSS. */
typedef struct {
    float value[2][2];
} tile_sums;

/* Loads the part of an operand that begins at (row, column) and is [ROWS, COLUMNS], 0 beyond its
 * ends; neighbouring threads read neighbouring addresses. */
template <int ROWS, int COLUMNS, int STRIDE>
static __device__ __forceinline__ void load_tile(float (&tile)[ROWS][STRIDE], const operand &from,
                                                 int64_t row, int64_t rows, int64_t column,
                                                 int64_t columns)
{
    bool down = from.column != 1;
    for (int n = static_cast<int>(threadIdx.y * ACROSS + threadIdx.x); n < ROWS * COLUMNS;
         n += ACROSS * DOWN) {
        int i = down ? n % ROWS : n / COLUMNS;
        int j = down ? n / ROWS : n % COLUMNS;
        bool inside = row + i < rows && column + j < columns;
        tile[i][j] = inside ? from.data[(row + i) * from.row + (column + j) * from.column] : 0.0f;
    }
}

/* sums += a b for the tile of the result at (row, column); a [rows, inner], b [inner, columns]. All
 * threads of the block take part. */
static __device__ __forceinline__ void add_product(operand_tiles &tiles, const operand &a,
                                                   const operand &b, int64_t rows, int64_t inner,
                                                   int64_t columns, int64_t row, int64_t column,
                                                   tile_sums &sums)
{
    unsigned x = threadIdx.x, y = threadIdx.y;
    for (int64_t k = 0; k < inner; k += TILE_INNER) {
        __syncthreads(); /* the tiles may still be read */
        load_tile<TILE_ROWS, TILE_INNER>(tiles.a, a, row, rows, k, inner);
        load_tile<TILE_INNER, TILE_COLUMNS>(tiles.b, b, k, inner, column, columns);
        __syncthreads();
#pragma unroll 8
        for (int i = 0; i < TILE_INNER; i++) {
            float b0 = tiles.b[i][x], b1 = tiles.b[i][x + ACROSS];
            float a0 = tiles.a[y][i], a1 = tiles.a[y + DOWN][i];
            sums.value[0][0] += a0 * b0;
            sums.value[0][1] += a0 * b1;
            sums.value[1][0] += a1 * b0;
            sums.value[1][1] += a1 * b1;
        }
    }
}

/* c (+)= sums, c being [rows, columns]. */
template <bool ADD, typename T>
static __device__ __forceinline__ void store_sums(T *c, int64_t rows, int64_t columns, int64_t row,
                                                  int64_t column, const tile_sums &sums)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int64_t at_row = row + threadIdx.y + i * DOWN;
            int64_t at_column = column + threadIdx.x + j * ACROSS;
            if (at_row < rows && at_column < columns) {
                T *to = c + at_row * columns + at_column;
                tt_store(to, ADD ? tt_load(to) + sums.value[i][j] : sums.value[i][j]);
            }
        }
    }
}

static __device__ __forceinline__ operand left_slice(const tt_slice_products &p, int32_t id)
{
    int64_t size = p.left_columns * p.rank;
    return {p.left + id / p.right_slices * size, p.rank, 1};
}

static __device__ __forceinline__ operand right_slice(const tt_slice_products &p, int32_t id)
{
    int64_t size = p.rank * p.right_columns;
    return {p.right + id % p.right_slices * size, p.right_columns, 1};
}

static __device__ __forceinline__ operand turned(const operand &of)
{
    return {of.data, of.column, of.row};
}

/* Block (x, y, z): row x, and of its left by its right columns the tile (z, y). */
template <typename T>
__global__ void __launch_bounds__(ACROSS *DOWN) make_rows(tt_slice_products p, tt_rows<T> rows)
{
    TT_SHARED(operand_tiles, tiles);
    int64_t row = static_cast<int64_t>(blockIdx.z) * TILE_ROWS,
            column = static_cast<int64_t>(blockIdx.y) * TILE_COLUMNS;
    int32_t id = p.ids[blockIdx.x];
    if (id < 0) {
        return; /* the whole block */
    }
    tile_sums sums = {};
    add_product(tiles, left_slice(p, id), right_slice(p, id), p.left_columns, p.rank,
                p.right_columns, row, column, sums);
    store_sums<false>(rows.at(blockIdx.x, 0), p.left_columns, p.right_columns, row, column, sums);
}

template <typename T>
static void launch_rows(tt_device *device, const tt_slice_products *products, tt_matrix rows)
{
    dim3 grid(static_cast<unsigned>(products->count),
              static_cast<unsigned>(tt_ceil_div(products->right_columns, TILE_COLUMNS)),
              static_cast<unsigned>(tt_ceil_div(products->left_columns, TILE_ROWS)));
    auto rows_kernel = make_rows<T>;
    TT_LAUNCH(device, grid, dim3(ACROSS, DOWN), 0, rows_kernel, *products, tt_rows_of<T>(rows));
}

void tt_cuda_slice_products_forward(tt_device *device, const tt_slice_products *products,
                                    tt_matrix rows)
{
    assert(rows.rows >= products->count &&
           rows.columns == products->left_columns * products->right_columns);
    if (products->count == 0 || products->rank == 0) {
        return;
    }
    if (rows.type == TT_BF16) {
        launch_rows<__nv_bfloat16>(device, products, rows);
    } else {
        launch_rows<float>(device, products, rows);
    }
}

/* --- backward --------------------------------------------------------------------------------- */

/* A row's right slice, as the key that rows are sorted by; behind all others where there is no
 * row. */
static __global__ void __launch_bounds__(256) right_keys(tt_slice_products p, int32_t *keys)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < p.count) {
        int32_t id = p.ids[i];
        keys[i] = id < 0 ? INT32_MAX : static_cast<int32_t>(id % p.right_slices);
    }
}

size_t tt_cuda_slice_products_workspace(tt_device *device, const tt_slice_products *products)
{
    (void)device;
    int64_t numbers = products->count + tt_sorting_numbers(products->count, 1);
    return static_cast<size_t>(numbers) * sizeof(int32_t);
}

/* How many of the rows, sorted by id, have one below `id`. */
static __device__ __forceinline__ int64_t rows_before(const tt_slice_products &p, int64_t id)
{
    int64_t low = 0, high = p.count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        int32_t other = p.ids[middle];
        if (other >= 0 && other < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Block (x, y, z): of the gradient of left slice x, [left columns, rank], the tile (z, y). */
static __global__ void __launch_bounds__(ACROSS *DOWN)
    add_left_slices(tt_slice_products p, tt_rows<const float> d_rows)
{
    TT_SHARED(operand_tiles, tiles);
    int64_t row = static_cast<int64_t>(blockIdx.z) * TILE_ROWS,
            column = static_cast<int64_t>(blockIdx.y) * TILE_COLUMNS, slice = blockIdx.x;
    int64_t first = rows_before(p, slice * p.right_slices),
            end = rows_before(p, (slice + 1) * p.right_slices);
    if (first == end) {
        return; /* the whole block */
    }
    tile_sums sums = {};
    for (int64_t i = first; i < end; i++) {
        operand d_row = {d_rows.at(i, 0), p.right_columns, 1};
        add_product(tiles, d_row, turned(right_slice(p, p.ids[i])), p.left_columns, p.right_columns,
                    p.rank, row, column, sums);
    }
    store_sums<true>(p.left_gradient + slice * p.left_columns * p.rank, p.left_columns, p.rank, row,
                     column, sums);
}

/* The same for right slices, [rank, right columns]; `order` lists rows by right slice. */
static __global__ void __launch_bounds__(ACROSS *DOWN)
    add_right_slices(tt_slice_products p, tt_rows<const float> d_rows, const int32_t *keys,
                     const int32_t *order)
{
    TT_SHARED(operand_tiles, tiles);
    int64_t row = static_cast<int64_t>(blockIdx.z) * TILE_ROWS,
            column = static_cast<int64_t>(blockIdx.y) * TILE_COLUMNS;
    int32_t slice = static_cast<int32_t>(blockIdx.x);
    int first = tt_keys_before(keys, static_cast<int>(p.count), slice, false),
        end = tt_keys_before(keys, static_cast<int>(p.count), slice, true);
    if (first == end) {
        return; /* the whole block */
    }
    tile_sums sums = {};
    for (int n = first; n < end; n++) {
        int64_t i = order[n];
        operand d_row = {d_rows.at(i, 0), p.right_columns, 1};
        add_product(tiles, turned(left_slice(p, p.ids[i])), d_row, p.rank, p.left_columns,
                    p.right_columns, row, column, sums);
    }
    store_sums<true>(p.right_gradient + slice * p.rank * p.right_columns, p.rank, p.right_columns,
                     row, column, sums);
}

static dim3 slice_grid(int64_t slices, int64_t rows, int64_t columns)
{
    return dim3(static_cast<unsigned>(slices),
                static_cast<unsigned>(tt_ceil_div(columns, TILE_COLUMNS)),
                static_cast<unsigned>(tt_ceil_div(rows, TILE_ROWS)));
}

void tt_cuda_slice_products_backward(tt_device *device, const tt_slice_products *products,
                                     tt_matrix d_rows)
{
    assert(d_rows.type == TT_F32 && d_rows.rows >= products->count &&
           d_rows.columns == products->left_columns * products->right_columns);
    int64_t count = products->count;
    if (count == 0 || products->rank == 0) {
        return;
    }
    int32_t *keys = static_cast<int32_t *>(products->workspace);
    TT_LAUNCH(device, static_cast<unsigned>(tt_ceil_div(count, 256)), 256, 0, right_keys, *products,
              keys);
    tt_sorting sorting = tt_sort(device, &keys, 1, count, keys + count);
    tt_rows<const float> rows = tt_rows_of<const float>(d_rows);
    TT_LAUNCH(device, slice_grid(products->left_slices, products->left_columns, products->rank),
              dim3(ACROSS, DOWN), 0, add_left_slices, *products, rows);
    TT_LAUNCH(device, slice_grid(products->right_slices, products->rank, products->right_columns),
              dim3(ACROSS, DOWN), 0, add_right_slices, *products, rows, sorting.sorted_keys,
              sorting.order);
}

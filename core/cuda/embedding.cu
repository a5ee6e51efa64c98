/* Embedding sums, and rows gathered and scattered.
 *
 * Bytes that each must move: embedding_forward writes tokens * hidden activations and reads as many
 * f32 of the word table (fewer where ids repeat); gather_rows reads and writes the rows named;
 * scatter_rows reads them, and reads and writes their targets; embedding_backward reads dy three
 * times, once for each table, and reads and writes the f32 gradients of the rows that occur.
 *
 * Rows that several tokens add to are summed in a fixed order and without atomics: the tokens are
 * sorted by id; each warp adds up a stretch of TT_RUN sorted tokens, and whole runs of one id that
 * lie in it go to their target at once. Of runs that cross its ends it leaves partial sums, which a
 * second kernel adds in the order of stretches. A frequent id so is as fast as rare ones. */
#include "core/cuda/cuda_ops.h"
#include "core/cuda/reduce.cuh"
#include "core/cuda/sort.cuh"

enum {
    TT_RUN = 32, /* sorted tokens that a warp adds up */
};

template <typename T, int W>
__global__ void __launch_bounds__(256) tt_embedding_rows(tt_embedding e, tt_rows<T> y)
{
    int column = tt_grid_column<W>();
    if (column >= e.hidden) {
        return;
    }
    int64_t tokens = e.batch * e.sequence;
    for (int64_t token = tt_grid_row(); token < tokens; token += tt_grid_height()) {
        const float *word = e.word + e.ids[token] * e.hidden + column;
        const float *position = e.position + token % e.sequence * e.hidden + column;
        const float *segment = e.segment + e.segments[token] * e.hidden + column;
        tt_pack<W> sum = tt_load_pack<W>(word);
        tt_add_pack(sum, tt_load_pack<W>(position));
        tt_add_pack(sum, tt_load_pack<W>(segment));
        tt_store_pack(y.at(token, column), sum);
    }
}

template <typename T, int W>
static void tt_launch_embedding(tt_device *device, const tt_embedding *embedding, tt_matrix y)
{
    tt_row_grid plan = tt_grid_for_rows(device, y.rows, y.columns, W);
    auto embedding_rows = tt_embedding_rows<T, W>;
    TT_LAUNCH(device, plan.grid, plan.block, 0, embedding_rows, *embedding, tt_rows_of<T>(y));
}

/* A table of `hidden` columns; the number of rows plays no part. */
static tt_matrix tt_table(const float *table, int64_t hidden)
{
    return tt_matrix{const_cast<float *>(table), 1, hidden, hidden, TT_F32};
}

void tt_cuda_embedding_forward(tt_device *device, const tt_embedding *embedding, tt_matrix y)
{
    int64_t hidden = embedding->hidden;
    assert(y.rows == embedding->batch * embedding->sequence && y.columns == hidden);
    if (y.rows > 0) {
        bool wide =
            tt_wide(y, tt_table(embedding->word, hidden), tt_table(embedding->position, hidden),
                    tt_table(embedding->segment, hidden));
        TT_FOR_ACTIVATIONS(y.type, wide, tt_launch_embedding, device, embedding, y);
    }
}

/* A list of rows to add up: entry p adds row order[p] of the source to row keys[p] of the target,
 * keys being sorted. With keys NULL the entries are those of positions: for every position the
 * tokens of all sequences. */
template <typename D> struct tt_run_list {
    const int32_t *keys, *order;
    tt_rows<D> target;
};

template <typename T, typename D> struct tt_run_operands {
    tt_run_list<D> list[TT_MOST_LISTS];
    tt_rows<const T> source;
    float *partials;         /* [lists, stretches, 2, columns]: of the first run, and of the last */
    int64_t count;           /* entries of a list */
    int64_t batch, sequence; /* of the list of positions */
    int first_column, columns;
};

template <typename T, typename D>
static __device__ __forceinline__ tt_run_list<D> tt_this_list(const tt_run_operands<T, D> &o)
{
    return blockIdx.z == 0 ? o.list[0] : blockIdx.z == 1 ? o.list[1] : o.list[2];
}

template <typename T, typename D>
static __device__ __forceinline__ int32_t tt_key_at(const tt_run_operands<T, D> &o,
                                                    const tt_run_list<D> &list, int64_t entry)
{
    return list.keys != nullptr ? list.keys[entry] : static_cast<int32_t>(entry / o.batch);
}

template <typename T, typename D>
static __device__ __forceinline__ int32_t tt_row_at(const tt_run_operands<T, D> &o,
                                                    const tt_run_list<D> &list, int64_t entry)
{
    return list.order != nullptr
               ? list.order[entry]
               : static_cast<int32_t>(entry % o.batch * o.sequence + entry / o.batch);
}

template <typename T, typename D>
static __device__ __forceinline__ float *tt_run_partials(const tt_run_operands<T, D> &o,
                                                         int64_t stretch)
{
    int64_t stretches = tt_ceil_div(o.count, TT_RUN);
    return o.partials + 2 * (blockIdx.z * stretches + stretch) * o.columns;
}

template <int W, typename D>
static __device__ __forceinline__ void tt_add_to_target(const tt_rows<D> &target, int64_t row,
                                                        int column, const tt_pack<W> &addend)
{
    tt_pack<W> sum = tt_load_pack<W>(target.at(row, column));
    tt_add_pack(sum, addend);
    tt_store_pack(target.at(row, column), sum);
}

/* A warp a stretch and a strip of 32 W columns; the lanes hold the numbers of its
 * rows. */
template <typename T, typename D, int W>
__global__ void __launch_bounds__(256) tt_sum_runs(tt_run_operands<T, D> o)
{
    enum { AHEAD = 4 /* rows on their way at once */ };
    const unsigned all = 0xFFFFFFFFu;
    int64_t stretch = tt_grid_row(), first = stretch * TT_RUN;
    if (first >= o.count) {
        return; /* a whole warp */
    }
    tt_run_list<D> list = tt_this_list(o);
    int64_t rest = o.count - first;
    int column = tt_grid_column<W>();
    bool inside = column < o.columns;
    int count = rest < TT_RUN ? static_cast<int>(rest) : TT_RUN,
        lane = static_cast<int>(threadIdx.x);
    int32_t lane_key = lane < count ? tt_key_at(o, list, first + lane) : 0;
    int32_t lane_row = lane < count ? tt_row_at(o, list, first + lane) : 0;
    int32_t next_key = __shfl_down_sync(all, lane_key, 1);
    unsigned run_ends =
        __ballot_sync(all, lane + 1 == count || (lane + 1 < count && lane_key != next_key));
    bool from_before = first > 0 && tt_key_at(o, list, first - 1) == tt_key_at(o, list, first);
    bool goes_on = rest > TT_RUN &&
                   tt_key_at(o, list, first + TT_RUN - 1) == tt_key_at(o, list, first + TT_RUN);
    float *partials = tt_run_partials(o, stretch) + column;
    tt_pack<W> sum = {};
#pragma unroll 1
    for (int base = 0; base < TT_RUN; base += AHEAD) {
        tt_pack<W> ahead[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t row = __shfl_sync(all, lane_row, base + i);
            ahead[i] = {};
            if (base + i < count && inside) {
                ahead[i] = tt_load_pack<W>(o.source.at(row, o.first_column + column));
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            tt_add_pack(sum, ahead[i]);
            if ((run_ends >> (base + i) & 1) == 0 || !inside) {
                continue;
            }
            if (from_before) {
                tt_store_pack(partials, sum);
            } else if (goes_on && base + i + 1 == count) {
                tt_store_pack(partials + o.columns, sum);
            } else {
                int32_t key = tt_key_at(o, list, first + base + i);
                tt_add_to_target(list.target, key, o.first_column + column, sum);
            }
            sum = {};
            from_before = false;
        }
    }
}

/* Adds up a run that begins in stretch blockIdx.y and goes on in the next ones: the eight rows of
 * threads have every eighth stretch each. */
template <typename T, typename D, int W>
__global__ void __launch_bounds__(256) tt_finish_runs(tt_run_operands<T, D> o)
{
    TT_SHARED(tt_column_tile<W>, tile);
    tt_run_list<D> list = tt_this_list(o);
    int64_t stretch = blockIdx.y, first = stretch * TT_RUN, next = first + TT_RUN;
    if (next >= o.count) {
        return;
    }
    int32_t key = tt_key_at(o, list, next - 1);
    if (tt_key_at(o, list, next) != key || (first > 0 && tt_key_at(o, list, first - 1) == key)) {
        return;
    }
    int64_t end = stretch + 1, high = tt_ceil_div(o.count, TT_RUN);
    while (end < high) { /* the first stretch that does not begin with the key */
        int64_t middle = (end + high) / 2;
        if (tt_key_at(o, list, middle * TT_RUN) == key) {
            end = middle + 1;
        } else {
            high = middle;
        }
    }
    int column = tt_grid_column<W>();
    bool inside = column < o.columns;
    tt_pack<W> sum = {};
    if (inside) {
        if (threadIdx.y == 0) {
            sum = tt_load_pack<W>(tt_run_partials(o, stretch) + o.columns + column);
        }
#pragma unroll 4
        for (int64_t s = stretch + 1 + threadIdx.y; s < end; s += TT_COLUMN_THREADS_DOWN) {
            tt_add_pack(sum, tt_load_pack<W>(tt_run_partials(o, s) + column));
        }
    }
#pragma unroll
    for (int i = 0; i < W; i++) {
        tile.sum[threadIdx.y][threadIdx.x * W + i] = sum.value[i];
    }
    __syncthreads();
    if (threadIdx.y == 0 && inside) {
        for (int y = 1; y < TT_COLUMN_THREADS_DOWN; y++) {
#pragma unroll
            for (int i = 0; i < W; i++) {
                sum.value[i] += tile.sum[y][threadIdx.x * W + i];
            }
        }
        tt_add_to_target(list.target, key, o.first_column + column, sum);
    }
}

/* Partial sums lie in scratch memory behind `kept` floats; where they do not fit for all columns,
 * the columns are taken in turns. */
template <typename T, typename D, int W>
static void tt_launch_runs(tt_device *device, tt_run_operands<T, D> operands, int lists,
                           int64_t columns, int64_t kept)
{
    const tt_cuda_state *state = tt_cuda(device);
    int64_t stretches = tt_ceil_div(operands.count, TT_RUN);
    int64_t room = (static_cast<int64_t>(state->scratch_floats) - kept) / (2 * stretches * lists);
    room = room < columns ? room / (32 * W) * (32 * W) : columns;
    assert(room > 0 && stretches <= 65535);
    operands.partials = state->scratch + kept;
    auto sum_runs = tt_sum_runs<T, D, W>;
    auto finish_runs = tt_finish_runs<T, D, W>;
    for (int64_t first = 0; first < columns; first += room) {
        operands.first_column = static_cast<int>(first);
        operands.columns = static_cast<int>(columns - first < room ? columns - first : room);
        unsigned strips = static_cast<unsigned>(tt_ceil_div(operands.columns, 32 * W));
        dim3 block(32, TT_COLUMN_THREADS_DOWN);
        unsigned groups = static_cast<unsigned>(tt_ceil_div(stretches, TT_COLUMN_THREADS_DOWN));
        TT_LAUNCH(device, dim3(strips, groups, static_cast<unsigned>(lists)), block, 0, sum_runs,
                  operands);
        if (stretches > 1) {
            TT_LAUNCH(device,
                      dim3(strips, static_cast<unsigned>(stretches), static_cast<unsigned>(lists)),
                      block, 0, finish_runs, operands);
        }
    }
}

size_t tt_cuda_embedding_workspace(tt_device *device, int64_t tokens, int64_t vocabulary)
{
    (void)device;
    (void)vocabulary;
    return static_cast<size_t>(tt_sorting_numbers(tokens, 2)) * sizeof(int32_t);
}

template <typename T, int W>
static void tt_launch_embedding_backward(tt_device *device, const tt_embedding *embedding,
                                         tt_matrix dy, void *workspace)
{
    const int32_t *keys[] = {embedding->ids, embedding->segments};
    int64_t tokens = dy.rows, hidden = embedding->hidden;
    tt_sorting sorting = tt_sort(device, keys, 2, tokens, workspace);
    tt_run_operands<T, float> operands = {
        {{sorting.sorted_keys, sorting.order, {embedding->word_gradient, hidden}},
         {sorting.sorted_keys + tokens,
          sorting.order + tokens,
          {embedding->segment_gradient, hidden}},
         {nullptr, nullptr, {embedding->position_gradient, hidden}}},
        tt_rows_of<const T>(dy),
        nullptr,
        tokens,
        embedding->batch,
        embedding->sequence,
        0,
        0};
    tt_launch_runs<T, float, W>(device, operands, 3, hidden, 0);
}

void tt_cuda_embedding_backward(tt_device *device, const tt_embedding *embedding, tt_matrix dy,
                                void *workspace)
{
    int64_t hidden = embedding->hidden;
    assert(dy.rows == embedding->batch * embedding->sequence && dy.columns == hidden);
    if (dy.rows > 0) {
        bool wide = tt_wide(dy, tt_table(embedding->word_gradient, hidden),
                            tt_table(embedding->position_gradient, hidden),
                            tt_table(embedding->segment_gradient, hidden));
        TT_FOR_ACTIVATIONS(dy.type, wide, tt_launch_embedding_backward, device, embedding, dy,
                           workspace);
    }
}

template <typename T, int W>
__global__ void __launch_bounds__(256)
    tt_gather(tt_rows<const T> x, const int32_t *index, int64_t rows, int columns, tt_rows<T> y)
{
    int column = tt_grid_column<W>();
    if (column >= columns) {
        return;
    }
    for (int64_t row = tt_grid_row(); row < rows; row += tt_grid_height()) {
        tt_store_pack(y.at(row, column), tt_load_pack<W>(x.at(index[row], column)));
    }
}

template <typename T, int W>
static void tt_launch_gather(tt_device *device, tt_matrix x, const int32_t *index, tt_matrix y)
{
    tt_row_grid plan = tt_grid_for_rows(device, y.rows, y.columns, W);
    auto gather = tt_gather<T, W>;
    TT_LAUNCH(device, plan.grid, plan.block, 0, gather, tt_rows_of<const T>(x), index, y.rows,
              static_cast<int>(y.columns), tt_rows_of<T>(y));
}

void tt_cuda_gather_rows(tt_device *device, tt_matrix x, const int32_t *index, tt_matrix y)
{
    assert(x.columns == y.columns && x.type == y.type);
    if (y.rows > 0) {
        TT_FOR_ACTIVATIONS(y.type, tt_wide(x, y), tt_launch_gather, device, x, index, y);
    }
}

template <typename T, int W>
static void tt_launch_scatter(tt_device *device, tt_matrix dy, const int32_t *index, tt_matrix dx)
{
    int64_t kept = tt_ceil_div(tt_sorting_numbers(dy.rows, 1), 64) * 64;
    tt_sorting sorting = tt_sort(device, &index, 1, dy.rows, tt_cuda(device)->scratch);
    tt_run_operands<T, T> operands = {
        {{sorting.sorted_keys, sorting.order, tt_rows_of<T>(dx)}, {}, {}},
        tt_rows_of<const T>(dy),
        nullptr,
        dy.rows,
        0,
        0,
        0,
        0};
    tt_launch_runs<T, T, W>(device, operands, 1, dy.columns, kept);
}

void tt_cuda_scatter_rows(tt_device *device, tt_matrix dy, const int32_t *index, tt_matrix dx)
{
    assert(dx.columns == dy.columns && dx.type == dy.type);
    if (dy.rows > 0) {
        bool wide = tt_wide(dy, dx);
        TT_FOR_ACTIVATIONS(dy.type, wide, tt_launch_scatter, device, dy, index, dx);
    }
}

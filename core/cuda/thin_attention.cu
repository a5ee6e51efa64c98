/* Attention in the space of tensor-train ranks. A block of threads holds a tile of queries and
 * walks through a group of heads: it makes the head's queries U^_q M in shared memory, attends to
 * U^_k and U^_v, which all heads share, and adds the result, times N, to its rows of U_o. Groups of
 * heads, of which there are as many as fill the device, are added in a second kernel.
 *
 * Floor of the forward pass, a token: heads * (2 r^2 + 2 sequence r) multiplications and 4 r
 * activations moved, which at 128 positions and rank 30 is 1,300 operations a number moved with 16
 * heads: tensor cores are the bound, and in practice the exponentials, heads * sequence a token.
 * Backward has 2.5 times the operations. This one takes some 4 times, as two passes each form the
 * probabilities (see attention.cu), and the first leaves for the second and for the gradients of
 * the maps what it has made of each head: queries, contexts and their gradients, 4 heads * r
 * activations a token, which stay in the second-level cache up to some 16,000 tokens. */
#include "core/cuda/attention.cuh"
#include "core/cuda/cuda_ops.h"
#include "core/cuda/thin_product.cuh"

/* Operands of the kernels. Every one has a column more than its rank, of ones or of what belongs to
 * them. `queries` to `d_contexts` are [tokens, heads * padded width] in the workspace. */
template <typename T> struct thin_operands {
    tt_operand<T> u_q, u_k, u_v, d_u_o;
    tt_operand<float> score_map, output_map;
    tt_operand<T> queries, d_queries, contexts, d_contexts;
    int width_q, width_k, width_v, rank_o; /* widths are ranks + 1 */
    float *partials;                       /* [groups, tokens, partial columns] */
    int64_t tokens;
    int partial_columns;
};

/* This group's rows of partial results. */
template <typename T>
static __device__ inline float *partial_row(const thin_operands<T> &operands, int64_t token)
{
    return operands.partials + (blockIdx.y * operands.tokens + token) * operands.partial_columns;
}

/* The rows of a band that are rows of the sequence, to partial results. */
template <typename T, int W>
static __device__ inline void write_partial(const tt_attention_room<T, W> &room,
                                            tt_band<T, W> &band, float *to, int stride, int columns,
                                            int rows)
{
    tt_band_each(band, room.places, tt_round_up(columns, TT_BAND),
                 [&](int, int row, int column, float &x) {
                     if (room.band + row < rows && column < columns) {
                         to[(room.band + row) * stride + column] = x;
                     }
                 });
}

/* A band that this thread has written there, or zeros. Results of the heads of a group are added up
 * in this way, so that a head's own sums have the registers. */
template <typename T, int W>
static __device__ inline void read_partial(const tt_attention_room<T, W> &room, tt_band<T, W> &band,
                                           bool written, const float *from, int stride, int columns,
                                           int rows)
{
    tt_band_clear(band);
    tt_band_each(band, room.places, tt_round_up(columns, TT_BAND),
                 [&](int, int row, int column, float &x) {
                     if (written && room.band + row < rows && column < columns) {
                         x = from[(room.band + row) * stride + column];
                     }
                 });
}

/* This warp's rows of what a head has in an operand of the workspace. */
template <typename T, int W>
static __device__ inline T *head_rows(const tt_attention_room<T, W> &room,
                                      const tt_operand<T> &operand, int token, int head)
{
    return const_cast<T *>(operand.data) + (token + room.band) * operand.stride +
           head * operand.step;
}

/* The warp's band of a tile, to the workspace. */
template <typename T, int W>
static __device__ inline void write_tile(const tt_attention_room<T, W> &room, const T *tile,
                                         const tt_operand<T> &operand, int token, int head,
                                         int rows)
{
    constexpr int LD = tt_attention_room<T, W>::LD;
    int left = rows - room.band < TT_BAND ? rows - room.band : TT_BAND;
    tt_tile_write(head_rows(room, operand, token, head), operand.stride, tile + room.band * LD, LD,
                  left, operand.width);
}

/* A band to the workspace, through the tile of probabilities. */
template <typename T, int W>
static __device__ inline void write_band(const tt_attention_room<T, W> &room, tt_band<T, W> &band,
                                         const tt_operand<T> &operand, int token, int head,
                                         int rows)
{
    constexpr int EDGE = tt_attention_room<T, W>::EDGE, LD_P = tt_attention_room<T, W>::LD_P;
    T *to = head_rows(room, operand, token, head);
    int left = rows - room.band < TT_BAND ? rows - room.band : TT_BAND;
#pragma unroll
    for (int first = 0; first < W; first += EDGE) {
#pragma unroll
        for (int j = first; j < first + EDGE && j < W; j += TT_BAND) {
#pragma unroll
            for (int i = 0; i < TT_PART; i++) {
                tt_store(room.p + room.places.row(i) * LD_P + j - first + room.places.column(i),
                         band.at(j / TT_BAND, i));
            }
        }
        __syncwarp();
        int columns = operand.width - first < EDGE ? operand.width - first : EDGE;
        tt_tile_write(to + first, operand.stride, room.p, LD_P, left, columns);
        __syncwarp();
    }
}

/* The queries of a head, U^_q M, for the block's rows; also into room.q. */
template <typename T, int W>
static __device__ inline void make_queries(const tt_attention_room<T, W> &room,
                                           const thin_operands<T> &operands, int token, int end,
                                           int head, tt_band<T, W> &queries)
{
    constexpr int LD = tt_attention_room<T, W>::LD;
    int live = tt_round_up(operands.width_k, TT_BAND);
    __syncthreads();
    tt_tile_load(room.v, LD, room.EDGE, tt_round_up(operands.width_q, TT_BAND), operands.u_q, token,
                 end, 0, 0);
    tt_band_clear(queries);
    tt_multiply_rows(queries, room.v + room.band * LD, LD, room.k, operands.score_map,
                     operands.width_q, head, live);
    tt_band_store(room.q + room.band * LD, LD, queries, room.places, live);
    __syncwarp();
}

template <typename T, int W>
__global__ void __launch_bounds__(tt_tile<T>::THREADS, W <= 32 ? 3 : 1)
    thin_attention_forward(tt_attention_frame frame, thin_operands<T> operands)
{
    typedef tt_attention_room<T, W> room_type;
    constexpr int LD = room_type::LD;
    TT_SHARED_ARRAY(unsigned char, memory);
    room_type room(memory, 3, frame);
    int query = (int)blockIdx.x * room_type::EDGE, head = (int)blockIdx.y * frame.group;
    int end_head = head + frame.group < frame.heads ? head + frame.group : frame.heads;
    int entry = (int)blockIdx.z, token = entry * frame.sequence + query;
    int end = (entry + 1) * frame.sequence;
    int live_v = tt_round_up(operands.width_v, TT_BAND), rows = frame.sequence - query;
    float *output = partial_row(operands, token);
    for (int first = head; head < end_head; head++) {
        tt_band<T, W> band;
        make_queries(room, operands, token, end, head, band);
        tt_attention_forward_head(room, frame, operands.u_k, operands.u_v,
                                  tt_round_up(operands.width_k, TT_BAND), live_v, entry, head,
                                  query, band);
        tt_band_store(room.q + room.band * LD, LD, band, room.places, live_v);
        read_partial(room, band, head > first, output, operands.partial_columns, operands.rank_o,
                     rows);
        tt_multiply_rows(band, room.q + room.band * LD, LD, room.k, operands.output_map,
                         operands.width_v, head, tt_round_up(operands.rank_o, TT_BAND));
        write_partial(room, band, output, operands.partial_columns, operands.rank_o, rows);
    }
}

/* Gradients of the queries: d_U_q, and what the workspace keeps of each head. */
template <typename T, int W>
__global__ void __launch_bounds__(tt_tile<T>::THREADS, 1)
    thin_attention_d_queries(tt_attention_frame frame, thin_operands<T> operands)
{
    typedef tt_attention_room<T, W> room_type;
    constexpr int LD = room_type::LD, EDGE = room_type::EDGE;
    TT_SHARED_ARRAY(unsigned char, memory);
    room_type room(memory, 4, frame);
    int query = (int)blockIdx.x * EDGE, head = (int)blockIdx.y * frame.group;
    int end_head = head + frame.group < frame.heads ? head + frame.group : frame.heads;
    int entry = (int)blockIdx.z, token = entry * frame.sequence + query;
    int end = (entry + 1) * frame.sequence;
    int live_k = tt_round_up(operands.width_k, TT_BAND), rows = frame.sequence - query;
    int live_v = tt_round_up(operands.width_v, TT_BAND);
    float *output = partial_row(operands, token);
    for (int first = head; head < end_head; head++) {
        tt_band<T, W> band;
        make_queries(room, operands, token, end, head, band);
        write_tile(room, room.q, operands.queries, token, head, rows);
        __syncthreads();
        tt_tile_load(room.v, LD, EDGE, tt_round_up(operands.rank_o, TT_BAND), operands.d_u_o, token,
                     end, 0, 0);
        tt_band_clear(band);
        tt_multiply_transposed(band, room.v + room.band * LD, LD, room.k, operands.output_map,
                               operands.width_v, head);
        tt_band_store(room.d + room.band * LD, LD, band, room.places, live_v);
        __syncwarp();
        write_tile(room, room.d, operands.d_contexts, token, head, rows);
        tt_attention_context_again(room, frame, operands.u_k, operands.u_v, live_k, live_v, entry,
                                   head, query, band);
        write_band(room, band, operands.contexts, token, head, rows);
        tt_attention_d_queries(room, frame, operands.u_k, operands.u_v, live_k, live_v, entry, head,
                               query, band);
        tt_band_store(room.q + room.band * LD, LD, band, room.places, live_k);
        __syncwarp();
        write_tile(room, room.q, operands.d_queries, token, head, rows);
        read_partial(room, band, head > first, output, operands.partial_columns,
                     operands.width_q - 1, rows);
        tt_multiply_transposed(band, room.q + room.band * LD, LD, room.k, operands.score_map,
                               operands.width_q, head);
        write_partial(room, band, output, operands.partial_columns, operands.width_q - 1, rows);
    }
}

/* d_U_k and d_U_v, from all queries of a group of heads. */
template <typename T, int W>
__global__ void __launch_bounds__(tt_tile<T>::THREADS, W <= 32 ? 3 : 1)
    thin_attention_d_keys(tt_attention_frame frame, thin_operands<T> operands)
{
    typedef tt_attention_room<T, W> room_type;
    TT_SHARED_ARRAY(unsigned char, memory);
    room_type room(memory, 4, frame);
    int key = (int)blockIdx.x * room_type::EDGE, head = (int)blockIdx.y * frame.group;
    int end_head = head + frame.group < frame.heads ? head + frame.group : frame.heads;
    int entry = (int)blockIdx.z, token = entry * frame.sequence + key;
    int rows = frame.sequence - key, rank_q = operands.width_q - 1, rank_k = operands.width_k - 1;
    tt_band<T, W> k_sums, v_sums;
    tt_attention_keys_heads(room, frame, operands.queries, operands.u_k, operands.u_v,
                            operands.d_contexts, tt_round_up(operands.width_k, TT_BAND),
                            tt_round_up(operands.width_v, TT_BAND), entry, head, end_head, key,
                            k_sums, v_sums);
    float *to = partial_row(operands, token);
    write_partial(room, k_sums, to + rank_q, operands.partial_columns, rank_k, rows);
    write_partial(room, v_sums, to + rank_q + rank_k, operands.partial_columns,
                  operands.width_v - 1, rows);
}

/* --- the host's side ------------------------------------------------------------------------- */

/* What the sizes of an operation lead to: groups of heads, ranges of tokens for the gradients of
 * the maps, and the workspace, its places in bytes. */
typedef struct {
    int64_t tokens, heads, width_q, width_k, width_v, rank_o;
    int64_t padded_k, padded_v; /* columns of a head in the workspace */
    int groups, group;          /* how many, and heads of one */
    int score_ranges, output_ranges;
    size_t delta, partials, queries, d_queries, contexts, d_contexts, score_partials,
        output_partials, bytes;
} thin_plan;

static size_t piece(size_t *used, int64_t count, size_t size)
{
    size_t place = *used;
    *used += ((size_t)count * size + 255) / 256 * 256;
    return place;
}

static void plan_workspace(thin_plan *plan, int64_t sequence_rows, size_t size)
{
    int64_t columns = plan->width_q + plan->width_k + plan->width_v - 3;
    columns = columns < plan->rank_o ? plan->rank_o : columns;
    int64_t all_k = plan->tokens * plan->heads * plan->padded_k;
    int64_t all_v = plan->tokens * plan->heads * plan->padded_v;
    plan->delta = piece(&plan->bytes, sequence_rows, sizeof(float));
    plan->partials = piece(&plan->bytes, plan->groups * plan->tokens * columns, sizeof(float));
    plan->queries = piece(&plan->bytes, all_k, size);
    plan->d_queries = piece(&plan->bytes, all_k, size);
    plan->contexts = piece(&plan->bytes, all_v, size);
    plan->d_contexts = piece(&plan->bytes, all_v, size);
    plan->score_partials =
        piece(&plan->bytes, plan->score_ranges * plan->width_q * plan->heads * plan->width_k,
              sizeof(float));
    plan->output_partials =
        piece(&plan->bytes, plan->output_ranges * plan->heads * plan->width_v * plan->rank_o,
              sizeof(float));
}

static thin_plan plan_of(const tt_device *device, const tt_thin_attention *attention)
{
    bool bf16 = attention->u.type == TT_BF16;
    int64_t edge = bf16 ? tt_tile<__nv_bfloat16>::EDGE : tt_tile<float>::EDGE;
    int64_t blocks = attention->batch * tt_ceil_div(attention->sequence, edge);
    int64_t heads = attention->heads;
    int64_t groups = tt_ceil_div(4 * (int64_t)tt_cuda(device)->multiprocessors, blocks);
    groups = groups < heads ? groups : heads;
    thin_plan plan = {};
    plan.tokens = attention->batch * attention->sequence;
    plan.heads = heads;
    plan.width_q = attention->rank_q + 1;
    plan.width_k = attention->rank_k + 1;
    plan.width_v = attention->rank_v + 1;
    plan.rank_o = attention->rank_o;
    plan.padded_k = tt_round_up((int)plan.width_k, 8);
    plan.padded_v = tt_round_up((int)plan.width_v, 8);
    plan.group = (int)tt_ceil_div(heads, groups);
    plan.groups = (int)tt_ceil_div(heads, plan.group);
    plan.score_ranges = tt_token_ranges(device, plan.tokens, plan.width_q, plan.width_k, heads);
    plan.output_ranges = tt_token_ranges(device, plan.tokens, plan.width_v, plan.rank_o, heads);
    plan_workspace(&plan, plan.tokens * heads, bf16 ? sizeof(__nv_bfloat16) : sizeof(float));
    return plan;
}

size_t tt_cuda_thin_attention_workspace(tt_device *device, const tt_thin_attention *attention)
{
    return plan_of(device, attention).bytes;
}

static tt_attention_frame frame_of(const tt_thin_attention *attention, const thin_plan &plan)
{
    tt_attention_frame frame = {};
    frame.sequence = (int)attention->sequence;
    frame.heads = (int)attention->heads;
    frame.group = plan.group;
    frame.mask = attention->mask;
    frame.log_sum_exp = attention->log_sum_exp;
    frame.delta = reinterpret_cast<float *>(static_cast<char *>(attention->workspace) + plan.delta);
    frame.dropout = tt_dropout_site_of(&attention->dropout);
    return frame;
}

/* Columns of u, followed by ones. */
template <typename T>
static tt_operand<T> ranks_operand(const tt_thin_attention *attention, int64_t first, int64_t rank)
{
    tt_operand<T> operand = tt_operand_of<T>(attention->u, first, rank);
    operand.one = true;
    return tt_operand_ready(operand);
}

template <typename T>
static tt_operand<T> heads_operand(const tt_thin_attention *attention, size_t place, int64_t padded)
{
    void *memory = static_cast<char *>(attention->workspace) + place;
    tt_matrix matrix = {memory, attention->u.rows, attention->heads * padded,
                        attention->heads * padded, attention->u.type};
    tt_operand<T> operand = tt_operand_of<T>(matrix, 0, padded);
    operand.step = padded;
    return tt_operand_ready(operand);
}

static tt_operand<float> map_operand(const float *map, int64_t stride, int64_t step, int64_t width)
{
    tt_operand<float> operand = {};
    operand.data = map;
    operand.stride = stride;
    operand.step = step;
    operand.scale = 1.0f;
    operand.width = (int)width;
    return tt_operand_ready(operand);
}

template <typename T>
static thin_operands<T> operands_of(const tt_thin_attention *attention, const thin_plan &plan,
                                    tt_matrix d_u_o)
{
    thin_operands<T> operands = {};
    int64_t rank_q = attention->rank_q, rank_k = attention->rank_k;
    operands.u_q = ranks_operand<T>(attention, 0, rank_q);
    operands.u_k = ranks_operand<T>(attention, rank_q, rank_k);
    operands.u_v = ranks_operand<T>(attention, rank_q + rank_k, attention->rank_v);
    operands.d_u_o = tt_operand_ready(tt_operand_of<T>(d_u_o, 0, plan.rank_o));
    operands.score_map =
        map_operand(attention->score_map, plan.heads * plan.width_k, plan.width_k, plan.width_k);
    operands.output_map =
        map_operand(attention->output_map, plan.rank_o, plan.width_v * plan.rank_o, plan.rank_o);
    operands.queries = heads_operand<T>(attention, plan.queries, plan.padded_k);
    operands.d_queries = heads_operand<T>(attention, plan.d_queries, plan.padded_k);
    operands.contexts = heads_operand<T>(attention, plan.contexts, plan.padded_v);
    operands.d_contexts = heads_operand<T>(attention, plan.d_contexts, plan.padded_v);
    operands.width_q = (int)plan.width_q;
    operands.width_k = (int)plan.width_k;
    operands.width_v = (int)plan.width_v;
    operands.rank_o = (int)plan.rank_o;
    operands.partials =
        reinterpret_cast<float *>(static_cast<char *>(attention->workspace) + plan.partials);
    operands.tokens = plan.tokens;
    return operands;
}

template <typename T> static dim3 grid_of(const tt_thin_attention *attention, const thin_plan &plan)
{
    return dim3((unsigned)tt_ceil_div(attention->sequence, tt_tile<T>::EDGE), (unsigned)plan.groups,
                (unsigned)attention->batch);
}

template <typename T, int W>
static void forward(tt_device *device, const tt_thin_attention *attention, tt_matrix u_o)
{
    thin_plan plan = plan_of(device, attention);
    thin_operands<T> operands = operands_of<T>(attention, plan, {});
    operands.partial_columns = (int)plan.rank_o;
    auto kernel = thin_attention_forward<T, W>;
    size_t bytes = tt_attention_room<T, W>::forward_bytes;
    if (tt_shared_memory(device, kernel, bytes)) {
        TT_LAUNCH(device, grid_of<T>(attention, plan), tt_tile<T>::THREADS, bytes, kernel,
                  frame_of(attention, plan), operands);
        tt_add_up<T, false>(device, operands.partials, plan.groups, plan.tokens, plan.rank_o,
                            static_cast<T *>(u_o.data), u_o.stride, 1);
    }
}

/* += on the gradients of both maps, from what the workspace has of each head. */
template <typename T>
static void add_map_gradients(tt_device *device, const tt_thin_attention *attention,
                              const thin_plan &plan, const thin_operands<T> &operands)
{
    char *workspace = static_cast<char *>(attention->workspace);
    float *score_partials = reinterpret_cast<float *>(workspace + plan.score_partials);
    float *output_partials = reinterpret_cast<float *>(workspace + plan.output_partials);
    int64_t all_k = plan.heads * plan.width_k, head_v = plan.width_v * plan.rank_o;
    tt_token_product score = {};
    score.tokens = (int)plan.tokens;
    score.rows = operands.width_q;
    score.columns = operands.width_k;
    score.all = plan.width_q * all_k;
    score.row = all_k;
    score.head = plan.width_k;
    tt_token_multiply(device, score, (int)plan.heads, plan.score_ranges, operands.u_q,
                      operands.d_queries, score_partials);
    tt_token_product output = {};
    output.tokens = (int)plan.tokens;
    output.rows = operands.width_v;
    output.columns = operands.rank_o;
    output.all = plan.heads * head_v;
    output.row = plan.rank_o;
    output.head = head_v;
    tt_token_multiply(device, output, (int)plan.heads, plan.output_ranges, operands.contexts,
                      operands.d_u_o, output_partials);
    tt_add_up<float, true>(device, score_partials, plan.score_ranges, 1, score.all,
                           attention->score_map_gradient, 0, 1);
    tt_add_up<float, true>(device, output_partials, plan.output_ranges, 1, output.all,
                           attention->output_map_gradient, 0, 1);
}

template <typename T, int W>
static void backward(tt_device *device, const tt_thin_attention *attention, tt_matrix d_u_o,
                     tt_matrix d_u)
{
    thin_plan plan = plan_of(device, attention);
    thin_operands<T> operands = operands_of<T>(attention, plan, d_u_o);
    operands.partial_columns = (int)d_u.columns;
    tt_attention_frame frame = frame_of(attention, plan);
    auto queries = thin_attention_d_queries<T, W>;
    auto keys = thin_attention_d_keys<T, W>;
    size_t bytes = tt_attention_room<T, W>::backward_bytes;
    if (tt_shared_memory(device, queries, bytes) && tt_shared_memory(device, keys, bytes)) {
        dim3 grid = grid_of<T>(attention, plan);
        TT_LAUNCH(device, grid, tt_tile<T>::THREADS, bytes, queries, frame, operands);
        TT_LAUNCH(device, grid, tt_tile<T>::THREADS, bytes, keys, frame, operands);
        tt_add_up<T, false>(device, operands.partials, plan.groups, plan.tokens, d_u.columns,
                            static_cast<T *>(d_u.data), d_u.stride, 1);
        add_map_gradients(device, attention, plan, operands);
    }
}

/* function<T, W>(...) for the type of activations and the narrowest tile that holds all widths. */
#define FOR_WIDTHS(attention, function, ...)                                                       \
    do {                                                                                           \
        int64_t width = largest_width(attention);                                                  \
        if (width > TT_CUDA_LARGEST_THIN_RANK + 1) {                                               \
            tt_cuda_refuse(device, "thin attention of rank %lld, the kernels take %d",             \
                           (long long)(width - 1), TT_CUDA_LARGEST_THIN_RANK);                     \
            break;                                                                                 \
        }                                                                                          \
        if ((attention)->u.type == TT_BF16) {                                                      \
            if (width <= 32) {                                                                     \
                function<__nv_bfloat16, 32>(__VA_ARGS__);                                          \
            } else if (width <= 64) {                                                              \
                function<__nv_bfloat16, 64>(__VA_ARGS__);                                          \
            } else {                                                                               \
                function<__nv_bfloat16, 144>(__VA_ARGS__);                                         \
            }                                                                                      \
        } else if (width <= 64) {                                                                  \
            function<float, 64>(__VA_ARGS__);                                                      \
        } else {                                                                                   \
            function<float, 144>(__VA_ARGS__);                                                     \
        }                                                                                          \
    } while (0)

static int64_t largest_width(const tt_thin_attention *attention)
{
    int64_t widths[] = {attention->rank_q + 1, attention->rank_k + 1, attention->rank_v + 1,
                        attention->rank_o};
    int64_t largest = 0;
    for (int64_t width : widths) {
        largest = width > largest ? width : largest;
    }
    return largest;
}

void tt_cuda_thin_attention_forward(tt_device *device, const tt_thin_attention *attention,
                                    tt_matrix u_o)
{
    FOR_WIDTHS(attention, forward, device, attention, u_o);
}

void tt_cuda_thin_attention_backward(tt_device *device, const tt_thin_attention *attention,
                                     tt_matrix d_u_o, tt_matrix d_u)
{
    FOR_WIDTHS(attention, backward, device, attention, d_u_o, d_u);
}

/* What the kernels of both forms of attention are made of. A head has q and k [sequence, width] and
 * v [sequence, value width]; a block of threads holds EDGE queries (or keys, in the pass that makes
 * the gradients of keys and values) and walks through the others by tiles of EDGE, each of its
 * warps holding a band of 16 rows. Scores are in registers, probabilities pass through a tile of
 * shared memory as an operand of the next product; neither is ever written to device memory. */
#ifndef TT_CORE_CUDA_ATTENTION_CUH
#define TT_CORE_CUDA_ATTENTION_CUH

#include "core/cuda/dropout.cuh"
#include "core/cuda/tile.cuh"

#include <math.h>

/* A largest score so far that any score of a key exceeds. */
#define TT_ATTENTION_FLOOR (-1e30f)

typedef struct {
    int sequence, heads;
    int group; /* heads that one block walks through, from blockIdx.y * group on */
    const uint8_t *mask;
    float *log_sum_exp; /* [batch, heads, sequence] */
    float *delta;       /* the same shape: sum over the keys of probability * its gradient */
    tt_dropout_site dropout;
} tt_attention_frame;

/* The shared memory of a block, and this thread's place in it. */
template <typename T, int W> struct tt_attention_room {
    static constexpr int EDGE = tt_tile<T>::EDGE, WARPS = tt_tile<T>::WARPS;
    static constexpr int LD = W + tt_tile<T>::PAD, LD_P = EDGE + tt_tile<T>::PAD;
    static constexpr int KEEP = 32; /* words a warp */
    static constexpr int STEP = 32; /* columns of scores in registers at a time, backward */

    T *q, *d, *k, *v;      /* tiles [EDGE, W]; d is d_context */
    T *p;                  /* this warp's band of the tile of probabilities [EDGE, EDGE] */
    float *scratch;        /* this warp's */
    float *first, *second; /* a number for each row of the block, or each row of the tile met */
    float *key_bias;       /* a key's: 0, or what makes its probability 0 */
    uint32_t *keep;        /* this warp's dropout decisions */
    tt_places<T> places;
    int band;      /* first row of this warp's band */
    uint32_t step; /* of dropout */

    static constexpr size_t tile_bytes(int tiles)
    {
        return (size_t)(tiles * EDGE * LD + EDGE * LD_P) * sizeof(T) +
               (size_t)(WARPS * (TT_SCRATCH + KEEP) + 3 * EDGE) * sizeof(float);
    }
    static constexpr size_t forward_bytes = tile_bytes(3), backward_bytes = tile_bytes(4);

    __device__ tt_attention_room(unsigned char *memory, int tiles, const tt_attention_frame &frame)
    {
        step = tt_dropout_step(frame.dropout);
        q = reinterpret_cast<T *>(memory);
        k = q + EDGE * LD;
        v = k + EDGE * LD;
        d = v + EDGE * LD;
        band = tt_warp() * TT_BAND;
        T *all_p = q + tiles * EDGE * LD;
        p = all_p + band * LD_P;
        float *numbers = reinterpret_cast<float *>(all_p + EDGE * LD_P);
        scratch = numbers + tt_warp() * TT_SCRATCH;
        numbers += WARPS * TT_SCRATCH;
        first = numbers;
        second = first + EDGE;
        key_bias = second + EDGE;
        keep = reinterpret_cast<uint32_t *>(key_bias + EDGE) + tt_warp() * KEEP;
        tt_find_places(scratch, &places);
    }
};

/* Fills key_bias for the keys from first_key on; all threads of the block. */
template <typename T, int W>
static __device__ inline void tt_attention_load_mask(const tt_attention_room<T, W> &room,
                                                     const tt_attention_frame &frame, int entry,
                                                     int first_key)
{
    for (int j = (int)threadIdx.x; j < room.EDGE; j += (int)blockDim.x) {
        int key = first_key + j;
        bool there = key < frame.sequence && frame.mask[(int64_t)entry * frame.sequence + key];
        room.key_bias[j] = there ? 0.0f : -INFINITY;
    }
}

/* The row of the first query of a head in log_sum_exp, delta and dropout. */
static __device__ inline int64_t tt_attention_row(const tt_attention_frame &frame, int entry,
                                                  int head)
{
    return ((int64_t)entry * frame.heads + head) * frame.sequence;
}

/* Bit i: whether column 8 block + i of a row is kept. */
static __device__ inline uint32_t
tt_attention_keep_eight(const tt_dropout_site &site, uint32_t step, uint32_t row, uint32_t block)
{
    tt_random_block drawn = tt_dropout_draw(site, step, row, block);
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t word = drawn.word[i / 2];
        uint32_t number = i % 2 ? word >> 16 : word & 0xFFFFu;
        bits |= (number >= site.threshold ? 1u : 0u) << i;
    }
    return bits;
}

/* Dropout decisions of a band of queries for EDGE keys: bit c % 32 of word row * (EDGE / 32) +
 * c / 32. */
template <typename T, int W>
static __device__ inline void tt_attention_draw(const tt_attention_room<T, W> &room,
                                                const tt_attention_frame &frame, uint32_t first_row,
                                                int first_key)
{
    constexpr int WORDS = tt_attention_room<T, W>::EDGE / 32;
    if (frame.dropout.threshold == 0) {
        return;
    }
    for (int e = tt_lane(); e < TT_BAND * WORDS; e += 32) {
        uint32_t row = first_row + (uint32_t)(e / WORDS);
        uint32_t block = (uint32_t)(first_key / 8 + e % WORDS * 4);
        uint32_t word = 0;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            word |= tt_attention_keep_eight(frame.dropout, room.step, row, block + i) << (8 * i);
        }
        room.keep[e] = word;
    }
    __syncwarp();
}

/* The multiplier of an element for which tt_attention_draw has drawn. */
template <typename T, int W>
static __device__ inline float tt_attention_multiplier(const tt_attention_room<T, W> &room,
                                                       const tt_attention_frame &frame, int row,
                                                       int column)
{
    if (frame.dropout.threshold == 0) {
        return 1.0f;
    }
    constexpr int WORDS = tt_attention_room<T, W>::EDGE / 32;
    uint32_t word = room.keep[row * WORDS + column / 32];
    return word >> (column % 32) & 1 ? frame.dropout.scale : 0.0f;
}

/* From scores (without key_bias) of one tile of keys: probabilities relative to the largest score
 * so far, with dropout, into room.p; room.first holds the largest score of each row so far. `sums`
 * gathers the sums of probabilities; both it and `context` are brought to the new largest score. */
template <typename T, int W>
static __device__ inline void
tt_attention_softmax(const tt_attention_room<T, W> &room, const tt_attention_frame &frame,
                     tt_band<T, tt_attention_room<T, W>::EDGE> &scores, int value_columns,
                     float (&sums)[TT_PART], tt_band<T, W> &context)
{
    constexpr int EDGE = tt_attention_room<T, W>::EDGE, LD_P = tt_attention_room<T, W>::LD_P;
    float *largest = room.first + room.band, *factor = room.second + room.band;
    float mine[TT_PART];
#pragma unroll
    for (int i = 0; i < TT_PART; i++) {
        mine[i] = TT_ATTENTION_FLOOR;
    }
    tt_band_each(scores, room.places, EDGE, [&](int i, int, int column, float &x) {
        x += room.key_bias[column];
        mine[i] = fmaxf(mine[i], x);
    });
    float top = tt_rows_reduce<true>(mine, room.places, room.scratch);
    if (tt_lane() % 2 == 0) {
        int row = tt_lane() / 2;
        float before = largest[row], now = fmaxf(before, top);
        largest[row] = now;
        factor[row] = expf(before - now);
    }
    __syncwarp();
    tt_rows_get(factor, room.places, mine);
#pragma unroll
    for (int i = 0; i < TT_PART; i++) {
        sums[i] *= mine[i];
    }
    tt_band_each(context, room.places, value_columns,
                 [&](int i, int, int, float &x) { x *= mine[i]; });
    tt_rows_get(largest, room.places, mine);
    tt_band_each(scores, room.places, EDGE, [&](int i, int row, int column, float &x) {
        float probability = expf(x - mine[i]);
        sums[i] += probability;
        tt_store(room.p + row * LD_P + column,
                 probability * tt_attention_multiplier(room, frame, row, column));
    });
    __syncwarp();
}

/* context = dropout(softmax(q k^T + mask)) v for the block's queries, whose tile room.q is loaded;
 * writes log_sum_exp. `depth` and `value_columns` are the widths, rounded up to 16. */
template <typename T, int W>
static __device__ inline void
tt_attention_forward_head(const tt_attention_room<T, W> &room, const tt_attention_frame &frame,
                          const tt_operand<T> &k, const tt_operand<T> &v, int depth,
                          int value_columns, int entry, int head, int first_query,
                          tt_band<T, W> &context)
{
    constexpr int EDGE = tt_attention_room<T, W>::EDGE, LD = tt_attention_room<T, W>::LD;
    int first_token = entry * frame.sequence, end_token = first_token + frame.sequence;
    int64_t row = tt_attention_row(frame, entry, head) + first_query + room.band;
    float *largest = room.first + room.band, *factor = room.second + room.band;
    float sums[TT_PART] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    tt_band_clear(context);
    if (tt_lane() < TT_BAND) {
        largest[tt_lane()] = TT_ATTENTION_FLOOR;
    }
    for (int key = 0; key < frame.sequence; key += EDGE) {
        __syncthreads();
        tt_tile_load(room.k, LD, EDGE, depth, k, first_token + key, end_token, 0, head);
        tt_tile_load(room.v, LD, EDGE, value_columns, v, first_token + key, end_token, 0, head);
        tt_attention_load_mask(room, frame, entry, key);
        __syncthreads();
        tt_band<T, EDGE> scores;
        tt_band_clear(scores);
        tt_band_multiply<false, true>(scores, room.q + room.band * LD, LD, room.k, LD, depth, EDGE);
        tt_attention_draw(room, frame, (uint32_t)row, key);
        tt_attention_softmax(room, frame, scores, value_columns, sums, context);
        tt_band_multiply<false, false>(context, room.p, room.LD_P, room.v, LD, EDGE, value_columns);
        __syncwarp();
    }
    float sum = tt_rows_reduce<false>(sums, room.places, room.scratch);
    if (tt_lane() % 2 == 0) {
        int i = tt_lane() / 2;
        factor[i] = sum > 0.0f ? 1.0f / sum : 0.0f;
        if (first_query + room.band + i < frame.sequence) {
            frame.log_sum_exp[row + i] = sum > 0.0f ? largest[i] + logf(sum) : 0.0f;
        }
    }
    __syncwarp();
    tt_rows_get(factor, room.places, sums);
    tt_band_each(context, room.places, value_columns,
                 [&](int i, int, int, float &x) { x *= sums[i]; });
}

/* --- backward -------------------------------------------------------------------------------- */

/* Scores become probabilities, log_sum_exp of the rows being known; the tile of keys is loaded. */
template <typename T, int W>
static __device__ inline void
tt_attention_probabilities(const tt_attention_room<T, W> &room, const float (&log_sum)[TT_PART],
                           tt_band<T, tt_attention_room<T, W>::EDGE> &scores)
{
    tt_band_each(scores, room.places, tt_attention_room<T, W>::EDGE,
                 [&](int i, int, int column, float &x) {
                     x = expf(x + room.key_bias[column] - log_sum[i]);
                 });
}

/* For the block's queries, whose tiles room.q and room.d are loaded: the context again, and delta,
 * the sum over a row's columns of context * d_context, into frame.delta and room.second; room.first
 * gets log_sum_exp. */
template <typename T, int W>
static __device__ inline void
tt_attention_context_again(const tt_attention_room<T, W> &room, const tt_attention_frame &frame,
                           const tt_operand<T> &k, const tt_operand<T> &v, int depth,
                           int value_columns, int entry, int head, int first_query,
                           tt_band<T, W> &context)
{
    constexpr int EDGE = tt_attention_room<T, W>::EDGE, LD = tt_attention_room<T, W>::LD;
    constexpr int LD_P = tt_attention_room<T, W>::LD_P;
    int first_token = entry * frame.sequence, end_token = first_token + frame.sequence;
    int64_t row = tt_attention_row(frame, entry, head) + first_query + room.band;
    float log_sum[TT_PART], gathered[TT_PART] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    if (tt_lane() < TT_BAND) {
        bool there = first_query + room.band + tt_lane() < frame.sequence;
        room.first[room.band + tt_lane()] = there ? frame.log_sum_exp[row + tt_lane()] : INFINITY;
    }
    __syncwarp();
    tt_rows_get(room.first + room.band, room.places, log_sum);
    tt_band_clear(context);
    for (int key = 0; key < frame.sequence; key += EDGE) {
        __syncthreads();
        tt_tile_load(room.k, LD, EDGE, depth, k, first_token + key, end_token, 0, head);
        tt_tile_load(room.v, LD, EDGE, value_columns, v, first_token + key, end_token, 0, head);
        tt_attention_load_mask(room, frame, entry, key);
        __syncthreads();
        tt_band<T, EDGE> scores;
        tt_band_clear(scores);
        tt_band_multiply<false, true>(scores, room.q + room.band * LD, LD, room.k, LD, depth, EDGE);
        tt_attention_draw(room, frame, (uint32_t)row, key);
        tt_attention_probabilities(room, log_sum, scores);
        tt_band_each(scores, room.places, EDGE, [&](int, int i, int column, float &x) {
            tt_store(room.p + i * LD_P + column,
                     x * tt_attention_multiplier(room, frame, i, column));
        });
        __syncwarp();
        tt_band_multiply<false, false>(context, room.p, LD_P, room.v, LD, EDGE, value_columns);
        __syncwarp();
    }
    const T *d = room.d + room.band * LD;
    tt_band_each(context, room.places, value_columns, [&](int i, int at, int column, float &x) {
        gathered[i] = fmaf(x, tt_load(d + at * LD + column), gathered[i]);
    });
    float delta = tt_rows_reduce<false>(gathered, room.places, room.scratch);
    if (tt_lane() % 2 == 0) {
        int i = tt_lane() / 2;
        room.second[room.band + i] = delta;
        if (first_query + room.band + i < frame.sequence) {
            frame.delta[row + i] = delta;
        }
    }
    __syncwarp();
}

/* Adds to dq what STEP keys from `key` on of the tiles room.k and room.v give. */
template <int STEP, typename T, int W>
static __device__ inline void
tt_attention_d_queries_step(const tt_attention_room<T, W> &room, const tt_attention_frame &frame,
                            int key, int depth, int value_columns, tt_band<T, W> &dq)
{
    constexpr int LD = tt_attention_room<T, W>::LD, LD_P = tt_attention_room<T, W>::LD_P;
    const T *k = room.k + key * LD, *v = room.v + key * LD;
    float log_sum[TT_PART], delta[TT_PART];
    tt_rows_get(room.first + room.band, room.places, log_sum);
    tt_rows_get(room.second + room.band, room.places, delta);
    tt_band<T, STEP> scores, d_scores;
    tt_band_clear(scores);
    tt_band_clear(d_scores);
    tt_band_multiply<false, true>(scores, room.q + room.band * LD, LD, k, LD, depth, STEP);
    tt_band_multiply<false, true>(d_scores, room.d + room.band * LD, LD, v, LD, value_columns,
                                  STEP);
#pragma unroll
    for (int j = 0; j < STEP / TT_BAND; j++) {
#pragma unroll
        for (int i = 0; i < TT_PART; i++) {
            int row = room.places.row(i), column = j * TT_BAND + room.places.column(i);
            float probability = expf(scores.at(j, i) + room.key_bias[key + column] - log_sum[i]);
            float d = d_scores.at(j, i) * tt_attention_multiplier(room, frame, row, key + column);
            tt_store(room.p + row * LD_P + column, probability * (d - delta[i]));
        }
    }
    __syncwarp();
    tt_band_multiply<false, false>(dq, room.p, LD_P, k, LD, STEP, depth);
    __syncwarp();
}

/* dq (with respect to q as it lies in its tile) of the block's queries, after
 * tt_attention_context_again. */
template <typename T, int W>
static __device__ inline void
tt_attention_d_queries(const tt_attention_room<T, W> &room, const tt_attention_frame &frame,
                       const tt_operand<T> &k, const tt_operand<T> &v, int depth, int value_columns,
                       int entry, int head, int first_query, tt_band<T, W> &dq)
{
    constexpr int EDGE = tt_attention_room<T, W>::EDGE, LD = tt_attention_room<T, W>::LD;
    constexpr int STEP = tt_attention_room<T, W>::STEP;
    int first_token = entry * frame.sequence, end_token = first_token + frame.sequence;
    int64_t row = tt_attention_row(frame, entry, head) + first_query + room.band;
    tt_band_clear(dq);
    for (int key = 0; key < frame.sequence; key += EDGE) {
        if (frame.sequence > EDGE) { /* else the tiles are still there */
            __syncthreads();
            tt_tile_load(room.k, LD, EDGE, depth, k, first_token + key, end_token, 0, head);
            tt_tile_load(room.v, LD, EDGE, value_columns, v, first_token + key, end_token, 0, head);
            tt_attention_load_mask(room, frame, entry, key);
            __syncthreads();
        }
        tt_attention_draw(room, frame, (uint32_t)row, key);
        for (int step = 0; step < EDGE; step += STEP) {
            tt_attention_d_queries_step<STEP>(room, frame, step, depth, value_columns, dq);
        }
    }
}

/* Dropout decisions of a band of keys for EDGE queries: bit `key row` of half word `query`. */
template <typename T, int W>
static __device__ inline void tt_attention_draw_keys(const tt_attention_room<T, W> &room,
                                                     const tt_attention_frame &frame,
                                                     uint32_t first_row, int first_key)
{
    if (frame.dropout.threshold == 0) {
        return;
    }
    uint16_t *keep = reinterpret_cast<uint16_t *>(room.keep);
    for (int e = tt_lane(); e < room.EDGE; e += 32) {
        uint32_t row = first_row + (uint32_t)e;
        uint32_t block = (uint32_t)(first_key / 8);
        keep[e] =
            (uint16_t)(tt_attention_keep_eight(frame.dropout, room.step, row, block) |
                       tt_attention_keep_eight(frame.dropout, room.step, row, block + 1) << 8);
    }
    __syncwarp();
}

/* Adds to dk and dv of the block's keys, whose tiles room.k and room.v are loaded, what STEP
 * queries from `query` on of the tiles room.q and room.d give; room.first and room.second hold the
 * queries' log_sum_exp and delta. The mask is left to the end: rows of keys do not mix. */
template <int STEP, typename T, int W>
static __device__ inline void
tt_attention_d_keys(const tt_attention_room<T, W> &room, const tt_attention_frame &frame, int query,
                    int depth, int value_columns, tt_band<T, W> &dk, tt_band<T, W> &dv)
{
    constexpr int LD = tt_attention_room<T, W>::LD, LD_P = tt_attention_room<T, W>::LD_P;
    const uint16_t *keep = reinterpret_cast<const uint16_t *>(room.keep) + query;
    const float *log_sum = room.first + query, *delta = room.second + query;
    const T *q = room.q + query * LD, *d = room.d + query * LD;
    bool drops = frame.dropout.threshold != 0;
    tt_band<T, STEP> scores, d_scores;
    tt_band_clear(scores);
    tt_band_multiply<false, true>(scores, room.k + room.band * LD, LD, q, LD, depth, STEP);
    tt_band_each(scores, room.places, STEP, [&](int, int row, int column, float &x) {
        x = expf(x - log_sum[column]);
        bool kept = !drops || (keep[column] >> row & 1);
        tt_store(room.p + row * LD_P + column, kept ? x * frame.dropout.scale : 0.0f);
    });
    __syncwarp();
    tt_band_multiply<false, false>(dv, room.p, LD_P, d, LD, STEP, value_columns);
    tt_band_clear(d_scores);
    tt_band_multiply<false, true>(d_scores, room.v + room.band * LD, LD, d, LD, value_columns,
                                  STEP);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < STEP / TT_BAND; j++) {
#pragma unroll
        for (int i = 0; i < TT_PART; i++) {
            int row = room.places.row(i), column = j * TT_BAND + room.places.column(i);
            bool kept = !drops || (keep[column] >> row & 1);
            float gradient = kept ? d_scores.at(j, i) * frame.dropout.scale : 0.0f;
            tt_store(room.p + row * LD_P + column, scores.at(j, i) * (gradient - delta[column]));
        }
    }
    __syncwarp();
    tt_band_multiply<false, false>(dk, room.p, LD_P, q, LD, STEP, depth);
    __syncwarp();
}

/* Sets the rows of masked keys to 0, whatever they hold. */
template <typename T, int W>
static __device__ inline void tt_attention_clear_padding(const tt_attention_room<T, W> &room,
                                                         tt_band<T, W> &band, int columns)
{
    tt_band_each(band, room.places, columns, [&](int, int row, int, float &x) {
        x = room.key_bias[room.band + row] < 0.0f ? 0.0f : x;
    });
}

/* dk and dv of the block's keys from all queries of heads [head, end_head): with more than one
 * head, k and v are the same for all of them. */
template <typename T, int W>
static __device__ inline void
tt_attention_keys_heads(const tt_attention_room<T, W> &room, const tt_attention_frame &frame,
                        const tt_operand<T> &q, const tt_operand<T> &k, const tt_operand<T> &v,
                        const tt_operand<T> &d_context, int depth, int value_columns, int entry,
                        int head, int end_head, int first_key, tt_band<T, W> &dk, tt_band<T, W> &dv)
{
    constexpr int EDGE = tt_attention_room<T, W>::EDGE, LD = tt_attention_room<T, W>::LD;
    constexpr int STEP = tt_attention_room<T, W>::STEP;
    int first_token = entry * frame.sequence, end_token = first_token + frame.sequence;
    tt_band_clear(dk);
    tt_band_clear(dv);
    tt_tile_load(room.k, LD, EDGE, depth, k, first_token + first_key, end_token, 0, head);
    tt_tile_load(room.v, LD, EDGE, value_columns, v, first_token + first_key, end_token, 0, head);
    tt_attention_load_mask(room, frame, entry, first_key);
    for (; head < end_head; head++) {
        int64_t row = tt_attention_row(frame, entry, head);
        for (int query = 0; query < frame.sequence; query += EDGE) {
            __syncthreads();
            tt_tile_load(room.q, LD, EDGE, depth, q, first_token + query, end_token, 0, head);
            tt_tile_load(room.d, LD, EDGE, value_columns, d_context, first_token + query, end_token,
                         0, head);
            for (int j = (int)threadIdx.x; j < EDGE; j += (int)blockDim.x) {
                bool there = query + j < frame.sequence;
                room.first[j] = there ? frame.log_sum_exp[row + query + j] : INFINITY;
                room.second[j] = there ? frame.delta[row + query + j] : 0.0f;
            }
            tt_attention_draw_keys(room, frame, (uint32_t)row + (uint32_t)query,
                                   first_key + room.band);
            __syncthreads();
            for (int step = 0; step < EDGE; step += STEP) {
                tt_attention_d_keys<STEP>(room, frame, step, depth, value_columns, dk, dv);
            }
        }
    }
    tt_attention_clear_padding(room, dk, depth);
    tt_attention_clear_padding(room, dv, value_columns);
}

/* A band as rows [first_row + this warp's band, ...) of columns [column, column + columns) in
 * device memory, times `scale`; the warp's band of room.q serves as staging, `rows` are left. */
template <typename T, int W>
static __device__ inline void tt_attention_write(const tt_attention_room<T, W> &room,
                                                 tt_band<T, W> &band, int live, T *to,
                                                 int64_t stride, int columns, int rows, float scale)
{
    constexpr int LD = tt_attention_room<T, W>::LD;
    T *tile = room.q + room.band * LD;
    int left = rows - room.band < TT_BAND ? rows - room.band : TT_BAND;
    tt_band_each(band, room.places, live, [&](int, int row, int column, float &x) {
        tt_store(tile + row * LD + column, x * scale);
    });
    __syncwarp();
    tt_tile_write(to + room.band * stride, stride, tile, LD, left, columns);
    __syncwarp();
}

#endif

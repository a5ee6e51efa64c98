/* The gradient check, AdamW and LAMB as passes over the flat buffers of all parameters.
 *
 * Bytes that each must move, a number of the flat buffers: the check 4; AdamW 28 (value, gradient
 * and two moments read, all but the gradient written); LAMB 40, as the trust ratios need a pass
 * before the one that uses them: 24 to move the moments, then 16.
 *
 * A block has a tile of the flat buffers, whatever segments lie in it; a thread finds the segment
 * of its four numbers in the table, in which a tile knows its first. Sums of squares of a segment
 * are partial sums, one for each tile t that it touches: number t + s for segment s, which no other
 * pair has, and which lie together. */
#include "core/cuda/cuda_ops.h"
#include "core/cuda/reduce.cuh"
#include "core/parameters.h"

#include <float.h>

enum {
    TT_UPDATE_THREADS = 256,
    TT_GROUP = 4,  /* numbers that a thread loads at once */
    TT_GROUPS = 2, /* of a thread */
    TT_UPDATE_TILE = TT_UPDATE_THREADS * TT_GROUP * TT_GROUPS,
    TT_MOST_CHECK_BLOCKS = 1024
};

/* What the passes of one update share, written by its first kernel. */
typedef struct {
    float correction1, correction2; /* 1 / (1 - beta^t) */
    float factor;                   /* of clipping */
    float rate[TT_GROUP_COUNT];
    float least; /* what diagonal entries are held at, at least; -INFINITY where none is */
    int applies; /* 0 where a loss or gradient is not finite */
} tt_update_constants;

/* Where things lie in the workspace. */
typedef struct {
    tt_update_constants *constants;
    double *sums;           /* of the check: a block's; of LAMB: value and direction, by t + s */
    int32_t *first_segment; /* [tiles + 1]: the last segment that begins at or before a tile */
    float *ratio;           /* [segments]: trust ratios */
    size_t bytes;
} tt_update_places;

static int64_t tt_tiles(int64_t total)
{
    return tt_ceil_div(total, TT_UPDATE_TILE);
}

static tt_update_places tt_places(void *workspace, int64_t total, int count)
{
    const size_t line = 256;
    size_t sums = static_cast<size_t>(2 * (tt_tiles(total) + count));
    sums = sums > size_t{TT_MOST_CHECK_BLOCKS} ? sums : size_t{TT_MOST_CHECK_BLOCKS};
    size_t first_segment = line + sums * sizeof(double);
    size_t ratio = first_segment + static_cast<size_t>(tt_tiles(total) + 1) * sizeof(int32_t);
    char *memory = static_cast<char *>(workspace);
    if (memory == nullptr) {
        return {nullptr, nullptr, nullptr, nullptr,
                ratio + static_cast<size_t>(count) * sizeof(float)};
    }
    return {reinterpret_cast<tt_update_constants *>(memory),
            reinterpret_cast<double *>(memory + line),
            reinterpret_cast<int32_t *>(memory + first_segment),
            reinterpret_cast<float *>(memory + ratio),
            ratio + static_cast<size_t>(count) * sizeof(float)};
}

size_t tt_cuda_update_workspace(tt_device *device, const tt_segment *segments, int count)
{
    (void)device;
    int64_t end = 0;
    for (int s = 0; s < count; s++) {
        int64_t segment_end = segments[s].offset + segments[s].count;
        end = end > segment_end ? end : segment_end;
    }
    return tt_places(nullptr, end + TT_PARAMETER_ALIGNMENT, count).bytes;
}

/* --- gradient check -------------------------------------------------------------------------- */

template <typename NUMBER>
__global__ void __launch_bounds__(TT_UPDATE_THREADS)
    tt_square_sums(const NUMBER *gradients, int64_t total, double *sums)
{
    int64_t step = static_cast<int64_t>(gridDim.x) * TT_UPDATE_THREADS * TT_GROUP;
    int64_t first = (static_cast<int64_t>(blockIdx.x) * TT_UPDATE_THREADS + threadIdx.x) * TT_GROUP;
    double sum[1] = {0.0};
#pragma unroll 4
    for (int64_t i = first; i < total; i += step) {
        float4 g = *reinterpret_cast<const float4 *>(gradients + i);
        sum[0] += static_cast<double>(g.x) * g.x + static_cast<double>(g.y) * g.y;
        sum[0] += static_cast<double>(g.z) * g.z + static_cast<double>(g.w) * g.w;
    }
    tt_block_sum(sum);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum[0];
    }
}

template <typename NUMBER>
__global__ void __launch_bounds__(TT_UPDATE_THREADS)
    tt_check_sums(const double *sums, int blocks, const NUMBER *losses, int loss_count,
                  float clip_norm, tt_step_state *state)
{
    double sum[1] = {0.0};
    for (int block = static_cast<int>(threadIdx.x); block < blocks; block += TT_UPDATE_THREADS) {
        sum[0] += sums[block];
    }
    tt_block_sum(sum);
    if (threadIdx.x == 0) {
        bool finite = sum[0] <= DBL_MAX;
        for (int i = 0; i < loss_count; i++) {
            finite = finite && fabsf(losses[i]) <= FLT_MAX;
        }
        double norm = sqrt(sum[0]);
        bool clips = finite && clip_norm > 0.0f && norm > static_cast<double>(clip_norm);
        state->gradient_norm = static_cast<float>(norm);
        state->gradient_factor = clips ? static_cast<float>(clip_norm / norm) : 1.0f;
        state->finite = finite ? 1.0f : 0.0f;
    }
}

void tt_cuda_gradient_check(tt_device *device, const tt_update_rule *rule, const tt_update *update)
{
    assert(update->total % TT_GROUP == 0 && tt_wide(update->gradients));
    tt_update_places places = tt_places(update->workspace, update->total, update->count);
    int64_t enough = 4 * static_cast<int64_t>(tt_cuda(device)->multiprocessors);
    int64_t blocks = tt_ceil_div(update->total, TT_UPDATE_TILE);
    blocks = blocks < enough ? blocks : enough;
    blocks = blocks < int64_t{TT_MOST_CHECK_BLOCKS} ? blocks : int64_t{TT_MOST_CHECK_BLOCKS};
    if (blocks > 0) {
        auto square_sums = tt_square_sums<float>;
        TT_LAUNCH(device, static_cast<unsigned>(blocks), TT_UPDATE_THREADS, 0, square_sums,
                  update->gradients, update->total, places.sums);
    }
    auto check_sums = tt_check_sums<float>;
    TT_LAUNCH(device, 1, TT_UPDATE_THREADS, 0, check_sums, places.sums, static_cast<int>(blocks),
              update->loss_sums, update->loss_count, rule->clip_norm, update->state);
}

/* --- update ---------------------------------------------------------------------------------- */

/* A tt_update and its rule, for kernels. */
typedef struct {
    const tt_segment *segments;
    int count;
    int64_t total;
    float *values, *first_moment, *second_moment;
    const float *gradients;
    tt_update_places places;
    tt_update_rule rule;
    float least_kept;
} tt_update_operands;

/* The last of the segments low ... high that begins at or before `place`; low where none does. */
static __device__ __forceinline__ int tt_segment_before(const tt_segment *segments, int low,
                                                        int high, int64_t place)
{
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (segments[middle].offset <= place) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/* The constants of this update, which is counted, and the first segment of every tile. */
template <typename STATE>
__global__ void __launch_bounds__(TT_UPDATE_THREADS)
    tt_begin_update(tt_update_operands o, STATE *state)
{
    int64_t tile = static_cast<int64_t>(blockIdx.x) * TT_UPDATE_THREADS + threadIdx.x;
    if (tile * TT_UPDATE_TILE < o.total + TT_UPDATE_TILE) {
        o.places.first_segment[tile] =
            tt_segment_before(o.segments, 0, o.count - 1, tile * TT_UPDATE_TILE);
    }
    if (tile == 0) {
        tt_update_constants *constants = o.places.constants;
        double t = state->updates + 1.0;
        constants->correction1 =
            static_cast<float>(1.0 / (1.0 - pow(static_cast<double>(o.rule.beta1), t)));
        constants->correction2 =
            static_cast<float>(1.0 / (1.0 - pow(static_cast<double>(o.rule.beta2), t)));
        constants->factor = state->gradient_factor;
#pragma unroll
        for (int group = 0; group < TT_GROUP_COUNT; group++) {
            constants->rate[group] = state->learning_rate[group];
        }
        constants->least = state->holds != 0.0f ? o.least_kept : -INFINITY;
        constants->applies = state->finite != 0.0f;
        state->updates += state->finite != 0.0f ? 1 : 0;
    }
}

/* Whether the trust ratio of LAMB applies to a segment. */
static __device__ __forceinline__ bool tt_has_trust_ratio(const tt_segment &segment)
{
    return segment.decays && segment.group != TT_GROUP_DIAGONALS;
}

static __device__ __forceinline__ float tt_rate(const tt_update_constants &c,
                                                const tt_segment &segment)
{
    return segment.group == TT_GROUP_CORES       ? c.rate[TT_GROUP_CORES]
           : segment.group == TT_GROUP_DIAGONALS ? c.rate[TT_GROUP_DIAGONALS]
                                                 : c.rate[TT_GROUP_DENSE];
}

typedef struct {
    float number[TT_GROUP];
} tt_group_numbers;

static __device__ __forceinline__ tt_group_numbers tt_load_group(const float *from)
{
    float4 raw = *reinterpret_cast<const float4 *>(from);
    return {{raw.x, raw.y, raw.z, raw.w}};
}

static __device__ __forceinline__ void tt_store_group(float *to, const tt_group_numbers &group)
{
    float4 raw = {group.number[0], group.number[1], group.number[2], group.number[3]};
    *reinterpret_cast<float4 *>(to) = raw;
}

static __device__ __forceinline__ float tt_direction(const tt_update_constants &c, float epsilon,
                                                     float first, float second)
{
    return first * c.correction1 / (sqrtf(second * c.correction2) + epsilon);
}

/* Moves one number and its moments on. Diagonals at or below the threshold are 0 for good; where
 * the update holds, none gets there. */
static __device__ __forceinline__ void tt_move(const tt_update_rule &rule, float rate, float decay,
                                               float least, bool is_diagonal, float direction,
                                               float &value, float &first, float &second)
{
    float moved = value - rate * (direction + decay * value);
    moved = !is_diagonal || moved > least ? moved : least;
    bool kept = !is_diagonal || (value > rule.threshold && moved > rule.threshold);
    value = kept ? moved : 0.0f;
    first = kept ? first : 0.0f;
    second = kept ? second : 0.0f;
}

/* The four numbers at `place`, of which the last may lie behind the segment. Where the segment has
 * a trust ratio (only asked when TRUST), the moments alone are moved, and `squares` are the sums of
 * squares of values and directions. */
template <bool TRUST>
static __device__ __forceinline__ void
tt_update_group(const tt_update_operands &o, const tt_update_constants &c,
                const tt_segment &segment, int64_t place, float (&squares)[2])
{
    tt_group_numbers value = tt_load_group(o.values + place);
    tt_group_numbers gradient = tt_load_group(o.gradients + place);
    tt_group_numbers first = tt_load_group(o.first_moment + place);
    tt_group_numbers second = tt_load_group(o.second_moment + place);
    float decay = segment.decays ? o.rule.weight_decay : 0.0f, rate = tt_rate(c, segment);
    bool is_diagonal = segment.group == TT_GROUP_DIAGONALS;
    bool waits = TRUST && tt_has_trust_ratio(segment);
    int64_t left = segment.offset + segment.count - place;
#pragma unroll
    for (int i = 0; i < TT_GROUP; i++) {
        if (i >= left) {
            continue;
        }
        float g = gradient.number[i] * c.factor;
        first.number[i] = o.rule.beta1 * first.number[i] + (1.0f - o.rule.beta1) * g;
        second.number[i] = o.rule.beta2 * second.number[i] + (1.0f - o.rule.beta2) * g * g;
        float direction = tt_direction(c, o.rule.epsilon, first.number[i], second.number[i]);
        if (waits) {
            float whole = direction + decay * value.number[i];
            squares[0] += value.number[i] * value.number[i];
            squares[1] += whole * whole;
        } else {
            tt_move(o.rule, rate, decay, c.least, is_diagonal, direction, value.number[i],
                    first.number[i], second.number[i]);
        }
    }
    tt_store_group(o.first_moment + place, first);
    tt_store_group(o.second_moment + place, second);
    if (!waits) {
        tt_store_group(o.values + place, value);
    }
}

/* Where a thread's groups lie, and in which segment. */
typedef struct {
    int64_t place;
    tt_segment segment;
    bool inside; /* of a segment: what lies between two is left alone */
} tt_group_place;

static __device__ __forceinline__ tt_group_place tt_find_group(const tt_update_operands &o,
                                                               int group)
{
    const int32_t *first_segment = o.places.first_segment + blockIdx.x;
    int64_t place = static_cast<int64_t>(blockIdx.x) * TT_UPDATE_TILE +
                    (group * TT_UPDATE_THREADS + static_cast<int>(threadIdx.x)) * TT_GROUP;
    int s = tt_segment_before(o.segments, first_segment[0], first_segment[1], place);
    tt_segment segment = o.segments[s];
    bool inside = place >= segment.offset && place < segment.offset + segment.count;
    return {place, segment, inside};
}

/* Sums of squares of the groups of a tile. */
typedef struct {
    float square[2][TT_UPDATE_TILE / TT_GROUP];
} tt_tile_squares;

/* Adds up the squares of each segment in the tile, a warp a segment. */
static __device__ __forceinline__ void tt_sum_segments(const tt_update_operands &o,
                                                       const tt_tile_squares &tile)
{
    const int32_t *first_segment = o.places.first_segment + blockIdx.x;
    int64_t start = static_cast<int64_t>(blockIdx.x) * TT_UPDATE_TILE, end = start + TT_UPDATE_TILE;
    int last = first_segment[1], lane = static_cast<int>(threadIdx.x) % 32;
    for (int s = first_segment[0] + static_cast<int>(threadIdx.x) / 32; s <= last;
         s += TT_UPDATE_THREADS / 32) {
        tt_segment segment = o.segments[s];
        int64_t from = segment.offset > start ? segment.offset : start;
        int64_t to = segment.offset + segment.count < end ? segment.offset + segment.count : end;
        if (from >= to || !tt_has_trust_ratio(segment)) {
            continue;
        }
        double sums[2] = {0.0, 0.0};
        int groups = static_cast<int>(tt_ceil_div(to - start, TT_GROUP));
        for (int g = static_cast<int>((from - start) / TT_GROUP) + lane; g < groups; g += 32) {
            sums[0] += tile.square[0][g];
            sums[1] += tile.square[1][g];
        }
        sums[0] = tt_warp_sum(sums[0]);
        sums[1] = tt_warp_sum(sums[1]);
        if (lane == 0) {
            double *target = o.places.sums + 2 * (blockIdx.x + static_cast<int64_t>(s));
            target[0] = sums[0];
            target[1] = sums[1];
        }
    }
}

template <bool TRUST>
__global__ void __launch_bounds__(TT_UPDATE_THREADS) tt_update_tiles(tt_update_operands o)
{
    tt_update_constants constants = *o.places.constants;
    if (!constants.applies) {
        return;
    }
    TT_SHARED(tt_tile_squares, tile);
#pragma unroll
    for (int group = 0; group < TT_GROUPS; group++) {
        tt_group_place found = tt_find_group(o, group);
        float squares[2] = {0.0f, 0.0f};
        if (found.inside) {
            tt_update_group<TRUST>(o, constants, found.segment, found.place, squares);
        }
        if (TRUST) {
            tile.square[0][group * TT_UPDATE_THREADS + threadIdx.x] = squares[0];
            tile.square[1][group * TT_UPDATE_THREADS + threadIdx.x] = squares[1];
        }
    }
    if (TRUST) {
        __syncthreads();
        tt_sum_segments(o, tile);
    }
}

/* A block a segment: 1 where a norm is 0, as NVIDIA's LAMB has it. */
template <typename NUMBER>
__global__ void __launch_bounds__(TT_UPDATE_THREADS)
    tt_trust_ratios(tt_update_operands o, NUMBER *ratios)
{
    int s = static_cast<int>(blockIdx.x);
    tt_segment segment = o.segments[s];
    if (!o.places.constants->applies || !tt_has_trust_ratio(segment) || segment.count == 0) {
        return;
    }
    const double *from = o.places.sums + 2 * (segment.offset / TT_UPDATE_TILE + s);
    int64_t tiles =
        (segment.offset + segment.count - 1) / TT_UPDATE_TILE - segment.offset / TT_UPDATE_TILE + 1;
    double sums[2] = {0.0, 0.0};
    for (int64_t t = threadIdx.x; t < tiles; t += TT_UPDATE_THREADS) {
        sums[0] += from[2 * t];
        sums[1] += from[2 * t + 1];
    }
    tt_block_sum(sums);
    if (threadIdx.x == 0) {
        bool usable = sums[0] > 0.0 && sums[1] > 0.0;
        ratios[s] = usable ? static_cast<float>(sqrt(sums[0] / sums[1])) : 1.0f;
    }
}

/* The step of the segments with a trust ratio, from their moved moments. */
template <typename NUMBER>
__global__ void __launch_bounds__(TT_UPDATE_THREADS)
    tt_trust_step(tt_update_operands o, const NUMBER *ratios)
{
    tt_update_constants c = *o.places.constants;
    if (!c.applies) {
        return;
    }
    const int32_t *first_segment = o.places.first_segment + blockIdx.x;
#pragma unroll
    for (int group = 0; group < TT_GROUPS; group++) {
        int64_t place = static_cast<int64_t>(blockIdx.x) * TT_UPDATE_TILE +
                        (group * TT_UPDATE_THREADS + static_cast<int>(threadIdx.x)) * TT_GROUP;
        int s = tt_segment_before(o.segments, first_segment[0], first_segment[1], place);
        tt_segment segment = o.segments[s];
        int64_t left = segment.offset + segment.count - place;
        if (place < segment.offset || left <= 0 || !tt_has_trust_ratio(segment)) {
            continue;
        }
        float rate = tt_rate(c, segment) * ratios[s];
        tt_group_numbers value = tt_load_group(o.values + place);
        tt_group_numbers first = tt_load_group(o.first_moment + place);
        tt_group_numbers second = tt_load_group(o.second_moment + place);
#pragma unroll
        for (int i = 0; i < TT_GROUP; i++) {
            float direction = tt_direction(c, o.rule.epsilon, first.number[i], second.number[i]);
            float whole = direction + o.rule.weight_decay * value.number[i];
            value.number[i] -= i < left ? rate * whole : 0.0f;
        }
        tt_store_group(o.values + place, value);
    }
}

void tt_cuda_update(tt_device *device, const tt_update_rule *rule, const tt_update *update)
{
    assert(update->total % TT_GROUP == 0 && tt_wide(update->values, update->gradients) &&
           tt_wide(update->first_moment, update->second_moment));
    size_t table_bytes = static_cast<size_t>(update->count) * sizeof(tt_segment);
    const void *table =
        table_bytes > 0 ? tt_cuda_constant(device, update->segments, table_bytes) : nullptr;
    tt_update_operands operands = {static_cast<const tt_segment *>(table),
                                   update->count,
                                   update->total,
                                   update->values,
                                   update->first_moment,
                                   update->second_moment,
                                   update->gradients,
                                   tt_places(update->workspace, update->total, update->count),
                                   *rule,
                                   tt_least_kept(rule->threshold)};
    unsigned tiles = static_cast<unsigned>(tt_tiles(update->total));
    auto begin_update = tt_begin_update<tt_step_state>;
    TT_LAUNCH(device, static_cast<unsigned>(tt_ceil_div(tiles + 1, TT_UPDATE_THREADS)),
              TT_UPDATE_THREADS, 0, begin_update, operands, update->state);
    if (update->count == 0) { /* a step that moves nothing counts as one all the same */
        return;
    }
    auto update_tiles = rule->trust_ratio ? tt_update_tiles<true> : tt_update_tiles<false>;
    TT_LAUNCH(device, tiles, TT_UPDATE_THREADS, 0, update_tiles, operands);
    if (rule->trust_ratio) {
        float *ratios = operands.places.ratio;
        auto trust_ratios = tt_trust_ratios<float>;
        TT_LAUNCH(device, static_cast<unsigned>(update->count), TT_UPDATE_THREADS, 0, trust_ratios,
                  operands, ratios);
        auto trust_step = tt_trust_step<float>;
        TT_LAUNCH(device, tiles, TT_UPDATE_THREADS, 0, trust_step, operands, ratios);
    }
}

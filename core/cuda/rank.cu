/* The rank objective: a block a link sums its diagonal, one block chooses the branch and, where the
 * stage stops at its target, prunes, and three passes change gradients: all of them by a factor
 * (only where that is not 1), those of kept diagonal entries, and those of cores (only with beta).
 */
#include "core/cuda/cuda_ops.h"
#include "core/cuda/reduce.cuh"

#include <float.h>

enum { TT_LINK_THREADS = 128, TT_RANK_THREADS = 256, TT_CORE_CHUNKS = 16 };

/* What the kept entries of a link come to. */
typedef struct {
    double sum, count;
    double held; /* entries at the least value that is kept */
} tt_rank_sums;

/* What the passes over gradients do, written by the block that chooses. */
typedef struct {
    float loss_factor, square_factor; /* of all gradients; of core entries */
} tt_rank_factors;

/* Where things lie in the workspace. */
typedef struct {
    tt_rank_factors *factors;
    tt_rank_sums *sums; /* [links] */
    float *gains;       /* [links]: what each kept entry's gradient gains */
    size_t bytes;
} tt_rank_places;

static tt_rank_places tt_places_of_ranks(void *workspace, int link_count)
{
    const size_t line = 256, count = static_cast<size_t>(link_count);
    size_t gains = line + count * sizeof(tt_rank_sums), bytes = gains + count * sizeof(float);
    char *memory = static_cast<char *>(workspace);
    if (memory == nullptr) {
        return {nullptr, nullptr, nullptr, bytes};
    }
    return {reinterpret_cast<tt_rank_factors *>(memory),
            reinterpret_cast<tt_rank_sums *>(memory + line),
            reinterpret_cast<float *>(memory + gains), bytes};
}

size_t tt_cuda_rank_objective_workspace(tt_device *device, int link_count)
{
    (void)device;
    return tt_places_of_ranks(nullptr, link_count).bytes;
}

/* --- sizes ----------------------------------------------------------------------------------- */

template <typename LINK>
__global__ void __launch_bounds__(TT_LINK_THREADS)
    tt_sum_links(const LINK *links, float threshold, float least, tt_rank_sums *sums)
{
    LINK link = links[blockIdx.x];
    double parts[3] = {0.0, 0.0, 0.0};
    for (int j = static_cast<int>(threadIdx.x); j < link.rank; j += TT_LINK_THREADS) {
        float value = link.values[j];
        if (value > threshold) {
            parts[0] += value;
            parts[1] += 1.0;
            parts[2] += value <= least ? 1.0 : 0.0;
        }
    }
    tt_block_sum(parts);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = {parts[0], parts[1], parts[2]};
    }
}

static __device__ __forceinline__ bool tt_lost_link(const tt_rank_tensor &tensor,
                                                    const tt_rank_sums *sums)
{
    bool lost = false;
    for (int k = 0; k + 1 < tensor.order; k++) {
        lost = lost || sums[tensor.link_first + k].count == 0.0;
    }
    return lost;
}

static __device__ __forceinline__ bool
tt_is_removed(const tt_rank_tensor *tensors, const tt_rank_tensor &tensor, const tt_rank_sums *sums)
{
    bool removed = tt_lost_link(tensor, sums);
#pragma unroll
    for (int i = 0; i < TT_MOST_NEEDS; i++) {
        removed =
            removed || (i < tensor.need_count && tt_lost_link(tensors[tensor.needs[i]], sums));
    }
    return removed;
}

/* Sum of |D_{k-1}| n_k |D_k| over the cores, |D| being the count or the sum of kept entries. */
static __device__ __forceinline__ double tt_tensor_size(const tt_rank_terms &terms,
                                                        const tt_rank_tensor &tensor,
                                                        const tt_rank_sums *sums, bool relaxed)
{
    if (tt_is_removed(terms.tensors, tensor, sums)) {
        return 0.0;
    }
    double size = 0.0, left = 1.0;
    for (int k = 0; k < tensor.order; k++) {
        double right = 1.0;
        if (k + 1 < tensor.order) {
            const tt_rank_sums &link = sums[tensor.link_first + k];
            right = relaxed ? link.sum : link.count;
        }
        size += left * static_cast<double>(terms.cores[tensor.core_first + k].mode) * right;
        left = right;
    }
    return size;
}

/* --- pruning to a target -----------------------------------------------------------------------
 */

/* What the threads of the choosing block tell each other. */
typedef struct {
    int held[TT_RANK_THREADS];
    double size;
    double gain_factor;
    int pruned;
} tt_rank_board;

static __device__ __forceinline__ bool tt_is_held(const tt_rank_terms &terms, int64_t number,
                                                  float least)
{
    tt_rank_entry entry = terms.entries[number];
    float value = terms.links[entry.link].values[entry.place];
    return value > terms.threshold && value <= least;
}

/* Sets a held entry to 0, and with it the link's number of held entries, as one is enough for a
 * step; but for one without which the tensor would be gone and the size below the target. */
static __device__ __forceinline__ void tt_prune_entry(const tt_rank_terms &terms, int64_t number,
                                                      tt_rank_sums *sums, tt_rank_board &board)
{
    tt_rank_entry entry = terms.entries[number];
    tt_rank_link link = terms.links[entry.link];
    tt_rank_tensor tensor = terms.tensors[link.tensor];
    double before = tt_tensor_size(terms, tensor, sums, false), count = sums[entry.link].count;
    if (sums[entry.link].held == 0.0 || tt_is_removed(terms.tensors, tensor, sums)) {
        return;
    }
    sums[entry.link].count = count - 1.0;
    double after = board.size;
    if (count == 1.0) {
        after = 0.0;
        for (int t = 0; t < terms.tensor_count; t++) {
            after += tt_tensor_size(terms, terms.tensors[t], sums, false);
        }
        if (after < terms.settings->target) {
            sums[entry.link].count = count;
            return;
        }
    } else {
        after += tt_tensor_size(terms, tensor, sums, false) - before;
    }
    sums[entry.link].sum -= link.values[entry.place];
    sums[entry.link].held = 0.0;
    link.values[entry.place] = 0.0f;
    link.first_moment[entry.place] = 0.0f;
    link.second_moment[entry.place] = 0.0f;
    board.size = after;
    board.pruned++;
}

/* Prunes, in the order of `entries`, until the size is at the target. */
static __device__ __forceinline__ void tt_prune_to_target(const tt_rank_terms &terms, float least,
                                                          tt_rank_sums *sums, tt_rank_board &board)
{
    double target = terms.settings->target;
    for (int64_t first = 0; first < terms.entry_count; first += TT_RANK_THREADS) {
        int64_t number = first + threadIdx.x;
        board.held[threadIdx.x] =
            number < terms.entry_count && tt_is_held(terms, number, least) ? 1 : 0;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int j = 0; j < TT_RANK_THREADS && board.size > target; j++) {
                if (board.held[j] != 0) {
                    tt_prune_entry(terms, first + j, sums, board);
                }
            }
        }
        __syncthreads();
        if (!(board.size > target)) {
            break;
        }
    }
}

/* --- choosing -------------------------------------------------------------------------------- */

/* What a step multiplies and adds. */
typedef struct {
    double loss_factor; /* of the loss's gradient */
    double size_factor; /* of the gradient of relaxed size / unit, or of the mean entry */
    int branch;
} tt_rank_choice;

static __device__ __forceinline__ bool tt_size_leads(const tt_rank_settings &s, double loss,
                                                     double size)
{
    double over_loss = loss - s.target_loss, over_size = size - s.target;
    if (s.stops_at_target != 0 && over_size <= 0.0) {
        return false;
    }
    return s.of_the_mean != 0 ? over_loss * size < over_size * loss
                              : s.w1 * over_loss * s.unit < s.w2 * over_size;
}

static __device__ __forceinline__ tt_rank_choice tt_choose(const tt_rank_settings &s, double loss,
                                                           double size)
{
    if (s.stage == TT_RANKS_LEFT) {
        return {1.0, 0.0, TT_BRANCH_NONE};
    }
    if (s.stage == TT_RANKS_EARLY) {
        return {1.0, s.gamma, TT_BRANCH_NONE};
    }
    double always = s.of_the_mean != 0 ? s.gamma : s.rho;
    if (tt_size_leads(s, loss, size)) {
        return {s.rho, always + s.w2, TT_BRANCH_SIZE};
    }
    bool there = s.stops_at_target != 0 && size <= s.target;
    return {static_cast<double>(s.rho) + s.w1, there ? 0.0 : always, TT_BRANCH_LOSS};
}

/* What each kept entry of a link gains: `factor` times the gradient of the relaxed size, or of the
 * sum of all kept entries. */
static __device__ __forceinline__ float
tt_gain(const tt_rank_terms &terms, int l, const tt_rank_sums *sums, bool of_the_sum, double factor)
{
    tt_rank_tensor tensor = terms.tensors[terms.links[l].tensor];
    if (tt_is_removed(terms.tensors, tensor, sums)) {
        return 0.0f;
    }
    int k = l - tensor.link_first;
    const tt_rank_core *core = terms.cores + tensor.core_first + k;
    double left = k > 0 ? sums[l - 1].sum : 1.0;
    double right = k + 2 < tensor.order ? sums[l + 1].sum : 1.0;
    double slope =
        left * static_cast<double>(core[0].mode) + static_cast<double>(core[1].mode) * right;
    return static_cast<float>(of_the_sum ? factor : factor * slope);
}

static __device__ __forceinline__ double tt_mean_loss(const tt_rank_terms &terms)
{
    double loss = 0.0;
    for (int i = 0; i < terms.loss_count; i++) {
        loss += static_cast<double>(terms.loss_sums[i]) * terms.loss_scales[i];
    }
    return loss;
}

/* Sums over all tensors. */
typedef struct {
    double size, relaxed_size, sum, entries;
} tt_rank_totals;

static __device__ __forceinline__ tt_rank_totals tt_add_up(const tt_rank_terms &terms,
                                                           const tt_rank_sums *sums)
{
    double parts[4] = {0.0, 0.0, 0.0, 0.0};
    for (int t = static_cast<int>(threadIdx.x); t < terms.tensor_count; t += TT_RANK_THREADS) {
        tt_rank_tensor tensor = terms.tensors[t];
        if (tt_is_removed(terms.tensors, tensor, sums)) {
            continue;
        }
        parts[0] += tt_tensor_size(terms, tensor, sums, false);
        parts[1] += tt_tensor_size(terms, tensor, sums, true);
        for (int k = 0; k + 1 < tensor.order; k++) {
            parts[2] += sums[tensor.link_first + k].sum;
            parts[3] += sums[tensor.link_first + k].count;
        }
    }
    tt_block_sum(parts);
    return {parts[0], parts[1], parts[2], parts[3]};
}

/* The number of held entries and the size, before anything is pruned. */
static __device__ __forceinline__ void tt_begin_pruning(const tt_rank_terms &terms,
                                                        const tt_rank_sums *sums,
                                                        tt_rank_board &board, double (&parts)[2])
{
    parts[0] = parts[1] = 0.0;
    for (int l = static_cast<int>(threadIdx.x); l < terms.link_count; l += TT_RANK_THREADS) {
        parts[0] += sums[l].held;
    }
    for (int t = static_cast<int>(threadIdx.x); t < terms.tensor_count; t += TT_RANK_THREADS) {
        parts[1] += tt_tensor_size(terms, terms.tensors[t], sums, false);
    }
    tt_block_sum(parts);
    if (threadIdx.x == 0) {
        board.size = parts[1];
        board.pruned = 0;
    }
    __syncthreads();
}

/* 1 / x of a count, by Newton's method: a division in double would be a call, which spills. */
static __device__ __forceinline__ double tt_reciprocal(double x)
{
    float root = rsqrtf(static_cast<float>(x));
    double inverse = static_cast<double>(root) * root;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        inverse *= 2.0 - x * inverse;
    }
    return inverse;
}

/* By one thread: what the step comes to, and what the passes that follow do. */
static __device__ __forceinline__ void tt_write_choice(const tt_rank_terms &terms,
                                                       const tt_rank_totals &totals, double loss,
                                                       tt_rank_places places, tt_rank_board &board)
{
    const tt_rank_settings *settings = terms.settings;
    tt_rank_choice choice = tt_choose(*settings, loss, totals.size);
    bool left = settings->stage == TT_RANKS_LEFT;
    places.factors->loss_factor = static_cast<float>(choice.loss_factor);
    places.factors->square_factor = left ? 0.0f : 2.0f * settings->beta;
    *terms.holds = settings->stops_at_target != 0 ? 1.0f : 0.0f;
    terms.record->size = totals.size;
    terms.record->relaxed_size = totals.relaxed_size;
    terms.record->loss = loss;
    terms.record->branch = choice.branch;
    terms.record->pruned = board.pruned;
    double per_entry = tt_reciprocal(totals.entries > 0.0 ? totals.entries : 1.0);
    terms.record->mean_diagonal = totals.sum * per_entry;
    board.gain_factor = choice.size_factor *
                        (settings->of_the_mean != 0 ? per_entry : tt_reciprocal(settings->unit));
}

/* The one block may have all registers of its multiprocessor. */
template <typename SUMS>
__global__ void __launch_bounds__(TT_RANK_THREADS, 1)
    tt_choose_branch(tt_rank_terms terms, float least, tt_rank_places places, SUMS *sums)
{
    TT_SHARED(tt_rank_board, board);
    double loss = tt_mean_loss(terms), parts[2];
    bool stops = terms.settings->stage == TT_RANKS_LATE && terms.settings->stops_at_target != 0;
    tt_begin_pruning(terms, sums, board, parts);
    if (stops && parts[0] > 0.0 && fabs(loss) <= DBL_MAX) {
        tt_prune_to_target(terms, least, sums, board);
    }
    tt_rank_totals totals = tt_add_up(terms, sums);
    if (threadIdx.x == 0) {
        tt_write_choice(terms, totals, loss, places, board);
    }
    __syncthreads();
    bool of_the_sum = terms.settings->of_the_mean != 0;
    for (int l = static_cast<int>(threadIdx.x); l < terms.link_count; l += TT_RANK_THREADS) {
        places.gains[l] = tt_gain(terms, l, sums, of_the_sum, board.gain_factor);
    }
}

/* --- gradients ------------------------------------------------------------------------------- */

template <typename NUMBER>
__global__ void __launch_bounds__(TT_RANK_THREADS)
    tt_scale_gradients(NUMBER *gradients, int64_t count, const tt_rank_factors *factors)
{
    float factor = factors->loss_factor;
    if (factor == 1.0f) {
        return;
    }
    int64_t stride = static_cast<int64_t>(gridDim.x) * TT_RANK_THREADS;
#pragma unroll 4
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * TT_RANK_THREADS + threadIdx.x; i < count;
         i += stride) {
        gradients[i] *= factor;
    }
}

template <typename LINK>
__global__ void __launch_bounds__(TT_LINK_THREADS)
    tt_add_to_links(const LINK *links, float threshold, const float *gains)
{
    LINK link = links[blockIdx.x];
    float gain = gains[blockIdx.x];
    if (gain == 0.0f) {
        return;
    }
    for (int j = static_cast<int>(threadIdx.x); j < link.rank; j += TT_LINK_THREADS) {
        link.gradients[j] += link.values[j] > threshold ? gain : 0.0f;
    }
}

/* gradient += 2 beta G, where both slices that an entry lies in are kept. A block has every
 * TT_CORE_CHUNKS-th slice of the left link. */
template <typename CORE>
__global__ void __launch_bounds__(TT_RANK_THREADS)
    tt_add_to_cores(const CORE *cores, tt_rank_terms terms, tt_rank_places places)
{
    float factor = places.factors->square_factor;
    CORE core = cores[blockIdx.x];
    if (factor == 0.0f || tt_is_removed(terms.tensors, terms.tensors[core.tensor], places.sums)) {
        return;
    }
    const float *left = core.left_link < 0 ? nullptr : terms.links[core.left_link].values;
    const float *right = core.right_link < 0 ? nullptr : terms.links[core.right_link].values;
    int columns = static_cast<int>(core.right), count = static_cast<int>(core.mode) * columns;
    for (int64_t slice = blockIdx.y; slice < core.left; slice += TT_CORE_CHUNKS) {
        if (left != nullptr && !(left[slice] > terms.threshold)) {
            continue;
        }
        const float *values = core.values + slice * count;
        float *gradients = core.gradients + slice * count;
        for (int i = static_cast<int>(threadIdx.x); i < count; i += TT_RANK_THREADS) {
            bool kept = right == nullptr || right[i % columns] > terms.threshold;
            gradients[i] += kept ? factor * values[i] : 0.0f;
        }
    }
}

static void tt_change_gradients(tt_device *device, const tt_rank_terms *terms,
                                tt_rank_places places)
{
    int64_t enough = 4 * static_cast<int64_t>(tt_cuda(device)->multiprocessors);
    int64_t blocks = tt_ceil_div(terms->gradient_count, TT_RANK_THREADS);
    blocks = blocks < enough ? blocks : enough;
    auto scale_gradients = tt_scale_gradients<float>;
    if (blocks > 0) {
        TT_LAUNCH(device, static_cast<unsigned>(blocks), TT_RANK_THREADS, 0, scale_gradients,
                  terms->gradients, terms->gradient_count, places.factors);
    }
    if (terms->link_count > 0) {
        auto add_to_links = tt_add_to_links<tt_rank_link>;
        TT_LAUNCH(device, static_cast<unsigned>(terms->link_count), TT_LINK_THREADS, 0,
                  add_to_links, terms->links, terms->threshold, places.gains);
        auto add_to_cores = tt_add_to_cores<tt_rank_core>;
        dim3 grid(static_cast<unsigned>(terms->core_count), TT_CORE_CHUNKS);
        TT_LAUNCH(device, grid, TT_RANK_THREADS, 0, add_to_cores, terms->cores, *terms, places);
    }
}

void tt_cuda_rank_objective(tt_device *device, const tt_rank_terms *terms)
{
    tt_rank_places places = tt_places_of_ranks(terms->workspace, terms->link_count);
    float least = tt_least_kept(terms->threshold);
    if (terms->link_count > 0) {
        auto sum_links = tt_sum_links<tt_rank_link>;
        TT_LAUNCH(device, static_cast<unsigned>(terms->link_count), TT_LINK_THREADS, 0, sum_links,
                  terms->links, terms->threshold, least, places.sums);
    }
    auto choose_branch = tt_choose_branch<tt_rank_sums>;
    TT_LAUNCH(device, 1, TT_RANK_THREADS, 0, choose_branch, *terms, least, places, places.sums);
    tt_change_gradients(device, terms, places);
}

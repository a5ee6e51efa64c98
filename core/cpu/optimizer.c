#include "core/cpu/cpu_ops.h"
#include "core/parameters.h"

#include <math.h>

/* Both passes work on blocks of fixed size whose partial sums lie in the workspace, so that a
 * result does not depend on the number of threads. */
enum { TT_CHECK_BLOCK = 65536, TT_UPDATE_BLOCK = 16384 };

static int64_t tt_blocks(int64_t count, int64_t block)
{
    return (count + block - 1) / block;
}

static double tt_sum_of_squares(const float *values, int64_t count)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        double value = values[i];
        sum += value * value;
    }
    return sum;
}

void tt_cpu_gradient_check(tt_device *device, const tt_update_rule *rule, const tt_update *update)
{
    int64_t total = update->total, blocks = tt_blocks(total, TT_CHECK_BLOCK);
    double *partials = update->workspace;
#pragma omp parallel for num_threads(tt_cpu_team(device, total)) schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t first = block * TT_CHECK_BLOCK, left = total - first;
        partials[block] = tt_sum_of_squares(update->gradients + first,
                                            left < TT_CHECK_BLOCK ? left : TT_CHECK_BLOCK);
    }
    double sum = 0.0;
    for (int64_t block = 0; block < blocks; block++) {
        sum += partials[block];
    }
    bool finite = isfinite(sum);
    for (int i = 0; i < update->loss_count; i++) {
        finite = finite && isfinite(update->loss_sums[i]);
    }
    double norm = sqrt(sum);
    bool clips = finite && rule->clip_norm > 0.0f && norm > rule->clip_norm;
    update->state->gradient_norm = (float)norm;
    update->state->gradient_factor = clips ? (float)(rule->clip_norm / norm) : 1.0f;
    update->state->finite = finite ? 1.0f : 0.0f;
}

/* The constants of one update. */
typedef struct {
    float beta1, beta2, rest1, rest2; /* rest = 1 - beta */
    float correction1, correction2;   /* 1 / (1 - beta^t) */
    float epsilon, factor;
} tt_moment_rule;

static tt_moment_rule tt_moment_rule_now(const tt_update_rule *rule, const tt_step_state *state)
{
    double t = (double)state->updates + 1.0;
    return (tt_moment_rule){
        .beta1 = rule->beta1,
        .beta2 = rule->beta2,
        .rest1 = 1.0f - rule->beta1,
        .rest2 = 1.0f - rule->beta2,
        .correction1 = (float)(1.0 / (1.0 - pow(rule->beta1, t))),
        .correction2 = (float)(1.0 / (1.0 - pow(rule->beta2, t))),
        .epsilon = rule->epsilon,
        .factor = state->gradient_factor,
    };
}

/* Moves the moments of one number on and returns its direction, without weight decay. */
static inline float tt_direction(const tt_moment_rule *r, float gradient, float *first,
                                 float *second)
{
    float g = gradient * r->factor;
    *first = r->beta1 * *first + r->rest1 * g;
    *second = r->beta2 * *second + r->rest2 * g * g;
    return *first * r->correction1 / (sqrtf(*second * r->correction2) + r->epsilon);
}

/* A piece of one segment: at most TT_UPDATE_BLOCK floats of the flat buffers. */
typedef struct {
    const tt_segment *segment;
    int64_t offset, count;
    float decay, rate; /* weight decay; learning rate, trust ratio included */
    double *norms;     /* LAMB: sums of squares of the values and of their directions */
} tt_update_block;

static void tt_adamw_block(const tt_moment_rule *moment_rule, const tt_update *update,
                           const tt_update_block *block)
{
    tt_moment_rule r = *moment_rule;
    float *values = update->values + block->offset;
    float *first = update->first_moment + block->offset;
    float *second = update->second_moment + block->offset;
    const float *gradients = update->gradients + block->offset;
    float rate = block->rate, decay = block->decay;
#pragma omp simd
    for (int64_t i = 0; i < block->count; i++) {
        float direction = tt_direction(&r, gradients[i], &first[i], &second[i]);
        values[i] -= rate * (direction + decay * values[i]);
    }
}

/* Entries at or below the threshold are 0 for good, and nothing may move them: neither what is left
 * in their moments nor a gradient. Where the update holds, none gets there. */
static void tt_diagonal_block(const tt_moment_rule *moment_rule, const tt_update *update,
                              const tt_update_block *block, float threshold)
{
    float least = update->state->holds != 0.0f ? tt_least_kept(threshold) : -INFINITY;
    tt_moment_rule r = *moment_rule;
    float *values = update->values + block->offset;
    float *first = update->first_moment + block->offset;
    float *second = update->second_moment + block->offset;
    const float *gradients = update->gradients + block->offset;
    float rate = block->rate, decay = block->decay;
#pragma omp simd
    for (int64_t i = 0; i < block->count; i++) {
        float direction = tt_direction(&r, gradients[i], &first[i], &second[i]);
        float moved = values[i] - rate * (direction + decay * values[i]);
        moved = moved > least ? moved : least;
        bool kept = values[i] > threshold && moved > threshold;
        values[i] = kept ? moved : 0.0f;
        first[i] = kept ? first[i] : 0.0f;
        second[i] = kept ? second[i] : 0.0f;
    }
}

/* LAMB, first pass: moves the moments and sums the squares that the trust ratio needs. */
static void tt_lamb_norm_block(const tt_moment_rule *moment_rule, const tt_update *update,
                               const tt_update_block *block)
{
    tt_moment_rule r = *moment_rule;
    const float *values = update->values + block->offset;
    float *first = update->first_moment + block->offset;
    float *second = update->second_moment + block->offset;
    const float *gradients = update->gradients + block->offset;
    float decay = block->decay;
    double value_squares = 0.0, direction_squares = 0.0;
#pragma omp simd reduction(+ : value_squares, direction_squares)
    for (int64_t i = 0; i < block->count; i++) {
        float direction = tt_direction(&r, gradients[i], &first[i], &second[i]);
        double value = values[i], whole = direction + decay * values[i];
        value_squares += value * value;
        direction_squares += whole * whole;
    }
    block->norms[0] = value_squares;
    block->norms[1] = direction_squares;
}

/* LAMB, second pass: the direction again, from the moved moments. */
static void tt_lamb_step_block(const tt_moment_rule *moment_rule, const tt_update *update,
                               const tt_update_block *block)
{
    tt_moment_rule r = *moment_rule;
    float *values = update->values + block->offset;
    const float *first = update->first_moment + block->offset;
    const float *second = update->second_moment + block->offset;
    float rate = block->rate, decay = block->decay;
#pragma omp simd
    for (int64_t i = 0; i < block->count; i++) {
        float direction = first[i] * r.correction1 / (sqrtf(second[i] * r.correction2) + r.epsilon);
        values[i] -= rate * (direction + decay * values[i]);
    }
}

/* 1 where a norm is 0, as NVIDIA's LAMB has it. `norms` are those of the segment's blocks. */
static float tt_trust_ratio(const double *norms, int64_t blocks)
{
    double value_squares = 0.0, direction_squares = 0.0;
    for (int64_t block = 0; block < blocks; block++) {
        value_squares += norms[2 * block];
        direction_squares += norms[2 * block + 1];
    }
    bool usable = value_squares > 0.0 && direction_squares > 0.0;
    return usable ? (float)sqrt(value_squares / direction_squares) : 1.0f;
}

typedef enum { TT_PASS_ONLY, TT_PASS_NORMS, TT_PASS_STEP } tt_update_pass;

static void tt_update_one_block(const tt_update_rule *rule, const tt_moment_rule *moment_rule,
                                const tt_update *update, tt_update_pass pass,
                                const tt_update_block *block)
{
    if (pass == TT_PASS_STEP) {
        tt_lamb_step_block(moment_rule, update, block);
    } else if (pass == TT_PASS_NORMS) {
        tt_lamb_norm_block(moment_rule, update, block);
    } else if (block->segment->group == TT_GROUP_DIAGONALS) {
        tt_diagonal_block(moment_rule, update, block, rule->threshold);
    } else {
        tt_adamw_block(moment_rule, update, block);
    }
}

/* Whether LAMB's two passes go over a segment; the others are done with in the first. */
static bool tt_has_trust_ratio(const tt_update_rule *rule, const tt_segment *segment)
{
    return rule->trust_ratio && segment->decays && segment->group != TT_GROUP_DIAGONALS;
}

/* Runs a pass over the blocks that begin in [from, to), this thread's share of the flat buffers. */
static void tt_update_share(const tt_update_rule *rule, const tt_moment_rule *moment_rule,
                            const tt_update *update, bool second_pass, int64_t from, int64_t to)
{
    double *norms = update->workspace;
    for (int s = 0; s < update->count; s++) {
        const tt_segment *segment = &update->segments[s];
        int64_t blocks = tt_blocks(segment->count, TT_UPDATE_BLOCK);
        bool trust = tt_has_trust_ratio(rule, segment);
        int64_t end = segment->offset + segment->count;
        if (end > from && segment->offset < to && (trust || !second_pass)) {
            tt_update_pass first_pass = trust ? TT_PASS_NORMS : TT_PASS_ONLY;
            tt_update_block block = {.segment = segment,
                                     .decay = segment->decays ? rule->weight_decay : 0.0f,
                                     .rate = update->state->learning_rate[segment->group]};
            if (second_pass) {
                block.rate *= tt_trust_ratio(norms, blocks);
            }
            for (int64_t b = 0; b < blocks; b++) {
                int64_t start = b * TT_UPDATE_BLOCK, left = segment->count - start;
                block.offset = segment->offset + start;
                block.count = left < TT_UPDATE_BLOCK ? left : TT_UPDATE_BLOCK;
                block.norms = norms + 2 * b;
                if (block.offset >= from && block.offset < to) {
                    tt_update_one_block(rule, moment_rule, update,
                                        second_pass ? TT_PASS_STEP : first_pass, &block);
                }
            }
        }
        norms += 2 * blocks;
    }
}

void tt_cpu_update(tt_device *device, const tt_update_rule *rule, const tt_update *update)
{
    if (update->state->finite == 0.0f) {
        return;
    }
    tt_moment_rule moment_rule = tt_moment_rule_now(rule, update->state);
    int64_t total = update->total;
#pragma omp parallel num_threads(tt_cpu_team(device, total))
    {
        int64_t team = omp_get_num_threads(), thread = omp_get_thread_num();
        int64_t from = total / team * thread;
        int64_t to = thread + 1 < team ? total / team * (thread + 1) : total;
        tt_update_share(rule, &moment_rule, update, false, from, to);
        if (rule->trust_ratio) {
#pragma omp barrier
            tt_update_share(rule, &moment_rule, update, true, from, to);
        }
    }
    update->state->updates++;
}

size_t tt_cpu_update_workspace(tt_device *device, const tt_segment *segments, int count)
{
    (void)device;
    int64_t update_blocks = 0, end = 0;
    for (int s = 0; s < count; s++) {
        update_blocks += tt_blocks(segments[s].count, TT_UPDATE_BLOCK);
        int64_t segment_end = segments[s].offset + segments[s].count;
        end = end > segment_end ? end : segment_end;
    }
    int64_t check_blocks = tt_blocks(end + TT_PARAMETER_ALIGNMENT, TT_CHECK_BLOCK);
    int64_t doubles = 2 * update_blocks > check_blocks ? 2 * update_blocks : check_blocks;
    return (size_t)doubles * sizeof(double);
}

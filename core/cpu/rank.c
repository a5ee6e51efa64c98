#include "core/cpu/cpu_ops.h"

#include <math.h>

/* What the kept entries of a link come to. */
typedef struct {
    double sum, count;
    int64_t held;    /* entries at the least value that is kept */
    double gradient; /* what each kept entry's gradient gains */
} tt_link_sums;

/* What a step multiplies and adds, once its branch is chosen. */
typedef struct {
    double loss_factor; /* of the loss's gradient */
    double size_factor; /* of the gradient of relaxed size / unit, or of the mean entry */
    tt_rank_branch branch;
} tt_rank_choice;

static tt_link_sums tt_sum_link(const tt_rank_link *link, float threshold)
{
    tt_link_sums sums = {0};
    float least = tt_least_kept(threshold);
    for (int32_t j = 0; j < link->rank; j++) {
        float value = link->values[j];
        if (value > threshold) {
            sums.sum += value;
            sums.count += 1.0;
            sums.held += value <= least;
        }
    }
    return sums;
}

static bool tt_lost_link(const tt_rank_tensor *tensor, const tt_link_sums *sums)
{
    for (int32_t k = 0; k + 1 < tensor->order; k++) {
        if (sums[tensor->link_first + k].count == 0.0) {
            return true;
        }
    }
    return false;
}

static bool tt_is_removed(const tt_rank_terms *terms, const tt_rank_tensor *tensor,
                          const tt_link_sums *sums)
{
    bool removed = tt_lost_link(tensor, sums);
    for (int32_t i = 0; i < tensor->need_count && !removed; i++) {
        removed = tt_lost_link(&terms->tensors[tensor->needs[i]], sums);
    }
    return removed;
}

/* Sum of |D_{k-1}| n_k |D_k| over the cores, |D| being the count or the sum of kept entries. */
static double tt_tensor_size(const tt_rank_terms *terms, const tt_rank_tensor *tensor,
                             const tt_link_sums *sums, bool relaxed)
{
    if (tt_is_removed(terms, tensor, sums)) {
        return 0.0;
    }
    double size = 0.0, left = 1.0;
    for (int32_t k = 0; k < tensor->order; k++) {
        const tt_link_sums *link = &sums[tensor->link_first + k];
        double right = k + 1 == tensor->order ? 1.0 : relaxed ? link->sum : link->count;
        size += left * (double)terms->cores[tensor->core_first + k].mode * right;
        left = right;
    }
    return size;
}

static double tt_whole_size(const tt_rank_terms *terms, const tt_link_sums *sums, bool relaxed)
{
    double size = 0.0;
    for (int t = 0; t < terms->tensor_count; t++) {
        size += tt_tensor_size(terms, &terms->tensors[t], sums, relaxed);
    }
    return size;
}

/* Sets a held entry to 0, and with it the link's number of held entries, as one is enough for a
 * step. False where it stays, because without it the tensor would be gone and the size below the
 * target. `size` is the size of all. */
static bool tt_prune_entry(const tt_rank_terms *terms, const tt_rank_entry *entry,
                           tt_link_sums *sums, double *size)
{
    const tt_rank_link *link = &terms->links[entry->link];
    const tt_rank_tensor *tensor = &terms->tensors[link->tensor];
    tt_link_sums *link_sums = &sums[entry->link];
    double before = tt_tensor_size(terms, tensor, sums, false);
    link_sums->count -= 1.0;
    bool last = link_sums->count == 0.0;
    double after = last ? tt_whole_size(terms, sums, false)
                        : *size + tt_tensor_size(terms, tensor, sums, false) - before;
    if (last && after < terms->settings->target) {
        link_sums->count = 1.0;
        return false;
    }
    link_sums->sum -= link->values[entry->place];
    link_sums->held = 0;
    link->values[entry->place] = 0.0f;
    link->first_moment[entry->place] = link->second_moment[entry->place] = 0.0f;
    *size = after;
    return true;
}

/* Prunes until the size is at the target. Returns how many entries. */
static int32_t tt_prune_to_target(const tt_rank_terms *terms, tt_link_sums *sums)
{
    double size = tt_whole_size(terms, sums, false), target = terms->settings->target;
    float least = tt_least_kept(terms->threshold);
    int32_t pruned = 0;
    for (int64_t i = 0; i < terms->entry_count && size > target; i++) {
        const tt_rank_entry *entry = &terms->entries[i];
        const tt_rank_link *link = &terms->links[entry->link];
        float value = link->values[entry->place];
        bool held = value > terms->threshold && value <= least && sums[entry->link].held > 0;
        if (held && !tt_is_removed(terms, &terms->tensors[link->tensor], sums)) {
            pruned += tt_prune_entry(terms, entry, sums, &size);
        }
    }
    return pruned;
}

static double tt_mean_loss(const tt_rank_terms *terms)
{
    double loss = 0.0;
    for (int i = 0; i < terms->loss_count; i++) {
        loss += (double)terms->loss_sums[i] * terms->loss_scales[i];
    }
    return loss;
}

static bool tt_size_leads(const tt_rank_settings *s, double loss, double size)
{
    double over_loss = loss - s->target_loss, over_size = size - s->target;
    if (s->stops_at_target && over_size <= 0.0) {
        return false;
    }
    return s->of_the_mean ? over_loss * size < over_size * loss
                          : s->w1 * over_loss * s->unit < s->w2 * over_size;
}

static tt_rank_choice tt_choose(const tt_rank_settings *s, double loss, double size)
{
    if (s->stage == TT_RANKS_LEFT) {
        return (tt_rank_choice){1.0, 0.0, TT_BRANCH_NONE};
    }
    if (s->stage == TT_RANKS_EARLY) {
        return (tt_rank_choice){1.0, s->gamma, TT_BRANCH_NONE};
    }
    double always = s->of_the_mean ? s->gamma : s->rho;
    if (tt_size_leads(s, loss, size)) {
        return (tt_rank_choice){s->rho, always + s->w2, TT_BRANCH_SIZE};
    }
    bool there = s->stops_at_target && size <= s->target;
    return (tt_rank_choice){s->rho + s->w1, there ? 0.0 : always, TT_BRANCH_LOSS};
}

/* What each kept entry of every link gains, all the same within a link. */
static void tt_link_gradients(const tt_rank_terms *terms, tt_link_sums *sums, double factor,
                              double entries)
{
    const tt_rank_settings *settings = terms->settings;
    for (int l = 0; l < terms->link_count; l++) {
        const tt_rank_tensor *tensor = &terms->tensors[terms->links[l].tensor];
        int32_t k = l - tensor->link_first;
        double left = k > 0 ? sums[l - 1].sum : 1.0;
        double right = k + 2 < tensor->order ? sums[l + 1].sum : 1.0;
        const tt_rank_core *core = &terms->cores[tensor->core_first + k];
        double slope = (left * (double)core[0].mode + (double)core[1].mode * right);
        slope = settings->of_the_mean ? 1.0 / entries : slope / settings->unit;
        sums[l].gradient = tt_is_removed(terms, tensor, sums) ? 0.0 : factor * slope;
    }
}

static void tt_scale_gradients(tt_device *device, const tt_rank_terms *terms, float factor)
{
    if (factor == 1.0f) {
        return;
    }
    float *gradients = terms->gradients;
    int64_t count = terms->gradient_count;
#pragma omp parallel for simd num_threads(tt_cpu_team(device, count)) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        gradients[i] *= factor;
    }
}

static void tt_add_to_links(const tt_rank_terms *terms, const tt_link_sums *sums)
{
    for (int l = 0; l < terms->link_count; l++) {
        const tt_rank_link *link = &terms->links[l];
        float gain = (float)sums[l].gradient;
        for (int32_t j = 0; j < link->rank; j++) {
            link->gradients[j] += link->values[j] > terms->threshold ? gain : 0.0f;
        }
    }
}

/* gradient += factor G over `count` entries, those of pruned right slices left out. */
static void tt_add_to_row(const tt_rank_core *core, int64_t first, int64_t count, float factor,
                          const float *right, float threshold)
{
    const float *values = core->values + first;
    float *gradients = core->gradients + first;
    if (right == NULL) {
#pragma omp simd
        for (int64_t j = 0; j < count; j++) {
            gradients[j] += factor * values[j];
        }
        return;
    }
#pragma omp simd
    for (int64_t j = 0; j < count; j++) {
        gradients[j] += right[j] > threshold ? factor * values[j] : 0.0f;
    }
}

/* gradient += 2 beta G, where both slices that an entry lies in are kept. */
static void tt_add_to_core(const tt_rank_terms *terms, const tt_rank_core *core)
{
    float factor = 2.0f * terms->settings->beta;
    const float *left = core->left_link < 0 ? NULL : terms->links[core->left_link].values;
    const float *right = core->right_link < 0 ? NULL : terms->links[core->right_link].values;
    /* The last core has no slices to leave out on its right: a left slice is one row. */
    int64_t rows = right == NULL ? 1 : core->mode;
    int64_t count = right == NULL ? core->mode * core->right : core->right;
    for (int64_t slice = 0; slice < core->left; slice++) {
        bool kept = left == NULL || left[slice] > terms->threshold;
        for (int64_t row = 0; kept && row < rows; row++) {
            tt_add_to_row(core, (slice * rows + row) * count, count, factor, right,
                          terms->threshold);
        }
    }
}

static void tt_add_to_cores(tt_device *device, const tt_rank_terms *terms, const tt_link_sums *sums)
{
    if (terms->settings->stage == TT_RANKS_LEFT || terms->settings->beta == 0.0f) {
        return;
    }
#pragma omp parallel for num_threads(tt_cpu_team(device, terms->gradient_count)) schedule(dynamic)
    for (int c = 0; c < terms->core_count; c++) {
        const tt_rank_core *core = &terms->cores[c];
        if (!tt_is_removed(terms, &terms->tensors[core->tensor], sums)) {
            tt_add_to_core(terms, core);
        }
    }
}

void tt_cpu_rank_objective(tt_device *device, const tt_rank_terms *terms)
{
    const tt_rank_settings *settings = terms->settings;
    tt_link_sums *sums = terms->workspace;
    int64_t held = 0;
    for (int l = 0; l < terms->link_count; l++) {
        sums[l] = tt_sum_link(&terms->links[l], terms->threshold);
        held += sums[l].held;
    }
    double loss = tt_mean_loss(terms);
    bool stops = settings->stage == TT_RANKS_LATE && settings->stops_at_target;
    int32_t pruned = stops && held > 0 && isfinite(loss) ? tt_prune_to_target(terms, sums) : 0;
    double sum = 0.0, entries = 0.0;
    for (int l = 0; l < terms->link_count; l++) {
        bool counts = !tt_is_removed(terms, &terms->tensors[terms->links[l].tensor], sums);
        sum += counts ? sums[l].sum : 0.0;
        entries += counts ? sums[l].count : 0.0;
    }
    double size = tt_whole_size(terms, sums, false);
    tt_rank_choice choice = tt_choose(settings, loss, size);
    *terms->record = (tt_rank_record){.size = size,
                                      .relaxed_size = tt_whole_size(terms, sums, true),
                                      .mean_diagonal = entries > 0.0 ? sum / entries : 0.0,
                                      .loss = loss,
                                      .branch = choice.branch,
                                      .pruned = pruned};
    *terms->holds = settings->stops_at_target ? 1.0f : 0.0f;
    tt_link_gradients(terms, sums, choice.size_factor, entries);
    tt_scale_gradients(device, terms, (float)choice.loss_factor);
    if (choice.size_factor != 0.0) {
        tt_add_to_links(terms, sums);
    }
    tt_add_to_cores(device, terms, sums);
}

size_t tt_cpu_rank_objective_workspace(tt_device *device, int link_count)
{
    (void)device;
    return (size_t)(link_count > 0 ? link_count : 1) * sizeof(tt_link_sums);
}

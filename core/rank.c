#include "core/rank.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

float tt_least_kept(float threshold)
{
    return nextafterf(threshold, INFINITY);
}

struct tt_rank_objective {
    const tt_parameters *parameters;
    tt_device *device;
    tt_ranked_tensor *tensors; /* a copy */
    int count;
    tt_rank_terms terms;
    tt_arena arena; /* tables, workspace and record */
};

/* The tables as the host makes them. */
typedef struct {
    tt_rank_tensor *tensors;
    tt_rank_link *links;
    tt_rank_core *cores;
    tt_rank_entry *entries;
} host_tables;

static int64_t rank_of(const tt_parameters *parameters, tt_parameter_id diagonal)
{
    return parameters->items[diagonal].count;
}

/* r_k of a tensor. */
static int64_t link_rank(const tt_rank_objective *objective, const tt_ranked_tensor *tensor, int k)
{
    return k == 0 || k == tensor->order ? 1
                                        : rank_of(objective->parameters, tensor->diagonals[k - 1]);
}

static void count_tables(tt_rank_objective *objective)
{
    tt_rank_terms *terms = &objective->terms;
    terms->tensor_count = objective->count;
    for (int t = 0; t < objective->count; t++) {
        const tt_ranked_tensor *tensor = &objective->tensors[t];
        terms->core_count += tensor->order;
        terms->link_count += tensor->order - 1;
        for (int k = 1; k < tensor->order; k++) {
            terms->entry_count += link_rank(objective, tensor, k);
        }
    }
}

static tt_rank_link make_link(const tt_parameters *parameters, tt_parameter_id id, int tensor)
{
    const tt_parameter *diagonal = &parameters->items[id];
    return (tt_rank_link){.values = parameters->values + diagonal->offset,
                          .gradients = parameters->gradients + diagonal->offset,
                          .first_moment = parameters->first_moment + diagonal->offset,
                          .second_moment = parameters->second_moment + diagonal->offset,
                          .rank = (int32_t)diagonal->count,
                          .tensor = tensor};
}

static void fill_tensor(const tt_rank_objective *objective, int number, int32_t core_first,
                        int32_t link_first, const host_tables *tables)
{
    const tt_parameters *parameters = objective->parameters;
    const tt_ranked_tensor *tensor = &objective->tensors[number];
    tables->tensors[number] = (tt_rank_tensor){tensor->order, core_first, link_first};
    for (int k = 0; k < tensor->order; k++) {
        const tt_parameter *core = &parameters->items[tensor->cores[k]];
        int64_t left = link_rank(objective, tensor, k), right = link_rank(objective, tensor, k + 1);
        assert(core->count % (left * right) == 0);
        tables->cores[core_first + k] =
            (tt_rank_core){.values = parameters->values + core->offset,
                           .gradients = parameters->gradients + core->offset,
                           .left = left,
                           .mode = core->count / (left * right),
                           .right = right,
                           .left_link = k == 0 ? -1 : link_first + k - 1,
                           .right_link = k + 1 == tensor->order ? -1 : link_first + k,
                           .tensor = number};
        if (k + 1 < tensor->order) {
            tables->links[link_first + k] = make_link(parameters, tensor->diagonals[k], number);
        }
    }
}

/* Entries by place, the highest first, and by link within a place. */
static void list_entries(const tt_rank_terms *terms, const host_tables *tables)
{
    int32_t places = 0;
    for (int l = 0; l < terms->link_count; l++) {
        places = tables->links[l].rank > places ? tables->links[l].rank : places;
    }
    int64_t used = 0;
    for (int32_t place = places - 1; place >= 0; place--) {
        for (int l = 0; l < terms->link_count; l++) {
            if (place < tables->links[l].rank) {
                tables->entries[used++] = (tt_rank_entry){l, place};
            }
        }
    }
}

static void fill_tables(const tt_rank_objective *objective, const host_tables *tables)
{
    int32_t core_first = 0, link_first = 0;
    for (int t = 0; t < objective->count; t++) {
        fill_tensor(objective, t, core_first, link_first, tables);
        core_first += objective->tensors[t].order;
        link_first += objective->tensors[t].order - 1;
    }
    list_entries(&objective->terms, tables);
}

/* Puts the tables, laid out as in the arena, into device memory. */
static tt_status place_tables(tt_rank_objective *objective, tt_error *error)
{
    tt_device *device = objective->device;
    tt_rank_terms *terms = &objective->terms;
    tt_arena *arena = &objective->arena;
    tt_arena_init(arena, device);
    size_t tensors = tt_arena_reserve(arena, (size_t)terms->tensor_count * sizeof(tt_rank_tensor));
    size_t links = tt_arena_reserve(arena, (size_t)terms->link_count * sizeof(tt_rank_link));
    size_t cores = tt_arena_reserve(arena, (size_t)terms->core_count * sizeof(tt_rank_core));
    size_t entries = tt_arena_reserve(arena, (size_t)terms->entry_count * sizeof(tt_rank_entry));
    size_t tables_end = tt_arena_mark(arena);
    size_t record = tt_arena_reserve(arena, sizeof(tt_rank_record));
    size_t workspace =
        tt_arena_reserve(arena, device->ops->rank_objective_workspace(device, terms->link_count));
    TT_TRY(tt_arena_allocate(arena, "the rank objective", error));
    char *host = calloc(1, tables_end > 0 ? tables_end : 1);
    if (!host) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the tables of ranks");
    }
    host_tables tables = {(void *)(host + tensors), (void *)(host + links), (void *)(host + cores),
                          (void *)(host + entries)};
    fill_tables(objective, &tables);
    if (tables_end > 0) {
        device->copy_in(device, tt_arena_at(arena, 0), host, tables_end);
    }
    free(host);
    terms->tensors = tt_arena_at(arena, tensors);
    terms->links = tt_arena_at(arena, links);
    terms->cores = tt_arena_at(arena, cores);
    terms->entries = tt_arena_at(arena, entries);
    terms->record = tt_arena_at(arena, record);
    terms->workspace = tt_arena_at(arena, workspace);
    return TT_OK;
}

tt_status tt_rank_objective_create(const tt_parameters *parameters, const tt_ranked_tensor *tensors,
                                   int count, float threshold, tt_rank_objective **objective,
                                   tt_error *error)
{
    tt_rank_objective *created = calloc(1, sizeof *created);
    tt_ranked_tensor *copy = calloc((size_t)count + 1, sizeof *copy);
    if (!created || !copy) {
        free(created);
        free(copy);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the rank objective");
    }
    for (int t = 0; t < count; t++) {
        copy[t] = tensors[t];
    }
    *created = (tt_rank_objective){.parameters = parameters,
                                   .device = parameters->device,
                                   .tensors = copy,
                                   .count = count,
                                   .terms = {.threshold = threshold,
                                             .gradients = parameters->gradients,
                                             .gradient_count = parameters->total,
                                             .loss_sums = tt_parameters_statistics(parameters)}};
    count_tables(created);
    if (place_tables(created, error) != TT_OK) {
        tt_rank_objective_destroy(&created);
        return error->status;
    }
    *objective = created;
    return TT_OK;
}

void tt_rank_objective_destroy(tt_rank_objective **objective)
{
    tt_rank_objective *gone = *objective;
    if (gone) {
        tt_arena_free(&gone->arena);
        free(gone->tensors);
        free(gone);
    }
    *objective = NULL;
}

void tt_rank_objective_apply(tt_rank_objective *objective, const tt_rank_settings *settings,
                             const float *loss_scales, int loss_count, tt_step_state *state)
{
    tt_rank_terms *terms = &objective->terms;
    terms->settings = settings;
    terms->loss_scales = loss_scales;
    terms->loss_count = loss_count;
    terms->state = state;
    objective->device->ops->rank_objective(objective->device, terms);
}

const tt_rank_record *tt_rank_objective_record(const tt_rank_objective *objective)
{
    return objective->terms.record;
}

/* Kept entries of a link; `diagonals` are the values of that range of the flat buffers. */
static int64_t kept_entries(const tt_rank_objective *objective, tt_parameter_id id,
                            const float *diagonals)
{
    const tt_parameters *parameters = objective->parameters;
    const tt_parameter *diagonal = &parameters->items[id];
    const float *values =
        diagonals + (diagonal->offset - parameters->range_start[TT_GROUP_DIAGONALS]);
    int64_t kept = 0;
    for (int64_t j = 0; j < diagonal->count; j++) {
        kept += values[j] > objective->terms.threshold;
    }
    return kept;
}

static int64_t tensor_size(const tt_rank_objective *objective, const tt_ranked_tensor *tensor,
                           const float *diagonals)
{
    const tt_parameters *parameters = objective->parameters;
    int64_t size = 0, left = 1;
    bool removed = false;
    for (int k = 0; k < tensor->order; k++) {
        bool last = k + 1 == tensor->order;
        int64_t right = last ? 1 : kept_entries(objective, tensor->diagonals[k], diagonals);
        int64_t whole = link_rank(objective, tensor, k) * link_rank(objective, tensor, k + 1);
        size += left * (parameters->items[tensor->cores[k]].count / whole) * right;
        removed = removed || right == 0;
        left = right;
    }
    return removed ? 0 : size;
}

int64_t tt_rank_objective_size(const tt_rank_objective *objective)
{
    const tt_parameters *parameters = objective->parameters;
    int64_t first = parameters->range_start[TT_GROUP_DIAGONALS];
    int64_t count = parameters->range_start[TT_GROUP_DIAGONALS + 1] - first, size = 0;
    float *diagonals = malloc(tt_floats(count + 1));
    if (!diagonals) {
        return -1;
    }
    if (count > 0) {
        objective->device->copy_out(objective->device, diagonals, parameters->values + first,
                                    tt_floats(count));
    }
    for (int t = 0; t < objective->count; t++) {
        size += tensor_size(objective, &objective->tensors[t], diagonals);
    }
    free(diagonals);
    return size;
}

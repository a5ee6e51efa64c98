#include "core/rank.h"

#include <math.h>
#include <stdlib.h>

float tt_least_kept(float threshold)
{
    return nextafterf(threshold, INFINITY);
}

struct tt_rank_objective {
    const tt_train_set *trains;
    const tt_parameters *parameters;
    tt_device *device;
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

static void count_tables(tt_rank_objective *objective)
{
    tt_rank_terms *terms = &objective->terms;
    terms->tensor_count = objective->trains->count;
    for (int t = 0; t < terms->tensor_count; t++) {
        const tt_train_shape *shape = &objective->trains->trains[t].shape;
        terms->core_count += shape->order;
        terms->link_count += shape->order - 1;
        for (int k = 1; k < shape->order; k++) {
            terms->entry_count += shape->ranks[k];
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
    const tt_train *train = &objective->trains->trains[number];
    const tt_train_shape *shape = &train->shape;
    tt_rank_tensor tensor = {shape->order, core_first, link_first, train->need_count, {0}};
    for (int i = 0; i < train->need_count; i++) {
        tensor.needs[i] = train->needs[i];
    }
    tables->tensors[number] = tensor;
    for (int k = 0; k < shape->order; k++) {
        bool last = k + 1 == shape->order;
        int64_t offset = parameters->items[train->cores[k]].offset;
        tables->cores[core_first + k] =
            (tt_rank_core){.values = parameters->values + offset,
                           .gradients = parameters->gradients + offset,
                           .left = shape->ranks[k],
                           .mode = shape->modes[k],
                           .right = shape->ranks[k + 1],
                           .left_link = k == 0 ? -1 : link_first + k - 1,
                           .right_link = last ? -1 : link_first + k,
                           .tensor = number};
        if (!last) {
            tables->links[link_first + k] = make_link(parameters, train->diagonals[k], number);
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
    for (int t = 0; t < objective->trains->count; t++) {
        int32_t order = objective->trains->trains[t].shape.order;
        fill_tensor(objective, t, core_first, link_first, tables);
        core_first += order;
        link_first += order - 1;
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

tt_status tt_rank_objective_create(const tt_train_set *trains, tt_rank_objective **objective,
                                   tt_error *error)
{
    tt_rank_objective *created = calloc(1, sizeof *created);
    if (!created) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the rank objective");
    }
    const tt_parameters *parameters = trains->parameters;
    *created = (tt_rank_objective){.trains = trains,
                                   .parameters = parameters,
                                   .device = parameters->device,
                                   .terms = {.threshold = trains->threshold,
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
        free(gone);
    }
    *objective = NULL;
}

void tt_rank_objective_apply(tt_rank_objective *objective, const tt_rank_settings *settings,
                             const float *loss_scales, int loss_count, float *holds)
{
    tt_rank_terms *terms = &objective->terms;
    terms->settings = settings;
    terms->loss_scales = loss_scales;
    terms->loss_count = loss_count;
    terms->holds = holds;
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

/* 0 where a link has no entries left. */
static int64_t train_size(const tt_rank_objective *objective, int number, const float *diagonals)
{
    const tt_train *train = &objective->trains->trains[number];
    const tt_train_shape *shape = &train->shape;
    int64_t size = 0, left = 1;
    bool lost = false;
    for (int k = 0; k < shape->order; k++) {
        bool last = k + 1 == shape->order;
        int64_t right = last ? 1 : kept_entries(objective, train->diagonals[k], diagonals);
        size += left * shape->modes[k] * right;
        lost = lost || right == 0;
        left = right;
    }
    return lost ? 0 : size;
}

/* Without the trains that serve only what is lost. */
static int64_t size_left(const tt_rank_objective *objective, const float *diagonals)
{
    int64_t size = 0;
    for (int t = 0; t < objective->trains->count; t++) {
        const tt_train *train = &objective->trains->trains[t];
        bool needed = true;
        for (int i = 0; i < train->need_count; i++) {
            needed = needed && train_size(objective, train->needs[i], diagonals) > 0;
        }
        size += needed ? train_size(objective, t, diagonals) : 0;
    }
    return size;
}

int64_t tt_rank_objective_size(const tt_rank_objective *objective)
{
    const tt_parameters *parameters = objective->parameters;
    int64_t first = parameters->range_start[TT_GROUP_DIAGONALS];
    int64_t count = parameters->range_start[TT_GROUP_DIAGONALS + 1] - first;
    float *diagonals = malloc(tt_floats(count + 1));
    if (!diagonals) {
        return -1;
    }
    if (count > 0) {
        objective->device->copy_out(objective->device, diagonals, parameters->values + first,
                                    tt_floats(count));
    }
    int64_t size = size_left(objective, diagonals);
    free(diagonals);
    return size;
}

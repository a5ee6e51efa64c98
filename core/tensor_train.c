#include "core/tensor_train.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Device calls of one depth: independent of each other, done together. */
typedef struct {
    tt_product *items;
    int count;
} product_list;

typedef struct {
    tt_copy *items;
    int count;
} copy_list;

typedef enum { EXACT, GRADIENT, ROUNDED, FACTOR_KINDS } factor_kind;

/* Where the pieces of one train lie in the set's arena. The chains keep every partial product,
 * which the backward pass needs: prefix k is H_1...H_k, suffix k is H_k...H_m. */
typedef struct {
    size_t scaled[TT_MAX_ORDER], scaled_gradient[TT_MAX_ORDER];
    size_t chain[TT_MAX_ORDER],
        chain_gradient[TT_MAX_ORDER]; /* prefix or suffix ending at core k */
    struct {
        size_t a, b; /* neighbours share the a of the first */
    } factors[FACTOR_KINDS];
} train_room;

struct tt_train_plan {
    tt_arena arena;
    train_room *rooms;
    int *block_first; /* first train of the block of neighbours that train i belongs to */
    size_t gradients_begin, gradients_end; /* dA and dB of all trains, contiguous */

    tt_scaled_core *scaled;
    int scaled_count;
    product_list forward[TT_MAX_ORDER], backward[TT_MAX_ORDER]; /* by depth */
    copy_list place, collect, last_cores;
};

void tt_train_set_init(tt_train_set *set, tt_parameters *parameters, float threshold)
{
    *set = (tt_train_set){.parameters = parameters, .threshold = threshold};
}

tt_status tt_train_set_add(tt_train_set *set, const char *name, const tt_train_shape *shape,
                           int neighbour, int *index, tt_error *error)
{
    if (set->count == set->capacity) {
        int capacity = set->capacity ? 2 * set->capacity : 16;
        tt_train *trains = realloc(set->trains, (size_t)capacity * sizeof *trains);
        if (!trains) {
            return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the list of tensor trains");
        }
        set->trains = trains;
        set->capacity = capacity;
    }
    tt_train *train = &set->trains[set->count];
    *train = (tt_train){.shape = *shape};
    for (int k = 0; k < shape->order; k++) {
        char full_name[192];
        snprintf(full_name, sizeof full_name, "%s.core_%d", name, k + 1);
        int64_t dimensions[3] = {shape->ranks[k], shape->modes[k], shape->ranks[k + 1]};
        TT_TRY(tt_parameters_add(set->parameters, full_name, TT_GROUP_CORES, true, 3, dimensions,
                                 &train->cores[k], error));
        if (k + 1 < shape->order) {
            snprintf(full_name, sizeof full_name, "%s.rank_diagonal_%d", name, k + 1);
            TT_TRY(tt_parameters_add(set->parameters, full_name, TT_GROUP_DIAGONALS, false, 1,
                                     &shape->ranks[k + 1], &train->diagonals[k], error));
        }
    }
    *index = set->count++;
    /* Until plan() numbers the blocks, a.columns says how many neighbours stand before this one. */
    train->a.columns = neighbour < 0 ? 0 : set->trains[neighbour].a.columns + 1;
    return TT_OK;
}

void tt_train_set_need(tt_train_set *set, int index, int needed)
{
    tt_train *train = &set->trains[index];
    assert(train->need_count < TT_MOST_NEEDS);
    train->needs[train->need_count++] = needed;
}

void tt_train_initialize(const tt_train_set *set, int index, float deviation, uint64_t seed)
{
    const tt_train *train = &set->trains[index];
    const tt_train_shape *shape = &train->shape;
    tt_parameters *parameters = set->parameters;
    for (int k = 0; k < shape->order; k++) {
        /* An entry is a sum over all paths of a product of m factors; with core k's deviation
         * deviation^(1/m) / sqrt(r_k) its variance is deviation^2. */
        double spread = pow(deviation, 1.0 / shape->order) / sqrt((double)shape->ranks[k + 1]);
        tt_parameters_fill_normal(parameters, train->cores[k], (float)spread, seed);
        if (k + 1 < shape->order) {
            tt_parameters_fill(parameters, train->diagonals[k], 1.0f);
        }
    }
}

/* --- planning ------------------------------------------------------------------------------- */

static int64_t mode_product(const tt_train_shape *shape, int first, int last)
{
    int64_t product = 1;
    for (int k = first; k <= last; k++) {
        product *= shape->modes[k];
    }
    return product;
}

/* Shape of the chain product that ends (prefix) or begins (suffix) at core k, as the matrix that
 * the next product uses: prefix [n_1...n_k, r_k], suffix [r_{k-1}, n_k...n_m]. */
static void chain_shape(const tt_train_shape *shape, int k, int64_t *rows, int64_t *columns)
{
    if (k < shape->input_order) {
        *rows = mode_product(shape, 0, k);
        *columns = shape->ranks[k + 1];
    } else {
        *rows = shape->ranks[k];
        *columns = mode_product(shape, k, shape->order - 1);
    }
}

static bool chain_begins(const tt_train_shape *shape, int k)
{
    return k == 0 || k == shape->order - 1;
}

static void reserve_train(tt_arena *arena, const tt_train_shape *shape, train_room *room)
{
    for (int k = 0; k < shape->order; k++) {
        int64_t core = shape->ranks[k] * shape->modes[k] * shape->ranks[k + 1];
        if (k + 1 < shape->order) {
            room->scaled[k] = tt_arena_reserve(arena, tt_floats(core));
            room->scaled_gradient[k] = tt_arena_reserve(arena, tt_floats(core));
        }
        /* The chain that begins at an outer core is that scaled core itself; the suffix that ends
         * the output side is B, which has its own room. */
        bool is_b = k == shape->input_order;
        if (!chain_begins(shape, k) && !is_b) {
            int64_t rows, columns;
            chain_shape(shape, k, &rows, &columns);
            room->chain[k] = tt_arena_reserve(arena, tt_floats(rows * columns));
            room->chain_gradient[k] = tt_arena_reserve(arena, tt_floats(rows * columns));
        }
    }
}

static int64_t cut_rank(const tt_train *train)
{
    return train->shape.ranks[train->shape.input_order];
}

/* r_d of all trains of the block that train `i` begins. */
static int64_t block_width(const tt_train_set *set, int i)
{
    int64_t width = 0;
    for (int j = i; j < set->count && set->plan->block_first[j] == i; j++) {
        width += cut_rank(&set->trains[j]);
    }
    return width;
}

static void reserve_kind(tt_train_set *set, factor_kind kind, tt_type type)
{
    struct tt_train_plan *plan = set->plan;
    for (int i = 0; i < set->count; i++) {
        const tt_train *train = &set->trains[i];
        int64_t rows = cut_rank(train) + (kind == ROUNDED ? 0 : 1); /* one for the bias */
        plan->rooms[i].factors[kind].b = tt_arena_reserve(
            &plan->arena, tt_type_bytes(type, rows * tt_train_outputs(&train->shape)));
        if (plan->block_first[i] == i) {
            int64_t size = block_width(set, i) * tt_train_inputs(&train->shape);
            plan->rooms[i].factors[kind].a =
                tt_arena_reserve(&plan->arena, tt_type_bytes(type, size));
        }
    }
}

static void reserve_factors(tt_train_set *set)
{
    struct tt_train_plan *plan = set->plan;
    reserve_kind(set, EXACT, TT_F32);
    plan->gradients_begin = tt_arena_mark(&plan->arena);
    reserve_kind(set, GRADIENT, TT_F32);
    plan->gradients_end = tt_arena_mark(&plan->arena);
    if (set->parameters->device->compute != TT_F32) {
        reserve_kind(set, ROUNDED, set->parameters->device->compute);
    }
}

/* A and B of one kind; A lies beside those of its neighbours in one matrix. */
static void resolve_kind(const tt_train_set *set, int i, factor_kind kind, tt_type type,
                         tt_matrix *a, tt_matrix *b)
{
    const struct tt_train_plan *plan = set->plan;
    const tt_train *train = &set->trains[i];
    int first = plan->block_first[i];
    int64_t column = 0;
    for (int j = first; j < i; j++) {
        column += cut_rank(&set->trains[j]);
    }
    tt_matrix block =
        tt_matrix_dense(tt_arena_at(&plan->arena, plan->rooms[first].factors[kind].a),
                        tt_train_inputs(&train->shape), block_width(set, first), type);
    *a = tt_matrix_columns(block, column, cut_rank(train));
    *b = tt_matrix_dense(tt_arena_at(&plan->arena, plan->rooms[i].factors[kind].b), cut_rank(train),
                         tt_train_outputs(&train->shape), type);
}

static void resolve_factors(tt_train_set *set)
{
    tt_type compute = set->parameters->device->compute;
    for (int i = 0; i < set->count; i++) {
        tt_train *train = &set->trains[i];
        resolve_kind(set, i, EXACT, TT_F32, &train->a, &train->b);
        resolve_kind(set, i, GRADIENT, TT_F32, &train->a_gradient, &train->b_gradient);
        train->rounded_a = train->a;
        train->rounded_b = train->b;
        if (compute != TT_F32) {
            resolve_kind(set, i, ROUNDED, compute, &train->rounded_a, &train->rounded_b);
        }
    }
}

/* The scaled core k and its gradient as flat memory; the last core has no diagonal and is used as
 * it is. */
static float *scaled_core(const tt_train_set *set, int i, int k, bool gradient)
{
    const tt_train *train = &set->trains[i];
    if (k == train->shape.order - 1) {
        return gradient ? tt_parameters_gradient(set->parameters, train->cores[k])
                        : tt_parameters_value(set->parameters, train->cores[k]);
    }
    const train_room *room = &set->plan->rooms[i];
    return tt_arena_at(&set->plan->arena, gradient ? room->scaled_gradient[k] : room->scaled[k]);
}

/* Chain product at core k and its gradient as flat memory. */
static float *chain_memory(const tt_train_set *set, int i, int k, bool gradient)
{
    const tt_train *train = &set->trains[i];
    const train_room *room = &set->plan->rooms[i];
    if (k == train->shape.input_order && !chain_begins(&train->shape, k)) {
        return gradient ? train->b_gradient.data : train->b.data;
    }
    if (chain_begins(&train->shape, k)) {
        return scaled_core(set, i, k, gradient);
    }
    return tt_arena_at(&set->plan->arena, gradient ? room->chain_gradient[k] : room->chain[k]);
}

static void list_product(product_list *list, bool transpose_a, bool transpose_b, float beta,
                         tt_matrix a, tt_matrix b, tt_matrix c)
{
    list->items[list->count++] = (tt_product){.transpose_a = transpose_a,
                                              .transpose_b = transpose_b,
                                              .alpha = 1.0f,
                                              .beta = beta,
                                              .a = a,
                                              .b = b,
                                              .c = c};
}

/* Products of the input side that extend the prefix by core k (k = 1..d-1):
 * P_k = P_{k-1} H_k;  dH_k = P_{k-1}^T dP_k;  dP_{k-1} = dP_k H_k^T. */
static void list_prefix(tt_train_set *set, int i, int k)
{
    struct tt_train_plan *plan = set->plan;
    const tt_train_shape *shape = &set->trains[i].shape;
    int64_t rows = mode_product(shape, 0, k - 1), inner = shape->ranks[k];
    int64_t columns = shape->modes[k] * shape->ranks[k + 1];
    tt_matrix before = tt_matrix_f32(chain_memory(set, i, k - 1, false), rows, inner);
    tt_matrix d_before = tt_matrix_f32(chain_memory(set, i, k - 1, true), rows, inner);
    tt_matrix core = tt_matrix_f32(scaled_core(set, i, k, false), inner, columns);
    tt_matrix d_core = tt_matrix_f32(scaled_core(set, i, k, true), inner, columns);
    tt_matrix after = tt_matrix_f32(chain_memory(set, i, k, false), rows, columns);
    tt_matrix d_after = tt_matrix_f32(chain_memory(set, i, k, true), rows, columns);
    list_product(&plan->forward[k], false, false, 0, before, core, after);
    int depth = shape->input_order - k;
    list_product(&plan->backward[depth], true, false, 0, before, d_after, d_core);
    list_product(&plan->backward[depth], false, true, 0, d_after, core, d_before);
}

/* Products of the output side that extend the suffix by core k (k = m-2..d):
 * S_k = H_k S_{k+1};  dH_k = dS_k S_{k+1}^T;  dS_{k+1} = H_k^T dS_k. */
static void list_suffix(tt_train_set *set, int i, int k)
{
    struct tt_train_plan *plan = set->plan;
    const tt_train_shape *shape = &set->trains[i].shape;
    int64_t rows = shape->ranks[k] * shape->modes[k], inner = shape->ranks[k + 1];
    int64_t columns = mode_product(shape, k + 1, shape->order - 1);
    tt_matrix before = tt_matrix_f32(chain_memory(set, i, k + 1, false), inner, columns);
    tt_matrix d_before = tt_matrix_f32(chain_memory(set, i, k + 1, true), inner, columns);
    tt_matrix core = tt_matrix_f32(scaled_core(set, i, k, false), rows, inner);
    tt_matrix d_core = tt_matrix_f32(scaled_core(set, i, k, true), rows, inner);
    tt_matrix after = tt_matrix_f32(chain_memory(set, i, k, false), rows, columns);
    tt_matrix d_after = tt_matrix_f32(chain_memory(set, i, k, true), rows, columns);
    list_product(&plan->forward[shape->order - 1 - k], false, false, 0, core, before, after);
    int depth = k - shape->input_order + 1;
    list_product(&plan->backward[depth], false, true, 0, d_after, before, d_core);
    /* The outermost core has no diagonal, so this is its gradient itself, which accumulates. */
    bool outermost = k + 1 == shape->order - 1;
    list_product(&plan->backward[depth], true, false, outermost ? 1 : 0, core, d_after, d_before);
}

static void list_copy(copy_list *list, tt_matrix source, tt_matrix target, bool accumulate)
{
    list->items[list->count++] =
        (tt_copy){.source = source, .target = target, .accumulate = accumulate};
}

/* A is copied to its place beside its neighbours; a side of one core is that core. Rounded factors
 * are made from the same sources. */
static void list_copies(tt_train_set *set, int i)
{
    struct tt_train_plan *plan = set->plan;
    const tt_train *train = &set->trains[i];
    int last_input = train->shape.input_order - 1;
    tt_matrix prefix = train->a;
    prefix.stride = prefix.columns;
    prefix.data = chain_memory(set, i, last_input, false);
    list_copy(&plan->place, prefix, train->a, false);
    tt_matrix suffix = train->b;
    suffix.data = chain_memory(set, i, last_input + 1, false);
    if (train->rounded_a.type != TT_F32) {
        list_copy(&plan->place, prefix, train->rounded_a, false);
        list_copy(&plan->place, suffix, train->rounded_b, false);
    }
    prefix.data = chain_memory(set, i, last_input, true);
    list_copy(&plan->collect, train->a_gradient, prefix, false);

    if (last_input + 2 == train->shape.order) {
        list_copy(&plan->place, suffix, train->b, false);
        suffix.data = scaled_core(set, i, last_input + 1, true);
        list_copy(&plan->last_cores, train->b_gradient, suffix, true);
    }
}

static void list_train(tt_train_set *set, int i)
{
    struct tt_train_plan *plan = set->plan;
    const tt_train *train = &set->trains[i];
    const tt_train_shape *shape = &train->shape;
    for (int k = 0; k + 1 < shape->order; k++) {
        plan->scaled[plan->scaled_count++] = (tt_scaled_core){
            .core = tt_parameters_value(set->parameters, train->cores[k]),
            .diagonal = tt_parameters_value(set->parameters, train->diagonals[k]),
            .scaled = scaled_core(set, i, k, false),
            .scaled_gradient = scaled_core(set, i, k, true),
            .core_gradient = tt_parameters_gradient(set->parameters, train->cores[k]),
            .diagonal_gradient = tt_parameters_gradient(set->parameters, train->diagonals[k]),
            .rows = shape->ranks[k] * shape->modes[k],
            .rank = shape->ranks[k + 1],
            .threshold = set->threshold};
    }
    for (int k = 1; k < shape->input_order; k++) {
        list_prefix(set, i, k);
    }
    for (int k = shape->order - 2; k >= shape->input_order; k--) {
        list_suffix(set, i, k);
    }
    list_copies(set, i);
}

/* Room for the lists: a train gives at most two products forward and four backward at a depth. */
static bool allocate_lists(tt_train_set *set)
{
    struct tt_train_plan *plan = set->plan;
    size_t count = (size_t)(set->count > 0 ? set->count : 1);
    plan->rooms = calloc(count, sizeof *plan->rooms);
    plan->block_first = calloc(count, sizeof *plan->block_first);
    plan->scaled = calloc(count * TT_MAX_ORDER, sizeof *plan->scaled);
    plan->place.items = calloc(4 * count, sizeof(tt_copy));
    plan->collect.items = calloc(count, sizeof(tt_copy));
    plan->last_cores.items = calloc(count, sizeof(tt_copy));
    bool complete = plan->rooms && plan->block_first && plan->scaled && plan->place.items &&
                    plan->collect.items && plan->last_cores.items;
    for (int depth = 0; depth < TT_MAX_ORDER; depth++) {
        plan->forward[depth].items = calloc(2 * count, sizeof(tt_product));
        plan->backward[depth].items = calloc(4 * count, sizeof(tt_product));
        complete = complete && plan->forward[depth].items && plan->backward[depth].items;
    }
    return complete;
}

tt_status tt_train_set_plan(tt_train_set *set, tt_error *error)
{
    set->plan = calloc(1, sizeof *set->plan);
    if (!set->plan || !allocate_lists(set)) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the plan of tensor trains");
    }
    struct tt_train_plan *plan = set->plan;
    tt_arena_init(&plan->arena, set->parameters->device);
    for (int i = 0; i < set->count; i++) {
        plan->block_first[i] = i - (int)set->trains[i].a.columns;
        reserve_train(&plan->arena, &set->trains[i].shape, &plan->rooms[i]);
    }
    reserve_factors(set);
    tt_status status = tt_arena_allocate(&plan->arena, "tensor-train factors", error);
    if (status == TT_OK) {
        resolve_factors(set);
        for (int i = 0; i < set->count; i++) {
            list_train(set, i);
        }
    }
    return status;
}

void tt_train_set_free(tt_train_set *set)
{
    struct tt_train_plan *plan = set->plan;
    if (plan) {
        for (int depth = 0; depth < TT_MAX_ORDER; depth++) {
            free(plan->forward[depth].items);
            free(plan->backward[depth].items);
        }
        free(plan->place.items);
        free(plan->collect.items);
        free(plan->last_cores.items);
        free(plan->scaled);
        free(plan->rooms);
        free(plan->block_first);
        if (plan->arena.device) {
            tt_arena_free(&plan->arena);
        }
        free(plan);
    }
    free(set->trains);
    *set = (tt_train_set){0};
}

size_t tt_train_set_bytes(const tt_train_set *set)
{
    return set->plan->arena.capacity;
}

tt_train_work tt_train_set_work(const tt_train_set *set)
{
    const struct tt_train_plan *plan = set->plan;
    const int lists[] = {plan->scaled_count, plan->scaled_count, plan->place.count,
                         plan->collect.count, plan->last_cores.count};
    tt_train_work work = {.calls = 1, .singles = 2 * set->count}; /* gradients are cleared */
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        work.calls += lists[i] > 0;
    }
    for (int depth = 0; depth < TT_MAX_ORDER; depth++) {
        work.calls += (plan->forward[depth].count > 0) + (plan->backward[depth].count > 0);
        work.singles += plan->forward[depth].count + plan->backward[depth].count;
    }
    return work;
}

static tt_matrix join_columns(tt_matrix first, tt_matrix last)
{
    const char *begin = first.data, *end = tt_matrix_at(last, 0, last.columns);
    first.columns = (end - begin) / (int64_t)tt_type_size(first.type);
    return first;
}

tt_matrix tt_train_set_input_factors(const tt_train_set *set, int first, int last)
{
    return join_columns(set->trains[first].rounded_a, set->trains[last].rounded_a);
}

tt_matrix tt_train_set_input_gradients(const tt_train_set *set, int first, int last)
{
    return join_columns(set->trains[first].a_gradient, set->trains[last].a_gradient);
}

/* --- running -------------------------------------------------------------------------------- */

void tt_train_set_materialise(tt_train_set *set)
{
    struct tt_train_plan *plan = set->plan;
    tt_device *device = set->parameters->device;
    device->zero(device, tt_arena_at(&plan->arena, plan->gradients_begin),
                 plan->gradients_end - plan->gradients_begin);
    device->ops->scale_cores(device, plan->scaled, plan->scaled_count);
    for (int depth = 1; depth < TT_MAX_ORDER; depth++) {
        device->ops->multiply_group(device, plan->forward[depth].items, plan->forward[depth].count);
    }
    device->ops->copy_group(device, plan->place.items, plan->place.count);
}

void tt_train_set_contract(tt_train_set *set)
{
    struct tt_train_plan *plan = set->plan;
    tt_device *device = set->parameters->device;
    device->ops->copy_group(device, plan->collect.items, plan->collect.count);
    device->ops->copy_group(device, plan->last_cores.items, plan->last_cores.count);
    for (int depth = 1; depth < TT_MAX_ORDER; depth++) {
        device->ops->multiply_group(device, plan->backward[depth].items,
                                    plan->backward[depth].count);
    }
    device->ops->scale_cores_backward(device, plan->scaled, plan->scaled_count);
}

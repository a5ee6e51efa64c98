#include "core/tensor_train_matrix.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- shapes ----------------------------------------------------------------------------------- */

static int64_t product_of(const int64_t *sizes, int first, int end)
{
    int64_t product = 1;
    for (int k = first; k < end; k++) {
        product *= sizes[k];
    }
    return product;
}

tt_train_shape tt_train_matrix_train(const tt_train_matrix_shape *shape)
{
    tt_train_shape train = {.order = shape->order};
    memcpy(train.ranks, shape->ranks, sizeof train.ranks);
    for (int k = 0; k < shape->order; k++) {
        train.modes[k] = shape->rows[k] * shape->columns[k];
    }
    double smallest = INFINITY;
    for (int cut = 1; cut < shape->order; cut++) {
        double left = 1, right = 1;
        for (int k = 0; k < shape->order; k++) {
            *(k < cut ? &left : &right) *= (double)train.modes[k];
        }
        if (left + right < smallest) {
            smallest = left + right;
            train.input_order = cut;
        }
    }
    return train;
}

static tt_status check_product(const int64_t *sizes, int order, const char *what, int64_t least,
                               int64_t most, const char *name, tt_error *error)
{
    double product = 1;
    for (int k = 0; k < order; k++) {
        if (sizes[k] < 1 || sizes[k] > INT32_MAX) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: %s mode %d: expected a size of 1 or more, found %lld", name,
                                what, k + 1, (long long)sizes[k]);
        }
        product *= (double)sizes[k];
    }
    if (product < (double)least || product > (double)most) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: %s modes multiply to %.0f, expected %s%lld", name, what, product,
                            product > (double)most && least < most ? "at most "
                            : least < most                         ? "at least "
                                                                   : "",
                            (long long)(product > (double)most ? most : least));
    }
    return TT_OK;
}

tt_status tt_train_matrix_shape_check(const tt_train_matrix_shape *shape, int64_t vocabulary,
                                      int64_t width, const char *name, tt_error *error)
{
    if (shape->order < 2 || shape->order > TT_MAX_ORDER) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: expected 2 to %d cores, found %d", name,
                            TT_MAX_ORDER, shape->order);
    }
    TT_TRY(
        check_product(shape->rows, shape->order, "vocabulary", vocabulary, INT32_MAX, name, error));
    TT_TRY(check_product(shape->columns, shape->order, "hidden", width, width, name, error));
    tt_train_shape train = tt_train_matrix_train(shape);
    return tt_train_shape_check(&train, tt_train_inputs(&train), tt_train_outputs(&train), name,
                                error);
}

/* The smallest whole number whose `order`-th power is at least `count`. */
static int64_t root_above(int64_t count, int order)
{
    int64_t root = (int64_t)pow((double)count, 1.0 / order);
    root = root > 1 ? root - 1 : 1;
    while (pow((double)root, order) < (double)count) {
        root++;
    }
    return root;
}

tt_status tt_train_matrix_shape_choose(int64_t vocabulary, int64_t width, int order, int64_t rank,
                                       tt_train_matrix_shape *shape, tt_error *error)
{
    if (order < 2 || order > TT_MAX_ORDER) {
        return tt_error_set(error, TT_INVALID_INPUT, "expected 2 to %d cores, found %d",
                            TT_MAX_ORDER, order);
    }
    *shape = (tt_train_matrix_shape){.order = order};
    tt_train_shape columns;
    TT_TRY(tt_train_shape_choose(width, 1 << order, order, order, 1, &columns, error));
    memcpy(shape->columns, columns.modes, (size_t)order * sizeof *shape->columns);
    int64_t left = vocabulary;
    for (int k = 0; k < order; k++) {
        shape->rows[k] = root_above(left, order - k);
        left = (left + shape->rows[k] - 1) / shape->rows[k];
    }
    tt_train_shape train = tt_train_matrix_train(shape);
    for (int k = 0; k <= order; k++) {
        int64_t limit = tt_train_rank_limit(&train, k);
        shape->ranks[k] = rank < limit ? rank : limit;
    }
    return TT_OK;
}

int64_t tt_train_matrix_size(const tt_train_matrix_shape *shape)
{
    tt_train_shape train = tt_train_matrix_train(shape);
    return tt_train_is_removed(&train) ? 0 : tt_train_size(&train);
}

int64_t tt_train_matrix_row_work(const tt_train_matrix_shape *shape)
{
    tt_train_shape train = tt_train_matrix_train(shape);
    return train.ranks[train.input_order] * product_of(shape->columns, 0, shape->order);
}

/* --- parameters ------------------------------------------------------------------------------- */

/* Takes the ranks that the table of shapes has for this name. */
static tt_status take_adapted_ranks(tt_train_matrix *matrix, const char *name, tt_error *error)
{
    const tt_train_shape *adapted = tt_layer_shapes_find(matrix->trains->shapes, name);
    if (!adapted) {
        return TT_OK;
    }
    tt_train_matrix_shape *shape = &matrix->shape;
    tt_train_shape asked = tt_train_matrix_train(shape);
    size_t modes = (size_t)asked.order * sizeof *asked.modes;
    if (adapted->order != asked.order || memcmp(adapted->modes, asked.modes, modes) != 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: the modes of the tensor-train matrix differ from those of the "
                            "configuration",
                            name);
    }
    matrix->removed = tt_train_is_removed(adapted);
    for (int k = 1; k < shape->order; k++) {
        if (adapted->ranks[k] > shape->ranks[k]) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: rank %d: expected at most %lld, as the configuration says; "
                                "found %lld",
                                name, k, (long long)shape->ranks[k], (long long)adapted->ranks[k]);
        }
        shape->ranks[k] = matrix->removed ? 0 : adapted->ranks[k];
    }
    return TT_OK;
}

tt_status tt_train_matrix_add(tt_train_matrix *matrix, const char *name,
                              const tt_train_matrix_shape *shape, int64_t vocabulary, int64_t width,
                              tt_train_set *trains, tt_error *error)
{
    *matrix = (tt_train_matrix){
        .shape = *shape, .vocabulary = vocabulary, .width = width, .trains = trains, .train = -1};
    TT_TRY(tt_train_matrix_shape_check(shape, vocabulary, width, name, error));
    TT_TRY(take_adapted_ranks(matrix, name, error));
    if (matrix->removed) {
        return TT_OK;
    }
    tt_train_shape train = tt_train_matrix_train(&matrix->shape);
    TT_TRY(tt_train_set_add(trains, name, &train, -1, &matrix->train, error));
    for (int k = 0; k < shape->order; k++) {
        tt_parameter *core = &trains->parameters->items[trains->trains[matrix->train].cores[k]];
        core->dimensions = 4;
        core->shape[1] = shape->rows[k];
        core->shape[3] = core->shape[2];
        core->shape[2] = shape->columns[k];
    }
    return TT_OK;
}

void tt_train_matrix_initialize(const tt_train_matrix *matrix, float deviation, uint64_t seed)
{
    if (!matrix->removed) {
        tt_train_initialize(matrix->trains, matrix->train, deviation, seed);
    }
}

/* --- planning --------------------------------------------------------------------------------- */

typedef struct {
    tt_copy *items;
    int64_t count, capacity;
} copy_list;

struct tt_train_matrix_plan {
    tt_arena arena;
    size_t left, right, left_gradient, right_gradient, end; /* the gradients up to end */
    size_t ids, table, table_gradient, workspace;           /* of the assembled table */
    bool assembled;
    copy_list place, collect; /* from the train's factors, and from the gradients to theirs */
};

/* Digit k of a number in the mixed radix `sizes`, the last digit the fastest, stands for
 * digit * strides[k]; their sum. */
static int64_t spread(int64_t number, const int64_t *sizes, const int64_t *strides, int digits)
{
    int64_t sum = 0;
    for (int k = digits - 1; k >= 0; k--) {
        sum += number % sizes[k] * strides[k];
        number /= sizes[k];
    }
    return sum;
}

/* One side of the cut: modes first..end - 1 of the shape. In the factor, digit k of the row number
 * moves row_strides[k] places along the side's modes, digit k of the column number
 * column_strides[k]. */
typedef struct {
    int digits;
    const int64_t *rows, *columns;
    int64_t row_strides[TT_MAX_ORDER], column_strides[TT_MAX_ORDER];
    int64_t slices, width;
} side;

static side side_of(const tt_train_matrix_shape *shape, int first, int end)
{
    side of = {.digits = end - first,
               .rows = shape->rows + first,
               .columns = shape->columns + first,
               .slices = product_of(shape->rows, first, end),
               .width = product_of(shape->columns, first, end)};
    int64_t stride = 1;
    for (int k = of.digits - 1; k >= 0; k--) {
        of.column_strides[k] = stride;
        of.row_strides[k] = stride * of.columns[k];
        stride *= of.rows[k] * of.columns[k];
    }
    return of;
}

static side left_side(const tt_train_matrix *matrix)
{
    return side_of(&matrix->shape, 0, tt_train_matrix_train(&matrix->shape).input_order);
}

static side right_side(const tt_train_matrix *matrix)
{
    return side_of(&matrix->shape, tt_train_matrix_train(&matrix->shape).input_order,
                   matrix->shape.order);
}

/* The columns of a slice lie in pieces in a factor: all that the last digit counts. */
static int64_t pieces(const side *of)
{
    return of->width / of->columns[of->digits - 1];
}

static void list_both(struct tt_train_matrix_plan *plan, tt_matrix factor, tt_matrix slice,
                      tt_matrix factor_gradient, tt_matrix slice_gradient)
{
    plan->place.items[plan->place.count++] = (tt_copy){.source = factor, .target = slice};
    plan->collect.items[plan->collect.count++] =
        (tt_copy){.source = slice_gradient, .target = factor_gradient};
}

/* A piece of a slice of P is so many neighbouring rows of A. */
static void list_left(tt_train_matrix *matrix, const tt_train *train)
{
    side left = left_side(matrix);
    const tt_slice_products *products = &matrix->products;
    int64_t rank = products->rank, last = left.columns[left.digits - 1];
    for (int64_t slice = 0; slice < left.slices; slice++) {
        int64_t row = spread(slice, left.rows, left.row_strides, left.digits);
        for (int64_t piece = 0; piece < pieces(&left); piece++) {
            int64_t from = row + spread(piece, left.columns, left.column_strides, left.digits - 1);
            int64_t to = (slice * left.width + piece * last) * rank;
            list_both(matrix->plan, tt_matrix_rows(train->a, from, last),
                      tt_matrix_f32(matrix->left + to, last, rank),
                      tt_matrix_rows(train->a_gradient, from, last),
                      tt_matrix_f32(products->left_gradient + to, last, rank));
        }
    }
}

/* A piece of a slice of Q is so many neighbouring columns of B. */
static void list_right(tt_train_matrix *matrix, const tt_train *train)
{
    side right = right_side(matrix);
    const tt_slice_products *products = &matrix->products;
    int64_t rank = products->rank, last = right.columns[right.digits - 1];
    for (int64_t slice = 0; slice < right.slices; slice++) {
        int64_t column = spread(slice, right.rows, right.row_strides, right.digits);
        int64_t offset = slice * rank * right.width;
        tt_matrix whole = tt_matrix_f32(matrix->right + offset, rank, right.width);
        tt_matrix d_whole = tt_matrix_f32(products->right_gradient + offset, rank, right.width);
        for (int64_t piece = 0; piece < pieces(&right); piece++) {
            int64_t from =
                column + spread(piece, right.columns, right.column_strides, right.digits - 1);
            list_both(matrix->plan, tt_matrix_columns(train->b, from, last),
                      tt_matrix_columns(whole, piece * last, last),
                      tt_matrix_columns(train->b_gradient, from, last),
                      tt_matrix_columns(d_whole, piece * last, last));
        }
    }
}

static tt_slice_products table_products(const tt_train_matrix *matrix)
{
    const struct tt_train_matrix_plan *plan = matrix->plan;
    tt_slice_products products = matrix->products;
    products.ids = tt_arena_at(&plan->arena, plan->ids);
    products.count = matrix->vocabulary;
    products.workspace = tt_arena_at(&plan->arena, plan->workspace);
    return products;
}

static void reserve_table(tt_train_matrix *matrix)
{
    struct tt_train_matrix_plan *plan = matrix->plan;
    tt_device *device = matrix->trains->parameters->device;
    int64_t numbers = matrix->vocabulary * matrix->width;
    plan->table = tt_arena_reserve(&plan->arena, tt_type_bytes(device->compute, numbers));
    plan->table_gradient = tt_arena_reserve(&plan->arena, tt_floats(numbers));
    if (!matrix->removed) {
        plan->ids = tt_arena_reserve(&plan->arena, (size_t)matrix->vocabulary * sizeof(int32_t));
        tt_slice_products products = table_products(matrix);
        plan->workspace = tt_arena_reserve(
            &plan->arena, device->ops->slice_products_workspace(device, &products));
    }
}

/* The ids of all rows: 0, 1, 2, ... */
static tt_status fill_ids(tt_train_matrix *matrix, tt_error *error)
{
    size_t bytes = (size_t)matrix->vocabulary * sizeof(int32_t);
    int32_t *ids = malloc(bytes);
    if (!ids) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the ids of the vocabulary");
    }
    for (int64_t i = 0; i < matrix->vocabulary; i++) {
        ids[i] = (int32_t)i;
    }
    tt_device *device = matrix->trains->parameters->device;
    device->copy_in(device, tt_arena_at(&matrix->plan->arena, matrix->plan->ids), ids, bytes);
    free(ids);
    return TT_OK;
}

static void reserve_slices(tt_train_matrix *matrix)
{
    struct tt_train_matrix_plan *plan = matrix->plan;
    tt_train_shape train = tt_train_matrix_train(&matrix->shape);
    side left = left_side(matrix), right = right_side(matrix);
    int64_t rank = train.ranks[train.input_order];
    matrix->products = (tt_slice_products){.left_slices = left.slices,
                                           .right_slices = right.slices,
                                           .left_columns = left.width,
                                           .right_columns = right.width,
                                           .rank = rank};
    size_t left_bytes = tt_floats(left.slices * left.width * rank);
    size_t right_bytes = tt_floats(right.slices * right.width * rank);
    plan->left = tt_arena_reserve(&plan->arena, left_bytes);
    plan->right = tt_arena_reserve(&plan->arena, right_bytes);
    plan->left_gradient = tt_arena_reserve(&plan->arena, left_bytes);
    plan->right_gradient = tt_arena_reserve(&plan->arena, right_bytes);
    plan->end = tt_arena_mark(&plan->arena);
}

static bool allocate_list(copy_list *list, int64_t count)
{
    list->items = calloc((size_t)count, sizeof *list->items);
    return list->items != NULL;
}

static tt_status list_copies(tt_train_matrix *matrix, tt_error *error)
{
    struct tt_train_matrix_plan *plan = matrix->plan;
    side left = left_side(matrix), right = right_side(matrix);
    int64_t count = left.slices * pieces(&left) + right.slices * pieces(&right);
    if (count > INT32_MAX || !allocate_list(&plan->place, count) ||
        !allocate_list(&plan->collect, count)) {
        return tt_error_set(error, TT_OUT_OF_MEMORY,
                            "no memory for the plan of a tensor-train matrix of %lld pieces",
                            (long long)count);
    }
    const tt_train *train = &matrix->trains->trains[matrix->train];
    tt_slice_products *products = &matrix->products;
    products->left = matrix->left = tt_arena_at(&plan->arena, plan->left);
    products->right = matrix->right = tt_arena_at(&plan->arena, plan->right);
    products->left_gradient = tt_arena_at(&plan->arena, plan->left_gradient);
    products->right_gradient = tt_arena_at(&plan->arena, plan->right_gradient);
    list_left(matrix, train);
    list_right(matrix, train);
    return TT_OK;
}

tt_status tt_train_matrix_plan(tt_train_matrix *matrix, bool assembled, tt_error *error)
{
    tt_train_matrix_free(matrix);
    struct tt_train_matrix_plan *plan = calloc(1, sizeof *plan);
    if (!plan) {
        return tt_error_set(error, TT_OUT_OF_MEMORY,
                            "no memory for the plan of a tensor-train matrix");
    }
    matrix->plan = plan;
    plan->assembled = assembled;
    tt_arena_init(&plan->arena, matrix->trains->parameters->device);
    if (!matrix->removed) {
        reserve_slices(matrix);
    }
    if (assembled) {
        reserve_table(matrix);
    }
    TT_TRY(tt_arena_allocate(&plan->arena, "the tensor-train matrix of the embeddings", error));
    if (matrix->removed) {
        return TT_OK;
    }
    TT_TRY(list_copies(matrix, error));
    return assembled ? fill_ids(matrix, error) : TT_OK;
}

void tt_train_matrix_free(tt_train_matrix *matrix)
{
    struct tt_train_matrix_plan *plan = matrix->plan;
    if (plan) {
        free(plan->place.items);
        free(plan->collect.items);
        tt_arena_free(&plan->arena);
        free(plan);
    }
    matrix->plan = NULL;
}

size_t tt_train_matrix_bytes(const tt_train_matrix *matrix)
{
    return matrix->plan ? matrix->plan->arena.capacity : 0;
}

/* --- running ---------------------------------------------------------------------------------- */

tt_matrix tt_train_matrix_table(const tt_train_matrix *matrix)
{
    const struct tt_train_matrix_plan *plan = matrix->plan;
    return tt_matrix_dense(tt_arena_at(&plan->arena, plan->table), matrix->vocabulary,
                           matrix->width, matrix->trains->parameters->device->compute);
}

tt_matrix tt_train_matrix_table_gradient(const tt_train_matrix *matrix)
{
    const struct tt_train_matrix_plan *plan = matrix->plan;
    return tt_matrix_f32(tt_arena_at(&plan->arena, plan->table_gradient), matrix->vocabulary,
                         matrix->width);
}

void tt_train_matrix_materialise(tt_train_matrix *matrix)
{
    const struct tt_train_matrix_plan *plan = matrix->plan;
    tt_device *device = matrix->trains->parameters->device;
    if (matrix->removed) {
        return;
    }
    device->ops->copy_group(device, plan->place.items, (int)plan->place.count);
    device->zero(device, matrix->products.left_gradient, plan->end - plan->left_gradient);
    if (plan->assembled) {
        tt_slice_products products = table_products(matrix);
        device->ops->slice_products_forward(device, &products, tt_train_matrix_table(matrix));
        device->zero(device, tt_train_matrix_table_gradient(matrix).data,
                     tt_floats(matrix->vocabulary * matrix->width));
    }
}

void tt_train_matrix_contract(tt_train_matrix *matrix)
{
    const struct tt_train_matrix_plan *plan = matrix->plan;
    tt_device *device = matrix->trains->parameters->device;
    if (matrix->removed) {
        return;
    }
    if (plan->assembled) {
        tt_slice_products products = table_products(matrix);
        device->ops->slice_products_backward(device, &products,
                                             tt_train_matrix_table_gradient(matrix));
    }
    device->ops->copy_group(device, plan->collect.items, (int)plan->collect.count);
}

int64_t tt_train_matrix_room_rows(const tt_train_matrix *matrix, int64_t tokens)
{
    return tokens < matrix->vocabulary ? tokens : matrix->vocabulary;
}

/* The products of a lookup; sizes alone are needed to ask for their workspace. */
static tt_slice_products lookup_products(const tt_train_matrix *matrix, int64_t tokens,
                                         const tt_train_matrix_room *room)
{
    tt_slice_products products = matrix->products;
    products.ids = room->distinct;
    products.count = tt_train_matrix_room_rows(matrix, tokens);
    products.workspace = room->workspace;
    return products;
}

size_t tt_train_matrix_workspace(const tt_train_matrix *matrix, int64_t tokens)
{
    tt_device *device = matrix->trains->parameters->device;
    tt_slice_products products = lookup_products(matrix, tokens, &(tt_train_matrix_room){0});
    size_t rows = device->ops->slice_products_workspace(device, &products);
    size_t distinct = device->ops->distinct_ids_workspace(device, tokens, matrix->vocabulary);
    return rows > distinct ? rows : distinct;
}

static tt_matrix rows_of(const tt_train_matrix *matrix, int64_t tokens,
                         const tt_train_matrix_room *room)
{
    return tt_matrix_f32(room->rows, tt_train_matrix_room_rows(matrix, tokens), matrix->width);
}

void tt_train_matrix_look_up(const tt_train_matrix *matrix, const int32_t *ids, int64_t tokens,
                             const tt_train_matrix_room *room)
{
    tt_device *device = matrix->trains->parameters->device;
    if (matrix->removed) { /* every id finds the first row, which is 0 */
        device->zero(device, room->places, (size_t)tokens * sizeof *room->places);
        device->zero(device, room->rows, tt_floats(matrix->width));
        return;
    }
    tt_distinct distinct = {.ids = ids,
                            .count = tokens,
                            .bound = matrix->vocabulary,
                            .distinct = room->distinct,
                            .places = room->places,
                            .workspace = room->workspace};
    tt_slice_products products = lookup_products(matrix, tokens, room);
    device->ops->distinct_ids(device, &distinct);
    device->ops->slice_products_forward(device, &products, rows_of(matrix, tokens, room));
}

void tt_train_matrix_look_up_backward(const tt_train_matrix *matrix, int64_t tokens,
                                      const tt_train_matrix_room *room)
{
    tt_device *device = matrix->trains->parameters->device;
    if (!matrix->removed) {
        tt_slice_products products = lookup_products(matrix, tokens, room);
        device->ops->slice_products_backward(device, &products, rows_of(matrix, tokens, room));
    }
}

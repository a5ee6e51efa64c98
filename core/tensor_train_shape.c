#include "core/tensor_train.h"

#include <string.h>

const tt_train_shape *tt_layer_shapes_find(const tt_layer_shapes *shapes, const char *name)
{
    for (int i = 0; shapes && i < shapes->count; i++) {
        if (strcmp(shapes->items[i].name, name) == 0) {
            return &shapes->items[i].shape;
        }
    }
    return NULL;
}

bool tt_train_is_removed(const tt_train_shape *shape)
{
    for (int k = 1; k < shape->order; k++) {
        if (shape->ranks[k] == 0) {
            return true;
        }
    }
    return false;
}

int64_t tt_train_inputs(const tt_train_shape *shape)
{
    int64_t product = 1;
    for (int k = 0; k < shape->input_order; k++) {
        product *= shape->modes[k];
    }
    return product;
}

int64_t tt_train_outputs(const tt_train_shape *shape)
{
    int64_t product = 1;
    for (int k = shape->input_order; k < shape->order; k++) {
        product *= shape->modes[k];
    }
    return product;
}

int64_t tt_train_core_size(const tt_train_shape *shape)
{
    int64_t size = 0;
    for (int k = 0; k < shape->order; k++) {
        size += shape->ranks[k] * shape->modes[k] * shape->ranks[k + 1];
    }
    return size;
}

int64_t tt_train_size(const tt_train_shape *shape)
{
    int64_t size = tt_train_core_size(shape);
    for (int k = 1; k < shape->order; k++) {
        size += shape->ranks[k];
    }
    return size;
}

int64_t tt_train_rank_limit(const tt_train_shape *shape, int link)
{
    int64_t left = 1, right = 1;
    for (int k = 0; k < shape->order; k++) {
        int64_t *side = k < link ? &left : &right;
        *side *= shape->modes[k];
    }
    return left < right ? left : right;
}

static tt_status check_orders(const tt_train_shape *shape, const char *name, tt_error *error)
{
    if (shape->order < 2 || shape->order > TT_MAX_ORDER) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: expected 2 to %d modes in all, found %d",
                            name, TT_MAX_ORDER, shape->order);
    }
    if (shape->input_order < 1 || shape->input_order >= shape->order) {
        return tt_error_set(
            error, TT_INVALID_INPUT,
            "%s: expected at least one input mode and one output mode, found %d and %d", name,
            shape->input_order, shape->order - shape->input_order);
    }
    for (int k = 0; k < shape->order; k++) {
        if (shape->modes[k] < 1 || shape->modes[k] > 1 << 24) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: mode %d: expected a size from 1 to %d, found %lld", name,
                                k + 1, 1 << 24, (long long)shape->modes[k]);
        }
    }
    return TT_OK;
}

tt_status tt_train_shape_check(const tt_train_shape *shape, int64_t inputs, int64_t outputs,
                               const char *name, tt_error *error)
{
    TT_TRY(check_orders(shape, name, error));
    int64_t sides[2] = {inputs, outputs};
    for (int side = 0, k = 0; side < 2; side++) {
        int end = side == 0 ? shape->input_order : shape->order;
        int64_t product = 1;
        for (; k < end; k++) {
            product = product > sides[side] ? product : product * shape->modes[k];
        }
        if (product != sides[side]) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: %s modes multiply to %s%lld, expected the width %lld", name,
                                side == 0 ? "input" : "output", product > sides[side] ? ">= " : "",
                                (long long)product, (long long)sides[side]);
        }
    }
    if (shape->ranks[0] != 1 || shape->ranks[shape->order] != 1) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: expected outer ranks of 1", name);
    }
    for (int k = 1; k < shape->order; k++) {
        int64_t limit = tt_train_rank_limit(shape, k);
        if (shape->ranks[k] < 1 || shape->ranks[k] > limit) {
            return tt_error_set(
                error, TT_INVALID_INPUT,
                "%s: rank %d of %d: expected 1 to %lld (the smaller side of the unfolding at that "
                "link), found %lld",
                name, k, shape->order - 1, (long long)limit, (long long)shape->ranks[k]);
        }
    }
    return TT_OK;
}

/* Prime factors of `size`, largest first; returns how many. */
static int prime_factors(int64_t size, int64_t factors[64])
{
    int count = 0;
    for (int64_t p = 2; p * p <= size; p++) {
        while (size % p == 0) {
            factors[count++] = p;
            size /= p;
        }
    }
    if (size > 1) {
        factors[count++] = size;
    }
    for (int i = 0; i < count / 2; i++) {
        int64_t swap = factors[i];
        factors[i] = factors[count - 1 - i];
        factors[count - 1 - i] = swap;
    }
    return count;
}

/* Multiplies the primes of `size` into `order` modes, each prime to the smallest mode so far, and
 * sorts them, largest first. */
static tt_status split_into_modes(int64_t size, int order, int64_t *modes, tt_error *error)
{
    int64_t factors[64];
    int count = prime_factors(size, factors);
    if (order < 1 || order > count) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "a width of %lld has %d prime factors and cannot be cut into %d modes",
                            (long long)size, count, order);
    }
    for (int k = 0; k < order; k++) {
        modes[k] = 1;
    }
    for (int i = 0; i < count; i++) {
        int smallest = 0;
        for (int k = 1; k < order; k++) {
            smallest = modes[k] < modes[smallest] ? k : smallest;
        }
        modes[smallest] *= factors[i];
    }
    for (int i = 1; i < order; i++) {
        for (int k = i; k > 0 && modes[k - 1] < modes[k]; k--) {
            int64_t swap = modes[k];
            modes[k] = modes[k - 1];
            modes[k - 1] = swap;
        }
    }
    return TT_OK;
}

static void set_uniform_rank(tt_train_shape *shape, int64_t rank)
{
    shape->ranks[0] = shape->ranks[shape->order] = 1;
    for (int k = 1; k < shape->order; k++) {
        int64_t limit = tt_train_rank_limit(shape, k);
        shape->ranks[k] = rank < limit ? rank : limit;
    }
}

tt_status tt_train_shape_choose(int64_t inputs, int64_t outputs, int input_order, int output_order,
                                int64_t rank, tt_train_shape *shape, tt_error *error)
{
    if (input_order < 1 || output_order < 1 || input_order + output_order > TT_MAX_ORDER) {
        return tt_error_set(
            error, TT_INVALID_INPUT,
            "expected 1 or more modes a side and at most %d in all, found %d and %d", TT_MAX_ORDER,
            input_order, output_order);
    }
    *shape = (tt_train_shape){.order = input_order + output_order, .input_order = input_order};
    TT_TRY(split_into_modes(inputs, input_order, shape->modes, error));
    TT_TRY(split_into_modes(outputs, output_order, shape->modes + input_order, error));
    for (int i = input_order, j = shape->order - 1; i < j; i++, j--) {
        int64_t swap = shape->modes[i];
        shape->modes[i] = shape->modes[j];
        shape->modes[j] = swap;
    }
    set_uniform_rank(shape, rank);
    return TT_OK;
}

int64_t tt_train_rank_for_compression(const tt_train_shape *modes, double compression)
{
    double budget = (double)tt_train_inputs(modes) * (double)tt_train_outputs(modes) / compression;
    int64_t low = 1, high = tt_train_rank_limit(modes, modes->input_order);
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        tt_train_shape shape = *modes;
        set_uniform_rank(&shape, middle);
        if ((double)tt_train_size(&shape) <= budget) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

#include "core/linear.h"

#include "core/tensor_train_svd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A table may have less of a map than the form says, never something else. */
static tt_status check_adapted(const tt_train_shape *adapted, const tt_train_shape *asked,
                               const char *name, tt_error *error)
{
    if (adapted->order != asked->order || adapted->input_order != asked->input_order ||
        memcmp(adapted->modes, asked->modes, (size_t)asked->order * sizeof *asked->modes) != 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: the modes of the tensor train differ from those of the "
                            "configuration",
                            name);
    }
    for (int k = 1; k < asked->order; k++) {
        if (adapted->ranks[k] > asked->ranks[k]) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: rank %d: expected at most %lld, as the configuration says; "
                                "found %lld",
                                name, k, (long long)asked->ranks[k], (long long)adapted->ranks[k]);
        }
    }
    return TT_OK;
}

static void remove_ranks(tt_train_shape *shape)
{
    for (int k = 1; k < shape->order; k++) {
        shape->ranks[k] = 0;
    }
}

/* Of a dense map the table can but say that it is removed. */
static tt_status check_removed(const tt_linear *linear, const tt_train_shape *adapted,
                               const char *name, tt_error *error)
{
    int64_t inputs = tt_train_inputs(adapted), outputs = tt_train_outputs(adapted);
    if (inputs != linear->inputs || outputs != linear->outputs) {
        return tt_error_set(
            error, TT_INVALID_INPUT,
            "%s: expected a removed map of %lld inputs and %lld outputs, found %lld and %lld", name,
            (long long)linear->inputs, (long long)linear->outputs, (long long)inputs,
            (long long)outputs);
    }
    return TT_OK;
}

/* Sets form and shape from what is asked for and what the table has left of it. */
static tt_status choose_form(tt_linear *linear, const char *name, const tt_linear_form *asked,
                             tt_error *error)
{
    const tt_train_shape *adapted = tt_layer_shapes_find(linear->trains->shapes, name);
    linear->form = asked->form;
    if (asked->form == TT_TENSOR_TRAIN) {
        TT_TRY(tt_train_shape_check(&asked->shape, linear->inputs, linear->outputs, name, error));
        linear->shape = asked->shape;
    }
    if (adapted && asked->form == TT_TENSOR_TRAIN) {
        TT_TRY(check_adapted(adapted, &asked->shape, name, error));
        linear->shape = *adapted;
    }
    if (adapted && tt_train_is_removed(adapted)) {
        TT_TRY(check_removed(linear, adapted, name, error));
        linear->form = TT_REMOVED;
        linear->shape = *adapted;
        remove_ranks(&linear->shape);
    }
    return linear->form == TT_TENSOR_TRAIN
               ? tt_train_shape_check(&linear->shape, linear->inputs, linear->outputs, name, error)
               : TT_OK;
}

tt_status tt_linear_add(tt_linear *linear, const char *name, int64_t inputs, int64_t outputs,
                        const tt_linear_form *form, const tt_linear *neighbour,
                        tt_parameters *parameters, tt_train_set *trains, tt_error *error)
{
    *linear = (tt_linear){
        .inputs = inputs, .outputs = outputs, .parameters = parameters, .trains = trains};
    char full_name[192];
    TT_TRY(choose_form(linear, name, form, error));
    if (linear->form == TT_DENSE) {
        snprintf(full_name, sizeof full_name, "%s.weight", name);
        TT_TRY(tt_parameters_add(parameters, full_name, TT_GROUP_DENSE, true, 2,
                                 (int64_t[]){outputs, inputs}, &linear->weight, error));
    } else if (linear->form == TT_TENSOR_TRAIN) {
        linear->rank = linear->shape.ranks[linear->shape.input_order];
        bool shares = neighbour && neighbour->form == TT_TENSOR_TRAIN;
        TT_TRY(tt_train_set_add(trains, name, &linear->shape, shares ? neighbour->train : -1,
                                &linear->train, error));
    }
    snprintf(full_name, sizeof full_name, "%s.bias", name);
    return tt_parameters_add(parameters, full_name, TT_GROUP_DENSE, false, 1, &outputs,
                             &linear->bias, error);
}

void tt_linear_name(const tt_linear *linear, char *name, size_t size)
{
    const char *bias = linear->parameters->items[linear->bias].name;
    snprintf(name, size, "%.*s", (int)(strrchr(bias, '.') - bias), bias);
}

void tt_linear_initialize(const tt_linear *linear, float deviation, uint64_t seed)
{
    if (linear->form == TT_DENSE) {
        tt_parameters_fill_normal(linear->parameters, linear->weight, deviation, seed);
    } else if (linear->form == TT_TENSOR_TRAIN) {
        tt_train_initialize(linear->trains, linear->train, deviation, seed);
    }
    tt_parameters_fill(linear->parameters, linear->bias, 0.0f);
}

/* Adds the transpose of `matrix` to the weight. */
static tt_status add_to_weight(const tt_linear *linear, const double *matrix, tt_error *error)
{
    size_t bytes = tt_floats(linear->inputs * linear->outputs);
    float *values = malloc(bytes);
    if (!values) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the first values of a map");
    }
    tt_device *device = linear->parameters->device;
    float *weight = tt_parameters_value(linear->parameters, linear->weight);
    device->copy_out(device, values, weight, bytes);
    for (int64_t o = 0; o < linear->outputs; o++) {
        for (int64_t i = 0; i < linear->inputs; i++) {
            values[o * linear->inputs + i] += (float)matrix[i * linear->outputs + o];
        }
    }
    device->copy_in(device, weight, values, bytes);
    free(values);
    return TT_OK;
}

tt_status tt_linear_initialize_around(const tt_linear *linear, const double *matrix,
                                      tt_error *error)
{
    if (linear->form == TT_DENSE) {
        return add_to_weight(linear, matrix, error);
    }
    if (linear->form != TT_TENSOR_TRAIN) {
        return TT_OK;
    }
    double lost;
    TT_TRY(tt_train_put_in_front(linear->trains, linear->train, matrix, &lost, error));
    if (lost > 1e-3 && !linear->trains->shapes) {
        char name[192];
        tt_linear_name(linear, name, sizeof name);
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: the ranks are too small for the first values of the map: %.0f %% "
                            "of them would be lost",
                            name, 100.0 * lost);
    }
    return TT_OK;
}

int64_t tt_linear_size(const tt_linear *linear)
{
    if (linear->form == TT_DENSE) {
        return tt_linear_dense_size(linear);
    }
    return (linear->form == TT_REMOVED ? 0 : tt_train_size(&linear->shape)) + linear->outputs;
}

int64_t tt_linear_dense_size(const tt_linear *linear)
{
    return linear->inputs * linear->outputs + linear->outputs;
}

const float *tt_linear_bias(const tt_linear *linear)
{
    return tt_parameters_value(linear->parameters, linear->bias);
}

float *tt_linear_bias_gradient(const tt_linear *linear)
{
    return tt_parameters_gradient(linear->parameters, linear->bias);
}

const tt_train *tt_linear_train(const tt_linear *linear)
{
    return &linear->trains->trains[linear->train];
}

void tt_linear_multiply(tt_device *device, bool transpose_a, bool transpose_b, tt_matrix a,
                        tt_matrix b, float beta, tt_matrix c)
{
    device->ops->multiply(device, &(tt_product){.transpose_a = transpose_a,
                                                .transpose_b = transpose_b,
                                                .alpha = 1.0f,
                                                .beta = beta,
                                                .a = a,
                                                .b = b,
                                                .c = c});
}

/* What a removed map multiplies with: nothing, `rows` by `columns`, one of which is 0. */
static tt_matrix nothing(const tt_linear *linear, int64_t rows, int64_t columns)
{
    return tt_matrix_dense(NULL, rows, columns, linear->parameters->device->compute);
}

static tt_matrix weight_of(const tt_linear *linear)
{
    return tt_parameters_weight(linear->parameters, linear->weight);
}

void tt_linear_forward(const tt_linear *linear, tt_matrix x, tt_matrix u, tt_matrix y)
{
    if (linear->form == TT_DENSE) {
        tt_linear_multiply(linear->parameters->device, false, true, x, weight_of(linear), 0.0f, y);
        return;
    }
    if (linear->form == TT_TENSOR_TRAIN) {
        tt_linear_contract(linear, linear, x, u);
    }
    tt_linear_expand(linear, u, y);
}

void tt_linear_forward_gelu(const tt_linear *linear, tt_gelu gelu, tt_matrix x, tt_matrix u,
                            tt_matrix before, tt_matrix y)
{
    tt_product product = {.alpha = 1.0f,
                          .c = y,
                          .epilogue = TT_EPILOGUE_GELU,
                          .bias = tt_linear_bias(linear),
                          .before_gelu = before,
                          .gelu = gelu};
    if (linear->form == TT_DENSE) {
        product.transpose_b = true;
        product.a = x;
        product.b = weight_of(linear);
    } else if (linear->form == TT_TENSOR_TRAIN) {
        tt_linear_contract(linear, linear, x, u);
        product.a = u;
        product.b = tt_linear_train(linear)->rounded_b;
    } else {
        product.a = nothing(linear, x.rows, 0);
        product.b = nothing(linear, 0, linear->outputs);
    }
    tt_device *device = linear->parameters->device;
    device->ops->multiply(device, &product);
}

void tt_linear_expand(const tt_linear *linear, tt_matrix u, tt_matrix y)
{
    bool removed = linear->form == TT_REMOVED;
    tt_linear_multiply(
        linear->parameters->device, false, false, removed ? nothing(linear, y.rows, 0) : u,
        removed ? nothing(linear, 0, linear->outputs) : tt_linear_train(linear)->rounded_b, 0.0f,
        y);
}

void tt_linear_backward(const tt_linear *linear, tt_matrix x, tt_matrix u, tt_matrix dy,
                        tt_matrix du, float beta, tt_matrix dx)
{
    if (linear->form == TT_TENSOR_TRAIN) {
        tt_linear_expand_backward(linear, u, dy, du);
        tt_linear_contract_backward(linear, linear, x, du, beta, dx);
        return;
    }
    if (linear->form == TT_REMOVED) {
        if (dx.data && beta != 1.0f) {
            tt_linear_multiply(linear->parameters->device, false, false,
                               nothing(linear, dx.rows, 0), nothing(linear, 0, linear->inputs),
                               beta, dx);
        }
        return;
    }
    tt_matrix gradient = tt_matrix_f32(tt_parameters_gradient(linear->parameters, linear->weight),
                                       linear->outputs, linear->inputs);
    tt_linear_multiply(linear->parameters->device, true, false, dy, x, 1.0f, gradient);
    if (dx.data) {
        tt_linear_multiply(linear->parameters->device, false, false, dy, weight_of(linear), beta,
                           dx);
    }
}

void tt_linear_expand_backward(const tt_linear *linear, tt_matrix u, tt_matrix dy, tt_matrix du)
{
    const tt_train *train = tt_linear_train(linear);
    tt_linear_multiply(linear->parameters->device, true, false, u, dy, 1.0f, train->b_gradient);
    tt_linear_multiply(linear->parameters->device, false, true, dy, train->rounded_b, 0.0f, du);
}

void tt_linear_contract(const tt_linear *first, const tt_linear *last, tt_matrix x, tt_matrix u)
{
    tt_matrix a = tt_train_set_input_factors(first->trains, first->train, last->train);
    tt_linear_multiply(first->parameters->device, false, false, x, a, 0.0f, u);
}

void tt_linear_contract_backward(const tt_linear *first, const tt_linear *last, tt_matrix x,
                                 tt_matrix du, float beta, tt_matrix dx)
{
    tt_matrix a = tt_train_set_input_factors(first->trains, first->train, last->train);
    tt_matrix a_gradient = tt_train_set_input_gradients(first->trains, first->train, last->train);
    tt_linear_multiply(first->parameters->device, true, false, x, du, 1.0f, a_gradient);
    if (dx.data) {
        tt_linear_multiply(first->parameters->device, false, true, du, a, beta, dx);
    }
}

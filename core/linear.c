#include "core/linear.h"

#include <stdio.h>

tt_status tt_linear_add(tt_linear *linear, const char *name, int64_t inputs, int64_t outputs,
                        const tt_linear_form *form, const tt_linear *neighbour,
                        tt_parameters *parameters, tt_train_set *trains, tt_error *error)
{
    *linear = (tt_linear){.form = form->form,
                          .inputs = inputs,
                          .outputs = outputs,
                          .parameters = parameters,
                          .trains = trains};
    char full_name[192];
    if (form->form == TT_DENSE) {
        snprintf(full_name, sizeof full_name, "%s.weight", name);
        TT_TRY(tt_parameters_add(parameters, full_name, TT_GROUP_DENSE, true, 2,
                                 (int64_t[]){outputs, inputs}, &linear->weight, error));
    } else {
        TT_TRY(tt_train_shape_check(&form->shape, inputs, outputs, name, error));
        linear->rank = form->shape.ranks[form->shape.input_order];
        bool shares = neighbour && neighbour->form == TT_TENSOR_TRAIN;
        TT_TRY(tt_train_set_add(trains, name, &form->shape, shares ? neighbour->train : -1,
                                &linear->train, error));
    }
    snprintf(full_name, sizeof full_name, "%s.bias", name);
    return tt_parameters_add(parameters, full_name, TT_GROUP_DENSE, false, 1, &outputs,
                             &linear->bias, error);
}

void tt_linear_initialize(const tt_linear *linear, float deviation, uint64_t seed)
{
    if (linear->form == TT_DENSE) {
        tt_parameters_fill_normal(linear->parameters, linear->weight, deviation, seed);
    } else {
        tt_train_initialize(linear->trains, linear->train, deviation, seed);
    }
    tt_parameters_fill(linear->parameters, linear->bias, 0.0f);
}

int64_t tt_linear_size(const tt_linear *linear)
{
    if (linear->form == TT_DENSE) {
        return tt_linear_dense_size(linear);
    }
    return tt_train_size(&tt_linear_train(linear)->shape) + linear->outputs;
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

static tt_matrix weight_of(const tt_linear *linear)
{
    return tt_parameters_weight(linear->parameters, linear->weight);
}

void tt_linear_forward(const tt_linear *linear, tt_matrix x, tt_matrix u, tt_matrix y)
{
    if (linear->form == TT_DENSE) {
        tt_linear_multiply(linear->parameters->device, false, true, x, weight_of(linear), 0.0f, y);
    } else {
        tt_linear_contract(linear, linear, x, u);
        tt_linear_expand(linear, u, y);
    }
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
    } else {
        tt_linear_contract(linear, linear, x, u);
        product.a = u;
        product.b = tt_linear_train(linear)->rounded_b;
    }
    tt_device *device = linear->parameters->device;
    device->ops->multiply(device, &product);
}

void tt_linear_expand(const tt_linear *linear, tt_matrix u, tt_matrix y)
{
    tt_linear_multiply(linear->parameters->device, false, false, u,
                       tt_linear_train(linear)->rounded_b, 0.0f, y);
}

void tt_linear_backward(const tt_linear *linear, tt_matrix x, tt_matrix u, tt_matrix dy,
                        tt_matrix du, float beta, tt_matrix dx)
{
    if (linear->form == TT_TENSOR_TRAIN) {
        tt_linear_expand_backward(linear, u, dy, du);
        tt_linear_contract_backward(linear, linear, x, du, beta, dx);
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

/* The product's tensor-train linear map against every group of tt_linear*.h5.
 *
 * A device knows a number to some fraction of the terms that it is a sum of, not of what is left of
 * them. So tensors, some of which are a single number, are measured against at least the norm that
 * they would have were the signs of their terms random: the root of the sum of the terms' squares,
 * which is what the map gives with all its numbers squared. */
#include "core/linear.h"
#include "tests/reference/double_layers.h"
#include "tests/reference/reference_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    tt_device *device;
    tt_parameters parameters;
    tt_train_set trains;
    tt_linear linear;
} linear_case;

/* "map.core_1" for the file's "core_1", and so on for every parameter of the map. */
static void for_each_parameter(int order, const tt_double_tensors *data, void *context,
                               void (*call)(void *context, const char *name,
                                            const tt_double_tensor *tensor))
{
    char name[64];
    call(context, "map.bias", tt_double_tensors_get(data, "bias"));
    for (int k = 1; k <= order; k++) {
        snprintf(name, sizeof(name), "map.core_%d", k);
        call(context, name, tt_double_tensors_get(data, "core_%d", k));
        if (k < order) {
            snprintf(name, sizeof(name), "map.rank_diagonal_%d", k);
            call(context, name, tt_double_tensors_get(data, "rank_diagonal_%d", k));
        }
    }
}

static void set_parameter(void *context, const char *name, const tt_double_tensor *tensor)
{
    linear_case *linear = context;
    tt_suite_set_parameter(&linear->parameters, name, tensor->values, tensor->shape.count);
}

static void make(linear_case *linear, const tt_double_train *train, const tt_double_tensors *data)
{
    tt_error error;
    tt_linear_form form = {.form = TT_TENSOR_TRAIN,
                           .shape = {.order = train->order, .input_order = train->input_order}};
    for (int k = 0; k < train->order; k++) {
        form.shape.modes[k] = train->modes[k];
        form.shape.ranks[k] = train->ranks[k];
    }
    form.shape.ranks[train->order] = train->ranks[train->order];
    linear->device = tt_suite_device();
    tt_parameters_init(&linear->parameters, linear->device);
    tt_train_set_init(&linear->trains, &linear->parameters, tt_suite_threshold(train->threshold));
    tt_suite_succeed(tt_linear_add(&linear->linear, "map", tt_double_train_inputs(train),
                                   tt_double_train_outputs(train), &form, NULL, &linear->parameters,
                                   &linear->trains, &error),
                     &error);
    tt_suite_succeed(tt_parameters_allocate(&linear->parameters, false, &error), &error);
    tt_suite_succeed(tt_train_set_plan(&linear->trains, &error), &error);
    for_each_parameter(train->order, data, linear, set_parameter);
}

static void release(linear_case *linear)
{
    tt_train_set_free(&linear->trains);
    tt_parameters_free(&linear->parameters);
    tt_device_destroy(&linear->device);
}

/* The tensor `name` of `data` with its numbers squared. */
static tt_double_tensor *add_squares(tt_double_tensors *squares, const tt_double_tensors *data,
                                     const char *name)
{
    const tt_double_tensor *tensor = tt_double_tensors_get(data, "%s", name);
    tt_double_tensor *squared = tt_double_tensors_add(squares, name, &tensor->shape);
    for (int64_t i = 0; i < tensor->shape.count; i++) {
        squared->values[i] = tensor->values[i] * tensor->values[i];
    }
    return squared;
}

/* The train's tensors squared, what is pruned being 0. */
static tt_double_train square_train(const tt_double_train *train, const tt_double_tensors *data,
                                    tt_double_tensors *squares)
{
    char name[64];
    tt_double_train squared = *train;
    squared.threshold = 0;
    for (int k = 0; k < train->order; k++) {
        snprintf(name, sizeof(name), "core_%d", k + 1);
        tt_double_tensor *core = add_squares(squares, data, name);
        squared.cores[k] = core->values;
        squared.core_gradients[k] = core->gradients;
        if (k == train->order - 1) {
            break;
        }
        snprintf(name, sizeof(name), "rank_diagonal_%d", k + 1);
        tt_double_tensor *diagonal = add_squares(squares, data, name);
        for (int64_t j = 0; j < diagonal->shape.count; j++) {
            bool kept = train->diagonals[k][j] > train->threshold;
            diagonal->values[j] = kept ? diagonal->values[j] : 0;
        }
        squared.diagonals[k] = diagonal->values;
        squared.diagonal_gradients[k] = diagonal->gradients;
    }
    return squared;
}

/* For every tensor of the group the sums of its terms' squares: values of y, gradients of all
 * others. */
static tt_double_tensors sum_squares(const tt_double_train *train, const tt_double_tensors *data)
{
    tt_double_tensors squares = {0};
    tt_double_pool pool = {0};
    tt_double_map map;
    tt_double_train squared = square_train(train, data, &squares);
    tt_double_tensor *bias = add_squares(&squares, data, "bias");
    tt_double_tensor *x = add_squares(&squares, data, "x");
    tt_double_tensor *y = add_squares(&squares, data, "y");
    tt_double_tensor *d_output = add_squares(&squares, data, "grad_output");
    tt_double_map_train(&map, &squared, bias, &pool);
    int64_t rows = x->shape.count / map.inputs;
    tt_double_map_forward(&map, rows, x->values, y->values);
    tt_double_map_backward(&map, rows, x->values, d_output->values, x->gradients);
    tt_double_map_finish(&map);
    tt_double_pool_free(&pool);
    return squares;
}

/* The norm of `name` were its terms' signs random. */
static double random_norm(const tt_double_tensors *squares, const char *name)
{
    const tt_double_tensor *tensor = tt_double_tensors_get(squares, "%s", name);
    double sum = 0;
    for (int64_t i = 0; i < tensor->shape.count; i++) {
        sum += strcmp(name, "y") == 0 ? tensor->values[i] : tensor->gradients[i];
    }
    return sqrt(sum);
}

typedef struct {
    linear_case *linear;
    tt_reference_check check;
    const tt_double_tensors *data;
    tt_double_tensors squares;
} comparison;

static void compare_gradient(void *context, const char *name, const tt_double_tensor *tensor)
{
    comparison *comparison = context;
    const tt_double_tensor *expected =
        tt_double_tensors_get(comparison->data, "grad_%s", tensor->name);
    float *found = tt_suite_gradient(&comparison->linear->parameters, name, expected->shape.count);
    comparison->check.least = random_norm(&comparison->squares, tensor->name);
    tt_reference_check_gradient(&comparison->check, expected->name, expected->values, found,
                                expected->shape.count);
    free(found);
}

static bool compare_linear(const tt_reference_file *file, const char *group,
                           tt_double_tensors *data)
{
    tt_double_train train = tt_suite_train(file, group, data);
    linear_case linear;
    make(&linear, &train, data);
    tt_device *device = linear.device;
    const tt_double_tensor *x = tt_double_tensors_get(data, "x");
    const tt_double_tensor *y = tt_double_tensors_get(data, "y");
    const tt_double_tensor *dx = tt_double_tensors_get(data, "grad_x");
    const tt_double_tensor *dy = tt_double_tensors_get(data, "grad_output");
    int64_t inputs = linear.linear.inputs;
    int64_t outputs = linear.linear.outputs;
    int64_t rows = x->shape.count / inputs;
    assert_int_equal(x->shape.count, rows * inputs);
    assert_int_equal(dx->shape.count, rows * inputs);
    assert_int_equal(y->shape.count, rows * outputs);
    assert_int_equal(dy->shape.count, rows * outputs);
    tt_matrix in = tt_suite_matrix(device, rows, inputs, x->values);
    tt_matrix u = tt_suite_matrix(device, rows, linear.linear.rank, NULL);
    tt_matrix out = tt_suite_matrix(device, rows, outputs, NULL);
    tt_matrix d_out = tt_suite_matrix(device, rows, outputs, dy->values);
    tt_matrix du = tt_suite_matrix(device, rows, linear.linear.rank, NULL);
    tt_matrix d_in = tt_suite_matrix(device, rows, inputs, NULL);

    tt_train_set_materialise(&linear.trains);
    tt_linear_forward(&linear.linear, in, u, out);
    device->ops->add_bias(device, out, tt_linear_bias(&linear.linear));
    device->ops->add_bias_backward(device, d_out, tt_linear_bias_gradient(&linear.linear));
    tt_linear_backward(&linear.linear, in, u, d_out, du, 0.0f, d_in);
    tt_train_set_contract(&linear.trains);

    comparison comparison = {.linear = &linear, .data = data, .squares = sum_squares(&train, data)};
    tt_suite_begin_layer(&comparison.check, group);
    float *found_y = tt_suite_copy_out(device, out);
    float *found_dx = tt_suite_copy_out(device, d_in);
    comparison.check.least = random_norm(&comparison.squares, "y");
    tt_reference_check_output(&comparison.check, "y", y->values, found_y, y->shape.count);
    comparison.check.least = random_norm(&comparison.squares, "x");
    tt_reference_check_gradient(&comparison.check, "grad_x", dx->values, found_dx, dx->shape.count);
    for_each_parameter(train.order, data, &comparison, compare_gradient);

    free(found_y);
    free(found_dx);
    const tt_matrix matrices[] = {in, u, out, d_out, du, d_in};
    for (int i = 0; i < 6; i++) {
        device->release(device, matrices[i].data);
    }
    release(&linear);
    tt_double_tensors_free(&comparison.squares);
    return tt_reference_check_finish(&comparison.check);
}

static tt_suite_count compare_file(const tt_reference_file *file)
{
    return tt_suite_groups(file, "core_1", compare_linear);
}

static void test_tt_linear(void **state)
{
    (void)state;
    tt_suite_files("tt_linear*.h5", compare_file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tt_linear)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

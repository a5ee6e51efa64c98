#include "tests/reference/reference_suite.h"

#include <math.h>

void tt_suite_succeed(tt_status status, const tt_error *error)
{
    if (status != TT_OK) {
        fail_msg("%s", error->message);
    }
}

void tt_suite_files(const char *pattern, tt_suite_count (*run)(const tt_reference_file *file))
{
    tt_error error;
    tt_reference_names paths;
    tt_suite_succeed(tt_reference_find(pattern, &paths, &error), &error);
    tt_suite_count all = {0};
    for (int i = 0; i < paths.count; i++) {
        tt_reference_file file;
        printf("%s\n", paths.names[i]);
        tt_suite_succeed(tt_reference_open(paths.names[i], &file, &error), &error);
        tt_suite_count count = run(&file);
        all.compared += count.compared;
        all.failed += count.failed;
        tt_reference_close(&file);
    }
    printf("%s: %d groups in %d files\n", pattern, all.compared, paths.count);
    tt_reference_names_free(&paths);
    if (all.failed > 0) {
        fail_msg("%s: %d of %d groups differ", pattern, all.failed, all.compared);
    }
}

tt_suite_count tt_suite_groups(const tt_reference_file *file, const char *mark,
                               bool (*compare)(const tt_reference_file *file, const char *group,
                                               tt_double_tensors *data))
{
    tt_error error;
    tt_reference_names groups;
    tt_suite_count count = {0};
    tt_suite_succeed(tt_reference_groups(file, "/", &groups, &error), &error);
    for (int i = 0; i < groups.count; i++) {
        char path[2 * TT_REFERENCE_NAME];
        snprintf(path, sizeof(path), "%s/%s", groups.names[i], mark);
        if (!tt_reference_has(file, path)) {
            printf("%s: no %s, passed over\n", groups.names[i], mark);
            continue;
        }
        tt_double_tensors data;
        tt_suite_succeed(tt_double_tensors_read(file, groups.names[i], &data, &error), &error);
        count.compared++;
        count.failed += !compare(file, groups.names[i], &data);
        tt_double_tensors_free(&data);
    }
    tt_reference_names_free(&groups);
    if (count.compared == 0) {
        fail_msg("%s: no group has a %s", file->path, mark);
    }
    return count;
}

int64_t tt_suite_integer(const tt_reference_file *file, const char *object, const char *attribute)
{
    tt_error error;
    int64_t value;
    tt_suite_succeed(tt_reference_integer(file, object, attribute, &value, &error), &error);
    return value;
}

double tt_suite_real(const tt_reference_file *file, const char *object, const char *attribute)
{
    tt_error error;
    double value;
    tt_suite_succeed(tt_reference_real(file, object, attribute, &value, &error), &error);
    return value;
}

bool tt_suite_gelu_is_tanh(const tt_reference_file *file, const char *attribute)
{
    char name[64];
    tt_reference_text(file, "/", attribute, name, sizeof(name));
    return strstr(name, "tanh") != NULL || strstr(name, "gelu_new") != NULL;
}

float tt_suite_threshold(double threshold)
{
    float near = (float)threshold;
    return (double)near > threshold ? nextafterf(near, -INFINITY) : near;
}

static int integers(const tt_reference_file *file, const char *group, const char *attribute,
                    int room, int64_t *values)
{
    tt_error error;
    int count;
    tt_suite_succeed(tt_reference_integers(file, group, attribute, room, values, &count, &error),
                     &error);
    return count;
}

/* The number of leading modes whose product is the width of x: half of them where that is so. */
static int input_order(const tt_double_train *train, const tt_double_tensors *data)
{
    const tt_reference_shape *x = &tt_double_tensors_get(data, "x")->shape;
    int64_t width = x->dimensions > 0 ? x->extent[x->dimensions - 1] : 0;
    tt_double_train cut = *train;
    cut.input_order = train->order / 2;
    if (tt_double_train_inputs(&cut) == width) {
        return cut.input_order;
    }
    for (cut.input_order = 1; cut.input_order < train->order; cut.input_order++) {
        if (tt_double_train_inputs(&cut) == width) {
            return cut.input_order;
        }
    }
    fail_msg("no leading modes multiply to the width of x, %lld", (long long)width);
    return 0;
}

tt_double_train tt_suite_train(const tt_reference_file *file, const char *group,
                               const tt_double_tensors *data)
{
    tt_double_train train = {.threshold = tt_suite_real(file, group, "threshold")};
    train.order = integers(file, group, "shape", TT_DOUBLE_ORDER, train.modes);
    train.input_order = input_order(&train, data);
    assert_int_equal(integers(file, group, "ranks", TT_DOUBLE_ORDER + 1, train.ranks),
                     train.order + 1);
    for (int k = 0; k < train.order; k++) {
        tt_double_tensor *core = tt_double_tensors_get(data, "core_%d", k + 1);
        assert_int_equal(core->shape.count, train.ranks[k] * train.modes[k] * train.ranks[k + 1]);
        train.cores[k] = core->values;
        train.core_gradients[k] = core->gradients;
        if (k < train.order - 1) {
            tt_double_tensor *diagonal = tt_double_tensors_get(data, "rank_diagonal_%d", k + 1);
            assert_int_equal(diagonal->shape.count, train.ranks[k + 1]);
            train.diagonals[k] = diagonal->values;
            train.diagonal_gradients[k] = diagonal->gradients;
        }
    }
    return train;
}

tt_double_train_matrix tt_suite_train_matrix(const tt_reference_file *file, const char *group,
                                             const tt_double_tensors *data)
{
    tt_double_train_matrix matrix = {.threshold = TT_SUITE_THRESHOLD};
    if (tt_reference_has_attribute(file, group, "threshold")) {
        matrix.threshold = tt_suite_real(file, group, "threshold");
    }
    matrix.order = integers(file, group, "row_shape", TT_DOUBLE_ORDER, matrix.rows);
    assert_int_equal(integers(file, group, "column_shape", TT_DOUBLE_ORDER, matrix.columns),
                     matrix.order);
    assert_int_equal(integers(file, group, "ranks", TT_DOUBLE_ORDER + 1, matrix.ranks),
                     matrix.order + 1);
    for (int k = 0; k < matrix.order; k++) {
        tt_double_tensor *core = tt_double_tensors_get(data, "core_%d", k + 1);
        assert_int_equal(core->shape.count, matrix.ranks[k] * matrix.rows[k] * matrix.columns[k] *
                                                matrix.ranks[k + 1]);
        matrix.cores[k] = core->values;
        matrix.core_gradients[k] = core->gradients;
        tt_double_tensor *diagonal = tt_double_tensors_find(data, "rank_diagonal_%d", k + 1);
        if (diagonal != NULL) {
            assert_int_equal(diagonal->shape.count, matrix.ranks[k + 1]);
            matrix.diagonals[k] = diagonal->values;
            matrix.diagonal_gradients[k] = diagonal->gradients;
        }
    }
    return matrix;
}

tt_device *tt_suite_device(void)
{
    return test_device(2);
}

void tt_suite_begin_layer(tt_reference_check *check, const char *group)
{
    tt_reference_check_begin(check, group, test_device_tolerance());
}

void tt_suite_begin_model(tt_reference_check *check, const char *name)
{
    if (test_device_precision() == TEST_F32) {
        tt_reference_check_begin(check, name, 5e-5);
        return;
    }
    tt_reference_check_begin(check, name, INFINITY);
    check->loss_tolerance = 1e-2;
    check->gradient_tolerance = 1e-1;
}

static tt_matrix make_matrix(tt_device *device, tt_type type, int64_t rows, int64_t columns,
                             const double *values)
{
    void *memory = device->allocate(device, tt_type_bytes(type, rows * columns));
    assert_non_null(memory);
    tt_matrix matrix = tt_matrix_dense(memory, rows, columns, type);
    if (values != NULL) {
        test_write_matrix(device, matrix, values);
    }
    return matrix;
}

tt_matrix tt_suite_matrix(tt_device *device, int64_t rows, int64_t columns, const double *values)
{
    return make_matrix(device, device->compute, rows, columns, values);
}

tt_matrix tt_suite_table(tt_device *device, int64_t rows, int64_t columns, const double *values)
{
    return make_matrix(device, TT_F32, rows, columns, values);
}

static float *rounded(const double *values, int64_t count)
{
    float *floats = test_host(tt_floats(count));
    for (int64_t i = 0; i < count; i++) {
        floats[i] = (float)values[i];
    }
    return floats;
}

float *tt_suite_copy_out(tt_device *device, tt_matrix matrix)
{
    double *values = test_read_matrix(device, matrix);
    float *floats = rounded(values, matrix.rows * matrix.columns);
    free(values);
    return floats;
}

static tt_parameter_id find_parameter(const tt_parameters *parameters, const char *name,
                                      int64_t count)
{
    tt_parameter_id id = tt_parameters_find(parameters, name);
    if (id < 0) {
        fail_msg("the model has no parameter %s", name);
    }
    if (parameters->items[id].count != count) {
        fail_msg("%s: the model has %lld numbers, the file %lld", name,
                 (long long)parameters->items[id].count, (long long)count);
    }
    return id;
}

void tt_suite_set_parameter(tt_parameters *parameters, const char *name, const double *values,
                            int64_t count)
{
    tt_parameter_id id = find_parameter(parameters, name, count);
    float *floats = rounded(values, count);
    parameters->device->copy_in(parameters->device, tt_parameters_value(parameters, id), floats,
                                (size_t)count * sizeof(float));
    free(floats);
}

float *tt_suite_gradient(const tt_parameters *parameters, const char *name, int64_t count)
{
    tt_parameter_id id = find_parameter(parameters, name, count);
    return test_copy_out(parameters->device, tt_parameters_gradient(parameters, id),
                         tt_floats(count));
}

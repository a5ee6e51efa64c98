/* The double-precision models against every reference file: single layers agree to 1e-10, whole
 * models to what a float can say (the gradients are kept as floats, and so, in the six-encoder
 * file, are diagonals that were computed with as doubles). */
#include "tests/reference/double_layers.h"
#include "tests/reference/double_model.h"
#include "tests/reference/reference_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#define DOUBLE_TOLERANCE 1e-10
#define FLOAT_TOLERANCE 1e-6
/* A model's gradients are kept as floats. The key bias has a true gradient of 0: what files have
 * there is rounding noise, some 1e-12 to 1e-11 of the whole gradient. */
#define GRADIENT_TOLERANCE 5e-6
#define GRADIENT_FLOOR 1e-5

/* Of results that are kept like this one. */
static double stored_tolerance(const tt_reference_file *file, const char *dataset)
{
    return tt_reference_is_double(file, dataset) ? DOUBLE_TOLERANCE : FLOAT_TOLERANCE;
}

static double group_tolerance(const tt_reference_file *file, const char *group, const char *result)
{
    char path[2 * TT_REFERENCE_NAME];
    snprintf(path, sizeof(path), "%s/%s", group, result);
    return stored_tolerance(file, path);
}

static void compare_gradient(tt_reference_check *check, const tt_double_tensors *data,
                             const tt_double_tensor *found)
{
    const tt_double_tensor *expected = tt_double_tensors_get(data, "grad_%s", found->name);
    assert_int_equal(expected->shape.count, found->shape.count);
    tt_reference_check_gradient_double(check, expected->name, expected->values, found->gradients,
                                       found->shape.count);
}

static bool compare_linear(const tt_reference_file *file, const char *group,
                           tt_double_tensors *data)
{
    tt_double_train train = tt_suite_train(file, group, data);
    tt_double_tensor *x = tt_double_tensors_get(data, "x");
    tt_double_tensor *y = tt_double_tensors_get(data, "y");
    tt_double_tensor *dy = tt_double_tensors_get(data, "grad_output");
    tt_double_tensor *bias = tt_double_tensors_get(data, "bias");
    tt_double_pool pool = {0};
    tt_double_map map;
    tt_double_map_train(&map, &train, bias, &pool);
    int64_t rows = x->shape.count / map.inputs;
    assert_int_equal(x->shape.count, rows * map.inputs);
    assert_int_equal(y->shape.count, rows * map.outputs);
    assert_int_equal(dy->shape.count, y->shape.count);

    double *found = tt_double_pool_array(&pool, y->shape.count);
    tt_double_map_forward(&map, rows, x->values, found);
    tt_double_map_backward(&map, rows, x->values, dy->values, x->gradients);
    tt_double_map_finish(&map);

    tt_reference_check check;
    tt_reference_check_begin(&check, group, group_tolerance(file, group, "y"));
    tt_reference_check_output_double(&check, "y", y->values, found, y->shape.count);
    compare_gradient(&check, data, x);
    compare_gradient(&check, data, bias);
    for (int k = 1; k <= train.order; k++) {
        compare_gradient(&check, data, tt_double_tensors_get(data, "core_%d", k));
        if (k < train.order) {
            compare_gradient(&check, data, tt_double_tensors_get(data, "rank_diagonal_%d", k));
        }
    }
    tt_double_pool_free(&pool);
    return tt_reference_check_finish(&check);
}

static tt_suite_count compare_linear_file(const tt_reference_file *file)
{
    return tt_suite_groups(file, "core_1", compare_linear);
}

static void test_linear(void **state)
{
    (void)state;
    tt_suite_files("tt_linear*.h5", compare_linear_file);
}

static bool compare_embedding(const tt_reference_file *file, const char *group,
                              tt_double_tensors *data)
{
    tt_double_train_matrix matrix = tt_suite_train_matrix(file, group, data);
    int64_t width = tt_double_train_matrix_width(&matrix);
    const tt_double_tensor *ids = tt_double_tensors_get(data, "ids");
    const tt_double_tensor *rows = tt_double_tensors_get(data, "rows");
    const tt_double_tensor *d_rows = tt_double_tensors_get(data, "grad_output");
    assert_int_equal(rows->shape.count, ids->shape.count * width);
    assert_int_equal(d_rows->shape.count, rows->shape.count);
    double *found = tt_double_array(rows->shape.count);
    for (int64_t i = 0; i < ids->shape.count; i++) {
        int64_t id = (int64_t)ids->values[i];
        tt_double_train_matrix_row(&matrix, id, found + i * width);
        tt_double_train_matrix_gradient(&matrix, id, d_rows->values + i * width);
    }
    tt_reference_check check;
    tt_reference_check_begin(&check, group, group_tolerance(file, group, "rows"));
    tt_reference_check_output_double(&check, "rows", rows->values, found, rows->shape.count);
    for (int k = 1; k <= matrix.order; k++) {
        compare_gradient(&check, data, tt_double_tensors_get(data, "core_%d", k));
        if (matrix.diagonals[k - 1] != NULL) {
            compare_gradient(&check, data, tt_double_tensors_get(data, "rank_diagonal_%d", k));
        }
    }
    free(found);
    return tt_reference_check_finish(&check);
}

static tt_suite_count compare_embedding_file(const tt_reference_file *file)
{
    return tt_suite_groups(file, "core_1", compare_embedding);
}

static void test_embedding(void **state)
{
    (void)state;
    tt_suite_files("ttm_embedding*.h5", compare_embedding_file);
}

static bool compare_output(const tt_reference_file *file, const char *dataset, double tolerance,
                           const double *found, int64_t count)
{
    tt_error error;
    double *expected;
    tt_reference_check check;
    tt_suite_succeed(tt_reference_doubles(file, dataset, count, &expected, &error), &error);
    tt_reference_check_begin(&check, dataset, tolerance);
    tt_reference_check_output_double(&check, dataset, expected, found, count);
    free(expected);
    return tt_reference_check_finish(&check);
}

/* Every parameter has its gradient in the file and the other way round. */
static bool compare_gradients(const tt_reference_file *file, const tt_double_tensors *parameters)
{
    tt_error error;
    tt_double_tensors expected;
    tt_suite_succeed(tt_double_tensors_read(file, "gradients", &expected, &error), &error);
    assert_int_equal(expected.count, parameters->count);
    tt_reference_check check;
    tt_reference_check_begin(&check, "gradients", GRADIENT_TOLERANCE);
    check.gradient_floor = GRADIENT_FLOOR;
    for (int i = 0; i < expected.count; i++) {
        const tt_double_tensor *gradient = expected.items[i];
        const tt_double_tensor *found = tt_double_tensors_get(parameters, "%s", gradient->name);
        assert_int_equal(gradient->shape.count, found->shape.count);
        tt_reference_check_gradient_double(&check, gradient->name, gradient->values,
                                           found->gradients, found->shape.count);
    }
    tt_double_tensors_free(&expected);
    return tt_reference_check_finish(&check);
}

static tt_suite_count compare_six_encoder(const tt_reference_file *file)
{
    tt_error error;
    tt_double_tensors parameters;
    tt_double_batch batch;
    tt_double_result result;
    tt_double_model model = {.parameters = &parameters};
    model.heads = tt_suite_integer(file, "/", "heads");
    model.epsilon = tt_suite_real(file, "/", "layer_norm_eps");
    model.threshold = tt_suite_real(file, "/", "threshold");
    model.gelu_by_tanh = tt_suite_gelu_is_tanh(file, "gelu");
    tt_suite_succeed(tt_double_tensors_read(file, "parameters", &parameters, &error), &error);
    tt_suite_succeed(tt_double_batch_read(file, false, &batch, &error), &error);
    tt_double_model_six_encoder(&model, &batch, &result);
    bool agrees = compare_output(file, "logits", FLOAT_TOLERANCE, result.logits,
                                 batch.batch * result.classes);
    agrees = compare_output(file, "loss", FLOAT_TOLERANCE, &result.loss, 1) && agrees;
    agrees = compare_gradients(file, &parameters) && agrees;
    tt_double_result_free(&result);
    tt_double_batch_free(&batch);
    tt_double_tensors_free(&parameters);
    return (tt_suite_count){.compared = 1, .failed = !agrees};
}

static void test_six_encoder(void **state)
{
    (void)state;
    tt_suite_files("six_encoder*.h5", compare_six_encoder);
}

static tt_suite_count compare_bert(const tt_reference_file *file)
{
    tt_error error;
    tt_double_tensors parameters;
    tt_double_batch batch;
    tt_double_result result;
    tt_double_model model = {.parameters = &parameters};
    model.heads = tt_suite_integer(file, "/", "num_attention_heads");
    model.epsilon = tt_suite_real(file, "/", "layer_norm_eps");
    model.gelu_by_tanh = tt_suite_gelu_is_tanh(file, "hidden_act");
    tt_suite_succeed(tt_double_tensors_read(file, "parameters", &parameters, &error), &error);
    tt_suite_succeed(tt_double_batch_read(file, true, &batch, &error), &error);
    tt_double_model_bert(&model, &batch, &result);
    const struct {
        const char *dataset;
        const double *values;
        int64_t count;
    } outputs[] = {
        {"masked_lm_logits", result.masked_lm_logits, result.masked_count * result.vocabulary},
        {"seq_relationship_logits", result.logits, batch.batch * result.classes},
        {"masked_lm_loss", &result.masked_lm_loss, 1},
        {"next_sentence_loss", &result.next_sentence_loss, 1},
        {"loss", &result.loss, 1},
    };
    bool agrees = compare_gradients(file, &parameters);
    for (int i = 0; i < 5; i++) {
        const char *dataset = outputs[i].dataset;
        agrees = compare_output(file, dataset, stored_tolerance(file, dataset), outputs[i].values,
                                outputs[i].count) &&
                 agrees;
    }
    tt_double_result_free(&result);
    tt_double_batch_free(&batch);
    tt_double_tensors_free(&parameters);
    return (tt_suite_count){.compared = 1, .failed = !agrees};
}

static void test_bert(void **state)
{
    (void)state;
    tt_suite_files("bert_pretraining*.h5", compare_bert);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_six_encoder),
        cmocka_unit_test(test_bert),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

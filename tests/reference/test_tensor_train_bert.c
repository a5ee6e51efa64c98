/* The product's BERT with every map a tensor train, heads included, and its word table, which is
 * the decoder too, a tensor-train matrix, against the double-precision model: both losses and every
 * gradient, in every form of the encoder's blocks. The parameters are what the product draws; the
 * batch is that of the project's own BERT file. The double-precision model has a dense word table:
 * it is assembled from the cores, and its gradient taken back into them. */
#include "tests/reference/reference_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS "bert.embeddings.word_embeddings"
#define BATCH_FILE TTRAIN_SOURCE_DIR "/tests/reference/data/bert_pretraining_own.h5"

static tt_linear_form train_form(int64_t inputs, int64_t outputs, int order, int64_t rank)
{
    tt_error error;
    tt_linear_form form = {.form = TT_TENSOR_TRAIN};
    tt_suite_succeed(
        tt_train_shape_choose(inputs, outputs, order / 2, order / 2, rank, &form.shape, &error),
        &error);
    return form;
}

static tt_configuration make_configuration(const tt_reference_file *file)
{
    tt_configuration configuration = {
        .vocabulary_size = tt_suite_integer(file, "/", "vocab_size"),
        .hidden_size = 24,
        .layers = 2,
        .heads = 2,
        .intermediate_size = 60,
        .max_positions = tt_suite_integer(file, "/", "max_position_embeddings"),
        .segment_types = 2,
        .gelu = TT_GELU_ERF,
        .layer_norm_epsilon = 1e-12f,
        .initializer_range = 0.5f,
        .next_sentence = true,
        .threshold = 0.01f,
        .train_deviation = 0.2f,
    };
    configuration.maps[TT_MAP_ATTENTION] = train_form(24, 24, 4, 5);
    configuration.maps[TT_MAP_INTERMEDIATE] = train_form(24, 60, 6, 7);
    configuration.maps[TT_MAP_OUTPUT] = train_form(60, 24, 2, 6);
    configuration.maps[TT_MAP_POOLER] = train_form(24, 24, 6, 4);
    configuration.maps[TT_MAP_TRANSFORM] = train_form(24, 24, 4, 3);
    return configuration;
}

/* The model's parameters as doubles, under its own names. */
static tt_double_tensors copy_parameters(const tt_model *model)
{
    const tt_parameters *parameters = &model->parameters;
    tt_double_tensors tensors = {0};
    for (int i = 0; i < parameters->count; i++) {
        const tt_parameter *parameter = &parameters->items[i];
        tt_reference_shape shape = {.dimensions = parameter->dimensions};
        for (int d = 0; d < parameter->dimensions; d++) {
            shape.extent[d] = parameter->shape[d];
        }
        tt_double_tensor *tensor = tt_double_tensors_add(&tensors, parameter->name, &shape);
        tt_matrix view = tt_matrix_f32(tt_parameters_value(parameters, i), 1, parameter->count);
        float *values = tt_suite_copy_out(parameters->device, view);
        for (int64_t j = 0; j < parameter->count; j++) {
            tensor->values[j] = (double)values[j];
        }
        free(values);
    }
    return tensors;
}

/* Diagonals and norms start at 1 and biases at 0: gives all of them something to say, and prunes
 * every fourth diagonal entry. */
static void disturb(tt_model *model)
{
    for (int i = 0; i < model->parameters.count; i++) {
        const tt_parameter *parameter = &model->parameters.items[i];
        if (parameter->dimensions != 1) {
            continue;
        }
        bool diagonal = parameter->group == TT_GROUP_DIAGONALS;
        bool around_one = diagonal || strstr(parameter->name, "LayerNorm.weight") != NULL;
        double *values = tt_double_array(parameter->count);
        for (int64_t j = 0; j < parameter->count; j++) {
            double wave = 0.1 * (double)(((int64_t)7 * i + 3 * j) % 11 - 5);
            values[j] = diagonal && j % 4 == 3 ? -0.2 : (around_one ? 1 : 0) + wave;
        }
        tt_suite_set_parameter(&model->parameters, parameter->name, values, parameter->count);
        free(values);
    }
}

static void same_name(const char *name, char *model_name, size_t size)
{
    snprintf(model_name, size, "%s", name);
}

/* A tensor-train matrix has no dense table to compare. */
static void same_name_but_table(const char *name, char *model_name, size_t size)
{
    snprintf(model_name, size, "%s", strcmp(name, WORDS ".weight") == 0 ? "" : name);
}

static tt_double_train_matrix word_matrix(const tt_double_tensors *tensors,
                                          const tt_configuration *configuration)
{
    const tt_train_matrix_shape *shape = &configuration->embedding.shape;
    tt_double_train_matrix matrix = {.order = shape->order,
                                     .threshold = (double)configuration->threshold};
    matrix.ranks[shape->order] = 1;
    for (int k = 0; k < shape->order; k++) {
        tt_double_tensor *core = tt_double_tensors_get(tensors, WORDS ".core_%d", k + 1);
        const int64_t extent[] = {shape->ranks[k], shape->rows[k], shape->columns[k],
                                  shape->ranks[k + 1]};
        assert_int_equal(core->shape.dimensions, 4);
        assert_memory_equal(core->shape.extent, extent, sizeof(extent));
        matrix.rows[k] = shape->rows[k];
        matrix.columns[k] = shape->columns[k];
        matrix.ranks[k] = shape->ranks[k];
        matrix.cores[k] = core->values;
        matrix.core_gradients[k] = core->gradients;
        if (k + 1 < shape->order) {
            tt_double_tensor *diagonal =
                tt_double_tensors_get(tensors, WORDS ".rank_diagonal_%d", k + 1);
            matrix.diagonals[k] = diagonal->values;
            matrix.diagonal_gradients[k] = diagonal->gradients;
        }
    }
    return matrix;
}

static void assemble_words(tt_double_tensors *tensors, const tt_configuration *configuration)
{
    tt_double_train_matrix matrix = word_matrix(tensors, configuration);
    int64_t rows = configuration->vocabulary_size, width = configuration->hidden_size;
    tt_reference_shape shape = {.dimensions = 2, .extent = {rows, width}, .count = rows * width};
    tt_double_tensor *table = tt_double_tensors_add(tensors, WORDS ".weight", &shape);
    for (int64_t i = 0; i < rows; i++) {
        tt_double_train_matrix_row(&matrix, i, table->values + i * width);
    }
}

static void contract_words(const tt_double_tensors *tensors, const tt_configuration *configuration)
{
    tt_double_train_matrix matrix = word_matrix(tensors, configuration);
    const tt_double_tensor *table = tt_double_tensors_get(tensors, WORDS ".weight");
    for (int64_t i = 0; i < configuration->vocabulary_size; i++) {
        tt_double_train_matrix_gradient(&matrix, i,
                                        table->gradients + i * configuration->hidden_size);
    }
}

static void compare(const tt_configuration *configuration, const tt_double_batch *batch,
                    tt_form_choice form, tt_decoding decoding, const char *name)
{
    tt_error error;
    tt_model model;
    tt_device *device = tt_suite_device();
    tt_suite_succeed(tt_model_create_pretraining(&model, device, configuration, 9, false, &error),
                     &error);
    model.encoder.form_choice = form;
    model.encoder.words.decoding = decoding;
    tt_suite_succeed(tt_word_table_plan(&model.encoder.words, &error), &error);
    tt_suite_succeed(
        tt_model_plan(&model, batch->batch, batch->sequence, batch->max_predictions, true, &error),
        &error);
    disturb(&model);
    tt_run_batch run = tt_run_batch_make(device, batch);
    tt_run_step(&model, &run);

    tt_double_result result;
    tt_double_tensors tensors = copy_parameters(&model);
    bool matrix = configuration->embedding.form == TT_TENSOR_TRAIN;
    if (matrix) {
        assemble_words(&tensors, configuration);
    }
    tt_double_model double_model = {.parameters = &tensors,
                                    .heads = configuration->heads,
                                    .epsilon = (double)configuration->layer_norm_epsilon,
                                    .threshold = (double)configuration->threshold};
    tt_double_model_bert(&double_model, batch, &result);
    if (matrix) {
        contract_words(&tensors, configuration);
    }
    double masked = tt_run_masked_loss(&model, &run);
    double sentence = tt_run_sentence_loss(&model, &run);
    tt_reference_check check;
    tt_suite_begin_model(&check, name);
    tt_reference_check_loss(&check, "masked loss", result.masked_lm_loss, masked,
                            result.masked_lm_loss);
    tt_reference_check_loss(&check, "sentence loss", result.next_sentence_loss, sentence,
                            result.next_sentence_loss);
    /* What is expected lies in the tensors' gradients; the comparison reads values. */
    for (int i = 0; i < tensors.count; i++) {
        double *values = tensors.items[i]->values;
        tensors.items[i]->values = tensors.items[i]->gradients;
        tensors.items[i]->gradients = values;
    }
    tt_run_compare_gradients(&model, &tensors, matrix ? same_name_but_table : same_name, &check);
    tt_double_result_free(&result);
    tt_double_tensors_free(&tensors);
    tt_run_batch_free(&run);
    tt_model_free(&model);
    tt_device_destroy(&device);
    assert_true(tt_reference_check_finish(&check));
}

static void test_tensor_train_bert(void **state)
{
    (void)state;
    tt_error error;
    tt_reference_file file;
    tt_double_batch batch;
    tt_suite_succeed(tt_reference_open(BATCH_FILE, &file, &error), &error);
    tt_suite_succeed(tt_double_batch_read(&file, true, &batch, &error), &error);
    tt_configuration configuration = make_configuration(&file);
    compare(&configuration, &batch, TT_FORM_ALWAYS_WIDE, TT_DECODING_BY_COST,
            "tensor-train BERT, wide");
    compare(&configuration, &batch, TT_FORM_ALWAYS_THIN, TT_DECODING_BY_COST,
            "tensor-train BERT, thin");
    configuration.maps[TT_MAP_ATTENTION].form = TT_DENSE;
    configuration.maps[TT_MAP_OUTPUT].form = TT_DENSE;
    compare(&configuration, &batch, TT_FORM_BY_COST, TT_DECODING_BY_COST,
            "BERT, half of its maps dense");
    static const char *const names[][2] = {{"two cores, table", "two cores, slices"},
                                           {"three cores, table", "three cores, slices"},
                                           {"four cores, table", "four cores, slices"},
                                           {"five cores, table", "five cores, slices"}};
    configuration.embedding.form = TT_TENSOR_TRAIN;
    configuration.initializer_range = 0.2f;
    for (int order = 2; order <= 4; order++) {
        tt_suite_succeed(tt_train_matrix_shape_choose(configuration.vocabulary_size, 24, order, 6,
                                                      &configuration.embedding.shape, &error),
                         &error);
        compare(&configuration, &batch, TT_FORM_BY_COST, TT_DECODING_TABLE, names[order - 2][0]);
        compare(&configuration, &batch, TT_FORM_BY_COST, TT_DECODING_SLICES, names[order - 2][1]);
    }
    configuration.embedding.shape =
        (tt_train_matrix_shape){5, {3, 1, 5, 2, 7}, {1, 4, 3, 1, 2}, {1, 3, 7, 9, 5, 1}};
    compare(&configuration, &batch, TT_FORM_BY_COST, TT_DECODING_TABLE, names[3][0]);
    compare(&configuration, &batch, TT_FORM_BY_COST, TT_DECODING_SLICES, names[3][1]);
    tt_double_batch_free(&batch);
    tt_reference_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tensor_train_bert)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

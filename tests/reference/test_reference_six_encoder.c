/* The product's encoder and classifier of tensor trains, its word table a tensor-train matrix,
 * against every six_encoder*.h5. Each file goes through every form of the encoder's blocks. */
#include "tests/reference/reference_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_CORES "encoder/embedding/word_emb/tensor/factors/"
#define WORD_DIAGONALS "encoder/embedding/word_emb/tensor/rank_parameters/"

/* What stands at the beginning of a name in the file, and in the model. */
static const char *const beginnings[][2] = {
    {"encoder/embedding/word_emb", "bert.embeddings.word_embeddings"},
    {"encoder/embedding/position_emb", "bert.embeddings.position_embeddings"},
    {"encoder/embedding/token_type_emb", "bert.embeddings.token_type_embeddings"},
    {"encoder/embedding/layer_norm", "bert.embeddings.LayerNorm"},
    {"classifier/fc1", "bert.pooler.dense"},
    {"classifier/fc2", "classifier"},
};

/* The same after "encoder/encoder_blocks/<n>/" and "bert.encoder.layer.<n>.". */
static const char *const block_beginnings[][2] = {
    {"slf_attn/w_qs", "attention.self.query"},
    {"slf_attn/w_ks", "attention.self.key"},
    {"slf_attn/w_vs", "attention.self.value"},
    {"slf_attn/fc", "attention.output.dense"},
    {"slf_attn/layer_norm", "attention.output.LayerNorm"},
    {"pos_ffn/fc_1", "intermediate.dense"},
    {"pos_ffn/fc_2", "output.dense"},
    {"pos_ffn/layer_norm", "output.LayerNorm"},
};

/* The number that follows `prefix` at the beginning of `text`, and where it ends; -1: not there. */
static long number_after(const char *text, const char *prefix, const char **end)
{
    size_t length = strlen(prefix);
    if (strncmp(text, prefix, length) != 0) {
        return -1;
    }
    char *rest;
    long number = strtol(text + length, &rest, 10);
    *end = rest;
    return rest == text + length ? -1 : number;
}

/* Puts the model's name for `name` together: `prefix`, the beginning's counterpart, the end's. */
static void translate(const char *name, const char *const (*pairs)[2], int count,
                      const char *prefix, char *model_name, size_t size)
{
    for (int i = 0; i < count; i++) {
        size_t length = strlen(pairs[i][0]);
        if (strncmp(name, pairs[i][0], length) != 0 || name[length] != '/') {
            continue;
        }
        const char *end = name + length;
        const char *rest;
        long core = number_after(end, "/layer/tensor/factors/", &rest);
        long diagonal = number_after(end, "/layer/tensor/rank_parameters/", &rest);
        if (core >= 0) {
            snprintf(model_name, size, "%s%s.core_%ld", prefix, pairs[i][1], core + 1);
        } else if (diagonal >= 0) {
            snprintf(model_name, size, "%s%s.rank_diagonal_%ld", prefix, pairs[i][1], diagonal + 1);
        } else {
            snprintf(model_name, size, "%s%s.%s", prefix, pairs[i][1], strrchr(end, '/') + 1);
        }
        return;
    }
    fail_msg("the model has no counterpart of %s", name);
}

static void model_name_of(const char *name, char *model_name, size_t size)
{
    const char *rest;
    long core = number_after(name, WORD_CORES, &rest);
    long diagonal = number_after(name, WORD_DIAGONALS, &rest);
    long layer = number_after(name, "encoder/encoder_blocks/", &rest);
    if (core >= 0) {
        snprintf(model_name, size, "bert.embeddings.word_embeddings.core_%ld", core + 1);
    } else if (diagonal >= 0) {
        snprintf(model_name, size, "bert.embeddings.word_embeddings.rank_diagonal_%ld",
                 diagonal + 1);
    } else if (layer >= 0 && *rest == '/') {
        char prefix[64];
        snprintf(prefix, sizeof(prefix), "bert.encoder.layer.%ld.", layer);
        translate(rest + 1, block_beginnings, 8, prefix, model_name, size);
    } else {
        translate(name, beginnings, 6, "", model_name, size);
    }
}

/* The file's word table: dense, or cores with as many rows as their modes allow. */
static void read_words(const tt_double_tensors *parameters, tt_configuration *configuration)
{
    tt_train_matrix_shape *shape = &configuration->embedding.shape;
    const tt_double_tensor *table =
        tt_double_tensors_find(parameters, "encoder/embedding/word_emb/weight");
    if (table != NULL) {
        configuration->vocabulary_size = table->shape.extent[0];
        return;
    }
    configuration->embedding.form = TT_TENSOR_TRAIN;
    configuration->vocabulary_size = 1;
    shape->ranks[0] = 1;
    for (int k = 0; k < TT_MAX_ORDER; k++) {
        const tt_double_tensor *core = tt_double_tensors_find(parameters, WORD_CORES "%d", k);
        if (core == NULL) {
            break;
        }
        shape->rows[k] = core->shape.extent[1];
        shape->columns[k] = core->shape.extent[2];
        shape->ranks[k + 1] = core->shape.extent[3];
        shape->order = k + 1;
        configuration->vocabulary_size *= shape->rows[k];
    }
}

/* The form of the map `name`: the file's cores with this shape, or dense. */
static tt_linear_form read_form(const tt_reference_file *file, const tt_double_tensors *parameters,
                                const char *shape, const char *name)
{
    tt_error error;
    tt_linear_form form = {.form = TT_TENSOR_TRAIN};
    if (tt_double_tensors_find(parameters, "%s/layer/weight", name) != NULL) {
        return (tt_linear_form){.form = TT_DENSE};
    }
    tt_suite_succeed(tt_reference_integers(file, "/", shape, TT_MAX_ORDER, form.shape.modes,
                                           &form.shape.order, &error),
                     &error);
    form.shape.input_order = form.shape.order / 2;
    form.shape.ranks[0] = 1;
    for (int k = 0; k < form.shape.order; k++) {
        const tt_double_tensor *core =
            tt_double_tensors_get(parameters, "%s/layer/tensor/factors/%d", name, k);
        form.shape.ranks[k + 1] = core->shape.extent[2];
    }
    return form;
}

static tt_configuration read_configuration(const tt_reference_file *file,
                                           const tt_double_tensors *parameters)
{
    tt_configuration configuration = {
        .hidden_size = tt_suite_integer(file, "/", "hidden"),
        .layers = tt_suite_integer(file, "/", "n_layers"),
        .heads = tt_suite_integer(file, "/", "heads"),
        .intermediate_size = tt_suite_integer(file, "/", "ffn"),
        .gelu = tt_suite_gelu_is_tanh(file, "gelu") ? TT_GELU_TANH : TT_GELU_ERF,
        .layer_norm_epsilon = (float)tt_suite_real(file, "/", "layer_norm_eps"),
        .initializer_range = 0.02f,
        .threshold = tt_suite_threshold(tt_suite_real(file, "/", "threshold")),
    };
    const char *block = "encoder/encoder_blocks/0";
    char name[TT_REFERENCE_NAME];
    snprintf(name, sizeof(name), "%s/slf_attn/w_qs", block);
    configuration.maps[TT_MAP_ATTENTION] = read_form(file, parameters, "attention_shape", name);
    snprintf(name, sizeof(name), "%s/pos_ffn/fc_1", block);
    configuration.maps[TT_MAP_INTERMEDIATE] = read_form(file, parameters, "ffn1_shape", name);
    snprintf(name, sizeof(name), "%s/pos_ffn/fc_2", block);
    configuration.maps[TT_MAP_OUTPUT] = read_form(file, parameters, "ffn2_shape", name);
    configuration.maps[TT_MAP_POOLER] =
        read_form(file, parameters, "attention_shape", "classifier/fc1");
    configuration.max_positions =
        tt_double_tensors_get(parameters, "encoder/embedding/position_emb/weight")->shape.extent[0];
    configuration.segment_types =
        tt_double_tensors_get(parameters, "encoder/embedding/token_type_emb/weight")
            ->shape.extent[0];
    read_words(parameters, &configuration);
    return configuration;
}

static void compare_results(tt_model *model, const tt_run_batch *run, const tt_reference_file *file,
                            const double *bias, tt_reference_check *check)
{
    tt_error error;
    double *logits;
    double *loss;
    int64_t count = run->inputs.batch.batch * model->sentence.classes;
    tt_suite_succeed(tt_reference_doubles(file, "logits", count, &logits, &error), &error);
    tt_suite_succeed(tt_reference_doubles(file, "loss", 1, &loss, &error), &error);
    float *found = tt_run_sentence_logits(model, run, bias);
    tt_reference_check_output(check, "logits", logits, found, count);
    tt_run_step(model, run);
    double found_loss = tt_run_sentence_loss(model, run);
    tt_reference_check_loss(check, "loss", *loss, found_loss, *loss);
    free(logits);
    free(loss);
    free(found);
}

/* `form`: how the halves of the blocks are to be computed. */
static bool compare_model(const tt_reference_file *file, tt_double_tensors *parameters,
                          const tt_double_tensors *gradients, const tt_double_batch *batch,
                          tt_form_choice form)
{
    static const char *const names[] = {[TT_FORM_BY_COST] = "six-encoder, forms by cost",
                                        [TT_FORM_ALWAYS_WIDE] = "six-encoder, wide",
                                        [TT_FORM_ALWAYS_THIN] = "six-encoder, thin"};
    tt_error error;
    tt_model model;
    tt_device *device = tt_suite_device();
    tt_configuration configuration = read_configuration(file, parameters);
    const tt_double_tensor *classifier =
        tt_double_tensors_get(parameters, "classifier/fc2/layer/bias");
    tt_suite_succeed(tt_model_create_classification(&model, device, &configuration,
                                                    classifier->shape.count, 1, false, &error),
                     &error);
    model.encoder.form_choice = form;
    tt_suite_succeed(tt_model_plan(&model, batch->batch, batch->sequence, 0, true, &error), &error);
    tt_run_set_parameters(&model, parameters, model_name_of);
    tt_run_batch run = tt_run_batch_make(device, batch);

    tt_reference_check check;
    tt_suite_begin_model(&check, names[form]);
    if (strstr(file->path, "_own_") != NULL) {
        /* Some gradients in it are 1e-5 of the whole and less: what sums leave whose terms cancel,
         * of which f32 has no more than this. */
        check.gradient_floor = 2e-5;
    }
    compare_results(&model, &run, file, classifier->values, &check);
    tt_run_compare_gradients(&model, gradients, model_name_of, &check);
    tt_run_batch_free(&run);
    tt_model_free(&model);
    tt_device_destroy(&device);
    assert_int_equal(gradients->count, parameters->count);
    return tt_reference_check_finish(&check);
}

static tt_suite_count compare_file(const tt_reference_file *file)
{
    tt_error error;
    tt_double_batch batch;
    tt_double_tensors parameters;
    tt_double_tensors gradients;
    tt_suite_succeed(tt_double_tensors_read(file, "parameters", &parameters, &error), &error);
    tt_suite_succeed(tt_double_tensors_read(file, "gradients", &gradients, &error), &error);
    tt_suite_succeed(tt_double_batch_read(file, false, &batch, &error), &error);
    static const tt_form_choice forms[] = {TT_FORM_BY_COST, TT_FORM_ALWAYS_WIDE,
                                           TT_FORM_ALWAYS_THIN};
    bool agrees = true;
    for (int i = 0; i < 3; i++) {
        agrees = compare_model(file, &parameters, &gradients, &batch, forms[i]) && agrees;
    }
    tt_double_batch_free(&batch);
    tt_double_tensors_free(&parameters);
    tt_double_tensors_free(&gradients);
    return (tt_suite_count){.compared = 1, .failed = !agrees};
}

static void test_six_encoder(void **state)
{
    (void)state;
    tt_suite_files("six_encoder*.h5", compare_file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_six_encoder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

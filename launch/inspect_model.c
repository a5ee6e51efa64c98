/* Checkpoints and recipes: what has parameters. */
#include "launch/inspect_report.h"

#include "data/tokenizer.h"
#include "launch/checkpoint_files.h"
#include "launch/model_recipe.h"
#include "launch/safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* Numbers in a checkpoint's model file. */
static tt_status count_parameters(const char *path, int64_t *parameters, tt_error *error)
{
    char file_path[TT_CHECKPOINT_PATH];
    tt_safetensors *file;
    TT_TRY(
        tt_checkpoint_join(file_path, path, tt_checkpoint_file_names[TT_CHECKPOINT_MODEL], error));
    TT_TRY(tt_safetensors_open(file_path, &file, error));
    *parameters = 0;
    for (int i = 0; i < file->count; i++) {
        const tt_safetensors_tensor *tensor = &file->tensors[i];
        *parameters +=
            (int64_t)(tensor->end - tensor->begin) / tt_safetensors_type_size(tensor->type);
    }
    tt_safetensors_close(&file);
    return TT_OK;
}

static json_t *loss_json(double loss)
{
    return isfinite(loss) ? json_real(loss) : json_null();
}

static json_t *files_json(const tt_checkpoint_file files[TT_CHECKPOINT_FILES])
{
    json_t *list = json_array();
    for (int i = 0; i < TT_CHECKPOINT_FILES; i++) {
        char hash[20];
        snprintf(hash, sizeof hash, "%016" PRIx64, files[i].hash);
        json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "name", files[i].name, "bytes",
                                              (json_int_t)files[i].size, "xxh64", hash));
    }
    return list;
}

static json_t *checkpoint_json(const char *path, const tt_training_state *state, int64_t parameters,
                               const tt_checkpoint_file files[TT_CHECKPOINT_FILES])
{
    json_t *report = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:I}", "kind", "checkpoint",
        "path", path, "step", (json_int_t)state->step, "phase", (json_int_t)state->phase,
        "phase_step", (json_int_t)state->phase_step, "epoch", (json_int_t)state->epoch, "samples",
        (json_int_t)state->samples, "tokens", (json_int_t)state->tokens, "skipped_steps",
        (json_int_t)state->skipped_steps, "world_size", (json_int_t)state->world_size,
        "validation_loss", loss_json(state->validation_loss), "best_validation_loss",
        loss_json(state->best_validation_loss), "best_step", (json_int_t)state->best_step);
    json_t *layers = json_array();
    for (int i = 0; i < state->layer_count; i++) {
        const tt_train_shape *shape = &state->layers[i].shape;
        json_t *layer = json_pack("{s:s}", "name", state->layers[i].name);
        tt_inspect_add_shape(layer, shape);
        json_array_append_new(layers, layer);
    }
    tt_inspect_add_sizes(report, parameters, state->dense_parameters);
    uint64_t bytes = 0;
    for (int i = 0; i < TT_CHECKPOINT_FILES; i++) {
        bytes += files[i].size;
    }
    json_object_set_new(report, "bytes", json_integer((json_int_t)bytes));
    json_object_set_new(report, "files", files_json(files));
    json_object_set_new(report, "layers", layers);
    return report;
}

tt_status tt_inspect_checkpoint(const char *path, json_t **report, tt_error *error)
{
    tt_checkpoint_file files[TT_CHECKPOINT_FILES];
    tt_training_state state;
    int64_t parameters;
    TT_TRY(tt_checkpoint_verify(path, error));
    TT_TRY(tt_checkpoint_read_manifest(path, files, error));
    TT_TRY(count_parameters(path, &parameters, error));
    TT_TRY(tt_checkpoint_read_state(path, &state, error));
    *report = checkpoint_json(path, &state, parameters, files);
    tt_training_state_free(&state);
    return TT_OK;
}

/* The tokenizer's size, 0 when the recipe names none. */
static tt_status tokenizer_size(const tt_recipe *recipe, int64_t *size, tt_error *error)
{
    *size = 0;
    if (recipe->data.tokenizer[0] == '\0' || recipe->model.vocabulary_size > 0) {
        return TT_OK;
    }
    tt_tokenizer *tokenizer;
    if (tt_recipe_open_tokenizer(recipe, &tokenizer, error) != TT_OK) {
        return tt_error_append(error, "; model.vocabulary_size=N shows sizes without it");
    }
    *size = tt_tokenizer_vocabulary_size(tokenizer);
    tt_tokenizer_close(&tokenizer);
    return TT_OK;
}

/* The table of a tensor-train matrix has the vocabulary as inputs; the modes of both sides are
 * those of its cores. */
static json_t *embedding_json(const tt_configuration *configuration)
{
    const tt_train_matrix_shape *shape = &configuration->embedding.shape;
    bool matrix = configuration->embedding.form == TT_TENSOR_TRAIN;
    int64_t rows = configuration->vocabulary_size, width = configuration->hidden_size;
    int64_t dense = rows * width, size = matrix ? tt_train_matrix_size(shape) : dense;
    int order = matrix ? shape->order : 1;
    return json_pack("{s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:f}", "map", "embedding",
                     "form", matrix ? "tensor_train_matrix" : "dense", "inputs", (json_int_t)rows,
                     "outputs", (json_int_t)width, "input_modes",
                     tt_inspect_integers(matrix ? shape->rows : &rows, order), "output_modes",
                     tt_inspect_integers(matrix ? shape->columns : &width, order), "ranks",
                     matrix ? tt_inspect_integers(shape->ranks, order + 1) : json_array(),
                     "parameters", (json_int_t)size, "dense_parameters", (json_int_t)dense,
                     "compression", (double)dense / (double)size);
}

static json_t *maps_json(const tt_configuration *configuration)
{
    json_t *list = json_array();
    for (int kind = 0; kind < TT_MAP_KINDS; kind++) {
        const tt_linear_form *form = &configuration->maps[kind];
        int64_t inputs, outputs;
        tt_configuration_map_size(configuration, (tt_map_kind)kind, &inputs, &outputs);
        bool dense = form->form == TT_DENSE;
        json_t *entry =
            json_pack("{s:s, s:s, s:I, s:I}", "map", tt_recipe_map_name((tt_recipe_map_kind)kind),
                      "form", dense ? "dense" : "tensor_train", "inputs", (json_int_t)inputs,
                      "outputs", (json_int_t)outputs);
        if (dense) {
            json_object_set_new(entry, "input_modes", tt_inspect_integers(&inputs, 1));
            json_object_set_new(entry, "output_modes", tt_inspect_integers(&outputs, 1));
            json_object_set_new(entry, "ranks", json_array());
            json_object_set_new(entry, "parameters", json_integer(inputs * outputs));
            json_object_set_new(entry, "dense_parameters", json_integer(inputs * outputs));
            json_object_set_new(entry, "compression", json_real(1));
        } else {
            tt_inspect_add_shape(entry, &form->shape);
        }
        json_array_append_new(list, entry);
    }
    json_array_append_new(list, embedding_json(configuration));
    return list;
}

static json_t *phases_json(const tt_recipe *recipe, const tt_configuration *configuration)
{
    json_t *list = json_array();
    for (uint64_t i = 0; i < recipe->phase_count; i++) {
        const tt_recipe_phase *phase = &recipe->phases[i];
        double flops = tt_configuration_flops(configuration, phase->global_batch,
                                              phase->sequence_length, phase->max_predictions);
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I, s:f, s:f}", "name", phase->name,
                                              "sequence_length", (json_int_t)phase->sequence_length,
                                              "steps", (json_int_t)phase->steps, "global_batch",
                                              (json_int_t)phase->global_batch, "learning_rate",
                                              phase->learning_rate, "flops_per_step", flops));
    }
    return list;
}

static tt_status recipe_json(const char *path, const tt_recipe *recipe, json_t **report,
                             tt_error *error)
{
    tt_configuration configuration;
    int64_t vocabulary;
    TT_TRY(tokenizer_size(recipe, &vocabulary, error));
    if (tt_model_recipe_configuration(recipe, vocabulary, &configuration, error) != TT_OK) {
        return tt_error_prefix(error, "%s", path);
    }
    const tt_configuration twin = tt_configuration_dense_twin(&configuration);
    *report = json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I}", "kind", "recipe", "path", path,
                        "name", recipe->name, "output", recipe->output, "vocabulary_size",
                        (json_int_t)configuration.vocabulary_size, "hidden_size",
                        (json_int_t)configuration.hidden_size, "layers",
                        (json_int_t)configuration.layers, "heads", (json_int_t)configuration.heads);
    tt_inspect_add_sizes(*report, tt_model_recipe_parameters(recipe, &configuration),
                         tt_model_recipe_parameters(recipe, &twin));
    json_object_set_new(*report, "maps", maps_json(&configuration));
    json_object_set_new(*report, "phases", phases_json(recipe, &configuration));
    return TT_OK;
}

tt_status tt_inspect_recipe(const char *path, const char *const *overrides, int override_count,
                            json_t **report, tt_error *error)
{
    tt_recipe *recipe = malloc(sizeof *recipe);
    if (recipe == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", path);
    }
    tt_status status = tt_recipe_load(path, overrides, override_count, recipe, error);
    if (status == TT_OK) {
        status = recipe_json(path, recipe, report, error);
    }
    free(recipe);
    return status;
}

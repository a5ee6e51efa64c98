#include "launch/table_run.h"

#include "data/file.h"
#include "launch/checkpoint_files.h"
#include "launch/recipe.h"
#include "launch/safetensors.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LARGEST_METRICS = 1 << 30 };

static int64_t count_of(const tt_safetensors_tensor *tensor)
{
    return (int64_t)(tensor->end - tensor->begin) / tt_safetensors_type_size(tensor->type);
}

/* --- a train's ranks --- */

/* "<layer>.<part>_<number>", a core or a diagonal, in the shape that state.json says it has; NULL
 * and an error where it is not. */
static const tt_safetensors_tensor *find(const tt_safetensors *file, const tt_layer_shape *layer,
                                         const char *part, int number, tt_error *error)
{
    const tt_train_shape *shape = &layer->shape;
    bool core = strcmp(part, "core") == 0;
    int64_t first = shape->ranks[core ? number - 1 : number], last = shape->ranks[number];
    int64_t modes = core ? shape->modes[number - 1] : 1, between = 1;
    char name[TT_SAFETENSORS_NAME];
    snprintf(name, sizeof name, "%.127s.%s_%d", layer->name, part, number);
    const tt_safetensors_tensor *tensor = tt_safetensors_find(file, name);
    int dimensions = tensor ? tensor->dimensions : 0;
    for (int i = 1; i + 1 < dimensions; i++) {
        between = tensor->shape[i] > 0 && between <= modes / tensor->shape[i]
                      ? between * tensor->shape[i]
                      : 0;
    }
    if (!tensor || tensor->type != TT_SAFETENSORS_F32 || dimensions < (core ? 3 : 1) ||
        tensor->shape[0] != first || between != modes || tensor->shape[dimensions - 1] != last) {
        tt_error_set(error, TT_INVALID_INPUT,
                     "%s: %s: expected F32 of ranks %lld and %lld and mode %lld, as "
                     "state.json says; found %s",
                     file->path, name, (long long)first, (long long)last, (long long)modes,
                     tensor ? "another shape" : "no such tensor");
        return NULL;
    }
    return tensor;
}

/* Entries of a link's diagonal that are above the threshold. */
static tt_status count_kept(const tt_safetensors *file, const tt_safetensors_tensor *diagonal,
                            double threshold, int64_t *kept, tt_error *error)
{
    int64_t count = count_of(diagonal);
    float *values = malloc((size_t)count * sizeof *values + 1);
    if (!values) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for a rank diagonal");
    }
    tt_status status =
        tt_safetensors_read(file, diagonal, 0, values, (size_t)count * sizeof *values, error);
    *kept = 0;
    for (int64_t i = 0; i < count && status == TT_OK; i++) {
        *kept += values[i] > (float)threshold;
    }
    free(values);
    return status;
}

/* Ranks of a layer and how many numbers of its cores and diagonals are left. */
static tt_status read_layer(const tt_safetensors *file, double threshold,
                            const tt_layer_shape *said, tt_table_layer *layer, int64_t *size,
                            tt_error *error)
{
    const tt_train_shape *shape = &said->shape;
    *size = 0;
    snprintf(layer->name, sizeof layer->name, "%s", said->name);
    layer->order = shape->order;
    layer->ranks[0] = layer->ranks[shape->order] = 1;
    layer->removed = tt_train_is_removed(shape);
    if (layer->removed) {
        return TT_OK;
    }
    for (int k = 1; k <= shape->order; k++) {
        if (!find(file, said, "core", k, error)) {
            return error->status;
        }
        if (k < shape->order) {
            const tt_safetensors_tensor *diagonal = find(file, said, "rank_diagonal", k, error);
            if (!diagonal) {
                return error->status;
            }
            TT_TRY(count_kept(file, diagonal, threshold, &layer->ranks[k], error));
            layer->removed = layer->removed || layer->ranks[k] == 0;
        }
    }
    for (int k = 0; k < shape->order && !layer->removed; k++) {
        *size += layer->ranks[k] * shape->modes[k] * layer->ranks[k + 1];
        *size += k + 1 < shape->order ? layer->ranks[k + 1] : 0;
    }
    return TT_OK;
}

static bool in_train(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && (strncmp(dot, ".core_", 6) == 0 || strncmp(dot, ".rank_diagonal_", 15) == 0);
}

static tt_status read_sizes(const tt_safetensors *file, const tt_training_state *state,
                            double threshold, tt_table_run *run, tt_error *error)
{
    int in_trains = 0, expected = 0;
    for (int i = 0; i < file->count; i++) {
        bool part = in_train(file->tensors[i].name);
        in_trains += part;
        run->other += part ? 0 : count_of(&file->tensors[i]);
    }
    run->layers = calloc((size_t)state->layer_count + 1, sizeof *run->layers);
    if (!run->layers) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for %d layers", state->layer_count);
    }
    run->layer_count = state->layer_count;
    for (int i = 0; i < state->layer_count; i++) {
        int64_t size;
        const tt_layer_shape *layer = &state->layers[i];
        expected += tt_train_is_removed(&layer->shape) ? 0 : 2 * layer->shape.order - 1;
        TT_TRY(read_layer(file, threshold, layer, &run->layers[i], &size, error));
        run->tensorized += size;
    }
    if (in_trains != expected) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected %d cores and diagonals, as state.json says; found %d",
                            file->path, expected, in_trains);
    }
    return TT_OK;
}

static void take_target(const tt_training_state *state, const tt_recipe *recipe, tt_table_run *run)
{
    if (state->stage > 0 && (uint64_t)state->stage <= recipe->stage_count) {
        const tt_recipe_stage *stage = &recipe->stages[state->stage - 1];
        bool asks = stage->kind == TT_RECIPE_LATE && stage->target_ratio > 0;
        run->target_ratio = asks ? stage->target_ratio : NAN;
    }
}

static tt_status read_model(const tt_training_state *state, tt_table_run *run, tt_error *error)
{
    char path[TT_CHECKPOINT_PATH];
    tt_safetensors *file;
    tt_recipe *recipe = malloc(sizeof *recipe);
    if (!recipe) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for a recipe");
    }
    tt_status status = tt_recipe_parse(run->checkpoint, state->recipe, strlen(state->recipe), NULL,
                                       0, recipe, error);
    double threshold = status == TT_OK ? recipe->tensor_train.threshold : 0;
    if (status == TT_OK) {
        snprintf(run->name, sizeof run->name, "%s", recipe->name);
        take_target(state, recipe, run);
    }
    free(recipe);
    TT_TRY(status);
    TT_TRY(tt_checkpoint_join(path, run->checkpoint, tt_checkpoint_file_names[TT_CHECKPOINT_MODEL],
                              error));
    TT_TRY(tt_safetensors_open(path, &file, error));
    status = read_sizes(file, state, threshold, run, error);
    tt_safetensors_close(&file);
    return status;
}

/* --- metrics --- */

static double number_of(const json_t *record, const char *key)
{
    const json_t *value = json_object_get(record, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* The last validation, and the last size, up to the checkpoint's step. A line that is no record is
 * left out. */
static void take_metrics(const char *text, size_t length, tt_table_run *run)
{
    while (length > 0) {
        const char *end = memchr(text, '\n', length);
        size_t used = end ? (size_t)(end - text) : length;
        json_t *record = json_loadb(text, used, 0, NULL);
        bool counts = number_of(record, "step") <= (double)run->step;
        if (counts && json_object_get(record, "validation_loss")) {
            run->validation_loss = number_of(record, "validation_loss");
            run->validation_accuracy = number_of(record, "validation_accuracy");
        }
        if (counts && json_object_get(record, "size_ratio")) {
            run->size_ratio = number_of(record, "size_ratio");
        }
        json_decref(record);
        used += end ? 1 : 0;
        text += used;
        length -= used;
    }
}

static tt_status read_metrics(const char *folder, tt_table_run *run, tt_error *error)
{
    char path[TT_CHECKPOINT_PATH];
    void *text;
    size_t length;
    TT_TRY(tt_checkpoint_join(path, folder, "metrics.jsonl", error));
    if (access(path, F_OK) != 0) {
        return TT_OK;
    }
    TT_TRY(tt_file_read(path, LARGEST_METRICS, &text, &length, error));
    take_metrics(text, length, run);
    free(text);
    return TT_OK;
}

/* --- a run --- */

/* The checkpoint that `path` means, and the folder of its run. */
static tt_status find_checkpoint(const char *path, char *checkpoint, char *folder, tt_error *error)
{
    char probe[TT_CHECKPOINT_PATH];
    TT_TRY(tt_checkpoint_join(probe, path, "manifest.json", error));
    if (access(probe, F_OK) == 0) {
        snprintf(checkpoint, TT_CHECKPOINT_PATH, "%s", path);
        return tt_checkpoint_join(folder, path, "../..", error);
    }
    snprintf(folder, TT_CHECKPOINT_PATH, "%s", path);
    TT_TRY(tt_checkpoint_join(probe, path, "checkpoints", error));
    TT_TRY(tt_checkpoint_find_newest(probe, checkpoint, stderr, error));
    if (checkpoint[0] == '\0') {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected a run's folder or a checkpoint, found no whole "
                            "checkpoint in it",
                            path);
    }
    return TT_OK;
}

tt_status tt_table_run_read(const char *path, tt_table_run *run, tt_error *error)
{
    char folder[TT_CHECKPOINT_PATH];
    tt_training_state state;
    *run = (tt_table_run){
        .validation_loss = NAN, .validation_accuracy = NAN, .size_ratio = NAN, .target_ratio = NAN};
    TT_TRY(find_checkpoint(path, run->checkpoint, folder, error));
    TT_TRY(tt_checkpoint_verify(run->checkpoint, error));
    TT_TRY(tt_checkpoint_read_state(run->checkpoint, &state, error));
    run->step = state.step;
    run->dense = state.dense_parameters;
    tt_status status = read_model(&state, run, error);
    tt_training_state_free(&state);
    return status == TT_OK ? read_metrics(folder, run, error) : status;
}

void tt_table_run_free(tt_table_run *run)
{
    free(run->layers);
    *run = (tt_table_run){.layer_count = 0};
}

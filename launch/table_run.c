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

enum { LARGEST_METRICS = 1 << 30, LARGEST_RANK = 1 << 24 };

static int64_t count_of(const tt_safetensors_tensor *tensor)
{
    return (int64_t)(tensor->end - tensor->begin) / tt_safetensors_type_size(tensor->type);
}

/* --- a train's ranks --- */

static const tt_safetensors_tensor *find(const tt_safetensors *file, const char *layer,
                                         const char *part, int number)
{
    char name[TT_SAFETENSORS_NAME];
    snprintf(name, sizeof name, "%.127s.%s_%d", layer, part, number);
    return tt_safetensors_find(file, name);
}

/* Entries of a link's diagonal that are above the threshold. */
static tt_status count_kept(const tt_safetensors *file, const tt_safetensors_tensor *diagonal,
                            double threshold, int64_t *kept, tt_error *error)
{
    int64_t count = count_of(diagonal);
    if (diagonal->type != TT_SAFETENSORS_F32 || count > LARGEST_RANK) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: %s: expected a rank diagonal in F32",
                            file->path, diagonal->name);
    }
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
static tt_status read_layer(const tt_safetensors *file, double threshold, tt_table_layer *layer,
                            int64_t *size, tt_error *error)
{
    int64_t modes[TT_MAX_ORDER] = {0};
    *size = 0;
    layer->order = 0;
    layer->ranks[0] = 1;
    for (;;) {
        const tt_safetensors_tensor *core = find(file, layer->name, "core", layer->order + 1);
        const tt_safetensors_tensor *diagonal =
            find(file, layer->name, "rank_diagonal", layer->order + 1);
        if (!core || layer->order == TT_MAX_ORDER || core->dimensions < 3) {
            break;
        }
        int k = layer->order++;
        modes[k] = 1;
        for (int i = 1; i + 1 < core->dimensions; i++) {
            modes[k] *= core->shape[i];
        }
        layer->ranks[k + 1] = 1;
        if (diagonal) {
            TT_TRY(count_kept(file, diagonal, threshold, &layer->ranks[k + 1], error));
        }
    }
    for (int k = 0; k <= layer->order; k++) {
        layer->removed = layer->removed || layer->ranks[k] == 0;
    }
    layer->removed = layer->removed || layer->order == 0;
    for (int k = 0; k < layer->order && !layer->removed; k++) {
        *size += layer->ranks[k] * modes[k] * layer->ranks[k + 1];
        *size += k + 1 < layer->order ? layer->ranks[k + 1] : 0;
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
    for (int i = 0; i < file->count; i++) {
        run->other += in_train(file->tensors[i].name) ? 0 : count_of(&file->tensors[i]);
    }
    run->layers = calloc((size_t)state->layer_count + 1, sizeof *run->layers);
    if (!run->layers) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for %d layers", state->layer_count);
    }
    run->layer_count = state->layer_count;
    for (int i = 0; i < state->layer_count; i++) {
        int64_t size;
        snprintf(run->layers[i].name, sizeof run->layers[i].name, "%s", state->layers[i].name);
        TT_TRY(read_layer(file, threshold, &run->layers[i], &size, error));
        run->tensorized += size;
    }
    return TT_OK;
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

/* The last validation up to the checkpoint's step. A line that is no record is left out. */
static void take_validation(const char *text, size_t length, tt_table_run *run)
{
    while (length > 0) {
        const char *end = memchr(text, '\n', length);
        size_t used = end ? (size_t)(end - text) : length;
        json_t *record = json_loadb(text, used, 0, NULL);
        if (number_of(record, "step") <= (double)run->step &&
            json_object_get(record, "validation_loss")) {
            run->validation_loss = number_of(record, "validation_loss");
            run->validation_accuracy = number_of(record, "validation_accuracy");
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
    take_validation(text, length, run);
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
    *run = (tt_table_run){.validation_loss = NAN, .validation_accuracy = NAN};
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

/* state.json and manifest.json. */
#include "launch/checkpoint_files.h"

#include "data/file.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TT_STATE_LONGEST = 64 << 20 /* bytes of a JSON file */, TT_STATE_VERSION = 1 };

/* Of counts, and of the entries of a map: sums and products of a few stay in 64 bits. */
#define TT_STATE_MOST (INT64_C(1) << 53)

const char *const tt_checkpoint_file_names[TT_CHECKPOINT_FILES] = {
    "model.safetensors", "optimizer.safetensors", "state.json"};

tt_status tt_checkpoint_join(char path[TT_CHECKPOINT_PATH], const char *folder, const char *name,
                             tt_error *error)
{
    int length = snprintf(path, TT_CHECKPOINT_PATH, "%s/%s", folder, name);
    if (length < 0 || length >= TT_CHECKPOINT_PATH) {
        return tt_error_set(error, TT_INVALID_INPUT, "%.200s...: the path is too long", folder);
    }
    return TT_OK;
}

void tt_training_state_free(tt_training_state *state)
{
    free(state->recipe);
    free(state->layers);
    state->recipe = NULL;
    state->layers = NULL;
    state->layer_count = 0;
}

/* The whole-number fields of the state, for writer and reader alike. */
static const struct {
    const char *key;
    size_t offset;
} counters[] = {
    {"step", offsetof(tt_training_state, step)},
    {"phase", offsetof(tt_training_state, phase)},
    {"phase_step", offsetof(tt_training_state, phase_step)},
    {"phase_samples", offsetof(tt_training_state, phase_samples)},
    {"epoch", offsetof(tt_training_state, epoch)},
    {"samples", offsetof(tt_training_state, samples)},
    {"tokens", offsetof(tt_training_state, tokens)},
    {"updates", offsetof(tt_training_state, updates)},
    {"skipped_steps", offsetof(tt_training_state, skipped_steps)},
    {"skipped_in_a_row", offsetof(tt_training_state, skipped_in_a_row)},
    {"world_size", offsetof(tt_training_state, world_size)},
    {"best_step", offsetof(tt_training_state, best_step)},
    {"dense_parameters", offsetof(tt_training_state, dense_parameters)},
    /* Older checkpoints lack these, which are 0 then. */
    {"stage", offsetof(tt_training_state, stage)},
    {"stage_size", offsetof(tt_training_state, stage_size)},
};
enum { TT_STATE_LATER_COUNTERS = 2 };
/* 64-bit words, written as hexadecimal text: JSON's numbers would lose their upper half. */
static const struct {
    const char *key;
    size_t offset;
} words[] = {
    {"seed", offsetof(tt_training_state, seed)},
    {"data_fingerprint", offsetof(tt_training_state, data_fingerprint)},
};
/* Losses; NAN is null. */
static const struct {
    const char *key;
    size_t offset;
} losses[] = {
    {"validation_loss", offsetof(tt_training_state, validation_loss)},
    {"best_validation_loss", offsetof(tt_training_state, best_validation_loss)},
};

#define COUNT(ARRAY) (sizeof(ARRAY) / sizeof((ARRAY)[0]))

static json_t *hexadecimal(uint64_t value)
{
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    return json_string(text);
}

static bool read_hexadecimal(const json_t *value, uint64_t *word)
{
    const char *text = json_string_value(value);
    if (text == NULL || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) {
        return false;
    }
    *word = strtoull(text, NULL, 16);
    return true;
}

static json_t *integers(const int64_t *values, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_array_append_new(list, json_integer(values[i]));
    }
    return list;
}

static json_t *layers_json(const tt_training_state *state)
{
    json_t *list = json_array();
    for (int i = 0; i < state->layer_count; i++) {
        const tt_train_shape *shape = &state->layers[i].shape;
        json_array_append_new(list, json_pack("{s:s, s:i, s:o, s:o}", "name", state->layers[i].name,
                                              "input_order", shape->input_order, "modes",
                                              integers(shape->modes, shape->order), "ranks",
                                              integers(shape->ranks, shape->order + 1)));
    }
    return list;
}

static json_t *state_json(const tt_training_state *state)
{
    const char *base = (const char *)state;
    json_t *root = json_object();
    json_object_set_new(root, "version", json_integer(TT_STATE_VERSION));
    for (size_t i = 0; i < COUNT(counters); i++) {
        int64_t value = *(const int64_t *)(const void *)(base + counters[i].offset);
        json_object_set_new(root, counters[i].key, json_integer(value));
    }
    for (size_t i = 0; i < COUNT(words); i++) {
        uint64_t value = *(const uint64_t *)(const void *)(base + words[i].offset);
        json_object_set_new(root, words[i].key, hexadecimal(value));
    }
    for (size_t i = 0; i < COUNT(losses); i++) {
        double value = *(const double *)(const void *)(base + losses[i].offset);
        json_object_set_new(root, losses[i].key, isfinite(value) ? json_real(value) : json_null());
    }
    json_object_set_new(root, "layers", layers_json(state));
    json_object_set_new(root, "recipe", json_string(state->recipe != NULL ? state->recipe : ""));
    return root;
}

/* Writes `root` and gives it up. */
static tt_status write_json(const char *folder, const char *name, json_t *root,
                            tt_checkpoint_file *file, tt_error *error)
{
    char path[TT_CHECKPOINT_PATH];
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (text == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s/%s: no memory to write it", folder, name);
    }
    tt_storage_file storage = {.descriptor = -1};
    tt_status status = tt_checkpoint_join(path, folder, name, error);
    if (status == TT_OK) {
        status = tt_storage_create(path, &storage, error);
    }
    if (status == TT_OK) {
        status = tt_storage_write(&storage, text, strlen(text), error);
    }
    if (status == TT_OK) {
        status = tt_storage_finish(&storage, error);
    }
    free(text);
    tt_storage_abandon(&storage);
    *file = (tt_checkpoint_file){name, storage.size, storage.hash};
    return status;
}

tt_status tt_checkpoint_write_state(const char *folder, const tt_training_state *state,
                                    tt_checkpoint_file *file, tt_error *error)
{
    return write_json(folder, tt_checkpoint_file_names[TT_CHECKPOINT_STATE], state_json(state),
                      file, error);
}

tt_status tt_checkpoint_write_manifest(const char *folder,
                                       const tt_checkpoint_file files[TT_CHECKPOINT_FILES],
                                       tt_error *error)
{
    json_t *list = json_array();
    for (int i = 0; i < TT_CHECKPOINT_FILES; i++) {
        json_array_append_new(list, json_pack("{s:s, s:I, s:o}", "name", files[i].name, "size",
                                              (json_int_t)files[i].size, "xxh64",
                                              hexadecimal(files[i].hash)));
    }
    tt_checkpoint_file itself;
    return write_json(folder, "manifest.json",
                      json_pack("{s:i, s:o}", "version", TT_STATE_VERSION, "files", list), &itself,
                      error);
}

/* The JSON object in folder/name; release with json_decref. */
static tt_status read_json(const char *folder, const char *name, json_t **root,
                           char path[TT_CHECKPOINT_PATH], tt_error *error)
{
    void *text;
    size_t length;
    TT_TRY(tt_checkpoint_join(path, folder, name, error));
    TT_TRY(tt_file_read(path, TT_STATE_LONGEST, &text, &length, error));
    json_error_t problem;
    *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &problem);
    free(text);
    if (*root == NULL) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: line %d: expected JSON: %s", path,
                            problem.line, problem.text);
    }
    json_int_t version = json_integer_value(json_object_get(*root, "version"));
    if (version != TT_STATE_VERSION) {
        json_decref(*root);
        *root = NULL;
        return tt_error_set(error, TT_INVALID_INPUT, "%s: version: expected %d, found %lld", path,
                            TT_STATE_VERSION, (long long)version);
    }
    return TT_OK;
}

static tt_status read_manifest_files(const char *path, const json_t *list,
                                     tt_checkpoint_file files[TT_CHECKPOINT_FILES], tt_error *error)
{
    for (int i = 0; i < TT_CHECKPOINT_FILES; i++) {
        const json_t *entry = json_array_get(list, (size_t)i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        const json_t *size = json_object_get(entry, "size");
        files[i].name = tt_checkpoint_file_names[i];
        if (name == NULL || strcmp(name, files[i].name) != 0 || !json_is_integer(size) ||
            json_integer_value(size) < 0 ||
            !read_hexadecimal(json_object_get(entry, "xxh64"), &files[i].hash)) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: files.%d: expected name %s, size and xxh64", path, i,
                                files[i].name);
        }
        files[i].size = (uint64_t)json_integer_value(size);
    }
    return TT_OK;
}

tt_status tt_checkpoint_read_manifest(const char *folder,
                                      tt_checkpoint_file files[TT_CHECKPOINT_FILES],
                                      tt_error *error)
{
    json_t *root = NULL;
    char path[TT_CHECKPOINT_PATH];
    TT_TRY(read_json(folder, "manifest.json", &root, path, error));
    tt_status status = read_manifest_files(path, json_object_get(root, "files"), files, error);
    json_decref(root);
    return status;
}

static tt_status bad_key(const char *path, const char *key, const char *expected, tt_error *error)
{
    return tt_error_set(error, TT_INVALID_INPUT, "%s: %s: expected %s", path, key, expected);
}

/* Counts are not negative, but for the best step where there is none. */
static bool is_count(size_t offset, int64_t value)
{
    return value >= (offset == offsetof(tt_training_state, best_step) ? -1 : 0);
}

static tt_status read_numbers(const char *path, const json_t *root, tt_training_state *state,
                              tt_error *error)
{
    char *base = (char *)state;
    for (size_t i = 0; i < COUNT(counters); i++) {
        const json_t *value = json_object_get(root, counters[i].key);
        if (!json_is_integer(value) &&
            !(value == NULL && i >= COUNT(counters) - TT_STATE_LATER_COUNTERS)) {
            return bad_key(path, counters[i].key, "an integer", error);
        }
        if (!is_count(counters[i].offset, json_integer_value(value))) {
            return bad_key(path, counters[i].key, "an integer of at least 0", error);
        }
        if (json_integer_value(value) > TT_STATE_MOST) {
            return bad_key(path, counters[i].key, "an integer of at most 9007199254740992", error);
        }
        *(int64_t *)(void *)(base + counters[i].offset) = json_integer_value(value);
    }
    if (state->phase_step == 0 && state->phase_samples != 0) {
        return bad_key(path, "phase_samples", "0, as phase_step", error);
    }
    for (size_t i = 0; i < COUNT(words); i++) {
        uint64_t *word = (uint64_t *)(void *)(base + words[i].offset);
        if (!read_hexadecimal(json_object_get(root, words[i].key), word)) {
            return bad_key(path, words[i].key, "16 hexadecimal digits", error);
        }
    }
    for (size_t i = 0; i < COUNT(losses); i++) {
        const json_t *value = json_object_get(root, losses[i].key);
        if (!json_is_number(value) && !json_is_null(value)) {
            return bad_key(path, losses[i].key, "a number or null", error);
        }
        *(double *)(void *)(base + losses[i].offset) =
            json_is_null(value) ? NAN : json_number_value(value);
    }
    return TT_OK;
}

/* Reads a list of exactly `count` integers of at least 0. */
static bool read_integers(const json_t *list, int64_t *values, size_t count)
{
    if (json_array_size(list) != count) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);
        values[i] = json_integer_value(value);
        if (!json_is_integer(value) || values[i] < 0) {
            return false;
        }
    }
    return true;
}

/* Modes of a map that can be, and ranks that they allow. */
static bool is_shape(const tt_train_shape *shape)
{
    int64_t entries = 1;
    for (int k = 0; k < shape->order; k++) {
        if (shape->modes[k] < 1 || shape->modes[k] > TT_STATE_MOST / entries) {
            return false;
        }
        entries *= shape->modes[k];
    }
    for (int k = 1; k < shape->order; k++) {
        if (shape->ranks[k] > tt_train_rank_limit(shape, k)) {
            return false;
        }
    }
    return shape->ranks[0] == 1 && shape->ranks[shape->order] == 1;
}

static bool read_layer(const json_t *entry, tt_checkpoint_layer *layer)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    const json_t *modes = json_object_get(entry, "modes");
    json_int_t input_order = json_integer_value(json_object_get(entry, "input_order"));
    size_t order = json_array_size(modes);
    if (name == NULL || strlen(name) >= sizeof layer->name || order < 2 || order > TT_MAX_ORDER ||
        input_order < 1 || input_order >= (json_int_t)order) {
        return false;
    }
    snprintf(layer->name, sizeof layer->name, "%s", name);
    layer->shape.order = (int)order;
    layer->shape.input_order = (int)input_order;
    return read_integers(modes, layer->shape.modes, order) &&
           read_integers(json_object_get(entry, "ranks"), layer->shape.ranks, order + 1) &&
           is_shape(&layer->shape);
}

static tt_status read_layers(const char *path, const json_t *list, tt_training_state *state,
                             tt_error *error)
{
    size_t count = json_array_size(list);
    if (!json_is_array(list)) {
        return bad_key(path, "layers", "a list", error);
    }
    state->layers = calloc(count > 0 ? count : 1, sizeof *state->layers);
    if (state->layers == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for %zu layers", path, count);
    }
    state->layer_count = (int)count;
    for (size_t i = 0; i < count; i++) {
        if (!read_layer(json_array_get(list, i), &state->layers[i])) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: layers.%zu: expected name, input_order, modes, and ranks that "
                                "the modes allow",
                                path, i);
        }
    }
    return TT_OK;
}

static tt_status read_state(const char *path, const json_t *root, tt_training_state *state,
                            tt_error *error)
{
    TT_TRY(read_numbers(path, root, state, error));
    const char *recipe = json_string_value(json_object_get(root, "recipe"));
    if (recipe == NULL) {
        return bad_key(path, "recipe", "text", error);
    }
    state->recipe = strdup(recipe);
    if (state->recipe == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for the recipe", path);
    }
    return read_layers(path, json_object_get(root, "layers"), state, error);
}

tt_status tt_checkpoint_read_state(const char *path, tt_training_state *state, tt_error *error)
{
    memset(state, 0, sizeof *state);
    json_t *root = NULL;
    char file[TT_CHECKPOINT_PATH];
    TT_TRY(read_json(path, tt_checkpoint_file_names[TT_CHECKPOINT_STATE], &root, file, error));
    tt_status status = read_state(file, root, state, error);
    json_decref(root);
    if (status != TT_OK) {
        tt_training_state_free(state);
    }
    return status;
}

/* model.safetensors and optimizer.safetensors: a walk over the parameters' names. */
#include "launch/checkpoint_files.h"

#include "launch/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { TT_TRANSFER = 1 << 18 /* floats that go through host memory at a time */ };

/* One of the flat buffers, and what its tensors' names end with. */
typedef struct {
    float *buffer;
    const char *suffix;
} tt_tensor_source;

typedef struct {
    tt_tensor_source sources[2];
    int count;
} tt_tensor_sources;

static tt_tensor_sources model_sources(const tt_parameters *parameters)
{
    return (tt_tensor_sources){{{parameters->values, ""}}, 1};
}

static tt_tensor_sources optimizer_sources(const tt_parameters *parameters)
{
    return (tt_tensor_sources){{{parameters->first_moment, ".first_moment"},
                                {parameters->second_moment, ".second_moment"}},
                               2};
}

static void describe(const tt_parameter *item, const char *suffix, tt_safetensors_tensor *tensor)
{
    *tensor = (tt_safetensors_tensor){.type = TT_SAFETENSORS_F32, .dimensions = item->dimensions};
    snprintf(tensor->name, sizeof tensor->name, "%s%s", item->name, suffix);
    memcpy(tensor->shape, item->shape, (size_t)item->dimensions * sizeof item->shape[0]);
}

static tt_status write_values(tt_safetensors_writer *writer, tt_device *device, const float *values,
                              int64_t count, float *host, tt_error *error)
{
    for (int64_t at = 0; at < count; at += TT_TRANSFER) {
        int64_t part = count - at < TT_TRANSFER ? count - at : TT_TRANSFER;
        device->copy_out(device, host, values + at, (size_t)part * sizeof *host);
        TT_TRY(tt_safetensors_write(writer, host, (size_t)part * sizeof *host, error));
    }
    return TT_OK;
}

static tt_status write_all(const char *path, const tt_parameters *parameters,
                           const tt_tensor_sources *sources, tt_safetensors_tensor *tensors,
                           float *host, tt_safetensors_writer *writer, tt_error *error)
{
    int count = parameters->count * sources->count;
    for (int i = 0; i < count; i++) {
        describe(&parameters->items[i / sources->count],
                 sources->sources[i % sources->count].suffix, &tensors[i]);
    }
    TT_TRY(tt_safetensors_create(path, tensors, count, writer, error));
    for (int i = 0; i < count; i++) {
        const tt_parameter *item = &parameters->items[i / sources->count];
        const float *buffer = sources->sources[i % sources->count].buffer;
        tt_status status = write_values(writer, parameters->device, buffer + item->offset,
                                        item->count, host, error);
        if (status != TT_OK) {
            tt_safetensors_abandon(writer);
            return status;
        }
    }
    return tt_safetensors_finish(writer, error);
}

static tt_status write_file(const char *folder, const char *name, const tt_parameters *parameters,
                            const tt_tensor_sources *sources, tt_checkpoint_file *file,
                            tt_error *error)
{
    char path[TT_CHECKPOINT_PATH];
    TT_TRY(tt_checkpoint_join(path, folder, name, error));
    size_t count = (size_t)parameters->count * (size_t)sources->count;
    tt_safetensors_tensor *tensors = malloc((count + 1) * sizeof *tensors);
    float *host = malloc(TT_TRANSFER * sizeof *host);
    tt_safetensors_writer writer = {.data_size = 0};
    tt_status status =
        tensors != NULL && host != NULL
            ? write_all(path, parameters, sources, tensors, host, &writer, error)
            : tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory to write it", path);
    free(tensors);
    free(host);
    *file = (tt_checkpoint_file){name, writer.file.size, writer.file.hash};
    return status;
}

tt_status tt_checkpoint_write_model(const char *folder, const tt_parameters *parameters,
                                    tt_checkpoint_file *file, tt_error *error)
{
    const tt_tensor_sources sources = model_sources(parameters);
    return write_file(folder, tt_checkpoint_file_names[TT_CHECKPOINT_MODEL], parameters, &sources,
                      file, error);
}

tt_status tt_checkpoint_write_optimizer(const char *folder, const tt_parameters *parameters,
                                        tt_checkpoint_file *file, tt_error *error)
{
    const tt_tensor_sources sources = optimizer_sources(parameters);
    return write_file(folder, tt_checkpoint_file_names[TT_CHECKPOINT_OPTIMIZER], parameters,
                      &sources, file, error);
}

/* What does not agree, gathered into one line: the first few by name, the rest as a number. */
typedef struct {
    char text[700];
    size_t used;
    int count;
} tt_differences;

enum { TT_DIFFERENCES_NAMED = 5 };

static void add_difference(tt_differences *differences, const char *what, const char *name,
                           const char *detail)
{
    if (differences->count++ >= TT_DIFFERENCES_NAMED) {
        return;
    }
    size_t room = sizeof differences->text - differences->used;
    int length = snprintf(differences->text + differences->used, room, "%s%s %.60s%.60s",
                          differences->used > 0 ? "; " : "", what, name, detail);
    differences->used += length > 0 && (size_t)length < room ? (size_t)length : 0;
}

static void shape_text(const int64_t *shape, int dimensions, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < dimensions && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i > 0 ? ", " : "",
                                 (long long)shape[i]);
    }
    if (used < size) {
        snprintf(text + used, size - used, "]");
    }
}

/* What an encoder has whatever it is trained for; a pooler and heads come with a task. */
static bool is_of_encoder(const char *name)
{
    static const char encoder[] = "bert.", pooler[] = "bert.pooler.";
    return strncmp(name, encoder, sizeof encoder - 1) == 0 &&
           strncmp(name, pooler, sizeof pooler - 1) != 0;
}

static bool is_same(const tt_safetensors_tensor *found, const tt_safetensors_tensor *expected)
{
    return found != NULL && found->type == expected->type &&
           found->dimensions == expected->dimensions &&
           memcmp(found->shape, expected->shape,
                  (size_t)expected->dimensions * sizeof expected->shape[0]) == 0;
}

static void compare_tensor(const tt_safetensors *file, const tt_parameter *item, const char *suffix,
                           tt_differences *differences)
{
    tt_safetensors_tensor expected;
    describe(item, suffix, &expected);
    const tt_safetensors_tensor *found = tt_safetensors_find(file, expected.name);
    if (found == NULL) {
        add_difference(differences, "missing", expected.name, "");
        return;
    }
    if (!is_same(found, &expected)) {
        char wanted[60], given[60], detail[160];
        shape_text(expected.shape, expected.dimensions, wanted, sizeof wanted);
        shape_text(found->shape, found->dimensions, given, sizeof given);
        snprintf(detail, sizeof detail, ": expected F32 %s, found %s %s", wanted,
                 tt_safetensors_type_name(found->type), given);
        add_difference(differences, "shape of", expected.name, detail);
    }
}

/* True when `name` is a parameter's name with one of the suffixes. */
static bool is_known(const tt_parameters *parameters, const tt_tensor_sources *sources,
                     const char *name)
{
    for (int i = 0; i < sources->count; i++) {
        size_t suffix = strlen(sources->sources[i].suffix), length = strlen(name);
        char stem[TT_SAFETENSORS_NAME];
        if (length > suffix && strcmp(name + length - suffix, sources->sources[i].suffix) == 0) {
            snprintf(stem, sizeof stem, "%.*s", (int)(length - suffix), name);
            if (tt_parameters_find(parameters, stem) >= 0) {
                return true;
            }
        }
    }
    return false;
}

/* `encoder_only`: heads may differ. */
static tt_status compare(const tt_safetensors *file, const tt_parameters *parameters,
                         const tt_tensor_sources *sources, bool encoder_only, tt_error *error)
{
    tt_differences differences = {.count = 0};
    for (int i = 0; i < parameters->count; i++) {
        const tt_parameter *item = &parameters->items[i];
        for (int j = 0; j < sources->count && (!encoder_only || is_of_encoder(item->name)); j++) {
            compare_tensor(file, item, sources->sources[j].suffix, &differences);
        }
    }
    for (int i = 0; i < file->count; i++) {
        const char *name = file->tensors[i].name;
        if ((!encoder_only || is_of_encoder(name)) && !is_known(parameters, sources, name)) {
            add_difference(&differences, "unexpected", name, "");
        }
    }
    if (differences.count == 0) {
        return TT_OK;
    }
    char more[40] = "";
    if (differences.count > TT_DIFFERENCES_NAMED) {
        snprintf(more, sizeof more, "; and %d more", differences.count - TT_DIFFERENCES_NAMED);
    }
    return tt_error_set(error, TT_INVALID_INPUT, "%s: not this recipe's model: %s%s", file->path,
                        differences.text, more);
}

static tt_status read_values(const tt_safetensors *file, const tt_safetensors_tensor *tensor,
                             tt_device *device, float *values, float *host, tt_error *error)
{
    uint64_t bytes = tensor->end - tensor->begin;
    for (uint64_t at = 0; at < bytes; at += TT_TRANSFER * sizeof *host) {
        uint64_t left = bytes - at, most = TT_TRANSFER * sizeof *host;
        size_t part = left < most ? (size_t)left : (size_t)most;
        TT_TRY(tt_safetensors_read(file, tensor, at, host, part, error));
        device->copy_in(device, (char *)values + at, host, part);
    }
    return TT_OK;
}

/* Parameters that the file does not have, or not in this shape, keep their values; returns how many
 * in `kept`. */
static tt_status read_all(const tt_safetensors *file, const tt_parameters *parameters,
                          const tt_tensor_sources *sources, int *kept, tt_error *error)
{
    float *host = malloc(TT_TRANSFER * sizeof *host);
    if (host == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory to read it", file->path);
    }
    tt_status status = TT_OK;
    for (int i = 0; i < parameters->count * sources->count && status == TT_OK; i++) {
        const tt_parameter *item = &parameters->items[i / sources->count];
        const tt_tensor_source *source = &sources->sources[i % sources->count];
        tt_safetensors_tensor named;
        describe(item, source->suffix, &named);
        const tt_safetensors_tensor *found = tt_safetensors_find(file, named.name);
        if (!is_same(found, &named)) {
            ++*kept;
            continue;
        }
        status = read_values(file, found, parameters->device, source->buffer + item->offset, host,
                             error);
    }
    free(host);
    return status;
}

static tt_status open_and_compare(const char *folder, int which, const tt_parameters *parameters,
                                  const tt_tensor_sources *sources, bool encoder_only,
                                  tt_safetensors **file, tt_error *error)
{
    char path[TT_CHECKPOINT_PATH];
    TT_TRY(tt_checkpoint_join(path, folder, tt_checkpoint_file_names[which], error));
    TT_TRY(tt_safetensors_open(path, file, error));
    return compare(*file, parameters, sources, encoder_only, error);
}

tt_status tt_checkpoint_load(const char *path, const tt_parameters *parameters, bool with_moments,
                             tt_error *error)
{
    const tt_tensor_sources model = model_sources(parameters);
    const tt_tensor_sources optimizer = optimizer_sources(parameters);
    tt_safetensors *values = NULL, *moments = NULL;
    int kept = 0;
    tt_status status =
        open_and_compare(path, TT_CHECKPOINT_MODEL, parameters, &model, false, &values, error);
    if (status == TT_OK && with_moments) {
        status = open_and_compare(path, TT_CHECKPOINT_OPTIMIZER, parameters, &optimizer, false,
                                  &moments, error);
    }
    if (status == TT_OK) {
        status = read_all(values, parameters, &model, &kept, error);
    }
    if (status == TT_OK && with_moments) {
        status = read_all(moments, parameters, &optimizer, &kept, error);
    }
    tt_safetensors_close(&values);
    tt_safetensors_close(&moments);
    return status;
}

tt_status tt_checkpoint_load_encoder(const char *path, const tt_parameters *parameters, int *kept,
                                     tt_error *error)
{
    const tt_tensor_sources model = model_sources(parameters);
    tt_safetensors *values = NULL;
    *kept = 0;
    tt_status status =
        open_and_compare(path, TT_CHECKPOINT_MODEL, parameters, &model, true, &values, error);
    if (status == TT_OK) {
        status = read_all(values, parameters, &model, kept, error);
    }
    tt_safetensors_close(&values);
    return status;
}

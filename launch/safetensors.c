#include "launch/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");

enum { TT_SAFETENSORS_HEADER = 100000000 /* bytes; the format's own limit */ };

static const struct {
    const char *name;
    int size;
} types[TT_SAFETENSORS_TYPES] = {
    [TT_SAFETENSORS_F64] = {"F64", 8}, [TT_SAFETENSORS_I64] = {"I64", 8},
    [TT_SAFETENSORS_F32] = {"F32", 4}, [TT_SAFETENSORS_I32] = {"I32", 4},
    [TT_SAFETENSORS_F16] = {"F16", 2}, [TT_SAFETENSORS_BF16] = {"BF16", 2},
    [TT_SAFETENSORS_I16] = {"I16", 2}, [TT_SAFETENSORS_I8] = {"I8", 1},
    [TT_SAFETENSORS_U8] = {"U8", 1},   [TT_SAFETENSORS_BOOL] = {"BOOL", 1},
};

const char *tt_safetensors_type_name(tt_safetensors_type type)
{
    return types[type].name;
}

int tt_safetensors_type_size(tt_safetensors_type type)
{
    return types[type].size;
}

/* Bytes of a tensor; false when its shape is negative or the product does not fit. */
static bool tensor_bytes(const tt_safetensors_tensor *tensor, uint64_t *bytes)
{
    *bytes = (uint64_t)types[tensor->type].size;
    for (int i = 0; i < tensor->dimensions; i++) {
        if (tensor->shape[i] < 0 ||
            __builtin_mul_overflow(*bytes, (uint64_t)tensor->shape[i], bytes)) {
            return false;
        }
    }
    return true;
}

/* Writing */

static tt_status lay_out(const char *path, tt_safetensors_tensor *tensors, int count,
                         uint64_t *data_size, tt_error *error)
{
    *data_size = 0;
    for (int i = 0; i < count; i++) {
        uint64_t bytes;
        if (!tensor_bytes(&tensors[i], &bytes)) {
            return tt_error_set(error, TT_INVALID_INPUT, "%s: %s: its shape is not usable", path,
                                tensors[i].name);
        }
        if (i > 0 && types[tensors[i].type].size > types[tensors[i - 1].type].size) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: %s: expected wider types first, found %s after %s", path,
                                tensors[i].name, types[tensors[i].type].name,
                                types[tensors[i - 1].type].name);
        }
        tensors[i].begin = *data_size;
        *data_size += bytes;
        tensors[i].end = *data_size;
    }
    return TT_OK;
}

static json_t *tensor_json(const tt_safetensors_tensor *tensor)
{
    json_t *shape = json_array();
    for (int i = 0; i < tensor->dimensions; i++) {
        json_array_append_new(shape, json_integer(tensor->shape[i]));
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", types[tensor->type].name, "shape", shape,
                     "data_offsets", (json_int_t)tensor->begin, (json_int_t)tensor->end);
}

/* The header's text, padded so that the data begin at a multiple of 8. */
static tt_status header_text(const char *path, const tt_safetensors_tensor *tensors, int count,
                             char **text, size_t *length, tt_error *error)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    for (int i = 0; i < count; i++) {
        if (json_object_get(header, tensors[i].name) != NULL) {
            json_decref(header);
            return tt_error_set(error, TT_INVALID_INPUT, "%s: %s: the name is used twice", path,
                                tensors[i].name);
        }
        json_object_set_new(header, tensors[i].name, tensor_json(&tensors[i]));
    }
    bool whole = json_object_size(header) == (size_t)count + 1;
    char *compact = whole ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (compact == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for the header", path);
    }
    size_t used = strlen(compact);
    *length = (used + 7) / 8 * 8;
    *text = realloc(compact, *length + 1);
    if (*text == NULL) {
        free(compact);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for the header", path);
    }
    memset(*text + used, ' ', *length - used);
    return TT_OK;
}

tt_status tt_safetensors_create(const char *path, tt_safetensors_tensor *tensors, int count,
                                tt_safetensors_writer *writer, tt_error *error)
{
    *writer = (tt_safetensors_writer){.file = {.descriptor = -1}};
    char *text = NULL;
    size_t length = 0;
    TT_TRY(lay_out(path, tensors, count, &writer->data_size, error));
    TT_TRY(header_text(path, tensors, count, &text, &length, error));
    tt_status status = tt_storage_create(path, &writer->file, error);
    const uint64_t length_field = length;
    if (status == TT_OK) {
        status = tt_storage_write(&writer->file, &length_field, sizeof length_field, error);
    }
    if (status == TT_OK) {
        status = tt_storage_write(&writer->file, text, length, error);
    }
    free(text);
    if (status != TT_OK) {
        tt_storage_abandon(&writer->file);
    }
    writer->header_bytes = sizeof length_field + length;
    return status;
}

tt_status tt_safetensors_write(tt_safetensors_writer *writer, const void *data, size_t bytes,
                               tt_error *error)
{
    return tt_storage_write(&writer->file, data, bytes, error);
}

tt_status tt_safetensors_finish(tt_safetensors_writer *writer, tt_error *error)
{
    uint64_t written = writer->file.size - writer->header_bytes;
    if (written != writer->data_size) {
        tt_storage_abandon(&writer->file);
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected %llu bytes of data, %llu were given", writer->file.path,
                            (unsigned long long)writer->data_size, (unsigned long long)written);
    }
    return tt_storage_finish(&writer->file, error);
}

void tt_safetensors_abandon(tt_safetensors_writer *writer)
{
    tt_storage_abandon(&writer->file);
}

/* Reading */

/* A name from a file, fit for an error's line. */
static const char *shown(const char *name, char text[64])
{
    snprintf(text, 64, "%.60s", name);
    for (char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
    return text;
}

static tt_status bad_tensor(const char *file, const char *tensor, const char *what, tt_error *error)
{
    char text[64];
    return tt_error_set(error, TT_INVALID_INPUT, "%s: tensor %s: %s", file, shown(tensor, text),
                        what);
}

static bool read_type(const json_t *value, tt_safetensors_type *type)
{
    const char *name = json_string_value(value);
    for (int i = 0; name != NULL && i < TT_SAFETENSORS_TYPES; i++) {
        if (strcmp(types[i].name, name) == 0) {
            *type = (tt_safetensors_type)i;
            return true;
        }
    }
    return false;
}

static tt_status read_shape(const char *file, const json_t *value, tt_safetensors_tensor *tensor,
                            tt_error *error)
{
    if (!json_is_array(value)) {
        return bad_tensor(file, tensor->name, "expected a list as shape", error);
    }
    size_t count = json_array_size(value);
    if (count > TT_SAFETENSORS_DIMENSIONS) {
        return bad_tensor(file, tensor->name, "expected at most 8 dimensions", error);
    }
    tensor->dimensions = (int)count;
    for (size_t i = 0; i < count; i++) {
        const json_t *size = json_array_get(value, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return bad_tensor(file, tensor->name, "expected sizes of at least 0 in its shape",
                              error);
        }
        tensor->shape[i] = json_integer_value(size);
    }
    return TT_OK;
}

static tt_status read_offsets(const char *file, const json_t *value, uint64_t data_size,
                              tt_safetensors_tensor *tensor, tt_error *error)
{
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin)) {
        return bad_tensor(file, tensor->name, "expected data_offsets [begin, end]", error);
    }
    tensor->begin = (uint64_t)json_integer_value(begin);
    tensor->end = (uint64_t)json_integer_value(end);
    char text[64];
    if (tensor->end > data_size) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: tensor %s: expected data up to byte %llu, the file has %llu", file,
                            shown(tensor->name, text), (unsigned long long)tensor->end,
                            (unsigned long long)data_size);
    }
    uint64_t bytes;
    if (!tensor_bytes(tensor, &bytes) || bytes != tensor->end - tensor->begin) {
        return tt_error_set(
            error, TT_INVALID_INPUT,
            "%s: tensor %s: its shape and type %s do not fill the %llu bytes of its data_offsets",
            file, shown(tensor->name, text), types[tensor->type].name,
            (unsigned long long)(tensor->end - tensor->begin));
    }
    return TT_OK;
}

static tt_status read_tensor(const char *file, const char *name, const json_t *entry,
                             uint64_t data_size, tt_safetensors_tensor *tensor, tt_error *error)
{
    memset(tensor, 0, sizeof *tensor);
    if (strlen(name) >= sizeof tensor->name || name[0] == '\0') {
        return bad_tensor(file, name, "expected a name of 1 to 255 bytes", error);
    }
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    if (!json_is_object(entry)) {
        return bad_tensor(file, name, "expected an object with dtype, shape and data_offsets",
                          error);
    }
    if (!read_type(json_object_get(entry, "dtype"), &tensor->type)) {
        return bad_tensor(file, name, "expected a dtype such as F32", error);
    }
    TT_TRY(read_shape(file, json_object_get(entry, "shape"), tensor, error));
    return read_offsets(file, json_object_get(entry, "data_offsets"), data_size, tensor, error);
}

static tt_status check_metadata(const char *file, const json_t *metadata, tt_error *error)
{
    bool valid = json_is_object(metadata);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metadata, key, value)
    {
        valid = valid && json_is_string(value);
    }
    return valid ? TT_OK
                 : tt_error_set(error, TT_INVALID_INPUT,
                                "%s: expected strings only in __metadata__", file);
}

static int by_place(const void *left, const void *right)
{
    const tt_safetensors_tensor *a = left, *b = right;
    if (a->begin != b->begin) {
        return a->begin < b->begin ? -1 : 1;
    }
    return (a->end > b->end) - (a->end < b->end);
}

/* Sorted by place, the tensors must cover the data from end to end. */
static tt_status check_cover(const char *file, const tt_safetensors_tensor *tensors, int count,
                             uint64_t data_size, tt_error *error)
{
    uint64_t at = 0;
    char text[64];
    for (int i = 0; i < count; i++) {
        if (tensors[i].begin != at) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: tensor %s: expected to begin at byte %llu of the data, begins "
                                "at %llu",
                                file, shown(tensors[i].name, text), (unsigned long long)at,
                                (unsigned long long)tensors[i].begin);
        }
        at = tensors[i].end;
    }
    if (at != data_size) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: expected %llu bytes of data, found %llu",
                            file, (unsigned long long)at, (unsigned long long)data_size);
    }
    return TT_OK;
}

static tt_status read_entries(const char *name, json_t *header, uint64_t data_size,
                              tt_safetensors_tensor *tensors, int *count, tt_error *error)
{
    const char *key;
    json_t *entry;
    *count = 0;
    json_object_foreach(header, key, entry)
    {
        if (strcmp(key, "__metadata__") == 0) {
            TT_TRY(check_metadata(name, entry, error));
        } else {
            TT_TRY(read_tensor(name, key, entry, data_size, &tensors[*count], error));
            *count += 1;
        }
    }
    qsort(tensors, (size_t)*count, sizeof *tensors, by_place);
    return check_cover(name, tensors, *count, data_size, error);
}

tt_status tt_safetensors_parse(const char *name, const char *header, size_t length,
                               uint64_t data_size, tt_safetensors_tensor **tensors, int *count,
                               tt_error *error)
{
    *tensors = NULL;
    *count = 0;
    if (length < 2 || header[0] != '{') {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected a safetensors header, which begins with {", name);
    }
    json_error_t problem;
    json_t *root = json_loadb(header, length, JSON_REJECT_DUPLICATES, &problem);
    if (root == NULL) {
        char text[64];
        return tt_error_set(error, TT_INVALID_INPUT, "%s: header, byte %d: %s", name,
                            problem.position, shown(problem.text, text));
    }
    size_t entries = json_object_size(root);
    *tensors = calloc(entries > 0 ? entries : 1, sizeof **tensors);
    tt_status status =
        *tensors != NULL
            ? read_entries(name, root, data_size, *tensors, count, error)
            : tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for %zu tensors", name, entries);
    json_decref(root);
    if (status != TT_OK) {
        free(*tensors);
        *tensors = NULL;
        *count = 0;
    }
    return status;
}

/* Reads exactly `bytes` at `offset` of the file. */
static tt_status read_at(const tt_safetensors *file, uint64_t offset, void *buffer, size_t bytes,
                         tt_error *error)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t got =
            pread(file->descriptor, (char *)buffer + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return tt_error_set(error, TT_IO_FAILED, "%s: cannot be read: %s", file->path,
                                strerror(errno));
        }
        if (got == 0) {
            return tt_error_set(error, TT_IO_FAILED,
                                "%s: expected data at byte %llu, the file ends", file->path,
                                (unsigned long long)offset + done);
        }
        done += (size_t)got;
    }
    return TT_OK;
}

static tt_status read_header(tt_safetensors *file, tt_error *error)
{
    struct stat status;
    if (fstat(file->descriptor, &status) != 0) {
        return tt_error_set(error, TT_IO_FAILED, "%s: cannot be examined: %s", file->path,
                            strerror(errno));
    }
    uint64_t size = S_ISREG(status.st_mode) ? (uint64_t)status.st_size : 0, length;
    if (size < sizeof length) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected a safetensors file, found %llu bytes", file->path,
                            (unsigned long long)size);
    }
    TT_TRY(read_at(file, 0, &length, sizeof length, error));
    if (length > TT_SAFETENSORS_HEADER || length > size - sizeof length) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: its header of %llu bytes does not fit in a file of %llu bytes",
                            file->path, (unsigned long long)length, (unsigned long long)size);
    }
    char *text = malloc(length + 1);
    if (text == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for the header", file->path);
    }
    tt_status result = read_at(file, sizeof length, text, length, error);
    file->data_start = sizeof length + length;
    if (result == TT_OK) {
        result = tt_safetensors_parse(file->path, text, length, size - file->data_start,
                                      &file->tensors, &file->count, error);
    }
    free(text);
    return result;
}

tt_status tt_safetensors_open(const char *path, tt_safetensors **file, tt_error *error)
{
    *file = calloc(1, sizeof **file);
    char *copy = strdup(path);
    if (*file == NULL || copy == NULL) {
        free(*file);
        free(copy);
        *file = NULL;
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", path);
    }
    (*file)->path = copy;
    (*file)->descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    tt_status status =
        (*file)->descriptor >= 0
            ? read_header(*file, error)
            : tt_error_set(error, TT_IO_FAILED, "%s: cannot be opened: %s", path, strerror(errno));
    if (status != TT_OK) {
        tt_safetensors_close(file);
    }
    return status;
}

const tt_safetensors_tensor *tt_safetensors_find(const tt_safetensors *file, const char *name)
{
    for (int i = 0; i < file->count; i++) {
        if (strcmp(file->tensors[i].name, name) == 0) {
            return &file->tensors[i];
        }
    }
    return NULL;
}

tt_status tt_safetensors_read(const tt_safetensors *file, const tt_safetensors_tensor *tensor,
                              uint64_t offset, void *buffer, size_t bytes, tt_error *error)
{
    if (offset > tensor->end - tensor->begin || bytes > tensor->end - tensor->begin - offset) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: %s: bytes %llu to %llu lie outside of the tensor", file->path,
                            tensor->name, (unsigned long long)offset,
                            (unsigned long long)offset + bytes);
    }
    return read_at(file, file->data_start + tensor->begin + offset, buffer, bytes, error);
}

void tt_safetensors_close(tt_safetensors **file)
{
    if (*file == NULL) {
        return;
    }
    if ((*file)->descriptor >= 0) {
        close((*file)->descriptor);
    }
    free((*file)->path);
    free((*file)->tensors);
    free(*file);
    *file = NULL;
}

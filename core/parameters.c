#include "core/parameters.h"

#include "core/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tt_parameters_init(tt_parameters *parameters, tt_device *device)
{
    *parameters = (tt_parameters){.device = device};
}

tt_status tt_parameters_add(tt_parameters *parameters, const char *name, tt_group group,
                            bool decays, int dimensions, const int64_t *shape, tt_parameter_id *id,
                            tt_error *error)
{
    tt_parameter item = {.dimensions = dimensions, .count = 1, .group = group, .decays = decays};
    if (strlen(name) >= sizeof item.name) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "parameter name %s: expected fewer than %zu characters, found %zu",
                            name, sizeof item.name, strlen(name));
    }
    if (tt_parameters_find(parameters, name) >= 0) {
        return tt_error_set(error, TT_INVALID_INPUT, "parameter name %s is used twice", name);
    }
    memcpy(item.name, name, strlen(name) + 1);
    for (int i = 0; i < dimensions; i++) {
        if (shape[i] < 1 || item.count > (INT64_MAX >> 8) / shape[i]) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "parameter %s: dimension %d is %lld, which is not a usable size",
                                name, i, (long long)shape[i]);
        }
        item.shape[i] = shape[i];
        item.count *= shape[i];
    }
    if (parameters->count == parameters->capacity) {
        int capacity = parameters->capacity ? 2 * parameters->capacity : 64;
        tt_parameter *items = realloc(parameters->items, (size_t)capacity * sizeof *items);
        if (!items) {
            return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the list of parameters");
        }
        parameters->items = items;
        parameters->capacity = capacity;
    }
    *id = parameters->count;
    parameters->items[parameters->count++] = item;
    return TT_OK;
}

static void lay_out(tt_parameters *parameters)
{
    int64_t offset = 0;
    for (int group = 0; group < TT_GROUP_COUNT; group++) {
        parameters->range_start[group] = offset;
        for (int i = 0; i < parameters->count; i++) {
            tt_parameter *item = &parameters->items[i];
            if ((int)item->group == group) {
                item->offset = offset;
                offset += (item->count + TT_PARAMETER_ALIGNMENT - 1) / TT_PARAMETER_ALIGNMENT *
                          TT_PARAMETER_ALIGNMENT;
            }
        }
    }
    parameters->range_start[TT_GROUP_COUNT] = offset;
    parameters->total = offset;
}

/* Frees what there is and says what all of it would have taken. */
static tt_status no_memory(tt_parameters *parameters, size_t bytes, size_t rounded,
                           bool with_moments, tt_error *error)
{
    const double mebibyte = 1048576.0;
    char what[192];
    int length = snprintf(what, sizeof what, "parameters (%.1f MiB), gradients (%.1f MiB)",
                          (double)(bytes + rounded) / mebibyte, (double)bytes / mebibyte);
    if (with_moments) {
        snprintf(what + length, sizeof what - (size_t)length, ", optimizer moments (%.1f MiB)",
                 2.0 * (double)bytes / mebibyte);
    }
    tt_parameters_free(parameters);
    return tt_device_no_memory(parameters->device, what, (with_moments ? 4 : 2) * bytes + rounded,
                               error);
}

tt_status tt_parameters_allocate(tt_parameters *parameters, bool with_moments, tt_error *error)
{
    lay_out(parameters);
    tt_device *device = parameters->device;
    size_t bytes = (size_t)parameters->total * sizeof(float), rounded = 0;
    parameters->values = device->allocate(device, bytes);
    parameters->gradients = device->allocate(device, bytes + TT_STATISTICS * sizeof(float));
    bool complete = parameters->values && parameters->gradients;
    if (device->compute != TT_F32) {
        int64_t dense = parameters->total - parameters->range_start[TT_GROUP_DENSE];
        rounded = tt_type_bytes(device->compute, dense);
        parameters->rounded = device->allocate(device, rounded);
        complete = complete && parameters->rounded;
    }
    if (with_moments) {
        parameters->first_moment = device->allocate(device, bytes);
        parameters->second_moment = device->allocate(device, bytes);
        complete = complete && parameters->first_moment && parameters->second_moment;
    }
    return complete ? TT_OK : no_memory(parameters, bytes, rounded, with_moments, error);
}

void tt_parameters_free(tt_parameters *parameters)
{
    tt_device *device = parameters->device;
    if (device) {
        device->release(device, parameters->values);
        device->release(device, parameters->rounded);
        device->release(device, parameters->gradients);
        device->release(device, parameters->first_moment);
        device->release(device, parameters->second_moment);
    }
    free(parameters->items);
    *parameters = (tt_parameters){.device = device};
}

float *tt_parameters_value(const tt_parameters *parameters, tt_parameter_id id)
{
    return parameters->values + parameters->items[id].offset;
}

float *tt_parameters_gradient(const tt_parameters *parameters, tt_parameter_id id)
{
    return parameters->gradients + parameters->items[id].offset;
}

tt_matrix tt_parameters_weight(const tt_parameters *parameters, tt_parameter_id id)
{
    const tt_parameter *item = &parameters->items[id];
    tt_matrix weight = {.data = tt_parameters_value(parameters, id),
                        .rows = item->shape[0],
                        .columns = item->shape[1],
                        .stride = item->shape[1]};
    if (parameters->device->compute != TT_F32) {
        weight.type = parameters->device->compute;
        int64_t place = item->offset - parameters->range_start[TT_GROUP_DENSE];
        weight.data = (char *)parameters->rounded + tt_type_bytes(weight.type, place);
    }
    return weight;
}

void tt_parameters_round(const tt_parameters *parameters)
{
    tt_device *device = parameters->device;
    int64_t begin = parameters->range_start[TT_GROUP_DENSE], count = parameters->total - begin;
    if (device->compute == TT_F32 || count == 0) {
        return;
    }
    tt_copy copy = {
        .source = tt_matrix_f32(parameters->values + begin, 1, count),
        .target = tt_matrix_dense(parameters->rounded, 1, count, device->compute),
    };
    device->ops->copy_group(device, &copy, 1);
}

enum { FILL_CHUNK = 4096 };

void tt_parameters_fill(tt_parameters *parameters, tt_parameter_id id, float value)
{
    float chunk[FILL_CHUNK];
    for (int i = 0; i < FILL_CHUNK; i++) {
        chunk[i] = value;
    }
    int64_t count = parameters->items[id].count;
    for (int64_t i = 0; i < count; i += FILL_CHUNK) {
        int64_t length = count - i < FILL_CHUNK ? count - i : FILL_CHUNK;
        parameters->device->copy_in(parameters->device, tt_parameters_value(parameters, id) + i,
                                    chunk, (size_t)length * sizeof(float));
    }
}

/* FNV-1a: a name as the number of a random stream. */
static uint64_t stream_of_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++) {
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    }
    return hash;
}

void tt_parameters_fill_normal(tt_parameters *parameters, tt_parameter_id id, float deviation,
                               uint64_t seed)
{
    const tt_parameter *item = &parameters->items[id];
    tt_random random;
    tt_random_start(&random, seed, stream_of_name(item->name));
    float chunk[FILL_CHUNK];
    for (int64_t i = 0; i < item->count; i += FILL_CHUNK) {
        int64_t length = item->count - i < FILL_CHUNK ? item->count - i : FILL_CHUNK;
        for (int64_t j = 0; j < length; j++) {
            chunk[j] = deviation * tt_random_normal(&random);
        }
        parameters->device->copy_in(parameters->device, tt_parameters_value(parameters, id) + i,
                                    chunk, (size_t)length * sizeof(float));
    }
}

float *tt_parameters_statistics(const tt_parameters *parameters)
{
    return parameters->gradients + parameters->total;
}

tt_parameter_id tt_parameters_find(const tt_parameters *parameters, const char *name)
{
    for (int i = 0; i < parameters->count; i++) {
        if (strcmp(parameters->items[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

int64_t tt_parameters_size(const tt_parameters *parameters)
{
    int64_t size = 0;
    for (int i = 0; i < parameters->count; i++) {
        size += parameters->items[i].count;
    }
    return size;
}

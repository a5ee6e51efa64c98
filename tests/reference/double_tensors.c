#include "tests/reference/double_tensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *must(void *memory)
{
    if (memory == NULL) {
        fprintf(stderr, "double precision model: out of memory\n");
        abort();
    }
    return memory;
}

double *tt_double_array(int64_t count)
{
    return must(calloc((size_t)count + 1, sizeof(double)));
}

tt_double_tensor *tt_double_tensors_add(tt_double_tensors *tensors, const char *name,
                                        const tt_reference_shape *shape)
{
    size_t size = ((size_t)tensors->count + 1) * sizeof(void *);
    tensors->items = must(realloc(tensors->items, size));
    tt_double_tensor *tensor = must(calloc(1, sizeof(*tensor)));
    snprintf(tensor->name, sizeof(tensor->name), "%s", name);
    tensor->shape = *shape;
    tensor->shape.count = 1;
    for (int i = 0; i < shape->dimensions; i++) {
        tensor->shape.count *= shape->extent[i];
    }
    tensor->values = tt_double_array(tensor->shape.count);
    tensor->gradients = tt_double_array(tensor->shape.count);
    tensors->items[tensors->count++] = tensor;
    return tensor;
}

static tt_double_tensor *find(const tt_double_tensors *tensors, const char *name)
{
    for (int i = 0; i < tensors->count; i++) {
        if (strcmp(tensors->items[i]->name, name) == 0) {
            return tensors->items[i];
        }
    }
    return NULL;
}

tt_double_tensor *tt_double_tensors_find(const tt_double_tensors *tensors, const char *format, ...)
{
    char name[TT_REFERENCE_NAME];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof(name), format, arguments);
    va_end(arguments);
    return find(tensors, name);
}

tt_double_tensor *tt_double_tensors_get(const tt_double_tensors *tensors, const char *format, ...)
{
    char name[TT_REFERENCE_NAME];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof(name), format, arguments);
    va_end(arguments);
    tt_double_tensor *tensor = find(tensors, name);
    if (tensor == NULL) {
        fprintf(stderr, "double precision model: no parameter %s\n", name);
        abort();
    }
    return tensor;
}

void tt_double_tensors_zero_gradients(tt_double_tensors *tensors)
{
    for (int i = 0; i < tensors->count; i++) {
        tt_double_tensor *tensor = tensors->items[i];
        memset(tensor->gradients, 0, (size_t)tensor->shape.count * sizeof(double));
    }
}

void tt_double_tensors_free(tt_double_tensors *tensors)
{
    for (int i = 0; i < tensors->count; i++) {
        free(tensors->items[i]->values);
        free(tensors->items[i]->gradients);
        free(tensors->items[i]);
    }
    free(tensors->items);
    *tensors = (tt_double_tensors){NULL, 0};
}

static tt_status read_tensor(const tt_reference_file *file, const char *group, const char *name,
                             tt_double_tensors *tensors, tt_error *error)
{
    char path[2 * TT_REFERENCE_NAME];
    snprintf(path, sizeof(path), "%s/%s", group, name);
    tt_reference_shape shape;
    TT_TRY(tt_reference_shape_of(file, path, &shape, error));
    double *values;
    TT_TRY(tt_reference_doubles(file, path, shape.count, &values, error));
    tt_double_tensor *tensor = tt_double_tensors_add(tensors, name, &shape);
    free(tensor->values);
    tensor->values = values;
    return TT_OK;
}

tt_status tt_double_tensors_read(const tt_reference_file *file, const char *group,
                                 tt_double_tensors *tensors, tt_error *error)
{
    tt_reference_names names;
    *tensors = (tt_double_tensors){NULL, 0};
    TT_TRY(tt_reference_datasets(file, group, &names, error));
    tt_status status = TT_OK;
    for (int i = 0; status == TT_OK && i < names.count; i++) {
        status = read_tensor(file, group, names.names[i], tensors, error);
    }
    tt_reference_names_free(&names);
    if (status != TT_OK) {
        tt_double_tensors_free(tensors);
    }
    return status;
}

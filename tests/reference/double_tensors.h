/* Named tensors in double precision with room for their gradients: the parameters of a model as a
 * reference file stores them. Memory that cannot be had ends the program: this is test code. */
#ifndef TT_TESTS_DOUBLE_TENSORS_H
#define TT_TESTS_DOUBLE_TENSORS_H

#include "tests/reference/reference_file.h"

typedef struct {
    char name[TT_REFERENCE_NAME];
    tt_reference_shape shape;
    double *values, *gradients; /* [shape.count] */
} tt_double_tensor;

typedef struct {
    tt_double_tensor **items;
    int count;
} tt_double_tensors;

/* A zeroed array; free() it. */
double *tt_double_array(int64_t count);

/* A tensor of zeros; its address stays valid until free. Extents after the last given are 0. */
tt_double_tensor *tt_double_tensors_add(tt_double_tensors *tensors, const char *name,
                                        const tt_reference_shape *shape);
/* NULL when there is none of that name (printf rules). */
tt_double_tensor *tt_double_tensors_find(const tt_double_tensors *tensors, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The tensor of that name, which must be there. */
tt_double_tensor *tt_double_tensors_get(const tt_double_tensors *tensors, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void tt_double_tensors_zero_gradients(tt_double_tensors *tensors);
void tt_double_tensors_free(tt_double_tensors *tensors);

/* Every dataset below `group`, under its path from there. */
tt_status tt_double_tensors_read(const tt_reference_file *file, const char *group,
                                 tt_double_tensors *tensors, tt_error *error);

#endif

/* Reference files: HDF5 files with inputs, parameters and the results that are right for them.
 * Datasets and attributes are named by their path in the file ("small_odd/core_1"). Whatever is
 * missing or of another shape is an error that names file and path. */
#ifndef TT_TESTS_REFERENCE_FILE_H
#define TT_TESTS_REFERENCE_FILE_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As many dimensions as HDF5 has. */
enum { TT_REFERENCE_DIMENSIONS = 32, TT_REFERENCE_NAME = 256 };

/* A list of names or paths. */
typedef struct {
    char **names;
    int count;
} tt_reference_names;

void tt_reference_names_free(tt_reference_names *names);

/* The files whose name matches `pattern` ("tt_linear*.h5"), sorted by folder, then name. Folders:
 * the one that the environment variable TTRAIN_REFERENCE_DIR names, or else `reference` in the
 * folder of shared data (TTRAIN_SHARED_DIR, or ../shared beside the repository) where there is one;
 * and always tests/reference/data. No match is an error: a test without files shows nothing. */
tt_status tt_reference_find(const char *pattern, tt_reference_names *paths, tt_error *error);

typedef struct {
    char path[1024];
    int64_t handle;
} tt_reference_file;

tt_status tt_reference_open(const char *path, tt_reference_file *file, tt_error *error);
void tt_reference_close(tt_reference_file *file);

/* Groups directly below `group` ("/" for the top); none is an error. */
tt_status tt_reference_groups(const tt_reference_file *file, const char *group,
                              tt_reference_names *names, tt_error *error);
/* Every dataset of numbers below `group`, at any depth, as a path relative to it; none is an error.
 * Others (texts, records) are passed over. */
tt_status tt_reference_datasets(const tt_reference_file *file, const char *group,
                                tt_reference_names *names, tt_error *error);
bool tt_reference_has(const tt_reference_file *file, const char *path);

/* Numeric attributes of the group `object` ("/" for the top). `count` is the number there is, at
 * most `capacity`. */
tt_status tt_reference_integers(const tt_reference_file *file, const char *object,
                                const char *attribute, int capacity, int64_t *values, int *count,
                                tt_error *error);
tt_status tt_reference_integer(const tt_reference_file *file, const char *object,
                               const char *attribute, int64_t *value, tt_error *error);
tt_status tt_reference_real(const tt_reference_file *file, const char *object,
                            const char *attribute, double *value, tt_error *error);

bool tt_reference_has_attribute(const tt_reference_file *file, const char *object,
                                const char *attribute);
/* A text attribute, cut to `size`; empty where there is none. */
void tt_reference_text(const tt_reference_file *file, const char *object, const char *attribute,
                       char *value, size_t size);

typedef struct {
    int dimensions; /* 0 for a single number */
    int64_t extent[TT_REFERENCE_DIMENSIONS];
    int64_t count; /* product of the extents */
} tt_reference_shape;

/* Whether the dataset's numbers are stored with the digits of a double, or as integers. */
bool tt_reference_is_double(const tt_reference_file *file, const char *dataset);
tt_status tt_reference_shape_of(const tt_reference_file *file, const char *dataset,
                                tt_reference_shape *shape, tt_error *error);

/* The whole dataset, converted; free() it. `count` is what the caller expects in it, -1 for any. */
tt_status tt_reference_doubles(const tt_reference_file *file, const char *dataset, int64_t count,
                               double **values, tt_error *error);
tt_status tt_reference_floats(const tt_reference_file *file, const char *dataset, int64_t count,
                              float **values, tt_error *error);
tt_status tt_reference_int32s(const tt_reference_file *file, const char *dataset, int64_t count,
                              int32_t **values, tt_error *error);

/* Writing, for the project's own files. Groups on the way to a dataset are made as needed. */
typedef enum { TT_REFERENCE_F32, TT_REFERENCE_F64, TT_REFERENCE_I32 } tt_reference_type;

tt_status tt_reference_create(const char *path, tt_reference_file *file, tt_error *error);
/* `values` are doubles for the two floating types and int32_t for TT_REFERENCE_I32. */
tt_status tt_reference_write(const tt_reference_file *file, const char *dataset,
                             const tt_reference_shape *shape, tt_reference_type type,
                             const void *values, tt_error *error);
tt_status tt_reference_write_integers(const tt_reference_file *file, const char *object,
                                      const char *attribute, int count, const int64_t *values,
                                      tt_error *error);
/* One integer, without dimensions. */
tt_status tt_reference_write_integer(const tt_reference_file *file, const char *object,
                                     const char *attribute, int64_t value, tt_error *error);
tt_status tt_reference_write_real(const tt_reference_file *file, const char *object,
                                  const char *attribute, double value, tt_error *error);
tt_status tt_reference_write_text(const tt_reference_file *file, const char *object,
                                  const char *attribute, const char *value, tt_error *error);
/* Closes a file that was written and says whether all of it reached the disk. */
tt_status tt_reference_finish(tt_reference_file *file, tt_error *error);

#endif

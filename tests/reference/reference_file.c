#include "tests/reference/reference_file.h"

#include <glob.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void tt_reference_names_free(tt_reference_names *names)
{
    for (int i = 0; i < names->count; i++) {
        free(names->names[i]);
    }
    free(names->names);
    *names = (tt_reference_names){NULL, 0};
}

static bool names_add(tt_reference_names *names, const char *name)
{
    char **grown = realloc(names->names, ((size_t)names->count + 1) * sizeof(*grown));
    if (grown == NULL) {
        return false;
    }
    names->names = grown;
    names->names[names->count] = strdup(name);
    if (names->names[names->count] == NULL) {
        return false;
    }
    names->count++;
    return true;
}

static bool is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static void outside_folder(char *folder, size_t size)
{
    const char *reference = getenv("TTRAIN_REFERENCE_DIR");
    const char *shared = getenv("TTRAIN_SHARED_DIR");
    if (reference != NULL && reference[0] != 0) {
        snprintf(folder, size, "%s", reference);
    } else if (shared != NULL && shared[0] != 0) {
        snprintf(folder, size, "%s/reference", shared);
    } else {
        snprintf(folder, size, "%s/../shared/reference", TTRAIN_SOURCE_DIR);
    }
}

static bool add_matches(const char *folder, const char *pattern, tt_reference_names *paths)
{
    char path[2048];
    snprintf(path, sizeof(path), "%s/%s", folder, pattern);
    glob_t found;
    if (glob(path, 0, NULL, &found) != 0) {
        return true;
    }
    bool added = true;
    for (size_t i = 0; added && i < found.gl_pathc; i++) {
        added = names_add(paths, found.gl_pathv[i]);
    }
    globfree(&found);
    return added;
}

tt_status tt_reference_find(const char *pattern, tt_reference_names *paths, tt_error *error)
{
    char outside[1024];
    outside_folder(outside, sizeof(outside));
    *paths = (tt_reference_names){NULL, 0};
    if (getenv("TTRAIN_REFERENCE_DIR") != NULL && !is_folder(outside)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "TTRAIN_REFERENCE_DIR: expected a folder, found %s", outside);
    }
    if (!add_matches(outside, pattern, paths) ||
        !add_matches(TTRAIN_SOURCE_DIR "/tests/reference/data", pattern, paths)) {
        tt_reference_names_free(paths);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for the list", pattern);
    }
    if (paths->count == 0) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: no such file in %s or in %s", pattern,
                            outside, TTRAIN_SOURCE_DIR "/tests/reference/data");
    }
    return TT_OK;
}

/* Failures are reported through tt_error, not by HDF5's own print-out. */
static void silence_hdf5(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

tt_status tt_reference_open(const char *path, tt_reference_file *file, tt_error *error)
{
    silence_hdf5();
    snprintf(file->path, sizeof(file->path), "%s", path);
    file->handle = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file->handle < 0) {
        return tt_error_set(error, TT_IO_FAILED, "%s: not a readable HDF5 file", path);
    }
    return TT_OK;
}

void tt_reference_close(tt_reference_file *file)
{
    if (file->handle > 0) {
        H5Fclose(file->handle);
    }
    file->handle = 0;
}

typedef struct {
    tt_reference_names *names;
    const char *prefix; /* path of the group that is walked, relative to the first one */
    bool groups;        /* list the direct groups, not the datasets at any depth */
    bool full;
} name_walk;

static bool holds_numbers(hid_t dataset)
{
    hid_t type = H5Dget_type(dataset);
    H5T_class_t kind = H5Tget_class(type);
    H5Tclose(type);
    return kind == H5T_INTEGER || kind == H5T_FLOAT || kind == H5T_ENUM;
}

static herr_t walk_object(hid_t group, const char *name, const H5L_info_t *info, void *data)
{
    (void)info;
    name_walk *walk = data;
    char path[TT_REFERENCE_NAME];
    snprintf(path, sizeof(path), "%s%s", walk->prefix, name);
    hid_t handle = H5Oopen(group, name, H5P_DEFAULT);
    H5I_type_t type = H5Iget_type(handle);
    herr_t result = 0;
    if (walk->groups ? type == H5I_GROUP : type == H5I_DATASET && holds_numbers(handle)) {
        walk->full = !names_add(walk->names, path);
        result = walk->full ? -1 : 0;
    } else if (type == H5I_GROUP && !walk->groups) {
        char prefix[TT_REFERENCE_NAME + 1];
        snprintf(prefix, sizeof(prefix), "%s/", path);
        name_walk inner = {.names = walk->names, .prefix = prefix};
        result = H5Literate(handle, H5_INDEX_NAME, H5_ITER_INC, NULL, walk_object, &inner);
        walk->full = inner.full;
    }
    H5Oclose(handle);
    return result;
}

static tt_status list_objects(const tt_reference_file *file, const char *group, bool groups,
                              tt_reference_names *names, tt_error *error)
{
    *names = (tt_reference_names){NULL, 0};
    hid_t handle = H5Oopen(file->handle, group, H5P_DEFAULT);
    if (handle < 0) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: no group %s", file->path, group);
    }
    name_walk walk = {.names = names, .prefix = "", .groups = groups};
    herr_t walked = H5Literate(handle, H5_INDEX_NAME, H5_ITER_INC, NULL, walk_object, &walk);
    H5Oclose(handle);
    if (walked < 0 || names->count == 0) {
        tt_reference_names_free(names);
        return walk.full ? tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for the list of %s",
                                        file->path, group)
                         : tt_error_set(error, TT_INVALID_INPUT, "%s: %s holds no %s", file->path,
                                        group, groups ? "groups" : "datasets");
    }
    return TT_OK;
}

tt_status tt_reference_groups(const tt_reference_file *file, const char *group,
                              tt_reference_names *names, tt_error *error)
{
    return list_objects(file, group, true, names, error);
}

tt_status tt_reference_datasets(const tt_reference_file *file, const char *group,
                                tt_reference_names *names, tt_error *error)
{
    return list_objects(file, group, false, names, error);
}

bool tt_reference_has(const tt_reference_file *file, const char *path)
{
    hid_t handle = H5Oopen(file->handle, path, H5P_DEFAULT);
    if (handle >= 0) {
        H5Oclose(handle);
    }
    return handle >= 0;
}

/* Reads an attribute of at most `capacity` numbers, converted to `memory_type`. */
static tt_status read_attribute(const tt_reference_file *file, const char *object,
                                const char *attribute, hid_t memory_type, int capacity,
                                void *values, int *count, tt_error *error)
{
    hid_t handle = H5Aopen_by_name(file->handle, object, attribute, H5P_DEFAULT, H5P_DEFAULT);
    if (handle < 0) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: %s has no attribute %s", file->path,
                            object, attribute);
    }
    hid_t space = H5Aget_space(handle);
    hssize_t points = H5Sget_simple_extent_npoints(space);
    H5Sclose(space);
    tt_status status = TT_OK;
    if (points < 1 || points > capacity) {
        status = tt_error_set(error, TT_INVALID_INPUT,
                              "%s: attribute %s of %s: expected 1 to %d numbers, found %lld",
                              file->path, attribute, object, capacity, (long long)points);
    } else if (H5Aread(handle, memory_type, values) < 0) {
        status = tt_error_set(error, TT_INVALID_INPUT, "%s: attribute %s of %s: not numeric",
                              file->path, attribute, object);
    }
    *count = (int)points;
    H5Aclose(handle);
    return status;
}

tt_status tt_reference_integers(const tt_reference_file *file, const char *object,
                                const char *attribute, int capacity, int64_t *values, int *count,
                                tt_error *error)
{
    return read_attribute(file, object, attribute, H5T_NATIVE_INT64, capacity, values, count,
                          error);
}

tt_status tt_reference_integer(const tt_reference_file *file, const char *object,
                               const char *attribute, int64_t *value, tt_error *error)
{
    int count;
    return read_attribute(file, object, attribute, H5T_NATIVE_INT64, 1, value, &count, error);
}

tt_status tt_reference_real(const tt_reference_file *file, const char *object,
                            const char *attribute, double *value, tt_error *error)
{
    int count;
    return read_attribute(file, object, attribute, H5T_NATIVE_DOUBLE, 1, value, &count, error);
}

bool tt_reference_has_attribute(const tt_reference_file *file, const char *object,
                                const char *attribute)
{
    return H5Aexists_by_name(file->handle, object, attribute, H5P_DEFAULT) > 0;
}

void tt_reference_text(const tt_reference_file *file, const char *object, const char *attribute,
                       char *value, size_t size)
{
    value[0] = 0;
    hid_t handle = H5Aopen_by_name(file->handle, object, attribute, H5P_DEFAULT, H5P_DEFAULT);
    if (handle < 0) {
        return;
    }
    hid_t type = H5Aget_type(handle);
    char *text = NULL;
    if (H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) > 0) {
        if (H5Aread(handle, type, &text) >= 0 && text != NULL) {
            snprintf(value, size, "%s", text);
            H5free_memory(text);
        }
    } else if (H5Tget_class(type) == H5T_STRING) {
        text = calloc(H5Tget_size(type) + 1, 1);
        if (text != NULL && H5Aread(handle, type, text) >= 0) {
            snprintf(value, size, "%s", text);
        }
        free(text);
    }
    H5Tclose(type);
    H5Aclose(handle);
}

bool tt_reference_is_double(const tt_reference_file *file, const char *dataset)
{
    hid_t handle = H5Dopen2(file->handle, dataset, H5P_DEFAULT);
    if (handle < 0) {
        return false;
    }
    hid_t type = H5Dget_type(handle);
    bool is_double = H5Tget_class(type) != H5T_FLOAT || H5Tget_size(type) >= sizeof(double);
    H5Tclose(type);
    H5Dclose(handle);
    return is_double;
}

static tt_status open_dataset(const tt_reference_file *file, const char *dataset, hid_t *handle,
                              tt_reference_shape *shape, tt_error *error)
{
    *handle = H5Dopen2(file->handle, dataset, H5P_DEFAULT);
    if (*handle < 0) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: no dataset %s", file->path, dataset);
    }
    hsize_t extent[H5S_MAX_RANK] = {0};
    hid_t space = H5Dget_space(*handle);
    *shape = (tt_reference_shape){0};
    shape->dimensions = H5Sget_simple_extent_dims(space, extent, NULL);
    shape->count = H5Sget_simple_extent_npoints(space);
    H5Sclose(space);
    if (shape->dimensions < 0 || shape->dimensions > TT_REFERENCE_DIMENSIONS) {
        H5Dclose(*handle);
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: dataset %s: expected at most %d dimensions, found %d", file->path,
                            dataset, TT_REFERENCE_DIMENSIONS, shape->dimensions);
    }
    for (int i = 0; i < shape->dimensions; i++) {
        shape->extent[i] = (int64_t)extent[i];
    }
    return TT_OK;
}

tt_status tt_reference_shape_of(const tt_reference_file *file, const char *dataset,
                                tt_reference_shape *shape, tt_error *error)
{
    hid_t handle;
    TT_TRY(open_dataset(file, dataset, &handle, shape, error));
    H5Dclose(handle);
    return TT_OK;
}

static tt_status read_dataset(const tt_reference_file *file, const char *dataset, int64_t count,
                              hid_t memory_type, size_t size, void **values, tt_error *error)
{
    hid_t handle;
    tt_reference_shape shape = {0};
    *values = NULL;
    TT_TRY(open_dataset(file, dataset, &handle, &shape, error));
    tt_status status = TT_OK;
    if (count >= 0 && shape.count != count) {
        status = tt_error_set(error, TT_INVALID_INPUT,
                              "%s: dataset %s: expected %lld numbers, found %lld", file->path,
                              dataset, (long long)count, (long long)shape.count);
        goto done;
    }
    *values = malloc((size_t)shape.count * size + 1);
    if (*values == NULL) {
        status = tt_error_set(error, TT_OUT_OF_MEMORY, "%s: dataset %s: no memory for %lld numbers",
                              file->path, dataset, (long long)shape.count);
        goto done;
    }
    if (H5Dread(handle, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, *values) < 0) {
        status = tt_error_set(error, TT_IO_FAILED, "%s: dataset %s: cannot be read as numbers",
                              file->path, dataset);
        free(*values);
        *values = NULL;
    }
done:
    H5Dclose(handle);
    return status;
}

tt_status tt_reference_doubles(const tt_reference_file *file, const char *dataset, int64_t count,
                               double **values, tt_error *error)
{
    void *read = NULL;
    tt_status status =
        read_dataset(file, dataset, count, H5T_NATIVE_DOUBLE, sizeof(double), &read, error);
    *values = read;
    return status;
}

tt_status tt_reference_floats(const tt_reference_file *file, const char *dataset, int64_t count,
                              float **values, tt_error *error)
{
    void *read = NULL;
    tt_status status =
        read_dataset(file, dataset, count, H5T_NATIVE_FLOAT, sizeof(float), &read, error);
    *values = read;
    return status;
}

tt_status tt_reference_int32s(const tt_reference_file *file, const char *dataset, int64_t count,
                              int32_t **values, tt_error *error)
{
    void *read = NULL;
    tt_status status =
        read_dataset(file, dataset, count, H5T_NATIVE_INT32, sizeof(int32_t), &read, error);
    *values = read;
    return status;
}

tt_status tt_reference_create(const char *path, tt_reference_file *file, tt_error *error)
{
    silence_hdf5();
    snprintf(file->path, sizeof(file->path), "%s", path);
    /* The format of HDF5 1.8 takes half the room of the older default for many small datasets. */
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_LATEST);
    file->handle = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    if (file->handle < 0) {
        return tt_error_set(error, TT_IO_FAILED, "%s: cannot be created", path);
    }
    return TT_OK;
}

tt_status tt_reference_write(const tt_reference_file *file, const char *dataset,
                             const tt_reference_shape *shape, tt_reference_type type,
                             const void *values, tt_error *error)
{
    hsize_t extent[TT_REFERENCE_DIMENSIONS] = {0};
    for (int i = 0; i < shape->dimensions; i++) {
        extent[i] = (hsize_t)shape->extent[i];
    }
    hid_t file_type = type == TT_REFERENCE_F32   ? H5T_IEEE_F32LE
                      : type == TT_REFERENCE_F64 ? H5T_IEEE_F64LE
                                                 : H5T_STD_I32LE;
    hid_t memory_type = type == TT_REFERENCE_I32 ? H5T_NATIVE_INT32 : H5T_NATIVE_DOUBLE;
    hid_t space = shape->dimensions == 0 ? H5Screate(H5S_SCALAR)
                                         : H5Screate_simple(shape->dimensions, extent, NULL);
    hid_t links = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(links, 1);
    /* Times of creation are of no use here and take room. */
    hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(creation, false);
    hid_t handle =
        H5Dcreate2(file->handle, dataset, file_type, space, links, creation, H5P_DEFAULT);
    bool written =
        handle >= 0 && H5Dwrite(handle, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0;
    if (handle >= 0 && H5Dclose(handle) < 0) {
        written = false;
    }
    H5Pclose(creation);
    H5Pclose(links);
    H5Sclose(space);
    return written ? TT_OK
                   : tt_error_set(error, TT_IO_FAILED, "%s: dataset %s: cannot be written",
                                  file->path, dataset);
}

/* Opens the group `object`, made where it is not there. */
static hid_t open_group(const tt_reference_file *file, const char *object)
{
    hid_t handle = H5Oopen(file->handle, object, H5P_DEFAULT);
    if (handle >= 0) {
        return handle;
    }
    hid_t links = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(links, 1);
    handle = H5Gcreate2(file->handle, object, links, H5P_DEFAULT, H5P_DEFAULT);
    H5Pclose(links);
    return handle;
}

static tt_status write_attribute(const tt_reference_file *file, const char *object,
                                 const char *attribute, hid_t space, hid_t file_type,
                                 hid_t memory_type, const void *values, tt_error *error)
{
    hid_t group = open_group(file, object);
    hid_t handle =
        group < 0 ? -1 : H5Acreate2(group, attribute, file_type, space, H5P_DEFAULT, H5P_DEFAULT);
    bool written = handle >= 0 && H5Awrite(handle, memory_type, values) >= 0;
    if (handle >= 0 && H5Aclose(handle) < 0) {
        written = false;
    }
    if (group >= 0) {
        H5Oclose(group);
    }
    H5Sclose(space);
    return written ? TT_OK
                   : tt_error_set(error, TT_IO_FAILED, "%s: attribute %s of %s: cannot be written",
                                  file->path, attribute, object);
}

tt_status tt_reference_write_integers(const tt_reference_file *file, const char *object,
                                      const char *attribute, int count, const int64_t *values,
                                      tt_error *error)
{
    hsize_t extent = (hsize_t)count;
    return write_attribute(file, object, attribute, H5Screate_simple(1, &extent, NULL),
                           H5T_STD_I64LE, H5T_NATIVE_INT64, values, error);
}

tt_status tt_reference_write_integer(const tt_reference_file *file, const char *object,
                                     const char *attribute, int64_t value, tt_error *error)
{
    return write_attribute(file, object, attribute, H5Screate(H5S_SCALAR), H5T_STD_I64LE,
                           H5T_NATIVE_INT64, &value, error);
}

tt_status tt_reference_write_real(const tt_reference_file *file, const char *object,
                                  const char *attribute, double value, tt_error *error)
{
    return write_attribute(file, object, attribute, H5Screate(H5S_SCALAR), H5T_IEEE_F64LE,
                           H5T_NATIVE_DOUBLE, &value, error);
}

tt_status tt_reference_write_text(const tt_reference_file *file, const char *object,
                                  const char *attribute, const char *value, tt_error *error)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, strlen(value) + 1);
    tt_status status =
        write_attribute(file, object, attribute, H5Screate(H5S_SCALAR), type, type, value, error);
    H5Tclose(type);
    return status;
}

tt_status tt_reference_finish(tt_reference_file *file, tt_error *error)
{
    bool flushed = H5Fflush(file->handle, H5F_SCOPE_LOCAL) >= 0;
    bool closed = H5Fclose(file->handle) >= 0;
    file->handle = 0;
    return flushed && closed
               ? TT_OK
               : tt_error_set(error, TT_IO_FAILED, "%s: cannot be completed", file->path);
}

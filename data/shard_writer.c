#include "data/shard_hdf5.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK_ROWS = 256, COMPRESSION_LEVEL = 4, MAXIMUM_COLUMNS = 6 };

/* A dataset and the rows that wait to be written to it. */
typedef struct {
    hid_t dataset;
    int rank;
    int64_t width;
    bool wide;     /* int32_t in memory and file, otherwise int8_t */
    void *waiting; /* [BLOCK_ROWS, width] */
} column;

struct tt_shard_writer {
    char *path, *temporary;
    tt_shard_info info; /* rows: written or waiting */
    int waiting_rows;
    hid_t file;
    column columns[MAXIMUM_COLUMNS];
    int column_count;
    column *input_ids, *attention_mask, *segment_ids, *labels;
    column *special_tokens_mask;           /* dynamic masking */
    column *masked_positions, *masked_ids; /* static masking */
};

static tt_status add_column(tt_shard_writer *writer, const char *name, bool wide, int rank,
                            int64_t width, column **added, tt_error *error)
{
    column *column = &writer->columns[writer->column_count++];
    column->rank = rank;
    column->width = width;
    column->wide = wide;
    column->waiting = malloc((size_t)(BLOCK_ROWS * width) * (wide ? 4 : 1));
    *added = column;
    hsize_t size[2] = {0, (hsize_t)width}, maximum[2] = {H5S_UNLIMITED, (hsize_t)width};
    hsize_t chunk[2] = {BLOCK_ROWS, (hsize_t)width};
    hid_t space = H5Screate_simple(rank, size, maximum);
    hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(creation, rank, chunk);
    H5Pset_deflate(creation, COMPRESSION_LEVEL);
    column->dataset = H5Dcreate2(writer->file, name, wide ? H5T_STD_I32LE : H5T_STD_I8LE, space,
                                 H5P_DEFAULT, creation, H5P_DEFAULT);
    tt_status status = TT_OK;
    if (column->dataset < 0) {
        status = tt_shard_hdf5_failed(writer->temporary, name, error);
    } else if (column->waiting == NULL) {
        status = tt_error_set(error, TT_OUT_OF_MEMORY, "%s: %s: no memory for %d rows",
                              writer->path, name, BLOCK_ROWS);
    }
    H5Pclose(creation);
    H5Sclose(space);
    return status;
}

static tt_status add_columns(tt_shard_writer *writer, tt_error *error)
{
    int64_t length = writer->info.sequence_length, room = writer->info.max_predictions;
    TT_TRY(add_column(writer, TT_SHARD_INPUT_IDS, true, 2, length, &writer->input_ids, error));
    TT_TRY(
        add_column(writer, TT_SHARD_INPUT_MASK, false, 2, length, &writer->attention_mask, error));
    TT_TRY(add_column(writer, TT_SHARD_SEGMENT_IDS, false, 2, length, &writer->segment_ids, error));
    TT_TRY(add_column(writer, TT_SHARD_LABELS, false, 1, 1, &writer->labels, error));
    if (writer->info.masking == TT_MASKING_DYNAMIC) {
        return add_column(writer, TT_SHARD_SPECIAL_TOKENS_MASK, false, 2, length,
                          &writer->special_tokens_mask, error);
    }
    TT_TRY(add_column(writer, TT_SHARD_MASKED_POSITIONS, true, 2, room, &writer->masked_positions,
                      error));
    return add_column(writer, TT_SHARD_MASKED_IDS, true, 2, room, &writer->masked_ids, error);
}

static tt_status create_file(tt_shard_writer *writer, tt_error *error)
{
    /* The system's own reasons are clearer than HDF5's. */
    int descriptor = open(writer->temporary, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0 || close(descriptor) != 0) {
        return tt_error_set(error, TT_IO_FAILED, "%s: %s", writer->temporary, strerror(errno));
    }
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    /* The formats of HDF5 1.10 on carry checksums of everything that is not data. */
    H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
    writer->file = H5Fcreate(writer->temporary, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    if (writer->file < 0) {
        return tt_shard_hdf5_failed(writer->temporary, "cannot be created", error);
    }
    return add_columns(writer, error);
}

static void free_writer(tt_shard_writer **writer)
{
    for (int i = 0; i < (*writer)->column_count; i++) {
        free((*writer)->columns[i].waiting);
    }
    free((*writer)->path);
    free((*writer)->temporary);
    free(*writer);
    *writer = NULL;
}

static char *join(const char *head, const char *tail)
{
    size_t size = strlen(head) + strlen(tail) + 1;
    char *joined = malloc(size);
    if (joined != NULL) {
        snprintf(joined, size, "%s%s", head, tail);
    }
    return joined;
}

tt_status tt_shard_writer_create(const char *path, const tt_shard_info *info,
                                 tt_shard_writer **writer, tt_error *error)
{
    *writer = NULL;
    TT_TRY(tt_shard_check_info(path, info, error));
    tt_shard_writer *created = calloc(1, sizeof *created);
    if (created == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", path);
    }
    created->path = join(path, "");
    created->temporary = join(path, ".tmp");
    if (created->path == NULL || created->temporary == NULL) {
        free_writer(&created);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", path);
    }
    created->info = *info;
    created->info.version = TT_SHARD_VERSION;
    created->info.rows = 0;
    created->file = -1;
    tt_shard_hdf5_lock();
    tt_status status = create_file(created, error);
    tt_shard_hdf5_unlock();
    if (status != TT_OK) {
        tt_shard_writer_abandon(&created);
        return status;
    }
    *writer = created;
    return TT_OK;
}

static tt_status row_failed(const tt_shard_writer *writer, const char *what, int64_t found,
                            int64_t low, int64_t high, tt_error *error)
{
    return tt_error_set(error, TT_INVALID_INPUT,
                        "%s: row %lld: %s: found %lld, expected %lld to %lld", writer->path,
                        (long long)writer->info.rows, what, (long long)found, (long long)low,
                        (long long)high);
}

static tt_status check_tokens(const tt_shard_writer *writer, const tt_shard_row *row,
                              tt_error *error)
{
    for (int i = 0; i < row->length; i++) {
        if (row->input_ids[i] < 0 || row->input_ids[i] >= writer->info.vocabulary_size) {
            return row_failed(writer, TT_SHARD_INPUT_IDS, row->input_ids[i], 0,
                              writer->info.vocabulary_size - 1, error);
        }
        if (row->segment_ids[i] > 1) {
            return row_failed(writer, TT_SHARD_SEGMENT_IDS, row->segment_ids[i], 0, 1, error);
        }
        if (writer->special_tokens_mask != NULL && row->special_tokens_mask[i] > 3) {
            return row_failed(writer, TT_SHARD_SPECIAL_TOKENS_MASK, row->special_tokens_mask[i], 0,
                              3, error);
        }
    }
    return TT_OK;
}

static tt_status check_predictions(const tt_shard_writer *writer, const tt_shard_row *row,
                                   tt_error *error)
{
    if (row->masked_count < 0 || row->masked_count > writer->info.max_predictions) {
        return row_failed(writer, "number of masked positions", row->masked_count, 0,
                          writer->info.max_predictions, error);
    }
    int low = 1;
    for (int i = 0; i < row->masked_count; i++) {
        if (row->masked_positions[i] < low || row->masked_positions[i] >= row->length) {
            return row_failed(writer, TT_SHARD_MASKED_POSITIONS, row->masked_positions[i], low,
                              row->length - 1, error);
        }
        if (row->masked_ids[i] < 0 || row->masked_ids[i] >= writer->info.vocabulary_size) {
            return row_failed(writer, TT_SHARD_MASKED_IDS, row->masked_ids[i], 0,
                              writer->info.vocabulary_size - 1, error);
        }
        low = row->masked_positions[i] + 1;
    }
    return TT_OK;
}

static tt_status check_row(const tt_shard_writer *writer, const tt_shard_row *row, tt_error *error)
{
    if (writer->info.rows == INT32_MAX) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: more than %d rows, expected more shards",
                            writer->path, INT32_MAX);
    }
    if (row->length < 1 || row->length > writer->info.sequence_length) {
        return row_failed(writer, "number of tokens", row->length, 1, writer->info.sequence_length,
                          error);
    }
    if (row->next_sentence_label < 0 || row->next_sentence_label > 1) {
        return row_failed(writer, TT_SHARD_LABELS, row->next_sentence_label, 0, 1, error);
    }
    TT_TRY(check_tokens(writer, row, error));
    return writer->info.masking == TT_MASKING_STATIC ? check_predictions(writer, row, error)
                                                     : TT_OK;
}

/* Puts the first `count` values of a waiting row into place and `fill` behind them. */
static void put_wide(const tt_shard_writer *writer, column *column, const int32_t *values,
                     int64_t count, int32_t fill)
{
    int32_t *row = (int32_t *)column->waiting + writer->waiting_rows * column->width;
    for (int64_t i = 0; i < column->width; i++) {
        row[i] = i < count ? values[i] : fill;
    }
}

static void put_narrow(const tt_shard_writer *writer, column *column, const uint8_t *values,
                       int64_t count, uint8_t fill)
{
    uint8_t *row = (uint8_t *)column->waiting + writer->waiting_rows * column->width;
    memcpy(row, values, (size_t)count);
    memset(row + count, fill, (size_t)(column->width - count));
}

static void put_mask(const tt_shard_writer *writer, column *column, int64_t length)
{
    uint8_t *row = (uint8_t *)column->waiting + writer->waiting_rows * column->width;
    memset(row, 1, (size_t)length);
    memset(row + length, 0, (size_t)(column->width - length));
}

static tt_status write_column(const tt_shard_writer *writer, const column *column, tt_error *error)
{
    hsize_t rows = (hsize_t)writer->info.rows, count = (hsize_t)writer->waiting_rows;
    hsize_t size[2] = {rows, (hsize_t)column->width};
    hsize_t start[2] = {rows - count, 0}, block[2] = {count, (hsize_t)column->width};
    if (H5Dset_extent(column->dataset, size) < 0) {
        return tt_shard_hdf5_failed(writer->temporary, "cannot write rows", error);
    }
    hid_t in_file = H5Dget_space(column->dataset);
    hid_t in_memory = H5Screate_simple(column->rank, block, NULL);
    H5Sselect_hyperslab(in_file, H5S_SELECT_SET, start, NULL, block, NULL);
    tt_status status = TT_OK;
    if (H5Dwrite(column->dataset, column->wide ? H5T_NATIVE_INT32 : H5T_NATIVE_INT8, in_memory,
                 in_file, H5P_DEFAULT, column->waiting) < 0) {
        status = tt_shard_hdf5_failed(writer->temporary, "cannot write rows", error);
    }
    H5Sclose(in_memory);
    H5Sclose(in_file);
    return status;
}

static tt_status write_waiting(tt_shard_writer *writer, tt_error *error)
{
    tt_status status = TT_OK;
    tt_shard_hdf5_lock();
    for (int i = 0; i < writer->column_count && status == TT_OK; i++) {
        status = write_column(writer, &writer->columns[i], error);
    }
    tt_shard_hdf5_unlock();
    writer->waiting_rows = 0;
    return status;
}

tt_status tt_shard_writer_append(tt_shard_writer *writer, const tt_shard_row *row, tt_error *error)
{
    TT_TRY(check_row(writer, row, error));
    put_wide(writer, writer->input_ids, row->input_ids, row->length, writer->info.special.pad);
    put_narrow(writer, writer->segment_ids, row->segment_ids, row->length, 0);
    put_mask(writer, writer->attention_mask, row->length);
    const uint8_t label = (uint8_t)row->next_sentence_label;
    put_narrow(writer, writer->labels, &label, 1, 0);
    if (writer->info.masking == TT_MASKING_DYNAMIC) {
        put_narrow(writer, writer->special_tokens_mask, row->special_tokens_mask, row->length,
                   TT_TOKEN_NEVER_MASKED);
    } else {
        put_wide(writer, writer->masked_positions, row->masked_positions, row->masked_count, 0);
        put_wide(writer, writer->masked_ids, row->masked_ids, row->masked_count, 0);
    }
    writer->info.rows++;
    writer->waiting_rows++;
    return writer->waiting_rows == BLOCK_ROWS ? write_waiting(writer, error) : TT_OK;
}

int64_t tt_shard_writer_rows(const tt_shard_writer *writer)
{
    return writer->info.rows;
}

static tt_status write_attribute(const tt_shard_writer *writer, const char *name, hid_t stored,
                                 hid_t type, const void *value, tt_error *error)
{
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t attribute = H5Acreate2(writer->file, name, stored, space, H5P_DEFAULT, H5P_DEFAULT);
    bool written = attribute >= 0 && H5Awrite(attribute, type, value) >= 0;
    tt_status status = written ? TT_OK : tt_shard_hdf5_failed(writer->temporary, name, error);
    if (attribute >= 0) {
        H5Aclose(attribute);
    }
    H5Sclose(space);
    return status;
}

static tt_status write_text(const tt_shard_writer *writer, const char *name, const char *text,
                            tt_error *error)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, strlen(text) + 1);
    H5Tset_cset(type, H5T_CSET_UTF8);
    tt_status status = write_attribute(writer, name, type, type, text, error);
    H5Tclose(type);
    return status;
}

static tt_status write_attributes(const tt_shard_writer *writer, tt_error *error)
{
    const tt_shard_info *info = &writer->info;
    const char *fields = (const char *)info;
    const char *masking = info->masking == TT_MASKING_STATIC ? "static" : "dynamic";
    TT_TRY(write_attribute(writer, TT_SHARD_VERSION_ATTRIBUTE, H5T_STD_I32LE, H5T_NATIVE_INT,
                           &info->version, error));
    TT_TRY(write_text(writer, TT_SHARD_MASKING_ATTRIBUTE, masking, error));
    TT_TRY(write_attribute(writer, TT_SHARD_ROWS_ATTRIBUTE, H5T_STD_I64LE, H5T_NATIVE_INT64,
                           &info->rows, error));
    for (int i = 0; i < TT_SHARD_INTS; i++) {
        TT_TRY(write_attribute(writer, tt_shard_ints[i].name, H5T_STD_I32LE, H5T_NATIVE_INT32,
                               fields + tt_shard_ints[i].offset, error));
    }
    for (int i = 0; i < TT_SHARD_HASHES; i++) {
        TT_TRY(write_attribute(writer, tt_shard_hashes[i].name, H5T_STD_U64LE, H5T_NATIVE_UINT64,
                               fields + tt_shard_hashes[i].offset, error));
    }
    return write_text(writer, TT_SHARD_SOURCE_ATTRIBUTE, info->source, error);
}

static tt_status sync_path(const char *path, bool is_folder, tt_error *error)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | (is_folder ? O_DIRECTORY : 0));
    if (descriptor < 0) {
        return tt_error_set(error, TT_IO_FAILED, "%s: %s", path, strerror(errno));
    }
    int reason = fsync(descriptor) != 0 ? errno : 0;
    close(descriptor);
    /* Some file systems cannot sync a folder. */
    if (reason != 0 && !(is_folder && reason == EINVAL)) {
        return tt_error_set(error, TT_IO_FAILED, "%s: cannot sync: %s", path, strerror(reason));
    }
    return TT_OK;
}

/* Makes the finished file appear under its name, for good: the folder holds the name. */
static tt_status publish(const tt_shard_writer *writer, tt_error *error)
{
    TT_TRY(sync_path(writer->temporary, false, error));
    if (rename(writer->temporary, writer->path) != 0) {
        return tt_error_set(error, TT_IO_FAILED, "%s: cannot rename to %s: %s", writer->temporary,
                            writer->path, strerror(errno));
    }
    char *folder = join(writer->path, "");
    if (folder == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", writer->path);
    }
    char *slash = strrchr(folder, '/');
    if (slash != NULL) {
        slash[slash == folder ? 1 : 0] = '\0';
    }
    tt_status status = sync_path(slash != NULL ? folder : ".", true, error);
    free(folder);
    return status;
}

static tt_status finish_file(tt_shard_writer *writer, tt_error *error)
{
    tt_shard_hdf5_lock();
    tt_status status = write_attributes(writer, error);
    if (status == TT_OK && H5Fflush(writer->file, H5F_SCOPE_LOCAL) < 0) {
        status = tt_shard_hdf5_failed(writer->temporary, "cannot write", error);
    }
    herr_t closed = H5Fclose(writer->file);
    writer->file = -1;
    if (status == TT_OK && closed < 0) {
        status = tt_shard_hdf5_failed(writer->temporary, "cannot close", error);
    }
    tt_shard_hdf5_unlock();
    return status;
}

tt_status tt_shard_writer_close(tt_shard_writer **writer, tt_error *error)
{
    tt_status status = TT_OK;
    if ((*writer)->info.rows == 0) {
        status = tt_error_set(error, TT_INVALID_INPUT,
                              "%s: no rows to write, expected at least one", (*writer)->path);
    }
    if (status == TT_OK && (*writer)->waiting_rows > 0) {
        status = write_waiting(*writer, error);
    }
    if (status == TT_OK) {
        status = finish_file(*writer, error);
    }
    if (status == TT_OK) {
        status = publish(*writer, error);
    }
    if (status != TT_OK) {
        tt_shard_writer_abandon(writer);
        return status;
    }
    free_writer(writer);
    return TT_OK;
}

void tt_shard_writer_abandon(tt_shard_writer **writer)
{
    if (*writer == NULL) {
        return;
    }
    if ((*writer)->file >= 0) {
        tt_shard_hdf5_lock();
        H5Fclose((*writer)->file);
        tt_shard_hdf5_unlock();
    }
    unlink((*writer)->temporary);
    free_writer(writer);
}

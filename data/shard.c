#include "data/shard.h"

#include "data/shard_hdf5.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BLOCK_BYTES = 4 << 20,  /* rows are converted and checked this much at a time */
    CACHE_BYTES = 32 << 20, /* holds a band of chunks that a block shares with the next */
    MAXIMUM_CHUNK_BYTES = 256 << 20,
    MAXIMUM_COMPRESSION = 4096 /* deflate reaches 1032; a shape beyond this has no data behind it */
};

typedef struct {
    const char *path;
    int64_t file_bytes;
    hid_t file;
    tt_shard_info info;
    tt_error *error;
} shard_file;

static tt_status open_file(shard_file *file)
{
    /* The system's own reasons are clearer than HDF5's. */
    int descriptor = open(file->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat status;
    if (descriptor < 0 || fstat(descriptor, &status) != 0) {
        tt_error_set(file->error, TT_IO_FAILED, "%s: %s", file->path, strerror(errno));
        if (descriptor >= 0) {
            close(descriptor);
        }
        return TT_IO_FAILED;
    }
    close(descriptor);
    if (!S_ISREG(status.st_mode)) {
        return tt_error_set(file->error, TT_INVALID_INPUT, "%s: is not a regular file", file->path);
    }
    file->file_bytes = status.st_size;

    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
#if H5_VERSION_GE(1, 10, 7)
    /* Read-only files need no lock, and network file systems often have none. */
    H5Pset_file_locking(access, false, true);
#endif
    file->file = H5Fopen(file->path, H5F_ACC_RDONLY, access);
    if (file->file < 0) {
        tt_shard_hdf5_failed(file->path, "cannot be read as an HDF5 file", file->error);
    }
    H5Pclose(access);
    return file->file < 0 ? TT_IO_FAILED : TT_OK;
}

static tt_status attribute_failed(shard_file *file, const char *name, const char *expected)
{
    return tt_error_set(file->error, TT_INVALID_INPUT, "%s: attribute %s: expected %s", file->path,
                        name, expected);
}

/* Reads one whole number into the `type` that `value` has. */
static tt_status read_number(shard_file *file, const char *name, hid_t type, void *value)
{
    hid_t attribute = H5Aopen(file->file, name, H5P_DEFAULT);
    if (attribute < 0) {
        return attribute_failed(file, name, "it to be there");
    }
    hid_t stored = H5Aget_type(attribute);
    hid_t space = H5Aget_space(attribute);
    tt_status status = TT_OK;
    if (H5Tget_class(stored) != H5T_INTEGER || H5Sget_simple_extent_npoints(space) != 1) {
        status = attribute_failed(file, name, "one whole number");
    } else if (H5Aread(attribute, type, value) < 0) {
        status = tt_shard_hdf5_failed(file->path, name, file->error);
    }
    H5Sclose(space);
    H5Tclose(stored);
    H5Aclose(attribute);
    return status;
}

/* Reads a fixed-length string into `text`, cutting what has no room. */
static tt_status read_text(shard_file *file, const char *name, char *text, size_t room)
{
    hid_t attribute = H5Aopen(file->file, name, H5P_DEFAULT);
    if (attribute < 0) {
        return attribute_failed(file, name, "it to be there");
    }
    hid_t stored = H5Aget_type(attribute);
    hid_t space = H5Aget_space(attribute);
    hid_t wanted = H5Tcopy(H5T_C_S1);
    H5Tset_size(wanted, room);
    tt_status status = TT_OK;
    if (H5Tget_class(stored) != H5T_STRING || H5Tis_variable_str(stored) != 0 ||
        H5Sget_simple_extent_npoints(space) != 1) {
        status = attribute_failed(file, name, "a text of fixed length");
    } else if (H5Tset_cset(wanted, H5Tget_cset(stored)) < 0 ||
               H5Aread(attribute, wanted, text) < 0) {
        status = tt_shard_hdf5_failed(file->path, name, file->error);
    }
    text[room - 1] = '\0';
    H5Tclose(wanted);
    H5Sclose(space);
    H5Tclose(stored);
    H5Aclose(attribute);
    return status;
}

static tt_status read_attributes(shard_file *file)
{
    tt_shard_info *info = &file->info;
    TT_TRY(read_number(file, TT_SHARD_VERSION_ATTRIBUTE, H5T_NATIVE_INT, &info->version));
    if (info->version != TT_SHARD_VERSION) {
        return tt_error_set(file->error, TT_INVALID_INPUT,
                            "%s: attribute %s: found %d, expected %d", file->path,
                            TT_SHARD_VERSION_ATTRIBUTE, info->version, TT_SHARD_VERSION);
    }
    char masking[16] = "";
    TT_TRY(read_text(file, TT_SHARD_MASKING_ATTRIBUTE, masking, sizeof masking));
    if (strcmp(masking, "static") != 0 && strcmp(masking, "dynamic") != 0) {
        return attribute_failed(file, TT_SHARD_MASKING_ATTRIBUTE, "\"static\" or \"dynamic\"");
    }
    info->masking = masking[0] == 's' ? TT_MASKING_STATIC : TT_MASKING_DYNAMIC;
    TT_TRY(read_number(file, TT_SHARD_ROWS_ATTRIBUTE, H5T_NATIVE_INT64, &info->rows));
    for (int i = 0; i < TT_SHARD_INTS; i++) {
        TT_TRY(read_number(file, tt_shard_ints[i].name, H5T_NATIVE_INT32,
                           (char *)info + tt_shard_ints[i].offset));
    }
    for (int i = 0; i < TT_SHARD_HASHES; i++) {
        TT_TRY(read_number(file, tt_shard_hashes[i].name, H5T_NATIVE_UINT64,
                           (char *)info + tt_shard_hashes[i].offset));
    }
    TT_TRY(read_text(file, TT_SHARD_SOURCE_ATTRIBUTE, info->source, sizeof info->source));
    return tt_shard_check_info(file->path, info, file->error);
}

static tt_status dataset_failed(shard_file *file, const char *name, const char *found,
                                const char *expected)
{
    return tt_error_set(file->error, TT_INVALID_INPUT, "%s: %s: found %s, expected %s", file->path,
                        name, found, expected);
}

/* The extent of a dataset's chunks; its whole `shape` when it is stored in one piece. */
static bool chunk_extent(hid_t dataset, int rank, const hsize_t *shape, hsize_t chunk[2])
{
    chunk[0] = shape[0];
    chunk[1] = shape[1];
    hid_t creation = H5Dget_create_plist(dataset);
    bool chunked = H5Pget_layout(creation) == H5D_CHUNKED;
    if (chunked) {
        chunk[1] = 1;
        H5Pget_chunk(creation, rank, chunk);
    }
    H5Pclose(creation);
    return chunked;
}

static tt_status check_chunk_layout(shard_file *file, const char *name, hid_t dataset, int rank,
                                    const hsize_t *shape, size_t type_size)
{
    hsize_t chunk[2], current[2], maximum[2];
    if (!chunk_extent(dataset, rank, shape, chunk)) {
        return TT_OK;
    }
    hid_t space = H5Dget_space(dataset);
    H5Sget_simple_extent_dims(space, current, maximum);
    H5Sclose(space);
    int64_t bytes = (int64_t)type_size;
    for (int i = 0; i < rank; i++) {
        /* HDF5 makes no such chunks, and does not expect them when it reads. */
        if (chunk[i] < 1 || chunk[i] > maximum[i]) {
            return tt_error_set(file->error, TT_INVALID_INPUT,
                                "%s: %s: found chunks of %llu by %llu values, expected at most "
                                "the size of the dataset",
                                file->path, name, (unsigned long long)chunk[0],
                                (unsigned long long)(rank == 2 ? chunk[1] : 1));
        }
        if (__builtin_mul_overflow(bytes, chunk[i], &bytes) || bytes > MAXIMUM_CHUNK_BYTES) {
            return tt_error_set(file->error, TT_INVALID_INPUT,
                                "%s: %s: found chunks of more than %d bytes", file->path, name,
                                MAXIMUM_CHUNK_BYTES);
        }
    }
    return TT_OK;
}

/* Refuses a shape that the stored bytes cannot fill, before memory is taken for it. */
static tt_status check_storage(shard_file *file, const char *name, hid_t dataset, int rank,
                               const hsize_t *shape, size_t type_size)
{
    int64_t bytes = (int64_t)type_size;
    bool overflow = false;
    for (int i = 0; i < rank; i++) {
        overflow |= __builtin_mul_overflow(bytes, shape[i], &bytes);
    }
    int64_t stored = (int64_t)H5Dget_storage_size(dataset);
    if (stored > file->file_bytes || stored < 0) {
        stored = file->file_bytes;
    }
    if (overflow || bytes / MAXIMUM_COMPRESSION > stored) {
        return tt_error_set(file->error, TT_INVALID_INPUT,
                            "%s: %s: %lld stored bytes cannot hold %llu rows", file->path, name,
                            (long long)stored, (unsigned long long)shape[0]);
    }
    return check_chunk_layout(file, name, dataset, rank, shape, type_size);
}

/* A shard is one file, which its fingerprint and a copy of it stand for; and what HDF5 would open
 * elsewhere may be a pipe that is never written to. */
static tt_status check_place(shard_file *file, const char *name, hid_t dataset)
{
    hid_t creation = H5Dget_create_plist(dataset);
    bool elsewhere = H5Pget_layout(creation) == H5D_VIRTUAL || H5Pget_external_count(creation) > 0;
    char filter_name[64] = "";
    H5Z_filter_t lacking = 0;
    for (int i = 0; i < H5Pget_nfilters(creation) && lacking == 0; i++) {
        unsigned flags;
        size_t values = 0;
        H5Z_filter_t filter = H5Pget_filter2(creation, (unsigned)i, &flags, &values, NULL,
                                             sizeof filter_name, filter_name, NULL);
        lacking = H5Zfilter_avail(filter) > 0 ? 0 : filter;
    }
    H5Pclose(creation);
    if (elsewhere) {
        return dataset_failed(file, name, "data in another file", "all in this one");
    }
    if (lacking != 0) {
        return tt_error_set(file->error, TT_INVALID_INPUT,
                            "%s: %s: found compression by filter %d (%s), which this HDF5 lacks, "
                            "expected one that it has, such as gzip",
                            file->path, name, (int)lacking, filter_name);
    }
    return TT_OK;
}

static tt_status check_dataset(shard_file *file, const char *name, hid_t dataset, int rank,
                               hsize_t shape[2])
{
    hid_t type = H5Dget_type(dataset);
    hid_t space = H5Dget_space(dataset);
    bool is_integer = H5Tget_class(type) == H5T_INTEGER && H5Tget_size(type) <= 8;
    size_t type_size = H5Tget_size(type);
    int found_rank = H5Sget_simple_extent_ndims(space);
    if (found_rank == rank) {
        H5Sget_simple_extent_dims(space, shape, NULL);
    }
    H5Sclose(space);
    H5Tclose(type);
    if (!is_integer) {
        return dataset_failed(file, name, "another type", "integers of at most 64 bits");
    }
    if (found_rank != rank) {
        return tt_error_set(file->error, TT_INVALID_INPUT,
                            "%s: %s: found %d dimensions, expected %d", file->path, name,
                            found_rank, rank);
    }
    if (shape[0] > INT32_MAX || shape[1] > INT32_MAX) {
        return tt_error_set(file->error, TT_INVALID_INPUT,
                            "%s: %s: found [%llu, %llu], expected at most %d of each", file->path,
                            name, (unsigned long long)shape[0], (unsigned long long)shape[1],
                            INT32_MAX);
    }
    return check_storage(file, name, dataset, rank, shape, type_size);
}

/* Called by HDF5 before it follows a link into another file. */
static herr_t refuse_link(const char *parent_file, const char *parent_group, const char *child_file,
                          const char *child_object, unsigned *access_flags, hid_t access,
                          void *refused)
{
    (void)parent_file, (void)parent_group, (void)child_file, (void)child_object;
    (void)access_flags, (void)access;
    *(bool *)refused = true;
    return -1;
}

static tt_status open_dataset(shard_file *file, const char *name, hid_t *dataset)
{
    htri_t exists = H5Lexists(file->file, name, H5P_DEFAULT);
    if (exists < 0) {
        return tt_shard_hdf5_failed(file->path, name, file->error);
    }
    if (exists == 0) {
        return dataset_failed(file, name, "no such dataset", "one");
    }
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    H5Pset_chunk_cache(access, 12421, CACHE_BYTES, H5D_CHUNK_CACHE_W0_DEFAULT);
    bool refused = false;
    H5Pset_elink_cb(access, refuse_link, &refused);
    *dataset = H5Dopen2(file->file, name, access);
    tt_status status = TT_OK;
    if (refused) {
        status = dataset_failed(file, name, "a link to another file", "a dataset in this one");
    } else if (*dataset < 0) {
        status = tt_shard_hdf5_failed(file->path, name, file->error);
    }
    H5Pclose(access);
    return status;
}

/* The shape of one dataset of `rank` dimensions; `shape`[1] is 1 for a single one. */
static tt_status inspect_dataset(shard_file *file, const char *name, int rank, hsize_t shape[2])
{
    hid_t dataset = H5I_INVALID_HID;
    TT_TRY(open_dataset(file, name, &dataset));
    shape[0] = shape[1] = 1;
    tt_status status = check_place(file, name, dataset);
    if (status == TT_OK) {
        status = check_dataset(file, name, dataset, rank, shape);
    }
    H5Dclose(dataset);
    return status;
}

/* Checks that a dataset has the shape that the ones before it, or the attributes, call for. */
static tt_status match_dataset(shard_file *file, const char *name, int rank, int64_t width)
{
    hsize_t shape[2];
    TT_TRY(inspect_dataset(file, name, rank, shape));
    if ((int64_t)shape[0] != file->info.rows) {
        return tt_error_set(file->error, TT_INVALID_INPUT, "%s: %s: found %lld rows, expected %lld",
                            file->path, name, (long long)shape[0], (long long)file->info.rows);
    }
    if ((int64_t)shape[1] != width) {
        return tt_error_set(file->error, TT_INVALID_INPUT,
                            "%s: %s: found rows of %lld values, expected %lld", file->path, name,
                            (long long)shape[1], (long long)width);
    }
    return TT_OK;
}

/* For a file without attributes the first dataset of a kind says what the others must have. */
static tt_status infer_shape(shard_file *file)
{
    tt_shard_info *info = &file->info;
    hsize_t ids[2], positions[2];
    TT_TRY(inspect_dataset(file, TT_SHARD_INPUT_IDS, 2, ids));
    TT_TRY(inspect_dataset(file, TT_SHARD_MASKED_POSITIONS, 2, positions));
    info->rows = (int64_t)ids[0];
    info->sequence_length = (int)ids[1];
    info->max_predictions = (int)positions[1];
    info->special = (tt_special_ids){-1, -1, -1, -1, -1};
    if (info->sequence_length < 1 || info->max_predictions < 1) {
        return tt_error_set(file->error, TT_INVALID_INPUT,
                            "%s: found rows of %d tokens and %d predictions, expected at least 1",
                            file->path, info->sequence_length, info->max_predictions);
    }
    return TT_OK;
}

static tt_status refuse_dataset(shard_file *file, const char *name)
{
    if (H5Lexists(file->file, name, H5P_DEFAULT) > 0) {
        return dataset_failed(file, name, "a dataset of the other kind of masking", "none");
    }
    return TT_OK;
}

static tt_status inspect(shard_file *file)
{
    tt_shard_info *info = &file->info;
    if (H5Aexists(file->file, TT_SHARD_VERSION_ATTRIBUTE) > 0) {
        TT_TRY(read_attributes(file));
    } else {
        TT_TRY(infer_shape(file));
    }
    if (info->rows == 0) {
        return tt_error_set(file->error, TT_INVALID_INPUT,
                            "%s: the shard is empty, expected at least one row", file->path);
    }
    int64_t length = info->sequence_length;
    TT_TRY(match_dataset(file, TT_SHARD_INPUT_IDS, 2, length));
    TT_TRY(match_dataset(file, TT_SHARD_INPUT_MASK, 2, length));
    TT_TRY(match_dataset(file, TT_SHARD_SEGMENT_IDS, 2, length));
    TT_TRY(match_dataset(file, TT_SHARD_LABELS, 1, 1));
    if (info->masking == TT_MASKING_DYNAMIC) {
        TT_TRY(refuse_dataset(file, TT_SHARD_MASKED_POSITIONS));
        TT_TRY(refuse_dataset(file, TT_SHARD_MASKED_IDS));
        return match_dataset(file, TT_SHARD_SPECIAL_TOKENS_MASK, 2, length);
    }
    TT_TRY(refuse_dataset(file, TT_SHARD_SPECIAL_TOKENS_MASK));
    TT_TRY(match_dataset(file, TT_SHARD_MASKED_POSITIONS, 2, info->max_predictions));
    return match_dataset(file, TT_SHARD_MASKED_IDS, 2, info->max_predictions);
}

tt_status tt_shard_inspect(const char *path, tt_shard_info *info, tt_error *error)
{
    shard_file file = {.path = path, .file = -1, .error = error};
    tt_shard_hdf5_lock();
    tt_status status = open_file(&file);
    if (status == TT_OK) {
        status = inspect(&file);
        H5Fclose(file.file);
    }
    tt_shard_hdf5_unlock();
    *info = file.info;
    return status;
}

tt_status tt_shard_expect(const char *path, const tt_shard_info *info,
                          const tt_shard_expectations *expectations, tt_error *error)
{
    const tt_shard_expectations *want = expectations;
    if (want->sequence_length != 0 && info->sequence_length != want->sequence_length) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: rows of %d tokens, expected sequence length %d", path,
                            info->sequence_length, want->sequence_length);
    }
    if (want->max_predictions != 0 && info->max_predictions > want->max_predictions) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: room for %d masked positions a row, expected at most %d", path,
                            info->max_predictions, want->max_predictions);
    }
    if (want->tokenizer_hash != 0 && info->tokenizer_hash != 0 &&
        info->tokenizer_hash != want->tokenizer_hash) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: shard made with another tokenizer: found hash %016llx, "
                            "expected %016llx",
                            path, (unsigned long long)info->tokenizer_hash,
                            (unsigned long long)want->tokenizer_hash);
    }
    if (want->vocabulary_size != 0 && info->vocabulary_size > want->vocabulary_size) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: made for a vocabulary of %d ids, expected at most %d", path,
                            info->vocabulary_size, want->vocabulary_size);
    }
    return TT_OK;
}

/* Where the values of a dataset go; one of the two arrays is NULL. */
typedef struct {
    const char *name;
    int rank;
    int64_t width;
    int64_t limit; /* values lie in [0, limit) */
    int32_t *wide;
    uint8_t *narrow;
} column;

static tt_status value_failed(shard_file *file, const column *column, int64_t index, int64_t found)
{
    long long row = index / column->width, place = index % column->width;
    if (column->rank == 1) {
        return tt_error_set(file->error, TT_INVALID_INPUT,
                            "%s: %s: row %lld: found %lld, expected 0 to %lld", file->path,
                            column->name, row, (long long)found, (long long)column->limit - 1);
    }
    return tt_error_set(file->error, TT_INVALID_INPUT,
                        "%s: %s: row %lld, place %lld: found %lld, expected 0 to %lld", file->path,
                        column->name, row, place, (long long)found, (long long)column->limit - 1);
}

static tt_status keep_values(shard_file *file, const column *column, int64_t first,
                             const int64_t *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (values[i] < 0 || values[i] >= column->limit) {
            return value_failed(file, column, first + i, values[i]);
        }
    }
    if (column->wide != NULL) {
        for (int64_t i = 0; i < count; i++) {
            column->wide[first + i] = (int32_t)values[i];
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            column->narrow[first + i] = (uint8_t)values[i];
        }
    }
    return TT_OK;
}

/* Rows to read at once: about a block's worth, and whole bands of chunks where that is possible. */
static int64_t block_rows(hid_t dataset, const column *column)
{
    int64_t rows = BLOCK_BYTES / (8 * column->width);
    rows = rows > 0 ? rows : 1;
    hsize_t shape[2] = {1, 1}, chunk[2];
    chunk_extent(dataset, column->rank, shape, chunk);
    int64_t band = (int64_t)chunk[0];
    return band > 0 && band <= rows ? rows / band * band : rows;
}

static tt_status read_blocks(shard_file *file, hid_t dataset, const column *column)
{
    int64_t rows = file->info.rows, step = block_rows(dataset, column);
    step = step < rows ? step : rows;
    int64_t *values = malloc((size_t)(step * column->width) * sizeof *values);
    if (values == NULL) {
        return tt_error_set(file->error, TT_OUT_OF_MEMORY, "%s: %s: no memory for %lld rows",
                            file->path, column->name, (long long)step);
    }
    hid_t space = H5Dget_space(dataset);
    tt_status status = TT_OK;
    for (int64_t first = 0; first < rows && status == TT_OK; first += step) {
        int64_t count = step < rows - first ? step : rows - first;
        hsize_t start[2] = {(hsize_t)first, 0}, size[2] = {(hsize_t)count, (hsize_t)column->width};
        hid_t block = H5Screate_simple(column->rank, size, NULL);
        H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, size, NULL);
        if (H5Dread(dataset, H5T_NATIVE_INT64, block, space, H5P_DEFAULT, values) < 0) {
            status = tt_shard_hdf5_failed(file->path, column->name, file->error);
        } else {
            status =
                keep_values(file, column, first * column->width, values, count * column->width);
        }
        H5Sclose(block);
    }
    H5Sclose(space);
    free(values);
    return status;
}

static tt_status read_column(shard_file *file, const column *column)
{
    hid_t dataset = H5I_INVALID_HID;
    TT_TRY(open_dataset(file, column->name, &dataset));
    tt_status status = read_blocks(file, dataset, column);
    H5Dclose(dataset);
    return status;
}

static tt_status allocate(shard_file *file, tt_shard *shard)
{
    size_t rows = (size_t)shard->info.rows + 1; /* one to spare, so that no piece is empty */
    size_t tokens = rows * (size_t)shard->info.sequence_length;
    size_t predictions = rows * (size_t)shard->info.max_predictions;
    bool dynamic = shard->info.masking == TT_MASKING_DYNAMIC;
    shard->input_ids = malloc(tokens * sizeof *shard->input_ids);
    shard->attention_mask = malloc(tokens);
    shard->segment_ids = malloc(tokens);
    shard->next_sentence_labels = malloc(rows);
    bool enough = shard->input_ids != NULL && shard->attention_mask != NULL &&
                  shard->segment_ids != NULL && shard->next_sentence_labels != NULL;
    if (dynamic) {
        shard->special_tokens_mask = malloc(tokens);
        enough = enough && shard->special_tokens_mask != NULL;
    } else {
        shard->masked_positions = malloc(predictions * sizeof *shard->masked_positions);
        shard->masked_ids = malloc(predictions * sizeof *shard->masked_ids);
        enough = enough && shard->masked_positions != NULL && shard->masked_ids != NULL;
    }
    if (!enough) {
        return tt_error_set(file->error, TT_OUT_OF_MEMORY, "%s: no memory for %lld rows",
                            file->path, (long long)shard->info.rows);
    }
    return TT_OK;
}

static tt_status read_columns(shard_file *file, tt_shard *shard, int64_t vocabulary)
{
    int64_t length = shard->info.sequence_length, room = shard->info.max_predictions;
    const column columns[] = {
        {TT_SHARD_INPUT_IDS, 2, length, vocabulary, shard->input_ids, NULL},
        {TT_SHARD_INPUT_MASK, 2, length, 2, NULL, shard->attention_mask},
        {TT_SHARD_SEGMENT_IDS, 2, length, 2, NULL, shard->segment_ids},
        {TT_SHARD_LABELS, 1, 1, 2, NULL, shard->next_sentence_labels},
        {TT_SHARD_SPECIAL_TOKENS_MASK, 2, length, 4, NULL, shard->special_tokens_mask},
        {TT_SHARD_MASKED_POSITIONS, 2, room, length, shard->masked_positions, NULL},
        {TT_SHARD_MASKED_IDS, 2, room, vocabulary, shard->masked_ids, NULL},
    };
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        if (columns[i].wide != NULL || columns[i].narrow != NULL) {
            TT_TRY(read_column(file, &columns[i]));
        }
    }
    return TT_OK;
}

/* The number of tokens of a row: the ones at the start of its mask, which nothing may follow. */
static tt_status check_mask(shard_file *file, const tt_shard *shard, int64_t row, int *length)
{
    const uint8_t *mask = shard->attention_mask + row * shard->info.sequence_length;
    int tokens = 0;
    while (tokens < shard->info.sequence_length && mask[tokens] != 0) {
        tokens++;
    }
    for (int i = tokens; i < shard->info.sequence_length; i++) {
        if (mask[i] != 0) {
            return tt_error_set(file->error, TT_INVALID_INPUT,
                                "%s: %s: row %lld, place %d: found 1 after a 0, expected ones "
                                "followed by zeros",
                                file->path, TT_SHARD_INPUT_MASK, (long long)row, i);
        }
    }
    if (tokens == 0) {
        return tt_error_set(file->error, TT_INVALID_INPUT,
                            "%s: %s: row %lld: found no token, expected at least one", file->path,
                            TT_SHARD_INPUT_MASK, (long long)row);
    }
    *length = tokens;
    return TT_OK;
}

static tt_status check_end(shard_file *file, const char *name, const int32_t *list, int64_t row,
                           int count, int room)
{
    for (int i = count; i < room; i++) {
        if (list[i] != 0) {
            return tt_error_set(file->error, TT_INVALID_INPUT,
                                "%s: %s: row %lld, place %d: found %d, expected 0 after the "
                                "list's end",
                                file->path, name, (long long)row, i, list[i]);
        }
    }
    return TT_OK;
}

static tt_status check_predictions(shard_file *file, const tt_shard *shard, int64_t row, int length)
{
    int room = shard->info.max_predictions;
    const int32_t *positions = shard->masked_positions + row * room;
    int count = 0;
    while (count < room && positions[count] != 0) {
        int low = count > 0 ? positions[count - 1] + 1 : 1;
        if (positions[count] < low || positions[count] >= length) {
            return tt_error_set(file->error, TT_INVALID_INPUT,
                                "%s: %s: row %lld, place %d: found %d, expected %d to %d",
                                file->path, TT_SHARD_MASKED_POSITIONS, (long long)row, count,
                                positions[count], low, length - 1);
        }
        count++;
    }
    TT_TRY(check_end(file, TT_SHARD_MASKED_POSITIONS, positions, row, count, room));
    return check_end(file, TT_SHARD_MASKED_IDS, shard->masked_ids + row * room, row, count, room);
}

static tt_status check_rows(shard_file *file, const tt_shard *shard)
{
    for (int64_t row = 0; row < shard->info.rows; row++) {
        int length = 0;
        TT_TRY(check_mask(file, shard, row, &length));
        if (shard->info.masking == TT_MASKING_STATIC) {
            TT_TRY(check_predictions(file, shard, row, length));
        }
    }
    return TT_OK;
}

static tt_status read_rows(shard_file *file, const tt_shard_expectations *expectations,
                           tt_shard *shard)
{
    TT_TRY(inspect(file));
    TT_TRY(tt_shard_expect(file->path, &file->info, expectations, file->error));
    shard->info = file->info;
    TT_TRY(allocate(file, shard));
    int64_t vocabulary = file->info.vocabulary_size;
    if (vocabulary == 0) {
        vocabulary = expectations->vocabulary_size;
    }
    TT_TRY(read_columns(file, shard, vocabulary > 0 ? vocabulary : INT32_MAX));
    return check_rows(file, shard);
}

tt_status tt_shard_read(const char *path, const tt_shard_expectations *expectations,
                        tt_shard **shard, tt_error *error)
{
    static const tt_shard_expectations anything;
    *shard = NULL;
    tt_shard *created = calloc(1, sizeof *created);
    if (created == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", path);
    }
    shard_file file = {.path = path, .file = -1, .error = error};
    tt_shard_hdf5_lock();
    tt_status status = open_file(&file);
    if (status == TT_OK) {
        status = read_rows(&file, expectations != NULL ? expectations : &anything, created);
        H5Fclose(file.file);
    }
    tt_shard_hdf5_unlock();
    if (status != TT_OK) {
        tt_shard_free(&created);
        return status;
    }
    *shard = created;
    return TT_OK;
}

void tt_shard_free(tt_shard **shard)
{
    if (*shard != NULL) {
        free((*shard)->input_ids);
        free((*shard)->attention_mask);
        free((*shard)->segment_ids);
        free((*shard)->special_tokens_mask);
        free((*shard)->masked_positions);
        free((*shard)->masked_ids);
        free((*shard)->next_sentence_labels);
        free(*shard);
        *shard = NULL;
    }
}

#include "data/byte_source.h"

#include <bzlib.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { INPUT_SIZE = 1 << 18 };

struct tt_byte_source {
    char *path;
    FILE *file;
    int64_t size, position; /* of the file; position: bytes handed on or decompressed */
    bool compressed, in_member, at_end;
    int64_t members;
    bz_stream stream;
    char *input; /* [INPUT_SIZE], compressed files only */
};

static tt_status inspect_file(tt_byte_source *source, tt_error *error)
{
    struct stat information;
    if (fstat(fileno(source->file), &information) != 0) {
        return tt_error_set(error, TT_IO_FAILED, "%s: %s", source->path, strerror(errno));
    }
    if (!S_ISREG(information.st_mode)) { /* texts are read more than once */
        return tt_error_set(error, TT_INVALID_INPUT, "%s: expected a file, found a %s",
                            source->path,
                            S_ISDIR(information.st_mode) ? "folder" : "pipe or device");
    }
    source->size = information.st_size;
    char magic[4] = {0};
    size_t count = fread(magic, 1, sizeof magic, source->file);
    source->compressed =
        count == sizeof magic && memcmp(magic, "BZh", 3) == 0 && magic[3] >= '1' && magic[3] <= '9';
    if (ferror(source->file) || fseeko(source->file, 0, SEEK_SET) != 0) {
        return tt_error_set(error, TT_IO_FAILED, "%s: %s", source->path, strerror(errno));
    }
    if (source->compressed) {
        source->input = malloc(INPUT_SIZE);
        if (source->input == NULL) {
            return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory", source->path);
        }
    }
    return TT_OK;
}

tt_status tt_byte_source_open(const char *path, tt_byte_source **source, tt_error *error)
{
    *source = calloc(1, sizeof **source);
    char *copy = strdup(path);
    if (*source == NULL || copy == NULL) {
        free(*source);
        free(copy);
        *source = NULL;
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory", path);
    }
    (*source)->path = copy;
    (*source)->file = fopen(path, "rb");
    tt_status status;
    if ((*source)->file == NULL) {
        status = tt_error_set(error, TT_IO_FAILED, "%s: %s", path, strerror(errno));
    } else {
        status = inspect_file(*source, error);
    }
    if (status != TT_OK) {
        tt_byte_source_close(source);
    }
    return status;
}

static tt_status read_file(tt_byte_source *source, char *bytes, size_t capacity, size_t *count,
                           tt_error *error)
{
    *count = fread(bytes, 1, capacity, source->file);
    if (ferror(source->file)) {
        return tt_error_set(error, TT_IO_FAILED, "%s: byte %lld: %s", source->path,
                            (long long)source->position, strerror(errno));
    }
    return TT_OK;
}

/* Makes sure that compressed bytes lie ready, unless the file is at its end. */
static tt_status fill_input(tt_byte_source *source, tt_error *error)
{
    if (source->stream.avail_in > 0) {
        return TT_OK;
    }
    size_t count = 0;
    TT_TRY(read_file(source, source->input, INPUT_SIZE, &count, error));
    source->stream.next_in = source->input;
    source->stream.avail_in = (unsigned int)count;
    return TT_OK;
}

static tt_status start_member(tt_byte_source *source, tt_error *error)
{
    char *input = source->stream.next_in;
    unsigned int available = source->stream.avail_in;
    source->stream = (bz_stream){0};
    if (BZ2_bzDecompressInit(&source->stream, 0, 0) != BZ_OK) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory to decompress", source->path);
    }
    source->stream.next_in = input;
    source->stream.avail_in = available;
    source->in_member = true;
    source->members++;
    return TT_OK;
}

static tt_status damaged(const tt_byte_source *source, int code, tt_error *error)
{
    const char *reason = "damaged bzip2 data";
    if (code == BZ_DATA_ERROR_MAGIC) {
        reason = source->members > 1 ? "expected the end or another bzip2 member, found other bytes"
                                     : "expected bzip2 data, found other bytes";
    } else if (code == BZ_MEM_ERROR) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory to decompress", source->path);
    }
    return tt_error_set(error, TT_INVALID_INPUT, "%s: near byte %lld of %lld: %s", source->path,
                        (long long)source->position, (long long)source->size, reason);
}

/* One step of decompression; `*count` may be 0 without being at the end. */
static tt_status decompress(tt_byte_source *source, char *bytes, size_t capacity, size_t *count,
                            tt_error *error)
{
    TT_TRY(fill_input(source, error));
    bz_stream *stream = &source->stream;
    if (stream->avail_in == 0) {
        source->at_end = true;
        if (source->in_member) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: byte %lld: the file ends inside bzip2 data; it is cut short",
                                source->path, (long long)source->position);
        }
        return TT_OK;
    }
    if (!source->in_member) {
        TT_TRY(start_member(source, error));
    }
    unsigned int before = stream->avail_in;
    stream->next_out = bytes;
    stream->avail_out = capacity > 1 << 30 ? 1U << 30 : (unsigned int)capacity;
    unsigned int room = stream->avail_out;
    int code = BZ2_bzDecompress(stream);
    source->position += before - stream->avail_in;
    *count = room - stream->avail_out;
    if (code == BZ_STREAM_END) {
        BZ2_bzDecompressEnd(stream);
        source->in_member = false;
    } else if (code != BZ_OK) {
        return damaged(source, code, error);
    }
    return TT_OK;
}

tt_status tt_byte_source_read(tt_byte_source *source, char *bytes, size_t capacity, size_t *count,
                              tt_error *error)
{
    *count = 0;
    if (!source->compressed) {
        TT_TRY(read_file(source, bytes, capacity, count, error));
        source->position += (int64_t)*count;
        return TT_OK;
    }
    while (*count == 0 && !source->at_end) {
        TT_TRY(decompress(source, bytes, capacity, count, error));
    }
    return TT_OK;
}

int64_t tt_byte_source_position(const tt_byte_source *source)
{
    return source->position;
}

int64_t tt_byte_source_size(const tt_byte_source *source)
{
    return source->size;
}

const char *tt_byte_source_path(const tt_byte_source *source)
{
    return source->path;
}

void tt_byte_source_close(tt_byte_source **source)
{
    if (*source == NULL) {
        return;
    }
    if ((*source)->in_member) {
        BZ2_bzDecompressEnd(&(*source)->stream);
    }
    if ((*source)->file != NULL) {
        fclose((*source)->file);
    }
    free((*source)->input);
    free((*source)->path);
    free(*source);
    *source = NULL;
}

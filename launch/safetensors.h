/* safetensors files: a JSON header that says name, type, shape and place of every tensor, then
 * their bytes, row-major and little-endian. This machine's byte order must be little-endian as
 * well.
 *
 * The reader believes nothing: the header's length against the file's, types, shapes and offsets
 * against each other, no byte of the data unused or used twice, no name twice. */
#ifndef TT_LAUNCH_SAFETENSORS_H
#define TT_LAUNCH_SAFETENSORS_H

#include "launch/storage.h"

#include <stdint.h>

enum {
    TT_SAFETENSORS_NAME = 256, /* bytes of a name, the final 0 included */
    TT_SAFETENSORS_DIMENSIONS = 8,
};

typedef enum {
    TT_SAFETENSORS_F64,
    TT_SAFETENSORS_I64,
    TT_SAFETENSORS_F32,
    TT_SAFETENSORS_I32,
    TT_SAFETENSORS_F16,
    TT_SAFETENSORS_BF16,
    TT_SAFETENSORS_I16,
    TT_SAFETENSORS_I8,
    TT_SAFETENSORS_U8,
    TT_SAFETENSORS_BOOL,
    TT_SAFETENSORS_TYPES,
} tt_safetensors_type;

typedef struct {
    char name[TT_SAFETENSORS_NAME];
    tt_safetensors_type type;
    int dimensions; /* 0: one number */
    int64_t shape[TT_SAFETENSORS_DIMENSIONS];
    uint64_t begin, end; /* bytes from the start of the data */
} tt_safetensors_tensor;

/* "F32", "I64", ... as the format writes it. */
const char *tt_safetensors_type_name(tt_safetensors_type type);
int tt_safetensors_type_size(tt_safetensors_type type);

/* A file being written. Its size and hash stand in `file` once it is finished. */
typedef struct {
    tt_storage_file file;
    uint64_t data_size;    /* what the header promises */
    uint64_t header_bytes; /* length field and header */
} tt_safetensors_writer;

/* Lays the tensors out in the order given, sets their begin and end, and writes the header with
 * {"format": "pt"}. Wider types must come first, so that every tensor is aligned to its type; names
 * must differ. On failure nothing stays open. */
tt_status tt_safetensors_create(const char *path, tt_safetensors_tensor *tensors, int count,
                                tt_safetensors_writer *writer, tt_error *error);
/* The next bytes of the data, in the order of the tensors, in pieces of any size. */
tt_status tt_safetensors_write(tt_safetensors_writer *writer, const void *data, size_t bytes,
                               tt_error *error);
/* Syncs and closes; refuses when the data are not as long as the header promises. */
tt_status tt_safetensors_finish(tt_safetensors_writer *writer, tt_error *error);
/* Closes after a failure. */
void tt_safetensors_abandon(tt_safetensors_writer *writer);

/* A file being read. */
typedef struct {
    int descriptor;
    char *path;
    tt_safetensors_tensor *tensors; /* in the order of the data */
    int count;
    uint64_t data_start; /* bytes from the start of the file */
} tt_safetensors;

tt_status tt_safetensors_open(const char *path, tt_safetensors **file, tt_error *error);
/* NULL when there is none of that name. */
const tt_safetensors_tensor *tt_safetensors_find(const tt_safetensors *file, const char *name);
/* Reads bytes [offset, offset + bytes) of a tensor. */
tt_status tt_safetensors_read(const tt_safetensors *file, const tt_safetensors_tensor *tensor,
                              uint64_t offset, void *buffer, size_t bytes, tt_error *error);
/* Frees all and sets the pointer to NULL; NULL is fine. */
void tt_safetensors_close(tt_safetensors **file);

/* Reads and checks a header for `data_size` bytes of data; free *tensors with free(). `name` begins
 * errors. */
tt_status tt_safetensors_parse(const char *name, const char *header, size_t length,
                               uint64_t data_size, tt_safetensors_tensor **tensors, int *count,
                               tt_error *error);

#endif

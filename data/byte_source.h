/* A file read from front to back, decompressed on the way where it is bzip2 (one or several members
 * one after the other, as in multistream dumps). */
#ifndef TT_DATA_BYTE_SOURCE_H
#define TT_DATA_BYTE_SOURCE_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct tt_byte_source tt_byte_source;

/* Opens a file; bzip2 is told by its first bytes, not by its name. */
tt_status tt_byte_source_open(const char *path, tt_byte_source **source, tt_error *error);
/* Reads up to `capacity` bytes; `*count` is 0 at the end only. A bzip2 file that is cut short or
 * damaged gives an error that names the byte of the file where reading stopped. */
tt_status tt_byte_source_read(tt_byte_source *source, char *bytes, size_t capacity, size_t *count,
                              tt_error *error);
/* Bytes of the file used so far (compressed ones, if it is compressed), and its size. */
int64_t tt_byte_source_position(const tt_byte_source *source);
int64_t tt_byte_source_size(const tt_byte_source *source);
const char *tt_byte_source_path(const tt_byte_source *source);
/* Sets the pointer to NULL; NULL inside is fine. */
void tt_byte_source_close(tt_byte_source **source);

#endif

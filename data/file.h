/* Whole files in memory, and files that appear complete or not at all. */
#ifndef TT_DATA_FILE_H
#define TT_DATA_FILE_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>

/* Reads a whole file; the caller frees `*bytes`. A file of more than `limit` bytes is refused. */
tt_status tt_file_read(const char *path, size_t limit, void **bytes, size_t *size, tt_error *error);

/* Writes a whole file under a temporary name beside `path`, syncs it, and renames it. */
tt_status tt_file_write(const char *path, const void *bytes, size_t size, tt_error *error);

#endif

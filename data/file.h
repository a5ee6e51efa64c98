/* Whole files in memory, and files that appear complete or not at all. */
#ifndef TT_DATA_FILE_H
#define TT_DATA_FILE_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Reads a whole file; the caller frees `*bytes`. A file of more than `limit` bytes is refused. */
tt_status tt_file_read(const char *path, size_t limit, void **bytes, size_t *size, tt_error *error);

/* Makes a folder and those above it; one that is there is fine. */
tt_status tt_file_make_folder(const char *path, tt_error *error);

/* Writes a whole file under a temporary name beside `path`, syncs it, and renames it; makes the
 * folder where there is none. A device or a pipe is written to directly. */
tt_status tt_file_write(const char *path, const void *bytes, size_t size, tt_error *error);

/* The same for a file that is written as a stream: nothing stands at `path` before the commit. */
typedef struct tt_file_output tt_file_output;
tt_status tt_file_create(const char *path, tt_file_output **output, tt_error *error);
FILE *tt_file_stream(const tt_file_output *output);
/* Whether writing has failed so far; to be called now and then, as the reason is forgotten later.
 */
tt_status tt_file_check(const tt_file_output *output, tt_error *error);
/* Checks that everything was written, syncs and renames. Frees the output and sets the pointer to
 * NULL in any case; on an error no file is left. */
tt_status tt_file_commit(tt_file_output **output, tt_error *error);
/* Frees the output and removes what was written; NULL inside is fine. */
void tt_file_abandon(tt_file_output **output);

#endif

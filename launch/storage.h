/* Files that a user keeps: every write, sync and close is checked, and what stands under the final
 * name is always whole. */
#ifndef TT_LAUNCH_STORAGE_H
#define TT_LAUNCH_STORAGE_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A file being written from front to back, with size and xxh64 of what was written so far. */
typedef struct {
    int descriptor; /* -1: not open */
    const char *path;
    uint64_t size;
    uint64_t hash; /* set by tt_storage_finish */
    struct XXH64_state_s *state;
} tt_storage_file;

/* Creates or empties `path`, which must stay valid while the file is open. */
tt_status tt_storage_create(const char *path, tt_storage_file *file, tt_error *error);
tt_status tt_storage_write(tt_storage_file *file, const void *data, size_t bytes, tt_error *error);
/* Syncs and closes. */
tt_status tt_storage_finish(tt_storage_file *file, tt_error *error);
/* Closes without a word, for use after a failure; a file that is not open is fine. */
void tt_storage_abandon(tt_storage_file *file);

/* Size and xxh64 of a file. */
tt_status tt_storage_hash(const char *path, uint64_t *size, uint64_t *hash, tt_error *error);

/* Makes renames in a folder last through a power cut. */
tt_status tt_storage_sync_folder(const char *path, tt_error *error);
/* Removes a file, or a folder with all that is in it. Links are removed, not followed. */
tt_status tt_storage_remove(const char *path, tt_error *error);

#endif

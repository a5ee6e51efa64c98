#include "launch/storage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { TT_STORAGE_BLOCK = 1 << 18 };

static tt_status failed(const char *path, const char *what, tt_error *error)
{
    return tt_error_set(error, TT_IO_FAILED, "%s: %s: %s", path, what, strerror(errno));
}

/* Fills `buffer` from the descriptor's position; *got is less than `bytes` at the end of the file.
 */
static bool read_block(int descriptor, void *buffer, size_t bytes, size_t *got)
{
    *got = 0;
    while (*got < bytes) {
        ssize_t count = read(descriptor, (char *)buffer + *got, bytes - *got);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            return false;
        }
        if (count == 0) {
            break;
        }
        *got += (size_t)count;
    }
    return true;
}

tt_status tt_storage_create(const char *path, tt_storage_file *file, tt_error *error)
{
    *file = (tt_storage_file){.descriptor = -1, .path = path};
    file->state = XXH64_createState();
    if (file->state == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", path);
    }
    XXH64_reset(file->state, 0);
    file->descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file->descriptor < 0) {
        tt_status status = failed(path, "cannot be created", error);
        tt_storage_abandon(file);
        return status;
    }
    return TT_OK;
}

tt_status tt_storage_write(tt_storage_file *file, const void *data, size_t bytes, tt_error *error)
{
    const char *next = data;
    size_t left = bytes;
    while (left > 0) {
        ssize_t count = write(file->descriptor, next, left);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            return failed(file->path, "cannot be written", error);
        }
        next += count;
        left -= (size_t)count;
    }
    if (bytes > 0) {
        XXH64_update(file->state, data, bytes);
    }
    file->size += bytes;
    return TT_OK;
}

tt_status tt_storage_finish(tt_storage_file *file, tt_error *error)
{
    tt_status status = TT_OK;
    if (fsync(file->descriptor) != 0) {
        status = failed(file->path, "cannot be synced", error);
    }
    if (close(file->descriptor) != 0 && status == TT_OK) {
        status = failed(file->path, "cannot be closed", error);
    }
    file->descriptor = -1;
    file->hash = XXH64_digest(file->state);
    tt_storage_abandon(file);
    return status;
}

void tt_storage_abandon(tt_storage_file *file)
{
    if (file->descriptor >= 0) {
        close(file->descriptor);
    }
    XXH64_freeState(file->state);
    file->descriptor = -1;
    file->state = NULL;
}

static tt_status hash_open(int descriptor, const char *path, XXH64_state_t *state, void *block,
                           uint64_t *size, uint64_t *hash, tt_error *error)
{
    XXH64_reset(state, 0);
    *size = 0;
    size_t got;
    do {
        if (!read_block(descriptor, block, TT_STORAGE_BLOCK, &got)) {
            return failed(path, "cannot be read", error);
        }
        XXH64_update(state, block, got);
        *size += got;
    } while (got == TT_STORAGE_BLOCK);
    *hash = XXH64_digest(state);
    return TT_OK;
}

tt_status tt_storage_hash(const char *path, uint64_t *size, uint64_t *hash, tt_error *error)
{
    int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) {
        return failed(path, "cannot be opened", error);
    }
    struct stat information;
    if (fstat(descriptor, &information) != 0 || !S_ISREG(information.st_mode)) {
        close(descriptor);
        return tt_error_set(error, TT_INVALID_INPUT, "%s: expected a file, found something else",
                            path);
    }
    XXH64_state_t *state = XXH64_createState();
    void *block = malloc(TT_STORAGE_BLOCK);
    tt_status status = state != NULL && block != NULL
                           ? hash_open(descriptor, path, state, block, size, hash, error)
                           : tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", path);
    free(block);
    XXH64_freeState(state);
    close(descriptor);
    return status;
}

tt_status tt_storage_sync_folder(const char *path, tt_error *error)
{
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) {
        return failed(path, "cannot be opened", error);
    }
    /* Some file systems do not sync folders and say so; their renames are as durable as they get.
     */
    tt_status status = TT_OK;
    if (fsync(descriptor) != 0 && errno != EINVAL && errno != EROFS) {
        status = failed(path, "cannot be synced", error);
    }
    close(descriptor);
    return status;
}

/* Removes all that the folder holds, and closes it. Links are removed, not followed. */
static bool empty_folder(int descriptor)
{
    DIR *folder = fdopendir(descriptor);
    if (folder == NULL) {
        close(descriptor);
        return false;
    }
    bool empty = true;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
            unlinkat(descriptor, name, 0) == 0) {
            continue;
        }
        int inner = openat(descriptor, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        empty = inner >= 0 && empty_folder(inner) &&
                unlinkat(descriptor, name, AT_REMOVEDIR) == 0 && empty;
    }
    closedir(folder);
    return empty;
}

tt_status tt_storage_remove(const char *path, tt_error *error)
{
    if (unlink(path) == 0) {
        return TT_OK;
    }
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0) {
        return failed(path, "cannot be opened", error);
    }
    if (!empty_folder(descriptor)) {
        return failed(path, "cannot be emptied", error);
    }
    return rmdir(path) == 0 ? TT_OK : failed(path, "cannot be removed", error);
}

#include "data/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tt_status system_error(const char *path, tt_error *error)
{
    return tt_error_set(error, TT_IO_FAILED, "%s: %s", path, strerror(errno));
}

static tt_status read_descriptor(int descriptor, const char *path, size_t size, char *bytes,
                                 tt_error *error)
{
    size_t done = 0;
    while (done < size) {
        ssize_t got = read(descriptor, bytes + done, size - done);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return system_error(path, error);
        }
        if (got == 0) {
            return tt_error_set(error, TT_IO_FAILED, "%s: expected %zu bytes, found %zu", path,
                                size, done);
        }
        done += (size_t)got;
    }
    return TT_OK;
}

static tt_status read_open(int descriptor, const char *path, size_t limit, void **bytes,
                           size_t *size, tt_error *error)
{
    struct stat information;
    if (fstat(descriptor, &information) != 0) {
        return system_error(path, error);
    }
    if (!S_ISREG(information.st_mode)) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: expected a file, found something else",
                            path);
    }
    if ((size_t)information.st_size > limit) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: expected at most %zu bytes, found %zu",
                            path, limit, (size_t)information.st_size);
    }
    *size = (size_t)information.st_size;
    *bytes = malloc(*size + 1);
    if (*bytes == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for %zu bytes", path, *size);
    }
    tt_status status = read_descriptor(descriptor, path, *size, *bytes, error);
    if (status != TT_OK) {
        free(*bytes);
        *bytes = NULL;
    }
    return status;
}

tt_status tt_file_read(const char *path, size_t limit, void **bytes, size_t *size, tt_error *error)
{
    *bytes = NULL;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return system_error(path, error);
    }
    tt_status status = read_open(descriptor, path, limit, bytes, size, error);
    close(descriptor);
    return status;
}

static bool write_all(int descriptor, const char *bytes, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t put = write(descriptor, bytes + done, size - done);
        if (put < 0 && errno != EINTR) {
            return false;
        }
        done += put > 0 ? (size_t)put : 0;
    }
    return fsync(descriptor) == 0;
}

tt_status tt_file_write(const char *path, const void *bytes, size_t size, tt_error *error)
{
    char temporary[4096];
    if (snprintf(temporary, sizeof temporary, "%s.tmp%ld", path, (long)getpid()) >=
        (int)sizeof temporary) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: path too long", path);
    }
    int descriptor = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0) {
        return system_error(temporary, error);
    }
    bool written = write_all(descriptor, bytes, size);
    int failure = errno;
    if (close(descriptor) != 0 && written) {
        written = false;
        failure = errno;
    }
    if (written && rename(temporary, path) == 0) {
        return TT_OK;
    }
    failure = written ? errno : failure;
    unlink(temporary);
    return tt_error_set(error, TT_IO_FAILED, "%s: %s", path, strerror(failure));
}

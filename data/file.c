#include "data/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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
    /* Without O_NONBLOCK a pipe that nobody writes to would be waited for. */
    int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) {
        return system_error(path, error);
    }
    tt_status status = read_open(descriptor, path, limit, bytes, size, error);
    close(descriptor);
    return status;
}

/* Makes the folders on the way to the first `length` bytes of `path`, these included. */
static tt_status make_folders(const char *path, size_t length, tt_error *error)
{
    char part[PATH_MAX];
    if (length == 0 || length >= sizeof part) {
        return tt_error_set(error, TT_INVALID_INPUT, "'%.200s': not a path of a folder", path);
    }
    for (size_t i = 1; i <= length; i++) {
        if (i < length && path[i] != '/') {
            continue;
        }
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            return tt_error_set(error, TT_IO_FAILED, "%s: cannot be made: %s", part,
                                strerror(errno));
        }
    }
    struct stat status;
    if (stat(part, &status) != 0 || !S_ISDIR(status.st_mode)) {
        return tt_error_set(error, TT_IO_FAILED, "%s: expected a folder, found a file", part);
    }
    return TT_OK;
}

tt_status tt_file_make_folder(const char *path, tt_error *error)
{
    return make_folders(path, strlen(path), error);
}

struct tt_file_output {
    FILE *stream;
    char *path;
    char *temporary; /* NULL: `path` is a device or a pipe and written to directly */
};

static void free_output(tt_file_output **output)
{
    free((*output)->path);
    free((*output)->temporary);
    free(*output);
    *output = NULL;
}

static bool is_special_file(const char *path)
{
    struct stat information;
    return stat(path, &information) == 0 && !S_ISREG(information.st_mode);
}

static tt_status open_output(tt_file_output *output, const char *path, tt_error *error)
{
    size_t size = strlen(path) + 32;
    bool direct = is_special_file(path);
    output->path = strdup(path);
    output->temporary = direct ? NULL : malloc(size);
    if (output->path == NULL || (output->temporary == NULL && !direct)) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory", path);
    }
    const char *name = strrchr(path, '/');
    if (!direct) {
        snprintf(output->temporary, size, "%s.tmp%ld", path, (long)getpid());
        if (name != NULL && name > path) {
            TT_TRY(make_folders(path, (size_t)(name - path), error));
        }
    }
    output->stream = fopen(direct ? path : output->temporary, "wb");
    if (output->stream == NULL) {
        return tt_error_set(error, TT_IO_FAILED, "%s: %s", path, strerror(errno));
    }
    return TT_OK;
}

tt_status tt_file_create(const char *path, tt_file_output **output, tt_error *error)
{
    *output = calloc(1, sizeof **output);
    if (*output == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory", path);
    }
    tt_status status = open_output(*output, path, error);
    if (status != TT_OK) {
        free_output(output);
    }
    return status;
}

FILE *tt_file_stream(const tt_file_output *output)
{
    return output->stream;
}

tt_status tt_file_check(const tt_file_output *output, tt_error *error)
{
    return ferror(output->stream)
               ? tt_error_set(error, TT_IO_FAILED, "%s: %s", output->path, strerror(errno))
               : TT_OK;
}

/* Why an earlier write failed is forgotten by now; one more fails for the same reason. */
static void write_in_vain(FILE *stream)
{
    clearerr(stream);
    fputc('\n', stream);
    fflush(stream);
}

/* Devices and pipes refuse to be synced. */
static bool flush_output(const tt_file_output *output)
{
    FILE *stream = output->stream;
    if (ferror(stream)) {
        write_in_vain(stream);
        return false;
    }
    return fflush(stream) == 0 && (output->temporary == NULL || fsync(fileno(stream)) == 0);
}

tt_status tt_file_commit(tt_file_output **output, tt_error *error)
{
    errno = 0;
    bool written = flush_output(*output);
    int failure = errno;
    if (fclose((*output)->stream) != 0 && written) {
        written = false;
        failure = errno;
    }
    const char *temporary = (*output)->temporary;
    if (written && temporary != NULL && rename(temporary, (*output)->path) != 0) {
        written = false;
        failure = errno;
    }
    if (!written) {
        if (temporary != NULL) {
            unlink(temporary);
        }
        tt_error_set(error, TT_IO_FAILED, "%s: %s", (*output)->path,
                     failure != 0 ? strerror(failure) : "writing failed");
    }
    free_output(output);
    return written ? TT_OK : error->status;
}

void tt_file_abandon(tt_file_output **output)
{
    if (*output != NULL) {
        fclose((*output)->stream);
        if ((*output)->temporary != NULL) {
            unlink((*output)->temporary);
        }
        free_output(output);
    }
}

tt_status tt_file_write(const char *path, const void *bytes, size_t size, tt_error *error)
{
    tt_file_output *output = NULL;
    TT_TRY(tt_file_create(path, &output, error));
    fwrite(bytes, 1, size, tt_file_stream(output));
    tt_status status = tt_file_check(output, error);
    if (status != TT_OK) {
        tt_file_abandon(&output);
        return status;
    }
    return tt_file_commit(&output, error);
}

#include "launch/event_file.h"

#include "launch/event_record.h"
#include "launch/storage.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FILE_PREFIX "events.out.tfevents."
#define FILE_SUFFIX ".ttrain"
/* TensorBoard reads every file whose name holds "tfevents"; this one is not for it yet. */
#define TEMPORARY_NAME "event_file.tmp"

enum { DEEPEST = 8 }; /* objects inside objects */

struct tt_event_file {
    FILE *stream;
    double wall_time; /* of the newest line that says one */
    char folder[PATH_MAX];
    char name[NAME_MAX + 1];
    char path[PATH_MAX];
};

static tt_status write_failed(const tt_event_file *file, tt_error *error)
{
    return tt_error_set(error, TT_IO_FAILED, "%s: cannot be written: %s", file->path,
                        strerror(errno));
}

/* --- scalars of a line --- */

static bool put_scalar(const tt_event_file *file, int64_t step, const char *tag, double value)
{
    uint8_t record[TT_EVENT_RECORD];
    size_t size = tt_event_scalar(file->wall_time, step, tag, (float)value, record);
    return fwrite(record, 1, size, file->stream) == size;
}

/* The numbers of `object`, their names behind `prefix`. */
static bool put_object(const tt_event_file *file, int64_t step, const char *prefix,
                       const json_t *object, int depth)
{
    const char *key;
    json_t *value;
    bool written = true;
    json_object_foreach((json_t *)object, key, value)
    {
        char tag[TT_EVENT_TAG];
        const char *end = json_is_object(value) ? "/" : "";
        if (snprintf(tag, sizeof tag, "%s%s%s", prefix, key, end) >= (int)sizeof tag) {
            continue;
        }
        if (json_is_object(value) && depth < DEEPEST) {
            written = written && put_object(file, step, tag, value, depth + 1);
        } else if (json_is_number(value) && strcmp(tag, "step") != 0 &&
                   strcmp(tag, "timing/unix_time") != 0) {
            written = written && put_scalar(file, step, tag, json_number_value(value));
        }
    }
    return written;
}

static bool put_line(tt_event_file *file, const char *line, size_t length)
{
    json_t *record = json_loadb(line, length, 0, NULL);
    const json_t *step = json_object_get(record, "step");
    bool written = true;
    if (json_is_integer(step)) {
        const json_t *time = json_object_get(json_object_get(record, "timing"), "unix_time");
        file->wall_time = json_is_number(time) ? json_number_value(time) : file->wall_time;
        written = put_object(file, json_integer_value(step), "", record, 0);
    }
    json_decref(record);
    return written;
}

tt_status tt_event_file_add(tt_event_file *file, const char *line, size_t length, tt_error *error)
{
    errno = 0;
    return put_line(file, line, length) && fflush(file->stream) == 0 ? TT_OK
                                                                     : write_failed(file, error);
}

/* --- the file --- */

static bool put_lines(tt_event_file *file, FILE *metrics)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    bool written = true;
    while (written && (length = getline(&line, &capacity, metrics)) >= 0) {
        written = put_line(file, line, (size_t)length);
    }
    free(line);
    return written;
}

static bool put_start(const tt_event_file *file)
{
    uint8_t record[TT_EVENT_RECORD];
    size_t size = tt_event_version(file->wall_time, record);
    bool written = fwrite(record, 1, size, file->stream) == size;
    size = tt_event_restart(file->wall_time, 0, record);
    return written && fwrite(record, 1, size, file->stream) == size;
}

static tt_status copy_metrics(tt_event_file *file, const char *metrics_path, tt_error *error)
{
    FILE *metrics = fopen(metrics_path, "re");
    if (metrics == NULL && errno != ENOENT) {
        return tt_error_set(error, TT_IO_FAILED, "%s: %s", metrics_path, strerror(errno));
    }
    errno = 0;
    bool written = put_start(file) && (metrics == NULL || put_lines(file, metrics));
    tt_status status = written ? TT_OK : write_failed(file, error);
    if (metrics != NULL && ferror(metrics) && written) {
        status = tt_error_set(error, TT_IO_FAILED, "%s: cannot be read", metrics_path);
    }
    if (metrics != NULL) {
        fclose(metrics);
    }
    return status;
}

/* The stream goes on under the final name. */
static tt_status publish(const tt_event_file *file, const char *temporary, tt_error *error)
{
    if (fflush(file->stream) != 0 || fsync(fileno(file->stream)) != 0 ||
        rename(temporary, file->path) != 0) {
        return write_failed(file, error);
    }
    return tt_storage_sync_folder(file->folder, error);
}

/* Older copies hold nothing that the new one lacks; one that cannot be removed does no harm but to
 * show twice. */
static void remove_earlier(const tt_event_file *file)
{
    DIR *folder = opendir(file->folder);
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder)) {
        const char *name = entry->d_name, *end = strrchr(name, '.');
        char path[PATH_MAX + NAME_MAX + 2];
        if (strncmp(name, FILE_PREFIX, strlen(FILE_PREFIX)) == 0 && strcmp(end, FILE_SUFFIX) == 0 &&
            strcmp(name, file->name) != 0) {
            snprintf(path, sizeof path, "%s/%s", file->folder, name);
            unlink(path);
        }
    }
    if (folder) {
        closedir(folder);
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Folder, name and path beside the metrics; false when they are too long. */
static bool name_file(tt_event_file *file, const char *metrics_path)
{
    char host[65] = "";
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') {
        snprintf(host, sizeof host, "localhost");
    }
    for (char *at = host; *at; at++) {
        *at = isalnum((unsigned char)*at) || *at == '-' ? *at : '_';
    }
    const char *slash = strrchr(metrics_path, '/');
    int length = slash ? (int)(slash - metrics_path) : 1;
    int used = snprintf(file->folder, sizeof file->folder, "%.*s", length > 0 ? length : 1,
                        slash ? metrics_path : ".");
    snprintf(file->name, sizeof file->name, FILE_PREFIX "%010lld.%s.%ld" FILE_SUFFIX,
             (long long)file->wall_time, host, (long)getpid());
    return used < (int)sizeof file->folder &&
           snprintf(file->path, sizeof file->path, "%s/%s", file->folder, file->name) <
               (int)sizeof file->path;
}

static tt_status make_file(tt_event_file *file, const char *metrics_path, tt_error *error)
{
    char temporary[PATH_MAX + sizeof TEMPORARY_NAME + 1];
    file->wall_time = now();
    if (!name_file(file, metrics_path)) {
        return tt_error_set(error, TT_INVALID_INPUT, "%.200s: the path is too long", metrics_path);
    }
    snprintf(temporary, sizeof temporary, "%s/" TEMPORARY_NAME, file->folder);
    file->stream = fopen(temporary, "wbe");
    if (file->stream == NULL) {
        return write_failed(file, error);
    }
    tt_status status = copy_metrics(file, metrics_path, error);
    status = status == TT_OK ? publish(file, temporary, error) : status;
    if (status != TT_OK) {
        fclose(file->stream);
        unlink(temporary);
    }
    return status;
}

tt_status tt_event_file_open(const char *metrics_path, tt_event_file **file, tt_error *error)
{
    *file = NULL;
    tt_event_file *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", metrics_path);
    }
    tt_status status = make_file(made, metrics_path, error);
    if (status != TT_OK) {
        free(made);
        return status;
    }
    remove_earlier(made);
    *file = made;
    return TT_OK;
}

tt_status tt_event_file_close(tt_event_file **file, tt_error *error)
{
    if (*file == NULL) {
        return TT_OK;
    }
    errno = 0;
    tt_status status = fclose((*file)->stream) == 0 ? TT_OK : write_failed(*file, error);
    free(*file);
    *file = NULL;
    return status;
}

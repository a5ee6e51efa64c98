#include "data/shard_set.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INCOMPLETE "incomplete"

enum { PATH_LIMIT = 4096 };

struct tt_shard_set {
    tt_shard_set_options options;
    char *folder, *prefix;
    tt_shard_info info;
    tt_shard_writer **writers; /* [writer_count]; NULL once closed */
    int writer_count, writer_capacity;
    int current; /* gets the next row; -1: none yet */
    int64_t rows;
};

static tt_status shard_path(const tt_shard_set *set, const char *folder, int number,
                            char path[PATH_LIMIT], tt_error *error)
{
    int size =
        snprintf(path, PATH_LIMIT, "%s%s/%s_%05d.hdf5", set->folder, folder, set->prefix, number);
    if (size < 0 || size >= PATH_LIMIT) {
        return tt_error_set(error, TT_INVALID_INPUT, "%.200s...: path too long", set->folder);
    }
    return TT_OK;
}

static tt_status add_writer(tt_shard_set *set, tt_error *error)
{
    if (set->writer_count == set->writer_capacity) {
        int capacity = set->writer_capacity ? 2 * set->writer_capacity : 16;
        tt_shard_writer **writers =
            realloc(set->writers, (size_t)capacity * sizeof(tt_shard_writer *));
        if (writers == NULL) {
            return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for %d shards", capacity);
        }
        set->writers = writers;
        set->writer_capacity = capacity;
    }
    char path[PATH_LIMIT];
    TT_TRY(shard_path(set, "/" INCOMPLETE, set->writer_count, path, error));
    TT_TRY(tt_shard_writer_create(path, &set->info, &set->writers[set->writer_count], error));
    set->writer_count++;
    return TT_OK;
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t length = strlen(name);
    size_t suffix_length = strlen(suffix);
    return length >= suffix_length && strcmp(name + length - suffix_length, suffix) == 0;
}

/* Removes the shards of this prefix in a folder, finished or not; or, if told to refuse them, makes
 * the first one an error. */
static tt_status clear_folder(const char *folder, const char *prefix, bool refuse, tt_error *error)
{
    DIR *directory = opendir(folder);
    if (directory == NULL) {
        return errno == ENOENT
                   ? TT_OK
                   : tt_error_set(error, TT_IO_FAILED, "%s: %s", folder, strerror(errno));
    }
    tt_status status = TT_OK;
    struct dirent *entry;
    while (status == TT_OK && (entry = readdir(directory)) != NULL) {
        const char *name = entry->d_name;
        size_t length = strlen(prefix);
        if (strncmp(name, prefix, length) != 0 || name[length] != '_' ||
            !(has_suffix(name, ".hdf5") || has_suffix(name, ".hdf5.tmp"))) {
            continue;
        }
        if (refuse) {
            status = tt_error_set(error, TT_INVALID_INPUT,
                                  "%s: expected a folder without %s shards, found %s; give "
                                  "--overwrite to replace them",
                                  folder, prefix, name);
        } else if (unlinkat(dirfd(directory), name, 0) != 0) {
            status = tt_error_set(error, TT_IO_FAILED, "%s/%s: %s", folder, name, strerror(errno));
        }
    }
    closedir(directory);
    return status;
}

static tt_status start_set(tt_shard_set *set, tt_error *error)
{
    char path[PATH_LIMIT];
    int size = snprintf(path, sizeof path, "%s/" INCOMPLETE, set->folder);
    if (size < 0 || size >= PATH_LIMIT) {
        return tt_error_set(error, TT_INVALID_INPUT, "%.200s...: path too long", set->folder);
    }
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        return tt_error_set(error, TT_IO_FAILED, "%s: %s", path, strerror(errno));
    }
    TT_TRY(clear_folder(path, set->prefix, false, error));
    for (int i = 0; i < set->options.shards; i++) {
        TT_TRY(add_writer(set, error));
    }
    return TT_OK;
}

tt_status tt_shard_set_open(const tt_shard_set_options *options, const tt_shard_info *info,
                            tt_shard_set **set, tt_error *error)
{
    *set = NULL;
    if (options->shards < 0 || options->shards > TT_SHARD_SET_MOST_OPEN) {
        return tt_error_set(error, TT_INVALID_INPUT, "shards: expected at most %d, found %d",
                            TT_SHARD_SET_MOST_OPEN, options->shards);
    }
    *set = calloc(1, sizeof **set);
    if (*set == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for shards");
    }
    (*set)->options = *options;
    (*set)->info = *info;
    (*set)->current = -1;
    (*set)->folder = strdup(options->folder);
    (*set)->prefix = strdup(options->prefix);
    tt_status status;
    if ((*set)->folder == NULL || (*set)->prefix == NULL) {
        status = tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for shards");
    } else {
        status = start_set(*set, error);
    }
    if (status != TT_OK) {
        tt_shard_set_abandon(set);
    }
    return status;
}

void tt_shard_set_start_document(tt_shard_set *set)
{
    if (set->options.shards == 0) {
        return;
    }
    int emptiest = 0;
    for (int i = 1; i < set->writer_count; i++) {
        if (tt_shard_writer_rows(set->writers[i]) < tt_shard_writer_rows(set->writers[emptiest])) {
            emptiest = i;
        }
    }
    set->current = emptiest;
}

/* Makes room for a row where shards are filled one after the other. */
static tt_status advance(tt_shard_set *set, tt_error *error)
{
    bool full = set->current >= 0 &&
                tt_shard_writer_rows(set->writers[set->current]) == set->options.rows_per_shard;
    if (set->current >= 0 && !full) {
        return TT_OK;
    }
    if (full) {
        TT_TRY(tt_shard_writer_close(&set->writers[set->current], error));
    }
    TT_TRY(add_writer(set, error));
    set->current = set->writer_count - 1;
    return TT_OK;
}

tt_status tt_shard_set_append(tt_shard_set *set, const tt_shard_row *row, tt_error *error)
{
    if (set->options.shards == 0) {
        TT_TRY(advance(set, error));
    } else if (set->current < 0) {
        tt_shard_set_start_document(set);
    }
    TT_TRY(tt_shard_writer_append(set->writers[set->current], row, error));
    set->rows++;
    return TT_OK;
}

int64_t tt_shard_set_rows(const tt_shard_set *set)
{
    return set->rows;
}

int tt_shard_set_shards(const tt_shard_set *set)
{
    return set->writer_count;
}

tt_status tt_shard_set_finish(tt_shard_set *set, tt_error *error)
{
    for (int i = 0; i < set->writer_count; i++) {
        if (set->writers[i] == NULL) {
            continue;
        }
        if (tt_shard_writer_rows(set->writers[i]) == 0) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: expected rows for %d %s shards, found too few documents: "
                                "shard %d got none",
                                set->folder, set->writer_count, set->prefix, i);
        }
        TT_TRY(tt_shard_writer_close(&set->writers[i], error));
    }
    return TT_OK;
}

static tt_status move_shards(tt_shard_set *set, tt_error *error)
{
    for (int i = 0; i < set->writer_count; i++) {
        char from[PATH_LIMIT], to[PATH_LIMIT];
        TT_TRY(shard_path(set, "/" INCOMPLETE, i, from, error));
        TT_TRY(shard_path(set, "", i, to, error));
        if (rename(from, to) != 0) {
            return tt_error_set(error, TT_IO_FAILED, "%s: %s", to, strerror(errno));
        }
    }
    return TT_OK;
}

static void remove_files(const tt_shard_set *set, const char *folder)
{
    tt_error ignored;
    for (int i = 0; i < set->writer_count; i++) {
        char path[PATH_LIMIT];
        if (shard_path(set, folder, i, path, &ignored) == TT_OK) {
            unlink(path);
        }
    }
}

static void free_set(tt_shard_set **set)
{
    char path[PATH_LIMIT];
    if ((*set)->folder != NULL) {
        snprintf(path, sizeof path, "%s/" INCOMPLETE, (*set)->folder);
        rmdir(path); /* stays while another set writes there */
    }
    free((*set)->writers);
    free((*set)->folder);
    free((*set)->prefix);
    free(*set);
    *set = NULL;
}

tt_status tt_shard_set_publish(tt_shard_set **set, tt_error *error)
{
    tt_status status = tt_shard_set_remove_existing((*set)->folder, (*set)->prefix, error);
    if (status == TT_OK) {
        status = move_shards(*set, error);
    }
    if (status != TT_OK) {
        remove_files(*set, "");
        tt_shard_set_abandon(set);
        return status;
    }
    free_set(set);
    return TT_OK;
}

void tt_shard_set_abandon(tt_shard_set **set)
{
    if (*set == NULL) {
        return;
    }
    for (int i = 0; i < (*set)->writer_count; i++) {
        tt_shard_writer_abandon(&(*set)->writers[i]);
    }
    if ((*set)->folder != NULL && (*set)->prefix != NULL) {
        remove_files(*set, "/" INCOMPLETE);
    }
    free_set(set);
}

tt_status tt_shard_set_refuse_existing(const char *folder, const char *prefix, tt_error *error)
{
    return clear_folder(folder, prefix, true, error);
}

tt_status tt_shard_set_remove_existing(const char *folder, const char *prefix, tt_error *error)
{
    return clear_folder(folder, prefix, false, error);
}

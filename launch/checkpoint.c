#include "data/file.h"
#include "launch/checkpoint_files.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Folders that are being written or removed begin with this. */
static const char temporary_prefix[] = ".tmp_";

/* Steps of a folder's checkpoints, newest first. */
typedef struct {
    int64_t *steps;
    size_t count;
} tt_checkpoint_list;

static tt_status system_failed(const char *path, const char *what, tt_error *error)
{
    return tt_error_set(error, TT_IO_FAILED, "%s: %s: %s", path, what, strerror(errno));
}

static void step_name(int64_t step, char name[32])
{
    snprintf(name, 32, "step_%08" PRId64, step);
}

static tt_status step_path(const char *folder, int64_t step, char path[TT_CHECKPOINT_PATH],
                           tt_error *error)
{
    char name[32];
    step_name(step, name);
    return tt_checkpoint_join(path, folder, name, error);
}

/* The step in a folder's name; -1 when it is not a checkpoint's name. */
static int64_t step_of(const char *name)
{
    if (strncmp(name, "step_", 5) != 0 || strlen(name) > 5 + 18) {
        return -1;
    }
    char *end;
    int64_t step = strtoll(name + 5, &end, 10);
    char written[32];
    step_name(step, written);
    return step >= 0 && *end == '\0' && strcmp(written, name) == 0 ? step : -1;
}

static int newest_first(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a < b) - (a > b);
}

static tt_status collect(DIR *entries, const char *folder, tt_checkpoint_list *list,
                         tt_error *error)
{
    size_t capacity = 0;
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        int64_t step = step_of(entry->d_name);
        if (step < 0) {
            continue;
        }
        if (list->count == capacity) {
            capacity = capacity > 0 ? 2 * capacity : 16;
            int64_t *steps = realloc(list->steps, capacity * sizeof *steps);
            if (steps == NULL) {
                return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", folder);
            }
            list->steps = steps;
        }
        list->steps[list->count++] = step;
    }
    return TT_OK;
}

/* Free list->steps in any case. A folder that does not exist holds none. */
static tt_status list_checkpoints(const char *folder, tt_checkpoint_list *list, tt_error *error)
{
    *list = (tt_checkpoint_list){NULL, 0};
    DIR *entries = opendir(folder);
    if (entries == NULL) {
        return errno == ENOENT ? TT_OK : system_failed(folder, "cannot be opened", error);
    }
    tt_status status = collect(entries, folder, list, error);
    closedir(entries);
    if (list->count > 1) {
        qsort(list->steps, list->count, sizeof list->steps[0], newest_first);
    }
    return status;
}

int64_t tt_checkpoint_newest_step(const char *folder)
{
    tt_error ignored;
    tt_checkpoint_list list;
    tt_status status = list_checkpoints(folder, &list, &ignored);
    int64_t step = status == TT_OK && list.count > 0 ? list.steps[0] : -1;
    free(list.steps);
    return step;
}

static tt_status verify_file(const char *path, const tt_checkpoint_file *file, tt_error *error)
{
    char name[TT_CHECKPOINT_PATH];
    uint64_t size, hash;
    TT_TRY(tt_checkpoint_join(name, path, file->name, error));
    TT_TRY(tt_storage_hash(name, &size, &hash, error));
    if (size != file->size) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected %" PRIu64 " bytes, found %" PRIu64, name, file->size,
                            size);
    }
    if (hash != file->hash) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected xxh64 %016" PRIx64 ", found %016" PRIx64, name,
                            file->hash, hash);
    }
    return TT_OK;
}

tt_status tt_checkpoint_verify(const char *path, tt_error *error)
{
    tt_checkpoint_file files[TT_CHECKPOINT_FILES];
    TT_TRY(tt_checkpoint_read_manifest(path, files, error));
    for (int i = 0; i < TT_CHECKPOINT_FILES; i++) {
        TT_TRY(verify_file(path, &files[i], error));
    }
    return TT_OK;
}

/* A temporary that is whole, and whose place is free, only missed its last rename. */
static bool finish_rename(const char *folder, const char *temporary, const char *name)
{
    tt_error ignored;
    char path[TT_CHECKPOINT_PATH];
    struct stat status;
    const char *final_name = name + strlen(temporary_prefix);
    return step_of(final_name) >= 0 &&
           tt_checkpoint_join(path, folder, final_name, &ignored) == TT_OK &&
           lstat(path, &status) != 0 && tt_checkpoint_verify(temporary, &ignored) == TT_OK &&
           rename(temporary, path) == 0;
}

/* On network file systems a file that another program holds open stays in its folder until it is
 * closed. That is no reason to end a run: what is left is out of sight, and the next save tries
 * again. */
static void remove_leftover(const char *path)
{
    tt_error ignored;
    tt_storage_remove(path, &ignored);
}

tt_status tt_checkpoint_prepare(const char *folder, tt_error *error)
{
    TT_TRY(tt_file_make_folder(folder, error));
    DIR *entries = opendir(folder);
    if (entries == NULL) {
        return system_failed(folder, "cannot be opened", error);
    }
    tt_status status = TT_OK;
    struct dirent *entry = readdir(entries);
    for (; entry != NULL && status == TT_OK; entry = readdir(entries)) {
        char path[TT_CHECKPOINT_PATH];
        if (strncmp(entry->d_name, temporary_prefix, strlen(temporary_prefix)) != 0) {
            continue;
        }
        status = tt_checkpoint_join(path, folder, entry->d_name, error);
        if (status == TT_OK && !finish_rename(folder, path, entry->d_name)) {
            remove_leftover(path);
        }
    }
    closedir(entries);
    return status == TT_OK ? tt_storage_sync_folder(folder, error) : status;
}

/* Room for what is about to be written, so that a disk that is too small is told before, not amid.
 */
static tt_status check_space(const char *folder, const tt_parameters *parameters, tt_error *error)
{
    struct statvfs system;
    if (statvfs(folder, &system) != 0) {
        return system_failed(folder, "its file system cannot be examined", error);
    }
    /* Values and two moments; names, state and the file system's own needs on top. */
    uint64_t needed = 3 * (uint64_t)tt_parameters_size(parameters) * sizeof(float) +
                      (uint64_t)parameters->count * 1024 + (64 << 10);
    uint64_t available = (uint64_t)system.f_bavail * system.f_frsize;
    if (available < needed) {
        return tt_error_set(error, TT_IO_FAILED,
                            "%s: not enough disk space for a checkpoint: expected %.1f MB free, "
                            "found %.1f MB",
                            folder, (double)needed / 1e6, (double)available / 1e6);
    }
    return TT_OK;
}

static tt_status write_files(const char *temporary, const tt_parameters *parameters,
                             const tt_training_state *state, tt_error *error)
{
    tt_checkpoint_file files[TT_CHECKPOINT_FILES];
    TT_TRY(tt_checkpoint_write_model(temporary, parameters, &files[TT_CHECKPOINT_MODEL], error));
    TT_TRY(tt_checkpoint_write_optimizer(temporary, parameters, &files[TT_CHECKPOINT_OPTIMIZER],
                                         error));
    TT_TRY(tt_checkpoint_write_state(temporary, state, &files[TT_CHECKPOINT_STATE], error));
    TT_TRY(tt_checkpoint_write_manifest(temporary, files, error));
    return tt_storage_sync_folder(temporary, error);
}

/* Takes a checkpoint away: out of sight first, so that half of one is never seen. */
static tt_status remove_checkpoint(const char *folder, int64_t step, tt_error *error)
{
    char path[TT_CHECKPOINT_PATH], hidden[TT_CHECKPOINT_PATH], name[64];
    TT_TRY(step_path(folder, step, path, error));
    snprintf(name, sizeof name, "%sremoved_%08" PRId64, temporary_prefix, step);
    TT_TRY(tt_checkpoint_join(hidden, folder, name, error));
    if (rename(path, hidden) != 0) {
        return system_failed(path, "cannot be renamed for removal", error);
    }
    remove_leftover(hidden);
    return TT_OK;
}

/* Puts the finished temporary in place. */
static tt_status publish(const char *folder, const char *temporary, int64_t step, tt_error *error)
{
    char path[TT_CHECKPOINT_PATH];
    struct stat status;
    TT_TRY(step_path(folder, step, path, error));
    if (lstat(path, &status) == 0) {
        TT_TRY(remove_checkpoint(folder, step, error));
    }
    if (rename(temporary, path) != 0) {
        return system_failed(path, "cannot be renamed from its temporary name", error);
    }
    return tt_storage_sync_folder(folder, error);
}

/* Whether manifest and sizes agree; hashes are for the resume to check. */
static bool looks_whole(const char *path)
{
    tt_error ignored;
    tt_checkpoint_file files[TT_CHECKPOINT_FILES];
    if (tt_checkpoint_read_manifest(path, files, &ignored) != TT_OK) {
        return false;
    }
    for (int i = 0; i < TT_CHECKPOINT_FILES; i++) {
        char file[TT_CHECKPOINT_PATH];
        struct stat status;
        if (tt_checkpoint_join(file, path, files[i].name, &ignored) != TT_OK ||
            stat(file, &status) != 0 || (uint64_t)status.st_size != files[i].size) {
            return false;
        }
    }
    return true;
}

/* The validation loss measured at a checkpoint; NAN when there was none. */
static double validation_loss_of(const char *path)
{
    tt_error ignored;
    tt_training_state state;
    if (tt_checkpoint_read_state(path, &state, &ignored) != TT_OK) {
        return NAN;
    }
    double loss = state.validation_loss;
    tt_training_state_free(&state);
    return loss;
}

/* Reduces the list to whole checkpoints up to `newest`; those after it belong to a course of the
 * run that was given up, and are none of this one's business. Returns the number of the best one by
 * validation loss, SIZE_MAX when none was measured. */
static tt_status keep_whole(const char *folder, int64_t newest, tt_checkpoint_list *list,
                            size_t *best, tt_error *error)
{
    size_t count = 0;
    double best_loss = INFINITY;
    *best = SIZE_MAX;
    for (size_t i = 0; i < list->count; i++) {
        char path[TT_CHECKPOINT_PATH];
        TT_TRY(step_path(folder, list->steps[i], path, error));
        if (list->steps[i] > newest || !looks_whole(path)) {
            continue;
        }
        double loss = validation_loss_of(path);
        if (loss < best_loss) {
            best_loss = loss;
            *best = count;
        }
        list->steps[count++] = list->steps[i];
    }
    list->count = count;
    return TT_OK;
}

static tt_status remove_old(const char *folder, int64_t newest, const tt_checkpoint_policy *policy,
                            tt_error *error)
{
    tt_checkpoint_list list;
    size_t best = SIZE_MAX;
    tt_status status = list_checkpoints(folder, &list, error);
    if (status == TT_OK) {
        status = keep_whole(folder, newest, &list, &best, error);
    }
    size_t keep = policy->keep > 1 ? (size_t)policy->keep : 1;
    for (size_t i = keep; i < list.count && status == TT_OK; i++) {
        if (!policy->keep_best || i != best) {
            status = remove_checkpoint(folder, list.steps[i], error);
        }
    }
    free(list.steps);
    return status;
}

tt_status tt_checkpoint_save(const char *folder, const tt_parameters *parameters,
                             const tt_training_state *state, const tt_checkpoint_policy *policy,
                             tt_error *error)
{
    char temporary[TT_CHECKPOINT_PATH], name[64];
    snprintf(name, sizeof name, "%sstep_%08" PRId64, temporary_prefix, state->step);
    TT_TRY(tt_checkpoint_join(temporary, folder, name, error));
    TT_TRY(tt_checkpoint_prepare(folder, error));
    TT_TRY(check_space(folder, parameters, error));
    if (mkdir(temporary, 0777) != 0) {
        return system_failed(temporary, "cannot be made", error);
    }
    tt_status status = write_files(temporary, parameters, state, error);
    if (status == TT_OK) {
        status = publish(folder, temporary, state->step, error);
    }
    if (status != TT_OK) {
        remove_leftover(temporary);
        return status;
    }
    return remove_old(folder, state->step, policy, error);
}

static tt_status first_valid(const char *folder, const tt_checkpoint_list *list,
                             char path[TT_CHECKPOINT_PATH], FILE *warnings, tt_error *error)
{
    for (size_t i = 0; i < list->count; i++) {
        TT_TRY(step_path(folder, list->steps[i], path, error));
        tt_error damage;
        if (tt_checkpoint_verify(path, &damage) == TT_OK) {
            return TT_OK;
        }
        if (warnings != NULL) {
            fprintf(warnings, "ttrain: warning: checkpoint left out: %s\n", damage.message);
        }
    }
    path[0] = '\0';
    return TT_OK;
}

tt_status tt_checkpoint_find_newest(const char *folder, char path[TT_CHECKPOINT_PATH],
                                    FILE *warnings, tt_error *error)
{
    tt_checkpoint_list list;
    path[0] = '\0';
    tt_status status = list_checkpoints(folder, &list, error);
    if (status == TT_OK) {
        status = first_valid(folder, &list, path, warnings, error);
    }
    free(list.steps);
    return status;
}

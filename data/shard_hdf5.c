#include "data/shard_hdf5.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t hdf5_mutex = PTHREAD_MUTEX_INITIALIZER;
static H5E_auto2_t printer;
static void *printer_data;

const tt_shard_field tt_shard_ints[TT_SHARD_INTS] = {
    {"sequence_length", offsetof(tt_shard_info, sequence_length)},
    {"max_predictions", offsetof(tt_shard_info, max_predictions)},
    {"vocabulary_size", offsetof(tt_shard_info, vocabulary_size)},
    {"pad_id", offsetof(tt_shard_info, special.pad)},
    {"unknown_id", offsetof(tt_shard_info, special.unknown)},
    {"cls_id", offsetof(tt_shard_info, special.cls)},
    {"sep_id", offsetof(tt_shard_info, special.sep)},
    {"mask_id", offsetof(tt_shard_info, special.mask)},
};

const tt_shard_field tt_shard_hashes[TT_SHARD_HASHES] = {
    {"vocabulary_hash", offsetof(tt_shard_info, vocabulary_hash)},
    {"tokenizer_hash", offsetof(tt_shard_info, tokenizer_hash)},
    {"seed", offsetof(tt_shard_info, seed)},
};

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A file that a full disk keeps from being closed would crash HDF5's own clean-up at exit; it has
 * nothing else to do, since everything here is closed explicitly. */
static void prepare_library(void)
{
    H5dont_atexit();
}

void tt_shard_hdf5_lock(void)
{
    pthread_once(&once, prepare_library);
    pthread_mutex_lock(&hdf5_mutex);
    H5Eget_auto2(H5E_DEFAULT, &printer, &printer_data);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

void tt_shard_hdf5_unlock(void)
{
    H5Eset_auto2(H5E_DEFAULT, printer, printer_data);
    pthread_mutex_unlock(&hdf5_mutex);
}

typedef struct {
    char text[256];
} cause;

/* Walking upward, the first entry is the innermost one. Where the system refused, its own words
 * stand far behind the start of the entry, after the time of day and the file's name. */
static herr_t keep_innermost(unsigned depth, const H5E_error2_t *entry, void *result)
{
    if (depth != 0 || entry->desc == NULL) {
        return 0;
    }
    cause *found = result;
    static const char before[] = "error message = '";
    const char *system = strstr(entry->desc, before);
    if (system == NULL) {
        snprintf(found->text, sizeof found->text, "%.*s", (int)strcspn(entry->desc, "\n"),
                 entry->desc);
    } else {
        system += sizeof before - 1;
        snprintf(found->text, sizeof found->text, "%.*s: %.*s", (int)strcspn(entry->desc, ":,\n"),
                 entry->desc, (int)strcspn(system, "'\n"), system);
    }
    return 0;
}

tt_status tt_shard_hdf5_failed(const char *path, const char *what, tt_error *error)
{
    cause found = {"no cause given"};
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &found);
    const char *hint = strstr(found.text, " lock ") != NULL
                           ? " (on a file system without locks set HDF5_USE_FILE_LOCKING=FALSE)"
                           : "";
    return tt_error_set(error, TT_IO_FAILED, "%s: %s: HDF5: %s%s", path, what, found.text, hint);
}

static tt_status check_special_ids(const char *path, const tt_shard_info *info, tt_error *error)
{
    const struct {
        const char *name;
        int32_t id;
        bool needed;
    } ids[] = {
        {"pad_id", info->special.pad, true},
        {"unknown_id", info->special.unknown, false},
        {"cls_id", info->special.cls, false},
        {"sep_id", info->special.sep, false},
        {"mask_id", info->special.mask, info->masking == TT_MASKING_DYNAMIC},
    };
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        int32_t low = ids[i].needed ? 0 : -1;
        if (ids[i].id < low || ids[i].id >= info->vocabulary_size) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: attribute %s: found %d, expected %d to %d", path, ids[i].name,
                                ids[i].id, low, info->vocabulary_size - 1);
        }
    }
    return TT_OK;
}

tt_status tt_shard_check_info(const char *path, const tt_shard_info *info, tt_error *error)
{
    if (info->sequence_length < 1) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: attribute sequence_length: found %d, expected at least 1", path,
                            info->sequence_length);
    }
    bool room_fits =
        info->masking == TT_MASKING_DYNAMIC
            ? info->max_predictions == 0
            : info->max_predictions >= 1 && info->max_predictions <= info->sequence_length;
    if (!room_fits) {
        return tt_error_set(
            error, TT_INVALID_INPUT, "%s: attribute max_predictions: found %d, expected %s", path,
            info->max_predictions,
            info->masking == TT_MASKING_DYNAMIC ? "0 where masks are drawn while training"
                                                : "1 to the sequence length");
    }
    if (info->vocabulary_size < 1) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: attribute vocabulary_size: found %d, expected at least 1", path,
                            info->vocabulary_size);
    }
    return check_special_ids(path, info, error);
}

/* The pieces of a checkpoint folder, one file at a time. Inside launch/checkpoint*.c only. */
#ifndef TT_LAUNCH_CHECKPOINT_FILES_H
#define TT_LAUNCH_CHECKPOINT_FILES_H

#include "launch/checkpoint.h"
#include "launch/storage.h"

/* One line of a manifest. */
typedef struct {
    const char *name;
    uint64_t size, hash;
} tt_checkpoint_file;

enum { TT_CHECKPOINT_FILES = 3 };
extern const char *const tt_checkpoint_file_names[TT_CHECKPOINT_FILES];
enum { TT_CHECKPOINT_MODEL, TT_CHECKPOINT_OPTIMIZER, TT_CHECKPOINT_STATE };

/* Joins a folder and a name; fails when the path is too long. */
tt_status tt_checkpoint_join(char path[TT_CHECKPOINT_PATH], const char *folder, const char *name,
                             tt_error *error);

/* Write one file each and note its size and hash. */
tt_status tt_checkpoint_write_model(const char *folder, const tt_parameters *parameters,
                                    tt_checkpoint_file *file, tt_error *error);
tt_status tt_checkpoint_write_optimizer(const char *folder, const tt_parameters *parameters,
                                        tt_checkpoint_file *file, tt_error *error);
tt_status tt_checkpoint_write_state(const char *folder, const tt_training_state *state,
                                    tt_checkpoint_file *file, tt_error *error);
tt_status tt_checkpoint_write_manifest(const char *folder,
                                       const tt_checkpoint_file files[TT_CHECKPOINT_FILES],
                                       tt_error *error);

/* Reads manifest.json, which must name exactly the files of a checkpoint. */
tt_status tt_checkpoint_read_manifest(const char *folder,
                                      tt_checkpoint_file files[TT_CHECKPOINT_FILES],
                                      tt_error *error);

#endif

/* Checkpoints: folders step_NNNNNNNN/ (optimizer steps in all) inside a run's checkpoint folder,
 * each with
 *
 *     model.safetensors      values of every parameter
 *     optimizer.safetensors  <name>.first_moment and <name>.second_moment of every parameter
 *     state.json             tt_training_state
 *     manifest.json          name, size and xxh64 of each of the above
 *
 * A checkpoint is written into a temporary folder, synced and renamed, so a folder step_NNNNNNNN/
 * is either whole or was damaged later; one without a valid manifest does not exist for the resume.
 * One process writes; any may read. */
#ifndef TT_LAUNCH_CHECKPOINT_H
#define TT_LAUNCH_CHECKPOINT_H

#include "core/parameters.h"
#include "core/tensor_train.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { TT_CHECKPOINT_PATH = 4096 };

/* Modes and ranks of a tensor-train map or table, all inner ranks 0 where it is removed: for
 * inspection and for building the model again. */
typedef tt_layer_shape tt_checkpoint_layer;

/* All that a resumed run needs beyond the parameters. Plain counters, in optimizer steps unless
 * named otherwise. */
typedef struct {
    int64_t step;             /* steps done in the whole run, skipped ones included */
    int64_t phase;            /* number of the phase that the next step belongs to */
    int64_t phase_step;       /* steps done in it */
    int64_t phase_samples;    /* samples consumed in it: the loader's position */
    int64_t epoch;            /* of the next sample, within the phase */
    int64_t samples, tokens;  /* consumed in the whole run */
    int64_t updates;          /* updates made: bias correction counts these */
    int64_t skipped_steps;    /* steps whose loss or gradient was not finite */
    int64_t skipped_in_a_row; /* up to this step */
    uint64_t seed;
    uint64_t data_fingerprint; /* tt_loader_fingerprint of the phase's shards */
    int64_t world_size;
    double validation_loss;      /* measured at this step; NAN: not measured */
    double best_validation_loss; /* so far; NAN: none */
    int64_t best_step;           /* -1: none */
    int64_t dense_parameters;    /* of the same model with every map dense */
    int64_t stage;               /* of the recipe that began last, counted from 1; 0: none has */
    int64_t stage_size;          /* core entries that the model had then */

    char *recipe;                /* the resolved recipe, YAML; owned once loaded */
    tt_checkpoint_layer *layers; /* owned once loaded */
    int layer_count;
} tt_training_state;

/* Frees what tt_checkpoint_read_state allocated. */
void tt_training_state_free(tt_training_state *state);

typedef struct {
    int keep;       /* newest checkpoints kept, at least 1 */
    bool keep_best; /* and the one with the lowest validation_loss */
} tt_checkpoint_policy;

/* Makes the folder where needed and removes what interrupted writes and deletions left in it (one
 * that only missed its last rename is kept). Call it before looking for the newest. */
tt_status tt_checkpoint_prepare(const char *folder, tt_error *error);

/* Writes <folder>/step_NNNNNNNN, replacing one of the same step, then removes older ones by
 * `policy`. `parameters` must have moments. Checks the free space first. On failure the temporary
 * is removed and older checkpoints stay. */
tt_status tt_checkpoint_save(const char *folder, const tt_parameters *parameters,
                             const tt_training_state *state, const tt_checkpoint_policy *policy,
                             tt_error *error);

/* The newest checkpoint whose files match its manifest: its path, or "" when there is none. Each
 * damaged one on the way is left out with a line on `warnings` (may be NULL) that names file and
 * hashes. */
tt_status tt_checkpoint_find_newest(const char *folder, char path[TT_CHECKPOINT_PATH],
                                    FILE *warnings, tt_error *error);

/* The highest step among the folder's checkpoints, damaged ones too; -1: none. */
int64_t tt_checkpoint_newest_step(const char *folder);

/* Checks every file of the checkpoint at `path` against its manifest. */
tt_status tt_checkpoint_verify(const char *path, tt_error *error);

/* Reads state.json; free with tt_training_state_free. */
tt_status tt_checkpoint_read_state(const char *path, tt_training_state *state, tt_error *error);

/* Reads parameters, and moments when `with_moments`, from a verified checkpoint. Names and shapes
 * must be the same on both sides; missing, unexpected and misshapen ones are listed. Nothing is
 * changed unless all agree. */
tt_status tt_checkpoint_load(const char *path, const tt_parameters *parameters, bool with_moments,
                             tt_error *error);

/* Reads the values of an encoder for a model with heads of its own: names that begin with "bert."
 * must agree as above, but the pooler and the heads ("cls.", "classifier.") are taken only where
 * both sides have them in the same shape. `kept` parameters have the values from before. */
tt_status tt_checkpoint_load_encoder(const char *path, const tt_parameters *parameters, int *kept,
                                     tt_error *error);

#endif

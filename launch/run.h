/* A run of a recipe on this rank: the world, the device, the model and the place it has got to.
 * Set-up that `pretrain` and `bench` share. */
#ifndef TT_LAUNCH_RUN_H
#define TT_LAUNCH_RUN_H

#include "data/shard.h"
#include "dist/collectives.h"
#include "launch/recipe.h"
#include "models/model.h"

typedef struct {
    tt_world world;
    tt_recipe recipe;
    tt_device *device;
    tt_error no_gpu; /* why device auto passed over the GPU; "" where it did not */
    tt_collectives *collectives;
    tt_configuration configuration;
    tt_layer_shapes shapes; /* what a checkpoint has left of the tensor trains; owned */
    tt_model model;
    /* Of the tokenizer, or of the shards where the recipe names none. */
    int64_t vocabulary_size;
    uint64_t tokenizer_hash; /* 0: unknown */
    tt_special_ids special;
} tt_run;

/* Reads the recipe on every rank and checks that all have the same one. */
tt_status tt_run_read_recipe(tt_run *run, const char *path, char **overrides, int override_count,
                             tt_error *error);
/* Opens the device: a GPU of this rank's own, or this rank's share of the machine's processors. */
tt_status tt_run_open_device(tt_run *run, tt_error *error);
/* Connects the ranks' devices. All ranks call it together, after every one has opened its own. */
tt_status tt_run_connect(tt_run *run, tt_error *error);
/* "cuda:0 (NVIDIA H200), bf16, NCCL 2.27.7", for a line of the log. */
void tt_run_describe_device(const tt_run *run, char *text, size_t size);
/* Vocabulary, hash and special ids from the tokenizer or the first phase's first shard. */
tt_status tt_run_read_vocabulary(tt_run *run, tt_error *error);
/* Reads `shapes` from the checkpoint at `path`, "" for none: on rank 0, for all. All ranks call it
 * together. */
tt_status tt_run_take_shapes(tt_run *run, const char *path, tt_error *error);
/* Configuration and model with fresh weights; its tensor trains have `shapes` where it names them.
 */
tt_status tt_run_build_model(tt_run *run, bool with_moments, tt_error *error);
void tt_run_close(tt_run *run);

/* Files that match the patterns, sorted by name, without doubles. Fails when a pattern matches
 * nothing; `what` names the recipe's key. Free with tt_run_free_paths. */
typedef struct {
    char **items;
    int count;
} tt_run_paths;

tt_status tt_run_find_paths(const tt_recipe_patterns *patterns, const char *what,
                            tt_run_paths *paths, tt_error *error);
void tt_run_free_paths(tt_run_paths *paths);

#endif

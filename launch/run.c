#define _GNU_SOURCE /* sched_getaffinity */
#include "launch/run.h"

#include "data/tokenizer.h"
#include "launch/memory_hint.h"
#include "launch/model_recipe.h"

#include <glob.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

tt_status tt_run_read_recipe(tt_run *run, const char *path, char **overrides, int override_count,
                             tt_error *error)
{
    tt_status status =
        tt_recipe_load(path, (const char *const *)overrides, override_count, &run->recipe, error);
    TT_TRY(tt_world_agree(&run->world, status, error));
    uint64_t hash = XXH64(&run->recipe, sizeof run->recipe, 0);
    return tt_world_same(&run->world, "the recipe", hash, error);
}

/* Processors for this rank: those it is bound to; a set that spans the machine is shared out among
 * the ranks on it. OMP_NUM_THREADS has the last word. */
static int threads_for(const tt_run *run)
{
    if (run->recipe.threads > 0) {
        return (int)run->recipe.threads;
    }
    if (getenv("OMP_NUM_THREADS")) {
        return 0;
    }
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 0;
    }
    int allowed = CPU_COUNT(&set);
    int machine = (int)sysconf(_SC_NPROCESSORS_ONLN);
    int threads = allowed < machine ? allowed : machine / run->world.local_size;
    return threads > 0 ? threads : 1;
}

tt_status tt_run_open_device(tt_run *run, tt_error *error)
{
    const tt_recipe *recipe = &run->recipe;
    tt_device_options options = {.kind = recipe->device,
                                 .precision = recipe->precision,
                                 .threads = threads_for(run),
                                 .local_rank = run->world.local_rank,
                                 .local_ranks = run->world.local_size,
                                 .share = recipe->share_device};
    return tt_device_create(&options, &run->device, &run->no_gpu, error);
}

tt_status tt_run_connect(tt_run *run, tt_error *error)
{
    tt_collectives_options options = {.transport = run->recipe.share_device ? TT_TRANSPORT_MPI
                                                                            : TT_TRANSPORT_AUTO,
                                      .gradients = run->recipe.reduce_precision};
    return tt_collectives_create(&run->world, run->device, &options, &run->collectives, error);
}

void tt_run_describe_device(const tt_run *run, char *text, size_t size)
{
    static const char *const precisions[] = {"f32", "tf32", "bf16"};
    const tt_device *device = run->device;
    int used = snprintf(text, size, "%s", device->name);
    if (device->hardware[0] && used >= 0 && (size_t)used < size) {
        snprintf(text + used, size - (size_t)used, " (%s), %s, %s", device->hardware,
                 precisions[run->recipe.precision],
                 run->world.size > 1 ? tt_collectives_describe(run->collectives) : "one rank");
    } else if (run->no_gpu.message[0] && used >= 0 && (size_t)used < size) {
        snprintf(text + used, size - (size_t)used, " (%s)", run->no_gpu.message);
    }
}

static tt_status read_tokenizer(tt_run *run, tt_error *error)
{
    tt_tokenizer *tokenizer;
    TT_TRY(tt_recipe_open_tokenizer(&run->recipe, &tokenizer, error));
    run->vocabulary_size = tt_tokenizer_vocabulary_size(tokenizer);
    run->tokenizer_hash = tt_tokenizer_hash(tokenizer);
    run->special = tt_tokenizer_special(tokenizer);
    tt_tokenizer_close(&tokenizer);
    return TT_OK;
}

static tt_status read_first_shard(tt_run *run, tt_error *error)
{
    tt_run_paths paths;
    TT_TRY(tt_run_find_paths(&run->recipe.phases[0].train, "phases.0.train", &paths, error));
    if (paths.count == 0) {
        tt_run_free_paths(&paths);
        return tt_error_set(error, TT_INVALID_INPUT, "phases.0.train: expected shards, found none");
    }
    tt_shard_info info;
    tt_status status = tt_shard_inspect(paths.items[0], &info, error);
    tt_run_free_paths(&paths);
    TT_TRY(status);
    run->vocabulary_size = info.vocabulary_size > 0 ? info.vocabulary_size : 0;
    run->tokenizer_hash = info.tokenizer_hash;
    run->special = info.special;
    return TT_OK;
}

tt_status tt_run_read_vocabulary(tt_run *run, tt_error *error)
{
    const tt_recipe *recipe = &run->recipe;
    TT_TRY(recipe->data.tokenizer[0] ? read_tokenizer(run, error) : read_first_shard(run, error));
    int64_t asked = recipe->model.vocabulary_size;
    if (asked == 0 && run->vocabulary_size == 0) {
        return tt_error_set(
            error, TT_INVALID_INPUT,
            "model.vocabulary_size: expected a number, since neither a tokenizer nor "
            "the shards say one; found 0");
    }
    if (asked > 0 && run->vocabulary_size > asked) {
        return tt_error_set(
            error, TT_INVALID_INPUT,
            "model.vocabulary_size: expected at least %lld, the size of the %s; found "
            "%lld",
            (long long)run->vocabulary_size,
            recipe->data.tokenizer[0] ? "tokenizer" : "shards' vocabulary", (long long)asked);
    }
    return TT_OK;
}

static tt_status create_model(tt_run *run, bool with_moments, tt_error *error)
{
    tt_model_kind kind = {.classes = tt_task_classes(run->recipe.task.kind),
                          .with_moments = with_moments};
    TT_TRY(
        tt_model_create(&run->model, run->device, &run->configuration, &kind, &run->shapes, error));
    return tt_model_initialize(&run->model, (uint64_t)run->recipe.seed, error);
}

tt_status tt_run_build_model(tt_run *run, bool with_moments, tt_error *error)
{
    TT_TRY(tt_model_recipe_configuration(&run->recipe, run->vocabulary_size, &run->configuration,
                                         error));
    tt_status status = create_model(run, with_moments, error);
    if (status != TT_OK) {
        return tt_memory_hint_model(run, error);
    }
    run->model.encoder.seed = (uint64_t)run->recipe.seed;
    return TT_OK;
}

void tt_run_close(tt_run *run)
{
    if (run->model.parameters.device) {
        tt_model_free(&run->model);
    }
    free(run->shapes.items);
    run->shapes = (tt_layer_shapes){0};
    tt_collectives_destroy(&run->collectives);
    tt_device_destroy(&run->device);
}

/* --- paths --- */

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static tt_status add_matches(const char *pattern, const char *what, tt_run_paths *paths,
                             tt_error *error)
{
    glob_t matches;
    int result = glob(pattern, GLOB_NOSORT, NULL, &matches);
    if (result != 0) {
        globfree(&matches);
        return tt_error_set(error, TT_INVALID_INPUT, "%s: expected shards that match %s, found %s",
                            what, pattern,
                            result == GLOB_NOMATCH ? "none" : "a folder that cannot be read");
    }
    char **items = realloc(paths->items, ((size_t)paths->count + matches.gl_pathc) * sizeof *items);
    if (!items) {
        globfree(&matches);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for a list of shards");
    }
    tt_status status = TT_OK;
    paths->items = items;
    for (size_t i = 0; i < matches.gl_pathc && status == TT_OK; i++) {
        paths->items[paths->count] = strdup(matches.gl_pathv[i]);
        if (!paths->items[paths->count]) {
            status = tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for a list of shards");
        } else {
            paths->count++;
        }
    }
    globfree(&matches);
    return status;
}

tt_status tt_run_find_paths(const tt_recipe_patterns *patterns, const char *what,
                            tt_run_paths *paths, tt_error *error)
{
    *paths = (tt_run_paths){0};
    for (uint64_t i = 0; i < patterns->count; i++) {
        tt_status status = add_matches(patterns->patterns[i], what, paths, error);
        if (status != TT_OK) {
            tt_run_free_paths(paths);
            return status;
        }
    }
    if (paths->count > 1) {
        qsort(paths->items, (size_t)paths->count, sizeof *paths->items, compare_paths);
    }
    int kept = 0;
    for (int i = 0; i < paths->count; i++) {
        if (kept > 0 && strcmp(paths->items[kept - 1], paths->items[i]) == 0) {
            free(paths->items[i]);
        } else {
            paths->items[kept++] = paths->items[i];
        }
    }
    paths->count = kept;
    return TT_OK;
}

void tt_run_free_paths(tt_run_paths *paths)
{
    for (int i = 0; i < paths->count; i++) {
        free(paths->items[i]);
    }
    free(paths->items);
    *paths = (tt_run_paths){0};
}

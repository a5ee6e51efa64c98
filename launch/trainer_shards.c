#include "launch/trainer.h"

tt_loader_options tt_trainer_loader_options(const tt_trainer *trainer, int64_t phase_number,
                                            const tt_run_paths *paths)
{
    const tt_run *run = trainer->run;
    const tt_recipe_phase *phase = &run->recipe.phases[phase_number];
    return (tt_loader_options){.paths = (const char *const *)paths->items,
                               .path_count = paths->count,
                               .sequence_length = (int)phase->sequence_length,
                               .vocabulary_size = (int)run->configuration.vocabulary_size,
                               .tokenizer_hash = run->tokenizer_hash,
                               .max_predictions = (int)phase->max_predictions,
                               .masking = {.probability = (float)run->recipe.data.mask_probability,
                                           .whole_word = run->recipe.data.whole_word,
                                           .max_predictions = (int)phase->max_predictions,
                                           .vocabulary_size = (int)run->vocabulary_size,
                                           .special = run->special},
                               .seed = (uint64_t)run->recipe.seed,
                               .global_batch = phase->global_batch,
                               .rank = run->world.rank,
                               .world_size = run->world.size};
}

tt_status tt_trainer_find_shards(const tt_trainer *trainer, int64_t phase_number,
                                 tt_run_paths *train, tt_run_paths *validation, tt_error *error)
{
    const tt_recipe_phase *phase = &trainer->run->recipe.phases[phase_number];
    char key[64];
    *validation = (tt_run_paths){0};
    snprintf(key, sizeof key, "phases.%lld.train", (long long)phase_number);
    TT_TRY(tt_run_find_paths(&phase->train, key, train, error));
    snprintf(key, sizeof key, "phases.%lld.validation", (long long)phase_number);
    return tt_run_find_paths(&phase->validation, key, validation, error);
}

static tt_status check_batch(const tt_trainer *trainer, int64_t phase_number, tt_error *error)
{
    const tt_recipe_phase *phase = &trainer->run->recipe.phases[phase_number];
    int size = trainer->run->world.size;
    if (phase->global_batch % size != 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "phases.%lld.global_batch: expected a multiple of the %d ranks, found "
                            "%lld",
                            (long long)phase_number, size, (long long)phase->global_batch);
    }
    return TT_OK;
}

/* A loader that has no step left checks its shards when it is opened, and reads nothing. `rows`:
 * how many there are. */
static tt_status check_paths(const tt_trainer *trainer, int64_t phase_number,
                             const tt_run_paths *paths, const tt_row_source *source, int64_t *rows,
                             tt_error *error)
{
    *rows = 0;
    if (paths->count == 0) {
        return TT_OK;
    }
    tt_loader *loader;
    tt_loader_options options = tt_trainer_loader_options(trainer, phase_number, paths);
    options.source = source;
    options.first_step = options.last_step = trainer->run->recipe.phases[phase_number].steps;
    tt_status status = tt_loader_open(&options, &loader, error);
    if (status == TT_OK) {
        *rows = tt_loader_rows(loader);
    }
    tt_loader_close(&loader);
    return status;
}

/* `rows`: of the training data. */
static tt_status check_phase(tt_trainer *trainer, int64_t phase_number, int64_t *rows,
                             tt_error *error)
{
    tt_run_paths train = {0}, validation = {0};
    int64_t validation_rows;
    tt_status status = check_batch(trainer, phase_number, error);
    if (status == TT_OK) {
        status = tt_trainer_find_shards(trainer, phase_number, &train, &validation, error);
    }
    if (status == TT_OK) {
        status = tt_trainer_read_task(trainer, phase_number, &train, &validation, error);
    }
    if (status == TT_OK) {
        status = check_paths(trainer, phase_number, &train, tt_trainer_train_source(trainer), rows,
                             error);
    }
    if (status == TT_OK) {
        status = check_paths(trainer, phase_number, &validation,
                             tt_trainer_validation_source(trainer), &validation_rows, error);
    }
    tt_run_free_paths(&train);
    tt_run_free_paths(&validation);
    return status;
}

tt_status tt_trainer_check_shards(tt_trainer *trainer, tt_error *error)
{
    const tt_recipe *recipe = &trainer->run->recipe;
    tt_status status = TT_OK;
    int64_t count = (int64_t)recipe->phase_count, rows[TT_RECIPE_PHASES] = {0};
    /* Epochs of stages are counted from the run's first step on. */
    int64_t first = tt_stages_count_epochs(recipe) ? 0 : trainer->state.phase;
    for (int64_t i = first; i < count && status == TT_OK; i++) {
        status = check_phase(trainer, i, &rows[i], error);
    }
    if (status == TT_OK) {
        status = tt_stages_plan(recipe, rows, &trainer->stages, error);
    }
    if (status == TT_OK) {
        status = tt_stages_check_targets(recipe, &trainer->run->model, error);
    }
    return tt_world_agree(&trainer->run->world, status, error);
}

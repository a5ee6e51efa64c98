#include "launch/validation.h"

#include <math.h>
#include <stdlib.h>

/* Adds the batch's original ids to the counts. */
static void count_labels(double *counts, const tt_batch *batch)
{
    for (int64_t i = 0; i < batch->rows * batch->max_predictions; i++) {
        if (batch->masked_labels[i] >= 0) {
            counts[batch->masked_labels[i]] += 1.0;
        }
    }
}

static double entropy_of(const double *counts, int64_t size)
{
    double total = 0.0, entropy = 0.0;
    for (int64_t i = 0; i < size; i++) {
        total += counts[i];
    }
    for (int64_t i = 0; i < size; i++) {
        if (counts[i] > 0.0) {
            entropy -= counts[i] / total * log(counts[i] / total);
        }
    }
    return entropy;
}

static tt_status evaluate_batches(tt_trainer *trainer, tt_loader *loader, int64_t batches,
                                  double *counts, tt_error *error)
{
    tt_step_begin_evaluation(&trainer->step);
    for (int64_t i = 0; i < batches; i++) {
        tt_batch *batch;
        bool stop = false;
        TT_TRY(tt_step_next(&trainer->step, loader, &batch, &stop, error));
        tt_step_evaluate(&trainer->step);
        if (counts) {
            count_labels(counts, batch);
        }
    }
    return TT_OK;
}

tt_status tt_validation_run(tt_trainer *trainer, tt_validation_result *result, tt_error *error)
{
    const tt_run *run = trainer->run;
    const tt_world *world = &run->world;
    tt_loader_options options =
        tt_trainer_loader_options(trainer, trainer->state.phase, &trainer->validation_paths);
    tt_loader *loader = NULL;
    options.source = tt_trainer_validation_source(trainer);
    TT_TRY(tt_world_agree(world, tt_loader_open(&options, &loader, error), error));
    int64_t batches = (tt_loader_rows(loader) + options.global_batch - 1) / options.global_batch;
    if (run->recipe.validation.batches > 0 && run->recipe.validation.batches < batches) {
        batches = run->recipe.validation.batches;
    }
    /* The masks are the same each time, so the entropy is counted once a phase. */
    double *counts = NULL;
    tt_status status = TT_OK;
    if (isnan(trainer->unigram_entropy)) {
        counts = calloc((size_t)run->configuration.vocabulary_size, sizeof *counts);
        status = counts ? TT_OK
                        : tt_error_set(error, TT_OUT_OF_MEMORY,
                                       "no memory to count the validation set's tokens");
        status = tt_world_agree(world, status, error);
    }
    if (status == TT_OK) {
        status = evaluate_batches(trainer, loader, batches, counts, error);
    }
    tt_loader_close(&loader);
    if (status == TT_OK && counts) {
        tt_world_sum_doubles(world, counts, (int)run->configuration.vocabulary_size);
        trainer->unigram_entropy = entropy_of(counts, run->configuration.vocabulary_size);
    }
    free(counts);
    TT_TRY(status);
    result->step = tt_step_end_evaluation(&trainer->step);
    result->unigram_entropy = trainer->unigram_entropy;
    return TT_OK;
}

#include "launch/trainer.h"

#include "core/clock.h"
#include "launch/memory_hint.h"
#include "launch/model_recipe.h"
#include "launch/validation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_first_rank(const tt_trainer *trainer)
{
    return trainer->run->world.rank == 0;
}

static const tt_recipe_phase *phase_of(const tt_trainer *trainer)
{
    return &trainer->run->recipe.phases[trainer->state.phase];
}

/* --- a phase's set-up --- */

static tt_status open_train_loader(tt_trainer *trainer, tt_error *error)
{
    int64_t number = trainer->state.phase;
    TT_TRY(tt_trainer_find_shards(trainer, number, &trainer->train_paths,
                                  &trainer->validation_paths, error));
    TT_TRY(tt_trainer_read_task(trainer, number, &trainer->train_paths, &trainer->validation_paths,
                                error));
    tt_loader_options options = tt_trainer_loader_options(trainer, number, &trainer->train_paths);
    options.source = tt_trainer_train_source(trainer);
    options.shuffle = true;
    options.first_step = trainer->state.phase_step;
    options.last_step = phase_of(trainer)->steps;
    /* Each phase has an order of its own. */
    options.seed += 0x9E3779B97F4A7C15u * (uint64_t)number;
    return tt_loader_open(&options, &trainer->loader, error);
}

static void announce_phase(const tt_trainer *trainer)
{
    const tt_recipe_phase *phase = phase_of(trainer);
    const tt_run *run = trainer->run;
    const tt_step *step = &trainer->step;
    int64_t rows = tt_loader_rows(trainer->loader);
    fprintf(
        stderr,
        "phase %s: %lld steps of %lld sequences of %lld tokens (%d rank%s x %lld micro-batch%s of "
        "%lld), %lld sequences in %d %s%s (%s%s, fingerprint %016llx), %.2f epochs\n",
        phase->name, (long long)phase->steps, (long long)phase->global_batch,
        (long long)phase->sequence_length, run->world.size, run->world.size > 1 ? "s" : "",
        (long long)step->inputs.micro_batches, step->inputs.micro_batches > 1 ? "es" : "",
        (long long)step->inputs.sizes.micro_batch, (long long)rows, trainer->train_paths.count,
        run->recipe.task.kind == TT_TASK_NONE ? "shard" : "file",
        trainer->train_paths.count > 1 ? "s" : "", trainer->train_paths.items[0],
        trainer->train_paths.count > 1 ? ", ..." : "",
        (unsigned long long)trainer->state.data_fingerprint,
        (double)phase->steps * (double)phase->global_batch / (double)rows);
    size_t optimizer_bytes = (size_t)run->model.parameters.total * 4 * sizeof(float);
    fprintf(stderr,
            "memory a rank: %.1f MiB parameters, gradients and moments; %.1f MiB activations and "
            "factors; %d thread%s\n",
            (double)optimizer_bytes / 1048576.0,
            (double)tt_model_activation_bytes(&run->model) / 1048576.0, run->device->threads,
            run->device->threads > 1 ? "s" : "");
}

tt_status tt_trainer_create_step(tt_trainer *trainer, tt_error *error)
{
    const tt_recipe_phase *phase = phase_of(trainer);
    tt_run *run = trainer->run;
    tt_optimizer_options options =
        tt_model_recipe_optimizer(&run->recipe, (int)trainer->state.phase);
    tt_status status =
        tt_optimizer_create(&run->model.parameters, &options, &trainer->optimizer, error);
    TT_TRY(tt_world_agree(&run->world, status, error));
    tt_optimizer_restore(trainer->optimizer, (uint32_t)trainer->state.updates);
    int64_t rows = phase->global_batch / run->world.size;
    tt_step_sizes sizes = {.rows = rows,
                           .micro_batch = phase->micro_batch > 0 && phase->micro_batch < rows
                                              ? phase->micro_batch
                                              : rows,
                           .sequence_length = phase->sequence_length,
                           .max_predictions = phase->max_predictions};
    status = tt_step_create(&trainer->step, &run->model, trainer->optimizer, &run->world,
                            run->collectives, &sizes, error);
    if (status != TT_OK) {
        return tt_memory_hint_step(run, (int)trainer->state.phase, sizes.micro_batch, error);
    }
    trainer->step.captures = trainer->step.captures && run->recipe.graph == TT_RECIPE_GRAPH_ON;
    trainer->step.watchdog = trainer->watchdog;
    if (run->recipe.stage_count > 0) {
        return tt_world_agree(&run->world, tt_step_train_ranks(&trainer->step, error), error);
    }
    return TT_OK;
}

static tt_status begin_phase(tt_trainer *trainer, tt_error *error)
{
    const tt_world *world = &trainer->run->world;
    TT_TRY(tt_world_agree(world, open_train_loader(trainer, error), error));
    uint64_t fingerprint = tt_loader_fingerprint(trainer->loader);
    TT_TRY(tt_world_same(world, "the training shards", fingerprint, error));
    if (trainer->state.phase_step > 0 && trainer->state.data_fingerprint != fingerprint &&
        is_first_rank(trainer)) {
        fprintf(stderr,
                "ttrain: warning: the training shards are not those that the checkpoint was "
                "trained on; the order of samples starts to differ\n");
    }
    trainer->state.data_fingerprint = fingerprint;
    trainer->unigram_entropy = NAN;
    trainer->loss_watch = (tt_loss_watch){0};
    TT_TRY(tt_trainer_create_step(trainer, error));
    trainer->unread = false;
    if (is_first_rank(trainer)) {
        announce_phase(trainer);
    }
    return TT_OK;
}

static void end_phase(tt_trainer *trainer)
{
    tt_loader_close(&trainer->loader);
    tt_step_destroy(&trainer->step);
    tt_optimizer_destroy(&trainer->optimizer);
    tt_run_free_paths(&trainer->train_paths);
    tt_run_free_paths(&trainer->validation_paths);
}

/* --- what surrounds a step --- */

static tt_status save_checkpoint(tt_trainer *trainer, tt_error *error)
{
    tt_run *run = trainer->run;
    trainer->state.updates = tt_optimizer_updates(trainer->optimizer);
    trainer->state.epoch = trainer->state.phase_samples / tt_loader_rows(trainer->loader);
    tt_status status = TT_OK;
    if (is_first_rank(trainer)) {
        tt_checkpoint_policy policy = {.keep = (int)run->recipe.checkpoint.keep,
                                       .keep_best = run->recipe.checkpoint.keep_best};
        status = tt_checkpoint_save(trainer->checkpoints, &run->model.parameters, &trainer->state,
                                    &policy, error);
    }
    return tt_world_share(&run->world, status, error);
}

/* The parameter whose gradient holds the first number that is not finite. */
static const char *first_bad_gradient(const tt_trainer *trainer)
{
    const tt_parameters *parameters = &trainer->run->model.parameters;
    tt_device *device = parameters->device;
    float *gradients = malloc((size_t)parameters->total * sizeof *gradients);
    const char *name = NULL;
    if (gradients) {
        device->copy_out(device, gradients, parameters->gradients,
                         (size_t)parameters->total * sizeof *gradients);
        device->synchronize(device);
    }
    for (int i = 0; gradients && !name && i < parameters->count; i++) {
        const tt_parameter *item = &parameters->items[i];
        for (int64_t j = 0; j < item->count && !name; j++) {
            name = isfinite(gradients[item->offset + j]) ? NULL : item->name;
        }
    }
    free(gradients);
    return name ? name : "none (the loss alone)";
}

/* `alone`: no later step has been given to the device, so that the gradients are this one's. */
static tt_status note_result(tt_trainer *trainer, const tt_step_result *result, bool alone,
                             tt_error *error)
{
    tt_training_state *state = &trainer->state;
    const tt_recipe *recipe = &trainer->run->recipe;
    if (result->finite) {
        state->skipped_in_a_row = 0;
        return TT_OK;
    }
    state->skipped_steps++;
    state->skipped_in_a_row++;
    if (is_first_rank(trainer)) {
        tt_progress_end(&trainer->progress);
        fprintf(
            stderr,
            "ttrain: warning: step %lld skipped: loss or gradient is not finite (masked LM loss "
            "%g, next-sentence loss %g, first bad gradient: %s); %lld in a row, %lld in all\n",
            (long long)state->step, result->masked_lm_loss, result->next_sentence_loss,
            alone ? first_bad_gradient(trainer) : "unknown, as the next step has begun",
            (long long)state->skipped_in_a_row, (long long)state->skipped_steps);
    }
    if (state->skipped_in_a_row >= recipe->nonfinite_limit) {
        tt_error_set(
            error, TT_INVALID_INPUT,
            "step %lld: %lld steps in a row had a loss or gradient that is not finite "
            "(nonfinite_limit); the last good checkpoint is kept; lower the learning rate or "
            "raise the warm-up",
            (long long)state->step, (long long)state->skipped_in_a_row);
        error->shared = true; /* the statistics are those of all ranks */
        return TT_INVALID_INPUT;
    }
    return TT_OK;
}

/* A model that knows nothing guesses uniformly; fresh weights that are far from that are broken. */
static void check_first_loss(tt_trainer *trainer, const tt_step_result *result)
{
    if (trainer->loss_checked || trainer->state.step != 1 || trainer->run->recipe.initialize[0] ||
        !is_first_rank(trainer)) {
        return;
    }
    trainer->loss_checked = true;
    double expected = log((double)trainer->run->configuration.vocabulary_size);
    if (result->finite && result->masked_count > 0 &&
        fabs(result->masked_lm_loss - expected) > 0.2 * expected) {
        fprintf(stderr,
                "ttrain: warning: the first masked LM loss is %.3f; fresh weights should be near "
                "ln(vocabulary) = %.3f\n",
                result->masked_lm_loss, expected);
    }
}

/* A loss that leaps is often the first sign of a run that goes wrong. */
static void check_spike(tt_trainer *trainer, const tt_step_result *result)
{
    tt_loss_course course;
    double loss = result->masked_lm_loss + result->next_sentence_loss;
    if (tt_loss_watch_spikes(&trainer->loss_watch, loss, &course) && is_first_rank(trainer)) {
        tt_progress_end(&trainer->progress);
        fprintf(
            stderr,
            "ttrain: warning: the loss leapt to %.4f at step %lld, %.1f standard deviations above "
            "the mean of the steps before (mean %.4f, deviation %.4f, gradient norm %.3g)\n",
            loss, (long long)trainer->state.step, (loss - course.mean) / course.deviation,
            course.mean, course.deviation, (double)result->gradient_norm);
    }
}

static tt_metrics_record make_record(tt_trainer *trainer, const tt_step_result *result)
{
    const tt_training_state *state = &trainer->state;
    double steps = trainer->interval_steps > 0 ? (double)trainer->interval_steps : 1;
    tt_metrics_record record = {.step = state->step,
                                .phase = phase_of(trainer)->name,
                                .phase_step = state->phase_step,
                                .epoch = state->phase_samples / tt_loader_rows(trainer->loader),
                                .samples = state->samples,
                                .tokens = state->tokens,
                                .loss =
                                    (float)(result->masked_lm_loss + result->next_sentence_loss),
                                .masked_lm_loss = (float)result->masked_lm_loss,
                                .masked_lm_accuracy = (float)result->masked_lm_accuracy,
                                .next_sentence_loss = (float)result->next_sentence_loss,
                                .next_sentence_accuracy = (float)result->next_sentence_accuracy,
                                .has_next_sentence = trainer->run->configuration.next_sentence,
                                .classifies = trainer->run->recipe.task.kind != TT_TASK_NONE,
                                .accuracy = result->next_sentence_accuracy,
                                .learning_rate = result->learning_rate[TT_GROUP_DENSE],
                                .core_learning_rate = result->learning_rate[TT_GROUP_CORES],
                                .diagonal_learning_rate = result->learning_rate[TT_GROUP_DIAGONALS],
                                .gradient_norm = result->gradient_norm,
                                .skipped_steps = state->skipped_steps,
                                .parameters = tt_parameters_size(&trainer->run->model.parameters)};
    tt_stages_report(&trainer->run->recipe, result, &record);
    record.timing.step_ms = 1e3 * trainer->interval_seconds / steps;
    record.timing.data_wait_ms = 1e3 * trainer->interval_wait / steps;
    record.timing.tokens_per_s = (double)trainer->interval_tokens /
                                 (trainer->interval_seconds > 0 ? trainer->interval_seconds : 1e-9);
    record.timing.elapsed_s = tt_clock_seconds() - trainer->started;
    return record;
}

static tt_status validate(tt_trainer *trainer, tt_metrics_record *record, tt_error *error)
{
    tt_validation_result result;
    TT_TRY(tt_validation_run(trainer, &result, error));
    tt_training_state *state = &trainer->state;
    record->has_validation = true;
    record->validation_masked_lm_loss = result.step.masked_lm_loss;
    record->validation_masked_lm_accuracy = result.step.masked_lm_accuracy;
    record->validation_next_sentence_loss = result.step.next_sentence_loss;
    record->validation_next_sentence_accuracy = result.step.next_sentence_accuracy;
    record->validation_unigram_entropy = result.unigram_entropy;
    record->validation_accuracy = result.step.next_sentence_accuracy;
    record->validation_loss = result.step.masked_lm_loss + result.step.next_sentence_loss;
    state->validation_loss = record->validation_loss;
    if (isfinite(state->validation_loss) &&
        !(state->validation_loss >= state->best_validation_loss)) {
        state->best_validation_loss = state->validation_loss;
        state->best_step = state->step;
    }
    return TT_OK;
}

static bool due(int64_t interval, const tt_trainer *trainer)
{
    bool last = trainer->state.phase_step == phase_of(trainer)->steps;
    return last || (interval > 0 && trainer->state.step % interval == 0);
}

static tt_status log_step(tt_trainer *trainer, const tt_step_result *result, tt_error *error)
{
    const tt_recipe *recipe = &trainer->run->recipe;
    bool validates =
        trainer->validation_paths.count > 0 && due(recipe->validation.interval, trainer);
    bool logs = validates || due(recipe->log.interval, trainer) || trainer->state.phase_step == 1;
    tt_metrics_record record = make_record(trainer, result);
    trainer->state.validation_loss = NAN;
    if (validates) {
        TT_TRY(validate(trainer, &record, error));
    }
    tt_status status = TT_OK;
    if (is_first_rank(trainer)) {
        tt_progress_update(&trainer->progress, &record, logs);
        status = logs ? tt_trainer_note_ranks(trainer, error) : TT_OK;
        status =
            logs && status == TT_OK ? tt_metrics_write(trainer->metrics, &record, error) : status;
    }
    if (logs) {
        trainer->interval_seconds = trainer->interval_wait = 0;
        trainer->interval_steps = trainer->interval_tokens = 0;
        return tt_world_share(&trainer->run->world, status, error);
    }
    return TT_OK;
}

/* --- the loop --- */

static void count_step(tt_trainer *trainer, const tt_batch *batch)
{
    tt_training_state *state = &trainer->state;
    const tt_recipe_phase *phase = phase_of(trainer);
    int64_t tokens = phase->global_batch * batch->sequence_length;
    state->step++;
    state->phase_step++;
    state->phase_samples += phase->global_batch;
    state->samples += phase->global_batch;
    state->tokens += tokens;
    trainer->interval_steps++;
    trainer->interval_tokens += tokens;
}

/* While steps are skipped the weights may be what is wrong: they do not push good checkpoints out.
 */
static bool saves(const tt_trainer *trainer, bool stopped)
{
    bool last = trainer->state.phase_step == phase_of(trainer)->steps;
    return stopped || last ||
           (due(trainer->run->recipe.checkpoint.interval, trainer) &&
            trainer->state.skipped_in_a_row == 0);
}

/* Whether the step that was given last is left to the device while the next one is prepared. Where
 * something has to happen between the two it is waited for. */
static bool runs_ahead(const tt_trainer *trainer, bool stopped)
{
    const tt_training_state *state = &trainer->state;
    bool validates = trainer->validation_paths.count > 0 &&
                     due(trainer->run->recipe.validation.interval, trainer);
    return trainer->run->device->captures && state->phase_step > 1 &&
           state->skipped_in_a_row == 0 && !validates && !saves(trainer, stopped) &&
           !tt_trainer_compacts(trainer);
}

/* What follows from a step's result. `alone`: the device has not been given the next step. */
static tt_status take_result(tt_trainer *trainer, const tt_step_result *result, bool alone,
                             tt_error *error)
{
    trainer->interval_seconds += tt_clock_seconds() - trainer->result_clock;
    if (tt_step_check(&trainer->step, error) != TT_OK) {
        return tt_memory_hint_step(trainer->run, (int)trainer->state.phase,
                                   trainer->step.inputs.sizes.micro_batch, error);
    }
    TT_TRY(note_result(trainer, result, alone, error));
    check_first_loss(trainer, result);
    check_spike(trainer, result);
    TT_TRY(log_step(trainer, result, error));
    trainer->result_clock = tt_clock_seconds();
    return TT_OK;
}

static tt_status enter_stage(tt_trainer *trainer, tt_error *error)
{
    const tt_recipe *recipe = &trainer->run->recipe;
    bool began = false;
    if (recipe->stage_count > 0) {
        TT_TRY(tt_stages_enter(recipe, &trainer->stages, &trainer->state, &trainer->step, &began,
                               error));
    }
    if (began && is_first_rank(trainer)) {
        char text[512];
        tt_stages_describe(recipe, &trainer->stages, &trainer->state, &trainer->run->model, text,
                           sizeof text);
        tt_progress_end(&trainer->progress);
        fprintf(stderr, "%s\n", text);
    }
    return TT_OK;
}

/* One step with all that belongs to it. `stopped`: the run was asked to end. */
static tt_status advance(tt_trainer *trainer, bool *stopped, tt_error *error)
{
    tt_batch *batch;
    if (!trainer->unread) {
        trainer->result_clock = tt_clock_seconds();
    }
    *stopped = atomic_load(trainer->stop_signal) != 0;
    TT_TRY(tt_step_next(&trainer->step, trainer->loader, &batch, stopped, error));
    TT_TRY(enter_stage(trainer, error));
    tt_step_run(&trainer->step, trainer->state.step, trainer->state.phase_step);
    if (trainer->unread) {
        tt_step_result earlier = tt_step_read_earlier(&trainer->step);
        TT_TRY(take_result(trainer, &earlier, false, error));
    }
    count_step(trainer, batch);
    trainer->interval_wait += batch->wait_seconds;
    trainer->unread = runs_ahead(trainer, *stopped);
    if (trainer->unread) {
        return TT_OK;
    }
    tt_step_result result = tt_step_read(&trainer->step);
    TT_TRY(take_result(trainer, &result, true, error));
    if (tt_trainer_compacts(trainer)) {
        TT_TRY(tt_trainer_compact(trainer, error));
    }
    if (!saves(trainer, *stopped)) {
        return TT_OK;
    }
    tt_watchdog_note(trainer->watchdog, "writing a checkpoint");
    return save_checkpoint(trainer, error);
}

static tt_status run_phase(tt_trainer *trainer, bool *stopped, tt_error *error)
{
    tt_watchdog_begin(trainer->watchdog, trainer->state.step + 1, "beginning the phase");
    TT_TRY(begin_phase(trainer, error));
    while (trainer->state.phase_step < phase_of(trainer)->steps && !*stopped) {
        tt_watchdog_begin(trainer->watchdog, trainer->state.step + 1, "beginning the step");
        TT_TRY(advance(trainer, stopped, error));
    }
    return TT_OK;
}

tt_status tt_trainer_run(tt_trainer *trainer, tt_trainer_end *end, tt_error *error)
{
    const tt_world *world = &trainer->run->world;
    trainer->started = tt_clock_seconds();
    trainer->first_step = trainer->state.step;
    TT_TRY(tt_world_agree(world, tt_watchdog_start(world, &trainer->watchdog, error), error));
    int64_t phases = (int64_t)trainer->run->recipe.phase_count;
    bool stopped = false;
    tt_status status = TT_OK;
    while (status == TT_OK && !stopped && trainer->state.phase < phases) {
        status = run_phase(trainer, &stopped, error);
        tt_watchdog_end(trainer->watchdog);
        bool finished = status == TT_OK && trainer->state.phase_step == phase_of(trainer)->steps;
        end_phase(trainer);
        if (finished) {
            trainer->state.phase++;
            trainer->state.phase_step = trainer->state.phase_samples = 0;
        }
    }
    tt_watchdog_stop(&trainer->watchdog);
    *end = trainer->state.phase < phases ? TT_TRAINER_STOPPED : TT_TRAINER_FINISHED;
    return status;
}

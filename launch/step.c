#include "launch/step.h"

#include <stdlib.h>
#include <string.h>

/* --- what the ranks add up early --- */

/* Gradients in one early sum, at least: a shorter one takes hardly less time. */
enum { EARLY_SUM = 1 << 22 };

/* Puts neighbouring blocks together until they are worth a sum, from the last block down, which is
 * the order in which the backward pass is through with them. Returns how many ranges there are. */
static int plan_early(tt_step *step, tt_gradient_range *ranges)
{
    const tt_encoder *encoder = &step->model->encoder;
    int count = 0;
    bool open = false;
    for (int layer = (int)encoder->configuration.layers - 1; layer >= 0; layer--) {
        tt_gradient_range block;
        bool early = tt_encoder_block_range(encoder, layer, &block.offset, &block.count);
        if (early && open) {
            ranges[count - 1].offset = block.offset;
            ranges[count - 1].count += block.count;
        } else if (early) {
            ranges[count++] = block;
        }
        if (early) {
            step->early[layer] = count - 1;
            if (open) {
                step->early[layer + 1] = -1;
            }
        }
        open = early && ranges[count - 1].count < EARLY_SUM;
    }
    return count;
}

static tt_status plan_collectives(tt_step *step, tt_error *error)
{
    const tt_parameters *parameters = &step->model->parameters;
    size_t layers = (size_t)step->model->encoder.configuration.layers;
    step->early = malloc(layers * sizeof *step->early);
    tt_gradient_range *ranges = malloc(layers * sizeof *ranges);
    tt_status status = TT_OK;
    if (!step->early || !ranges) {
        status = tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the plan of the all-reduce");
    } else {
        for (size_t i = 0; i < layers; i++) {
            step->early[i] = -1;
        }
    }
    status = tt_world_agree(step->world, status, error);
    if (status == TT_OK && step->early && ranges && step->collectives) {
        /* Through MPI nothing starts early. */
        bool any = tt_collectives_captures(step->collectives) && parameters->device->captures;
        tt_gradient_plan plan = {.gradients = parameters->gradients,
                                 .gradient_count = parameters->total,
                                 .statistic_count = TT_STATISTICS,
                                 .early = ranges,
                                 .early_count = any ? plan_early(step, ranges) : 0};
        status = tt_collectives_plan(step->collectives, &plan, error);
    }
    free(ranges);
    return status;
}

/* --- set-up --- */

static tt_status create_records(tt_step *step, tt_error *error)
{
    tt_device *device = step->model->parameters.device;
    for (int slot = 0; slot < TT_TRANSFER_SLOTS; slot++) {
        step->records[slot] = device->allocate_host(device, sizeof(tt_step_record));
        if (!step->records[slot]) {
            return tt_device_no_memory(device, "the record of a step", sizeof(tt_step_record),
                                       error);
        }
    }
    return TT_OK;
}

static tt_status create_memory(tt_step *step, const tt_step_sizes *sizes, tt_error *error)
{
    tt_device *device = step->model->parameters.device;
    TT_TRY(tt_step_inputs_create(&step->inputs, device, sizes, error));
    TT_TRY(create_records(step, error));
    return tt_model_plan(step->model, sizes->micro_batch, sizes->sequence_length,
                         sizes->max_predictions, step->optimizer != NULL, error);
}

tt_status tt_step_create(tt_step *step, tt_model *model, tt_optimizer *optimizer,
                         const tt_world *world, tt_collectives *collectives,
                         const tt_step_sizes *sizes, tt_error *error)
{
    *step = (tt_step){.model = model,
                      .optimizer = optimizer,
                      .world = world,
                      .collectives = collectives,
                      .captures = model->parameters.device->captures &&
                                  (!collectives || tt_collectives_captures(collectives))};
    TT_TRY(tt_world_agree(world, create_memory(step, sizes, error), error));
    if (optimizer) {
        model->encoder.step = &tt_optimizer_state(optimizer)->step;
    }
    return plan_collectives(step, error);
}

tt_status tt_step_train_ranks(tt_step *step, tt_error *error)
{
    return tt_rank_objective_create(&step->model->trains, &step->ranks, error);
}

void tt_step_destroy(tt_step *step)
{
    if (step->model) {
        tt_device *device = step->model->parameters.device;
        device->synchronize(device);
        if (step->graph) {
            device->graph_destroy(device, step->graph);
        }
        for (int slot = 0; slot < TT_TRANSFER_SLOTS; slot++) {
            device->release_host(device, step->records[slot]);
        }
        tt_step_inputs_destroy(&step->inputs);
        tt_rank_objective_destroy(&step->ranks);
    }
    free(step->early);
    *step = (tt_step){0};
}

/* --- loading --- */

static tt_step_call sum_counts(tt_step *step, const tt_batch *batch, bool stop)
{
    double counts[4] = {0.0, 0.0, stop ? 1.0 : 0.0, batch ? 0.0 : 1.0};
    if (batch) {
        counts[0] = (double)batch->masked_count;
        for (int64_t row = 0; row < batch->rows; row++) {
            counts[1] += batch->next_sentence_labels[row] >= 0;
        }
    }
    tt_watchdog_note(step->watchdog, "waiting for the other ranks to have a batch");
    tt_world_sum_doubles(step->world, counts, 4);
    step->counts = (tt_step_counts){counts[0], counts[1]};
    if (counts[3] > 0.0) {
        return TT_STEP_BROKEN;
    }
    float *scales = tt_step_inputs_host(&step->inputs)->scales;
    for (int i = 0; i < 2; i++) {
        scales[i] = (float)(1.0 / (counts[i] > 1.0 ? counts[i] : 1.0));
    }
    return counts[2] > 0.0 ? TT_STEP_STOP : TT_STEP_GO_ON;
}

tt_step_call tt_step_load(tt_step *step, const tt_batch *batch, bool stop)
{
    if (batch) {
        tt_step_inputs_pack(&step->inputs, batch);
        step->first_sequence = (uint32_t)(step->world->rank * step->inputs.sizes.rows);
    }
    return sum_counts(step, batch, stop);
}

tt_status tt_step_next(tt_step *step, tt_loader *loader, tt_batch **batch, bool *stop,
                       tt_error *error)
{
    tt_watchdog_note(step->watchdog, "waiting for the loader");
    tt_status status = tt_loader_next(loader, batch, error);
    if (status == TT_OK && !*batch) {
        status = tt_error_set(error, TT_INVALID_INPUT, "the shards ended before the steps did");
    }
    tt_step_call call = tt_step_load(step, status == TT_OK ? *batch : NULL, *stop);
    *stop = call == TT_STEP_STOP;
    return call == TT_STEP_BROKEN ? tt_world_agree(step->world, status, error) : TT_OK;
}

/* --- forward and backward --- */

static void start_early_sum(void *user, int layer)
{
    tt_step *step = user;
    if (step->early[layer] >= 0) {
        tt_collectives_begin(step->collectives, step->early[layer]);
    }
}

static void run_micro_batches(tt_step *step, bool backward)
{
    const tt_step_inputs *inputs = &step->inputs;
    const tt_step_sizes *sizes = &inputs->sizes;
    const tt_step_parts *parts = &inputs->parts;
    tt_encoder *encoder = &step->model->encoder;
    for (int64_t i = 0; i < inputs->micro_batches; i++) {
        int64_t row = i * sizes->micro_batch, token = row * sizes->sequence_length;
        int64_t left = sizes->rows - row, masked = inputs->masked_begin[i];
        bool last = i + 1 == inputs->micro_batches;
        tt_model_inputs micro = {
            .batch = {.batch = left < sizes->micro_batch ? left : sizes->micro_batch,
                      .sequence = sizes->sequence_length,
                      .ids = parts->ids + token,
                      .segments = parts->segments + token,
                      .mask = parts->mask + token,
                      .first_sequence = step->first_sequence + (uint32_t)row},
            .masked_count = inputs->masked_count[i],
            .masked_rows = parts->masked_rows + masked,
            .masked_labels = parts->masked_labels + masked,
            .sentence_labels = parts->sentence_labels + row,
            .masked_scale = parts->scales,
            .sentence_scale = parts->scales + 1};
        encoder->block_done = last && step->collectives ? start_early_sum : NULL;
        encoder->block_done_user = step;
        tt_model_run(step->model, &micro, backward);
    }
    encoder->block_done = NULL;
}

static void accumulate_gradients(tt_step *step)
{
    tt_device *device = step->model->parameters.device;
    tt_watchdog_note(step->watchdog, "forward and backward passes");
    tt_model_begin_step(step->model);
    run_micro_batches(step, true);
    tt_model_end_step(step->model);
    if (step->collectives) {
        tt_watchdog_note(step->watchdog, "all-reduce of gradients");
        device->range_push(device, "all-reduce");
        tt_collectives_finish(step->collectives);
        device->range_pop(device);
    }
}

void tt_step_gradients(tt_step *step)
{
    tt_step_inputs_upload(&step->inputs);
    accumulate_gradients(step);
}

/* --- the whole step --- */

static void apply_objective(tt_step *step)
{
    tt_device *device = step->model->parameters.device;
    const tt_step_parts *parts = &step->inputs.parts;
    if (step->ranks) {
        device->range_push(device, "rank objective");
        tt_rank_objective_apply(step->ranks, parts->ranks, parts->scales, TT_LOSS_COUNT,
                                tt_optimizer_holds(step->optimizer));
        device->range_pop(device);
    }
}

static void whole_step(tt_step *step)
{
    tt_device *device = step->model->parameters.device;
    tt_optimizer_take_settings(step->optimizer, step->inputs.parts.settings);
    accumulate_gradients(step);
    apply_objective(step);
    tt_watchdog_note(step->watchdog, "update of the parameters");
    device->range_push(device, "update");
    tt_optimizer_apply(step->optimizer);
    device->range_pop(device);
}

/* The first step puts into device memory what later ones find there; so the second is the first
 * that may be captured. */
static void give_step(tt_step *step)
{
    tt_device *device = step->model->parameters.device;
    if (!step->captures || step->given == 0) {
        whole_step(step);
        return;
    }
    if (!step->graph && device->capture_begin(device)) {
        whole_step(step);
        step->graph = device->capture_end(device);
    }
    if (step->graph) {
        tt_watchdog_note(step->watchdog, "the step as a whole");
        device->range_push(device, "captured step");
        device->graph_run(device, step->graph);
        device->range_pop(device);
    }
}

static void send_record(tt_step *step)
{
    tt_device *device = step->model->parameters.device;
    int slot = (int)(step->given % TT_TRANSFER_SLOTS);
    tt_step_record *record = step->records[slot];
    step->record_counts[slot] = step->counts;
    device->download(device, record->statistics, tt_parameters_statistics(&step->model->parameters),
                     sizeof record->statistics);
    device->download(device, &record->state, tt_optimizer_state(step->optimizer),
                     sizeof record->state);
    if (step->ranks) {
        device->download(device, &record->ranks, tt_rank_objective_record(step->ranks),
                         sizeof record->ranks);
    }
    step->record_stages[slot] = step->stage;
    device->downloads_end(device, slot);
}

void tt_step_run(tt_step *step, int64_t number, int64_t phase_step)
{
    step->model->encoder.training = true;
    tt_step_parts *host = tt_step_inputs_host(&step->inputs);
    *host->settings = tt_optimizer_settings(step->optimizer, number, phase_step);
    *host->ranks = step->stage;
    tt_step_inputs_upload(&step->inputs);
    give_step(step);
    send_record(step);
    step->given++;
}

/* --- results --- */

static tt_step_result result_of(const float *statistics, tt_step_counts counts)
{
    double masked = counts.masked > 0 ? counts.masked : 1;
    double sentences = counts.sentences > 0 ? counts.sentences : 1;
    return (tt_step_result){.masked_lm_loss = statistics[TT_MASKED_LOSS] / masked,
                            .next_sentence_loss = statistics[TT_SENTENCE_LOSS] / sentences,
                            .masked_lm_accuracy = statistics[TT_MASKED_CORRECT] / masked,
                            .next_sentence_accuracy = statistics[TT_SENTENCE_CORRECT] / sentences,
                            .masked_count = counts.masked,
                            .sentence_count = counts.sentences,
                            .finite = true};
}

static tt_step_result read_record(tt_step *step, int64_t number)
{
    tt_device *device = step->model->parameters.device;
    int slot = (int)(number % TT_TRANSFER_SLOTS);
    device->downloads_settled(device, slot);
    const tt_step_record *record = step->records[slot];
    tt_step_result result = result_of(record->statistics, step->record_counts[slot]);
    result.gradient_norm = record->state.gradient_norm;
    result.finite = record->state.finite > 0.5f;
    memcpy(result.learning_rate, record->state.learning_rate, sizeof result.learning_rate);
    if (step->ranks) {
        result.has_ranks = true;
        result.stage = step->record_stages[slot];
        result.ranks = record->ranks;
    }
    return result;
}

tt_step_result tt_step_read(tt_step *step)
{
    return read_record(step, step->given - 1);
}

tt_step_result tt_step_read_earlier(tt_step *step)
{
    return read_record(step, step->given - 2);
}

tt_status tt_step_check(tt_step *step, tt_error *error)
{
    tt_device *device = step->model->parameters.device;
    TT_TRY(device->check(device, error));
    return step->collectives ? tt_collectives_check(step->collectives, error) : TT_OK;
}

/* --- evaluation --- */

void tt_step_begin_evaluation(tt_step *step)
{
    tt_parameters *parameters = &step->model->parameters;
    parameters->device->zero(parameters->device, tt_parameters_statistics(parameters),
                             TT_STATISTICS * sizeof(float));
    tt_model_materialise(step->model);
    step->model->encoder.training = false;
    step->evaluated = (tt_step_counts){0};
}

void tt_step_evaluate(tt_step *step)
{
    tt_watchdog_note(step->watchdog, "validation");
    tt_step_inputs_upload(&step->inputs);
    run_micro_batches(step, false);
    step->evaluated.masked += step->counts.masked;
    step->evaluated.sentences += step->counts.sentences;
}

tt_step_result tt_step_end_evaluation(tt_step *step)
{
    tt_parameters *parameters = &step->model->parameters;
    tt_device *device = parameters->device;
    float *sums = tt_parameters_statistics(parameters), statistics[TT_STATISTICS];
    tt_watchdog_note(step->watchdog, "all-reduce of validation losses");
    if (step->collectives) {
        tt_collectives_sum(step->collectives, sums, TT_STATISTICS);
    }
    device->copy_out(device, statistics, sums, sizeof statistics);
    return result_of(statistics, step->evaluated);
}

#include "launch/step.h"

#include <stdlib.h>
#include <string.h>

static void *device_room(tt_step *step, size_t bytes, bool *complete)
{
    tt_device *device = step->model->parameters.device;
    void *memory = device->allocate(device, bytes);
    *complete = *complete && memory;
    return memory;
}

tt_status tt_step_create(tt_step *step, tt_model *model, tt_optimizer *optimizer,
                         const tt_world *world, const tt_step_sizes *sizes, tt_error *error)
{
    *step = (tt_step){.model = model, .optimizer = optimizer, .world = world, .sizes = *sizes};
    step->micro_batches = (sizes->rows + sizes->micro_batch - 1) / sizes->micro_batch;
    size_t tokens = (size_t)(sizes->rows * sizes->sequence_length);
    size_t masked = (size_t)(sizes->rows * sizes->max_predictions);
    bool complete = true;
    step->ids = device_room(step, tokens * sizeof(int32_t), &complete);
    step->segments = device_room(step, tokens * sizeof(int32_t), &complete);
    step->mask = device_room(step, tokens, &complete);
    step->masked_rows = device_room(step, masked * sizeof(int32_t), &complete);
    step->masked_labels = device_room(step, masked * sizeof(int32_t), &complete);
    step->sentence_labels = device_room(step, (size_t)sizes->rows * sizeof(int32_t), &complete);
    step->scales = device_room(step, 2 * sizeof(float), &complete);
    step->masked_counts = calloc((size_t)step->micro_batches, sizeof(int64_t));
    step->packing = calloc(2 * masked + 1, sizeof(int32_t));
    if (!complete || !step->masked_counts || !step->packing) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the input buffers of a step");
    }
    if (optimizer) {
        model->encoder.step = &tt_optimizer_state(optimizer)->step;
    }
    return tt_model_plan(model, sizes->micro_batch, sizes->sequence_length, sizes->max_predictions,
                         optimizer != NULL, error);
}

void tt_step_destroy(tt_step *step)
{
    if (step->model) {
        tt_device *device = step->model->parameters.device;
        void *rooms[] = {step->ids,           step->segments,        step->mask,  step->masked_rows,
                         step->masked_labels, step->sentence_labels, step->scales};
        for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
            device->release(device, rooms[i]);
        }
    }
    free(step->masked_counts);
    free(step->packing);
    *step = (tt_step){0};
}

/* Packs the batch's masked positions, micro-batch by micro-batch, as rows counted within it. */
static void pack_masked(tt_step *step, const tt_batch *batch)
{
    tt_device *device = step->model->parameters.device;
    int64_t predictions = batch->max_predictions, micro = step->sizes.micro_batch, used = 0;
    int32_t *rows = step->packing;
    int32_t *labels = rows + step->sizes.rows * step->sizes.max_predictions;
    memset(step->masked_counts, 0, (size_t)step->micro_batches * sizeof(int64_t));
    for (int64_t row = 0; row < batch->rows; row++) {
        for (int64_t p = 0; p < predictions; p++) {
            int32_t position = batch->masked_positions[row * predictions + p];
            if (position < 0) {
                break;
            }
            rows[used] = (int32_t)(row % micro * batch->sequence_length) + position;
            labels[used] = batch->masked_labels[row * predictions + p];
            used++;
            step->masked_counts[row / micro]++;
        }
    }
    device->copy_in(device, step->masked_rows, rows, (size_t)used * sizeof(int32_t));
    device->copy_in(device, step->masked_labels, labels, (size_t)used * sizeof(int32_t));
}

static tt_step_call sum_counts(tt_step *step, const tt_batch *batch, bool stop)
{
    tt_device *device = step->model->parameters.device;
    double counts[4] = {0.0, 0.0, stop ? 1.0 : 0.0, batch ? 0.0 : 1.0};
    if (batch) {
        counts[0] = (double)batch->masked_count;
        for (int64_t row = 0; row < batch->rows; row++) {
            counts[1] += batch->next_sentence_labels[row] >= 0;
        }
    }
    tt_watchdog_note(step->watchdog, "waiting for the other ranks to have a batch");
    tt_world_sum_doubles(step->world, counts, 4);
    step->masked_total = counts[0];
    step->sentence_total = counts[1];
    float scales[2];
    for (int i = 0; i < 2; i++) {
        scales[i] = (float)(1.0 / (counts[i] > 1.0 ? counts[i] : 1.0));
    }
    device->copy_in(device, step->scales, scales, sizeof scales);
    if (counts[3] > 0.0) {
        return TT_STEP_BROKEN;
    }
    return counts[2] > 0.0 ? TT_STEP_STOP : TT_STEP_GO_ON;
}

static void copy_batch(tt_step *step, const tt_batch *batch)
{
    tt_device *device = step->model->parameters.device;
    size_t tokens = (size_t)(batch->rows * batch->sequence_length);
    device->copy_in(device, step->ids, batch->input_ids, tokens * sizeof(int32_t));
    device->copy_in(device, step->segments, batch->segment_ids, tokens * sizeof(int32_t));
    device->copy_in(device, step->mask, batch->attention_mask, tokens);
    device->copy_in(device, step->sentence_labels, batch->next_sentence_labels,
                    (size_t)batch->rows * sizeof(int32_t));
    pack_masked(step, batch);
    step->first_sequence = (uint32_t)(step->world->rank * step->sizes.rows);
}

tt_step_call tt_step_load(tt_step *step, const tt_batch *batch, bool stop)
{
    if (batch) {
        copy_batch(step, batch);
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

static void run_micro_batches(tt_step *step, bool backward)
{
    const tt_step_sizes *sizes = &step->sizes;
    int64_t masked = 0;
    for (int64_t i = 0; i < step->micro_batches; i++) {
        int64_t row = i * sizes->micro_batch, token = row * sizes->sequence_length;
        int64_t left = sizes->rows - row;
        tt_model_inputs inputs = {
            .batch = {.batch = left < sizes->micro_batch ? left : sizes->micro_batch,
                      .sequence = sizes->sequence_length,
                      .ids = step->ids + token,
                      .segments = step->segments + token,
                      .mask = step->mask + token,
                      .first_sequence = step->first_sequence + (uint32_t)row},
            .masked_count = step->masked_counts[i],
            .masked_rows = step->masked_rows + masked,
            .masked_labels = step->masked_labels + masked,
            .sentence_labels = step->sentence_labels + row,
            .masked_scale = step->scales,
            .sentence_scale = step->scales + 1};
        tt_model_run(step->model, &inputs, backward);
        masked += step->masked_counts[i];
    }
}

void tt_step_gradients(tt_step *step)
{
    tt_parameters *parameters = &step->model->parameters;
    tt_watchdog_note(step->watchdog, "forward and backward passes");
    tt_model_begin_step(step->model);
    run_micro_batches(step, true);
    tt_model_end_step(step->model);
    tt_watchdog_note(step->watchdog, "all-reduce of gradients");
    tt_world_sum(step->world, parameters->gradients, parameters->total + TT_STATISTICS);
}

void tt_step_run(tt_step *step, int64_t number, int64_t phase_step)
{
    step->model->encoder.training = true;
    tt_optimizer_prepare_step(step->optimizer, number, phase_step);
    tt_step_gradients(step);
    tt_watchdog_note(step->watchdog, "update of the parameters");
    tt_optimizer_apply(step->optimizer);
}

static tt_step_result read_statistics(tt_step *step, double masked, double sentences)
{
    tt_parameters *parameters = &step->model->parameters;
    tt_device *device = parameters->device;
    float statistics[TT_STATISTICS];
    device->copy_out(device, statistics, tt_parameters_statistics(parameters), sizeof statistics);
    device->synchronize(device);
    double masked_divisor = masked > 0 ? masked : 1,
           sentence_divisor = sentences > 0 ? sentences : 1;
    return (tt_step_result){.masked_lm_loss = statistics[TT_MASKED_LOSS] / masked_divisor,
                            .next_sentence_loss = statistics[TT_SENTENCE_LOSS] / sentence_divisor,
                            .masked_lm_accuracy = statistics[TT_MASKED_CORRECT] / masked_divisor,
                            .next_sentence_accuracy =
                                statistics[TT_SENTENCE_CORRECT] / sentence_divisor,
                            .masked_count = masked,
                            .sentence_count = sentences,
                            .finite = true};
}

tt_step_result tt_step_read(tt_step *step)
{
    tt_step_result result = read_statistics(step, step->masked_total, step->sentence_total);
    tt_step_state state = tt_optimizer_read_state(step->optimizer);
    result.gradient_norm = state.gradient_norm;
    result.finite = state.finite > 0.5f;
    memcpy(result.learning_rate, state.learning_rate, sizeof result.learning_rate);
    return result;
}

void tt_step_begin_evaluation(tt_step *step)
{
    tt_parameters *parameters = &step->model->parameters;
    parameters->device->zero(parameters->device, tt_parameters_statistics(parameters),
                             TT_STATISTICS * sizeof(float));
    tt_model_materialise(step->model);
    step->model->encoder.training = false;
    step->evaluated_masked = step->evaluated_sentences = 0;
}

void tt_step_evaluate(tt_step *step)
{
    tt_watchdog_note(step->watchdog, "validation");
    run_micro_batches(step, false);
    step->evaluated_masked += step->masked_total;
    step->evaluated_sentences += step->sentence_total;
}

tt_step_result tt_step_end_evaluation(tt_step *step)
{
    tt_watchdog_note(step->watchdog, "all-reduce of validation losses");
    tt_world_sum(step->world, tt_parameters_statistics(&step->model->parameters), TT_STATISTICS);
    return read_statistics(step, step->evaluated_masked, step->evaluated_sentences);
}

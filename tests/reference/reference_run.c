#include "tests/reference/reference_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static void *keep(tt_run_batch *batch, const void *host, size_t bytes)
{
    void *memory = batch->device->allocate(batch->device, bytes + sizeof(float));
    assert_non_null(memory);
    batch->device->copy_in(batch->device, memory, host, bytes);
    assert_in_range(batch->memory_count, 0, 7);
    batch->memory[batch->memory_count++] = memory;
    return memory;
}

static const float *keep_scale(tt_run_batch *batch, int64_t count)
{
    float scale = 1.0f / (float)(count > 0 ? count : 1);
    return keep(batch, &scale, sizeof(scale));
}

/* Lists masked positions as token rows with their labels. */
static void keep_masked(tt_run_batch *run, const tt_double_batch *batch)
{
    size_t room = (size_t)(batch->batch * batch->max_predictions) + 1;
    int32_t *rows = calloc(room, sizeof(*rows));
    int32_t *labels = calloc(room, sizeof(*labels));
    assert_non_null(rows);
    assert_non_null(labels);
    int64_t count = 0;
    for (int64_t b = 0; b < batch->batch; b++) {
        const int32_t *positions = batch->masked_positions + b * batch->max_predictions;
        for (int64_t p = 0; p < batch->max_predictions && positions[p] != 0; p++) {
            rows[count] = (int32_t)(b * batch->sequence) + positions[p];
            labels[count++] = batch->masked_ids[b * batch->max_predictions + p];
        }
    }
    run->inputs.masked_count = count;
    run->inputs.masked_rows = keep(run, rows, (size_t)count * sizeof(*rows));
    run->inputs.masked_labels = keep(run, labels, (size_t)count * sizeof(*labels));
    free(rows);
    free(labels);
}

tt_run_batch tt_run_batch_make(tt_device *device, const tt_double_batch *batch)
{
    tt_run_batch run = {.device = device};
    size_t tokens = (size_t)(batch->batch * batch->sequence);
    uint8_t *mask = calloc(tokens + 1, 1);
    assert_non_null(mask);
    for (size_t t = 0; t < tokens; t++) {
        mask[t] = batch->mask[t] != 0;
    }
    run.inputs.batch.batch = batch->batch;
    run.inputs.batch.sequence = batch->sequence;
    run.inputs.batch.ids = keep(&run, batch->input_ids, tokens * sizeof(int32_t));
    run.inputs.batch.segments = keep(&run, batch->segment_ids, tokens * sizeof(int32_t));
    run.inputs.batch.mask = keep(&run, mask, tokens);
    free(mask);
    if (batch->masked_positions != NULL) {
        keep_masked(&run, batch);
        run.inputs.masked_scale = keep_scale(&run, run.inputs.masked_count);
    }
    size_t labels = (size_t)batch->batch * sizeof(int32_t);
    run.inputs.sentence_labels = keep(&run, batch->labels, labels);
    run.inputs.sentence_scale = keep_scale(&run, batch->batch);
    return run;
}

void tt_run_batch_free(tt_run_batch *batch)
{
    for (int i = 0; i < batch->memory_count; i++) {
        batch->device->release(batch->device, batch->memory[i]);
    }
    *batch = (tt_run_batch){0};
}

void tt_run_step(tt_model *model, const tt_run_batch *batch)
{
    tt_model_begin_step(model);
    tt_model_run(model, &batch->inputs, true);
    tt_model_end_step(model);
    test_device_check(batch->device);
}

void tt_run_forward(tt_model *model, const tt_run_batch *batch)
{
    tt_model_materialise(model);
    tt_model_run(model, &batch->inputs, false);
    test_device_check(batch->device);
}

static double statistic(const tt_model *model, int place)
{
    tt_device *device = model->parameters.device;
    float value;
    device->copy_out(device, &value, tt_parameters_statistics(&model->parameters) + place,
                     sizeof(value));
    return value;
}

double tt_run_masked_loss(const tt_model *model, const tt_run_batch *batch)
{
    int64_t count = batch->inputs.masked_count;
    return statistic(model, TT_MASKED_LOSS) / (double)(count > 0 ? count : 1);
}

double tt_run_sentence_loss(const tt_model *model, const tt_run_batch *batch)
{
    return statistic(model, TT_SENTENCE_LOSS) / (double)batch->inputs.batch.batch;
}

static void add_bias(float *logits, int64_t rows, int64_t columns, const double *bias)
{
    for (int64_t i = 0; i < rows * columns; i++) {
        logits[i] += (float)bias[i % columns];
    }
}

/* The head keeps the logits of its last chunk only, so the list of masked positions is cut shorter
 * by what was seen until nothing is left. */
float *tt_run_masked_logits(tt_model *model, const tt_run_batch *batch, const double *bias)
{
    int64_t columns = model->configuration.vocabulary_size;
    float *logits = calloc((size_t)(batch->inputs.masked_count * columns) + 1, sizeof(*logits));
    assert_non_null(logits);
    tt_run_batch part = *batch;
    while (part.inputs.masked_count > 0) {
        tt_run_forward(model, &part);
        tt_masked_lm_inputs inputs = {.count = part.inputs.masked_count};
        tt_matrix seen = tt_masked_lm_head_logits(&model->masked_lm, &inputs);
        assert_in_range(seen.rows, 1, part.inputs.masked_count);
        float *rows = tt_suite_copy_out(batch->device, seen);
        part.inputs.masked_count -= seen.rows;
        memcpy(logits + part.inputs.masked_count * columns, rows,
               (size_t)(seen.rows * columns) * sizeof(*rows));
        free(rows);
    }
    add_bias(logits, batch->inputs.masked_count, columns, bias);
    return logits;
}

float *tt_run_sentence_logits(tt_model *model, const tt_run_batch *batch, const double *bias)
{
    tt_run_forward(model, batch);
    tt_matrix seen = tt_sentence_head_logits(&model->sentence, &batch->inputs.batch);
    float *logits = tt_suite_copy_out(batch->device, seen);
    add_bias(logits, seen.rows, seen.columns, bias);
    return logits;
}

void tt_run_set_parameters(tt_model *model, const tt_double_tensors *parameters,
                           tt_run_naming naming)
{
    char name[TT_REFERENCE_NAME];
    for (int i = 0; i < parameters->count; i++) {
        const tt_double_tensor *tensor = parameters->items[i];
        naming(tensor->name, name, sizeof(name));
        if (name[0] != 0) {
            tt_suite_set_parameter(&model->parameters, name, tensor->values, tensor->shape.count);
        }
    }
}

void tt_run_compare_gradients(const tt_model *model, const tt_double_tensors *expected,
                              tt_run_naming naming, tt_reference_check *check)
{
    char name[TT_REFERENCE_NAME];
    for (int i = 0; i < expected->count; i++) {
        const tt_double_tensor *tensor = expected->items[i];
        naming(tensor->name, name, sizeof(name));
        if (name[0] != 0) {
            float *found = tt_suite_gradient(&model->parameters, name, tensor->shape.count);
            tt_reference_check_gradient(check, tensor->name, tensor->values, found,
                                        tensor->shape.count);
            free(found);
        }
    }
}

void tt_run_require_complete(const tt_model *model, int64_t count)
{
    int64_t size = tt_parameters_size(&model->parameters);
    if (size != count) {
        fail_msg("the model learns %lld numbers, the file has %lld", (long long)size,
                 (long long)count);
    }
}

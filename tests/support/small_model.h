/* Models small enough to be run many times, and batches for them whose rows differ in length, in
 * their number of masked tokens and in their label. */
#ifndef TT_TESTS_SUPPORT_SMALL_MODEL_H
#define TT_TESTS_SUPPORT_SMALL_MODEL_H

#include "data/loader.h"
#include "models/model.h"
#include "support/test_device.h"

#include <math.h>

#define UNUSED __attribute__((unused))

enum {
    SMALL_ROWS = 8,
    SMALL_LENGTH = 12,
    SMALL_PREDICTIONS = 5,
    SMALL_VOCABULARY = 97,
    SMALL_HIDDEN = 24,
    SMALL_INTERMEDIATE = 60,
    SMALL_CLASSES = 3,
};

static UNUSED void small_succeed(tt_status status, const tt_error *error)
{
    if (status != TT_OK) {
        fail_msg("%s", error->message);
    }
}

/* Weights large enough for every parameter to matter, dropout everywhere. */
static UNUSED tt_configuration small_configuration(tt_form form)
{
    tt_configuration configuration = {.vocabulary_size = SMALL_VOCABULARY,
                                      .hidden_size = SMALL_HIDDEN,
                                      .layers = 2,
                                      .heads = 3,
                                      .intermediate_size = SMALL_INTERMEDIATE,
                                      .max_positions = 16,
                                      .segment_types = 2,
                                      .gelu = TT_GELU_ERF,
                                      .dropout = 0.1f,
                                      .attention_dropout = 0.2f,
                                      .layer_norm_epsilon = 1e-12f,
                                      .initializer_range = 0.3f,
                                      .next_sentence = true,
                                      .threshold = 0.01f,
                                      .train_deviation = 0.3f};
    const int64_t ranks[TT_MAP_KINDS] = {5, 6, 4, 3, 7};
    for (int kind = 0; kind < TT_MAP_KINDS; kind++) {
        int64_t inputs, outputs;
        tt_error error = {0};
        tt_linear_form *map = &configuration.maps[kind];
        tt_configuration_map_size(&configuration, kind, &inputs, &outputs);
        small_succeed(
            tt_train_shape_choose(inputs, outputs, 2, 2, ranks[kind], &map->shape, &error), &error);
        map->form = form;
    }
    return configuration;
}

/* Tensor trains everywhere, the words a tensor-train matrix. */
static UNUSED tt_configuration small_words_configuration(bool untied)
{
    tt_error error = {0};
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    configuration.embedding.form = TT_TENSOR_TRAIN;
    configuration.embedding.untied = untied;
    small_succeed(tt_train_matrix_shape_choose(SMALL_VOCABULARY, SMALL_HIDDEN, 3, 6,
                                               &configuration.embedding.shape, &error),
                  &error);
    return configuration;
}

static const int small_masked_counts[SMALL_ROWS] = {3, 1, 0, 0, 5, 2, 1, 2};

/* A batch and the memory that it lies in. */
typedef struct {
    tt_batch batch;
    int32_t ids[SMALL_ROWS * SMALL_LENGTH], segments[SMALL_ROWS * SMALL_LENGTH];
    uint8_t mask[SMALL_ROWS * SMALL_LENGTH];
    int32_t positions[SMALL_ROWS * SMALL_PREDICTIONS], labels[SMALL_ROWS * SMALL_PREDICTIONS];
    int32_t sentences[SMALL_ROWS];
} small_batch;

static UNUSED void small_batch_row(small_batch *made, int row, int masked, tt_random *random)
{
    int length = SMALL_LENGTH - row % 4;
    for (int i = 0; i < SMALL_LENGTH; i++) {
        int place = row * SMALL_LENGTH + i;
        made->ids[place] = i < length ? (int32_t)tt_random_below(random, SMALL_VOCABULARY) : 0;
        made->segments[place] = i >= length / 2 && i < length;
        made->mask[place] = i < length;
    }
    for (int p = 0; p < SMALL_PREDICTIONS; p++) {
        int place = row * SMALL_PREDICTIONS + p;
        made->positions[place] = p < masked ? 1 + p + row % 2 : -1;
        made->labels[place] = p < masked ? (int32_t)tt_random_below(random, SMALL_VOCABULARY) : -1;
        made->batch.masked_count += p < masked;
    }
    made->sentences[row] = row == 5 ? -1 : row % 2;
}

/* `masked_counts`: of every row, or NULL for no masked token at all. */
static UNUSED void small_batch_make(small_batch *made, const int *masked_counts, uint64_t seed)
{
    tt_random random;
    tt_random_start(&random, seed, 77);
    memset(made, 0, sizeof *made);
    made->batch = (tt_batch){.rows = SMALL_ROWS,
                             .sequence_length = SMALL_LENGTH,
                             .max_predictions = SMALL_PREDICTIONS,
                             .input_ids = made->ids,
                             .attention_mask = made->mask,
                             .segment_ids = made->segments,
                             .masked_positions = made->positions,
                             .masked_labels = made->labels,
                             .next_sentence_labels = made->sentences};
    for (int row = 0; row < SMALL_ROWS; row++) {
        small_batch_row(made, row, masked_counts ? masked_counts[row] : 0, &random);
    }
}

/* --- runs of a model on a batch -------------------------------------------------------------- */

/* A model with dropout's counter and one over the batch's counts in device memory. */
typedef struct {
    tt_device *device;
    tt_model model;
    uint32_t *step;
    float *scales;
} small_run;

/* `classes` 0: the pre-training model. Dropout is on. */
static UNUSED void small_run_create(small_run *run, int threads,
                                    const tt_configuration *configuration, int classes,
                                    uint64_t seed)
{
    tt_error error = {0};
    uint32_t step = 9;
    *run = (small_run){.device = test_device(threads)};
    small_succeed(classes > 0
                      ? tt_model_create_classification(&run->model, run->device, configuration,
                                                       classes, seed, false, &error)
                      : tt_model_create_pretraining(&run->model, run->device, configuration, seed,
                                                    false, &error),
                  &error);
    run->step = run->device->allocate(run->device, sizeof *run->step);
    run->scales = run->device->allocate(run->device, 2 * sizeof *run->scales);
    run->device->copy_in(run->device, run->step, &step, sizeof step);
    run->model.encoder.step = run->step;
    run->model.encoder.training = true;
    run->model.encoder.seed = 1234;
}

static UNUSED void small_run_plan(small_run *run, int64_t batch, bool with_gradients)
{
    tt_error error = {0};
    small_succeed(
        tt_model_plan(&run->model, batch, SMALL_LENGTH, SMALL_PREDICTIONS, with_gradients, &error),
        &error);
}

static UNUSED void small_run_free(small_run *run)
{
    run->device->release(run->device, run->step);
    run->device->release(run->device, run->scales);
    tt_model_free(&run->model);
    tt_device_destroy(&run->device);
}

static UNUSED void small_set_scales(small_run *run, const tt_batch *batch)
{
    float scales[2] = {0.0f, 0.0f};
    for (int64_t row = 0; row < batch->rows; row++) {
        scales[1] += batch->next_sentence_labels[row] >= 0 ? 1.0f : 0.0f;
    }
    scales[0] = 1.0f / (float)(batch->masked_count > 0 ? batch->masked_count : 1);
    scales[1] = 1.0f / (scales[1] > 0.0f ? scales[1] : 1.0f);
    run->device->copy_in(run->device, run->scales, scales, sizeof scales);
}

/* Rows [first, first + rows) of the batch as one micro-batch. */
static UNUSED void small_run_rows(small_run *run, const tt_batch *batch, int64_t first,
                                  int64_t rows, bool backward)
{
    int32_t masked_rows[SMALL_ROWS * SMALL_PREDICTIONS];
    int32_t masked_labels[SMALL_ROWS * SMALL_PREDICTIONS];
    int64_t masked = 0, length = batch->sequence_length;
    size_t tokens = (size_t)(rows * length);
    for (int64_t i = first * SMALL_PREDICTIONS; i < (first + rows) * SMALL_PREDICTIONS; i++) {
        if (batch->masked_positions[i] >= 0) {
            masked_rows[masked] =
                (int32_t)((i / SMALL_PREDICTIONS - first) * length) + batch->masked_positions[i];
            masked_labels[masked++] = batch->masked_labels[i];
        }
    }
    tt_device *device = run->device;
    void *memory[] = {
        test_copy_in(device, batch->input_ids + first * length, tokens * sizeof(int32_t)),
        test_copy_in(device, batch->segment_ids + first * length, tokens * sizeof(int32_t)),
        test_copy_in(device, batch->attention_mask + first * length, tokens),
        test_copy_in(device, masked_rows, (size_t)masked * sizeof(int32_t)),
        test_copy_in(device, masked_labels, (size_t)masked * sizeof(int32_t)),
        test_copy_in(device, batch->next_sentence_labels + first, (size_t)rows * sizeof(int32_t))};
    tt_model_inputs inputs = {.batch = {.batch = rows,
                                        .sequence = length,
                                        .ids = memory[0],
                                        .segments = memory[1],
                                        .mask = memory[2],
                                        .first_sequence = (uint32_t)first},
                              .masked_count = masked,
                              .masked_rows = memory[3],
                              .masked_labels = memory[4],
                              .sentence_labels = memory[5],
                              .masked_scale = run->scales,
                              .sentence_scale = run->scales + 1};
    tt_model_run(&run->model, &inputs, backward);
    test_device_check(device);
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        device->release(device, memory[i]);
    }
}

/* Gradients and losses of the whole batch, `micro` rows at a time. */
static UNUSED void small_run_step(small_run *run, const tt_batch *batch, int64_t micro)
{
    small_set_scales(run, batch);
    tt_model_begin_step(&run->model);
    for (int64_t first = 0; first < batch->rows; first += micro) {
        int64_t left = batch->rows - first;
        small_run_rows(run, batch, first, left < micro ? left : micro, true);
    }
    tt_model_end_step(&run->model);
}

/* Losses alone, of parameters that may have changed. */
static UNUSED void small_run_forward(small_run *run, const tt_batch *batch)
{
    tt_parameters *parameters = &run->model.parameters;
    small_set_scales(run, batch);
    run->device->zero(run->device, tt_parameters_statistics(parameters),
                      TT_STATISTICS * sizeof(float));
    tt_model_materialise(&run->model);
    small_run_rows(run, batch, 0, batch->rows, false);
}

static UNUSED double small_statistic(const small_run *run, int place)
{
    float statistics[TT_STATISTICS];
    run->device->copy_out(run->device, statistics, tt_parameters_statistics(&run->model.parameters),
                          sizeof statistics);
    return statistics[place];
}

/* What the gradients are of: the mean losses of masked tokens and of sentences, added. */
static UNUSED double small_loss(const small_run *run)
{
    float scales[2];
    run->device->copy_out(run->device, scales, run->scales, sizeof scales);
    return small_statistic(run, TT_MASKED_LOSS) * (double)scales[0] +
           small_statistic(run, TT_SENTENCE_LOSS) * (double)scales[1];
}

/* The gradients of all parameters on the host, gaps included; free() them. */
static UNUSED float *small_gradients(const small_run *run)
{
    const tt_parameters *parameters = &run->model.parameters;
    return test_copy_out(run->device, parameters->gradients, tt_floats(parameters->total));
}

/* How near two ways to the same numbers come: as given in f32, where only the order of sums
 * differs; in other precisions every activation on the way is rounded differently. */
static UNUSED double small_tolerance(double f32)
{
    const double bounds[] = {f32, 1e-2, 5e-2};
    return bounds[test_device_precision()];
}

/* Relative Frobenius distance of entries [first, first + count), which `tolerance` bounds. */
static UNUSED void small_expect_range(const char *what, const float *found, const float *expected,
                                      int64_t first, int64_t count, double tolerance)
{
    double difference = 0.0, size = 0.0;
    for (int64_t j = first; j < first + count; j++) {
        double d = (double)found[j] - (double)expected[j];
        difference += d * d;
        size += (double)expected[j] * expected[j];
    }
    if (!(difference <= tolerance * tolerance * size)) {
        fail_msg("gradient of %s: relative distance %.3g above %.3g", what, sqrt(difference / size),
                 tolerance);
    }
}

/* The whole gradient within `tolerance`, and that of each parameter within ten times as much. */
static UNUSED void small_expect_gradients(const small_run *run, const float *expected,
                                          double tolerance)
{
    const tt_parameters *parameters = &run->model.parameters;
    float *found = small_gradients(run);
    small_expect_range("the model", found, expected, 0, parameters->total, tolerance);
    for (int i = 0; i < parameters->count; i++) {
        const tt_parameter *item = &parameters->items[i];
        small_expect_range(item->name, found, expected, item->offset, item->count,
                           10.0 * tolerance);
    }
    free(found);
}

static UNUSED void small_expect_finite(const small_run *run)
{
    float *found = small_gradients(run);
    for (int64_t j = 0; j < run->model.parameters.total; j++) {
        assert_true(isfinite(found[j]));
    }
    free(found);
}

#endif

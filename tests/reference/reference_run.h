/* Runs the product's models on the batch of a reference file and compares what comes out. */
#ifndef TT_TESTS_REFERENCE_RUN_H
#define TT_TESTS_REFERENCE_RUN_H

#include "models/model.h"
#include "tests/reference/double_model.h"
#include "tests/reference/reference_suite.h"

/* The batch in the device's memory, with what belongs to it. */
typedef struct {
    tt_device *device;
    tt_model_inputs inputs;
    void *memory[8];
    int memory_count;
} tt_run_batch;

tt_run_batch tt_run_batch_make(tt_device *device, const tt_double_batch *batch);
void tt_run_batch_free(tt_run_batch *batch);

/* Forward and backward, or forward alone. The model must be planned. */
void tt_run_step(tt_model *model, const tt_run_batch *batch);
void tt_run_forward(tt_model *model, const tt_run_batch *batch);

/* The mean losses of the last step, from the model's statistics; 0 without masked positions. */
double tt_run_masked_loss(const tt_model *model, const tt_run_batch *batch);
double tt_run_sentence_loss(const tt_model *model, const tt_run_batch *batch);

/* Logits with their bias, by forward passes: [masked positions, vocabulary], [batch, classes]. The
 * bias is the file's. free() them. */
float *tt_run_masked_logits(tt_model *model, const tt_run_batch *batch, const double *bias);
float *tt_run_sentence_logits(tt_model *model, const tt_run_batch *batch, const double *bias);

/* What parameter `name` of the file is called in the model. */
typedef void (*tt_run_naming)(const char *name, char *model_name, size_t size);
/* Sets every parameter of the model that the file has, and compares every gradient. Parameters
 * whose model name comes out empty are left to the caller. */
void tt_run_set_parameters(tt_model *model, const tt_double_tensors *parameters,
                           tt_run_naming naming);
void tt_run_compare_gradients(const tt_model *model, const tt_double_tensors *expected,
                              tt_run_naming naming, tt_reference_check *check);

/* Every learnable number of the model must be set by the file: fails on another count. */
void tt_run_require_complete(const tt_model *model, int64_t count);

#endif

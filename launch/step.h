/* One optimizer step on one rank, from a batch to updated parameters, in a fixed order:
 *
 *     load         batch into the step's input buffers; counts summed over ranks
 *     materialise  factors of all tensor trains
 *     micro-batches: forward, loss, backward
 *     contract     gradients of cores and diagonals
 *     all-reduce   cores, diagonals, dense rest and statistics in one flat buffer
 *     apply        check, clip, update
 *
 * Losses are sums, divided once by the counts of the whole step over all micro-batches and ranks;
 * so neither their number changes the result. Everything is allocated by create; a step allocates
 * nothing. */
#ifndef TT_LAUNCH_STEP_H
#define TT_LAUNCH_STEP_H

#include "core/optimizer.h"
#include "data/loader.h"
#include "dist/watchdog.h"
#include "models/model.h"

typedef struct {
    int64_t rows;        /* sequences of this rank in a step */
    int64_t micro_batch; /* of them at a time */
    int64_t sequence_length;
    int64_t max_predictions; /* of a sequence */
} tt_step_sizes;

typedef struct {
    tt_model *model;
    tt_optimizer *optimizer; /* NULL: evaluation only */
    const tt_world *world;
    tt_watchdog *watchdog; /* told what the step is at; NULL after create, set by who has one */
    tt_step_sizes sizes;

    /* Device buffers of all rows of the step; masked positions are packed by micro-batch. */
    int32_t *ids, *segments, *masked_rows, *masked_labels, *sentence_labels;
    uint8_t *mask;
    float *scales;          /* 1 / masked positions, 1 / labelled sequences */
    int64_t *masked_counts; /* host: of each micro-batch */
    int32_t *packing;       /* host: room to pack masked positions */
    int64_t micro_batches;
    uint32_t first_sequence;                      /* number of row 0 in the global batch */
    double masked_total, sentence_total;          /* of the batch loaded last, over all ranks */
    double evaluated_masked, evaluated_sentences; /* since begin_evaluation */
} tt_step;

/* What a step, or a number of evaluated batches, came to, over all ranks. */
typedef struct {
    double masked_lm_loss, next_sentence_loss; /* means; 0 without any */
    double masked_lm_accuracy, next_sentence_accuracy;
    double masked_count, sentence_count;
    float gradient_norm, learning_rate[TT_GROUP_COUNT];
    bool finite;
} tt_step_result;

/* Plans the model for these sizes and allocates the inputs. */
tt_status tt_step_create(tt_step *step, tt_model *model, tt_optimizer *optimizer,
                         const tt_world *world, const tt_step_sizes *sizes, tt_error *error);
void tt_step_destroy(tt_step *step);

/* What the ranks come to when they load a batch. */
typedef enum {
    TT_STEP_GO_ON,
    TT_STEP_STOP,   /* run this step; a rank was asked to end the run after it */
    TT_STEP_BROKEN, /* a rank has no batch, so there is no step */
} tt_step_call;

/* Copies a batch of sizes.rows rows in and sums counts over ranks. NULL: this rank has none.
 * `stop`: this rank was asked to end the run. Every rank gets the same answer. */
tt_step_call tt_step_load(tt_step *step, const tt_batch *batch, bool stop);
/* Loads the loader's next batch. Where a rank's loader fails, every rank gets its status and
 * message. `stop`: as above on entry; on return, whether any rank was asked. */
tt_status tt_step_next(tt_step *step, tt_loader *loader, tt_batch **batch, bool *stop,
                       tt_error *error);

/* Forward and backward passes and the all-reduce, without the update: gradients of the whole step
 * are then in the model's parameters, the same on every rank. */
void tt_step_gradients(tt_step *step);

/* The whole step. `number`: attempted steps in the run so far, which dropout counts; `phase_step`:
 * in the phase, which the learning rate follows. */
void tt_step_run(tt_step *step, int64_t number, int64_t phase_step);
tt_step_result tt_step_read(tt_step *step);

/* Evaluation: begin, then for each batch load and evaluate, then read. No dropout, no gradients. */
void tt_step_begin_evaluation(tt_step *step);
void tt_step_evaluate(tt_step *step);
tt_step_result tt_step_end_evaluation(tt_step *step);

#endif

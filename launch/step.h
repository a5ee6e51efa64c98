/* One optimizer step on one rank, from a batch to updated parameters, in a fixed order:
 *
 *     load         batch into the step's input buffers; counts summed over ranks
 *     materialise  factors of all tensor trains
 *     micro-batches: forward, loss, backward; on GPUs dense gradients that are final are summed
 *                  over ranks beside the rest of the last backward pass
 *     contract     gradients of cores and diagonals
 *     all-reduce   cores, diagonals, dense rest and statistics in one flat buffer
 *     objective    where ranks are trained: gradients of the loss become those of the stage
 *     apply        check, clip, update
 *     record       losses and the optimizer's state, on their way to the host
 *
 * Losses are sums, divided once by the counts of the whole step over all micro-batches and ranks;
 * so neither their number changes the result. Everything is allocated by create; a step allocates
 * nothing.
 *
 * A device that works by itself is given a step and not waited for: the host may load and give the
 * next one before it reads this one's record. Where the device captures work, the first step is
 * given call by call, the second is captured from materialise to apply, and from then on the
 * captured work is run as one; the numbers are the same to the bit. */
#ifndef TT_LAUNCH_STEP_H
#define TT_LAUNCH_STEP_H

#include "core/rank.h"
#include "dist/collectives.h"
#include "dist/watchdog.h"
#include "launch/step_inputs.h"
#include "models/model.h"

/* What comes back from the device after a step. */
typedef struct {
    float statistics[TT_STATISTICS];
    tt_step_state state;
    tt_rank_record ranks;
} tt_step_record;

typedef struct {
    double masked, sentences; /* masked positions, labelled sequences, over all ranks */
} tt_step_counts;

typedef struct {
    tt_model *model;
    tt_optimizer *optimizer; /* NULL: evaluation only */
    const tt_world *world;
    tt_collectives *collectives; /* NULL in a world of one */
    tt_watchdog *watchdog; /* told what the step is at; NULL after create, set by who has one */
    bool captures; /* whether steps are captured; where create says so, it may be set to false */
    tt_step_inputs inputs;
    tt_rank_objective *ranks; /* NULL: ranks are not trained */
    tt_rank_settings stage;   /* with `ranks`: of the next step; set by who knows the stages */
    uint32_t first_sequence;  /* number of row 0 in the global batch */
    tt_step_counts counts;    /* of the batch loaded last */
    tt_step_counts evaluated; /* since begin_evaluation */

    tt_graph *graph; /* the captured step; NULL before the second */
    int64_t given;   /* steps given to the device */
    /* Of the last steps, the newest at given - 1, modulo their number. */
    tt_step_record *records[TT_TRANSFER_SLOTS]; /* pinned */
    tt_step_counts record_counts[TT_TRANSFER_SLOTS];
    tt_rank_settings record_stages[TT_TRANSFER_SLOTS];
    int *early; /* by layer: which early range of the all-reduce ends with it, -1: none */
} tt_step;

/* What a step, or a number of evaluated batches, came to, over all ranks. */
typedef struct {
    double masked_lm_loss, next_sentence_loss; /* means; 0 without any */
    double masked_lm_accuracy, next_sentence_accuracy;
    double masked_count, sentence_count;
    float gradient_norm, learning_rate[TT_GROUP_COUNT];
    bool finite;
    bool has_ranks; /* whether the next two say anything */
    tt_rank_settings stage;
    tt_rank_record ranks;
} tt_step_result;

/* Plans the model and the collectives for these sizes and allocates the inputs. All ranks call it
 * together; `collectives` may be NULL in a world of one. */
tt_status tt_step_create(tt_step *step, tt_model *model, tt_optimizer *optimizer,
                         const tt_world *world, tt_collectives *collectives,
                         const tt_step_sizes *sizes, tt_error *error);
/* From the next step on the step's objective is that of `stage`, and sizes are measured. After
 * create, before the first step. */
tt_status tt_step_train_ranks(tt_step *step, tt_error *error);
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

/* Gives the whole step to the device. `number`: attempted steps in the run so far, which dropout
 * counts; `phase_step`: in the phase, which the learning rate follows. */
void tt_step_run(tt_step *step, int64_t number, int64_t phase_step);
/* Waits for the step given last, or for the one before it, and says what it came to. */
tt_step_result tt_step_read(tt_step *step);
tt_step_result tt_step_read_earlier(tt_step *step);
/* Whether device and collectives did what they were given so far; what still runs is not waited
 * for. */
tt_status tt_step_check(tt_step *step, tt_error *error);

/* Evaluation: begin, then for each batch load and evaluate, then read. No dropout, no gradients. */
void tt_step_begin_evaluation(tt_step *step);
void tt_step_evaluate(tt_step *step);
tt_step_result tt_step_end_evaluation(tt_step *step);

#endif

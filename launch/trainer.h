/* The training loop: the phases of a recipe from where the state stands to their end, with
 * validation, checkpoints and metrics.
 *
 * A run's folder holds
 *     recipe.yaml      the resolved recipe
 *     metrics.jsonl    one object a logged step
 *     events.out.tfevents.*   the same numbers for TensorBoard (event_file.h)
 *     checkpoints/     step_NNNNNNNN/ (checkpoint.h)
 * Rank 0 writes them; all other ranks only read. */
#ifndef TT_LAUNCH_TRAINER_H
#define TT_LAUNCH_TRAINER_H

#include "data/task.h"
#include "launch/checkpoint.h"
#include "launch/loss_watch.h"
#include "launch/metrics.h"
#include "launch/run.h"
#include "launch/stages.h"

#include <stdatomic.h>

typedef enum { TT_TRAINER_FINISHED, TT_TRAINER_STOPPED } tt_trainer_end;

typedef struct {
    tt_run *run;
    tt_training_state state;
    char checkpoints[TT_CHECKPOINT_PATH]; /* folder */
    char metrics_path[TT_CHECKPOINT_PATH];
    tt_metrics *metrics;           /* rank 0 only */
    tt_progress progress;          /* rank 0 only */
    const atomic_int *stop_signal; /* becomes not 0 when the run is asked to end */
    bool loss_checked;  /* the first step's loss was held against that of a uniform guess */
    double started;     /* seconds: clock when the trainer began */
    int64_t first_step; /* steps that had been done then */
    tt_stage_plan stages;
    tt_watchdog *watchdog; /* while tt_trainer_run runs */

    /* Of the phase that runs now. */
    tt_optimizer *optimizer;
    tt_step step;
    tt_loader *loader;
    bool unread; /* the last step's result has not been read: the device may still be at it */
    tt_run_paths train_paths, validation_paths;
    /* Of a task: the rows of both, which stay when the next phase has the same. */
    struct {
        int64_t phase; /* that they are of, counted from 1; 0: nothing is read */
        tt_task_rows train, validation;
        tt_row_source train_source, validation_source;
    } task;
    tt_loss_watch loss_watch;
    /* Of the validation set's masked tokens, nats; NAN before it is known. */
    double unigram_entropy;
    double result_clock; /* seconds: clock when the last result was dealt with */
    /* Since the last logged step. */
    double interval_seconds, interval_wait;
    int64_t interval_steps, interval_tokens;
} tt_trainer;

/* How a phase's loader reads `paths`, without order and position. */
tt_loader_options tt_trainer_loader_options(const tt_trainer *trainer, int64_t phase_number,
                                            const tt_run_paths *paths);
/* A phase's shards; `validation` is empty where it has none. Free both, in any case. */
tt_status tt_trainer_find_shards(const tt_trainer *trainer, int64_t phase_number,
                                 tt_run_paths *train, tt_run_paths *validation, tt_error *error);

/* Reads and tokenises the files of a phase's task into `task`; does nothing where the recipe has
 * none, or they stand there already. Free with tt_trainer_free_task. */
tt_status tt_trainer_read_task(tt_trainer *trainer, int64_t phase_number, const tt_run_paths *train,
                               const tt_run_paths *validation, tt_error *error);
void tt_trainer_free_task(tt_trainer *trainer);
/* What a loader's options take as source: the task's rows, or NULL where there is no task. */
const tt_row_source *tt_trainer_train_source(const tt_trainer *trainer);
const tt_row_source *tt_trainer_validation_source(const tt_trainer *trainer);

/* Checks the shards of every phase that is still to run without reading rows: that patterns match,
 * that shards are what the phase needs, that its batch can be shared out among the ranks. So a run
 * does not train for days before its last phase turns out to have no shards. Lays the stages over
 * the steps and checks their targets. All ranks call it together. */
tt_status tt_trainer_check_shards(tt_trainer *trainer, tt_error *error);

/* Names and shapes of all tensor trains, removed ones too, into the state. */
tt_status tt_trainer_list_layers(tt_trainer *trainer, tt_error *error);
/* On rank 0, before a line of metrics: writes the ranks of all layers to metrics.jsonl where that
 * is still empty, as they are since the run began or was resumed. */
tt_status tt_trainer_note_ranks(tt_trainer *trainer, tt_error *error);
/* Whether zero slices are cut out of the model after the step that the state stands at: by
 * rank.compaction_interval, and at the run's end where ranks were trained. */
bool tt_trainer_compacts(const tt_trainer *trainer);
/* Does it (models/compaction.h), notes the ranks that are left, and plans the phase's step anew.
 * All results of earlier steps must have been read. All ranks call it together. */
tt_status tt_trainer_compact(tt_trainer *trainer, tt_error *error);
/* Optimizer and step of the phase, for the model as it is. */
tt_status tt_trainer_create_step(tt_trainer *trainer, tt_error *error);

/* Trains. On failure the error says why; what was saved stays. `end` says whether the last phase
 * was finished or a signal ended the run early (a checkpoint was written then). */
tt_status tt_trainer_run(tt_trainer *trainer, tt_trainer_end *end, tt_error *error);

#endif

/* The stages of a recipe, in which ranks are trained (core/rank.h), laid over the steps of its
 * phases: which stage a step is in, what the device is told for it, and what is reported.
 *
 * Stages follow each other from the run's first step on. One given in epochs takes as many steps as
 * passes over the training data of the phases that it lies in make. A stage begins with a measured
 * size, the unit of everything that it reports and compares; the checkpoint keeps it, so that a
 * resumed run goes on in the middle of a stage. */
#ifndef TT_LAUNCH_STAGES_H
#define TT_LAUNCH_STAGES_H

#include "launch/checkpoint.h"
#include "launch/metrics.h"
#include "launch/recipe.h"
#include "launch/step.h"

/* Steps [first, end) of the run. */
typedef struct {
    int64_t first, end;
} tt_stage_span;

typedef struct {
    tt_stage_span spans[TT_RECIPE_STAGES];
    int count;
} tt_stage_plan;

/* Whether a stage is given in epochs, so that the plan needs to know rows. */
bool tt_stages_count_epochs(const tt_recipe *recipe);

/* `phase_rows`: sequences of training data by phase; read only where stages are given in epochs.
 * Refuses a stage that has no step before the run ends; one that ends later is cut off there. */
tt_status tt_stages_plan(const tt_recipe *recipe, const int64_t *phase_rows, tt_stage_plan *plan,
                         tt_error *error);
/* The number of the stage that a step (from 0) is in; -1: none. */
int tt_stages_at(const tt_stage_plan *plan, int64_t step);

/* Refuses target sizes that the model cannot come down to: what it has besides its trains stays.
 * And such that are above what it begins with. */
tt_status tt_stages_check_targets(const tt_recipe *recipe, const tt_model *model, tt_error *error);

/* Before each step of a run with stages: tells `step` its stage. Where one begins, waits for the
 * device, measures the size and notes both in `state`. True in `began` then. */
tt_status tt_stages_enter(const tt_recipe *recipe, const tt_stage_plan *plan,
                          tt_training_state *state, tt_step *step, bool *began, tt_error *error);
/* The stage that `state` says has begun, for people. */
void tt_stages_describe(const tt_recipe *recipe, const tt_stage_plan *plan,
                        const tt_training_state *state, const tt_model *model, char *text,
                        size_t size);

/* What a step's result says about ranks. */
void tt_stages_report(const tt_recipe *recipe, const tt_step_result *result,
                      tt_metrics_record *record);

#endif

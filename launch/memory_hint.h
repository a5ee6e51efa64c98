/* What to do about too little memory: the part of the error that knows the recipe. */
#ifndef TT_LAUNCH_MEMORY_HINT_H
#define TT_LAUNCH_MEMORY_HINT_H

#include "launch/run.h"

/* Adds to an error of status TT_OUT_OF_MEMORY what the model holds of the device's memory so far,
 * by kind, and which values of the recipe to lower. Other errors are left alone. Returns the
 * error's status.
 *
 * The first is for a model that is being built, the second for a step: `phase` is its number in the
 * recipe, `micro_batch` the number of sequences planned for at a time. */
tt_status tt_memory_hint_model(const tt_run *run, tt_error *error);
tt_status tt_memory_hint_step(const tt_run *run, int phase, int64_t micro_batch, tt_error *error);

#endif

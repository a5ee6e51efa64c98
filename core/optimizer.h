/* The optimizer of a model: what turns the gradients of a tt_parameters into its next values.
 *
 * One step, after the gradients and statistics of all ranks are summed:
 *
 *     tt_optimizer_prepare_step(optimizer, number, step);   before the forward pass, or
 *     tt_optimizer_take_settings(optimizer, settings);      the same from device memory
 *     ... forward, backward, all-reduce ...
 *     tt_optimizer_apply(optimizer);                checks, clips, updates; all on the device
 *
 * The device holds a tt_step_state (ops.h). Its members have one writer each: prepare_step writes
 * `step` and the learning rates; the device's gradient_check writes `gradient_norm`,
 * `gradient_factor` and `finite`; the rank objective, where there is one, writes `holds`; the
 * device's update adds 1 to `updates` when it was one. A step
 * whose loss or gradient is not finite changes nothing but `step`. */
#ifndef TT_CORE_OPTIMIZER_H
#define TT_CORE_OPTIMIZER_H

#include "core/ops.h"
#include "core/parameters.h"
#include "core/schedule.h"

typedef struct {
    tt_schedule schedule;
    double learning_rate[TT_GROUP_COUNT]; /* base rates of cores, diagonals and the dense rest */
    int64_t total_steps;                  /* of the schedule */
    tt_update_rule rule;
    int loss_count; /* how many of the parameters' statistics must be finite, from the first on */
} tt_optimizer_options;

typedef struct tt_optimizer tt_optimizer;

/* `parameters` must be allocated with moments and outlive the optimizer. Fails on an option outside
 * its range or for want of memory. Destroy with tt_optimizer_destroy. */
tt_status tt_optimizer_create(const tt_parameters *parameters, const tt_optimizer_options *options,
                              tt_optimizer **optimizer, tt_error *error);
/* Sets the pointer to NULL; NULL is fine. */
void tt_optimizer_destroy(tt_optimizer **optimizer);

/* What the host decides for a step: the number of the step in the whole run, from 0, which dropout
 * counts, and the learning rates of `schedule_step`, its number in the phase that the schedule
 * belongs to. */
typedef struct {
    uint32_t step;
    float learning_rate[TT_GROUP_COUNT];
} tt_step_settings;

tt_step_settings tt_optimizer_settings(const tt_optimizer *optimizer, int64_t number,
                                       int64_t schedule_step);
/* Takes them from device memory, in order with other work and without waiting for it. */
void tt_optimizer_take_settings(tt_optimizer *optimizer, const tt_step_settings *settings);
/* Takes them from the host. */
void tt_optimizer_prepare_step(tt_optimizer *optimizer, int64_t number, int64_t schedule_step);
/* Checks the gradients and, where all is finite, updates values and moments. */
void tt_optimizer_apply(tt_optimizer *optimizer);

/* The state in device memory; a dropout site points to its `step`. The same for the optimizer's
 * life.
 */
const tt_step_state *tt_optimizer_state(const tt_optimizer *optimizer);
/* Its `holds`, for the rank objective to write. */
float *tt_optimizer_holds(tt_optimizer *optimizer);
/* Copies it to the host, after all work given to the device. */
tt_step_state tt_optimizer_read_state(tt_optimizer *optimizer);

/* What a checkpoint keeps besides the moments: the number of updates made, which bias correction
 * counts. A new phase that keeps the moments but corrects anew restores 0. */
uint32_t tt_optimizer_updates(tt_optimizer *optimizer);
void tt_optimizer_restore(tt_optimizer *optimizer, uint32_t updates);

#endif

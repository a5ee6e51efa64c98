/* Learning-rate schedules: what a base rate is multiplied by at a step. */
#ifndef TT_CORE_SCHEDULE_H
#define TT_CORE_SCHEDULE_H

#include "core/error.h"

#include <stdint.h>

/* With s = step + 1 (steps count from 0, and the first one already moves), w = warm-up fraction *
 * total steps, and progress p = s / total, every kind rises as s / w while s < w. From there on:
 *
 *  - TT_SCHEDULE_CONSTANT:   1.
 *  - TT_SCHEDULE_LINEAR:     a straight line from 1 at s = w to `final` at the last step, s =
 * total.
 *  - TT_SCHEDULE_POLYNOMIAL: (1 - p)^power, as NVIDIA's BERT recipe computes it. The curve runs
 *                            over the whole training, warm-up included, so the value falls from 1
 * to (1 - warm-up fraction)^power where the warm-up ends, and is 0 at the last step. NVIDIA's power
 * is 0.5. */
typedef enum {
    TT_SCHEDULE_CONSTANT,
    TT_SCHEDULE_LINEAR,
    TT_SCHEDULE_POLYNOMIAL,
} tt_schedule_kind;

typedef struct {
    tt_schedule_kind kind;
    double warmup_fraction; /* of all steps, in [0, 1] */
    double final;           /* linear: factor at the last step, in [0, 1] */
    double power;           /* polynomial: above 0 */
} tt_schedule;

/* Fails on a value outside its range. */
tt_status tt_schedule_check(const tt_schedule *schedule, tt_error *error);

/* The factor for step number `step` (from 0) of `total` steps. A step behind the end gets the last
 * step's factor. */
double tt_schedule_factor(const tt_schedule *schedule, int64_t step, int64_t total);

#endif

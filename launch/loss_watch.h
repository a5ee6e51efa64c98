/* Tells a loss that leaps out of what the last steps had, so that a run that starts to go wrong
 * says so long before it ends in NaN. It only watches; training does not depend on it. */
#ifndef TT_LAUNCH_LOSS_WATCH_H
#define TT_LAUNCH_LOSS_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* Start with all zero. Mean and variance fade with a half-life of some 35 steps. */
typedef struct {
    double mean, variance, last;
    int64_t count; /* losses seen */
    int spikes;    /* in a row */
} tt_loss_watch;

typedef struct {
    double mean, deviation; /* of the losses before the one in question */
} tt_loss_course;

/* Takes the next step's loss. True when it lies more than six standard deviations above the mean of
 * those before it; never for the first hundred. Where losses hardly vary, a hundredth of the mean
 * counts as their deviation. A spike does not enter the mean; ten in a row are a new course, and
 * the watch starts afresh. A loss that is not finite is passed over. */
bool tt_loss_watch_spikes(tt_loss_watch *watch, double loss, tt_loss_course *course);

#endif

#include "launch/loss_watch.h"

#include <math.h>

static const double fade = 0.01;               /* weight of the newest loss */
static const double limit = 6.0;               /* deviations from the mean to a spike */
static const double smallest_deviation = 0.01; /* of the mean */
enum { FIRST_LOSSES = 100 };                   /* before mean and deviation mean something */

bool tt_loss_watch_spikes(tt_loss_watch *watch, double loss, tt_loss_course *course)
{
    double floor = smallest_deviation * fabs(watch->mean);
    *course = (tt_loss_course){watch->mean, fmax(sqrt(watch->variance), floor)};
    if (!isfinite(loss)) {
        return false;
    }
    double distance = loss - course->mean;
    bool spike = watch->count >= FIRST_LOSSES && distance > limit * course->deviation;
    if (spike) {
        distance = limit * course->deviation;
    }
    /* Plain averages at first, so that the first losses do not weigh on the mean for long. */
    watch->count++;
    double weight = fmax(fade, 1.0 / (double)watch->count);
    watch->mean += weight * distance;
    watch->variance = (1.0 - weight) * (watch->variance + weight * distance * distance);
    return spike;
}

#include "launch/loss_watch.h"

#include <math.h>

static const double fade = 0.02;               /* weight of the newest loss */
static const double limit = 6.0;               /* deviations from the mean to a spike */
static const double smallest_deviation = 0.01; /* of the mean */
enum {
    FIRST_LOSSES = 100, /* before mean and deviation mean something */
    NEW_COURSE = 10,    /* spikes in a row */
};

/* The deviation comes from the differences of neighbouring losses: these hardly feel the way the
 * loss falls, which is steep when a run starts. */
bool tt_loss_watch_spikes(tt_loss_watch *watch, double loss, tt_loss_course *course)
{
    double floor = smallest_deviation * fabs(watch->mean);
    *course = (tt_loss_course){watch->mean, fmax(sqrt(watch->variance), floor)};
    if (!isfinite(loss)) {
        return false;
    }
    if (watch->count >= FIRST_LOSSES && loss > course->mean + limit * course->deviation) {
        watch->spikes++;
        if (watch->spikes == NEW_COURSE) {
            *watch = (tt_loss_watch){.count = 0};
        }
        return true;
    }
    double difference = watch->count > 0 ? loss - watch->last : 0.0;
    /* Plain averages at first, so that the first losses do not weigh on the mean for long. */
    watch->count++;
    double weight = fmax(fade, 1.0 / (double)watch->count);
    watch->mean += weight * (loss - watch->mean);
    watch->variance += weight * (0.5 * difference * difference - watch->variance);
    watch->last = loss;
    watch->spikes = 0;
    return false;
}

#include "core/schedule.h"

#include <math.h>

tt_status tt_schedule_check(const tt_schedule *schedule, tt_error *error)
{
    if (!(schedule->warmup_fraction >= 0.0 && schedule->warmup_fraction <= 1.0)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "schedule: warm-up fraction: expected 0 to 1, found %g",
                            schedule->warmup_fraction);
    }
    if (schedule->kind == TT_SCHEDULE_LINEAR &&
        !(schedule->final >= 0.0 && schedule->final <= 1.0)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "schedule: final factor: expected 0 to 1, found %g", schedule->final);
    }
    if (schedule->kind == TT_SCHEDULE_POLYNOMIAL &&
        !(schedule->power > 0.0 && isfinite(schedule->power))) {
        return tt_error_set(error, TT_INVALID_INPUT, "schedule: power: expected above 0, found %g",
                            schedule->power);
    }
    return TT_OK;
}

double tt_schedule_factor(const tt_schedule *schedule, int64_t step, int64_t total)
{
    double all = (double)total;
    double done = step + 1 < total ? (double)(step + 1) : all;
    double warmup = schedule->warmup_fraction * all;
    if (done < warmup) {
        return done / warmup;
    }
    switch (schedule->kind) {
    case TT_SCHEDULE_LINEAR:
        /* With a warm-up to the very end the line has no length. */
        return all > warmup ? 1.0 + (schedule->final - 1.0) * (done - warmup) / (all - warmup)
                            : 1.0;
    case TT_SCHEDULE_POLYNOMIAL:
        return pow(1.0 - done / all, schedule->power);
    case TT_SCHEDULE_CONSTANT:
    default:
        return 1.0;
    }
}

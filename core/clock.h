/* The clock that durations are measured with. */
#ifndef TT_CORE_CLOCK_H
#define TT_CORE_CLOCK_H

#include <time.h>

/* Seconds since some fixed point in the past; never set back. */
static inline double tt_clock_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

#endif

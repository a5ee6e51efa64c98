/* A thread that ends the job when a step stands still: a peer that died without a word, a disk that
 * does not answer, a collective call that the others never reach.
 *
 * The limit holds for each activity of a step, not for the step as a whole:
 * TTRAIN_WATCHDOG_SECONDS, 1800 where the environment does not say, 0 for no watchdog. When it has
 * passed, the thread writes one line to stderr that names rank, host, step and activity, and ends
 * all ranks with status 1. Time in which the whole process is stopped (a job put to sleep) does not
 * count.
 *
 * A watchdog that is NULL watches nothing; every call on it is allowed. */
#ifndef TT_DIST_WATCHDOG_H
#define TT_DIST_WATCHDOG_H

#include "dist/world.h"

typedef struct tt_watchdog tt_watchdog;

/* Sets *watchdog to NULL when the limit is 0. `world` must outlive the watchdog. Fails when the
 * environment's value is not a number of seconds from 0 to 1e9. */
tt_status tt_watchdog_start(const tt_world *world, tt_watchdog **watchdog, tt_error *error);

/* From here on the clock runs; `step` is for the message. */
void tt_watchdog_begin(tt_watchdog *watchdog, int64_t step, const char *activity);
/* The step goes on to something else: the clock starts again. `activity` is a string that lasts. */
void tt_watchdog_note(tt_watchdog *watchdog, const char *activity);
/* The clock stands until the next begin. */
void tt_watchdog_end(tt_watchdog *watchdog);

/* Stops the thread and sets the pointer to NULL. */
void tt_watchdog_stop(tt_watchdog **watchdog);

#endif

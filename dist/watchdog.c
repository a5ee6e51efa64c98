#include "dist/watchdog.h"

#include "core/clock.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char variable[] = "TTRAIN_WATCHDOG_SECONDS";
static const double default_limit = 1800.0;

struct tt_watchdog {
    const tt_world *world;
    double limit; /* seconds */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool stop; /* under the mutex */
    /* Written by the training thread without a lock, since it comes by several times a step. */
    atomic_ullong beats;  /* calls of note so far */
    _Atomic int64_t step; /* -1: the clock stands */
    _Atomic(const char *) activity;
};

static tt_status read_limit(double *limit, tt_error *error)
{
    const char *text = getenv(variable);
    *limit = default_limit;
    if (!text || !*text) {
        return TT_OK;
    }
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno != 0 || *end != '\0' || !(value >= 0.0 && value <= 1e9)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected a number of seconds from 0 (off) to 1e9, found '%.100s'",
                            variable, text);
    }
    *limit = value;
    return TT_OK;
}

static _Noreturn void end_job(const tt_watchdog *watchdog)
{
    const tt_world *world = watchdog->world;
    char line[512];
    snprintf(line, sizeof line,
             "ttrain pretrain: rank %d on %s: step %lld stands still: %s for more than %g s (%s); "
             "ending the job\n",
             world->rank, world->host, (long long)atomic_load(&watchdog->step),
             atomic_load(&watchdog->activity), watchdog->limit, variable);
    tt_world_give_up(world, line, NULL, NULL);
}

/* Sleeps for a tick; false when the watchdog is to stop. */
static bool sleep_tick(tt_watchdog *watchdog, double tick)
{
    double until = tt_clock_seconds() + tick;
    struct timespec deadline = {.tv_sec = (time_t)until,
                                .tv_nsec = (long)((until - floor(until)) * 1e9)};
    pthread_mutex_lock(&watchdog->mutex);
    int result = 0;
    while (!watchdog->stop && result != ETIMEDOUT) {
        result = pthread_cond_timedwait(&watchdog->wake, &watchdog->mutex, &deadline);
    }
    bool go_on = !watchdog->stop;
    pthread_mutex_unlock(&watchdog->mutex);
    return go_on;
}

static void *run(void *argument)
{
    tt_watchdog *watchdog = argument;
    double tick = watchdog->limit / 8 < 1.0 ? watchdog->limit / 8 : 1.0;
    double still = 0.0, last = tt_clock_seconds();
    unsigned long long beats = atomic_load(&watchdog->beats);
    while (sleep_tick(watchdog, tick)) {
        unsigned long long seen = atomic_load(&watchdog->beats);
        double time = tt_clock_seconds(), passed = time - last;
        last = time;
        if (seen != beats || atomic_load(&watchdog->step) < 0) {
            beats = seen;
            still = 0.0;
            continue;
        }
        /* A tick that took far too long: the whole process was stopped, so nothing else ran. */
        still += passed < 2 * tick ? passed : tick;
        if (still > watchdog->limit) {
            end_job(watchdog);
        }
    }
    return NULL;
}

static int create_thread(tt_watchdog *watchdog)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&watchdog->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&watchdog->mutex, NULL);
    /* Signals are the main thread's business. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&watchdog->thread, NULL, run, watchdog);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

static void release(tt_watchdog *watchdog)
{
    pthread_cond_destroy(&watchdog->wake);
    pthread_mutex_destroy(&watchdog->mutex);
    free(watchdog);
}

tt_status tt_watchdog_start(const tt_world *world, tt_watchdog **watchdog, tt_error *error)
{
    *watchdog = NULL;
    double limit;
    TT_TRY(read_limit(&limit, error));
    if (limit == 0.0) {
        return TT_OK;
    }
    tt_watchdog *created = calloc(1, sizeof *created);
    if (!created) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the watchdog");
    }
    created->world = world;
    created->limit = limit;
    atomic_store(&created->step, -1);
    int failed = create_thread(created);
    if (failed != 0) {
        release(created);
        return tt_error_set(error, TT_IO_FAILED, "the watchdog's thread cannot be started: %s",
                            strerror(failed));
    }
    *watchdog = created;
    return TT_OK;
}

void tt_watchdog_note(tt_watchdog *watchdog, const char *activity)
{
    if (watchdog) {
        atomic_store(&watchdog->activity, activity);
        atomic_fetch_add(&watchdog->beats, 1);
    }
}

void tt_watchdog_begin(tt_watchdog *watchdog, int64_t step, const char *activity)
{
    tt_watchdog_note(watchdog, activity);
    if (watchdog) {
        atomic_store(&watchdog->step, step);
    }
}

void tt_watchdog_end(tt_watchdog *watchdog)
{
    if (watchdog) {
        atomic_store(&watchdog->step, -1);
    }
}

void tt_watchdog_stop(tt_watchdog **watchdog)
{
    tt_watchdog *stopping = *watchdog;
    *watchdog = NULL;
    if (!stopping) {
        return;
    }
    pthread_mutex_lock(&stopping->mutex);
    stopping->stop = true;
    pthread_cond_signal(&stopping->wake);
    pthread_mutex_unlock(&stopping->mutex);
    pthread_join(stopping->thread, NULL);
    release(stopping);
}

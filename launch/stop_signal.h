/* The signals that ask a run to end in good order: SIGTERM, SIGINT, and SIGUSR1, which batch
 * systems send ahead of the end of a job. A thread of their own receives them, so that no handler
 * ever runs on a thread that computes: a matrix product that is interrupted in the middle has been
 * seen to come out wrong, and to write where it should not, on virtual machines. */
#ifndef TT_LAUNCH_STOP_SIGNAL_H
#define TT_LAUNCH_STOP_SIGNAL_H

#include "core/error.h"

#include <stdatomic.h>

/* Blocks the signals in this thread, and so in all that it will start, and begins to receive them.
 * Call it once, before any other thread is started. A second SIGINT ends the program at once. */
tt_status tt_stop_signal_watch(tt_error *error);

/* The signal that came last; 0: none. */
const atomic_int *tt_stop_signal(void);

#endif

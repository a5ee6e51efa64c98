/* The progress of reading a corpus: on a terminal one line that is written over again, elsewhere a
 * plain line every ten seconds. */
#ifndef TT_LAUNCH_PREPARE_PROGRESS_H
#define TT_LAUNCH_PREPARE_PROGRESS_H

#include "data/prepare.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct {
    FILE *stream;
    bool terminal;
    const char *const *paths; /* of the corpus: each is named with its format when its turn comes */
    int announced;            /* files named so far */
    double start, last;       /* seconds */
    int width;                /* of the line that stands on the terminal */
} tt_reading_progress;

void tt_reading_progress_start(tt_reading_progress *progress, FILE *stream,
                               const char *const *paths);
/* A tt_prepare_progress; `progress` is a tt_reading_progress. */
void tt_reading_progress_update(void *progress, const tt_corpus *corpus,
                                const tt_prepare_summary *summary);
/* Ends the line that stands on the terminal. */
void tt_reading_progress_end(tt_reading_progress *progress);
/* Seconds since the start. */
double tt_reading_progress_seconds(const tt_reading_progress *progress);

#endif

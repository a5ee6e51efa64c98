/* What a run reports: metrics.jsonl, one JSON object a logged step, and a progress line for people.
 *
 * Numbers in metrics.jsonl are printed so that they read back to the same bits. Everything that
 * depends on the clock stands in the nested object "timing"; without it, the file of a run that was
 * stopped and resumed is byte for byte that of an undisturbed one. */
#ifndef TT_LAUNCH_METRICS_H
#define TT_LAUNCH_METRICS_H

#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* One logged step. What is not finite is printed as null. */
typedef struct {
    int64_t step;      /* steps done in the whole run */
    const char *phase; /* its name */
    int64_t phase_step;
    int64_t epoch, samples, tokens;
    double loss; /* masked_lm_loss + next_sentence_loss */
    double masked_lm_loss, masked_lm_accuracy;
    double next_sentence_loss, next_sentence_accuracy; /* left out without next-sentence head */
    bool has_next_sentence;
    bool
        classifies; /* a task's run: accuracy stands in place of masked tokens and next sentences */
    double accuracy;
    float learning_rate, core_learning_rate, diagonal_learning_rate;
    float gradient_norm;
    int64_t skipped_steps; /* in the run so far */

    bool has_ranks;            /* ranks are trained in the run: the next five are there */
    double size, relaxed_size; /* core entries that are left, and their relaxation (core/rank.h) */
    double size_ratio;         /* of the size at the stage's start */
    const char *stage;         /* NULL: none */
    const char *branch;        /* "loss" or "size": what a late stage worked on; NULL: none */
    int64_t parameters;

    bool has_validation;
    double validation_loss;
    double validation_accuracy;
    double validation_masked_lm_loss, validation_masked_lm_accuracy;
    double validation_next_sentence_loss, validation_next_sentence_accuracy;
    double validation_unigram_entropy; /* of the same masked tokens, nats: what a model that knows
                                          only their frequencies would lose */

    struct {
        double step_ms;      /* mean since the last record */
        double data_wait_ms; /* mean since the last record: time spent waiting for the loader */
        double tokens_per_s; /* all ranks, since the last record */
        double elapsed_s;    /* since the program started */
        /* The file has unix_time besides: when the line was written, seconds since 1970. */
    } timing;
} tt_metrics_record;

typedef struct tt_metrics tt_metrics;

/* Opens `path` for appending. Lines of steps after `resumed_step` (0: a fresh run), and what a
 * killed run wrote in part, are cut off first. */
tt_status tt_metrics_open(const char *path, int64_t resumed_step, tt_metrics **metrics,
                          tt_error *error);
/* From here on the same numbers go to a TensorBoard event file beside `path` (event_file.h), those
 * of the lines that are there first. */
tt_status tt_metrics_add_event_file(tt_metrics *metrics, tt_error *error);
/* Appends one line and flushes it. */
tt_status tt_metrics_write(tt_metrics *metrics, const tt_metrics_record *record, tt_error *error);
/* The same for a line that the caller made: a JSON object with "step", ended by '\n'. */
tt_status tt_metrics_write_line(tt_metrics *metrics, const char *line, size_t length,
                                tt_error *error);
/* Closes and sets the pointer to NULL; NULL is fine. */
tt_status tt_metrics_close(tt_metrics **metrics, tt_error *error);

/* The progress line: on a terminal one line that is written over again at each update, at most ten
 * times a second; elsewhere a plain line for each record that is logged. */
typedef struct {
    FILE *stream;
    bool terminal;
    int64_t total_steps;
    int width; /* of the line that stands on the terminal */
    double last_update;
} tt_progress;

void tt_progress_start(tt_progress *progress, FILE *stream, int64_t total_steps);
/* `logged`: the record also went to metrics.jsonl. */
void tt_progress_update(tt_progress *progress, const tt_metrics_record *record, bool logged);
/* Ends the line that stands on the terminal, so that other output starts on a fresh one. */
void tt_progress_end(tt_progress *progress);

#endif

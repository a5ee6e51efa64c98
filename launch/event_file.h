/* The TensorBoard event file of a run: the numbers of metrics.jsonl as scalars, under the same
 * names ("loss"; of a nested object "timing/step_ms"). Lists, texts and null are left out.
 *
 * The file is a copy of metrics.jsonl in another form, so it is made anew from it whenever a run
 * starts or goes on: what stands in the folder holds each step once, however often the run was
 * stopped. Its name is events.out.tfevents.<seconds>.<host>.<process>.ttrain. */
#ifndef TT_LAUNCH_EVENT_FILE_H
#define TT_LAUNCH_EVENT_FILE_H

#include "core/error.h"

#include <stddef.h>

typedef struct tt_event_file tt_event_file;

/* Makes the event file beside `metrics_path`, with the lines that stand there, and removes those of
 * earlier runs of ttrain in the folder. It appears whole or not at all. */
tt_status tt_event_file_open(const char *metrics_path, tt_event_file **file, tt_error *error);
/* Appends the numbers of one line, a JSON object with "step", and flushes them. */
tt_status tt_event_file_add(tt_event_file *file, const char *line, size_t length, tt_error *error);
/* Closes and sets the pointer to NULL; NULL inside is fine. */
tt_status tt_event_file_close(tt_event_file **file, tt_error *error);

#endif

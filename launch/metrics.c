#include "launch/metrics.h"

#include "data/file.h"
#include "launch/event_file.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TT_METRICS_LINE = 4096 };

struct tt_metrics {
    FILE *stream;
    char *path;
    tt_event_file *events; /* NULL: none */
};

/* One line of JSON being put together. */
typedef struct {
    char text[TT_METRICS_LINE];
    size_t used;
    bool first; /* no key yet in the current object */
} tt_line;

static void append(tt_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void append(tt_line *line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length =
        vsnprintf(line->text + line->used, sizeof line->text - line->used, format, arguments);
    va_end(arguments);
    size_t room = sizeof line->text - line->used - 1;
    line->used += length < 0 ? 0 : (size_t)length < room ? (size_t)length : room;
}

static void add_key(tt_line *line, const char *key)
{
    append(line, "%s\"%s\": ", line->first ? "" : ", ", key);
    line->first = false;
}

static void add_integer(tt_line *line, const char *key, int64_t value)
{
    add_key(line, key);
    append(line, "%lld", (long long)value);
}

/* 9 digits give back every f32, 17 every f64. */
static void add_real(tt_line *line, const char *key, double value, int digits)
{
    add_key(line, key);
    if (isfinite(value)) {
        append(line, "%.*g", digits, value);
    } else {
        append(line, "null");
    }
}

static void add_float(tt_line *line, const char *key, float value)
{
    add_real(line, key, (double)value, 9);
}

static void add_double(tt_line *line, const char *key, double value)
{
    add_real(line, key, value, 17);
}

static void add_text(tt_line *line, const char *key, const char *value)
{
    json_t *string = json_string(value);
    char *text = string != NULL ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    add_key(line, key);
    append(line, "%s", text != NULL ? text : "null");
    free(text);
    json_decref(string);
}

static void add_validation(tt_line *line, const tt_metrics_record *record)
{
    add_double(line, "validation_loss", record->validation_loss);
    if (record->classifies) {
        add_double(line, "validation_accuracy", record->validation_accuracy);
        return;
    }
    add_double(line, "validation_masked_lm_loss", record->validation_masked_lm_loss);
    add_double(line, "validation_masked_lm_accuracy", record->validation_masked_lm_accuracy);
    add_double(line, "validation_unigram_entropy", record->validation_unigram_entropy);
    if (record->has_next_sentence) {
        add_double(line, "validation_next_sentence_loss", record->validation_next_sentence_loss);
        add_double(line, "validation_next_sentence_accuracy",
                   record->validation_next_sentence_accuracy);
    }
}

static void add_text_or_null(tt_line *line, const char *key, const char *value)
{
    if (value != NULL) {
        add_text(line, key, value);
    } else {
        add_key(line, key);
        append(line, "null");
    }
}

static void add_ranks(tt_line *line, const tt_metrics_record *record)
{
    add_double(line, "size", record->size);
    add_double(line, "relaxed_size", record->relaxed_size);
    add_double(line, "size_ratio", record->size_ratio);
    add_text_or_null(line, "stage", record->stage);
    add_text_or_null(line, "branch", record->branch);
}

static void add_timing(tt_line *line, const tt_metrics_record *record)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    add_key(line, "timing");
    append(line, "{");
    line->first = true;
    add_double(line, "step_ms", record->timing.step_ms);
    add_double(line, "data_wait_ms", record->timing.data_wait_ms);
    add_double(line, "tokens_per_s", record->timing.tokens_per_s);
    add_double(line, "elapsed_s", record->timing.elapsed_s);
    add_double(line, "unix_time", (double)time.tv_sec + 1e-9 * (double)time.tv_nsec);
    append(line, "}");
}

static void add_training(tt_line *line, const tt_metrics_record *record)
{
    if (record->classifies) {
        add_double(line, "accuracy", record->accuracy);
        return;
    }
    add_double(line, "masked_lm_loss", record->masked_lm_loss);
    add_double(line, "masked_lm_accuracy", record->masked_lm_accuracy);
    if (record->has_next_sentence) {
        add_double(line, "next_sentence_loss", record->next_sentence_loss);
        add_double(line, "next_sentence_accuracy", record->next_sentence_accuracy);
    }
}

static void write_record(tt_line *line, const tt_metrics_record *record)
{
    append(line, "{");
    add_integer(line, "step", record->step);
    add_text(line, "phase", record->phase);
    add_integer(line, "phase_step", record->phase_step);
    add_integer(line, "epoch", record->epoch);
    add_integer(line, "samples", record->samples);
    add_integer(line, "tokens", record->tokens);
    add_double(line, "loss", record->loss);
    add_training(line, record);
    add_float(line, "learning_rate", record->learning_rate);
    add_float(line, "core_learning_rate", record->core_learning_rate);
    add_float(line, "diagonal_learning_rate", record->diagonal_learning_rate);
    add_float(line, "gradient_norm", record->gradient_norm);
    if (record->has_ranks) {
        add_ranks(line, record);
    }
    add_integer(line, "skipped_steps", record->skipped_steps);
    add_integer(line, "parameters", record->parameters);
    if (record->has_validation) {
        add_validation(line, record);
    }
    add_timing(line, record);
    append(line, "}\n");
}

/* The step of a whole line; -1 when it is none. */
static int64_t step_of_line(const char *line, size_t length)
{
    json_t *record = json_loadb(line, length, JSON_REJECT_DUPLICATES, NULL);
    const json_t *step = json_object_get(record, "step");
    int64_t value = json_is_integer(step) ? json_integer_value(step) : -1;
    json_decref(record);
    return value;
}

/* Bytes of the leading lines that are whole and not after `last_step`. */
static size_t leading_lines(const char *text, size_t length, int64_t last_step)
{
    size_t kept = 0;
    while (kept < length) {
        const char *end = memchr(text + kept, '\n', length - kept);
        if (end == NULL) {
            break;
        }
        size_t line_length = (size_t)(end - (text + kept));
        int64_t step = step_of_line(text + kept, line_length);
        if (step < 0 || step > last_step) {
            break;
        }
        kept += line_length + 1;
    }
    return kept;
}

static tt_status cut_off(const char *path, int64_t resumed_step, tt_error *error)
{
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        return TT_OK;
    }
    void *text;
    size_t length;
    TT_TRY(tt_file_read(path, SIZE_MAX / 2, &text, &length, error));
    size_t kept = leading_lines(text, length, resumed_step);
    tt_status status = kept < length ? tt_file_write(path, text, kept, error) : TT_OK;
    free(text);
    return status;
}

tt_status tt_metrics_open(const char *path, int64_t resumed_step, tt_metrics **metrics,
                          tt_error *error)
{
    *metrics = NULL;
    TT_TRY(cut_off(path, resumed_step, error));
    tt_metrics *opened = calloc(1, sizeof *opened);
    char *copy = strdup(path);
    if (opened == NULL || copy == NULL) {
        free(opened);
        free(copy);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", path);
    }
    opened->path = copy;
    opened->stream = fopen(path, "ae");
    if (opened->stream == NULL) {
        tt_status status =
            tt_error_set(error, TT_IO_FAILED, "%s: cannot be opened: %s", path, strerror(errno));
        free(copy);
        free(opened);
        return status;
    }
    *metrics = opened;
    return TT_OK;
}

tt_status tt_metrics_write(tt_metrics *metrics, const tt_metrics_record *record, tt_error *error)
{
    tt_line line = {.used = 0, .first = true};
    write_record(&line, record);
    return tt_metrics_write_line(metrics, line.text, line.used, error);
}

tt_status tt_metrics_write_line(tt_metrics *metrics, const char *line, size_t length,
                                tt_error *error)
{
    /* One write a line, so that a killed run leaves at most one line in part. */
    if (fwrite(line, 1, length, metrics->stream) != length || fflush(metrics->stream) != 0) {
        return tt_error_set(error, TT_IO_FAILED, "%s: cannot be written: %s", metrics->path,
                            strerror(errno));
    }
    return metrics->events ? tt_event_file_add(metrics->events, line, length, error) : TT_OK;
}

tt_status tt_metrics_add_event_file(tt_metrics *metrics, tt_error *error)
{
    return tt_event_file_open(metrics->path, &metrics->events, error);
}

tt_status tt_metrics_close(tt_metrics **metrics, tt_error *error)
{
    tt_status status = TT_OK;
    if (*metrics == NULL) {
        return status;
    }
    status = tt_event_file_close(&(*metrics)->events, error);
    if (fclose((*metrics)->stream) != 0) {
        status = tt_error_set(error, TT_IO_FAILED, "%s: cannot be closed: %s", (*metrics)->path,
                              strerror(errno));
    }
    free((*metrics)->path);
    free(*metrics);
    *metrics = NULL;
    return status;
}

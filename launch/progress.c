#include "launch/metrics.h"

#include "core/clock.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void tt_progress_start(tt_progress *progress, FILE *stream, int64_t total_steps)
{
    const char *kind = getenv("TERM");
    bool dumb = kind != NULL && strcmp(kind, "dumb") == 0;
    *progress = (tt_progress){.stream = stream,
                              .terminal = isatty(fileno(stream)) == 1 && !dumb,
                              .total_steps = total_steps};
}

/* "48 s", "12 min 05 s", "3 h 10 min", "2 d 04 h" */
static void duration_text(double seconds, char *text, size_t size)
{
    if (!(seconds < 1e9)) {
        snprintf(text, size, "-");
        return;
    }
    long long whole = (long long)(seconds + 0.5);
    if (whole < 60) {
        snprintf(text, size, "%lld s", whole);
    } else if (whole < 3600) {
        snprintf(text, size, "%lld min %02lld s", whole / 60, whole % 60);
    } else if (whole < 86400) {
        snprintf(text, size, "%lld h %02lld min", whole / 3600, whole / 60 % 60);
    } else {
        snprintf(text, size, "%lld d %02lld h", whole / 86400, whole / 3600 % 24);
    }
}

static void rate_text(double rate, char *text, size_t size)
{
    if (rate >= 1e6) {
        snprintf(text, size, "%.2fM", rate / 1e6);
    } else if (rate >= 1e4) {
        snprintf(text, size, "%.1fk", rate / 1e3);
    } else {
        snprintf(text, size, "%.0f", rate);
    }
}

/* The record in one line; its length. */
static int record_text(const tt_progress *progress, const tt_metrics_record *record, char *text,
                       size_t size)
{
    char parts[64] = "", left[32], rate[32], validation[64] = "", ranks[128] = "";
    if (record->has_next_sentence) {
        snprintf(parts, sizeof parts, " (mlm %.4f, nsp %.4f)", record->masked_lm_loss,
                 record->next_sentence_loss);
    }
    if (record->classifies) {
        snprintf(parts, sizeof parts, " (accuracy %.3f)", record->accuracy);
    }
    if (record->has_validation && record->classifies) {
        snprintf(validation, sizeof validation, "  validation %.4f (accuracy %.4f)",
                 record->validation_loss, record->validation_accuracy);
    } else if (record->has_validation) {
        snprintf(validation, sizeof validation, "  validation %.4f", record->validation_loss);
    }
    if (record->has_ranks && record->stage != NULL) {
        snprintf(ranks, sizeof ranks, "  %.40s %.3f%s%s", record->stage, record->size_ratio,
                 record->branch != NULL ? " " : "", record->branch != NULL ? record->branch : "");
    }
    int64_t remaining = progress->total_steps - record->step;
    duration_text((double)remaining * record->timing.step_ms / 1e3, left, sizeof left);
    rate_text(record->timing.tokens_per_s, rate, sizeof rate);
    return snprintf(
        text, size, "%s  step %lld/%lld  loss %.4f%s%s%s  lr %.2e  %s tokens/s  %s left",
        record->phase, (long long)record->step, (long long)progress->total_steps, record->loss,
        parts, validation, ranks, (double)record->learning_rate, rate, left);
}

void tt_progress_update(tt_progress *progress, const tt_metrics_record *record, bool logged)
{
    char text[1024];
    double time = tt_clock_seconds();
    bool last = record->step >= progress->total_steps;
    bool due = progress->terminal ? last || time - progress->last_update >= 0.1 : logged;
    if (!due) {
        return;
    }
    progress->last_update = time;
    int length = record_text(progress, record, text, sizeof text);
    length = length < (int)sizeof text ? length : (int)sizeof text - 1;
    if (progress->terminal) {
        int blanks = progress->width > length ? progress->width - length : 0;
        fprintf(progress->stream, "\r%s%*s", text, blanks, "");
        progress->width = length;
    } else {
        fprintf(progress->stream, "%s\n", text);
    }
    fflush(progress->stream);
}

void tt_progress_end(tt_progress *progress)
{
    if (progress->terminal && progress->width > 0) {
        fputc('\n', progress->stream);
        fflush(progress->stream);
    }
    progress->width = 0;
}

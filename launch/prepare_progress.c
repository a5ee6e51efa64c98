#include "launch/prepare_progress.h"

#include "core/clock.h"

#include <unistd.h>

void tt_reading_progress_start(tt_reading_progress *progress, FILE *stream,
                               const char *const *paths)
{
    *progress = (tt_reading_progress){.stream = stream,
                                      .terminal = isatty(fileno(stream)) == 1,
                                      .paths = paths,
                                      .start = tt_clock_seconds()};
    progress->last = progress->start;
}

static int print_line(const tt_reading_progress *progress, const tt_corpus *corpus,
                      const tt_prepare_summary *summary, double seconds)
{
    double done = (double)tt_corpus_bytes_read(corpus);
    double total = (double)tt_corpus_bytes_total(corpus);
    double rate = seconds > 0 ? done / seconds : 0;
    double left = rate > 0 && total > done ? (total - done) / rate : 0;
    int width =
        fprintf(progress->stream, "read %.1f of %.1f MB (%.0f %%), %.1f MB/s, %lld documents",
                done / 1e6, total / 1e6, total > 0 ? 100 * done / total : 100, rate / 1e6,
                (long long)summary->documents);
    if (summary->tokens > 0) {
        int64_t rows = summary->train_rows + summary->validation_rows;
        width += fprintf(progress->stream, ", %lld tokens, %lld rows written",
                         (long long)summary->tokens, (long long)rows);
    }
    return width + fprintf(progress->stream, ", %d:%02d left", (int)left / 60, (int)left % 60);
}

void tt_reading_progress_update(void *user, const tt_corpus *corpus,
                                const tt_prepare_summary *summary)
{
    tt_reading_progress *progress = user;
    int file = tt_corpus_current_file(corpus);
    if (file >= progress->announced) {
        tt_reading_progress_end(progress);
        fprintf(progress->stream, "reading %s as %s\n", progress->paths[file],
                tt_corpus_format_name(tt_corpus_current_format(corpus)));
        progress->announced = file + 1;
    }
    double time = tt_clock_seconds();
    if (time - progress->last < (progress->terminal ? 0.2 : 10.0)) {
        return;
    }
    progress->last = time;
    if (progress->terminal) {
        fputc('\r', progress->stream);
    }
    int width = print_line(progress, corpus, summary, time - progress->start);
    if (progress->terminal) {
        fprintf(progress->stream, "%*s", progress->width > width ? progress->width - width : 0, "");
        progress->width = width;
        fflush(progress->stream);
    } else {
        fputc('\n', progress->stream);
    }
}

void tt_reading_progress_end(tt_reading_progress *progress)
{
    if (progress->terminal && progress->width > 0) {
        fputc('\n', progress->stream);
        progress->width = 0;
    }
}

double tt_reading_progress_seconds(const tt_reading_progress *progress)
{
    return tt_clock_seconds() - progress->start;
}

#include "launch/report_page.h"

#include "launch/report_ranks.h"
#include "launch/report_recipe.h"
#include "launch/report_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NEWEST = 10 }; /* logged steps that the training loss is a mean of */

/* What the page is made of. */
typedef struct {
    FILE *out;
    const tt_report_run *runs;
    int count;
    const char *labels[TT_CHART_RUNS];
} page;

/* --- figures of a run --- */

static double mean_of_newest(const tt_report_run *run, tt_report_key key)
{
    double sum = 0;
    int count = 0;
    for (int64_t i = run->record_count - 1; i >= 0 && count < NEWEST; i--) {
        double value = run->records[i].values[key];
        sum += isfinite(value) ? value : 0;
        count += isfinite(value);
    }
    return count > 0 ? sum / count : NAN;
}

/* The record with the lowest (or highest) value; NULL where no record has one. */
static const tt_report_record *best_record(const tt_report_run *run, tt_report_key key,
                                           bool highest)
{
    const tt_report_record *best = NULL;
    for (int64_t i = 0; i < run->record_count; i++) {
        const tt_report_record *record = &run->records[i];
        double value = record->values[key];
        if (isfinite(value) &&
            (best == NULL || (highest ? value > best->values[key] : value < best->values[key]))) {
            best = record;
        }
    }
    return best;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median_of(const tt_report_run *run, tt_report_key key)
{
    double *values = malloc((size_t)run->record_count * sizeof *values);
    int64_t count = 0;
    for (int64_t i = 0; values != NULL && i < run->record_count; i++) {
        if (isfinite(run->records[i].values[key])) {
            values[count++] = run->records[i].values[key];
        }
    }
    double median = NAN;
    if (count > 0) {
        qsort(values, (size_t)count, sizeof *values, compare);
        median = (values[(count - 1) / 2] + values[count / 2]) / 2;
    }
    free(values);
    return median;
}

static const tt_report_record *last_record(const tt_report_run *run)
{
    return &run->records[run->record_count - 1];
}

/* --- the table of runs --- */

typedef enum { AS_INTEGER, AS_REAL, AS_PERCENT, AS_DURATION, AS_BYTES, AS_TIMES } number_form;

static void put_number(FILE *out, double value, number_form form)
{
    char text[TT_REPORT_NUMBER];
    switch (isfinite(value) ? form : AS_REAL) {
    case AS_INTEGER:
        fputs(tt_report_integer(value, text), out);
        break;
    case AS_REAL:
        fputs(tt_report_real(value, text), out);
        break;
    case AS_PERCENT:
        fprintf(out, "%s\xC2\xA0%%", tt_report_real(100 * value, text));
        break;
    case AS_DURATION:
        fputs(tt_report_duration(value, text), out);
        break;
    case AS_BYTES:
        fputs(tt_report_bytes(value, text), out);
        break;
    case AS_TIMES:
        fprintf(out, "%s\xC3\x97", tt_report_real(value, text));
        break;
    }
}

typedef double (*figure_of)(const tt_report_run *run);

static double steps(const tt_report_run *run)
{
    return last_record(run)->step;
}

static double samples(const tt_report_run *run)
{
    return tt_report_last(run, TT_REPORT_SAMPLES);
}

static double tokens(const tt_report_run *run)
{
    return tt_report_last(run, TT_REPORT_TOKENS);
}

static double duration(const tt_report_run *run)
{
    return tt_report_last(run, TT_REPORT_ELAPSED_S);
}

static double training_loss(const tt_report_run *run)
{
    return mean_of_newest(run, TT_REPORT_LOSS);
}

static double validation_loss(const tt_report_run *run)
{
    return tt_report_last(run, TT_REPORT_VALIDATION_LOSS);
}

static double best_loss(const tt_report_run *run)
{
    const tt_report_record *best = best_record(run, TT_REPORT_VALIDATION_LOSS, false);
    return best != NULL ? best->values[TT_REPORT_VALIDATION_LOSS] : NAN;
}

static double best_step(const tt_report_run *run)
{
    const tt_report_record *best = best_record(run, TT_REPORT_VALIDATION_LOSS, false);
    return best != NULL ? best->step : NAN;
}

static double accuracy(const tt_report_run *run)
{
    return tt_report_last(run, TT_REPORT_VALIDATION_ACCURACY);
}

static double best_accuracy(const tt_report_run *run)
{
    const tt_report_record *best = best_record(run, TT_REPORT_VALIDATION_ACCURACY, true);
    return best != NULL ? best->values[TT_REPORT_VALIDATION_ACCURACY] : NAN;
}

static double masked_lm_accuracy(const tt_report_run *run)
{
    return tt_report_last(run, TT_REPORT_VALIDATION_MASKED_LM_ACCURACY);
}

static double next_sentence_accuracy(const tt_report_run *run)
{
    return tt_report_last(run, TT_REPORT_VALIDATION_NEXT_SENTENCE_ACCURACY);
}

static double model_bytes(const tt_report_run *run)
{
    return 4 * tt_report_parameters(run);
}

static double dense_parameters(const tt_report_run *run)
{
    return run->dense_parameters;
}

static double compression(const tt_report_run *run)
{
    return run->dense_parameters / tt_report_parameters(run);
}

static double kept_entries(const tt_report_run *run)
{
    return tt_report_last(run, TT_REPORT_SIZE);
}

static double size_ratio(const tt_report_run *run)
{
    return tt_report_last(run, TT_REPORT_SIZE_RATIO);
}

static double throughput(const tt_report_run *run)
{
    return median_of(run, TT_REPORT_TOKENS_PER_S);
}

static double step_time(const tt_report_run *run)
{
    return median_of(run, TT_REPORT_STEP_MS);
}

static double skipped_steps(const tt_report_run *run)
{
    return tt_report_last(run, TT_REPORT_SKIPPED_STEPS);
}

static const struct {
    const char *name;
    figure_of figure;
    number_form form;
} figures[] = {
    {"steps", steps, AS_INTEGER},
    {"samples", samples, AS_INTEGER},
    {"tokens", tokens, AS_INTEGER},
    {"training time", duration, AS_DURATION},
    {"training loss, mean of the newest lines", training_loss, AS_REAL},
    {"validation loss, newest", validation_loss, AS_REAL},
    {"validation loss, best", best_loss, AS_REAL},
    {"step of the best", best_step, AS_INTEGER},
    {"validation accuracy, newest", accuracy, AS_PERCENT},
    {"validation accuracy, best", best_accuracy, AS_PERCENT},
    {"masked LM accuracy, validation", masked_lm_accuracy, AS_PERCENT},
    {"next-sentence accuracy, validation", next_sentence_accuracy, AS_PERCENT},
    {"parameters", tt_report_parameters, AS_INTEGER},
    {"parameters of the dense model", dense_parameters, AS_INTEGER},
    {"compression", compression, AS_TIMES},
    {"size in f32", model_bytes, AS_BYTES},
    {"entries left in tensor trains", kept_entries, AS_INTEGER},
    {"size ratio", size_ratio, AS_PERCENT},
    {"tokens a second, median", throughput, AS_INTEGER},
    {"step time in ms, median", step_time, AS_REAL},
    {"skipped steps", skipped_steps, AS_INTEGER},
};

static void put_runs(const page *page)
{
    FILE *out = page->out;
    fputs("<div class=\"scroll\"><table class=\"runs\"><thead><tr><th scope=\"col\"></th>", out);
    for (int i = 0; i < page->count; i++) {
        fputs("<th scope=\"col\">", out);
        if (page->count > 1) {
            fprintf(out, "<b class=\"badge c%d\">%c</b> ", i, 'A' + i);
        }
        tt_report_escape(out, page->labels[i]);
        fputs("</th>", out);
    }
    fputs("</tr></thead><tbody>", out);
    for (size_t row = 0; row < sizeof figures / sizeof *figures; row++) {
        bool known = false;
        for (int i = 0; i < page->count; i++) {
            known = known || isfinite(figures[row].figure(&page->runs[i]));
        }
        if (!known) {
            continue;
        }
        fprintf(out, "<tr><th scope=\"row\">%s</th>", figures[row].name);
        for (int i = 0; i < page->count; i++) {
            fputs("<td>", out);
            put_number(out, figures[row].figure(&page->runs[i]), figures[row].form);
            fputs("</td>", out);
        }
        fputs("</tr>", out);
    }
    fputs("</tbody></table></div>\n", out);
}

/* --- the head of the page --- */

static void put_tile(FILE *out, const char *name, double value, number_form form, const char *below,
                     double below_value, number_form below_form)
{
    if (!isfinite(value)) {
        return;
    }
    fprintf(out, "<div><dt>%s</dt><dd>", name);
    put_number(out, value, form);
    if (isfinite(below_value)) {
        fprintf(out, "<small>%s ", below);
        put_number(out, below_value, below_form);
        fputs("</small>", out);
    }
    fputs("</dd></div>", out);
}

static void put_tiles(FILE *out, const tt_report_run *run)
{
    fputs("<dl class=\"tiles\">", out);
    if (isfinite(validation_loss(run))) {
        put_tile(out, "validation loss", validation_loss(run), AS_REAL, "best at step",
                 best_step(run), AS_INTEGER);
    } else {
        put_tile(out, "training loss", training_loss(run), AS_REAL, "at step", steps(run),
                 AS_INTEGER);
    }
    put_tile(out, "validation accuracy", accuracy(run), AS_PERCENT, "best", best_accuracy(run),
             AS_PERCENT);
    put_tile(out, "masked LM accuracy", masked_lm_accuracy(run), AS_PERCENT, "", NAN, AS_REAL);
    put_tile(out, "parameters", tt_report_parameters(run), AS_INTEGER, "in f32", model_bytes(run),
             AS_BYTES);
    put_tile(out, "compression", compression(run), AS_TIMES, "dense:", dense_parameters(run),
             AS_INTEGER);
    put_tile(out, "tokens a second", throughput(run), AS_INTEGER, "a step in ms:", step_time(run),
             AS_REAL);
    put_tile(out, "training time", duration(run), AS_DURATION, "steps:", steps(run), AS_INTEGER);
    fputs("</dl>\n", out);
}

static void put_title(const page *page)
{
    if (page->count > 1) {
        fprintf(page->out, "%d runs: ", page->count);
    }
    for (int i = 0; i < page->count; i++) {
        fputs(i > 0 ? ", " : "", page->out);
        tt_report_escape(page->out, page->labels[i]);
    }
}

static void put_head(const page *page)
{
    FILE *out = page->out;
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\n<title>",
          out);
    put_title(page);
    fputs("</title>\n<link rel=\"icon\" href=\"data:,\"/>\n<style>\n", out);
    for (int i = 0; tt_report_style[i] != NULL; i++) {
        fputs(tt_report_style[i], out);
    }
    fputs("</style>\n</head>\n<body>\n<header>\n<h1>", out);
    put_title(page);
    fputs("</h1>\n", out);
    for (int i = 0; i < page->count; i++) {
        fputs("<p class=\"sub\">", out);
        if (page->count > 1) {
            fprintf(out, "<b class=\"badge c%d\">%c</b> ", i, 'A' + i);
        }
        tt_report_escape(out, page->runs[i].path);
        fputs("</p>\n", out);
    }
}

static void put_notes(const page *page)
{
    for (int i = 0; i < page->count; i++) {
        const tt_report_run *run = &page->runs[i];
        if (run->bad_lines > 0) {
            fputs("<p class=\"note\">", page->out);
            tt_report_escape(page->out, run->path);
            fprintf(page->out,
                    "/metrics.jsonl: %lld line%s no record%s, the first of them line %lld: passed "
                    "over.</p>\n",
                    (long long)run->bad_lines, run->bad_lines > 1 ? "s are" : " is",
                    run->bad_lines > 1 ? "s" : "", (long long)run->first_bad_line);
        }
        if (run->torn) {
            fputs("<p class=\"note\">", page->out);
            tt_report_escape(page->out, run->path);
            fputs("/metrics.jsonl ends within a line: the run still writes, or was killed.</p>\n",
                  page->out);
        }
    }
}

/* --- sections --- */

static bool has_ranks(const page *page)
{
    for (int i = 0; i < page->count; i++) {
        if (page->runs[i].map_count > 0) {
            return true;
        }
    }
    return tt_report_has_charts(TT_REPORT_SIZES, page->runs, page->count);
}

static bool has_recipes(const page *page)
{
    for (int i = 0; i < page->count; i++) {
        if (page->runs[i].recipe != NULL) {
            return true;
        }
    }
    return false;
}

static tt_status put_charts(const page *page, const char *id, const char *title,
                            tt_report_section section, tt_error *error)
{
    if (!tt_report_has_charts(section, page->runs, page->count)) {
        return TT_OK;
    }
    fprintf(page->out, "<h2 id=\"%s\">%s</h2>\n", id, title);
    return tt_report_put_charts(page->out, section, page->runs, page->labels, page->count, error);
}

/* Which of several runs comes now. */
static void put_run_title(const page *page, int number)
{
    if (page->count > 1) {
        fprintf(page->out, "<h3 class=\"run\"><b class=\"badge c%d\">%c</b> ", number,
                'A' + number);
        tt_report_escape(page->out, page->labels[number]);
        fputs("</h3>\n", page->out);
    }
}

static tt_status put_sizes(const page *page, tt_error *error)
{
    if (!has_ranks(page)) {
        return TT_OK;
    }
    fputs("<h2 id=\"sizes\">Size and ranks</h2>\n", page->out);
    TT_TRY(tt_report_put_charts(page->out, TT_REPORT_SIZES, page->runs, page->labels, page->count,
                                error));
    tt_report_put_stages(page->out, page->runs, page->labels, page->count);
    for (int i = 0; i < page->count; i++) {
        if (page->runs[i].map_count > 0) {
            put_run_title(page, i);
            tt_report_put_rank_map(page->out, &page->runs[i], i);
            tt_report_put_sizes(page->out, &page->runs[i]);
            tt_report_put_maps(page->out, &page->runs[i]);
        }
    }
    return TT_OK;
}

static tt_status put_recipes(const page *page, tt_error *error)
{
    if (!has_recipes(page)) {
        return TT_OK;
    }
    fputs("<h2 id=\"recipes\">Recipe</h2>\n", page->out);
    if (page->count > 1) {
        TT_TRY(tt_report_put_differences(page->out, page->runs, page->count, error));
    }
    for (int i = 0; i < page->count; i++) {
        put_run_title(page, i);
        tt_report_put_recipe(page->out, &page->runs[i], "The whole recipe");
    }
    return TT_OK;
}

static void put_links(const page *page)
{
    const struct {
        const char *id, *name;
        bool there;
    } links[] = {
        {"quality", "Loss and accuracy",
         tt_report_has_charts(TT_REPORT_QUALITY, page->runs, page->count)},
        {"sizes", "Size and ranks", has_ranks(page)},
        {"speed", "Speed", tt_report_has_charts(TT_REPORT_SPEED, page->runs, page->count)},
        {"optimizer", "Optimizer",
         tt_report_has_charts(TT_REPORT_OPTIMIZER, page->runs, page->count)},
        {"figures", "All figures", true},
        {"recipes", "Recipe", has_recipes(page)},
    };
    fputs("<nav>", page->out);
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        if (links[i].there) {
            fprintf(page->out, "<a href=\"#%s\">%s</a>", links[i].id, links[i].name);
        }
    }
    fputs("</nav>\n", page->out);
}

/* Ways to call a run, from the shortest on: its name, its folder's name, its folder. */
static const char *label_of(const tt_report_run *run, int way)
{
    const char *slash = strrchr(run->path, '/');
    return way == 0 ? run->name : way == 1 && slash != NULL && slash[1] ? slash + 1 : run->path;
}

static bool labels_differ(const tt_report_run *runs, int count, int way)
{
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++) {
            if (strcmp(label_of(&runs[i], way), label_of(&runs[j], way)) == 0) {
                return false;
            }
        }
    }
    return true;
}

/* The shortest way that tells the runs apart. */
static void choose_labels(page *page)
{
    int way = 0;
    while (way < 2 && !labels_differ(page->runs, page->count, way)) {
        way++;
    }
    for (int i = 0; i < page->count; i++) {
        page->labels[i] = label_of(&page->runs[i], way);
    }
}

tt_status tt_report_put_page(FILE *out, const tt_report_run *runs, int count, tt_error *error)
{
    page page = {.out = out, .runs = runs, .count = count};
    choose_labels(&page);
    put_head(&page);
    put_links(&page);
    put_notes(&page);
    if (count == 1) {
        put_tiles(out, &runs[0]);
    }
    fputs("</header>\n<main>\n", out);
    if (count > 1) {
        fputs("<h2 id=\"figures\">Figures</h2>\n", out);
        put_runs(&page);
    }
    TT_TRY(put_charts(&page, "quality", "Loss and accuracy", TT_REPORT_QUALITY, error));
    TT_TRY(put_sizes(&page, error));
    TT_TRY(put_charts(&page, "speed", "Speed", TT_REPORT_SPEED, error));
    TT_TRY(put_charts(&page, "optimizer", "Optimizer", TT_REPORT_OPTIMIZER, error));
    if (count == 1) {
        fputs("<h2 id=\"figures\">All figures</h2>\n", out);
        put_runs(&page);
    }
    TT_TRY(put_recipes(&page, error));
    fputs(
        "</main>\n<footer>Made by ttrain report. Point at a chart for the numbers there.</footer>\n"
        "</body>\n</html>\n",
        out);
    return TT_OK;
}

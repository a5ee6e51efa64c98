/* Which charts a report has. */
#include "launch/report_page.h"

#include <math.h>
#include <string.h>

enum { CHART_PARTS = 3 };

typedef enum { OVER_STEPS, OVER_TIME } x_axis;

/* Whether a chart says anything. */
typedef enum {
    WHERE_KNOWN,
    WHERE_CHANGING,     /* or where there are runs to compare */
    WITH_NEXT_SENTENCE, /* where the loss has two parts */
} condition;

typedef struct {
    tt_report_section section;
    const char *id, *title, *note, *y_label;
    x_axis axis;
    tt_chart_unit unit;
    bool from_zero, noisy, holds, may_span;
    condition when;
    struct {
        tt_report_key key;
        const char *name;
        tt_chart_style style;
    } parts[CHART_PARTS];
} chart_kind;

/* Not a key of metrics: dense parameters / parameters. */
enum { COMPRESSION = TT_REPORT_KEYS };

#define TRAINING_AND_VALIDATION(KEY)                                                               \
    {                                                                                              \
        {TT_REPORT_##KEY, "training", TT_CHART_SOLID},                                             \
            {TT_REPORT_VALIDATION_##KEY, "validation", TT_CHART_DOTS},                             \
    }

static const chart_kind kinds[] = {
    {TT_REPORT_QUALITY, "loss", "Loss", NULL, "nats", OVER_STEPS, TT_CHART_NUMBER, .noisy = true,
     .parts = TRAINING_AND_VALIDATION(LOSS)},
    {TT_REPORT_QUALITY, "loss-time", "Loss by training time", NULL, "nats", OVER_TIME,
     TT_CHART_NUMBER, .noisy = true, .parts = TRAINING_AND_VALIDATION(LOSS)},
    {TT_REPORT_QUALITY, "masked-lm-loss", "Masked LM loss", NULL, "nats a masked token", OVER_STEPS,
     TT_CHART_NUMBER, .noisy = true, .when = WITH_NEXT_SENTENCE,
     .parts = TRAINING_AND_VALIDATION(MASKED_LM_LOSS)},
    {TT_REPORT_QUALITY, "next-sentence-loss", "Next-sentence loss", NULL, "nats a pair", OVER_STEPS,
     TT_CHART_NUMBER, .noisy = true, .parts = TRAINING_AND_VALIDATION(NEXT_SENTENCE_LOSS)},
    {TT_REPORT_QUALITY, "accuracy", "Accuracy", NULL, "of the examples", OVER_STEPS,
     TT_CHART_PERCENT, .noisy = true, .parts = TRAINING_AND_VALIDATION(ACCURACY)},
    {TT_REPORT_QUALITY, "masked-lm-accuracy", "Masked LM accuracy", NULL, "of the masked tokens",
     OVER_STEPS, TT_CHART_PERCENT, .noisy = true,
     .parts = TRAINING_AND_VALIDATION(MASKED_LM_ACCURACY)},
    {TT_REPORT_QUALITY, "next-sentence-accuracy", "Next-sentence accuracy", NULL, "of the pairs",
     OVER_STEPS, TT_CHART_PERCENT, .noisy = true,
     .parts = TRAINING_AND_VALIDATION(NEXT_SENTENCE_ACCURACY)},
    {TT_REPORT_SIZES, "parameters", "Parameters", "Of the whole model, as it is stored.",
     "parameters", OVER_STEPS, TT_CHART_NUMBER, .from_zero = true, .holds = true, .may_span = true,
     .when = WHERE_CHANGING, .parts = {{TT_REPORT_PARAMETERS, "", TT_CHART_SOLID}}},
    {TT_REPORT_SIZES, "compression", "Compression",
     "Parameters of the dense model / parameters of this one.", "times smaller", OVER_STEPS,
     TT_CHART_NUMBER, .from_zero = true, .holds = true, .when = WHERE_CHANGING,
     .parts = {{(tt_report_key)COMPRESSION, "", TT_CHART_SOLID}}},
    {TT_REPORT_SIZES, "size", "Size of the tensor trains",
     "Entries left after pruning; relaxed: the same with 1-norms of the diagonals.", "entries",
     OVER_STEPS, TT_CHART_NUMBER, .from_zero = true,
     .parts = {{TT_REPORT_SIZE, "kept entries", TT_CHART_SOLID},
               {TT_REPORT_RELAXED_SIZE, "relaxed", TT_CHART_DASHED}}},
    {TT_REPORT_SIZES, "size-ratio", "Size ratio", "Size / size at the start of the stage.",
     "of the size", OVER_STEPS, TT_CHART_PERCENT, .from_zero = true,
     .parts = {{TT_REPORT_SIZE_RATIO, "", TT_CHART_SOLID}}},
    {TT_REPORT_SPEED, "throughput", "Throughput", "All ranks together.", "tokens a second",
     OVER_STEPS, TT_CHART_NUMBER, .from_zero = true, .noisy = true,
     .parts = {{TT_REPORT_TOKENS_PER_S, "", TT_CHART_SOLID}}},
    {TT_REPORT_SPEED, "step-time", "Step time", NULL, "ms", OVER_STEPS, TT_CHART_NUMBER,
     .from_zero = true, .noisy = true,
     .parts = {{TT_REPORT_STEP_MS, "whole step", TT_CHART_SOLID},
               {TT_REPORT_DATA_WAIT_MS, "of it waiting for data", TT_CHART_DOTTED}}},
    {TT_REPORT_OPTIMIZER, "learning-rate", "Learning rate", NULL, "learning rate", OVER_STEPS,
     TT_CHART_NUMBER, .from_zero = true, .may_span = true,
     .parts = {{TT_REPORT_LEARNING_RATE, "dense parameters", TT_CHART_SOLID},
               {TT_REPORT_CORE_LEARNING_RATE, "tensor cores", TT_CHART_DASHED},
               {TT_REPORT_DIAGONAL_LEARNING_RATE, "rank diagonals", TT_CHART_DOTTED}}},
    {TT_REPORT_OPTIMIZER, "gradient-norm", "Gradient norm", "Before clipping.", "norm", OVER_STEPS,
     TT_CHART_NUMBER, .from_zero = true, .noisy = true,
     .parts = {{TT_REPORT_GRADIENT_NORM, "", TT_CHART_SOLID}}},
};

enum { KINDS = sizeof kinds / sizeof *kinds };

static double value_of(const tt_report_run *run, const tt_report_record *record, tt_report_key key)
{
    return key == (tt_report_key)COMPRESSION
               ? run->dense_parameters / record->values[TT_REPORT_PARAMETERS]
               : record->values[key];
}

static bool has_value(const tt_report_run *run, tt_report_key key)
{
    return key == (tt_report_key)COMPRESSION
               ? isfinite(run->dense_parameters) && tt_report_has(run, TT_REPORT_PARAMETERS)
               : tt_report_has(run, key);
}

static bool changes(const tt_report_run *run, tt_report_key key)
{
    double first = NAN;
    for (int64_t i = 0; i < run->record_count; i++) {
        double value = value_of(run, &run->records[i], key);
        if (isfinite(first) && isfinite(value) && value != first) {
            return true;
        }
        first = isfinite(first) ? first : value;
    }
    return false;
}

static bool is_wanted(const chart_kind *kind, const tt_report_run *runs, int count)
{
    bool known = false, changing = false, next_sentence = false;
    for (int i = 0; i < count; i++) {
        for (int part = 0; part < CHART_PARTS && kind->parts[part].name; part++) {
            known = known || has_value(&runs[i], kind->parts[part].key);
            changing = changing || changes(&runs[i], kind->parts[part].key);
        }
        next_sentence = next_sentence || tt_report_has(&runs[i], TT_REPORT_NEXT_SENTENCE_LOSS);
    }
    return known && (kind->when != WHERE_CHANGING || changing || count > 1) &&
           (kind->when != WITH_NEXT_SENTENCE || next_sentence);
}

bool tt_report_has_charts(tt_report_section section, const tt_report_run *runs, int count)
{
    for (int i = 0; i < KINDS; i++) {
        if (kinds[i].section == section && is_wanted(&kinds[i], runs, count)) {
            return true;
        }
    }
    return false;
}

/* Where the record lies on the x axis. */
static double place_of(const tt_report_record *record, x_axis axis)
{
    return axis == OVER_TIME ? record->values[TT_REPORT_ELAPSED_S] : record->step;
}

/* Groups with the same rates in all records are one line. */
static bool repeats(const chart_kind *kind, const tt_report_run *run, int part)
{
    if (kind->section != TT_REPORT_OPTIMIZER || part == 0) {
        return false;
    }
    for (int64_t i = 0; i < run->record_count; i++) {
        const double *values = run->records[i].values;
        if (values[kind->parts[part].key] != values[kind->parts[0].key]) {
            return false;
        }
    }
    return true;
}

/* What the last compaction did shows even where no step came after it. */
static void add_end(tt_chart_series *series, const tt_report_run *run, const chart_kind *kind)
{
    const tt_report_key key = kind->parts[0].key;
    double end = run->records[run->record_count - 1].step;
    double parameters = tt_report_parameters(run);
    if (key == TT_REPORT_PARAMETERS) {
        tt_chart_point(series, end, parameters);
    } else if (key == (tt_report_key)COMPRESSION) {
        tt_chart_point(series, end, run->dense_parameters / parameters);
    }
}

static tt_status add_run(tt_chart *chart, const chart_kind *kind, const tt_report_run *run,
                         const char *label, int number, tt_error *error)
{
    for (int part = 0; part < CHART_PARTS && kind->parts[part].name; part++) {
        if (repeats(kind, run, part)) {
            continue;
        }
        tt_chart_series *series =
            tt_chart_add(chart, label, kind->parts[part].name, number, run->record_count + 1);
        if (series == NULL) {
            return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the chart %s", kind->id);
        }
        series->style = kind->parts[part].style;
        series->noisy = kind->noisy && part == 0;
        series->holds = kind->holds;
        for (int64_t i = 0; i < run->record_count; i++) {
            const tt_report_record *record = &run->records[i];
            tt_chart_point(series, place_of(record, kind->axis),
                           value_of(run, record, kind->parts[part].key));
        }
        add_end(series, run, kind);
    }
    return TT_OK;
}

/* Where a run's phases and stages begin, if there are several. */
static void add_marks(tt_chart *chart, const tt_report_run *run, x_axis axis)
{
    for (int text = TT_REPORT_PHASE; text <= TT_REPORT_STAGE; text++) {
        int earlier = -1;
        for (int64_t i = 0; run->name_counts[text] > 1 && i < run->record_count; i++) {
            int name = run->records[i].texts[text];
            if (name != earlier && name >= 0 && chart->mark_count < TT_CHART_MARKS) {
                chart->marks[chart->mark_count].x = i > 0 ? place_of(&run->records[i], axis) : 0;
                chart->marks[chart->mark_count++].label = run->names[text][name];
            }
            earlier = name;
        }
    }
}

static tt_status put_chart(FILE *out, const chart_kind *kind, const tt_report_run *runs,
                           const char *const *labels, int count, tt_error *error)
{
    tt_chart chart = {.id = kind->id,
                      .title = kind->title,
                      .note = kind->note,
                      .x_label = kind->axis == OVER_TIME ? "time" : "step",
                      .y_label = kind->y_label,
                      .x_unit = kind->axis == OVER_TIME ? TT_CHART_SECONDS : TT_CHART_NUMBER,
                      .y_unit = kind->unit,
                      .from_zero = kind->from_zero,
                      .may_span = kind->may_span,
                      .run_count = count};
    tt_status status = TT_OK;
    for (int i = 0; i < count && status == TT_OK; i++) {
        status = add_run(&chart, kind, &runs[i], labels[i], i, error);
    }
    if (count == 1) {
        add_marks(&chart, &runs[0], kind->axis);
    }
    tt_status written = tt_chart_write(out, &chart, error);
    return status != TT_OK ? status : written;
}

tt_status tt_report_put_charts(FILE *out, tt_report_section section, const tt_report_run *runs,
                               const char *const *labels, int count, tt_error *error)
{
    fputs("<div class=\"grid-of\">\n", out);
    for (int i = 0; i < KINDS; i++) {
        if (kinds[i].section == section && is_wanted(&kinds[i], runs, count)) {
            TT_TRY(put_chart(out, &kinds[i], runs, labels, count, error));
        }
    }
    fputs("</div>\n", out);
    return TT_OK;
}

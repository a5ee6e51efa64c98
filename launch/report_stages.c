/* Stages and branches of runs as bars over the steps. */
#include "launch/report_page.h"

#include "launch/report_scale.h"
#include "launch/report_text.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 960, LEFT = 178, RIGHT = 24, TOP = 6, BAR = 22, GAP = 8, BOTTOM = 38, LETTER = 8 };

enum { NAMES = 32 };

enum { STRETCHES = 240 }; /* the steps are cut into so many at most */

static const char *const texts[TT_REPORT_TEXTS] = {"phase", "stage", "branch"};

typedef struct {
    FILE *out;
    tt_scale x;
    double y;
    const char *names[NAMES]; /* of stages and branches of all runs; the place gives the colour */
    int name_count;
} drawing;

/* Which of the names it is, after it has been added where it is new. */
static int number_of(drawing *drawing, const char *name)
{
    for (int i = 0; i < drawing->name_count; i++) {
        if (strcmp(drawing->names[i], name) == 0) {
            return i;
        }
    }
    if (drawing->name_count == NAMES) {
        return NAMES - 1;
    }
    drawing->names[drawing->name_count] = name;
    return drawing->name_count++;
}

enum { NO_TEXT = -1, NO_RECORD = -2 };

/* The text that most of the records from *at to step `high` have; moves *at past them. */
static int commonest(const tt_report_run *run, int text, double high, int64_t *at)
{
    int counts[TT_REPORT_NAMES + 1] = {0}, best = NO_RECORD;
    for (; *at < run->record_count && run->records[*at].step <= high; (*at)++) {
        int name = run->records[*at].texts[text];
        counts[name - NO_TEXT]++;
        if (best == NO_RECORD || counts[name - NO_TEXT] > counts[best - NO_TEXT]) {
            best = name;
        }
    }
    return best;
}

static void put_bar(drawing *drawing, const char *name, double low, double high)
{
    int colour = number_of(drawing, name) % TT_CHART_RUNS;
    double from = tt_scale_at(&drawing->x, low), to = tt_scale_at(&drawing->x, high);
    fprintf(drawing->out,
            "<rect class=\"bar c%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"><title>",
            colour, from, drawing->y, to - from, BAR);
    tt_report_escape(drawing->out, name);
    fputs("</title></rect>", drawing->out);
    if (to - from > LETTER * (double)strlen(name) + 8) {
        fprintf(drawing->out, "<text class=\"on\" x=\"%.1f\" y=\"%.1f\">", from + 6,
                drawing->y + BAR / 2.0 + 4);
        tt_report_escape(drawing->out, name);
        fputs("</text>", drawing->out);
    }
}

/* A record stands for the steps since the one before it. */
static void put_row(drawing *drawing, const tt_report_run *run, int text, int number, int count)
{
    double begun = drawing->x.low, end = run->records[run->record_count - 1].step;
    int present = NO_TEXT;
    int64_t at = 0;
    fprintf(drawing->out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", LEFT - 8,
            drawing->y + BAR / 2.0 + 4);
    if (count > 1) {
        fprintf(drawing->out, "%c ", 'A' + number);
    }
    fprintf(drawing->out, "%s</text>", texts[text]);
    for (int i = 1; i <= STRETCHES; i++) {
        double high = drawing->x.low + i * (drawing->x.high - drawing->x.low) / STRETCHES;
        double before = at > 0 ? run->records[at - 1].step : drawing->x.low;
        int name = commonest(run, text, i < STRETCHES ? high : drawing->x.high, &at);
        if (name == NO_RECORD || name == present) {
            continue;
        }
        if (present != NO_TEXT) {
            put_bar(drawing, run->names[text][present], begun, before);
        }
        present = name;
        begun = before;
    }
    if (present != NO_TEXT) {
        put_bar(drawing, run->names[text][present], begun, fmax(begun, end));
    }
    drawing->y += BAR + GAP;
}

static void put_steps(const drawing *drawing)
{
    char label[TT_SCALE_LABEL];
    for (int i = 0; i < drawing->x.tick_count; i++) {
        double value = drawing->x.ticks[i];
        fprintf(drawing->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>",
                tt_scale_at(&drawing->x, value), drawing->y + 10,
                tt_scale_label(&drawing->x, value, label));
    }
    fprintf(drawing->out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">step</text>", LEFT - 8,
            drawing->y + 10);
}

/* Bars may be too short for their names. */
static void put_names(drawing *drawing, const tt_report_run *runs, int count)
{
    for (int text = TT_REPORT_STAGE; text <= TT_REPORT_BRANCH; text++) {
        for (int i = 0; i < count; i++) {
            for (int name = 0; name < runs[i].name_counts[text]; name++) {
                number_of(drawing, runs[i].names[text][name]);
            }
        }
    }
    fputs("<ul class=\"legend\">", drawing->out);
    for (int i = 0; i < drawing->name_count; i++) {
        fprintf(drawing->out, "<li><span class=\"patch c%d\"></span>", i % TT_CHART_RUNS);
        tt_report_escape(drawing->out, drawing->names[i]);
        fputs("</li>", drawing->out);
    }
    fputs("</ul>", drawing->out);
}

void tt_report_put_stages(FILE *out, const tt_report_run *runs, const char *const *labels,
                          int count)
{
    int rows = 0;
    double last = 0;
    for (int i = 0; i < count; i++) {
        rows += (runs[i].name_counts[TT_REPORT_STAGE] > 0) +
                (runs[i].name_counts[TT_REPORT_BRANCH] > 0);
        last = fmax(last, runs[i].records[runs[i].record_count - 1].step);
    }
    if (rows == 0) {
        return;
    }
    drawing drawing = {.out = out, .y = TOP};
    drawing.x = tt_scale_make(0, last, 7, false, TT_CHART_NUMBER);
    drawing.x.from = LEFT;
    drawing.x.to = WIDTH - RIGHT;
    fputs("<figure class=\"wide\" id=\"stages\"><figcaption><h3>Stages</h3><p>And which branch of "
          "the objective the late stage took: the commonest of the logged steps in each "
          "stretch.</p></figcaption>",
          out);
    put_names(&drawing, runs, count);
    fprintf(out,
            "<div class=\"scroll\"><svg class=\"stages\" viewBox=\"0 0 %d %d\" role=\"img\" "
            "aria-labelledby=\"stages-t\"><title id=\"stages-t\">Stages and branches over the "
            "steps",
            WIDTH, TOP + rows * (BAR + GAP) + BOTTOM - 16);
    for (int i = 0; i < count; i++) {
        fputs(i == 0 ? " of " : ", ", out);
        tt_report_escape(out, labels[i]);
    }
    fputs("</title>", out);
    for (int i = 0; i < count; i++) {
        for (int text = TT_REPORT_STAGE; text <= TT_REPORT_BRANCH; text++) {
            if (runs[i].name_counts[text] > 0) {
                put_row(&drawing, &runs[i], text, i, count);
            }
        }
    }
    put_steps(&drawing);
    fputs("</svg></div></figure>\n", out);
}

#include "launch/report_chart.h"

#include "launch/report_curve.h"
#include "launch/report_scale.h"
#include "launch/report_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The drawing in its own units; the page stretches it. */
enum {
    WIDTH = 640,
    HEIGHT = 312,
    LEFT = 62,
    RIGHT = 22,
    TOP = 36,
    BOTTOM = 42,
    LETTER = 7, /* about the width of one in marks */
};

enum { PARTS = 560, SMOOTHED = 40, DOTS = 40, BANDS = 48, ROWS = 9 };

typedef struct {
    FILE *out;
    tt_chart *chart;
    tt_scale x, y;
    int64_t outside; /* points that are not shown */
    bool smooths;    /* a line has its running mean over it */
} drawing;

tt_chart_series *tt_chart_add(tt_chart *chart, const char *run, const char *part, int colour,
                              int64_t capacity)
{
    if (chart->series_count == TT_CHART_SERIES) {
        return NULL;
    }
    size_t bytes = ((size_t)capacity + 1) * sizeof(double);
    tt_chart_series *series = &chart->series[chart->series_count];
    *series = (tt_chart_series){
        .run = run, .part = part, .colour = colour, .x = malloc(bytes), .y = malloc(bytes)};
    if (series->x == NULL || series->y == NULL) {
        free(series->x);
        free(series->y);
        return NULL;
    }
    chart->series_count++;
    return series;
}

void tt_chart_point(tt_chart_series *series, double x, double y)
{
    if (isfinite(x) && isfinite(y)) {
        series->x[series->count] = x;
        series->y[series->count++] = y;
    }
}

/* Lines without a point are dropped, so that legend and table do not name them. */
static void drop_empty(tt_chart *chart)
{
    int kept = 0;
    for (int i = 0; i < chart->series_count; i++) {
        if (chart->series[i].count > 0) {
            chart->series[kept++] = chart->series[i];
        } else {
            free(chart->series[i].x);
            free(chart->series[i].y);
        }
    }
    chart->series_count = kept;
}

/* --- scales --- */

static bool find_ranges(const tt_chart *chart, double low[2], double high[2])
{
    int64_t total = 0, used = 0;
    low[0] = INFINITY;
    high[0] = -INFINITY;
    for (int i = 0; i < chart->series_count; i++) {
        const tt_chart_series *series = &chart->series[i];
        total += series->count;
        low[0] = fmin(low[0], series->x[0]);
        high[0] = fmax(high[0], series->x[series->count - 1]);
    }
    double *all = malloc(((size_t)total + 1) * sizeof *all);
    for (int i = 0; all != NULL && i < chart->series_count; i++) {
        const tt_chart_series *series = &chart->series[i];
        memcpy(all + used, series->y, (size_t)series->count * sizeof *all);
        used += series->count;
    }
    bool room = all != NULL && tt_curve_range(all, total, &low[1], &high[1]);
    free(all);
    return room;
}

static bool make_scales(drawing *drawing)
{
    const tt_chart *chart = drawing->chart;
    double low[2], high[2];
    if (!find_ranges(chart, low, high)) {
        return false;
    }
    low[0] = low[0] > 0 && low[0] < 0.1 * high[0] ? 0 : low[0];
    const double lowest = low[1];
    low[1] = chart->from_zero ? fmin(0, low[1]) : low[1];
    drawing->x = tt_scale_make(low[0], high[0], 6, false, chart->x_unit);
    drawing->y = chart->may_span && lowest > 0 && high[1] > 20 * lowest
                     ? tt_scale_make_logarithmic(lowest, high[1])
                     : tt_scale_make(low[1], high[1], 5, true, chart->y_unit);
    drawing->x.from = LEFT;
    drawing->x.to = WIDTH - RIGHT;
    drawing->y.from = HEIGHT - BOTTOM;
    drawing->y.to = TOP;
    for (int i = 0; i < chart->series_count; i++) {
        for (int64_t j = 0; j < chart->series[i].count; j++) {
            double y = chart->series[i].y[j];
            drawing->outside += y < drawing->y.low || y > drawing->y.high;
        }
    }
    return true;
}

/* --- axes --- */

/* "steps", "time, min", "rate, x10^-3" with the exponent raised. */
static void put_axis_label(FILE *out, const char *label, const tt_scale *scale)
{
    tt_report_escape(out, label);
    if (strncmp(scale->unit, "10^", 3) == 0) {
        fprintf(out,
                ", \xC3\x97"
                "10<tspan dy=\"-4\" class=\"small\">%s%s</tspan>",
                scale->unit[3] == '-' ? "\xE2\x88\x92" : "",
                scale->unit + 3 + (scale->unit[3] == '-'));
    } else if (scale->unit[0] != '\0') {
        fprintf(out, ", %s", scale->unit);
    }
}

static void put_axes(const drawing *drawing)
{
    FILE *out = drawing->out;
    const tt_scale *x = &drawing->x, *y = &drawing->y;
    char label[TT_SCALE_LABEL];
    fputs("<g class=\"grid\">", out);
    for (int i = 0; i < y->tick_count; i++) {
        fprintf(out, "<path d=\"M%d %.1fH%d\"/>", LEFT, tt_scale_at(y, y->ticks[i]), WIDTH - RIGHT);
    }
    fprintf(out, "</g><path class=\"axis\" d=\"M%d %dH%d", LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT);
    for (int i = 0; i < x->tick_count; i++) {
        fprintf(out, "M%.1f %dv4", tt_scale_at(x, x->ticks[i]), HEIGHT - BOTTOM);
    }
    fputs("\"/><g class=\"ticks\">", out);
    for (int i = 0; i < y->tick_count; i++) {
        double value = y->ticks[i];
        fprintf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>", LEFT - 7,
                tt_scale_at(y, value) + 4, tt_scale_label(y, value, label));
    }
    for (int i = 0; i < x->tick_count; i++) {
        double value = x->ticks[i];
        fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>",
                tt_scale_at(x, value), HEIGHT - BOTTOM + 17, tt_scale_label(x, value, label));
    }
    fprintf(out, "</g><text class=\"label\" x=\"%d\" y=\"13\">", 4);
    put_axis_label(out, drawing->chart->y_label, y);
    fprintf(out, "</text><text class=\"label\" x=\"%d\" y=\"%d\" text-anchor=\"end\">",
            WIDTH - RIGHT, HEIGHT - 6);
    put_axis_label(out, drawing->chart->x_label, x);
    fputs("</text>", out);
}

/* Labels that would run into the one before are left out; the line stays. */
static void put_marks(const drawing *drawing)
{
    const tt_chart *chart = drawing->chart;
    double free_from = LEFT;
    for (int i = 0; i < chart->mark_count; i++) {
        double x = fmax(LEFT, tt_scale_at(&drawing->x, chart->marks[i].x));
        const char *label = chart->marks[i].label;
        if (!(x <= WIDTH - RIGHT)) {
            continue;
        }
        if (x > LEFT + 2) {
            fprintf(drawing->out, "<path class=\"mark\" d=\"M%.1f %dV%d\"/>", x, TOP,
                    HEIGHT - BOTTOM);
        }
        double width = LETTER * (double)strlen(label);
        if (x >= free_from && x + width < WIDTH) {
            fprintf(drawing->out, "<text class=\"marked\" x=\"%.1f\" y=\"%d\">",
                    x + (x > LEFT + 2 ? 0 : 2), TOP - 6);
            tt_report_escape(drawing->out, label);
            fputs("</text>", drawing->out);
            free_from = x + 4 + width;
        }
    }
}

/* --- lines --- */

static void put_path(const drawing *drawing, const char *class, const double *x, const double *y,
                     int64_t count, bool holds)
{
    fprintf(drawing->out, "<path class=\"%s\" d=\"", class);
    for (int64_t i = 0; i < count; i++) {
        double px = tt_scale_at(&drawing->x, x[i]);
        /* Far outside the frame coordinates only cost digits. */
        double py = fmax(-HEIGHT, fmin(2 * HEIGHT, tt_scale_at(&drawing->y, y[i])));
        if (i > 0 && holds) {
            fprintf(drawing->out, "H%.1fV%.1f", px, py);
        } else {
            fprintf(drawing->out, "%s%.1f %.1f", i == 0 ? "M" : i == 1 ? "L" : " ", px, py);
        }
    }
    fputs("\"/>", drawing->out);
}

static void put_dots(const drawing *drawing, const tt_chart_series *series)
{
    int64_t every = (series->count + DOTS - 1) / DOTS;
    for (int64_t i = series->count - 1; i >= 0; i -= every) {
        if (series->y[i] >= drawing->y.low && series->y[i] <= drawing->y.high) {
            fprintf(drawing->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>",
                    tt_scale_at(&drawing->x, series->x[i]), tt_scale_at(&drawing->y, series->y[i]));
        }
    }
}

static bool put_mean(drawing *drawing, const tt_chart_series *series, double *x, double *y)
{
    memcpy(x, series->x, (size_t)series->count * sizeof *x);
    if (!tt_curve_smooth(series->y, series->count, y)) {
        return false;
    }
    int64_t kept = tt_curve_thin(x, y, series->count, PARTS / 2);
    put_path(drawing, "line", x, y, kept, false);
    drawing->smooths = true;
    return true;
}

static bool put_series(drawing *drawing, const tt_chart_series *series)
{
    static const char *const classes[] = {"line", "line dashed", "line dotted", "line"};
    size_t bytes = (size_t)series->count * sizeof(double);
    double *x = malloc(bytes), *y = malloc(bytes);
    bool room = x != NULL && y != NULL, noisy = series->noisy && series->count >= SMOOTHED;
    if (room) {
        memcpy(x, series->x, bytes);
        memcpy(y, series->y, bytes);
        int64_t kept = tt_curve_thin(x, y, series->count, PARTS);
        fprintf(drawing->out, "<g class=\"c%d\">", series->colour);
        put_path(drawing, noisy ? "faint" : classes[series->style], x, y, kept, series->holds);
        room = !noisy || put_mean(drawing, series, x, y);
        if (series->style == TT_CHART_DOTS || series->count == 1) {
            put_dots(drawing, series);
        }
        fputs("</g>", drawing->out);
    }
    free(x);
    free(y);
    return room;
}

/* Where a line ends: what is drawn thick of a noisy one. */
static double end_of(const tt_chart_series *series)
{
    int64_t newest = series->noisy && series->count >= SMOOTHED ? series->count / 25 : 1;
    double sum = 0;
    for (int64_t i = series->count - newest; i < series->count; i++) {
        sum += series->y[i];
    }
    return sum / (double)newest;
}

/* The run's letter at the end of its first line; letters make way for those that are there. */
static void put_letters(const drawing *drawing)
{
    const tt_chart *chart = drawing->chart;
    double taken[TT_CHART_RUNS][2];
    int count = 0;
    for (int i = 0; chart->run_count > 1 && i < chart->series_count; i++) {
        const tt_chart_series *series = &chart->series[i];
        if (i > 0 && series->colour == chart->series[i - 1].colour) {
            continue;
        }
        double x = tt_scale_at(&drawing->x, series->x[series->count - 1]) + 5;
        double y = tt_scale_at(&drawing->y, end_of(series)) + 4;
        y = fmax(TOP + 8, fmin(HEIGHT - BOTTOM - 2, y));
        for (int j = 0; j < count; j++) {
            if (fabs(taken[j][0] - x) < 10 && fabs(taken[j][1] - y) < 12) {
                bool above = y < taken[j][1] || taken[j][1] + 12 > HEIGHT - BOTTOM;
                y = taken[j][1] + (above ? -12 : 12);
            }
        }
        if (count < TT_CHART_RUNS) {
            taken[count][0] = x;
            taken[count++][1] = y;
        }
        fprintf(drawing->out, "<text class=\"letter c%d\" x=\"%.1f\" y=\"%.1f\">%c</text>",
                series->colour, x, y, 'A' + series->colour);
    }
}

static bool put_lines(drawing *drawing)
{
    FILE *out = drawing->out;
    const char *id = drawing->chart->id;
    bool room = true;
    fprintf(out,
            "<clipPath id=\"%s-c\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/></clipPath>"
            "<g clip-path=\"url(#%s-c)\">",
            id, LEFT - 3, TOP - 3, WIDTH - LEFT - RIGHT + 6, HEIGHT - TOP - BOTTOM + 6, id);
    for (int i = 0; room && i < drawing->chart->series_count; i++) {
        room = put_series(drawing, &drawing->chart->series[i]);
    }
    fputs("</g>", out);
    put_letters(drawing);
    return room;
}

/* --- numbers: under the pointer, and in the table --- */

static void put_value(const drawing *drawing, double value)
{
    char text[TT_REPORT_NUMBER];
    bool percent = drawing->chart->y_unit == TT_CHART_PERCENT;
    bool whole = !percent && value == floor(value) && fabs(value) >= 1000;
    fputs(whole ? tt_report_integer(value, text)
                : tt_report_real(percent ? 100 * value : value, text),
          drawing->out);
    fputs(percent ? "\xC2\xA0%" : "", drawing->out);
}

static void put_place(const drawing *drawing, double x)
{
    char text[TT_REPORT_NUMBER];
    fputs(drawing->chart->x_unit == TT_CHART_SECONDS ? tt_report_duration(x, text)
                                                     : tt_report_integer(x, text),
          drawing->out);
}

static void put_name(const drawing *drawing, const tt_chart_series *series)
{
    const tt_chart *chart = drawing->chart;
    bool part = series->part[0] != '\0';
    if (chart->run_count > 1) {
        tt_report_escape(drawing->out, series->run);
        fputs(part ? ", " : "", drawing->out);
    }
    if (part || chart->run_count == 1) {
        tt_report_escape(drawing->out, part ? series->part : chart->y_label);
    }
}

/* The point of a line that stands for the stretch from `low` to `high`; -1: there is none. */
static int64_t point_in(const tt_chart_series *series, double low, double high)
{
    int64_t nearest = tt_curve_nearest(series->x, series->count, (low + high) / 2);
    double x = series->x[nearest];
    return x >= low && x <= high ? nearest : -1;
}

static void put_bands(const drawing *drawing)
{
    const tt_chart *chart = drawing->chart;
    double width = (double)(WIDTH - LEFT - RIGHT) / BANDS;
    double span = (drawing->x.high - drawing->x.low) / BANDS;
    for (int band = 0; band < BANDS; band++) {
        double low = drawing->x.low + band * span, high = low + span;
        bool any = false;
        for (int i = 0; i < chart->series_count; i++) {
            int64_t point = point_in(&chart->series[i], low, high);
            if (point < 0) {
                continue;
            }
            if (!any) {
                fprintf(drawing->out,
                        "<rect class=\"band\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\">"
                        "<title>",
                        LEFT + band * width, TOP, width, HEIGHT - TOP - BOTTOM);
                put_place(drawing, chart->series[i].x[point]);
                fputs(chart->x_unit == TT_CHART_SECONDS ? "" : " ", drawing->out);
                tt_report_escape(drawing->out,
                                 chart->x_unit == TT_CHART_SECONDS ? "" : chart->x_label);
                any = true;
            }
            fputs("\n", drawing->out);
            put_name(drawing, &chart->series[i]);
            fputs(": ", drawing->out);
            put_value(drawing, chart->series[i].y[point]);
        }
        fputs(any ? "</title></rect>" : "", drawing->out);
    }
}

static void put_table(const drawing *drawing)
{
    FILE *out = drawing->out;
    const tt_chart *chart = drawing->chart;
    double span = (drawing->x.high - drawing->x.low) / (ROWS - 1);
    fputs("<details><summary>Numbers</summary><div class=\"scroll\"><table><thead><tr>"
          "<th scope=\"col\">",
          out);
    tt_report_escape(out, chart->x_label);
    for (int i = 0; i < chart->series_count; i++) {
        fputs("</th><th scope=\"col\">", out);
        put_name(drawing, &chart->series[i]);
    }
    fputs("</th></tr></thead><tbody>", out);
    for (int row = 0; row < ROWS; row++) {
        double at = drawing->x.low + row * span;
        fputs("<tr><th scope=\"row\">", out);
        put_place(drawing, at);
        fputs("</th>", out);
        for (int i = 0; i < chart->series_count; i++) {
            int64_t point = point_in(&chart->series[i], at - span / 2, at + span / 2);
            fputs("<td>", out);
            if (point < 0) {
                fputs("\xE2\x80\x93", out);
            } else {
                put_value(drawing, chart->series[i].y[point]);
            }
            fputs("</td>", out);
        }
        fputs("</tr>", out);
    }
    fputs("</tbody></table></div></details>", out);
}

/* --- the figure --- */

/* A short piece of the line. */
static void put_sample(FILE *out, tt_chart_style style, int colour)
{
    static const char *const classes[] = {"line", "line dashed", "line dotted", "line"};
    fprintf(out,
            "<svg class=\"sample c%d\" viewBox=\"0 0 28 12\" aria-hidden=\"true\">"
            "<path class=\"%s\" d=\"M1 6H27\"/>%s</svg>",
            colour, classes[style],
            style == TT_CHART_DOTS ? "<circle cx=\"14\" cy=\"6\" r=\"3\"/>" : "");
}

static bool part_is_first(const tt_chart *chart, int index)
{
    for (int i = 0; i < index; i++) {
        if (strcmp(chart->series[i].part, chart->series[index].part) == 0) {
            return false;
        }
    }
    return true;
}

/* Runs by colour and letter, parts by how their lines are drawn. */
static void put_legend(FILE *out, const tt_chart *chart)
{
    bool parts = false;
    for (int i = 1; i < chart->series_count; i++) {
        parts = parts || strcmp(chart->series[i].part, chart->series[0].part) != 0;
    }
    if (chart->run_count == 1 && !parts) {
        fputs("<div></div>", out);
        return;
    }
    fputs("<ul class=\"legend\">", out);
    for (int i = 0; chart->run_count > 1 && i < chart->series_count; i++) {
        const tt_chart_series *series = &chart->series[i];
        if (i > 0 && series->colour == chart->series[i - 1].colour) {
            continue;
        }
        fprintf(out, "<li><b class=\"badge c%d\">%c</b> ", series->colour, 'A' + series->colour);
        tt_report_escape(out, series->run);
        fputs("</li>", out);
    }
    for (int i = 0; parts && i < chart->series_count; i++) {
        const tt_chart_series *series = &chart->series[i];
        if (!part_is_first(chart, i)) {
            continue;
        }
        fputs("<li>", out);
        put_sample(out, series->style, chart->run_count > 1 ? TT_CHART_RUNS : series->colour);
        tt_report_escape(out, series->part);
        fputs("</li>", out);
    }
    fputs("</ul>", out);
}

static void put_caption(const drawing *drawing)
{
    FILE *out = drawing->out;
    const tt_chart *chart = drawing->chart;
    fprintf(out, "<figure id=\"%s\"><figcaption><h3>", chart->id);
    tt_report_escape(out, chart->title);
    fputs("</h3>", out);
    if (chart->note != NULL) {
        fputs("<p>", out);
        tt_report_escape(out, chart->note);
        fputs("</p>", out);
    }
    fputs("</figcaption>", out);
    put_legend(out, chart);
}

/* For those who do not see the drawing. */
static void put_description(const drawing *drawing)
{
    FILE *out = drawing->out;
    const tt_chart *chart = drawing->chart;
    fprintf(out, "<title id=\"%s-t\">", chart->id);
    tt_report_escape(out, chart->title);
    fprintf(out, "</title><desc id=\"%s-d\">", chart->id);
    tt_report_escape(out, chart->y_label);
    fputs(" over ", out);
    tt_report_escape(out, chart->x_label);
    fputs(". ", out);
    for (int i = 0; i < chart->series_count; i++) {
        const tt_chart_series *series = &chart->series[i];
        put_name(drawing, series);
        fputs(": from ", out);
        put_value(drawing, series->y[0]);
        fputs(" to ", out);
        put_value(drawing, series->y[series->count - 1]);
        fputs(". ", out);
    }
    fputs("</desc>", out);
}

/* What must be known to read the lines, where there is such a thing. */
static void put_remarks(const drawing *drawing)
{
    FILE *out = drawing->out;
    if (!drawing->smooths && drawing->outside == 0) {
        fputs("<div></div>", out);
        return;
    }
    fputs("<p class=\"remark\">", out);
    if (drawing->smooths) {
        fputs("Thin: as logged. Thick: running mean over 4\xC2\xA0% of the points. ", out);
    }
    if (drawing->outside > 0) {
        fprintf(out, "%lld point%s beyond the frame.", (long long)drawing->outside,
                drawing->outside > 1 ? "s lie" : " lies");
    }
    fputs("</p>", out);
}

static bool put_figure(drawing *drawing)
{
    FILE *out = drawing->out;
    const char *id = drawing->chart->id;
    put_caption(drawing);
    fprintf(out,
            "<div class=\"scroll\"><svg class=\"chart%s\" viewBox=\"0 0 %d %d\" "
            "role=\"img\" aria-labelledby=\"%s-t %s-d\">",
            drawing->chart->run_count > 1 ? " many" : "", WIDTH, HEIGHT, id, id);
    put_description(drawing);
    put_axes(drawing);
    put_marks(drawing);
    bool room = put_lines(drawing);
    put_bands(drawing);
    fputs("</svg></div>", out);
    put_remarks(drawing);
    put_table(drawing);
    fputs("</figure>\n", out);
    return room;
}

tt_status tt_chart_write(FILE *out, tt_chart *chart, tt_error *error)
{
    drawing drawing = {.out = out, .chart = chart};
    drop_empty(chart);
    bool room = chart->series_count == 0 || (make_scales(&drawing) && put_figure(&drawing));
    for (int i = 0; i < chart->series_count; i++) {
        free(chart->series[i].x);
        free(chart->series[i].y);
    }
    chart->series_count = 0;
    return room ? TT_OK
                : tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the chart %s", chart->id);
}

/* Charts of a report, as inline SVG in an HTML figure: title, legend, lines over steps or time, and
 * the same numbers as a table. Inside launch/report*.c only. */
#ifndef TT_LAUNCH_REPORT_CHART_H
#define TT_LAUNCH_REPORT_CHART_H

#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { TT_CHART_SERIES = 32, TT_CHART_MARKS = 16, TT_CHART_RUNS = 8 };

typedef enum { TT_CHART_SOLID, TT_CHART_DASHED, TT_CHART_DOTTED, TT_CHART_DOTS } tt_chart_style;

typedef enum { TT_CHART_NUMBER, TT_CHART_PERCENT, TT_CHART_SECONDS } tt_chart_unit;

/* A line. Points that are not finite are left out; `x` must not fall. */
typedef struct {
    const char *run;  /* for legend and table */
    const char *part; /* "training", "validation"; "" where the chart has but one */
    int colour;       /* the run's number */
    tt_chart_style style;
    bool noisy; /* is drawn faint, with its running mean over it */
    bool holds; /* a value holds until the next one: drawn as steps */
    int64_t count;
    double *x, *y;
} tt_chart_series;

typedef struct {
    const char *id; /* of the figure, and the beginning of other ids in it */
    const char *title;
    const char *note; /* what the chart shows, for people; NULL: nothing to say */
    const char *x_label, *y_label;
    tt_chart_unit x_unit, y_unit;
    bool from_zero; /* the y axis begins at 0 */
    bool may_span;  /* the y axis is logarithmic where values above 0 differ more than 20-fold */
    int run_count;  /* of the whole page: one needs no letters */
    tt_chart_series series[TT_CHART_SERIES];
    int series_count;
    struct {
        double x;
        const char *label;
    } marks[TT_CHART_MARKS]; /* vertical lines */
    int mark_count;
} tt_chart;

/* Adds an empty line with room for `capacity` points; NULL when there are too many lines or memory
 * is out. */
tt_chart_series *tt_chart_add(tt_chart *chart, const char *run, const char *part, int colour,
                              int64_t capacity);
/* Adds a point where both are finite. */
void tt_chart_point(tt_chart_series *series, double x, double y);
/* Writes the figure, or nothing where no line has a point. Frees the lines. */
tt_status tt_chart_write(FILE *out, tt_chart *chart, tt_error *error);

#endif

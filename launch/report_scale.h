/* Axes: round ticks, and how numbers at them are written. Inside launch/report*.c only. */
#ifndef TT_LAUNCH_REPORT_SCALE_H
#define TT_LAUNCH_REPORT_SCALE_H

#include "launch/report_chart.h"

enum { TT_SCALE_TICKS = 16, TT_SCALE_LABEL = 32 };

typedef struct {
    double low, high; /* of the values shown */
    double from, to;  /* where low and high lie, in the drawing */
    bool logarithmic;
    double ticks[TT_SCALE_TICKS];
    int tick_count;
    int places;                /* decimals at ticks */
    double divisor;            /* ticks are written as value / divisor */
    char suffix[8];            /* behind each tick */
    char unit[TT_SCALE_LABEL]; /* of the whole axis: "min", "10^-3"; "": none */
} tt_scale;

/* Ticks at round numbers, about `wanted` of them, between low and high. `widens`: low and high move
 * outward to ticks. */
tt_scale tt_scale_make(double low, double high, int wanted, bool widens, tt_chart_unit unit);
/* A logarithmic axis from the power of ten at or below `low` (above 0) to the one above `high`. */
tt_scale tt_scale_make_logarithmic(double low, double high);
double tt_scale_at(const tt_scale *scale, double value);
const char *tt_scale_label(const tt_scale *scale, double value, char text[TT_SCALE_LABEL]);

#endif

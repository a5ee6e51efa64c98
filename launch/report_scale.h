/* Axes: round ticks, and how numbers at them are written. Inside launch/report*.c only. */
#ifndef TT_LAUNCH_REPORT_SCALE_H
#define TT_LAUNCH_REPORT_SCALE_H

#include "launch/report_chart.h"

enum { TT_SCALE_TICKS = 16, TT_SCALE_LABEL = 32 };

typedef struct {
    double low, high;   /* of the values shown */
    double from, to;    /* where low and high lie, in the drawing */
    double first, step; /* ticks */
    int tick_count;
    int places;                /* decimals at ticks */
    double divisor;            /* ticks are written as value / divisor */
    char suffix[8];            /* behind each tick */
    char unit[TT_SCALE_LABEL]; /* of the whole axis: "min", "x 10^-3"; "": none */
} tt_scale;

/* Ticks at round numbers, about `wanted` of them, between low and high. `widens`: low and high move
 * outward to ticks. */
tt_scale tt_scale_make(double low, double high, int wanted, bool widens, tt_chart_unit unit);
double tt_scale_at(const tt_scale *scale, double value);
double tt_scale_tick(const tt_scale *scale, int index);
const char *tt_scale_label(const tt_scale *scale, double value, char text[TT_SCALE_LABEL]);

#endif

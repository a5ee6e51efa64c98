#include "launch/report_scale.h"

#include <math.h>
#include <string.h>

/* 1, 2, 2.5 or 5 times a power of ten, and not less than `step`. */
static double round_step(double step)
{
    static const double steps[] = {1, 2, 2.5, 5};
    double power = pow(10, floor(log10(step)));
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (steps[i] * power >= step * (1 - 1e-9)) {
            return steps[i] * power;
        }
    }
    return 10 * power;
}

/* The largest unit of time of which the axis shows three or more. */
static void choose_time(tt_scale *scale)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"d", 86400}, {"h", 3600}, {"min", 60}, {"s", 1}};
    size_t i = 0;
    while (units[i].seconds > 1 && scale->high < 3 * units[i].seconds) {
        i++;
    }
    scale->divisor = units[i].seconds;
    strcpy(scale->unit, units[i].name);
}

static void choose_power(tt_scale *scale)
{
    double size = fmax(fabs(scale->low), fabs(scale->high));
    if (size >= 9.999e9) {
        scale->divisor = 1e9;
        strcpy(scale->suffix, "G");
    } else if (size >= 9.999e5) {
        scale->divisor = 1e6;
        strcpy(scale->suffix, "M");
    } else if (size >= 9.999e3) {
        scale->divisor = 1e3;
        strcpy(scale->suffix, "k");
    } else if (size > 0 && size < 9.99e-3) {
        int power = (int)floor(log10(size));
        scale->divisor = pow(10, power);
        snprintf(scale->unit, sizeof scale->unit, "10^%d", power);
    }
}

static int decimals(double step)
{
    int places = 0;
    while (places < 9 && fabs(step - round(step)) > 1e-6 * step) {
        step *= 10;
        places++;
    }
    return places;
}

tt_scale tt_scale_make(double low, double high, int wanted, bool widens, tt_chart_unit unit)
{
    if (!(high - low > 1e-12 * fmax(fabs(low), fabs(high)))) {
        double room = low != 0 ? fabs(low) * 0.1 : 1;
        high = low + room;
        low = low > 0 ? fmax(0, low - room) : low - room;
    }
    tt_scale scale = {.low = low, .high = high, .divisor = 1};
    if (unit == TT_CHART_SECONDS) {
        choose_time(&scale);
    } else if (unit == TT_CHART_PERCENT) {
        scale.divisor = 0.01;
        strcpy(scale.suffix, "%");
    } else {
        choose_power(&scale);
    }
    double step = round_step((high - low) / scale.divisor / wanted);
    scale.places = decimals(step);
    scale.step = step * scale.divisor;
    if (widens) {
        scale.low = scale.step * floor(low / scale.step + 1e-6);
        scale.high = scale.step * ceil(high / scale.step - 1e-6);
    }
    scale.first = scale.step * ceil(scale.low / scale.step - 1e-6);
    double ticks = floor((scale.high - scale.first) / scale.step + 1e-6) + 1;
    scale.tick_count = ticks < TT_SCALE_TICKS ? (int)ticks : TT_SCALE_TICKS;
    return scale;
}

double tt_scale_at(const tt_scale *scale, double value)
{
    double part = (value - scale->low) / (scale->high - scale->low);
    return scale->from + part * (scale->to - scale->from);
}

double tt_scale_tick(const tt_scale *scale, int index)
{
    return scale->first + index * scale->step;
}

const char *tt_scale_label(const tt_scale *scale, double value, char text[TT_SCALE_LABEL])
{
    double shown = value / scale->divisor;
    if (fabs(shown) < 1e-9 * scale->step / scale->divisor) {
        shown = 0;
    }
    snprintf(text, TT_SCALE_LABEL, "%.*f%s", scale->places, shown, shown != 0 ? scale->suffix : "");
    if (shown == 0 && strcmp(scale->suffix, "%") != 0) {
        strcpy(text, "0");
    }
    return text;
}

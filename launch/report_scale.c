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
    snprintf(scale->unit, sizeof scale->unit, "%s", units[i].name);
}

static void choose_power(tt_scale *scale)
{
    double size = fmax(fabs(scale->low), fabs(scale->high));
    if (size >= 9.999e9) {
        scale->divisor = 1e9;
        snprintf(scale->suffix, sizeof scale->suffix, "%s", "G");
    } else if (size >= 9.999e5) {
        scale->divisor = 1e6;
        snprintf(scale->suffix, sizeof scale->suffix, "%s", "M");
    } else if (size >= 9.999e3) {
        scale->divisor = 1e3;
        snprintf(scale->suffix, sizeof scale->suffix, "%s", "k");
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
        snprintf(scale.suffix, sizeof scale.suffix, "%s", "%");
    } else {
        choose_power(&scale);
    }
    double step = round_step((high - low) / scale.divisor / wanted);
    scale.places = decimals(step);
    step *= scale.divisor;
    if (widens) {
        scale.low = step * floor(low / step + 1e-6);
        scale.high = step * ceil(high / step - 1e-6);
    }
    double first = ceil(scale.low / step - 1e-6), last = floor(scale.high / step + 1e-6);
    for (double tick = first; tick <= last && scale.tick_count < TT_SCALE_TICKS; tick++) {
        scale.ticks[scale.tick_count++] = tick == 0 ? 0 : tick * step;
    }
    return scale;
}

tt_scale tt_scale_make_logarithmic(double low, double high)
{
    int first = (int)floor(log10(low) + 1e-9), last = (int)ceil(log10(high) - 1e-9);
    tt_scale scale = {.low = pow(10, first), .high = pow(10, last), .divisor = 1};
    scale.logarithmic = true;
    int every = 1 + (last - first) / TT_SCALE_TICKS;
    for (int power = first; power <= last; power += every) {
        scale.ticks[scale.tick_count++] = pow(10, power);
    }
    return scale;
}

double tt_scale_at(const tt_scale *scale, double value)
{
    double part = scale->logarithmic ? log(fmax(value, scale->low * 1e-3) / scale->low) /
                                           log(scale->high / scale->low)
                                     : (value - scale->low) / (scale->high - scale->low);
    return scale->from + part * (scale->to - scale->from);
}

/* 1, 10, 100, 1k, 10k, ... */
static void label_power(double value, char text[TT_SCALE_LABEL])
{
    static const char *const suffixes[] = {"", "k", "M", "G", "T"};
    size_t group = 0;
    while (value >= 999 && group + 1 < sizeof suffixes / sizeof *suffixes) {
        value /= 1000;
        group++;
    }
    snprintf(text, TT_SCALE_LABEL, "%.4g%s", value, suffixes[group]);
}

const char *tt_scale_label(const tt_scale *scale, double value, char text[TT_SCALE_LABEL])
{
    if (scale->logarithmic) {
        label_power(value, text);
    } else if (value == 0) {
        snprintf(text, TT_SCALE_LABEL, "%s", strcmp(scale->suffix, "%") == 0 ? "0%" : "0");
    } else {
        snprintf(text, TT_SCALE_LABEL, "%.*f%s", scale->places, value / scale->divisor,
                 scale->suffix);
    }
    return text;
}

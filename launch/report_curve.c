#include "launch/report_curve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FEW = 20 }; /* points of which all are shown */

static void running_mean(const double *y, double *sums, int64_t count, int64_t reach, double *mean)
{
    sums[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        sums[i + 1] = sums[i] + y[i];
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t side = i < reach ? i : reach;
        int64_t end = i + side < count ? i + side + 1 : count;
        mean[i] = (sums[end] - sums[i - side]) / (double)(end - i + side);
    }
}

bool tt_curve_smooth(const double *y, int64_t count, double *mean)
{
    int64_t reach = count / 50 > 1 ? count / 50 : 1;
    double *sums = malloc(((size_t)count + 1) * sizeof *sums);
    double *once = malloc(((size_t)count + 1) * sizeof *once);
    bool room = sums != NULL && once != NULL;
    if (room) {
        running_mean(y, sums, count, reach, once);
        running_mean(once, sums, count, reach, mean);
    }
    free(sums);
    free(once);
    return room;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

bool tt_curve_range(const double *y, int64_t count, double *low, double *high)
{
    double *sorted = malloc((size_t)count * sizeof *sorted);
    if (sorted == NULL) {
        return false;
    }
    memcpy(sorted, y, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, compare);
    *low = sorted[0];
    *high = sorted[count - 1];
    double first = sorted[count / 50], last = sorted[count - 1 - count / 50];
    double spread = last - first;
    free(sorted);
    if (count < FEW || spread <= 0) {
        return true;
    }
    *low = *low < first - 2 * spread ? first - 0.25 * spread : *low;
    *high = *high > last + 2 * spread ? last + 0.25 * spread : *high;
    return true;
}

int64_t tt_curve_thin(double *x, double *y, int64_t count, int64_t parts)
{
    if (count <= 2 * parts) {
        return count;
    }
    int64_t kept = 0;
    for (int64_t part = 0; part < parts; part++) {
        int64_t begin = count * part / parts, end = count * (part + 1) / parts;
        int64_t lowest = begin, highest = begin;
        for (int64_t i = begin; i < end; i++) {
            lowest = y[i] < y[lowest] ? i : lowest;
            highest = y[i] > y[highest] ? i : highest;
        }
        int64_t first = lowest < highest ? lowest : highest;
        int64_t second = lowest < highest ? highest : lowest;
        const double x_first = x[first], y_first = y[first];
        const double x_second = x[second], y_second = y[second];
        x[kept] = x_first;
        y[kept++] = y_first;
        if (second != first) {
            x[kept] = x_second;
            y[kept++] = y_second;
        }
    }
    return kept;
}

int64_t tt_curve_nearest(const double *x, int64_t count, double at)
{
    int64_t low = 0, high = count - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (x[middle] < at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low > 0 && fabs(x[low - 1] - at) < fabs(x[low] - at) ? low - 1 : low;
}

/* Lists of points made fit for drawing. Inside launch/report*.c only. */
#ifndef TT_LAUNCH_REPORT_CURVE_H
#define TT_LAUNCH_REPORT_CURVE_H

#include <stdbool.h>
#include <stdint.h>

/* Running mean of `y` over about 4 % of the points, twice over, into `mean`. At the ends the window
 * shrinks evenly, so that the mean begins and ends where the values do. False when memory is out.
 */
bool tt_curve_smooth(const double *y, int64_t count, double *mean);

/* The lowest and highest value worth showing: all, but for a few that lie so far out that they
 * would press the others flat. False when memory is out. */
bool tt_curve_range(const double *y, int64_t count, double *low, double *high);

/* Keeps of each of `parts` stretches of equally many points the lowest and the highest one, in
 * their order, in place. Returns the number of points left. */
int64_t tt_curve_thin(double *x, double *y, int64_t count, int64_t parts);

/* The index of the point nearest to `at`; `count` is positive and `x` does not fall. */
int64_t tt_curve_nearest(const double *x, int64_t count, double at);

#endif

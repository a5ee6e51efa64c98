#include "tests/reference/reference_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct tt_reference_pending {
    char name[192];
    double difference, norm, least;
} tt_reference_pending;

typedef struct {
    double difference, norm;
} distance;

static distance measure(const double *expected, const float *found, const double *found_double,
                        int64_t count)
{
    double difference = 0;
    double norm = 0;
    for (int64_t i = 0; i < count; i++) {
        double value = found != NULL ? (double)found[i] : found_double[i];
        difference += (value - expected[i]) * (value - expected[i]);
        norm += expected[i] * expected[i];
    }
    return (distance){sqrt(difference), sqrt(norm)};
}

void tt_reference_check_begin(tt_reference_check *check, const char *name, double tolerance)
{
    *check = (tt_reference_check){.name = name,
                                  .tolerance = tolerance,
                                  .loss_tolerance = tolerance,
                                  .gradient_tolerance = tolerance,
                                  .gradient_floor = TT_REFERENCE_GRADIENT_FLOOR};
}

static void judge(tt_reference_check *check, const char *name, double difference, double norm,
                  double tolerance)
{
    double relative = difference == 0 ? 0 : difference / norm;
    check->compared++;
    if (!(relative <= tolerance)) {
        check->failed++;
        printf("%s: %s is off by %.3g, allowed is %.3g\n", check->name, name, relative, tolerance);
    }
    if (!(relative <= check->worst)) {
        check->worst = relative;
    }
}

static void defer(tt_reference_check *check, const char *name, distance distance)
{
    size_t size = ((size_t)check->pending_count + 1) * sizeof(*check->pending);
    tt_reference_pending *grown = realloc(check->pending, size);
    if (grown == NULL) {
        printf("%s: no memory to compare %s\n", check->name, name);
        check->failed++;
        return;
    }
    check->pending = grown;
    tt_reference_pending *last = &grown[check->pending_count++];
    snprintf(last->name, sizeof(last->name), "%s", name);
    last->difference = distance.difference;
    last->norm = distance.norm;
    last->least = check->least;
    check->gradient_squares += distance.norm * distance.norm;
    check->difference_squares += distance.difference * distance.difference;
}

void tt_reference_check_output(tt_reference_check *check, const char *name, const double *expected,
                               const float *found, int64_t count)
{
    distance distance = measure(expected, found, NULL, count);
    judge(check, name, distance.difference, fmax(distance.norm, check->least), check->tolerance);
}

void tt_reference_check_output_double(tt_reference_check *check, const char *name,
                                      const double *expected, const double *found, int64_t count)
{
    distance distance = measure(expected, NULL, found, count);
    judge(check, name, distance.difference, fmax(distance.norm, check->least), check->tolerance);
}

void tt_reference_check_loss(tt_reference_check *check, const char *name, double expected,
                             double found, double scale)
{
    judge(check, name, fabs(found - expected), fabs(scale), check->loss_tolerance);
}

void tt_reference_check_gradient(tt_reference_check *check, const char *name,
                                 const double *expected, const float *found, int64_t count)
{
    defer(check, name, measure(expected, found, NULL, count));
}

void tt_reference_check_gradient_double(tt_reference_check *check, const char *name,
                                        const double *expected, const double *found, int64_t count)
{
    defer(check, name, measure(expected, NULL, found, count));
}

bool tt_reference_check_finish(tt_reference_check *check)
{
    double whole = sqrt(check->gradient_squares);
    for (int i = 0; i < check->pending_count; i++) {
        const tt_reference_pending *gradient = &check->pending[i];
        bool is_zero = gradient->norm <= TT_REFERENCE_ZERO_GRADIENT * whole;
        double least = is_zero ? TT_REFERENCE_ZERO_FLOOR : 0;
        double floor = fmax(check->gradient_floor, least) * whole;
        judge(check, gradient->name, gradient->difference,
              fmax(fmax(gradient->norm, gradient->least), floor), check->tolerance);
    }
    if (check->pending_count > 0) {
        judge(check, "the whole gradient", sqrt(check->difference_squares), whole,
              check->gradient_tolerance);
        check->compared--; /* no tensor of its own */
    }
    free(check->pending);
    check->pending = NULL;
    check->pending_count = 0;
    printf("%s: %d tensors, largest difference %.2g\n", check->name, check->compared, check->worst);
    return check->failed == 0 && check->compared > 0;
}

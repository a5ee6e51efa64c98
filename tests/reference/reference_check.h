/* Comparing found numbers with reference numbers, as the reference files ask for it: the relative
 * difference of whole tensors in the Frobenius norm. A gradient is measured against the larger of
 * its own norm and 1e-6 of the whole gradient's norm, since some true gradients (the key bias) are
 * 0. */
#ifndef TT_TESTS_REFERENCE_CHECK_H
#define TT_TESTS_REFERENCE_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#define TT_REFERENCE_GRADIENT_FLOOR 1e-6
/* A gradient below the first of these fractions of the whole is 0 but for rounding, and what f32
 * has there is what its largest terms leave: it is measured against at least the second. */
#define TT_REFERENCE_ZERO_GRADIENT 1e-9
#define TT_REFERENCE_ZERO_FLOOR 1e-5

/* A comparison of one group or model: begin, add tensors, finish. */
typedef struct {
    const char *name;
    /* Of every tensor, of losses, and of the whole gradient as one tensor: all as begin sets them,
     * or changed after it. */
    double tolerance, loss_tolerance, gradient_tolerance;
    /* What a gradient is measured against at least, as a fraction of the whole gradient's norm:
     * TT_REFERENCE_GRADIENT_FLOOR after begin. */
    double gradient_floor;
    /* What the tensors that follow are measured against at least: 0 after begin. */
    double least;
    double gradient_squares;   /* of the whole gradient, as expected */
    double difference_squares; /* and of what was found less that */
    double worst;              /* largest relative difference so far */
    int compared, failed;
    struct tt_reference_pending *pending; /* gradients wait for the whole norm */
    int pending_count;
} tt_reference_check;

void tt_reference_check_begin(tt_reference_check *check, const char *name, double tolerance);
/* An output: measured against its own norm. Prints a line when it is off. */
void tt_reference_check_output(tt_reference_check *check, const char *name, const double *expected,
                               const float *found, int64_t count);
void tt_reference_check_output_double(tt_reference_check *check, const char *name,
                                      const double *expected, const double *found, int64_t count);
/* Measured against `scale`: the loss that is expected, or one that it is a part of. */
void tt_reference_check_loss(tt_reference_check *check, const char *name, double expected,
                             double found, double scale);
/* A gradient: judged in finish, when the whole gradient is known. */
void tt_reference_check_gradient(tt_reference_check *check, const char *name,
                                 const double *expected, const float *found, int64_t count);
void tt_reference_check_gradient_double(tt_reference_check *check, const char *name,
                                        const double *expected, const double *found, int64_t count);
/* Prints "name: N tensors, largest difference D" and returns whether every tensor and the whole
 * gradient agreed and there was at least one tensor. NaN never agrees. */
bool tt_reference_check_finish(tt_reference_check *check);

#endif

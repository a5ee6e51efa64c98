/* Cross-entropy: losses, counts, gradients in place, and rows that do not count. */
#include "ops/ops_test.h"

typedef struct {
    double loss, correct;
    double *gradient;      /* [rows, classes] */
    double *bias_gradient; /* [classes] */
} expectation;

static double logit(const double *logits, const double *bias, int64_t j)
{
    return logits[j] + (bias != NULL ? bias[j] : 0.0);
}

static double reference_row(const double *logits, const double *bias, int64_t classes,
                            int64_t label, double scale, double *gradient, bool *correct)
{
    double largest = -INFINITY, sum = 0.0;
    int64_t best = 0;
    for (int64_t j = 0; j < classes; j++) {
        if (logit(logits, bias, j) > largest) {
            largest = logit(logits, bias, j);
            best = j;
        }
    }
    for (int64_t j = 0; j < classes; j++) {
        sum += exp(logit(logits, bias, j) - largest);
    }
    for (int64_t j = 0; j < classes; j++) {
        double probability = exp(logit(logits, bias, j) - largest) / sum;
        gradient[j] = scale * (probability - (j == label ? 1.0 : 0.0));
    }
    *correct = best == label;
    return log(sum) + largest - logit(logits, bias, label);
}

static expectation reference(const double *logits, const double *bias, const int32_t *labels,
                             int64_t rows, int64_t classes, double scale)
{
    expectation e = {.gradient = test_host((size_t)(rows * classes) * sizeof(double)),
                     .bias_gradient = test_host((size_t)classes * sizeof(double))};
    for (int64_t i = 0; i < rows; i++) {
        if (labels[i] < 0) {
            continue;
        }
        bool correct;
        double *gradient = e.gradient + i * classes;
        e.loss += reference_row(logits + i * classes, bias, classes, labels[i], scale, gradient,
                                &correct);
        e.correct += correct;
        for (int64_t j = 0; j < classes; j++) {
            e.bias_gradient[j] += gradient[j];
        }
    }
    return e;
}

/* A third of the rows do not count, a few are predicted right. */
static int32_t *make_labels(const double *logits, int64_t rows, int64_t classes)
{
    int32_t *labels = test_host((size_t)rows * sizeof *labels);
    tt_random random;
    tt_random_start(&random, 5, 5);
    for (int64_t i = 0; i < rows; i++) {
        labels[i] = (int32_t)tt_random_below(&random, (uint32_t)classes);
        if (i % 3 == 1) {
            labels[i] = -1;
        } else if (i % 4 == 0) {
            for (int64_t j = 0; j < classes; j++) {
                labels[i] = logits[i * classes + j] > logits[i * classes + labels[i]] ? (int32_t)j
                                                                                      : labels[i];
            }
        }
    }
    return labels;
}

typedef struct {
    bool biased, with_gradient, with_bias_gradient;
} variant;

static void check_variant(tt_device *device, ops_test_shape shape, variant v)
{
    int64_t rows = shape.rows, classes = shape.columns;
    const double scale = 0.125;
    ops_test_matrix logits = ops_test_random(device, rows, classes, shape.gap, 3.0, 1);
    ops_test_matrix bias = ops_test_random_f32(device, 1, classes, 0, 1.0, 2);
    ops_test_matrix bias_gradient = ops_test_random_f32(device, 1, classes, 0, 0.1, 3);
    const double begin[] = {2.5, 4.0}, scales[] = {scale};
    ops_test_matrix sums = ops_test_from_f32(device, 1, 2, 0, begin);
    ops_test_matrix device_scale = ops_test_from_f32(device, 1, 1, 0, scales);
    double *values = ops_test_read(&logits), *biases = ops_test_read(&bias);
    double *bias_sums = ops_test_read(&bias_gradient);
    int32_t *labels = make_labels(values, rows, classes);
    expectation e = reference(values, v.biased ? biases : NULL, labels, rows, classes, scale);
    tt_cross_entropy loss = {
        .logits = logits.view,
        .bias = v.biased ? ops_test_data(&bias) : NULL,
        .bias_gradient = v.with_bias_gradient ? ops_test_data(&bias_gradient) : NULL,
        .labels = test_copy_in(device, labels, (size_t)rows * sizeof *labels),
        .gradient_scale = v.with_gradient ? ops_test_data(&device_scale) : NULL,
        .loss_sum = ops_test_data(&sums),
        .correct_sum = ops_test_data(&sums) + 1};
    device->ops->cross_entropy(device, &loss);

    double *found = ops_test_read(&sums);
    assert_true(fabs(found[0] - (2.5 + e.loss)) <= 1e-5 * (1.0 + e.loss));
    assert_true(found[1] == 4.0 + e.correct);
    if (v.with_gradient) {
        ops_test_expect("gradient of the logits", &logits, e.gradient);
    } else {
        ops_test_expect_equal("logits", &logits, values);
    }
    for (int64_t j = 0; j < classes && v.with_gradient && v.with_bias_gradient; j++) {
        bias_sums[j] += e.bias_gradient[j];
    }
    ops_test_expect("bias gradient", &bias_gradient, bias_sums);
    free(found);
    free(values);
    free(biases);
    free(bias_sums);
    free(labels);
    free(e.gradient);
    free(e.bias_gradient);
    device->release(device, (void *)loss.labels);
    ops_test_free(&logits);
    ops_test_free(&bias);
    ops_test_free(&bias_gradient);
    ops_test_free(&sums);
    ops_test_free(&device_scale);
}

static void check_cross_entropy(tt_device *device, ops_test_shape shape)
{
    const variant variants[] = {
        {false, false, false}, {true, false, false}, {false, true, false},
        {true, true, false},   {true, true, true},
    };
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        check_variant(device, shape, variants[i]);
    }
}

static void test_cross_entropy(void **state)
{
    (void)state;
    ops_test_all_shapes(check_cross_entropy, INT64_MAX);
}

/* Loss and count of right predictions for rows of four logits; returns the loss. The logits must be
 * numbers that every type has. */
static double small_loss(const double *logits, int64_t rows, const int32_t *labels, double *correct,
                         double *gradient)
{
    tt_device *device = test_device(1);
    ops_test_matrix matrix = ops_test_from(device, rows, 4, 0, logits);
    ops_test_matrix sums = ops_test_fill_f32(device, 1, 2, 0, 0.0);
    ops_test_matrix one = ops_test_fill_f32(device, 1, 1, 0, 1.0);
    tt_cross_entropy loss = {.logits = matrix.view,
                             .labels = test_copy_in(device, labels, (size_t)rows * sizeof *labels),
                             .gradient_scale = ops_test_data(&one),
                             .loss_sum = ops_test_data(&sums),
                             .correct_sum = ops_test_data(&sums) + 1};
    device->ops->cross_entropy(device, &loss);
    double *found = ops_test_read(&sums), *gradients = ops_test_read(&matrix);
    double value = found[0];
    *correct = found[1];
    memcpy(gradient, gradients, (size_t)(4 * rows) * sizeof *gradient);
    free(found);
    free(gradients);
    device->release(device, (void *)loss.labels);
    ops_test_free(&matrix);
    ops_test_free(&sums);
    ops_test_free(&one);
    tt_device_destroy(&device);
    return value;
}

static void test_large_logits_do_not_overflow(void **state)
{
    (void)state;
    const double logits[] = {8192.0, -8192.0, 0.0, 8192.0};
    const int32_t label = 3;
    double correct, gradient[4];
    double loss = small_loss(logits, 1, &label, &correct, gradient);
    assert_true(fabs(loss - log(2.0)) < 1e-3);
    assert_true(correct == 0.0);
    assert_true(fabs(gradient[0] - 0.5) < 1e-3 && fabs(gradient[3] + 0.5) < 1e-3);
    assert_true(fabs(gradient[1]) < 1e-29 && fabs(gradient[2]) < 1e-29);
}

static void test_ties_go_to_the_lowest_class(void **state)
{
    (void)state;
    const double logits[] = {0.0, 2.0, 2.0, 1.0, 0.0, 2.0, 2.0, 1.0};
    const int32_t labels[] = {1, 2};
    double correct, gradient[8];
    small_loss(logits, 2, labels, &correct, gradient);
    assert_true(correct == 1.0);
}

static void test_no_row_counts(void **state)
{
    (void)state;
    const double logits[] = {1.0, 2.0, 3.0, 4.0};
    const int32_t label = -1;
    double correct, gradient[4];
    assert_true(small_loss(logits, 1, &label, &correct, gradient) == 0.0);
    assert_true(correct == 0.0);
    for (int j = 0; j < 4; j++) {
        assert_true(gradient[j] == 0.0);
    }
}

/* A loss must not hide that a logit is not a number. */
static void test_nan_shows(void **state)
{
    (void)state;
    const double logits[] = {1.0, NAN, 3.0, 4.0};
    const int32_t label = 3;
    double correct, gradient[4];
    assert_true(isnan(small_loss(logits, 1, &label, &correct, gradient)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_large_logits_do_not_overflow),
        cmocka_unit_test(test_ties_go_to_the_lowest_class),
        cmocka_unit_test(test_no_row_counts),
        cmocka_unit_test(test_nan_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The dense form of attention, forward and backward, against plain loops in double precision. */
#include "ops/attention_reference.h"

static void check_dense(tt_device *device, attention_shape s)
{
    static const char *const names[OPERANDS] = {"dq", "dk", "dv"};
    dense_case d = make_dense(device, s);
    int64_t tokens = s.batch * s.sequence, hidden = s.heads * s.width;
    ops_test_matrix context = ops_test_fill(device, tokens, hidden, 3, 7.0);
    ops_test_matrix d_context = ops_test_random(device, tokens, hidden, 2, 1.0, 8);
    ops_test_matrix gradient[OPERANDS];
    double *expected[OPERANDS], *expected_context = zeros(tokens * hidden);
    for (int i = 0; i < OPERANDS; i++) {
        gradient[i] = ops_test_fill(device, tokens, hidden, 3 - i, 7.0);
        expected[i] = zeros(tokens * hidden);
    }
    dense_forward(&d, expected_context);
    device->ops->attention_forward(device, &d.operation, context.view);
    ops_test_expect("context", &context, expected_context);
    check_log_sum_exp(&d.c);

    double *d_values = ops_test_read(&d_context);
    dense_backward(&d, d_values, expected);
    device->ops->attention_backward(device, &d.operation, d_context.view, gradient[0].view,
                                    gradient[1].view, gradient[2].view);
    for (int i = 0; i < OPERANDS; i++) {
        ops_test_expect(names[i], &gradient[i], expected[i]);
        ops_test_free(&gradient[i]);
        free(expected[i]);
    }
    free(d_values);
    free(expected_context);
    ops_test_free(&context);
    ops_test_free(&d_context);
    free_dense(&d);
}

static void test_dense(void **state)
{
    (void)state;
    for_all_shapes(check_dense);
}

/* --- the reference itself -------------------------------------------------------------------- */

enum {
    SMALL_SEQUENCE = 4,
    SMALL_WIDTH = 3,
    SMALL = SMALL_SEQUENCE * SMALL_WIDTH, /* entries of q, of k and of v */
    ALL = OPERANDS * SMALL,
};

typedef struct {
    attention_head made;
    double weights[SMALL]; /* of the entries of the context */
} small_case;

/* The weighted context as a function of q, k, v one after the other. */
static double weighted_context(const void *context, const double *x)
{
    const small_case *small = context;
    double qkv[ALL], output[SMALL] = {0}, log_sums[SMALL_SEQUENCE], sum = 0.0;
    memcpy(qkv, x, sizeof qkv);
    attention_head made = small->made;
    made.q = (attention_rows){qkv, SMALL_WIDTH};
    made.k = (attention_rows){qkv + SMALL, SMALL_WIDTH};
    made.v = (attention_rows){qkv + (ptrdiff_t)2 * SMALL, SMALL_WIDTH};
    head_forward(&made, (attention_rows){output, SMALL_WIDTH}, log_sums);
    for (int i = 0; i < SMALL; i++) {
        sum += small->weights[i] * output[i];
    }
    return sum;
}

static void test_reference_against_differences(void **state)
{
    (void)state;
    const uint8_t mask[SMALL_SEQUENCE] = {1, 0, 1, 1};
    tt_dropout dropout = {.probability = 0.25f, .seed = 21, .site = 6};
    small_case small = {.made = {.sequence = SMALL_SEQUENCE,
                                 .width = SMALL_WIDTH,
                                 .value_width = SMALL_WIDTH,
                                 .scale = 0.7,
                                 .mask = mask,
                                 .dropout = &dropout}};
    double x[ALL], gradient[ALL] = {0}, expected[ALL];
    tt_random random;
    tt_random_start(&random, 1, 2);
    for (int i = 0; i < ALL; i++) {
        x[i] = tt_random_normal(&random);
        small.weights[i % SMALL] = tt_random_normal(&random);
    }
    attention_rows parts[OPERANDS], gradients[OPERANDS];
    for (ptrdiff_t i = 0; i < OPERANDS; i++) {
        parts[i] = (attention_rows){x + i * SMALL, SMALL_WIDTH};
        gradients[i] = (attention_rows){gradient + i * SMALL, SMALL_WIDTH};
    }
    small.made.q = parts[0];
    small.made.k = parts[1];
    small.made.v = parts[2];
    head_backward(&small.made, (attention_rows){small.weights, SMALL_WIDTH}, gradients[0],
                  gradients[1], gradients[2]);
    ops_test_differences(weighted_context, &small, x, ALL, expected);
    for (ptrdiff_t i = 0; i < OPERANDS; i++) {
        ops_test_close("reference", gradient + i * SMALL, expected + i * SMALL, SMALL, 1e-8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_reference_against_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

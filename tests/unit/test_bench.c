/* `ttrain bench` as a program would use it: every operation is timed, and the JSON says so. Times
 * are checked to be times, never how long they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/ops.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#define TINY                                                                                       \
    "--batch 2 --sequence-length 8 --hidden 24 --heads 3 --intermediate 40 --vocabulary 50 "       \
    "--rank 5 --threads 1 "

#define PLACE(name) [offsetof(tt_ops, name) / sizeof(void (*)(void))] = #name

/* The table of operations as it must be reported; members that only state a size are left out. */
static const char *const operations[] = {
    PLACE(multiply),
    PLACE(multiply_group),
    PLACE(copy_group),
    PLACE(scale_cores),
    PLACE(scale_cores_backward),
    PLACE(add_bias),
    PLACE(add_bias_backward),
    PLACE(gelu_forward),
    PLACE(gelu_backward),
    PLACE(tanh_forward),
    PLACE(tanh_backward),
    PLACE(dropout),
    PLACE(residual_norm_forward),
    PLACE(residual_norm_output),
    PLACE(residual_norm_backward),
    PLACE(embedding_forward),
    PLACE(embedding_backward),
    PLACE(distinct_ids),
    PLACE(slice_products_forward),
    PLACE(slice_products_backward),
    PLACE(gather_rows),
    PLACE(scatter_rows),
    PLACE(cross_entropy),
    PLACE(attention_forward),
    PLACE(attention_backward),
    PLACE(thin_attention_forward),
    PLACE(thin_attention_backward),
    PLACE(thin_feed_forward_forward),
    PLACE(thin_feed_forward_backward),
    PLACE(thin_joint_forward),
    PLACE(thin_joint_backward),
    PLACE(gradient_check),
    PLACE(update),
};
enum { PLACES = sizeof operations / sizeof *operations };

/* Runs `ttrain ARGUMENTS` and returns what it prints as JSON, NULL when that is none. */
static json_t *run(const char *arguments, int *exit_status)
{
    char command[1024];
    snprintf(command, sizeof command, "'%s' %s 2>/dev/null", TTRAIN_PROGRAM, arguments);
    FILE *output = popen(command, "r");
    assert_non_null(output);
    json_t *root = json_loadf(output, JSON_DISABLE_EOF_CHECK, NULL);
    int status = pclose(output);
    assert_true(WIFEXITED(status));
    *exit_status = WEXITSTATUS(status);
    return root;
}

static json_t *run_well(const char *arguments)
{
    int exit_status;
    json_t *root = run(arguments, &exit_status);
    if (exit_status != 0 || root == NULL) {
        fail_msg("ttrain %s: exit status %d, %s", arguments, exit_status,
                 root != NULL ? "JSON" : "no JSON");
    }
    return root;
}

static double expect_positive(const json_t *object, const char *key)
{
    double value = json_real_value(json_object_get(object, key));
    if (!isfinite(value) || value <= 0.0) {
        fail_msg("%s: expected a positive number, found %g", key, value);
    }
    return value;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    assert_non_null(text);
    return text;
}

static int count_operation(const json_t *list, const char *operation, const char *form)
{
    int count = 0;
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry)
    {
        count += strcmp(text_of(entry, "operation"), operation) == 0 &&
                 (form == NULL || strcmp(text_of(entry, "form"), form) == 0);
    }
    return count;
}

static void expect_entry(const json_t *entry)
{
    double seconds = expect_positive(entry, "median_s");
    double bytes = expect_positive(entry, "bytes");
    assert_float_equal(expect_positive(entry, "bytes_per_s") * seconds / bytes, 1.0, 1e-6);
    expect_positive(entry, "fraction_of_peak");
    double flops = json_real_value(json_object_get(entry, "flops"));
    double rate = json_real_value(json_object_get(entry, "flops_per_s"));
    assert_true(flops >= 0.0);
    assert_true(fabs(rate * seconds - flops) <= 1e-6 * flops);
    const char *bound = text_of(entry, "bound");
    assert_true(strcmp(bound, "memory") == 0 || (strcmp(bound, "product") == 0 && flops > 0.0));
    if (strncmp(text_of(entry, "form"), "tensor train", 12) == 0) {
        expect_positive(entry, "speedup_against_dense");
    }
}

static void test_ops_times_every_operation(void **state)
{
    (void)state;
    json_t *root = run_well("bench ops " TINY "--json");
    expect_positive(root, "peak_flops_per_s");
    expect_positive(root, "copy_bytes_per_s");
    assert_int_equal(json_integer_value(json_object_get(root, "hidden")), 24);
    json_t *missing = json_object_get(root, "without_benchmark");
    assert_true(json_is_array(missing));
    assert_int_equal(json_array_size(missing), 0);
    json_t *list = json_object_get(root, "operations");
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry)
    {
        expect_entry(entry);
        assert_int_equal(count_operation(list, text_of(entry, "operation"), text_of(entry, "form")),
                         1);
    }
    for (int place = 0; place < PLACES; place++) {
        if (operations[place] != NULL && count_operation(list, operations[place], NULL) == 0) {
            fail_msg("%s is not timed", operations[place]);
        }
    }
    json_decref(root);
}

/* Sizes that no tensor train of three modes fits, in several rounds, and only some operations. */
static void test_ops_compares_forms_at_odd_sizes(void **state)
{
    (void)state;
    static const char *const passes[] = {"encoder block forward", "encoder block backward"};
    static const char *const forms[] = {"dense", "tensor train, wide", "tensor train, thin"};
    json_t *root = run_well("bench ops --batch 1 --sequence-length 1 --hidden 7 --heads 1 "
                            "--intermediate 11 --vocabulary 1 --rank 1 --dropout 0 --threads 1 "
                            "--only=block --rounds 3 --json");
    json_t *list = json_object_get(root, "operations");
    assert_int_equal(json_array_size(list), 6);
    for (int pass = 0; pass < 2; pass++) {
        for (int form = 0; form < 3; form++) {
            assert_int_equal(count_operation(list, passes[pass], forms[form]), 1);
        }
    }
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry)
    {
        expect_entry(entry);
    }
    json_decref(root);
}

static void test_ops_refuses_wrong_usage(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "bench ops --hidden 10 --heads 3",
        "bench ops " TINY "--rank 25",
        "bench ops " TINY "--only no_such_operation",
        "bench ops " TINY "--batch 0",
        "bench ops surplus",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int exit_status;
        json_t *root = run(wrong[i], &exit_status);
        assert_null(root);
        if (exit_status != 2) {
            fail_msg("ttrain %s: expected exit status 2, found %d", wrong[i], exit_status);
        }
    }
}

static void test_gemm(void **state)
{
    (void)state;
    json_t *root = run_well("bench gemm --threads 1 --json");
    assert_int_equal(json_integer_value(json_object_get(root, "threads")), 1);
    expect_positive(root, "peak_flops_per_s");
    json_t *list = json_object_get(root, "products");
    assert_true(json_array_size(list) > 0);
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry)
    {
        double seconds = expect_positive(entry, "median_s");
        double work = 2.0;
        static const char *const sides[] = {"m", "n", "k"};
        for (int side = 0; side < 3; side++) {
            work *= (double)json_integer_value(json_object_get(entry, sides[side]));
        }
        assert_float_equal(expect_positive(entry, "flops_per_s") * seconds / work, 1.0, 1e-6);
    }
    json_decref(root);
}

/* A recipe that says its vocabulary needs no shards. */
#define RATIOS                                                                                     \
    "bench ratios '" TTRAIN_SOURCE_DIR "/recipes/six_encoder/pretrain.yaml' model.layers=1 "       \
    "model.vocabulary_size=50 --batch 1 --sequence-length 8 --steps 1 --rounds 1 --threads 1 "

static void test_ratios(void **state)
{
    (void)state;
    json_t *list = run_well(RATIOS "--ratios 2,50 --json");
    assert_int_equal(json_array_size(list), 3);
    static const double least[] = {0.0, 2.0, 50.0};
    for (size_t i = 0; i < 3; i++) {
        json_t *entry = json_array_get(list, i);
        const json_t *compression = json_object_get(entry, "compression");
        assert_true(i == 0 ? json_is_null(compression)
                           : json_real_value(compression) >= least[i] &&
                                 json_real_value(compression) < 1.5 * least[i]);
        expect_positive(entry, "median_step_s");
        expect_positive(entry, "speedup_against_dense");
        assert_true(i == 0 || json_integer_value(json_object_get(entry, "parameters")) <
                                  json_integer_value(
                                      json_object_get(json_array_get(list, i - 1), "parameters")));
    }
    assert_true(
        json_real_value(json_object_get(json_array_get(list, 0), "speedup_against_dense")) == 1.0);
    json_decref(list);
    static const char *const wrong[] = {RATIOS "--ratios 2,x", RATIOS "--ratios 0.5",
                                        RATIOS "--ratios ''"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int exit_status;
        json_t *root = run(wrong[i], &exit_status);
        assert_null(root);
        assert_int_equal(exit_status, 2);
    }
    int exit_status;
    json_t *root = run(RATIOS "tensor_train.form=dense tensor_train.attention.form=dense "
                              "tensor_train.intermediate.form=dense tensor_train.output.form=dense "
                              "tensor_train.pooler.form=dense",
                       &exit_status);
    assert_null(root);
    assert_int_equal(exit_status, 1);
}

/* Sizes given in place of the recipe's for which its model has no positions. */
static void test_sizes_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"ratios", "step"}, *const lengths[] = {"1", "513"};
    for (size_t i = 0; i < 2; i++) {
        for (size_t j = 0; j < 2; j++) {
            char arguments[512];
            int exit_status;
            snprintf(arguments, sizeof arguments,
                     "bench %s '" TTRAIN_SOURCE_DIR "/recipes/six_encoder/pretrain.yaml' "
                     "model.layers=1 model.vocabulary_size=50 model.max_positions=512 --batch 1 "
                     "--sequence-length %s --steps 1 --json",
                     wrong[i], lengths[j]);
            assert_null(run(arguments, &exit_status));
            assert_int_equal(exit_status, 1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ops_times_every_operation),
        cmocka_unit_test(test_ops_compares_forms_at_odd_sizes),
        cmocka_unit_test(test_ops_refuses_wrong_usage),
        cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_ratios),
        cmocka_unit_test(test_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

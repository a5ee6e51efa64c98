/* The committed reference files are what the double-precision models of today write. */
#include "tests/reference/own_reference.h"
#include "tests/reference/reference_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Results kept as floats may round to either side on another machine. */
#define SAME_TOLERANCE 1e-7

static bool is_gradient(const char *name)
{
    const char *last = strrchr(name, '/');
    return strncmp(name, "gradients/", 10) == 0 ||
           (last != NULL && strncmp(last, "/grad_", 6) == 0);
}

static void compare_shape(const tt_reference_shape *found, const tt_reference_shape *expected)
{
    assert_int_equal(found->dimensions, expected->dimensions);
    for (int i = 0; i < expected->dimensions; i++) {
        assert_int_equal(found->extent[i], expected->extent[i]);
    }
}

static void compare_file(const char *path, const char *committed_path)
{
    tt_error error;
    tt_reference_file made;
    tt_reference_file committed;
    tt_double_tensors expected;
    tt_double_tensors found;
    tt_suite_succeed(tt_reference_open(path, &made, &error), &error);
    tt_suite_succeed(tt_reference_open(committed_path, &committed, &error), &error);
    tt_suite_succeed(tt_double_tensors_read(&committed, "/", &expected, &error), &error);
    tt_suite_succeed(tt_double_tensors_read(&made, "/", &found, &error), &error);
    assert_int_equal(found.count, expected.count);
    tt_reference_check check;
    tt_reference_check_begin(&check, committed_path, SAME_TOLERANCE);
    for (int i = 0; i < expected.count; i++) {
        const tt_double_tensor *old = expected.items[i];
        const tt_double_tensor *now = tt_double_tensors_get(&found, "%s", old->name);
        compare_shape(&now->shape, &old->shape);
        if (is_gradient(old->name)) {
            tt_reference_check_gradient_double(&check, old->name, old->values, now->values,
                                               old->shape.count);
        } else {
            tt_reference_check_output_double(&check, old->name, old->values, now->values,
                                             old->shape.count);
        }
    }
    assert_true(tt_reference_check_finish(&check));
    tt_double_tensors_free(&expected);
    tt_double_tensors_free(&found);
    tt_reference_close(&made);
    tt_reference_close(&committed);
}

static void test_own_files(void **state)
{
    (void)state;
    tt_error error;
    char folder[] = "/tmp/ttrain_reference_XXXXXX";
    assert_non_null(mkdtemp(folder));
    tt_suite_succeed(tt_own_reference_write(folder, &error), &error);
    for (int i = 0; i < TT_OWN_REFERENCE_FILES; i++) {
        char path[1024];
        char committed[1024];
        snprintf(path, sizeof(path), "%s/%s", folder, tt_own_reference_names[i]);
        snprintf(committed, sizeof(committed), "%s/tests/reference/data/%s", TTRAIN_SOURCE_DIR,
                 tt_own_reference_names[i]);
        compare_file(path, committed);
        unlink(path);
    }
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_own_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

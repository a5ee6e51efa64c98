/* Errors are one line, whatever the names in them hold; and reading a file never waits. */
#include "support/scratch.h"

#include "data/file.h"

static void test_one_line(void **state)
{
    (void)state;
    tt_error error;
    assert_int_equal(tt_error_set(&error, TT_IO_FAILED, "%s: missing", "a\nb\x1b[31m\x7f"),
                     TT_IO_FAILED);
    assert_string_equal(error.message, "a?b?[31m?: missing");
    tt_error_prefix(&error, "%s", "in\r");
    tt_error_append(&error, "%s", "\t(\xc3\xbc)");
    assert_string_equal(error.message, "in?: a?b?[31m?: missing?(\xc3\xbc)");
}

static void test_pipe_in_place_of_file(void **state)
{
    (void)state;
    tt_error error;
    void *bytes;
    size_t size;
    const char *path = scratch_path("pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_failure(tt_file_read(path, 100, &bytes, &size, &error), &error, "expected a file");
    assert_null(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_line),
        cmocka_unit_test(test_pipe_in_place_of_file),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

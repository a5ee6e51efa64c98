#include "support/scratch.h"

#include "launch/metrics.h"

#include <math.h>

static tt_metrics_record record_of(int64_t step)
{
    return (tt_metrics_record){.step = step,
                               .phase = "first \"one\"",
                               .phase_step = step - 1,
                               .epoch = 2,
                               .samples = INT64_MAX,
                               .tokens = 5,
                               .loss = 0.1 + (double)step,
                               .masked_lm_loss = 1.0 / 3.0,
                               .masked_lm_accuracy = 5e-324,
                               .next_sentence_loss = 0.7,
                               .next_sentence_accuracy = 0.5,
                               .has_next_sentence = true,
                               .learning_rate = 1e-4f,
                               .core_learning_rate = 0.1f,
                               .diagonal_learning_rate = 16777217.0f,
                               .gradient_norm = 1.17549435e-38f,
                               .timing = {.step_ms = (double)rand(), .tokens_per_s = 7}};
}

static void write_steps(const char *path, int64_t resumed, int64_t last)
{
    tt_metrics *metrics;
    tt_error error;
    expect_success(tt_metrics_open(path, resumed, &metrics, &error), &error);
    for (int64_t step = resumed + 1; step <= last; step++) {
        tt_metrics_record record = record_of(step);
        expect_success(tt_metrics_write(metrics, &record, &error), &error);
    }
    expect_success(tt_metrics_close(&metrics, &error), &error);
    assert_null(metrics);
}

/* The file without what depends on the clock. */
static char *read_without_timing(const char *path)
{
    char *text = scratch_read(path, NULL);
    char *to = text;
    for (char *from = text; *from != '\0';) {
        if (strncmp(from, ", \"timing\"", 10) == 0) {
            from = strchr(from, '}');
        }
        *to++ = *from++;
    }
    *to = '\0';
    return text;
}

static double number_after(const char *text, const char *key)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\": ", key);
    const char *found = strstr(text, quoted);
    if (found == NULL) {
        fail_msg("no %s in %s", key, text);
    }
    return strtod(found + strlen(quoted), NULL);
}

static void test_numbers_read_back(void **state)
{
    (void)state;
    const char *path = scratch_path("numbers.jsonl");
    write_steps(path, 0, 1);
    char *text = scratch_read(path, NULL);
    const tt_metrics_record record = record_of(1);
    assert_true(number_after(text, "loss") == record.loss);
    assert_true(number_after(text, "masked_lm_loss") == record.masked_lm_loss);
    assert_true(number_after(text, "masked_lm_accuracy") == record.masked_lm_accuracy);
    assert_true((float)number_after(text, "learning_rate") == record.learning_rate);
    assert_true((float)number_after(text, "core_learning_rate") == record.core_learning_rate);
    assert_true((float)number_after(text, "diagonal_learning_rate") ==
                record.diagonal_learning_rate);
    assert_true((float)number_after(text, "gradient_norm") == record.gradient_norm);
    assert_non_null(strstr(text, "\"samples\": 9223372036854775807,"));
    assert_non_null(strstr(text, "\"phase\": \"first \\\"one\\\"\""));
    assert_null(strstr(text, "validation"));
    free(text);
}

static void test_what_is_not_there(void **state)
{
    (void)state;
    const char *path = scratch_path("parts.jsonl");
    tt_metrics *metrics;
    tt_error error;
    tt_metrics_record record = record_of(1);
    record.has_next_sentence = false;
    record.has_validation = true;
    record.validation_loss = 2.5;
    record.loss = NAN;
    record.gradient_norm = INFINITY;
    expect_success(tt_metrics_open(path, 0, &metrics, &error), &error);
    expect_success(tt_metrics_write(metrics, &record, &error), &error);
    /* A line is there as soon as it is written, whatever happens to the program next. */
    char *text = scratch_read(path, NULL);
    assert_non_null(strstr(text, "\"loss\": null,"));
    assert_non_null(strstr(text, "\"gradient_norm\": null,"));
    assert_non_null(strstr(text, "\"validation_loss\": 2.5,"));
    assert_null(strstr(text, "next_sentence"));
    free(text);
    expect_success(tt_metrics_close(&metrics, &error), &error);
    expect_success(tt_metrics_close(&metrics, &error), &error);
}

static void test_resumed_file_is_that_of_one_run(void **state)
{
    (void)state;
    const char *whole = scratch_path("whole.jsonl"), *resumed = scratch_path("resumed.jsonl");
    write_steps(whole, 0, 12);
    write_steps(resumed, 0, 9);
    FILE *file = fopen(resumed, "ab");
    fprintf(file, "{\"step\": 10, \"ph"); /* what a killed run leaves */
    fclose(file);
    write_steps(resumed, 7, 12);
    char *expected = read_without_timing(whole), *found = read_without_timing(resumed);
    assert_string_equal(found, expected);
    free(expected);
    free(found);
}

static void test_only_what_is_torn_is_cut(void **state)
{
    (void)state;
    const char *path = scratch_path("torn.jsonl");
    write_steps(path, 0, 3);
    size_t whole, found;
    free(scratch_read(path, &whole));
    FILE *file = fopen(path, "ab");
    fprintf(file, "{\"step\": 4");
    fclose(file);
    write_steps(path, 3, 3);
    free(scratch_read(path, &found));
    assert_int_equal(found, whole);
    write_steps(path, 0, 0);
    free(scratch_read(path, &found));
    assert_int_equal(found, 0);
}

static void test_failures(void **state)
{
    (void)state;
    tt_metrics *metrics;
    tt_error error;
    const char *nowhere = scratch_path("no/such/folder/metrics.jsonl");
    expect_failure(tt_metrics_open(nowhere, 0, &metrics, &error), &error, nowhere);
    assert_null(metrics);
    if (access("/dev/full", W_OK) == 0) {
        const char *link = scratch_path("full.jsonl");
        assert_int_equal(symlink("/dev/full", link), 0);
        /* A device is nothing to cut lines from. */
        expect_failure(tt_metrics_open(link, 0, &metrics, &error), &error, link);
    }
}

static void test_full_disk(void **state)
{
    (void)state;
    const char *path = scratch_path("limited.jsonl");
    tt_metrics *metrics;
    tt_error error;
    tt_metrics_record record = record_of(1);
    expect_success(tt_metrics_open(path, 0, &metrics, &error), &error);
    scratch_limit_files(100);
    tt_status status = tt_metrics_write(metrics, &record, &error);
    scratch_limit_files(0);
    expect_failure(status, &error, path);
    tt_metrics_close(&metrics, &error);
}

static char *progress_output(bool terminal)
{
    const char *path = scratch_path("progress");
    FILE *stream = fopen(path, "w");
    tt_progress progress;
    tt_progress_start(&progress, stream, 200);
    assert_false(progress.terminal);
    progress.terminal = terminal;
    tt_metrics_record record = record_of(100);
    record.timing.step_ms = 750;
    record.timing.tokens_per_s = 12345;
    record.phase = "a long name of a phase";
    tt_progress_update(&progress, &record, true);
    record.phase = "b";
    record.step = 101;
    tt_progress_update(&progress, &record, false);
    record.step = 200;
    tt_progress_update(&progress, &record, true);
    tt_progress_end(&progress);
    tt_progress_end(&progress);
    fclose(stream);
    return scratch_read(path, NULL);
}

static void test_progress_in_a_file(void **state)
{
    (void)state;
    char *text = progress_output(false);
    assert_non_null(strstr(text, "step 100/200"));
    assert_non_null(strstr(text, "12.3k tokens/s"));
    assert_non_null(strstr(text, "1 min 15 s left\n"));
    assert_null(strstr(text, "step 101"));
    assert_null(strchr(text, '\r'));
    assert_string_equal(strstr(text, "0 s left"), "0 s left\n");
    free(text);
}

static void test_progress_on_a_terminal(void **state)
{
    (void)state;
    char *text = progress_output(true);
    assert_int_equal(text[0], '\r');
    /* The last step is shown whatever the clock says, over all of the longer line before it. */
    char *last = strrchr(text, '\r');
    assert_non_null(strstr(last, "step 200/200"));
    assert_int_equal(strlen(last), (size_t)(last - text) + 1);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    free(text);
}

/* Of a run that trains ranks; the others have none of the keys. */
static void test_ranks(void **state)
{
    (void)state;
    const char *path = scratch_path("ranks.jsonl");
    tt_metrics *metrics;
    tt_error error;
    expect_success(tt_metrics_open(path, 0, &metrics, &error), &error);
    tt_metrics_record record = record_of(1);
    expect_success(tt_metrics_write(metrics, &record, &error), &error);
    record.step = 2;
    record.has_ranks = true;
    record.size = 12345678901.0;
    record.relaxed_size = 1.0 / 3.0;
    record.size_ratio = 0.25;
    expect_success(tt_metrics_write(metrics, &record, &error), &error);
    record.step = 3;
    record.stage = "late";
    record.branch = "size";
    expect_success(tt_metrics_write(metrics, &record, &error), &error);
    expect_success(tt_metrics_close(&metrics, &error), &error);
    char *text = scratch_read(path, NULL), *second = strchr(text, '\n') + 1;
    char *third = strchr(second, '\n') + 1;
    second[-1] = third[-1] = '\0';
    assert_null(strstr(text, "size"));
    assert_null(strstr(text, "stage"));
    assert_null(strstr(text, "branch"));
    assert_true(number_after(second, "size") == 12345678901.0);
    assert_true(number_after(second, "relaxed_size") == 1.0 / 3.0);
    assert_true(number_after(second, "size_ratio") == 0.25);
    assert_non_null(strstr(second, "\"stage\": null, \"branch\": null"));
    assert_non_null(strstr(third, "\"stage\": \"late\", \"branch\": \"size\""));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_read_back),
        cmocka_unit_test(test_what_is_not_there),
        cmocka_unit_test(test_resumed_file_is_that_of_one_run),
        cmocka_unit_test(test_only_what_is_torn_is_cut),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_progress_in_a_file),
        cmocka_unit_test(test_progress_on_a_terminal),
        cmocka_unit_test(test_ranks),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

#include "support/scratch.h"

#include "launch/event_file.h"
#include "launch/event_record.h"
#include "launch/metrics.h"

#include <math.h>
#include <time.h>

static void expect_bytes(const uint8_t *found, size_t size, const char *hexadecimal)
{
    char text[2 * TT_EVENT_RECORD + 1];
    for (size_t i = 0; i < size; i++) {
        snprintf(text + 2 * i, 3, "%02x", found[i]);
    }
    assert_string_equal(text, hexadecimal);
}

/* The check value of CRC-32C, and the sixteen-byte vectors of RFC 3720, B.4. */
static void test_crc32c(void **state)
{
    (void)state;
    uint8_t bytes[32];
    assert_true(tt_event_crc32c("123456789", 9) == 0xE3069283u);
    assert_true(tt_event_masked_crc32c("123456789", 9) == 0xC78AB0E5u);
    assert_true(tt_event_crc32c("", 0) == 0);
    memset(bytes, 0, sizeof bytes);
    assert_true(tt_event_crc32c(bytes, sizeof bytes) == 0x8A9136AAu);
    memset(bytes, 255, sizeof bytes);
    assert_true(tt_event_crc32c(bytes, sizeof bytes) == 0x62A8AB43u);
    for (int i = 0; i < 32; i++) {
        bytes[i] = (uint8_t)i;
    }
    assert_true(tt_event_crc32c(bytes, sizeof bytes) == 0x46DD794Eu);
}

static void test_records(void **state)
{
    (void)state;
    uint8_t record[TT_EVENT_RECORD];
    expect_bytes(
        record, tt_event_version(1.5, record),
        "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
    expect_bytes(
        record, tt_event_scalar(1.5, 7, "loss", 2.5f, record),
        "1a00000000000000129bd82d09000000000000f83f10072a0d0a0b0a046c6f737315000020407841ddb"
        "1");
}

static void test_long_numbers_and_tags(void **state)
{
    (void)state;
    uint8_t record[TT_EVENT_RECORD];
    char tag[2 * TT_EVENT_TAG];
    memset(tag, 'x', sizeof tag - 1);
    tag[sizeof tag - 1] = '\0';
    size_t size = tt_event_scalar(1e9, INT64_MAX, tag, -INFINITY, record);
    assert_true(size < TT_EVENT_RECORD);
    assert_int_equal(record[0] + 256 * record[1], (int)size - 16);
    /* Nine bytes of seven bits each; the last one has no mark that more follow. */
    const uint8_t step[] = {0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f};
    assert_memory_equal(record + 12 + 9, step, sizeof step);
}

/* --- files --- */

static char event_path[1024];

/* The one event file in the scratch folder; fails when there are more, or others' leftovers. */
static char *read_events(size_t *size)
{
    int count = 0;
    DIR *folder = opendir(scratch_folder);
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        if (strstr(entry->d_name, "tfevents") && !strstr(entry->d_name, ".other")) {
            snprintf(event_path, sizeof event_path, "%s/%s", scratch_folder, entry->d_name);
            count++;
        }
        assert_null(strstr(entry->d_name, "tmp"));
    }
    closedir(folder);
    assert_int_equal(count, 1);
    return scratch_read(event_path, size);
}

typedef struct {
    int64_t step;
    char tag[TT_EVENT_TAG + 1];
    float value;
    double wall_time;
} scalar;

enum { SCALARS = 512 };

static uint64_t varint(const uint8_t **at)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        value |= (uint64_t)(**at & 127) << shift;
        if (*(*at)++ < 128) {
            return value;
        }
    }
}

/* One event; false when it is no scalar. Knows the order in which ttrain writes fields. */
static bool parse_event(const uint8_t *at, size_t size, scalar *result)
{
    const uint8_t *end = at + size;
    memcpy(&result->wall_time, at + 1, 8);
    at += 9;
    result->step = 0;
    if (at < end && *at == 0x10) {
        at++;
        result->step = (int64_t)varint(&at);
    }
    if (at == end || *at != 0x2a) {
        return false;
    }
    at++;
    varint(&at);
    assert_int_equal(*at++, 0x0a);
    varint(&at);
    assert_int_equal(*at++, 0x0a);
    size_t length = varint(&at);
    memcpy(result->tag, at, length);
    result->tag[length] = '\0';
    at += length;
    assert_int_equal(*at, 0x15);
    memcpy(&result->value, at + 1, 4);
    assert_ptr_equal(at + 5, end);
    return true;
}

static int read_scalars(scalar scalars[SCALARS])
{
    size_t size;
    char *text = read_events(&size);
    int count = 0;
    for (size_t at = 0; at < size;) {
        const uint8_t *record = (const uint8_t *)text + at;
        uint64_t length;
        uint32_t masked;
        assert_true(size - at > 16);
        memcpy(&length, record, 8);
        assert_true(length <= size - at - 16);
        memcpy(&masked, record + 8, 4);
        assert_true(masked == tt_event_masked_crc32c(record, 8));
        memcpy(&masked, record + 12 + length, 4);
        assert_true(masked == tt_event_masked_crc32c(record + 12, length));
        assert_true(count < SCALARS);
        count += parse_event(record + 12, length, &scalars[count]);
        at += 16 + length;
    }
    free(text);
    return count;
}

static const scalar *find(const scalar *scalars, int count, int64_t step, const char *tag)
{
    const scalar *found = NULL;
    for (int i = 0; i < count; i++) {
        if (scalars[i].step == step && strcmp(scalars[i].tag, tag) == 0) {
            assert_null(found);
            found = &scalars[i];
        }
    }
    return found;
}

static void write_steps(const char *path, int64_t resumed, int64_t last)
{
    tt_metrics *metrics;
    tt_error error;
    expect_success(tt_metrics_open(path, resumed, &metrics, &error), &error);
    expect_success(tt_metrics_add_event_file(metrics, &error), &error);
    for (int64_t step = resumed + 1; step <= last; step++) {
        tt_metrics_record record = {.step = step,
                                    .phase = "only",
                                    .loss = step == 3 ? (double)NAN : 1.0 / (double)step,
                                    .timing = {.step_ms = 5}};
        expect_success(tt_metrics_write(metrics, &record, &error), &error);
    }
    expect_success(tt_metrics_close(&metrics, &error), &error);
}

static void test_numbers_of_a_run(void **state)
{
    (void)state;
    scalar *scalars = calloc(SCALARS, sizeof *scalars);
    const char *path = scratch_path("metrics.jsonl");
    write_steps(path, 0, 4);
    int count = read_scalars(scalars);
    assert_true(find(scalars, count, 2, "loss")->value == 0.5f);
    assert_true(find(scalars, count, 4, "timing/step_ms")->value == 5);
    assert_true(fabs(find(scalars, count, 1, "loss")->wall_time - (double)time(NULL)) < 100);
    assert_null(find(scalars, count, 3, "loss")); /* not finite: null in metrics.jsonl */
    assert_non_null(find(scalars, count, 3, "gradient_norm"));
    for (int i = 0; i < count; i++) {
        assert_string_not_equal(scalars[i].tag, "step");
        assert_string_not_equal(scalars[i].tag, "phase");
        assert_string_not_equal(scalars[i].tag, "timing/unix_time");
    }
    unlink(event_path);
    unlink(path);
    free(scalars);
}

static void test_resumed_run(void **state)
{
    (void)state;
    scalar *scalars = calloc(SCALARS, sizeof *scalars);
    const char *path = scratch_path("metrics.jsonl");
    const char *foreign = scratch_path("events.out.tfevents.1.host.other");
    scratch_write(foreign, "theirs", 6);
    write_steps(path, 0, 9);
    FILE *file = fopen(event_path, "ab");
    fputs("what a killed run leaves", file);
    fclose(file);
    const char *killed = scratch_path("events.out.tfevents.0000000001.host.1.ttrain");
    scratch_write(killed, "earlier", 7);
    write_steps(path, 6, 12);
    int count = read_scalars(scalars);
    for (int64_t step = 1; step <= 12; step++) {
        assert_non_null(find(scalars, count, step, "gradient_norm"));
    }
    assert_null(find(scalars, count, 13, "gradient_norm"));
    assert_int_equal(access(killed, F_OK), -1);
    assert_int_equal(access(foreign, F_OK), 0);
    unlink(foreign);
    unlink(event_path);
    unlink(path);
    free(scalars);
}

/* What a compaction writes, and lines that no version of ttrain wrote. */
static void test_any_line(void **state)
{
    (void)state;
    static const char lines[] =
        "{\"step\": 5, \"compaction\": {\"parameters\": 77, \"ranks\": {\"a\": [1, 2]}}}\n"
        "{\"step\": 6, \"nested\": {\"deep\": {\"value\": -1e300}}, \"yes\": true, \"no\": null}\n"
        "{\"loss\": 3}\n"
        "not json\n"
        "[1, 2]\n"
        "\n"
        "{\"step\": \"7\", \"loss\": 3}\n"
        "{\"step\": 8, \"loss\": 3}";
    scalar *scalars = calloc(SCALARS, sizeof *scalars);
    const char *path = scratch_path("metrics.jsonl");
    scratch_write(path, lines, sizeof lines - 1);
    tt_event_file *file;
    tt_error error;
    expect_success(tt_event_file_open(path, &file, &error), &error);
    expect_success(tt_event_file_close(&file, &error), &error);
    assert_null(file);
    expect_success(tt_event_file_close(&file, &error), &error);
    assert_int_equal(read_scalars(scalars), 3);
    assert_true(scalars[0].step == 5 && scalars[0].value == 77);
    assert_string_equal(scalars[0].tag, "compaction/parameters");
    assert_true(scalars[1].step == 6 && scalars[1].value == -INFINITY);
    assert_string_equal(scalars[1].tag, "nested/deep/value");
    assert_true(scalars[2].step == 8 && scalars[2].value == 3);
    unlink(event_path);
    unlink(path);
    free(scalars);
}

static void test_failures(void **state)
{
    (void)state;
    tt_event_file *file;
    tt_error error;
    const char *nowhere = scratch_path("no/such/metrics.jsonl");
    expect_failure(tt_event_file_open(nowhere, &file, &error), &error, "no/such/events.out");
    assert_null(file);
    /* On a full disk nothing that looks like an event file is left behind. */
    const char *path = scratch_path("metrics.jsonl"), line[] = "{\"step\": 1, \"loss\": 2}\n";
    scratch_write(path, line, sizeof line - 1);
    scratch_limit_files(60);
    tt_status status = tt_event_file_open(path, &file, &error);
    scratch_limit_files(0);
    expect_failure(status, &error, "cannot be written");
    expect_success(tt_event_file_open(path, &file, &error), &error);
    scratch_limit_files(150);
    do {
        status = tt_event_file_add(file, line, sizeof line - 1, &error);
    } while (status == TT_OK);
    scratch_limit_files(0);
    expect_failure(status, &error, "events.out.tfevents.");
    tt_event_file_close(&file, &error);
    free(read_events(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c),
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_long_numbers_and_tags),
        cmocka_unit_test(test_numbers_of_a_run),
        cmocka_unit_test(test_resumed_run),
        cmocka_unit_test(test_any_line),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

#include "support/scratch.h"

#include "launch/safetensors.h"

#include <errno.h>

static tt_safetensors_tensor tensor(const char *name, tt_safetensors_type type, int dimensions,
                                    int64_t rows, int64_t columns)
{
    tt_safetensors_tensor made = {.type = type, .dimensions = dimensions, .shape = {rows, columns}};
    snprintf(made.name, sizeof made.name, "%s", name);
    return made;
}

/* A file of the given header, its length field as it should be, and `data_size` bytes of data. */
static void write_file(const char *path, const char *header, size_t data_size)
{
    char bytes[4096] = {0};
    uint64_t length = strlen(header);
    memcpy(bytes, &length, sizeof length);
    memcpy(bytes + sizeof length, header, length);
    for (size_t i = 0; i < data_size; i++) {
        bytes[sizeof length + length + i] = (char)i;
    }
    scratch_write(path, bytes, sizeof length + length + data_size);
}

static void refuse_file(const char *path, const char *fragment)
{
    tt_safetensors *file;
    tt_error error;
    tt_status status = tt_safetensors_open(path, &file, &error);
    expect_failure(status, &error, fragment);
    expect_failure(status, &error, path);
    assert_null(file);
}

static void refuse(const char *header, size_t data_size, const char *fragment)
{
    const char *path = scratch_path("hostile.safetensors");
    write_file(path, header, data_size);
    refuse_file(path, fragment);
}

static void test_bytes_of_a_file(void **state)
{
    (void)state;
    const char *path = scratch_path("small.safetensors");
    tt_safetensors_tensor tensors[] = {tensor("b", TT_SAFETENSORS_F32, 2, 1, 2)};
    tt_safetensors_writer writer;
    tt_error error;
    const float values[] = {1.0f, -2.0f};
    expect_success(tt_safetensors_create(path, tensors, 1, &writer, &error), &error);
    expect_success(tt_safetensors_write(&writer, values, 4, &error), &error);
    expect_success(tt_safetensors_write(&writer, values + 1, 4, &error), &error);
    expect_success(tt_safetensors_finish(&writer, &error), &error);

    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\","
                                 "\"shape\":[1,2],\"data_offsets\":[0,8]}}";
    size_t padded = (strlen(header) + 7) / 8 * 8, length;
    char *bytes = scratch_read(path, &length);
    assert_int_equal(length, 8 + padded + 8);
    assert_int_equal(writer.file.size, length);
    assert_int_equal(bytes[0], padded);
    assert_memory_equal(bytes + 8, header, strlen(header));
    for (size_t i = strlen(header); i < padded; i++) {
        assert_int_equal(bytes[8 + i], ' ');
    }
    assert_memory_equal(bytes + 8 + padded, "\0\0\x80\x3f\0\0\0\xc0", 8);
    free(bytes);
    uint64_t size, hash;
    expect_success(tt_storage_hash(path, &size, &hash, &error), &error);
    assert_true(size == writer.file.size && hash == writer.file.hash);
}

static void test_round_trip(void **state)
{
    (void)state;
    const char *path = scratch_path("mixed.safetensors");
    tt_safetensors_tensor tensors[] = {tensor("ids", TT_SAFETENSORS_I64, 1, 3, 0),
                                       tensor("w \"\\ \xc3\xa9", TT_SAFETENSORS_F32, 2, 2, 3),
                                       tensor("one", TT_SAFETENSORS_F32, 0, 0, 0),
                                       tensor("none", TT_SAFETENSORS_F32, 2, 0, 5),
                                       tensor("mask", TT_SAFETENSORS_U8, 1, 5, 0)};
    const int64_t ids[] = {1, -2, INT64_MAX};
    const float weights[] = {1, 2, 3, 4, 5, 6, 7};
    const uint8_t mask[] = {1, 0, 1, 0, 255};
    tt_safetensors_writer writer;
    tt_error error;
    expect_success(tt_safetensors_create(path, tensors, 5, &writer, &error), &error);
    expect_success(tt_safetensors_write(&writer, ids, sizeof ids, &error), &error);
    expect_success(tt_safetensors_write(&writer, weights, sizeof weights, &error), &error);
    expect_success(tt_safetensors_write(&writer, mask, sizeof mask, &error), &error);
    expect_success(tt_safetensors_finish(&writer, &error), &error);

    tt_safetensors *file;
    expect_success(tt_safetensors_open(path, &file, &error), &error);
    assert_int_equal(file->count, 5);
    assert_int_equal(file->data_start % 8, 0);
    assert_null(tt_safetensors_find(file, "absent"));
    const tt_safetensors_tensor *found = tt_safetensors_find(file, tensors[1].name);
    assert_non_null(found);
    assert_int_equal(found->dimensions, 2);
    assert_int_equal(found->shape[1], 3);
    float row[3];
    expect_success(tt_safetensors_read(file, found, 12, row, sizeof row, &error), &error);
    assert_memory_equal(row, weights + 3, sizeof row);
    expect_failure(tt_safetensors_read(file, found, 16, row, sizeof row, &error), &error,
                   "outside of the tensor");
    float one;
    expect_success(tt_safetensors_read(file, tt_safetensors_find(file, "one"), 0, &one, 4, &error),
                   &error);
    assert_true(one == 7);
    uint8_t last;
    expect_success(
        tt_safetensors_read(file, tt_safetensors_find(file, "mask"), 4, &last, 1, &error), &error);
    assert_int_equal(last, 255);
    tt_safetensors_close(&file);
    assert_null(file);
}

static void test_writer_refuses(void **state)
{
    (void)state;
    const char *path = scratch_path("refused.safetensors");
    tt_safetensors_writer writer;
    tt_error error;
    tt_safetensors_tensor twice[] = {tensor("a", TT_SAFETENSORS_F32, 1, 1, 0),
                                     tensor("a", TT_SAFETENSORS_F32, 1, 1, 0)};
    expect_failure(tt_safetensors_create(path, twice, 2, &writer, &error), &error, "used twice");
    tt_safetensors_tensor narrow_first[] = {tensor("a", TT_SAFETENSORS_U8, 1, 1, 0),
                                            tensor("b", TT_SAFETENSORS_F32, 1, 1, 0)};
    expect_failure(tt_safetensors_create(path, narrow_first, 2, &writer, &error), &error,
                   "b: expected wider types first, found F32 after U8");
    expect_success(tt_safetensors_create(path, twice, 1, &writer, &error), &error);
    expect_success(tt_safetensors_write(&writer, "abc", 3, &error), &error);
    expect_failure(tt_safetensors_finish(&writer, &error), &error,
                   "expected 4 bytes of data, 3 were given");
    tt_safetensors_tensor good[] = {tensor("a", TT_SAFETENSORS_F32, 1, 1, 0)};
    const char *nowhere = scratch_path("no/such/folder");
    expect_failure(tt_safetensors_create(nowhere, good, 1, &writer, &error), &error, nowhere);
}

#define A "\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}"

static void test_hostile_headers(void **state)
{
    (void)state;
    refuse("{" A "}", 7, "tensor a: expected data up to byte 8, the file has 7");
    refuse("{" A "}", 9, "expected 8 bytes of data, found 9");
    refuse("{" A ", " A "}", 8, "duplicate object key");
    refuse("{" A ", \"b\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [4, 12]}}", 12,
           "tensor b: expected to begin at byte 8 of the data, begins at 4");
    refuse("{" A ", \"b\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [12, 20]}}", 20,
           "tensor b: expected to begin at byte 8 of the data, begins at 12");
    refuse("{\"a\": {\"dtype\": \"F32\", \"shape\": [3], \"data_offsets\": [0, 8]}}", 8,
           "do not fill the 8 bytes");
    refuse("{\"a\": {\"dtype\": \"F32\", \"shape\": [-2], \"data_offsets\": [0, 8]}}", 8,
           "sizes of at least 0");
    refuse("{\"a\": {\"dtype\": \"F32\", \"shape\": [2.0], \"data_offsets\": [0, 8]}}", 8,
           "sizes of at least 0");
    refuse("{\"a\": {\"dtype\": \"F32\", \"shape\": [4611686018427387904, 4], "
           "\"data_offsets\": [0, 0]}}",
           0, "do not fill");
    refuse("{\"a\": {\"dtype\": \"F32\", \"shape\": [9223372036854775808], "
           "\"data_offsets\": [0, 8]}}",
           8, "header, byte");
    refuse("{\"a\": {\"dtype\": \"F33\", \"shape\": [2], \"data_offsets\": [0, 8]}}", 8,
           "expected a dtype");
    refuse("{\"a\": {\"shape\": [2], \"data_offsets\": [0, 8]}}", 8, "expected a dtype");
    refuse("{\"a\": {\"dtype\": \"F32\", \"data_offsets\": [0, 8]}}", 8, "a list as shape");
    refuse("{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [8, 0]}}", 8,
           "expected data_offsets");
    refuse("{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0]}}", 8,
           "expected data_offsets");
    refuse("{\"a\": {\"dtype\": \"F32\", \"shape\": [2]}}", 8, "expected data_offsets");
    refuse("{\"a\": {\"dtype\": \"F32\", \"shape\": [1,1,1,1,1,1,1,1,2], "
           "\"data_offsets\": [0, 8]}}",
           8, "at most 8 dimensions");
    refuse("{\"a\": 3}", 0, "tensor a: expected an object");
    refuse("{\"\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}}", 8,
           "a name of 1 to 255 bytes");
    refuse("{\"a\\nb\": 3}", 0, "tensor a?b: expected an object");
    refuse("{\"__metadata__\": {\"format\": 3}, " A "}", 8, "strings only in __metadata__");
    refuse("{\"__metadata__\": 3, " A "}", 8, "strings only in __metadata__");
    refuse("[]", 0, "begins with {");
    refuse(" {}", 0, "begins with {");
    refuse("{\"a\"", 0, "header, byte");
    refuse("{} x", 0, "header, byte");
    refuse("{\"\xff\": 3}", 0, "header, byte");
}

static void test_hostile_lengths(void **state)
{
    (void)state;
    const char *path = scratch_path("length.safetensors");
    scratch_write(path, "", 0);
    refuse_file(path, "found 0 bytes");
    scratch_write(path, "\2\0\0\0\0\0\0", 7);
    refuse_file(path, "found 7 bytes");
    scratch_write(path, "\3\0\0\0\0\0\0\0{}", 10);
    refuse_file(path, "its header of 3 bytes does not fit in a file of 10 bytes");
    scratch_write(path, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    refuse_file(path, "does not fit");
    scratch_write(path, "\0\0\0\0\0\0\0\0", 8);
    refuse_file(path, "begins with {");
    refuse_file(scratch_folder, "found 0 bytes");
    refuse_file(scratch_path("absent"), "cannot be opened");
}

static void test_empty_file_is_fine(void **state)
{
    (void)state;
    const char *path = scratch_path("empty.safetensors");
    write_file(path, "{}   ", 0);
    tt_safetensors *file;
    tt_error error;
    expect_success(tt_safetensors_open(path, &file, &error), &error);
    assert_int_equal(file->count, 0);
    tt_safetensors_close(&file);
    tt_safetensors_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_of_a_file), cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_writer_refuses),  cmocka_unit_test(test_hostile_headers),
        cmocka_unit_test(test_hostile_lengths), cmocka_unit_test(test_empty_file_is_fine),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

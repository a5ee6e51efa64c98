/* Files of the same numbers that are stored otherwise, and with more in them than is asked for, are
 * read; numbers that are wrong are found. */
#include "tests/reference/reference_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <hdf5.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void write_attribute(hid_t object, const char *name, hid_t type, int count,
                            const void *values, hid_t memory_type)
{
    hsize_t extent = (hsize_t)count;
    hid_t space = count == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &extent, NULL);
    hid_t attribute = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Awrite(attribute, memory_type, values) >= 0);
    H5Aclose(attribute);
    H5Sclose(space);
}

static void write_text(hid_t object, const char *name, const char *value, bool variable)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, variable ? H5T_VARIABLE : strlen(value));
    write_attribute(object, name, type, 0, variable ? (const void *)&value : value, type);
    H5Tclose(type);
}

/* Chunked, compressed and big-endian, or plain; `type` -1: texts. */
static void write_dataset(hid_t group, const char *name, hid_t type, int dimensions,
                          const hsize_t *extent, const double *values)
{
    hid_t text = H5Tcopy(H5T_C_S1);
    hid_t space = H5Screate_simple(dimensions, extent, NULL);
    hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(creation, dimensions, extent);
    H5Pset_shuffle(creation);
    H5Pset_deflate(creation, 6);
    hid_t dataset =
        H5Dcreate2(group, name, type < 0 ? text : type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    assert_true(dataset >= 0);
    if (type >= 0) {
        assert_true(H5Dwrite(dataset, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >=
                    0);
    }
    H5Dclose(dataset);
    H5Pclose(creation);
    H5Sclose(space);
    H5Tclose(text);
}

static void write_file(const char *path)
{
    const double numbers[] = {1, 2, 3, 4, 5, 6};
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t map = H5Gcreate2(file, "map", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    write_attribute(map, "shape", H5T_STD_I16BE, 3, numbers, H5T_NATIVE_DOUBLE);
    write_attribute(map, "ranks", H5T_IEEE_F32LE, 4, (double[]){1, 2, 3, 1}, H5T_NATIVE_DOUBLE);
    write_attribute(map, "threshold", H5T_IEEE_F64BE, 1, (double[]){0.05}, H5T_NATIVE_DOUBLE);
    write_text(map, "source", "somewhere", true);
    write_dataset(map, "x", H5T_IEEE_F64BE, 2, (hsize_t[]){3, 2}, numbers);
    write_dataset(map, "core_1", H5T_IEEE_F32BE, 3, (hsize_t[]){1, 1, 2}, numbers);
    write_dataset(map, "core_2", H5T_STD_I64BE, 3, (hsize_t[]){2, 2, 3}, (double[12]){1});
    write_dataset(map, "core_3", H5T_STD_U8LE, 3, (hsize_t[]){3, 3, 1}, (double[9]){1});
    write_dataset(map, "rank_diagonal_1", H5T_IEEE_F32LE, 1, (hsize_t[]){2}, numbers);
    write_dataset(map, "rank_diagonal_2", H5T_IEEE_F32LE, 1, (hsize_t[]){3}, numbers);
    write_dataset(map, "notes", -1, 1, (hsize_t[]){2}, NULL);
    write_dataset(map, "wide", H5T_IEEE_F32LE, 7, (hsize_t[]){1, 1, 1, 1, 1, 1, 1}, numbers);
    H5Gclose(H5Gcreate2(file, "empty", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    write_text(file, "gelu", "tanh gelu", true);
    write_text(file, "hidden_act", "erf gelu", false);
    H5Gclose(map);
    H5Fclose(file);
}

/* The first cores carry the inputs as x has them: 1 x 2 of three modes, not half of them. */
static bool read_map(const tt_reference_file *file, const char *group, tt_double_tensors *data)
{
    assert_string_equal(group, "map");
    assert_null(tt_double_tensors_find(data, "notes"));
    tt_double_train train = tt_suite_train(file, group, data);
    assert_int_equal(train.order, 3);
    assert_int_equal(train.input_order, 2);
    assert_int_equal(train.ranks[2], 3);
    assert_true(train.threshold == 0.05);
    assert_true(train.cores[0][1] == 2 && train.diagonals[1][2] == 3);
    assert_true(tt_reference_is_double(file, "map/x"));
    assert_false(tt_reference_is_double(file, "map/core_1"));
    return true;
}

static void test_other_storage_and_extras(void **state)
{
    (void)state;
    tt_error error;
    tt_reference_file file;
    char path[] = "/tmp/ttrain_reference_XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    write_file(path);
    tt_suite_succeed(tt_reference_open(path, &file, &error), &error);
    tt_suite_count count = tt_suite_groups(&file, "core_1", read_map);
    assert_int_equal(count.compared, 1);
    assert_int_equal(count.failed, 0);
    assert_true(tt_suite_gelu_is_tanh(&file, "gelu"));
    assert_false(tt_suite_gelu_is_tanh(&file, "hidden_act"));
    assert_false(tt_suite_gelu_is_tanh(&file, "missing"));
    tt_reference_close(&file);
    unlink(path);
}

/* A float lies to the same side of the threshold as it does in double precision. */
static void test_threshold(void **state)
{
    (void)state;
    const double thresholds[] = {0.01, 0.05, 0.1, 1e-6, 0.25, 0};
    for (int i = 0; i < 6; i++) {
        float threshold = tt_suite_threshold(thresholds[i]);
        float near = (float)thresholds[i];
        assert_int_equal(near > threshold, (double)near > thresholds[i]);
        assert_true((double)threshold <= thresholds[i]);
    }
}

/* Whether a gradient of these norms, beside one of norm 1, and a loss pass. */
static bool passes(double gradient, double difference, double loss)
{
    tt_reference_check check;
    tt_reference_check_begin(&check, "made up", 1e-5);
    tt_reference_check_gradient_double(&check, "large", (double[]){1}, (double[]){1}, 1);
    tt_reference_check_gradient_double(&check, "small", &gradient,
                                       (double[]){gradient + difference}, 1);
    tt_reference_check_loss(&check, "loss", 2, 2 + loss, 2);
    return tt_reference_check_finish(&check);
}

static void test_judging(void **state)
{
    (void)state;
    assert_true(passes(1e-3, 0, 0));
    assert_true(passes(1e-3, 0.9e-8, 0));
    assert_false(passes(1e-3, 1.1e-8, 0));
    assert_true(passes(1e-7, 0.9e-11, 0));
    assert_false(passes(1e-7, 1.1e-11, 0));
    assert_true(passes(1e-12, 0.9e-10, 0));
    assert_false(passes(1e-12, 1.1e-10, 0));
    assert_false(passes(0, 1.1e-10, 0));
    assert_true(passes(1e-3, 0, 1.9e-5));
    assert_false(passes(1e-3, 0, 2.1e-5));
    assert_false(passes(1e-3, NAN, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_other_storage_and_extras),
                                       cmocka_unit_test(test_threshold),
                                       cmocka_unit_test(test_judging)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

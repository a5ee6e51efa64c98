/* Parameters in flat buffers: their layout, their names, and how they are filled. */
#include "core/parameters.h"
#include "support/test_device.h"

#include <math.h>

typedef struct {
    const char *name;
    tt_group group;
    bool decays;
    int dimensions;
    int64_t shape[TT_MAX_DIMENSIONS];
} description;

/* Groups mixed as a model adds them; sizes on and off the alignment. */
static const description descriptions[] = {
    {"word", TT_GROUP_DENSE, true, 2, {33, 7}},
    {"map.core_1", TT_GROUP_CORES, true, 3, {1, 4, 5}},
    {"map.rank_diagonal_1", TT_GROUP_DIAGONALS, false, 1, {5}},
    {"map.core_2", TT_GROUP_CORES, true, 3, {5, 16, 1}},
    {"map.bias", TT_GROUP_DENSE, false, 1, {16}},
    {"other.core_1", TT_GROUP_CORES, true, 4, {1, 2, 3, 2}},
    {"other.rank_diagonal_1", TT_GROUP_DIAGONALS, false, 1, {17}},
    {"one", TT_GROUP_DENSE, false, 1, {1}},
};
enum { DESCRIPTIONS = sizeof descriptions / sizeof descriptions[0] };

static void add(tt_parameters *parameters, const description *d, tt_parameter_id *id)
{
    tt_error error = {0};
    if (tt_parameters_add(parameters, d->name, d->group, d->decays, d->dimensions, d->shape, id,
                          &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
}

static void make_parameters(tt_parameters *parameters, tt_device *device, bool with_moments)
{
    tt_error error = {0};
    tt_parameters_init(parameters, device);
    for (int i = 0; i < DESCRIPTIONS; i++) {
        tt_parameter_id id;
        add(parameters, &descriptions[i], &id);
        assert_int_equal(id, i);
    }
    assert_int_equal(tt_parameters_allocate(parameters, with_moments, &error), TT_OK);
}

static void test_layout(void **state)
{
    (void)state;
    tt_device *device = test_device(1);
    tt_parameters parameters;
    make_parameters(&parameters, device, true);
    int64_t size = 0;
    assert_int_equal(parameters.range_start[0], 0);
    assert_int_equal(parameters.range_start[TT_GROUP_COUNT], parameters.total);
    for (int i = 0; i < DESCRIPTIONS; i++) {
        const tt_parameter *item = &parameters.items[i];
        int64_t count = 1;
        for (int k = 0; k < item->dimensions; k++) {
            assert_int_equal(item->shape[k], descriptions[i].shape[k]);
            count *= item->shape[k];
        }
        assert_string_equal(item->name, descriptions[i].name);
        assert_int_equal(item->count, count);
        assert_int_equal(item->decays, descriptions[i].decays);
        assert_int_equal(item->offset % TT_PARAMETER_ALIGNMENT, 0);
        assert_true(item->offset >= parameters.range_start[item->group]);
        assert_true(item->offset + count <= parameters.range_start[item->group + 1]);
        assert_int_equal((uintptr_t)tt_parameters_value(&parameters, i) % 64, 0);
        assert_ptr_equal(tt_parameters_value(&parameters, i), parameters.values + item->offset);
        assert_ptr_equal(tt_parameters_gradient(&parameters, i),
                         parameters.gradients + item->offset);
        size += count;
    }
    assert_int_equal(tt_parameters_size(&parameters), size);
    assert_ptr_equal(tt_parameters_statistics(&parameters),
                     parameters.gradients + parameters.total);
    /* 20, 80 and 12 numbers; 5 and 17; 231, 16 and 1: each from a multiple of 16 on. */
    assert_int_equal(parameters.range_start[TT_GROUP_DIAGONALS], 32 + 80 + 16);
    assert_int_equal(parameters.range_start[TT_GROUP_DENSE], 32 + 80 + 16 + 16 + 32);
    assert_int_equal(parameters.total, 32 + 80 + 16 + 16 + 32 + 240 + 16 + 16);
    tt_parameters_free(&parameters);
    tt_device_destroy(&device);
}

/* Marks what parameters own; what is left are the gaps. */
static void expect_gaps_zero(const tt_parameters *parameters, const float *device_buffer)
{
    float *buffer = test_copy_out(parameters->device, device_buffer, tt_floats(parameters->total));
    bool *owned = calloc((size_t)parameters->total, sizeof *owned);
    int64_t gaps = 0;
    for (int i = 0; i < parameters->count; i++) {
        const tt_parameter *item = &parameters->items[i];
        for (int64_t j = 0; j < item->count; j++) {
            assert_false(owned[item->offset + j]); /* two never share a place */
            owned[item->offset + j] = true;
        }
    }
    for (int64_t j = 0; j < parameters->total; j++) {
        gaps += !owned[j];
        assert_true(owned[j] || buffer[j] == 0.0f);
    }
    assert_true(gaps > 0);
    free(owned);
    free(buffer);
}

static void expect_all(const tt_parameters *parameters, const float *device_buffer, int64_t count,
                       float value)
{
    float *buffer = test_copy_out(parameters->device, device_buffer, tt_floats(count));
    for (int64_t i = 0; i < count; i++) {
        assert_true(buffer[i] == value);
    }
    free(buffer);
}

static void test_gaps_stay_zero(void **state)
{
    (void)state;
    tt_device *device = test_device(1);
    tt_parameters parameters;
    make_parameters(&parameters, device, true);
    for (int i = 0; i < DESCRIPTIONS; i++) {
        if (i % 2 == 0) {
            tt_parameters_fill(&parameters, i, 3.0f);
        } else {
            tt_parameters_fill_normal(&parameters, i, 2.0f, 1);
        }
    }
    expect_gaps_zero(&parameters, parameters.values);
    const float *zeros[] = {parameters.gradients, parameters.first_moment,
                            parameters.second_moment};
    for (int b = 0; b < 3; b++) {
        expect_all(&parameters, zeros[b], parameters.total, 0.0f);
    }
    expect_all(&parameters, tt_parameters_statistics(&parameters), TT_STATISTICS, 0.0f);
    expect_all(&parameters, tt_parameters_value(&parameters, 0), parameters.items[0].count, 3.0f);
    tt_parameters_free(&parameters);
    make_parameters(&parameters, device, false);
    assert_null(parameters.first_moment);
    assert_null(parameters.second_moment);
    tt_parameters_free(&parameters);
    tt_device_destroy(&device);
}

static void test_names(void **state)
{
    (void)state;
    tt_device *device = test_device(1);
    tt_parameters parameters;
    make_parameters(&parameters, device, false);
    for (int i = 0; i < DESCRIPTIONS; i++) {
        assert_int_equal(tt_parameters_find(&parameters, descriptions[i].name), i);
    }
    assert_int_equal(tt_parameters_find(&parameters, "map.core"), -1);
    assert_int_equal(tt_parameters_find(&parameters, ""), -1);
    tt_parameters_free(&parameters);
    assert_int_equal(tt_parameters_find(&parameters, "word"), -1);
    tt_device_destroy(&device);
}

static void expect_refused(const char *name, int64_t first, int64_t second, const char *message)
{
    tt_device *device = test_device(1);
    tt_parameters parameters;
    tt_parameter_id id;
    tt_error error = {0};
    tt_parameters_init(&parameters, device);
    add(&parameters, &descriptions[0], &id);
    assert_int_equal(tt_parameters_add(&parameters, name, TT_GROUP_DENSE, true, 2,
                                       (int64_t[]){first, second}, &id, &error),
                     TT_INVALID_INPUT);
    assert_string_equal(error.message, message);
    assert_int_equal(parameters.count, 1);
    tt_parameters_free(&parameters);
    tt_device_destroy(&device);
}

static void test_refusals(void **state)
{
    (void)state;
    char name[129], message[512];
    expect_refused("word", 2, 2, "parameter name word is used twice");
    expect_refused("w", 2, 0, "parameter w: dimension 1 is 0, which is not a usable size");
    expect_refused("w", -3, 2, "parameter w: dimension 0 is -3, which is not a usable size");
    expect_refused("w", INT64_C(1) << 40, INT64_C(1) << 20,
                   "parameter w: dimension 1 is 1048576, which is not a usable size");
    memset(name, 'x', 128);
    name[128] = '\0';
    snprintf(message, sizeof message,
             "parameter name %s: expected fewer than 128 characters, found 128", name);
    expect_refused(name, 2, 2, message);
}

/* Many parameters, so that the list grows. */
static void test_many(void **state)
{
    (void)state;
    enum { MANY = 1000 };
    tt_device *device = test_device(1);
    tt_parameters parameters;
    tt_error error = {0};
    char name[32];
    tt_parameters_init(&parameters, device);
    for (int i = 0; i < MANY; i++) {
        tt_parameter_id id;
        snprintf(name, sizeof name, "parameter_%d", i);
        add(&parameters, &(description){name, (tt_group)(i % 3), false, 1, {1 + i % 40}}, &id);
    }
    assert_int_equal(tt_parameters_allocate(&parameters, false, &error), TT_OK);
    assert_int_equal(tt_parameters_find(&parameters, "parameter_777"), 777);
    expect_gaps_zero(&parameters, parameters.values);
    tt_parameters_free(&parameters);
    tt_device_destroy(&device);
}

/* A parameter's draw depends on seed, name and place alone. */
static void test_fill_normal(void **state)
{
    (void)state;
    enum { COUNT = 10000 };
    tt_device *device = test_device(1);
    tt_error error = {0};
    tt_parameters few, many;
    tt_parameter_id alone, other, same, id;
    description wanted = {"wanted", TT_GROUP_DENSE, true, 1, {COUNT}};
    description unwanted = {"unwanted", TT_GROUP_CORES, true, 1, {COUNT}};
    tt_parameters_init(&few, device);
    add(&few, &wanted, &alone);
    assert_int_equal(tt_parameters_allocate(&few, false, &error), TT_OK);
    tt_parameters_init(&many, device);
    add(&many, &descriptions[0], &id);
    add(&many, &unwanted, &other);
    wanted.shape[0] = COUNT / 2;
    add(&many, &wanted, &same);
    assert_int_equal(tt_parameters_allocate(&many, false, &error), TT_OK);

    tt_parameters_fill_normal(&many, other, 0.5f, 7);
    tt_parameters_fill_normal(&many, same, 0.5f, 7);
    tt_parameters_fill_normal(&few, alone, 0.5f, 7);
    float *values = test_copy_out(device, tt_parameters_value(&few, alone), tt_floats(COUNT));
    float *half = test_copy_out(device, tt_parameters_value(&many, same), tt_floats(COUNT / 2));
    float *different = test_copy_out(device, tt_parameters_value(&many, other), tt_floats(COUNT));
    assert_memory_equal(values, half, COUNT / 2 * sizeof(float));
    int equal = 0;
    double mean = 0.0, variance = 0.0;
    for (int i = 0; i < COUNT; i++) {
        equal += values[i] == different[i];
        mean += (double)values[i] / COUNT;
        variance += (double)values[i] * values[i] / COUNT;
    }
    assert_int_equal(equal, 0);
    assert_true(fabs(mean) < 5.0 * 0.5 / sqrt(COUNT));
    assert_true(fabs(sqrt(variance) / 0.5 - 1.0) < 5.0 / sqrt(2.0 * COUNT));
    tt_parameters_fill_normal(&few, alone, 0.5f, 8);
    float *redrawn = test_copy_out(device, tt_parameters_value(&few, alone), tt_floats(COUNT));
    assert_true(redrawn[0] != values[0]);
    free(values);
    free(half);
    free(different);
    free(redrawn);
    tt_parameters_free(&few);
    tt_parameters_free(&many);
    tt_device_destroy(&device);
}

static int allocations_left;
static void *(*real_allocate)(tt_device *device, size_t bytes);

static void *allocate_few(tt_device *device, size_t bytes)
{
    return allocations_left-- > 0 ? real_allocate(device, bytes) : NULL;
}

/* Whichever buffer there is no memory for: an error, and nothing left behind. */
static void test_no_memory(void **state)
{
    (void)state;
    tt_device *device = test_device(1);
    char message[256];
    real_allocate = device->allocate;
    for (int given = 0; given < 4; given++) {
        tt_parameters parameters;
        tt_parameter_id id;
        tt_error error = {0};
        tt_parameters_init(&parameters, device);
        add(&parameters, &descriptions[0], &id);
        device->allocate = allocate_few;
        allocations_left = given;
        assert_int_equal(tt_parameters_allocate(&parameters, true, &error), TT_OUT_OF_MEMORY);
        snprintf(message, sizeof message, "%s: no memory for parameters", device->name);
        assert_memory_equal(error.message, message, strlen(message));
        assert_null(parameters.values);
        tt_parameters_free(&parameters);
    }
    device->allocate = real_allocate;
    tt_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),    cmocka_unit_test(test_gaps_stay_zero),
        cmocka_unit_test(test_names),     cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_many),      cmocka_unit_test(test_fill_normal),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

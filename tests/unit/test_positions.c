/* The neighbours initializer: before any training the first block's heads attend to the tokens next
 * to each, densely and as tensor trains. */
#include "models/encoder_block.h"
#include "models/model.h"
#include "support/test_device.h"

#include <math.h>
#include <stdlib.h>

enum { HIDDEN = 96, HEADS = 6, WIDTH = HIDDEN / HEADS, POSITIONS = 128, VOCABULARY = 50 };

static tt_configuration small(tt_form form, int64_t rank)
{
    tt_configuration configuration = {
        .vocabulary_size = VOCABULARY,
        .hidden_size = HIDDEN,
        .layers = 1,
        .heads = HEADS,
        .intermediate_size = HIDDEN,
        .max_positions = POSITIONS,
        .segment_types = 2,
        .layer_norm_epsilon = 1e-12f,
        .initializer_range = 0.02f,
        .position_initializer = TT_POSITIONS_NEIGHBOURS,
        .threshold = 0.01f,
        .train_deviation = 0.02f,
    };
    for (int kind = 0; kind < TT_MAP_KINDS; kind++) {
        configuration.maps[kind].form = form;
        tt_error error = {0};
        if (tt_train_shape_choose(HIDDEN, HIDDEN, 2, 2, rank, &configuration.maps[kind].shape,
                                  &error) != TT_OK) {
            fail_msg("%s", error.message);
        }
    }
    return configuration;
}

/* The rows of a table, each brought to the norm that LayerNorm gives it. */
static double *normalized_rows(const tt_model *model, tt_parameter_id id, int64_t rows)
{
    const tt_parameters *parameters = &model->parameters;
    double *table = test_read_matrix(
        parameters->device, tt_matrix_f32(tt_parameters_value(parameters, id), rows, HIDDEN));
    double *result = malloc((size_t)(rows * HIDDEN) * sizeof *result);
    assert_non_null(result);
    for (int64_t i = 0; i < rows; i++) {
        double squares = 0.0;
        for (int64_t j = 0; j < HIDDEN; j++) {
            squares += table[i * HIDDEN + j] * table[i * HIDDEN + j];
        }
        for (int64_t j = 0; j < HIDDEN; j++) {
            result[i * HIDDEN + j] = table[i * HIDDEN + j] * sqrt(HIDDEN / squares);
        }
    }
    free(table);
    return result;
}

static double *map_rows(const tt_linear *linear, const double *rows, int64_t count)
{
    tt_device *device = linear->parameters->device;
    tt_type type = device->compute;
    void *x = device->allocate(device, tt_floats(count * HIDDEN));
    void *u = device->allocate(device, tt_floats(count * HIDDEN));
    void *y = device->allocate(device, tt_floats(count * HIDDEN));
    tt_matrix input = tt_matrix_dense(x, count, HIDDEN, type);
    test_write_matrix(device, input, rows);
    tt_matrix output = tt_matrix_dense(y, count, HIDDEN, type);
    tt_linear_forward(linear, input, tt_matrix_dense(u, count, linear->rank, type), output);
    double *result = test_read_matrix(device, output);
    device->release(device, x);
    device->release(device, u);
    device->release(device, y);
    return result;
}

/* Where head `head` at `position` scores highest, and how far above the next best. */
static int64_t best_key(const double *queries, const double *keys, int64_t position, int head,
                        double *lead)
{
    int64_t best = -1;
    double highest = -INFINITY, second = -INFINITY;
    for (int64_t j = 0; j < POSITIONS; j++) {
        double score = 0.0;
        for (int64_t e = (int64_t)head * WIDTH; e < (int64_t)(head + 1) * WIDTH; e++) {
            score += queries[position * HIDDEN + e] * keys[j * HIDDEN + e] / sqrt(WIDTH);
        }
        if (score > highest) {
            second = highest;
            highest = score;
            best = j;
        } else if (score > second) {
            second = score;
        }
    }
    *lead = highest - second;
    return best;
}

static void check_attention(tt_form form, int64_t rank)
{
    tt_device *device = test_device(1);
    tt_configuration configuration = small(form, rank);
    tt_model model;
    tt_error error = {0};
    if (tt_model_create_pretraining(&model, device, &configuration, 3, false, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
    tt_parameters_round(&model.parameters);
    tt_train_set_materialise(&model.trains);
    double *rows = normalized_rows(&model, model.encoder.position, POSITIONS);
    double *queries = map_rows(&model.encoder.blocks[0].query, rows, POSITIONS);
    double *keys = map_rows(&model.encoder.blocks[0].key, rows, POSITIONS);
    static const int offsets[] = {1, -1, 2, -2};
    for (int head = 0; head < 4; head++) {
        for (int64_t i = 2; i + 2 < POSITIONS; i++) {
            double lead;
            int64_t found = best_key(queries, keys, i, head, &lead);
            if (found != i + offsets[head] || lead < 1.0) {
                fail_msg("form %d, head %d, position %lld: attends to %lld, ahead by %g", (int)form,
                         head, (long long)i, (long long)found, lead);
            }
        }
    }
    free(rows);
    free(queries);
    free(keys);
    tt_model_free(&model);
    tt_device_destroy(&device);
}

static void test_first_heads_attend_to_neighbours(void **state)
{
    (void)state;
    check_attention(TT_DENSE, 1);
    check_attention(TT_TENSOR_TRAIN, 24);
}

/* Words and positions share no column. */
static void test_words_and_positions_have_columns_of_their_own(void **state)
{
    (void)state;
    tt_device *device = test_device(1);
    tt_configuration configuration = small(TT_DENSE, 1);
    tt_model model;
    tt_error error = {0};
    assert_int_equal(tt_model_create_pretraining(&model, device, &configuration, 3, false, &error),
                     TT_OK);
    double *words = normalized_rows(&model, model.encoder.words.weight, VOCABULARY);
    double *positions = normalized_rows(&model, model.encoder.position, POSITIONS);
    for (int64_t j = 0; j < HIDDEN; j++) {
        bool used = false, placed = false;
        for (int64_t i = 0; i < VOCABULARY; i++) {
            used = used || words[i * HIDDEN + j] != 0.0;
        }
        for (int64_t i = 0; i < POSITIONS; i++) {
            placed = placed || positions[i * HIDDEN + j] != 0.0;
        }
        assert_true(used != placed);
    }
    free(words);
    free(positions);
    tt_model_free(&model);
    tt_device_destroy(&device);
}

static void check_refused(tt_configuration configuration, const char *expected)
{
    tt_device *device = test_device(1);
    tt_model model;
    tt_error error = {0};
    assert_int_equal(tt_model_create_pretraining(&model, device, &configuration, 3, false, &error),
                     TT_INVALID_INPUT);
    if (!strstr(error.message, expected)) {
        fail_msg("expected \"%s\" in: %s", expected, error.message);
    }
    tt_model_free(&model);
    tt_device_destroy(&device);
}

static void test_too_little_room_is_refused(void **state)
{
    (void)state;
    check_refused(small(TT_TENSOR_TRAIN, 6), "self.query: the ranks are too small");
    tt_configuration narrow = small(TT_DENSE, 1);
    narrow.heads = 12;
    check_refused(narrow, "neighbours needs heads of at least 16 columns");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_heads_attend_to_neighbours),
        cmocka_unit_test(test_words_and_positions_have_columns_of_their_own),
        cmocka_unit_test(test_too_little_room_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

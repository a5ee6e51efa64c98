/* Configurations: what is refused, and numbers of parameters and operations against models that are
 * laid out, and against counts made by hand. */
#include "support/small_model.h"

static tt_configuration bert(int64_t hidden, int64_t layers, int64_t heads, int64_t vocabulary)
{
    return (tt_configuration){.vocabulary_size = vocabulary,
                              .hidden_size = hidden,
                              .layers = layers,
                              .heads = heads,
                              .intermediate_size = 4 * hidden,
                              .max_positions = 512,
                              .segment_types = 2,
                              .dropout = 0.1f,
                              .attention_dropout = 0.1f,
                              .layer_norm_epsilon = 1e-12f,
                              .initializer_range = 0.02f,
                              .next_sentence = true,
                              .threshold = 0.01f};
}

/* Makes the maps of a kind tensor trains of `order` modes a side. */
static void compress(tt_configuration *configuration, tt_map_kind kind, int order, int64_t rank)
{
    int64_t inputs, outputs;
    tt_error error = {0};
    tt_linear_form *map = &configuration->maps[kind];
    map->form = TT_TENSOR_TRAIN;
    tt_configuration_map_size(configuration, kind, &inputs, &outputs);
    small_succeed(tt_train_shape_choose(inputs, outputs, order, order, rank, &map->shape, &error),
                  &error);
}

/* --- counts ---------------------------------------------------------------------------------- */

/* Registers the pre-training model's parameters, without memory for their values. */
static int64_t registered(const tt_configuration *configuration)
{
    tt_device *device = test_device(1);
    tt_error error = {0};
    tt_parameters parameters;
    tt_train_set trains;
    tt_encoder encoder;
    tt_masked_lm_head masked;
    tt_sentence_head sentence;
    tt_parameters_init(&parameters, device);
    tt_train_set_init(&trains, &parameters, configuration->threshold);
    small_succeed(tt_encoder_create(&encoder, configuration, &parameters, &trains, &error), &error);
    small_succeed(tt_masked_lm_head_create(&masked, &encoder, &error), &error);
    if (configuration->next_sentence) {
        small_succeed(
            tt_sentence_head_create(&sentence, &encoder, "cls.seq_relationship", 2, 0.0f, &error),
            &error);
    }
    int64_t size = tt_parameters_size(&parameters);
    tt_encoder_free(&encoder);
    tt_train_set_free(&trains);
    tt_parameters_free(&parameters);
    tt_device_destroy(&device);
    return size;
}

static void expect_count(const tt_configuration *configuration, int64_t expected)
{
    assert_int_equal(tt_configuration_pretraining_parameters(configuration), expected);
    assert_int_equal(registered(configuration), expected);
}

static void test_bert_counts(void **state)
{
    (void)state;
    tt_configuration base = bert(768, 12, 12, 30522), large = bert(1024, 24, 16, 30522);
    expect_count(&base, 110106428);
    expect_count(&large, 336226108);
    base.next_sentence = false; /* without the pooler and its two classes */
    expect_count(&base, 110106428 - 768 * 769 - 2 * 769);
}

static void test_compressed_counts(void **state)
{
    (void)state;
    tt_configuration configuration = bert(768, 6, 12, 30522);
    int64_t dense = tt_configuration_pretraining_parameters(&configuration);
    const int64_t maps[TT_MAP_KINDS] = {24, 6, 6, 1, 1};
    for (int kind = 0; kind < TT_MAP_KINDS; kind++) {
        int64_t inputs, outputs;
        compress(&configuration, kind, 1 + kind % 3, 10 + kind);
        tt_configuration_map_size(&configuration, kind, &inputs, &outputs);
        dense += maps[kind] * (tt_train_size(&configuration.maps[kind].shape) - inputs * outputs);
        expect_count(&configuration, dense);
    }
    configuration.next_sentence = false;
    expect_count(&configuration, tt_configuration_pretraining_parameters(&configuration));
    tt_configuration small = small_configuration(TT_TENSOR_TRAIN);
    expect_count(&small, tt_configuration_pretraining_parameters(&small));
}

static void test_dense_twin(void **state)
{
    (void)state;
    tt_configuration dense = small_configuration(TT_DENSE);
    tt_configuration train = small_configuration(TT_TENSOR_TRAIN);
    tt_configuration twin = tt_configuration_dense_twin(&train);
    for (int kind = 0; kind < TT_MAP_KINDS; kind++) {
        assert_int_equal(twin.maps[kind].form, TT_DENSE);
        assert_int_equal(train.maps[kind].form, TT_TENSOR_TRAIN);
    }
    expect_count(&twin, tt_configuration_pretraining_parameters(&dense));
}

/* Multiplications and additions of one layer, 3 sequences of 10 tokens with 2 masked ones each. */
static void test_flops(void **state)
{
    (void)state;
    tt_configuration configuration = bert(8, 1, 2, 100);
    double block = 4 * 8 * 8 + 2 * 8 * 32 + 2 * 10 * 8;
    double forward = 10 * block + 2 * (8 * 8 + 8 * 100) + (8 * 8 + 2 * 8);
    assert_true(tt_configuration_flops(&configuration, 3, 10, 2) == 2 * 3 * 3 * forward);
    configuration.next_sentence = false;
    forward -= 8 * 8 + 2 * 8;
    assert_true(tt_configuration_flops(&configuration, 3, 10, 2) == 2 * 3 * 3 * forward);
    compress(&configuration, TT_MAP_INTERMEDIATE, 1, 3); /* 8 x 3 and 3 x 32 instead of 8 x 32 */
    forward -= 10 * (8 * 32 - 3 * (8 + 32));
    assert_true(tt_configuration_flops(&configuration, 3, 10, 2) == 2 * 3 * 3 * forward);
}

static void test_deviation(void **state)
{
    (void)state;
    tt_configuration configuration = bert(768, 1, 12, 100);
    tt_linear dense = {.form = TT_DENSE, .inputs = 768, .outputs = 3072};
    tt_linear train = {.form = TT_TENSOR_TRAIN, .inputs = 768, .outputs = 3072};
    assert_true(tt_configuration_deviation(&configuration, &dense) == 0.02f);
    assert_true(
        fabs(tt_configuration_deviation(&configuration, &train) - sqrt(1.0 / (768 + 3072))) < 1e-8);
    configuration.train_deviation = 0.5f;
    assert_true(tt_configuration_deviation(&configuration, &dense) == 0.02f);
    assert_true(tt_configuration_deviation(&configuration, &train) == 0.5f);
}

/* --- refusals -------------------------------------------------------------------------------- */

static void expect_refused(const tt_configuration *configuration, const char *message)
{
    tt_error error = {0};
    assert_int_equal(tt_configuration_check(configuration, &error), TT_INVALID_INPUT);
    assert_string_equal(error.message, message);
    tt_model model;
    tt_device *device = test_device(1);
    assert_int_equal(tt_model_create_pretraining(&model, device, configuration, 1, false, &error),
                     TT_INVALID_INPUT);
    tt_model_free(&model);
    tt_device_destroy(&device);
}

static void test_sizes_refused(void **state)
{
    (void)state;
    const tt_configuration good = small_configuration(TT_TENSOR_TRAIN);
    tt_error error = {0};
    small_succeed(tt_configuration_check(&good, &error), &error);
    tt_configuration wrong = good;
    wrong.vocabulary_size = 0;
    expect_refused(&wrong, "model.vocabulary_size: expected 1 to 2147483647, found 0");
    wrong = good;
    wrong.hidden_size = -4;
    expect_refused(&wrong, "model.hidden_size: expected 1 to 1048576, found -4");
    wrong = good;
    wrong.layers = 2000;
    expect_refused(&wrong, "model.layers: expected 1 to 1024, found 2000");
    wrong = good;
    wrong.heads = 5;
    expect_refused(&wrong, "model.heads: expected a divisor of hidden_size 24, found 5");
    wrong = good;
    wrong.segment_types = 65;
    expect_refused(&wrong, "model.segment_types: expected 1 to 64, found 65");
}

static void test_numbers_refused(void **state)
{
    (void)state;
    const tt_configuration good = small_configuration(TT_TENSOR_TRAIN);
    tt_configuration wrong = good;
    wrong.dropout = 1.0f;
    expect_refused(&wrong, "model.dropout: expected at least 0 and below 1, found 1");
    wrong = good;
    wrong.attention_dropout = -0.5f;
    expect_refused(&wrong, "model.attention_dropout: expected at least 0 and below 1, found -0.5");
    wrong.attention_dropout = NAN;
    expect_refused(&wrong, "model.attention_dropout: expected at least 0 and below 1, found nan");
    wrong = good;
    wrong.layer_norm_epsilon = 0.0f;
    expect_refused(&wrong, "model.layer_norm_epsilon: expected above 0, found 0");
    wrong = good;
    wrong.threshold = 0.0f;
    expect_refused(&wrong, "tensor_train.threshold: expected above 0, found 0");
}

static void test_shapes_refused(void **state)
{
    (void)state;
    const tt_configuration good = small_configuration(TT_TENSOR_TRAIN);
    tt_configuration wrong = good;
    wrong.maps[TT_MAP_OUTPUT].shape.modes[0] = 9;
    expect_refused(&wrong,
                   "tensor_train.output: input modes multiply to 54, expected the width 60");
    wrong = good;
    wrong.maps[TT_MAP_POOLER].shape.ranks[2] = 25;
    expect_refused(&wrong, "tensor_train.pooler: rank 2 of 3: expected 1 to 24 (the smaller side "
                           "of the unfolding at that link), found 25");
    wrong.maps[TT_MAP_POOLER].form = TT_DENSE; /* whose shape does not count */
    tt_error error = {0};
    small_succeed(tt_configuration_check(&wrong, &error), &error);
}

static void test_sequence_refused(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    small_run run;
    tt_error error = {0};
    small_run_create(&run, 1, &configuration, 0, 1);
    assert_int_equal(tt_model_plan(&run.model, 2, 17, 3, true, &error), TT_INVALID_INPUT);
    assert_string_equal(error.message,
                        "sequence length 17: expected at most model.max_positions 16");
    small_run_plan(&run, 2, true);
    small_run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bert_counts),      cmocka_unit_test(test_compressed_counts),
        cmocka_unit_test(test_dense_twin),       cmocka_unit_test(test_flops),
        cmocka_unit_test(test_deviation),        cmocka_unit_test(test_sizes_refused),
        cmocka_unit_test(test_numbers_refused),  cmocka_unit_test(test_shapes_refused),
        cmocka_unit_test(test_sequence_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

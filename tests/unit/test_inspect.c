#include "support/captured.h"

#include "launch/checkpoint.h"
#include "launch/command_line.h"
#include "launch/inspect.h"

#include <jansson.h>
#include <math.h>
#include <sys/stat.h>

static const char recipe_text[] =
    "model: {preset: bert_large, max_positions: 512}\n"
    "tensor_train: {intermediate: {form: tensor_train, input_modes: [16, 64], "
    "output_modes: [64, 64], ranks: [16, 30, 64]}}\n"
    "phases: [{sequence_length: 128, steps: 5, global_batch: 8, learning_rate: 1e-4}]\n";

static int inspect(const char *first, const char *second, const char *third)
{
    return run_captured(tt_inspect_main, first, second, third);
}

static json_t *inspect_json(const char *path, const char *third)
{
    if (inspect(path, "--json", third) != TT_EXIT_DONE) {
        fail_msg("%s", errors);
    }
    json_t *report = json_loads(output, 0, NULL);
    assert_non_null(report);
    return report;
}

static json_int_t integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

/* BERT-large with both heads has 336,226,108 parameters in Hugging Face's count. */
static void test_recipe(void **state)
{
    (void)state;
    const char *path = scratch_path("recipe.yaml");
    scratch_write(path, recipe_text, strlen(recipe_text));
    json_t *report = inspect_json(path, NULL);
    assert_string_equal(json_string_value(json_object_get(report, "kind")), "recipe");
    assert_true(integer(report, "dense_parameters") == 336226108);
    /* 16*16 + 16*64*30 + 30*64*64 + 64*64 entries and 16 + 30 + 64 diagonals. */
    const json_int_t train = 256 + 30720 + 122880 + 4096 + 110, dense = (json_int_t)1024 * 4096;
    assert_true(integer(report, "parameters") == 336226108 - 24 * (dense - train));
    const json_t *map = json_array_get(json_object_get(report, "maps"), 1);
    assert_true(integer(map, "parameters") == train);
    assert_true(integer(map, "dense_parameters") == dense);
    assert_true(json_integer_value(json_array_get(json_object_get(map, "ranks"), 2)) == 30);
    json_decref(report);

    report = inspect_json(path, "tensor_train.intermediate.form=dense");
    assert_true(integer(report, "parameters") == 336226108);
    json_decref(report);

    assert_int_equal(inspect(path, NULL, NULL), TT_EXIT_DONE);
    assert_non_null(strstr(output, "336,226,108"));
    assert_non_null(strstr(output, "16 64"));
}

static void save_checkpoint(const char *folder)
{
    tt_device *device;
    tt_parameters parameters;
    tt_parameter_id id;
    tt_error error;
    const int64_t shape[] = {3, 5};
    expect_success(tt_device_create_cpu(1, &device, &error), &error);
    tt_parameters_init(&parameters, device);
    expect_success(
        tt_parameters_add(&parameters, "weight", TT_GROUP_DENSE, true, 2, shape, &id, &error),
        &error);
    expect_success(tt_parameters_allocate(&parameters, true, &error), &error);
    tt_checkpoint_layer layer = {
        "encoder", {.order = 2, .input_order = 1, .modes = {6, 7}, .ranks = {1, 2, 1}}};
    const tt_training_state training = {.step = 42,
                                        .validation_loss = NAN,
                                        .best_validation_loss = 1.5,
                                        .dense_parameters = 99,
                                        .recipe = (char *)"",
                                        .layers = &layer,
                                        .layer_count = 1};
    const tt_checkpoint_policy policy = {.keep = 3};
    expect_success(tt_checkpoint_save(folder, &parameters, &training, &policy, &error), &error);
    tt_parameters_free(&parameters);
    tt_device_destroy(&device);
}

static void test_checkpoint(void **state)
{
    (void)state;
    const char *folder = scratch_path("checkpoints");
    save_checkpoint(folder);
    json_t *report = inspect_json(folder, NULL);
    assert_true(integer(report, "step") == 42);
    assert_true(integer(report, "parameters") == 15);
    assert_true(integer(report, "dense_parameters") == 99);
    assert_true(integer(report, "parameter_bytes") == 60);
    assert_true(json_is_null(json_object_get(report, "validation_loss")));
    assert_true(json_real_value(json_object_get(report, "best_validation_loss")) == 1.5);
    const json_t *layer = json_array_get(json_object_get(report, "layers"), 0);
    assert_true(integer(layer, "dense_parameters") == 42);
    assert_true(integer(layer, "parameters") == 6 * 2 + 2 * 7 + 2);
    json_decref(report);

    const char *checkpoint = scratch_path("checkpoints/step_00000042");
    assert_int_equal(inspect(checkpoint, NULL, NULL), TT_EXIT_DONE);
    const char *model = scratch_path("checkpoints/step_00000042/model.safetensors");
    assert_int_equal(truncate(model, 20), 0);
    assert_int_equal(inspect(checkpoint, NULL, NULL), TT_EXIT_FAILED);
    assert_non_null(strstr(errors, model));
    assert_int_equal(inspect(folder, NULL, NULL), TT_EXIT_FAILED);
    assert_non_null(strstr(errors, "no manifest.json and no step_NNNNNNNN"));
}

static const char records[] =
    "{\"step\": 1, \"phase\": \"short\", \"phase_step\": 1, \"samples\": 4, \"tokens\": 100, "
    "\"loss\": 7.5, \"masked_lm_loss\": 7, \"skipped_steps\": 0, \"parameters\": 15, "
    "\"timing\": {\"tokens_per_s\": 100}}\n"
    "{\"step\": 2, \"phase\": \"short\", \"phase_step\": 2, \"samples\": 8, \"tokens\": 400, "
    "\"loss\": 6.5, \"masked_lm_loss\": 6, \"skipped_steps\": 0, \"parameters\": 15, "
    "\"validation_loss\": 6.25, \"validation_unigram_entropy\": 5, "
    "\"timing\": {\"tokens_per_s\": 300}}\n"
    "{\"step\": 3, \"phase\": \"long\", \"phase_step\": 1, \"samples\": 12, \"tokens\": 500, "
    "\"loss\": null, \"masked_lm_loss\": null, \"skipped_steps\": 1, \"parameters\": 15, "
    "\"timing\": {\"tokens_per_s\": 50}}\n"
    "{\"step\": 4, \"pha";

static void check_phases(const json_t *report)
{
    const json_t *phases = json_object_get(report, "phases");
    assert_int_equal(json_array_size(phases), 2);
    const json_t *phase = json_array_get(phases, 0);
    assert_string_equal(json_string_value(json_object_get(phase, "phase")), "short");
    assert_true(integer(phase, "steps") == 2);
    assert_true(json_real_value(json_object_get(phase, "loss_start")) == 7.5);
    assert_true(json_real_value(json_object_get(phase, "loss_end")) == 6.5);
    /* 100 tokens in one second, then 300 in another. */
    assert_true(json_real_value(json_object_get(phase, "tokens_per_s")) == 200);
    phase = json_array_get(phases, 1);
    assert_true(json_is_null(json_object_get(phase, "loss_end")));
    assert_true(json_real_value(json_object_get(phase, "tokens_per_s")) == 50);
    const json_t *validation = json_object_get(report, "validation");
    assert_int_equal(json_array_size(validation), 1);
    assert_true(json_real_value(json_object_get(json_array_get(validation, 0), "loss")) == 6.25);
}

/* A run that was killed while it wrote a line, before and after its first checkpoint. */
static void test_run(void **state)
{
    (void)state;
    const char *folder = scratch_path("run");
    const char *metrics = scratch_path("run/metrics.jsonl");
    assert_int_equal(mkdir(folder, 0777), 0);
    scratch_write(metrics, records, strlen(records));
    json_t *report = inspect_json(folder, NULL);
    assert_true(integer(report, "step") == 3);
    assert_true(integer(report, "skipped_steps") == 1);
    assert_true(integer(report, "parameters") == 15);
    assert_null(json_object_get(report, "dense_parameters"));
    check_phases(report);
    json_decref(report);

    save_checkpoint(scratch_path("run/checkpoints"));
    report = inspect_json(folder, NULL);
    assert_true(integer(report, "dense_parameters") == 99);
    assert_non_null(
        strstr(json_string_value(json_object_get(report, "checkpoint")), "/step_00000042"));
    check_phases(report);
    json_decref(report);

    assert_int_equal(inspect(folder, NULL, NULL), TT_EXIT_DONE);
    assert_non_null(strstr(output, "short"));
    scratch_write(metrics, "{}\n", 3);
    assert_int_equal(inspect(folder, NULL, NULL), TT_EXIT_FAILED);
    assert_non_null(strstr(errors, "metrics.jsonl: line 1: expected a record"));
    scratch_write(metrics, "", 0);
    assert_int_equal(inspect(folder, NULL, NULL), TT_EXIT_FAILED);
    assert_non_null(strstr(errors, "expected records of steps, found none"));
}

/* Exit status, and one line on stderr with `fragment`. */
static void refuse(const char *path, const char *second, int status, const char *fragment)
{
    assert_int_equal(inspect(path, second, NULL), status);
    assert_string_equal(output, "");
    if (strstr(errors, fragment) == NULL || strchr(errors, '\n') != errors + strlen(errors) - 1) {
        fail_msg("expected one line with \"%s\", found \"%s\"", fragment, errors);
    }
}

static void test_what_is_none(void **state)
{
    (void)state;
    refuse(NULL, NULL, TT_EXIT_USAGE, "expected PATH");
    refuse(scratch_path("absent"), NULL, TT_EXIT_FAILED, "absent: No such file or directory");
    const char *shard = scratch_path("cut.hdf5");
    scratch_write(shard, "\x89HDF\r\n\x1a\n", 8);
    refuse(shard, NULL, TT_EXIT_FAILED, "cut.hdf5");
    refuse(shard, "a=b", TT_EXIT_FAILED, "only a recipe takes KEY=VALUE");
    const char *tokenizer = scratch_path("broken.model");
    scratch_write(tokenizer, "abc", 3);
    refuse(tokenizer, NULL, TT_EXIT_FAILED, "broken.model");
    const char *without = scratch_path("without.yaml");
    scratch_write(without, recipe_text, sizeof recipe_text - 1);
    refuse(without, "data.tokenizer=absent.model", TT_EXIT_FAILED,
           "absent.model: No such file or directory; model.vocabulary_size=N shows sizes");
    const char *recipe = scratch_path("wrong.yaml");
    scratch_write(recipe, "model: {layer: 3}\n", 18);
    refuse(recipe, NULL, TT_EXIT_FAILED, "model.layer: unknown key; did you mean layers?");
}

static void test_keys(void **state)
{
    (void)state;
    assert_int_equal(inspect("--keys", NULL, NULL), TT_EXIT_DONE);
    assert_non_null(strstr(output, "\nmodel.hidden_size "));
    assert_non_null(strstr(output, "\ntensor_train.transform.ranks "));
    assert_non_null(strstr(output, "\nphases.N.learning_rate "));
    assert_non_null(strstr(output, "default 1e-12)\n"));
    assert_int_equal(inspect("--keys", "--json", NULL), TT_EXIT_USAGE);
    assert_non_null(strstr(errors, "--keys stands alone"));
}

static int teardown(void **state)
{
    free_captured();
    return scratch_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recipe), cmocka_unit_test(test_checkpoint),
        cmocka_unit_test(test_run),    cmocka_unit_test(test_what_is_none),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, scratch_setup, teardown);
}

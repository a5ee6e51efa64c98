/* Runs in which maps lose all their ranks go on, are checkpointed, and are resumed to the bit. */
#include "support/training.h"

#include <jansson.h>

/* Diagonals sink fast, and where the loss says nothing, to 0. */
static const char losing_recipe[] =
    "name: losing\n"
    "seed: 3\n"
    "output: run\n"
    "model: {preset: small, max_positions: 64}\n"
    "tensor_train: {form: tensor_train, rank: 8}\n"
    "data: {tokenizer: tokenizer.model, max_predictions: 8}\n"
    "rank: {compaction_interval: 4}\n"
    "stages:\n"
    "  - {kind: early, steps: 24, gamma: 1e-2, beta: 0}\n"
    "phases:\n"
    "  - {name: short, sequence_length: 32, steps: 14, global_batch: 8, learning_rate: 2e-3,\n"
    "     diagonal_learning_rate: 0.1, warmup: 0, decay: constant,\n"
    "     train: length32/train_*.hdf5, validation: length32/validation_*.hdf5}\n"
    "  - {name: long, sequence_length: 64, steps: 10, global_batch: 8, learning_rate: 1e-3,\n"
    "     diagonal_learning_rate: 0.1, warmup: 0, decay: constant,\n"
    "     train: length64/train_*.hdf5, validation: length64/validation_*.hdf5}\n"
    "checkpoint: {interval: 5, keep: 100}\n"
    "validation: {interval: 10}\n"
    "log: {interval: 1}\n";

static int set_up(void **state)
{
    if (training_setup(state) != 0) {
        return -1;
    }
    scratch_write(scratch_path("losing.yaml"), losing_recipe, strlen(losing_recipe));
    TRAIN(.recipe = "losing.yaml", .arguments = {"output=whole"});
    TRAIN(.ranks = 2, .recipe = "losing.yaml", .arguments = {"output=whole2"});
    return 0;
}

/* The lines about ranks after step `after`, one after the other; free with free(). */
static char *lines_about_ranks(const char *output, int after)
{
    char *text = scratch_read(metrics_path(output), NULL), *to = text;
    for (char *line = text, *next; *line; line = next) {
        next = strchr(line, '\n') + 1;
        json_t *record = json_loadb(line, (size_t)(next - line), 0, NULL);
        assert_non_null(record);
        if (is_about_ranks(line) && json_integer_value(json_object_get(record, "step")) > after) {
            memmove(to, line, (size_t)(next - line));
            to += next - line;
        }
        json_decref(record);
    }
    *to = '\0';
    return text;
}

/* The record of the last compaction, parsed. */
static json_t *last_ranks(const char *output)
{
    char *lines = lines_about_ranks(output, -1);
    size_t length = strlen(lines);
    assert_true(length > 1);
    lines[length - 1] = '\0';
    char *last = strrchr(lines, '\n');
    json_t *record = json_loads(last ? last + 1 : lines, 0, NULL);
    assert_non_null(record);
    free(lines);
    return record;
}

/* Maps of which nothing but a bias is left. */
static int removed_maps(const json_t *record)
{
    json_t *ranks = json_object_get(json_object_get(record, "compaction"), "ranks"), *list;
    const char *name;
    int count = 0;
    json_object_foreach(ranks, name, list)
    {
        count += json_integer_value(json_array_get(list, 1)) == 0;
    }
    return count;
}

static void test_layers_are_lost(void **state)
{
    (void)state;
    static const char half[] = "bert.encoder.layer.0.attention.output.dense";
    char *lines = lines_about_ranks("whole", -1);
    assert_non_null(strstr(lines, "{\"step\": 0, \"compaction\": {\"parameters\": "));
    free(lines);
    json_t *record = last_ranks("whole");
    const json_t *ranks = json_object_get(json_object_get(record, "compaction"), "ranks");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(ranks, half), 3)), 0);
    int removed = removed_maps(record);
    assert_true(removed >= 4 && removed < (int)json_object_size(ranks));
    assert_int_equal(metrics_lines("whole"), TRAINING_STEPS);
    /* What the metrics say is what the model has: the next run begins with it. */
    assert_true(metric("whole", TRAINING_STEPS, "parameters") >=
                (double)json_integer_value(
                    json_object_get(json_object_get(record, "compaction"), "parameters")));
    json_decref(record);
}

/* Both weights and moments of the last checkpoint. */
static void expect_same_end(const char *output, const char *expected)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (int i = 0; i < 2; i++) {
        char found[200], right[200];
        size_t found_length, right_length;
        snprintf(found, sizeof found, "%s/checkpoints/step_00000024/%s", output, files[i]);
        snprintf(right, sizeof right, "%s/checkpoints/step_00000024/%s", expected, files[i]);
        char *a = scratch_read(scratch_path(found), &found_length);
        char *b = scratch_read(scratch_path(right), &right_length);
        assert_int_equal(found_length, right_length);
        assert_memory_equal(a, b, found_length);
        free(a);
        free(b);
    }
}

static void check_resumed(int ranks, const char *whole, int step)
{
    char output[64], argument[100], from[200];
    snprintf(output, sizeof output, "%s_from_%d", whole, step);
    snprintf(argument, sizeof argument, "output=%s", output);
    snprintf(from, sizeof from, "--resume-from=%s/checkpoints/step_%08d", whole, step);
    TRAIN(.ranks = ranks, .recipe = "losing.yaml", .arguments = {argument, from});
    char *found = metrics_from(output, 1), *right = metrics_from(whole, step + 1);
    assert_string_equal(found, right);
    free(found);
    free(right);
    found = lines_about_ranks(output, step);
    right = lines_about_ranks(whole, step);
    assert_string_equal(found, right);
    free(found);
    free(right);
    expect_same_end(output, whole);
}

/* From before the first loss, and from between two compactions with layers gone. */
static void test_resumed(void **state)
{
    (void)state;
    check_resumed(0, "whole", 10);
    check_resumed(0, "whole", 15);
    check_resumed(0, "whole", 20);
    check_resumed(2, "whole2", 15);
}

/* A run that is stopped where nothing is due writes what it has, uncut. */
static void test_stopped(void **state)
{
    (void)state;
    training run = {.recipe = "losing.yaml", .arguments = {"output=stopped"}};
    program started = start_training(&run);
    int status;
    if (wait_for_lines(&started, "stopped", 13, &status)) {
        kill(started.pid, SIGTERM);
        training_end end = end_training(&started, TRAINING_SECONDS);
        assert_int_equal(end.status, 0);
        free(end.log);
    }
    TRAIN(.recipe = "losing.yaml", .arguments = {"output=stopped", "--resume"});
    expect_same_metrics("stopped", "whole");
    expect_same_end("stopped", "whole");
}

/* Another run takes the weights, with the ranks that are left. */
static void test_initialized(void **state)
{
    (void)state;
    json_t *record = last_ranks("whole");
    TRAIN(.arguments = {"output=after", "initialize=whole/checkpoints/step_00000024"});
    assert_true(metric("after", 1, "parameters") ==
                (double)json_integer_value(
                    json_object_get(json_object_get(record, "compaction"), "parameters")));
    json_decref(record);
    training_end end =
        run_training(&(training){.arguments = {"output=refused", "tensor_train.rank=3",
                                               "initialize=whole/checkpoints/step_00000024"}});
    expect_training_failure(&end, "whole/checkpoints/step_00000024: bert.encoder.layer.");
    expect_in_log(end.log, "as the configuration says");
    free(end.log);
}

/* Every map may go. */
static void test_all_layers_lost(void **state)
{
    (void)state;
    TRAIN(.recipe = "losing.yaml", .arguments = {"output=bare", "stages.0.gamma=1000",
                                                 "phases.0.diagonal_learning_rate=0.5"});
    json_t *record = last_ranks("bare");
    assert_int_equal(removed_maps(record), 14);
    json_decref(record);
    TRAIN(.recipe = "losing.yaml", .arguments = {"output=bare_from_10", "stages.0.gamma=1000",
                                                 "phases.0.diagonal_learning_rate=0.5",
                                                 "--resume-from=bare/checkpoints/step_00000010"});
    expect_same_end("bare_from_10", "bare");
}

static void test_nothing_to_compact(void **state)
{
    (void)state;
    training_end end = run_training(&(training){
        .arguments = {"output=dense", "tensor_train.form=dense", "rank.compaction_interval=5"}});
    expect_training_failure(&end, "rank.compaction_interval: expected a recipe with tensor-train");
    free(end.log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_are_lost), cmocka_unit_test(test_resumed),
        cmocka_unit_test(test_stopped),         cmocka_unit_test(test_initialized),
        cmocka_unit_test(test_all_layers_lost), cmocka_unit_test(test_nothing_to_compact),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}

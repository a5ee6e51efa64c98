/* Runs of a task: the made-up entailment, learnt by small models, dense and of tensor trains;
 * resumed, on two ranks, begun from another run's encoder; evaluated, put into a table; refused. */
#include "support/training.h"

#include <math.h>

enum { STEPS = 300 };

static const char task_recipe[] =
    "name: task\n"
    "seed: 3\n"
    "output: run\n"
    "model: {layers: 1, hidden_size: 64, heads: 4, intermediate_size: 128, max_positions: 32,\n"
    "        dropout: 0, attention_dropout: 0, initializer_range: 0.2}\n"
    "task: {kind: mnli}\n"
    "data: {tokenizer: data/vocab.txt, train: data/train.tsv, validation: data/validation.tsv}\n"
    "phases:\n"
    "  - {name: task, sequence_length: 24, steps: 300, global_batch: 32, learning_rate: 2e-3,\n"
    "     warmup: 0.1}\n"
    "checkpoint: {interval: 50, keep: 100}\n"
    "validation: {interval: 100}\n"
    "log: {interval: 1}\n";

#define FINETUNE(...) train(&(training){.command = "finetune", .recipe = "task.yaml", __VA_ARGS__})

static int set_up(void **state)
{
    if (scripts_setup(state) != 0) {
        return -1;
    }
    RUN_COMMAND("prepare", "entailment", "--rows", "4000", "--validation-rows", "500", "--output",
                "data");
    scratch_write(scratch_path("task.yaml"), task_recipe, strlen(task_recipe));
    FINETUNE(.arguments = {"output=whole"});
    return 0;
}

/* What a command printed to stdout; free with free(). */
static char *output_of(const char *const *arguments)
{
    program_call call = {.arguments = {TTRAIN_PROGRAM}};
    for (int i = 0; arguments[i]; i++) {
        call.arguments[i + 1] = arguments[i];
    }
    program started = program_start(&call);
    if (program_wait(&started, TRAINING_SECONDS) != 0) {
        fail_msg("%s", end_of(program_log(&started)));
    }
    return scratch_read(started.output, NULL);
}

#define OUTPUT_OF(...) output_of((const char *const[]){__VA_ARGS__, NULL})

static double number_in(const char *text, const char *key)
{
    char name[64];
    snprintf(name, sizeof name, "\"%s\": ", key);
    const char *at = strstr(text, name);
    if (!at) {
        fail_msg("no %s in:\n%s", key, end_of(text));
    }
    return strtod(at + strlen(name), NULL);
}

/* A task has files, where pre-training has shards. */
static void test_what_it_says(void **state)
{
    (void)state;
    training_end end = run_training(
        &(training){.command = "finetune",
                    .recipe = "task.yaml",
                    .arguments = {"output=said", "phases.0.steps=2", "validation.interval=0"}});
    assert_int_equal(end.status, 0);
    if (strstr(end.log, "4000 sequences in 1 file (") == NULL) {
        fail_msg("no number of files in:\n%s", end_of(end.log));
    }
    free(end.log);
}

/* A third of all rows have each class; whoever does not compare the sentences stays there. */
static void test_it_learns(void **state)
{
    (void)state;
    assert_int_equal(metrics_lines("whole"), STEPS);
    assert_true(fabs(metric("whole", 1, "loss") - log(3)) < 0.6);
    assert_true(metric("whole", STEPS, "validation_accuracy") > 0.55);
    assert_true(metric("whole", STEPS, "validation_loss") < 0.8);
    assert_true(metric("whole", STEPS, "accuracy") > 0.5);
    char *text = metrics_from("whole", 1);
    assert_null(strstr(text, "masked_lm"));
    assert_null(strstr(text, "next_sentence"));
    free(text);
}

static void test_tensor_trains_learn(void **state)
{
    (void)state;
    FINETUNE(.arguments = {"output=trains", "tensor_train.form=tensor_train",
                           "tensor_train.order=4", "tensor_train.rank=16",
                           "tensor_train.initial_deviation=0.2",
                           "tensor_train.embedding.form=tensor_train_matrix",
                           "tensor_train.embedding.order=2", "tensor_train.embedding.rank=16"});
    assert_true(metric("trains", STEPS, "validation_accuracy") > 0.5);
    char *text = OUTPUT_OF("table", "whole", "trains", "--json");
    assert_non_null(strstr(text, "\"layer.0.attention.self.query\""));
    assert_true(number_in(text, "smaller") == 1.0);
    assert_true(number_in(text, "validation_accuracy") ==
                round(metric("whole", STEPS, "validation_accuracy") * 1e4) / 1e4);
    const char *second = strstr(text, "\"MB\"") + 4;
    assert_true(number_in(second, "parameters") == metric("trains", STEPS, "parameters"));
    free(text);
}

/* What is pruned does not count, whether it has been cut out yet or not. */
static void test_the_table_counts_what_is_left(void **state)
{
    (void)state;
    static const char stages[] = "stages:\n"
                                 "  - {kind: late, steps: 60, target_loss: 5, target_ratio: 0.5,\n"
                                 "     w2: 20}\n"
                                 "tensor_train: {form: tensor_train, order: 4, rank: 16}\n";
    char recipe[sizeof task_recipe + sizeof stages];
    snprintf(recipe, sizeof recipe, "%s%s", task_recipe, stages);
    scratch_write(scratch_path("stages.yaml"), recipe, strlen(recipe));
    train(&(training){.command = "finetune",
                      .recipe = "stages.yaml",
                      .arguments = {"output=stages", "phases.0.steps=60", "phases.0.warmup=0",
                                    "phases.0.diagonal_learning_rate=4e-2",
                                    "phases.0.decay=constant"}});
    double whole = metric("stages", 1, "parameters"), size = metric("stages", 50, "size");
    assert_true(metric("stages", 50, "size_ratio") < 0.9);
    assert_true(metric("stages", 50, "parameters") == whole);
    char *text = OUTPUT_OF("table", "stages/checkpoints/step_00000050", "--json");
    double left = number_in(text, "tensorized_parameters");
    assert_true(left >= size && left < size + 400); /* and the diagonals' own entries */
    assert_true(number_in(text, "parameters") < whole);
    free(text);
    text = OUTPUT_OF("table", "stages", "--json"); /* at the end they are cut out */
    left = number_in(text, "tensorized_parameters");
    size = metric("stages", 60, "size");
    assert_true(left >= size && left < size + 400);
    assert_true(number_in(text, "asked") == 0.5);
    assert_true(fabs(number_in(text, "of_stage") - metric("stages", 60, "size_ratio")) < 1e-3);
    free(text);
}

static void test_resuming_is_exact(void **state)
{
    (void)state;
    FINETUNE(.arguments = {"output=resumed", "--resume-from=whole/checkpoints/step_00000150"});
    char *found = metrics_from("resumed", 1), *expected = metrics_from("whole", 151);
    assert_string_equal(found, expected);
    free(found);
    free(expected);
}

/* The same samples, summed in another order. */
static void test_two_ranks(void **state)
{
    (void)state;
    FINETUNE(.ranks = 2, .arguments = {"output=two", "--resume-from=whole/checkpoints/"
                                                     "step_00000250"});
    for (int line = 1; line <= 5; line++) {
        double one = metric("whole", 250 + line, "loss"), two = metric("two", line, "loss");
        assert_true(fabs(one - two) < 1e-3);
    }
    assert_true(fabs(metric("two", 50, "validation_accuracy") -
                     metric("whole", STEPS, "validation_accuracy")) < 0.03);
}

/* The table of who was taken for whom holds every row once, the right ones on its diagonal. */
static void test_evaluation(void **state)
{
    (void)state;
    char *text = OUTPUT_OF("evaluate", "task.yaml", "output=whole", "--json");
    assert_true(number_in(text, "accuracy") == metric("whole", STEPS, "validation_accuracy"));
    assert_true(fabs(number_in(text, "loss") - metric("whole", STEPS, "validation_loss")) < 1e-6);
    assert_true(number_in(text, "rows") == 500);
    const char *at = strstr(text, "\"confusion\"");
    assert_non_null(at);
    double sum = 0, right = 0;
    for (int i = 0; i < 9; i++) {
        at += strcspn(at, "0123456789");
        char *end;
        double count = strtod(at, &end);
        sum += count;
        right += i % 4 == 0 ? count : 0;
        at = end;
    }
    assert_true(sum == 500);
    assert_true(fabs(right / sum - number_in(text, "accuracy")) < 1e-9);
    free(text);
    text = OUTPUT_OF("evaluate", "task.yaml", "--on", "train", "--json", "--checkpoint",
                     "whole/checkpoints/step_00000100");
    assert_true(number_in(text, "rows") == 4000);
    free(text);
}

/* Another run's encoder, with a head for its task. */
static void test_initial_weights(void **state)
{
    (void)state;
    FINETUNE(.arguments = {"output=second", "initialize=whole/checkpoints", "seed=4",
                           "phases.0.steps=10", "phases.0.warmup=1"});
    assert_true(metric("second", 1, "loss") < 0.8);
    assert_true(metric("second", 10, "validation_accuracy") > 0.5);
}

static void refuse(const char *command, const char *argument, const char *fragment)
{
    training run = {.command = command, .recipe = "task.yaml"};
    run.arguments[0] = "output=refused";
    run.arguments[1] = argument;
    training_end end = run_training(&run);
    assert_int_not_equal(end.status, 0);
    char start[64];
    snprintf(start, sizeof start, "ttrain %s: ", command ? command : "pretrain");
    assert_int_equal(count_lines(end.log, start), 1);
    expect_in_log(end.log, fragment);
    free(end.log);
}

static void test_bad_input(void **state)
{
    (void)state;
    scratch_write(scratch_path("bad.tsv"), "sentence1\tsentence2\tgold_label\na\tb\n", 36);
    refuse(NULL, "seed=5", "task.kind: expected none, found a task");
    refuse("finetune", "task.kind=none", "task.kind: expected a task, found none");
    refuse("finetune", "data.tokenizer=", "data.tokenizer: expected a tokenizer");
    refuse("finetune", "data.tokenizer=data/train.tsv", "expected a SentencePiece model or a");
    refuse("finetune", "data.train=missing.tsv", "missing.tsv");
    refuse("finetune", "data.train=bad.tsv", "bad.tsv: line 2: expected 3 columns");
    refuse("finetune", "data.validation=data/vocab.txt", "expected one column named sentence1");
    refuse("finetune", "model.segment_types=1", "model.segment_types: expected at least 2");
    refuse("finetune", "model.vocabulary_size=10", "model.vocabulary_size: expected at least");
    refuse("finetune", "initialize=nowhere", "nowhere");
    refuse("evaluate", "task.kind=none", "task.kind: expected a task to evaluate");
    refuse("evaluate", "seed=5", "expected a checkpoint to evaluate, found none");
    assert_true(access(scratch_path("refused/metrics.jsonl"), F_OK) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_learns),
        cmocka_unit_test(test_what_it_says),
        cmocka_unit_test(test_tensor_trains_learn),
        cmocka_unit_test(test_the_table_counts_what_is_left),
        cmocka_unit_test(test_resuming_is_exact),
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_initial_weights),
        cmocka_unit_test(test_bad_input),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}

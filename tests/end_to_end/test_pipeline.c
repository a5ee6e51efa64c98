/* From a corpus to a trained model with the program alone, as a user would do it; and NVIDIA's own
 * shards where they are at hand. */
#include "support/training.h"

#include <jansson.h>
#include <math.h>

/* What `ttrain` with these arguments wrote to stdout, as JSON; release with json_decref. */
static json_t *json_of(const char *const *arguments)
{
    program_call call = {.arguments = {TTRAIN_PROGRAM}};
    for (int i = 0; arguments[i]; i++) {
        call.arguments[i + 1] = arguments[i];
    }
    program started = program_start(&call);
    int status = program_wait(&started, TRAINING_SECONDS);
    char *log = program_log(&started);
    if (status != 0) {
        fail_msg("status %d: %s", status, end_of(log));
    }
    free(log);
    json_error_t error;
    json_t *result = json_load_file(started.output, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(result)) {
        fail_msg("no JSON object: %s", error.text);
    }
    return result;
}

#define JSON_OF(...) json_of((const char *const[]){__VA_ARGS__, NULL})

static int64_t integer_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) {
        fail_msg("no integer %s", key);
    }
    return json_integer_value(value);
}

/* Mean loss of the lines from `first` to `last`. */
static double mean_loss(const char *output, int first, int last)
{
    double sum = 0.0;
    for (int line = first; line <= last; line++) {
        sum += metric(output, line, "masked_lm_loss");
    }
    return sum / (last - first + 1);
}

static void inspect_results(void)
{
    json_t *shard = JSON_OF("inspect", "--json", "pipeline64/train_00000.hdf5");
    assert_int_equal(integer_of(shard, "sequence_length"), 64);
    assert_int_equal(integer_of(shard, "vocabulary_size"), 500);
    assert_true(integer_of(shard, "rows") > 10);
    json_decref(shard);

    json_t *tokenizer = JSON_OF("inspect", "--json", "pipeline.model");
    assert_int_equal(integer_of(tokenizer, "vocabulary_size"), 500);
    json_decref(tokenizer);

    json_t *checkpoint = JSON_OF("inspect", "--json", "pipeline/checkpoints/step_00000100");
    int64_t parameters = integer_of(checkpoint, "parameters");
    assert_true(parameters == (int64_t)metric("pipeline", 100, "parameters"));
    assert_true(integer_of(checkpoint, "dense_parameters") > parameters);
    assert_int_equal(integer_of(checkpoint, "step"), 100);
    json_decref(checkpoint);

    /* The resolved recipe that the run left is a recipe, and describes the same model. */
    json_t *recipe = JSON_OF("inspect", "--json", "pipeline/recipe.yaml");
    assert_int_equal(integer_of(recipe, "parameters"), parameters);
    json_decref(recipe);
}

static void test_corpus_to_model(void **state)
{
    (void)state;
    static const char recipe[] =
        "name: pipeline\n"
        "output: pipeline\n"
        "model: {preset: small, max_positions: 128, dropout: 0, attention_dropout: 0}\n"
        "tensor_train: {form: tensor_train, rank: 12}\n"
        "data: {tokenizer: pipeline.model}\n"
        "phases:\n"
        "  - {sequence_length: 64, steps: 70, global_batch: 16, learning_rate: 5e-3,\n"
        "     train: pipeline64/train_*.hdf5, validation: pipeline64/validation_*.hdf5,\n"
        "     max_predictions: 10}\n"
        "  - {sequence_length: 128, steps: 30, global_batch: 8, micro_batch: 2,\n"
        "     learning_rate: 2e-3, train: pipeline128/train_*.hdf5,\n"
        "     validation: pipeline128/validation_*.hdf5}\n"
        "log: {interval: 1}\n";
    RUN_COMMAND("prepare", "synthetic", "--documents", "200", "--output", "pipeline.txt");
    RUN_COMMAND("prepare", "tokenizer", "--input", "pipeline.txt", "--vocab-size", "500",
                "--threads", "1", "--output", "pipeline.model");
    RUN_COMMAND("prepare", "text", "--input", "pipeline.txt", "--tokenizer", "pipeline.model",
                "--sequence-length", "64", "--validation-fraction", "0.1", "--output",
                "pipeline64");
    RUN_COMMAND("prepare", "text", "--input", "pipeline.txt", "--tokenizer", "pipeline.model",
                "--sequence-length", "128", "--validation-fraction", "0.1", "--output",
                "pipeline128");
    scratch_write(scratch_path("pipeline.yaml"), recipe, sizeof recipe - 1);
    TRAIN(.ranks = 2, .recipe = "pipeline.yaml");

    assert_int_equal(metrics_lines("pipeline"), 100);
    /* Fresh weights guess uniformly; then both losses are apart and the masked one falls. */
    assert_true(fabs(metric("pipeline", 1, "masked_lm_loss") - log(500)) < 0.1 * log(500));
    assert_true(fabs(metric("pipeline", 1, "next_sentence_loss") - log(2)) < 0.1);
    assert_true(mean_loss("pipeline", 61, 70) < mean_loss("pipeline", 1, 10) - 0.5);
    assert_true(mean_loss("pipeline", 91, 100) < mean_loss("pipeline", 1, 10) - 0.5);
    assert_true(metric("pipeline", 100, "validation_masked_lm_loss") <
                metric("pipeline", 1, "masked_lm_loss") - 0.5);
    assert_true(metric("pipeline", 100, "validation_unigram_entropy") < log(500));
    inspect_results();
}

/* Phase 1 and phase 2 as NVIDIA's scripts have them, on shards of NVIDIA's layout: ids only, no
 * tokenizer, the vocabulary's size from the recipe. */
static void test_nvidia_shards(void **state)
{
    (void)state;
    char recipe[2048];
    const char *shared = getenv("TTRAIN_SHARED_DIR");
    char folder[512];
    snprintf(folder, sizeof folder, "%s/data/nvidia_shards",
             shared ? shared : TTRAIN_SOURCE_DIR "/../shared");
    if (access(folder, R_OK) != 0) {
        skip();
    }
    snprintf(recipe, sizeof recipe,
             "output: nvidia\n"
             "model: {layers: 1, hidden_size: 32, heads: 2, intermediate_size: 64,\n"
             "        vocabulary_size: 30522, max_positions: 512}\n"
             "optimizer: {kind: lamb}\n"
             "phases:\n"
             "  - {sequence_length: 128, steps: 12, global_batch: 8, learning_rate: 5e-2,\n"
             "     decay: polynomial, train: %s/*_seq128.hdf5, max_predictions: 20}\n"
             "  - {sequence_length: 512, steps: 6, global_batch: 2, micro_batch: 1,\n"
             "     learning_rate: 2e-2, decay: polynomial, train: %s/*_seq512.hdf5,\n"
             "     max_predictions: 80}\n"
             "log: {interval: 1}\n",
             folder, folder);
    scratch_write(scratch_path("nvidia.yaml"), recipe, strlen(recipe));
    TRAIN(.ranks = 2, .recipe = "nvidia.yaml");
    assert_int_equal(metrics_lines("nvidia"), 18);
    assert_true(fabs(metric("nvidia", 1, "masked_lm_loss") - log(30522)) < 0.5);
    assert_true(mean_loss("nvidia", 16, 18) < mean_loss("nvidia", 1, 3) - 0.3);
    assert_true(metric("nvidia", 18, "skipped_steps") == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corpus_to_model),
        cmocka_unit_test(test_nvidia_shards),
    };
    return cmocka_run_group_tests(tests, scripts_setup, scratch_teardown);
}

/* Bad input, on one rank and on two: every rank ends with a non-zero status within seconds, one
 * line in all says what is wrong, and nothing is written. */
#include "support/shard_files.h"
#include "support/training.h"

/* For shards in NVIDIA's layout, made by raw_write: ids only, no tokenizer. */
static const char raw_recipe[] =
    "output: run\n"
    "model: {preset: small, vocabulary_size: 50, max_positions: 64}\n"
    "data: {train: raw/good.hdf5, max_predictions: 3}\n"
    "phases:\n"
    "  - {sequence_length: 12, steps: 2, global_batch: 4, learning_rate: 1e-3}\n";

static int set_up(void **state)
{
    if (training_setup(state) != 0) {
        return -1;
    }
    strcpy(test_folder, scratch_path("raw"));
    assert_int_equal(mkdir(test_folder, 0777), 0);
    scratch_write(scratch_path("raw.yaml"), raw_recipe, strlen(raw_recipe));
    raw_shard raw = raw_valid();
    raw_write(&raw, "good.hdf5");
    return 0;
}

static void expect_rank_failed(int rank)
{
    char name[32];
    snprintf(name, sizeof name, "status.%d", rank);
    char *text = scratch_read(scratch_path(name), NULL);
    if (strtol(text, NULL, 10) == 0) {
        fail_msg("rank %d ended with status %s", rank, text);
    }
    free(text);
    unlink(scratch_path(name));
}

static void expect_nothing_written(const char *folder)
{
    char name[64];
    snprintf(name, sizeof name, "%s/metrics.jsonl", folder);
    assert_int_not_equal(access(scratch_path(name), F_OK), 0);
    snprintf(name, sizeof name, "%s/recipe.yaml", folder);
    assert_int_not_equal(access(scratch_path(name), F_OK), 0);
}

static void expect_failure_on(int ranks, const char *recipe, const char *const *arguments,
                              const char *fragment)
{
    training run = {.ranks = ranks,
                    .recipe = recipe,
                    .wrapper = "note_status",
                    /* Each rank is to end by itself; mpirun's own status says nothing then. */
                    .mpirun_arguments = {"--mca", "orte_abort_on_non_zero_status", "0"}};
    for (int i = 0; arguments[i]; i++) {
        run.arguments[i] = arguments[i];
    }
    program started = start_training(&run);
    training_end end = end_training(&started, FAILURE_SECONDS);
    if (ranks == 0) {
        assert_int_not_equal(end.status, 0);
    }
    expect_one_line(end.log, fragment);
    for (int rank = 0; rank < ranks; rank++) {
        expect_rank_failed(rank);
    }
    free(end.log);
}

static void expect_refused(const char *recipe, const char *const *arguments, const char *fragment)
{
    expect_failure_on(0, recipe, arguments, fragment);
    expect_failure_on(2, recipe, arguments, fragment);
    expect_nothing_written("run");
}

#define REFUSED(RECIPE, FRAGMENT, ...)                                                             \
    expect_refused(RECIPE, (const char *const[]){__VA_ARGS__, NULL}, FRAGMENT)

/* --- shards --- */

static void test_missing_shards(void **state)
{
    (void)state;
    REFUSED("recipe.yaml",
            "phases.0.train: expected shards that match length32/absent.hdf5, found none",
            "phases.0.train=length32/absent.hdf5");
    REFUSED("recipe.yaml", "phases.0.train: expected shards that match nowhere/*.hdf5, found none",
            "phases.0.train=[length32/train_00000.hdf5, nowhere/*.hdf5]");
    REFUSED("recipe.yaml", "phases.0.validation: expected shards that match nowhere/*, found none",
            "phases.0.validation=nowhere/*");
    /* The second phase's are missed before the first one starts. */
    REFUSED("recipe.yaml", "phases.1.train: expected shards that match nowhere/*, found none",
            "phases.1.train=nowhere/*");
}

static void test_unusable_shards(void **state)
{
    (void)state;
    REFUSED("recipe.yaml", "length64/train_00000.hdf5: ", "phases.0.train=length64/train_*.hdf5");
    REFUSED("recipe.yaml",
            "length32/validation_00000.hdf5: ", "phases.1.validation=length32/validation_*.hdf5");
    scratch_write(scratch_path("raw/text.hdf5"), "not HDF5 at all\n", 16);
    REFUSED("raw.yaml", "raw/text.hdf5", "data.train=raw/text.hdf5");
    scratch_write(scratch_path("raw/zero.hdf5"), "", 0);
    REFUSED("raw.yaml", "raw/zero.hdf5", "data.train=raw/zero.hdf5");
    REFUSED("raw.yaml", "raw/cut.hdf5", "data.train=[raw/good.hdf5, raw/cut.hdf5]");
}

/* A good shard cut short, and others that are wrong in one way each. */
static void write_bad_shards(void)
{
    size_t length;
    char *bytes = scratch_read(scratch_path("raw/good.hdf5"), &length);
    scratch_write(scratch_path("raw/cut.hdf5"), bytes, length - 700);
    free(bytes);
    raw_shard raw = raw_valid();
    for (int i = 0; i < RAW_DATASETS; i++) {
        raw.sets[i].size[0] = 0;
    }
    raw_write(&raw, "empty.hdf5");
    raw = raw_valid();
    raw.sets[IDS].rank = 1;
    raw_write(&raw, "rank.hdf5");
    raw = raw_valid();
    raw.sets[MASK].size[1] = RAW_LENGTH - 1;
    raw_write(&raw, "length.hdf5");
    raw = raw_valid();
    raw.sets[SEGMENTS].type = H5T_IEEE_F32LE;
    raw_write(&raw, "type.hdf5");
    raw = raw_valid();
    raw.sets[LABELS].absent = true;
    raw_write(&raw, "absent.hdf5");
    raw = raw_valid();
    raw.sets[IDS].values[2 * RAW_LENGTH + 4] = 50;
    raw_write(&raw, "id.hdf5");
    raw = raw_valid();
    raw.sets[MASKED_IDS].values[RAW_ROOM] = 99;
    raw_write(&raw, "masked_id.hdf5");
}

static void test_malformed_shards(void **state)
{
    (void)state;
    REFUSED("raw.yaml", "raw/empty.hdf5: ", "data.train=raw/empty.hdf5");
    REFUSED("raw.yaml", "raw/empty.hdf5: ", "data.train=[raw/good.hdf5, raw/empty.hdf5]");
    REFUSED("raw.yaml", "raw/rank.hdf5: input_ids", "data.train=raw/rank.hdf5");
    REFUSED("raw.yaml", "raw/length.hdf5: input_mask", "data.train=raw/length.hdf5");
    REFUSED("raw.yaml", "raw/type.hdf5: segment_ids", "data.train=raw/type.hdf5");
    REFUSED("raw.yaml", "raw/absent.hdf5: next_sentence_labels", "data.train=raw/absent.hdf5");
}

/* Values are read while training: the first step is refused on all ranks. */
static void test_bad_values_in_shards(void **state)
{
    (void)state;
    for (int ranks = 0; ranks <= 2; ranks += 2) {
        const char *const id[] = {"data.train=raw/id.hdf5", "output=bad_values", NULL};
        const char *const masked[] = {"data.train=raw/masked_id.hdf5", "output=bad_values", NULL};
        scratch_remove(scratch_path("bad_values"));
        expect_failure_on(ranks, "raw.yaml", id, "raw/id.hdf5: input_ids");
        expect_failure_on(ranks, "raw.yaml", masked, "raw/masked_id.hdf5: masked_lm_ids");
    }
}

static void test_other_tokenizer(void **state)
{
    (void)state;
    RUN_COMMAND("prepare", "tokenizer", "--input", "corpus.txt", "--vocab-size", "300",
                "--lower-case", "--threads", "1", "--output", "other.model");
    REFUSED("recipe.yaml", "tokenizer", "data.tokenizer=other.model");
    /* More pieces than the model has rows. */
    REFUSED("recipe.yaml", "model.vocabulary_size: expected at least 300",
            "model.vocabulary_size=299");
    REFUSED("raw.yaml", "model.vocabulary_size: expected a number", "model.vocabulary_size=0");
}

static void test_tokenizer_that_is_none(void **state)
{
    (void)state;
    REFUSED("recipe.yaml", "corpus.txt", "data.tokenizer=corpus.txt");
    REFUSED("recipe.yaml", "absent.model", "data.tokenizer=absent.model");
    REFUSED("recipe.yaml", "length32", "data.tokenizer=length32");
}

/* --- ranks and batches --- */

static void expect_refused_on(int ranks, const char *recipe, const char *argument,
                              const char *fragment)
{
    const char *const arguments[] = {argument, NULL};
    expect_failure_on(ranks, recipe, arguments, fragment);
    expect_nothing_written("run");
}

static void test_ranks_and_batches(void **state)
{
    (void)state;
    expect_refused_on(2, "recipe.yaml", "phases.0.global_batch=9",
                      "phases.0.global_batch: expected a multiple of the 2 ranks, found 9");
    expect_refused_on(2, "recipe.yaml", "phases.1.global_batch=1",
                      "phases.1.global_batch: expected a multiple of the 2 ranks, found 1");
    raw_shard raw = raw_valid();
    for (int i = 0; i < RAW_DATASETS; i++) {
        raw.sets[i].size[0] = 1;
    }
    raw_write(&raw, "one.hdf5");
    expect_refused_on(
        2, "raw.yaml", "data.train=raw/one.hdf5",
        "raw/one.hdf5: 1 rows in 1 shards, expected at least one for each of 2 ranks");
}

/* --- recipes --- */

static void test_recipes(void **state)
{
    (void)state;
    REFUSED("absent.yaml", "absent.yaml", "output=run");
    REFUSED("corpus.txt", "corpus.txt", "output=run");
    REFUSED("recipe.yaml", "model.hiden_size", "model.hiden_size=64");
    REFUSED("recipe.yaml", "phases.0.steps", "phases.0.steps=many");
    REFUSED("recipe.yaml", "phases.0.steps", "phases.0.steps=0");
    REFUSED("recipe.yaml", "phases.0.steps", "phases.0.steps=1.5");
    REFUSED("recipe.yaml", "phases.0.learning_rate", "phases.0.learning_rate=-1");
    REFUSED("recipe.yaml", "model.heads", "model.heads=7");
    REFUSED("recipe.yaml",
            "phases.1.sequence_length: expected at most model.max_positions 32, found 64",
            "model.max_positions=32");
    REFUSED("recipe.yaml",
            "tensor_train.attention.input_modes: expected mode sizes whose product is 64 "
            "(model.hidden_size), found a product of 80",
            "tensor_train.attention.input_modes=[4, 4, 5]");
    REFUSED("recipe.yaml", "tensor_train.attention.ranks.0: expected at most 4",
            "tensor_train.attention.input_modes=[4, 4, 4]",
            "tensor_train.attention.output_modes=[4, 4, 4]",
            "tensor_train.attention.ranks=[5, 8, 8, 8, 4]");
    REFUSED("recipe.yaml", "device: cuda: ", "device=cuda");
}

static void test_recipe_texts(void **state)
{
    (void)state;
    static const char unknown[] = "model: {preset: small, colour: red}\n";
    static const char ill_typed[] = "model: {preset: small, layers: [1, 2]}\n";
    static const char twice[] = "seed: 1\nseed: 2\nmodel: {preset: small}\n";
    scratch_write(scratch_path("unknown.yaml"), unknown, sizeof unknown - 1);
    scratch_write(scratch_path("ill_typed.yaml"), ill_typed, sizeof ill_typed - 1);
    scratch_write(scratch_path("twice.yaml"), twice, sizeof twice - 1);
    REFUSED("unknown.yaml", "model.colour", "output=run");
    REFUSED("ill_typed.yaml", "model.layers", "output=run");
    REFUSED("twice.yaml", "seed", "output=run");
}

/* --- output --- */

static void test_folder_of_another_run(void **state)
{
    (void)state;
    TRAIN(.arguments = {"output=used", "phases.0.steps=2", "phases.1.steps=2"});
    char *before = metrics_from("used", 1);
    const char *const arguments[] = {"output=used", NULL};
    expect_failure_on(0, "recipe.yaml", arguments, "output: used holds an earlier run");
    expect_failure_on(2, "recipe.yaml", arguments, "output: used holds an earlier run");
    char *after = metrics_from("used", 1);
    assert_string_equal(after, before);
    free(before);
    free(after);
    /* Checkpoints alone are a run, too. */
    assert_int_equal(unlink(metrics_path("used")), 0);
    expect_failure_on(0, "recipe.yaml", arguments, "output: used holds an earlier run");
    assert_true(has_checkpoint("used", 4));
}

static void test_spare_words(void **state)
{
    (void)state;
    const training large = {.arguments = {"model.vocabulary_size=1000", "--check"}};
    training_end end = run_training(&large);
    assert_int_equal(end.status, 0);
    assert_non_null(strstr(end.log, "is 1000, but the tokenizer has 300: 700 word embeddings"));
    free(end.log);
}

/* A check looks at the first weights too, and writes nothing. */
static void test_first_weights(void **state)
{
    (void)state;
    REFUSED("recipe.yaml", "initialize: none/manifest.json: No such file", "output=run",
            "initialize=none");
    REFUSED("recipe.yaml", "initialize: none/manifest.json: No such file", "output=run",
            "initialize=none", "--check");
    TRAIN(.arguments = {"output=small", "phases.0.steps=2", "phases.1.steps=2"});
    REFUSED("recipe.yaml", "not this recipe's model: missing bert.encoder.layer.2.", "output=run",
            "initialize=small/checkpoints", "model.layers=3", "--check");
    TRAIN(.arguments = {"output=run", "initialize=small/checkpoints", "--check"});
    expect_nothing_written("run");
    static const char *const states[] = {"small/checkpoints/step_00000002/state.json",
                                         "small/checkpoints/step_00000004/state.json"};
    scratch_write(scratch_path(states[0]), "", 0);
    scratch_write(scratch_path(states[1]), "", 0);
    REFUSED("recipe.yaml",
            "initialize: small/checkpoints: expected a whole checkpoint, found "
            "damaged ones only",
            "output=run", "initialize=small/checkpoints");
}

static void test_output_that_cannot_be_made(void **state)
{
    (void)state;
    const char *const arguments[] = {"output=corpus.txt/run", NULL};
    expect_failure_on(0, "recipe.yaml", arguments, "corpus.txt");
    expect_failure_on(2, "recipe.yaml", arguments, "corpus.txt");
}

static void test_usage(void **state)
{
    (void)state;
    training_end end = run_training(&(training){.arguments = {"--resum"}});
    assert_int_equal(end.status, 2);
    expect_in_log(end.log, "ttrain pretrain: ");
    free(end.log);
}

static int set_up_with_shards(void **state)
{
    if (set_up(state) != 0) {
        return -1;
    }
    write_bad_shards();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_shards),
        cmocka_unit_test(test_unusable_shards),
        cmocka_unit_test(test_malformed_shards),
        cmocka_unit_test(test_bad_values_in_shards),
        cmocka_unit_test(test_other_tokenizer),
        cmocka_unit_test(test_tokenizer_that_is_none),
        cmocka_unit_test(test_ranks_and_batches),
        cmocka_unit_test(test_recipes),
        cmocka_unit_test(test_recipe_texts),
        cmocka_unit_test(test_folder_of_another_run),
        cmocka_unit_test(test_spare_words),
        cmocka_unit_test(test_first_weights),
        cmocka_unit_test(test_output_that_cannot_be_made),
        cmocka_unit_test(test_usage),
    };
    return cmocka_run_group_tests(tests, set_up_with_shards, scratch_teardown);
}

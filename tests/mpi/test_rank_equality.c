/* N ranks, any number of micro-batches: the gradients and the loss of one rank with the whole
 * batch.
 *
 * The test starts itself under mpirun; each rank then computes its share of every case, and rank 0
 * writes the summed gradients and losses to a file. */
#include "support/program.h"

#include "launch/model_recipe.h"
#include "launch/run.h"
#include "launch/step.h"

#include <math.h>

enum { BATCH = 8, LENGTH = 16, PREDICTIONS = 5, VOCABULARY = 97 };

static const char recipe_text[] =
    "seed: 5\n"
    "model: {preset: small, vocabulary_size: 97, max_positions: 16, dropout: 0.1,\n"
    "        attention_dropout: 0.1}\n"
    "tensor_train: {rank: 6}\n"
    "data: {train: none, max_predictions: 5}\n"
    "phases:\n"
    "  - {sequence_length: 16, steps: 10, global_batch: 8, learning_rate: 1e-3}\n";

typedef struct {
    const char *name, *override;
    bool unmasked;                 /* no token of the batch is masked */
    const tt_rank_settings *stage; /* NULL: ranks are not trained */
} form;

/* The loss of fresh weights is between the two target losses, near ln(97) + ln(2). */
static const tt_rank_settings on_size = {.unit = 1e4,
                                         .target = 1e3,
                                         .beta = 1e-4f,
                                         .rho = 0.3f,
                                         .w1 = 1.0f,
                                         .w2 = 1.0f,
                                         .target_loss = 7.0f,
                                         .stage = TT_RANKS_LATE};
static const tt_rank_settings on_loss = {.unit = 1e4,
                                         .target = 1e3,
                                         .rho = 0.3f,
                                         .w1 = 1.0f,
                                         .w2 = 1.0f,
                                         .target_loss = 1.0f,
                                         .stage = TT_RANKS_LATE};

static const form forms[] = {
    {"dense", "tensor_train.form=dense", false, NULL},
    {"tensor_train", "tensor_train.form=tensor_train", false, NULL},
    {"no_masked_token", "tensor_train.form=tensor_train", true, NULL},
    {"late_stage_size", "tensor_train.form=tensor_train", false, &on_size},
    {"late_stage_loss", "tensor_train.form=tensor_train", false, &on_loss},
};
enum { FORMS = sizeof forms / sizeof *forms };

/* 3 does not divide a rank's rows: the last micro-batch is smaller. */
static const int64_t micro_batches[] = {8, 1, 2, 3};
enum { MICRO_BATCHES = sizeof micro_batches / sizeof *micro_batches };

/* What a case's file holds before the gradients. */
typedef struct {
    double masked_lm_loss, next_sentence_loss, gradient_norm, masked_count, sentence_count;
    double loss_after; /* masked LM loss of the same batch after the update */
    double size, relaxed_size, branch;
    int64_t total;
} summary;

/* --- a rank --- */

static void require(tt_status status, const tt_error *error)
{
    if (status != TT_OK) {
        fprintf(stderr, "%s\n", error->message);
        exit(2);
    }
}

/* Masked tokens of each row: with four ranks the first has none at all. */
static const int masked_counts[BATCH] = {0, 0, 5, 4, 3, 2, 1, 5};

/* Rows of the global batch from `first` on: lengths, numbers of masked tokens and labels (absent
 * ones among them) differ from row to row. */
static void make_batch(tt_batch *batch, int64_t first, int64_t rows, bool unmasked)
{
    static int32_t ids[BATCH * LENGTH], segments[BATCH * LENGTH];
    static uint8_t mask[BATCH * LENGTH];
    static int32_t positions[BATCH * PREDICTIONS], labels[BATCH * PREDICTIONS], sentences[BATCH];
    *batch = (tt_batch){.rows = rows,
                        .sequence_length = LENGTH,
                        .max_predictions = PREDICTIONS,
                        .input_ids = ids,
                        .attention_mask = mask,
                        .segment_ids = segments,
                        .masked_positions = positions,
                        .masked_labels = labels,
                        .next_sentence_labels = sentences};
    for (int64_t row = 0; row < rows; row++) {
        int64_t sample = first + row, length = LENGTH - sample % 5;
        int64_t count = unmasked ? 0 : masked_counts[sample];
        for (int64_t i = 0; i < LENGTH; i++) {
            ids[row * LENGTH + i] = i < length ? (int32_t)((sample * 31 + i * 7) % VOCABULARY) : 0;
            segments[row * LENGTH + i] = i >= length / 2 && i < length;
            mask[row * LENGTH + i] = i < length;
        }
        for (int64_t i = 0; i < PREDICTIONS; i++) {
            positions[row * PREDICTIONS + i] = i < count ? (int32_t)(1 + 2 * i) : -1;
            labels[row * PREDICTIONS + i] =
                i < count ? (int32_t)((sample * 13 + i) % VOCABULARY) : -1;
        }
        sentences[row] = sample % 4 == 3 ? -1 : (int32_t)(sample % 2);
        batch->masked_count += count;
    }
}

static void write_case(const char *folder, const char *name, const summary *found,
                       const float *gradients)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(found, sizeof *found, 1, file) != 1 ||
        fwrite(gradients, sizeof(float), (size_t)found->total, file) != (size_t)found->total ||
        fclose(file) != 0) {
        exit(3);
    }
}

static void run_case(tt_run *run, const form *kind, int64_t micro_batch, const char *folder)
{
    tt_error error;
    char name[64];
    tt_optimizer *optimizer;
    tt_step step;
    tt_batch batch;
    int64_t rows = BATCH / run->world.size;
    require(tt_run_build_model(run, true, &error), &error);
    tt_parameters *parameters = &run->model.parameters;
    tt_optimizer_options options = tt_model_recipe_optimizer(&run->recipe, 0);
    tt_step_sizes sizes = {rows, micro_batch < rows ? micro_batch : rows, LENGTH, PREDICTIONS};
    require(tt_optimizer_create(parameters, &options, &optimizer, &error), &error);
    require(tt_step_create(&step, &run->model, optimizer, &run->world, run->collectives, &sizes,
                           &error),
            &error);
    if (kind->stage) {
        require(tt_step_train_ranks(&step, &error), &error);
        step.stage = *kind->stage;
    }
    make_batch(&batch, run->world.rank * rows, rows, kind->unmasked);

    summary found = {.total = parameters->total};
    float *gradients = malloc((size_t)parameters->total * sizeof *gradients);
    tt_step_load(&step, &batch, false);
    tt_step_run(&step, 3, 3);
    tt_step_result result = tt_step_read(&step);
    run->device->copy_out(run->device, gradients, parameters->gradients,
                          (size_t)parameters->total * sizeof *gradients);
    found.masked_lm_loss = result.masked_lm_loss;
    found.next_sentence_loss = result.next_sentence_loss;
    found.gradient_norm = (double)result.gradient_norm;
    found.masked_count = result.masked_count;
    found.sentence_count = result.sentence_count;
    found.size = result.ranks.size;
    found.relaxed_size = result.ranks.relaxed_size;
    found.branch = result.ranks.branch;
    tt_step_load(&step, &batch, false);
    tt_step_run(&step, 4, 4);
    found.loss_after = tt_step_read(&step).masked_lm_loss;

    snprintf(name, sizeof name, "%s_%d_%lld", kind->name, run->world.size, (long long)micro_batch);
    if (run->world.rank == 0) {
        write_case(folder, name, &found, gradients);
    }
    free(gradients);
    tt_step_destroy(&step);
    tt_optimizer_destroy(&optimizer);
    tt_model_free(&run->model);
    run->model = (tt_model){0};
}

static int run_rank(const char *folder)
{
    static tt_run run;
    tt_error error;
    require(tt_world_join(&run.world, &error), &error);
    for (int i = 0; i < FORMS; i++) {
        const char *overrides[] = {forms[i].override};
        require(tt_recipe_parse("test", recipe_text, strlen(recipe_text), overrides, 1, &run.recipe,
                                &error),
                &error);
        require(tt_run_open_device(&run, &error), &error);
        require(tt_run_connect(&run, &error), &error);
        for (int j = 0; j < MICRO_BATCHES; j++) {
            run_case(&run, &forms[i], micro_batches[j], folder);
        }
        tt_collectives_destroy(&run.collectives);
        tt_device_destroy(&run.device);
    }
    tt_world_leave(&run.world);
    return 0;
}

/* --- the comparison --- */

static const float *read_case(const char *name, summary *found)
{
    size_t length;
    char *bytes = scratch_read(scratch_path(name), &length);
    assert_true(length > sizeof *found);
    memcpy(found, bytes, sizeof *found);
    assert_int_equal(length, sizeof *found + (size_t)found->total * sizeof(float));
    float *gradients = malloc((size_t)found->total * sizeof *gradients);
    memcpy(gradients, bytes + sizeof *found, (size_t)found->total * sizeof *gradients);
    free(bytes);
    return gradients;
}

static void expect_near(const char *name, const char *what, double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-6 * fabs(expected))) {
        fail_msg("%s: %s: expected %.12g, found %.12g", name, what, expected, found);
    }
}

static double norm_of(const float *values, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)values[i] * (double)values[i];
    }
    return sqrt(sum);
}

/* The difference is at most 1e-6 of the gradient, parameter by parameter. */
static void compare_gradients(const tt_parameters *layout, const char *name, const float *found,
                              const float *expected)
{
    double whole = norm_of(expected, layout->total);
    assert_true(whole > 1e-3);
    for (int i = 0; i < layout->count; i++) {
        const tt_parameter *item = &layout->items[i];
        double difference = 0.0, size = norm_of(expected + item->offset, item->count);
        for (int64_t j = item->offset; j < item->offset + item->count; j++) {
            double d = (double)found[j] - (double)expected[j];
            difference += d * d;
        }
        /* A gradient that is small by cancellation is held against the whole one. */
        double limit = 1e-6 * fmax(size, 1e-2 * whole);
        if (!(sqrt(difference) <= limit)) {
            fail_msg("%s: %s: gradients differ by %g of %g", name, item->name, sqrt(difference),
                     size);
        }
    }
}

static void compare_case(const tt_parameters *layout, const form *kind, int ranks,
                         int64_t micro_batch)
{
    char name[64], base[64];
    summary found, expected;
    snprintf(name, sizeof name, "%s_%d_%lld", kind->name, ranks, (long long)micro_batch);
    snprintf(base, sizeof base, "%s_1_%d", kind->name, BATCH);
    const float *gradients = read_case(name, &found), *right = read_case(base, &expected);
    assert_int_equal(found.total, layout->total);
    assert_int_equal(expected.total, layout->total);
    assert_true(found.masked_count == expected.masked_count);
    assert_true(found.sentence_count == expected.sentence_count);
    expect_near(name, "masked LM loss", found.masked_lm_loss, expected.masked_lm_loss);
    expect_near(name, "next-sentence loss", found.next_sentence_loss, expected.next_sentence_loss);
    expect_near(name, "gradient norm", found.gradient_norm, expected.gradient_norm);
    /* Adam divides gradients by their own size, so rounding in tiny ones shows a little more. */
    assert_true(fabs(found.loss_after - expected.loss_after) <= 1e-5 * expected.loss_after);
    if (kind->stage) {
        assert_true(found.size > 0.0 && found.size == expected.size);
        assert_true(found.relaxed_size == expected.relaxed_size);
        assert_true(found.branch == (kind->stage == &on_size ? TT_BRANCH_SIZE : TT_BRANCH_LOSS));
    }
    if (kind->unmasked) {
        assert_true(found.masked_lm_loss == 0.0 && found.masked_count == 0.0);
    } else {
        assert_true(found.masked_lm_loss > 3.0 && found.masked_count == 20.0);
    }
    compare_gradients(layout, name, gradients, right);
    free((void *)gradients);
    free((void *)right);
}

static void compare_form(const form *kind)
{
    static tt_run run = {.world = {.size = 1, .local_size = 1}};
    tt_error error;
    const char *overrides[] = {kind->override};
    expect_success(tt_recipe_parse("test", recipe_text, strlen(recipe_text), overrides, 1,
                                   &run.recipe, &error),
                   &error);
    expect_success(tt_run_open_device(&run, &error), &error);
    expect_success(tt_run_build_model(&run, false, &error), &error);
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        for (int i = 0; i < MICRO_BATCHES; i++) {
            compare_case(&run.model.parameters, kind, ranks, micro_batches[i]);
        }
    }
    tt_run_close(&run);
    run.model = (tt_model){0};
}

static const char *this_program;

static int compute_all(void **state)
{
    if (scratch_setup(state) != 0) {
        return -1;
    }
    static const char *const counts[] = {"1", "2", "4"};
    for (int i = 0; i < 3; i++) {
        program_call call = {.arguments = {TTRAIN_MPIRUN, "-np", counts[i], "--oversubscribe",
                                           "--bind-to", "none", this_program, "--rank",
                                           scratch_folder},
                             .environment = {PROGRAM_USES_MPI}};
        program started = program_start(&call);
        if (program_wait(&started, 240) != 0) {
            fail_msg("%s ranks: %s", counts[i], end_of(program_log(&started)));
        }
    }
    return 0;
}

static void test_dense(void **state)
{
    (void)state;
    compare_form(&forms[0]);
}

static void test_tensor_train(void **state)
{
    (void)state;
    compare_form(&forms[1]);
}

static void test_without_masked_token(void **state)
{
    (void)state;
    compare_form(&forms[2]);
}

static void test_stages(void **state)
{
    (void)state;
    compare_form(&forms[3]);
    compare_form(&forms[4]);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--rank") == 0) {
        return run_rank(argv[2]);
    }
    this_program = realpath(argv[0], NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_tensor_train),
        cmocka_unit_test(test_without_masked_token),
        cmocka_unit_test(test_stages),
    };
    return cmocka_run_group_tests(tests, compute_all, scratch_teardown);
}

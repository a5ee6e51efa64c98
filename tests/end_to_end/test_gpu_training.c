/* Training on GPUs, which are simulated ones here: the same losses as on the CPU, the same bits
 * with and without captured steps and whatever order the simulator runs threads and streams in, and
 * what goes wrong said in one line. A build for the CPU alone shows that it says what it lacks. */
#include "support/training.h"

#include <math.h>

enum { GPU_STEPS = 10 };

/* Two phases, so that a step is captured twice; validation and a checkpoint in between;
 * micro-batches of unequal size. */
#define SHORT                                                                                      \
    "phases.0.steps=6", "phases.1.steps=4", "phases.0.micro_batch=3", "validation.interval=5",     \
        "validation.batches=1", "checkpoint.interval=0"

static UNUSED void expect_refused(const training *run, const char *fragment)
{
    program started = start_training(run);
    training_end end = end_training(&started, FAILURE_SECONDS);
    expect_training_failure(&end, fragment);
    free(end.log);
}

#define REFUSED(fragment, ...) expect_refused(&(training){__VA_ARGS__}, fragment)

#ifdef TTRAIN_SIMULATOR

#define ONE_GPU "TTRAIN_SIMULATOR_DEVICES=1"
#define FOUR_GPUS "TTRAIN_SIMULATOR_DEVICES=4"

/* A number of all steps of two runs. */
static void expect_key_near(const char *output, const char *expected, const char *key,
                            double tolerance)
{
    for (int line = 1; line <= GPU_STEPS; line++) {
        double found = metric(output, line, key), right = metric(expected, line, key);
        if (!(fabs(found - right) <= tolerance * fabs(right))) {
            fail_msg("%s of step %d: expected %.9g within %g, found %.9g", key, line, right,
                     tolerance, found);
        }
    }
}

static void expect_near(const char *output, const char *expected, double tolerance)
{
    expect_key_near(output, expected, "masked_lm_loss", tolerance);
    expect_key_near(output, expected, "next_sentence_loss", tolerance);
}

static void expect_log_of(const training *run, const char *fragment)
{
    training_end end = run_training(run);
    if (end.status != 0 || !strstr(end.log, fragment)) {
        fail_msg("expected status 0 and \"%s\", found status %d and:\n%s", fragment, end.status,
                 end_of(end.log));
    }
    free(end.log);
}

#define EXPECT_LOG(fragment, ...) expect_log_of(&(training){__VA_ARGS__}, fragment)

static void test_four_gpus_train_as_the_cpu_does(void **state)
{
    (void)state;
    TRAIN(.arguments = {"device=cpu", "output=cpu", SHORT});
    TRAIN(.ranks = 4, .arguments = {"device=cuda", "output=captured", SHORT},
          .environment = {FOUR_GPUS});
    expect_near("captured", "cpu", 1e-4);
    TRAIN(.ranks = 4, .arguments = {"device=cuda", "graph=off", "output=eager", SHORT},
          .environment = {FOUR_GPUS});
    expect_same_metrics("eager", "captured");
}

static void test_dense_model_sums_early(void **state)
{
    (void)state;
    TRAIN(.arguments = {"device=cpu", "output=dense_cpu", "tensor_train.form=dense", SHORT});
    TRAIN(.ranks = 2,
          .arguments = {"device=cuda", "output=dense_gpu", "tensor_train.form=dense", SHORT},
          .environment = {FOUR_GPUS});
    expect_near("dense_gpu", "dense_cpu", 1e-4);
}

/* Few steps, for runs that are there many times over; the last of them are captured. */
#define FEW_STEPS                                                                                  \
    "phases.0.steps=3", "phases.0.micro_batch=1", "phases.1.steps=1", "phases.1.global_batch=4",   \
        "validation.interval=0", "validation.batches=1", "checkpoint.interval=0"

enum { SEEDS = 20 };

/* Of threads between barriers, lanes, blocks and streams. */
static void test_any_order_gives_the_same_bits(void **state)
{
    (void)state;
    TRAIN(.ranks = 4, .arguments = {"output=seed0", FEW_STEPS},
          .environment = {FOUR_GPUS, "TTRAIN_SIMULATOR_SEED=1"});
    for (int i = 2; i <= SEEDS; i++) {
        char seed[64];
        snprintf(seed, sizeof seed, "TTRAIN_SIMULATOR_SEED=%d", 7919 * i);
        scratch_remove(scratch_path("seeded"));
        TRAIN(.ranks = 4, .arguments = {"output=seeded", FEW_STEPS},
              .environment = {FOUR_GPUS, seed});
        expect_same_metrics("seeded", "seed0");
    }
}

static void test_bf16(void **state)
{
    (void)state;
    TRAIN(.arguments = {"device=cpu", "output=bf16_cpu", SHORT});
    TRAIN(.ranks = 2,
          .arguments = {"precision=bf16", "reduce_precision=bf16", "output=bf16", SHORT},
          .environment = {FOUR_GPUS});
    expect_near("bf16", "bf16_cpu", 2e-2);
    TRAIN(.ranks = 2,
          .arguments = {"precision=bf16", "reduce_precision=bf16", "graph=off", "output=bf16_eager",
                        SHORT},
          .environment = {FOUR_GPUS});
    expect_same_metrics("bf16_eager", "bf16");
}

static void test_resumed_run_is_exact(void **state)
{
    (void)state;
    TRAIN(.arguments = {"output=whole", SHORT}, .environment = {ONE_GPU});
    TRAIN(.arguments = {"output=parts", SHORT, "phases.1.steps=1", "checkpoint.interval=4"},
          .environment = {ONE_GPU});
    scratch_remove(scratch_path("parts/checkpoints/step_00000007"));
    scratch_remove(scratch_path("parts/checkpoints/step_00000006"));
    TRAIN(.arguments = {"output=parts", SHORT, "--resume"}, .environment = {ONE_GPU});
    expect_same_metrics("parts", "whole");
}

/* Maps lose their ranks and are cut out; the step is captured anew each time. */
static const char losing_recipe[] =
    "name: losing\n"
    "seed: 3\n"
    "output: run\n"
    "device: cuda\n"
    "model: {preset: small, max_positions: 64}\n"
    "tensor_train: {form: tensor_train, rank: 8}\n"
    "data: {tokenizer: tokenizer.model, max_predictions: 8}\n"
    "rank: {compaction_interval: 3}\n"
    "stages:\n"
    "  - {kind: early, steps: 10, gamma: 1e-2, beta: 0}\n"
    "phases:\n"
    "  - {name: short, sequence_length: 32, steps: 10, global_batch: 4, learning_rate: 2e-3,\n"
    "     diagonal_learning_rate: 0.25, warmup: 0, decay: constant,\n"
    "     train: length32/train_*.hdf5}\n"
    "checkpoint: {interval: 7, keep: 9}\n"
    "log: {interval: 1}\n";

static void test_compaction(void **state)
{
    (void)state;
    scratch_write(scratch_path("losing.yaml"), losing_recipe, strlen(losing_recipe));
    TRAIN(.recipe = "losing.yaml", .arguments = {"output=losing"}, .environment = {ONE_GPU});
    assert_true(metric("losing", 10, "parameters") < metric("losing", 1, "parameters"));
    TRAIN(.recipe = "losing.yaml", .arguments = {"output=losing_eager", "graph=off"},
          .environment = {ONE_GPU});
    expect_same_metrics("losing_eager", "losing");
    TRAIN(.recipe = "losing.yaml",
          .arguments = {"output=losing_on", "--resume-from=losing/checkpoints/step_00000007"},
          .environment = {ONE_GPU});
    char *found = metrics_from("losing_on", 1), *expected = metrics_from("losing", 8);
    assert_string_equal(found, expected);
    free(found);
    free(expected);
}

/* A task: its embedding a tensor-train matrix, an early stage and a late one, ranks cut out in
 * both. */
static const char task_recipe[] =
    "name: task\n"
    "seed: 3\n"
    "model: {layers: 1, hidden_size: 32, heads: 2, intermediate_size: 64, max_positions: 32}\n"
    "task: {kind: mnli}\n"
    "data: {tokenizer: pairs/vocab.txt, train: pairs/train.tsv,\n"
    "       validation: pairs/validation.tsv}\n"
    "tensor_train: {form: tensor_train, order: 4, rank: 8, initial_deviation: 0.2,\n"
    "               embedding: {form: tensor_train_matrix, order: 3}}\n"
    "rank: {compaction_interval: 3}\n"
    "stages:\n"
    "  - {kind: early, steps: 5, gamma: 1}\n"
    "  - {kind: late, steps: 5, target_loss: 2, target_ratio: 0.3}\n"
    "phases:\n"
    "  - {name: task, sequence_length: 24, steps: 10, global_batch: 8, learning_rate: 2e-3,\n"
    "     diagonal_learning_rate: 0.25, decay: constant}\n"
    "log: {interval: 1}\n";

static void test_a_task_in_stages(void **state)
{
    (void)state;
    RUN_COMMAND("prepare", "entailment", "--rows", "64", "--validation-rows", "16", "--output",
                "pairs");
    scratch_write(scratch_path("task.yaml"), task_recipe, strlen(task_recipe));
    const char *const devices[] = {"device=cpu", "device=cuda"};
    const char *const outputs[] = {"task_cpu", "task_gpu"};
    for (int i = 0; i < 2; i++) {
        char output[32];
        snprintf(output, sizeof output, "output=%s", outputs[i]);
        train(&(training){.command = "finetune",
                          .recipe = "task.yaml",
                          .arguments = {devices[i], output},
                          .environment = {ONE_GPU}});
        RUN_COMMAND("evaluate", "task.yaml", devices[i], output);
    }
    const char *const keys[] = {"loss", "accuracy", "size", "parameters"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        expect_key_near("task_gpu", "task_cpu", keys[i], 1e-4);
    }
    assert_true(metric("task_gpu", 10, "parameters") < metric("task_gpu", 1, "parameters"));
    double found = metric("task_gpu", 10, "validation_loss");
    assert_true(fabs(found - metric("task_cpu", 10, "validation_loss")) <= 1e-4 * found);
}

static void test_choice_of_a_device(void **state)
{
    (void)state;
    EXPECT_LOG("device cuda:0 (", .arguments = {"output=auto", "--check"},
               .environment = {ONE_GPU});
    EXPECT_LOG("device cpu (no CUDA device: ", .arguments = {"output=auto", "--check"},
               .environment = {"TTRAIN_SIMULATOR_DEVICES=0"});
    EXPECT_LOG("device cpu\n", .arguments = {"device=cpu", "output=auto", "--check"},
               .environment = {ONE_GPU});
    EXPECT_LOG("MPI through host memory", .ranks = 2,
               .arguments = {"share_device=true", "output=auto", "--check"},
               .environment = {ONE_GPU});
}

static void test_bad_situations(void **state)
{
    (void)state;
    REFUSED("device: cuda: no CUDA device: the driver shows none", .arguments = {"device=cuda"},
            .environment = {"TTRAIN_SIMULATOR_DEVICES=0"});
    REFUSED("device: cuda: no CUDA device: this machine has no NVIDIA driver",
            .arguments = {"device=cuda"}, .environment = {"TTRAIN_SIMULATOR_DRIVER=0"});
    REFUSED("device: cuda: no CUDA device: the NVIDIA driver is too old",
            .arguments = {"device=cuda"}, .environment = {"TTRAIN_SIMULATOR_DRIVER=11040"});
    REFUSED("device: auto: 2 ranks on this host, but 1 CUDA device", .ranks = 2,
            .environment = {ONE_GPU});
    /* A launcher that shows each rank a device of its own, but the same to both. */
    REFUSED("ranks 0 and 1 both have the device at ", .ranks = 2,
            .environment = {ONE_GPU, "CUDA_VISIBLE_DEVICES=0"});
    REFUSED("precision: bf16: the CPU device computes in f32 alone (no CUDA device",
            .arguments = {"precision=bf16"}, .environment = {"TTRAIN_SIMULATOR_DEVICES=0"});
    REFUSED("has no bf16", .arguments = {"precision=bf16"},
            .environment = {ONE_GPU, "TTRAIN_SIMULATOR_COMPUTE_CAPABILITY=7.0"});
}

#define LARGE_BATCH "phases.0.global_batch=512", "model.hidden_size=256"

/* What does not fit, what it would take, what there is, and what to lower. */
static void test_too_little_memory(void **state)
{
    (void)state;
    static const char little[] = "TTRAIN_SIMULATOR_MEMORY=96",
                      more[] = "TTRAIN_SIMULATOR_MEMORY=128";
    REFUSED("cuda:0: no memory for parameters (",
            .arguments = {"model.hidden_size=2048", "tensor_train.form=dense"},
            .environment = {ONE_GPU, little});
    REFUSED("of 96.0 MiB free; a smaller model has room: set tensor_train.form: tensor_train, or "
            "lower model.hidden_size (it is 2048) or model.layers (it is 2)",
            .arguments = {"model.hidden_size=2048", "tensor_train.form=dense"},
            .environment = {ONE_GPU, little});
    REFUSED("of 96.0 MiB free; held so far: parameters ",
            .arguments = {"model.hidden_size=2048", "model.layers=12", "tensor_train.rank=32"},
            .environment = {ONE_GPU, little});
    REFUSED("; a smaller model has room: lower tensor_train.rank or model.layers (it is 12)",
            .arguments = {"model.hidden_size=2048", "model.layers=12", "tensor_train.rank=32"},
            .environment = {ONE_GPU, little});
    REFUSED("cuda:0: no memory for activations: ", .arguments = {LARGE_BATCH},
            .environment = {ONE_GPU, more});
    REFUSED(" MiB, tensor-train factors ", .arguments = {LARGE_BATCH},
            .environment = {ONE_GPU, more});
    REFUSED("; lower phases.0.micro_batch (it is 512)", .arguments = {LARGE_BATCH},
            .environment = {ONE_GPU, more});
    REFUSED("; lower phases.0.micro_batch (it is 256)", .ranks = 2, .arguments = {LARGE_BATCH},
            .environment = {FOUR_GPUS, "TTRAIN_SIMULATOR_MEMORY=48"});
}

/* Each rank is told another version of NCCL. */
static void test_versions_of_nccl_differ(void **state)
{
    (void)state;
    static const char script[] = "#!/bin/sh\n"
                                 "export TTRAIN_SIMULATOR_NCCL_VERSION=2220$OMPI_COMM_WORLD_RANK\n"
                                 "exec \"$@\"\n";
    write_script("other_nccl", script);
    REFUSED("rank 0 has NCCL 2.22.0 and rank 1 has NCCL 2.22.1: expected one version on all hosts",
            .ranks = 2, .wrapper = "other_nccl", .environment = {FOUR_GPUS});
}

static void test_launches_are_counted(void **state)
{
    (void)state;
    program_call call = {
        .arguments = {TTRAIN_PROGRAM, "bench", "step", "recipe.yaml", "--launches", "--batch", "4"},
        .environment = {ONE_GPU}};
    program started = program_start(&call);
    assert_int_equal(program_wait(&started, TRAINING_SECONDS), 0);
    char *text = scratch_read(started.output, NULL);
    assert_non_null(strstr(text, "launches of a step: one graph of "));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_four_gpus_train_as_the_cpu_does),
        cmocka_unit_test(test_dense_model_sums_early),
        cmocka_unit_test(test_any_order_gives_the_same_bits),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_resumed_run_is_exact),
        cmocka_unit_test(test_compaction),
        cmocka_unit_test(test_a_task_in_stages),
        cmocka_unit_test(test_choice_of_a_device),
        cmocka_unit_test(test_bad_situations),
        cmocka_unit_test(test_too_little_memory),
        cmocka_unit_test(test_versions_of_nccl_differ),
        cmocka_unit_test(test_launches_are_counted),
    };
    return cmocka_run_group_tests(tests, training_setup, scratch_teardown);
}

#else

static void test_what_the_cpu_lacks(void **state)
{
    (void)state;
#ifndef TTRAIN_CUDA
    REFUSED("device: cuda: this build has the CPU device only", .arguments = {"device=cuda"});
    REFUSED("precision: bf16: the CPU device computes in f32 alone",
            .arguments = {"device=auto", "precision=bf16"});
#endif
    REFUSED("precision: expected f32 with device cpu, found bf16",
            .arguments = {"device=cpu", "precision=bf16"});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_the_cpu_lacks)};
    return cmocka_run_group_tests(tests, training_setup, scratch_teardown);
}

#endif

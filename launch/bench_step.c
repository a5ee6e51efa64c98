#include "launch/bench_step.h"

#include "core/clock.h"
#include "launch/command_line.h"
#include "launch/memory_hint.h"
#include "launch/model_recipe.h"
#include "launch/step.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WARM_UP = 2 };

/* --- a batch of random tokens --- */

static void fill_row(tt_batch *batch, int64_t row, uint32_t vocabulary, tt_random *random)
{
    int length = batch->sequence_length, predictions = batch->max_predictions;
    for (int s = 0; s < length; s++) {
        int64_t token = row * length + s;
        batch->input_ids[token] = (int32_t)tt_random_below(random, vocabulary);
        batch->attention_mask[token] = 1;
        batch->segment_ids[token] = s >= length / 2;
    }
    for (int p = 0; p < predictions; p++) {
        int64_t place = row * predictions + p;
        batch->masked_positions[place] = 1 + (int32_t)((int64_t)p * (length - 1) / predictions);
        batch->masked_labels[place] = (int32_t)tt_random_below(random, vocabulary);
    }
    batch->next_sentence_labels[row] = (int32_t)tt_random_below(random, 2);
}

static tt_status make_batch(const tt_run *run, const tt_step_sizes *sizes, tt_batch *batch,
                            tt_error *error)
{
    size_t tokens = (size_t)(sizes->rows * sizes->sequence_length);
    size_t masked = (size_t)(sizes->rows * sizes->max_predictions);
    *batch = (tt_batch){.rows = sizes->rows,
                        .sequence_length = (int)sizes->sequence_length,
                        .max_predictions = (int)sizes->max_predictions,
                        .input_ids = malloc(tokens * sizeof(int32_t)),
                        .attention_mask = malloc(tokens),
                        .segment_ids = malloc(tokens * sizeof(int32_t)),
                        .masked_positions = malloc(masked * sizeof(int32_t)),
                        .masked_labels = malloc(masked * sizeof(int32_t)),
                        .next_sentence_labels = malloc((size_t)sizes->rows * sizeof(int32_t)),
                        .masked_count = (int64_t)masked};
    if (!batch->input_ids || !batch->attention_mask || !batch->segment_ids ||
        !batch->masked_positions || !batch->masked_labels || !batch->next_sentence_labels) {
        tt_batch_free(batch);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for a batch");
    }
    tt_random random;
    tt_random_start(&random, 1, (uint64_t)run->world.rank);
    for (int64_t row = 0; row < sizes->rows; row++) {
        fill_row(batch, row, (uint32_t)run->configuration.vocabulary_size, &random);
    }
    return TT_OK;
}

/* --- measuring --- */

/* One step, after which the result of `read` is at hand. */
static tt_status one_step(tt_step *step, const tt_batch *batch, int64_t number,
                          tt_step_result (*read)(tt_step *), tt_error *error)
{
    tt_step_load(step, batch, false);
    tt_step_run(step, number, 0);
    tt_step_result result = read(step);
    TT_TRY(tt_step_check(step, error));
    if (!result.finite) {
        return tt_error_set(error, TT_DEVICE_FAILED, "step %lld: loss or gradient is not finite",
                            (long long)number);
    }
    return TT_OK;
}

/* Steps follow each other as they do in training: on a GPU the host reads a step's result while the
 * next one runs. */
static tt_status time_steps(tt_step *step, const tt_batch *batch, int steps,
                            tt_bench_measurement *result, tt_error *error)
{
    double times[TT_BENCH_STEPS];
    bool ahead = step->model->parameters.device->captures;
    for (int i = -WARM_UP; i < steps; i++) {
        double begin = tt_clock_seconds();
        bool first = i == -WARM_UP;
        TT_TRY(one_step(step, batch, i + WARM_UP,
                        ahead && !first ? tt_step_read_earlier : tt_step_read, error));
        if (i >= 0) {
            times[i] = tt_clock_seconds() - begin;
        }
    }
    result->median_step_s = tt_bench_median(times, steps);
    return TT_OK;
}

/* In a step with one micro-batch or more: factors are made and their gradients contracted once. */
static void print_contraction(const tt_train_set *trains)
{
    if (trains->count > 0) {
        tt_train_work work = tt_train_set_work(trains);
        printf("of these, factors of %d tensor trains and their gradients: %d; one train after the "
               "other: %d\n",
               trains->count, work.calls, work.singles);
    }
}

/* The third step is the first that runs as it was captured. */
static tt_status count_launches(const tt_run *run, tt_step *step, const tt_batch *batch,
                                bool prints, tt_error *error)
{
    tt_device *device = run->device;
    if (!device->captures) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "--launches: device %s launches nothing; expected a GPU or the "
                            "simulator of one",
                            device->name);
    }
    for (int i = 0; i < 3; i++) {
        device->launches_print(device, NULL);
        TT_TRY(one_step(step, batch, i, tt_step_read, error));
    }
    if (prints && run->world.rank == 0) {
        if (step->graph) {
            printf("launches of a step: one graph of %lld nodes\n",
                   (long long)device->graph_nodes(device, step->graph));
        }
        device->launches_print(device, stdout);
        print_contraction(&run->model.trains);
        fflush(stdout);
    }
    return TT_OK;
}

static tt_status measure_model(tt_run *run, const tt_bench_step_options *options,
                               tt_bench_measurement *result, tt_error *error)
{
    const tt_recipe_phase *phase = &run->recipe.phases[options->phase];
    int64_t global = options->batch > 0 ? options->batch : phase->global_batch;
    int64_t rows = global / run->world.size;
    tt_step_sizes sizes = {
        .rows = rows,
        .micro_batch =
            phase->micro_batch > 0 && phase->micro_batch < rows ? phase->micro_batch : rows,
        .sequence_length =
            options->sequence_length > 0 ? options->sequence_length : phase->sequence_length,
        .max_predictions = phase->max_predictions};
    tt_optimizer_options optimizer_options =
        tt_model_recipe_optimizer(&run->recipe, (int)options->phase);
    tt_optimizer *optimizer = NULL;
    tt_step step = {0};
    tt_batch batch = {0};
    tt_status status =
        tt_optimizer_create(&run->model.parameters, &optimizer_options, &optimizer, error);
    if (status == TT_OK) {
        status = tt_step_create(&step, &run->model, optimizer, &run->world, run->collectives,
                                &sizes, error);
        if (status != TT_OK) {
            tt_memory_hint_step(run, (int)options->phase, sizes.micro_batch, error);
        }
        step.captures = step.captures && run->recipe.graph == TT_RECIPE_GRAPH_ON;
    }
    status = status == TT_OK ? make_batch(run, &sizes, &batch, error) : status;
    if (status == TT_OK && options->launches) {
        status = count_launches(run, &step, &batch, !options->json, error);
    } else if (status == TT_OK) {
        status = time_steps(&step, &batch, (int)options->steps, result, error);
    }
    result->ranks = run->world.size;
    result->tokens = rows * run->world.size * sizes.sequence_length;
    result->flops_per_step = tt_model_flops(&run->model, rows * run->world.size,
                                            sizes.sequence_length, sizes.max_predictions);
    tt_batch_free(&batch);
    if (status == TT_OK) {
        result->parameters = tt_parameters_size(&run->model.parameters);
        result->activation_bytes = (int64_t)tt_model_activation_bytes(&run->model);
        size_t available, total;
        run->device->memory(run->device, &available, &total);
        result->device_bytes = (int64_t)(total - available);
        result->graph_nodes = step.graph ? run->device->graph_nodes(run->device, step.graph) : 0;
        int64_t layers = run->configuration.layers;
        result->layers = (int)(layers < TT_BENCH_LAYERS ? layers : TT_BENCH_LAYERS);
        for (int i = 0; i < result->layers; i++) {
            tt_encoder_explain(&run->model.encoder, i, result->explanations[i],
                               TT_BENCH_EXPLANATION);
        }
    }
    tt_step_destroy(&step);
    tt_optimizer_destroy(&optimizer);
    return status;
}

/* Measures in this process, whose peak memory is then the step's. */
static void measure(tt_run *run, const tt_bench_step_options *options, tt_bench_measurement *result)
{
    tt_error *error = &result->error;
    result->precision = run->recipe.precision;
    result->status = tt_world_agree(&run->world, tt_run_open_device(run, error), error);
    if (result->status == TT_OK) {
        result->status = tt_run_connect(run, error);
    }
    if (result->status == TT_OK && run->recipe.initialize[0]) {
        result->status = tt_run_take_shapes(run, run->recipe.initialize, error);
    }
    if (result->status == TT_OK) {
        result->status = tt_run_build_model(run, true, error);
    }
    if (result->status == TT_OK) {
        result->status = measure_model(run, options, result, error);
    }
    if (result->status == TT_OK) {
        result->threads = run->device->threads;
        tt_model_free(&run->model);
        run->model.parameters.device = NULL;
        result->peak_bytes = tt_bench_peak_memory();
        result->peak_flops = options->launches || options->without_peak
                                 ? 0
                                 : tt_bench_peak(run->device) * run->world.size;
    }
    tt_run_close(run);
}

static bool read_whole(int descriptor, void *target, size_t bytes)
{
    char *place = target;
    while (bytes > 0) {
        ssize_t count = read(descriptor, place, bytes);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            return false;
        }
        place += count;
        bytes -= (size_t)count;
    }
    return true;
}

static bool write_whole(int descriptor, const void *source, size_t bytes)
{
    const char *place = source;
    while (bytes > 0) {
        ssize_t count = write(descriptor, place, bytes);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            return false;
        }
        place += count;
        bytes -= (size_t)count;
    }
    return true;
}

/* Measures in a process of its own, so that models measured one after the other do not share their
 * peak memory. */
static void measure_apart(const tt_run *run, const tt_bench_step_options *options,
                          tt_bench_measurement *result)
{
    int ends[2];
    if (pipe(ends) != 0) {
        result->status = tt_error_set(&result->error, TT_IO_FAILED, "pipe: %s", strerror(errno));
        return;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        tt_run own = *run;
        measure(&own, options, result);
        bool sent = write_whole(ends[1], result, sizeof *result);
        _exit(sent ? 0 : 1);
    }
    close(ends[1]);
    bool received = child > 0 && read_whole(ends[0], result, sizeof *result);
    close(ends[0]);
    int child_status = 0;
    if (child > 0) {
        waitpid(child, &child_status, 0);
    }
    if (!received) {
        result->status =
            tt_error_set(&result->error, TT_OUT_OF_MEMORY,
                         "the measuring process ended early (status %d): was there enough "
                         "memory?",
                         child_status);
    }
}

void tt_bench_step_measure(tt_run *run, const tt_bench_step_options *options,
                           tt_bench_measurement *result)
{
    if (run->world.uses_mpi) {
        measure(run, options, result);
    } else {
        measure_apart(run, options, result);
    }
}

/* --- reporting --- */

static json_t *as_json(const tt_bench_measurement *m, bool explain)
{
    json_t *object = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:i, s:i}", "median_step_s", m->median_step_s,
        "tokens_per_s", (double)m->tokens / m->median_step_s, "flops_per_step", m->flops_per_step,
        "fraction_of_peak", m->flops_per_step / m->median_step_s / m->peak_flops,
        "peak_flops_per_s", m->peak_flops, "peak_bytes", (json_int_t)m->peak_bytes,
        "activation_bytes", (json_int_t)m->activation_bytes, "parameters",
        (json_int_t)m->parameters, "threads", m->threads, "ranks", m->ranks);
    if (m->device_bytes > 0) {
        json_object_set_new(object, "device_bytes", json_integer(m->device_bytes));
        json_object_set_new(object, "graph_nodes", json_integer(m->graph_nodes));
    }
    if (explain) {
        json_t *lines = json_array();
        for (int i = 0; i < m->layers; i++) {
            json_array_append_new(lines, json_string(m->explanations[i]));
        }
        json_object_set_new(object, "explain", lines);
    }
    return object;
}

static void print_row(const char *name, const tt_bench_measurement *m)
{
    printf("%-12s %12.4f %12.0f %14.1f %10.3f %12.1f %14lld\n", name, m->median_step_s,
           (double)m->tokens / m->median_step_s, 1e-9 * m->flops_per_step,
           m->flops_per_step / m->median_step_s / m->peak_flops, (double)m->peak_bytes / 1048576.0,
           (long long)m->parameters);
}

static void print_json(const tt_bench_measurement *own, const tt_bench_measurement *dense,
                       const tt_bench_step_options *options)
{
    json_t *root = options->launches
                       ? json_pack("{s:I}", "graph_nodes", (json_int_t)own->graph_nodes)
                       : as_json(own, options->explain);
    if (dense && !options->launches) {
        json_object_set_new(root, "dense", as_json(dense, options->explain));
        json_object_set_new(root, "speedup_against_dense",
                            json_real(dense->median_step_s / own->median_step_s));
    }
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(root);
}

static void print_table(const tt_bench_measurement *own, const tt_bench_measurement *dense)
{
    static const char *const precisions[] = {"f32", "tf32", "bf16"};
    printf("%-12s %12s %12s %14s %10s %12s %14s\n", "model", "step [s]", "tokens/s", "GFLOP/step",
           "of peak", "memory [MiB]", "parameters");
    print_row(dense ? "recipe" : "step", own);
    if (dense) {
        print_row("dense twin", dense);
        printf(
            "recipe against dense twin: %.2fx faster, %.2fx less memory, %.2fx fewer parameters\n",
            dense->median_step_s / own->median_step_s,
            (double)dense->peak_bytes / (double)own->peak_bytes,
            (double)dense->parameters / (double)own->parameters);
    }
    printf("measured %s product peak: %.1f GFLOP/s, %d thread%s\n", precisions[own->precision],
           1e-9 * own->peak_flops, own->threads, own->threads > 1 ? "s" : "");
    if (own->device_bytes > 0) {
        printf("device memory in use: %.1f MiB; captured step: %lld nodes\n",
               (double)own->device_bytes / 1048576.0, (long long)own->graph_nodes);
    }
}

static void report(const tt_bench_measurement *own, const tt_bench_measurement *dense,
                   const tt_bench_step_options *options)
{
    if (options->json) {
        print_json(own, dense, options);
        return;
    }
    if (!options->launches) { /* the launches stand there already */
        print_table(own, dense);
    }
    for (int i = 0; options->explain && i < own->layers; i++) {
        printf("%s\n", own->explanations[i]);
    }
}

/* The round with the median step time stands for all. */
const tt_bench_measurement *tt_bench_step_middle(tt_bench_measurement *rounds, int count)
{
    for (int i = 1; i < count; i++) {
        for (int j = i; j > 0 && rounds[j].median_step_s < rounds[j - 1].median_step_s; j--) {
            tt_bench_measurement swap = rounds[j];
            rounds[j] = rounds[j - 1];
            rounds[j - 1] = swap;
        }
    }
    return &rounds[(count - 1) / 2];
}

static int run_bench(tt_run *run, const tt_bench_step_options *options)
{
    static tt_bench_measurement own[TT_BENCH_ROUNDS], dense[TT_BENCH_ROUNDS];
    tt_run twin = *run;
    tt_recipe_dense_twin(&run->recipe, &twin.recipe);
    twin.recipe.initialize[0] = '\0';
    int rounds = (int)options->rounds;
    for (int i = 0; i < rounds; i++) {
        for (int turn = 0; turn < 1 + options->against; turn++) {
            tt_run *model = turn == 0 ? run : &twin;
            tt_bench_measurement *result = turn == 0 ? &own[i] : &dense[i];
            tt_bench_step_measure(model, options, result);
            if (result->status != TT_OK) {
                return tt_command_failed("bench step", &result->error);
            }
        }
    }
    if (run->world.rank == 0) {
        report(tt_bench_step_middle(own, rounds),
               options->against ? tt_bench_step_middle(dense, rounds) : NULL, options);
    }
    return TT_EXIT_DONE;
}

/* What the command line puts in the recipe's place must do for its model, too. */
static tt_status check_sizes(const tt_run *run, const tt_bench_step_options *options,
                             tt_error *error)
{
    const tt_recipe *recipe = &run->recipe;
    const tt_recipe_phase *phase = &recipe->phases[options->phase];
    int64_t length =
        options->sequence_length > 0 ? options->sequence_length : phase->sequence_length;
    int64_t batch = options->batch > 0 ? options->batch : phase->global_batch;
    if (length < 2 || length > recipe->model.max_positions) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "--sequence-length: expected 2 to model.max_positions %lld, found %lld",
                            (long long)recipe->model.max_positions, (long long)length);
    }
    if (batch % run->world.size != 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "--batch: expected a multiple of the %d ranks, found %lld",
                            run->world.size, (long long)batch);
    }
    return TT_OK;
}

tt_status tt_bench_step_set_up(tt_run *run, char **arguments, int count,
                               const tt_bench_step_options *options, tt_error *error)
{
    TT_TRY(tt_world_join(&run->world, error));
    TT_TRY(tt_run_read_recipe(run, arguments[0], arguments + 1, count - 1, error));
    if (options->threads > 0) {
        run->recipe.threads = options->threads;
    }
    if (options->phase >= (int64_t)run->recipe.phase_count) {
        return tt_error_set(
            error, TT_INVALID_INPUT, "--phase: expected 0 to %llu, the recipe's phases; found %lld",
            (unsigned long long)run->recipe.phase_count - 1, (long long)options->phase);
    }
    TT_TRY(check_sizes(run, options, error));
    if (run->recipe.model.vocabulary_size == 0) {
        return tt_run_read_vocabulary(run, error);
    }
    return TT_OK;
}

int tt_bench_step_main(int argc, char **argv)
{
    tt_bench_step_options options = {.steps = 10, .rounds = 1};
    static const char *const twins[] = {"nothing", "dense", NULL};
    const tt_option table[] = {
        {"steps", TT_OPTION_INTEGER, &options.steps, "N", "steps timed, after two to warm up", NULL,
         1, TT_BENCH_STEPS, false},
        {"rounds", TT_OPTION_INTEGER, &options.rounds, "N",
         "times that everything is measured, in turns; the median round is shown", NULL, 1,
         TT_BENCH_ROUNDS, false},
        {"against", TT_OPTION_CHOICE, &options.against, "WHAT",
         "measure the recipe's dense twin in the same run", twins, 0, 0, false},
        {"phase", TT_OPTION_INTEGER, &options.phase, "N", "phase of the recipe, from 0", NULL, 0,
         64, false},
        {"batch", TT_OPTION_INTEGER, &options.batch, "N",
         "sequences a step over all ranks; 0: the recipe's", NULL, 0, 1e9, false},
        {"sequence-length", TT_OPTION_INTEGER, &options.sequence_length, "N",
         "tokens a sequence; 0: the recipe's", NULL, 0, 1e6, false},
        {"threads", TT_OPTION_INTEGER, &options.threads, "N", "threads a rank; 0: the recipe's",
         NULL, 0, 4096, false},
        {"explain", TT_OPTION_FLAG, &options.explain, NULL,
         "show which form each half of each block takes and why", NULL, 0, 0, false},
        {"launches", TT_OPTION_FLAG, &options.launches, NULL,
         "on a GPU: count what a step launches instead of timing it; by kernel in the simulator",
         NULL, 0, 0, false},
        {"json", TT_OPTION_FLAG, &options.json, NULL, "print JSON", NULL, 0, 0, false},
    };
    const tt_command command = {
        .name = "bench step",
        .arguments = "RECIPE [KEY=VALUE...]",
        .purpose = "Times training steps of a recipe on random tokens: median step time, tokens a "
                   "second, model operations a step and what fraction of the measured f32 product "
                   "peak they run at, peak memory of the process.",
        .example = "ttrain bench step recipes/six_encoder/pretrain.yaml --against dense",
        .options = table,
        .option_count = sizeof table / sizeof *table,
        .minimum_arguments = 1,
        .maximum_arguments = -1};
    char **arguments;
    int count, exit_status;
    if (!tt_command_parse(&command, argc, argv, &arguments, &count, &exit_status)) {
        return exit_status;
    }
    tt_run run = {0};
    tt_error error = {0};
    if (tt_bench_step_set_up(&run, arguments, count, &options, &error) != TT_OK) {
        exit_status =
            run.world.rank == 0 ? tt_command_failed("bench step", &error) : TT_EXIT_FAILED;
    } else {
        exit_status = run_bench(&run, &options);
    }
    tt_world_leave(&run.world);
    return exit_status;
}

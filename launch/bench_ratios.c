/* `ttrain bench ratios`: step time by compression. */
#include "launch/bench_step.h"

#include "launch/command_line.h"
#include "launch/model_recipe.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MODELS = 17 /* the dense one first */ };

typedef struct {
    double asked, found; /* compression of the tensor-train maps; 0: dense */
    tt_run run;
    tt_bench_measurement rounds[TT_BENCH_ROUNDS];
} timed_model;

/* "1,2,5,10,50" */
static bool read_ratios(const char *text, double *ratios, int *count)
{
    char copy[256];
    if (strlen(text) >= sizeof copy) {
        return false;
    }
    snprintf(copy, sizeof copy, "%s", text);
    char *rest = copy;
    for (char *word = strsep(&rest, ","); word; word = strsep(&rest, ",")) {
        if (*count == MOST_MODELS - 1 || !tt_command_real(word, &ratios[*count]) ||
            ratios[*count] < 1.0 || ratios[*count] > 1e6) {
            return false;
        }
        (*count)++;
    }
    return *count > 0;
}

/* The recipe with every tensor-train map at this compression, its modes as they are. */
static void compress(tt_recipe *recipe, double ratio)
{
    for (int i = 0; i < TT_RECIPE_MAP_COUNT; i++) {
        tt_recipe_map *map = &recipe->tensor_train.maps[i];
        map->rank_count = 0;
        map->rank = 0;
        map->compression = ratio;
    }
}

/* Dense numbers over those of the trains, all maps of the encoder and the heads together. */
static tt_status find_compression(timed_model *model, tt_error *error)
{
    static const double count_a_layer[TT_MAP_KINDS] = {
        [TT_MAP_ATTENTION] = 4, [TT_MAP_INTERMEDIATE] = 1, [TT_MAP_OUTPUT] = 1};
    tt_configuration configuration;
    double dense = 0.0, trains = 0.0;
    TT_TRY(tt_model_recipe_configuration(&model->run.recipe, model->run.vocabulary_size,
                                         &configuration, error));
    for (int kind = 0; kind < TT_MAP_KINDS; kind++) {
        const tt_linear_form *form = &configuration.maps[kind];
        if (form->form == TT_TENSOR_TRAIN) {
            int64_t inputs, outputs;
            tt_configuration_map_size(&configuration, (tt_map_kind)kind, &inputs, &outputs);
            double count =
                count_a_layer[kind] > 0 ? count_a_layer[kind] * (double)configuration.layers : 1.0;
            dense += count * (double)inputs * (double)outputs;
            trains += count * (double)tt_train_size(&form->shape);
        }
    }
    if (trains == 0.0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "expected a recipe with tensor-train maps, found dense maps only");
    }
    model->found = dense / trains;
    return TT_OK;
}

static tt_status make_models(const tt_run *run, const double *ratios, int count,
                             timed_model *models, tt_error *error)
{
    models[0].run = *run;
    tt_recipe_dense_twin(&run->recipe, &models[0].run.recipe);
    models[0].run.recipe.initialize[0] = '\0';
    for (int i = 1; i < count; i++) {
        models[i].run = *run;
        models[i].run.recipe.initialize[0] = '\0';
        models[i].asked = ratios[i - 1];
        compress(&models[i].run.recipe, ratios[i - 1]);
        TT_TRY(find_compression(&models[i], error));
    }
    return TT_OK;
}

static void print_json(timed_model *models, int count, int rounds)
{
    json_t *list = json_array();
    double dense = tt_bench_step_middle(models[0].rounds, rounds)->median_step_s;
    for (int i = 0; i < count; i++) {
        const tt_bench_measurement *m = tt_bench_step_middle(models[i].rounds, rounds);
        json_array_append_new(
            list, json_pack("{s:o, s:f, s:f, s:f, s:I, s:I}", "compression",
                            i > 0 ? json_real(models[i].found) : json_null(), "median_step_s",
                            m->median_step_s, "tokens_per_s", (double)m->tokens / m->median_step_s,
                            "speedup_against_dense", dense / m->median_step_s, "peak_bytes",
                            (json_int_t)m->peak_bytes, "parameters", (json_int_t)m->parameters));
    }
    json_dumpf(list, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(list);
}

static void print_table(timed_model *models, int count, int rounds)
{
    double dense = tt_bench_step_middle(models[0].rounds, rounds)->median_step_s;
    printf("%-12s %10s %12s %12s %14s %14s\n", "compression", "step [s]", "tokens/s",
           "against dense", "memory [MiB]", "parameters");
    for (int i = 0; i < count; i++) {
        const tt_bench_measurement *m = tt_bench_step_middle(models[i].rounds, rounds);
        char name[32] = "dense";
        if (i > 0) {
            snprintf(name, sizeof name, "%.1fx", models[i].found);
        }
        printf("%-12s %10.4f %12.0f %12.2fx %14.1f %14lld\n", name, m->median_step_s,
               (double)m->tokens / m->median_step_s, dense / m->median_step_s,
               (double)m->peak_bytes / 1048576.0, (long long)m->parameters);
    }
    printf("%d thread%s, %d rank%s; compression of the tensor-train maps\n",
           models[0].rounds[0].threads, models[0].rounds[0].threads > 1 ? "s" : "",
           models[0].rounds[0].ranks, models[0].rounds[0].ranks > 1 ? "s" : "");
}

/* In turns, so that what else the machine does falls on all models alike. */
static tt_status measure_all(timed_model *models, int count, const tt_bench_step_options *options,
                             tt_error *error)
{
    for (int round = 0; round < options->rounds; round++) {
        for (int i = 0; i < count; i++) {
            tt_bench_measurement *result = &models[i].rounds[round];
            tt_bench_step_measure(&models[i].run, options, result);
            if (result->status != TT_OK) {
                *error = result->error;
                return result->status;
            }
        }
    }
    return TT_OK;
}

static int run_bench(const tt_run *run, const double *ratios, int ratio_count,
                     const tt_bench_step_options *options)
{
    tt_error error = {0};
    int count = ratio_count + 1;
    timed_model *models = calloc((size_t)count, sizeof *models);
    if (!models) {
        tt_error_set(&error, TT_OUT_OF_MEMORY, "no memory for the table");
        return tt_command_failed("bench ratios", &error);
    }
    tt_status status = make_models(run, ratios, count, models, &error);
    if (status == TT_OK) {
        status = measure_all(models, count, options, &error);
    }
    if (status == TT_OK && run->world.rank == 0) {
        (options->json ? print_json : print_table)(models, count, (int)options->rounds);
    }
    free(models);
    return status == TT_OK        ? TT_EXIT_DONE
           : run->world.rank == 0 ? tt_command_failed("bench ratios", &error)
                                  : TT_EXIT_FAILED;
}

int tt_bench_ratios_main(int argc, char **argv)
{
    tt_bench_step_options options = {.steps = 5, .rounds = 3, .without_peak = true};
    const char *text = "1,2,5,10,50";
    const tt_option table[] = {
        {"ratios", TT_OPTION_TEXT, &text, "LIST",
         "compression of the tensor-train maps, commas between", NULL, 0, 0, false},
        {"steps", TT_OPTION_INTEGER, &options.steps, "N", "steps timed, after two to warm up", NULL,
         1, TT_BENCH_STEPS, false},
        {"rounds", TT_OPTION_INTEGER, &options.rounds, "N",
         "times that everything is measured, in turns; the median round is shown", NULL, 1,
         TT_BENCH_ROUNDS, false},
        {"phase", TT_OPTION_INTEGER, &options.phase, "N", "phase of the recipe, from 0", NULL, 0,
         64, false},
        {"batch", TT_OPTION_INTEGER, &options.batch, "N",
         "sequences a step over all ranks; 0: the recipe's", NULL, 0, 1e9, false},
        {"sequence-length", TT_OPTION_INTEGER, &options.sequence_length, "N",
         "tokens a sequence; 0: the recipe's", NULL, 0, 1e6, false},
        {"threads", TT_OPTION_INTEGER, &options.threads, "N", "threads a rank; 0: the recipe's",
         NULL, 0, 4096, false},
        {"json", TT_OPTION_FLAG, &options.json, NULL, "print JSON", NULL, 0, 0, false},
    };
    const tt_command command = {
        .name = "bench ratios",
        .arguments = "RECIPE [KEY=VALUE...]",
        .purpose = "Times training steps of a recipe, dense and at several compressions of its "
                   "tensor-train maps, in one run on random tokens.",
        .example = "ttrain bench ratios recipes/six_encoder/pretrain.yaml --threads 2",
        .options = table,
        .option_count = sizeof table / sizeof *table,
        .minimum_arguments = 1,
        .maximum_arguments = -1};
    char **arguments;
    int count, exit_status, ratio_count = 0;
    double ratios[MOST_MODELS];
    if (!tt_command_parse(&command, argc, argv, &arguments, &count, &exit_status)) {
        return exit_status;
    }
    if (!read_ratios(text, ratios, &ratio_count)) {
        return tt_command_usage("bench ratios",
                                "--ratios: expected up to %d numbers from 1 to 1e6 with commas "
                                "between, found '%s'",
                                MOST_MODELS - 1, text);
    }
    tt_run run = {0};
    tt_error error = {0};
    if (tt_bench_step_set_up(&run, arguments, count, &options, &error) != TT_OK) {
        exit_status =
            run.world.rank == 0 ? tt_command_failed("bench ratios", &error) : TT_EXIT_FAILED;
    } else {
        exit_status = run_bench(&run, ratios, ratio_count, &options);
    }
    tt_world_leave(&run.world);
    return exit_status;
}

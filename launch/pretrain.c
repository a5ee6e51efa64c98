#include "launch/pretrain.h"

#include "data/file.h"
#include "launch/command_line.h"
#include "launch/model_recipe.h"
#include "launch/stop_signal.h"
#include "launch/storage.h"
#include "launch/trainer.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the two commands of this file differ in. */
typedef struct {
    const char *name, *purpose, *example;
    bool task; /* trains for a task */
} training_command;

typedef struct {
    const training_command *command;
    bool resume;
    const char *resume_from;
    bool check_only;
} pretrain_options;

static void join_path(char target[TT_CHECKPOINT_PATH], const char *folder, const char *name)
{
    snprintf(target, TT_CHECKPOINT_PATH, "%s/%s", folder, name);
}

/* A folder with results of an earlier run is not written over. */
static tt_status check_output(const tt_trainer *trainer, bool resume, tt_error *error)
{
    struct stat metrics;
    bool trained = stat(trainer->metrics_path, &metrics) == 0 && metrics.st_size > 0;
    if (!resume && (trained || tt_checkpoint_newest_step(trainer->checkpoints) >= 0)) {
        return tt_error_set(
            error, TT_INVALID_INPUT,
            "output: %s holds an earlier run; go on from it with --resume, or choose "
            "another folder with output=PATH",
            trainer->run->recipe.output);
    }
    return TT_OK;
}

/* The run's folder, with the resolved recipe and the metrics up to where the run goes on. */
static tt_status open_output(tt_trainer *trainer, tt_error *error)
{
    const tt_recipe *recipe = &trainer->run->recipe;
    char path[TT_CHECKPOINT_PATH];
    join_path(path, recipe->output, "recipe.yaml");
    TT_TRY(tt_file_make_folder(recipe->output, error));
    TT_TRY(tt_checkpoint_prepare(trainer->checkpoints, error));
    TT_TRY(tt_recipe_save(recipe, path, error));
    TT_TRY(tt_metrics_open(trainer->metrics_path, trainer->state.step, &trainer->metrics, error));
    return recipe->log.tensorboard == TT_RECIPE_ON
               ? tt_metrics_add_event_file(trainer->metrics, error)
               : TT_OK;
}

/* The newest whole checkpoint of the run's folder; none is fine only where none was ever written.
 */
static tt_status find_checkpoint(const tt_trainer *trainer, char path[TT_CHECKPOINT_PATH],
                                 tt_error *error)
{
    const char *folder = trainer->checkpoints;
    TT_TRY(tt_checkpoint_prepare(folder, error));
    TT_TRY(tt_checkpoint_find_newest(folder, path, stderr, error));
    if (!path[0] && tt_checkpoint_newest_step(folder) >= 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected a whole checkpoint, found damaged ones only; to start "
                            "again choose another folder with output=PATH",
                            folder);
    }
    return TT_OK;
}

/* The checkpoint to go on from, "" for a fresh start; rank 0 looks. */
static tt_status choose_checkpoint(const tt_trainer *trainer, const pretrain_options *options,
                                   char path[TT_CHECKPOINT_PATH], tt_error *error)
{
    path[0] = '\0';
    if (options->resume_from) {
        snprintf(path, TT_CHECKPOINT_PATH, "%s", options->resume_from);
        TT_TRY(tt_checkpoint_verify(path, error));
    } else if (options->resume) {
        TT_TRY(find_checkpoint(trainer, path, error));
    }
    if (options->resume) {
        fprintf(stderr, path[0] ? "resuming from %s\n" : "nothing to resume from in %s: starting\n",
                path[0] ? path : trainer->checkpoints);
    }
    return TT_OK;
}

/* The position in the shards counts samples, so a phase that has begun keeps its batch. */
static tt_status check_position(const tt_trainer *trainer, const char *path, tt_error *error)
{
    const tt_training_state *state = &trainer->state;
    const tt_recipe_phase *phase = &trainer->run->recipe.phases[state->phase];
    if (state->phase_step > phase->steps) {
        return tt_error_set(
            error, TT_INVALID_INPUT,
            "phases.%lld.steps: expected at least %lld, the steps that %s has done; "
            "found %lld",
            (long long)state->phase, (long long)state->phase_step, path, (long long)phase->steps);
    }
    if (state->phase_samples != state->phase_step * phase->global_batch) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "phases.%lld.global_batch: expected %lld, as in %s; found %lld",
                            (long long)state->phase,
                            (long long)(state->phase_samples / state->phase_step), path,
                            (long long)phase->global_batch);
    }
    return TT_OK;
}

static tt_status check_resumed(const tt_trainer *trainer, const char *path,
                               const pretrain_options *options, tt_error *error)
{
    const tt_training_state *state = &trainer->state;
    const tt_recipe *recipe = &trainer->run->recipe;
    int64_t newest = tt_checkpoint_newest_step(trainer->checkpoints);
    if (state->seed != (uint64_t)recipe->seed) {
        return tt_error_set(error, TT_INVALID_INPUT, "seed: expected %llu, as in %s; found %lld",
                            (unsigned long long)state->seed, path, (long long)recipe->seed);
    }
    /* Left there, they would be what the next --resume takes. */
    if (options->resume_from && newest > state->step) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "output: %s has a checkpoint of step %lld, later than %s; move it away "
                            "or choose another folder with output=PATH",
                            recipe->output, (long long)newest, path);
    }
    return state->phase < (int64_t)recipe->phase_count ? check_position(trainer, path, error)
                                                       : TT_OK;
}

/* Rank 0 reads; the others get its bytes, so that no shared file system is needed. */
static void share_state(tt_trainer *trainer)
{
    tt_run *run = trainer->run;
    tt_training_state *state = &trainer->state;
    char *recipe = state->recipe;
    tt_checkpoint_layer *layers = state->layers;
    int layer_count = state->layer_count;
    tt_world_broadcast(&run->world, state, sizeof *state);
    state->recipe = recipe;
    state->layers = layers;
    state->layer_count = layer_count;
    tt_parameters *parameters = &run->model.parameters;
    float *buffers[] = {parameters->values, parameters->first_moment, parameters->second_moment};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        tt_collectives_broadcast(run->collectives, buffers[i],
                                 parameters->total * (int64_t)sizeof(float));
    }
}

static tt_status read_checkpoint(tt_trainer *trainer, const char *path,
                                 const pretrain_options *options, tt_error *error)
{
    tt_training_state loaded = {0};
    TT_TRY(tt_checkpoint_read_state(path, &loaded, error));
    free(loaded.recipe);
    free(loaded.layers);
    loaded.recipe = trainer->state.recipe;
    loaded.layers = trainer->state.layers;
    loaded.layer_count = trainer->state.layer_count;
    loaded.dense_parameters = trainer->state.dense_parameters;
    trainer->state = loaded;
    /* A phase that is done leaves the next one's beginning. */
    const tt_recipe *recipe = &trainer->run->recipe;
    if (loaded.phase < (int64_t)recipe->phase_count &&
        loaded.phase_step == recipe->phases[loaded.phase].steps) {
        trainer->state.phase++;
        trainer->state.phase_step = trainer->state.phase_samples = 0;
    }
    trainer->state.world_size = trainer->run->world.size;
    TT_TRY(check_resumed(trainer, path, options, error));
    return tt_checkpoint_load(path, &trainer->run->model.parameters, true, error);
}

static tt_status read_initial_weights(const tt_trainer *trainer, const char *path, tt_error *error)
{
    const tt_parameters *parameters = &trainer->run->model.parameters;
    int kept = 0;
    TT_TRY(trainer->run->recipe.task.kind != TT_TASK_NONE
               ? tt_checkpoint_load_encoder(path, parameters, &kept, error)
               : tt_checkpoint_load(path, parameters, false, error));
    if (kept > 0) {
        fprintf(stderr, "weights taken from %s, but for %d parameters of the head, which are new\n",
                path, kept);
    } else {
        fprintf(stderr, "weights taken from %s\n", path);
    }
    return TT_OK;
}

/* Where a run starts: from a checkpoint, from the weights of one, or, without path, afresh. */
typedef struct {
    char path[TT_CHECKPOINT_PATH];
    bool resumes;
} run_start;

/* A run's folder of checkpoints stands for the newest one in it. */
static tt_status find_initial(const char *path, char found[TT_CHECKPOINT_PATH], tt_error *error)
{
    char manifest[TT_CHECKPOINT_PATH];
    join_path(manifest, path, "manifest.json");
    if (tt_checkpoint_newest_step(path) >= 0 && access(manifest, F_OK) != 0) {
        TT_TRY(tt_checkpoint_find_newest(path, found, stderr, error));
        return found[0]
                   ? TT_OK
                   : tt_error_set(error, TT_INVALID_INPUT,
                                  "%s: expected a whole checkpoint, found damaged ones only", path);
    }
    snprintf(found, TT_CHECKPOINT_PATH, "%s", path);
    return tt_checkpoint_verify(found, error);
}

/* Rank 0 looks. A check is about how the run would begin, whatever its folder holds. */
static tt_status choose_start(const tt_trainer *trainer, const pretrain_options *options,
                              run_start *start, tt_error *error)
{
    if (!options->check_only) {
        TT_TRY(check_output(trainer, options->resume, error));
        TT_TRY(choose_checkpoint(trainer, options, start->path, error));
    }
    start->resumes = start->path[0] != '\0';
    if (!start->resumes && trainer->run->recipe.initialize[0]) {
        tt_status status = find_initial(trainer->run->recipe.initialize, start->path, error);
        return status == TT_OK ? status : tt_error_prefix(error, "initialize");
    }
    return TT_OK;
}

static tt_status read_start(tt_trainer *trainer, const pretrain_options *options,
                            const run_start *start, tt_error *error)
{
    if (start->resumes) {
        return read_checkpoint(trainer, start->path, options, error);
    }
    return start->path[0] ? read_initial_weights(trainer, start->path, error) : TT_OK;
}

static tt_status start_state(tt_trainer *trainer, tt_error *error)
{
    tt_run *run = trainer->run;
    tt_configuration twin = tt_configuration_dense_twin(&run->configuration);
    trainer->state =
        (tt_training_state){.seed = (uint64_t)run->recipe.seed,
                            .world_size = run->world.size,
                            .validation_loss = NAN,
                            .best_validation_loss = NAN,
                            .best_step = -1,
                            .dense_parameters = tt_model_recipe_parameters(&run->recipe, &twin),
                            .recipe = tt_recipe_text(&run->recipe)};
    if (!trainer->state.recipe) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the recipe's text");
    }
    return tt_trainer_list_layers(trainer, error);
}

enum { TT_SPARE_WORDS = 128 /* a vocabulary rounded up to a multiple is nothing to tell */ };

static void announce_spare_words(const tt_run *run)
{
    long long words = (long long)run->configuration.vocabulary_size;
    long long spare = words - (long long)run->vocabulary_size;
    if (run->vocabulary_size > 0 && spare >= TT_SPARE_WORDS) {
        fprintf(stderr,
                "ttrain: warning: model.vocabulary_size is %lld, but the %s has %lld: %lld word "
                "embeddings are for nothing\n",
                words, run->recipe.data.tokenizer[0] ? "tokenizer" : "shards' vocabulary",
                (long long)run->vocabulary_size, spare);
    }
}

static void announce_run(const tt_trainer *trainer, const char *hosts)
{
    const tt_run *run = trainer->run;
    int64_t parameters = tt_parameters_size(&run->model.parameters);
    int64_t dense = trainer->state.dense_parameters;
    int64_t words = tt_word_table_size(&run->model.encoder.words);
    int64_t dense_words = run->configuration.vocabulary_size * run->configuration.hidden_size;
    char device[512];
    tt_run_describe_device(run, device, sizeof device);
    fprintf(stderr,
            "%s: %lld parameters, %.1fx smaller than dense (%lld); without word embeddings %.1fx; "
            "%d rank%s on %s, device %s\n",
            run->recipe.name, (long long)parameters, (double)dense / (double)parameters,
            (long long)dense, (double)(dense - dense_words) / (double)(parameters - words),
            run->world.size, run->world.size > 1 ? "s" : "",
            run->world.size > 1 ? hosts : run->world.host, device);
}

static tt_status build(tt_trainer *trainer, const run_start *start, tt_error *error)
{
    tt_run *run = trainer->run;
    TT_TRY(tt_run_read_vocabulary(run, error));
    tt_status status = tt_run_build_model(run, true, error);
    if (status == TT_INVALID_INPUT && start->path[0]) {
        return tt_error_prefix(error, "%s", start->path);
    }
    return status == TT_OK ? start_state(trainer, error) : status;
}

static tt_status check_command(const tt_recipe *recipe, const training_command *command,
                               tt_error *error)
{
    if ((recipe->task.kind != TT_TASK_NONE) != command->task) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            command->task
                                ? "task.kind: expected a task, found none; to pre-train, use "
                                  "ttrain pretrain"
                                : "task.kind: expected none, found a task; to train for it, use "
                                  "ttrain finetune");
    }
    return TT_OK;
}

static tt_status set_up(tt_trainer *trainer, char **arguments, int count,
                        const pretrain_options *options, tt_error *error)
{
    tt_run *run = trainer->run;
    const tt_world *world = &run->world;
    bool first = world->rank == 0;
    char hosts[1024];
    run_start start = {.resumes = false};
    TT_TRY(tt_run_read_recipe(run, arguments[0], arguments + 1, count - 1, error));
    TT_TRY(tt_world_agree(world, check_command(&run->recipe, options->command, error), error));
    TT_TRY(tt_world_same(world, "--check", options->check_only, error));
    TT_TRY(tt_world_agree(world, tt_run_open_device(run, error), error));
    TT_TRY(tt_run_connect(run, error));
    join_path(trainer->checkpoints, run->recipe.output, "checkpoints");
    join_path(trainer->metrics_path, run->recipe.output, "metrics.jsonl");
    tt_status status = first ? choose_start(trainer, options, &start, error) : TT_OK;
    TT_TRY(tt_world_share(world, status, error));
    TT_TRY(tt_run_take_shapes(run, start.path, error));
    TT_TRY(tt_world_agree(world, build(trainer, &start, error), error));
    TT_TRY(tt_world_same(world, "the number of parameters", (uint64_t)run->model.parameters.total,
                         error));
    status = first ? read_start(trainer, options, &start, error) : TT_OK;
    TT_TRY(tt_world_share(world, status, error));
    share_state(trainer);
    TT_TRY(tt_trainer_check_shards(trainer, error));
    TT_TRY(tt_world_hosts(world, hosts, sizeof hosts, error));
    if (first) {
        announce_run(trainer, hosts);
        announce_spare_words(run);
    }
    status = first && !options->check_only ? open_output(trainer, error) : TT_OK;
    return tt_world_share(world, status, error);
}

static tt_status train(tt_trainer *trainer, tt_error *error)
{
    const tt_recipe *recipe = &trainer->run->recipe;
    bool first = trainer->run->world.rank == 0;
    int64_t steps = 0;
    for (uint64_t i = 0; i < recipe->phase_count; i++) {
        steps += recipe->phases[i].steps;
    }
    if (first) {
        tt_progress_start(&trainer->progress, stderr, steps);
    }
    tt_trainer_end end;
    TT_TRY(tt_trainer_run(trainer, &end, error));
    if (first) {
        tt_progress_end(&trainer->progress);
        TT_TRY(tt_metrics_close(&trainer->metrics, error));
        fprintf(stderr,
                end == TT_TRAINER_FINISHED
                    ? "done: %lld steps; checkpoints in %s, metrics in %s\n"
                    : "stopped after step %lld by a signal; checkpoint in %s, metrics in %s; go "
                      "on with the same command and --resume\n",
                (long long)trainer->state.step, trainer->checkpoints, trainer->metrics_path);
    }
    return TT_OK;
}

static void close_trainer(tt_trainer *trainer)
{
    tt_error ignored;
    tt_metrics_close(&trainer->metrics, &ignored);
    tt_trainer_free_task(trainer);
    tt_training_state_free(&trainer->state);
    tt_run_close(trainer->run);
}

/* One rank speaks for all when all know; a rank that fails alone speaks for itself and ends the
 * rest. */
static int report_failure(const tt_trainer *trainer, const char *command, const tt_error *error)
{
    const tt_world *world = &trainer->run->world;
    if (trainer->progress.stream) {
        tt_progress_end((tt_progress *)&trainer->progress);
    }
    if (error->shared || world->size == 1) {
        return world->rank == 0 ? tt_command_failed(command, error) : TT_EXIT_FAILED;
    }
    fprintf(stderr, "ttrain %s: rank %d on %s: %s\n", command, world->rank, world->host,
            error->message);
    tt_world_abort(world, TT_EXIT_FAILED);
}

static int run_command(const training_command *kind, int argc, char **argv)
{
    pretrain_options options = {.command = kind};
    const tt_option table[] = {
        {.name = "resume",
         .kind = TT_OPTION_FLAG,
         .target = &options.resume,
         .help = "go on from the newest valid checkpoint in the run's folder; start where there is "
                 "none"},
        {.name = "resume-from",
         .kind = TT_OPTION_TEXT,
         .target = &options.resume_from,
         .value = "PATH",
         .help =
             "go on from this checkpoint folder (to take its weights alone, set initialize=PATH)"},
        {.name = "check",
         .kind = TT_OPTION_FLAG,
         .target = &options.check_only,
         .help = "check recipe, tokenizer, model, first weights and shards, print the model's "
                 "size, and end"},
    };
    const tt_command command = {.name = kind->name,
                                .arguments = "RECIPE [KEY=VALUE...]",
                                .purpose = kind->purpose,
                                .example = kind->example,
                                .options = table,
                                .option_count = sizeof table / sizeof *table,
                                .minimum_arguments = 1,
                                .maximum_arguments = -1};
    char **arguments;
    int count, exit_status;
    if (!tt_command_parse(&command, argc, argv, &arguments, &count, &exit_status)) {
        return exit_status;
    }
    options.resume = options.resume || options.resume_from;
    tt_run run = {.world = {.size = 1, .local_size = 1}};
    tt_trainer trainer = {.run = &run, .stop_signal = tt_stop_signal()};
    tt_error error = {0};
    /* Of both, a signal and a write that failed, the write says more. */
    signal(SIGPIPE, SIG_IGN);
    tt_status status = tt_stop_signal_watch(&error);
    status = status == TT_OK ? tt_world_join(&run.world, &error) : status;
    status = status == TT_OK ? set_up(&trainer, arguments, count, &options, &error) : status;
    if (status == TT_OK && !options.check_only) {
        status = train(&trainer, &error);
    }
    exit_status = status == TT_OK ? TT_EXIT_DONE : report_failure(&trainer, kind->name, &error);
    close_trainer(&trainer);
    tt_world_leave(&run.world);
    return exit_status;
}

int tt_pretrain_main(int argc, char **argv)
{
    static const training_command kind = {
        .name = "pretrain",
        .purpose = "Trains a model by a recipe, on one process or, under mpirun, on many. Losses, "
                   "checkpoints and the resolved recipe go to the recipe's output folder. SIGTERM, "
                   "SIGINT and SIGUSR1 finish the step, write a checkpoint and end with status 0.",
        .example = "mpirun -np 2 ttrain pretrain recipes/wikitext_small/recipe.yaml seed=2"};
    return run_command(&kind, argc, argv);
}

int tt_finetune_main(int argc, char **argv)
{
    static const training_command kind = {
        .name = "finetune",
        .purpose = "Trains a model for a recipe's task, from fresh weights or from those of the "
                   "checkpoint that the recipe's key initialize names, as ttrain pretrain trains: "
                   "with the same options, files and signals, under mpirun or alone.",
        .example = "ttrain finetune recipes/entailment/late.yaml \\\n"
                   "      initialize=runs/entailment/early/checkpoints",
        .task = true};
    return run_command(&kind, argc, argv);
}

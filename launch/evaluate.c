#include "launch/evaluate.h"

#include "launch/command_line.h"
#include "launch/trainer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CLASSES = 16 };

typedef struct {
    const char *checkpoint; /* NULL: the newest of the recipe's run */
    int on;                 /* 0: the validation files, 1: the training files */
    bool json;
} evaluate_options;

typedef struct {
    char checkpoint[TT_CHECKPOINT_PATH];
    tt_step_result step;
    int classes;
    double confusion[MOST_CLASSES * MOST_CLASSES]; /* [true class, predicted class] */
} evaluation;

/* --- what a batch was taken for --- */

static float logit(const void *logits, tt_type type, int64_t index)
{
    if (type == TT_F32) {
        return ((const float *)logits)[index];
    }
    uint32_t bits = (uint32_t)((const uint16_t *)logits)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int likeliest(const void *logits, tt_type type, const float *bias, int64_t row, int classes)
{
    int best = 0;
    for (int i = 1; i < classes; i++) {
        float value = logit(logits, type, row * classes + i) + bias[i];
        best = value > logit(logits, type, row * classes + best) + bias[best] ? i : best;
    }
    return best;
}

/* Adds the batch that was evaluated last, all in one micro-batch. */
static void count_batch(tt_run *run, const tt_batch *batch, void *logits, evaluation *found)
{
    tt_device *device = run->device;
    const tt_sentence_head *head = &run->model.sentence;
    tt_encoder_inputs inputs = {.batch = batch->rows, .sequence = batch->sequence_length};
    tt_matrix values = tt_sentence_head_logits(head, &inputs);
    float bias[MOST_CLASSES];
    device->copy_out(device, logits, values.data,
                     tt_type_bytes(values.type, batch->rows * found->classes));
    device->copy_out(device, bias, tt_linear_bias(&head->classifier), tt_floats(found->classes));
    device->synchronize(device);
    for (int64_t row = 0; row < batch->rows; row++) {
        int label = batch->next_sentence_labels[row];
        if (label >= 0) {
            int guess = likeliest(logits, values.type, bias, row, found->classes);
            found->confusion[label * found->classes + guess] += 1.0;
        }
    }
}

static tt_status evaluate_rows(tt_trainer *trainer, tt_loader *loader, const tt_step_sizes *sizes,
                               evaluation *found, tt_error *error)
{
    tt_run *run = trainer->run;
    int64_t global = sizes->rows * run->world.size;
    int64_t batches = (tt_loader_rows(loader) + global - 1) / global;
    void *logits = malloc(tt_floats(sizes->rows * found->classes) + 1);
    tt_status status =
        logits ? TT_OK : tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for a batch's logits");
    status = tt_world_agree(&run->world, status, error);
    if (status == TT_OK) {
        tt_step_begin_evaluation(&trainer->step);
    }
    for (int64_t i = 0; i < batches && status == TT_OK; i++) {
        tt_batch *batch;
        bool stop = false;
        status = tt_step_next(&trainer->step, loader, &batch, &stop, error);
        if (status == TT_OK) {
            tt_step_evaluate(&trainer->step);
            count_batch(run, batch, logits, found);
        }
    }
    free(logits);
    TT_TRY(status);
    found->step = tt_step_end_evaluation(&trainer->step);
    tt_world_sum_doubles(&run->world, found->confusion, found->classes * found->classes);
    return tt_step_check(&trainer->step, error);
}

/* --- set-up --- */

static tt_status find_checkpoint(const tt_run *run, const char *asked, char *path, tt_error *error)
{
    if (asked) {
        snprintf(path, TT_CHECKPOINT_PATH, "%s", asked);
        return tt_checkpoint_verify(path, error);
    }
    char folder[TT_CHECKPOINT_PATH];
    snprintf(folder, sizeof folder, "%s/checkpoints", run->recipe.output);
    TT_TRY(tt_checkpoint_find_newest(folder, path, stderr, error));
    if (path[0] == '\0') {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected a checkpoint to evaluate, found none; train first, or "
                            "name one with --checkpoint",
                            folder);
    }
    return TT_OK;
}

static tt_status build_model(tt_run *run, const char *path, tt_error *error)
{
    const tt_world *world = &run->world;
    TT_TRY(tt_run_take_shapes(run, path, error));
    tt_status status = tt_run_read_vocabulary(run, error);
    status = status == TT_OK ? tt_run_build_model(run, false, error) : status;
    TT_TRY(tt_world_agree(world, status, error));
    const tt_parameters *parameters = &run->model.parameters;
    status = world->rank == 0 ? tt_checkpoint_load(path, parameters, false, error) : TT_OK;
    TT_TRY(tt_world_share(world, status, error));
    tt_collectives_broadcast(run->collectives, parameters->values,
                             parameters->total * (int64_t)sizeof(float));
    return TT_OK;
}

static tt_status read_rows(tt_trainer *trainer, const evaluate_options *options, int64_t phase,
                           tt_loader **loader, tt_error *error)
{
    TT_TRY(tt_trainer_find_shards(trainer, phase, &trainer->train_paths, &trainer->validation_paths,
                                  error));
    bool train = options->on == 1;
    const tt_run_paths *paths = train ? &trainer->train_paths : &trainer->validation_paths;
    if (paths->count == 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "data.validation: expected files to evaluate on, found none");
    }
    TT_TRY(tt_trainer_read_task(trainer, phase, train ? paths : &(tt_run_paths){0},
                                train ? &(tt_run_paths){0} : paths, error));
    tt_loader_options settings = tt_trainer_loader_options(trainer, phase, paths);
    settings.source =
        train ? tt_trainer_train_source(trainer) : tt_trainer_validation_source(trainer);
    return tt_loader_open(&settings, loader, error);
}

static tt_status evaluate(tt_trainer *trainer, const evaluate_options *options, evaluation *found,
                          tt_error *error)
{
    tt_run *run = trainer->run;
    const tt_world *world = &run->world;
    TT_TRY(tt_world_agree(world, tt_run_open_device(run, error), error));
    TT_TRY(tt_run_connect(run, error));
    tt_status status = world->rank == 0
                           ? find_checkpoint(run, options->checkpoint, found->checkpoint, error)
                           : TT_OK;
    TT_TRY(tt_world_share(world, status, error));
    TT_TRY(build_model(run, found->checkpoint, error));
    int64_t number = (int64_t)run->recipe.phase_count - 1;
    const tt_recipe_phase *phase = &run->recipe.phases[number];
    tt_loader *loader = NULL;
    TT_TRY(tt_world_agree(world, read_rows(trainer, options, number, &loader, error), error));
    int64_t rows = phase->global_batch / world->size;
    tt_step_sizes sizes = {
        .rows = rows, .micro_batch = rows, .sequence_length = phase->sequence_length};
    status =
        tt_step_create(&trainer->step, &run->model, NULL, world, run->collectives, &sizes, error);
    if (status == TT_OK) {
        status = evaluate_rows(trainer, loader, &sizes, found, error);
    }
    tt_loader_close(&loader);
    return status;
}

/* --- what is printed --- */

static void print_text(const tt_run *run, const evaluation *found)
{
    tt_task_kind kind = run->recipe.task.kind;
    printf("checkpoint  %s\n", found->checkpoint);
    printf("rows        %.0f\n", found->step.sentence_count);
    printf("loss        %.6f\n", found->step.next_sentence_loss);
    printf("accuracy    %.4f\n\n", found->step.next_sentence_accuracy);
    printf("%-16s", "class");
    for (int j = 0; j < found->classes; j++) {
        printf("  taken for %-13s", tt_task_class_name(kind, j));
    }
    printf("\n");
    for (int i = 0; i < found->classes; i++) {
        printf("%-16s", tt_task_class_name(kind, i));
        for (int j = 0; j < found->classes; j++) {
            printf("  %23.0f", found->confusion[i * found->classes + j]);
        }
        printf("\n");
    }
}

static void print_json(const tt_run *run, const evaluation *found)
{
    json_t *names = json_array(), *table = json_array();
    for (int i = 0; i < found->classes; i++) {
        json_t *row = json_array();
        json_array_append_new(names, json_string(tt_task_class_name(run->recipe.task.kind, i)));
        for (int j = 0; j < found->classes; j++) {
            json_array_append_new(
                row, json_integer((json_int_t)found->confusion[i * found->classes + j]));
        }
        json_array_append_new(table, row);
    }
    json_t *report =
        json_pack("{s:s, s:I, s:f, s:f, s:I, s:o, s:o}", "checkpoint", found->checkpoint, "rows",
                  (json_int_t)found->step.sentence_count, "loss", found->step.next_sentence_loss,
                  "accuracy", found->step.next_sentence_accuracy, "parameters",
                  (json_int_t)tt_parameters_size(&run->model.parameters), "classes", names,
                  "confusion", table);
    json_dumpf(report, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(report);
}

static tt_status run_evaluation(tt_trainer *trainer, char **arguments, int count,
                                const evaluate_options *options, tt_error *error)
{
    tt_run *run = trainer->run;
    evaluation found = {.checkpoint = ""};
    TT_TRY(tt_run_read_recipe(run, arguments[0], arguments + 1, count - 1, error));
    found.classes = tt_task_classes(run->recipe.task.kind);
    tt_status status = TT_OK;
    if (found.classes == 0) {
        status = tt_error_set(error, TT_INVALID_INPUT,
                              "task.kind: expected a task to evaluate, found none");
    }
    TT_TRY(tt_world_agree(&run->world, status, error));
    TT_TRY(evaluate(trainer, options, &found, error));
    if (run->world.rank == 0) {
        options->json ? print_json(run, &found) : print_text(run, &found);
    }
    if (fflush(stdout) != 0) {
        return tt_error_set(error, TT_IO_FAILED, "standard output cannot be written");
    }
    return TT_OK;
}

static void close_all(tt_trainer *trainer)
{
    tt_step_destroy(&trainer->step);
    tt_run_free_paths(&trainer->train_paths);
    tt_run_free_paths(&trainer->validation_paths);
    tt_trainer_free_task(trainer);
    tt_run_close(trainer->run);
}

static int report_failure(const tt_world *world, const tt_error *error)
{
    if (error->shared || world->size == 1) {
        return world->rank == 0 ? tt_command_failed("evaluate", error) : TT_EXIT_FAILED;
    }
    fprintf(stderr, "ttrain evaluate: rank %d on %s: %s\n", world->rank, world->host,
            error->message);
    tt_world_abort(world, TT_EXIT_FAILED);
}

int tt_evaluate_main(int argc, char **argv)
{
    static const char *const sets[] = {"validation", "train", NULL};
    evaluate_options options = {.checkpoint = NULL};
    const tt_option table[] = {
        {.name = "checkpoint",
         .kind = TT_OPTION_TEXT,
         .target = &options.checkpoint,
         .value = "PATH",
         .help = "the checkpoint to evaluate; default: the newest of the recipe's run"},
        {.name = "on",
         .kind = TT_OPTION_CHOICE,
         .target = &options.on,
         .choices = sets,
         .help = "which of the recipe's files"},
        {.name = "json",
         .kind = TT_OPTION_FLAG,
         .target = &options.json,
         .help = "print a JSON object instead of text"},
    };
    const tt_command command = {
        .name = "evaluate",
        .arguments = "RECIPE [KEY=VALUE...]",
        .purpose = "Tells how well a checkpoint does a recipe's task: loss, accuracy, and which "
                   "class was taken for which.",
        .example = "ttrain evaluate recipes/entailment/early.yaml --on train",
        .options = table,
        .option_count = sizeof table / sizeof *table,
        .minimum_arguments = 1,
        .maximum_arguments = -1};
    char **arguments;
    int count, exit_status;
    if (!tt_command_parse(&command, argc, argv, &arguments, &count, &exit_status)) {
        return exit_status;
    }
    tt_run run = {.world = {.size = 1, .local_size = 1}};
    tt_trainer trainer = {.run = &run};
    tt_error error = {0};
    tt_status status = tt_world_join(&run.world, &error);
    if (status == TT_OK) {
        status = run_evaluation(&trainer, arguments, count, &options, &error);
    }
    exit_status = status == TT_OK ? TT_EXIT_DONE : report_failure(&run.world, &error);
    close_all(&trainer);
    tt_world_leave(&run.world);
    return exit_status;
}

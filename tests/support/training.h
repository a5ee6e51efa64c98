/* Small training runs: a corpus, a tokenizer and shards made by the program itself, a recipe of two
 * phases, and what such runs leave behind.
 *
 * The scratch folder holds
 *     corpus.txt  tokenizer.model  recipe.yaml
 *     length32/ length64/     train_0000[0-5].hdf5, validation_00000.hdf5
 * and every run of the program is started there. */
#ifndef TT_TESTS_SUPPORT_TRAINING_H
#define TT_TESTS_SUPPORT_TRAINING_H

#include "support/program.h"

enum {
    TRAINING_SECONDS = 300,    /* that a run may take on a busy machine, under a sanitizer */
    FAILURE_SECONDS = 60,      /* within which a failing run has ended; a hang would be for good */
    TRAINING_FIRST_STEPS = 14, /* of the recipe's first phase */
    TRAINING_STEPS = 24,
};

static const char training_recipe[] =
    "name: test\n"
    "seed: 3\n"
    "output: run\n"
    "model: {preset: small, max_positions: 64}\n"
    "tensor_train: {form: tensor_train, rank: 8}\n"
    "data: {tokenizer: tokenizer.model, max_predictions: 8}\n"
    "phases:\n"
    "  - {name: short, sequence_length: 32, steps: 14, global_batch: 8, learning_rate: 2e-3,\n"
    "     train: length32/train_*.hdf5, validation: length32/validation_*.hdf5}\n"
    "  - {name: long, sequence_length: 64, steps: 10, global_batch: 8, learning_rate: 1e-3,\n"
    "     train: length64/train_*.hdf5, validation: length64/validation_*.hdf5}\n"
    "checkpoint: {interval: 5}\n"
    "validation: {interval: 10}\n"
    "log: {interval: 1}\n";

/* A run of `ttrain pretrain`: recipe.yaml with these arguments after it. */
typedef struct {
    const char *command;       /* NULL: pretrain */
    int ranks;                 /* 0: without mpirun */
    const char *recipe;        /* NULL: recipe.yaml */
    const char *arguments[16]; /* KEY=VALUE and options */
    const char *environment[PROGRAM_ENVIRONMENT];
    uint64_t file_limit;
    const char *wrapper; /* script that each rank is started by; NULL: the one that notes its id */
    const char *mpirun_arguments[6];
} training;

typedef struct {
    int status;
    char *log; /* stderr of all ranks and of mpirun; free with free() */
} training_end;

/* --- scripts that start a rank --- */

/* Each rank's process id goes to pid.N. */
static const char script_note_id[] = "#!/bin/sh\n"
                                     "echo $$ > pid.${OMPI_COMM_WORLD_RANK:-0}\n"
                                     "exec \"$@\"\n";
/* Each rank's exit status goes to status.N. */
static const char script_note_status[] = "#!/bin/sh\n"
                                         "trap : TERM\n"
                                         "\"$@\"\n"
                                         "status=$?\n"
                                         "echo $status > status.${OMPI_COMM_WORLD_RANK:-0}\n"
                                         "exit $status\n";
/* Each rank's stderr goes to stderr.N, past mpirun, which reads no more once it is to end. */
static const char script_own_stderr[] = "#!/bin/sh\n"
                                        "exec \"$@\" 2>stderr.$OMPI_COMM_WORLD_RANK\n";
/* Each rank works in a folder of its own, rank0, rank1, ... */
static const char script_own_folder[] = "#!/bin/sh\n"
                                        "cd rank$OMPI_COMM_WORLD_RANK && exec \"$@\"\n";

static UNUSED void write_script(const char *name, const char *text)
{
    const char *path = scratch_path(name);
    scratch_write(path, text, strlen(text));
    assert_int_equal(chmod(path, 0755), 0);
}

/* --- set-up --- */

static UNUSED void run_command(const char *const *arguments)
{
    program_call call = {.arguments = {TTRAIN_PROGRAM}};
    for (int i = 0; arguments[i]; i++) {
        call.arguments[i + 1] = arguments[i];
    }
    program started = program_start(&call);
    int status = program_wait(&started, TRAINING_SECONDS);
    if (status != 0) {
        fail_msg("status %d: %s", status, end_of(program_log(&started)));
    }
}

#define RUN_COMMAND(...) run_command((const char *const[]){__VA_ARGS__, NULL})

/* The scripts alone. */
static UNUSED int scripts_setup(void **state)
{
    if (scratch_setup(state) != 0) {
        return -1;
    }
    write_script("note_id", script_note_id);
    write_script("note_status", script_note_status);
    write_script("own_stderr", script_own_stderr);
    write_script("own_folder", script_own_folder);
    return 0;
}

static UNUSED int training_setup(void **state)
{
    if (scripts_setup(state) != 0) {
        return -1;
    }
    RUN_COMMAND("prepare", "synthetic", "--documents", "60", "--output", "corpus.txt");
    RUN_COMMAND("prepare", "tokenizer", "--input", "corpus.txt", "--vocab-size", "300", "--threads",
                "1", "--output", "tokenizer.model");
    RUN_COMMAND("prepare", "text", "--input", "corpus.txt", "--tokenizer", "tokenizer.model",
                "--sequence-length", "32", "--validation-fraction", "0.1", "--shards", "6",
                "--output", "length32");
    RUN_COMMAND("prepare", "text", "--input", "corpus.txt", "--tokenizer", "tokenizer.model",
                "--sequence-length", "64", "--validation-fraction", "0.1", "--shards", "6",
                "--output", "length64");
    scratch_write(scratch_path("recipe.yaml"), training_recipe, strlen(training_recipe));
    return 0;
}

/* --- runs --- */

static UNUSED program start_training(const training *run)
{
    program_call call = {.file_limit = run->file_limit};
    static char ranks[16], wrapper[32];
    int count = 0;
    if (run->ranks > 0) {
        snprintf(ranks, sizeof ranks, "%d", run->ranks);
        snprintf(wrapper, sizeof wrapper, "./%s", run->wrapper ? run->wrapper : "note_id");
        const char *const start[] = {TTRAIN_MPIRUN,     "-np",       ranks,
                                     "--oversubscribe", "--bind-to", "none"};
        for (size_t i = 0; i < sizeof start / sizeof *start; i++) {
            call.arguments[count++] = start[i];
        }
        for (int i = 0; i < 6 && run->mpirun_arguments[i]; i++) {
            call.arguments[count++] = run->mpirun_arguments[i];
        }
        call.arguments[count++] = wrapper;
    }
    call.arguments[count++] = TTRAIN_PROGRAM;
    call.arguments[count++] = run->command ? run->command : "pretrain";
    call.arguments[count++] = run->recipe ? run->recipe : "recipe.yaml";
    for (int i = 0; i < 16 && run->arguments[i]; i++) {
        call.arguments[count++] = run->arguments[i];
    }
    int settings = 0;
    while (settings < PROGRAM_ENVIRONMENT && run->environment[settings]) {
        call.environment[settings] = run->environment[settings];
        settings++;
    }
    if (run->ranks > 0 && settings < PROGRAM_ENVIRONMENT) {
        call.environment[settings] = PROGRAM_USES_MPI;
    }
    return program_start(&call);
}

static UNUSED training_end end_training(const program *started, double seconds)
{
    training_end end = {.status = program_wait(started, seconds)};
    end.log = program_log(started);
    return end;
}

static UNUSED training_end run_training(const training *run)
{
    program started = start_training(run);
    return end_training(&started, TRAINING_SECONDS);
}

/* Runs to the end and expects that it went well. */
static UNUSED void train(const training *run)
{
    training_end end = run_training(run);
    if (end.status != 0) {
        fail_msg("status %d:\n%s", end.status, end_of(end.log));
    }
    free(end.log);
}

#define TRAIN(...) train(&(training){__VA_ARGS__})

/* All ranks together said one line of their own, which holds `fragment`. */
static UNUSED void expect_one_line(const char *log, const char *fragment)
{
    if (count_lines(log, "ttrain pretrain: ") != 1) {
        fail_msg("expected one line with \"%s\", found:\n%s", fragment, end_of(log));
    }
    const char *line = strstr(log, "ttrain pretrain: ");
    const char *found = strstr(line, fragment), *end = strchr(line, '\n');
    if (!found || !end || found > end) {
        fail_msg("expected \"%s\" in the error, found:\n%s", fragment, end_of(log));
    }
}

static UNUSED void expect_training_failure(const training_end *end, const char *fragment)
{
    if (end->status == 0) {
        fail_msg("expected a failure, found status 0 and:\n%s", end_of(end->log));
    }
    expect_one_line(end->log, fragment);
}

static UNUSED pid_t rank_process(int rank)
{
    char name[32];
    snprintf(name, sizeof name, "pid.%d", rank);
    char *text = scratch_read(scratch_path(name), NULL);
    pid_t process = (pid_t)strtol(text, NULL, 10);
    free(text);
    assert_true(process > 1);
    return process;
}

/* --- what a run leaves --- */

static UNUSED const char *metrics_path(const char *output)
{
    char name[256];
    snprintf(name, sizeof name, "%s/metrics.jsonl", output);
    return scratch_path(name);
}

/* Whether a whole line of metrics says what ranks all layers have, not how a step went. */
static UNUSED bool is_about_ranks(const char *line)
{
    const char *key = strstr(line, "\"compaction\""), *end = strchr(line, '\n');
    return key && end && key < end;
}

/* Whole lines about steps in a run's metrics so far; those about ranks do not count. */
static UNUSED int metrics_lines(const char *output)
{
    const char *path = metrics_path(output);
    if (access(path, R_OK) != 0) {
        return 0;
    }
    char *text = scratch_read(path, NULL);
    int count = 0;
    const char *line = text;
    for (const char *at = strchr(text, '\n'); at; at = strchr(at + 1, '\n')) {
        count += !is_about_ranks(line);
        line = at + 1;
    }
    free(text);
    return count;
}

/* Waits until a run has logged `lines` lines. False when it ended before. */
static UNUSED bool wait_for_lines(const program *started, const char *output, int lines,
                                  int *status)
{
    double until = program_clock() + TRAINING_SECONDS;
    while (metrics_lines(output) < lines) {
        if (program_ended(started, status)) {
            return false;
        }
        if (program_clock() > until) {
            fail_msg("no line %d of metrics yet: %s", lines, end_of(program_log(started)));
        }
        program_sleep(0.001);
    }
    return true;
}

/* The metrics without what depends on the clock and without lines about ranks, from line `first`
 * (counted from 1) on; free with free(). */
static UNUSED char *metrics_from(const char *output, int first)
{
    static const char timing[] = ", \"timing\": {";
    char *text = scratch_read(metrics_path(output), NULL);
    char *to = text;
    int line = 1;
    bool begins = true;
    for (const char *from = text; *from;) {
        if (begins && is_about_ranks(from)) {
            from = strchr(from, '\n') + 1;
            continue;
        }
        if (strncmp(from, timing, sizeof timing - 1) == 0) {
            from = strchr(from, '}');
            assert_non_null(from);
            from++;
            continue;
        }
        char letter = *from++;
        if (line >= first) {
            *to++ = letter;
        }
        begins = letter == '\n';
        line += begins;
    }
    *to = '\0';
    return text;
}

static UNUSED void expect_same_metrics_from(const char *output, const char *expected, int first)
{
    char *found = metrics_from(output, first), *right = metrics_from(expected, first);
    assert_true(right[0] == '{');
    assert_non_null(strstr(right, "\"loss\""));
    assert_string_equal(found, right);
    free(found);
    free(right);
}

static UNUSED void expect_same_metrics(const char *output, const char *expected)
{
    expect_same_metrics_from(output, expected, 1);
}

/* A number in line `line` (counted from 1) of a run's metrics. */
static UNUSED double metric(const char *output, int line, const char *key)
{
    char name[64];
    char *text = metrics_from(output, line);
    snprintf(name, sizeof name, "\"%s\": ", key);
    const char *at = strstr(text, name), *end = strchr(text, '\n');
    if (!at || !end || at > end) {
        fail_msg("no %s in line %d of %s/metrics.jsonl", key, line, output);
    }
    double value = strtod(at + strlen(name), NULL);
    free(text);
    return value;
}

static UNUSED bool has_checkpoint(const char *output, int step)
{
    char name[256];
    snprintf(name, sizeof name, "%s/checkpoints/step_%08d/manifest.json", output, step);
    return access(scratch_path(name), R_OK) == 0;
}

#endif

#include "launch/inspect.h"

#include "launch/checkpoint_files.h"
#include "launch/command_line.h"
#include "launch/inspect_report.h"
#include "launch/recipe.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

typedef enum { TT_KIND_FOLDER, TT_KIND_SHARD, TT_KIND_TOKENIZER, TT_KIND_RECIPE } tt_path_kind;

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* Tells files apart by their first bytes, and only text by its name: a SentencePiece model begins
 * with a field mark that no recipe begins with. */
static tt_status kind_of(const char *path, tt_path_kind *kind, tt_error *error)
{
    struct stat status;
    if (stat(path, &status) != 0) {
        return tt_error_set(error, TT_IO_FAILED, "%s: %s", path, strerror(errno));
    }
    if (S_ISDIR(status.st_mode)) {
        *kind = TT_KIND_FOLDER;
        return TT_OK;
    }
    if (!S_ISREG(status.st_mode)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected a file or a folder, found something else", path);
    }
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        return tt_error_set(error, TT_IO_FAILED, "%s: %s", path, strerror(errno));
    }
    char start[8] = {0};
    size_t got = fread(start, 1, sizeof start, file);
    fclose(file);
    bool is_hdf5 = got == sizeof start && memcmp(start, "\x89HDF\r\n\x1a\n", got) == 0;
    /* A shard by name only is opened as one, so that what is wrong with it is said. */
    if (is_hdf5 || ends_with(path, ".hdf5") || ends_with(path, ".h5")) {
        *kind = TT_KIND_SHARD;
    } else if (ends_with(path, ".model") || ends_with(path, ".txt") ||
               memchr(start, '\0', got) != NULL) {
        *kind = TT_KIND_TOKENIZER;
    } else {
        *kind = TT_KIND_RECIPE;
    }
    return TT_OK;
}

/* A run's folder of checkpoints stands for the newest one in it. */
static tt_status inspect_folder(const char *path, json_t **report, tt_error *error)
{
    char newest[TT_CHECKPOINT_PATH];
    struct stat status;
    TT_TRY(tt_checkpoint_join(newest, path, "manifest.json", error));
    if (stat(newest, &status) == 0) {
        return tt_inspect_checkpoint(path, report, error);
    }
    TT_TRY(tt_checkpoint_join(newest, path, "metrics.jsonl", error));
    if (stat(newest, &status) == 0) {
        return tt_inspect_run(path, report, error);
    }
    TT_TRY(tt_checkpoint_find_newest(path, newest, stderr, error));
    if (newest[0] == '\0') {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected a run's folder, a checkpoint or a folder of checkpoints, "
                            "found no metrics.jsonl, no manifest.json and no step_NNNNNNNN",
                            path);
    }
    return tt_inspect_checkpoint(newest, report, error);
}

static tt_status inspect(const char *path, const char *const *overrides, int override_count,
                         json_t **report, tt_error *error)
{
    tt_path_kind kind = TT_KIND_RECIPE;
    TT_TRY(kind_of(path, &kind, error));
    if (kind != TT_KIND_RECIPE && override_count > 0) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: only a recipe takes KEY=VALUE", path);
    }
    switch (kind) {
    case TT_KIND_FOLDER:
        return inspect_folder(path, report, error);
    case TT_KIND_SHARD:
        return tt_inspect_shard(path, report, error);
    case TT_KIND_TOKENIZER:
        return tt_inspect_tokenizer(path, report, error);
    case TT_KIND_RECIPE:
        break;
    }
    return tt_inspect_recipe(path, overrides, override_count, report, error);
}

static int print_report(const json_t *report, bool json)
{
    if (json) {
        json_dumpf(report, stdout, JSON_INDENT(2));
        fputc('\n', stdout);
    } else {
        tt_inspect_print(report, stdout);
    }
    if (fflush(stdout) != 0) {
        tt_error error;
        tt_error_set(&error, TT_IO_FAILED, "standard output: %s", strerror(errno));
        return tt_command_failed("inspect", &error);
    }
    return TT_EXIT_DONE;
}

int tt_inspect_main(int argc, char **argv)
{
    bool json = false, keys = false;
    const tt_option options[] = {
        {.name = "json",
         .kind = TT_OPTION_FLAG,
         .target = &json,
         .help = "print a JSON object instead of text"},
        {.name = "keys",
         .kind = TT_OPTION_FLAG,
         .target = &keys,
         .help = "print every key that a recipe may have, and nothing else"},
    };
    const tt_command command = {
        .name = "inspect",
        .arguments = "PATH [KEY=VALUE...]",
        .purpose = "Shows what a run, checkpoint, shard, tokenizer or recipe holds: sizes, "
                   "compression, the\nlosses of each phase, the modes and ranks of every tensor "
                   "train. KEY=VALUE overrides a recipe.",
        .example = "ttrain inspect runs/first/checkpoints/step_00001000 --json",
        .options = options,
        .option_count = 2,
        .minimum_arguments = 0,
        .maximum_arguments = -1,
    };
    char **arguments;
    int count, exit_status;
    if (!tt_command_parse(&command, argc, argv, &arguments, &count, &exit_status)) {
        return exit_status;
    }
    if (keys && (json || count > 0)) {
        return tt_command_usage("inspect", "--keys stands alone");
    }
    if (keys) {
        tt_recipe_describe(stdout);
        return TT_EXIT_DONE;
    }
    if (count == 0) {
        return tt_command_usage("inspect", "expected PATH, found 0 arguments");
    }
    json_t *report = NULL;
    tt_error error;
    if (inspect(arguments[0], (const char *const *)arguments + 1, count - 1, &report, &error) !=
        TT_OK) {
        return tt_command_failed("inspect", &error);
    }
    exit_status = print_report(report, json);
    json_decref(report);
    return exit_status;
}

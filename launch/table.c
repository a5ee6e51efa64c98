#include "launch/table.h"

#include "launch/command_line.h"
#include "launch/inspect_report.h"
#include "launch/table_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RUNS = 16 };

/* As the paper counts: four bytes a number, 2^20 of them a MB; two digits. */
static json_t *megabytes(int64_t numbers)
{
    return json_real(round((double)numbers * sizeof(float) / 1048576.0 * 100) / 100);
}

static json_t *ratio(int64_t dense, int64_t left)
{
    return left > 0 ? json_real(round((double)dense / (double)left * 10) / 10) : json_null();
}

/* null where the value is not known. */
static json_t *digits(double value, int count)
{
    double scale = pow(10, count);
    return isfinite(value) ? json_real(round(value * scale) / scale) : json_null();
}

/* The run that tensorizes, if any: it says which part of a dense run's model its twin compresses.
 */
static const tt_table_run *find_tensorized(const tt_table_run *runs, int count, int64_t dense)
{
    for (int i = 0; i < count; i++) {
        if (runs[i].layer_count > 0 && runs[i].dense == dense) {
            return &runs[i];
        }
    }
    return NULL;
}

static json_t *sizes_json(const tt_table_run *runs, int count)
{
    json_t *rows = json_array();
    for (int i = 0; i < count; i++) {
        const tt_table_run *run = &runs[i], *twin = find_tensorized(runs, count, run->dense);
        int64_t whole = run->tensorized + run->other;
        int64_t dense_part = twin ? twin->dense - twin->other : 0;
        int64_t part = run->layer_count > 0 ? run->tensorized : dense_part;
        json_t *row = json_pack("{s:s, s:I}", "run", run->name, "step", (json_int_t)run->step);
        json_object_set_new(row, "validation_accuracy", digits(run->validation_accuracy, 4));
        json_object_set_new(row, "parameters", json_integer(whole));
        json_object_set_new(row, "MB", megabytes(whole));
        json_object_set_new(row, "smaller", ratio(run->dense, whole));
        json_object_set_new(row, "tensorized_parameters", json_integer(part));
        json_object_set_new(row, "tensorized_MB", megabytes(part));
        json_object_set_new(row, "tensorized_smaller", ratio(dense_part, part));
        json_object_set_new(row, "of_stage", digits(run->size_ratio, 3));
        json_object_set_new(row, "asked", digits(run->target_ratio, 3));
        json_array_append_new(rows, row);
    }
    return rows;
}

/* "12 30 30 30 12": the inner links. */
static json_t *ranks_json(const tt_table_run *run, const char *name)
{
    const tt_table_layer *layer = NULL;
    for (int i = 0; i < run->layer_count && !layer; i++) {
        layer = strcmp(run->layers[i].name, name) == 0 ? &run->layers[i] : NULL;
    }
    if (!layer || layer->removed) {
        return json_string(layer ? "removed" : "-");
    }
    char text[256] = "";
    size_t used = 0;
    for (int k = 1; k < layer->order && used < sizeof text; k++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", k > 1 ? " " : "",
                                 (long long)layer->ranks[k]);
    }
    return json_string(text);
}

/* Names without what all of them have. */
static const char *short_name(const char *name)
{
    static const char *const prefixes[] = {"bert.encoder.", "bert."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) {
            return name + strlen(prefixes[i]);
        }
    }
    return name;
}

/* A row a layer of the first run with tensor trains, a column a run. */
static json_t *layers_json(const tt_table_run *runs, int count)
{
    json_t *rows = json_array();
    const tt_table_run *first = NULL;
    for (int i = 0; i < count && !first; i++) {
        first = runs[i].layer_count > 0 ? &runs[i] : NULL;
    }
    for (int i = 0; first && i < first->layer_count; i++) {
        json_t *row = json_pack("{s:s}", "layer", short_name(first->layers[i].name));
        for (int j = 0; j < count; j++) {
            if (runs[j].layer_count > 0) {
                json_object_set_new(row, runs[j].name, ranks_json(&runs[j], first->layers[i].name));
            }
        }
        json_array_append_new(rows, row);
    }
    return rows;
}

/* Runs of the same name, and one that is called as the column of layers is, go by their paths. */
static void tell_apart(char **paths, int count, tt_table_run *runs)
{
    bool alike[MOST_RUNS] = {false};
    for (int i = 0; i < count; i++) {
        alike[i] = strcmp(runs[i].name, "layer") == 0;
        for (int j = 0; j < count; j++) {
            alike[i] = alike[i] || (j != i && strcmp(runs[i].name, runs[j].name) == 0);
        }
    }
    for (int i = 0; i < count; i++) {
        if (alike[i]) {
            snprintf(runs[i].name, sizeof runs[i].name, "%s", paths[i]);
        }
    }
}

static tt_status make_table(char **paths, int count, tt_table_run *runs, json_t **report,
                            tt_error *error)
{
    for (int i = 0; i < count; i++) {
        TT_TRY(tt_table_run_read(paths[i], &runs[i], error));
    }
    tell_apart(paths, count, runs);
    *report = json_object();
    json_object_set_new(*report, "runs", sizes_json(runs, count));
    json_object_set_new(*report, "ranks", layers_json(runs, count));
    return TT_OK;
}

static int print(const json_t *report, bool json)
{
    if (json) {
        json_dumpf(report, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        tt_inspect_print(report, stdout);
    }
    if (fflush(stdout) != 0) {
        fprintf(stderr, "ttrain table: standard output cannot be written\n");
        return TT_EXIT_FAILED;
    }
    return TT_EXIT_DONE;
}

int tt_table_main(int argc, char **argv)
{
    bool json = false;
    const tt_option options[] = {{.name = "json",
                                  .kind = TT_OPTION_FLAG,
                                  .target = &json,
                                  .help = "print a JSON object instead of text"}};
    const tt_command command = {
        .name = "table",
        .arguments = "RUN...",
        .purpose = "Puts runs side by side: validation accuracy, the size of the whole model and "
                   "of its tensorized layers (slices whose rank entry is pruned are not counted; "
                   "a MB is 2^20 bytes), how many times smaller than dense each is, how much is "
                   "left of the cores with which its last stage began and how much a late stage "
                   "was asked to leave, and the ranks left in every layer.",
        .example = "ttrain table runs/entailment/dense runs/entailment/early",
        .options = options,
        .option_count = 1,
        .minimum_arguments = 1,
        .maximum_arguments = MOST_RUNS};
    char **arguments;
    int count, exit_status;
    if (!tt_command_parse(&command, argc, argv, &arguments, &count, &exit_status)) {
        return exit_status;
    }
    tt_table_run runs[MOST_RUNS] = {{.layer_count = 0}};
    json_t *report = NULL;
    tt_error error;
    tt_status status = make_table(arguments, count, runs, &report, &error);
    exit_status = status == TT_OK ? print(report, json) : tt_command_failed("table", &error);
    json_decref(report);
    for (int i = 0; i < count; i++) {
        tt_table_run_free(&runs[i]);
    }
    return exit_status;
}

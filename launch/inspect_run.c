/* A run's folder: what metrics.jsonl and the newest checkpoint say, phase by phase. */
#include "launch/inspect_report.h"

#include "data/file.h"
#include "launch/checkpoint_files.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TT_METRICS_LIMIT = 1 << 30 }; /* bytes read at most */

/* What is kept of a run while its records go by. */
typedef struct {
    const char *path;
    json_t *phases, *validation; /* tables; the last entry is that of the present phase */
    json_t *compactions;         /* a table, each with the ranks of all layers */
    json_t *last;                /* the newest record, owned */
    double tokens, seconds;      /* of the present phase */
    double earlier_tokens;       /* of the whole run at the record before */
} run_summary;

static json_t *last_entry(const json_t *table)
{
    return json_array_get(table, json_array_size(table) - 1);
}

static void copy(json_t *entry, const char *key, const json_t *record, const char *record_key)
{
    json_t *value = json_object_get(record, record_key);
    if (value != NULL) {
        json_object_set(entry, key, value);
    }
}

static bool starts_phase(const run_summary *run, const json_t *record)
{
    const json_t *name = json_object_get(last_entry(run->phases), "phase");
    return name == NULL || !json_equal(name, json_object_get(record, "phase"));
}

static void add_phase(run_summary *run, const json_t *record)
{
    json_t *phase = json_object();
    copy(phase, "phase", record, "phase");
    copy(phase, "steps", record, "phase_step");
    copy(phase, "loss_start", record, "loss");
    copy(phase, "loss_end", record, "loss");
    copy(phase, "masked_lm_start", record, "masked_lm_loss");
    copy(phase, "masked_lm_end", record, "masked_lm_loss");
    copy(phase, "next_sentence_start", record, "next_sentence_loss");
    copy(phase, "next_sentence_end", record, "next_sentence_loss");
    json_array_append_new(run->phases, phase);
    run->tokens = run->seconds = 0;
}

static void update_phase(run_summary *run, const json_t *record)
{
    json_t *phase = last_entry(run->phases);
    copy(phase, "steps", record, "phase_step");
    copy(phase, "loss_end", record, "loss");
    copy(phase, "masked_lm_end", record, "masked_lm_loss");
    copy(phase, "next_sentence_end", record, "next_sentence_loss");
    copy(phase, "accuracy", record, "accuracy");
    double tokens = json_number_value(json_object_get(record, "tokens"));
    const json_t *timing = json_object_get(record, "timing");
    double rate = json_number_value(json_object_get(timing, "tokens_per_s"));
    if (rate > 0) {
        run->tokens += tokens - run->earlier_tokens;
        run->seconds += (tokens - run->earlier_tokens) / rate;
    }
    run->earlier_tokens = tokens;
    json_object_set_new(phase, "tokens_per_s",
                        json_real(run->seconds > 0 && isfinite(run->tokens / run->seconds)
                                      ? run->tokens / run->seconds
                                      : 0));
}

/* The newest validation of each phase. */
static void update_validation(run_summary *run, const json_t *record)
{
    if (json_object_get(record, "validation_loss") == NULL) {
        return;
    }
    json_t *entry = last_entry(run->validation);
    const json_t *name = json_object_get(entry, "phase");
    if (name == NULL || !json_equal(name, json_object_get(record, "phase"))) {
        entry = json_object();
        json_array_append_new(run->validation, entry);
    }
    copy(entry, "phase", record, "phase");
    copy(entry, "step", record, "step");
    copy(entry, "loss", record, "validation_loss");
    copy(entry, "masked_lm_loss", record, "validation_masked_lm_loss");
    copy(entry, "unigram_entropy", record, "validation_unigram_entropy");
    copy(entry, "masked_lm_accuracy", record, "validation_masked_lm_accuracy");
    copy(entry, "accuracy", record, "validation_accuracy");
    copy(entry, "next_sentence_accuracy", record, "validation_next_sentence_accuracy");
}

static void add_record(run_summary *run, json_t *record)
{
    if (starts_phase(run, record)) {
        add_phase(run, record);
    }
    update_phase(run, record);
    update_validation(run, record);
    json_decref(run->last);
    run->last = json_incref(record);
}

/* Parameters and trains that were left, and how many of those were removed. */
static void add_compaction(run_summary *run, const json_t *record)
{
    const json_t *compaction = json_object_get(record, "compaction"), *list;
    json_t *ranks = json_object_get(compaction, "ranks"), *entry = json_object();
    json_int_t removed = 0;
    const char *name;
    json_object_foreach(ranks, name, list)
    {
        const json_t *inner = json_array_get(list, 1);
        removed += inner != NULL && json_integer_value(inner) == 0;
    }
    copy(entry, "step", record, "step");
    copy(entry, "parameters", compaction, "parameters");
    json_object_set_new(entry, "tensor_trains", json_integer((json_int_t)json_object_size(ranks)));
    json_object_set_new(entry, "removed", json_integer(removed));
    json_array_append_new(run->compactions, entry);
}

/* A line that a killed run left in part ends the file; any other must be a record. */
static tt_status read_records(run_summary *run, const char *text, size_t length, tt_error *error)
{
    int64_t line = 0;
    while (length > 0) {
        const char *end = memchr(text, '\n', length);
        if (end == NULL) {
            break;
        }
        line++;
        size_t used = (size_t)(end - text);
        json_t *record = json_loadb(text, used, JSON_REJECT_DUPLICATES, NULL);
        bool compacts = json_is_object(json_object_get(record, "compaction"));
        bool valid = json_is_integer(json_object_get(record, "step")) &&
                     (compacts || json_is_string(json_object_get(record, "phase")));
        if (valid && compacts) {
            add_compaction(run, record);
        } else if (valid) {
            add_record(run, record);
        }
        json_decref(record);
        if (!valid) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: line %lld: expected a record with step and phase", run->path,
                                (long long)line);
        }
        text += used + 1;
        length -= used + 1;
    }
    return run->last != NULL ? TT_OK
                             : tt_error_set(error, TT_INVALID_INPUT,
                                            "%s: expected records of steps, found none", run->path);
}

/* The newest checkpoint, if there is one yet, knows the size of the dense twin. */
static tt_status add_checkpoint(const char *folder, json_t *report, tt_error *error)
{
    char checkpoints[TT_CHECKPOINT_PATH], newest[TT_CHECKPOINT_PATH];
    TT_TRY(tt_checkpoint_join(checkpoints, folder, "checkpoints", error));
    json_int_t parameters = json_integer_value(json_object_get(report, "parameters"));
    if (access(checkpoints, F_OK) != 0 && errno == ENOENT) {
        return TT_OK;
    }
    TT_TRY(tt_checkpoint_find_newest(checkpoints, newest, stderr, error));
    if (newest[0] == '\0') {
        return TT_OK;
    }
    tt_training_state state;
    TT_TRY(tt_checkpoint_read_state(newest, &state, error));
    tt_inspect_add_sizes(report, parameters, state.dense_parameters);
    json_object_set_new(report, "world_size", json_integer((json_int_t)state.world_size));
    json_object_set_new(report, "checkpoint", json_string(newest));
    tt_training_state_free(&state);
    return TT_OK;
}

static tt_status run_json(const char *folder, run_summary *run, json_t **report, tt_error *error)
{
    static const char *const counters[] = {"step", "samples", "tokens", "skipped_steps",
                                           "parameters"};
    json_t *made = json_pack("{s:s, s:s}", "kind", "run", "path", folder);
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
        copy(made, counters[i], run->last, counters[i]);
    }
    tt_status status = add_checkpoint(folder, made, error);
    if (status != TT_OK) {
        json_decref(made);
        return status;
    }
    json_object_set_new(made, "metrics", json_string(run->path));
    json_object_set(made, "phases", run->phases);
    json_object_set(made, "validation", run->validation);
    json_object_set(made, "ranks", run->compactions);
    *report = made;
    return TT_OK;
}

tt_status tt_inspect_run(const char *path, json_t **report, tt_error *error)
{
    char metrics[TT_CHECKPOINT_PATH];
    TT_TRY(tt_checkpoint_join(metrics, path, "metrics.jsonl", error));
    void *text;
    size_t length;
    TT_TRY(tt_file_read(metrics, TT_METRICS_LIMIT, &text, &length, error));
    run_summary run = {.path = metrics,
                       .phases = json_array(),
                       .validation = json_array(),
                       .compactions = json_array()};
    tt_status status = read_records(&run, text, length, error);
    free(text);
    if (status == TT_OK) {
        status = run_json(path, &run, report, error);
    }
    json_decref(run.phases);
    json_decref(run.validation);
    json_decref(run.compactions);
    json_decref(run.last);
    return status;
}

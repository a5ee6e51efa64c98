#include "launch/report_data.h"

#include "data/file.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

enum { RECIPE_LIMIT = 1 << 20, STATE_LIMIT = 1 << 26, MAP_LIMIT = 4096 };

#define LARGEST_STEP 9007199254740992.0

static const char *const keys[TT_REPORT_KEYS] = {
    [TT_REPORT_LOSS] = "loss",
    [TT_REPORT_MASKED_LM_LOSS] = "masked_lm_loss",
    [TT_REPORT_NEXT_SENTENCE_LOSS] = "next_sentence_loss",
    [TT_REPORT_ACCURACY] = "accuracy",
    [TT_REPORT_MASKED_LM_ACCURACY] = "masked_lm_accuracy",
    [TT_REPORT_NEXT_SENTENCE_ACCURACY] = "next_sentence_accuracy",
    [TT_REPORT_VALIDATION_LOSS] = "validation_loss",
    [TT_REPORT_VALIDATION_MASKED_LM_LOSS] = "validation_masked_lm_loss",
    [TT_REPORT_VALIDATION_NEXT_SENTENCE_LOSS] = "validation_next_sentence_loss",
    [TT_REPORT_VALIDATION_ACCURACY] = "validation_accuracy",
    [TT_REPORT_VALIDATION_MASKED_LM_ACCURACY] = "validation_masked_lm_accuracy",
    [TT_REPORT_VALIDATION_NEXT_SENTENCE_ACCURACY] = "validation_next_sentence_accuracy",
    [TT_REPORT_LEARNING_RATE] = "learning_rate",
    [TT_REPORT_CORE_LEARNING_RATE] = "core_learning_rate",
    [TT_REPORT_DIAGONAL_LEARNING_RATE] = "diagonal_learning_rate",
    [TT_REPORT_GRADIENT_NORM] = "gradient_norm",
    [TT_REPORT_SKIPPED_STEPS] = "skipped_steps",
    [TT_REPORT_PARAMETERS] = "parameters",
    [TT_REPORT_SIZE] = "size",
    [TT_REPORT_RELAXED_SIZE] = "relaxed_size",
    [TT_REPORT_SIZE_RATIO] = "size_ratio",
    [TT_REPORT_SAMPLES] = "samples",
    [TT_REPORT_TOKENS] = "tokens",
    [TT_REPORT_EPOCH] = "epoch",
    [TT_REPORT_STEP_MS] = "step_ms",
    [TT_REPORT_DATA_WAIT_MS] = "data_wait_ms",
    [TT_REPORT_TOKENS_PER_S] = "tokens_per_s",
    [TT_REPORT_ELAPSED_S] = "elapsed_s",
};

static const char *const text_keys[TT_REPORT_TEXTS] = {"phase", "stage", "branch"};

static tt_status no_memory(const char *path, tt_error *error)
{
    return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", path);
}

/* `entries` with room for one more than `count`; NULL when memory is out, and they stay. */
static void *with_room(void *entries, int64_t count, int64_t *capacity, size_t entry_size)
{
    if (count < *capacity) {
        return entries;
    }
    int64_t wanted = *capacity > 0 ? 2 * *capacity : 64;
    void *moved = realloc(entries, (size_t)wanted * entry_size);
    *capacity = moved != NULL ? wanted : *capacity;
    return moved;
}

/* --- records --- */

/* The index of a text in the run's list, which gets it where it is new. */
static int name_index(tt_report_run *run, int kind, const char *text)
{
    for (int i = 0; i < run->name_counts[kind]; i++) {
        if (strncmp(run->names[kind][i], text, TT_REPORT_NAME - 1) == 0) {
            return i;
        }
    }
    if (run->name_counts[kind] == TT_REPORT_NAMES) {
        return -1;
    }
    int index = run->name_counts[kind]++;
    snprintf(run->names[kind][index], TT_REPORT_NAME, "%s", text);
    return index;
}

static int read_text(tt_report_run *run, const json_t *line, int kind)
{
    const json_t *value = json_object_get(line, text_keys[kind]);
    char number[32];
    if (json_is_string(value)) {
        return json_string_length(value) > 0 ? name_index(run, kind, json_string_value(value)) : -1;
    }
    if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
        return name_index(run, kind, number);
    }
    return -1;
}

static double read_number(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* The clock of the program starts anew with each start of it. */
static void add_earlier_starts(const tt_report_run *run, tt_report_record *record,
                               double *last_elapsed, double *earlier)
{
    double *elapsed = &record->values[TT_REPORT_ELAPSED_S];
    if (!isfinite(*elapsed)) {
        return;
    }
    if (run->record_count > 0 && *elapsed < *last_elapsed) {
        *earlier += *last_elapsed;
    }
    *last_elapsed = *elapsed;
    *elapsed += *earlier;
}

typedef struct {
    tt_report_run *run;
    double last_elapsed, earlier; /* seconds */
} reader;

static bool add_record(reader *to, const json_t *line, double step)
{
    tt_report_run *run = to->run;
    tt_report_record record = {.step = step};
    const json_t *timing = json_object_get(line, "timing");
    for (int key = 0; key < TT_REPORT_KEYS; key++) {
        record.values[key] = read_number(key < TT_REPORT_STEP_MS ? line : timing, keys[key]);
    }
    for (int kind = 0; kind < TT_REPORT_TEXTS; kind++) {
        record.texts[kind] = read_text(run, line, kind);
    }
    add_earlier_starts(run, &record, &to->last_elapsed, &to->earlier);
    /* Of a step that was done twice the later line counts. */
    while (run->record_count > 0 && run->records[run->record_count - 1].step >= step) {
        run->record_count--;
    }
    tt_report_record *records =
        with_room(run->records, run->record_count, &run->record_capacity, sizeof record);
    if (records == NULL) {
        return false;
    }
    run->records = records;
    records[run->record_count++] = record;
    return true;
}

/* --- maps and their ranks --- */

/* The index of a map, which is added where it is new; -1 when memory or names are out. */
static int map_index(tt_report_run *run, const char *name)
{
    for (int i = 0; i < run->map_count; i++) {
        if (strncmp(run->maps[i].name, name, TT_REPORT_NAME - 1) == 0) {
            return i;
        }
    }
    tt_report_map *maps = run->map_count < MAP_LIMIT ? with_room(run->maps, run->map_count,
                                                                 &run->map_capacity, sizeof *maps)
                                                     : NULL;
    if (maps == NULL) {
        return -1;
    }
    run->maps = maps;
    tt_report_map *map = &maps[run->map_count];
    *map = (tt_report_map){.inputs = NAN, .outputs = NAN};
    snprintf(map->name, sizeof map->name, "%s", name);
    return run->map_count++;
}

/* A list of at most TT_REPORT_ORDER counts; 0 where it is anything else. */
static int read_counts(const json_t *list, int64_t counts[TT_REPORT_ORDER])
{
    size_t size = json_array_size(list);
    if (size > TT_REPORT_ORDER) {
        return 0;
    }
    for (size_t i = 0; i < size; i++) {
        const json_t *value = json_array_get(list, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0) {
            return 0;
        }
        counts[i] = json_integer_value(value);
    }
    return (int)size;
}

static bool read_ranks(tt_report_run *run, tt_report_compaction *compaction, const json_t *ranks)
{
    const char *name;
    json_t *list;
    int64_t capacity = compaction->map_count; /* those of an earlier call stay */
    json_object_foreach((json_t *)ranks, name, list)
    {
        int map = map_index(run, name);
        if (map < 0) {
            continue;
        }
        while (compaction->map_count <= map) {
            tt_report_ranks *maps =
                with_room(compaction->maps, compaction->map_count, &capacity, sizeof *maps);
            if (maps == NULL) {
                return false;
            }
            compaction->maps = maps;
            maps[compaction->map_count++].count = 0;
        }
        compaction->maps[map].count = read_counts(list, compaction->maps[map].ranks);
    }
    return true;
}

static bool add_compaction(tt_report_run *run, const json_t *object, double step)
{
    tt_report_compaction compaction = {.step = step,
                                       .parameters = read_number(object, "parameters")};
    while (run->compaction_count > 0 && run->compactions[run->compaction_count - 1].step >= step) {
        free(run->compactions[--run->compaction_count].maps);
    }
    tt_report_compaction *compactions = with_room(run->compactions, run->compaction_count,
                                                  &run->compaction_capacity, sizeof compaction);
    run->compactions = compactions != NULL ? compactions : run->compactions;
    if (compactions == NULL || !read_ranks(run, &compaction, json_object_get(object, "ranks"))) {
        free(compaction.maps);
        return false;
    }
    run->compactions[run->compaction_count++] = compaction;
    return true;
}

/* --- lines --- */

/* `valid` tells whether it was a record; false: memory is out. */
static bool read_line(reader *to, const char *text, size_t length, bool *valid)
{
    json_t *line = json_loadb(text, length, 0, NULL);
    double step = read_number(line, "step");
    const json_t *compaction = json_object_get(line, "compaction");
    bool room = true;
    *valid = step >= 0 && step <= LARGEST_STEP;
    if (*valid && json_is_object(compaction)) {
        room = add_compaction(to->run, compaction, step);
    }
    if (*valid && room && (compaction == NULL || json_object_get(line, "loss") != NULL)) {
        room = add_record(to, line, step);
    }
    json_decref(line);
    return room;
}

tt_status tt_report_read_metrics(FILE *stream, const char *path, tt_report_run *run,
                                 tt_error *error)
{
    reader to = {.run = run};
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    bool room = true;
    run->dense_parameters = NAN;
    for (int64_t number = 1; room && (length = getline(&line, &capacity, stream)) > 0; number++) {
        bool valid = true;
        run->torn = line[length - 1] != '\n';
        if (!run->torn) {
            room = read_line(&to, line, (size_t)length - 1, &valid);
        }
        if (!valid && run->bad_lines++ == 0) {
            run->first_bad_line = number;
        }
    }
    free(line);
    if (!room) {
        return no_memory(path, error);
    }
    if (ferror(stream)) {
        return tt_error_set(error, TT_IO_FAILED, "%s: cannot be read: %s", path, strerror(errno));
    }
    if (run->record_count == 0) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: expected records of steps, found none%s",
                            path,
                            run->torn ? " that is whole: has the run got to its first line?" : "");
    }
    return TT_OK;
}

/* --- what else stands in the folder --- */

/* The newest step_NNNNNNNN below checkpoints/ that has a manifest; false when there is none. */
static bool newest_checkpoint(const char *folder, char path[TT_REPORT_PATH])
{
    char checkpoints[TT_REPORT_PATH];
    long long newest = -1;
    if (snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", folder) >=
        (int)sizeof checkpoints - 64) {
        return false;
    }
    DIR *entries = opendir(checkpoints);
    for (struct dirent *entry = entries ? readdir(entries) : NULL; entry;
         entry = readdir(entries)) {
        char manifest[TT_REPORT_PATH + 320], *end = entry->d_name;
        struct stat status;
        long long step =
            strncmp(entry->d_name, "step_", 5) == 0 ? strtoll(entry->d_name + 5, &end, 10) : -1;
        snprintf(manifest, sizeof manifest, "%s/%s/manifest.json", checkpoints, entry->d_name);
        if (step > newest && *end == '\0' && stat(manifest, &status) == 0) {
            newest = step;
            snprintf(path, TT_REPORT_PATH, "%.4000s/%.64s/state.json", checkpoints, entry->d_name);
        }
    }
    if (entries) {
        closedir(entries);
    }
    return newest >= 0;
}

static double product(const int64_t *values, int count)
{
    double result = 1;
    for (int i = 0; i < count; i++) {
        result *= (double)values[i];
    }
    return result;
}

/* A map's shape, and its ranks into `compaction`. */
static bool read_layer(tt_report_run *run, const json_t *layer, tt_report_compaction *compaction)
{
    const char *name = json_string_value(json_object_get(layer, "name"));
    int index = name != NULL ? map_index(run, name) : -1;
    if (index < 0) {
        return true;
    }
    tt_report_map *map = &run->maps[index];
    const json_t *input_order = json_object_get(layer, "input_order");
    map->mode_count = read_counts(json_object_get(layer, "modes"), map->modes);
    if (json_is_integer(input_order) && json_integer_value(input_order) > 0 &&
        json_integer_value(input_order) < map->mode_count) {
        int inputs = (int)json_integer_value(input_order);
        map->inputs = product(map->modes, inputs);
        map->outputs = product(map->modes + inputs, map->mode_count - inputs);
    }
    json_t *ranks = json_pack("{s:O?}", name, json_object_get(layer, "ranks"));
    bool room = compaction == NULL || read_ranks(run, compaction, ranks);
    json_decref(ranks);
    return room;
}

/* Sizes and shapes as the newest checkpoint has them. Its ranks stand for a compaction where the
 * metrics have none. */
static tt_status read_state(tt_report_run *run, tt_error *error)
{
    char path[TT_REPORT_PATH];
    void *text;
    size_t size;
    tt_error unread;
    if (!newest_checkpoint(run->path, path) ||
        tt_file_read(path, STATE_LIMIT, &text, &size, &unread) != TT_OK) {
        return TT_OK;
    }
    json_t *state = json_loadb(text, size, 0, NULL);
    free(text);
    run->dense_parameters = read_number(state, "dense_parameters");
    tt_report_compaction compaction = {.step = run->records[0].step, .parameters = NAN};
    bool wanted = run->compaction_count == 0, room = true;
    size_t index;
    const json_t *layer;
    json_array_foreach(json_object_get(state, "layers"), index, layer)
    {
        room = room && read_layer(run, layer, wanted ? &compaction : NULL);
    }
    json_decref(state);
    if (room && wanted && compaction.map_count > 0) {
        run->compactions = malloc(sizeof compaction);
        room = run->compactions != NULL;
        run->compaction_capacity = run->compaction_count = room;
        if (room) {
            run->compactions[0] = compaction;
            return TT_OK;
        }
    }
    free(compaction.maps);
    return room ? TT_OK : no_memory(path, error);
}

/* The value of the recipe's "name:", as ttrain writes it; an empty one leaves the folder's. */
static void read_name(tt_report_run *run)
{
    const char *line = run->recipe;
    while (line != NULL && strncmp(line, "name:", 5) != 0) {
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    if (line == NULL) {
        return;
    }
    line += 5 + strspn(line + 5, " ");
    char quote = '\n';
    if (*line == '"' || *line == '\'') {
        quote = *line++;
    }
    size_t used = 0;
    while (*line != '\0' && *line != '\n' && *line != quote && used + 1 < sizeof run->name) {
        line += *line == '\\' && quote == '"' && line[1] != '\n' && line[1] != '\0';
        run->name[used++] = *line++;
    }
    if (used > 0) {
        run->name[used] = '\0';
    }
}

/* A recipe that is not there or cannot be read is left out. */
static void read_recipe(tt_report_run *run)
{
    char path[TT_REPORT_PATH + 16];
    void *text;
    size_t size;
    tt_error unread;
    const char *folder = strrchr(run->path, '/');
    snprintf(run->name, sizeof run->name, "%.120s",
             folder != NULL && folder[1] ? folder + 1 : run->path);
    snprintf(path, sizeof path, "%s/recipe.yaml", run->path);
    if (tt_file_read(path, RECIPE_LIMIT, &text, &size, &unread) != TT_OK) {
        return;
    }
    run->recipe = text;
    run->recipe[size] = '\0';
    read_name(run);
}

/* The folder of a run, of which `path` may also be the metrics. */
static tt_status find_folder(const char *path, tt_report_run *run, tt_error *error)
{
    static const char file[] = "metrics.jsonl";
    size_t length = strlen(path), end = sizeof file - 1;
    if (length >= sizeof run->path - 64) {
        return tt_error_set(error, TT_INVALID_INPUT, "%.200s: the path is too long", path);
    }
    snprintf(run->path, sizeof run->path, "%s", path);
    if (length >= end && strcmp(path + length - end, file) == 0 &&
        (length == end || path[length - end - 1] == '/')) {
        length -= end;
        run->path[length] = '\0';
    }
    while (length > 1 && run->path[length - 1] == '/') {
        run->path[--length] = '\0';
    }
    if (length == 0) {
        snprintf(run->path, sizeof run->path, ".");
    }
    return TT_OK;
}

tt_status tt_report_read(const char *path, tt_report_run *run, tt_error *error)
{
    char metrics[TT_REPORT_PATH + 16];
    *run = (tt_report_run){.dense_parameters = NAN};
    TT_TRY(find_folder(path, run, error));
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", run->path);
    FILE *stream = fopen(metrics, "re");
    if (stream == NULL) {
        return tt_error_set(error, TT_IO_FAILED, "%s: %s; expected the folder of a run", metrics,
                            strerror(errno));
    }
    tt_status status = tt_report_read_metrics(stream, metrics, run, error);
    fclose(stream);
    TT_TRY(status);
    read_recipe(run);
    return read_state(run, error);
}

void tt_report_free(tt_report_run *run)
{
    for (int i = 0; i < run->compaction_count; i++) {
        free(run->compactions[i].maps);
    }
    free(run->compactions);
    free(run->records);
    free(run->maps);
    free(run->recipe);
    *run = (tt_report_run){.dense_parameters = NAN};
}

/* --- questions --- */

bool tt_report_has(const tt_report_run *run, tt_report_key key)
{
    return isfinite(tt_report_last(run, key));
}

double tt_report_last(const tt_report_run *run, tt_report_key key)
{
    for (int64_t i = run->record_count - 1; i >= 0; i--) {
        if (isfinite(run->records[i].values[key])) {
            return run->records[i].values[key];
        }
    }
    return NAN;
}

double tt_report_parameters(const tt_report_run *run)
{
    double parameters = tt_report_last(run, TT_REPORT_PARAMETERS);
    const tt_report_compaction *last =
        run->compaction_count > 0 ? &run->compactions[run->compaction_count - 1] : NULL;
    bool newer = last != NULL && isfinite(last->parameters) &&
                 (last->step >= run->records[run->record_count - 1].step || !isfinite(parameters));
    return newer ? last->parameters : parameters;
}

double tt_report_map_parameters(const tt_report_map *map, const tt_report_ranks *ranks)
{
    if (map->mode_count == 0 || ranks == NULL || ranks->count != map->mode_count + 1) {
        return NAN;
    }
    if (tt_report_is_removed(ranks)) {
        return 0;
    }
    double total = 0;
    for (int k = 0; k < map->mode_count; k++) {
        total += (double)ranks->ranks[k] * (double)map->modes[k] * (double)ranks->ranks[k + 1];
        total += k > 0 ? (double)ranks->ranks[k] : 0;
    }
    return total;
}

bool tt_report_is_removed(const tt_report_ranks *ranks)
{
    for (int k = 0; ranks != NULL && k < ranks->count; k++) {
        if (ranks->ranks[k] == 0) {
            return true;
        }
    }
    return false;
}

const tt_report_ranks *tt_report_ranks_at(const tt_report_run *run, int index, int map)
{
    if (index < 0 || index >= run->compaction_count || map >= run->compactions[index].map_count) {
        return NULL;
    }
    const tt_report_ranks *ranks = &run->compactions[index].maps[map];
    return ranks->count > 0 ? ranks : NULL;
}

#include "launch/recipe_schema.h"

#include "data/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TT_RECIPE_LONGEST = 1 << 20 /* bytes of a recipe file */ };

typedef struct {
    int64_t hidden, layers, heads, inner;
} tt_preset_sizes;

static const tt_preset_sizes preset_sizes[] = {
    [TT_RECIPE_PRESET_SMALL] = {64, 2, 2, 256},
    [TT_RECIPE_PRESET_SIX_ENCODER] = {768, 6, 12, 3072},
    [TT_RECIPE_PRESET_BERT_BASE] = {768, 12, 12, 3072},
    [TT_RECIPE_PRESET_BERT_LARGE] = {1024, 24, 16, 4096},
};

enum { TT_PRESET_VOCABULARY = 30522 };

/* Where an override's path leads. */
typedef struct {
    const tt_recipe_field *field;
    void *section;
    uint64_t index; /* the entry of a list */
    bool whole;     /* the list itself, not an entry */
} tt_override_target;

static tt_status enter_list(const tt_recipe_field *field, void *section, const char *path,
                            size_t path_length, const char *index_text, size_t index_length,
                            uint64_t *index, tt_error *error)
{
    uint64_t count = *tt_recipe_field_count(field, section);
    bool number =
        index_length > 0 && index_length < 9 && strspn(index_text, "0123456789") >= index_length;
    *index = number ? strtoull(index_text, NULL, 10) : UINT64_MAX;
    if (*index < count) {
        return TT_OK;
    }
    return tt_error_set(
        error, TT_INVALID_INPUT, "%.*s: expected the number of an entry below %llu, found '%.*s'",
        (int)path_length, path, (unsigned long long)count, (int)index_length, index_text);
}

/* Walks "phases.0.steps" down the table. `path` ends at `length`. */
static tt_status find_target(const char *path, size_t length, tt_recipe *recipe,
                             tt_override_target *target, tt_error *error)
{
    const tt_recipe_field *fields = tt_recipe_fields;
    void *section = recipe;
    size_t at = 0;
    for (;;) {
        size_t key_length = strcspn(path + at, ".=");
        const tt_recipe_field *field = tt_recipe_field_find(fields, path + at, key_length);
        if (field == NULL) {
            char key[64], hint[450];
            snprintf(key, sizeof key, "%.*s", (int)key_length, path + at);
            tt_recipe_field_hint(fields, key, hint, sizeof hint);
            return tt_error_set(error, TT_INVALID_INPUT, "%.*s: unknown key; %s", (int)length, path,
                                hint);
        }
        at += key_length;
        *target = (tt_override_target){field, section, 0, true};
        if (tt_recipe_field_is_list(field) && at < length) {
            size_t index_length = strcspn(path + at + 1, ".=");
            TT_TRY(enter_list(field, section, path, at, path + at + 1, index_length, &target->index,
                              error));
            target->whole = false;
            at += 1 + index_length;
        }
        section = (char *)section + field->offset + target->index * field->entry_size;
        if (at >= length) {
            return TT_OK;
        }
        if (field->fields == NULL) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%.*s: unknown key; %.*s has none below it", (int)length, path,
                                (int)at, path);
        }
        fields = field->fields;
        at++;
    }
}

/* Sets a whole list from "[a, b]", "[]" or one value. */
static tt_status set_list(const tt_override_target *target, const char *text, const char *path,
                          tt_error *error)
{
    uint64_t *count = tt_recipe_field_count(target->field, target->section);
    size_t length = strlen(text);
    bool bracketed = length >= 2 && text[0] == '[' && text[length - 1] == ']';
    if (!bracketed) {
        *count = 1;
        return tt_recipe_field_set(target->field, target->section, 0, text, path, error);
    }
    const char *next = text + 1, *end = text + length - 1;
    *count = 0;
    while (next < end) {
        const char *comma = memchr(next, ',', (size_t)(end - next));
        size_t part = (size_t)((comma != NULL ? comma : end) - next);
        const char *first = next + strspn(next, " ");
        const char *last = next + part;
        while (last > first && last[-1] == ' ') {
            last--;
        }
        char value[TT_RECIPE_TEXT + 1];
        snprintf(value, sizeof value, "%.*s", last > first ? (int)(last - first) : 0, first);
        if (*count == target->field->capacity) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: expected at most %llu entries, found more", path,
                                (unsigned long long)target->field->capacity);
        }
        TT_TRY(tt_recipe_field_set(target->field, target->section, *count, value, path, error));
        *count += 1;
        next += part + 1;
    }
    return TT_OK;
}

static tt_status apply_override(const char *override, const tt_recipe_draft *draft, tt_error *error)
{
    size_t length = strcspn(override, "=");
    if (length == 0 || override[length] == '\0' || length >= TT_RECIPE_PATH) {
        return tt_error_set(error, TT_INVALID_INPUT, "expected key.path=value, found '%.100s'",
                            override);
    }
    char path[TT_RECIPE_PATH];
    snprintf(path, sizeof path, "%.*s", (int)length, override);
    const char *text = override + length + 1;
    tt_override_target target = {.field = tt_recipe_fields};
    TT_TRY(find_target(override, length, draft->recipe, &target, error));
    if (target.whole &&
        (target.field->kind == TT_FIELD_INTEGERS || target.field->kind == TT_FIELD_TEXTS)) {
        TT_TRY(set_list(&target, text, path, error));
    } else if (target.field->fields != NULL) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected a key below it, such as %s.%s%s=...", path, path,
                            target.whole && target.field->kind == TT_FIELD_SECTIONS ? "0." : "",
                            target.field->fields[0].key);
    } else {
        TT_TRY(tt_recipe_field_set(target.field, target.section, target.index, text, path, error));
    }
    tt_recipe_mark_given(draft, (char *)target.section + target.field->offset);
    return TT_OK;
}

static void fill(const tt_recipe_draft *draft, int64_t *value, int64_t preset)
{
    if (!tt_recipe_is_given(draft, value)) {
        *value = preset;
    }
}

static void resolve_model(const tt_recipe_draft *draft)
{
    tt_recipe_model *model = &draft->recipe->model;
    if (model->preset == TT_RECIPE_PRESET_NONE) {
        return;
    }
    const tt_preset_sizes *sizes = &preset_sizes[model->preset];
    fill(draft, &model->hidden_size, sizes->hidden);
    fill(draft, &model->layers, sizes->layers);
    fill(draft, &model->heads, sizes->heads);
    fill(draft, &model->intermediate_size, sizes->inner);
    if (draft->recipe->data.tokenizer[0] == '\0') {
        fill(draft, &model->vocabulary_size, TT_PRESET_VOCABULARY);
    }
}

/* A map takes each setting that it does not have itself from the section around it; how many
 * parameters it may have is one setting, said by ranks, rank or compression. */
static void resolve_tensor_train(const tt_recipe_draft *draft)
{
    tt_recipe_tensor_train *common = &draft->recipe->tensor_train;
    for (int i = 0; i < TT_RECIPE_MAP_COUNT; i++) {
        tt_recipe_map *map = &common->maps[i];
        if (!tt_recipe_is_given(draft, &map->form)) {
            map->form = common->form;
        }
        fill(draft, &map->order, common->order);
        bool sized = tt_recipe_is_given(draft, map->ranks) ||
                     tt_recipe_is_given(draft, &map->rank) ||
                     tt_recipe_is_given(draft, &map->compression);
        if (!sized) {
            map->rank = common->rank;
            map->compression = common->compression;
        }
    }
    tt_recipe_embedding *embedding = &common->embedding;
    if (embedding->rank == 0 && embedding->rank_count == 0) {
        embedding->rank = common->rank;
    }
}

/* A task's model has a head of its own in place of those of pre-training. */
static void resolve_task(tt_recipe *recipe)
{
    if (recipe->task.kind != TT_TASK_NONE) {
        recipe->model.next_sentence = false;
        recipe->tensor_train.maps[TT_RECIPE_TRANSFORM].form = TT_RECIPE_DENSE;
    }
}

static void resolve_phases(tt_recipe *recipe)
{
    for (uint64_t i = 0; i < recipe->phase_count; i++) {
        tt_recipe_phase *phase = &recipe->phases[i];
        if (phase->name[0] == '\0') {
            snprintf(phase->name, sizeof phase->name, "phase%llu", (unsigned long long)i + 1);
        }
        if (phase->core_learning_rate == 0) {
            phase->core_learning_rate = phase->learning_rate;
        }
        if (phase->diagonal_learning_rate == 0) {
            phase->diagonal_learning_rate = phase->learning_rate;
        }
        if (phase->train.count == 0) {
            phase->train = recipe->data.train;
        }
        if (phase->validation.count == 0) {
            phase->validation = recipe->data.validation;
        }
        if (recipe->task.kind != TT_TASK_NONE) {
            phase->max_predictions = 0;
        } else if (phase->max_predictions == 0) {
            phase->max_predictions = recipe->data.max_predictions;
        }
    }
}

static void resolve_stages(tt_recipe *recipe)
{
    for (uint64_t i = 0; i < recipe->stage_count; i++) {
        tt_recipe_stage *stage = &recipe->stages[i];
        if (stage->name[0] == '\0') {
            snprintf(stage->name, sizeof stage->name, "%s",
                     stage->kind == TT_RECIPE_EARLY ? "early" : "late");
        }
    }
}

static tt_status resolve_names(tt_recipe *recipe, tt_error *error)
{
    if (recipe->name[0] == '\0') {
        snprintf(recipe->name, sizeof recipe->name, "run");
    }
    if (recipe->output[0] == '\0' &&
        (size_t)snprintf(recipe->output, sizeof recipe->output, "runs/%s", recipe->name) >=
            sizeof recipe->output) {
        return tt_error_set(error, TT_INVALID_INPUT, "name: too long to name the run's folder");
    }
    return TT_OK;
}

/* Refuses keys that must be given and are not. */
static tt_status check_required(const tt_recipe_field *fields, const void *section,
                                const char *path, const char *advice, const tt_recipe_draft *draft,
                                tt_error *error)
{
    for (; fields->key != NULL; fields++) {
        const void *value = (const char *)section + fields->offset;
        /* All bits of an integer or a real that is 0 are 0. */
        static const char zeros[sizeof(int64_t)];
        if (fields->required && !tt_recipe_is_given(draft, value) &&
            memcmp(value, zeros, sizeof zeros) == 0) {
            return tt_error_set(error, TT_INVALID_INPUT, "%s.%s: missing%s", path, fields->key,
                                advice);
        }
    }
    return TT_OK;
}

static tt_status check_all_required(const tt_recipe_draft *draft, tt_error *error)
{
    const tt_recipe *recipe = draft->recipe;
    const tt_recipe_field *model = tt_recipe_field_find(tt_recipe_fields, "model", 5);
    const tt_recipe_field *phases = tt_recipe_field_find(tt_recipe_fields, "phases", 6);
    TT_TRY(check_required(model->fields, &recipe->model, "model", "; give it or model.preset",
                          draft, error));
    for (uint64_t i = 0; i < recipe->phase_count; i++) {
        char path[TT_RECIPE_PATH];
        snprintf(path, sizeof path, "phases.%llu", (unsigned long long)i);
        TT_TRY(check_required(phases->fields, &recipe->phases[i], path, "", draft, error));
    }
    return TT_OK;
}

static tt_status build(const char *name, const char *text, size_t length,
                       const char *const *overrides, int override_count,
                       const tt_recipe_draft *draft, tt_error *error)
{
    tt_recipe_fields_default(tt_recipe_fields, draft->recipe);
    if (tt_recipe_read_yaml(text, length, draft, error) != TT_OK) {
        return tt_error_prefix(error, "%s", name);
    }
    for (int i = 0; i < override_count; i++) {
        if (apply_override(overrides[i], draft, error) != TT_OK) {
            return tt_error_prefix(error, "override");
        }
    }
    resolve_model(draft);
    resolve_tensor_train(draft);
    resolve_task(draft->recipe);
    resolve_phases(draft->recipe);
    resolve_stages(draft->recipe);
    tt_status status = resolve_names(draft->recipe, error);
    if (status == TT_OK) {
        status = check_all_required(draft, error);
    }
    if (status == TT_OK) {
        status = tt_recipe_check(draft->recipe, error);
    }
    return status == TT_OK ? TT_OK : tt_error_prefix(error, "%s", name);
}

tt_status tt_recipe_parse(const char *name, const char *text, size_t length,
                          const char *const *overrides, int override_count, tt_recipe *recipe,
                          tt_error *error)
{
    memset(recipe, 0, sizeof *recipe);
    const size_t bytes = sizeof *recipe;
    unsigned char *given = calloc(bytes, sizeof *given);
    if (given == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", name);
    }
    const tt_recipe_draft draft = {recipe, given};
    tt_status status = build(name, text, length, overrides, override_count, &draft, error);
    free(given);
    return status;
}

tt_status tt_recipe_load(const char *path, const char *const *overrides, int override_count,
                         tt_recipe *recipe, tt_error *error)
{
    void *text;
    size_t length;
    TT_TRY(tt_file_read(path, TT_RECIPE_LONGEST, &text, &length, error));
    tt_status status =
        tt_recipe_parse(path, text, length, overrides, override_count, recipe, error);
    free(text);
    return status;
}

tt_status tt_recipe_save(const tt_recipe *recipe, const char *path, tt_error *error)
{
    char *text = tt_recipe_text(recipe);
    if (text == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", path);
    }
    tt_status status = tt_file_write(path, text, strlen(text), error);
    free(text);
    return status;
}

void tt_recipe_dense_twin(const tt_recipe *recipe, tt_recipe *twin)
{
    *twin = *recipe;
    twin->tensor_train.form = TT_RECIPE_DENSE;
    for (int i = 0; i < TT_RECIPE_MAP_COUNT; i++) {
        twin->tensor_train.maps[i].form = TT_RECIPE_DENSE;
    }
    twin->tensor_train.embedding.form = TT_RECIPE_EMBEDDING_DENSE;
    twin->rank.compaction_interval = 0;
    twin->stage_count = 0;
}

tt_status tt_recipe_open_tokenizer(const tt_recipe *recipe, tt_tokenizer **tokenizer,
                                   tt_error *error)
{
    tt_status status = tt_tokenizer_open(recipe->data.tokenizer, tokenizer, error);
    return status == TT_OK ? status : tt_error_prefix(error, "data.tokenizer");
}

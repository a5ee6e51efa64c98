/* YAML in: libcyaml checks keys and structure against a schema made from the recipe's table and
 * hands over every scalar as text, so that a value from a file and one from the command line go
 * through the same conversion. */
#include "launch/recipe_schema.h"

#include <cyaml/cyaml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TT_YAML_FIELDS = 256, /* schema entries of all sections together */
    TT_YAML_SINGLES = 32, /* lists that a file gives as one value */
    TT_YAML_TRACE = 24,   /* lines of the library's report that are kept */
    TT_YAML_LINE = 200,
};

/* What libcyaml fills for each key: a string, a section's slots, or a list of either. */
typedef struct {
    void *value;
    uint64_t count;
} tt_yaml_slot;

/* A list key that this file gives as one value, by its path without indices. */
typedef struct {
    char paths[TT_YAML_SINGLES][TT_RECIPE_PATH];
    int count;
} tt_yaml_singles;

typedef struct {
    cyaml_schema_field_t fields[TT_YAML_FIELDS];
    cyaml_schema_value_t entries[TT_YAML_FIELDS];
    int field_count, entry_count;
    const tt_yaml_singles *singles;
} tt_yaml_schema;

/* What reading the loaded slots into a recipe needs. */
typedef struct {
    const tt_yaml_singles *singles;
    const tt_recipe_draft *draft;
    tt_error *error;
} tt_yaml_reader;

/* The library's report of a failure: its message, then one line a level, innermost first. */
typedef struct {
    char lines[TT_YAML_TRACE][TT_YAML_LINE];
    int count;
} tt_yaml_trace;

/* Where the report says the failure was. */
typedef struct {
    char path[TT_RECIPE_PATH];
    char plain_path[TT_RECIPE_PATH]; /* without indices */
    const tt_recipe_field *section;  /* the innermost section's table */
    const tt_recipe_field *field;    /* the innermost field; NULL: the document itself */
    bool in_entry;                   /* in an entry of a list, not the list as such */
    unsigned long line;
} tt_yaml_place;

static void join_path(char *joined, size_t size, const char *path, const char *key)
{
    snprintf(joined, size, "%.80s%s%.40s", path, path[0] != '\0' ? "." : "", key);
}

static bool is_single(const tt_yaml_singles *singles, const char *path)
{
    for (int i = 0; i < singles->count; i++) {
        if (strcmp(singles->paths[i], path) == 0) {
            return true;
        }
    }
    return false;
}

static int field_count(const tt_recipe_field *fields)
{
    int count = 0;
    while (fields[count].key != NULL) {
        count++;
    }
    return count;
}

static const cyaml_schema_value_t text_value = {
    CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char, 0, CYAML_UNLIMITED)};

static const cyaml_schema_field_t *build_section(tt_yaml_schema *schema,
                                                 const tt_recipe_field *fields, const char *path);

static cyaml_schema_value_t section_value(tt_yaml_schema *schema, const tt_recipe_field *field,
                                          const char *path, unsigned flags)
{
    return (cyaml_schema_value_t){
        .type = CYAML_MAPPING,
        .flags = flags,
        .data_size = (uint32_t)((size_t)field_count(field->fields) * sizeof(tt_yaml_slot)),
        .mapping = {.fields = build_section(schema, field->fields, path)}};
}

static cyaml_schema_value_t build_value(tt_yaml_schema *schema, const tt_recipe_field *field,
                                        const char *path)
{
    /* A key without a value (`model:` with every line below it commented out) gives NULL. */
    unsigned section_flags = CYAML_FLAG_OPTIONAL | CYAML_FLAG_POINTER_NULL;
    if (field->kind == TT_FIELD_SECTION) {
        return section_value(schema, field, path, section_flags);
    }
    if (!tt_recipe_field_is_list(field) || is_single(schema->singles, path)) {
        cyaml_schema_value_t value = text_value;
        value.flags = CYAML_FLAG_OPTIONAL | CYAML_FLAG_POINTER;
        return value;
    }
    cyaml_schema_value_t *entry = &schema->entries[schema->entry_count++];
    *entry = field->kind == TT_FIELD_SECTIONS
                 ? section_value(schema, field, path, CYAML_FLAG_DEFAULT)
                 : text_value;
    return (cyaml_schema_value_t){
        .type = CYAML_SEQUENCE,
        .flags = CYAML_FLAG_OPTIONAL | CYAML_FLAG_POINTER,
        .data_size = field->kind == TT_FIELD_SECTIONS ? entry->data_size : sizeof(char *),
        .sequence = {.entry = entry, .min = 0, .max = (uint32_t)field->capacity}};
}

/* The library's field table of one section; slot i belongs to field i. */
static const cyaml_schema_field_t *build_section(tt_yaml_schema *schema,
                                                 const tt_recipe_field *fields, const char *path)
{
    int count = field_count(fields);
    cyaml_schema_field_t *section = &schema->fields[schema->field_count];
    schema->field_count += count + 1;
    if (schema->field_count > TT_YAML_FIELDS) {
        abort(); /* the table outgrew TT_YAML_FIELDS: a mistake in this program */
    }
    for (int i = 0; i < count; i++) {
        char key_path[TT_RECIPE_PATH];
        join_path(key_path, sizeof key_path, path, fields[i].key);
        section[i] =
            (cyaml_schema_field_t){.key = fields[i].key,
                                   .data_offset = (uint32_t)((size_t)i * sizeof(tt_yaml_slot)),
                                   .count_offset = (uint32_t)((size_t)i * sizeof(tt_yaml_slot) +
                                                              offsetof(tt_yaml_slot, count)),
                                   .count_size = sizeof(uint64_t),
                                   .value = build_value(schema, &fields[i], key_path)};
    }
    section[count] = (cyaml_schema_field_t)CYAML_FIELD_END;
    return section;
}

static void keep_line(cyaml_log_t level, void *context, const char *format, va_list arguments)
{
    tt_yaml_trace *trace = context;
    if (level < CYAML_LOG_ERROR || trace->count >= TT_YAML_TRACE) {
        return;
    }
    char *line = trace->lines[trace->count++];
    vsnprintf(line, TT_YAML_LINE, format, arguments);
    size_t length = strlen(line);
    if (length > 0 && line[length - 1] == '\n') {
        line[length - 1] = '\0';
    }
    for (char *c = line; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
}

/* One step of the report's way in: a key or the index of a list's entry. */
static void enter(tt_yaml_place *place, const char *step, bool is_index)
{
    char outer[TT_RECIPE_PATH];
    memcpy(outer, place->path, sizeof outer);
    join_path(place->path, sizeof place->path, outer, step);
    place->in_entry = is_index;
    if (is_index) {
        return;
    }
    memcpy(outer, place->plain_path, sizeof outer);
    join_path(place->plain_path, sizeof place->plain_path, outer, step);
    place->field = tt_recipe_field_find(place->section, step, strlen(step));
    if (place->field != NULL && place->field->fields != NULL) {
        place->section = place->field->fields;
    }
}

/* Reads "LABEL'NAME' (line: N, ..." or, without a name, "LABEL(line: N, ...". */
static bool read_step(const char *text, const char *label, char *name, size_t size,
                      unsigned long *line)
{
    const char *at = strstr(text, label);
    if (at == NULL) {
        return false;
    }
    at += strlen(label);
    if (name != NULL) {
        size_t length = strcspn(at, "'");
        snprintf(name, size, "%.*s", (int)(length < size ? length : size - 1), at);
        at += length;
    }
    at = strstr(at, "(line: ");
    if (at != NULL) {
        *line = strtoul(at + strlen("(line: "), NULL, 10);
    }
    return at != NULL;
}

static void find_place(const tt_yaml_trace *trace, tt_yaml_place *place)
{
    memset(place, 0, sizeof *place);
    place->section = tt_recipe_fields;
    for (int i = trace->count - 1; i > 0; i--) {
        char name[64];
        const char *text = trace->lines[i];
        if (read_step(text, "in mapping field '", name, sizeof name, &place->line)) {
            enter(place, name, false);
        } else if (read_step(text, "in sequence entry '", name, sizeof name, &place->line)) {
            /* The library counts the entry it is in. */
            unsigned long number = strtoul(name, NULL, 10);
            snprintf(name, sizeof name, "%lu", number > 0 ? number - 1 : 0);
            enter(place, name, true);
        } else {
            read_step(text, "in mapping ", NULL, 0, &place->line);
        }
    }
}

/* What follows `label` in the first line of the report that has it; NULL when none does. */
static const char *after(const tt_yaml_trace *trace, const char *label)
{
    for (int i = 0; i < trace->count; i++) {
        const char *found = strstr(trace->lines[i], label);
        if (found != NULL) {
            return found + strlen(label);
        }
    }
    return NULL;
}

static const char *plain_event(const char *event)
{
    static const char *const names[][2] = {{"SCALAR", "a single value"},
                                           {"SEQUENCE_START", "a list"},
                                           {"SEQ_START", "a list"},
                                           {"MAPPING_START", "a section of keys"},
                                           {"MAP_START", "a section of keys"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strstr(event, names[i][0]) != NULL) {
            return names[i][1];
        }
    }
    return "the end of the file";
}

static bool contains(const char *line, size_t length, const char *key)
{
    size_t key_length = strlen(key);
    for (size_t i = 0; i + key_length <= length; i++) {
        if (memcmp(line + i, key, key_length) == 0) {
            return true;
        }
    }
    return false;
}

/* The library knows where the value before an unknown key was; the key stands on the first line
 * from there on that has it. */
static unsigned long line_of_key(const char *text, size_t length, unsigned long line,
                                 const char *key)
{
    const char *end = text + length, *start = text;
    for (unsigned long number = 1; start < end; number++) {
        const char *stop = memchr(start, '\n', (size_t)(end - start));
        size_t line_length = (size_t)((stop != NULL ? stop : end) - start);
        if (number >= line && contains(start, line_length, key)) {
            return number;
        }
        start += line_length + 1;
    }
    return line;
}

static tt_status unknown_key(const tt_yaml_place *place, const char *key, tt_error *error)
{
    char hint[450], path[TT_RECIPE_PATH];
    tt_recipe_field_hint(place->section, key, hint, sizeof hint);
    join_path(path, sizeof path, place->path, key);
    return tt_error_set(error, TT_INVALID_INPUT, "line %lu: %s: unknown key; %s", place->line, path,
                        hint);
}

static void expected_structure(const tt_yaml_place *place, char *text, size_t size)
{
    if (place->field == NULL || (place->in_entry && place->field->fields != NULL)) {
        snprintf(text, size, "a section of keys");
    } else if (tt_recipe_field_is_list(place->field) && !place->in_entry) {
        snprintf(text, size, "a list");
    } else {
        tt_recipe_field_expected(place->field, text, size);
    }
}

/* One line out of the library's report. */
static tt_status describe(cyaml_err_t status, const tt_yaml_trace *trace, tt_yaml_place *place,
                          const char *text, size_t length, tt_error *error)
{
    char where[TT_RECIPE_PATH + 40] = "";
    if (place->line > 0) {
        snprintf(where, sizeof where, "line %lu: %s%s", place->line, place->path,
                 place->path[0] != '\0' ? ": " : "");
    }
    const char *key = after(trace, "Unexpected key: ");
    const char *event = after(trace, "got event: ");
    if (status == CYAML_ERR_OOM) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "out of memory");
    }
    if (status == CYAML_ERR_INVALID_KEY && key != NULL) {
        place->line = line_of_key(text, length, place->line, key);
        return unknown_key(place, key, error);
    }
    if (after(trace, "Mapping field already seen: ") != NULL) {
        return tt_error_set(error, TT_INVALID_INPUT, "%sgiven twice", where);
    }
    if (status == CYAML_ERR_ALIAS || after(trace, "expected alphabetic or numeric") != NULL) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%saliases are not supported; quote a value that begins with *", where);
    }
    if (status == CYAML_ERR_SEQUENCE_ENTRIES_MAX && place->field != NULL) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "line %lu: %s: expected at most %llu entries, found more", place->line,
                            place->plain_path, (unsigned long long)place->field->capacity);
    }
    if (event != NULL) {
        char expected[400];
        expected_structure(place, expected, sizeof expected);
        return tt_error_set(error, TT_INVALID_INPUT, "%sexpected %s, found %s", where, expected,
                            plain_event(event));
    }
    const char *yaml = after(trace, "libyaml: ");
    return tt_error_set(error, TT_INVALID_INPUT, "%sexpected YAML, found: %s", where,
                        yaml != NULL ? yaml : cyaml_strerror(status));
}

static tt_status read_scalar(const tt_yaml_reader *reader, const tt_recipe_field *field,
                             void *section, uint64_t index, const char *text, const char *path)
{
    TT_TRY(tt_recipe_field_set(field, section, index, text, path, reader->error));
    tt_recipe_mark_given(reader->draft, (char *)section + field->offset);
    return TT_OK;
}

static tt_status read_section(const tt_yaml_reader *reader, const tt_recipe_field *fields,
                              void *section, const tt_yaml_slot *slots, const char *path,
                              const char *plain_path);

static tt_status read_list(const tt_yaml_reader *reader, const tt_recipe_field *field,
                           void *section, const tt_yaml_slot *slot, const char *path,
                           const char *plain_path)
{
    uint64_t *count = tt_recipe_field_count(field, section);
    tt_recipe_mark_given(reader->draft, (char *)section + field->offset);
    if (is_single(reader->singles, plain_path)) {
        *count = 1;
        return read_scalar(reader, field, section, 0, slot->value, path);
    }
    *count = slot->count;
    for (uint64_t i = 0; i < slot->count; i++) {
        char index[24], entry_path[TT_RECIPE_PATH];
        snprintf(index, sizeof index, "%llu", (unsigned long long)i);
        join_path(entry_path, sizeof entry_path, path, index);
        if (field->kind == TT_FIELD_SECTIONS) {
            void *entry = (char *)section + field->offset + i * field->entry_size;
            const tt_yaml_slot *slots =
                (const tt_yaml_slot *)slot->value + i * (uint64_t)field_count(field->fields);
            tt_recipe_fields_default(field->fields, entry);
            TT_TRY(read_section(reader, field->fields, entry, slots, entry_path, plain_path));
        } else {
            const char *text = ((const char *const *)slot->value)[i];
            TT_TRY(read_scalar(reader, field, section, i, text, entry_path));
        }
    }
    return TT_OK;
}

static tt_status read_section(const tt_yaml_reader *reader, const tt_recipe_field *fields,
                              void *section, const tt_yaml_slot *slots, const char *path,
                              const char *plain_path)
{
    for (int i = 0; fields[i].key != NULL; i++) {
        const tt_recipe_field *field = &fields[i];
        if (slots[i].value == NULL) {
            continue;
        }
        char key_path[TT_RECIPE_PATH], key_plain[TT_RECIPE_PATH];
        join_path(key_path, sizeof key_path, path, field->key);
        join_path(key_plain, sizeof key_plain, plain_path, field->key);
        if (field->kind == TT_FIELD_SECTION) {
            TT_TRY(read_section(reader, field->fields, (char *)section + field->offset,
                                slots[i].value, key_path, key_plain));
        } else if (tt_recipe_field_is_list(field)) {
            TT_TRY(read_list(reader, field, section, &slots[i], key_path, key_plain));
        } else {
            TT_TRY(read_scalar(reader, field, section, 0, slots[i].value, key_path));
        }
    }
    return TT_OK;
}

/* True when the failure was a single value where a list may stand: noted, to be read as such. */
static bool note_single(const tt_yaml_trace *trace, const tt_yaml_place *place,
                        tt_yaml_singles *singles)
{
    const char *event = after(trace, "got event: ");
    bool applies =
        event != NULL && !place->in_entry && strstr(event, "SCALAR") != NULL &&
        place->field != NULL &&
        (place->field->kind == TT_FIELD_INTEGERS || place->field->kind == TT_FIELD_TEXTS) &&
        singles->count < TT_YAML_SINGLES && !is_single(singles, place->plain_path);
    if (applies) {
        memcpy(singles->paths[singles->count++], place->plain_path, sizeof place->plain_path);
    }
    return applies;
}

/* One attempt. `*again`: a list that stands as one value was noted in `singles`, try once more. */
static tt_status load(const char *text, size_t length, tt_yaml_schema *schema,
                      tt_yaml_singles *singles, const tt_recipe_draft *draft, bool *again,
                      tt_error *error)
{
    memset(schema, 0, sizeof *schema);
    schema->singles = singles;
    const cyaml_schema_value_t root = {
        .type = CYAML_MAPPING,
        .flags = CYAML_FLAG_POINTER,
        .data_size = (uint32_t)((size_t)field_count(tt_recipe_fields) * sizeof(tt_yaml_slot)),
        .mapping = {.fields = build_section(schema, tt_recipe_fields, "")}};
    tt_yaml_trace trace = {.count = 0};
    const cyaml_config_t config = {.log_fn = keep_line,
                                   .log_ctx = &trace,
                                   .mem_fn = cyaml_mem,
                                   .log_level = CYAML_LOG_ERROR,
                                   .flags = CYAML_CFG_NO_ALIAS};
    cyaml_data_t *slots = NULL;
    cyaml_err_t status =
        cyaml_load_data((const uint8_t *)text, length, &config, &root, &slots, NULL);
    *again = false;
    if (status != CYAML_OK) {
        tt_yaml_place place;
        find_place(&trace, &place);
        *again = note_single(&trace, &place, singles);
        return describe(status, &trace, &place, text, length, error);
    }
    if (slots == NULL) {
        return TT_OK;
    }
    const tt_yaml_reader reader = {singles, draft, error};
    tt_status result = read_section(&reader, tt_recipe_fields, draft->recipe, slots, "", "");
    cyaml_free(&config, &root, slots, 0);
    return result;
}

static bool is_marker(const char *line, size_t length, const char *marker)
{
    return length >= 3 && memcmp(line, marker, 3) == 0 &&
           (length == 3 || strchr(" \t\r", line[3]) != NULL);
}

/* The line on which a second document begins; 0: none does. In YAML these markers mean what they
 * mean at the beginning of any line, quoted text included. */
static unsigned long second_document(const char *text, size_t length)
{
    bool begun = false, ended = false;
    unsigned long number = 0;
    for (size_t at = 0, size; at < length; at += size + 1) {
        const char *line = text + at, *end = memchr(line, '\n', length - at);
        size = end ? (size_t)(end - line) : length - at;
        number++;
        size_t blank = 0;
        while (blank < size && strchr(" \t\r", line[blank]) != NULL) {
            blank++;
        }
        if (blank == size || line[blank] == '#' || (line[0] == '%' && !begun)) {
            continue;
        }
        if (is_marker(line, size, "...")) {
            ended = begun;
        } else if (ended || (begun && is_marker(line, size, "---"))) {
            return number;
        } else {
            begun = true;
        }
    }
    return 0;
}

tt_status tt_recipe_read_yaml(const char *text, size_t length, const tt_recipe_draft *draft,
                              tt_error *error)
{
    unsigned long second = second_document(text, length);
    if (second > 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "line %lu: expected one document, found the beginning of a second one",
                            second);
    }
    tt_yaml_schema *schema = malloc(sizeof *schema);
    tt_yaml_singles *singles = calloc(1, sizeof *singles);
    tt_status status = TT_OK;
    if (schema == NULL || singles == NULL) {
        status = tt_error_set(error, TT_OUT_OF_MEMORY, "out of memory");
    } else {
        bool again;
        do {
            status = load(text, length, schema, singles, draft, &again, error);
        } while (again);
    }
    free(schema);
    free(singles);
    return status;
}

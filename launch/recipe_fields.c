#include "launch/recipe_schema.h"

#include "launch/command_line.h"
#include "launch/suggest.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TT_FIELDS_LONGEST = 32 /* keys in one section, and choices of one key */ };

void tt_recipe_mark_given(const tt_recipe_draft *draft, const void *value)
{
    draft->given[(const char *)value - (const char *)draft->recipe] = 1;
}

bool tt_recipe_is_given(const tt_recipe_draft *draft, const void *value)
{
    return draft->given[(const char *)value - (const char *)draft->recipe] != 0;
}

const tt_recipe_field *tt_recipe_field_find(const tt_recipe_field *fields, const char *key,
                                            size_t length)
{
    for (; fields->key != NULL; fields++) {
        if (strlen(fields->key) == length && strncmp(fields->key, key, length) == 0) {
            return fields;
        }
    }
    return NULL;
}

/* "a, b, c" */
static void join(const char *const *words, int count, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < count && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", words[i]);
    }
}

void tt_recipe_field_hint(const tt_recipe_field *fields, const char *key, char *hint, size_t size)
{
    const char *keys[TT_FIELDS_LONGEST] = {NULL};
    int count = 0;
    for (; fields->key != NULL && count < TT_FIELDS_LONGEST; fields++) {
        keys[count++] = fields->key;
    }
    const char *nearest = tt_suggest_nearest(key, keys, count);
    if (nearest != NULL) {
        snprintf(hint, size, "did you mean %s?", nearest);
        return;
    }
    char list[400];
    join(keys, count, list, sizeof list);
    snprintf(hint, size, "expected one of %s", list);
}

bool tt_recipe_field_is_list(const tt_recipe_field *field)
{
    return field->kind == TT_FIELD_INTEGERS || field->kind == TT_FIELD_TEXTS ||
           field->kind == TT_FIELD_SECTIONS;
}

uint64_t *tt_recipe_field_count(const tt_recipe_field *field, void *section)
{
    return (uint64_t *)(void *)((char *)section + field->count_offset);
}

static void set_choice(void *value, int choice)
{
    memcpy(value, &choice, sizeof choice);
}

void tt_recipe_fields_default(const tt_recipe_field *fields, void *section)
{
    for (; fields->key != NULL; fields++) {
        void *value = (char *)section + fields->offset;
        switch (fields->kind) {
        case TT_FIELD_INTEGER:
            *(int64_t *)value = (int64_t)fields->fallback;
            break;
        case TT_FIELD_REAL:
            *(double *)value = fields->fallback;
            break;
        case TT_FIELD_BOOLEAN:
            *(bool *)value = fields->fallback != 0;
            break;
        case TT_FIELD_CHOICE:
            set_choice(value, (int)fields->fallback);
            break;
        case TT_FIELD_TEXT:
            *(char *)value = '\0';
            break;
        case TT_FIELD_INTEGERS:
        case TT_FIELD_TEXTS:
        case TT_FIELD_SECTIONS:
            *tt_recipe_field_count(fields, section) = 0;
            break;
        case TT_FIELD_SECTION:
            tt_recipe_fields_default(fields->fields, value);
            break;
        }
    }
}

static int choice_count(const tt_recipe_field *field)
{
    int count = 0;
    while (field->choices[count] != NULL) {
        count++;
    }
    return count;
}

void tt_recipe_field_expected(const tt_recipe_field *field, char *text, size_t size)
{
    char choices[300];
    switch (field->kind) {
    case TT_FIELD_INTEGER:
    case TT_FIELD_INTEGERS:
        snprintf(text, size, "an integer from %.0f to %.0f", field->minimum, field->maximum);
        break;
    case TT_FIELD_REAL:
        snprintf(text, size,
                 field->above_minimum ? "a number above %g and at most %.10g"
                                      : "a number from %g to %.10g",
                 field->minimum, field->maximum);
        break;
    case TT_FIELD_BOOLEAN:
        snprintf(text, size, "true or false");
        break;
    case TT_FIELD_CHOICE:
        join(field->choices, choice_count(field), choices, sizeof choices);
        snprintf(text, size, "one of %s", choices);
        break;
    case TT_FIELD_TEXT:
    case TT_FIELD_TEXTS:
        snprintf(text, size, "printable UTF-8 text of at most %d bytes", TT_RECIPE_TEXT - 1);
        break;
    case TT_FIELD_SECTION:
        snprintf(text, size, "a section of keys");
        break;
    case TT_FIELD_SECTIONS:
        snprintf(text, size, "a list of sections");
        break;
    }
}

static bool in_range(const tt_recipe_field *field, double value)
{
    bool above = field->above_minimum ? value > field->minimum : value >= field->minimum;
    return above && value <= field->maximum;
}

static bool read_boolean(const char *text, bool *value)
{
    static const char *const words[][2] = {{"false", "true"}, {"no", "yes"}, {"off", "on"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        for (int truth = 0; truth < 2; truth++) {
            if (strcmp(text, words[i][truth]) == 0) {
                *value = truth != 0;
                return true;
            }
        }
    }
    return false;
}

static bool read_choice(const tt_recipe_field *field, const char *text, void *value)
{
    for (int i = 0; field->choices[i] != NULL; i++) {
        if (strcmp(field->choices[i], text) == 0) {
            set_choice(value, i);
            return true;
        }
    }
    return false;
}

/* UTF-8 without control characters and without what YAML forbids, so that a recipe can be written
 * and read again. */
static bool is_printable(const char *text)
{
    json_t *string = json_string(text);
    bool valid = string != NULL;
    json_decref(string);
    const unsigned char *bytes = (const unsigned char *)text;
    for (size_t i = 0; valid && bytes[i] != 0; i++) {
        bool control =
            bytes[i] < 0x20 || bytes[i] == 0x7f || (bytes[i] == 0xc2 && bytes[i + 1] < 0xa0);
        bool not_a_character =
            bytes[i] == 0xef && ((bytes[i + 1] == 0xbf && bytes[i + 2] >= 0xbe) ||
                                 (bytes[i + 1] == 0xbb && bytes[i + 2] == 0xbf));
        valid = !control && !not_a_character;
    }
    return valid;
}

static bool read_text(const char *text, char *value)
{
    size_t length = strlen(text);
    if (length >= TT_RECIPE_TEXT || !is_printable(text)) {
        return false;
    }
    memcpy(value, text, length + 1);
    return true;
}

static bool read_integer(const tt_recipe_field *field, const char *text, int64_t *value)
{
    int64_t number;
    if (!tt_command_integer(text, &number) || !in_range(field, (double)number)) {
        return false;
    }
    *value = number;
    return true;
}

static bool read_real(const tt_recipe_field *field, const char *text, double *value)
{
    double number;
    if (!tt_command_real(text, &number) || !in_range(field, number)) {
        return false;
    }
    *value = number;
    return true;
}

/* What was found, quoted and cut, with bytes that do not belong on a terminal replaced. */
static void quote(const char *text, char *quoted, size_t size)
{
    enum { LONGEST = 60 };
    size_t length = strnlen(text, LONGEST + 1), used = 0;
    if (length == 0) {
        snprintf(quoted, size, "nothing");
        return;
    }
    quoted[used++] = '\'';
    for (size_t i = 0; i < length && i < LONGEST && used + 5 < size; i++) {
        bool control = (unsigned char)text[i] < 0x20 || text[i] == 0x7f;
        quoted[used++] = text[i];
        if (control) {
            quoted[used - 1] = '?';
        }
    }
    snprintf(quoted + used, size - used, length > LONGEST ? "...'" : "'");
}

tt_status tt_recipe_field_set(const tt_recipe_field *field, void *section, uint64_t index,
                              const char *text, const char *path, tt_error *error)
{
    void *value = (char *)section + field->offset + index * field->entry_size;
    bool understood = false;
    switch (field->kind) {
    case TT_FIELD_INTEGER:
    case TT_FIELD_INTEGERS:
        understood = read_integer(field, text, value);
        break;
    case TT_FIELD_REAL:
        understood = read_real(field, text, value);
        break;
    case TT_FIELD_BOOLEAN:
        understood = read_boolean(text, value);
        break;
    case TT_FIELD_CHOICE:
        understood = read_choice(field, text, value);
        break;
    case TT_FIELD_TEXT:
    case TT_FIELD_TEXTS:
        understood = read_text(text, value);
        break;
    case TT_FIELD_SECTION:
    case TT_FIELD_SECTIONS:
        break;
    }
    if (understood) {
        return TT_OK;
    }
    char expected[400], found[100];
    tt_recipe_field_expected(field, expected, sizeof expected);
    quote(text, found, sizeof found);
    const char *nearest = field->kind == TT_FIELD_CHOICE
                              ? tt_suggest_nearest(text, field->choices, choice_count(field))
                              : NULL;
    return tt_error_set(error, TT_INVALID_INPUT, "%s: expected %s, found %s%s%s%s", path, expected,
                        found, nearest != NULL ? "; did you mean " : "",
                        nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
}

static tt_status check_number(const tt_recipe_field *field, double value, const char *path,
                              tt_error *error)
{
    if (in_range(field, value)) {
        return TT_OK;
    }
    char expected[400];
    tt_recipe_field_expected(field, expected, sizeof expected);
    return tt_error_set(error, TT_INVALID_INPUT, "%s: expected %s, found %.10g", path, expected,
                        value);
}

static tt_status check_text(const tt_recipe_field *field, const char *text, const char *path,
                            tt_error *error)
{
    if (memchr(text, '\0', TT_RECIPE_TEXT) != NULL && is_printable(text)) {
        return TT_OK;
    }
    char expected[400];
    tt_recipe_field_expected(field, expected, sizeof expected);
    return tt_error_set(error, TT_INVALID_INPUT, "%s: expected %s", path, expected);
}

static tt_status check_entry(const tt_recipe_field *field, const void *value, const char *path,
                             tt_error *error)
{
    int choice;
    switch (field->kind) {
    case TT_FIELD_INTEGER:
    case TT_FIELD_INTEGERS:
        return check_number(field, (double)*(const int64_t *)value, path, error);
    case TT_FIELD_REAL:
        return check_number(field, *(const double *)value, path, error);
    case TT_FIELD_CHOICE:
        memcpy(&choice, value, sizeof choice);
        if (choice < 0 || choice >= choice_count(field)) {
            return tt_error_set(error, TT_INVALID_INPUT, "%s: expected a choice below %d, found %d",
                                path, choice_count(field), choice);
        }
        return TT_OK;
    case TT_FIELD_TEXT:
    case TT_FIELD_TEXTS:
        return check_text(field, value, path, error);
    case TT_FIELD_SECTION:
    case TT_FIELD_SECTIONS:
        return tt_recipe_fields_check(field->fields, value, path, error);
    case TT_FIELD_BOOLEAN:
        break;
    }
    return TT_OK;
}

tt_status tt_recipe_fields_check(const tt_recipe_field *fields, const void *section,
                                 const char *path, tt_error *error)
{
    for (; fields->key != NULL; fields++) {
        char key[TT_RECIPE_PATH];
        snprintf(key, sizeof key, "%s%s%s", path, path[0] != '\0' ? "." : "", fields->key);
        const char *value = (const char *)section + fields->offset;
        if (!tt_recipe_field_is_list(fields)) {
            TT_TRY(check_entry(fields, value, key, error));
            continue;
        }
        uint64_t count = *(const uint64_t *)((const char *)section + fields->count_offset);
        if (count > fields->capacity) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "%s: expected at most %llu entries, found %llu", key,
                                (unsigned long long)fields->capacity, (unsigned long long)count);
        }
        for (uint64_t i = 0; i < count; i++) {
            char entry[TT_RECIPE_PATH];
            snprintf(entry, sizeof entry, "%.100s.%llu", key, (unsigned long long)i);
            TT_TRY(check_entry(fields, value + i * fields->entry_size, entry, error));
        }
    }
    return TT_OK;
}

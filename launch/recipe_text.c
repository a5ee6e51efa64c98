/* YAML out: every key of a recipe, numbers in the fewest digits that read back to the same value.
 */
#include "launch/recipe_schema.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_real(FILE *stream, double value)
{
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    fputs(text, stream);
}

/* A JSON string is a YAML string as well. */
static void write_text(FILE *stream, const char *value)
{
    json_t *string = json_string(value);
    char *text = string != NULL ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    fputs(text != NULL ? text : "\"\"", stream);
    free(text);
    json_decref(string);
}

static void write_scalar(FILE *stream, const tt_recipe_field *field, const void *value)
{
    int choice;
    switch (field->kind) {
    case TT_FIELD_INTEGER:
    case TT_FIELD_INTEGERS:
        fprintf(stream, "%lld", (long long)*(const int64_t *)value);
        break;
    case TT_FIELD_REAL:
        write_real(stream, *(const double *)value);
        break;
    case TT_FIELD_BOOLEAN:
        fputs(*(const bool *)value ? "true" : "false", stream);
        break;
    case TT_FIELD_CHOICE:
        memcpy(&choice, value, sizeof choice);
        fputs(field->choices[choice], stream);
        break;
    case TT_FIELD_TEXT:
    case TT_FIELD_TEXTS:
        write_text(stream, value);
        break;
    case TT_FIELD_SECTION:
    case TT_FIELD_SECTIONS:
        break;
    }
}

static void write_values(FILE *stream, const tt_recipe_field *field, const void *section)
{
    const char *value = (const char *)section + field->offset;
    uint64_t count = *(const uint64_t *)((const char *)section + field->count_offset);
    fputc('[', stream);
    for (uint64_t i = 0; i < count; i++) {
        fputs(i > 0 ? ", " : "", stream);
        write_scalar(stream, field, value + i * field->entry_size);
    }
    fputs("]\n", stream);
}

/* `indent` spaces stand before each key, except before the first one when `follows_dash`. */
static void write_section(FILE *stream, const tt_recipe_field *fields, const void *section,
                          int indent, bool follows_dash)
{
    for (const tt_recipe_field *field = fields; field->key != NULL; field++) {
        const char *value = (const char *)section + field->offset;
        bool in_place = follows_dash && field == fields;
        fprintf(stream, "%*s%s:", in_place ? 0 : indent, "", field->key);
        if (field->kind == TT_FIELD_SECTION) {
            fputc('\n', stream);
            write_section(stream, field->fields, value, indent + 2, false);
        } else if (field->kind == TT_FIELD_SECTIONS) {
            uint64_t count = *(const uint64_t *)((const char *)section + field->count_offset);
            fputs(count > 0 ? "\n" : " []\n", stream);
            for (uint64_t i = 0; i < count; i++) {
                fprintf(stream, "%*s- ", indent + 2, "");
                write_section(stream, field->fields, value + i * field->entry_size, indent + 4,
                              true);
            }
        } else {
            fputc(' ', stream);
            if (tt_recipe_field_is_list(field)) {
                write_values(stream, field, section);
            } else {
                write_scalar(stream, field, value);
                fputc('\n', stream);
            }
        }
    }
}

char *tt_recipe_text(const tt_recipe *recipe)
{
    char *text = NULL;
    size_t length;
    FILE *stream = open_memstream(&text, &length);
    if (stream == NULL) {
        return NULL;
    }
    write_section(stream, tt_recipe_fields, recipe, 0, false);
    bool failed = ferror(stream) != 0;
    if (fclose(stream) != 0 || failed) {
        free(text);
        return NULL;
    }
    return text;
}

static void default_text(const tt_recipe_field *field, char *text, size_t size)
{
    if (field->required) {
        snprintf(text, size, "must be given");
    } else if (field->kind == TT_FIELD_CHOICE) {
        snprintf(text, size, "default %s", field->choices[(int)field->fallback]);
    } else if (field->kind == TT_FIELD_BOOLEAN) {
        snprintf(text, size, "default %s", field->fallback != 0 ? "true" : "false");
    } else if (field->kind == TT_FIELD_INTEGER) {
        snprintf(text, size, "default %.0f", field->fallback);
    } else if (field->kind == TT_FIELD_REAL) {
        snprintf(text, size, "default %g", field->fallback);
    } else {
        snprintf(text, size, "default empty");
    }
}

static void describe_section(FILE *stream, const tt_recipe_field *fields, const char *path)
{
    for (const tt_recipe_field *field = fields; field->key != NULL; field++) {
        char key[TT_RECIPE_PATH], fallback[64], expected[400];
        const char *end = field->kind == TT_FIELD_SECTIONS  ? ".N."
                          : field->kind == TT_FIELD_SECTION ? "."
                                                            : "";
        snprintf(key, sizeof key, "%.90s%.32s%s", path, field->key, end);
        if (field->fields != NULL) {
            describe_section(stream, field->fields, key);
            continue;
        }
        default_text(field, fallback, sizeof fallback);
        tt_recipe_field_expected(field, expected, sizeof expected);
        fprintf(stream, "%-40s %s (%s%s, %s)\n", key, field->help,
                tt_recipe_field_is_list(field) ? "a list: each " : "", expected, fallback);
    }
}

void tt_recipe_describe(FILE *stream)
{
    describe_section(stream, tt_recipe_fields, "");
}

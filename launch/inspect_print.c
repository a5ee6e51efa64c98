#include "launch/inspect_report.h"

#include <stdlib.h>
#include <string.h>

enum { TT_CELL = 1024, TT_COLUMNS = 24 };

json_t *tt_inspect_integers(const int64_t *values, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_array_append_new(list, json_integer(values[i]));
    }
    return list;
}

static void add_ratio(json_t *entry, int64_t dense, int64_t parameters)
{
    /* A removed map has no ratio. */
    json_object_set_new(entry, "compression",
                        parameters > 0 ? json_real((double)dense / (double)parameters)
                                       : json_null());
}

void tt_inspect_add_shape(json_t *entry, const tt_train_shape *shape)
{
    int output_order = shape->order - shape->input_order;
    int64_t dense = tt_train_inputs(shape) * tt_train_outputs(shape);
    json_object_set_new(entry, "input_modes",
                        tt_inspect_integers(shape->modes, shape->input_order));
    json_object_set_new(entry, "output_modes",
                        tt_inspect_integers(shape->modes + shape->input_order, output_order));
    json_object_set_new(entry, "ranks", tt_inspect_integers(shape->ranks, shape->order + 1));
    json_object_set_new(entry, "parameters", json_integer(tt_train_size(shape)));
    json_object_set_new(entry, "dense_parameters", json_integer(dense));
    add_ratio(entry, dense, tt_train_size(shape));
}

/* What a file says may be more than there can be. */
static json_t *bytes_json(int64_t parameters)
{
    int64_t bytes;
    return __builtin_mul_overflow(parameters, (int64_t)sizeof(float), &bytes) ? json_null()
                                                                              : json_integer(bytes);
}

void tt_inspect_add_sizes(json_t *report, int64_t parameters, int64_t dense_parameters)
{
    json_object_set_new(report, "parameters", json_integer(parameters));
    json_object_set_new(report, "dense_parameters", json_integer(dense_parameters));
    json_object_set_new(report, "parameter_bytes", bytes_json(parameters));
    json_object_set_new(report, "dense_parameter_bytes", bytes_json(dense_parameters));
    add_ratio(report, dense_parameters, parameters);
}

/* 1234567 as 1,234,567 */
static void grouped(json_int_t value, char *text, size_t size)
{
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)value);
    size_t used = 0;
    for (int i = 0; i < length && used + 2 < size; i++) {
        text[used++] = digits[i];
        int left = length - 1 - i;
        if (left > 0 && left % 3 == 0 && digits[i] != '-') {
            text[used++] = ',';
        }
    }
    text[used] = '\0';
}

static void cell_text(const json_t *value, char text[TT_CELL]);

static void list_text(const json_t *list, char text[TT_CELL])
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < json_array_size(list) && used < TT_CELL; i++) {
        char part[TT_CELL];
        cell_text(json_array_get(list, i), part);
        used += (size_t)snprintf(text + used, TT_CELL - used, "%s%.200s", i > 0 ? " " : "", part);
    }
}

/* Text of a file may hold what moves a terminal's cursor. */
static void printable_text(const char *bytes, char text[TT_CELL])
{
    snprintf(text, TT_CELL, "%s", bytes);
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f) {
            *text = '?';
        }
    }
}

/* A value that is not there is "-". */
static void cell_text(const json_t *value, char text[TT_CELL])
{
    switch (value != NULL ? json_typeof(value) : JSON_NULL) {
    case JSON_INTEGER:
        grouped(json_integer_value(value), text, TT_CELL);
        break;
    case JSON_REAL:
        snprintf(text, TT_CELL, "%.6g", json_real_value(value));
        break;
    case JSON_STRING:
        printable_text(json_string_value(value), text);
        break;
    case JSON_ARRAY:
        list_text(value, text);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        snprintf(text, TT_CELL, "%s", json_is_true(value) ? "yes" : "no");
        break;
    default:
        snprintf(text, TT_CELL, "-");
        break;
    }
}

/* The columns of a table are the keys of its first row. */
static int table_columns(const json_t *rows, const char *keys[TT_COLUMNS], int widths[TT_COLUMNS])
{
    int count = 0;
    for (void *at = json_object_iter(json_array_get(rows, 0)); at != NULL && count < TT_COLUMNS;
         at = json_object_iter_next(json_array_get(rows, 0), at)) {
        keys[count] = json_object_iter_key(at);
        widths[count] = (int)strlen(keys[count]);
        for (size_t row = 0; row < json_array_size(rows); row++) {
            char text[TT_CELL];
            cell_text(json_object_get(json_array_get(rows, row), keys[count]), text);
            int width = (int)strlen(text);
            widths[count] = width > widths[count] ? width : widths[count];
        }
        count++;
    }
    return count;
}

/* Text to the left, numbers to the right. */
static void print_cell(FILE *stream, const char *text, int width, bool number)
{
    fprintf(stream, number ? "  %*s" : "  %-*s", width, text);
}

static void print_table(const json_t *rows, FILE *stream)
{
    const char *keys[TT_COLUMNS];
    int widths[TT_COLUMNS];
    int columns = table_columns(rows, keys, widths);
    const json_t *first = json_array_get(rows, 0);
    for (int column = 0; column < columns; column++) {
        print_cell(stream, keys[column], widths[column],
                   json_is_number(json_object_get(first, keys[column])));
    }
    fputc('\n', stream);
    for (size_t row = 0; row < json_array_size(rows); row++) {
        for (int column = 0; column < columns; column++) {
            char text[TT_CELL];
            const json_t *value = json_object_get(json_array_get(rows, row), keys[column]);
            cell_text(value, text);
            print_cell(stream, text, widths[column], json_is_number(value));
        }
        fputc('\n', stream);
    }
}

void tt_inspect_print(const json_t *report, FILE *stream)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)report, key, value)
    {
        if (json_is_object(json_array_get(value, 0))) {
            fprintf(stream, "\n%s\n", key);
            print_table(value, stream);
        } else if (!(json_is_array(value) && json_array_size(value) == 0)) {
            char text[TT_CELL];
            cell_text(value, text);
            fprintf(stream, "%-24s %s\n", key, text);
        }
    }
}

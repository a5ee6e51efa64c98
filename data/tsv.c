#include "data/tsv.h"

#include "data/file.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { LARGEST_FILE = INT32_MAX, MOST_COLUMNS = 4096 };

static bool is_text(const char *line, size_t length)
{
    for (size_t at = 0; at < length;) {
        utf8proc_int32_t code_point = -1;
        utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)line + at,
                                                  (utf8proc_ssize_t)(length - at), &code_point);
        if (bytes <= 0 || code_point == 0) {
            return false;
        }
        at += (size_t)bytes;
    }
    return true;
}

/* The next line without its end. */
static tt_status take_line(tt_tsv *tsv, tt_tsv_field *line, tt_error *error)
{
    const char *text = tsv->bytes + tsv->at;
    const char *end = memchr(text, '\n', tsv->size - tsv->at);
    size_t length = end != NULL ? (size_t)(end - text) : tsv->size - tsv->at;
    tsv->at += length + (end != NULL ? 1 : 0);
    tsv->line++;
    length -= length > 0 && text[length - 1] == '\r' ? 1 : 0;
    if (!is_text(text, length)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: line %lld: expected UTF-8 text, found bytes that are none",
                            tsv->path, (long long)tsv->line);
    }
    *line = (tt_tsv_field){text, length};
    return TT_OK;
}

static int count_fields(tt_tsv_field line)
{
    int count = 1;
    for (size_t i = 0; i < line.length; i++) {
        count += line.text[i] == '\t';
    }
    return count;
}

static void split(tt_tsv_field line, int count, tt_tsv_field *fields)
{
    const char *end = line.text + line.length;
    for (int i = 0; i < count; i++) {
        const char *tab = memchr(line.text, '\t', (size_t)(end - line.text));
        const char *stop = tab != NULL ? tab : end;
        fields[i] = (tt_tsv_field){line.text, (size_t)(stop - line.text)};
        line.text = tab != NULL ? tab + 1 : end;
    }
}

static tt_status read_header(tt_tsv *tsv, tt_error *error)
{
    static const char mark[] = "\xEF\xBB\xBF";
    tt_tsv_field line = {"", 0};
    tsv->at = tsv->size >= 3 && memcmp(tsv->bytes, mark, 3) == 0 ? 3 : 0;
    if (tsv->at == tsv->size) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected a header line, found an empty file", tsv->path);
    }
    TT_TRY(take_line(tsv, &line, error));
    int columns = count_fields(line);
    if (columns > MOST_COLUMNS) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: line 1: expected at most %d columns, found %d", tsv->path,
                            MOST_COLUMNS, columns);
    }
    tsv->header = calloc((size_t)columns, sizeof *tsv->header);
    tsv->fields = calloc((size_t)columns, sizeof *tsv->fields);
    if (tsv->header == NULL || tsv->fields == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for %d columns", tsv->path,
                            columns);
    }
    tsv->columns = columns;
    split(line, columns, tsv->header);
    return TT_OK;
}

tt_status tt_tsv_open(const char *path, tt_tsv *tsv, tt_error *error)
{
    *tsv = (tt_tsv){.path = path};
    void *bytes = NULL;
    TT_TRY(tt_file_read(path, LARGEST_FILE, &bytes, &tsv->size, error));
    tsv->bytes = bytes;
    return read_header(tsv, error);
}

void tt_tsv_close(tt_tsv *tsv)
{
    free(tsv->bytes);
    free(tsv->header);
    free(tsv->fields);
    *tsv = (tt_tsv){0};
}

tt_status tt_tsv_column(const tt_tsv *tsv, const char *name, int *column, tt_error *error)
{
    int found = 0;
    for (int i = 0; i < tsv->columns; i++) {
        const tt_tsv_field *field = &tsv->header[i];
        if (field->length == strlen(name) && memcmp(field->text, name, field->length) == 0) {
            *column = i;
            found++;
        }
    }
    if (found != 1) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: line 1: expected one column named %s, found %d among %d columns",
                            tsv->path, name, found, tsv->columns);
    }
    return TT_OK;
}

tt_status tt_tsv_next(tt_tsv *tsv, bool *more, tt_error *error)
{
    tt_tsv_field line = {"", 0};
    *more = tsv->at < tsv->size;
    if (!*more) {
        return TT_OK;
    }
    TT_TRY(take_line(tsv, &line, error));
    int columns = count_fields(line);
    if (columns != tsv->columns) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: line %lld: expected %d columns as in the header, found %d",
                            tsv->path, (long long)tsv->line, tsv->columns, columns);
    }
    split(line, columns, tsv->fields);
    return TT_OK;
}

int64_t tt_tsv_lines_left(const tt_tsv *tsv)
{
    int64_t lines = 0;
    for (size_t at = tsv->at; at < tsv->size; at++) {
        lines += tsv->bytes[at] == '\n';
    }
    return lines + (tsv->at < tsv->size && tsv->bytes[tsv->size - 1] != '\n');
}

/* Tab-separated text with a header line, as the GLUE tasks come: UTF-8, no quoting (a quotation
 * mark is text), a line end of "\n" or "\r\n", a byte order mark or none. */
#ifndef TT_DATA_TSV_H
#define TT_DATA_TSV_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *text; /* in the file's memory; not ended by a 0 */
    size_t length;
} tt_tsv_field;

typedef struct {
    const char *path;     /* the caller's */
    char *bytes;          /* the whole file */
    size_t size, at;      /* at: where the next line begins */
    int64_t line;         /* number of the line read last; the header is line 1 */
    int columns;          /* of the header, and of every line */
    tt_tsv_field *header; /* [columns] */
    tt_tsv_field *fields; /* [columns]: of the line read last */
} tt_tsv;

/* Reads the file and its header. Refuses an empty file. Close with tt_tsv_close, in any case. */
tt_status tt_tsv_open(const char *path, tt_tsv *tsv, tt_error *error);
void tt_tsv_close(tt_tsv *tsv);

/* The number of the column with this name. Refuses a name that the header does not have, or has
 * more than once. */
tt_status tt_tsv_column(const tt_tsv *tsv, const char *name, int *column, tt_error *error);
/* The next line, into `fields`; `more` is false after the last. Refuses a line with more or fewer
 * columns than the header, and one that is not UTF-8. */
tt_status tt_tsv_next(tt_tsv *tsv, bool *more, tt_error *error);
/* Lines from here to the end of the file. */
int64_t tt_tsv_lines_left(const tt_tsv *tsv);

#endif

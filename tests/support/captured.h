/* Commands run in the test's own process, with what they print kept. */
#ifndef TT_TESTS_SUPPORT_CAPTURED_H
#define TT_TESTS_SUPPORT_CAPTURED_H

#include "support/scratch.h"

/* What the command that ran last printed, each stream as its own text; NULL before the first.
 * free_captured frees both. */
static UNUSED char *output, *errors;

static UNUSED void free_captured(void)
{
    free(output);
    free(errors);
    output = errors = NULL;
}

/* From here on the stream goes to a file; returns what restore takes. */
static UNUSED int redirect(FILE *stream, const char *path)
{
    fflush(stream);
    int kept = dup(fileno(stream));
    assert_non_null(freopen(path, "w", stream));
    return kept;
}

static UNUSED void restore(FILE *stream, int kept)
{
    fflush(stream);
    dup2(kept, fileno(stream));
    close(kept);
}

/* The command with up to three words behind its name; NULL: no more. Returns its exit status. */
static UNUSED int run_captured(int (*command)(int argc, char **argv), const char *first,
                               const char *second, const char *third)
{
    char *words[] = {(char *)"command", (char *)first, (char *)second, (char *)third};
    int count = 1 + (first != NULL) + (second != NULL) + (third != NULL);
    int kept_output = redirect(stdout, scratch_path("stdout"));
    int kept_errors = redirect(stderr, scratch_path("stderr"));
    int status = command(count, words);
    restore(stdout, kept_output);
    restore(stderr, kept_errors);
    free_captured();
    output = scratch_read(scratch_path("stdout"), NULL);
    errors = scratch_read(scratch_path("stderr"), NULL);
    return status;
}

#endif

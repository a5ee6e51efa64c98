/* The options of a command: one table from which both the parser and --help are made.
 *
 *     int64_t seed = 1;
 *     const tt_option options[] = {
 *         {.name = "seed", .kind = TT_OPTION_INTEGER, .target = &seed, .value = "N",
 *          .help = "seed of the shuffle", .maximum = (double)INT64_MAX},
 *     };
 *     const tt_command command = {.name = "shuffle", .arguments = "FILE...", ...};
 *     if (!tt_command_parse(&command, argc, argv, &arguments, &count, &exit_status)) {
 *         return exit_status;
 *     }
 *
 * Options are written --name value or --name=value (flags: --name), in any place; "--" ends them.
 * What a target holds before parsing is the default that --help shows. */
#ifndef TT_LAUNCH_COMMAND_LINE_H
#define TT_LAUNCH_COMMAND_LINE_H

#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Exit statuses of the program and of every command. */
enum { TT_EXIT_DONE = 0, TT_EXIT_FAILED = 1, TT_EXIT_USAGE = 2 };

typedef enum {
    TT_OPTION_FLAG,    /* bool: false, true when given */
    TT_OPTION_INTEGER, /* int64_t */
    TT_OPTION_REAL,    /* double */
    TT_OPTION_TEXT,    /* const char *, pointing into argv when given; may be NULL before */
    TT_OPTION_CHOICE,  /* int: an index into `choices` */
    TT_OPTION_LIST,    /* tt_option_list: may be given several times */
} tt_option_kind;

enum { TT_OPTION_LIST_CAPACITY = 4096 };

/* The values of a TT_OPTION_LIST in the order given, pointing into argv. */
typedef struct {
    const char *values[TT_OPTION_LIST_CAPACITY];
    int count;
} tt_option_list;

typedef struct {
    const char *name; /* without dashes */
    tt_option_kind kind;
    void *target;
    const char *value; /* what --help calls the value: "N", "PATH"; not for flags */
    const char *help;
    const char *const *choices; /* TT_OPTION_CHOICE: ends with NULL */
    double minimum, maximum;    /* numbers: the range allowed; both 0: any */
    bool required;
} tt_option;

typedef struct {
    const char *name;      /* "pretrain", "prepare text" */
    const char *arguments; /* "RECIPE [KEY=VALUE...]"; "" when there are none */
    const char *purpose;   /* what the command does, in a sentence or a few */
    const char *example;   /* one command line */
    const tt_option *options;
    int option_count;
    int minimum_arguments, maximum_arguments; /* maximum -1: any number */
} tt_command;

/* Parses argv[1..argc). True: targets are set and `arguments` (pointing into argv, which is
 * reordered) holds what is not an option. False: the caller returns `exit_status` - after --help,
 * printed to stdout, TT_EXIT_DONE; after wrong usage, one line on stderr, TT_EXIT_USAGE. */
bool tt_command_parse(const tt_command *command, int argc, char **argv, char ***arguments,
                      int *argument_count, int *exit_status);

/* What --help prints. */
void tt_command_help(const tt_command *command, FILE *stream);

/* Prints "ttrain NAME: message" to stderr and returns TT_EXIT_FAILED. */
int tt_command_failed(const char *name, const tt_error *error);

/* Prints "ttrain NAME: message" and where help is found to stderr; returns TT_EXIT_USAGE. */
int tt_command_usage(const char *name, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Whole-text conversions: true when `text` is one number and nothing else. Decimal integers only;
 * reals are finite. */
bool tt_command_integer(const char *text, int64_t *value);
bool tt_command_real(const char *text, double *value);

#endif

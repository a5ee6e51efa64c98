#include "launch/command_line.h"
#include "launch/suggest.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
    TT_MAX_OPTIONS = 64,
    TT_HELP_WIDTH = 80, /* of a line of --help */
    TT_HELP_COLUMN = 27 /* where what is said of an option begins */
};

bool tt_command_integer(const char *text, int64_t *value)
{
    const char *digits = text + (*text == '-' || *text == '+');
    if (*digits == '\0' || digits[strspn(digits, "0123456789")] != '\0') {
        return false;
    }
    errno = 0;
    long long number = strtoll(text, NULL, 10);
    *value = number;
    return errno == 0;
}

bool tt_command_real(const char *text, double *value)
{
    /* strtod would take hexadecimal, "nan" and leading blanks as well. */
    if (*text == '\0' || text[strspn(text, "+-.0123456789eE")] != '\0') {
        return false;
    }
    char *end;
    *value = strtod(text, &end);
    return *end == '\0' && end != text && isfinite(*value);
}

int tt_command_failed(const char *name, const tt_error *error)
{
    fprintf(stderr, "ttrain %s: %s\n", name, error->message);
    return TT_EXIT_FAILED;
}

int tt_command_usage(const char *name, const char *format, ...)
{
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    fprintf(stderr, "ttrain %s: %s; see ttrain %s --help\n", name, message, name);
    return TT_EXIT_USAGE;
}

static void default_text(const tt_option *option, char *text, size_t size)
{
    text[0] = '\0';
    if (option->required) {
        snprintf(text, size, "required");
        return;
    }
    switch (option->kind) {
    case TT_OPTION_FLAG:
    case TT_OPTION_LIST:
        break;
    case TT_OPTION_INTEGER:
        snprintf(text, size, "default %lld", (long long)*(int64_t *)option->target);
        break;
    case TT_OPTION_REAL:
        snprintf(text, size, "default %g", *(double *)option->target);
        break;
    case TT_OPTION_TEXT:
        if (*(const char **)option->target != NULL) {
            snprintf(text, size, "default %s", *(const char **)option->target);
        }
        break;
    case TT_OPTION_CHOICE:
        snprintf(text, size, "default %s", option->choices[*(int *)option->target]);
        break;
    }
}

static void choices_text(const tt_option *option, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; option->choices[i] != NULL && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? "|" : "",
                                 option->choices[i]);
    }
}

static void option_head(const tt_option *option, char *text, size_t size)
{
    char choices[256];
    const char *value = option->value;
    if (option->kind == TT_OPTION_CHOICE) {
        choices_text(option, choices, sizeof choices);
        value = choices;
    }
    if (option->kind == TT_OPTION_FLAG) {
        snprintf(text, size, "--%s", option->name);
    } else {
        snprintf(text, size, "--%s %s", option->name, value != NULL ? value : "VALUE");
    }
}

/* Prints the words of `text` in lines of at most TT_HELP_WIDTH, all but the first indented; the
 * first goes on at `indent`, where the cursor is. */
static void print_filled(const char *text, int indent, FILE *stream)
{
    int column = indent;
    for (text += strspn(text, " \n"); *text != '\0'; text += strspn(text, " \n")) {
        int length = (int)strcspn(text, " \n");
        if (column > indent && column + 1 + length > TT_HELP_WIDTH) {
            fprintf(stream, "\n%*s", indent, "");
            column = indent;
        }
        column += fprintf(stream, "%s%.*s", column > indent ? " " : "", length, text);
        text += length;
    }
    fputc('\n', stream);
}

/* A head that leaves no room beside it has its line to itself. */
static void print_option(const char *head, const char *help, FILE *stream)
{
    int column = fprintf(stream, "  %s", head);
    if (column >= TT_HELP_COLUMN) {
        fputc('\n', stream);
        column = 0;
    }
    fprintf(stream, "%*s", TT_HELP_COLUMN - column, "");
    print_filled(help, TT_HELP_COLUMN, stream);
}

void tt_command_help(const tt_command *command, FILE *stream)
{
    fprintf(stream, "Usage: ttrain %s [OPTIONS]%s%s\n\n", command->name,
            command->arguments[0] != '\0' ? " " : "", command->arguments);
    print_filled(command->purpose, 0, stream);
    fprintf(stream, "\nOptions:\n");
    for (int i = 0; i < command->option_count; i++) {
        char head[320], fallback[256], help[1024];
        option_head(&command->options[i], head, sizeof head);
        default_text(&command->options[i], fallback, sizeof fallback);
        bool has_default = fallback[0] != '\0';
        snprintf(help, sizeof help, "%s%s%s%s", command->options[i].help, has_default ? " (" : "",
                 fallback, has_default ? ")" : "");
        print_option(head, help, stream);
    }
    print_option("--help", "print this", stream);
    if (command->example != NULL) {
        fprintf(stream, "\nExample:\n  %s\n", command->example);
    }
}

/* The option that `argument` ("--name" or "--name=value") names; NULL when there is none. */
static const tt_option *find_option(const tt_command *command, const char *argument)
{
    size_t length = strcspn(argument + 2, "=");
    for (int i = 0; i < command->option_count; i++) {
        const char *name = command->options[i].name;
        if (strlen(name) == length && strncmp(argument + 2, name, length) == 0) {
            return &command->options[i];
        }
    }
    return NULL;
}

static int unknown_option(const tt_command *command, const char *argument)
{
    const char *names[TT_MAX_OPTIONS];
    int count = 0;
    for (int i = 0; i < command->option_count && count < TT_MAX_OPTIONS - 1; i++) {
        names[count++] = command->options[i].name;
    }
    names[count++] = "help";
    char word[128];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(argument, "="), argument);
    const char *name = word + strspn(word, "-");
    const char *nearest = tt_suggest_nearest(name, names, count);
    if (nearest != NULL) {
        return tt_command_usage(command->name, "unknown option %s, did you mean --%s?", word,
                                nearest);
    }
    return tt_command_usage(command->name, "unknown option %s", word);
}

static bool in_range(const tt_option *option, double value)
{
    return (option->minimum == 0 && option->maximum == 0) ||
           (value >= option->minimum && value <= option->maximum);
}

static int bad_number(const tt_command *command, const tt_option *option, const char *text)
{
    const char *what = option->kind == TT_OPTION_INTEGER ? "an integer" : "a number";
    if (option->minimum == 0 && option->maximum == 0) {
        return tt_command_usage(command->name, "--%s: expected %s, found '%.100s'", option->name,
                                what, text);
    }
    if (option->maximum >= (double)INT64_MAX) {
        return tt_command_usage(command->name, "--%s: expected %s of at least %g, found '%.100s'",
                                option->name, what, option->minimum, text);
    }
    return tt_command_usage(command->name, "--%s: expected %s from %.15g to %.15g, found '%.100s'",
                            option->name, what, option->minimum, option->maximum, text);
}

static int set_choice(const tt_command *command, const tt_option *option, const char *text)
{
    int count = 0;
    for (; option->choices[count] != NULL; count++) {
        if (strcmp(option->choices[count], text) == 0) {
            *(int *)option->target = count;
            return TT_EXIT_DONE;
        }
    }
    char choices[256];
    choices_text(option, choices, sizeof choices);
    const char *nearest = tt_suggest_nearest(text, option->choices, count);
    return tt_command_usage(command->name, "--%s: expected one of %s, found '%.100s'%s%s%s",
                            option->name, choices, text, nearest != NULL ? ", did you mean " : "",
                            nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
}

static int add_value(const tt_command *command, const tt_option *option, const char *text)
{
    tt_option_list *list = option->target;
    if (list->count == TT_OPTION_LIST_CAPACITY) {
        return tt_command_usage(command->name, "--%s: expected at most %d values, found more",
                                option->name, TT_OPTION_LIST_CAPACITY);
    }
    list->values[list->count++] = text;
    return TT_EXIT_DONE;
}

static int set_option(const tt_command *command, const tt_option *option, const char *text)
{
    int64_t integer;
    double real;
    switch (option->kind) {
    case TT_OPTION_FLAG:
        *(bool *)option->target = true;
        break;
    case TT_OPTION_INTEGER:
        if (!tt_command_integer(text, &integer) || !in_range(option, (double)integer)) {
            return bad_number(command, option, text);
        }
        *(int64_t *)option->target = integer;
        break;
    case TT_OPTION_REAL:
        if (!tt_command_real(text, &real) || !in_range(option, real)) {
            return bad_number(command, option, text);
        }
        *(double *)option->target = real;
        break;
    case TT_OPTION_TEXT:
        *(const char **)option->target = text;
        break;
    case TT_OPTION_CHOICE:
        return set_choice(command, option, text);
    case TT_OPTION_LIST:
        return add_value(command, option, text);
    }
    return TT_EXIT_DONE;
}

/* Sets the option at argv[*at]; moves *at to its value where that is an argument of its own. */
static int take_option(const tt_command *command, int argc, char **argv, int *at, uint64_t *given)
{
    const char *argument = argv[*at];
    const tt_option *option =
        strncmp(argument, "--", 2) == 0 ? find_option(command, argument) : NULL;
    if (option == NULL) {
        return unknown_option(command, argument);
    }
    const char *value = strchr(argument, '=');
    if (value != NULL) {
        value++;
    }
    if (option->kind == TT_OPTION_FLAG) {
        if (value != NULL) {
            return tt_command_usage(command->name, "--%s takes no value, found '%.100s'",
                                    option->name, value);
        }
    } else if (value == NULL) {
        if (*at + 1 >= argc) {
            return tt_command_usage(command->name, "--%s: expected a value, found nothing",
                                    option->name);
        }
        *at += 1;
        value = argv[*at];
    }
    *given |= UINT64_C(1) << (option - command->options);
    return set_option(command, option, value);
}

static int check_counts(const tt_command *command, int count, char **arguments, uint64_t given)
{
    for (int i = 0; i < command->option_count; i++) {
        if (command->options[i].required && (given >> i & 1) == 0) {
            return tt_command_usage(command->name, "--%s is required", command->options[i].name);
        }
    }
    if (count < command->minimum_arguments) {
        return tt_command_usage(command->name, "expected %s, found %d argument%s",
                                command->arguments, count, count == 1 ? "" : "s");
    }
    if (command->maximum_arguments >= 0 && count > command->maximum_arguments) {
        return tt_command_usage(command->name, "unexpected argument '%.100s'",
                                arguments[command->maximum_arguments]);
    }
    return TT_EXIT_DONE;
}

bool tt_command_parse(const tt_command *command, int argc, char **argv, char ***arguments,
                      int *argument_count, int *exit_status)
{
    /* Arguments move forward over the options already taken, so argv itself holds them. */
    int count = 0;
    uint64_t given = 0;
    bool options_ended = false;
    for (int i = 1; i < argc; i++) {
        if (options_ended || argv[i][0] != '-' || argv[i][1] == '\0') {
            argv[1 + count++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            options_ended = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            tt_command_help(command, stdout);
            *exit_status = TT_EXIT_DONE;
            return false;
        } else {
            *exit_status = take_option(command, argc, argv, &i, &given);
            if (*exit_status != TT_EXIT_DONE) {
                return false;
            }
        }
    }
    *arguments = argv + 1;
    *argument_count = count;
    *exit_status = check_counts(command, count, argv + 1, given);
    return *exit_status == TT_EXIT_DONE;
}

#include "launch/command_group.h"

#include "launch/command_line.h"
#include "launch/suggest.h"

#include <stdio.h>
#include <string.h>

enum { TT_GROUP_CAPACITY = 16 };

static void print_help(const tt_command_group *group, FILE *stream)
{
    fprintf(stream, "Usage: %s COMMAND ...\n\n%s\n\nCommands:\n", group->name, group->purpose);
    for (int i = 0; i < group->count; i++) {
        fprintf(stream, "  %-10s %s\n", group->commands[i].name, group->commands[i].purpose);
    }
    fprintf(stream, "\nOptions:\n  --help     print this; after a command, what it takes\n");
    if (group->version != NULL) {
        fprintf(stream, "  --version  print version and revision\n");
    }
    fprintf(stream, "\nExample:\n  %s\n", group->example);
}

static int unknown_command(const tt_command_group *group, const char *word)
{
    const char *names[TT_GROUP_CAPACITY];
    int count = group->count < TT_GROUP_CAPACITY ? group->count : TT_GROUP_CAPACITY;
    for (int i = 0; i < count; i++) {
        names[i] = group->commands[i].name;
    }
    const char *nearest = tt_suggest_nearest(word, names, count);
    fprintf(stderr, "%s: unknown command '%.100s'", group->name, word);
    if (nearest != NULL) {
        fprintf(stderr, ", did you mean %s?\n", nearest);
    } else {
        fprintf(stderr, "; see %s --help\n", group->name);
    }
    return TT_EXIT_USAGE;
}

int tt_command_group_main(const tt_command_group *group, int argc, char **argv)
{
    if (argc < 2) {
        print_help(group, stderr);
        return TT_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(group, stdout);
        return TT_EXIT_DONE;
    }
    if (group->version != NULL && strcmp(argv[1], "--version") == 0) {
        printf("%s\n", group->version);
        return TT_EXIT_DONE;
    }
    for (int i = 0; i < group->count; i++) {
        if (strcmp(argv[1], group->commands[i].name) == 0) {
            return group->commands[i].run(argc - 1, argv + 1);
        }
    }
    return unknown_command(group, argv[1]);
}

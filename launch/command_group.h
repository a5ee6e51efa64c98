/* Commands of commands: `ttrain COMMAND ...`, `ttrain prepare COMMAND ...`. */
#ifndef TT_LAUNCH_COMMAND_GROUP_H
#define TT_LAUNCH_COMMAND_GROUP_H

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns an exit status */
    const char *purpose;
} tt_subcommand;

typedef struct {
    const char *name;    /* "ttrain", "ttrain prepare" */
    const char *purpose; /* in a sentence */
    const char *version; /* what --version prints; NULL: there is no such option */
    const char *example; /* one command line */
    const tt_subcommand *commands;
    int count;
} tt_command_group;

/* Runs the command that argv[1] names, or prints help or what is wrong with argv[1]. Returns an
 * exit status. */
int tt_command_group_main(const tt_command_group *group, int argc, char **argv);

#endif

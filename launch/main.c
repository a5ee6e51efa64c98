/* The program: `ttrain COMMAND ...`. */
#include "launch/bench.h"
#include "launch/command_line.h"
#include "launch/inspect.h"
#include "launch/prepare.h"
#include "launch/pretrain.h"
#include "launch/suggest.h"

#include "revision.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name */
    const char *purpose;
} tt_program_command;

static const tt_program_command commands[] = {
    {"prepare", tt_prepare_main, "make tokenizers and shards from text"},
    {"pretrain", tt_pretrain_main, "train a model by a recipe"},
    {"inspect", tt_inspect_main, "show what a run, checkpoint, shard, tokenizer or recipe holds"},
    {"bench", tt_bench_main, "measure step time, operations and the machine's peak"},
};

enum { TT_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *stream)
{
    fprintf(stream, "Usage: ttrain COMMAND ...\n\n"
                    "Pre-trains BERT-style encoders whose large weights are tensor trains.\n\n"
                    "Commands:\n");
    for (int i = 0; i < TT_COMMANDS; i++) {
        fprintf(stream, "  %-10s %s\n", commands[i].name, commands[i].purpose);
    }
    fprintf(stream, "\nOptions:\n"
                    "  --help     print this; after a command, what that command takes\n"
                    "  --version  print version and revision\n\n"
                    "Example:\n  mpirun -np 2 ttrain pretrain recipe.yaml\n");
}

static int unknown_command(const char *word)
{
    const char *names[TT_COMMANDS];
    for (int i = 0; i < TT_COMMANDS; i++) {
        names[i] = commands[i].name;
    }
    const char *nearest = tt_suggest_nearest(word, names, TT_COMMANDS);
    fprintf(stderr, "ttrain: unknown command '%.100s'", word);
    if (nearest != NULL) {
        fprintf(stderr, ", did you mean %s?\n", nearest);
    } else {
        fprintf(stderr, "; see ttrain --help\n");
    }
    return TT_EXIT_USAGE;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return TT_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return TT_EXIT_DONE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("ttrain %s (%s)\n", TTRAIN_VERSION, TT_REVISION);
        return TT_EXIT_DONE;
    }
    for (int i = 0; i < TT_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    return unknown_command(argv[1]);
}

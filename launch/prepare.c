#include "launch/prepare.h"

#include "launch/command_line.h"
#include "launch/prepare_options.h"
#include "launch/suggest.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *purpose;
} subcommand;

static const subcommand subcommands[] = {
    {"tokenizer", tt_prepare_tokenizer_main, "train a SentencePiece tokenizer"},
    {"text", tt_prepare_text_main, "plain text or WikiText to shards"},
    {"wikipedia", tt_prepare_wikipedia_main, "a MediaWiki dump to shards, or to clean text"},
    {"synthetic", tt_prepare_synthetic_main, "write a small made-up corpus"},
};

enum { SUBCOMMANDS = sizeof subcommands / sizeof subcommands[0] };

static void print_help(FILE *stream)
{
    fprintf(stream, "Usage: ttrain prepare COMMAND ...\n\n"
                    "Makes tokenizers and shards from text.\n\nCommands:\n");
    for (int i = 0; i < SUBCOMMANDS; i++) {
        fprintf(stream, "  %-10s %s\n", subcommands[i].name, subcommands[i].purpose);
    }
    fprintf(stream, "\nOptions:\n  --help     print this; after a command, what it takes\n\n"
                    "Example:\n  ttrain prepare text --input corpus.txt --tokenizer "
                    "tokenizer.model --output shards\n");
}

int tt_prepare_main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return TT_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return TT_EXIT_DONE;
    }
    const char *names[SUBCOMMANDS];
    for (int i = 0; i < SUBCOMMANDS; i++) {
        names[i] = subcommands[i].name;
        if (strcmp(argv[1], names[i]) == 0) {
            return subcommands[i].run(argc - 1, argv + 1);
        }
    }
    const char *nearest = tt_suggest_nearest(argv[1], names, SUBCOMMANDS);
    if (nearest != NULL) {
        return tt_command_usage("prepare", "unknown command '%.100s', did you mean %s?", argv[1],
                                nearest);
    }
    return tt_command_usage("prepare", "unknown command '%.100s'", argv[1]);
}

#include "launch/prepare.h"

#include "launch/command_group.h"
#include "launch/prepare_options.h"

static const tt_subcommand commands[] = {
    {"tokenizer", tt_prepare_tokenizer_main, "train a SentencePiece tokenizer"},
    {"text", tt_prepare_text_main, "plain text or WikiText to shards"},
    {"wikipedia", tt_prepare_wikipedia_main, "a MediaWiki dump to shards, or to clean text"},
    {"synthetic", tt_prepare_synthetic_main, "write a small made-up corpus"},
    {"entailment", tt_prepare_entailment_main, "write a small made-up task of sentence pairs"},
};

int tt_prepare_main(int argc, char **argv)
{
    const tt_command_group group = {
        .name = "ttrain prepare",
        .purpose = "Makes tokenizers and shards from text.",
        .example = "ttrain prepare text --input corpus.txt --tokenizer tokenizer.model \\\n"
                   "      --output shards",
        .commands = commands,
        .count = sizeof commands / sizeof *commands,
    };
    return tt_command_group_main(&group, argc, argv);
}

/* The program: `ttrain COMMAND ...`. */
#include "launch/bench.h"
#include "launch/command_group.h"
#include "launch/evaluate.h"
#include "launch/inspect.h"
#include "launch/prepare.h"
#include "launch/pretrain.h"
#include "launch/report.h"
#include "launch/table.h"

#include "revision.h"

static const tt_subcommand commands[] = {
    {"prepare", tt_prepare_main, "make tokenizers and shards from text"},
    {"pretrain", tt_pretrain_main, "train a model by a recipe"},
    {"finetune", tt_finetune_main, "train a model for a task"},
    {"evaluate", tt_evaluate_main, "tell how well a checkpoint does its task"},
    {"inspect", tt_inspect_main, "show what a run, checkpoint, shard, tokenizer or recipe holds"},
    {"report", tt_report_main, "make a page of curves, sizes and ranks of one run or several"},
    {"table", tt_table_main, "put runs side by side: accuracy, sizes, ranks"},
    {"bench", tt_bench_main, "measure step time, operations and the machine's peak"},
};

int main(int argc, char **argv)
{
    const tt_command_group program = {
        .name = "ttrain",
        .purpose = "Pre-trains BERT-style encoders whose large weights are tensor trains.",
        .version = "ttrain " TTRAIN_VERSION " (" TT_REVISION ")",
        .example = "mpirun -np 2 ttrain pretrain recipe.yaml",
        .commands = commands,
        .count = sizeof commands / sizeof *commands,
    };
    return tt_command_group_main(&program, argc, argv);
}

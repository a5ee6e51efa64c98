/* The program: `ttrain COMMAND ...`. */
#include "launch/bench.h"
#include "launch/command_group.h"
#include "launch/command_line.h"
#include "launch/evaluate.h"
#include "launch/inspect.h"
#include "launch/prepare.h"
#include "launch/pretrain.h"
#include "launch/report.h"
#include "launch/table.h"

#include "revision.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

/* Where a standard stream is closed, the next file that is opened would take its place, and what is
 * meant for a terminal would go into a checkpoint. */
static void open_standard_streams(void)
{
    int descriptor = open("/dev/null", O_RDWR);
    while (descriptor >= STDIN_FILENO && descriptor <= STDERR_FILENO) {
        descriptor = open("/dev/null", O_RDWR);
    }
    close(descriptor);
}

/* A result that could not be printed whole is a failure. */
static int check_output(int exit_status)
{
    if (fflush(stdout) == 0 && ferror(stdout) == 0) {
        return exit_status;
    }
    if (exit_status == TT_EXIT_DONE) {
        fprintf(stderr, "ttrain: standard output: %s\n", strerror(errno));
    }
    return exit_status == TT_EXIT_DONE ? TT_EXIT_FAILED : exit_status;
}

int main(int argc, char **argv)
{
    open_standard_streams();
    /* A file that may not grow any more is told by the write that fails. */
    signal(SIGXFSZ, SIG_IGN);
    const tt_command_group program = {
        .name = "ttrain",
        .purpose = "Pre-trains BERT-style encoders whose large weights are tensor trains.",
        .version = "ttrain " TTRAIN_VERSION " (" TT_REVISION ")",
        .example = "mpirun -np 2 ttrain pretrain recipe.yaml",
        .commands = commands,
        .count = sizeof commands / sizeof *commands,
    };
    return check_output(tt_command_group_main(&program, argc, argv));
}

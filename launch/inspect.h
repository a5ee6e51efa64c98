/* `ttrain inspect`: what a run, checkpoint, shard, tokenizer or recipe holds. */
#ifndef TT_LAUNCH_INSPECT_H
#define TT_LAUNCH_INSPECT_H

/* The command; argv[0] is "inspect". Returns an exit status. */
int tt_inspect_main(int argc, char **argv);

#endif

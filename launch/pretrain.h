/* `ttrain pretrain RECIPE`: the training loop. */
#ifndef TT_LAUNCH_PRETRAIN_H
#define TT_LAUNCH_PRETRAIN_H

int tt_pretrain_main(int argc, char **argv);

#endif

/* `ttrain pretrain RECIPE` and `ttrain finetune RECIPE`: the training loop. */
#ifndef TT_LAUNCH_PRETRAIN_H
#define TT_LAUNCH_PRETRAIN_H

int tt_pretrain_main(int argc, char **argv);
int tt_finetune_main(int argc, char **argv);

#endif

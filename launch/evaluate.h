/* `ttrain evaluate RECIPE`: how well a checkpoint does a recipe's task. */
#ifndef TT_LAUNCH_EVALUATE_H
#define TT_LAUNCH_EVALUATE_H

int tt_evaluate_main(int argc, char **argv);

#endif

/* `ttrain prepare`: tokenizers and shards from text. */
#ifndef TT_LAUNCH_PREPARE_H
#define TT_LAUNCH_PREPARE_H

/* The command; argv[0] is "prepare", argv[1] one of tokenizer, text, wikipedia, synthetic. Returns
 * an exit status. */
int tt_prepare_main(int argc, char **argv);

#endif

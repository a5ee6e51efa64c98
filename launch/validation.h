/* Losses on the validation shards. */
#ifndef TT_LAUNCH_VALIDATION_H
#define TT_LAUNCH_VALIDATION_H

#include "launch/trainer.h"

typedef struct {
    tt_step_result step;
    /* Entropy, in nats, of the masked tokens' own distribution: the loss of the best guess that
     * does not look at the context. */
    double unigram_entropy;
} tt_validation_result;

/* Every validation row once (or the recipe's number of batches), in file order, with the masks that
 * the seed gives, the same each time. All ranks call it together. */
tt_status tt_validation_run(tt_trainer *trainer, tt_validation_result *result, tt_error *error);

#endif

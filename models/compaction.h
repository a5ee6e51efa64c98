/* Compaction: cuts out of a model what pruning has left of it as zeros.
 *
 * Slices of tensor-train cores whose diagonal entry counts as zero go, with the entry and with the
 * optimizer's moments; everything that stays keeps its value (diagonals are not multiplied into
 * cores), so that the model computes what it did and training goes on from there, only faster and
 * in less memory. A train with a link of which nothing is left is removed (core/linear.h), and what
 * only served a removed map goes with it:
 *
 *  - without output map, the attention half of a block gives that map's bias: query, key and value
 *    go too;
 *  - without value, every position attends to the value's bias b_v, so that the half gives
 *    W_o b_v + b_o: this becomes the bias of the output map, and all four maps go. (The same number
 *    as long as dropout leaves attention alone; in training that dropout made it flicker. What b_v
 *    and W_o could still learn, b_o learns.)
 *  - without key, all scores of a query are equal: the query map goes too;
 *  - without output map, the feed-forward half gives that map's bias: the intermediate map goes
 * too; without intermediate map it gives W_2 gelu(b_1) + b_2, which becomes the bias.
 *
 * The host does it between two steps. It depends on nothing but values, so that all ranks of a run
 * come to the same. */
#ifndef TT_MODELS_COMPACTION_H
#define TT_MODELS_COMPACTION_H

#include "models/model.h"

typedef struct tt_compaction tt_compaction;

/* Reads the diagonals and finds what can go. Destroy with tt_compaction_destroy. */
tt_status tt_compaction_find(const tt_model *model, tt_compaction **compaction, tt_error *error);
/* Whether anything can. */
bool tt_compaction_cuts(const tt_compaction *compaction);
/* Shapes of all maps and tables that are or were tensor trains, as they are afterwards; the
 * compaction's. */
const tt_layer_shapes *tt_compaction_shapes(const tt_compaction *compaction);
/* Frees the model and makes it anew, in the same place, with what is left of values and moments.
 * Nothing else may hold on to its parameters: steps and optimizers are destroyed before and created
 * again after it, and so are plans. The model must not have changed since it was looked at. When
 * this fails, the model can only be freed. */
tt_status tt_compaction_apply(tt_compaction *compaction, tt_model *model, tt_error *error);
/* Sets the pointer to NULL; NULL is fine. */
void tt_compaction_destroy(tt_compaction **compaction);

#endif

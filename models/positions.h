/* First values of the embeddings, and of what lets attention find its way among positions. Only
 * models/encoder.c includes this.
 *
 *  - normal: words and positions are drawn alike.
 *  - sinusoidal: position s gets sin(s / P^(j / hidden)) at even columns j and the cosine of the
 *    same angle at j + 1 (Vaswani et al., section 3.5), P being max_positions: no wave is longer
 *    than what there is to tell apart. The waves have half the words' deviation, so that words keep
 *    the larger share of the norm that follows.
 *  - neighbours: the first 16 columns belong to positions, the others to words. Positions are eight
 *    waves there, a fifth of the norm. Queries and keys of the first block read these columns: in
 *    the first four heads the query is turned by the waves' angle of one token back, one on, two
 *    back and two on, so that from the first step a head attends to that neighbour. Beside that,
 *    every map is drawn as ever, and all of it is learnt. What an untrained head averages over all
 *    tokens, a model needs many steps to find its neighbours in; with few data that is most of the
 *    run (recipes/wikitext_small).
 *
 * Segments begin at 0: a row that all tokens share tells none from another but takes its share of
 * the norm that follows. */
#ifndef TT_MODELS_POSITIONS_H
#define TT_MODELS_POSITIONS_H

#include "models/encoder.h"

/* Fills the word, position and segment tables. */
tt_status tt_positions_initialize(tt_encoder *encoder, uint64_t seed, tt_error *error);
/* After the blocks are drawn; does something for `neighbours` alone. Fails where the first block's
 * query and key are tensor trains whose ranks are too small for it (about 16). */
tt_status tt_positions_initialize_attention(tt_encoder *encoder, tt_error *error);
/* Checks that heads and width have room for what the initializer puts there. */
tt_status tt_positions_check(const tt_configuration *configuration, tt_error *error);

#endif

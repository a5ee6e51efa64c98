/* The word embeddings of an encoder: a dense table, a tensor-train matrix, or a matrix that has
 * lost its ranks (all rows 0).
 *
 * Rows go into the sum of embeddings (tt_embedding): look_up puts the batch's ids and a table with
 * their rows there, begin_backward the same with the table's gradient, which end_backward takes
 * where it belongs. A head that multiplies with the whole table says so by `decodes`, before the
 * table is planned. */
#ifndef TT_MODELS_WORD_TABLE_H
#define TT_MODELS_WORD_TABLE_H

#include "models/configuration.h"

/* How a head multiplies with a tensor-train matrix: with the table assembled once a step, or with
 * its slices (models/word_decoder.h): whichever takes fewer multiplications; on a device that
 * captures work always the table, since one large product keeps it busy, and so is it where
 * activations are not f32. */
typedef enum { TT_DECODING_BY_COST, TT_DECODING_TABLE, TT_DECODING_SLICES } tt_decoding;

typedef struct {
    tt_form form;
    int64_t vocabulary, width;
    tt_parameters *parameters;
    tt_parameter_id weight; /* "bert.embeddings.word_embeddings.weight", where dense */
    tt_train_matrix matrix; /* otherwise: "bert.embeddings.word_embeddings.core_1" ... */
    bool decodes;
    tt_decoding decoding;  /* for the next plan */
    bool by_slices;        /* what the plan came to */
    const tt_arena *arena; /* of lookups: where these offsets are */
    size_t distinct, places, rows;
} tt_word_table;

tt_status tt_word_table_create(tt_word_table *table, const tt_configuration *configuration,
                               tt_parameters *parameters, tt_train_set *trains, tt_error *error);
void tt_word_table_initialize(const tt_word_table *table, float deviation, uint64_t seed);
/* After tt_train_set_plan; called again it starts over. */
tt_status tt_word_table_plan(tt_word_table *table, tt_error *error);
void tt_word_table_free(tt_word_table *table);
/* Numbers learnt. */
int64_t tt_word_table_size(const tt_word_table *table);
size_t tt_word_table_bytes(const tt_word_table *table);

/* Room for lookups of up to `tokens` ids in `arena`, which lives as long. The rows take the piece
 * of `spare_bytes` at `spare`, when that is enough; nobody else may use it between look_up and the
 * end of the embedding sum, forward and backward. */
void tt_word_table_reserve(tt_word_table *table, tt_arena *arena, int64_t tokens, size_t spare,
                           size_t spare_bytes);
/* Scratch memory of look_up and end_backward. */
size_t tt_word_table_workspace(const tt_word_table *table, int64_t tokens);

/* Whether all rows are 0, for want of ranks; such a table is never assembled. */
bool tt_word_table_is_removed(const tt_word_table *table);
/* Once a step, after tt_train_set_materialise and before tt_train_set_contract. */
void tt_word_table_materialise(tt_word_table *table);
void tt_word_table_contract(tt_word_table *table);

void tt_word_table_look_up(const tt_word_table *table, tt_embedding *embedding, void *workspace);
void tt_word_table_begin_backward(const tt_word_table *table, tt_embedding *embedding);
void tt_word_table_end_backward(const tt_word_table *table, int64_t tokens, void *workspace);

/* The whole table [vocabulary, width] in the device's compute type, and its gradient in f32, to
 * which a head adds. */
tt_matrix tt_word_table_weight(const tt_word_table *table);
tt_matrix tt_word_table_gradient(const tt_word_table *table);

#endif

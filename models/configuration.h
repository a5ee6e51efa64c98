/* The sizes of a BERT-style encoder and the form of each of its linear maps. */
#ifndef TT_MODELS_CONFIGURATION_H
#define TT_MODELS_CONFIGURATION_H

#include "core/linear.h"
#include "core/tensor_train_matrix.h"

/* The kinds of linear maps; all layers of a model share one form a kind. */
typedef enum {
    TT_MAP_ATTENTION,    /* query, key, value and output map: hidden to hidden */
    TT_MAP_INTERMEDIATE, /* hidden to intermediate */
    TT_MAP_OUTPUT,       /* intermediate to hidden */
    TT_MAP_POOLER,       /* hidden to hidden */
    TT_MAP_TRANSFORM,    /* hidden to hidden, in the masked-language-model head */
    TT_MAP_KINDS
} tt_map_kind;

/* First values of the position embeddings: drawn like all others; the waves of the original
 * Transformer; or waves in columns of their own, which the first block's attention begins by
 * following to the neighbours of each token (positions.h). They are learnt either way. */
typedef enum {
    TT_POSITIONS_NORMAL,
    TT_POSITIONS_SINUSOIDAL,
    TT_POSITIONS_NEIGHBOURS
} tt_position_initializer;

/* How the word embeddings are stored: a dense table, or (TT_TENSOR_TRAIN) a tensor-train matrix of
 * this shape, whose entries are drawn with the initializer's deviation. The masked-language-model
 * head multiplies with the same table, unless it has one of its own, which is dense. */
typedef struct {
    tt_form form;
    tt_train_matrix_shape shape;
    bool untied;
} tt_embedding_form;

typedef struct {
    int64_t vocabulary_size, hidden_size, layers, heads, intermediate_size;
    int64_t max_positions, segment_types;
    tt_gelu gelu;
    float dropout;           /* after the embeddings and after each half of a block */
    float attention_dropout; /* on attention probabilities */
    float layer_norm_epsilon;
    float initializer_range; /* standard deviation of dense weights */
    tt_position_initializer position_initializer;
    bool next_sentence;    /* the pre-training heads include next-sentence prediction */
    float threshold;       /* rank diagonals at or below it count as zero */
    float train_deviation; /* of an entry of an assembled tensor train; 0: sqrt(1/(in + out)) */
    tt_linear_form maps[TT_MAP_KINDS];
    tt_embedding_form embedding;
} tt_configuration;

/* Inputs and outputs of the maps of a kind. */
void tt_configuration_map_size(const tt_configuration *configuration, tt_map_kind kind,
                               int64_t *inputs, int64_t *outputs);

/* Checks every size and form; the error names the field. */
tt_status tt_configuration_check(const tt_configuration *configuration, tt_error *error);

/* The same sizes with every map and the word embeddings dense. */
tt_configuration tt_configuration_dense_twin(const tt_configuration *configuration);

/* The standard deviation that a map's entries are drawn with. */
float tt_configuration_deviation(const tt_configuration *configuration, const tt_linear *map);

/* Learnable numbers of the pre-training model, without building it. */
int64_t tt_configuration_pretraining_parameters(const tt_configuration *configuration);
/* The same of the model that tells `classes` classes apart. */
int64_t tt_configuration_classification_parameters(const tt_configuration *configuration,
                                                   int64_t classes);

/* Floating-point operations of a forward and backward pass over `sequences` sequences with
 * `predictions` masked positions each: products and attention only, a multiplication and an
 * addition being two, backward twice forward; what a recomputation adds is not counted. */
double tt_configuration_flops(const tt_configuration *configuration, int64_t sequences,
                              int64_t sequence_length, int64_t predictions);

#endif

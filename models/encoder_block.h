/* One block of the encoder: attention half and feed-forward half. Only the files of models/ include
 * this. */
#ifndef TT_MODELS_ENCODER_BLOCK_H
#define TT_MODELS_ENCODER_BLOCK_H

#include "models/encoder.h"

enum { TT_BLOCK_MAPS = 6 };

/* Offsets in the plan's arena of what a block keeps from forward to backward. */
typedef struct {
    size_t u_qkv, u_o;   /* tensor trains: [tokens, ranks] */
    size_t qkv, context; /* wide: [tokens, 3 hidden], [tokens, hidden] */
    size_t log_sum_exp;  /* [batch, heads, sequence] */
    size_t u_1, u_2;     /* tensor trains: [tokens, rank] */
    size_t inner;        /* wide: [tokens, intermediate], before GELU */
    size_t attention_normalized, attention_deviation;
    size_t output_normalized, output_deviation;
} tt_block_room;

/* Device memory of the maps of thin attention, and the products that make them. */
typedef struct {
    float *score_map, *output_map, *score_map_gradient, *output_map_gradient;
} tt_thin_maps;

struct tt_encoder_block {
    tt_linear query, key, value, attention_output, intermediate, output;
    tt_norm_ids attention_norm, output_norm;
    tt_block_form attention_form, feed_forward_form;
    tt_thin_maps maps;
    tt_block_room room;
    uint32_t dropout_site; /* first of three */
    tt_parameter_id first_parameter, parameters_end;
};

/* Scratch shared by all blocks, as offsets. */
typedef struct {
    size_t hidden;     /* [tokens, hidden]: the residual stream */
    size_t branch;     /* [tokens, hidden]: output of a half, and its gradient */
    size_t d_hidden;   /* [tokens, hidden]: gradient of the residual stream */
    size_t d_context;  /* wide attention: [tokens, hidden] */
    size_t d_qkv;      /* wide attention: [tokens, 3 hidden] */
    size_t activation; /* wide feed-forward: [tokens, intermediate] */
    size_t d_u, d_u2;  /* [tokens, ranks] */
    size_t workspace;  /* of the operations; the first of what lives inside one pass only */
    size_t embedding_normalized, embedding_deviation;
} tt_shared_room;

typedef struct tt_encoder_plan {
    tt_arena arena;
    tt_arena maps; /* thin maps of all blocks */
    size_t map_gradients_begin, map_gradients_end;
    tt_product *map_products, *map_backward;
    tt_copy *bias_in, *bias_out; /* between biases and the last rows of output factors */
    int map_product_count, map_backward_count, bias_in_count, bias_out_count;
    int64_t batch, sequence; /* largest micro-batch */
    bool with_gradients;
    tt_shared_room shared;
} tt_encoder_plan;

tt_status tt_encoder_block_create(tt_encoder *encoder, int layer, tt_error *error);
void tt_encoder_block_initialize(tt_encoder *encoder, int layer, uint64_t seed);

/* A block's maps in order: query, key, value, attention output, intermediate, output. */
const tt_linear *tt_block_map(const tt_encoder_block *block, int number);
/* Lists the maps that this one serves alone, so that it is removed with any of them, and returns
 * how many they are. */
int tt_block_needs(const tt_encoder_block *block, const tt_linear *map,
                   const tt_linear *needs[TT_MOST_NEEDS]);

/* Whether the last map of a half is removed, so that there is nothing to run but its norm. */
bool tt_encoder_block_skips(const tt_encoder_block *block, int half);

/* Multiplications a token of an attention half (0) or feed-forward half (1) in a form; infinite
 * when the form does not apply. */
double tt_encoder_block_cost(const tt_encoder *encoder, int layer, int half, tt_block_form form,
                             int64_t sequence);

/* Operations with all operands, for `tokens` = batch * sequence rows of the current micro-batch. */
tt_thin_attention tt_block_thin_attention(const tt_encoder *encoder, int layer,
                                          const tt_encoder_inputs *inputs);
tt_attention tt_block_attention(const tt_encoder *encoder, int layer,
                                const tt_encoder_inputs *inputs);
tt_thin_feed_forward tt_block_thin_feed_forward(const tt_encoder *encoder, int layer,
                                                int64_t tokens);
/* The joint after a thin half; what follows is in it too when that is thin. */
tt_thin_joint tt_block_joint(const tt_encoder *encoder, int layer, int half,
                             const tt_encoder_inputs *inputs);
tt_residual_norm tt_block_norm(const tt_encoder *encoder, int layer, int half,
                               const tt_encoder_inputs *inputs);

/* The outermost of the maps query, key and value that are left; NULL where none is. */
const tt_linear *tt_block_first_input(const tt_encoder_block *block);
const tt_linear *tt_block_last_input(const tt_encoder_block *block);

/* x: the residual stream, updated in place. */
void tt_encoder_block_forward(tt_encoder *encoder, int layer, const tt_encoder_inputs *inputs);
/* d_hidden: the gradient of the stream, updated in place; `hidden` is scratch. */
void tt_encoder_block_backward(tt_encoder *encoder, int layer, const tt_encoder_inputs *inputs);

/* Puts the input of block `layer` into `hidden` again. */
void tt_encoder_block_input(tt_encoder *encoder, int layer, const tt_encoder_inputs *inputs);

/* Puts the embeddings' output into `hidden` again. */
void tt_encoder_embedding_output(tt_encoder *encoder, const tt_encoder_inputs *inputs);

/* Room in the plan for activations of the device's compute type, and a view on it. */
size_t tt_plan_reserve(const tt_encoder *encoder, int64_t rows, int64_t columns);
tt_matrix tt_plan_matrix(const tt_encoder *encoder, size_t offset, int64_t rows, int64_t columns);

/* A dropout site of the current micro-batch; rows are tokens times `row_factor`. */
tt_dropout tt_encoder_dropout(const tt_encoder *encoder, float probability, uint32_t site,
                              const tt_encoder_inputs *inputs, int64_t row_factor);

#endif

/* A BERT encoder: embeddings, then post-norm blocks.
 *
 *     x = dropout(norm(word[id] + position[s] + segment[segment_id]))
 *     each block:  x = norm(x + dropout(attention(x)))
 *                  x = norm(x + dropout(feed_forward(x)))
 *
 * Each half of a block has two forms, chosen when the activations are planned:
 *  - wide: every map runs as tt_linear does, with its full activations;
 *  - thin: for tensor trains only. Attention runs in the space of ranks (tt_thin_attention), the
 *    feed-forward block by tiles (tt_thin_feed_forward); nothing wider than a rank is kept but the
 *    normalised residual stream.
 *
 * A half whose last map is removed is skipped: of it only the norm with that map's bias remains,
 * and nothing but the norm's state is kept or done. Other removed maps leave their bias: without
 * query, attention goes by the keys alone; without key it is even; without both, and without value,
 * both forms still hold.
 *
 * One step: materialise(); then for each micro-batch forward(), backward(); then contract(). */
#ifndef TT_MODELS_ENCODER_H
#define TT_MODELS_ENCODER_H

#include "models/word_table.h"

typedef struct {
    tt_parameter_id weight, shift;
} tt_norm_ids;

/* Device buffers of a micro-batch. */
typedef struct {
    int64_t batch, sequence;
    const int32_t *ids, *segments; /* [batch, sequence] */
    const uint8_t *mask;           /* [batch, sequence]: 1 = token, 0 = padding */
    uint32_t first_sequence;       /* number of sequence 0 in the global batch: dropout counts it */
} tt_encoder_inputs;

typedef enum { TT_WIDE, TT_THIN, TT_SKIPPED } tt_block_form;

/* Which form the halves of a block take: what the cost model says, or one form wherever it applies.
 */
typedef enum { TT_FORM_BY_COST, TT_FORM_ALWAYS_WIDE, TT_FORM_ALWAYS_THIN } tt_form_choice;

typedef struct tt_encoder_block tt_encoder_block;

typedef struct {
    tt_configuration configuration;
    tt_device *device;
    tt_parameters *parameters;
    tt_train_set *trains;
    tt_word_table words;
    tt_parameter_id position, segment;
    tt_norm_ids norm;
    tt_encoder_block *blocks;
    struct tt_encoder_plan *plan;
    tt_form_choice form_choice; /* for the next plan */
    bool training;              /* dropout on */
    uint64_t seed;              /* of dropout */
    const uint32_t *step;       /* device: dropout's counter */
    /* Called by the backward pass when it is through with a block; NULL: nobody wants to know. */
    void (*block_done)(void *user, int layer);
    void *block_done_user;
} tt_encoder;

/* Registers all parameters under Hugging Face's names with prefix "bert.". `parameters` and
 * `trains` stay the caller's. */
tt_status tt_encoder_create(tt_encoder *encoder, const tt_configuration *configuration,
                            tt_parameters *parameters, tt_train_set *trains, tt_error *error);
/* Draws all weights; parameters must be allocated. Fails for want of memory, or where the ranks are
 * too small for the position initializer. */
tt_status tt_encoder_initialize(tt_encoder *encoder, uint64_t seed, tt_error *error);
/* Sizes and allocates activations for micro-batches of up to `batch` sequences of `sequence`
 * tokens; called again it starts over. `with_gradients`: room for the backward pass too.
 * `scratch_bytes`: what a head wants of the scratch. */
tt_status tt_encoder_plan_activations(tt_encoder *encoder, int64_t batch, int64_t sequence,
                                      bool with_gradients, size_t scratch_bytes, tt_error *error);
/* Device memory that both passes overwrite and neither leaves anything in: anyone's between them.
 */
void *tt_encoder_scratch(const tt_encoder *encoder);
/* Frees the activations and the blocks; not the parameters. */
void tt_encoder_free(tt_encoder *encoder);
size_t tt_encoder_activation_bytes(const tt_encoder *encoder);
/* "thin", "wide" or "skipped" for the halves of block `layer`, with the estimated multiplications a
 * token of both forms, as one line of text. */
void tt_encoder_explain(const tt_encoder *encoder, int layer, char *text, size_t size);

/* After parameters and factors: what thin attention needs once a step. */
void tt_encoder_materialise(tt_encoder *encoder);
void tt_encoder_contract(tt_encoder *encoder);

/* Returns the hidden states [tokens, hidden], in the encoder's memory, valid until the next call.
 */
tt_matrix tt_encoder_forward(tt_encoder *encoder, const tt_encoder_inputs *inputs);
/* Where the caller puts the gradient of those states, [tokens, hidden]. */
tt_matrix tt_encoder_output_gradient(tt_encoder *encoder, const tt_encoder_inputs *inputs);
/* From there back to every parameter. Overwrites the hidden states. */
void tt_encoder_backward(tt_encoder *encoder, const tt_encoder_inputs *inputs);

/* The dense parameters of block `layer`, in floats of the flat buffers; the last block's go on to
 * the end of the dense rest, the heads' among them. True when their gradients are final as soon as
 * the backward pass of the last micro-batch is through with the block. Needs planned activations.
 */
bool tt_encoder_block_range(const tt_encoder *encoder, int layer, int64_t *offset, int64_t *count);

/* A norm's parameters, "<name>.weight" and "<name>.bias"; and the operation that uses them. */
tt_status tt_norm_add(tt_norm_ids *ids, const char *name, int64_t hidden, tt_parameters *parameters,
                      tt_error *error);
void tt_norm_initialize(const tt_norm_ids *ids, tt_parameters *parameters);
tt_residual_norm tt_norm_operation(const tt_norm_ids *ids, const tt_parameters *parameters,
                                   float epsilon, tt_norm_state state);

#endif

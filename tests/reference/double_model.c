#include "tests/reference/double_model.h"

#include "tests/reference/double_layers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How a family of reference files names things. */
typedef struct {
    const char *weight, *bias; /* of a linear map, behind its name */
    const char *core, *diagonal;
    int first; /* number of the first core and diagonal */
    const char *norm_weight, *norm_bias;
    const char *words; /* the dense table */
    const char *positions, *segments, *embedding_norm;
    const char *block; /* before a block's number */
    const char *query, *key, *value, *output, *attention_norm;
    const char *inner, *outer, *output_norm;
} naming;

static const naming bert_names = {
    .weight = ".weight",
    .bias = ".bias",
    .core = ".core_",
    .diagonal = ".rank_diagonal_",
    .first = 1,
    .norm_weight = ".weight",
    .norm_bias = ".bias",
    .words = "bert.embeddings.word_embeddings.weight",
    .positions = "bert.embeddings.position_embeddings.weight",
    .segments = "bert.embeddings.token_type_embeddings.weight",
    .embedding_norm = "bert.embeddings.LayerNorm",
    .block = "bert.encoder.layer.",
    .query = ".attention.self.query",
    .key = ".attention.self.key",
    .value = ".attention.self.value",
    .output = ".attention.output.dense",
    .attention_norm = ".attention.output.LayerNorm",
    .inner = ".intermediate.dense",
    .outer = ".output.dense",
    .output_norm = ".output.LayerNorm",
};

static const naming six_encoder_names = {
    .weight = "/layer/weight",
    .bias = "/layer/bias",
    .core = "/layer/tensor/factors/",
    .diagonal = "/layer/tensor/rank_parameters/",
    .first = 0,
    .norm_weight = "/weight",
    .norm_bias = "/bias",
    .words = "encoder/embedding/word_emb/weight",
    .positions = "encoder/embedding/position_emb/weight",
    .segments = "encoder/embedding/token_type_emb/weight",
    .embedding_norm = "encoder/embedding/layer_norm",
    .block = "encoder/encoder_blocks/",
    .query = "/slf_attn/w_qs",
    .key = "/slf_attn/w_ks",
    .value = "/slf_attn/w_vs",
    .output = "/slf_attn/fc",
    .attention_norm = "/slf_attn/layer_norm",
    .inner = "/pos_ffn/fc_1",
    .outer = "/pos_ffn/fc_2",
    .output_norm = "/pos_ffn/layer_norm",
};

/* One pass through a model. */
typedef struct {
    const tt_double_model *model;
    const tt_double_batch *batch;
    const naming *names;
    tt_double_pool pool;
    int64_t rows, hidden;    /* rows = batch * sequence */
    tt_double_tensor *words; /* [vocabulary, hidden], or NULL and: */
    tt_double_train_matrix word_train;
    tt_double_norm embedding_norm;
    tt_double_block *blocks;
    int block_count;
    double *states; /* [block_count + 1, rows, hidden]: what goes in and out of the blocks */
} pass;

void tt_double_batch_free(tt_double_batch *batch)
{
    free(batch->input_ids);
    free(batch->segment_ids);
    free(batch->mask);
    free(batch->masked_positions);
    free(batch->masked_ids);
    free(batch->labels);
    *batch = (tt_double_batch){0};
}

static tt_status read_batch(const tt_reference_file *file, bool with_masks, tt_double_batch *batch,
                            tt_error *error)
{
    tt_reference_shape shape;
    TT_TRY(tt_reference_shape_of(file, "batch/input_ids", &shape, error));
    if (shape.dimensions != 2) {
        return tt_error_set(error, TT_INVALID_INPUT, "%s: batch/input_ids: expected 2 dimensions",
                            file->path);
    }
    batch->batch = shape.extent[0];
    batch->sequence = shape.extent[1];
    int64_t count = shape.count;
    const char *mask = with_masks ? "batch/input_mask" : "batch/attention_mask";
    const char *labels = with_masks ? "batch/next_sentence_labels" : "batch/labels";
    TT_TRY(tt_reference_int32s(file, "batch/input_ids", count, &batch->input_ids, error));
    TT_TRY(tt_reference_int32s(file, "batch/segment_ids", count, &batch->segment_ids, error));
    TT_TRY(tt_reference_int32s(file, mask, count, &batch->mask, error));
    TT_TRY(tt_reference_int32s(file, labels, batch->batch, &batch->labels, error));
    if (with_masks) {
        TT_TRY(tt_reference_shape_of(file, "batch/masked_lm_positions", &shape, error));
        batch->max_predictions = shape.count / batch->batch;
        TT_TRY(tt_reference_int32s(file, "batch/masked_lm_positions", shape.count,
                                   &batch->masked_positions, error));
        TT_TRY(tt_reference_int32s(file, "batch/masked_lm_ids", shape.count, &batch->masked_ids,
                                   error));
    }
    return TT_OK;
}

tt_status tt_double_batch_read(const tt_reference_file *file, bool with_masks,
                               tt_double_batch *batch, tt_error *error)
{
    *batch = (tt_double_batch){0};
    tt_status status = read_batch(file, with_masks, batch, error);
    if (status != TT_OK) {
        tt_double_batch_free(batch);
    }
    return status;
}

void tt_double_result_free(tt_double_result *result)
{
    free(result->masked_lm_logits);
    free(result->logits);
    *result = (tt_double_result){0};
}

/* The tensor train of the map `name`, from the cores that there are. */
static tt_double_train find_train(const pass *pass, const char *name)
{
    const tt_double_tensors *parameters = pass->model->parameters;
    const naming *names = pass->names;
    tt_double_train train = {.threshold = pass->model->threshold};
    for (int k = 0; k < TT_DOUBLE_ORDER; k++) {
        tt_double_tensor *core =
            tt_double_tensors_find(parameters, "%s%s%d", name, names->core, names->first + k);
        if (core == NULL) {
            break;
        }
        train.ranks[k] = core->shape.extent[0];
        train.modes[k] = core->shape.extent[1];
        train.ranks[k + 1] = core->shape.extent[2];
        train.cores[k] = core->values;
        train.core_gradients[k] = core->gradients;
        tt_double_tensor *diagonal =
            tt_double_tensors_find(parameters, "%s%s%d", name, names->diagonal, names->first + k);
        train.diagonals[k] = diagonal == NULL ? NULL : diagonal->values;
        train.diagonal_gradients[k] = diagonal == NULL ? NULL : diagonal->gradients;
        train.order = k + 1;
    }
    train.input_order = train.order / 2;
    return train;
}

static tt_double_map find_map(pass *pass, const char *name)
{
    const tt_double_tensors *parameters = pass->model->parameters;
    tt_double_map map;
    tt_double_tensor *bias = tt_double_tensors_get(parameters, "%s%s", name, pass->names->bias);
    tt_double_tensor *weight =
        tt_double_tensors_find(parameters, "%s%s", name, pass->names->weight);
    if (weight != NULL) {
        tt_double_map_dense(&map, weight, bias, &pass->pool);
    } else {
        tt_double_train train = find_train(pass, name);
        tt_double_map_train(&map, &train, bias, &pass->pool);
    }
    return map;
}

static tt_double_norm find_norm(const pass *pass, const char *name)
{
    const tt_double_tensors *parameters = pass->model->parameters;
    tt_double_norm norm = {.epsilon = pass->model->epsilon};
    norm.weight = tt_double_tensors_get(parameters, "%s%s", name, pass->names->norm_weight);
    norm.bias = tt_double_tensors_get(parameters, "%s%s", name, pass->names->norm_bias);
    norm.width = norm.weight->shape.count;
    return norm;
}

static tt_double_block find_block(pass *pass, int number)
{
    const naming *names = pass->names;
    tt_double_block block = {.batch = pass->batch->batch,
                             .sequence = pass->batch->sequence,
                             .heads = pass->model->heads,
                             .gelu_by_tanh = pass->model->gelu_by_tanh,
                             .mask = pass->batch->mask};
    const char *const map_names[] = {names->query,  names->key,   names->value,
                                     names->output, names->inner, names->outer};
    tt_double_map *const maps[] = {&block.query,  &block.key,   &block.value,
                                   &block.output, &block.inner, &block.outer};
    char name[TT_REFERENCE_NAME];
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof(name), "%s%d%s", names->block, number, map_names[i]);
        *maps[i] = find_map(pass, name);
    }
    snprintf(name, sizeof(name), "%s%d%s", names->block, number, names->attention_norm);
    block.attention_norm = find_norm(pass, name);
    snprintf(name, sizeof(name), "%s%d%s", names->block, number, names->output_norm);
    block.output_norm = find_norm(pass, name);
    return block;
}

static void find_word_train(pass *pass)
{
    tt_double_train_matrix *matrix = &pass->word_train;
    const tt_double_tensors *parameters = pass->model->parameters;
    matrix->threshold = pass->model->threshold;
    for (int k = 0; k < TT_DOUBLE_ORDER; k++) {
        tt_double_tensor *core =
            tt_double_tensors_find(parameters, "encoder/embedding/word_emb/tensor/factors/%d", k);
        tt_double_tensor *diagonal = tt_double_tensors_find(
            parameters, "encoder/embedding/word_emb/tensor/rank_parameters/%d", k);
        if (core == NULL) {
            break;
        }
        matrix->ranks[k] = core->shape.extent[0];
        matrix->rows[k] = core->shape.extent[1];
        matrix->columns[k] = core->shape.extent[2];
        matrix->ranks[k + 1] = core->shape.extent[3];
        matrix->cores[k] = core->values;
        matrix->core_gradients[k] = core->gradients;
        matrix->diagonals[k] = diagonal == NULL ? NULL : diagonal->values;
        matrix->diagonal_gradients[k] = diagonal == NULL ? NULL : diagonal->gradients;
        matrix->order = k + 1;
    }
}

/* Finds every parameter up to the heads. */
static pass pass_make(const tt_double_model *model, const tt_double_batch *batch,
                      const naming *names)
{
    pass pass = {.model = model, .batch = batch, .names = names};
    tt_double_tensors_zero_gradients(model->parameters);
    pass.words = tt_double_tensors_find(model->parameters, "%s", names->words);
    if (pass.words == NULL) {
        find_word_train(&pass);
    }
    pass.embedding_norm = find_norm(&pass, names->embedding_norm);
    pass.hidden = pass.embedding_norm.width;
    pass.rows = batch->batch * batch->sequence;
    char bias[TT_REFERENCE_NAME];
    do {
        snprintf(bias, sizeof(bias), "%s%d%s%s", names->block, pass.block_count, names->query,
                 names->bias);
        pass.block_count++;
    } while (tt_double_tensors_find(model->parameters, "%s", bias) != NULL);
    pass.block_count--;
    pass.blocks = calloc((size_t)pass.block_count + 1, sizeof(*pass.blocks));
    if (pass.blocks == NULL) {
        abort();
    }
    for (int i = 0; i < pass.block_count; i++) {
        pass.blocks[i] = find_block(&pass, i);
    }
    int64_t count = (pass.block_count + 1) * pass.rows * pass.hidden;
    pass.states = tt_double_pool_array(&pass.pool, count);
    return pass;
}

static void pass_free(pass *pass)
{
    free(pass->blocks);
    tt_double_pool_free(&pass->pool);
}

static double *state(const pass *pass, int block)
{
    return pass->states + block * pass->rows * pass->hidden;
}

static void encoder_forward(pass *pass)
{
    const tt_double_batch *batch = pass->batch;
    const tt_double_tensors *parameters = pass->model->parameters;
    const double *positions =
        tt_double_tensors_get(parameters, "%s", pass->names->positions)->values;
    const double *segments = tt_double_tensors_get(parameters, "%s", pass->names->segments)->values;
    int64_t hidden = pass->hidden;
    double *sum = tt_double_pool_array(&pass->pool, pass->rows * hidden);
    for (int64_t t = 0; t < pass->rows; t++) {
        double *row = sum + t * hidden;
        if (pass->words != NULL) {
            memcpy(row, pass->words->values + batch->input_ids[t] * hidden,
                   (size_t)hidden * sizeof(double));
        } else {
            tt_double_train_matrix_row(&pass->word_train, batch->input_ids[t], row);
        }
        for (int64_t i = 0; i < hidden; i++) {
            row[i] += positions[t % batch->sequence * hidden + i] +
                      segments[batch->segment_ids[t] * hidden + i];
        }
    }
    tt_double_norm_forward(&pass->embedding_norm, pass->rows, sum, state(pass, 0), &pass->pool);
    for (int i = 0; i < pass->block_count; i++) {
        tt_double_block_forward(&pass->blocks[i], state(pass, i), state(pass, i + 1), &pass->pool);
    }
}

/* From the gradient of the last state, which is overwritten. */
static void encoder_backward(pass *pass, double *d_state)
{
    const tt_double_batch *batch = pass->batch;
    const tt_double_tensors *parameters = pass->model->parameters;
    double *positions = tt_double_tensors_get(parameters, "%s", pass->names->positions)->gradients;
    double *segments = tt_double_tensors_get(parameters, "%s", pass->names->segments)->gradients;
    int64_t hidden = pass->hidden;
    double *d_sum = tt_double_pool_array(&pass->pool, pass->rows * hidden);
    for (int i = pass->block_count - 1; i >= 0; i--) {
        tt_double_block_backward(&pass->blocks[i], d_state, d_sum, &pass->pool);
        memcpy(d_state, d_sum, (size_t)(pass->rows * hidden) * sizeof(double));
    }
    tt_double_norm_backward(&pass->embedding_norm, pass->rows, d_state, d_sum);
    for (int64_t t = 0; t < pass->rows; t++) {
        const double *row = d_sum + t * hidden;
        for (int64_t i = 0; i < hidden; i++) {
            positions[t % batch->sequence * hidden + i] += row[i];
            segments[batch->segment_ids[t] * hidden + i] += row[i];
            if (pass->words != NULL) {
                pass->words->gradients[batch->input_ids[t] * hidden + i] += row[i];
            }
        }
        if (pass->words == NULL) {
            tt_double_train_matrix_gradient(&pass->word_train, batch->input_ids[t], row);
        }
    }
}

/* Token numbers of the masked positions and what stands there; returns how many. */
static int64_t list_masked(const tt_double_batch *batch, int64_t *tokens, int32_t *ids)
{
    int64_t count = 0;
    for (int64_t b = 0; b < batch->batch; b++) {
        for (int64_t p = 0; p < batch->max_predictions; p++) {
            int64_t entry = b * batch->max_predictions + p;
            if (batch->masked_positions[entry] == 0) {
                break;
            }
            tokens[count] = b * batch->sequence + batch->masked_positions[entry];
            ids[count] = batch->masked_ids[entry];
            count++;
        }
    }
    return count;
}

/* logits [rows, vocabulary] = x words^T + bias. */
static void decode(const pass *pass, int64_t rows, const double *x, const double *bias,
                   double *logits)
{
    int64_t vocabulary = pass->words->shape.extent[0];
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t v = 0; v < vocabulary; v++) {
            double sum = bias[v];
            for (int64_t i = 0; i < pass->hidden; i++) {
                sum += x[r * pass->hidden + i] * pass->words->values[v * pass->hidden + i];
            }
            logits[r * vocabulary + v] = sum;
        }
    }
}

static void decode_backward(const pass *pass, int64_t rows, const double *x, const double *d_logits,
                            double *bias_gradient, double *dx)
{
    int64_t vocabulary = pass->words->shape.extent[0];
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t v = 0; v < vocabulary; v++) {
            double change = d_logits[r * vocabulary + v];
            bias_gradient[v] += change;
            for (int64_t i = 0; i < pass->hidden; i++) {
                dx[r * pass->hidden + i] += change * pass->words->values[v * pass->hidden + i];
                pass->words->gradients[v * pass->hidden + i] += change * x[r * pass->hidden + i];
            }
        }
    }
}

/* The masked-language-model head; adds to the gradient of the last state. */
static void masked_lm(pass *pass, const double *last, double *d_last, tt_double_result *result)
{
    const tt_double_tensors *parameters = pass->model->parameters;
    tt_double_tensor *bias = tt_double_tensors_get(parameters, "cls.predictions.bias");
    tt_double_map transform = find_map(pass, "cls.predictions.transform.dense");
    tt_double_norm norm = find_norm(pass, "cls.predictions.transform.LayerNorm");
    int64_t hidden = pass->hidden;
    size_t room = (size_t)(pass->batch->batch * pass->batch->max_predictions) + 1;
    int64_t *tokens = calloc(room, sizeof(*tokens));
    int32_t *ids = calloc(room, sizeof(*ids));
    if (tokens == NULL || ids == NULL) {
        abort();
    }
    int64_t count = list_masked(pass->batch, tokens, ids);
    result->masked_count = count;
    result->vocabulary = pass->words->shape.extent[0];
    result->masked_lm_logits = tt_double_array(count * result->vocabulary);
    double *gathered = tt_double_pool_array(&pass->pool, count * hidden);
    double *wide = tt_double_pool_array(&pass->pool, count * hidden);
    double *active = tt_double_pool_array(&pass->pool, count * hidden);
    double *normalized = tt_double_pool_array(&pass->pool, count * hidden);
    double *d_logits = tt_double_pool_array(&pass->pool, count * result->vocabulary);
    double *d_normalized = tt_double_pool_array(&pass->pool, count * hidden);
    double *d_wide = tt_double_pool_array(&pass->pool, count * hidden);
    double *d_gathered = tt_double_pool_array(&pass->pool, count * hidden);
    for (int64_t i = 0; i < count * hidden; i++) {
        gathered[i] = last[tokens[i / hidden] * hidden + i % hidden];
    }
    tt_double_map_forward(&transform, count, gathered, wide);
    for (int64_t i = 0; i < count * hidden; i++) {
        active[i] = tt_double_gelu(pass->model->gelu_by_tanh, wide[i]);
    }
    tt_double_norm_forward(&norm, count, active, normalized, &pass->pool);
    decode(pass, count, normalized, bias->values, result->masked_lm_logits);
    result->masked_lm_loss =
        tt_double_cross_entropy(count, result->vocabulary, result->masked_lm_logits, ids, d_logits);
    decode_backward(pass, count, normalized, d_logits, bias->gradients, d_normalized);
    tt_double_norm_backward(&norm, count, d_normalized, d_wide);
    for (int64_t i = 0; i < count * hidden; i++) {
        d_wide[i] *= tt_double_gelu_slope(pass->model->gelu_by_tanh, wide[i]);
    }
    tt_double_map_backward(&transform, count, gathered, d_wide, d_gathered);
    tt_double_map_finish(&transform);
    for (int64_t i = 0; i < count * hidden; i++) {
        d_last[tokens[i / hidden] * hidden + i % hidden] += d_gathered[i];
    }
    free(tokens);
    free(ids);
}

/* logits = second(tanh(first(state at position 0))), the head that both models have; returns the
 * mean cross-entropy with the batch's labels. */
static double sentence(pass *pass, const char *first_name, const char *second_name,
                       const double *last, double *d_last, tt_double_result *result)
{
    tt_double_map first = find_map(pass, first_name);
    tt_double_map second = find_map(pass, second_name);
    int64_t hidden = pass->hidden;
    int64_t rows = pass->batch->batch;
    int64_t stride = pass->batch->sequence * hidden;
    result->classes = second.outputs;
    result->logits = tt_double_array(rows * second.outputs);
    double *taken = tt_double_pool_array(&pass->pool, rows * hidden);
    double *pooled = tt_double_pool_array(&pass->pool, rows * hidden);
    double *d_logits = tt_double_pool_array(&pass->pool, rows * second.outputs);
    double *d_pooled = tt_double_pool_array(&pass->pool, rows * hidden);
    double *d_taken = tt_double_pool_array(&pass->pool, rows * hidden);
    for (int64_t i = 0; i < rows * hidden; i++) {
        taken[i] = last[i / hidden * stride + i % hidden];
    }
    tt_double_map_forward(&first, rows, taken, pooled);
    for (int64_t i = 0; i < rows * hidden; i++) {
        pooled[i] = tanh(pooled[i]);
    }
    tt_double_map_forward(&second, rows, pooled, result->logits);
    double loss = tt_double_cross_entropy(rows, second.outputs, result->logits, pass->batch->labels,
                                          d_logits);
    tt_double_map_backward(&second, rows, pooled, d_logits, d_pooled);
    for (int64_t i = 0; i < rows * hidden; i++) {
        d_pooled[i] *= 1 - pooled[i] * pooled[i];
    }
    tt_double_map_backward(&first, rows, taken, d_pooled, d_taken);
    tt_double_map_finish(&second);
    tt_double_map_finish(&first);
    for (int64_t i = 0; i < rows * hidden; i++) {
        d_last[i / hidden * stride + i % hidden] += d_taken[i];
    }
    return loss;
}

void tt_double_model_bert(const tt_double_model *model, const tt_double_batch *batch,
                          tt_double_result *result)
{
    pass pass = pass_make(model, batch, &bert_names);
    *result = (tt_double_result){0};
    encoder_forward(&pass);
    const double *last = state(&pass, pass.block_count);
    double *d_last = tt_double_pool_array(&pass.pool, pass.rows * pass.hidden);
    masked_lm(&pass, last, d_last, result);
    result->next_sentence_loss =
        sentence(&pass, "bert.pooler.dense", "cls.seq_relationship", last, d_last, result);
    result->loss = result->masked_lm_loss + result->next_sentence_loss;
    encoder_backward(&pass, d_last);
    pass_free(&pass);
}

void tt_double_model_six_encoder(const tt_double_model *model, const tt_double_batch *batch,
                                 tt_double_result *result)
{
    pass pass = pass_make(model, batch, &six_encoder_names);
    *result = (tt_double_result){0};
    encoder_forward(&pass);
    const double *last = state(&pass, pass.block_count);
    double *d_last = tt_double_pool_array(&pass.pool, pass.rows * pass.hidden);
    result->loss = sentence(&pass, "classifier/fc1", "classifier/fc2", last, d_last, result);
    encoder_backward(&pass, d_last);
    pass_free(&pass);
}

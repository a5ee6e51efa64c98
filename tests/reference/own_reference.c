#include "tests/reference/own_reference.h"

#include "core/random.h"
#include "tests/reference/double_layers.h"
#include "tests/reference/double_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const tt_own_reference_names[TT_OWN_REFERENCE_FILES] = {
    "tt_linear_own.h5", "ttm_embedding_own.h5", "six_encoder_own_wide.h5",
    "six_encoder_own_thin.h5", "bert_pretraining_own.h5"};

#define THRESHOLD 0.01

/* Uniform in centre +- radius, rounded to a float. Only exact operations and one rounding, so the
 * same on every machine. */
static double draw(tt_random *random, double centre, double radius)
{
    double unit = 2 * (double)tt_random_uniform(random) - 1;
    double offset = unit * radius;
    return (double)(float)(centre + offset);
}

static void fill(tt_random *random, tt_double_tensor *tensor, double centre, double radius)
{
    for (int64_t i = 0; i < tensor->shape.count; i++) {
        tensor->values[i] = draw(random, centre, radius);
    }
}

/* Diagonals of size about 1; of the pruned ones every fifth entry counts as zero. */
static void fill_diagonal(tt_random *random, tt_double_tensor *tensor, bool pruned)
{
    static const double dead[] = {-0.5, THRESHOLD, 0, 0.004};
    fill(random, tensor, 0.8, 0.5);
    for (int64_t i = 1; pruned && i < tensor->shape.count; i += 5) {
        tensor->values[i] = (double)(float)dead[i / 5 % 4];
    }
}

static tt_reference_shape shape_of(int dimensions, const int64_t *extent)
{
    tt_reference_shape shape = {.dimensions = dimensions, .count = 1};
    for (int i = 0; i < dimensions; i++) {
        shape.extent[i] = extent[i];
        shape.count *= extent[i];
    }
    return shape;
}

static tt_double_tensor *add(tt_double_tensors *tensors, const char *name, int dimensions,
                             const int64_t *extent)
{
    tt_reference_shape shape = shape_of(dimensions, extent);
    return tt_double_tensors_add(tensors, name, &shape);
}

static tt_status write_values(const tt_reference_file *file, const char *group,
                              const tt_double_tensor *tensor, tt_reference_type type,
                              tt_error *error)
{
    char path[2 * TT_REFERENCE_NAME];
    snprintf(path, sizeof(path), "%s/%s", group, tensor->name);
    return tt_reference_write(file, path, &tensor->shape, type, tensor->values, error);
}

static tt_status write_gradient(const tt_reference_file *file, const char *group,
                                const tt_double_tensor *tensor, tt_reference_type type,
                                tt_error *error)
{
    char path[2 * TT_REFERENCE_NAME];
    const char *format = type == TT_REFERENCE_F64 ? "%s/grad_%s" : "%s/%s";
    snprintf(path, sizeof(path), format, group, tensor->name);
    return tt_reference_write(file, path, &tensor->shape, type, tensor->gradients, error);
}

typedef struct {
    const char *name;
    int order;
    bool pruned, removed;
    int64_t shape[8], ranks[9];
    int64_t rows[2]; /* leading extents of x; the second may be 0 */
} linear_group;

static const linear_group linear_groups[] = {
    {"order_2", 2, false, false, {7, 5}, {1, 4, 1}, {6, 0}},
    {"order_2_rank_1", 2, false, false, {13, 11}, {1, 1, 1}, {4, 0}},
    {"order_4", 4, false, false, {3, 5, 4, 3}, {1, 3, 6, 3, 1}, {2, 3}},
    {"order_4_pruned", 4, true, false, {5, 3, 2, 7}, {1, 5, 11, 7, 1}, {9, 0}},
    {"order_4_removed", 4, false, true, {3, 4, 5, 2}, {1, 3, 7, 2, 1}, {5, 0}},
    {"order_6_pruned", 6, true, false, {2, 3, 5, 4, 3, 2}, {1, 2, 6, 13, 6, 2, 1}, {3, 3}},
    {"order_8_pruned",
     8,
     true,
     false,
     {2, 3, 2, 2, 3, 2, 2, 3},
     {1, 2, 6, 7, 11, 7, 6, 3, 1},
     {7, 0}},
};

/* Tensors of the group with their values: the cores, diagonals, bias and x. */
static tt_double_train make_train(const linear_group *group, tt_random *random,
                                  tt_double_tensors *data)
{
    tt_double_train train = {
        .order = group->order, .input_order = group->order / 2, .threshold = THRESHOLD};
    for (int k = 0; k < group->order; k++) {
        char name[64];
        train.modes[k] = group->shape[k];
        train.ranks[k] = group->ranks[k];
        train.ranks[k + 1] = group->ranks[k + 1];
        snprintf(name, sizeof(name), "core_%d", k + 1);
        tt_double_tensor *core =
            add(data, name, 3, (int64_t[]){group->ranks[k], group->shape[k], group->ranks[k + 1]});
        fill(random, core, 0, 1);
        train.cores[k] = core->values;
        train.core_gradients[k] = core->gradients;
        if (k < group->order - 1) {
            snprintf(name, sizeof(name), "rank_diagonal_%d", k + 1);
            tt_double_tensor *diagonal = add(data, name, 1, &group->ranks[k + 1]);
            fill_diagonal(random, diagonal, group->pruned);
            if (group->removed && k == group->order / 2 - 1) {
                memset(diagonal->values, 0, (size_t)diagonal->shape.count * sizeof(double));
            }
            train.diagonals[k] = diagonal->values;
            train.diagonal_gradients[k] = diagonal->gradients;
        }
    }
    return train;
}

static tt_status write_linear_group(const tt_reference_file *file, const linear_group *group,
                                    tt_double_tensors *data, tt_double_pool *pool, tt_error *error)
{
    tt_random random;
    tt_random_start(&random, 1, (uint64_t)(group - linear_groups));
    tt_double_train train = make_train(group, &random, data);
    int64_t inputs = tt_double_train_inputs(&train);
    int64_t outputs = tt_double_train_outputs(&train);
    int dimensions = group->rows[1] == 0 ? 2 : 3;
    int64_t x_extent[] = {group->rows[0], dimensions == 3 ? group->rows[1] : inputs, inputs};
    int64_t y_extent[] = {group->rows[0], dimensions == 3 ? group->rows[1] : outputs, outputs};
    tt_double_tensor *bias = add(data, "bias", 1, &outputs);
    tt_double_tensor *x = add(data, "x", dimensions, x_extent);
    int inner = data->count; /* up to here a tensor has a gradient */
    tt_double_tensor *d_output = add(data, "grad_output", dimensions, y_extent);
    tt_double_tensor *y = add(data, "y", dimensions, y_extent);
    fill(&random, bias, 0, 1);
    fill(&random, x, 0, 1);
    fill(&random, d_output, 0, 1);

    tt_double_map map;
    int64_t rows = x->shape.count / inputs;
    tt_double_map_train(&map, &train, bias, pool);
    tt_double_map_forward(&map, rows, x->values, y->values);
    tt_double_map_backward(&map, rows, x->values, d_output->values, x->gradients);
    tt_double_map_finish(&map);

    TT_TRY(
        tt_reference_write_integers(file, group->name, "shape", group->order, group->shape, error));
    TT_TRY(tt_reference_write_integers(file, group->name, "ranks", group->order + 1, group->ranks,
                                       error));
    TT_TRY(tt_reference_write_real(file, group->name, "threshold", THRESHOLD, error));
    for (int i = 0; i < inner; i++) {
        TT_TRY(write_values(file, group->name, data->items[i], TT_REFERENCE_F32, error));
        TT_TRY(write_gradient(file, group->name, data->items[i], TT_REFERENCE_F64, error));
    }
    TT_TRY(write_values(file, group->name, d_output, TT_REFERENCE_F32, error));
    return write_values(file, group->name, y, TT_REFERENCE_F64, error);
}

static tt_status write_linear(const tt_reference_file *file, tt_error *error)
{
    int count = (int)(sizeof(linear_groups) / sizeof(linear_groups[0]));
    tt_status status = TT_OK;
    for (int i = 0; status == TT_OK && i < count; i++) {
        tt_double_tensors data = {0};
        tt_double_pool pool = {0};
        status = write_linear_group(file, &linear_groups[i], &data, &pool, error);
        tt_double_pool_free(&pool);
        tt_double_tensors_free(&data);
    }
    return status;
}

typedef struct {
    const char *name;
    int order;
    int64_t rows[4], columns[4], ranks[5];
    int64_t vocabulary, tokens;
} embedding_group;

static const embedding_group embedding_groups[] = {
    {"order_2", 2, {7, 11}, {5, 3}, {1, 6, 1}, 71, 30},
    {"order_4", 4, {3, 2, 5, 4}, {2, 3, 2, 2}, {1, 5, 7, 3, 1}, 113, 40},
};

static tt_status write_embedding_group(const tt_reference_file *file, const embedding_group *group,
                                       tt_double_tensors *data, tt_error *error)
{
    tt_random random;
    tt_random_start(&random, 2, (uint64_t)(group - embedding_groups));
    tt_double_train_matrix matrix = {.order = group->order};
    for (int k = 0; k < group->order; k++) {
        char name[64];
        int64_t extent[] = {group->ranks[k], group->rows[k], group->columns[k],
                            group->ranks[k + 1]};
        snprintf(name, sizeof(name), "core_%d", k + 1);
        tt_double_tensor *core = add(data, name, 4, extent);
        fill(&random, core, 0, 1);
        matrix.rows[k] = group->rows[k];
        matrix.columns[k] = group->columns[k];
        matrix.ranks[k] = group->ranks[k];
        matrix.ranks[k + 1] = group->ranks[k + 1];
        matrix.cores[k] = core->values;
        matrix.core_gradients[k] = core->gradients;
    }
    int64_t width = tt_double_train_matrix_width(&matrix);
    int64_t extent[] = {group->tokens, width};
    int32_t ids[64];
    tt_double_tensor *rows = add(data, "rows", 2, extent);
    tt_double_tensor *d_rows = add(data, "grad_output", 2, extent);
    fill(&random, d_rows, 0, 1);
    for (int64_t i = 0; i < group->tokens; i++) {
        /* Every third token repeats one before it. */
        bool repeats = i % 3 == 2;
        ids[i] =
            repeats ? ids[i / 2] : (int32_t)tt_random_below(&random, (uint32_t)group->vocabulary);
        tt_double_train_matrix_row(&matrix, ids[i], rows->values + i * width);
        tt_double_train_matrix_gradient(&matrix, ids[i], d_rows->values + i * width);
    }

    TT_TRY(tt_reference_write_integers(file, group->name, "row_shape", group->order, group->rows,
                                       error));
    TT_TRY(tt_reference_write_integers(file, group->name, "column_shape", group->order,
                                       group->columns, error));
    TT_TRY(tt_reference_write_integers(file, group->name, "ranks", group->order + 1, group->ranks,
                                       error));
    TT_TRY(tt_reference_write_integer(file, group->name, "vocab_size", group->vocabulary, error));
    char path[TT_REFERENCE_NAME];
    snprintf(path, sizeof(path), "%s/ids", group->name);
    tt_reference_shape shape = shape_of(1, &group->tokens);
    TT_TRY(tt_reference_write(file, path, &shape, TT_REFERENCE_I32, ids, error));
    for (int k = 0; k < group->order; k++) {
        TT_TRY(write_values(file, group->name, data->items[k], TT_REFERENCE_F32, error));
        TT_TRY(write_gradient(file, group->name, data->items[k], TT_REFERENCE_F64, error));
    }
    TT_TRY(write_values(file, group->name, d_rows, TT_REFERENCE_F32, error));
    return write_values(file, group->name, rows, TT_REFERENCE_F64, error);
}

static tt_status write_embedding(const tt_reference_file *file, tt_error *error)
{
    int count = (int)(sizeof(embedding_groups) / sizeof(embedding_groups[0]));
    tt_status status = TT_OK;
    for (int i = 0; status == TT_OK && i < count; i++) {
        tt_double_tensors data = {0};
        status = write_embedding_group(file, &embedding_groups[i], &data, error);
        tt_double_tensors_free(&data);
    }
    return status;
}

/* Parameters and gradients of a model, as floats. */
static tt_status write_parameters(const tt_reference_file *file,
                                  const tt_double_tensors *parameters, tt_error *error)
{
    for (int i = 0; i < parameters->count; i++) {
        TT_TRY(write_values(file, "parameters", parameters->items[i], TT_REFERENCE_F32, error));
        TT_TRY(write_gradient(file, "gradients", parameters->items[i], TT_REFERENCE_F32, error));
    }
    return TT_OK;
}

/* Sentence pairs of falling lengths, the rest padding. */
static void make_batch(tt_random *random, tt_double_batch *batch, int64_t vocabulary,
                       uint32_t classes)
{
    size_t tokens = (size_t)(batch->batch * batch->sequence);
    batch->input_ids = calloc(tokens, sizeof(int32_t));
    batch->segment_ids = calloc(tokens, sizeof(int32_t));
    batch->mask = calloc(tokens, sizeof(int32_t));
    batch->labels = calloc((size_t)batch->batch, sizeof(int32_t));
    if (batch->input_ids == NULL || batch->segment_ids == NULL || batch->mask == NULL ||
        batch->labels == NULL) {
        abort();
    }
    for (int64_t b = 0; b < batch->batch; b++) {
        int64_t length = batch->sequence - 3 * b;
        for (int64_t s = 0; s < length; s++) {
            int64_t t = b * batch->sequence + s;
            batch->input_ids[t] = (int32_t)tt_random_below(random, (uint32_t)vocabulary);
            batch->segment_ids[t] = s >= length / 2;
            batch->mask[t] = 1;
        }
        batch->labels[b] = (int32_t)tt_random_below(random, classes);
    }
}

static tt_status write_integers32(const tt_reference_file *file, const char *name, int64_t rows,
                                  int64_t columns, const int32_t *values, tt_error *error)
{
    char path[64];
    snprintf(path, sizeof(path), "batch/%s", name);
    tt_reference_shape shape = shape_of(columns == 0 ? 1 : 2, (int64_t[]){rows, columns});
    return tt_reference_write(file, path, &shape, TT_REFERENCE_I32, values, error);
}

static tt_status write_number(const tt_reference_file *file, const char *name, double value,
                              tt_error *error)
{
    tt_reference_shape shape = shape_of(0, NULL);
    return tt_reference_write(file, name, &shape, TT_REFERENCE_F64, &value, error);
}

static tt_status write_logits(const tt_reference_file *file, const char *name, int64_t rows,
                              int64_t columns, const double *values, tt_error *error)
{
    tt_reference_shape shape = shape_of(2, (int64_t[]){rows, columns});
    return tt_reference_write(file, name, &shape, TT_REFERENCE_F64, values, error);
}

/* Two models of the same width: one with ranks above the width of a head, where the wide form of
 * attention is the cheaper one, and one with ranks well below it, where the thin form is. */
typedef struct {
    int64_t heads;
    int64_t attention_ranks[7], inner_ranks[7], outer_ranks[7];
} encoder_ranks;

static const encoder_ranks wide_ranks = {
    6, {1, 2, 6, 20, 6, 2, 1}, {1, 2, 6, 20, 9, 3, 1}, {1, 3, 9, 20, 6, 2, 1}};
static const encoder_ranks thin_ranks = {
    2, {1, 2, 4, 3, 4, 2, 1}, {1, 2, 4, 3, 4, 2, 1}, {1, 2, 4, 3, 4, 2, 1}};

enum { ENCODER_HIDDEN = 24, ENCODER_INNER = 36, ENCODER_LAYERS = 2, ENCODER_CLASSES = 3 };
static const int64_t attention_shape[] = {2, 3, 4, 4, 3, 2};
static const int64_t inner_shape[] = {2, 3, 4, 4, 3, 3};
static const int64_t outer_shape[] = {3, 3, 4, 4, 3, 2};
static const int64_t word_rows[] = {3, 4, 2, 5};
static const int64_t word_columns[] = {2, 3, 2, 2};
static const int64_t word_ranks[] = {1, 4, 6, 5, 1};

static void add_vector(tt_double_tensors *parameters, tt_random *random, const char *prefix,
                       const char *name, int64_t count, double centre)
{
    char full[TT_REFERENCE_NAME];
    snprintf(full, sizeof(full), "%s%s", prefix, name);
    fill(random, add(parameters, full, 1, &count), centre, 0.2);
}

static void add_matrix(tt_double_tensors *parameters, tt_random *random, const char *name,
                       int64_t rows, int64_t columns, double radius)
{
    fill(random, add(parameters, name, 2, (int64_t[]){rows, columns}), 0, radius);
}

/* The radius to draw cores with so that the map's entries come out at about 0.2, which keeps
 * attention from saturating. In whole thousandths: the same on every machine. */
static double core_radius(const int64_t *ranks)
{
    double links = 1;
    for (int k = 1; k < 6; k++) {
        links *= (double)ranks[k];
    }
    return round(1000 * sqrt(3) * pow(1.5 / sqrt(links), 1.0 / 6)) / 1000;
}

static void add_train(tt_double_tensors *parameters, tt_random *random, const char *prefix,
                      const char *map, const int64_t *shape, const int64_t *ranks)
{
    char name[TT_REFERENCE_NAME];
    double radius = core_radius(ranks);
    for (int k = 0; k < 6; k++) {
        snprintf(name, sizeof(name), "%s%s/layer/tensor/factors/%d", prefix, map, k);
        tt_double_tensor *core =
            add(parameters, name, 3, (int64_t[]){ranks[k], shape[k], ranks[k + 1]});
        fill(random, core, 0, radius);
        if (k < 5) {
            snprintf(name, sizeof(name), "%s%s/layer/tensor/rank_parameters/%d", prefix, map, k);
            fill_diagonal(random, add(parameters, name, 1, &ranks[k + 1]), true);
        }
    }
    snprintf(name, sizeof(name), "%s/layer/bias", map);
    add_vector(parameters, random, prefix, name, shape[3] * shape[4] * shape[5], 0);
}

static void add_word_train(tt_double_tensors *parameters, tt_random *random)
{
    char name[TT_REFERENCE_NAME];
    for (int k = 0; k < 4; k++) {
        int64_t extent[] = {word_ranks[k], word_rows[k], word_columns[k], word_ranks[k + 1]};
        snprintf(name, sizeof(name), "encoder/embedding/word_emb/tensor/factors/%d", k);
        fill(random, add(parameters, name, 4, extent), 0, 1);
        if (k < 3) {
            snprintf(name, sizeof(name), "encoder/embedding/word_emb/tensor/rank_parameters/%d", k);
            fill_diagonal(random, add(parameters, name, 1, &word_ranks[k + 1]), true);
        }
    }
}

static void add_encoder(tt_double_tensors *parameters, tt_random *random,
                        const encoder_ranks *ranks)
{
    add_word_train(parameters, random);
    add_matrix(parameters, random, "encoder/embedding/position_emb/weight", 16, ENCODER_HIDDEN, 1);
    add_matrix(parameters, random, "encoder/embedding/token_type_emb/weight", 2, ENCODER_HIDDEN, 1);
    add_vector(parameters, random, "encoder/embedding/", "layer_norm/weight", ENCODER_HIDDEN, 1);
    add_vector(parameters, random, "encoder/embedding/", "layer_norm/bias", ENCODER_HIDDEN, 0);
    for (int layer = 0; layer < ENCODER_LAYERS; layer++) {
        static const char *const maps[] = {"slf_attn/w_qs", "slf_attn/w_ks", "slf_attn/w_vs",
                                           "slf_attn/fc"};
        char prefix[64];
        snprintf(prefix, sizeof(prefix), "encoder/encoder_blocks/%d/", layer);
        for (int i = 0; i < 4; i++) {
            add_train(parameters, random, prefix, maps[i], attention_shape, ranks->attention_ranks);
        }
        add_train(parameters, random, prefix, "pos_ffn/fc_1", inner_shape, ranks->inner_ranks);
        add_train(parameters, random, prefix, "pos_ffn/fc_2", outer_shape, ranks->outer_ranks);
        add_vector(parameters, random, prefix, "slf_attn/layer_norm/weight", ENCODER_HIDDEN, 1);
        add_vector(parameters, random, prefix, "slf_attn/layer_norm/bias", ENCODER_HIDDEN, 0);
        add_vector(parameters, random, prefix, "pos_ffn/layer_norm/weight", ENCODER_HIDDEN, 1);
        add_vector(parameters, random, prefix, "pos_ffn/layer_norm/bias", ENCODER_HIDDEN, 0);
    }
    add_train(parameters, random, "classifier/", "fc1", attention_shape, ranks->attention_ranks);
    add_matrix(parameters, random, "classifier/fc2/layer/weight", ENCODER_CLASSES, ENCODER_HIDDEN,
               0.5);
    add_vector(parameters, random, "classifier/fc2/layer/", "bias", ENCODER_CLASSES, 0);
}

static tt_status write_encoder_sizes(const tt_reference_file *file, const tt_double_model *model,
                                     tt_error *error)
{
    TT_TRY(tt_reference_write_integers(file, "/", "attention_shape", 6, attention_shape, error));
    TT_TRY(tt_reference_write_integers(file, "/", "ffn1_shape", 6, inner_shape, error));
    TT_TRY(tt_reference_write_integers(file, "/", "ffn2_shape", 6, outer_shape, error));
    TT_TRY(tt_reference_write_integers(file, "/", "embedding_row_shape", 4, word_rows, error));
    TT_TRY(
        tt_reference_write_integers(file, "/", "embedding_column_shape", 4, word_columns, error));
    TT_TRY(tt_reference_write_integer(file, "/", "hidden", ENCODER_HIDDEN, error));
    TT_TRY(tt_reference_write_integer(file, "/", "ffn", ENCODER_INNER, error));
    TT_TRY(tt_reference_write_integer(file, "/", "n_layers", ENCODER_LAYERS, error));
    TT_TRY(tt_reference_write_integer(file, "/", "heads", model->heads, error));
    TT_TRY(tt_reference_write_real(file, "/", "layer_norm_eps", model->epsilon, error));
    TT_TRY(tt_reference_write_real(file, "/", "threshold", model->threshold, error));
    return tt_reference_write_text(file, "/", "gelu", "erf", error);
}

static tt_status write_encoder_results(const tt_reference_file *file, const tt_double_model *model,
                                       const tt_double_batch *batch, const tt_double_result *result,
                                       tt_error *error)
{
    int64_t rows = batch->batch;
    int64_t columns = batch->sequence;
    TT_TRY(write_encoder_sizes(file, model, error));
    TT_TRY(write_integers32(file, "input_ids", rows, columns, batch->input_ids, error));
    TT_TRY(write_integers32(file, "segment_ids", rows, columns, batch->segment_ids, error));
    TT_TRY(write_integers32(file, "attention_mask", rows, columns, batch->mask, error));
    TT_TRY(write_integers32(file, "labels", rows, 0, batch->labels, error));
    TT_TRY(write_logits(file, "logits", rows, result->classes, result->logits, error));
    TT_TRY(write_number(file, "loss", result->loss, error));
    return write_parameters(file, model->parameters, error);
}

static tt_status write_six_encoder(const tt_reference_file *file, const encoder_ranks *ranks,
                                   tt_error *error)
{
    tt_random random;
    /* With this seed no gradient is so cancelled that f32 could not be expected to agree. */
    tt_random_start(&random, 8, (uint64_t)ranks->heads);
    tt_double_tensors parameters = {0};
    tt_double_batch batch = {.batch = 3, .sequence = 11};
    tt_double_model model = {
        .parameters = &parameters, .heads = ranks->heads, .epsilon = 1e-9, .threshold = THRESHOLD};
    tt_double_result result;
    add_encoder(&parameters, &random, ranks);
    make_batch(&random, &batch, 113, ENCODER_CLASSES);
    tt_double_model_six_encoder(&model, &batch, &result);
    tt_status status = write_encoder_results(file, &model, &batch, &result, error);
    tt_double_result_free(&result);
    tt_double_batch_free(&batch);
    tt_double_tensors_free(&parameters);
    return status;
}

static tt_status write_six_encoder_wide(const tt_reference_file *file, tt_error *error)
{
    return write_six_encoder(file, &wide_ranks, error);
}

static tt_status write_six_encoder_thin(const tt_reference_file *file, tt_error *error)
{
    return write_six_encoder(file, &thin_ranks, error);
}

enum { BERT_HIDDEN = 24, BERT_INNER = 60, BERT_LAYERS = 2, BERT_HEADS = 3, BERT_VOCABULARY = 97 };
enum { BERT_POSITIONS = 32, BERT_SEGMENTS = 2, BERT_PREDICTIONS = 5 };

static void add_bert_map(tt_double_tensors *parameters, tt_random *random, const char *prefix,
                         const char *map, int64_t inputs, int64_t outputs)
{
    char name[TT_REFERENCE_NAME];
    snprintf(name, sizeof(name), "%s%s.weight", prefix, map);
    add_matrix(parameters, random, name, outputs, inputs, 0.4);
    snprintf(name, sizeof(name), "%s%s.bias", prefix, map);
    add_vector(parameters, random, "", name, outputs, 0);
}

static void add_bert_norm(tt_double_tensors *parameters, tt_random *random, const char *prefix,
                          const char *norm)
{
    char name[TT_REFERENCE_NAME];
    snprintf(name, sizeof(name), "%s%s.LayerNorm.weight", prefix, norm);
    add_vector(parameters, random, "", name, BERT_HIDDEN, 1);
    snprintf(name, sizeof(name), "%s%s.LayerNorm.bias", prefix, norm);
    add_vector(parameters, random, "", name, BERT_HIDDEN, 0);
}

static void add_bert(tt_double_tensors *parameters, tt_random *random)
{
    const int64_t hidden = BERT_HIDDEN;
    add_matrix(parameters, random, "bert.embeddings.word_embeddings.weight", BERT_VOCABULARY,
               hidden, 1);
    add_matrix(parameters, random, "bert.embeddings.position_embeddings.weight", BERT_POSITIONS,
               hidden, 1);
    add_matrix(parameters, random, "bert.embeddings.token_type_embeddings.weight", BERT_SEGMENTS,
               hidden, 1);
    add_bert_norm(parameters, random, "bert.", "embeddings");
    for (int layer = 0; layer < BERT_LAYERS; layer++) {
        char prefix[64];
        snprintf(prefix, sizeof(prefix), "bert.encoder.layer.%d.", layer);
        add_bert_map(parameters, random, prefix, "attention.self.query", hidden, hidden);
        add_bert_map(parameters, random, prefix, "attention.self.key", hidden, hidden);
        add_bert_map(parameters, random, prefix, "attention.self.value", hidden, hidden);
        add_bert_map(parameters, random, prefix, "attention.output.dense", hidden, hidden);
        add_bert_map(parameters, random, prefix, "intermediate.dense", hidden, BERT_INNER);
        add_bert_map(parameters, random, prefix, "output.dense", BERT_INNER, hidden);
        add_bert_norm(parameters, random, prefix, "attention.output");
        add_bert_norm(parameters, random, prefix, "output");
    }
    add_bert_map(parameters, random, "bert.", "pooler.dense", hidden, hidden);
    add_bert_map(parameters, random, "cls.", "predictions.transform.dense", hidden, hidden);
    add_bert_norm(parameters, random, "cls.", "predictions.transform");
    add_vector(parameters, random, "cls.", "predictions.bias", BERT_VOCABULARY, 0);
    add_bert_map(parameters, random, "cls.", "seq_relationship", hidden, 2);
}

/* The first row has all the masked positions it has room for, the next one less, the last none. */
static void make_masked(tt_random *random, tt_double_batch *batch)
{
    size_t room = (size_t)(batch->batch * batch->max_predictions);
    batch->masked_positions = calloc(room, sizeof(int32_t));
    batch->masked_ids = calloc(room, sizeof(int32_t));
    if (batch->masked_positions == NULL || batch->masked_ids == NULL) {
        abort();
    }
    for (int64_t b = 0; b < batch->batch - 1; b++) {
        for (int64_t p = 0; p < batch->max_predictions - b; p++) {
            int64_t entry = b * batch->max_predictions + p;
            batch->masked_positions[entry] = (int32_t)(1 + 2 * p);
            batch->masked_ids[entry] = (int32_t)tt_random_below(random, BERT_VOCABULARY);
        }
    }
}

static tt_status write_bert_sizes(const tt_reference_file *file, const tt_double_model *model,
                                  tt_error *error)
{
    TT_TRY(tt_reference_write_integer(file, "/", "vocab_size", BERT_VOCABULARY, error));
    TT_TRY(tt_reference_write_integer(file, "/", "hidden_size", BERT_HIDDEN, error));
    TT_TRY(tt_reference_write_integer(file, "/", "intermediate_size", BERT_INNER, error));
    TT_TRY(tt_reference_write_integer(file, "/", "num_hidden_layers", BERT_LAYERS, error));
    TT_TRY(tt_reference_write_integer(file, "/", "num_attention_heads", model->heads, error));
    TT_TRY(tt_reference_write_integer(file, "/", "max_position_embeddings", BERT_POSITIONS, error));
    TT_TRY(tt_reference_write_integer(file, "/", "type_vocab_size", BERT_SEGMENTS, error));
    TT_TRY(tt_reference_write_real(file, "/", "layer_norm_eps", model->epsilon, error));
    return tt_reference_write_text(file, "/", "hidden_act", "erf gelu", error);
}

static tt_status write_bert_results(const tt_reference_file *file, const tt_double_model *model,
                                    const tt_double_batch *batch, const tt_double_result *result,
                                    tt_error *error)
{
    int64_t rows = batch->batch;
    int64_t columns = batch->sequence;
    int64_t room = batch->max_predictions;
    TT_TRY(write_bert_sizes(file, model, error));
    TT_TRY(write_integers32(file, "input_ids", rows, columns, batch->input_ids, error));
    TT_TRY(write_integers32(file, "segment_ids", rows, columns, batch->segment_ids, error));
    TT_TRY(write_integers32(file, "input_mask", rows, columns, batch->mask, error));
    TT_TRY(
        write_integers32(file, "masked_lm_positions", rows, room, batch->masked_positions, error));
    TT_TRY(write_integers32(file, "masked_lm_ids", rows, room, batch->masked_ids, error));
    TT_TRY(write_integers32(file, "next_sentence_labels", rows, 0, batch->labels, error));
    TT_TRY(write_logits(file, "masked_lm_logits", result->masked_count, result->vocabulary,
                        result->masked_lm_logits, error));
    TT_TRY(write_logits(file, "seq_relationship_logits", rows, result->classes, result->logits,
                        error));
    TT_TRY(write_number(file, "masked_lm_loss", result->masked_lm_loss, error));
    TT_TRY(write_number(file, "next_sentence_loss", result->next_sentence_loss, error));
    TT_TRY(write_number(file, "loss", result->loss, error));
    return write_parameters(file, model->parameters, error);
}

static tt_status write_bert(const tt_reference_file *file, tt_error *error)
{
    tt_random random;
    tt_random_start(&random, 4, 0);
    tt_double_tensors parameters = {0};
    tt_double_batch batch = {.batch = 4, .sequence = 19, .max_predictions = BERT_PREDICTIONS};
    tt_double_model model = {.parameters = &parameters, .heads = BERT_HEADS, .epsilon = 1e-12};
    tt_double_result result;
    add_bert(&parameters, &random);
    make_batch(&random, &batch, BERT_VOCABULARY, 2);
    make_masked(&random, &batch);
    tt_double_model_bert(&model, &batch, &result);
    tt_status status = write_bert_results(file, &model, &batch, &result, error);
    tt_double_result_free(&result);
    tt_double_batch_free(&batch);
    tt_double_tensors_free(&parameters);
    return status;
}

tt_status tt_own_reference_write(const char *folder, tt_error *error)
{
    tt_status (*const writers[])(const tt_reference_file *file, tt_error *error) = {
        write_linear, write_embedding, write_six_encoder_wide, write_six_encoder_thin, write_bert};
    for (int i = 0; i < TT_OWN_REFERENCE_FILES; i++) {
        char path[1024];
        tt_reference_file file;
        snprintf(path, sizeof(path), "%s/%s", folder, tt_own_reference_names[i]);
        TT_TRY(tt_reference_create(path, &file, error));
        tt_status status = writers[i](&file, error);
        if (status != TT_OK) {
            tt_reference_close(&file);
            return status;
        }
        TT_TRY(tt_reference_finish(&file, error));
    }
    return TT_OK;
}

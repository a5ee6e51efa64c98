#include "models/positions.h"

#include "core/tensor_train_svd.h"
#include "models/encoder_block.h"

#include <math.h>
#include <stdlib.h>

enum { WAVES = 8, WAVE_COLUMNS = 2 * WAVES, NEIGHBOUR_HEADS = 4 };

/* Radians a token. Chosen so that the sum of cos(angle * distance) over the waves, 8 at distance 0,
 * stays below 3.2 at every other distance up to 127 (best of 60,000 random sets). */
static const double wave_angles[WAVES] = {0.1979, 1.1172, 1.2586, 1.3448,
                                          1.9241, 2.0862, 2.5389, 2.9698};
static const int head_offsets[NEIGHBOUR_HEADS] = {1, -1, 2, -2};
static const double position_share = 0.2; /* of the squared norm of an embedding */
/* Score of the right neighbour before the softmax, others being at most 0.4 of it: enough to
 * outweigh a hundred of them, and not so much that the softmax is saturated. */
static const double neighbour_score = 8.0;

/* --- tables ---------------------------------------------------------------------------------- */

typedef double (*table_entry)(int64_t row, int64_t column, const tt_configuration *configuration);

static double sinusoidal(int64_t position, int64_t column, const tt_configuration *configuration)
{
    double part = (double)(column - column % 2) / (double)configuration->hidden_size;
    double angle = (double)position * pow((double)configuration->max_positions, -part);
    return sqrt(0.5) * configuration->initializer_range *
           (column % 2 == 0 ? sin(angle) : cos(angle));
}

/* Of a wave, when words have the initializer's deviation in all other columns. */
static double wave_amplitude(const tt_configuration *configuration)
{
    double words = (double)(configuration->hidden_size - WAVE_COLUMNS) *
                   configuration->initializer_range * configuration->initializer_range;
    return sqrt(position_share / (1.0 - position_share) * words / WAVES);
}

static double own_columns(int64_t position, int64_t column, const tt_configuration *configuration)
{
    if (column >= WAVE_COLUMNS) {
        return 0.0;
    }
    double angle = (double)position * wave_angles[column / 2];
    return wave_amplitude(configuration) * (column % 2 == 0 ? sin(angle) : cos(angle));
}

static tt_status fill_positions(const tt_encoder *encoder, table_entry entry, tt_error *error)
{
    const tt_configuration *configuration = &encoder->configuration;
    int64_t hidden = configuration->hidden_size, count = configuration->max_positions * hidden;
    float *values = malloc(tt_floats(count));
    if (!values) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for position embeddings");
    }
    for (int64_t i = 0; i < count; i++) {
        values[i] = (float)entry(i / hidden, i % hidden, configuration);
    }
    encoder->device->copy_in(encoder->device,
                             tt_parameters_value(encoder->parameters, encoder->position), values,
                             tt_floats(count));
    free(values);
    return TT_OK;
}

/* Takes the positions' columns out of the word table. */
static tt_status clear_word_columns(const tt_encoder *encoder, tt_error *error)
{
    int64_t rows = encoder->configuration.vocabulary_size;
    int64_t hidden = encoder->configuration.hidden_size;
    tt_device *device = encoder->device;
    float *table = tt_parameters_value(encoder->parameters, encoder->words.weight);
    float *values = malloc(tt_floats(rows * hidden));
    if (!values) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for word embeddings");
    }
    device->copy_out(device, values, table, tt_floats(rows * hidden));
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < WAVE_COLUMNS; column++) {
            values[row * hidden + column] = 0.0f;
        }
    }
    device->copy_in(device, table, values, tt_floats(rows * hidden));
    free(values);
    return TT_OK;
}

tt_status tt_positions_initialize(tt_encoder *encoder, uint64_t seed, tt_error *error)
{
    float deviation = encoder->configuration.initializer_range;
    tt_word_table_initialize(&encoder->words, deviation, seed);
    tt_parameters_fill(encoder->parameters, encoder->segment, 0.0f);
    switch (encoder->configuration.position_initializer) {
    case TT_POSITIONS_NORMAL:
        tt_parameters_fill_normal(encoder->parameters, encoder->position, deviation, seed);
        return TT_OK;
    case TT_POSITIONS_SINUSOIDAL:
        return fill_positions(encoder, sinusoidal, error);
    case TT_POSITIONS_NEIGHBOURS:
        TT_TRY(clear_word_columns(encoder, error));
        return fill_positions(encoder, own_columns, error);
    }
    return TT_OK;
}

/* --- attention ------------------------------------------------------------------------------- */

/* A wave after the norm, which brings the whole row to one a column. */
static double normalized_amplitude(const tt_configuration *configuration)
{
    return sqrt(position_share * (double)configuration->hidden_size / WAVES);
}

/* [hidden, hidden], inputs by outputs: each head's first columns read the waves, turned by `offset`
 * tokens, so that query times key is `neighbour_score` where the key stands `offset` on. */
static double *wave_reader(const tt_configuration *configuration, bool turned, tt_error *error)
{
    int64_t hidden = configuration->hidden_size, width = hidden / configuration->heads;
    double *matrix = calloc((size_t)(hidden * hidden), sizeof *matrix);
    if (!matrix) {
        tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the first values of attention");
        return NULL;
    }
    double amplitude = normalized_amplitude(configuration);
    double scale = sqrt(neighbour_score * sqrt((double)width) / (WAVES * amplitude * amplitude));
    for (int64_t head = 0; head < configuration->heads && head < NEIGHBOUR_HEADS; head++) {
        for (int64_t wave = 0; wave < WAVES; wave++) {
            double angle = turned ? wave_angles[wave] * head_offsets[head] : 0.0;
            double *sine = matrix + 2 * wave * hidden + head * width + 2 * wave;
            double *cosine = sine + hidden;
            sine[0] = cosine[1] = scale * cos(angle);
            cosine[0] = scale * sin(angle);
            sine[1] = -cosine[0];
        }
    }
    return matrix;
}

tt_status tt_positions_initialize_attention(tt_encoder *encoder, tt_error *error)
{
    const tt_configuration *configuration = &encoder->configuration;
    if (configuration->position_initializer != TT_POSITIONS_NEIGHBOURS) {
        return TT_OK;
    }
    const tt_linear *maps[] = {&encoder->blocks[0].query, &encoder->blocks[0].key};
    for (int i = 0; i < 2; i++) {
        double *matrix = wave_reader(configuration, i == 0, error);
        if (!matrix) {
            return TT_OUT_OF_MEMORY;
        }
        tt_status status = tt_linear_initialize_around(maps[i], matrix, error);
        free(matrix);
        TT_TRY(status);
    }
    return TT_OK;
}

tt_status tt_positions_check(const tt_configuration *configuration, tt_error *error)
{
    int64_t width = configuration->hidden_size / configuration->heads;
    if (configuration->position_initializer == TT_POSITIONS_NEIGHBOURS &&
        (width < WAVE_COLUMNS || configuration->hidden_size < (int64_t)2 * WAVE_COLUMNS)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "model.position_initializer: neighbours needs heads of at least %d "
                            "columns and a hidden_size of at least %d; found %lld and %lld",
                            WAVE_COLUMNS, 2 * WAVE_COLUMNS, (long long)width,
                            (long long)configuration->hidden_size);
    }
    if (configuration->position_initializer == TT_POSITIONS_NEIGHBOURS &&
        configuration->embedding.form != TT_DENSE) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "model.position_initializer: neighbours needs columns of the word "
                            "embeddings for itself: expected a dense tensor_train.embedding");
    }
    return TT_OK;
}

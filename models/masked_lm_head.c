#include "models/masked_lm_head.h"

#include <string.h>

/* About this many bytes of logits at a time; a chunk never has fewer rows than this, since each
 * chunk passes once over the whole gradient of the embeddings. A GPU needs large products to be
 * busy, and has no cache that a chunk would fit into. By slices, some rows more cost more memory
 * and gain no time. */
enum {
    CHUNK_BYTES = 48 << 20,
    CHUNK_BYTES_GPU = 256 << 20,
    CHUNK_ROWS = 128,
    CHUNK_ROWS_BY_SLICES = 64,
    ROW_ALIGNMENT = 16
};

tt_status tt_masked_lm_head_create(tt_masked_lm_head *head, const tt_encoder *encoder,
                                   tt_error *error)
{
    const tt_configuration *configuration = &encoder->configuration;
    *head = (tt_masked_lm_head){.encoder = encoder};
    tt_arena_init(&head->arena, encoder->device);
    TT_TRY(tt_linear_add(&head->transform, "cls.predictions.transform.dense",
                         configuration->hidden_size, configuration->hidden_size,
                         &configuration->maps[TT_MAP_TRANSFORM], NULL, encoder->parameters,
                         encoder->trains, error));
    TT_TRY(tt_norm_add(&head->norm, "cls.predictions.transform.LayerNorm",
                       configuration->hidden_size, encoder->parameters, error));
    if (configuration->embedding.untied) {
        int64_t shape[] = {configuration->vocabulary_size, configuration->hidden_size};
        TT_TRY(tt_parameters_add(encoder->parameters, "cls.predictions.decoder.weight",
                                 TT_GROUP_DENSE, true, 2, shape, &head->decoder, error));
    }
    return tt_parameters_add(encoder->parameters, "cls.predictions.bias", TT_GROUP_DENSE, false, 1,
                             &configuration->vocabulary_size, &head->bias, error);
}

void tt_masked_lm_head_initialize(tt_masked_lm_head *head, uint64_t seed)
{
    const tt_encoder *encoder = head->encoder;
    tt_linear_initialize(&head->transform,
                         tt_configuration_deviation(&encoder->configuration, &head->transform),
                         seed);
    tt_norm_initialize(&head->norm, encoder->parameters);
    tt_parameters_fill(encoder->parameters, head->bias, 0.0f);
    if (encoder->configuration.embedding.untied) {
        tt_parameters_fill_normal(encoder->parameters, head->decoder,
                                  encoder->configuration.initializer_range, seed);
    }
}

/* Rows of logits begin where vector loads and tensor cores want them, whatever the vocabulary. */
static int64_t logits_stride(const tt_masked_lm_head *head)
{
    int64_t width = head->encoder->words.by_slices ? tt_word_decoder_width(&head->encoder->words)
                                                   : head->encoder->configuration.vocabulary_size;
    return (width + ROW_ALIGNMENT - 1) / ROW_ALIGNMENT * ROW_ALIGNMENT;
}

static int64_t chunk_rows(const tt_masked_lm_head *head, int64_t count)
{
    const tt_device *device = head->encoder->device;
    int64_t bytes = device->captures ? CHUNK_BYTES_GPU : CHUNK_BYTES;
    int64_t rows = bytes / (int64_t)tt_type_size(device->compute) /
                   head->encoder->configuration.vocabulary_size;
    rows = rows < CHUNK_ROWS ? CHUNK_ROWS : rows;
    rows = head->encoder->words.by_slices ? CHUNK_ROWS_BY_SLICES : rows;
    return rows < count ? rows : count;
}

size_t tt_masked_lm_head_scratch_bytes(const tt_masked_lm_head *head, int64_t count)
{
    return tt_type_bytes(head->encoder->device->compute,
                         chunk_rows(head, count) * logits_stride(head));
}

tt_status tt_masked_lm_head_plan(tt_masked_lm_head *head, int64_t count, tt_error *error)
{
    int64_t hidden = head->encoder->configuration.hidden_size;
    const tt_device *device = head->encoder->device;
    head->chunk = chunk_rows(head, count);
    tt_arena *arena = &head->arena;
    tt_arena_free(arena);
    size_t *wide[] = {&head->gathered, &head->inner, &head->activation, &head->normalized,
                      &head->d_output};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        *wide[i] = tt_arena_reserve(arena, tt_type_bytes(device->compute, count * hidden));
    }
    size_t thin = tt_type_bytes(device->compute, count * head->transform.rank);
    head->u = tt_arena_reserve(arena, thin);
    head->d_u = tt_arena_reserve(arena, thin);
    head->deviation = tt_arena_reserve(arena, tt_floats(count));
    if (head->encoder->words.by_slices) {
        TT_TRY(tt_word_decoder_plan(&head->by_slices, &head->encoder->words, arena, head->chunk,
                                    error));
    }
    return tt_arena_allocate(arena, "the masked-language-model head", error);
}

void tt_masked_lm_head_free(tt_masked_lm_head *head)
{
    tt_arena_free(&head->arena);
    tt_word_decoder_free(&head->by_slices);
}

size_t tt_masked_lm_head_bytes(const tt_masked_lm_head *head)
{
    return head->arena.capacity;
}

static tt_matrix view(const tt_masked_lm_head *head, size_t offset, int64_t rows, int64_t columns)
{
    return tt_matrix_dense(tt_arena_at(&head->arena, offset), rows, columns,
                           head->encoder->device->compute);
}

static tt_matrix logits_of(const tt_masked_lm_head *head, int64_t rows)
{
    int64_t vocabulary = head->encoder->configuration.vocabulary_size;
    tt_matrix logits = tt_matrix_dense(tt_encoder_scratch(head->encoder), rows, vocabulary,
                                       head->encoder->device->compute);
    logits.stride = logits_stride(head);
    return logits;
}

static tt_residual_norm norm_of(const tt_masked_lm_head *head, int64_t rows)
{
    const tt_configuration *configuration = &head->encoder->configuration;
    tt_norm_state state = {.normalized =
                               view(head, head->normalized, rows, configuration->hidden_size),
                           .inverse_deviation = tt_arena_at(&head->arena, head->deviation)};
    return tt_norm_operation(&head->norm, head->encoder->parameters,
                             configuration->layer_norm_epsilon, state);
}

/* What turns t into logits, [vocabulary, hidden], and its gradient. */
static tt_matrix decoder_of(const tt_masked_lm_head *head)
{
    const tt_encoder *encoder = head->encoder;
    return encoder->configuration.embedding.untied
               ? tt_parameters_weight(encoder->parameters, head->decoder)
               : tt_word_table_weight(&encoder->words);
}

static tt_matrix decoder_gradient(const tt_masked_lm_head *head)
{
    const tt_encoder *encoder = head->encoder;
    const tt_configuration *configuration = &encoder->configuration;
    return configuration->embedding.untied
               ? tt_matrix_f32(tt_parameters_gradient(encoder->parameters, head->decoder),
                               configuration->vocabulary_size, configuration->hidden_size)
               : tt_word_table_gradient(&encoder->words);
}

static void clear(tt_device *device, tt_matrix matrix)
{
    device->zero(device, matrix.data, tt_type_bytes(matrix.type, matrix.rows * matrix.stride));
}

/* Whether the head multiplies with a table that has lost its ranks. */
static bool decoder_is_removed(const tt_masked_lm_head *head)
{
    const tt_encoder *encoder = head->encoder;
    return !encoder->configuration.embedding.untied && tt_word_table_is_removed(&encoder->words);
}

static void decode(tt_masked_lm_head *head, tt_matrix output, tt_matrix logits)
{
    if (decoder_is_removed(head)) {
        clear(head->encoder->device, logits);
    } else if (head->encoder->words.by_slices) {
        tt_word_decoder_forward(&head->by_slices, output, logits);
    } else {
        tt_linear_multiply(head->encoder->device, false, true, output, decoder_of(head), 0.0f,
                           logits);
    }
}

static void decode_backward(tt_masked_lm_head *head, tt_matrix output, tt_matrix logits,
                            tt_matrix d_output)
{
    tt_device *device = head->encoder->device;
    if (decoder_is_removed(head)) {
        clear(device, d_output);
    } else if (head->encoder->words.by_slices) {
        tt_word_decoder_backward(&head->by_slices, output, logits, d_output);
    } else {
        tt_linear_multiply(device, true, false, logits, output, 1.0f, decoder_gradient(head));
        tt_linear_multiply(device, false, false, logits, decoder_of(head), 0.0f, d_output);
    }
}

/* Rows [first, first + output.rows) of the masked positions, from t to loss and back to d t. */
static void run_chunk(tt_masked_lm_head *head, const tt_masked_lm_inputs *inputs, int64_t first,
                      tt_matrix output, tt_matrix d_output)
{
    const tt_encoder *encoder = head->encoder;
    tt_device *device = encoder->device;
    tt_parameters *parameters = encoder->parameters;
    tt_matrix logits = logits_of(head, output.rows);
    decode(head, output, logits);
    tt_cross_entropy loss = {.logits = logits,
                             .bias = tt_parameters_value(parameters, head->bias),
                             .bias_gradient = tt_parameters_gradient(parameters, head->bias),
                             .labels = inputs->labels + first,
                             .gradient_scale = d_output.data ? inputs->scale : NULL,
                             .loss_sum = inputs->loss_sum,
                             .correct_sum = inputs->correct_sum};
    device->ops->cross_entropy(device, &loss);
    if (d_output.data) {
        decode_backward(head, output, logits, d_output);
    }
}

static void run_chunks(tt_masked_lm_head *head, const tt_masked_lm_inputs *inputs, tt_matrix output,
                       tt_matrix d_output)
{
    for (int64_t first = 0; first < inputs->count; first += head->chunk) {
        int64_t rows = inputs->count - first < head->chunk ? inputs->count - first : head->chunk;
        run_chunk(head, inputs, first, tt_matrix_rows(output, first, rows),
                  d_output.data ? tt_matrix_rows(d_output, first, rows) : d_output);
    }
}

static void transform_backward(tt_masked_lm_head *head, const tt_masked_lm_inputs *inputs,
                               tt_matrix d_output, tt_matrix d_hidden)
{
    tt_device *device = head->encoder->device;
    int64_t rows = inputs->count, hidden = d_output.columns, rank = head->transform.rank;
    tt_residual_norm norm = norm_of(head, rows);
    tt_matrix inner = view(head, head->inner, rows, hidden);
    tt_matrix gathered = view(head, head->gathered, rows, hidden);
    device->ops->residual_norm_backward(device, &norm, d_output, d_output, d_output);
    device->ops->gelu_backward(device, head->encoder->configuration.gelu, inner, d_output, d_output,
                               (tt_matrix){0}, tt_linear_bias_gradient(&head->transform));
    tt_matrix d_gathered = view(head, head->activation, rows, hidden);
    tt_linear_backward(&head->transform, gathered, view(head, head->u, rows, rank), d_output,
                       view(head, head->d_u, rows, rank), 0.0f, d_gathered);
    device->ops->scatter_rows(device, d_gathered, inputs->rows, d_hidden);
}

void tt_masked_lm_head_run(tt_masked_lm_head *head, const tt_masked_lm_inputs *inputs,
                           tt_matrix hidden, tt_matrix d_hidden)
{
    if (inputs->count == 0) {
        return;
    }
    tt_device *device = head->encoder->device;
    int64_t rows = inputs->count;
    tt_matrix gathered = view(head, head->gathered, rows, hidden.columns);
    tt_matrix inner = view(head, head->inner, rows, hidden.columns);
    tt_matrix output = view(head, head->activation, rows, hidden.columns);
    tt_matrix d_output =
        d_hidden.data ? view(head, head->d_output, rows, hidden.columns) : d_hidden;
    tt_residual_norm norm = norm_of(head, rows);
    device->ops->gather_rows(device, hidden, inputs->rows, gathered);
    tt_linear_forward_gelu(&head->transform, head->encoder->configuration.gelu, gathered,
                           view(head, head->u, rows, head->transform.rank), inner, output);
    device->ops->residual_norm_forward(device, &norm, output, (tt_matrix){0}, output);
    run_chunks(head, inputs, output, d_output);
    if (d_hidden.data) {
        transform_backward(head, inputs, d_output, d_hidden);
    }
}

tt_matrix tt_masked_lm_head_logits(const tt_masked_lm_head *head, const tt_masked_lm_inputs *inputs)
{
    int64_t rows = inputs->count % head->chunk;
    return logits_of(head, rows > 0 ? rows : head->chunk);
}

#include "models/sentence_head.h"

#include <stdlib.h>

tt_status tt_sentence_head_create(tt_sentence_head *head, const tt_encoder *encoder,
                                  const char *classifier, int64_t classes, float dropout,
                                  tt_error *error)
{
    const tt_configuration *configuration = &encoder->configuration;
    int64_t hidden = configuration->hidden_size;
    *head = (tt_sentence_head){.classes = classes,
                               .dropout = dropout,
                               .dropout_site = 1 + 3 * (uint32_t)configuration->layers,
                               .encoder = encoder};
    tt_arena_init(&head->arena, encoder->device);
    TT_TRY(tt_linear_add(&head->pooler, "bert.pooler.dense", hidden, hidden,
                         &configuration->maps[TT_MAP_POOLER], NULL, encoder->parameters,
                         encoder->trains, error));
    return tt_linear_add(&head->classifier, classifier, hidden, classes,
                         &(tt_linear_form){.form = TT_DENSE}, NULL, encoder->parameters,
                         encoder->trains, error);
}

void tt_sentence_head_initialize(tt_sentence_head *head, uint64_t seed)
{
    const tt_configuration *configuration = &head->encoder->configuration;
    tt_linear_initialize(&head->pooler, tt_configuration_deviation(configuration, &head->pooler),
                         seed);
    tt_linear_initialize(&head->classifier,
                         tt_configuration_deviation(configuration, &head->classifier), seed);
}

/* The row of each sequence's first token, for sequences of the planned length. */
static tt_status fill_first_rows(tt_sentence_head *head, int64_t batch, tt_error *error)
{
    int32_t *rows = malloc((size_t)batch * sizeof *rows);
    if (!rows) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for %lld row numbers",
                            (long long)batch);
    }
    for (int64_t b = 0; b < batch; b++) {
        rows[b] = (int32_t)(b * head->sequence);
    }
    tt_device *device = head->encoder->device;
    device->copy_in(device, tt_arena_at(&head->arena, head->first_rows), rows,
                    (size_t)batch * sizeof *rows);
    device->synchronize(device);
    free(rows);
    return TT_OK;
}

tt_status tt_sentence_head_plan(tt_sentence_head *head, int64_t batch, int64_t sequence,
                                tt_error *error)
{
    int64_t hidden = head->encoder->configuration.hidden_size;
    tt_arena *arena = &head->arena;
    tt_arena_free(arena);
    head->sequence = sequence;
    head->first_rows = tt_arena_reserve(arena, (size_t)batch * sizeof(int32_t));
    size_t *wide[] = {&head->gathered, &head->pooled, &head->dropped, &head->d_pooled};
    tt_type type = head->encoder->device->compute;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        *wide[i] = tt_arena_reserve(arena, tt_type_bytes(type, batch * hidden));
    }
    head->u = tt_arena_reserve(arena, tt_type_bytes(type, batch * head->pooler.rank));
    head->d_u = tt_arena_reserve(arena, tt_type_bytes(type, batch * head->pooler.rank));
    head->logits = tt_arena_reserve(arena, tt_type_bytes(type, batch * head->classes));
    TT_TRY(tt_arena_allocate(arena, "the sentence head", error));
    return fill_first_rows(head, batch, error);
}

void tt_sentence_head_free(tt_sentence_head *head)
{
    tt_arena_free(&head->arena);
}

size_t tt_sentence_head_bytes(const tt_sentence_head *head)
{
    return head->arena.capacity;
}

static tt_matrix view(const tt_sentence_head *head, size_t offset, int64_t rows, int64_t columns)
{
    return tt_matrix_dense(tt_arena_at(&head->arena, offset), rows, columns,
                           head->encoder->device->compute);
}

static void head_backward(tt_sentence_head *head, const tt_encoder_inputs *batch,
                          const tt_dropout *dropout, tt_matrix d_hidden)
{
    tt_device *device = head->encoder->device;
    const tt_ops *ops = device->ops;
    int64_t rows = batch->batch, hidden = d_hidden.columns, rank = head->pooler.rank;
    tt_matrix logits = view(head, head->logits, rows, head->classes);
    tt_matrix d_pooled = view(head, head->d_pooled, rows, hidden);
    tt_linear_backward(&head->classifier, view(head, head->dropped, rows, hidden), (tt_matrix){0},
                       logits, (tt_matrix){0}, 0.0f, d_pooled);
    ops->dropout(device, d_pooled, dropout);
    ops->tanh_backward(device, view(head, head->pooled, rows, hidden), d_pooled, d_pooled,
                       tt_linear_bias_gradient(&head->pooler));
    tt_matrix d_gathered = view(head, head->dropped, rows, hidden);
    tt_linear_backward(&head->pooler, view(head, head->gathered, rows, hidden),
                       view(head, head->u, rows, rank), d_pooled, view(head, head->d_u, rows, rank),
                       0.0f, d_gathered);
    ops->scatter_rows(device, d_gathered, tt_arena_at(&head->arena, head->first_rows), d_hidden);
}

void tt_sentence_head_run(tt_sentence_head *head, const tt_encoder_inputs *batch,
                          const tt_sentence_inputs *inputs, tt_matrix hidden, tt_matrix d_hidden)
{
    tt_device *device = head->encoder->device;
    const tt_ops *ops = device->ops;
    int64_t rows = batch->batch;
    tt_matrix gathered = view(head, head->gathered, rows, hidden.columns);
    tt_matrix pooled = view(head, head->pooled, rows, hidden.columns);
    tt_matrix dropped = view(head, head->dropped, rows, hidden.columns);
    tt_matrix logits = view(head, head->logits, rows, head->classes);
    tt_dropout dropout = {.probability = head->encoder->training ? head->dropout : 0.0f,
                          .seed = head->encoder->seed,
                          .step = head->encoder->step,
                          .site = head->dropout_site,
                          .first_row = batch->first_sequence};
    ops->gather_rows(device, hidden, tt_arena_at(&head->arena, head->first_rows), gathered);
    tt_linear_forward(&head->pooler, gathered, view(head, head->u, rows, head->pooler.rank),
                      pooled);
    ops->tanh_forward(device, pooled, tt_linear_bias(&head->pooler), pooled);
    ops->copy_group(device, &(tt_copy){.source = pooled, .target = dropped}, 1);
    ops->dropout(device, dropped, &dropout);
    tt_linear_forward(&head->classifier, dropped, (tt_matrix){0}, logits);
    tt_cross_entropy loss = {.logits = logits,
                             .bias = tt_linear_bias(&head->classifier),
                             .bias_gradient = tt_linear_bias_gradient(&head->classifier),
                             .labels = inputs->labels,
                             .gradient_scale = d_hidden.data ? inputs->scale : NULL,
                             .loss_sum = inputs->loss_sum,
                             .correct_sum = inputs->correct_sum};
    ops->cross_entropy(device, &loss);
    if (d_hidden.data) {
        head_backward(head, batch, &dropout, d_hidden);
    }
}

tt_matrix tt_sentence_head_logits(const tt_sentence_head *head, const tt_encoder_inputs *batch)
{
    return view(head, head->logits, batch->batch, head->classes);
}

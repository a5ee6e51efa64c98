#include "models/word_table.h"

static const char name[] = "bert.embeddings.word_embeddings";

tt_status tt_word_table_create(tt_word_table *table, const tt_configuration *configuration,
                               tt_parameters *parameters, tt_train_set *trains, tt_error *error)
{
    *table = (tt_word_table){.form = configuration->embedding.form,
                             .vocabulary = configuration->vocabulary_size,
                             .width = configuration->hidden_size,
                             .parameters = parameters,
                             .weight = -1};
    if (table->form == TT_DENSE) {
        return tt_parameters_add(
            parameters, "bert.embeddings.word_embeddings.weight", TT_GROUP_DENSE, true, 2,
            (int64_t[]){table->vocabulary, table->width}, &table->weight, error);
    }
    return tt_train_matrix_add(&table->matrix, name, &configuration->embedding.shape,
                               table->vocabulary, table->width, trains, error);
}

void tt_word_table_initialize(const tt_word_table *table, float deviation, uint64_t seed)
{
    if (table->form == TT_DENSE) {
        tt_parameters_fill_normal(table->parameters, table->weight, deviation, seed);
    } else {
        tt_train_matrix_initialize(&table->matrix, deviation, seed);
    }
}

/* Multiplications of a row of logits; those by slices are small products, which take longer. */
static bool slices_are_cheaper(const tt_word_table *table)
{
    static const double small_products = 1.25;
    const tt_train_matrix_shape *shape = &table->matrix.shape;
    tt_train_shape train = tt_train_matrix_train(shape);
    double left = 1, left_columns = 1, right = 1, width = (double)table->width;
    for (int k = 0; k < shape->order; k++) {
        bool first = k < train.input_order;
        left *= first ? (double)shape->rows[k] : 1;
        left_columns *= first ? (double)shape->columns[k] : 1;
        right *= first ? 1 : (double)shape->rows[k];
    }
    double rank = (double)train.ranks[train.input_order];
    double slices = (right * width + left * right * left_columns) * rank;
    return small_products * slices < (double)table->vocabulary * width;
}

tt_status tt_word_table_plan(tt_word_table *table, tt_error *error)
{
    if (table->form == TT_DENSE) {
        return TT_OK;
    }
    const tt_device *device = table->parameters->device;
    bool asked =
        table->decoding == TT_DECODING_SLICES ||
        (table->decoding == TT_DECODING_BY_COST && !device->captures && slices_are_cheaper(table));
    bool decodes = table->decodes && !table->matrix.removed;
    table->by_slices = asked && decodes && device->compute == TT_F32;
    return tt_train_matrix_plan(&table->matrix, decodes && !table->by_slices, error);
}

void tt_word_table_free(tt_word_table *table)
{
    tt_train_matrix_free(&table->matrix);
}

int64_t tt_word_table_size(const tt_word_table *table)
{
    return table->form == TT_DENSE ? table->vocabulary * table->width
                                   : tt_train_matrix_size(&table->matrix.shape);
}

size_t tt_word_table_bytes(const tt_word_table *table)
{
    return tt_train_matrix_bytes(&table->matrix);
}

void tt_word_table_reserve(tt_word_table *table, tt_arena *arena, int64_t tokens, size_t spare,
                           size_t spare_bytes)
{
    if (table->form == TT_DENSE) {
        return;
    }
    int64_t rows = tt_train_matrix_room_rows(&table->matrix, tokens);
    size_t bytes = tt_floats(rows * table->width);
    table->arena = arena;
    table->distinct = tt_arena_reserve(arena, (size_t)rows * sizeof(int32_t));
    table->places = tt_arena_reserve(arena, (size_t)tokens * sizeof(int32_t));
    table->rows = bytes <= spare_bytes ? spare : tt_arena_reserve(arena, bytes);
}

size_t tt_word_table_workspace(const tt_word_table *table, int64_t tokens)
{
    return table->form == TT_DENSE ? 0 : tt_train_matrix_workspace(&table->matrix, tokens);
}

bool tt_word_table_is_removed(const tt_word_table *table)
{
    return table->form != TT_DENSE && table->matrix.removed;
}

void tt_word_table_materialise(tt_word_table *table)
{
    if (table->form != TT_DENSE) {
        tt_train_matrix_materialise(&table->matrix);
    }
}

void tt_word_table_contract(tt_word_table *table)
{
    if (table->form != TT_DENSE) {
        tt_train_matrix_contract(&table->matrix);
    }
}

static tt_train_matrix_room room_of(const tt_word_table *table, void *workspace)
{
    return (tt_train_matrix_room){.distinct = tt_arena_at(table->arena, table->distinct),
                                  .places = tt_arena_at(table->arena, table->places),
                                  .rows = tt_arena_at(table->arena, table->rows),
                                  .workspace = workspace};
}

/* The sum is over rows that stand in the room instead of the table, so over their places. */
static void put_rows(const tt_word_table *table, tt_embedding *embedding)
{
    tt_train_matrix_room room = room_of(table, NULL);
    int64_t tokens = embedding->batch * embedding->sequence;
    embedding->ids = room.places;
    embedding->vocabulary = tt_train_matrix_room_rows(&table->matrix, tokens);
    embedding->word = room.rows;
    embedding->word_gradient = room.rows;
}

void tt_word_table_look_up(const tt_word_table *table, tt_embedding *embedding, void *workspace)
{
    if (table->form == TT_DENSE) {
        embedding->word = tt_parameters_value(table->parameters, table->weight);
        return;
    }
    tt_train_matrix_room room = room_of(table, workspace);
    tt_train_matrix_look_up(&table->matrix, embedding->ids, embedding->batch * embedding->sequence,
                            &room);
    put_rows(table, embedding);
}

void tt_word_table_begin_backward(const tt_word_table *table, tt_embedding *embedding)
{
    if (table->form == TT_DENSE) {
        embedding->word_gradient = tt_parameters_gradient(table->parameters, table->weight);
        return;
    }
    put_rows(table, embedding);
    tt_device *device = table->parameters->device;
    device->zero(device, embedding->word_gradient, tt_floats(embedding->vocabulary * table->width));
}

void tt_word_table_end_backward(const tt_word_table *table, int64_t tokens, void *workspace)
{
    if (table->form != TT_DENSE) {
        tt_train_matrix_room room = room_of(table, workspace);
        tt_train_matrix_look_up_backward(&table->matrix, tokens, &room);
    }
}

tt_matrix tt_word_table_weight(const tt_word_table *table)
{
    return table->form == TT_DENSE ? tt_parameters_weight(table->parameters, table->weight)
                                   : tt_train_matrix_table(&table->matrix);
}

tt_matrix tt_word_table_gradient(const tt_word_table *table)
{
    if (table->form != TT_DENSE) {
        return tt_train_matrix_table_gradient(&table->matrix);
    }
    return tt_matrix_f32(tt_parameters_gradient(table->parameters, table->weight),
                         table->vocabulary, table->width);
}

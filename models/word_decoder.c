#include "models/word_decoder.h"

#include <assert.h>
#include <stdlib.h>

enum {
    LANES = 8 /* sums of P's gradient side by side, so that products have something to share */
};

static const tt_slice_products *slices_of(const tt_word_decoder *decoder)
{
    return &decoder->words->matrix.products;
}

static int64_t slices_with_words(const tt_word_table *words)
{
    int64_t right = words->matrix.products.right_slices;
    return (words->vocabulary + right - 1) / right;
}

int64_t tt_word_decoder_width(const tt_word_table *words)
{
    return slices_with_words(words) * words->matrix.products.right_slices;
}

/* Numbers of a row of x times one slice of Q, and of a slice of P. */
static int64_t chain_size(const tt_word_decoder *decoder)
{
    return slices_of(decoder)->left_columns * slices_of(decoder)->rank;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

tt_status tt_word_decoder_plan(tt_word_decoder *decoder, const tt_word_table *words,
                               tt_arena *arena, int64_t rows, tt_error *error)
{
    tt_word_decoder_free(decoder);
    *decoder =
        (tt_word_decoder){.words = words, .arena = arena, .left_slices = slices_with_words(words)};
    int64_t right = slices_of(decoder)->right_slices, chain = chain_size(decoder);
    decoder->chains = tt_arena_reserve(arena, tt_floats(right * rows * chain));
    decoder->d_chains = tt_arena_reserve(arena, tt_floats(right * rows * chain));
    decoder->partials = tt_arena_reserve(arena, tt_floats(LANES * decoder->left_slices * chain));
    decoder->zeros = tt_arena_reserve(arena, tt_floats(right));
    size_t products = (size_t)larger(larger(right, rows), LANES);
    decoder->products = calloc(products, sizeof *decoder->products);
    return decoder->products ? TT_OK
                             : tt_error_set(error, TT_OUT_OF_MEMORY,
                                            "no memory for %zu products of word slices", products);
}

void tt_word_decoder_free(tt_word_decoder *decoder)
{
    free(decoder->products);
    decoder->products = NULL;
}

/* --- views ------------------------------------------------------------------------------------ */

/* x or dx as rows of h_R numbers. */
static tt_matrix halves(const tt_word_decoder *decoder, tt_matrix x)
{
    const tt_slice_products *slices = slices_of(decoder);
    assert(x.type == TT_F32 && x.stride == x.columns);
    return tt_matrix_f32(x.data, x.rows * slices->left_columns, slices->right_columns);
}

static tt_matrix right_slice(float *slices, const tt_slice_products *of, int64_t slice)
{
    return tt_matrix_f32(slices + slice * of->rank * of->right_columns, of->rank,
                         of->right_columns);
}

/* Of all rows with slice `slice` of Q: [rows h_L, r]. */
static tt_matrix chain_of_slice(const tt_word_decoder *decoder, size_t offset, int64_t rows,
                                int64_t slice)
{
    float *chains = tt_arena_at(decoder->arena, offset);
    return tt_matrix_f32(chains + slice * rows * chain_size(decoder),
                         rows * slices_of(decoder)->left_columns, slices_of(decoder)->rank);
}

/* Of one row with all slices of Q: [right, h_L r]. */
static tt_matrix chain_of_row(const tt_word_decoder *decoder, size_t offset, int64_t rows,
                              int64_t row)
{
    float *chains = tt_arena_at(decoder->arena, offset);
    int64_t chain = chain_size(decoder);
    tt_matrix view = tt_matrix_f32(chains + row * chain, slices_of(decoder)->right_slices, chain);
    view.stride = rows * chain;
    return view;
}

/* A row of logits as [left, right]. */
static tt_matrix logits_of_row(const tt_word_decoder *decoder, tt_matrix logits, int64_t row)
{
    assert(logits.stride >= tt_word_decoder_width(decoder->words));
    return tt_matrix_f32(tt_matrix_at(logits, row, 0), decoder->left_slices,
                         slices_of(decoder)->right_slices);
}

/* P, or sums for its gradient: [left, h_L r]. */
static tt_matrix left_slices(const tt_word_decoder *decoder, float *slices)
{
    return tt_matrix_f32(slices, decoder->left_slices, chain_size(decoder));
}

/* --- running ---------------------------------------------------------------------------------- */

static void multiply_all(const tt_word_decoder *decoder, int64_t count)
{
    tt_device *device = decoder->words->parameters->device;
    device->ops->multiply_group(device, decoder->products, (int)count);
}

void tt_word_decoder_forward(const tt_word_decoder *decoder, tt_matrix x, tt_matrix logits)
{
    const tt_slice_products *slices = slices_of(decoder);
    for (int64_t s = 0; s < slices->right_slices; s++) {
        decoder->products[s] =
            (tt_product){.transpose_b = true,
                         .alpha = 1.0f,
                         .a = halves(decoder, x),
                         .b = right_slice(decoder->words->matrix.right, slices, s),
                         .c = chain_of_slice(decoder, decoder->chains, x.rows, s)};
    }
    multiply_all(decoder, slices->right_slices);
    for (int64_t i = 0; i < x.rows; i++) {
        decoder->products[i] = (tt_product){.transpose_b = true,
                                            .alpha = 1.0f,
                                            .a = left_slices(decoder, decoder->words->matrix.left),
                                            .b = chain_of_row(decoder, decoder->chains, x.rows, i),
                                            .c = logits_of_row(decoder, logits, i)};
    }
    multiply_all(decoder, x.rows);
}

static void clear_rest(const tt_word_decoder *decoder, tt_matrix d_logits)
{
    tt_device *device = decoder->words->parameters->device;
    int64_t words = decoder->words->vocabulary;
    int64_t rest = tt_word_decoder_width(decoder->words) - words;
    tt_matrix zeros = tt_matrix_f32(tt_arena_at(decoder->arena, decoder->zeros), 1, rest);
    zeros.rows = d_logits.rows;
    zeros.stride = 0;
    tt_matrix target = d_logits;
    target.data = tt_matrix_at(d_logits, 0, words);
    target.columns = rest;
    if (rest > 0) {
        device->ops->copy_group(device, &(tt_copy){.source = zeros, .target = target}, 1);
    }
}

/* dP: row i adds to sum i % LANES, and the sums are added in their order. */
static void left_backward(const tt_word_decoder *decoder, tt_matrix d_logits)
{
    tt_device *device = decoder->words->parameters->device;
    float *partials = tt_arena_at(decoder->arena, decoder->partials);
    int64_t size = decoder->left_slices * chain_size(decoder);
    device->zero(device, partials, tt_floats(LANES * size));
    for (int64_t first = 0; first < d_logits.rows; first += LANES) {
        int64_t left = d_logits.rows - first, count = left < LANES ? left : LANES;
        for (int64_t i = 0; i < count; i++) {
            decoder->products[i] =
                (tt_product){.alpha = 1.0f,
                             .beta = 1.0f,
                             .a = logits_of_row(decoder, d_logits, first + i),
                             .b = chain_of_row(decoder, decoder->chains, d_logits.rows, first + i),
                             .c = left_slices(decoder, partials + i * size)};
        }
        multiply_all(decoder, count);
    }
    device->ops->add_bias_backward(device, tt_matrix_f32(partials, LANES, size),
                                   slices_of(decoder)->left_gradient);
}

/* dQ of each slice, and dx as a sum over slices. */
static void right_backward(const tt_word_decoder *decoder, tt_matrix x, tt_matrix dx)
{
    tt_device *device = decoder->words->parameters->device;
    const tt_slice_products *slices = slices_of(decoder);
    for (int64_t s = 0; s < slices->right_slices; s++) {
        decoder->products[s] =
            (tt_product){.transpose_a = true,
                         .alpha = 1.0f,
                         .beta = 1.0f,
                         .a = chain_of_slice(decoder, decoder->d_chains, x.rows, s),
                         .b = halves(decoder, x),
                         .c = right_slice(slices->right_gradient, slices, s)};
    }
    multiply_all(decoder, slices->right_slices);
    for (int64_t s = 0; s < slices->right_slices; s++) {
        tt_product product = {.alpha = 1.0f,
                              .beta = s > 0 ? 1.0f : 0.0f,
                              .a = chain_of_slice(decoder, decoder->d_chains, x.rows, s),
                              .b = right_slice(decoder->words->matrix.right, slices, s),
                              .c = halves(decoder, dx)};
        device->ops->multiply(device, &product);
    }
}

void tt_word_decoder_backward(const tt_word_decoder *decoder, tt_matrix x, tt_matrix d_logits,
                              tt_matrix dx)
{
    clear_rest(decoder, d_logits);
    for (int64_t i = 0; i < x.rows; i++) {
        decoder->products[i] =
            (tt_product){.transpose_a = true,
                         .alpha = 1.0f,
                         .a = logits_of_row(decoder, d_logits, i),
                         .b = left_slices(decoder, decoder->words->matrix.left),
                         .c = chain_of_row(decoder, decoder->d_chains, x.rows, i)};
    }
    multiply_all(decoder, x.rows);
    left_backward(decoder, d_logits);
    right_backward(decoder, x, dx);
}

/* The feed-forward block between two tensor trains, by tiles of tokens and of inner units: the wide
 * activation exists only in a tile that stays in cache, forward and backward. */
#include "core/cpu/cpu_ops.h"
#include "core/cpu/gelu.h"
#include "core/cpu/matrix_product.h"

#include <omp.h>
#include <string.h>

enum { TOKEN_TILE = 192, UNIT_TILE = 384 };

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Room of one thread: two tiles, the column sums of a tile, and partial dU1 of all tokens. */
static int64_t tile_room(void)
{
    return 2 * TOKEN_TILE * UNIT_TILE + UNIT_TILE;
}

static int64_t thread_room(const tt_thin_feed_forward *block)
{
    int64_t partial = (block->u1.rows * block->u1.columns + 15) / 16 * 16;
    return tile_room() + partial;
}

size_t tt_cpu_thin_feed_forward_workspace(tt_device *device, const tt_thin_feed_forward *block)
{
    return (size_t)(device->threads * thread_room(block)) * sizeof(float);
}

/* tile [tokens, units] = U1 B1, without bias. */
static void expand(const tt_thin_feed_forward *block, int64_t token, int64_t tokens, int64_t unit,
                   int64_t units, float *tile)
{
    tt_matrix_product(false, false, tokens, units, block->u1.columns, 1.0f,
                      tt_cpu_row(block->u1, token), block->u1.stride,
                      (const float *)block->b1.data + unit, block->b1.stride, 0.0f, tile, units);
}

static void gelu_row(tt_gelu kind, float *row, const float *bias, int64_t units)
{
    float unused;
    if (kind == TT_GELU_ERF) { // NOLINT(bugprone-branch-clone): the functions differ
#pragma omp simd private(unused)
        for (int64_t j = 0; j < units; j++) {
            row[j] = tt_gelu_erf(row[j] + bias[j], &unused);
        }
    } else {
#pragma omp simd private(unused)
        for (int64_t j = 0; j < units; j++) {
            row[j] = tt_gelu_tanh(row[j] + bias[j], &unused);
        }
    }
}

void tt_cpu_thin_feed_forward_forward(tt_device *device, const tt_thin_feed_forward *block,
                                      tt_matrix u2)
{
    int64_t tokens = block->u1.rows, inner = block->b1.columns;
    int64_t tiles = (tokens + TOKEN_TILE - 1) / TOKEN_TILE;
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t t = 0; t < tiles; t++) {
        float *tile = (float *)block->workspace + omp_get_thread_num() * thread_room(block);
        int64_t token = t * TOKEN_TILE, count = smaller(TOKEN_TILE, tokens - token);
        for (int64_t unit = 0; unit < inner; unit += UNIT_TILE) {
            int64_t units = smaller(UNIT_TILE, inner - unit);
            expand(block, token, count, unit, units, tile);
            for (int64_t i = 0; i < count; i++) {
                gelu_row(block->gelu, tile + i * units, block->bias + unit, units);
            }
            tt_matrix_product(false, false, count, u2.columns, units, 1.0f, tile, units,
                              tt_cpu_row(block->a2, unit), block->a2.stride,
                              unit == 0 ? 0.0f : 1.0f, tt_cpu_row(u2, token), u2.stride);
        }
    }
}

/* From pre-activation (without bias) and d_activation: `x` becomes the activation, `d` the gradient
 * of the pre-activation, which is added to `sums`. */
static void gelu_row_backward(tt_gelu kind, float *x, float *d, const float *bias, float *sums,
                              int64_t units)
{
    float derivative;
    if (kind == TT_GELU_ERF) { // NOLINT(bugprone-branch-clone): the functions differ
#pragma omp simd private(derivative)
        for (int64_t j = 0; j < units; j++) {
            x[j] = tt_gelu_erf(x[j] + bias[j], &derivative);
            d[j] *= derivative;
            sums[j] += d[j];
        }
    } else {
#pragma omp simd private(derivative)
        for (int64_t j = 0; j < units; j++) {
            x[j] = tt_gelu_tanh(x[j] + bias[j], &derivative);
            d[j] *= derivative;
            sums[j] += d[j];
        }
    }
}

/* Everything that belongs to inner units [unit, unit + units), which one thread owns. */
static void backward_units(const tt_thin_feed_forward *block, tt_matrix d_u2, int64_t unit,
                           int64_t units, float *room)
{
    float *activation = room, *d_activation = room + (size_t)TOKEN_TILE * UNIT_TILE;
    float *sums = d_activation + (size_t)TOKEN_TILE * UNIT_TILE, *d_u1 = room + tile_room();
    int64_t tokens = block->u1.rows, r1 = block->u1.columns, r2 = d_u2.columns;
    const float *b1 = (const float *)block->b1.data + unit;
    float *d_b1 = (float *)block->b1_gradient.data + unit;
    memset(sums, 0, UNIT_TILE * sizeof(float));
    for (int64_t token = 0; token < tokens; token += TOKEN_TILE) {
        int64_t count = smaller(TOKEN_TILE, tokens - token);
        const float *d_out = tt_cpu_row(d_u2, token), *u1 = tt_cpu_row(block->u1, token);
        expand(block, token, count, unit, units, activation);
        tt_matrix_product(false, true, count, units, r2, 1.0f, d_out, d_u2.stride,
                          tt_cpu_row(block->a2, unit), block->a2.stride, 0.0f, d_activation, units);
        for (int64_t i = 0; i < count; i++) {
            gelu_row_backward(block->gelu, activation + i * units, d_activation + i * units,
                              block->bias + unit, sums, units);
        }
        tt_matrix_product(true, false, units, r2, count, 1.0f, activation, units, d_out,
                          d_u2.stride, 1.0f, tt_cpu_row(block->a2_gradient, unit),
                          block->a2_gradient.stride);
        tt_matrix_product(true, false, r1, units, count, 1.0f, u1, block->u1.stride, d_activation,
                          units, 1.0f, d_b1, block->b1_gradient.stride);
        tt_matrix_product(false, true, count, r1, units, 1.0f, d_activation, units, b1,
                          block->b1.stride, 1.0f, d_u1 + token * r1, r1);
    }
    for (int64_t j = 0; j < units; j++) {
        block->bias_gradient[unit + j] += sums[j];
    }
}

void tt_cpu_thin_feed_forward_backward(tt_device *device, const tt_thin_feed_forward *block,
                                       tt_matrix d_u2, tt_matrix d_u1)
{
    int64_t inner = block->b1.columns, tokens = block->u1.rows, r1 = block->u1.columns;
    /* Whole tiles a thread, and smaller tiles rather than idle threads. */
    int64_t share = (inner + device->threads - 1) / device->threads;
    int64_t pieces = (share + UNIT_TILE - 1) / UNIT_TILE;
    int64_t step = ((share + pieces - 1) / pieces + 15) / 16 * 16;
    step = smaller(step, UNIT_TILE);
    int64_t steps = (inner + step - 1) / step;
    float *workspace = block->workspace;
#pragma omp parallel num_threads(device->threads)
    {
        float *room = workspace + omp_get_thread_num() * thread_room(block);
        memset(room + tile_room(), 0, (size_t)(tokens * r1) * sizeof(float));
#pragma omp for schedule(static)
        for (int64_t s = 0; s < steps; s++) {
            backward_units(block, d_u2, s * step, smaller(step, inner - s * step), room);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tokens; i++) {
            float *to = tt_cpu_row(d_u1, i);
            for (int64_t j = 0; j < r1; j++) {
                float sum = 0.0f;
                for (int thread = 0; thread < omp_get_num_threads(); thread++) {
                    sum += workspace[thread * thread_room(block) + tile_room() + i * r1 + j];
                }
                to[j] = sum;
            }
        }
    }
}

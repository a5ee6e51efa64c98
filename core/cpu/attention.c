/* Attention in its two forms. Both come down to heads with operands q, k [sequence, width] and v
 * [sequence, value width]; the dense form projects nothing (q, k, v are columns of wide matrices),
 * the thin form makes q from ranks (U^_q M_h) and shares k = U^_k and v = U^_v among all heads.
 * Scores live in a tile of query rows that stays in cache. */
#include "core/cpu/cpu_ops.h"
#include "core/cpu/dropout.h"
#include "core/cpu/lanes.h"
#include "core/cpu/matrix_product.h"
#include "core/cpu/vector_math.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { QUERY_TILE = 128 };

/* A view in this file: rows of floats. */
typedef struct {
    float *data;
    int64_t stride;
} rows_view;

typedef struct {
    int64_t sequence; /* queries */
    int64_t keys;     /* leading keys to look at: the rest is padding */
    bool has_holes;   /* some of them are masked */
    int64_t width, value_width;
    rows_view q, k, v;
    const uint8_t *mask; /* [sequence] */
    const tt_dropout *dropout;
    int64_t dropout_row; /* of query 0 */
    float *log_sum_exp;  /* [sequence] */
} head_task;

static void look_at_mask(head_task *head)
{
    head->keys = head->sequence;
    while (head->keys > 0 && !head->mask[head->keys - 1]) {
        head->keys--;
    }
    head->has_holes = memchr(head->mask, 0, (size_t)head->keys) != NULL;
}

static int64_t round_up(int64_t count, int64_t step)
{
    return (count + step - 1) / step * step;
}

/* Scores q k^T of query rows [first, first + rows) into `scores` [rows, keys]; masked keys get one
 * whose exponential is exactly 0. */
static void score_tile(const head_task *head, int64_t first, int64_t rows, float *scores)
{
    tt_matrix_product(false, true, rows, head->keys, head->width, 1.0f,
                      head->q.data + first * head->q.stride, head->q.stride, head->k.data,
                      head->k.stride, 0.0f, scores, head->keys);
    if (!head->has_holes) {
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < head->keys; j++) {
            scores[i * head->keys + j] = head->mask[j] ? scores[i * head->keys + j] : -INFINITY;
        }
    }
}

/* Multipliers of a row of probabilities: dropout's, or 1. */
static void load_multipliers(const head_task *head, int64_t query, float *multipliers)
{
    if (head->dropout->probability > 0.0f) {
        tt_dropout_row(head->dropout, head->dropout_row + query, head->keys, multipliers);
        return;
    }
    for (int64_t j = 0; j < head->keys; j++) {
        multipliers[j] = 1.0f;
    }
}

/* scores -> probabilities with dropout, in place; fills log_sum_exp. There is at least one key. */
static void softmax_row(const head_task *head, int64_t query, float *scores, float *multipliers)
{
    int64_t keys = head->keys;
    float largest = tt_row_largest(scores, keys);
#pragma omp simd
    for (int64_t j = 0; j < keys; j++) {
        scores[j] = tt_exp(scores[j] - largest);
    }
    float sum = tt_row_sum(scores, keys);
    head->log_sum_exp[query] = largest + logf(sum);
    float inverse = 1.0f / sum;
    load_multipliers(head, query, multipliers);
#pragma omp simd
    for (int64_t j = 0; j < keys; j++) {
        scores[j] *= inverse * multipliers[j];
    }
}

/* What a sequence of nothing but padding gives. */
static void clear_rows(rows_view view, int64_t rows, int64_t width)
{
    for (int64_t i = 0; i < rows; i++) {
        memset(view.data + i * view.stride, 0, (size_t)width * sizeof(float));
    }
}

/* context = dropout(softmax(q k^T + mask)) v. */
static void forward_head(const head_task *head, rows_view context, float *room)
{
    float *scores = room, *multipliers = room + QUERY_TILE * head->sequence;
    if (head->keys == 0) {
        clear_rows(context, head->sequence, head->value_width);
        return;
    }
    for (int64_t first = 0; first < head->sequence; first += QUERY_TILE) {
        int64_t rows = head->sequence - first < QUERY_TILE ? head->sequence - first : QUERY_TILE;
        score_tile(head, first, rows, scores);
        for (int64_t i = 0; i < rows; i++) {
            softmax_row(head, first + i, scores + i * head->keys, multipliers);
        }
        tt_matrix_product(false, false, rows, head->value_width, head->keys, 1.0f, scores,
                          head->keys, head->v.data, head->v.stride, 0.0f,
                          context.data + first * context.stride, context.stride);
    }
}

/* From scores and d_dropped = d context v^T: `scores` becomes the probabilities after dropout,
 * `d_dropped` the gradient of the scores. */
static void softmax_row_backward(const head_task *head, int64_t query, float *scores,
                                 float *d_dropped, float *multipliers)
{
    int64_t keys = head->keys;
    float log_sum = head->log_sum_exp[query];
    load_multipliers(head, query, multipliers);
#pragma omp simd
    for (int64_t j = 0; j < keys; j++) {
        scores[j] = tt_exp(scores[j] - log_sum);
        d_dropped[j] *= multipliers[j];
    }
    float weighted = tt_row_dot(scores, d_dropped, keys);
#pragma omp simd
    for (int64_t j = 0; j < keys; j++) {
        d_dropped[j] = scores[j] * (d_dropped[j] - weighted);
        scores[j] *= multipliers[j];
    }
}

/* Room for backward_head, which is enough for forward_head too: scores of a tile, their gradients,
 * and one row of dropout multipliers. */
static int64_t tile_room(int64_t sequence)
{
    return 2 * (int64_t)QUERY_TILE * sequence + round_up(sequence, 16);
}

/* Gradients of one head from d_context. dq is overwritten; dk and dv are added to. `context` (data
 * may be NULL) gets the forward result again. */
static void backward_head(const head_task *head, rows_view d_context, rows_view dq, rows_view dk,
                          rows_view dv, rows_view context, float *room)
{
    float *scores = room, *d_scores = room + QUERY_TILE * head->sequence;
    float *multipliers = d_scores + QUERY_TILE * head->sequence;
    int64_t keys = head->keys;
    if (keys == 0) {
        clear_rows(dq, head->sequence, head->width);
        if (context.data) {
            clear_rows(context, head->sequence, head->value_width);
        }
        return;
    }
    for (int64_t first = 0; first < head->sequence; first += QUERY_TILE) {
        int64_t rows = head->sequence - first < QUERY_TILE ? head->sequence - first : QUERY_TILE;
        const float *d_rows = d_context.data + first * d_context.stride;
        score_tile(head, first, rows, scores);
        tt_matrix_product(false, true, rows, keys, head->value_width, 1.0f, d_rows,
                          d_context.stride, head->v.data, head->v.stride, 0.0f, d_scores, keys);
        for (int64_t i = 0; i < rows; i++) {
            softmax_row_backward(head, first + i, scores + i * keys, d_scores + i * keys,
                                 multipliers);
        }
        if (context.data) {
            tt_matrix_product(false, false, rows, head->value_width, keys, 1.0f, scores, keys,
                              head->v.data, head->v.stride, 0.0f,
                              context.data + first * context.stride, context.stride);
        }
        tt_matrix_product(true, false, keys, head->value_width, rows, 1.0f, scores, keys, d_rows,
                          d_context.stride, 1.0f, dv.data, dv.stride);
        tt_matrix_product(false, false, rows, head->width, keys, 1.0f, d_scores, keys, head->k.data,
                          head->k.stride, 0.0f, dq.data + first * dq.stride, dq.stride);
        tt_matrix_product(true, false, keys, head->width, rows, 1.0f, d_scores, keys,
                          head->q.data + first * head->q.stride, head->q.stride, 1.0f, dk.data,
                          dk.stride);
    }
}

/* --- dense form ------------------------------------------------------------------------------ */

/* tile = (rows of x + bias) * scale, contiguous. */
static void load_tile(float *tile, tt_matrix x, int64_t first_row, int64_t rows, int64_t column,
                      int64_t width, const float *bias, float scale)
{
    for (int64_t i = 0; i < rows; i++) {
        const float *from = tt_cpu_row(x, first_row + i) + column;
        float *to = tile + i * width;
        for (int64_t j = 0; j < width; j++) {
            to[j] = (from[j] + (bias ? bias[column + j] : 0.0f)) * scale;
        }
    }
}

static void store_tile(const float *tile, tt_matrix x, int64_t first_row, int64_t rows,
                       int64_t column, int64_t width, float scale)
{
    for (int64_t i = 0; i < rows; i++) {
        float *to = tt_cpu_row(x, first_row + i) + column;
        for (int64_t j = 0; j < width; j++) {
            to[j] = tile[i * width + j] * scale;
        }
    }
}

static int64_t dense_thread_room(const tt_attention *attention)
{
    int64_t width = attention->q.columns / attention->heads;
    return round_up(6 * attention->sequence * width + tile_room(attention->sequence), 16);
}

size_t tt_cpu_attention_workspace(tt_device *device, const tt_attention *attention)
{
    return (size_t)(device->threads * dense_thread_room(attention)) * sizeof(float);
}

/* Sets `head` up for (batch entry, head) with its three operand tiles in `room`; returns what is
 * left of the room. */
static float *load_head(const tt_attention *attention, int64_t b, int64_t h, head_task *head,
                        float *room)
{
    int64_t sequence = attention->sequence, width = attention->q.columns / attention->heads;
    int64_t tile = sequence * width, row = b * sequence, column = h * width;
    float scale = 1.0f / sqrtf((float)width);
    load_tile(room, attention->q, row, sequence, column, width, attention->q_bias, scale);
    load_tile(room + tile, attention->k, row, sequence, column, width, attention->k_bias, 1.0f);
    load_tile(room + 2 * tile, attention->v, row, sequence, column, width, attention->v_bias, 1.0f);
    *head =
        (head_task){.sequence = sequence,
                    .width = width,
                    .value_width = width,
                    .q = {room, width},
                    .k = {room + tile, width},
                    .v = {room + 2 * tile, width},
                    .mask = attention->mask + row,
                    .dropout = &attention->dropout,
                    .dropout_row = (b * attention->heads + h) * sequence,
                    .log_sum_exp = attention->log_sum_exp + (b * attention->heads + h) * sequence};
    look_at_mask(head);
    return room + 3 * tile;
}

void tt_cpu_attention_forward(tt_device *device, const tt_attention *attention, tt_matrix context)
{
    int64_t tasks = attention->batch * attention->heads;
    int64_t width = attention->q.columns / attention->heads;
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t b = task / attention->heads, h = task % attention->heads;
        float *room =
            (float *)attention->workspace + omp_get_thread_num() * dense_thread_room(attention);
        head_task head;
        room = load_head(attention, b, h, &head, room);
        rows_view target = {tt_cpu_row(context, b * attention->sequence) + h * width,
                            context.stride};
        forward_head(&head, target, room);
    }
}

void tt_cpu_attention_backward(tt_device *device, const tt_attention *attention,
                               tt_matrix d_context, tt_matrix dq, tt_matrix dk, tt_matrix dv)
{
    int64_t tasks = attention->batch * attention->heads, sequence = attention->sequence;
    int64_t width = attention->q.columns / attention->heads, tile = sequence * width;
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t b = task / attention->heads, h = task % attention->heads;
        int64_t row = b * sequence, column = h * width;
        float *room =
            (float *)attention->workspace + omp_get_thread_num() * dense_thread_room(attention);
        head_task head;
        float *gradients = load_head(attention, b, h, &head, room);
        memset(gradients, 0, (size_t)(3 * tile) * sizeof(float));
        rows_view d_head = {tt_cpu_row(d_context, row) + column, d_context.stride};
        backward_head(
            &head, d_head, (rows_view){gradients, width}, (rows_view){gradients + tile, width},
            (rows_view){gradients + 2 * tile, width}, (rows_view){NULL, 0}, gradients + 3 * tile);
        store_tile(gradients, dq, row, sequence, column, width, 1.0f / sqrtf((float)width));
        store_tile(gradients + tile, dk, row, sequence, column, width, 1.0f);
        store_tile(gradients + 2 * tile, dv, row, sequence, column, width, 1.0f);
    }
}

/* --- thin form ------------------------------------------------------------------------------- */

/* Widths of the thin operands: ranks with the column of ones. */
typedef struct {
    int64_t q, k, v, o, heads, sequence;
} thin_widths;

static thin_widths widths_of(const tt_thin_attention *attention)
{
    return (thin_widths){attention->rank_q + 1, attention->rank_k + 1, attention->rank_v + 1,
                         attention->rank_o,     attention->heads,      attention->sequence};
}

/* A thread's room: U^ tiles and their gradients, the projected queries and contexts of all heads
 * with their gradients, the scores, and the partial gradients of both maps. */
typedef struct {
    float *u_q, *u_k, *u_v, *d_u_q, *d_u_k, *d_u_v;
    float *queries, *d_queries, *contexts, *d_contexts;
    float *scores;
    float *score_map_gradient, *output_map_gradient;
} thin_room;

static int64_t lay_out_thin_room(thin_widths w, float *memory, thin_room *room)
{
    int64_t used = 0;
    float **pieces[] = {&room->u_q,
                        &room->u_k,
                        &room->u_v,
                        &room->d_u_q,
                        &room->d_u_k,
                        &room->d_u_v,
                        &room->queries,
                        &room->d_queries,
                        &room->contexts,
                        &room->d_contexts,
                        &room->scores,
                        &room->score_map_gradient,
                        &room->output_map_gradient};
    int64_t sizes[] = {
        w.sequence * w.q,           w.sequence * w.k,           w.sequence * w.v,
        w.sequence * w.q,           w.sequence * w.k,           w.sequence * w.v,
        w.sequence * w.heads * w.k, w.sequence * w.heads * w.k, w.sequence * w.heads * w.v,
        w.sequence * w.heads * w.v, tile_room(w.sequence),      w.q * w.heads * w.k,
        w.heads * w.v * w.o};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (memory) {
            *pieces[i] = memory + used;
        }
        used += round_up(sizes[i], 16);
    }
    return used;
}

static void thread_room(const tt_thin_attention *attention, thin_room *room)
{
    thin_widths w = widths_of(attention);
    int64_t size = lay_out_thin_room(w, NULL, room);
    lay_out_thin_room(w, (float *)attention->workspace + omp_get_thread_num() * size, room);
}

size_t tt_cpu_thin_attention_workspace(tt_device *device, const tt_thin_attention *attention)
{
    thin_room room;
    int64_t size = lay_out_thin_room(widths_of(attention), NULL, &room);
    return (size_t)(device->threads * size) * sizeof(float);
}

/* tile = [columns of u, 1]. */
static void load_ranks(float *tile, const tt_thin_attention *attention, int64_t b, int64_t column,
                       int64_t rank)
{
    for (int64_t i = 0; i < attention->sequence; i++) {
        const float *from = tt_cpu_row(attention->u, b * attention->sequence + i) + column;
        float *to = tile + i * (rank + 1);
        for (int64_t j = 0; j < rank; j++) {
            to[j] = from[j];
        }
        to[rank] = 1.0f;
    }
}

static void store_ranks(const float *tile, const tt_thin_attention *attention, tt_matrix d_u,
                        int64_t b, int64_t column, int64_t rank)
{
    for (int64_t i = 0; i < attention->sequence; i++) {
        float *to = tt_cpu_row(d_u, b * attention->sequence + i) + column;
        for (int64_t j = 0; j < rank; j++) {
            to[j] = tile[i * (rank + 1) + j];
        }
    }
}

/* U^ tiles of batch entry b, and the queries of all heads, U^_q M. */
static void load_thin(const tt_thin_attention *attention, int64_t b, thin_room *room)
{
    thin_widths w = widths_of(attention);
    load_ranks(room->u_q, attention, b, 0, attention->rank_q);
    load_ranks(room->u_k, attention, b, attention->rank_q, attention->rank_k);
    load_ranks(room->u_v, attention, b, attention->rank_q + attention->rank_k, attention->rank_v);
    tt_matrix_product(false, false, w.sequence, w.heads * w.k, w.q, 1.0f, room->u_q, w.q,
                      attention->score_map, w.heads * w.k, 0.0f, room->queries, w.heads * w.k);
}

static head_task thin_head(const tt_thin_attention *attention, const thin_room *room, int64_t b,
                           int64_t h)
{
    thin_widths w = widths_of(attention);
    const uint8_t *mask = attention->mask + b * w.sequence;
    head_task head = {.sequence = w.sequence,
                      .width = w.k,
                      .value_width = w.v,
                      .q = {room->queries + h * w.k, w.heads * w.k},
                      .k = {room->u_k, w.k},
                      .v = {room->u_v, w.v},
                      .mask = mask,
                      .dropout = &attention->dropout,
                      .dropout_row = (b * w.heads + h) * w.sequence,
                      .log_sum_exp = attention->log_sum_exp + (b * w.heads + h) * w.sequence};
    look_at_mask(&head);
    return head;
}

void tt_cpu_thin_attention_forward(tt_device *device, const tt_thin_attention *attention,
                                   tt_matrix u_o)
{
    thin_widths w = widths_of(attention);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t b = 0; b < attention->batch; b++) {
        thin_room room;
        thread_room(attention, &room);
        load_thin(attention, b, &room);
        for (int64_t h = 0; h < w.heads; h++) {
            head_task head = thin_head(attention, &room, b, h);
            forward_head(&head, (rows_view){room.contexts + h * w.v, w.heads * w.v}, room.scores);
        }
        tt_matrix_product(false, false, w.sequence, w.o, w.heads * w.v, 1.0f, room.contexts,
                          w.heads * w.v, attention->output_map, w.o, 0.0f,
                          tt_cpu_row(u_o, b * w.sequence), u_o.stride);
    }
}

/* One batch entry: d_u rows, and += on the thread's partial gradients of both maps. */
static void thin_backward_entry(const tt_thin_attention *attention, int64_t b, tt_matrix d_u_o,
                                tt_matrix d_u, thin_room *room)
{
    thin_widths w = widths_of(attention);
    int64_t all_k = w.heads * w.k, all_v = w.heads * w.v;
    const float *d_output = tt_cpu_row(d_u_o, b * w.sequence);
    load_thin(attention, b, room);
    tt_matrix_product(false, true, w.sequence, all_v, w.o, 1.0f, d_output, d_u_o.stride,
                      attention->output_map, w.o, 0.0f, room->d_contexts, all_v);
    memset(room->d_u_k, 0, (size_t)(w.sequence * w.k) * sizeof(float));
    memset(room->d_u_v, 0, (size_t)(w.sequence * w.v) * sizeof(float));
    for (int64_t h = 0; h < w.heads; h++) {
        head_task head = thin_head(attention, room, b, h);
        backward_head(&head, (rows_view){room->d_contexts + h * w.v, all_v},
                      (rows_view){room->d_queries + h * w.k, all_k}, (rows_view){room->d_u_k, w.k},
                      (rows_view){room->d_u_v, w.v}, (rows_view){room->contexts + h * w.v, all_v},
                      room->scores);
    }
    tt_matrix_product(true, false, all_v, w.o, w.sequence, 1.0f, room->contexts, all_v, d_output,
                      d_u_o.stride, 1.0f, room->output_map_gradient, w.o);
    tt_matrix_product(true, false, w.q, all_k, w.sequence, 1.0f, room->u_q, w.q, room->d_queries,
                      all_k, 1.0f, room->score_map_gradient, all_k);
    tt_matrix_product(false, true, w.sequence, w.q, all_k, 1.0f, room->d_queries, all_k,
                      attention->score_map, all_k, 0.0f, room->d_u_q, w.q);
    store_ranks(room->d_u_q, attention, d_u, b, 0, attention->rank_q);
    store_ranks(room->d_u_k, attention, d_u, b, attention->rank_q, attention->rank_k);
    store_ranks(room->d_u_v, attention, d_u, b, attention->rank_q + attention->rank_k,
                attention->rank_v);
}

/* target += the threads' partial sums, in order of thread. */
static void add_partial_sums(tt_device *device, const tt_thin_attention *attention)
{
    thin_widths w = widths_of(attention);
    for (int thread = 0; thread < device->threads; thread++) {
        thin_room room;
        int64_t size = lay_out_thin_room(w, NULL, &room);
        lay_out_thin_room(w, (float *)attention->workspace + thread * size, &room);
        for (int64_t i = 0; i < w.q * w.heads * w.k; i++) {
            attention->score_map_gradient[i] += room.score_map_gradient[i];
        }
        for (int64_t i = 0; i < w.heads * w.v * w.o; i++) {
            attention->output_map_gradient[i] += room.output_map_gradient[i];
        }
    }
}

void tt_cpu_thin_attention_backward(tt_device *device, const tt_thin_attention *attention,
                                    tt_matrix d_u_o, tt_matrix d_u)
{
    thin_widths w = widths_of(attention);
#pragma omp parallel num_threads(device->threads)
    {
        thin_room room;
        thread_room(attention, &room);
        memset(room.score_map_gradient, 0, (size_t)(w.q * w.heads * w.k) * sizeof(float));
        memset(room.output_map_gradient, 0, (size_t)(w.heads * w.v * w.o) * sizeof(float));
#pragma omp for schedule(static)
        for (int64_t b = 0; b < attention->batch; b++) {
            thin_backward_entry(attention, b, d_u_o, d_u, &room);
        }
    }
    add_partial_sums(device, attention);
}

/* Attention in double precision by plain loops, one head at a time; the operands of the dense form
 * on a device and in double precision; and the shapes that both forms are put through. */
#ifndef TT_TESTS_OPS_ATTENTION_REFERENCE_H
#define TT_TESTS_OPS_ATTENTION_REFERENCE_H

#include "ops/ops_test.h"

enum { STEP = 5 };

typedef enum { NO_PADDING, PADDED, HOLES, ONE_EMPTY, ALL_EMPTY } padding;

typedef struct {
    int64_t batch, sequence, heads, width;
    padding padding;
    float probability;
    bool biases;
} attention_shape;

/* --- one head in double precision ------------------------------------------------------------ */

/* Rows of doubles inside a wider array. */
typedef struct {
    double *data;
    int64_t stride;
} attention_rows;

typedef struct {
    int64_t sequence, width, value_width;
    attention_rows q, k, v;
    double scale; /* of the scores */
    const uint8_t *mask;
    const tt_dropout *dropout;
    int64_t dropout_row;
} attention_head;

/* Softmax over the keys that are no padding; without any, nothing is attended to. Returns the
 * logarithm of the sum. */
static inline double probabilities(const attention_head *h, int64_t query, double *row)
{
    double largest = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < h->sequence; j++) {
        row[j] = 0.0;
        for (int64_t c = 0; c < h->width; c++) {
            row[j] += h->q.data[query * h->q.stride + c] * h->k.data[j * h->k.stride + c];
        }
        row[j] = h->mask[j] ? row[j] * h->scale : -INFINITY;
        largest = fmax(largest, row[j]);
    }
    for (int64_t j = 0; j < h->sequence; j++) {
        row[j] = h->mask[j] ? exp(row[j] - largest) : 0.0;
        sum += row[j];
    }
    for (int64_t j = 0; j < h->sequence; j++) {
        row[j] = sum > 0.0 ? row[j] / sum : 0.0;
    }
    return largest + log(sum);
}

static inline double multiplier(const attention_head *h, int64_t query, int64_t key)
{
    return ops_test_multiplier(h->dropout, STEP, h->dropout_row + query, key);
}

/* context += ..., log_sum_exp where there is a key. */
static inline void head_forward(const attention_head *h, attention_rows context,
                                double *log_sum_exp)
{
    double *row = test_host((size_t)h->sequence * sizeof *row);
    for (int64_t i = 0; i < h->sequence; i++) {
        log_sum_exp[i] = probabilities(h, i, row);
        for (int64_t j = 0; j < h->sequence; j++) {
            double weight = row[j] * multiplier(h, i, j);
            for (int64_t c = 0; c < h->value_width; c++) {
                context.data[i * context.stride + c] += weight * h->v.data[j * h->v.stride + c];
            }
        }
    }
    free(row);
}

/* dq, dk, dv += ... */
static inline void head_backward(const attention_head *h, attention_rows d_context,
                                 attention_rows dq, attention_rows dk, attention_rows dv)
{
    double *row = test_host((size_t)h->sequence * sizeof *row);
    double *d_row = test_host((size_t)h->sequence * sizeof *d_row);
    for (int64_t i = 0; i < h->sequence; i++) {
        double weighted = 0.0;
        probabilities(h, i, row);
        for (int64_t j = 0; j < h->sequence; j++) {
            double drop = multiplier(h, i, j);
            d_row[j] = 0.0;
            for (int64_t c = 0; c < h->value_width; c++) {
                double d = d_context.data[i * d_context.stride + c];
                d_row[j] += d * h->v.data[j * h->v.stride + c] * drop;
                dv.data[j * dv.stride + c] += d * row[j] * drop;
            }
            weighted += row[j] * d_row[j];
        }
        for (int64_t j = 0; j < h->sequence; j++) {
            double d_score = row[j] * (d_row[j] - weighted) * h->scale;
            for (int64_t c = 0; c < h->width; c++) {
                dq.data[i * dq.stride + c] += d_score * h->k.data[j * h->k.stride + c];
                dk.data[j * dk.stride + c] += d_score * h->q.data[i * h->q.stride + c];
            }
        }
    }
    free(row);
    free(d_row);
}

/* --- what both forms share ------------------------------------------------------------------- */

static inline double *zeros(int64_t count)
{
    return test_host((size_t)count * sizeof(double));
}

static inline uint8_t *make_mask(attention_shape s)
{
    uint8_t *mask = test_host((size_t)(s.batch * s.sequence));
    tt_random random;
    tt_random_start(&random, 11, (uint64_t)s.sequence);
    for (int64_t b = 0; b < s.batch; b++) {
        uint8_t *row = mask + b * s.sequence;
        int64_t length = 1 + tt_random_below(&random, (uint32_t)s.sequence);
        for (int64_t j = 0; j < s.sequence; j++) {
            bool hole = tt_random_below(&random, 3) == 0;
            row[j] = s.padding == NO_PADDING || (s.padding == PADDED && j < length) ||
                     (s.padding >= HOLES && !hole);
        }
        if (s.padding >= HOLES) {
            row[s.sequence / 2] = 1;
        }
        if (s.padding == ALL_EMPTY || (s.padding == ONE_EMPTY && b == s.batch / 2)) {
            memset(row, 0, (size_t)s.sequence);
        }
    }
    return mask;
}

typedef struct {
    tt_device *device;
    attention_shape s;
    uint8_t *mask, *device_mask;
    uint32_t *step;
    tt_dropout dropout;
    ops_test_matrix log_sum_exp, workspace;
    double *expected_log_sum_exp;
} attention_common;

static inline attention_common make_common(tt_device *device, attention_shape s)
{
    uint32_t step = STEP;
    attention_common c = {.device = device, .s = s, .mask = make_mask(s)};
    c.device_mask = test_copy_in(device, c.mask, (size_t)(s.batch * s.sequence));
    c.step = test_copy_in(device, &step, sizeof step);
    c.dropout = (tt_dropout){
        .probability = s.probability, .seed = 21, .step = c.step, .site = 6, .first_row = 70};
    c.log_sum_exp = ops_test_fill_f32(device, 1, s.batch * s.heads * s.sequence, 0, 7.0);
    c.expected_log_sum_exp = zeros(s.batch * s.heads * s.sequence);
    return c;
}

/* Scratch memory of `bytes`, full of what must not be read. */
static inline void *make_workspace(attention_common *c, size_t bytes)
{
    c->workspace = ops_test_workspace(c->device, bytes);
    return ops_test_data(&c->workspace);
}

static inline void check_log_sum_exp(const attention_common *c)
{
    double *found = ops_test_read(&c->log_sum_exp);
    for (int64_t i = 0; i < c->log_sum_exp.view.columns; i++) {
        if (!isfinite(c->expected_log_sum_exp[i])) {
            c->expected_log_sum_exp[i] = found[i]; /* a sequence of padding has none */
        }
    }
    ops_test_close("log of the sum", found, c->expected_log_sum_exp, c->log_sum_exp.view.columns,
                   test_device_tolerance());
    free(found);
}

static inline void free_common(attention_common *c)
{
    free(ops_test_read(&c->workspace));
    ops_test_free(&c->workspace);
    ops_test_free(&c->log_sum_exp);
    c->device->release(c->device, c->device_mask);
    c->device->release(c->device, c->step);
    free(c->mask);
    free(c->expected_log_sum_exp);
}

/* The head (b, h) without its operands. */
static inline attention_head make_head(const attention_common *c, int64_t b, int64_t h,
                                       int64_t width, int64_t value_width)
{
    int64_t sequence = c->s.sequence;
    return (attention_head){.sequence = sequence,
                            .width = width,
                            .value_width = value_width,
                            .mask = c->mask + b * sequence,
                            .dropout = &c->dropout,
                            .dropout_row = (b * c->s.heads + h) * sequence};
}

/* --- the dense form -------------------------------------------------------------------------- */

enum { OPERANDS = 3 /* q, k, v */ };

typedef struct {
    attention_common c;
    ops_test_matrix operand[OPERANDS], bias[OPERANDS];
    tt_attention operation;
    double *with_bias[OPERANDS]; /* [tokens, hidden] */
} dense_case;

static inline dense_case make_dense(tt_device *device, attention_shape s)
{
    int64_t tokens = s.batch * s.sequence, hidden = s.heads * s.width;
    dense_case d = {.c = make_common(device, s)};
    for (int i = 0; i < OPERANDS; i++) {
        d.operand[i] = ops_test_random(device, tokens, hidden, i, 1.0, 1 + (uint64_t)i);
        d.bias[i] =
            ops_test_random_f32(device, 1, hidden, 0, s.biases ? 1.0 : 0.0, 4 + (uint64_t)i);
        d.with_bias[i] = ops_test_read(&d.operand[i]);
        double *bias = ops_test_read(&d.bias[i]);
        for (int64_t j = 0; j < tokens * hidden; j++) {
            d.with_bias[i][j] += bias[j % hidden];
        }
        free(bias);
    }
    d.operation = (tt_attention){.batch = s.batch,
                                 .sequence = s.sequence,
                                 .heads = s.heads,
                                 .q = d.operand[0].view,
                                 .k = d.operand[1].view,
                                 .v = d.operand[2].view,
                                 .q_bias = s.biases ? ops_test_data(&d.bias[0]) : NULL,
                                 .k_bias = s.biases ? ops_test_data(&d.bias[1]) : NULL,
                                 .v_bias = s.biases ? ops_test_data(&d.bias[2]) : NULL,
                                 .mask = d.c.device_mask,
                                 .dropout = d.c.dropout,
                                 .log_sum_exp = ops_test_data(&d.c.log_sum_exp)};
    d.operation.workspace =
        make_workspace(&d.c, device->ops->attention_workspace(device, &d.operation));
    return d;
}

static inline void free_dense(dense_case *d)
{
    for (int i = 0; i < OPERANDS; i++) {
        ops_test_free(&d->operand[i]);
        ops_test_free(&d->bias[i]);
        free(d->with_bias[i]);
    }
    free_common(&d->c);
}

static inline attention_rows dense_rows(const dense_case *d, double *matrix, int64_t b, int64_t h)
{
    int64_t hidden = d->c.s.heads * d->c.s.width;
    return (attention_rows){matrix + b * d->c.s.sequence * hidden + h * d->c.s.width, hidden};
}

static inline attention_head dense_head(const dense_case *d, int64_t b, int64_t h)
{
    attention_head made = make_head(&d->c, b, h, d->c.s.width, d->c.s.width);
    made.q = dense_rows(d, d->with_bias[0], b, h);
    made.k = dense_rows(d, d->with_bias[1], b, h);
    made.v = dense_rows(d, d->with_bias[2], b, h);
    made.scale = 1.0 / sqrt((double)d->c.s.width);
    return made;
}

/* Fills context [tokens, hidden]. */
static inline void dense_forward(dense_case *d, double *context)
{
    for (int64_t b = 0; b < d->c.s.batch; b++) {
        for (int64_t h = 0; h < d->c.s.heads; h++) {
            attention_head made = dense_head(d, b, h);
            head_forward(&made, dense_rows(d, context, b, h),
                         d->c.expected_log_sum_exp + (b * d->c.s.heads + h) * d->c.s.sequence);
        }
    }
}

static inline void dense_backward(const dense_case *d, double *d_context,
                                  double *gradients[OPERANDS])
{
    for (int64_t b = 0; b < d->c.s.batch; b++) {
        for (int64_t h = 0; h < d->c.s.heads; h++) {
            attention_head made = dense_head(d, b, h);
            head_backward(&made, dense_rows(d, d_context, b, h), dense_rows(d, gradients[0], b, h),
                          dense_rows(d, gradients[1], b, h), dense_rows(d, gradients[2], b, h));
        }
    }
}

static const attention_shape shapes[] = {
    {3, 1, 2, 5, NO_PADDING, 0.0f, true},    {2, 5, 3, 7, NO_PADDING, 0.0f, false},
    {5, 5, 2, 1, HOLES, 0.1f, true},         {3, 5, 2, 8, ONE_EMPTY, 0.25f, true},
    {2, 5, 1, 3, ALL_EMPTY, 0.1f, true},     {2, 128, 2, 16, PADDED, 0.0f, true},
    {2, 128, 2, 33, NO_PADDING, 0.1f, true}, {3, 130, 1, 9, ONE_EMPTY, 0.1f, false},
    {2, 130, 3, 17, HOLES, 0.0f, true},      {2, 200, 2, 13, HOLES, 0.5f, true},
    {4, 33, 4, 31, PADDED, 0.1f, false},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static inline void for_all_shapes(void (*check)(tt_device *device, attention_shape s))
{
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        tt_device *device = test_device(threads);
        for (int i = 0; i < SHAPES; i++) {
            check(device, shapes[i]);
        }
        tt_device_destroy(&device);
    }
}

#endif

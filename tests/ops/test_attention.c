/* Attention in its dense and its thin form, forward and backward, against plain loops in double
 * precision; and the thin form against the dense one where both say the same. */
#include "ops/ops_test.h"

static const double tolerance = 1e-5;
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
} rows;

typedef struct {
    int64_t sequence, width, value_width;
    rows q, k, v;
    double scale; /* of the scores */
    const uint8_t *mask;
    const tt_dropout *dropout;
    int64_t dropout_row;
} head;

/* Softmax over the keys that are no padding; without any, nothing is attended to. Returns the
 * logarithm of the sum. */
static double probabilities(const head *h, int64_t query, double *row)
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

static double multiplier(const head *h, int64_t query, int64_t key)
{
    return ops_test_multiplier(h->dropout, STEP, h->dropout_row + query, key);
}

/* context += ..., log_sum_exp where there is a key. */
static void head_forward(const head *h, rows context, double *log_sum_exp)
{
    double *row = ops_test_host((size_t)h->sequence * sizeof *row);
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
static void head_backward(const head *h, rows d_context, rows dq, rows dk, rows dv)
{
    double *row = ops_test_host((size_t)h->sequence * sizeof *row);
    double *d_row = ops_test_host((size_t)h->sequence * sizeof *d_row);
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

static double *zeros(int64_t count)
{
    return ops_test_host((size_t)count * sizeof(double));
}

static uint8_t *make_mask(attention_shape s)
{
    uint8_t *mask = ops_test_host((size_t)(s.batch * s.sequence));
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
} common;

static common make_common(tt_device *device, attention_shape s)
{
    uint32_t step = STEP;
    common c = {.device = device, .s = s, .mask = make_mask(s)};
    c.device_mask = ops_test_copy(device, c.mask, (size_t)(s.batch * s.sequence));
    c.step = ops_test_copy(device, &step, sizeof step);
    c.dropout = (tt_dropout){
        .probability = s.probability, .seed = 21, .step = c.step, .site = 6, .first_row = 70};
    c.log_sum_exp = ops_test_fill(device, 1, s.batch * s.heads * s.sequence, 0, 7.0);
    c.expected_log_sum_exp = zeros(s.batch * s.heads * s.sequence);
    return c;
}

/* Scratch memory of `bytes`, full of what must not be read. */
static void *make_workspace(common *c, size_t bytes)
{
    assert_true(bytes % sizeof(float) == 0);
    c->workspace = ops_test_fill(c->device, 1, (int64_t)(bytes / sizeof(float)), 0, NAN);
    return ops_test_data(&c->workspace);
}

static void check_log_sum_exp(const common *c)
{
    double *found = ops_test_read(&c->log_sum_exp);
    for (int64_t i = 0; i < c->log_sum_exp.view.columns; i++) {
        if (!isfinite(c->expected_log_sum_exp[i])) {
            c->expected_log_sum_exp[i] = found[i]; /* a sequence of padding has none */
        }
    }
    ops_test_close("log of the sum", found, c->expected_log_sum_exp, c->log_sum_exp.view.columns,
                   tolerance);
    free(found);
}

static void free_common(common *c)
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
static head make_head(const common *c, int64_t b, int64_t h, int64_t width, int64_t value_width)
{
    int64_t sequence = c->s.sequence;
    return (head){.sequence = sequence,
                  .width = width,
                  .value_width = value_width,
                  .mask = c->mask + b * sequence,
                  .dropout = &c->dropout,
                  .dropout_row = (b * c->s.heads + h) * sequence};
}

/* --- the dense form -------------------------------------------------------------------------- */

enum { OPERANDS = 3 /* q, k, v */ };

typedef struct {
    common c;
    ops_test_matrix operand[OPERANDS], bias[OPERANDS];
    tt_attention operation;
    double *with_bias[OPERANDS]; /* [tokens, hidden] */
} dense_case;

static dense_case make_dense(tt_device *device, attention_shape s)
{
    int64_t tokens = s.batch * s.sequence, hidden = s.heads * s.width;
    dense_case d = {.c = make_common(device, s)};
    for (int i = 0; i < OPERANDS; i++) {
        d.operand[i] = ops_test_random(device, tokens, hidden, i, 1.0, 1 + (uint64_t)i);
        d.bias[i] = ops_test_random(device, 1, hidden, 0, s.biases ? 1.0 : 0.0, 4 + (uint64_t)i);
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

static void free_dense(dense_case *d)
{
    for (int i = 0; i < OPERANDS; i++) {
        ops_test_free(&d->operand[i]);
        ops_test_free(&d->bias[i]);
        free(d->with_bias[i]);
    }
    free_common(&d->c);
}

static rows dense_rows(const dense_case *d, double *matrix, int64_t b, int64_t h)
{
    int64_t hidden = d->c.s.heads * d->c.s.width;
    return (rows){matrix + b * d->c.s.sequence * hidden + h * d->c.s.width, hidden};
}

static head dense_head(const dense_case *d, int64_t b, int64_t h)
{
    head made = make_head(&d->c, b, h, d->c.s.width, d->c.s.width);
    made.q = dense_rows(d, d->with_bias[0], b, h);
    made.k = dense_rows(d, d->with_bias[1], b, h);
    made.v = dense_rows(d, d->with_bias[2], b, h);
    made.scale = 1.0 / sqrt((double)d->c.s.width);
    return made;
}

/* Fills context [tokens, hidden]. */
static void dense_forward(dense_case *d, double *context)
{
    for (int64_t b = 0; b < d->c.s.batch; b++) {
        for (int64_t h = 0; h < d->c.s.heads; h++) {
            head made = dense_head(d, b, h);
            head_forward(&made, dense_rows(d, context, b, h),
                         d->c.expected_log_sum_exp + (b * d->c.s.heads + h) * d->c.s.sequence);
        }
    }
}

static void dense_backward(const dense_case *d, double *d_context, double *gradients[OPERANDS])
{
    for (int64_t b = 0; b < d->c.s.batch; b++) {
        for (int64_t h = 0; h < d->c.s.heads; h++) {
            head made = dense_head(d, b, h);
            head_backward(&made, dense_rows(d, d_context, b, h), dense_rows(d, gradients[0], b, h),
                          dense_rows(d, gradients[1], b, h), dense_rows(d, gradients[2], b, h));
        }
    }
}

static void check_dense(tt_device *device, attention_shape s)
{
    static const char *const names[OPERANDS] = {"dq", "dk", "dv"};
    dense_case d = make_dense(device, s);
    int64_t tokens = s.batch * s.sequence, hidden = s.heads * s.width;
    ops_test_matrix context = ops_test_fill(device, tokens, hidden, 3, 7.0);
    ops_test_matrix d_context = ops_test_random(device, tokens, hidden, 2, 1.0, 8);
    ops_test_matrix gradient[OPERANDS];
    double *expected[OPERANDS], *expected_context = zeros(tokens * hidden);
    for (int i = 0; i < OPERANDS; i++) {
        gradient[i] = ops_test_fill(device, tokens, hidden, 3 - i, 7.0);
        expected[i] = zeros(tokens * hidden);
    }
    dense_forward(&d, expected_context);
    device->ops->attention_forward(device, &d.operation, context.view);
    ops_test_expect("context", &context, expected_context, tolerance);
    check_log_sum_exp(&d.c);

    double *d_values = ops_test_read(&d_context);
    dense_backward(&d, d_values, expected);
    device->ops->attention_backward(device, &d.operation, d_context.view, gradient[0].view,
                                    gradient[1].view, gradient[2].view);
    for (int i = 0; i < OPERANDS; i++) {
        ops_test_expect(names[i], &gradient[i], expected[i], tolerance);
        ops_test_free(&gradient[i]);
        free(expected[i]);
    }
    free(d_values);
    free(expected_context);
    ops_test_free(&context);
    ops_test_free(&d_context);
    free_dense(&d);
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

static void for_all_shapes(void (*check)(tt_device *device, attention_shape s))
{
    for (int threads = 1; threads <= OPS_TEST_THREADS; threads++) {
        tt_device *device = ops_test_device(threads);
        for (int i = 0; i < SHAPES; i++) {
            check(device, shapes[i]);
        }
        tt_device_destroy(&device);
    }
}

static void test_dense(void **state)
{
    (void)state;
    for_all_shapes(check_dense);
}

/* --- the thin form --------------------------------------------------------------------------- */

/* The ranks of q, k, v and o, from the shape so that they are odd and unequal. */
static void ranks_of(attention_shape s, int64_t ranks[4])
{
    ranks[0] = s.width / 2 + 2;
    ranks[1] = s.width / 2 + 1;
    ranks[2] = s.width / 3 + 3;
    ranks[3] = s.width / 4 + 1;
}

typedef struct {
    common c;
    int64_t rank[4];
    ops_test_matrix u, score_map, output_map, score_map_gradient, output_map_gradient;
    tt_thin_attention operation;
    double *ones[OPERANDS]; /* [tokens, rank + 1]: U^_q, U^_k, U^_v */
    double *score_values, *output_values;
} thin_case;

/* U^ of an operand: its columns of u, and a column of ones. */
static double *with_ones(const ops_test_matrix *u, int64_t column, int64_t rank)
{
    double *values = ops_test_read(u), *made = zeros(u->view.rows * (rank + 1));
    for (int64_t i = 0; i < u->view.rows; i++) {
        for (int64_t j = 0; j < rank; j++) {
            made[i * (rank + 1) + j] = values[i * u->view.columns + column + j];
        }
        made[i * (rank + 1) + rank] = 1.0;
    }
    free(values);
    return made;
}

static void set_operation(thin_case *t)
{
    tt_device *device = t->c.device;
    attention_shape s = t->c.s;
    t->operation =
        (tt_thin_attention){.batch = s.batch,
                            .sequence = s.sequence,
                            .heads = s.heads,
                            .u = t->u.view,
                            .rank_q = t->rank[0],
                            .rank_k = t->rank[1],
                            .rank_v = t->rank[2],
                            .rank_o = t->rank[3],
                            .score_map = ops_test_data(&t->score_map),
                            .output_map = ops_test_data(&t->output_map),
                            .score_map_gradient = ops_test_data(&t->score_map_gradient),
                            .output_map_gradient = ops_test_data(&t->output_map_gradient),
                            .mask = t->c.device_mask,
                            .dropout = t->c.dropout,
                            .log_sum_exp = ops_test_data(&t->c.log_sum_exp)};
    t->operation.workspace =
        make_workspace(&t->c, device->ops->thin_attention_workspace(device, &t->operation));
}

static thin_case make_thin(tt_device *device, attention_shape s)
{
    thin_case t = {.c = make_common(device, s)};
    ranks_of(s, t.rank);
    int64_t rq = t.rank[0], rk = t.rank[1], rv = t.rank[2], ro = t.rank[3], heads = s.heads;
    double deviation = 1.0 / sqrt((double)rq);
    t.u = ops_test_random(device, s.batch * s.sequence, rq + rk + rv, 2, 1.0, 31);
    t.score_map = ops_test_random(device, rq + 1, heads * (rk + 1), 0, deviation, 32);
    t.output_map = ops_test_random(device, heads * (rv + 1), ro, 0, 1.0, 33);
    t.score_map_gradient = ops_test_random(device, rq + 1, heads * (rk + 1), 0, 1.0, 34);
    t.output_map_gradient = ops_test_random(device, heads * (rv + 1), ro, 0, 1.0, 35);
    t.ones[0] = with_ones(&t.u, 0, rq);
    t.ones[1] = with_ones(&t.u, rq, rk);
    t.ones[2] = with_ones(&t.u, rq + rk, rv);
    t.score_values = ops_test_read(&t.score_map);
    t.output_values = ops_test_read(&t.output_map);
    set_operation(&t);
    return t;
}

static void free_thin(thin_case *t)
{
    ops_test_matrix *all[] = {&t->u, &t->score_map, &t->output_map, &t->score_map_gradient,
                              &t->output_map_gradient};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ops_test_free(all[i]);
    }
    for (int i = 0; i < OPERANDS; i++) {
        free(t->ones[i]);
    }
    free(t->score_values);
    free(t->output_values);
    free_common(&t->c);
}

/* The head (b, h) with its queries U^_q M_h in `queries` [sequence, rk + 1]. */
static head thin_head(const thin_case *t, int64_t b, int64_t h, double *queries)
{
    int64_t q = t->rank[0] + 1, k = t->rank[1] + 1, v = t->rank[2] + 1;
    int64_t sequence = t->c.s.sequence, heads = t->c.s.heads;
    head made = make_head(&t->c, b, h, k, v);
    for (int64_t i = 0; i < sequence; i++) {
        for (int64_t j = 0; j < k; j++) {
            queries[i * k + j] = 0.0;
            for (int64_t l = 0; l < q; l++) {
                queries[i * k + j] += t->ones[0][(b * sequence + i) * q + l] *
                                      t->score_values[(l * heads + h) * k + j];
            }
        }
    }
    made.q = (rows){queries, k};
    made.k = (rows){t->ones[1] + b * sequence * k, k};
    made.v = (rows){t->ones[2] + b * sequence * v, v};
    made.scale = 1.0;
    return made;
}

/* u_o += contexts N_h of one head. */
static void thin_forward_head(thin_case *t, int64_t b, int64_t h, double *u_o)
{
    int64_t k = t->rank[1] + 1, v = t->rank[2] + 1, o = t->rank[3];
    int64_t sequence = t->c.s.sequence;
    double *queries = zeros(sequence * k), *context = zeros(sequence * v);
    head made = thin_head(t, b, h, queries);
    head_forward(&made, (rows){context, v},
                 t->c.expected_log_sum_exp + (b * t->c.s.heads + h) * sequence);
    for (int64_t i = 0; i < sequence; i++) {
        for (int64_t j = 0; j < o; j++) {
            for (int64_t l = 0; l < v; l++) {
                u_o[(b * sequence + i) * o + j] +=
                    context[i * v + l] * t->output_values[(h * v + l) * o + j];
            }
        }
    }
    free(queries);
    free(context);
}

typedef struct {
    double *ones[OPERANDS]; /* of U^, [tokens, rank + 1] */
    double *score_map, *output_map;
} thin_gradients;

/* Adds N_h's gradient, and turns the gradient of u_o into that of the head's context. */
static void thin_backward_output(const thin_case *t, int64_t b, int64_t h, const double *d_u_o,
                                 const double *context, double *d_context, double *d_output_map)
{
    int64_t v = t->rank[2] + 1, o = t->rank[3], sequence = t->c.s.sequence;
    for (int64_t i = 0; i < sequence; i++) {
        for (int64_t l = 0; l < v; l++) {
            for (int64_t j = 0; j < o; j++) {
                double d = d_u_o[(b * sequence + i) * o + j];
                d_context[i * v + l] += d * t->output_values[(h * v + l) * o + j];
                d_output_map[(h * v + l) * o + j] += d * context[i * v + l];
            }
        }
    }
}

/* From the gradient of the head's queries to those of U^_q and M_h. */
static void thin_backward_queries(const thin_case *t, int64_t b, int64_t h, const double *d_queries,
                                  const thin_gradients *g)
{
    int64_t q = t->rank[0] + 1, k = t->rank[1] + 1, sequence = t->c.s.sequence;
    for (int64_t i = 0; i < sequence; i++) {
        int64_t token = b * sequence + i;
        for (int64_t l = 0; l < q; l++) {
            for (int64_t j = 0; j < k; j++) {
                int64_t place = (l * t->c.s.heads + h) * k + j;
                g->ones[0][token * q + l] += d_queries[i * k + j] * t->score_values[place];
                g->score_map[place] += d_queries[i * k + j] * t->ones[0][token * q + l];
            }
        }
    }
}

static void thin_backward_head(const thin_case *t, int64_t b, int64_t h, const double *d_u_o,
                               const thin_gradients *g)
{
    int64_t k = t->rank[1] + 1, v = t->rank[2] + 1, sequence = t->c.s.sequence;
    double *queries = zeros(sequence * k), *d_queries = zeros(sequence * k);
    double *context = zeros(sequence * v), *d_context = zeros(sequence * v);
    double *unused = zeros(sequence);
    head made = thin_head(t, b, h, queries);
    head_forward(&made, (rows){context, v}, unused);
    thin_backward_output(t, b, h, d_u_o, context, d_context, g->output_map);
    head_backward(&made, (rows){d_context, v}, (rows){d_queries, k},
                  (rows){g->ones[1] + b * sequence * k, k},
                  (rows){g->ones[2] + b * sequence * v, v});
    thin_backward_queries(t, b, h, d_queries, g);
    free(queries);
    free(d_queries);
    free(context);
    free(d_context);
    free(unused);
}

/* Gradients of everything from that of u_o; those of the maps on top of what is there. */
static thin_gradients thin_backward(const thin_case *t, const double *d_u_o)
{
    int64_t tokens = t->c.s.batch * t->c.s.sequence;
    thin_gradients g = {.score_map = ops_test_read(&t->score_map_gradient),
                        .output_map = ops_test_read(&t->output_map_gradient)};
    for (int i = 0; i < OPERANDS; i++) {
        g.ones[i] = zeros(tokens * (t->rank[i] + 1));
    }
    for (int64_t b = 0; b < t->c.s.batch; b++) {
        for (int64_t h = 0; h < t->c.s.heads; h++) {
            thin_backward_head(t, b, h, d_u_o, &g);
        }
    }
    return g;
}

/* The columns of d_u that belong to operand `i`, against U^'s gradient without the ones. */
static void expect_ranks(const thin_case *t, const double *d_u, int i, const double *expected)
{
    static const char *const names[OPERANDS] = {"gradient of U_q", "gradient of U_k",
                                                "gradient of U_v"};
    int64_t tokens = t->c.s.batch * t->c.s.sequence, rank = t->rank[i];
    int64_t columns = t->rank[0] + t->rank[1] + t->rank[2];
    int64_t first = (i > 0 ? t->rank[0] : 0) + (i > 1 ? t->rank[1] : 0);
    double *found = zeros(tokens * rank), *wanted = zeros(tokens * rank);
    for (int64_t j = 0; j < tokens * rank; j++) {
        found[j] = d_u[j / rank * columns + first + j % rank];
        wanted[j] = expected[j / rank * (rank + 1) + j % rank];
    }
    ops_test_close(names[i], found, wanted, tokens * rank, tolerance);
    free(found);
    free(wanted);
}

static void check_thin_backward(thin_case *t)
{
    tt_device *device = t->c.device;
    int64_t tokens = t->c.s.batch * t->c.s.sequence;
    ops_test_matrix d_u_o = ops_test_random(device, tokens, t->rank[3], 3, 1.0, 36);
    ops_test_matrix d_u = ops_test_fill(device, tokens, t->u.view.columns, 1, 7.0);
    double *d_values = ops_test_read(&d_u_o);
    thin_gradients g = thin_backward(t, d_values);
    device->ops->thin_attention_backward(device, &t->operation, d_u_o.view, d_u.view);
    double *found = ops_test_read(&d_u);
    for (int i = 0; i < OPERANDS; i++) {
        expect_ranks(t, found, i, g.ones[i]);
        free(g.ones[i]);
    }
    ops_test_expect("score map gradient", &t->score_map_gradient, g.score_map, tolerance);
    ops_test_expect("output map gradient", &t->output_map_gradient, g.output_map, tolerance);
    free(found);
    free(d_values);
    free(g.score_map);
    free(g.output_map);
    ops_test_free(&d_u_o);
    ops_test_free(&d_u);
}

static void check_thin(tt_device *device, attention_shape s)
{
    thin_case t = make_thin(device, s);
    int64_t tokens = s.batch * s.sequence;
    ops_test_matrix u_o = ops_test_fill(device, tokens, t.rank[3], 3, 7.0);
    double *expected = zeros(tokens * t.rank[3]);
    for (int64_t b = 0; b < s.batch; b++) {
        for (int64_t h = 0; h < s.heads; h++) {
            thin_forward_head(&t, b, h, expected);
        }
    }
    device->ops->thin_attention_forward(device, &t.operation, u_o.view);
    ops_test_expect("U_o", &u_o, expected, tolerance);
    check_log_sum_exp(&t.c);
    check_thin_backward(&t);
    free(expected);
    ops_test_free(&u_o);
    free_thin(&t);
}

static void test_thin(void **state)
{
    (void)state;
    for_all_shapes(check_thin);
}

/* --- thin against dense ---------------------------------------------------------------------- */

static void multiply(tt_device *device, bool transpose_b, double alpha, tt_matrix a, tt_matrix b,
                     tt_matrix c)
{
    device->ops->multiply(
        device,
        &(tt_product){.transpose_b = transpose_b, .alpha = (float)alpha, .a = a, .b = b, .c = c});
}

/* Output factors B^ of q, k, v, [rank + 1, hidden] with the bias as last row, and the input factor
 * A of the output map [hidden, ro]. */
typedef struct {
    ops_test_matrix b[OPERANDS], a_o;
    int64_t column[OPERANDS]; /* of the operand's ranks in u */
} factors;

static factors make_factors(const thin_case *t)
{
    int64_t hidden = t->c.s.heads * t->c.s.width;
    factors f = {.column = {0, t->rank[0], t->rank[0] + t->rank[1]}};
    for (int i = 0; i < OPERANDS; i++) {
        f.b[i] = ops_test_random(t->c.device, t->rank[i] + 1, hidden, 0,
                                 1.0 / sqrt((double)t->rank[i]), 41 + (uint64_t)i);
    }
    f.a_o = ops_test_random(t->c.device, hidden, t->rank[3], 1, 1.0, 44);
    return f;
}

/* The same attention in both forms: maps for the thin one, operands for the dense one. */
static void apply_factors(const factors *f, thin_case *t, dense_case *d)
{
    tt_device *device = t->c.device;
    int64_t width = t->c.s.width, k = t->rank[1] + 1, v = t->rank[2] + 1;
    for (int64_t h = 0; h < t->c.s.heads; h++) {
        multiply(device, true, 1.0 / sqrt((double)width),
                 tt_matrix_columns(f->b[0].view, h * width, width),
                 tt_matrix_columns(f->b[1].view, h * width, width),
                 tt_matrix_columns(t->score_map.view, h * k, k));
        multiply(device, false, 1.0, tt_matrix_columns(f->b[2].view, h * width, width),
                 tt_matrix_rows(f->a_o.view, h * width, width),
                 tt_matrix_rows(t->output_map.view, h * v, v));
    }
    const float **biases[OPERANDS] = {&d->operation.q_bias, &d->operation.k_bias,
                                      &d->operation.v_bias};
    for (int i = 0; i < OPERANDS; i++) {
        multiply(device, false, 1.0, tt_matrix_columns(t->u.view, f->column[i], t->rank[i]),
                 tt_matrix_rows(f->b[i].view, 0, t->rank[i]), d->operand[i].view);
        *biases[i] = tt_matrix_rows(f->b[i].view, t->rank[i], 1).data;
    }
}

/* d_u of the dense form: dq B_q^T and so on, from the gradient of its context d_u_o A_o^T. */
static void dense_d_u(const factors *f, const thin_case *t, const dense_case *d, tt_matrix d_u_o,
                      tt_matrix d_u)
{
    tt_device *device = t->c.device;
    int64_t tokens = d_u.rows, hidden = t->c.s.heads * t->c.s.width;
    ops_test_matrix d_context = ops_test_fill(device, tokens, hidden, 0, 0.0);
    ops_test_matrix gradient[OPERANDS];
    for (int i = 0; i < OPERANDS; i++) {
        gradient[i] = ops_test_fill(device, tokens, hidden, 0, 0.0);
    }
    multiply(device, true, 1.0, d_u_o, f->a_o.view, d_context.view);
    device->ops->attention_backward(device, &d->operation, d_context.view, gradient[0].view,
                                    gradient[1].view, gradient[2].view);
    for (int i = 0; i < OPERANDS; i++) {
        multiply(device, true, 1.0, gradient[i].view, tt_matrix_rows(f->b[i].view, 0, t->rank[i]),
                 tt_matrix_columns(d_u, f->column[i], t->rank[i]));
        ops_test_free(&gradient[i]);
    }
    ops_test_free(&d_context);
}

/* That two results of the device agree; frees both. */
static void expect_same(const char *what, ops_test_matrix *actual, ops_test_matrix *expected)
{
    double *values = ops_test_read(expected);
    ops_test_expect(what, actual, values, tolerance);
    free(values);
    ops_test_free(actual);
    ops_test_free(expected);
}

static void check_thin_equals_dense(tt_device *device, attention_shape s)
{
    s.biases = true;
    thin_case t = make_thin(device, s);
    dense_case d = make_dense(device, s);
    factors f = make_factors(&t);
    int64_t tokens = s.batch * s.sequence, ranks = t.u.view.columns;
    ops_test_matrix context = ops_test_fill(device, tokens, s.heads * s.width, 0, 0.0);
    ops_test_matrix u_o = ops_test_fill(device, tokens, t.rank[3], 0, 7.0);
    ops_test_matrix dense_u_o = ops_test_fill(device, tokens, t.rank[3], 0, 7.0);
    ops_test_matrix d_u_o = ops_test_random(device, tokens, t.rank[3], 0, 1.0, 45);
    ops_test_matrix d_u = ops_test_fill(device, tokens, ranks, 0, 7.0);
    ops_test_matrix wanted = ops_test_fill(device, tokens, ranks, 0, 7.0);
    apply_factors(&f, &t, &d);

    device->ops->attention_forward(device, &d.operation, context.view);
    multiply(device, false, 1.0, context.view, f.a_o.view, dense_u_o.view);
    device->ops->thin_attention_forward(device, &t.operation, u_o.view);
    dense_d_u(&f, &t, &d, d_u_o.view, wanted.view);
    device->ops->thin_attention_backward(device, &t.operation, d_u_o.view, d_u.view);
    expect_same("U_o, thin and dense", &u_o, &dense_u_o);
    expect_same("gradient of U, thin and dense", &d_u, &wanted);

    for (int i = 0; i < OPERANDS; i++) {
        ops_test_free(&f.b[i]);
    }
    ops_test_free(&f.a_o);
    ops_test_free(&context);
    ops_test_free(&d_u_o);
    free_thin(&t);
    free_dense(&d);
}

static void test_thin_equals_dense(void **state)
{
    (void)state;
    for_all_shapes(check_thin_equals_dense);
}

/* --- the reference itself -------------------------------------------------------------------- */

enum { SMALL_SEQUENCE = 4, SMALL_WIDTH = 3, SMALL = SMALL_SEQUENCE * SMALL_WIDTH };

typedef struct {
    head made;
    double weights[SMALL]; /* of the entries of the context */
} small_case;

/* The weighted context as a function of q, k, v one after the other. */
static double weighted_context(const void *context, const double *x)
{
    const small_case *small = context;
    double qkv[OPERANDS * SMALL], output[SMALL] = {0}, log_sums[SMALL_SEQUENCE], sum = 0.0;
    memcpy(qkv, x, sizeof qkv);
    head made = small->made;
    made.q = (rows){qkv, SMALL_WIDTH};
    made.k = (rows){qkv + SMALL, SMALL_WIDTH};
    made.v = (rows){qkv + (ptrdiff_t)2 * SMALL, SMALL_WIDTH};
    head_forward(&made, (rows){output, SMALL_WIDTH}, log_sums);
    for (int i = 0; i < SMALL; i++) {
        sum += small->weights[i] * output[i];
    }
    return sum;
}

static void test_reference_against_differences(void **state)
{
    (void)state;
    const uint8_t mask[SMALL_SEQUENCE] = {1, 0, 1, 1};
    tt_dropout dropout = {.probability = 0.25f, .seed = 21, .site = 6};
    small_case small = {.made = {.sequence = SMALL_SEQUENCE,
                                 .width = SMALL_WIDTH,
                                 .value_width = SMALL_WIDTH,
                                 .scale = 0.7,
                                 .mask = mask,
                                 .dropout = &dropout}};
    double x[OPERANDS * SMALL], gradient[OPERANDS * SMALL] = {0}, expected[OPERANDS * SMALL];
    tt_random random;
    tt_random_start(&random, 1, 2);
    for (int i = 0; i < OPERANDS * SMALL; i++) {
        x[i] = tt_random_normal(&random);
        small.weights[i % SMALL] = tt_random_normal(&random);
    }
    rows parts[OPERANDS], gradients[OPERANDS];
    for (ptrdiff_t i = 0; i < OPERANDS; i++) {
        parts[i] = (rows){x + i * SMALL, SMALL_WIDTH};
        gradients[i] = (rows){gradient + i * SMALL, SMALL_WIDTH};
    }
    small.made.q = parts[0];
    small.made.k = parts[1];
    small.made.v = parts[2];
    head_backward(&small.made, (rows){small.weights, SMALL_WIDTH}, gradients[0], gradients[1],
                  gradients[2]);
    ops_test_differences(weighted_context, &small, x, OPERANDS * SMALL, expected);
    for (ptrdiff_t i = 0; i < OPERANDS; i++) {
        ops_test_close("reference", gradient + i * SMALL, expected + i * SMALL, SMALL, 1e-8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_thin),
        cmocka_unit_test(test_thin_equals_dense),
        cmocka_unit_test(test_reference_against_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The thin form of attention, forward and backward, against plain loops in double precision, and
 * against the dense form where both say the same. */
#include "ops/attention_reference.h"

/* --- the thin form --------------------------------------------------------------------------- */

/* Whether the query's map is removed: its rank is 0. */
static bool without_query = false;

/* The ranks of q, k, v and o, from the shape so that they are odd and unequal. */
static void ranks_of(attention_shape s, int64_t ranks[4])
{
    ranks[0] = without_query ? 0 : s.width / 2 + 2;
    ranks[1] = s.width / 2 + 1;
    ranks[2] = s.width / 3 + 3;
    ranks[3] = s.width / 4 + 1;
}

typedef struct {
    attention_common c;
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
    double deviation = 1.0 / sqrt((double)rq + 1.0);
    t.u = ops_test_random(device, s.batch * s.sequence, rq + rk + rv, 2, 1.0, 31);
    t.score_map = ops_test_random_f32(device, rq + 1, heads * (rk + 1), 0, deviation, 32);
    t.output_map = ops_test_random_f32(device, heads * (rv + 1), ro, 0, 1.0, 33);
    t.score_map_gradient = ops_test_random_f32(device, rq + 1, heads * (rk + 1), 0, 1.0, 34);
    t.output_map_gradient = ops_test_random_f32(device, heads * (rv + 1), ro, 0, 1.0, 35);
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
static attention_head thin_head(const thin_case *t, int64_t b, int64_t h, double *queries)
{
    int64_t q = t->rank[0] + 1, k = t->rank[1] + 1, v = t->rank[2] + 1;
    int64_t sequence = t->c.s.sequence, heads = t->c.s.heads;
    attention_head made = make_head(&t->c, b, h, k, v);
    for (int64_t i = 0; i < sequence; i++) {
        for (int64_t j = 0; j < k; j++) {
            queries[i * k + j] = 0.0;
            for (int64_t l = 0; l < q; l++) {
                queries[i * k + j] += t->ones[0][(b * sequence + i) * q + l] *
                                      t->score_values[(l * heads + h) * k + j];
            }
        }
    }
    made.q = (attention_rows){queries, k};
    made.k = (attention_rows){t->ones[1] + b * sequence * k, k};
    made.v = (attention_rows){t->ones[2] + b * sequence * v, v};
    made.scale = 1.0;
    return made;
}

/* u_o += contexts N_h of one head. */
static void thin_forward_head(thin_case *t, int64_t b, int64_t h, double *u_o)
{
    int64_t k = t->rank[1] + 1, v = t->rank[2] + 1, o = t->rank[3];
    int64_t sequence = t->c.s.sequence;
    double *queries = zeros(sequence * k), *context = zeros(sequence * v);
    attention_head made = thin_head(t, b, h, queries);
    head_forward(&made, (attention_rows){context, v},
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
    attention_head made = thin_head(t, b, h, queries);
    head_forward(&made, (attention_rows){context, v}, unused);
    thin_backward_output(t, b, h, d_u_o, context, d_context, g->output_map);
    head_backward(&made, (attention_rows){d_context, v}, (attention_rows){d_queries, k},
                  (attention_rows){g->ones[1] + b * sequence * k, k},
                  (attention_rows){g->ones[2] + b * sequence * v, v});
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
    ops_test_close(names[i], found, wanted, tokens * rank, test_device_tolerance());
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
    ops_test_expect("score map gradient", &t->score_map_gradient, g.score_map);
    ops_test_expect("output map gradient", &t->output_map_gradient, g.output_map);
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
    ops_test_expect("U_o", &u_o, expected);
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

/* Of a removed map the column of ones is left. (Without key or value the gradients of scores are 0
 * but for rounding, which no relative bound fits: test_compaction has those.) */
static void test_thin_without_query(void **state)
{
    (void)state;
    without_query = true;
    for_all_shapes(check_thin);
    without_query = false;
}

/* --- thin against dense ---------------------------------------------------------------------- */

static void multiply(tt_device *device, bool transpose_b, double alpha, tt_matrix a, tt_matrix b,
                     tt_matrix c)
{
    device->ops->multiply(
        device,
        &(tt_product){.transpose_b = transpose_b, .alpha = (float)alpha, .a = a, .b = b, .c = c});
}

/* Output factors B^ of q, k, v, [rank + 1, hidden] with the bias as last row, that bias by itself,
 * and the input factor A of the output map [hidden, ro]. */
typedef struct {
    ops_test_matrix b[OPERANDS], bias[OPERANDS], a_o;
    int64_t column[OPERANDS]; /* of the operand's ranks in u */
} factors;

static factors make_factors(const thin_case *t)
{
    int64_t hidden = t->c.s.heads * t->c.s.width;
    factors f = {.column = {0, t->rank[0], t->rank[0] + t->rank[1]}};
    for (int i = 0; i < OPERANDS; i++) {
        f.b[i] = ops_test_random(t->c.device, t->rank[i] + 1, hidden, 0,
                                 1.0 / sqrt((double)t->rank[i]), 41 + (uint64_t)i);
        double *values = ops_test_read(&f.b[i]);
        f.bias[i] = ops_test_from_f32(t->c.device, 1, hidden, 0, values + t->rank[i] * hidden);
        free(values);
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
        *biases[i] = ops_test_data(&f->bias[i]);
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
    ops_test_expect(what, actual, values);
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
        ops_test_free(&f.bias[i]);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thin),
        cmocka_unit_test(test_thin_without_query),
        cmocka_unit_test(test_thin_equals_dense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

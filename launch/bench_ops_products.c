/* Matrix products, large ones and groups of small ones, and copies. */
#include "launch/bench_ops.h"

#include <math.h>
#include <stdlib.h>

enum { LAYERS = 6 };

/* The matrices of a map from hidden to inner, dense and as a tensor train. */
enum { X, Y, U, W, A, B, MATRICES };

static const struct {
    const char *form;
    bool transpose_a, transpose_b, accumulate;
    int a, b, c;
} products[] = {
    {"dense: y = x W^T", false, true, false, X, W, Y},
    {"dense: dx = dy W", false, false, false, Y, W, X},
    {"dense: dW += dy^T x", true, false, true, Y, X, W},
    {"thin: u = x A", false, false, false, X, A, U},
    {"thin: y = u B", false, false, false, U, B, Y},
    {"thin: dB += u^T dy", true, false, true, U, Y, B},
    {"thin: du = dy B^T", false, true, false, Y, B, U},
    {"thin: dA += x^T du", true, false, true, X, U, A},
    {"thin: dx = du A^T", false, true, false, U, A, X},
};
enum { PRODUCTS = sizeof products / sizeof *products };

typedef struct {
    tt_bench_memory memory;
    tt_product products[PRODUCTS];
    tt_product *score_maps, *output_maps; /* a head each, of all layers */
    int map_count;
    tt_copy copies[2][LAYERS * 3]; /* plain, accumulating */
} operands;

/* Rows and columns of a matrix, without memory. */
static tt_matrix matrix_of(const tt_bench_sizes *sizes, int which)
{
    const int64_t shapes[MATRICES][2] = {
        [X] = {sizes->tokens, sizes->hidden}, [Y] = {sizes->tokens, sizes->inner},
        [U] = {sizes->tokens, sizes->rank},   [W] = {sizes->inner, sizes->hidden},
        [A] = {sizes->hidden, sizes->rank},   [B] = {sizes->rank, sizes->inner},
    };
    return tt_matrix_f32(NULL, shapes[which][0], shapes[which][1]);
}

static void run_multiply(void *user, int variant)
{
    operands *o = user;
    o->memory.device->ops->multiply(o->memory.device, &o->products[variant]);
}

static void run_multiply_group(void *user, int variant)
{
    operands *o = user;
    o->memory.device->ops->multiply_group(
        o->memory.device, variant == 0 ? o->score_maps : o->output_maps, o->map_count);
}

static void run_copy_group(void *user, int variant)
{
    operands *o = user;
    o->memory.device->ops->copy_group(o->memory.device, o->copies[variant], LAYERS * 3);
}

static tt_bench_case case_of_product(const tt_bench_sizes *sizes, int i)
{
    tt_matrix a = matrix_of(sizes, products[i].a), b = matrix_of(sizes, products[i].b);
    tt_matrix c = matrix_of(sizes, products[i].c);
    int64_t inner = products[i].transpose_a ? a.rows : a.columns;
    int64_t moved = a.rows * a.columns + b.rows * b.columns +
                    (products[i].accumulate ? 2 : 1) * c.rows * c.columns;
    return (tt_bench_case){.operation = "multiply",
                           .form = products[i].form,
                           .run = run_multiply,
                           .variant = i,
                           .bytes = 4.0 * (double)moved,
                           .flops = 2.0 * (double)c.rows * (double)c.columns * (double)inner};
}

static int list(const tt_bench_sizes *sizes, tt_bench_case *cases)
{
    double hidden = (double)sizes->hidden, rank = (double)sizes->rank;
    double heads = (double)sizes->heads;
    double map = LAYERS * heads * (rank + 1), factors = LAYERS * hidden * rank;
    const tt_bench_case rest[] = {
        {"multiply_group", "score maps, 6 layers", run_multiply_group, 0,
         4.0 * (map * (rank + 1) + 2 * LAYERS * hidden * (rank + 1)),
         2.0 * map * (rank + 1) * hidden / heads},
        {"multiply_group", "output maps, 6 layers", run_multiply_group, 1,
         4.0 * (map * rank + LAYERS * hidden * (2 * rank + 1)), 2.0 * map * rank * hidden / heads},
        {"copy_group", "18 A side by side", run_copy_group, 0, 4.0 * 2 * 3 * factors, 0},
        {"copy_group", "18 A, added", run_copy_group, 1, 4.0 * 3 * 3 * factors, 0},
    };
    int count = 0;
    for (int i = 0; i < PRODUCTS; i++) {
        cases[count++] = case_of_product(sizes, i);
    }
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        cases[count++] = rest[i];
    }
    return count;
}

/* What makes the maps of thin attention from the factors, [rank + 1, width] a head. */
static void list_maps(operands *o, const tt_bench_sizes *sizes)
{
    int64_t rank = sizes->rank, heads = sizes->heads, width = sizes->hidden / heads;
    tt_matrix q = tt_bench_matrix(&o->memory, LAYERS * (rank + 1), sizes->hidden);
    tt_matrix k = tt_bench_matrix(&o->memory, LAYERS * (rank + 1), sizes->hidden);
    tt_matrix a = tt_bench_matrix(&o->memory, LAYERS * sizes->hidden, rank);
    tt_matrix scores = tt_bench_matrix(&o->memory, LAYERS * (rank + 1), heads * (rank + 1));
    tt_matrix outputs = tt_bench_matrix(&o->memory, LAYERS * heads * (rank + 1), rank);
    if (o->memory.failed) {
        return;
    }
    for (int64_t i = 0; i < LAYERS * heads; i++) {
        int64_t layer = i / heads, head = i % heads;
        tt_matrix rows = tt_matrix_rows(k, layer * (rank + 1), rank + 1);
        tt_matrix target = tt_matrix_rows(scores, layer * (rank + 1), rank + 1);
        o->score_maps[i] =
            (tt_product){.transpose_b = true,
                         .alpha = 1.0f / sqrtf((float)width),
                         .a = tt_matrix_columns(tt_matrix_rows(q, layer * (rank + 1), rank + 1),
                                                head * width, width),
                         .b = tt_matrix_columns(rows, head * width, width),
                         .c = tt_matrix_columns(target, head * (rank + 1), rank + 1)};
        o->output_maps[i] = (tt_product){.alpha = 1.0f,
                                         .a = tt_matrix_columns(rows, head * width, width),
                                         .b = tt_matrix_rows(a, i * width, width),
                                         .c = tt_matrix_rows(outputs, i * (rank + 1), rank + 1)};
    }
    o->map_count = (int)(LAYERS * heads);
}

/* A of query, key and value to their places side by side. */
static void list_copies(operands *o, const tt_bench_sizes *sizes)
{
    int64_t rank = sizes->rank;
    for (int i = 0; i < LAYERS * 3; i += 3) {
        tt_matrix together = tt_bench_matrix(&o->memory, sizes->hidden, 3 * rank);
        tt_matrix apart = tt_bench_matrix(&o->memory, 3 * sizes->hidden, rank);
        if (o->memory.failed) {
            return;
        }
        for (int j = 0; j < 3; j++) {
            o->copies[0][i + j] = (tt_copy){
                .source = tt_matrix_rows(apart, j * sizes->hidden, sizes->hidden),
                .target = tt_matrix_columns(together, j * rank, rank),
            };
            o->copies[1][i + j] = o->copies[0][i + j];
            o->copies[1][i + j].accumulate = true;
        }
    }
}

static tt_status create(tt_device *device, const tt_bench_sizes *sizes, void **result,
                        tt_error *error)
{
    operands *o = calloc(1, sizeof *o);
    *result = o;
    size_t heads = (size_t)sizes->heads;
    if (o != NULL) {
        o->memory.device = device;
        o->score_maps = calloc(LAYERS * heads, sizeof *o->score_maps);
        o->output_maps = calloc(LAYERS * heads, sizeof *o->output_maps);
    }
    if (o == NULL || o->score_maps == NULL || o->output_maps == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for operands");
    }
    tt_matrix matrices[MATRICES];
    for (int i = 0; i < MATRICES; i++) {
        tt_matrix shape = matrix_of(sizes, i);
        matrices[i] = tt_bench_matrix(&o->memory, shape.rows, shape.columns);
    }
    for (int i = 0; i < PRODUCTS; i++) {
        o->products[i] = (tt_product){.transpose_a = products[i].transpose_a,
                                      .transpose_b = products[i].transpose_b,
                                      .alpha = 1.0f,
                                      .beta = products[i].accumulate ? 1.0f : 0.0f,
                                      .a = matrices[products[i].a],
                                      .b = matrices[products[i].b],
                                      .c = matrices[products[i].c]};
    }
    list_maps(o, sizes);
    list_copies(o, sizes);
    return tt_bench_memory_check(&o->memory, error);
}

static void destroy(void *user)
{
    operands *o = user;
    if (o != NULL) {
        tt_bench_memory_release(&o->memory);
        free(o->score_maps);
        free(o->output_maps);
        free(o);
    }
}

const tt_bench_family tt_bench_products = {.list = list, .create = create, .destroy = destroy};

/* Word lookups: in a dense table, in a tensor-train matrix as the product does it, and in one where
 * every occurrence of an id is contracted by itself, core after core (the form "plain"). What a
 * step does once for all its micro-batches (factors from cores, gradients of cores) is in every
 * lookup here. Batches: ids as often as words of a text (the k-th most frequent in proportion to
 * 1 / (k + 2.7)), and ids that are all equally likely. */
#include "core/tensor_train_matrix.h"
#include "launch/bench_ops.h"

#include <math.h>
#include <stdlib.h>

enum { DENSE, MATRIX, PLAIN, FORMS };
enum { FORWARD, BACKWARD, BOTH, PARTS };
enum { TEXT, RANDOM, BATCHES };
enum { PLAIN_CHUNK = 512 /* occurrences whose gradients of slices exist at a time */ };

/* A lookup of every occurrence by itself. Core k is kept slice by slice, [v_k, r_{k-1} h_k r_k].
 * The product of an occurrence's first k slices is [h_1...h_k, r_k]; the last one is its row. Lists
 * of products have one for each occurrence. */
typedef struct {
    tt_product *forward[TT_MAX_ORDER], *slices[TT_MAX_ORDER], *chains[TT_MAX_ORDER];
    int32_t *digits[TT_MAX_ORDER]; /* device: [tokens], the slice of core k */
    tt_matrix chain[TT_MAX_ORDER]; /* [tokens, h_1...h_k r_k]; the first is core 1 itself */
    tt_matrix d_chain[TT_MAX_ORDER], d_slice[TT_MAX_ORDER]; /* of a chunk */
} plain_lookup;

typedef struct {
    int32_t *host, *ids; /* [tokens] */
    plain_lookup plain;
} batch;

typedef struct {
    tt_device *device;
    tt_bench_memory memory;
    tt_matrix hidden; /* [tokens, hidden]: rows, or their gradients */
    tt_matrix table, d_table;
    tt_parameters parameters;
    tt_train_set trains;
    tt_train_matrix matrix;
    tt_train_matrix_room room;
    tt_matrix cores[TT_MAX_ORDER], d_cores[TT_MAX_ORDER]; /* of the plain lookup */
    batch batches[BATCHES];
    double bytes[FORMS];
} operands;

/* --- running ---------------------------------------------------------------------------------- */

static void dense_lookup(operands *o, const batch *b, int part)
{
    if (part == FORWARD) {
        o->device->ops->gather_rows(o->device, o->table, b->ids, o->hidden);
    } else {
        o->device->ops->scatter_rows(o->device, o->hidden, b->ids, o->d_table);
    }
}

static void matrix_lookup(operands *o, const batch *b, int part)
{
    tt_device *device = o->device;
    int64_t tokens = o->hidden.rows, rows = tt_train_matrix_room_rows(&o->matrix, tokens);
    tt_matrix distinct = tt_matrix_f32(o->room.rows, rows, o->hidden.columns);
    if (part == FORWARD) {
        tt_train_set_materialise(&o->trains);
        tt_train_matrix_materialise(&o->matrix);
        tt_train_matrix_look_up(&o->matrix, b->ids, tokens, &o->room);
        device->ops->gather_rows(device, distinct, o->room.places, o->hidden);
        return;
    }
    device->zero(device, distinct.data, tt_floats(rows * distinct.columns));
    device->ops->scatter_rows(device, o->hidden, o->room.places, distinct);
    tt_train_matrix_look_up_backward(&o->matrix, tokens, &o->room);
    tt_train_matrix_contract(&o->matrix);
    tt_train_set_contract(&o->trains);
}

static void plain_backward(operands *o, const plain_lookup *plain, int64_t first, int64_t count)
{
    const tt_ops *ops = o->device->ops;
    for (int k = o->matrix.shape.order - 1; k >= 0; k--) {
        if (k > 0) {
            ops->multiply_group(o->device, plain->slices[k] + first, (int)count);
            ops->multiply_group(o->device, plain->chains[k] + first, (int)count);
        }
        tt_matrix gradient = k > 0 ? plain->d_slice[k] : plain->d_chain[0];
        ops->scatter_rows(o->device, tt_matrix_rows(gradient, 0, count), plain->digits[k] + first,
                          o->d_cores[k]);
    }
}

static void look_up_plainly(operands *o, const batch *b, int part)
{
    int64_t tokens = o->hidden.rows;
    if (part == FORWARD) {
        for (int k = 1; k < o->matrix.shape.order; k++) {
            o->device->ops->multiply_group(o->device, b->plain.forward[k], (int)tokens);
        }
        return;
    }
    for (int64_t first = 0; first < tokens; first += PLAIN_CHUNK) {
        int64_t left = tokens - first;
        plain_backward(o, &b->plain, first, left < PLAIN_CHUNK ? left : PLAIN_CHUNK);
    }
}

static void run_lookup(void *user, int variant)
{
    static void (*const lookups[FORMS])(operands *, const batch *,
                                        int) = {dense_lookup, matrix_lookup, look_up_plainly};
    operands *o = user;
    int form = variant % FORMS, part = variant / FORMS % PARTS;
    const batch *b = &o->batches[variant / FORMS / PARTS];
    for (int p = FORWARD; p <= BACKWARD; p++) {
        if (part == BOTH || part == p) {
            lookups[form](o, b, p);
        }
    }
}

static void run_distinct(void *user, int unused)
{
    (void)unused;
    operands *o = user;
    tt_distinct distinct = {.ids = o->batches[TEXT].ids,
                            .count = o->hidden.rows,
                            .bound = o->matrix.vocabulary,
                            .distinct = o->room.distinct,
                            .places = o->room.places,
                            .workspace = o->room.workspace};
    o->device->ops->distinct_ids(o->device, &distinct);
}

/* On the ids that were looked up last; where nothing was, on those of the text. */
static void run_slices(void *user, int backward)
{
    operands *o = user;
    int64_t rows = tt_train_matrix_room_rows(&o->matrix, o->hidden.rows);
    tt_slice_products products = o->matrix.products;
    products.ids = o->room.distinct;
    products.count = rows;
    products.workspace = o->room.workspace;
    tt_matrix distinct = tt_matrix_f32(o->room.rows, rows, o->hidden.columns);
    if (backward) {
        o->device->ops->slice_products_backward(o->device, &products, distinct);
    } else {
        o->device->ops->slice_products_forward(o->device, &products, distinct);
    }
}

/* --- cases ------------------------------------------------------------------------------------ */

/* The paper's shape where the sizes are the paper's, otherwise what they allow. */
static tt_status choose_shape(const tt_bench_sizes *sizes, tt_train_matrix_shape *shape,
                              tt_error *error)
{
    if (sizes->vocabulary == 30522 && sizes->hidden == 768) {
        *shape = (tt_train_matrix_shape){4, {16, 20, 10, 10}, {4, 4, 8, 6}, {1, 32, 32, 32, 1}};
        return TT_OK;
    }
    for (int order = 4; order > 2; order--) {
        tt_error unused;
        if (tt_train_matrix_shape_choose(sizes->vocabulary, sizes->hidden, order, sizes->rank,
                                         shape, &unused) == TT_OK) {
            return TT_OK;
        }
    }
    return tt_train_matrix_shape_choose(sizes->vocabulary, sizes->hidden, 2, sizes->rank, shape,
                                        error);
}

static int list(const tt_bench_sizes *sizes, tt_bench_case *cases)
{
    static const char *const forms[FORMS] = {"dense", "tensor train matrix",
                                             "tensor train matrix, plain"};
    static const char *const lookups[BATCHES][PARTS] = {
        {"lookup, forward", "lookup, backward", "lookup"},
        {"lookup, random ids, forward", "lookup, random ids, backward", "lookup, random ids"}};
    double stream = 4.0 * (double)(sizes->tokens * sizes->hidden);
    const double bytes[PARTS] = {stream, 2 * stream, 3 * stream};
    int count = 0;
    for (int b = 0; b < BATCHES; b++) {
        for (int part = b == TEXT ? FORWARD : BOTH; part < PARTS; part++) {
            for (int form = 0; form < FORMS; form++) {
                cases[count++] = (tt_bench_case){.operation = lookups[b][part],
                                                 .form = forms[form],
                                                 .run = run_lookup,
                                                 .variant = form + FORMS * (part + PARTS * b),
                                                 .bytes = bytes[part]};
            }
        }
    }
    double ids = 4.0 * (double)sizes->tokens;
    const tt_bench_case operations[] = {
        {"distinct_ids", "ids of a text", run_distinct, 0, 3 * ids, 0},
        {"slice_products_forward", "distinct ids of a text", run_slices, 0, stream, 0},
        {"slice_products_backward", "distinct ids of a text", run_slices, 1, 2 * stream, 0},
    };
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        cases[count++] = operations[i];
    }
    return count;
}

static double memory_of(void *user, const tt_bench_case *what)
{
    const operands *o = user;
    return what->run == run_lookup ? o->bytes[what->variant % FORMS] : 0.0;
}

/* --- operands --------------------------------------------------------------------------------- */

/* The most frequent ids are spread over the vocabulary by a multiplication modulo its size. */
static int64_t spread_id(int64_t frequency_rank, int64_t vocabulary)
{
    int64_t factor = 7919 % vocabulary;
    while (factor < 2 || vocabulary % factor == 0) {
        factor++;
    }
    return frequency_rank * factor % vocabulary;
}

static bool create_ids(operands *o, int kind, int64_t tokens, int64_t vocabulary)
{
    batch *b = &o->batches[kind];
    b->host = malloc((size_t)tokens * sizeof *b->host);
    b->ids = tt_bench_zeros(&o->memory, (size_t)tokens * sizeof *b->ids);
    if (b->host == NULL || b->ids == NULL) {
        return false;
    }
    tt_random random;
    tt_random_start(&random, 3, (uint64_t)kind);
    double most = log((double)vocabulary + 2.7), least = log(2.7);
    for (int64_t i = 0; i < tokens; i++) {
        double uniform = (double)tt_random_uniform(&random);
        int64_t place = (int64_t)(exp(least + uniform * (most - least)) - 2.7);
        place = place < 0 ? 0 : place >= vocabulary ? vocabulary - 1 : place;
        b->host[i] = kind == TEXT ? (int32_t)spread_id(place, vocabulary)
                                  : (int32_t)tt_random_below(&random, (uint32_t)vocabulary);
    }
    o->device->copy_in(o->device, b->ids, b->host, (size_t)tokens * sizeof *b->ids);
    return true;
}

static tt_status create_matrix(operands *o, const tt_bench_sizes *sizes, tt_error *error)
{
    tt_train_matrix_shape shape;
    TT_TRY(choose_shape(sizes, &shape, error));
    tt_parameters_init(&o->parameters, o->device);
    tt_train_set_init(&o->trains, &o->parameters, 0.01f);
    TT_TRY(tt_train_matrix_add(&o->matrix, "words", &shape, sizes->vocabulary, sizes->hidden,
                               &o->trains, error));
    TT_TRY(tt_parameters_allocate(&o->parameters, false, error));
    TT_TRY(tt_train_set_plan(&o->trains, error));
    tt_train_matrix_initialize(&o->matrix, 0.02f, 1);
    TT_TRY(tt_train_matrix_plan(&o->matrix, false, error));
    int64_t rows = tt_train_matrix_room_rows(&o->matrix, sizes->tokens);
    size_t before = o->memory.bytes;
    o->room = (tt_train_matrix_room){
        .distinct = tt_bench_zeros(&o->memory, (size_t)rows * sizeof(int32_t)),
        .places = tt_bench_zeros(&o->memory, (size_t)sizes->tokens * sizeof(int32_t)),
        .rows = tt_bench_zeros(&o->memory, tt_floats(rows * sizes->hidden)),
        .workspace =
            tt_bench_zeros(&o->memory, tt_train_matrix_workspace(&o->matrix, sizes->tokens))};
    o->bytes[MATRIX] = (double)(o->memory.bytes - before) +
                       2.0 * (double)tt_floats(o->parameters.total) +
                       (double)(tt_train_set_bytes(&o->trains) + tt_train_matrix_bytes(&o->matrix));
    return TT_OK;
}

/* [h_1...h_k, r_k] of an occurrence as the matrix that the next slice is multiplied with. */
static tt_matrix chain_of(const operands *o, const batch *b, int k, int64_t token, bool gradient)
{
    const tt_train_matrix_shape *shape = &o->matrix.shape;
    int64_t rows = 1, rank = shape->ranks[k + 1];
    for (int j = 0; j <= k; j++) {
        rows *= shape->columns[j];
    }
    tt_matrix all;
    if (k + 1 == shape->order) {
        all = o->hidden;
    } else if (gradient) {
        all = b->plain.d_chain[k];
        token %= PLAIN_CHUNK;
    } else if (k == 0) {
        all = o->cores[0];
        token = b->host[token];
        for (int j = 1; j < shape->order; j++) {
            token /= shape->rows[shape->order - j];
        }
    } else {
        all = b->plain.chain[k];
    }
    return tt_matrix_f32(tt_matrix_at(all, token, 0), rows, rank);
}

/* The chain up to core k as rows for the product with slice k: its last core's columns are columns
 * of the product. */
static tt_matrix unfolded(tt_matrix chain, int64_t rows)
{
    chain.columns *= chain.rows / rows;
    chain.stride = chain.columns;
    chain.rows = rows;
    return chain;
}

static void list_occurrence(operands *o, batch *b, int k, int64_t token, int32_t digit)
{
    const tt_train_matrix_shape *shape = &o->matrix.shape;
    int64_t left = shape->ranks[k], right = shape->columns[k] * shape->ranks[k + 1];
    tt_matrix before = chain_of(o, b, k - 1, token, false);
    tt_matrix d_before = chain_of(o, b, k - 1, token, true);
    tt_matrix after = unfolded(chain_of(o, b, k, token, false), before.rows);
    tt_matrix d_after = unfolded(chain_of(o, b, k, token, true), before.rows);
    tt_matrix slice = tt_matrix_f32(tt_matrix_at(o->cores[k], digit, 0), left, right);
    tt_matrix d_slice =
        tt_matrix_f32(tt_matrix_at(b->plain.d_slice[k], token % PLAIN_CHUNK, 0), left, right);
    tt_product product = {.alpha = 1.0f, .a = before, .b = slice, .c = after};
    b->plain.forward[k][token] = product;
    product =
        (tt_product){.transpose_a = true, .alpha = 1.0f, .a = before, .b = d_after, .c = d_slice};
    b->plain.slices[k][token] = product;
    product =
        (tt_product){.transpose_b = true, .alpha = 1.0f, .a = d_after, .b = slice, .c = d_before};
    b->plain.chains[k][token] = product;
}

static void list_core(operands *o, batch *b, int k, const int32_t *digits)
{
    int64_t tokens = o->hidden.rows;
    for (int64_t token = 0; k > 0 && token < tokens; token++) {
        list_occurrence(o, b, k, token, digits[token]);
    }
}

/* Memory of a plain lookup; that of the second batch's is not counted again. */
static tt_status create_plain(operands *o, batch *b, tt_error *error)
{
    const tt_train_matrix_shape *shape = &o->matrix.shape;
    int64_t tokens = o->hidden.rows, width = 1, below = 1;
    int64_t chunk = tokens < PLAIN_CHUNK ? tokens : PLAIN_CHUNK;
    for (int k = 0; k + 1 < shape->order; k++) {
        width *= shape->columns[k];
        int64_t numbers = width * shape->ranks[k + 1];
        b->plain.d_chain[k] = tt_bench_matrix(&o->memory, chunk, numbers);
        b->plain.chain[k] = k > 0 ? tt_bench_matrix(&o->memory, tokens, numbers) : o->cores[0];
    }
    int32_t *digits = malloc((size_t)tokens * sizeof *digits);
    bool complete = digits != NULL;
    for (int k = shape->order - 1; complete && k >= 0; k--) {
        size_t bytes = (size_t)tokens * sizeof *digits;
        for (int64_t i = 0; i < tokens; i++) {
            digits[i] = (int32_t)(b->host[i] / below % shape->rows[k]);
        }
        below *= shape->rows[k];
        b->plain.digits[k] = tt_bench_zeros(&o->memory, bytes);
        if (k > 0) {
            b->plain.d_slice[k] = tt_bench_matrix(&o->memory, chunk, o->cores[k].columns);
        }
        tt_product **lists[] = {&b->plain.forward[k], &b->plain.slices[k], &b->plain.chains[k]};
        for (int i = 0; i < 3; i++) {
            *lists[i] = calloc((size_t)tokens, sizeof **lists[i]);
            complete = complete && *lists[i] != NULL;
        }
        complete = complete && !o->memory.failed;
        if (complete) {
            o->device->copy_in(o->device, b->plain.digits[k], digits, bytes);
            list_core(o, b, k, digits);
        }
    }
    free(digits);
    return complete ? TT_OK
                    : tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the plain lookup");
}

static void create_cores(operands *o)
{
    const tt_train_matrix_shape *shape = &o->matrix.shape;
    for (int k = 0; k < shape->order; k++) {
        int64_t slice = shape->ranks[k] * shape->columns[k] * shape->ranks[k + 1];
        o->cores[k] = tt_bench_matrix(&o->memory, shape->rows[k], slice);
        o->d_cores[k] = tt_bench_matrix(&o->memory, shape->rows[k], slice);
    }
}

static tt_status fill(operands *o, const tt_bench_sizes *sizes, tt_error *error)
{
    size_t table = tt_floats(sizes->vocabulary * sizes->hidden);
    o->bytes[DENSE] = 2.0 * (double)table;
    o->hidden = tt_bench_matrix(&o->memory, sizes->tokens, sizes->hidden);
    o->table = tt_bench_matrix(&o->memory, sizes->vocabulary, sizes->hidden);
    o->d_table = tt_bench_matrix(&o->memory, sizes->vocabulary, sizes->hidden);
    TT_TRY(create_matrix(o, sizes, error));
    size_t before = o->memory.bytes;
    create_cores(o);
    TT_TRY(tt_bench_memory_check(&o->memory, error));
    for (int kind = 0; kind < BATCHES; kind++) {
        if (!create_ids(o, kind, sizes->tokens, sizes->vocabulary)) {
            return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for ids");
        }
        TT_TRY(create_plain(o, &o->batches[kind], error));
        if (kind == TEXT) {
            o->bytes[PLAIN] = (double)(o->memory.bytes - before);
        }
    }
    matrix_lookup(o, &o->batches[TEXT], FORWARD);
    return tt_bench_memory_check(&o->memory, error);
}

static tt_status create(tt_device *device, const tt_bench_sizes *sizes, void **result,
                        tt_error *error)
{
    operands *o = calloc(1, sizeof *o);
    *result = o;
    if (o == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for operands");
    }
    o->device = device;
    o->memory.device = device;
    tt_parameters_init(&o->parameters, device);
    return fill(o, sizes, error);
}

static void destroy(void *user)
{
    operands *o = user;
    if (o == NULL) {
        return;
    }
    for (int kind = 0; kind < BATCHES; kind++) {
        batch *b = &o->batches[kind];
        for (int k = 0; k < TT_MAX_ORDER; k++) {
            free(b->plain.forward[k]);
            free(b->plain.slices[k]);
            free(b->plain.chains[k]);
        }
        free(b->host);
    }
    tt_bench_memory_release(&o->memory);
    tt_train_matrix_free(&o->matrix);
    tt_train_set_free(&o->trains);
    tt_parameters_free(&o->parameters);
    free(o);
}

const tt_bench_family tt_bench_embedding = {
    .list = list, .create = create, .destroy = destroy, .memory = memory_of};

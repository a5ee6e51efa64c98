/* Distinct ids, and rows that are products of slices. */
#include "core/cpu/cpu_ops.h"
#include "core/cpu/lanes.h"

/* --- distinct ids ----------------------------------------------------------------------------- */

size_t tt_cpu_distinct_ids_workspace(tt_device *device, int64_t count, int64_t bound)
{
    (void)device;
    (void)count;
    return (size_t)bound * sizeof(int32_t);
}

void tt_cpu_distinct_ids(tt_device *device, const tt_distinct *distinct)
{
    (void)device;
    int32_t *place_of = distinct->workspace; /* of each number that occurs, 1 or more before that */
    memset(place_of, 0, (size_t)distinct->bound * sizeof *place_of);
    for (int64_t i = 0; i < distinct->count; i++) {
        assert(distinct->ids[i] >= 0 && distinct->ids[i] < distinct->bound);
        place_of[distinct->ids[i]] = 1;
    }
    int32_t found = 0;
    for (int64_t id = 0; id < distinct->bound; id++) {
        if (place_of[id] > 0) {
            distinct->distinct[found] = (int32_t)id;
            place_of[id] = found++;
        }
    }
    int64_t room = distinct->count < distinct->bound ? distinct->count : distinct->bound;
    for (int64_t i = found; i < room; i++) {
        distinct->distinct[i] = -1;
    }
    for (int64_t i = 0; i < distinct->count; i++) {
        distinct->places[i] = place_of[distinct->ids[i]];
    }
}

/* --- small products --------------------------------------------------------------------------- */

/* c += a b for operands that lie in cache: entry (i, k) of a is at a[i * a_row + k * a_inner], rows
 * of b and c are contiguous. */
typedef struct {
    int64_t rows, columns, inner;
    const float *a;
    int64_t a_row, a_inner;
    const float *b;
    int64_t b_stride;
    float *c;
    int64_t c_stride;
} small_product;

/* `rows` rows and `vectors` times sixteen columns of the result, which stay in registers; both are
 * constants where this is called. */
static inline __attribute__((always_inline)) void tile(const small_product *p, int64_t row,
                                                       int64_t column, int rows, int vectors)
{
    tt_lanes sums[4][3];
    float *c = p->c + row * p->c_stride + column;
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < vectors; v++) {
            tt_lanes_load(&sums[i][v], c + i * p->c_stride + (int64_t)v * TT_LANES);
        }
    }
    const float *a = p->a + row * p->a_row, *b = p->b + column;
    for (int64_t k = 0; k < p->inner; k++) {
        tt_lanes line[3];
        for (int v = 0; v < vectors; v++) {
            tt_lanes_load(&line[v], b + k * p->b_stride + (int64_t)v * TT_LANES);
        }
        for (int i = 0; i < rows; i++) {
            float factor = a[i * p->a_row + k * p->a_inner];
            for (int v = 0; v < vectors; v++) {
                sums[i][v] += factor * line[v];
            }
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < vectors; v++) {
            memcpy(c + i * p->c_stride + (int64_t)v * TT_LANES, &sums[i][v], sizeof(tt_lanes));
        }
    }
}

static inline __attribute__((always_inline)) void strip(const small_product *p, int64_t column,
                                                        int vectors)
{
    int64_t row = 0;
    for (; row + 4 <= p->rows; row += 4) {
        tile(p, row, column, 4, vectors);
    }
    for (; row < p->rows; row++) {
        tile(p, row, column, 1, vectors);
    }
}

/* The columns that are left beside the last whole sixteen. */
static void last_columns(const small_product *p, int64_t column)
{
    for (int64_t i = 0; i < p->rows; i++) {
        float *c = p->c + i * p->c_stride;
        for (int64_t k = 0; k < p->inner; k++) {
            float factor = p->a[i * p->a_row + k * p->a_inner];
            const float *b = p->b + k * p->b_stride;
#pragma omp simd
            for (int64_t j = column; j < p->columns; j++) {
                c[j] += factor * b[j];
            }
        }
    }
}

static void multiply_small(const small_product *p)
{
    int64_t column = 0;
    for (; column + (int64_t)3 * TT_LANES <= p->columns; column += (int64_t)3 * TT_LANES) {
        strip(p, column, 3);
    }
    if (column + (int64_t)2 * TT_LANES <= p->columns) {
        strip(p, column, 2);
        column += (int64_t)2 * TT_LANES;
    }
    if (column + TT_LANES <= p->columns) {
        strip(p, column, 1);
        column += TT_LANES;
    }
    if (column < p->columns) {
        last_columns(p, column);
    }
}

/* --- rows ------------------------------------------------------------------------------------- */

static int64_t left_size(const tt_slice_products *products)
{
    return products->left_columns * products->rank;
}

static int64_t right_size(const tt_slice_products *products)
{
    return products->rank * products->right_columns;
}

/* A row's numbers as its left columns by its right columns. */
static void make_row(const tt_slice_products *products, int32_t id, float *row)
{
    memset(row, 0, (size_t)(products->left_columns * products->right_columns) * sizeof *row);
    small_product product = {
        .rows = products->left_columns,
        .columns = products->right_columns,
        .inner = products->rank,
        .a = products->left + id / products->right_slices * left_size(products),
        .a_row = products->rank,
        .a_inner = 1,
        .b = products->right + id % products->right_slices * right_size(products),
        .b_stride = products->right_columns,
        .c = row,
        .c_stride = products->right_columns,
    };
    multiply_small(&product);
}

/* The rows before the first id of -1. */
static int64_t row_count(const tt_slice_products *products)
{
    int64_t count = products->count;
    while (count > 0 && products->ids[count - 1] < 0) {
        count--;
    }
    return count;
}

/* A thread more for each so many multiplications. */
static int team_for(const tt_device *device, const tt_slice_products *products, int64_t rows)
{
    return tt_cpu_team(device, rows * products->left_columns * products->right_columns *
                                   products->rank / 8);
}

void tt_cpu_slice_products_forward(tt_device *device, const tt_slice_products *products,
                                   tt_matrix rows)
{
    assert(rows.rows >= products->count &&
           rows.columns == products->left_columns * products->right_columns);
    int64_t count = row_count(products);
#pragma omp parallel for num_threads(team_for(device, products, count)) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        make_row(products, products->ids[i], tt_cpu_row(rows, i));
    }
}

/* --- backward --------------------------------------------------------------------------------- */

/* What the backward pass keeps in its workspace. */
typedef struct {
    float *turned;        /* [right_slices, right_columns, rank]: the slices of Q transposed */
    int32_t *left_begin;  /* [left_slices + 1]: the rows of a left slice follow each other */
    int32_t *right_begin; /* [right_slices + 1]: where the rows of a right slice stand in ... */
    int32_t *right_rows;  /* [count]: row numbers, by right slice */
} backward_room;

static size_t turned_floats(const tt_slice_products *products)
{
    return (size_t)(products->right_slices * right_size(products));
}

size_t tt_cpu_slice_products_workspace(tt_device *device, const tt_slice_products *products)
{
    (void)device;
    int64_t numbers = products->left_slices + products->right_slices + 2 + products->count;
    return turned_floats(products) * sizeof(float) + (size_t)numbers * sizeof(int32_t);
}

static backward_room room_of(const tt_slice_products *products)
{
    backward_room room = {.turned = products->workspace};
    room.left_begin = (int32_t *)(room.turned + turned_floats(products));
    room.right_begin = room.left_begin + products->left_slices + 1;
    room.right_rows = room.right_begin + products->right_slices + 1;
    return room;
}

static void turn_right_slices(tt_device *device, const tt_slice_products *products,
                              const backward_room *room)
{
    int64_t columns = products->right_columns, rank = products->rank;
#pragma omp parallel for schedule(static)                                                          \
    num_threads(tt_cpu_team(device, products->right_slices *columns *rank))
    for (int64_t s = 0; s < products->right_slices; s++) {
        const float *from = products->right + s * columns * rank;
        float *to = room->turned + s * columns * rank;
        for (int64_t r = 0; r < rank; r++) {
            for (int64_t j = 0; j < columns; j++) {
                to[j * rank + r] = from[r * columns + j];
            }
        }
    }
}

/* Which rows each slice is part of, in their order. */
static void list_rows(const tt_slice_products *products, const backward_room *room, int64_t count)
{
    memset(room->left_begin, 0, (size_t)(products->left_slices + 1) * sizeof(int32_t));
    memset(room->right_begin, 0, (size_t)(products->right_slices + 1) * sizeof(int32_t));
    for (int64_t i = 0; i < count; i++) {
        room->left_begin[products->ids[i] / products->right_slices + 1]++;
        room->right_begin[products->ids[i] % products->right_slices + 1]++;
    }
    for (int64_t s = 0; s < products->left_slices; s++) {
        room->left_begin[s + 1] += room->left_begin[s];
    }
    for (int64_t s = 0; s < products->right_slices; s++) {
        room->right_begin[s + 1] += room->right_begin[s];
    }
    /* A slice's beginning moves on to its end while its rows are listed, and then back. */
    for (int64_t i = 0; i < count; i++) {
        int64_t slice = products->ids[i] % products->right_slices;
        room->right_rows[room->right_begin[slice]++] = (int32_t)i;
    }
    for (int64_t s = products->right_slices; s > 0; s--) {
        room->right_begin[s] = room->right_begin[s - 1];
    }
    room->right_begin[0] = 0;
}

/* dP of a slice += dRow Q^T for each of its rows. */
static void left_slice_backward(const tt_slice_products *products, const backward_room *room,
                                tt_matrix d_rows, int64_t slice)
{
    for (int32_t i = room->left_begin[slice]; i < room->left_begin[slice + 1]; i++) {
        int64_t right = products->ids[i] % products->right_slices;
        small_product product = {
            .rows = products->left_columns,
            .columns = products->rank,
            .inner = products->right_columns,
            .a = tt_cpu_row(d_rows, i),
            .a_row = products->right_columns,
            .a_inner = 1,
            .b = room->turned + right * right_size(products),
            .b_stride = products->rank,
            .c = products->left_gradient + slice * left_size(products),
            .c_stride = products->rank,
        };
        multiply_small(&product);
    }
}

/* dQ of a slice += P^T dRow for each of its rows. */
static void right_slice_backward(const tt_slice_products *products, const backward_room *room,
                                 tt_matrix d_rows, int64_t slice)
{
    for (int32_t n = room->right_begin[slice]; n < room->right_begin[slice + 1]; n++) {
        int32_t i = room->right_rows[n];
        int64_t left = products->ids[i] / products->right_slices;
        small_product product = {
            .rows = products->rank,
            .columns = products->right_columns,
            .inner = products->left_columns,
            .a = products->left + left * left_size(products),
            .a_row = 1,
            .a_inner = products->rank,
            .b = tt_cpu_row(d_rows, i),
            .b_stride = products->right_columns,
            .c = products->right_gradient + slice * right_size(products),
            .c_stride = products->right_columns,
        };
        multiply_small(&product);
    }
}

void tt_cpu_slice_products_backward(tt_device *device, const tt_slice_products *products,
                                    tt_matrix d_rows)
{
    assert(d_rows.rows >= products->count &&
           d_rows.columns == products->left_columns * products->right_columns);
    int64_t count = row_count(products);
    backward_room room = room_of(products);
    turn_right_slices(device, products, &room);
    list_rows(products, &room, count);
    int64_t left_slices = products->left_slices, right_slices = products->right_slices;
#pragma omp parallel num_threads(team_for(device, products, count))
    {
#pragma omp for schedule(dynamic, 4) nowait
        for (int64_t s = 0; s < left_slices; s++) {
            left_slice_backward(products, &room, d_rows, s);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t s = 0; s < right_slices; s++) {
            right_slice_backward(products, &room, d_rows, s);
        }
    }
}

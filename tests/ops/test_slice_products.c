/* Distinct ids, and rows that are products of slices, against plain loops in double precision. */
#include "ops/ops_test.h"

/* Ids that favour the small ones, as words do, so that many repeat. */
static int32_t *draw_ids(int64_t count, int64_t bound, uint64_t seed)
{
    int32_t *ids = test_host((size_t)count * sizeof *ids);
    tt_random random;
    tt_random_start(&random, seed, 3);
    for (int64_t i = 0; i < count; i++) {
        uint32_t below = 1 + tt_random_below(&random, (uint32_t)bound);
        ids[i] = (int32_t)tt_random_below(&random, below);
    }
    return ids;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* --- distinct ids --- */

static const struct {
    int64_t count, bound;
} lists[] = {{1, 1},      {1, 9},      {7, 1},       {33, 20},
             {513, 4000}, {1024, 300}, {1025, 2000}, {4096, 30522}};
enum { LISTS = sizeof lists / sizeof lists[0], UNTOUCHED = -77 };

static void check_distinct(tt_device *device, int64_t count, int64_t bound)
{
    int64_t room = smaller(count, bound);
    int32_t *ids = draw_ids(count, bound, (uint64_t)count);
    int32_t *filled = test_host((size_t)(count + 1) * sizeof *filled);
    for (int64_t i = 0; i <= count; i++) {
        filled[i] = UNTOUCHED;
    }
    size_t bytes = (size_t)count * sizeof *ids;
    tt_distinct distinct = {.ids = test_copy_in(device, ids, bytes),
                            .count = count,
                            .bound = bound,
                            .distinct = test_copy_in(device, filled, bytes + sizeof *ids),
                            .places = test_copy_in(device, filled, bytes + sizeof *ids)};
    ops_test_matrix workspace =
        ops_test_workspace(device, device->ops->distinct_ids_workspace(device, count, bound));
    distinct.workspace = ops_test_data(&workspace);
    device->ops->distinct_ids(device, &distinct);
    test_device_check(device);
    int32_t *found = test_copy_out(device, distinct.distinct, bytes + sizeof *ids);
    int32_t *places = test_copy_out(device, distinct.places, bytes + sizeof *ids);

    bool *seen = calloc((size_t)bound, sizeof *seen);
    assert_non_null(seen);
    int64_t expected = 0;
    for (int64_t i = 0; i < count; i++) {
        assert_in_range(places[i], 0, room - 1);
        assert_int_equal(found[places[i]], ids[i]);
        expected += !seen[ids[i]];
        seen[ids[i]] = true;
    }
    for (int64_t i = 0; i < room; i++) {
        assert_true(i < expected ? found[i] >= 0 : found[i] == -1);
        assert_true(i == 0 || i >= expected || found[i - 1] < found[i]);
    }
    assert_int_equal(found[room], UNTOUCHED);
    assert_int_equal(places[count], UNTOUCHED);
    void *memory[] = {(void *)distinct.ids, distinct.distinct, distinct.places};
    for (int i = 0; i < 3; i++) {
        device->release(device, memory[i]);
    }
    ops_test_free(&workspace);
    free(seen);
    free(found);
    free(places);
    free(filled);
    free(ids);
}

static void test_distinct_ids(void **state)
{
    (void)state;
    tt_device *device = test_device(2);
    for (int i = 0; i < LISTS; i++) {
        check_distinct(device, lists[i].count, lists[i].bound);
    }
    tt_device_destroy(&device);
}

/* --- products of slices --- */

typedef struct {
    int64_t count, empty; /* rows, and how many of them have no id */
    int64_t left_slices, right_slices, left_columns, right_columns, rank;
} sizes;

static const sizes cases[] = {
    {1, 0, 1, 1, 1, 1, 1},       {5, 2, 3, 4, 2, 3, 5},    {40, 7, 12, 10, 4, 48, 32},
    {60, 0, 9, 10, 17, 67, 33},  {1, 1, 2, 2, 3, 3, 3},    {31, 3, 40, 1, 16, 16, 64},
    {300, 100, 32, 10, 6, 5, 3}, {24, 0, 2, 13, 5, 95, 7},
};
enum { CASES = sizeof cases / sizeof cases[0] };

typedef struct {
    sizes n;
    int32_t *ids; /* host */
    ops_test_matrix left, right, left_gradient, right_gradient, rows, workspace;
    tt_slice_products products;
} fixture;

/* Ascending, each once, then -1. */
static int32_t *make_ids(const sizes *n)
{
    int64_t bound = n->left_slices * n->right_slices, used = n->count - n->empty;
    int32_t *ids = test_host((size_t)n->count * sizeof *ids);
    tt_random random;
    tt_random_start(&random, 5, 7);
    int64_t found = 0;
    for (int64_t id = 0; id < bound; id++) {
        /* Each of the rest is as likely as any other. */
        if (found < used &&
            tt_random_below(&random, (uint32_t)(bound - id)) < (uint32_t)(used - found)) {
            ids[found++] = (int32_t)id;
        }
    }
    assert_int_equal(found, used);
    for (; found < n->count; found++) {
        ids[found] = -1;
    }
    return ids;
}

static fixture make_fixture(tt_device *device, sizes n)
{
    int64_t left_width = n.left_columns * n.rank, right_width = n.rank * n.right_columns;
    fixture f = {
        .n = n,
        .ids = make_ids(&n),
        .left = ops_test_random_f32(device, n.left_slices, left_width, 0, 1.0, 1),
        .right = ops_test_random_f32(device, n.right_slices, right_width, 0, 1.0, 2),
        .left_gradient = ops_test_random_f32(device, n.left_slices, left_width, 0, 1.0, 3),
        .right_gradient = ops_test_random_f32(device, n.right_slices, right_width, 0, 1.0, 4),
    };
    f.products = (tt_slice_products){
        .ids = test_copy_in(device, f.ids, (size_t)n.count * sizeof *f.ids),
        .count = n.count,
        .left_slices = n.left_slices,
        .right_slices = n.right_slices,
        .left_columns = n.left_columns,
        .right_columns = n.right_columns,
        .rank = n.rank,
        .left = ops_test_data(&f.left),
        .right = ops_test_data(&f.right),
        .left_gradient = ops_test_data(&f.left_gradient),
        .right_gradient = ops_test_data(&f.right_gradient),
    };
    f.workspace =
        ops_test_workspace(device, device->ops->slice_products_workspace(device, &f.products));
    f.products.workspace = ops_test_data(&f.workspace);
    return f;
}

static void free_fixture(tt_device *device, fixture *f)
{
    ops_test_matrix *matrices[] = {&f->left,           &f->right, &f->left_gradient,
                                   &f->right_gradient, &f->rows,  &f->workspace};
    for (int i = 0; i < 6; i++) {
        ops_test_free(matrices[i]);
    }
    device->release(device, (void *)f->products.ids);
    free(f->ids);
}

/* Calls `visit` for every term of every row: places in P, Q and the rows. */
typedef void (*visitor)(void *user, int64_t left, int64_t right, int64_t row);

static void visit_terms(const fixture *f, visitor visit, void *user)
{
    const sizes *n = &f->n;
    for (int64_t i = 0; i < n->count; i++) {
        int64_t left = f->ids[i] / n->right_slices, right = f->ids[i] % n->right_slices;
        for (int64_t j = 0; f->ids[i] >= 0 && j < n->left_columns; j++) {
            for (int64_t r = 0; r < n->rank; r++) {
                for (int64_t k = 0; k < n->right_columns; k++) {
                    visit(user, (left * n->left_columns + j) * n->rank + r,
                          (right * n->rank + r) * n->right_columns + k,
                          (i * n->left_columns + j) * n->right_columns + k);
                }
            }
        }
    }
}

typedef struct {
    double *left, *right, *left_gradient, *right_gradient, *rows;
} numbers;

static void add_to_row(void *user, int64_t left, int64_t right, int64_t row)
{
    numbers *n = user;
    n->rows[row] += n->left[left] * n->right[right];
}

static void add_to_gradients(void *user, int64_t left, int64_t right, int64_t row)
{
    numbers *n = user;
    n->left_gradient[left] += n->rows[row] * n->right[right];
    n->right_gradient[right] += n->rows[row] * n->left[left];
}

static void check_forward(tt_device *device, sizes n, tt_type type)
{
    fixture f = make_fixture(device, n);
    int64_t width = n.left_columns * n.right_columns;
    f.rows = ops_test_make_equal(device, type, n.count, width, 3, 7.0);
    numbers host = {.left = ops_test_read(&f.left),
                    .right = ops_test_read(&f.right),
                    .rows = ops_test_read(&f.rows)};
    for (int64_t i = 0; i < n.count * width; i++) {
        host.rows[i] = f.ids[i / width] < 0 ? host.rows[i] : 0.0;
    }
    visit_terms(&f, add_to_row, &host);
    device->ops->slice_products_forward(device, &f.products, f.rows.view);
    test_device_check(device);
    ops_test_expect("rows", &f.rows, host.rows);
    free(host.left);
    free(host.right);
    free(host.rows);
    free_fixture(device, &f);
}

static void check_backward(tt_device *device, sizes n)
{
    fixture f = make_fixture(device, n);
    f.rows = ops_test_random_f32(device, n.count, n.left_columns * n.right_columns, 3, 1.0, 6);
    numbers host = {ops_test_read(&f.left), ops_test_read(&f.right),
                    ops_test_read(&f.left_gradient), ops_test_read(&f.right_gradient),
                    ops_test_read(&f.rows)};
    visit_terms(&f, add_to_gradients, &host);
    device->ops->slice_products_backward(device, &f.products, f.rows.view);
    test_device_check(device);
    ops_test_expect("left gradient", &f.left_gradient, host.left_gradient);
    ops_test_expect("right gradient", &f.right_gradient, host.right_gradient);
    double *all[] = {host.left, host.right, host.left_gradient, host.right_gradient, host.rows};
    for (int i = 0; i < 5; i++) {
        free(all[i]);
    }
    free_fixture(device, &f);
}

static void test_forward(void **state)
{
    (void)state;
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        tt_device *device = test_device(threads);
        for (int i = 0; i < CASES; i++) {
            check_forward(device, cases[i], TT_F32);
            if (device->compute != TT_F32) {
                check_forward(device, cases[i], device->compute);
            }
        }
        tt_device_destroy(&device);
    }
}

static void test_backward(void **state)
{
    (void)state;
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        tt_device *device = test_device(threads);
        for (int i = 0; i < CASES; i++) {
            check_backward(device, cases[i]);
        }
        tt_device_destroy(&device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distinct_ids),
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

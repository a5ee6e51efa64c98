/* Embedding sums, gathering and scattering of rows. */
#include "ops/ops_test.h"

typedef struct {
    int64_t batch, sequence, vocabulary, hidden, segments;
} sizes;

static const sizes cases[] = {
    {1, 1, 1, 1, 1},        {2, 3, 5, 7, 2},     {3, 33, 20, 33, 2},
    {4, 128, 1000, 768, 2}, {9, 17, 40, 515, 3},
};

/* Ids that favour the small ones, as words do, so that many tokens share a row. */
static int32_t *draw_ids(int64_t count, int64_t bound, uint64_t seed)
{
    int32_t *ids = test_host((size_t)count * sizeof *ids);
    tt_random random;
    tt_random_start(&random, seed, 2);
    for (int64_t i = 0; i < count; i++) {
        uint32_t below = 1 + tt_random_below(&random, (uint32_t)bound);
        ids[i] = (int32_t)tt_random_below(&random, below);
    }
    return ids;
}

typedef struct {
    int32_t *ids, *segments;                 /* host */
    int32_t *device_ids, *device_segments;   /* device */
    ops_test_matrix word, position, segment; /* tables, or their gradients */
    tt_embedding embedding;
} fixture;

static fixture make_fixture(tt_device *device, sizes n)
{
    int64_t tokens = n.batch * n.sequence;
    size_t bytes = (size_t)tokens * sizeof(int32_t);
    fixture f = {.ids = draw_ids(tokens, n.vocabulary, 1),
                 .segments = draw_ids(tokens, n.segments, 2)};
    f.device_ids = test_copy_in(device, f.ids, bytes);
    f.device_segments = test_copy_in(device, f.segments, bytes);
    f.word = ops_test_random_f32(device, n.vocabulary, n.hidden, 0, 1.0, 3);
    f.position = ops_test_random_f32(device, n.sequence, n.hidden, 0, 1.0, 4);
    f.segment = ops_test_random_f32(device, n.segments, n.hidden, 0, 1.0, 5);
    float *word = ops_test_data(&f.word), *position = ops_test_data(&f.position),
          *segment = ops_test_data(&f.segment);
    f.embedding =
        (tt_embedding){f.device_ids, f.device_segments, n.batch, n.sequence, n.vocabulary, n.hidden,
                       word,         position,          segment, word,       position,     segment};
    return f;
}

static void free_fixture(tt_device *device, fixture *f)
{
    free(f->ids);
    free(f->segments);
    device->release(device, f->device_ids);
    device->release(device, f->device_segments);
    ops_test_free(&f->word);
    ops_test_free(&f->position);
    ops_test_free(&f->segment);
}

static void check_forward(tt_device *device, sizes n)
{
    fixture f = make_fixture(device, n);
    int64_t tokens = n.batch * n.sequence;
    ops_test_matrix y = ops_test_fill(device, tokens, n.hidden, 3, 7.0);
    double *word = ops_test_read(&f.word), *position = ops_test_read(&f.position);
    double *segment = ops_test_read(&f.segment), *expected = ops_test_read(&y);
    for (int64_t i = 0; i < tokens; i++) {
        for (int64_t j = 0; j < n.hidden; j++) {
            expected[i * n.hidden + j] = word[f.ids[i] * n.hidden + j] +
                                         position[i % n.sequence * n.hidden + j] +
                                         segment[f.segments[i] * n.hidden + j];
        }
    }
    device->ops->embedding_forward(device, &f.embedding, y.view);
    ops_test_expect_rounded("embedding", &y, expected);
    free(word);
    free(position);
    free(segment);
    free(expected);
    ops_test_free(&y);
    free_fixture(device, &f);
}

/* The gradients begin as the tables do, so that adding is told from overwriting. */
static void check_backward(tt_device *device, sizes n)
{
    fixture f = make_fixture(device, n);
    int64_t tokens = n.batch * n.sequence;
    ops_test_matrix dy = ops_test_random(device, tokens, n.hidden, 5, 1.0, 6);
    double *word = ops_test_read(&f.word), *position = ops_test_read(&f.position);
    double *segment = ops_test_read(&f.segment), *gradient = ops_test_read(&dy);
    for (int64_t i = 0; i < tokens; i++) {
        for (int64_t j = 0; j < n.hidden; j++) {
            word[f.ids[i] * n.hidden + j] += gradient[i * n.hidden + j];
            position[i % n.sequence * n.hidden + j] += gradient[i * n.hidden + j];
            segment[f.segments[i] * n.hidden + j] += gradient[i * n.hidden + j];
        }
    }
    size_t bytes = device->ops->embedding_workspace(device, tokens, n.vocabulary);
    ops_test_matrix workspace = ops_test_workspace(device, bytes);
    device->ops->embedding_backward(device, &f.embedding, dy.view, ops_test_data(&workspace));
    ops_test_expect("word gradient", &f.word, word);
    ops_test_expect("position gradient", &f.position, position);
    ops_test_expect("segment gradient", &f.segment, segment);
    free(ops_test_read(&workspace));
    ops_test_free(&workspace);
    free(word);
    free(position);
    free(segment);
    free(gradient);
    ops_test_free(&dy);
    free_fixture(device, &f);
}

static void check_rows(tt_device *device, sizes n)
{
    int64_t tokens = n.batch * n.sequence, picked = tokens / 2 + 1;
    int32_t *index = draw_ids(picked, tokens, 7);
    int32_t *device_index = test_copy_in(device, index, (size_t)picked * sizeof *index);
    ops_test_matrix x = ops_test_random(device, tokens, n.hidden, 1, 1.0, 8);
    ops_test_matrix y = ops_test_fill(device, picked, n.hidden, 2, 7.0);
    double *x_values = ops_test_read(&x), *expected = ops_test_read(&y);
    for (int64_t i = 0; i < picked * n.hidden; i++) {
        expected[i] = x_values[index[i / n.hidden] * n.hidden + i % n.hidden];
    }
    device->ops->gather_rows(device, x.view, device_index, y.view);
    ops_test_expect_equal("gathered rows", &y, expected);
    for (int64_t i = 0; i < picked * n.hidden; i++) {
        x_values[index[i / n.hidden] * n.hidden + i % n.hidden] += expected[i];
    }
    device->ops->scatter_rows(device, y.view, device_index, x.view);
    ops_test_expect("scattered rows", &x, x_values);
    free(x_values);
    free(expected);
    free(index);
    device->release(device, device_index);
    ops_test_free(&x);
    ops_test_free(&y);
}

static void on_all_cases(void (*check)(tt_device *device, sizes n))
{
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        tt_device *device = test_device(threads);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            check(device, cases[i]);
        }
        tt_device_destroy(&device);
    }
}

static void test_forward(void **state)
{
    (void)state;
    on_all_cases(check_forward);
}

static void test_backward(void **state)
{
    (void)state;
    on_all_cases(check_backward);
}

static void test_rows(void **state)
{
    (void)state;
    on_all_cases(check_rows);
}

/* Gradients of rows that many tokens share are the same bits for any number of threads. */
static void test_backward_is_deterministic(void **state)
{
    (void)state;
    const sizes n = {4, 128, 1000, 768, 2};
    double *words[2];
    for (int run = 0; run < 2; run++) {
        tt_device *device = test_device(run == 0 ? 1 : 3);
        fixture f = make_fixture(device, n);
        ops_test_matrix dy = ops_test_random(device, n.batch * n.sequence, n.hidden, 0, 1.0, 6);
        size_t bytes = device->ops->embedding_workspace(device, n.batch * n.sequence, n.vocabulary);
        ops_test_matrix workspace = ops_test_workspace(device, bytes);
        device->ops->embedding_backward(device, &f.embedding, dy.view, ops_test_data(&workspace));
        words[run] = ops_test_read(&f.word);
        ops_test_free(&workspace);
        ops_test_free(&dy);
        free_fixture(device, &f);
        tt_device_destroy(&device);
    }
    ops_test_equal("word gradient", words[1], words[0], n.vocabulary * n.hidden);
    free(words[0]);
    free(words[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_backward_is_deterministic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

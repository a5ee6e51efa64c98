/* The product's word lookup against every group of ttm_embedding*.h5. The product keeps
 * word tables dense, so the table is computed from the file's cores, and its gradient taken back
 * into them, in double precision; looking up rows and summing the gradients of repeated ids is the
 * product's. */
#include "tests/reference/reference_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>

typedef struct {
    int64_t tokens, vocabulary, width;
    tt_matrix table, table_gradient;
    tt_matrix rows, d_rows;
    int32_t *ids, *zeros;    /* device: [tokens] */
    tt_matrix nothing, sink; /* [tokens, width]: positions and segments of 0, and their gradients */
} lookup;

/* The file's ids in the device's memory, or zeros. */
static int32_t *make_ids(tt_device *device, const tt_double_tensor *ids, bool zeros)
{
    size_t bytes = (size_t)ids->shape.count * sizeof(int32_t);
    int32_t *host = malloc(bytes);
    int32_t *memory = device->allocate(device, bytes);
    assert_non_null(host);
    assert_non_null(memory);
    for (int64_t i = 0; i < ids->shape.count; i++) {
        host[i] = zeros ? 0 : (int32_t)ids->values[i];
    }
    device->copy_in(device, memory, host, bytes);
    free(host);
    return memory;
}

static lookup make(tt_device *device, const tt_double_train_matrix *matrix, int64_t vocabulary,
                   const tt_double_tensors *data)
{
    const tt_double_tensor *ids = tt_double_tensors_get(data, "ids");
    const tt_double_tensor *d_rows = tt_double_tensors_get(data, "grad_output");
    lookup lookup = {.tokens = ids->shape.count,
                     .vocabulary = vocabulary,
                     .width = tt_double_train_matrix_width(matrix)};
    assert_int_equal(d_rows->shape.count, lookup.tokens * lookup.width);
    double *table = tt_double_array(vocabulary * lookup.width);
    for (int64_t i = 0; i < lookup.tokens; i++) {
        int64_t id = (int64_t)ids->values[i];
        assert_in_range(id, 0, vocabulary - 1);
        tt_double_train_matrix_row(matrix, id, table + id * lookup.width);
    }
    lookup.table = tt_suite_table(device, vocabulary, lookup.width, table);
    lookup.table_gradient = tt_suite_table(device, vocabulary, lookup.width, NULL);
    lookup.rows = tt_suite_matrix(device, lookup.tokens, lookup.width, NULL);
    lookup.d_rows = tt_suite_matrix(device, lookup.tokens, lookup.width, d_rows->values);
    lookup.nothing = tt_suite_table(device, lookup.tokens, lookup.width, NULL);
    lookup.sink = tt_suite_table(device, lookup.tokens, lookup.width, NULL);
    lookup.ids = make_ids(device, ids, false);
    lookup.zeros = make_ids(device, ids, true);
    free(table);
    return lookup;
}

static void release(tt_device *device, lookup *lookup)
{
    void *const memory[] = {
        lookup->table.data,   lookup->table_gradient.data, lookup->rows.data, lookup->d_rows.data,
        lookup->nothing.data, lookup->sink.data,           lookup->ids,       lookup->zeros};
    for (int i = 0; i < 8; i++) {
        device->release(device, memory[i]);
    }
}

static void run(tt_device *device, const lookup *lookup)
{
    tt_embedding embedding = {.ids = lookup->ids,
                              .segments = lookup->zeros,
                              .batch = 1,
                              .sequence = lookup->tokens,
                              .vocabulary = lookup->vocabulary,
                              .hidden = lookup->width,
                              .word = lookup->table.data,
                              .position = lookup->nothing.data,
                              .segment = lookup->nothing.data,
                              .word_gradient = lookup->table_gradient.data,
                              .position_gradient = lookup->sink.data,
                              .segment_gradient = lookup->sink.data};
    size_t bytes = device->ops->embedding_workspace(device, lookup->tokens, lookup->vocabulary);
    void *workspace = device->allocate(device, bytes + 1);
    assert_non_null(workspace);
    device->ops->embedding_forward(device, &embedding, lookup->rows);
    device->ops->embedding_backward(device, &embedding, lookup->d_rows, workspace);
    test_device_check(device);
    device->release(device, workspace);
}

/* Takes the table's gradient back into the cores. */
static void contract(const tt_double_train_matrix *matrix, const lookup *lookup, const float *table)
{
    double *row = tt_double_array(lookup->width);
    for (int64_t i = 0; i < lookup->vocabulary; i++) {
        bool used = false;
        for (int64_t j = 0; j < lookup->width; j++) {
            row[j] = table[i * lookup->width + j];
            used = used || row[j] != 0;
        }
        if (used) {
            tt_double_train_matrix_gradient(matrix, i, row);
        }
    }
    free(row);
}

static bool compare_embedding(const tt_reference_file *file, const char *group,
                              tt_double_tensors *data)
{
    tt_double_train_matrix matrix = tt_suite_train_matrix(file, group, data);
    tt_device *device = tt_suite_device();
    lookup lookup = make(device, &matrix, tt_suite_integer(file, group, "vocab_size"), data);
    run(device, &lookup);
    float *rows = tt_suite_copy_out(device, lookup.rows);
    float *table = tt_suite_copy_out(device, lookup.table_gradient);
    contract(&matrix, &lookup, table);

    tt_reference_check check;
    tt_suite_begin_layer(&check, file, group);
    const tt_double_tensor *expected = tt_double_tensors_get(data, "rows");
    assert_int_equal(expected->shape.count, lookup.tokens * lookup.width);
    tt_reference_check_output(&check, "rows", expected->values, rows, expected->shape.count);
    for (int k = 1; k <= matrix.order; k++) {
        const tt_double_tensor *gradient = tt_double_tensors_get(data, "grad_core_%d", k);
        const tt_double_tensor *core = tt_double_tensors_get(data, "core_%d", k);
        assert_int_equal(gradient->shape.count, core->shape.count);
        tt_reference_check_gradient_double(&check, gradient->name, gradient->values,
                                           core->gradients, core->shape.count);
    }
    free(rows);
    free(table);
    release(device, &lookup);
    tt_device_destroy(&device);
    return tt_reference_check_finish(&check);
}

static int compare_file(const tt_reference_file *file)
{
    return tt_suite_groups(file, compare_embedding);
}

static void test_ttm_embedding(void **state)
{
    (void)state;
    tt_suite_files("ttm_embedding*.h5", compare_file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ttm_embedding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

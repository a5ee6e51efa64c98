/* The product's lookup in a tensor-train matrix against every group of ttm_embedding*.h5: rows of
 * ids that repeat, and the gradients of the cores. Where a file has no diagonals the product's are
 * 1. */
#include "core/tensor_train_matrix.h"
#include "tests/reference/reference_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

typedef struct lookup {
    tt_device *device;
    tt_parameters parameters;
    tt_train_set trains;
    tt_train_matrix matrix;
    int64_t tokens;
    int32_t *ids; /* device: [tokens] */
    tt_train_matrix_room room;
    void *positions, *segments, *sink; /* device: zeros, and gradients that nobody reads */
    void *workspace;
} lookup;

static void *allocate(tt_device *device, size_t bytes)
{
    void *memory = device->allocate(device, bytes + 1);
    assert_non_null(memory);
    return memory;
}

static int32_t *copy_ids(tt_device *device, const tt_double_tensor *ids)
{
    size_t bytes = (size_t)ids->shape.count * sizeof(int32_t);
    int32_t *host = malloc(bytes);
    assert_non_null(host);
    for (int64_t i = 0; i < ids->shape.count; i++) {
        host[i] = (int32_t)ids->values[i];
    }
    int32_t *memory = allocate(device, bytes);
    device->copy_in(device, memory, host, bytes);
    free(host);
    return memory;
}

static void set_cores(lookup *lookup, const tt_double_tensors *data)
{
    tt_train_matrix_initialize(&lookup->matrix, 1.0f, 1);
    for (int k = 1; k <= lookup->matrix.shape.order; k++) {
        char name[64];
        const tt_double_tensor *core = tt_double_tensors_get(data, "core_%d", k);
        snprintf(name, sizeof(name), "table.core_%d", k);
        tt_suite_set_parameter(&lookup->parameters, name, core->values, core->shape.count);
        const tt_double_tensor *diagonal = tt_double_tensors_find(data, "rank_diagonal_%d", k);
        if (diagonal != NULL) {
            snprintf(name, sizeof(name), "table.rank_diagonal_%d", k);
            tt_suite_set_parameter(&lookup->parameters, name, diagonal->values,
                                   diagonal->shape.count);
        }
    }
}

static void make_room(lookup *lookup)
{
    tt_device *device = lookup->device;
    const tt_train_matrix *matrix = &lookup->matrix;
    int64_t tokens = lookup->tokens, rows = tt_train_matrix_room_rows(matrix, tokens);
    size_t own = tt_train_matrix_workspace(matrix, tokens);
    size_t sums = device->ops->embedding_workspace(device, tokens, rows);
    lookup->workspace = allocate(device, own > sums ? own : sums);
    lookup->room =
        (tt_train_matrix_room){.distinct = allocate(device, (size_t)rows * sizeof(int32_t)),
                               .places = allocate(device, (size_t)tokens * sizeof(int32_t)),
                               .rows = allocate(device, tt_floats(rows * matrix->width)),
                               .workspace = lookup->workspace};
    lookup->positions = allocate(device, tt_floats(tokens * matrix->width));
    lookup->segments = allocate(device, (size_t)tokens * sizeof(int32_t));
    lookup->sink = allocate(device, tt_floats(tokens * matrix->width));
}

static void make(lookup *lookup, const tt_double_train_matrix *file, int64_t vocabulary,
                 const tt_double_tensors *data)
{
    tt_error error;
    tt_device *device = tt_suite_device();
    *lookup = (struct lookup){0};
    lookup->device = device;
    tt_train_matrix_shape shape = {.order = file->order};
    for (int k = 0; k <= file->order; k++) {
        shape.ranks[k] = file->ranks[k];
        shape.rows[k] = k < file->order ? file->rows[k] : 0;
        shape.columns[k] = k < file->order ? file->columns[k] : 0;
    }
    tt_parameters_init(&lookup->parameters, device);
    tt_train_set_init(&lookup->trains, &lookup->parameters, tt_suite_threshold(file->threshold));
    tt_suite_succeed(tt_train_matrix_add(&lookup->matrix, "table", &shape, vocabulary,
                                         tt_double_train_matrix_width(file), &lookup->trains,
                                         &error),
                     &error);
    tt_suite_succeed(tt_parameters_allocate(&lookup->parameters, false, &error), &error);
    tt_suite_succeed(tt_train_set_plan(&lookup->trains, &error), &error);
    tt_suite_succeed(tt_train_matrix_plan(&lookup->matrix, false, &error), &error);
    const tt_double_tensor *ids = tt_double_tensors_get(data, "ids");
    lookup->tokens = ids->shape.count;
    lookup->ids = copy_ids(device, ids);
    set_cores(lookup, data);
    make_room(lookup);
}

static void release(lookup *lookup)
{
    tt_device *device = lookup->device;
    void *const memory[] = {lookup->ids,       lookup->room.distinct, lookup->room.places,
                            lookup->room.rows, lookup->positions,     lookup->segments,
                            lookup->sink,      lookup->workspace};
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
        device->release(device, memory[i]);
    }
    tt_train_matrix_free(&lookup->matrix);
    tt_train_set_free(&lookup->trains);
    tt_parameters_free(&lookup->parameters);
    tt_device_destroy(&lookup->device);
}

/* As an encoder does it: through the sum of embeddings, the others being 0. */
static void run(lookup *lookup, tt_matrix rows, tt_matrix d_rows)
{
    tt_device *device = lookup->device;
    const tt_train_matrix *matrix = &lookup->matrix;
    tt_train_set_materialise(&lookup->trains);
    tt_train_matrix_materialise(&lookup->matrix);
    tt_train_matrix_look_up(matrix, lookup->ids, lookup->tokens, &lookup->room);
    tt_embedding embedding = {.ids = lookup->room.places,
                              .segments = lookup->segments,
                              .batch = 1,
                              .sequence = lookup->tokens,
                              .vocabulary = tt_train_matrix_room_rows(matrix, lookup->tokens),
                              .hidden = matrix->width,
                              .word = lookup->room.rows,
                              .position = lookup->positions,
                              .segment = lookup->positions,
                              .word_gradient = lookup->room.rows,
                              .position_gradient = lookup->sink,
                              .segment_gradient = lookup->sink};
    device->ops->embedding_forward(device, &embedding, rows);
    device->zero(device, lookup->room.rows, tt_floats(embedding.vocabulary * matrix->width));
    device->ops->embedding_backward(device, &embedding, d_rows, lookup->workspace);
    tt_train_matrix_look_up_backward(matrix, lookup->tokens, &lookup->room);
    tt_train_matrix_contract(&lookup->matrix);
    tt_train_set_contract(&lookup->trains);
    test_device_check(device);
}

/* `kind`: "core" or "rank_diagonal". */
static void compare_gradient(const lookup *lookup, const char *kind, int number,
                             const tt_double_tensors *data, tt_reference_check *check)
{
    char name[64];
    const tt_double_tensor *expected = tt_double_tensors_get(data, "grad_%s_%d", kind, number);
    snprintf(name, sizeof(name), "table.%s_%d", kind, number);
    float *found = tt_suite_gradient(&lookup->parameters, name, expected->shape.count);
    tt_reference_check_gradient(check, expected->name, expected->values, found,
                                expected->shape.count);
    free(found);
}

static bool compare_embedding(const tt_reference_file *file, const char *group,
                              tt_double_tensors *data)
{
    lookup lookup;
    tt_double_train_matrix matrix = tt_suite_train_matrix(file, group, data);
    make(&lookup, &matrix, tt_suite_integer(file, group, "vocab_size"), data);
    int64_t width = lookup.matrix.width;
    const tt_double_tensor *d_rows = tt_double_tensors_get(data, "grad_output");
    const tt_double_tensor *expected = tt_double_tensors_get(data, "rows");
    assert_int_equal(d_rows->shape.count, lookup.tokens * width);
    assert_int_equal(expected->shape.count, lookup.tokens * width);
    tt_matrix found = tt_suite_matrix(lookup.device, lookup.tokens, width, NULL);
    tt_matrix gradient = tt_suite_matrix(lookup.device, lookup.tokens, width, d_rows->values);
    run(&lookup, found, gradient);

    tt_reference_check check;
    tt_suite_begin_layer(&check, group);
    float *rows = tt_suite_copy_out(lookup.device, found);
    tt_reference_check_output(&check, "rows", expected->values, rows, expected->shape.count);
    free(rows);
    for (int k = 1; k <= matrix.order; k++) {
        compare_gradient(&lookup, "core", k, data, &check);
        if (matrix.diagonals[k - 1] != NULL) {
            compare_gradient(&lookup, "rank_diagonal", k, data, &check);
        }
    }
    lookup.device->release(lookup.device, found.data);
    lookup.device->release(lookup.device, gradient.data);
    release(&lookup);
    return tt_reference_check_finish(&check);
}

static tt_suite_count compare_file(const tt_reference_file *file)
{
    return tt_suite_groups(file, "core_1", compare_embedding);
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

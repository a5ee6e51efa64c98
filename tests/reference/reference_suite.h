/* What the tests on reference files share: walking through files and groups, and moving numbers in
 * and out of the product's parameters. Failures end the running cmocka test with the reason. */
#ifndef TT_TESTS_REFERENCE_SUITE_H
#define TT_TESTS_REFERENCE_SUITE_H

#include "core/parameters.h"
#include "tests/reference/double_tensors.h"
#include "tests/reference/double_train.h"
#include "tests/reference/reference_check.h"
#include "tests/support/test_device.h"

void tt_suite_succeed(tt_status status, const tt_error *error);

/* What was compared, and how much of it did not agree. */
typedef struct {
    int compared, failed;
} tt_suite_count;

/* Calls `run` on every matching file, those after a difference too. Prints how many groups there
 * were in all and fails when one differs. No file is a failure. */
void tt_suite_files(const char *pattern, tt_suite_count (*run)(const tt_reference_file *file));
/* Calls `compare` on every group of the file that has the dataset `mark`, with all its datasets;
 * false: it differs. A group without it is of another kind and passed over; no other is a failure.
 */
tt_suite_count tt_suite_groups(const tt_reference_file *file, const char *mark,
                               bool (*compare)(const tt_reference_file *file, const char *group,
                                               tt_double_tensors *data));

int64_t tt_suite_integer(const tt_reference_file *file, const char *object, const char *attribute);
double tt_suite_real(const tt_reference_file *file, const char *object, const char *attribute);
/* Whether the text attribute of the file names the GELU by tanh; the exact one otherwise. */
bool tt_suite_gelu_is_tanh(const tt_reference_file *file, const char *attribute);
/* A threshold as the product takes it, which compares floats: the largest float that is not above
 * it, so that floats lie to the same side. */
float tt_suite_threshold(double threshold);
/* What counts as zero where a file has no threshold. */
#define TT_SUITE_THRESHOLD 1e-2

/* The group's attributes, cores and diagonals, with its own bounds checked; a tensor-train matrix
 * may have none of the latter. */
tt_double_train tt_suite_train(const tt_reference_file *file, const char *group,
                               const tt_double_tensors *data);
tt_double_train_matrix tt_suite_train_matrix(const tt_reference_file *file, const char *group,
                                             const tt_double_tensors *data);

/* The device that the tests run on (test_device.h). */
tt_device *tt_suite_device(void);
/* Begin a comparison with what layers and models on it must agree to. In f32 that is 1e-5 for every
 * tensor of a layer and 5e-5 for a model's. In bf16 it is 2e-2 for a layer's tensors. Of a model,
 * the loss is held to 1e-2 and the whole gradient to 1e-1. */
void tt_suite_begin_layer(tt_reference_check *check, const char *group);
void tt_suite_begin_model(tt_reference_check *check, const char *name);

/* A matrix in the device's memory; `values` NULL: zeros. Activations have the device's compute
 * type, tables and their gradients are f32. */
tt_matrix tt_suite_matrix(tt_device *device, int64_t rows, int64_t columns, const double *values);
tt_matrix tt_suite_table(tt_device *device, int64_t rows, int64_t columns, const double *values);
/* The numbers of a device's matrix, rows next to each other; free() them. */
float *tt_suite_copy_out(tt_device *device, tt_matrix matrix);

/* The parameter `name` takes these values, or: its gradient, to be freed. Its size must be `count`.
 */
void tt_suite_set_parameter(tt_parameters *parameters, const char *name, const double *values,
                            int64_t count);
float *tt_suite_gradient(const tt_parameters *parameters, const char *name, int64_t count);

#endif

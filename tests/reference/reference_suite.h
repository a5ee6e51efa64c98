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

/* Calls `run` on every matching file; it returns how many groups it compared. Prints the number in
 * all. No file is a failure. */
void tt_suite_files(const char *pattern, int (*run)(const tt_reference_file *file));
/* Calls `compare` on every group of the file with all its datasets; false is a failure. */
int tt_suite_groups(const tt_reference_file *file,
                    bool (*compare)(const tt_reference_file *file, const char *group,
                                    tt_double_tensors *data));

int64_t tt_suite_integer(const tt_reference_file *file, const char *object, const char *attribute);
double tt_suite_real(const tt_reference_file *file, const char *object, const char *attribute);
/* The group's attributes and cores, with its own bounds checked. */
tt_double_train tt_suite_train(const tt_reference_file *file, const char *group,
                               const tt_double_tensors *data);
tt_double_train_matrix tt_suite_train_matrix(const tt_reference_file *file, const char *group,
                                             const tt_double_tensors *data);

/* The device that the tests run on (test_device.h). */
tt_device *tt_suite_device(void);
/* Begin a comparison with what layers and models on it must agree to. In f32 that is 1e-5 for every
 * tensor of a layer and 5e-5 for a model's. In bf16 it is 2e-2 for a layer's tensors; the gradients
 * of the project's own files, some of which are a few numbers in which large ones cancel, are
 * measured against at least 2e-1 of the whole gradient. Of a model, the loss is held to 1e-2 and
 * the whole gradient to 1e-1. */
void tt_suite_begin_layer(tt_reference_check *check, const tt_reference_file *file,
                          const char *group);
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

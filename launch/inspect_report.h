/* Reports on one thing each, as JSON trees: printed as they are for programs, as text and tables
 * for people. Inside launch/inspect*.c and table.c only. */
#ifndef TT_LAUNCH_INSPECT_REPORT_H
#define TT_LAUNCH_INSPECT_REPORT_H

#include "core/error.h"
#include "core/tensor_train.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Each makes a report; release it with json_decref. */
tt_status tt_inspect_checkpoint(const char *path, json_t **report, tt_error *error);
tt_status tt_inspect_run(const char *path, json_t **report, tt_error *error);
tt_status tt_inspect_shard(const char *path, json_t **report, tt_error *error);
tt_status tt_inspect_tokenizer(const char *path, json_t **report, tt_error *error);
tt_status tt_inspect_recipe(const char *path, const char *const *overrides, int override_count,
                            json_t **report, tt_error *error);

/* A list of the first `count` integers. */
json_t *tt_inspect_integers(const int64_t *values, int count);
/* Adds modes, ranks, sizes and compression of a tensor train to `entry`. */
void tt_inspect_add_shape(json_t *entry, const tt_train_shape *shape);
/* Adds parameters, dense_parameters, their bytes in f32, and compression. */
void tt_inspect_add_sizes(json_t *report, int64_t parameters, int64_t dense_parameters);

/* A line a value; a list of objects becomes a table. */
void tt_inspect_print(const json_t *report, FILE *stream);

#endif

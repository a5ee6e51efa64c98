/* All learnable numbers of a model in one flat buffer of f32, in three contiguous ranges (tensor
 * cores, rank diagonals, dense rest), with flat buffers of the same layout for gradients and for
 * each optimizer moment. A parameter is a name, a shape, a group and an offset; so the all-reduce
 * works on ranges, the optimizer is a few passes, and a checkpoint is a walk over names.
 *
 * Use: add every parameter, allocate once, then ask for addresses. Each parameter starts at a
 * 64-byte boundary; the gaps hold zeros in every buffer and stay zero. */
#ifndef TT_CORE_PARAMETERS_H
#define TT_CORE_PARAMETERS_H

#include "core/ops.h"

enum { TT_MAX_DIMENSIONS = 4, TT_PARAMETER_ALIGNMENT = 16 /* floats */ };

typedef enum { TT_GROUP_CORES, TT_GROUP_DIAGONALS, TT_GROUP_DENSE, TT_GROUP_COUNT } tt_group;

typedef struct {
    char name[128];
    int dimensions;
    int64_t shape[TT_MAX_DIMENSIONS];
    int64_t count; /* product of the shape */
    tt_group group;
    bool decays; /* weight decay and LAMB's trust ratio apply (not to biases, LayerNorm, diagonals)
                  */
    int64_t offset; /* in floats, set by allocate */
} tt_parameter;

/* Room behind the gradients for the sums that are reduced with them (losses, counts): floats. */
enum { TT_STATISTICS = 16 };

typedef struct {
    tt_device *device;
    tt_parameter *items;
    int count, capacity;
    int64_t range_start[TT_GROUP_COUNT + 1]; /* floats; range g is [start[g], start[g + 1]) */
    int64_t total;                           /* floats in one buffer, gaps included */
    float *values;
    void *rounded;        /* the dense rest in the device's compute type; NULL where that is f32 */
    float *gradients;     /* total + TT_STATISTICS floats */
    float *first_moment;  /* optimizer state */
    float *second_moment; /* optimizer state */
} tt_parameters;

typedef int tt_parameter_id;

void tt_parameters_init(tt_parameters *parameters, tt_device *device);
/* Fails on a repeated name, a name too long, or a shape that is not positive. */
tt_status tt_parameters_add(tt_parameters *parameters, const char *name, tt_group group,
                            bool decays, int dimensions, const int64_t *shape, tt_parameter_id *id,
                            tt_error *error);
/* Lays out and allocates values and gradients, and the moments when `with_moments`. */
tt_status tt_parameters_allocate(tt_parameters *parameters, bool with_moments, tt_error *error);
void tt_parameters_free(tt_parameters *parameters);

float *tt_parameters_value(const tt_parameters *parameters, tt_parameter_id id);
float *tt_parameters_gradient(const tt_parameters *parameters, tt_parameter_id id);
/* A weight of the dense rest, a matrix, as products read it: in the device's compute type. Where
 * that is not f32 it has the value that tt_parameters_round found. */
tt_matrix tt_parameters_weight(const tt_parameters *parameters, tt_parameter_id id);
/* Rounds the dense rest to the device's compute type; once a step, after the update. */
void tt_parameters_round(const tt_parameters *parameters);
/* Sets every entry to `value`, or draws it from a normal distribution: entry i of the parameter is
 * a pure function of (seed, name, i), whatever else the model holds. */
void tt_parameters_fill(tt_parameters *parameters, tt_parameter_id id, float value);
void tt_parameters_fill_normal(tt_parameters *parameters, tt_parameter_id id, float deviation,
                               uint64_t seed);
/* The statistics behind the gradients. */
float *tt_parameters_statistics(const tt_parameters *parameters);
/* -1 when there is none of that name. */
tt_parameter_id tt_parameters_find(const tt_parameters *parameters, const char *name);
/* Number of learnable numbers, gaps left out. */
int64_t tt_parameters_size(const tt_parameters *parameters);

#endif

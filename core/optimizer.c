#include "core/optimizer.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

struct tt_optimizer {
    const tt_parameters *parameters;
    tt_device *device;
    tt_optimizer_options options;
    tt_segment *segments;
    tt_step_state *state; /* device memory, as is the workspace */
    void *workspace;
};

static bool in_range(double value, double from, double below)
{
    return value >= from && value < below;
}

static tt_status check_options(const tt_optimizer_options *options, tt_error *error)
{
    const tt_update_rule *rule = &options->rule;
    const struct {
        const char *name;
        double value, from, below;
    } ranges[] = {
        {"beta1", rule->beta1, 0.0, 1.0},
        {"beta2", rule->beta2, 0.0, 1.0},
        {"epsilon", rule->epsilon, FLT_MIN, INFINITY},
        {"weight decay", rule->weight_decay, 0.0, INFINITY},
        {"clipping norm", rule->clip_norm, 0.0, INFINITY},
        {"learning rate of cores", options->learning_rate[TT_GROUP_CORES], 0.0, INFINITY},
        {"learning rate of diagonals", options->learning_rate[TT_GROUP_DIAGONALS], 0.0, INFINITY},
        {"learning rate of the dense rest", options->learning_rate[TT_GROUP_DENSE], 0.0, INFINITY},
        {"total steps", (double)options->total_steps, 1.0, INFINITY},
        {"losses to check", options->loss_count, 0.0, TT_STATISTICS + 1},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (!in_range(ranges[i].value, ranges[i].from, ranges[i].below)) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "optimizer: %s: expected at least %g and below %g, found %g",
                                ranges[i].name, ranges[i].from, ranges[i].below, ranges[i].value);
        }
    }
    return tt_schedule_check(&options->schedule, error);
}

static int compare_offsets(const void *a, const void *b)
{
    int64_t first = ((const tt_segment *)a)->offset, second = ((const tt_segment *)b)->offset;
    return (first > second) - (first < second);
}

/* Sets segments, workspace and state. */
static tt_status allocate(tt_optimizer *optimizer, tt_error *error)
{
    const tt_parameters *parameters = optimizer->parameters;
    tt_device *device = optimizer->device;
    int count = parameters->count;
    tt_segment *segments = calloc((size_t)(count > 0 ? count : 1), sizeof *segments);
    optimizer->segments = segments;
    if (segments == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the optimizer");
    }
    for (int i = 0; i < count; i++) {
        const tt_parameter *parameter = &parameters->items[i];
        segments[i] = (tt_segment){.offset = parameter->offset,
                                   .count = parameter->count,
                                   .group = (int)parameter->group,
                                   .decays = parameter->decays};
    }
    qsort(segments, (size_t)count, sizeof *segments, compare_offsets);
    size_t bytes = device->ops->update_workspace(device, segments, count);
    optimizer->workspace = device->allocate(device, bytes);
    optimizer->state = device->allocate(device, sizeof *optimizer->state);
    if (optimizer->workspace == NULL || optimizer->state == NULL) {
        return tt_device_no_memory(device, "the optimizer's partial sums", bytes, error);
    }
    return TT_OK;
}

tt_status tt_optimizer_create(const tt_parameters *parameters, const tt_optimizer_options *options,
                              tt_optimizer **optimizer, tt_error *error)
{
    TT_TRY(check_options(options, error));
    tt_device *device = parameters->device;
    tt_optimizer *created = calloc(1, sizeof *created);
    if (created == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the optimizer");
    }
    created->parameters = parameters;
    created->device = device;
    created->options = *options;
    tt_status status = allocate(created, error);
    if (status != TT_OK) {
        tt_optimizer_destroy(&created);
    }
    *optimizer = created;
    return status;
}

void tt_optimizer_destroy(tt_optimizer **optimizer)
{
    tt_optimizer *gone = *optimizer;
    if (gone != NULL) {
        if (gone->workspace != NULL) {
            gone->device->release(gone->device, gone->workspace);
        }
        if (gone->state != NULL) {
            gone->device->release(gone->device, gone->state);
        }
        free(gone->segments);
        free(gone);
    }
    *optimizer = NULL;
}

tt_step_settings tt_optimizer_settings(const tt_optimizer *optimizer, int64_t number,
                                       int64_t schedule_step)
{
    const tt_optimizer_options *options = &optimizer->options;
    double factor = tt_schedule_factor(&options->schedule, schedule_step, options->total_steps);
    tt_step_settings settings = {.step = (uint32_t)number};
    for (int group = 0; group < TT_GROUP_COUNT; group++) {
        settings.learning_rate[group] = (float)(options->learning_rate[group] * factor);
    }
    return settings;
}

/* The settings are the first members of the state. */
static_assert(offsetof(tt_step_state, step) == offsetof(tt_step_settings, step) &&
                  offsetof(tt_step_state, learning_rate) ==
                      offsetof(tt_step_settings, learning_rate) &&
                  offsetof(tt_step_state, updates) >= sizeof(tt_step_settings),
              "tt_step_state begins with tt_step_settings");

void tt_optimizer_take_settings(tt_optimizer *optimizer, const tt_step_settings *settings)
{
    tt_device *device = optimizer->device;
    device->copy(device, optimizer->state, settings, sizeof *settings);
}

void tt_optimizer_prepare_step(tt_optimizer *optimizer, int64_t number, int64_t schedule_step)
{
    tt_step_settings settings = tt_optimizer_settings(optimizer, number, schedule_step);
    tt_device *device = optimizer->device;
    device->copy_in(device, optimizer->state, &settings, sizeof settings);
}

void tt_optimizer_apply(tt_optimizer *optimizer)
{
    const tt_parameters *parameters = optimizer->parameters;
    tt_device *device = optimizer->device;
    tt_update update = {
        .segments = optimizer->segments,
        .count = parameters->count,
        .total = parameters->total,
        .values = parameters->values,
        .gradients = parameters->gradients,
        .first_moment = parameters->first_moment,
        .second_moment = parameters->second_moment,
        .loss_sums = tt_parameters_statistics(parameters),
        .loss_count = optimizer->options.loss_count,
        .state = optimizer->state,
        .workspace = optimizer->workspace,
    };
    device->ops->gradient_check(device, &optimizer->options.rule, &update);
    device->ops->update(device, &optimizer->options.rule, &update);
}

const tt_step_state *tt_optimizer_state(const tt_optimizer *optimizer)
{
    return optimizer->state;
}

float *tt_optimizer_holds(tt_optimizer *optimizer)
{
    return &optimizer->state->holds;
}

tt_step_state tt_optimizer_read_state(tt_optimizer *optimizer)
{
    tt_step_state state;
    optimizer->device->synchronize(optimizer->device);
    optimizer->device->copy_out(optimizer->device, &state, optimizer->state, sizeof state);
    return state;
}

uint32_t tt_optimizer_updates(tt_optimizer *optimizer)
{
    return tt_optimizer_read_state(optimizer).updates;
}

void tt_optimizer_restore(tt_optimizer *optimizer, uint32_t updates)
{
    tt_device *device = optimizer->device;
    device->copy_in(device, &optimizer->state->updates, &updates, sizeof updates);
}

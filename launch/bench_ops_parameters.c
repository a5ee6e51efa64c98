/* What runs once a step, on all parameters of a six-layer model: the factors of 36 tensor trains
 * and their gradients, and the optimizer's passes. */
#include "core/rank.h"
#include "launch/bench.h"
#include "launch/bench_ops.h"

#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 6 };

typedef struct {
    tt_device *device;
    tt_bench_memory memory;
    tt_parameters parameters;
    tt_train_set trains;
    tt_parameter_id word;
    tt_linear maps[LAYERS][TT_BENCH_MAPS];
    tt_scaled_core *cores;
    int core_count;
    tt_segment *segments;
    tt_update_rule rule;
    tt_update update;
    tt_rank_objective *ranks;
    tt_rank_settings *stages; /* device: early, late */
    float *loss_scale;
} operands;

static void run_scale(void *user, int backward)
{
    operands *o = user;
    if (backward) {
        o->device->ops->scale_cores_backward(o->device, o->cores, o->core_count);
    } else {
        o->device->ops->scale_cores(o->device, o->cores, o->core_count);
    }
}

static void run_trains(void *user, int backward)
{
    operands *o = user;
    if (backward) {
        tt_train_set_contract(&o->trains);
    } else {
        tt_train_set_materialise(&o->trains);
    }
}

static void run_check(void *user, int unused)
{
    (void)unused;
    operands *o = user;
    o->device->ops->gradient_check(o->device, &o->rule, &o->update);
}

static void run_update(void *user, int trust_ratio)
{
    operands *o = user;
    o->rule.trust_ratio = trust_ratio != 0;
    o->device->ops->update(o->device, &o->rule, &o->update);
}

static void run_ranks(void *user, int stage)
{
    operands *o = user;
    tt_rank_objective_apply(o->ranks, o->stages + stage, o->loss_scale, 1, &o->update.state->holds);
}

/* Numbers in the cores and in A and B, and the operations that make these from those. */
typedef struct {
    double cores, parameters, factors, flops;
} work;

static double mode_product(const tt_train_shape *shape, int from, int to)
{
    double product = 1;
    for (int k = from; k < to; k++) {
        product *= (double)shape->modes[k];
    }
    return product;
}

static void add_work(const tt_train_shape *shape, double count, work *sum)
{
    int cut = shape->input_order, order = shape->order;
    double inputs = mode_product(shape, 0, cut), outputs = mode_product(shape, cut, order);
    double flops = 0;
    for (int k = 1; k < cut; k++) {
        flops +=
            2 * mode_product(shape, 0, k + 1) * (double)(shape->ranks[k] * shape->ranks[k + 1]);
    }
    for (int k = cut; k + 1 < order; k++) {
        flops +=
            2 * mode_product(shape, k, order) * (double)(shape->ranks[k] * shape->ranks[k + 1]);
    }
    sum->cores += count * (double)tt_train_core_size(shape);
    sum->parameters += count * ((double)tt_train_size(shape) + outputs);
    sum->factors += count * (double)shape->ranks[cut] * (inputs + outputs);
    sum->flops += count * flops;
}

static work work_of(const tt_bench_sizes *sizes)
{
    const struct {
        int64_t inputs, outputs;
        double count;
    } kinds[] = {{sizes->hidden, sizes->hidden, 4 * LAYERS},
                 {sizes->hidden, sizes->inner, LAYERS},
                 {sizes->inner, sizes->hidden, LAYERS}};
    work sum = {.parameters = (double)(sizes->vocabulary * sizes->hidden)};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        tt_linear_form form;
        tt_error unused;
        if (tt_bench_train_form(kinds[i].inputs, kinds[i].outputs, sizes->rank, &form, &unused) ==
            TT_OK) {
            add_work(&form.shape, kinds[i].count, &sum);
        }
    }
    return sum;
}

static int list(const tt_bench_sizes *sizes, tt_bench_case *cases)
{
    work w = work_of(sizes);
    double all = 4 * w.parameters, cores = 4 * w.cores, factors = 4 * w.factors;
    const tt_bench_case table[] = {
        {"scale_cores", "36 tensor trains", run_scale, 0, 2 * cores, 0},
        {"scale_cores_backward", "36 tensor trains", run_scale, 1, 4 * cores, 0},
        {"materialise", "36 tensor trains", run_trains, 0, cores + 2 * factors, w.flops},
        {"contract", "36 tensor trains", run_trains, 1, 3 * cores + factors, 2 * w.flops},
        {"gradient_check", "cores and embeddings", run_check, 0, all, 0},
        {"update", "AdamW", run_update, 0, 7 * all, 0},
        {"update", "LAMB", run_update, 1, 7 * all, 0},
        {"rank_objective", "early stage", run_ranks, 0, 3 * cores, 0},
        {"rank_objective", "late stage", run_ranks, 1, 3 * cores + 2 * all, 0},
    };
    int count = sizeof table / sizeof *table;
    for (int i = 0; i < count; i++) {
        cases[i] = table[i];
    }
    return count;
}

static tt_status create_model(operands *o, const tt_bench_sizes *sizes, tt_error *error)
{
    TT_TRY(tt_parameters_add(&o->parameters, "word_embeddings", TT_GROUP_DENSE, true, 2,
                             (int64_t[]){sizes->vocabulary, sizes->hidden}, &o->word, error));
    for (int layer = 0; layer < LAYERS; layer++) {
        char name[32];
        snprintf(name, sizeof name, "layer.%d", layer);
        TT_TRY(tt_bench_add_maps(o->maps[layer], name, TT_TENSOR_TRAIN, sizes, &o->parameters,
                                 &o->trains, error));
    }
    TT_TRY(tt_parameters_allocate(&o->parameters, true, error));
    TT_TRY(tt_train_set_plan(&o->trains, error));
    for (int i = 0; i < LAYERS * TT_BENCH_MAPS; i++) {
        tt_linear_initialize(&o->maps[0][0] + i, 0.02f, 1);
    }
    tt_parameters_fill(&o->parameters, o->word, 0.02f);
    float *gradients = tt_bench_random(o->device, o->parameters.total);
    if (gradients == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for gradients");
    }
    tt_copy copy = {.source = tt_matrix_f32(gradients, 1, o->parameters.total),
                    .target = tt_matrix_f32(o->parameters.gradients, 1, o->parameters.total)};
    o->device->ops->copy_group(o->device, &copy, 1);
    o->device->synchronize(o->device);
    o->device->release(o->device, gradients);
    return TT_OK;
}

/* The cores of all trains with scaled copies apart from the plan's. */
static void list_cores(operands *o)
{
    int64_t total = 0;
    for (int i = 0; i < o->trains.count; i++) {
        total += tt_train_core_size(&o->trains.trains[i].shape);
    }
    float *scaled = tt_bench_floats(&o->memory, total);
    float *gradient = tt_bench_floats(&o->memory, total);
    int64_t used = 0;
    for (int i = 0; !o->memory.failed && i < o->trains.count; i++) {
        const tt_train *train = &o->trains.trains[i];
        for (int k = 0; k + 1 < train->shape.order; k++) {
            tt_scaled_core *core = &o->cores[o->core_count++];
            *core = (tt_scaled_core){
                .core = tt_parameters_value(&o->parameters, train->cores[k]),
                .diagonal = tt_parameters_value(&o->parameters, train->diagonals[k]),
                .scaled = scaled + used,
                .scaled_gradient = gradient + used,
                .core_gradient = tt_parameters_gradient(&o->parameters, train->cores[k]),
                .diagonal_gradient = tt_parameters_gradient(&o->parameters, train->diagonals[k]),
                .rows = train->shape.ranks[k] * train->shape.modes[k],
                .rank = train->shape.ranks[k + 1],
                .threshold = 0.01f};
            used += core->rows * core->rank;
        }
    }
}

/* In order of offset: ranges lie one behind the other, and in each the order is that of adding. */
static void list_segments(operands *o)
{
    int count = 0;
    for (int group = 0; group < TT_GROUP_COUNT; group++) {
        for (int i = 0; i < o->parameters.count; i++) {
            const tt_parameter *parameter = &o->parameters.items[i];
            if ((int)parameter->group == group) {
                o->segments[count++] = (tt_segment){.offset = parameter->offset,
                                                    .count = parameter->count,
                                                    .group = group,
                                                    .decays = parameter->decays};
            }
        }
    }
}

static void create_update(operands *o)
{
    const tt_parameters *parameters = &o->parameters;
    const tt_step_state initial = {
        .learning_rate = {1e-4f, 1e-4f, 1e-4f}, .gradient_factor = 1.0f, .finite = 1.0f};
    tt_step_state *state = tt_bench_zeros(&o->memory, sizeof *state);
    if (state != NULL) {
        o->device->copy_in(o->device, state, &initial, sizeof initial);
    }
    o->rule = (tt_update_rule){.beta1 = 0.9f,
                               .beta2 = 0.999f,
                               .epsilon = 1e-6f,
                               .weight_decay = 0.01f,
                               .clip_norm = 1.0f,
                               .threshold = 0.01f};
    o->update = (tt_update){
        .segments = o->segments,
        .count = parameters->count,
        .total = parameters->total,
        .values = parameters->values,
        .gradients = parameters->gradients,
        .first_moment = parameters->first_moment,
        .second_moment = parameters->second_moment,
        .loss_sums = tt_parameters_statistics(parameters),
        .loss_count = 1,
        .state = state,
        .workspace = tt_bench_zeros(&o->memory, o->device->ops->update_workspace(
                                                    o->device, o->segments, parameters->count)),
    };
}

/* Both stages add the gradient of the squared cores; the late one scales all gradients too. */
static tt_status create_ranks(operands *o, tt_error *error)
{
    const tt_rank_settings stages[] = {
        {.unit = 1e6, .gamma = 1e-2f, .beta = 1e-6f, .stage = TT_RANKS_EARLY},
        {.unit = 1e6, .target = 1, .beta = 1e-6f, .rho = 0.9f, .w2 = 1.0f, .stage = TT_RANKS_LATE}};
    o->loss_scale = tt_bench_zeros(&o->memory, sizeof *o->loss_scale);
    o->stages = tt_bench_zeros(&o->memory, sizeof stages);
    if (o->stages != NULL) {
        o->device->copy_in(o->device, o->stages, stages, sizeof stages);
    }
    return tt_rank_objective_create(&o->trains, &o->ranks, error);
}

static tt_status create(tt_device *device, const tt_bench_sizes *sizes, void **result,
                        tt_error *error)
{
    operands *o = calloc(1, sizeof *o);
    *result = o;
    if (o == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for operands");
    }
    o->device = device;
    o->memory.device = device;
    tt_parameters_init(&o->parameters, device);
    tt_train_set_init(&o->trains, &o->parameters, 0.01f);
    TT_TRY(create_model(o, sizes, error));
    o->cores = calloc((size_t)o->trains.count * TT_MAX_ORDER, sizeof *o->cores);
    o->segments = calloc((size_t)o->parameters.count, sizeof *o->segments);
    if (o->cores == NULL || o->segments == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for operands");
    }
    list_cores(o);
    list_segments(o);
    create_update(o);
    TT_TRY(create_ranks(o, error));
    tt_train_set_materialise(&o->trains);
    return tt_bench_memory_check(&o->memory, error);
}

static void destroy(void *user)
{
    operands *o = user;
    if (o != NULL) {
        tt_rank_objective_destroy(&o->ranks);
        tt_bench_memory_release(&o->memory);
        tt_train_set_free(&o->trains);
        tt_parameters_free(&o->parameters);
        free(o->cores);
        free(o->segments);
        free(o);
    }
}

const tt_bench_family tt_bench_parameters = {.list = list, .create = create, .destroy = destroy};

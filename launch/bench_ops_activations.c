/* What passes once over rows of activations. */
#include "launch/bench_ops.h"

#include <stdlib.h>

typedef struct {
    tt_bench_memory memory;
    tt_matrix x, y, z;           /* [tokens, hidden] */
    tt_matrix wide[3];           /* [tokens, inner] */
    tt_matrix pooled[3];         /* [batch, hidden] */
    float *bias, *bias_gradient; /* [inner] */
    tt_dropout dropout;
    tt_residual_norm norm;
} operands;

static void run_add_bias(void *user, int backward)
{
    operands *o = user;
    tt_device *device = o->memory.device;
    if (backward) {
        device->ops->add_bias_backward(device, o->y, o->bias_gradient);
    } else {
        device->ops->add_bias(device, o->y, o->bias);
    }
}

static void run_gelu_forward(void *user, int kind)
{
    operands *o = user;
    tt_device *device = o->memory.device;
    device->ops->gelu_forward(device, (tt_gelu)kind, o->wide[0], o->bias, o->wide[1]);
}

static void run_gelu_backward(void *user, int kind)
{
    operands *o = user;
    tt_device *device = o->memory.device;
    device->ops->gelu_backward(device, (tt_gelu)kind, o->wide[0], o->wide[1], o->wide[2],
                               (tt_matrix){0}, o->bias_gradient);
}

static void run_tanh(void *user, int backward)
{
    operands *o = user;
    tt_device *device = o->memory.device;
    if (backward) {
        device->ops->tanh_backward(device, o->pooled[1], o->pooled[0], o->pooled[2],
                                   o->bias_gradient);
    } else {
        device->ops->tanh_forward(device, o->pooled[0], o->bias, o->pooled[1]);
    }
}

static void run_dropout(void *user, int unused)
{
    (void)unused;
    operands *o = user;
    o->memory.device->ops->dropout(o->memory.device, o->z, &o->dropout);
}

static void run_norm(void *user, int pass)
{
    operands *o = user;
    tt_device *device = o->memory.device;
    if (pass == 0) {
        device->ops->residual_norm_forward(device, &o->norm, o->x, o->y, o->z);
    } else if (pass == 1) {
        device->ops->residual_norm_output(device, &o->norm, o->z);
    } else {
        device->ops->residual_norm_backward(device, &o->norm, o->x, o->y, o->z);
    }
}

static int list(const tt_bench_sizes *sizes, tt_bench_case *cases)
{
    double stream = 4.0 * (double)(sizes->tokens * sizes->hidden);
    double wide = 4.0 * (double)(sizes->tokens * sizes->inner);
    double pooled = 4.0 * (double)(sizes->batch * sizes->hidden);
    const tt_bench_case all[] = {
        {"add_bias", "tokens x hidden", run_add_bias, 0, 2 * stream, 0},
        {"add_bias_backward", "tokens x hidden", run_add_bias, 1, stream, 0},
        {"gelu_forward", "erf, tokens x inner", run_gelu_forward, TT_GELU_ERF, 3 * wide, 0},
        {"gelu_forward", "tanh, tokens x inner", run_gelu_forward, TT_GELU_TANH, 3 * wide, 0},
        {"gelu_backward", "erf, tokens x inner", run_gelu_backward, TT_GELU_ERF, 3 * wide, 0},
        {"gelu_backward", "tanh, tokens x inner", run_gelu_backward, TT_GELU_TANH, 3 * wide, 0},
        {"tanh_forward", "batch x hidden", run_tanh, 0, 2 * pooled, 0},
        {"tanh_backward", "batch x hidden", run_tanh, 1, 3 * pooled, 0},
        {"dropout", "0.1, tokens x hidden", run_dropout, 0, 2 * stream, 0},
        {"residual_norm_forward", "tokens x hidden", run_norm, 0, 4 * stream, 0},
        {"residual_norm_output", "tokens x hidden", run_norm, 1, 2 * stream, 0},
        {"residual_norm_backward", "tokens x hidden", run_norm, 2, 4 * stream, 0},
    };
    int count = sizeof all / sizeof *all;
    for (int i = 0; i < count; i++) {
        cases[i] = all[i];
    }
    return count;
}

static void create_norm(operands *o, const tt_bench_sizes *sizes)
{
    tt_bench_memory *memory = &o->memory;
    int64_t hidden = sizes->hidden;
    o->norm = (tt_residual_norm){
        .bias = tt_bench_floats(memory, hidden),
        .weight = tt_bench_floats(memory, hidden),
        .shift = tt_bench_floats(memory, hidden),
        .bias_gradient = tt_bench_floats(memory, hidden),
        .weight_gradient = tt_bench_floats(memory, hidden),
        .shift_gradient = tt_bench_floats(memory, hidden),
        .epsilon = 1e-12f,
        .dropout = o->dropout,
        .state = {.normalized = tt_bench_matrix(memory, sizes->tokens, hidden),
                  .inverse_deviation = tt_bench_floats(memory, sizes->tokens)},
    };
    o->norm.dropout.probability = (float)sizes->dropout;
}

static tt_status create(tt_device *device, const tt_bench_sizes *sizes, void **result,
                        tt_error *error)
{
    operands *o = calloc(1, sizeof *o);
    *result = o;
    if (o == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for operands");
    }
    tt_bench_memory *memory = &o->memory;
    int64_t widest = sizes->inner > sizes->hidden ? sizes->inner : sizes->hidden;
    memory->device = device;
    o->x = tt_bench_matrix(memory, sizes->tokens, sizes->hidden);
    o->y = tt_bench_matrix(memory, sizes->tokens, sizes->hidden);
    o->z = tt_bench_matrix(memory, sizes->tokens, sizes->hidden);
    for (int i = 0; i < 3; i++) {
        o->wide[i] = tt_bench_matrix(memory, sizes->tokens, sizes->inner);
        o->pooled[i] = tt_bench_matrix(memory, sizes->batch, sizes->hidden);
    }
    /* 0, because it is added to the same numbers over and over. */
    o->bias = tt_bench_zeros(memory, (size_t)widest * sizeof(float));
    o->bias_gradient = tt_bench_zeros(memory, (size_t)widest * sizeof(float));
    o->dropout = (tt_dropout){.probability = 0.1f,
                              .seed = 1,
                              .step = tt_bench_zeros(memory, sizeof(uint32_t)),
                              .site = 1};
    create_norm(o, sizes);
    return tt_bench_memory_check(memory, error);
}

static void destroy(void *user)
{
    operands *o = user;
    if (o != NULL) {
        tt_bench_memory_release(&o->memory);
        free(o);
    }
}

const tt_bench_family tt_bench_activations = {.list = list, .create = create, .destroy = destroy};

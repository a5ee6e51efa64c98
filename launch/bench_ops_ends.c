/* The two ends of a model: embeddings, rows of masked positions, losses. */
#include "launch/bench_ops.h"

#include <stdlib.h>

typedef struct {
    tt_bench_memory memory;
    tt_embedding embedding;
    void *workspace;
    tt_matrix hidden, gathered; /* [tokens, hidden], [predictions, hidden] */
    const int32_t *rows;        /* [predictions] */
    tt_cross_entropy loss;
    const float *scale;
} operands;

static void run_embedding(void *user, int backward)
{
    operands *o = user;
    tt_device *device = o->memory.device;
    if (backward) {
        device->ops->embedding_backward(device, &o->embedding, o->hidden, o->workspace);
    } else {
        device->ops->embedding_forward(device, &o->embedding, o->hidden);
    }
}

static void run_rows(void *user, int backward)
{
    operands *o = user;
    tt_device *device = o->memory.device;
    if (backward) {
        device->ops->scatter_rows(device, o->gathered, o->rows, o->hidden);
    } else {
        device->ops->gather_rows(device, o->hidden, o->rows, o->gathered);
    }
}

static void run_loss(void *user, int with_gradient)
{
    operands *o = user;
    o->loss.gradient_scale = with_gradient ? o->scale : NULL;
    o->memory.device->ops->cross_entropy(o->memory.device, &o->loss);
}

static int list(const tt_bench_sizes *sizes, tt_bench_case *cases)
{
    double stream = 4.0 * (double)(sizes->tokens * sizes->hidden);
    double rows = 4.0 * (double)(sizes->predictions * sizes->hidden);
    double logits = 4.0 * (double)(sizes->predictions * sizes->vocabulary);
    const tt_bench_case all[] = {
        {"embedding_forward", "tokens x hidden", run_embedding, 0, 2 * stream, 0},
        {"embedding_backward", "tokens x hidden", run_embedding, 1, 3 * stream, 0},
        {"gather_rows", "15 % of tokens x hidden", run_rows, 0, 2 * rows, 0},
        {"scatter_rows", "15 % of tokens x hidden", run_rows, 1, 3 * rows, 0},
        {"cross_entropy", "loss only", run_loss, 0, logits, 0},
        {"cross_entropy", "loss and gradient", run_loss, 1, 2 * logits, 0},
    };
    int count = sizeof all / sizeof *all;
    for (int i = 0; i < count; i++) {
        cases[i] = all[i];
    }
    return count;
}

static void create_embedding(operands *o, const tt_bench_sizes *sizes)
{
    enum { SEGMENTS = 2 };
    tt_bench_memory *memory = &o->memory;
    int64_t hidden = sizes->hidden;
    o->embedding = (tt_embedding){
        .ids = tt_bench_integers(memory, sizes->tokens, sizes->vocabulary),
        .segments = tt_bench_integers(memory, sizes->tokens, SEGMENTS),
        .batch = sizes->batch,
        .sequence = sizes->sequence,
        .vocabulary = sizes->vocabulary,
        .hidden = hidden,
        .word = tt_bench_floats(memory, sizes->vocabulary * hidden),
        .position = tt_bench_floats(memory, sizes->sequence * hidden),
        .segment = tt_bench_floats(memory, SEGMENTS * hidden),
        .word_gradient = tt_bench_floats(memory, sizes->vocabulary * hidden),
        .position_gradient = tt_bench_floats(memory, sizes->sequence * hidden),
        .segment_gradient = tt_bench_floats(memory, SEGMENTS * hidden),
    };
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
    memory->device = device;
    create_embedding(o, sizes);
    o->workspace = tt_bench_zeros(
        memory, device->ops->embedding_workspace(device, sizes->tokens, sizes->vocabulary));
    o->hidden = tt_bench_matrix(memory, sizes->tokens, sizes->hidden);
    o->gathered = tt_bench_matrix(memory, sizes->predictions, sizes->hidden);
    o->rows = tt_bench_integers(memory, sizes->predictions, sizes->tokens);
    o->loss = (tt_cross_entropy){
        .logits = tt_bench_matrix(memory, sizes->predictions, sizes->vocabulary),
        .bias = tt_bench_floats(memory, sizes->vocabulary),
        .bias_gradient = tt_bench_floats(memory, sizes->vocabulary),
        .labels = tt_bench_integers(memory, sizes->predictions, sizes->vocabulary),
        .loss_sum = tt_bench_zeros(memory, sizeof(float)),
        .correct_sum = tt_bench_zeros(memory, sizeof(float)),
    };
    float value = 1.0f / (float)sizes->predictions;
    o->scale = tt_bench_filled(memory, &value, sizeof value, 1);
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

const tt_bench_family tt_bench_ends = {.list = list, .create = create, .destroy = destroy};

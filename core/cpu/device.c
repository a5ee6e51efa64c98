#include "core/cpu/cpu_ops.h"

#include <malloc.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

const tt_ops tt_cpu_ops = {
    .multiply = tt_cpu_multiply,
    .multiply_group = tt_cpu_multiply_group,
    .copy_group = tt_cpu_copy_group,
    .scale_cores = tt_cpu_scale_cores,
    .scale_cores_backward = tt_cpu_scale_cores_backward,
    .add_bias = tt_cpu_add_bias,
    .add_bias_backward = tt_cpu_add_bias_backward,
    .gelu_forward = tt_cpu_gelu_forward,
    .gelu_backward = tt_cpu_gelu_backward,
    .tanh_forward = tt_cpu_tanh_forward,
    .tanh_backward = tt_cpu_tanh_backward,
    .dropout = tt_cpu_dropout,
    .residual_norm_forward = tt_cpu_residual_norm_forward,
    .residual_norm_output = tt_cpu_residual_norm_output,
    .residual_norm_backward = tt_cpu_residual_norm_backward,
    .embedding_forward = tt_cpu_embedding_forward,
    .embedding_backward = tt_cpu_embedding_backward,
    .embedding_workspace = tt_cpu_embedding_workspace,
    .distinct_ids = tt_cpu_distinct_ids,
    .distinct_ids_workspace = tt_cpu_distinct_ids_workspace,
    .slice_products_forward = tt_cpu_slice_products_forward,
    .slice_products_backward = tt_cpu_slice_products_backward,
    .slice_products_workspace = tt_cpu_slice_products_workspace,
    .gather_rows = tt_cpu_gather_rows,
    .scatter_rows = tt_cpu_scatter_rows,
    .cross_entropy = tt_cpu_cross_entropy,
    .attention_forward = tt_cpu_attention_forward,
    .attention_backward = tt_cpu_attention_backward,
    .attention_workspace = tt_cpu_attention_workspace,
    .thin_attention_forward = tt_cpu_thin_attention_forward,
    .thin_attention_backward = tt_cpu_thin_attention_backward,
    .thin_attention_workspace = tt_cpu_thin_attention_workspace,
    .thin_feed_forward_forward = tt_cpu_thin_feed_forward_forward,
    .thin_feed_forward_backward = tt_cpu_thin_feed_forward_backward,
    .thin_feed_forward_workspace = tt_cpu_thin_feed_forward_workspace,
    .thin_joint_forward = tt_cpu_thin_joint_forward,
    .thin_joint_backward = tt_cpu_thin_joint_backward,
    .thin_joint_workspace = tt_cpu_thin_joint_workspace,
    .gradient_check = tt_cpu_gradient_check,
    .update = tt_cpu_update,
    .update_workspace = tt_cpu_update_workspace,
    .rank_objective = tt_cpu_rank_objective,
    .rank_objective_workspace = tt_cpu_rank_objective_workspace,
};

static void *allocate(tt_device *device, size_t bytes)
{
    (void)device;
    size_t rounded = ((bytes > 0 ? bytes : 1) + 63) & ~(size_t)63;
    void *memory = aligned_alloc(64, rounded);
    if (memory) {
        memset(memory, 0, rounded);
    }
    return memory;
}

static void release(tt_device *device, void *memory)
{
    (void)device;
    free(memory);
}

static void memory(tt_device *device, size_t *available, size_t *total)
{
    (void)device;
    *available = *total = 0;
}

static void copy_in(tt_device *device, void *device_memory, const void *host, size_t bytes)
{
    (void)device;
    memcpy(device_memory, host, bytes);
}

static void copy_out(tt_device *device, void *host, const void *device_memory, size_t bytes)
{
    (void)device;
    memcpy(host, device_memory, bytes);
}

static void copy(tt_device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    memcpy(to, from, bytes);
}

static void zero(tt_device *device, void *device_memory, size_t bytes)
{
    enum { CHUNK = 1 << 20 };
    int64_t chunks = (int64_t)((bytes + CHUNK - 1) / CHUNK);
#pragma omp parallel for num_threads(device->threads) if (chunks > 1)
    for (int64_t i = 0; i < chunks; i++) {
        size_t begin = (size_t)i * CHUNK;
        memset((char *)device_memory + begin, 0, bytes - begin < CHUNK ? bytes - begin : CHUNK);
    }
}

static void synchronize(tt_device *device)
{
    (void)device;
}

static tt_status check(tt_device *device, tt_error *error)
{
    (void)device;
    (void)error;
    return TT_OK;
}

/* Transfers have finished when they return, so their slots have nothing to wait for. */
static void settled(tt_device *device, int slot)
{
    (void)device;
    (void)slot;
}

static void range_push(tt_device *device, const char *name)
{
    (void)device;
    (void)name;
}

static bool launches_print(tt_device *device, FILE *stream)
{
    (void)device;
    (void)stream;
    return false;
}

static void destroy(tt_device *device)
{
    tt_cpu_state *state = device->state;
    if (state) {
        free(state->scratch);
    }
    free(state);
    free(device);
}

/* Asks OpenMP for `threads` (0: as many as it likes) and returns how many it gives, which a limit
 * of the environment may make fewer. oneDNN takes its number from OpenMP too, and computes wrong
 * products where it gets fewer than it counted on, so that the number must be the true one. */
static int settle_threads(int threads)
{
    if (threads > 0) {
        omp_set_num_threads(threads);
    }
    omp_set_dynamic(0);
    int team = 1;
#pragma omp parallel
    {
#pragma omp master
        team = omp_get_num_threads();
    }
    omp_set_num_threads(team);
    return team;
}

tt_status tt_device_create_cpu(int threads, tt_device **device, tt_error *error)
{
    if (threads < 0 || threads > 4096) {
        return tt_error_set(error, TT_INVALID_INPUT, "threads: expected 0 to 4096, found %d",
                            threads);
    }
    /* oneDNN asks for packing buffers in every product; memory that goes back to the system in
     * between costs page faults each time. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    tt_device *created = calloc(1, sizeof *created);
    tt_cpu_state *state = calloc(1, sizeof *state);
    if (created && state) {
        *created = (tt_device){.name = "cpu",
                               .hardware = "",
                               .ops = &tt_cpu_ops,
                               .threads = settle_threads(threads),
                               .compute = TT_F32,
                               .state = state,
                               .allocate = allocate,
                               .release = release,
                               .memory = memory,
                               .allocate_host = allocate,
                               .release_host = release,
                               .copy_in = copy_in,
                               .copy_out = copy_out,
                               .copy = copy,
                               .zero = zero,
                               .synchronize = synchronize,
                               .check = check,
                               .destroy = destroy,
                               .uploads_begin = settled,
                               .upload = copy_in,
                               .uploads_end = settled,
                               .uploads_wait = settled,
                               .uploads_used = settled,
                               .uploads_settled = settled,
                               .download = copy_out,
                               .downloads_end = settled,
                               .downloads_settled = settled,
                               .range_push = range_push,
                               .range_pop = synchronize,
                               .launches_print = launches_print};
        state->scratch_floats = (size_t)created->threads * TT_CPU_THREAD_SCRATCH;
        state->scratch = allocate(created, state->scratch_floats * sizeof(float));
    }
    if (!created || !state || !state->scratch) {
        free(state);
        free(created);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the CPU device");
    }
    *device = created;
    return TT_OK;
}

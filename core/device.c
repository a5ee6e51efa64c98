#include "core/device.h"

#ifdef TTRAIN_CUDA
#include "core/cuda/cuda.h"
#endif

#ifdef TTRAIN_CUDA
static int count_gpus(tt_error *reason)
{
    return tt_cuda_device_count(reason);
}

static tt_status create_gpu(const tt_device_options *options, tt_device **device, tt_error *error)
{
    tt_cuda_options cuda = {.compute = options->precision == TT_PRECISION_BF16 ? TT_BF16 : TT_F32,
                            .tf32 = options->precision == TT_PRECISION_TF32};
    if (tt_cuda_choose_device(options->local_rank, options->local_ranks, options->share,
                              &cuda.ordinal, error) != TT_OK) {
        return tt_error_prefix(error, "device: %s",
                               options->kind == TT_DEVICE_CUDA ? "cuda" : "auto");
    }
    return tt_device_create_cuda(&cuda, device, error);
}
#else
static int count_gpus(tt_error *reason)
{
    (void)reason;
    return 0;
}

static tt_status create_gpu(const tt_device_options *options, tt_device **device, tt_error *error)
{
    (void)options;
    (void)device;
    return tt_error_set(error, TT_INVALID_INPUT,
                        "device: cuda: this build has the CPU device only; use device: cpu or "
                        "auto");
}
#endif

tt_status tt_device_create(const tt_device_options *options, tt_device **device, tt_error *passed,
                           tt_error *error)
{
    tt_error reason = {.message = ""};
    bool cuda = options->kind == TT_DEVICE_CUDA ||
                (options->kind == TT_DEVICE_AUTO && count_gpus(&reason) > 0);
    if (passed) {
        *passed = reason;
    }
    if (cuda) {
        return create_gpu(options, device, error);
    }
    if (options->precision != TT_PRECISION_F32) {
        tt_error_set(error, TT_INVALID_INPUT, "precision: %s: the CPU device computes in f32 alone",
                     options->precision == TT_PRECISION_BF16 ? "bf16" : "tf32");
        return reason.message[0] ? tt_error_append(error, " (%s)", reason.message) : error->status;
    }
    return tt_device_create_cpu(options->threads, device, error);
}

void tt_device_destroy(tt_device **device)
{
    if (*device) {
        (*device)->destroy(*device);
        *device = NULL;
    }
}

tt_status tt_device_no_memory(tt_device *device, const char *what, size_t bytes, tt_error *error)
{
    size_t available, total;
    device->memory(device, &available, &total);
    tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for %s: %.1f MiB needed", device->name,
                 what, (double)bytes / 1048576.0);
    if (total > 0) {
        tt_error_append(error, ", %.1f of %.1f MiB free", (double)available / 1048576.0,
                        (double)total / 1048576.0);
    }
    return TT_OUT_OF_MEMORY;
}

void tt_arena_init(tt_arena *arena, tt_device *device)
{
    *arena = (tt_arena){.device = device};
}

size_t tt_arena_reserve(tt_arena *arena, size_t bytes)
{
    size_t offset = arena->used;
    arena->used += (bytes + 63) & ~(size_t)63;
    if (arena->used > arena->capacity) {
        arena->capacity = arena->used;
    }
    return offset;
}

size_t tt_arena_mark(const tt_arena *arena)
{
    return arena->used;
}

void tt_arena_rewind(tt_arena *arena, size_t mark)
{
    arena->used = mark;
}

tt_status tt_arena_allocate(tt_arena *arena, const char *what, tt_error *error)
{
    arena->memory = arena->device->allocate(arena->device, arena->capacity);
    if (!arena->memory) {
        return tt_device_no_memory(arena->device, what, arena->capacity, error);
    }
    return TT_OK;
}

void *tt_arena_at(const tt_arena *arena, size_t offset)
{
    return arena->memory ? arena->memory + offset : NULL;
}

void tt_arena_free(tt_arena *arena)
{
    if (arena->memory) {
        arena->device->release(arena->device, arena->memory);
    }
    *arena = (tt_arena){.device = arena->device};
}

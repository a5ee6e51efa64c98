#include "core/device.h"

#include <stdio.h>
#include <string.h>

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
        size_t used = strlen(error->message);
        snprintf(error->message + used, sizeof error->message - used, ", %.1f of %.1f MiB free",
                 (double)available / 1048576.0, (double)total / 1048576.0);
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

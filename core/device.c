#include "core/device.h"

void tt_device_destroy(tt_device **device)
{
    if (*device) {
        (*device)->destroy(*device);
        *device = NULL;
    }
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
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for %s: %.1f MiB needed",
                            arena->device->name, what, (double)arena->capacity / 1048576.0);
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

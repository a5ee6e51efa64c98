/* A device: where memory lives and mathematics runs. The CPU device is core/cpu/, the CUDA device
 * core/cuda/; both fill the same two tables, this one for memory and order, and tt_ops (ops.h) for
 * the mathematics. Work given to a device runs in the order given; synchronize() waits for it.
 *
 * On the CPU, device memory is host memory and every call has finished when it returns. */
#ifndef TT_CORE_DEVICE_H
#define TT_CORE_DEVICE_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tt_ops;

typedef struct tt_device tt_device;

typedef enum { TT_F32, TT_BF16 } tt_type;

/* Bytes of `count` f32 numbers. */
static inline size_t tt_floats(int64_t count)
{
    return (size_t)count * sizeof(float);
}

struct tt_device {
    const char *name;         /* "cpu", "cuda:0" */
    const struct tt_ops *ops; /* the mathematics */
    int threads;              /* host threads that the CPU device uses */
    void *state;              /* the device's own */

    /* 64-byte aligned (CPU) or device-aligned memory, zeroed. NULL when there is not enough. */
    void *(*allocate)(tt_device *device, size_t bytes);
    void (*release)(tt_device *device, void *memory);
    void (*copy_in)(tt_device *device, void *device_memory, const void *host, size_t bytes);
    void (*copy_out)(tt_device *device, void *host, const void *device_memory, size_t bytes);
    void (*zero)(tt_device *device, void *device_memory, size_t bytes);
    void (*synchronize)(tt_device *device);
    void (*destroy)(tt_device *device);
};

/* The CPU device with `threads` OpenMP threads; 0 takes what OMP_NUM_THREADS or the machine says.
 * Destroy with tt_device_destroy. */
tt_status tt_device_create_cpu(int threads, tt_device **device, tt_error *error);

/* Frees the device and sets the pointer to NULL; NULL is fine. */
void tt_device_destroy(tt_device **device);

/* One allocation that a plan cuts into pieces. First every piece is reserved (which only counts),
 * then the arena is allocated, then pieces are resolved to addresses; nothing is ever freed singly.
 * Pieces that are never alive together may be reserved from the same mark (see tt_arena_mark). */
typedef struct {
    tt_device *device;
    char *memory;
    size_t used;     /* bytes at the current position */
    size_t capacity; /* largest position ever reached: what allocate() takes */
} tt_arena;

void tt_arena_init(tt_arena *arena, tt_device *device);
/* Reserves `bytes` at a 64-byte boundary and returns the offset to pass to tt_arena_at. */
size_t tt_arena_reserve(tt_arena *arena, size_t bytes);
/* The current position; tt_arena_rewind goes back to it, so that what follows shares the space. */
size_t tt_arena_mark(const tt_arena *arena);
void tt_arena_rewind(tt_arena *arena, size_t mark);
tt_status tt_arena_allocate(tt_arena *arena, const char *what, tt_error *error);
/* NULL before the arena is allocated: a plan may ask for sizes by operands without memory. */
void *tt_arena_at(const tt_arena *arena, size_t offset);
void tt_arena_free(tt_arena *arena);

#endif

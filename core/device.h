/* A device: where memory lives and mathematics runs. The CPU device is core/cpu/, the CUDA device
 * core/cuda/; both fill the same two tables, this one for memory and order, and tt_ops (ops.h) for
 * the mathematics. Work given to a device runs in the order given; synchronize() waits for it.
 *
 * On the CPU, device memory is host memory and every call has finished when it returns. On a CUDA
 * device a call that fails notes why and later ones do nothing, so that a step needs no tests in
 * between: check() says what went wrong. */
#ifndef TT_CORE_DEVICE_H
#define TT_CORE_DEVICE_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct tt_ops;

typedef struct tt_device tt_device;

/* A recorded sequence of work, see capture_begin. */
typedef struct tt_graph tt_graph;

typedef enum { TT_F32, TT_BF16 } tt_type;

static inline size_t tt_type_size(tt_type type)
{
    return type == TT_BF16 ? 2 : 4;
}

/* Bytes of `count` numbers. */
static inline size_t tt_type_bytes(tt_type type, int64_t count)
{
    return (size_t)count * tt_type_size(type);
}

/* Bytes of `count` f32 numbers. */
static inline size_t tt_floats(int64_t count)
{
    return tt_type_bytes(TT_F32, count);
}

/* How many batches may be on their way up, or records on their way down, at the same time. */
enum { TT_TRANSFER_SLOTS = 2 };

struct tt_device {
    const char *name;         /* "cpu", "cuda:0" */
    const char *hardware;     /* "NVIDIA H200"; "" for the CPU */
    const struct tt_ops *ops; /* the mathematics */
    int threads;              /* host threads that the CPU device uses */
    tt_type compute;          /* type of activations */
    void *state;              /* the device's own */

    /* 64-byte aligned (CPU) or device-aligned memory, zeroed. NULL when there is not enough, which
     * is no failure that check() reports. */
    void *(*allocate)(tt_device *device, size_t bytes);
    void (*release)(tt_device *device, void *memory);
    /* Bytes that allocate() could still hand out, and those of the whole device; 0 and 0 where
     * nobody knows. */
    void (*memory)(tt_device *device, size_t *available, size_t *total);
    /* Memory of the host that the device reaches by itself (pinned); NULL when there is not enough.
     */
    void *(*allocate_host)(tt_device *device, size_t bytes);
    void (*release_host)(tt_device *device, void *memory);

    /* The host memory may be used again at once; copy_out waits for what was given before. */
    void (*copy_in)(tt_device *device, void *device_memory, const void *host, size_t bytes);
    void (*copy_out)(tt_device *device, void *host, const void *device_memory, size_t bytes);
    /* Within the device. */
    void (*copy)(tt_device *device, void *to, const void *from, size_t bytes);
    void (*zero)(tt_device *device, void *device_memory, size_t bytes);
    void (*synchronize)(tt_device *device);
    /* Says why the first call that failed did; TT_OK where none did so far. Waits for nothing: what
     * still runs may fail later. */
    tt_status (*check)(tt_device *device, tt_error *error);
    void (*destroy)(tt_device *device);

    /* Batches go up while the device computes, through memory from allocate_host and a target of
     * their own a slot, 0 <= slot < TT_TRANSFER_SLOTS:
     *     uploads_settled(slot)             the pinned memory may be written again
     *     ... the host writes it ...
     *     uploads_begin(slot)               what follows waits for the last uploads_used(slot)
     *     upload(...) once or more          beside the computation, not in its order
     *     uploads_end(slot)
     *     uploads_wait(slot)                the computation waits for them
     *     ... work that reads the target ...
     *     uploads_used(slot)                that was all of it
     */
    void (*uploads_begin)(tt_device *device, int slot);
    void (*upload)(tt_device *device, void *device_memory, const void *pinned, size_t bytes);
    void (*uploads_end)(tt_device *device, int slot);
    void (*uploads_wait)(tt_device *device, int slot);
    void (*uploads_used)(tt_device *device, int slot);
    void (*uploads_settled)(tt_device *device, int slot);
    /* A record comes down in order with the computation: download(...) once or more, which may be
     * captured, then downloads_end(slot); after downloads_settled(slot) the host may read it. */
    void (*download)(tt_device *device, void *pinned, const void *device_memory, size_t bytes);
    void (*downloads_end)(tt_device *device, int slot);
    void (*downloads_settled)(tt_device *device, int slot);

    /* Work between capture_begin and capture_end is not done but recorded, and done as often as
     * graph_run is called. The same work must have run once before, so that its tables lie in
     * device memory; nothing is allocated, copied in or out, or waited for in between. capture_end
     * returns NULL where something failed. Exist only where `captures`. */
    bool captures;
    bool (*capture_begin)(tt_device *device);
    tt_graph *(*capture_end)(tt_device *device);
    void (*graph_run)(tt_device *device, tt_graph *graph);
    void (*graph_destroy)(tt_device *device, tt_graph *graph);
    /* How many kernels, copies and library calls one run of it is. */
    int64_t (*graph_nodes)(tt_device *device, const tt_graph *graph);

    /* Names what the device is given between the two, for profilers; ranges nest. */
    void (*range_push)(tt_device *device, const char *name);
    void (*range_pop)(tt_device *device);
    /* Prints what ran since the device was made or since the last call, by kernel and library call,
     * and starts over; with `stream` NULL only that. False where nobody counts: a simulator does.
     */
    bool (*launches_print)(tt_device *device, FILE *stream);
};

typedef enum { TT_DEVICE_AUTO, TT_DEVICE_CPU, TT_DEVICE_CUDA } tt_device_kind;

/* What products read: f32; f32 rounded to TF32 as a GPU multiplies; activations in bf16, with
 * parameters, their gradients, the optimizer and all sums in f32. */
typedef enum { TT_PRECISION_F32, TT_PRECISION_TF32, TT_PRECISION_BF16 } tt_precision;

typedef struct {
    tt_device_kind kind; /* TT_DEVICE_AUTO: a GPU where there is one */
    tt_precision precision;
    int threads;                 /* of the CPU device */
    int local_rank, local_ranks; /* this process among those of the run on this machine */
    bool share;                  /* several of them may have the same GPU */
} tt_device_options;

/* The device for this process. Where a program with CUDA finds no GPU for TT_DEVICE_AUTO, `passed`
 * says why; otherwise it is "". It may be NULL. Fails where there is no such device or not one for
 * each process, and where the device cannot compute in the precision. Destroy with
 * tt_device_destroy. */
tt_status tt_device_create(const tt_device_options *options, tt_device **device, tt_error *passed,
                           tt_error *error);

/* The CPU device with `threads` OpenMP threads; 0 takes what OMP_NUM_THREADS or the machine says.
 * Destroy with tt_device_destroy. */
tt_status tt_device_create_cpu(int threads, tt_device **device, tt_error *error);

/* Frees the device and sets the pointer to NULL; NULL is fine. */
void tt_device_destroy(tt_device **device);

/* The error of an allocation that failed: what `bytes` were for and, where known, what is free. */
tt_status tt_device_no_memory(tt_device *device, const char *what, size_t bytes, tt_error *error);

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

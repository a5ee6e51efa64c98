#include "launch/bench.h"
#include "launch/bench_ops.h"

#include <string.h>

#include <stdio.h>

static void *keep(tt_bench_memory *memory, void *piece, size_t bytes)
{
    enum { PIECES = sizeof memory->pieces / sizeof memory->pieces[0] };
    memory->bytes += bytes;
    if (piece != NULL && memory->count < PIECES) {
        memory->pieces[memory->count++] = piece;
        return piece;
    }
    memory->device->release(memory->device, piece);
    memory->failed = true;
    return NULL;
}

void *tt_bench_zeros(tt_bench_memory *memory, size_t bytes)
{
    void *piece = memory->failed ? NULL : memory->device->allocate(memory->device, bytes);
    return keep(memory, piece, bytes);
}

float *tt_bench_floats(tt_bench_memory *memory, int64_t count)
{
    float *piece = memory->failed ? NULL : tt_bench_random(memory->device, count);
    return keep(memory, piece, (size_t)count * sizeof *piece);
}

tt_matrix tt_bench_matrix(tt_bench_memory *memory, int64_t rows, int64_t columns)
{
    return tt_matrix_f32(tt_bench_floats(memory, rows * columns), rows, columns);
}

enum { CHUNK = 4096 /* numbers that go up at a time */ };

int32_t *tt_bench_integers(tt_bench_memory *memory, int64_t count, int64_t bound)
{
    tt_device *device = memory->device;
    int32_t *integers = tt_bench_zeros(memory, (size_t)count * sizeof *integers);
    int32_t chunk[CHUNK];
    tt_random random;
    tt_random_start(&random, 2, (uint64_t)count);
    for (int64_t i = 0; integers && i < count; i += CHUNK) {
        int64_t length = count - i < CHUNK ? count - i : CHUNK;
        for (int64_t j = 0; j < length; j++) {
            chunk[j] = (int32_t)tt_random_below(&random, (uint32_t)bound);
        }
        device->copy_in(device, integers + i, chunk, (size_t)length * sizeof *chunk);
    }
    return integers;
}

void *tt_bench_filled(tt_bench_memory *memory, const void *value, size_t size, int64_t count)
{
    tt_device *device = memory->device;
    char *filled = tt_bench_zeros(memory, (size_t)count * size);
    char chunk[CHUNK * sizeof(int32_t)];
    int64_t most = (int64_t)(sizeof chunk / size);
    for (int64_t i = 0; i < most; i++) {
        memcpy(chunk + (size_t)i * size, value, size);
    }
    for (int64_t i = 0; filled && i < count; i += most) {
        int64_t length = count - i < most ? count - i : most;
        device->copy_in(device, filled + (size_t)i * size, chunk, (size_t)length * size);
    }
    return filled;
}

tt_status tt_bench_memory_check(const tt_bench_memory *memory, tt_error *error)
{
    if (memory->failed) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for %.0f MiB of operands",
                            memory->device->name, (double)memory->bytes / 1048576.0);
    }
    return TT_OK;
}

void tt_bench_memory_release(tt_bench_memory *memory)
{
    for (int i = 0; i < memory->count; i++) {
        memory->device->release(memory->device, memory->pieces[i]);
    }
    memory->count = 0;
}

tt_status tt_bench_train_form(int64_t inputs, int64_t outputs, int64_t rank, tt_linear_form *form,
                              tt_error *error)
{
    form->form = TT_TENSOR_TRAIN;
    for (int order = 3; order > 1; order--) {
        tt_error unused;
        if (tt_train_shape_choose(inputs, outputs, order, order, rank, &form->shape, &unused) ==
            TT_OK) {
            return TT_OK;
        }
    }
    return tt_train_shape_choose(inputs, outputs, 1, 1, rank, &form->shape, error);
}

tt_status tt_bench_add_maps(tt_linear maps[TT_BENCH_MAPS], const char *prefix, tt_form form,
                            const tt_bench_sizes *sizes, tt_parameters *parameters,
                            tt_train_set *trains, tt_error *error)
{
    const struct {
        const char *name;
        int64_t inputs, outputs;
        bool has_neighbour;
    } list[TT_BENCH_MAPS] = {
        [TT_BENCH_QUERY] = {"query", sizes->hidden, sizes->hidden, false},
        [TT_BENCH_KEY] = {"key", sizes->hidden, sizes->hidden, true},
        [TT_BENCH_VALUE] = {"value", sizes->hidden, sizes->hidden, true},
        [TT_BENCH_ATTENTION_OUTPUT] = {"attention_output", sizes->hidden, sizes->hidden, false},
        [TT_BENCH_INTERMEDIATE] = {"intermediate", sizes->hidden, sizes->inner, false},
        [TT_BENCH_OUTPUT] = {"output", sizes->inner, sizes->hidden, false},
    };
    for (int i = 0; i < TT_BENCH_MAPS; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s.%s", prefix, list[i].name);
        tt_linear_form own = {.form = TT_DENSE};
        if (form == TT_TENSOR_TRAIN) {
            TT_TRY(tt_bench_train_form(list[i].inputs, list[i].outputs, sizes->rank, &own, error));
        }
        TT_TRY(tt_linear_add(&maps[i], name, list[i].inputs, list[i].outputs, &own,
                             list[i].has_neighbour ? &maps[i - 1] : NULL, parameters, trains,
                             error));
    }
    return TT_OK;
}

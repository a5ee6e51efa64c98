/* What `ttrain bench ops` times: families of cases that share operands. Only launch/bench_ops*.c
 * include this. */
#ifndef TT_LAUNCH_BENCH_OPS_H
#define TT_LAUNCH_BENCH_OPS_H

#include "core/linear.h"

/* The model that the operands are those of. */
typedef struct {
    int64_t batch, sequence, hidden, heads, inner, vocabulary, rank;
    int64_t tokens;      /* batch * sequence */
    int64_t predictions; /* masked positions of a batch */
    double dropout;
} tt_bench_sizes;

/* One measurement. `operation` is a member of tt_ops, or says what is composed of several. Forms of
 * one operation that are compared with its form "dense" begin with "tensor train". */
typedef struct {
    const char *operation;
    const char *form; /* on what, or in which of its forms */
    void (*run)(void *operands, int variant);
    int variant;
    double bytes; /* that must move at least once: operands read, results written */
    double flops; /* of matrix products and attention, without recomputation; 0: none */
} tt_bench_case;

enum { TT_BENCH_CASES = 32 /* of one family, at most */ };

/* `list` fills the cases and returns how many they are; it needs no operands. `create` allocates
 * all operands, so that `run` allocates nothing; `destroy` frees them, also those of a failed
 * create. `memory`, where there is one, says how many bytes a case needs beside what all forms of
 * its operation share, 0: it is not stated. */
typedef struct {
    int (*list)(const tt_bench_sizes *sizes, tt_bench_case *cases);
    tt_status (*create)(tt_device *device, const tt_bench_sizes *sizes, void **operands,
                        tt_error *error);
    void (*destroy)(void *operands);
    double (*memory)(void *operands, const tt_bench_case *what);
} tt_bench_family;

extern const tt_bench_family tt_bench_products;    /* matrix products and copies */
extern const tt_bench_family tt_bench_activations; /* what passes over rows of activations */
extern const tt_bench_family tt_bench_ends;        /* embeddings, heads and losses */
extern const tt_bench_family tt_bench_embedding;   /* lookups in tensor-train matrices */
extern const tt_bench_family tt_bench_blocks;      /* attention, feed-forward, whole blocks */
extern const tt_bench_family tt_bench_parameters;  /* once a step: tensor trains and optimizer */

/* Device memory of a family, all freed together. */
typedef struct {
    tt_device *device;
    void *pieces[48];
    int count;
    size_t bytes; /* asked for so far */
    bool failed;
} tt_bench_memory;

/* Both return NULL, and mark the memory as failed, when there is not enough. */
void *tt_bench_zeros(tt_bench_memory *memory, size_t bytes);
float *tt_bench_floats(tt_bench_memory *memory, int64_t count); /* in [-0.5, 0.5) */
/* Random numbers in [-0.5, 0.5). */
tt_matrix tt_bench_matrix(tt_bench_memory *memory, int64_t rows, int64_t columns);
/* Whole numbers in [0, bound). */
int32_t *tt_bench_integers(tt_bench_memory *memory, int64_t count, int64_t bound);
/* `value`, of `size` bytes, `count` times. */
void *tt_bench_filled(tt_bench_memory *memory, const void *value, size_t size, int64_t count);
/* TT_OK when all pieces could be had. */
tt_status tt_bench_memory_check(const tt_bench_memory *memory, tt_error *error);
void tt_bench_memory_release(tt_bench_memory *memory);

/* The shape of a map's tensor train of this rank: three input and three output modes where the
 * sizes have as many factors, else fewer. */
tt_status tt_bench_train_form(int64_t inputs, int64_t outputs, int64_t rank, tt_linear_form *form,
                              tt_error *error);

/* The six maps of an encoder block. */
enum {
    TT_BENCH_QUERY,
    TT_BENCH_KEY,
    TT_BENCH_VALUE,
    TT_BENCH_ATTENTION_OUTPUT,
    TT_BENCH_INTERMEDIATE,
    TT_BENCH_OUTPUT,
    TT_BENCH_MAPS
};

/* Registers the maps of a block, query, key and value as neighbours. */
tt_status tt_bench_add_maps(tt_linear maps[TT_BENCH_MAPS], const char *prefix, tt_form form,
                            const tt_bench_sizes *sizes, tt_parameters *parameters,
                            tt_train_set *trains, tt_error *error);

#endif

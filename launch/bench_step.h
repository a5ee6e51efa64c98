/* Timed training steps of a recipe on random tokens: what `ttrain bench step` and `ttrain bench
 * ratios` share. */
#ifndef TT_LAUNCH_BENCH_STEP_H
#define TT_LAUNCH_BENCH_STEP_H

#include "launch/bench.h"
#include "launch/run.h"

enum {
    TT_BENCH_LAYERS = 64,
    TT_BENCH_EXPLANATION = 256,
    TT_BENCH_ROUNDS = 9,
    TT_BENCH_STEPS = 1000, /* timed at most */
};

typedef struct {
    int64_t phase, steps, rounds, batch, sequence_length, threads;
    int against; /* 0: nothing, 1: dense */
    bool json, explain, launches;
    bool without_peak; /* the peak of products is not asked for, which saves its time */
} tt_bench_step_options;

/* What a child measures and sends back. */
typedef struct {
    tt_status status;
    tt_error error;
    double median_step_s, peak_flops, flops_per_step;
    int64_t tokens, peak_bytes, parameters, activation_bytes;
    int64_t device_bytes; /* in use on a GPU; 0: the CPU device */
    int64_t graph_nodes;  /* of a captured step; 0: it was not captured */
    tt_precision precision;
    int threads, ranks;
    int layers;
    char explanations[TT_BENCH_LAYERS][TT_BENCH_EXPLANATION];
} tt_bench_measurement;

/* Joins the world, reads the recipe (arguments[0], then overrides) and applies the options. */
tt_status tt_bench_step_set_up(tt_run *run, char **arguments, int count,
                               const tt_bench_step_options *options, tt_error *error);
/* Times the run's recipe, which must be set up: in a process of its own, whose peak memory is then
 * the step's, or, under mpirun, in this one. Where the recipe has `initialize`, tensor trains have
 * that checkpoint's ranks. */
void tt_bench_step_measure(tt_run *run, const tt_bench_step_options *options,
                           tt_bench_measurement *result);
/* The round with the median step time, which stands for all; sorts them. */
const tt_bench_measurement *tt_bench_step_middle(tt_bench_measurement *rounds, int count);

#endif

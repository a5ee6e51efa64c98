/* `ttrain bench gemm|ops|step|ratios`: what this machine can do, and what the program makes of it.
 */
#ifndef TT_LAUNCH_BENCH_H
#define TT_LAUNCH_BENCH_H

#include "core/ops.h"

int tt_bench_main(int argc, char **argv);

int tt_bench_gemm_main(int argc, char **argv);
int tt_bench_ops_main(int argc, char **argv);
int tt_bench_step_main(int argc, char **argv);
int tt_bench_ratios_main(int argc, char **argv);

/* Middle value; sorts the list. */
double tt_bench_median(double *values, int count);

/* Calls `run` until it has taken `seconds` in all (and at least three times) and returns the median
 * time of a call; a first call is not counted. */
double tt_bench_time(void (*run)(void *user), void *user, double seconds);

/* The fastest product of the device's compute type found, in operations a second: large ones of
 * several shapes, each run for a while. This is what `fraction_of_peak` is measured against. */
double tt_bench_peak(tt_device *device);

/* Device memory with numbers in [-0.5, 0.5), the caller's to release; NULL when there is not
 * enough. */
float *tt_bench_random(tt_device *device, int64_t count);

/* Seconds of one product [m, k] x [k, n] (b transposed or not) on random numbers of the device's
 * compute type; 0 when there is no memory. */
double tt_bench_product(tt_device *device, int64_t m, int64_t n, int64_t k, bool transpose_a,
                        bool transpose_b, double seconds);

/* Largest resident memory of this process so far, in bytes. */
int64_t tt_bench_peak_memory(void);

#endif

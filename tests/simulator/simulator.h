/* What tests and reports may ask the simulator, from C. Everything else goes through the CUDA
 * interface. */
#ifndef TT_SIMULATOR_H
#define TT_SIMULATOR_H

#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What has been put to work since the start or the last reset. Work in a graph counts every time
 * the graph is launched, and the launch itself counts once as SIMULATOR_GRAPH. */
typedef enum {
    SIMULATOR_KERNEL,  /* kernels of core/cuda */
    SIMULATOR_LIBRARY, /* calls of cuBLAS, cuBLASLt and NCCL that put work into a stream */
    SIMULATOR_COPY,
    SIMULATOR_SET, /* cudaMemset */
    SIMULATOR_GRAPH,
    SIMULATOR_HOST, /* cudaLaunchHostFunc */
    SIMULATOR_KINDS
} simulator_kind;

int64_t simulator_launch_count(simulator_kind kind);
/* Of one kernel (as its launch names it) or library call. */
int64_t simulator_launch_count_of(const char *name);
void simulator_launch_reset(void);
/* A table of kinds, names and counts, most frequent first. */
void simulator_launch_print(FILE *stream);

/* Bytes of device memory in use, and the most there ever were; over all devices. */
int64_t simulator_device_bytes(void);
int64_t simulator_device_bytes_peak(void);
/* Allocations, streams, events and graphs that exist now. */
int64_t simulator_live_objects(void);

/* Takes the order of threads, blocks and streams from this seed from now on. */
void simulator_set_seed(uint64_t seed);

/* 1 where every access of a kernel is checked (TTRAIN_SIMULATOR_CHECK). */
int simulator_checks_accesses(void);

#ifdef __cplusplus
}
#endif

#endif

/* The CUDA device from outside core/: how it is made, and its stream for NCCL. Plain C; exists in
 * builds for CUDA and for the simulator, which define TTRAIN_CUDA. A process uses one ordinal, from
 * the thread that made the device. */
#ifndef TT_CORE_CUDA_CUDA_H
#define TT_CORE_CUDA_CUDA_H

#include "core/device.h"

typedef struct {
    int ordinal;     /* which of the visible devices */
    tt_type compute; /* type of activations; TT_BF16 needs compute capability 8.0 */
    bool tf32;       /* products of f32 operands may round them to TF32 */
} tt_cuda_options;

/* How many devices this process sees; 0 where there is no driver, none that is new enough, or no
 * device, with the reason in `reason` (which stays as it is otherwise). Never fails. */
int tt_cuda_device_count(tt_error *reason);

/* The device for a process that is number `local_rank` of `local_ranks` on its host: each takes one
 * of its own. `share` lets several have the same one, which is for tests alone. */
tt_status tt_cuda_choose_device(int local_rank, int local_ranks, bool share, int *ordinal,
                                tt_error *error);

/* Fails where there is no such device, or where it cannot do what is asked. Destroy with
 * tt_device_destroy. */
tt_status tt_device_create_cuda(const tt_cuda_options *options, tt_device **device,
                                tt_error *error);

/* The name of the hardware, "NVIDIA H200". */
const char *tt_cuda_hardware(const tt_device *device);
int tt_cuda_ordinal(const tt_device *device);

/* The stream, a cudaStream_t, that all operations run in. */
void *tt_cuda_stream(const tt_device *device);

/* Notes a failure, for the libraries that work in the device's stream: check() then reports it. */
void tt_cuda_fail(tt_device *device, const char *what, const char *why);

#endif

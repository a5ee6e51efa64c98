#include "launch/bench.h"

#include "core/clock.h"
#include "launch/command_group.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double tt_bench_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

double tt_bench_time(void (*run)(void *user), void *user, double seconds)
{
    enum { LIMIT = 1000 };
    double times[LIMIT], total = 0;
    int count = 0;
    run(user);
    while (count < LIMIT && (count < 3 || total < seconds)) {
        double begin = tt_clock_seconds();
        run(user);
        times[count] = tt_clock_seconds() - begin;
        total += times[count++];
    }
    return tt_bench_median(times, count);
}

int64_t tt_bench_peak_memory(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (int64_t)usage.ru_maxrss * 1024;
}

typedef struct {
    tt_device *device;
    tt_product product;
} timed_product;

static void run_product(void *user)
{
    timed_product *timed = user;
    timed->device->ops->multiply(timed->device, &timed->product);
    timed->device->synchronize(timed->device);
}

float *tt_bench_random(tt_device *device, int64_t count)
{
    float *memory = device->allocate(device, (size_t)count * sizeof(float));
    float chunk[4096];
    tt_random random;
    tt_random_start(&random, 1, (uint64_t)count);
    for (int i = 0; i < 4096; i++) {
        chunk[i] = tt_random_uniform(&random) - 0.5f;
    }
    for (int64_t i = 0; memory && i < count; i += 4096) {
        int64_t length = count - i < 4096 ? count - i : 4096;
        device->copy_in(device, memory + i, chunk, (size_t)length * sizeof(float));
    }
    return memory;
}

/* A matrix of random numbers of the device's compute type; without memory its data is NULL. */
static tt_matrix random_matrix(tt_device *device, int64_t rows, int64_t columns)
{
    tt_matrix exact = tt_matrix_f32(tt_bench_random(device, rows * columns), rows, columns);
    if (device->compute == TT_F32 || !exact.data) {
        return exact;
    }
    size_t bytes = tt_type_bytes(device->compute, rows * columns);
    tt_matrix rounded =
        tt_matrix_dense(device->allocate(device, bytes), rows, columns, device->compute);
    if (rounded.data) {
        device->ops->copy_group(device, &(tt_copy){.source = exact, .target = rounded}, 1);
    }
    device->release(device, exact.data);
    return rounded;
}

double tt_bench_product(tt_device *device, int64_t m, int64_t n, int64_t k, bool transpose_a,
                        bool transpose_b, double seconds)
{
    tt_matrix a = random_matrix(device, transpose_a ? k : m, transpose_a ? m : k);
    tt_matrix b = random_matrix(device, transpose_b ? n : k, transpose_b ? k : n);
    tt_matrix c = random_matrix(device, m, n);
    double time = 0;
    if (a.data && b.data && c.data) {
        timed_product timed = {.device = device,
                               .product = {.transpose_a = transpose_a,
                                           .transpose_b = transpose_b,
                                           .alpha = 1.0f,
                                           .a = a,
                                           .b = b,
                                           .c = c}};
        time = tt_bench_time(run_product, &timed, seconds);
    }
    device->release(device, a.data);
    device->release(device, b.data);
    device->release(device, c.data);
    return time;
}

double tt_bench_peak(tt_device *device)
{
    enum { SHAPES = 3 };
    /* A GPU needs more to be busy; a simulated one has only to answer. */
    const int64_t host[SHAPES][3] = {{2048, 2048, 2048}, {4096, 3072, 768}, {4096, 768, 3072}};
    const int64_t gpu[SHAPES][3] = {{8192, 8192, 8192}, {16384, 4096, 1024}, {16384, 1024, 4096}};
    const int64_t simulated[SHAPES][3] = {{256, 256, 256}, {256, 192, 64}, {256, 64, 192}};
    bool counts = device->launches_print(device, NULL);
    const int64_t(*shapes)[3] = counts ? simulated : device->captures ? gpu : host;
    double peak = 0;
    for (int i = 0; i < SHAPES; i++) {
        for (int transpose_b = 0; transpose_b < 2; transpose_b++) {
            double work = 2.0 * (double)shapes[i][0] * (double)shapes[i][1] * (double)shapes[i][2];
            double seconds = tt_bench_product(device, shapes[i][0], shapes[i][1], shapes[i][2],
                                              false, transpose_b, 0.25);
            peak = seconds > 0 && work / seconds > peak ? work / seconds : peak;
        }
    }
    return peak;
}

int tt_bench_main(int argc, char **argv)
{
    static const tt_subcommand commands[] = {
        {"gemm", tt_bench_gemm_main, "the machine's measured matrix-product peak, by shape"},
        {"ops", tt_bench_ops_main, "every operation at a model's sizes"},
        {"ratios", tt_bench_ratios_main, "training steps by compression, dense among them"},
        {"step", tt_bench_step_main, "a training step of a recipe, dense twin beside it if asked"},
    };
    const tt_command_group group = {
        .name = "ttrain bench",
        .purpose = "Measures times, operations a second and memory on this machine.",
        .example = "ttrain bench step recipes/six_encoder/pretrain.yaml --against dense",
        .commands = commands,
        .count = sizeof commands / sizeof *commands,
    };
    return tt_command_group_main(&group, argc, argv);
}

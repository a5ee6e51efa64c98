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

double tt_bench_product(tt_device *device, int64_t m, int64_t n, int64_t k, bool transpose_a,
                        bool transpose_b, double seconds)
{
    float *a = tt_bench_random(device, m * k), *b = tt_bench_random(device, k * n);
    float *c = tt_bench_random(device, m * n);
    double time = 0;
    if (a && b && c) {
        timed_product timed = {
            .device = device,
            .product = {.transpose_a = transpose_a,
                        .transpose_b = transpose_b,
                        .alpha = 1.0f,
                        .a = tt_matrix_f32(a, transpose_a ? k : m, transpose_a ? m : k),
                        .b = tt_matrix_f32(b, transpose_b ? n : k, transpose_b ? k : n),
                        .c = tt_matrix_f32(c, m, n)}};
        time = tt_bench_time(run_product, &timed, seconds);
    }
    device->release(device, a);
    device->release(device, b);
    device->release(device, c);
    return time;
}

double tt_bench_peak(tt_device *device)
{
    const int64_t shapes[][3] = {{2048, 2048, 2048}, {4096, 3072, 768}, {4096, 768, 3072}};
    double peak = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
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

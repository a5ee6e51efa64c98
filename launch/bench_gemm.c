#include "launch/bench.h"
#include "launch/command_line.h"

#include <jansson.h>
#include <stdlib.h>

typedef struct {
    const char *name;
    int64_t m, n, k;
    bool transpose_a, transpose_b;
} shape;

/* What a step of the six-encoder model at 32 x 128 tokens multiplies, dense and thin. */
static const shape shapes[] = {
    {"square", 2048, 2048, 2048, false, false},
    {"attention, forward", 4096, 768, 768, false, true},
    {"attention, input gradient", 4096, 768, 768, false, false},
    {"attention, weight gradient", 768, 768, 4096, true, false},
    {"intermediate, forward", 4096, 3072, 768, false, true},
    {"intermediate, input gradient", 4096, 768, 3072, false, false},
    {"intermediate, weight gradient", 3072, 768, 4096, true, false},
    {"thin: x A, rank 30", 4096, 30, 768, false, false},
    {"thin: x [A A A], rank 90", 4096, 90, 768, false, false},
    {"thin: u B, rank 30", 4096, 768, 30, false, false},
    {"thin: x^T du, rank 30", 768, 30, 4096, true, false},
    {"thin: u^T dy, rank 30", 30, 768, 4096, true, false},
};

static int run(int64_t threads, bool json)
{
    tt_device *device;
    tt_error error;
    if (tt_device_create_cpu((int)threads, &device, &error) != TT_OK) {
        return tt_command_failed("bench gemm", &error);
    }
    json_t *list = json_array();
    double peak = tt_bench_peak(device);
    if (!json) {
        printf("%-32s %6s %6s %6s %10s %12s\n", "product (f32)", "m", "n", "k", "ms", "GFLOP/s");
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s = &shapes[i];
        double seconds =
            tt_bench_product(device, s->m, s->n, s->k, s->transpose_a, s->transpose_b, 0.3);
        double rate = 2.0 * (double)s->m * (double)s->n * (double)s->k / seconds;
        if (!json) {
            printf("%-32s %6lld %6lld %6lld %10.3f %12.1f\n", s->name, (long long)s->m,
                   (long long)s->n, (long long)s->k, 1e3 * seconds, 1e-9 * rate);
        }
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I, s:f, s:f}", "name", s->name,
                                              "m", (json_int_t)s->m, "n", (json_int_t)s->n, "k",
                                              (json_int_t)s->k, "median_s", seconds, "flops_per_s",
                                              rate));
    }
    json_t *root = json_pack("{s:i, s:f, s:o}", "threads", device->threads, "peak_flops_per_s",
                             peak, "products", list);
    if (json) {
        json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        putchar('\n');
    } else {
        printf("measured peak: %.1f GFLOP/s with %d threads\n", 1e-9 * peak, device->threads);
    }
    json_decref(root);
    tt_device_destroy(&device);
    return TT_EXIT_DONE;
}

int tt_bench_gemm_main(int argc, char **argv)
{
    int64_t threads = 0;
    bool json = false;
    const tt_option options[] = {
        {.name = "threads",
         .kind = TT_OPTION_INTEGER,
         .target = &threads,
         .value = "N",
         .help = "OpenMP threads; 0: all",
         .maximum = 4096},
        {.name = "json", .kind = TT_OPTION_FLAG, .target = &json, .help = "print JSON"},
    };
    const tt_command command = {.name = "bench gemm",
                                .arguments = "",
                                .purpose =
                                    "Measures f32 matrix products of the shapes that a training "
                                    "step has, dense and thin, and the machine's peak.",
                                .example = "ttrain bench gemm --threads 2",
                                .options = options,
                                .option_count = sizeof options / sizeof *options};
    char **arguments;
    int count, exit_status;
    if (!tt_command_parse(&command, argc, argv, &arguments, &count, &exit_status)) {
        return exit_status;
    }
    return run(threads, json);
}

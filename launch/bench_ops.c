#include "launch/bench_ops.h"

#include "launch/bench.h"
#include "launch/command_line.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* --- which operations there are --------------------------------------------------------------- */

/* Every member of tt_ops. */
#define ALL_OPERATIONS(ENTRY)                                                                      \
    ENTRY(multiply)                                                                                \
    ENTRY(multiply_group)                                                                          \
    ENTRY(copy_group)                                                                              \
    ENTRY(scale_cores)                                                                             \
    ENTRY(scale_cores_backward)                                                                    \
    ENTRY(add_bias)                                                                                \
    ENTRY(add_bias_backward)                                                                       \
    ENTRY(gelu_forward)                                                                            \
    ENTRY(gelu_backward)                                                                           \
    ENTRY(tanh_forward)                                                                            \
    ENTRY(tanh_backward)                                                                           \
    ENTRY(dropout)                                                                                 \
    ENTRY(residual_norm_forward)                                                                   \
    ENTRY(residual_norm_output)                                                                    \
    ENTRY(residual_norm_backward)                                                                  \
    ENTRY(embedding_forward)                                                                       \
    ENTRY(embedding_backward)                                                                      \
    ENTRY(embedding_workspace)                                                                     \
    ENTRY(distinct_ids)                                                                            \
    ENTRY(distinct_ids_workspace)                                                                  \
    ENTRY(slice_products_forward)                                                                  \
    ENTRY(slice_products_backward)                                                                 \
    ENTRY(slice_products_workspace)                                                                \
    ENTRY(gather_rows)                                                                             \
    ENTRY(scatter_rows)                                                                            \
    ENTRY(cross_entropy)                                                                           \
    ENTRY(attention_forward)                                                                       \
    ENTRY(attention_backward)                                                                      \
    ENTRY(attention_workspace)                                                                     \
    ENTRY(thin_attention_forward)                                                                  \
    ENTRY(thin_attention_backward)                                                                 \
    ENTRY(thin_attention_workspace)                                                                \
    ENTRY(thin_feed_forward_forward)                                                               \
    ENTRY(thin_feed_forward_backward)                                                              \
    ENTRY(thin_feed_forward_workspace)                                                             \
    ENTRY(thin_joint_forward)                                                                      \
    ENTRY(thin_joint_backward)                                                                     \
    ENTRY(thin_joint_workspace)                                                                    \
    ENTRY(gradient_check)                                                                          \
    ENTRY(update)                                                                                  \
    ENTRY(update_workspace)                                                                        \
    ENTRY(rank_objective)                                                                          \
    ENTRY(rank_objective_workspace)

#define NAME_AT_PLACE(name) [offsetof(tt_ops, name) / sizeof(void (*)(void))] = #name,
#define ONE_BYTE(name) char name;

static const char *const operations[] = {ALL_OPERATIONS(NAME_AT_PLACE)};
enum { OPERATIONS = sizeof operations / sizeof *operations };

/* The array is as long with holes as without; this is as long as there are different names. */
typedef struct {
    ALL_OPERATIONS(ONE_BYTE)
} byte_an_operation;
_Static_assert(sizeof(byte_an_operation) ==
                   offsetof(tt_ops, largest_thin_rank) / sizeof(void (*)(void)),
               "ALL_OPERATIONS must name every operation of tt_ops");

static const tt_bench_family *const families[] = {
    &tt_bench_products, &tt_bench_activations, &tt_bench_ends,
    &tt_bench_blocks,   &tt_bench_embedding,   &tt_bench_parameters,
};
enum { FAMILIES = sizeof families / sizeof families[0] };

/* --- measuring -------------------------------------------------------------------------------- */

typedef struct {
    tt_bench_sizes sizes;
    int64_t threads, rounds;
    const char *only; /* part of an operation's name, or NULL */
    bool json;
} bench_options;

enum { MOST_ROUNDS = 9 };

typedef struct {
    tt_bench_case what;
    double rounds[MOST_ROUNDS];
    double seconds; /* the middle round */
    double memory;  /* bytes; 0: not stated */
} measurement;

typedef struct {
    tt_device *device;
    double peak_flops, copy_bytes; /* a second */
    measurement list[FAMILIES * TT_BENCH_CASES];
    int count;
} results;

/* What a case is held against: the product peak or the speed of memory, whichever lets it run
 * slower. */
typedef struct {
    const char *name;
    double fraction;
} bound;

static bound bound_of(const results *r, const measurement *m)
{
    double product = m->what.flops / r->peak_flops, memory = m->what.bytes / r->copy_bytes;
    return product > memory ? (bound){"product", product / m->seconds}
                            : (bound){"memory", memory / m->seconds};
}

typedef struct {
    const tt_bench_case *what;
    void *operands;
    tt_device *device;
} call;

static void run_call(void *user)
{
    const call *c = user;
    c->what->run(c->operands, c->what->variant);
    c->device->synchronize(c->device);
}

static const double seconds_a_case = 0.1;

static void print_row(const results *r, const measurement *m)
{
    const tt_bench_case *what = &m->what;
    bound limit = bound_of(r, m);
    char rate[32] = "";
    if (what->flops > 0) {
        snprintf(rate, sizeof rate, "%.1f", 1e-9 * what->flops / m->seconds);
    }
    printf("%-28s %-26s %10.4f %9.2f %9s %8.2f %s\n", what->operation, what->form, 1e3 * m->seconds,
           1e-9 * what->bytes / m->seconds, rate, limit.fraction, limit.name);
    fflush(stdout);
}

static bool selected(const bench_options *options, const tt_bench_case *what)
{
    return options->only == NULL || strstr(what->operation, options->only) != NULL;
}

/* In rounds over all cases, so that forms which are compared meet the same load of the machine. */
static void measure_cases(const bench_options *options, void *operands, measurement *list,
                          int count, const results *r)
{
    for (int round = 1; round <= (int)options->rounds; round++) {
        for (int i = 0; i < count; i++) {
            measurement *m = &list[i];
            call c = {&m->what, operands, r->device};
            m->rounds[round - 1] = tt_bench_time(run_call, &c, seconds_a_case);
            if (round == (int)options->rounds) {
                m->seconds = tt_bench_median(m->rounds, round);
                if (!options->json) {
                    print_row(r, m);
                }
            }
        }
    }
}

static tt_status measure_family(const tt_bench_family *family, const bench_options *options,
                                results *r, tt_error *error)
{
    tt_bench_case cases[TT_BENCH_CASES];
    measurement *list = &r->list[r->count];
    int count = 0, all = family->list(&options->sizes, cases);
    for (int i = 0; i < all; i++) {
        if (selected(options, &cases[i])) {
            list[count++].what = cases[i];
        }
    }
    if (count == 0) {
        return TT_OK;
    }
    void *operands = NULL;
    tt_status status = family->create(r->device, &options->sizes, &operands, error);
    if (status == TT_OK) {
        for (int i = 0; family->memory != NULL && i < count; i++) {
            list[i].memory = family->memory(operands, &list[i].what);
        }
        measure_cases(options, operands, list, count, r);
        r->count += count;
    }
    family->destroy(operands);
    return status;
}

typedef struct {
    tt_device *device;
    tt_copy pieces[64];
} large_copy;

static void run_large_copy(void *user)
{
    large_copy *copy = user;
    copy->device->ops->copy_group(copy->device, copy->pieces,
                                  sizeof copy->pieces / sizeof *copy->pieces);
    copy->device->synchronize(copy->device);
}

/* Bytes a second, read and written, of a copy much larger than caches usually are. */
static tt_status measure_copy(results *r, tt_error *error)
{
    enum { ROWS = 64, COLUMNS = 1 << 19 };
    tt_bench_memory memory = {.device = r->device};
    tt_matrix source = tt_bench_matrix(&memory, ROWS, COLUMNS);
    tt_matrix target = tt_bench_matrix(&memory, ROWS, COLUMNS);
    tt_status status = tt_bench_memory_check(&memory, error);
    if (status == TT_OK) {
        large_copy copy = {.device = r->device};
        for (int i = 0; i < ROWS; i++) {
            copy.pieces[i] = (tt_copy){.source = tt_matrix_rows(source, i, 1),
                                       .target = tt_matrix_rows(target, i, 1)};
        }
        double bytes = 2.0 * ROWS * COLUMNS * sizeof(float);
        r->copy_bytes = bytes / tt_bench_time(run_large_copy, &copy, seconds_a_case);
    }
    tt_bench_memory_release(&memory);
    return status;
}

/* --- reporting -------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), part = strlen(end);
    return length >= part && strcmp(text + length - part, end) == 0;
}

static bool is_timed(const tt_bench_sizes *sizes, const char *operation)
{
    for (int f = 0; f < FAMILIES; f++) {
        tt_bench_case cases[TT_BENCH_CASES];
        int count = families[f]->list(sizes, cases);
        for (int i = 0; i < count; i++) {
            if (strcmp(cases[i].operation, operation) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* Names of operations that no case times. A *_workspace only states a size and needs none. */
static int list_missing(const tt_bench_sizes *sizes, const char *missing[OPERATIONS])
{
    int count = 0;
    for (int i = 0; i < OPERATIONS; i++) {
        if (!ends_with(operations[i], "_workspace") && !is_timed(sizes, operations[i])) {
            missing[count++] = operations[i];
        }
    }
    return count;
}

/* The dense form of what `m` measures as a tensor train, or NULL. */
static const measurement *dense_of(const results *r, const measurement *m)
{
    if (strncmp(m->what.form, "tensor train", strlen("tensor train")) != 0) {
        return NULL;
    }
    for (int i = 0; i < r->count; i++) {
        if (strcmp(r->list[i].what.operation, m->what.operation) == 0 &&
            strcmp(r->list[i].what.form, "dense") == 0) {
            return &r->list[i];
        }
    }
    return NULL;
}

/* What `m` is the better way of doing: the same form, "plain". NULL where there is none. */
static const measurement *plain_of(const results *r, const measurement *m)
{
    size_t length = strlen(m->what.form);
    for (int i = 0; i < r->count; i++) {
        const tt_bench_case *other = &r->list[i].what;
        if (strcmp(other->operation, m->what.operation) == 0 &&
            strncmp(other->form, m->what.form, length) == 0 &&
            strcmp(other->form + length, ", plain") == 0) {
            return &r->list[i];
        }
    }
    return NULL;
}

static void print_comparison(const measurement *m, const measurement *with, const char *name)
{
    printf("%-28s %-26s %6.2fx as fast as %s", m->what.operation, m->what.form,
           with->seconds / m->seconds, name);
    if (m->memory > 0 && with->memory > 0) {
        printf(", %.1f MiB instead of %.1f (%.2fx less)", m->memory / 1048576.0,
               with->memory / 1048576.0, with->memory / m->memory);
    }
    putchar('\n');
}

static void print_header(const bench_options *options, const results *r)
{
    const tt_bench_sizes *s = &options->sizes;
    printf(
        "%lld x %lld tokens, width %lld, %lld heads, %lld inner units, vocabulary %lld, rank %lld, "
        "dropout %g\n",
        (long long)s->batch, (long long)s->sequence, (long long)s->hidden, (long long)s->heads,
        (long long)s->inner, (long long)s->vocabulary, (long long)s->rank, s->dropout);
    printf("%d thread%s; measured f32 product peak %.1f GFLOP/s, copy %.1f GB/s\n\n",
           r->device->threads, r->device->threads > 1 ? "s" : "", 1e-9 * r->peak_flops,
           1e-9 * r->copy_bytes);
    printf("%-28s %-26s %10s %9s %9s %8s %s\n", "operation", "form", "ms", "GB/s", "GFLOP/s",
           "of peak", "bound by");
}

static void print_summary(const results *r, const char *const *missing, int missing_count)
{
    printf("\nGB/s counts every operand once. 'of peak' is the fraction of the product peak or of "
           "the copy speed,\nwhichever bounds the operation; above 1 where operands lie in cache. "
           "Halves and blocks end with their\nresidual norms; thin ones stand in a row of their "
           "kind: what comes before has made their u, and they\nmake that of what follows. Left "
           "out is what runs once a step: materialise, contract, score and output\nmaps, "
           "update.\n\n");
    for (int i = 0; i < r->count; i++) {
        const measurement *m = &r->list[i], *dense = dense_of(r, m), *plain = plain_of(r, m);
        if (dense != NULL) {
            print_comparison(m, dense, "dense");
        }
        if (plain != NULL) {
            print_comparison(m, plain, "plain");
        }
    }
    for (int i = 0; i < missing_count; i++) {
        printf("without a benchmark: %s\n", missing[i]);
    }
}

static json_t *as_json(const results *r, const measurement *m)
{
    bound limit = bound_of(r, m);
    json_t *object = json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:s, s:f}", "operation",
                               m->what.operation, "form", m->what.form, "median_s", m->seconds,
                               "bytes", m->what.bytes, "bytes_per_s", m->what.bytes / m->seconds,
                               "flops", m->what.flops, "flops_per_s", m->what.flops / m->seconds,
                               "bound", limit.name, "fraction_of_peak", limit.fraction);
    const measurement *dense = dense_of(r, m);
    if (dense != NULL) {
        json_object_set_new(object, "speedup_against_dense",
                            json_real(dense->seconds / m->seconds));
    }
    const measurement *plain = plain_of(r, m);
    if (plain != NULL) {
        json_object_set_new(object, "speedup_against_plain",
                            json_real(plain->seconds / m->seconds));
    }
    if (m->memory > 0) {
        json_object_set_new(object, "memory_bytes", json_real(m->memory));
    }
    return object;
}

static void print_json(const bench_options *options, const results *r, const char *const *missing,
                       int missing_count)
{
    const tt_bench_sizes *s = &options->sizes;
    json_t *list = json_array(), *names = json_array();
    for (int i = 0; i < r->count; i++) {
        json_array_append_new(list, as_json(r, &r->list[i]));
    }
    for (int i = 0; i < missing_count; i++) {
        json_array_append_new(names, json_string(missing[i]));
    }
    json_t *root = json_pack(
        "{s:i, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:o, s:o}", "threads",
        r->device->threads, "peak_flops_per_s", r->peak_flops, "copy_bytes_per_s", r->copy_bytes,
        "batch", (json_int_t)s->batch, "sequence_length", (json_int_t)s->sequence, "hidden",
        (json_int_t)s->hidden, "heads", (json_int_t)s->heads, "intermediate", (json_int_t)s->inner,
        "vocabulary", (json_int_t)s->vocabulary, "rank", (json_int_t)s->rank, "dropout", s->dropout,
        "operations", list, "without_benchmark", names);
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(root);
}

/* --- the command ------------------------------------------------------------------------------ */

static tt_status measure_all(const bench_options *options, results *r, tt_error *error)
{
    TT_TRY(tt_device_create_cpu((int)options->threads, &r->device, error));
    r->peak_flops = tt_bench_peak(r->device);
    TT_TRY(measure_copy(r, error));
    if (!options->json) {
        print_header(options, r);
    }
    for (int f = 0; f < FAMILIES; f++) {
        TT_TRY(measure_family(families[f], options, r, error));
    }
    return TT_OK;
}

static void report(const bench_options *options, const results *r)
{
    const char *missing[OPERATIONS];
    int missing_count = list_missing(&options->sizes, missing);
    if (options->json) {
        print_json(options, r, missing, missing_count);
    } else {
        print_summary(r, missing, missing_count);
    }
}

static int run(const bench_options *options)
{
    tt_error error = {0};
    results *r = calloc(1, sizeof *r);
    if (r == NULL) {
        tt_error_set(&error, TT_OUT_OF_MEMORY, "no memory for results");
        return tt_command_failed("bench ops", &error);
    }
    tt_status status = measure_all(options, r, &error);
    if (status == TT_OK) {
        report(options, r);
    }
    tt_device_destroy(&r->device);
    free(r);
    return status == TT_OK ? TT_EXIT_DONE : tt_command_failed("bench ops", &error);
}

/* What the single ranges of the options cannot say; 0, or the exit status of wrong usage. */
static int check(bench_options *options)
{
    tt_bench_sizes *sizes = &options->sizes;
    if (sizes->hidden % sizes->heads != 0) {
        return tt_command_usage("bench ops",
                                "--hidden: expected a multiple of --heads %lld, found %lld",
                                (long long)sizes->heads, (long long)sizes->hidden);
    }
    int64_t limit = sizes->hidden < sizes->inner ? sizes->hidden : sizes->inner;
    if (sizes->rank > limit) {
        return tt_command_usage("bench ops",
                                "--rank: expected at most %lld, the smaller of --hidden and "
                                "--intermediate; found %lld",
                                (long long)limit, (long long)sizes->rank);
    }
    sizes->tokens = sizes->batch * sizes->sequence;
    sizes->predictions = sizes->batch * ((sizes->sequence * 15 + 99) / 100);
    for (int f = 0; options->only != NULL && f < FAMILIES; f++) {
        tt_bench_case cases[TT_BENCH_CASES];
        int count = families[f]->list(sizes, cases);
        for (int i = 0; i < count; i++) {
            if (selected(options, &cases[i])) {
                return 0;
            }
        }
    }
    return options->only == NULL
               ? 0
               : tt_command_usage("bench ops", "--only: no operation's name holds '%.100s'",
                                  options->only);
}

int tt_bench_ops_main(int argc, char **argv)
{
    bench_options options = {.rounds = 1,
                             .sizes = {.batch = 32,
                                       .sequence = 128,
                                       .hidden = 768,
                                       .heads = 12,
                                       .inner = 3072,
                                       .vocabulary = 30522,
                                       .rank = 30,
                                       .dropout = 0.1}};
    tt_bench_sizes *sizes = &options.sizes;
    const tt_option table[] = {
        {"batch", TT_OPTION_INTEGER, &sizes->batch, "N", "sequences", NULL, 1, 1 << 20, false},
        {"sequence-length", TT_OPTION_INTEGER, &sizes->sequence, "N", "tokens a sequence", NULL, 1,
         1 << 16, false},
        {"hidden", TT_OPTION_INTEGER, &sizes->hidden, "N", "the model's width", NULL, 2, 1 << 14,
         false},
        {"heads", TT_OPTION_INTEGER, &sizes->heads, "N", "attention heads", NULL, 1, 1 << 10,
         false},
        {"intermediate", TT_OPTION_INTEGER, &sizes->inner, "N",
         "inner units of the feed-forward block", NULL, 2, 1 << 16, false},
        {"vocabulary", TT_OPTION_INTEGER, &sizes->vocabulary, "N", "tokens that have an embedding",
         NULL, 1, 1 << 24, false},
        {"rank", TT_OPTION_INTEGER, &sizes->rank, "N", "of every link of the tensor trains", NULL,
         1, 1 << 14, false},
        {"dropout", TT_OPTION_REAL, &sizes->dropout, "P",
         "probability in attention and the residual norms", NULL, 0, 0.99, false},
        {"threads", TT_OPTION_INTEGER, &options.threads, "N", "OpenMP threads; 0: all", NULL, 0,
         4096, false},
        {"rounds", TT_OPTION_INTEGER, &options.rounds, "N",
         "times that everything is measured, in turns; the median is shown", NULL, 1, MOST_ROUNDS,
         false},
        {"only", TT_OPTION_TEXT, &options.only, "NAME", "operations whose name holds this", NULL, 0,
         0, false},
        {"json", TT_OPTION_FLAG, &options.json, NULL, "print JSON", NULL, 0, 0, false},
    };
    const tt_command command = {
        .name = "bench ops",
        .arguments = "",
        .purpose =
            "Times every operation of a training step at a model's sizes, forward and backward, "
            "with its dense and its tensor-train forms, and holds it against the measured speed "
            "of matrix products and of memory. The defaults are the six-encoder model's.",
        .example = "ttrain bench ops --threads 2 --only attention",
        .options = table,
        .option_count = sizeof table / sizeof *table};
    char **arguments;
    int count, exit_status;
    if (!tt_command_parse(&command, argc, argv, &arguments, &count, &exit_status)) {
        return exit_status;
    }
    exit_status = check(&options);
    return exit_status != 0 ? exit_status : run(&options);
}

/* Sums and copies of device memory over ranks: with MPI on the CPU device and, in programs that
 * have one, with NCCL on the CUDA device. The test starts itself under mpirun; each rank checks
 * what it got and says on stderr what it did not expect. */
#include "support/program.h"

#include "core/device.h"
#include "dist/collectives.h"
#ifdef TTRAIN_CUDA
#include "core/cuda/cuda.h"
#endif

enum { RANK_SECONDS = 200, GRADIENTS = 1000, STATISTICS = 16, LENGTH = GRADIENTS + STATISTICS };

/* --- one rank --- */

typedef struct {
    tt_world world;
    tt_device *device;
    tt_collectives *collectives;
    float *values; /* device memory: LENGTH numbers */
} rank_state;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);              \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static void expect_ok(tt_status status, const tt_error *error)
{
    if (status != TT_OK) {
        fprintf(stderr, "failed: %s\n", error->message);
        _exit(1);
    }
}

static const tt_gradient_range early[] = {{256, 128}, {640, 64}};

static tt_gradient_plan make_plan(float *values)
{
    return (tt_gradient_plan){.gradients = values,
                              .gradient_count = GRADIENTS,
                              .statistic_count = STATISTICS,
                              .early = early,
                              .early_count = 2};
}

/* Multiples of 1/4 that bf16 holds, as it does their sums; but for number 5 and the statistics. */
static float number_of(int rank, int i)
{
    if (i == 5 || i >= GRADIENTS) {
        return 1.0f + 1.0f / 1024.0f;
    }
    return (float)((i * 7 + rank * 13) % 31) * 0.25f;
}

static void fill(const rank_state *state)
{
    float values[LENGTH];
    for (int i = 0; i < LENGTH; i++) {
        values[i] = number_of(state->world.rank, i);
    }
    state->device->copy_in(state->device, state->values, values, sizeof values);
}

static void expect_sums(const rank_state *state, bool rounded)
{
    float values[LENGTH];
    state->device->copy_out(state->device, values, state->values, sizeof values);
    state->device->synchronize(state->device);
    for (int i = 0; i < LENGTH; i++) {
        float sum = 0.0f;
        for (int rank = 0; rank < state->world.size; rank++) {
            sum += rounded && i == 5 ? 1.0f : number_of(rank, i);
        }
        if (values[i] != sum) {
            fprintf(stderr, "number %d: expected %.9g, found %.9g\n", i, (double)sum,
                    (double)values[i]);
            _exit(1);
        }
    }
}

static void reduce(const rank_state *state)
{
    tt_collectives_begin(state->collectives, 0);
    tt_collectives_begin(state->collectives, 1);
    tt_collectives_finish(state->collectives);
}

static tt_status create(rank_state *state, tt_transport transport, tt_type type, tt_error *error)
{
    tt_collectives_options options = {.transport = transport, .gradients = type};
    return tt_collectives_create(&state->world, state->device, &options, &state->collectives,
                                 error);
}

static void check_capture(const rank_state *state, bool rounded)
{
    tt_device *device = state->device;
    if (!device->captures || !tt_collectives_captures(state->collectives)) {
        return;
    }
    EXPECT(device->capture_begin(device));
    reduce(state);
    tt_graph *graph = device->capture_end(device);
    EXPECT(graph);
    for (int i = 0; i < 3; i++) {
        fill(state);
        device->graph_run(device, graph);
        expect_sums(state, rounded);
    }
    device->graph_destroy(device, graph);
}

static void check_sums(rank_state *state, tt_transport transport, tt_type type)
{
    tt_error error;
    expect_ok(create(state, transport, type, &error), &error);
    tt_collectives *collectives = state->collectives;
    bool rounded = type == TT_BF16 && strncmp(tt_collectives_describe(collectives), "NCCL", 4) == 0;
    tt_gradient_plan plan = make_plan(state->values);
    expect_ok(tt_collectives_plan(collectives, &plan, &error), &error);
    for (int i = 0; i < 2; i++) {
        fill(state);
        reduce(state);
        expect_sums(state, rounded);
    }
    check_capture(state, rounded);
    fill(state);
    tt_collectives_sum(collectives, state->values, LENGTH);
    expect_sums(state, false);
    float first = -1.0f, expected = number_of(0, 77);
    fill(state);
    tt_collectives_broadcast(collectives, state->values, LENGTH * sizeof(float));
    state->device->copy_out(state->device, &first, state->values + 77, sizeof first);
    state->device->synchronize(state->device);
    EXPECT(first == expected);
    expect_ok(tt_collectives_check(collectives, &error), &error);
    tt_collectives_destroy(&state->collectives);
    EXPECT(!state->collectives);
}

static void rank_sums(rank_state *state)
{
    check_sums(state, TT_TRANSPORT_AUTO, TT_F32);
    check_sums(state, TT_TRANSPORT_AUTO, TT_BF16);
    check_sums(state, TT_TRANSPORT_MPI, TT_F32);
}

/* Plans that differ, or that are wrong on one rank alone, are refused on all. */
static void rank_plans(rank_state *state)
{
    tt_error error;
    bool odd = state->world.rank == 1;
    expect_ok(create(state, TT_TRANSPORT_AUTO, TT_F32, &error), &error);
    tt_gradient_plan plan = make_plan(state->values);
    plan.gradient_count -= odd;
    EXPECT(tt_collectives_plan(state->collectives, &plan, &error) == TT_PEER_FAILED);
    EXPECT(error.shared && strstr(error.message, "the number of gradients to reduce"));
    plan = make_plan(state->values);
    plan.early_count -= odd;
    EXPECT(tt_collectives_plan(state->collectives, &plan, &error) == TT_PEER_FAILED);
    EXPECT(error.shared && strstr(error.message, "the ranges of gradients to reduce"));
    const tt_gradient_range overlapping[] = {{0, 100}, {odd ? 99 : 100, 10}};
    plan.early = overlapping;
    plan.early_count = 2;
    EXPECT(tt_collectives_plan(state->collectives, &plan, &error) == TT_INVALID_INPUT);
    EXPECT(error.shared && strstr(error.message, "rank 1: "));
    EXPECT(strstr(error.message, "early ranges 0 and 1 overlap"));
    const tt_gradient_range outside[] = {{GRADIENTS - 1, 2}};
    plan.early = outside;
    plan.early_count = 1;
    EXPECT(tt_collectives_plan(state->collectives, &plan, &error) == TT_INVALID_INPUT);
    EXPECT(strstr(error.message, "early range 0 is [999, 1001) of 1000 gradients"));
    tt_collectives_destroy(&state->collectives);
}

static void rank_options(rank_state *state)
{
    tt_error error;
    tt_type type = state->world.rank == 1 ? TT_BF16 : TT_F32;
    EXPECT(create(state, TT_TRANSPORT_AUTO, type, &error) == TT_PEER_FAILED);
    EXPECT(strstr(error.message, "how gradients are reduced") && !state->collectives);
    if (strcmp(state->device->name, "cpu") == 0) {
        EXPECT(create(state, TT_TRANSPORT_NCCL, TT_F32, &error) == TT_INVALID_INPUT);
        EXPECT(strstr(error.message, "NCCL needs a CUDA device, found device cpu"));
    }
}

#ifdef TTRAIN_SIMULATOR
static void rank_versions(rank_state *state)
{
    tt_error error;
    setenv("TTRAIN_SIMULATOR_NCCL_VERSION", state->world.rank == 1 ? "22105" : "22203", 1);
    EXPECT(create(state, TT_TRANSPORT_AUTO, TT_F32, &error) == TT_PEER_FAILED);
    EXPECT(strstr(error.message, "rank 1 has NCCL 2.21.5 and rank 0 has NCCL 2.22.3: expected one "
                                 "version on all hosts"));
}

/* With MPI two ranks may share a device. */
static void rank_one_device(rank_state *state)
{
    tt_error error;
    EXPECT(create(state, TT_TRANSPORT_AUTO, TT_F32, &error) == TT_INVALID_INPUT);
    EXPECT(error.shared && strstr(error.message, "ranks 0 and 1 both have the device at "));
    check_sums(state, TT_TRANSPORT_MPI, TT_F32);
}

static void rank_killed(rank_state *state)
{
    tt_error error;
    expect_ok(create(state, TT_TRANSPORT_AUTO, TT_F32, &error), &error);
    tt_collectives_sum(state->collectives, state->values, LENGTH);
    state->device->synchronize(state->device);
    if (state->world.rank == 1) {
        raise(SIGKILL);
    }
    tt_collectives_sum(state->collectives, state->values, LENGTH);
    state->device->synchronize(state->device);
    /* Free again since the communicator was aborted, and about to be ended by the watcher. */
    EXPECT(tt_collectives_check(state->collectives, &error) == TT_PEER_FAILED);
    fprintf(stderr, "rank 0 learns: %s\n", error.message);
    _exit(1);
}
#endif

/* --- starting a rank --- */

static const struct {
    const char *name;
    void (*body)(rank_state *state);
} scenarios[] = {
    {"sums", rank_sums},         {"plans", rank_plans},           {"options", rank_options},
#ifdef TTRAIN_SIMULATOR
    {"versions", rank_versions}, {"one_device", rank_one_device}, {"killed", rank_killed},
#endif
};

static void create_device(rank_state *state, const char *kind)
{
    tt_error error;
    if (strcmp(kind, "cpu") == 0) {
        expect_ok(tt_device_create_cpu(1, &state->device, &error), &error);
        return;
    }
#ifdef TTRAIN_CUDA
    int ordinal = strcmp(kind, "shared") == 0 ? 0 : state->world.local_rank;
    tt_cuda_options options = {.ordinal = ordinal, .compute = TT_F32};
    expect_ok(tt_device_create_cuda(&options, &state->device, &error), &error);
#endif
    EXPECT(state->device);
}

static int run_rank(const char *kind, const char *name)
{
    tt_error error;
    rank_state state = {.device = NULL};
    expect_ok(tt_world_join(&state.world, &error), &error);
    create_device(&state, kind);
    state.values = state.device->allocate(state.device, LENGTH * sizeof(float));
    EXPECT(state.values);
    bool found = false;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        if (strcmp(scenarios[i].name, name) == 0) {
            scenarios[i].body(&state);
            found = true;
        }
    }
    state.device->release(state.device, state.values);
    tt_device_destroy(&state.device);
    tt_world_leave(&state.world);
    return found ? 0 : 2;
}

/* --- the test --- */

static const char *own_path;

static int launch(const char *ranks, const char *kind, const char *name, const char *more,
                  char **log)
{
    program_call call = {.arguments = {TTRAIN_MPIRUN, "-np", ranks, "--oversubscribe", "--bind-to",
                                       "none", more, own_path, "rank", kind, name},
                         .environment = {PROGRAM_USES_MPI, "TTRAIN_SIMULATOR_DEVICES=4"}};
    program started = program_start(&call);
    int status = program_wait(&started, RANK_SECONDS);
    *log = program_log(&started);
    return status;
}

static void expect_good(const char *ranks, const char *kind, const char *name)
{
    char *log;
    if (launch(ranks, kind, name, "--tag-output", &log) != 0) {
        fail_msg("%s on %s ranks with device %s: %s", name, ranks, kind, end_of(log));
    }
    free(log);
}

/* Whether NCCL can be tried: always on the simulator, on a machine with two GPUs else. */
static bool has_devices(void)
{
#if defined TTRAIN_SIMULATOR
    return true;
#elif defined TTRAIN_CUDA
    tt_error reason;
    return tt_cuda_device_count(&reason) >= 2;
#else
    return false;
#endif
}

static void test_cpu(void **state)
{
    (void)state;
    expect_good("2", "cpu", "sums");
    expect_good("3", "cpu", "sums");
    expect_good("2", "cpu", "plans");
    expect_good("2", "cpu", "options");
}

static void test_cuda(void **state)
{
    (void)state;
    if (!has_devices()) {
        skip();
    }
    expect_good("2", "cuda", "sums");
    expect_good("2", "cuda", "plans");
    expect_good("2", "cuda", "options");
}

#ifdef TTRAIN_SIMULATOR
static void test_simulated(void **state)
{
    (void)state;
    expect_good("4", "cuda", "sums");
    expect_good("2", "cuda", "versions");
    expect_good("2", "shared", "one_device");
}

/* mpirun is told not to end the others itself, as some launchers do not; it then has no status. */
static void test_killed_peer(void **state)
{
    (void)state;
    char *log;
    launch("2", "cuda", "killed", "--enable-recovery", &log);
    expect_in_log(log, "ttrain pretrain: rank 0 on ");
    expect_in_log(log, "NCCL: remote process exited or there was a network error (rank 1 ");
    expect_in_log(log, "; ending the job\n");
    assert_null(strstr(log, "not true"));
    free(log);
}
#endif

static void test_world_of_one(void **state)
{
    (void)state;
    rank_state one = {.world = {.size = 1, .local_size = 1}};
    tt_error error;
    assert_int_equal(tt_device_create_cpu(1, &one.device, &error), TT_OK);
    one.values = one.device->allocate(one.device, LENGTH * sizeof(float));
    assert_int_equal(create(&one, TT_TRANSPORT_AUTO, TT_F32, &error), TT_OK);
    assert_string_equal(tt_collectives_describe(one.collectives), "none (one rank)");
    assert_true(tt_collectives_captures(one.collectives));
    tt_gradient_plan plan = make_plan(one.values);
    assert_int_equal(tt_collectives_plan(one.collectives, &plan, &error), TT_OK);
    fill(&one);
    reduce(&one);
    tt_collectives_sum(one.collectives, one.values, LENGTH);
    tt_collectives_broadcast(one.collectives, one.values, LENGTH * sizeof(float));
    for (int i = 0; i < LENGTH; i++) {
        assert_true(one.values[i] == number_of(0, i));
    }
    assert_int_equal(tt_collectives_check(one.collectives, &error), TT_OK);
    tt_collectives_destroy(&one.collectives);
    tt_collectives_destroy(&one.collectives);
    one.device->release(one.device, one.values);
    tt_device_destroy(&one.device);
}

int main(int count, char **arguments)
{
    if (count == 4 && strcmp(arguments[1], "rank") == 0) {
        return run_rank(arguments[2], arguments[3]);
    }
    static char path[4096];
    own_path = path;
    if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world_of_one), cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_cuda),
#ifdef TTRAIN_SIMULATOR
        cmocka_unit_test(test_simulated),    cmocka_unit_test(test_killed_peer),
#endif
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

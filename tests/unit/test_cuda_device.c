/* What the CUDA device refuses, in a build that has it, and what it says: each case in a process of
 * its own, since a simulated machine is described by the environment it starts with. */
#include "support/test_device.h"

#ifndef TTRAIN_CUDA

int main(void)
{
    printf("nothing to test: built for the CPU alone\n");
    return 0;
}

#else

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs `function` in a child with these settings of the environment (NAME, VALUE, ..., NULL) and
 * gives back the message that it fills. */
typedef void (*child_function)(tt_error *error);

static void message_of(const char *const *environment, child_function function, char *message,
                       size_t size)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (int i = 0; environment[i]; i += 2) {
            setenv(environment[i], environment[i + 1], 1);
        }
        signal(SIGSEGV, SIG_DFL); /* which cmocka would take for a failure of its own */
        signal(SIGABRT, SIG_DFL);
        tt_error error = {0};
        function(&error);
        ssize_t length = (ssize_t)strlen(error.message) + 1;
        _exit(write(ends[1], error.message, (size_t)length) == length ? 0 : 1);
    }
    close(ends[1]);
    ssize_t length = read(ends[0], message, size);
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_true(length > 0 && message[length - 1] == 0);
}

static void expect(const char *const *environment, child_function function, const char *expected)
{
    char message[sizeof((tt_error *)NULL)->message];
    message_of(environment, function, message, sizeof message);
    if (!strstr(message, expected)) {
        fail_msg("expected \"%s\", found \"%s\"", expected, message);
    }
}

static void create(tt_error *error, int ordinal, tt_type compute)
{
    tt_device *device = NULL;
    tt_cuda_options options = {.ordinal = ordinal, .compute = compute};
    if (tt_device_create_cuda(&options, &device, error) == TT_OK) {
        tt_device_destroy(&device);
    } else if (device) {
        snprintf(error->message, sizeof error->message, "a device in spite of the failure");
    }
}

static void create_first(tt_error *error)
{
    create(error, 0, TT_F32);
}

static void create_bf16(tt_error *error)
{
    create(error, 0, TT_BF16);
}

static void create_ninth(tt_error *error)
{
    create(error, 99, TT_F32);
}

#ifdef TTRAIN_SIMULATOR

static void test_no_driver(void **state)
{
    (void)state;
    const char *const none[] = {"TTRAIN_SIMULATOR_DRIVER", "0", NULL};
    expect(none, create_first, "no CUDA device: this machine has no NVIDIA driver");
    const char *const old[] = {"TTRAIN_SIMULATOR_DRIVER", "11040", NULL};
    expect(old, create_first,
           "the NVIDIA driver is too old: it knows CUDA 11.4, this ttrain needs");
}

static void test_no_device(void **state)
{
    (void)state;
    const char *const none[] = {"TTRAIN_SIMULATOR_DEVICES", "0", NULL};
    expect(none, create_first, "no CUDA device: the driver shows none");
    const char *const hidden[] = {"TTRAIN_SIMULATOR_DEVICES", "0", "CUDA_VISIBLE_DEVICES", "7",
                                  NULL};
    expect(hidden, create_first, "(CUDA_VISIBLE_DEVICES is \"7\")");
}

static void test_capability(void **state)
{
    (void)state;
    const char *const turing[] = {"TTRAIN_SIMULATOR_COMPUTE_CAPABILITY", "7.5", NULL};
    expect(turing, create_bf16,
           "cuda:0 (Simulated GPU, compute capability 7.5) has no bf16, which needs 8.0 or newer: "
           "compute in f32 there");
}

static void test_ordinal(void **state)
{
    (void)state;
    const char *const two[] = {"TTRAIN_SIMULATOR_DEVICES", "2", NULL};
    expect(two, create_ninth, "CUDA device: expected 0 to 1, found 99");
}

static void choose(tt_error *error, int rank, int ranks, bool share)
{
    int ordinal = -1;
    if (tt_cuda_choose_device(rank, ranks, share, &ordinal, error) == TT_OK) {
        snprintf(error->message, sizeof error->message, "device %d", ordinal);
    }
}

static void choose_last_of_four(tt_error *error)
{
    choose(error, 3, 4, false);
}

static void share_last_of_four(tt_error *error)
{
    choose(error, 3, 4, true);
}

static void test_choice(void **state)
{
    (void)state;
    const char *const four[] = {"TTRAIN_SIMULATOR_DEVICES", "4", NULL};
    expect(four, choose_last_of_four, "device 3");
    const char *const two[] = {"TTRAIN_SIMULATOR_DEVICES", "2", NULL};
    expect(two, choose_last_of_four,
           "4 ranks on this host, but 2 CUDA devices: start at most one rank for each device");
    expect(two, share_last_of_four, "device 1");
    const char *const own[] = {"TTRAIN_SIMULATOR_DEVICES", "1", "CUDA_VISIBLE_DEVICES", "3", NULL};
    expect(own, choose_last_of_four, "device 0");
}

static void ask_for_too_much(tt_error *error)
{
    tt_device *device = NULL;
    tt_cuda_options options = {.ordinal = 0};
    if (tt_device_create_cuda(&options, &device, error) == TT_OK) {
        tt_arena arena;
        tt_arena_init(&arena, device);
        tt_arena_reserve(&arena, (size_t)300 << 20);
        tt_arena_allocate(&arena, "activations", error);
        tt_error later = {0};
        if (device->check(device, &later) != TT_OK) { /* the device itself goes on */
            *error = later;
        }
        tt_device_destroy(&device);
    }
}

static void test_memory(void **state)
{
    (void)state;
    const char *const little[] = {"TTRAIN_SIMULATOR_MEMORY", "128", NULL};
    expect(little, ask_for_too_much, "cuda:0: no memory for activations: 300.0 MiB needed, ");
    const char *const none[] = {"TTRAIN_SIMULATOR_MEMORY", "1", NULL};
    expect(none, create_first, "cuda:0: no memory for work areas of products and reductions: ");
}

/* A table that the step before the capture did not have fails the capture, and says so. */
static void capture_something_new(tt_error *error)
{
    tt_device *device = NULL;
    tt_cuda_options options = {.ordinal = 0};
    if (tt_device_create_cuda(&options, &device, error) != TT_OK) {
        return;
    }
    float *memory = device->allocate(device, 64);
    tt_copy copy = {.source = tt_matrix_f32(memory, 1, 4),
                    .target = tt_matrix_f32(memory + 8, 1, 4)};
    device->capture_begin(device);
    device->ops->copy_group(device, &copy, 1);
    tt_graph *graph = device->capture_end(device);
    if (graph) {
        snprintf(error->message, sizeof error->message, "captured in spite of it");
    } else {
        device->check(device, error);
    }
    device->release(device, memory);
    tt_device_destroy(&device);
}

static void test_capture(void **state)
{
    (void)state;
    const char *const nothing[] = {NULL};
    expect(nothing, capture_something_new,
           "cuda:0: a step being captured uses a table of 72 bytes that the step before it");
}

#else

/* Where a GPU is at hand there is nothing to refuse; elsewhere the reason is given. */
static void test_this_machine(void **state)
{
    (void)state;
    tt_error reason = {0};
    const char *const nothing[] = {NULL};
    if (tt_cuda_device_count(&reason) == 0) {
        expect(nothing, create_first, "no CUDA device: ");
    } else {
        expect(nothing, create_ninth, "CUDA device: expected 0 to ");
        expect(nothing, create_bf16, "");
    }
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef TTRAIN_SIMULATOR
        cmocka_unit_test(test_no_driver),  cmocka_unit_test(test_no_device),
        cmocka_unit_test(test_capability), cmocka_unit_test(test_ordinal),
        cmocka_unit_test(test_choice),     cmocka_unit_test(test_memory),
        cmocka_unit_test(test_capture),
#else
        cmocka_unit_test(test_this_machine),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif

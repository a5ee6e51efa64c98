/* The CPU device's memory and threads, and the arena that plans cut into pieces. */
#include "core/ops.h"

#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tt_device *make_device(int threads)
{
    tt_device *device = NULL;
    tt_error error = {0};
    if (tt_device_create_cpu(threads, &device, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
    return device;
}

static void test_create(void **state)
{
    (void)state;
    tt_error error = {0};
    tt_device *device = NULL;
    assert_int_equal(tt_device_create_cpu(-1, &device, &error), TT_INVALID_INPUT);
    assert_string_equal(error.message, "threads: expected 0 to 4096, found -1");
    assert_int_equal(tt_device_create_cpu(4097, &device, &error), TT_INVALID_INPUT);
    assert_null(device);
    tt_device_destroy(&device); /* NULL is fine */

    device = make_device(3);
    assert_string_equal(device->name, "cpu");
    assert_int_equal(device->threads, 3);
    tt_device_destroy(&device);
    assert_null(device);
    device = make_device(0);
    assert_true(device->threads >= 1);
    tt_device_destroy(&device);
}

static int one_thread_only(void **state)
{
    (void)state;
    omp_set_max_active_levels(0);
    return 0;
}

static int threads_again(void **state)
{
    (void)state;
    omp_set_max_active_levels(1);
    return 0;
}

/* Where the machine gives fewer threads than asked for, the device knows, and products are right:
 * each thread that oneDNN counts on and does not get would leave a part of one out. */
static void test_fewer_threads(void **state)
{
    (void)state;
    enum { SIZE = 400 };
    tt_device *device = make_device(3);
    assert_int_equal(device->threads, 1);
    size_t bytes = sizeof(float[SIZE][SIZE]);
    float *a = device->allocate(device, bytes), *c = device->allocate(device, bytes);
    for (int i = 0; i < SIZE * SIZE; i++) {
        a[i] = 1.0f;
    }
    tt_matrix view = tt_matrix_f32(a, SIZE, SIZE);
    device->ops->multiply(
        device,
        &(tt_product){.alpha = 1.0f, .a = view, .b = view, .c = tt_matrix_f32(c, SIZE, SIZE)});
    for (int i = 0; i < SIZE * SIZE; i++) {
        assert_true(c[i] == (float)SIZE);
    }
    device->release(device, a);
    device->release(device, c);
    tt_device_destroy(&device);
}

static bool all_zero(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

static void test_memory(void **state)
{
    (void)state;
    tt_device *device = make_device(2);
    const size_t sizes[] = {0, 1, 63, 64, 65, 5000000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *memory = device->allocate(device, sizes[i]);
        unsigned char *host = malloc(sizes[i] + 1);
        assert_non_null(memory);
        assert_non_null(host);
        assert_int_equal((uintptr_t)memory % 64, 0);
        assert_true(all_zero(memory, sizes[i]));
        for (size_t j = 0; j < sizes[i]; j++) {
            host[j] = (unsigned char)(j * 7 + 1);
        }
        device->copy_in(device, memory, host, sizes[i]);
        memset(host, 0, sizes[i]);
        device->copy_out(device, host, memory, sizes[i]);
        device->synchronize(device);
        for (size_t j = 0; j < sizes[i]; j++) {
            assert_true(host[j] == (unsigned char)(j * 7 + 1));
        }
        free(host);
        device->release(device, memory);
    }
    device->release(device, NULL);
#ifndef __SANITIZE_ADDRESS__ /* which ends the program instead */
    assert_null(device->allocate(device, (size_t)1 << 60));
#endif
    tt_device_destroy(&device);
}

/* Zeroing a stretch, whatever its length and start, leaves what lies around it. */
static void test_zero(void **state)
{
    (void)state;
    enum { ROOM = 5 << 20 };
    tt_device *device = make_device(3);
    unsigned char *memory = device->allocate(device, ROOM);
    const size_t sizes[] = {0, 1, 1 << 20, (1 << 20) + 1, (3 << 20) - 1, ROOM - 200};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        memset(memory, 0xAB, ROOM);
        device->zero(device, memory + 100, sizes[i]);
        assert_true(all_zero(memory + 100, sizes[i]));
        assert_int_equal(memory[99], 0xAB);
        assert_int_equal(memory[100 + sizes[i]], 0xAB);
    }
    device->release(device, memory);
    tt_device_destroy(&device);
}

static void test_arena(void **state)
{
    (void)state;
    tt_device *device = make_device(1);
    tt_error error = {0};
    tt_arena arena;
    tt_arena_init(&arena, device);
    assert_int_equal(tt_arena_reserve(&arena, 1), 0);
    assert_int_equal(tt_arena_reserve(&arena, 64), 64);
    assert_int_equal(tt_arena_reserve(&arena, 0), 128);
    assert_int_equal(tt_arena_reserve(&arena, 65), 128);
    size_t mark = tt_arena_mark(&arena);
    assert_int_equal(mark, 256);

    /* Two plans for the same place: the larger one counts, wherever the position stands after. */
    assert_int_equal(tt_arena_reserve(&arena, 1000), 256);
    size_t furthest = tt_arena_mark(&arena);
    tt_arena_rewind(&arena, mark);
    assert_int_equal(tt_arena_reserve(&arena, 10), 256);
    tt_arena_rewind(&arena, mark);
    assert_int_equal(arena.capacity, furthest);
    assert_null(tt_arena_at(&arena, mark)); /* not allocated yet */

    assert_int_equal(tt_arena_allocate(&arena, "test", &error), TT_OK);
    unsigned char *start = tt_arena_at(&arena, 0);
    assert_int_equal((uintptr_t)start % 64, 0);
    assert_ptr_equal(tt_arena_at(&arena, mark), start + mark);
    assert_true(all_zero(start, furthest));
    memset(start, 1, furthest);
    tt_arena_free(&arena);
    assert_null(arena.memory);
    assert_int_equal(arena.capacity, 0);
    assert_int_equal(tt_arena_reserve(&arena, 8), 0); /* ready for the next plan */
    tt_arena_free(&arena);
    tt_device_destroy(&device);
}

static void *refuse(tt_device *device, size_t bytes)
{
    (void)device;
    (void)bytes;
    return NULL;
}

static void test_arena_without_memory(void **state)
{
    (void)state;
    tt_device *device = make_device(1);
    tt_error error = {0};
    tt_arena arena;
    device->allocate = refuse;
    tt_arena_init(&arena, device);
    tt_arena_reserve(&arena, 3 << 19);
    assert_int_equal(tt_arena_allocate(&arena, "activations", &error), TT_OUT_OF_MEMORY);
    assert_string_equal(error.message, "cpu: no memory for activations: 1.5 MiB needed");
    tt_arena_free(&arena);
    tt_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),
        cmocka_unit_test_setup_teardown(test_fewer_threads, one_thread_only, threads_again),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_zero),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_arena_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

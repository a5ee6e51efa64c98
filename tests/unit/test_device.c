/* A device's memory and the transfers to and from it, work that is recorded and repeated, the CPU
 * device's threads, and the arena that plans cut into pieces. */
#include "support/test_device.h"

#include <omp.h>

static tt_device *make_cpu_device(int threads)
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

    device = make_cpu_device(3);
    assert_string_equal(device->name, "cpu");
    assert_int_equal(device->threads, 3);
    tt_device_destroy(&device);
    assert_null(device);
    device = make_cpu_device(0);
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
    tt_device *device = make_cpu_device(3);
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

/* Whether every one of the bytes in the device's memory is `value`. */
static bool all_are(tt_device *device, const void *memory, size_t count, unsigned char value)
{
    unsigned char *bytes = test_copy_out(device, memory, count);
    bool found = true;
    for (size_t i = 0; i < count; i++) {
        found = found && bytes[i] == value;
    }
    free(bytes);
    return found;
}

static void fill(tt_device *device, void *memory, size_t count, unsigned char value)
{
    unsigned char *bytes = test_host(count);
    memset(bytes, value, count);
    device->copy_in(device, memory, bytes, count);
    free(bytes);
}

static void test_memory(void **state)
{
    (void)state;
    tt_device *device = test_device(2);
    const size_t sizes[] = {0, 1, 63, 64, 65, 5000000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *memory = device->allocate(device, sizes[i]);
        unsigned char *host = malloc(sizes[i] + 1);
        assert_non_null(memory);
        assert_non_null(host);
        assert_int_equal((uintptr_t)memory % 64, 0);
        assert_true(all_are(device, memory, sizes[i], 0));
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
    tt_device *device = test_device(3);
    unsigned char *memory = device->allocate(device, ROOM);
    const size_t sizes[] = {0, 1, 1 << 20, (1 << 20) + 1, (3 << 20) - 1, ROOM - 200};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        fill(device, memory, ROOM, 0xAB);
        device->zero(device, memory + 100, sizes[i]);
        assert_true(all_are(device, memory + 100, sizes[i], 0));
        assert_true(all_are(device, memory, 100, 0xAB));
        assert_true(all_are(device, memory + 100 + sizes[i], ROOM - 100 - sizes[i], 0xAB));
    }
    device->release(device, memory);
    tt_device_destroy(&device);
}

static void test_copy(void **state)
{
    (void)state;
    enum { BYTES = 100000, PLACE = 333 };
    tt_device *device = test_device(2);
    unsigned char *from = device->allocate(device, BYTES), *to = device->allocate(device, BYTES);
    fill(device, from, BYTES, 7);
    device->copy(device, to + PLACE, from, BYTES - 2 * PLACE);
    assert_true(all_are(device, to, PLACE, 0));
    assert_true(all_are(device, to + PLACE, BYTES - 2 * PLACE, 7));
    assert_true(all_are(device, to + BYTES - PLACE, PLACE, 0));
    device->release(device, from);
    device->release(device, to);
    tt_device_destroy(&device);
}

/* --- transfers beside the computation -------------------------------------------------------- */

enum { BATCH = 5000, BATCHES = 7 };

/* `result` = twice what lies in `source`, by a product with 2. */
static void put_double(tt_device *device, float *source, float *two, float *result)
{
    tt_product product = {.alpha = 1.0f,
                          .a = tt_matrix_f32(source, BATCH, 1),
                          .b = tt_matrix_f32(two, 1, 1),
                          .c = tt_matrix_f32(result, BATCH, 1)};
    device->ops->multiply(device, &product);
}

/* Batches go up by turns into two places, are worked on and their results come down, while the host
 * already fills the next one: each result is that of its own batch. */
static void test_transfers(void **state)
{
    (void)state;
    const float factor = 2.0f;
    tt_device *device = test_device(2);
    float *two = test_copy_in(device, &factor, sizeof factor);
    float *place[TT_TRANSFER_SLOTS], *pinned[TT_TRANSFER_SLOTS], *record[TT_TRANSFER_SLOTS];
    float *result = device->allocate(device, tt_floats(BATCH));
    for (int slot = 0; slot < TT_TRANSFER_SLOTS; slot++) {
        place[slot] = device->allocate(device, tt_floats(BATCH));
        pinned[slot] = device->allocate_host(device, tt_floats(BATCH));
        record[slot] = device->allocate_host(device, tt_floats(BATCH));
        assert_true(place[slot] != NULL && pinned[slot] != NULL && record[slot] != NULL);
    }
    for (int batch = 0; batch < BATCHES + TT_TRANSFER_SLOTS; batch++) {
        int slot = batch % TT_TRANSFER_SLOTS, done = batch - TT_TRANSFER_SLOTS;
        if (done >= 0) {
            device->downloads_settled(device, slot);
            for (int i = 0; i < BATCH; i++) {
                assert_true(record[slot][i] == (float)(2 * (1000 * done + i)));
            }
        }
        if (batch >= BATCHES) {
            continue;
        }
        device->uploads_settled(device, slot);
        for (int i = 0; i < BATCH; i++) {
            pinned[slot][i] = (float)(1000 * batch + i);
        }
        device->uploads_begin(device, slot);
        device->upload(device, place[slot], pinned[slot], tt_floats(BATCH));
        device->uploads_end(device, slot);
        device->uploads_wait(device, slot);
        put_double(device, place[slot], two, result);
        device->uploads_used(device, slot);
        device->download(device, record[slot], result, tt_floats(BATCH));
        device->downloads_end(device, slot);
    }
    test_device_check(device);
    for (int slot = 0; slot < TT_TRANSFER_SLOTS; slot++) {
        device->release(device, place[slot]);
        device->release_host(device, pinned[slot]);
        device->release_host(device, record[slot]);
    }
    device->release(device, result);
    device->release(device, two);
    tt_device_destroy(&device);
}

/* What is recorded is not done until it is run, and then each time with what memory holds. */
static void test_capture(void **state)
{
    (void)state;
    tt_device *device = test_device(1);
    if (!device->captures) {
        tt_device_destroy(&device);
        skip();
    }
    const float factor = 2.0f;
    float *two = test_copy_in(device, &factor, sizeof factor);
    float *source = device->allocate(device, tt_floats(BATCH));
    float *result = device->allocate(device, tt_floats(BATCH));
    put_double(device, source, two, result); /* once before, as it must */
    fill(device, result, tt_floats(BATCH), 0xAB);
    test_device_check(device);
    assert_true(device->capture_begin(device));
    put_double(device, source, two, result);
    device->zero(device, source, tt_floats(1));
    tt_graph *graph = device->capture_end(device);
    test_device_check(device);
    assert_non_null(graph);
    assert_true(all_are(device, result, tt_floats(BATCH), 0xAB));
    for (int run = 1; run <= 3; run++) {
        float *values = test_host(tt_floats(BATCH));
        for (int i = 0; i < BATCH; i++) {
            values[i] = (float)(run + i);
        }
        device->copy_in(device, source, values, tt_floats(BATCH));
        device->graph_run(device, graph);
        float *found = test_copy_out(device, result, tt_floats(BATCH));
        for (int i = 0; i < BATCH; i++) {
            assert_true(found[i] == 2.0f * values[i]);
        }
        assert_true(all_are(device, source, tt_floats(1), 0));
        free(found);
        free(values);
    }
    device->graph_destroy(device, graph);
    device->release(device, source);
    device->release(device, result);
    device->release(device, two);
    tt_device_destroy(&device);
}

/* --- the arena ------------------------------------------------------------------------------- */

static void test_arena(void **state)
{
    (void)state;
    tt_device *device = test_device(1);
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
    assert_true(all_are(device, start, furthest, 0));
    fill(device, start, furthest, 1);
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
    tt_device *device = test_device(1);
    tt_error error = {0};
    tt_arena arena;
    device->allocate = refuse;
    tt_arena_init(&arena, device);
    tt_arena_reserve(&arena, 3 << 19);
    assert_int_equal(tt_arena_allocate(&arena, "activations", &error), TT_OUT_OF_MEMORY);
    char message[128];
    snprintf(message, sizeof message, "%s: no memory for activations: 1.5 MiB needed",
             device->name);
    assert_memory_equal(error.message, message, strlen(message));
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
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_capture),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_arena_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

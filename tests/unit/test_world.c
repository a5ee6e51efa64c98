/* A world of one needs no MPI; the list of hosts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dist/world.h"

#include <string.h>

static void test_world_of_one(void **state)
{
    (void)state;
    tt_world world;
    tt_error error;
    char hosts[128], expected[128];
    float values[2] = {1.5f, -2.0f};
    assert_int_equal(tt_world_join(&world, &error), TT_OK);
    assert_false(world.uses_mpi);
    assert_int_equal(world.rank, 0);
    assert_int_equal(world.size, 1);
    tt_world_sum(&world, values, 2);
    assert_true(values[0] == 1.5f && values[1] == -2.0f);
    assert_true(tt_world_any(&world, true));
    assert_false(tt_world_any(&world, false));
    assert_int_equal(tt_world_same(&world, "anything", 7, &error), TT_OK);
    tt_error_set(&error, TT_IO_FAILED, "as it was");
    assert_int_equal(tt_world_agree(&world, TT_IO_FAILED, &error), TT_IO_FAILED);
    assert_true(error.shared);
    assert_string_equal(error.message, "as it was");
    tt_error_set(&error, TT_IO_FAILED, "as it was");
    assert_int_equal(tt_world_share(&world, TT_IO_FAILED, &error), TT_IO_FAILED);
    assert_true(error.shared);
    assert_int_equal(tt_world_hosts(&world, hosts, sizeof hosts, &error), TT_OK);
    strcpy(expected, world.host);
    strcat(expected, ": 0");
    assert_string_equal(hosts, expected);
    tt_world_leave(&world);
}

static void test_list_of_hosts(void **state)
{
    (void)state;
    static const char one_after_the_other[5][TT_WORLD_HOST] = {"a", "a", "a", "b", "b"};
    static const char by_turns[5][TT_WORLD_HOST] = {"a", "b", "a", "b", "b"};
    char text[64];
    assert_int_equal(tt_world_list_hosts(one_after_the_other, 5, text, sizeof text), 2);
    assert_string_equal(text, "a: 0-2; b: 3-4");
    assert_int_equal(tt_world_list_hosts(by_turns, 5, text, sizeof text), 2);
    assert_string_equal(text, "a: 0, 2; b: 1, 3-4");
    assert_int_equal(tt_world_list_hosts(by_turns, 1, text, sizeof text), 1);
    assert_string_equal(text, "a: 0");
}

static void test_list_that_does_not_fit(void **state)
{
    (void)state;
    static char hosts[100][TT_WORLD_HOST];
    char text[32];
    for (int i = 0; i < 100; i++) {
        hosts[i][0] = (char)('a' + i % 26);
        hosts[i][1] = (char)('a' + i / 26);
    }
    assert_int_equal(
        tt_world_list_hosts((const char(*)[TT_WORLD_HOST])hosts, 100, text, sizeof text), 100);
    assert_int_equal(strlen(text), sizeof text - 1);
    assert_string_equal(text + sizeof text - 4, "...");
    assert_memory_equal(text, "aa: 0; ba: 1; ", 14);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world_of_one),
        cmocka_unit_test(test_list_of_hosts),
        cmocka_unit_test(test_list_that_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Random numbers: the published Philox vectors, and the streams built on it. */
#include "core/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* From the known-answer file of the Random123 library. */
static void test_philox_known_answers(void **state)
{
    (void)state;
    const struct {
        uint64_t key;
        uint32_t counter[4], expected[4];
    } vectors[] = {
        {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {0xffffffffffffffff,
         {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        const uint32_t *c = vectors[i].counter;
        tt_random_block block = tt_random_philox(vectors[i].key, c[0], c[1], c[2], c[3]);
        assert_memory_equal(block.word, vectors[i].expected, sizeof block.word);
    }
}

static void test_streams_repeat_and_differ(void **state)
{
    (void)state;
    tt_random first, again, other_seed, other_stream;
    tt_random_start(&first, 5, 6);
    tt_random_start(&again, 5, 6);
    tt_random_start(&other_seed, 6, 6);
    tt_random_start(&other_stream, 5, (uint64_t)6 << 32);
    int equal_seed = 0, equal_stream = 0;
    for (int i = 0; i < 1000; i++) {
        uint32_t word = tt_random_u32(&first);
        assert_int_equal(word, tt_random_u32(&again));
        equal_seed += word == tt_random_u32(&other_seed);
        equal_stream += word == tt_random_u32(&other_stream);
    }
    assert_int_equal(equal_seed, 0);
    assert_int_equal(equal_stream, 0);
}

/* A stream is a walk over counters, so it can go on from any place. */
static void test_stream_is_counter_based(void **state)
{
    (void)state;
    tt_random random;
    tt_random_start(&random, 77, 88);
    for (uint32_t i = 0; i < 20; i++) {
        tt_random_block block = tt_random_philox(77, i / 4, 0, 88, 0);
        assert_int_equal(tt_random_u32(&random), block.word[i % 4]);
    }
}

static void test_below_is_uniform(void **state)
{
    (void)state;
    tt_random random;
    tt_random_start(&random, 1, 2);
    enum { BOUND = 7, DRAWS = 70000 };
    int counts[BOUND] = {0};
    for (int i = 0; i < DRAWS; i++) {
        uint32_t value = tt_random_below(&random, BOUND);
        assert_true(value < BOUND);
        counts[value]++;
    }
    double squares = 0.0, expected = (double)DRAWS / BOUND;
    for (int i = 0; i < BOUND; i++) {
        squares += pow(counts[i] - expected, 2.0) / expected;
    }
    assert_true(squares < 22.5); /* chi-square with 6 degrees of freedom, one in a thousand */
    for (int i = 0; i < 100; i++) {
        assert_int_equal(tt_random_below(&random, 1), 0);
        assert_true(tt_random_below(&random, 0x80000001u) <= 0x80000000u);
    }
}

static void test_uniform_and_normal_moments(void **state)
{
    (void)state;
    tt_random random;
    tt_random_start(&random, 3, 4);
    enum { DRAWS = 100000 };
    double sum = 0.0, normal_sum = 0.0, normal_squares = 0.0;
    for (int i = 0; i < DRAWS; i++) {
        float uniform = tt_random_uniform(&random);
        assert_true(uniform >= 0.0f && uniform < 1.0f);
        sum += uniform;
        double normal = tt_random_normal(&random);
        assert_true(isfinite(normal));
        normal_sum += normal;
        normal_squares += normal * normal;
    }
    assert_true(fabs(sum / DRAWS - 0.5) < 5.0 / sqrt(12.0 * DRAWS));
    assert_true(fabs(normal_sum / DRAWS) < 5.0 / sqrt(DRAWS));
    assert_true(fabs(normal_squares / DRAWS - 1.0) < 5.0 * sqrt(2.0 / DRAWS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_streams_repeat_and_differ),
        cmocka_unit_test(test_stream_is_counter_based),
        cmocka_unit_test(test_below_is_uniform),
        cmocka_unit_test(test_uniform_and_normal_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

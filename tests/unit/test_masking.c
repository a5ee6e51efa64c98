#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data/masking.h"

#include <math.h>
#include <string.h>

enum { LENGTH = 512, ROOM = 80, VOCABULARY = 1000, PAD = 0, CLS = 2, SEP = 3, MASK = 4 };

static tt_masking_options bert_options(void)
{
    return (tt_masking_options){.probability = 0.15,
                                .max_predictions = ROOM,
                                .vocabulary_size = VOCABULARY,
                                .special = {PAD, 1, CLS, SEP, MASK}};
}

static tt_masking *create(const tt_masking_options *options)
{
    tt_masking *masking;
    tt_error error = {.message = ""};
    if (tt_masking_create(options, LENGTH, &masking, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
    return masking;
}

typedef struct {
    int32_t ids[LENGTH], before[LENGTH], positions[ROOM], labels[ROOM];
    uint8_t flags[LENGTH];
    int length, count;
} row;

/* [CLS] ordinary tokens [SEP] ordinary tokens [SEP], without flags. */
static void fill_row(row *row, int length)
{
    row->length = length;
    for (int i = 0; i < length; i++) {
        row->ids[i] = 5 + (i * 37) % (VOCABULARY - 5);
        row->flags[i] = 0;
    }
    row->ids[0] = CLS;
    row->ids[length / 2] = SEP;
    row->ids[length - 1] = SEP;
}

static void mask(tt_masking *masking, row *row, uint64_t stream, bool with_flags)
{
    tt_random random;
    tt_random_start(&random, 42, stream);
    memcpy(row->before, row->ids, sizeof row->ids);
    row->count = tt_masking_apply(masking, &random, row->length, row->ids,
                                  with_flags ? row->flags : NULL, row->positions, row->labels);
}

static int expected_count(int length)
{
    int count = (int)rint(0.15 * length);
    count = count > 1 ? count : 1;
    return count < ROOM ? count : ROOM;
}

static bool is_special(int32_t id)
{
    return id <= MASK;
}

static void check_row(const row *row)
{
    int next = 0;
    for (int i = 0; i < row->length; i++) {
        if (next < row->count && row->positions[next] == i) {
            assert_int_equal(row->labels[next], row->before[i]);
            assert_false(is_special(row->before[i]));
            next++;
        } else {
            assert_int_equal(row->ids[i], row->before[i]);
        }
    }
    /* Every position was met on the way, so they ascend. */
    assert_int_equal(next, row->count);
}

static void test_counts_and_positions(void **state)
{
    (void)state;
    tt_masking_options options = bert_options();
    tt_masking *masking = create(&options);
    static row row;
    for (int length = 3; length <= LENGTH; length++) {
        fill_row(&row, length);
        mask(masking, &row, (uint64_t)length, false);
        int candidates = length > 3 ? length - 3 : 0;
        int expected = expected_count(length);
        assert_int_equal(row.count, expected < candidates ? expected : candidates);
        check_row(&row);
    }
    tt_masking_free(&masking);
    assert_null(masking);
}

/* Halves round to even, as in the published code: 10 tokens give 1.5 and 2 of them, 30 give 4.5
 * and 4. */
static void test_halves_round_to_even(void **state)
{
    (void)state;
    tt_masking_options options = bert_options();
    tt_masking *masking = create(&options);
    static row row;
    fill_row(&row, 10);
    mask(masking, &row, 1, false);
    assert_int_equal(row.count, 2);
    fill_row(&row, 30);
    mask(masking, &row, 1, false);
    assert_int_equal(row.count, 4);
    tt_masking_free(&masking);
}

static void test_room_limits_the_count(void **state)
{
    (void)state;
    tt_masking_options options = bert_options();
    options.max_predictions = 20;
    tt_masking *masking = create(&options);
    static row row;
    fill_row(&row, LENGTH);
    mask(masking, &row, 1, false);
    assert_int_equal(row.count, 20);
    check_row(&row);
    tt_masking_free(&masking);
}

/* Shares of 80/10/10 over some 70,000 masks: five standard deviations are below 0.8 %. */
static void test_shares(void **state)
{
    (void)state;
    tt_masking_options options = bert_options();
    tt_masking *masking = create(&options);
    static row row;
    int64_t masked = 0, kept = 0, other = 0;
    static int64_t drawn[VOCABULARY];
    for (uint64_t stream = 0; stream < 1000; stream++) {
        fill_row(&row, LENGTH);
        mask(masking, &row, stream, false);
        check_row(&row);
        for (int i = 0; i < row.count; i++) {
            int32_t id = row.ids[row.positions[i]];
            if (id == MASK) {
                masked++;
            } else if (id == row.labels[i]) {
                kept++;
            } else {
                assert_false(is_special(id));
                assert_in_range(id, 0, VOCABULARY - 1);
                drawn[id]++;
                other++;
            }
        }
    }
    double total = (double)(masked + kept + other);
    assert_true(fabs((double)masked / total - 0.8) < 0.008);
    assert_true(fabs((double)kept / total - 0.1) < 0.008);
    assert_true(fabs((double)other / total - 0.1) < 0.008);
    int never = 0;
    for (int id = MASK + 1; id < VOCABULARY; id++) {
        never += drawn[id] == 0;
    }
    /* Some 7.6 draws an id: the expected number of ids never drawn is below one. */
    assert_true(never < 8);
    tt_masking_free(&masking);
}

/* Special ids need not come first, and the drawn ids must step over them wherever they lie. */
static void test_scattered_special_ids(void **state)
{
    (void)state;
    tt_masking_options options = bert_options();
    options.probability = 1;
    options.vocabulary_size = 8;
    options.special = (tt_special_ids){.pad = 1, .unknown = -1, .cls = 7, .sep = 5, .mask = 3};
    tt_masking *masking = create(&options);
    static row row;
    bool drawn[8] = {false};
    for (uint64_t stream = 0; stream < 200; stream++) {
        row.length = 8;
        for (int i = 0; i < 8; i++) {
            row.ids[i] = i;
        }
        mask(masking, &row, stream, false);
        static const int32_t ordinary[] = {0, 2, 4, 6};
        assert_int_equal(row.count, 4);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(row.positions[i], ordinary[i]);
            int32_t id = row.ids[ordinary[i]];
            assert_true(id == 3 || id % 2 == 0);
            drawn[id] |= id != ordinary[i];
        }
    }
    assert_true(drawn[0] && drawn[2] && drawn[4] && drawn[6]);
    tt_masking_free(&masking);
}

/* A row that is padded to the full length, as a caller might pass by mistake, and flagged tokens:
 * neither is ever drawn. */
static void test_pads_and_flags_are_never_masked(void **state)
{
    (void)state;
    tt_masking_options options = bert_options();
    tt_masking *masking = create(&options);
    static row row;
    for (uint64_t stream = 0; stream < 200; stream++) {
        fill_row(&row, LENGTH);
        for (int i = 100; i < LENGTH; i++) {
            row.ids[i] = PAD;
        }
        for (int i = 50; i < 90; i++) {
            row.flags[i] = TT_TOKEN_NEVER_MASKED;
        }
        mask(masking, &row, stream, true);
        for (int i = 0; i < row.count; i++) {
            assert_true(row.positions[i] < 50 ||
                        (row.positions[i] >= 90 && row.positions[i] < 100));
        }
    }
    tt_masking_free(&masking);
}

static void test_row_without_candidates(void **state)
{
    (void)state;
    tt_masking_options options = bert_options();
    tt_masking *masking = create(&options);
    static row row;
    fill_row(&row, 20);
    for (int i = 0; i < 20; i++) {
        row.ids[i] = i % 2 == 0 ? CLS : PAD;
    }
    mask(masking, &row, 1, false);
    assert_int_equal(row.count, 0);
    row.length = 0;
    mask(masking, &row, 1, false);
    assert_int_equal(row.count, 0);
    /* One candidate is enough for one mask. */
    row.length = 20;
    row.ids[13] = 77;
    mask(masking, &row, 1, false);
    assert_int_equal(row.count, 1);
    assert_int_equal(row.positions[0], 13);
    tt_masking_free(&masking);
}

static void test_whole_words(void **state)
{
    (void)state;
    tt_masking_options options = bert_options();
    options.whole_word = true;
    tt_masking *masking = create(&options);
    static row row;
    int64_t masked = 0, wanted = 0;
    for (uint64_t stream = 0; stream < 300; stream++) {
        fill_row(&row, 200);
        for (int i = 0; i < row.length; i++) {
            row.flags[i] = (i * i) % 7 > 3 ? TT_TOKEN_CONTINUES_WORD : 0;
        }
        mask(masking, &row, stream, true);
        check_row(&row);
        bool chosen[LENGTH] = {false};
        for (int i = 0; i < row.count; i++) {
            chosen[row.positions[i]] = true;
        }
        for (int i = 1; i < row.length; i++) {
            if ((row.flags[i] & TT_TOKEN_CONTINUES_WORD) != 0 && !is_special(row.before[i]) &&
                !is_special(row.before[i - 1])) {
                assert_int_equal(chosen[i], chosen[i - 1]);
            }
        }
        masked += row.count;
        wanted += expected_count(row.length);
        assert_true(row.count <= expected_count(row.length));
    }
    assert_true(masked > wanted * 9 / 10);
    tt_masking_free(&masking);
}

/* A word longer than the number wanted: something must be masked all the same. */
static void test_whole_word_that_does_not_fit(void **state)
{
    (void)state;
    tt_masking_options options = bert_options();
    options.whole_word = true;
    tt_masking *masking = create(&options);
    static row row;
    fill_row(&row, 8);
    row.ids[4] = 70;
    for (int i = 2; i < 7; i++) {
        row.flags[i] = TT_TOKEN_CONTINUES_WORD;
    }
    mask(masking, &row, 1, true);
    assert_int_equal(row.count, 1);
    check_row(&row);
    tt_masking_free(&masking);
}

static void test_same_numbers_same_masks(void **state)
{
    (void)state;
    tt_masking_options options = bert_options();
    tt_masking *masking = create(&options), *other = create(&options);
    static row first, second, third;
    fill_row(&first, 200);
    fill_row(&second, 100);
    fill_row(&third, 200);
    mask(masking, &first, 9, false);
    /* What was masked before leaves no trace. */
    mask(other, &second, 5, false);
    mask(other, &third, 9, false);
    assert_int_equal(first.count, third.count);
    assert_memory_equal(first.ids, third.ids, 200 * sizeof first.ids[0]);
    assert_memory_equal(first.positions, third.positions,
                        (size_t)first.count * sizeof first.positions[0]);
    fill_row(&third, 200);
    mask(other, &third, 10, false);
    assert_memory_not_equal(first.positions, third.positions,
                            (size_t)first.count * sizeof first.positions[0]);
    tt_masking_free(&masking);
    tt_masking_free(&other);
}

static void refuse(const tt_masking_options *options, const char *fragment)
{
    tt_masking *masking;
    tt_error error = {.message = ""};
    assert_int_equal(tt_masking_create(options, LENGTH, &masking, &error), TT_INVALID_INPUT);
    assert_null(masking);
    if (strstr(error.message, fragment) == NULL) {
        fail_msg("\"%s\" does not hold \"%s\"", error.message, fragment);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    tt_masking_options options = bert_options();
    options.probability = 0;
    refuse(&options, "probability 0");
    options.probability = 1.5;
    refuse(&options, "probability 1.5");
    options.probability = NAN;
    refuse(&options, "probability");
    options = bert_options();
    options.max_predictions = 0;
    refuse(&options, "room for 0 predictions");
    options = bert_options();
    options.special.mask = -1;
    refuse(&options, "no mask id");
    options.special.mask = 1;
    refuse(&options, "mask id 1 is the unknown id too");
    options.special.mask = VOCABULARY;
    refuse(&options, "mask id 1000");
    options = bert_options();
    options.special.sep = -2;
    refuse(&options, "sep id -2");
    options = bert_options();
    options.vocabulary_size = 5;
    refuse(&options, "all of the vocabulary's 5 ids are special");
    options = bert_options();
    tt_masking *masking;
    tt_error error;
    assert_int_equal(tt_masking_create(&options, 0, &masking, &error), TT_INVALID_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_and_positions),
        cmocka_unit_test(test_halves_round_to_even),
        cmocka_unit_test(test_room_limits_the_count),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_scattered_special_ids),
        cmocka_unit_test(test_pads_and_flags_are_never_masked),
        cmocka_unit_test(test_row_without_candidates),
        cmocka_unit_test(test_whole_words),
        cmocka_unit_test(test_whole_word_that_does_not_fit),
        cmocka_unit_test(test_same_numbers_same_masks),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

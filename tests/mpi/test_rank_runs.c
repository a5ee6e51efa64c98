/* Whole runs with different numbers of ranks: the same samples in the same order, and losses that
 * agree but for rounding; dropout is on, and shards and masked tokens are uneven. */
#include "support/training.h"

#include <math.h>

/* Losses agree closely at first; later, rounding has gone through many updates. */
static void expect_same_course(const char *output, const char *expected)
{
    assert_int_equal(metrics_lines(output), TRAINING_STEPS);
    for (int line = 1; line <= TRAINING_STEPS; line++) {
        double tolerance = line <= 10 ? 1e-6 : 1e-4;
        static const char *const losses[] = {"masked_lm_loss", "next_sentence_loss"};
        assert_true(metric(output, line, "samples") == metric(expected, line, "samples"));
        for (int i = 0; i < 2; i++) {
            double found = metric(output, line, losses[i]);
            double right = metric(expected, line, losses[i]);
            if (!(fabs(found - right) <= tolerance * right)) {
                fail_msg("%s, step %d: %s: expected %.9g, found %.9g", output, line, losses[i],
                         right, found);
            }
        }
    }
    double found = metric(output, TRAINING_STEPS, "validation_loss");
    double right = metric(expected, TRAINING_STEPS, "validation_loss");
    assert_true(fabs(found - right) <= 1e-4 * right);
    /* Masked tokens of the validation set are counted over all ranks: every row once. */
    assert_true(fabs(metric(output, TRAINING_STEPS, "validation_unigram_entropy") -
                     metric(expected, TRAINING_STEPS, "validation_unigram_entropy")) < 1e-9);
}

static int set_up(void **state)
{
    if (training_setup(state) != 0) {
        return -1;
    }
    TRAIN(.arguments = {"output=alone"});
    return 0;
}

static void test_one_rank_is_the_lone_program(void **state)
{
    (void)state;
    TRAIN(.ranks = 1, .arguments = {"output=one"});
    expect_same_metrics("one", "alone");
}

static void test_two_ranks(void **state)
{
    (void)state;
    TRAIN(.ranks = 2, .arguments = {"output=two"});
    expect_same_course("two", "alone");
}

static void test_four_ranks(void **state)
{
    (void)state;
    TRAIN(.ranks = 4, .arguments = {"output=four"});
    expect_same_course("four", "alone");
}

static void test_accumulation(void **state)
{
    (void)state;
    TRAIN(.arguments = {"output=accumulated", "phases.0.micro_batch=3", "phases.1.micro_batch=2"});
    expect_same_course("accumulated", "alone");
    TRAIN(.ranks = 2,
          .arguments = {"output=accumulated2", "phases.0.micro_batch=1", "phases.1.micro_batch=3"});
    expect_same_course("accumulated2", "alone");
}

static void test_repeated_run(void **state)
{
    (void)state;
    TRAIN(.ranks = 2, .arguments = {"output=again1"});
    TRAIN(.ranks = 2, .arguments = {"output=again2"});
    expect_same_metrics("again2", "again1");
}

/* Fewer sequences than a batch, and a number that neither ranks nor batch divide: epochs run on. */
static void test_few_sequences(void **state)
{
    (void)state;
    TRAIN(.arguments = {"output=few1", "phases.0.train=length32/validation_*.hdf5",
                        "phases.0.global_batch=40", "phases.0.steps=4", "phases.1.steps=2"});
    TRAIN(.ranks = 4,
          .arguments = {"output=few4", "phases.0.train=length32/validation_*.hdf5",
                        "phases.0.global_batch=40", "phases.0.steps=4", "phases.1.steps=2"});
    assert_int_equal(metrics_lines("few4"), 6);
    assert_true(metric("few1", 4, "epoch") > 0);
    for (int line = 1; line <= 6; line++) {
        assert_true(metric("few4", line, "epoch") == metric("few1", line, "epoch"));
        assert_true(fabs(metric("few4", line, "loss") - metric("few1", line, "loss")) < 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank_is_the_lone_program),
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_four_ranks),
        cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_repeated_run),
        cmocka_unit_test(test_few_sequences),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}

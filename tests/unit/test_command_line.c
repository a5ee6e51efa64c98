#include "support/captured.h"

#include "launch/command_line.h"
#include "launch/suggest.h"

#include <math.h>

static bool flag;
static int64_t number;
static double real;
static const char *text;
static int choice;

static const char *const colours[] = {"red", "green", "blue", NULL};

static const tt_option options[] = {
    {.name = "verbose", .kind = TT_OPTION_FLAG, .target = &flag, .help = "say more"},
    {.name = "count",
     .kind = TT_OPTION_INTEGER,
     .target = &number,
     .value = "N",
     .help = "how many",
     .minimum = 1,
     .maximum = 10},
    {.name = "rate", .kind = TT_OPTION_REAL, .target = &real, .value = "X", .help = "how fast"},
    {.name = "output",
     .kind = TT_OPTION_TEXT,
     .target = &text,
     .value = "PATH",
     .help = "where to"},
    {.name = "colour",
     .kind = TT_OPTION_CHOICE,
     .target = &choice,
     .choices = colours,
     .help = "what it looks like"},
};

static const tt_command command = {.name = "paint",
                                   .arguments = "WALL [WALL...]",
                                   .purpose = "Paints walls.",
                                   .example = "ttrain paint --count 3 wall",
                                   .options = options,
                                   .option_count = 5,
                                   .minimum_arguments = 1,
                                   .maximum_arguments = 2};

static char **arguments;
static int argument_count;
static char printed[4096];

static void reset_targets(void)
{
    flag = false;
    number = 2;
    real = 0.5;
    text = NULL;
    choice = 1;
}

/* Runs the parser with what it prints to stderr or stdout kept in `printed`; -1 means to go on. */
static int parse(FILE *stream, char **words, int count)
{
    reset_targets();
    const char *path = scratch_path("printed");
    int kept = redirect(stream, path), status = -1;
    bool go_on = tt_command_parse(&command, count, words, &arguments, &argument_count, &status);
    restore(stream, kept);
    char *text = scratch_read(path, NULL);
    snprintf(printed, sizeof printed, "%s", text);
    free(text);
    return go_on ? -1 : status;
}

#define WORDS(...)                                                                                 \
    (char *[])                                                                                     \
    {                                                                                              \
        (char *)"paint", __VA_ARGS__                                                               \
    }
#define PARSE(...)                                                                                 \
    parse(stderr, WORDS(__VA_ARGS__), (int)(sizeof(WORDS(__VA_ARGS__)) / sizeof(char *)))

static void expect_usage(int status, const char *fragment)
{
    assert_int_equal(status, TT_EXIT_USAGE);
    if (strstr(printed, fragment) == NULL ||
        strchr(printed, '\n') != printed + strlen(printed) - 1) {
        fail_msg("expected one line with \"%s\", found \"%s\"", fragment, printed);
    }
}

static void test_values(void **state)
{
    (void)state;
    assert_int_equal(PARSE("a", "--count", "7", "--rate=1e-3", "b", "--verbose", "--colour", "blue",
                           "--output=x=y"),
                     -1);
    assert_int_equal(argument_count, 2);
    assert_string_equal(arguments[0], "a");
    assert_string_equal(arguments[1], "b");
    assert_int_equal(number, 7);
    assert_true(real == 1e-3);
    assert_true(flag);
    assert_int_equal(choice, 2);
    assert_string_equal(text, "x=y");
    assert_string_equal(printed, "");
}

static void test_defaults_stay(void **state)
{
    (void)state;
    assert_int_equal(PARSE("a"), -1);
    assert_int_equal(number, 2);
    assert_null(text);
    assert_int_equal(choice, 1);
}

static void test_end_of_options(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--", "--count", "-"), -1);
    assert_int_equal(argument_count, 2);
    assert_string_equal(arguments[0], "--count");
    assert_string_equal(arguments[1], "-");
    assert_int_equal(number, 2);
}

static void test_wrong_usage(void **state)
{
    (void)state;
    expect_usage(PARSE("a", "--cuont", "3"), "unknown option --cuont, did you mean --count?");
    expect_usage(PARSE("a", "--zzzzzzzzzzz"), "unknown option --zzzzzzzzzzz");
    expect_usage(PARSE("a", "-x"), "unknown option -x");
    expect_usage(PARSE("a", "--count"), "--count: expected a value, found nothing");
    expect_usage(PARSE("a", "--count", "3x"),
                 "--count: expected an integer from 1 to 10, found '3x'");
    expect_usage(PARSE("a", "--count", "11"),
                 "--count: expected an integer from 1 to 10, found '11'");
    expect_usage(PARSE("a", "--count", ""), "--count: expected an integer");
    expect_usage(PARSE("a", "--rate", "nan"), "--rate: expected a number, found 'nan'");
    expect_usage(PARSE("a", "--rate", "1e999"), "--rate: expected a number");
    expect_usage(PARSE("a", "--verbose=1"), "--verbose takes no value, found '1'");
    expect_usage(PARSE("a", "--colour", "geren"),
                 "--colour: expected one of red|green|blue, found 'geren', did you mean green?");
    expect_usage(PARSE("--verbose"), "expected WALL [WALL...], found 0 arguments");
    expect_usage(PARSE("a", "b", "c"), "unexpected argument 'c'");
}

static void test_help(void **state)
{
    (void)state;
    assert_int_equal(parse(stdout, WORDS("--help"), 2), TT_EXIT_DONE);
    const char *const lines[] = {"Usage: ttrain paint [OPTIONS] WALL [WALL...]",
                                 "Paints walls.",
                                 "--count N",
                                 "how many (default 2)",
                                 "how fast (default 0.5)",
                                 "--colour red|green|blue",
                                 "(default green)",
                                 "--help",
                                 "ttrain paint --count 3 wall"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        if (strstr(printed, lines[i]) == NULL) {
            fail_msg("--help does not say \"%s\":\n%s", lines[i], printed);
        }
    }
}

static void test_numbers(void **state)
{
    (void)state;
    int64_t integer;
    assert_true(tt_command_integer("-9223372036854775808", &integer));
    assert_true(integer == INT64_MIN);
    assert_false(tt_command_integer("9223372036854775808", &integer));
    assert_false(tt_command_integer(" 1", &integer));
    assert_false(tt_command_integer("0x1", &integer));
    assert_false(tt_command_integer("-", &integer));
    double value;
    assert_true(tt_command_real("-1.5e+2", &value));
    assert_true(value == -150);
    assert_true(tt_command_real(".5", &value));
    assert_false(tt_command_real("inf", &value));
    assert_false(tt_command_real("0x1p3", &value));
    assert_false(tt_command_real("1e", &value));
    assert_false(tt_command_real("", &value));
}

static void test_suggestions(void **state)
{
    (void)state;
    const char *const words[] = {"prepare", "pretrain", "inspect", "bench"};
    assert_string_equal(tt_suggest_nearest("pretrian", words, 4), "pretrain");
    assert_string_equal(tt_suggest_nearest("inspct", words, 4), "inspect");
    assert_string_equal(tt_suggest_nearest("prepar", words, 4), "prepare");
    assert_null(tt_suggest_nearest("finetune", words, 4));
    assert_null(tt_suggest_nearest("", words, 4));
    char longest[300];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_null(tt_suggest_nearest(longest, words, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),         cmocka_unit_test(test_defaults_stay),
        cmocka_unit_test(test_end_of_options), cmocka_unit_test(test_wrong_usage),
        cmocka_unit_test(test_help),           cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_suggestions),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

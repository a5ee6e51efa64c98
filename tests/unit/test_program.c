/* The built program's own words: commands, help, version and exit statuses. */
#include "support/scratch.h"

#include <ctype.h>
#include <sys/wait.h>

static char printed[8192];

/* Runs `ttrain <arguments>` and keeps what it prints to both streams; returns the exit status. */
static int run(const char *arguments)
{
    char command[1024];
    snprintf(command, sizeof command, "'%s' %s 2>&1", TTRAIN_PROGRAM, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t length = fread(printed, 1, sizeof printed - 1, pipe);
    printed[length] = '\0';
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect(const char *arguments, int status, const char *fragment)
{
    int found = run(arguments);
    if (found != status || strstr(printed, fragment) == NULL) {
        fail_msg("ttrain %s: expected status %d and \"%s\", found status %d and \"%s\"", arguments,
                 status, fragment, found, printed);
    }
}

static void test_help(void **state)
{
    (void)state;
    expect("--help", 0, "Usage: ttrain COMMAND");
    static const char *const commands[] = {"prepare", "pretrain", "inspect", "bench"};
    for (int i = 0; i < 4; i++) {
        char text[64];
        snprintf(text, sizeof text, "\n  %s ", commands[i]);
        expect("--help", 0, text);
        snprintf(text, sizeof text, "%s --help", commands[i]);
        expect(text, 0, "Usage: ttrain ");
    }
    expect("", 2, "Usage: ttrain COMMAND");
}

/* The program's `words` say with --help nothing that is wider than a terminal. */
static void expect_narrow_help(const char *words)
{
    char arguments[128];
    snprintf(arguments, sizeof arguments, "%s --help", words);
    expect(arguments, 0, "\nExample:\n");
    for (const char *line = printed; *line != '\0';) {
        size_t width = strcspn(line, "\n");
        if (width > 80) {
            fail_msg("ttrain %s: a line of more than 80 columns: %.200s", arguments, line);
        }
        line += width + (line[width] == '\n');
    }
}

/* The recipe that an example names is there. */
static void expect_recipe_of_example(const char *words)
{
    const char *name = strstr(strstr(printed, "\nExample:\n"), "recipes/");
    if (name != NULL) {
        char path[512];
        snprintf(path, sizeof path, "%s/%.*s", TTRAIN_SOURCE_DIR, (int)strcspn(name, " \n"), name);
        if (access(path, R_OK) != 0) {
            fail_msg("ttrain %s --help: the example's recipe %s is not there", words, path);
        }
    }
}

static void test_help_of_every_command(void **state)
{
    (void)state;
    static const char *const commands[] = {"",
                                           "pretrain",
                                           "finetune",
                                           "evaluate",
                                           "inspect",
                                           "report",
                                           "table",
                                           "prepare",
                                           "prepare tokenizer",
                                           "prepare text",
                                           "bench",
                                           "prepare wikipedia",
                                           "bench gemm",
                                           "prepare synthetic",
                                           "bench ops",
                                           "bench step",
                                           "bench ratios",
                                           "prepare entailment"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        expect_narrow_help(commands[i]);
        expect_recipe_of_example(commands[i]);
    }
}

static void test_version(void **state)
{
    (void)state;
    expect("--version", 0, "ttrain ");
    assert_true(isdigit((unsigned char)printed[7]));
    assert_non_null(strchr(printed, '('));
}

static void test_unknown_command(void **state)
{
    (void)state;
    expect("pretrian", 2, "unknown command 'pretrian', did you mean pretrain?\n");
    expect("zzzzzzzz", 2, "unknown command 'zzzzzzzz'; see ttrain --help\n");
    expect("prepare txt", 2, "ttrain prepare: unknown command 'txt', did you mean text?\n");
    expect("bench", 2, "Usage: ttrain bench COMMAND");
    expect("inspect --jsno x", 2, "unknown option --jsno, did you mean --json?");
    expect("inspect /does/not/exist", 1, "/does/not/exist: No such file or directory");
}

/* A result that does not fit where it goes is no success. */
static void test_full_output(void **state)
{
    (void)state;
    expect("--help 2>&1 > /dev/full #", 1, "standard output: No space left on device");
    expect("inspect --keys 2>&1 > /dev/full #", 1, "standard output: No space left on device");
}

/* With its standard streams closed the program keeps files free of what it would have printed. */
static void test_closed_streams(void **state)
{
    (void)state;
    const char *path = scratch_path("corpus.txt");
    char arguments[1024];
    snprintf(arguments, sizeof arguments,
             "prepare synthetic --documents 2 --output '%s' <&- >&- 2>&- #", path);
    assert_int_equal(run(arguments), 0);
    char *bytes = scratch_read(path, NULL);
    assert_null(strstr(bytes, "documents, "));
    assert_true(strlen(bytes) > 100);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_help),        cmocka_unit_test(test_help_of_every_command),
        cmocka_unit_test(test_version),     cmocka_unit_test(test_unknown_command),
        cmocka_unit_test(test_full_output), cmocka_unit_test(test_closed_streams),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

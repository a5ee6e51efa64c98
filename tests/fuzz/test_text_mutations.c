/* Recipes, safetensors headers and metrics that went wrong by chance or by intent: each is refused
 * in one line, or keeps every promise (support/hostile_input.h, support/hostile_metrics.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/hostile_metrics.h"

#include "core/random.h"

enum { ROUNDS = 4000, LONGEST = 4096 };

static const char recipe_seed[] =
    "name: a run\n"
    "seed: 12\n"
    "model: {preset: small, dropout: 0.1, activation: gelu_tanh}\n"
    "tensor_train:\n"
    "  form: tensor_train\n"
    "  compression: 4.5\n"
    "  attention:\n"
    "    input_modes: [4, 4, 4]\n"
    "    output_modes: [4, 16]\n"
    "    ranks: [3, 9, 9, 3]\n"
    "  pooler: {form: dense}\n"
    "data:\n"
    "  train: ['a/*.hdf5', \"b \\\"c\\\".h5\"]\n"
    "  validation: one.h5\n"
    "phases:\n"
    "  - {sequence_length: 64, steps: 100, global_batch: 32, learning_rate: 1e-4}\n"
    "  - sequence_length: 128\n"
    "    steps: 10\n"
    "    global_batch: 16\n"
    "    learning_rate: 5e-5\n"
    "    decay: polynomial\n"
    "    train: other.h5\n";

static const char header_seed[] =
    "{\"__metadata__\": {\"format\": \"pt\"},"
    " \"b\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [16, 40]},"
    " \"a\": {\"dtype\": \"I64\", \"shape\": [2], \"data_offsets\": [0, 16]},"
    " \"c\": {\"dtype\": \"U8\", \"shape\": [], \"data_offsets\": [40, 41]}}";

static const char metrics_seed[] =
    "{\"step\": 0, \"compaction\": {\"parameters\": 90, \"ranks\": {\"encoder.layer.0.a\": "
    "[1, 4, 1], \"b\": [1, 3, 3, 1]}}}\n"
    "{\"step\": 1, \"phase\": \"one\", \"loss\": 7.5, \"learning_rate\": 0.001, \"size\": 80, "
    "\"stage\": \"early\", \"branch\": null, \"timing\": {\"step_ms\": 20, \"elapsed_s\": 1}}\n"
    "{\"step\": 2, \"phase\": \"one\", \"loss\": 6.5, \"validation_loss\": 6.75, \"timing\": "
    "{\"step_ms\": 25, \"elapsed_s\": 2}}\n"
    "{\"step\": 2, \"compaction\": {\"parameters\": 70, \"ranks\": {\"encoder.layer.0.a\": "
    "[1, 2, 1], \"b\": [1, 0, 3, 1]}}}\n"
    "{\"step\": 3, \"phase\": \"two\", \"loss\": null, \"accuracy\": 0.5, \"stage\": \"late\", "
    "\"branch\": \"size\", \"timing\": {\"step_ms\": 22, \"elapsed_s\": 3}}\n";

/* What tends to hurt parsers, to be put anywhere. */
static const char *const tokens[] = {"{",
                                     "}",
                                     "[",
                                     "]",
                                     ":",
                                     ",",
                                     "\"",
                                     "'",
                                     "\n",
                                     "  ",
                                     "- ",
                                     "#",
                                     "&a ",
                                     "*a",
                                     "!!int ",
                                     "---\n",
                                     "...",
                                     "|",
                                     ">",
                                     "<<: ",
                                     "\\u0000",
                                     "\\ud800",
                                     "\xff",
                                     "\xc2\x85",
                                     "\xef\xbb\xbf",
                                     "-1",
                                     "1e999",
                                     "nan",
                                     "0x7f",
                                     "9223372036854775808",
                                     "-9223372036854775809",
                                     "18446744073709551616",
                                     "null",
                                     "~",
                                     "true",
                                     "model",
                                     "phases",
                                     "train",
                                     "form: dense",
                                     "%YAML 1.2",
                                     "\t",
                                     "\r",
                                     "\x01",
                                     "? "};

typedef struct {
    char bytes[LONGEST];
    size_t size;
} text;

static void replace(text *mutated, size_t at, size_t remove, const char *with, size_t length)
{
    remove = remove > mutated->size - at ? mutated->size - at : remove;
    if (mutated->size - remove + length > LONGEST) {
        return;
    }
    memmove(mutated->bytes + at + length, mutated->bytes + at + remove,
            mutated->size - at - remove);
    memcpy(mutated->bytes + at, with, length);
    mutated->size += length - remove;
}

static void mutate(text *mutated, tt_random *random)
{
    size_t at = tt_random_below(random, (uint32_t)mutated->size + 1);
    size_t span = tt_random_below(random, 12);
    char copy[12];
    const char *token = tokens[tt_random_below(random, sizeof tokens / sizeof tokens[0])];
    switch (tt_random_below(random, 5)) {
    case 0: /* one bit */
        if (at < mutated->size) {
            mutated->bytes[at] = (char)(mutated->bytes[at] ^ (1 << tt_random_below(random, 8)));
        }
        break;
    case 1: /* something gone */
        replace(mutated, at, span, "", 0);
        break;
    case 2: /* something put in, or in place of something */
        replace(mutated, at, tt_random_below(random, 3) * span, token, strlen(token));
        break;
    case 3: /* something twice */
        span = span > mutated->size - at ? mutated->size - at : span;
        memcpy(copy, mutated->bytes + at, span);
        replace(mutated, tt_random_below(random, (uint32_t)mutated->size + 1), 0, copy, span);
        break;
    default: /* cut short */
        mutated->size = tt_random_below(random, 8) == 0 ? at : mutated->size;
        break;
    }
}

static text mutation_of(const char *seed, uint64_t number)
{
    text mutated = {.size = strlen(seed)};
    memcpy(mutated.bytes, seed, mutated.size);
    tt_random random;
    tt_random_start(&random, 5, number);
    for (uint32_t i = tt_random_below(&random, 4) + 1; i > 0; i--) {
        mutate(&mutated, &random);
    }
    return mutated;
}

static void test_recipes(void **state)
{
    (void)state;
    int read = 0;
    assert_true(hostile_recipe(recipe_seed, strlen(recipe_seed)));
    for (uint64_t i = 0; i < ROUNDS; i++) {
        const text mutated = mutation_of(recipe_seed, i);
        read += hostile_recipe(mutated.bytes, mutated.size);
    }
    /* Enough of both kinds for the test to mean something. */
    assert_in_range(read, ROUNDS / 50, ROUNDS - ROUNDS / 10);
}

static void test_headers(void **state)
{
    (void)state;
    int read = 0;
    assert_true(hostile_header(header_seed, strlen(header_seed), 41));
    for (uint64_t i = 0; i < (uint64_t)4 * ROUNDS; i++) {
        const text mutated = mutation_of(header_seed, i);
        read += hostile_header(mutated.bytes, mutated.size, 41);
    }
    assert_in_range(read, ROUNDS / 50, 4 * ROUNDS - ROUNDS / 10);
}

static void test_metrics(void **state)
{
    (void)state;
    int read = 0;
    assert_true(hostile_metrics(metrics_seed, strlen(metrics_seed)));
    for (uint64_t i = 0; i < ROUNDS / 4; i++) {
        const text mutated = mutation_of(metrics_seed, i);
        read += hostile_metrics(mutated.bytes, mutated.size);
    }
    assert_in_range(read, ROUNDS / 8, ROUNDS / 4 - ROUNDS / 200);
}

/* Depth and size that a recursive reader could choke on. */
static void test_deep_and_long(void **state)
{
    (void)state;
    enum { SIZE = 1 << 20 };
    char *bytes = malloc(SIZE);
    static const char *const repeated[] = {"[", "{", "{\"a\":", "[[]", "- ", "a: {", "&a [*a,"};
    for (size_t i = 0; i < sizeof repeated / sizeof repeated[0]; i++) {
        size_t length = strlen(repeated[i]), used = 0;
        for (; used + length <= SIZE / 8; used += length) {
            memcpy(bytes + used, repeated[i], length);
        }
        assert_false(hostile_recipe(bytes, used));
        assert_false(hostile_header(bytes, used, 0));
        assert_false(hostile_metrics(bytes, used));
    }
    memset(bytes, 'a', SIZE);
    assert_false(hostile_recipe(bytes, SIZE));
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recipes),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_deep_and_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

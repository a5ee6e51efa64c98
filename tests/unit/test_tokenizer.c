/* Tokenizers: training, special pieces, offsets, and files that are none. */
#include "support/scratch.h"

#include "data/sentencepiece_shim.h"
#include "data/tokenizer.h"

#include "core/random.h"

#include <xxhash.h>

/* A few thousand sentences of some words, with what must not become a piece among them. */
typedef struct {
    int64_t left;
    tt_random random;
    char line[512];
} line_source;

static tt_status next_line(void *user, const char **line, tt_error *error)
{
    static const char *const words[] = {
        "harbour",      "Lantern", "the",    "of",    "seven",  "boats",   "[MASK]", "[CLS]",
        "[SEP]",        "[PAD]",   "[UNK]",  "and",   "walked", "walking", "walks",  "caf\xC3\xA9",
        "\xE6\x9D\x9C", "Hello",   "hellos", "under", "over",   "2024",    "it's",   "end."};
    line_source *source = user;
    (void)error;
    *line = NULL;
    if (source->left-- > 0) {
        source->line[0] = '\0';
        for (int i = 0; i < 12; i++) {
            strcat(source->line,
                   words[tt_random_below(&source->random, sizeof words / sizeof words[0])]);
            strcat(source->line, " ");
        }
        *line = source->line;
    }
    return TT_OK;
}

static void start_lines(line_source *source, int64_t count)
{
    source->left = count;
    tt_random_start(&source->random, 3, 0);
}

static tt_tokenizer_options small_options(tt_tokenizer_model model)
{
    tt_tokenizer_options options = tt_tokenizer_default_options();
    options.model = model;
    options.vocabulary_size = 70;
    options.character_coverage = 1;
    return options;
}

static tt_tokenizer *trained(const tt_tokenizer_options *options, const char *path)
{
    line_source source;
    tt_error error;
    tt_tokenizer *tokenizer = NULL;
    start_lines(&source, 2000);
    expect_success(tt_tokenizer_train(options, next_line, &source, path, &error), &error);
    expect_success(tt_tokenizer_open(path, &tokenizer, &error), &error);
    return tokenizer;
}

static const tt_tokenizer_model both[] = {TT_TOKENIZER_UNIGRAM, TT_TOKENIZER_BPE};

static void test_special_pieces(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        const tt_tokenizer_options options = small_options(both[m]);
        tt_tokenizer *tokenizer = trained(&options, scratch_path("special.model"));
        static const char *const names[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
        assert_int_equal(tt_tokenizer_vocabulary_size(tokenizer), 70);
        for (int id = 0; id < 5; id++) {
            assert_string_equal(tt_tokenizer_piece(tokenizer, id), names[id]);
            assert_true(tt_tokenizer_token_bits(tokenizer)[id] & TT_TOKEN_NEVER_MASKED);
        }
        tt_special_ids special = tt_tokenizer_special(tokenizer);
        assert_int_equal(special.pad, 0);
        assert_int_equal(special.unknown, 1);
        assert_int_equal(special.cls, 2);
        assert_int_equal(special.sep, 3);
        assert_int_equal(special.mask, 4);
        for (int id = 5; id < 70; id++) {
            bool word = strncmp(tt_tokenizer_piece(tokenizer, id), "\xE2\x96\x81", 3) == 0;
            assert_int_equal(tt_tokenizer_token_bits(tokenizer)[id],
                             word ? 0 : TT_TOKEN_CONTINUES_WORD);
        }
        tt_tokenizer_close(&tokenizer);
        assert_null(tokenizer);
    }
}

static void test_text_never_gives_special_pieces(void **state)
{
    (void)state;
    static const char text[] = "[MASK] the [MASK][CLS] a[SEP]b [PAD] [UNK]";
    for (int m = 0; m < 2; m++) {
        const tt_tokenizer_options options = small_options(both[m]);
        tt_tokenizer *tokenizer = trained(&options, scratch_path("text.model"));
        tt_encoding encoding = {0};
        tt_error error;
        expect_success(tt_tokenizer_encode(tokenizer, text, strlen(text), &encoding, &error),
                       &error);
        assert_true(encoding.count > 0);
        for (int64_t i = 0; i < encoding.count; i++) {
            assert_true(encoding.ids[i] == 1 || encoding.ids[i] > 4);
        }
        tt_encoding_free(&encoding);
        tt_tokenizer_close(&tokenizer);
    }
}

/* Pieces lie side by side in the text, and each stands for its own characters. */
static void test_offsets(void **state)
{
    (void)state;
    static const char text[] = "Hello  walking caf\xC3\xA9 \xE6\x9D\x9C, \xFF\xC3 seven";
    for (int m = 0; m < 2; m++) {
        const tt_tokenizer_options options = small_options(both[m]);
        tt_tokenizer *tokenizer = trained(&options, scratch_path("offsets.model"));
        tt_encoding encoding = {0};
        tt_error error;
        expect_success(tt_tokenizer_encode(tokenizer, text, strlen(text), &encoding, &error),
                       &error);
        assert_int_equal(encoding.begin[0], 0);
        assert_int_equal(encoding.end[encoding.count - 1], strlen(text));
        for (int64_t i = 0; i < encoding.count; i++) {
            uint32_t begin = encoding.begin[i], end = encoding.end[i];
            assert_true(begin <= end);
            assert_true(i == 0 || begin == encoding.end[i - 1]);
            const char *piece = tt_tokenizer_piece(tokenizer, encoding.ids[i]);
            size_t mark = strncmp(piece, "\xE2\x96\x81", 3) == 0 ? 3 : 0;
            size_t length = strlen(piece) - mark;
            if (encoding.ids[i] != 1) {
                assert_true(end - begin >= length);
                assert_memory_equal(text + end - length, piece + mark, length);
            }
        }
        tt_encoding_free(&encoding);
        tt_tokenizer_close(&tokenizer);
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    static const char text[] = "the harbour of seven boats, walking under it's end.";
    for (int m = 0; m < 2; m++) {
        tt_tokenizer_options options = small_options(both[m]);
        tt_tokenizer *tokenizer = trained(&options, scratch_path("round.model"));
        tt_encoding encoding = {0};
        tt_error error;
        char *decoded = NULL;
        expect_success(tt_tokenizer_encode(tokenizer, "the boats", 9, &encoding, &error), &error);
        expect_success(
            tt_tokenizer_decode(tokenizer, encoding.ids, encoding.count, &decoded, &error), &error);
        assert_string_equal(decoded, "the boats");
        free(decoded);
        const int32_t with_special[] = {2, encoding.ids[0], 3, 0, 0};
        expect_success(tt_tokenizer_decode(tokenizer, with_special, 5, &decoded, &error), &error);
        assert_null(strstr(decoded, "["));
        free(decoded);
        const int32_t too_large[] = {5, 70};
        expect_failure(tt_tokenizer_decode(tokenizer, too_large, 2, &decoded, &error), &error,
                       "expected ids below 70, found 70 at position 1");
        expect_success(tt_tokenizer_encode(tokenizer, text, 0, &encoding, &error), &error);
        assert_int_equal(encoding.count, 0);
        tt_encoding_free(&encoding);
        tt_tokenizer_close(&tokenizer);
    }
}

static void test_lower_case(void **state)
{
    (void)state;
    tt_tokenizer_options options = small_options(TT_TOKENIZER_BPE);
    options.lower_case = true;
    options.vocabulary_size = 60;
    tt_tokenizer *tokenizer = trained(&options, scratch_path("lower.model"));
    tt_encoding upper = {0}, lower = {0};
    tt_error error;
    expect_success(tt_tokenizer_encode(tokenizer, "HELLO Lantern", 13, &upper, &error), &error);
    expect_success(tt_tokenizer_encode(tokenizer, "hello lantern", 13, &lower, &error), &error);
    assert_int_equal(upper.count, lower.count);
    assert_memory_equal(upper.ids, lower.ids, (size_t)upper.count * sizeof *upper.ids);
    tt_encoding_free(&upper);
    tt_encoding_free(&lower);
    tt_tokenizer_close(&tokenizer);
}

static void test_same_input_same_file(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        tt_tokenizer_options options = small_options(both[m]);
        options.max_lines = 1500; /* so that lines are drawn */
        options.vocabulary_size = 60;
        tt_tokenizer *first = trained(&options, scratch_path("first.model"));
        tt_tokenizer *second = trained(&options, scratch_path("second.model"));
        size_t length = 0;
        char *bytes = scratch_read(scratch_path("first.model"), &length);
        assert_true(tt_tokenizer_hash(first) == XXH64(bytes, length, 0));
        assert_true(tt_tokenizer_hash(first) == tt_tokenizer_hash(second));
        assert_true(tt_tokenizer_vocabulary_hash(first) == tt_tokenizer_vocabulary_hash(second));
        assert_true(tt_tokenizer_vocabulary_hash(first) != 0);
        free(bytes);
        options.seed = 2;
        tt_tokenizer *other = trained(&options, scratch_path("second.model"));
        assert_true(tt_tokenizer_hash(first) != tt_tokenizer_hash(other));
        tt_tokenizer_close(&first);
        tt_tokenizer_close(&second);
        tt_tokenizer_close(&other);
    }
}

static void expect_training_failure(const tt_tokenizer_options *options, int64_t lines,
                                    const char *fragment)
{
    line_source source;
    tt_error error;
    const char *path = scratch_path("failed.model");
    start_lines(&source, lines);
    expect_failure(tt_tokenizer_train(options, next_line, &source, path, &error), &error, fragment);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void test_impossible_training(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        tt_tokenizer_options options = small_options(both[m]);
        expect_training_failure(&options, 0, "the input has no text");
        options.vocabulary_size = 100000;
        expect_training_failure(&options, 100, "Please set it to a value <= ");
        options.vocabulary_size = 20;
        expect_training_failure(&options, 100, "smaller than required_chars");
        options.vocabulary_size = 7;
        expect_training_failure(&options, 100, "expected 8 to 16777216, found 7");
    }
    tt_tokenizer_options options = small_options(TT_TOKENIZER_BPE);
    options.character_coverage = 0.5;
    expect_training_failure(&options, 100, "expected 0.98 to 1, found 0.5");
    options = small_options(TT_TOKENIZER_BPE);
    options.threads = 0;
    expect_training_failure(&options, 100, "threads");
    options = small_options(TT_TOKENIZER_BPE);
    options.max_lines = 0;
    expect_training_failure(&options, 100, "lines to train on");
}

static tt_status failing_line(void *user, const char **line, tt_error *error)
{
    int *calls = user;
    *line = "some words to learn from";
    return ++*calls < 5 ? TT_OK : tt_error_set(error, TT_IO_FAILED, "dump.xml: line 7: broken");
}

static void test_failing_input(void **state)
{
    (void)state;
    tt_error error;
    int calls = 0;
    const tt_tokenizer_options options = small_options(TT_TOKENIZER_UNIGRAM);
    expect_failure(
        tt_tokenizer_train(&options, failing_line, &calls, scratch_path("f.model"), &error), &error,
        "dump.xml: line 7: broken");
    line_source source;
    start_lines(&source, 2000);
    scratch_write(scratch_path("file"), "", 0);
    expect_failure(tt_tokenizer_train(&options, next_line, &source,
                                      scratch_path("file/folder/x.model"), &error),
                   &error, "Not a directory");
}

/* One line of a megabyte, without a space in half of it. */
static tt_status huge_line(void *user, const char **line, tt_error *error)
{
    static char text[1 << 20];
    int *calls = user;
    (void)error;
    for (size_t i = 0; i + 1 < sizeof text; i++) {
        text[i] = (char)(i % 3 == 0 ? '\xC3' : i % 3 == 1 ? '\xA9' : 'a' + (int)(i * i / 7 % 26));
        if (i > sizeof text / 2 && i % 60 == 2) {
            text[i] = ' ';
        }
    }
    *line = ++*calls == 1 ? text : NULL;
    return TT_OK;
}

static void test_long_line(void **state)
{
    (void)state;
    tt_error error;
    int calls = 0;
    tt_tokenizer_options options = small_options(TT_TOKENIZER_BPE);
    options.vocabulary_size = 100;
    expect_success(
        tt_tokenizer_train(&options, huge_line, &calls, scratch_path("long.model"), &error),
        &error);
}

static void expect_not_opened(const void *bytes, size_t length, const char *fragment)
{
    tt_tokenizer *tokenizer = NULL;
    tt_error error;
    const char *path = scratch_path("bad.model");
    scratch_write(path, bytes, length);
    expect_failure(tt_tokenizer_open(path, &tokenizer, &error), &error, fragment);
    assert_non_null(strstr(error.message, path));
    assert_null(tokenizer);
}

static void test_files_that_are_no_model(void **state)
{
    (void)state;
    tt_error error;
    tt_tokenizer *tokenizer = NULL;
    expect_failure(tt_tokenizer_open(scratch_path("missing"), &tokenizer, &error), &error,
                   "No such file");
    expect_failure(tt_tokenizer_open(scratch_folder, &tokenizer, &error), &error,
                   "expected a file");
    expect_not_opened(
        "", 0, "expected a SentencePiece model or a WordPiece vocabulary, found a file of 0 bytes");
    expect_not_opened("some text\n", 10, "expected a SentencePiece model");
    char garbage[4096];
    tt_random random;
    tt_random_start(&random, 5, 0);
    for (size_t i = 0; i < sizeof garbage; i++) {
        garbage[i] = (char)tt_random_u32(&random);
    }
    expect_not_opened(garbage, sizeof garbage, "expected a SentencePiece model");
}

static void test_truncated_model(void **state)
{
    (void)state;
    const tt_tokenizer_options options = small_options(TT_TOKENIZER_UNIGRAM);
    tt_tokenizer *tokenizer = trained(&options, scratch_path("whole.model"));
    tt_tokenizer_close(&tokenizer);
    size_t length = 0;
    char *bytes = scratch_read(scratch_path("whole.model"), &length);
    for (size_t cut = 0; cut < length; cut += length / 40) {
        tt_error error;
        const char *path = scratch_path("cut.model");
        scratch_write(path, bytes, cut);
        assert_int_not_equal(tt_tokenizer_open(path, &tokenizer, &error), TT_OK);
        assert_null(strchr(error.message, '\n'));
    }
    free(bytes);
}

static const char *foreign_next(void *user, size_t *length)
{
    const char *line = NULL;
    tt_error error;
    next_line(user, &line, &error);
    *length = line != NULL ? strlen(line) : 0;
    return line;
}

/* Trains by the library itself, so that the special pieces can be wrong. */
static void train_foreign(const char *path, const char *mask_kind, const char *mask,
                          const char *unknown)
{
    line_source source;
    char message[512];
    size_t size = 0;
    start_lines(&source, 500);
    const tt_sentencepiece_setting settings[] = {
        {"model_type", "bpe"},  {"vocab_size", "80"},   {"pad_id", "0"},
        {"unk_id", "1"},        {"bos_id", "2"},        {"eos_id", "3"},
        {"pad_piece", "[PAD]"}, {"unk_piece", unknown}, {"bos_piece", "[CLS]"},
        {"eos_piece", "[SEP]"}, {mask_kind, mask}};
    void *bytes = tt_sentencepiece_train(settings, sizeof settings / sizeof settings[0],
                                         foreign_next, &source, &size, message, sizeof message);
    if (bytes == NULL) {
        fail_msg("%s", message);
    }
    scratch_write(path, bytes, size);
    free(bytes);
}

static void expect_foreign(const char *mask_kind, const char *mask, const char *unknown,
                           const char *fragment)
{
    tt_tokenizer *tokenizer = NULL;
    tt_error error;
    const char *path = scratch_path("foreign.model");
    train_foreign(path, mask_kind, mask, unknown);
    expect_failure(tt_tokenizer_open(path, &tokenizer, &error), &error, fragment);
}

static void test_models_without_special_pieces(void **state)
{
    (void)state;
    expect_foreign("control_symbols", "<mask>", "[UNK]", "found none named [MASK]");
    expect_foreign("control_symbols", "[MASK]", "<unk>", "found none named [UNK]");
    expect_foreign("user_defined_symbols", "[MASK]", "[UNK]",
                   "expected [MASK] to be a control piece, found a piece of ordinary text");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_special_pieces),
        cmocka_unit_test(test_text_never_gives_special_pieces),
        cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_lower_case),
        cmocka_unit_test(test_same_input_same_file),
        cmocka_unit_test(test_impossible_training),
        cmocka_unit_test(test_failing_input),
        cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_files_that_are_no_model),
        cmocka_unit_test(test_truncated_model),
        cmocka_unit_test(test_models_without_special_pieces),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

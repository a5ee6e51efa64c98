/* WordPiece vocabularies: words, pieces, the bytes that they stand for, and files that are none. */
#include "data/tokenizer.h"
#include "support/scratch.h"

static const char *const small[] = {
    "[PAD]", "[UNK]", "[CLS]",        "[SEP]", "[MASK]", "un", "##aff", "##able",
    "##a",   "aff",   "able",         "a",     ".",      "#",  "cafe",  "[",
    "]",     "mask",  "\xE4\xB8\xAD", "$",     "ss"};
enum { SMALL = sizeof small / sizeof *small, UNK = 1 };

static int id_of(const char *piece)
{
    for (int i = 0; i < SMALL; i++) {
        if (strcmp(small[i], piece) == 0) {
            return i;
        }
    }
    fail_msg("no piece %s", piece);
    return -1;
}

static tt_tokenizer *open_text(const char *name, const char *text, size_t length)
{
    tt_tokenizer *tokenizer;
    tt_error error;
    scratch_write(scratch_path(name), text, length);
    expect_success(tt_tokenizer_open(scratch_path(name), &tokenizer, &error), &error);
    return tokenizer;
}

static tt_tokenizer *open_small(const char *line_end)
{
    char text[1024] = "";
    for (int i = 0; i < SMALL; i++) {
        strcat(text, small[i]);
        strcat(text, line_end);
    }
    return open_text("vocab.txt", text, strlen(text));
}

/* `pieces`: as many texts, ended by NULL. */
static void expect_pieces(const tt_tokenizer *tokenizer, const char *text,
                          const char *const *pieces)
{
    tt_encoding encoding = {0};
    tt_error error;
    expect_success(tt_tokenizer_encode(tokenizer, text, strlen(text), &encoding, &error), &error);
    int count = 0;
    while (pieces[count]) {
        assert_true(count < encoding.count);
        assert_int_equal(encoding.ids[count], id_of(pieces[count]));
        count++;
    }
    assert_int_equal(encoding.count, count);
    tt_encoding_free(&encoding);
}

#define EXPECT(TOKENIZER, TEXT, ...)                                                               \
    expect_pieces(TOKENIZER, TEXT, (const char *const[]){__VA_ARGS__, NULL})

static void test_words_and_pieces(void **state)
{
    (void)state;
    tt_tokenizer *tokenizer = open_small("\n");
    EXPECT(tokenizer, "unaffable", "un", "##aff", "##able");
    EXPECT(tokenizer, "  UNAFF \t able\n", "un", "##aff", "able");
    EXPECT(tokenizer, "aaa", "a", "##a", "##a");
    EXPECT(tokenizer, "unx a", "[UNK]", "a");
    EXPECT(tokenizer, "able.a$a", "able", ".", "a", "$", "a");
    EXPECT(tokenizer, "##aff", "#", "#", "aff");
    EXPECT(tokenizer, "", NULL);
    EXPECT(tokenizer, " \n", NULL);
    tt_tokenizer_close(&tokenizer);
}

/* Text never yields a special piece. */
static void test_special_pieces_are_not_text(void **state)
{
    (void)state;
    tt_tokenizer *tokenizer = open_small("\n");
    EXPECT(tokenizer, "[MASK]", "[", "mask", "]");
    tt_special_ids special = tt_tokenizer_special(tokenizer);
    assert_int_equal(special.pad, 0);
    assert_int_equal(special.unknown, 1);
    assert_int_equal(special.cls, 2);
    assert_int_equal(special.sep, 3);
    assert_int_equal(special.mask, 4);
    const uint8_t *bits = tt_tokenizer_token_bits(tokenizer);
    assert_int_equal(bits[special.unknown], TT_TOKEN_NEVER_MASKED);
    assert_int_equal(bits[id_of("##able")], TT_TOKEN_CONTINUES_WORD);
    assert_int_equal(bits[id_of("able")], 0);
    tt_tokenizer_close(&tokenizer);
}

static void test_unicode(void **state)
{
    (void)state;
    tt_tokenizer *tokenizer = open_small("\n");
    EXPECT(tokenizer, "Caf\xC3\xA9", "cafe");  /* one code point */
    EXPECT(tokenizer, "Cafe\xCC\x81", "cafe"); /* letter and accent */
    EXPECT(tokenizer,
           "a\xE4\xB8\xAD\xE4\xB8\xAD"
           "a",
           "a", "\xE4\xB8\xAD", "\xE4\xB8\xAD", "a");
    EXPECT(tokenizer,
           "a\xC2\xA0"
           "able",
           "a", "able");                               /* no-break space */
    EXPECT(tokenizer, "ab\xC2\xADle", "able");         /* soft hyphen */
    EXPECT(tokenizer, "ab\x01le\xEF\xBF\xBD", "able"); /* control, replacement */
    EXPECT(tokenizer,
           "a\xE2\x80\x94"
           "a",
           "a", "[UNK]", "a");                        /* a dash that is no piece */
    EXPECT(tokenizer, "a\xFF\xC3 able", "a", "able"); /* no UTF-8 */
    tt_tokenizer_close(&tokenizer);
}

static void test_longest_word(void **state)
{
    (void)state;
    tt_tokenizer *tokenizer = open_small("\n");
    char word[102];
    tt_encoding encoding = {0};
    tt_error error;
    memset(word, 'a', sizeof word);
    expect_success(tt_tokenizer_encode(tokenizer, word, 100, &encoding, &error), &error);
    assert_int_equal(encoding.count, 100);
    expect_success(tt_tokenizer_encode(tokenizer, word, 101, &encoding, &error), &error);
    assert_int_equal(encoding.count, 1);
    assert_int_equal(encoding.ids[0], UNK);
    assert_int_equal(encoding.begin[0], 0);
    assert_int_equal(encoding.end[0], 101);
    tt_encoding_free(&encoding);
    tt_tokenizer_close(&tokenizer);
}

/* The bytes of the text, not those of what was made of it. */
static void test_places_in_the_text(void **state)
{
    (void)state;
    static const char text[] = " Caf\xC3\xA9, unaffable";
    static const uint32_t begins[] = {1, 6, 8, 10, 13}, ends[] = {6, 7, 10, 13, 17};
    tt_tokenizer *tokenizer = open_small("\n");
    tt_encoding encoding = {0};
    tt_error error;
    expect_success(tt_tokenizer_encode(tokenizer, text, sizeof text - 1, &encoding, &error),
                   &error);
    assert_int_equal(encoding.count, 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(encoding.begin[i], begins[i]);
        assert_int_equal(encoding.end[i], ends[i]);
    }
    char *decoded;
    expect_success(tt_tokenizer_decode(tokenizer, encoding.ids, encoding.count, &decoded, &error),
                   &error);
    assert_string_equal(decoded, "cafe unaffable");
    free(decoded);
    tt_encoding_free(&encoding);
    tt_tokenizer_close(&tokenizer);
}

/* A vocabulary with capital letters keeps them and accents. */
static void test_cased_vocabulary(void **state)
{
    (void)state;
    static const char text[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nCaf\xC3\xA9\ncafe\n[unused1]\n";
    tt_tokenizer *tokenizer = open_text("cased.txt", text, sizeof text - 1);
    tt_encoding encoding = {0};
    tt_error error;
    static const char sentence[] = "Caf\xC3\xA9 cafe CAFE";
    expect_success(tt_tokenizer_encode(tokenizer, sentence, sizeof sentence - 1, &encoding, &error),
                   &error);
    assert_int_equal(encoding.count, 3);
    assert_int_equal(encoding.ids[0], 5);
    assert_int_equal(encoding.ids[1], 6);
    assert_int_equal(encoding.ids[2], UNK);
    tt_encoding_free(&encoding);
    tt_tokenizer_close(&tokenizer);
}

static void test_line_ends_and_names(void **state)
{
    (void)state;
    tt_tokenizer *unix_ends = open_small("\n"), *other = open_small("\r\n");
    assert_int_equal(tt_tokenizer_vocabulary_size(other), SMALL);
    assert_true(tt_tokenizer_hash(unix_ends) != tt_tokenizer_hash(other));
    assert_true(tt_tokenizer_vocabulary_hash(unix_ends) == tt_tokenizer_vocabulary_hash(other));
    assert_string_equal(tt_tokenizer_piece(other, 5), "un");
    tt_tokenizer_close(&unix_ends);
    tt_tokenizer_close(&other);
    /* Known by its content too, with a mark and without a last line end. */
    static const char text[] = "\xEF\xBB\xBF[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na";
    other = open_text("pieces", text, sizeof text - 1);
    assert_int_equal(tt_tokenizer_vocabulary_size(other), 6);
    tt_tokenizer_close(&other);
}

static void refuse(const char *text, size_t length, const char *fragment)
{
    tt_tokenizer *tokenizer;
    tt_error error;
    scratch_write(scratch_path("bad.txt"), text, length);
    expect_failure(tt_tokenizer_open(scratch_path("bad.txt"), &tokenizer, &error), &error,
                   fragment);
    assert_null(tokenizer);
}

#define REFUSE(TEXT, FRAGMENT) refuse(TEXT, sizeof(TEXT) - 1, FRAGMENT)

static void test_bad_vocabularies(void **state)
{
    (void)state;
#define SPECIAL "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
    REFUSE("", "at least 6 lines, found 0");
    REFUSE(SPECIAL, "at least 6 lines, found 5");
    REFUSE(SPECIAL "a\n\nb\n", "line 7: expected a WordPiece piece, found an empty line");
    REFUSE(SPECIAL "a\nb\na\n", "line 8: expected a new piece, found a again, as in line 6");
    REFUSE(SPECIAL "a\n\xFF\n", "line 7: expected a WordPiece piece, found text that is not UTF-8");
    REFUSE(SPECIAL "a\nb\0c\n", "line 7: expected a WordPiece piece");
    REFUSE("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\n", "found none named [MASK]");
    REFUSE("a\nb\nc\nd\ne\nf\n", "found none named [PAD]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_and_pieces),
        cmocka_unit_test(test_special_pieces_are_not_text),
        cmocka_unit_test(test_unicode),
        cmocka_unit_test(test_longest_word),
        cmocka_unit_test(test_places_in_the_text),
        cmocka_unit_test(test_cased_vocabulary),
        cmocka_unit_test(test_line_ends_and_names),
        cmocka_unit_test(test_bad_vocabularies),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

/* Corpora: text in its three layouts, Wikipedia dumps, compressed and damaged files. */
#include "support/scratch.h"

#include "data/corpus.h"
#include "data/corpus_synthetic.h"
#include "data/text_buffer.h"

#include <bzlib.h>

/* All documents of a corpus as "title: line|line" joined with newlines, or the error's message. */
typedef struct {
    char *text; /* free */
    tt_status status;
    tt_error error;
    tt_corpus_counts counts;
    tt_corpus_format format;
} reading;

static void append(tt_text_buffer *text, const char *word)
{
    tt_text_buffer_append(text, word, strlen(word));
}

static void append_document(tt_text_buffer *text, const tt_document *document)
{
    if (text->length > 0) {
        append(text, "\n");
    }
    if (document->title[0] != '\0') {
        append(text, document->title);
        append(text, ": ");
    }
    for (int64_t i = 0; i < document->line_count; i++) {
        append(text, i > 0 ? "|" : "");
        append(text, document->lines[i]);
    }
}

static reading read_paths(const char *const *paths, int count, tt_corpus_options options)
{
    reading reading = {.status = TT_OK};
    tt_text_buffer text = {0};
    tt_corpus *corpus = NULL;
    options.paths = paths;
    options.path_count = count;
    reading.status = tt_corpus_open(&options, &corpus, &reading.error);
    const tt_document *document = NULL;
    while (reading.status == TT_OK) {
        reading.status = tt_corpus_next(corpus, &document, &reading.error);
        if (document == NULL) {
            break;
        }
        append_document(&text, document);
    }
    if (corpus != NULL) {
        reading.counts = *tt_corpus_get_counts(corpus);
        reading.format = tt_corpus_current_format(corpus);
        if (reading.status == TT_OK) {
            assert_int_equal(tt_corpus_bytes_read(corpus), tt_corpus_bytes_total(corpus));
        }
    }
    tt_corpus_close(&corpus);
    tt_text_buffer_append_byte(&text, '\0');
    reading.text = text.bytes;
    return reading;
}

static reading read_bytes(const void *bytes, size_t length, tt_corpus_options options)
{
    const char *path = scratch_path("corpus");
    scratch_write(path, bytes, length);
    return read_paths(&path, 1, options);
}

static void expect_text(const char *bytes, size_t length, tt_corpus_options options,
                        const char *expected)
{
    reading reading = read_bytes(bytes, length, options);
    expect_success(reading.status, &reading.error);
    assert_string_equal(reading.text, expected);
    free(reading.text);
}

static void expect_error(const void *bytes, size_t length, tt_corpus_options options,
                         const char *fragment)
{
    reading reading = read_bytes(bytes, length, options);
    expect_failure(reading.status, &reading.error, fragment);
    assert_non_null(strstr(reading.error.message, scratch_path("corpus")));
    free(reading.text);
}

#define FORMAT(value) ((tt_corpus_options){.format = (value)})

static void test_blocks(void **state)
{
    (void)state;
    static const char text[] = "\xEF\xBB\xBF\n\nOne line.\r\n  Two\tlines. \r\n \t \n\nNext\n\n\n";
    expect_text(text, sizeof text - 1, FORMAT(TT_CORPUS_AUTOMATIC), "One line.|Two lines.\nNext");
    expect_text("No end", 6, FORMAT(TT_CORPUS_BLOCKS), "No end");
    expect_text("", 0, FORMAT(TT_CORPUS_BLOCKS), "");
    expect_text("\n \n", 3, FORMAT(TT_CORPUS_BLOCKS), "");
}

static void test_lines(void **state)
{
    (void)state;
    static const char text[] = "First document.\n\nSecond one.\nThird";
    expect_text(text, sizeof text - 1, FORMAT(TT_CORPUS_LINES),
                "First document.\nSecond one.\nThird");
}

static const char wikitext[] =
    " \n = Robert Boulter = \n \n He had a guest @-@ starring role . \n"
    " Of 1 @,@ 000 or 1 @.@ 5 . \n \n = = Career = = \n \n \n In 2000 . \n"
    " = not a heading = \n \n = Du Fu = \n \n A poet . \n";

static void test_wikitext(void **state)
{
    (void)state;
    expect_text(wikitext, sizeof wikitext - 1, FORMAT(TT_CORPUS_AUTOMATIC),
                "Robert Boulter: He had a guest-starring role .|Of 1,000 or 1.5 .|In 2000 .|"
                "= not a heading =\nDu Fu: A poet .");
    tt_corpus_options headings = FORMAT(TT_CORPUS_WIKITEXT);
    headings.keep_headings = true;
    expect_text(wikitext, sizeof wikitext - 1, headings,
                "Robert Boulter: He had a guest-starring role .|Of 1,000 or 1.5 .|Career|In 2000 .|"
                "= not a heading =\nDu Fu: A poet .");
    static const char untitled[] = "Text first . \n \n = Title = \n \n More . \n";
    expect_text(untitled, sizeof untitled - 1, FORMAT(TT_CORPUS_WIKITEXT),
                "Text first .\nTitle: More .");
}

static void test_several_files(void **state)
{
    (void)state;
    const char *paths[] = {scratch_path("a"), scratch_path("b"), scratch_path("c")};
    scratch_write(paths[0], "One.\n", 5);
    scratch_write(paths[1], wikitext, sizeof wikitext - 1);
    scratch_write(paths[2], "", 0);
    reading reading = read_paths(paths, 3, FORMAT(TT_CORPUS_AUTOMATIC));
    expect_success(reading.status, &reading.error);
    assert_int_equal(reading.counts.documents, 3);
    assert_memory_equal(reading.text, "One.\nRobert", 11);
    free(reading.text);
}

static void test_dirty_bytes(void **state)
{
    (void)state;
    static const char text[] = "Bad \xFF\xC3( bytes \x01\x02 \xED\xA0\x80.\n";
    reading reading = read_bytes(text, sizeof text - 1, FORMAT(TT_CORPUS_BLOCKS));
    expect_success(reading.status, &reading.error);
    assert_string_equal(reading.text, "Bad \xEF\xBF\xBD\xEF\xBF\xBD( bytes    \xEF\xBF\xBD\xEF\xBF"
                                      "\xBD\xEF\xBF\xBD.");
    assert_int_equal(reading.counts.invalid_bytes, 5);
    free(reading.text);
}

/* Lines of any length, without a newline for megabytes, keep all their bytes and whole characters.
 */
static void test_long_lines(void **state)
{
    (void)state;
    const size_t sizes[] = {(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3300001};
    char *text = malloc(4000000);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t i = 0; i < sizes[s]; i++) {
            text[i] = "\xE2\x82\xAC"[i % 3];
        }
        memcpy(text + sizes[s] / 3 * 3, "\nend\n", 5);
        for (int format = TT_CORPUS_BLOCKS; format <= TT_CORPUS_WIKITEXT; format++) {
            reading reading =
                read_bytes(text, sizes[s] / 3 * 3 + 5, FORMAT((tt_corpus_format)format));
            expect_success(reading.status, &reading.error);
            assert_int_equal(reading.counts.bytes, sizes[s] / 3 * 3 + 3);
            assert_int_equal(reading.counts.invalid_bytes, 0);
            assert_int_equal(reading.counts.documents, format == TT_CORPUS_LINES ? 2 : 1);
            free(reading.text);
        }
    }
    free(text);
}

static void test_long_document(void **state)
{
    (void)state;
    enum { LINES = 700000, LENGTH = 100 };
    char *text = malloc((size_t)LINES * LENGTH);
    memset(text, 'a', (size_t)LINES * LENGTH);
    for (size_t i = 1; i <= LINES; i++) {
        text[i * LENGTH - 1] = '\n';
    }
    reading reading = read_bytes(text, (size_t)LINES * LENGTH, FORMAT(TT_CORPUS_BLOCKS));
    expect_success(reading.status, &reading.error);
    assert_int_equal(reading.counts.documents, 2);
    assert_int_equal(reading.counts.lines, LINES);
    free(reading.text);
    free(text);
}

#define HEAD                                                                                       \
    "<mediawiki version=\"0.10\"><siteinfo><namespaces><namespace key=\"0\"/>"                     \
    "<namespace key=\"1\">Talk</namespace><namespace key=\"6\">Datei</namespace>"                  \
    "</namespaces></siteinfo>"
#define PAGE(title, ns, extra, text)                                                               \
    "<page><title>" title "</title>" ns "<id>1</id>" extra                                         \
    "<revision><id>2</id><text xml:space=\"preserve\">" text "</text></revision></page>\n"
#define TAIL "</mediawiki>\n"

static const char dump[] =
    HEAD PAGE("One", "<ns>0</ns>", "", "'''One''' is &amp;lt; [[two|2]].[[Datei:a.jpg]]")
        PAGE("Talk:One", "<ns>1</ns>", "", "Talk is here.")
            PAGE("Uno", "<ns>0</ns>", "<redirect title=\"One\" />", "Text is here.")
                PAGE("Un", "<ns>0</ns>", "", "#REDIRECT [[One]]")
                    PAGE("Box", "<ns>0</ns>", "", "{{box|text}}")
                        PAGE("Talk:Old", "", "", "Old dumps name no namespace.")
                            PAGE("Old: a title", "", "", "An old article it is.") TAIL;

static void test_dump(void **state)
{
    (void)state;
    reading reading = read_bytes(dump, sizeof dump - 1, FORMAT(TT_CORPUS_WIKIPEDIA));
    expect_success(reading.status, &reading.error);
    assert_string_equal(reading.text, "One: One is < 2.\nOld: a title: An old article it is.");
    assert_int_equal(reading.counts.pages, 7);
    assert_int_equal(reading.counts.redirects, 2);
    assert_int_equal(reading.counts.other_namespaces, 2);
    assert_int_equal(reading.counts.empty, 1);
    assert_int_equal(reading.counts.documents, 2);
    free(reading.text);
}

static void test_dump_with_other_models_and_revisions(void **state)
{
    (void)state;
    static const char text[] =
        HEAD "<page><title>A</title><ns>0</ns><revision><text>Old text is here.</text></revision>"
             "<revision><model>wikitext</model><text>New text is here.</text></revision></page>"
             "<page><title>B</title><ns>0</ns><revision><model>json</model><text>{\"a\": 1}</text>"
             "</revision></page>" TAIL;
    reading reading = read_bytes(text, sizeof text - 1, FORMAT(TT_CORPUS_WIKIPEDIA));
    expect_success(reading.status, &reading.error);
    assert_string_equal(reading.text, "A: New text is here.");
    assert_int_equal(reading.counts.other_models, 1);
    free(reading.text);
}

static void test_damaged_dumps(void **state)
{
    (void)state;
    const tt_corpus_options options = FORMAT(TT_CORPUS_WIKIPEDIA);
    for (size_t cut = 1; cut < sizeof dump - 2 - strlen(TAIL); cut += 97) {
        expect_error(dump, cut, options, "line ");
    }
    expect_error("", 0, options, "line 1");
    static const char text[] = "Just some text.\n";
    expect_error(text, sizeof text - 1, options, "line 1, column 1");
    static const char html[] = "<html><body/></html>";
    expect_error(html, sizeof html - 1, options, "expected a MediaWiki dump");
    static const char mismatched[] = HEAD "\n<page><title>A</page>" TAIL;
    expect_error(mismatched, sizeof mismatched - 1, options, "line 2");
    static const char invalid[] = HEAD "<page><title>\xFF</title></page>" TAIL;
    expect_error(invalid, sizeof invalid - 1, options, "not well-formed");
    static const char laughs[] =
        "<!DOCTYPE mediawiki [<!ENTITY a \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\">"
        "<!ENTITY b \"&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;\">"
        "<!ENTITY c \"&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;\">"
        "<!ENTITY d \"&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;\">"
        "<!ENTITY e \"&d;&d;&d;&d;&d;&d;&d;&d;&d;&d;&d;&d;&d;&d;&d;&d;&d;&d;&d;&d;\">"
        "<!ENTITY f \"&e;&e;&e;&e;&e;&e;&e;&e;&e;&e;&e;&e;&e;&e;&e;&e;&e;&e;&e;&e;\">]>"
        "<mediawiki><page><title>&f;</title></page></mediawiki>";
    expect_error(laughs, sizeof laughs - 1, options, "line ");
}

static void test_deep_elements(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    char *text = malloc(16 + DEPTH * 3);
    size_t size = (size_t)sprintf(text, "<mediawiki>");
    for (int i = 0; i < DEPTH; i++) {
        memcpy(text + size, "<a>", 3);
        size += 3;
    }
    expect_error(text, size, FORMAT(TT_CORPUS_WIKIPEDIA), "at most 1000 deep");
    free(text);
}

static size_t compress(const char *bytes, size_t length, char *packed, size_t room)
{
    unsigned int size = (unsigned int)room;
    char *copy = malloc(length);
    memcpy(copy, bytes, length);
    assert_int_equal(BZ2_bzBuffToBuffCompress(packed, &size, copy, (unsigned int)length, 1, 0, 0),
                     BZ_OK);
    free(copy);
    return size;
}

static void test_compressed_dump(void **state)
{
    (void)state;
    const tt_corpus_options options = FORMAT(TT_CORPUS_WIKIPEDIA);
    static const char expected[] = "One: One is < 2.\nOld: a title: An old article it is.";
    char packed[8192];
    size_t size = compress(dump, sizeof dump - 1, packed, sizeof packed);
    expect_text(packed, size, options, expected);
    for (size_t cut = 8; cut < size; cut += 23) {
        expect_error(packed, cut, options, "cut short");
    }
    packed[size / 2] ^= 16;
    expect_error(packed, size, options, "near byte");
    packed[size / 2] ^= 16;
    memcpy(packed + size, "trailing", 8);
    expect_error(packed, size + 8, options, "another bzip2 member");
    /* Multistream: the dump in members of 100 bytes. */
    size = 0;
    for (size_t start = 0; start < sizeof dump - 1; start += 100) {
        size_t length = sizeof dump - 1 - start < 100 ? sizeof dump - 1 - start : 100;
        size += compress(dump + start, length, packed + size, sizeof packed - size);
    }
    expect_text(packed, size, options, expected);
    size = compress("One.\n\nTwo.\n", 11, packed, sizeof packed);
    expect_text(packed, size, FORMAT(TT_CORPUS_AUTOMATIC), "One.\nTwo.");
}

static void test_wrong_files(void **state)
{
    (void)state;
    reading reading = read_paths(NULL, 0, FORMAT(TT_CORPUS_BLOCKS));
    expect_failure(reading.status, &reading.error, "at least one input file");
    free(reading.text);
    const char *paths[] = {scratch_path("here"), scratch_path("missing")};
    scratch_write(paths[0], "Text", 4);
    reading = read_paths(paths, 2, FORMAT(TT_CORPUS_BLOCKS));
    expect_failure(reading.status, &reading.error, "missing: No such file");
    assert_int_equal(reading.counts.documents, 0);
    free(reading.text);
    paths[0] = scratch_folder;
    reading = read_paths(paths, 1, FORMAT(TT_CORPUS_BLOCKS));
    expect_failure(reading.status, &reading.error, "found a folder");
    free(reading.text);
    paths[0] = "/dev/null";
    reading = read_paths(paths, 1, FORMAT(TT_CORPUS_BLOCKS));
    expect_failure(reading.status, &reading.error, "found a pipe or device");
    free(reading.text);
    expect_error(dump, sizeof dump - 1, FORMAT(TT_CORPUS_AUTOMATIC), "found a MediaWiki dump");
    expect_error("a\0b\0", 4, FORMAT(TT_CORPUS_BLOCKS), "expected UTF-8 text");
}

static void test_synthetic(void **state)
{
    (void)state;
    int64_t bytes = 0, again = 0;
    tt_error error;
    const char *path = scratch_path("synthetic.txt");
    expect_success(tt_synthetic_write(50, 4, path, &bytes, &error), &error);
    size_t length = 0;
    char *first = scratch_read(path, &length);
    assert_int_equal(length, bytes);
    expect_success(tt_synthetic_write(20, 4, path, &again, &error), &error);
    char *shorter = scratch_read(path, &length);
    assert_memory_equal(first, shorter, length);
    expect_success(tt_synthetic_write(20, 5, path, &again, &error), &error);
    char *other = scratch_read(path, NULL);
    assert_true(strcmp(shorter, other) != 0);
    free(first);
    free(shorter);
    free(other);
    reading reading = read_paths(&path, 1, FORMAT(TT_CORPUS_AUTOMATIC));
    expect_success(reading.status, &reading.error);
    assert_int_equal(reading.counts.documents, 20);
    assert_null(strchr(reading.text, '%'));
    free(reading.text);
    expect_success(tt_synthetic_write(1, 1, scratch_path("new/folder/x"), &bytes, &error), &error);
    expect_failure(tt_synthetic_write(1, 1, scratch_path("new/folder/x/y"), &bytes, &error), &error,
                   "expected a folder, found a file");
    expect_failure(tt_synthetic_write(100000, 1, "/dev/full", &bytes, &error), &error, "/dev/full");
}

/* The files of ../shared, where they are at hand. */
static const char *shared_file(const char *name)
{
    static char path[1024];
    const char *folder = getenv("TTRAIN_SHARED_DIR");
    snprintf(path, sizeof path, "%s/data/%s",
             folder != NULL ? folder : TTRAIN_SOURCE_DIR "/../shared", name);
    return access(path, R_OK) == 0 ? path : NULL;
}

static void test_shared_dump(void **state)
{
    (void)state;
    const char *path = shared_file("wikidump/enwiki-pages-articles-shortened.xml.bz2");
    if (path == NULL) {
        skip();
    }
    reading reading = read_paths(&path, 1, FORMAT(TT_CORPUS_WIKIPEDIA));
    expect_success(reading.status, &reading.error);
    assert_int_equal(reading.counts.pages, 206);
    assert_int_equal(reading.counts.other_namespaces, 1);
    assert_int_equal(reading.counts.redirects, 99);
    assert_true(reading.counts.bytes > 2500000);
    static const char *const remnants[] = {"{{", "}}",     "[[", "]]", "<ref", "</",
                                           "''", "&nbsp;", "()", "  ", "__",   "wikitable"};
    for (size_t i = 0; i < sizeof remnants / sizeof remnants[0]; i++) {
        const char *found = strstr(reading.text, remnants[i]);
        if (found != NULL) {
            fail_msg("expected no %s, found %.60s", remnants[i], found);
        }
    }
    free(reading.text);
}

static void test_shared_wikitext(void **state)
{
    (void)state;
    const char *path = shared_file("wikitext/wiki.test.raw");
    if (path == NULL) {
        skip();
    }
    reading reading = read_paths(&path, 1, FORMAT(TT_CORPUS_AUTOMATIC));
    expect_success(reading.status, &reading.error);
    assert_int_equal(reading.format, TT_CORPUS_WIKITEXT);
    assert_int_equal(reading.counts.documents, 60);
    assert_null(strstr(reading.text, "@-@"));
    free(reading.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_wikitext),
        cmocka_unit_test(test_several_files),
        cmocka_unit_test(test_dirty_bytes),
        cmocka_unit_test(test_long_lines),
        cmocka_unit_test(test_long_document),
        cmocka_unit_test(test_dump),
        cmocka_unit_test(test_dump_with_other_models_and_revisions),
        cmocka_unit_test(test_damaged_dumps),
        cmocka_unit_test(test_deep_elements),
        cmocka_unit_test(test_compressed_dump),
        cmocka_unit_test(test_wrong_files),
        cmocka_unit_test(test_synthetic),
        cmocka_unit_test(test_shared_dump),
        cmocka_unit_test(test_shared_wikitext),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

/* The wikitext cleaner: what readers see of a page, and pages made to hurt. */
#include "support/scratch.h"

#include "core/random.h"
#include "data/text_buffer.h"
#include "data/wiki_markup.h"

#include <utf8proc.h>

/* Lines joined with "|". */
static void join_line(void *user, const char *bytes, size_t length)
{
    tt_text_buffer *joined = user;
    if (joined->length > 0) {
        tt_text_buffer_append_byte(joined, '|');
    }
    tt_text_buffer_append(joined, bytes, length);
}

static char *clean(const char *page, size_t length, const tt_wiki_markup_options *options)
{
    tt_text_buffer joined = {0};
    tt_error error;
    expect_success(tt_wiki_markup_clean(page, length, options, join_line, &joined, &error), &error);
    tt_text_buffer_append_byte(&joined, '\0');
    assert_false(joined.failed);
    return joined.bytes;
}

typedef struct {
    const char *page, *expected;
} example;

static void check_examples(const example *examples, size_t count,
                           const tt_wiki_markup_options *options)
{
    for (size_t i = 0; i < count; i++) {
        char *found = clean(examples[i].page, strlen(examples[i].page), options);
        if (strcmp(found, examples[i].expected) != 0) {
            fail_msg("page \"%s\": expected \"%s\", found \"%s\"", examples[i].page,
                     examples[i].expected, found);
        }
        free(found);
    }
}

#define CHECK(examples) check_examples(examples, sizeof(examples) / sizeof(examples)[0], &plain)

static const tt_wiki_markup_options plain = {.keep_headings = false};

static void test_links(void **state)
{
    static const example examples[] = {
        {"See [[Paris]] and [[London|the other one]].", "See Paris and the other one."},
        {"Many [[cat]]s sat [[Dog#Breeds|there]].", "Many cats sat there."},
        {"Text. [[File:a.jpg|thumb|A [[nested|link]] in [[File:b.jpg|x]] it]]", "Text."},
        {"[[Image:a.png]][[Category:Towns]]Text it is.[[de:Stadt]][[zh-min-nan:X]]", "Text it is."},
        {"In [[:Category:Towns]] you find [[:File:a.jpg|a file]].",
         "In Category:Towns you find a file."},
        {"A [http://example.org good site] and [https://example.org].", "A good site and."},
        {"A [//example.org site] he [sic] said [1].", "A site he [sic] said [1]."},
        {"Unclosed [[link and more text here.\n\nNext [[one|two]] is fine.",
         "Unclosed link and more text here.|Next two is fine."},
        {"Unclosed [http://example.org goes on.", "Unclosed [http://example.org goes on."},
        {"[[File:a.jpg|A caption\n\nof two paragraphs.]] Then there is text.",
         "Then there is text."},
        {"<br /> {{x}} [[File:a.jpg]] <ref>b</ref> Short.", "Short."},
        {"Stray ]] brackets [ here ] are | harmless.", "Stray brackets [ here ] are | harmless."},
    };
    (void)state;
    CHECK(examples);
}

static void test_namespaces_of_the_wiki(void **state)
{
    (void)state;
    static const char *const names[] = {"Datei", "Kategorie"};
    const tt_wiki_markup_options german = {.dropped_namespaces = names,
                                           .dropped_namespace_count = 2};
    static const example examples[] = {
        {"Ein Satz steht hier.[[Datei:a.jpg|mini|Bild]][[kategorie:Ort]]", "Ein Satz steht hier."},
    };
    check_examples(examples, 1, &german);
}

static void test_templates_and_tables(void **state)
{
    static const example examples[] = {
        {"{{Infobox|a={{nested|{{deeper}}}}|b=[[x]]}}Text it is.", "Text it is."},
        {"Text {{{parameter|default}}} goes on.", "Text goes on."},
        {"Before it all.\n{| class=\"wikitable\"\n|-\n! a !! b\n|-\n| {{x|y}} || c\n{|\n| "
         "inner\n|}\n"
         "|}\nAfter it all.",
         "Before it all.|After it all."},
        {"{{Box|\n{|\n| a\n|}\n}}\nText it is.", "Text it is."},
        {"{{Box|{{{!}}\n| a\n}}\nText it is.", "Text it is."},
        {"About {{convert|5|km|mi}} or {{convert|5|-|10|sqmi}} wide.",
         "About 5 km or 5-10 sq mi wide."},
        {"The {{lang|fr|''mot juste''}} and {{lang-de|Haus}}.", "The mot juste and Haus."},
        {"{{nowrap|No break}} {{frac|3|1|2}} {{frac|1|2}} {{as of|2009|6}}, {{c.|1900}}.",
         "No break 3 1/2 1/2 as of June 2009, c. 1900."},
        {"{{chem|H|2|O}} on {{USS|Enterprise|CV-6}} {{spaced ndash}}fine.",
         "H2O on USS Enterprise \xE2\x80\x93 fine."},
        {"{{nowrap|1=x=1 [[a|b]]}} is {{formatnum:1234}}.", "x=1 b is 1234."},
        {"Unclosed {{template and its text go on.", "Unclosed template and its text go on."},
        {"Stray }} braces { in } text.", "Stray braces { in } text."},
        {"{|\n| never closed\nText of the cell is lost.\n", "Text of the cell is lost."},
        {"Unknown {{whatever|shown?}} ones go.", "Unknown ones go."},
    };
    (void)state;
    CHECK(examples);
}

static void test_tags(void **state)
{
    static const example examples[] = {
        {"Text<ref>a [[b]] {{c</ref> goes<ref name=\"x\" /> on<REF name=y>z</Ref>.",
         "Text goes on."},
        {"Text <!-- a comment with [[link]] and {{ -->goes on.", "Text goes on."},
        {"One line\n<!-- alone -->\nand its end.", "One line and its end."},
        {"Text goes.<!-- never closed", "Text goes."},
        {"A <b>bold</b> <span class=\"x\">word</span>, H<sub>2</sub>O.", "A bold word, H2O."},
        {"Line one is<br />here.", "Line one is here."},
        {"First there is.<p>Second there is.</p>", "First there is.|Second there is."},
        {"<gallery>\nFile:a.jpg|b\n</gallery>\nText it is.", "Text it is."},
        {"<syntaxhighlight lang=\"c\">int [[x]];</syntaxhighlight>Use <code>printf</code> now.",
         "Use printf now."},
        {"Show <nowiki>[[not a link]] ''nor'' {{this}} &amp;</nowiki> so.",
         "Show [[not a link]] ''nor'' {{this}} &amp; so."},
        {"If a < b and c > d, then <5 is true.", "If a < b and c > d, then <5 is true."},
        {"Unclosed <ref>reference text goes on.", "Unclosed reference text goes on."},
        {"<table><tr><td>cell</td></tr></table>Text it is.", "Text it is."},
        {"Text {{#tag:ref|hidden}}goes on.", "Text goes on."},
    };
    (void)state;
    CHECK(examples);
}

static void test_formulas(void **state)
{
    static const example examples[] = {
        {"Let <math>x_1 \\leq \\alpha^{2}</math> be given.",
         "Let x1 \xE2\x89\xA4 \xCE\xB1^2 be given."},
        {"The mass <math>m'</math> counts.", "The mass m' counts."},
        {"It is\n:<math>E = mc^2</math>\nas we know.", "as we know."},
        {"A <math>\\begin{matrix}1\\end{matrix}</math> matrix is here.", "A matrix is here."},
    };
    (void)state;
    CHECK(examples);
}

static void test_lines(void **state)
{
    static const example examples[] = {
        {"One line\nand another\nof a paragraph.\n\nNext paragraph.",
         "One line and another of a paragraph.|Next paragraph."},
        {"== Heading ==\nText it is.\n=== Empty ===\n* item one\n# item two\n", "Text it is."},
        {": An indented paragraph of text.\n;term\n", "An indented paragraph of text."},
        {"__TOC__ __NOTOC__Text__ it _is_ here.", "Text__ it _is_ here."},
        {"'''Bold''' and ''italic'' and '''''both''''' are John's.",
         "Bold and italic and both are John's."},
        {"L''''accent'''' grave is here.", "L'accent' grave is here."},
        {"A&nbsp;b &ndash; c &amp;amp; &lt;d&gt; &#8217; &#x41; &bogus; &.",
         "A b \xE2\x80\x93 c &amp; <d> \xE2\x80\x99 A &bogus; &."},
        {"Name ({{IPA|x}}; {{lang-el|}} , born 1950) lived (  ) here ().",
         "Name (born 1950) lived here."},
        {"Word {{x}} , next {{x}}. And ({{x}}text ; {{x}}) end.", "Word, next. And (text) end."},
        {"Notes\n\nCensus.gov site\n\nHe said so.", "He said so."},
        {" code = { x };\n Prose that begins with a space by mistake is kept here.\n",
         "Prose that begins with a space by mistake is kept here."},
        {"----\nText it is.\n| remnant\n! a || b\n", "Text it is."},
        {"Soft\xC2\xADhyphen, zero\xE2\x80\x8Bwidth, thin\xE2\x80\x89space.",
         "Softhyphen, zerowidth, thin space."},
        {"Bad \xFF\xFE bytes and \x01 controls.",
         "Bad \xEF\xBF\xBD\xEF\xBF\xBD bytes and controls."},
        {"", ""},
        {"...\n\n()\n\n--", ""},
    };
    (void)state;
    CHECK(examples);
}

static void test_headings_and_lists_kept(void **state)
{
    (void)state;
    const tt_wiki_markup_options all = {.keep_headings = true, .keep_lists = true};
    static const example examples[] = {
        {"== Heading ==\nText it is.\n== Empty ==\n== ''Next'' ==\n* one\n** [[two]]\n",
         "Heading|Text it is.|Next|one|two"},
    };
    check_examples(examples, 1, &all);
}

static void test_redirects(void **state)
{
    (void)state;
    static const char *const redirects[] = {"#REDIRECT [[x]]", "\n #redirect[[x]]", "#Redirect: y"};
    for (size_t i = 0; i < 3; i++) {
        assert_true(tt_wiki_markup_is_redirect(redirects[i], strlen(redirects[i])));
    }
    assert_false(tt_wiki_markup_is_redirect("Text #REDIRECT", 14));
    assert_false(tt_wiki_markup_is_redirect("#", 1));
    assert_false(tt_wiki_markup_is_redirect("", 0));
}

static const char *const fragments[] = {"{",          "{{",
                                        "{{{",        "}}",
                                        "{{}}",       "{{a|",
                                        "{{nowrap|",  "{{nowrap|a}}",
                                        "[",          "[[",
                                        "]]",         "[[a|",
                                        "[[a]]",      "[[File:a|",
                                        "[http://a ", "[http://a",
                                        "]",          "<",
                                        "<!--",       "<ref>",
                                        "</ref>",     "<ref",
                                        "<ref/>",     "<nowiki>",
                                        "<a <",       "<math>x</math>",
                                        "{|\n",       "|}\n",
                                        "\n{|",       "\n|",
                                        "=",          "\n==",
                                        "'",          "''",
                                        "_",          "__",
                                        "__A",        "&",
                                        "&#",         "&amp;",
                                        "(",          ")",
                                        "( ;",        "\n",
                                        " ",          "|",
                                        "\n*",        "\n:",
                                        "\n;",        "-",
                                        "<table>",    "{{convert|1|",
                                        "[[[[a]]",    "\x0E",
                                        "\xC3",       "\xE2\x80\x8B"};

/* A million bytes of one fragment, alone and with text behind. Quadratic work would run into the
 * test's time limit, recursion into the end of the stack. */
static void test_hostile_repetition(void **state)
{
    (void)state;
    enum { SIZE = 1000000 };
    char *page = malloc(SIZE + 64);
    for (size_t f = 0; f < sizeof fragments / sizeof fragments[0]; f++) {
        size_t length = strlen(fragments[f]);
        size_t size = 0;
        for (; size + length <= SIZE; size += length) {
            memcpy(page + size, fragments[f], length);
        }
        memcpy(page + size, "}}]]|}\nthe end of it.", 21);
        char *found = clean(page, size, &plain);
        assert_true(strlen(found) <= 3 * size);
        free(found);
        free(clean(page, size + 21, &plain));
    }
    free(page);
}

/* Random sequences of mark-up: whatever comes out is valid UTF-8, on lines without space at their
 * ends. */
static void test_random_markup(void **state)
{
    (void)state;
    static const char *const parts[] = {"{{",
                                        "}}",
                                        "{{{",
                                        "}}}",
                                        "{|",
                                        "|}",
                                        "\n",
                                        "|",
                                        "[[",
                                        "]]",
                                        "[",
                                        "]",
                                        "http://a b",
                                        "<ref>",
                                        "</ref>",
                                        "<!--",
                                        "-->",
                                        "<nowiki>",
                                        "</nowiki>",
                                        "<math>",
                                        "</math>",
                                        "''",
                                        "'''",
                                        "==",
                                        "&nbsp;",
                                        "&#12;",
                                        "&#x110000;",
                                        "(",
                                        ")",
                                        ";",
                                        ",",
                                        " ",
                                        "word",
                                        "File:",
                                        "Category:",
                                        "nowrap|",
                                        "convert|1|km",
                                        "__TOC__",
                                        "\xE2\x82\xAC",
                                        "\xFF",
                                        "*",
                                        ":",
                                        "\t",
                                        "<br>",
                                        "=",
                                        "\\frac",
                                        "<table>",
                                        "_",
                                        "-"};
    tt_random random;
    tt_random_start(&random, 7, 1);
    for (int round = 0; round < 3000; round++) {
        char page[1024];
        size_t size = 0;
        while (size + 16 < sizeof page && tt_random_below(&random, 150) != 0) {
            const char *part = parts[tt_random_below(&random, sizeof parts / sizeof parts[0])];
            memcpy(page + size, part, strlen(part));
            size += strlen(part);
        }
        const tt_wiki_markup_options options = {.keep_headings = round & 1,
                                                .keep_lists = round & 2};
        char *found = clean(page, size, &options);
        const utf8proc_uint8_t *byte = (const utf8proc_uint8_t *)found;
        while (*byte != '\0') {
            utf8proc_int32_t code_point;
            utf8proc_ssize_t length = utf8proc_iterate(byte, -1, &code_point);
            assert_true(length > 0);
            assert_true(code_point >= ' ' && code_point != 0x7F);
            byte += length;
        }
        assert_null(strstr(found, "  "));
        free(found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_namespaces_of_the_wiki),
        cmocka_unit_test(test_templates_and_tables),
        cmocka_unit_test(test_tags),
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_headings_and_lists_kept),
        cmocka_unit_test(test_redirects),
        cmocka_unit_test(test_hostile_repetition),
        cmocka_unit_test(test_random_markup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

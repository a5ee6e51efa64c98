#include "data/wiki_markup.h"

#include "data/wiki_passes.h"

#include <ctype.h>
#include <string.h>

typedef struct {
    const char *bytes;
    size_t length;
} slice;

/* The last pass: lines of the cleaned page become paragraphs. */
typedef struct {
    const tt_wiki_markup_options *options;
    tt_wiki_markup_line line;
    void *user;
    tt_text_buffer paragraph, text; /* as collected, and tidied */
    tt_text_buffer heading;         /* kept until text follows */
} line_pass;

static slice trim(slice text)
{
    while (text.length > 0 && (text.bytes[0] == ' ' || text.bytes[0] == '\t')) {
        text.bytes++;
        text.length--;
    }
    while (text.length > 0 &&
           (text.bytes[text.length - 1] == ' ' || text.bytes[text.length - 1] == '\t')) {
        text.length--;
    }
    return text;
}

/* Emphasis: two, three or five apostrophes vanish, the others of a longer run stay. */
static size_t skip_apostrophes(slice text, size_t i, tt_text_buffer *output)
{
    size_t count = 0;
    while (i + count < text.length && text.bytes[i + count] == '\'') {
        count++;
    }
    size_t shown = count == 1 || count == 4 ? 1 : (count > 5 ? count - 5 : 0);
    for (size_t k = 0; k < shown; k++) {
        tt_text_buffer_append_byte(output, '\'');
    }
    return i + count;
}

/* "__NOTOC__" and the like; anything else that starts with an underscore stays. */
static size_t skip_magic_word(slice text, size_t i, tt_text_buffer *output)
{
    enum { LONGEST_WORD = 32 };
    size_t end = i + 2;
    while (end < text.length && end < i + LONGEST_WORD && isupper((unsigned char)text.bytes[end])) {
        end++;
    }
    if (i + 1 < text.length && text.bytes[i + 1] == '_' && end > i + 4 && end + 1 < text.length &&
        text.bytes[end] == '_' && text.bytes[end + 1] == '_') {
        return end + 2;
    }
    tt_text_buffer_append_byte(output, '_');
    return i + 1;
}

static bool is_invisible(int code_point)
{
    return code_point == 0xAD || (code_point >= 0x200B && code_point <= 0x200F) ||
           (code_point >= 0x202A && code_point <= 0x202E) || code_point == 0x2060 ||
           code_point == 0xFEFF;
}

static bool is_space(int code_point)
{
    return code_point <= 0x20 || (code_point >= 0x7F && code_point <= 0xA0) ||
           (code_point >= 0x2000 && code_point <= 0x200A) || code_point == 0x2028 ||
           code_point == 0x2029 || code_point == 0x202F || code_point == 0x205F ||
           code_point == 0x3000;
}

/* Entities are what they stand for; without a known name the "&" stays. */
static size_t decode_entity(slice text, size_t i, tt_text_buffer *output)
{
    enum { LONGEST_ENTITY = 16 };
    size_t end = i + 1;
    while (end < text.length && end < i + LONGEST_ENTITY && text.bytes[end] != ';' &&
           (isalnum((unsigned char)text.bytes[end]) || text.bytes[end] == '#')) {
        end++;
    }
    int code_point = -1;
    if (end < text.length && text.bytes[end] == ';') {
        code_point = tt_html_entity(text.bytes + i + 1, end - i - 1);
    }
    if (code_point < 0) {
        tt_text_buffer_append_byte(output, '&');
        return i + 1;
    }
    if (is_space(code_point)) {
        tt_text_buffer_append_byte(output, ' ');
    } else if (!is_invisible(code_point)) {
        tt_text_buffer_append_code_point(output, code_point);
    }
    return end + 1;
}

/* Unicode's spaces become plain ones, invisible characters vanish; `i` is at a byte of 0x80 or
 * more. The text is valid UTF-8. */
static size_t copy_character(slice text, size_t i, tt_text_buffer *output)
{
    unsigned char first = (unsigned char)text.bytes[i];
    size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
    size = size <= text.length - i ? size : text.length - i;
    int code_point = first & (0xFF >> (size + 1));
    for (size_t k = 1; k < size; k++) {
        code_point = code_point << 6 | (text.bytes[i + k] & 0x3F);
    }
    if (is_space(code_point)) {
        tt_text_buffer_append_byte(output, ' ');
    } else if (!is_invisible(code_point)) {
        tt_text_buffer_append(output, text.bytes + i, size);
    }
    return i + size;
}

static void decode_inline(slice text, tt_text_buffer *output)
{
    size_t i = 0;
    while (i < text.length) {
        unsigned char byte = (unsigned char)text.bytes[i];
        if (byte == '\'') {
            i = skip_apostrophes(text, i, output);
        } else if (byte == '_') {
            i = skip_magic_word(text, i, output);
        } else if (byte == '&') {
            i = decode_entity(text, i, output);
        } else if (byte >= 0x80) {
            i = copy_character(text, i, output);
        } else if (byte >= TT_WIKI_ESCAPE && byte < TT_WIKI_ESCAPE + sizeof TT_WIKI_ESCAPED - 1) {
            tt_text_buffer_append_byte(output, TT_WIKI_ESCAPED[byte - TT_WIKI_ESCAPE]);
            i++;
        } else {
            tt_text_buffer_append_byte(output, (char)byte);
            i++;
        }
    }
}

static char last_byte(const char *bytes, size_t length)
{
    if (length == 0) {
        return '\0';
    }
    return bytes[length - 1];
}

static bool is_separator(char byte)
{
    return byte == ',' || byte == ';' || byte == ' ';
}

/* Single spaces; no space before closing punctuation where something vanished; brackets without
 * what was between them go: "Foo ( ; , born 1950)" reads "Foo (born 1950)", "Foo ()" reads "Foo".
 * In place. */
static void tidy_punctuation(tt_text_buffer *text)
{
    char *bytes = text->bytes;
    size_t kept = 0;
    for (size_t i = 0; i < text->length; i++) {
        char byte = bytes[i];
        char before = last_byte(bytes, kept);
        if (byte == ' ' && (before == ' ' || before == '\0')) {
            continue;
        }
        if (before == '(' && is_separator(byte)) {
            continue;
        }
        if (byte == ')') {
            while (kept > 0 && is_separator(bytes[kept - 1])) {
                kept--;
            }
            if (last_byte(bytes, kept) == '(') {
                kept--;
                continue;
            }
        }
        bool closes = byte == ',' || byte == '.' || byte == ';' || byte == ':';
        bool last = i + 1 == text->length || strchr(" ,.", bytes[i + 1]) != NULL;
        if (closes && before == ' ' && last) {
            kept--;
            before = last_byte(bytes, kept);
        }
        if ((byte == ',' || byte == ';') && (before == ',' || before == ';' || before == ':')) {
            continue;
        }
        bytes[kept++] = byte;
    }
    while (kept > 0 && bytes[kept - 1] == ' ') {
        kept--;
    }
    text->length = kept;
}

static bool has_word(const tt_text_buffer *text)
{
    for (size_t i = 0; i < text->length; i++) {
        if (isalnum((unsigned char)text->bytes[i]) || (unsigned char)text->bytes[i] >= 0x80) {
            return true;
        }
    }
    return false;
}

/* Where a line comes from settles what it must be to be taken for running text. */
typedef enum {
    LINE_OF_TEXT,
    LINE_WITH_SPACE, /* starts with a space: shown as it stands, mostly code */
    LINE_OF_LIST,
} line_origin;

/* Labels of lists and figures that are gone are a few words that end like no sentence. */
static bool is_running_text(const tt_text_buffer *text, line_origin origin)
{
    enum { FEWEST_WORDS = 5, FEWEST_WORDS_WITH_SPACE = 8 };
    int words = 1;
    for (size_t i = 0; i < text->length; i++) {
        words += text->bytes[i] == ' ';
    }
    unsigned char last = (unsigned char)last_byte(text->bytes, text->length);
    bool ends = last >= 0x80 || strchr(".!?\"')", last) != NULL;
    switch (origin) {
    case LINE_OF_TEXT:
        return ends || words >= FEWEST_WORDS;
    case LINE_WITH_SPACE:
        return ends && words >= FEWEST_WORDS_WITH_SPACE;
    default:
        return true;
    }
}

/* Tidies `text` and hands it out, after the heading that waits for it. */
static void emit(line_pass *pass, slice text, line_origin origin)
{
    if (text.length == 0) {
        return;
    }
    pass->text.length = 0;
    decode_inline(text, &pass->text);
    tidy_punctuation(&pass->text);
    if (!has_word(&pass->text) || !is_running_text(&pass->text, origin)) {
        return;
    }
    if (pass->heading.length > 0) {
        pass->line(pass->user, pass->heading.bytes, pass->heading.length);
        pass->heading.length = 0;
    }
    pass->line(pass->user, pass->text.bytes, pass->text.length);
}

static void end_paragraph(line_pass *pass)
{
    emit(pass, (slice){pass->paragraph.bytes, pass->paragraph.length}, LINE_OF_TEXT);
    pass->paragraph.length = 0;
}

static void take_heading(line_pass *pass, slice line)
{
    end_paragraph(pass);
    pass->heading.length = 0;
    if (!pass->options->keep_headings) {
        return;
    }
    while (line.length > 2 && line.bytes[0] == '=' && line.bytes[line.length - 1] == '=') {
        line.bytes++;
        line.length -= 2;
    }
    decode_inline(trim(line), &pass->heading);
    tidy_punctuation(&pass->heading);
}

/* Lists (*, #), definitions (;) and indented text (:), which is not a list. */
static void take_item(line_pass *pass, slice line)
{
    bool is_list = false;
    while (line.length > 0 && strchr("*#:;", line.bytes[0]) != NULL) {
        is_list = is_list || line.bytes[0] != ':';
        line.bytes++;
        line.length--;
    }
    end_paragraph(pass);
    if (!is_list || pass->options->keep_lists) {
        emit(pass, trim(line), is_list ? LINE_OF_LIST : LINE_OF_TEXT);
    }
}

static bool is_table_remnant(slice line)
{
    bool header = line.bytes[0] == '!' && memchr(line.bytes + 1, '|', line.length - 1) != NULL;
    return line.bytes[0] == '|' || header ||
           (line.length >= 2 && line.bytes[0] == '{' && line.bytes[1] == '|');
}

static bool is_rule(slice line)
{
    return line.length >= 4 && memcmp(line.bytes, "----", 4) == 0;
}

static void take_line(line_pass *pass, slice line)
{
    bool indented = line.length > 0 && line.bytes[0] == ' ';
    line = trim(line);
    if (line.length == 0 || is_table_remnant(line) || is_rule(line)) {
        end_paragraph(pass);
    } else if (line.bytes[0] == '=' && line.length > 2 && line.bytes[line.length - 1] == '=') {
        take_heading(pass, line);
    } else if (strchr("*#:;", line.bytes[0]) != NULL) {
        take_item(pass, line);
    } else if (indented) {
        end_paragraph(pass);
        emit(pass, line, LINE_WITH_SPACE);
    } else {
        tt_text_buffer_append_byte(&pass->paragraph, ' ');
        tt_text_buffer_append(&pass->paragraph, line.bytes, line.length);
    }
}

static void run_line_pass(line_pass *pass, const tt_text_buffer *page)
{
    size_t start = 0;
    while (start < page->length) {
        const char *newline = memchr(page->bytes + start, '\n', page->length - start);
        size_t end = newline != NULL ? (size_t)(newline - page->bytes) : page->length;
        take_line(pass, (slice){page->bytes + start, end - start});
        start = end + 1;
    }
    end_paragraph(pass);
}

tt_status tt_wiki_markup_clean(const char *page, size_t length,
                               const tt_wiki_markup_options *options, tt_wiki_markup_line line,
                               void *user, tt_error *error)
{
    tt_text_buffer first = {0}, second = {0};
    line_pass pass = {.options = options, .line = line, .user = user};
    tt_text_buffer_append_clean(&first, page, length, true);
    tt_wiki_remove_tags(&first, &second);
    first.length = 0;
    tt_wiki_remove_templates(&second, &first);
    second.length = 0;
    tt_wiki_resolve_links(&first, options, &second);
    bool failed = first.failed || second.failed;
    if (!failed) {
        run_line_pass(&pass, &second);
        failed = pass.paragraph.failed || pass.text.failed || pass.heading.failed;
    }
    tt_text_buffer_free(&first);
    tt_text_buffer_free(&second);
    tt_text_buffer_free(&pass.paragraph);
    tt_text_buffer_free(&pass.text);
    tt_text_buffer_free(&pass.heading);
    if (failed) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory to clean a page of %zu bytes",
                            length);
    }
    return TT_OK;
}

bool tt_wiki_markup_is_redirect(const char *page, size_t length)
{
    static const char mark[] = "#redirect";
    while (length > 0 && isspace((unsigned char)*page)) {
        page++;
        length--;
    }
    return length >= sizeof mark - 1 && strncasecmp(page, mark, sizeof mark - 1) == 0;
}

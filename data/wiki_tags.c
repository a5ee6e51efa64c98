#include "data/wiki_passes.h"

#include <ctype.h>
#include <string.h>

/* Elements that are removed together with what they hold. */
static const char *const dropped_elements[] = {
    "ref",      "references",      "math",     "chem",        "ce",
    "gallery",  "timeline",        "score",    "source",      "pre",
    "imagemap", "syntaxhighlight", "graph",    "hiero",       "mapframe",
    "maplink",  "templatedata",    "inputbox", "indicator",   "categorytree",
    "style",    "script",          "table",    "includeonly", "templatestyles"};

enum { DROPPED_COUNT = sizeof dropped_elements / sizeof dropped_elements[0] };

/* Tags that end a paragraph. */
static const char *const block_tags[] = {"p",  "div", "blockquote", "center", "ul", "ol", "li",
                                         "dl", "dt",  "dd",         "tr",     "td", "th", "hr",
                                         "h1", "h2",  "h3",         "h4",     "h5", "h6", "poem"};

enum { BLOCK_COUNT = sizeof block_tags / sizeof block_tags[0] };

typedef struct {
    const char *bytes;
    size_t length;
    size_t position;
    tt_text_buffer *output;
    bool no_closer[DROPPED_COUNT]; /* no closing tag of this element lies ahead */
    bool no_nowiki_closer;
} tag_scanner;

typedef struct {
    char name[16]; /* in lower case */
    bool closing, self_closing;
    size_t end; /* just after ">" */
} tag;

/* Reads the tag at `position`, which holds "<". A "<" inside it means that it is none. */
static bool read_tag(const tag_scanner *scanner, size_t position, tag *found)
{
    const char *bytes = scanner->bytes;
    size_t i = position + 1;
    found->closing = i < scanner->length && bytes[i] == '/';
    i += found->closing;
    size_t name_length = 0;
    while (i < scanner->length && isalnum((unsigned char)bytes[i]) &&
           name_length < sizeof found->name - 1) {
        found->name[name_length++] = (char)tolower((unsigned char)bytes[i++]);
    }
    found->name[name_length] = '\0';
    if (name_length == 0 || !isalpha((unsigned char)found->name[0]) || i == scanner->length ||
        strchr(" \t\n/>", bytes[i]) == NULL || bytes[i] == '\0') {
        return false;
    }
    while (i < scanner->length && bytes[i] != '>' && bytes[i] != '<') {
        i++;
    }
    if (i == scanner->length || bytes[i] == '<') {
        return false;
    }
    found->self_closing = bytes[i - 1] == '/';
    found->end = i + 1;
    return true;
}

static int find_name(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

/* The position of the next "</name" from `from` on, or the length of the page if there is none. */
static size_t find_closer(const tag_scanner *scanner, size_t from, const char *name)
{
    size_t name_length = strlen(name);
    while (from < scanner->length) {
        const char *found = memchr(scanner->bytes + from, '<', scanner->length - from);
        if (found == NULL) {
            break;
        }
        size_t at = (size_t)(found - scanner->bytes);
        if (scanner->length - at > name_length + 2 && found[1] == '/' &&
            strncasecmp(found + 2, name, name_length) == 0 &&
            !isalnum((unsigned char)found[2 + name_length])) {
            return at;
        }
        from = at + 1;
    }
    return scanner->length;
}

/* Just after the closing tag that stands at `position`. */
static size_t skip_closer(const tag_scanner *scanner, size_t position)
{
    tag closer;
    return read_tag(scanner, position, &closer) ? closer.end : position + 2;
}

static bool at_line_start(const tt_text_buffer *output)
{
    return output->length == 0 || output->bytes[output->length - 1] == '\n';
}

/* A comment that has a line to itself takes the line with it. */
static void skip_comment(tag_scanner *scanner)
{
    size_t i = scanner->position + 4;
    while (i + 3 <= scanner->length && memcmp(scanner->bytes + i, "-->", 3) != 0) {
        const char *dash = memchr(scanner->bytes + i + 1, '-', scanner->length - i - 1);
        i = dash != NULL ? (size_t)(dash - scanner->bytes) : scanner->length;
    }
    i = i + 3 <= scanner->length ? i + 3 : scanner->length;
    if (at_line_start(scanner->output) && i < scanner->length && scanner->bytes[i] == '\n') {
        i++;
    }
    scanner->position = i;
}

void tt_wiki_append_escaped(tt_text_buffer *output, char byte)
{
    const char *found = strchr(TT_WIKI_ESCAPED, byte);
    if (found != NULL && *found != '\0') {
        byte = (char)(TT_WIKI_ESCAPE + (found - TT_WIKI_ESCAPED));
    }
    tt_text_buffer_append_byte(output, byte);
}

static void skip_nowiki(tag_scanner *scanner, const tag *opener)
{
    size_t closer = scanner->length;
    if (!scanner->no_nowiki_closer) {
        closer = find_closer(scanner, opener->end, "nowiki");
        scanner->no_nowiki_closer = closer == scanner->length;
    }
    scanner->position = opener->end;
    if (closer < scanner->length) {
        for (size_t i = opener->end; i < closer; i++) {
            tt_wiki_append_escaped(scanner->output, scanner->bytes[i]);
        }
        scanner->position = skip_closer(scanner, closer);
    }
}

/* Skips to behind the element's closing tag; without one, only the opening tag goes. A formula
 * inside a line leaves its plain form, so that the sentence around it keeps its sense. */
static void skip_element(tag_scanner *scanner, const tag *opener, int element)
{
    scanner->position = opener->end;
    if (opener->closing || opener->self_closing || scanner->no_closer[element]) {
        return;
    }
    size_t closer = find_closer(scanner, opener->end, opener->name);
    if (closer == scanner->length) {
        scanner->no_closer[element] = true;
        return;
    }
    const tt_text_buffer *output = scanner->output;
    bool displayed = at_line_start(output) || output->bytes[output->length - 1] == ':';
    if (strcmp(opener->name, "math") == 0 && !displayed) {
        tt_wiki_render_formula(scanner->bytes + opener->end, closer - opener->end, scanner->output);
    }
    scanner->position = skip_closer(scanner, closer);
}

static void handle_tag(tag_scanner *scanner)
{
    tag found;
    if (scanner->length - scanner->position >= 4 &&
        memcmp(scanner->bytes + scanner->position, "<!--", 4) == 0) {
        skip_comment(scanner);
        return;
    }
    if (!read_tag(scanner, scanner->position, &found)) {
        tt_text_buffer_append_byte(scanner->output, '<');
        scanner->position++;
        return;
    }
    int element = find_name(dropped_elements, DROPPED_COUNT, found.name);
    if (strcmp(found.name, "nowiki") == 0 && !found.closing && !found.self_closing) {
        skip_nowiki(scanner, &found);
    } else if (element >= 0) {
        skip_element(scanner, &found, element);
    } else {
        if (strcmp(found.name, "br") == 0) {
            tt_text_buffer_append(scanner->output, " ", at_line_start(scanner->output) ? 0 : 1);
        } else if (find_name(block_tags, BLOCK_COUNT, found.name) >= 0) {
            tt_text_buffer_append(scanner->output, "\n\n", 2);
        }
        scanner->position = found.end;
    }
}

size_t tt_wiki_after_removal(const tt_text_buffer *input, size_t i, const tt_text_buffer *output)
{
    if (at_line_start(output)) {
        while (i < input->length && input->bytes[i] == ' ') {
            i++;
        }
    }
    return i;
}

void tt_wiki_remove_tags(const tt_text_buffer *input, tt_text_buffer *output)
{
    tag_scanner scanner = {.bytes = input->bytes, .length = input->length, .output = output};
    while (scanner.position < scanner.length) {
        const char *start = scanner.bytes + scanner.position;
        const char *found = memchr(start, '<', scanner.length - scanner.position);
        size_t plain = found != NULL ? (size_t)(found - start) : scanner.length - scanner.position;
        tt_text_buffer_append(output, start, plain);
        scanner.position += plain;
        if (found != NULL) {
            size_t length = output->length;
            handle_tag(&scanner);
            if (output->length == length) {
                scanner.position = tt_wiki_after_removal(input, scanner.position, output);
            }
        }
    }
}

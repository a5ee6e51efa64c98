#include "data/wiki_passes.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

/* Links inside captions inside captions: deeper ones are taken as plain text, which keeps the time
 * linear. */
enum { DEEPEST_LINK = 64 };

typedef struct {
    size_t start; /* of the content, in the output */
    size_t bar;   /* of its first "|", in the output; SIZE_MAX: none yet */
} open_link;

typedef struct {
    const tt_text_buffer *input;
    const tt_wiki_markup_options *options;
    tt_text_buffer *output;
    open_link stack[DEEPEST_LINK];
    size_t depth;
    size_t next_bracket; /* the first "]" or line end at or after the last place asked for */
    size_t label_end;    /* the "]" that ends the external link being read; SIZE_MAX: none */
} link_scanner;

static bool same_name(const char *name, const char *bytes, size_t length)
{
    if (strlen(name) != length) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        int byte = bytes[i] == '_' ? ' ' : (unsigned char)bytes[i];
        if (tolower(byte) != tolower((unsigned char)name[i])) {
            return false;
        }
    }
    return true;
}

static bool is_language_code(const char *bytes, size_t length)
{
    size_t first = 0;
    while (first < length && islower((unsigned char)bytes[first])) {
        first++;
    }
    bool plain = (first == 2 || first == 3) && first == length;
    bool variant = first >= 2 && first < length && bytes[first] == '-';
    return plain || variant || same_name("simple", bytes, length);
}

/* Whether a link to this target shows nothing where it stands. */
static bool is_dropped_target(const link_scanner *scanner, const char *target, size_t length)
{
    enum { LONGEST_PREFIX = 64 };
    static const char *const english[] = {"file", "image", "media", "category"};
    while (length > 0 && isspace((unsigned char)*target)) {
        target++;
        length--;
    }
    const char *colon = memchr(target, ':', length < LONGEST_PREFIX ? length : LONGEST_PREFIX);
    if (colon == NULL || colon == target) {
        return false;
    }
    size_t prefix = (size_t)(colon - target);
    while (prefix > 0 && target[prefix - 1] == ' ') {
        prefix--;
    }
    for (size_t i = 0; i < sizeof english / sizeof english[0]; i++) {
        if (same_name(english[i], target, prefix)) {
            return true;
        }
    }
    for (int i = 0; i < scanner->options->dropped_namespace_count; i++) {
        if (same_name(scanner->options->dropped_namespaces[i], target, prefix)) {
            return true;
        }
    }
    return is_language_code(target, prefix);
}

/* Replaces the innermost link by what it shows. */
static void close_link(link_scanner *scanner)
{
    tt_text_buffer *output = scanner->output;
    open_link link = scanner->stack[--scanner->depth];
    size_t target_end = link.bar != SIZE_MAX ? link.bar : output->length;
    if (is_dropped_target(scanner, output->bytes + link.start, target_end - link.start)) {
        output->length = link.start;
        return;
    }
    size_t shown = link.bar != SIZE_MAX ? link.bar + 1 : link.start;
    if (link.bar == SIZE_MAX && shown < output->length && output->bytes[shown] == ':') {
        shown++;
    }
    memmove(output->bytes + link.start, output->bytes + shown, output->length - shown);
    output->length -= shown - link.start;
}

/* At the end of a paragraph what was opened in it is plain text, except the caption of a file. */
static void end_paragraph(link_scanner *scanner)
{
    while (scanner->depth > 0) {
        open_link top = scanner->stack[scanner->depth - 1];
        if (top.bar != SIZE_MAX &&
            is_dropped_target(scanner, scanner->output->bytes + top.start, top.bar - top.start)) {
            return;
        }
        scanner->depth--;
    }
}

static size_t address_scheme(const char *bytes, size_t length)
{
    static const char *const schemes[] = {"http://", "https://", "ftp://", "//",
                                          "mailto:", "news:",    "irc://"};
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        size_t size = strlen(schemes[i]);
        if (length >= size && strncasecmp(bytes, schemes[i], size) == 0) {
            return size;
        }
    }
    return 0;
}

/* The first "]" on the line from `from` on, or SIZE_MAX. */
static size_t find_bracket(link_scanner *scanner, size_t from)
{
    const tt_text_buffer *input = scanner->input;
    if (scanner->next_bracket < from) {
        size_t i = from;
        while (i < input->length && input->bytes[i] != ']' && input->bytes[i] != '\n') {
            i++;
        }
        scanner->next_bracket = i;
    }
    size_t found = scanner->next_bracket;
    return found < input->length && input->bytes[found] == ']' ? found : SIZE_MAX;
}

/* At "[": an external link loses its address and keeps its label. */
static size_t open_external(link_scanner *scanner, size_t i)
{
    const tt_text_buffer *input = scanner->input;
    size_t scheme = address_scheme(input->bytes + i + 1, input->length - i - 1);
    size_t close = scheme > 0 ? find_bracket(scanner, i + 1) : SIZE_MAX;
    if (close == SIZE_MAX) {
        tt_text_buffer_append_byte(scanner->output, '[');
        return i + 1;
    }
    size_t label = i + 1 + scheme;
    while (label < close && input->bytes[label] != ' ') {
        label++;
    }
    if (label == close) {
        return close + 1;
    }
    scanner->label_end = close;
    return label + 1;
}

static size_t scan_step(link_scanner *scanner, size_t i)
{
    const tt_text_buffer *input = scanner->input;
    char byte = input->bytes[i];
    bool twice = i + 1 < input->length && input->bytes[i + 1] == byte;
    if (i == scanner->label_end) {
        scanner->label_end = SIZE_MAX;
        return i + 1;
    }
    if (byte == '[' && twice) {
        if (scanner->depth < DEEPEST_LINK) {
            scanner->stack[scanner->depth++] = (open_link){scanner->output->length, SIZE_MAX};
        }
        return i + 2;
    }
    if (byte == '[') {
        return open_external(scanner, i);
    }
    if (byte == ']' && twice) {
        if (scanner->depth > 0) {
            close_link(scanner);
        }
        return tt_wiki_after_removal(input, i + 2, scanner->output);
    }
    if (byte == '|' && scanner->depth > 0 && scanner->stack[scanner->depth - 1].bar == SIZE_MAX) {
        scanner->stack[scanner->depth - 1].bar = scanner->output->length;
    }
    if (byte == '\n' && twice) {
        end_paragraph(scanner);
    }
    tt_text_buffer_append_byte(scanner->output, byte);
    return i + 1;
}

void tt_wiki_resolve_links(const tt_text_buffer *input, const tt_wiki_markup_options *options,
                           tt_text_buffer *output)
{
    link_scanner scanner = {
        .input = input, .options = options, .output = output, .label_end = SIZE_MAX};
    /* Reserved at once: closing a link looks into the output. */
    if (!tt_text_buffer_reserve(output, input->length)) {
        return;
    }
    size_t i = 0;
    while (i < input->length) {
        i = scan_step(&scanner, i);
    }
}

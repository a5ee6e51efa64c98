#include "data/wiki_passes.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What is longer between two braces is no part of a sentence; it also bounds the work on nested
 * ones. */
enum { EXPANSION_LIMIT = 1000 };

typedef enum { OPEN_TEMPLATE = 2, OPEN_PARAMETER = 3, OPEN_TABLE } opener_kind;

typedef struct {
    opener_kind kind; /* for braces: their number */
    size_t start;     /* of the content, in the output */
} opener;

typedef struct {
    const tt_text_buffer *input;
    tt_text_buffer *output, expansion;
    opener *stack;
    size_t depth, capacity;
    size_t open_braces, open_tables; /* in the stack */
} template_scanner;

static void push(template_scanner *scanner, opener_kind kind)
{
    if (scanner->depth == scanner->capacity) {
        size_t capacity = scanner->capacity ? 2 * scanner->capacity : 64;
        opener *stack = realloc(scanner->stack, capacity * sizeof *stack);
        if (stack == NULL) {
            scanner->output->failed = true;
            return;
        }
        scanner->stack = stack;
        scanner->capacity = capacity;
    }
    scanner->stack[scanner->depth++] = (opener){kind, scanner->output->length};
    if (kind == OPEN_TABLE) {
        scanner->open_tables++;
    } else {
        scanner->open_braces++;
    }
}

static opener pop(template_scanner *scanner)
{
    opener top = scanner->stack[--scanner->depth];
    if (top.kind == OPEN_TABLE) {
        scanner->open_tables--;
    } else {
        scanner->open_braces--;
    }
    return top;
}

/* Drops the content of the innermost template, or puts in its place what the template shows. */
static void close_template(template_scanner *scanner, const opener *top)
{
    tt_text_buffer *output = scanner->output;
    size_t length = output->length - top->start;
    scanner->expansion.length = 0;
    if (top->kind == OPEN_TEMPLATE && length <= EXPANSION_LIMIT) {
        tt_wiki_expand_template(output->bytes + top->start, length, &scanner->expansion);
    }
    output->length = top->start;
    tt_text_buffer_append(output, scanner->expansion.bytes, scanner->expansion.length);
}

static size_t count_run(const tt_text_buffer *input, size_t i, char byte)
{
    size_t count = 0;
    while (i + count < input->length && input->bytes[i + count] == byte) {
        count++;
    }
    return count;
}

/* A run of opening braces, seen as templates from the outside in and a parameter where three are
 * left. */
static size_t open_braces(template_scanner *scanner, size_t i)
{
    size_t count = count_run(scanner->input, i, '{');
    size_t left = count;
    while (left >= 2) {
        opener_kind kind = left == 3 ? OPEN_PARAMETER : OPEN_TEMPLATE;
        push(scanner, kind);
        left -= kind;
    }
    if (count == 1) {
        tt_text_buffer_append_byte(scanner->output, '{');
    }
    return i + count;
}

static size_t close_braces(template_scanner *scanner, size_t i)
{
    size_t count = count_run(scanner->input, i, '}');
    size_t left = count;
    while (left >= 2 && scanner->open_braces > 0) {
        opener top = pop(scanner);
        if (top.kind == OPEN_TABLE) {
            scanner->output->length = top.start;
            continue;
        }
        left -= left > (size_t)top.kind ? (size_t)top.kind : left;
        close_template(scanner, &top);
    }
    if (count == 1) {
        tt_text_buffer_append_byte(scanner->output, '}');
    }
    return tt_wiki_after_removal(scanner->input, i + count, scanner->output);
}

static void close_table(template_scanner *scanner)
{
    opener top;
    do {
        top = pop(scanner);
    } while (top.kind != OPEN_TABLE);
    scanner->output->length = top.start;
}

/* Whether only spaces and indentation stand before `i` on its line. */
static bool at_line_start(const tt_text_buffer *input, size_t i)
{
    enum { DEEPEST_INDENT = 32 };
    for (size_t back = 0; back < DEEPEST_INDENT; back++) {
        if (i == back || input->bytes[i - back - 1] == '\n') {
            return true;
        }
        if (strchr(" \t:", input->bytes[i - back - 1]) == NULL) {
            return false;
        }
    }
    return false;
}

/* The byte at `i`, or 0 behind the end. */
static char byte_at(const tt_text_buffer *input, size_t i)
{
    if (i >= input->length) {
        return '\0';
    }
    return input->bytes[i];
}

static size_t scan_step(template_scanner *scanner, size_t i)
{
    const tt_text_buffer *input = scanner->input;
    char byte = byte_at(input, i);
    char next = byte_at(input, i + 1);
    char after = byte_at(input, i + 2);
    if (byte == '{' && next == '|' && after != '}' && at_line_start(input, i)) {
        push(scanner, OPEN_TABLE);
        return i + 2;
    }
    if (byte == '|' && next == '}' && after != '}' && scanner->open_tables > 0 &&
        at_line_start(input, i)) {
        close_table(scanner);
        return i + 2;
    }
    if (byte == '{') {
        return open_braces(scanner, i);
    }
    if (byte == '}') {
        return close_braces(scanner, i);
    }
    tt_text_buffer_append_byte(scanner->output, byte);
    return i + 1;
}

void tt_wiki_remove_templates(const tt_text_buffer *input, tt_text_buffer *output)
{
    template_scanner scanner = {.input = input, .output = output};
    size_t i = 0;
    while (i < input->length && !output->failed) {
        size_t plain = i;
        while (plain < input->length && strchr("{|}", input->bytes[plain]) == NULL) {
            plain++;
        }
        tt_text_buffer_append(output, input->bytes + i, plain - i);
        i = plain < input->length ? scan_step(&scanner, plain) : plain;
    }
    free(scanner.stack);
    tt_text_buffer_free(&scanner.expansion);
}

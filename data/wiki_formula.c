#include "data/wiki_passes.h"

#include <ctype.h>
#include <string.h>

/* A longer formula is no part of a sentence. */
enum { FORMULA_LIMIT = 80, LONGEST_COMMAND = 16 };

typedef struct {
    const char *name, *text;
} command;

/* Commands that do not have the name of an HTML entity; an empty text is for those that only shape.
 */
static const command commands[] = {
    {"approx", "\xE2\x89\x88"},
    {"bar", ""},
    {"boldsymbol", ""},
    {"cdot", "\xC2\xB7"},
    {"cdots", "..."},
    {"cos", "cos"},
    {"displaystyle", ""},
    {"dots", "..."},
    {"epsilon", "\xCE\xB5"},
    {"exp", "exp"},
    {"geq", "\xE2\x89\xA5"},
    {"hat", ""},
    {"in", "\xE2\x88\x88"},
    {"infty", "\xE2\x88\x9E"},
    {"ldots", "..."},
    {"left", ""},
    {"leq", "\xE2\x89\xA4"},
    {"lim", "lim"},
    {"ln", "ln"},
    {"log", "log"},
    {"mathbb", ""},
    {"mathbf", ""},
    {"mathcal", ""},
    {"mathit", ""},
    {"mathrm", ""},
    {"max", "max"},
    {"min", "min"},
    {"mod", "mod"},
    {"neq", "\xE2\x89\xA0"},
    {"operatorname", ""},
    {"pm", "\xC2\xB1"},
    {"quad", " "},
    {"right", ""},
    {"rightarrow", "\xE2\x86\x92"},
    {"scriptstyle", ""},
    {"sim", "~"},
    {"sin", "sin"},
    {"tan", "tan"},
    {"text", ""},
    {"textstyle", ""},
    {"tilde", ""},
    {"to", "\xE2\x86\x92"},
    {"varepsilon", "\xCE\xB5"},
    {"varphi", "\xCF\x86"},
    {"vec", ""},
};

/* A command after its backslash; false if it is not known. */
static bool append_command(tt_text_buffer *output, const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strlen(commands[i].name) == length && memcmp(commands[i].name, name, length) == 0) {
            tt_text_buffer_append(output, commands[i].text, strlen(commands[i].text));
            return true;
        }
    }
    int code_point = tt_html_entity(name, length);
    if (code_point >= 0x80) {
        tt_text_buffer_append_code_point(output, code_point);
    }
    return code_point >= 0x80;
}

bool tt_wiki_render_formula(const char *bytes, size_t length, tt_text_buffer *output)
{
    size_t start = output->length;
    if (length > FORMULA_LIMIT) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        char byte = bytes[i];
        if (byte == '\\' && i + 1 < length && isalpha((unsigned char)bytes[i + 1])) {
            size_t end = i + 1;
            while (end < length && end < i + LONGEST_COMMAND &&
                   isalpha((unsigned char)bytes[end])) {
                end++;
            }
            if (!append_command(output, bytes + i + 1, end - i - 1)) {
                output->length = start;
                return false;
            }
            i = end - 1;
        } else if (byte == '\\') {
            i++;
            tt_text_buffer_append_byte(output, ' ');
        } else if (byte == '~' || byte == '\n') {
            tt_text_buffer_append_byte(output, ' ');
        } else if (strchr("{}_", byte) == NULL) {
            tt_wiki_append_escaped(output, byte);
        }
    }
    return true;
}

#include "data/wiki_passes.h"

#include <ctype.h>
#include <string.h>

enum { MOST_ARGUMENTS = 12, LONGEST_NAME = 32 };

typedef struct {
    const char *bytes;
    size_t length;
} slice;

typedef struct {
    slice name;
    slice arguments[MOST_ARGUMENTS]; /* the unnamed ones, trimmed; number i at [i - 1] */
    int count;
} template_call;

typedef enum {
    SHOW_ARGUMENT,   /* one argument */
    SHOW_LAST,       /* the last argument */
    SHOW_JOINED,     /* all arguments without space between */
    SHOW_TEXT,       /* the same text always */
    SHOW_WITH_NAME,  /* the template's name and one argument: "USS Enterprise" */
    SHOW_FRACTION,   /* "1/2" or "3 1/2" */
    SHOW_QUANTITY,   /* a number or a range with its unit */
    SHOW_DATE,       /* "As of June 2009" */
    SHOW_PARAGRAPHS, /* one argument, as a paragraph */
} display;

typedef struct {
    const char *name; /* in lower case */
    display display;
    int argument;
    const char *text; /* SHOW_TEXT */
} inline_template;

static const inline_template inline_templates[] = {
    {"'", SHOW_TEXT, 0, "'"},
    {"'s", SHOW_TEXT, 0, "'s"},
    {"!", SHOW_TEXT, 0, "|"},
    {"=", SHOW_TEXT, 0, "="},
    {"abbr", SHOW_ARGUMENT, 1, NULL},
    {"angbr", SHOW_ARGUMENT, 1, NULL},
    {"as of", SHOW_DATE, 0, NULL},
    {"big", SHOW_ARGUMENT, 1, NULL},
    {"blockquote", SHOW_PARAGRAPHS, 1, NULL},
    {"c.", SHOW_WITH_NAME, 1, NULL},
    {"chem", SHOW_JOINED, 0, NULL},
    {"chem2", SHOW_ARGUMENT, 1, NULL},
    {"circa", SHOW_WITH_NAME, 1, NULL},
    {"convert", SHOW_QUANTITY, 0, NULL},
    {"cquote", SHOW_PARAGRAPHS, 1, NULL},
    {"cvt", SHOW_QUANTITY, 0, NULL},
    {"dash", SHOW_TEXT, 0, " \xE2\x80\x93 "},
    {"em", SHOW_ARGUMENT, 1, NULL},
    {"flag", SHOW_ARGUMENT, 1, NULL},
    {"flagcountry", SHOW_ARGUMENT, 1, NULL},
    {"frac", SHOW_FRACTION, 0, NULL},
    {"fraction", SHOW_FRACTION, 0, NULL},
    {"gaps", SHOW_JOINED, 0, NULL},
    {"hms", SHOW_WITH_NAME, 1, NULL},
    {"ill", SHOW_ARGUMENT, 1, NULL},
    {"interlanguage link", SHOW_ARGUMENT, 1, NULL},
    {"keypress", SHOW_ARGUMENT, 1, NULL},
    {"lang", SHOW_ARGUMENT, 2, NULL},
    {"larger", SHOW_ARGUMENT, 1, NULL},
    {"linktext", SHOW_JOINED, 0, NULL},
    {"math", SHOW_ARGUMENT, 1, NULL},
    {"mdash", SHOW_TEXT, 0, "\xE2\x80\x94"},
    {"mv", SHOW_WITH_NAME, 1, NULL},
    {"mvar", SHOW_ARGUMENT, 1, NULL},
    {"nbsp", SHOW_TEXT, 0, " "},
    {"ndash", SHOW_TEXT, 0, "\xE2\x80\x93"},
    {"nihongo", SHOW_ARGUMENT, 1, NULL},
    {"nobr", SHOW_ARGUMENT, 1, NULL},
    {"nobreak", SHOW_ARGUMENT, 1, NULL},
    {"not a typo", SHOW_JOINED, 0, NULL},
    {"nowrap", SHOW_ARGUMENT, 1, NULL},
    {"nts", SHOW_ARGUMENT, 1, NULL},
    {"num", SHOW_ARGUMENT, 1, NULL},
    {"pipe", SHOW_TEXT, 0, "|"},
    {"quotation", SHOW_PARAGRAPHS, 1, NULL},
    {"quote", SHOW_PARAGRAPHS, 1, NULL},
    {"rms", SHOW_WITH_NAME, 1, NULL},
    {"sc", SHOW_ARGUMENT, 1, NULL},
    {"sfrac", SHOW_FRACTION, 0, NULL},
    {"small", SHOW_ARGUMENT, 1, NULL},
    {"smallcaps", SHOW_ARGUMENT, 1, NULL},
    {"smaller", SHOW_ARGUMENT, 1, NULL},
    {"snd", SHOW_TEXT, 0, " \xE2\x80\x93 "},
    {"spaced ndash", SHOW_TEXT, 0, " \xE2\x80\x93 "},
    {"ss", SHOW_WITH_NAME, 1, NULL},
    {"strong", SHOW_ARGUMENT, 1, NULL},
    {"sub", SHOW_ARGUMENT, 1, NULL},
    {"sup", SHOW_ARGUMENT, 1, NULL},
    {"tooltip", SHOW_ARGUMENT, 1, NULL},
    {"transl", SHOW_LAST, 0, NULL},
    {"transliteration", SHOW_LAST, 0, NULL},
    {"uss", SHOW_WITH_NAME, 1, NULL},
    {"val", SHOW_ARGUMENT, 1, NULL},
    {"vanchor", SHOW_ARGUMENT, 1, NULL},
    {"visible anchor", SHOW_ARGUMENT, 1, NULL},
};

static slice trim(slice text)
{
    while (text.length > 0 && isspace((unsigned char)text.bytes[0])) {
        text.bytes++;
        text.length--;
    }
    while (text.length > 0 && isspace((unsigned char)text.bytes[text.length - 1])) {
        text.length--;
    }
    return text;
}

/* Up to the next bar that stands outside of links. */
static size_t argument_length(const char *bytes, size_t length)
{
    int depth = 0;
    for (size_t i = 0; i < length; i++) {
        bool twice = i + 1 < length && bytes[i + 1] == bytes[i];
        if (bytes[i] == '|' && depth == 0) {
            return i;
        }
        if (twice && (bytes[i] == '[' || bytes[i] == ']')) {
            depth += bytes[i] == '[' ? 1 : -(depth > 0);
            i++;
        }
    }
    return length;
}

/* Files an argument, "text", "1=text" or "name=text"; other names than numbers are left out. */
static void add_argument(template_call *call, slice argument)
{
    const char *equals = memchr(argument.bytes, '=', argument.length);
    if (equals == NULL) {
        if (call->count < MOST_ARGUMENTS) {
            call->arguments[call->count++] = trim(argument);
        }
        return;
    }
    slice name = trim((slice){argument.bytes, (size_t)(equals - argument.bytes)});
    if (name.length == 1 && name.bytes[0] >= '1' && name.bytes[0] <= '9') {
        int number = name.bytes[0] - '0';
        size_t skipped = (size_t)(equals + 1 - argument.bytes);
        call->arguments[number - 1] = trim((slice){equals + 1, argument.length - skipped});
        call->count = number > call->count ? number : call->count;
    }
}

static template_call parse_call(const char *content, size_t length)
{
    template_call call = {0};
    size_t size = argument_length(content, length);
    call.name = trim((slice){content, size});
    while (size < length) {
        content += size + 1;
        length -= size + 1;
        size = argument_length(content, length);
        add_argument(&call, (slice){content, size});
    }
    return call;
}

static void append_slice(tt_text_buffer *output, slice text)
{
    tt_text_buffer_append(output, text.bytes, text.length);
}

static void append_argument(tt_text_buffer *output, const template_call *call, int number)
{
    if (number >= 1 && number <= call->count) {
        append_slice(output, call->arguments[number - 1]);
    }
}

static bool is_range_word(slice text)
{
    static const char *const words[] = {"-", "\xE2\x80\x93", "to", "and", "or", "by", "x", "to(-)"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (text.length == strlen(words[i]) && memcmp(text.bytes, words[i], text.length) == 0) {
            return true;
        }
    }
    return false;
}

/* "5|km" is "5 km", "5|-|10|km" is "5-10 km", "5|ft|2|in" is "5 ft 2 in". */
static void append_quantity(tt_text_buffer *output, const template_call *call)
{
    append_argument(output, call, 1);
    int unit = 2;
    if (call->count >= 4 && is_range_word(call->arguments[1])) {
        bool dash = !isalpha((unsigned char)call->arguments[1].bytes[0]);
        tt_text_buffer_append(output, " ", dash ? 0 : 1);
        append_argument(output, call, 2);
        tt_text_buffer_append(output, " ", dash ? 0 : 1);
        append_argument(output, call, 3);
        unit = 4;
    }
    tt_text_buffer_append_byte(output, ' ');
    if (unit <= call->count && call->arguments[unit - 1].length == 4 &&
        memcmp(call->arguments[unit - 1].bytes, "sqmi", 4) == 0) {
        tt_text_buffer_append(output, "sq mi", 5);
    } else {
        append_argument(output, call, unit);
    }
}

static void append_fraction(tt_text_buffer *output, const template_call *call)
{
    int numerator = call->count == 3 ? 2 : 1;
    if (call->count == 3) {
        append_argument(output, call, 1);
        tt_text_buffer_append_byte(output, ' ');
    }
    if (call->count == 1) {
        tt_text_buffer_append(output, "1/", 2);
    }
    append_argument(output, call, numerator);
    if (call->count >= 2) {
        tt_text_buffer_append_byte(output, '/');
        append_argument(output, call, numerator + 1);
    }
}

/* "as of|2009|6|30" is "as of 30 June 2009". */
static void append_date(tt_text_buffer *output, const template_call *call)
{
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    append_slice(output, call->name);
    tt_text_buffer_append_byte(output, ' ');
    if (call->count >= 3) {
        append_argument(output, call, 3);
        tt_text_buffer_append_byte(output, ' ');
    }
    if (call->count >= 2) {
        slice month = call->arguments[1];
        int number = 0;
        for (size_t i = 0; i < month.length && i < 2; i++) {
            number =
                isdigit((unsigned char)month.bytes[i]) ? number * 10 + month.bytes[i] - '0' : 99;
        }
        if (number >= 1 && number <= 12) {
            tt_text_buffer_append(output, months[number - 1], strlen(months[number - 1]));
        } else {
            append_slice(output, month);
        }
        tt_text_buffer_append_byte(output, ' ');
    }
    append_argument(output, call, 1);
}

static void append_with_name(tt_text_buffer *output, const template_call *call, int number)
{
    bool circa = tolower((unsigned char)call->name.bytes[0]) == 'c';
    if (circa) {
        tt_text_buffer_append(output, "c.", 2);
    } else {
        append_slice(output, call->name);
    }
    tt_text_buffer_append_byte(output, ' ');
    append_argument(output, call, number);
}

static void append_display(tt_text_buffer *output, const template_call *call,
                           const inline_template *known)
{
    switch (known->display) {
    case SHOW_ARGUMENT:
        append_argument(output, call, known->argument);
        break;
    case SHOW_LAST:
        append_argument(output, call, call->count);
        break;
    case SHOW_JOINED:
        for (int i = 1; i <= call->count; i++) {
            append_argument(output, call, i);
        }
        break;
    case SHOW_TEXT:
        tt_text_buffer_append(output, known->text, strlen(known->text));
        break;
    case SHOW_WITH_NAME:
        append_with_name(output, call, known->argument);
        break;
    case SHOW_FRACTION:
        append_fraction(output, call);
        break;
    case SHOW_QUANTITY:
        append_quantity(output, call);
        break;
    case SHOW_DATE:
        append_date(output, call);
        break;
    case SHOW_PARAGRAPHS:
        tt_text_buffer_append(output, "\n\n", 2);
        append_argument(output, call, known->argument);
        tt_text_buffer_append(output, "\n\n", 2);
        break;
    }
}

void tt_wiki_expand_template(const char *content, size_t length, tt_text_buffer *output)
{
    static const char number_format[] = "formatnum:";
    char name[LONGEST_NAME];
    size_t name_length = argument_length(content, length);
    slice trimmed = trim((slice){content, name_length});
    size_t number_prefix = sizeof number_format - 1;
    if (trimmed.length > number_prefix &&
        memcmp(trimmed.bytes, number_format, number_prefix) == 0) {
        tt_text_buffer_append(output, trimmed.bytes + number_prefix,
                              trimmed.length - number_prefix);
        return;
    }
    if (trimmed.length == 0 || trimmed.length >= sizeof name) {
        return;
    }
    for (size_t i = 0; i < trimmed.length; i++) {
        int byte = trimmed.bytes[i] == '_' ? ' ' : (unsigned char)trimmed.bytes[i];
        name[i] = (char)tolower(byte);
    }
    name[trimmed.length] = '\0';
    if (strncmp(name, "lang-", 5) == 0) {
        template_call call = parse_call(content, length);
        append_argument(output, &call, 1);
        return;
    }
    for (size_t i = 0; i < sizeof inline_templates / sizeof inline_templates[0]; i++) {
        if (strcmp(inline_templates[i].name, name) == 0) {
            template_call call = parse_call(content, length);
            append_display(output, &call, &inline_templates[i]);
            return;
        }
    }
}

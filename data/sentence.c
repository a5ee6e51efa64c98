#include "data/sentence.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* In the order of strcmp. */
static const char *const abbreviations[] = {
    "Adm",    "Apr", "Aug",  "Bros", "Capt", "Cmdr", "Col", "Dec",    "Dr",   "Feb", "Fr",
    "Ft",     "Gen", "Gov",  "Hon",  "Jan",  "Jr",   "Jul", "Jun",    "Lt",   "Maj", "Mar",
    "Messrs", "Mr",  "Mrs",  "Ms",   "Mt",   "Nov",  "Oct", "Pres",   "Prof", "Rep", "Rev",
    "Sen",    "Sep", "Sept", "Sgt",  "Sr",   "St",   "al",  "approx", "ca",   "cf",  "dept",
    "ed",     "eds", "esp",  "est",  "lit",  "viz",  "vs"};

/* These only before a digit: "No. 5". */
static const char *const numbered[] = {"Fig", "No",  "Nos", "Vol", "ch", "fig",
                                       "no",  "nos", "p",   "pp",  "vol"};

static int compare_word(const void *word, const void *candidate)
{
    return strcmp(word, *(const char *const *)candidate);
}

static bool is_listed(const char *word, const char *const *list, size_t count)
{
    return bsearch(word, list, count, sizeof *list, compare_word) != NULL;
}

/* Whether the word before the full stop at `stop` shows that the sentence goes on behind it. */
static bool is_abbreviated(const char *text, size_t stop, bool digit_follows)
{
    enum { LONGEST = 8 };
    size_t start = stop;
    bool dotted = false;
    while (start > 0 && stop - start <= LONGEST &&
           (isalpha((unsigned char)text[start - 1]) || text[start - 1] == '.')) {
        start--;
        dotted = dotted || text[start] == '.';
    }
    size_t length = stop - start;
    if (length == 0 || length > LONGEST || (start > 0 && (unsigned char)text[start - 1] >= 0x80)) {
        return false;
    }
    if (length == 1 && isupper((unsigned char)text[start])) {
        return true;
    }
    if (dotted) {
        /* "U.S.", "i.e.", but not "end...": every second byte is a dot. */
        bool alternates = length % 2 == 1;
        for (size_t i = start; i < stop && alternates; i++) {
            alternates = (text[i] == '.') == ((i - start) % 2 == 1);
        }
        return alternates;
    }
    char word[LONGEST + 1];
    memcpy(word, text + start, length);
    word[length] = '\0';
    return is_listed(word, abbreviations, sizeof abbreviations / sizeof abbreviations[0]) ||
           (digit_follows && is_listed(word, numbered, sizeof numbered / sizeof numbered[0]));
}

static utf8proc_int32_t code_point_at(const char *text, size_t length, size_t i)
{
    utf8proc_int32_t code_point = -1;
    utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(length - i),
                     &code_point);
    return code_point;
}

static bool starts_sentence(utf8proc_int32_t code_point)
{
    if (code_point < 0) {
        return false;
    }
    switch (utf8proc_category(code_point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LO: /* scripts without case */
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PI:
        return true;
    default:
        return code_point == '"' || code_point == '\'';
    }
}

/* Just behind the closing marks and further stops that follow the stop at `i`. */
static size_t skip_closing(const char *text, size_t length, size_t i)
{
    while (i < length) {
        utf8proc_int32_t code_point = code_point_at(text, length, i);
        bool closing = code_point == '.' || code_point == '!' || code_point == '?' ||
                       code_point == '"' || code_point == '\'' || code_point == ')' ||
                       code_point == ']' || code_point == 0x2019 || code_point == 0x201D;
        if (!closing) {
            break;
        }
        i += code_point < 0x80 ? 1 : 3;
    }
    return i;
}

/* Where the sentence ends whose stop is at `i`; 0 if it goes on. */
static size_t end_at_stop(const char *text, size_t length, size_t i)
{
    size_t end = skip_closing(text, length, i + 1);
    size_t next = end;
    while (next < length && text[next] == ' ') {
        next++;
    }
    if (next == length) {
        return end;
    }
    if (next == end) {
        return 0;
    }
    if (!starts_sentence(code_point_at(text, length, next))) {
        return 0;
    }
    bool single_stop = text[i] == '.' && end == i + 1;
    if (single_stop && is_abbreviated(text, i, isdigit((unsigned char)text[next]))) {
        return 0;
    }
    return end;
}

static bool is_ideographic_stop(const char *text, size_t length, size_t i)
{
    static const char *const stops[] = {"\xE3\x80\x82", "\xEF\xBC\x81", "\xEF\xBC\x9F"};
    for (size_t k = 0; k < sizeof stops / sizeof stops[0]; k++) {
        if (length - i >= 3 && memcmp(text + i, stops[k], 3) == 0) {
            return true;
        }
    }
    return false;
}

static size_t cut(const char *text)
{
    for (size_t end = TT_SENTENCE_LIMIT; end > TT_SENTENCE_LIMIT / 2; end--) {
        if (text[end] == ' ') {
            return end;
        }
    }
    size_t end = TT_SENTENCE_LIMIT;
    while (((unsigned char)text[end] & 0xC0) == 0x80 && end > TT_SENTENCE_LIMIT - 4) {
        end--;
    }
    return end;
}

size_t tt_sentence_length(const char *text, size_t length)
{
    for (size_t i = 0; i < length && i < TT_SENTENCE_LIMIT; i++) {
        unsigned char byte = (unsigned char)text[i];
        size_t end = 0;
        if (byte == '.' || byte == '!' || byte == '?') {
            end = end_at_stop(text, length, i);
        } else if (byte >= 0xE3 && is_ideographic_stop(text, length, i)) {
            end = skip_closing(text, length, i + 3);
        }
        if (end > 0) {
            return end <= TT_SENTENCE_LIMIT ? end : cut(text);
        }
    }
    return length <= TT_SENTENCE_LIMIT ? length : cut(text);
}

#include "launch/report_text.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

static const char replacement[] = "\xEF\xBF\xBD";

/* What XML 1.0 allows. */
static bool is_allowed(utf8proc_int32_t character)
{
    return character == '\t' || character == '\n' ||
           (character >= 0x20 && character != 0xFFFE && character != 0xFFFF &&
            !(character >= 0x7F && character < 0xA0));
}

static void put_character(FILE *out, utf8proc_int32_t character, const char *bytes, size_t size)
{
    switch (character) {
    case '&':
        fputs("&amp;", out);
        break;
    case '<':
        fputs("&lt;", out);
        break;
    case '>':
        fputs("&gt;", out);
        break;
    case '"':
        fputs("&quot;", out);
        break;
    case '\'':
        fputs("&#39;", out);
        break;
    default:
        fwrite(bytes, 1, size, out);
        break;
    }
}

void tt_report_escape_bytes(FILE *out, const char *text, size_t size)
{
    while (size > 0) {
        utf8proc_int32_t character;
        utf8proc_ssize_t used =
            utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, &character);
        if (used <= 0 || !is_allowed(character)) {
            fputs(replacement, out);
            used = used <= 0 ? 1 : used;
        } else {
            put_character(out, character, text, (size_t)used);
        }
        text += used;
        size -= (size_t)used;
    }
}

void tt_report_escape(FILE *out, const char *text)
{
    tt_report_escape_bytes(out, text, strlen(text));
}

/* Puts commas between groups of three digits before the decimal point. */
static void group_digits(const char *digits, char text[TT_REPORT_NUMBER])
{
    size_t sign = digits[0] == '-', whole = strcspn(digits + sign, ".e"), used = 0;
    for (size_t i = 0; digits[i] != '\0' && used + 2 < TT_REPORT_NUMBER; i++) {
        text[used++] = digits[i];
        size_t left = sign + whole - 1 - i;
        if (i >= sign && i + 1 < sign + whole && left % 3 == 0) {
            text[used++] = ',';
        }
    }
    text[used] = '\0';
}

const char *tt_report_integer(double value, char text[TT_REPORT_NUMBER])
{
    char digits[32];
    if (!isfinite(value) || fabs(value) > 1e18) {
        return tt_report_real(value, text);
    }
    snprintf(digits, sizeof digits, "%.0f", value);
    group_digits(digits, text);
    return text;
}

const char *tt_report_real(double value, char text[TT_REPORT_NUMBER])
{
    char digits[32];
    double size = fabs(value);
    if (!isfinite(value)) {
        snprintf(text, TT_REPORT_NUMBER, "\xE2\x80\x93");
        return text;
    }
    if (size >= 1e15 || (size > 0 && size < 1e-2)) {
        snprintf(text, TT_REPORT_NUMBER, "%.4g", value);
        return text;
    }
    int places = size >= 1000 || size == 0 ? 0 : 3 - (int)floor(log10(size));
    snprintf(digits, sizeof digits, "%.*f", places, value);
    group_digits(digits, text);
    return text;
}

const char *tt_report_duration(double seconds, char text[TT_REPORT_NUMBER])
{
    if (!(seconds >= 0 && seconds < 1e12)) {
        return tt_report_real(NAN, text);
    }
    long long whole = (long long)(seconds + 0.5);
    if (whole < 60) {
        snprintf(text, TT_REPORT_NUMBER, seconds < 10 ? "%.1f s" : "%.0f s", seconds);
    } else if (whole < 3600) {
        snprintf(text, TT_REPORT_NUMBER, "%lld min %02lld s", whole / 60, whole % 60);
    } else if (whole < 86400) {
        snprintf(text, TT_REPORT_NUMBER, "%lld h %02lld min", whole / 3600, whole / 60 % 60);
    } else {
        snprintf(text, TT_REPORT_NUMBER, "%lld d %02lld h", whole / 86400, whole / 3600 % 24);
    }
    return text;
}

const char *tt_report_bytes(double bytes, char text[TT_REPORT_NUMBER])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    size_t unit = 0;
    if (!isfinite(bytes)) {
        return tt_report_real(bytes, text);
    }
    while (fabs(bytes) >= 999.5 && unit + 1 < sizeof units / sizeof *units) {
        bytes /= 1000;
        unit++;
    }
    snprintf(text, TT_REPORT_NUMBER, unit == 0 || bytes >= 99.95 ? "%.0f %s" : "%.1f %s", bytes,
             units[unit]);
    return text;
}

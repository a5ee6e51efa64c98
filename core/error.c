#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* File names and what stands in files may hold line breaks and what moves a terminal's cursor. */
static void keep_to_one_line(char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f) {
            *text = '?';
        }
    }
}

tt_status tt_error_set(tt_error *error, tt_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    keep_to_one_line(error->message);
    error->status = status;
    error->shared = false;
    return status;
}

tt_status tt_error_prefix(tt_error *error, const char *format, ...)
{
    char prefix[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    keep_to_one_line(prefix);

    char message[sizeof error->message];
    snprintf(message, sizeof message, "%s: %.*s", prefix, (int)(sizeof message - sizeof prefix - 3),
             error->message);
    memcpy(error->message, message, sizeof message);
    return error->status;
}

tt_status tt_error_append(tt_error *error, const char *format, ...)
{
    size_t used = strlen(error->message);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message + used, sizeof error->message - used, format, arguments);
    va_end(arguments);
    keep_to_one_line(error->message + used);
    return error->status;
}

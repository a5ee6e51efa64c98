#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

tt_status tt_error_set(tt_error *error, tt_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    error->status = status;
    return status;
}

tt_status tt_error_prefix(tt_error *error, const char *format, ...)
{
    char prefix[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);

    char message[sizeof error->message];
    size_t prefix_length = strlen(prefix);
    memcpy(message, prefix, prefix_length);
    snprintf(message + prefix_length, sizeof message - prefix_length, ": %s", error->message);
    memcpy(error->message, message, sizeof message);
    return error->status;
}

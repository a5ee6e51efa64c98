#include "data/text_buffer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

bool tt_text_buffer_reserve(tt_text_buffer *buffer, size_t extra)
{
    if (buffer->failed) {
        return false;
    }
    if (extra <= buffer->capacity - buffer->length) {
        return true;
    }
    size_t capacity = buffer->capacity ? buffer->capacity : 256;
    while (capacity - buffer->length < extra) {
        if (capacity > SIZE_MAX / 2) {
            buffer->failed = true;
            return false;
        }
        capacity *= 2;
    }
    char *bytes = realloc(buffer->bytes, capacity);
    if (bytes == NULL) {
        buffer->failed = true;
        return false;
    }
    buffer->bytes = bytes;
    buffer->capacity = capacity;
    return true;
}

void tt_text_buffer_append(tt_text_buffer *buffer, const char *bytes, size_t length)
{
    if (length > 0 && tt_text_buffer_reserve(buffer, length)) {
        memcpy(buffer->bytes + buffer->length, bytes, length);
        buffer->length += length;
    }
}

void tt_text_buffer_append_byte(tt_text_buffer *buffer, char byte)
{
    tt_text_buffer_append(buffer, &byte, 1);
}

void tt_text_buffer_append_code_point(tt_text_buffer *buffer, int code_point)
{
    utf8proc_uint8_t encoded[4];
    utf8proc_ssize_t length = utf8proc_encode_char(code_point, encoded);
    tt_text_buffer_append(buffer, (const char *)encoded, (size_t)length);
}

size_t tt_text_buffer_append_clean(tt_text_buffer *buffer, const char *bytes, size_t length,
                                   bool keep_line_feeds)
{
    static const char replacement[] = "\xEF\xBF\xBD";
    size_t replaced = 0;
    size_t start = 0; /* of the run that is fine as it is */
    size_t i = 0;
    if (length == 0) {
        return 0; /* where `bytes` may be NULL */
    }
    while (i < length) {
        unsigned char byte = (unsigned char)bytes[i];
        if ((byte >= 0x20 && byte < 0x7F) || (byte == '\n' && keep_line_feeds)) {
            i++;
            continue;
        }
        utf8proc_int32_t code_point = -1;
        utf8proc_ssize_t size = utf8proc_iterate((const utf8proc_uint8_t *)bytes + i,
                                                 (utf8proc_ssize_t)(length - i), &code_point);
        if (size > 0 && code_point >= 0xA0) {
            i += (size_t)size;
            continue;
        }
        tt_text_buffer_append(buffer, bytes + start, i - start);
        if (size > 0) {
            tt_text_buffer_append_byte(buffer, ' ');
            i += (size_t)size;
        } else {
            tt_text_buffer_append(buffer, replacement, sizeof replacement - 1);
            replaced++;
            i++;
        }
        start = i;
    }
    tt_text_buffer_append(buffer, bytes + start, length - start);
    return replaced;
}

void tt_text_buffer_free(tt_text_buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (tt_text_buffer){0};
}

/* A growing run of bytes. Memory failure is sticky: appending then does nothing, and who fills the
 * buffer asks once, at the end, whether it `failed`. */
#ifndef TT_DATA_TEXT_BUFFER_H
#define TT_DATA_TEXT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char *bytes;
    size_t length, capacity;
    bool failed; /* memory ran out; the content is incomplete */
} tt_text_buffer;

/* Makes room for `extra` further bytes; false if memory ran out. */
bool tt_text_buffer_reserve(tt_text_buffer *buffer, size_t extra);
void tt_text_buffer_append(tt_text_buffer *buffer, const char *bytes, size_t length);
void tt_text_buffer_append_byte(tt_text_buffer *buffer, char byte);
/* Appends one code point as UTF-8. */
void tt_text_buffer_append_code_point(tt_text_buffer *buffer, int code_point);
/* Appends text as clean UTF-8: every invalid byte becomes U+FFFD, every control character a space,
 * except line feeds where they are kept. Returns the number of bytes replaced by U+FFFD. */
size_t tt_text_buffer_append_clean(tt_text_buffer *buffer, const char *bytes, size_t length,
                                   bool keep_line_feeds);
void tt_text_buffer_free(tt_text_buffer *buffer);

#endif

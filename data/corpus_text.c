#include "data/corpus_reader.h"

#include <stdlib.h>
#include <string.h>

enum {
    DETECTION_SIZE = 1 << 16,
    LINE_LIMIT = 1 << 20, /* bytes; a longer line is read as several */
    BUFFER_SIZE = LINE_LIMIT + DETECTION_SIZE,
};

struct tt_text_reader {
    tt_byte_source *source;
    tt_corpus_format format;
    bool keep_headings;
    char *buffer; /* [BUFFER_SIZE], of which [start, end) is still to be read */
    size_t start, end;
    bool at_end;           /* the source has no more */
    bool continues;        /* the last line handed out was cut: the next goes on with it */
    tt_text_buffer joined; /* a WikiText line with its tokens joined */
    tt_text_buffer title;  /* of the WikiText document whose heading was just read */
    bool has_title;
    bool after_text; /* the last WikiText line was not blank: what follows is no heading */
};

typedef struct {
    const char *bytes;
    size_t length;
} text_line;

/* Fills the buffer as far as it goes, after moving what is left to its front. */
static tt_status fill_buffer(tt_text_reader *reader, tt_error *error)
{
    memmove(reader->buffer, reader->buffer + reader->start, reader->end - reader->start);
    reader->end -= reader->start;
    reader->start = 0;
    while (reader->end < BUFFER_SIZE && !reader->at_end) {
        size_t count = 0;
        TT_TRY(tt_byte_source_read(reader->source, reader->buffer + reader->end,
                                   BUFFER_SIZE - reader->end, &count, error));
        reader->end += count;
        reader->at_end = count == 0;
    }
    return TT_OK;
}

/* The next line without its end ("\n" or "\r\n"); `*found` is false at the end of the file. */
static tt_status next_line(tt_text_reader *reader, text_line *line, bool *found, tt_error *error)
{
    char *newline = memchr(reader->buffer + reader->start, '\n', reader->end - reader->start);
    if (newline == NULL && !reader->at_end) {
        TT_TRY(fill_buffer(reader, error));
        newline = memchr(reader->buffer, '\n', reader->end);
    }
    *found = reader->start < reader->end;
    if (!*found) {
        return TT_OK;
    }
    line->bytes = reader->buffer + reader->start;
    line->length = newline != NULL ? (size_t)(newline - line->bytes) : reader->end - reader->start;
    bool cut = line->length > LINE_LIMIT;
    if (cut) {
        line->length = LINE_LIMIT;
        while (line->length > LINE_LIMIT - 4 &&
               ((unsigned char)line->bytes[line->length] & 0xC0) == 0x80) {
            line->length--;
        }
    }
    reader->continues = cut;
    reader->start += line->length + (newline != NULL && !cut ? 1 : 0);
    if (!cut && line->length > 0 && line->bytes[line->length - 1] == '\r') {
        line->length--;
    }
    return TT_OK;
}

static text_line trim(text_line line)
{
    while (line.length > 0 && strchr(" \t", line.bytes[0]) != NULL && line.bytes[0] != '\0') {
        line.bytes++;
        line.length--;
    }
    while (line.length > 0 &&
           (line.bytes[line.length - 1] == ' ' || line.bytes[line.length - 1] == '\t')) {
        line.length--;
    }
    return line;
}

/* The level of a WikiText heading (" = = Career = = " has 2), 0 for any other line; `text` is then
 * what stands between the marks. Headings come after a blank line: elsewhere such a line is the
 * middle of a formula. */
static int heading_level(text_line line, text_line *text)
{
    line = trim(line);
    int level = 0;
    while (line.length >= 5 && line.bytes[0] == '=' && line.bytes[1] == ' ' &&
           line.bytes[line.length - 1] == '=' && line.bytes[line.length - 2] == ' ') {
        line.bytes += 2;
        line.length -= 4;
        level++;
    }
    *text = trim(line);
    return text->length > 0 ? level : 0;
}

static bool looks_like_wikitext(const char *bytes, size_t length)
{
    bool after_text = false;
    while (length > 0) {
        const char *newline = memchr(bytes, '\n', length);
        if (newline == NULL) {
            return false;
        }
        text_line line = {bytes, (size_t)(newline - bytes)};
        text_line title;
        bool spaced = line.length > 0 && line.bytes[0] == ' ';
        if (spaced && !after_text && heading_level(line, &title) == 1) {
            return true;
        }
        after_text = trim(line).length > 0;
        length -= line.length + 1;
        bytes = newline + 1;
    }
    return false;
}

static tt_status start_reading(tt_text_reader *reader, tt_error *error)
{
    static const char byte_order_mark[] = "\xEF\xBB\xBF";
    static const char dump[] = "<mediawiki";
    TT_TRY(fill_buffer(reader, error));
    if (reader->end >= 3 && memcmp(reader->buffer, byte_order_mark, 3) == 0) {
        reader->start = 3;
    }
    const char *bytes = reader->buffer + reader->start;
    size_t length = reader->end - reader->start;
    if (length >= sizeof dump && memcmp(bytes, dump, sizeof dump - 1) == 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected plain text, found a MediaWiki dump",
                            tt_byte_source_path(reader->source));
    }
    if (length > 0 && memchr(bytes, '\0', length < 512 ? length : 512) != NULL) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected UTF-8 text, found zero bytes in the first 512",
                            tt_byte_source_path(reader->source));
    }
    if (reader->format == TT_CORPUS_AUTOMATIC) {
        length = length < DETECTION_SIZE ? length : DETECTION_SIZE;
        reader->format = looks_like_wikitext(bytes, length) ? TT_CORPUS_WIKITEXT : TT_CORPUS_BLOCKS;
    }
    return TT_OK;
}

tt_status tt_text_reader_open(tt_byte_source *source, tt_corpus_format format, bool keep_headings,
                              tt_text_reader **reader, tt_error *error)
{
    *reader = calloc(1, sizeof **reader);
    if (*reader != NULL) {
        (*reader)->buffer = malloc(BUFFER_SIZE);
    }
    if (*reader == NULL || (*reader)->buffer == NULL) {
        tt_text_reader_close(reader);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory", tt_byte_source_path(source));
    }
    (*reader)->source = source;
    (*reader)->format = format;
    (*reader)->keep_headings = keep_headings;
    tt_status status = start_reading(*reader, error);
    if (status != TT_OK) {
        tt_text_reader_close(reader);
    }
    return status;
}

tt_corpus_format tt_text_reader_format(const tt_text_reader *reader)
{
    return reader->format;
}

static bool is_full(const tt_document_builder *builder)
{
    return builder->text.length >= TT_CORPUS_DOCUMENT_LIMIT - LINE_LIMIT;
}

static tt_status next_block(tt_text_reader *reader, tt_document_builder *builder, bool *found,
                            tt_error *error)
{
    *found = false;
    for (;;) {
        text_line line;
        bool more = false;
        TT_TRY(next_line(reader, &line, &more, error));
        if (!more || (*found && trim(line).length == 0)) {
            return TT_OK;
        }
        tt_document_builder_add_line(builder, line.bytes, line.length);
        *found = builder->line_count > 0;
        if (is_full(builder)) {
            return TT_OK;
        }
    }
}

static tt_status next_single_line(tt_text_reader *reader, tt_document_builder *builder, bool *found,
                                  tt_error *error)
{
    *found = false;
    bool more = true;
    while (more && !is_full(builder) && (builder->line_count == 0 || reader->continues)) {
        text_line line;
        TT_TRY(next_line(reader, &line, &more, error));
        if (more) {
            tt_document_builder_add_line(builder, line.bytes, line.length);
        }
        *found = builder->line_count > 0;
    }
    return TT_OK;
}

/* Joins the tokens that WikiText splits: "co @-@ stars" to "co-stars", "1 @,@ 000" to "1,000". */
static void join_tokens(tt_text_buffer *joined, text_line line)
{
    joined->length = 0;
    size_t i = 0;
    size_t start = 0;
    while (i + 5 <= line.length) {
        const char *at = line.bytes + i;
        if (at[0] == ' ' && at[1] == '@' && strchr("-,.", at[2]) != NULL && at[2] != '\0' &&
            at[3] == '@' && at[4] == ' ') {
            tt_text_buffer_append(joined, line.bytes + start, i - start);
            tt_text_buffer_append_byte(joined, at[2]);
            i += 5;
            start = i;
        } else {
            i++;
        }
    }
    tt_text_buffer_append(joined, line.bytes + start, line.length - start);
}

static void add_wikitext_line(tt_text_reader *reader, tt_document_builder *builder, text_line line)
{
    join_tokens(&reader->joined, line);
    tt_document_builder_add_line(builder, reader->joined.bytes, reader->joined.length);
}

static tt_status next_article(tt_text_reader *reader, tt_document_builder *builder, bool *found,
                              tt_error *error)
{
    if (reader->has_title) {
        tt_document_builder_set_title(builder, reader->title.bytes, reader->title.length);
    }
    *found = reader->has_title;
    reader->has_title = false;
    for (;;) {
        text_line line, text;
        bool more = false;
        TT_TRY(next_line(reader, &line, &more, error));
        if (!more) {
            break;
        }
        int level = reader->after_text ? 0 : heading_level(line, &text);
        reader->after_text = trim(line).length > 0;
        if (level == 1) {
            join_tokens(&reader->joined, text);
            reader->title.length = 0;
            tt_text_buffer_append(&reader->title, reader->joined.bytes, reader->joined.length);
            reader->has_title = true;
            if (*found) {
                break;
            }
            tt_document_builder_set_title(builder, reader->title.bytes, reader->title.length);
            reader->has_title = false;
            *found = true;
        } else if (level == 0) {
            add_wikitext_line(reader, builder, line);
        } else if (reader->keep_headings) {
            add_wikitext_line(reader, builder, text);
        }
        *found = *found || builder->line_count > 0;
        if (is_full(builder)) {
            break;
        }
    }
    if (reader->joined.failed || reader->title.failed) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for a line",
                            tt_byte_source_path(reader->source));
    }
    return TT_OK;
}

tt_status tt_text_reader_next(tt_text_reader *reader, tt_document_builder *builder, bool *found,
                              tt_error *error)
{
    switch (reader->format) {
    case TT_CORPUS_LINES:
        return next_single_line(reader, builder, found, error);
    case TT_CORPUS_WIKITEXT:
        return next_article(reader, builder, found, error);
    default:
        return next_block(reader, builder, found, error);
    }
}

void tt_text_reader_close(tt_text_reader **reader)
{
    if (*reader != NULL) {
        free((*reader)->buffer);
        tt_text_buffer_free(&(*reader)->joined);
        tt_text_buffer_free(&(*reader)->title);
        free(*reader);
        *reader = NULL;
    }
}

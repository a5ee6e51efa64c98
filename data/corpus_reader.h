/* What the corpus formats share: the document under construction and the two readers. */
#ifndef TT_DATA_CORPUS_READER_H
#define TT_DATA_CORPUS_READER_H

#include "data/byte_source.h"
#include "data/corpus.h"
#include "data/text_buffer.h"

#include <stddef.h>

/* Start with all zero. */
typedef struct {
    tt_text_buffer text, title; /* lines one after the other, each with its final NUL */
    int64_t *starts;            /* [line_count], offsets into text */
    const char **lines;         /* [line_count], once finished */
    int64_t line_count, capacity;
    int64_t invalid_bytes;
    bool failed; /* memory ran out */
} tt_document_builder;

void tt_document_builder_clear(tt_document_builder *builder);
void tt_document_builder_set_title(tt_document_builder *builder, const char *bytes, size_t length);
/* Adds one line, cleaned and trimmed; a blank one adds nothing. */
void tt_document_builder_add_line(tt_document_builder *builder, const char *bytes, size_t length);
/* The finished document. */
tt_status tt_document_builder_finish(tt_document_builder *builder, tt_document *document,
                                     tt_error *error);
void tt_document_builder_free(tt_document_builder *builder);

/* Both readers: `next` fills the cleared builder with one document and sets `*found`, or clears
 * `*found` at the end of the file. The reader does not own the source. */
typedef struct tt_text_reader tt_text_reader;
tt_status tt_text_reader_open(tt_byte_source *source, tt_corpus_format format, bool keep_headings,
                              tt_text_reader **reader, tt_error *error);
tt_corpus_format tt_text_reader_format(const tt_text_reader *reader);
tt_status tt_text_reader_next(tt_text_reader *reader, tt_document_builder *builder, bool *found,
                              tt_error *error);
void tt_text_reader_close(tt_text_reader **reader);

typedef struct tt_wikipedia_reader tt_wikipedia_reader;
tt_status tt_wikipedia_reader_open(tt_byte_source *source, const tt_corpus_options *options,
                                   tt_corpus_counts *counts, tt_wikipedia_reader **reader,
                                   tt_error *error);
tt_status tt_wikipedia_reader_next(tt_wikipedia_reader *reader, tt_document_builder *builder,
                                   bool *found, tt_error *error);
void tt_wikipedia_reader_close(tt_wikipedia_reader **reader);

#endif

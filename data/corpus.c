#include "data/corpus.h"

#include "data/corpus_reader.h"

#include <stdlib.h>
#include <string.h>

struct tt_corpus {
    tt_corpus_options options;
    tt_corpus_counts counts;
    int next_path;
    int64_t bytes_before, bytes_total; /* of the files already closed, and of all */
    tt_corpus_format current_format;
    tt_byte_source *source;
    tt_text_reader *text; /* one of the two readers is open with the source */
    tt_wikipedia_reader *wikipedia;
    tt_document_builder builder;
    tt_document document;
};

void tt_document_builder_clear(tt_document_builder *builder)
{
    builder->text.length = 0;
    builder->title.length = 0;
    builder->line_count = 0;
}

void tt_document_builder_set_title(tt_document_builder *builder, const char *bytes, size_t length)
{
    builder->title.length = 0;
    tt_text_buffer_append_clean(&builder->title, bytes, length, false);
}

static bool grow_lines(tt_document_builder *builder)
{
    int64_t capacity = builder->capacity ? 2 * builder->capacity : 64;
    int64_t *starts = realloc(builder->starts, (size_t)capacity * sizeof *starts);
    builder->starts = starts ? starts : builder->starts;
    const char **lines = realloc(builder->lines, (size_t)capacity * sizeof *lines);
    builder->lines = lines ? lines : builder->lines;
    builder->failed = starts == NULL || lines == NULL;
    builder->capacity = builder->failed ? builder->capacity : capacity;
    return !builder->failed;
}

void tt_document_builder_add_line(tt_document_builder *builder, const char *bytes, size_t length)
{
    tt_text_buffer *text = &builder->text;
    size_t start = text->length;
    builder->invalid_bytes += (int64_t)tt_text_buffer_append_clean(text, bytes, length, false);
    while (text->length > start && text->bytes[text->length - 1] == ' ') {
        text->length--;
    }
    size_t first = start;
    while (first < text->length && text->bytes[first] == ' ') {
        first++;
    }
    if (first == text->length || builder->failed) {
        text->length = start;
        return;
    }
    if (builder->line_count == builder->capacity && !grow_lines(builder)) {
        return;
    }
    builder->starts[builder->line_count++] = (int64_t)first;
    tt_text_buffer_append_byte(text, '\0');
}

tt_status tt_document_builder_finish(tt_document_builder *builder, tt_document *document,
                                     tt_error *error)
{
    tt_text_buffer_append_byte(&builder->title, '\0');
    if (builder->failed || builder->text.failed || builder->title.failed) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for a document of %zu bytes",
                            builder->text.length);
    }
    for (int64_t i = 0; i < builder->line_count; i++) {
        builder->lines[i] = builder->text.bytes + builder->starts[i];
    }
    *document = (tt_document){
        .title = builder->title.bytes,
        .lines = builder->lines,
        .line_count = builder->line_count,
        .bytes = (int64_t)builder->text.length - builder->line_count,
    };
    return TT_OK;
}

void tt_document_builder_free(tt_document_builder *builder)
{
    tt_text_buffer_free(&builder->text);
    tt_text_buffer_free(&builder->title);
    free(builder->starts);
    free(builder->lines);
    *builder = (tt_document_builder){0};
}

static tt_status measure_files(tt_corpus *corpus, tt_error *error)
{
    for (int i = 0; i < corpus->options.path_count; i++) {
        tt_byte_source *source = NULL;
        TT_TRY(tt_byte_source_open(corpus->options.paths[i], &source, error));
        corpus->bytes_total += tt_byte_source_size(source);
        tt_byte_source_close(&source);
    }
    return TT_OK;
}

tt_status tt_corpus_open(const tt_corpus_options *options, tt_corpus **corpus, tt_error *error)
{
    *corpus = NULL;
    if (options->path_count < 1) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "expected at least one input file, found none");
    }
    *corpus = calloc(1, sizeof **corpus);
    if (*corpus == NULL) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory to open a corpus");
    }
    (*corpus)->options = *options;
    (*corpus)->current_format = options->format;
    tt_status status = measure_files(*corpus, error);
    if (status != TT_OK) {
        tt_corpus_close(corpus);
    }
    return status;
}

static void close_file(tt_corpus *corpus)
{
    tt_text_reader_close(&corpus->text);
    tt_wikipedia_reader_close(&corpus->wikipedia);
    if (corpus->source != NULL) {
        corpus->bytes_before += tt_byte_source_size(corpus->source);
    }
    tt_byte_source_close(&corpus->source);
}

static tt_status open_file(tt_corpus *corpus, tt_error *error)
{
    const tt_corpus_options *options = &corpus->options;
    TT_TRY(tt_byte_source_open(options->paths[corpus->next_path++], &corpus->source, error));
    if (options->format == TT_CORPUS_WIKIPEDIA) {
        return tt_wikipedia_reader_open(corpus->source, options, &corpus->counts,
                                        &corpus->wikipedia, error);
    }
    TT_TRY(tt_text_reader_open(corpus->source, options->format, options->keep_headings,
                               &corpus->text, error));
    corpus->current_format = tt_text_reader_format(corpus->text);
    return TT_OK;
}

/* Fills the builder from the open file, or from the next one where that is at its end. */
static tt_status read_document(tt_corpus *corpus, bool *found, tt_error *error)
{
    *found = false;
    while (!*found) {
        if (corpus->source == NULL) {
            if (corpus->next_path == corpus->options.path_count) {
                return TT_OK;
            }
            TT_TRY(open_file(corpus, error));
        }
        tt_document_builder_clear(&corpus->builder);
        if (corpus->wikipedia != NULL) {
            TT_TRY(tt_wikipedia_reader_next(corpus->wikipedia, &corpus->builder, found, error));
        } else {
            TT_TRY(tt_text_reader_next(corpus->text, &corpus->builder, found, error));
        }
        if (!*found) {
            close_file(corpus);
        }
    }
    return TT_OK;
}

tt_status tt_corpus_next(tt_corpus *corpus, const tt_document **document, tt_error *error)
{
    *document = NULL;
    for (;;) {
        bool found = false;
        TT_TRY(read_document(corpus, &found, error));
        if (!found) {
            return TT_OK;
        }
        TT_TRY(tt_document_builder_finish(&corpus->builder, &corpus->document, error));
        corpus->counts.invalid_bytes = corpus->builder.invalid_bytes;
        if (corpus->document.line_count > 0) {
            break;
        }
        corpus->counts.empty++;
    }
    corpus->counts.documents++;
    corpus->counts.lines += corpus->document.line_count;
    corpus->counts.bytes += corpus->document.bytes;
    *document = &corpus->document;
    return TT_OK;
}

tt_corpus_format tt_corpus_current_format(const tt_corpus *corpus)
{
    return corpus->current_format;
}

int tt_corpus_current_file(const tt_corpus *corpus)
{
    return corpus->next_path - 1;
}

const char *tt_corpus_format_name(tt_corpus_format format)
{
    static const char *const names[] = {"automatic", "blocks", "lines", "wikitext", "wikipedia"};
    return names[format];
}

const tt_corpus_counts *tt_corpus_get_counts(const tt_corpus *corpus)
{
    return &corpus->counts;
}

int64_t tt_corpus_bytes_read(const tt_corpus *corpus)
{
    return corpus->bytes_before +
           (corpus->source != NULL ? tt_byte_source_position(corpus->source) : 0);
}

int64_t tt_corpus_bytes_total(const tt_corpus *corpus)
{
    return corpus->bytes_total;
}

void tt_corpus_close(tt_corpus **corpus)
{
    if (*corpus != NULL) {
        close_file(*corpus);
        tt_document_builder_free(&(*corpus)->builder);
        free(*corpus);
        *corpus = NULL;
    }
}

#include "data/file.h"
#include "data/prepare.h"
#include "data/sentence.h"
#include "data/text_buffer.h"

#include <string.h>

static tt_status write_documents(tt_corpus *corpus, const tt_file_output *output,
                                 tt_prepare_progress progress, void *user,
                                 tt_prepare_summary *summary, tt_error *error)
{
    FILE *stream = tt_file_stream(output);
    for (;;) {
        const tt_document *document = NULL;
        TT_TRY(tt_corpus_next(corpus, &document, error));
        if (document == NULL) {
            return summary->documents > 0
                       ? TT_OK
                       : tt_error_set(error, TT_INVALID_INPUT,
                                      "expected text, found no document in the input");
        }
        for (int64_t i = 0; i < document->line_count; i++) {
            fputs(document->lines[i], stream);
            fputc('\n', stream);
        }
        fputc('\n', stream);
        TT_TRY(tt_file_check(output, error));
        summary->documents++;
        if (progress != NULL) {
            progress(user, corpus, summary);
        }
    }
}

tt_status tt_prepare_text(tt_corpus *corpus, const char *path, tt_prepare_progress progress,
                          void *user, tt_prepare_summary *summary, tt_error *error)
{
    tt_file_output *output = NULL;
    *summary = (tt_prepare_summary){0};
    TT_TRY(tt_file_create(path, &output, error));
    tt_status status = write_documents(corpus, output, progress, user, summary, error);
    if (status != TT_OK) {
        tt_file_abandon(&output);
        return status;
    }
    return tt_file_commit(&output, error);
}

/* Hands the sentences of a corpus to the tokenizer's training, one by one. */
typedef struct {
    tt_corpus *corpus;
    tt_prepare_progress progress;
    void *user;
    tt_prepare_summary *summary;
    const tt_document *document;
    int64_t line;     /* of the document: the one being handed out */
    const char *rest; /* of that line */
    tt_text_buffer sentence;
} sentence_stream;

/* Moves to the next line that has text; `rest` is NULL at the end of the corpus. */
static tt_status next_line(sentence_stream *stream, tt_error *error)
{
    stream->line++;
    if (stream->document == NULL || stream->line == stream->document->line_count) {
        TT_TRY(tt_corpus_next(stream->corpus, &stream->document, error));
        stream->line = 0;
        if (stream->document == NULL) {
            stream->rest = NULL;
            return TT_OK;
        }
        stream->summary->documents++;
        if (stream->progress != NULL) {
            stream->progress(stream->user, stream->corpus, stream->summary);
        }
    }
    stream->rest = stream->document->lines[stream->line];
    return TT_OK;
}

static tt_status next_sentence(void *user, const char **line, tt_error *error)
{
    sentence_stream *stream = user;
    *line = NULL;
    while (stream->rest == NULL || *stream->rest == '\0') {
        TT_TRY(next_line(stream, error));
        if (stream->rest == NULL) {
            return TT_OK;
        }
    }
    size_t length = tt_sentence_length(stream->rest, strlen(stream->rest));
    stream->sentence.length = 0;
    tt_text_buffer_append(&stream->sentence, stream->rest, length);
    tt_text_buffer_append_byte(&stream->sentence, '\0');
    if (stream->sentence.failed) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for a sentence");
    }
    stream->rest += length;
    stream->rest += strspn(stream->rest, " ");
    stream->summary->sentences++;
    *line = stream->sentence.bytes;
    return TT_OK;
}

tt_status tt_prepare_tokenizer(tt_corpus *corpus, const tt_tokenizer_options *options,
                               const char *path, tt_prepare_progress progress, void *user,
                               tt_prepare_summary *summary, tt_error *error)
{
    *summary = (tt_prepare_summary){0};
    sentence_stream stream = {
        .corpus = corpus, .progress = progress, .user = user, .summary = summary};
    tt_status status = tt_tokenizer_train(options, next_sentence, &stream, path, error);
    tt_text_buffer_free(&stream.sentence);
    return status;
}

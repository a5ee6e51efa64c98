#include "data/corpus_reader.h"
#include "data/wiki_markup.h"

#include <expat.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_SIZE = 1 << 16, MOST_NAMESPACES = 256, DEEPEST_ELEMENT = 1000 };

typedef enum {
    ELEMENT_OTHER,
    ELEMENT_NAMESPACE,
    ELEMENT_TITLE,
    ELEMENT_NS,
    ELEMENT_MODEL,
    ELEMENT_TEXT,
} element_kind;

/* One page while its elements are read. Of several revisions the last one counts. */
typedef struct {
    tt_text_buffer title, ns, model, text;
    bool redirect, oversized;
} page_state;

struct tt_wikipedia_reader {
    tt_byte_source *source;
    tt_corpus_options options;
    tt_corpus_counts *counts;
    XML_Parser parser;
    bool suspended; /* a page is complete and the parser waits in the middle of a chunk */
    bool at_end, saw_root, too_deep;
    int depth;
    element_kind element; /* whose character data is being collected */
    int element_depth;
    page_state page;
    tt_text_buffer namespace_name;
    int namespace_key;
    char *namespaces[MOST_NAMESPACES]; /* names of all namespaces but the main one */
    int namespace_count;
    const char *dropped[MOST_NAMESPACES]; /* those of media, files and categories */
    int dropped_count;
    char input[CHUNK_SIZE];
};

static element_kind kind_of_element(const char *name)
{
    static const struct {
        const char *name;
        element_kind kind;
    } kinds[] = {{"namespace", ELEMENT_NAMESPACE},
                 {"title", ELEMENT_TITLE},
                 {"ns", ELEMENT_NS},
                 {"model", ELEMENT_MODEL},
                 {"text", ELEMENT_TEXT}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            return kinds[i].kind;
        }
    }
    return ELEMENT_OTHER;
}

static tt_text_buffer *element_buffer(tt_wikipedia_reader *reader)
{
    switch (reader->element) {
    case ELEMENT_NAMESPACE:
        return &reader->namespace_name;
    case ELEMENT_TITLE:
        return &reader->page.title;
    case ELEMENT_NS:
        return &reader->page.ns;
    case ELEMENT_MODEL:
        return &reader->page.model;
    case ELEMENT_TEXT:
        return &reader->page.text;
    default:
        return NULL;
    }
}

static void clear_page(page_state *page)
{
    page->title.length = 0;
    page->ns.length = 0;
    page->model.length = 0;
    page->text.length = 0;
    page->redirect = false;
    page->oversized = false;
}

static void XMLCALL start_element(void *user, const XML_Char *name, const XML_Char **attributes)
{
    tt_wikipedia_reader *reader = user;
    reader->depth++;
    if (reader->depth == 1) {
        reader->saw_root = strcmp(name, "mediawiki") == 0;
    }
    if ((reader->depth == 1 && !reader->saw_root) || reader->depth > DEEPEST_ELEMENT) {
        reader->too_deep = reader->depth > 1;
        XML_StopParser(reader->parser, XML_FALSE);
        return;
    }
    if (strcmp(name, "page") == 0) {
        clear_page(&reader->page);
    } else if (strcmp(name, "redirect") == 0) {
        reader->page.redirect = true;
    }
    reader->element = kind_of_element(name);
    reader->element_depth = reader->depth;
    tt_text_buffer *buffer = element_buffer(reader);
    if (buffer != NULL) {
        buffer->length = 0;
    }
    if (reader->element == ELEMENT_NAMESPACE) {
        reader->namespace_key = 0;
        for (size_t i = 0; attributes[i] != NULL; i += 2) {
            if (strcmp(attributes[i], "key") == 0) {
                reader->namespace_key = (int)strtol(attributes[i + 1], NULL, 10);
            }
        }
    }
}

static void XMLCALL character_data(void *user, const XML_Char *bytes, int length)
{
    tt_wikipedia_reader *reader = user;
    tt_text_buffer *buffer = element_buffer(reader);
    if (buffer == NULL || reader->depth != reader->element_depth) {
        return;
    }
    if (buffer->length + (size_t)length > TT_CORPUS_DOCUMENT_LIMIT) {
        reader->page.oversized = true;
        return;
    }
    tt_text_buffer_append(buffer, bytes, (size_t)length);
}

static void add_namespace(tt_wikipedia_reader *reader)
{
    enum { MEDIA = -2, FILES = 6, CATEGORIES = 14 };
    tt_text_buffer *name = &reader->namespace_name;
    if (reader->namespace_key == 0 || reader->namespace_count == MOST_NAMESPACES) {
        return;
    }
    tt_text_buffer_append_byte(name, '\0');
    char *copy = name->failed ? NULL : strdup(name->bytes);
    if (copy == NULL) {
        name->failed = true;
        return;
    }
    reader->namespaces[reader->namespace_count++] = copy;
    if (reader->namespace_key == MEDIA || reader->namespace_key == FILES ||
        reader->namespace_key == CATEGORIES) {
        reader->dropped[reader->dropped_count++] = copy;
    }
}

static void XMLCALL end_element(void *user, const XML_Char *name)
{
    tt_wikipedia_reader *reader = user;
    reader->depth--;
    if (reader->element == ELEMENT_NAMESPACE) {
        add_namespace(reader);
    }
    reader->element = ELEMENT_OTHER;
    if (strcmp(name, "page") == 0) {
        XML_StopParser(reader->parser, XML_TRUE);
    }
}

tt_status tt_wikipedia_reader_open(tt_byte_source *source, const tt_corpus_options *options,
                                   tt_corpus_counts *counts, tt_wikipedia_reader **reader,
                                   tt_error *error)
{
    *reader = calloc(1, sizeof **reader);
    if (*reader != NULL) {
        (*reader)->parser = XML_ParserCreate("UTF-8");
    }
    if (*reader == NULL || (*reader)->parser == NULL) {
        tt_wikipedia_reader_close(reader);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory", tt_byte_source_path(source));
    }
    (*reader)->source = source;
    (*reader)->options = *options;
    (*reader)->counts = counts;
    XML_SetUserData((*reader)->parser, *reader);
    XML_SetElementHandler((*reader)->parser, start_element, end_element);
    XML_SetCharacterDataHandler((*reader)->parser, character_data);
    return TT_OK;
}

static tt_status parse_error(tt_wikipedia_reader *reader, tt_error *error)
{
    const char *path = tt_byte_source_path(reader->source);
    unsigned long line = XML_GetCurrentLineNumber(reader->parser);
    unsigned long column = XML_GetCurrentColumnNumber(reader->parser) + 1;
    enum XML_Error code = XML_GetErrorCode(reader->parser);
    if (code == XML_ERROR_NO_MEMORY) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory to parse XML", path);
    }
    if (reader->depth > 0 && !reader->saw_root) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: line %lu: expected a MediaWiki dump (<mediawiki>), found another "
                            "XML document",
                            path, line);
    }
    if (reader->too_deep) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: line %lu: expected elements at most %d deep, found deeper ones",
                            path, line, DEEPEST_ELEMENT);
    }
    return tt_error_set(error, TT_INVALID_INPUT,
                        "%s: line %lu, column %lu (byte %lld of the XML): %s%s", path, line, column,
                        (long long)XML_GetCurrentByteIndex(reader->parser), XML_ErrorString(code),
                        code == XML_ERROR_NO_ELEMENTS || code == XML_ERROR_UNCLOSED_TOKEN
                            ? "; the file is cut short"
                            : "");
}

/* Parses up to the end of the next page; `*found` is false at the end of the file. */
static tt_status parse_page(tt_wikipedia_reader *reader, bool *found, tt_error *error)
{
    *found = false;
    while (!*found && (reader->suspended || !reader->at_end)) {
        enum XML_Status status;
        if (reader->suspended) {
            status = XML_ResumeParser(reader->parser);
        } else {
            size_t count = 0;
            TT_TRY(tt_byte_source_read(reader->source, reader->input, CHUNK_SIZE, &count, error));
            reader->at_end = count == 0;
            status = XML_Parse(reader->parser, reader->input, (int)count, count == 0);
        }
        if (status == XML_STATUS_ERROR) {
            return parse_error(reader, error);
        }
        reader->suspended = status == XML_STATUS_SUSPENDED;
        *found = reader->suspended;
    }
    return TT_OK;
}

static tt_status check_memory(const tt_wikipedia_reader *reader, tt_error *error)
{
    const page_state *page = &reader->page;
    if (page->title.failed || page->ns.failed || page->model.failed || page->text.failed ||
        reader->namespace_name.failed) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for a page",
                            tt_byte_source_path(reader->source));
    }
    return TT_OK;
}

/* Old dumps do not state the namespace; there it is told by the title's prefix. */
static bool in_main_namespace(const tt_wikipedia_reader *reader)
{
    const page_state *page = &reader->page;
    if (page->ns.length > 0) {
        return page->ns.length == 1 && page->ns.bytes[0] == '0';
    }
    const char *colon =
        page->title.length > 0 ? memchr(page->title.bytes, ':', page->title.length) : NULL;
    size_t prefix = colon != NULL ? (size_t)(colon - page->title.bytes) : 0;
    for (int i = 0; colon != NULL && i < reader->namespace_count; i++) {
        if (strlen(reader->namespaces[i]) == prefix &&
            memcmp(reader->namespaces[i], page->title.bytes, prefix) == 0) {
            return false;
        }
    }
    return true;
}

/* Whether the page is an article; otherwise it is counted where it belongs. */
static bool is_article(tt_wikipedia_reader *reader)
{
    static const char wikitext[] = "wikitext";
    const page_state *page = &reader->page;
    tt_corpus_counts *counts = reader->counts;
    counts->pages++;
    if (!in_main_namespace(reader)) {
        counts->other_namespaces++;
    } else if (page->redirect ||
               (page->text.length > 0 &&
                tt_wiki_markup_is_redirect(page->text.bytes, page->text.length))) {
        counts->redirects++;
    } else if (page->model.length > 0 &&
               (page->model.length != sizeof wikitext - 1 ||
                memcmp(page->model.bytes, wikitext, sizeof wikitext - 1) != 0)) {
        counts->other_models++;
    } else if (page->oversized) {
        counts->oversized++;
    } else if (page->text.length == 0) {
        counts->empty++;
    } else {
        return true;
    }
    return false;
}

static void add_line(void *user, const char *bytes, size_t length)
{
    tt_document_builder_add_line(user, bytes, length);
}

tt_status tt_wikipedia_reader_next(tt_wikipedia_reader *reader, tt_document_builder *builder,
                                   bool *found, tt_error *error)
{
    do {
        TT_TRY(parse_page(reader, found, error));
        TT_TRY(check_memory(reader, error));
    } while (*found && !is_article(reader));
    if (!*found) {
        return TT_OK;
    }
    const tt_wiki_markup_options options = {
        .keep_headings = reader->options.keep_headings,
        .keep_lists = reader->options.keep_lists,
        .dropped_namespaces = reader->dropped,
        .dropped_namespace_count = reader->dropped_count,
    };
    const page_state *page = &reader->page;
    tt_document_builder_set_title(builder, page->title.bytes, page->title.length);
    return tt_wiki_markup_clean(page->text.bytes, page->text.length, &options, add_line, builder,
                                error);
}

void tt_wikipedia_reader_close(tt_wikipedia_reader **reader)
{
    if (*reader == NULL) {
        return;
    }
    if ((*reader)->parser != NULL) {
        XML_ParserFree((*reader)->parser);
    }
    for (int i = 0; i < (*reader)->namespace_count; i++) {
        free((*reader)->namespaces[i]);
    }
    tt_text_buffer_free(&(*reader)->page.title);
    tt_text_buffer_free(&(*reader)->page.ns);
    tt_text_buffer_free(&(*reader)->page.model);
    tt_text_buffer_free(&(*reader)->page.text);
    tt_text_buffer_free(&(*reader)->namespace_name);
    free(*reader);
    *reader = NULL;
}

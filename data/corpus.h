/* Corpora: files of text as a stream of documents, each a title and a list of lines.
 *
 * A line is a paragraph or a sentence: clean UTF-8 without control characters (invalid bytes are
 * U+FFFD), without space at either end, never empty. Memory is bounded by one document, and a
 * document of more than TT_CORPUS_DOCUMENT_LIMIT bytes is handed out in parts. All files may be
 * bzip2-compressed. */
#ifndef TT_DATA_CORPUS_H
#define TT_DATA_CORPUS_H

#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { TT_CORPUS_DOCUMENT_LIMIT = 1 << 26 };

typedef enum {
    TT_CORPUS_AUTOMATIC, /* wikitext where the first 64 KiB hold one of its titles, else blocks */
    TT_CORPUS_BLOCKS,    /* documents separated by blank lines */
    TT_CORPUS_LINES,     /* one document a line */
    TT_CORPUS_WIKITEXT,  /* WikiText raw: " = Title = " starts a document, blank lines mean nothing,
                            and  " @-@ ", " @,@ ", " @.@ " are joined back to "-", ",", "." */
    TT_CORPUS_WIKIPEDIA  /* a MediaWiki pages-articles dump, cleaned by data/wiki_markup.h */
} tt_corpus_format;

typedef struct {
    tt_corpus_format format;
    const char *const *paths; /* read in this order; must outlive the corpus */
    int path_count;
    bool keep_headings; /* section headings become lines (wikitext, wikipedia) */
    bool keep_lists;    /* list items become lines (wikipedia) */
} tt_corpus_options;

/* Owned by the corpus and valid until its next call. */
typedef struct {
    const char *title; /* "" where the format has none */
    const char *const *lines;
    int64_t line_count; /* at least 1 */
    int64_t bytes;      /* of all lines */
} tt_document;

/* What the corpus has seen so far. */
typedef struct {
    int64_t documents, lines, bytes; /* handed out */
    int64_t invalid_bytes;           /* replaced by U+FFFD */
    int64_t pages;                   /* wikipedia: all pages, of which left out: */
    int64_t redirects;
    int64_t other_namespaces;
    int64_t other_models; /* pages that are not wikitext */
    int64_t oversized;    /* pages of more than TT_CORPUS_DOCUMENT_LIMIT bytes */
    int64_t empty;        /* pages and documents of which nothing was left */
} tt_corpus_counts;

typedef struct tt_corpus tt_corpus;

/* Opens every file once to see that it can be read, then stands before the first document. */
tt_status tt_corpus_open(const tt_corpus_options *options, tt_corpus **corpus, tt_error *error);
/* The next document, or NULL at the end. */
tt_status tt_corpus_next(tt_corpus *corpus, const tt_document **document, tt_error *error);
/* The format of the current file, as found where it is automatic. */
tt_corpus_format tt_corpus_current_format(const tt_corpus *corpus);
/* Number of the current file in the options' list; -1 before the first. */
int tt_corpus_current_file(const tt_corpus *corpus);
const char *tt_corpus_format_name(tt_corpus_format format);
const tt_corpus_counts *tt_corpus_get_counts(const tt_corpus *corpus);
/* Bytes of all files read so far, and in all: compressed bytes where they are compressed. */
int64_t tt_corpus_bytes_read(const tt_corpus *corpus);
int64_t tt_corpus_bytes_total(const tt_corpus *corpus);
/* Sets the pointer to NULL; NULL inside is fine. */
void tt_corpus_close(tt_corpus **corpus);

#endif

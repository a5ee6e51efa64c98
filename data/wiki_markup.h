/* From wikitext to plain text: what a reader of the page would read as running text.
 *
 * Dropped: comments, templates and tables (nested), references, formulas, galleries, program
 * listings, file, image, category and interlanguage links, magic words, table remnants, and, unless
 * kept, list items and headings. Replaced by what they show: links, external links with a label,
 * emphasis, other HTML tags, entities, <nowiki>, and a few templates that stand inside sentences
 * (units, languages, abbreviations). Brackets that lost their content are tidied. Time and memory
 * are linear in the length of the page, whatever it holds. */
#ifndef TT_DATA_WIKI_MARKUP_H
#define TT_DATA_WIKI_MARKUP_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    bool keep_headings; /* a heading becomes a line of its own, if text follows it */
    bool keep_lists;    /* a list item becomes a line of its own */
    /* Names of the file, media and category namespaces of this wiki, beside the English ones. */
    const char *const *dropped_namespaces;
    int dropped_namespace_count;
} tt_wiki_markup_options;

/* Receives one paragraph: UTF-8, one line, single spaces, not empty; valid during the call. */
typedef void (*tt_wiki_markup_line)(void *user, const char *bytes, size_t length);

/* Cleans one page and hands out its paragraphs in order. Fails only where memory runs out. */
tt_status tt_wiki_markup_clean(const char *page, size_t length,
                               const tt_wiki_markup_options *options, tt_wiki_markup_line line,
                               void *user, tt_error *error);

/* Whether the page only points to another one: it starts with #REDIRECT, in any case. */
bool tt_wiki_markup_is_redirect(const char *page, size_t length);

#endif

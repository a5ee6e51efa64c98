/* Sentences of a line of text, by a plain rule: a sentence ends after ".", "!" or "?" (and closing
 * quotes or brackets) where a space and then an upper-case letter, a digit, or an opening quote or
 * bracket follow, but not after an initial, a dotted or a common English abbreviation; and after an
 * ideographic full stop. */
#ifndef TT_DATA_SENTENCE_H
#define TT_DATA_SENTENCE_H

#include <stddef.h>

/* A longer sentence is cut, at a space where there is one. */
enum { TT_SENTENCE_LIMIT = 8192 };

/* The number of bytes of the first sentence of `text`, which does not start with a space; at least
 * 1 if length is. The spaces behind it are not counted. */
size_t tt_sentence_length(const char *text, size_t length);

#endif

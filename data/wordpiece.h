/* WordPiece as BERT uses it: a vocabulary file of one piece a line, its number from 0 the id, where
 * "##" begins a piece that continues a word. Behind data/tokenizer.h, which is what others use.
 *
 * Text is cut into words at white space, around punctuation (every ASCII character that is neither
 * a letter nor a digit counts) and around Chinese characters; control characters are dropped. Where
 * the vocabulary has no capital letter, words are lower-cased and lose their accents. A word is
 * then the longest piece that it begins with, the longest that what is left begins with, and so on;
 * [UNK] where one of them is missing or the word has more than 100 characters. */
#ifndef TT_DATA_WORDPIECE_H
#define TT_DATA_WORDPIECE_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tt_wordpiece tt_wordpiece;

/* Whether a file is such a vocabulary, well-formed or not: its name ends in .txt, or it has a line
 * [UNK]. */
bool tt_wordpiece_recognize(const char *path, const void *bytes, size_t size);

/* Refuses a line that is empty, not UTF-8 or a repetition, and fewer than six lines. A byte order
 * mark and carriage returns before line ends are left out. Free with tt_wordpiece_free. */
tt_status tt_wordpiece_load(const char *path, const void *bytes, size_t size,
                            tt_wordpiece **wordpiece, tt_error *error);
void tt_wordpiece_free(tt_wordpiece *wordpiece);

int tt_wordpiece_size(const tt_wordpiece *wordpiece);
/* The piece with this id, 0 <= id < size. */
const char *tt_wordpiece_piece(const tt_wordpiece *wordpiece, int id);
/* The id of a piece, or -1. */
int tt_wordpiece_find(const tt_wordpiece *wordpiece, const char *piece);

/* Calls `found` for every piece of the text, with the bytes [begin, end) of `text` that it stands
 * for. `unknown` is the id of [UNK]. Bytes that are not UTF-8 are dropped. */
typedef void (*tt_wordpiece_found)(void *user, int32_t id, uint32_t begin, uint32_t end);
void tt_wordpiece_encode(const tt_wordpiece *wordpiece, const char *text, size_t length,
                         int32_t unknown, tt_wordpiece_found found, void *user);

#endif

/* A small English-like corpus with structure to learn, for trying things out without any data. Each
 * document has a topic with words of its own, two people whose names and pronouns stay, things that
 * keep their colour and number, verbs that agree, and an order of events. So masked words follow
 * from their sentence and from those before, and a next sentence from another document is told by
 * topic, names and order. */
#ifndef TT_DATA_CORPUS_SYNTHETIC_H
#define TT_DATA_CORPUS_SYNTHETIC_H

#include "core/error.h"

#include <stdint.h>

/* Writes `documents` documents, one sentence a line and a blank line after each document: some 900
 * bytes a document. A document is a pure function of the seed and its number. `*bytes` is the size
 * of the file. */
tt_status tt_synthetic_write(int64_t documents, uint64_t seed, const char *path, int64_t *bytes,
                             tt_error *error);

#endif

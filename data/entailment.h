/* A made-up task of entailment in the form of MNLI: does the first sentence say what the second
 * says (entailment), the opposite (contradiction), or nothing about it (neutral)?
 *
 * The first sentence tells who did what, with two of four details (colour, place, companion, hour),
 * each with one of four values; the second states one detail. It is the same detail with
 * the same value, with another value, or one that the first does not tell. Classes are equally
 * likely, and so are, in every class, details and values: neither sentence alone says anything
 * about the class, so that a model which does not compare them stays at one third. */
#ifndef TT_DATA_ENTAILMENT_H
#define TT_DATA_ENTAILMENT_H

#include "core/error.h"

#include <stdint.h>

/* Writes train.tsv, validation.tsv (columns sentence1, sentence2, gold_label) and the WordPiece
 * vocabulary vocab.txt into `folder`. The same seed gives the same files. */
tt_status tt_entailment_write(int64_t rows, int64_t validation_rows, uint64_t seed,
                              const char *folder, tt_error *error);

#endif

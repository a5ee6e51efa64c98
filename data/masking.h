/* Masked-language-model targets as BERT draws them. */
#ifndef TT_DATA_MASKING_H
#define TT_DATA_MASKING_H

#include "core/random.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    float probability; /* share of tokens to predict, 0.15 */
    bool whole_word;   /* all pieces of a word or none */
} tt_masking_options;

#endif

/* Counter-based random numbers: Philox 4x32 with ten rounds (Salmon et al., "Parallel random
 * numbers: as easy as 1, 2, 3", SC11). A number is a pure function of a key and a counter, so a
 * resumed run, a replayed graph and either device draw the same ones, in whatever order they are
 * asked for. */
#ifndef TT_CORE_RANDOM_H
#define TT_CORE_RANDOM_H

#include <stdint.h>

typedef struct {
    uint32_t word[4];
} tt_random_block;

/* Four independent uniform 32-bit words for (key, counter). */
tt_random_block tt_random_philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3);

/* A named stream for set-up code and masking, where numbers are drawn one after the other.
 * (seed, stream) selects the sequence. */
typedef struct {
    uint64_t key;
    uint32_t stream_low, stream_high;
    uint64_t next; /* number of words drawn so far */
    tt_random_block block;
} tt_random;

void tt_random_start(tt_random *random, uint64_t seed, uint64_t stream);
uint32_t tt_random_u32(tt_random *random);
/* Uniform in [0, bound), without bias; bound >= 1. */
uint32_t tt_random_below(tt_random *random, uint32_t bound);
/* Uniform in [0, 1), 24 bits. */
float tt_random_uniform(tt_random *random);
/* Standard normal (Box-Muller). */
float tt_random_normal(tt_random *random);

/* A dropout site: element (row, column) is kept when its 16-bit number, drawn from the Philox block
 * with key `seed` and counter (column / 8, first_row + row, site, *step), is at least
 * `probability` * 65536 (rounded); kept elements are scaled by 65536 / (65536 - that threshold).
 * Word j of the block serves columns 8c + 2j (low half) and 8c + 2j + 1 (high half).
 * `step` lies in device memory, so that a captured step draws new numbers at each replay. A
 * probability of 0 keeps everything and draws nothing. */
typedef struct {
    float probability; /* in [0, 1) */
    uint64_t seed;
    const uint32_t *step;
    uint32_t site;      /* one number a place in the model, equal on all ranks */
    uint32_t first_row; /* global number of row 0, so that ranks and micro-batches differ */
} tt_dropout;

#endif

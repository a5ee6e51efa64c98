/* Dropout masks for whole stretches of a row: the numbers that core/random.h defines for a dropout
 * site, drawn for many Philox blocks at a time so that they cost a fraction of a nanosecond each.
 *
 *     float multipliers[TT_DROPOUT_SPAN];
 *     for (int64_t first = 0; first < columns; first += TT_DROPOUT_SPAN) {
 *         int64_t count = columns - first < TT_DROPOUT_SPAN ? columns - first : TT_DROPOUT_SPAN;
 *         tt_dropout_span(dropout, row, first, count, multipliers);
 *         ... x[first + j] *= multipliers[j] ...
 *     }
 */
#ifndef TT_CORE_CPU_DROPOUT_H
#define TT_CORE_CPU_DROPOUT_H

#include "core/random.h"

#include <assert.h>
#include <math.h>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

enum { TT_DROPOUT_SPAN = 512 };

/* Elements whose 16-bit number is below this are dropped. */
static inline uint32_t tt_dropout_threshold(float probability)
{
    uint32_t threshold = (uint32_t)lrintf(probability * 65536.0f);
    return threshold < 65535 ? threshold : 65535;
}

/* What kept elements are multiplied by. */
static inline float tt_dropout_scale(uint32_t threshold)
{
    return 65536.0f / (float)(65536 - threshold);
}

static inline int64_t tt_dropout_span_length(int64_t columns, int64_t first)
{
    return columns - first < TT_DROPOUT_SPAN ? columns - first : TT_DROPOUT_SPAN;
}

#ifdef __AVX512F__

/* A product of two 32-bit numbers in 64 bits is one instruction on eight lanes; compilers do not
 * find it in a loop for this vector width. Lanes hold a word in their low half; what the high half
 * holds does not matter, as products do not read it. */
static inline void tt_dropout_round(__m512i c[4], uint32_t key0, uint32_t key1)
{
    __m512i p0 = _mm512_mul_epu32(c[0], _mm512_set1_epi64(0xD2511F53u));
    __m512i p1 = _mm512_mul_epu32(c[2], _mm512_set1_epi64(0xCD9E8D57u));
    c[0] = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p1, 32), c[1]),
                            _mm512_set1_epi64(key0));
    c[2] = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p0, 32), c[3]),
                            _mm512_set1_epi64(key1));
    c[1] = p1;
    c[3] = p0;
}

/* Eight Philox blocks as 64 numbers of 16 bits in the order of their columns. */
static inline void tt_dropout_store(const __m512i c[4], uint16_t *numbers)
{
    const __m512i low_half = _mm512_set1_epi64(0xFFFFFFFFu);
    const __m512i lower_pairs = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i upper_pairs = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    __m512i w01 = _mm512_or_si512(_mm512_and_si512(c[0], low_half), _mm512_slli_epi64(c[1], 32));
    __m512i w23 = _mm512_or_si512(_mm512_and_si512(c[2], low_half), _mm512_slli_epi64(c[3], 32));
    _mm512_storeu_si512(numbers, _mm512_permutex2var_epi64(w01, lower_pairs, w23));
    _mm512_storeu_si512(numbers + 32, _mm512_permutex2var_epi64(w01, upper_pairs, w23));
}

/* Fills `numbers` with those of columns [8 first_block, 8 (first_block + blocks)), rounded up to
 * sixteen blocks. Two groups of eight are under way at once, since each waits for its products. */
static inline void tt_dropout_draw(const tt_dropout *dropout, uint32_t row, uint32_t first_block,
                                   int64_t blocks, uint16_t *numbers)
{
    const __m512i lanes = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    for (int64_t block = 0; block < blocks; block += 16) {
        __m512i first = _mm512_add_epi64(_mm512_set1_epi64(first_block + block), lanes);
        __m512i a[4] = {first, _mm512_set1_epi64(row), _mm512_set1_epi64(dropout->site),
                        _mm512_set1_epi64(*dropout->step)};
        __m512i b[4] = {_mm512_add_epi64(first, _mm512_set1_epi64(8)), a[1], a[2], a[3]};
        uint32_t key0 = (uint32_t)dropout->seed, key1 = (uint32_t)(dropout->seed >> 32);
        for (int round = 0; round < 10; round++) {
            tt_dropout_round(a, key0, key1);
            tt_dropout_round(b, key0, key1);
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        tt_dropout_store(a, numbers + 8 * block);
        tt_dropout_store(b, numbers + 8 * block + 64);
    }
}

#else

static inline void tt_dropout_round(uint32_t *c0, uint32_t *c1, uint32_t *c2, uint32_t *c3,
                                    uint32_t key0, uint32_t key1)
{
    uint64_t p0 = (uint64_t)0xD2511F53u * *c0;
    uint64_t p1 = (uint64_t)0xCD9E8D57u * *c2;
    *c0 = (uint32_t)(p1 >> 32) ^ *c1 ^ key0;
    *c2 = (uint32_t)(p0 >> 32) ^ *c3 ^ key1;
    *c1 = (uint32_t)p1;
    *c3 = (uint32_t)p0;
}

/* Fills `numbers` with those of columns [8 first_block, 8 (first_block + blocks)). */
static inline void tt_dropout_draw(const tt_dropout *dropout, uint32_t row, uint32_t first_block,
                                   int64_t blocks, uint16_t *numbers)
{
    uint32_t site = dropout->site, step = *dropout->step;
    uint32_t k0 = (uint32_t)dropout->seed, k1 = (uint32_t)(dropout->seed >> 32);
    const uint32_t w0 = 0x9E3779B9u, w1 = 0xBB67AE85u;
#pragma omp simd
    for (int64_t block = 0; block < blocks; block++) {
        uint32_t c0 = first_block + (uint32_t)block, c1 = row, c2 = site, c3 = step;
        tt_dropout_round(&c0, &c1, &c2, &c3, k0, k1);
        tt_dropout_round(&c0, &c1, &c2, &c3, k0 + w0, k1 + w1);
        tt_dropout_round(&c0, &c1, &c2, &c3, k0 + 2 * w0, k1 + 2 * w1);
        tt_dropout_round(&c0, &c1, &c2, &c3, k0 + 3 * w0, k1 + 3 * w1);
        tt_dropout_round(&c0, &c1, &c2, &c3, k0 + 4 * w0, k1 + 4 * w1);
        tt_dropout_round(&c0, &c1, &c2, &c3, k0 + 5 * w0, k1 + 5 * w1);
        tt_dropout_round(&c0, &c1, &c2, &c3, k0 + 6 * w0, k1 + 6 * w1);
        tt_dropout_round(&c0, &c1, &c2, &c3, k0 + 7 * w0, k1 + 7 * w1);
        tt_dropout_round(&c0, &c1, &c2, &c3, k0 + 8 * w0, k1 + 8 * w1);
        tt_dropout_round(&c0, &c1, &c2, &c3, k0 + 9 * w0, k1 + 9 * w1);
        uint32_t words[4] = {c0, c1, c2, c3};
        for (int word = 0; word < 4; word++) {
            numbers[8 * block + 2 * word] = (uint16_t)words[word];
            numbers[8 * block + 2 * word + 1] = (uint16_t)(words[word] >> 16);
        }
    }
}

#endif

/* multipliers[j] = 0 or the scale, for columns first + j, j < count. `first` is a multiple of 8 and
 * `count` at most TT_DROPOUT_SPAN. */
static inline void tt_dropout_span(const tt_dropout *dropout, int64_t row, int64_t first,
                                   int64_t count, float *multipliers)
{
    uint16_t numbers[TT_DROPOUT_SPAN];
    uint32_t threshold = tt_dropout_threshold(dropout->probability);
    float scale = tt_dropout_scale(threshold);
    assert(first % 8 == 0 && count <= TT_DROPOUT_SPAN);
    tt_dropout_draw(dropout, dropout->first_row + (uint32_t)row, (uint32_t)(first / 8),
                    (count + 7) / 8, numbers);
#pragma omp simd
    for (int64_t j = 0; j < count; j++) {
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): drawn just above
        multipliers[j] = numbers[j] >= threshold ? scale : 0.0f;
    }
}

/* The multipliers of a whole row. */
static inline void tt_dropout_row(const tt_dropout *dropout, int64_t row, int64_t columns,
                                  float *multipliers)
{
    for (int64_t first = 0; first < columns; first += TT_DROPOUT_SPAN) {
        tt_dropout_span(dropout, row, first, tt_dropout_span_length(columns, first),
                        multipliers + first);
    }
}

#endif

/* Dropout masks in kernels: the numbers that core/random.h defines for a dropout site, to the bit
 * those of the CPU device. One Philox block serves 8 columns of a row. */
#ifndef TT_CORE_CUDA_DROPOUT_CUH
#define TT_CORE_CUDA_DROPOUT_CUH

#include "core/cuda/cuda_device.h"

#include <math.h>

/* A tt_dropout as a kernel's parameter. */
typedef struct {
    const uint32_t *step;
    uint32_t key_low, key_high;
    uint32_t site, first_row;
    uint32_t threshold; /* elements whose number is below it are dropped; 0: none are */
    float scale;        /* of those that are kept */
} tt_dropout_site;

static inline tt_dropout_site tt_dropout_site_of(const tt_dropout *dropout)
{
    uint32_t threshold = static_cast<uint32_t>(lrintf(dropout->probability * 65536.0f));
    threshold = threshold < 65535 ? threshold : 65535;
    return {dropout->step,
            static_cast<uint32_t>(dropout->seed),
            static_cast<uint32_t>(dropout->seed >> 32),
            dropout->site,
            dropout->first_row,
            threshold,
            65536.0f / static_cast<float>(65536 - threshold)};
}

/* The optimizer step that the numbers depend on; a kernel reads it once. */
static __device__ __forceinline__ uint32_t tt_dropout_step(const tt_dropout_site &site)
{
    return site.threshold > 0 ? *site.step : 0;
}

/* The eight 16-bit numbers of columns [8 block, 8 block + 8) of a row, two in a word. */
static __device__ __forceinline__ tt_random_block tt_dropout_draw(const tt_dropout_site &site,
                                                                  uint32_t step, int64_t row,
                                                                  uint32_t block)
{
    uint32_t c0 = block, c1 = site.first_row + static_cast<uint32_t>(row), c2 = site.site,
             c3 = step;
    uint32_t k0 = site.key_low, k1 = site.key_high;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0;
        uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
        c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
        c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
        c1 = static_cast<uint32_t>(p1);
        c3 = static_cast<uint32_t>(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

static __device__ __forceinline__ float tt_dropout_choose(const tt_dropout_site &site,
                                                          uint32_t number)
{
    return number >= site.threshold ? site.scale : 0.0f;
}

/* values[i] *= the multiplier of column + i, for i < W. Where W is 8, `column` is a multiple of 8.
 * Does nothing for a site that drops nothing. */
template <int W>
static __device__ __forceinline__ void tt_dropout_apply(const tt_dropout_site &site, uint32_t step,
                                                        int64_t row, int64_t column,
                                                        float (&values)[W])
{
    static_assert(W == 1 || W == 8, "a pack is one element or a Philox block");
    if (site.threshold == 0) {
        return;
    }
    tt_random_block drawn = tt_dropout_draw(site, step, row, static_cast<uint32_t>(column / 8));
    if (W == 1) {
        uint32_t low = column & 2 ? drawn.word[1] : drawn.word[0];
        uint32_t high = column & 2 ? drawn.word[3] : drawn.word[2];
        uint32_t word = column & 4 ? high : low;
        values[0] *= tt_dropout_choose(site, column & 1 ? word >> 16 : word & 0xFFFFu);
    } else {
#pragma unroll
        for (int i = 0; i < W; i++) {
            uint32_t word = drawn.word[i / 2];
            values[i] *= tt_dropout_choose(site, i % 2 ? word >> 16 : word & 0xFFFFu);
        }
    }
}

#endif

#include "core/random.h"

#include <math.h>

tt_random_block tt_random_philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (tt_random_block){{c0, c1, c2, c3}};
}

void tt_random_start(tt_random *random, uint64_t seed, uint64_t stream)
{
    *random = (tt_random){
        .key = seed, .stream_low = (uint32_t)stream, .stream_high = (uint32_t)(stream >> 32)};
}

uint32_t tt_random_u32(tt_random *random)
{
    uint32_t lane = (uint32_t)(random->next & 3);
    if (lane == 0) {
        uint64_t block = random->next >> 2;
        random->block = tt_random_philox(random->key, (uint32_t)block, (uint32_t)(block >> 32),
                                         random->stream_low, random->stream_high);
    }
    random->next++;
    return random->block.word[lane];
}

uint32_t tt_random_below(tt_random *random, uint32_t bound)
{
    /* Lemire's method: the high half of a product, with the biased low products drawn again. */
    uint64_t product = (uint64_t)tt_random_u32(random) * bound;
    uint32_t reject_below = -bound % bound;
    while ((uint32_t)product < reject_below) {
        product = (uint64_t)tt_random_u32(random) * bound;
    }
    return (uint32_t)(product >> 32);
}

float tt_random_uniform(tt_random *random)
{
    return (float)(tt_random_u32(random) >> 8) * 0x1p-24f;
}

float tt_random_normal(tt_random *random)
{
    float radius = sqrtf(-2.0f * logf(1.0f - tt_random_uniform(random)));
    return radius * cosf(6.28318530717958648f * tt_random_uniform(random));
}

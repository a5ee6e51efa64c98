/* Elementary functions written without branches, so that a loop over them becomes vector code.
 * Errors are relative, against double precision, over the ranges stated. */
#ifndef TT_CORE_CPU_VECTOR_MATH_H
#define TT_CORE_CPU_VECTOR_MATH_H

#include <stdint.h>
#include <string.h>

static inline float tt_bits_to_float(int32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* exp(x), error below 2e-7; 0 below -87, at most exp(88) above, NaN for NaN. */
static inline float tt_exp(float x)
{
    const float log2_e = 1.44269504088896341f;
    const float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    float bounded = x > 88.0f ? 88.0f : x;
    bounded = bounded < -87.0f ? -87.0f : bounded;
    float n = __builtin_rintf(bounded * log2_e);
    float r = bounded - n * ln2_high;
    r = r - n * ln2_low;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    float scale = tt_bits_to_float((int32_t)((uint32_t)((int32_t)n + 127) << 23));
    return x < -87.0f ? 0.0f : p * scale;
}

/* 2^x for x in [-126, 126]; 1 for 0, NaN for NaN. Error below 2e-7. Where a relative error of 6e-8
 * times the exponent does no harm, as in a softmax or in a tail that is about to vanish, this is
 * the cheaper way to an exponential. */
static inline float tt_exp2(float x)
{
    float n = __builtin_rintf(x);
    float f = x - n;
    float p = 1.32647273e-3f;
    p = p * f + 9.67151299e-3f;
    p = p * f + 5.55073358e-2f;
    p = p * f + 2.40222424e-1f;
    p = p * f + 6.93147004e-1f;
    p = p * f + 1.0f;
    uint32_t bits;
    memcpy(&bits, &p, sizeof bits);
    return tt_bits_to_float((int32_t)(bits + ((uint32_t)(int32_t)n << 23)));
}

/* tanh(x), error below 1e-6 relative. */
static inline float tt_tanh(float x)
{
    float magnitude = x < 0.0f ? -x : x;
    float squared = x * x;
    float small =
        x + x * squared *
                (-0.333333333f +
                 squared * (0.133333333f + squared * (-0.053968254f + squared * 0.021869489f)));
    float decay = tt_exp(-2.0f * magnitude);
    float large = (1.0f - decay) / (1.0f + decay);
    large = x < 0.0f ? -large : large;
    return magnitude < 0.3f ? small : large;
}

/* The standard normal density and distribution at x, which is all that GELU needs:
 * gelu(x) = x * distribution, gelu'(x) = distribution + x * density.
 * The distribution follows Abramowitz and Stegun 7.1.26 (absolute error 1.5e-7). Far out both stop
 * at some 1e-31 instead of becoming too small for fast arithmetic. */
static inline void tt_normal(float x, float *density, float *distribution)
{
    const float half_log2_e = 0.72134752044448170f;
    float magnitude = (x < 0.0f ? -x : x) * 0.70710678118654752f;
    float exponent = -half_log2_e * x * x;
    float bell = tt_exp2(exponent < -100.0f ? -100.0f : exponent);
    float t = 1.0f / (1.0f + 0.3275911f * magnitude);
    float p = 0.5f * 1.061405429f;
    p = p * t - 0.5f * 1.453152027f;
    p = p * t + 0.5f * 1.421413741f;
    p = p * t - 0.5f * 0.284496736f;
    p = p * t + 0.5f * 0.254829592f;
    float tail = p * t * bell;
    *distribution = x < 0.0f ? tail : 1.0f - tail;
    *density = 0.39894228040143268f * bell;
}

#endif

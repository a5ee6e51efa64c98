/* GELU and its derivative at one value, for loops that become vector code. */
#ifndef TT_CORE_CPU_GELU_H
#define TT_CORE_CPU_GELU_H

#include "core/cpu/vector_math.h"

/* Returns gelu(x); the derivative is free where nobody reads it. */
static inline float tt_gelu_erf(float x, float *derivative)
{
    float density, distribution;
    tt_normal(x, &density, &distribution);
    *derivative = distribution + x * density;
    return x * distribution;
}

/* (1 + tanh(z)) / 2 is the logistic function of 2z, which needs one exponential and no cases. The
 * bounds keep it from becoming so small that arithmetic on it is slow. */
static inline float tt_gelu_tanh(float x, float *derivative)
{
    const float slope = 0.79788456080286536f, cubic = 0.044715f, log2_e = 1.44269504088896341f;
    float squared = x * x;
    float exponent = -2.0f * log2_e * slope * x * (1.0f + cubic * squared);
    exponent = exponent > 100.0f ? 100.0f : exponent;
    exponent = exponent < -100.0f ? -100.0f : exponent;
    float logistic = 1.0f / (1.0f + tt_exp2(exponent));
    float z_derivative = 2.0f * slope * (1.0f + 3.0f * cubic * squared);
    *derivative = logistic + x * z_derivative * (logistic * (1.0f - logistic));
    return x * logistic;
}

#endif

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

/* (1 + tanh(z)) / 2 is the logistic function of 2z, which needs one exponential and no cases. */
static inline float tt_gelu_tanh(float x, float *derivative)
{
    const float slope = 0.79788456080286536f, cubic = 0.044715f;
    float squared = x * x;
    float z = slope * x * (1.0f + cubic * squared);
    float logistic = 1.0f / (1.0f + tt_exp(-2.0f * z));
    float z_derivative = slope * (1.0f + 3.0f * cubic * squared);
    *derivative = logistic + 2.0f * x * logistic * (1.0f - logistic) * z_derivative;
    return x * logistic;
}

#endif

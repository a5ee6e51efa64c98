/* GELU and its derivative at one value, in kernels. */
#ifndef TT_CORE_CUDA_GELU_CUH
#define TT_CORE_CUDA_GELU_CUH

#include "core/cuda/cuda_device.h"

/* Returns gelu(x); the derivative costs nothing where nobody reads it. */
template <tt_gelu KIND>
static __device__ __forceinline__ float tt_gelu_of(float x, float *derivative)
{
    if (KIND == TT_GELU_ERF) {
        float distribution = 0.5f + 0.5f * erff(0.70710678118654752f * x);
        float density = 0.39894228040143268f * expf(-0.5f * x * x);
        *derivative = distribution + x * density;
        return x * distribution;
    }
    /* (1 + tanh(z)) / 2 is the logistic function of 2 z. The bound keeps the exponential finite. */
    const float slope = 0.79788456080286536f, cubic = 0.044715f;
    float squared = x * x;
    float exponent = -2.0f * slope * x * (1.0f + cubic * squared);
    float logistic = 1.0f / (1.0f + expf(fminf(exponent, 80.0f)));
    float z_derivative = 2.0f * slope * (1.0f + 3.0f * cubic * squared);
    *derivative = logistic + x * z_derivative * (logistic * (1.0f - logistic));
    return x * logistic;
}

template <tt_gelu KIND> static __device__ __forceinline__ float tt_gelu_value(float x)
{
    float unused;
    return tt_gelu_of<KIND>(x, &unused);
}

#endif

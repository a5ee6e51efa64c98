/* bf16 for the simulator: the types and conversions that ttrain uses; arithmetic goes through
 * float, as kernels do it. */
#ifndef TT_SIMULATOR_CUDA_BF16_H
#define TT_SIMULATOR_CUDA_BF16_H

#include "cuda_runtime.h"

/* Round to nearest, ties to even; every NaN becomes 0x7fff, as on the GPU. */
static inline unsigned short simulator_bf16_bits(float from)
{
    const unsigned int bits = __float_as_uint(from);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0x7fff;
    }
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

struct alignas(2) __nv_bfloat16 {
    unsigned short bits;

    __nv_bfloat16() = default;
    __nv_bfloat16(float from) : bits(simulator_bf16_bits(from))
    {
    }
    operator float() const
    {
        return __uint_as_float(static_cast<unsigned int>(bits) << 16);
    }
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;

    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 x_, __nv_bfloat16 y_) : x(x_), y(y_)
    {
    }
};

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline float __bfloat162float(__nv_bfloat16 from)
{
    return from;
}
static inline __nv_bfloat16 __float2bfloat16_rn(float from)
{
    return __nv_bfloat16(from);
}
static inline __nv_bfloat16 __float2bfloat16(float from)
{
    return __nv_bfloat16(from);
}
static inline __nv_bfloat16 __float2bfloat16_rz(float from)
{
    __nv_bfloat16 to;
    to.bits = static_cast<unsigned short>(__float_as_uint(from) >> 16);
    return to;
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return __nv_bfloat162(__nv_bfloat16(x), __nv_bfloat16(y));
}
static inline __nv_bfloat162 __float22bfloat162_rn(float2 from)
{
    return __floats2bfloat162_rn(from.x, from.y);
}
static inline float2 __bfloat1622float2(__nv_bfloat162 from)
{
    return make_float2(from.x, from.y);
}
static inline float __low2float(__nv_bfloat162 from)
{
    return from.x;
}
static inline float __high2float(__nv_bfloat162 from)
{
    return from.y;
}
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 from)
{
    return from.x;
}
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 from)
{
    return from.y;
}
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y)
{
    return __nv_bfloat162(x, y);
}
static inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y)
{
    return __nv_bfloat162(x, y);
}
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 both)
{
    return __nv_bfloat162(both, both);
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 from)
{
    return from.bits;
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    __nv_bfloat16 to;
    to.bits = bits;
    return to;
}

#endif

/* CUDA's vector types. */
#ifndef TT_SIMULATOR_VECTOR_TYPES_H
#define TT_SIMULATOR_VECTOR_TYPES_H

#define SIMULATOR_VECTOR(name, scalar, unit)                                                       \
    struct alignas(2 * (unit)) name##2                                                             \
    {                                                                                              \
        scalar x, y;                                                                               \
    };                                                                                             \
    struct name##3                                                                                 \
    {                                                                                              \
        scalar x, y, z;                                                                            \
    };                                                                                             \
    struct alignas((4 * (unit)) > 16 ? 16 : 4 * (unit)) name##4                                    \
    {                                                                                              \
        scalar x, y, z, w;                                                                         \
    };                                                                                             \
    static inline name##2 make_##name##2(scalar x, scalar y)                                       \
    {                                                                                              \
        return name##2 {x, y};                                                                     \
    }                                                                                              \
    static inline name##3 make_##name##3(scalar x, scalar y, scalar z)                             \
    {                                                                                              \
        return name##3 {x, y, z};                                                                  \
    }                                                                                              \
    static inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w)                   \
    {                                                                                              \
        return name##4 {x, y, z, w};                                                               \
    }

SIMULATOR_VECTOR(char, signed char, 1)
SIMULATOR_VECTOR(uchar, unsigned char, 1)
SIMULATOR_VECTOR(short, short, 2)
SIMULATOR_VECTOR(ushort, unsigned short, 2)
SIMULATOR_VECTOR(int, int, 4)
SIMULATOR_VECTOR(uint, unsigned int, 4)
SIMULATOR_VECTOR(float, float, 4)
SIMULATOR_VECTOR(longlong, long long, 8)
SIMULATOR_VECTOR(ulonglong, unsigned long long, 8)
SIMULATOR_VECTOR(double, double, 8)

#undef SIMULATOR_VECTOR

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1)
        : x(x_), y(y_), z(z_)
    {
    }
    constexpr dim3(uint3 from) : x(from.x), y(from.y), z(from.z)
    {
    }
};

#endif

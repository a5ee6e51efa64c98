/* The arithmetic of a warp's matrix product. */
#include "mma.h"

#include "runtime.hpp"

namespace simulator
{

namespace
{

/* Dense copies of what the lanes hold. */
struct tiles {
    float a[16][16], b[16][16], d[16][16];
};

void gather(warp_matrix *const lanes[32], tiles *to)
{
    float *a = &to->a[0][0], *b = &to->b[0][0], *d = &to->d[0][0];
    for (int lane = 0; lane < 32; lane++) {
        const auto *of = static_cast<const matrix_product *>(lanes[lane]);
        for (int i = 0; i < lane_elements; i++) {
            a[i * 32 + lane] = __bfloat162float(of->a[i]);
            b[i * 32 + lane] = __bfloat162float(of->b[i]);
            d[i * 32 + lane] = of->c[i];
        }
    }
}

} // namespace

void matrix_multiply(warp_matrix *const lanes[32])
{
    tiles of;
    gather(lanes, &of);
    for (int row = 0; row < 16; row++) {
        for (int k = 0; k < 16; k++) {
            const float left = of.a[row][k];
            for (int column = 0; column < 16; column++) {
                of.d[row][column] += left * of.b[k][column];
            }
        }
    }
    const float *d = &of.d[0][0];
    for (int lane = 0; lane < 32; lane++) {
        auto *to = static_cast<matrix_product *>(lanes[lane]);
        for (int i = 0; i < lane_elements; i++) {
            to->d[i] = d[i * 32 + lane];
        }
    }
}

void check_tile(const void *memory, unsigned int stride, size_t element_bytes, site where)
{
    if (reinterpret_cast<uintptr_t>(memory) % 32 != 0 || stride * element_bytes % 16 != 0) {
        simulator_fail("a wmma tile (%s) must begin at a multiple of 32 bytes and have a stride "
                       "that is a multiple of 16: found %p and %zu bytes",
                       place(where).c_str(), memory, stride * element_bytes);
    }
}

} // namespace simulator

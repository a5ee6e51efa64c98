/* nvcuda::wmma for the simulator: bf16 products of 16 x 16 x 16 with f32 sums. Which elements a
 * lane holds is the simulator's own choice, as it is the GPU's: only uses that do not depend on it
 * work on both. */
#ifndef TT_SIMULATOR_MMA_H
#define TT_SIMULATOR_MMA_H

#include "cuda_bf16.h"

namespace simulator
{

/* Elements of a 16 x 16 tile that a lane holds: number i is element i * 32 + lane, row by row. */
constexpr int lane_elements = 8;

struct matrix_product : warp_matrix {
    const __nv_bfloat16 *a, *b;
    const float *c;
    float *d;
};

void matrix_multiply(warp_matrix *const lanes[32]);
/* Checks what the hardware asks of a tile's place in memory. */
void check_tile(const void *memory, unsigned int stride, size_t element_bytes, site where);

/* The offset of the lane's element `i` in a tile with rows (columns, where `columns`) `stride`
 * apart. */
static inline size_t tile_offset(int i, unsigned int stride, bool columns)
{
    const unsigned int element = static_cast<unsigned int>(i) * 32 + lane();
    const unsigned int row = element / 16, column = element % 16;
    return columns ? static_cast<size_t>(column) * stride + row
                   : static_cast<size_t>(row) * stride + column;
}

} // namespace simulator

namespace nvcuda
{
namespace wmma
{

struct row_major;
struct col_major;
struct matrix_a;
struct matrix_b;
struct accumulator;
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int M, int N, int K, typename T, typename Layout = void> struct fragment;

template <typename T> struct simulated_fragment {
    enum { num_elements = simulator::lane_elements };
    T x[simulator::lane_elements];
};

template <>
struct fragment<matrix_a, 16, 16, 16, __nv_bfloat16, row_major>
    : simulated_fragment<__nv_bfloat16> {
    static constexpr bool columns = false;
};
template <>
struct fragment<matrix_a, 16, 16, 16, __nv_bfloat16, col_major>
    : simulated_fragment<__nv_bfloat16> {
    static constexpr bool columns = true;
};
template <>
struct fragment<matrix_b, 16, 16, 16, __nv_bfloat16, row_major>
    : simulated_fragment<__nv_bfloat16> {
    static constexpr bool columns = false;
};
template <>
struct fragment<matrix_b, 16, 16, 16, __nv_bfloat16, col_major>
    : simulated_fragment<__nv_bfloat16> {
    static constexpr bool columns = true;
};
template <> struct fragment<accumulator, 16, 16, 16, float> : simulated_fragment<float> {
};

template <typename Use, typename T, typename Layout>
void fill_fragment(fragment<Use, 16, 16, 16, T, Layout> &to, T value)
{
    for (T &element : to.x) {
        element = value;
    }
}

template <typename Use, typename Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, __nv_bfloat16, Layout> &to,
                      const __nv_bfloat16 *from, unsigned int stride,
                      const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    simulator::check_tile(from, stride, sizeof(*from), {file, line});
    for (int i = 0; i < simulator::lane_elements; i++) {
        to.x[i] = from[simulator::tile_offset(i, stride, to.columns)];
    }
}

static inline void load_matrix_sync(fragment<accumulator, 16, 16, 16, float> &to, const float *from,
                                    unsigned int stride, layout_t layout,
                                    const char *file = __builtin_FILE(),
                                    int line = __builtin_LINE())
{
    simulator::check_tile(from, stride, sizeof(*from), {file, line});
    for (int i = 0; i < simulator::lane_elements; i++) {
        to.x[i] = from[simulator::tile_offset(i, stride, layout == mem_col_major)];
    }
}

static inline void store_matrix_sync(float *to,
                                     const fragment<accumulator, 16, 16, 16, float> &from,
                                     unsigned int stride, layout_t layout,
                                     const char *file = __builtin_FILE(),
                                     int line = __builtin_LINE())
{
    simulator::check_tile(to, stride, sizeof(*to), {file, line});
    for (int i = 0; i < simulator::lane_elements; i++) {
        to[simulator::tile_offset(i, stride, layout == mem_col_major)] = from.x[i];
    }
}

template <typename A, typename B>
void mma_sync(fragment<accumulator, 16, 16, 16, float> &d,
              const fragment<matrix_a, 16, 16, 16, __nv_bfloat16, A> &a,
              const fragment<matrix_b, 16, 16, 16, __nv_bfloat16, B> &b,
              const fragment<accumulator, 16, 16, 16, float> &c,
              const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    simulator::matrix_product operands;
    operands.run = simulator::matrix_multiply;
    operands.a = a.x;
    operands.b = b.x;
    operands.c = c.x;
    operands.d = d.x;
    simulator::warp_meet(
        simulator::warp_operation::matrix, 0xffffffffu,
        reinterpret_cast<uintptr_t>(static_cast<simulator::warp_matrix *>(&operands)), 0,
        {file, line});
}

} // namespace wmma
} // namespace nvcuda

#endif

/* The one door to oneDNN's matrix product: f32, row-major, c = alpha op(a) op(b) + beta c, with row
 * strides. Called from outside a parallel region it uses the device's threads, from inside one the
 * calling thread. The C function dnnl_sgemm is the same in oneDNN 2.x and 3.x. */
#ifndef TT_CORE_CPU_MATRIX_PRODUCT_H
#define TT_CORE_CPU_MATRIX_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

/* op(a) is [m, k], op(b) [k, n], c [m, n]. */
void tt_matrix_product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                       float alpha, const float *a, int64_t a_stride, const float *b,
                       int64_t b_stride, float beta, float *c, int64_t c_stride);

#endif

/* Matrices in device memory as cuBLAS sees them, and their products by the CPU library: what
 * cublas.cpp and cublas_lt.cpp share. */
#ifndef TT_SIMULATOR_MATRIX_HPP
#define TT_SIMULATOR_MATRIX_HPP

#include "cublas_v2.h"
#include "simulator_runtime.hpp"

/* Column-major; `rows` and `columns` as stored, before it is transposed. */
struct simulator_matrix {
    void *data;
    cudaDataType type;
    int64_t rows, columns, ld;
    bool transposed;
};

/* d = alpha op(a) op(b) + beta c. c is not read where beta is 0; c and d may be the same. */
struct simulator_product {
    simulator_matrix a, b, c, d;
    int64_t m, n, k;
    float alpha, beta;
    bool tf32; /* f32 operands are rounded to TF32 first */
};

/* Bytes of an element; 0 for types that products do not take. */
size_t simulator_element(cudaDataType type);
float simulator_bfloat16_to_float(uint16_t value);
uint16_t simulator_float_to_bfloat16(float value);
float simulator_round_to_tf32(float value);

/* What the matrix touches. */
simulator_range simulator_matrix_reads(const simulator_matrix &matrix);
simulator_range simulator_matrix_writes(const simulator_matrix &matrix);
/* All that the product touches. */
void simulator_add_ranges(const simulator_product &product, std::vector<simulator_range> &ranges);

/* Element by element, from and to f32 that are packed column after column. */
std::vector<float> simulator_read(const simulator_matrix &matrix, bool tf32);
void simulator_write(const simulator_matrix &matrix, const std::vector<float> &values);

/* The whole product. For work in a stream: device memory must be open. */
void simulator_multiply(const simulator_product &product);
/* alpha op(a) op(b) + beta c in f32, packed, before it is rounded to d's type. */
std::vector<float> simulator_multiply_unrounded(const simulator_product &product);

/* Says on stderr why a call of cuBLAS is refused, since a status cannot. `call` NULL: says nothing,
 * for who only asks. */
cublasStatus_t simulator_refuse(cublasStatus_t status, const char *call, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Whether cuBLAS multiplies these types; else the status that it returns. */
cublasStatus_t simulator_check_types(const char *call, cudaDataType a, cudaDataType b,
                                     cudaDataType c, cublasComputeType_t compute);

#endif

#include "matrix.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <dnnl.h>
#include <omp.h>

size_t simulator_element(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 0;
}

float simulator_bfloat16_to_float(uint16_t value)
{
    uint32_t bits = static_cast<uint32_t>(value) << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* To the nearest number with `dropped` fewer bits of mantissa, ties to even. */
static uint32_t round_bits(float value, int dropped)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
        return bits | 0x00400000u; /* NaN stays NaN */
    }
    uint32_t last = bits >> dropped & 1u;
    return bits + ((1u << (dropped - 1)) - 1u) + last;
}

uint16_t simulator_float_to_bfloat16(float value)
{
    return static_cast<uint16_t>(round_bits(value, 16) >> 16);
}

float simulator_round_to_tf32(float value)
{
    uint32_t bits = round_bits(value, 13) & ~0x1FFFu;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static size_t bytes(const simulator_matrix &matrix, int64_t elements)
{
    return static_cast<size_t>(elements) * simulator_element(matrix.type);
}

simulator_range simulator_matrix_reads(const simulator_matrix &matrix)
{
    return simulator_reads(matrix.data, bytes(matrix, matrix.rows),
                           static_cast<size_t>(matrix.columns), bytes(matrix, matrix.ld));
}

simulator_range simulator_matrix_writes(const simulator_matrix &matrix)
{
    return simulator_writes(matrix.data, bytes(matrix, matrix.rows),
                            static_cast<size_t>(matrix.columns), bytes(matrix, matrix.ld));
}

void simulator_add_ranges(const simulator_product &product, std::vector<simulator_range> &ranges)
{
    if (product.m == 0 || product.n == 0) {
        return;
    }
    if (product.k > 0) {
        ranges.push_back(simulator_matrix_reads(product.a));
        ranges.push_back(simulator_matrix_reads(product.b));
    }
    if (product.beta != 0.0f) {
        ranges.push_back(simulator_matrix_reads(product.c));
    }
    ranges.push_back(simulator_matrix_writes(product.d));
}

std::vector<float> simulator_read(const simulator_matrix &matrix, bool tf32)
{
    std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.columns));
    for (int64_t j = 0; j < matrix.columns; j++) {
        float *to = values.data() + j * matrix.rows;
        if (matrix.type == CUDA_R_16BF) {
            const uint16_t *from = static_cast<const uint16_t *>(matrix.data) + j * matrix.ld;
            for (int64_t i = 0; i < matrix.rows; i++) {
                to[i] = simulator_bfloat16_to_float(from[i]);
            }
            continue;
        }
        const float *from = static_cast<const float *>(matrix.data) + j * matrix.ld;
        for (int64_t i = 0; i < matrix.rows; i++) {
            to[i] = tf32 ? simulator_round_to_tf32(from[i]) : from[i];
        }
    }
    return values;
}

void simulator_write(const simulator_matrix &matrix, const std::vector<float> &values)
{
    for (int64_t j = 0; j < matrix.columns; j++) {
        const float *from = values.data() + j * matrix.rows;
        if (matrix.type == CUDA_R_16BF) {
            uint16_t *to = static_cast<uint16_t *>(matrix.data) + j * matrix.ld;
            for (int64_t i = 0; i < matrix.rows; i++) {
                to[i] = simulator_float_to_bfloat16(from[i]);
            }
            continue;
        }
        memcpy(static_cast<float *>(matrix.data) + j * matrix.ld, from,
               static_cast<size_t>(matrix.rows) * sizeof(float));
    }
}

/* --- products --- */

namespace
{
/* The operand in f32: device memory itself where it holds what is multiplied, else a copy. */
struct operand {
    std::vector<float> copy;
    const float *data;
    int64_t ld;

    operand(const simulator_matrix &matrix, bool tf32)
        : data(static_cast<const float *>(matrix.data)), ld(matrix.ld)
    {
        if (matrix.type != CUDA_R_32F || tf32) {
            copy = simulator_read(matrix, tf32);
            data = copy.data();
            ld = matrix.rows;
        }
    }
};

/* The library may split a sum among its threads; one thread adds in one order, whoever calls. */
class one_thread
{
  public:
    one_thread() : before_(omp_get_max_threads())
    {
        omp_set_num_threads(1);
    }
    ~one_thread()
    {
        omp_set_num_threads(before_);
    }
    one_thread(const one_thread &) = delete;
    one_thread &operator=(const one_thread &) = delete;

  private:
    int before_;
};
} // namespace

/* to = alpha op(a) op(b) + beta to. The library is row-major: it is asked for the transpose. */
static void multiply(const simulator_product &product, float beta, float *to, int64_t ld)
{
    operand a(product.a, product.tf32), b(product.b, product.tf32);
    one_thread limit;
    dnnl_status_t status =
        dnnl_sgemm(product.b.transposed ? 'T' : 'N', product.a.transposed ? 'T' : 'N', product.n,
                   product.m, product.k, product.alpha, b.data, b.ld, a.data, a.ld, beta, to, ld);
    if (status != dnnl_success) {
        simulator_fail("a product of %lld x %lld x %lld: oneDNN returns %d",
                       static_cast<long long>(product.m), static_cast<long long>(product.n),
                       static_cast<long long>(product.k), static_cast<int>(status));
    }
}

std::vector<float> simulator_multiply_unrounded(const simulator_product &product)
{
    std::vector<float> result(static_cast<size_t>(product.m * product.n), 0.0f);
    if (product.beta != 0.0f) {
        result = simulator_read(product.c, false);
    }
    if (product.k > 0) {
        multiply(product, product.beta, result.data(), product.m);
        return result;
    }
    for (float &value : result) {
        value *= product.beta;
    }
    return result;
}

void simulator_multiply(const simulator_product &product)
{
    if (product.m == 0 || product.n == 0) {
        return;
    }
    bool in_place = product.beta == 0.0f || product.c.data == product.d.data;
    if (product.d.type == CUDA_R_32F && in_place && product.k > 0) {
        multiply(product, product.beta, static_cast<float *>(product.d.data), product.d.ld);
    } else {
        simulator_write(product.d, simulator_multiply_unrounded(product));
    }
}

/* --- checks --- */

cublasStatus_t simulator_refuse(cublasStatus_t status, const char *call, const char *format, ...)
{
    if (!call) {
        return status;
    }
    char reason[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    fprintf(stderr, "simulator: %s: %s: %s\n", call, cublasGetStatusName(status), reason);
    return status;
}

cublasStatus_t simulator_check_types(const char *call, cudaDataType a, cudaDataType b,
                                     cudaDataType c, cublasComputeType_t compute)
{
    bool known = compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC;
    bool fast = compute == CUBLAS_COMPUTE_32F_FAST_TF32 || compute == CUBLAS_COMPUTE_32F_FAST_16BF;
    bool fits = a == CUDA_R_32F ? c == CUDA_R_32F && (known || fast)
                                : a == CUDA_R_16BF && known && simulator_element(c) > 0;
    if (a == b && fits) {
        return CUBLAS_STATUS_SUCCESS;
    }
    return simulator_refuse(
        CUBLAS_STATUS_NOT_SUPPORTED, call, "no product of types %d and %d into %d, computed as %d",
        static_cast<int>(a), static_cast<int>(b), static_cast<int>(c), static_cast<int>(compute));
}

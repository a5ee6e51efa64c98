/* cuBLAS: products put into the handle's stream. Arguments are checked when the call is made, as
 * cuBLAS does, and everything it leaves undefined is refused. */
#include "matrix.hpp"

#include <map>
#include <new>

struct cublasContext {
    int device;
    cudaStream_t stream;
    cublasMath_t math;
    void *workspace;
    size_t workspace_bytes;
};

/* --- status --- */

const char *cublasGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
        return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "CUBLAS_STATUS_UNKNOWN";
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "the operation completed successfully";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the functionality requested is not supported";
    default:
        return "an internal operation failed";
    }
}

/* --- handles --- */

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    if (!handle) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, "cublasCreate", "no place for it");
    }
    int device;
    if (simulator_forbidden_in_capture("cublasCreate") != cudaSuccess ||
        cudaGetDevice(&device) != cudaSuccess) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    *handle = new (std::nothrow) cublasContext{device, nullptr, CUBLAS_DEFAULT_MATH, nullptr, 0};
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
    if (!handle) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    if (simulator_forbidden_in_capture("cublasDestroy") != cudaSuccess) {
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion(cublasHandle_t handle, int *version)
{
    if (!handle || !version) {
        return handle ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_INITIALIZED;
    }
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
    if (!handle) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    if (simulator_stream_device(stream) != handle->device) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, "cublasSetStream",
                                "the stream belongs to device %d, the handle to device %d",
                                simulator_stream_device(stream), handle->device);
    }
    handle->stream = stream;
    handle->workspace = nullptr;
    handle->workspace_bytes = 0;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t *stream)
{
    if (!handle || !stream) {
        return handle ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_INITIALIZED;
    }
    *stream = handle->stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes)
{
    if (!handle) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, "cublasSetWorkspace",
                                "%p is not aligned to 256 bytes", workspace);
    }
    if (bytes > 0 && !simulator_is_device_memory(workspace, bytes)) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, "cublasSetWorkspace",
                                "%zu bytes at %p are not device memory", bytes, workspace);
    }
    handle->workspace = workspace;
    handle->workspace_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    if (!handle) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    int base = mode & ~CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    if (base != CUBLAS_DEFAULT_MATH && base != CUBLAS_PEDANTIC_MATH &&
        base != CUBLAS_TF32_TENSOR_OP_MATH) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, "cublasSetMathMode", "no mode %d",
                                static_cast<int>(mode));
    }
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode)
{
    if (!handle || !mode) {
        return handle ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_INITIALIZED;
    }
    *mode = handle->math;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode)
{
    if (!handle) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    if (mode != CUBLAS_POINTER_MODE_HOST) {
        simulator_fail("cublasSetPointerMode: factors in device memory are not simulated");
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t)
{
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

/* --- products --- */

namespace
{
/* What a call says of one product, without its addresses. */
struct shape {
    cublasOperation_t transa, transb;
    int m, n, k;
    int lda, ldb, ldc;
    cudaDataType a_type, b_type, c_type;
    float alpha, beta;
};
} // namespace

static bool uses_tf32(cublasHandle_t handle, cudaDataType type, cublasComputeType_t compute)
{
    int base = handle->math & ~CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    return type == CUDA_R_32F &&
           (compute == CUBLAS_COMPUTE_32F_FAST_TF32 ||
            (compute == CUBLAS_COMPUTE_32F && base == CUBLAS_TF32_TENSOR_OP_MATH));
}

static cublasStatus_t check_leading(const char *call, const char *name, int64_t ld, int64_t rows)
{
    if (ld >= (rows > 1 ? rows : 1)) {
        return CUBLAS_STATUS_SUCCESS;
    }
    return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                            "%s is %lld but the matrix has %lld rows", name,
                            static_cast<long long>(ld), static_cast<long long>(rows));
}

static cublasStatus_t check_shape(const char *call, const shape &shape)
{
    if (shape.m < 0 || shape.n < 0 || shape.k < 0) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call, "m %d, n %d, k %d", shape.m,
                                shape.n, shape.k);
    }
    if (shape.transa < CUBLAS_OP_N || shape.transa > CUBLAS_OP_C || shape.transb < CUBLAS_OP_N ||
        shape.transb > CUBLAS_OP_C) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call, "operations %d and %d",
                                static_cast<int>(shape.transa), static_cast<int>(shape.transb));
    }
    cublasStatus_t status =
        check_leading(call, "lda", shape.lda, shape.transa == CUBLAS_OP_N ? shape.m : shape.k);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status =
            check_leading(call, "ldb", shape.ldb, shape.transb == CUBLAS_OP_N ? shape.k : shape.n);
    }
    return status == CUBLAS_STATUS_SUCCESS ? check_leading(call, "ldc", shape.ldc, shape.m)
                                           : status;
}

static simulator_product make_product(const shape &shape, const void *a, const void *b, void *c,
                                      bool tf32)
{
    bool ta = shape.transa != CUBLAS_OP_N, tb = shape.transb != CUBLAS_OP_N;
    simulator_matrix a_matrix = {const_cast<void *>(a),  shape.a_type, ta ? shape.k : shape.m,
                                 ta ? shape.m : shape.k, shape.lda,    ta};
    simulator_matrix b_matrix = {const_cast<void *>(b),  shape.b_type, tb ? shape.n : shape.k,
                                 tb ? shape.k : shape.n, shape.ldb,    tb};
    simulator_matrix c_matrix = {c, shape.c_type, shape.m, shape.n, shape.ldc, false};
    return simulator_product{a_matrix, b_matrix, c_matrix,    c_matrix,   shape.m,
                             shape.n,  shape.k,  shape.alpha, shape.beta, tf32};
}

/* A null pointer, or one that no element may lie at, where there is something to multiply. */
static cublasStatus_t check_addresses(const char *call, const simulator_product &product)
{
    if (product.m == 0 || product.n == 0) {
        return CUBLAS_STATUS_SUCCESS;
    }
    const simulator_matrix *matrices[] = {&product.a, &product.b, &product.c};
    for (int i = product.k > 0 ? 0 : 2; i < 3; i++) {
        uintptr_t address = reinterpret_cast<uintptr_t>(matrices[i]->data);
        if (address == 0 || address % simulator_element(matrices[i]->type) != 0) {
            return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call, "matrix %c lies at %p",
                                    "ABC"[i], matrices[i] -> data);
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* Products that share a workspace must not run at once: the range shows those that might. */
static cublasStatus_t add_workspace(cublasHandle_t handle, const char *call,
                                    std::vector<simulator_range> &ranges)
{
    if (handle->workspace_bytes > 0) {
        ranges.push_back(simulator_writes(handle->workspace, 256));
        return CUBLAS_STATUS_SUCCESS;
    }
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (handle->stream && cudaStreamIsCapturing(handle->stream, &status) != cudaSuccess) {
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    if (status != cudaStreamCaptureStatusNone) {
        return simulator_refuse(CUBLAS_STATUS_NOT_SUPPORTED, call,
                                "captured without cublasSetWorkspace, so the library would "
                                "allocate during the capture");
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t enqueue(cublasHandle_t handle, const char *call, std::function<void()> work,
                              std::vector<simulator_range> ranges)
{
    cublasStatus_t status = add_workspace(handle, call, ranges);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    cudaError_t error = simulator_enqueue(handle->stream, call, std::move(work), std::move(ranges));
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

/* Products of one call run in any order, so none may write what another reads or writes. */
static void check_independence(const char *call, const std::vector<simulator_product> &products)
{
    std::map<const void *, size_t> writer;
    for (size_t i = 0; i < products.size(); i++) {
        auto [other, first] = writer.emplace(products[i].d.data, i);
        if (!first) {
            simulator_fail("%s: products %zu and %zu both write to %p", call, other->second, i,
                           products[i].d.data);
        }
    }
    for (size_t i = 0; i < products.size(); i++) {
        for (const void *read : {products[i].a.data, products[i].b.data}) {
            auto other = writer.find(read);
            if (products[i].k > 0 && other != writer.end()) {
                simulator_fail("%s: product %zu reads %p, which product %zu writes", call, i, read,
                               other->second);
            }
        }
    }
}

/* `count` products of one shape, at addresses that the host knows. */
static cublasStatus_t multiply_strided(cublasHandle_t handle, const char *call, const shape &shape,
                                       const void *a, int64_t a_stride, const void *b,
                                       int64_t b_stride, void *c, int64_t c_stride, int count,
                                       cublasComputeType_t compute)
{
    cublasStatus_t status =
        simulator_check_types(call, shape.a_type, shape.b_type, shape.c_type, compute);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = check_shape(call, shape);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    int64_t c_bytes = static_cast<int64_t>(simulator_element(shape.c_type));
    int64_t a_bytes = static_cast<int64_t>(simulator_element(shape.a_type));
    std::vector<simulator_product> products;
    std::vector<simulator_range> ranges;
    bool tf32 = uses_tf32(handle, shape.a_type, compute);
    for (int i = 0; i < count && status == CUBLAS_STATUS_SUCCESS; i++) {
        products.push_back(make_product(shape,
                                        static_cast<const char *>(a) + i * a_stride * a_bytes,
                                        static_cast<const char *>(b) + i * b_stride * a_bytes,
                                        static_cast<char *>(c) + i * c_stride * c_bytes, tf32));
        status = check_addresses(call, products.back());
        simulator_add_ranges(products.back(), ranges);
    }
    if (status != CUBLAS_STATUS_SUCCESS || ranges.empty()) {
        return status;
    }
    return enqueue(
        handle, call,
        [call, products] {
            check_independence(call, products);
            for (const simulator_product &product : products) {
                simulator_multiply(product);
            }
        },
        ranges);
}

static cublasStatus_t check_handle(cublasHandle_t handle, const char *call, const void *alpha,
                                   const void *beta, int count)
{
    if (!handle) {
        return simulator_refuse(CUBLAS_STATUS_NOT_INITIALIZED, call, "there is no handle");
    }
    if (!alpha || !beta || count < 0) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                "alpha at %p, beta at %p, %d products", alpha, beta, count);
    }
    if (simulator_is_device_memory(alpha, sizeof(float)) ||
        simulator_is_device_memory(beta, sizeof(float))) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                "alpha or beta lie in device memory");
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                          cublasOperation_t transb, int m, int n, int k,
                                          const void *alpha, const void *A, cudaDataType Atype,
                                          int lda, long long int strideA, const void *B,
                                          cudaDataType Btype, int ldb, long long int strideB,
                                          const void *beta, void *C, cudaDataType Ctype, int ldc,
                                          long long int strideC, int batchCount,
                                          cublasComputeType_t computeType, cublasGemmAlgo_t)
{
    const char *call = "cublasGemmStridedBatchedEx";
    cublasStatus_t status = check_handle(handle, call, alpha, beta, batchCount);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    shape shape = {transa,
                   transb,
                   m,
                   n,
                   k,
                   lda,
                   ldb,
                   ldc,
                   Atype,
                   Btype,
                   Ctype,
                   *static_cast<const float *>(alpha),
                   *static_cast<const float *>(beta)};
    /* Results that overlap depend on which product comes last. */
    int64_t extent = static_cast<int64_t>(n - 1) * ldc + m;
    if (batchCount > 1 && m > 0 && n > 0 && strideC < m && -strideC < m) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                "results of %lld elements lie only %lld apart",
                                static_cast<long long>(extent), strideC);
    }
    return multiply_strided(handle, call, shape, A, strideA, B, strideB, C, strideC, batchCount,
                            computeType);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void *alpha,
                            const void *A, cudaDataType Atype, int lda, const void *B,
                            cudaDataType Btype, int ldb, const void *beta, void *C,
                            cudaDataType Ctype, int ldc, cublasComputeType_t computeType,
                            cublasGemmAlgo_t)
{
    const char *call = "cublasGemmEx";
    cublasStatus_t status = check_handle(handle, call, alpha, beta, 1);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    shape shape = {transa,
                   transb,
                   m,
                   n,
                   k,
                   lda,
                   ldb,
                   ldc,
                   Atype,
                   Btype,
                   Ctype,
                   *static_cast<const float *>(alpha),
                   *static_cast<const float *>(beta)};
    return multiply_strided(handle, call, shape, A, 0, B, 0, C, 0, 1, computeType);
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transa,
                           cublasOperation_t transb, int m, int n, int k, const float *alpha,
                           const float *A, int lda, const float *B, int ldb, const float *beta,
                           float *C, int ldc)
{
    return cublasGemmEx(handle, transa, transb, m, n, k, alpha, A, CUDA_R_32F, lda, B, CUDA_R_32F,
                        ldb, beta, C, CUDA_R_32F, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

/* --- products at addresses in device memory --- */

/* The rule of batched products: where k lets a kernel load several elements of an operand at once,
 * it does, whatever the address. */
static void check_alignment(const char *call, const simulator_product &product, int64_t number)
{
    uintptr_t needed = simulator_element(product.a.type);
    if (product.a.type == CUDA_R_16BF) {
        needed = product.k % 8 == 0 ? 16 : product.k % 2 == 0 ? 4 : 2;
    } else if (product.tf32 && product.k % 4 == 0) {
        needed = 16;
    }
    const simulator_matrix *matrices[] = {&product.a, &product.b, &product.d};
    for (int i = 0; i < 3; i++) {
        uintptr_t address = reinterpret_cast<uintptr_t>(matrices[i]->data);
        if (address % needed != 0 || address == 0) {
            simulator_fail("%s: matrix %c of product %lld lies at %p: k %lld needs an alignment "
                           "of %d bytes",
                           call, "ABC"[i], static_cast<long long>(number), matrices[i]->data,
                           static_cast<long long>(product.k), static_cast<int>(needed));
        }
    }
}

static void run_listed(const char *call, const std::vector<shape> &shapes,
                       const void *const *a_array, const void *const *b_array, void *const *c_array,
                       bool tf32)
{
    std::vector<simulator_product> products;
    std::vector<simulator_range> ranges;
    for (size_t i = 0; i < shapes.size(); i++) {
        if (shapes[i].m == 0 || shapes[i].n == 0) {
            continue;
        }
        products.push_back(make_product(shapes[i], a_array[i], b_array[i], c_array[i], tf32));
        check_alignment(call, products.back(), static_cast<int64_t>(i));
        simulator_add_ranges(products.back(), ranges);
    }
    check_independence(call, products);
    simulator_touch(call, ranges);
    for (const simulator_product &product : products) {
        simulator_multiply(product);
    }
}

/* One product for each shape; the arrays of addresses lie in device memory. */
static cublasStatus_t multiply_listed(cublasHandle_t handle, const char *call,
                                      const std::vector<shape> &shapes, const void *const a_array[],
                                      const void *const b_array[], void *const c_array[],
                                      cublasComputeType_t compute)
{
    if (shapes.empty()) {
        return CUBLAS_STATUS_SUCCESS;
    }
    const shape &first = shapes[0];
    cublasStatus_t status =
        simulator_check_types(call, first.a_type, first.b_type, first.c_type, compute);
    for (size_t i = 0; i < shapes.size() && status == CUBLAS_STATUS_SUCCESS; i++) {
        status = check_shape(call, shapes[i]);
    }
    size_t bytes = shapes.size() * sizeof(void *);
    const void *const arrays[] = {a_array, b_array, c_array};
    std::vector<simulator_range> ranges;
    for (int i = 0; i < 3 && status == CUBLAS_STATUS_SUCCESS; i++) {
        if (!simulator_is_device_memory(arrays[i], bytes)) {
            status = simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                      "the addresses of matrices %c, at %p, are not in device "
                                      "memory",
                                      "ABC"[i], arrays[i]);
        }
        ranges.push_back(simulator_reads(arrays[i], bytes));
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    bool tf32 = uses_tf32(handle, first.a_type, compute);
    return enqueue(
        handle, call,
        [call, shapes, a_array, b_array, c_array, tf32] {
            run_listed(call, shapes, a_array, b_array, c_array, tf32);
        },
        ranges);
}

cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                   cublasOperation_t transb, int m, int n, int k, const void *alpha,
                                   const void *const Aarray[], cudaDataType Atype, int lda,
                                   const void *const Barray[], cudaDataType Btype, int ldb,
                                   const void *beta, void *const Carray[], cudaDataType Ctype,
                                   int ldc, int batchCount, cublasComputeType_t computeType,
                                   cublasGemmAlgo_t)
{
    const char *call = "cublasGemmBatchedEx";
    cublasStatus_t status = check_handle(handle, call, alpha, beta, batchCount);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    shape shape = {transa,
                   transb,
                   m,
                   n,
                   k,
                   lda,
                   ldb,
                   ldc,
                   Atype,
                   Btype,
                   Ctype,
                   *static_cast<const float *>(alpha),
                   *static_cast<const float *>(beta)};
    std::vector<struct shape> shapes(static_cast<size_t>(batchCount), shape);
    return multiply_listed(handle, call, shapes, Aarray, Barray, Carray, computeType);
}

cublasStatus_t cublasGemmGroupedBatchedEx(
    cublasHandle_t handle, const cublasOperation_t transa_array[],
    const cublasOperation_t transb_array[], const int m_array[], const int n_array[],
    const int k_array[], const void *alpha_array, const void *const Aarray[], cudaDataType Atype,
    const int lda_array[], const void *const Barray[], cudaDataType Btype, const int ldb_array[],
    const void *beta_array, void *const Carray[], cudaDataType Ctype, const int ldc_array[],
    int group_count, const int group_size[], cublasComputeType_t computeType)
{
    const char *call = "cublasGemmGroupedBatchedEx";
    cublasStatus_t status = check_handle(handle, call, alpha_array, beta_array, group_count);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    if (Ctype != Atype || computeType == CUBLAS_COMPUTE_32F_FAST_16BF) {
        return simulator_refuse(CUBLAS_STATUS_NOT_SUPPORTED, call,
                                "grouped products of type %d give no type %d, computed as %d",
                                static_cast<int>(Atype), static_cast<int>(Ctype),
                                static_cast<int>(computeType));
    }
    std::vector<shape> shapes;
    for (int i = 0; i < group_count; i++) {
        if (group_size[i] < 0) {
            return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call, "group %d has %d products",
                                    i, group_size[i]);
        }
        shape group = {transa_array[i],
                       transb_array[i],
                       m_array[i],
                       n_array[i],
                       k_array[i],
                       lda_array[i],
                       ldb_array[i],
                       ldc_array[i],
                       Atype,
                       Btype,
                       Ctype,
                       static_cast<const float *>(alpha_array)[i],
                       static_cast<const float *>(beta_array)[i]};
        shapes.insert(shapes.end(), static_cast<size_t>(group_size[i]), group);
    }
    return multiply_listed(handle, call, shapes, Aarray, Barray, Carray, computeType);
}

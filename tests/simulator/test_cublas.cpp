/* The simulated cuBLAS and cuBLASLt: products against sums in double precision, and calls that are
 * refused or end the program. */
#include "cublasLt.h"
#include "cublas_v2.h"
#include "matrix.hpp"
#include "planted.hpp"
#include "simulator.h"

#include <cmath>
#include <vector>

namespace
{

#define CHECK_CUBLAS(call) CHECK((call) == CUBLAS_STATUS_SUCCESS)

typedef std::vector<float> numbers;

const size_t workspace_bytes = 4 << 20;

/* Values that bf16 and TF32 hold exactly when `whole`, and do not when not. */
numbers draw(size_t count, unsigned seed, bool whole = false)
{
    numbers values(count);
    for (float &value : values) {
        seed = seed * 1664525u + 1013904223u;
        float unit = static_cast<float>(seed >> 8) / 16777216.0f - 0.5f;
        value = whole ? std::round(unit * 16.0f) : unit;
    }
    return values;
}

float *on_device(const numbers &from)
{
    float *memory = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void **>(&memory), from.size() * sizeof(float)));
    CHECK_CUDA(
        cudaMemcpy(memory, from.data(), from.size() * sizeof(float), cudaMemcpyHostToDevice));
    return memory;
}

uint16_t *on_device_bf16(const numbers &from)
{
    std::vector<uint16_t> rounded;
    for (float value : from) {
        rounded.push_back(simulator_float_to_bfloat16(value));
    }
    uint16_t *memory = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void **>(&memory), from.size() * sizeof(uint16_t)));
    CHECK_CUDA(
        cudaMemcpy(memory, rounded.data(), from.size() * sizeof(uint16_t), cudaMemcpyHostToDevice));
    return memory;
}

numbers on_host(const float *from, size_t count)
{
    numbers to(count);
    CHECK_CUDA(cudaMemcpy(to.data(), from, count * sizeof(float), cudaMemcpyDeviceToHost));
    return to;
}

numbers on_host(const uint16_t *from, size_t count)
{
    std::vector<uint16_t> stored(count);
    CHECK_CUDA(cudaMemcpy(stored.data(), from, count * sizeof(uint16_t), cudaMemcpyDeviceToHost));
    numbers to;
    for (uint16_t value : stored) {
        to.push_back(simulator_bfloat16_to_float(value));
    }
    return to;
}

/* A product as its reference knows it. */
struct example {
    int m, n, k;
    bool ta, tb;
    float alpha, beta;
    int lda, ldb, ldc;

    size_t a_count() const
    {
        return static_cast<size_t>(lda * (ta ? m : k));
    }
    size_t b_count() const
    {
        return static_cast<size_t>(ldb * (tb ? k : n));
    }
    size_t c_count() const
    {
        return static_cast<size_t>(ldc * n);
    }
    double at(const numbers &a, const numbers &b, const numbers &c, int i, int j) const
    {
        double sum = 0.0;
        for (int l = 0; l < k; l++) {
            sum += static_cast<double>(a[static_cast<size_t>(ta ? l + i * lda : i + l * lda)]) *
                   static_cast<double>(b[static_cast<size_t>(tb ? j + l * ldb : l + j * ldb)]);
        }
        double old = beta == 0.0f ? 0.0 : static_cast<double>(c[static_cast<size_t>(i + j * ldc)]);
        return static_cast<double>(alpha) * sum + static_cast<double>(beta) * old;
    }
};

void expect_product(const example &one, const numbers &a, const numbers &b, const numbers &before,
                    const numbers &after, double tolerance)
{
    for (int j = 0; j < one.n; j++) {
        for (int i = 0; i < one.ldc; i++) {
            size_t at = static_cast<size_t>(i + j * one.ldc);
            if (i >= one.m) {
                CHECK(memcmp(&after[at], &before[at], sizeof(float)) == 0);
                continue;
            }
            double expected = one.at(a, b, before, i, j);
            CHECK(std::abs(static_cast<double>(after[at]) - expected) <=
                  tolerance * (1.0 + std::abs(expected)));
        }
    }
}

example make_example(bool ta, bool tb, float beta)
{
    const int m = 7, n = 5, k = 11;
    return example{m, n, k, ta, tb, 1.5f, beta, (ta ? k : m) + 2, (tb ? n : k) + 1, m + 3};
}

cublasOperation_t operation(bool transposed)
{
    return transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

struct handles {
    cublasHandle_t blas = nullptr;
    cublasLtHandle_t lt = nullptr;
    cudaStream_t stream = nullptr;
    void *workspace = nullptr;

    handles()
    {
        CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK_CUBLAS(cublasCreate(&blas));
        CHECK_CUBLAS(cublasLtCreate(&lt));
        CHECK_CUDA(cudaMalloc(&workspace, workspace_bytes));
        CHECK_CUBLAS(cublasSetStream(blas, stream));
        CHECK_CUBLAS(cublasSetWorkspace(blas, workspace, workspace_bytes));
    }
    ~handles()
    {
        CHECK_CUBLAS(cublasDestroy(blas));
        CHECK_CUBLAS(cublasLtDestroy(lt));
        CHECK_CUDA(cudaStreamDestroy(stream));
        CHECK_CUDA(cudaFree(workspace));
    }
    handles(const handles &) = delete;
    handles &operator=(const handles &) = delete;
    void wait() const
    {
        CHECK_CUDA(cudaStreamSynchronize(stream));
    }
};

cublasStatus_t multiply(const handles &with, const example &one, const void *a, const void *b,
                        void *c, cudaDataType type, cudaDataType c_type,
                        cublasComputeType_t compute = CUBLAS_COMPUTE_32F)
{
    return cublasGemmEx(with.blas, operation(one.ta), operation(one.tb), one.m, one.n, one.k,
                        &one.alpha, a, type, one.lda, b, type, one.ldb, &one.beta, c, c_type,
                        one.ldc, compute, CUBLAS_GEMM_DEFAULT);
}

void products_in_f32()
{
    handles with;
    for (int i = 0; i < 8; i++) {
        example one = make_example(i & 1, i & 2, i & 4 ? 0.5f : 0.0f);
        numbers a = draw(one.a_count(), 1), b = draw(one.b_count(), 2), c = draw(one.c_count(), 3);
        float *to = on_device(c);
        CHECK_CUBLAS(multiply(with, one, on_device(a), on_device(b), to, CUDA_R_32F, CUDA_R_32F));
        with.wait();
        expect_product(one, a, b, c, on_host(to, c.size()), 1e-6);
    }
}

/* What beta 0 multiplies is not read, whatever it is. */
void results_that_were_nothing()
{
    handles with;
    example one = make_example(false, true, 0.0f);
    one.ldc = one.m;
    numbers a = draw(one.a_count(), 1), b = draw(one.b_count(), 2), c(one.c_count(), NAN);
    float *to = on_device(c);
    CHECK_CUBLAS(multiply(with, one, on_device(a), on_device(b), to, CUDA_R_32F, CUDA_R_32F));
    with.wait();
    expect_product(one, a, b, c, on_host(to, c.size()), 1e-6);
    one.k = 0;
    CHECK_CUBLAS(multiply(with, one, nullptr, nullptr, to, CUDA_R_32F, CUDA_R_32F));
    with.wait();
    for (float value : on_host(to, c.size())) {
        CHECK(value == 0.0f);
    }
}

void products_in_bf16()
{
    handles with;
    for (int i = 0; i < 8; i++) {
        example one = make_example(i & 1, i & 2, i & 4 ? 0.5f : 0.0f);
        numbers a = draw(one.a_count(), 1, true), b = draw(one.b_count(), 2, true);
        numbers c = draw(one.c_count(), 3, true);
        float *wide = on_device(c);
        uint16_t *narrow = on_device_bf16(c);
        const uint16_t *from_a = on_device_bf16(a), *from_b = on_device_bf16(b);
        CHECK_CUBLAS(multiply(with, one, from_a, from_b, wide, CUDA_R_16BF, CUDA_R_32F));
        CHECK_CUBLAS(multiply(with, one, from_a, from_b, narrow, CUDA_R_16BF, CUDA_R_16BF));
        with.wait();
        expect_product(one, a, b, c, on_host(wide, c.size()), 1e-6);
        expect_product(one, a, b, c, on_host(narrow, c.size()), 1.0 / 256.0);
    }
}

void products_in_tf32()
{
    handles with;
    example one = make_example(false, false, 0.0f);
    numbers a = draw(one.a_count(), 1), b = draw(one.b_count(), 2), c = draw(one.c_count(), 3);
    numbers rounded_a = a, rounded_b = b;
    for (numbers *values : {&rounded_a, &rounded_b}) {
        for (float &value : *values) {
            value = simulator_round_to_tf32(value);
        }
    }
    CHECK(rounded_a != a);
    const float *from_a = on_device(a), *from_b = on_device(b);
    float *by_type = on_device(c), *by_mode = on_device(c), *plain = on_device(c);
    CHECK_CUBLAS(multiply(with, one, from_a, from_b, by_type, CUDA_R_32F, CUDA_R_32F,
                          CUBLAS_COMPUTE_32F_FAST_TF32));
    CHECK_CUBLAS(cublasSetMathMode(with.blas, CUBLAS_TF32_TENSOR_OP_MATH));
    CHECK_CUBLAS(multiply(with, one, from_a, from_b, by_mode, CUDA_R_32F, CUDA_R_32F));
    CHECK_CUBLAS(multiply(with, one, from_a, from_b, plain, CUDA_R_32F, CUDA_R_32F,
                          CUBLAS_COMPUTE_32F_PEDANTIC));
    with.wait();
    expect_product(one, rounded_a, rounded_b, c, on_host(by_type, c.size()), 1e-6);
    expect_product(one, rounded_a, rounded_b, c, on_host(by_mode, c.size()), 1e-6);
    expect_product(one, a, b, c, on_host(plain, c.size()), 1e-6);
}

void strided_products()
{
    handles with;
    const int count = 3;
    example one = make_example(true, false, 0.25f);
    numbers a = draw(one.a_count() * count, 1), b = draw(one.b_count(), 2);
    numbers c = draw(one.c_count() * count, 3);
    float *to = on_device(c);
    /* All have one B. */
    CHECK_CUBLAS(cublasGemmStridedBatchedEx(
        with.blas, operation(one.ta), operation(one.tb), one.m, one.n, one.k, &one.alpha,
        on_device(a), CUDA_R_32F, one.lda, static_cast<long long>(one.a_count()), on_device(b),
        CUDA_R_32F, one.ldb, 0, &one.beta, to, CUDA_R_32F, one.ldc,
        static_cast<long long>(one.c_count()), count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    with.wait();
    numbers after = on_host(to, c.size());
    for (size_t i = 0; i < count; i++) {
        auto part = [i](const numbers &all, size_t size) {
            auto from = all.begin() + static_cast<std::ptrdiff_t>(i * size);
            return numbers(from, from + static_cast<std::ptrdiff_t>(size));
        };
        expect_product(one, part(a, one.a_count()), b, part(c, one.c_count()),
                       part(after, one.c_count()), 1e-6);
    }
}

/* --- grouped products --- */

struct grouped {
    std::vector<example> groups;
    std::vector<int> sizes;
    std::vector<numbers> a, b, c;
    std::vector<const void *> a_at, b_at;
    std::vector<void *> c_at;

    void add(const example &one, int size)
    {
        groups.push_back(one);
        sizes.push_back(size);
        for (int i = 0; i < size; i++) {
            unsigned seed = static_cast<unsigned>(a.size());
            a.push_back(draw(one.a_count(), seed));
            b.push_back(draw(one.b_count(), seed + 50));
            c.push_back(draw(one.c_count(), seed + 100));
            a_at.push_back(on_device(a.back()));
            b_at.push_back(on_device(b.back()));
            c_at.push_back(on_device(c.back()));
        }
    }
    cublasStatus_t run(const handles &with, cublasComputeType_t compute, const void *const *a_list,
                       const void *const *b_list, void *const *c_list) const
    {
        std::vector<cublasOperation_t> ta, tb;
        std::vector<int> m, n, k, lda, ldb, ldc;
        numbers alpha, beta;
        for (const example &one : groups) {
            ta.push_back(operation(one.ta));
            tb.push_back(operation(one.tb));
            m.push_back(one.m);
            n.push_back(one.n);
            k.push_back(one.k);
            lda.push_back(one.lda);
            ldb.push_back(one.ldb);
            ldc.push_back(one.ldc);
            alpha.push_back(one.alpha);
            beta.push_back(one.beta);
        }
        return cublasGemmGroupedBatchedEx(
            with.blas, ta.data(), tb.data(), m.data(), n.data(), k.data(), alpha.data(), a_list,
            CUDA_R_32F, lda.data(), b_list, CUDA_R_32F, ldb.data(), beta.data(), c_list, CUDA_R_32F,
            ldc.data(), static_cast<int>(groups.size()), sizes.data(), compute);
    }
};

template <typename Pointer> Pointer *list_on_device(const std::vector<Pointer> &list)
{
    Pointer *memory = nullptr;
    size_t bytes = list.size() * sizeof(Pointer);
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void **>(&memory), bytes));
    CHECK_CUDA(cudaMemcpy(memory, list.data(), bytes, cudaMemcpyHostToDevice));
    return memory;
}

cublasStatus_t run(const handles &with, const grouped &all,
                   cublasComputeType_t compute = CUBLAS_COMPUTE_32F)
{
    return all.run(with, compute, list_on_device(all.a_at), list_on_device(all.b_at),
                   list_on_device(all.c_at));
}

void grouped_products()
{
    handles with;
    grouped all;
    all.add(make_example(false, true, 0.0f), 3);
    all.add(example{3, 4, 2, true, false, -1.0f, 1.0f, 2, 2, 3}, 2);
    CHECK_CUBLAS(run(with, all));
    with.wait();
    size_t at = 0;
    for (size_t group = 0; group < all.groups.size(); group++) {
        for (int i = 0; i < all.sizes[group]; i++, at++) {
            expect_product(all.groups[group], all.a[at], all.b[at], all.c[at],
                           on_host(static_cast<float *>(all.c_at[at]), all.c[at].size()), 1e-6);
        }
    }
}

void planted_groups()
{
    auto on_host_arrays = planted::run([] {
        handles with;
        grouped all;
        all.add(make_example(false, false, 0.0f), 2);
        CHECK(all.run(with, CUBLAS_COMPUTE_32F, all.a_at.data(), all.b_at.data(),
                      all.c_at.data()) == CUBLAS_STATUS_INVALID_VALUE);
    });
    CHECK(on_host_arrays.ended_well());
    planted::expect(on_host_arrays, "cublasGemmGroupedBatchedEx: CUBLAS_STATUS_INVALID_VALUE: the "
                                    "addresses of matrices A");
    planted::expect_abort(planted::run([] {
                              handles with;
                              grouped all;
                              all.add(make_example(false, false, 0.0f), 3);
                              all.c_at[2] = all.c_at[0];
                              run(with, all);
                              with.wait();
                          }),
                          "cublasGemmGroupedBatchedEx: products 0 and 2 both write to");
    planted::expect_abort(planted::run([] {
                              handles with;
                              grouped all;
                              all.add(make_example(false, false, 0.0f), 1);
                              example square = {4, 4, 4, false, false, 1.0f, 0.0f, 4, 4, 4};
                              all.add(square, 1);
                              all.b_at[1] = static_cast<const float *>(all.b_at[1]) + 1;
                              run(with, all, CUBLAS_COMPUTE_32F_FAST_TF32);
                              with.wait();
                          }),
                          "matrix B of product 1 lies at");
    planted::expect_abort(planted::run([] {
                              handles with;
                              grouped all;
                              all.add(make_example(false, false, 0.0f), 1);
                              all.a_at[0] = all.a[0].data();
                              run(with, all);
                              with.wait();
                          }),
                          "cublasGemmGroupedBatchedEx");
}

/* --- cuBLASLt --- */

struct lt_product {
    cublasLtMatmulDesc_t what = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulHeuristicResult_t found = {};

    lt_product(const example &one, cudaDataType type, cudaDataType c_type)
    {
        CHECK_CUBLAS(cublasLtMatmulDescCreate(&what, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        set(CUBLASLT_MATMUL_DESC_TRANSA, operation(one.ta));
        set(CUBLASLT_MATMUL_DESC_TRANSB, operation(one.tb));
        uint64_t m = static_cast<uint64_t>(one.m), n = static_cast<uint64_t>(one.n),
                 k = static_cast<uint64_t>(one.k);
        CHECK_CUBLAS(cublasLtMatrixLayoutCreate(&a, type, one.ta ? k : m, one.ta ? m : k, one.lda));
        CHECK_CUBLAS(cublasLtMatrixLayoutCreate(&b, type, one.tb ? n : k, one.tb ? k : n, one.ldb));
        CHECK_CUBLAS(cublasLtMatrixLayoutCreate(&c, c_type, m, n, one.ldc));
        CHECK_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
        uint64_t bytes = workspace_bytes;
        CHECK_CUBLAS(cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    }
    ~lt_product()
    {
        CHECK_CUBLAS(cublasLtMatmulDescDestroy(what));
        for (cublasLtMatrixLayout_t layout : {a, b, c}) {
            CHECK_CUBLAS(cublasLtMatrixLayoutDestroy(layout));
        }
        CHECK_CUBLAS(cublasLtMatmulPreferenceDestroy(preference));
    }
    lt_product(const lt_product &) = delete;
    lt_product &operator=(const lt_product &) = delete;
    template <typename Value> void set(cublasLtMatmulDescAttributes_t attribute, Value value)
    {
        CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(what, attribute, &value, sizeof value));
    }
    cublasStatus_t ask(const handles &with)
    {
        int count = 0;
        cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(with.lt, what, a, b, c, c,
                                                               preference, 1, &found, &count);
        CHECK(count == (status == CUBLAS_STATUS_SUCCESS));
        return status;
    }
    cublasStatus_t run(const handles &with, const example &one, const void *from_a,
                       const void *from_b, void *to) const
    {
        return cublasLtMatmul(with.lt, what, &one.alpha, from_a, a, from_b, b, &one.beta, to, c, to,
                              c, &found.algo, with.workspace, workspace_bytes, with.stream);
    }
};

double gelu(double x)
{
    return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

example aligned_example()
{
    return example{16, 5, 11, false, true, 1.0f, 0.0f, 16, 5, 16};
}

void epilogues_forward()
{
    handles with;
    example one = aligned_example();
    numbers a = draw(one.a_count(), 1), b = draw(one.b_count(), 2), c = draw(one.c_count(), 3);
    numbers bias = draw(static_cast<size_t>(one.m), 4);
    float *to = on_device(c), *aux = on_device(c);
    lt_product product(one, CUDA_R_32F, CUDA_R_32F);
    product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    product.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, on_device(bias));
    product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<int64_t>(one.ldc));
    CHECK_CUBLAS(product.ask(with));
    CHECK_CUBLAS(product.run(with, one, on_device(a), on_device(b), to));
    with.wait();
    numbers after = on_host(to, c.size()), before = on_host(aux, c.size());
    for (int j = 0; j < one.n; j++) {
        for (int i = 0; i < one.m; i++) {
            size_t at = static_cast<size_t>(i + j * one.ldc);
            double x = one.at(a, b, c, i, j) + static_cast<double>(bias[static_cast<size_t>(i)]);
            CHECK(std::abs(static_cast<double>(before[at]) - x) < 1e-5);
            CHECK(std::abs(static_cast<double>(after[at]) - gelu(x)) < 1e-5);
        }
    }
}

void epilogues_backward()
{
    handles with;
    example one = aligned_example();
    numbers a = draw(one.a_count(), 1), b = draw(one.b_count(), 2), c = draw(one.c_count(), 3);
    numbers sums(static_cast<size_t>(one.m), NAN);
    float *to = on_device(c), *bias = on_device(sums);
    lt_product product(one, CUDA_R_32F, CUDA_R_32F);
    product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DGELU_BGRAD);
    product.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, on_device(c));
    product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<int64_t>(one.ldc));
    CHECK_CUBLAS(product.ask(with));
    CHECK_CUBLAS(product.run(with, one, on_device(a), on_device(b), to));
    with.wait();
    numbers after = on_host(to, c.size());
    sums = on_host(bias, sums.size());
    for (int i = 0; i < one.m; i++) {
        double sum = 0.0;
        for (int j = 0; j < one.n; j++) {
            size_t at = static_cast<size_t>(i + j * one.ldc);
            double x = static_cast<double>(c[at]), h = 1e-5;
            double derivative = (gelu(x + h) - gelu(x - h)) / (2.0 * h);
            double expected = one.at(a, b, c, i, j) * derivative;
            CHECK(std::abs(static_cast<double>(after[at]) - expected) < 1e-5);
            sum += expected;
        }
        CHECK(std::abs(static_cast<double>(sums[static_cast<size_t>(i)]) - sum) < 1e-5);
    }
}

void sums_of_operands()
{
    handles with;
    for (int side = 0; side < 2; side++) {
        example one = aligned_example();
        one.ta = true;
        one.lda = one.k;
        numbers a = draw(one.a_count(), 1), b = draw(one.b_count(), 2), c = draw(one.c_count(), 3);
        int length = side == 0 ? one.m : one.n;
        float *sums = on_device(numbers(static_cast<size_t>(length), NAN)), *to = on_device(c);
        lt_product product(one, CUDA_R_32F, CUDA_R_32F);
        product.set(CUBLASLT_MATMUL_DESC_EPILOGUE,
                    side == 0 ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB);
        product.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, sums);
        CHECK_CUBLAS(product.ask(with));
        CHECK_CUBLAS(product.run(with, one, on_device(a), on_device(b), to));
        with.wait();
        numbers found = on_host(sums, static_cast<size_t>(length));
        for (int i = 0; i < length; i++) {
            double sum = 0.0;
            for (int l = 0; l < one.k; l++) {
                sum += static_cast<double>(side == 0 ? a[static_cast<size_t>(l + i * one.lda)]
                                                     : b[static_cast<size_t>(i + l * one.ldb)]);
            }
            CHECK(std::abs(static_cast<double>(found[static_cast<size_t>(i)]) - sum) < 1e-5);
        }
        expect_product(one, a, b, c, on_host(to, c.size()), 1e-6);
    }
}

/* --- what is refused --- */

void refused_calls()
{
    handles with;
    example one = make_example(false, false, 0.0f);
    numbers a = draw(one.a_count(), 1), b = draw(one.b_count(), 2), c = draw(one.c_count(), 3);
    const float *from_a = on_device(a), *from_b = on_device(b);
    float *to = on_device(c);
    example narrow = one;
    narrow.ldb = one.k - 1;
    CHECK(multiply(with, narrow, from_a, from_b, to, CUDA_R_32F, CUDA_R_32F) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(multiply(with, one, from_a, from_b, to, CUDA_R_32F, CUDA_R_16BF) ==
          CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(multiply(with, one, from_a, nullptr, to, CUDA_R_32F, CUDA_R_32F) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSetWorkspace(with.blas, static_cast<char *>(with.workspace) + 16, 1024) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSetWorkspace(with.blas, with.workspace, workspace_bytes + 1) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(multiply(handles(), one, from_a, from_b, to, CUDA_R_16F, CUDA_R_32F) ==
          CUBLAS_STATUS_NOT_SUPPORTED);
}

void refused_lt_calls()
{
    handles with;
    example one = aligned_example();
    numbers a = draw(one.a_count(), 1), b = draw(one.b_count(), 2), c = draw(one.c_count() + 4, 3);
    const float *from_a = on_device(a), *from_b = on_device(b);
    float *to = on_device(c);
    lt_product product(one, CUDA_R_32F, CUDA_R_32F);
    CHECK_CUBLAS(product.ask(with));
    CHECK(product.run(with, one, from_a, from_b, to + 4) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(product.run(with, one, from_a, from_b, const_cast<float *>(from_a)) ==
          CUBLAS_STATUS_INVALID_VALUE);
    example other = one;
    other.n = 4;
    lt_product another(other, CUDA_R_32F, CUDA_R_32F);
    another.found = product.found;
    CHECK(another.run(with, other, from_a, from_b, to) == CUBLAS_STATUS_INVALID_VALUE);
    product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<int64_t>(one.ldc + 4));
    CHECK(product.ask(with) == CUBLAS_STATUS_INVALID_VALUE);
    lt_product mixed(one, CUDA_R_16BF, CUDA_R_16BF);
    mixed.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    mixed.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
    CHECK(mixed.ask(with) == CUBLAS_STATUS_NOT_SUPPORTED);
}

void operands_of_the_host()
{
    planted::expect_abort(planted::run([] {
                              handles with;
                              example one = make_example(false, false, 0.0f);
                              numbers a = draw(one.a_count(), 1), b = draw(one.b_count(), 2);
                              numbers c = draw(one.c_count(), 3);
                              multiply(with, one, on_device(a), b.data(), on_device(c), CUDA_R_32F,
                                       CUDA_R_32F);
                              with.wait();
                          }),
                          "cublasGemmEx");
}

/* --- capture --- */

void captured_products()
{
    handles with;
    example one = make_example(false, true, 1.0f);
    numbers a = draw(one.a_count(), 1), b = draw(one.b_count(), 2), c = draw(one.c_count(), 3);
    float *to = on_device(c);
    const float *from_a = on_device(a), *from_b = on_device(b);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK_CUDA(cudaStreamBeginCapture(with.stream, cudaStreamCaptureModeThreadLocal));
    CHECK_CUBLAS(multiply(with, one, from_a, from_b, to, CUDA_R_32F, CUDA_R_32F));
    CHECK_CUDA(cudaStreamEndCapture(with.stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 2; i++) {
        CHECK_CUDA(cudaGraphLaunch(executable, with.stream));
        with.wait();
        numbers after = on_host(to, c.size());
        expect_product(one, a, b, c, after, 1e-6);
        c = after;
    }
    CHECK_CUDA(cudaGraphExecDestroy(executable));
    CHECK_CUDA(cudaGraphDestroy(graph));
}

void captured_without_workspace()
{
    auto result = planted::run([] {
        handles with;
        example one = make_example(false, true, 1.0f);
        numbers a = draw(one.a_count(), 1), b = draw(one.b_count(), 2), c = draw(one.c_count(), 3);
        const float *from_a = on_device(a), *from_b = on_device(b);
        float *to = on_device(c);
        CHECK_CUBLAS(cublasSetStream(with.blas, with.stream)); /* forgets the workspace */
        CHECK_CUDA(cudaStreamBeginCapture(with.stream, cudaStreamCaptureModeThreadLocal));
        CHECK(multiply(with, one, from_a, from_b, to, CUDA_R_32F, CUDA_R_32F) ==
              CUBLAS_STATUS_NOT_SUPPORTED);
        cublasHandle_t another;
        CHECK(cublasCreate(&another) != CUBLAS_STATUS_SUCCESS);
        _exit(0);
    });
    CHECK(result.ended_well());
    planted::expect(result, "cublasGemmEx: CUBLAS_STATUS_NOT_SUPPORTED: captured without "
                            "cublasSetWorkspace");
    planted::expect(result, "cublasCreate");
}

} // namespace

int main()
{
    static const planted::test tests[] = {
        {"products in f32", products_in_f32},
        {"results that were nothing", results_that_were_nothing},
        {"products in bf16", products_in_bf16},
        {"products in TF32", products_in_tf32},
        {"strided products", strided_products},
        {"grouped products", grouped_products},
        {"planted: groups", planted_groups},
        {"epilogues, forward", epilogues_forward},
        {"epilogues, backward", epilogues_backward},
        {"sums of operands", sums_of_operands},
        {"refused calls", refused_calls},
        {"refused calls of cuBLASLt", refused_lt_calls},
        {"planted: operands of the host", operands_of_the_host},
        {"captured products", captured_products},
        {"planted: captured without workspace", captured_without_workspace},
    };
    return planted::run_all(tests, sizeof tests / sizeof *tests);
}

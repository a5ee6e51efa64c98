/* cuBLASLt: descriptions of products, the heuristic, and the product with its epilogue. */
#include "cublasLt.h"
#include "matrix.hpp"

#include <cmath>
#include <cstring>
#include <new>

struct cublasLtContext {
    int device;
};

namespace
{
const uint32_t layout_mark = 0x4C41594Fu, description_mark = 0x44455343u,
               preference_mark = 0x50524546u, algorithm_mark = 0x414C474Fu;

/* What lies in the opaque objects of the interface. */
struct layout {
    uint32_t mark, type;
    int32_t order, batch;
    uint64_t rows, columns;
    int64_t ld, batch_stride;
};

struct description {
    uint32_t mark, epilogue;
    int32_t compute, scale, pointer_mode, transa, transb, bias_type, aux_type, unused;
    void *bias, *aux;
    int64_t aux_ld;
};

struct preference {
    uint32_t mark, search_mode;
    uint64_t workspace;
    uint32_t reduction_mask;
    uint32_t alignment[4]; /* of A, B, C, D, in bytes */
};

struct algorithm {
    uint32_t mark;
    uint32_t alignment[4];
    uint64_t workspace, problem;
};

/* A call's arguments, checked and resolved. */
struct problem {
    description what;
    layout a, b, c, d;
    int64_t m, n, k;
};

template <typename Inside, typename Outside> Inside open(const Outside *object)
{
    static_assert(sizeof(Inside) <= sizeof(Outside), "fits");
    Inside inside;
    memcpy(&inside, object, sizeof inside);
    return inside;
}

template <typename Inside, typename Outside> void close(Outside *object, const Inside &inside)
{
    memcpy(object, &inside, sizeof inside);
}
} // namespace

/* --- handles and objects --- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    int device;
    if (!handle) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (simulator_forbidden_in_capture("cublasLtCreate") != cudaSuccess ||
        cudaGetDevice(&device) != cudaSuccess) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    *handle = new (std::nothrow) cublasLtContext{device};
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    if (!handle) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

/* Sets a member to the value at `value`, which has to have its size. */
template <typename Member>
static cublasStatus_t set_member(const char *call, Member &member, const void *value, size_t bytes)
{
    if (!value || bytes != sizeof member) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                "an attribute of %zu bytes is given as %zu at %p", sizeof member,
                                bytes, value);
    }
    memcpy(&member, value, sizeof member);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename Object> static cublasStatus_t create(Object **object)
{
    if (!object) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *object = new (std::nothrow) Object{};
    return *object ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t object, cudaDataType type,
                                        uint64_t rows, uint64_t cols, int64_t ld)
{
    if (!object) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    layout inside = {
        layout_mark, static_cast<uint32_t>(type), CUBLASLT_ORDER_COL, 1, rows, cols, ld, 0};
    close(object, inside);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *object, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    cublasStatus_t status = create(object);
    return status == CUBLAS_STATUS_SUCCESS ? cublasLtMatrixLayoutInit(*object, type, rows, cols, ld)
                                           : status;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t object)
{
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t object,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
    const char *call = "cublasLtMatrixLayoutSetAttribute";
    layout inside = open<layout>(object);
    cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        status = set_member(call, inside.type, value, bytes);
        break;
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        status = set_member(call, inside.order, value, bytes);
        break;
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        status = set_member(call, inside.rows, value, bytes);
        break;
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        status = set_member(call, inside.columns, value, bytes);
        break;
    case CUBLASLT_MATRIX_LAYOUT_LD:
        status = set_member(call, inside.ld, value, bytes);
        break;
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        status = set_member(call, inside.batch, value, bytes);
        break;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        status = set_member(call, inside.batch_stride, value, bytes);
        break;
    }
    close(object, inside);
    return status;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t object, cublasComputeType_t compute,
                                      cudaDataType scale)
{
    if (!object) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    description inside = {};
    inside.mark = description_mark;
    inside.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    inside.compute = compute;
    inside.scale = scale;
    inside.bias_type = inside.aux_type = -1;
    close(object, inside);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *object, cublasComputeType_t compute,
                                        cudaDataType scale)
{
    cublasStatus_t status = create(object);
    return status == CUBLAS_STATUS_SUCCESS ? cublasLtMatmulDescInit(*object, compute, scale)
                                           : status;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t object)
{
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t object,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    const char *call = "cublasLtMatmulDescSetAttribute";
    description inside = open<description>(object);
    cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
        status = set_member(call, inside.compute, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
        status = set_member(call, inside.scale, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        status = set_member(call, inside.pointer_mode, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_TRANSA:
        status = set_member(call, inside.transa, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        status = set_member(call, inside.transb, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        status = set_member(call, inside.epilogue, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        status = set_member(call, inside.bias, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        status = set_member(call, inside.aux, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        status = set_member(call, inside.aux_ld, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        status = set_member(call, inside.aux_type, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        status = set_member(call, inside.bias_type, value, bytes);
        break;
    }
    close(object, inside);
    return status;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t object)
{
    if (!object) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    preference inside = {preference_mark, 0, 0, 7, {256, 256, 256, 256}};
    close(object, inside);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *object)
{
    cublasStatus_t status = create(object);
    return status == CUBLAS_STATUS_SUCCESS ? cublasLtMatmulPreferenceInit(*object) : status;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t object)
{
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t object,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    const char *call = "cublasLtMatmulPreferenceSetAttribute";
    preference inside = open<preference>(object);
    cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
        status = set_member(call, inside.search_mode, value, bytes);
        break;
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        status = set_member(call, inside.workspace, value, bytes);
        break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        status = set_member(call, inside.reduction_mask, value, bytes);
        break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        status = set_member(
            call, inside.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
            bytes);
        break;
    }
    close(object, inside);
    return status;
}

/* --- checks --- */

static bool has_bias(uint32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool has_bias_gradient(uint32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD || epilogue == CUBLASLT_EPILOGUE_BGRADA ||
           epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static bool has_aux(uint32_t epilogue)
{
    return (epilogue & 128u) != 0;
}

static bool is_known(uint32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_DEFAULT || has_bias(epilogue) ||
           has_bias_gradient(epilogue) || epilogue == CUBLASLT_EPILOGUE_GELU ||
           epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_DGELU;
}

static cublasStatus_t check_layouts(const char *call, const problem &problem)
{
    const layout *layouts[] = {&problem.a, &problem.b, &problem.c, &problem.d};
    for (int i = 0; i < 4; i++) {
        const layout &one = *layouts[i];
        if (one.mark != layout_mark || one.order != CUBLASLT_ORDER_COL || one.batch < 1 ||
            one.rows < 1 || one.columns < 1 || one.ld < static_cast<int64_t>(one.rows)) {
            return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                    "matrix %c: %llu x %llu, ld %lld, order %d, %d of them%s",
                                    "ABCD"[i], static_cast<unsigned long long>(one.rows),
                                    static_cast<unsigned long long>(one.columns),
                                    static_cast<long long>(one.ld), one.order, one.batch,
                                    one.mark == layout_mark ? "" : " (not initialised)");
        }
        if (one.batch != problem.d.batch) {
            return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                    "%d matrices %c beside %d matrices D", one.batch, "ABCD"[i],
                                    problem.d.batch);
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_sizes(const char *call, problem &problem)
{
    bool ta = problem.what.transa != CUBLAS_OP_N, tb = problem.what.transb != CUBLAS_OP_N;
    uint64_t m = ta ? problem.a.columns : problem.a.rows;
    uint64_t k = ta ? problem.a.rows : problem.a.columns;
    uint64_t k_b = tb ? problem.b.columns : problem.b.rows;
    uint64_t n = tb ? problem.b.rows : problem.b.columns;
    if (k != k_b || problem.c.rows != m || problem.c.columns != n || problem.d.rows != m ||
        problem.d.columns != n || problem.c.type != problem.d.type) {
        return simulator_refuse(
            CUBLAS_STATUS_INVALID_VALUE, call,
            "op(A) %llu x %llu, op(B) %llu x %llu, C %llu x %llu of type %u, D %llu x %llu of "
            "type %u",
            static_cast<unsigned long long>(m), static_cast<unsigned long long>(k),
            static_cast<unsigned long long>(k_b), static_cast<unsigned long long>(n),
            static_cast<unsigned long long>(problem.c.rows),
            static_cast<unsigned long long>(problem.c.columns), problem.c.type,
            static_cast<unsigned long long>(problem.d.rows),
            static_cast<unsigned long long>(problem.d.columns), problem.d.type);
    }
    problem.m = static_cast<int64_t>(m);
    problem.n = static_cast<int64_t>(n);
    problem.k = static_cast<int64_t>(k);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_epilogue(const char *call, const problem &problem)
{
    const description &what = problem.what;
    int32_t type = static_cast<int32_t>(problem.d.type);
    if (!is_known(what.epilogue) || what.pointer_mode != CUBLAS_POINTER_MODE_HOST ||
        what.scale != CUDA_R_32F || (problem.d.batch > 1 && has_aux(what.epilogue))) {
        return simulator_refuse(CUBLAS_STATUS_NOT_SUPPORTED, call,
                                "epilogue %u, scale type %d, pointer mode %d, %d products",
                                what.epilogue, what.scale, what.pointer_mode, problem.d.batch);
    }
    if ((has_bias(what.epilogue) || has_bias_gradient(what.epilogue)) && what.bias_type != -1 &&
        what.bias_type != type) {
        return simulator_refuse(CUBLAS_STATUS_NOT_SUPPORTED, call,
                                "a bias of type %d beside a result of type %d", what.bias_type,
                                type);
    }
    if (!has_aux(what.epilogue)) {
        return CUBLAS_STATUS_SUCCESS;
    }
    if (what.aux_ld % 8 != 0 || what.aux_ld < problem.m) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                "ld of the auxiliary matrix is %lld: expected a multiple of 8, at "
                                "least %lld",
                                static_cast<long long>(what.aux_ld),
                                static_cast<long long>(problem.m));
    }
    return what.aux_type == -1 || what.aux_type == type
               ? CUBLAS_STATUS_SUCCESS
               : simulator_refuse(CUBLAS_STATUS_NOT_SUPPORTED, call,
                                  "an auxiliary matrix of type %d beside a result of type %d",
                                  what.aux_type, type);
}

static cublasStatus_t resolve(const char *call, cublasLtHandle_t handle, cublasLtMatmulDesc_t what,
                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, problem &problem)
{
    if (!handle) {
        return simulator_refuse(CUBLAS_STATUS_NOT_INITIALIZED, call, "there is no handle");
    }
    if (!what || !a || !b || !c || !d) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call, "a description is missing");
    }
    problem.what = open<description>(what);
    problem.a = open<layout>(a);
    problem.b = open<layout>(b);
    problem.c = open<layout>(c);
    problem.d = open<layout>(d);
    if (problem.what.mark != description_mark) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                "the description of the product is not initialised");
    }
    cublasStatus_t status = check_layouts(call, problem);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = check_sizes(call, problem);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = simulator_check_types(call, static_cast<cudaDataType>(problem.a.type),
                                       static_cast<cudaDataType>(problem.b.type),
                                       static_cast<cudaDataType>(problem.d.type),
                                       static_cast<cublasComputeType_t>(problem.what.compute));
    }
    return status == CUBLAS_STATUS_SUCCESS ? check_epilogue(call, problem) : status;
}

/* --- the heuristic --- */

/* What an algorithm depends on; the addresses are not part of it. */
static uint64_t hash_problem(const problem &problem)
{
    const layout *layouts[] = {&problem.a, &problem.b, &problem.c, &problem.d};
    uint64_t hash = problem.what.epilogue;
    auto mix = [&hash](uint64_t value) {
        hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    };
    mix(static_cast<uint64_t>(problem.what.compute));
    mix(static_cast<uint64_t>(problem.what.transa) << 8 |
        static_cast<uint64_t>(problem.what.transb));
    for (const layout *one : layouts) {
        mix(one->type);
        mix(one->rows);
        mix(one->columns);
        mix(static_cast<uint64_t>(one->ld));
        mix(static_cast<uint64_t>(one->batch));
    }
    return hash;
}

cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t what,
                               cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc,
                               cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
                               cublasLtMatmulPreference_t wanted, int requested,
                               cublasLtMatmulHeuristicResult_t results[], int *returned)
{
    const char *call = "cublasLtMatmulAlgoGetHeuristic";
    problem problem;
    cublasStatus_t status = resolve(nullptr, handle, what, Adesc, Bdesc, Cdesc, Ddesc, problem);
    preference inside = {};
    if (wanted) {
        inside = open<preference>(wanted);
    }
    if (status == CUBLAS_STATUS_SUCCESS &&
        (requested < 1 || !results || !returned || inside.mark != preference_mark)) {
        status = simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                  "%d algorithms at %p, their number at %p, preference %p",
                                  requested, static_cast<void *>(results),
                                  static_cast<void *>(returned), static_cast<void *>(wanted));
    }
    if (returned) {
        *returned = 0;
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    const uint64_t useful = 1 << 20;
    algorithm found = {
        algorithm_mark, {}, inside.workspace >= useful ? useful : 0, hash_problem(problem)};
    memcpy(found.alignment, inside.alignment, sizeof found.alignment);
    results[0] = cublasLtMatmulHeuristicResult_t{};
    close(&results[0].algo, found);
    results[0].workspaceSize = found.workspace;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].wavesCount = 1.0f;
    *returned = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* --- the product --- */

namespace
{
/* An epilogue's own memory. */
struct epilogue {
    uint32_t kind;
    simulator_matrix bias; /* one column */
    simulator_matrix aux;
};
} // namespace

/* GELU with tanh, and its derivative. */
static float gelu_inside(float x)
{
    return 0.7978845608028654f * (x + 0.044715f * x * x * x);
}

static float gelu(float x)
{
    return 0.5f * x * (1.0f + std::tanh(gelu_inside(x)));
}

static float gelu_derivative(float x)
{
    float t = std::tanh(gelu_inside(x));
    float inside_derivative = 0.7978845608028654f * (1.0f + 3.0f * 0.044715f * x * x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inside_derivative;
}

/* Sums of the rows of op(matrix), or of its columns. */
static std::vector<float> sum(const simulator_matrix &matrix, bool rows)
{
    std::vector<float> values = simulator_read(matrix, false);
    bool stored_rows = rows != matrix.transposed;
    std::vector<float> sums(static_cast<size_t>(stored_rows ? matrix.rows : matrix.columns), 0.0f);
    for (size_t j = 0; j < static_cast<size_t>(matrix.columns); j++) {
        for (size_t i = 0; i < static_cast<size_t>(matrix.rows); i++) {
            sums[stored_rows ? i : j] += values[j * static_cast<size_t>(matrix.rows) + i];
        }
    }
    return sums;
}

static void apply_gelu(const epilogue &epilogue, std::vector<float> &values)
{
    if (epilogue.kind & CUBLASLT_EPILOGUE_GELU) {
        if (has_aux(epilogue.kind)) {
            simulator_write(epilogue.aux, values);
        }
        for (float &value : values) {
            value = gelu(value);
        }
    } else if (has_aux(epilogue.kind)) {
        std::vector<float> before = simulator_read(epilogue.aux, false);
        for (size_t i = 0; i < values.size(); i++) {
            values[i] *= gelu_derivative(before[i]);
        }
    }
}

static void run(const simulator_product &product, const epilogue &epilogue)
{
    std::vector<float> values = simulator_multiply_unrounded(product);
    size_t m = static_cast<size_t>(product.m);
    if (has_bias(epilogue.kind)) {
        std::vector<float> bias = simulator_read(epilogue.bias, false);
        for (size_t i = 0; i < values.size(); i++) {
            values[i] += bias[i % m];
        }
    }
    apply_gelu(epilogue, values);
    if (epilogue.kind == CUBLASLT_EPILOGUE_BGRADA) {
        simulator_write(epilogue.bias, sum(product.a, true));
    } else if (epilogue.kind == CUBLASLT_EPILOGUE_BGRADB) {
        simulator_write(epilogue.bias, sum(product.b, false));
    } else if (epilogue.kind == CUBLASLT_EPILOGUE_DGELU_BGRAD) {
        std::vector<float> sums(m, 0.0f);
        for (size_t i = 0; i < values.size(); i++) {
            sums[i % m] += values[i];
        }
        simulator_write(epilogue.bias, sums);
    }
    simulator_write(product.d, values);
}

static simulator_matrix make_matrix(const layout &layout, const void *data, int batch,
                                    bool transposed)
{
    int64_t element =
        static_cast<int64_t>(simulator_element(static_cast<cudaDataType>(layout.type)));
    const char *at = static_cast<const char *>(data) + batch * layout.batch_stride * element;
    return simulator_matrix{const_cast<char *>(at),
                            static_cast<cudaDataType>(layout.type),
                            static_cast<int64_t>(layout.rows),
                            static_cast<int64_t>(layout.columns),
                            layout.ld,
                            transposed};
}

static epilogue make_epilogue(const problem &problem)
{
    const description &what = problem.what;
    cudaDataType type = static_cast<cudaDataType>(problem.d.type);
    int64_t length = what.epilogue == CUBLASLT_EPILOGUE_BGRADB ? problem.n : problem.m;
    return epilogue{what.epilogue,
                    {what.bias, type, length, 1, length, false},
                    {what.aux, type, problem.m, problem.n, what.aux_ld, false}};
}

static void add_epilogue_ranges(const epilogue &epilogue, std::vector<simulator_range> &ranges)
{
    if (has_bias(epilogue.kind)) {
        ranges.push_back(simulator_matrix_reads(epilogue.bias));
    }
    if (has_bias_gradient(epilogue.kind)) {
        ranges.push_back(simulator_matrix_writes(epilogue.bias));
    }
    if (has_aux(epilogue.kind)) {
        ranges.push_back(epilogue.kind & CUBLASLT_EPILOGUE_GELU
                             ? simulator_matrix_writes(epilogue.aux)
                             : simulator_matrix_reads(epilogue.aux));
    }
}

static cublasStatus_t check_algorithm(const char *call, const problem &problem,
                                      const cublasLtMatmulAlgo_t *algo,
                                      const void *const addresses[4], void *workspace,
                                      size_t workspace_bytes)
{
    algorithm inside = {algorithm_mark, {16, 16, 16, 16}, 0, hash_problem(problem)};
    if (algo) {
        inside = open<algorithm>(algo);
    } else {
        for (int i = 0; i < 4; i++) { /* its own heuristic looks at the addresses */
            inside.alignment[i] = 2;
        }
    }
    if (inside.mark != algorithm_mark || inside.problem != hash_problem(problem)) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                "the algorithm was found for another product");
    }
    for (int i = 0; i < 4; i++) {
        if (reinterpret_cast<uintptr_t>(addresses[i]) % inside.alignment[i] != 0) {
            return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                    "matrix %c lies at %p, the algorithm was promised an alignment "
                                    "of %u bytes",
                                    "ABCD"[i], addresses[i], inside.alignment[i]);
        }
    }
    if (workspace_bytes < inside.workspace || reinterpret_cast<uintptr_t>(workspace) % 16 != 0 ||
        (workspace_bytes > 0 && !simulator_is_device_memory(workspace, workspace_bytes))) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                "a workspace of %zu bytes at %p: expected %llu bytes of device "
                                "memory, aligned to 16",
                                workspace_bytes, workspace,
                                static_cast<unsigned long long>(inside.workspace));
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_addresses(const char *call, const problem &problem, const void *alpha,
                                      const void *beta, const void *const addresses[4])
{
    const description &what = problem.what;
    bool needs_bias = has_bias(what.epilogue) || has_bias_gradient(what.epilogue);
    if (!alpha || !beta || (needs_bias && !what.bias) || (has_aux(what.epilogue) && !what.aux)) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                "alpha at %p, beta at %p, bias at %p, auxiliary matrix at %p",
                                alpha, beta, what.bias, what.aux);
    }
    for (int i = 0; i < 4; i++) {
        if (!addresses[i]) {
            return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call, "matrix %c lies nowhere",
                                    "ABCD"[i]);
        }
    }
    if (addresses[2] == addresses[3] && problem.c.ld != problem.d.ld) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                                "C and D share memory but not their layout");
    }
    if (addresses[3] == addresses[0] || addresses[3] == addresses[1]) {
        return simulator_refuse(CUBLAS_STATUS_INVALID_VALUE, call, "D lies where %c does",
                                addresses[3] == addresses[0] ? 'A' : 'B');
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t what, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t Adesc, const void *B,
                              cublasLtMatrixLayout_t Bdesc, const void *beta, const void *C,
                              cublasLtMatrixLayout_t Cdesc, void *D, cublasLtMatrixLayout_t Ddesc,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    const char *call = "cublasLtMatmul";
    problem problem;
    const void *const addresses[4] = {A, B, C, D};
    cublasStatus_t status = resolve(call, handle, what, Adesc, Bdesc, Cdesc, Ddesc, problem);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = check_addresses(call, problem, alpha, beta, addresses);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = check_algorithm(call, problem, algo, addresses, workspace, workspace_bytes);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    epilogue epilogue = make_epilogue(problem);
    std::vector<simulator_product> products;
    std::vector<simulator_range> ranges;
    for (int i = 0; i < problem.d.batch; i++) {
        products.push_back(
            simulator_product{make_matrix(problem.a, A, i, problem.what.transa != CUBLAS_OP_N),
                              make_matrix(problem.b, B, i, problem.what.transb != CUBLAS_OP_N),
                              make_matrix(problem.c, C, i, false),
                              make_matrix(problem.d, D, i, false), problem.m, problem.n, problem.k,
                              *static_cast<const float *>(alpha), *static_cast<const float *>(beta),
                              problem.what.compute == CUBLAS_COMPUTE_32F_FAST_TF32});
        simulator_add_ranges(products.back(), ranges);
    }
    add_epilogue_ranges(epilogue, ranges);
    if (workspace_bytes >= 256) {
        ranges.push_back(simulator_writes(workspace, 256));
    }
    cudaError_t error = simulator_enqueue(
        stream, call,
        [products, epilogue] {
            for (const simulator_product &product : products) {
                run(product, epilogue);
            }
        },
        ranges);
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

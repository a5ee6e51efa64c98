#include "core/cuda/cuda_ops.h"

#include <cassert>
#include <climits>
#include <cstdlib>
#include <cstring>

/* A row-major matrix is the transpose of the column-major one that lies in the same memory, so that
 * c = op(a) op(b) is c^T = op(b)^T op(a)^T for cuBLAS: b comes first, with rows and columns
 * exchanged and its own transpose flag. */

/* --- algorithms ------------------------------------------------------------------------------ */

/* All that the choice of an algorithm depends on. Compared byte by byte: no gaps are left unset. */
typedef struct {
    int64_t m, n, k; /* c is m by n */
    int64_t a_stride, b_stride, c_stride, before_stride;
    uint32_t a_alignment, b_alignment, c_alignment, before_alignment;
    uint32_t type, c_type; /* of a and b; of c */
    uint32_t transpose_a, transpose_b, epilogue;
    uint32_t unused;
} product_key;

/* One product: what cuBLASLt is told at every call. Not offered: it has no algorithm for this. */
typedef struct {
    product_key key;
    bool offered;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
} product_plan;

/* cuBLAS's arrays for one call of multiply_group, each with room for `capacity` entries. */
typedef struct {
    int capacity;
    int *group; /* of each product */
    const void **operands;
    cublasOperation_t *transpose_a, *transpose_b;
    int *m, *n, *k, *lda, *ldb, *ldc, *size;
    float *alpha, *beta;
} group_arrays;

enum { EPILOGUE_BIAS_COLUMNS = 1 << 18 };

struct tt_cuda_products {
    product_plan *plans;
    int count, capacity;
    __nv_bfloat16 *bias; /* the bias of the product that runs next, as cuBLASLt wants it for bf16 */
    group_arrays group;
};

bool tt_cuda_products_create(tt_device *device)
{
    tt_cuda_products *products =
        static_cast<tt_cuda_products *>(calloc(1, sizeof(tt_cuda_products)));
    tt_cuda(device)->products = products;
    if (products != nullptr) {
        products->bias = static_cast<__nv_bfloat16 *>(
            device->allocate(device, EPILOGUE_BIAS_COLUMNS * sizeof(__nv_bfloat16)));
    }
    return products != nullptr && products->bias != nullptr;
}

static void destroy_plan(const product_plan *plan)
{
    if (plan->description != nullptr) {
        cublasLtMatmulDescDestroy(plan->description);
    }
    for (cublasLtMatrixLayout_t layout : {plan->a, plan->b, plan->c}) {
        if (layout != nullptr) {
            cublasLtMatrixLayoutDestroy(layout);
        }
    }
}

static void free_group(group_arrays *group)
{
    free(group->group);
    free(group->operands);
    free(group->transpose_a);
    free(group->m);
    free(group->alpha);
    *group = group_arrays{};
}

void tt_cuda_products_destroy(tt_device *device)
{
    tt_cuda_products *products = tt_cuda(device)->products;
    if (products == nullptr) {
        return;
    }
    for (int i = 0; i < products->count; i++) {
        destroy_plan(&products->plans[i]);
    }
    free_group(&products->group);
    device->release(device, products->bias);
    free(products->plans);
    free(products);
    tt_cuda(device)->products = nullptr;
}

static cudaDataType_t data_type(uint32_t type)
{
    return type == TT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* Sums are formed in f32; TF32 rounds f32 operands on their way into the tensor cores. */
static cublasComputeType_t compute_type(const tt_device *device, uint32_t type)
{
    return type == TT_F32 && tt_cuda(device)->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                   : CUBLAS_COMPUTE_32F;
}

/* The power of two, 256 at most, at which every row of the matrix begins. */
static uint32_t alignment_of(const tt_matrix *matrix)
{
    uintptr_t bits = reinterpret_cast<uintptr_t>(matrix->data) |
                     static_cast<uintptr_t>(matrix->stride) * tt_type_size(matrix->type) | 256u;
    return static_cast<uint32_t>(bits & (~bits + 1));
}

static product_key key_of(const tt_product *product, tt_epilogue epilogue)
{
    product_key key;
    memset(&key, 0, sizeof key);
    key.m = product->c.rows;
    key.n = product->c.columns;
    key.k = product->transpose_a ? product->a.rows : product->a.columns;
    key.a_stride = product->a.stride;
    key.b_stride = product->b.stride;
    key.c_stride = product->c.stride;
    key.a_alignment = alignment_of(&product->a);
    key.b_alignment = alignment_of(&product->b);
    key.c_alignment = alignment_of(&product->c);
    key.type = product->a.type;
    key.c_type = product->c.type;
    key.transpose_a = product->transpose_a;
    key.transpose_b = product->transpose_b;
    key.epilogue = epilogue;
    if (epilogue == TT_EPILOGUE_GELU) {
        key.before_stride = product->before_gelu.stride;
        key.before_alignment = alignment_of(&product->before_gelu);
    }
    return key;
}

static bool set_description(tt_device *device, product_plan *plan,
                            cublasLtMatmulDescAttributes_t attribute, const void *value,
                            size_t bytes)
{
    return tt_cublas_good(
        device, cublasLtMatmulDescSetAttribute(plan->description, attribute, value, bytes),
        "cublasLtMatmulDescSetAttribute");
}

static bool describe_epilogue(tt_device *device, product_plan *plan)
{
    const product_key *key = &plan->key;
    cublasLtEpilogue_t epilogue = key->epilogue == TT_EPILOGUE_BIAS ? CUBLASLT_EPILOGUE_BIAS
                                  : key->epilogue == TT_EPILOGUE_GELU
                                      ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                                      : CUBLASLT_EPILOGUE_DEFAULT;
    return set_description(device, plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                           sizeof epilogue) &&
           (key->epilogue != TT_EPILOGUE_GELU ||
            set_description(device, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &key->before_stride,
                            sizeof key->before_stride));
}

static bool describe(tt_device *device, product_plan *plan)
{
    const product_key *key = &plan->key;
    cublasOperation_t first = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint64_t a_rows = static_cast<uint64_t>(key->transpose_a ? key->k : key->m);
    uint64_t a_columns = static_cast<uint64_t>(key->transpose_a ? key->m : key->k);
    uint64_t b_rows = static_cast<uint64_t>(key->transpose_b ? key->n : key->k);
    uint64_t b_columns = static_cast<uint64_t>(key->transpose_b ? key->k : key->n);
    uint64_t m = static_cast<uint64_t>(key->m), n = static_cast<uint64_t>(key->n);
    return tt_cublas_good(device,
                          cublasLtMatmulDescCreate(&plan->description,
                                                   compute_type(device, key->type), CUDA_R_32F),
                          "cublasLtMatmulDescCreate") &&
           set_description(device, plan, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first) &&
           set_description(device, plan, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second) &&
           describe_epilogue(device, plan) &&
           tt_cublas_good(device,
                          cublasLtMatrixLayoutCreate(&plan->a, data_type(key->type), a_columns,
                                                     a_rows, key->a_stride),
                          "cublasLtMatrixLayoutCreate") &&
           tt_cublas_good(device,
                          cublasLtMatrixLayoutCreate(&plan->b, data_type(key->type), b_columns,
                                                     b_rows, key->b_stride),
                          "cublasLtMatrixLayoutCreate") &&
           tt_cublas_good(
               device,
               cublasLtMatrixLayoutCreate(&plan->c, data_type(key->c_type), n, m, key->c_stride),
               "cublasLtMatrixLayoutCreate");
}

/* Gives `plan` the pointers that cuBLASLt takes through the description. */
static bool describe_operands(tt_device *device, product_plan *plan, const tt_product *product)
{
    if (plan->key.epilogue == TT_EPILOGUE_NONE) {
        return true;
    }
    const void *bias = product->bias;
    if (product->c.type == TT_BF16) {
        bias = tt_cuda(device)->products->bias;
    }
    return set_description(device, plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias) &&
           (plan->key.epilogue != TT_EPILOGUE_GELU ||
            set_description(device, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                            &product->before_gelu.data, sizeof product->before_gelu.data));
}

static bool prefer(tt_device *device, cublasLtMatmulPreference_t preference,
                   const product_plan *plan)
{
    /* Parts of a sum that is split are added in f32, in a fixed order. */
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint64_t workspace = tt_cuda(device)->products_workspace_bytes;
    const product_key *key = &plan->key;
    struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } settings[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->b_alignment, sizeof key->b_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->a_alignment, sizeof key->a_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->c_alignment, sizeof key->c_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->c_alignment, sizeof key->c_alignment},
    };
    for (const auto &setting : settings) {
        if (!tt_cublas_good(device,
                            cublasLtMatmulPreferenceSetAttribute(preference, setting.attribute,
                                                                 setting.value, setting.bytes),
                            "cublasLtMatmulPreferenceSetAttribute")) {
            return false;
        }
    }
    return true;
}

/* Asks cuBLASLt for its first choice, which depends on nothing but key and hardware. */
static bool choose_algorithm(tt_device *device, product_plan *plan)
{
    cublasLtMatmulPreference_t preference = nullptr;
    if (!tt_cublas_good(device, cublasLtMatmulPreferenceCreate(&preference),
                        "cublasLtMatmulPreferenceCreate")) {
        return false;
    }
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    cublasStatus_t status = CUBLAS_STATUS_INTERNAL_ERROR;
    if (prefer(device, preference, plan)) {
        /* The layout of b goes first, see above. */
        status = cublasLtMatmulAlgoGetHeuristic(tt_cuda(device)->blas_lt, plan->description,
                                                plan->b, plan->a, plan->c, plan->c, preference, 1,
                                                &result, &found);
    }
    cublasLtMatmulPreferenceDestroy(preference);
    if (tt_cuda(device)->failed) {
        return false;
    }
    plan->offered = status == CUBLAS_STATUS_SUCCESS && found > 0;
    if (plan->offered) {
        plan->algorithm = result.algo;
        return true;
    }
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           tt_cublas_good(device, status, "cublasLtMatmulAlgoGetHeuristic");
}

/* The plan for this product, made at its first call; NULL with the failure noted. */
static product_plan *find_plan(tt_device *device, const tt_product *product, tt_epilogue epilogue)
{
    tt_cuda_products *products = tt_cuda(device)->products;
    product_key key = key_of(product, epilogue);
    for (int i = 0; i < products->count; i++) {
        if (memcmp(&products->plans[i].key, &key, sizeof key) == 0) {
            return &products->plans[i];
        }
    }
    if (products->count == products->capacity) {
        int capacity = products->capacity > 0 ? 2 * products->capacity : 64;
        void *plans =
            realloc(products->plans, static_cast<size_t>(capacity) * sizeof(product_plan));
        if (plans == nullptr) {
            tt_cuda_refuse(device, "no memory for the list of products");
            return nullptr;
        }
        products->plans = static_cast<product_plan *>(plans);
        products->capacity = capacity;
    }
    product_plan *plan = &products->plans[products->count];
    memset(plan, 0, sizeof *plan);
    plan->key = key;
    if (!describe(device, plan) || !describe_operands(device, plan, product) ||
        !choose_algorithm(device, plan)) {
        destroy_plan(plan);
        return nullptr;
    }
    products->count++;
    return plan;
}

/* --- multiply -------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(256)
    round_bias(const float *bias, int64_t count, __nv_bfloat16 *rounded)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) {
        tt_store(rounded + i, bias[i]);
    }
}

static void run_plan(tt_device *device, product_plan *plan, const tt_product *product)
{
    tt_cuda_state *state = tt_cuda(device);
    if (plan->key.epilogue != TT_EPILOGUE_NONE && product->c.type == TT_BF16) {
        unsigned blocks = static_cast<unsigned>((product->c.columns + 255) / 256);
        TT_LAUNCH(device, blocks, 256, 0, round_bias, product->bias, product->c.columns,
                  state->products->bias);
    }
    if (state->failed || !describe_operands(device, plan, product)) {
        return;
    }
    tt_cublas_good(device,
                   cublasLtMatmul(state->blas_lt, plan->description, &product->alpha,
                                  product->b.data, plan->b, product->a.data, plan->a,
                                  &product->beta, product->c.data, plan->c, product->c.data,
                                  plan->c, &plan->algorithm, state->products_workspace,
                                  state->products_workspace_bytes, state->stream),
                   "cublasLtMatmul");
}

/* c = beta c, for a product with nothing to sum over. With beta 0 c is not read. */
template <typename T>
static __global__ void __launch_bounds__(256)
    scale_matrix(T *data, int64_t columns, int64_t stride, int64_t count, float beta)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) {
        T *element = data + i / columns * stride + i % columns;
        tt_store(element, beta == 0.0f ? 0.0f : beta * tt_load(element));
    }
}

static void scale(tt_device *device, tt_matrix c, float beta)
{
    int64_t count = c.rows * c.columns;
    unsigned blocks = static_cast<unsigned>((count + 255) / 256);
    if (c.type == TT_BF16) {
        auto kernel = scale_matrix<__nv_bfloat16>;
        TT_LAUNCH(device, blocks, 256, 0, kernel, static_cast<__nv_bfloat16 *>(c.data), c.columns,
                  c.stride, count, beta);
    } else {
        auto kernel = scale_matrix<float>;
        TT_LAUNCH(device, blocks, 256, 0, kernel, static_cast<float *>(c.data), c.columns, c.stride,
                  count, beta);
    }
}

static bool is_empty(const tt_product *product)
{
    return product->c.rows == 0 || product->c.columns == 0;
}

static int64_t inner_of(const tt_product *product)
{
    return product->transpose_a ? product->a.rows : product->a.columns;
}

[[maybe_unused]] static bool shapes_agree(const tt_product *product)
{
    const tt_matrix *a = &product->a, *b = &product->b, *c = &product->c;
    return a->type == b->type && (c->type == a->type || c->type == TT_F32) &&
           inner_of(product) == (product->transpose_b ? b->columns : b->rows) &&
           c->rows == (product->transpose_a ? a->columns : a->rows) &&
           c->columns == (product->transpose_b ? b->rows : b->columns) &&
           (product->epilogue != TT_EPILOGUE_GELU ||
            (product->beta == 0.0f && product->before_gelu.type == c->type));
}

static void assert_shapes(const tt_product *product)
{
    (void)product;
    assert(shapes_agree(product));
}

/* False, with nothing done, where cuBLASLt has no product with this epilogue. */
static bool try_multiply(tt_device *device, const tt_product *product, tt_epilogue epilogue)
{
    if (epilogue != TT_EPILOGUE_NONE &&
        (inner_of(product) == 0 || product->c.columns > EPILOGUE_BIAS_COLUMNS)) {
        return false;
    }
    product_plan *plan = find_plan(device, product, epilogue);
    if (plan != nullptr && plan->offered) {
        run_plan(device, plan, product);
    }
    return plan == nullptr || plan->offered;
}

static void multiply_plain(tt_device *device, const tt_product *product)
{
    if (inner_of(product) == 0) {
        scale(device, product->c, product->beta);
    } else if (!try_multiply(device, product, TT_EPILOGUE_NONE)) {
        tt_cuda_refuse(
            device, "cuBLASLt has no algorithm for a product of %lld x %lld x %lld in %s",
            static_cast<long long>(product->c.rows), static_cast<long long>(product->c.columns),
            static_cast<long long>(inner_of(product)), product->a.type == TT_BF16 ? "bf16" : "f32");
    }
}

static void multiply_bias(tt_device *device, const tt_product *product)
{
    if (!try_multiply(device, product, TT_EPILOGUE_BIAS)) {
        multiply_plain(device, product);
        tt_cuda_add_bias(device, product->c, product->bias);
    }
}

/* cuBLASLt has the GELU with tanh alone, and that not for every type and alignment. */
static void multiply_gelu(tt_device *device, const tt_product *product)
{
    if (product->gelu == TT_GELU_TANH && try_multiply(device, product, TT_EPILOGUE_GELU)) {
        return;
    }
    tt_product sum = *product;
    sum.c = product->before_gelu;
    multiply_bias(device, &sum);
    tt_cuda_gelu_forward(device, product->gelu, sum.c, nullptr, product->c);
}

void tt_cuda_multiply(tt_device *device, const tt_product *product)
{
    assert_shapes(product);
    if (tt_cuda(device)->failed || is_empty(product)) {
        return;
    }
    if (product->epilogue == TT_EPILOGUE_GELU) {
        multiply_gelu(device, product);
    } else if (product->epilogue == TT_EPILOGUE_BIAS) {
        multiply_bias(device, product);
    } else {
        multiply_plain(device, product);
    }
}

/* --- multiply_group -------------------------------------------------------------------------- */

static bool reserve_group(tt_device *device, int count)
{
    group_arrays *group = &tt_cuda(device)->products->group;
    if (count <= group->capacity) {
        return true;
    }
    free_group(group);
    size_t room = static_cast<size_t>(count);
    group->group = static_cast<int *>(calloc(room, sizeof(int)));
    group->operands = static_cast<const void **>(calloc(3 * room, sizeof(void *)));
    group->transpose_a =
        static_cast<cublasOperation_t *>(calloc(2 * room, sizeof(cublasOperation_t)));
    group->m = static_cast<int *>(calloc(7 * room, sizeof(int)));
    group->alpha = static_cast<float *>(calloc(2 * room, sizeof(float)));
    if (group->group == nullptr || group->operands == nullptr || group->transpose_a == nullptr ||
        group->m == nullptr || group->alpha == nullptr) {
        free_group(group);
        tt_cuda_refuse(device, "no memory for a group of %d products", count);
        return false;
    }
    group->transpose_b = group->transpose_a + room;
    group->n = group->m + room;
    group->k = group->n + room;
    group->lda = group->k + room;
    group->ldb = group->lda + room;
    group->ldc = group->ldb + room;
    group->size = group->ldc + room;
    group->beta = group->alpha + room;
    group->capacity = count;
    return true;
}

static int narrow(int64_t size)
{
    assert(size <= INT_MAX);
    return static_cast<int>(size);
}

/* Describes group number `at` by a product of it, in cuBLAS's order of operands. */
static void describe_group(group_arrays *group, int at, const tt_product *product)
{
    group->transpose_a[at] = product->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    group->transpose_b[at] = product->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    group->m[at] = narrow(product->c.columns);
    group->n[at] = narrow(product->c.rows);
    group->k[at] = narrow(inner_of(product));
    group->lda[at] = narrow(product->b.stride);
    group->ldb[at] = narrow(product->a.stride);
    group->ldc[at] = narrow(product->c.stride);
    group->alpha[at] = product->alpha;
    group->beta[at] = product->beta;
    group->size[at] = 0;
}

static bool same_group(const tt_product *a, const tt_product *b)
{
    return a->transpose_a == b->transpose_a && a->transpose_b == b->transpose_b &&
           a->alpha == b->alpha && a->beta == b->beta && a->c.rows == b->c.rows &&
           a->c.columns == b->c.columns && inner_of(a) == inner_of(b) &&
           a->a.stride == b->a.stride && a->b.stride == b->b.stride && a->c.stride == b->c.stride;
}

/* Sorts products that sum over something into groups of one shape, in the order in which shapes
 * come up, and lists their operands group by group. Products with nothing to sum over are done on
 * the spot. Returns the number of groups; `total` that of the products in them. */
static int form_groups(tt_device *device, const tt_product *products, int count, int *total)
{
    group_arrays *group = &tt_cuda(device)->products->group;
    int groups = 0;
    for (int i = 0; i < count; i++) {
        group->group[i] = -1;
        if (is_empty(&products[i]) || inner_of(&products[i]) == 0) {
            if (!is_empty(&products[i])) {
                scale(device, products[i].c, products[i].beta);
            }
            continue;
        }
        for (int j = i - 1; j >= 0 && group->group[i] < 0; j--) {
            if (group->group[j] >= 0 && same_group(&products[i], &products[j])) {
                group->group[i] = group->group[j];
            }
        }
        if (group->group[i] < 0) {
            group->group[i] = groups;
            describe_group(group, groups++, &products[i]);
        }
        group->size[group->group[i]]++;
    }
    *total = 0;
    for (int g = 0; g < groups; g++) {
        *total += group->size[g];
    }
    int at = 0;
    for (int g = 0; g < groups; g++) {
        for (int i = 0; i < count; i++) {
            if (group->group[i] == g) {
                group->operands[at] = products[i].b.data;
                group->operands[*total + at] = products[i].a.data;
                group->operands[2 * *total + at] = products[i].c.data;
                at++;
            }
        }
    }
    return groups;
}

/* Whether the addresses lie evenly; `step` is the distance in f32 numbers. */
static bool evenly_spaced(const void *const *addresses, int count, long long *step)
{
    ptrdiff_t bytes =
        static_cast<const char *>(addresses[1]) - static_cast<const char *>(addresses[0]);
    for (int i = 2; i < count; i++) {
        if (static_cast<const char *>(addresses[i]) - static_cast<const char *>(addresses[i - 1]) !=
            bytes) {
            return false;
        }
    }
    *step = bytes / static_cast<ptrdiff_t>(sizeof(float));
    return bytes % static_cast<ptrdiff_t>(sizeof(float)) == 0 && bytes >= 0;
}

static bool try_strided(tt_device *device, int count)
{
    const group_arrays *group = &tt_cuda(device)->products->group;
    long long step_a, step_b, step_c;
    if (!evenly_spaced(group->operands, count, &step_a) ||
        !evenly_spaced(group->operands + count, count, &step_b) ||
        !evenly_spaced(group->operands + 2 * count, count, &step_c)) {
        return false;
    }
    tt_cublas_good(device,
                   cublasGemmStridedBatchedEx(
                       tt_cuda(device)->blas, group->transpose_a[0], group->transpose_b[0],
                       group->m[0], group->n[0], group->k[0], &group->alpha[0], group->operands[0],
                       CUDA_R_32F, group->lda[0], step_a, group->operands[count], CUDA_R_32F,
                       group->ldb[0], step_b, &group->beta[0],
                       const_cast<void *>(group->operands[2 * count]), CUDA_R_32F, group->ldc[0],
                       step_c, count, compute_type(device, TT_F32), CUBLAS_GEMM_DEFAULT),
                   "cublasGemmStridedBatchedEx");
    return true;
}

static void run_grouped(tt_device *device, int groups, int total)
{
    const group_arrays *group = &tt_cuda(device)->products->group;
    const void *const *operands = static_cast<const void *const *>(
        tt_cuda_constant(device, group->operands, 3 * static_cast<size_t>(total) * sizeof(void *)));
    if (operands == nullptr) {
        return;
    }
    void *const *results = const_cast<void *const *>(operands + 2 * total);
    tt_cublas_good(device,
                   cublasGemmGroupedBatchedEx(
                       tt_cuda(device)->blas, group->transpose_a, group->transpose_b, group->m,
                       group->n, group->k, group->alpha, operands, CUDA_R_32F, group->lda,
                       operands + total, CUDA_R_32F, group->ldb, group->beta, results, CUDA_R_32F,
                       group->ldc, groups, group->size, compute_type(device, TT_F32)),
                   "cublasGemmGroupedBatchedEx");
}

void tt_cuda_multiply_group(tt_device *device, const tt_product *products, int count)
{
    for (int i = 0; i < count; i++) {
        assert_shapes(&products[i]);
        assert(products[i].c.type == TT_F32 && products[i].a.type == TT_F32 &&
               products[i].epilogue == TT_EPILOGUE_NONE);
    }
    if (count == 0 || tt_cuda(device)->failed || !reserve_group(device, count)) {
        return;
    }
    int total;
    int groups = form_groups(device, products, count, &total);
    if (total == 0 || (groups == 1 && total > 1 && try_strided(device, total))) {
        return;
    }
    run_grouped(device, groups, total);
}

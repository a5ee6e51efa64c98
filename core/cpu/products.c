#include "core/cpu/cpu_ops.h"
#include "core/cpu/matrix_product.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A product without inner dimension: c = beta c, which is not read when beta is 0. oneDNN takes
 * none. */
static void scale_result(int64_t m, int64_t n, float beta, float *c, int64_t c_stride)
{
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            float *entry = &c[i * c_stride + j];
            *entry = beta == 0.0f ? 0.0f : beta * *entry;
        }
    }
}

void tt_matrix_product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                       float alpha, const float *a, int64_t a_stride, const float *b,
                       int64_t b_stride, float beta, float *c, int64_t c_stride)
{
    if (m == 0 || n == 0) {
        return;
    }
    if (k == 0) {
        scale_result(m, n, beta, c, c_stride);
        return;
    }
    dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k,
                                      alpha, a, a_stride, b, b_stride, beta, c, c_stride);
    if (status != dnnl_success) {
        /* Shapes and strides are the caller's promise; what remains is memory for oneDNN's packing.
         */
        fprintf(stderr, "ttrain: oneDNN refused a %lld x %lld x %lld product (status %d)\n",
                (long long)m, (long long)n, (long long)k, (int)status);
        abort();
    }
}

static void run_product(const tt_product *product)
{
    const tt_matrix *a = &product->a, *b = &product->b, *c = &product->c;
    assert(a->type == TT_F32 && b->type == TT_F32 && c->type == TT_F32);
    int64_t inner = product->transpose_a ? a->rows : a->columns;
    assert(inner == (product->transpose_b ? b->columns : b->rows));
    assert(c->rows == (product->transpose_a ? a->columns : a->rows));
    assert(c->columns == (product->transpose_b ? b->rows : b->columns));
    tt_matrix_product(product->transpose_a, product->transpose_b, c->rows, c->columns, inner,
                      product->alpha, a->data, a->stride, b->data, b->stride, product->beta,
                      c->data, c->stride);
}

void tt_cpu_multiply(tt_device *device, const tt_product *product)
{
    if (product->epilogue == TT_EPILOGUE_GELU) {
        assert(product->beta == 0.0f);
        tt_product sum = *product;
        sum.c = product->before_gelu;
        run_product(&sum);
        tt_cpu_gelu_forward(device, product->gelu, sum.c, product->bias, product->c);
        return;
    }
    run_product(product);
    if (product->epilogue == TT_EPILOGUE_BIAS) {
        tt_cpu_add_bias(device, product->c, product->bias);
    }
}

void tt_cpu_multiply_group(tt_device *device, const tt_product *products, int count)
{
    if (count == 0) {
        return;
    }
#pragma omp parallel for schedule(dynamic) num_threads(device->threads)
    for (int i = 0; i < count; i++) {
        run_product(&products[i]);
    }
}

static void run_copy(const tt_copy *copy)
{
    assert(copy->source.rows == copy->target.rows && copy->source.columns == copy->target.columns);
    for (int64_t row = 0; row < copy->source.rows; row++) {
        const float *source = tt_cpu_row(copy->source, row);
        float *target = tt_cpu_row(copy->target, row);
        if (copy->accumulate) {
            for (int64_t j = 0; j < copy->source.columns; j++) {
                target[j] += source[j];
            }
        } else {
            memcpy(target, source, (size_t)copy->source.columns * sizeof(float));
        }
    }
}

void tt_cpu_copy_group(tt_device *device, const tt_copy *copies, int count)
{
    if (count == 0) {
        return;
    }
#pragma omp parallel for schedule(dynamic) num_threads(device->threads)
    for (int i = 0; i < count; i++) {
        run_copy(&copies[i]);
    }
}

static float kept(float value, float threshold)
{
    return value > threshold ? value : 0.0f;
}

void tt_cpu_scale_cores(tt_device *device, const tt_scaled_core *cores, int count)
{
    if (count == 0) {
        return;
    }
#pragma omp parallel for schedule(dynamic) num_threads(device->threads)
    for (int i = 0; i < count; i++) {
        const tt_scaled_core *core = &cores[i];
        for (int64_t row = 0; row < core->rows; row++) {
            const float *from = core->core + row * core->rank;
            float *to = core->scaled + row * core->rank;
            for (int64_t j = 0; j < core->rank; j++) {
                to[j] = from[j] * kept(core->diagonal[j], core->threshold);
            }
        }
    }
}

static void scaled_core_backward(const tt_scaled_core *core)
{
    for (int64_t row = 0; row < core->rows; row++) {
        const float *value = core->core + row * core->rank;
        const float *gradient = core->scaled_gradient + row * core->rank;
        float *core_gradient = core->core_gradient + row * core->rank;
        for (int64_t j = 0; j < core->rank; j++) {
            float diagonal = kept(core->diagonal[j], core->threshold);
            core_gradient[j] += gradient[j] * diagonal;
            core->diagonal_gradient[j] += diagonal > 0.0f ? gradient[j] * value[j] : 0.0f;
        }
    }
}

void tt_cpu_scale_cores_backward(tt_device *device, const tt_scaled_core *cores, int count)
{
    if (count == 0) {
        return;
    }
#pragma omp parallel for schedule(dynamic) num_threads(device->threads)
    for (int i = 0; i < count; i++) {
        scaled_core_backward(&cores[i]);
    }
}

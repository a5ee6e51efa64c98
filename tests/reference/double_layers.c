#include "tests/reference/double_layers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double *tt_double_pool_array(tt_double_pool *pool, int64_t count)
{
    double **grown = realloc(pool->arrays, ((size_t)pool->count + 1) * sizeof(*grown));
    if (grown == NULL) {
        fprintf(stderr, "double precision model: out of memory\n");
        abort();
    }
    pool->arrays = grown;
    pool->arrays[pool->count] = tt_double_array(count);
    return pool->arrays[pool->count++];
}

void tt_double_pool_free(tt_double_pool *pool)
{
    for (int i = 0; i < pool->count; i++) {
        free(pool->arrays[i]);
    }
    free(pool->arrays);
    *pool = (tt_double_pool){NULL, 0};
}

void tt_double_map_dense(tt_double_map *map, tt_double_tensor *weight, tt_double_tensor *bias,
                         tt_double_pool *pool)
{
    *map = (tt_double_map){.inputs = weight->shape.extent[1],
                           .outputs = weight->shape.extent[0],
                           .bias = bias,
                           .dense = weight};
    map->weight = tt_double_pool_array(pool, weight->shape.count);
    map->weight_gradient = tt_double_pool_array(pool, weight->shape.count);
    for (int64_t i = 0; i < map->inputs; i++) {
        for (int64_t o = 0; o < map->outputs; o++) {
            map->weight[i * map->outputs + o] = weight->values[o * map->inputs + i];
        }
    }
}

void tt_double_map_train(tt_double_map *map, const tt_double_train *train, tt_double_tensor *bias,
                         tt_double_pool *pool)
{
    *map = (tt_double_map){.inputs = tt_double_train_inputs(train),
                           .outputs = tt_double_train_outputs(train),
                           .bias = bias,
                           .train = *train};
    map->weight = tt_double_pool_array(pool, map->inputs * map->outputs);
    map->weight_gradient = tt_double_pool_array(pool, map->inputs * map->outputs);
    tt_double_train_assemble(train, map->weight);
}

void tt_double_map_forward(const tt_double_map *map, int64_t rows, const double *x, double *y)
{
    for (int64_t r = 0; r < rows; r++) {
        double *to = y + r * map->outputs;
        memcpy(to, map->bias->values, (size_t)map->outputs * sizeof(double));
        for (int64_t i = 0; i < map->inputs; i++) {
            for (int64_t o = 0; o < map->outputs; o++) {
                to[o] += x[r * map->inputs + i] * map->weight[i * map->outputs + o];
            }
        }
    }
}

void tt_double_map_backward(tt_double_map *map, int64_t rows, const double *x, const double *dy,
                            double *dx)
{
    for (int64_t r = 0; r < rows; r++) {
        const double *from = dy + r * map->outputs;
        for (int64_t o = 0; o < map->outputs; o++) {
            map->bias->gradients[o] += from[o];
        }
        for (int64_t i = 0; i < map->inputs; i++) {
            double sum = 0;
            for (int64_t o = 0; o < map->outputs; o++) {
                map->weight_gradient[i * map->outputs + o] += x[r * map->inputs + i] * from[o];
                sum += from[o] * map->weight[i * map->outputs + o];
            }
            if (dx != NULL) {
                dx[r * map->inputs + i] += sum;
            }
        }
    }
}

void tt_double_map_finish(const tt_double_map *map)
{
    if (map->dense == NULL) {
        tt_double_train_gradient(&map->train, map->weight_gradient);
        return;
    }
    for (int64_t i = 0; i < map->inputs; i++) {
        for (int64_t o = 0; o < map->outputs; o++) {
            map->dense->gradients[o * map->inputs + i] +=
                map->weight_gradient[i * map->outputs + o];
        }
    }
}

void tt_double_norm_forward(tt_double_norm *norm, int64_t rows, const double *x, double *y,
                            tt_double_pool *pool)
{
    int64_t width = norm->width;
    norm->normalized = tt_double_pool_array(pool, rows * width);
    norm->inverse_deviation = tt_double_pool_array(pool, rows);
    for (int64_t r = 0; r < rows; r++) {
        double mean = 0;
        double variance = 0;
        for (int64_t i = 0; i < width; i++) {
            mean += x[r * width + i] / (double)width;
        }
        for (int64_t i = 0; i < width; i++) {
            double deviation = x[r * width + i] - mean;
            variance += deviation * deviation / (double)width;
        }
        double inverse = 1 / sqrt(variance + norm->epsilon);
        norm->inverse_deviation[r] = inverse;
        for (int64_t i = 0; i < width; i++) {
            double normalized = (x[r * width + i] - mean) * inverse;
            norm->normalized[r * width + i] = normalized;
            y[r * width + i] = normalized * norm->weight->values[i] + norm->bias->values[i];
        }
    }
}

void tt_double_norm_backward(const tt_double_norm *norm, int64_t rows, const double *dy, double *dx)
{
    int64_t width = norm->width;
    for (int64_t r = 0; r < rows; r++) {
        const double *normalized = norm->normalized + r * width;
        const double *from = dy + r * width;
        double mean = 0;
        double product = 0;
        for (int64_t i = 0; i < width; i++) {
            norm->weight->gradients[i] += from[i] * normalized[i];
            norm->bias->gradients[i] += from[i];
            double inner = from[i] * norm->weight->values[i];
            mean += inner / (double)width;
            product += inner * normalized[i] / (double)width;
        }
        for (int64_t i = 0; i < width; i++) {
            double inner = from[i] * norm->weight->values[i];
            dx[r * width + i] =
                (inner - mean - normalized[i] * product) * norm->inverse_deviation[r];
        }
    }
}

static double gelu_argument(double x)
{
    return sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x);
}

double tt_double_gelu(bool by_tanh, double x)
{
    if (by_tanh) {
        return 0.5 * x * (1 + tanh(gelu_argument(x)));
    }
    return 0.5 * x * (1 + erf(x / sqrt(2)));
}

double tt_double_gelu_slope(bool by_tanh, double x)
{
    if (by_tanh) {
        double bent = tanh(gelu_argument(x));
        double slope = sqrt(2 / acos(-1)) * (1 + 3 * 0.044715 * x * x);
        return 0.5 * (1 + bent) + 0.5 * x * (1 - bent * bent) * slope;
    }
    double density = exp(-0.5 * x * x) / sqrt(2 * acos(-1));
    return 0.5 * (1 + erf(x / sqrt(2))) + x * density;
}

double tt_double_cross_entropy(int64_t rows, int64_t classes, const double *logits,
                               const int32_t *labels, double *gradient)
{
    double loss = 0;
    for (int64_t r = 0; r < rows; r++) {
        const double *row = logits + r * classes;
        double largest = row[0];
        for (int64_t c = 1; c < classes; c++) {
            largest = fmax(largest, row[c]);
        }
        double sum = 0;
        for (int64_t c = 0; c < classes; c++) {
            sum += exp(row[c] - largest);
        }
        for (int64_t c = 0; c < classes; c++) {
            double probability = exp(row[c] - largest) / sum;
            gradient[r * classes + c] = (probability - (c == labels[r])) / (double)rows;
        }
        loss += (largest + log(sum) - row[labels[r]]) / (double)rows;
    }
    return loss;
}

/* Where query i's probabilities over the keys begin, for sequence b and head h. */
static double *probability_row(const tt_double_block *block, int64_t b, int64_t h, int64_t i)
{
    return block->probabilities + ((b * block->heads + h) * block->sequence + i) * block->sequence;
}

/* Softmax over the keys that the mask lets through. */
static void masked_softmax(const int32_t *mask, int64_t count, double *scores)
{
    double largest = -INFINITY;
    double sum = 0;
    for (int64_t j = 0; j < count; j++) {
        if (mask[j] != 0) {
            largest = fmax(largest, scores[j]);
        }
    }
    for (int64_t j = 0; j < count; j++) {
        scores[j] = mask[j] != 0 ? exp(scores[j] - largest) : 0;
        sum += scores[j];
    }
    for (int64_t j = 0; j < count; j++) {
        scores[j] /= sum;
    }
}

static void attention_forward(tt_double_block *block)
{
    int64_t hidden = block->query.outputs;
    int64_t width = hidden / block->heads;
    for (int64_t b = 0; b < block->batch; b++) {
        for (int64_t h = 0; h < block->heads; h++) {
            int64_t first = b * block->sequence * hidden + h * width;
            for (int64_t i = 0; i < block->sequence; i++) {
                double *row = probability_row(block, b, h, i);
                double *context = block->context + first + i * hidden;
                for (int64_t j = 0; j < block->sequence; j++) {
                    row[j] = 0;
                    for (int64_t e = 0; e < width; e++) {
                        row[j] += block->q[first + i * hidden + e] *
                                  block->k[first + j * hidden + e] / sqrt((double)width);
                    }
                }
                masked_softmax(block->mask + b * block->sequence, block->sequence, row);
                for (int64_t j = 0; j < block->sequence; j++) {
                    for (int64_t e = 0; e < width; e++) {
                        context[e] += row[j] * block->v[first + j * hidden + e];
                    }
                }
            }
        }
    }
}

/* dq, dk, dv [tokens, hidden] start as zeros. */
static void attention_backward(const tt_double_block *block, const double *d_context, double *dq,
                               double *dk, double *dv, double *d_row)
{
    int64_t hidden = block->query.outputs;
    int64_t width = hidden / block->heads;
    for (int64_t b = 0; b < block->batch; b++) {
        for (int64_t h = 0; h < block->heads; h++) {
            int64_t first = b * block->sequence * hidden + h * width;
            for (int64_t i = 0; i < block->sequence; i++) {
                const double *row = probability_row(block, b, h, i);
                const double *from = d_context + first + i * hidden;
                double mean = 0;
                for (int64_t j = 0; j < block->sequence; j++) {
                    d_row[j] = 0;
                    for (int64_t e = 0; e < width; e++) {
                        dv[first + j * hidden + e] += row[j] * from[e];
                        d_row[j] += from[e] * block->v[first + j * hidden + e];
                    }
                    mean += row[j] * d_row[j];
                }
                for (int64_t j = 0; j < block->sequence; j++) {
                    double d_score = row[j] * (d_row[j] - mean) / sqrt((double)width);
                    for (int64_t e = 0; e < width; e++) {
                        dq[first + i * hidden + e] += d_score * block->k[first + j * hidden + e];
                        dk[first + j * hidden + e] += d_score * block->q[first + i * hidden + e];
                    }
                }
            }
        }
    }
}

void tt_double_block_forward(tt_double_block *block, const double *x, double *y,
                             tt_double_pool *pool)
{
    int64_t rows = block->batch * block->sequence;
    int64_t narrow = rows * block->query.inputs;
    int64_t wide = rows * block->inner.outputs;
    block->x = x;
    block->q = tt_double_pool_array(pool, narrow);
    block->k = tt_double_pool_array(pool, narrow);
    block->v = tt_double_pool_array(pool, narrow);
    block->probabilities = tt_double_pool_array(pool, block->heads * rows * block->sequence);
    block->context = tt_double_pool_array(pool, narrow);
    block->middle = tt_double_pool_array(pool, narrow);
    block->wide = tt_double_pool_array(pool, wide);
    block->active = tt_double_pool_array(pool, wide);
    double *sum = tt_double_pool_array(pool, narrow);

    tt_double_map_forward(&block->query, rows, x, block->q);
    tt_double_map_forward(&block->key, rows, x, block->k);
    tt_double_map_forward(&block->value, rows, x, block->v);
    attention_forward(block);
    tt_double_map_forward(&block->output, rows, block->context, sum);
    for (int64_t i = 0; i < narrow; i++) {
        sum[i] += x[i];
    }
    tt_double_norm_forward(&block->attention_norm, rows, sum, block->middle, pool);

    tt_double_map_forward(&block->inner, rows, block->middle, block->wide);
    for (int64_t i = 0; i < wide; i++) {
        block->active[i] = tt_double_gelu(block->gelu_by_tanh, block->wide[i]);
    }
    tt_double_map_forward(&block->outer, rows, block->active, sum);
    for (int64_t i = 0; i < narrow; i++) {
        sum[i] += block->middle[i];
    }
    tt_double_norm_forward(&block->output_norm, rows, sum, y, pool);
}

void tt_double_block_backward(tt_double_block *block, const double *dy, double *dx,
                              tt_double_pool *pool)
{
    int64_t rows = block->batch * block->sequence;
    int64_t narrow = rows * block->query.inputs;
    int64_t wide = rows * block->inner.outputs;
    double *d_middle = tt_double_pool_array(pool, narrow);
    double *d_wide = tt_double_pool_array(pool, wide);
    double *d_context = tt_double_pool_array(pool, narrow);
    double *dq = tt_double_pool_array(pool, narrow);
    double *dk = tt_double_pool_array(pool, narrow);
    double *dv = tt_double_pool_array(pool, narrow);
    double *d_row = tt_double_pool_array(pool, block->sequence);
    double *d_sum = tt_double_pool_array(pool, narrow);

    tt_double_norm_backward(&block->output_norm, rows, dy, d_sum);
    memcpy(d_middle, d_sum, (size_t)narrow * sizeof(double));
    tt_double_map_backward(&block->outer, rows, block->active, d_sum, d_wide);
    for (int64_t i = 0; i < wide; i++) {
        d_wide[i] *= tt_double_gelu_slope(block->gelu_by_tanh, block->wide[i]);
    }
    tt_double_map_backward(&block->inner, rows, block->middle, d_wide, d_middle);

    tt_double_norm_backward(&block->attention_norm, rows, d_middle, d_sum);
    memcpy(dx, d_sum, (size_t)narrow * sizeof(double));
    tt_double_map_backward(&block->output, rows, block->context, d_sum, d_context);
    attention_backward(block, d_context, dq, dk, dv, d_row);
    tt_double_map_backward(&block->query, rows, block->x, dq, dx);
    tt_double_map_backward(&block->key, rows, block->x, dk, dx);
    tt_double_map_backward(&block->value, rows, block->x, dv, dx);

    tt_double_map *const maps[] = {&block->query,  &block->key,   &block->value,
                                   &block->output, &block->inner, &block->outer};
    for (int i = 0; i < 6; i++) {
        tt_double_map_finish(maps[i]);
    }
}

#include "core/cpu/cpu_ops.h"
#include "core/cpu/vector_math.h"

#include <math.h>

/* The end of each thread's scratch memory keeps its loss and its count of correct rows. */
enum {
    TT_LOSS_PLACE = TT_CPU_THREAD_SCRATCH - 16,
    TT_CORRECT_PLACE = TT_LOSS_PLACE + 1,
    TT_BIAS_PLACES = TT_LOSS_PLACE
};

static inline float tt_logit(const float *row, const float *bias, int64_t j)
{
    return bias != NULL ? row[j] + bias[j] : row[j];
}

static float tt_largest_logit(const float *row, const float *bias, int64_t count)
{
    float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < count; j++) {
        float logit = tt_logit(row, bias, j);
        largest = logit > largest ? logit : largest;
    }
    return largest;
}

static bool tt_is_first_largest(const float *row, const float *bias, int64_t label, float largest)
{
    if (tt_logit(row, bias, label) != largest) {
        return false;
    }
    int64_t before = 0;
#pragma omp simd reduction(+ : before)
    for (int64_t j = 0; j < label; j++) {
        before += tt_logit(row, bias, j) == largest;
    }
    return before == 0;
}

/* exp(x) for x that is not positive; what is below 1e-30 of the largest term stays there. */
static inline float tt_weight(float x)
{
    float exponent = 1.44269504088896341f * x;
    return tt_exp2(exponent < -100.0f ? -100.0f : exponent);
}

/* sum over j of exp(logit_j - largest); with `weights`, which may be `row`, these are written too.
 */
static float tt_exponential_span(const float *row, const float *bias, int64_t count, float largest,
                                 float *weights)
{
    float sum = 0.0f;
    if (weights == NULL) {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < count; j++) {
            sum += tt_weight(tt_logit(row, bias, j) - largest);
        }
    } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < count; j++) {
            float weight = tt_weight(tt_logit(row, bias, j) - largest);
            weights[j] = weight;
            sum += weight;
        }
    }
    return sum;
}

/* The same for a whole row: a vocabulary has enough small terms for a sum in single precision to
 * lose some of them, so the sums of spans are added in double. */
static double tt_exponential_sum(const float *row, const float *bias, int64_t count, float largest,
                                 float *weights)
{
    enum { SPAN = 1024 };
    double sum = 0.0;
    for (int64_t first = 0; first < count; first += SPAN) {
        int64_t length = count - first < SPAN ? count - first : SPAN;
        sum += tt_exponential_span(row + first, bias != NULL ? bias + first : NULL, length, largest,
                                   weights != NULL ? weights + first : NULL);
    }
    return sum;
}

/* Turns exponentials and their sum into (softmax - one-hot) * scale. */
static void tt_gradient_row(float *weights, int64_t classes, int64_t label, float scale, double sum,
                            float *bias_partial)
{
    float factor = (float)(scale / sum);
    if (bias_partial != NULL) {
#pragma omp simd
        for (int64_t j = 0; j < classes; j++) {
            weights[j] *= factor;
            bias_partial[j] += weights[j];
        }
        bias_partial[label] -= scale;
    } else {
#pragma omp simd
        for (int64_t j = 0; j < classes; j++) {
            weights[j] *= factor;
        }
    }
    weights[label] -= scale;
}

/* Loss of row i, its gradient in place where asked, and whether the prediction was right. */
static double tt_cross_entropy_row(const tt_cross_entropy *loss, int64_t i, float *bias_partial,
                                   bool *correct)
{
    float *row = tt_cpu_row(loss->logits, i);
    int64_t classes = loss->logits.columns, label = loss->labels[i];
    float largest = tt_largest_logit(row, loss->bias, classes);
    float label_logit = tt_logit(row, loss->bias, label);
    *correct = tt_is_first_largest(row, loss->bias, label, largest);
    float *weights = loss->gradient_scale != NULL ? row : NULL;
    double sum = tt_exponential_sum(row, loss->bias, classes, largest, weights);
    if (weights != NULL) {
        tt_gradient_row(weights, classes, label, *loss->gradient_scale, sum, bias_partial);
    }
    return log(sum) + largest - label_logit;
}

static void tt_add_losses(const tt_device *device, int team, const tt_cross_entropy *loss)
{
    double loss_sum = 0.0, correct_sum = 0.0;
    for (int thread = 0; thread < team; thread++) {
        const float *scratch = tt_cpu_thread_scratch(device, thread);
        loss_sum += scratch[TT_LOSS_PLACE];
        correct_sum += scratch[TT_CORRECT_PLACE];
    }
    *loss->loss_sum += (float)loss_sum;
    *loss->correct_sum += (float)correct_sum;
}

void tt_cpu_cross_entropy(tt_device *device, const tt_cross_entropy *loss)
{
    tt_matrix logits = loss->logits;
    bool with_gradient = loss->gradient_scale != NULL;
    bool with_bias = with_gradient && loss->bias_gradient != NULL;
    bool in_scratch = with_bias && logits.columns <= TT_BIAS_PLACES;
#pragma omp parallel num_threads(tt_cpu_row_team(device, logits))
    {
        float *scratch = tt_cpu_start_partials(device, in_scratch ? logits.columns : 0);
        double loss_sum = 0.0;
        int64_t correct_sum = 0;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < logits.rows; i++) {
            if (loss->labels[i] < 0) {
                if (with_gradient) {
                    memset(tt_cpu_row(logits, i), 0, (size_t)logits.columns * sizeof(float));
                }
                continue;
            }
            bool correct;
            loss_sum += tt_cross_entropy_row(loss, i, in_scratch ? scratch : NULL, &correct);
            correct_sum += correct;
        }
        scratch[TT_LOSS_PLACE] = (float)loss_sum;
        scratch[TT_CORRECT_PLACE] = (float)correct_sum;
#pragma omp barrier
        if (in_scratch) {
            tt_cpu_add_partials(device, 0, logits.columns, loss->bias_gradient);
        }
#pragma omp single
        tt_add_losses(device, omp_get_num_threads(), loss);
    }
    if (with_bias && !in_scratch) {
        tt_cpu_add_bias_backward(device, logits, loss->bias_gradient);
    }
}

/* The double-precision models against definitions: entries of a tensor train as sums over all
 * links, and every gradient as a central difference. */
#include "core/random.h"
#include "tests/reference/double_model.h"
#include "tests/reference/reference_suite.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#define THRESHOLD 0.01
#define STEP 1e-5

/* A train with random entries, every fourth diagonal entry pruned. */
typedef struct {
    tt_double_train train;
    tt_double_tensors data;
} random_train;

static void make_train(random_train *made, int order, int input_order, tt_random *random)
{
    static const int64_t modes[] = {3, 2, 4, 2, 3, 2, 2, 3};
    static const int64_t ranks[] = {1, 3, 5, 4, 6, 4, 5, 3};
    *made = (random_train){
        .train = {.order = order, .input_order = input_order, .threshold = THRESHOLD}};
    tt_double_train *train = &made->train;
    for (int k = 0; k < order; k++) {
        char name[32];
        train->modes[k] = modes[k];
        train->ranks[k] = ranks[k];
        train->ranks[k + 1] = k == order - 1 ? 1 : ranks[k + 1];
        tt_reference_shape shape = {3, {train->ranks[k], modes[k], train->ranks[k + 1]}, 0};
        tt_reference_shape link = {1, {train->ranks[k + 1]}, 0};
        snprintf(name, sizeof(name), "core_%d", k);
        tt_double_tensor *core = tt_double_tensors_add(&made->data, name, &shape);
        snprintf(name, sizeof(name), "diagonal_%d", k);
        tt_double_tensor *diagonal = tt_double_tensors_add(&made->data, name, &link);
        for (int64_t i = 0; i < core->shape.count; i++) {
            core->values[i] = tt_random_uniform(random) - 0.5;
        }
        for (int64_t i = 0; i < diagonal->shape.count; i++) {
            diagonal->values[i] = i % 4 == 1 ? -0.3 : 0.4 + tt_random_uniform(random);
        }
        train->cores[k] = core->values;
        train->core_gradients[k] = core->gradients;
        train->diagonals[k] = k == order - 1 ? NULL : diagonal->values;
        train->diagonal_gradients[k] = k == order - 1 ? NULL : diagonal->gradients;
    }
}

/* The entry at these mode indices as a sum over every combination of links, from core k on with the
 * link on its left at `left`. */
static double entry(const tt_double_train *train, const int64_t *indices, int k, int64_t left)
{
    if (k == train->order) {
        return 1;
    }
    double sum = 0;
    for (int64_t right = 0; right < train->ranks[k + 1]; right++) {
        int64_t place = (left * train->modes[k] + indices[k]) * train->ranks[k + 1] + right;
        double value = train->cores[k][place];
        if (k < train->order - 1) {
            double diagonal = train->diagonals[k][right];
            value *= diagonal > THRESHOLD ? diagonal : 0;
        }
        sum += value == 0 ? 0 : value * entry(train, indices, k + 1, right);
    }
    return sum;
}

/* Calls `check` on trains of every order up to 8 and every split into inputs and outputs. */
static void for_each_train(void (*check)(random_train *made, tt_random *random))
{
    tt_random random;
    tt_random_start(&random, 5, 0);
    for (int order = 2; order <= 8; order++) {
        for (int input_order = 1; input_order < order; input_order++) {
            random_train made;
            make_train(&made, order, input_order, &random);
            check(&made, &random);
            tt_double_tensors_free(&made.data);
        }
    }
}

static int64_t weight_count(const tt_double_train *train)
{
    return tt_double_train_inputs(train) * tt_double_train_outputs(train);
}

static void check_entries(random_train *made, tt_random *random)
{
    const tt_double_train *train = &made->train;
    int64_t count = weight_count(train);
    double *weight = tt_double_array(count);
    tt_double_train_assemble(train, weight);
    for (int i = 0; i < 10; i++) {
        int64_t place = tt_random_below(random, (uint32_t)count);
        int64_t rest = place;
        int64_t indices[TT_DOUBLE_ORDER] = {0};
        for (int k = train->order - 1; k >= 0; k--) {
            indices[k] = rest % train->modes[k];
            rest /= train->modes[k];
        }
        double expected = entry(train, indices, 0, 0);
        assert_true(fabs(weight[place] - expected) <= 1e-13 * (1 + fabs(expected)));
    }
    free(weight);
}

static void test_train_entries(void **state)
{
    (void)state;
    for_each_train(check_entries);
}

/* sum(weight * factors): what the gradients of a train are taken of. */
static double weighted_sum(const tt_double_train *train, const double *factors)
{
    int64_t count = weight_count(train);
    double *weight = tt_double_array(count);
    double sum = 0;
    tt_double_train_assemble(train, weight);
    for (int64_t i = 0; i < count; i++) {
        sum += weight[i] * factors[i];
    }
    free(weight);
    return sum;
}

static void check_gradient(random_train *made, tt_random *random)
{
    int64_t count = weight_count(&made->train);
    double *factors = tt_double_array(count);
    for (int64_t i = 0; i < count; i++) {
        factors[i] = tt_random_uniform(random) - 0.5;
    }
    tt_double_train_gradient(&made->train, factors);
    for (int t = 0; t < made->data.count; t++) {
        tt_double_tensor *tensor = made->data.items[t];
        for (int i = 0; i < 4; i++) {
            int64_t place = tt_random_below(random, (uint32_t)tensor->shape.count);
            double value = tensor->values[place];
            tensor->values[place] = value + STEP;
            double above = weighted_sum(&made->train, factors);
            tensor->values[place] = value - STEP;
            double below = weighted_sum(&made->train, factors);
            tensor->values[place] = value;
            double expected = (above - below) / (2 * STEP);
            assert_true(fabs(tensor->gradients[place] - expected) <= 1e-8 * (1 + fabs(expected)));
        }
    }
    free(factors);
}

static void test_train_gradient(void **state)
{
    (void)state;
    for_each_train(check_gradient);
}

typedef void (*model_pass)(const tt_double_model *model, const tt_double_batch *batch,
                           tt_double_result *result);

static double loss_of(model_pass run, const tt_double_model *model, const tt_double_batch *batch)
{
    tt_double_result result;
    run(model, batch, &result);
    double loss = result.loss;
    tt_double_result_free(&result);
    return loss;
}

/* Compares entry `place`; entries so near the threshold that a step crosses it have no derivative.
 */
static void check_entry(model_pass run, const tt_double_model *model, const tt_double_batch *batch,
                        tt_double_tensor *tensor, int64_t place, double gradient)
{
    double value = tensor->values[place];
    if (fabs(value - THRESHOLD) <= 2 * STEP) {
        return;
    }
    tensor->values[place] = value + STEP;
    double above = loss_of(run, model, batch);
    tensor->values[place] = value - STEP;
    double below = loss_of(run, model, batch);
    tensor->values[place] = value;
    double expected = (above - below) / (2 * STEP);
    if (!(fabs(gradient - expected) <= 1e-8 + 1e-6 * fabs(expected))) {
        fail_msg("%s[%lld]: the gradient is %g, the central difference %g", tensor->name,
                 (long long)place, gradient, expected);
    }
}

/* Two entries of every tensor. */
static void check_model(model_pass run, const tt_double_model *model, const tt_double_batch *batch)
{
    tt_random random;
    tt_random_start(&random, 6, 0);
    const tt_double_tensors *parameters = model->parameters;
    for (int t = 0; t < parameters->count; t++) {
        tt_double_tensor *tensor = parameters->items[t];
        loss_of(run, model, batch);
        int64_t places[2];
        double gradients[2];
        for (int i = 0; i < 2; i++) {
            places[i] = tt_random_below(&random, (uint32_t)tensor->shape.count);
            gradients[i] = tensor->gradients[places[i]];
        }
        for (int i = 0; i < 2; i++) {
            check_entry(run, model, batch, tensor, places[i], gradients[i]);
        }
    }
}

/* Checks the model of a file of the project's own. */
static void check_file(const char *name, bool pretraining)
{
    tt_error error;
    tt_reference_file file;
    tt_double_batch batch;
    tt_double_tensors parameters;
    char path[1024];
    snprintf(path, sizeof(path), "%s/tests/reference/data/%s", TTRAIN_SOURCE_DIR, name);
    tt_suite_succeed(tt_reference_open(path, &file, &error), &error);
    tt_suite_succeed(tt_double_tensors_read(&file, "parameters", &parameters, &error), &error);
    tt_suite_succeed(tt_double_batch_read(&file, pretraining, &batch, &error), &error);
    tt_double_model model = {
        .parameters = &parameters,
        .heads = tt_suite_integer(&file, "/", pretraining ? "num_attention_heads" : "heads"),
        .epsilon = tt_suite_real(&file, "/", "layer_norm_eps"),
        .threshold = THRESHOLD};
    check_model(pretraining ? tt_double_model_bert : tt_double_model_six_encoder, &model, &batch);
    tt_double_batch_free(&batch);
    tt_double_tensors_free(&parameters);
    tt_reference_close(&file);
}

static void test_bert_gradient(void **state)
{
    (void)state;
    check_file("bert_pretraining_own.h5", true);
}

static void test_six_encoder_gradient(void **state)
{
    (void)state;
    check_file("six_encoder_own_thin.h5", false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train_entries),
        cmocka_unit_test(test_train_gradient),
        cmocka_unit_test(test_bert_gradient),
        cmocka_unit_test(test_six_encoder_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

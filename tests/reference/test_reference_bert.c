/* The product's BERT with its pre-training heads against every bert_pretraining*.h5. */
#include "tests/reference/reference_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

static void same_name(const char *name, char *model_name, size_t size)
{
    snprintf(model_name, size, "%s", name);
}

static tt_configuration read_configuration(const tt_reference_file *file)
{
    return (tt_configuration){
        .vocabulary_size = tt_suite_integer(file, "/", "vocab_size"),
        .hidden_size = tt_suite_integer(file, "/", "hidden_size"),
        .layers = tt_suite_integer(file, "/", "num_hidden_layers"),
        .heads = tt_suite_integer(file, "/", "num_attention_heads"),
        .intermediate_size = tt_suite_integer(file, "/", "intermediate_size"),
        .max_positions = tt_suite_integer(file, "/", "max_position_embeddings"),
        .segment_types = tt_suite_integer(file, "/", "type_vocab_size"),
        .gelu = tt_suite_gelu_is_tanh(file, "hidden_act") ? TT_GELU_TANH : TT_GELU_ERF,
        .layer_norm_epsilon = (float)tt_suite_real(file, "/", "layer_norm_eps"),
        .initializer_range = 0.02f,
        .next_sentence = true,
        .threshold = 0.01f,
    };
}

static double read_loss(const tt_reference_file *file, const char *dataset)
{
    tt_error error;
    double *read;
    tt_suite_succeed(tt_reference_doubles(file, dataset, 1, &read, &error), &error);
    double loss = *read;
    free(read);
    return loss;
}

/* In bf16 the model's loss is what is held to a bound; of its parts, one may be a mean over a few
 * sequences that a sure model says next to nothing about. */
static void compare_losses(tt_reference_check *check, const tt_reference_file *file, double masked,
                           double sentence)
{
    bool exact = test_device_precision() == TEST_F32;
    double whole = read_loss(file, "loss");
    double masked_lm = read_loss(file, "masked_lm_loss");
    double next_sentence = read_loss(file, "next_sentence_loss");
    tt_reference_check_loss(check, "masked_lm_loss", masked_lm, masked, exact ? masked_lm : whole);
    tt_reference_check_loss(check, "next_sentence_loss", next_sentence, sentence,
                            exact ? next_sentence : whole);
    tt_reference_check_loss(check, "loss", whole, masked + sentence, whole);
}

/* Compares and frees `found`. */
static void compare_logits(tt_reference_check *check, const tt_reference_file *file,
                           const char *dataset, float *found, int64_t count)
{
    tt_error error;
    double *expected;
    tt_suite_succeed(tt_reference_doubles(file, dataset, count, &expected, &error), &error);
    tt_reference_check_output(check, dataset, expected, found, count);
    free(expected);
    free(found);
}

static void compare_results(tt_model *model, const tt_run_batch *run, const tt_reference_file *file,
                            const tt_double_tensors *parameters, tt_reference_check *check)
{
    const tt_model_inputs *inputs = &run->inputs;
    const double *bias = tt_double_tensors_get(parameters, "cls.predictions.bias")->values;
    const double *pair = tt_double_tensors_get(parameters, "cls.seq_relationship.bias")->values;
    compare_logits(check, file, "masked_lm_logits", tt_run_masked_logits(model, run, bias),
                   inputs->masked_count * model->configuration.vocabulary_size);
    compare_logits(check, file, "seq_relationship_logits", tt_run_sentence_logits(model, run, pair),
                   inputs->batch.batch * model->sentence.classes);
    tt_run_step(model, run);
    compare_losses(check, file, tt_run_masked_loss(model, run), tt_run_sentence_loss(model, run));
}

static tt_suite_count compare_file(const tt_reference_file *file)
{
    tt_error error;
    tt_model model;
    tt_double_batch batch;
    tt_double_tensors parameters;
    tt_double_tensors gradients;
    tt_configuration configuration = read_configuration(file);
    tt_device *device = tt_suite_device();
    tt_suite_succeed(tt_double_tensors_read(file, "parameters", &parameters, &error), &error);
    tt_suite_succeed(tt_double_tensors_read(file, "gradients", &gradients, &error), &error);
    tt_suite_succeed(tt_double_batch_read(file, true, &batch, &error), &error);
    tt_suite_succeed(tt_model_create_pretraining(&model, device, &configuration, 1, false, &error),
                     &error);
    tt_suite_succeed(
        tt_model_plan(&model, batch.batch, batch.sequence, batch.max_predictions, true, &error),
        &error);
    int64_t count = 0;
    for (int i = 0; i < parameters.count; i++) {
        count += parameters.items[i]->shape.count;
    }
    tt_run_require_complete(&model, count);
    assert_int_equal(gradients.count, parameters.count);
    tt_run_set_parameters(&model, &parameters, same_name);
    tt_run_batch run = tt_run_batch_make(device, &batch);

    tt_reference_check check;
    tt_suite_begin_model(&check, "BERT");
    compare_results(&model, &run, file, &parameters, &check);
    tt_run_compare_gradients(&model, &gradients, same_name, &check);

    tt_run_batch_free(&run);
    tt_model_free(&model);
    tt_double_batch_free(&batch);
    tt_double_tensors_free(&parameters);
    tt_double_tensors_free(&gradients);
    tt_device_destroy(&device);
    return (tt_suite_count){.compared = 1, .failed = !tt_reference_check_finish(&check)};
}

static void test_bert(void **state)
{
    (void)state;
    tt_suite_files("bert_pretraining*.h5", compare_file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bert)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "support/scratch.h"

#include "launch/model_recipe.h"
#include "launch/recipe.h"

static tt_recipe recipe; /* too large for the stack of a test that has two */
static tt_recipe again;

static const char minimal[] = "model: {preset: small}\n"
                              "phases:\n"
                              "  - {sequence_length: 64, steps: 100, global_batch: 8, "
                              "learning_rate: 1e-4}\n";

static tt_status parse(const char *text, tt_error *error)
{
    return tt_recipe_parse("test.yaml", text, strlen(text), NULL, 0, &recipe, error);
}

static void accept(const char *text)
{
    tt_error error;
    expect_success(parse(text, &error), &error);
}

/* Refused, with the file's name in front and `fragment` in the line. */
static void refuse(const char *text, const char *fragment)
{
    tt_error error;
    expect_failure(parse(text, &error), &error, fragment);
    expect_failure(error.status, &error, "test.yaml: ");
}

static void refuse_after_minimal(const char *text, const char *fragment)
{
    char whole[4096];
    snprintf(whole, sizeof whole, "%s%s", minimal, text);
    refuse(whole, fragment);
}

static tt_status override(const char *text, tt_error *error)
{
    return tt_recipe_parse("test.yaml", minimal, strlen(minimal), &text, 1, &recipe, error);
}

static void accept_override(const char *text)
{
    tt_error error;
    expect_success(override(text, &error), &error);
}

static void refuse_override(const char *text, const char *fragment)
{
    tt_error error;
    expect_failure(override(text, &error), &error, fragment);
}

static void test_defaults_and_presets(void **state)
{
    (void)state;
    accept(minimal);
    assert_string_equal(recipe.name, "run");
    assert_string_equal(recipe.output, "runs/run");
    assert_int_equal(recipe.model.hidden_size, 64);
    assert_int_equal(recipe.model.layers, 2);
    assert_int_equal(recipe.model.heads, 2);
    assert_int_equal(recipe.model.intermediate_size, 256);
    assert_int_equal(recipe.model.vocabulary_size, 30522);
    assert_int_equal(recipe.model.max_positions, 512);
    assert_true(recipe.model.dropout == 0.1);
    assert_true(recipe.model.layer_norm_epsilon == 1e-12);
    assert_true(recipe.model.next_sentence);
    assert_true(recipe.phases[0].learning_rate == 1e-4);
    assert_true(recipe.phases[0].core_learning_rate == 1e-4);
    assert_true(recipe.phases[0].diagonal_learning_rate == 1e-4);
    assert_string_equal(recipe.phases[0].name, "phase1");
    assert_int_equal(recipe.phases[0].max_predictions, 20);

    accept_override("model.preset=bert_large");
    assert_int_equal(recipe.model.hidden_size, 1024);
    assert_int_equal(recipe.model.layers, 24);
    assert_int_equal(recipe.model.heads, 16);
    assert_int_equal(recipe.model.intermediate_size, 4096);
}

static void test_what_is_given_wins_over_the_preset(void **state)
{
    (void)state;
    accept("model: {preset: six_encoder, layers: 3, dropout: 0, vocabulary_size: 0}\n"
           "phases: [{sequence_length: 64, steps: 1, global_batch: 8, learning_rate: 0.5}]\n");
    assert_int_equal(recipe.model.layers, 3);
    assert_int_equal(recipe.model.hidden_size, 768);
    assert_true(recipe.model.dropout == 0);
    assert_int_equal(recipe.model.vocabulary_size, 0);
    accept("model: {preset: small}\ndata: {tokenizer: a.model}\n"
           "phases: [{sequence_length: 64, steps: 1, global_batch: 8, learning_rate: 0.5}]\n");
    assert_int_equal(recipe.model.vocabulary_size, 0);
}

static void test_maps_inherit(void **state)
{
    (void)state;
    char text[2048];
    snprintf(text, sizeof text, "%s%s", minimal,
             "tensor_train:\n"
             "  form: tensor_train\n"
             "  rank: 8\n"
             "  order: 4\n"
             "  attention: {input_modes: [8, 8], output_modes: [4, 16], ranks: [8, 30, 16]}\n"
             "  output: {compression: 5}\n"
             "  pooler: {form: dense}\n");
    accept(text);
    const tt_recipe_map *maps = recipe.tensor_train.maps;
    assert_int_equal(maps[TT_RECIPE_ATTENTION].form, TT_RECIPE_TENSOR_TRAIN);
    assert_int_equal(maps[TT_RECIPE_ATTENTION].rank_count, 3);
    assert_int_equal(maps[TT_RECIPE_ATTENTION].ranks[1], 30);
    assert_int_equal(maps[TT_RECIPE_ATTENTION].output_modes[1], 16);
    assert_int_equal(maps[TT_RECIPE_ATTENTION].rank, 0);
    assert_int_equal(maps[TT_RECIPE_INTERMEDIATE].rank, 8);
    assert_int_equal(maps[TT_RECIPE_INTERMEDIATE].order, 4);
    assert_int_equal(maps[TT_RECIPE_OUTPUT].rank, 0);
    assert_true(maps[TT_RECIPE_OUTPUT].compression == 5);
    assert_int_equal(maps[TT_RECIPE_POOLER].form, TT_RECIPE_DENSE);
    assert_int_equal(maps[TT_RECIPE_TRANSFORM].form, TT_RECIPE_TENSOR_TRAIN);

    tt_recipe_dense_twin(&recipe, &again);
    for (int i = 0; i < TT_RECIPE_MAP_COUNT; i++) {
        assert_int_equal(again.tensor_train.maps[i].form, TT_RECIPE_DENSE);
    }
    assert_int_equal(again.model.hidden_size, recipe.model.hidden_size);
}

static void test_phases_inherit_data(void **state)
{
    (void)state;
    accept("model: {preset: small}\n"
           "data: {train: 'a*.h5', validation: ['b 1.h5', c.h5], max_predictions: 7}\n"
           "phases:\n"
           "  - {sequence_length: 64, steps: 1, global_batch: 8, learning_rate: 1}\n"
           "  - {sequence_length: 128, steps: 1, global_batch: 8, learning_rate: 1,\n"
           "     core_learning_rate: 2, train: [d.h5], max_predictions: 9, name: second}\n");
    assert_int_equal(recipe.phases[0].train.count, 1);
    assert_string_equal(recipe.phases[0].train.patterns[0], "a*.h5");
    assert_int_equal(recipe.phases[0].validation.count, 2);
    assert_string_equal(recipe.phases[0].validation.patterns[0], "b 1.h5");
    assert_int_equal(recipe.phases[0].max_predictions, 7);
    assert_string_equal(recipe.phases[1].train.patterns[0], "d.h5");
    assert_int_equal(recipe.phases[1].validation.count, 2);
    assert_int_equal(recipe.phases[1].max_predictions, 9);
    assert_true(recipe.phases[1].core_learning_rate == 2);
    assert_true(recipe.phases[1].diagonal_learning_rate == 1);
    assert_string_equal(recipe.phases[1].name, "second");
}

static void test_unknown_keys(void **state)
{
    (void)state;
    refuse("modle: 3\n", "line 1: modle: unknown key; did you mean model?");
    refuse("model:\n  preset: small\n  hiden_size: 3\n",
           "line 3: model.hiden_size: unknown key; did you mean hidden_size?");
    refuse_after_minimal("tensor_train:\n  attention:\n    rnak: 3\n",
                         "tensor_train.attention.rnak: unknown key; did you mean rank");
    refuse("phases:\n  - {steps: 3}\n  - {stesp: 3}\n",
           "line 3: phases.1.stesp: unknown key; did you mean steps?");
    refuse("log: {zzzzzzzzz: 3}\n", "log.zzzzzzzzz: unknown key; expected one of interval");
    refuse("\"a\\nb\": 3\n", "a?b: unknown key");
    refuse("model: {layers: 1}\nmodel: {layers: 1}\n", "model: given twice");
    refuse("model: {layers: 1, layers: 2}\n", "model.layers: given twice");
}

static void test_wrong_types(void **state)
{
    (void)state;
    refuse("model: {layers: many}\n",
           "model.layers: expected an integer from 1 to 1024, found 'many'");
    refuse("model: {layers: 1.5}\n", "model.layers: expected an integer");
    refuse("model: {layers: 0x10}\n", "model.layers: expected an integer");
    refuse("model: {layers: }\n", "found nothing");
    refuse("model: {layers: 99999999999999999999}\n", "model.layers: expected an integer");
    refuse("model: {dropout: .nan}\n", "model.dropout: expected a number from 0 to 0.99");
    refuse("model: {dropout: nan}\n", "found 'nan'");
    refuse("model: {dropout: 1e999}\n", "found '1e999'");
    refuse("model: {next_sentence: maybe}\n", "expected true or false, found 'maybe'");
    refuse("model: {activation: relu}\n",
           "model.activation: expected one of gelu, gelu_tanh, found 'relu'");
    refuse("model: {preset: bert-base}\n", "did you mean bert_base?");
    refuse("model: {layers: [1, 2]}\n", "model.layers: expected an integer from 1 to 1024, found a "
                                        "list");
    refuse("model: 3\n", "line 1: model: expected a section of keys, found a single value");
    refuse("3\n", "expected a section of keys, found a single value");
    refuse("- 3\n", "expected a section of keys, found a list");
    refuse("phases: 3\n", "phases: expected a list, found a single value");
    refuse("phases: [3]\n", "phases.0: expected a section of keys, found a single value");
    refuse("data: {train: {a: b}}\n", "data.train: expected a list, found a section of keys");
    refuse("data: {train: [a, [b]]}\n", "data.train.1: expected printable UTF-8 text");
    refuse("data: {train: *.h5}\n", "quote a value that begins with *");
    refuse("name: \"a\\x01b\"\n", "name: expected printable UTF-8 text");
    refuse("name: \"\\u0085\"\n", "name: expected printable UTF-8 text");
    refuse("model: {layers: 1\n", "line 1: model.layers: expected YAML, found: ");
    refuse("phases: [{}, {}, {}, {}, {}, {}, {}, {}, {}]\n",
           "phases: expected at most 8 entries, found more");
}

static void test_one_document(void **state)
{
    (void)state;
    char text[1024];
    const struct {
        const char *before, *after;
    } around[] = {{"# a comment\n---\n", ""}, {"%YAML 1.1\n---\n", ""}, {"", "...\n\n# no more"}};
    for (size_t i = 0; i < sizeof around / sizeof around[0]; i++) {
        snprintf(text, sizeof text, "%s%s%s", around[i].before, minimal, around[i].after);
        accept(text);
    }
    refuse_after_minimal("---\nseed: 3\n",
                         "expected one document, found the beginning of a second");
    refuse("---\nseed: 3\n---", "line 3: expected one document");
    refuse("seed: 3\n...\nname: x\n", "line 3: expected one document");
}

static void test_ranges(void **state)
{
    (void)state;
    refuse("", "model.hidden_size: missing; give it or model.preset");
    refuse("model: {preset: small}\n", "phases: expected at least one phase");
    refuse("model: {preset: small}\nphases: [{steps: 3}]\n", "phases.0.sequence_length: missing");
    refuse_after_minimal("threads: -1\n", "threads: expected an integer from 0 to 4096");
    refuse_after_minimal("data: {max_predictions: 65}\n",
                         "phases.0.max_predictions: expected at most its sequence_length 64");
    refuse("model: {preset: small, heads: 3}\n"
           "phases: [{sequence_length: 8, steps: 1, global_batch: 1, learning_rate: 1}]\n",
           "model.heads: expected a divisor of model.hidden_size 64, found 3");
    refuse("model: {preset: small, max_positions: 32}\n"
           "phases: [{sequence_length: 33, steps: 1, global_batch: 1, learning_rate: 1}]\n",
           "phases.0.sequence_length: expected at most model.max_positions 32, found 33");
    refuse("model: {preset: small}\n"
           "phases: [{sequence_length: 32, steps: 1, global_batch: 4, micro_batch: 5, "
           "learning_rate: 1}]\n",
           "phases.0.micro_batch: expected at most its global_batch 4, found 5");
    refuse("model: {preset: small}\n"
           "phases: [{sequence_length: 32, steps: 1, global_batch: 4, learning_rate: 0}]\n",
           "phases.0.learning_rate: expected a number above 0 and at most 100, found '0'");
}

static void test_tensor_trains(void **state)
{
    (void)state;
    refuse_after_minimal("tensor_train: {form: tensor_train}\n",
                         "tensor_train.attention: a tensor train needs one of ranks, rank and "
                         "compression");
    refuse_after_minimal("tensor_train: {attention: {form: tensor_train, rank: 2, "
                         "input_modes: [4, 8]}}\n",
                         "tensor_train.attention.input_modes: expected mode sizes whose product is "
                         "64 (model.hidden_size), found a product of 32");
    refuse_after_minimal("tensor_train: {output: {form: tensor_train, rank: 2, "
                         "input_modes: [8, 8]}}\n",
                         "whose product is 256 (model.intermediate_size), found a product of 64");
    refuse_after_minimal("tensor_train: {attention: {form: tensor_train, "
                         "input_modes: [2147483647, 2147483647, 2147483647], rank: 2}}\n",
                         "found a product of 9223372036854775807");
    refuse_after_minimal("tensor_train: {attention: {form: tensor_train, ranks: [4, 65, 4], "
                         "input_modes: [8, 8], output_modes: [8, 8]}}\n",
                         "tensor_train.attention.ranks.1: expected at most 64");
    refuse_after_minimal("tensor_train: {attention: {form: tensor_train, ranks: [4, 4], "
                         "input_modes: [8, 8], output_modes: [8, 8]}}\n",
                         "tensor_train.attention.ranks: expected 3 inner ranks for 4 modes");
    refuse_after_minimal("tensor_train: {attention: {form: tensor_train, ranks: [0]}}\n",
                         "tensor_train.attention.ranks.0: expected an integer from 1");
    /* A dense map's modes are nobody's concern. */
    char text[2048];
    snprintf(text, sizeof text, "%stensor_train: {attention: {input_modes: [7]}}\n", minimal);
    accept(text);
}

static void test_overrides(void **state)
{
    (void)state;
    accept_override("phases.0.steps=7");
    assert_int_equal(recipe.phases[0].steps, 7);
    accept_override("phases.0.learning_rate=3e-5");
    assert_true(recipe.phases[0].learning_rate == 3e-5);
    assert_true(recipe.phases[0].core_learning_rate == 3e-5);
    accept_override("tensor_train.attention.ranks=[3, 4 ,5]");
    assert_int_equal(recipe.tensor_train.maps[0].rank_count, 3);
    assert_int_equal(recipe.tensor_train.maps[0].ranks[2], 5);
    accept_override("tensor_train.attention.ranks=[]");
    assert_int_equal(recipe.tensor_train.maps[0].rank_count, 0);
    accept_override("data.train=[a[0-9].h5, b=c.h5]");
    assert_string_equal(recipe.data.train.patterns[0], "a[0-9].h5");
    assert_string_equal(recipe.data.train.patterns[1], "b=c.h5");
    accept_override("data.train=x.h5");
    assert_int_equal(recipe.data.train.count, 1);
    accept_override("model.next_sentence=false");
    assert_false(recipe.model.next_sentence);
    accept_override("output=");
    assert_string_equal(recipe.output, "runs/run");

    refuse_override("nonsense", "override: expected key.path=value, found 'nonsense'");
    refuse_override("=3", "expected key.path=value");
    refuse_override("modle.layers=3", "modle.layers: unknown key; did you mean model?");
    refuse_override("model.layer=3", "model.layer: unknown key; did you mean layers?");
    refuse_override("model.layers.x=3", "model.layers has none below it");
    refuse_override("model=3", "model: expected a key below it, such as model.preset=");
    refuse_override("phases=3", "such as phases.0.name=");
    refuse_override("phases.1.steps=3",
                    "phases: expected the number of an entry below 1, found '1'");
    refuse_override("phases.x.steps=3", "found 'x'");
    refuse_override("phases.0=3", "such as phases.0");
    refuse_override("phases..steps=3", "phases: expected the number of an entry");
    refuse_override("model.layers=many", "model.layers: expected an integer");
    refuse_override("data.train.0=a", "data.train: expected the number of an entry below 0");
    refuse_override("tensor_train.attention.ranks=[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]",
                    "expected at most 15 entries");
}

static void test_later_overrides_win(void **state)
{
    (void)state;
    const char *const overrides[] = {"phases.0.steps=7", "phases.0.steps=8", "name=a", "name=bc"};
    tt_error error;
    expect_success(
        tt_recipe_parse("test.yaml", minimal, strlen(minimal), overrides, 4, &recipe, &error),
        &error);
    assert_int_equal(recipe.phases[0].steps, 8);
    assert_string_equal(recipe.output, "runs/bc");
}

static void test_device_and_precision(void **state)
{
    (void)state;
    accept(minimal);
    assert_int_equal(recipe.device, TT_DEVICE_AUTO);
    assert_int_equal(recipe.precision, TT_PRECISION_F32);
    assert_int_equal(recipe.graph, TT_RECIPE_GRAPH_ON);
    assert_int_equal(recipe.reduce_precision, TT_F32);
    assert_false(recipe.share_device);
    char whole[1024];
    snprintf(whole, sizeof whole,
             "%sdevice: cuda\nprecision: bf16\ngraph: off\nreduce_precision: bf16\n"
             "share_device: true\n",
             minimal);
    accept(whole);
    assert_int_equal(recipe.device, TT_DEVICE_CUDA);
    assert_int_equal(recipe.precision, TT_PRECISION_BF16);
    assert_int_equal(recipe.graph, TT_RECIPE_GRAPH_OFF);
    assert_int_equal(recipe.reduce_precision, TT_BF16);
    assert_true(recipe.share_device);
    accept_override("precision=tf32");
    assert_int_equal(recipe.precision, TT_PRECISION_TF32);
    refuse_override("precision=fp16", "precision: expected one of f32, tf32, bf16");
    refuse_override("reduce_precision=tf32", "reduce_precision: expected one of f32, bf16");
    refuse_override("graph=maybe", "graph: expected one of on, off");
    refuse_override("device=gpu", "device: expected one of auto, cpu, cuda");
    refuse_after_minimal("device: cpu\nprecision: bf16\n",
                         "precision: expected f32 with device cpu, found bf16");
    refuse_after_minimal("device: cpu\nprecision: tf32\n",
                         "precision: expected f32 with device cpu, found tf32");
}

static const char trains[] = "tensor_train: {form: tensor_train, rank: 4}\n";

static void refuse_stages(const char *stages, const char *fragment)
{
    char text[1024];
    snprintf(text, sizeof text, "%sstages: %s\n", trains, stages);
    refuse_after_minimal(text, fragment);
}

static void test_stages(void **state)
{
    (void)state;
    char whole[2048];
    accept(minimal);
    assert_int_equal(recipe.stage_count, 0);
    assert_int_equal(recipe.rank.objective, TT_RECIPE_PAPER);
    assert_int_equal(recipe.rank.compaction_interval, 0);
    snprintf(
        whole, sizeof whole,
        "%s%srank: {objective: reference, compaction_interval: 50}\n"
        "stages:\n"
        "  - {epochs: 1.5, gamma: 0.2, beta: 1e-5}\n"
        "  - {name: half, kind: late, steps: 20, target_loss: 0.8, target_ratio: 0.5, rho: 0.3,\n"
        "     w1: 2, w2: 3, stop_at_target: false}\n"
        "  - {kind: late, steps: 1, target_loss: 1, target_parameters: 70000}\n",
        minimal, trains);
    accept(whole);
    assert_int_equal(recipe.rank.objective, TT_RECIPE_REFERENCE);
    assert_int_equal(recipe.rank.compaction_interval, 50);
    assert_int_equal(recipe.stage_count, 3);
    const tt_recipe_stage *stages = recipe.stages;
    assert_int_equal(stages[0].kind, TT_RECIPE_EARLY);
    assert_string_equal(stages[0].name, "early");
    assert_true(stages[0].epochs == 1.5 && stages[0].steps == 0 && stages[0].gamma == 0.2);
    assert_true(stages[0].beta == 1e-5 && stages[1].beta == 0 && stages[1].gamma == 0.01);
    assert_string_equal(stages[1].name, "half");
    assert_int_equal(stages[1].kind, TT_RECIPE_LATE);
    assert_true(stages[1].rho == 0.3 && stages[1].w1 == 2 && stages[1].w2 == 3);
    assert_false(stages[1].stop_at_target);
    assert_string_equal(stages[2].name, "late");
    assert_true(stages[2].stop_at_target && stages[2].target_parameters == 70000);
    assert_true(stages[2].rho == 0.1 && stages[2].w1 == 1 && stages[2].w2 == 1);
    char *text = tt_recipe_text(&recipe);
    accept(text);
    assert_int_equal(recipe.stage_count, 3);
    assert_true(recipe.stages[1].target_ratio == 0.5);
    free(text);
    tt_recipe_dense_twin(&recipe, &again);
    assert_int_equal(again.stage_count, 0);
    assert_int_equal(again.rank.compaction_interval, 0);
}

static void test_stages_that_make_no_sense(void **state)
{
    (void)state;
    char whole[1024];
    refuse_stages("[{kind: early}]", "stages.0: expected steps or epochs above 0, found a stage "
                                     "with no steps");
    refuse_stages("[{steps: 5}, {steps: 0}]", "stages.1: expected steps or epochs above 0");
    refuse_stages("[{steps: 3, epochs: 1}]", "stages.0: expected steps or epochs, found both");
    refuse_stages("[{steps: -3}]", "stages.0.steps: expected an integer from 0");
    refuse_stages("[{steps: 3, gamma: -1}]", "stages.0.gamma: expected a number from 0");
    refuse_stages("[{kind: middle, steps: 3}]", "stages.0.kind: expected one of early, late");
    refuse_stages("[{steps: 3, tagret_loss: 1}]", "did you mean target_loss?");
    refuse_stages("[{steps: 3, target_ratio: 0.5}]", "stages.0: expected kind late for a stage "
                                                     "with a target, found an early one");
    refuse_stages("[{kind: late, steps: 3, target_ratio: 0.5}]",
                  "stages.0.target_loss: a late stage needs a loss above 0");
    refuse_stages("[{kind: late, steps: 3, target_loss: .nan, target_ratio: 0.5}]",
                  "stages.0.target_loss: expected a number from 0 to 1000000, found '.nan'");
    refuse_stages("[{kind: late, steps: 3, target_loss: inf, target_ratio: 0.5}]",
                  "stages.0.target_loss: expected a number from 0 to 1000000, found 'inf'");
    refuse_stages("[{kind: late, steps: 3, target_loss: nan, target_ratio: 0.5}]",
                  "stages.0.target_loss: expected a number from 0 to 1000000, found 'nan'");
    refuse_stages("[{kind: late, steps: 3, target_loss: 1, target_ratio: -0.1}]",
                  "stages.0.target_ratio: expected a number from 0 to 1");
    refuse_stages(
        "[{kind: late, steps: 3, target_loss: 1, target_ratio: 0}]",
        "stages.0.target_ratio: a late stage needs a size to reach above 0, which is that "
        "of a model with every map removed");
    refuse_stages("[{kind: late, steps: 3, target_loss: 1, target_ratio: 1.01}]",
                  "stages.0.target_ratio: expected a number from 0 to 1");
    refuse_stages("[{kind: late, steps: 3, target_loss: 1, target_ratio: 0.5, "
                  "target_parameters: 8}]",
                  "stages.0: expected target_ratio or target_parameters, found both");
    refuse_after_minimal("tensor_train: {form: tensor_train, rank: 4, threshold: 0}\n",
                         "tensor_train.threshold: expected a number above 0");
    refuse_after_minimal("tensor_train: {form: tensor_train, rank: 4, threshold: -0.01}\n",
                         "tensor_train.threshold: expected a number above 0");
    /* At 1, with which every entry begins, nothing would be left. */
    refuse_after_minimal("tensor_train: {form: tensor_train, rank: 4, threshold: 1}\n",
                         "tensor_train.threshold: expected a number above 0 and at most 0.99");
    refuse_after_minimal("stages: [{steps: 5}]\n",
                         "stages: expected a recipe with tensor-train maps");
    snprintf(whole, sizeof whole, "%s%s", minimal,
             "tensor_train: {embedding: {form: tensor_train_matrix, rank: 4}}\n"
             "stages: [{steps: 5}]\nrank: {compaction_interval: 5}\n");
    accept(whole);
    refuse_after_minimal("rank: {compaction_interval: 5}\n",
                         "rank.compaction_interval: expected a recipe with tensor-train maps");
    refuse_override("rank.objective=papers", "did you mean paper?");
    refuse_override("rank.compaction_interval=-1", "rank.compaction_interval: expected an integer");
}

static void test_round_trip(void **state)
{
    (void)state;
    accept("name: \"it's \\\"quoted\\\": # {x} \\u00e9 \\U0001F600\"\n"
           "seed: 9007199254740992\n"
           "device: cpu\n"
           "graph: off\n"
           "model: {preset: small, dropout: 0.30000000000000004, layer_norm_epsilon: 1e-5}\n"
           "data: {train: ['*.h5', '- x', 'true', ' padded ', '~']}\n"
           "checkpoint:\n"
           "tensor_train: {form: tensor_train, compression: 3.3333333333333335,\n"
           "  attention: {ranks: 5}, pooler: {form: dense}}\n"
           "phases:\n"
           "  - {sequence_length: 64, steps: 1, global_batch: 8, learning_rate: 1.7e-4}\n"
           "  - {sequence_length: 8, steps: 2, global_batch: 8, learning_rate: 0.1,\n"
           "     max_predictions: 3, decay: polynomial, train: other.h5}\n");
    char *text = tt_recipe_text(&recipe);
    assert_non_null(text);
    const char *path = scratch_path("recipe.yaml");
    tt_error error;
    expect_success(tt_recipe_save(&recipe, path, &error), &error);
    char *saved = scratch_read(path, NULL);
    assert_string_equal(saved, text);

    expect_success(tt_recipe_load(path, NULL, 0, &again, &error), &error);
    char *text_again = tt_recipe_text(&again);
    assert_string_equal(text_again, text);
    assert_string_equal(again.name, recipe.name);
    assert_int_equal(again.seed, 9007199254740992);
    assert_int_equal(again.graph, TT_RECIPE_GRAPH_OFF);
    assert_true(again.model.dropout == 0.30000000000000004);
    assert_true(again.tensor_train.compression == 3.3333333333333335);
    assert_int_equal(again.tensor_train.maps[0].ranks[0], 5);
    assert_true(again.tensor_train.maps[0].compression == 0);
    assert_int_equal(again.data.train.count, 5);
    assert_string_equal(again.data.train.patterns[3], " padded ");
    assert_string_equal(again.phases[1].train.patterns[0], "other.h5");
    free(text);
    free(text_again);
    free(saved);
}

static void test_files_that_are_none(void **state)
{
    (void)state;
    tt_error error;
    const char *missing = scratch_path("missing.yaml");
    expect_failure(tt_recipe_load(missing, NULL, 0, &recipe, &error), &error, missing);
    expect_failure(tt_recipe_load(scratch_folder, NULL, 0, &recipe, &error), &error,
                   scratch_folder);
    const char *binary = scratch_path("binary.yaml");
    scratch_write(binary, "\x89HDF\r\n\x1a\n\0\0\0", 11);
    expect_failure(tt_recipe_load(binary, NULL, 0, &recipe, &error), &error, binary);
}

static void test_embedding(void **state)
{
    (void)state;
    accept(minimal);
    assert_int_equal(recipe.tensor_train.embedding.form, TT_RECIPE_EMBEDDING_DENSE);
    assert_true(recipe.tensor_train.embedding.tied);
    char text[1024];
    snprintf(text, sizeof text,
             "%stensor_train: {rank: 7, embedding: {form: tensor_train_matrix, "
             "vocabulary_modes: [40, 30, 30], hidden_modes: [4, 4, 4], tied: false}}\n",
             minimal);
    accept(text);
    const tt_recipe_embedding *embedding = &recipe.tensor_train.embedding;
    assert_int_equal(embedding->form, TT_RECIPE_TENSOR_TRAIN_MATRIX);
    assert_int_equal(embedding->rank, 7);
    assert_int_equal(embedding->vocabulary_mode_count, 3);
    assert_int_equal(embedding->hidden_modes[2], 4);
    assert_false(embedding->tied);
    tt_configuration configuration;
    tt_error error;
    expect_success(tt_model_recipe_configuration(&recipe, 30522, &configuration, &error), &error);
    assert_int_equal(configuration.embedding.form, TT_TENSOR_TRAIN);
    assert_true(configuration.embedding.untied);
    const int64_t ranks[] = {1, 7, 7, 1};
    assert_memory_equal(configuration.embedding.shape.ranks, ranks, sizeof ranks);
    snprintf(text, sizeof text,
             "%stensor_train: {embedding: {form: tensor_train_matrix, vocabulary_modes: [40, 30, "
             "30], hidden_modes: [4, 4, 4], ranks: [5, 3]}}\n",
             minimal);
    accept(text);
    expect_success(tt_model_recipe_configuration(&recipe, 30522, &configuration, &error), &error);
    const int64_t given[] = {1, 5, 3, 1};
    assert_memory_equal(configuration.embedding.shape.ranks, given, sizeof given);
    snprintf(text, sizeof text,
             "%stensor_train: {embedding: {form: tensor_train_matrix, rank: 9}}\n", minimal);
    accept(text);
    expect_success(tt_model_recipe_configuration(&recipe, 30522, &configuration, &error), &error);
    assert_int_equal(configuration.embedding.shape.order, 4);
    assert_false(configuration.embedding.untied);

    refuse_after_minimal("tensor_train: {embedding: {form: tensor_train_matrix}}\n",
                         "tensor_train.embedding: a tensor-train matrix needs ranks or rank");
    refuse_after_minimal("tensor_train: {embedding: {form: tensor_train}}\n",
                         "expected one of dense, tensor_train_matrix");
    refuse_after_minimal("tensor_train: {embedding: {form: tensor_train_matrix, rank: 2, "
                         "hidden_modes: [8, 8]}}\n",
                         "expected as many hidden_modes as vocabulary_modes, found 2 and 0");
    refuse_after_minimal("tensor_train: {embedding: {form: tensor_train_matrix, rank: 2, "
                         "vocabulary_modes: [200, 200], hidden_modes: [8, 9]}}\n",
                         "tensor_train.embedding.hidden_modes: expected mode sizes whose product");
    refuse_after_minimal("tensor_train: {embedding: {form: tensor_train_matrix, rank: 2, "
                         "order: 1}}\n",
                         "tensor_train.embedding: expected at least 2 cores, found 1");
    refuse_after_minimal("tensor_train: {embedding: {form: tensor_train_matrix, rank: 2, "
                         "vocabulary_modes: [2147483647, 2147483647, 2147483647], "
                         "hidden_modes: [4, 4, 4]}}\n",
                         "tensor_train.embedding.vocabulary_modes: expected mode sizes whose "
                         "product is at most 2147483647, found a product of at least ");
    snprintf(text, sizeof text,
             "%stensor_train: {embedding: {form: tensor_train_matrix, rank: 2, "
             "vocabulary_modes: [100, 100], hidden_modes: [8, 8]}}\n",
             minimal);
    accept(text);
    expect_failure(tt_model_recipe_configuration(&recipe, 30522, &configuration, &error), &error,
                   "vocabulary modes multiply to 10000, expected at least 30522");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_and_presets),
        cmocka_unit_test(test_what_is_given_wins_over_the_preset),
        cmocka_unit_test(test_maps_inherit),
        cmocka_unit_test(test_phases_inherit_data),
        cmocka_unit_test(test_unknown_keys),
        cmocka_unit_test(test_wrong_types),
        cmocka_unit_test(test_one_document),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_tensor_trains),
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_later_overrides_win),
        cmocka_unit_test(test_device_and_precision),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_stages_that_make_no_sense),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_files_that_are_none),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

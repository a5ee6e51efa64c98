/* Compaction: the model computes what it did, goes on training as it would have, and is smaller. */
#include "models/compaction.h"

#include "core/rank.h"
#include "launch/step.h"
#include "support/small_model.h"

/* --- what is pruned -------------------------------------------------------------------------- */

enum { MOST_PRUNED = 8 };

/* Names of maps; those in `whole` lose all entries of a link, those in `partly` half of each. */
typedef struct {
    const char *name;
    const char *whole[MOST_PRUNED], *partly[MOST_PRUNED];
    int removed; /* maps that are gone afterwards */
    bool folds;  /* a bias takes up another: training goes on a little differently */
} scenario;

#define LAYER(n) "bert.encoder.layer." #n "."
#define QUERY(n) LAYER(n) "attention.self.query"
#define KEY(n) LAYER(n) "attention.self.key"
#define VALUE(n) LAYER(n) "attention.self.value"
#define ATTENDED(n) LAYER(n) "attention.output.dense"
#define INTERMEDIATE(n) LAYER(n) "intermediate.dense"
#define OUTPUT(n) LAYER(n) "output.dense"
#define POOLER "bert.pooler.dense"
#define TRANSFORM "cls.predictions.transform.dense"
#define WORDS "bert.embeddings.word_embeddings"

static const scenario scenarios[] = {
    {.name = "links pruned in part",
     .partly = {QUERY(0), KEY(0), VALUE(1), ATTENDED(0), INTERMEDIATE(1), OUTPUT(0), POOLER,
                TRANSFORM}},
    {.name = "query", .whole = {QUERY(0)}, .removed = 1},
    {.name = "key", .whole = {KEY(1)}, .partly = {VALUE(1)}, .removed = 2},
    {.name = "query and key", .whole = {QUERY(0), KEY(0)}, .removed = 2},
    {.name = "value", .whole = {VALUE(0)}, .removed = 4, .folds = true},
    {.name = "value of the last block", .whole = {VALUE(1)}, .removed = 4, .folds = true},
    {.name = "output map of attention", .whole = {ATTENDED(0)}, .removed = 4},
    {.name = "intermediate", .whole = {INTERMEDIATE(1)}, .removed = 2, .folds = true},
    {.name = "output", .whole = {OUTPUT(0)}, .partly = {QUERY(1)}, .removed = 2},
    {.name = "pooler and transform", .whole = {POOLER, TRANSFORM}, .removed = 2},
    {.name = "a block", .whole = {ATTENDED(0), OUTPUT(0)}, .removed = 6},
    {.name = "all of it",
     .whole = {ATTENDED(0), OUTPUT(0), ATTENDED(1), OUTPUT(1), POOLER, TRANSFORM},
     .removed = 14},
};
enum { SCENARIOS = sizeof scenarios / sizeof scenarios[0] };

static const tt_train *find_train(const tt_model *model, const char *name)
{
    char core[160];
    snprintf(core, sizeof core, "%s.core_1", name);
    for (int i = 0; i < model->trains.count; i++) {
        const tt_train *train = &model->trains.trains[i];
        if (strcmp(model->parameters.items[train->cores[0]].name, core) == 0) {
            return train;
        }
    }
    fail_msg("no tensor train %s", name);
    return NULL;
}

/* Entries first, first + step, ... of a diagonal become what counts as zero. */
static void prune_link(tt_model *model, const tt_train *train, int link, int64_t first,
                       int64_t step)
{
    tt_device *device = model->parameters.device;
    const tt_parameter *item = &model->parameters.items[train->diagonals[link - 1]];
    float *diagonal = tt_parameters_value(&model->parameters, train->diagonals[link - 1]);
    float *values = test_copy_out(device, diagonal, tt_floats(item->count));
    for (int64_t j = first; j < item->count; j += step) {
        values[j] = j % 3 == 0 ? 0.0f : j % 3 == 1 ? 0.01f : -0.5f; /* all at or below 0.01 */
    }
    device->copy_in(device, diagonal, values, tt_floats(item->count));
    free(values);
}

static void prune(tt_model *model, const scenario *s)
{
    for (int i = 0; i < MOST_PRUNED && s->whole[i]; i++) {
        const tt_train *train = find_train(model, s->whole[i]);
        prune_link(model, train, 1 + i % (train->shape.order - 1), 0, 1);
    }
    for (int i = 0; i < MOST_PRUNED && s->partly[i]; i++) {
        const tt_train *train = find_train(model, s->partly[i]);
        for (int k = 1; k < train->shape.order; k++) {
            prune_link(model, train, k, k % 2, 2);
        }
    }
}

/* Biases and norms that are not what they start as, and diagonals that differ. */
static void shake(tt_model *model)
{
    tt_parameters *parameters = &model->parameters;
    tt_device *device = parameters->device;
    for (int i = 0; i < parameters->count; i++) {
        const tt_parameter *item = &parameters->items[i];
        if (item->dimensions != 1) {
            continue;
        }
        float *values =
            test_copy_out(device, tt_parameters_value(parameters, i), tt_floats(item->count));
        tt_random random;
        tt_random_start(&random, 5, (uint64_t)item->count);
        for (int64_t j = 0; j < item->count; j++) {
            values[j] += 0.3f * (tt_random_uniform(&random) - 0.5f);
        }
        device->copy_in(device, tt_parameters_value(parameters, i), values, tt_floats(item->count));
        free(values);
    }
}

static void compact(tt_model *model)
{
    tt_error error = {0};
    tt_compaction *compaction;
    small_succeed(tt_compaction_find(model, &compaction, &error), &error);
    assert_true(tt_compaction_cuts(compaction));
    small_succeed(tt_compaction_apply(compaction, model, &error), &error);
    tt_compaction_destroy(&compaction);
    assert_null(compaction);
}

static int removed_maps(const tt_model *model)
{
    int count = 0;
    for (int i = 0; i < tt_model_map_count(model); i++) {
        count += tt_model_map(model, i)->form == TT_REMOVED;
    }
    return count;
}

/* --- outputs --------------------------------------------------------------------------------- */

enum { LOGITS = SMALL_ROWS * SMALL_PREDICTIONS * SMALL_VOCABULARY + 2 * SMALL_ROWS };

/* Logits of both heads, one after the other; the first `*masked` rows count. */
static void read_logits(small_run *run, const tt_batch *batch, float *logits)
{
    small_run_plan(run, SMALL_ROWS, false);
    run->model.encoder.training = false;
    small_run_forward(run, batch);
    tt_masked_lm_inputs masked = {.count = batch->masked_count};
    tt_encoder_inputs inputs = {.batch = batch->rows, .sequence = batch->sequence_length};
    const tt_matrix found[] = {tt_masked_lm_head_logits(&run->model.masked_lm, &masked),
                               tt_sentence_head_logits(&run->model.sentence, &inputs)};
    memset(logits, 0, LOGITS * sizeof *logits);
    int64_t used = 0;
    for (int i = 0; i < 2; i++) {
        int64_t count = found[i].rows * found[i].columns;
        tt_matrix target = {.rows = found[i].rows,
                            .columns = found[i].columns,
                            .stride = found[i].columns,
                            .data = run->device->allocate(run->device, tt_floats(count))};
        run->device->ops->copy_group(run->device, &(tt_copy){.source = found[i], .target = target},
                                     1);
        run->device->copy_out(run->device, logits + used, target.data, tt_floats(count));
        run->device->synchronize(run->device);
        run->device->release(run->device, target.data);
        used += count;
    }
}

static void make_run(small_run *run, tt_form_choice choice, bool matrix)
{
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    tt_error error = {0};
    if (matrix) {
        configuration.embedding.form = TT_TENSOR_TRAIN;
        small_succeed(tt_train_matrix_shape_choose(SMALL_VOCABULARY, SMALL_HIDDEN, 3, 5,
                                                   &configuration.embedding.shape, &error),
                      &error);
    }
    small_run_create(run, 1, &configuration, 0, 11);
    run->model.encoder.form_choice = choice;
    shake(&run->model);
}

/* What the rank objective counts as left. */
static int64_t objective_size(const tt_model *model)
{
    tt_rank_objective *objective;
    tt_error error = {0};
    small_succeed(tt_rank_objective_create(&model->trains, &objective, &error), &error);
    int64_t size = tt_rank_objective_size(objective);
    tt_rank_objective_destroy(&objective);
    return size;
}

static void check_outputs(const scenario *s, tt_form_choice choice, bool matrix)
{
    small_batch made;
    small_run run;
    float *before = malloc(LOGITS * sizeof *before), *after = malloc(LOGITS * sizeof *after);
    make_run(&run, choice, matrix);
    small_batch_make(&made, small_masked_counts, 1);
    prune(&run.model, s);
    read_logits(&run, &made.batch, before);
    int64_t size = tt_parameters_size(&run.model.parameters);
    size_t memory = tt_model_activation_bytes(&run.model);
    double flops = tt_model_flops(&run.model, 4, 12, 5);
    double asked = tt_configuration_flops(&run.model.configuration, 4, 12, 5);
    assert_true(fabs(flops - asked) <= 1e-12 * asked);
    int64_t counted = objective_size(&run.model);
    compact(&run.model);
    assert_int_equal(removed_maps(&run.model), s->removed);
    assert_true(objective_size(&run.model) == counted);
    run.model.encoder.step = run.step;
    read_logits(&run, &made.batch, after);
    small_expect_range(s->name, after, before, 0, LOGITS, small_tolerance(2e-5));
    assert_true(tt_parameters_size(&run.model.parameters) < size);
    assert_true(tt_model_activation_bytes(&run.model) < memory);
    assert_true(tt_model_flops(&run.model, 4, 12, 5) <= flops);

    tt_error error = {0};
    tt_compaction *again;
    small_succeed(tt_compaction_find(&run.model, &again, &error), &error);
    assert_false(tt_compaction_cuts(again));
    tt_compaction_destroy(&again);
    free(before);
    free(after);
    small_run_free(&run);
}

static void test_outputs_stay(void **state)
{
    (void)state;
    const tt_form_choice choices[] = {TT_FORM_ALWAYS_THIN, TT_FORM_ALWAYS_WIDE, TT_FORM_BY_COST};
    for (int i = 0; i < SCENARIOS; i++) {
        for (int j = 0; j < (test_device_is_simulated() ? 2 : 3); j++) {
            check_outputs(&scenarios[i], choices[j], false);
        }
    }
}

static void test_word_embeddings(void **state)
{
    (void)state;
    const scenario partly = {.name = "word embeddings in part", .partly = {WORDS, QUERY(0)}};
    const scenario whole = {.name = "no word embeddings", .whole = {WORDS}};
    check_outputs(&partly, TT_FORM_BY_COST, true);
    check_outputs(&whole, TT_FORM_BY_COST, true);
}

/* --- gradients ------------------------------------------------------------------------------- */

/* The same weights, as far as the second model has a place for them. */
static void copy_weights(const tt_model *from, tt_model *to)
{
    tt_device *device = to->parameters.device;
    for (int i = 0; i < to->parameters.count; i++) {
        const tt_parameter *item = &to->parameters.items[i];
        tt_parameter_id id = tt_parameters_find(&from->parameters, item->name);
        assert_true(id >= 0 && from->parameters.items[id].count == item->count);
        device->copy(device, tt_parameters_value(&to->parameters, i),
                     tt_parameters_value(&from->parameters, id), tt_floats(item->count));
    }
}

/* Every gradient of `run` is that of the same name in `whole`, within a part of itself and of the
 * whole gradient. */
static void expect_gradients_of(const char *what, const small_run *run, const small_run *whole)
{
    const tt_parameters *parameters = &run->model.parameters;
    float *found = small_gradients(run), *expected = small_gradients(whole);
    double all = 0.0, tolerance = small_tolerance(1e-4);
    for (int64_t j = 0; j < whole->model.parameters.total; j++) {
        all += (double)expected[j] * expected[j];
    }
    for (int i = 0; i < parameters->count; i++) {
        const tt_parameter *item = &parameters->items[i];
        int other = tt_parameters_find(&whole->model.parameters, item->name);
        const float *right = expected + whole->model.parameters.items[other].offset;
        double difference = 0.0, size = 0.0;
        for (int64_t j = 0; j < item->count; j++) {
            double d = (double)found[item->offset + j] - (double)right[j];
            difference += d * d;
            size += (double)right[j] * right[j];
        }
        if (!(difference <= tolerance * tolerance * (size + 1e-4 * all))) {
            fail_msg("%s gone: gradient of %s: distance %.3g of %.3g", what, item->name,
                     sqrt(difference), sqrt(size));
        }
    }
    free(found);
    free(expected);
}

/* A model without the maps of a scenario, and nothing folded, beside one in which they are 0. */
static void check_alone(const scenario *s, tt_form_choice choice)
{
    small_run whole, run;
    small_batch made;
    tt_error error = {0};
    tt_layer_shape items[MOST_PRUNED];
    tt_layer_shapes shapes = {items, 0};
    make_run(&whole, choice, false);
    prune(&whole.model, s);
    for (; shapes.count < MOST_PRUNED && s->whole[shapes.count]; shapes.count++) {
        tt_layer_shape *item = &items[shapes.count];
        snprintf(item->name, sizeof item->name, "%s", s->whole[shapes.count]);
        item->shape = find_train(&whole.model, item->name)->shape;
        item->shape.ranks[1] = 0;
    }
    make_run(&run, choice, false);
    tt_model_free(&run.model);
    tt_model_kind kind = {.with_moments = false};
    small_succeed(
        tt_model_create(&run.model, run.device, &whole.model.configuration, &kind, &shapes, &error),
        &error);
    run.model.encoder.form_choice = choice;
    run.model.encoder.step = run.step;
    run.model.encoder.training = true;
    run.model.encoder.seed = whole.model.encoder.seed;
    copy_weights(&whole.model, &run.model);
    assert_int_equal(removed_maps(&run.model), shapes.count);

    small_batch_make(&made, small_masked_counts, 1);
    small_run *both[] = {&whole, &run};
    for (int i = 0; i < 2; i++) {
        small_run_plan(both[i], 3, true);
        small_run_step(both[i], &made.batch, 3);
    }
    double found = small_loss(&run), expected = small_loss(&whole);
    if (!(fabs(found - expected) <= small_tolerance(1e-5) * expected)) {
        fail_msg("%s gone: expected a loss of %.7g, found %.7g", s->name, expected, found);
    }
    expect_gradients_of(s->name, &run, &whole);
    small_run_free(&whole);
    small_run_free(&run);
}

/* Any map may be missing, whatever the others are. */
static void test_maps_missing(void **state)
{
    (void)state;
    const tt_form_choice choices[] = {TT_FORM_ALWAYS_THIN, TT_FORM_ALWAYS_WIDE};
    const scenario more[] = {
        {.name = "query, key and value", .whole = {QUERY(1), KEY(1), VALUE(1)}},
        {.name = "query and value", .whole = {QUERY(0), VALUE(0), KEY(1)}},
    };
    for (int j = 0; j < 2; j++) {
        for (int i = 0; i < SCENARIOS; i++) {
            if (scenarios[i].whole[0] && !scenarios[i].partly[0]) {
                check_alone(&scenarios[i], choices[j]);
            }
        }
        check_alone(&more[0], choices[j]);
        check_alone(&more[1], choices[j]);
    }
}

/* --- training -------------------------------------------------------------------------------- */

static const tt_world alone = {.rank = 0, .size = 1, .local_size = 1};

typedef struct {
    tt_device *device;
    tt_model model;
    tt_optimizer *optimizer;
    tt_step step;
} fixture;

static void make_step(fixture *f)
{
    const tt_optimizer_options options = {.schedule = {.kind = TT_SCHEDULE_CONSTANT},
                                          .learning_rate = {2e-3, 1e-3, 1e-3},
                                          .total_steps = 1000,
                                          .rule = {.beta1 = 0.9f,
                                                   .beta2 = 0.999f,
                                                   .epsilon = 1e-6f,
                                                   .weight_decay = 0.01f,
                                                   .clip_norm = 1.0f,
                                                   .threshold = 0.01f},
                                          .loss_count = TT_LOSS_COUNT};
    const tt_step_sizes sizes = {.rows = SMALL_ROWS,
                                 .micro_batch = 3,
                                 .sequence_length = SMALL_LENGTH,
                                 .max_predictions = SMALL_PREDICTIONS};
    tt_error error = {0};
    small_succeed(tt_optimizer_create(&f->model.parameters, &options, &f->optimizer, &error),
                  &error);
    small_succeed(tt_step_create(&f->step, &f->model, f->optimizer, &alone, NULL, &sizes, &error),
                  &error);
}

static void make_fixture(fixture *f)
{
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    tt_error error = {0};
    configuration.initializer_range = configuration.train_deviation = 0.1f;
    *f = (fixture){.device = test_device(1)};
    small_succeed(
        tt_model_create_pretraining(&f->model, f->device, &configuration, 42, true, &error),
        &error);
    f->model.encoder.seed = 7;
    shake(&f->model);
    make_step(f);
}

static void free_fixture(fixture *f)
{
    tt_step_destroy(&f->step);
    tt_optimizer_destroy(&f->optimizer);
    tt_model_free(&f->model);
    tt_device_destroy(&f->device);
}

static double train(fixture *f, int64_t number)
{
    small_batch made;
    small_batch_make(&made, small_masked_counts, 1 + (uint64_t)number % 4);
    assert_int_equal(tt_step_load(&f->step, &made.batch, false), TT_STEP_GO_ON);
    tt_step_run(&f->step, number, number);
    tt_step_result result = tt_step_read(&f->step);
    assert_true(result.finite);
    return result.masked_lm_loss + result.next_sentence_loss;
}

/* The way of the trainer. */
static void compact_between_steps(fixture *f)
{
    uint32_t updates = tt_optimizer_updates(f->optimizer);
    tt_step_destroy(&f->step);
    tt_optimizer_destroy(&f->optimizer);
    compact(&f->model);
    make_step(f);
    tt_optimizer_restore(f->optimizer, updates);
}

enum { STEPS_BEFORE = 3, STEPS_AFTER = 25 };

/* Two runs that are pruned after a few steps; one is compacted then. */
static void check_training(const scenario *s)
{
    fixture cut, whole;
    make_fixture(&cut);
    make_fixture(&whole);
    for (int number = 0; number < STEPS_BEFORE; number++) {
        assert_true(train(&cut, number) == train(&whole, number));
    }
    prune(&cut.model, s);
    prune(&whole.model, s);
    compact_between_steps(&cut);
    int steps = test_device_is_simulated() ? 5 : STEPS_AFTER;
    for (int number = STEPS_BEFORE; number < STEPS_BEFORE + steps; number++) {
        double found = train(&cut, number), expected = train(&whole, number);
        if (!(fabs(found - expected) <= small_tolerance(2e-4) * expected)) {
            fail_msg("%s: step %d: expected a loss of %.7g, found %.7g", s->name, number, expected,
                     found);
        }
    }
    free_fixture(&cut);
    free_fixture(&whole);
}

/* Dropout is on: the numbers that it draws do not depend on ranks. */
static void test_training_goes_on(void **state)
{
    (void)state;
    for (int i = 0; i < SCENARIOS; i++) {
        if (!scenarios[i].folds) {
            check_training(&scenarios[i]);
        }
    }
}

/* Where a bias has taken up what is gone, training goes on from the same function. */
static void test_folded_models_learn(void **state)
{
    (void)state;
    for (int i = 0; i < SCENARIOS; i++) {
        if (scenarios[i].folds) {
            fixture f;
            make_fixture(&f);
            double first = train(&f, 0), last = 0.0;
            prune(&f.model, &scenarios[i]);
            compact_between_steps(&f);
            for (int number = 1; number < 30; number++) {
                last = train(&f, number);
            }
            assert_true(last < first);
            free_fixture(&f);
        }
    }
}

/* What stays of a core's or diagonal's numbers in a buffer, by the kept entries of its links. */
static void expect_cut(const char *name, const float *found, const float *before,
                       const tt_train_shape *shape, int k, bool diagonal)
{
    /* prune() takes entries k % 2, k % 2 + 2, ... of link k away. */
    int64_t left = diagonal || k == 0 ? 1 : shape->ranks[k];
    int64_t mode = diagonal ? 1 : shape->modes[k], right = shape->ranks[k + 1];
    int64_t used = 0;
    for (int64_t i = 0; i < left * mode; i++) {
        bool kept = left == 1 || (i / mode) % 2 != k % 2;
        for (int64_t j = 0; kept && j < right; j++) {
            if (k + 1 == shape->order || j % 2 != (k + 1) % 2) {
                if (found[used] != before[i * right + j]) {
                    fail_msg("%s: entry %lld: expected %g, found %g", name, (long long)used,
                             (double)before[i * right + j], (double)found[used]);
                }
                used++;
            }
        }
    }
}

typedef struct {
    float *values, *first, *second;
} buffers;

static buffers copy_buffers(const tt_parameters *p)
{
    size_t bytes = tt_floats(p->total);
    return (buffers){test_copy_out(p->device, p->values, bytes),
                     test_copy_out(p->device, p->first_moment, bytes),
                     test_copy_out(p->device, p->second_moment, bytes)};
}

static void free_buffers(buffers *b)
{
    free(b->values);
    free(b->first);
    free(b->second);
}

/* Values and moments of all that stays are the same bits. */
static void test_moments_stay(void **state)
{
    (void)state;
    fixture f;
    make_fixture(&f);
    train(&f, 0);
    prune(&f.model, &scenarios[0]);
    const tt_train before = *find_train(&f.model, INTERMEDIATE(1));
    int64_t cores[TT_MAX_ORDER] = {0}, diagonals[TT_MAX_ORDER] = {0}; /* offsets */
    for (int k = 0; k < before.shape.order; k++) {
        cores[k] = f.model.parameters.items[before.cores[k]].offset;
        if (k + 1 < before.shape.order) {
            diagonals[k] = f.model.parameters.items[before.diagonals[k]].offset;
        }
    }
    int64_t norm =
        f.model.parameters
            .items[tt_parameters_find(&f.model.parameters, LAYER(1) "output.LayerNorm.weight")]
            .offset;
    buffers old = copy_buffers(&f.model.parameters);
    compact_between_steps(&f);
    buffers now = copy_buffers(&f.model.parameters);
    const tt_train *after = find_train(&f.model, INTERMEDIATE(1));
    const float *const pairs[][2] = {
        {now.values, old.values}, {now.first, old.first}, {now.second, old.second}};
    for (int b = 0; b < 3; b++) {
        for (int k = 0; k < before.shape.order; k++) {
            expect_cut("core", pairs[b][0] + f.model.parameters.items[after->cores[k]].offset,
                       pairs[b][1] + cores[k], &before.shape, k, false);
            if (k + 1 < before.shape.order) {
                expect_cut("diagonal",
                           pairs[b][0] + f.model.parameters.items[after->diagonals[k]].offset,
                           pairs[b][1] + diagonals[k], &before.shape, k, true);
            }
        }
        int64_t now_norm =
            f.model.parameters
                .items[tt_parameters_find(&f.model.parameters, LAYER(1) "output.LayerNorm.weight")]
                .offset;
        assert_memory_equal(pairs[b][0] + now_norm, pairs[b][1] + norm,
                            SMALL_HIDDEN * sizeof(float));
    }
    free_buffers(&old);
    free_buffers(&now);
    free_fixture(&f);
}

/* --- tables of shapes ------------------------------------------------------------------------ */

static void expect_refused(tt_layer_shape shape, const char *expected)
{
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    tt_layer_shapes shapes = {&shape, 1};
    tt_device *device = test_device(1);
    tt_model model;
    tt_error error = {0};
    assert_int_equal(
        tt_model_create(&model, device, &configuration, &(tt_model_kind){0}, &shapes, &error),
        TT_INVALID_INPUT);
    if (!strstr(error.message, expected)) {
        fail_msg("expected '%s' in '%s'", expected, error.message);
    }
    tt_model_free(&model);
    tt_device_destroy(&device);
}

static void test_refusals(void **state)
{
    (void)state;
    tt_configuration configuration = small_configuration(TT_TENSOR_TRAIN);
    tt_layer_shape shape = {.name = KEY(1), .shape = configuration.maps[TT_MAP_ATTENTION].shape};
    shape.shape.ranks[2]++;
    expect_refused(shape,
                   KEY(1) ": rank 2: expected at most 5, as the configuration says; found 6");
    shape.shape.ranks[2]--;
    shape.shape.modes[0]++;
    expect_refused(shape, KEY(1) ": the modes of the tensor train differ");
    /* Of a dense map, too. */
    tt_layer_shape head = {
        .name = "cls.seq_relationship",
        .shape = {.order = 2, .input_order = 1, .modes = {7, 2}, .ranks = {1, 0, 1}}};
    expect_refused(head, "cls.seq_relationship: expected a removed map of ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outputs_stay),
        cmocka_unit_test(test_word_embeddings),
        cmocka_unit_test(test_maps_missing),
        cmocka_unit_test(test_training_goes_on),
        cmocka_unit_test(test_folded_models_learn),
        cmocka_unit_test(test_moments_stay),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

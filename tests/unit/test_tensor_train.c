/* Tensor trains of every order against the matrix they stand for, assembled in double precision;
 * gradients against central differences; shapes that are refused and shapes that are chosen. */
#include "core/tensor_train.h"

#include "support/test_device.h"

#include <math.h>

static const float threshold = 1e-2f;

/* --- a train in double precision ------------------------------------------------------------- */

/* Its numbers lie in one array: every core, then every diagonal. */
typedef struct {
    tt_train_shape shape;
    double *numbers;
    int64_t core[TT_MAX_ORDER], diagonal[TT_MAX_ORDER]; /* where each begins */
    int64_t count;
} double_train;

static double *zeros(int64_t count)
{
    double *values = calloc((size_t)count + 1, sizeof *values);
    assert_non_null(values);
    return values;
}

static int64_t core_count(const tt_train_shape *shape, int k)
{
    return shape->ranks[k] * shape->modes[k] * shape->ranks[k + 1];
}

static double_train lay_out(const tt_train_shape *shape)
{
    double_train train = {.shape = *shape};
    for (int k = 0; k < shape->order; k++) {
        train.core[k] = train.count;
        train.count += core_count(shape, k);
    }
    for (int k = 0; k + 1 < shape->order; k++) {
        train.diagonal[k] = train.count;
        train.count += shape->ranks[k + 1];
    }
    train.numbers = zeros(train.count);
    return train;
}

/* Copies the numbers of one parameter after the other, values or gradients. */
static void read_train(const tt_train_set *set, int index, bool gradients, double_train *train)
{
    tt_parameters *parameters = set->parameters;
    const tt_train *source = &set->trains[index];
    for (int part = 0; part < 2 * train->shape.order - 1; part++) {
        int k = part < train->shape.order ? part : part - train->shape.order;
        tt_parameter_id id = part == k ? source->cores[k] : source->diagonals[k];
        double *target = train->numbers + (part == k ? train->core[k] : train->diagonal[k]);
        float *from = gradients ? tt_parameters_gradient(parameters, id)
                                : tt_parameters_value(parameters, id);
        int64_t count = parameters->items[id].count;
        double *values = test_read_matrix(parameters->device, tt_matrix_f32(from, 1, count));
        memcpy(target, values, (size_t)count * sizeof *target);
        free(values);
    }
}

static double kept(double value)
{
    return value > (double)threshold ? value : 0.0;
}

/* left [rows, columns] H_k, the core as [columns, n_k r_k] scaled by its diagonal, if it has one.
 */
static double *extend(const double_train *train, const double *left, int64_t rows, int k)
{
    const tt_train_shape *shape = &train->shape;
    int64_t inner = shape->ranks[k], rank = shape->ranks[k + 1];
    int64_t columns = shape->modes[k] * rank;
    double *product = zeros(rows * columns);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t l = 0; l < inner; l++) {
            for (int64_t j = 0; j < columns; j++) {
                double scale = k + 1 < shape->order
                                   ? kept(train->numbers[train->diagonal[k] + j % rank])
                                   : 1.0;
                product[i * columns + j] +=
                    left[i * inner + l] * scale * train->numbers[train->core[k] + l * columns + j];
            }
        }
    }
    return product;
}

/* H_first ... H_last as [r_{first-1} n_first ... n_last, r_last], cores counted from 0. */
static double *chain(const double_train *train, int first, int last)
{
    int64_t rows = train->shape.ranks[first];
    double *product = zeros(rows * rows);
    for (int64_t i = 0; i < rows; i++) {
        product[i * rows + i] = 1.0;
    }
    for (int k = first; k <= last; k++) {
        double *longer = extend(train, product, rows, k);
        rows *= train->shape.modes[k];
        free(product);
        product = longer;
    }
    return product;
}

/* --- sets of trains -------------------------------------------------------------------------- */

enum { MAX_TRAINS = 4 };

typedef struct {
    tt_device *device;
    tt_parameters parameters;
    tt_train_set set;
} fixture;

static tt_train_shape make_shape(int order, int input_order, const int64_t *modes,
                                 const int64_t *ranks)
{
    tt_train_shape shape = {.order = order, .input_order = input_order};
    memcpy(shape.modes, modes, (size_t)order * sizeof *modes);
    shape.ranks[0] = shape.ranks[order] = 1;
    memcpy(shape.ranks + 1, ranks, (size_t)(order - 1) * sizeof *ranks);
    return shape;
}

/* `neighbours`: how many trains, from the first one on, share their input. */
static void make_fixture(fixture *f, int threads, const tt_train_shape *shapes, int count,
                         int neighbours)
{
    tt_error error = {0};
    *f = (fixture){.device = test_device(threads)};
    tt_parameters_init(&f->parameters, f->device);
    tt_train_set_init(&f->set, &f->parameters, threshold);
    for (int i = 0; i < count; i++) {
        char name[32];
        int index;
        snprintf(name, sizeof name, "train_%d", i);
        if (tt_train_set_add(&f->set, name, &shapes[i], i > 0 && i < neighbours ? i - 1 : -1,
                             &index, &error) != TT_OK) {
            fail_msg("%s", error.message);
        }
        assert_int_equal(index, i);
    }
    if (tt_parameters_allocate(&f->parameters, false, &error) != TT_OK ||
        tt_train_set_plan(&f->set, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
    for (int i = 0; i < count; i++) {
        tt_train_initialize(&f->set, i, 0.5f, 3);
    }
}

static void free_fixture(fixture *f)
{
    tt_train_set_free(&f->set);
    tt_parameters_free(&f->parameters);
    tt_device_destroy(&f->device);
}

/* Diagonals that differ, with some entries pruned in every way. */
static void draw_diagonals(fixture *f)
{
    tt_random random;
    tt_random_start(&random, 17, 0);
    for (int i = 0; i < f->parameters.count; i++) {
        const tt_parameter *item = &f->parameters.items[i];
        double *values = zeros(item->count);
        for (int64_t j = 0; item->group == TT_GROUP_DIAGONALS && j < item->count; j++) {
            const float pruned[] = {0.0f, -0.7f, 0.004f, -0.009f};
            float kept_value = 0.5f + tt_random_uniform(&random);
            bool prune = j > 0 && tt_random_below(&random, 4) == 0;
            values[j] = prune ? pruned[tt_random_below(&random, 4)] : kept_value;
        }
        if (item->group == TT_GROUP_DIAGONALS) {
            test_write_matrix(f->device,
                              tt_matrix_f32(tt_parameters_value(&f->parameters, i), 1, item->count),
                              values);
        }
        free(values);
    }
}

static void expect_close(const char *what, const double *actual, const double *expected,
                         int64_t count, double tolerance)
{
    double difference = 0.0, size = 0.0;
    for (int64_t i = 0; i < count; i++) {
        difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    if (!(difference <= tolerance * tolerance * size)) {
        fail_msg("%s: relative distance %.3g above %.3g", what, sqrt(difference / size), tolerance);
    }
}

static void expect_matrix(tt_device *device, const char *what, tt_matrix found,
                          const double *expected)
{
    double *values = test_read_matrix(device, found);
    expect_close(what, values, expected, found.rows * found.columns, test_device_f32_tolerance());
    free(values);
}

/* The factor that activations are multiplied with is the f32 one in the device's compute type. */
static void expect_rounded(tt_device *device, tt_matrix rounded, tt_matrix factor)
{
    assert_int_equal(rounded.type, device->compute);
    assert_int_equal(rounded.rows, factor.rows);
    assert_int_equal(rounded.columns, factor.columns);
    double *found = test_read_matrix(device, rounded), *expected = test_read_matrix(device, factor);
    for (int64_t i = 0; i < factor.rows * factor.columns; i++) {
        assert_true(found[i] == test_rounded(rounded.type, expected[i]));
    }
    free(found);
    free(expected);
}

static void add_to_matrix(tt_device *device, tt_matrix target, const double *values)
{
    double *sums = test_read_matrix(device, target);
    for (int64_t i = 0; i < target.rows * target.columns; i++) {
        sums[i] += values[i];
    }
    test_write_matrix(device, target, sums);
    free(sums);
}

/* --- factors and gradients ------------------------------------------------------------------- */

static void check_factors(const fixture *f, int index)
{
    const tt_train *train = &f->set.trains[index];
    double_train copy = lay_out(&train->shape);
    read_train(&f->set, index, false, &copy);
    double *a = chain(&copy, 0, copy.shape.input_order - 1);
    double *b = chain(&copy, copy.shape.input_order, copy.shape.order - 1);
    assert_int_equal(train->a.rows, tt_train_inputs(&copy.shape));
    assert_int_equal(train->b.columns, tt_train_outputs(&copy.shape));
    assert_int_equal(train->a.columns, train->b.rows);
    expect_matrix(f->device, "A", train->a, a);
    expect_matrix(f->device, "B", train->b, b);
    expect_rounded(f->device, train->rounded_a, train->a);
    expect_rounded(f->device, train->rounded_b, train->b);
    free(a);
    free(b);
    free(copy.numbers);
}

/* A random gradient of the assembled matrix W = A B, as a function whose value is the sum of its
 * entries times those of W. */
static double weighted_matrix(const double_train *train, const double *weights)
{
    double *w = chain(train, 0, train->shape.order - 1), sum = 0.0;
    int64_t count = tt_train_inputs(&train->shape) * tt_train_outputs(&train->shape);
    for (int64_t i = 0; i < count; i++) {
        sum += weights[i] * w[i];
    }
    free(w);
    return sum;
}

static double *random_weights(int64_t count, uint64_t seed)
{
    double *weights = zeros(count);
    tt_random random;
    tt_random_start(&random, seed, 5);
    for (int64_t i = 0; i < count; i++) {
        weights[i] = tt_random_normal(&random);
    }
    return weights;
}

/* What a micro-batch adds: dA = G B^T and dB = A^T G for the matrix's gradient G, times `share`. */
static void add_matrix_gradient(const fixture *f, int index, const double *weights, double share)
{
    const tt_train *train = &f->set.trains[index];
    int64_t inputs = train->a.rows, outputs = train->b.columns, rank = train->a.columns;
    double *a = test_read_matrix(f->device, train->a);
    double *b = test_read_matrix(f->device, train->b);
    double *d_a = zeros(inputs * rank), *d_b = zeros(rank * outputs);
    for (int64_t i = 0; i < inputs; i++) {
        for (int64_t j = 0; j < outputs; j++) {
            double g = share * weights[i * outputs + j];
            for (int64_t r = 0; r < rank; r++) {
                d_a[i * rank + r] += g * b[r * outputs + j];
                d_b[r * outputs + j] += g * a[i * rank + r];
            }
        }
    }
    add_to_matrix(f->device, train->a_gradient, d_a);
    add_to_matrix(f->device, train->b_gradient, d_b);
    free(a);
    free(b);
    free(d_a);
    free(d_b);
}

/* By central differences; pruned entries of diagonals get 0. */
static double *expected_gradient(double_train *train, const double *weights)
{
    double *gradient = zeros(train->count);
    for (int64_t i = 0; i < train->count; i++) {
        double value = train->numbers[i], step = 1e-5;
        if (i >= train->diagonal[0] && kept(value) == 0.0) {
            continue;
        }
        train->numbers[i] = value + step;
        double above = weighted_matrix(train, weights);
        train->numbers[i] = value - step;
        double below = weighted_matrix(train, weights);
        train->numbers[i] = value;
        gradient[i] = (above - below) / (2.0 * step);
    }
    return gradient;
}

/* The gradients of train `index` after contraction, against `times` what the weights say. */
static void check_gradients(const fixture *f, int index, const double *weights, double times)
{
    const tt_train_shape *shape = &f->set.trains[index].shape;
    double_train copy = lay_out(shape), found = lay_out(shape);
    read_train(&f->set, index, false, &copy);
    read_train(&f->set, index, true, &found);
    double *expected = expected_gradient(&copy, weights);
    for (int64_t i = 0; i < copy.count; i++) {
        expected[i] *= times;
        if (i >= copy.diagonal[0] && kept(copy.numbers[i]) == 0.0) {
            assert_true(found.numbers[i] == 0.0);
        }
    }
    for (int k = 0; k < shape->order; k++) {
        expect_close("core gradient", found.numbers + copy.core[k], expected + copy.core[k],
                     core_count(shape, k), test_device_f32_tolerance());
        if (k + 1 < shape->order) {
            expect_close("diagonal gradient", found.numbers + copy.diagonal[k],
                         expected + copy.diagonal[k], shape->ranks[k + 1],
                         test_device_f32_tolerance());
        }
    }
    free(expected);
    free(copy.numbers);
    free(found.numbers);
}

/* Factors, gradients over two micro-batches, a second contraction on top, and a new step. */
static void check_set(fixture *f)
{
    double *weights[MAX_TRAINS] = {0};
    const int count = f->set.count;
    assert_true(count <= MAX_TRAINS);
    draw_diagonals(f);
    tt_train_set_materialise(&f->set);
    for (int i = 0; i < count; i++) {
        const tt_train *train = &f->set.trains[i];
        check_factors(f, i);
        weights[i] = random_weights(train->a.rows * train->b.columns, 60 + (uint64_t)i);
        add_matrix_gradient(f, i, weights[i], 0.25);
        add_matrix_gradient(f, i, weights[i], 0.75);
    }
    tt_train_set_contract(&f->set);
    for (int i = 0; i < count; i++) {
        check_gradients(f, i, weights[i], 1.0);
    }
    tt_train_set_contract(&f->set);
    for (int i = 0; i < count; i++) {
        check_gradients(f, i, weights[i], 2.0);
    }
    tt_train_set_materialise(&f->set);
    tt_train_set_contract(&f->set); /* dA and dB are 0 again: nothing is added */
    for (int i = 0; i < count; i++) {
        check_factors(f, i);
        check_gradients(f, i, weights[i], 2.0);
    }
    for (int i = 0; i < MAX_TRAINS; i++) {
        free(weights[i]);
    }
}

static const int64_t modes[] = {3, 2, 4, 2, 2, 2, 2, 3};
static const int64_t ranks[] = {3, 5, 4, 5, 3, 4, 3};

static void test_orders_and_cuts(void **state)
{
    (void)state;
    for (int order = 2; order <= 8; order += order == 6 ? 2 : 1) {
        for (int cut = 1; cut < order; cut++) {
            fixture f;
            tt_train_shape shape = make_shape(order, cut, modes, ranks);
            make_fixture(&f, 1 + (order + cut) % 2, &shape, 1, 0);
            check_set(&f);
            free_fixture(&f);
        }
    }
}

/* Q, K and V with one input of 24 and unequal ranks, orders and outputs, then one on its own. */
static void make_neighbours(fixture *f, int threads)
{
    const tt_train_shape shapes[MAX_TRAINS] = {
        make_shape(4, 2, (int64_t[]){4, 6, 2, 3}, (int64_t[]){3, 5, 2}),
        make_shape(3, 1, (int64_t[]){24, 5, 4}, (int64_t[]){4, 3}),
        make_shape(5, 3, (int64_t[]){4, 3, 2, 3, 6}, (int64_t[]){2, 4, 4, 3}),
        make_shape(2, 1, (int64_t[]){5, 7}, (int64_t[]){4}),
    };
    make_fixture(f, threads, shapes, MAX_TRAINS, 3);
}

static void test_neighbours(void **state)
{
    (void)state;
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        fixture f;
        make_neighbours(&f, threads);
        check_set(&f);
        free_fixture(&f);
    }
}

/* The A of neighbours are one matrix, all of it or a part. */
static void test_side_by_side(void **state)
{
    (void)state;
    fixture f;
    make_neighbours(&f, 1);
    const tt_train *trains = f.set.trains;
    int64_t widths[3], width = 0;
    for (int i = 0; i < 3; i++) {
        widths[i] = trains[i].shape.ranks[trains[i].shape.input_order];
        width += widths[i];
    }
    tt_matrix all = tt_train_set_input_factors(&f.set, 0, 2);
    tt_matrix d_all = tt_train_set_input_gradients(&f.set, 0, 2);
    assert_int_equal(all.rows, 24);
    assert_int_equal(all.columns, width);
    assert_int_equal(all.stride, width);
    assert_int_equal(d_all.columns, width);
    assert_ptr_equal(trains[0].rounded_a.data, all.data);
    assert_ptr_equal(trains[1].rounded_a.data, tt_matrix_at(all, 0, widths[0]));
    assert_ptr_equal(trains[2].rounded_a.data, tt_matrix_at(all, 0, widths[0] + widths[1]));
    assert_ptr_equal(trains[2].a_gradient.data, tt_matrix_at(d_all, 0, widths[0] + widths[1]));
    tt_matrix part = tt_train_set_input_factors(&f.set, 1, 2);
    assert_ptr_equal(part.data, trains[1].rounded_a.data);
    assert_int_equal(part.columns, widths[1] + widths[2]);
    assert_int_equal(part.stride, width);
    tt_matrix alone = tt_train_set_input_factors(&f.set, 3, 3);
    assert_int_equal(alone.columns, 4);
    assert_int_equal(alone.stride, 4);
    assert_true(tt_train_set_bytes(&f.set) >= (size_t)width * sizeof(float[2][24]));
    free_fixture(&f);
}

/* A number that every type has. */
#define LARGE 0x1p100

/* Behind the r_d rows of B and dB lies room for one more, which the map's bias takes. */
static void test_bias_row(void **state)
{
    (void)state;
    fixture f;
    make_neighbours(&f, 1);
    for (int i = 0; i < MAX_TRAINS; i++) {
        const tt_train *train = &f.set.trains[i];
        double *large = zeros(train->b.columns);
        for (int64_t j = 0; j < train->b.columns; j++) {
            large[j] = LARGE;
        }
        test_write_matrix(f.device, tt_matrix_rows(train->b, train->b.rows, 1), large);
        test_write_matrix(f.device, tt_matrix_rows(train->b_gradient, train->b.rows, 1), large);
        free(large);
    }
    check_set(&f);
    for (int i = 0; i < MAX_TRAINS; i++) {
        const tt_train *train = &f.set.trains[i];
        double *row = test_read_matrix(f.device, tt_matrix_rows(train->b, train->b.rows, 1));
        double *d_row =
            test_read_matrix(f.device, tt_matrix_rows(train->b_gradient, train->b.rows, 1));
        for (int64_t j = 0; j < train->b.columns; j++) {
            assert_true(row[j] == LARGE);
            assert_true(d_row[j] == 0.0); /* dB starts at 0, its last row included */
        }
        free(row);
        free(d_row);
    }
    free_fixture(&f);
}

static void test_names(void **state)
{
    (void)state;
    fixture f;
    make_neighbours(&f, 1);
    assert_int_equal(f.parameters.count, 7 + 5 + 9 + 3);
    tt_parameter_id core = tt_parameters_find(&f.parameters, "train_2.core_5");
    tt_parameter_id diagonal = tt_parameters_find(&f.parameters, "train_2.rank_diagonal_4");
    assert_true(core >= 0 && diagonal >= 0);
    assert_int_equal(core, f.set.trains[2].cores[4]);
    assert_int_equal(diagonal, f.set.trains[2].diagonals[3]);
    assert_int_equal(tt_parameters_find(&f.parameters, "train_2.rank_diagonal_5"), -1);
    const tt_parameter *item = &f.parameters.items[core];
    assert_int_equal(item->dimensions, 3);
    assert_int_equal(item->shape[0], 3);
    assert_int_equal(item->shape[1], 6);
    assert_int_equal(item->shape[2], 1);
    assert_int_equal(item->group, TT_GROUP_CORES);
    assert_true(item->decays);
    item = &f.parameters.items[diagonal];
    assert_int_equal(item->group, TT_GROUP_DIAGONALS);
    assert_false(item->decays);
    double *ones = test_read_matrix(
        f.device, tt_matrix_f32(tt_parameters_value(&f.parameters, diagonal), 1, item->count));
    assert_true(ones[2] == 1.0);
    free(ones);
    int64_t size = 0;
    for (int i = 0; i < MAX_TRAINS; i++) {
        size += tt_train_size(&f.set.trains[i].shape);
    }
    assert_int_equal(tt_parameters_size(&f.parameters), size);
    tt_error error = {0};
    int index;
    assert_int_equal(
        tt_train_set_add(&f.set, "train_1", &f.set.trains[1].shape, -1, &index, &error),
        TT_INVALID_INPUT);
    assert_string_equal(error.message, "parameter name train_1.core_1 is used twice");
    assert_int_equal(f.set.count, MAX_TRAINS);
    free_fixture(&f);
}

static void test_empty_set(void **state)
{
    (void)state;
    fixture f;
    make_fixture(&f, 1, NULL, 0, 0);
    tt_train_set_materialise(&f.set);
    tt_train_set_contract(&f.set);
    free_fixture(&f);
}

/* --- initial values -------------------------------------------------------------------------- */

/* Mean square of the assembled entries relative to what was asked for, over seeds. */
static double relative_variance(const tt_train_shape *shape, float deviation, int seeds)
{
    fixture f;
    double sum = 0.0;
    int64_t count = tt_train_inputs(shape) * tt_train_outputs(shape);
    make_fixture(&f, 1, shape, 1, 0);
    for (int seed = 0; seed < seeds; seed++) {
        tt_train_initialize(&f.set, 0, deviation, (uint64_t)seed);
        double_train copy = lay_out(shape);
        read_train(&f.set, 0, false, &copy);
        double *w = chain(&copy, 0, shape->order - 1);
        for (int64_t i = 0; i < count; i++) {
            sum += w[i] * w[i] / (double)count;
        }
        free(w);
        free(copy.numbers);
    }
    free_fixture(&f);
    return sum / seeds / ((double)deviation * deviation);
}

static void test_initial_deviation(void **state)
{
    (void)state;
    tt_train_shape shape;
    tt_error error = {0};
    assert_int_equal(tt_train_shape_choose(96, 96, 2, 2, 20, &shape, &error), TT_OK);
    double variance = relative_variance(&shape, 0.02f, 20);
    assert_true(variance > 0.9 && variance < 1.1);
    assert_int_equal(tt_train_shape_choose(64, 64, 3, 3, 12, &shape, &error), TT_OK);
    variance = relative_variance(&shape, 0.3f, 20);
    assert_true(variance > 0.9 && variance < 1.1);
    assert_int_equal(tt_train_shape_choose(40, 40, 1, 1, 9, &shape, &error), TT_OK);
    variance = relative_variance(&shape, 0.1f, 20);
    assert_true(variance > 0.9 && variance < 1.1);
}

/* --- shapes ---------------------------------------------------------------------------------- */

static void expect_refused(tt_train_shape shape, int64_t inputs, int64_t outputs,
                           const char *message)
{
    tt_error error = {0};
    assert_int_equal(tt_train_shape_check(&shape, inputs, outputs, "map", &error),
                     TT_INVALID_INPUT);
    assert_string_equal(error.message, message);
}

/* 24 inputs, 6 outputs, three links. */
static tt_train_shape small_shape(void)
{
    return make_shape(4, 2, (int64_t[]){4, 6, 2, 3}, (int64_t[]){3, 5, 2});
}

static void test_check_order(void **state)
{
    (void)state;
    tt_error error = {0};
    tt_train_shape good = small_shape();
    assert_int_equal(tt_train_shape_check(&good, 24, 6, "map", &error), TT_OK);
    tt_train_shape shape = good;
    shape.order = 1;
    expect_refused(shape, 24, 6, "map: expected 2 to 16 modes in all, found 1");
    shape.order = 17;
    expect_refused(shape, 24, 6, "map: expected 2 to 16 modes in all, found 17");
    shape = good;
    shape.input_order = 0;
    expect_refused(shape, 24, 6,
                   "map: expected at least one input mode and one output mode, found 0 and 4");
    shape.input_order = 4;
    expect_refused(shape, 24, 6,
                   "map: expected at least one input mode and one output mode, found 4 and 0");
    shape = good;
    shape.modes[2] = 0;
    expect_refused(shape, 24, 6, "map: mode 3: expected a size from 1 to 16777216, found 0");
    shape.modes[2] = 1 << 25;
    expect_refused(shape, 24, 6, "map: mode 3: expected a size from 1 to 16777216, found 33554432");
}

static void test_check_sizes(void **state)
{
    (void)state;
    tt_train_shape good = small_shape();
    expect_refused(good, 25, 6, "map: input modes multiply to 24, expected the width 25");
    expect_refused(good, 23, 6, "map: input modes multiply to >= 24, expected the width 23");
    expect_refused(good, 24, 7, "map: output modes multiply to 6, expected the width 7");
    expect_refused(good, 24, 3, "map: output modes multiply to >= 6, expected the width 3");
    tt_train_shape shape = good;
    for (int k = 0; k < 2; k++) {
        shape.modes[k] = 1 << 24; /* whose product fits no 32-bit number */
    }
    expect_refused(shape, 24, 6, "map: input modes multiply to >= 16777216, expected the width 24");
    shape = good;
    shape.ranks[0] = 2;
    expect_refused(shape, 24, 6, "map: expected outer ranks of 1");
    shape = good;
    shape.ranks[4] = 3;
    expect_refused(shape, 24, 6, "map: expected outer ranks of 1");
    shape = good;
    shape.ranks[2] = 7;
    expect_refused(shape, 24, 6,
                   "map: rank 2 of 3: expected 1 to 6 (the smaller side of the unfolding at that "
                   "link), found 7");
    shape.ranks[2] = 0;
    expect_refused(shape, 24, 6,
                   "map: rank 2 of 3: expected 1 to 6 (the smaller side of the unfolding at that "
                   "link), found 0");
}

static void expect_modes(int64_t inputs, int64_t outputs, int input_order, int output_order,
                         const int64_t *expected)
{
    tt_error error = {0};
    tt_train_shape shape = {0};
    if (tt_train_shape_choose(inputs, outputs, input_order, output_order, 30, &shape, &error) !=
        TT_OK) {
        fail_msg("%s", error.message);
    }
    const int order = input_order + output_order;
    assert_int_equal(shape.order, order);
    assert_int_equal(shape.input_order, input_order);
    for (int k = 0; k < order; k++) {
        assert_int_equal(shape.modes[k], expected[k]);
    }
    for (int k = 1; k < order; k++) {
        int64_t limit = tt_train_rank_limit(&shape, k);
        assert_int_equal(shape.ranks[k], limit < 30 ? limit : 30);
    }
    assert_int_equal(tt_train_shape_check(&shape, inputs, outputs, "chosen", &error), TT_OK);
}

static void test_choose(void **state)
{
    (void)state;
    expect_modes(768, 768, 3, 3, (int64_t[]){12, 8, 8, 8, 8, 12});
    expect_modes(768, 3072, 3, 3, (int64_t[]){12, 8, 8, 12, 16, 16});
    expect_modes(1024, 4096, 3, 3, (int64_t[]){16, 8, 8, 16, 16, 16});
    expect_modes(30, 30, 3, 2, (int64_t[]){5, 3, 2, 5, 6});
    expect_modes(30, 7, 2, 1, (int64_t[]){6, 5, 7});
    expect_modes(769, 769, 1, 1, (int64_t[]){769, 769});
    expect_modes(256, 256, 8, 8, (int64_t[]){2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2});
    expect_modes(1001, 1000, 3, 3, (int64_t[]){13, 11, 7, 10, 10, 10});
}

static void expect_no_choice(int64_t inputs, int64_t outputs, int input_order, int output_order,
                             const char *message)
{
    tt_error error = {0};
    tt_train_shape shape;
    assert_int_equal(
        tt_train_shape_choose(inputs, outputs, input_order, output_order, 4, &shape, &error),
        TT_INVALID_INPUT);
    assert_string_equal(error.message, message);
}

static void test_choose_impossible(void **state)
{
    (void)state;
    expect_no_choice(769, 768, 2, 3,
                     "a width of 769 has 1 prime factors and cannot be cut into 2 modes");
    expect_no_choice(768, 6, 3, 3,
                     "a width of 6 has 2 prime factors and cannot be cut into 3 modes");
    expect_no_choice(1, 6, 1, 1, "a width of 1 has 0 prime factors and cannot be cut into 1 modes");
    expect_no_choice(768, 768, 0, 3,
                     "expected 1 or more modes a side and at most 16 in all, found 0 and 3");
    expect_no_choice(768, 768, 9, 8,
                     "expected 1 or more modes a side and at most 16 in all, found 9 and 8");
}

static void test_sizes(void **state)
{
    (void)state;
    tt_train_shape shape = small_shape();
    assert_int_equal(tt_train_inputs(&shape), 24);
    assert_int_equal(tt_train_outputs(&shape), 6);
    assert_int_equal(tt_train_core_size(&shape), 4 * 3 + 3 * 6 * 5 + 5 * 2 * 2 + 2 * 3);
    assert_int_equal(tt_train_size(&shape), tt_train_core_size(&shape) + 3 + 5 + 2);
    assert_int_equal(tt_train_rank_limit(&shape, 1), 4);
    assert_int_equal(tt_train_rank_limit(&shape, 2), 6);
    assert_int_equal(tt_train_rank_limit(&shape, 3), 3);
}

static int64_t size_with_rank(int64_t inputs, int64_t outputs, int order, int64_t rank)
{
    tt_train_shape shape;
    tt_error error = {0};
    assert_int_equal(tt_train_shape_choose(inputs, outputs, order, order, rank, &shape, &error),
                     TT_OK);
    return tt_train_size(&shape);
}

/* The rank meets the target, and one more would not. */
static void expect_compression(int64_t inputs, int64_t outputs, int order, double compression)
{
    tt_train_shape shape;
    tt_error error = {0};
    assert_int_equal(tt_train_shape_choose(inputs, outputs, order, order, 1, &shape, &error),
                     TT_OK);
    int64_t rank = tt_train_rank_for_compression(&shape, compression);
    double budget = (double)inputs * (double)outputs / compression;
    assert_true((double)size_with_rank(inputs, outputs, order, rank) <= budget);
    assert_true((double)size_with_rank(inputs, outputs, order, rank + 1) > budget);
}

static void test_rank_for_compression(void **state)
{
    (void)state;
    const double compressions[] = {1.5, 4.23, 8.0, 50.0, 100.0};
    for (size_t i = 0; i < sizeof compressions / sizeof compressions[0]; i++) {
        for (int order = 1; order <= 3; order++) {
            expect_compression(768, 768, order, compressions[i]);
            expect_compression(1024, 4096, order, compressions[i]);
            expect_compression(3072, 768, order, compressions[i]);
        }
    }
    tt_train_shape shape;
    tt_error error = {0};
    assert_int_equal(tt_train_shape_choose(30, 30, 2, 2, 1, &shape, &error), TT_OK);
    assert_int_equal(tt_train_rank_for_compression(&shape, 1e9), 1); /* the smallest there is */
    assert_int_equal(tt_train_rank_for_compression(&shape, 1e-9), 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders_and_cuts),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_side_by_side),
        cmocka_unit_test(test_bias_row),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_empty_set),
        cmocka_unit_test(test_initial_deviation),
        cmocka_unit_test(test_check_order),
        cmocka_unit_test(test_check_sizes),
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_choose_impossible),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_rank_for_compression),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Linear maps, dense and as tensor trains, against plain loops in double precision. */
#include "core/linear.h"
#include "ops/ops_test.h"

enum { INPUTS = 24, OUTPUTS = 30, ENTRIES = INPUTS * OUTPUTS, ROWS = 17, RESULTS = ROWS * OUTPUTS };

typedef struct {
    tt_device *device;
    tt_parameters parameters;
    tt_train_set trains;
} fixture;

static void begin(fixture *f, int threads)
{
    *f = (fixture){.device = test_device(threads)};
    tt_parameters_init(&f->parameters, f->device);
    tt_train_set_init(&f->trains, &f->parameters, 0.01f);
}

static tt_linear_form train_form(int input_order, int output_order, int64_t rank)
{
    tt_linear_form form = {.form = TT_TENSOR_TRAIN};
    tt_error error = {0};
    if (tt_train_shape_choose(INPUTS, OUTPUTS, input_order, output_order, rank, &form.shape,
                              &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
    return form;
}

static void add(fixture *f, tt_linear *linear, const char *name, const tt_linear_form *form,
                const tt_linear *neighbour)
{
    tt_error error = {0};
    if (tt_linear_add(linear, name, INPUTS, OUTPUTS, form, neighbour, &f->parameters, &f->trains,
                      &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
}

static void allocate(fixture *f)
{
    tt_error error = {0};
    if (tt_parameters_allocate(&f->parameters, false, &error) != TT_OK ||
        tt_train_set_plan(&f->trains, &error) != TT_OK) {
        fail_msg("%s", error.message);
    }
}

/* What a step does with the parameters before the first product. */
static void begin_step(fixture *f)
{
    tt_parameters_round(&f->parameters);
    tt_train_set_materialise(&f->trains);
}

static void end(fixture *f)
{
    tt_train_set_free(&f->trains);
    tt_parameters_free(&f->parameters);
    tt_device_destroy(&f->device);
}

static double *array(int64_t count)
{
    return test_host((size_t)count * sizeof(double));
}

/* The numbers of a parameter, or of its gradient, on the host. */
static double *read_parameter(const tt_linear *linear, tt_parameter_id id, bool gradient)
{
    const tt_parameters *parameters = linear->parameters;
    float *numbers =
        gradient ? tt_parameters_gradient(parameters, id) : tt_parameters_value(parameters, id);
    return test_read_matrix(parameters->device,
                            tt_matrix_f32(numbers, 1, parameters->items[id].count));
}

/* c [rows, columns] = (c or 0) + op(a) op(b), all with their own row lengths. */
static void plain_product(double *c, int64_t rows, int64_t columns, int64_t inner, const double *a,
                          bool transpose_a, const double *b, bool transpose_b, double beta)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            double sum = beta * c[i * columns + j];
            for (int64_t l = 0; l < inner; l++) {
                sum += (transpose_a ? a[l * rows + i] : a[i * inner + l]) *
                       (transpose_b ? b[j * inner + l] : b[l * columns + j]);
            }
            c[i * columns + j] = sum;
        }
    }
}

/* The matrix [INPUTS, OUTPUTS] that x is multiplied by: W^T, or A B. */
static double *matrix_of(const tt_linear *linear)
{
    double *matrix = array(ENTRIES);
    if (linear->form == TT_DENSE) {
        double *weight = read_parameter(linear, linear->weight, false);
        for (int64_t i = 0; i < ENTRIES; i++) {
            matrix[i] = weight[i % OUTPUTS * INPUTS + i / OUTPUTS];
        }
        free(weight);
        return matrix;
    }
    const tt_train *train = tt_linear_train(linear);
    double *a = test_read_matrix(linear->parameters->device, train->a);
    double *b = test_read_matrix(linear->parameters->device, train->b);
    plain_product(matrix, INPUTS, OUTPUTS, linear->rank, a, false, b, false, 0.0);
    free(a);
    free(b);
    return matrix;
}

/* --- forward and backward -------------------------------------------------------------------- */

/* Operands of a call on the map, and the same in double precision. */
typedef struct {
    ops_test_matrix x, u, y, dy, du, dx;
    double *x_values, *dy_values, *matrix;
} operands;

static operands make_operands(tt_device *device, const tt_linear *linear, uint64_t seed)
{
    operands o = {.x = ops_test_random(device, ROWS, INPUTS, 3, 1.0, seed),
                  .u = ops_test_fill(device, ROWS, linear->rank, 2, NAN),
                  .y = ops_test_fill(device, ROWS, OUTPUTS, 1, NAN),
                  .dy = ops_test_random(device, ROWS, OUTPUTS, 4, 1.0, seed + 1),
                  .du = ops_test_fill(device, ROWS, linear->rank, 1, NAN),
                  .dx = ops_test_random(device, ROWS, INPUTS, 2, 1.0, seed + 2)};
    o.x_values = ops_test_read(&o.x);
    o.dy_values = ops_test_read(&o.dy);
    o.matrix = matrix_of(linear);
    return o;
}

static void free_operands(operands *o)
{
    ops_test_matrix *all[] = {&o->x, &o->u, &o->y, &o->dy, &o->du, &o->dx};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ops_test_free(all[i]);
    }
    free(o->x_values);
    free(o->dy_values);
    free(o->matrix);
}

/* The sum with a bias, and its GELU, which come of one call. */
static void check_forward_gelu(const tt_linear *linear, operands *o)
{
    tt_device *device = linear->parameters->device;
    ops_test_matrix bias = ops_test_random_f32(device, 1, OUTPUTS, 0, 0.5, 77);
    ops_test_matrix before = ops_test_fill(device, ROWS, OUTPUTS, 1, NAN);
    double *biases = ops_test_read(&bias), *sum = array(RESULTS);
    tt_matrix place =
        tt_matrix_f32(tt_parameters_value(linear->parameters, linear->bias), 1, OUTPUTS);
    double *kept = test_read_matrix(device, place);
    test_write_matrix(device, place, biases);
    plain_product(sum, ROWS, OUTPUTS, INPUTS, o->x_values, false, o->matrix, false, 0.0);
    for (int64_t i = 0; i < RESULTS; i++) {
        sum[i] += biases[i % OUTPUTS];
    }
    tt_linear_forward_gelu(linear, TT_GELU_ERF, o->x.view, o->u.view, before.view, o->y.view);
    ops_test_expect("before GELU", &before, sum);
    for (int64_t i = 0; i < RESULTS; i++) {
        sum[i] *= 0.5 * erfc(-sum[i] / sqrt(2.0));
    }
    ops_test_expect("GELU", &o->y, sum);
    test_write_matrix(device, place, kept);
    free(kept);
    free(biases);
    free(sum);
    ops_test_free(&bias);
    ops_test_free(&before);
}

static void check_forward(const tt_linear *linear, operands *o)
{
    double *y = array(RESULTS);
    plain_product(y, ROWS, OUTPUTS, INPUTS, o->x_values, false, o->matrix, false, 0.0);
    tt_linear_forward(linear, o->x.view, o->u.view, o->y.view);
    ops_test_expect("y", &o->y, y);
    free(y);
    check_forward_gelu(linear, o);
}

/* What A and B must have got, `times` over: dA = G B^T and dB = A^T G for the matrix's gradient G.
 */
static void check_factor_gradients(const tt_linear *linear, const double *gradient, double times)
{
    tt_device *device = linear->parameters->device;
    const tt_train *train = tt_linear_train(linear);
    double *a = test_read_matrix(device, train->a), *b = test_read_matrix(device, train->b);
    double *d_a = test_read_matrix(device, train->a_gradient);
    double *d_b = test_read_matrix(device, train->b_gradient);
    double *scaled = array(ENTRIES), *expected = array(ENTRIES);
    for (int64_t i = 0; i < ENTRIES; i++) {
        scaled[i] = times * gradient[i];
    }
    plain_product(expected, INPUTS, linear->rank, OUTPUTS, scaled, false, b, true, 0.0);
    ops_test_close("dA", d_a, expected, INPUTS * linear->rank, test_device_tolerance());
    plain_product(expected, linear->rank, OUTPUTS, INPUTS, a, true, scaled, false, 0.0);
    ops_test_close("dB", d_b, expected, linear->rank * OUTPUTS, test_device_tolerance());
    free(a);
    free(b);
    free(d_a);
    free(d_b);
    free(scaled);
    free(expected);
}

/* The gradient of the matrix x^T dy, as it must have gone into W, or into A and B. */
static void check_matrix_gradient(const tt_linear *linear, const operands *o, double times)
{
    double *gradient = array(ENTRIES);
    plain_product(gradient, INPUTS, OUTPUTS, ROWS, o->x_values, true, o->dy_values, false, 0.0);
    if (linear->form == TT_DENSE) {
        double *found = read_parameter(linear, linear->weight, true);
        double *transposed = array(ENTRIES);
        for (int64_t i = 0; i < ENTRIES; i++) {
            transposed[i] = found[i % OUTPUTS * INPUTS + i / OUTPUTS] / times;
        }
        ops_test_close("weight gradient", transposed, gradient, ENTRIES, test_device_tolerance());
        free(found);
        free(transposed);
    } else {
        check_factor_gradients(linear, gradient, times);
    }
    free(gradient);
}

/* Twice, so that it shows that gradients of weights add up while dx is scaled by beta. */
static void check_backward(const tt_linear *linear, operands *o)
{
    double *dx = ops_test_read(&o->dx);
    plain_product(dx, ROWS, INPUTS, OUTPUTS, o->dy_values, false, o->matrix, true, 1.0);
    tt_linear_backward(linear, o->x.view, o->u.view, o->dy.view, o->du.view, 1.0f, o->dx.view);
    ops_test_expect("dx added", &o->dx, dx);
    check_matrix_gradient(linear, o, 1.0);
    plain_product(dx, ROWS, INPUTS, OUTPUTS, o->dy_values, false, o->matrix, true, 0.0);
    tt_linear_backward(linear, o->x.view, o->u.view, o->dy.view, o->du.view, 0.0f, o->dx.view);
    ops_test_expect("dx overwritten", &o->dx, dx);
    check_matrix_gradient(linear, o, 2.0);
    tt_linear_backward(linear, o->x.view, o->u.view, o->dy.view, o->du.view, 0.0f, (tt_matrix){0});
    ops_test_expect("dx left alone", &o->dx, dx);
    check_matrix_gradient(linear, o, 3.0);
    free(dx);
    double *bias = read_parameter(linear, linear->bias, true);
    for (int64_t j = 0; j < OUTPUTS; j++) {
        assert_true(bias[j] == 0.0);
    }
    free(bias);
}

static void check_form(int threads, const tt_linear_form *form)
{
    fixture f;
    tt_linear linear;
    begin(&f, threads);
    add(&f, &linear, "map", form, NULL);
    allocate(&f);
    tt_linear_initialize(&linear, 0.3f, 5);
    begin_step(&f);
    operands o = make_operands(f.device, &linear, 1);
    check_forward(&linear, &o);
    check_backward(&linear, &o);
    free_operands(&o);
    end(&f);
}

static void test_dense(void **state)
{
    (void)state;
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        check_form(threads, &(tt_linear_form){.form = TT_DENSE});
    }
}

static void test_tensor_train(void **state)
{
    (void)state;
    for (int threads = 1; threads <= test_device_threads(); threads++) {
        tt_linear_form forms[] = {train_form(2, 2, 5), train_form(3, 2, 4), train_form(1, 1, 7),
                                  train_form(4, 3, 2)};
        for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
            check_form(threads, &forms[i]);
        }
    }
}

/* --- neighbours ------------------------------------------------------------------------------ */

enum { MAPS = 3 };

/* One product for all three maps is the same as three products. */
static void check_joint(const tt_linear maps[MAPS], tt_device *device)
{
    int64_t width = 0, column[MAPS];
    for (int i = 0; i < MAPS; i++) {
        column[i] = width;
        width += maps[i].rank;
    }
    ops_test_matrix x = ops_test_random(device, ROWS, INPUTS, 1, 1.0, 1);
    ops_test_matrix joint = ops_test_fill(device, ROWS, width, 2, NAN);
    ops_test_matrix du = ops_test_random(device, ROWS, width, 1, 1.0, 2);
    ops_test_matrix dx = ops_test_random(device, ROWS, INPUTS, 3, 1.0, 3);
    ops_test_matrix expected_dx = ops_test_random(device, ROWS, INPUTS, 0, 1.0, 3);
    double *d_a[MAPS];
    tt_linear_contract(&maps[0], &maps[MAPS - 1], x.view, joint.view);
    double *found = ops_test_read(&joint);
    for (int i = 0; i < MAPS; i++) {
        ops_test_matrix u = ops_test_fill(device, ROWS, maps[i].rank, 0, NAN);
        tt_matrix du_columns = tt_matrix_columns(du.view, column[i], maps[i].rank);
        tt_matrix gradient = tt_linear_train(&maps[i])->a_gradient;
        tt_linear_contract(&maps[i], &maps[i], x.view, u.view);
        tt_linear_contract_backward(&maps[i], &maps[i], x.view, du_columns, 1.0f, expected_dx.view);
        double *alone = ops_test_read(&u);
        d_a[i] = test_read_matrix(device, gradient);
        for (int64_t j = 0; j < ROWS * maps[i].rank; j++) {
            int64_t row = j / maps[i].rank, place_in_row = j % maps[i].rank;
            assert_true(fabs(found[row * width + column[i] + place_in_row] - alone[j]) <=
                        test_device_tolerance() * (1.0 + fabs(alone[j])));
        }
        free(alone);
        ops_test_free(&u);
    }
    tt_linear_contract_backward(&maps[0], &maps[MAPS - 1], x.view, du.view, 1.0f, dx.view);
    double *dx_values = ops_test_read(&expected_dx);
    ops_test_expect("dx of all at once", &dx, dx_values);
    for (int i = 0; i < MAPS; i++) {
        double *twice = test_read_matrix(device, tt_linear_train(&maps[i])->a_gradient);
        for (int64_t j = 0; j < INPUTS * maps[i].rank; j++) {
            assert_true(fabs(twice[j] - 2.0 * d_a[i][j]) <
                        test_device_tolerance() * (1.0 + fabs(twice[j])));
        }
        free(twice);
        free(d_a[i]);
    }
    free(found);
    free(dx_values);
    ops_test_free(&x);
    ops_test_free(&joint);
    ops_test_free(&du);
    ops_test_free(&dx);
    ops_test_free(&expected_dx);
}

static void test_neighbours(void **state)
{
    (void)state;
    tt_linear_form forms[MAPS] = {train_form(2, 2, 5), train_form(3, 2, 3), train_form(1, 1, 7)};
    fixture f;
    tt_linear maps[MAPS];
    begin(&f, 2);
    add(&f, &maps[0], "query", &forms[0], NULL);
    add(&f, &maps[1], "key", &forms[1], &maps[0]);
    add(&f, &maps[2], "value", &forms[2], &maps[1]);
    allocate(&f);
    for (int i = 0; i < MAPS; i++) {
        tt_linear_initialize(&maps[i], 0.3f, 5);
    }
    begin_step(&f);
    check_joint(maps, f.device);
    for (int i = 0; i < MAPS; i++) {
        begin_step(&f);
        operands o = make_operands(f.device, &maps[i], 10);
        check_forward(&maps[i], &o);
        check_backward(&maps[i], &o);
        free_operands(&o);
    }
    end(&f);
}

/* A tensor train next to a dense map shares nothing with it. */
static void test_dense_neighbour(void **state)
{
    (void)state;
    tt_linear_form dense = {.form = TT_DENSE}, form = train_form(2, 2, 5);
    fixture f;
    tt_linear first, second;
    begin(&f, 1);
    add(&f, &first, "first", &dense, NULL);
    add(&f, &second, "second", &form, &first);
    allocate(&f);
    tt_linear_initialize(&second, 0.3f, 5);
    begin_step(&f);
    assert_int_equal(tt_linear_train(&second)->a.stride, second.rank);
    operands o = make_operands(f.device, &second, 1);
    check_forward(&second, &o);
    free_operands(&o);
    end(&f);
}

/* --- parameters ------------------------------------------------------------------------------ */

static double mean_square(const double *values, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += values[i] * values[i] / (double)count;
    }
    return sum;
}

static void test_parameters(void **state)
{
    (void)state;
    tt_linear_form dense_form = {.form = TT_DENSE}, form = train_form(2, 2, 5);
    fixture f;
    tt_linear dense, train;
    begin(&f, 1);
    add(&f, &dense, "dense", &dense_form, NULL);
    add(&f, &train, "train", &form, NULL);
    allocate(&f);
    static const char *const names[] = {"dense.weight", "dense.bias",
                                        "train.core_1", "train.rank_diagonal_1",
                                        "train.core_2", "train.rank_diagonal_2",
                                        "train.core_3", "train.rank_diagonal_3",
                                        "train.core_4", "train.bias"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_true(tt_parameters_find(&f.parameters, names[i]) >= 0);
    }
    assert_int_equal(f.parameters.count, sizeof names / sizeof names[0]);
    const tt_parameter *weight = &f.parameters.items[dense.weight];
    assert_int_equal(weight->shape[0], OUTPUTS);
    assert_int_equal(weight->shape[1], INPUTS);
    assert_true(weight->decays);
    assert_false(f.parameters.items[dense.bias].decays);
    assert_false(f.parameters.items[train.bias].decays);
    assert_int_equal(f.parameters.items[train.bias].group, TT_GROUP_DENSE);
    assert_int_equal(tt_linear_dense_size(&dense), ENTRIES + OUTPUTS);
    assert_int_equal(tt_linear_dense_size(&train), ENTRIES + OUTPUTS);
    assert_int_equal(tt_linear_size(&dense), ENTRIES + OUTPUTS);
    assert_int_equal(tt_linear_size(&train), tt_train_size(&form.shape) + OUTPUTS);
    assert_int_equal(tt_parameters_size(&f.parameters),
                     tt_linear_size(&dense) + tt_linear_size(&train));
    assert_int_equal(dense.rank, 0);
    assert_int_equal(train.rank, 5);
    end(&f);
}

static void test_initial_values(void **state)
{
    (void)state;
    tt_linear_form forms[] = {{.form = TT_DENSE}, train_form(2, 2, 5)};
    for (int i = 0; i < 2; i++) {
        fixture f;
        tt_linear linear;
        double sum = 0.0;
        begin(&f, 1);
        add(&f, &linear, "map", &forms[i], NULL);
        allocate(&f);
        for (uint64_t seed = 0; seed < 40; seed++) {
            tt_parameters_fill(&f.parameters, linear.bias, 3.0f);
            tt_linear_initialize(&linear, 0.25f, seed);
            begin_step(&f);
            double *matrix = matrix_of(&linear);
            sum += mean_square(matrix, ENTRIES) / 40.0;
            free(matrix);
            double *bias = read_parameter(&linear, linear.bias, false);
            for (int64_t j = 0; j < OUTPUTS; j++) {
                assert_true(bias[j] == 0.0);
            }
            free(bias);
        }
        assert_true(fabs(sqrt(sum) / 0.25 - 1.0) < 0.15);
        end(&f);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    fixture f;
    tt_linear linear;
    tt_error error = {0};
    tt_linear_form form = train_form(2, 2, 5);
    begin(&f, 1);
    assert_int_equal(tt_linear_add(&linear, "layer.query", INPUTS + 1, OUTPUTS, &form, NULL,
                                   &f.parameters, &f.trains, &error),
                     TT_INVALID_INPUT);
    assert_string_equal(error.message,
                        "layer.query: input modes multiply to 24, expected the width 25");
    assert_int_equal(f.parameters.count, 0);
    add(&f, &linear, "map", &form, NULL);
    assert_int_equal(tt_linear_add(&linear, "map", INPUTS, OUTPUTS, &form, NULL, &f.parameters,
                                   &f.trains, &error),
                     TT_INVALID_INPUT);
    assert_string_equal(error.message, "parameter name map.core_1 is used twice");
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),      cmocka_unit_test(test_tensor_train),
        cmocka_unit_test(test_neighbours), cmocka_unit_test(test_dense_neighbour),
        cmocka_unit_test(test_parameters), cmocka_unit_test(test_initial_values),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "tests/reference/double_train.h"

#include "tests/reference/double_tensors.h"

#include <stdlib.h>
#include <string.h>

static int64_t mode_product(const tt_double_train *train, int first, int end)
{
    int64_t product = 1;
    for (int k = first; k < end; k++) {
        product *= train->modes[k];
    }
    return product;
}

int64_t tt_double_train_inputs(const tt_double_train *train)
{
    return mode_product(train, 0, train->input_order);
}

int64_t tt_double_train_outputs(const tt_double_train *train)
{
    return mode_product(train, train->input_order, train->order);
}

/* What entry j of diagonal k counts as. */
static double kept(const tt_double_train *train, int k, int64_t j)
{
    if (k == train->order - 1 || train->diagonals[k] == NULL) {
        return 1;
    }
    double entry = train->diagonals[k][j];
    return entry > train->threshold ? entry : 0;
}

/* Core k times its diagonal on the right. */
static double *scaled_core(const tt_double_train *train, int k)
{
    int64_t right = train->ranks[k + 1];
    int64_t rows = train->ranks[k] * train->modes[k];
    double *scaled = tt_double_array(rows * right);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < right; j++) {
            scaled[i * right + j] = train->cores[k][i * right + j] * kept(train, k, j);
        }
    }
    return scaled;
}

/* The scaled cores [first, end) multiplied out: [ranks[first], product of modes, ranks[end]]. None
 * at all is the identity. */
static double *chain(const tt_double_train *train, int first, int end)
{
    int64_t left = train->ranks[first];
    int64_t inner = left;
    int64_t rows = left;
    double *product = tt_double_array(left * left);
    for (int64_t i = 0; i < left; i++) {
        product[i * left + i] = 1;
    }
    for (int k = first; k < end; k++) {
        int64_t width = train->modes[k] * train->ranks[k + 1];
        double *core = scaled_core(train, k);
        double *next = tt_double_array(rows * width);
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t a = 0; a < inner; a++) {
                for (int64_t j = 0; j < width; j++) {
                    next[i * width + j] += product[i * inner + a] * core[a * width + j];
                }
            }
        }
        free(core);
        free(product);
        product = next;
        rows *= train->modes[k];
        inner = train->ranks[k + 1];
    }
    return product;
}

void tt_double_train_assemble(const tt_double_train *train, double *weight)
{
    double *product = chain(train, 0, train->order);
    memcpy(weight, product, (size_t)mode_product(train, 0, train->order) * sizeof(double));
    free(product);
}

/* d loss / d (scaled core k): the weight's gradient, seen as [before, modes[k], after], with the
 * chain before the core put in place of `before` and the chain after it in place of `after`. */
static double *scaled_gradient(const tt_double_train *train, int k, const double *weight_gradient)
{
    int64_t left = train->ranks[k];
    int64_t right = train->ranks[k + 1];
    int64_t before = mode_product(train, 0, k);
    int64_t after = mode_product(train, k + 1, train->order);
    int64_t width = train->modes[k] * after;
    double *left_chain = chain(train, 0, k);                 /* [before, left] */
    double *right_chain = chain(train, k + 1, train->order); /* [right, after] */
    double *half = tt_double_array(left * width);
    for (int64_t p = 0; p < before; p++) {
        for (int64_t a = 0; a < left; a++) {
            double factor = left_chain[p * left + a];
            for (int64_t j = 0; j < width; j++) {
                half[a * width + j] += factor * weight_gradient[p * width + j];
            }
        }
    }
    int64_t rows = left * train->modes[k];
    double *gradient = tt_double_array(rows * right);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t b = 0; b < right; b++) {
            double sum = 0;
            for (int64_t s = 0; s < after; s++) {
                sum += half[i * after + s] * right_chain[b * after + s];
            }
            gradient[i * right + b] = sum;
        }
    }
    free(left_chain);
    free(right_chain);
    free(half);
    return gradient;
}

void tt_double_train_gradient(const tt_double_train *train, const double *weight_gradient)
{
    for (int k = 0; k < train->order; k++) {
        double *gradient = scaled_gradient(train, k, weight_gradient);
        int64_t rows = train->ranks[k] * train->modes[k];
        int64_t right = train->ranks[k + 1];
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < right; j++) {
                double entry = kept(train, k, j);
                double change = gradient[i * right + j];
                train->core_gradients[k][i * right + j] += change * entry;
                if (train->diagonal_gradients[k] != NULL && k < train->order - 1 && entry != 0) {
                    train->diagonal_gradients[k][j] += change * train->cores[k][i * right + j];
                }
            }
        }
        free(gradient);
    }
}

/* A row of a tensor-train matrix is a train by itself, of the slices that the row's number selects.
 */
typedef struct {
    tt_double_train train;
    int64_t slice[TT_DOUBLE_ORDER];
    double *cores[TT_DOUBLE_ORDER], *gradients[TT_DOUBLE_ORDER];
} row_train;

/* Entry (a, j) of the slice lies at this place of core k; j counts columns and right ranks. */
static int64_t slice_place(const tt_double_train_matrix *matrix, int k, int64_t slice, int64_t a,
                           int64_t j)
{
    int64_t width = matrix->columns[k] * matrix->ranks[k + 1];
    return (a * matrix->rows[k] + slice) * width + j;
}

static void row_train_make(const tt_double_train_matrix *matrix, int64_t number, row_train *row)
{
    *row = (row_train){.train = {.order = matrix->order, .threshold = matrix->threshold}};
    for (int k = matrix->order - 1; k >= 0; k--) {
        row->slice[k] = number % matrix->rows[k];
        number /= matrix->rows[k];
    }
    for (int k = 0; k < matrix->order; k++) {
        int64_t width = matrix->columns[k] * matrix->ranks[k + 1];
        row->cores[k] = tt_double_array(matrix->ranks[k] * width);
        row->gradients[k] = tt_double_array(matrix->ranks[k] * width);
        for (int64_t a = 0; a < matrix->ranks[k]; a++) {
            for (int64_t j = 0; j < width; j++) {
                row->cores[k][a * width + j] =
                    matrix->cores[k][slice_place(matrix, k, row->slice[k], a, j)];
            }
        }
        row->train.modes[k] = matrix->columns[k];
        row->train.ranks[k] = matrix->ranks[k];
        row->train.cores[k] = row->cores[k];
        row->train.core_gradients[k] = row->gradients[k];
        row->train.diagonals[k] = matrix->diagonals[k];
        row->train.diagonal_gradients[k] = matrix->diagonal_gradients[k];
    }
    row->train.ranks[matrix->order] = matrix->ranks[matrix->order];
}

static void row_train_free(row_train *row)
{
    for (int k = 0; k < row->train.order; k++) {
        free(row->cores[k]);
        free(row->gradients[k]);
    }
}

int64_t tt_double_train_matrix_width(const tt_double_train_matrix *matrix)
{
    int64_t width = 1;
    for (int k = 0; k < matrix->order; k++) {
        width *= matrix->columns[k];
    }
    return width;
}

void tt_double_train_matrix_row(const tt_double_train_matrix *matrix, int64_t number, double *row)
{
    row_train slices;
    row_train_make(matrix, number, &slices);
    tt_double_train_assemble(&slices.train, row);
    row_train_free(&slices);
}

void tt_double_train_matrix_gradient(const tt_double_train_matrix *matrix, int64_t number,
                                     const double *row_gradient)
{
    row_train slices;
    row_train_make(matrix, number, &slices);
    tt_double_train_gradient(&slices.train, row_gradient);
    for (int k = 0; k < matrix->order; k++) {
        int64_t width = matrix->columns[k] * matrix->ranks[k + 1];
        for (int64_t a = 0; a < matrix->ranks[k]; a++) {
            for (int64_t j = 0; j < width; j++) {
                matrix->core_gradients[k][slice_place(matrix, k, slices.slice[k], a, j)] +=
                    slices.gradients[k][a * width + j];
            }
        }
    }
    row_train_free(&slices);
}

#include "core/tensor_train_svd.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Singular values below this share of the largest are rounding. */
static const double negligible = 1e-7;

static double dot(const double *x, const double *y, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

static void rotate(double *x, double *y, int64_t count, double cosine, double sine)
{
    for (int64_t i = 0; i < count; i++) {
        double first = x[i], second = y[i];
        x[i] = cosine * first - sine * second;
        y[i] = sine * first + cosine * second;
    }
}

/* Makes two rows orthogonal; false where they are already. */
static bool orthogonalize(double *x, double *y, int64_t columns, double *turn_x, double *turn_y,
                          int64_t rows)
{
    double xx = dot(x, x, columns), yy = dot(y, y, columns), xy = dot(x, y, columns);
    if (fabs(xy) <= DBL_EPSILON * sqrt(xx) * sqrt(yy) || xy == 0.0) {
        return false;
    }
    double ratio = (yy - xx) / (2.0 * xy);
    double tangent = copysign(1.0, ratio) / (fabs(ratio) + hypot(1.0, ratio));
    double cosine = 1.0 / hypot(1.0, tangent);
    rotate(x, y, columns, cosine, cosine * tangent);
    rotate(turn_x, turn_y, rows, cosine, cosine * tangent);
    return true;
}

/* One-sided Jacobi (Hestenes 1958) on the rows of `matrix` [rows, columns]: afterwards they are
 * orthogonal, and row i of `turns` [rows, rows] says of which old rows the new row i is made. */
static void make_rows_orthogonal(double *matrix, double *turns, int64_t rows, int64_t columns)
{
    enum { SWEEPS = 40 };
    memset(turns, 0, (size_t)(rows * rows) * sizeof *turns);
    for (int64_t i = 0; i < rows; i++) {
        turns[i * rows + i] = 1.0;
    }
    bool turned = true;
    for (int sweep = 0; turned && sweep < SWEEPS; sweep++) {
        turned = false;
        for (int64_t i = 0; i + 1 < rows; i++) {
            for (int64_t j = i + 1; j < rows; j++) {
                turned |= orthogonalize(matrix + i * columns, matrix + j * columns, columns,
                                        turns + i * rows, turns + j * rows, rows);
            }
        }
    }
}

typedef struct {
    double norm;
    int64_t row;
} singular_value;

static int falling(const void *first, const void *second)
{
    const singular_value *a = first, *b = second;
    return a->norm != b->norm ? (a->norm < b->norm ? 1 : -1) : (a->row > b->row ? 1 : -1);
}

/* Splits `rest` [rows, columns], which it spoils, into core [rows, rank] and next [rank, columns],
 * the singular values shared between both; returns the squared norm of what is cut. */
static double split(double *rest, int64_t rows, int64_t columns, int64_t limit, double *turns,
                    singular_value *values, double *core, double *next, int64_t *rank)
{
    make_rows_orthogonal(rest, turns, rows, columns);
    for (int64_t i = 0; i < rows; i++) {
        const double *row = rest + i * columns;
        values[i] = (singular_value){sqrt(dot(row, row, columns)), i};
    }
    qsort(values, (size_t)rows, sizeof *values, falling);
    int64_t kept = 0;
    while (kept < rows && kept < limit && values[kept].norm > negligible * values[0].norm) {
        kept++;
    }
    *rank = kept > 0 ? kept : 1;
    double cut = 0.0;
    for (int64_t i = *rank; i < rows; i++) {
        cut += values[i].norm * values[i].norm;
    }
    for (int64_t k = 0; k < *rank; k++) {
        double share = sqrt(values[k].norm);
        for (int64_t i = 0; i < rows; i++) {
            core[i * *rank + k] = share * turns[values[k].row * rows + i];
        }
        for (int64_t j = 0; j < columns; j++) {
            double value = rest[values[k].row * columns + j];
            next[k * columns + j] = share > 0.0 ? value / share : 0.0;
        }
    }
    return cut;
}

/* One core and what is left for the cores behind it. */
static tt_status take_core(double **rest, int64_t rows, int64_t columns, int64_t limit,
                           double **core, int64_t *rank, double *cut, tt_error *error)
{
    double *turns = malloc((size_t)(rows * rows) * sizeof *turns);
    singular_value *values = malloc((size_t)rows * sizeof *values);
    double *next = malloc((size_t)(rows * columns) * sizeof *next);
    *core = malloc((size_t)(rows * rows) * sizeof **core);
    tt_status status = TT_OK;
    if (turns && values && next && *core) {
        *cut += split(*rest, rows, columns, limit, turns, values, *core, next, rank);
        double *spent = *rest;
        *rest = next;
        next = spent;
    } else {
        status =
            tt_error_set(error, TT_OUT_OF_MEMORY, "no memory to make a tensor train of a matrix");
    }
    free(turns);
    free(values);
    free(next);
    return status;
}

tt_status tt_train_from_matrix(const tt_train_shape *shape, const double *matrix,
                               tt_train_shape *fitted, double *cores[TT_MAX_ORDER],
                               double *relative_error, tt_error *error)
{
    *fitted = *shape;
    memset(cores, 0, TT_MAX_ORDER * sizeof *cores);
    int64_t count = tt_train_inputs(shape) * tt_train_outputs(shape);
    double norm = dot(matrix, matrix, count), cut = 0.0;
    double *rest = malloc((size_t)count * sizeof *rest);
    if (!rest) {
        return tt_error_set(error, TT_OUT_OF_MEMORY,
                            "no memory to make a tensor train of a matrix");
    }
    memcpy(rest, matrix, (size_t)count * sizeof *rest);
    tt_status status = TT_OK;
    int64_t columns = count;
    for (int k = 0; status == TT_OK && k + 1 < shape->order; k++) {
        columns /= shape->modes[k];
        status = take_core(&rest, fitted->ranks[k] * shape->modes[k], columns, shape->ranks[k + 1],
                           &cores[k], &fitted->ranks[k + 1], &cut, error);
    }
    if (status == TT_OK) {
        cores[shape->order - 1] = rest;
    } else {
        free(rest);
    }
    *relative_error = norm > 0.0 ? sqrt(cut / norm) : 0.0;
    return status;
}

/* Core k of the train with the fitted core in its corner. */
static tt_status put_core(const tt_train_set *set, const tt_train *train, int k,
                          const tt_train_shape *fitted, const double *core, tt_error *error)
{
    const tt_train_shape *shape = &train->shape;
    int64_t rows = shape->ranks[k], mode = shape->modes[k], columns = shape->ranks[k + 1];
    int64_t front_rows = fitted->ranks[k], front_columns = fitted->ranks[k + 1];
    size_t bytes = tt_floats(rows * mode * columns);
    float *values = malloc(bytes);
    if (!values) {
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for a core");
    }
    tt_device *device = set->parameters->device;
    float *target = tt_parameters_value(set->parameters, train->cores[k]);
    device->copy_out(device, values, target, bytes);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t n = 0; n < mode; n++) {
            for (int64_t j = 0; j < columns; j++) {
                bool in_front = i < front_rows && j < front_columns;
                /* The outer links have one slice, which both parts share. */
                bool joins =
                    (k > 0 && i < front_rows) || (k + 1 < shape->order && j < front_columns);
                float *value = &values[(i * mode + n) * columns + j];
                if (in_front) {
                    *value = (float)core[(i * mode + n) * front_columns + j];
                } else if (joins) {
                    *value = 0.0f;
                }
            }
        }
    }
    device->copy_in(device, target, values, bytes);
    free(values);
    return TT_OK;
}

tt_status tt_train_put_in_front(const tt_train_set *set, int index, const double *matrix,
                                double *relative_error, tt_error *error)
{
    const tt_train *train = &set->trains[index];
    tt_train_shape fitted;
    double *cores[TT_MAX_ORDER];
    tt_status status =
        tt_train_from_matrix(&train->shape, matrix, &fitted, cores, relative_error, error);
    for (int k = 0; status == TT_OK && k < TT_MAX_ORDER && cores[k]; k++) {
        status = put_core(set, train, k, &fitted, cores[k], error);
    }
    for (int k = 0; k < TT_MAX_ORDER; k++) {
        free(cores[k]);
    }
    return status;
}

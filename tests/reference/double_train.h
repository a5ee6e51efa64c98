/* Tensor trains in double precision, by the plainest route: the dense matrix is assembled, and a
 * core's gradient is the dense matrix's gradient contracted with everything left and right of that
 * core. The product never assembles the matrix, so the two share no intermediate result. */
#ifndef TT_TESTS_DOUBLE_TRAIN_H
#define TT_TESTS_DOUBLE_TRAIN_H

#include <stdint.h>

enum { TT_DOUBLE_ORDER = 16 };

/* Core k has shape (ranks[k], modes[k], ranks[k + 1]), k from 0; diagonal k of length ranks[k + 1]
 * follows core k. Entries of a diagonal at or below the threshold count as zero. */
typedef struct {
    int order;
    int input_order; /* the first cores, which carry the rows of the matrix */
    int64_t modes[TT_DOUBLE_ORDER], ranks[TT_DOUBLE_ORDER + 1];
    double threshold;
    const double *cores[TT_DOUBLE_ORDER];
    const double *diagonals[TT_DOUBLE_ORDER]; /* NULL: all ones */
    double *core_gradients[TT_DOUBLE_ORDER];
    double *diagonal_gradients[TT_DOUBLE_ORDER]; /* NULL where diagonals are */
} tt_double_train;

int64_t tt_double_train_inputs(const tt_double_train *train);
int64_t tt_double_train_outputs(const tt_double_train *train);
/* weight [inputs, outputs] = the matrix. */
void tt_double_train_assemble(const tt_double_train *train, double *weight);
/* Adds to the gradients of cores and diagonals what the matrix's gradient [inputs, outputs] says;
 * pruned diagonal entries get nothing. */
void tt_double_train_gradient(const tt_double_train *train, const double *weight_gradient);

/* A tensor-train matrix: core k has shape (ranks[k], rows[k], columns[k], ranks[k + 1]). Row number
 * i of the matrix takes slice i_k of each core, i = ((i_0 rows_1) + i_1) rows_2 + ... . Diagonals
 * as above. */
typedef struct {
    int order;
    int64_t rows[TT_DOUBLE_ORDER], columns[TT_DOUBLE_ORDER], ranks[TT_DOUBLE_ORDER + 1];
    double threshold;
    const double *cores[TT_DOUBLE_ORDER];
    const double *diagonals[TT_DOUBLE_ORDER]; /* NULL: all ones */
    double *core_gradients[TT_DOUBLE_ORDER];
    double *diagonal_gradients[TT_DOUBLE_ORDER]; /* NULL where diagonals are */
} tt_double_train_matrix;

/* Product of the column sizes: the length of a row. */
int64_t tt_double_train_matrix_width(const tt_double_train_matrix *matrix);
/* One row of the matrix, and adding to the gradients what the row's gradient says. */
void tt_double_train_matrix_row(const tt_double_train_matrix *matrix, int64_t number, double *row);
void tt_double_train_matrix_gradient(const tt_double_train_matrix *matrix, int64_t number,
                                     const double *row_gradient);

#endif

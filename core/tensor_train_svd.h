/* From a matrix to a tensor train: TT-SVD (Oseledets 2011, algorithm 1), unfolding by unfolding. */
#ifndef TT_CORE_TENSOR_TRAIN_SVD_H
#define TT_CORE_TENSOR_TRAIN_SVD_H

#include "core/tensor_train.h"

/* The cores of `matrix` [N_in, N_out], each rank cut to what the matrix has and to what `shape`
 * allows; the best cores for an exact fit, and within sqrt(order - 1) of the best where ranks are
 * cut. `fitted` gets the ranks; cores[k], [r_{k-1}, n_k, r_k] of `fitted`, are the caller's to free
 * with free(), also after a failure. `relative_error`: of the Frobenius norm. */
tt_status tt_train_from_matrix(const tt_train_shape *shape, const double *matrix,
                               tt_train_shape *fitted, double *cores[TT_MAX_ORDER],
                               double *relative_error, tt_error *error);

/* Puts `matrix` in front of what the train was drawn as: the first slices of every core become
 * those of the matrix, the slices behind keep what they hold, and nothing joins the two. So the map
 * becomes the matrix plus a drawn rest of lower rank. The diagonals must be 1. `relative_error`: of
 * the matrix in the Frobenius norm, where the train's ranks cannot hold all of it. Fails for want
 * of memory alone. */
tt_status tt_train_put_in_front(const tt_train_set *set, int index, const double *matrix,
                                double *relative_error, tt_error *error);

#endif

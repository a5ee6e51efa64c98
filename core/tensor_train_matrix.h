/* Tables of rows stored as tensor-train matrices: embeddings.
 *
 * A table of `vocabulary` rows of `width` numbers has cores G_k of shape [r_{k-1}, v_k, h_k, r_k],
 * k = 1..m, with vocabulary <= v_1...v_m and width = h_1...h_m, and a rank diagonal on each inner
 * link. Row number i = (i_1, ..., i_m), the last digit the fastest, is the product of the slices
 * i_k of the scaled cores, and so for its columns.
 *
 * It is the tensor train of modes n_k = v_k h_k, and is kept as one: a train of the model's
 * tt_train_set, whose factors A and B are all products of the first d cores and of the others,
 * which do not depend on the data. Ordered by rows they are P [v_1...v_d, h_1...h_d, r_d] and Q
 * [v_{d+1}...v_m, r_d, h_{d+1}...h_m]: neighbouring cores contracted once a step (CoMERA, section
 * 4.1). A row of the table is one product of a slice of P with a slice of Q; a batch needs those of
 * its distinct ids alone.
 *
 * In a step: tt_train_set_materialise, tt_train_matrix_materialise; for each micro-batch look_up
 * and look_up_backward, and what is done with the assembled table; tt_train_matrix_contract,
 * tt_train_set_contract. */
#ifndef TT_CORE_TENSOR_TRAIN_MATRIX_H
#define TT_CORE_TENSOR_TRAIN_MATRIX_H

#include "core/tensor_train.h"

typedef struct {
    int order;                                         /* m: 2..TT_MAX_ORDER */
    int64_t rows[TT_MAX_ORDER], columns[TT_MAX_ORDER]; /* v_1..v_m, h_1..h_m */
    int64_t ranks[TT_MAX_ORDER + 1];                   /* r_0..r_m */
} tt_train_matrix_shape;

/* The tensor train that it is: modes v_k h_k, cut where both factors together are smallest. */
tt_train_shape tt_train_matrix_train(const tt_train_matrix_shape *shape);

/* Checks that the row modes multiply to at least `vocabulary` (and to what an int32 holds), the
 * column modes to `width`, and that ranks are as in tt_train_shape_check. */
tt_status tt_train_matrix_shape_check(const tt_train_matrix_shape *shape, int64_t vocabulary,
                                      int64_t width, const char *name, tt_error *error);

/* Chooses `order` column modes from the factors of `width`, row modes as near to each other as they
 * come, with few rows to spare, and every inner rank min(rank, what the unfolding allows). */
tt_status tt_train_matrix_shape_choose(int64_t vocabulary, int64_t width, int order, int64_t rank,
                                       tt_train_matrix_shape *shape, tt_error *error);

typedef struct {
    tt_train_matrix_shape shape; /* of a removed table, with its inner ranks 0 */
    int64_t vocabulary, width;
    bool removed; /* the table of shapes has a link of rank 0: the table is 0 and learns nothing */
    tt_train_set *trains;
    int train;                  /* its number; -1 when removed */
    tt_slice_products products; /* P and Q with their gradients */
    float *left, *right;        /* P and Q */
    struct tt_train_matrix_plan *plan;
} tt_train_matrix;

/* Registers the parameters "<name>.core_<k>" and "<name>.rank_diagonal_<k>" through `trains`. Where
 * trains->shapes names the table, its ranks are those of that shape. */
tt_status tt_train_matrix_add(tt_train_matrix *matrix, const char *name,
                              const tt_train_matrix_shape *shape, int64_t vocabulary, int64_t width,
                              tt_train_set *trains, tt_error *error);
/* Draws the cores so that an entry of the table has standard deviation `deviation`. */
void tt_train_matrix_initialize(const tt_train_matrix *matrix, float deviation, uint64_t seed);

/* Allocates P and Q, and where `assembled` the whole table and its gradient. After
 * tt_train_set_plan. */
tt_status tt_train_matrix_plan(tt_train_matrix *matrix, bool assembled, tt_error *error);
void tt_train_matrix_free(tt_train_matrix *matrix);
/* Memory of the plan. */
size_t tt_train_matrix_bytes(const tt_train_matrix *matrix);

/* Numbers learnt, those of the dense table, and multiplications that a row takes. */
int64_t tt_train_matrix_size(const tt_train_matrix_shape *shape);
int64_t tt_train_matrix_row_work(const tt_train_matrix_shape *shape);

/* P, Q and, where planned, the table, from the train's factors; their gradients become 0. */
void tt_train_matrix_materialise(tt_train_matrix *matrix);
/* Gives the gradients of P, Q and the table to the train's factors. */
void tt_train_matrix_contract(tt_train_matrix *matrix);

/* Where a lookup of up to `tokens` ids leaves its rows. */
typedef struct {
    int32_t *distinct; /* [min(tokens, vocabulary)] */
    int32_t *places;   /* [tokens]: the row in `rows` of each id */
    float *rows;       /* [min(tokens, vocabulary), width]; the backward pass: their gradients */
    void *workspace;   /* of tt_train_matrix_workspace */
} tt_train_matrix_room;

int64_t tt_train_matrix_room_rows(const tt_train_matrix *matrix, int64_t tokens);
size_t tt_train_matrix_workspace(const tt_train_matrix *matrix, int64_t tokens);

/* Finds the distinct ids and makes their rows. */
void tt_train_matrix_look_up(const tt_train_matrix *matrix, const int32_t *ids, int64_t tokens,
                             const tt_train_matrix_room *room);
/* Adds to the gradients of P and Q; room->rows holds the rows' gradients, the rest is as look_up
 * left it. */
void tt_train_matrix_look_up_backward(const tt_train_matrix *matrix, int64_t tokens,
                                      const tt_train_matrix_room *room);

/* The table [vocabulary, width] in the device's compute type, and its gradient in f32, to which
 * micro-batches add. */
tt_matrix tt_train_matrix_table(const tt_train_matrix *matrix);
tt_matrix tt_train_matrix_table_gradient(const tt_train_matrix *matrix);

#endif

/* Linear maps stored as tensor trains.
 *
 * A map with N_in = n_1...n_d inputs and N_out = n_{d+1}...n_m outputs has cores G_k of shape
 * [r_{k-1}, n_k, r_k], r_0 = r_m = 1, and a diagonal D_k of length r_k on each inner link, k
 * = 1..m-1. Entries of a diagonal at or below the threshold count as zero. With scaled cores H_k =
 * G_k diag(D_k) (H_m = G_m):
 *
 *     input factor  A = H_1 ... H_d      [N_in, r_d]
 *     output factor B = H_{d+1} ... H_m  [r_d, N_out]       the map is  x -> x A B
 *
 * (CoMERA, section 4.2: one contraction order for both passes.) The number of cores m is free, from
 * two up, and so is the cut d.
 *
 * A and B do not depend on the data. So a tt_train_set holds all trains of a model, builds all A
 * and B once an optimizer step (materialise), lets every micro-batch add to dA and dB, and takes
 * the chain rule into cores and diagonals once a step (contract). Products of the same depth in all
 * trains are one grouped product: the number of device calls does not grow with the number of
 * trains. */
#ifndef TT_CORE_TENSOR_TRAIN_H
#define TT_CORE_TENSOR_TRAIN_H

#include "core/ops.h"
#include "core/parameters.h"

enum { TT_MAX_ORDER = 16 };

typedef struct {
    int order;                       /* m: number of cores, 2..TT_MAX_ORDER */
    int input_order;                 /* d: the first d cores carry input modes, 1..m-1 */
    int64_t modes[TT_MAX_ORDER];     /* n_1..n_m */
    int64_t ranks[TT_MAX_ORDER + 1]; /* r_0..r_m */
} tt_train_shape;

/* The shape of a map or table of that name: what training has left of it. */
typedef struct {
    char name[128];
    tt_train_shape shape;
} tt_layer_shape;

typedef struct {
    tt_layer_shape *items;
    int count;
} tt_layer_shapes;

/* NULL when the table (which may be NULL) does not name it. */
const tt_train_shape *tt_layer_shapes_find(const tt_layer_shapes *shapes, const char *name);

/* A train with a link of rank 0 is the map 0: it is removed, and of the map its bias remains. */
bool tt_train_is_removed(const tt_train_shape *shape);

/* Checks order, modes (products equal to inputs and outputs) and ranks: r_0 = r_m = 1, and each
 * inner rank between 1 and what the unfolding at its link allows, min(n_1...n_k, n_{k+1}...n_m).
 * `name` begins the error. */
tt_status tt_train_shape_check(const tt_train_shape *shape, int64_t inputs, int64_t outputs,
                               const char *name, tt_error *error);

/* Chooses modes as near to equal as the factors of `inputs` and `outputs` allow, `input_order` and
 * `output_order` of them, large ones outside, and every inner rank min(rank, what the unfolding
 * allows). Fails when a size has fewer factors above 1 than modes asked for (a prime, for one). */
tt_status tt_train_shape_choose(int64_t inputs, int64_t outputs, int input_order, int output_order,
                                int64_t rank, tt_train_shape *shape, tt_error *error);

/* The largest uniform rank with which the map is at least `compression` times smaller than the
 * dense one; at least 1. */
int64_t tt_train_rank_for_compression(const tt_train_shape *modes, double compression);

/* The largest rank that link k (1..m-1) may have. */
int64_t tt_train_rank_limit(const tt_train_shape *shape, int link);
int64_t tt_train_inputs(const tt_train_shape *shape);
int64_t tt_train_outputs(const tt_train_shape *shape);
/* Entries in the cores, and with the diagonals. */
int64_t tt_train_core_size(const tt_train_shape *shape);
int64_t tt_train_size(const tt_train_shape *shape);

typedef struct {
    tt_train_shape shape;
    tt_parameter_id cores[TT_MAX_ORDER];         /* core k at k - 1 */
    tt_parameter_id diagonals[TT_MAX_ORDER - 1]; /* D_k at k - 1 */
    int needs[TT_MOST_NEEDS], need_count;        /* see tt_train_set_need */

    /* Set by plan. Row r_d of `b` and `b_gradient` is room for the map's bias, so that [U, 1] times
     * the r_d + 1 rows is the map with its bias; the views below have r_d rows. */
    tt_matrix a, b;                   /* [N_in, r_d] (maybe strided), [r_d, N_out] */
    tt_matrix rounded_a, rounded_b;   /* the same in the device's compute type: what activations are
                                         multiplied with; a and b themselves where that is f32 */
    tt_matrix a_gradient, b_gradient; /* f32: micro-batches add to these */
} tt_train;

typedef struct tt_train_set {
    tt_parameters *parameters;
    float threshold;
    const tt_layer_shapes *shapes; /* of maps that have been adapted, for what is added; or NULL */
    tt_train *trains;
    int count, capacity;
    struct tt_train_plan *plan;
} tt_train_set;

void tt_train_set_init(tt_train_set *set, tt_parameters *parameters, float threshold);

/* Registers the parameters "<name>.core_<k>" and "<name>.rank_diagonal_<k>" (k from 1) and returns
 * the train's number. `neighbour`: -1, or the train just added before, whose input is the same, so
 * that both A lie side by side in one matrix (Q, K, V). */
tt_status tt_train_set_add(tt_train_set *set, const char *name, const tt_train_shape *shape,
                           int neighbour, int *index, tt_error *error);

/* Train `index` serves train `needed` alone: with the first such that is removed it goes too, and
 * counts no more. What `needed` needs has to be named as well. */
void tt_train_set_need(tt_train_set *set, int index, int needed);

/* Draws the cores so that an entry of the assembled matrix has standard deviation `deviation`, and
 * sets the diagonals to 1. The parameters must be allocated. */
void tt_train_initialize(const tt_train_set *set, int index, float deviation, uint64_t seed);

/* Allocates factors and intermediate products and lists all products. After parameters_allocate. */
tt_status tt_train_set_plan(tt_train_set *set, tt_error *error);
void tt_train_set_free(tt_train_set *set);
/* Memory of the plan. */
size_t tt_train_set_bytes(const tt_train_set *set);

/* What one materialise and one contract of a planned set give to the device. */
typedef struct {
    int calls;   /* operations, whatever the number of trains; a train's order decides */
    int singles; /* were the trains done one after the other: a train's cores scaled in one, every
                    product one, both directions; copies not counted, which that would not need */
} tt_train_work;

tt_train_work tt_train_set_work(const tt_train_set *set);

/* The rounded A (or the dA) of trains first..last, added as neighbours, as one matrix
 * [N_in, sum of r_d]. */
tt_matrix tt_train_set_input_factors(const tt_train_set *set, int first, int last);
tt_matrix tt_train_set_input_gradients(const tt_train_set *set, int first, int last);

/* Builds every A and B from cores and diagonals, and sets every dA and dB to zero. */
void tt_train_set_materialise(tt_train_set *set);
/* Adds to the gradients of cores and diagonals what dA and dB say. */
void tt_train_set_contract(tt_train_set *set);

#endif

/* Ranks that adapt: what a step minimises besides its loss so that the model gets smaller.
 *
 * A ranked tensor has cores G_k of mode sizes n_k, k = 1..m, and on each inner link a diagonal D_k
 * whose entries above the threshold are kept; all others are zero for good. Over all of a model's
 * ranked tensors, with |D|_0 the number and |D|_1 the sum of kept entries and |D_0| = |D_m| = 1,
 *
 *     size          S  = sum |D_{k-1}|_0 n_k |D_k|_0     core entries that are left
 *     relaxed size  S^ = sum |D_{k-1}|_1 n_k |D_k|_1     its differentiable stand-in
 *     mean          p  = mean of the kept entries        (their number has no gradient)
 *     squares       |G|^2 over the core entries that are left
 *
 * A tensor that has lost all entries of a link is removed, and so are those that served it alone
 * (tt_train_set_need): they count nothing in any of them. L is the loss, averaged over the whole
 * step and all ranks. A stage minimises
 *
 *                paper                                         reference (the official code)
 *     early      L + gamma s^ + beta |G|^2                     L + gamma p + beta |G|^2
 *     late       max{w1 (L - L0), w2 (s - s0)}                 rho L + gamma p + beta |G|^2
 *                + rho (L + s^) + beta |G|^2                   + (w2 p where (L-L0)/L < (S-S0)/S,
 *                                                                 w1 L elsewhere)
 *
 * where the size term, when it is the larger one, has the gradient of w2 s^. Which branch is taken
 * is decided on the device.
 *
 * Units. S, S^, the target S0 and `unit` are core entries. Small letters are the same divided by
 * `unit`, the S with which the stage began: there s is 1, and s0 is the ratio asked for. So gamma,
 * rho and w2 weigh losses against fractions of the model, whatever its size. beta is per squared
 * entry.
 *
 * A late stage that stops at its target prunes no further than that: as long as it lasts, updates
 * hold entries just above the threshold (tt_step_state.holds), and the objective sets held ones to
 * 0, at most one a link and step, until S is at S0; then it takes the loss's branch, and s^ and p
 * have no gradient. A link's last entry, with which its tensor goes, stays where S would be below
 * S0 without. So links that come down together shrink evenly, and S ends less than one slice below
 * S0, where steps of no stage that follow leave it (settings with no stage that stop at the target
 * hold, and do nothing else). A stage that does not stop is the formula to the letter. */
#ifndef TT_CORE_RANK_H
#define TT_CORE_RANK_H

#include "core/tensor_train.h"

typedef struct tt_rank_objective tt_rank_objective;

/* For all tensor trains of a set (tensor-train matrices are trains of modes v_k h_k). The set and
 * its parameters, allocated with moments, outlive the objective; a set without trains is fine. */
tt_status tt_rank_objective_create(const tt_train_set *trains, tt_rank_objective **objective,
                                   tt_error *error);
/* Sets the pointer to NULL; NULL is fine. */
void tt_rank_objective_destroy(tt_rank_objective **objective);

/* After the all-reduce, before tt_optimizer_apply: turns the gradients of the loss, in all of the
 * parameters, into those of the objective. `settings` and `loss_scales` lie in device memory: the
 * loss is the sum of statistics[i] * loss_scales[i], i below `loss_count`. `holds` is
 * tt_optimizer_holds. */
void tt_rank_objective_apply(tt_rank_objective *objective, const tt_rank_settings *settings,
                             const float *loss_scales, int loss_count, float *holds);
/* Device memory: what the last apply left there. The same for the objective's life. */
const tt_rank_record *tt_rank_objective_record(const tt_rank_objective *objective);

/* S as the values stand, after all work given to the device; -1 where memory is out. */
int64_t tt_rank_objective_size(const tt_rank_objective *objective);

#endif

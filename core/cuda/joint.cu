/* The joint between two thin halves: a thin product that makes the wide branch, the fused norm, and
 * a thin product that reads the new residual stream.
 *
 * Floor, a token: 3 * hidden activations moved forward (the residual in and out, its normalised
 * form out) and 4 * hidden backward, for 2 * hidden * (rank + ranks) multiplications, which at rank
 * 30 are 40 a byte: memory is the bound. This one moves 6 and 11, as the branch goes through memory
 * between the product and the norm. One kernel for all three would have to hold whole rows, of
 * which shared memory has room for 16 to 32, and read both factors once for so few tokens: that is
 * 8 to 15 KiB a token from the second-level cache at hidden 1024 and takes longer than the branch
 * does. */
#include "core/cuda/cuda_ops.h"
#include "core/cuda/thin_product.cuh"

/* The workspace: the branch or its gradient, then partial sums of both factors' gradients. */
typedef struct {
    int b_ranges, a_ranges;
    size_t branch_bytes, bytes;
} joint_plan;

static joint_plan plan_of(const tt_device *device, const tt_thin_joint *joint)
{
    int64_t tokens = joint->u.rows, hidden = joint->b.columns;
    int64_t next = joint->a_next.data ? joint->a_next.columns : 0;
    joint_plan plan = {};
    plan.b_ranges = tt_token_ranges(device, tokens, joint->b.rows, hidden, 1);
    int64_t b_floats = plan.b_ranges * joint->b.rows * hidden, a_floats = 0;
    if (next > 0) {
        plan.a_ranges = tt_token_ranges(device, tokens, hidden, next, 1);
        a_floats = plan.a_ranges * hidden * next;
    }
    size_t size = joint->u.type == TT_BF16 ? sizeof(__nv_bfloat16) : sizeof(float);
    plan.branch_bytes = ((size_t)(tokens * hidden) * size + 255) / 256 * 256;
    plan.bytes = plan.branch_bytes + tt_floats(b_floats > a_floats ? b_floats : a_floats);
    return plan;
}

size_t tt_cuda_thin_joint_workspace(tt_device *device, const tt_thin_joint *joint)
{
    return plan_of(device, joint).bytes;
}

static tt_matrix branch_of(const tt_thin_joint *joint)
{
    return tt_matrix_dense(joint->workspace, joint->u.rows, joint->b.columns, joint->u.type);
}

template <typename T>
static void forward(tt_device *device, const tt_thin_joint *joint, tt_matrix hidden,
                    tt_matrix u_next)
{
    tt_matrix branch = branch_of(joint);
    tt_row_multiply<T, false, false>(device, joint->u, joint->b, branch);
    tt_cuda_residual_norm_forward(device, &joint->norm, branch, hidden, hidden);
    if (joint->a_next.data) {
        tt_row_multiply<T, false, false>(device, hidden, joint->a_next, u_next);
    }
}

/* gradient += a^T b, summed over tokens. */
template <typename T>
static void add_gradient(tt_device *device, const tt_thin_joint *joint, int ranges, tt_operand<T> a,
                         tt_operand<T> b, tt_matrix gradient)
{
    joint_plan plan = plan_of(device, joint);
    float *partials =
        reinterpret_cast<float *>(static_cast<char *>(joint->workspace) + plan.branch_bytes);
    tt_token_product product = {};
    product.tokens = (int)joint->u.rows;
    product.rows = (int)gradient.rows;
    product.columns = (int)gradient.columns;
    product.all = gradient.rows * gradient.columns;
    product.row = gradient.columns;
    tt_token_multiply(device, product, 1, ranges, tt_operand_ready(a), tt_operand_ready(b),
                      partials);
    tt_add_up<float, true>(device, partials, ranges, gradient.rows, gradient.columns,
                           static_cast<float *>(gradient.data), gradient.stride, 1);
}

template <typename T>
static void backward(tt_device *device, const tt_thin_joint *joint, tt_matrix d_u_next,
                     tt_matrix d_hidden, tt_matrix d_u)
{
    joint_plan plan = plan_of(device, joint);
    tt_matrix branch = branch_of(joint), normalized = joint->norm.state.normalized;
    if (joint->a_next.data) {
        tt_operand<T> y = tt_operand_of<T>(normalized, 0, normalized.columns);
        y.factor = joint->norm.weight;
        y.bias = joint->norm.shift;
        add_gradient(device, joint, plan.a_ranges, y,
                     tt_operand_of<T>(d_u_next, 0, d_u_next.columns), joint->a_next_gradient);
        tt_row_multiply<T, true, true>(device, d_u_next, joint->a_next, d_hidden);
    }
    tt_cuda_residual_norm_backward(device, &joint->norm, d_hidden, d_hidden, branch);
    add_gradient(device, joint, plan.b_ranges, tt_operand_of<T>(joint->u, 0, joint->u.columns),
                 tt_operand_of<T>(branch, 0, branch.columns), joint->b_gradient);
    tt_row_multiply<T, true, false>(device, branch, joint->b, d_u);
}

void tt_cuda_thin_joint_forward(tt_device *device, const tt_thin_joint *joint, tt_matrix hidden,
                                tt_matrix u_next)
{
    if (joint->u.type == TT_BF16) {
        forward<__nv_bfloat16>(device, joint, hidden, u_next);
    } else {
        forward<float>(device, joint, hidden, u_next);
    }
}

void tt_cuda_thin_joint_backward(tt_device *device, const tt_thin_joint *joint, tt_matrix d_u_next,
                                 tt_matrix d_hidden, tt_matrix d_u)
{
    if (joint->u.type == TT_BF16) {
        backward<__nv_bfloat16>(device, joint, d_u_next, d_hidden, d_u);
    } else {
        backward<float>(device, joint, d_u_next, d_hidden, d_u);
    }
}

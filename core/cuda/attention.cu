/* Dense attention. q, k and v are columns of wide matrices; biases are added, and q is divided by
 * the square root of the width, on the way into shared memory.
 *
 * Floor of the forward pass: 4 * sequence * hidden operations a token and 4 * hidden activations
 * moved a token; at 128 positions 128 operations a number moved, so that tensor cores are the bound
 * from bf16 sequences of some 400 on and memory before. Backward: 10 * sequence * hidden operations
 * and 7 * hidden activations are the floor. This one takes 18: dq and dk, dv are made in two passes
 * that each form the probabilities, so that no sum has an order that changes (which atomics would
 * give) and nothing but log_sum_exp and delta lies between them; two more products make the context
 * again, from which delta is exact in f32. */
#include "core/cuda/attention.cuh"
#include "core/cuda/cuda_ops.h"

template <typename T> struct dense_operands {
    tt_operand<T> q, k, v, d_context;
};

template <typename T, int W>
__global__ void __launch_bounds__(tt_tile<T>::THREADS, W <= 64 ? 3 : 1)
    attention_forward(tt_attention_frame frame, dense_operands<T> operands, T *context,
                      int64_t stride)
{
    typedef tt_attention_room<T, W> room_type;
    TT_SHARED_ARRAY(unsigned char, memory);
    room_type room(memory, 3, frame);
    int head = (int)blockIdx.y, query = (int)blockIdx.x * room_type::EDGE;
    int entry = (int)blockIdx.z, token = entry * frame.sequence + query;
    int width = operands.q.width, live = tt_round_up(width, TT_BAND);
    tt_tile_load(room.q, room_type::LD, room_type::EDGE, live, operands.q, token,
                 (entry + 1) * frame.sequence, 0, head);
    tt_band<T, W> sums;
    tt_attention_forward_head(room, frame, operands.k, operands.v, live, live, entry, head, query,
                              sums);
    tt_attention_write(room, sums, live, context + token * stride + head * width, stride, width,
                       frame.sequence - query, 1.0f);
}

/* dq and delta. */
template <typename T, int W>
__global__ void __launch_bounds__(tt_tile<T>::THREADS, 1)
    attention_d_queries(tt_attention_frame frame, dense_operands<T> operands, T *dq, int64_t stride)
{
    typedef tt_attention_room<T, W> room_type;
    TT_SHARED_ARRAY(unsigned char, memory);
    room_type room(memory, 4, frame);
    int head = (int)blockIdx.y, query = (int)blockIdx.x * room_type::EDGE;
    int entry = (int)blockIdx.z, token = entry * frame.sequence + query;
    int end = (entry + 1) * frame.sequence;
    int width = operands.q.width, live = tt_round_up(width, TT_BAND);
    tt_tile_load(room.q, room_type::LD, room_type::EDGE, live, operands.q, token, end, 0, head);
    tt_tile_load(room.d, room_type::LD, room_type::EDGE, live, operands.d_context, token, end, 0,
                 head);
    tt_band<T, W> sums;
    tt_attention_context_again(room, frame, operands.k, operands.v, live, live, entry, head, query,
                               sums);
    tt_attention_d_queries(room, frame, operands.k, operands.v, live, live, entry, head, query,
                           sums);
    tt_attention_write(room, sums, live, dq + token * stride + head * width, stride, width,
                       frame.sequence - query, operands.q.scale);
}

template <typename T, int W>
__global__ void __launch_bounds__(tt_tile<T>::THREADS, W <= 64 ? 3 : 1)
    attention_d_keys(tt_attention_frame frame, dense_operands<T> operands, T *dk, int64_t dk_stride,
                     T *dv, int64_t dv_stride)
{
    typedef tt_attention_room<T, W> room_type;
    TT_SHARED_ARRAY(unsigned char, memory);
    room_type room(memory, 4, frame);
    int head = (int)blockIdx.y, key = (int)blockIdx.x * room_type::EDGE;
    int entry = (int)blockIdx.z, token = entry * frame.sequence + key;
    int width = operands.q.width, live = tt_round_up(width, TT_BAND);
    tt_band<T, W> k_sums, v_sums;
    tt_attention_keys_heads(room, frame, operands.q, operands.k, operands.v, operands.d_context,
                            live, live, entry, head, head + 1, key, k_sums, v_sums);
    __syncthreads();
    int rows = frame.sequence - key;
    tt_attention_write(room, k_sums, live, dk + token * dk_stride + head * width, dk_stride, width,
                       rows, 1.0f);
    tt_attention_write(room, v_sums, live, dv + token * dv_stride + head * width, dv_stride, width,
                       rows, 1.0f);
}

/* --- the host's side ------------------------------------------------------------------------- */

size_t tt_cuda_attention_workspace(tt_device *, const tt_attention *attention)
{
    return tt_floats(attention->batch * attention->heads * attention->sequence);
}

static tt_attention_frame frame_of(const tt_attention *attention)
{
    tt_attention_frame frame = {};
    frame.sequence = (int)attention->sequence;
    frame.heads = (int)attention->heads;
    frame.group = 1;
    frame.mask = attention->mask;
    frame.log_sum_exp = attention->log_sum_exp;
    frame.delta = static_cast<float *>(attention->workspace);
    frame.dropout = tt_dropout_site_of(&attention->dropout);
    return frame;
}

template <typename T>
static tt_operand<T> head_operand(tt_matrix matrix, const float *bias, int64_t width, float scale)
{
    tt_operand<T> operand = tt_operand_of<T>(matrix, 0, width);
    operand.step = width;
    operand.bias = bias;
    operand.scale = scale;
    return tt_operand_ready(operand);
}

template <typename T>
static dense_operands<T> operands_of(const tt_attention *attention, tt_matrix d_context)
{
    int64_t width = attention->q.columns / attention->heads;
    return {head_operand<T>(attention->q, attention->q_bias, width, 1.0f / sqrtf((float)width)),
            head_operand<T>(attention->k, attention->k_bias, width, 1.0f),
            head_operand<T>(attention->v, attention->v_bias, width, 1.0f),
            head_operand<T>(d_context, nullptr, width, 1.0f)};
}

template <typename T> static dim3 grid_of(const tt_attention *attention)
{
    return dim3((unsigned)tt_ceil_div(attention->sequence, tt_tile<T>::EDGE),
                (unsigned)attention->heads, (unsigned)attention->batch);
}

template <typename T, int W>
static void forward(tt_device *device, const tt_attention *attention, tt_matrix context)
{
    auto kernel = attention_forward<T, W>;
    size_t bytes = tt_attention_room<T, W>::forward_bytes;
    if (tt_shared_memory(device, kernel, bytes)) {
        TT_LAUNCH(device, grid_of<T>(attention), tt_tile<T>::THREADS, bytes, kernel,
                  frame_of(attention), operands_of<T>(attention, {}),
                  static_cast<T *>(context.data), context.stride);
    }
}

template <typename T, int W>
static void backward(tt_device *device, const tt_attention *attention, tt_matrix d_context,
                     tt_matrix dq, tt_matrix dk, tt_matrix dv)
{
    auto queries = attention_d_queries<T, W>;
    auto keys = attention_d_keys<T, W>;
    size_t bytes = tt_attention_room<T, W>::backward_bytes;
    if (tt_shared_memory(device, queries, bytes) && tt_shared_memory(device, keys, bytes)) {
        dense_operands<T> operands = operands_of<T>(attention, d_context);
        TT_LAUNCH(device, grid_of<T>(attention), tt_tile<T>::THREADS, bytes, queries,
                  frame_of(attention), operands, static_cast<T *>(dq.data), dq.stride);
        TT_LAUNCH(device, grid_of<T>(attention), tt_tile<T>::THREADS, bytes, keys,
                  frame_of(attention), operands, static_cast<T *>(dk.data), dk.stride,
                  static_cast<T *>(dv.data), dv.stride);
    }
}

/* function<T, W>(...) for the type of activations and the narrowest tile that holds a head. */
#define FOR_WIDTHS(attention, function, ...)                                                       \
    do {                                                                                           \
        int64_t width = (attention)->q.columns / (attention)->heads;                               \
        if (width > TT_CUDA_LARGEST_HEAD) {                                                        \
            tt_cuda_refuse(device, "attention: heads of %lld columns, the kernels take %d",        \
                           (long long)width, TT_CUDA_LARGEST_HEAD);                                \
            break;                                                                                 \
        }                                                                                          \
        if ((attention)->q.type == TT_BF16) {                                                      \
            if (width <= 64) {                                                                     \
                function<__nv_bfloat16, 64>(__VA_ARGS__);                                          \
            } else {                                                                               \
                function<__nv_bfloat16, 128>(__VA_ARGS__);                                         \
            }                                                                                      \
        } else if (width <= 64) {                                                                  \
            function<float, 64>(__VA_ARGS__);                                                      \
        } else {                                                                                   \
            function<float, 128>(__VA_ARGS__);                                                     \
        }                                                                                          \
    } while (0)

void tt_cuda_attention_forward(tt_device *device, const tt_attention *attention, tt_matrix context)
{
    FOR_WIDTHS(attention, forward, device, attention, context);
}

void tt_cuda_attention_backward(tt_device *device, const tt_attention *attention,
                                tt_matrix d_context, tt_matrix dq, tt_matrix dk, tt_matrix dv)
{
    FOR_WIDTHS(attention, backward, device, attention, d_context, dq, dk, dv);
}

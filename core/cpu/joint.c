/* The joint between two thin halves, by tiles of tokens: the wide rows are made, normalised and
 * multiplied on while they are in cache, so that memory sees the residual stream once each way. */
#include "core/cpu/matrix_product.h"
#include "core/cpu/normalization.h"

enum { TOKEN_TILE = 128 };

/* Places in a thread's room, in floats: two tiles of wide rows, and partial gradients of both
 * factors. */
typedef struct {
    int64_t first_tile, second_tile, b_gradient, a_gradient, size;
} room_places;

static int64_t round_up(int64_t count)
{
    return (count + 15) / 16 * 16;
}

static room_places places_of(const tt_thin_joint *joint)
{
    int64_t hidden = joint->b.columns;
    int64_t next = joint->a_next.data ? joint->a_next.columns : 0;
    room_places places = {.second_tile = TOKEN_TILE * hidden};
    places.b_gradient = places.second_tile + TOKEN_TILE * hidden;
    places.a_gradient = places.b_gradient + round_up(joint->b.rows * hidden);
    places.size = places.a_gradient + round_up(hidden * next);
    return places;
}

size_t tt_cpu_thin_joint_workspace(tt_device *device, const tt_thin_joint *joint)
{
    return (size_t)(device->threads * places_of(joint).size) * sizeof(float);
}

static float *thread_room(const tt_thin_joint *joint, int thread)
{
    return (float *)joint->workspace + thread * places_of(joint).size;
}

static void forward_tile(const tt_thin_joint *joint, int64_t token, int64_t count, tt_matrix hidden,
                         tt_matrix u_next, float *branch)
{
    int64_t width = hidden.columns;
    const tt_matrix *b = &joint->b, *a = &joint->a_next;
    tt_matrix_product(false, false, count, width, b->rows, 1.0f, tt_cpu_row(joint->u, token),
                      joint->u.stride, b->data, b->stride, 0.0f, branch, width);
    for (int64_t i = 0; i < count; i++) {
        float *row = tt_cpu_row(hidden, token + i);
        tt_norm_row_forward(&joint->norm, token + i, branch + i * width, row, row);
    }
    if (a->data) {
        tt_matrix_product(false, false, count, a->columns, width, 1.0f, tt_cpu_row(hidden, token),
                          hidden.stride, a->data, a->stride, 0.0f, tt_cpu_row(u_next, token),
                          u_next.stride);
    }
}

void tt_cpu_thin_joint_forward(tt_device *device, const tt_thin_joint *joint, tt_matrix hidden,
                               tt_matrix u_next)
{
    int64_t tiles = (hidden.rows + TOKEN_TILE - 1) / TOKEN_TILE;
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t token = tile * TOKEN_TILE, left = hidden.rows - token;
        forward_tile(joint, token, left < TOKEN_TILE ? left : TOKEN_TILE, hidden, u_next,
                     thread_room(joint, omp_get_thread_num()));
    }
}

/* The half that begins: its dA += y^T d_u_next, and d_hidden += d_u_next A^T. */
static void next_backward_tile(const tt_thin_joint *joint, int64_t token, int64_t count,
                               tt_matrix d_u_next, tt_matrix d_hidden, float *room)
{
    room_places places = places_of(joint);
    int64_t width = d_hidden.columns;
    const tt_matrix *a = &joint->a_next;
    float *y = room + places.first_tile;
    const float *d_next = tt_cpu_row(d_u_next, token);
    for (int64_t i = 0; i < count; i++) {
        tt_norm_row_output(&joint->norm, token + i, y + i * width);
    }
    tt_matrix_product(true, false, width, a->columns, count, 1.0f, y, width, d_next,
                      d_u_next.stride, 1.0f, room + places.a_gradient, a->columns);
    tt_matrix_product(false, true, count, width, a->columns, 1.0f, d_next, d_u_next.stride, a->data,
                      a->stride, 1.0f, tt_cpu_row(d_hidden, token), d_hidden.stride);
}

/* The half that ends: dB += u^T d_branch, d_u = d_branch B^T. */
static void backward_tile(const tt_thin_joint *joint, int64_t token, int64_t count,
                          tt_matrix d_hidden, tt_matrix d_u, tt_norm_partials partials, float *room)
{
    room_places places = places_of(joint);
    int64_t width = d_hidden.columns;
    const tt_matrix *b = &joint->b;
    float *d_branch = room + places.second_tile;
    for (int64_t i = 0; i < count; i++) {
        float *row = tt_cpu_row(d_hidden, token + i);
        tt_norm_row_backward(&joint->norm, token + i, row, row, d_branch + i * width, partials);
    }
    tt_matrix_product(true, false, b->rows, width, count, 1.0f, tt_cpu_row(joint->u, token),
                      joint->u.stride, d_branch, width, 1.0f, room + places.b_gradient, width);
    tt_matrix_product(false, true, count, b->rows, width, 1.0f, d_branch, width, b->data, b->stride,
                      0.0f, tt_cpu_row(d_u, token), d_u.stride);
}

/* gradient += the threads' partial sums, in the order of threads, rows shared out among threads. */
static void add_partial_matrix(const tt_thin_joint *joint, tt_matrix gradient, int64_t place)
{
    int team = omp_get_num_threads();
#pragma omp for schedule(static)
    for (int64_t i = 0; i < gradient.rows; i++) {
        float *row = tt_cpu_row(gradient, i);
        for (int thread = 0; thread < team; thread++) {
            const float *partial = thread_room(joint, thread) + place + i * gradient.columns;
#pragma omp simd
            for (int64_t j = 0; j < gradient.columns; j++) {
                row[j] += partial[j];
            }
        }
    }
}

void tt_cpu_thin_joint_backward(tt_device *device, const tt_thin_joint *joint, tt_matrix d_u_next,
                                tt_matrix d_hidden, tt_matrix d_u)
{
    room_places places = places_of(joint);
    int64_t tiles = (d_hidden.rows + TOKEN_TILE - 1) / TOKEN_TILE;
#pragma omp parallel num_threads(device->threads)
    {
        float *room = thread_room(joint, omp_get_thread_num());
        tt_norm_partials partials = tt_norm_start_partials(device, &joint->norm);
        memset(room + places.b_gradient, 0,
               (size_t)(places.size - places.b_gradient) * sizeof(float));
#pragma omp for schedule(static)
        for (int64_t tile = 0; tile < tiles; tile++) {
            int64_t token = tile * TOKEN_TILE, left = d_hidden.rows - token;
            int64_t count = left < TOKEN_TILE ? left : TOKEN_TILE;
            if (joint->a_next.data) {
                next_backward_tile(joint, token, count, d_u_next, d_hidden, room);
            }
            backward_tile(joint, token, count, d_hidden, d_u, partials, room);
        }
        tt_norm_add_partials(device, &joint->norm);
        add_partial_matrix(joint, joint->b_gradient, places.b_gradient);
        if (joint->a_next.data) {
            add_partial_matrix(joint, joint->a_next_gradient, places.a_gradient);
        }
    }
}

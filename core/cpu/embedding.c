#include "core/cpu/cpu_ops.h"

void tt_cpu_embedding_forward(tt_device *device, const tt_embedding *embedding, tt_matrix y)
{
    int64_t hidden = embedding->hidden, sequence = embedding->sequence;
    assert(y.rows == embedding->batch * sequence && y.columns == hidden);
#pragma omp parallel for num_threads(tt_cpu_row_team(device, y)) schedule(static)
    for (int64_t i = 0; i < y.rows; i++) {
        const float *word = embedding->word + embedding->ids[i] * hidden;
        const float *position = embedding->position + i % sequence * hidden;
        const float *segment = embedding->segment + embedding->segments[i] * hidden;
        float *y_row = tt_cpu_row(y, i);
#pragma omp simd
        for (int64_t j = 0; j < hidden; j++) {
            y_row[j] = word[j] + position[j] + segment[j];
        }
    }
}

/* Rows that several tokens add to need an owner: each thread owns some columns of all rows and
 * walks the tokens in order, so the sums are the same for any number of threads. A piece is at
 * least a cache line, and pieces start at cache lines of an aligned matrix. */
static int64_t tt_column_piece(int64_t columns, int team)
{
    return (columns + 16 * (int64_t)team - 1) / (16 * (int64_t)team) * 16;
}

size_t tt_cpu_embedding_workspace(tt_device *device, int64_t tokens, int64_t vocabulary)
{
    (void)device;
    (void)tokens;
    (void)vocabulary;
    return 0;
}

void tt_cpu_embedding_backward(tt_device *device, const tt_embedding *embedding, tt_matrix dy,
                               void *workspace)
{
    (void)workspace;
    int64_t hidden = embedding->hidden, sequence = embedding->sequence;
    assert(dy.rows == embedding->batch * sequence && dy.columns == hidden);
    int team = tt_cpu_row_team(device, dy);
    int64_t piece = tt_column_piece(hidden, team);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t first = 0; first < hidden; first += piece) {
        int64_t count = hidden - first < piece ? hidden - first : piece;
        for (int64_t i = 0; i < dy.rows; i++) {
            const float *dy_row = tt_cpu_row(dy, i) + first;
            float *word = embedding->word_gradient + embedding->ids[i] * hidden + first;
            float *position = embedding->position_gradient + i % sequence * hidden + first;
            float *segment = embedding->segment_gradient + embedding->segments[i] * hidden + first;
#pragma omp simd
            for (int64_t j = 0; j < count; j++) {
                word[j] += dy_row[j];
                position[j] += dy_row[j];
                segment[j] += dy_row[j];
            }
        }
    }
}

void tt_cpu_gather_rows(tt_device *device, tt_matrix x, const int32_t *index, tt_matrix y)
{
    assert(x.columns == y.columns);
#pragma omp parallel for num_threads(tt_cpu_row_team(device, y)) schedule(static)
    for (int64_t i = 0; i < y.rows; i++) {
        memcpy(tt_cpu_row(y, i), tt_cpu_row(x, index[i]), (size_t)y.columns * sizeof(float));
    }
}

void tt_cpu_scatter_rows(tt_device *device, tt_matrix dy, const int32_t *index, tt_matrix dx)
{
    assert(dx.columns == dy.columns);
    int team = tt_cpu_row_team(device, dy);
    int64_t piece = tt_column_piece(dy.columns, team);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t first = 0; first < dy.columns; first += piece) {
        int64_t count = dy.columns - first < piece ? dy.columns - first : piece;
        for (int64_t i = 0; i < dy.rows; i++) {
            const float *dy_row = tt_cpu_row(dy, i) + first;
            float *dx_row = tt_cpu_row(dx, index[i]) + first;
#pragma omp simd
            for (int64_t j = 0; j < count; j++) {
                dx_row[j] += dy_row[j];
            }
        }
    }
}

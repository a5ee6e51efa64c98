/* Sums and maxima over a row. A reduction that is left to the compiler ends, to keep the order of
 * additions, in a chain of sixteen dependent ones; for rows of a hundred numbers that costs as much
 * as the row. Here sixteen lanes run side by side and are added pairwise at the end: a fixed order
 * too. */
#ifndef TT_CORE_CPU_LANES_H
#define TT_CORE_CPU_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { TT_LANES = 16 };

typedef float tt_lanes __attribute__((vector_size(TT_LANES * sizeof(float))));

static inline void tt_lanes_load(tt_lanes *lanes, const float *from)
{
    memcpy(lanes, from, sizeof *lanes);
}

static inline float tt_lanes_sum(const tt_lanes *lanes)
{
    float values[TT_LANES];
    memcpy(values, lanes, sizeof values);
    for (int width = TT_LANES / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            values[i] += values[i + width];
        }
    }
    return values[0];
}

/* The larger of both in each lane, in `lanes`. */
static inline void tt_lanes_raise(tt_lanes *lanes, const tt_lanes *value)
{
    typedef int32_t bits __attribute__((vector_size(sizeof(tt_lanes))));
    bits larger = *value > *lanes;
    *lanes = (tt_lanes)(((bits)*value & larger) | ((bits)*lanes & ~larger));
}

/* Largest of a row; -infinity for none. */
static inline float tt_row_largest(const float *row, int64_t count)
{
    float values[TT_LANES];
    for (int i = 0; i < TT_LANES; i++) {
        values[i] = -INFINITY;
    }
    tt_lanes largest, value;
    tt_lanes_load(&largest, values);
    int64_t j = 0;
    for (; j + TT_LANES <= count; j += TT_LANES) {
        tt_lanes_load(&value, row + j);
        tt_lanes_raise(&largest, &value);
    }
    memcpy(values, &largest, sizeof values);
    for (; j < count; j++) {
        values[0] = row[j] > values[0] ? row[j] : values[0];
    }
    for (int width = TT_LANES / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            values[i] = values[i] > values[i + width] ? values[i] : values[i + width];
        }
    }
    return values[0];
}

/* Sum of a row. */
static inline float tt_row_sum(const float *row, int64_t count)
{
    tt_lanes sum = {0}, value;
    int64_t j = 0;
    for (; j + TT_LANES <= count; j += TT_LANES) {
        tt_lanes_load(&value, row + j);
        sum += value;
    }
    float total = tt_lanes_sum(&sum);
    for (; j < count; j++) {
        total += row[j];
    }
    return total;
}

/* Sum of products of two rows. */
static inline float tt_row_dot(const float *a, const float *b, int64_t count)
{
    tt_lanes sum = {0}, x, y;
    int64_t j = 0;
    for (; j + TT_LANES <= count; j += TT_LANES) {
        tt_lanes_load(&x, a + j);
        tt_lanes_load(&y, b + j);
        sum += x * y;
    }
    float total = tt_lanes_sum(&sum);
    for (; j < count; j++) {
        total += a[j] * b[j];
    }
    return total;
}

/* Sums of (row - mean) and of its square. */
static inline void tt_row_moments(const float *row, float mean, int64_t count, float *rest,
                                  float *squares)
{
    tt_lanes rest_lanes = {0}, square_lanes = {0}, value;
    int64_t j = 0;
    for (; j + TT_LANES <= count; j += TT_LANES) {
        tt_lanes_load(&value, row + j);
        value -= mean;
        rest_lanes += value;
        square_lanes += value * value;
    }
    *rest = tt_lanes_sum(&rest_lanes);
    *squares = tt_lanes_sum(&square_lanes);
    for (; j < count; j++) {
        float centred = row[j] - mean;
        *rest += centred;
        *squares += centred * centred;
    }
}

#endif

/* Products of tiles in shared memory, the same code for both types of activations: on tensor cores
 * for bf16, by register tiles for f32. Attention, the feed-forward block and the thin products are
 * built on them.
 *
 *  - A tile is a row-major array in shared memory of the activations' type. Its rows are W + PAD
 *    elements apart, so that the rows which a warp reads together lie in different banks, and
 *    whatever a product reads of it is filled, with zeros outside the operand.
 *  - A band is 16 rows by W columns of f32 accumulators, held by one warp. A block of EDGE / 16
 *    warps holds EDGE rows. Which lane holds which element is the hardware's affair for bf16: it is
 *    asked for once (tt_find_places), and tt_band_each then names row and column of every element.
 *  - An operand is a matrix in device memory with what is done to it on its way into a tile. */
#ifndef TT_CORE_CUDA_TILE_CUH
#define TT_CORE_CUDA_TILE_CUH

#include "core/cuda/pack.cuh"

#include <mma.h>
#include <type_traits>

enum {
    TT_BAND = 16,        /* rows of a band, and columns of a part of it */
    TT_PART = 8,         /* elements of a part that a lane holds */
    TT_SCRATCH_ROW = 20, /* floats from row to row of a warp's scratch memory */
    TT_SCRATCH = TT_BAND * TT_SCRATCH_ROW,
};

/* EDGE: rows of a block's tiles, and columns of a tile of scores. */
template <typename T> struct tt_tile;
template <> struct tt_tile<__nv_bfloat16> {
    static constexpr int EDGE = 64, PAD = 8, WARPS = 4, THREADS = 128;
};
template <> struct tt_tile<float> {
    static constexpr int EDGE = 32, PAD = 4, WARPS = 2, THREADS = 64;
};

static __host__ __device__ inline int tt_round_up(int count, int step)
{
    return (count + step - 1) / step * step;
}

static __device__ inline int tt_lane(void)
{
    return (int)(threadIdx.x % 32);
}

static __device__ inline int tt_warp(void)
{
    return (int)(threadIdx.x / 32);
}

/* --- places ---------------------------------------------------------------------------------- */

/* Row and column within a part of the elements that this lane holds. */
template <typename T> struct tt_places;

template <> struct tt_places<float> {
    __device__ int row(int i) const
    {
        return (tt_lane() >> 3) + 4 * (i >> 1);
    }
    __device__ int column(int i) const
    {
        return (tt_lane() & 7) + 8 * (i & 1);
    }
};

template <> struct tt_places<__nv_bfloat16> {
    uint32_t places[TT_PART / 4]; /* a byte each */
    __device__ int place(int i) const
    {
        return (int)(places[i / 4] >> (8 * (i % 4)) & 0xFFu);
    }
    __device__ int row(int i) const
    {
        return place(i) / TT_BAND;
    }
    __device__ int column(int i) const
    {
        return place(i) % TT_BAND;
    }
};

typedef nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> tt_sums_part;

static __device__ inline void tt_find_places(float *, tt_places<float> *)
{
}

/* Every element of a part is loaded with its own place. `scratch`: TT_SCRATCH floats of this warp.
 */
static __device__ inline void tt_find_places(float *scratch, tt_places<__nv_bfloat16> *places)
{
    for (int e = tt_lane(); e < TT_BAND * TT_BAND; e += 32) {
        scratch[e / TT_BAND * TT_SCRATCH_ROW + e % TT_BAND] = (float)e;
    }
    __syncwarp();
    tt_sums_part part;
    nvcuda::wmma::load_matrix_sync(part, scratch, TT_SCRATCH_ROW, nvcuda::wmma::mem_row_major);
    static_assert(sizeof part.x / sizeof part.x[0] == TT_PART, "a part is shared out evenly");
#pragma unroll
    for (int i = 0; i < TT_PART; i += 4) {
        places->places[i / 4] = (uint32_t)part.x[i] | (uint32_t)part.x[i + 1] << 8 |
                                (uint32_t)part.x[i + 2] << 16 | (uint32_t)part.x[i + 3] << 24;
    }
    __syncwarp();
}

/* --- bands ----------------------------------------------------------------------------------- */

template <typename T, int W> struct tt_band;

template <int W> struct tt_band<float, W> {
    float part[W / TT_BAND][TT_PART];
    __device__ float &at(int j, int i)
    {
        return part[j][i];
    }
};

template <int W> struct tt_band<__nv_bfloat16, W> {
    tt_sums_part part[W / TT_BAND];
    __device__ float &at(int j, int i)
    {
        return part[j].x[i];
    }
};

template <typename T, int W> static __device__ inline void tt_band_clear(tt_band<T, W> &band)
{
#pragma unroll
    for (int j = 0; j < W / TT_BAND; j++) {
#pragma unroll
        for (int i = 0; i < TT_PART; i++) {
            band.at(j, i) = 0.0f;
        }
    }
}

/* visit(i, row, column, value) for the elements of the first `columns` columns (a multiple of 16);
 * i < TT_PART: elements with the same i lie in the same row. */
template <typename T, int W, typename F>
static __device__ inline void tt_band_each(tt_band<T, W> &band, const tt_places<T> &places,
                                           int columns, F visit)
{
#pragma unroll
    for (int j = 0; j < W / TT_BAND; j++) {
        if (j * TT_BAND < columns) {
#pragma unroll
            for (int i = 0; i < TT_PART; i++) {
                visit(i, places.row(i), j * TT_BAND + places.column(i), band.at(j, i));
            }
        }
    }
}

/* band += a b for 16 rows of a; a and b lie in shared memory, and are read as [column][row] where
 * A or B says so. `depth` and `columns` are multiples of 16. */
template <bool A, bool B, int W>
static __device__ inline void
tt_band_multiply(tt_band<__nv_bfloat16, W> &band, const __nv_bfloat16 *a, int lda,
                 const __nv_bfloat16 *b, int ldb, int depth, int columns)
{
    using namespace nvcuda;
    typedef typename std::conditional<A, wmma::col_major, wmma::row_major>::type a_layout;
    typedef typename std::conditional<B, wmma::col_major, wmma::row_major>::type b_layout;
    for (int k = 0; k < depth; k += TT_BAND) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, a_layout> left;
        wmma::load_matrix_sync(left, A ? a + k * lda : a + k, lda);
#pragma unroll
        for (int j = 0; j < W / TT_BAND; j++) {
            if (j * TT_BAND < columns) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, b_layout> right;
                wmma::load_matrix_sync(
                    right, B ? b + j * TT_BAND * ldb + k : b + k * ldb + j * TT_BAND, ldb);
                wmma::mma_sync(band.part[j], left, right, band.part[j]);
            }
        }
    }
}

typedef struct __align__(16) tt_four
{
    float x[4];
}
tt_four;

/* Four neighbours along the depth at a time, where they lie side by side. */
template <bool ALONG_ROWS>
static __device__ inline tt_four tt_load_depth(const float *from, int stride)
{
    if (ALONG_ROWS) {
        return *reinterpret_cast<const tt_four *>(from);
    }
    return tt_four{{from[0], from[stride], from[2 * stride], from[3 * stride]}};
}

template <bool A, bool B, int W>
static __device__ inline void tt_band_multiply(tt_band<float, W> &band, const float *a, int lda,
                                               const float *b, int ldb, int depth, int columns)
{
    int row = tt_lane() >> 3, column = tt_lane() & 7;
    a += A ? row : row * lda;
    b += B ? column * ldb : column;
    for (int k = 0; k < depth; k += 4) {
        tt_four left[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            left[i] = tt_load_depth<!A>(A ? a + k * lda + 4 * i : a + 4 * i * lda + k, lda);
        }
#pragma unroll
        for (int e = 0; e < 2 * (W / TT_BAND); e++) {
            if (e / 2 * TT_BAND < columns) {
                tt_four right =
                    tt_load_depth<B>(B ? b + 8 * e * ldb + k : b + k * ldb + 8 * e, ldb);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float &sum = band.part[e / 2][2 * i + e % 2];
#pragma unroll
                    for (int z = 0; z < 4; z++) {
                        sum = fmaf(left[i].x[z], right.x[z], sum);
                    }
                }
            }
        }
    }
}

/* The band, rounded to the tile's type, as 16 rows of a tile. */
template <typename T, int W>
static __device__ inline void tt_band_store(T *tile, int ld, tt_band<T, W> &band,
                                            const tt_places<T> &places, int columns)
{
    tt_band_each(band, places, columns, [=](int, int row, int column, float &value) {
        tt_store(tile + row * ld + column, value);
    });
}

/* Sums (or the largest) of the rows of a band from what each lane has gathered of its elements:
 * returns that of row lane / 2. `scratch`: TT_SCRATCH floats of this warp. */
template <bool LARGEST, typename T>
static __device__ inline float tt_rows_reduce(const float (&gathered)[TT_PART],
                                              const tt_places<T> &places, float *scratch)
{
#pragma unroll
    for (int i = 0; i < TT_PART; i++) {
        scratch[places.row(i) * TT_SCRATCH_ROW + places.column(i)] = gathered[i];
    }
    __syncwarp();
    const float *row = scratch + tt_lane() / 2 * TT_SCRATCH_ROW + tt_lane() % 2 * 8;
    float result = row[0];
#pragma unroll
    for (int i = 1; i < 8; i++) {
        result = LARGEST ? fmaxf(result, row[i]) : result + row[i];
    }
    float other = __shfl_xor_sync(0xffffffffu, result, 1);
    __syncwarp();
    return LARGEST ? fmaxf(result, other) : result + other;
}

/* A number of each of this lane's rows. */
template <typename T>
static __device__ inline void tt_rows_get(const float *numbers, const tt_places<T> &places,
                                          float (&mine)[TT_PART])
{
#pragma unroll
    for (int i = 0; i < TT_PART; i++) {
        mine[i] = numbers[places.row(i)];
    }
}

/* --- operands -------------------------------------------------------------------------------- */

/* Column c of head h of row i is (data[i * stride + h * step + c] * factor + bias) * scale, factor
 * and bias being indexed by h * step + c; after the last column one of ones may follow. */
template <typename S> struct tt_operand {
    const S *data;
    int64_t stride, step;
    const float *factor, *bias; /* may be NULL */
    float scale;
    int width; /* columns of a head that are in memory */
    bool one;
    bool vector; /* eight columns from a multiple of eight may be read at once */
};

/* Columns [first, first + width) of a matrix, as one head. */
template <typename S>
static inline tt_operand<S> tt_operand_of(tt_matrix matrix, int64_t first, int64_t width)
{
    tt_operand<S> operand = {};
    operand.data = static_cast<const S *>(matrix.data) + first;
    operand.stride = matrix.stride;
    operand.scale = 1.0f;
    operand.width = (int)width;
    return operand;
}

/* Sets `vector`; to be called when everything else is set. */
template <typename S> static inline tt_operand<S> tt_operand_ready(tt_operand<S> operand)
{
    operand.vector = (uintptr_t)operand.data % 16 == 0 && operand.stride * sizeof(S) % 16 == 0 &&
                     operand.step * sizeof(S) % 16 == 0;
    return operand;
}

/* Eight columns of a row from a multiple of eight. */
template <typename S>
static __device__ inline tt_pack<8> tt_operand_eight(const tt_operand<S> &operand, int64_t row,
                                                     int head, int column)
{
    int64_t place = head * operand.step + column;
    const S *from = operand.data + row * operand.stride + place;
    int left = operand.width - column;
    tt_pack<8> pack;
    if (operand.vector) {
        pack = tt_load_last_pack<8>(from, left);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            pack.value[i] = i < left ? tt_load(from + i) : 0.0f;
        }
    }
    if (operand.factor) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            pack.value[i] *= i < left ? operand.factor[place + i] : 0.0f;
        }
    }
    if (operand.bias) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            pack.value[i] += i < left ? operand.bias[place + i] : 0.0f;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        pack.value[i] = i == left && operand.one ? 1.0f : pack.value[i] * operand.scale;
    }
    return pack;
}

/* Fills rows [0, rows) and columns [0, columns) (a multiple of 8) of a tile from rows first_row on
 * and columns first_column on (a multiple of 8) of an operand that has `end_row` rows, by all
 * threads of the block. */
template <typename T, typename S>
static __device__ inline void tt_tile_load(T *tile, int ld, int rows, int columns,
                                           const tt_operand<S> &operand, int first_row, int end_row,
                                           int first_column, int head)
{
    int across = columns / 8;
    for (int e = (int)threadIdx.x; e < rows * across; e += (int)blockDim.x) {
        int row = e / across, column = e % across * 8;
        tt_pack<8> pack = {};
        if (first_row + row < end_row) {
            pack = tt_operand_eight(operand, first_row + row, head, first_column + column);
        }
        tt_store_pack(tile + row * ld + column, pack);
    }
}

/* Rows of a band that one warp has stored as a tile, to device memory: `rows` rows of `columns`
 * columns. */
template <typename T>
static __device__ inline void tt_tile_write(T *to, int64_t stride, const T *tile, int ld, int rows,
                                            int columns)
{
    for (int row = 0; row < rows; row++) {
        for (int column = tt_lane(); column < columns; column += 32) {
            to[row * stride + column] = tile[row * ld + column];
        }
    }
}

/* Lets a kernel have `bytes` of dynamic shared memory, which from 48 KiB on has to be asked for;
 * false, with the failure noted, where the device has less. */
template <typename KERNEL>
static inline bool tt_shared_memory(tt_device *device, KERNEL kernel, size_t bytes)
{
    enum { UNASKED = 48 * 1024 };
    return bytes <= UNASKED ||
           tt_cuda_good(device,
                        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)bytes),
                        "cudaFuncSetAttribute");
}

#endif

/* CUDA C++ for the simulator: keywords, built-in variables and device functions that kernels of
 * ttrain use, and simulator_launch. A kernel is compiled as an ordinary function; each of its
 * threads calls it on a stack of its own. */
#ifndef TT_SIMULATOR_CUDA_RUNTIME_H
#define TT_SIMULATOR_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"
#include "vector_types.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <tuple>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

/* Of the thread that runs. Thread-local, because blocks run on several threads of the host. */
extern __thread uint3 threadIdx;
extern __thread uint3 blockIdx;
extern __thread dim3 blockDim;
extern __thread dim3 gridDim;
static constexpr int warpSize = 32;

namespace simulator
{

/* A place in a kernel's source, taken at the call. */
struct site {
    const char *file;
    int line;
};

enum class warp_operation { synchronize, shuffle, ballot, any, all, matrix };

/* What each lane brings to a matrix operation (as the address in `value`): `run` gets those of all
 * 32 lanes and does the work of the warp. */
struct warp_matrix {
    void (*run)(warp_matrix *const lanes[32]);
};

void block_barrier(site where);
/* All lanes of `mask` meet; the result depends on the operation. `argument` of a shuffle is the
 * lane to take the value from. */
uint64_t warp_meet(warp_operation operation, unsigned int mask, uint64_t value, int argument,
                   site where);
unsigned int lane();

/* One parameter of a kernel: where its value is kept, and whether it is a pointer. */
enum class parameter_kind { other, constant_pointer, pointer };
struct parameter {
    const void *where;
    size_t bytes;
    parameter_kind kind;
};

struct kernel {
    const char *name;
    site where;
    dim3 grid, block;
    size_t shared_bytes;
    const void *function;
    void (*invoke)(const void *arguments);
    std::shared_ptr<const void> arguments;
    size_t arguments_bytes;
    std::vector<parameter> parameters;
};

cudaError_t launch(kernel &&work, cudaStream_t stream);

template <typename... P> struct package {
    void (*kernel)(P...);
    std::tuple<P...> arguments;

    static void invoke(const void *self)
    {
        const package *from = static_cast<const package *>(self);
        std::apply(from->kernel, from->arguments);
    }
};

template <typename T> parameter describe(const T &value)
{
    parameter_kind kind = parameter_kind::other;
    if constexpr (std::is_pointer_v<T>) {
        kind = std::is_const_v<std::remove_pointer_t<T>> ? parameter_kind::constant_pointer
                                                         : parameter_kind::pointer;
    }
    return parameter{&value, sizeof(value), kind};
}

/* What lies between the members of a structure may be what is left of some pointer, and would be
 * taken for one. */
template <typename T> void clear_padding(T &value)
{
#ifdef __has_builtin
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&value);
#endif
#endif
    (void)value;
}

} // namespace simulator

/* Puts a kernel into a stream; what kernel<<<grid, block, shared_bytes, stream>>>(...) is to nvcc.
 * Returns what cudaGetLastError would. */
template <typename... P, typename... A>
cudaError_t simulator_launch(const char *name, const char *file, int line, dim3 grid, dim3 block,
                             size_t shared_bytes, cudaStream_t stream, void (*kernel)(P...),
                             A &&...arguments)
{
    static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has parameters");
    static_assert((std::is_trivially_copyable_v<P> && ...), "kernel parameters are plain data");
    static_assert((sizeof(P) + ... + 0) <= 4096, "kernel parameters take at most 4 KB");
    using package = simulator::package<P...>;
    auto kept = std::make_shared<package>(
        package{kernel, std::tuple<P...>(static_cast<P>(std::forward<A>(arguments))...)});
    simulator::kernel work{name,
                           {file, line},
                           grid,
                           block,
                           shared_bytes,
                           reinterpret_cast<const void *>(kernel),
                           &package::invoke,
                           kept,
                           sizeof(package),
                           {}};
    std::apply(
        [&work](auto &...value) {
            (simulator::clear_padding(value), ...);
            (work.parameters.push_back(simulator::describe(value)), ...);
        },
        kept->arguments);
    return simulator::launch(std::move(work), stream);
}

/* Shared memory of the running block: the object that `key` names, and the launch's dynamic
 * memory. */
void *simulator_shared(size_t bytes, size_t alignment, const void *key);
void *simulator_dynamic_shared();

template <typename K>
cudaError_t cudaFuncSetAttribute(K *kernel, cudaFuncAttribute attribute, int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}
template <typename K> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, K *kernel)
{
    return cudaFuncGetAttributes(attributes, reinterpret_cast<const void *>(kernel));
}
template <typename K>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, K *kernel, int threads,
                                                          size_t shared_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks, reinterpret_cast<const void *>(kernel), threads, shared_bytes);
}
template <typename T> cudaError_t cudaMalloc(T **memory, size_t bytes)
{
    return cudaMalloc(reinterpret_cast<void **>(memory), bytes);
}
template <typename T> cudaError_t cudaMallocHost(T **memory, size_t bytes)
{
    return cudaMallocHost(reinterpret_cast<void **>(memory), bytes);
}

/* Barriers, shuffles and votes. Where the call stands tells diverging threads apart. */
#define SIMULATOR_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(SIMULATOR_SITE)
{
    simulator::block_barrier({file, line});
}
static inline void __syncwarp(unsigned int mask = 0xffffffffu, SIMULATOR_SITE)
{
    simulator::warp_meet(simulator::warp_operation::synchronize, mask, 0, 0, {file, line});
}
static inline unsigned int __ballot_sync(unsigned int mask, int predicate, SIMULATOR_SITE)
{
    return static_cast<unsigned int>(simulator::warp_meet(simulator::warp_operation::ballot, mask,
                                                          predicate != 0, 0, {file, line}));
}
static inline int __any_sync(unsigned int mask, int predicate, SIMULATOR_SITE)
{
    return static_cast<int>(simulator::warp_meet(simulator::warp_operation::any, mask,
                                                 predicate != 0, 0, {file, line}));
}
static inline int __all_sync(unsigned int mask, int predicate, SIMULATOR_SITE)
{
    return static_cast<int>(simulator::warp_meet(simulator::warp_operation::all, mask,
                                                 predicate != 0, 0, {file, line}));
}

namespace simulator
{

template <typename T> T shuffle(unsigned int mask, T value, int from, site where)
{
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "shuffles move 1 to 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = warp_meet(warp_operation::shuffle, mask, bits, from, where);
    memcpy(&value, &bits, sizeof(T));
    return value;
}

/* The segment of `width` lanes that this lane is in starts at the returned lane. */
static inline int segment(int width)
{
    return static_cast<int>(lane()) & ~(width - 1);
}

} // namespace simulator

template <typename T>
T __shfl_sync(unsigned int mask, T value, int from, int width = warpSize, SIMULATOR_SITE)
{
    const int source = simulator::segment(width) + (from & (width - 1));
    return simulator::shuffle(mask, value, source, {file, line});
}
template <typename T>
T __shfl_xor_sync(unsigned int mask, T value, int lanes, int width = warpSize, SIMULATOR_SITE)
{
    const int self = static_cast<int>(simulator::lane());
    const int source = self ^ lanes;
    const bool inside = source < simulator::segment(width) + width;
    return simulator::shuffle(mask, value, inside ? source : self, {file, line});
}
template <typename T>
T __shfl_down_sync(unsigned int mask, T value, unsigned int lanes, int width = warpSize,
                   SIMULATOR_SITE)
{
    const int self = static_cast<int>(simulator::lane());
    const int source = self + static_cast<int>(lanes);
    const bool inside = source < simulator::segment(width) + width;
    return simulator::shuffle(mask, value, inside ? source : self, {file, line});
}
template <typename T>
T __shfl_up_sync(unsigned int mask, T value, unsigned int lanes, int width = warpSize,
                 SIMULATOR_SITE)
{
    const int self = static_cast<int>(simulator::lane());
    const int source = self - static_cast<int>(lanes);
    const bool inside = source >= simulator::segment(width);
    return simulator::shuffle(mask, value, inside ? source : self, {file, line});
}

#undef SIMULATOR_SITE

static inline unsigned int __activemask()
{
    return 0xffffffffu;
}
static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_block()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Atomics: on integers only, because sums of floats would depend on the order. */
#define SIMULATOR_ATOMIC(name, type, builtin)                                                      \
    static inline type name(type *at, type value)                                                  \
    {                                                                                              \
        return builtin(at, value, __ATOMIC_SEQ_CST);                                               \
    }
#define SIMULATOR_ATOMICS(type)                                                                    \
    SIMULATOR_ATOMIC(atomicAdd, type, __atomic_fetch_add)                                          \
    SIMULATOR_ATOMIC(atomicExch, type, __atomic_exchange_n)                                        \
    SIMULATOR_ATOMIC(atomicOr, type, __atomic_fetch_or)                                            \
    SIMULATOR_ATOMIC(atomicAnd, type, __atomic_fetch_and)                                          \
    static inline type atomicCAS(type *at, type expected, type value)                              \
    {                                                                                              \
        __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_SEQ_CST,                 \
                                    __ATOMIC_SEQ_CST);                                             \
        return expected;                                                                           \
    }                                                                                              \
    static inline type atomicMax(type *at, type value)                                             \
    {                                                                                              \
        type seen = __atomic_load_n(at, __ATOMIC_SEQ_CST);                                         \
        while (seen < value && !__atomic_compare_exchange_n(at, &seen, value, false,               \
                                                            __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) { \
        }                                                                                          \
        return seen;                                                                               \
    }                                                                                              \
    static inline type atomicMin(type *at, type value)                                             \
    {                                                                                              \
        type seen = __atomic_load_n(at, __ATOMIC_SEQ_CST);                                         \
        while (value < seen && !__atomic_compare_exchange_n(at, &seen, value, false,               \
                                                            __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) { \
        }                                                                                          \
        return seen;                                                                               \
    }
SIMULATOR_ATOMICS(int)
SIMULATOR_ATOMICS(unsigned int)
SIMULATOR_ATOMICS(unsigned long long)
#undef SIMULATOR_ATOMICS
#undef SIMULATOR_ATOMIC

static inline unsigned int atomicInc(unsigned int *at, unsigned int limit)
{
    unsigned int seen = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(at, &seen, seen >= limit ? 0 : seen + 1, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return seen;
}

/* Loads and stores with a cache hint. */
template <typename T> static inline T __ldg(const T *from)
{
    return *from;
}
template <typename T> static inline T __ldcs(const T *from)
{
    return *from;
}
template <typename T> static inline T __ldcg(const T *from)
{
    return *from;
}
template <typename T> static inline void __stcs(T *to, T value)
{
    *to = value;
}
template <typename T> static inline void __stcg(T *to, T value)
{
    *to = value;
}

/* Mathematics beyond math.h. The fast variants are as exact as the plain ones. */
#define SIMULATOR_MINMAX(type)                                                                     \
    static inline type min(type a, type b)                                                         \
    {                                                                                              \
        return b < a ? b : a;                                                                      \
    }                                                                                              \
    static inline type max(type a, type b)                                                         \
    {                                                                                              \
        return a < b ? b : a;                                                                      \
    }
SIMULATOR_MINMAX(int)
SIMULATOR_MINMAX(unsigned int)
SIMULATOR_MINMAX(long)
SIMULATOR_MINMAX(unsigned long)
SIMULATOR_MINMAX(long long)
SIMULATOR_MINMAX(unsigned long long)
#undef SIMULATOR_MINMAX
static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}
static inline double min(double a, double b)
{
    return fmin(a, b);
}
static inline double max(double a, double b)
{
    return fmax(a, b);
}

static inline float rsqrtf(float x)
{
    return 1.0F / sqrtf(x);
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
static inline float rcbrtf(float x)
{
    return 1.0F / cbrtf(x);
}
static inline float normcdff(float x)
{
    return 0.5F * erfcf(-x * 0.70710678118654752F);
}
/* Macros, because the C library declares functions of these names. */
#define __expf(x) expf(x)
#define __exp10f(x) powf(10.0F, x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
static inline float __fdividef(float x, float y)
{
    return x / y;
}
static inline float __frcp_rn(float x)
{
    return 1.0F / x;
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline float __frsqrt_rn(float x)
{
    return 1.0F / sqrtf(x);
}
static inline float __fdiv_rn(float x, float y)
{
    return x / y;
}
static inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}
/* Sums and products that must not become part of a fused multiply-add. */
static inline float __fadd_rn(float x, float y)
{
    volatile float sum = x + y;
    return sum;
}
static inline float __fsub_rn(float x, float y)
{
    volatile float difference = x - y;
    return difference;
}
static inline float __fmul_rn(float x, float y)
{
    volatile float product = x * y;
    return product;
}
static inline float __saturatef(float x)
{
    return x > 0.0F ? (x < 1.0F ? x : 1.0F) : 0.0F;
}

template <typename To, typename From> static inline To simulator_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}
static inline int __float_as_int(float x)
{
    return simulator_bits<int>(x);
}
static inline unsigned int __float_as_uint(float x)
{
    return simulator_bits<unsigned int>(x);
}
static inline float __int_as_float(int x)
{
    return simulator_bits<float>(x);
}
static inline float __uint_as_float(unsigned int x)
{
    return simulator_bits<float>(x);
}
static inline long long __double_as_longlong(double x)
{
    return simulator_bits<long long>(x);
}
static inline double __longlong_as_double(long long x)
{
    return simulator_bits<double>(x);
}
static inline int __float2int_rn(float x)
{
    return static_cast<int>(rintf(x));
}
static inline int __float2int_rd(float x)
{
    return static_cast<int>(floorf(x));
}
static inline int __float2int_rz(float x)
{
    return static_cast<int>(x);
}
static inline float __int2float_rn(int x)
{
    return static_cast<float>(x);
}
static inline float __uint2float_rn(unsigned int x)
{
    return static_cast<float>(x);
}

static inline int __mulhi(int x, int y)
{
    return static_cast<int>((static_cast<int64_t>(x) * y) >> 32);
}
static inline unsigned int __umulhi(unsigned int x, unsigned int y)
{
    return static_cast<unsigned int>((static_cast<uint64_t>(x) * y) >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
    __extension__ typedef unsigned __int128 wide;
    return static_cast<unsigned long long>((static_cast<wide>(x) * y) >> 64);
}
static inline int __popc(unsigned int x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz(static_cast<unsigned int>(x));
}
static inline int __clzll(long long x)
{
    return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline unsigned int __brev(unsigned int x)
{
    unsigned int reversed = 0;
    for (int bit = 0; bit < 32; bit++) {
        reversed = reversed << 1 | (x >> bit & 1u);
    }
    return reversed;
}

#endif

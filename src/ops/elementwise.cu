/* Element by element on NVIDIA GPUs: conversions, sums, differences, products.

   A thread does 8 elements, 16 or 32 bytes of each operand at a time, when all are aligned to 16 bytes, and else one;
   each element is read before it is written by the same thread, so that the result may lie where an operand of the same
   size does. */
#include <string.h>

extern "C" {
#include "ops/device.h"
#include "ops/cuda.h"
}

#include "device/cuda.h"
#include "ops/types.cuh"

static const int THREADS = 256;
static const int ONCE = 8;
static const int64_t BLOCKS_MAX = 1 << 20;

template <typename T> struct __align__(16) eight {
    typename T::stored value[ONCE];
};

static __device__ __forceinline__ float apply(int op, float x, float y) {
    switch (op) {
    case CARRY_ADD:
        return x + y;
    case CARRY_SUBTRACT:
        return x - y;
    default:
        return x * y;
    }
}

template <typename To, typename X, bool PAIR>
static __device__ __forceinline__ typename To::stored one(int op, typename X::stored x, typename X::stored y) {
    float value = X::widen(x);
    if constexpr (PAIR) {
        value = apply(op, value, X::widen(y));
    }
    return To::narrow(value);
}

template <typename To, typename X, bool PAIR>
__global__ void __launch_bounds__(THREADS)
    map_kernel(typename To::stored *to, const typename X::stored *x, const typename X::stored *y, int64_t count,
               int64_t eights, int op) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t i = first; i < eights; i += step) {
        eight<X> from = ((const eight<X> *)x)[i];
        eight<X> other = {};
        eight<To> result;
        if constexpr (PAIR) {
            other = ((const eight<X> *)y)[i];
        }
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            result.value[j] = one<To, X, PAIR>(op, from.value[j], other.value[j]);
        }
        ((eight<To> *)to)[i] = result;
    }
    for (int64_t i = eights * ONCE + first; i < count; i += step) {
        to[i] = one<To, X, PAIR>(op, x[i], PAIR ? y[i] : typename X::stored{});
    }
}

static bool is_aligned(const void *pointer) {
    return (uintptr_t)pointer % 16 == 0;
}

template <typename To, typename X, bool PAIR> static cudaError_t launch(const carry_device_map *m) {
    int64_t eights = is_aligned(m->to) && is_aligned(m->x) && is_aligned(m->y) ? m->count / ONCE : 0;
    int64_t pieces = eights > 0 ? eights : m->count;
    int64_t blocks = (pieces + THREADS - 1) / THREADS;
    map_kernel<To, X, PAIR>
        <<<(unsigned)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX), THREADS, 0, (cudaStream_t)m->stream>>>(
            (typename To::stored *)m->to, (const typename X::stored *)m->x, (const typename X::stored *)m->y, m->count,
            eights, (int)m->op);
    return cudaGetLastError();
}

extern "C" carry_status carry_cuda_map(carry_ctx *ctx, const carry_device_map *map) {
    int ordinal = map->ordinal;
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    if (map->count == 0) {
        return CARRY_OK;
    }
    cudaError_t error = with_type(map->to_type, [&](auto to) {
        return with_type(map->type, [&](auto x) {
            return map->y == NULL ? launch<decltype(to), decltype(x), false>(map)
                                  : launch<decltype(to), decltype(x), true>(map);
        });
    });
    CARRY_CUDA_TRY(error, "an element-wise kernel cannot be launched");
    return CARRY_OK;
}

template <typename E> __global__ void __launch_bounds__(THREADS) fill_kernel(E *to, E value, int64_t count) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        to[i] = value;
    }
}

template <typename E>
static cudaError_t launch_fill(void *to, const unsigned char *bits, int64_t count, cudaStream_t stream) {
    E value;
    memcpy(&value, bits, sizeof value);
    int64_t blocks = (count + THREADS - 1) / THREADS;
    fill_kernel<E>
        <<<(unsigned)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX), THREADS, 0, stream>>>((E *)to, value, count);
    return cudaGetLastError();
}

extern "C" carry_status carry_cuda_fill(carry_ctx *ctx, int ordinal, void *to, const unsigned char *bits, size_t size,
                                        int64_t count, carry_stream *stream) {
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    if (count == 0) {
        return CARRY_OK;
    }
    cudaStream_t in = (cudaStream_t)stream;
    cudaError_t error = size == 2   ? launch_fill<uint16_t>(to, bits, count, in)
                        : size == 4 ? launch_fill<uint32_t>(to, bits, count, in)
                                    : launch_fill<uint64_t>(to, bits, count, in);
    CARRY_CUDA_TRY(error, "a fill cannot be launched");
    return CARRY_OK;
}

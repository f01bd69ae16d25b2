/* Shared by the kernels of a decoding step: order between kernels, loads, and sums. */
#ifndef CARRY_ENGINE_CHAIN_KERNEL_CUH
#define CARRY_ENGINE_CHAIN_KERNEL_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#include "engine/chain_ops.h"

namespace chain {

constexpr int WARPS = 8, THREADS = 32 * WARPS, KEY = CARRY_CHAIN_KEY, TILE = CARRY_CHAIN_TILE;

/* Allows the next kernel to start; it waits for this one before it reads results. */
static __device__ __forceinline__ void let_next_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Waits until the previous kernel, and all kernels before it, have ended; their results can then be read. */
static __device__ __forceinline__ void await_previous() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* Loads weights, which a step reads only once. */
static __device__ __forceinline__ uint4 load_once(const void *from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

/* Loads results of other kernels from the L2 cache: the cache of the multiprocessor may have older data. */
static __device__ __forceinline__ uint4 load_result(const void *from) {
    return __ldcg((const uint4 *)from);
}

static __device__ __forceinline__ float load_bf16(const void *from, size_t at) {
    const unsigned short bits = __ldcg((const unsigned short *)from + at);
    return __uint_as_float((unsigned)bits << 16);
}

static __device__ __forceinline__ float low_of(unsigned pair) {
    return __uint_as_float(pair << 16);
}

static __device__ __forceinline__ float high_of(unsigned pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

static __device__ __forceinline__ unsigned pair_of(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const unsigned *)&pair;
}

/* Four neighbouring elements of a state, which is f32 or bf16 and read once; two of them; and their inverses. bf16 is
   rounded to the nearest, ties to even. */
template <typename S> static __device__ __forceinline__ float4 load_four(const S *from) {
    if constexpr (sizeof(S) == 4) {
        return __ldcs((const float4 *)from);
    } else {
        const uint2 w = __ldcs((const uint2 *)from);
        return make_float4(low_of(w.x), high_of(w.x), low_of(w.y), high_of(w.y));
    }
}

template <typename S> static __device__ __forceinline__ void store_four(S *to, float4 x) {
    if constexpr (sizeof(S) == 4) {
        __stcs((float4 *)to, x);
    } else {
        __stcs((uint2 *)to, make_uint2(pair_of(x.x, x.y), pair_of(x.z, x.w)));
    }
}

template <typename S> static __device__ __forceinline__ float2 load_two(const S *from) {
    if constexpr (sizeof(S) == 4) {
        return __ldcs((const float2 *)from);
    } else {
        const unsigned w = __ldcs((const unsigned *)from);
        return make_float2(low_of(w), high_of(w));
    }
}

template <typename S> static __device__ __forceinline__ void store_two(S *to, float2 x) {
    if constexpr (sizeof(S) == 4) {
        __stcs((float2 *)to, x);
    } else {
        __stcs((unsigned *)to, pair_of(x.x, x.y));
    }
}

static __device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int apart = 16; apart > 0; apart >>= 1) {
        x += __shfl_xor_sync(~0u, x, apart);
    }
    return x;
}

static __device__ __forceinline__ float sigmoid(float x) {
    return 1.0f / (1.0f + __expf(-x));
}

static __device__ __forceinline__ float silu(float x) {
    return x * sigmoid(x);
}

static __device__ __forceinline__ float softplus(float x) {
    return x > 20.0f ? x : log1pf(__expf(x));
}

} // namespace chain

#endif

/* Heads of queries, keys and values of one token, in the kernels of a decoding step: norms, rotary positions, and the
   cache. A warp has a head: lane l has elements E l to E l + E - 1. */
#ifndef CARRY_ENGINE_CHAIN_HEADS_CUH
#define CARRY_ENGINE_CHAIN_HEADS_CUH

#include "engine/cuda/chain_kernel.cuh"
#include "engine/runner.h"
#include "ops/cuda/f8.cuh"

namespace chain {

/* Cosines and sines of a position for the E elements of a head that a lane holds, from lane E on. */
template <int E> struct turn { float cosine[E], sine[E]; };

template <int E> static __device__ __forceinline__ turn<E> turn_of(const carry_chain_attend &a, int64_t position) {
    const int lane = threadIdx.x % 32, half = a.rotary / 2;
    turn<E> t;
#pragma unroll
    for (int e = 0; e < E; e++) {
        const int i = lane * E + e;
        t.cosine[e] = 1.0f;
        t.sine[e] = 0.0f;
        if (i < a.rotary) {
            const float angle = (float)position * __ldg(a.rates + (i < half ? i : i - half));
            double turns = (double)angle * 0.15915494309189535; /* in float, large angles would lose their fraction */
            turns -= rint(turns);
            sincospif((float)(2.0 * turns), &t.sine[e], &t.cosine[e]);
            t.sine[e] = i < half ? -t.sine[e] : t.sine[e];
        }
    }
    return t;
}

/* The elements of a head that a lane holds. */
template <int E> struct alignas(E * 2) lane_elements { unsigned pair[E / 2]; };

template <int E> static __device__ __forceinline__ lane_elements<E> load(const void *from, size_t at) {
    const auto *p = (const __nv_bfloat16 *)from + at;
    lane_elements<E> x;
    if constexpr (E == 8) {
        *(uint4 *)&x = __ldcg((const uint4 *)p);
    } else {
        *(uint2 *)&x = __ldcg((const uint2 *)p);
    }
    return x;
}

template <int E> static __device__ __forceinline__ void widen(float (&x)[E], const lane_elements<E> &from) {
#pragma unroll
    for (int e = 0; e < E / 2; e++) {
        x[2 * e] = low_of(from.pair[e]);
        x[2 * e + 1] = high_of(from.pair[e]);
    }
}

/* One warp loads a head, normalises it and applies rotary positions. rotary / 2 must be a multiple of E. */
template <int E>
static __device__ __forceinline__ void turned(float (&x)[E], const lane_elements<E> &from, const float *norm,
                                              const carry_chain_attend &a, const turn<E> &t) {
    const int lane = threadIdx.x % 32, apart = a.rotary / 2 / E;
    float w[E], squares = 0.0f;
#pragma unroll
    for (int e = 0; e < E; e += 2) {
        *(float2 *)(w + e) = norm != nullptr ? __ldg((const float2 *)(norm + lane * E + e)) : make_float2(0, 0);
    }
    widen<E>(x, from);
#pragma unroll
    for (int e = 0; e < E; e++) {
        squares += x[e] * x[e];
    }
    const float r = norm != nullptr ? rsqrtf(warp_sum(squares) / (float)a.width + a.eps) : 1.0f;
    const float plus = norm != nullptr ? a.plus : 1.0f;
#pragma unroll
    for (int e = 0; e < E; e++) {
        x[e] *= r * (plus + w[e]);
        const float other = __shfl_sync(~0u, x[e], lane < apart ? lane + apart : lane - apart);
        x[e] = x[e] * t.cosine[e] + other * t.sine[e];
    }
}

/* A warp stores a head of the cache in bf16, or in 8 bits with a scale: at `to` and, for its own block, at `copy`. */
template <int E, bool F8>
static __device__ __forceinline__ void store_head(void *to, uint8_t *scale_to, unsigned char *copy, uint8_t *scale_copy,
                                                  const float (&x)[E]) {
    const int lane = threadIdx.x % 32;
    if constexpr (F8) {
        uint32_t largest = 0;
#pragma unroll
        for (int e = 0; e < E; e++) {
            const uint32_t size = f8_size(x[e]);
            largest = size > largest ? size : largest;
        }
        const uint32_t scale = carry_f8_scale_of(f8_largest_of_warp(largest));
        const float inverse = carry_f8_inverse(scale);
#pragma unroll
        for (int e = 0; e < E; e += 4) {
            const unsigned codes =
                f8_codes(make_float4(x[e] * inverse, x[e + 1] * inverse, x[e + 2] * inverse, x[e + 3] * inverse));
            *(unsigned *)((uint8_t *)to + lane * E + e) = codes;
            *(unsigned *)(copy + lane * E + e) = codes;
        }
        if (lane == 0) {
            *scale_to = *scale_copy = (uint8_t)scale;
        }
    } else {
#pragma unroll
        for (int e = 0; e < E; e += 2) {
            const unsigned pair = pair_of(x[e], x[e + 1]);
            *(unsigned *)((__nv_bfloat16 *)to + lane * E + e) = pair;
            *(unsigned *)(copy + (lane * E + e) * 2) = pair;
        }
    }
}

} // namespace chain

#endif

/* Running means of gradients in memory: f32, or bf16 that is rounded up or down at random (ops/dither.h). */
#ifndef CARRY_OPS_CUDA_MOMENTS_CUH
#define CARRY_OPS_CUDA_MOMENTS_CUH

#include <stdint.h>

#include "ops/cuda/nn.cuh"

#define CARRY_DITHER_FUNCTION static __device__ __forceinline__
#include "ops/dither.h"

/* A bf16 as it is stored. */
struct moment_bf16 {
    uint16_t bits;
};

/* Calls f with a value of the type of m and v. */
template <typename F> static void with_moments(carry_dtype dtype, F f) {
    if (dtype == CARRY_BF16) {
        f(moment_bf16{});
    } else {
        f(float{});
    }
}

static __device__ __forceinline__ float moment_at(const float *m, int64_t i) {
    return m[i];
}

static __device__ __forceinline__ float moment_at(const moment_bf16 *m, int64_t i) {
    return __uint_as_float((uint32_t)m[i].bits << 16);
}

/* The low 16 bits of `random` choose the direction of rounding. */
static __device__ __forceinline__ void put_moment(float *m, int64_t i, float value, uint32_t) {
    m[i] = value;
}

static __device__ __forceinline__ void put_moment(moment_bf16 *m, int64_t i, float value, uint32_t random) {
    m[i].bits = carry_dither(__float_as_uint(value), random);
}

/* The same for elements 4 i to 4 i + 3, which are aligned. */
static __device__ __forceinline__ float4 four_moments_at(const float *m, int64_t i) {
    return ((const float4 *)m)[i];
}

static __device__ __forceinline__ float4 four_moments_at(const moment_bf16 *m, int64_t i) {
    const uint2 pairs = ((const uint2 *)m)[i];
    return make_float4(__uint_as_float(pairs.x << 16), __uint_as_float(pairs.x & 0xFFFF0000u),
                       __uint_as_float(pairs.y << 16), __uint_as_float(pairs.y & 0xFFFF0000u));
}

static __device__ __forceinline__ void put_four_moments(float *m, int64_t i, const float *value, const uint32_t *) {
    ((float4 *)m)[i] = make_float4(value[0], value[1], value[2], value[3]);
}

static __device__ __forceinline__ void put_four_moments(moment_bf16 *m, int64_t i, const float *value,
                                                        const uint32_t *random) {
    uint32_t narrow[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        narrow[k] = carry_dither(__float_as_uint(value[k]), random[k]);
    }
    ((uint2 *)m)[i] = make_uint2(narrow[0] | narrow[1] << 16, narrow[2] | narrow[3] << 16);
}

#endif

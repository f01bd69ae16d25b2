/* 8-bit floats (e4m3) on GPUs: four at a time, the first in the lowest byte. */
#ifndef CARRY_OPS_CUDA_F8_CUH
#define CARRY_OPS_CUDA_F8_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "ops/f8.h"

namespace {

/* Exact, and NaN for NaN. */
__device__ __forceinline__ float4 f8_four(uint32_t codes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint32_t low, high;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(low) : "h"((unsigned short)codes));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(high) : "h"((unsigned short)(codes >> 16)));
    const float2 a = __half22float2(*(const __half2 *)&low), b = __half22float2(*(const __half2 *)&high);
    return make_float4(a.x, a.y, b.x, b.y);
#else
    return make_float4(carry_f8_value((uint8_t)codes), carry_f8_value((uint8_t)(codes >> 8)),
                       carry_f8_value((uint8_t)(codes >> 16)), carry_f8_value((uint8_t)(codes >> 24)));
#endif
}

__device__ __forceinline__ uint32_t f8_codes(float4 x) {
    return (uint32_t)carry_f8_round(x.x) | (uint32_t)carry_f8_round(x.y) << 8 | (uint32_t)carry_f8_round(x.z) << 16 |
           (uint32_t)carry_f8_round(x.w) << 24;
}

/* The bits of |x|, or 0 if x is not finite: for the largest number of a head. */
__device__ __forceinline__ uint32_t f8_size(float x) {
    const uint32_t size = carry_f8_bits(x) & 0x7fffffffu;
    return size < 0x7f800000u ? size : 0;
}

__device__ __forceinline__ uint32_t f8_largest_of_warp(uint32_t size) {
#pragma unroll
    for (int apart = 16; apart > 0; apart >>= 1) {
        const uint32_t other = __shfl_xor_sync(~0u, size, apart);
        size = other > size ? other : size;
    }
    return size;
}

} // namespace

#endif

/* Loads and stores of single values, and of four adjacent ones, in an array whose element type is known at run time. */
#ifndef CARRY_SCAN_VALUE_CUH
#define CARRY_SCAN_VALUE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <string.h>

namespace carry_value {

/* The values of carry_dtype, repeated so that device code needs no C header. */
enum : int { F32 = 0, BF16 = 1, F16 = 2 };

__device__ inline float load(const void *data, int dtype, int64_t i) {
    return dtype == F32   ? ((const float *)data)[i]
           : dtype == F16 ? __half2float(((const __half *)data)[i])
                          : __bfloat162float(((const __nv_bfloat16 *)data)[i]);
}

/* The value of an element from its bits (the lower 16, unless it is f32). All three conversions are computed and one is
   selected, which is cheaper than a branch for each value. */
__device__ inline float of_bits(uint32_t bits, int dtype) {
    uint16_t low = (uint16_t)bits;
    __half half;
    memcpy(&half, &low, sizeof half);
    uint32_t wide = dtype == F32 ? bits : bits << 16; /* bf16 is the upper half of f32 */
    float value;
    memcpy(&value, &wide, sizeof value);
    return dtype == F16 ? __half2float(half) : value;
}

__device__ inline void store(void *data, int dtype, int64_t i, float x) {
    if (dtype == F32) {
        ((float *)data)[i] = x;
    } else if (dtype == F16) {
        ((__half *)data)[i] = __float2half_rn(x);
    } else {
        ((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn(x);
    }
}

/* Loads four adjacent elements in one access. i must be a multiple of four. */
__device__ inline float4 load_four(const void *data, int dtype, int64_t i) {
    if (dtype == F32) {
        return *(const float4 *)((const float *)data + i);
    }
    uint2 bits = *(const uint2 *)((const uint16_t *)data + i);
    float2 low;
    float2 high;
    if (dtype == F16) {
        __half2 pairs[2];
        memcpy(pairs, &bits, sizeof bits);
        low = __half22float2(pairs[0]);
        high = __half22float2(pairs[1]);
    } else {
        __nv_bfloat162 pairs[2];
        memcpy(pairs, &bits, sizeof bits);
        low = __bfloat1622float2(pairs[0]);
        high = __bfloat1622float2(pairs[1]);
    }
    return make_float4(low.x, low.y, high.x, high.y);
}

__device__ inline void store_four(void *data, int dtype, int64_t i, float4 x) {
    if (dtype == F32) {
        *(float4 *)((float *)data + i) = x;
        return;
    }
    uint2 bits;
    if (dtype == F16) {
        __half2 pairs[2] = {__floats2half2_rn(x.x, x.y), __floats2half2_rn(x.z, x.w)};
        memcpy(&bits, pairs, sizeof bits);
    } else {
        __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w)};
        memcpy(&bits, pairs, sizeof bits);
    }
    *(uint2 *)((uint16_t *)data + i) = bits;
}

} // namespace carry_value

#endif

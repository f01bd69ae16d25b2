/* bfloat16, as far as Carry uses it. */
#ifndef CARRY_EMULATE_BF16_H
#define CARRY_EMULATE_BF16_H

#include "cuda_runtime.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
struct __align__(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) {
    return __nv_bfloat16{bits};
}
static inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 value) {
    return value.bits;
}
static inline float __bfloat162float(__nv_bfloat16 value) {
    return carry_f32_from_bf16(value.bits);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float value) {
    return __nv_bfloat16{carry_bf16_from_f32(value)};
}
static inline __nv_bfloat16 __float2bfloat16(float value) {
    return __float2bfloat16_rn(value);
}
static inline float2 __bfloat1622float2(__nv_bfloat162 value) {
    return float2{__bfloat162float(value.x), __bfloat162float(value.y)};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return __nv_bfloat162{__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

#endif

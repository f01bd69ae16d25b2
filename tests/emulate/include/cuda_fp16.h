/* IEEE half precision, as far as Carry uses it. */
#ifndef CARRY_EMULATE_FP16_H
#define CARRY_EMULATE_FP16_H

#include "cuda_runtime.h"

struct __half {
    uint16_t bits;
};
struct __align__(4) __half2 {
    __half x, y;
};
typedef __half half;
typedef __half2 half2;

static inline __half __ushort_as_half(uint16_t bits) {
    return __half{bits};
}
static inline uint16_t __half_as_ushort(__half value) {
    return value.bits;
}
static inline float __half2float(__half value) {
    return carry_f32_from_f16(value.bits);
}
static inline __half __float2half_rn(float value) {
    return __half{carry_f16_from_f32(value)};
}
static inline __half __float2half(float value) {
    return __float2half_rn(value);
}
static inline float2 __half22float2(__half2 value) {
    return float2{__half2float(value.x), __half2float(value.y)};
}
static inline __half2 __hmax2(__half2 a, __half2 b) {
    return __half2{__half2float(a.x) > __half2float(b.x) ? a.x : b.x,
                   __half2float(a.y) > __half2float(b.y) ? a.y : b.y};
}
static inline __half2 __floats2half2_rn(float x, float y) {
    return __half2{__float2half_rn(x), __float2half_rn(y)};
}

#endif

/* Element types in CUDA code: conversions from and to f32 with exactly the bits of core/dtype.c, including NaN
   payloads, which the GPU's own conversions do not keep. */
#ifndef CARRY_OPS_TYPES_CUH
#define CARRY_OPS_TYPES_CUH

#include <cuda_fp16.h>
#include <stdint.h>

struct type_f32 {
    typedef uint32_t stored;
    static __device__ __forceinline__ float widen(uint32_t bits) {
        return __uint_as_float(bits);
    }
    static __device__ __forceinline__ uint32_t narrow(float value) {
        return __float_as_uint(value);
    }
};

struct type_bf16 {
    typedef uint16_t stored;
    static __device__ __forceinline__ float widen(uint16_t bits) {
        return __uint_as_float((uint32_t)bits << 16);
    }
    static __device__ __forceinline__ uint16_t narrow(float value) {
        uint32_t bits = __float_as_uint(value);
        if ((bits & 0x7fffffffu) > 0x7f800000u) {
            return (uint16_t)((bits >> 16) | 0x40u);
        }
        return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
};

struct type_f16 {
    typedef uint16_t stored;
    static __device__ __forceinline__ float widen(uint16_t bits) {
        if ((bits & 0x7fffu) > 0x7c00u) {
            return __uint_as_float((((uint32_t)bits & 0x8000u) << 16) | 0x7fc00000u |
                                   (((uint32_t)bits & 0x3ffu) << 13));
        }
        return __half2float(__ushort_as_half(bits));
    }
    static __device__ __forceinline__ uint16_t narrow(float value) {
        uint32_t bits = __float_as_uint(value);
        if ((bits & 0x7fffffffu) > 0x7f800000u) {
            return (uint16_t)(((bits >> 16) & 0x8000u) | 0x7e00u | ((bits >> 13) & 0x1ffu));
        }
        return __half_as_ushort(__float2half_rn(value));
    }
};

/* Calls with<T>() with the type's struct. */
template <typename With> static inline auto with_type(carry_dtype dtype, With with) {
    switch (dtype) {
    case CARRY_BF16:
        return with(type_bf16{});
    case CARRY_F16:
        return with(type_f16{});
    default:
        return with(type_f32{});
    }
}

#endif

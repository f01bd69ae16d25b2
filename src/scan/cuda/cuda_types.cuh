/* Elements of f32, bf16 and f16 as floats in registers: packs of up to 16 bytes, or one at a time for a type known at
   run time. Loads and stores are plain: with streaming hints (.cs), a walk through 2 GB took 595 us instead of 572. */
#ifndef CARRY_SCAN_CUDA_TYPES_CUH
#define CARRY_SCAN_CUDA_TYPES_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "scan/cuda/cuda.h"

static __device__ __forceinline__ float carry_to_float(float x) {
    return x;
}
static __device__ __forceinline__ float carry_to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
static __device__ __forceinline__ float carry_to_float(__half x) {
    return __half2float(x);
}

template <typename T> static __device__ __forceinline__ T carry_from_float(float x);
template <> __device__ __forceinline__ float carry_from_float<float>(float x) {
    return x;
}
template <> __device__ __forceinline__ __nv_bfloat16 carry_from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ __half carry_from_float<__half>(float x) {
    return __float2half_rn(x);
}

/* The machine word of BYTES bytes. */
template <int BYTES> struct carry_word;
template <> struct carry_word<2> { using type = unsigned short; };
template <> struct carry_word<4> { using type = unsigned; };
template <> struct carry_word<8> { using type = uint2; };
template <> struct carry_word<16> { using type = uint4; };

/* V elements of type T in storage format, in the fewest words. */
template <int V, typename T> struct carry_pack {
    static constexpr int bytes = V * (int)sizeof(T);
    using word = typename carry_word<(bytes < 16 ? bytes : 16)>::type;
    static constexpr int words = bytes / (int)sizeof(word);
    word raw[words];

    __device__ __forceinline__ void load(const T *from) {
#pragma unroll
        for (int i = 0; i < words; i++) {
            raw[i] = reinterpret_cast<const word *>(from)[i];
        }
    }
    __device__ __forceinline__ void store(T *to) const {
#pragma unroll
        for (int i = 0; i < words; i++) {
            reinterpret_cast<word *>(to)[i] = raw[i];
        }
    }
    __device__ __forceinline__ void expand(float (&x)[V]) const {
        const T *values = reinterpret_cast<const T *>(raw);
#pragma unroll
        for (int v = 0; v < V; v++) {
            x[v] = carry_to_float(values[v]);
        }
    }
    __device__ __forceinline__ void pack(const float (&x)[V]) {
        T *values = reinterpret_cast<T *>(raw);
#pragma unroll
        for (int v = 0; v < V; v++) {
            values[v] = carry_from_float<T>(x[v]);
        }
    }
};

/* Loads one element of a type known at run time. The branch is the same for every thread. */
static __device__ __forceinline__ float carry_load_any(const void *from, carry_dtype type, int64_t at) {
    if (type == CARRY_F32) {
        return static_cast<const float *>(from)[at];
    }
    unsigned short bits = static_cast<const unsigned short *>(from)[at];
    return type == CARRY_BF16 ? __bfloat162float(__ushort_as_bfloat16(bits)) : __half2float(__ushort_as_half(bits));
}

static __device__ __forceinline__ void carry_store_any(void *to, carry_dtype type, int64_t at, float x) {
    if (type == CARRY_F32) {
        static_cast<float *>(to)[at] = x;
    } else {
        unsigned short bits =
            type == CARRY_BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x)) : __half_as_ushort(__float2half_rn(x));
        static_cast<unsigned short *>(to)[at] = bits;
    }
}

#endif

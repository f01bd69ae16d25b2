/* Rounding to 8-bit floats, and recording the largest magnitude of a matrix (ops/fp8.h). */
#ifndef CARRY_OPS_FP8_CUH
#define CARRY_OPS_FP8_CUH

#include "ops/cuda/wide.cuh"
#include "ops/f8.h"

extern "C" {
#include "ops/fp8.h"
}

/* The code of a number, as in fp8_cpu.c; for GPUs without the instruction. */
static __device__ __forceinline__ unsigned fp8_code_of(float value, bool is_wide) {
    const int least = -14; /* exponent of the smallest normal number of e5m2 */
    const unsigned of = __float_as_uint(value), sign = of >> 24 & 0x80u;
    if (!is_wide) {
        return carry_f8_round(value);
    }
    if ((of & 0x7f800000u) == 0x7f800000u) {
        return sign | 0x7fu;
    }
    const float magnitude = fminf(fabsf(value), 57344.0f);
    const int power = (int)(__float_as_uint(magnitude) >> 23) - 127, exponent = power < least ? least : power;
    const float factor = __uint_as_float((unsigned)(129 - exponent) << 23);
    return sign | (unsigned)(((exponent - least) << 2) + (int)rintf(magnitude * factor));
}

static __device__ __forceinline__ float fp8_value(unsigned code, bool is_wide) {
    const int least = -14, exponent = (int)(code & 0x7fu) >> 2, fraction = (int)code & 3;
    if (!is_wide) {
        return carry_f8_value((uint8_t)code);
    }
    if (exponent == 31) {
        return __uint_as_float(0x7fc00000u);
    }
    const int steps = exponent == 0 ? fraction : 4 + fraction;
    const int power = (exponent == 0 ? least : exponent - 1 + least) - 2;
    const float magnitude = (float)steps * __uint_as_float((unsigned)(127 + power) << 23);
    return (code & 0x80u) != 0 ? -magnitude : magnitude;
}

/* Two numbers rounded; `low` is in the low byte. */
template <bool WIDE> static __device__ __forceinline__ unsigned fp8_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned short pair;
    if (WIDE) {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    }
    return pair;
#else
    return fp8_code_of(low, WIDE) | fp8_code_of(high, WIDE) << 8;
#endif
}

/* x / scale; NaN if x is infinite, which rounding would saturate. */
static __device__ __forceinline__ float fp8_scaled(float x, float inverse) {
    return fmaf(x, inverse, x - x);
}

/* Eight bf16 numbers of four words. */
template <bool WIDE> static __device__ __forceinline__ uint2 fp8_eight(const uint32_t (&word)[4], float inverse) {
    unsigned pair[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        pair[i] = fp8_pair<WIDE>(fp8_scaled(__uint_as_float(word[i] << 16), inverse),
                                 fp8_scaled(__uint_as_float(word[i] & 0xffff0000u), inverse));
    }
    return make_uint2(pair[0] | pair[1] << 16, pair[2] | pair[3] << 16);
}

static __device__ __forceinline__ uint2 fp8_eight_of(const uint32_t (&word)[4], float inverse, bool is_wide) {
    return is_wide ? fp8_eight<true>(word, inverse) : fp8_eight<false>(word, inverse);
}

/* Eight f32 numbers rounded to bf16, as store_all does. */
static __device__ __forceinline__ void fp8_words(uint32_t (&word)[4], const float (&from)[ONCE]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        word[i] = pair_of_bf16(from[2 * i], from[2 * i + 1]);
    }
}

/* Largest magnitudes of the numbers in the low and high halves of words, as the bits of bf16, which are ordered like
   the numbers; those of NaN are above those of infinity. */
struct fp8_largest {
    unsigned low, high;
    __device__ __forceinline__ void take(const uint32_t (&word)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            low = max(low, word[i] & 0x7fffu);
            high = max(high, word[i] & 0x7fff0000u);
        }
    }
    /* The largest of a warp, as the bits of f32. Called by all of its threads; their order does not matter for a
       maximum. */
    __device__ __forceinline__ unsigned of_warp() const {
        unsigned most = max(low << 16, high);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
        }
        return most;
    }
    __device__ __forceinline__ void record(float *scale) const {
        const unsigned most = of_warp();
        unsigned *to = (unsigned *)&scale[CARRY_FP8_LARGEST];
        if (threadIdx.x % 32 == 0 && most > __ldcg(to)) {
            atomicMax(to, most);
        }
    }
};

#endif

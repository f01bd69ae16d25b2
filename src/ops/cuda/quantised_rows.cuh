/* Products of one to eight rows of activations in f32 with units of quantised tiles (ops/quantised/tiles.h), on any
   GPU: a warp decodes a unit to f32, and each lane multiplies its 8 columns of rows g and g + 8.

   For one or two rows this takes as many instructions as tensor cores with 16-bit operands do
   (quantised_ring_hopper.cuh), and activations need no rounding. Codes are decoded two at a time as f16 numbers: 1024 +
   code for integers, whose offset is a part of the minimum, and code / 256 for 8-bit floats, where the scale has the
   factor. */
#ifndef CARRY_OPS_CUDA_QUANTISED_ROWS_CUH
#define CARRY_OPS_CUDA_QUANTISED_ROWS_CUH

#include <cuda_fp16.h>

#include "ops/cuda/quantised_forms.cuh"

namespace quantised {

/* A lane's part of a unit. */
template <class F> struct lane_unit {
    static constexpr int CODES = unit_of<F>::CODES / 512, SETS = F::GROUP == 128 ? 1 : 2;
    uint4 codes[CODES];
    unsigned scales[SETS][F::SCALE_WORDS];
};

template <class F>
static __device__ __forceinline__ void load_unit(lane_unit<F> &u, const unsigned char *unit, int lane) {
#pragma unroll
    for (int i = 0; i < lane_unit<F>::CODES; i++) {
        u.codes[i] = __ldg((const uint4 *)(unit + i * 512 + lane * 16));
    }
#pragma unroll
    for (int i = 0; i < lane_unit<F>::SETS; i++) {
        const unsigned char *from = unit + unit_of<F>::CODES + scale_words_at<F>(i, lane) * 4;
        if constexpr (F::SCALE_WORDS == 4) {
            const uint4 words = __ldg((const uint4 *)from);
            u.scales[i][0] = words.x;
            u.scales[i][1] = words.y;
            u.scales[i][2] = words.z;
            u.scales[i][3] = words.w;
        } else if constexpr (F::SCALE_WORDS == 2) {
            const uint2 words = __ldg((const uint2 *)from);
            u.scales[i][0] = words.x;
            u.scales[i][1] = words.y;
        } else {
            u.scales[i][0] = __ldg((const unsigned *)from);
        }
    }
}

static __device__ __forceinline__ float low_half(unsigned word) {
    return __half2float(__ushort_as_half((unsigned short)(word & 0xffffu)));
}

static __device__ __forceinline__ float high_half(unsigned word) {
    return __half2float(__ushort_as_half((unsigned short)(word >> 16)));
}

/* Eight columns of one row, as numbers whose product with by, plus less, is the value. */
template <class F>
static __device__ __forceinline__ void decode_row(float (&to)[8], const uint4 &w, int second, int half) {
    const unsigned words[2] = {second == 0 ? w.x : w.y, second == 0 ? w.z : w.w};
    if constexpr (F::BITS == 8) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const unsigned odd = F::FLOATS ? words[i] : words[i] >> 8, even = F::FLOATS ? words[i] << 8 : words[i];
            const unsigned first =
                F::FLOATS ? (even & 0x80008000u) | (even >> 1 & 0x3f803f80u) : (even & 0x00ff00ffu) | 0x64006400u;
            const unsigned next =
                F::FLOATS ? (odd & 0x80008000u) | (odd >> 1 & 0x3f803f80u) : (odd & 0x00ff00ffu) | 0x64006400u;
            to[4 * i] = low_half(first);
            to[4 * i + 1] = low_half(next);
            to[4 * i + 2] = high_half(first);
            to[4 * i + 3] = high_half(next);
        }
    } else {
        const unsigned word = words[half];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned pair = (word >> (4 * i) & 0x000f000fu) | 0x64006400u;
            to[2 * i] = low_half(pair);
            to[2 * i + 1] = high_half(pair);
        }
    }
}

/* The scale, and what is added after it, for columns 32 at to 32 at + 31 of a unit in row g (second 0) or g + 8. */
template <class F>
static __device__ __forceinline__ void scale_of(float *by, float *less, const lane_unit<F> &u, int at, int second) {
    constexpr float MIDDLE = F::BITS == 4 ? 1024.0f + 8.0f : 1024.0f + 128.0f;
    const unsigned *words = u.scales[F::GROUP == 128 ? 0 : at / 2];
    float minimum = 0.0f;
    if constexpr (F::WIDE) {
        *by = __uint_as_float(second == 0 ? words[0] : words[1]);
    } else {
        const int half = F::OF_SUMS ? 0 : at % 2;
        const unsigned pair = words[F::MINIMUM ? 2 * half : half];
        *by = second == 0 ? low_half(pair) : high_half(pair);
        if constexpr (F::MINIMUM) {
            minimum = second == 0 ? low_half(words[2 * half + 1]) : high_half(words[2 * half + 1]);
        }
    }
    if constexpr (F::FLOATS) {
        *by *= 256.0f;
        *less = 0.0f;
    } else {
        *less = -fmaf(MIDDLE, *by, minimum);
    }
}

/* sum[0] and sum[1] += the products of rows g and g + 8 with x, whose rows are `pitch` floats apart. x: this lane's
   first column of the unit in the first row. */
template <class F, int R>
static __device__ __forceinline__ void add_unit_rows(float (&sum)[2][R], const lane_unit<F> &u, const float *x,
                                                     int pitch) {
#pragma unroll
    for (int at = 0; at < 4; at++) {
        float w[2][8];
#pragma unroll
        for (int second = 0; second < 2; second++) {
            float by, less;
            scale_of(&by, &less, u, at, second);
            decode_row<F>(w[second], u.codes[F::BITS == 8 ? at : at / 2], second, at % 2);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                w[second][i] = fmaf(w[second][i], by, less);
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float4 a = *(const float4 *)(x + r * pitch + at * 32),
                         b = *(const float4 *)(x + r * pitch + at * 32 + 4);
            const float values[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum[0][r] = fmaf(w[0][i], values[i], sum[0][r]);
                sum[1][r] = fmaf(w[1][i], values[i], sum[1][r]);
            }
        }
    }
}

/* The sums of a row are spread over the lanes of equal g: all four get them. */
static __device__ __forceinline__ float sum_of_four(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    value += __shfl_xor_sync(0xffffffffu, value, 2);
    return value;
}

} // namespace quantised

#endif

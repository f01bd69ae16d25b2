/* Decodes blocks of the formats element by element, and tiles (ops/quantised/tiles.h) eight columns at a time. */
#ifndef CARRY_OPS_CUDA_QUANTISED_CUH
#define CARRY_OPS_CUDA_QUANTISED_CUH

#include <cuda_fp16.h>
#include <stdint.h>

extern "C" {
#include "ops/quantised/tiles.h"
}

namespace quantised {

/* value = scale * code - minimum */
struct element {
    int code;
    float scale, minimum;
};

static __device__ __forceinline__ float f16_at(const unsigned char *at) {
    return __half2float(__ushort_as_half((unsigned short)(at[0] | at[1] << 8)));
}

static __device__ __forceinline__ unsigned u32_at(const unsigned char *at) {
    return at[0] | at[1] << 8 | at[2] << 16 | (unsigned)at[3] << 24;
}

/* Column i of Q4_K, or of Q5_K, where `high` holds bit 4 of each value. */
static __device__ __forceinline__ element element_k(const unsigned char *at, const unsigned char *high,
                                                    const unsigned char *low, int i) {
    const unsigned char *packed = at + 4;
    const int j = i / 32, n = i % 32, bits = low[j / 2 * 32 + n];
    const int scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
    const int minimum = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    const int q = (j % 2 == 0 ? bits & 15 : bits >> 4) | (high != nullptr ? (high[n] >> j & 1) << 4 : 0);
    const int middle = high != nullptr ? 16 : 8;
    const float by = f16_at(at) * (float)scale;
    return element{q - middle, by, f16_at(at + 2) * (float)minimum - by * (float)middle};
}

static __device__ __forceinline__ element element_q6_k(const unsigned char *at, int i) {
    const int half = i / 128, quarter = i % 128 / 32, n = i % 32;
    const int low = at[half * 64 + quarter % 2 * 32 + n] >> (quarter / 2 * 4) & 15;
    const int high = at[128 + half * 32 + n] >> (quarter * 2) & 3;
    return element{(low | high << 4) - 32, f16_at(at + 208) * (float)(int8_t)at[192 + i / 16], 0.0f};
}

/* 16 bytes hold 32 columns. */
static __device__ __forceinline__ int nibble(const unsigned char *at, int i) {
    const int byte = at[i / 32 * 16 + i % 16];
    return i % 32 < 16 ? byte & 15 : byte >> 4;
}

/* Column i of a block. */
static __device__ __forceinline__ element element_of(int format, const unsigned char *at, int i) {
    switch (format) {
    case CARRY_QUANT_IS_fp8_block:
        return element{at[4 + i], __uint_as_float(u32_at(at)), 0.0f};
    case CARRY_QUANT_IS_int8:
        return element{(int8_t)at[4 + i], __uint_as_float(u32_at(at)), 0.0f};
    case CARRY_QUANT_IS_q8_0:
        return element{(int8_t)at[2 + i], f16_at(at), 0.0f};
    case CARRY_QUANT_IS_q4_0:
        return element{nibble(at + 2, i) - 8, f16_at(at), 0.0f};
    case CARRY_QUANT_IS_q4_k:
        return element_k(at, nullptr, at + 16, i);
    case CARRY_QUANT_IS_q5_k:
        return element_k(at, at + 16, at + 48, i);
    case CARRY_QUANT_IS_q6_k:
        return element_q6_k(at, i);
    default: {
        const float scale = __uint_as_float(u32_at(at));
        return element{nibble(at + 8, i) - 8, scale, scale * (float)((int)u32_at(at + 4) - 8)};
    }
    }
}

/* e4m3 shifted to the position of f16 has an exponent that is 8 too small, also for subnormal numbers. */
static __device__ __forceinline__ float f8_of(unsigned byte) {
    return 256.0f * __half2float(__ushort_as_half((unsigned short)((byte & 0x80u) << 8 | (byte & 0x7fu) << 7)));
}

/* Returns the index of the scale of row g and of a group of columns within a unit's scales. The scale of row g + 8 is
   the next element; the minima, if any, follow two elements later. */
static __device__ __forceinline__ int scale_index(const carry_quant_tiles &l, int g, int group) {
    const int parts = l.has_minimum ? 2 : 1;
    group %= CARRY_QUANT_UNIT_COLUMNS / l.group;
    if (l.group >= CARRY_QUANT_TILE_COLUMNS) {
        return (group * 8 + g) * parts * 2;
    }
    const int each = CARRY_QUANT_TILE_COLUMNS / l.group, n = group % each;
    const int at = l.group == 16 ? n % 2 * 2 + n / 2 : n;
    return ((group / each * 8 + g) * each + at) * parts * 2;
}

/* Decodes columns column to column + 7 of a row of a tile; column is a multiple of 8. */
static __device__ __forceinline__ void decode_8_columns(float (&to)[8], const carry_quant_tiles &l,
                                                        const unsigned char *tile, int row, int column) {
    const int g = row % 8, second = row / 8, lane = 4 * g + column % 32 / 8;
    const int index = scale_index(l, g, column / l.group) + second, in_unit = column % CARRY_QUANT_UNIT_COLUMNS;
    const float factor = ((const float *)(tile + l.factors_at))[row];
    const unsigned char *unit = tile + (size_t)(column / CARRY_QUANT_UNIT_COLUMNS) * l.unit_bytes;
    float scale, minimum = 0.0f;
    if (l.has_wide_scales) {
        scale = ((const float *)(unit + l.code_bytes))[index] * factor;
    } else {
        const uint16_t *scales = (const uint16_t *)(unit + l.code_bytes);
        scale = __half2float(__ushort_as_half(scales[index])) * factor;
        minimum = l.has_minimum ? __half2float(__ushort_as_half(scales[index + 2])) * factor : 0.0f;
    }
    if (l.bits == 8) {
        const unsigned *words = (const unsigned *)(unit + in_unit / 32 * 512 + lane * 16) + second;
        const unsigned word[2] = {words[0], words[2]};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const unsigned byte = word[i / 4] >> (i % 4 * 8) & 255u;
            to[i] = (l.format == CARRY_QUANT_IS_fp8_block ? f8_of(byte) : (float)((int)byte - 128)) * scale - minimum;
        }
    } else {
        const unsigned *words = (const unsigned *)(unit + in_unit / 64 * 512 + lane * 16) + second;
        const unsigned word = words[column % 64 / 32 * 2];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            to[i] = (float)((int)(word >> (4 * (i / 2 + i % 2 * 4)) & 15u) - 8) * scale - minimum;
        }
    }
}

} // namespace quantised

#endif

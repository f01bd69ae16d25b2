/* Integers and factors of the formats' blocks, 64 columns at a time: for one row (kernels_quant_avx512.c,
   kernels_quant_avx512_k.c) and for many tokens (kernels_quant_avx512_many.c). */
#ifndef CARRY_OPS_KERNELS_QUANT_AVX512_BLOCKS_H
#define CARRY_OPS_KERNELS_QUANT_AVX512_BLOCKS_H

#include "ops/kernels/quant_avx512.h"
#include "ops/kernels/quant_layout.h"

#if defined(__AVX512VNNI__)

/* Integers of two pieces plus offset_of(l). */
INLINE __m512i integers_at(const layout l, const unsigned char *first, const unsigned char *second) {
    if (!l.has_nibbles) {
        const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)first));
        const __m512i both = _mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i *)(const void *)second), 1);
        return _mm512_xor_si512(both, _mm512_set1_epi8((char)128));
    }
    const __m512i shifts =
        _mm512_set_epi64(0x0004000400040004, 0x0004000400040004, 0, 0, 0x0004000400040004, 0x0004000400040004, 0, 0);
    const __m512i low = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)first));
    const __m512i both =
        _mm512_mask_broadcast_i32x4(low, UPPER_HALF, _mm_loadu_si128((const __m128i *)(const void *)second));
    return _mm512_and_si512(_mm512_srlv_epi16(both, shifts), _mm512_set1_epi8(15));
}

INLINE int offset_of(const layout l) {
    return !l.has_nibbles ? 128 : l.zero >= 0 ? l.zero : 16;
}

/* 16 minus the zero points of two blocks. */
INLINE __m512i zeros_at(const layout l, const unsigned char *first, const unsigned char *second) {
    const __m512i zero = _mm512_set1_epi8((char)first[4]);
    return _mm512_sub_epi8(_mm512_set1_epi8(16),
                           l.pieces > 1 ? zero : _mm512_inserti64x4(zero, _mm256_set1_epi8((char)second[4]), 1));
}

/* The scales of two blocks, each in eight lanes. */
INLINE __m512 scales_at(const layout l, const unsigned char *first, const unsigned char *second) {
    if (!l.has_half_scale) {
        const __m512 low = _mm512_set1_ps(carry_block_f32(first));
        return l.pieces > 1 ? low : _mm512_insertf32x8(low, _mm256_set1_ps(carry_block_f32(second)), 1);
    }
    int16_t bits[2];
    memcpy(&bits[0], first, sizeof bits[0]);
    memcpy(&bits[1], second, sizeof bits[1]);
    return _mm512_cvtph_ps(_mm256_mask_set1_epi16(_mm256_set1_epi16(bits[0]), UPPER_HALF, bits[1]));
}

#define SUPER 256    /* columns of a block */
#define SUB_BLOCKS 8 /* of 32 columns */
#define QUARTERS 4   /* of 64 columns */

/* The 8 scales, then the 8 minima, from the head of a Q4_K or Q5_K block. */
INLINE __m128i scales_of(__m128i head) {
    const __m128i left = _mm_srlv_epi32(_mm_shuffle_epi32(head, 0xa5), _mm_set_epi32(2, 0, 2, 0));
    const __m128i right = _mm_srlv_epi32(_mm_shuffle_epi32(head, 0xff), _mm_set_epi32(4, 0, 0, 0));
    const __m128i bits = _mm_set_epi32(0x30303030, 0x3f3f3f3f, 0x30303030, 0x3f3f3f3f);
    const __m128i more = _mm_set_epi32(0x0f0f0f0f, 0, 0x0f0f0f0f, 0);
    return _mm_or_si128(_mm_and_si128(left, bits), _mm_and_si128(right, more));
}

/* d times the scales in the first half, dmin times the minima in the second. */
INLINE __m512 factors_of(const unsigned char *block) {
    const __m128i head = _mm_loadu_si128((const __m128i *)(const void *)block);
    const __m256i pick = _mm256_set_m128i(_mm_set1_epi16(0x0302), _mm_set1_epi16(0x0100));
    const __m512 both = _mm512_cvtph_ps(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(head), pick));
    return _mm512_mul_ps(both, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(scales_of(head))));
}

/* The integers of sub-blocks 2 j and 2 j + 1, whose low bits share 32 bytes. */
INLINE __m512i pair_of_k(const unsigned char *block, int j, const bool has_fifth_bit) {
    const __m512i bytes = twice_at(block + (has_fifth_bit ? 48 : 16) + 32 * j);
    const __m512i nibbles = _mm512_srlv_epi16(bytes, halves_of(0, 4));
    if (!has_fifth_bit) {
        return _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
    }
    /* Bits 2 j and 2 j + 1 of each byte, rotated to bit 4. */
    const __m512i turns = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set1_epi32((4 - 2 * j) & 31)),
                                             _mm256_set1_epi32((3 - 2 * j) & 31), 1);
    const __m512i fifth = _mm512_rolv_epi32(twice_at(block + 16), turns);
    const __m512i joined = _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), nibbles, fifth, 0xca); /* mask ? a : b */
    return _mm512_and_si512(joined, _mm512_set1_epi8(31));
}

/* 64 integers of a Q6_K block plus 32. Their low bits are in the low (j even) or high nibbles of 64 bytes, and bits 4
   and 5 are two of the bits of 32 other bytes. */
INLINE __m512i quarter_of_q6_k(const unsigned char *block, int j) {
    const int half = j / 2;
    const int quarter = j % 2 * 2;
    const __m512i bytes = bytes_at(block + 64 * half);
    const __m512i nibbles = j % 2 == 0 ? bytes : _mm512_srli_epi16(bytes, 4);
    const __m512i turns = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set1_epi32((4 - 2 * quarter) & 31)),
                                             _mm256_set1_epi32((2 - 2 * quarter) & 31), 1);
    const __m512i high = _mm512_rolv_epi32(twice_at(block + 128 + 32 * half), turns);
    const __m512i joined = _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), nibbles, high, 0xca); /* mask ? a : b */
    return _mm512_and_si512(joined, _mm512_set1_epi8(63));
}

#endif
#endif

/* Dot products of rows in Q4_K, Q5_K and Q6_K by AVX512_VNNI. A block's 256 columns are four vectors of 64 bytes; the
   factors of its sub-blocks are computed in one vector, from which each product takes those of its lanes. */
#include <stdbool.h>
#include <string.h>

#include "ops/kernels/quant_avx512.h"

#if defined(__AVX512VNNI__)

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

/* Lanes of sub-blocks 2 j and 2 j + 1. */
INLINE __m512i lanes_of_pair(int j) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set1_epi32(2 * j)), _mm256_set1_epi32(2 * j + 1), 1);
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

INLINE void four_k(const four_rows *f, const int tokens, __m512 total[TOKENS][ROWS], const bool has_fifth_bit) {
    const int bytes = has_fifth_bit ? 176 : 144;
    for (int64_t b = 0; b < f->blocks; b++) {
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            const unsigned char *block = f->row[r] + b * bytes;
            const __m512 factors = factors_of(block);
            fetch(block, bytes);
            __m512i w[QUARTERS];
            UNROLL
            for (int j = 0; j < QUARTERS; j++) {
                w[j] = pair_of_k(block, j, has_fifth_bit);
            }
            UNROLL
            for (int t = 0; t < tokens; t++) {
                const int8_t *x = f->x + t * f->columns + b * SUPER;
                const int64_t at = t * f->columns / CARRY_QUANT_BLOCK + b * SUB_BLOCKS;
                const __m512 of_x = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(f->scale + at)),
                                                       _mm256_loadu_ps(f->sum + at), 1);
                const __m512 by = _mm512_mul_ps(factors, of_x);
                total[t][r] = _mm512_mask_sub_ps(total[t][r], UPPER_HALF, total[t][r], by);
                UNROLL
                for (int j = 0; j < QUARTERS; j++) {
                    const __m512i dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[j], bytes_at(x + 64 * j));
                    total[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), _mm512_permutexvar_ps(lanes_of_pair(j), by),
                                                  total[t][r]);
                }
            }
        }
    }
}

INLINE void four_q4_k(const four_rows *f, const void *user, const int tokens, __m512 total[TOKENS][ROWS]) {
    (void)user;
    four_k(f, tokens, total, false);
}

INLINE void four_q5_k(const four_rows *f, const void *user, const int tokens, __m512 total[TOKENS][ROWS]) {
    (void)user;
    four_k(f, tokens, total, true);
}

/* Lanes of the scales of columns 64 j to 64 j + 63: each scale is of 16 columns, four lanes. */
INLINE __m512i lanes_of_sixteenths(int j) {
    const __m512i four = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_add_epi32(four, _mm512_set1_epi32(4 * j));
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

INLINE void four_q6_k(const four_rows *f, const void *user, const int tokens, __m512 total[TOKENS][ROWS]) {
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    (void)user;
    for (int64_t b = 0; b < f->blocks; b++) {
        __m512i start[TOKENS][QUARTERS];
        __m512 of_x[TOKENS];
        UNROLL
        for (int t = 0; t < tokens; t++) {
            const float *scale = f->scale + t * f->columns / CARRY_QUANT_BLOCK + b * SUB_BLOCKS;
            of_x[t] = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(scale)));
            UNROLL
            for (int j = 0; j < QUARTERS; j++) {
                start[t][j] = minus_offset(32, bytes_at(f->x + t * f->columns + b * SUPER + 64 * j));
            }
        }
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            const unsigned char *block = f->row[r] + b * 210;
            const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(block + 192));
            fetch(block, 210);
            const __m512 scales = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), half_at(block + 208));
            __m512i w[QUARTERS];
            UNROLL
            for (int j = 0; j < QUARTERS; j++) {
                w[j] = quarter_of_q6_k(block, j);
            }
            UNROLL
            for (int t = 0; t < tokens; t++) {
                const int8_t *x = f->x + t * f->columns + b * SUPER;
                const __m512 by = _mm512_mul_ps(scales, of_x[t]);
                UNROLL
                for (int j = 0; j < QUARTERS; j++) {
                    const __m512i dots = _mm512_dpbusd_epi32(start[t][j], w[j], bytes_at(x + 64 * j));
                    total[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots),
                                                  _mm512_permutexvar_ps(lanes_of_sixteenths(j), by), total[t][r]);
                }
            }
        }
    }
}

void carry_quant_avx512_q4_k(const carry_quant_dots *d) {
    each_four_rows(d, four_q4_k, NULL);
}

void carry_quant_avx512_q5_k(const carry_quant_dots *d) {
    each_four_rows(d, four_q5_k, NULL);
}

void carry_quant_avx512_q6_k(const carry_quant_dots *d) {
    each_four_rows(d, four_q6_k, NULL);
}

#endif

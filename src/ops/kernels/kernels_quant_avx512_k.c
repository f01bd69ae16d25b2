/* Dot products of rows in Q4_K, Q5_K and Q6_K by AVX512_VNNI. A block's 256 columns are four vectors of 64 bytes; the
   factors of its sub-blocks are computed in one vector, from which each product takes those of its lanes. */
#include <stdbool.h>
#include <string.h>

#include "ops/kernels/quant_avx512_blocks.h"

#if defined(__AVX512VNNI__)

/* Lanes of sub-blocks 2 j and 2 j + 1. */
INLINE __m512i lanes_of_pair(int j) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set1_epi32(2 * j)), _mm256_set1_epi32(2 * j + 1), 1);
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

/* Parts of the AVX-512 kernels for quantised rows (kernels_quant_avx512.c, kernels_quant_avx512_k.c). VPDPBUSD adds
   four products of unsigned and signed bytes to each of 16 sums. The weights are the unsigned operand: an offset makes
   signed ones positive, and sums start from minus the offset times the sum of x, so that every sum is exact.

   Four rows and up to four tokens are computed together. Rows share the loads of x, tokens share the unpacked rows. */
#ifndef CARRY_OPS_KERNELS_QUANT_AVX512_H
#define CARRY_OPS_KERNELS_QUANT_AVX512_H

#include "ops/kernels/quant.h"
#include "ops/quantised/blocks.h"

void carry_quant_avx512_q4_k(const carry_quant_dots *d);
void carry_quant_avx512_q5_k(const carry_quant_dots *d);
void carry_quant_avx512_q6_k(const carry_quant_dots *d);
/* The function that decodes a format; NULL if the processor or the compiler has no AVX512_BF16. */
carry_quant_bf16_function carry_quant_avx512_bf16(const carry_quant_format *format);

#if defined(__AVX512VNNI__)
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define ROWS 4
#define TOKENS 4
#define UPPER_HALF 0xff00 /* lanes 8 to 15 */

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* Four rows and one to four tokens, which are `columns` apart. */
typedef struct four_rows {
    const unsigned char *row[ROWS];
    int64_t blocks, columns;
    const int8_t *x;
    const float *scale, *sum; /* of x */
} four_rows;

/* Adds up to `total` of each token and row; `tokens` is a constant where this is inlined. */
typedef void (*four_function)(const four_rows *f, const void *user, int tokens, __m512 total[TOKENS][ROWS]);

/* The sum of the lanes of each vector. */
INLINE __m128 sums_of(const __m512 v[ROWS]) {
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    const __m512 all = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

INLINE void some_tokens(const carry_quant_dots *d, int64_t first, int64_t quarter, int64_t t, const int tokens,
                        four_function four, const void *user) {
    const int64_t at = t * d->x.columns;
    __m512 total[TOKENS][ROWS];
    four_rows f = {.blocks = d->blocks,
                   .columns = d->x.columns,
                   .x = d->x.q + at,
                   .scale = d->x.scale + at / CARRY_QUANT_BLOCK,
                   .sum = d->x.sum + at / CARRY_QUANT_BLOCK};
    for (int i = 0; i < ROWS; i++) {
        const int64_t row = first + i * quarter;
        f.row[i] = d->w + (size_t)(row < d->rows ? row : d->rows - 1) * d->row_bytes;
    }
    UNROLL
    for (int i = 0; i < tokens; i++) {
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            total[i][r] = _mm512_setzero_ps();
        }
    }
    four(&f, user, tokens, total);
    UNROLL
    for (int i = 0; i < tokens; i++) {
        float sums[ROWS];
        float *y = d->y + (t + i) * d->y_row + first;
        _mm_storeu_ps(sums, sums_of(total[i]));
        for (int r = 0; r < ROWS && first + r * quarter < d->rows; r++) {
            y[r * quarter] = sums[r];
        }
    }
}

/* Computes every row for every token. The four rows are a quarter of all rows apart, so that each is read in sequence
   over many steps: four streams that the processor prefetches. */
INLINE void each_four_rows(const carry_quant_dots *d, four_function four, const void *user) {
    const int64_t quarter = (d->rows + ROWS - 1) / ROWS;
    for (int64_t r = 0; r < quarter; r++) {
        int64_t t = 0;
        for (; t + 4 <= d->tokens; t += 4) {
            some_tokens(d, r, quarter, t, 4, four, user);
        }
        for (; t + 2 <= d->tokens; t += 2) {
            some_tokens(d, r, quarter, t, 2, four, user);
        }
        for (; t < d->tokens; t++) {
            some_tokens(d, r, quarter, t, 1, four, user);
        }
    }
}

INLINE __m512i bytes_at(const void *at) {
    return _mm512_loadu_si512(at);
}

/* Prefetches what will be read after `bytes` bytes at `at`, across the ends of pages, where the processor's own
   prefetching stops: with it four rows are read at 13.5 GB/s instead of 10 (Q8_0). 1 to 8 KB ahead are about as fast.
 */
#define AHEAD 2048
INLINE void fetch(const unsigned char *at, const int bytes) {
    UNROLL
    for (int i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *)at + AHEAD + i, _MM_HINT_T0);
    }
}

/* 32 bytes, twice. */
INLINE __m512i twice_at(const void *at) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)at));
}

/* An f16 in every lane. */
INLINE __m512 half_at(const void *at) {
    int16_t bits;
    memcpy(&bits, at, sizeof bits);
    return _mm512_cvtph_ps(_mm256_set1_epi16(bits));
}

/* 16 8-bit floats (e4m3) times 2^-8, which are f16 numbers with the same bits; the bits of NaN become 480. */
INLINE __m512 f8_at(const void *at) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)at));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80)));
}

/* `low` in the 16-bit lanes of the first half, `high` in the others. */
INLINE __m512i halves_of(int low, int high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set1_epi16((short)low)), _mm256_set1_epi16((short)high), 1);
}

/* Minus `offset` times the sums of four x: the start of sums with weights that are `offset` too large. */
INLINE __m512i minus_offset(int offset, __m512i x) {
    const __m512i zero = _mm512_setzero_si512();
    return _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, _mm512_set1_epi8((char)offset), x));
}

#endif
#endif

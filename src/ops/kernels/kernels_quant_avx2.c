/* Dot products of quantised rows with AVX2, whose instruction multiplies unsigned by signed bytes. The code multiplies
   the magnitudes of w by x with the signs of w, so that sums of two products fit in 16 bits: 2 * 127 * 127. */
#include <immintrin.h>
#include <string.h>

#include "ops/kernels/kernels.h"
#include "ops/kernels/quant.h"
#include "ops/quantised/blocks.h"

#define INLINE static inline __attribute__((always_inline))

extern const carry_kernels carry_kernels_avx2;

static bool usable(void) {
    return carry_kernels_avx2.usable();
}

static void round_token(const carry_quant_x *to, int64_t token, const float *x, int64_t count) {
    carry_quant_kernels_plain.round(to, token, x, count);
}

INLINE float half_at(const unsigned char *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return _cvtsh_ss(bits);
}

INLINE __m256i bytes_at(const void *at) {
    return _mm256_loadu_si256((const __m256i *)at);
}

/* Eight f32 sums of 32 products. w is above -128 except in some GGUF blocks, and sums of two products with a magnitude
   of 128 still fit in 16 bits. */
INLINE __m256 dot_32(__m256i w, const int8_t *x) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), _mm256_sign_epi8(bytes_at(x), w));
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* The same for w that is not negative. */
INLINE __m256 dot_32_unsigned(__m256i w, const int8_t *x) {
    const __m256i pairs = _mm256_maddubs_epi16(w, bytes_at(x));
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* 32 nibbles from 16 bytes: the low ones, then the high ones. */
INLINE __m256i nibbles_at(const unsigned char *at) {
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
    const __m256i both = _mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

INLINE float total_of(__m256 sums) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

INLINE float row_q8_0(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale, const float *sum) {
    __m256 total = _mm256_setzero_ps();
    (void)sum;
    for (int64_t b = 0; b < blocks; b++, w += 34, x += 32) {
        total = _mm256_fmadd_ps(_mm256_set1_ps(half_at(w) * scale[b]), dot_32(bytes_at(w + 2), x), total);
    }
    return total_of(total);
}

INLINE float row_int8(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale, const float *sum) {
    __m256 total = _mm256_setzero_ps();
    (void)sum;
    for (int64_t b = 0; b < blocks; b++, w += 132, x += 128, scale += 4) {
        const float by = carry_block_f32(w);
        for (int i = 0; i < 4; i++) {
            total = _mm256_fmadd_ps(_mm256_set1_ps(by * scale[i]), dot_32(bytes_at(w + 4 + 32 * i), x + 32 * i), total);
        }
    }
    return total_of(total);
}

INLINE float row_q4_0(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale, const float *sum) {
    __m256 total = _mm256_setzero_ps();
    (void)sum;
    for (int64_t b = 0; b < blocks; b++, w += 18, x += 32) {
        const __m256i q = _mm256_sub_epi8(nibbles_at(w + 2), _mm256_set1_epi8(8));
        total = _mm256_fmadd_ps(_mm256_set1_ps(half_at(w) * scale[b]), dot_32(q, x), total);
    }
    return total_of(total);
}

INLINE float row_groups(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale, const int pieces) {
    __m256 total = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, w += 8 + 16 * pieces, x += 32 * pieces, scale += pieces) {
        const float by = carry_block_f32(w);
        const __m256i zero = _mm256_set1_epi8((char)w[4]);
        for (int i = 0; i < pieces; i++) {
            const __m256i q = _mm256_sub_epi8(nibbles_at(w + 8 + 16 * i), zero);
            total = _mm256_fmadd_ps(_mm256_set1_ps(by * scale[i]), dot_32(q, x + 32 * i), total);
        }
    }
    return total_of(total);
}

INLINE float row_int4_g32(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale,
                          const float *sum) {
    (void)sum;
    return row_groups(w, blocks, x, scale, 1);
}

INLINE float row_int4_g64(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale,
                          const float *sum) {
    (void)sum;
    return row_groups(w, blocks, x, scale, 2);
}

INLINE float row_int4_g128(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale,
                           const float *sum) {
    (void)sum;
    return row_groups(w, blocks, x, scale, 4);
}

/* Q4_K, and Q5_K with bit 4 of the integers in 32 bytes of their own. */
INLINE float row_k(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale, const float *sum,
                   const bool has_fifth_bit) {
    __m256 total = _mm256_setzero_ps();
    __m256 less = _mm256_setzero_ps();
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i fifth = _mm256_set1_epi8(16);
    for (int64_t b = 0; b < blocks; b++, w += has_fifth_bit ? 176 : 144, x += 256, scale += 8, sum += 8) {
        uint64_t of_row;
        uint64_t least;
        float s[8];
        carry_block_k_scales(w + 4, &of_row, &least);
        const __m128i both = _mm_set_epi64x((long long)least, (long long)of_row);
        const __m256 scales = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(both));
        const __m256 minima = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(both, 8)));
        _mm256_storeu_ps(s, _mm256_mul_ps(_mm256_mul_ps(scales, _mm256_loadu_ps(scale)), _mm256_set1_ps(half_at(w))));
        less = _mm256_fmadd_ps(_mm256_mul_ps(minima, _mm256_set1_ps(half_at(w + 2))), _mm256_loadu_ps(sum), less);
        for (int j = 0; j < 4; j++) {
            const __m256i bytes = bytes_at(w + (has_fifth_bit ? 48 : 16) + 32 * j);
            __m256i low = _mm256_and_si256(bytes, mask);
            __m256i high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
            if (has_fifth_bit) { /* bits 2 j and 2 j + 1, moved to bit 4 */
                const __m256i bits = _mm256_slli_epi16(_mm256_srli_epi16(bytes_at(w + 16), 2 * j), 4);
                low = _mm256_or_si256(low, _mm256_and_si256(bits, fifth));
                high = _mm256_or_si256(high, _mm256_and_si256(_mm256_srli_epi16(bits, 1), fifth));
            }
            total = _mm256_fmadd_ps(_mm256_set1_ps(s[2 * j]), dot_32_unsigned(low, x + 64 * j), total);
            total = _mm256_fmadd_ps(_mm256_set1_ps(s[2 * j + 1]), dot_32_unsigned(high, x + 64 * j + 32), total);
        }
    }
    return total_of(_mm256_sub_ps(total, less));
}

INLINE float row_q4_k(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale, const float *sum) {
    return row_k(w, blocks, x, scale, sum, false);
}

INLINE float row_q5_k(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale, const float *sum) {
    return row_k(w, blocks, x, scale, sum, true);
}

/* One quarter of a half of a Q6_K block: 32 integers, with one scale for each 16. */
INLINE __m256 quarter_q6_k(__m256i nibbles, __m256i bits, const int8_t *x, const unsigned char *scales) {
    const __m256i q =
        _mm256_sub_epi8(_mm256_or_si256(nibbles, _mm256_and_si256(bits, _mm256_set1_epi8(0x30))), _mm256_set1_epi8(32));
    const __m256 sums = dot_32(q, x);
    const __m256 by = _mm256_set_m128(_mm_set1_ps((float)(int8_t)scales[1]), _mm_set1_ps((float)(int8_t)scales[0]));
    return _mm256_mul_ps(sums, by);
}

INLINE float row_q6_k(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale, const float *sum) {
    __m256 total = _mm256_setzero_ps();
    const __m256i mask = _mm256_set1_epi8(15);
    (void)sum;
    for (int64_t b = 0; b < blocks; b++, w += 210, x += 256, scale += 8) {
        __m256 block = _mm256_setzero_ps();
        for (int half = 0; half < 2; half++) {
            const __m256i l0 = bytes_at(w + 64 * half);
            const __m256i l1 = bytes_at(w + 64 * half + 32);
            const __m256i h = bytes_at(w + 128 + 32 * half);
            const __m256i nibbles[4] = {_mm256_and_si256(l0, mask), _mm256_and_si256(l1, mask),
                                        _mm256_and_si256(_mm256_srli_epi16(l0, 4), mask),
                                        _mm256_and_si256(_mm256_srli_epi16(l1, 4), mask)};
            const __m256i bits[4] = {_mm256_slli_epi16(h, 4), _mm256_slli_epi16(h, 2), h, _mm256_srli_epi16(h, 2)};
            for (int k = 0; k < 4; k++) {
                const __m256 part =
                    quarter_q6_k(nibbles[k], bits[k], x + 128 * half + 32 * k, w + 192 + 8 * half + 2 * k);
                block = _mm256_fmadd_ps(_mm256_set1_ps(scale[4 * half + k]), part, block);
            }
        }
        total = _mm256_fmadd_ps(_mm256_set1_ps(half_at(w + 208)), block, total);
    }
    return total_of(total);
}

typedef float (*row_function)(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale,
                              const float *sum);

/* Multiplies every row by every token. */
INLINE void each_row(const carry_quant_dots *d, row_function row) {
    for (int64_t r = 0; r < d->rows; r++) {
        for (int64_t t = 0; t < d->tokens; t++) {
            const int64_t at = t * d->x.columns;
            d->y[t * d->y_row + r] = row(d->w + (size_t)r * d->row_bytes, d->blocks, d->x.q + at,
                                         d->x.scale + at / CARRY_QUANT_BLOCK, d->x.sum + at / CARRY_QUANT_BLOCK);
        }
    }
}

static void dots_q8_0(const carry_quant_dots *d) {
    each_row(d, row_q8_0);
}

static void dots_int8(const carry_quant_dots *d) {
    each_row(d, row_int8);
}

static void dots_q4_0(const carry_quant_dots *d) {
    each_row(d, row_q4_0);
}

static void dots_int4_g32(const carry_quant_dots *d) {
    each_row(d, row_int4_g32);
}

static void dots_int4_g64(const carry_quant_dots *d) {
    each_row(d, row_int4_g64);
}

static void dots_int4_g128(const carry_quant_dots *d) {
    each_row(d, row_int4_g128);
}

static void dots_q4_k(const carry_quant_dots *d) {
    each_row(d, row_q4_k);
}

static void dots_q5_k(const carry_quant_dots *d) {
    each_row(d, row_q5_k);
}

static void dots_q6_k(const carry_quant_dots *d) {
    each_row(d, row_q6_k);
}

static const carry_quant_entry entries[] = {
    {&carry_quant_int8, dots_int8},         {&carry_quant_q8_0, dots_q8_0},
    {&carry_quant_q4_0, dots_q4_0},         {&carry_quant_int4_g32, dots_int4_g32},
    {&carry_quant_int4_g64, dots_int4_g64}, {&carry_quant_int4_g128, dots_int4_g128},
    {&carry_quant_q4_k, dots_q4_k},         {&carry_quant_q5_k, dots_q5_k},
    {&carry_quant_q6_k, dots_q6_k},         {NULL, NULL}};

const carry_quant_kernels carry_quant_kernels_avx2 = {
    .name = "avx2", .usable = usable, .few_tokens = 8, .round = round_token, .entries = entries};

/* Dot products of quantised rows by AVX512_VNNI (Cascade Lake, Zen 4 and later): formats whose blocks have one scale.
   64 columns are multiplied at a time: two blocks, or two parts of one. */
#include <stdbool.h>
#include <string.h>

#include "ops/kernels/kernels.h"
#include "ops/kernels/quant_avx512_blocks.h"
#include "ops/kernels/quant_many.h"

#if defined(__AVX512VNNI__)

extern const carry_kernels carry_kernels_avx512;

static bool usable(void) {
    return carry_kernels_avx512.usable() && __builtin_cpu_supports("avx512vnni");
}

/* The integers and scales of carry_quant_kernels_plain. */
static void round_token(const carry_quant_x *to, int64_t token, const float *x, int64_t count) {
    const int64_t whole = count / CARRY_QUANT_BLOCK;
    const __m512i least = _mm512_set1_epi32(-127);
    const __m512i most = _mm512_set1_epi32(127);
    int8_t *q = to->q + token * to->columns;
    float *scale = to->scale + token * to->columns / CARRY_QUANT_BLOCK;
    float *sum = to->sum + token * to->columns / CARRY_QUANT_BLOCK;
    for (int64_t b = 0; b < whole; b++, x += CARRY_QUANT_BLOCK, q += CARRY_QUANT_BLOCK) {
        const __m512 low = _mm512_loadu_ps(x);
        const __m512 high = _mm512_loadu_ps(x + 16);
        scale[b] = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high))) / 127.0f;
        const __m512 by = _mm512_set1_ps(scale[b] > 0.0f ? 1.0f / scale[b] : 0.0f);
        __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(low, by));
        __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(high, by));
        first = _mm512_min_epi32(_mm512_max_epi32(first, least), most);
        second = _mm512_min_epi32(_mm512_max_epi32(second, least), most);
        _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(first));
        _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm512_cvtepi32_epi8(second));
        sum[b] = scale[b] * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
    }
    if (whole * CARRY_QUANT_BLOCK < to->columns) { /* the rest, and zeros */
        const carry_quant_x rest = {
            .columns = to->columns - whole * CARRY_QUANT_BLOCK, .q = q, .scale = scale + whole, .sum = sum + whole};
        carry_quant_kernels_plain.round(&rest, 0, x, count - whole * CARRY_QUANT_BLOCK);
    }
}

/* The scales of two blocks of x, each in eight lanes. */
INLINE __m512 x_scales_at(const float *at) {
    return _mm512_insertf32x8(_mm512_set1_ps(at[0]), _mm256_set1_ps(at[1]), 1);
}

/* user: the layout, which the compiler knows where this is inlined. */
INLINE void four_simple(const four_rows *f, const void *user, const int tokens, __m512 total[TOKENS][ROWS]) {
    const layout l = *(const layout *)user;
    const int step = l.pieces == 1 ? 2 : 1; /* blocks */
    const int parts = l.pieces == 4 ? 2 : 1;
    for (int64_t b = 0; b < f->blocks; b += step) {
        /* If there is no second block, the first one is multiplied with the zeros that follow x. */
        const ptrdiff_t next = l.pieces == 1 && b + 1 < f->blocks ? l.bytes : 0;
        UNROLL
        for (int part = 0; part < parts; part++) {
            const int64_t piece = b * l.pieces + 2 * part;
            __m512i x[TOKENS];
            __m512i start[TOKENS];
            __m512 by[TOKENS];
            UNROLL
            for (int t = 0; t < tokens; t++) {
                x[t] = bytes_at(f->x + t * f->columns + piece * CARRY_QUANT_BLOCK);
                start[t] = minus_offset(offset_of(l), x[t]);
                by[t] = x_scales_at(f->scale + t * f->columns / CARRY_QUANT_BLOCK + piece);
            }
            UNROLL
            for (int r = 0; r < ROWS; r++) {
                const unsigned char *first = f->row[r] + b * l.bytes;
                const unsigned char *second = l.pieces == 1 ? first + next : first;
                const int size = l.has_nibbles ? 16 : 32;
                fetch(first + 2 * part * size, 2 * size);
                const unsigned char *from = first + l.integers + 2 * part * size;
                __m512i w = integers_at(l, from, l.pieces == 1 ? from + next : from + size);
                if (l.zero < 0) {
                    w = _mm512_add_epi8(w, zeros_at(l, first, second));
                }
                const __m512 scales = scales_at(l, first, second);
                UNROLL
                for (int t = 0; t < tokens; t++) {
                    const __m512 dots = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start[t], w, x[t]));
                    total[t][r] = _mm512_fmadd_ps(dots, _mm512_mul_ps(scales, by[t]), total[t][r]);
                }
            }
        }
    }
}

/* Blocks of 128 8-bit floats and an f32 scale. */
INLINE void four_fp8(const four_rows *f, const void *user, const int tokens, __m512 total[TOKENS][ROWS]) {
    enum { BLOCK = 128, VECTORS = BLOCK / 16 };
    (void)user;
    for (int64_t b = 0; b < f->blocks; b++) {
        __m512 x[TOKENS][VECTORS];
        UNROLL
        for (int t = 0; t < tokens; t++) {
            const int8_t *q = f->x + t * f->columns + b * BLOCK;
            const float *scale = f->scale + (t * f->columns + b * BLOCK) / CARRY_QUANT_BLOCK;
            UNROLL
            for (int i = 0; i < VECTORS; i++) {
                const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(q + 16 * i));
                const __m512 values = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
                x[t][i] = _mm512_mul_ps(values, _mm512_set1_ps(scale[i / 2]));
            }
        }
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            const unsigned char *block = f->row[r] + b * (4 + BLOCK);
            const __m512 scale = _mm512_set1_ps(256.0f * carry_block_f32(block));
            fetch(block, BLOCK);
            __m512 part[TOKENS];
            UNROLL
            for (int t = 0; t < tokens; t++) {
                part[t] = _mm512_setzero_ps();
            }
            UNROLL
            for (int i = 0; i < VECTORS; i++) {
                const __m512 w = f8_at(block + 4 + 16 * i);
                UNROLL
                for (int t = 0; t < tokens; t++) {
                    part[t] = _mm512_fmadd_ps(w, x[t][i], part[t]);
                }
            }
            UNROLL
            for (int t = 0; t < tokens; t++) {
                total[t][r] = _mm512_fmadd_ps(part[t], scale, total[t][r]);
            }
        }
    }
}

static void dots_fp8_block(const carry_quant_dots *d) {
    each_four_rows(d, four_fp8, NULL);
}

static void dots_q8_0(const carry_quant_dots *d) {
    each_four_rows(d, four_simple, &layout_q8_0);
}

static void dots_int8(const carry_quant_dots *d) {
    each_four_rows(d, four_simple, &layout_int8);
}

static void dots_q4_0(const carry_quant_dots *d) {
    each_four_rows(d, four_simple, &layout_q4_0);
}

static void dots_int4_g32(const carry_quant_dots *d) {
    each_four_rows(d, four_simple, &layout_int4_g32);
}

static void dots_int4_g64(const carry_quant_dots *d) {
    each_four_rows(d, four_simple, &layout_int4_g64);
}

static void dots_int4_g128(const carry_quant_dots *d) {
    each_four_rows(d, four_simple, &layout_int4_g128);
}

static const carry_quant_entry entries[] = {{&carry_quant_fp8_block, dots_fp8_block},
                                            {&carry_quant_int8, dots_int8},
                                            {&carry_quant_q8_0, dots_q8_0},
                                            {&carry_quant_q4_0, dots_q4_0},
                                            {&carry_quant_int4_g32, dots_int4_g32},
                                            {&carry_quant_int4_g64, dots_int4_g64},
                                            {&carry_quant_int4_g128, dots_int4_g128},
                                            {&carry_quant_q4_k, carry_quant_avx512_q4_k},
                                            {&carry_quant_q5_k, carry_quant_avx512_q5_k},
                                            {&carry_quant_q6_k, carry_quant_avx512_q6_k},
                                            {NULL, NULL}};

#else

static bool usable(void) {
    return false; /* the compiler has no AVX512_VNNI */
}

static void round_token(const carry_quant_x *to, int64_t token, const float *x, int64_t count) {
    carry_quant_kernels_plain.round(to, token, x, count);
}

static const carry_quant_entry entries[] = {{NULL, NULL}};

#endif

extern const carry_quant_kernels carry_quant_kernels_avx512;
const carry_quant_kernels carry_quant_kernels_avx512 = {
    .name = "avx512",
    .usable = usable,
    .few_tokens = 16,
    .round = round_token,
    .entries = entries,
    .bf16 = carry_quant_avx512_bf16,
#if defined(__AVX512VNNI__)
    .many = carry_quant_avx512_many,
    .pack = carry_quant_avx512_pack,
    .many_tokens = 9,
#endif
};

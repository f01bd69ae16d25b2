/* Decodes rows of quantised blocks to bf16 by AVX512_BF16's VCVTNE2PS2BF16, for products of many tokens. */
#include <stdbool.h>
#include <string.h>

#include "ops/kernels/quant_avx512.h"

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)
#include <cpuid.h>

INLINE __m256i half_bytes_at(const void *at) {
    return _mm256_loadu_si256((const __m256i *)at);
}

INLINE __m512 floats_of(__m128i q) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
}

/* 32 values q * scale + less; each scale is of 16 values. */
INLINE void put_scaled(uint16_t *to, __m256i q, __m512 first, __m512 second, __m512 less) {
    const __m512 low = _mm512_fmadd_ps(floats_of(_mm256_castsi256_si128(q)), first, less);
    const __m512 high = _mm512_fmadd_ps(floats_of(_mm256_extracti128_si256(q, 1)), second, less);
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* -0.0f as the sum keeps the sign of a product that is zero. */
INLINE void put_32(uint16_t *to, __m256i q, __m512 scale) {
    put_scaled(to, q, scale, scale, _mm512_set1_ps(-0.0f));
}

/* 32 values from 16 bytes, low nibbles first. */
INLINE void put_nibbles(uint16_t *to, const unsigned char *at, __m256i zero, __m512 scale) {
    const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)at));
    const __m256i shifts = _mm256_set_epi64x(0x0004000400040004, 0x0004000400040004, 0, 0);
    const __m256i nibbles = _mm256_and_si256(_mm256_srlv_epi16(bytes, shifts), _mm256_set1_epi8(15));
    put_32(to, _mm256_sub_epi8(nibbles, zero), scale);
}

static void decode_q8_0(uint16_t *to, const unsigned char *at, int64_t count) {
    for (int64_t b = 0; b < count; b++, at += 34, to += 32) {
        put_32(to, half_bytes_at(at + 2), half_at(at));
    }
}

static void decode_int8(uint16_t *to, const unsigned char *at, int64_t count) {
    for (int64_t b = 0; b < count; b++, at += 132, to += 128) {
        const __m512 scale = _mm512_set1_ps(carry_block_f32(at));
        for (int i = 0; i < 128; i += 32) {
            put_32(to + i, half_bytes_at(at + 4 + i), scale);
        }
    }
}

static void decode_fp8_block(uint16_t *to, const unsigned char *at, int64_t count) {
    const __m512 unit = _mm512_set1_ps(256.0f);
    for (int64_t b = 0; b < count; b++, at += 132, to += 128) {
        const __m512 scale = _mm512_set1_ps(carry_block_f32(at));
        for (int i = 0; i < 128; i += 32) {
            const __m512 low = _mm512_mul_ps(_mm512_mul_ps(f8_at(at + 4 + i), unit), scale);
            const __m512 high = _mm512_mul_ps(_mm512_mul_ps(f8_at(at + 20 + i), unit), scale);
            _mm512_storeu_si512(to + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    }
}

static void decode_q4_0(uint16_t *to, const unsigned char *at, int64_t count) {
    for (int64_t b = 0; b < count; b++, at += 18, to += 32) {
        put_nibbles(to, at + 2, _mm256_set1_epi8(8), half_at(at));
    }
}

INLINE void decode_int4(uint16_t *to, const unsigned char *at, int64_t count, const int group) {
    for (int64_t b = 0; b < count; b++, at += 8 + group / 2, to += group) {
        const __m512 scale = _mm512_set1_ps(carry_block_f32(at));
        const __m256i zero = _mm256_set1_epi8((char)at[4]);
        for (int i = 0; i < group; i += 32) {
            put_nibbles(to + i, at + 8 + i / 2, zero, scale);
        }
    }
}

static void decode_int4_g32(uint16_t *to, const unsigned char *at, int64_t count) {
    decode_int4(to, at, count, 32);
}

static void decode_int4_g64(uint16_t *to, const unsigned char *at, int64_t count) {
    decode_int4(to, at, count, 64);
}

static void decode_int4_g128(uint16_t *to, const unsigned char *at, int64_t count) {
    decode_int4(to, at, count, 128);
}

INLINE void decode_k(uint16_t *to, const unsigned char *at, int64_t count, const bool has_fifth_bit) {
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i fifth = _mm256_set1_epi8(16);
    for (int64_t b = 0; b < count; b++, at += has_fifth_bit ? 176 : 144) {
        const __m512 d = half_at(at);
        const __m512 least = half_at(at + 2);
        const __m256i bits = half_bytes_at(at + 16);
        uint64_t scales;
        uint64_t minima;
        carry_block_k_scales(at + 4, &scales, &minima);
        UNROLL
        for (int j = 0; j < 8; j++, to += 32, scales >>= 8, minima >>= 8) {
            const __m256i bytes = half_bytes_at(at + (has_fifth_bit ? 48 : 16) + j / 2 * 32);
            __m256i q = _mm256_and_si256(_mm256_srli_epi16(bytes, j % 2 * 4), mask);
            if (has_fifth_bit) {
                q = _mm256_or_si256(q,
                                    _mm256_and_si256(_mm256_rolv_epi32(bits, _mm256_set1_epi32((4 - j) & 31)), fifth));
            }
            const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps((float)(scales & 255)));
            const __m512 less = _mm512_mul_ps(least, _mm512_set1_ps(-(float)(minima & 255)));
            put_scaled(to, q, scale, scale, less);
        }
    }
}

static void decode_q4_k(uint16_t *to, const unsigned char *at, int64_t count) {
    decode_k(to, at, count, false);
}

static void decode_q5_k(uint16_t *to, const unsigned char *at, int64_t count) {
    decode_k(to, at, count, true);
}

static void decode_q6_k(uint16_t *to, const unsigned char *at, int64_t count) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int64_t b = 0; b < count; b++, at += 210) {
        const __m512 d = half_at(at + 208);
        UNROLL
        for (int j = 0; j < 8; j++, to += 32) {
            const int half = j / 4;
            const int quarter = j % 4;
            const __m256i low = half_bytes_at(at + half * 64 + quarter % 2 * 32);
            const __m256i high = half_bytes_at(at + 128 + half * 32);
            const __m256i nibbles = _mm256_and_si256(_mm256_srli_epi16(low, quarter / 2 * 4), mask);
            const __m256i bits = _mm256_and_si256(_mm256_rolv_epi32(high, _mm256_set1_epi32((4 - 2 * quarter) & 31)),
                                                  _mm256_set1_epi8(48));
            const __m256i q = _mm256_sub_epi8(_mm256_or_si256(nibbles, bits), _mm256_set1_epi8(32));
            const __m512 first = _mm512_mul_ps(d, _mm512_set1_ps((float)(int8_t)at[192 + 2 * j]));
            const __m512 second = _mm512_mul_ps(d, _mm512_set1_ps((float)(int8_t)at[193 + 2 * j]));
            put_scaled(to, q, first, second, _mm512_set1_ps(-0.0f));
        }
    }
}

/* __builtin_cpu_supports also checks that the system saves the registers. */
static bool usable(void) {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    const unsigned avx512_bf16 = 1u << 5;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & avx512_bf16) != 0;
}

carry_quant_bf16_function carry_quant_avx512_bf16(const carry_quant_format *format) {
    static const struct {
        const carry_quant_format *format;
        carry_quant_bf16_function decode;
    } entries[] = {{&carry_quant_fp8_block, decode_fp8_block}, {&carry_quant_q8_0, decode_q8_0},
                   {&carry_quant_int8, decode_int8},           {&carry_quant_q4_0, decode_q4_0},
                   {&carry_quant_int4_g32, decode_int4_g32},   {&carry_quant_int4_g64, decode_int4_g64},
                   {&carry_quant_int4_g128, decode_int4_g128}, {&carry_quant_q4_k, decode_q4_k},
                   {&carry_quant_q5_k, decode_q5_k},           {&carry_quant_q6_k, decode_q6_k}};
    for (size_t i = 0; usable() && i < sizeof entries / sizeof entries[0]; i++) {
        if (entries[i].format == format) {
            return entries[i].decode;
        }
    }
    return NULL;
}

#else

carry_quant_bf16_function carry_quant_avx512_bf16(const carry_quant_format *format) {
    (void)format;
    return NULL; /* the compiler has no AVX512_BF16 */
}

#endif

/* The kernels for x86-64 with AVX2, FMA and F16C: 8 lanes, 16 registers. */
#include <cpuid.h>
#include <immintrin.h>
#include <stdint.h>

#define LANES 8
#define TILE_VECTORS 2
#define TILE_ROWS 6
#define THREE_ROWS 0
#define PAIR_ROWS 6
#define ONE_ROWS 8
#define DOT_AHEAD 2048
#define TOKEN_VECTORS 4
#define PACK_ROWS 6
#define PACK_VECTORS 2
#define PACK_DEPTH 256
#define PACK_AHEAD 0
#define SQUARE 8

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef uint32_t wide_bits __attribute__((vector_size(LANES * 4)));

static inline vec f16_load(const uint16_t *from) {
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from));
}

static inline void f16_store(uint16_t *to, vec value) {
    _mm_storeu_si128((__m128i *)(void *)to, _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT));
}

static inline vec bf16_load(const uint16_t *from) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
    return (vec)_mm256_slli_epi32(wide, 16);
}

/* Rounds to nearest, ties to even. A NaN is made quiet instead, since rounding could carry it into infinity. */
static inline wide_bits bf16_upper(vec value) {
    __m256i whole = (__m256i)value;
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(whole, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(whole, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(whole, _mm256_set1_epi32(0x400000));
    __m256i is_nan = (__m256i)_mm256_cmp_ps((__m256)value, (__m256)value, _CMP_UNORD_Q);
    return (wide_bits)_mm256_blendv_epi8(rounded, quiet, is_nan);
}

static inline void bf16_store(uint16_t *to, vec value) {
    __m256i result = _mm256_srli_epi32((__m256i)bf16_upper(value), 16);
    __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
    _mm_storeu_si128((__m128i *)(void *)to, packed);
}

static inline vec clamped(vec x, float least, float most) {
    return (vec)_mm256_max_ps(_mm256_min_ps((__m256)x, _mm256_set1_ps(most)), _mm256_set1_ps(least));
}

static inline vec reciprocal(vec x) {
    return 1.0f / x;
}

#include "ops/kernels/kernels_vector.h"

/* Reads CPUID (leaf 1, ecx, bit 29), since clang 14's __builtin_cpu_supports does not know "f16c". The caller checks
   AVX2 first, which includes that the operating system saves the registers. */
static bool has_f16c(void) {
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool usable(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

const carry_kernels carry_kernels_avx2 = {.name = "avx2", .about = "x86-64 AVX2 and FMA, 8 lanes", VECTOR_KERNELS};

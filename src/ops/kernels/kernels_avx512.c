/* The kernels for x86-64 with AVX-512 (F, BW, VL, DQ): 16 lanes, 32 registers. */
#include <immintrin.h>
#include <stdint.h>

#define LANES 16
#define TILE_VECTORS 4
#define TILE_ROWS 6
#define THREE_ROWS 8
#define PAIR_ROWS 8 /* 12 also fit, but leave a short tile for the usual 16 or 32 rows */
#define ONE_ROWS 16
#define DOT_AHEAD 2048
#define TOKEN_VECTORS 8
#define PACK_ROWS 14
#define PACK_VECTORS 2
#define PACK_DEPTH 384
#define PACK_AHEAD 16
#define SQUARE 8

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef uint32_t wide_bits __attribute__((vector_size(LANES * 4)));

static inline vec f16_load(const uint16_t *from) {
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from));
}

static inline void f16_store(uint16_t *to, vec value) {
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT));
}

static inline vec bf16_load(const uint16_t *from) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)from));
    return (vec)_mm512_slli_epi32(wide, 16);
}

/* Rounds to nearest, ties to even. A NaN is made quiet instead, since rounding could carry it into infinity. */
static inline wide_bits bf16_upper(vec value) {
    __m512i whole = (__m512i)value;
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(whole, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)value, (__m512)value, _CMP_UNORD_Q);
    return (wide_bits)_mm512_mask_or_epi32(rounded, is_nan, whole, _mm512_set1_epi32(0x400000));
}

static inline void bf16_store(uint16_t *to, vec value) {
    __m512i upper = _mm512_srli_epi32((__m512i)bf16_upper(value), 16);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16(upper));
}

static inline vec clamped(vec x, float least, float most) {
    return (vec)_mm512_max_ps(_mm512_min_ps((__m512)x, _mm512_set1_ps(most)), _mm512_set1_ps(least));
}

/* Within 2^-14. A division would take longer than the exponential before it. */
static inline vec reciprocal(vec x) {
    return (vec)_mm512_rcp14_ps((__m512)x);
}

#include "ops/kernels/kernels_vector.h"

static bool usable(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const carry_kernels carry_kernels_avx512 = {.name = "avx512", .about = "x86-64 AVX-512, 16 lanes", VECTOR_KERNELS};

/* The kernels for x86-64 with AVX2, FMA and F16C: 8 lanes, 16 registers. */
#include <immintrin.h>

#define LANES 8
#define TILE_VECTORS 2
#define TILE_ROWS 6
#define NARROW_ROWS 8

static inline void half_widen(float *to, const unsigned short *from) {
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from)));
}

static inline void half_narrow(unsigned short *to, const float *from) {
    _mm_storeu_si128((__m128i *)(void *)to, _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT));
}

#include "ops/kernels_vector.h"

static bool usable(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

const carry_kernels carry_kernels_avx2 = {.name = "avx2", .about = "x86-64 AVX2 and FMA, 8 lanes", VECTOR_KERNELS};

/* The kernels for x86-64 with AVX-512 (F, BW, VL, DQ): 16 lanes, 32 registers. */
#include <immintrin.h>

#define LANES 16
#define TILE_VECTORS 4
#define TILE_ROWS 6
#define NARROW_ROWS 8

static inline void half_widen(float *to, const unsigned short *from) {
    _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from)));
}

static inline void half_narrow(unsigned short *to, const float *from) {
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtps_ph(_mm512_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT));
}

#include "ops/kernels_vector.h"

static bool usable(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const carry_kernels carry_kernels_avx512 = {.name = "avx512", .about = "x86-64 AVX-512, 16 lanes", VECTOR_KERNELS};

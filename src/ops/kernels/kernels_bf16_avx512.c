/* bf16 products by AVX512_BF16's VDPBF16PS (Cooper Lake, Sapphire Rapids, Zen 4 and later). */
#include <stdint.h>

#include "ops/kernels/bf16.h"

#if defined(__AVX512BF16__)
#include <cpuid.h>
#include <immintrin.h>

typedef __m512 sums;
typedef __m512i pairs;

static inline sums sums_zero(void) {
    return _mm512_setzero_ps();
}

static inline sums sums_load(const float *from) {
    return _mm512_loadu_ps(from);
}

static inline void sums_store(float *to, sums sum) {
    _mm512_storeu_ps(to, sum);
}

static inline pairs pairs_load(const uint16_t *from) {
    return _mm512_loadu_si512(from);
}

static inline pairs pairs_all(const uint16_t *from) {
    int pair;
    __builtin_memcpy(&pair, from, sizeof pair);
    return _mm512_set1_epi32(pair);
}

static inline sums dot_pairs(sums sum, pairs x, pairs y) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
}

#include "ops/kernels/bf16_tile_avx512.h"

/* __builtin_cpu_supports also checks that the system saves the registers. */
static const char *missing(void) {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    const unsigned avx512_bf16 = 1u << 5;
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    bool has = avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & avx512_bf16) != 0;
    return has ? NULL : "this processor has no AVX512_BF16";
}
#else
#define VECTOR_BF16 .rows = 1, .columns = 1, .unit = 1

static const char *missing(void) {
    return "the compiler of this build has no AVX512_BF16";
}
#endif

extern const carry_bf16 carry_bf16_avx512;
const carry_bf16 carry_bf16_avx512 = {
    .name = "avx512-bf16", .about = "x86-64 AVX512_BF16, bf16 products of 12 x 32", .missing = missing, VECTOR_BF16};

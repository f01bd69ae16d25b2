/* The kernels for 64-bit ARM: 4 lanes, 32 registers, f16 conversion in the base instruction set. */
#include <arm_neon.h>
#include <stdint.h>
#include <sys/auxv.h>

#define LANES 4
#define TILE_VECTORS 4
#define TILE_ROWS 5 /* 6 fit in theory, but gcc then spills two sums: 39 against 58 GFLOP/s at n = 32 */
#define THREE_ROWS 0
#define PAIR_ROWS 8
#define ONE_ROWS 8
#define DOT_AHEAD 0
#define TOKEN_VECTORS 8
#define PACK_ROWS 8
#define PACK_VECTORS 3
#define PACK_DEPTH 512
#define PACK_AHEAD 0
#define SQUARE 4

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef uint32_t wide_bits __attribute__((vector_size(LANES * 4)));

static inline vec f16_load(const uint16_t *from) {
    return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
}

static inline void f16_store(uint16_t *to, vec value) {
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value)));
}

static inline vec bf16_load(const uint16_t *from) {
    return (vec)vshll_n_u16(vld1_u16(from), 16);
}

/* Rounds to nearest, ties to even. A NaN is made quiet instead, since rounding could carry it into infinity. */
static inline wide_bits bf16_upper(vec value) {
    uint32x4_t whole = (uint32x4_t)value;
    uint32x4_t odd = vandq_u32(vshrq_n_u32(whole, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(vaddq_u32(whole, vdupq_n_u32(0x7fff)), odd);
    uint32x4_t quiet = vorrq_u32(whole, vdupq_n_u32(0x400000));
    uint32x4_t is_number = vceqq_f32((float32x4_t)value, (float32x4_t)value);
    return (wide_bits)vbslq_u32(is_number, rounded, quiet);
}

static inline void bf16_store(uint16_t *to, vec value) {
    vst1_u16(to, vshrn_n_u32((uint32x4_t)bf16_upper(value), 16));
}

static inline vec clamped(vec x, float least, float most) {
    return (vec)vmaxq_f32(vminq_f32((float32x4_t)x, vdupq_n_f32(most)), vdupq_n_f32(least));
}

static inline vec reciprocal(vec x) {
    return 1.0f / x;
}

#include "ops/kernels/kernels_vector.h"

static bool usable(void) {
    const unsigned long asimd = 1ul << 1; /* HWCAP_ASIMD */
    return (getauxval(AT_HWCAP) & asimd) != 0;
}

const carry_kernels carry_kernels_neon = {.name = "neon", .about = "ARM Advanced SIMD, 4 lanes", VECTOR_KERNELS};

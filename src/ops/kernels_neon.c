/* The kernels for 64-bit ARM: 4 lanes, 32 registers, f16 conversion in the base instruction set. */
#include <arm_neon.h>
#include <sys/auxv.h>

#define LANES 4
#define TILE_VECTORS 4
#define TILE_ROWS 5 /* 6 fit on paper; gcc then spills two sums: 39 against 58 GFLOP/s at n = 32 */
#define NARROW_ROWS 8

static inline void half_widen(float *to, const unsigned short *from) {
    vst1q_f32(to, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))));
}

static inline void half_narrow(unsigned short *to, const float *from) {
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from))));
}

#include "ops/kernels_vector.h"

static bool usable(void) {
    const unsigned long asimd = 1ul << 1; /* HWCAP_ASIMD */
    return (getauxval(AT_HWCAP) & asimd) != 0;
}

const carry_kernels carry_kernels_neon = {.name = "neon", .about = "ARM Advanced SIMD, 4 lanes", VECTOR_KERNELS};

/* Dot products of quantised rows by ARM's SDOT, which adds four products of bytes to each of four sums, for formats
   whose blocks have one scale. The contribution of a zero point, times the sum of x, is subtracted after each 32
   columns. */
#include <stdbool.h>
#include <string.h>
#include <sys/auxv.h>

#include "ops/kernels/quant_neon.h"
#include "ops/kernels/quant_layout.h"

#if defined(__ARM_FEATURE_DOTPROD)

static bool usable(void) {
    return (getauxval(AT_HWCAP) & (1UL << 20)) != 0; /* HWCAP_ASIMDDP */
}

static void round_token(const carry_quant_x *to, int64_t token, const float *x, int64_t count) {
    const int64_t whole = count / CARRY_QUANT_BLOCK;
    int8_t *q = to->q + token * to->columns;
    float *scale = to->scale + token * to->columns / CARRY_QUANT_BLOCK;
    float *sum = to->sum + token * to->columns / CARRY_QUANT_BLOCK;
    for (int64_t b = 0; b < whole; b++, x += CARRY_QUANT_BLOCK, q += CARRY_QUANT_BLOCK) {
        float32x4_t v[8];
        float32x4_t largest = vdupq_n_f32(0.0f);
        int32x4_t total = vdupq_n_s32(0);
        int32x4_t n[8];
        for (int i = 0; i < 8; i++) {
            v[i] = vld1q_f32(x + 4 * i);
            largest = vmaxq_f32(largest, vabsq_f32(v[i]));
        }
        scale[b] = vmaxvq_f32(largest) / 127.0f;
        const float by = scale[b] > 0.0f ? 1.0f / scale[b] : 0.0f;
        for (int i = 0; i < 8; i++) {
            n[i] = vminq_s32(vmaxq_s32(vcvtnq_s32_f32(vmulq_n_f32(v[i], by)), vdupq_n_s32(-127)), vdupq_n_s32(127));
            total = vaddq_s32(total, n[i]);
        }
        for (int i = 0; i < 8; i += 4) {
            const int16x8_t low = vcombine_s16(vmovn_s32(n[i]), vmovn_s32(n[i + 1]));
            const int16x8_t high = vcombine_s16(vmovn_s32(n[i + 2]), vmovn_s32(n[i + 3]));
            vst1q_s8(q + 4 * i, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        }
        sum[b] = scale[b] * (float)vaddvq_s32(total);
    }
    if (whole * CARRY_QUANT_BLOCK < to->columns) { /* the rest, and zeros */
        const carry_quant_x rest = {
            .columns = to->columns - whole * CARRY_QUANT_BLOCK, .q = q, .scale = scale + whole, .sum = sum + whole};
        carry_quant_kernels_plain.round(&rest, 0, x, count - whole * CARRY_QUANT_BLOCK);
    }
}

/* The f32 scales of four blocks. */
INLINE float32x4_t floats_at(const unsigned char *const block[ROWS]) {
    float32x4_t v = vdupq_n_f32(carry_block_f32(block[0]));
    v = vsetq_lane_f32(carry_block_f32(block[1]), v, 1);
    v = vsetq_lane_f32(carry_block_f32(block[2]), v, 2);
    return vsetq_lane_f32(carry_block_f32(block[3]), v, 3);
}

INLINE float32x4_t zero_points_at(const unsigned char *const block[ROWS]) {
    uint32x4_t v = vdupq_n_u32(block[0][4]);
    v = vsetq_lane_u32(block[1][4], v, 1);
    v = vsetq_lane_u32(block[2][4], v, 2);
    return vcvtq_f32_u32(vsetq_lane_u32(block[3][4], v, 3));
}

/* user: the layout, which the compiler knows where this is inlined. */
INLINE float32x4_t four_simple(const four_rows *given, const void *user) {
    const layout l = *(const layout *)user;
    four_rows f = *given;
    float32x4_t total = vdupq_n_f32(0.0f);
    for (int64_t b = 0; b < f.blocks; b++) {
        const float32x4_t scales = l.has_half_scale ? halves_at(f.row, 0) : floats_at(f.row);
        const float32x4_t less = l.zero > 0   ? vmulq_n_f32(scales, (float)l.zero)
                                 : l.zero < 0 ? vmulq_f32(scales, zero_points_at(f.row))
                                              : scales;
#pragma GCC unroll 4
        for (int i = 0; i < l.pieces; i++, f.x += CARRY_QUANT_BLOCK) {
            const int8x16_t x0 = vld1q_s8(f.x);
            const int8x16_t x1 = vld1q_s8(f.x + 16);
            int32x4_t dot[ROWS];
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) {
                const unsigned char *at = f.row[r] + l.integers + (l.has_nibbles ? 16 : 32) * i;
                const uint8x16_t first = vld1q_u8(at);
                dot[r] = l.has_nibbles ? dot_32(low_nibbles(first), high_nibbles(first), x0, x1)
                                       : dot_32(vreinterpretq_s8_u8(first), vld1q_s8((const int8_t *)at + 16), x0, x1);
            }
            total = vfmaq_f32(total, vcvtq_f32_s32(sums_of(dot)), vmulq_n_f32(scales, *f.scale++));
            if (l.zero != 0) {
                total = vfmsq_n_f32(total, less, *f.sum++);
            }
        }
        for (int r = 0; r < ROWS; r++) {
            f.row[r] += l.bytes;
        }
    }
    return total;
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

static const carry_quant_entry entries[] = {{&carry_quant_int8, dots_int8},
                                            {&carry_quant_q8_0, dots_q8_0},
                                            {&carry_quant_q4_0, dots_q4_0},
                                            {&carry_quant_int4_g32, dots_int4_g32},
                                            {&carry_quant_int4_g64, dots_int4_g64},
                                            {&carry_quant_int4_g128, dots_int4_g128},
                                            {&carry_quant_q4_k, carry_quant_neon_q4_k},
                                            {&carry_quant_q5_k, carry_quant_neon_q5_k},
                                            {&carry_quant_q6_k, carry_quant_neon_q6_k},
                                            {NULL, NULL}};

#else

static bool usable(void) {
    return false; /* the compiler has no SDOT */
}

static void round_token(const carry_quant_x *to, int64_t token, const float *x, int64_t count) {
    carry_quant_kernels_plain.round(to, token, x, count);
}

static const carry_quant_entry entries[] = {{NULL, NULL}};

#endif

const carry_quant_kernels carry_quant_kernels_neon = {.name = "neon",
                                                      .usable = usable,
                                                      .few_tokens = 8,
                                                      .round = round_token,
                                                      .entries = entries,
                                                      .bf16 = carry_quant_neon_bf16};

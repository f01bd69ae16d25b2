/* Dot products of quantised rows by ARM's SDOT, which adds four products of bytes to each of four sums. The sums of
   a block stay in four lanes, which are added once per row. */
#include <stdbool.h>
#include <string.h>
#include <sys/auxv.h>

#include "ops/kernels/quant.h"
#include "ops/quantised/blocks.h"

extern const carry_quant_kernels carry_quant_kernels_plain;

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))
#define AHEAD 1024 /* bytes by which a row is prefetched */

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

INLINE float half_at(const unsigned char *at) {
    __fp16 value;
    memcpy(&value, at, sizeof value);
    return (float)value;
}

INLINE int32x4_t dot_32(int8x16_t w0, int8x16_t w1, const int8_t *x) {
    return vdotq_s32(vdotq_s32(vdupq_n_s32(0), w0, vld1q_s8(x)), w1, vld1q_s8(x + 16));
}

INLINE int8x16_t low_nibbles(uint8x16_t bytes) {
    return vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
}

INLINE int8x16_t high_nibbles(uint8x16_t bytes) {
    return vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));
}

/* Each computes one row and one token. x, scale and sum are the token's. */
INLINE float row_q8_0(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale, const float *sum) {
    (void)sum;
    float32x4_t even = vdupq_n_f32(0.0f);
    float32x4_t odd = vdupq_n_f32(0.0f);
    int64_t b = 0;
    for (; b + 2 <= blocks; b += 2, w += 68, x += 64) {
        __builtin_prefetch(w + AHEAD);
        const int8_t *v = (const int8_t *)w;
        const int32x4_t first = dot_32(vld1q_s8(v + 2), vld1q_s8(v + 18), x);
        const int32x4_t second = dot_32(vld1q_s8(v + 36), vld1q_s8(v + 52), x + 32);
        even = vfmaq_n_f32(even, vcvtq_f32_s32(first), half_at(w) * scale[b]);
        odd = vfmaq_n_f32(odd, vcvtq_f32_s32(second), half_at(w + 34) * scale[b + 1]);
    }
    for (; b < blocks; b++, w += 34, x += 32) {
        const int8_t *v = (const int8_t *)w;
        const int32x4_t first = dot_32(vld1q_s8(v + 2), vld1q_s8(v + 18), x);
        even = vfmaq_n_f32(even, vcvtq_f32_s32(first), half_at(w) * scale[b]);
    }
    return vaddvq_f32(vaddq_f32(even, odd));
}

INLINE float row_int8(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale, const float *sum) {
    (void)sum;
    float32x4_t total = vdupq_n_f32(0.0f);
    for (int64_t b = 0; b < blocks; b++, w += 132, x += 128, scale += 4) {
        __builtin_prefetch(w + AHEAD);
        __builtin_prefetch(w + AHEAD + 64);
        const int8_t *v = (const int8_t *)w + 4;
        const float by = carry_block_f32(w);
        for (int i = 0; i < 4; i++) {
            const int32x4_t dot = dot_32(vld1q_s8(v + 32 * i), vld1q_s8(v + 32 * i + 16), x + 32 * i);
            total = vfmaq_n_f32(total, vcvtq_f32_s32(dot), by * scale[i]);
        }
    }
    return vaddvq_f32(total);
}

INLINE float row_q4_0(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale, const float *sum) {
    (void)sum;
    float32x4_t total = vdupq_n_f32(0.0f);
    const int8x16_t eight = vdupq_n_s8(8);
    for (int64_t b = 0; b < blocks; b++, w += 18, x += 32) {
        const uint8x16_t bytes = vld1q_u8(w + 2);
        const int32x4_t dot = dot_32(vsubq_s8(low_nibbles(bytes), eight), vsubq_s8(high_nibbles(bytes), eight), x);
        total = vfmaq_n_f32(total, vcvtq_f32_s32(dot), half_at(w) * scale[b]);
    }
    return vaddvq_f32(total);
}

INLINE float row_groups(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale, const int pieces) {
    float32x4_t total = vdupq_n_f32(0.0f);
    for (int64_t b = 0; b < blocks; b++, w += 8 + 16 * pieces, x += 32 * pieces, scale += pieces) {
        __builtin_prefetch(w + AHEAD);
        const float by = carry_block_f32(w);
        const int8x16_t zero = vdupq_n_s8((int8_t)w[4]);
        for (int i = 0; i < pieces; i++) {
            const uint8x16_t bytes = vld1q_u8(w + 8 + 16 * i);
            const int32x4_t dot =
                dot_32(vsubq_s8(low_nibbles(bytes), zero), vsubq_s8(high_nibbles(bytes), zero), x + 32 * i);
            total = vfmaq_n_f32(total, vcvtq_f32_s32(dot), by * scale[i]);
        }
    }
    return vaddvq_f32(total);
}

INLINE float row_int4_g32(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale,
                          const float *sum) {
    (void)sum;
    return row_groups(w, blocks, x, scale, 1);
}

INLINE float row_int4_g64(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale,
                          const float *sum) {
    (void)sum;
    return row_groups(w, blocks, x, scale, 2);
}

INLINE float row_int4_g128(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale,
                           const float *sum) {
    (void)sum;
    return row_groups(w, blocks, x, scale, 4);
}

/* The 8 scales of Q4_K and Q5_K as the bytes of one number, and the 8 minima as the bytes of another. */
INLINE void take_scales(const unsigned char *from, uint64_t *scales, uint64_t *minima) {
    uint32_t u[3];
    memcpy(u, from, sizeof u);
    const uint32_t high_scales = (u[2] & 0x0f0f0f0fu) | (u[0] >> 2 & 0x30303030u);
    const uint32_t high_minima = (u[2] >> 4 & 0x0f0f0f0fu) | (u[1] >> 2 & 0x30303030u);
    *scales = (u[0] & 0x3f3f3f3fu) | (uint64_t)high_scales << 32;
    *minima = (u[1] & 0x3f3f3f3fu) | (uint64_t)high_minima << 32;
}

INLINE float32x4_t low_floats(uint16x8_t v) {
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(v)));
}

INLINE float32x4_t high_floats(uint16x8_t v) {
    return vcvtq_f32_u32(vmovl_u16(vget_high_u16(v)));
}

INLINE float row_q4_k(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale, const float *sum) {
    float32x4_t even = vdupq_n_f32(0.0f);
    float32x4_t odd = vdupq_n_f32(0.0f);
    float32x4_t less = vdupq_n_f32(0.0f);
    for (int64_t b = 0; b < blocks; b++, w += 144, x += 256, scale += 8, sum += 8) {
        uint64_t scales;
        uint64_t minima;
        __builtin_prefetch(w + AHEAD);
        __builtin_prefetch(w + AHEAD + 64);
        take_scales(w + 4, &scales, &minima);
        const uint16x8_t s16 = vmovl_u8(vcreate_u8(scales));
        const uint16x8_t m16 = vmovl_u8(vcreate_u8(minima));
        const float d = half_at(w);
        const float32x4_t s[2] = {vmulq_n_f32(vmulq_f32(low_floats(s16), vld1q_f32(scale)), d),
                                  vmulq_n_f32(vmulq_f32(high_floats(s16), vld1q_f32(scale + 4)), d)};
        const float32x4_t m =
            vfmaq_f32(vmulq_f32(low_floats(m16), vld1q_f32(sum)), high_floats(m16), vld1q_f32(sum + 4));
        less = vfmaq_n_f32(less, m, half_at(w + 2));
        const uint8x16_t a0 = vld1q_u8(w + 16), a1 = vld1q_u8(w + 32), a2 = vld1q_u8(w + 48), a3 = vld1q_u8(w + 64);
        const uint8x16_t a4 = vld1q_u8(w + 80), a5 = vld1q_u8(w + 96), a6 = vld1q_u8(w + 112), a7 = vld1q_u8(w + 128);
#define PAIR(j, low, high, lanes)                                                                                      \
    even = vfmaq_laneq_f32(even, vcvtq_f32_s32(dot_32(low_nibbles(low), low_nibbles(high), x + 64 * (j))), lanes,      \
                           2 * (j) % 4);                                                                               \
    odd = vfmaq_laneq_f32(odd, vcvtq_f32_s32(dot_32(high_nibbles(low), high_nibbles(high), x + 64 * (j) + 32)), lanes, \
                          2 * (j) % 4 + 1)
        PAIR(0, a0, a1, s[0]);
        PAIR(1, a2, a3, s[0]);
        PAIR(2, a4, a5, s[1]);
        PAIR(3, a6, a7, s[1]);
#undef PAIR
    }
    return vaddvq_f32(vsubq_f32(vaddq_f32(even, odd), less));
}

/* Two sub-blocks of 16 that share one scale of x: their sums times lanes `lane` and `lane` + 1 of `scales`. */
#define DOT_SCALED(w0, w1, x, scales, lane)                                          \
    vmlaq_laneq_s32(vmulq_laneq_s32(vdotq_s32(zero, w0, vld1q_s8(x)), scales, lane), \
                    vdotq_s32(zero, w1, vld1q_s8((x) + 16)), scales, (lane) + 1)
/* The low nibbles of `low` with bits 0 and 1 of `high` above them; the high nibbles with bits 4 and 5 of `high`. */
#define JOIN_LOW(low, high) vsubq_s8(vreinterpretq_s8_u8(vandq_u8(vsliq_n_u8(low, high, 4), six)), middle)
#define JOIN_HIGH(low, high) vsubq_s8(vreinterpretq_s8_u8(vandq_u8(vsriq_n_u8(high, low, 4), six)), middle)

INLINE float row_q6_k(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale, const float *sum) {
    (void)sum;
    float32x4_t even = vdupq_n_f32(0.0f);
    float32x4_t odd = vdupq_n_f32(0.0f);
    const uint8x16_t six = vdupq_n_u8(63);
    const int8x16_t middle = vdupq_n_s8(32);
    const int32x4_t zero = vdupq_n_s32(0);
    for (int64_t b = 0; b < blocks; b++, w += 210, x += 256, scale += 8) {
        const float d = half_at(w + 208);
        const int8x16_t s8 = vld1q_s8((const int8_t *)w + 192);
        __builtin_prefetch(w + AHEAD);
        __builtin_prefetch(w + AHEAD + 64);
        __builtin_prefetch(w + AHEAD + 128);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const int16x8_t s16 = half == 0 ? vmovl_s8(vget_low_s8(s8)) : vmovl_high_s8(s8);
            const int32x4_t s0 = vmovl_s16(vget_low_s16(s16));
            const int32x4_t s1 = vmovl_high_s16(s16);
            const float32x4_t by = vmulq_n_f32(vld1q_f32(scale + 4 * half), d);
            const uint8x16_t l0 = vld1q_u8(w + 64 * half), l1 = vld1q_u8(w + 64 * half + 16);
            const uint8x16_t l2 = vld1q_u8(w + 64 * half + 32), l3 = vld1q_u8(w + 64 * half + 48);
            const uint8x16_t h0 = vld1q_u8(w + 128 + 32 * half), h1 = vld1q_u8(w + 128 + 32 * half + 16);
            const uint8x16_t g0 = vshrq_n_u8(h0, 2), g1 = vshrq_n_u8(h1, 2);
            const int8_t *at = x + 128 * half;
            const int32x4_t a = DOT_SCALED(JOIN_LOW(l0, h0), JOIN_LOW(l1, h1), at, s0, 0);
            const int32x4_t c = DOT_SCALED(JOIN_LOW(l2, g0), JOIN_LOW(l3, g1), at + 32, s0, 2);
            const int32x4_t e = DOT_SCALED(JOIN_HIGH(l0, h0), JOIN_HIGH(l1, h1), at + 64, s1, 0);
            const int32x4_t f = DOT_SCALED(JOIN_HIGH(l2, g0), JOIN_HIGH(l3, g1), at + 96, s1, 2);
            even = vfmaq_laneq_f32(even, vcvtq_f32_s32(a), by, 0);
            odd = vfmaq_laneq_f32(odd, vcvtq_f32_s32(c), by, 1);
            even = vfmaq_laneq_f32(even, vcvtq_f32_s32(e), by, 2);
            odd = vfmaq_laneq_f32(odd, vcvtq_f32_s32(f), by, 3);
        }
    }
    return vaddvq_f32(vaddq_f32(even, odd));
}

#undef DOT_SCALED
#undef JOIN_LOW
#undef JOIN_HIGH

typedef float (*row_function)(const unsigned char *w, int64_t blocks, const int8_t *x, const float *scale,
                              const float *sum);

/* Multiplies every row by every token. */
INLINE void each_row(const carry_quant_dots *d, row_function row) {
    for (int64_t r = 0; r < d->rows; r++) {
        for (int64_t t = 0; t < d->tokens; t++) {
            const int64_t at = t * d->x.columns;
            d->y[t * d->y_row + r] = row(d->w + (size_t)r * d->row_bytes, d->blocks, d->x.q + at,
                                         d->x.scale + at / CARRY_QUANT_BLOCK, d->x.sum + at / CARRY_QUANT_BLOCK);
        }
    }
}

static void dots_q8_0(const carry_quant_dots *d) {
    each_row(d, row_q8_0);
}

static void dots_int8(const carry_quant_dots *d) {
    each_row(d, row_int8);
}

static void dots_q4_0(const carry_quant_dots *d) {
    each_row(d, row_q4_0);
}

static void dots_int4_g32(const carry_quant_dots *d) {
    each_row(d, row_int4_g32);
}

static void dots_int4_g64(const carry_quant_dots *d) {
    each_row(d, row_int4_g64);
}

static void dots_int4_g128(const carry_quant_dots *d) {
    each_row(d, row_int4_g128);
}

static void dots_q4_k(const carry_quant_dots *d) {
    each_row(d, row_q4_k);
}

static void dots_q6_k(const carry_quant_dots *d) {
    each_row(d, row_q6_k);
}

static carry_quant_dots_function dots(const carry_quant_format *format) {
    return format == &carry_quant_int8        ? dots_int8
           : format == &carry_quant_q8_0      ? dots_q8_0
           : format == &carry_quant_q4_0      ? dots_q4_0
           : format == &carry_quant_int4_g32  ? dots_int4_g32
           : format == &carry_quant_int4_g64  ? dots_int4_g64
           : format == &carry_quant_int4_g128 ? dots_int4_g128
           : format == &carry_quant_q4_k      ? dots_q4_k
           : format == &carry_quant_q6_k      ? dots_q6_k
                                              : carry_quant_kernels_plain.dots(format);
}

#else

static bool usable(void) {
    return false; /* the compiler has no SDOT */
}

static void round_token(const carry_quant_x *to, int64_t token, const float *x, int64_t count) {
    carry_quant_kernels_plain.round(to, token, x, count);
}

static carry_quant_dots_function dots(const carry_quant_format *format) {
    // cppcheck-suppress CastIntegerToAddressAtReturn
    return carry_quant_kernels_plain.dots(format);
}

#endif

const carry_quant_kernels carry_quant_kernels_neon = {
    .name = "neon", .usable = usable, .round = round_token, .dots = dots};

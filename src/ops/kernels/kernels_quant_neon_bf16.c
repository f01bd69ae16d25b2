/* Decodes rows of quantised blocks to bf16 by ARM's BFCVTN, for products of many tokens: the same bits as decoding to
   f32 and rounding. */
#include <string.h>
#include <sys/auxv.h>

#include "ops/kernels/quant_neon.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))

INLINE float half_at(const unsigned char *at) {
    __fp16 value;
    memcpy(&value, at, sizeof value);
    return (float)value;
}

INLINE uint16x8_t narrow(int16x8_t q, float32x4_t scale, float32x4_t less) {
    const float32x4_t low = vfmaq_f32(less, vcvtq_f32_s32(vmovl_s16(vget_low_s16(q))), scale);
    const float32x4_t high = vfmaq_f32(less, vcvtq_f32_s32(vmovl_high_s16(q)), scale);
    return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
}

/* 16 values q * scale + less. */
INLINE void put_16(uint16_t *to, int8x16_t q, float scale, float less) {
    vst1q_u16(to, narrow(vmovl_s8(vget_low_s8(q)), vdupq_n_f32(scale), vdupq_n_f32(less)));
    vst1q_u16(to + 8, narrow(vmovl_high_s8(q), vdupq_n_f32(scale), vdupq_n_f32(less)));
}

/* 32 values from 16 bytes, low nibbles first. -0.0f as the sum keeps the sign of a product that is zero. */
INLINE void put_nibbles(uint16_t *to, uint8x16_t bytes, int zero, float scale) {
    const int8x16_t point = vdupq_n_s8((int8_t)zero);
    put_16(to, vsubq_s8(vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15))), point), scale, -0.0f);
    put_16(to + 16, vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4)), point), scale, -0.0f);
}

static void decode_q8_0(uint16_t *to, const unsigned char *at, int64_t count) {
    for (int64_t b = 0; b < count; b++, at += 34, to += 32) {
        const int8_t *q = (const int8_t *)at + 2;
        put_16(to, vld1q_s8(q), half_at(at), -0.0f);
        put_16(to + 16, vld1q_s8(q + 16), half_at(at), -0.0f);
    }
}

static void decode_int8(uint16_t *to, const unsigned char *at, int64_t count) {
    for (int64_t b = 0; b < count; b++, at += 132, to += 128) {
        for (int i = 0; i < 128; i += 16) {
            put_16(to + i, vld1q_s8((const int8_t *)at + 4 + i), carry_block_f32(at), -0.0f);
        }
    }
}

static void decode_q4_0(uint16_t *to, const unsigned char *at, int64_t count) {
    for (int64_t b = 0; b < count; b++, at += 18, to += 32) {
        put_nibbles(to, vld1q_u8(at + 2), 8, half_at(at));
    }
}

INLINE void decode_int4(uint16_t *to, const unsigned char *at, int64_t count, int group) {
    for (int64_t b = 0; b < count; b++, at += 8 + group / 2, to += group) {
        for (int i = 0; i < group; i += 32) {
            put_nibbles(to + i, vld1q_u8(at + 8 + i / 2), at[4], carry_block_f32(at));
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

/* Sub-block j of Q4_K or Q5_K; high: the bytes that hold bit 4 of each value, or NULL. */
INLINE void put_sub_block(uint16_t *to, const unsigned char *low, const unsigned char *high, int j, float scale,
                          float less) {
    for (int i = 0; i < 32; i += 16) {
        const uint8x16_t bytes = vld1q_u8(low + j / 2 * 32 + i);
        uint8x16_t q = vandq_u8(vshlq_u8(bytes, vdupq_n_s8(j % 2 == 0 ? 0 : -4)), vdupq_n_u8(15));
        if (high != NULL) {
            const uint8x16_t bits = vshlq_u8(vld1q_u8(high + i), vdupq_n_s8((int8_t)(4 - j)));
            q = vorrq_u8(q, vandq_u8(bits, vdupq_n_u8(16)));
        }
        put_16(to + i, vreinterpretq_s8_u8(q), scale, -less);
    }
}

INLINE void decode_k(uint16_t *to, const unsigned char *at, int64_t count, const bool has_fifth_bit) {
    for (int64_t b = 0; b < count; b++, at += has_fifth_bit ? 176 : 144) {
        const float d = half_at(at);
        const float least = half_at(at + 2);
        uint64_t scales;
        uint64_t minima;
        carry_block_k_scales(at + 4, &scales, &minima);
        for (int j = 0; j < 8; j++, to += 32, scales >>= 8, minima >>= 8) {
            put_sub_block(to, at + (has_fifth_bit ? 48 : 16), has_fifth_bit ? at + 16 : NULL, j,
                          d * (float)(scales & 255), least * (float)(minima & 255));
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
    for (int64_t b = 0; b < count; b++, at += 210) {
        const float d = half_at(at + 208);
        for (int i = 0; i < 256; i += 16, to += 16) {
            const int half = i / 128;
            const int quarter = i % 128 / 32;
            const uint8x16_t low = vld1q_u8(at + half * 64 + quarter % 2 * 32 + i % 32);
            const uint8x16_t high = vld1q_u8(at + 128 + half * 32 + i % 32);
            const uint8x16_t nibbles = vandq_u8(vshlq_u8(low, vdupq_n_s8(quarter < 2 ? 0 : -4)), vdupq_n_u8(15));
            const uint8x16_t bits = vandq_u8(vshlq_u8(high, vdupq_n_s8((int8_t)(4 - 2 * quarter))), vdupq_n_u8(48));
            const int8x16_t q = vsubq_s8(vreinterpretq_s8_u8(vorrq_u8(nibbles, bits)), vdupq_n_s8(32));
            put_16(to, q, d * (float)(int8_t)at[192 + i / 16], -0.0f);
        }
    }
}

carry_quant_bf16_function carry_quant_neon_bf16(const carry_quant_format *format) {
    static const struct {
        const carry_quant_format *format;
        carry_quant_bf16_function decode;
    } entries[] = {{&carry_quant_q8_0, decode_q8_0},         {&carry_quant_int8, decode_int8},
                   {&carry_quant_q4_0, decode_q4_0},         {&carry_quant_int4_g32, decode_int4_g32},
                   {&carry_quant_int4_g64, decode_int4_g64}, {&carry_quant_int4_g128, decode_int4_g128},
                   {&carry_quant_q4_k, decode_q4_k},         {&carry_quant_q5_k, decode_q5_k},
                   {&carry_quant_q6_k, decode_q6_k}};
    const bool usable = (getauxval(AT_HWCAP2) & (1UL << 14)) != 0; /* HWCAP2_BF16 */
    for (size_t i = 0; usable && i < sizeof entries / sizeof entries[0]; i++) {
        if (entries[i].format == format) {
            return entries[i].decode;
        }
    }
    return NULL;
}

#else

carry_quant_bf16_function carry_quant_neon_bf16(const carry_quant_format *format) {
    (void)format;
    return NULL; /* the compiler has no BFCVTN */
}

#endif

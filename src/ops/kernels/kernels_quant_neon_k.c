/* Dot products of rows in Q4_K, Q5_K and Q6_K by ARM's SDOT. Scales of four rows are transposed, so that each sub-block
   needs one multiplication for the four rows. The amounts to subtract, minima times sums of x (Q4_K, Q5_K) or 32 times
   scales times sums of x (Q6_K), are dot products of bytes too: the sums of x are rounded to 16 bits with one scale for
   256 columns, and their high bytes and low bytes are multiplied separately. */
#include <math.h>
#include <string.h>

#include "ops/kernels/quant_neon.h"

#if defined(__ARM_FEATURE_DOTPROD)

#define SUPER 256     /* columns of a block */
#define SUB_BLOCKS 8  /* of 32 columns */
#define SIXTEENTHS 16 /* sub-blocks of 16 columns */
#define MOST_BLOCKS 512

/* Sums of x over the sub-blocks of 256 columns: scale * (256 high + low). Four sums share a word. */
typedef struct block_sums {
    float scale;
    int32_t high[4], low[4];
} block_sums;

static void round_sums(block_sums *to, const float *sums, int count) {
    int8_t high[SIXTEENTHS] = {0};
    int8_t low[SIXTEENTHS] = {0};
    const float largest = carry_block_largest(sums, count);
    const float by = largest > 0.0f ? 32512.0f / largest : 0.0f; /* 127 * 256 */
    for (int i = 0; i < count; i++) {
        const int q = (int)lrintf(sums[i] * by);
        high[i] = (int8_t)((q + 128) >> 8);
        low[i] = (int8_t)(q - high[i] * 256);
    }
    to->scale = largest / 32512.0f;
    memcpy(to->high, high, sizeof high);
    memcpy(to->low, low, sizeof low);
}

/* Word i of the result has word i of each row. */
INLINE void transpose(uint32x4_t to[4], const uint32x4_t row[ROWS]) {
    const uint64x2_t a = vreinterpretq_u64_u32(vtrn1q_u32(row[0], row[1]));
    const uint64x2_t b = vreinterpretq_u64_u32(vtrn2q_u32(row[0], row[1]));
    const uint64x2_t c = vreinterpretq_u64_u32(vtrn1q_u32(row[2], row[3]));
    const uint64x2_t d = vreinterpretq_u64_u32(vtrn2q_u32(row[2], row[3]));
    to[0] = vreinterpretq_u32_u64(vtrn1q_u64(a, c));
    to[1] = vreinterpretq_u32_u64(vtrn1q_u64(b, d));
    to[2] = vreinterpretq_u32_u64(vtrn2q_u64(a, c));
    to[3] = vreinterpretq_u32_u64(vtrn2q_u64(b, d));
}

INLINE int32x4_t dot_word(int32x4_t total, uint32x4_t bytes, const int32_t *word) {
    return vdotq_s32(total, vreinterpretq_s8_u32(bytes), vreinterpretq_s8_s32(vld1q_dup_s32(word)));
}

/* The sums over `words` words of four bytes of each row times the sums of x. */
INLINE float32x4_t times_sums(const uint32x4_t *bytes, int words, const block_sums *sums) {
    int32x4_t high = zeros();
    int32x4_t low = zeros();
    for (int i = 0; i < words; i++) {
        high = dot_word(high, bytes[i], &sums->high[i]);
        low = dot_word(low, bytes[i], &sums->low[i]);
    }
    return vmulq_n_f32(vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(high, 8), low)), sums->scale);
}

/* The four bytes of each lane. */
INLINE void unsigned_bytes(int32x4_t to[4], uint32x4_t v) {
    const uint32x4_t mask = vdupq_n_u32(255);
    to[0] = vreinterpretq_s32_u32(vandq_u32(v, mask));
    to[1] = vreinterpretq_s32_u32(vandq_u32(vshrq_n_u32(v, 8), mask));
    to[2] = vreinterpretq_s32_u32(vandq_u32(vshrq_n_u32(v, 16), mask));
    to[3] = vreinterpretq_s32_u32(vshrq_n_u32(v, 24));
}

INLINE void signed_bytes(int32x4_t to[4], uint32x4_t bytes) {
    const int32x4_t v = vreinterpretq_s32_u32(bytes);
    to[0] = vshrq_n_s32(vshlq_n_s32(v, 24), 24);
    to[1] = vshrq_n_s32(vshlq_n_s32(v, 16), 24);
    to[2] = vshrq_n_s32(vshlq_n_s32(v, 8), 24);
    to[3] = vshrq_n_s32(v, 24);
}

/* The contents of the first 16 bytes of Q4_K or Q5_K blocks, of four rows. */
typedef struct heads {
    float32x4_t d, least;
    int32x4_t scales[SUB_BLOCKS];
    uint32x4_t minima[2]; /* bytes */
} heads;

INLINE heads take_heads(const four_rows *f) {
    const uint32x4_t six = vdupq_n_u32(0x3f3f3f3fu), four = vdupq_n_u32(0x0f0f0f0fu), two = vdupq_n_u32(0x30303030u);
    uint32x4_t row[ROWS];
    uint32x4_t u[4];
    heads h;
    for (int r = 0; r < ROWS; r++) {
        row[r] = vreinterpretq_u32_u8(vld1q_u8(f->row[r]));
    }
    transpose(u, row);
    h.d = vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(u[0])));
    h.least = vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(u[0], 16)));
    unsigned_bytes(h.scales, vandq_u32(u[1], six));
    unsigned_bytes(h.scales + 4, vorrq_u32(vandq_u32(u[3], four), vandq_u32(vshrq_n_u32(u[1], 2), two)));
    h.minima[0] = vandq_u32(u[2], six);
    h.minima[1] = vorrq_u32(vandq_u32(vshrq_n_u32(u[3], 4), four), vandq_u32(vshrq_n_u32(u[2], 2), two));
    return h;
}

/* Integers of 5 bits: bit `bit` of `bits` is the fifth. */
INLINE int8x16_t join_five_low(uint8x16_t nibbles, uint8x16_t bits, int bit) {
    const uint8x16_t moved = vshlq_u8(bits, vdupq_n_s8((int8_t)(4 - bit)));
    return vreinterpretq_s8_u8(vandq_u8(vbslq_u8(vdupq_n_u8(15), nibbles, moved), vdupq_n_u8(31)));
}

INLINE int8x16_t join_five_high(uint8x16_t nibbles, uint8x16_t bits, int bit) {
    const uint8x16_t moved = vshlq_u8(bits, vdupq_n_s8((int8_t)(4 - bit)));
    return vreinterpretq_s8_u8(vandq_u8(vsriq_n_u8(moved, nibbles, 4), vdupq_n_u8(31)));
}

INLINE float32x4_t four_k(const four_rows *given, const block_sums *sums, const bool has_fifth_bit) {
    four_rows f = *given;
    float32x4_t total = vdupq_n_f32(0.0f);
    sums += f.token * f.blocks;
    for (int64_t b = 0; b < f.blocks; b++, f.scale += SUB_BLOCKS) {
        const heads h = take_heads(&f);
        float32x4_t block = vdupq_n_f32(0.0f);
#pragma GCC unroll 4
        for (int j = 0; j < SUB_BLOCKS / 2; j++, f.x += 2 * CARRY_QUANT_BLOCK) {
            const int8x16_t x0 = vld1q_s8(f.x), x1 = vld1q_s8(f.x + 16);
            const int8x16_t x2 = vld1q_s8(f.x + 32), x3 = vld1q_s8(f.x + 48);
            int32x4_t low[ROWS];
            int32x4_t high[ROWS];
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) {
                const unsigned char *at = f.row[r] + (has_fifth_bit ? 48 : 16) + 32 * j;
                const uint8x16_t w0 = vld1q_u8(at), w1 = vld1q_u8(at + 16);
                if (has_fifth_bit) {
                    const uint8x16_t b0 = vld1q_u8(f.row[r] + 16), b1 = vld1q_u8(f.row[r] + 32);
                    low[r] = dot_32(join_five_low(w0, b0, 2 * j), join_five_low(w1, b1, 2 * j), x0, x1);
                    high[r] = dot_32(join_five_high(w0, b0, 2 * j + 1), join_five_high(w1, b1, 2 * j + 1), x2, x3);
                } else {
                    low[r] = dot_32(low_nibbles(w0), low_nibbles(w1), x0, x1);
                    high[r] = dot_32(high_nibbles(w0), high_nibbles(w1), x2, x3);
                }
            }
            const int32x4_t even = vmulq_s32(sums_of(low), h.scales[2 * j]);
            const int32x4_t odd = vmulq_s32(sums_of(high), h.scales[2 * j + 1]);
            block = vfmaq_n_f32(block, vcvtq_f32_s32(even), f.scale[2 * j]);
            block = vfmaq_n_f32(block, vcvtq_f32_s32(odd), f.scale[2 * j + 1]);
        }
        total = vfmaq_f32(total, block, h.d);
        total = vfmsq_f32(total, times_sums(h.minima, 2, sums++), h.least);
        for (int r = 0; r < ROWS; r++) {
            f.row[r] += has_fifth_bit ? 176 : 144;
        }
    }
    return total;
}

INLINE float32x4_t four_q4_k(const four_rows *f, const void *user) {
    return four_k(f, user, false);
}

INLINE float32x4_t four_q5_k(const four_rows *f, const void *user) {
    return four_k(f, user, true);
}

/* Joins the integers of a Q6_K block from their bits 0 to 3 and their bits 4 and 5. join_low takes the former from the
   low nibbles of `low` and the latter from bits 0 and 1 of `high`; join_high takes the high nibbles, and bits 4 and
   5. */
INLINE int8x16_t join_low(uint8x16_t low, uint8x16_t high) {
    return vreinterpretq_s8_u8(vandq_u8(vsliq_n_u8(low, high, 4), vdupq_n_u8(63)));
}

INLINE int8x16_t join_high(uint8x16_t low, uint8x16_t high) {
    return vreinterpretq_s8_u8(vandq_u8(vsriq_n_u8(high, low, 4), vdupq_n_u8(63)));
}

/* Adds two sub-blocks of 16 columns that share one scale of x. */
INLINE float32x4_t add_pair(float32x4_t total, const int32x4_t first[ROWS], const int32x4_t second[ROWS],
                            const int32x4_t scales[2], float by) {
    const int32x4_t sum = vmlaq_s32(vmulq_s32(sums_of(first), scales[0]), sums_of(second), scales[1]);
    return vfmaq_n_f32(total, vcvtq_f32_s32(sum), by);
}

INLINE float32x4_t four_q6_k(const four_rows *given, const void *user) {
    four_rows f = *given;
    const block_sums *sums = (const block_sums *)user + f.token * f.blocks;
    float32x4_t total = vdupq_n_f32(0.0f);
    for (int64_t b = 0; b < f.blocks; b++, f.scale += SUB_BLOCKS, f.x += SUPER) {
        uint32x4_t row[ROWS];
        uint32x4_t bytes[4];
        for (int r = 0; r < ROWS; r++) {
            row[r] = vreinterpretq_u32_u8(vld1q_u8(f.row[r] + 192));
        }
        transpose(bytes, row);
        float32x4_t block = times_sums(bytes, 4, sums++);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            int32x4_t scales[SUB_BLOCKS];
            signed_bytes(scales, bytes[2 * half]);
            signed_bytes(scales + 4, bytes[2 * half + 1]);
            /* Quarters j and j + 2 of the half share their bytes. */
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++) {
                const int8_t *x = f.x + 128 * half + 32 * j;
                const int8x16_t x0 = vld1q_s8(x), x1 = vld1q_s8(x + 16), x2 = vld1q_s8(x + 64), x3 = vld1q_s8(x + 80);
                int32x4_t dot[4][ROWS];
#pragma GCC unroll 4
                for (int r = 0; r < ROWS; r++) {
                    const unsigned char *at = f.row[r] + 64 * half + 32 * j;
                    const uint8x16_t l0 = vld1q_u8(at), l1 = vld1q_u8(at + 16);
                    uint8x16_t h0 = vld1q_u8(f.row[r] + 128 + 32 * half), h1 = vld1q_u8(f.row[r] + 144 + 32 * half);
                    h0 = j == 1 ? vshrq_n_u8(h0, 2) : h0;
                    h1 = j == 1 ? vshrq_n_u8(h1, 2) : h1;
                    dot[0][r] = vdotq_s32(zeros(), join_low(l0, h0), x0);
                    dot[1][r] = vdotq_s32(zeros(), join_low(l1, h1), x1);
                    dot[2][r] = vdotq_s32(zeros(), join_high(l0, h0), x2);
                    dot[3][r] = vdotq_s32(zeros(), join_high(l1, h1), x3);
                }
                block = add_pair(block, dot[0], dot[1], scales + 2 * j, f.scale[4 * half + j]);
                block = add_pair(block, dot[2], dot[3], scales + 2 * j + 4, f.scale[4 * half + j + 2]);
            }
        }
        total = vfmaq_f32(total, block, halves_at(f.row, 208));
        for (int r = 0; r < ROWS; r++) {
            f.row[r] += 210;
        }
    }
    return total;
}

/* The sums of x for Q6_K, whose integers are 32 less than stored. */
static void sum_sixteenths(float to[SIXTEENTHS], const int8_t *x, const float *scale) {
    for (int i = 0; i < SIXTEENTHS; i++) {
        to[i] = -32.0f * scale[i / 2] * (float)vaddlvq_s8(vld1q_s8(x + i * SIXTEENTHS));
    }
}

/* Calls `four` for as many tokens at a time as `sums` has space for. */
INLINE void run_k(const carry_quant_dots *d, const carry_quant_format *format, four_function four) {
    block_sums sums[MOST_BLOCKS];
    const int64_t columns = d->x.columns;
    const int64_t blocks = columns / SUPER;
    const int64_t each = blocks > 0 ? MOST_BLOCKS / blocks : 0;
    if (each == 0) {
        carry_quant_dots_by(&carry_quant_kernels_plain, format)(d);
    }
    for (int64_t t = 0; each > 0 && t < d->tokens; t += each) {
        carry_quant_dots part = *d;
        part.tokens = each < d->tokens - t ? each : d->tokens - t;
        part.x.q += t * columns;
        part.x.scale += t * columns / CARRY_QUANT_BLOCK;
        part.x.sum += t * columns / CARRY_QUANT_BLOCK;
        part.y += t * d->y_row;
        for (int64_t i = 0; i < part.tokens * blocks; i++) {
            float sixteen[SIXTEENTHS];
            if (format == &carry_quant_q6_k) {
                sum_sixteenths(sixteen, part.x.q + i * SUPER, part.x.scale + i * SUB_BLOCKS);
                round_sums(&sums[i], sixteen, SIXTEENTHS);
            } else {
                round_sums(&sums[i], part.x.sum + i * SUB_BLOCKS, SUB_BLOCKS);
            }
        }
        each_four_rows(&part, four, sums);
    }
}

void carry_quant_neon_q4_k(const carry_quant_dots *d) {
    run_k(d, &carry_quant_q4_k, four_q4_k);
}

void carry_quant_neon_q5_k(const carry_quant_dots *d) {
    run_k(d, &carry_quant_q5_k, four_q5_k);
}

void carry_quant_neon_q6_k(const carry_quant_dots *d) {
    run_k(d, &carry_quant_q6_k, four_q6_k);
}

#endif

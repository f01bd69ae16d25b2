/* Parts of the NEON kernels for quantised rows (kernels_quant_neon.c, kernels_quant_neon_k.c). Four rows are computed
   together: they share the loads of x, and their sums end in the four lanes of one vector. */
#ifndef CARRY_OPS_KERNELS_QUANT_NEON_H
#define CARRY_OPS_KERNELS_QUANT_NEON_H

#include "ops/kernels/quant.h"
#include "ops/quantised/blocks.h"

void carry_quant_neon_q4_k(const carry_quant_dots *d);
void carry_quant_neon_q5_k(const carry_quant_dots *d);
void carry_quant_neon_q6_k(const carry_quant_dots *d);
carry_quant_bf16_function carry_quant_neon_bf16(const carry_quant_format *format);

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))
#define ROWS 4

/* Four rows and one token. */
typedef struct four_rows {
    const unsigned char *row[ROWS];
    int64_t blocks;
    const int8_t *x;
    const float *scale, *sum; /* of x */
    int64_t token;
} four_rows;

typedef float32x4_t (*four_function)(const four_rows *f, const void *user);

/* Computes every row for every token. The four rows are a quarter of all rows apart, so that each of the four is read
   in sequence over many steps. The processor prefetches four such streams well, and four neighbouring rows badly: Q8_0
   from memory took 8.9 ns for 256 weights instead of 15.6 on a Neoverse-V1. */
INLINE void each_four_rows(const carry_quant_dots *d, four_function four, const void *user) {
    const int64_t quarter = (d->rows + ROWS - 1) / ROWS;
    for (int64_t r = 0; r < quarter; r++) {
        for (int64_t t = 0; t < d->tokens; t++) {
            const int64_t at = t * d->x.columns;
            const int64_t first = at / CARRY_QUANT_BLOCK;
            float sums[ROWS];
            four_rows f = {.blocks = d->blocks,
                           .x = d->x.q + at,
                           .scale = d->x.scale + first,
                           .sum = d->x.sum + first,
                           .token = t};
            for (int i = 0; i < ROWS; i++) {
                const int64_t row = r + i * quarter;
                f.row[i] = d->w + (size_t)(row < d->rows ? row : d->rows - 1) * d->row_bytes;
            }
            vst1q_f32(sums, four(&f, user));
            for (int i = 0; i < ROWS && r + i * quarter < d->rows; i++) {
                d->y[t * d->y_row + r + i * quarter] = sums[i];
            }
        }
    }
}

/* Zeros by an instruction that needs no execution unit. gcc would copy a register that holds zeros, which needs one. */
INLINE int32x4_t zeros(void) {
    int32x4_t v;
    __asm__ volatile("movi %0.4s, #0" : "=w"(v));
    return v;
}

INLINE int32x4_t dot_32(int8x16_t w0, int8x16_t w1, int8x16_t x0, int8x16_t x1) {
    return vdotq_s32(vdotq_s32(zeros(), w0, x0), w1, x1);
}

/* The sum of each vector, in its lane. */
INLINE int32x4_t sums_of(const int32x4_t v[ROWS]) {
    return vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]));
}

/* The f16 at `at` bytes in each of four blocks. */
INLINE float32x4_t halves_at(const unsigned char *const block[ROWS], int at) {
    uint16_t bits[ROWS];
    for (int i = 0; i < ROWS; i++) {
        memcpy(&bits[i], block[i] + at, sizeof bits[i]);
    }
    uint16x4_t v = vdup_n_u16(bits[0]);
    v = vset_lane_u16(bits[1], v, 1);
    v = vset_lane_u16(bits[2], v, 2);
    v = vset_lane_u16(bits[3], v, 3);
    return vcvt_f32_f16(vreinterpret_f16_u16(v));
}

INLINE int8x16_t low_nibbles(uint8x16_t bytes) {
    return vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
}

INLINE int8x16_t high_nibbles(uint8x16_t bytes) {
    return vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));
}

#endif
#endif

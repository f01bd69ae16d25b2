/* half_rows.h over vectors. Part of kernels_vector.h.

   Two neighbours of 16 bits are one number of 32 bits: a shift extracts the first and a mask the second, which gives
   two f32 vectors without a shuffle, one of even and one of odd elements. f32 operands (taps, weights) are put into
   that order beforehand. */
#ifndef CARRY_OPS_VECTOR_HALF_ROWS_H
#define CARRY_OPS_VECTOR_HALF_ROWS_H

#include <math.h>

#include "ops/kernels/half_rows.h"

#define PAIRS (2 * LANES)

typedef float quarter __attribute__((vector_size(16)));

typedef struct half_pair {
    vec even, odd;
} half_pair;

INLINE half_pair pair_load(const uint16_t *from) {
    wide_bits whole;
    memcpy(&whole, from, sizeof whole);
    return (half_pair){.even = (vec)(whole << 16), .odd = (vec)(whole & 0xffff0000u)};
}

INLINE void pair_store(uint16_t *to, half_pair value) {
    const wide_bits made = bf16_upper(value.even) >> 16 | (bf16_upper(value.odd) & 0xffff0000u);
    memcpy(to, &made, sizeof made);
}

/* Puts f32 numbers into the order of pairs, PAIRS at a time: those of even index first, then the odd ones. Pads with
   zeros. */
static void in_pairs(float *to, const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i += PAIRS) {
        for (int l = 0; l < LANES; l++) {
            to[i + l] = i + 2 * l < count ? from[i + 2 * l] : 0.0f;
            to[i + LANES + l] = i + 2 * l + 1 < count ? from[i + 2 * l + 1] : 0.0f;
        }
    }
}

/* 1 / (1 + e^-x), with e^-x = 2^t and t = n + f, where n is the integer nearest to t. 2^f is a polynomial within 2^-18;
   n, which is in the lowest bits of `shifted`, is added to its exponent. For x below -89 this gives 2^128, which is
   infinity, so that the result is exactly zero. */
INLINE vec half_sigmoid(vec x) {
    const float to_integer = 12582912.0f; /* 1.5 2^23 */
    const vec t = clamped(x * -1.44269504f, -125.0f, 128.0f);
    const vec shifted = t + to_integer;
    const vec f = t - (shifted - to_integer);
    vec p = f * 9.66636852e-3f + 5.59219758e-2f;
    p = p * f + 2.40223490e-1f;
    p = p * f + 6.93121045e-1f;
    p = p * f + 1.0f;
    return reciprocal((vec)((wide_bits)p + ((wide_bits)shifted << 23)) + 1.0f);
}

INLINE half_pair pair_silu(half_pair x) {
    return (half_pair){.even = x.even * half_sigmoid(x.even), .odd = x.odd * half_sigmoid(x.odd)};
}

INLINE half_pair pair_times(half_pair x, half_pair y) {
    return (half_pair){.even = x.even * y.even, .odd = x.odd * y.odd};
}

/* Loads PAIRS elements, or the last ones of a row padded with zeros. */
INLINE half_pair pair_part(const uint16_t *from, int64_t count) {
    if (count >= PAIRS) {
        return pair_load(from);
    }
    uint16_t whole[PAIRS] = {0};
    memcpy(whole, from, (size_t)count * sizeof *whole);
    return pair_load(whole);
}

INLINE void pair_part_store(uint16_t *to, half_pair value, int64_t count) {
    if (count >= PAIRS) {
        pair_store(to, value);
        return;
    }
    uint16_t whole[PAIRS];
    pair_store(whole, value);
    memcpy(to, whole, (size_t)count * sizeof *whole);
}

INLINE void swiglu_pairs(uint16_t *y, const uint16_t *gate, const uint16_t *up, int64_t count) {
    pair_part_store(y, pair_times(pair_silu(pair_part(gate, count)), pair_part(up, count)), count);
}

static void half_swiglu(uint16_t *y, const uint16_t *gate, const uint16_t *up, int64_t count) {
    int64_t i = 0;
    for (; i + PAIRS <= count; i += PAIRS) {
        swiglu_pairs(y + i, gate + i, up + i, PAIRS);
    }
    if (i < count) {
        swiglu_pairs(y + i, gate + i, up + i, count - i);
    }
}

INLINE void conv_pairs(const carry_half_conv *o, const float *taps, int64_t t, int64_t c, const bool silu,
                       int64_t count) {
    half_pair sum = {0};
    UNROLL
    for (int i = 0; i < CARRY_HALF_CONV_TAPS; i++) {
        const half_pair x = pair_part(o->x + t * o->x_token + i * o->x_row + c, count);
        const float *tap = taps + i * CARRY_HALF_CONV_CHANNELS + c;
        sum.even = i == 0 ? load(tap) * x.even : sum.even + load(tap) * x.even;
        sum.odd = i == 0 ? load(tap + LANES) * x.odd : sum.odd + load(tap + LANES) * x.odd;
    }
    pair_part_store(o->y + t * o->y_row + c, silu ? pair_silu(sum) : sum, count);
}

/* Tokens by which rows are prefetched. Rows of a block of channels are short and often a page apart, which the
   hardware prefetcher does not follow (1.1 against 1.9 ns per element). */
#define HALF_CONV_AHEAD 4

INLINE void half_conv_as(const bool silu, const carry_half_conv *o, const float *taps) {
    for (int64_t t = 0; t < o->tokens; t++) {
        const ptrdiff_t ahead = t + HALF_CONV_AHEAD < o->tokens ? HALF_CONV_AHEAD : 0;
        const uint16_t *x = o->x + (t + ahead) * o->x_token + (CARRY_HALF_CONV_TAPS - 1) * o->x_row;
        const uint16_t *y = o->y + (t + ahead) * o->y_row;
        int64_t c = 0;
        for (; c + PAIRS <= o->channels; c += PAIRS) {
            __builtin_prefetch(x + c, 0, 3);
            __builtin_prefetch(y + c, 1, 3);
            conv_pairs(o, taps, t, c, silu, PAIRS);
        }
        if (c < o->channels) {
            conv_pairs(o, taps, t, c, silu, o->channels - c);
        }
    }
}

static void half_conv(const carry_half_conv *o) {
    float taps[CARRY_HALF_CONV_TAPS * CARRY_HALF_CONV_CHANNELS];
    for (int i = 0; i < CARRY_HALF_CONV_TAPS; i++) {
        in_pairs(taps + i * CARRY_HALF_CONV_CHANNELS, o->taps + i * o->taps_row, o->channels);
    }
    if (o->silu) {
        half_conv_as(true, o, taps);
    } else {
        half_conv_as(false, o, taps);
    }
}

/* Sum of squares, in four partial sums per lane. A square is exact in f32. */
INLINE float pair_squares(const uint16_t *x, int64_t n) {
    half_pair first = {0};
    half_pair second = {0};
    int64_t i = 0;
    for (; i + 2 * PAIRS <= n; i += 2 * PAIRS) {
        const half_pair a = pair_load(x + i);
        const half_pair b = pair_load(x + i + PAIRS);
        first.even += a.even * a.even;
        first.odd += a.odd * a.odd;
        second.even += b.even * b.even;
        second.odd += b.odd * b.odd;
    }
    for (; i < n; i += PAIRS) {
        const half_pair a = pair_part(x + i, n - i);
        first.even += a.even * a.even;
        first.odd += a.odd * a.odd;
    }
    const vec sum = (first.even + first.odd) + (second.even + second.odd);
    quarter part[LANES / 4]; /* in registers: a loop over floats would use memory */
    memcpy(part, &sum, sizeof part);
    UNROLL
    for (int l = 1; l < LANES / 4; l++) {
        part[0] += part[l];
    }
    return (part[0][0] + part[0][1]) + (part[0][2] + part[0][3]);
}

INLINE void norm_pairs(const bool weighted, const bool gated, const carry_half_norm *o, const float *w, int64_t at,
                       int64_t i, float scale, int64_t count) {
    half_pair y = pair_part(o->x + at + i, count);
    y.even *= scale;
    y.odd *= scale;
    if (weighted) {
        y = pair_times(y, (half_pair){.even = load(w + i), .odd = load(w + i + LANES)});
    }
    if (gated) {
        y = pair_times(y, pair_silu(pair_part(o->z + at + i, count)));
    }
    pair_part_store(o->y + at + i, y, count);
}

INLINE void half_norm_as(const bool weighted, const bool gated, const carry_half_norm *o, const float *w) {
    for (int64_t row = 0; row < o->rows; row++) {
        const int64_t at = row * o->n;
        const float scale = 1.0f / sqrtf(pair_squares(o->x + at, o->n) / (float)o->n + o->eps);
        int64_t i = 0;
        for (; i + PAIRS <= o->n; i += PAIRS) {
            norm_pairs(weighted, gated, o, w, at, i, scale, PAIRS);
        }
        if (i < o->n) {
            norm_pairs(weighted, gated, o, w, at, i, scale, o->n - i);
        }
    }
}

static void half_norm(const carry_half_norm *o) {
    float w[CARRY_HALF_NORM_WIDTH];
    if (o->w != NULL) {
        in_pairs(w, o->w, o->n);
    }
    if (o->w != NULL && o->z != NULL) {
        half_norm_as(true, true, o, w);
    } else if (o->w != NULL) {
        half_norm_as(true, false, o, w);
    } else if (o->z != NULL) {
        half_norm_as(false, true, o, w);
    } else {
        half_norm_as(false, false, o, w);
    }
}

static void half_unit_norms(float *norms, const uint16_t *from, ptrdiff_t row, float epsilon, int64_t rows,
                            int64_t size) {
    for (int64_t i = 0; i < rows; i++) {
        norms[i] = 1.0f / sqrtf(pair_squares(from + i * row, size) + epsilon);
    }
}

static const carry_half_rows half_row_kernels = {
    .swiglu = half_swiglu, .conv = half_conv, .norm = half_norm, .unit_norms = half_unit_norms};

#endif

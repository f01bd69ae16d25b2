/* The loops of rows.h in plain C. Every file of kernels includes this text and compiles it for its instruction set;
   the compiler vectorises it. Sums have PARTS partial sums, since a compiler may not reorder a sum by itself. */
#ifndef CARRY_OPS_ROWS_LOOPS_H
#define CARRY_OPS_ROWS_LOOPS_H

#include <math.h>

#include "ops/kernels/exp.h"
#include "ops/kernels/rows.h"

/* An output is either the same array as an input, accessed at the same index, or does not overlap it, so loops may be
   vectorised. clang checks this at run time instead: its own pragma gives a warning wherever a sanitizer prevents
   vectorisation. */
#if defined(__clang__)
#define INDEPENDENT
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Loops with constant bounds must be unrolled fully, or arrays of vectors are stored in memory. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define PARTS 16
/* Called with constants, so that each combination is a loop without branches. */
#define INLINE_ROWS static inline __attribute__((always_inline))

/* The exponentials of a span are computed first, PARTS at a time, and then read from the first-level cache: one
   exponential is such a long chain of instructions that a processor does not overlap it with the next vector's (1.13
   against 1.58 ns per element). */
#define SPAN 256

INLINE_ROWS void exponentials(float *to, const float *x, float sign, int64_t count) {
    int64_t i = 0;
    for (; i + PARTS <= count; i += PARTS) {
        float part[PARTS];
        for (int l = 0; l < PARTS; l++) {
            part[l] = carry_exp(sign * x[i + l]);
        }
        for (int l = 0; l < PARTS; l++) {
            to[i + l] = part[l];
        }
    }
    for (; i < count; i++) {
        to[i] = carry_exp(sign * x[i]);
    }
}

/* 1 / (1 + e^-x), which is 0 if e^-x is infinite. */
static void sigmoids(float *to, const float *x, int64_t count) {
    exponentials(to, x, -1.0f, count);
    for (int64_t i = 0; i < count; i++) {
        to[i] = 1.0f / (1.0f + to[i]);
    }
}

INLINE_ROWS int64_t span_at(int64_t at, int64_t count) {
    return count - at < SPAN ? count - at : SPAN;
}

static inline float silu_slope(float x, float s) {
    return s * (1.0f + x * (1.0f - s));
}

#include "ops/kernels/rows_activation.h"

static void rows_swiglu(float *y, const float *gate, const float *up, int64_t count) {
    float s[SPAN];
    for (int64_t at = 0; at < count; at += SPAN) {
        int64_t end = at + span_at(at, count);
        sigmoids(s, gate + at, end - at);
        INDEPENDENT
        for (int64_t i = at; i < end; i++) {
            y[i] = gate[i] * s[i - at] * up[i];
        }
    }
}

static void rows_swiglu_backward(float *dgate, float *dup, const float *dy, const float *gate, const float *up,
                                 int64_t count) {
    float s[SPAN];
    for (int64_t at = 0; at < count; at += SPAN) {
        int64_t end = at + span_at(at, count);
        sigmoids(s, gate + at, end - at);
        INDEPENDENT
        for (int64_t i = at; i < end; i++) {
            float g = gate[i];
            float d = dy[i];
            float slope = d * up[i] * silu_slope(g, s[i - at]);
            dup[i] = d * (g * s[i - at]);
            dgate[i] = slope;
        }
    }
}

static void rows_add(float *y, const float *x, int64_t count) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        y[i] += x[i];
    }
}

static inline float parts_sum(const float part[PARTS]) {
    float four[4];
    for (int i = 0; i < 4; i++) {
        four[i] = part[i] + part[i + 4] + (part[i + 8] + part[i + 12]);
    }
    return four[0] + four[1] + (four[2] + four[3]);
}

static double rows_sum_squares_double(const float *x, int64_t count) {
    double part[PARTS] = {0};
    int64_t i = 0;
    for (; i + PARTS <= count; i += PARTS) {
        for (int l = 0; l < PARTS; l++) {
            part[l] += (double)x[i + l] * (double)x[i + l];
        }
    }
    for (int l = 0; i < count; i++, l++) {
        part[l] += (double)x[i] * (double)x[i];
    }
    double sum = 0.0;
    for (int l = 0; l < PARTS; l++) {
        sum += part[l];
    }
    return sum;
}

/* Sums in float64 and rounds to f32 once: a norm scales the whole row by the result, small rows by a large factor. */
static float rows_sum_squares(const float *x, int64_t count) {
    return (float)rows_sum_squares_double(x, count);
}

#include "ops/kernels/rows_layer.h"
#include "ops/kernels/rows_norm.h"
#include "ops/kernels/rows_triangle.h"
#include "ops/kernels/rows_delta.h"

static void rows_conv(float *y, const float *const *x, const float *taps, int64_t stride, int64_t width,
                      int64_t count) {
    if (width == 4) {
        const float *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
        INDEPENDENT
        for (int64_t c = 0; c < count; c++) {
            float sum = taps[c] * x0[c];
            sum += taps[stride + c] * x1[c];
            sum += taps[2 * stride + c] * x2[c];
            sum += taps[3 * stride + c] * x3[c];
            y[c] = sum;
        }
        return;
    }
    for (int64_t i = 0; i < width; i++) {
        const float *tap = taps + i * stride;
        const float *from = x[i];
        INDEPENDENT
        for (int64_t c = 0; c < count; c++) {
            y[c] = (i == 0 ? 0.0f : y[c]) + tap[c] * from[c];
        }
    }
}

static void rows_conv_weights(float *sums, const float *dy, const float *const *x, int64_t stride, int64_t width,
                              int64_t count) {
    for (int64_t i = 0; i < width; i++) {
        float *sum = sums + i * stride;
        const float *from = x[i];
        INDEPENDENT
        for (int64_t c = 0; c < count; c++) {
            sum[c] += dy[c] * from[c];
        }
    }
}

/* Maps the bits of a float to an integer with the same order, since the bits of negative numbers are in reverse
   order. It is its own inverse. */
INLINE_ROWS int32_t ordered(int32_t bits) {
    return bits ^ (-(int32_t)((uint32_t)bits >> 31) & INT32_MAX);
}

/* Compares integers: gcc makes a branch for each comparison of floats (1.4 against 0.25 ns per element). */
static float rows_maximum(const float *x, int64_t count) {
    int32_t part[PARTS];
    for (int l = 0; l < PARTS; l++) {
        part[l] = ordered(carry_bits(-INFINITY));
    }
    int64_t i = 0;
    for (; i + PARTS <= count; i += PARTS) {
        for (int l = 0; l < PARTS; l++) {
            int32_t value = ordered(carry_bits(x[i + l]));
            part[l] = value > part[l] ? value : part[l];
        }
    }
    for (; i < count; i++) {
        int32_t value = ordered(carry_bits(x[i]));
        part[0] = value > part[0] ? value : part[0];
    }
    for (int l = 1; l < PARTS; l++) {
        part[0] = part[l] > part[0] ? part[l] : part[0];
    }
    return carry_from_bits(ordered(part[0]));
}

INLINE_ROWS float sum_exp_as(const int kept, float *y, const float *x, float minus, int64_t count) {
    float part[PARTS] = {0};
    int64_t i = 0;
    for (; i + PARTS <= count; i += PARTS) {
        float e[PARTS];
        for (int l = 0; l < PARTS; l++) {
            e[l] = carry_exp(x[i + l] - minus);
        }
        for (int l = 0; l < PARTS; l++) {
            part[l] += e[l];
        }
        for (int l = 0; kept && l < PARTS; l++) {
            y[i + l] = e[l];
        }
    }
    for (int l = 0; i < count; i++, l++) {
        float e = carry_exp(x[i] - minus);
        part[l] += e;
        if (kept) {
            y[i] = e;
        }
    }
    return parts_sum(part);
}

static float rows_sum_exp(float *y, const float *x, float minus, int64_t count) {
    return y == NULL ? sum_exp_as(0, y, x, minus, count) : sum_exp_as(1, y, x, minus, count);
}

static void rows_softmax_backward(float *x, float *y, float minus, float mean, int64_t count) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float p = carry_exp(x[i] - minus);
        x[i] = p;
        y[i] = p * (y[i] - mean);
    }
}

static void rows_scale(float *y, float scale, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        y[i] *= scale;
    }
}

static void rows_adamw(float *w, float *m, float *v, const float *g, const carry_adam_factors *factors, int64_t count) {
    const carry_adam_factors f = *factors;
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float gradient = f.factor * g[i];
        float first = f.b1 * m[i] + f.c1 * gradient;
        float second = f.b2 * v[i] + f.c2 * (gradient * gradient);
        m[i] = first;
        v[i] = second;
        w[i] -= f.rate * first / (sqrtf(second) * f.unbias_v + f.eps) + f.decay * w[i];
    }
}

#include "ops/kernels/rows_layer_backward.h"

static const carry_rows row_loops = {
    .activate = rows_activate,
    .activate_backward = rows_activate_backward,
    .swiglu = rows_swiglu,
    .swiglu_backward = rows_swiglu_backward,
    .add = rows_add,
    .sum_squares = rows_sum_squares,
    .sum_squares_double = rows_sum_squares_double,
    .norm = rows_norm,
    .norm_sums = rows_norm_sums,
    .norm_backward = rows_norm_backward,
    .conv = rows_conv,
    .conv_weights = rows_conv_weights,
    .maximum = rows_maximum,
    .sum_exp = rows_sum_exp,
    .scale_rows = rows_scale_rows,
    .unit_rows = rows_unit_rows,
    .unit_inverse = rows_unit_inverse,
    .triangles = rows_triangles,
    .delta_states = rows_delta_states,
    .delta_triangles = rows_delta_triangles,
    .unit_rows_backward = rows_unit_rows_backward,
    .softmax_backward = rows_softmax_backward,
    .scale = rows_scale,
    .sum = rows_sum,
    .sum_squares_from = rows_sum_squares_from,
    .layer_norm = rows_layer_norm,
    .gated_add = rows_gated_add,
    .rotary = rows_rotary,
    .adamw = rows_adamw,
    .layer_sums = rows_layer_sums,
    .layer_backward = rows_layer_backward,
};

#endif

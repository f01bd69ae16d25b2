/* The loops of rows.h in plain C. Every file of kernels includes this text and compiles it for its instruction set; the
   compiler makes the vectors. Sums have PARTS partial sums, since a compiler may not reorder a sum by itself. */
#ifndef CARRY_OPS_ROWS_LOOPS_H
#define CARRY_OPS_ROWS_LOOPS_H

#include <math.h>

#include "ops/exp.h"
#include "ops/rows.h"

/* Outputs are inputs of the same index or apart from them: nothing that a vector could get wrong. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#define PARTS 16

static inline float silu(float x) {
    return x * carry_sigmoid(x);
}

static inline float silu_slope(float x) {
    float s = carry_sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
}

static void rows_activate(float *y, const float *x, int64_t count, carry_activation activation) {
    switch (activation) {
    case CARRY_NO_ACTIVATION:
        if (y != x) {
            memcpy(y, x, (size_t)count * sizeof *y);
        }
        return;
    case CARRY_SILU:
        INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            y[i] = silu(x[i]);
        }
        return;
    case CARRY_RELU:
        INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            y[i] = x[i] < 0.0f ? 0.0f : x[i];
        }
        return;
    case CARRY_ELU:
        INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            y[i] = x[i] > 0.0f ? x[i] : carry_exp(x[i]) - 1.0f;
        }
        return;
    case CARRY_SIGMOID:
        INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            y[i] = carry_sigmoid(x[i]);
        }
        return;
    }
}

static void rows_activate_backward(float *dx, const float *dy, const float *x, int64_t count,
                                   carry_activation activation) {
    switch (activation) {
    case CARRY_NO_ACTIVATION:
        if (dx != dy) {
            memcpy(dx, dy, (size_t)count * sizeof *dx);
        }
        return;
    case CARRY_SILU:
        INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            dx[i] = dy[i] * silu_slope(x[i]);
        }
        return;
    case CARRY_RELU:
        INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            float slope = x[i] > 0.0f ? 1.0f : x[i] <= 0.0f ? 0.0f : x[i];
            dx[i] = dy[i] * slope;
        }
        return;
    case CARRY_ELU:
        INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            float slope = x[i] > 0.0f ? 1.0f : carry_exp(x[i]);
            dx[i] = dy[i] * slope;
        }
        return;
    case CARRY_SIGMOID:
        INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            float s = carry_sigmoid(x[i]);
            dx[i] = dy[i] * (s * (1.0f - s));
        }
        return;
    }
}

static void rows_swiglu(float *y, const float *gate, const float *up, int64_t count) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        y[i] = silu(gate[i]) * up[i];
    }
}

static void rows_swiglu_backward(float *dgate, float *dup, const float *dy, const float *gate, const float *up,
                                 int64_t count) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float g = gate[i];
        float u = up[i];
        float d = dy[i];
        float s = carry_sigmoid(g);
        dgate[i] = d * u * (s * (1.0f + g * (1.0f - s)));
        dup[i] = d * (g * s);
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

static float rows_sum_squares(const float *x, int64_t count) {
    float part[PARTS] = {0};
    int64_t i = 0;
    for (; i + PARTS <= count; i += PARTS) {
        for (int l = 0; l < PARTS; l++) {
            part[l] += x[i + l] * x[i + l];
        }
    }
    for (int l = 0; i < count; i++, l++) {
        part[l] += x[i] * x[i];
    }
    return parts_sum(part);
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

/* Constant in every call, so that each combination is a loop without a question in it. */
static inline __attribute__((always_inline)) void norm_as(const int weighted, const int gated, float *y, const float *x,
                                                          const float *w, const float *z, float scale, int64_t count) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float value = x[i] * scale;
        value = weighted ? value * w[i] : value;
        y[i] = gated ? value * silu(z[i]) : value;
    }
}

static void rows_norm(float *y, const float *x, const float *w, const float *z, float scale, int64_t count) {
    if (z == NULL) {
        w == NULL ? norm_as(0, 0, y, x, w, z, scale, count) : norm_as(1, 0, y, x, w, z, scale, count);
    } else {
        w == NULL ? norm_as(0, 1, y, x, w, z, scale, count) : norm_as(1, 1, y, x, w, z, scale, count);
    }
}

static inline __attribute__((always_inline)) float reaching(const int weighted, const int gated, const float *dy,
                                                            const float *w, const float *z, int64_t i) {
    float g = weighted ? dy[i] * w[i] : dy[i];
    return gated ? g * silu(z[i]) : g;
}

static inline __attribute__((always_inline)) void norm_sums_as(const int weighted, const int gated, float sums[2],
                                                               const float *dy, const float *x, const float *w,
                                                               const float *z, int64_t count) {
    float squares[PARTS] = {0};
    float dots[PARTS] = {0};
    int64_t i = 0;
    for (; i + PARTS <= count; i += PARTS) {
        for (int l = 0; l < PARTS; l++) {
            squares[l] += x[i + l] * x[i + l];
            dots[l] += reaching(weighted, gated, dy, w, z, i + l) * x[i + l];
        }
    }
    for (int l = 0; i < count; i++, l++) {
        squares[l] += x[i] * x[i];
        dots[l] += reaching(weighted, gated, dy, w, z, i) * x[i];
    }
    sums[0] += parts_sum(squares);
    sums[1] += parts_sum(dots);
}

static void rows_norm_sums(float sums[2], const float *dy, const float *x, const float *w, const float *z,
                           int64_t count) {
    if (z == NULL) {
        w == NULL ? norm_sums_as(0, 0, sums, dy, x, w, z, count) : norm_sums_as(1, 0, sums, dy, x, w, z, count);
    } else {
        w == NULL ? norm_sums_as(0, 1, sums, dy, x, w, z, count) : norm_sums_as(1, 1, sums, dy, x, w, z, count);
    }
}

static inline __attribute__((always_inline)) void norm_dx(const int weighted, const int gated, float *dx,
                                                          const float *dy, const float *x, const float *w,
                                                          const float *z, float scale, float back, float kept,
                                                          int64_t count) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float value = scale * reaching(weighted, gated, dy, w, z, i) - back * x[i];
        dx[i] = kept != 0.0f ? dx[i] + value : value;
    }
}

static void rows_norm_backward(float *dx, float *dw, float *dz, const float *dy, const float *x, const float *w,
                               const float *z, float scale, float back, int add, int64_t count) {
    if (dw != NULL) {
        INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            float value = dy[i] * (x[i] * scale);
            dw[i] += z != NULL ? value * silu(z[i]) : value;
        }
    }
    if (dz != NULL) {
        INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            float value = dy[i] * (x[i] * scale) * silu_slope(z[i]);
            dz[i] = w != NULL ? value * w[i] : value;
        }
    }
    if (dx == NULL) {
        return;
    }
    float kept = add ? 1.0f : 0.0f;
    if (z == NULL) {
        w == NULL ? norm_dx(0, 0, dx, dy, x, w, z, scale, back, kept, count)
                  : norm_dx(1, 0, dx, dy, x, w, z, scale, back, kept, count);
    } else {
        w == NULL ? norm_dx(0, 1, dx, dy, x, w, z, scale, back, kept, count)
                  : norm_dx(1, 1, dx, dy, x, w, z, scale, back, kept, count);
    }
}

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

static float rows_maximum(const float *x, int64_t count) {
    float part[PARTS];
    for (int l = 0; l < PARTS; l++) {
        part[l] = -INFINITY;
    }
    int64_t i = 0;
    for (; i + PARTS <= count; i += PARTS) {
        for (int l = 0; l < PARTS; l++) {
            part[l] = x[i + l] > part[l] ? x[i + l] : part[l];
        }
    }
    for (; i < count; i++) {
        part[0] = x[i] > part[0] ? x[i] : part[0];
    }
    for (int l = 1; l < PARTS; l++) {
        part[0] = part[l] > part[0] ? part[l] : part[0];
    }
    return part[0];
}

static float rows_sum_exp(const float *x, float minus, int64_t count) {
    float part[PARTS] = {0};
    int64_t i = 0;
    for (; i + PARTS <= count; i += PARTS) {
        for (int l = 0; l < PARTS; l++) {
            part[l] += carry_exp(x[i + l] - minus);
        }
    }
    for (int l = 0; i < count; i++, l++) {
        part[l] += carry_exp(x[i] - minus);
    }
    return parts_sum(part);
}

static void rows_softmax(float *y, const float *x, float minus, float scale, int64_t count) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        y[i] = scale * carry_exp(x[i] - minus);
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
    .softmax = rows_softmax,
    .adamw = rows_adamw,
};

#endif

/* The loops of activations. Part of rows_loops.h. */
#ifndef CARRY_OPS_ROWS_ACTIVATION_H
#define CARRY_OPS_ROWS_ACTIVATION_H

static void silu_span(float *y, const float *x, int64_t count) {
    float s[SPAN];
    sigmoids(s, x, count);
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        y[i] = x[i] * s[i];
    }
}

static void elu_span(float *y, const float *x, int64_t count) {
    float e[SPAN];
    exponentials(e, x, 1.0f, count);
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        y[i] = x[i] > 0.0f ? x[i] : e[i] - 1.0f;
    }
}

static void silu_backward_span(float *dx, const float *dy, const float *x, int64_t count) {
    float s[SPAN];
    sigmoids(s, x, count);
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        dx[i] = dy[i] * silu_slope(x[i], s[i]);
    }
}

static void elu_backward_span(float *dx, const float *dy, const float *x, int64_t count) {
    float e[SPAN];
    exponentials(e, x, 1.0f, count);
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        dx[i] = dy[i] * (x[i] > 0.0f ? 1.0f : e[i]);
    }
}

static void sigmoid_backward_span(float *dx, const float *dy, const float *x, int64_t count) {
    float s[SPAN];
    sigmoids(s, x, count);
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        dx[i] = dy[i] * (s[i] * (1.0f - s[i]));
    }
}

/* gelu by tanh: 1/2 (1 + tanh u) is the sigmoid of 2u, and 2u = x (0.0713548 x^2 + 1.5957691). */
static inline float gelu_inner(float x) {
    return x * (0.07135481627f * (x * x) + 1.595769122f);
}

/* Writes e^-2u. The sigmoid is 1 / (1 + e^-2u), which is 0 if this is infinite. */
static void gelu_exponentials(float *to, const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        to[i] = gelu_inner(x[i]);
    }
    exponentials(to, to, -1.0f, count);
}

static void gelu_span(float *y, const float *x, int64_t count) {
    float e[SPAN];
    gelu_exponentials(e, x, count);
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        y[i] = x[i] / (1.0f + e[i]);
    }
}

/* The derivative: s + x s (1 - s) (2u)', with 1 - s computed without cancellation. If x^2 exceeds 1e4, s (1 - s)
   is 0, and x^2 is bounded so that the zero is not multiplied by an overflow. */
static void gelu_backward_span(float *dx, const float *dy, const float *x, int64_t count) {
    float e[SPAN];
    gelu_exponentials(e, x, count);
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float s = 1.0f / (1.0f + e[i]);
        float rest = e[i] < 1.0f ? e[i] * s : 1.0f - s;
        float square = x[i] * x[i];
        square = square > 1e4f ? 1e4f : square;
        dx[i] = dy[i] * (s + (x[i] * s) * (rest * (0.2140644488f * square + 1.595769122f)));
    }
}

static void rows_activate(float *y, const float *x, int64_t count, carry_activation activation) {
    switch (activation) {
    case CARRY_NO_ACTIVATION:
        if (y != x) {
            memcpy(y, x, (size_t)count * sizeof *y);
        }
        return;
    case CARRY_SILU:
        for (int64_t at = 0; at < count; at += SPAN) {
            silu_span(y + at, x + at, span_at(at, count));
        }
        return;
    case CARRY_RELU:
        INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            y[i] = x[i] < 0.0f ? 0.0f : x[i];
        }
        return;
    case CARRY_ELU:
        for (int64_t at = 0; at < count; at += SPAN) {
            elu_span(y + at, x + at, span_at(at, count));
        }
        return;
    case CARRY_SIGMOID:
        sigmoids(y, x, count);
        return;
    case CARRY_GELU:
        for (int64_t at = 0; at < count; at += SPAN) {
            gelu_span(y + at, x + at, span_at(at, count));
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
        for (int64_t at = 0; at < count; at += SPAN) {
            silu_backward_span(dx + at, dy + at, x + at, span_at(at, count));
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
        for (int64_t at = 0; at < count; at += SPAN) {
            elu_backward_span(dx + at, dy + at, x + at, span_at(at, count));
        }
        return;
    case CARRY_SIGMOID:
        for (int64_t at = 0; at < count; at += SPAN) {
            sigmoid_backward_span(dx + at, dy + at, x + at, span_at(at, count));
        }
        return;
    case CARRY_GELU:
        for (int64_t at = 0; at < count; at += SPAN) {
            gelu_backward_span(dx + at, dy + at, x + at, span_at(at, count));
        }
        return;
    }
}

#endif

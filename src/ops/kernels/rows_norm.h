/* The loops of the norm. Part of rows_loops.h. */
#ifndef CARRY_OPS_ROWS_NORM_H
#define CARRY_OPS_ROWS_NORM_H

INLINE_ROWS void norm_as(const int weighted, const int gated, float *y, const float *x, const float *w, const float *z,
                         float scale, int64_t count) {
    float s[SPAN];
    for (int64_t at = 0; at < count; at += SPAN) {
        int64_t end = at + span_at(at, count);
        if (gated) {
            sigmoids(s, z + at, end - at);
        }
        INDEPENDENT
        for (int64_t i = at; i < end; i++) {
            float value = x[i] * scale;
            value = weighted ? value * w[i] : value;
            y[i] = gated ? value * (z[i] * s[i - at]) : value;
        }
    }
}

static void rows_norm(float *y, const float *x, const float *w, const float *z, float scale, int64_t count) {
    if (z == NULL) {
        w == NULL ? norm_as(0, 0, y, x, w, z, scale, count) : norm_as(1, 0, y, x, w, z, scale, count);
    } else {
        w == NULL ? norm_as(0, 1, y, x, w, z, scale, count) : norm_as(1, 1, y, x, w, z, scale, count);
    }
}

INLINE_ROWS void norm_sums_as(const int weighted, const int gated, const carry_norm_backward *o, float *sigmoid,
                              float sums[2], int64_t count) {
    float squares[PARTS] = {0};
    float dots[PARTS] = {0};
    if (gated) {
        sigmoids(sigmoid, o->z, count);
    }
    int64_t i = 0;
    for (; i + PARTS <= count; i += PARTS) {
        for (int l = 0; l < PARTS; l++) {
            float g = weighted ? o->dy[i + l] * o->w[i + l] : o->dy[i + l];
            g = gated ? g * (o->z[i + l] * sigmoid[i + l]) : g;
            squares[l] += o->x[i + l] * o->x[i + l];
            dots[l] += g * o->x[i + l];
        }
    }
    for (int l = 0; i < count; i++, l++) {
        float g = weighted ? o->dy[i] * o->w[i] : o->dy[i];
        g = gated ? g * (o->z[i] * sigmoid[i]) : g;
        squares[l] += o->x[i] * o->x[i];
        dots[l] += g * o->x[i];
    }
    sums[0] += parts_sum(squares);
    sums[1] += parts_sum(dots);
}

static void rows_norm_sums(const carry_norm_backward *o, float *sigmoid, float sums[2], int64_t count) {
    if (o->z == NULL) {
        o->w == NULL ? norm_sums_as(0, 0, o, sigmoid, sums, count) : norm_sums_as(1, 0, o, sigmoid, sums, count);
    } else {
        o->w == NULL ? norm_sums_as(0, 1, o, sigmoid, sums, count) : norm_sums_as(1, 1, o, sigmoid, sums, count);
    }
}

INLINE_ROWS void norm_backward_as(const int weighted, const int gated, const int add, const carry_norm_backward *o,
                                  const float *sigmoid, int64_t count) {
    float *dx = o->dx;
    float *dw = o->dw;
    float *dz = o->dz;
    const float scale = o->scale;
    const float back = o->back;
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float x = o->x[i];
        float dy = o->dy[i];
        float s = gated ? sigmoid[i] : 1.0f;
        float z = gated ? o->z[i] : 1.0f;
        float g = weighted ? dy * o->w[i] : dy;
        float value = scale * (g * (z * s)) - back * x;
        dw[i] += dy * (x * scale) * (z * s);
        dx[i] = add ? dx[i] + value : value;
        if (gated) {
            dz[i] = g * (x * scale) * silu_slope(z, s);
        }
    }
}

static void rows_norm_backward(const carry_norm_backward *o, const float *sigmoid, int add, int64_t count) {
    switch ((o->w != NULL ? 4 : 0) + (o->z != NULL ? 2 : 0) + (add ? 1 : 0)) {
    case 0:
        norm_backward_as(0, 0, 0, o, sigmoid, count);
        return;
    case 1:
        norm_backward_as(0, 0, 1, o, sigmoid, count);
        return;
    case 2:
        norm_backward_as(0, 1, 0, o, sigmoid, count);
        return;
    case 3:
        norm_backward_as(0, 1, 1, o, sigmoid, count);
        return;
    case 4:
        norm_backward_as(1, 0, 0, o, sigmoid, count);
        return;
    case 5:
        norm_backward_as(1, 0, 1, o, sigmoid, count);
        return;
    case 6:
        norm_backward_as(1, 1, 0, o, sigmoid, count);
        return;
    default:
        norm_backward_as(1, 1, 1, o, sigmoid, count);
        return;
    }
}

#endif

/* The loops of layer norm, gates and rotary positions. Part of rows_loops.h. */
#ifndef CARRY_OPS_ROWS_LAYER_H
#define CARRY_OPS_ROWS_LAYER_H

static float rows_sum(const float *x, int64_t count) {
    float part[PARTS] = {0};
    int64_t i = 0;
    for (; i + PARTS <= count; i += PARTS) {
        for (int l = 0; l < PARTS; l++) {
            part[l] += x[i + l];
        }
    }
    for (int l = 0; i < count; i++, l++) {
        part[l] += x[i];
    }
    return parts_sum(part);
}

static float rows_sum_squares_from(const float *x, float mean, int64_t count) {
    float part[PARTS] = {0};
    int64_t i = 0;
    for (; i + PARTS <= count; i += PARTS) {
        for (int l = 0; l < PARTS; l++) {
            part[l] += (x[i + l] - mean) * (x[i + l] - mean);
        }
    }
    for (int l = 0; i < count; i++, l++) {
        part[l] += (x[i] - mean) * (x[i] - mean);
    }
    return parts_sum(part);
}

INLINE_ROWS void layer_norm_as(const int weighted, const int biased, float *y, const float *x, const float *w,
                               const float *b, const carry_layer_row *row, int64_t count) {
    const float mean = row->mean;
    const float scale = row->scale;
    const float plus = row->plus;
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float value = (x[i] - mean) * scale;
        value = weighted ? value * (w[i] + plus) : value;
        y[i] = biased ? value + b[i] : value;
    }
}

static void rows_layer_norm(float *y, const float *x, const float *w, const float *b, const carry_layer_row *row,
                            int64_t count) {
    if (b == NULL) {
        w == NULL ? layer_norm_as(0, 0, y, x, w, b, row, count) : layer_norm_as(1, 0, y, x, w, b, row, count);
    } else {
        w == NULL ? layer_norm_as(0, 1, y, x, w, b, row, count) : layer_norm_as(1, 1, y, x, w, b, row, count);
    }
}

static void rows_gated_add(float *x, const float *y, const float *g, int64_t count) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        x[i] += g[i] * y[i];
    }
}

static void rows_rotary(float *y, const float *x, const float *table, float sign, int64_t pairs) {
    INDEPENDENT
    for (int64_t i = 0; i < pairs; i++) {
        float a = x[2 * i];
        float b = x[2 * i + 1];
        float c = table[2 * i];
        float s = sign * table[2 * i + 1];
        y[2 * i] = a * c - b * s;
        y[2 * i + 1] = a * s + b * c;
    }
}

#endif

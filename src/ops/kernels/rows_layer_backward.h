/* The loops of layer norm backward. Part of rows_loops.h. */
#ifndef CARRY_OPS_ROWS_LAYER_BACKWARD_H
#define CARRY_OPS_ROWS_LAYER_BACKWARD_H

INLINE_ROWS float layer_slope(const int weighted, const carry_layer_backward *o, int64_t i) {
    return weighted ? o->dy[i] * (o->w[i] + o->plus) : o->dy[i];
}

INLINE_ROWS void layer_sums_as(const int weighted, const carry_layer_backward *o, float sums[2], int64_t count) {
    float plain[PARTS] = {0};
    float dots[PARTS] = {0};
    int64_t i = 0;
    for (; i + PARTS <= count; i += PARTS) {
        for (int l = 0; l < PARTS; l++) {
            float g = layer_slope(weighted, o, i + l);
            plain[l] += g;
            dots[l] += g * ((o->x[i + l] - o->mean) * o->scale);
        }
    }
    for (int l = 0; i < count; i++, l++) {
        float g = layer_slope(weighted, o, i);
        plain[l] += g;
        dots[l] += g * ((o->x[i] - o->mean) * o->scale);
    }
    sums[0] += parts_sum(plain);
    sums[1] += parts_sum(dots);
}

static void rows_layer_sums(const carry_layer_backward *o, float sums[2], int64_t count) {
    o->w == NULL ? layer_sums_as(0, o, sums, count) : layer_sums_as(1, o, sums, count);
}

INLINE_ROWS void layer_backward_as(const int weighted, const int add, const carry_layer_backward *o, int64_t count) {
    float *dx = o->dx;
    float *dw = o->dw;
    float *db = o->db;
    const float mean = o->mean;
    const float scale = o->scale;
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float x = (o->x[i] - mean) * scale;
        float value = scale * (layer_slope(weighted, o, i) - o->level - x * o->back);
        dw[i] += o->dy[i] * x;
        db[i] += o->dy[i];
        dx[i] = add ? dx[i] + value : value;
    }
}

static void rows_layer_backward(const carry_layer_backward *o, int add, int64_t count) {
    if (add) {
        o->w == NULL ? layer_backward_as(0, 1, o, count) : layer_backward_as(1, 1, o, count);
    } else {
        o->w == NULL ? layer_backward_as(0, 0, o, count) : layer_backward_as(1, 0, o, count);
    }
}

#endif

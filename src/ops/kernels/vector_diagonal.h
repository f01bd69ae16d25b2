/* Diagonal recurrences. Part of kernels_vector.h. */
#ifndef CARRY_OPS_VECTOR_DIAGONAL_H
#define CARRY_OPS_VECTOR_DIAGONAL_H

/* One step of a row: h = a*before + b. */
INLINE void step_row(float *h, float a, const float *before, const float *b, int64_t width) {
    int64_t j = 0;
    for (; j + LANES <= width; j += LANES) {
        keep(h + j, a * load(before + j) + load(b + j));
    }
    for (; j < width; j++) {
        h[j] = a * before[j] + b[j];
    }
}

/* Width 1: the rows are contiguous, each with its own factor. */
INLINE void step_column(float *h, const float *a, const float *before, const float *b, int64_t rows) {
    int64_t r = 0;
    for (; r + LANES <= rows; r += LANES) {
        keep(h + r, load(a + r) * load(before + r) + load(b + r));
    }
    for (; r < rows; r++) {
        h[r] = a[r] * before[r] + b[r];
    }
}

/* `vectors` vectors of state stay in registers over all steps; same_factor: one row, scaled by a[0]. */
INLINE void scan_in_registers(const int b_type, const int h_type, const int vectors, const bool same_factor,
                              const carry_diagonal_scan *s, int64_t a_at, int64_t at) {
    vec state[8];
    UNROLL
    for (int v = 0; v < vectors; v++) {
        state[v] = load(s->state + at + v * LANES);
    }
    /* Copies, since the compiler must assume that stores of vectors may change *s. */
    const int64_t steps = s->steps;
    const ptrdiff_t a_step = s->a_step;
    const ptrdiff_t b_step = s->b_step;
    const ptrdiff_t h_step = s->h_step;
    const void *b = s->b;
    void *h = s->h;
    const float *a = s->a + a_at;
    int64_t b_at = at;
    int64_t h_at = at;
    for (int64_t t = 0; t < steps; t++, a += a_step, b_at += b_step, h_at += h_step) {
        const float factor = a[0]; /* read before the stores, since the compiler must assume that they change it */
        vec x[8];
        UNROLL
        for (int v = 0; v < vectors; v++) {
            x[v] = load_as(b_type, b, b_at + v * LANES);
        }
        UNROLL
        for (int v = 0; v < vectors; v++) {
            state[v] = same_factor ? factor * state[v] + x[v] : load(a + v * LANES) * state[v] + x[v];
        }
        UNROLL
        for (int v = 0; v < vectors; v++) {
            keep_as(h_type, h, h_at + v * LANES, state[v]);
        }
    }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        keep(s->state + at + v * LANES, state[v]);
    }
}

/* The last columns in f32, fewer than a vector: four at a time, then one by one. */
typedef float four __attribute__((vector_size(16)));
typedef float four_unaligned __attribute__((vector_size(16), aligned(4), may_alias));

INLINE void scan_four(const bool keep_h, const bool same_factor, const carry_diagonal_scan *s, int64_t a_at,
                      int64_t at) {
    four state = *(const four_unaligned *)(s->state + at);
    const float *a = s->a + a_at;
    const float *b = (const float *)s->b + at;
    float *h = (float *)s->h + (keep_h ? at : 0);
    for (int64_t t = 0; t < s->steps; t++, a += s->a_step, b += s->b_step) {
        four x = *(const four_unaligned *)b;
        four factors = {a[0], a[0], a[0], a[0]};
        if (!same_factor) {
            factors = *(const four_unaligned *)a;
        }
        state = factors * state + x;
        if (keep_h) {
            *(four_unaligned *)h = state;
            h += s->h_step;
        }
    }
    *(four_unaligned *)(s->state + at) = state;
}

INLINE void scan_one(const bool keep_h, const carry_diagonal_scan *s, int64_t a_at, int64_t at) {
    float state = s->state[at];
    for (int64_t t = 0; t < s->steps; t++) {
        state = s->a[t * s->a_step + a_at] * state + ((const float *)s->b)[t * s->b_step + at];
        if (keep_h) {
            ((float *)s->h)[t * s->h_step + at] = state;
        }
    }
    s->state[at] = state;
}

/* The last columns in 16 bits, fewer than a vector: computed in a padded vector, of which only these are stored. */
INLINE void scan_beside(const int b_type, const int h_type, const bool same_factor, const carry_diagonal_scan *s,
                        int64_t a_at, int64_t at, int64_t columns) {
    const size_t h_size = h_type == CARRY_F32 ? 4 : 2;
    float state[LANES] = {0};
    float factors[LANES] = {0};
    uint16_t in[LANES] = {0};
    float out[LANES] = {0};
    memcpy(state, s->state + at, (size_t)columns * sizeof *state);
    for (int64_t t = 0; t < s->steps; t++) {
        const float *a = s->a + t * s->a_step + a_at;
        const uint16_t *b = (const uint16_t *)s->b + t * s->b_step + at;
        for (int64_t j = 0; j < columns; j++) {
            factors[j] = same_factor ? a[0] : a[j];
            in[j] = b[j];
        }
        vec now = load(factors) * load(state) + load_as(b_type, in, 0);
        keep(state, now);
        keep_as(h_type, out, 0, now);
        if (h_type != NOTHING) {
            memcpy((char *)s->h + (t * s->h_step + at) * (ptrdiff_t)h_size, out, (size_t)columns * h_size);
        }
    }
    memcpy(s->state + at, state, (size_t)columns * sizeof *state);
}

INLINE void scan_edge(const int b_type, const int h_type, const bool same_factor, const carry_diagonal_scan *s,
                      int64_t a_at, int64_t at, int64_t columns) {
    if (b_type != CARRY_F32) {
        scan_beside(b_type, h_type, same_factor, s, a_at, at, columns);
        return;
    }
    int64_t j = 0;
    for (; j + 4 <= columns; j += 4) {
        scan_four(h_type != NOTHING, same_factor, s, same_factor ? a_at : a_at + j, at + j);
    }
    for (; j < columns; j++) {
        scan_one(h_type != NOTHING, s, same_factor ? a_at : a_at + j, at + j);
    }
}

INLINE void scan_span(const int b_type, const int h_type, const bool same_factor, const carry_diagonal_scan *s,
                      int64_t a_at, int64_t at, int64_t length) {
    int64_t j = 0;
    for (; j + 8 * LANES <= length; j += 8 * LANES) {
        scan_in_registers(b_type, h_type, 8, same_factor, s, same_factor ? a_at : a_at + j, at + j);
    }
    for (; j + 2 * LANES <= length; j += 2 * LANES) {
        scan_in_registers(b_type, h_type, 2, same_factor, s, same_factor ? a_at : a_at + j, at + j);
    }
    for (; j + LANES <= length; j += LANES) {
        scan_in_registers(b_type, h_type, 1, same_factor, s, same_factor ? a_at : a_at + j, at + j);
    }
    if (j < length) {
        scan_edge(b_type, h_type, same_factor, s, same_factor ? a_at : a_at + j, at + j, length - j);
    }
}

/* Each span of columns runs through a block of steps with its state in registers, then the next span through the
   same block. A block has at least 8 steps, since eight streams in and eight out keep more of memory busy than one
   (docs/attempts/scan.md: 41 % of the copy rate step by step, 73 % by eights), and as many as stay in the
   first-level cache between two spans. */
#define BLOCK_FLOATS 4096
#define LEAST_STEPS 8

INLINE void scan_as(const int b_type, const int h_type, const carry_diagonal_scan *given) {
    int64_t most = BLOCK_FLOATS / (given->rows * given->width);
    most = most > LEAST_STEPS ? most : LEAST_STEPS;
    carry_diagonal_scan s = *given;
    for (int64_t t = 0; t < given->steps; t += most) {
        s.steps = given->steps - t < most ? given->steps - t : most;
        s.a = given->a + t * given->a_step;
        s.b = (const char *)given->b + t * given->b_step * (b_type == CARRY_F32 ? 4 : 2);
        s.h = h_type == NOTHING ? NULL : (char *)given->h + t * given->h_step * (h_type == CARRY_F32 ? 4 : 2);
        if (s.width == 1) {
            scan_span(b_type, h_type, false, &s, 0, 0, s.rows);
        } else {
            for (int64_t r = 0; r < s.rows; r++) {
                scan_span(b_type, h_type, true, &s, r, r * s.width, s.width);
            }
        }
    }
}

static void diagonal_scan(const carry_diagonal_scan *s) {
    bool wide_h = s->h != NULL && s->h_type == CARRY_F32;
    switch (s->b_type) {
    case CARRY_BF16:
        if (s->h == NULL) {
            scan_as(CARRY_BF16, NOTHING, s);
        } else if (wide_h) {
            scan_as(CARRY_BF16, CARRY_F32, s);
        } else {
            scan_as(CARRY_BF16, CARRY_BF16, s);
        }
        break;
    case CARRY_F16:
        if (s->h == NULL) {
            scan_as(CARRY_F16, NOTHING, s);
        } else if (wide_h) {
            scan_as(CARRY_F16, CARRY_F32, s);
        } else {
            scan_as(CARRY_F16, CARRY_F16, s);
        }
        break;
    default:
        if (s->h == NULL) {
            scan_as(CARRY_F32, NOTHING, s);
        } else {
            scan_as(CARRY_F32, CARRY_F32, s);
        }
    }
}

static void diagonal_apply(const carry_diagonal_apply *p) {
    for (int64_t item = 0; item < p->count; item++) {
        const float *a = p->a + item * p->a_next;
        const float *x = p->x + item * p->x_next;
        const float *base = p->base + item * p->base_next;
        float *y = p->y + item * p->y_next;
        if (p->width == 1) {
            step_column(y, a, x, base, p->rows);
        } else {
            for (int64_t r = 0; r < p->rows; r++) {
                step_row(y + r * p->width, a[r], x + r * p->width, base + r * p->width, p->width);
            }
        }
    }
}

#endif

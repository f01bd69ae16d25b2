/* Rows of a 16-bit weight times a few vectors: generating a token reads every weight once, so this should run at the
   speed of reading it. Elements are widened in registers; two vectors of sums per row and token hide the latency.
   Part of kernels_vector.h. */
#ifndef CARRY_OPS_VECTOR_HALF_DOTS_H
#define CARRY_OPS_VECTOR_HALF_DOTS_H

#define HALF_ROWS 4 /* rows of the weight that are read at a time */

INLINE float lanes_sum(vec x) {
    float sum = 0.0f;
    UNROLL
    for (int i = 0; i < LANES; i++) {
        sum += x[i];
    }
    return sum;
}

INLINE void half_rows(const int type, const int rows, const int tokens, const carry_half_dots *d, int64_t row,
                      int64_t apart, int64_t token) {
    const uint16_t *w = d->w + row * d->w_row;
    const float *x = d->x + token * d->x_row;
    vec sum[HALF_ROWS][2][2];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int t = 0; t < tokens; t++) {
            sum[r][t][0] = sum[r][t][1] = (vec){0};
        }
    }
    int64_t l = 0;
    for (; l + 2 * LANES <= d->k; l += 2 * LANES) {
        UNROLL
        for (int half = 0; half < 2; half++) {
            UNROLL
            for (int r = 0; r < rows; r++) {
                vec y = load_as(type, w + r * apart * d->w_row, l + half * LANES);
                UNROLL
                for (int t = 0; t < tokens; t++) {
                    sum[r][t][half] += y * load(x + t * d->x_row + l + half * LANES);
                }
            }
        }
#if DOT_AHEAD > 0
        UNROLL
        for (int r = 0; r < rows; r++) {
            __builtin_prefetch(w + r * apart * d->w_row + l + 2 * DOT_AHEAD);
        }
#endif
    }
    for (int r = 0; r < rows; r++) {
        uint16_t in[2 * LANES] = {0};
        float last[2 * LANES];
        memcpy(in, w + r * apart * d->w_row + l, (size_t)(d->k - l) * sizeof *in);
        keep(last, load_as(type, in, 0));
        keep(last + LANES, load_as(type, in, LANES));
        for (int t = 0; t < tokens; t++) {
            float total = lanes_sum(sum[r][t][0] + sum[r][t][1]);
            for (int64_t i = l; i < d->k; i++) {
                total += last[i - l] * x[t * d->x_row + i];
            }
            d->y[(token + t) * d->y_row + row + r * apart] = total;
        }
    }
}

/* Takes rows that are a quarter of all rows apart. The next step takes the rows that follow them in memory, so the
   hardware prefetcher does not restart at every row. */
INLINE void half_tokens(const int type, const int tokens, const carry_half_dots *d, int64_t token) {
    const int64_t apart = d->rows / HALF_ROWS;
    for (int64_t row = 0; row < apart; row++) {
        half_rows(type, HALF_ROWS, tokens, d, row, apart, token);
    }
    for (int64_t row = apart * HALF_ROWS; row < d->rows; row++) {
        half_rows(type, 1, tokens, d, row, 1, token);
    }
}

static void half_dots_bf16(const carry_half_dots *d) {
    int64_t token = 0;
    for (; token + 2 <= d->tokens; token += 2) {
        half_tokens(CARRY_BF16, 2, d, token);
    }
    if (token < d->tokens) {
        half_tokens(CARRY_BF16, 1, d, token);
    }
}

static void half_dots_f16(const carry_half_dots *d) {
    for (int64_t token = 0; token < d->tokens; token++) {
        half_tokens(CARRY_F16, 1, d, token);
    }
}

static void half_dots_of(const carry_half_dots *d) {
    (d->type == CARRY_BF16 ? half_dots_bf16 : half_dots_f16)(d);
}

#endif

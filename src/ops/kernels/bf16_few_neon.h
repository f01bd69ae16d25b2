/* A few tokens times a weight that is not packed, by ARM's BFDOT and BFMMLA. Part of kernels_bf16_neon.c. */
#ifndef CARRY_OPS_KERNELS_BF16_FEW_NEON_H
#define CARRY_OPS_KERNELS_BF16_FEW_NEON_H

/* Reading four rows at a time reaches 35 GB/s with hardware prefetching alone, eight rows 31, and one row 28. Software
   prefetching of cache lines into the third-level cache, AHEAD elements before they are read, raises this to 45 GB/s
   (into the first or second level: 35; 4 KiB ahead: 29; 8 to 24 KiB ahead: 45). */
#define FEW_ROWS 4
#define AHEAD 4096
#define LINE 32 /* elements of a cache line */

BF16_INLINE void fetch(const uint16_t *const w[FEW_ROWS], int64_t l) {
    UNROLL
    for (int r = 0; r < FEW_ROWS; r++) {
        __builtin_prefetch(w[r] + l + AHEAD, 0, 1);
    }
}

/* The sum over k from l on, for the last elements that the loop does not take. */
static float rest(const carry_bf16_few *f, int pairs, int64_t token, const uint16_t *w, int64_t l) {
    float sum = 0.0f;
    for (; l < f->k; l++) {
        sum += widened(f->x[(l / GROUP * 2 * pairs + token) * GROUP + l % GROUP]) * widened(w[l]);
    }
    return sum;
}

/* Finds row `row` and the rows 1, 2 and 3 times `apart` after it. A row past the end is replaced by the last row, and
   its sums are discarded. */
BF16_INLINE void find_rows(const uint16_t *w[FEW_ROWS], const carry_bf16_few *f, int64_t row, int64_t apart) {
    for (int r = 0; r < FEW_ROWS; r++) {
        w[r] = f->w + (row + r * apart < f->rows ? row + r * apart : f->rows - 1) * f->w_row;
    }
}

BF16_INLINE float32x4_t dots(float32x4_t sum, uint16x8_t w, uint16x8_t x) {
    return vbfdotq_f32(sum, vreinterpretq_bf16_u16(w), vreinterpretq_bf16_u16(x));
}

/* One token, by BFDOT, which needs fewer instructions per cache line, so that the core has more cache lines in flight:
   a weight is read at 42 GB/s, against 37 to 40 with BFMMLA. Loading two vectors at a time gains 3 to 5 %. x is not
   packed. */
BF16_INLINE void one_token(const carry_bf16_few *f, int64_t row, int64_t apart) {
    const uint16_t *w[FEW_ROWS];
    float32x4_t sum[FEW_ROWS][2];
    find_rows(w, f, row, apart);
    UNROLL
    for (int r = 0; r < FEW_ROWS; r++) {
        sum[r][0] = sum[r][1] = vdupq_n_f32(0.0f);
    }
    int64_t l = 0;
    for (; l + LINE <= f->k; l += LINE) {
        fetch(w, l);
        UNROLL
        for (int i = 0; i < LINE; i += 16) {
            const uint16x8x2_t x = vld1q_u16_x2(f->x + l + i);
            UNROLL
            for (int r = 0; r < FEW_ROWS; r++) {
                const uint16x8x2_t y = vld1q_u16_x2(w[r] + l + i);
                sum[r][0] = dots(sum[r][0], y.val[0], x.val[0]);
                sum[r][1] = dots(sum[r][1], y.val[1], x.val[1]);
            }
        }
    }
    float32x4_t both[FEW_ROWS];
    float total[FEW_ROWS];
    float *y = f->y + row;
    UNROLL
    for (int r = 0; r < FEW_ROWS; r++) {
        both[r] = vaddq_f32(sum[r][0], sum[r][1]);
    }
    const float32x4_t all = vpaddq_f32(vpaddq_f32(both[0], both[1]), vpaddq_f32(both[2], both[3]));
    if (l == f->k && row + (FEW_ROWS - 1) * apart < f->rows) {
        vst1q_lane_f32(y, all, 0);
        vst1q_lane_f32(y + apart, all, 1);
        vst1q_lane_f32(y + 2 * apart, all, 2);
        vst1q_lane_f32(y + 3 * apart, all, 3);
        return;
    }
    vst1q_f32(total, all);
    for (int r = 0; r < FEW_ROWS && row + r * apart < f->rows; r++) {
        for (int64_t i = l; i < f->k; i++) {
            total[r] += widened(f->x[i]) * widened(w[r][i]);
        }
        y[r * apart] = total[r];
    }
}

/* Multiplies two pairs of rows of w, which are zipped into operands as they are read, by `pairs` pairs of tokens. Each
   row and token has `halves` partial sums, to hide the latency if there are few tokens; with one, the sum runs over k
   in order, as in few_panels. */
BF16_INLINE void few_rows(const int pairs, const int halves, const carry_bf16_few *f, int64_t row, int64_t apart) {
    float32x4_t upper[ROWS / 2][4]; /* sums of the first pair of rows, and of the second */
    float32x4_t lower[ROWS / 2][4];
    const uint16_t *w[FEW_ROWS];
    const int groups = halves > 2 ? halves : 2; /* of k, a turn */
    find_rows(w, f, row, apart);
    const uint16_t *w0 = w[0];
    const uint16_t *w1 = w[1];
    const uint16_t *w2 = w[2];
    const uint16_t *w3 = w[3];
    UNROLL
    for (int p = 0; p < pairs; p++) {
        UNROLL
        for (int h = 0; h < halves; h++) {
            upper[p][h] = lower[p][h] = vdupq_n_f32(0.0f);
        }
    }
    int64_t l = 0;
    for (; l + GROUP * groups <= f->k; l += GROUP * groups) {
        if (l % LINE == 0) {
            fetch(w, l);
        }
        UNROLL
        for (int h = 0; h < groups; h += 2) {
            const int first = halves > 1 ? h : 0;
            const int second = halves > 1 ? h + 1 : 0;
            uint64x2_t a = vreinterpretq_u64_u16(vld1q_u16(w0 + l + GROUP * h));
            uint64x2_t b = vreinterpretq_u64_u16(vld1q_u16(w1 + l + GROUP * h));
            uint64x2_t c = vreinterpretq_u64_u16(vld1q_u16(w2 + l + GROUP * h));
            uint64x2_t d = vreinterpretq_u64_u16(vld1q_u16(w3 + l + GROUP * h));
            bfloat16x8_t ab0 = vreinterpretq_bf16_u64(vzip1q_u64(a, b));
            bfloat16x8_t ab1 = vreinterpretq_bf16_u64(vzip2q_u64(a, b));
            bfloat16x8_t cd0 = vreinterpretq_bf16_u64(vzip1q_u64(c, d));
            bfloat16x8_t cd1 = vreinterpretq_bf16_u64(vzip2q_u64(c, d));
            const uint16_t *x = f->x + (l + GROUP * h) * 2 * pairs;
            UNROLL
            for (int p = 0; p < pairs; p++) {
                const bfloat16x8_t x0 = vreinterpretq_bf16_u16(vld1q_u16(x + 8 * p));
                upper[p][first] = vbfmmlaq_f32(upper[p][first], x0, ab0);
                lower[p][first] = vbfmmlaq_f32(lower[p][first], x0, cd0);
            }
            UNROLL
            for (int p = 0; p < pairs; p++) {
                const bfloat16x8_t x1 = vreinterpretq_bf16_u16(vld1q_u16(x + 8 * p + 2 * pairs * GROUP));
                upper[p][second] = vbfmmlaq_f32(upper[p][second], x1, ab1);
                lower[p][second] = vbfmmlaq_f32(lower[p][second], x1, cd1);
            }
        }
    }
    float sums[ROWS / 2][2][4]; /* for a pair of tokens and a pair of rows: (0, 0), (0, 1), (1, 0), (1, 1) */
    UNROLL
    for (int p = 0; p < pairs; p++) {
        float32x4_t first = upper[p][0];
        float32x4_t second = lower[p][0];
        if (halves == 4) {
            first = vaddq_f32(vaddq_f32(first, upper[p][1]), vaddq_f32(upper[p][2], upper[p][3]));
            second = vaddq_f32(vaddq_f32(second, lower[p][1]), vaddq_f32(lower[p][2], lower[p][3]));
        }
        vst1q_f32(sums[p][0], first);
        vst1q_f32(sums[p][1], second);
    }
    for (int64_t t = 0; t < f->tokens; t++) {
        for (int64_t r = 0; r < FEW_ROWS && row + r * apart < f->rows; r++) {
            f->y[t * f->y_row + row + r * apart] = sums[t / 2][r / 2][t % 2 * 2 + r % 2] + rest(f, pairs, t, w[r], l);
        }
    }
}

/* Packs one, two or four pairs of tokens, as few as are needed: x must stay in the first-level cache while w is read.
   One token is copied unchanged. */
static void pack_few(uint16_t *to, const uint16_t *x, ptrdiff_t row, int64_t tokens, int64_t k) {
    if (tokens == 1) {
        memcpy(to, x, (size_t)k * sizeof *x);
    } else if (tokens <= 2) {
        bf16_pack(GROUP, 2, GROUP, to, x, row, false, tokens, k);
    } else if (tokens <= 4) {
        bf16_pack(GROUP, 4, GROUP, to, x, row, false, tokens, k);
    } else {
        bf16_pack(GROUP, 8, GROUP, to, x, row, false, tokens, k);
    }
}

/* Takes four rows that are a quarter of all rows apart. The next step takes the rows that follow them in memory, so the
   hardware prefetcher does not restart at every row (with four neighbouring rows it does: 20 GB/s). */
static void few(const carry_bf16_few *f) {
    const int64_t apart = (f->rows + FEW_ROWS - 1) / FEW_ROWS;
    for (int64_t row = 0; row < apart && f->tokens == 1; row++) {
        one_token(f, row, apart);
    }
    for (int64_t row = 0; row < apart && f->tokens > 1; row++) {
        if (f->tokens <= 2) {
            few_rows(1, 4, f, row, apart);
        } else if (f->tokens <= 4) {
            few_rows(2, 4, f, row, apart);
        } else {
            few_rows(4, 1, f, row, apart);
        }
    }
}

/* Multiplies one panel of w by one of x. w is prefetched into the third-level cache (see AHEAD): 181 GFLOP/s for
   eight tokens with weights from memory, 167 without. Unpacked weights, which few_rows zips while it reads them, reach
   137. */
BF16_INLINE void few_panel(const int pairs, const carry_bf16_few *f, const uint16_t *a, const uint16_t *b, float *to) {
    float32x4_t sum[ROWS / 2][COLUMNS / 2];
    UNROLL
    for (int p = 0; p < pairs; p++) {
        UNROLL
        for (int q = 0; q < COLUMNS / 2; q++) {
            sum[p][q] = vdupq_n_f32(0.0f);
        }
    }
    for (int64_t l = 0; l < f->k; l += GROUP) {
        bfloat16x8_t x[ROWS / 2];
        __builtin_prefetch(b + AHEAD, 0, 1);
        __builtin_prefetch(b + AHEAD + LINE, 0, 1);
        UNROLL
        for (int p = 0; p < pairs; p++) {
            x[p] = vreinterpretq_bf16_u16(vld1q_u16(a + 8 * p));
        }
        UNROLL
        for (int q = 0; q < COLUMNS / 2; q++) {
            const bfloat16x8_t y = vreinterpretq_bf16_u16(vld1q_u16(b + 8 * q));
            UNROLL
            for (int p = 0; p < pairs; p++) {
                sum[p][q] = vbfmmlaq_f32(sum[p][q], x[p], y);
            }
        }
        a += ROWS * GROUP;
        b += COLUMNS * GROUP;
    }
    UNROLL
    for (int p = 0; p < pairs; p++) {
        UNROLL
        for (int q = 0; q < COLUMNS / 2; q++) {
            vst1_f32(to + 2 * p * COLUMNS + 2 * q, vget_low_f32(sum[p][q]));
            vst1_f32(to + (2 * p + 1) * COLUMNS + 2 * q, vget_high_f32(sum[p][q]));
        }
    }
}

static void few_panels(const carry_bf16_few *f) {
    float sums[ROWS * COLUMNS];
    for (int64_t row = 0; row < f->rows; row += COLUMNS) {
        const int64_t rows = f->rows - row < COLUMNS ? f->rows - row : COLUMNS;
        for (int64_t token = 0; token < f->tokens; token += ROWS) {
            const int64_t tokens = f->tokens - token < ROWS ? f->tokens - token : ROWS;
            const uint16_t *a = f->x + token * f->k;
            const uint16_t *b = f->w + row * f->k;
            if (tokens <= 2) {
                few_panel(1, f, a, b, sums);
            } else if (tokens <= 4) {
                few_panel(2, f, a, b, sums);
            } else if (tokens <= 6) {
                few_panel(3, f, a, b, sums);
            } else {
                few_panel(4, f, a, b, sums);
            }
            for (int64_t t = 0; t < tokens; t++) {
                memcpy(f->y + (token + t) * f->y_row + row, sums + t * COLUMNS, (size_t)rows * sizeof *sums);
            }
        }
    }
}

#endif

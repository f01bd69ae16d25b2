/* bf16 products by ARM's BFMMLA: a 2 x 4 by 4 x 2 product in one instruction (one token: BFDOT, below). A panel of a is
   four pairs of rows, one of b six pairs of columns: 24 sums of 2 x 2, four operands of a and one of b at a time fill
   the 32 registers. */
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>

#include "ops/kernels/bf16.h"

#define ROWS 8
#define COLUMNS 12
#define GROUP 4

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>

#include "ops/kernels/bf16_pack.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Four lines of four rows of k, transposed by the store. */
static void across(const int panel, uint16_t *to, const uint16_t *from, ptrdiff_t row, int64_t groups) {
    for (int64_t g = 0; g < groups; g++) {
        const uint16_t *line = from + g * GROUP * row;
        UNROLL
        for (int x = 0; x < panel; x += 4) {
            uint16x4x4_t square = {{vld1_u16(line + x), vld1_u16(line + row + x), vld1_u16(line + 2 * row + x),
                                    vld1_u16(line + 3 * row + x)}};
            vst4_u16(to + (g * panel + x) * GROUP, square);
        }
    }
}

/* Two lines of two groups at a time. */
BF16_INLINE void along(const int panel, uint16_t *to, const uint16_t *from, ptrdiff_t row, int64_t groups) {
    for (int64_t g = 0; g < groups; g += 2) {
        UNROLL
        for (int line = 0; line < panel; line += 2) {
            const uint64x2_t first = vreinterpretq_u64_u16(vld1q_u16(from + line * row + g * GROUP));
            const uint64x2_t second = vreinterpretq_u64_u16(vld1q_u16(from + (line + 1) * row + g * GROUP));
            uint16_t *here = to + (g * panel + line) * GROUP;
            vst1q_u16(here, vreinterpretq_u16_u64(vtrn1q_u64(first, second)));
            vst1q_u16(here + panel * GROUP, vreinterpretq_u16_u64(vtrn2q_u64(first, second)));
        }
    }
}

BF16_INLINE void pack(const int panel, uint16_t *to, const uint16_t *from, ptrdiff_t row, bool turned, int64_t lines,
                      int64_t k) {
    int64_t done = 0;
    if (turned && lines == panel) {
        done = k / GROUP * GROUP;
        across(panel, to, from, row, done / GROUP);
    } else if (lines == panel) {
        done = k / (2 * GROUP) * (2 * GROUP);
        along(panel, to, from, row, done / GROUP);
    }
    bf16_pack(GROUP, panel, GROUP, to + done * panel, from + (turned ? done * row : done), row, turned, lines,
              k - done);
}

static void pack_a(uint16_t *to, const uint16_t *from, ptrdiff_t row, bool turned, int64_t lines, int64_t k) {
    pack(ROWS, to, from, row, turned, lines, k);
}

static void pack_b(uint16_t *to, const uint16_t *from, ptrdiff_t row, bool turned, int64_t lines, int64_t k) {
    pack(COLUMNS, to, from, row, turned, lines, k);
}

/* The first 2 * pairs rows of a panel of a times a panel of b. */
BF16_INLINE void multiply(const int pairs, int64_t k, const uint16_t *a, const uint16_t *b, const float *base,
                          ptrdiff_t base_row, float *c, ptrdiff_t c_row) {
    float32x4_t sum[ROWS / 2][COLUMNS / 2];
    UNROLL
    for (int p = 0; p < pairs; p++) {
        UNROLL
        for (int q = 0; q < COLUMNS / 2; q++) {
            const float *from = base != NULL ? base + 2 * p * base_row + 2 * q : NULL;
            sum[p][q] = base != NULL ? vcombine_f32(vld1_f32(from), vld1_f32(from + base_row)) : vdupq_n_f32(0.0f);
        }
    }
    for (int64_t l = 0; l < k; l += GROUP) {
        bfloat16x8_t x[ROWS / 2];
        UNROLL
        for (int p = 0; p < pairs; p++) {
            x[p] = vreinterpretq_bf16_u16(vld1q_u16(a + 8 * p));
        }
        UNROLL
        for (int q = 0; q < COLUMNS / 2; q++) {
            bfloat16x8_t y = vreinterpretq_bf16_u16(vld1q_u16(b + 8 * q));
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
            vst1_f32(c + 2 * p * c_row + 2 * q, vget_low_f32(sum[p][q]));
            vst1_f32(c + (2 * p + 1) * c_row + 2 * q, vget_high_f32(sum[p][q]));
        }
    }
}

static void place(int64_t k, const uint16_t *a, const uint16_t *b, const float *base, ptrdiff_t base_row, float *c,
                  ptrdiff_t c_row, int64_t rows) {
    switch ((rows + 1) / 2) {
    case 1:
        multiply(1, k, a, b, base, base_row, c, c_row);
        break;
    case 2:
        multiply(2, k, a, b, base, base_row, c, c_row);
        break;
    case 3:
        multiply(3, k, a, b, base, base_row, c, c_row);
        break;
    default:
        multiply(4, k, a, b, base, base_row, c, c_row);
    }
}

static void tile(const carry_bf16_tile *t) {
    float beside[ROWS * COLUMNS] = {0};
    bf16_panels(t, ROWS, COLUMNS, beside, place);
}

/* Four rows at a time are read at 35 GB/s, where eight reach 31 and one 28: what the core's own fetching ahead keeps in
   flight. Asking for lines to be brought as far as the third cache, AHEAD elements before they are read, adds to that:
   45 GB/s (as far as the first or second cache: 35; 4 KiB ahead 29, 8 to 24 KiB 45). */
#define FEW_ROWS 4
#define AHEAD 4096
#define LINE 32 /* elements of a line of the caches */

BF16_INLINE void fetch(const uint16_t *const w[FEW_ROWS], int64_t l) {
    UNROLL
    for (int r = 0; r < FEW_ROWS; r++) {
        __builtin_prefetch(w[r] + l + AHEAD, 0, 1);
    }
}

static float widened(uint16_t bits) {
    return vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32((uint32_t)bits << 16)), 0);
}

/* k from l on, fewer than the loop takes at a time. */
static float rest(const carry_bf16_few *f, int pairs, int64_t token, const uint16_t *w, int64_t l) {
    float sum = 0.0f;
    for (; l < f->k; l++) {
        sum += widened(f->x[(l / GROUP * 2 * pairs + token) * GROUP + l % GROUP]) * widened(w[l]);
    }
    return sum;
}

/* Row `row` and those 1, 2 and 3 times `apart` after it; beyond the last row: the last one again, whose sums are not
   kept. */
BF16_INLINE void find_rows(const uint16_t *w[FEW_ROWS], const carry_bf16_few *f, int64_t row, int64_t apart) {
    for (int r = 0; r < FEW_ROWS; r++) {
        w[r] = f->w + (row + r * apart < f->rows ? row + r * apart : f->rows - 1) * f->w_row;
    }
}

BF16_INLINE float32x4_t dots(float32x4_t sum, uint16x8_t w, uint16x8_t x) {
    return vbfdotq_f32(sum, vreinterpretq_bf16_u16(w), vreinterpretq_bf16_u16(x));
}

/* One token, by BFDOT: the fewer instructions a line takes, the more lines the core has in flight (42 GB/s of a weight,
   by BFMMLA 37 to 40; two vectors a load: 3 to 5 % more). x is as it lies. */
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

/* Two pairs of rows of w, read as they lie and zipped into operands, times `pairs` pairs of tokens; `halves` sums of a
   row and token hide the latency. */
BF16_INLINE void few_rows(const int pairs, const int halves, const carry_bf16_few *f, int64_t row, int64_t apart) {
    float32x4_t upper[ROWS / 2][4]; /* sums of the first pair of rows, and of the second */
    float32x4_t lower[ROWS / 2][4];
    const uint16_t *w[FEW_ROWS];
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
    for (; l + GROUP * halves <= f->k; l += GROUP * halves) {
        if (l % LINE == 0) {
            fetch(w, l);
        }
        UNROLL
        for (int h = 0; h < halves; h += 2) {
            uint64x2_t a = vreinterpretq_u64_u16(vld1q_u16(w0 + l + GROUP * h));
            uint64x2_t b = vreinterpretq_u64_u16(vld1q_u16(w1 + l + GROUP * h));
            uint64x2_t c = vreinterpretq_u64_u16(vld1q_u16(w2 + l + GROUP * h));
            uint64x2_t d = vreinterpretq_u64_u16(vld1q_u16(w3 + l + GROUP * h));
            bfloat16x8_t ab0 = vreinterpretq_bf16_u64(vzip1q_u64(a, b));
            bfloat16x8_t ab1 = vreinterpretq_bf16_u64(vzip2q_u64(a, b));
            bfloat16x8_t cd0 = vreinterpretq_bf16_u64(vzip1q_u64(c, d));
            bfloat16x8_t cd1 = vreinterpretq_bf16_u64(vzip2q_u64(c, d));
            UNROLL
            for (int p = 0; p < pairs; p++) {
                const uint16_t *x = f->x + (l + GROUP * h) * 2 * pairs + 8 * p;
                bfloat16x8_t x0 = vreinterpretq_bf16_u16(vld1q_u16(x));
                bfloat16x8_t x1 = vreinterpretq_bf16_u16(vld1q_u16(x + 2 * pairs * GROUP));
                upper[p][h] = vbfmmlaq_f32(upper[p][h], x0, ab0);
                upper[p][h + 1] = vbfmmlaq_f32(upper[p][h + 1], x1, ab1);
                lower[p][h] = vbfmmlaq_f32(lower[p][h], x0, cd0);
                lower[p][h + 1] = vbfmmlaq_f32(lower[p][h + 1], x1, cd1);
            }
        }
    }
    float sums[ROWS / 2][2][4]; /* of a pair of tokens and of rows: (0, 0), (0, 1), (1, 0), (1, 1) */
    UNROLL
    for (int p = 0; p < pairs; p++) {
        float32x4_t first = vaddq_f32(upper[p][0], upper[p][1]);
        float32x4_t second = vaddq_f32(lower[p][0], lower[p][1]);
        if (halves == 4) {
            first = vaddq_f32(first, vaddq_f32(upper[p][2], upper[p][3]));
            second = vaddq_f32(second, vaddq_f32(lower[p][2], lower[p][3]));
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

/* Only as many pairs of tokens as there are: x must stay in the first cache while w passes. */
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

/* Four rows a quarter of all apart: each is followed in memory by the next one of its quarter, and what fetches ahead
   need not find its way again at every row (20 GB/s with four neighbours). */
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
            few_rows(4, 2, f, row, apart);
        }
    }
}

#define BFMMLA                                                                                         \
    .rows = ROWS, .columns = COLUMNS, .unit = GROUP, .pack_a = pack_a, .pack_b = pack_b, .tile = tile, \
    .few_tokens = ROWS, .pack_few = pack_few, .few = few

static const char *missing(void) {
    const unsigned long bf16 = 1ul << 14; /* HWCAP2_BF16 */
    return (getauxval(AT_HWCAP2) & bf16) != 0 ? NULL : "this processor has no bf16 instructions";
}
#else
#define BFMMLA .rows = 1, .columns = 1, .unit = 1

static const char *missing(void) {
    return "the compiler of this build has no bf16 instructions";
}
#endif

extern const carry_bf16 carry_bf16_bfmmla;
const carry_bf16 carry_bf16_bfmmla = {
    .name = "bfmmla", .about = "ARM BFMMLA, bf16 products of 8 x 12", .missing = missing, BFMMLA};

/* bf16 products by ARM's BFMMLA: a 2 x 4 by 4 x 2 product in one instruction. A panel of a is four pairs of rows, one
   of b six pairs of columns: 24 sums of 2 x 2, four operands of a and one of b at a time fill the 32 registers. */
#include <stdint.h>
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

BF16_INLINE void pack(const int panel, uint16_t *to, const uint16_t *from, ptrdiff_t row, bool turned, int64_t lines,
                      int64_t k) {
    int64_t done = 0;
    if (turned && lines == panel) {
        done = k / GROUP * GROUP;
        across(panel, to, from, row, done / GROUP);
    }
    bf16_pack(GROUP, panel, GROUP, to + done * panel, from + done * row, row, turned, lines, k - done);
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

/* Eight k of four pairs of rows of w, read as they lie and zipped into operands, times `pairs` pairs of tokens. Sums of
   the two halves are apart, so that fewer wait for each other. */
#define FEW_PAIRS 4

BF16_INLINE void add_few(const int pairs, const uint16_t *x, const uint16_t *const w[2 * FEW_PAIRS], int64_t l,
                         float32x4_t sum[FEW_PAIRS][ROWS / 2][2]) {
    UNROLL
    for (int q = 0; q < FEW_PAIRS; q++) {
        uint64x2_t upper = vreinterpretq_u64_u16(vld1q_u16(w[2 * q] + l));
        uint64x2_t lower = vreinterpretq_u64_u16(vld1q_u16(w[2 * q + 1] + l));
        bfloat16x8_t first = vreinterpretq_bf16_u64(vzip1q_u64(upper, lower));
        bfloat16x8_t second = vreinterpretq_bf16_u64(vzip2q_u64(upper, lower));
        UNROLL
        for (int p = 0; p < pairs; p++) {
            bfloat16x8_t x0 = vreinterpretq_bf16_u16(vld1q_u16(x + 8 * p));
            bfloat16x8_t x1 = vreinterpretq_bf16_u16(vld1q_u16(x + ROWS * GROUP + 8 * p));
            sum[q][p][0] = vbfmmlaq_f32(sum[q][p][0], x0, first);
            sum[q][p][1] = vbfmmlaq_f32(sum[q][p][1], x1, second);
        }
    }
}

BF16_INLINE void few_rows(const int pairs, const carry_bf16_few *f, int64_t row) {
    float32x4_t sum[FEW_PAIRS][ROWS / 2][2];
    const uint16_t *w[2 * FEW_PAIRS];
    UNROLL
    for (int r = 0; r < 2 * FEW_PAIRS; r++) { /* beyond the last row: the last one again, whose sums are not kept */
        w[r] = f->w + (row + r < f->rows ? row + r : f->rows - 1) * f->w_row;
    }
    UNROLL
    for (int i = 0; i < FEW_PAIRS * pairs * 2; i++) {
        sum[i / 2 / pairs][i / 2 % pairs][i % 2] = vdupq_n_f32(0.0f);
    }
    int64_t l = 0;
    for (; l + 8 <= f->k; l += 8) {
        add_few(pairs, f->x + l * ROWS, w, l, sum);
    }
    if (l < f->k) {
        uint16_t last[2 * FEW_PAIRS][8] = {{0}};
        for (int r = 0; r < 2 * FEW_PAIRS; r++) {
            memcpy(last[r], w[r] + l, (size_t)(f->k - l) * sizeof last[r][0]);
            w[r] = last[r];
        }
        add_few(pairs, f->x + l * ROWS, w, 0, sum);
    }
    UNROLL
    for (int q = 0; q < FEW_PAIRS; q++) {
        UNROLL
        for (int p = 0; p < pairs; p++) {
            float both[4]; /* tokens 2p, 2p, 2p + 1, 2p + 1; rows 2q, 2q + 1 */
            vst1q_f32(both, vaddq_f32(sum[q][p][0], sum[q][p][1]));
            for (int i = 0; i < 4; i++) {
                int64_t r = row + 2 * q + i % 2;
                if (2 * p + i / 2 < f->tokens && r < f->rows) {
                    f->y[(2 * p + i / 2) * f->y_row + r] = both[i];
                }
            }
        }
    }
}

static void few(const carry_bf16_few *f) {
    for (int64_t row = 0; row < f->rows; row += 2 * FEW_PAIRS) {
        if (f->tokens <= 2) {
            few_rows(1, f, row);
        } else if (f->tokens <= 4) {
            few_rows(2, f, row);
        } else {
            few_rows(4, f, row);
        }
    }
}

#define BFMMLA \
    .rows = ROWS, .columns = COLUMNS, .unit = GROUP, .pack_a = pack_a, .pack_b = pack_b, .tile = tile, .few = few

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

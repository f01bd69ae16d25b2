/* bf16 products by ARM's BFMMLA, which multiplies 2 x 4 by 4 x 2 in one instruction (BFDOT for one token:
   bf16_few_neon.h). A panel of a has four pairs of rows, and a panel of b has six pairs of columns. The 24 sums of
   2 x 2, four operands of a, and one operand of b at a time take 29 of the 32 registers. */
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

/* Packs four lines of four rows of k at a time; the store transposes them. */
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

/* Packs two lines of two groups at a time. */
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

/* Adds the products of the first 2 * pairs rows of a panel of a and a panel of b to sums of 2 x 2. Prefetches the
   data at `next` on the way, `step` elements in each turn. */
BF16_INLINE void add_products(const int pairs, float32x4_t sum[ROWS / 2][COLUMNS / 2], int64_t k, const uint16_t *a,
                              const uint16_t *b, const uint16_t *next, ptrdiff_t step) {
    for (int64_t l = 0; l < k; l += GROUP) {
        bfloat16x8_t x[ROWS / 2];
        if (next != NULL) {
            __builtin_prefetch(next, 0, 2);
            next += step;
        }
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
}

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
    add_products(pairs, sum, k, a, b, NULL, 0);
    UNROLL
    for (int p = 0; p < pairs; p++) {
        UNROLL
        for (int q = 0; q < COLUMNS / 2; q++) {
            vst1_f32(c + 2 * p * c_row + 2 * q, vget_low_f32(sum[p][q]));
            vst1_f32(c + (2 * p + 1) * c_row + 2 * q, vget_high_f32(sum[p][q]));
        }
    }
}

/* Converts two neighbouring 2 x 2 squares of sums to two rows of four, or back. */
BF16_INLINE float32x4_t upper_row(float32x4_t left, float32x4_t right) {
    return vreinterpretq_f32_u64(vtrn1q_u64(vreinterpretq_u64_f32(left), vreinterpretq_u64_f32(right)));
}

BF16_INLINE float32x4_t lower_row(float32x4_t left, float32x4_t right) {
    return vreinterpretq_f32_u64(vtrn2q_u64(vreinterpretq_u64_f32(left), vreinterpretq_u64_f32(right)));
}

BF16_INLINE float32x4_t widened_four(const uint16_t *from) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16));
}

/* Rounds to nearest, ties to even, and makes NaN quiet, as bf16_from_f32 of kernels.h does. */
BF16_INLINE void narrow_four(uint16_t *to, float32x4_t from) {
    vst1_u16(to, vreinterpret_u16_bf16(vcvt_bf16_f32(from)));
}

/* Multiplies a whole panel of a by one of b into a bf16 c, without f32 sums in memory. */
BF16_INLINE void multiply_half(int64_t k, const uint16_t *a, const uint16_t *b, const uint16_t *next, ptrdiff_t step,
                               uint16_t *c, ptrdiff_t row, bool adds) {
    float32x4_t sum[ROWS / 2][COLUMNS / 2];
    UNROLL
    for (int p = 0; p < ROWS / 2; p++) {
        UNROLL
        for (int q = 0; q < COLUMNS / 2; q += 2) {
            const uint16_t *from = c + 2 * p * row + 2 * q;
            const float32x4_t upper = adds ? widened_four(from) : vdupq_n_f32(0.0f);
            const float32x4_t lower = adds ? widened_four(from + row) : vdupq_n_f32(0.0f);
            sum[p][q] = upper_row(upper, lower);
            sum[p][q + 1] = lower_row(upper, lower);
        }
    }
    add_products(ROWS / 2, sum, k, a, b, next, step);
    UNROLL
    for (int p = 0; p < ROWS / 2; p++) {
        UNROLL
        for (int q = 0; q < COLUMNS / 2; q += 2) {
            uint16_t *to = c + 2 * p * row + 2 * q;
            narrow_four(to, upper_row(sum[p][q], sum[p][q + 1]));
            narrow_four(to + row, lower_row(sum[p][q], sum[p][q + 1]));
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

static float widened(uint16_t bits) {
    return vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32((uint32_t)bits << 16)), 0);
}

/* Computes a panel at the edge of a bf16 c, in an f32 buffer. */
static void half_edge(int64_t k, const uint16_t *a, const uint16_t *b, uint16_t *c, ptrdiff_t row, bool adds,
                      int64_t rows, int64_t columns) {
    float beside[ROWS * COLUMNS] = {0};
    for (int64_t r = 0; adds && r < rows; r++) {
        for (int64_t x = 0; x < columns; x++) {
            beside[r * COLUMNS + x] = widened(c[r * row + x]);
        }
    }
    place(k, a, b, adds ? beside : NULL, COLUMNS, beside, COLUMNS, rows);
    for (int64_t r = 0; r < rows; r++) {
        uint16_t narrow[COLUMNS];
        UNROLL
        for (int x = 0; x < COLUMNS; x += 4) {
            narrow_four(narrow + x, vld1q_f32(beside + r * COLUMNS + x));
        }
        memcpy(c + r * row, narrow, (size_t)columns * sizeof *c);
    }
}

static void half_tile(const carry_bf16_tile *t) {
    /* Each panel of a brings a share of the next panel of b into the second-level cache: 512 x 9216 x 2560 at 252
       instead of 233 GFLOP/s, and from weights that were packed earlier at 258 instead of 230. */
    const int64_t panels = t->row_panels_end - t->row_panel;
    const ptrdiff_t step = (COLUMNS * GROUP + panels - 1) / panels;
    for (int64_t q = t->column_panel; q < t->column_panels_end; q++) {
        const int64_t j = q * COLUMNS;
        const uint16_t *after = t->b + (q + 1 < t->column_panels_end ? j + COLUMNS : j) * t->k;
        for (int64_t p = t->row_panel; p < t->row_panels_end; p++) {
            const int64_t i = p * ROWS;
            const uint16_t *next = after + (p - t->row_panel) * step * (t->k / GROUP);
            uint16_t *c = t->half + i * t->half_row + j;
            if (i + ROWS <= t->m && j + COLUMNS <= t->n) {
                multiply_half(t->k, t->a + i * t->k, t->b + j * t->k, next, step, c, t->half_row, t->half_adds);
            } else {
                half_edge(t->k, t->a + i * t->k, t->b + j * t->k, c, t->half_row, t->half_adds,
                          t->m - i < ROWS ? t->m - i : ROWS, t->n - j < COLUMNS ? t->n - j : COLUMNS);
            }
        }
    }
}

static void tile(const carry_bf16_tile *t) {
    float beside[ROWS * COLUMNS] = {0};
    if (t->half != NULL) {
        half_tile(t);
    } else {
        bf16_panels(t, ROWS, COLUMNS, beside, place);
    }
}

#include "ops/kernels/bf16_few_neon.h"

#define BFMMLA                                                                                                         \
    .rows = ROWS, .columns = COLUMNS, .unit = GROUP, .halves = true, .pack_a = pack_a, .pack_b = pack_b, .tile = tile, \
    .few_tokens = ROWS, .pack_few = pack_few, .few = few, .few_panels = few_panels

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

/* bf16 products over vectors of 16 pairs, one pair of neighbouring k for each of 16 columns of b. The instruction
   multiplies them by a pair of a row of a and adds the products to 16 sums. A panel of a is 12 rows and a panel of b is
   32 columns, so the registers hold 24 vectors of sums, two of b and one of a. The file that includes this defines

       sums, pairs                              16 floats, 16 pairs of bf16
       sums_zero(), sums_load(), sums_store()   of 16 floats
       pairs_load(), pairs_all()                16 pairs; one pair in all places
       dot_pairs(sum, x, y)                     the instruction

   kernels_bf16_avx512.c defines them by instructions, kernels_bf16_emulated.c in C. */
#ifndef CARRY_OPS_KERNELS_BF16_TILE_AVX512_H
#define CARRY_OPS_KERNELS_BF16_TILE_AVX512_H

#include "ops/kernels/bf16_pack.h"

#define VECTOR_ROWS 12
#define VECTOR_COLUMNS 32

#if defined(__clang__)
#define VECTOR_UNROLL _Pragma("clang loop unroll(full)")
#else
#define VECTOR_UNROLL _Pragma("GCC unroll 16")
#endif

static void vector_pack_a(uint16_t *to, const uint16_t *from, ptrdiff_t row, bool across, int64_t lines, int64_t k) {
    bf16_pack(2, VECTOR_ROWS, 2, to, from, row, across, lines, k);
}

static void vector_pack_b(uint16_t *to, const uint16_t *from, ptrdiff_t row, bool across, int64_t lines, int64_t k) {
    bf16_pack(2, VECTOR_COLUMNS, 2, to, from, row, across, lines, k);
}

BF16_INLINE void vector_multiply(const int rows, int64_t k, const uint16_t *a, const uint16_t *b, const float *base,
                                 ptrdiff_t base_row, float *c, ptrdiff_t c_row) {
    sums sum[VECTOR_ROWS][2];
    VECTOR_UNROLL
    for (int r = 0; r < rows; r++) {
        sum[r][0] = base != NULL ? sums_load(base + r * base_row) : sums_zero();
        sum[r][1] = base != NULL ? sums_load(base + r * base_row + 16) : sums_zero();
    }
    for (int64_t l = 0; l < k; l += 2) {
        pairs left = pairs_load(b);
        pairs right = pairs_load(b + 32);
        VECTOR_UNROLL
        for (int r = 0; r < rows; r++) {
            pairs x = pairs_all(a + 2 * r);
            sum[r][0] = dot_pairs(sum[r][0], x, left);
            sum[r][1] = dot_pairs(sum[r][1], x, right);
        }
        a += 2 * VECTOR_ROWS;
        b += 2 * VECTOR_COLUMNS;
    }
    VECTOR_UNROLL
    for (int r = 0; r < rows; r++) {
        sums_store(c + r * c_row, sum[r][0]);
        sums_store(c + r * c_row + 16, sum[r][1]);
    }
}

static void vector_place(int64_t k, const uint16_t *a, const uint16_t *b, const float *base, ptrdiff_t base_row,
                         float *c, ptrdiff_t c_row, int64_t rows) {
    if (rows <= 4) {
        vector_multiply(4, k, a, b, base, base_row, c, c_row);
    } else if (rows <= 8) {
        vector_multiply(8, k, a, b, base, base_row, c, c_row);
    } else {
        vector_multiply(VECTOR_ROWS, k, a, b, base, base_row, c, c_row);
    }
}

static void vector_tile(const carry_bf16_tile *t) {
    float beside[VECTOR_ROWS * VECTOR_COLUMNS] = {0};
    bf16_panels(t, VECTOR_ROWS, VECTOR_COLUMNS, beside, vector_place);
}

#define VECTOR_BF16                                                                                              \
    .rows = VECTOR_ROWS, .columns = VECTOR_COLUMNS, .unit = 2, .pack_a = vector_pack_a, .pack_b = vector_pack_b, \
    .tile = vector_tile

#endif

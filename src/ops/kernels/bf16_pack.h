/* Fills panels (bf16.h), with constant groups and lines. A file per instruction set wraps these functions. */
#ifndef CARRY_OPS_KERNELS_BF16_PACK_H
#define CARRY_OPS_KERNELS_BF16_PACK_H

#include <string.h>

#include "ops/kernels/bf16.h"

#define BF16_INLINE static inline __attribute__((always_inline))

/* Packs the last group of k, of which the matrix has `have` elements. */
BF16_INLINE void bf16_last_group(const int group, const int panel, uint16_t *to, const uint16_t *from, ptrdiff_t row,
                                 bool across, int64_t lines, int64_t have) {
    memset(to, 0, (size_t)(panel * group) * sizeof *to);
    for (int64_t line = 0; line < lines; line++) {
        for (int64_t i = 0; i < have; i++) {
            to[line * group + i] = across ? from[i * row + line] : from[line * row + i];
        }
    }
}

BF16_INLINE void bf16_along(const int group, const int panel, const int64_t lines, uint16_t *to, const uint16_t *from,
                            ptrdiff_t row, int64_t groups) {
    for (int64_t g = 0; g < groups; g++) {
        uint16_t *here = to + g * panel * group;
        for (int64_t line = 0; line < lines; line++) {
            memcpy(here + line * group, from + line * row + g * group, (size_t)group * sizeof *to);
        }
        memset(here + lines * group, 0, (size_t)((panel - lines) * group) * sizeof *to);
    }
}

/* Packs two k at a time: a pair is one store of 32 bits. */
BF16_INLINE void bf16_across(const int group, const int panel, const int64_t lines, uint16_t *to, const uint16_t *from,
                             ptrdiff_t row, int64_t groups) {
    for (int64_t g = 0; g < groups; g++) {
        uint16_t *here = to + g * panel * group;
        for (int i = 0; i < group; i += 2) {
            const uint16_t *first = from + (g * group + i) * row;
            const uint16_t *second = first + row;
            for (int64_t line = 0; line < lines; line++) {
                uint32_t pair = first[line] | (uint32_t)second[line]
                                                  << 16; /* all of these processors are little-endian */
                memcpy(here + line * group + i, &pair, sizeof pair);
            }
        }
        memset(here + lines * group, 0, (size_t)((panel - lines) * group) * sizeof *to);
    }
}

/* Packs whole panels with a constant number of lines, and others with a variable one. */
BF16_INLINE void bf16_pack(const int group, const int panel, const int unit, uint16_t *to, const uint16_t *from,
                           ptrdiff_t row, bool across, int64_t lines, int64_t k) {
    const int64_t groups = k / group;
    if (lines == panel && across) {
        bf16_across(group, panel, panel, to, from, row, groups);
    } else if (lines == panel) {
        bf16_along(group, panel, panel, to, from, row, groups);
    } else if (across) {
        bf16_across(group, panel, lines, to, from, row, groups);
    } else {
        bf16_along(group, panel, lines, to, from, row, groups);
    }
    int64_t l = groups * group;
    to += l * panel;
    if (l < k) {
        bf16_last_group(group, panel, to, from + (across ? l * row : l), row, across, lines, k - l);
        to += panel * group;
        l += group;
    }
    int64_t padded = (k + unit - 1) / unit * unit;
    memset(to, 0, (size_t)((padded - l) * panel) * sizeof *to);
}

/* Sixteen pairs of neighbouring k, 32 bits each: a row of an AMX tile. */
typedef uint32_t bf16_pairs __attribute__((vector_size(64)));

/* One step of a transposition: for each pair of rows `at` and at + apart, exchanges the odd blocks of `apart` columns
   of the first row with the even blocks of the second. upper and lower: the indices that select the new rows. */
#define BF16_TURN(apart, upper, lower)                                                      \
    for (int at = 0; at < 16; at++) {                                                       \
        if ((at & (apart)) == 0) {                                                          \
            bf16_pairs above = rows[at];                                                    \
            bf16_pairs below = rows[at + (apart)];                                          \
            rows[at] = __builtin_shufflevector(above, below, BF16_INDICES upper);           \
            rows[at + (apart)] = __builtin_shufflevector(above, below, BF16_INDICES lower); \
        }                                                                                   \
    }
#define BF16_INDICES(...) __VA_ARGS__

/* Transposes 16 x 16 pairs, in four steps of 16 shuffles. */
BF16_INLINE void bf16_transpose(bf16_pairs rows[16]){
    BF16_TURN(8, (0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
              (8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
        BF16_TURN(4, (0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
                  (4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
            BF16_TURN(2, (0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
                      (2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
                BF16_TURN(1, (0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
                          (1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))}

/* Copies the part of base, or of c, that exists at the edge of c: the block at the edge is computed in a buffer that
   holds whole panels. */
BF16_INLINE void bf16_copy_rows(float *to, ptrdiff_t to_row, const float *from, ptrdiff_t from_row, int64_t rows,
                                int64_t columns) {
    for (int64_t r = 0; r < rows; r++) {
        memcpy(to + r * to_row, from + r * from_row, (size_t)columns * sizeof *to);
    }
}

/* Called for every pair of panels of a tile. If the pair's block of c has all rows and columns, it is written directly;
   a block with fewer is computed in `beside`, which holds one whole block, and copied. */
typedef void (*bf16_place)(int64_t k, const uint16_t *a, const uint16_t *b, const float *base, ptrdiff_t base_row,
                           float *c, ptrdiff_t c_row, int64_t rows);

BF16_INLINE void bf16_panels(const carry_bf16_tile *t, const int panel_rows, const int panel_columns, float *beside,
                             bf16_place place) {
    for (int64_t q = t->column_panel; q < t->column_panels_end; q++) {
        const int64_t j = q * panel_columns;
        const int64_t columns = t->n - j < panel_columns ? t->n - j : panel_columns;
        const uint16_t *b = t->b + j * t->k;
        for (int64_t p = t->row_panel; p < t->row_panels_end; p++) {
            const int64_t i = p * panel_rows;
            const int64_t rows = t->m - i < panel_rows ? t->m - i : panel_rows;
            const uint16_t *a = t->a + i * t->k;
            const float *base = t->base != NULL ? t->base + i * t->base_row + j : NULL;
            float *c = t->c + i * t->c_row + j;
            if (rows == panel_rows && columns == panel_columns) {
                place(t->k, a, b, base, t->base_row, c, t->c_row, rows);
                continue;
            }
            if (base != NULL) {
                bf16_copy_rows(beside, panel_columns, base, t->base_row, rows, columns);
            }
            place(t->k, a, b, base != NULL ? beside : NULL, panel_columns, beside, panel_columns, rows);
            bf16_copy_rows(c, t->c_row, beside, panel_columns, rows, columns);
        }
    }
}

#endif

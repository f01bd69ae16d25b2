/* The interface of a set of kernels for packed products: the layout of panels, functions that fill them, and the
   loop over them. ops/product/packed.c cuts matrices into blocks of panels and gives them to threads. */
#ifndef CARRY_OPS_KERNELS_PACKED_H
#define CARRY_OPS_KERNELS_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* c = a b + base for a range of panels of a and of b, over one block of k. Panel p of a holds the rows from
   carry_packed_row(p) to the next panel's first row, and panels are stride * k floats apart. Panel q of b holds the
   columns from q * columns on, in columns * k floats. c and base point to the first row and column of the m x n
   block. */
typedef struct carry_packed_tile {
    int64_t m, n, k;
    int64_t row_panels; /* panels of all m rows */
    int64_t row_panel, row_panels_end, column_panel, column_panels_end;
    const float *a, *b, *base;
    float *c;
    ptrdiff_t base_row, c_row;
} carry_packed_tile;

/* Rows are spread evenly over panels: with at most 14 rows per panel, 128 rows become panels of 13 and 12, rather
   than of 14 and a last one of two, whose few sums would wait for each other. */
static inline int64_t carry_packed_row(int64_t panel, int64_t m, int64_t panels) {
    return panel * m / panels;
}

typedef struct carry_packed {
    int rows, columns; /* largest number of rows of a panel of a, and of columns of one of b */
    int stride;        /* step of k in a panel of a, in floats */
    int depth;         /* number of k in a block */
    void (*pack_a)(float *to, const float *a, ptrdiff_t row, bool transposed, int64_t rows, int64_t k);
    void (*pack_b)(float *to, const float *b, ptrdiff_t row, bool transposed, int64_t columns, int64_t k);
    /* Packs a panel from bf16 or f16 lines and widens it. k is contiguous, or with `across` the lines are. In the last
       vector of columns of b, lanes after the last column are set to zeros or to copies of a line. */
    void (*pack_half)(float *to, ptrdiff_t stride, const uint16_t *from, ptrdiff_t row, bool across, int64_t lines,
                      int64_t k, carry_dtype type);
    void (*tile)(const carry_packed_tile *tile);
} carry_packed;

#endif

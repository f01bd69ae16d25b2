/* The interface of a set of kernels for packed products: how panels are laid out, how they are filled, and the loop
   over them. ops/product/packed.c cuts matrices into blocks of panels and hands them to threads. */
#ifndef CARRY_OPS_KERNELS_PACKED_H
#define CARRY_OPS_KERNELS_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* c = a b + base for panels row_panel.. of a and column_panel.. of b, one block of k. Panel p of a holds the rows from
   carry_packed_row(p) to the next one's, stride * k floats from panel to panel; panel q of b the columns from
   q * columns on, columns * k floats each. c and base point to the first row and column of the m x n block. */
typedef struct carry_packed_tile {
    int64_t m, n, k;
    int64_t row_panels; /* of all m rows */
    int64_t row_panel, row_panels_end, column_panel, column_panels_end;
    const float *a, *b, *base;
    float *c;
    ptrdiff_t base_row, c_row;
} carry_packed_tile;

/* Rows spread evenly over panels: 13 and 12 of 128 where 14 fit, rather than 14 and a last panel of two, whose few
   sums would wait for each other. */
static inline int64_t carry_packed_row(int64_t panel, int64_t m, int64_t panels) {
    return panel * m / panels;
}

typedef struct carry_packed {
    int rows, columns; /* most of a panel of a, and of one of b */
    int stride;        /* floats from one k to the next in a panel of a */
    int depth;         /* k of a block */
    void (*pack_a)(float *to, const float *a, ptrdiff_t row, bool transposed, int64_t rows, int64_t k);
    void (*pack_b)(float *to, const float *b, ptrdiff_t row, bool transposed, int64_t columns, int64_t k);
    /* A panel from lines of bf16 or f16, widened: k is contiguous in them, or across: lines are. Lanes of b after the
       last column hold some numbers. */
    void (*pack_half)(float *to, ptrdiff_t stride, const uint16_t *from, ptrdiff_t row, bool across, int64_t lines,
                      int64_t k, carry_dtype type);
    void (*tile)(const carry_packed_tile *tile);
} carry_packed;

#endif

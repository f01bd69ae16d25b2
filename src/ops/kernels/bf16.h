/* Products of bf16 matrices by the instructions that processors have for them: ARM's BFMMLA, AVX512_BF16's VDPBF16PS,
   AMX's TDPBF16PS. kernels_bf16_table.c is the only list; ops/product/bf16.c cuts matrices into panels and hands them
   to threads.

       c[i,j] = base[i,j] + sum_l a[i,l] b[l,j]        a, b: bf16; base, c: f32

   Rounding. A product of two bf16 numbers has 16 bits and is exact in f32. The sum is one chain over k that begins with
   base, whatever the tile or the thread: the number of threads changes no bit. The chain adds

       bfmmla       two products added together, then added to the sum; both additions round to odd (below 2^-23)
       avx512-bf16  the odd, then the even product of a pair, each a fused multiply-add to nearest (2^-24)
       amx          32 k at a time: even and odd products in two chains of fused multiply-adds, added together, then
                    added to the sum, all to nearest

   so that |c - exact| <= (k + 2) 2^-23 (|base| + sum_l |a[i,l] b[l,j]|) for every entry. All of them treat subnormal
   operands and results as zero.

   Panels. A panel holds `lines` lines: rows of a, or columns of b. k is cut into groups of `group` elements; a group
   holds these elements of every line, line after line: element (line, l) is at (l / group * lines + line) * group +
   l % group. Elements beyond the matrix are zeros; k is padded to a multiple of `unit`.

   Terms. An f32 number x is the sum of three bf16 numbers: x0 is x rounded to bf16, x1 is x - x0 rounded to bf16, and
   x2 is x - x0 - x1, which has 8 bits and is exact (numbers below 2^-126 count as zero). So a product of f32 matrices
   is a sum of products of bf16 matrices,

       a b = sum_{i+j<=order} a_i b_j + rest,    |rest| <= 3 * 2^(-8 (order + 1)) |a| |b|

   in which an operand whose numbers are all exact in bf16 is one term. Order 2 has the accuracy of f32: it takes three
   products if one operand is one term, and six if both have three. The products of small terms are added first. */
#ifndef CARRY_OPS_KERNELS_BF16_H
#define CARRY_OPS_KERNELS_BF16_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/kernels/kernels.h"

/* Multiplies panels row_panel..row_panels_end-1 of a by panels column_panel..column_panels_end-1 of b. Panel p of a
   starts at a + p * rows * k, panel q of b at b + q * columns * k, where k is a multiple of unit. c and base point
   to row 0 and column 0 of the m x n block; base NULL is zero, and base may be c. */
typedef struct carry_bf16_tile {
    int64_t m, n, k;
    int64_t row_panel, row_panels_end, column_panel, column_panels_end;
    const uint16_t *a, *b;
    const float *base;
    float *c;
    ptrdiff_t base_row, c_row;
    /* For an entry that writes whole panels: where the final sums go. NULL: they stay in c. */
    float *out;
    ptrdiff_t out_row;
    /* For an entry with `halves`: c in bf16, to which sums are rounded to nearest. base is then NULL, and c is only
       memory for sums between blocks of k. NULL: the result is f32, in c. */
    uint16_t *half;
    ptrdiff_t half_row;
    bool half_adds; /* sums start from the values in half */
} carry_bf16_tile;

/* Fills one panel from `lines` lines of k elements; `lines` is at most the number that a panel holds. Lines are
   `row` elements apart and k is contiguous; with `across`, the k are `row` elements apart and lines are contiguous. */
typedef void (*carry_bf16_pack)(uint16_t *to, const uint16_t *from, ptrdiff_t row, bool across, int64_t lines,
                                int64_t k);

/* y[t, r] = sum_l x[t, l] w[r, l] for a few tokens. w is not packed, and its rows are w_row elements apart; x was
   packed by pack_few. */
typedef struct carry_bf16_few {
    int64_t rows, tokens, k;
    const uint16_t *x, *w;
    float *y;
    ptrdiff_t w_row, y_row;
} carry_bf16_few;

/* A triangle of f32 numbers, in blocks of 16. In a lower one, line i has elements k up to the end of its block of
   16; in an upper one, from the start of its block on. All other elements are not read and count as zero. */
typedef enum carry_bf16_triangle { CARRY_BF16_SQUARE, CARRY_BF16_LOWER, CARRY_BF16_UPPER } carry_bf16_triangle;

/* Splits f32 numbers into terms, stored in panels: term i of panel p starts at to + i * next + p * (lines of a
   panel) * k, where k is rounded up to a multiple of unit. Element l of a line is multiplied by by[l]; NULL: ones. */
typedef struct carry_bf16_split {
    int64_t lines, k;
    const float *from;
    ptrdiff_t row;
    bool across; /* as in carry_bf16_pack */
    carry_bf16_triangle triangle;
    const float *by;
    int terms; /* 2 or 3 */
    uint16_t *to;
    ptrdiff_t next;
} carry_bf16_split;

/* c = by (a b) columns_by + base_by base, as in carry_product, with operands split into terms; k is a multiple of
   unit. */
typedef struct carry_bf16_terms {
    int64_t m, n, k;
    const uint16_t *a, *b;
    ptrdiff_t a_next, b_next; /* from term to term */
    int a_terms, b_terms, order;
    carry_bf16_triangle triangle; /* of a */
    const float *by, *columns_by; /* factors of rows and columns of the product; NULL: ones */
    const float *base, *base_by;
    float *c; /* may be base */
    ptrdiff_t base_row, c_row;
    carry_rows_ahead ahead;
} carry_bf16_terms;

typedef struct carry_bf16 {
    const char *name, *about;
    const char *(*missing)(void); /* why it cannot run on this processor; NULL: it can */
    /* The same code with the instruction written in C: for tests, never chosen. */
    bool emulated;
    int rows, columns, unit;
    /* tile writes whole panels: c must have memory for m and n rounded up to multiples of `rows` and `columns`. */
    bool whole;
    bool halves; /* tile can write a bf16 c directly */
    /* For an entry that writes whole panels: k of a block. A tile with a larger k stores sums in c between blocks. */
    int64_t depth;
    carry_bf16_pack pack_a, pack_b;
    void (*tile)(const carry_bf16_tile *tile);
    /* `few` computes products of at most few_tokens tokens. few_tokens 0: it is not implemented, since dot products of
       widened numbers are as fast (carry_half_dots). pack_few writes at most few_tokens * (k + unit) elements. */
    int few_tokens;
    void (*pack_few)(uint16_t *to, const uint16_t *x, ptrdiff_t row, int64_t tokens, int64_t k);
    void (*few)(const carry_bf16_few *few);
    /* The same sums for more tokens, from panels of the weight made by pack_b and panels of x made by pack_a: w is
       the first panel, k a multiple of 8, and w_row is not used. The sums of 5 to few_tokens tokens have the same
       bits as those of `few`. NULL: not implemented. */
    void (*few_panels)(const carry_bf16_few *few);
    /* NULL: f32 products by terms would not pay. split_a and split_b return false if a number is not finite, or too
       large to be rounded to bf16; their output is then invalid. */
    bool (*split_a)(const carry_bf16_split *split);
    bool (*split_b)(const carry_bf16_split *split);
    void (*terms)(const carry_bf16_terms *terms);
} carry_bf16;

/* Entries from slow to fast, emulated ones first; NULL past the end. */
const carry_bf16 *carry_bf16_at(int index);
const carry_bf16 *carry_bf16_named(const char *name);
/* The last entry that this processor can run. NULL: no entry can run, and bf16 is widened to f32. */
const carry_bf16 *carry_bf16_best(void);
/* Writes to line why an entry faster than `used` is not used, as "NAME: REASON"; "" if `used` is the fastest. used
   may be NULL. */
const char *carry_bf16_passed_over(char *line, size_t size, const carry_bf16 *used);

#endif

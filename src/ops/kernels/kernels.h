/* The table of CPU kernels: one const struct per instruction set, all with the same meaning.

   "plain" is the specification in portable C. The others are one body (kernels_vector.h) compiled for other vector
   lengths; kernels_table.c is the only list. Kernels work on raw arrays, allocate nothing, check nothing and run on
   one thread: callers above have checked shapes and split the work. */
#ifndef CARRY_OPS_KERNELS_H
#define CARRY_OPS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/tensor.h"
#include "ops/kernels/half_rows.h"
#include "ops/kernels/packed.h"
#include "ops/kernels/rows.h"

/* c[i] = a[i] b[i] + base[i] for i = 0..count-1, in this order; base NULL is zero, and base may be c. Item i of x
   starts at x + i*x_next; its rows are x_row elements apart. a is m x k, or k x m when transposed; b is k x n, or n
   x k when transposed. c[i] overlaps neither a[i] nor b[i]. But since items are done in order, b[i] may be c[i-1];
   then one call is a whole dense recurrence.

   Row r of a b is multiplied by `by[r]` and row r of base by `base_by[r]`, where NULL means ones: c = by (a b) +
   base_by base. Every item has the same factors. Only kernels->product supports them.

   `ahead` names rows of memory that the caller will read or write soon. They are prefetched into the second-level
   cache a row or two at a time while the product runs, since all at once would delay each other. Kernels may ignore
   this hint. */
typedef struct carry_rows_ahead {
    const char *at;     /* start of the first row */
    ptrdiff_t row;      /* bytes from row to row */
    int64_t rows, size; /* size: bytes of each row */
} carry_rows_ahead;

typedef struct carry_product {
    int64_t m, n, k, count;
    const float *a, *b, *base;
    float *c;
    ptrdiff_t a_row, b_row, base_row, c_row;
    ptrdiff_t a_next, b_next, base_next, c_next;
    bool a_transposed, b_transposed;
    const float *by, *base_by;
    carry_rows_ahead ahead;
} carry_product;

typedef void (*carry_product_function)(const carry_product *product);

/* Diagonal steps: h[t] = a[t] * h[t-1] + b[t] for t < steps, each of rows x width, row r scaled by a[t][r]. Step t
   of x starts at x + t*x_step elements (x_step may be negative). b and h have the types that the fields give; h may
   be b, or NULL if only the state is wanted. state is h[-1] on entry and h[steps-1] on return. It is f32 and packed,
   so that nothing is lost between calls when h is stored in 16 bits. */
typedef struct carry_diagonal_scan {
    int64_t steps, rows, width;
    const float *a;
    const void *b;
    void *h;
    float *state;
    ptrdiff_t a_step, b_step, h_step;
    carry_dtype b_type, h_type;
} carry_diagonal_scan;

/* y[i] = base[i] + a[i] * x[i] for i < count, each of rows x width, row r scaled by a[i][r]; base may be y.
   Items are done in order, so x[i] may be y[i-1]. */
typedef struct carry_diagonal_apply {
    int64_t count, rows, width;
    const float *a, *x, *base;
    float *y;
    ptrdiff_t a_next, x_next, base_next, y_next;
} carry_diagonal_apply;

/* One token of the delta rule on a state of rows x columns (rows `stride` apart), in place:
       u = beta (v - sum_i faded_k[i] S[i]);   S[i] = decay[i] S[i] + k[i] u;   o = sum_i q[i] S[i]
   faded_k[i] is decay[i] k[i]. u is written as well unless it is NULL. */
typedef struct carry_delta_token {
    int64_t rows, columns;
    float *S;
    ptrdiff_t stride;
    const float *q, *k, *faded_k, *decay, *v;
    float *o, *u;
    float beta;
} carry_delta_token;

/* y[t, r] = sum_l w[r, l] x[t, l] for a 16-bit weight (type: bf16 or f16), widened as it is read. Sums are f32, and
   a row's sum does not depend on the other rows and tokens. */
typedef struct carry_half_dots {
    int64_t rows, tokens, k;
    const uint16_t *w;
    const float *x;
    float *y;
    ptrdiff_t w_row, x_row, y_row;
    carry_dtype type;
} carry_half_dots;

/* c[i, j] = sum_l a[i, l] b[j, l], or added to c. Sums are in float64 and rounded to f32 at the end. An element does
   not depend on the other rows and columns. */
typedef struct carry_exact_dots {
    int64_t m, n, k;
    const float *a, *b;
    float *c;
    ptrdiff_t a_row, b_row, c_row;
    bool accumulate;
} carry_exact_dots;

typedef struct carry_kernels {
    const char *name, *about;
    bool (*usable)(void);
    carry_product_function product;
    const carry_packed *packed; /* for large products; NULL: not implemented */
    int columns; /* columns of a tile of product: b in panels of this many columns is read without gaps */
    void (*diagonal_scan)(const carry_diagonal_scan *scan);
    void (*diagonal_apply)(const carry_diagonal_apply *apply);
    void (*delta_token)(const carry_delta_token *token);
    void (*half_dots)(const carry_half_dots *dots);
    void (*exact_dots)(const carry_exact_dots *dots);
    void (*f32_from_bf16)(float *to, const uint16_t *from, int64_t count);
    void (*f32_from_f16)(float *to, const uint16_t *from, int64_t count);
    void (*bf16_from_f32)(uint16_t *to, const float *from, int64_t count);
    void (*f16_from_f32)(uint16_t *to, const float *from, int64_t count);
    const carry_rows *rows;
    const carry_half_rows *half_rows; /* NULL: rows of bf16 are widened, processed by `rows` and rounded */
    /* to[j*to_row + i] = from[i*from_row + j] for i < rows, j < columns; the matrices do not overlap. */
    void (*transpose)(float *to, ptrdiff_t to_row, const float *from, ptrdiff_t from_row, int64_t rows,
                      int64_t columns);
} carry_kernels;

/* Entries from slow to fast; NULL past the end. */
const carry_kernels *carry_kernels_at(int index);

/* The set that this context uses: the requested one, or the last usable one. */
carry_status carry_kernels_of(carry_ctx *ctx, const carry_kernels **kernels);

/* A product through OpenBLAS, on one thread; NULL if it was not built in. Same meaning as carry_kernels.product. */
extern const carry_product_function carry_blas_product;
/* OpenBLAS's description of itself, or NULL. Also limits it to the calling thread, since Carry splits the work. */
const char *carry_blas_name(void);
/* The processor type that OpenBLAS has detected; NULL if it does not report one, or was not built in. */
const char *carry_blas_core(void);
/* True if OpenBLAS's core type `core` uses narrower instructions than the kernel set `kernels`; `line` is then set to a
   warning. */
bool carry_blas_misfit(char *line, size_t size, const char *core, const char *kernels);

#endif

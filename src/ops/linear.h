/* Products of rows of tokens with a weight matrix, in any types, for callers that have checked the shapes. */
#ifndef CARRY_OPS_LINEAR_H
#define CARRY_OPS_LINEAR_H

#include "ops/kernels/kernels.h"

/* A packed matrix with `row` elements from row to row. */
typedef struct carry_matrix {
    const void *data;
    carry_dtype dtype;
    int64_t row;
    bool transposed;
    /* If b has dtype CARRY_QUANTISED: stride[1] of its tensor. Such a b is transposed, and row counts bytes. */
    int64_t format;
} carry_matrix;

/* A weight [out, in] as the second operand of x W^T. */
carry_matrix carry_weight_transposed(const carry_tensor *W);

/* c = a b, or added to c: m x n, with sums over k in f32, rounded to c's type once. If a and b are bf16 and the
   processor has instructions for such products, those are used (kernels/bf16.h says how they round). */
typedef struct carry_mixed_product {
    int64_t m, n, k;
    carry_matrix a, b;
    void *c;
    carry_dtype c_dtype;
    int64_t c_row;
    bool accumulate;
    /* For consecutive products with the same a, else NULL. On entry, true if the panels of a are still in the context's
       buffer; the call sets it for the next product. */
    bool *a_packed;
} carry_mixed_product;

struct carry_bf16;

void carry_mixed_products(carry_ctx *ctx, const carry_kernels *kernels, const carry_mixed_product *product);
/* The same with this entry of kernels/bf16.h; NULL: operands are always widened to f32. */
void carry_mixed_products_by(carry_ctx *ctx, const carry_kernels *kernels, const struct carry_bf16 *bf16,
                             const carry_mixed_product *product);

/* carry_cpu_linear. *x_packed is like a_packed above; it must be false before the first of several maps of x. */
carry_status carry_linear_map(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, bool accumulate,
                              bool *x_packed);

/* From now on, linear maps of this context work on blocks of CARRY_FIXED_ROWS rows, and the last block is padded
   with zeros in `memory`, which has carry_fixed_rows_bytes of the widest map: the sums of a row then do not depend
   on the other rows. NULL and 0 switch this off, which is faster. */
#define CARRY_FIXED_ROWS 8
size_t carry_fixed_rows_bytes(int64_t in, int64_t out);
void carry_fixed_rows_set(carry_ctx *ctx, void *memory, size_t bytes);
carry_status carry_fixed_rows_map(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, bool accumulate);

/* Checks W [rows, in] like carry_expect_weight; it may also be quantised, in tiles on a GPU (quantised/tiles.h). */
carry_status carry_expect_matrix(carry_ctx *ctx, const char *name, const carry_tensor *W, int64_t rows,
                                 const carry_tensor *x);
/* Checks x [T, in], W [out, in] and y [T, out], which messages call y_name, for carry_linear. */
carry_status carry_expect_linear(carry_ctx *ctx, const char *y_name, const carry_tensor *y, const carry_tensor *x,
                                 const carry_tensor *W);

#endif

/* Products of two matrices of any types on a GPU, for operators whose operands may differ in type. */
#ifndef CARRY_OPS_LINEAR_CUH
#define CARRY_OPS_LINEAR_CUH

#include "ops/cuda/nn.cuh"

struct matrix {
    const void *data;
    carry_dtype type;
    int64_t row; /* elements from row to row */
    bool transposed;
};

/* c = a b, m x n over k, or added to c: rounded to c's type once, rows of n elements. Through the table's product where
   a and b are of one type and c is f32 or of that type; else by a plain kernel, in f32. */
carry_status multiply(carry_ctx *ctx, int device, void *c, carry_dtype c_type, int64_t m, int64_t n, int64_t k,
                      matrix a, matrix b, bool accumulate);
/* The same with rows of c that may be further apart than n, added to base (NULL: to nothing): c, or as many packed rows
   as c then has. */
carry_status multiply_into(carry_ctx *ctx, int device, matrix c, int64_t m, int64_t n, int64_t k, matrix a, matrix b,
                           const void *base);

#endif

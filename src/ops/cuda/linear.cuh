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

/* c = a b, m x n over k, or added to c. Results are rounded to c's type once; c has packed rows of n elements. Uses
   carry_cuda_product if a and b have one type and c is f32 or of that type, else a plain kernel in f32. */
carry_status multiply(carry_ctx *ctx, int device, void *c, carry_dtype c_type, int64_t m, int64_t n, int64_t k,
                      matrix a, matrix b, bool accumulate);
/* The same for a c whose row stride may exceed n, with base added unless it is NULL. base is c itself, or a matrix
   of the same size; then both are packed. */
carry_status multiply_into(carry_ctx *ctx, int device, matrix c, int64_t m, int64_t n, int64_t k, matrix a, matrix b,
                           const void *base);

#endif

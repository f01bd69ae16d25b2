/* Products over the context's threads, for callers that have checked their shapes. */
#ifndef CARRY_OPS_MATMUL_H
#define CARRY_OPS_MATMUL_H

#include "ops/kernels/kernels.h"

/* Until this context's rates are known: products from this size on in all three directions go through OpenBLAS, since
   it measured faster there (docs/results/matmul.md). */
#define CARRY_BLAS_FROM 256

/* Like kernels->product, but the items are independent of each other and are spread over threads. */
void carry_products(carry_ctx *ctx, const carry_kernels *kernels, const carry_product *product);

/* Which function carry_products would use. */
carry_product_function carry_products_choice(carry_ctx *ctx, const carry_kernels *kernels,
                                             const carry_product *product);
/* The same with a given function, whatever the size. */
void carry_products_by(carry_ctx *ctx, carry_product_function function, const carry_product *product);

#endif

/* Products over the context's threads, for callers that have checked their shapes. */
#ifndef CARRY_OPS_MATMUL_H
#define CARRY_OPS_MATMUL_H

#include "ops/kernels/kernels.h"

/* Like kernels->product, but the items are independent of each other and are spread over threads. */
void carry_products(carry_ctx *ctx, const carry_kernels *kernels, const carry_product *product);

/* Returns the function that carry_products would use: kernels->product, with packed panels where they pay, or
   OpenBLAS's if all sides have at least the size that this machine's wisdom gives. */
carry_product_function carry_products_choice(carry_ctx *ctx, const carry_kernels *kernels,
                                             const carry_product *product);
/* Like carry_products, with a given function for all sizes. If it is kernels->product of a set, packed panels are used
   where they pay. */
void carry_products_by(carry_ctx *ctx, carry_product_function function, const carry_product *product);

#endif

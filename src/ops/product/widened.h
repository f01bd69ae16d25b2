/* Products with operands of 16 bits by the kernels for f32. */
#ifndef CARRY_OPS_PRODUCT_WIDENED_H
#define CARRY_OPS_PRODUCT_WIDENED_H

#include "carry/context.h"
#include "ops/linear.h"

/* c = a b over the context's threads, or on the calling thread within a task of its pool; kernels->packed is not NULL.
   Returns false, and does nothing, if memory runs out, k is too long for the buffer, or the kernels' panels or blocks
   of k are too large (widened.c). */
bool carry_widened_run(carry_ctx *ctx, const carry_kernels *kernels, const carry_mixed_product *product);

#endif

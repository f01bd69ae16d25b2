/* Products with a quantised weight on the CPU.

   A few tokens: activations are rounded to 8-bit integers in blocks of 32 with one scale each, and multiplied with the
   integers of the weight's blocks, which are not decoded (kernels/quant.h). Many tokens: integers again where that is
   faster (many.h); else rows of the weight are decoded and multiplied like other weights. They are decoded to bf16 if
   the activations are bf16 and the processor has instructions for it, else to f32. */
#ifndef CARRY_OPS_QUANTISED_PRODUCTS_H
#define CARRY_OPS_QUANTISED_PRODUCTS_H

#include "carry/nn.h"
#include "ops/linear.h"

/* y = x W^T, or added to y. Returns false, and does nothing, if there is no kernel for the format here, there are
   too many tokens, or memory runs out. */
bool carry_quantised_few(carry_ctx *ctx, const carry_kernels *kernels, carry_tensor y, carry_tensor x, carry_tensor W,
                         bool accumulate);
/* The same for several quantised weights with one x. */
bool carry_quantised_few_merged(carry_ctx *ctx, const carry_kernels *kernels, const carry_merged_linear_args *args);

/* product->b is a quantised weight, transposed. */
void carry_quantised_products(carry_ctx *ctx, const carry_kernels *kernels, const carry_mixed_product *product);

#endif

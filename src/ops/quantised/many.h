/* Products of many 16-bit tokens with quantised weights by integers (kernels/quant_many.h): activations are rounded to
   8 bits in blocks of 32, as for a few tokens (products.h). They are used where they are faster than products of
   decoded rows: by the machine's remembered rates, or else where the processor has no instructions for bf16. Products
   of f32 activations are always of decoded rows. */
#ifndef CARRY_OPS_QUANTISED_MANY_H
#define CARRY_OPS_QUANTISED_MANY_H

#include "carry/nn.h"
#include "ops/kernels/kernels.h"

/* y = x W^T, or added to y. Returns false, and does nothing, if there is no kernel for the format here, another way is
   faster for this number of tokens, or memory runs out. */
bool carry_quantised_many(carry_ctx *ctx, const carry_kernels *kernels, carry_tensor y, carry_tensor x, carry_tensor W,
                          bool accumulate);
/* The same for several quantised weights with one x. */
bool carry_quantised_many_merged(carry_ctx *ctx, const carry_kernels *kernels, const carry_merged_linear_args *args);

/* One map on this thread alone, whatever the rates are, to measure it. Returns false if the kernels are missing. */
bool carry_quantised_many_alone(carry_ctx *ctx, const carry_kernels *kernels, carry_tensor y, carry_tensor x,
                                carry_tensor W);

#endif

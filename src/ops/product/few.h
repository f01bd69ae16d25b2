/* Products of text generation: a few tokens times a weight, which should run at the speed of reading the weight. */
#ifndef CARRY_OPS_FEW_H
#define CARRY_OPS_FEW_H

#include "carry/nn.h"
#include "carry/tensor.h"
#include "ops/kernels/kernels.h"

/* y = x W^T, or added to y, for a 16-bit W; the caller has checked the arguments. Returns false, and does nothing,
   for numbers of tokens for which other products are faster, or without memory. A token's bits depend on the number of
   tokens, not on the number of threads. */
bool carry_few_tokens(carry_ctx *ctx, const carry_kernels *kernels, carry_tensor y, carry_tensor x, carry_tensor W,
                      bool accumulate);
/* The same for several weights with one x. */
bool carry_few_tokens_merged(carry_ctx *ctx, const carry_kernels *kernels, const carry_merged_linear_args *args);

#endif

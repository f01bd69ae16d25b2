/* Generating: a few tokens times a weight, which should run at the speed of reading the weight. */
#ifndef CARRY_OPS_FEW_H
#define CARRY_OPS_FEW_H

#include "carry/nn.h"
#include "carry/tensor.h"
#include "ops/kernels/kernels.h"

/* y = x W^T, or added to y, for W of 16 bits, checked by the caller. False, and nothing was done, when there are too
   many tokens for it to pay, or no memory. A token's bits depend on how many tokens there are, not on threads. */
bool carry_few_tokens(carry_ctx *ctx, const carry_kernels *kernels, carry_tensor y, carry_tensor x, carry_tensor W,
                      bool accumulate);
/* The same for several weights of one x. */
bool carry_few_tokens_merged(carry_ctx *ctx, const carry_kernels *kernels, const carry_merged_linear_args *args);

#endif

/* Products of bf16 matrices over the context's threads, by the instructions of kernels/bf16.h. */
#ifndef CARRY_OPS_BF16_H
#define CARRY_OPS_BF16_H

#include "ops/kernels/bf16.h"
#include "ops/linear.h"

/* True if a is bf16 and b is bf16, or quantised and transposed, the product is large enough that packing pays, and k is
   not too long for a 16-bit c. False if by is NULL. */
bool carry_bf16_pays(const carry_bf16 *by, const carry_mixed_product *product);

/* Multiplies operands of any size (k at least 1): a is bf16; b is bf16, or quantised and transposed, and then decoded
   where it is packed. The bits are the same for every number of threads. A task of the context's pool may call it; then
   it runs on that thread. Returns false, and does nothing, if the buffer for panels cannot be allocated or is too small
   for this k. */
bool carry_bf16_run(carry_ctx *ctx, const carry_kernels *kernels, const carry_bf16 *by,
                    const carry_mixed_product *product);

/* The same on this thread alone. */
bool carry_bf16_run_alone(carry_ctx *ctx, const carry_kernels *kernels, const carry_bf16 *by,
                          const carry_mixed_product *product);

/* The kernels with which this context multiplies bf16 matrices. NULL: bf16 is widened to f32, because the processor
   has no instructions for bf16, the chosen kernels do not use them, or this machine's wisdom says that widening is
   faster. */
const carry_bf16 *carry_bf16_of(carry_ctx *ctx);

#endif

/* Products of bf16 matrices over the context's threads, by the instructions of kernels/bf16.h. */
#ifndef CARRY_OPS_BF16_H
#define CARRY_OPS_BF16_H

#include "ops/kernels/bf16.h"
#include "ops/linear.h"

/* Does this product go through `by`? Both operands are bf16, and it is large enough that packing pays. False when by is
   NULL. */
bool carry_bf16_pays(const carry_bf16 *by, const carry_mixed_product *product);

/* The product of bf16 operands, whatever its size (k at least 1); the same bits for every number of threads. May be
   called by a task of the context's pool, and then stays on its thread. False when there is
   no memory to pack into, and nothing was done. */
bool carry_bf16_run(carry_ctx *ctx, const carry_kernels *kernels, const carry_bf16 *by,
                    const carry_mixed_product *product);

/* The same on this thread alone. */
bool carry_bf16_run_alone(carry_ctx *ctx, const carry_kernels *kernels, const carry_bf16 *by,
                          const carry_mixed_product *product);

/* The kernels with which this context multiplies bf16 matrices; NULL: they are widened to f32, since the processor has
   no instructions for bf16, kernels without them were chosen, or the wisdom of this machine says that widening is
   faster. */
const carry_bf16 *carry_bf16_of(carry_ctx *ctx);

#endif

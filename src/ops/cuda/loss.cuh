/* Cross entropy of a linear layer by logits in f16, for training in 16 bits. f16 has three more bits than bf16 and half
   the bytes of f32: a logit of up to 16 is rounded by at most 1/256, which changes its exponential by at most 0.4 %,
   about as much as rounding the gradient to bf16. bf16 inputs and weights are converted to f16 without loss, except for
   numbers beyond 65504, which give a loss that is not finite, and numbers below 6e-5, which are rounded to multiples of
   6e-8. */
#ifndef CARRY_OPS_LOSS_CUH
#define CARRY_OPS_LOSS_CUH

#include "ops/cuda/nn.cuh"

struct half_loss {
    float *losses;
    carry_tensor dx, dW, x, W, targets;
    float scale;
    void *workspace;
    size_t bytes;
};

/* The number of tokens whose f16 logits fit the workspace at once, or 0 if this path does not apply. */
int64_t half_loss_block(const half_loss &call);
/* Needs half_loss_block > 0; block: at most that. */
carry_status half_loss_run(carry_ctx *ctx, const half_loss &call, int64_t block);

#endif

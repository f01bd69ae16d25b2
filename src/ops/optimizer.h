/* The factors of AdamW, the same for every backend, and its checks. */
#ifndef CARRY_OPS_OPTIMIZER_H
#define CARRY_OPS_OPTIMIZER_H

#include "carry/nn.h"
#include "ops/kernels/rows.h"

carry_adam_factors carry_adam_factors_of(const carry_adamw *options, double clip);

/* Checks a running mean of gradients: f32 or bf16, with the shape and on the device of w. */
carry_status carry_expect_moment(carry_ctx *ctx, const char *name, const carry_tensor *m, const carry_tensor *w);

#endif

/* Converts ranges of f32, bf16 or f16 to f32 and back, for callers that have checked their shapes. */
#ifndef CARRY_OPS_CONVERT_H
#define CARRY_OPS_CONVERT_H

#include "carry/tensor.h"
#include "ops/kernels/kernels.h"

void carry_widen(const carry_kernels *kernels, float *to, const void *from, carry_dtype dtype, int64_t count);
void carry_narrow(const carry_kernels *kernels, void *to, const float *from, carry_dtype dtype, int64_t count);

/* Fails with a message that contains `name` unless the tensor is packed, f32, bf16 or f16, and has the shape and
   device of `like`. */
carry_status carry_expect_packed(carry_ctx *ctx, const char *name, const carry_tensor *tensor,
                                 const carry_tensor *like);

#endif

/* Fused operators of ops/video.h, implemented with the operators they consist of: for the CPU, and for a GPU without a
   fused kernel. */
#ifndef CARRY_OPS_FUSED_H
#define CARRY_OPS_FUSED_H

#include "carry/nn.h"
#include "ops/video.h"

#ifdef __cplusplus
extern "C" {
#endif

carry_status carry_affine_parts(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, carry_tensor b,
                                carry_activation activation, bool accumulate);
carry_status carry_add_layer_norm_parts(carry_ctx *ctx, carry_tensor h, carry_tensor x, carry_tensor y, carry_tensor g,
                                        carry_tensor w, carry_tensor b, float plus, float eps);

#ifdef __cplusplus
}
#endif
#endif

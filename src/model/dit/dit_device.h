/* One block of the video transformer on a GPU, in bf16 with f32 sums, over the operators of the device table:

       x += gate1 o(SelfAttn(LN(x)(1 + scale1) + shift1));  x += o'(CrossAttn(LN3(x)));
       x += gate2 down(gelu(up(LN(x)(1 + scale2) + shift2)))

   with q and k normalised over the whole width, then rotary positions; keys (after rotary) and values of this chunk go
   into rows first..first+T-1 of the cache, over whose runs self-attention goes. Keys and values of the text are made
   once, by who keeps them. What stands between two products is one pass over memory, biases and GELU are the products'
   own, and nothing is allocated, so a block can be recorded as a graph. */
#ifndef CARRY_MODEL_DIT_DEVICE_H
#define CARRY_MODEL_DIT_DEVICE_H

#include "carry/attention.h"

/* Matrices are [out, in], biases [out], bf16; what norms multiply with and add is f32, [D]. */
typedef struct carry_dit_device_weights {
    carry_tensor qkv, qkv_bias; /* [3D, D]: q, k, v one below the other */
    carry_tensor o, o_bias, norm_q, norm_k;
    carry_tensor norm3, norm3_bias;
    carry_tensor cross_q, cross_q_bias, cross_norm_q, cross_o, cross_o_bias;
    carry_tensor up, up_bias, down, down_bias;
} carry_dit_device_weights;

typedef struct carry_dit_device_args {
    carry_dit_device_weights w;
    carry_tensor x;          /* [T, D] bf16, in and out */
    carry_tensor modulation; /* [6, D] f32, with the time's part: shift1, scale1, gate1, shift2, scale2, gate2 */
    carry_tensor table;      /* [T, d/2, 2] f32: rotary positions */
    carry_tensor k, v;       /* [S, H, d] bf16, packed: the cache */
    int64_t first;
    const carry_key_run *run; /* what self-attention sees; 0 runs: all rows */
    int runs;
    carry_tensor text_k, text_v; /* [L, H, d] bf16 */
    float eps;
} carry_dit_device_args;

size_t carry_dit_device_workspace(const carry_dit_device_args *args);
/* All tensors packed and on one GPU. CARRY_EUNSUPPORTED on the CPU and where cuBLASLt is not. */
carry_status carry_dit_device_block(carry_ctx *ctx, const carry_dit_device_args *args, void *workspace,
                                    size_t workspace_bytes);

/* The specification of one token, in float64 over tensors on the CPU: what k and v become in row first + t, and x in
   row t, each [D]. Keys and values of other tokens are read from the cache as it is after the block. */
carry_status carry_dit_device_reference(carry_ctx *ctx, double *x, double *k, double *v,
                                        const carry_dit_device_args *args, int64_t t);

#endif

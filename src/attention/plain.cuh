/* Attention for every type, D and layout, and its backward pass (plain.cu). Callers have checked the arguments. */
#ifndef CARRY_ATTENTION_PLAIN_CUH
#define CARRY_ATTENTION_PLAIN_CUH

extern "C" {
#include "carry/attention.h"
}

carry_status attention_plain_forward(carry_ctx *ctx, const carry_attention_args *args); /* needs no workspace */
size_t attention_plain_backward_workspace(const carry_attention_backward_args *args);
carry_status attention_plain_backward(carry_ctx *ctx, const carry_attention_backward_args *args, void *workspace);

#endif

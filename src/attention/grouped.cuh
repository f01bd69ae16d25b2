/* Attention of language models on tensor cores (grouped.cu): causal, grouped heads, all rows of k and v. */
#ifndef CARRY_ATTENTION_GROUPED_CUH
#define CARRY_ATTENTION_GROUPED_CUH

extern "C" {
#include "attention/attention.h"
}

/* The bytes of workspace for a call in bf16 with D of 64, 128 or 256. They are also enough for calls with fewer
   queries. */
size_t attention_grouped_workspace(const carry_attention_args *args, int blocks);
/* True if attention_grouped_forward supports the call. Callers have checked the type and D, that rows can be read 16
   bytes at a time, and that sizes fit an int. */
bool attention_grouped_takes(const carry_attention_args *args, int ordinal);
carry_status attention_grouped_forward(carry_ctx *ctx, const carry_attention_args *args, int ordinal, int blocks,
                                       carry_stream *stream, void *workspace);

/* A step of generation: one token of every sequence (attention.h). */
size_t attention_grouped_step_workspace(const carry_attention_step_args *args, int blocks);
bool attention_grouped_steps(const carry_attention_step_args *args, int ordinal);
carry_status attention_grouped_step(carry_ctx *ctx, const carry_attention_step_args *args, int ordinal, int blocks,
                                    carry_stream *stream, void *workspace);

#endif

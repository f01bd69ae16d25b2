/* The method "chunk64" on Hopper GPUs: chunks of 64 tokens, bf16 or f16, K of 64, 128 or 256, V of 64, 128, 256 or 512.
   Its kernels are for K = 128 and 64 or 128 values: for K = 64 TMA fills the other half with zeros; V = 256
   and 512 are walked as two and four value heads that share the prepared tiles. K = 256 has its own walks, which use
   twice the registers for a state; its gradients are computed in two launches of 128 keys each.

   The forward pass has two kernels. prepare computes the part of every chunk and value head that does not depend on the
   state: the inverse triangle, the masked and gated scores times it, and the decays. scan walks the chunks of a
   sequence with the state in registers. The host only launches them. This header needs CUDA's headers. */
#ifndef CARRY_DELTA_CHUNK_H
#define CARRY_DELTA_CHUNK_H

#include "delta/cuda/cuda.h"

/* The kernels for one type of q, k and v. Calls are enqueued on the stream; the job is not read afterwards.
   CARRY_EUNSUPPORTED names a tensor that TMA cannot read: starts and strides of q, k, v, o and their gradients must be
   multiples of 16 bytes, and heads of 256 or 512 values must follow one another without gaps.

   pair and rest are one pass in two calls, for a state that another rank sends. Both calls take the same workspace
   and the same job, except for its states. pair computes the map S -> M S + L of the tokens: M is [sequences, value
   heads, K, K], L has the shape of the states. If job->initial is known, L is the final state from it. rest computes
   the outputs. arrived is the state that enters, [sequences, value heads, K, V], or NULL if pair already had it. In the
   backward pass, L belongs to the map of dS and starts from dfinal; job.initial must be known. Both need sequences that
   are not packed, and K and V up to 128. */
typedef struct carry_delta_chunk_kernels {
    bool (*works)(int ordinal); /* this GPU and this build have the kernels */
    /* Bytes of job->workspace, aligned to 128. units: multiprocessors of the GPU. */
    size_t (*bytes)(const carry_delta_job *job, int units);
    size_t (*back_bytes)(const carry_delta_job *job, int units);
    /* Bytes of the prepared tiles, which the forward pass stores in job->kept for the backward pass; 0 if the backward
       pass runs in rounds of heads or sequences and prepares each round. Both passes may also be given no kept
       memory. */
    size_t (*kept_bytes)(const carry_delta_job *job, int units);
    carry_status (*forward)(carry_ctx *ctx, const carry_delta_job *job, int ordinal, cudaStream_t stream);
    /* The forward pass with gates by key channel, for K = 128 and V of 64, 128 or 256. If job->kept is not NULL, the
       states that enter chunks are stored there. keys_apply returns true if the job's tensors have the alignment that
       this needs. */
    bool (*keys_apply)(const carry_delta_job *job);
    size_t (*keys_bytes)(const carry_delta_job *job, int units);
    carry_status (*keys)(carry_ctx *ctx, const carry_delta_job *job, int ordinal, cudaStream_t stream);
    carry_status (*pair)(carry_ctx *ctx, const carry_delta_job *job, float *M, float *L, int ordinal,
                         cudaStream_t stream);
    carry_status (*rest)(carry_ctx *ctx, const carry_delta_job *job, const float *arrived, int ordinal,
                         cudaStream_t stream);
    carry_status (*backward)(carry_ctx *ctx, const carry_delta_back_job *back, int ordinal, cudaStream_t stream);
    carry_status (*back_pair)(carry_ctx *ctx, const carry_delta_back_job *back, float *L, int ordinal,
                              cudaStream_t stream);
    carry_status (*back_rest)(carry_ctx *ctx, const carry_delta_back_job *back, const float *arrived, int ordinal,
                              cudaStream_t stream);
} carry_delta_chunk_kernels;

extern const carry_delta_chunk_kernels carry_delta_chunk_bf16, carry_delta_chunk_f16; /* backward.cu */

static inline const carry_delta_chunk_kernels *carry_delta_chunk_kernels_of(const carry_delta_plan *plan) {
    return plan->problem.dtype == CARRY_F16 ? &carry_delta_chunk_f16 : &carry_delta_chunk_bf16;
}

#endif

/* The method "keys64": its launches and its backward pass. This header needs CUDA's headers. */
#ifndef CARRY_DELTA_KEYS_H
#define CARRY_DELTA_KEYS_H

#include "delta/cuda/cuda.h"

/* A range of value heads and of sequences, and the memory for their chunks. Each array is [slots, heads], with one slot
   per chunk; `slot` is the index of the first slot among those of all sequences. pages is always set. The backward pass
   also has, in 16 bits: `states`, which enter chunks, [columns, D] (NULL: they are in job.kept); `dstates`, the
   gradients of the states that leave; and `values`, the corrected values [64, columns], value_step elements apart.
   columns is V rounded up to 64, D is K rounded up to 64 or 128. */
typedef struct carry_delta_keys_part {
    int64_t first, heads, sequence, sequences, slot, slots, columns;
    void *pages;
    uint16_t *states, *dstates, *values;
    int64_t value_step;
} carry_delta_keys_part;

/* The launches for one type. `back` selects the backward pass, for which walk computes part->states only. After prepare
   and walk, the backward pass (back.cuh) has three more launches:
       back_walk: computes part->dstates, and stores y in dv
       values: computes part->values, dv and part_beta [B T, HV]
       gradients: computes dg, and dq and dk, or part_q and part_k [B T, heads of the part, K] if these are not NULL */
typedef struct carry_delta_keys_kernels {
    cudaError_t (*prepare)(const carry_delta_job *job, const carry_delta_keys_part *part, bool back,
                           cudaStream_t stream);
    cudaError_t (*walk)(const carry_delta_job *job, const carry_delta_keys_part *part, bool back, int ordinal,
                        int units, cudaStream_t stream);
    cudaError_t (*back_walk)(const carry_delta_back_job *back, const carry_delta_keys_part *part, int ordinal,
                             int units, cudaStream_t stream);
    cudaError_t (*values)(const carry_delta_back_job *back, const carry_delta_keys_part *part, cudaStream_t stream);
    cudaError_t (*gradients)(const carry_delta_back_job *back, const carry_delta_keys_part *part, cudaStream_t stream);
} carry_delta_keys_kernels;

extern const carry_delta_keys_kernels carry_delta_keys_bf16, carry_delta_keys_f16; /* prepare.cu */

static inline const carry_delta_keys_kernels *carry_delta_keys_kernels_of(const carry_delta_plan *plan) {
    return plan->problem.dtype == CARRY_F16 ? &carry_delta_keys_f16 : &carry_delta_keys_bf16;
}

/* Defined in method.cu. Sets *bytes to the shared memory that a block can have. */
cudaError_t carry_delta_keys_most(int ordinal, int *bytes);

/* Defined in backward.cu. The backward pass with these kernels, in parts so that its workspace stays below 1.5 times
   its inputs. It does not apply if a block of the GPU has too little shared memory. The second function sets
   backward_workspace of the plan. */
bool carry_delta_keys_backward_applies(const carry_delta_plan *plan);
bool carry_delta_keys_backward_workspace(carry_delta_plan *plan);
carry_status carry_delta_keys_backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *memory,
                                       size_t bytes);

#endif

/* The launches of the method "recurrent". It computes token by token in f32 with e^g of one token at a time. No sum of
   gates is formed, so gates of 0, -1000 and -inf are all exact. This header needs CUDA's headers. */
#ifndef CARRY_DELTA_PLAIN_H
#define CARRY_DELTA_PLAIN_H

#include "delta/cuda/cuda.h"

/* Defined in method.cu. Returns the job of a single token. inputs may be NULL, as for flushing a ring. */
carry_delta_job carry_delta_step_job(const carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                                     const carry_delta_forward_args *inputs);
/* forward.cu */
cudaError_t carry_delta_recurrent_launch(const carry_delta_job *job, cudaStream_t stream);
/* backward.cu: entries of carry_delta_walks. */
int64_t carry_delta_back_blocks(const carry_delta_job *job, int units);
size_t carry_delta_back_stash(const carry_delta_job *job, int64_t most, int units);
cudaError_t carry_delta_back_launch(const carry_delta_back_job *back, int units, cudaStream_t stream);
/* Defined in step.cu. Returns false if the state is transposed or not aligned. */
bool carry_delta_step_applies(const carry_delta_job *job);
cudaError_t carry_delta_step_launch(const carry_delta_job *job, int units, cudaStream_t stream);
/* Defined in step_rows.cu. The same for transposed states. */
bool carry_delta_step_rows_applies(const carry_delta_job *job);
cudaError_t carry_delta_step_rows_launch(const carry_delta_job *job, cudaStream_t stream);

#endif

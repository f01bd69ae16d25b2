/* The arguments of a step with a ring on a GPU, and its kernels. This header needs CUDA's headers. */
#ifndef CARRY_DELTA_PLAIN_RING_JOB_H
#define CARRY_DELTA_PLAIN_RING_JOB_H

#include "delta/cuda/cuda.h"

extern "C" {
#include "delta/ring.h"
}

struct carry_delta_ring_job {
    carry_delta_job job;
    carry_delta_ring ring;
};

/* Defined in ring_hopper.cu. `applies` returns false for other sizes and on GPUs without TMA. */
bool carry_delta_ring_copies_apply(const carry_delta_ring_job *r, int ordinal);
cudaError_t carry_delta_ring_copies_launch(const carry_delta_ring_job *r, int multiprocessors, cudaStream_t stream);

#endif

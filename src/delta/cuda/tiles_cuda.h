/* Launchers of "tiles64" (tiles.cuh): bf16, K and V up to 64, no gate by key channel. Only *.cu files include it. */
#ifndef CARRY_DELTA_TILES_CUDA_H
#define CARRY_DELTA_TILES_CUDA_H

#include "delta/cuda/cuda.h"

#define CARRY_DELTA_TILES_LEAST 16 /* of K and of V */
#define CARRY_DELTA_TILES_MOST 64

/* kept: as the plain kernels keep it, a state every 64 tokens. */
cudaError_t carry_delta_tiles_forward(const carry_delta_job *job, cudaStream_t stream);
/* job.kept is there; parts as gradients.cu adds them up, blocks being 1; part_q and part_k NULL, where a head has one
   value head: dq and dk are written. No stash. */
cudaError_t carry_delta_tiles_backward(const carry_delta_back_job *back, cudaStream_t stream);

#endif

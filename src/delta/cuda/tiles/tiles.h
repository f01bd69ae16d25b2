/* The launches of the method "tiles64", entries of carry_delta_walks. This header needs CUDA's headers. */
#ifndef CARRY_DELTA_TILES_H
#define CARRY_DELTA_TILES_H

#include "delta/cuda/cuda.h"

cudaError_t carry_delta_tiles_forward(const carry_delta_job *job, int units, cudaStream_t stream);
/* If part_q and part_k are NULL, writes dq and dk directly. */
cudaError_t carry_delta_tiles_backward(const carry_delta_back_job *back, int units, cudaStream_t stream);

#endif

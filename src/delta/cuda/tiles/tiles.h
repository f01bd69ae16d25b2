/* The method "tiles64": its launches, entries of carry_delta_walks. Only *.cu files include it. */
#ifndef CARRY_DELTA_TILES_H
#define CARRY_DELTA_TILES_H

#include "delta/cuda/cuda.h"

cudaError_t carry_delta_tiles_forward(const carry_delta_job *job, int units, cudaStream_t stream);
/* With part_q and part_k NULL, dq and dk are written. */
cudaError_t carry_delta_tiles_backward(const carry_delta_back_job *back, int units, cudaStream_t stream);

#endif

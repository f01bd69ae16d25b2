/* The kernels of "keys64" (keys.cuh): their launches. Only *.cu files include it. */
#ifndef CARRY_DELTA_KEYS_CUDA_H
#define CARRY_DELTA_KEYS_CUDA_H

#include "delta/cuda/cuda.h"

/* Bytes of a chunk of one value head. */
size_t carry_delta_keys_page(int64_t key);
cudaError_t carry_delta_keys_prepare(const carry_delta_job *job, void *pages, int64_t slots, cudaStream_t stream);
cudaError_t carry_delta_keys_walk(const carry_delta_job *job, const void *pages, int units, cudaStream_t stream);

#endif

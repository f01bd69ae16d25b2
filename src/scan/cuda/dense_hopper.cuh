/* The first level of a dense cyclic reduction by Hopper's warpgroup products (dense_hopper.cu). */
#ifndef CARRY_SCAN_DENSE_HOPPER_CUH
#define CARRY_SCAN_DENSE_HOPPER_CUH

#include <cuda_runtime.h>

#include "scan/cuda/dense.cuh"

namespace dense {

/* Visits of `radix` transitions of 128 x 128 in 16 bits, each aligned to 16 bytes and not transposed, with one column
   of values. */
struct fold_job {
    int64_t tasks, visits; /* visits of all sequences, visits of one */
    int64_t radix;
    matrices A, made;
    array b, values; /* values: f32 */
};

/* True if this CUDA device can run it and the build has code for it. */
bool fold_works(int device);
cudaError_t fold(const fold_job &job, int dtype, int blocks, cudaStream_t stream);

} // namespace dense

#endif

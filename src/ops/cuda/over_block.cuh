/* Reductions over a thread block. */
#ifndef CARRY_OPS_CUDA_OVER_BLOCK_CUH
#define CARRY_OPS_CUDA_OVER_BLOCK_CUH

/* Combines the values of all threads of a block of WARPS warps, in a fixed order; all threads get the result. parts has
   WARPS elements. No barrier follows the reads of `parts`, so the next call must use another array, but the call after
   that may use this one again. */
template <int WARPS, typename Join>
static __device__ __forceinline__ float over_block(float value, float *parts, Join both) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        value = both(value, __shfl_xor_sync(0xffffffffu, value, step));
    }
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = value;
    }
    __syncthreads();
    value = parts[threadIdx.x % WARPS];
#pragma unroll
    for (int step = WARPS / 2; step > 0; step /= 2) {
        value = both(value, __shfl_xor_sync(0xffffffffu, value, step));
    }
    return value;
}

#endif

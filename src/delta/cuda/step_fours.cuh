/* What the kernels of single tokens share (step.cu, ring.cu): a thread has four columns, 16 bytes, of eight rows of a state;
   FOURS threads beside each other have a row's. */
#ifndef CARRY_DELTA_STEP_FOURS_CUH
#define CARRY_DELTA_STEP_FOURS_CUH

#include "delta/cuda/rows.cuh"

namespace {

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int ROWS = 8; /* of a thread */

__device__ __forceinline__ float over_warp(float x) {
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
        x += __shfl_xor_sync(WARP, x, far);
    }
    return x;
}

__device__ __forceinline__ float4 add_four(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* The sum over the rows of a warp, then over warps. */
template <int FOURS> __device__ __forceinline__ float4 over_rows(float4 a) {
#pragma unroll
    for (int far = FOURS; far < 32; far *= 2) {
        a = add_four(a, make_float4(__shfl_xor_sync(WARP, a.x, far), __shfl_xor_sync(WARP, a.y, far),
                                    __shfl_xor_sync(WARP, a.z, far), __shfl_xor_sync(WARP, a.w, far)));
    }
    return a;
}

template <int FOURS> __device__ __forceinline__ float4 over_warps(const float4 (&parts)[WARPS][FOURS]) {
    float4 sum = parts[0][threadIdx.x % FOURS];
#pragma unroll
    for (int w = 1; w < WARPS; w++) {
        sum = add_four(sum, parts[w][threadIdx.x % FOURS]);
    }
    return sum;
}

__device__ __forceinline__ void fma_four(float4 &to, float4 a, float b) {
    to.x = fmaf(a.x, b, to.x);
    to.y = fmaf(a.y, b, to.y);
    to.z = fmaf(a.z, b, to.z);
    to.w = fmaf(a.w, b, to.w);
}

} // namespace

#endif

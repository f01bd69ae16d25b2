/* Device functions that the methods share: positions of sequences and elements, element types, gates, betas, sums over
   a warp; and the launch of a grid over numbered items. */
#ifndef CARRY_DELTA_DEVICE_CUH
#define CARRY_DELTA_DEVICE_CUH

#include "delta/cuda/cuda.h"
#include "scan/cuda/cuda_types.cuh"

#define WARP 0xffffffffu

/* The position of a sequence's tokens. */
struct delta_place {
    int64_t batch, start, length, token; /* token: the first token, counted over the batch */
    int64_t kept;                        /* the same, counted over the tokens that `kept` covers */
};

static __device__ __forceinline__ delta_place place_of(const carry_delta_job &job, int64_t sequence) {
    if (job.borders == nullptr) {
        return {sequence, 0, job.tokens, sequence * job.tokens, job.kept_token + sequence * job.kept_tokens};
    }
    int64_t at = job.borders[sequence];
    return {0, at, job.borders[sequence + 1] - at, at, job.kept_token + at};
}

/* The index of the first state that a sequence keeps. There are at most tokens/64 + sequences indices, and no two
   sequences share one. In a job that has only some of the sequences, `kept` starts with the first sequence of the
   job. */
static __device__ __forceinline__ int64_t kept_of(const delta_place &place, int64_t sequence) {
    return place.kept / CARRY_DELTA_KEEP + sequence;
}

static __device__ __forceinline__ int64_t at_of(const carry_delta_array &array, int64_t batch, int64_t token,
                                                int64_t head) {
    return batch * array.batch + token * array.token + head * array.head;
}

static __device__ __forceinline__ float load_one(const carry_delta_array &array, int64_t at) {
    return carry_load_any(array.data, array.dtype, at);
}

/* load_bits loads the bits of an element, value_of converts them. They are separate so that several loads can be in
   flight. */
static __device__ __forceinline__ unsigned load_bits(const carry_delta_array &array, int64_t at) {
    return array.dtype == CARRY_F32 ? static_cast<const unsigned *>(array.data)[at]
                                    : static_cast<const unsigned short *>(array.data)[at];
}

static __device__ __forceinline__ float value_of(const carry_delta_array &array, unsigned bits) {
    return array.dtype == CARRY_F32    ? __uint_as_float(bits)
           : array.dtype == CARRY_BF16 ? __uint_as_float(bits << 16)
                                       : __half2float(__ushort_as_half((unsigned short)bits));
}

static __device__ __forceinline__ float softplus_of(float x) {
    return x > 30.0f ? x : log1pf(expf(x));
}

/* The logarithm of a head's decay for gate input g. */
static __device__ __forceinline__ float gate_of(const carry_delta_job &job, float g, int64_t head) {
    return job.gate_inside ? -expf(job.A_log[head]) * softplus_of(g + job.dt_bias[head]) : g;
}

static __device__ __forceinline__ float beta_of(const carry_delta_job &job, float beta) {
    return job.beta_sigmoid ? job.beta_factor / (1.0f + expf(-beta)) : beta;
}

/* The sum over the lanes of a warp, the same in every lane. */
static __device__ __forceinline__ float over_warp(float x) {
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
        x += __shfl_xor_sync(WARP, x, far);
    }
    return x;
}

/* Launches one block for each item, up to the largest grid; blocks step over the items. `bytes`: dynamic shared memory.
 */
template <typename... P, typename... A>
static cudaError_t launch_items(void (*kernel)(P...), int64_t items, int threads, int bytes, cudaStream_t stream,
                                const A &...arguments) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess && items > 0) {
        const unsigned blocks = (unsigned)(items < INT32_MAX ? items : INT32_MAX);
        kernel<<<blocks, threads, bytes, stream>>>(arguments..., items);
        error = cudaGetLastError();
    }
    return error;
}

#endif

/* Device functions for single tokens, used by step.cu and ring.cu. A thread has four columns (16 bytes) of eight rows
   of a state, and FOURS neighbouring threads share a row. A block reads THREADS / FOURS rows at a time; a piece of
   work is 8 times as many rows. Blocks are persistent: while one processes a piece of a state, each thread copies
   its part of the next piece to shared memory. */
#ifndef CARRY_DELTA_PLAIN_STEP_CUH
#define CARRY_DELTA_PLAIN_STEP_CUH

#include <cuda_pipeline.h>

#include "delta/cuda/device.cuh"
#include "delta/cuda/plain/plain.h"

namespace {

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int ROWS = 8; /* rows of a thread */

__device__ __forceinline__ float4 add_four(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Sums over the rows of a warp, then over warps. */
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

/* A piece of work, and the bits of its token, which are loaded one piece ahead. */
template <int FOURS> struct step_piece {
    int64_t item, slot, head;
    int block, column;
    unsigned k, q, g, beta, v[4];

    __device__ __forceinline__ void open(const carry_delta_job &job, int64_t index, int blocks) {
        head = index / blocks % job.value_heads;
        item = index / blocks / job.value_heads;
        slot = job.slots != nullptr ? job.slots[item] : item;
        block = (int)(index % blocks);
        column = (block * FOURS + (int)threadIdx.x % FOURS) * 4;
        k = q = g = 0;
        if ((int)threadIdx.x < job.key) {
            k = load_bits(job.k, at_of(job.k, item, 0, head / job.group) + threadIdx.x);
            q = load_bits(job.q, at_of(job.q, item, 0, head / job.group) + threadIdx.x);
            if (job.gated) {
                g = load_bits(job.g, at_of(job.g, item, 0, head) + (job.by_key ? threadIdx.x : 0));
            }
        }
        beta = load_bits(job.beta, at_of(job.beta, item, 0, head));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = column < job.value ? load_bits(job.v, at_of(job.v, item, 0, head) + column + i) : 0;
        }
    }

    /* unit: the index of the state among all states. offset: the offset of this thread's columns in the states. */
    __device__ __forceinline__ int64_t unit(const carry_delta_job &job) const {
        return slot * job.value_heads + head;
    }
    __device__ __forceinline__ int64_t offset(const carry_delta_job &job) const {
        return unit(job) * job.key * job.value + column;
    }

    static __device__ __forceinline__ int row(int i) {
        return i * (THREADS / FOURS) + (int)threadIdx.x / FOURS;
    }
    __device__ __forceinline__ bool has_row(const carry_delta_job &job, int i) const {
        return row(i) < job.key && column < job.value;
    }

    __device__ __forceinline__ void fetch(const carry_delta_job &job, const float *states,
                                          float4 (&to)[ROWS][THREADS]) const {
        const float *from = states + offset(job);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (has_row(job, i)) {
                __pipeline_memcpy_async(&to[i][threadIdx.x], from + row(i) * job.value, sizeof(float4));
            }
        }
    }

    /* e^g of this thread's key channel. */
    __device__ __forceinline__ float decay(const carry_delta_job &job) const {
        const float gate = job.gated ? value_of(job.g, g) : 0.0f;
        return expf(job.by_key ? gate : job.gated ? gate_of(job, gate, head) : 0.0f);
    }

    /* u = beta (v - seen) */
    __device__ __forceinline__ float4 correct(const carry_delta_job &job, float beta_, float4 seen) const {
        return make_float4(beta_ * (value_of(job.v, v[0]) - seen.x), beta_ * (value_of(job.v, v[1]) - seen.y),
                           beta_ * (value_of(job.v, v[2]) - seen.z), beta_ * (value_of(job.v, v[3]) - seen.w));
    }

    __device__ __forceinline__ void write_output(const carry_delta_job &job, float4 out) const {
        const int64_t at = at_of(job.o, item, 0, head) + column;
        carry_store_any(job.o.data, job.o.dtype, at, job.scale * out.x);
        carry_store_any(job.o.data, job.o.dtype, at + 1, job.scale * out.y);
        carry_store_any(job.o.data, job.o.dtype, at + 2, job.scale * out.z);
        carry_store_any(job.o.data, job.o.dtype, at + 3, job.scale * out.w);
    }
};

/* Processes the pieces of a block, one after the other. */
template <typename Piece, typename Job, typename Memory>
__device__ __forceinline__ void run_pieces(const Job &job, Memory &s, int64_t pieces, int blocks) {
    Piece now;
    now.open(job, blockIdx.x, blocks);
    now.fetch(job, s.state[0]);
    __pipeline_commit();
    int side = 0;
    for (int64_t i = blockIdx.x; i < pieces; i += gridDim.x) {
        Piece next = now;
        if (i + gridDim.x < pieces) {
            next.open(job, i + gridDim.x, blocks);
            next.fetch(job, s.state[1 - side]);
        }
        __pipeline_commit();
        now.run(job, s, side);
        now = next;
        side = 1 - side;
    }
}

/* resident: blocks on each multiprocessor. */
template <int FOURS, typename Job>
cudaError_t launch_pieces(void (*kernel)(Job, int64_t, int), const Job &argument, const carry_delta_job *job, int bytes,
                          int resident, int units, cudaStream_t stream) {
    const int blocks = (job->value + 4 * FOURS - 1) / (4 * FOURS);
    const int64_t pieces = job->sequences * job->value_heads * blocks;
    const int64_t most = (int64_t)resident * (units > 0 ? units : 1);
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
        return error;
    }
    kernel<<<(unsigned)(pieces < most ? pieces : most), THREADS, bytes, stream>>>(argument, pieces, blocks);
    return cudaGetLastError();
}

} // namespace

#endif

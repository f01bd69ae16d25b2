/* The method "keys64": a gate for every key channel (KDA), chunks of 64 tokens on tensor cores by mma.sync, bf16 or
   f16, K of 16 to 128, V of 16 or more. This file is shared by its kernels; those of the backward pass also share
   back.cuh.

   G is the sum of a channel's gates from the chunk's start:

       A[i,j] = sum over c of k[i,c] k[j,c] e^(G[i,c]-G[j,c]), j < i;   P the same of q and k, times scale, j <= i

   So the decays cannot be applied before or after one product. Tokens are handled in blocks of 16. G0 is G at the
   start of a block. For token i of the block and token j of an earlier one, e^(G[i]-G[j]) = e^(G[i]-G0) e^(G0-G[j]),
   and both factors are at most 1. Inside a block every pair of tokens is summed in f32. Exponents are sums of the gates
   from the block's start to i and from j to the block's start; only sums inside a block are subtracted from each other.

   prepare computes a page for every chunk and value head: k and q times e^G, k times e^(G[C]-G), A, P and its
   rounding error, and the inverses of diagonal blocks. walk goes through the pages of a sequence as tiles64 does,
   with 64 columns of V for each thread block. */
#ifndef CARRY_DELTA_KEYS_CUH
#define CARRY_DELTA_KEYS_CUH

#include "delta/cuda/keys/keys.h"
#include "delta/cuda/mma_walk.cuh"

#ifdef CARRY_INSTANCE_F16
#define DELTA_KEYS delta_keys_f16
#define DELTA_KEYS_KERNELS carry_delta_keys_f16
#else
#define DELTA_KEYS delta_keys
#define DELTA_KEYS_KERNELS carry_delta_keys_bf16
#endif

namespace DELTA_KEYS {

using namespace DELTA_MMA;

/* Entries of DELTA_KEYS_KERNELS, defined in prepare.cu, walk.cu, ... */
cudaError_t launch_prepare(const carry_delta_job *job, const carry_delta_keys_part *part, bool back,
                           cudaStream_t stream);
cudaError_t launch_walk(const carry_delta_job *job, const carry_delta_keys_part *part, bool back, int ordinal,
                        int units, cudaStream_t stream);
cudaError_t launch_back_walk(const carry_delta_back_job *back, const carry_delta_keys_part *part, int ordinal,
                             int units, cudaStream_t stream);
cudaError_t launch_values(const carry_delta_back_job *back, const carry_delta_keys_part *part, cudaStream_t stream);
cudaError_t launch_gradients(const carry_delta_back_job *back, const carry_delta_keys_part *part, cudaStream_t stream);

constexpr int COLUMNS = 64;          /* columns of V in a block of the walk */
constexpr float ZERO_FROM = -128.0f; /* e^this is 0 in f32; lower gates are raised to this */
constexpr float LOG2_E = 1.44269504f;

constexpr int EARLIER = 6 * BLOCK; /* copies of k for blocks 1, 2 and 3: the 16, 32 and 48 rows before each */

/* The first row in `earlier` of the copies for block b. */
__device__ __forceinline__ constexpr int earlier_of(int b) {
    return BLOCK * (b * (b - 1) / 2);
}

/* A prepared chunk. D is K rounded up to 64 or 128. */
template <int D> struct page {
    static constexpr bool BACK = false;
    uint16_t faded_k[C * D], faded_q[C * D], left_k[C * D];
    uint16_t A[C * LC], P[C * LC], rest[C * LC]; /* rest: the rounding error of P */
    uint16_t T[BLOCKS][BLOCK * LB];
    float end[D], beta[C];
};

/* A prepared chunk for backward (back.cuh): q is multiplied by scale, and U holds backward's inverses (mma.cuh). */
template <int D> struct back_page {
    static constexpr bool BACK = true;
    uint16_t faded_k[C * D], faded_q[C * D], left_k[C * D];
    uint16_t A[C * LC], P[C * LC];
    uint16_t T[BLOCKS][BLOCK * LB], U[BLOCKS][BLOCK * LB];
    float end[D], beta[C];
};

/* 2^x, with 0 for results below the smallest normal number. */
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Loads gates of one channel for N tokens from `start` on, with zeros from `count` on. All loads are issued before the
   first value is used: a branch on the type inside the loop would wait for each load. */
template <int N>
__device__ __forceinline__ void load_channel(float (&g)[N], const carry_delta_array &from, int64_t start, int count) {
    if (from.dtype == CARRY_F32) {
        const float *at = static_cast<const float *>(from.data) + start;
#pragma unroll
        for (int i = 0; i < N; i++) {
            g[i] = i < count ? at[i * from.token] : 0.0f;
        }
    } else {
        const auto *at = static_cast<const uint16_t *>(from.data) + start;
#pragma unroll
        for (int i = 0; i < N; i++) {
            g[i] = __uint_as_float(i < count ? at[i * from.token] : 0);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            g[i] = value_of(from, __float_as_uint(g[i]));
        }
    }
}

/* Stores one channel of `count` of N tokens from `start` on. */
template <int N>
__device__ __forceinline__ void store_channel(const carry_delta_array &to, int64_t start, int count,
                                              const float (&x)[N]) {
    if (to.dtype == CARRY_F32) {
        float *at = static_cast<float *>(to.data) + start;
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i < count) {
                at[i * to.token] = x[i];
            }
        }
        return;
    }
    for (int i = 0; i < N && i < count; i++) {
        carry_store_any(to.data, to.dtype, start + i * to.token, x[i]);
    }
}

struct chunk_at {
    delta_place place;
    int64_t sequence, first; /* first: the chunk's first token, relative to the sequence */
    int count;               /* tokens in the chunk; 0: the slot has no chunk */
};

/* The chunk of a slot. Pages are indexed as kept states are: there are at most tokens/64 + sequences of them. */
__device__ __forceinline__ chunk_at chunk_of(const carry_delta_job &job, int64_t slot) {
    int64_t low = 0, high = job.sequences - 1;
    while (low < high) { /* search for the last sequence that starts at or before the slot */
        const int64_t middle = (low + high + 1) / 2;
        if (kept_of(place_of(job, middle), middle) <= slot) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    chunk_at at = {place_of(job, low), low, 0, 0};
    at.first = (slot - kept_of(at.place, low)) * C;
    const int64_t left = at.place.length - at.first;
    at.count = left <= 0 ? 0 : left < C ? (int)left : C;
    return at;
}

/* copy_whole copies `bytes`, a multiple of 16, to shared memory. copy_tile copies rows of D numbers to padded rows.
   Both are called by N threads. */
template <int N> __device__ __forceinline__ void copy_whole(void *to, const void *from, int bytes) {
    for (int i = (int)threadIdx.x * 16; i < bytes; i += N * 16) {
        __pipeline_memcpy_async(static_cast<char *>(to) + i, static_cast<const char *>(from) + i, 16);
    }
}
template <int D, int N> __device__ __forceinline__ void copy_tile(uint16_t *to, const uint16_t *from, int rows) {
    for (int i = (int)threadIdx.x; i < rows * (D / 8); i += N) {
        __pipeline_memcpy_async(to + i / (D / 8) * (D + 8) + i % (D / 8) * 8, from + i * 8, 16);
    }
}

/* The tensor restricted to its columns from `first` on. */
__device__ __forceinline__ carry_delta_array columns_from(carry_delta_array array, int first) {
    array.data = static_cast<uint16_t *>(array.data) + first;
    return array;
}

/* Sets *two if each block of a walk can have two buffers in shared memory: there is at most one block for each
   multiprocessor, and both buffers fit. */
static inline cudaError_t has_two_sides(bool *two, int64_t items, int side_bytes, int ordinal, int units) {
    int most = 0;
    const cudaError_t error = carry_delta_keys_most(ordinal, &most);
    *two = items <= units && most >= 2 * side_bytes;
    return error;
}

} // namespace DELTA_KEYS

#endif

/* Tokens of one head in shared memory as f32, and states in registers, for forward.cu and backward.cu.

   A column of a state is held by LANES neighbouring threads. Thread r of them has KR of the K rows, row_of(r, e).
   These are groups of four adjacent rows, so that k and q are read from shared memory 16 bytes at a time and without
   bank conflicts. Rows beyond K are zero. */
#ifndef CARRY_DELTA_PLAIN_COLUMNS_CUH
#define CARRY_DELTA_PLAIN_COLUMNS_CUH

#include "delta/cuda/device.cuh"
#include "delta/cuda/plain/plain.h"

#define LANES 8

static __device__ __forceinline__ int row_of(int r, int e) {
    return e / 4 * (4 * LANES) + r * 4 + e % 4;
}

/* A tile of `count` rows from a tensor, ROW elements from element `first` on. Elements from `size` on are zeros. fetch
   loads the bits of the whole tile into registers and put later writes them to shared memory, since a load takes half a
   microsecond. */
template <int COUNT, int ROW, int THREADS> struct delta_tile {
    static constexpr int EACH = (COUNT * ROW + THREADS - 1) / THREADS;
    unsigned bits[EACH];

    __device__ __forceinline__ void fetch(const carry_delta_array &from, int64_t batch, int64_t token, int64_t head,
                                          int count, int first, int size) {
        const int64_t start = at_of(from, batch, token, head) + first;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int at = (int)threadIdx.x + j * THREADS;
            bits[j] = at < count * ROW && at % ROW + first < size
                          ? load_bits(from, start + (int64_t)(at / ROW) * from.token + at % ROW)
                          : 0;
        }
    }

    __device__ __forceinline__ float value(const carry_delta_array &from, int j) const {
        return value_of(from, bits[j]);
    }

    __device__ __forceinline__ void put(float *to, const carry_delta_array &from) const {
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int at = (int)threadIdx.x + j * THREADS;
            if (at < COUNT * ROW) {
                to[at] = value_of(from, bits[j]);
            }
        }
    }
};

/* Divides rows by their norms. One warp for each row. */
template <int KP> static __device__ void normalise_tile(float *rows, int count) {
    int lane = (int)threadIdx.x % 32;
    for (int row = (int)threadIdx.x / 32; row < count; row += (int)blockDim.x / 32) {
        float sum = 0.0f;
#pragma unroll
        for (int i = lane; i < KP; i += 32) {
            sum = fmaf(rows[row * KP + i], rows[row * KP + i], sum);
        }
#pragma unroll
        for (int far = 16; far > 0; far /= 2) {
            sum += __shfl_xor_sync(WARP, sum, far);
        }
        float factor = 1.0f / sqrtf(sum + 1e-6f);
#pragma unroll
        for (int i = lane; i < KP; i += 32) {
            rows[row * KP + i] *= factor;
        }
    }
}

/* The same as delta_tile for beta and the decays e^g of `count` tokens. With gates by key channel (KEYS), each token
   has a decay for each row of the state, otherwise one. */
template <int COUNT, int KP, int THREADS, bool KEYS> struct delta_gates {
    delta_tile<KEYS ? COUNT : 1, KEYS ? KP : COUNT, THREADS> g;
    unsigned beta;

    __device__ __forceinline__ void fetch(const carry_delta_job &job, int64_t batch, int64_t token, int64_t head,
                                          int count) {
        const bool mine = (int)threadIdx.x < count;
        beta = mine ? load_bits(job.beta, at_of(job.beta, batch, token + threadIdx.x, head)) : 0;
        if (KEYS) {
            g.fetch(job.g, batch, token, head, count, 0, job.key);
        } else {
            g.bits[0] = mine && job.gated ? load_bits(job.g, at_of(job.g, batch, token + threadIdx.x, head)) : 0;
        }
    }

    __device__ __forceinline__ void put(float *decay, float *to_beta, const carry_delta_job &job, int64_t head) const {
        if (KEYS) {
#pragma unroll
            for (int j = 0; j < g.EACH; j++) {
                const int at = (int)threadIdx.x + j * THREADS;
                if (at < COUNT * KP) {
                    decay[at] = expf(g.value(job.g, j));
                }
            }
        }
        if ((int)threadIdx.x < COUNT) {
            to_beta[threadIdx.x] = beta_of(job, value_of(job.beta, beta));
            if (!KEYS) {
                decay[threadIdx.x] = job.gated ? expf(gate_of(job, value_of(job.g, g.bits[0]), head)) : 1.0f;
            }
        }
    }
};

/* Loads or stores columns of a state in global memory, [K, V] or transposed. `at` is the index of the state. */
template <int KR>
static __device__ void load_column(float (&S)[KR], const carry_delta_job &job, const float *states, int64_t at,
                                   int column, int r, bool transposed) {
    const float *from = states + at * job.key * job.value;
#pragma unroll
    for (int e = 0; e < KR; e++) {
        int row = row_of(r, e);
        S[e] = row < job.key && column < job.value
                   ? from[transposed ? (int64_t)column * job.key + row : (int64_t)row * job.value + column]
                   : 0.0f;
    }
}

template <int KR>
static __device__ void store_column(float *states, int64_t at, const float (&S)[KR], const carry_delta_job &job,
                                    int column, int r, bool transposed) {
    float *to = states + at * job.key * job.value;
#pragma unroll
    for (int e = 0; e < KR; e++) {
        int row = row_of(r, e);
        if (row < job.key && column < job.value) {
            to[transposed ? (int64_t)column * job.key + row : (int64_t)row * job.value + column] = S[e];
        }
    }
}

/* Returns the sum over the lanes that share a column, in all of them. */
static __device__ __forceinline__ float over_lanes(float x) {
    x += __shfl_xor_sync(WARP, x, 1);
    x += __shfl_xor_sync(WARP, x, 2);
    return x + __shfl_xor_sync(WARP, x, 4);
}

/* S <- e^g S. Returns its product with k. */
template <int KR, bool KEYS>
static __device__ __forceinline__ float fade_and_see(float (&S)[KR], const float4 *k, const float *decay, int r) {
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float one = KEYS ? 0.0f : *decay;
#pragma unroll
    for (int e = 0; e < KR; e += 4) {
        float4 row = k[e / 4 * LANES + r];
        float4 d = KEYS ? reinterpret_cast<const float4 *>(decay)[e / 4 * LANES + r] : make_float4(one, one, one, one);
        S[e] *= d.x;
        S[e + 1] *= d.y;
        S[e + 2] *= d.z;
        S[e + 3] *= d.w;
        sum[0] = fmaf(S[e], row.x, sum[0]);
        sum[1] = fmaf(S[e + 1], row.y, sum[1]);
        sum[2] = fmaf(S[e + 2], row.z, sum[2]);
        sum[3] = fmaf(S[e + 3], row.w, sum[3]);
    }
    return over_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* S <- S + k u. */
template <int KR> static __device__ __forceinline__ void add_outer(float (&S)[KR], const float4 *k, float u, int r) {
#pragma unroll
    for (int e = 0; e < KR; e += 4) {
        float4 row = k[e / 4 * LANES + r];
        S[e] = fmaf(row.x, u, S[e]);
        S[e + 1] = fmaf(row.y, u, S[e + 1]);
        S[e + 2] = fmaf(row.z, u, S[e + 2]);
        S[e + 3] = fmaf(row.w, u, S[e + 3]);
    }
}

template <int KR> static __device__ __forceinline__ float see(const float (&S)[KR], const float4 *q, int r) {
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int e = 0; e < KR; e += 4) {
        float4 row = q[e / 4 * LANES + r];
        sum[0] = fmaf(S[e], row.x, sum[0]);
        sum[1] = fmaf(S[e + 1], row.y, sum[1]);
        sum[2] = fmaf(S[e + 2], row.z, sum[2]);
        sum[3] = fmaf(S[e + 3], row.w, sum[3]);
    }
    return over_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

#endif

/* "tiles64": the part of a chunk that does not depend on the state, and a warp's slice of a state. */
#ifndef CARRY_DELTA_TILES_PREPARE_CUH
#define CARRY_DELTA_TILES_PREPARE_CUH

#include "delta/cuda/mma_walk.cuh"
#include "delta/cuda/tiles/tiles.h"

namespace DELTA_MMA {

/* Lane l of warp 0 has g of tokens 2 l and 2 l + 1; lane l of warp 1 has their beta. */
struct numbers {
    unsigned bits[2];

    __device__ __forceinline__ void fetch(const carry_delta_job &job, const delta_place &place, int64_t t, int64_t head,
                                          int count) {
        const carry_delta_array &from = warp_of() == 0 ? job.g : job.beta;
        const bool mine = warp_of() == 1 || (warp_of() == 0 && job.gated);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = 2 * lane_of() + e;
            bits[e] = mine && i < count ? load_bits(from, at_of(from, place.batch, place.start + t + i, head)) : 0;
        }
    }

    __device__ void put(prepared &s, const carry_delta_job &job, int64_t head, int count) const {
        const int lane = lane_of();
        if (warp_of() == 1) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s.beta[2 * lane + e] = 2 * lane + e < count ? beta_of(job, value_of(job.beta, bits[e])) : 0.0f;
            }
        }
        if (warp_of() != 0) {
            return;
        }
        double g[2], sum;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float one = job.gated && 2 * lane + e < count ? gate_of(job, value_of(job.g, bits[e]), head) : 0.0f;
            s.g[2 * lane + e] = one;
            g[e] = (double)one < DEEPEST ? DEEPEST : (double)one;
        }
        sum = g[0] + g[1];
#pragma unroll
        for (int far = 1; far < 32; far *= 2) {
            const double before = __shfl_up_sync(WARP, sum, far);
            sum += lane >= far ? before : 0.0;
        }
        const double last = __shfl_sync(WARP, sum, 31);
        const double before = __shfl_up_sync(WARP, sum, 1);
        g[0] += lane > 0 ? before : 0.0;
        g[1] = sum;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            s.G[2 * lane + e] = g[e];
            s.fade[2 * lane + e] = expf((float)g[e]);
            s.left[2 * lane + e] = expf((float)(last - g[e]));
        }
    }
};

/* 1 / |row| for q and k. Two threads for each row. */
template <int D> __device__ void make_norms(prepared &s, const uint16_t *q, const uint16_t *k, bool l2norm) {
    constexpr int LD = D + 8;
    const int row = (int)threadIdx.x / 2, half = (int)threadIdx.x % 2;
#pragma unroll
    for (int which = 0; which < 2; which++) {
        const uint16_t *from = (which == 0 ? q : k) + row * LD + half * (D / 2);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < D / 2; i += 2) {
            const unsigned two = *reinterpret_cast<const unsigned *>(from + i);
            sum = fmaf(low_of(two), low_of(two), sum);
            sum = fmaf(high_of(two), high_of(two), sum);
        }
        sum += __shfl_xor_sync(WARP, sum, 1);
        if (half == 0) {
            (which == 0 ? s.q_norm : s.k_norm)[row] = l2norm ? 1.0f / sqrtf(sum + 1e-6f) : 1.0f;
        }
    }
}

/* e^{G[i]-G[j]} for tokens j <= i. */
__device__ __forceinline__ float decay_between(const prepared &s, bool gated, int i, int j) {
    return gated ? expf((float)(s.G[i] - s.G[j])) : 1.0f;
}

/* Computes A and P of a warp's 16 tokens with all tokens up to them. If `rest` is not NULL, the rounding error of P is
   stored there. */
template <int D>
__device__ void make_triangles(prepared &s, const uint16_t *q, const uint16_t *k, const carry_delta_job &job,
                               uint16_t *rest) {
    constexpr int LD = D + 8;
    const int warp = warp_of();
    unsigned of_q[D / 16][4], of_k[D / 16][4];
#pragma unroll
    for (int e = 0; e < D / 16; e++) {
        load_left<LD>(of_q[e], q, 16 * warp, 16 * e);
        load_left<LD>(of_k[e], k, 16 * warp, 16 * e);
    }
    for (int p = 0; p <= warp; p++) {
        float qk[2][4], kk[2][4];
        clear<2>(qk);
        clear<2>(kk);
#pragma unroll
        for (int e = 0; e < D / 16; e++) {
            unsigned b[4];
            load_right<LD>(b, k, 16 * e, 16 * p);
            multiply_two(qk[0], qk[1], of_q[e], b);
            multiply_two(kk[0], kk[1], of_k[e], b);
        }
#pragma unroll
        for (int at = 0; at < 4; at++) {
            const int h = at / 2, r = at % 2;
            const int i = 16 * warp + row_in(r), j = 16 * p + 8 * h + column_in();
            float a[2], b[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float d = j + e <= i ? decay_between(s, job.gated, i, j + e) * s.k_norm[j + e] : 0.0f;
                a[e] = j + e < i ? d * s.k_norm[i] * kk[h][2 * r + e] : 0.0f;
                b[e] = j + e <= i ? d * job.scale * s.q_norm[i] * qk[h][2 * r + e] : 0.0f;
                if (p == warp) {
                    s.diagonal[warp][row_in(r) * LF + 8 * h + column_in() + e] = a[e];
                }
            }
            *reinterpret_cast<unsigned *>(s.A + i * LC + j) = pack(a[0], a[1]);
            const unsigned P = pack(b[0], b[1]);
            *reinterpret_cast<unsigned *>(s.P + i * LC + j) = P;
            if (rest != nullptr) {
                *reinterpret_cast<unsigned *>(rest + i * LC + j) = pack(b[0] - low_of(P), b[1] - high_of(P));
            }
        }
    }
}

/* Fills `prepared` from tiles in shared memory. Ends with a barrier. */
template <int D>
__device__ void prepare(prepared &s, const uint16_t *q, const uint16_t *k, const carry_delta_job &job,
                        const numbers &of, int64_t head, int count, uint16_t *rest = nullptr) {
    of.put(s, job, head, count);
    make_norms<D>(s, q, k, job.l2norm);
    __syncthreads();
    make_triangles<D>(s, q, k, job, rest);
    __syncwarp();
    const int warp = warp_of();
    invert_diagonal<2, true>(s.diagonal[warp], s.beta + BLOCK * warp, s.T[warp], s.U[warp]);
    __syncthreads();
}

/* A warp's 16 columns of a state, transposed: [16, D]. */
template <int D>
__device__ void load_slice(float (&S)[D / 8][4], const carry_delta_job &job, const float *states, int64_t at,
                           bool transposed) {
    const float *from = states + at * job.key * job.value;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const int v = 16 * warp_of() + row_in(x / 2), k = 8 * n + column_in() + x % 2;
            S[n][x] = v < job.value && k < job.key ? from[transposed ? v * job.key + k : k * job.value + v] : 0.0f;
        }
    }
}

template <int D>
__device__ void store_slice(float *states, int64_t at, const float (&S)[D / 8][4], const carry_delta_job &job,
                            bool transposed) {
    float *to = states + at * job.key * job.value;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const int v = 16 * warp_of() + row_in(x / 2), k = 8 * n + column_in() + x % 2;
            if (v < job.value && k < job.key) {
                to[transposed ? v * job.key + k : k * job.value + v] = S[n][x];
            }
        }
    }
}

} // namespace DELTA_MMA

#endif

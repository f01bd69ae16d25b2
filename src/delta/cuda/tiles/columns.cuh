/* The backward pass of "tiles64" for a warp's 16 columns of V (backward.cu): rest (computed again), y, and the gradient
   of the state. */
#ifndef CARRY_DELTA_TILES_COLUMNS_CUH
#define CARRY_DELTA_TILES_COLUMNS_CUH

#include "delta/cuda/tiles/prepare.cuh"

namespace DELTA_MMA {

template <int D> struct backward_memory {
    static constexpr int TILE = C * (D + 8);
    static constexpr int SIDES = D <= 32 ? 2 : 1;
    /* V later holds x; grad is the gradient of o. */
    alignas(16) uint16_t q[SIDES][TILE], k[SIDES][TILE], v[SIDES][TILE], grad[SIDES][TILE];
    alignas(16) uint16_t dv[TILE];
    alignas(16) uint16_t S[D * (D + 8)], dS[D * (D + 8)]; /* transposed: rows of K */
    prepared p;
    float on_beta[WARPS][C], on_G[C], ends[WARPS], through[WARPS];
};

__device__ __forceinline__ float over_quad(float x) {
    x += __shfl_xor_sync(WARP, x, 1);
    return x + __shfl_xor_sync(WARP, x, 2);
}
__device__ __forceinline__ float over_rows(float x) {
    x += __shfl_xor_sync(WARP, x, 4);
    x += __shfl_xor_sync(WARP, x, 8);
    return x + __shfl_xor_sync(WARP, x, 16);
}

template <int D> struct columns_walk {
    static constexpr int LD = D + 8;
    const carry_delta_back_job &back;
    backward_memory<D> &m;
    int64_t sequence, head;
    delta_place place;
    float dS[D / 8][4];

    __device__ void put_slice(uint16_t *to, const float (&S)[D / 8][4]) const {
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                *reinterpret_cast<unsigned *>(to + (16 * warp_of() + row_in(r)) * LD + 8 * n + column_in()) =
                    pack(S[n][2 * r], S[n][2 * r + 1]);
            }
        }
    }

    /* Computes rest for a warp's columns from the state that entered. Stores x over v. */
    __device__ void make_rest(float (&rest)[8][4], int64_t t, int side) {
        const carry_delta_job &job = back.job;
        float S[D / 8][4], x[8][4];
        unsigned a[D / 16][4], left[4][4];
        load_slice<D>(S, job, job.kept, (kept_of(place, sequence) + t / C) * job.kept_heads + head, false);
        put_slice(m.S, S);
        put_slice(m.dS, dS);
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum = fmaf(S[n][i], dS[n][i], sum);
            }
        }
        sum = over_rows(over_quad(sum));
        if (lane_of() == 0) {
            m.through[warp_of()] = sum;
        }
        slice_left<D>(a, S);
        times_tokens<D>(rest, a, m.k[side]);
        right_side<D>(rest, m.p, m.v[side]);
        (void)solve(rest, left, m.p);
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[n][i] = m.p.beta[token_in(n, i)] * rest[n][i];
            }
        }
        __syncwarp(); /* every lane has read its v */
        put_columns<D>(m.v[side], x);
    }

    /* Computes y, from the last block of tokens to the first, and dv = beta y as left operands. */
    __device__ void make_y(float (&y)[8][4], unsigned (&left)[4][4], int side) {
        const prepared &s = m.p;
        unsigned a[D / 16][4];
        slice_left<D>(a, dS);
        times_tokens<D>(y, a, m.k[side]);
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                y[n][i] *= s.left[token_in(n, i)] * s.k_norm[token_in(n, i)];
            }
        }
        solve_back<D>(y, left, m.grad[side], s.P, s.A, s.U, s.beta);
    }

    /* Computes dbeta of a warp's columns, and dv. */
    __device__ void put_y(float (&y)[8][4], const float (&rest)[8][4]) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int at = token_in(n, e);
                const float sum = over_rows(fmaf(y[n][e], rest[n][e], y[n][2 + e] * rest[n][2 + e]));
                if (lane_of() < 4) {
                    m.on_beta[warp_of()][at] = sum;
                }
                y[n][e] *= m.p.beta[at];
                y[n][2 + e] *= m.p.beta[at];
            }
        }
        put_columns<D>(m.dv, y);
    }

    /* Processes a warp's columns: dS of the state that leaves becomes dS of the state that enters. */
    __device__ void chunk(int64_t t, int side) {
        const prepared &s = m.p;
        float rest[8][4], y[8][4];
        unsigned left[4][4];
        make_rest(rest, t, side);
        make_y(y, left, side);
        put_y(y, rest); /* y is dv from here on */
        const float end = s.fade[C - 1];
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                dS[n][i] *= end;
            }
        }
#pragma unroll
        for (int c = 0; c < BLOCKS; c++) {
            unsigned one[4];
            float grad[8][4];
            load_left_t<LD>(one, m.grad[side], 16 * warp_of(), 16 * c);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const unsigned two = one[i / 4 * 2 + i % 4 / 2];
                grad[2 * c + i / 4][i % 4] = i % 2 == 0 ? low_of(two) : high_of(two);
            }
            weighed(one, grad, c, [&](int at) { return s.fade[at] * back.job.scale * s.q_norm[at]; });
            add_tokens<D>(dS, one, m.q[side], c);
            weighed(one, y, c, [&](int at) { return -s.fade[at] * s.k_norm[at]; });
            add_tokens<D>(dS, one, m.k[side], c);
        }
    }
};

} // namespace DELTA_MMA

#endif

/* The backward pass of "tiles64" for a warp's 16 tokens: dq, dk, dg and dbeta (backward.cu). */
#ifndef CARRY_DELTA_TILES_ROWS_CUH
#define CARRY_DELTA_TILES_ROWS_CUH

#include "delta/cuda/tiles/columns.cuh"

namespace DELTA_MMA {

/* Multiplies a warp's tokens by a state: to [16, K] += a S^T. */
template <int D>
__device__ __forceinline__ void times_state(float (&to)[D / 8][4], const unsigned (&a)[D / 16][4], const uint16_t *S) {
#pragma unroll
    for (int e = 0; e < D / 16; e++) {
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            unsigned b[4];
            load_right_t<D + 8>(b, S, 16 * e, 16 * n);
            multiply_two(to[2 * n], to[2 * n + 1], a[e], b);
        }
    }
}

/* Multiplies each row of `to` by its factor, then computes the dot products of its rows with the rows of a tile. */
template <int D, typename F>
__device__ __forceinline__ void scale_and_see(float (&to)[D / 8][4], float (&dot)[2], const uint16_t *tile, F factor) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int i = 16 * warp_of() + row_in(r);
        const float by = factor(i);
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const unsigned two = *reinterpret_cast<const unsigned *>(tile + i * (D + 8) + 8 * n + column_in());
            to[n][2 * r] *= by;
            to[n][2 * r + 1] *= by;
            sum = fmaf(low_of(two), to[n][2 * r], fmaf(high_of(two), to[n][2 * r + 1], sum));
        }
        dot[r] = over_quad(sum);
    }
}

/* Handles pairs of a warp's tokens i with tokens j of block p, where j <= i (BEFORE) or j >= i. z and w are multiplied
   by their factors and become left operands; their terms of M (backward.cu) are added to `sums`. */
template <bool BEFORE>
__device__ __forceinline__ void weigh_pairs(unsigned (&of_z)[4], unsigned (&of_w)[4], float (&sums)[2],
                                            float (&z)[2][4], float (&w)[2][4], const prepared &s,
                                            const carry_delta_job &job, int p) {
    unsigned P[4], A[4];
    if (BEFORE) {
        load_left<LC>(P, s.P, 16 * warp_of(), 16 * p);
        load_left<LC>(A, s.A, 16 * warp_of(), 16 * p);
    } else {
        load_left_t<LC>(P, s.P, 16 * warp_of(), 16 * p);
        load_left_t<LC>(A, s.A, 16 * warp_of(), 16 * p);
    }
#pragma unroll
    for (int x = 0; x < 8; x++) {
        const int h = x / 4, r = x % 4 / 2, e = x % 2;
        const int i = 16 * warp_of() + row_in(r), j = 16 * p + 8 * h + column_in() + e;
        const bool strict = BEFORE ? j < i : j > i;
        const unsigned two_P = P[2 * h + r], two_A = A[2 * h + r];
        const float on_P = e == 0 ? low_of(two_P) : high_of(two_P);
        const float on_A = e == 0 ? low_of(two_A) : high_of(two_A);
        float &of_pair_z = z[h][2 * r + e], &of_pair_w = w[h][2 * r + e];
        sums[r] += strict ? on_P * of_pair_z - on_A * of_pair_w : 0.0f;
        const float d = strict ? decay_between(s, job.gated, BEFORE ? i : j, BEFORE ? j : i) : i == j ? 1.0f : 0.0f;
        of_pair_z = strict || i == j ? d * (BEFORE ? s.k_norm[j] : job.scale * s.q_norm[j]) * of_pair_z : 0.0f;
        of_pair_w = strict ? -d * s.k_norm[j] * of_pair_w : 0.0f;
    }
    as_left(of_z, z[0], z[1]);
    as_left(of_w, w[0], w[1]);
}

template <int D> struct rows_walk {
    static constexpr int LD = D + 8;
    const carry_delta_back_job &back;
    backward_memory<D> &m;
    int64_t head;
    delta_place place;

    /* Products of a warp's tokens with the tokens of block p: [16, 16]. */
    __device__ void pairs(float (&to)[2][4], const unsigned (&a)[D / 16][4], const uint16_t *rows, int p) const {
        clear<2>(to);
#pragma unroll
        for (int e = 0; e < D / 16; e++) {
            unsigned b[4];
            load_right<LD>(b, rows, 16 * e, 16 * p);
            multiply_two(to[0], to[1], a[e], b);
        }
    }

    __device__ void store_rows(float *to, const float (&x)[D / 8][4], int64_t t, int count, float factor) const {
        const carry_delta_job &job = back.job;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = 16 * warp_of() + row_in(r);
            float *row = to + ((place.token + t + i) * job.value_heads + head) * job.key;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                const int column = 8 * n + column_in();
                if (i < count && column + 1 < job.key && job.key % 2 == 0) {
                    *reinterpret_cast<float2 *>(row + column) =
                        make_float2(factor * x[n][2 * r], factor * x[n][2 * r + 1]);
                } else if (i < count) {
                    for (int e = 0; e < 2 && column + e < job.key; e++) {
                        row[column + e] = factor * x[n][2 * r + e];
                    }
                }
            }
        }
    }

    /* Stores the gradient of q or k through its norm: with y = x / |x|, dx = (dy - y (y . dy)) / |x|. */
    __device__ void store_gradient(const carry_delta_array &to, float (&x)[D / 8][4], const uint16_t *tile,
                                   const float *norms, int64_t t, int count, float factor) const {
        const carry_delta_job &job = back.job;
        float dot[2];
        scale_and_see<D>(x, dot, tile, [&](int) { return factor; });
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = 16 * warp_of() + row_in(r);
            const float norm = norms[i], along = job.l2norm ? norm * norm * dot[r] : 0.0f;
            uint16_t *row = static_cast<uint16_t *>(to.data) + at_of(to, place.batch, place.start + t + i, head);
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                const int column = 8 * n + column_in();
                const unsigned two = *reinterpret_cast<const unsigned *>(tile + i * LD + column);
                const unsigned made = pack(norm * fmaf(-low_of(two), along, x[n][2 * r]),
                                           norm * fmaf(-high_of(two), along, x[n][2 * r + 1]));
                if (i < count && column + 1 < job.key && (uintptr_t)row % 4 == 0) {
                    *reinterpret_cast<unsigned *>(row + column) = made;
                } else if (i < count) {
                    for (int e = 0; e < 2 && column + e < job.key; e++) {
                        row[column + e] = (uint16_t)(made >> 16 * e);
                    }
                }
            }
        }
    }

    /* Stores dq: as parts to be summed over the value heads of a head, or directly if it has one value head. */
    __device__ void store_q(float (&x)[D / 8][4], int64_t t, int side, int count) const {
        if (back.part_q != nullptr) {
            store_rows(back.part_q, x, t, count, back.job.scale);
        } else {
            store_gradient(back.dq, x, m.q[side], m.p.q_norm, t, count, back.job.scale);
        }
    }
    __device__ void store_k(float (&x)[D / 8][4], int64_t t, int side, int count) const {
        if (back.part_k != nullptr) {
            store_rows(back.part_k, x, t, count, 1.0f);
        } else {
            store_gradient(back.dk, x, m.k[side], m.p.k_norm, t, count, 1.0f);
        }
    }

    /* Computes dq, dk and the gradient of G for a warp's tokens. */
    __device__ void chunk(int64_t t, int side, int count) {
        const carry_delta_job &job = back.job;
        const prepared &s = m.p;
        const uint16_t *q = m.q[side], *k = m.k[side], *x = m.v[side], *grad = m.grad[side];
        float dq[D / 8][4], dk[D / 8][4], on_q[2], on_k[2], sums[2] = {0.0f, 0.0f}, z[2][4], w[2][4];
        unsigned of_x[D / 16][4], of_grad[D / 16][4], of_dv[D / 16][4], of_z[4], of_w[4];
#pragma unroll
        for (int e = 0; e < D / 16; e++) {
            load_left<LD>(of_x[e], x, 16 * warp_of(), 16 * e);
            load_left<LD>(of_grad[e], grad, 16 * warp_of(), 16 * e);
            load_left<LD>(of_dv[e], m.dv, 16 * warp_of(), 16 * e);
        }
        clear<D / 8>(dq);
        clear<D / 8>(dk);
        times_state<D>(dq, of_grad, m.S);
        scale_and_see<D>(dq, on_q, q, [&](int i) { return s.fade[i]; });
        times_state<D>(dk, of_dv, m.S);
        scale_and_see<D>(dk, on_k, k, [&](int i) { return -s.fade[i]; });
        for (int p = 0; p <= warp_of(); p++) {
            pairs(z, of_grad, x, p);
            pairs(w, of_dv, x, p);
            weigh_pairs<true>(of_z, of_w, sums, z, w, s, job, p);
            add_tokens<D>(dq, of_z, k, p);
            add_tokens<D>(dk, of_w, k, p);
        }
        store_q(dq, t, side, count);
        float above[2] = {0.0f, 0.0f}, on_end[2];
        clear<D / 8>(dq); /* from here on, the terms of dk from later tokens */
        times_state<D>(dq, of_x, m.dS);
        scale_and_see<D>(dq, on_end, k, [&](int i) { return s.left[i]; });
        for (int p = warp_of(); p < BLOCKS; p++) {
            pairs(z, of_x, grad, p);
            pairs(w, of_x, m.dv, p);
            weigh_pairs<false>(of_z, of_w, above, z, w, s, job, p);
            add_tokens<D>(dq, of_z, q, p);
            add_tokens<D>(dq, of_w, k, p);
        }
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                dk[n][i] += dq[n][i];
            }
        }
        store_k(dk, t, side, count);
        float ends = 0.0f;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = 16 * warp_of() + row_in(r);
            const float end = i < count - 1 ? s.k_norm[i] * on_end[r] : 0.0f; /* no gate decays the last token's term */
            const float pairs_of = over_quad(sums[r] - above[r]);
            ends += end;
            if (lane_of() % 4 == 0) {
                m.on_G[i] = job.scale * s.q_norm[i] * on_q[r] + s.k_norm[i] * on_k[r] - end + pairs_of;
            }
        }
        ends = over_rows(ends);
        if (lane_of() == 0) {
            m.ends[warp_of()] = ends;
        }
    }

    /* Computes dg and dbeta with one warp: a gate affects G of its token and all later ones. */
    __device__ void finish(int64_t t, int count) {
        const carry_delta_job &job = back.job;
        const int lane = lane_of(), slices = D / 16;
        float through = 0.0f, ends = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            through += w < slices ? m.through[w] : 0.0f;
            ends += m.ends[w];
        }
        float later = m.on_G[2 * lane + 1] + (lane == 31 ? ends + m.p.fade[C - 1] * through : 0.0f);
        const float both = m.on_G[2 * lane] + later;
        float sum = both;
#pragma unroll
        for (int far = 1; far < 32; far *= 2) {
            const float behind = __shfl_down_sync(WARP, sum, far);
            sum += lane + far < 32 ? behind : 0.0f;
        }
        const float behind = __shfl_down_sync(WARP, sum, 1);
        const float dg[2] = {sum, later + (lane < 31 ? behind : 0.0f)};
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = 2 * lane + e;
            if (i < count) {
                const int64_t at = (place.token + t + i) * job.value_heads + head;
                float dbeta = 0.0f;
                for (int w = 0; w < slices; w++) {
                    dbeta += m.on_beta[w][i];
                }
                back.part_beta[at] = dbeta;
                back.part_g[at] = expf(m.p.g[i]) == 0.0f ? 0.0f : dg[e];
            }
        }
    }
};

} // namespace DELTA_MMA

#endif

/* The backward pass of "tiles64" (tiles.cuh): a block walks the chunks of one value head of one sequence from the last to
   the first, each from the state that entered it, which forward kept. With dS the gradient of the state that leaves,

       dx = P^T do + left k dS;   (I + beta A)^T y = dx;   dv = beta y;   dbeta = y.rest
       dS <- e^{G[last]} dS + (fade scale q)^T do - (fade k)^T dv

   are made by warps of 16 columns of V each, as in forward; then x, dv, S and dS lie in shared memory, and warps of 16
   tokens each make what sums over V, Z[i,j] = do[i].x[j] and W[i,j] = dv[i].x[j]:

       dq[i] = scale (fade S do[i] + sum_{j<=i} D Z[i,j] k[j])
       dk[i] = left dS x[i] - fade S dv[i] - sum_{j<i} D W[i,j] k[j] + sum_{m>=i} D scale Z[m,i] q[m] - sum_{m>i} D W[m,i] k[m]

   A gate's gradient is a sum over pairs M = P Z - A W that it lies between. They are summed by rows and by columns from
   the same numbers, so that pairs on one side of it cancel. */
#include "delta/tiles_cuda.h"
#include "delta/tiles_walk.cuh"

using namespace delta_tiles;

namespace {

template <int D> struct backward_memory {
    static constexpr int TILE = C * (D + 8);
    static constexpr int SIDES = D <= 32 ? 2 : 1;
    alignas(16) uint16_t q[SIDES][TILE], k[SIDES][TILE], v[SIDES][TILE], grad[SIDES][TILE]; /* v, then x; grad: of o */
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

/* Tokens of a warp times a state: [16, K] += a S^T. */
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

/* to[i] *= factor of the row; then the rows' products with those of a tile. */
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

/* Pairs of a warp's tokens i with tokens of block p, before them or behind them (BELOW, ABOVE the diagonal when seen from
   i): z and w as they are become left operands, and what they add to M is added to sums. */
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

template <int D> struct backward_walk {
    static constexpr int LD = D + 8, SIDES = backward_memory<D>::SIDES;
    const carry_delta_back_job &back;
    backward_memory<D> &m;
    int64_t sequence, head;
    delta_place place;
    float dS[D / 8][4];
    numbers next;

    __device__ int count_from(int64_t t) const {
        return place.length - t < C ? (int)(place.length - t) : C;
    }

    __device__ void fetch(int64_t t, int side) {
        const carry_delta_job &job = back.job;
        if (t >= 0) {
            const int count = count_from(t);
            load_tile<D>(m.q[side], job.q, place, t, head / job.group, count, job.key);
            load_tile<D>(m.k[side], job.k, place, t, head / job.group, count, job.key);
            load_tile<D>(m.v[side], job.v, place, t, head, count, job.value);
            load_tile<D>(m.grad[side], back.grad_o, place, t, head, count, job.value);
            next.fetch(job, place, t, head, count);
        }
        __pipeline_commit();
    }

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

    /* rest of a warp's columns, from the state that entered; x goes to where v was. */
    __device__ void make_rest(float (&rest)[8][4], int64_t t, int side) {
        const carry_delta_job &job = back.job;
        float S[D / 8][4], x[8][4];
        unsigned a[D / 16][4], left[4][4];
        load_slice<D>(S, job, job.kept, (kept_of(place, sequence) + t / C) * job.value_heads + head, false);
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
        solve(rest, left, m.p);
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[n][i] = m.p.beta[token_in(n, i)] * rest[n][i];
            }
        }
        __syncwarp(); /* every lane has its v */
        put_columns<D>(m.v[side], x);
    }

    /* y, from the last block of tokens to the first; dv = beta y as left operands. */
    __device__ void make_y(float (&y)[8][4], unsigned (&left)[4][4], int side) {
        const prepared &s = m.p;
        unsigned a[D / 16][4], b[4], one[4];
        slice_left<D>(a, dS);
        times_tokens<D>(y, a, m.k[side]);
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                y[n][i] *= s.left[token_in(n, i)] * s.k_norm[token_in(n, i)];
            }
        }
#pragma unroll
        for (int c = 0; c < BLOCKS; c++) {
            load_left_t<LD>(one, m.grad[side], 16 * warp_of(), 16 * c);
#pragma unroll
            for (int p = 0; p <= c; p++) {
                load_right_t<LC>(b, s.P, 16 * c, 16 * p);
                multiply_two(y[2 * p], y[2 * p + 1], one, b);
            }
        }
#pragma unroll
        for (int p = BLOCKS - 1; p >= 0; p--) {
#pragma unroll
            for (int c = BLOCKS - 1; c > p; c--) {
                negate(one, left[c]);
                load_right_t<LC>(b, s.A, 16 * c, 16 * p);
                multiply_two(y[2 * p], y[2 * p + 1], one, b);
            }
            as_left(one, y[2 * p], y[2 * p + 1]);
            load_right_t<LB>(b, s.U[p], 0, 0);
            multiply_two(y[2 * p], y[2 * p + 1], one, b);
            weighed(left[p], y, p, [&](int at) { return s.beta[at]; });
        }
    }

    /* dbeta of a warp's columns, and dv. */
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

    /* A warp's columns: dS goes from behind the chunk to before it. */
    __device__ void columns(int64_t t, int side) {
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

    /* Products of a warp's tokens with those of block p: [16, 16]. */
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

    /* dq, dk and what reaches G, of a warp's tokens. */
    __device__ void rows(int64_t t, int side, int count) {
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
        store_rows(back.part_q, dq, t, count, job.scale);
        float above[2] = {0.0f, 0.0f}, on_end[2];
        clear<D / 8>(dq); /* from here on what reaches k from behind */
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
        store_rows(back.part_k, dk, t, count, 1.0f);
        float ends = 0.0f;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = 16 * warp_of() + row_in(r);
            const float end = i < count - 1 ? s.k_norm[i] * on_end[r] : 0.0f; /* the last token's passes no gate */
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

    /* dg and dbeta, by one warp: a gate reaches all G from its token on. */
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

    __device__ void run() {
        const carry_delta_job &job = back.job;
        const int64_t at = sequence * job.value_heads + head;
        clear<D / 8>(dS);
        if (warp_of() < D / 16 && back.dfinal != nullptr) {
            load_slice<D>(dS, job, back.dfinal, at, job.transposed);
        }
        int side = 0;
        int64_t t = (place.length + C - 1) / C * C - C;
        fetch(t, 0);
        for (; t >= 0; t -= C, side = SIDES - 1 - side) {
            const int count = count_from(t);
            const numbers now = next;
            __pipeline_wait_prior(0);
            __syncthreads();
            if (SIDES == 2) {
                fetch(t - C, 1 - side);
            }
            prepare<D>(m.p, m.q[side], m.k[side], job, now, head, count);
            if (warp_of() < D / 16) {
                columns(t, side);
            }
            __syncthreads();
            rows(t, side, count);
            store_tile<D>(back.dv, m.dv, place, t, head, count, job.value);
            __syncthreads();
            if (SIDES == 1) {
                fetch(t - C, 0);
            }
            if (warp_of() == 0) {
                finish(t, count);
            }
        }
        if (warp_of() < D / 16 && back.dinitial != nullptr) {
            store_slice<D>(back.dinitial, at, dS, job, job.transposed);
        }
    }
};

template <int D>
__global__ void __launch_bounds__(THREADS, 2)
    delta_tiles_backward(const __grid_constant__ carry_delta_back_job back, int64_t units) {
    extern __shared__ float4 memory[];
    auto &m = *reinterpret_cast<backward_memory<D> *>(memory);
    for (int64_t i = blockIdx.x; i < units; i += gridDim.x) {
        const int64_t sequence = i / back.job.value_heads;
        backward_walk<D> walk = {back, m, sequence, i % back.job.value_heads, place_of(back.job, sequence)};
        walk.run();
        __syncthreads();
    }
}

template <int D> cudaError_t launch(const carry_delta_back_job *back, cudaStream_t stream) {
    constexpr int bytes = (int)sizeof(backward_memory<D>);
    const int64_t units = back->job.sequences * back->job.value_heads;
    cudaError_t error =
        cudaFuncSetAttribute(delta_tiles_backward<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess && units > 0) {
        delta_tiles_backward<D><<<(unsigned)(units < INT32_MAX ? units : INT32_MAX), THREADS, bytes, stream>>>(*back,
                                                                                                              units);
        error = cudaGetLastError();
    }
    return error;
}

} // namespace

cudaError_t carry_delta_tiles_backward(const carry_delta_back_job *back, cudaStream_t stream) {
    return back->job.key <= 32 && back->job.value <= 32 ? launch<32>(back, stream) : launch<64>(back, stream);
}

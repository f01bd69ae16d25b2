/* The gradients of "keys64" (back.cuh): the layout of shared memory for a chunk of one value head, and the products on
   tensor cores. A block has 4 D threads. Each warp has 16 tokens and 32 channels of K. */
#ifndef CARRY_DELTA_KEYS_GRADIENTS_CUH
#define CARRY_DELTA_KEYS_GRADIENTS_CUH

#include "delta/cuda/keys/back.cuh"

namespace DELTA_KEYS {

/* Shared memory is used in three phases: products over columns of V, products between blocks of tokens, and sums by
   channel. */
template <int D> struct gradient_memory {
    static constexpr int LD = D + 8, LG = D + 4;
    struct over_values {
        alignas(16) uint16_t x[C * LV], grad[C * LV], dv[C * LV];
        alignas(16) uint16_t S[COLUMNS * LD], dS[COLUMNS * LD]; /* rows of K */
    };
    struct over_tokens {
        alignas(16) uint16_t q[C * LD], k[C * LD]; /* as loaded, then times e^(G-G0) of their block */
        alignas(16) uint16_t earlier[EARLIER * LD];
        alignas(16) uint16_t dP[C * LC], dA[C * LC]; /* dP times scale */
    };
    struct by_channel {
        alignas(16) float dq[C * LG], dk[C * LG];
    };
    union {
        over_values one;
        over_tokens two;
        by_channel three;
    };
    alignas(16) float G[C * LG];                        /* G - G0 of a token's block, as in prepare; then dG */
    alignas(16) float dkl[C * LG];                      /* then running sums of its terms in the gradients of gates */
    alignas(16) float2 diagonal[BLOCKS][BLOCK * BLOCK]; /* dP and dA for pairs inside one block, f32 */
    float whole[BLOCKS][D];                             /* the sum of a block's gates */
    alignas(16) float span[BLOCKS][BLOCKS][D];          /* [a][b]: the sum of the gates of blocks a to b */
    float sums[3 * BLOCKS][D]; /* by block: sums of dG, of S dS', of the terms of dkl in the gradients of gates */
    float q_norm[C], k_norm[C];
};

template <int D> struct gradient_products {
    static constexpr int LD = D + 8, LG = D + 4;
    static constexpr int WIDE = 4 * D;                             /* threads */
    static constexpr int PARTS = WIDE / 128, CHANNELS = D / PARTS; /* parts of the channels */
    static constexpr int N = CHANNELS / 8;                         /* result tiles of a part */
    static constexpr int PAIRS = BLOCKS / PARTS;                   /* blocks of tokens that a warp pairs its own with */
    const carry_delta_back_job &back;
    const carry_delta_keys_part &part;
    gradient_memory<D> &m;
    chunk_at at;
    int64_t slot, head, page;
    float dqf[N][4], dkf[N][4]; /* dkf has the opposite sign */

    static __device__ __forceinline__ int block() { /* index of the warp's block of tokens */
        return warp_of() % 4;
    }
    static __device__ __forceinline__ int channels() { /* index of the warp's part of the channels */
        return warp_of() / 4;
    }
    static __device__ __forceinline__ int token(int r) {
        return BLOCK * block() + row_in(r);
    }
    static __device__ __forceinline__ int channel(int n) {
        return CHANNELS * channels() + 8 * n + column_in();
    }

    /* Loads a state, either as 16-bit rows of K or, in f32, as the forward pass kept it. */
    __device__ void load_state(int first) {
        if (part.states != nullptr) {
            copy_tile<D, WIDE>(m.one.S, part.states + (page * part.columns + first) * D, COLUMNS);
            return;
        }
        const carry_delta_job &job = back.job;
        const float *from = job.kept + (slot * job.value_heads + head) * job.key * job.value + first;
        /* At a time, a thread loads two keys of one value and a warp 8 keys of 8 values, which avoids bank conflicts.
           All elements are loaded before the first is stored. */
        constexpr int EACH = COLUMNS * D / 2 / WIDE;
        float low[EACH], high[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int v = value_at(i), k = key_at(i);
            const bool there = first + v < job.value;
            low[i] = there && k < job.key ? from[(int64_t)k * job.value + v] : 0.0f;
            high[i] = there && k + 1 < job.key ? from[(int64_t)(k + 1) * job.value + v] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            *reinterpret_cast<unsigned *>(m.one.S + value_at(i) * LD + key_at(i)) = pack(low[i], high[i]);
        }
    }
    /* Indices for load_state: a warp has 8 values and 8 keys at a time. */
    static __device__ __forceinline__ int value_at(int i) {
        return (WIDE / 32 * i + warp_of()) % (COLUMNS / 8) * 8 + lane_of() / 4;
    }
    static __device__ __forceinline__ int key_at(int i) {
        return (WIDE / 32 * i + warp_of()) / (COLUMNS / 8) * 8 + lane_of() % 4 * 2;
    }
    __device__ void load_columns(int first) {
        const carry_delta_job &job = back.job;
        const uint16_t *x = part.values + page * part.value_step + first;
        for (int i = (int)threadIdx.x; i < C * (COLUMNS / 8); i += WIDE) {
            const int row = i / (COLUMNS / 8), column = i % (COLUMNS / 8) * 8;
            __pipeline_memcpy_async(m.one.x + row * LV + column, x + row * part.columns + column, 16);
        }
        load_tile<COLUMNS, WIDE>(m.one.grad, columns_from(back.grad_o, first), at.place, at.first, head, at.count,
                                 job.value - first);
        load_tile<COLUMNS, WIDE>(m.one.dv, columns_from(back.dv, first), at.place, at.first, head, at.count,
                                 job.value - first);
        load_state(first);
        copy_tile<D, WIDE>(m.one.dS, part.dstates + (page * part.columns + first) * D, COLUMNS);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
    }

    /* Adds the products over 64 columns of V. Pairs are formed with every PARTS-th block of tokens. */
    __device__ void add_columns(float (&dkl)[N][4], float (&z)[2 * PAIRS][4], float (&w)[2 * PAIRS][4]) {
#pragma unroll
        for (int e = 0; e < COLUMNS / 16; e++) {
            unsigned of_grad[4], of_dv[4], of_x[4], b[4];
            load_left<LV>(of_grad, m.one.grad, BLOCK * block(), 16 * e);
            load_left<LV>(of_dv, m.one.dv, BLOCK * block(), 16 * e);
            load_left<LV>(of_x, m.one.x, BLOCK * block(), 16 * e);
#pragma unroll
            for (int p = 0; p < PAIRS; p++) {
                if (channels() + PARTS * p <= block()) {
                    load_right<LV>(b, m.one.x, 16 * e, BLOCK * (channels() + PARTS * p));
                    multiply_two(z[2 * p], z[2 * p + 1], of_grad, b);
                    multiply_two(w[2 * p], w[2 * p + 1], of_dv, b);
                }
            }
#pragma unroll
            for (int n = 0; n < N; n += 2) {
                load_right_t<LD>(b, m.one.S, 16 * e, CHANNELS * channels() + 8 * n);
                multiply_two(dqf[n], dqf[n + 1], of_grad, b);
                multiply_two(dkf[n], dkf[n + 1], of_dv, b);
                load_right_t<LD>(b, m.one.dS, 16 * e, CHANNELS * channels() + 8 * n);
                multiply_two(dkl[n], dkl[n + 1], of_x, b);
            }
        }
    }

    /* Adds S dS' of this thread's channel over some of the columns. */
    __device__ float add_through(float sum) const {
        const int c = (int)threadIdx.x % D;
        for (int v = (int)threadIdx.x / D; v < COLUMNS; v += WIDE / D) {
            sum = fmaf(low_of(m.one.S[v * LD + c]), low_of(m.one.dS[v * LD + c]), sum);
        }
        return sum;
    }

    __device__ void put_pairs(const float (&z)[2 * PAIRS][4], const float (&w)[2 * PAIRS][4]) {
        const float scale = back.job.scale;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            const int other = channels() + PARTS * p;
#pragma unroll
            for (int x = 0; x < 8; x += 2) {
                const int n = 2 * p + x / 4, r = x % 4 / 2, i = row_in(r), j = x / 4 * 8 + column_in();
                const float dP[2] = {scale * z[n][2 * r], scale * z[n][2 * r + 1]};
                const float dA[2] = {-w[n][2 * r], -w[n][2 * r + 1]};
                if (other < block()) {
                    const int to = token(r) * LC + BLOCK * other + j;
                    *reinterpret_cast<unsigned *>(m.two.dP + to) = pack(dP[0], dP[1]);
                    *reinterpret_cast<unsigned *>(m.two.dA + to) = pack(dA[0], dA[1]);
                } else if (other == block()) {
                    m.diagonal[other][i * BLOCK + j] = make_float2(dP[0], dA[0]);
                    m.diagonal[other][i * BLOCK + j + 1] = make_float2(dP[1], dA[1]);
                }
            }
        }
    }

    /* Computes all sums over V. */
    __device__ void over_values() {
        float dkl[N][4], z[2 * PAIRS][4], w[2 * PAIRS][4], through = 0.0f;
        clear<N>(dqf);
        clear<N>(dkf);
        clear<N>(dkl);
        clear<2 * PAIRS>(z);
        clear<2 * PAIRS>(w);
        for (int first = 0; first < back.job.value; first += COLUMNS) {
            load_columns(first);
            add_columns(dkl, z, w);
            through = add_through(through);
            __syncthreads();
        }
        put_pairs(z, w);
        m.sums[BLOCKS + (int)threadIdx.x / D][(int)threadIdx.x % D] = through;
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            const int n = i / 2, r = i % 2;
            *reinterpret_cast<float2 *>(m.dkl + token(r) * LG + channel(n)) =
                make_float2(dkl[n][2 * r], dkl[n][2 * r + 1]);
        }
    }

    /* to [16, channels] += pairs of two blocks times rows of a tile. */
    __device__ __forceinline__ void add_rows(float (&to)[N][4], const unsigned (&a)[4], const uint16_t *tile,
                                             int row) const {
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            unsigned b[4];
            load_right_t<LD>(b, tile, row, CHANNELS * channels() + 8 * n);
            multiply_two(to[n], to[n + 1], a, b);
        }
    }
    static __device__ __forceinline__ float2 pair_of(const uint16_t *tile, int row, int c) {
        const unsigned two = *reinterpret_cast<const unsigned *>(tile + row * LD + c);
        return make_float2(low_of(two), high_of(two));
    }

    /* Pairs of a warp's tokens with tokens of earlier blocks: turns dqf and dkf into dq and dk, and starts on_G with
       their contribution to dG. */
    __device__ void with_earlier(float (&on_G)[N][4]) {
        const int row = earlier_of(block());
#pragma unroll
        for (int n = 0; n < N; n++) {
            float2 start = make_float2(1.0f, 1.0f);
            if (block() > 0) {
                const float2 before = *reinterpret_cast<const float2 *>(&m.span[0][block() - 1][channel(n)]);
                start = make_float2(power_of_two(before.x), power_of_two(before.y));
            }
#pragma unroll
            for (int x = 0; x < 4; x++) {
                dqf[n][x] *= (x % 2 == 0 ? start.x : start.y) * back.job.scale;
                dkf[n][x] *= -(x % 2 == 0 ? start.x : start.y);
            }
        }
        for (int p = 0; p < block(); p++) {
            unsigned a[4];
            load_left<LC>(a, m.two.dP, BLOCK * block(), BLOCK * p);
            add_rows(dqf, a, m.two.earlier, row + BLOCK * p);
            load_left<LC>(a, m.two.dA, BLOCK * block(), BLOCK * p);
            add_rows(dkf, a, m.two.earlier, row + BLOCK * p);
        }
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            const int n = i / 2, r = i % 2, c = channel(n);
            const float2 q = pair_of(m.two.q, token(r), c), k = pair_of(m.two.k, token(r), c);
            const float2 G = *reinterpret_cast<const float2 *>(m.G + token(r) * LG + c);
            on_G[n][2 * r] = fmaf(q.x, dqf[n][2 * r], k.x * dkf[n][2 * r]);
            on_G[n][2 * r + 1] = fmaf(q.y, dqf[n][2 * r + 1], k.y * dkf[n][2 * r + 1]);
            const float fade[2] = {power_of_two(G.x), power_of_two(G.y)};
#pragma unroll
            for (int e = 0; e < 2; e++) {
                dqf[n][2 * r + e] *= fade[e];
                dkf[n][2 * r + e] *= fade[e];
            }
        }
    }

    /* Pairs of a warp's tokens with tokens of the later block b: adds to dkf and on_G. */
    __device__ void with_later(float (&on_G)[N][4], int b) {
        float sum[N][4];
        unsigned a[4];
        clear<N>(sum);
        load_left_t<LC>(a, m.two.dP, BLOCK * block(), BLOCK * b);
        add_rows(sum, a, m.two.q, BLOCK * b);
        load_left_t<LC>(a, m.two.dA, BLOCK * block(), BLOCK * b);
        add_rows(sum, a, m.two.k, BLOCK * b);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int c = channel(n);
            const float2 between = *reinterpret_cast<const float2 *>(&m.span[block()][b - 1][c]);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float2 G = *reinterpret_cast<const float2 *>(m.G + token(r) * LG + c);
                const float2 k = pair_of(m.two.earlier, earlier_of(b) + token(r), c);
                on_G[n][2 * r] = fmaf(-k.x, sum[n][2 * r], on_G[n][2 * r]);
                on_G[n][2 * r + 1] = fmaf(-k.y, sum[n][2 * r + 1], on_G[n][2 * r + 1]);
                dkf[n][2 * r] = fmaf(power_of_two(between.x - G.x), sum[n][2 * r], dkf[n][2 * r]);
                dkf[n][2 * r + 1] = fmaf(power_of_two(between.y - G.y), sum[n][2 * r + 1], dkf[n][2 * r + 1]);
            }
        }
    }

    /* Adds all pairs of tokens from different blocks, then stores dq, dk and dG to shared memory. */
    __device__ void over_tokens() {
        float on_G[N][4];
        with_earlier(on_G);
        for (int b = block() + 1; b < BLOCKS; b++) {
            with_later(on_G, b);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            const int n = i / 2, r = i % 2, to = token(r) * LG + channel(n);
            *reinterpret_cast<float2 *>(m.three.dq + to) = make_float2(dqf[n][2 * r], dqf[n][2 * r + 1]);
            *reinterpret_cast<float2 *>(m.three.dk + to) = make_float2(dkf[n][2 * r], dkf[n][2 * r + 1]);
            *reinterpret_cast<float2 *>(m.G + to) = make_float2(on_G[n][2 * r], on_G[n][2 * r + 1]);
        }
        __syncthreads();
    }
};

} // namespace DELTA_KEYS

#endif

/* The last kernel of the backward pass of "keys64" (back.cuh): dq, dk and dg for a chunk of one value head. Its
   products are in gradients.cuh. In this file each thread has one channel and computes decays, pairs of tokens of one
   block in f32, and the sums over tokens that give dg. */
#include "delta/cuda/keys/gradients.cuh"

using namespace DELTA_KEYS;

namespace {

template <int D> struct gradient_chunk {
    static constexpr int LD = D + 8, LG = D + 4;
    static constexpr int WIDE = gradient_products<D>::WIDE;
    static_assert(WIDE / D == BLOCKS, "a thread has one channel of one block of tokens");
    gradient_products<D> p;
    gradient_memory<D> &m;
    const carry_delta_back_job &back;
    const carry_delta_job &job;
    int c, b; /* the thread's channel, and its block of tokens */

    __device__ int64_t place(const carry_delta_array &array, int i, int64_t head) const {
        return at_of(array, p.at.place.batch, p.at.place.start + p.at.first + i, head);
    }
    __device__ void load_gates(float (&g)[BLOCK]) const {
        load_channel<BLOCK>(g, job.g, place(job.g, BLOCK * b, p.head) + c, c < job.key ? p.at.count - BLOCK * b : 0);
    }
    /* Cumulative sums of the gates, in base 2, from the first token of block b. */
    __device__ void sum_gates(float (&G)[BLOCK]) const {
        float sum = 0.0f;
        load_gates(G);
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            sum += LOG2_E * (G[i] < ZERO_FROM ? ZERO_FROM : G[i]);
            G[i] = sum;
        }
    }
    __device__ void make_gates() {
        float G[BLOCK];
        sum_gates(G);
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            m.G[(BLOCK * b + i) * LG + c] = G[i];
        }
        m.whole[b][c] = G[BLOCK - 1];
        __syncthreads();
        float sum = 0.0f;
#pragma unroll
        for (int a = 0; a < BLOCKS; a++) {
            sum += a >= b ? m.whole[a][c] : 0.0f;
            m.span[b][a][c] = sum;
        }
    }

    __device__ void make_norms() {
        constexpr int THREADS_OF = WIDE / C; /* threads for each row */
        const int row = (int)threadIdx.x / THREADS_OF, part = (int)threadIdx.x % THREADS_OF;
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const uint16_t *from = (which == 0 ? m.two.q : m.two.k) + row * LD + part * (D / THREADS_OF);
            float sum = 0.0f;
            for (int i = 0; i < D / THREADS_OF; i += 2) {
                const unsigned two = *reinterpret_cast<const unsigned *>(from + i);
                sum = fmaf(low_of(two), low_of(two), fmaf(high_of(two), high_of(two), sum));
            }
#pragma unroll
            for (int far = 1; far < THREADS_OF; far *= 2) {
                sum += __shfl_xor_sync(WARP, sum, far);
            }
            if (part == 0) {
                (which == 0 ? m.q_norm : m.k_norm)[row] = job.l2norm ? 1.0f / sqrtf(sum + 1e-6f) : 1.0f;
            }
        }
    }

    /* Computes the operands of products between blocks of tokens. */
    __device__ void fade() {
        float far[BLOCKS]; /* from the end of the block to the start of a later one */
#pragma unroll
        for (int a = 1; a < BLOCKS; a++) {
            far[a] = a > b + 1 ? m.span[b + 1][a - 1][c] : 0.0f;
        }
        float all_G[BLOCK], all_k[BLOCK], all_q[BLOCK]; /* loaded first, since the stores below would delay the loads */
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            const int at = BLOCK * b + i;
            all_G[i] = m.G[at * LG + c];
            all_k[i] = low_of(m.two.k[at * LD + c]) * m.k_norm[at];
            all_q[i] = low_of(m.two.q[at * LD + c]) * m.q_norm[at];
        }
#pragma unroll
        for (int row = 0; row < BLOCK; row++) {
            const int i = BLOCK * b + row;
            const float G = all_G[row], on = power_of_two(G), after = m.whole[b][c] - G, k = all_k[row], q = all_q[row];
            m.two.k[i * LD + c] = to_16(k * on);
            m.two.q[i * LD + c] = to_16(q * on);
#pragma unroll
            for (int a = 1; a < BLOCKS; a++) {
                if (a > b) {
                    m.two.earlier[(earlier_of(a) + i) * LD + c] = to_16(k * power_of_two(after + far[a]));
                }
            }
        }
    }
    __device__ void load_tokens() {
        const chunk_at &at = p.at;
        load_tile<D, WIDE>(m.two.q, job.q, at.place, at.first, p.head / job.group, at.count, job.key);
        load_tile<D, WIDE>(m.two.k, job.k, at.place, at.first, p.head / job.group, at.count, job.key);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
        make_norms();
        __syncthreads();
        fade();
        __syncthreads();
    }

    /* load_block loads the bits of a channel of q or k, to_values converts them and multiplies by norms. They are
       separate so that the loads of several blocks are in flight before the first conversion. */
    __device__ __forceinline__ void load_block(uint16_t (&x)[BLOCK], const carry_delta_array &from) const {
        const auto *rows = static_cast<const uint16_t *>(from.data) + place(from, BLOCK * b, p.head / job.group) + c;
        const int count = c < job.key ? p.at.count - BLOCK * b : 0;
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            x[i] = i < count ? rows[i * from.token] : (uint16_t)0;
        }
    }
    static __device__ __forceinline__ void to_values(float (&x)[BLOCK], const uint16_t (&bits)[BLOCK],
                                                     const float *norms) {
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            x[i] = low_of(bits[i]) * norms[i];
        }
    }

    /* Adds the pairs of tokens inside the block to dq, dk and dG, in f32, and the terms from the gradient of the state
       after the chunk (dkl) to dk. The gates after a token decay what it adds to that state, so its term belongs to dg
       of all later tokens and is not added to dG, whose terms belong to dg of the token and all earlier ones. Instead,
       dkl of each token becomes the sum of the terms of earlier tokens of the block. The term of the chunk's last token
       belongs to no dg. */
    __device__ void inside() {
        float G[BLOCK], k[BLOCK], q[BLOCK], behind[BLOCK], on_G[BLOCK];
        float *dq = m.three.dq + BLOCK * b * LG + c, *dk = m.three.dk + BLOCK * b * LG + c;
        float *dG = m.G + BLOCK * b * LG + c, *dkl = m.dkl + BLOCK * b * LG + c;
        uint16_t of_k[BLOCK], of_q[BLOCK];
        load_block(of_k, job.k);
        load_block(of_q, job.q);
        sum_gates(G);
        to_values(k, of_k, m.k_norm + BLOCK * b);
        to_values(q, of_q, m.q_norm + BLOCK * b);
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            const float2 *pairs = m.diagonal[b] + i * BLOCK;
            float on_q = 0.0f, on_k = 0.0f;
#pragma unroll
            for (int j = 0; j < i; j++) {
                const float fade = power_of_two(G[i] - G[j]), faded = k[j] * fade;
                const float2 pair = pairs[j];
                on_q = fmaf(pair.x, faded, on_q);
                on_k = fmaf(pair.y, faded, on_k);
                behind[j] = fmaf(fmaf(pair.x, q[i], pair.y * k[i]), fade, behind[j]);
            }
            const float own = pairs[i].x;
            behind[i] = 0.0f;
            on_G[i] = fmaf(q[i], on_q, k[i] * on_k);
            dq[i * LG] += fmaf(own, k[i], on_q);
            dk[i * LG] += fmaf(own, q[i], on_k);
        }
        const float after = m.span[b][BLOCKS - 1][c];
        float ends = 0.0f, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            const float left = power_of_two(after - G[i]) * dkl[i * LG], end = k[i] * left;
            const float all = dG[i * LG] + fmaf(-k[i], behind[i], on_G[i]);
            dk[i * LG] += behind[i] + left;
            dG[i * LG] = all;
            dkl[i * LG] = ends;
            ends += end;
            sum += all;
        }
        m.sums[b][c] = sum;
        m.sums[2 * BLOCKS + b][c] = ends;
    }

    /* dg of the block: the sum of dG over this and all later tokens, plus the terms from behind the chunk. */
    __device__ void store_gates() {
        float sum = 0.0f, ends = 0.0f;
        for (int i = 0; i < BLOCKS; i++) {
            sum += m.sums[BLOCKS + i][c];
        }
        for (int a = b + 1; a < BLOCKS; a++) {
            sum += m.sums[a][c];
        }
        for (int a = 0; a < b; a++) {
            ends += m.sums[2 * BLOCKS + a][c];
        }
        float g[BLOCK];
        load_gates(g);
#pragma unroll
        for (int i = BLOCK - 1; i >= 0; i--) {
            const int at = (BLOCK * b + i) * LG + c;
            sum += m.G[at];
            g[i] = expf(g[i]) == 0.0f ? 0.0f : sum + (ends + m.dkl[at]);
        }
        store_channel<BLOCK>(back.dg, place(back.dg, BLOCK * b, p.head) + c, c < job.key ? p.at.count - BLOCK * b : 0,
                             g);
    }

    /* Stores dq or dk, four tokens at a time for each warp: the final gradient, through the norm, or one value head's
       part of it. */
    __device__ void store_rows(const carry_delta_array &to, float *parts, const float *from, const carry_delta_array &x,
                               const float *norms) const {
        constexpr int ROWS = 4, N = D / 32;
        const int64_t head = p.head / job.group;
        for (int first = warp_of() * ROWS; first < p.at.count; first += WIDE / 32 * ROWS) {
            float gradient[ROWS][N], value[ROWS][N], dot[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) { /* lanes for rows beyond the last one read the last row */
                const int i = first + r < p.at.count ? first + r : p.at.count - 1;
                const auto *row = static_cast<const uint16_t *>(x.data) + place(x, i, head);
                dot[r] = 0.0f;
#pragma unroll
                for (int e = 0; e < N; e++) {
                    const int at = 32 * e + lane_of();
                    gradient[r][e] = from[i * LG + at];
                    value[r][e] = job.l2norm && at < job.key ? low_of(row[at]) : 0.0f;
                    dot[r] = fmaf(value[r][e], gradient[r][e], dot[r]);
                }
            }
#pragma unroll
            for (int far = 1; far < 32; far *= 2) {
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    dot[r] += __shfl_xor_sync(WARP, dot[r], far);
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const int i = first + r;
                if (i < p.at.count) {
                    store_row(to, parts, i, gradient[r], value[r], norms[i], dot[r]);
                }
            }
        }
    }
    __device__ void store_row(const carry_delta_array &to, float *parts, int i, const float (&gradient)[D / 32],
                              const float (&value)[D / 32], float norm, float dot) const {
        const int64_t token = p.at.place.token + p.at.first + i;
        const float along = norm * norm * dot;
        float *part = parts + (token * p.part.heads + p.head - p.part.first) * job.key;
        auto *there = static_cast<uint16_t *>(to.data) + place(to, i, p.head / job.group);
#pragma unroll
        for (int e = 0; e < D / 32; e++) {
            const int at = 32 * e + lane_of();
            if (at < job.key && parts != nullptr) {
                part[at] = gradient[e];
            } else if (at < job.key) {
                there[at] = to_16(norm * fmaf(-value[e], along, gradient[e]));
            }
        }
    }

    __device__ void run() {
        make_gates();
        p.over_values();
        load_tokens();
        p.over_tokens();
        inside();
        m.sums[BLOCKS + b][c] *= power_of_two(m.span[0][BLOCKS - 1][c]);
        __syncthreads();
        if (back.dg.data != nullptr) {
            store_gates();
        }
        store_rows(back.dq, back.part_q, m.three.dq, job.q, m.q_norm);
        store_rows(back.dk, back.part_k, m.three.dk, job.k, m.k_norm);
    }
};

template <int D>
__global__ void __launch_bounds__(gradient_products<D>::WIDE)
    delta_keys_gradients(const __grid_constant__ carry_delta_back_job back,
                         const __grid_constant__ carry_delta_keys_part part, int64_t items) {
    extern __shared__ float4 memory[];
    auto &m = *reinterpret_cast<gradient_memory<D> *>(memory);
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
        const int64_t slot = part.slot + i / part.heads;
        const chunk_at at = chunk_of(back.job, slot);
        if (at.count > 0) {
            gradient_chunk<D> one = {{back, part, m, at, slot, part.first + i % part.heads, i},
                                     m,
                                     back,
                                     back.job,
                                     (int)threadIdx.x % D,
                                     (int)threadIdx.x / D};
            one.run();
        }
        __syncthreads();
    }
}

template <int D>
cudaError_t launch(const carry_delta_back_job *back, const carry_delta_keys_part *part, cudaStream_t stream) {
    return launch_items(delta_keys_gradients<D>, part->slots * part->heads, gradient_products<D>::WIDE,
                        (int)sizeof(gradient_memory<D>), stream, *back, *part);
}

} // namespace

cudaError_t DELTA_KEYS::launch_gradients(const carry_delta_back_job *back, const carry_delta_keys_part *part,
                                         cudaStream_t stream) {
    return back->job.key <= 64 ? launch<64>(back, part, stream) : launch<128>(back, part, stream);
}

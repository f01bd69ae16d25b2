/* The first kernel of "keys64" (keys.cuh): computes a page for every chunk and value head. Each thread has one channel
   for decays, and each warp has 16 tokens for products. */
#include "delta/cuda/keys/keys.cuh"

using namespace DELTA_KEYS;

namespace {

template <int D> struct prepare_memory {
    static constexpr int LD = D + 8, LG = D + 4;
    alignas(16) uint16_t q[C * LD], k[C * LD]; /* as loaded, then times e^(G-G0) of their block */
    alignas(16) uint16_t earlier[EARLIER * LD];
    alignas(16) float G[C * LG]; /* G - G0 of a token's block */
    alignas(16) float diagonal[BLOCKS][BLOCK * LF];
    float beta[C], k_norm[C], q_norm[C];
};

/* Sums kk and qk for a pair of tokens of one block. */
template <int D>
__device__ __forceinline__ void multiply_pair(float &kk, float &qk, const prepare_memory<D> &m, int i, int j) {
    constexpr int LD = D + 8, LG = D + 4;
    kk = qk = 0.0f;
#pragma unroll 4
    for (int c = 0; c < D; c += 2) {
        const float2 later = *reinterpret_cast<const float2 *>(m.G + i * LG + c);
        const float2 before = *reinterpret_cast<const float2 *>(m.G + j * LG + c);
        const unsigned ki = *reinterpret_cast<const unsigned *>(m.k + i * LD + c);
        const unsigned kj = *reinterpret_cast<const unsigned *>(m.k + j * LD + c);
        const unsigned qi = *reinterpret_cast<const unsigned *>(m.q + i * LD + c);
        const float low = low_of(kj) * power_of_two(later.x - before.x),
                    high = high_of(kj) * power_of_two(later.y - before.y);
        kk = fmaf(low_of(ki), low, fmaf(high_of(ki), high, kk));
        qk = fmaf(low_of(qi), low, fmaf(high_of(qi), high, qk));
    }
}

template <int D, typename PAGE> struct prepare_chunk {
    static constexpr int LD = D + 8, LG = D + 4;
    const carry_delta_job &job;
    prepare_memory<D> &m;
    PAGE &to;
    chunk_at at;
    int64_t head;

    /* Writes zeros to the triangles. Elements above the diagonal and the padding of rows keep them. */
    __device__ void clear_triangles() {
        auto *from = reinterpret_cast<uint4 *>(to.A);
        const int bytes = (int)(reinterpret_cast<char *>(to.end) - reinterpret_cast<char *>(to.A));
        for (int i = (int)threadIdx.x; i < bytes / 16; i += THREADS) {
            from[i] = {0, 0, 0, 0};
        }
    }

    __device__ void load() {
        clear_triangles();
        load_tile<D>(m.q, job.q, at.place, at.first, head / job.group, at.count, job.key);
        load_tile<D>(m.k, job.k, at.place, at.first, head / job.group, at.count, job.key);
        __pipeline_commit();
        const int thread = (int)threadIdx.x;
        if (thread < C) {
            const int64_t token = at.place.start + at.first + thread;
            const float x = thread < at.count ? load_one(job.beta, at_of(job.beta, at.place.batch, token, head)) : 0.0f;
            m.beta[thread] = thread < at.count ? beta_of(job, x) : 0.0f;
            to.beta[thread] = m.beta[thread];
        }
        __pipeline_wait_prior(0);
        __syncthreads();
    }

    /* Loads a channel's gates in base 2; gates of missing tokens are 0. */
    __device__ void load_gates(float (&g)[C], int c) const {
        const int64_t start = at_of(job.g, at.place.batch, at.place.start + at.first, head) + c;
        load_channel<C>(g, job.g, start, c < job.key ? at.count : 0);
#pragma unroll
        for (int i = 0; i < C; i++) {
            g[i] = LOG2_E * (g[i] < ZERO_FROM ? ZERO_FROM : g[i]);
        }
    }

    __device__ void put_sums(const float (&g)[C], int c) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < C; i++) {
            sum = i % BLOCK == 0 ? g[i] : sum + g[i];
            m.G[i * LG + c] = sum;
        }
    }

    /* Computes the pairs inside a warp's block, one for each lane at a time. */
    __device__ void make_diagonal() {
        const int warp = warp_of(), from = BLOCK * warp;
        for (int pair = lane_of(); pair < BLOCK * (BLOCK + 1) / 2; pair += 32) {
            const int i = (int)((sqrtf((float)(8 * pair + 1)) - 1.0f) * 0.5f), j = pair - i * (i + 1) / 2;
            float kk, qk;
            multiply_pair<D>(kk, qk, m, from + i, from + j);
            const float norm = m.k_norm[from + j];
            const float a = j < i ? kk * norm * m.k_norm[from + i] : 0.0f;
            put(from + i, from + j, a, qk * norm * job.scale * m.q_norm[from + i]);
            m.diagonal[warp][i * LF + j] = a;
        }
    }

    __device__ __forceinline__ void put(int i, int j, float a, float p) {
        const uint16_t rounded = to_16(p);
        to.A[i * LC + j] = to_16(a);
        to.P[i * LC + j] = rounded;
        if constexpr (!PAGE::BACK) {
            to.rest[i * LC + j] = to_16(p - low_of(rounded));
        }
    }

    /* Multiplies one channel of k and q by all its decays and stores the results. */
    __device__ void fade_channel(const float (&g)[C], int c) {
        float whole[BLOCKS]; /* sum of the gates of each block */
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            whole[b] = m.G[(BLOCK * b + BLOCK - 1) * LG + c];
        }
        float before = 0.0f;
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            float after = 0.0f; /* sum of the gates after token i, to its block's end */
#pragma unroll
            for (int i = BLOCK * b + BLOCK - 1; i >= BLOCK * b; i--) {
                const float inside = m.G[i * LG + c], fade = power_of_two(inside), to_start = power_of_two(before);
                const float k = low_of(m.k[i * LD + c]) * m.k_norm[i], q = low_of(m.q[i * LD + c]) * m.q_norm[i];
                m.k[i * LD + c] = to_16(k * fade);
                m.q[i * LD + c] = to_16(q * fade);
                to.faded_k[i * D + c] = to_16(k * fade * to_start);
                to.faded_q[i * D + c] = to_16(q * fade * to_start * (PAGE::BACK ? job.scale : 1.0f));
                float far = after;
                int row = 0;
#pragma unroll
                for (int a = 1; a < BLOCKS; a++) { /* to the start of block a */
                    if (a > b) {
                        m.earlier[(row + i) * LD + c] = to_16(k * power_of_two(far));
                        far += whole[a];
                    }
                    row += BLOCK * a;
                }
                to.left_k[i * D + c] = to_16(k * power_of_two(far));
                after += g[i];
            }
            before += whole[b];
        }
        to.end[c] = power_of_two(before);
    }

    /* Computes the products of a warp's 16 tokens with the blocks before them. */
    __device__ void make_blocks() {
        const int warp = warp_of(), row = earlier_of(warp);
        for (int p = 0; p < warp; p++) {
            float qk[2][4], kk[2][4];
            clear<2>(qk);
            clear<2>(kk);
#pragma unroll
            for (int e = 0; e < D / 16; e++) {
                unsigned of_q[4], of_k[4], b[4];
                load_left<LD>(of_q, m.q, BLOCK * warp, 16 * e);
                load_left<LD>(of_k, m.k, BLOCK * warp, 16 * e);
                load_right<LD>(b, m.earlier, 16 * e, row + BLOCK * p);
                multiply_two(qk[0], qk[1], of_q, b);
                multiply_two(kk[0], kk[1], of_k, b);
            }
#pragma unroll
            for (int x = 0; x < 8; x++) {
                const int i = BLOCK * warp + row_in(x % 4 / 2), j = BLOCK * p + x / 4 * 8 + column_in() + x % 2;
                put(i, j, kk[x / 4][x % 4], job.scale * qk[x / 4][x % 4]);
            }
        }
    }

    /* Inverts the diagonal blocks; for the backward pass also computes U. */
    __device__ void invert() {
        const int warp = warp_of();
        uint16_t *U = nullptr;
        if constexpr (PAGE::BACK) {
            U = to.U[warp];
        }
        invert_diagonal<1, PAGE::BACK>(m.diagonal[warp], m.beta + BLOCK * warp, to.T[warp], U);
    }

    __device__ void norms() {
        const int row = (int)threadIdx.x / 2, half = (int)threadIdx.x % 2;
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const uint16_t *from = (which == 0 ? m.q : m.k) + row * LD + half * (D / 2);
            float sum = 0.0f;
            for (int i = 0; i < D / 2; i++) {
                sum = fmaf(low_of(from[i]), low_of(from[i]), sum);
            }
            sum += __shfl_xor_sync(WARP, sum, 1);
            (which == 0 ? m.q_norm : m.k_norm)[row] = job.l2norm ? 1.0f / sqrtf(sum + 1e-6f) : 1.0f;
        }
    }

    __device__ void run() {
        float g[C];
        const int c = (int)threadIdx.x;
        load();
        norms();
        if (c < D) {
            load_gates(g, c);
            put_sums(g, c);
        }
        __syncthreads();
        make_diagonal();
        __syncthreads();
        invert();
        if (c < D) {
            fade_channel(g, c);
        }
        __syncthreads();
        make_blocks();
    }
};

template <int D, typename PAGE>
__global__ void __launch_bounds__(THREADS)
    delta_keys_prepare(const __grid_constant__ carry_delta_job job, const __grid_constant__ carry_delta_keys_part part,
                       int64_t items) {
    extern __shared__ float4 memory[];
    auto &m = *reinterpret_cast<prepare_memory<D> *>(memory);
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
        const chunk_at at = chunk_of(job, part.slot + i / part.heads);
        if (at.count > 0) {
            prepare_chunk<D, PAGE> one = {job, m, static_cast<PAGE *>(part.pages)[i], at, part.first + i % part.heads};
            one.run();
        }
        __syncthreads();
    }
}

template <int D, typename PAGE>
cudaError_t launch(const carry_delta_job *job, const carry_delta_keys_part *part, cudaStream_t stream) {
    return launch_items(delta_keys_prepare<D, PAGE>, part->slots * part->heads, THREADS, (int)sizeof(prepare_memory<D>),
                        stream, *job, *part);
}

} // namespace

cudaError_t DELTA_KEYS::launch_prepare(const carry_delta_job *job, const carry_delta_keys_part *part, bool back,
                                       cudaStream_t stream) {
    return job->key <= 64
               ? back ? launch<64, back_page<64>>(job, part, stream) : launch<64, page<64>>(job, part, stream)
           : back ? launch<128, back_page<128>>(job, part, stream)
                  : launch<128, page<128>>(job, part, stream);
}

const carry_delta_keys_kernels DELTA_KEYS_KERNELS = {launch_prepare, launch_walk, launch_back_walk, launch_values,
                                                     launch_gradients};

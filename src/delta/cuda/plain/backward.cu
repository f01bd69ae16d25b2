/* The backward pass on a GPU, token by token, for every size and option.

   A block takes some columns of V of one value head of one sequence (fewer if there are few heads) and walks from
   the last token to the first, with the gradient dS of the state in registers. States are recomputed from those that
   the forward pass kept: first for every SUB-th token of a chunk, then for every token of one such part. They are
   stored in the stash in global memory, where each thread reads only what it wrote.

   With S the state before a token, the forward step is

       S' = e^g S;   r = v - S'^T k;   u = beta r;   state after the token: S' + k u^T

   and the backward step, where dS is at first the gradient of the state after the token,

       dS += scale q do^T;   du = dS^T k;   dr = beta du;   dv = dr;   dbeta = du.r
       dq = scale (S' + k u^T) do;   dk = dS u - S' dr
       dS' = dS - k dr^T;   dg = sum of dS' S' over all elements (with a key gate: over V);   dS <- e^g dS'

   Sums over the columns of the block are computed in a fixed order and written as parts, which gradients.cu adds up. */
#include "delta/cuda/plain/columns.cuh"

namespace {

constexpr int SUB = 8; /* tokens whose states are held at once */
constexpr int KEEP = CARRY_DELTA_KEEP;
constexpr int SLOTS = KEEP / SUB + SUB; /* states of a block in the stash */

/* A thread has KR rows and NC columns. ACROSS is the number of columns that the threads of a block hold side by
   side. */
template <int KR, int NC, int THREADS, bool KEYS> struct shared_memory {
    static constexpr int WARPS = THREADS / 32;
    static constexpr int ACROSS = THREADS / LANES;
    static constexpr int KP = KR * LANES;
    static constexpr int WIDTH = ACROSS * NC;
    alignas(16) float k[SUB * KP];
    alignas(16) float q[SUB * KP];
    alignas(16) float decay[KEYS ? SUB * KP : SUB];
    float beta[SUB];
    float grad_o[SUB * WIDTH];
    float r[SUB * WIDTH]; /* v, then v - S'^T k, then dv */
    float sum[WARPS][(KEYS ? 3 : 2) * KP];
    float sum_beta[WARPS], sum_g[WARPS];
};

/* Sums x over the four columns of a warp's lanes. Each lane ends with KR / 4 of the sums. */
template <int KR> __device__ __forceinline__ void over_columns(float (&x)[KR], int lane) {
    const bool upper = (lane & 16) != 0;
    const bool right = (lane & 8) != 0;
#pragma unroll
    for (int i = 0; i < KR / 2; i++) {
        float got = __shfl_xor_sync(WARP, upper ? x[i] : x[i + KR / 2], 16);
        x[i] = (upper ? x[i + KR / 2] : x[i]) + got;
    }
#pragma unroll
    for (int i = 0; i < KR / 4; i++) {
        float got = __shfl_xor_sync(WARP, right ? x[i] : x[i + KR / 4], 8);
        x[i] = (right ? x[i + KR / 4] : x[i]) + got;
    }
}

template <int KR, int NC, int THREADS, bool KEYS> struct walk {
    static constexpr int WARPS = THREADS / 32;
    static constexpr int ACROSS = THREADS / LANES;
    static constexpr int KP = KR * LANES;
    static constexpr int WIDTH = ACROSS * NC;
    const carry_delta_back_job &back;
    shared_memory<KR, NC, THREADS, KEYS> &s;
    int64_t sequence, head, block;
    delta_place place;
    int first, across, r, lane, warp;
    float S[NC][KR], dS[NC][KR];

    __device__ int column(int c) const {
        return across + c * ACROSS;
    }

    __device__ float4 *stash(int slot) const {
        constexpr int64_t fours = (int64_t)THREADS * KR * NC / 4;
        return back.stash + ((int64_t)blockIdx.x * SLOTS + slot) * fours + threadIdx.x;
    }

    __device__ void put(int slot) const {
        float4 *to = stash(slot);
#pragma unroll
        for (int c = 0; c < NC; c++) {
#pragma unroll
            for (int e = 0; e < KR; e += 4) {
                to[(c * KR + e) / 4 * THREADS] = make_float4(S[c][e], S[c][e + 1], S[c][e + 2], S[c][e + 3]);
            }
        }
    }

    __device__ void get(int slot) {
        const float4 *from = stash(slot);
#pragma unroll
        for (int c = 0; c < NC; c++) {
#pragma unroll
            for (int e = 0; e < KR; e += 4) {
                float4 four = from[(c * KR + e) / 4 * THREADS];
                S[c][e] = four.x;
                S[c][e + 1] = four.y;
                S[c][e + 2] = four.z;
                S[c][e + 3] = four.w;
            }
        }
    }

    /* Loads tokens from t on. with_q: also loads q and the gradient of o, for the backward step. */
    __device__ void load(int64_t t, int count, bool with_q) {
        const carry_delta_job &job = back.job;
        int64_t token = place.start + t;
        delta_tile<SUB, KP, THREADS> k;
        delta_tile<SUB, KP, THREADS> q;
        delta_tile<SUB, WIDTH, THREADS> v;
        delta_tile<SUB, WIDTH, THREADS> grad;
        delta_gates<SUB, KP, THREADS, KEYS> gates;
        k.fetch(job.k, place.batch, token, head / job.group, count, 0, job.key);
        v.fetch(job.v, place.batch, token, head, count, first, job.value);
        gates.fetch(job, place.batch, token, head, count);
        if (with_q) {
            q.fetch(job.q, place.batch, token, head / job.group, count, 0, job.key);
            grad.fetch(back.grad_o, place.batch, token, head, count, first, job.value);
        }
        __syncthreads(); /* all threads have read the previous tile */
        k.put(s.k, job.k);
        v.put(s.r, job.v);
        gates.put(s.decay, s.beta, job, head);
        if (with_q) {
            q.put(s.q, job.q);
            grad.put(s.grad_o, back.grad_o);
        }
        __syncthreads();
        if (job.l2norm) {
            normalise_tile<KP>(s.k, count);
            if (with_q) {
                normalise_tile<KP>(s.q, count);
            }
            __syncthreads();
        }
    }

    __device__ const float *decay_of(int i) const {
        return s.decay + (KEYS ? i * KP : i);
    }

    /* Forward step for token i of the tile. r becomes v - S'^T k. */
    __device__ void advance(int i) {
        const float4 *k = reinterpret_cast<const float4 *>(s.k + i * KP);
#pragma unroll
        for (int c = 0; c < NC; c++) {
            float *at = s.r + i * WIDTH + column(c);
            float rest = *at - fade_and_see<KR, KEYS>(S[c], k, decay_of(i), r);
            add_outer<KR>(S[c], k, s.beta[i] * rest, r);
            __syncwarp();
            if (r == 0) {
                *at = rest;
            }
        }
    }

    /* Writes the sums over this block's columns for token t. */
    __device__ void write_sums(int64_t t) {
        const carry_delta_job &job = back.job;
        int64_t at = ((place.token + t) * job.value_heads + head) * back.blocks + block;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < (KEYS ? 3 : 2) * KP; i += THREADS) {
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                sum += s.sum[w][i];
            }
            float *to = i < KP ? back.part_q : i < 2 * KP ? back.part_k : back.part_g;
            if (i % KP < job.key) {
                to[at * job.key + i % KP] = sum;
            }
        }
        if (threadIdx.x == THREADS - 1) {
            float beta = 0.0f;
            float g = 0.0f;
            for (int w = 0; w < WARPS; w++) {
                beta += s.sum_beta[w];
                g += s.sum_g[w];
            }
            back.part_beta[at] = beta;
            if (!KEYS) {
                back.part_g[at] = g;
            }
        }
        __syncthreads();
    }

    /* Element e % 4 of `four`. */
    static __device__ __forceinline__ float pick(float4 four, int e) {
        return e % 4 == 0 ? four.x : e % 4 == 1 ? four.y : e % 4 == 2 ? four.z : four.w;
    }

    /* Backward step for token i of the tile. S is the state before it. */
    __device__ void retreat(int i) {
        const float4 *k = reinterpret_cast<const float4 *>(s.k + i * KP);
        const float4 *q = reinterpret_cast<const float4 *>(s.q + i * KP);
        const float4 *d = reinterpret_cast<const float4 *>(decay_of(i));
        const float one = KEYS ? 0.0f : *decay_of(i);
        float on_q[KR], on_k[KR], on_g[KEYS ? KR : 4];
        float on_beta = 0.0f;
        float on_gate = 0.0f;
#pragma unroll
        for (int e = 0; e < KR; e++) {
            on_q[e] = on_k[e] = 0.0f;
            if (KEYS) {
                on_g[e] = 0.0f;
            }
        }
#pragma unroll
        for (int c = 0; c < NC; c++) {
            const float grad = back.job.scale * s.grad_o[i * WIDTH + column(c)];
            const float rest = s.r[i * WIDTH + column(c)];
            add_outer<KR>(dS[c], q, grad, r);
            const float du = see<KR>(dS[c], k, r);
            const float dr = s.beta[i] * du;
            const float u = s.beta[i] * rest;
            on_beta = fmaf(du, rest, on_beta);
#pragma unroll
            for (int e = 0; e < KR; e++) {
                const float key = pick(k[e / 4 * LANES + r], e);
                const float fade = KEYS ? pick(d[e / 4 * LANES + r], e) : one;
                const float before = fade * S[c][e];
                on_q[e] = fmaf(fmaf(key, u, before), grad, on_q[e]);
                on_k[e] = fmaf(dS[c][e], u, fmaf(-before, dr, on_k[e]));
                const float rest_of = fmaf(-key, dr, dS[c][e]);
                if (KEYS) {
                    on_g[e] = fmaf(rest_of, before, on_g[e]);
                } else {
                    on_gate = fmaf(rest_of, before, on_gate);
                }
                dS[c][e] = fade * rest_of;
            }
            __syncwarp();
            if (r == 0) {
                s.r[i * WIDTH + column(c)] = dr;
            }
        }
        gather(on_q, 0);
        gather(on_k, KP);
        if constexpr (KEYS) {
            gather(on_g, 2 * KP);
        }
        on_beta += __shfl_xor_sync(WARP, on_beta, 8); /* all lanes of one column hold the same value */
        on_beta += __shfl_xor_sync(WARP, on_beta, 16);
        on_gate = over_lanes(on_gate);
        on_gate += __shfl_xor_sync(WARP, on_gate, 8);
        on_gate += __shfl_xor_sync(WARP, on_gate, 16);
        if (lane == 0) {
            s.sum_beta[warp] = on_beta;
            s.sum_g[warp] = on_gate;
        }
    }

    __device__ void gather(float (&x)[KR], int offset) {
        over_columns<KR>(x, lane);
        const int part = ((lane & 16) != 0 ? 2 : 0) + ((lane & 8) != 0 ? 1 : 0);
#pragma unroll
        for (int i = 0; i < KR / 4; i++) {
            s.sum[warp][offset + row_of(r, part * (KR / 4) + i)] = x[i];
        }
    }

    __device__ void store_dv(int64_t t, int count) {
        for (int i = (int)threadIdx.x; i < count * WIDTH; i += THREADS) {
            int at = first + i % WIDTH;
            if (at < back.job.value) {
                carry_store_any(back.dv.data, back.dv.dtype,
                                at_of(back.dv, place.batch, place.start + t + i / WIDTH, head) + at, s.r[i]);
            }
        }
    }

    __device__ void chunk(int64_t start) {
        const carry_delta_job &job = back.job;
        int tokens = place.length - start < KEEP ? (int)(place.length - start) : KEEP;
        int parts = (tokens + SUB - 1) / SUB;
        int64_t slot = kept_of(place, sequence) + start / KEEP;
#pragma unroll
        for (int c = 0; c < NC; c++) {
            load_column<KR>(S[c], job, job.kept, slot * job.kept_heads + head, first + column(c), r, false);
        }
        for (int part = 0; part + 1 < parts; part++) {
            put(part);
            load(start + part * SUB, SUB, false);
            for (int i = 0; i < SUB; i++) {
                advance(i);
            }
        }
        put(parts - 1);
        for (int part = parts - 1; part >= 0; part--) {
            int count = tokens - part * SUB < SUB ? tokens - part * SUB : SUB;
            get(part);
            load(start + part * SUB, count, true);
            for (int i = 0; i < count; i++) {
                put(KEEP / SUB + i);
                advance(i);
            }
            __syncwarp();
            for (int i = count - 1; i >= 0; i--) {
                get(KEEP / SUB + i);
                retreat(i);
                write_sums(start + part * SUB + i);
            }
            store_dv(start + part * SUB, count);
        }
    }

    __device__ void run() {
        const carry_delta_job &job = back.job;
        int64_t at = sequence * job.value_heads + head;
#pragma unroll
        for (int c = 0; c < NC; c++) {
            if (back.dfinal != nullptr) {
                load_column<KR>(dS[c], job, back.dfinal, at, first + column(c), r, job.transposed);
            } else {
#pragma unroll
                for (int e = 0; e < KR; e++) {
                    dS[c][e] = 0.0f;
                }
            }
        }
        for (int64_t start = (place.length + KEEP - 1) / KEEP * KEEP - KEEP; start >= 0; start -= KEEP) {
            chunk(start);
        }
#pragma unroll
        for (int c = 0; c < NC && back.dinitial != nullptr; c++) {
            store_column<KR>(back.dinitial, at, dS[c], job, first + column(c), r, job.transposed);
        }
    }
};

template <int KR, int NC, int THREADS, bool KEYS>
__global__ void __launch_bounds__(THREADS, 512 / THREADS)
    delta_recurrent_backward(const __grid_constant__ carry_delta_back_job back, int64_t units) {
    extern __shared__ float4 memory[];
    auto &s = *reinterpret_cast<shared_memory<KR, NC, THREADS, KEYS> *>(memory);
    for (int64_t i = blockIdx.x; i < units; i += gridDim.x) {
        int64_t block = i % back.blocks;
        int64_t head = i / back.blocks % back.job.value_heads;
        int64_t sequence = i / back.blocks / back.job.value_heads;
        walk<KR, NC, THREADS, KEYS> w = {back,
                                         s,
                                         sequence,
                                         head,
                                         block,
                                         place_of(back.job, sequence),
                                         (int)block * NC * (THREADS / LANES),
                                         (int)threadIdx.x / LANES,
                                         (int)threadIdx.x % LANES,
                                         (int)threadIdx.x % 32,
                                         (int)threadIdx.x / 32};
        w.run();
        __syncthreads();
    }
}

/* How a problem is divided: rows and columns for each thread, threads for each block, blocks of V, and the grid. */
struct cut {
    int rows, columns, threads;
    int64_t blocks, units, grid;
};

/* Chooses the rows of a thread by K, and the columns: as many (up to 4) as let state and gradient stay in registers,
   but fewer if there would be too few blocks to fill the GPU. lanes: value heads of all sequences. */
cut cut_of(const carry_delta_job *job, int64_t lanes, int multiprocessors) {
    cut c;
    c.rows = job->key <= 32 ? 4 : job->key <= 64 ? 8 : job->key <= 128 ? 16 : 32;
    c.threads = c.rows == 32 ? 512 : 256;
    int across = c.threads / LANES;
    int64_t resident = (int64_t)(512 / c.threads) * (multiprocessors > 0 ? multiprocessors : 1);
    c.columns = 1;
    while (c.columns * 2 * c.rows <= 32 && c.columns < 4 && c.columns * across < job->value &&
           lanes * ((job->value + 2 * c.columns * across - 1) / (2 * c.columns * across)) >= resident) {
        c.columns *= 2;
    }
    c.blocks = (job->value + c.columns * across - 1) / (c.columns * across);
    c.units = job->sequences * job->value_heads * c.blocks;
    c.grid = c.units < resident ? c.units : resident;
    return c;
}

template <int KR, int NC, int THREADS, bool KEYS>
cudaError_t launch_kernel(const carry_delta_back_job *back, const cut *c, cudaStream_t stream) {
    constexpr int bytes = (int)sizeof(shared_memory<KR, NC, THREADS, KEYS>);
    cudaError_t error = cudaFuncSetAttribute(delta_recurrent_backward<KR, NC, THREADS, KEYS>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
        return error;
    }
    delta_recurrent_backward<KR, NC, THREADS, KEYS><<<(unsigned)c->grid, THREADS, bytes, stream>>>(*back, c->units);
    return cudaGetLastError();
}

template <int KR, int NC, int THREADS>
cudaError_t launch(const carry_delta_back_job *back, const cut *c, cudaStream_t stream) {
    return back->job.by_key ? launch_kernel<KR, NC, THREADS, true>(back, c, stream)
                            : launch_kernel<KR, NC, THREADS, false>(back, c, stream);
}

} // namespace

int64_t carry_delta_back_blocks(const carry_delta_job *job, int multiprocessors) {
    return cut_of(job, job->sequences * job->value_heads, multiprocessors).blocks;
}

size_t carry_delta_back_stash(const carry_delta_job *job, int64_t most, int multiprocessors) {
    cut c = cut_of(job, job->sequences * job->value_heads, multiprocessors);
    int64_t grid = c.grid < most ? c.grid : most;
    return (size_t)grid * SLOTS * (size_t)(c.threads * c.rows * c.columns) * sizeof(float);
}

cudaError_t carry_delta_back_launch(const carry_delta_back_job *back, int multiprocessors, cudaStream_t stream) {
    cut c = cut_of(&back->job, back->lanes, multiprocessors);
    c.grid = c.grid < back->most_blocks ? c.grid : back->most_blocks;
    switch (c.rows * 8 + c.columns) {
    case 4 * 8 + 1:
        return launch<4, 1, 256>(back, &c, stream);
    case 4 * 8 + 2:
        return launch<4, 2, 256>(back, &c, stream);
    case 4 * 8 + 4:
        return launch<4, 4, 256>(back, &c, stream);
    case 8 * 8 + 1:
        return launch<8, 1, 256>(back, &c, stream);
    case 8 * 8 + 2:
        return launch<8, 2, 256>(back, &c, stream);
    case 8 * 8 + 4:
        return launch<8, 4, 256>(back, &c, stream);
    case 16 * 8 + 1:
        return launch<16, 1, 256>(back, &c, stream);
    case 16 * 8 + 2:
        return launch<16, 2, 256>(back, &c, stream);
    default:
        return launch<32, 1, 512>(back, &c, stream);
    }
}

/* The backward pass of causal attention on Hopper GPUs, for D of 64 and 128.

   A block has 128 keys of one head and walks the tiles of queries that see them; with grouped heads, it does so for
   every query head of the group in order. One thread copies tiles of q and dO with the copy engine, STAGES ahead. Two
   warpgroups have 64 keys each and keep their dK and dV in registers. For each tile, with keys as rows:

       S^T = K Q^T,  P^T = exp(scale S^T - lse),  dV += P^T dO,
       dP^T = V dO^T,  dS^T = P^T (dP^T - mean),  dK += dS^T Q,  dQ = dS K

   where mean[t] = dO[t].O[t]; dK and dQ are multiplied by scale when they are stored.

   P^T and dS^T are operands from registers; dS^T also goes to shared memory, since dQ sums over the keys of both
   warpgroups. The products for the next tile's scores are started before dQ is stored.

   Each block of keys that a tile of queries sees adds a part to the tile's dQ. The parts are added in a fixed order,
   from the last block of keys to the first: the first part is stored, the copy engine adds the following ones in
   memory, and a counter for each tile holds the number of parts so far. The block of the first keys, the last to add,
   reads the sum, adds its own part and writes dQ. Blocks start in the same order (each takes a ticket), and a block
   reaches a tile one step after the block of the following 128 keys does, so waiting is rare and cannot deadlock.

   A NaN or infinity in k must not reach queries that do not see it: dQ = dS K would multiply it by 0, which is NaN.
   Rows of k that have one are cleared in shared memory, and NaN is added to their scores. */
#ifndef CARRY_ATTENTION_BACKWARD_HOPPER_CUH
#define CARRY_ATTENTION_BACKWARD_HOPPER_CUH

#include "attention/backward_hopper_copy.cuh"

namespace hopper {

/* Clears rows of k beyond the document, and rows that are not finite, which are also marked. Two threads for each row.
   Returns true if any row is marked. */
template <typename T, typename Shape>
static __device__ __forceinline__ bool clear_keys(const backward_places<Shape> &p, backward_shared<Shape> &shared,
                                                  int valid) {
    const int thread = (int)threadIdx.x - 128, row = thread / 2;
    const uint32_t words = Shape::D / 16; /* 16-byte words in half a row */
    bool odd = false;
    for (uint32_t i = 0; i < words; i++) {
        const uint32_t word = (uint32_t)(thread & 1) * words + i;
        const uint4 v = shared_load(p.k + word / 8 * Shape::KEY_BAND + (uint32_t)row * 128 + word % 8 * 16);
        odd = odd || is_odd<T>(v.x) || is_odd<T>(v.y) || is_odd<T>(v.z) || is_odd<T>(v.w);
    }
    odd = __shfl_xor_sync(0xffffffffu, (int)odd, 1) != 0 || odd;
    const bool clears = odd || row >= valid;
    odd = odd && row < valid;
    if (!group_any(1, 256, clears)) {
        return false;
    }
    if (clears) {
        for (uint32_t i = 0; i < words; i++) {
            const uint32_t word = (uint32_t)(thread & 1) * words + i;
            shared_store(p.k + word / 8 * Shape::KEY_BAND + (uint32_t)row * 128 + word % 8 * 16,
                         make_uint4(0, 0, 0, 0));
        }
    }
    shared.bad[row] = odd;
    fence_async();
    return group_any(1, 256, odd);
}

/* Clears the rows of a tile from `valid` on, which belong to another document. Called by both warpgroups. */
template <typename Shape> static __device__ __forceinline__ void clear_rows(uint32_t tile, int valid) {
    const int words = (Shape::M - valid) * 8;
    for (int i = (int)threadIdx.x - 128; i < Shape::BANDS * words; i += 256) {
        shared_store(tile + (uint32_t)(i / words * Shape::ROW_BAND + valid * 128 + i % words * 16),
                     make_uint4(0, 0, 0, 0));
    }
    fence_async();
    group_sync(1, 256);
}

/* One of the computing warpgroups. */
template <typename T, typename Shape> struct backward_worker {
    static constexpr int D = Shape::D, M = Shape::M;
    const backward_job &job;
    const backward_item &item;
    const backward_places<Shape> &p;
    backward_shared<Shape> &shared;
    const int group, warp, lane; /* warp: index within the warpgroup */
    float poison[2];
    bool poisoned;
    float dk[D / 2], dv[D / 2];

    __device__ __forceinline__ backward_worker(const backward_job &j, const backward_item &i,
                                               const backward_places<Shape> &places, backward_shared<Shape> &s)
        : job(j), item(i), p(places), shared(s), group((int)threadIdx.x / 128 - 1), warp((int)threadIdx.x / 32 % 4),
          lane((int)threadIdx.x % 32), poison{0.0f, 0.0f}, poisoned(false), dk{}, dv{} {
    }

    __device__ __forceinline__ void arrive(uint32_t barrier) const {
        if (lane == 0) {
            barrier_arrive(barrier);
        }
    }

    /* Starts s = keys (k or v) times rows (q or dO). */
    __device__ __forceinline__ void begin_scores(float (&s)[M / 2], uint32_t keys, uint32_t rows) const {
        products_begin();
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            const uint32_t band = i / 4, along = i % 4 * 32;
            product_both(s, describe(keys + band * Shape::KEY_BAND + (uint32_t)group * 8192 + along, 0),
                         describe(rows + band * Shape::ROW_BAND + along, 0), i > 0);
        }
        products_commit();
    }

    /* sums += w rows */
    __device__ __forceinline__ void begin_sums(float (&sums)[D / 2], const uint32_t (&w)[M / 4], uint32_t rows) const {
        products_begin();
#pragma unroll
        for (int i = 0; i < M / 16; i++) {
            product_right(sums, w + 4 * i, describe(rows + i * 2048, Shape::ROW_BAND), 1);
        }
        products_commit();
    }

    /* Starts 64 x 64 of dQ: half of the columns for 64 queries, or all 64 columns for half of the queries. */
    __device__ __forceinline__ void begin_dq(float (&dq)[32], uint32_t ds) const {
        const uint32_t left = M == 64 ? ds : ds + (uint32_t)group * Shape::KEY_BAND;
        const uint32_t right = M == 64 ? p.k + (uint32_t)group * Shape::KEY_BAND : p.k;
        products_begin();
#pragma unroll
        for (int i = 0; i < Shape::KEYS / 16; i++) {
            product_turned(dq, describe(left + i * 2048, 0), describe(right + i * 2048, 0), i > 0);
        }
        products_commit();
    }

    /* Replaces scores by probabilities. Those of queries before the key are 0. */
    __device__ __forceinline__ void soften(float (&s)[M / 2], const float *lse, bool masks, int reach) const {
        if (poisoned) {
#pragma unroll
            for (int i = 0; i < M / 2; i++) {
                s[i] += poison[i / 2 % 2];
            }
        }
#pragma unroll
        for (int i = 0; i < M / 8; i++) {
            const float2 l = *(const float2 *)(lse + 8 * i + lane % 4 * 2);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[4 * i + j] = exp2_fast(fmaf(s[4 * i + j], job.scale_log2, j % 2 == 0 ? -l.x : -l.y));
            }
        }
        if (masks) {
            mask(s, reach);
        }
    }

    /* reach: the column of the first query that sees the thread's first key. The thread's second key is eight later. */
    __device__ __forceinline__ void mask(float (&s)[M / 2], int reach) const {
#pragma unroll
        for (int i = 0; i < M / 2; i++) {
            if (i / 4 * 8 + i % 2 + lane % 4 * 2 < reach + i / 2 % 2 * 8) {
                s[i] = 0.0f;
            }
        }
    }

    /* Replaces dp by dS, given the probabilities s. */
    __device__ __forceinline__ void slopes(float (&dp)[M / 2], const float (&s)[M / 2], const float *mean, bool masks,
                                           int reach) const {
#pragma unroll
        for (int i = 0; i < M / 8; i++) {
            const float2 l = *(const float2 *)(mean + 8 * i + lane % 4 * 2);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                dp[4 * i + j] = s[4 * i + j] * (dp[4 * i + j] - (j % 2 == 0 ? l.x : l.y));
            }
        }
        if (masks) {
            mask(dp, reach);
        }
    }

    __device__ __forceinline__ static void pack(uint32_t (&w)[M / 4], const float (&s)[M / 2]) {
#pragma unroll
        for (int i = 0; i < M / 4; i++) {
            w[i] = T::pack(s[2 * i], s[2 * i + 1]);
        }
    }

    /* Stores dS^T of this warpgroup's keys in shared memory, in the layout of the copy engine. */
    __device__ __forceinline__ void put_slopes(uint32_t ds, const uint32_t (&w)[M / 4]) const {
        const int row = 64 * group + 16 * warp + lane % 16;
#pragma unroll
        for (int i = 0; i < M / 16; i++) {
            const uint32_t chunk = (uint32_t)(i % 4 * 2 + lane / 16);
            const uint32_t to =
                ds + (uint32_t)(i / 4) * Shape::KEY_BAND + (uint32_t)row * 128 + ((chunk ^ (uint32_t)(row % 8)) << 4);
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[4 * i]),
                         "r"(w[4 * i + 1]), "r"(w[4 * i + 2]), "r"(w[4 * i + 3])
                         : "memory");
        }
    }

    /* The address of the thread's i-th 16 bytes in a tile of sums. */
    __device__ __forceinline__ uint32_t sum_at(int i) const {
        return p.sum + (uint32_t)((group * 8 + i) * 128 + (int)threadIdx.x % 128) * 16;
    }

    __device__ __forceinline__ void put_sum(const float (&dq)[32], int parity) const {
        barrier_wait(p.sum_empty, parity ^ 1);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(sum_at(i)), "f"(dq[4 * i]),
                         "f"(dq[4 * i + 1]), "f"(dq[4 * i + 2]), "f"(dq[4 * i + 3])
                         : "memory");
        }
        fence_async();
        __syncwarp();
        arrive(p.sum_full);
    }

    __device__ __forceinline__ void add_sum(float (&dq)[32], int parity) const {
        barrier_wait(p.sum_full, parity);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint4 v = shared_load(sum_at(i));
            dq[4 * i] += __uint_as_float(v.x);
            dq[4 * i + 1] += __uint_as_float(v.y);
            dq[4 * i + 2] += __uint_as_float(v.z);
            dq[4 * i + 3] += __uint_as_float(v.w);
        }
        __syncwarp();
        arrive(p.sum_empty);
    }

    /* Stores sums times factor as 16-bit numbers, in rows below `rows`; with ADDS and job.adds, adds them to the stored
       numbers. The warps store 16 rows each from `row` on; a thread stores 8 of each 32 columns from `column` on, in
       two of its warp's rows. */
    template <int COUNT, bool ADDS>
    __device__ __forceinline__ void put_rows(const backward_rows &to, int head, int64_t first, int row, int rows,
                                             int column, const float (&sums)[COUNT], float factor) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int at = row + 16 * warp + lane / 4 + 8 * r;
            uint16_t *out = to.data + (first + at) * to.row + head * to.head + column;
#pragma unroll
            for (int g = 0; g < COUNT / 16; g++) {
                uint32_t w[4];
                uint4 *target = (uint4 *)(out + 32 * g + 8 * (lane % 4));
                uint4 old = {};
                if (ADDS && job.adds && at < rows) {
                    old = *target;
                }
                uint32_t before[4] = {old.x, old.y, old.z, old.w};
                if (ADDS && job.adds) {
                    transpose4(before);
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int from = 16 * g + 4 * i + 2 * r;
                    float low = sums[from] * factor, high = sums[from + 1] * factor;
                    if (ADDS && job.adds) {
                        low += T::low(before[i]);
                        high += T::high(before[i]);
                    }
                    w[i] = T::pack(low, high);
                }
                transpose4(w);
                if (at < rows) {
                    *target = make_uint4(w[0], w[1], w[2], w[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void finish_dq(float (&dq)[32], int head, int m, int &parity) const {
        const backward_document &doc = job.document[item.document];
        if (item.block > 0) {
            put_sum(dq, parity);
            parity ^= 1;
            return;
        }
        if (backward_last_block(doc, m, M) > 0) {
            add_sum(dq, parity);
            parity ^= 1;
        }
        put_rows<32, false>(job.dq, head, doc.q_row, m * M + (M == 64 ? 0 : 64 * group), doc.queries,
                            M == 64 ? 64 * group : 0, dq, job.scale);
    }

    /* Waits for tile m of q or dO. In the last tile of a document, rows of the next are cleared. */
    __device__ __forceinline__ void wait_rows(uint32_t barrier, int parity, uint32_t tile, int m) const {
        const int valid = job.document[item.document].queries - m * M;
        barrier_wait(barrier, parity);
        if (valid < M && job.documents > 1) {
            clear_rows<Shape>(tile, valid);
        }
    }

    __device__ __forceinline__ void run();
};

template <typename T, typename Shape> __device__ __forceinline__ void backward_worker<T, Shape>::run() {
    const backward_document &doc = job.document[item.document];
    const int key = item.block * Shape::KEYS + 64 * group; /* the first key of this warpgroup */
    const int tiles = item.to - item.from, steps = tiles * job.group;
    float s[M / 2];
    barrier_wait(p.k_full, 0);
    poisoned = clear_keys<T>(p, shared, doc.keys - item.block * Shape::KEYS);
    if (poisoned) {
        for (int r = 0; r < 2; r++) {
            poison[r] = shared.bad[64 * group + 16 * warp + lane / 4 + 8 * r] ? NAN : 0.0f;
        }
    }
    wait_rows(p.q_full, 0, p.q, item.from);
    begin_scores(s, p.k, p.q);
    barrier_wait(p.v_full, 0);
    products_wait<0>();
    int at = 0, parity = 0, sum_parity = 0, m = item.from, head = item.head * job.group;
    float dp[M / 2];
    wait_rows(p.o_full, 0, p.d_o, item.from);
    begin_scores(dp, p.v, p.d_o);
    for (int step = 0; step < steps; step++) {
        const uint32_t q = p.q + at * Shape::ROW_BYTES, d_o = p.d_o + at * Shape::ROW_BYTES;
        const uint32_t ds = p.ds + (uint32_t)(step & 1) * Shape::DS_BYTES;
        const int reach = key + 16 * warp + lane / 4 - (doc.keys - doc.queries) - m * M;
        const bool masks = key + 63 > doc.keys - doc.queries + m * M;
        uint32_t w[M / 4];
        keep_below(s);
        soften(s, shared.lse[at], masks, reach);
        products_wait<0>();
        keep_below(dp);
        slopes(dp, s, shared.mean[at], masks, reach);
        pack(w, s);
        begin_sums(dv, w, d_o); /* dV and dK run while this warpgroup waits for the other */
        uint32_t e[M / 4];
        pack(e, dp);
        put_slopes(ds, e);
        fence_async();
        begin_sums(dk, e, q);
        group_sync(1, 256);
        float dq[32];
        begin_dq(dq, ds);
        const int this_m = m, this_head = head, this_at = at;
        if (++m == item.to) {
            m = item.from;
            head++;
        }
        if (++at == Shape::STAGES) {
            at = 0;
            parity ^= 1;
        }
        const bool more = step + 1 < steps;
        if (more) {
            wait_rows(p.q_full + 8 * at, parity, p.q + at * Shape::ROW_BYTES, m);
        }
        products_wait<1>();                                           /* the registers of w and e are free */
        begin_scores(s, p.k, more ? p.q + at * Shape::ROW_BYTES : q); /* the result is not used after the last tile */
        products_wait<1>();
        keep_below(dq);
        finish_dq(dq, this_head, this_m, sum_parity);
        if (more) {
            wait_rows(p.o_full + 8 * at, parity, p.d_o + at * Shape::ROW_BYTES, m);
        }
        begin_scores(dp, p.v, more ? p.d_o + at * Shape::ROW_BYTES : d_o);
        products_wait<1>();
        arrive(p.o_empty + 8 * this_at);
        arrive(p.q_empty + 8 * this_at);
    }
    products_wait<0>();
    keep_below(dk);
    keep_below(dv);
    put_rows<D / 2, true>(job.dk, item.head, doc.k_row, key, doc.keys, 0, dk, job.scale);
    put_rows<D / 2, true>(job.dv, item.head, doc.k_row, key, doc.keys, 0, dv, 1.0f);
}

} // namespace hopper

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::THREADS, 1)
    attention_backward_hopper(const __grid_constant__ backward_hopper_job given) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace hopper;
    extern __shared__ char memory[];
    const backward_job &job = given.job;
    __shared__ backward_shared<Shape> shared; /* static: its size shows whether the kernel is compiled */
    const backward_places<Shape> p = backward_open<Shape>(memory, shared);
    if (threadIdx.x == 0) {
        shared.ticket = atomicAdd(job.ticket, 1);
    }
    __syncthreads();
    const backward_item item = backward_item_of(job, shared.ticket, Shape::M);
    if (threadIdx.x == 0) {
        backward_barriers(p, item.block == 0);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<24>();
        if (threadIdx.x == 0) {
            backward_copy<Shape>(given, item, p, shared);
        } else if (threadIdx.x == 32) {
            backward_sum<Shape>(job, item, p);
        }
    } else {
        registers_take<240>();
        backward_worker<T, Shape> worker(job, item, p, shared);
        worker.run();
    }
#endif
}

#endif

/* The backward pass of causal attention on tensor cores since Ampere, for D of 64, 128 and 256. There are two kernels,
   and each computes the scores: in one, a block has 64 keys and walks the queries that see them (dK, dV); in the other,
   a block has 64 queries and walks the keys that they see (dQ). So no sum is shared by blocks, and the order of all
   sums is fixed.

   Both kernels are one function: a block has ROWS rows of two tensors A0, A1 (k and v, or q and dO) and walks tiles of
   COLUMNS rows of the other two, B0, B1. The next tile is copied while one is computed, if shared memory holds two. In
   these products the block's rows are the rows of S and P; mean[t] = dO[t].O[t]:

       S = A0 B0^T,  dP = A1 B1^T,  P = exp(scale S - lse),  dS = P (dP - mean)
       keys: dV += P B1, dK += dS B0;  queries: dQ += dS B0;  at the end dK and dQ are multiplied by scale

   The eight warps are four bands of 16 rows by two halves of the columns (of a tile, or of D). P and dS go through
   shared memory. Rows in shared memory have D elements; 16-byte piece c of row r is at c ^ (r % 8).

   A NaN or infinity in k must not reach queries that do not see it: dQ += dS B0 would multiply it by 0, which is NaN.
   In tiles with masked scores, 16-byte pieces of k that are not finite are cleared after the scores are computed. */
#ifndef CARRY_ATTENTION_BACKWARD_AMPERE_CUH
#define CARRY_ATTENTION_BACKWARD_AMPERE_CUH

#include "attention/backward_job.cuh"
#include "attention/tensor_cores.cuh"

namespace ampere {

constexpr int ROWS = 64, THREADS = 256;
/* Rows of a tile. */
template <int D> constexpr int COLUMNS = D == 256 ? 64 : 32;
/* Bytes of a row of P or dS, padded so that eight rows are in different banks. */
template <int D> constexpr int PITCH = (COLUMNS<D> + 8) * 2;

template <int D> constexpr int ROW_BYTES = ROWS *D * 2;
template <int D> constexpr int TILE_BYTES = COLUMNS<D> *D * 2;
template <int D> constexpr int shared_bytes(int stages) {
    return 2 * ROW_BYTES<D> + 2 * stages * TILE_BYTES<D> + 2 * ROWS * PITCH<D>;
}

template <int D> static __device__ __forceinline__ uint32_t place(uint32_t tile, int row, int piece) {
    return tile + (uint32_t)(row * D * 2 + (piece ^ (row % 8)) * 16);
}

/* Copies `count` rows from `first` on. Rows from `end` on are zeros. */
template <int D>
static __device__ __forceinline__ void copy_rows(uint32_t to, const backward_rows &from, int64_t base, int head,
                                                 int first, int end, int count) {
    constexpr int EACH = D / 8;
#pragma unroll 2
    for (int i = (int)threadIdx.x; i < count * EACH; i += THREADS) {
        const int row = i / EACH, piece = i % EACH;
        const bool is_there = first + row < end;
        const uint16_t *source =
            from.data + (base + (is_there ? first + row : 0)) * from.row + head * from.head + 8 * piece;
        const int bytes = is_there ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place<D>(to, row, piece)), "l"(source),
                     "r"(bytes));
    }
}

/* s = 16 rows of a times half the rows of a tile b, from `column` on; 16 by 16 at a time. */
template <typename T, int D>
static __device__ __forceinline__ void scores(float (&s)[COLUMNS<D> / 4], uint32_t a_rows, uint32_t b_rows, int row,
                                              int column) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < COLUMNS<D> / 4; i++) {
        s[i] = 0.0f;
    }
#pragma unroll 4
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[4];
        load_matrices<false>(a, place<D>(a_rows, row + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < COLUMNS<D> / 32; n++) {
            uint32_t b[4];
            load_matrices<false>(b, place<D>(b_rows, column + 16 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            T::multiply(s + 8 * n, a, b[0], b[1]);
            T::multiply(s + 8 * n + 4, a, b[2], b[3]);
        }
    }
}

/* sums[16, D / 2] += 16 rows of weights times half the columns of the tile. */
template <typename T, int D>
static __device__ __forceinline__ void add_products(float (&sums)[D / 4], uint32_t weights, uint32_t tile, int row,
                                                    int half) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < COLUMNS<D> / 16; k++) {
        uint32_t a[4];
        load_matrices<false>(a, weights + (uint32_t)((row + lane % 16) * PITCH<D> + (2 * k + lane / 16) * 16));
#pragma unroll
        for (int n = 0; n < D / 32; n++) {
            uint32_t b[4];
            load_matrices<true>(b, place<D>(tile, 16 * k + lane % 16, half * (D / 16) + 2 * n + lane / 16));
            T::multiply(sums + 8 * n, a, b[0], b[1]);
            T::multiply(sums + 8 * n + 4, a, b[2], b[3]);
        }
    }
}

/* Clears 16-byte pieces of a tile that are not finite. */
template <typename T, int D> static __device__ __forceinline__ void clear_odd(unsigned char *tile) {
    for (int i = (int)threadIdx.x; i < COLUMNS<D> * D / 8; i += THREADS) {
        uint4 *piece = (uint4 *)tile + i;
        const uint4 v = *piece;
        if (is_odd<T>(v.x) || is_odd<T>(v.y) || is_odd<T>(v.z) || is_odd<T>(v.w)) {
            *piece = make_uint4(0, 0, 0, 0);
        }
    }
}

/* Stores rows row + g and row + g + 8 of a warp's sums: to = factor sums, or to += factor sums. */
template <typename T, int D, bool ADDS>
static __device__ __forceinline__ void store_rows(const backward_rows &to, int64_t base, int head, int row, int end,
                                                  int half, const float (&sums)[D / 4], float factor, bool adds) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int at = row + lane / 4 + 8 * r;
        if (at >= end) {
            continue;
        }
        uint16_t *out = to.data + (base + at) * to.row + head * to.head + half * (D / 2) + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t *target = (uint32_t *)(out + 8 * i);
            float low = sums[4 * i + 2 * r] * factor, high = sums[4 * i + 2 * r + 1] * factor;
            if (ADDS && adds) {
                low += T::low(*target);
                high += T::high(*target);
            }
            *target = T::pack(low, high);
        }
    }
}

/* KEYS: the block's rows are keys, otherwise queries. */
template <typename T, int D, bool KEYS> struct worker {
    const backward_job &job;
    const backward_document &doc;
    const int stages, head, first; /* head and first row of the block */
    unsigned char *memory;
    uint32_t rows, tiles, weights;
    int row, half; /* the first row of the warp, and its half of the columns */
    float sums[D / 4], value_sums[KEYS ? D / 4 : 1];

    __device__ __forceinline__ worker(const backward_job &j, const backward_document &d, int count, int h, int row0,
                                      unsigned char *shared)
        : job(j), doc(d), stages(count), head(h), first(row0), memory(shared), sums{}, value_sums{} {
        rows = (uint32_t)__cvta_generic_to_shared(shared);
        tiles = rows + 2 * ROW_BYTES<D>;
        weights = tiles + (uint32_t)(2 * stages * TILE_BYTES<D>);
        row = (int)threadIdx.x / 32 % 4 * 16;
        half = (int)threadIdx.x / 128;
    }

    __device__ __forceinline__ void copy_own() {
        if (KEYS) {
            copy_rows<D>(rows, job.k_rows, doc.k_row, head, first, doc.keys, ROWS);
            copy_rows<D>(rows + ROW_BYTES<D>, job.v_rows, doc.k_row, head, first, doc.keys, ROWS);
        } else {
            copy_rows<D>(rows, job.q_rows, doc.q_row, head, first, doc.queries, ROWS);
            copy_rows<D>(rows + ROW_BYTES<D>, job.d_o_rows, doc.q_row, head, first, doc.queries, ROWS);
        }
    }

    /* Copies the tile of rows from `from` on: of q and dO of head `other` (KEYS), or of k and v. */
    __device__ __forceinline__ void copy_tile(int stage, int other, int from) {
        const uint32_t to = tiles + (uint32_t)(2 * stage * TILE_BYTES<D>);
        if (KEYS) {
            copy_rows<D>(to, job.q_rows, doc.q_row, other, from, doc.queries, COLUMNS<D>);
            copy_rows<D>(to + TILE_BYTES<D>, job.d_o_rows, doc.q_row, other, from, doc.queries, COLUMNS<D>);
        } else {
            copy_rows<D>(to, job.k_rows, doc.k_row, other, from, doc.keys, COLUMNS<D>);
            copy_rows<D>(to + TILE_BYTES<D>, job.v_rows, doc.k_row, other, from, doc.keys, COLUMNS<D>);
        }
    }

    /* Stores P and dS of the warp's scores in shared memory. */
    __device__ __forceinline__ void put_weights(const float (&s)[COLUMNS<D> / 4], const float (&dp)[COLUMNS<D> / 4],
                                                int query_head, int from) {
        const int lane = (int)threadIdx.x % 32, past = doc.keys - doc.queries;
        const int64_t numbers = (int64_t)query_head * job.padded + doc.padded;
        unsigned char *to = memory + (weights - rows);
#pragma unroll
        for (int i = 0; i < COLUMNS<D> / 4; i += 2) {
            const int r = row + lane / 4 + i / 2 % 2 * 8, c = COLUMNS<D> / 2 * half + i / 4 * 8 + lane % 4 * 2;
            float p[2], slope[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int key = KEYS ? first + r : from + c + j, query = KEYS ? from + c + j : first + r;
                const bool is_there = query < doc.queries;
                const float lse = is_there ? job.lse[numbers + query] : INFINITY;
                const float mean = is_there ? job.mean[numbers + query] : 0.0f;
                const bool seen = key <= past + query;
                p[j] = seen ? exp2_fast(fmaf(s[i + j], job.scale_log2, -lse)) : 0.0f;
                slope[j] = seen ? p[j] * (dp[i + j] - mean) : 0.0f;
            }
            if (KEYS) {
                *(uint32_t *)(to + r * PITCH<D> + c * 2) = T::pack(p[0], p[1]);
            }
            *(uint32_t *)(to + ROWS * PITCH<D> + r * PITCH<D> + c * 2) = T::pack(slope[0], slope[1]);
        }
    }

    __device__ __forceinline__ void compute(int stage, int other, int from) {
        const uint32_t tile = tiles + (uint32_t)(2 * stage * TILE_BYTES<D>);
        float s[COLUMNS<D> / 4], dp[COLUMNS<D> / 4];
        scores<T, D>(s, rows, tile, row, COLUMNS<D> / 2 * half);
        scores<T, D>(dp, rows + ROW_BYTES<D>, tile + TILE_BYTES<D>, row, COLUMNS<D> / 2 * half);
        put_weights(s, dp, KEYS ? other : head, from);
        __syncthreads();
        if (!KEYS && from + COLUMNS<D> - 1 > doc.keys - doc.queries + first) {
            clear_odd<T, D>(memory + (tile - rows));
            __syncthreads();
        }
        if constexpr (KEYS) {
            add_products<T, D>(value_sums, weights, tile + TILE_BYTES<D>, row, half);
        }
        add_products<T, D>(sums, weights + ROWS * PITCH<D>, tile, row, half);
        __syncthreads();
    }

    /* Walks tiles `from` to `to` - 1 of `heads` heads from `other` on. */
    __device__ __forceinline__ void walk(int other, int heads, int from, int to) {
        const int each = to - from, steps = each * heads;
        copy_own();
        copy_tile(0, other, from * COLUMNS<D>);
        asm volatile("cp.async.commit_group;");
        for (int step = 0; step < steps; step++) {
            const int next = step + 1;
            if (stages == 2 && next < steps) {
                copy_tile(next % 2, other + next / each, (from + next % each) * COLUMNS<D>);
            }
            asm volatile("cp.async.commit_group;");
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            __syncthreads();
            compute(stages == 2 ? step % 2 : 0, other + step / each, (from + step % each) * COLUMNS<D>);
            if (stages == 1 && next < steps) {
                copy_tile(0, other + next / each, (from + next % each) * COLUMNS<D>);
                asm volatile("cp.async.commit_group;");
                asm volatile("cp.async.wait_group 0;" ::: "memory");
            }
        }
    }
};

template <typename T, int D>
static __device__ __forceinline__ void keys_item(const backward_job &job, const backward_document &doc, int index,
                                                 int stages, unsigned char *memory) {
    const int first = index / job.key_heads * ROWS, head = index % job.key_heads;
    worker<T, D, true> w(job, doc, stages, head, first, memory);
    w.walk(head * job.group, job.group, max(first - (doc.keys - doc.queries), 0) / COLUMNS<D>,
           (doc.queries + COLUMNS<D> - 1) / COLUMNS<D>);
    store_rows<T, D, true>(job.dk, doc.k_row, head, first + w.row, doc.keys, w.half, w.sums, job.scale, job.adds);
    store_rows<T, D, true>(job.dv, doc.k_row, head, first + w.row, doc.keys, w.half, w.value_sums, 1.0f, job.adds);
}

template <typename T, int D>
static __device__ __forceinline__ void queries_item(const backward_job &job, const backward_document &doc, int index,
                                                    int stages, unsigned char *memory) {
    const int blocks = (doc.queries + ROWS - 1) / ROWS;
    const int first = (blocks - 1 - index / job.heads) * ROWS, head = index % job.heads;
    worker<T, D, false> w(job, doc, stages, head, first, memory);
    const int last = min(doc.keys - doc.queries + first + ROWS - 1, doc.keys - 1);
    w.walk(head / job.group, 1, 0, last / COLUMNS<D> + 1);
    store_rows<T, D, false>(job.dq, doc.q_row, head, first + w.row, doc.queries, w.half, w.sums, job.scale, false);
}

} // namespace ampere

/* Blocks with the most work of a document come first. */
template <typename T, int D, bool KEYS>
__global__ void __launch_bounds__(ampere::THREADS, 1)
    attention_backward_ampere(const __grid_constant__ backward_job job, int stages) {
    extern __shared__ uint4 storage[];
    const int index = (int)blockIdx.x;
    int at = 0;
    while (at + 1 < job.documents &&
           (KEYS ? job.document[at + 1].item : job.document[at + 1].tile * job.heads) <= index) {
        at++;
    }
    const backward_document &doc = job.document[at];
    if constexpr (KEYS) {
        ampere::keys_item<T, D>(job, doc, index - doc.item, stages, (unsigned char *)storage);
    } else {
        ampere::queries_item<T, D>(job, doc, index - doc.tile * job.heads, stages, (unsigned char *)storage);
    }
}

#endif

/* Attention of language models on tensor cores since Ampere: causal (with or without a window) or not, grouped heads,
   D of 64, 128 or 256, no key runs.

   The queries of the heads that read one head of keys are the rows of one matrix: row r is token r / group of the
   group's head r % group. So keys and values are read once for a group, and a step of generation, which has one token,
   fills `group` rows of a tile. A block has a tile of 128 rows, a warp 16 of them. Queries, keys and values are in
   shared memory (16-byte piece c of row r is at c ^ (r % 8)), and the next tile of keys and values is copied while one
   is computed. Tiles of keys that no row of a block sees are skipped, and blocks with the most keys come first.

   If there are fewer tiles than multiprocessors, tiles are divided into pieces along the keys. Pieces store partial
   sums in the workspace, and grouped_combine adds them in order.

   STEP: one token each of several sequences. blockIdx.y is the sequence. Lengths are read from GPU memory, so that the
   launch is the same for every token and can be recorded. */
#ifndef CARRY_ATTENTION_GROUPED_KERNEL_CUH
#define CARRY_ATTENTION_GROUPED_KERNEL_CUH

#include "attention/rows.cuh"
#include "attention/tensor_cores.cuh"

namespace {

constexpr int ROWS = CARRY_ATTENTION_ROWS;
constexpr int WARPS = ROWS / 16;
constexpr int COLUMNS = 64; /* keys of a tile */
constexpr int PIECES = 64;  /* most pieces of a tile of queries */
constexpr int ROUNDS = 2;   /* most rounds of the multiprocessors over pieces */
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float NOTHING = -1e30f; /* initial largest score of a row: below all scores, and not infinite */

template <int D> constexpr int TILE_BYTES = COLUMNS *D * 2;
template <int D> constexpr int QUERY_BYTES = ROWS *D * 2;
template <int D> constexpr int SHARED_BYTES = QUERY_BYTES<D> + 4 * TILE_BYTES<D>;

struct grouped_job {
    attention_rows q, k, v;
    uint16_t *o;
    int64_t o_row, o_head;
    float *lse; /* [heads, tokens], or NULL if not wanted */
    int tokens, rows, group, key_heads, keys;
    int past;   /* row r sees keys up to past + r / group; all keys if nothing is masked */
    int window; /* a row sees only the last `window` of these keys; 0: all */
    bool causal;
    float scale; /* times log2 e */
    int row_tiles, pieces;
    float *sums, *weights; /* for each piece: ROWS x D sums; ROWS x (largest score, sum of exponentials) */
    /* For a step: the number of keys of each sequence before this token, and strides between sequences in elements. */
    const int64_t *lengths;
    int64_t q_next, k_next, v_next, o_next;
    /* Pages of keys in a pool, and the index of each sequence's first page; NULL: no pool. */
    const int32_t *pages, *offsets;
    /* Keys and values in 8 bits (grouped_f8.cuh), instead of k and v. */
    const uint8_t *key_codes, *value_codes, *key_scales, *value_scales;
};

/* The job of a block; for a step, the job of its sequence. */
template <bool STEP> __device__ __forceinline__ grouped_job job_here(const grouped_job &given) {
    grouped_job job = given;
    if (STEP) {
        const int64_t b = blockIdx.y;
        job.q.data += b * job.q_next;
        job.k.data += b * job.k_next;
        job.v.data += b * job.v_next;
        job.o += b * job.o_next;
        job.past = (int)min(job.lengths[b], (int64_t)job.keys - 1); /* job.keys is the capacity */
        job.keys = job.past + 1;
        job.pages += job.pages != NULL ? job.offsets[b] : 0;
    }
    return job;
}

struct grouped_item {
    int head, row; /* head of keys; first row of the tile */
    int from, to;  /* tiles of keys */
};

__device__ __forceinline__ int last_key(const grouped_job &job, int row) {
    return job.causal ? job.past + min(row, job.rows - 1) / job.group : job.keys - 1;
}

__device__ __forceinline__ int first_key(const grouped_job &job, int row) {
    return job.window > 0 ? max(0, last_key(job, row) - job.window + 1) : 0;
}

/* Blocks run in the order of their indices, so the last rows, which see the most keys, come first. */
__device__ __forceinline__ grouped_item item_of(const grouped_job &job, int index) {
    const int tile = index / job.pieces, part = index % job.pieces;
    grouped_item item;
    item.head = tile % job.key_heads;
    item.row = (job.row_tiles - 1 - tile / job.key_heads) * ROWS;
    const int first = first_key(job, item.row) / COLUMNS;
    const int tiles = last_key(job, item.row + ROWS - 1) / COLUMNS + 1 - first;
    item.from = first + (int)((int64_t)tiles * part / job.pieces);
    item.to = first + (int)((int64_t)tiles * (part + 1) / job.pieces);
    return item;
}

template <int D> __device__ __forceinline__ uint32_t place(uint32_t tile, int row, int piece) {
    return tile + (uint32_t)(row * D * 2 + (piece ^ (row % 8)) * 16);
}

__device__ __forceinline__ void copy_16(uint32_t to, const uint16_t *from, bool is_there) {
    const int bytes = is_there ? 16 : 0; /* rows past the end are filled with zeros */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

template <int D>
__device__ __forceinline__ void copy_keys(uint32_t to, const attention_rows &from, const grouped_job &job, int head,
                                          int first) {
    constexpr int EACH = D / 8;
    const int64_t base = job.pages != NULL ? (int64_t)job.pages[first / COLUMNS] * COLUMNS : first;
#pragma unroll 2 /* more addresses at a time would not fit in registers beside the sums of D = 256 */
    for (int i = (int)threadIdx.x; i < COLUMNS * EACH; i += 32 * WARPS) {
        const int row = i / EACH, piece = i % EACH;
        const bool is_there = first + row < job.keys;
        const uint16_t *source = from.data + (base + (is_there ? row : 0)) * from.row + head * from.head + 8 * piece;
        copy_16(place<D>(to, row, piece), source, is_there);
    }
}

template <int D>
__device__ __forceinline__ void copy_queries(uint32_t to, const grouped_job &job, const grouped_item &item) {
    constexpr int EACH = D / 8;
    for (int i = (int)threadIdx.x; i < ROWS * EACH; i += 32 * WARPS) {
        const int row = i / EACH, piece = i % EACH;
        const bool is_there = item.row + row < job.rows;
        const int at = is_there ? item.row + row : 0;
        const uint16_t *from =
            job.q.data + at / job.group * job.q.row + (item.head * job.group + at % job.group) * job.q.head + 8 * piece;
        copy_16(place<D>(to, row, piece), from, is_there);
    }
}

/* s[16, COLUMNS] = q k^T for a warp's rows. */
template <int D>
__device__ __forceinline__ void scores(float (&s)[COLUMNS / 2], uint32_t queries, uint32_t keys, int warp) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) {
        s[i] = 0.0f;
    }
#pragma unroll 4 /* unrolling all 16 of D = 256 would spill registers */
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[4];
        load_matrices<false>(a, place<D>(queries, 16 * warp + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; n++) {
            uint32_t b[4];
            load_matrices<false>(b, place<D>(keys, 16 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            multiply(s + 8 * n, a, b[0], b[1]);
            multiply(s + 8 * n + 4, a, b[2], b[3]);
        }
    }
}

template <int D>
__device__ __forceinline__ void weighted(float (&o)[D / 2], const uint32_t (&w)[COLUMNS / 4], uint32_t values) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < COLUMNS / 16; k++) {
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            load_matrices<true>(b, place<D>(values, 16 * k + lane % 16, 2 * n + lane / 16));
            multiply(o + 8 * n, w + 4 * k, b[0], b[1]);
            multiply(o + 8 * n + 4, w + 4 * k, b[2], b[3]);
        }
    }
}

/* Masks the scores of keys that a row does not see. `first` is the tile's first key. */
__device__ __forceinline__ void hide(float (&s)[COLUMNS / 2], const int (&least)[2], const int (&most)[2], int first) {
    const int column = first + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) {
        const int key = column + i / 4 * 8 + i % 2, r = i / 2 % 2;
        if (key < least[r] || key > most[r]) {
            s[i] = -INFINITY;
        }
    }
}

/* Handles values of a tile that are not finite: adds them to o of rows that see them, and replaces them by zeros
   (rows.cuh). Called by all threads of a block. */
template <int D>
__device__ __forceinline__ void contain(float (&o)[D / 2], unsigned char *values, const int (&least)[2],
                                        const int (&most)[2], int first) {
    uint4 *pieces = (uint4 *)values;
    const int lane = (int)threadIdx.x % 32;
    bool odd = false;
    for (int i = (int)threadIdx.x; i < COLUMNS * D / 8; i += 32 * WARPS) {
        odd = odd || is_odd_bf16(pieces[i]);
    }
    if (__syncthreads_or(odd) == 0) {
        return;
    }
    for (int j = 0; j < COLUMNS; j++) {
#pragma unroll
        for (int i = 0; i < D / 2; i += 4) {
            const uint32_t pair = *(const uint32_t *)(values + place<D>(0, j, i / 4) + lane % 4 * 4);
            if (is_odd_bf16(pair)) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    if (first + j >= least[r] && first + j <= most[r]) {
                        add_odd_bf16(o[i + 2 * r], o[i + 2 * r + 1], pair);
                    }
                }
            }
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < COLUMNS * D / 8; i += 32 * WARPS) {
        pieces[i] = clear_odd_bf16(pieces[i]);
    }
    __syncthreads();
}

/* Computes a block's item. STEP: all rows of the block see the same keys. */
template <int D, bool STEP>
__device__ __forceinline__ void compute(const grouped_job &job, const grouped_item &item, uint32_t shared,
                                        unsigned char *memory, float (&o)[D / 2], softmax_state &state) {
    const int warp = (int)threadIdx.x / 32, row = item.row + 16 * warp + (int)threadIdx.x % 32 / 4;
    const bool is_idle = item.row + 16 * warp >= job.rows;
    const int most[2] = {last_key(job, row), last_key(job, row + 8)};
    const int least[2] = {first_key(job, row), first_key(job, row + 8)};
    /* The range of keys that all rows of the block see. */
    const int all_from = first_key(job, item.row + ROWS - 1), all_to = last_key(job, item.row);
    const uint32_t tiles = shared + QUERY_BYTES<D>;
    auto copy = [&](int tile) {
        const uint32_t to = tiles + (uint32_t)((tile - item.from) % 2 * 2 * TILE_BYTES<D>);
        copy_keys<D>(to, job.k, job, item.head, tile * COLUMNS);
        copy_keys<D>(to + TILE_BYTES<D>, job.v, job, item.head, tile * COLUMNS);
    };
    copy_queries<D>(shared, job, item);
    copy(item.from);
    asm volatile("cp.async.commit_group;");
    for (int tile = item.from; tile < item.to; tile++) {
        const uint32_t keys = tiles + (uint32_t)((tile - item.from) % 2 * 2 * TILE_BYTES<D>);
        const int first = tile * COLUMNS;
        if (tile + 1 < item.to) {
            copy(tile + 1);
        }
        asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        const bool hides = first < all_from || first + COLUMNS - 1 > all_to;
        if (!STEP && hides) {
            contain<D>(o, memory + (keys - shared) + TILE_BYTES<D>, least, most, first);
        }
        if (!is_idle) {
            float s[COLUMNS / 2], factor[2];
            uint32_t w[COLUMNS / 4];
            scores<D>(s, shared, keys, warp);
            if (hides) {
                hide(s, least, most, first);
            }
            if (exponentials(s, state, factor, job.scale, 0.0f)) {
                scale_rows(o, factor);
            }
            pack<COLUMNS / 2>(w, s);
            weighted<D>(o, w, keys + TILE_BYTES<D>);
        }
        __syncthreads(); /* before the next copy overwrites this tile */
    }
    add_columns(state);
}

template <int D>
__device__ __forceinline__ void store_row(const grouped_job &job, const grouped_item &item, int row, int r,
                                          const float (&o)[D / 2], const softmax_state &state) {
    const int lane = (int)threadIdx.x % 4;
    const float over = state.sum[r] == 0.0f ? 0.0f : 1.0f / state.sum[r];
    const int token = row / job.group, head = item.head * job.group + row % job.group;
    uint16_t *to = job.o + token * job.o_row + head * job.o_head;
#pragma unroll
    for (int g = 0; g < D / 32; g++) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = 16 * g + 4 * i + 2 * r;
            w[i] = pack_bf16(o[at] * over, o[at + 1] * over);
        }
        transpose4(w);
        if (row < job.rows) {
            *(uint4 *)(to + 32 * g + 8 * lane) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
    if (job.lse != NULL && lane == 0 && row < job.rows) {
        job.lse[(int64_t)head * job.tokens + token] = lse_of(state.largest[r], state.sum[r]);
    }
}

template <int D>
__device__ __forceinline__ void store_sums(const grouped_job &job, int64_t at, int r, const float (&o)[D / 2],
                                           const softmax_state &state) {
    const int lane = (int)threadIdx.x % 4;
    float *to = job.sums + at * D;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        *(float2 *)(to + 8 * i + 2 * lane) = make_float2(o[4 * i + 2 * r], o[4 * i + 2 * r + 1]);
    }
    if (lane == 0) {
        *(float2 *)(job.weights + 2 * at) = make_float2(state.largest[r], state.sum[r]);
    }
}

/* Stores the results of a block, or its partial sums if its tile is divided into pieces. */
template <int D>
__device__ __forceinline__ void store_item(const grouped_job &job, const grouped_item &item, const float (&o)[D / 2],
                                           const softmax_state &state) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int local = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4 + 8 * r;
        if (job.pieces == 1) {
            store_row<D>(job, item, item.row + local, r, o, state);
        } else if (item.row + local < job.rows) {
            store_sums<D>(job, ((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * ROWS + local, r, o, state);
        }
    }
}

template <int D, bool STEP>
__global__ void __launch_bounds__(32 * WARPS, 1) attention_grouped(const __grid_constant__ grouped_job given) {
    const grouped_job job = job_here<STEP>(given);
    extern __shared__ uint4 memory[];
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(memory);
    const grouped_item item = item_of(job, (int)blockIdx.x);
    float o[D / 2] = {};
    softmax_state state = {{NOTHING, NOTHING}, {0.0f, 0.0f}};
    if (item.from < item.to) {
        compute<D, STEP>(job, item, shared, (unsigned char *)memory, o, state);
    }
    store_item<D>(job, item, o, state);
}

/* A warp has a row, and a lane every 32nd pair of its elements. */
template <int D, bool STEP>
__global__ void __launch_bounds__(32 * WARPS) grouped_combine(const __grid_constant__ grouped_job given) {
    const grouped_job job = job_here<STEP>(given);
    constexpr int PAIRS = D / 64;
    const int lane = (int)threadIdx.x % 32, index = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    const int tile = index / ROWS, local = index % ROWS;
    const grouped_item item = item_of(job, tile * job.pieces);
    const int row = item.row + local;
    if (row >= job.rows) {
        return;
    }
    const int64_t tiles = (int64_t)blockIdx.y * job.row_tiles * job.key_heads + tile;
    const int64_t first = tiles * job.pieces * ROWS + local;
    const float2 *weights = (const float2 *)job.weights, *sums = (const float2 *)job.sums;
    float largest = NOTHING, sum = 0.0f;
    float2 o[PAIRS] = {};
    for (int i = 0; i < job.pieces; i++) {
        largest = fmaxf(largest, weights[first + i * ROWS].x);
    }
#pragma unroll 4
    for (int i = 0; i < job.pieces; i++) {
        const float2 weight = weights[first + i * ROWS];
        const float factor = exp2_fast(weight.x - largest);
        sum = fmaf(factor, weight.y, sum);
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const float2 part = sums[(first + i * ROWS) * (D / 2) + lane + 32 * j];
            o[j].x = fmaf(factor, part.x, o[j].x);
            o[j].y = fmaf(factor, part.y, o[j].y);
        }
    }
    const int token = row / job.group, head = item.head * job.group + row % job.group;
    const float over = sum == 0.0f ? 0.0f : 1.0f / sum;
    uint32_t *to = (uint32_t *)(job.o + token * job.o_row + head * job.o_head);
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        to[lane + 32 * j] = pack_bf16(o[j].x * over, o[j].y * over);
    }
    if (job.lse != NULL && lane == 0) {
        job.lse[(int64_t)head * job.tokens + token] = lse_of(largest, sum);
    }
}

/* Appends the keys and values of a step to the caches. A block for each sequence, 16 bytes for each thread. */
struct append_job {
    attention_rows k, v;     /* [sequences, key heads, D] */
    uint16_t *keys, *values; /* [sequences, room, key heads, D], packed */
    const int64_t *lengths;
    int64_t room;
    int heads, D;
};

__global__ void attention_append(const append_job job) {
    const int64_t b = blockIdx.x, at = job.lengths[b];
    const int64_t row = (b * job.room + at) * job.heads * job.D;
    for (int i = 8 * (int)threadIdx.x; i < job.heads * job.D && at < job.room; i += 8 * (int)blockDim.x) {
        const int head = i / job.D, d = i % job.D;
        *(uint4 *)(job.keys + row + i) = *(const uint4 *)(job.k.data + b * job.k.row + head * job.k.head + d);
        *(uint4 *)(job.values + row + i) = *(const uint4 *)(job.v.data + b * job.v.row + head * job.v.head + d);
    }
}

} // namespace

#endif

/* Shared by the warpgroups of a scan: kinds, shapes, the part of a problem that a block computes, the layout of shared
   memory, and the copies into it. */
#ifndef CARRY_DELTA_CHUNK_SCAN_PARTS_CUH
#define CARRY_DELTA_CHUNK_SCAN_PARTS_CUH

#include "delta/cuda/chunk/device.cuh"

namespace DELTA_CHUNK {

enum scan_kind { FORWARD, KEEP, BACK, PAIR, BACK_PAIR };

constexpr int STATE_BYTES = 2 * TILE; /* size of a kept state: bf16, bands of keys, values in rows */

/* In kind BACK, v is dO, o is dv, and the states are gradients: initial_state is the gradient of the final state. */
struct scan_args {
    CUtensorMap q, k, v, o;
    shape s;
    carry_delta_array out;
    const char *tiles;
    const float *initial_state;
    float *final_state;
    bool state_transposed;
    char *states, *values; /* results of every chunk: states in KEEP and BACK, values in KEEP */
    float *kept;           /* with gates by key channel: states that enter chunks, in the layout of keys/, or NULL */
    ring r;
    float *between; /* [segments of all sequences, value heads, values, keys]: passed from one part of a ring to the
                       next */
    float *pairs;   /* [segments of all sequences, value heads, parts, values, keys]; parts: L, M, and c in backward */
    int parts;
    const uint32_t *ready; /* FORWARD: NULL, or one word per tile. The prepare kernel, which runs at the same time,
                              sets it to 1 when it has stored the tile */
    bool whole; /* PAIR and BACK_PAIR: make pairs of all segments, since the state that enters the sequence is not known
                   yet */
};

enum pair_part { PART_L, PART_M, PART_C };

/* Values and keys of a block, and the number of stages of copies in flight. */
struct block_of_64 {
    static constexpr int VALUES = 64, KEYS = 128, STAGES = 3;
};
struct block_of_128 {
    static constexpr int VALUES = 128, KEYS = 128, STAGES = 2;
};
struct block_of_256_keys {
    static constexpr int VALUES = 64, KEYS = 256, STAGES = 2;
};
/* Gates by key channel. */
struct keyed_block_of_64 {
    static constexpr int VALUES = 64, KEYS = 128, STAGES = 2;
    static constexpr bool BY_KEY = true;
};
struct keyed_block_of_128 {
    static constexpr int VALUES = 128, KEYS = 128, STAGES = 2;
    static constexpr bool BY_KEY = true;
};
template <typename Block, typename = void> struct is_keyed { static constexpr bool value = false; };
template <typename Block> struct is_keyed<Block, decltype((void)Block::BY_KEY)> { static constexpr bool value = true; };

/* The layout of a stage in shared memory: k, q, v by bands (later R, V' or dv), then the prepared tiles. Kinds that
   read neither q nor W have smaller stages, and more of them. GROUPS: groups of 64 values. HALVES: halves of 128
   keys. */
template <typename Block, scan_kind KIND_> struct scan_shape {
    static constexpr scan_kind KIND = KIND_;
    static constexpr int KEYS = Block::KEYS, HALVES = KEYS / D;
    static constexpr bool REVERSE = KIND == BACK || KIND == BACK_PAIR, LOCAL = KIND == PAIR || KIND == BACK_PAIR;
    static constexpr bool OUTPUTS = KIND != KEEP && KIND != PAIR; /* q and W are read */
    static constexpr bool BY_KEY = is_keyed<Block>::value;
    static constexpr int GROUPS = Block::VALUES / 64, STAGES = OUTPUTS      ? Block::STAGES
                                                               : HALVES > 1 ? 3
                                                               : BY_KEY     ? 4
                                                                            : 5 - GROUPS / 2;
    static constexpr int THREADS = 128 * (GROUPS + 2);
    static constexpr int Q = HALVES * TILE, ROWS = OUTPUTS ? 2 * Q : Q;
    static constexpr int LEFT = BY_KEY ? ROWS : 0; /* offset of the keys for the update of the state */
    static constexpr int V = BY_KEY ? ROWS + TILE : ROWS, T = V + GROUPS * BAND, W = T + BAND;
    static constexpr int PREPARED = BY_KEY ? KEYS_BYTES : CHUNK_BYTES; /* bytes prepared for a chunk and a value head */
    static constexpr int NUMBERS = OUTPUTS ? W + BAND : W, STAGE = NUMBERS + NUMBERS_BYTES;
    /* Bytes of a stage that are copied from global memory: all but the zeros of T and W. With gates by key channel,
       BETA and END are the only numbers that are copied. */
    static constexpr int COPIED =
        STAGE - (OUTPUTS ? 2 : 1) * QUARTER - (BY_KEY ? NUMBERS_BYTES - KEYED_NUMBERS_BYTES : 0);
    static constexpr int STATE = STAGES * STAGE, STATE_BAND = GROUPS * BAND; /* the rounded state, bands of keys */
    static constexpr int OUT = STATE + 2 * HALVES * STATE_BAND;
    static constexpr int SHARED = 1024 + OUT + (KIND == FORWARD ? GROUPS * BAND : 0);
    static constexpr int WORK_REGISTERS = HALVES > 1 ? 240 : GROUPS == 1 ? 232 : KIND == FORWARD ? 192 : 216;
    static constexpr int OUT_REGISTERS = GROUPS == 1 ? 152 : KIND == FORWARD ? 96 : 48;
};

/* A kernel has blocks of one kind or of two kinds. The kernels below are compiled one in each source file, since ptxas
   needs seconds for each (cmake/instances.cmake). */
template <typename Block, scan_kind FIRST, scan_kind SECOND = FIRST> struct scan_kernel {
    using first = scan_shape<Block, FIRST>;
    using second = scan_shape<Block, SECOND>;
};
namespace scans {
using forward = scan_kernel<block_of_64, FORWARD>;
using forward_wide = scan_kernel<block_of_128, FORWARD>;
using forward_keys = scan_kernel<block_of_256_keys, FORWARD>;
using forward_pairs = scan_kernel<block_of_64, PAIR>;
using keyed = scan_kernel<keyed_block_of_64, FORWARD>;
using keyed_wide = scan_kernel<keyed_block_of_128, FORWARD>;
using keyed_pairs = scan_kernel<keyed_block_of_64, PAIR>;
using backward = scan_kernel<block_of_64, KEEP, BACK>;
using backward_wide = scan_kernel<block_of_128, KEEP, BACK>;
using backward_keys = scan_kernel<block_of_256_keys, KEEP, BACK>;
using backward_pairs = scan_kernel<block_of_64, PAIR, BACK_PAIR>;
} // namespace scans

struct scan_item {
    sequence_place at;
    int lane, sequence, segment, head, value_head, band; /* band: the first band of v of this block */
    int start, chunks;                                   /* in this launch: the first chunk, the number of chunks */
    bool begins, ends;                                   /* the walk begins, ends in this launch */
    bool map;                                            /* PAIR: M */
    template <typename Shape> __device__ __forceinline__ int chunk(int n) const {
        return start + (Shape::REVERSE ? chunks - 1 - n : n);
    }
};

/* full: a stage has been copied. empty: it has been read. state, values: the rounded state, or R (V', dv) of a chunk,
   is written. state_read: the state may be overwritten. */
template <int STAGES> struct scan_barriers {
    uint64_t full[STAGES], empty[STAGES], values[STAGES], state, state_read;
    int4 first_bad[STAGES][2]; /* FORWARD: for every working warp, the first token with NaN or infinity */
};

/* The number of thread blocks for one walked value head of one sequence or segment. For PAIR, it is enough for the
   larger of L and M. */
template <typename Shape> static __host__ __device__ __forceinline__ unsigned blocks_of(const shape &s) {
    int bands = Shape::KIND == PAIR && s.key_bands > s.bands ? s.key_bands : s.bands;
    return (unsigned)(bands / Shape::GROUPS);
}

template <typename Shape>
static __device__ __forceinline__ scan_item item_of(const shape &s, const ring &r, unsigned block) {
    unsigned parts = blocks_of<Shape>(s);
    unsigned at = block / parts;
    scan_item item;
    item.map = false;
    if (Shape::KIND == PAIR) {
        item.map = at % 2 == 1;
        at /= 2;
    }
    item.band = (int)(block % parts);
    item.value_head = (int)(at % (unsigned)s.value_heads);
    item.lane = (int)(at / (unsigned)s.value_heads);
    item.sequence = r.sequence_of_lane(item.lane, s.segments);
    item.head = item.value_head / (s.value_heads / s.heads);
    item.at = sequence_of(s, item.sequence);
    item.segment = item.sequence % s.segments;
    int all = (item.at.length + C - 1) / C;
    int2 part = part_of(r, Shape::REVERSE, all);
    item.start = part.x;
    item.chunks = part.y - part.x;
    item.begins = Shape::REVERSE ? part.y == all : part.x == 0;
    item.ends = Shape::REVERSE ? part.x == 0 : part.y == all;
    return item;
}

/* The layout of shared memory. */
template <typename Shape> struct scan_places {
    uint32_t start;
    const char *data;
    uint32_t full, empty, values, state, state_read;
    int4 (*bad)[2];
    __device__ __forceinline__ int *first_bad(int n) const {
        return (int *)bad[n % Shape::STAGES];
    }
    __device__ __forceinline__ uint32_t stage(int n) const {
        return start + n % Shape::STAGES * Shape::STAGE;
    }
    __device__ __forceinline__ const float *numbers(int n) const {
        return (const float *)(data + n % Shape::STAGES * Shape::STAGE + Shape::NUMBERS);
    }
    __device__ __forceinline__ uint32_t barrier(uint32_t first, int n) const {
        return first + 8 * (n % Shape::STAGES);
    }
    static __device__ __forceinline__ int parity(int n) {
        return n / Shape::STAGES % 2;
    }
};

/* Writes the zeros of T and W, which no copy overwrites. Called by all threads. */
template <typename Shape>
static __device__ __forceinline__ void clear_triangles(const scan_places<Shape> &p, int thread) {
    constexpr int PARTS = QUARTER / 16, TILES = Shape::OUTPUTS ? 2 : 1;
    for (int i = thread; i < Shape::STAGES * TILES * PARTS; i += Shape::THREADS) {
        uint32_t to = p.stage(i / (TILES * PARTS)) + Shape::T + i / PARTS % TILES * BAND + HALF + i % PARTS * 16;
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
    hopper::fence_async();
}

/* Waits until prepare has stored a tile. */
static __device__ __forceinline__ void wait_ready(const uint32_t *word) {
    uint32_t is;
    do {
        asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(is) : "l"(word) : "memory");
    } while (is == 0);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

template <typename Shape>
static __device__ __forceinline__ void copy_chunks(const scan_args &a, const scan_item &item,
                                                   const scan_places<Shape> &p) {
    using namespace hopper;
    for (int n = 0; n < item.chunks; n++) {
        uint32_t to = p.stage(n), barrier = p.barrier(p.full, n);
        int chunk = item.chunk<Shape>(n), row = item.at.first + chunk * C;
        int64_t tile = tile_of(a.s, item.at.slot + chunk, item.value_head);
        if (Shape::KIND == FORWARD && Shape::GROUPS == 1 && !Shape::BY_KEY && a.ready != nullptr) {
            wait_ready(a.ready + tile); /* before the stage is empty, so that its latency is hidden */
        }
        barrier_wait(p.barrier(p.empty, n), p.parity(n) ^ 1);
        barrier_expect(barrier, Shape::COPIED);
        const char *from = a.tiles + tile * Shape::PREPARED;
        if constexpr (Shape::BY_KEY) {
            copy_bytes(to, from + KEYS_AT, TILE, barrier);
            copy_bytes(to + Shape::LEFT, from + KEYS_AT + 2 * TILE, TILE, barrier);
        } else {
            for (int i = 0; i < Shape::HALVES; i++) {
                copy_tile(to + i * TILE, &a.k, row, 2 * i, item.head, item.at.batch, barrier);
            }
        }
        for (int band = 0; band < Shape::GROUPS; band++) {
            copy_tile(to + Shape::V + band * BAND, &a.v, row, item.band + band, item.value_head, item.at.batch,
                      barrier);
        }
        copy_bytes(to + Shape::T, from, HALF, barrier);
        if (Shape::OUTPUTS) {
            /* Two copies, though the bytes are contiguous: initcheck of CUDA 13.0 reports one copy of 6 KiB as not
               written. */
            copy_bytes(to + Shape::T + BAND - QUARTER, from + HALF, QUARTER, barrier);
            copy_bytes(to + Shape::W, from + KEPT, HALF, barrier);
            copy_bytes(to + Shape::W + BAND - QUARTER, from + KEPT + HALF,
                       Shape::BY_KEY ? QUARTER : QUARTER + NUMBERS_BYTES, barrier);
            if constexpr (Shape::BY_KEY) {
                copy_bytes(to + Shape::Q, from + KEYS_AT + TILE, TILE, barrier);
            } else {
                for (int i = 0; i < Shape::HALVES; i++) {
                    copy_tile(to + Shape::Q + i * TILE, &a.q, row, 2 * i, item.head, item.at.batch, barrier);
                }
            }
        } else {
            copy_bytes(to + Shape::T + BAND - QUARTER, from + HALF, QUARTER, barrier);
            if (!Shape::BY_KEY) {
                copy_bytes(to + Shape::NUMBERS, from + NUMBERS_AT, NUMBERS_BYTES, barrier);
            }
        }
        if (Shape::BY_KEY) {
            copy_bytes(to + Shape::NUMBERS + BETA * 4, from + NUMBERS_AT + BETA * 4, KEYED_NUMBERS_BYTES, barrier);
        }
    }
}

/* Rounds and packs sums as the left operand of the next products. */
template <int N> static __device__ __forceinline__ void pack_all(uint32_t (&to)[N / 2], const float (&from)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        to[i] = pack(from[2 * i], from[2 * i + 1]);
    }
}

} // namespace DELTA_CHUNK

#endif

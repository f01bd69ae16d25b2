/* fused: the forward pass in one kernel, which writes nothing between its stages.

   A cluster of two blocks takes one value head of one sequence after the other. Each block holds the state of 64 of its
   128 values. It has four warpgroups:

   - one walks (fused_walk.cuh): it holds the state and computes the outputs;
   - two prepare chunks (fused_prepare.cuh), each every fourth of them, so that four chunks are in the making in a
     cluster;
   - two threads of the last one ask for tiles.

   Chunks have numbers that go on from one value head to the next. Chunk n is prepared in block n % 2 by its warpgroup
   n / 2 % 2, in slot n % 4; the copy engine copies the slot to the other block. k and q are loaded for both blocks at
   once. */
#ifndef CARRY_DELTA_CHUNK_FUSED_CUH
#define CARRY_DELTA_CHUNK_FUSED_CUH

#include "delta/cuda/chunk/prepare.cuh"
#include "delta/cuda/chunk/worker.cuh"

namespace DELTA_CHUNK {

/* walk.q, walk.k, walk.v and walk.o: maps of one band; prepare.q and prepare.k: of two. */
struct fused_args {
    scan_args walk;
    prepare_args prepare;
    unsigned items; /* value heads of all sequences */
};

/* Shared memory. A stage: band 0 of k, band 0 of q, band 1 of k, band 1 of q, and v. A slot: T and W in bands of 32
   columns (T, W, T, W), then the numbers. */
constexpr int FUSED_STAGES = 2, FUSED_SLOTS = 4;
constexpr int FUSED_V = 2 * TILE, FUSED_STAGE = FUSED_V + BAND;
constexpr int FUSED_NUMBERS = 2 * BAND, FUSED_SLOT = FUSED_NUMBERS + NUMBERS_BYTES;
constexpr int FUSED_SLOTS_AT = FUSED_STAGES * FUSED_STAGE;
constexpr int FUSED_REST_AT = FUSED_SLOTS_AT + FUSED_SLOTS * FUSED_SLOT; /* rounding errors of T, of two warpgroups */
constexpr int FUSED_ROWS_AT = FUSED_REST_AT + 2 * BAND;                  /* k and q of the chunk to prepare */
constexpr int FUSED_OUT_AT = FUSED_ROWS_AT + 2 * TILE;                   /* outputs of two chunks */
constexpr int FUSED_SHARED = 1024 + FUSED_OUT_AT + 2 * BAND;
constexpr int FUSED_THREADS = 512;
using fused_layout = solve_layout<HALF, BAND>;

/* full: a stage has been copied. rows_full: the rows for a preparing warpgroup have been copied. rows_empty: they have
   been read. prepared: a slot is there. done: both blocks have walked the chunk of a slot. */
struct fused_barriers {
    uint64_t full[FUSED_STAGES], rows_full[2], rows_empty, prepared[FUSED_SLOTS], done[FUSED_SLOTS];
};

struct fused_places {
    uint32_t start;
    char *data;
    uint32_t full, rows_full, rows_empty, prepared, done;
    unsigned rank; /* of this block in the cluster */

    __device__ __forceinline__ uint32_t stage(int n) const {
        return start + n % FUSED_STAGES * FUSED_STAGE;
    }
    __device__ __forceinline__ uint32_t slot(int n) const {
        return start + FUSED_SLOTS_AT + n % FUSED_SLOTS * FUSED_SLOT;
    }
    __device__ __forceinline__ float *numbers(int n) const {
        return (float *)(data + FUSED_SLOTS_AT + n % FUSED_SLOTS * FUSED_SLOT + FUSED_NUMBERS);
    }
    __device__ __forceinline__ void wait_full(int n) const {
        hopper::barrier_wait(full + 8 * (n % FUSED_STAGES), n / FUSED_STAGES % 2);
    }
    __device__ __forceinline__ void wait_prepared(int n) const {
        hopper::barrier_wait(prepared + 8 * (n % FUSED_SLOTS), n / FUSED_SLOTS % 2);
    }
    __device__ __forceinline__ void wait_done(int n) const {
        hopper::barrier_wait(done + 8 * (n % FUSED_SLOTS), n / FUSED_SLOTS % 2);
    }
};

using fused_shape = scan_shape<block_of_64, FORWARD>;

/* A chunk among those that a cluster walks, in all its items. */
struct fused_cursor {
    unsigned index; /* of its item */
    int chunk, chunks, batch, first, length, head, value_head;

    __device__ __forceinline__ bool find(const fused_args &a) {
        for (; index < a.items; index += gridDim.x / 2) {
            scan_item item = item_of<fused_shape>(a.walk.s, {}, 2 * index);
            if (chunk < item.chunks) {
                chunks = item.chunks;
                batch = item.at.batch;
                first = item.at.first;
                length = item.at.length;
                head = item.head;
                value_head = item.value_head;
                return true;
            }
            chunk -= item.chunks;
        }
        return false;
    }
    /* Goes to the chunk with this number, or `by` chunks on. Returns false if there is none. */
    __device__ __forceinline__ bool begin(const fused_args &a, int number) {
        index = blockIdx.x / 2;
        chunk = number;
        return find(a);
    }
    __device__ __forceinline__ bool advance(const fused_args &a, int by) {
        chunk += by;
        if (chunk < chunks) {
            return true;
        }
        chunk -= chunks;
        index += gridDim.x / 2;
        return find(a);
    }
    __device__ __forceinline__ chunk_place place() const {
        return {batch, first + chunk * C, min(C, length - chunk * C)};
    }
};

/* What a preparing warpgroup works on: the numbers, and the chunk they are of. */
struct fused_work {
    prepare_numbers n;
    fused_cursor at; /* used by the warp of band 0 */
    int length;      /* tokens of the chunk, 0 after the last one */
};

/* Asks for the tiles of the walk. One thread. Block 0 loads k and block 1 loads q, both for both blocks. */
static __device__ __forceinline__ void fused_load(const fused_args &a, const fused_places &p) {
    using namespace hopper;
    fused_cursor at;
    bool more = at.begin(a, 0);
    const CUtensorMap *map = p.rank == 0 ? &a.walk.k : &a.walk.q;
    for (int n = 0; more; n++, more = at.advance(a, 1)) {
        uint32_t to = p.stage(n), full = p.full + 8 * (n % FUSED_STAGES);
        int row = at.first + at.chunk * C;
        if (n >= FUSED_STAGES) {
            p.wait_done(n - FUSED_STAGES);
        }
        barrier_expect(full, FUSED_STAGE);
        for (int band = 0; band < 2; band++) {
            copy_tile_to_all(to + (2 * band + (int)p.rank) * BAND, map, row, band, at.head, at.batch, full, 3);
        }
        copy_tile(to + FUSED_V, &a.walk.v, row, (int)p.rank, at.value_head, at.batch, full);
    }
}

/* Asks for k and q of the chunks that this block prepares. One thread. */
static __device__ __forceinline__ void fused_load_rows(const fused_args &a, const fused_places &p) {
    using namespace hopper;
    fused_cursor at;
    bool more = at.begin(a, (int)p.rank);
    uint32_t to = p.start + FUSED_ROWS_AT;
    for (int j = 0; more; j++, more = at.advance(a, 2)) {
        uint32_t full = p.rows_full + 8 * (j % 2);
        int row = at.first + at.chunk * C;
        if (j > 0) {
            barrier_wait(p.rows_empty, (j - 1) % 2);
        }
        barrier_expect(full, 2 * TILE);
        copy_tile(to, &a.prepare.k, row, 0, at.head, at.batch, full);
        copy_tile(to + TILE, &a.prepare.q, row, 0, at.head, at.batch, full);
    }
}

} // namespace DELTA_CHUNK

#endif

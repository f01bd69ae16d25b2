/* The kernel prepare (prepare.cuh): its warpgroups and the items that they take. */
#ifndef CARRY_DELTA_CHUNK_PREPARER_CUH
#define CARRY_DELTA_CHUNK_PREPARER_CUH

#include "delta/cuda/chunk/prepare.cuh"

namespace DELTA_CHUNK {

/* A warpgroup of prepare. */
template <int HALVES> struct preparer {
    const prepare_args &a;
    prepare_numbers &n;
    uint32_t start; /* of its shared memory */
    char *data;
    int thread, band, lane, first; /* first: of its four barriers */
    unsigned item;
    int head, slot;
    chunk_place at;
    int64_t stored;   /* the tile that was stored last, or -1 */
    number_bits bits; /* of the next pair of value heads, in the warps of bands 0 and 1 */

    __device__ __forceinline__ void meet() const {
        hopper::group_meet(first, 128);
    }
    /* Finds the first item from `from` on that has tokens. Unless sequences are packed, items take one chunk of each
       sequence in turn, the order in which scans need them. Returns false if no item is left. */
    __device__ __forceinline__ bool find(unsigned from, unsigned step) {
        for (item = from; item < a.items; item += step) {
            head = (int)(item % (unsigned)a.s.heads);
            slot = (int)(item / (unsigned)a.s.heads);
            if (a.s.cu_seqlens == nullptr) {
                slot = slot % a.s.batch * ((a.s.tokens + C - 1) / C) + slot / a.s.batch;
            }
            at = chunk_of(a.s, slot);
            if (at.length > 0) {
                return true;
            }
        }
        return false;
    }
    /* Asks for k and q of the item. One thread. */
    __device__ __forceinline__ void ask() {
        using namespace hopper;
        uint32_t full = shared_address(&n.full), k = start + ROWS_AT;
        barrier_expect(full, HALVES * 2 * TILE);
        for (int i = 0; i < HALVES; i++) {
            copy_tile(k + 2 * i * TILE, &a.k, at.first, 2 * i, head, at.batch, full);
            copy_tile(k + (2 * i + 1) * TILE, &a.q, at.first, 2 * i, head, at.batch, full);
        }
    }
    /* Waits until the tile that was stored last may be overwritten, and says that it is there. One thread. */
    __device__ __forceinline__ void settle() {
        if (a.ready == nullptr) {
            hopper::stores_wait_read();
        } else if (stored >= 0) {
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
            asm volatile("st.release.gpu.global.b32 [%0], 1;" ::"l"(a.ready + stored) : "memory");
            stored = -1;
        }
    }
    /* In parts of powers of two: initcheck of CUDA 13.0 does not see all of another store. One thread. */
    __device__ __forceinline__ void store(int64_t tile) {
        using namespace hopper;
        char *to = a.tiles + tile * CHUNK_BYTES;
        store_bytes(to, start, 8192);
        store_bytes(to + 8192, start + 8192, NUMBERS_AT - 8192);
        store_bytes(to + NUMBERS_AT, start + NUMBERS_AT, NUMBERS_BYTES);
        stores_commit();
        stored = tile;
    }
    __device__ __forceinline__ void make_band(int e, const float (&kk)[32], const float (&qk)[32]) {
        band_rows m = {};
        weigh(a, n, e, kk, qk, m, band, lane);
        int row = 16 * band + lane / 4;
        float by[2] = {a.scale * n.inverse_norm[1][row], a.scale * n.inverse_norm[1][row + 8]};
        store_numbers(a, n, e, (float *)(data + NUMBERS_AT), band, lane);
        begin_band(m, band, lane);
        band_place<solve_layout<KEPT, HALF - QUARTER>> T(start, start + REST_AT, lane);
        solve_band(m, T, first, band);
        apply_scores(m, T, by, band);
    }
    __device__ __forceinline__ int group() const {
        return (a.s.value_heads >> a.s.shift) / a.s.heads;
    }
    /* Loads the bits of value heads e and e + 1 of the item's head. */
    __device__ __forceinline__ void load_pair(int e) {
        if (band < min(2, group() - e)) {
            bits = load_bits(a, at, head * group() + e + band, lane);
        }
    }
    /* Computes the tile of one value head. `n` must have the numbers of its pair of value heads, in which it has index
       e. Norms are computed for the item's first value head (`begins`) and kept for the others. If this is the item's
       last value head (`last`), also finds the next item and starts to copy its k and q. `next` is the value head after
       this one, 0 if `last`; if a new pair starts there, loads the bits of that pair. Returns false if no item is
       left. */
    __device__ __forceinline__ bool make_tile(int e, bool begins, bool last, int next, unsigned step) {
        float kk[32], qk[32];
        multiply_all<HALVES>(kk, qk, n, a.l2norm && begins, start + ROWS_AT, band, lane);
        if (thread == 0) {
            settle();
        }
        meet(); /* the numbers are there, the tile before has been stored, and k and q have been read */
        bool more = !last || find(item + step, step);
        if (last && more && thread == 0) {
            ask();
        }
        if (more && next < group() && (last || next % 2 == 0)) {
            load_pair(next);
        }
        make_band(e, kk, qk);
        hopper::fence_async();
        meet();
        return more;
    }
    /* Waits for k and q, and clears rows behind the end of a sequence. */
    __device__ __forceinline__ void take_rows(int parity) {
        uint32_t k = start + ROWS_AT;
        hopper::barrier_wait(hopper::shared_address(&n.full), parity);
        if (at.length < C) {
            clear_rows(k, 4 * HALVES, at.length, thread);
            hopper::fence_async();
            meet();
        }
    }
    __device__ __forceinline__ void run(unsigned from, unsigned step) {
        bool more = find(from, step);
        if (more && thread == 0) {
            ask();
        }
        if (more) {
            load_pair(0);
        }
        for (int parity = 0; more; parity ^= 1) {
            int64_t tile = (int64_t)slot * (a.s.value_heads >> a.s.shift) + head * group();
            for (int e = 0; e < group(); e++) {
                bool last = e + 1 == group();
                if (e % 2 == 0 && band < min(2, group() - e)) {
                    sum_numbers(a, at, head * group() + e + band, bits, n, band, lane);
                }
                if (e == 0) {
                    take_rows(parity);
                }
                more = make_tile(e % 2, e == 0, last, last ? 0 : e + 1, step);
                if (thread == 0) {
                    store(tile + e);
                }
            }
        }
        if (thread == 0) {
            settle();
            hopper::stores_wait_read();
        }
    }
};

/* HALVES: halves of 128 keys. */
template <int HALVES>
__global__ void __launch_bounds__(128 * prepare_block<HALVES>::GROUPS, 1)
    prepare(const __grid_constant__ prepare_args a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using block = prepare_block<HALVES>;
    extern __shared__ char memory[];
    __shared__ prepare_numbers n[block::GROUPS];
    asm volatile("griddepcontrol.launch_dependents;");
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0), thread = (int)threadIdx.x % 128;
    /* The last band has the most to do, so its warp varies. */
    int band = __shfl_sync(0xffffffffu, (thread / 32 + group) % 4, 0);
    uint32_t start = (hopper::shared_address(memory) + 1023u) & ~1023u;
    char *data = memory + (start - hopper::shared_address(memory)) + group * block::BYTES;
    if (thread == 0) {
        hopper::barrier_init(hopper::shared_address(&n[group].full), 1);
        hopper::fence_async();
    }
    preparer<HALVES> me = {a, n[group], start + group * block::BYTES, data, thread, band, thread % 32, 4 * group};
    me.stored = -1;
    clear_norms(n[group], thread);
    me.meet();
    me.run(blockIdx.x * block::GROUPS + (unsigned)group, gridDim.x * block::GROUPS);
#endif
}

} // namespace DELTA_CHUNK

#endif

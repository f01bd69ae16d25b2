/* The warpgroups of the fused kernel that prepare chunks. The steps are those of prepare (prepare.cuh). */
#ifndef CARRY_DELTA_CHUNK_FUSED_PREPARE_CUH
#define CARRY_DELTA_CHUNK_FUSED_PREPARE_CUH

#include "delta/cuda/chunk/fused.cuh"

namespace DELTA_CHUNK {

struct fused_preparer {
    const fused_args &a;
    const fused_places &p;
    fused_work &own;
    int thread, band, lane, group; /* group: 0 or 1 */

    __device__ __forceinline__ int barrier() const { /* the first of four */
        return 4 + 4 * group;
    }
    __device__ __forceinline__ void meet() const {
        hopper::group_meet(barrier(), 128);
    }
    /* Computes the numbers of the chunk at `at`, unless there is none (`more`). The warp of band 0, which has the least
       to do. */
    __device__ __forceinline__ void take_numbers(const fused_cursor &at, bool more, int m) const {
        chunk_place place = at.place();
        if (more) {
            sum_numbers(a.prepare, place, at.value_head, load_bits(a.prepare, place, at.value_head, lane), own.n, m % 2,
                        lane);
        }
        if (lane == 0) {
            own.at = at;
            own.length = more ? place.length : 0;
        }
    }
    /* Waits for k and q, clears rows behind the end of a sequence, and computes the products. The next chunk's rows may
       then be copied. m: chunks that this warpgroup has prepared. */
    __device__ __forceinline__ void multiply_rows(float (&kk)[32], float (&qk)[32], int m, int length) const {
        uint32_t rows = p.start + FUSED_ROWS_AT;
        hopper::barrier_wait(p.rows_full + 8 * group, m % 2);
        if (length < C) {
            clear_rows(rows, 4, length, thread);
            hopper::fence_async();
            meet();
        }
        multiply_all<1>(kk, qk, own.n, a.prepare.l2norm, rows, band, lane);
        __syncwarp();
        if (lane == 0) {
            hopper::barrier_arrive(p.rows_empty);
        }
        meet(); /* the numbers and the norms are there */
    }
    __device__ __forceinline__ void make_band(int c, int m, const float (&kk)[32], const float (&qk)[32]) const {
        band_rows b = {};
        prepare_numbers &n = own.n;
        weigh(a.prepare, n, m % 2, kk, qk, b, band, lane);
        int row = 16 * band + lane / 4;
        float by[2] = {a.prepare.scale * n.inverse_norm[1][row], a.prepare.scale * n.inverse_norm[1][row + 8]};
        if (m > 0) {
            p.wait_done(c - FUSED_SLOTS);
        }
        store_numbers(a.prepare, n, m % 2, p.numbers(c), band, lane);
        band_place<fused_layout> T(p.slot(c), p.start + FUSED_REST_AT + group * HALF, lane);
        solve_band(b, T, barrier(), band, lane);
        float W[32];
        apply_inverse<fused_layout::RIGHT>(W, b.P, T.tile, T.tile + T.rest);
        store_weights(T, W, by, band, lane);
    }
    /* Tells both walks that the slot is there. One thread. */
    __device__ __forceinline__ void publish(int c) const {
        using namespace hopper;
        uint32_t from = p.slot(c), full = p.prepared + 8 * (c % FUSED_SLOTS), there = in_block(full, p.rank ^ 1);
        barrier_expect_there(there, FUSED_SLOT);
        copy_there(in_block(from, p.rank ^ 1), from, FUSED_SLOT, there);
        barrier_arrive(full);
    }
    __device__ __forceinline__ void run() const {
        int c = (int)p.rank + 2 * group;
        clear_norms(own.n, thread);
        if (band == 0) {
            fused_cursor at;
            bool more = at.begin(a, c);
            take_numbers(at, more, 0);
        }
        meet();
        for (int m = 0, length = own.length; length > 0; m++, c += FUSED_SLOTS) {
            float kk[32], qk[32];
            multiply_rows(kk, qk, m, length);
            make_band(c, m, kk, qk);
            if (band == 0) {
                fused_cursor at = own.at;
                __syncwarp();
                bool more = at.advance(a, FUSED_SLOTS);
                take_numbers(at, more, m + 1);
            }
            hopper::fence_async();
            meet();
            length = own.length;
            if (thread == 0) {
                publish(c);
            }
        }
    }
};

} // namespace DELTA_CHUNK

#endif

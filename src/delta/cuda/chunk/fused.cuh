/* The forward pass in one kernel: a block for each sequence and value head, nothing is stored between stages.

   Two warpgroups walk with 64 values of the state each (worker.cuh), one computes outputs (64 values at a time, as
   output.cuh does all), and one prepares the next chunk (prepare.cuh): it asks for the rows of k and q two chunks ahead
   and of v one chunk ahead, and writes T, W and the numbers to shared memory, where the others wait for them. */
#ifndef CARRY_DELTA_CHUNK_FUSED_CUH
#define CARRY_DELTA_CHUNK_FUSED_CUH

#include "delta/cuda/chunk/output.cuh"
#include "delta/cuda/chunk/prepare.cuh"
#include "delta/cuda/chunk/worker.cuh"

namespace DELTA_CHUNK {

using fused_shape = scan_shape<fused_block_of_128, FORWARD>;

struct fused_args {
    scan_args walk;
    prepare_args prepare;
};

/* O = fade Q S^T + W R for every chunk, with 64 tokens as rows. */
struct fused_output {
    using Shape = fused_shape;
    const scan_args &a;
    const scan_item &item;
    const scan_places<Shape> &p;
    int warp, lane;

    /* Stores a chunk that the end of a sequence cuts off, with ordinary stores. */
    __device__ __forceinline__ void store_some(uint32_t from, int n, int half, int left) {
        __nv_bfloat16 *to = (__nv_bfloat16 *)a.out.data + item.at.batch * a.out.batch +
                            (item.at.first + n * C) * a.out.token + item.value_head * a.out.head + 64 * half;
        for (int i = 32 * warp + lane; i < left * 8; i += 128) {
            *(uint4 *)(to + i / 8 * a.out.token + i % 8 * 8) = hopper::shared_load(swizzled(from, i / 8, i % 8));
        }
    }
    __device__ __forceinline__ void store(const float (&O)[32], int n, int half) {
        using namespace hopper;
        uint32_t to = p.start + Shape::OUT + half * BAND;
        int row = 16 * warp + (lane & 8) + lane % 8, left = item.at.length - n * C;
        bool first = warp == 0 && lane == 0;
        if (first) { /* the store of the other half may still run */
            asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        }
        group_meet(8, 128);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            store_matrices(swizzled(to, row, 2 * i + lane / 16), pack(O[8 * i], O[8 * i + 1]),
                           pack(O[8 * i + 2], O[8 * i + 3]), pack(O[8 * i + 4], O[8 * i + 5]),
                           pack(O[8 * i + 6], O[8 * i + 7]));
        }
        fence_async();
        group_meet(8, 128);
        if (left < C) {
            store_some(to, n, half, left);
        } else if (first) {
            store_tile(&a.o, to, item.at.first + n * C, half, item.value_head, item.at.batch);
            stores_commit();
        }
    }
    /* As in scan_output: sets outputs to NaN from the first bad token of each 16 values on. */
    __device__ __forceinline__ void spoil(float (&O)[32], int n, int half) const {
        const int *first = p.first_bad(n) + 4 * half;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            if (16 * warp + lane / 4 + i % 4 / 2 * 8 >= first[i / 8]) {
                O[i] = __int_as_float(0x7fffffff);
            }
        }
    }
    __device__ __forceinline__ void times_state(float (&O)[32], int n, int half) const {
        using namespace hopper;
        uint32_t q = p.keys(n) + Shape::Q, s = p.start + Shape::STATE + half * BAND;
        products_begin();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            product_both(O, describe(q + i / 4 * BAND + i % 4 * 32, 0),
                         describe(s + i / 4 * Shape::STATE_BAND + i % 4 * 32, 0), i > 0);
        }
        products_commit();
    }
    __device__ __forceinline__ void add_values(float (&O)[32], int n, int half) const {
        using namespace hopper;
        uint32_t w = p.stage(n) + Shape::W, v = p.stage(n) + Shape::V + half * BAND;
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            product_across(O, describe_half(w + i / 2 * HALF + i % 2 * 32, 0), describe(v + i * 2048, BAND), 1);
        }
        products_commit();
        products_wait<0>();
        keep_below(O);
    }
    __device__ __forceinline__ void run_half(int n, int half) {
        using namespace hopper;
        float O[32];
        times_state(O, n, half);
        p.wait_prepared(n);
        const float *numbers = p.numbers(n) + FADE_Q + 16 * warp + lane / 4;
        float above = numbers[0], below = numbers[8];
        products_wait<0>();
        keep_below(O);
        if (half == 1 && lane < ARRIVING) {
            barrier_arrive(p.state_read);
        }
#pragma unroll
        for (int i = 0; i < 32; i++) {
            O[i] *= i % 4 < 2 ? above : below;
        }
        barrier_wait(p.barrier(p.values, n), p.parity(n));
        add_values(O, n, half);
        int4 bad = ((const int4 *)p.first_bad(n))[half];
        if (min(min(bad.x, bad.y), min(bad.z, bad.w)) < C) {
            spoil(O, n, half);
        }
        if (half == 1 && lane < ARRIVING) {
            barrier_arrive(p.barrier(p.empty, n));
        }
        store(O, n, half);
    }
    __device__ __forceinline__ void run() {
        for (int n = 0; n < item.chunks; n++) {
            p.wait_keys(n);
            hopper::barrier_wait(p.state, n % 2);
            run_half(n, 0);
            run_half(n, 1);
        }
        if (warp == 0 && lane == 0) {
            hopper::stores_wait_read();
        }
    }
};

/* The warpgroup that prepares chunks. */
struct fused_preparer {
    using Shape = fused_shape;
    static constexpr int BARRIER = 4; /* the first of four */
    const prepare_args &a;
    const CUtensorMap &v;
    const scan_item &item;
    const scan_places<Shape> &p;
    prepare_numbers &n;
    int thread, band, lane;

    __device__ __forceinline__ void meet() const {
        hopper::group_meet(BARRIER, 128);
    }
    __device__ __forceinline__ chunk_place place(int c) const {
        return {item.at.batch, item.at.first + c * C, min(C, item.at.length - c * C)};
    }
    __device__ __forceinline__ void ask_keys(int c) const {
        using namespace hopper;
        uint32_t to = p.keys(c), full = p.keys_full + 8 * (c % 3);
        barrier_expect(full, 2 * TILE);
        copy_tile(to, &a.k, item.at.first + c * C, 0, item.head, item.at.batch, full);
        copy_tile(to + TILE, &a.q, item.at.first + c * C, 0, item.head, item.at.batch, full);
    }
    /* Waits until the walk has left chunk c - 2, and asks for v of chunk c and for k and q of the next one. */
    __device__ __forceinline__ void ask_next(int c) const {
        using namespace hopper;
        uint32_t full = p.barrier(p.full, c);
        if (c >= 2) {
            barrier_wait(p.barrier(p.empty, c), p.parity(c) ^ 1);
        }
        barrier_expect(full, 2 * BAND);
        for (int i = 0; i < 2; i++) {
            copy_tile(p.stage(c) + Shape::V + i * BAND, &v, item.at.first + c * C, i, item.value_head, item.at.batch,
                      full);
        }
        if (c + 1 < item.chunks) {
            ask_keys(c + 1);
        }
    }
    /* Waits for k and q, and clears rows behind the end of a sequence. */
    __device__ __forceinline__ void take_rows(int c) const {
        uint32_t k = p.keys(c);
        int length = place(c).length;
        p.wait_keys(c);
        if (length < C) {
            clear_rows(k, 4, length, thread);
            hopper::fence_async();
            meet();
        }
    }
    /* As multiply_all, but with both operands in shared memory: the warp's band is its index. */
    __device__ __forceinline__ void multiply(float (&kk)[32], float (&qk)[32], uint32_t k) const {
        using namespace hopper;
        products_begin();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t along = i / 4 * BAND + i % 4 * 32;
            product_both(kk, describe(k + along, 0), describe(k + along, 0), i > 0);
        }
        products_commit();
        products_begin();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t along = i / 4 * BAND + i % 4 * 32;
            product_both(qk, describe(k + TILE + along, 0), describe(k + along, 0), i > 0);
        }
        products_commit();
        if (a.l2norm) {
            add_norms(k);
        }
        products_wait<0>();
        keep_below(kk);
        keep_below(qk);
    }
    __device__ __forceinline__ void add_norms(uint32_t k) const {
        row_squares squares[2] = {};
        uint32_t from = swizzled(k, 16 * band + (lane & 8) + lane % 8, lane / 16), rows[4];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            load_matrices(rows, (from ^ 32 * (i % 4)) + i / 4 * BAND);
            squares[i / 8].add(rows);
        }
        squares[0].store(n.inverse_norm[0] + 16 * band, n.log_norm + 16 * band, lane);
        squares[1].store(n.inverse_norm[1] + 16 * band, nullptr, lane);
    }
    /* Of the rows of P only T[j] of earlier bands is waited for, so they are weighed meanwhile. */
    template <int BAND_OF>
    __device__ __forceinline__ void make_band(int c, const float (&kk)[32], const float (&qk)[32]) const {
        band_rows m;
        int row = 16 * BAND_OF + lane / 4, e = c % 2;
        weigh<BAND_OF, true, false>(a, n, e, kk, qk, m, lane);
        begin_band<BAND_OF>(m, lane);
        weigh<BAND_OF, false, true>(a, n, e, kk, qk, m, lane);
        float by[2] = {a.scale * n.inverse_norm[1][row], a.scale * n.inverse_norm[1][row + 8]};
        store_numbers(a, n, e, (float *)(p.data + (p.stage(c) - p.start) + Shape::NUMBERS), BAND_OF, lane);
        band_place<solve_layout<BAND, HALF>> T(p.stage(c) + Shape::T, p.start + Shape::REST, lane);
        solve_band<BAND_OF>(m, T, BARRIER);
        apply_scores<BAND_OF>(m, T, by);
    }
    __device__ __forceinline__ void run() const {
        number_bits bits;
        if (thread == 0) {
            ask_keys(0);
        }
        clear_norms(n, thread);
        meet();
        if (band == 0) {
            sum_numbers(a, place(0), item.value_head, load_bits(a, place(0), item.value_head, lane), n, 0, lane);
            bits = load_bits(a, place(1), item.value_head, lane);
        }
        for (int c = 0; c < item.chunks; c++) {
            float kk[32], qk[32];
            take_rows(c);
            multiply(kk, qk, p.keys(c));
            if (thread == 0) {
                ask_next(c);
            }
            meet(); /* the numbers are there, and nobody reads the tile before */
            if (band == 0) {
                make_band<0>(c, kk, qk);
                /* This band has the least to do, so its warp computes the next chunk's numbers. */
                sum_numbers(a, place(c + 1), item.value_head, bits, n, (c + 1) % 2, lane);
                bits = load_bits(a, place(c + 2), item.value_head, lane);
            } else if (band == 1) {
                make_band<1>(c, kk, qk);
            } else if (band == 2) {
                make_band<2>(c, kk, qk);
            } else {
                make_band<3>(c, kk, qk);
            }
            hopper::fence_async();
            __syncwarp();
            if (lane < ARRIVING) {
                hopper::barrier_arrive(p.barrier(p.prepared, c));
            }
            meet(); /* the norms may be overwritten */
        }
    }
};

} // namespace DELTA_CHUNK

#endif

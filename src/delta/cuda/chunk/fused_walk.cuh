/* The warpgroup of the fused kernel that holds the state. With values as rows, [X, Y] = S [K, Q]^T, and once R is known,
   [V', O] = [0, fade Y] + R [T, W]^T: the products of the walk and of the outputs are one, with 128 columns. */
#ifndef CARRY_DELTA_CHUNK_FUSED_WALK_CUH
#define CARRY_DELTA_CHUNK_FUSED_WALK_CUH

#include "delta/cuda/chunk/fused.cuh"

namespace DELTA_CHUNK {

struct fused_walker : scan_worker<fused_shape> {
    const fused_places &at;

    __device__ __forceinline__ fused_walker(const scan_args &a, const scan_item &item,
                                            const scan_places<fused_shape> &none, const fused_places &p, int w, int l)
        : scan_worker<fused_shape>{a, item, none, 0, w, l}, at(p) {}

    __device__ __forceinline__ void clear_behind(uint32_t k, int left) {
        int thread = 32 * warp + lane;
        clear_rows(k, 1, left, thread);
        clear_rows(k + 2 * BAND, 1, left, thread);
        clear_rows(k + FUSED_V, 1, left, thread);
        hopper::fence_async();
        hopper::group_meet(1, 128);
    }
    /* A NaN or infinity of one token must not reach earlier tokens through a zero of T or W. find_bad: for both rows of
       this thread, the first such token of R, from which on R becomes zero. spoil: the whole row of V' becomes NaN, and
       outputs from that token on. */
    __device__ __forceinline__ void find_bad(uint32_t (&r)[16], int (&first)[2]) {
#pragma unroll
        for (int i = 7; i >= 0; i--) {
            int token = 8 * i + lane % 4 * 2;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                first[h] = low_half(r[2 * i + h]) * 0.0f != 0.0f    ? token
                           : high_half(r[2 * i + h]) * 0.0f != 0.0f ? token + 1
                                                                    : first[h];
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            first[h] = min(first[h], __shfl_xor_sync(0xffffffffu, first[h], 1));
            first[h] = min(first[h], __shfl_xor_sync(0xffffffffu, first[h], 2));
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int token = i / 2 * 8 + lane % 4 * 2;
            r[i] = token >= first[i % 2] ? 0 : token + 1 >= first[i % 2] ? r[i] & 0xffffu : r[i];
        }
    }
    __device__ __forceinline__ void spoil(float (&VO)[64], const int (&first)[2]) {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            int token = i / 4 * 8 + lane % 4 * 2 + i % 2, from = first[i % 4 / 2];
            VO[i] = from < C ? __int_as_float(0x7fffffff) : VO[i];
            VO[32 + i] = token >= from ? __int_as_float(0x7fffffff) : VO[32 + i];
        }
    }
    /* Stores a chunk that the end of a sequence cuts off, with ordinary stores. */
    __device__ __forceinline__ void store_some(uint32_t from, int first, int left) {
        __nv_bfloat16 *to = (__nv_bfloat16 *)a.out.data + item.at.batch * a.out.batch + (int64_t)first * a.out.token +
                            item.value_head * a.out.head + 64 * item.band;
        for (int i = 32 * warp + lane; i < left * 8; i += 128) {
            *(uint4 *)(to + i / 8 * a.out.token + i % 8 * 8) = hopper::shared_load(swizzled(from, i / 8, i % 8));
        }
    }
    /* Stores the outputs of chunk n, which is chunk c of its sequence. They have values as rows. */
    __device__ __forceinline__ void store_outputs(const float (&VO)[64], int n, int c, int left) {
        using namespace hopper;
        uint32_t to = at.start + FUSED_OUT_AT + n % 2 * BAND;
        bool first = warp == 0 && lane == 0;
        if (first) { /* the store of the chunk before may still read the other half */
            asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        }
        group_meet(1, 128);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *o = VO + 32 + 8 * i;
            store_matrices_across(values_at(to, i), pack(o[0], o[1]), pack(o[2], o[3]), pack(o[4], o[5]),
                                  pack(o[6], o[7]));
        }
        fence_async();
        group_meet(1, 128);
        int row = item.at.first + c * C;
        if (left < C) {
            store_some(to, row, left);
        } else if (first) {
            store_tile(&a.o, to, row, item.band, item.value_head, item.at.batch);
        }
        if (first) {
            stores_commit();
        }
    }
    __device__ __forceinline__ void arrive_done(int n) {
        if (lane == 0) {
            uint32_t done = at.done + 8 * (n % FUSED_SLOTS);
            hopper::barrier_arrive(done);
            hopper::barrier_arrive_there(hopper::in_block(done, at.rank ^ 1));
        }
    }
    __device__ __forceinline__ void walk(int n, int c) {
        using namespace hopper;
        uint32_t k = at.stage(n), v = k + FUSED_V, t = at.slot(n), w[4][4], r[16];
        const float *numbers = at.numbers(n) + lane % 4 * 2;
        int left = item.at.length - c * C, first[2] = {C, C};
        float VO[64];
        float2 by[8], beta[8];
        pack_all(Sb, S[0]);
        at.wait_full(n);
        if (left < C) {
            clear_behind(k, left);
        }
        products_begin();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            product_along(VO, Sb + 4 * i, describe(k + i / 4 * 2 * BAND + i % 4 * 32, 0), i > 0);
        }
        products_commit();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            load_matrices_across(w[i], values_at(v, i));
        }
        at.wait_prepared(n);
        load_eight(beta, numbers + BETA);
        float end = fade_of(at.numbers(n), C - 1);
        products_wait<0>();
        keep_below(VO);
        load_eight(by, numbers + FADE_K);
        uint32_t sum[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 8; i++) { /* beta (V - fade X) */
            const uint32_t *v2 = &w[i / 2][i % 2 * 2];
            r[2 * i] = pack(beta[i].x * low_half(v2[0]) - by[i].x * VO[4 * i],
                            beta[i].y * high_half(v2[0]) - by[i].y * VO[4 * i + 1]);
            r[2 * i + 1] = pack(beta[i].x * low_half(v2[1]) - by[i].x * VO[4 * i + 2],
                                beta[i].y * high_half(v2[1]) - by[i].y * VO[4 * i + 3]);
            sum[0] = add_pairs(sum[0], r[2 * i]);
            sum[1] = add_pairs(sum[1], r[2 * i + 1]);
        }
        load_eight(by, numbers + FADE_Q);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            VO[4 * i] = VO[4 * i + 1] = VO[4 * i + 2] = VO[4 * i + 3] = 0.0f;
            VO[32 + 4 * i] *= by[i].x;
            VO[32 + 4 * i + 1] *= by[i].y;
            VO[32 + 4 * i + 2] *= by[i].x;
            VO[32 + 4 * i + 3] *= by[i].y;
        }
        float bad = (low_half(sum[0]) + high_half(sum[0])) * 0.0f + (low_half(sum[1]) + high_half(sum[1])) * 0.0f;
        bool any = __any_sync(0xffffffffu, bad != 0.0f);
        if (any) {
            find_bad(r, first);
        }
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            product_along(VO, r + 4 * i, describe_half(t + i / 2 * BAND + i % 2 * 32, 0), 1);
        }
        products_commit();
        load_eight(by, numbers + LEFT_K);
        fade_state(end);
        products_wait<0>();
        keep_below(VO);
        if (any) {
            spoil(VO, first);
        }
        float(&V)[32] = *(float(*)[32])VO;
        pack_by(r, V, by);
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            product_right(S[0], r + 4 * i, describe(k + i * 2048, 2 * BAND), 1);
        }
        products_commit();
        store_outputs(VO, n, c, left);
        products_wait<0>();
        keep_state();
        arrive_done(n);
    }
};

/* `item` is that of the walker, which it refers to. */
static __device__ __forceinline__ void fused_walk(const fused_args &a, const fused_places &p, int warp, int lane) {
    scan_item item;
    scan_places<fused_shape> none = {};
    fused_walker me(a.walk, item, none, p, warp, lane);
    int n = 0;
    for (unsigned i = blockIdx.x / 2; i < a.items; i += gridDim.x / 2) {
        item = item_of<fused_shape>(a.walk.s, {}, 2 * i + p.rank);
        me.load_state();
        for (int c = 0; c < item.chunks; c++, n++) {
            me.walk(n, c);
        }
        if (a.walk.final_state != nullptr) {
            me.store_state();
        }
    }
    if (warp == 0 && lane == 0) {
        hopper::stores_wait_read();
    }
}

} // namespace DELTA_CHUNK

#endif

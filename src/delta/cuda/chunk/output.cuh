/* Stores the results of a scan for every chunk: outputs, or states and values in the layout of shared memory. */
#ifndef CARRY_DELTA_CHUNK_OUTPUT_CUH
#define CARRY_DELTA_CHUNK_OUTPUT_CUH

#include "delta/cuda/chunk/scan_parts.cuh"

namespace DELTA_CHUNK {

/* O = fade Q S^T + W R for every chunk, with 64 tokens as rows and all values of this block as columns. */
template <typename Shape> struct scan_output {
    static constexpr int N = 64 * Shape::GROUPS;
    const scan_args &a;
    const scan_item &item;
    const scan_places<Shape> &p;
    int warp, lane;

    /* Stores a chunk that the end of a sequence cuts off, with ordinary stores. */
    __device__ __forceinline__ void store_some(uint32_t from, int n, int left) {
        int thread = 32 * warp + lane;
        __nv_bfloat16 *to = (__nv_bfloat16 *)a.out.data + item.at.batch * a.out.batch +
                            (item.at.first + n * C) * a.out.token + item.value_head * a.out.head + 64 * item.band;
        for (int i = thread; i < left * 8 * Shape::GROUPS; i += 128) {
            int token = i / (8 * Shape::GROUPS), part = i % (8 * Shape::GROUPS);
            uint4 w;
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                         : "r"(swizzled(from + part / 8 * BAND, token, part % 8)));
            *(uint4 *)(to + token * a.out.token + part * 8) = w;
        }
    }
    __device__ __forceinline__ void store(const float (&O)[N / 2], int n) {
        using namespace hopper;
        uint32_t to = p.start + Shape::OUT;
        int row = 16 * warp + (lane & 8) + lane % 8, left = item.at.length - n * C;
        bool first = warp == 0 && lane == 0;
        if (first) {
            stores_wait_read();
        }
        group_meet(8, 128);
#pragma unroll
        for (int i = 0; i < N / 16; i++) {
            store_matrices(swizzled(to + i / 4 * BAND, row, i % 4 * 2 + lane / 16), pack(O[8 * i], O[8 * i + 1]),
                           pack(O[8 * i + 2], O[8 * i + 3]), pack(O[8 * i + 4], O[8 * i + 5]),
                           pack(O[8 * i + 6], O[8 * i + 7]));
        }
        fence_async();
        group_meet(8, 128);
        if (left < C) {
            store_some(to, n, left);
        } else if (first) {
            for (int band = 0; band < Shape::GROUPS; band++) {
                store_tile(&a.o, to + band * BAND, item.at.first + n * C, item.band + band, item.value_head,
                           item.at.batch);
            }
            stores_commit();
        }
    }
    /* first_bad: the first token for which any value is NaN or infinity. spoil: sets outputs to NaN from the first such
       token of each 16 values on. */
    __device__ __forceinline__ int first_bad(int n) const {
        const int4 *bad = (const int4 *)p.first_bad(n);
        int first = C;
#pragma unroll
        for (int i = 0; i < Shape::GROUPS; i++) {
            first = min(first, min(min(bad[i].x, bad[i].y), min(bad[i].z, bad[i].w)));
        }
        return first;
    }
    __device__ __forceinline__ void spoil(float (&O)[N / 2], int n) const {
        const int *first = p.first_bad(n);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            if (16 * warp + lane / 4 + i % 4 / 2 * 8 >= first[i / 8]) {
                O[i] = __int_as_float(0x7fffffff);
            }
        }
    }
    __device__ __forceinline__ void run() {
        using namespace hopper;
        for (int n = 0; n < item.chunks; n++) {
            float O[N / 2];
            uint32_t k = p.stage(n), q = k + Shape::Q, v = k + Shape::V, s = p.start + Shape::STATE;
            const float *numbers = p.numbers(n);
            barrier_wait(p.barrier(p.full, n), p.parity(n));
            barrier_wait(p.state, n % 2);
            products_begin();
#pragma unroll
            for (int i = 0; i < 8 * Shape::HALVES; i++) {
                product_both(O, describe(q + i / 4 * BAND + i % 4 * 32, 0),
                             describe(s + i / 4 * Shape::STATE_BAND + i % 4 * 32, 0), i > 0);
            }
            products_commit();
            int row = 16 * warp + lane / 4;
            float above = numbers[FADE_Q + row], below = numbers[FADE_Q + row + 8];
            products_wait<0>();
            keep_below(O);
            if (lane < ARRIVING) {
                barrier_arrive(p.state_read);
            }
#pragma unroll
            for (int i = 0; i < N / 8 && !Shape::BY_KEY; i++) { /* with gates by key channel, q includes the decay */
                O[4 * i] *= above;
                O[4 * i + 1] *= above;
                O[4 * i + 2] *= below;
                O[4 * i + 3] *= below;
            }
            barrier_wait(p.barrier(p.values, n), p.parity(n));
            products_begin();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                product_across(O, describe_half(k + Shape::W + i / 2 * HALF + i % 2 * 32, 0),
                               describe(v + i * 2048, BAND), 1);
            }
            products_commit();
            int first = first_bad(n);
            products_wait<0>();
            keep_below(O);
            if (first < C) {
                spoil(O, n);
            }
            if (lane < ARRIVING) {
                barrier_arrive(p.barrier(p.empty, n));
            }
            store(O, n);
        }
        if (warp == 0 && lane == 0) {
            stores_wait_read();
        }
    }
};

/* Stores dv of a chunk that the end of a sequence cuts off. One warp. */
template <typename Shape>
static __device__ __forceinline__ void keep_some(const scan_args &a, const scan_item &item, uint32_t from, int first,
                                                 int left, int lane) {
    __nv_bfloat16 *to = (__nv_bfloat16 *)a.out.data + item.at.batch * a.out.batch + (int64_t)first * a.out.token +
                        item.value_head * a.out.head + 64 * item.band;
    for (int i = lane; i < left * 8 * Shape::GROUPS; i += 32) {
        int token = i / (8 * Shape::GROUPS), part = i % (8 * Shape::GROUPS);
        uint4 w;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                     : "r"(swizzled(from + part / 8 * BAND, token, part % 8)));
        *(uint4 *)(to + token * a.out.token + part * 8) = w;
    }
    __syncwarp();
}

/* Copies the state and V' of every chunk to the workspace in the layout of shared memory. BACK stores dv in its
   tensor in place of V'. One warp. */
template <typename Shape>
static __device__ __forceinline__ void keep_chunks(const scan_args &a, const scan_item &item,
                                                   const scan_places<Shape> &p, int lane) {
    using namespace hopper;
    for (int n = 0; n < item.chunks; n++) {
        int chunk = item.chunk<Shape>(n);
        int first = item.at.first + chunk * C, left = item.at.length - chunk * C;
        int64_t place = kept_at(a.r, Shape::REVERSE, item.lane, item.at.slot, chunk);
        int64_t tile = place * a.s.value_heads + item.value_head;
        if (Shape::REVERSE && left < C) {
            barrier_wait(p.barrier(p.values, n), p.parity(n));
            keep_some<Shape>(a, item, p.stage(n) + Shape::V, first, left, lane);
        }
        if (lane > 0) {
            continue;
        }
        barrier_wait(p.state, n % 2);
        for (int i = 0; i < 2 * Shape::HALVES * Shape::GROUPS; i++) {
            int band = i / Shape::GROUPS, group = i % Shape::GROUPS;
            if (band < a.s.key_bands) {
                store_bytes(a.states + tile * state_bytes(a.s) + (band * a.s.bands + item.band + group) * BAND,
                            p.start + Shape::STATE + band * Shape::STATE_BAND + group * BAND, BAND);
            }
        }
        stores_commit();
        stores_wait_read();
        barrier_arrive(p.state_read);
        barrier_wait(p.barrier(p.values, n), p.parity(n));
        for (int i = 0; i < Shape::GROUPS; i++) {
            uint32_t from = p.stage(n) + Shape::V + i * BAND;
            if (!Shape::REVERSE) {
                store_bytes(a.values + tile * value_bytes(a.s) + (item.band + i) * BAND, from, BAND);
            } else if (left >= C) {
                store_tile(&a.o, from, first, item.band + i, item.value_head, item.at.batch);
            }
        }
        stores_commit();
        stores_wait_read();
        barrier_arrive(p.barrier(p.empty, n));
    }
}

} // namespace DELTA_CHUNK

#endif

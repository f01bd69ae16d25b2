/* Causal attention on Hopper GPUs, with grouped heads or not: the same warpgroups, tiles and turns as in
   hopper_kernel.cuh, over the keys that each query sees.

   A block processes tiles of 128 queries of one head, one after the other. Blocks that run at the same time read the
   same keys, so the keys are in the L2 cache. Tiles with the most keys come first. NaN and infinity in values may reach
   queries that do not see them (carry/attention.h). */
#ifndef CARRY_ATTENTION_HOPPER_CAUSAL_CUH
#define CARRY_ATTENTION_HOPPER_CAUSAL_CUH

#include "attention/hopper_kernel.cuh"

struct causal_job {
    CUtensorMap q, k, v;
    attention_job job;
    int group, past; /* group: query heads for each key head; query r sees the keys up to past + r */
    int row_tiles, items;
};

namespace hopper {

template <typename Shape> static __device__ __forceinline__ attention_item causal_item(const causal_job &c, int index) {
    attention_item item = {0, 0, 0, 0, -1};
    item.head = index % c.job.heads;
    item.row = (c.row_tiles - 1 - index / c.job.heads) * Shape::ROWS;
    item.to = (c.past + min(item.row + Shape::ROWS, c.job.queries) - 1) / Shape::N + 1;
    return item;
}

template <typename Shape>
static __device__ __forceinline__ void copy_causal(const causal_job &c, const places<Shape> &p) {
    stage<Shape::STAGES> key, value;
    int q_parity = 1;
    auto copy_key = [&](int tile, int head) {
        barrier_wait(p.k_empty + 8 * key.at, key.parity ^ 1);
        barrier_expect(p.k_full + 8 * key.at, Shape::KEY_BYTES);
        copy_tile(p.key(key.at), &c.k, tile * Shape::N, head, p.k_full + 8 * key.at);
        key.next();
    };
    auto copy_value = [&](int tile, int head) {
        barrier_wait(p.v_empty + 8 * value.at, value.parity ^ 1);
        barrier_expect(p.v_full + 8 * value.at, Shape::KEY_BYTES);
        copy_tile(p.value(value.at), &c.v, tile * Shape::N, head, p.v_full + 8 * value.at);
        value.next();
    };
    for (int index = (int)blockIdx.x; index < c.items; index += (int)gridDim.x) {
        const attention_item item = causal_item<Shape>(c, index);
        const int head = item.head / c.group;
        copy_key(0, head);
        barrier_wait(p.q_empty, q_parity);
        q_parity ^= 1;
        barrier_expect(p.q_full, Shape::Q_BYTES);
        copy_tile(p.q, &c.q, item.row, item.head, p.q_full);
        for (int tile = 1; tile < item.to; tile++) {
            copy_key(tile, head);
            copy_value(tile - 1, head);
        }
        copy_value(item.to - 1, head);
    }
}

/* Masks keys after `last` for the thread's first row; its second row sees eight more. */
template <int COUNT> static __device__ __forceinline__ void mask_after(float (&s)[COUNT], int first, int last) {
    const int column = first + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        if (i / 4 * 8 + i % 2 + column > last + i / 2 % 2 * 8) {
            s[i] = -INFINITY;
        }
    }
}

/* last: the last key that the thread's first row sees. seen: the last key that all rows of the warpgroup see. */
template <typename Shape>
static __device__ __forceinline__ void compute_causal(const attention_job &job, const attention_item &item, int last,
                                                      int seen, worker<Shape> &me, float (&o)[Shape::D / 2],
                                                      softmax_state &state) {
    float s[Shape::N / 2];
    uint32_t w[Shape::N / 4];
    float factor[2];
    auto soften = [&](int tile) {
        if ((tile + 1) * Shape::N - 1 > seen) {
            mask_after(s, tile * Shape::N, last);
        }
        return exponentials(s, state, factor, job.scale, 0.0f);
    };
    me.wait_queries();
    me.wait_keys();
    me.begin_scores(s);
    products_wait<0>();
    me.free_keys();
    if (item.to == 1) {
        me.free_queries();
    }
    (void)soften(0);
    pack<Shape::N / 2>(w, s);
    for (int tile = 1; tile < item.to; tile++) {
        me.wait_keys();
        me.wait_turn();
        me.begin_scores(s);
        me.begin_sums(o, w, Shape::N, tile > 1);
        me.end_turn();
        products_wait<1>();
        me.free_keys();
        if (tile + 1 == item.to) {
            me.free_queries();
        }
        const bool grew = soften(tile);
        products_wait<0>();
        me.free_values();
        if (grew) {
            scale_rows(o, factor);
        }
        pack<Shape::N / 2>(w, s);
    }
    me.begin_sums(o, w, Shape::N, item.to > 1);
    add_columns(state);
    products_wait<0>();
    me.free_values();
}

template <typename Shape>
static __device__ __forceinline__ void compute_causal_items(const causal_job &c, const places<Shape> &p, int group) {
    worker<Shape> me(p, group);
    const int warp = (int)threadIdx.x / 32 - 4;
    for (int index = (int)blockIdx.x; index < c.items; index += (int)gridDim.x) {
        const attention_item item = causal_item<Shape>(c, index);
        float o[Shape::D / 2] = {};
        softmax_state state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
        const int seen = c.past + item.row + 64 * group;
        const int last = c.past + item.row + 16 * warp + (int)threadIdx.x % 32 / 4;
        compute_causal<Shape>(c.job, item, last, seen, me, o, state);
        store_whole<Shape::D>(c.job, item, warp, o, state);
    }
}

} // namespace hopper

template <typename Shape>
__global__ void __launch_bounds__(Shape::THREADS, 1) attention_causal(const __grid_constant__ causal_job c) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace hopper;
    extern __shared__ char memory[];
    __shared__ barriers<Shape::STAGES> b; /* static: its size shows whether the kernel is compiled */
    const places<Shape> p = open_places<Shape>(memory, b);
    const int group = (int)threadIdx.x / 128;
    if (group == 0) {
        registers_give<COPY_REGISTERS>();
        if (threadIdx.x == 0) {
            prefetch_map(&c.q);
            prefetch_map(&c.k);
            prefetch_map(&c.v);
            copy_causal<Shape>(c, p);
        }
    } else {
        registers_take<COMPUTE_REGISTERS>();
        compute_causal_items<Shape>(c, p, group - 1);
    }
#endif
}

#endif

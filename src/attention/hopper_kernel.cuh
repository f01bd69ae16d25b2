/* Attention on Hopper GPUs: one block on each multiprocessor, with one warpgroup that copies and two that compute.

   In the copying warpgroup, one thread starts copies of tiles of keys and values, STAGES ahead. Each computing
   warpgroup has 64 queries. While the tensor cores multiply a tile's probabilities by its values, the warpgroup
   computes the exponentials of the next tile's scores. With TURNS, the two computing warpgroups take turns at the
   tensor cores, so that the exponentials of one run at the same time as the products of the other.

   Measured on an H200, 40 heads, 2160 queries, 4320 keys, D 128: 685 TFLOP/s, where a large matrix product reaches
   about 790. */
#ifndef CARRY_ATTENTION_HOPPER_KERNEL_CUH
#define CARRY_ATTENTION_HOPPER_KERNEL_CUH

#include "device/hopper.cuh"
#include "attention/kernels.cuh"
#include "attention/rows.cuh"

struct hopper_job {
    CUtensorMap q, k, v;
    attention_job job;
};

/* D: elements of a head. N: keys of a tile. */
template <int D_, int N_, int STAGES_, bool TURNS_> struct hopper_shape {
    static constexpr int D = D_, N = N_, STAGES = STAGES_;
    static constexpr bool TURNS = TURNS_;
    static constexpr int GROUPS = 2, ROWS = 64 * GROUPS;
    static constexpr int THREADS = 128 * (GROUPS + 1);
    static constexpr int BANDS = D / 64;
    static constexpr int Q_BAND = ROWS * 128, KEY_BAND = N * 128; /* bytes */
    static constexpr int Q_BYTES = BANDS * Q_BAND, KEY_BYTES = BANDS * KEY_BAND;
    /* Atoms of the swizzle start at multiples of 1024. */
    static constexpr int SHARED = 1024 + Q_BYTES + 2 * STAGES * KEY_BYTES;
};

namespace hopper {

constexpr int COPY_REGISTERS = 24, COMPUTE_REGISTERS = 240; /* 128 * 24 + 256 * 240 fit a multiprocessor */

/* Barriers for each buffer: it is full, it is empty. */
template <int STAGES> struct barriers {
    uint64_t q_full, q_empty;
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

/* The index in a ring of stages, and the parity of its round. */
template <int STAGES> struct stage {
    int at = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++at == STAGES) {
            at = 0;
            parity ^= 1;
        }
    }
};

template <typename Shape> struct places {
    uint32_t q, k, v; /* addresses in shared memory */
    uint32_t q_full, q_empty, k_full, k_empty, v_full, v_empty;
    __device__ __forceinline__ uint32_t key(int at) const {
        return k + at * Shape::KEY_BYTES;
    }
    __device__ __forceinline__ uint32_t value(int at) const {
        return v + at * Shape::KEY_BYTES;
    }
};

/* Computes the addresses in shared memory and initialises the barriers. Called by all threads of a block. */
template <typename Shape>
static __device__ __forceinline__ places<Shape> open_places(const char *memory, const barriers<Shape::STAGES> &b) {
    constexpr int STAGES = Shape::STAGES;
    places<Shape> p;
    p.q = (shared_address(memory) + 1023u) & ~1023u;
    p.k = p.q + Shape::Q_BYTES;
    p.v = p.k + STAGES * Shape::KEY_BYTES;
    p.q_full = shared_address(&b.q_full);
    p.q_empty = shared_address(&b.q_empty);
    p.k_full = shared_address(b.k_full);
    p.k_empty = shared_address(b.k_empty);
    p.v_full = shared_address(b.v_full);
    p.v_empty = shared_address(b.v_empty);
    if (threadIdx.x == 0) {
        constexpr int WARPS = 4 * Shape::GROUPS;
        barrier_init(p.q_full, 1);
        barrier_init(p.q_empty, WARPS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(p.k_full + 8 * i, 1);
            barrier_init(p.v_full + 8 * i, 1);
            barrier_init(p.k_empty + 8 * i, WARPS);
            barrier_init(p.v_empty + 8 * i, WARPS);
        }
        fence_async();
    }
    __syncthreads();
    return p;
}

/* Copies keys one tile ahead of values, in the order in which they are needed. */
template <typename Shape>
static __device__ __forceinline__ void copy_items(const hopper_job &h, const places<Shape> &p, int items) {
    stage<Shape::STAGES> key, value;
    int q_parity = 1;
    auto copy_key = [&](const attention_cursor &at, int head) {
        barrier_wait(p.k_empty + 8 * key.at, key.parity ^ 1);
        barrier_expect(p.k_full + 8 * key.at, Shape::KEY_BYTES);
        copy_tile(p.key(key.at), &h.k, at.row, head, p.k_full + 8 * key.at);
        key.next();
    };
    auto copy_value = [&](const attention_cursor &at, int head) {
        barrier_wait(p.v_empty + 8 * value.at, value.parity ^ 1);
        barrier_expect(p.v_full + 8 * value.at, Shape::KEY_BYTES);
        copy_tile(p.value(value.at), &h.v, at.row, head, p.v_full + 8 * value.at);
        value.next();
    };
    for (int index = (int)blockIdx.x; index < items; index += (int)gridDim.x) {
        attention_item item = item_of(h.job.cut, index);
        if (item.from == item.to) {
            continue;
        }
        attention_cursor at = cursor_at(h.job, item.from), before = at;
        copy_key(at, item.head);
        barrier_wait(p.q_empty, q_parity);
        q_parity ^= 1;
        barrier_expect(p.q_full, Shape::Q_BYTES);
        copy_tile(p.q, &h.q, item.row, item.head, p.q_full);
        for (int tile = item.from + 1; tile < item.to; tile++) {
            next_tile(h.job, &at, Shape::N);
            copy_key(at, item.head);
            copy_value(before, item.head);
            before = at;
        }
        copy_value(at, item.head);
    }
}

/* s = q k^T for this warpgroup's 64 queries. */
template <typename Shape>
static __device__ __forceinline__ void scores(float (&s)[Shape::N / 2], uint32_t q, uint32_t k) {
#pragma unroll
    for (int i = 0; i < Shape::D / 16; i++) {
        int band = i / 4, along = i % 4 * 32;
        product_both(s, describe(q + band * Shape::Q_BAND + along, 0), describe(k + band * Shape::KEY_BAND + along, 0),
                     i > 0);
    }
}

/* o = or += p v */
template <typename Shape>
static __device__ __forceinline__ void weighted(float (&o)[Shape::D / 2], const uint32_t (&p)[Shape::N / 4], uint32_t v,
                                                bool add) {
#pragma unroll
    for (int i = 0; i < Shape::N / 16; i++) {
        product_right(o, p + 4 * i, describe(v + i * 2048, Shape::KEY_BAND), i > 0 || add);
    }
}

/* Clears values past the end of the run: this memory may hold NaN or infinity, and 0 times these is not 0. Both
   warpgroups write the same zeros. */
template <typename Shape> static __device__ __forceinline__ void clear_values(uint32_t v, int valid, int group) {
    int words = (Shape::N - valid) * 8; /* 16-byte words */
    for (int i = (int)threadIdx.x % 128; i < Shape::BANDS * words; i += 128) {
        uint32_t to = v + (uint32_t)(i / words * Shape::KEY_BAND + valid * 128 + i % words * 16);
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
    fence_async();
    group_sync(3 + group, 128);
}

/* One of the computing warpgroups, `group` 0 or 1, and its position in the rings of keys and values. Barrier 1 + group
   signals its turn at the tensor cores. */
template <typename Shape> struct worker {
    const places<Shape> &p;
    int group;
    uint32_t q;
    bool speaks; /* this thread arrives at barriers for its warp */
    int q_parity = 0;
    stage<Shape::STAGES> key, value;

    __device__ __forceinline__ worker(const places<Shape> &shared, int which)
        : p(shared), group(which), q(shared.q + which * 64 * 128), speaks(threadIdx.x % 32 == 0) {
        if (Shape::TURNS && group == 1) {
            group_arrive(1, 256);
        }
    }
    __device__ __forceinline__ void wait_queries() {
        barrier_wait(p.q_full, q_parity);
        q_parity ^= 1;
    }
    __device__ __forceinline__ void free_queries() {
        if (speaks) {
            barrier_arrive(p.q_empty);
        }
    }
    __device__ __forceinline__ void wait_turn() {
        if (Shape::TURNS) {
            group_sync(1 + group, 256);
        }
    }
    __device__ __forceinline__ void end_turn() {
        if (Shape::TURNS) {
            group_arrive(2 - group, 256);
        }
    }
    __device__ __forceinline__ void wait_keys() {
        barrier_wait(p.k_full + 8 * key.at, key.parity);
    }
    __device__ __forceinline__ void begin_scores(float (&s)[Shape::N / 2]) {
        products_begin();
        scores<Shape>(s, q, p.key(key.at));
        products_commit();
    }
    __device__ __forceinline__ void free_keys() {
        if (speaks) {
            barrier_arrive(p.k_empty + 8 * key.at);
        }
        key.next();
    }
    __device__ __forceinline__ void begin_sums(float (&o)[Shape::D / 2], const uint32_t (&w)[Shape::N / 4], int valid,
                                               bool add) {
        barrier_wait(p.v_full + 8 * value.at, value.parity);
        if (valid < Shape::N) {
            clear_values<Shape>(p.value(value.at), valid, group);
        }
        products_begin();
        weighted<Shape>(o, w, p.value(value.at), add);
        products_commit();
    }
    __device__ __forceinline__ void free_values() {
        if (speaks) {
            barrier_arrive(p.v_empty + 8 * value.at);
        }
        value.next();
    }
};

template <typename Shape>
static __device__ __forceinline__ void compute_item(const attention_job &job, const attention_item &item,
                                                    worker<Shape> &me, float (&o)[Shape::D / 2], softmax_state &state) {
    float s[Shape::N / 2];
    uint32_t w[Shape::N / 4];
    float factor[2];
    attention_cursor at = cursor_at(job, item.from);
    int valid = at.left;
    auto soften = [&] {
        if (valid < Shape::N) {
            mask(s, valid);
        }
        return exponentials(s, state, factor, job.scale, job.run[at.run].bias);
    };
    me.wait_queries();
    me.wait_keys();
    me.begin_scores(s);
    products_wait<0>();
    me.free_keys();
    if (item.from + 1 == item.to) {
        me.free_queries();
    }
    (void)soften();
    pack<Shape::N / 2>(w, s);
    for (int tile = item.from + 1; tile < item.to; tile++) {
        me.wait_keys();
        me.wait_turn();
        me.begin_scores(s);
        me.begin_sums(o, w, valid, tile > item.from + 1);
        me.end_turn();
        next_tile(job, &at, Shape::N);
        valid = at.left;
        products_wait<1>();
        me.free_keys();
        if (tile + 1 == item.to) {
            me.free_queries();
        }
        bool grew = soften();
        products_wait<0>();
        me.free_values();
        if (grew) {
            scale_rows(o, factor);
        }
        pack<Shape::N / 2>(w, s);
    }
    me.begin_sums(o, w, valid, item.to - item.from > 1);
    add_columns(state);
    products_wait<0>();
    me.free_values();
}

template <typename Shape>
static __device__ __forceinline__ void compute_items(const hopper_job &h, const places<Shape> &p, int items,
                                                     int group) {
    const attention_job &job = h.job;
    worker<Shape> me(p, group);
    int warp = (int)threadIdx.x / 32 - 4;
    for (int index = (int)blockIdx.x; index < items; index += (int)gridDim.x) {
        attention_item item = item_of(job.cut, index);
        float o[Shape::D / 2] = {};
        softmax_state state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
        if (item.from < item.to) {
            compute_item<Shape>(job, item, me, o, state);
        }
        store<Shape::D>(job, item, warp, o, state);
    }
}

} // namespace hopper

template <typename Shape>
__global__ void __launch_bounds__(Shape::THREADS, 1) attention_hopper(const __grid_constant__ hopper_job h) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace hopper;
    extern __shared__ char memory[];
    /* hopper.cu uses the size of this static memory to see that the kernel is not empty. */
    __shared__ barriers<Shape::STAGES> b;
    const places<Shape> p = open_places<Shape>(memory, b);
    int items = h.job.cut.whole + h.job.cut.rest * h.job.cut.pieces;
    int group = (int)threadIdx.x / 128;
    if (group == 0) {
        registers_give<COPY_REGISTERS>();
        if (threadIdx.x == 0) {
            prefetch_map(&h.q);
            prefetch_map(&h.k);
            prefetch_map(&h.v);
            copy_items<Shape>(h, p, items);
        }
    } else {
        registers_take<COMPUTE_REGISTERS>();
        compute_items<Shape>(h, p, items, group - 1);
    }
#endif
}

#endif

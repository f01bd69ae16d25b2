/* scan: the chunks of one sequence, one after the other.

   A working warpgroup has the transposed state [64 values x 128 keys] in registers, where it is both a sum and (rounded)
   the left operand. With the chunk's tokens in columns it does, one after the other,

       X = S K^T;   V' = beta (V - fade X) T^T;   S = end S + (left V') K

   and leaves the rounded state and V' in shared memory. One more warpgroup makes of them, beside it,
   O = fade Q S^T + P V', tokens in rows, and stores it. One thread asks the copy engine for tiles, STAGES ahead. GROUPS
   working warpgroups have 64 values each of one value head.

   For the backward pass the same kernel has two more kinds. KEEP stores the state that enters every chunk and V'
   instead of making outputs. BACK walks the chunks from the last to the first with the state's gradient dS:

       dV' = left (dS K^T) + dO P;   Y = dV' T;   dS = end dS + (fade dO) Q - (fade Y) K

   and stores the dS that leaves every chunk and Y (beta Y is the gradient of v).

   Where heads and sequences are too few for the card, a sequence is walked in segments at once. PAIR makes of a segment
   the pair (M, L) of the map S -> M S + L that it is: L is the state it leaves of nothing (of the initial state, in the
   first segment), M what it leaves of the identity where v is zero. */
#ifndef CARRY_DELTA_CHUNK_SCAN_CUH
#define CARRY_DELTA_CHUNK_SCAN_CUH

#include "delta/chunk_device.cuh"

namespace delta_chunk {

enum scan_kind { FORWARD, KEEP, BACK, PAIR };

constexpr int STATE_BYTES = 2 * TILE; /* of a state as kept: bf16, bands of keys, values in rows */

/* BACK: v is dO, and the states are their gradients, the final one coming in. */
struct scan_args {
    CUtensorMap q, k, v, o;
    shape s;
    carry_delta_view out;
    const char *tiles;
    const float *initial_state;
    float *final_state;
    bool state_transposed;
    char *states, *values; /* of every chunk, KEEP and BACK */
    float *pairs;          /* [segments of all sequences, value heads, 2, values, keys]: L, then M */
};

/* A stage in shared memory: k, q, v by bands (which becomes V'), the prepared tiles. */
template <int GROUPS_, int STAGES_, scan_kind KIND_ = FORWARD> struct scan_shape {
    static constexpr scan_kind KIND = KIND_;
    static constexpr int GROUPS = GROUPS_, STAGES = STAGES_;
    static constexpr int THREADS = 128 * (GROUPS + 2);
    static constexpr int Q = TILE, V = 2 * TILE, T = V + GROUPS * BAND, P = T + BAND, STAGE = T + CHUNK_BYTES;
    static constexpr int STATE = STAGES * STAGE, STATE_BAND = GROUPS * BAND; /* the rounded state, bands of keys */
    static constexpr int OUT = STATE + 2 * STATE_BAND;
    static constexpr int SHARED = 1024 + OUT + GROUPS * BAND;
    static constexpr int WORK_REGISTERS = GROUPS == 1 ? 232 : KIND == FORWARD ? 192 : 216;
    static constexpr int OUT_REGISTERS = GROUPS == 1 ? 152 : KIND == FORWARD ? 96 : 40;
};

struct scan_item {
    sequence_place at;
    int sequence, segment, head, value_head, band; /* band: of v, the first of this block's */
    int chunks;
    bool map; /* PAIR: M */
};

/* full: a stage was copied; empty: it was read. state, values: the rounded state, V' of a chunk are there; state_read:
   the state may be overwritten. */
template <int STAGES> struct scan_barriers {
    uint64_t full[STAGES], empty[STAGES], values[STAGES], state, state_read;
};

template <typename Shape> static __device__ __forceinline__ scan_item item_of(const shape &s) {
    constexpr unsigned parts = 2 / Shape::GROUPS;
    unsigned at = blockIdx.x / parts;
    scan_item item;
    item.map = false;
    if (Shape::KIND == PAIR) {
        item.map = at % 2 == 1;
        at /= 2;
    }
    item.band = (int)(blockIdx.x % parts);
    item.value_head = (int)(at % (unsigned)s.value_heads);
    item.sequence = (int)(at / (unsigned)s.value_heads);
    item.head = item.value_head / (s.value_heads / s.heads);
    item.at = sequence_of(s, item.sequence);
    item.segment = item.sequence % s.segments;
    item.chunks = (item.at.length + C - 1) / C;
    return item;
}

/* Where everything lies in shared memory. */
template <typename Shape> struct scan_places {
    uint32_t start;
    const char *data;
    uint32_t full, empty, values, state, state_read;
    __device__ __forceinline__ uint32_t stage(int n) const {
        return start + n % Shape::STAGES * Shape::STAGE;
    }
    __device__ __forceinline__ const float *numbers(int n) const {
        return (const float *)(data + n % Shape::STAGES * Shape::STAGE + Shape::T + NUMBERS_AT);
    }
    __device__ __forceinline__ uint32_t barrier(uint32_t first, int n) const {
        return first + 8 * (n % Shape::STAGES);
    }
    static __device__ __forceinline__ int parity(int n) {
        return n / Shape::STAGES % 2;
    }
};

template <typename Shape>
static __device__ __forceinline__ void copy_chunks(const scan_args &a, const scan_item &item,
                                                   const scan_places<Shape> &p) {
    using namespace hopper;
    for (int n = 0; n < item.chunks; n++) {
        uint32_t to = p.stage(n), barrier = p.barrier(p.full, n);
        int chunk = Shape::KIND == BACK ? item.chunks - 1 - n : n, row = item.at.first + chunk * C;
        barrier_wait(p.barrier(p.empty, n), p.parity(n) ^ 1);
        barrier_expect(barrier, Shape::STAGE - (Shape::KIND == KEEP || Shape::KIND == PAIR ? TILE : 0));
        copy_tile(to, &a.k, row, 0, item.head, item.at.batch, barrier);
        for (int band = 0; band < Shape::GROUPS; band++) {
            copy_tile(to + Shape::V + band * BAND, &a.v, row, item.band + band, item.value_head, item.at.batch,
                      barrier);
        }
        int64_t tile = (int64_t)(item.at.slot + chunk) * a.s.value_heads + item.value_head;
        copy_bytes(to + Shape::T, a.tiles + tile * CHUNK_BYTES, CHUNK_BYTES, barrier);
        if (Shape::KIND != KEEP && Shape::KIND != PAIR) {
            copy_tile(to + Shape::Q, &a.q, row, 0, item.head, item.at.batch, barrier);
        }
    }
}

/* Element (value, key) of a packed state of a whole sequence, however it lies; and of L or M of a segment. */
static __device__ __forceinline__ int64_t state_at(const scan_args &a, const scan_item &item, int value, int key) {
    int64_t from = ((int64_t)(item.sequence / a.s.segments) * a.s.value_heads + item.value_head) * D * D;
    return from + (a.state_transposed ? value * D + key : key * D + value);
}
static __device__ __forceinline__ int64_t pair_at(const scan_args &a, const scan_item &item, int segment, bool map,
                                                  int value, int key) {
    int64_t from = ((int64_t)segment * a.s.value_heads + item.value_head) * 2 + (map ? 1 : 0);
    return from * D * D + value * D + key;
}

/* Sums as the left operand of the next products. */
template <int N> static __device__ __forceinline__ void pack_all(uint32_t (&to)[N / 2], const float (&from)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        to[i] = pack(from[2 * i], from[2 * i + 1]);
    }
}

/* 64 values of one value head. */
template <typename Shape> struct scan_worker {
    const scan_args &a;
    const scan_item &item;
    const scan_places<Shape> &p;
    int group, warp, lane;

    float S[64], X[32];
    uint32_t Sb[32];

    __device__ __forceinline__ void load_state() {
        int value = 64 * (item.band + group) + 16 * warp + lane / 4;
#pragma unroll
        for (int i = 0; i < 64; i++) {
            int v = value + i % 4 / 2 * 8, k = i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (Shape::KIND == PAIR && (item.map || item.segment > 0)) {
                S[i] = item.map && v == k ? 1.0f : 0.0f;
            } else if (item.segment > 0) { /* what the fix-up left in the place of the last segment's L */
                S[i] = a.pairs[pair_at(a, item, item.sequence - 1, false, v, k)];
            } else {
                S[i] = a.initial_state != nullptr ? a.initial_state[state_at(a, item, v, k)] : 0.0f;
            }
        }
    }
    __device__ __forceinline__ void store_state() {
        int value = 64 * (item.band + group) + 16 * warp + lane / 4;
#pragma unroll
        for (int i = 0; i < 64; i++) {
            int v = value + i % 4 / 2 * 8, k = i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (Shape::KIND == PAIR) {
                a.pairs[pair_at(a, item, item.sequence, item.map, v, k)] = S[i];
            } else {
                a.final_state[state_at(a, item, v, k)] = S[i];
            }
        }
    }
    __device__ __forceinline__ uint32_t values_at(uint32_t v, int i) {
        return swizzled(v, 16 * i + lane / 16 * 8 + lane % 8, 2 * warp + (lane / 8 & 1));
    }
    /* What others wrote behind a sequence may be no number. */
    __device__ __forceinline__ void clear(uint32_t k, uint32_t v, int left) {
        clear_rows(k, 2, left, 32 * warp + lane);
        clear_rows(v, 1, left, 32 * warp + lane);
        if (Shape::KIND == BACK) {
            clear_rows(k + Shape::Q, 2, left, 32 * warp + lane);
        }
        hopper::fence_async();
        hopper::group_sync(1 + group, 128);
    }
    /* The rounded state of chunk n for the other warpgroup: values in rows. */
    __device__ __forceinline__ void show_state(int n) {
        hopper::barrier_wait(p.state_read, n % 2 ^ 1);
        uint32_t to = p.start + Shape::STATE;
        int row = 64 * group + 16 * warp + (lane & 8) + lane % 8;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            store_matrices(swizzled(to + i / 4 * Shape::STATE_BAND, row, i % 4 * 2 + lane / 16), Sb[4 * i],
                           Sb[4 * i + 1], Sb[4 * i + 2], Sb[4 * i + 3]);
        }
        hopper::fence_async();
        __syncwarp();
        if (lane == 0) {
            hopper::barrier_arrive(p.state);
        }
    }
    /* One chunk; S on return is what enters the next one. */
    __device__ __forceinline__ void step(int n) {
        using namespace hopper;
        uint32_t k = p.stage(n), v = k + Shape::V + group * BAND, t = k + Shape::T;
        const float *numbers = p.numbers(n) + lane % 4 * 2;
        uint32_t w[4][4], r[16];
        float2 fade[8], beta[8];
        pack_all(Sb, S);
        barrier_wait(p.barrier(p.full, n), p.parity(n));
        if (item.at.length - n * C < C) {
            clear(k, v, item.at.length - n * C);
        }
        products_begin();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            product_along(X, Sb + 4 * i, describe(k + i / 4 * BAND + i % 4 * 32, 0), i > 0);
        }
        products_commit();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            load_matrices_across(w[i], values_at(v, i));
            if (Shape::KIND == PAIR && item.map) {
                w[i][0] = w[i][1] = w[i][2] = w[i][3] = 0;
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            fade[i] = *(const float2 *)(numbers + FADE_K + 8 * i);
            beta[i] = *(const float2 *)(numbers + BETA + 8 * i);
        }
        products_wait<0>();
        keep_below(X);
#pragma unroll
        for (int i = 0; i < 8; i++) { /* beta (V - fade X) */
            const uint32_t *v2 = &w[i / 2][i % 2 * 2];
            r[2 * i] = pack(beta[i].x * low_half(v2[0]) - fade[i].x * X[4 * i],
                            beta[i].y * high_half(v2[0]) - fade[i].y * X[4 * i + 1]);
            r[2 * i + 1] = pack(beta[i].x * low_half(v2[1]) - fade[i].x * X[4 * i + 2],
                                beta[i].y * high_half(v2[1]) - fade[i].y * X[4 * i + 3]);
        }
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            product_along(X, r + 4 * i, describe(t + i * 32, 0), i > 0);
        }
        products_commit();
        if (Shape::KIND != PAIR) {
            show_state(n);
        }
        float end = fade_of(p.numbers(n), C - 1);
#pragma unroll
        for (int i = 0; i < 64; i++) {
            S[i] *= end;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            fade[i] = *(const float2 *)(numbers + LEFT_K + 8 * i);
        }
        products_wait<0>();
        keep_below(X);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            r[2 * i] = pack(fade[i].x * X[4 * i], fade[i].y * X[4 * i + 1]);
            r[2 * i + 1] = pack(fade[i].x * X[4 * i + 2], fade[i].y * X[4 * i + 3]);
        }
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            product_right(S, r + 4 * i, describe(k + i * 2048, BAND), 1);
        }
        products_commit();
        if (Shape::KIND != PAIR) {
            show_values(v, n);
        }
        products_wait<0>();
        keep_below(S);
        if (lane == 0) {
            barrier_arrive(p.barrier(p.empty, n));
        }
    }
    /* V' or Y of a chunk, in the place of v, for whoever stores or uses it. */
    __device__ __forceinline__ void show_values(uint32_t v, int n) {
        uint32_t values[16];
        pack_all(values, X);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            store_matrices_across(values_at(v, i), values[4 * i], values[4 * i + 1], values[4 * i + 2],
                                  values[4 * i + 3]);
        }
        hopper::fence_async();
        __syncwarp();
        if (lane == 0) {
            hopper::barrier_arrive(p.barrier(p.values, n));
        }
    }
    __device__ __forceinline__ void step_back(int n) {
        using namespace hopper;
        uint32_t k = p.stage(n), q = k + Shape::Q, v = k + Shape::V + group * BAND, t = k + Shape::T;
        const float *numbers = p.numbers(n) + lane % 4 * 2;
        uint32_t w[4][4], r[16];
        pack_all(Sb, S);
        barrier_wait(p.barrier(p.full, n), p.parity(n));
        int left = item.at.length - (item.chunks - 1 - n) * C;
        if (left < C) {
            clear(k, v, left);
        }
        products_begin();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            product_along(X, Sb + 4 * i, describe(k + i / 4 * BAND + i % 4 * 32, 0), i > 0);
        }
        products_commit();
#pragma unroll
        for (int i = 0; i < 4; i++) { /* dO with values in rows is a left operand as it comes */
            load_matrices_across(w[i], values_at(v, i));
        }
        show_state(n);
        float end = fade_of(p.numbers(n), C - 1);
#pragma unroll
        for (int i = 0; i < 64; i++) {
            S[i] *= end;
        }
        products_wait<0>();
        keep_below(X);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float2 by = *(const float2 *)(numbers + LEFT_K + 8 * i);
            X[4 * i] *= by.x;
            X[4 * i + 1] *= by.y;
            X[4 * i + 2] *= by.x;
            X[4 * i + 3] *= by.y;
        }
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            product_right(X, w[i], describe(t + BAND + i * 2048, 0), 1);
        }
        products_commit();
        uint32_t d[16];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float2 by = *(const float2 *)(numbers + FADE_Q + 8 * i);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t pair = w[i / 2][i % 2 * 2 + j];
                d[2 * i + j] = pack(by.x * low_half(pair), by.y * high_half(pair));
            }
        }
        products_wait<0>();
        keep_below(X);
        pack_all(r, X);
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            product_right(X, r + 4 * i, describe(t + i * 2048, 0), i > 0);
        }
        products_commit();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            product_right(S, d + 4 * i, describe(q + i * 2048, BAND), 1);
        }
        products_commit();
        products_wait<1>();
        keep_below(X);
        uint32_t y[16];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float2 by = *(const float2 *)(numbers + FADE_K + 8 * i);
            y[2 * i] = pack(-by.x * X[4 * i], -by.y * X[4 * i + 1]);
            y[2 * i + 1] = pack(-by.x * X[4 * i + 2], -by.y * X[4 * i + 3]);
        }
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            product_right(S, y + 4 * i, describe(k + i * 2048, BAND), 1);
        }
        products_commit();
        if (Shape::KIND != PAIR) {
            show_values(v, n);
        }
        products_wait<0>();
        keep_below(S);
        if (lane == 0) {
            barrier_arrive(p.barrier(p.empty, n));
        }
    }
    __device__ __forceinline__ void run() {
        load_state();
        for (int n = 0; n < item.chunks; n++) {
            if (Shape::KIND == BACK) {
                step_back(n);
            } else {
                step(n);
            }
        }
        if (Shape::KIND == PAIR || (a.final_state != nullptr && item.segment + 1 == a.s.segments)) {
            store_state();
        }
    }
};

/* O = fade Q S^T + P V' of every chunk: 64 tokens in rows, all of this block's values. */
template <typename Shape> struct scan_output {
    static constexpr int N = 64 * Shape::GROUPS;
    const scan_args &a;
    const scan_item &item;
    const scan_places<Shape> &p;
    int warp, lane;

    /* By threads: a chunk that a sequence's end cuts. */
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
        group_sync(8, 128);
#pragma unroll
        for (int i = 0; i < N / 16; i++) {
            store_matrices(swizzled(to + i / 4 * BAND, row, i % 4 * 2 + lane / 16), pack(O[8 * i], O[8 * i + 1]),
                           pack(O[8 * i + 2], O[8 * i + 3]), pack(O[8 * i + 4], O[8 * i + 5]),
                           pack(O[8 * i + 6], O[8 * i + 7]));
        }
        fence_async();
        group_sync(8, 128);
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
            for (int i = 0; i < 8; i++) {
                product_both(O, describe(q + i / 4 * BAND + i % 4 * 32, 0),
                             describe(s + i / 4 * Shape::STATE_BAND + i % 4 * 32, 0), i > 0);
            }
            products_commit();
            int row = 16 * warp + lane / 4;
            float above = numbers[FADE_Q + row], below = numbers[FADE_Q + row + 8];
            products_wait<0>();
            keep_below(O);
            if (lane == 0) {
                barrier_arrive(p.state_read);
            }
#pragma unroll
            for (int i = 0; i < N / 8; i++) {
                O[4 * i] *= above;
                O[4 * i + 1] *= above;
                O[4 * i + 2] *= below;
                O[4 * i + 3] *= below;
            }
            barrier_wait(p.barrier(p.values, n), p.parity(n));
            products_begin();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                product_across(O, describe(k + Shape::P + i * 32, 0), describe(v + i * 2048, BAND), 1);
            }
            products_commit();
            products_wait<0>();
            keep_below(O);
            if (lane == 0) {
                barrier_arrive(p.barrier(p.empty, n));
            }
            store(O, n);
        }
        if (warp == 0 && lane == 0) {
            stores_wait_read();
        }
    }
};

/* The state and the values of every chunk go to the workspace as they lie. One thread. */
template <typename Shape>
static __device__ __forceinline__ void keep_chunks(const scan_args &a, const scan_item &item,
                                                   const scan_places<Shape> &p) {
    using namespace hopper;
    for (int n = 0; n < item.chunks; n++) {
        int chunk = Shape::KIND == BACK ? item.chunks - 1 - n : n;
        int64_t tile = (int64_t)(item.at.slot + chunk) * a.s.value_heads + item.value_head;
        barrier_wait(p.state, n % 2);
        for (int i = 0; i < 2 * Shape::GROUPS; i++) {
            int band = i / Shape::GROUPS, group = i % Shape::GROUPS;
            store_bytes(a.states + tile * STATE_BYTES + band * 2 * BAND + (item.band + group) * BAND,
                        p.start + Shape::STATE + band * Shape::STATE_BAND + group * BAND, BAND);
        }
        stores_commit();
        stores_wait_read();
        barrier_arrive(p.state_read);
        barrier_wait(p.barrier(p.values, n), p.parity(n));
        for (int i = 0; i < Shape::GROUPS; i++) {
            store_bytes(a.values + tile * TILE + (item.band + i) * BAND, p.stage(n) + Shape::V + i * BAND, BAND);
        }
        stores_commit();
        stores_wait_read();
        barrier_arrive(p.barrier(p.empty, n));
    }
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::THREADS, 1) scan(const __grid_constant__ scan_args a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace hopper;
    extern __shared__ char memory[];
    __shared__ scan_barriers<Shape::STAGES> b;
    scan_places<Shape> p;
    p.start = (shared_address(memory) + 1023u) & ~1023u;
    p.data = memory + (p.start - shared_address(memory));
    p.full = shared_address(b.full);
    p.empty = shared_address(b.empty);
    p.values = shared_address(b.values);
    p.state = shared_address(&b.state);
    p.state_read = shared_address(&b.state_read);
    scan_item item = item_of<Shape>(a.s);
    constexpr int READERS = Shape::KIND == FORWARD ? 4 : Shape::KIND == PAIR ? 0 : 1; /* of the rounded state and of V' */
    if (Shape::KIND == PAIR && (item.segment + 1 == a.s.segments || (item.map && item.segment == 0))) {
        return; /* nobody asks for it */
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < Shape::STAGES; i++) {
            barrier_init(p.full + 8 * i, 1);
            barrier_init(p.empty + 8 * i, 4 * Shape::GROUPS + READERS);
            barrier_init(p.values + 8 * i, 4 * Shape::GROUPS);
        }
        barrier_init(p.state, 4 * Shape::GROUPS);
        barrier_init(p.state_read, READERS > 0 ? READERS : 1);
        fence_async();
    }
    __syncthreads();
    int group = (int)threadIdx.x / 128, warp = (int)threadIdx.x % 128 / 32, lane = (int)threadIdx.x % 32;
    if (group == Shape::GROUPS + 1) {
        registers_give<24>();
        if (threadIdx.x % 128 == 0) {
            copy_chunks<Shape>(a, item, p);
        }
    } else if (group == Shape::GROUPS) {
        registers_give<Shape::OUT_REGISTERS>();
        if constexpr (Shape::KIND == FORWARD) {
            scan_output<Shape> me = {a, item, p, warp, lane};
            me.run();
        } else if (Shape::KIND != PAIR && threadIdx.x % 128 == 0) {
            keep_chunks<Shape>(a, item, p);
        }
    } else {
        registers_take<Shape::WORK_REGISTERS>();
        scan_worker<Shape> me = {a, item, p, group, warp, lane};
        me.run();
    }
#endif
}

/* The state that enters every segment: S' = M S + L, segment after segment, in the place of L. 16 rows of values a
   block, a thread for each key. */
static __global__ void __launch_bounds__(128) fix_up(float *pairs, int segments, int value_heads) {
    __shared__ float S[D][16 + 4]; /* [key][row] */
    int head = (int)blockIdx.y % value_heads, sequence = (int)blockIdx.y / value_heads, key = (int)threadIdx.x;
    int row = (int)blockIdx.x * 16;
    float sum[16];
    for (int segment = 0; segment + 1 < segments; segment++) {
        float *L = pairs + (((int64_t)(sequence * segments + segment) * value_heads + head) * 2) * D * D;
        const float *M = L + D * D; /* [value c][key] is M[key][c] */
#pragma unroll
        for (int r = 0; r < 16; r++) {
            sum[r] = L[(row + r) * D + key];
        }
        if (segment > 0) {
#pragma unroll 8
            for (int c = 0; c < D; c++) {
                float m = M[c * D + key];
                const float4 *s = (const float4 *)S[c];
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    float4 x = s[r];
                    sum[4 * r] += m * x.x;
                    sum[4 * r + 1] += m * x.y;
                    sum[4 * r + 2] += m * x.z;
                    sum[4 * r + 3] += m * x.w;
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 16; r++) {
            S[key][r] = sum[r];
            if (segment > 0) {
                L[(row + r) * D + key] = sum[r];
            }
        }
        __syncthreads();
    }
}

} // namespace delta_chunk

#endif

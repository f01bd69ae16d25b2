/* The warpgroup that holds the state. The equations are in scan.cuh. */
#ifndef CARRY_DELTA_CHUNK_WORKER_CUH
#define CARRY_DELTA_CHUNK_WORKER_CUH

#include "delta/cuda/chunk/worker_parts.cuh"

namespace DELTA_CHUNK {

/* Handles 64 values of one value head, with 128 keys in each half. */
template <typename Shape> struct scan_worker {
    const scan_args &a;
    const scan_item &item;
    const scan_places<Shape> &p;
    int group, warp, lane;

    static constexpr int HALVES = Shape::HALVES;
    static constexpr bool TWO_SUMS = HALVES == 1 && Shape::GROUPS == 1 && !Shape::BY_KEY; /* for R T^T */
    float S[HALVES][64], X[32];
    uint32_t Sb[32]; /* the rounded half of the state that is being multiplied */

    /* The location of this thread's part of a state: of a whole sequence, or of a segment's pair. */
    __device__ __forceinline__ state_place place_of(const float *states) const {
        int keys = 64 * a.s.key_bands, values = 64 * a.s.bands << a.s.shift, by_value = a.state_transposed ? keys : 1;
        int64_t head = (int64_t)(item.sequence / a.s.segments) * a.s.state_heads + (item.value_head >> a.s.shift);
        int first = item.value_head - (item.value_head >> a.s.shift << a.s.shift); /* index of the part of the head */
        return begin(states + head * (keys * values) + first * D * by_value, by_value, a.state_transposed ? 1 : values);
    }
    __device__ __forceinline__ state_place place_of(int segment, pair_part part) const {
        int64_t from = (((int64_t)segment * a.s.value_heads + item.value_head) * a.parts + part) * D * D;
        return begin(a.pairs + from, D, 1);
    }
    __device__ __forceinline__ state_place begin(const float *from, int by_value, int by_key) const {
        int value = 64 * (item.band + group) + 16 * warp + lane / 4, key = lane % 4 * 2;
        return {(float *)from + value * by_value + key * by_key, by_value, by_key};
    }
    /* All conditions are evaluated before the loads, so that the loads are issued together. */
    __device__ __forceinline__ void load_state() {
        bool made = Shape::KIND == PAIR && (item.map || item.segment > 0);
        bool first = Shape::REVERSE ? item.segment + 1 == a.s.segments : item.segment == 0; /* no segment before it */
        made = made || (Shape::LOCAL && Shape::REVERSE && !first) || (first && a.initial_state == nullptr);
        int diagonal = 64 * (item.band + group) + 16 * warp + lane / 4 - lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 64; i++) {
            bool one = item.map && diagonal == i / 4 * 8 + i % 2 - i % 4 / 2 * 8;
            S[0][i] = Shape::KIND == PAIR && one ? 1.0f : 0.0f;
            S[HALVES - 1][i] = S[0][i];
        }
        if (made && item.begins) {
            return;
        }
        state_place from = !item.begins ? between()
                           : first      ? place_of(a.initial_state)
                           /* Of the next segment, after fix_up. */
                           : Shape::REVERSE ? place_of(item.sequence + 1, PART_C)
                                            : place_of(item.sequence - 1, PART_L); /* of the previous segment */
#pragma unroll
        for (int i = 0; i < 32; i++) {
            S[0][i] = *from.at(i);
        }
        if (a.s.key_bands > 1) {
#pragma unroll
            for (int i = 32; i < 64 * HALVES; i++) {
                S[i / 64][i % 64] = *from.at(i);
            }
        }
    }
    __device__ __forceinline__ state_place between() const {
        int64_t lane = (int64_t)item.sequence * a.s.value_heads + item.value_head;
        return begin(a.between + lane * (D * Shape::KEYS), Shape::KEYS, 1);
    }
    __device__ __forceinline__ void store_state() {
        state_place to = !item.ends     ? between()
                         : Shape::LOCAL ? place_of(item.sequence, Shape::REVERSE ? PART_C
                                                                  : item.map     ? PART_M
                                                                                 : PART_L)
                                        : place_of(a.final_state);
#pragma unroll
        for (int i = 0; i < 64 * HALVES; i++) {
            if (i < 32 || a.s.key_bands > 1) {
                *to.at(i) = S[i / 64][i % 64];
            }
        }
    }
    __device__ __forceinline__ uint32_t values_at(uint32_t v, int i) {
        return swizzled(v, 16 * i + lane / 16 * 8 + lane % 8, 2 * warp + (lane / 8 & 1));
    }
    /* Memory after the end of a sequence may hold NaN or infinity. */
    __device__ __forceinline__ void clear(uint32_t k, uint32_t v, int left) {
        if (!Shape::BY_KEY) { /* with gates by key channel, prepare has stored zeros there */
            clear_rows(k, 2 * HALVES, left, 32 * warp + lane);
        }
        clear_rows(v, 1, left, 32 * warp + lane);
        if (Shape::REVERSE) {
            clear_rows(k + Shape::Q, 2 * HALVES, left, 32 * warp + lane);
        }
        hopper::fence_async();
        hopper::group_meet(1 + group, 128);
    }
    /* Stores the rounded state of chunk n for the other warpgroup, with values in rows. Called for one half after the
       other. */
    __device__ __forceinline__ void show_state(int n, int half = 0) {
        if (half == 0) {
            hopper::barrier_wait(p.state_read, n % 2 ^ 1);
        }
        uint32_t to = p.start + Shape::STATE + half * 2 * Shape::STATE_BAND;
        int row = 64 * group + 16 * warp + (lane & 8) + lane % 8;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            store_matrices(swizzled(to + i / 4 * Shape::STATE_BAND, row, i % 4 * 2 + lane / 16), Sb[4 * i],
                           Sb[4 * i + 1], Sb[4 * i + 2], Sb[4 * i + 3]);
        }
        if (half < HALVES - 1) {
            return;
        }
        hopper::fence_async();
        __syncwarp();
        if (lane < ARRIVING) {
            hopper::barrier_arrive(p.state);
        }
    }
    /* Stores beta (V - fade X) over v, for the warpgroup that computes outputs. */
    __device__ __forceinline__ void put_rest(uint32_t v, const uint32_t (&r)[16]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            store_matrices_across(values_at(v, i), r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]);
        }
    }
    /* A NaN or infinity of one token (from v, or from a beta that prepare set to NaN) must not reach earlier tokens
       through a zero of W. The product with T has made a whole row NaN, which is right for the state. The operand of
       the outputs is set to zero from the first such token on. Returns that token. The product for the state runs at
       the same time. */
    __device__ __forceinline__ int mend(uint32_t v) {
        uint32_t r[16], part[4];
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16; i++) {
            if (i % 4 == 0) {
                load_matrices_across(part, values_at(v, i / 4));
            }
            r[i] = part[i % 4];
        }
        int first = first_bad(r, lane);
        cut(r, first, lane);
        put_rest(v, r);
        return first;
    }
    /* Rounds the state and waits for the chunk's tiles. `left` is the number of tokens that remain. */
    __device__ __forceinline__ void begin_chunk(int n, uint32_t k, uint32_t v) {
        pack_all(Sb, S[0]);
        hopper::barrier_wait(p.barrier(p.full, n), p.parity(n));
        int left = item.at.length - item.chunk<Shape>(n) * C;
        if (left < C) {
            clear(k, v, left);
        }
    }
    /* to = S K^T for the first half of the keys, or to += for the second. */
    __device__ __forceinline__ void times_keys(float (&to)[32], uint32_t k, int add = 0) {
        hopper::products_begin();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            hopper::product_along(to, Sb + 4 * i, hopper::describe(k + i / 4 * BAND + i % 4 * 32, 0), add || i > 0);
        }
        hopper::products_commit();
    }
    /* Handles the second half of the state, in the registers of the first half, whose product is done. */
    __device__ __forceinline__ void second_half(float (&to)[32], uint32_t k, int n) {
        if (!Shape::LOCAL) {
            show_state(n, 0);
        }
        hopper::products_wait<0>();
        hopper::keep_below(to);
        pack_all(Sb, S[HALVES - 1]);
        times_keys(to, k + TILE, 1);
    }
    /* S += left * (keys of the tokens). */
    __device__ __forceinline__ void add_tokens(const uint32_t *left, uint32_t tile) {
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            times_tokens(S[half], left, tile + half * TILE, BAND, 1);
        }
    }
    /* to = (or +=) left * (a tile of 64 tokens). The tile's bands are `band` bytes apart. */
    template <int N>
    __device__ __forceinline__ void times_tokens(float (&to)[N], const uint32_t *left, uint32_t tile, int band,
                                                 int add) {
        hopper::products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            hopper::product_right(to, left + 4 * i, hopper::describe(tile + i * 2048, band), add || i > 0);
        }
        hopper::products_commit();
    }
    /* The same as times_tokens with T or W as the right operand. */
    __device__ __forceinline__ void times_triangle(float (&to)[32], const uint32_t *left, uint32_t tile, int add) {
        hopper::products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            hopper::product_right(to, left + 4 * i, describe_half(tile + i * 1024, HALF), add || i > 0);
        }
        hopper::products_commit();
    }
    /* Multiplies x by a number for each token and packs it as a left operand. */
    __device__ __forceinline__ void pack_by(uint32_t (&to)[16], const float (&x)[32], const float2 (&by)[8]) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            to[2 * i] = pack(by[i].x * x[4 * i], by[i].y * x[4 * i + 1]);
            to[2 * i + 1] = pack(by[i].x * x[4 * i + 2], by[i].y * x[4 * i + 3]);
        }
    }
    static __device__ __forceinline__ void load_eight(float2 (&to)[8], const float *numbers) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            to[i] = *(const float2 *)(numbers + 8 * i);
        }
    }
    __device__ __forceinline__ void fade_state(float by) {
#pragma unroll
        for (int i = 0; i < 64 * HALVES; i++) {
            S[i / 64][i % 64] *= by;
        }
    }
    /* For gates by key channel: multiplies each key by its decay. */
    __device__ __forceinline__ void fade_keys(const float *numbers) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float2 by = *(const float2 *)(numbers + END + 8 * i);
            S[0][4 * i] *= by.x;
            S[0][4 * i + 1] *= by.y;
            S[0][4 * i + 2] *= by.x;
            S[0][4 * i + 3] *= by.y;
        }
    }
    /* Processes one chunk. On return, S is the state that enters the next one. */
    __device__ __forceinline__ void step(int n) {
        using namespace hopper;
        uint32_t k = p.stage(n), v = k + Shape::V + group * BAND, t = k + Shape::T;
        const float *numbers = p.numbers(n) + lane % 4 * 2;
        uint32_t w[4][4], r[16];
        float2 fade[8], beta[8];
        begin_chunk(n, k, v);
        times_keys(X, k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            load_matrices_across(w[i], values_at(v, i));
            if (Shape::KIND == PAIR && item.map) {
                w[i][0] = w[i][1] = w[i][2] = w[i][3] = 0;
            }
        }
        if (HALVES > 1) {
            second_half(X, k, n);
        } else {
            if (!Shape::BY_KEY) {
                load_eight(fade, numbers + FADE_K);
            }
            load_eight(beta, numbers + BETA);
        }
        if (!Shape::LOCAL) {
            show_state(n, HALVES - 1);
        }
        float end = Shape::BY_KEY ? 1.0f : fade_of(p.numbers(n), C - 1);
        products_wait<0>();
        keep_below(X);
        if (HALVES > 1) { /* not earlier: there are not enough registers */
            load_eight(fade, numbers + FADE_K);
            load_eight(beta, numbers + BETA);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) { /* beta (V - fade X) */
            const uint32_t *v2 = &w[i / 2][i % 2 * 2];
            if constexpr (Shape::BY_KEY) {
                r[2 * i] =
                    pack(beta[i].x * (low_half(v2[0]) - X[4 * i]), beta[i].y * (high_half(v2[0]) - X[4 * i + 1]));
                r[2 * i + 1] =
                    pack(beta[i].x * (low_half(v2[1]) - X[4 * i + 2]), beta[i].y * (high_half(v2[1]) - X[4 * i + 3]));
                continue;
            }
            r[2 * i] = pack(beta[i].x * low_half(v2[0]) - fade[i].x * X[4 * i],
                            beta[i].y * high_half(v2[0]) - fade[i].y * X[4 * i + 1]);
            r[2 * i + 1] = pack(beta[i].x * low_half(v2[1]) - fade[i].x * X[4 * i + 2],
                                beta[i].y * high_half(v2[1]) - fade[i].y * X[4 * i + 3]);
        }
        float later[32]; /* the second sum, over the last 32 tokens */
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            product_along(TWO_SUMS && i > 1 ? later : X, r + 4 * i, describe_half(t + i / 2 * HALF + i % 2 * 32, 0),
                          i % (TWO_SUMS ? 2 : 4) > 0);
        }
        products_commit();
        if (!Shape::BY_KEY) {
            load_eight(fade, numbers + LEFT_K); /* loaded before the stores, which would delay the loads */
        }
        if (Shape::KIND == FORWARD) {
            put_rest(v, r);
        }
        if constexpr (Shape::BY_KEY) {
            fade_keys(numbers);
        } else {
            fade_state(end);
        }
        products_wait<0>();
        keep_below(X);
        if constexpr (TWO_SUMS) {
            keep_below(later);
#pragma unroll
            for (int i = 0; i < 32; i++) {
                X[i] += later[i];
            }
        }
        if constexpr (Shape::BY_KEY) {
            pack_all(r, X);
        } else {
            pack_by(r, X, fade);
        }
        add_tokens(r, k + Shape::LEFT);
        if (Shape::KIND == FORWARD) {
            int first = C;
            if (__any_sync(0xffffffffu, (X[0] + X[2]) * 0.0f != 0.0f)) {
                first = mend(v);
            }
            if (lane == 0) {
                p.first_bad(n)[4 * group + warp] = first;
            }
            fence_async(); /* placed here because after the stores it would delay the next product */
            signal_values(n);
        } else if (!Shape::LOCAL) {
            show_values(v, n);
        }
        products_wait<0>();
        keep_state();
        if (lane < ARRIVING) {
            barrier_arrive(p.barrier(p.empty, n));
        }
    }
    /* Stores V' or dv of a chunk over v, for the warps that store or use it. */
    __device__ __forceinline__ void show_values(uint32_t v, int n) {
        uint32_t values[16];
        if (Shape::REVERSE) {
            const float *beta = p.numbers(n) + BETA + lane % 4 * 2;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float2 by = *(const float2 *)(beta + 8 * i);
                by = {given_beta(by.x), given_beta(by.y)};
                X[4 * i] *= by.x;
                X[4 * i + 1] *= by.y;
                X[4 * i + 2] *= by.x;
                X[4 * i + 3] *= by.y;
            }
        }
        pack_all(values, X);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            store_matrices_across(values_at(v, i), values[4 * i], values[4 * i + 1], values[4 * i + 2],
                                  values[4 * i + 3]);
        }
        hopper::fence_async();
        signal_values(n);
    }
    __device__ __forceinline__ void keep_state() {
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            hopper::keep_below(S[half]);
        }
    }
    __device__ __forceinline__ void signal_values(int n) {
        __syncwarp();
        if (lane < ARRIVING) {
            hopper::barrier_arrive(p.barrier(p.values, n));
        }
    }
    __device__ __forceinline__ void step_back(int n) {
        using namespace hopper;
        uint32_t k = p.stage(n), q = k + Shape::Q, v = k + Shape::V + group * BAND, t = k + Shape::T;
        const float *numbers = p.numbers(n) + lane % 4 * 2;
        uint32_t w[4][4], r[16];
        float U[32];
        float2 by[8];
        begin_chunk(n, k, v);
        times_keys(U, k);
#pragma unroll
        for (int i = 0; i < 4; i++) { /* dO with values in rows can be loaded directly as a left operand */
            load_matrices_across(w[i], values_at(v, i));
        }
        if (HALVES > 1) {
            second_half(U, k, n);
        }
        if (!Shape::LOCAL) {
            show_state(n, HALVES - 1);
        }
        fade_state(fade_of(p.numbers(n), C - 1));
        if (HALVES == 1) {
            times_triangle(X, &w[0][0], t + BAND, 0);
            products_wait<1>();
        } else { /* one after the other: there are not enough registers for both */
            products_wait<0>();
        }
        keep_below(U);
        load_eight(by, numbers + LEFT_K);
        pack_by(r, U, by);
        if (HALVES > 1) {
            times_triangle(X, &w[0][0], t + BAND, 0);
        }
        times_triangle(X, r, t, 1);
        uint32_t d[16];
        load_eight(by, numbers + FADE_Q);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            uint32_t pair = w[i / 4][i % 4];
            d[i] = pack(by[i / 2].x * low_half(pair), by[i / 2].y * high_half(pair));
        }
        add_tokens(d, q);
        products_wait<HALVES>();
        keep_below(X);
        uint32_t y[16];
        load_eight(by, numbers + FADE_K);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            by[i] = {-by[i].x, -by[i].y};
        }
        pack_by(y, X, by);
        add_tokens(y, k);
        if (!Shape::LOCAL) {
            show_values(v, n);
        }
        products_wait<0>();
        keep_state();
        if (lane < ARRIVING) {
            barrier_arrive(p.barrier(p.empty, n));
        }
    }
    /* Stores the state that enters chunk n in f32, for the backward pass. */
    __device__ __forceinline__ void keep_entering(int n) {
        int64_t sequence = item.sequence / a.s.segments, chunk = (int64_t)item.segment * a.s.segment_chunks + n;
        int64_t slot = a.s.cu_seqlens != nullptr ? item.at.slot + n : sequence * a.s.tokens / C + sequence + chunk;
        int values = 64 * a.s.bands << a.s.shift, first = item.value_head & ((1 << a.s.shift) - 1);
        int64_t unit = slot * (a.s.value_heads >> a.s.shift) + (item.value_head >> a.s.shift);
        state_place to = begin(a.kept + unit * D * values + first * D, 1, values);
#pragma unroll
        for (int i = 0; i < 64; i++) {
            *to.at(i) = S[0][i];
        }
    }
    __device__ __forceinline__ void run() {
        load_state();
        for (int n = 0; n < item.chunks; n++) {
            if (Shape::BY_KEY && Shape::KIND == FORWARD && a.kept != nullptr) {
                keep_entering(n);
            }
            if (Shape::REVERSE) {
                step_back(n);
            } else {
                step(n);
            }
        }
        if (Shape::LOCAL || !item.ends ||
            (a.final_state != nullptr && item.segment == (Shape::REVERSE ? 0 : a.s.segments - 1))) {
            store_state();
        }
    }
};

} // namespace DELTA_CHUNK

#endif

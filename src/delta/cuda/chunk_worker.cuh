/* The warpgroup that has the state. The equations are in chunk_scan.cuh. */
#ifndef CARRY_DELTA_CHUNK_WORKER_CUH
#define CARRY_DELTA_CHUNK_WORKER_CUH

#include "delta/cuda/chunk_scan_parts.cuh"

namespace DELTA_CHUNK {

/* A thread's elements of a state in f32: its sums are 16 times (2 rows of values, 8 apart) x (2 keys), 8 keys apart. */
struct state_place {
    float *first;
    int by_value, by_key;
    __device__ __forceinline__ float *at(int i) const {
        return first + i % 4 / 2 * 8 * by_value + (i / 4 * 8 + i % 2) * by_key;
    }
};

/* 64 values of one value head. */
template <typename Shape> struct scan_worker {
    const scan_args &a;
    const scan_item &item;
    const scan_places<Shape> &p;
    int group, warp, lane;

    float S[64], X[32];
    uint32_t Sb[32];

    /* Where this thread's part of a state is: of a whole sequence, or of a segment's pair. */
    __device__ __forceinline__ state_place place_of(const float *states) const {
        int64_t from = ((int64_t)(item.sequence / a.s.segments) * a.s.state_heads + item.value_head) * D * D;
        return begin(states + from, a.state_transposed ? D : 1, a.state_transposed ? 1 : D);
    }
    __device__ __forceinline__ state_place place_of(int segment, pair_part part) const {
        int64_t from = (((int64_t)segment * a.s.value_heads + item.value_head) * a.parts + part) * D * D;
        return begin(a.pairs + from, D, 1);
    }
    __device__ __forceinline__ state_place begin(const float *from, int by_value, int by_key) const {
        int value = 64 * (item.band + group) + 16 * warp + lane / 4, key = lane % 4 * 2;
        return {(float *)from + value * by_value + key * by_key, by_value, by_key};
    }
    /* Everything but the loads is decided first: they are asked for together. */
    __device__ __forceinline__ void load_state() {
        bool made = Shape::KIND == PAIR && (item.map || item.segment > 0);
        bool first = Shape::REVERSE ? item.segment + 1 == a.s.segments : item.segment == 0; /* nobody before it */
        made = made || (Shape::LOCAL && Shape::REVERSE && !first) || (first && a.initial_state == nullptr);
        int diagonal = 64 * (item.band + group) + 16 * warp + lane / 4 - lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 64; i++) {
            bool one = item.map && diagonal == i / 4 * 8 + i % 2 - i % 4 / 2 * 8;
            S[i] = Shape::KIND == PAIR && one ? 1.0f : 0.0f;
        }
        if (made && item.begins) {
            return;
        }
        state_place from = !item.begins     ? between()
                           : first          ? place_of(a.initial_state)
                           : Shape::REVERSE ? place_of(item.sequence + 1, PART_C)  /* of the next segment, fixed up */
                                            : place_of(item.sequence - 1, PART_L); /* of the last one */
#pragma unroll
        for (int i = 0; i < 64; i++) {
            S[i] = *from.at(i);
        }
    }
    __device__ __forceinline__ state_place between() const {
        return begin(a.between + ((int64_t)item.sequence * a.s.value_heads + item.value_head) * D * D, D, 1);
    }
    __device__ __forceinline__ void store_state() {
        state_place to = !item.ends     ? between()
                         : Shape::LOCAL ? place_of(item.sequence, Shape::REVERSE ? PART_C : item.map ? PART_M : PART_L)
                             : place_of(a.final_state);
#pragma unroll
        for (int i = 0; i < 64; i++) {
            *to.at(i) = S[i];
        }
    }
    __device__ __forceinline__ uint32_t values_at(uint32_t v, int i) {
        return swizzled(v, 16 * i + lane / 16 * 8 + lane % 8, 2 * warp + (lane / 8 & 1));
    }
    /* What others wrote behind a sequence may be no number. */
    __device__ __forceinline__ void clear(uint32_t k, uint32_t v, int left) {
        clear_rows(k, 2, left, 32 * warp + lane);
        clear_rows(v, 1, left, 32 * warp + lane);
        if (Shape::REVERSE) {
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
    __device__ __forceinline__ int first_bad(const uint32_t (&r)[16]) const {
        int first = C;
#pragma unroll
        for (int i = 7; i >= 0; i--) {
            int token = 8 * i + lane % 4 * 2;
            float low = low_half(r[2 * i]) * 0.0f + low_half(r[2 * i + 1]) * 0.0f;
            float high = high_half(r[2 * i]) * 0.0f + high_half(r[2 * i + 1]) * 0.0f;
            first = low != 0.0f ? token : high != 0.0f ? token + 1 : first;
        }
        return __reduce_min_sync(0xffffffffu, first);
    }
    __device__ __forceinline__ void cut(uint32_t (&r)[16], int first) const {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int token = i / 2 * 8 + lane % 4 * 2;
            r[i] = token >= first ? 0 : token + 1 >= first ? r[i] & 0xffffu : r[i];
        }
    }
    __device__ __forceinline__ void put_from(int first, float x) {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            X[i] = i / 4 * 8 + lane % 4 * 2 + i % 2 >= first ? x : X[i];
        }
    }
    /* A NaN or infinity of one token (v's, or by its beta: prepare) must not reach the tokens before it by a zero of T or P.
       In a product with T it makes all of a row NaN: then this warp's values from the first such token on are left out of
       it, and are NaN. The new values once more, by the warp alone; returned: that token. */
    __device__ __forceinline__ int mend(uint32_t (&r)[16], uint32_t t) {
        int first = first_bad(r);
        cut(r, first);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float *x = X + 8 * n;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                x[i] = 0.0f;
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t b[4]; /* T of 16 tokens, 16 before them */
                load_matrices(b, swizzled(t, 16 * n + lane / 16 * 8 + lane % 8, 2 * k + (lane / 8 & 1)));
                product_of_warp(x, r + 4 * k, b[0], b[1]);
                product_of_warp(x + 4, r + 4 * k, b[2], b[3]);
            }
        }
        put_from(first, __int_as_float(0x7fffffff));
        return first;
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
        int left = item.at.length - item.chunk<Shape>(n) * C;
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
        if (!Shape::LOCAL) {
            show_state(n); /* before the state fades, for which ptxas waits for all products */
        }
        float end = fade_of(p.numbers(n), C - 1);
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
        int first = C;
        if (Shape::KIND == FORWARD && __any_sync(0xffffffffu, (X[0] + X[2]) * 0.0f != 0.0f)) {
            first = mend(r, t);
        }
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
        if (Shape::KIND == FORWARD) {
            if (first < C) {
                put_from(first, 0.0f);
            }
            if (lane == 0) {
                p.first_bad(n)[4 * group + warp] = first;
            }
        }
        if (!Shape::LOCAL) {
            show_values(v, n);
        }
        products_wait<0>();
        keep_below(S);
        if (lane == 0) {
            barrier_arrive(p.barrier(p.empty, n));
        }
    }
    /* V' or dv of a chunk, in the place of v, for the warps that store or use it. */
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
        int left = item.at.length - item.chunk<Shape>(n) * C;
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
        if (!Shape::LOCAL) {
            show_state(n);
        }
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
        float2 beta[8];
#pragma unroll
        for (int i = 0; i < 8 && !Shape::LOCAL; i++) {
            beta[i] = *(const float2 *)(numbers + BETA + 8 * i);
            beta[i] = {told_beta(beta[i].x), told_beta(beta[i].y)};
        }
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
        if (!Shape::LOCAL) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                X[4 * i] *= beta[i].x;
                X[4 * i + 1] *= beta[i].y;
                X[4 * i + 2] *= beta[i].x;
                X[4 * i + 3] *= beta[i].y;
            }
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

/* The warpgroup that has the state. The equations are in chunk_scan.cuh. */
#ifndef CARRY_DELTA_CHUNK_WORKER_CUH
#define CARRY_DELTA_CHUNK_WORKER_CUH

#include "delta/cuda/chunk/chunk_worker_parts.cuh"

namespace DELTA_CHUNK {

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
    __device__ __forceinline__ void put_from(int first, float x) {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            X[i] = i / 4 * 8 + lane % 4 * 2 + i % 2 >= first ? x : X[i];
        }
    }
    /* [16 values, 16 tokens from 16 n] = or += a times rows of tokens in a tile of 64 columns. */
    __device__ __forceinline__ void add_tokens(float (&x)[8], const uint32_t *a, uint32_t tile, int n, int column) {
        uint32_t b[4];
        load_matrices(b, swizzled(tile, 16 * n + lane / 16 * 8 + lane % 8, 2 * column + (lane / 8 & 1)));
        product_of_warp(x, a, b[0], b[1]);
        product_of_warp(x + 4, a, b[2], b[3]);
    }
    /* beta (V - fade X) of this warp once more, from the state in shared memory. */
    __device__ __forceinline__ void rest_again(uint32_t (&r)[16], uint32_t k, uint32_t v, const float *numbers) {
        uint32_t state = p.start + Shape::STATE;
        int row = 64 * group + 16 * warp + (lane & 8) + lane % 8;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float x[8] = {};
            uint32_t a[4], w[4];
#pragma unroll 1
            for (int i = 0; i < 8; i++) {
                load_matrices(a, swizzled(state + i / 4 * Shape::STATE_BAND, row, i % 4 * 2 + lane / 16));
                add_tokens(x, a, k + i / 4 * BAND, n, i % 4);
            }
            load_matrices_across(w, values_at(v, n));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float2 fade = *(const float2 *)(numbers + FADE_K + 16 * n + 8 * i);
                float2 beta = *(const float2 *)(numbers + BETA + 16 * n + 8 * i);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    r[4 * n + 2 * i + j] = pack(beta.x * low_half(w[2 * i + j]) - fade.x * x[4 * i + 2 * j],
                                                beta.y * high_half(w[2 * i + j]) - fade.y * x[4 * i + 2 * j + 1]);
                }
            }
        }
    }
    /* A NaN or infinity of one token (v's, or by its beta: prepare) must not reach the tokens before it by a zero of T or P.
       In the product with T it has made all of a row NaN, which is right for the state. The new values once more, by the
       warp alone, from the first such token on zeros; returned: that token. The state's product goes on meanwhile. */
    __device__ __forceinline__ int mend(uint32_t k, uint32_t v, uint32_t t, const float *numbers) {
        uint32_t r[16];
        rest_again(r, k, v, numbers);
        int first = first_bad(r, lane);
        cut(r, first, lane);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float x[8] = {};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                add_tokens(x, r + 4 * i, t, n, i);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                X[8 * n + i] = x[i];
            }
        }
        put_from(first, 0.0f);
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
            show_state(n);
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
            int first = C;
            if (__any_sync(0xffffffffu, (X[0] + X[2]) * 0.0f != 0.0f)) {
                first = mend(k, v, t, p.numbers(n) + lane % 4 * 2);
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
        if (Shape::REVERSE) {
            const float *beta = p.numbers(n) + BETA + lane % 4 * 2;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float2 by = *(const float2 *)(beta + 8 * i);
                by = {told_beta(by.x), told_beta(by.y)};
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

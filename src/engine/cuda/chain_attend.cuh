/* Attention for one token of each sequence: norms and positions of q and k, the cache, and attention. The tokens of a
   sequence are split into at most CARRY_CHAIN_SPLITS parts (or CARRY_CHAIN_SPLITS_F8). A block processes one part for
   the query heads of one key head; each warp takes every eighth token of the part. A second kernel combines the parts
   and applies the gate. */
#ifndef CARRY_ENGINE_CHAIN_ATTEND_CUH
#define CARRY_ENGINE_CHAIN_ATTEND_CUH

#include "engine/cuda/chain_kernel.cuh"
#include "engine/runner.h"
#include "ops/cuda/f8.cuh"

namespace chain {

/* 8-bit keys and values serve long contexts: there are more splits, and with few query heads two blocks share a
   multiprocessor, so that one loads while the other computes. */
template <bool F8> constexpr int SPLITS = F8 ? CARRY_CHAIN_SPLITS_F8 : CARRY_CHAIN_SPLITS;
constexpr int LEAST_SPLIT = 32, TOKENS_AHEAD = 4, WIDEST = 256;
constexpr float LOG2_E = 1.4426950408889634f;

struct attend_memory {
    float q[WARPS][WIDEST]; /* queries of the heads; later the sums of the warps */
    float part[WARPS][2];
};

/* Tokens of a split. It depends only on the length, so that both kernels and all batches agree. */
template <bool F8> static __device__ __forceinline__ int64_t split_tokens(int64_t tokens) {
    const int64_t even = (tokens + SPLITS<F8> - 1) / SPLITS<F8>;
    return even > LEAST_SPLIT ? (even + WARPS - 1) / WARPS * WARPS : LEAST_SPLIT;
}

/* Cosines and sines of a position for the E elements of a head that a lane holds, from lane E on. */
template <int E> struct turn { float cosine[E], sine[E]; };

template <int E> static __device__ __forceinline__ turn<E> turn_of(const carry_chain_attend &a, int64_t position) {
    const int lane = threadIdx.x % 32, half = a.rotary / 2;
    turn<E> t;
#pragma unroll
    for (int e = 0; e < E; e++) {
        const int i = lane * E + e;
        t.cosine[e] = 1.0f;
        t.sine[e] = 0.0f;
        if (i < a.rotary) {
            const float angle = (float)position * __ldg(a.rates + (i < half ? i : i - half));
            double turns = (double)angle * 0.15915494309189535; /* in float, large angles would lose their fraction */
            turns -= rint(turns);
            sincospif((float)(2.0 * turns), &t.sine[e], &t.cosine[e]);
            t.sine[e] = i < half ? -t.sine[e] : t.sine[e];
        }
    }
    return t;
}

/* The elements of a token that a lane holds. */
template <int E> struct alignas(E * 2) lane_elements { unsigned pair[E / 2]; };

template <int E> static __device__ __forceinline__ lane_elements<E> load(const void *from, size_t at) {
    const auto *p = (const __nv_bfloat16 *)from + at;
    lane_elements<E> x;
    if constexpr (E == 8) {
        *(uint4 *)&x = __ldcg((const uint4 *)p);
    } else {
        *(uint2 *)&x = __ldcg((const uint2 *)p);
    }
    return x;
}

template <int E> static __device__ __forceinline__ void widen(float (&x)[E], const lane_elements<E> &from) {
#pragma unroll
    for (int e = 0; e < E / 2; e++) {
        x[2 * e] = low_of(from.pair[e]);
        x[2 * e + 1] = high_of(from.pair[e]);
    }
}

/* One warp loads a head, normalises it and applies rotary positions. rotary / 2 must be a multiple of E. */
template <int E>
static __device__ __forceinline__ void turned(float (&x)[E], const lane_elements<E> &from, const float *norm,
                                              const carry_chain_attend &a, const turn<E> &t) {
    const int lane = threadIdx.x % 32, apart = a.rotary / 2 / E;
    float w[E], squares = 0.0f;
#pragma unroll
    for (int e = 0; e < E; e += 2) {
        *(float2 *)(w + e) = norm != nullptr ? __ldg((const float2 *)(norm + lane * E + e)) : make_float2(0, 0);
    }
    widen<E>(x, from);
#pragma unroll
    for (int e = 0; e < E; e++) {
        squares += x[e] * x[e];
    }
    const float r = norm != nullptr ? rsqrtf(warp_sum(squares) / (float)a.width + a.eps) : 1.0f;
    const float plus = norm != nullptr ? a.plus : 1.0f;
#pragma unroll
    for (int e = 0; e < E; e++) {
        x[e] *= r * (plus + w[e]);
        const float other = __shfl_sync(~0u, x[e], lane < apart ? lane + apart : lane - apart);
        x[e] = x[e] * t.cosine[e] + other * t.sine[e];
    }
}

/* The row of the cache that has the keys and values of a token. */
static __device__ __forceinline__ size_t cache_row(const int32_t *pages, int64_t token) {
    return (size_t)pages[token / CARRY_PAGE_TOKENS] * CARRY_PAGE_TOKENS + (size_t)(token % CARRY_PAGE_TOKENS);
}

template <int E> static __device__ __forceinline__ void store(void *to, size_t at, const float (&x)[E]) {
#pragma unroll
    for (int e = 0; e < E; e += 2) {
        *(unsigned *)((__nv_bfloat16 *)to + at + e) = pair_of(x[e], x[e + 1]);
    }
}

/* The elements of a token that a lane holds, as they are in the cache: bf16, or 8-bit floats and the head's scale. */
template <int E, bool F8> struct cached {
    lane_elements<E> x;
    __device__ __forceinline__ void load_from(const void *from, const uint8_t *, size_t head, int width, int lane) {
        x = load<E>(from, head * width + lane * E);
    }
    __device__ __forceinline__ lane_elements<E> in_bf16() const {
        return x;
    }
    __device__ __forceinline__ float scale() const {
        return 1.0f;
    }
};

template <int E> struct cached<E, true> {
    unsigned codes[E / 4];
    unsigned char e;
    __device__ __forceinline__ void load_from(const void *from, const uint8_t *scales, size_t head, int width,
                                              int lane) {
        const auto *p = (const uint8_t *)from + head * width + lane * E;
        if constexpr (E == 8) {
            const uint2 both = __ldcg((const uint2 *)p);
            codes[0] = both.x;
            codes[1] = both.y;
        } else {
            codes[0] = __ldcg((const unsigned *)p);
        }
        e = __ldcg(scales + head);
    }
    /* Exact, and without the scale, by which scores and weights are multiplied instead. */
    __device__ __forceinline__ lane_elements<E> in_bf16() const {
        lane_elements<E> x;
#pragma unroll
        for (int i = 0; i < E / 4; i++) {
            const float4 four = f8_four(codes[i]);
            x.pair[2 * i] = pair_of(four.x, four.y);
            x.pair[2 * i + 1] = pair_of(four.z, four.w);
        }
        return x;
    }
    __device__ __forceinline__ float scale() const {
        return carry_f8_scale(e);
    }
};

/* A warp stores a head in 8 bits. */
template <int E>
static __device__ __forceinline__ void store_f8(void *to, uint8_t *scales, size_t head, int width,
                                                const float (&x)[E]) {
    const int lane = threadIdx.x % 32;
    uint32_t largest = 0;
#pragma unroll
    for (int e = 0; e < E; e++) {
        const uint32_t size = f8_size(x[e]);
        largest = size > largest ? size : largest;
    }
    const uint32_t scale = carry_f8_scale_of(f8_largest_of_warp(largest));
    const float inverse = carry_f8_inverse(scale);
    unsigned *at = (unsigned *)((uint8_t *)to + head * width + lane * E);
#pragma unroll
    for (int e = 0; e < E; e += 4) {
        at[e / 4] = f8_codes(make_float4(x[e] * inverse, x[e + 1] * inverse, x[e + 2] * inverse, x[e + 3] * inverse));
    }
    if (lane == 0) {
        scales[head] = (uint8_t)scale;
    }
}

/* Puts the queries of the block into shared memory and the new token's key and value into the cache. */
template <int E, bool F8>
static __device__ __forceinline__ void begin_attend(const carry_chain_attend &a, attend_memory &m,
                                                    const __nv_bfloat16 *in, const int32_t *pages, int head,
                                                    int64_t position, bool has_last) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = a.heads / a.key_heads;
    const turn<E> t = turn_of<E>(a, position);
    let_next_begin();
    await_previous();
    if (warp < group) {
        alignas(16) float x[E];
        turned<E>(x, load<E>(in, a.q + (size_t)(head * group + warp) * a.q_head + lane * E), a.q_norm, a, t);
#pragma unroll
        for (int e = 0; e < E; e++) {
            m.q[warp][lane * E + e] = x[e] * a.scale * LOG2_E;
        }
    }
    if (has_last && warp == WARPS - 1) {
        const size_t at = cache_row(pages, position) * a.key_heads + head;
        alignas(16) float x[E], y[E];
        turned<E>(x, load<E>(in, a.k + (size_t)head * a.width + lane * E), a.k_norm, a, t);
        widen<E>(y, load<E>(in, a.v + (size_t)head * a.width + lane * E));
        if constexpr (F8) {
            store_f8<E>(a.keys, a.key_scales, at, a.width, x);
            store_f8<E>(a.values, a.value_scales, at, a.width, y);
        } else {
            store<E>(a.keys, at * a.width + lane * E, x);
            store<E>(a.values, at * a.width + lane * E, y);
        }
    }
    __syncthreads();
}

/* Combines the warps' sums of a split for one head and stores them. */
template <int E>
static __device__ __forceinline__ void put_part(const carry_chain_attend &a, attend_memory &m, float *part,
                                                const float (&o)[E], float most, float sum) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
#pragma unroll
    for (int e = 0; e < E; e++) {
        m.q[warp][lane * E + e] = o[e];
    }
    if (lane == 0) {
        m.part[warp][0] = most;
        m.part[warp][1] = sum;
    }
    __syncthreads();
    float larger = -INFINITY, total = 0.0f, y = 0.0f;
    for (int w = 0; w < WARPS; w++) {
        larger = fmaxf(larger, m.part[w][0]);
    }
    for (int w = 0; w < WARPS; w++) {
        const float keep = exp2f(m.part[w][0] - larger);
        total += keep * m.part[w][1];
        y += (int)threadIdx.x < a.width ? keep * m.q[w][threadIdx.x] : 0.0f;
    }
    if ((int)threadIdx.x < a.width) {
        part[threadIdx.x] = y;
    }
    if (threadIdx.x == 0) {
        part[a.width] = larger;
        part[a.width + 1] = total;
    }
}

template <int E, int GROUP, bool F8>
static __global__ __launch_bounds__(THREADS, F8 &&GROUP <= CARRY_CHAIN_GROUP / 2 ? 2 : 0) void attend(
    const __grid_constant__ carry_chain_attend a, const __grid_constant__ carry_chain_lists lists) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ attend_memory m;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = a.heads / a.key_heads;
    const int split = blockIdx.x % SPLITS<F8>, head = blockIdx.x / SPLITS<F8> % a.key_heads;
    const int b = blockIdx.x / SPLITS<F8> / a.key_heads;
    const int64_t position = lists.lengths[b], tokens = position + 1, each = split_tokens<F8>(tokens);
    const int64_t begin = split * each, end = begin + each < tokens ? begin + each : tokens;
    if (begin >= tokens) {
        let_next_begin();
        await_previous(); /* the next kernel relies on this wait */
        return;
    }
    const int32_t *pages = lists.pages + lists.offsets[b];
    begin_attend<E, F8>(a, m, (const __nv_bfloat16 *)a.in + (size_t)b * a.in_stride, pages, head, position,
                        end == tokens);
    float o[GROUP][E] = {}, most[GROUP], sum[GROUP] = {};
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        most[h] = -INFINITY;
    }
    for (int64_t t = begin + warp; t < end; t += TOKENS_AHEAD * WARPS) {
        cached<E, F8> stored_k[TOKENS_AHEAD], stored_x[TOKENS_AHEAD];
        lane_elements<E> k[TOKENS_AHEAD], x[TOKENS_AHEAD];
#pragma unroll
        for (int j = 0; j < TOKENS_AHEAD; j++) { /* past the end: load the first token again, with weight zero */
            const size_t at = cache_row(pages, t + j * WARPS < end ? t + j * WARPS : t) * a.key_heads + head;
            stored_k[j].load_from(a.keys, a.key_scales, at, a.width, lane);
            stored_x[j].load_from(a.values, a.value_scales, at, a.width, lane);
        }
#pragma unroll
        for (int j = 0; j < TOKENS_AHEAD; j++) {
            k[j] = stored_k[j].in_bf16();
            x[j] = stored_x[j].in_bf16();
        }
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
            if (h >= group) {
                break;
            }
            float score[TOKENS_AHEAD], larger = most[h];
#pragma unroll
            for (int j = 0; j < TOKENS_AHEAD; j++) {
                score[j] = 0.0f;
#pragma unroll
                for (int e = 0; e < E / 2; e++) {
                    score[j] += m.q[h][lane * E + 2 * e] * low_of(k[j].pair[e]);
                    score[j] += m.q[h][lane * E + 2 * e + 1] * high_of(k[j].pair[e]);
                }
                score[j] = warp_sum(score[j]);
                score[j] = F8 ? score[j] * stored_k[j].scale() : score[j];
                score[j] = t + j * WARPS < end ? score[j] : -INFINITY;
                larger = fmaxf(larger, score[j]);
            }
            const float keep = exp2f(most[h] - larger);
            most[h] = larger;
            sum[h] *= keep;
#pragma unroll
            for (int e = 0; e < E; e++) {
                o[h][e] *= keep;
            }
#pragma unroll
            for (int j = 0; j < TOKENS_AHEAD; j++) {
                const float p = exp2f(score[j] - larger), weight = F8 ? p * stored_x[j].scale() : p;
                sum[h] += p;
#pragma unroll
                for (int e = 0; e < E / 2; e++) {
                    o[h][2 * e] += weight * low_of(x[j].pair[e]);
                    o[h][2 * e + 1] += weight * high_of(x[j].pair[e]);
                }
            }
        }
    }
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        if (h < group) {
            put_part<E>(a, m, a.part + (((size_t)b * a.heads + head * group + h) * SPLITS<F8> + split) * (a.width + 2),
                        o[h], most[h], sum[h]);
        }
    }
#endif
}

/* A block processes one head of a sequence, a thread one element. */
template <bool F8>
static __global__ __launch_bounds__(THREADS) void combine(const __grid_constant__ carry_chain_attend a,
                                                          const __grid_constant__ carry_chain_lists lists) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const int b = blockIdx.x / a.heads, head = blockIdx.x % a.heads;
    const int64_t tokens = lists.lengths[b] + 1, each = split_tokens<F8>(tokens);
    const int used = (int)((tokens + each - 1) / each);
    const float *part = a.part + (size_t)blockIdx.x * SPLITS<F8> * (a.width + 2);
    let_next_begin();
    await_previous();
    if ((int)threadIdx.x >= a.width) {
        return;
    }
    float own[SPLITS<F8>], most[SPLITS<F8>], sum[SPLITS<F8>], larger = -INFINITY, total = 0.0f, y = 0.0f;
#pragma unroll
    for (int s = 0; s < SPLITS<F8>; s++) {
        const float *from = part + (size_t)min(s, used - 1) * (a.width + 2);
        own[s] = __ldcg(from + threadIdx.x);
        most[s] = s < used ? __ldcg(from + a.width) : -INFINITY;
        sum[s] = __ldcg(from + a.width + 1);
        larger = fmaxf(larger, most[s]);
    }
    const float gate =
        a.gate >= 0 ? load_bf16(a.in, (size_t)b * a.in_stride + a.gate + (size_t)head * a.q_head + threadIdx.x) : 0.0f;
#pragma unroll
    for (int s = 0; s < SPLITS<F8>; s++) {
        const float keep = exp2f(most[s] - larger);
        total += keep * sum[s];
        y += keep * own[s];
    }
    y = y / total * (a.gate >= 0 ? sigmoid(gate) : 1.0f);
    ((__nv_bfloat16 *)a.y)[(size_t)blockIdx.x * a.width + threadIdx.x] = __float2bfloat16_rn(y);
#endif
}

} // namespace chain

#endif

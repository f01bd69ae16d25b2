/* Attention of the decoding kernel: the tokens of a sequence are split over blocks, a warp takes every eighth token of
   a split, and a second operation (CARRY_DECODE_COMBINE) combines the splits. */
#ifndef CARRY_ENGINE_DECODE_ATTEND_CUH
#define CARRY_ENGINE_DECODE_ATTEND_CUH

#include "engine/cuda/decode_kernel.cuh"

namespace decode {

constexpr int LEAST_SPLIT = 32, AT_ONCE_TOKENS = 4;
constexpr float LOG2_E = 1.4426950408889634f;

/* Tokens of a split. It depends only on the length, so that both operations agree. */
static __device__ __forceinline__ int64_t split_tokens(int64_t tokens, int splits) {
    const int64_t even = (tokens + splits - 1) / splits;
    return even > LEAST_SPLIT ? (even + WARPS - 1) / WARPS * WARPS : LEAST_SPLIT;
}

/* Cosines and sines of a position for the E elements of a head that a lane holds, from lane E on. */
template <int E> struct turn { float cosine[E], sine[E]; };

template <int E> static __device__ __forceinline__ turn<E> turn_of(const carry_decode_attend &a, int64_t position) {
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

/* Waits for the elements of a head that a lane holds, and loads them. */
template <int E>
static __device__ __forceinline__ void await_head(float (&x)[E], const carry_decode_word *from, uint32_t tag) {
    static_assert(E % 4 == 0, "a lane has whole pairs of words");
    bool is_there;
    do {
        two_words w[E / 4];
#pragma unroll
        for (int e = 0; e < E / 4; e++) {
            w[e] = look2(from + threadIdx.x % 32 * (E / 2) + 2 * e);
        }
        is_there = true;
#pragma unroll
        for (int e = 0; e < E / 4; e++) {
            is_there = is_there && w[e].a.tag == tag && w[e].b.tag == tag;
            *(float4 *)(x + 4 * e) = four_of(w[e]);
        }
    } while (!__all_sync(~0u, is_there));
}

/* One warp loads a head, normalises it and applies rotary positions. rotary / 2 must be a multiple of E. */
template <int E>
static __device__ __forceinline__ void turned(float (&x)[E], const carry_decode_word *from, uint32_t tag,
                                              const float *norm, const carry_decode_attend &a, const turn<E> &t) {
    const int lane = threadIdx.x % 32, apart = a.rotary / 2 / E;
    float w[E], squares = 0.0f;
#pragma unroll
    for (int e = 0; e < E; e += 2) {
        *(float2 *)(w + e) = norm != nullptr ? __ldg((const float2 *)(norm + lane * E + e)) : make_float2(0, 0);
    }
    await_head<E>(x, from, tag);
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

/* The elements of a token that a lane holds. */
template <int E> struct alignas(E * 2) lane_elements { __nv_bfloat162 pair[E / 2]; };

template <int E> static __device__ __forceinline__ lane_elements<E> load(const void *from, size_t at) {
    const auto *p = (const __nv_bfloat16 *)from + at;
    lane_elements<E> x;
    if constexpr (E == 8) {
        *(uint4 *)&x = __ldcg((const uint4 *)p);
    } else if constexpr (E == 4) {
        *(uint2 *)&x = __ldcg((const uint2 *)p);
    } else {
        *(unsigned *)&x = __ldcg((const unsigned *)p);
    }
    return x;
}

/* The row of the cache that has the keys and values of a token. */
static __device__ __forceinline__ size_t cache_row(const int32_t *pages, int64_t token) {
    return (size_t)pages[token / CARRY_PAGE_TOKENS] * CARRY_PAGE_TOKENS + (size_t)(token % CARRY_PAGE_TOKENS);
}

template <int E, int GROUP>
static __device__ __forceinline__ void attend(const carry_decode_call &call, const carry_decode_attend &a,
                                              const view &v, int tile, int op) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = a.heads / a.key_heads;
    const int split = tile % a.splits, head = tile / a.splits % a.key_heads, b = tile / a.splits / a.key_heads;
    const int64_t position = call.turn->length[b], tokens = position + 1, each = split_tokens(tokens, a.splits);
    const int64_t begin = split * each, end = begin + each < tokens ? begin + each : tokens;
    if (begin >= tokens) {
        return;
    }
    const carry_decode_word *in = a.in + (size_t)b * a.in_stride;
    const int32_t *pages = call.table + (size_t)call.turn->slot[b] * call.pages_each;
    const uint32_t tag = call.tag + a.from;
    const turn<E> t0 = turn_of<E>(a, position);
    if (warp < group) {
        alignas(16) float x[E];
        turned<E>(x, in + (a.q + (head * group + warp) * a.q_head) / 2, tag, a.q_norm, a, t0);
#pragma unroll
        for (int e = 0; e < E; e++) {
            v.head->qs[warp * 256 + lane * E + e] = x[e] * a.scale * LOG2_E;
        }
    }
    if (end == tokens && warp == WARPS - 1) { /* stores the new token's key and value in the cache */
        const size_t at = (cache_row(pages, position) * a.key_heads + head) * a.width + lane * E;
        alignas(16) float x[E], y[E];
        turned<E>(x, in + (a.k + head * a.width) / 2, tag, a.k_norm, a, t0);
        await_head<E>(y, in + (a.v + head * a.width) / 2, tag);
#pragma unroll
        for (int e = 0; e < E; e++) {
            ((__nv_bfloat16 *)a.keys)[at + e] = __float2bfloat16_rn(x[e]);
            ((__nv_bfloat16 *)a.values)[at + e] = __float2bfloat16_rn(y[e]);
        }
    }
    consumers_sync();
    float o[GROUP][E] = {}, most[GROUP], sum[GROUP] = {};
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        most[h] = -INFINITY;
    }
    const size_t row = (size_t)a.key_heads * a.width;
    const size_t base = (size_t)head * a.width + lane * E;
    for (int64_t t = begin + warp; t < end; t += AT_ONCE_TOKENS * WARPS) {
        lane_elements<E> k[AT_ONCE_TOKENS], x[AT_ONCE_TOKENS];
        float score[AT_ONCE_TOKENS];
#pragma unroll
        for (int j = 0; j < AT_ONCE_TOKENS; j++) { /* past the end: load the first token again, with weight zero */
            const size_t at = base + cache_row(pages, t + j * WARPS < end ? t + j * WARPS : t) * row;
            k[j] = load<E>(a.keys, at);
            x[j] = load<E>(a.values, at);
        }
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
            if (h >= group) {
                break;
            }
            float larger = most[h];
            float2 q[E / 2]; /* loaded again for every few tokens: all heads together would not fit into registers */
#pragma unroll
            for (int e = 0; e < E / 2; e++) {
                q[e] = *(const float2 *)(v.head->qs + h * 256 + lane * E + 2 * e);
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE_TOKENS; j++) {
                score[j] = 0.0f;
#pragma unroll
                for (int e = 0; e < E / 2; e++) {
                    const float2 pair = __bfloat1622float2(k[j].pair[e]);
                    score[j] += q[e].x * pair.x + q[e].y * pair.y;
                }
                score[j] = warp_sum(score[j]);
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
            for (int j = 0; j < AT_ONCE_TOKENS; j++) {
                const float p = exp2f(score[j] - larger);
                sum[h] += p;
#pragma unroll
                for (int e = 0; e < E / 2; e++) {
                    const float2 pair = __bfloat1622float2(x[j].pair[e]);
                    o[h][2 * e] += p * pair.x;
                    o[h][2 * e + 1] += p * pair.y;
                }
            }
        }
    }
    for (int h = 0; h < group; h++) { /* one head at a time, to save shared memory */
        consumers_sync();
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            if (i == h) {
                for (int e = 0; e < E; e++) {
                    v.head->qs[warp * 256 + lane * E + e] = o[i][e];
                }
                if (lane == 0) {
                    v.head->part[2 * warp] = most[i];
                    v.head->part[2 * warp + 1] = sum[i];
                }
            }
        }
        consumers_sync();
        float larger = -INFINITY, total = 0.0f, y = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            larger = fmaxf(larger, v.head->part[2 * w]);
        }
        for (int w = 0; w < WARPS; w++) {
            const float keep = exp2f(v.head->part[2 * w] - larger);
            total += keep * v.head->part[2 * w + 1];
            y += (int)threadIdx.x < a.width ? keep * v.head->qs[w * 256 + threadIdx.x] : 0.0f;
        }
        carry_decode_word *part =
            a.part + (((size_t)b * a.heads + head * group + h) * a.splits + split) * (a.width + 2);
        if ((int)threadIdx.x < a.width) {
            tell(part + threadIdx.x, __float_as_uint(y), call.tag + op);
        }
        if (threadIdx.x == 0) {
            tell(part + a.width, __float_as_uint(larger), call.tag + op);
            tell(part + a.width + 1, __float_as_uint(total), call.tag + op);
        }
    }
}

static __device__ __forceinline__ void run_attend(const carry_decode_call &call, const carry_decode_op &op, int i,
                                                  const view &v) {
    const carry_decode_attend &a = op.as.attend;
    for (int tile = first_tile(op); tile < op.tiles; tile += gridDim.x) {
        if (a.width == 256) {
            attend<8, CARRY_DECODE_GROUP>(call, a, v, tile, i);
        } else {
            attend<4, CARRY_DECODE_GROUP>(call, a, v, tile, i);
        }
        consumers_sync();
    }
}

/* A block processes one head of a sequence, a thread one element: it adds the splits as they arrive, with a running
   maximum. */
static __device__ void run_combine(const carry_decode_call &call, const carry_decode_op &op, int i) {
    const carry_decode_attend &a = op.as.attend;
    const uint32_t tag = call.tag + a.from;
    const int column = min((int)threadIdx.x, a.width - 1);
    for (int tile = first_tile(op); tile < op.tiles; tile += gridDim.x) {
        const int64_t tokens = call.turn->length[tile / a.heads] + 1, each = split_tokens(tokens, a.splits);
        const int used = (int)((tokens + each - 1) / each);
        const carry_decode_word *part = a.part + (size_t)tile * a.splits * (a.width + 2);
        float most = -INFINITY, total = 0.0f, y = 0.0f;
        for (int s = 0; s < used; s += AT_ONCE) {
            carry_decode_word w[AT_ONCE][3];
            bool is_there;
            do {
                is_there = true;
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++) {
                    const carry_decode_word *from = part + (size_t)min(s + j, used - 1) * (a.width + 2);
                    w[j][0] = look(from + column);
                    w[j][1] = look(from + a.width);
                    w[j][2] = look(from + a.width + 1);
                }
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++) {
                    is_there = is_there && w[j][0].tag == tag && w[j][1].tag == tag && w[j][2].tag == tag;
                }
            } while (!__all_sync(~0u, is_there));
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                if (s + j < used) {
                    const float own = __uint_as_float(w[j][1].value), larger = fmaxf(most, own);
                    const float keep = exp2f(most - larger), add = exp2f(own - larger);
                    total = total * keep + add * __uint_as_float(w[j][2].value);
                    y = y * keep + add * __uint_as_float(w[j][0].value);
                    most = larger;
                }
            }
        }
        const float own = y / total, next = __shfl_down_sync(~0u, own, 1);
        if ((int)threadIdx.x < a.width && threadIdx.x % 2 == 0) {
            tell(a.o + ((size_t)tile * a.width + threadIdx.x) / 2, pair_of(own, next), call.tag + i);
        }
    }
}

} // namespace decode

#endif

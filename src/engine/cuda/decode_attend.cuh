/* Attention of the decoding kernel: the tokens of a sequence are split over blocks, a warp takes every eighth token of
   a split, and a second operation combines the splits. */
#ifndef CARRY_ENGINE_DECODE_ATTEND_CUH
#define CARRY_ENGINE_DECODE_ATTEND_CUH

#include "engine/cuda/decode_kernel.cuh"

namespace decode {

constexpr int LEAST_SPLIT = 32, AT_ONCE_TOKENS = 4;
constexpr float LOG2_E = 1.4426950408889634f;

/* Tokens of a split: a function of the length alone, so that both operations agree. */
static __device__ __forceinline__ int64_t split_tokens(int64_t tokens, int splits) {
    const int64_t even = (tokens + splits - 1) / splits;
    return even > LEAST_SPLIT ? (even + WARPS - 1) / WARPS * WARPS : LEAST_SPLIT;
}

/* Cosines and sines of a position, for the elements of a head that a lane has: lane E and the next. */
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

/* One warp: a head, normalised and turned. Half of the turned elements are a multiple of E. */
template <int E>
static __device__ __forceinline__ void turned(float (&x)[E], const float *from, const float *norm,
                                              const carry_decode_attend &a, const turn<E> &t) {
    const int lane = threadIdx.x % 32, apart = a.rotary / 2 / E;
    float w[E], squares = 0.0f;
#pragma unroll
    for (int e = 0; e < E; e += 2) {
        *(float2 *)(x + e) = __ldcg((const float2 *)(from + lane * E + e));
        *(float2 *)(w + e) = norm != nullptr ? __ldg((const float2 *)(norm + lane * E + e)) : make_float2(0, 0);
    }
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

/* The elements of a token that a lane has. */
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

template <int E, int GROUP>
static __device__ __forceinline__ void attend(const carry_decode_call &call, const carry_decode_attend &a,
                                              const view &v, int tile, int before) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = a.heads / a.key_heads;
    const int split = tile % a.splits, head = tile / a.splits % a.key_heads, b = tile / a.splits / a.key_heads;
    const int64_t position = call.lengths[b], tokens = position + 1, each = split_tokens(tokens, a.splits);
    const int64_t begin = split * each, end = begin + each < tokens ? begin + each : tokens;
    if (begin >= tokens) {
        return;
    }
    const float *in = a.in + (size_t)b * a.in_stride;
    const turn<E> t0 = turn_of<E>(a, position);
    wait_for(call, before);
    if (warp < group) {
        float x[E];
        turned<E>(x, in + a.q + (head * group + warp) * a.q_head, a.q_norm, a, t0);
#pragma unroll
        for (int e = 0; e < E; e++) {
            v.head->qs[warp * 256 + lane * E + e] = x[e] * a.scale * LOG2_E;
        }
    }
    if (end == tokens && warp == WARPS - 1) { /* the new token's key and value go to the cache */
        const size_t at = (((size_t)b * a.capacity + position) * a.key_heads + head) * a.width + lane * E;
        float x[E];
        turned<E>(x, in + a.k + head * a.width, a.k_norm, a, t0);
#pragma unroll
        for (int e = 0; e < E; e++) {
            ((__nv_bfloat16 *)a.keys)[at + e] = __float2bfloat16_rn(x[e]);
            ((__nv_bfloat16 *)a.values)[at + e] = __float2bfloat16_rn(__ldcg(in + a.v + head * a.width + lane * E + e));
        }
    }
    consumers_sync();
    float o[GROUP][E] = {}, most[GROUP], sum[GROUP] = {};
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        most[h] = -INFINITY;
    }
    const size_t row = (size_t)a.key_heads * a.width;
    const size_t base = (size_t)b * a.capacity * row + (size_t)head * a.width + lane * E;
    for (int64_t t = begin + warp; t < end; t += AT_ONCE_TOKENS * WARPS) {
        lane_elements<E> k[AT_ONCE_TOKENS], x[AT_ONCE_TOKENS];
        float score[AT_ONCE_TOKENS];
#pragma unroll
        for (int j = 0; j < AT_ONCE_TOKENS; j++) { /* past the end: the first token again, with a weight of zero */
            const int64_t at = t + j * WARPS < end ? t + j * WARPS : t;
            k[j] = load<E>(a.keys, base + at * row);
            x[j] = load<E>(a.values, base + at * row);
        }
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
            if (h >= group) {
                break;
            }
            float larger = most[h];
            float2 q[E / 2]; /* read again for every few tokens: all heads together would not fit the registers */
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
    for (int h = 0; h < group; h++) { /* the warps' parts of one head at a time: shared memory has room for no more */
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
        float *part = a.part + (((size_t)b * a.heads + head * group + h) * a.splits + split) * (a.width + 2);
        if ((int)threadIdx.x < a.width) {
            part[threadIdx.x] = y;
        }
        if (threadIdx.x == 0) {
            part[a.width] = larger;
            part[a.width + 1] = total;
        }
    }
}

static __device__ __forceinline__ void run_attend(const carry_decode_call &call, const carry_decode_op &op, int i,
                                                  const view &v) {
    const carry_decode_attend &a = op.as.attend;
    for (int tile = first_tile(op); tile < op.tiles; tile += gridDim.x) {
        if (a.width == 256) {
            attend<8, CARRY_DECODE_GROUP>(call, a, v, tile, i - 1);
        } else if (a.width == 128) {
            attend<4, CARRY_DECODE_GROUP>(call, a, v, tile, i - 1);
        } else {
            attend<2, CARRY_DECODE_GROUP>(call, a, v, tile, i - 1);
        }
        consumers_sync();
    }
    finish(call, i);
}

static __device__ void run_combine(const carry_decode_call &call, const carry_decode_op &op, int i) {
    const carry_decode_attend &a = op.as.attend;
    if (first_tile(op) < op.tiles) {
        wait_for(call, i - 1);
    }
    for (int tile = first_tile(op); tile < op.tiles; tile += gridDim.x) {
        const int64_t tokens = call.lengths[tile / a.heads] + 1, each = split_tokens(tokens, a.splits);
        const int used = (int)((tokens + each - 1) / each);
        const float *part = a.part + (size_t)tile * a.splits * (a.width + 2);
        float larger = -INFINITY, total = 0.0f, y = 0.0f;
#pragma unroll 8
        for (int s = 0; s < used; s++) {
            larger = fmaxf(larger, __ldcg(part + (size_t)s * (a.width + 2) + a.width));
        }
#pragma unroll 8
        for (int s = 0; s < used; s++) {
            const float *from = part + (size_t)s * (a.width + 2);
            const float keep = exp2f(__ldcg(from + a.width) - larger);
            total += keep * __ldcg(from + a.width + 1);
            y += (int)threadIdx.x < a.width ? keep * __ldcg(from + threadIdx.x) : 0.0f;
        }
        if ((int)threadIdx.x < a.width) {
            a.o[(size_t)tile * a.width + threadIdx.x] = y / total;
        }
    }
    finish(call, i);
}

} // namespace decode

#endif

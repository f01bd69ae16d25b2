/* Attention for one token of each sequence: norms and positions of q and k, the cache, and attention.

   The tokens of a sequence are split into at most CARRY_CHAIN_SPLITS parts. An item of work is one part for the query
   heads of one key head. The blocks, as many as the device runs at once, take items in turn; each warp of a block takes
   every fourth tile of 16 tokens and keeps its own maximum and sums (chain_scores.cuh). A second kernel combines the
   parts and applies the gate.

   The keys and values of the next tiles are on their way while a warp computes: 16 kB for each warp, 128 kB for a
   multiprocessor. Those of earlier steps are asked for before the kernel waits for the one before it. The new token's
   come from shared memory, where the block that has the last part puts them besides the cache; they also take the
   places of the tokens of the last tile that do not exist, with weight zero. */
#ifndef CARRY_ENGINE_CHAIN_ATTEND_CUH
#define CARRY_ENGINE_CHAIN_ATTEND_CUH

#include "engine/cuda/chain_tiles.cuh"

namespace chain {

constexpr float WEIGHT_BITS = 15.0f; /* 8-bit values: weights are up to 2^15, since the smallest f16 is 2^-24 */

/* The sums of a warp, for heads 2t and 2t + 1. Values in 8 bits have scales, which may differ a lot between tokens: the
   sums are then relative to the largest product of exponential and scale, `heaviest`, and not to the largest score. */
template <int D, bool F8> struct warp_sums {
    float of[tile_shape<D, F8>::SUMS][4];
    float most[2], heaviest[2], total[2]; /* total: of the lane's tokens */
};

/* Makes weights of the scores of `TILES` tiles, with new maxima, and scales the sums to these. */
template <int D, bool F8>
static __device__ __forceinline__ void weigh(warp_sums<D, F8> &s, float (&score)[tile_shape<D, F8>::TILES][4],
                                             const tile_values<D, F8> (&v)[tile_shape<D, F8>::TILES]) {
    constexpr int TILES = tile_shape<D, F8>::TILES;
    float keep[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = s.most[h], heaviest = s.heaviest[h], total = 0.0f;
#pragma unroll
        for (int j = 0; j < TILES; j++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                most = fmaxf(most, score[j][2 * i + h]);
                heaviest = F8 ? fmaxf(heaviest, score[j][2 * i + h] + (float)v[j].scale[i]) : 0.0f;
            }
        }
        most = column_largest(most);
        heaviest = F8 ? column_largest(heaviest) : 0.0f;
#pragma unroll
        for (int j = 0; j < TILES; j++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = score[j][2 * i + h];
                const float p = power_of_two(x - most);
                total += p;
                x = F8 ? power_of_two(x + (float)v[j].scale[i] - heaviest + WEIGHT_BITS) : p;
            }
        }
        const float fade = power_of_two(s.most[h] - most);
        keep[h] = F8 ? power_of_two(s.heaviest[h] - heaviest) : fade;
        s.total[h] = s.total[h] * fade + total;
        s.most[h] = most;
        s.heaviest[h] = heaviest;
    }
    if (__any_sync(~0u, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < tile_shape<D, F8>::SUMS; i++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                s.of[i][c] *= keep[c % 2];
            }
        }
    }
}

template <int D, bool F8>
static __device__ __forceinline__ float largest_of_warps(const attend_memory<D, F8> &m, int head, int warps) {
    float most = -INFINITY;
#pragma unroll
    for (int w = 0; w < ATTEND_WARPS; w++) {
        most = w < warps ? fmaxf(most, m.part[w][0][head]) : most;
    }
    return most;
}

/* Combines the sums of the warps in a fixed order and stores them. warps: those that have tokens. */
template <int D, bool F8>
static __device__ __forceinline__ void put_part(const carry_chain_attend &a, attend_memory<D, F8> &m,
                                                const attend_item &item, warp_sums<D, F8> &s, int warps) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4, group = a.heads / a.key_heads;
    if (lane < 4) {
        *(float2 *)&m.part[warp][0][2 * t] = make_float2(s.most[0], s.most[1]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s.total[h] = column_sum(s.total[h]);
    }
    if (lane < 4) {
        *(float2 *)&m.part[warp][1][2 * t] = make_float2(s.total[0], s.total[1]);
    }
    __syncthreads();
    float keep[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float most = largest_of_warps<D, F8>(m, 2 * t + h, warps);
        keep[h] = power_of_two(s.most[h] - most);
        if constexpr (F8) { /* sums relative to `most`, of values with their scales */
            keep[h] *= exp2f(s.heaviest[h] - s.most[h] - 127.0f - WEIGHT_BITS);
        }
    }
    const auto each = [&](auto &&act) {
#pragma unroll
        for (int i = 0; i < tile_shape<D, F8>::SUMS; i += 2) {
            const int column = sum_column<D, F8>(i);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (2 * t + h < group) {
                    act(*(float4 *)&m.sums[warp % 2][2 * t + h][column],
                        make_float4(s.of[i][h] * keep[h], s.of[i][2 + h] * keep[h], s.of[i + 1][h] * keep[h],
                                    s.of[i + 1][2 + h] * keep[h]));
                }
            }
        }
    };
    if (warp < 2 && warp < warps) {
        each([](float4 &to, const float4 &x) { to = x; });
    }
    __syncthreads();
    if (warp >= 2 && warp < warps) {
        each([](float4 &to, const float4 &x) { to = make_float4(to.x + x.x, to.y + x.y, to.z + x.z, to.w + x.w); });
    }
    __syncthreads();
    const size_t first = ((size_t)item.b * a.heads + item.head * group) * SPLITS + item.split;
    for (int i = threadIdx.x; i < group * (D / 2); i += ATTEND_THREADS) {
        const int h = i / (D / 2), column = i % (D / 2) * 2;
        float2 x = *(const float2 *)&m.sums[0][h][column];
        if (warps > 1) {
            const float2 y = *(const float2 *)&m.sums[1][h][column];
            x = make_float2(x.x + y.x, x.y + y.y);
        }
        *(float2 *)(a.part + (first + (size_t)h * SPLITS) * (D + 2) + column) = x;
    }
    if ((int)threadIdx.x < group) {
        const float most = largest_of_warps<D, F8>(m, (int)threadIdx.x, warps);
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < ATTEND_WARPS; w++) {
            total += w < warps ? power_of_two(m.part[w][0][threadIdx.x] - most) * m.part[w][1][threadIdx.x] : 0.0f;
        }
        *(float2 *)(a.part + (first + (size_t)threadIdx.x * SPLITS) * (D + 2) + D) = make_float2(most, total);
    }
}

template <int D, bool F8>
static __device__ __forceinline__ void attend_to(const carry_chain_attend &a, attend_memory<D, F8> &m,
                                                 const attend_item &item) {
    using loader = tile_loader<D, F8>;
    constexpr int TILES = tile_shape<D, F8>::TILES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    loader load = {a, item, {}};
    tile_keys<D, F8> k[TILES] = {};
    tile_values<D, F8> v[TILES] = {};
    int first = item.begin + warp * TOKENS;
    load.find(first);
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        if (first + j * loader::APART < item.end) {
            load.load_keys(k[j], j, first + j * loader::APART);
            load.load_values(v[j], j, first + j * loader::APART);
        }
    }
    load.find(first + loader::AT_ONCE);
    begin_item<D, F8>(a, m, item);
    warp_sums<D, F8> s = {};
    s.most[0] = s.most[1] = s.heaviest[0] = s.heaviest[1] = -INFINITY;
    const float2 factor = *(const float2 *)&m.factor[lane % 4 * 2];
    for (; first < item.end; first += loader::AT_ONCE) {
        float score[TILES][4];
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            const int at = first + j * loader::APART;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                score[j][i] = -INFINITY;
            }
            if (at < item.end) {
                if (at + TOKENS > item.position) {
                    put_newest<D, F8>(k[j], v[j], m, item.position - at);
                }
                tile_scores<D, F8>(score[j], k[j], m.q);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float scale = F8 ? carry_f8_scale(k[j].scale[i / 2]) : 1.0f;
                    const float x = score[j][i] * (i % 2 == 0 ? factor.x : factor.y) * scale;
                    score[j][i] = at + lane / 4 + i / 2 * 8 < item.end ? x : -INFINITY;
                }
            }
            if (at + loader::AT_ONCE < item.end) {
                load.load_keys(k[j], j, at + loader::AT_ONCE);
            }
        }
        weigh<D, F8>(s, score, v);
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            const int at = first + j * loader::APART;
            if (at < item.end) {
                add_values<D, F8>(s.of, v[j], score[j]);
            }
            if (at + loader::AT_ONCE < item.end) {
                load.load_values(v[j], j, at + loader::AT_ONCE);
            }
        }
        load.find(first + 2 * loader::AT_ONCE);
    }
    put_part<D, F8>(a, m, item, s, min(ATTEND_WARPS, (item.end - item.begin + TOKENS - 1) / TOKENS));
}

template <int D, bool F8>
static __global__ __launch_bounds__(ATTEND_THREADS,
                                    ATTEND_BLOCKS) void attend(const __grid_constant__ carry_chain_attend a,
                                                               const __grid_constant__ carry_chain_lists lists) {
#if (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900) || defined(CARRY_EMULATED)
    __shared__ attend_memory<D, F8> m;
    attend_item item;
    let_next_begin();
    const int items = find_item(item, a, lists, (int)blockIdx.x);
    for (int i = blockIdx.x; i < items; i += gridDim.x) {
        if (i != (int)blockIdx.x) {
            __syncthreads(); /* until all warps have read the shared memory of the item before */
            find_item(item, a, lists, i);
        }
        attend_to<D, F8>(a, m, item);
    }
    await_previous(); /* also in a block without work: the next kernel relies on it */
#endif
}

/* Loads *from if `is_there`. In the order of the program, so that all loads are on their way before the first result is
   needed. */
static __device__ __forceinline__ void load_in_turn(float &x, const float *from, bool is_there) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.cg.f32 %0, [%1]; }"
                 : "+f"(x)
                 : "l"(from), "r"((int)is_there));
}

/* The sum of parts for one column, MOST at a time. */
template <int MOST, int D> static __device__ __forceinline__ float sum_parts(const float *part, int used) {
    float most = -INFINITY, total = 0.0f, y = 0.0f;
#pragma unroll 1
    for (int first = 0; first < used; first += MOST) {
        float own[MOST], other[MOST], sum[MOST], larger = most;
#pragma unroll
        for (int s = 0; s < MOST; s++) {
            const bool is_there = first + s < used;
            const float *from = part + (size_t)first * (D + 2) + s * (D + 2);
            own[s] = sum[s] = 0.0f;
            other[s] = -INFINITY;
            load_in_turn(own[s], from + threadIdx.x, is_there);
            load_in_turn(other[s], from + D, is_there);
            load_in_turn(sum[s], from + D + 1, is_there);
        }
#pragma unroll
        for (int s = 0; s < MOST; s++) {
            larger = fmaxf(larger, other[s]);
        }
        const float keep = exp2f(most - larger);
        total *= keep;
        y *= keep;
        most = larger;
#pragma unroll
        for (int s = 0; s < MOST; s++) {
            const float weight = exp2f(other[s] - most);
            total += weight * sum[s];
            y += weight * own[s];
        }
    }
    return y / total;
}

/* A block processes one head of a sequence, a thread one element. */
template <int D>
static __global__ __launch_bounds__(D) void combine(const __grid_constant__ carry_chain_attend a,
                                                    const __grid_constant__ carry_chain_lists lists) {
#if (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900) || defined(CARRY_EMULATED)
    const int b = blockIdx.x / a.heads, head = blockIdx.x % a.heads;
    const int used = used_splits((int)lists.lengths[b] + 1);
    const float *part = a.part + (size_t)blockIdx.x * SPLITS * (D + 2);
    let_next_begin();
    await_previous();
    const float gate =
        a.gate >= 0 ? load_bf16(a.in, (size_t)b * a.in_stride + a.gate + (size_t)head * a.q_head + threadIdx.x) : 0.0f;
    const float y = used <= 8 ? sum_parts<8, D>(part, used) : sum_parts<16, D>(part, used);
    ((__nv_bfloat16 *)a.y)[(size_t)blockIdx.x * D + threadIdx.x] =
        __float2bfloat16_rn(y * (a.gate >= 0 ? sigmoid(gate) : 1.0f));
#endif
}

} // namespace chain

#endif

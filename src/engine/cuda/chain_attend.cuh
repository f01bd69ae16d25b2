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

#include "engine/cuda/chain_heads.cuh"
#include "engine/cuda/chain_scores.cuh"

namespace chain {

constexpr int SPLITS = CARRY_CHAIN_SPLITS, GROUP = CARRY_CHAIN_GROUP;
constexpr int ATTEND_WARPS = 4, ATTEND_THREADS = 32 * ATTEND_WARPS, ATTEND_BLOCKS = 2; /* a multiprocessor's blocks */
constexpr int TOKENS = 16, LEAST_SPLIT = 128, USUAL_SPLIT = 512;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float WEIGHT_BITS = 15.0f; /* 8-bit values: weights are up to 2^15, since the smallest f16 is 2^-24 */

/* Tokens of a split, a multiple of the tokens of a page. It depends only on the length, so that both kernels and all
   batches agree. Short texts have few splits, so that the first and last work of a block is a small part of it. */
static __device__ __forceinline__ int split_tokens(int tokens) {
    const int eighth = (tokens + 7) / 8, even = (tokens + SPLITS - 1) / SPLITS;
    const int each = max(max(LEAST_SPLIT, even), min(USUAL_SPLIT, eighth));
    return (each + CARRY_PAGE_TOKENS - 1) / CARRY_PAGE_TOKENS * CARRY_PAGE_TOKENS;
}

static __device__ __forceinline__ int used_splits(int tokens) {
    const int each = split_tokens(tokens);
    return (tokens + each - 1) / each;
}

template <int D, bool F8> struct attend_memory {
    alignas(16) unsigned char q[GROUP * tile_shape<D, F8>::QUERY_BYTES]; /* [heads, columns], bf16 or f16 */
    alignas(16) unsigned char newest[2][tile_shape<D, F8>::ROW];         /* the new token's key and value */
    uint8_t newest_scale[2];
    float factor[GROUP];                /* of the scores of a head */
    float part[ATTEND_WARPS][2][GROUP]; /* maxima and sums of exponentials */
    float sums[2][GROUP][D + 4];        /* of two warps */
};

struct attend_item {
    int b, head, split;
    int position, begin, end; /* of the new token, and of the split */
    const int32_t *pages;
};

/* Finds item number `number`: items are in the order of sequences, then splits, then key heads. Returns false if there
   are fewer. All warps find the same; lanes count two sequences each. */
static __device__ __forceinline__ bool find_item(attend_item &item, const carry_chain_attend &a,
                                                 const carry_chain_lists &lists, int number) {
    static_assert(CARRY_CHAIN_SEQUENCES <= 64, "two sequences a lane");
    const int lane = threadIdx.x % 32;
    int before = 0;
    for (int first = 0; first < lists.sequences; first += 32) {
        const int own =
            first + lane < lists.sequences ? a.key_heads * used_splits((int)lists.lengths[first + lane] + 1) : 0;
        int until = own; /* items of this sequence and those before it */
#pragma unroll
        for (int apart = 1; apart < 32; apart *= 2) {
            const int other = __shfl_up_sync(~0u, until, apart);
            until += lane >= apart ? other : 0;
        }
        until += before;
        const unsigned later = __ballot_sync(~0u, number < until);
        if (later != 0) {
            const int at = __ffs((int)later) - 1, rest = number - __shfl_sync(~0u, until - own, at);
            item.b = first + at;
            item.split = rest / a.key_heads;
            item.head = rest % a.key_heads;
            item.position = (int)lists.lengths[item.b];
            const int each = split_tokens(item.position + 1);
            item.begin = item.split * each;
            item.end = min(item.begin + each, item.position + 1);
            item.pages = lists.pages + lists.offsets[item.b];
            return true;
        }
        before = __shfl_sync(~0u, until, 31);
    }
    return false;
}

/* A head of the queries in shared memory: bf16, or f16 times a power of two that makes the largest element at least
   2^14 and below 2^15. */
template <int E, bool F8>
static __device__ __forceinline__ void put_query(unsigned char *to, float *factor, const float (&x)[E], float scale) {
    const int lane = threadIdx.x % 32;
    float times = 1.0f, back = 1.0f;
    if constexpr (F8) {
        uint32_t largest = 0;
#pragma unroll
        for (int e = 0; e < E; e++) {
            const uint32_t size = f8_size(x[e]);
            largest = size > largest ? size : largest;
        }
        const uint32_t exponent = max(f8_largest_of_warp(largest) >> 23, 15u);
        times = carry_f8_float((268 - exponent) << 23);
        back = carry_f8_float((exponent - 14) << 23);
    }
#pragma unroll
    for (int e = 0; e < E; e += 2) {
        const float low = x[e] * times, high = x[e + 1] * times;
        *(unsigned *)(to + (lane * E + e) * 2) = F8 ? half_pair_of(low, high) : pair_of(low, high);
    }
    if (lane == 0) {
        *factor = back * scale * LOG2_E;
    }
}

/* Puts the queries of the item into shared memory, and the new token's key and value there and into the cache. A warp
   has every fourth of these heads. */
template <int D, bool F8>
static __device__ __forceinline__ void begin_item(const carry_chain_attend &a, attend_memory<D, F8> &m,
                                                  const attend_item &item) {
    constexpr int E = D / 32, BYTES = tile_shape<D, F8>::QUERY_BYTES;
    const int lane = threadIdx.x % 32, group = a.heads / a.key_heads;
    const int heads = item.end > item.position ? group + 2 : group;
    const auto *in = (const __nv_bfloat16 *)a.in + (size_t)item.b * a.in_stride + lane * E;
    const auto column = [&](int i) {
        return i < group ? a.q + (item.head * group + i) * a.q_head : (i == group ? a.k : a.v) + item.head * D;
    };
    const turn<E> t = turn_of<E>(a, item.position);
    const int page = __ldg(item.pages + item.position / CARRY_PAGE_TOKENS);
    int i = threadIdx.x / 32;
    await_previous();
    lane_elements<E> next = {};
    if (i < heads) {
        next = load<E>(in, column(i));
    }
#pragma unroll 1
    for (; i < heads; i += ATTEND_WARPS) {
        const lane_elements<E> own = next;
        alignas(16) float x[E];
        if (i + ATTEND_WARPS < heads) {
            next = load<E>(in, column(i + ATTEND_WARPS));
        }
        if (i <= group) {
            turned<E>(x, own, i < group ? a.q_norm : a.k_norm, a, t);
        } else {
            widen<E>(x, own);
        }
        if (i < group) {
            put_query<E, F8>(m.q + i * BYTES, &m.factor[i], x, a.scale);
        } else {
            const size_t row = (size_t)page * CARRY_PAGE_TOKENS + (size_t)(item.position % CARRY_PAGE_TOKENS);
            const size_t head = row * a.key_heads + item.head;
            const int which = i - group;
            store_head<E, F8>((unsigned char *)(which == 0 ? a.keys : a.values) + head * tile_shape<D, F8>::ROW,
                              F8 ? (which == 0 ? a.key_scales : a.value_scales) + head : nullptr, m.newest[which],
                              &m.newest_scale[which], x);
        }
    }
    for (int h = group + (int)threadIdx.x / 32; h < GROUP; h += ATTEND_WARPS) { /* absent heads: zero */
        const float zero[E] = {};
        put_query<E, F8>(m.q + h * BYTES, &m.factor[h], zero, 0.0f);
    }
    __syncthreads();
}

/* Keys and values of the next tiles of a warp. first: the first token of the first; later tiles are ATTEND_WARPS tiles
   apart. page: of each tile. */
template <int D, bool F8> struct tile_loader {
    using shape = tile_shape<D, F8>;
    static constexpr int APART = ATTEND_WARPS * TOKENS, AT_ONCE = APART * shape::TILES;
    const carry_chain_attend &a;
    const attend_item &item;
    int page[shape::TILES];

    /* Pages of the tiles from `first` on; those past the end keep their page. */
    __device__ __forceinline__ void find(int first) {
#pragma unroll
        for (int j = 0; j < shape::TILES; j++) {
            if (first + j * APART < item.end) {
                page[j] = __ldg(item.pages + (first + j * APART) / CARRY_PAGE_TOKENS);
            }
        }
    }
    /* The number of a token's head in the cache; for tokens that are not there yet that of one of the tile's. */
    __device__ __forceinline__ uint32_t head_of(int j, int first, int token) const {
        const int old = max(item.position - first - 1, 0);
        const int row = page[j] * CARRY_PAGE_TOKENS + first % CARRY_PAGE_TOKENS + min(token, old);
        return (uint32_t)row * (uint32_t)a.key_heads + (uint32_t)item.head;
    }
    static __device__ __forceinline__ uint4 load(const unsigned char *from) {
        uint4 v;
        asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(from));
        return v;
    }
    __device__ __forceinline__ void load_keys(tile_keys<D, F8> &k, int j, int first) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t head = head_of(j, first, g + 8 * half);
            const unsigned char *from = (const unsigned char *)a.keys + (uint64_t)head * shape::ROW + t * 16;
#pragma unroll
            for (int i = 0; i < shape::KEY_LOADS; i++) {
                k.of[half][i] = load(from + i * 64);
            }
            if constexpr (F8) {
                k.scale[half] = __ldcg(a.key_scales + head);
            }
        }
    }
    __device__ __forceinline__ void load_values(tile_values<D, F8> &v, int j, int first) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const unsigned char *from =
                (const unsigned char *)a.values + (uint64_t)head_of(j, first, value_token(n, t)) * shape::ROW + g * 16;
#pragma unroll
            for (int i = 0; i < shape::VALUE_LOADS; i++) {
                v.of[n][i] = load(from + i * 128);
            }
        }
        if constexpr (F8) {
            v.scale[0] = __ldcg(a.value_scales + head_of(j, first, g));
            v.scale[1] = __ldcg(a.value_scales + head_of(j, first, g + 8));
        }
    }
};

/* Gives the tokens of a tile from number `old` on the new token's key and value. */
template <int D, bool F8>
static __device__ __forceinline__ void put_newest(tile_keys<D, F8> &k, tile_values<D, F8> &v,
                                                  const attend_memory<D, F8> &m, int old) {
    using shape = tile_shape<D, F8>;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (g + 8 * half >= old) {
#pragma unroll
            for (int i = 0; i < shape::KEY_LOADS; i++) {
                k.of[half][i] = *(const uint4 *)(m.newest[0] + t * 16 + i * 64);
            }
            k.scale[half] = F8 ? m.newest_scale[0] : 0;
            v.scale[half] = F8 ? m.newest_scale[1] : 0;
        }
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
        if (value_token(n, t) >= old) {
#pragma unroll
            for (int i = 0; i < shape::VALUE_LOADS; i++) {
                v.of[n][i] = *(const uint4 *)(m.newest[1] + g * 16 + i * 128);
            }
        }
    }
}

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
    for (int i = blockIdx.x; find_item(item, a, lists, i); i += gridDim.x) {
        attend_to<D, F8>(a, m, item);
        __syncthreads();
    }
    await_previous(); /* also in a block without work: the next kernel relies on it */
#endif
}

/* In the order of the program, so that all loads are on their way before the first result is needed. */
static __device__ __forceinline__ float load_in_turn(const float *from) {
    float x;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(from));
    return x;
}

/* The sum of at most MOST parts of a head, for one column. */
template <int MOST> static __device__ __forceinline__ float sum_parts(const float *part, int width, int used) {
    float own[MOST], most[MOST], sum[MOST], larger = -INFINITY, total = 0.0f, y = 0.0f;
#pragma unroll
    for (int s = 0; s < MOST; s++) {
        const float *from = part + (size_t)min(s, used - 1) * (width + 2);
        own[s] = load_in_turn(from + threadIdx.x);
        most[s] = load_in_turn(from + width);
        sum[s] = load_in_turn(from + width + 1);
    }
#pragma unroll
    for (int s = 0; s < MOST; s++) {
        most[s] = s < used ? most[s] : -INFINITY;
        larger = fmaxf(larger, most[s]);
    }
#pragma unroll
    for (int s = 0; s < MOST; s++) {
        const float keep = exp2f(most[s] - larger);
        total += keep * sum[s];
        y += keep * own[s];
    }
    return y / total;
}

/* A block processes one head of a sequence, a thread one element. */
static __global__ __launch_bounds__(THREADS) void combine(const __grid_constant__ carry_chain_attend a,
                                                          const __grid_constant__ carry_chain_lists lists) {
#if (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900) || defined(CARRY_EMULATED)
    const int b = blockIdx.x / a.heads, head = blockIdx.x % a.heads;
    const int used = used_splits((int)lists.lengths[b] + 1);
    const float *part = a.part + (size_t)blockIdx.x * SPLITS * (a.width + 2);
    let_next_begin();
    await_previous();
    if ((int)threadIdx.x >= a.width) {
        return;
    }
    const float gate =
        a.gate >= 0 ? load_bf16(a.in, (size_t)b * a.in_stride + a.gate + (size_t)head * a.q_head + threadIdx.x) : 0.0f;
    const float y =
        used <= SPLITS / 4 ? sum_parts<SPLITS / 4>(part, a.width, used) : sum_parts<SPLITS>(part, a.width, used);
    ((__nv_bfloat16 *)a.y)[(size_t)blockIdx.x * a.width + threadIdx.x] =
        __float2bfloat16_rn(y * (a.gate >= 0 ? sigmoid(gate) : 1.0f));
#endif
}

} // namespace chain

#endif

/* Items of work of attention in a decoding step: one part of the tokens of a sequence, for the query heads of one key
   head; and what a block does before it reads the tokens: norms and positions of q and k, and the new token's place in
   the cache. */
#ifndef CARRY_ENGINE_CHAIN_ITEMS_CUH
#define CARRY_ENGINE_CHAIN_ITEMS_CUH

#include "engine/cuda/chain_heads.cuh"
#include "engine/cuda/chain_scores.cuh"

namespace chain {

constexpr int SPLITS = CARRY_CHAIN_SPLITS, GROUP = CARRY_CHAIN_GROUP;
constexpr int ATTEND_WARPS = 4, ATTEND_THREADS = 32 * ATTEND_WARPS, ATTEND_BLOCKS = 2; /* a multiprocessor's blocks */
constexpr int TOKENS = 16, LEAST_SPLIT = 128, USUAL_SPLIT = 256;
constexpr float LOG2_E = 1.4426950408889634f;

/* Tokens of a split, a multiple of the tokens of a page. It depends only on the length, so that both kernels and all
   batches agree. Up to 256 tokens a warp has one tile; few longer splits are better for several sequences, since each
   costs a block its first and last work. */
static __device__ __forceinline__ int split_tokens(int tokens) {
    const int least = tokens <= 4 * CARRY_PAGE_TOKENS ? CARRY_PAGE_TOKENS : LEAST_SPLIT;
    const int eighth = (tokens + 7) / 8, even = (tokens + SPLITS - 1) / SPLITS;
    const int each = max(max(least, even), min(USUAL_SPLIT, eighth));
    return (each + CARRY_PAGE_TOKENS - 1) / CARRY_PAGE_TOKENS * CARRY_PAGE_TOKENS;
}

static __device__ __forceinline__ int used_splits(int tokens) {
    const int each = split_tokens(tokens);
    return (tokens + each - 1) / each;
}

template <int D, bool F8> struct attend_memory {
    alignas(16) unsigned char q[GROUP * tile_shape<D, F8>::QUERY_BYTES]; /* [heads, columns], bf16 or f16 */
    alignas(16) unsigned char newest[2][tile_shape<D, F8>::ROW];         /* the new token's key and value */
    alignas(16) float sums[2][GROUP][D + 4];                             /* of two warps */
    alignas(16) float part[ATTEND_WARPS][2][GROUP];                      /* maxima and sums of exponentials */
    alignas(16) float factor[GROUP];                                     /* of the scores of a head */
    uint8_t newest_scale[2];
};

struct attend_item {
    int b, head, split;
    int position, begin, end; /* of the new token, and of the split */
    const int32_t *pages;
};

/* Finds item number `number`: items are in the order of sequences, then splits, then key heads. Returns how many there
   are. All warps find the same; a lane counts one sequence at a time. */
static __device__ __forceinline__ int find_item(attend_item &item, const carry_chain_attend &a,
                                                const carry_chain_lists &lists, int number) {
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
        if (number >= before && later != 0) {
            const int at = __ffs((int)later) - 1, rest = number - __shfl_sync(~0u, until - own, at);
            item.b = first + at;
            item.split = rest / a.key_heads;
            item.head = rest % a.key_heads;
            item.position = (int)lists.lengths[item.b];
            const int each = split_tokens(item.position + 1);
            item.begin = item.split * each;
            item.end = min(item.begin + each, item.position + 1);
            item.pages = lists.pages + lists.offsets[item.b];
        }
        before = __shfl_sync(~0u, until, 31);
    }
    return before;
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

} // namespace chain

#endif

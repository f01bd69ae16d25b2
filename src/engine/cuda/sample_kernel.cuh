/* The kernel of sample_device.h. A cluster of eight blocks processes a row: each block keeps its share of the logits in
   shared memory, and each thread has a run of neighbouring tokens, so that the order of tokens is the order of threads.

   A threshold (the k-th largest logit, or the one at which a probability is reached) is found by counting tokens in
   2,048 buckets: first by (largest logit - logit) / temperature, which spreads tokens evenly, then by the bits of the
   logits, within one bucket of the previous count, until all logits of a bucket are equal. */
#ifndef CARRY_ENGINE_SAMPLE_KERNEL_CUH
#define CARRY_ENGINE_SAMPLE_KERNEL_CUH

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <limits.h>
#include <math_constants.h>

#include "engine/sample_device.h"

namespace sampling {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
using cooperative_groups::cluster_group;
using cooperative_groups::this_cluster;
#define SAMPLE_CLUSTER __cluster_dims__(BLOCKS, 1, 1)
#else /* GPUs without clusters: the kernel is compiled for them but never launched */
#define SAMPLE_CLUSTER
struct cluster_group {
    __device__ void sync() const {
    }
    __device__ int block_rank() const {
        return 0;
    }
    template <typename T> __device__ T *map_shared_rank(T *at, int) const {
        return at;
    }
};

static __device__ cluster_group this_cluster() {
    return {};
}
#endif

typedef unsigned long long mass_t; /* in units of 2^-40 of the likeliest token's weight */

constexpr int BLOCKS = 8, THREADS = 1024, WARPS = THREADS / 32, BUCKETS = 2048, EACH = BUCKETS / 32;
constexpr int GREEDY = 512;                                  /* threads of a block that only finds the largest */
constexpr float MASS_ONE = 0x1p40f, LEAST_EXPONENT = 27.75f; /* e^-27.75 is below 2^-40 */

struct choice { /* computed by the leader, for all blocks */
    long long tokens, count;
    mass_t mass, inside;
    int bucket;
};

struct shared_head {
    unsigned counts[BUCKETS];
    mass_t masses[BUCKETS];
    mass_t warps[WARPS + 1];
    mass_t mine[2]; /* the block's value, read by the other blocks; two, so that one synchronisation per reduction is
                       enough */
    choice chosen;
    int found;
};

/* The tokens that may still be sampled: those with larger keys, and those with this key and an id below `limit`. */
struct kept {
    unsigned key;
    int limit;
};

struct row_view {
    shared_head *head;
    float *x;         /* the block's logits */
    int first, count; /* tokens of the block; */
    int from, to;     /* the thread's range within the block */
    int phase;
    float most, rate;
};

static __device__ __forceinline__ unsigned key_of(float x) {
    const unsigned bits = __float_as_uint(x + 0.0f);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float value_of(unsigned key) {
    return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

static __device__ __forceinline__ mass_t mass_of(const row_view &v, float x) {
    return __float2ull_rz(__expf((x - v.most) * v.rate) * MASS_ONE);
}

static __device__ __forceinline__ bool is_kept(const kept &k, float x, int token) {
    const unsigned key = key_of(x);
    return key > k.key || (key == k.key && token < k.limit);
}

struct add {
    static constexpr mass_t none = 0;
    static __device__ mass_t of(mass_t a, mass_t b) {
        return a + b;
    }
};
struct larger {
    static constexpr mass_t none = 0;
    static __device__ mass_t of(mass_t a, mass_t b) {
        return a > b ? a : b;
    }
};
struct add_double { /* adds doubles, given as bits, in a fixed order */
    static constexpr mass_t none = 0;
    static __device__ mass_t of(mass_t a, mass_t b) {
        return (mass_t)__double_as_longlong(__longlong_as_double((long long)a) + __longlong_as_double((long long)b));
    }
};

/* Reduces over all threads of the cluster; every thread gets the result. When it returns, blocks may still read each
   other's `mine`. */
template <typename BY> static __device__ mass_t all(row_view &v, mass_t x) {
    cluster_group cluster = this_cluster();
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        x = BY::of(x, __shfl_xor_sync(~0u, x, d));
    }
    if (threadIdx.x % 32 == 0) {
        v.head->warps[threadIdx.x / 32] = x;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        x = v.head->warps[threadIdx.x];
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) {
            x = BY::of(x, __shfl_xor_sync(~0u, x, d));
        }
        if (threadIdx.x == 0) {
            v.head->mine[v.phase] = x;
        }
    }
    cluster.sync();
    x = BY::none;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        x = BY::of(x, *cluster.map_shared_rank(&v.head->mine[v.phase], b));
    }
    v.phase ^= 1;
    return x;
}

/* The sum over the threads before this one, in this block and in the blocks before it. */
static __device__ mass_t before(row_view &v, mass_t x) {
    cluster_group cluster = this_cluster();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    mass_t sum = x;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const mass_t other = __shfl_up_sync(~0u, sum, d);
        sum += lane >= d ? other : 0;
    }
    if (lane == 31) {
        v.head->warps[warp] = sum;
    }
    __syncthreads();
    if (warp == 0) {
        const mass_t own = v.head->warps[lane];
        mass_t up_to = own;
#pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
            const mass_t other = __shfl_up_sync(~0u, up_to, d);
            up_to += lane >= d ? other : 0;
        }
        v.head->warps[lane] = up_to - own;
        if (lane == 31) {
            v.head->mine[v.phase] = up_to;
        }
    }
    cluster.sync();
    mass_t blocks = 0;
    for (unsigned b = 0; b < cluster.block_rank(); b++) {
        blocks += *cluster.map_shared_rank(&v.head->mine[v.phase], b);
    }
    v.phase ^= 1;
    return blocks + v.head->warps[warp] + sum - x;
}

/* The first warp of block 0 finds the bucket in which `tokens` tokens or the sum `mass` are reached, whichever comes
   first, but never a bucket after the last one with a token. */
static __device__ void choose(shared_head *head, long long tokens, mass_t mass) {
    const int lane = threadIdx.x;
    long long count = 0;
    mass_t sum = 0;
    int last = -1; /* the last bucket with a token */
    for (int i = lane * EACH; i < (lane + 1) * EACH; i++) {
        count += head->counts[i];
        sum += head->masses[i];
        last = head->counts[i] > 0 ? i : last;
    }
    long long counts = count;
    mass_t sums = sum;
    int final = last;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const long long c = __shfl_up_sync(~0u, counts, d);
        const mass_t m = __shfl_up_sync(~0u, sums, d);
        counts += lane >= d ? c : 0;
        sums += lane >= d ? m : 0;
        final = max(final, __shfl_xor_sync(~0u, final, d));
    }
    const bool reaches = counts >= tokens || sums >= mass || final < (lane + 1) * EACH;
    const unsigned all_reach = __ballot_sync(~0u, reaches);
    if (all_reach != 0 && lane == __ffs(all_reach) - 1) {
        tokens -= counts - count;
        mass -= min(mass, sums - sum);
        int i = lane * EACH;
        while (i < final && head->counts[i] < tokens && head->masses[i] < mass) {
            tokens -= head->counts[i];
            mass -= head->masses[i];
            i++;
        }
        head->chosen = {tokens, head->counts[i], mass, head->masses[i], i};
    }
}

/* How a level of the search assigns tokens to buckets: by the exponent, or by the distance of the key to `top`. */
struct level {
    bool by_key;
    unsigned top, width;
    unsigned low; /* keys below it are not counted */
};

static __device__ __forceinline__ int bucket_of(const row_view &v, const level &at, float x) {
    return at.by_key ? (int)((at.top - key_of(x)) / at.width)
                     : min(BUCKETS - 1, (int)((v.most - x) * v.rate * (BUCKETS / LEAST_EXPONENT)));
}

static __device__ choice count_level(row_view &v, const level &at, const kept &k, long long tokens, mass_t mass) {
    cluster_group cluster = this_cluster();
    shared_head *head = v.head, *leader = cluster.map_shared_rank(head, 0);
    for (int i = threadIdx.x; i < BUCKETS; i += THREADS) {
        head->counts[i] = 0;
        head->masses[i] = 0;
    }
    __syncthreads();
    for (int i = v.from; i < v.to; i++) {
        const float x = v.x[i];
        const mass_t m = mass_of(v, x);
        const unsigned key = key_of(x);
        if (m > 0 && is_kept(k, x, v.first + i) && (!at.by_key || (key <= at.top && key >= at.low))) {
            const int bucket = bucket_of(v, at, x);
            atomicAdd(&head->counts[bucket], 1u);
            atomicAdd(&head->masses[bucket], m);
        }
    }
    cluster.sync();
    for (int i = threadIdx.x; i < BUCKETS && leader != head; i += THREADS) {
        if (head->counts[i] > 0) {
            atomicAdd(&leader->counts[i], head->counts[i]);
            atomicAdd(&leader->masses[i], head->masses[i]);
        }
    }
    cluster.sync();
    if (leader == head && threadIdx.x < 32) {
        choose(head, tokens, mass);
    }
    cluster.sync();
    return leader->chosen;
}

/* The kept token with this key that is number `wanted`, counted from 0, in the order of tokens. */
static __device__ int nth_equal(row_view &v, const kept &k, unsigned key, long long wanted) {
    cluster_group cluster = this_cluster();
    mass_t own = 0;
    for (int i = v.from; i < v.to; i++) {
        own += key_of(v.x[i]) == key && is_kept(k, v.x[i], v.first + i) ? 1 : 0;
    }
    const mass_t start = before(v, own);
    if ((mass_t)wanted >= start && (mass_t)wanted < start + own) {
        mass_t left = (mass_t)wanted - start;
        for (int i = v.from; i < v.to; i++) {
            if (key_of(v.x[i]) == key && is_kept(k, v.x[i], v.first + i) && left-- == 0) {
                cluster.map_shared_rank(v.head, 0)->found = v.first + i;
                break;
            }
        }
    }
    cluster.sync();
    const int found = cluster.map_shared_rank(v.head, 0)->found;
    cluster.sync();
    return found;
}

/* Keeps only the largest tokens: `tokens` of them, or those that together have `mass`. */
static __device__ kept narrow(row_view &v, kept k, long long tokens, mass_t mass) {
    level at = {false, 0, 1, 0};
    choice c = count_level(v, at, k, tokens, mass);
    mass_t top = 0, low = 0; /* the largest key in the bucket, and the largest complement of a key */
    for (int i = v.from; i < v.to; i++) {
        const float x = v.x[i];
        if (mass_of(v, x) > 0 && is_kept(k, x, v.first + i) && bucket_of(v, at, x) == c.bucket) {
            top = max(top, (mass_t)key_of(x));
            low = max(low, (mass_t)~key_of(x));
        }
    }
    top = all<larger>(v, top);
    low = all<larger>(v, low);
    at = {true, (unsigned)top, 1, ~(unsigned)low};
    while (at.top != at.low) {
        at.width = (at.top - at.low) / BUCKETS + 1;
        c = count_level(v, at, k, c.tokens, c.mass);
        const unsigned high = at.top - (unsigned)c.bucket * at.width;
        at.low = high - min(high - at.low, at.width - 1);
        at.top = high;
    }
    long long equal = min(c.count, c.tokens);
    if (c.mass < c.inside) {
        const mass_t each = c.inside / (mass_t)c.count;
        const long long wanted = (long long)((c.mass + each - 1) / each);
        equal = max(1LL, min(equal, wanted));
    }
    if (equal < c.count) {
        const int last = nth_equal(v, k, at.top, equal - 1);
        return {at.top, last + 1};
    }
    return {at.top, at.top == k.key ? k.limit : INT_MAX};
}

/* Samples one of the kept tokens whose mass is at least `least`. */
static __device__ int draw(row_view &v, const kept &k, mass_t least, double unit) {
    cluster_group cluster = this_cluster();
    mass_t own = 0;
    for (int i = v.from; i < v.to; i++) {
        const mass_t m = mass_of(v, v.x[i]);
        own += m >= least && is_kept(k, v.x[i], v.first + i) ? m : 0;
    }
    const mass_t total = all<add>(v, own), start = before(v, own);
    const mass_t wanted = min((mass_t)(unit * (double)total), total - 1);
    if (wanted >= start && wanted < start + own) {
        mass_t left = wanted - start;
        for (int i = v.from; i < v.to; i++) {
            mass_t m = mass_of(v, v.x[i]);
            m = m >= least && is_kept(k, v.x[i], v.first + i) ? m : 0;
            if (left < m) {
                cluster.map_shared_rank(v.head, 0)->found = v.first + i;
                break;
            }
            left -= m;
        }
    }
    cluster.sync();
    return cluster.map_shared_rank(v.head, 0)->found;
}

} // namespace sampling

#endif

/* Parts of quantised_ring_hopper.cuh: the units of a warp, x in shared memory, and results. */
#ifndef CARRY_OPS_CUDA_QUANTISED_RING_PARTS_HOPPER_CUH
#define CARRY_OPS_CUDA_QUANTISED_RING_PARTS_HOPPER_CUH

#include <cooperative_groups.h>

#include "ops/cuda/quantised_ring_plan_hopper.cuh"

namespace quantised {

namespace cg = cooperative_groups;

/* Four-bit codes of two kinds (quantised_ring_hopper.cuh): x of the first kind comes first in 16 bytes. */
template <class F> constexpr bool TWO_KINDS = F::BITS == 4 && F::OF_SUMS;

/* Tile `tile` of the block's items, which start at item `begin`. */
static __device__ __forceinline__ place_of ring_tile(const carry_tile_product &p, int begin, int each, int tile) {
    const int item = begin + (each == 2 ? tile / 2 : tile);
    int map = each == 2 ? tile % 2 : 0;
#pragma unroll 1
    for (int i = 1; each == 1 && i < p.count; i++) {
        map = item >= p.maps[i].first_tile ? i : map;
    }
    const int own = each == 2 ? item : item - p.maps[map].first_tile;
    return place_of{p.maps[map].tiles + (size_t)own * p.tile_bytes, own * ROWS, p.maps[map].rows, p.maps[map].y_at};
}

/* The tiles of a block, and its part of their columns. */
struct ring_share {
    int begin, tiles, rounds; /* first item; tiles of all rounds */
    int first, mine;          /* units of each tile */
};

/* The units of a warp, in order. */
template <int W> struct ring_walk {
    int round, tile, unit, left; /* left: units of this round */

    __device__ __forceinline__ void start(const ring_share &b, const ring_plan &m, int warp) {
        const int all = min(m.round, b.tiles - round * m.round) * b.mine;
        const int at = warp * all / W;
        left = (warp + 1) * all / W - at;
        tile = at / b.mine;
        unit = at - tile * b.mine;
    }

    /* Goes on after the last unit of a tile, or this warp's last one of it; returns false at the end. */
    __device__ __forceinline__ bool pass(const ring_share &b, const ring_plan &m, int warp) {
        const int units = min(left, b.mine - unit);
        tile++;
        unit = 0;
        left -= units;
        return find(b, m, warp);
    }

    /* Goes to the first round from this one on that has units; returns false at the end. */
    __device__ __forceinline__ bool find(const ring_share &b, const ring_plan &m, int warp) {
        while (left == 0 && ++round < b.rounds) {
            start(b, m, warp);
        }
        return left > 0;
    }
};

/* Teams of warps that have a sequence at a time, as a power of two. */
static __device__ __forceinline__ int team_shift(int sequences) {
    return sequences > 4 ? 3 : sequences > 2 ? 2 : sequences - 1;
}

/* The norm's factors for eight columns; 0 past the end. ONE: stages_one is true. */
template <bool ONE = false>
static __device__ __forceinline__ void take_factors(float (&to)[8], const carry_tile_product &p, int column) {
    if (column + 8 <= p.columns && (ONE || (uintptr_t)p.norm % 16 == 0)) {
        *(float4 *)to = __ldg((const float4 *)(p.norm + column));
        *(float4 *)(to + 4) = __ldg((const float4 *)(p.norm + column + 4));
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            to[i] = !ONE && column + i < p.columns ? __ldg(p.norm + column + i) : -p.plus;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        to[i] += p.plus;
    }
}

/* Lanes of a group of columns with a scale. */
template <class F> constexpr int GROUP_LANES = F::OF_SUMS ? F::GROUP / 8 : 8;

/* Eight numbers times X_SCALE in f16, limited to X_MOST in magnitude; returns the sum of the results. */
static __device__ __forceinline__ float limited_x(__half2 (&to)[4], const float (&x)[8]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float low = fminf(fmaxf(x[2 * i] * X_SCALE, -X_MOST), X_MOST);
        const float high = fminf(fmaxf(x[2 * i + 1] * X_SCALE, -X_MOST), X_MOST);
        to[i] = __floats2half2_rn(low, high);
        sum += __low2float(to[i]) + __high2float(to[i]);
    }
    return sum;
}

/* The sum of the lanes of a group. */
template <class F> static __device__ __forceinline__ float group_sum(float sum) {
#pragma unroll
    for (int apart = 1; apart < GROUP_LANES<F>; apart *= 2) {
        sum += __shfl_xor_sync(~0u, sum, apart);
    }
    return sum;
}

/* 16 bytes of x in the order of the multiplications. */
template <class F> static __device__ __forceinline__ uint4 ordered_x(const __half2 (&x)[4]) {
    const unsigned *words = (const unsigned *)x;
    return TWO_KINDS<F> ? uint4{words[0], words[2], words[1], words[3]} : *(const uint4 *)x;
}

static __device__ __forceinline__ float warp_sum(float sum) {
    for (int apart = 16; apart > 0; apart >>= 1) {
        sum += __shfl_xor_sync(~0u, sum, apart);
    }
    return sum;
}

/* Writes x, or with a norm x times the norm's factors, times X_SCALE in f16, limited to X_MOST in magnitude. If the
   format has minima that multiply sums, also writes the sums of these f16 numbers over its groups; with a norm, also
   the sums of squares of x without factors. first: the norm's factors for the first columns of this thread, which are
   loaded before x is waited for. */
template <class F, int NT, int W>
static __device__ __forceinline__ void ring_stage(const carry_tile_product &p, const ring_plan &m, const ring_share &b,
                                                  unsigned char *memory, int sequences, const float (&first)[8]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int shift = team_shift(sequences), teams = 1 << shift, team = warp & (teams - 1);
    const int member = warp >> shift, members = W >> shift;
    float *sums = (float *)(memory + m.sums_at), *squares = (float *)(memory + m.squares_at);
    for (int s = team; s < sequences && member < members; s += teams) {
        float square = 0.0f;
#pragma unroll 1 /* instructions are fetched once for each block: fewer are faster */
        for (int at = member * 32 + lane; at < (b.mine * 16 + 31) / 32 * 32; at += members * 32) {
            const int column = b.first * CARRY_QUANT_UNIT_COLUMNS + at * 8;
            float x[8] = {};
            if (at < b.mine * 16) {
                take_x(x, p, s, column);
                if (p.norm != nullptr) {
                    float factors[8];
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        factors[i] = first[i];
                        square = fmaf(x[i], x[i], square);
                    }
                    if (at >= members * 32) {
                        take_factors(factors, p, column);
                    }
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        x[i] *= factors[i];
                    }
                }
            }
            __half2 to[4];
            float sum = limited_x(to, x);
            if constexpr (F::OF_SUMS && F::MINIMUM) {
                sum = group_sum<F>(sum);
                if (at < b.mine * 16 && lane % GROUP_LANES<F> == 0) {
                    sums[at / GROUP_LANES<F> * 8 * NT + s] = sum;
                }
            }
            if (at < b.mine * 16) {
                *(uint4 *)(memory + s * m.pitch + at * 16) = ordered_x<F>(to);
            }
        }
        if (p.norm != nullptr) {
            square = warp_sum(square);
            if (lane == 0) {
                squares[s * W + member] = square;
            }
        }
    }
}

/* True if ring_stage_one supports the product. */
static inline bool stages_one(const carry_tile_product &p) {
    return p.columns % 8 == 0 && !p.x_is_wide && p.x_is_aligned && (uintptr_t)p.norm % 16 == 0;
}

/* As ring_stage, for one sequence: the next columns of a thread are loaded before these are used. factors: the norm's
   factors for the first columns of this thread. */
template <class F, int W>
static __device__ __forceinline__ void ring_stage_one(const carry_tile_product &p, const ring_plan &m,
                                                      const ring_share &b, unsigned char *memory, int thread,
                                                      float (&factors)[8]) {
    const int lane = thread % 32, count = b.mine * 16, start = b.first * CARRY_QUANT_UNIT_COLUMNS;
    float *sums = (float *)(memory + m.sums_at), *squares = (float *)(memory + m.squares_at);
    float square = 0.0f;
    const auto load = [&](int at) {
        const int column = start + at * 8;
        return at < count && column < p.columns ? __ldcg((const uint4 *)((const __nv_bfloat16 *)p.x + column))
                                                : uint4{};
    };
    uint4 next = load(thread);
#pragma unroll 1
    for (int at = thread; at < (count + 31) / 32 * 32; at += W * 32) {
        const unsigned pairs[4] = {next.x, next.y, next.z, next.w};
        float x[8];
        next = load(at + W * 32);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[2 * i] = __uint_as_float(pairs[i] << 16);
            x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
        }
        if (p.norm != nullptr) {
            if (at >= W * 32) {
                take_factors<true>(factors, p, start + at * 8);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                square = fmaf(x[i], x[i], square);
                x[i] *= factors[i];
            }
        }
        __half2 to[4];
        float sum = limited_x(to, x);
        if constexpr (F::OF_SUMS && F::MINIMUM) {
            sum = group_sum<F>(sum);
            if (at < count && lane % GROUP_LANES<F> == 0) {
                sums[at / GROUP_LANES<F> * 8] = sum;
            }
        }
        if (at < count) {
            *(uint4 *)(memory + at * 16) = ordered_x<F>(to);
        }
    }
    if (p.norm != nullptr) {
        square = warp_sum(square);
        if (lane == 0) {
            squares[thread / 32] = square;
        }
    }
}

/* Writes a warp's sums of a tile, [sequences][16 rows], and clears them. */
template <int NT>
static __device__ __forceinline__ void put_parts(float *to, float (&c)[NT][4], int sequences, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 4 * NT; i++) {
        const int e = i % 4, s = i / 4 * 8 + 2 * t + e % 2;
        if (s < sequences) {
            to[s * ROWS + g + e / 2 * 8] = c[i / 4][e];
        }
        c[i / 4][e] = 0.0f;
    }
}

/* The sums of a tile over warps, in order. reach: the first and last warp that has units of the tile. */
static __device__ __forceinline__ float sum_parts(const float *parts, const int2 *reach, int tile, int at,
                                                  int sequences) {
    const int2 warps = reach[tile];
    const float *from = parts + (tile + warps.x) * sequences * ROWS + at;
    float sum = 0.0f;
    for (int w = warps.x; w <= warps.y; w++) {
        sum += *from;
        from += sequences * ROWS;
    }
    return sum;
}

/* A result of a round; results are ordered by item, sequence and row. */
struct ring_result {
    int item, sequence, row;
    int column; /* of y; -1: none */
    float factor, up_factor, base;
};

static __device__ __forceinline__ ring_result result_of(const carry_tile_product &p, const ring_plan &m,
                                                        const ring_share &b, int round, int at, int sequences) {
    ring_result o = {at / (ROWS * sequences), at / ROWS % sequences, at % ROWS, -1, 0.0f, 0.0f, 0.0f};
    const int tile = round * m.round + o.item * m.each;
    if (at < m.round / m.each * ROWS * sequences && tile < b.tiles) {
        const place_of place = ring_tile(p, b.begin, m.each, tile);
        o.column = place.row + o.row < place.rows ? place.y_at + place.row + o.row : -1;
        o.factor = __ldg((const float *)(place.tile + p.factors_at) + o.row);
        if (m.each == 2) {
            o.up_factor = __ldg((const float *)(ring_tile(p, b.begin, 2, tile + 1).tile + p.factors_at) + o.row);
        }
    }
    return o;
}

static __device__ __forceinline__ float base_of(const carry_tile_product &p, const ring_result &o) {
    const int64_t at = o.sequence * p.y_stride + o.column;
    return o.column < 0 || p.output != CARRY_TILE_ADD ? 0.0f
           : p.h != nullptr                           ? __ldcg(p.h + at)
           : p.y_is_wide                              ? ((const float *)p.base)[at]
                                                      : __bfloat162float(((const __nv_bfloat16 *)p.base)[at]);
}

template <int W>
static __device__ __forceinline__ float square_of(const ring_plan &m, const unsigned char *memory, int sequence,
                                                  int sequences) {
    const float *squares = (const float *)(memory + m.squares_at) + sequence * W;
    float square = 0.0f;
    for (int w = 0; w < W >> team_shift(sequences); w++) {
        square += squares[w];
    }
    return square;
}

/* Stores a result. */
static __device__ __forceinline__ void put_result(const carry_tile_product &p, const ring_result &o, float sum,
                                                  float up, float square) {
    const float rate =
        (p.norm != nullptr ? rsqrtf(__fdividef(square, (float)p.columns) + p.eps) : 1.0f) * (1.0f / X_SCALE);
    sum *= rate * o.factor;
    if (p.output == CARRY_TILE_SWIGLU) {
        sum = __fdividef(sum, 1.0f + __expf(-sum)) * (up * rate * o.up_factor);
    }
    if (o.column >= 0) {
        put_sum(p, o.sequence, o.column, sum + o.base);
    }
}

/* Stores this block's results from the sums of all blocks of the cluster. ONE: as of ring_finish. */
template <int W, bool ONE>
static __device__ __forceinline__ void put_shared(const carry_tile_product &p, const ring_plan &m, const ring_share &b,
                                                  const float *other, ring_result o, int results, int sequences,
                                                  int round, int rank) {
    const int stride = m.share * m.each + sequences, begin = rank * m.share;
#pragma unroll 1
    for (int i = threadIdx.x; i < m.share && begin + i < results; i += 32 * W) {
        float sum = 0.0f, up = 0.0f, square = 0.0f;
        if (i != threadIdx.x) {
            o = result_of(p, m, b, round, begin + i, sequences);
            o.base = base_of(p, o);
        }
        for (int r = 0; r < m.cluster; r++) {
            const float *from = other + r * stride;
            sum += from[i * m.each];
            up += m.each == 2 ? from[i * 2 + 1] : 0.0f;
            square += p.norm != nullptr ? from[m.share * m.each + o.sequence] : 0.0f;
        }
        put_result(p, o, sum, up, square);
        if constexpr (ONE) {
            break;
        }
    }
}

/* Adds the sums of a round over warps and blocks, and stores them. first: the first result of this thread. In a
   cluster, each block stores `share` of the results: all blocks write their sums into its shared memory, which
   has for each of them [share][each] sums, then a sum of squares of x for each sequence. ONE: a thread has at most one
   result of a round. */
template <int W, bool ONE>
static __device__ __forceinline__ void ring_finish(const carry_tile_product &p, const ring_plan &m, const ring_share &b,
                                                   unsigned char *memory, const float *parts, const int2 *reach,
                                                   const ring_result &first, int sequences, int round, int rank) {
    cg::cluster_group cluster = cg::this_cluster();
    const int results = min(m.round, b.tiles - round * m.round) / m.each * ROWS * sequences;
    const int stride = m.share * m.each + sequences;
    float *other = (float *)(memory + m.other_at) + round % 2 * m.other_floats;
#pragma unroll 1
    for (int i = threadIdx.x; i < results; i += 32 * W) {
        ring_result o = first;
        if (i != threadIdx.x || m.cluster > 1) {
            o.item = i / (ROWS * sequences);
            o.sequence = i / ROWS % sequences;
        }
        const int tile = o.item * m.each, at = o.sequence * ROWS + i % ROWS;
        float sums[2] = {};
        for (int which = 0; which < m.each; which++) {
            sums[1] = sums[0];
            sums[0] = sum_parts(parts, reach, tile + which, at, sequences);
        }
        const float sum = m.each == 2 ? sums[1] : sums[0], up = sums[0];
        if (m.cluster > 1) {
            const int owner = i / m.share;
            float *to =
                cluster.map_shared_rank(other, (unsigned)owner) + rank * stride + (i - owner * m.share) * m.each;
            to[0] = sum;
            if (m.each == 2) {
                to[1] = up;
            }
            continue;
        }
        if (i != threadIdx.x) {
            o = result_of(p, m, b, round, i, sequences);
            o.base = base_of(p, o);
        }
        put_result(p, o, sum, up, p.norm != nullptr ? square_of<W>(m, memory, o.sequence, sequences) : 0.0f);
        if constexpr (ONE) {
            break;
        }
    }
    if (m.cluster > 1) {
        for (int i = threadIdx.x; p.norm != nullptr && i < sequences * m.cluster; i += 32 * W) {
            const int s = i % sequences;
            cluster.map_shared_rank(other, (unsigned)(i / sequences))[rank * stride + m.share * m.each + s] =
                square_of<W>(m, memory, s, sequences);
        }
        cluster.sync();
        put_shared<W, ONE>(p, m, b, other, first, results, sequences, round, rank);
    }
}

} // namespace quantised

#endif

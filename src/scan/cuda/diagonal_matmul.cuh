/* Products of the tensor cores for diagonal transitions: 16 channels of a row by 16 steps, in the registers of one
   warp.

   16 steps of one row are a product with a triangle of decays, Y = X L^T, L[i][j] = a[j+1] ... a[i]. The rows of X
   are 16 channels of the row, its columns the 16 steps. Steps can be assigned to the k of a product in any order:
   steps 2q and 2q + 1 are at k = q and q + 4, where lane q of four has its results too. So a lane loads and stores
   the same channels and steps, and lanes exchange only decays. Lane 4g + q has steps 2q, 2q + 1, 2q + 8 and 2q + 9.

   Entries of the triangle are products of neighbouring decays, by doubling over the lanes: no division, so decays
   may be zero. Products are m16n8k8 of tf32 with f32 sums. A factor is split in two, x = high + low: high is x
   truncated to tf32, low is the exact rest, which the tensor core truncates; low x low is left out. The error is
   below 2^-19 of a product. bf16 and f16 values are exact in tf32, so b in 16 bits needs no low part. */
#ifndef CARRY_SCAN_DIAGONAL_MATMUL_CUH
#define CARRY_SCAN_DIAGONAL_MATMUL_CUH

#include "scan/cuda/diagonal.cuh"

namespace triangles {

constexpr int SLOTS = 16;      /* units of 16 steps in a block */
constexpr int ROW = SLOTS + 4; /* floats between channels' ends: a multiple of a float4, spread over the banks */
constexpr unsigned ALL = 0xffffffffu;

struct lane_place {
    int g, q;
};

__device__ __forceinline__ lane_place place() {
    return {(int)threadIdx.x / 4, (int)threadIdx.x % 4};
}

struct split {
    unsigned high, low;
};

__device__ __forceinline__ split split_of(float x) {
    /* truncation: a conversion instruction would take four times as long. */
    unsigned high = __float_as_uint(x) & 0xffffe000u;
    return {high, __float_as_uint(x - __uint_as_float(high))};
}

__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* An 8 x 8 block of a triangle, transposed, as a right operand. */
struct block {
    split first, second; /* k = q and q + 4 */

    __device__ __forceinline__ block(float x, float y) : first(split_of(x)), second(split_of(y)) {
    }
};

/* 16 channels by 8 steps, as a left operand. EXACT: no value has a low part. */
template <bool EXACT> struct values {
    unsigned high[4], low[4];

    __device__ __forceinline__ values(float a0, float a1, float a2, float a3) {
        const float x[4] = {a0, a1, a2, a3};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            split s = EXACT ? split{__float_as_uint(x[i]), 0u} : split_of(x[i]);
            high[i] = s.high;
            low[i] = s.low;
        }
    }
};

/* Sums of products. APART: products with a low part have separate registers, so that fewer instructions wait for each
   other, 30 cycles each. This is for warps that have no other work meanwhile. */
template <bool APART> struct sums {
    float main[4] = {}, rest[4] = {};

    template <bool EXACT> __device__ __forceinline__ void add(const values<EXACT> &a, const block &b) {
        multiply(APART ? rest : main, a.high, b.first.low, b.second.low);
        if (!EXACT) {
            multiply(APART ? rest : main, a.low, b.first.high, b.second.high);
        }
        multiply(main, a.high, b.first.high, b.second.high);
    }
    __device__ __forceinline__ float at(int i) const {
        return APART ? main[i] + rest[i] : main[i];
    }
};

/* The product of x over the lanes with the same q, from g = 0 up to this lane's g. */
__device__ __forceinline__ float product_up_to(float x, int g) {
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) {
        float before = __shfl_up_sync(ALL, x, 4 * distance);
        x = g >= distance ? x * before : x;
    }
    return x;
}

/* Computed from 16 decays: the three blocks of the triangle that are not zero and, for this lane's steps 2q, 2q + 1, 2q
   + 8 and 2q + 9, the product of the decays from the unit's start. */
template <int RADIX> struct triangle {
    block early, late, across;                /* radix 16: of the unit; smaller radices: of the unit's groups */
    block early_ends, late_ends, across_ends; /* the effect of the ends of a group on the groups after it */
    float cumulative[4];
    float total;

    /* a[0], a[1]: the decays of steps g and g + 8. */
    static __device__ __forceinline__ triangle of(const float (&a)[2]) {
        auto [g, q] = place();
        float odd[2];
        float inside[2]; /* product of the decays from step 2q + 2 up to g */
#pragma unroll
        for (int half = 0; half < 2; half++) {
            odd[half] = __shfl_sync(ALL, a[half], 4 * (2 * q + 1));
            inside[half] = product_up_to(g >= 2 * q + 2 ? a[half] : 1.0f, g);
        }
        /* from_start is over the first 8 steps if q = 0, and over the others if q = 1. */
        float from_start = product_up_to(q == 0 ? a[0] : a[1], g);
        float to_middle = __shfl_sync(ALL, inside[0], 28 + q);
        float late_here = to_middle * __shfl_sync(ALL, from_start, 4 * g + 1);
        float first = __shfl_sync(ALL, from_start, 28);
        float even[2] = {__shfl_sync(ALL, from_start, 8 * q), first * __shfl_sync(ALL, from_start, 8 * q + 1)};
        float last = __shfl_sync(ALL, from_start, 29);
        bool after = g > 2 * q && (RADIX > 4 || g / 4 == q / 2);
        float start = g == 2 * q ? 1.0f : 0.0f;
        /* Steps 3 and 11 end a group, and the next group is in the same half. */
        bool later = RADIX == 4 && q == 1 && g >= 4;
        bool ends = q == 3 || (RADIX == 4 && q == 1);
        return {block(after ? odd[0] * inside[0] : start, after ? inside[0] : 0.0f),
                block(after ? odd[1] * inside[1] : start, after ? inside[1] : 0.0f),
                block(odd[0] * late_here, late_here),
                block(0.0f, later ? inside[0] : 0.0f),
                block(0.0f, later ? inside[1] : 0.0f),
                block(0.0f, ends ? late_here : 0.0f),
                {even[0], even[0] * odd[0], even[1], even[1] * odd[1]},
                first * last};
    }
};

/* Computes `before`, the states that enter each of this warp's units: before[u][0] for channel g of 16, [1] for channel
   g + 8. `ends` has the final states of all `units` units from a zero state, for 16 channels; `decays` has the decays
   of the units; `state` is the state that enters the block. This warp's units start at `own` and are within one group
   of four.

   This is a product whose columns are this warp's units, each repeated so that every lane gets all its results. Lane q
   of a group of four lanes has the ends of units 4q to 4q + 3. */
template <int UNITS>
__device__ __forceinline__ void enter_units(float (&before)[UNITS][2], const float *ends, const float *decays,
                                            int units, int own, const float (&state)[2], bool has_state) {
    auto [g, q] = place();
    float4 low = *reinterpret_cast<const float4 *>(ends + g * ROW + 4 * q);
    float4 high = *reinterpret_cast<const float4 *>(ends + (g + 8) * ROW + 4 * q);
    float4 mine = *reinterpret_cast<const float4 *>(decays + 4 * q);
    float4 here = *reinterpret_cast<const float4 *>(decays + (own & ~3));
    int left = units - 4 * q; /* units beyond were never written */
    mine.x = left > 0 ? mine.x : 1.0f, low.x = left > 0 ? low.x : 0.0f, high.x = left > 0 ? high.x : 0.0f;
    mine.y = left > 1 ? mine.y : 1.0f, low.y = left > 1 ? low.y : 0.0f, high.y = left > 1 ? high.y : 0.0f;
    mine.z = left > 2 ? mine.z : 1.0f, low.z = left > 2 ? low.z : 0.0f, high.z = left > 2 ? high.z : 0.0f;
    mine.w = left > 3 ? mine.w : 1.0f, low.w = left > 3 ? low.w : 0.0f, high.w = left > 3 ? high.w : 0.0f;
    float fours = mine.x * mine.y * mine.z * mine.w;
    float between = 1.0f; /* decays of the groups of four after this lane's and before this warp's */
    float all = 1.0f;     /* decays of all groups before this warp's */
#pragma unroll
    for (int f = 0; f < 3; f++) {
        float four = __shfl_sync(ALL, fours, f);
        all = 4 * f + 3 < own ? all * four : all;
        between = 4 * f + 3 < own && f > q ? between * four : between;
    }
    values<false> x0(low.x, high.x, low.y, high.y);
    values<false> x1(low.z, high.z, low.w, high.w);
    const float d[4] = {mine.x, mine.y, mine.z, mine.w};
    const float to[4] = {1.0f, here.x, here.x * here.y, here.x * here.y * here.z};
    bool is_here = q == own / 4;
#pragma unroll
    for (int j = 0; j < (UNITS + 1) / 2; j++) {
        int unit = own % 4 + 2 * j + (UNITS > 1 ? g % 2 : 0); /* index within its group of four */
        float since = unit == 0 ? to[0] : unit == 1 ? to[1] : unit == 2 ? to[2] : to[3];
        float weight = is_here ? 1.0f : between * since;
        float entry[4];
#pragma unroll
        for (int i = 3; i >= 0; i--) {
            bool earlier = is_here ? i < unit : q < own / 4;
            entry[i] = earlier ? weight : 0.0f;
            weight = earlier ? weight * d[i] : weight;
        }
        sums<UNITS == 1> c0;
        sums<UNITS == 1> c1;
        if (has_state) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int u = own % 4 + 2 * j + (UNITS > 1 ? i % 2 : 0);
                c0.main[i] = all * (u == 0 ? to[0] : u == 1 ? to[1] : u == 2 ? to[2] : to[3]) * state[i / 2];
            }
        }
        c0.add(x0, block(entry[0], entry[1]));
        (UNITS == 1 ? c1 : c0).add(x1, block(entry[2], entry[3]));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (2 * j + i % 2 < UNITS) {
                before[2 * j + i % 2 < UNITS ? 2 * j + i % 2 : 0][i / 2] = UNITS == 1 ? c0.at(i) + c1.at(i) : c0.at(i);
            }
        }
    }
}

} // namespace triangles

#endif

/* Attention of up to eight query heads to a tile of 16 tokens, by one warp with tensor cores. Lane 4 g + t has the
   parts of mma.m16n8k16.

   Scores [tokens, heads] = K Q': the lane loads 16 bytes of the keys of tokens g and g + 8 from memory: neighbouring
   columns, which are its parts of the operands of several mma. The order of the columns is thus permuted, in the same
   way for the queries. Sums [columns, heads] += V' P': the lane loads 16 bytes of the values of tokens 2t, 2t + 1,
   2t + 8 and 2t + 9, and pairs of tokens are made of them. Its results are two neighbouring columns of heads 2t and
   2t + 1, so that it has the factors of its sums from its scores. Nothing but queries goes through shared memory.

   Heads are columns and never mix; tokens mix only in the sums, where a weight of zero takes part: values that must not
   count have to be finite. 8-bit keys and values are multiplied in f16, in which they are exact, without their scales.
 */
#ifndef CARRY_ENGINE_CHAIN_SCORES_CUH
#define CARRY_ENGINE_CHAIN_SCORES_CUH

#include "engine/cuda/chain_kernel.cuh"
#include "ops/cuda/f8.cuh"

namespace chain {

/* Sizes for heads of D columns. Lanes load 512 bytes of tokens at a time, in one to four tiles. */
template <int D, bool F8> struct tile_shape {
    static constexpr int BYTES = F8 ? 1 : 2, ROW = D * BYTES, CHUNK = 16 / BYTES; /* columns of 16 bytes */
    static constexpr int KEY_LOADS = ROW / 64, VALUE_LOADS = ROW / 128, TILES = 512 / ROW;
    static constexpr int SUMS = D / 16;                        /* accumulators, of 16 columns each */
    static constexpr int QUERY_BYTES = D * 2 + (F8 ? 16 : 64); /* from a head to the next, without bank conflicts */
};

/* A lane's part of the keys and values of a tile. scale: of tokens g and g + 8. */
template <int D, bool F8> struct tile_keys {
    uint4 of[2][tile_shape<D, F8>::KEY_LOADS];
    unsigned scale[2];
};
template <int D, bool F8> struct tile_values {
    uint4 of[4][tile_shape<D, F8>::VALUE_LOADS];
    unsigned scale[2];
};

/* The token of a tile that value load i of lane t is of. */
static __device__ __forceinline__ int value_token(int i, int t) {
    return 2 * t + i % 2 + i / 2 * 8;
}

template <bool F16>
static __device__ __forceinline__ void multiply_tile(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                                     unsigned b0, unsigned b1) {
    if constexpr (F16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

static __device__ __forceinline__ unsigned half_pair_of(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *(const unsigned *)&pair;
}

/* Four 8-bit floats as two pairs of f16. */
static __device__ __forceinline__ void f8_pairs(unsigned &low, unsigned &high, unsigned codes) {
#if defined(CARRY_EMULATED)
    low = half_pair_of(carry_f8_value((uint8_t)codes), carry_f8_value((uint8_t)(codes >> 8)));
    high = half_pair_of(carry_f8_value((uint8_t)(codes >> 16)), carry_f8_value((uint8_t)(codes >> 24)));
#else
    asm("{ .reg .b16 x, y; mov.b32 {x, y}, %2; cvt.rn.f16x2.e4m3x2 %0, x; cvt.rn.f16x2.e4m3x2 %1, y; }"
        : "=r"(low), "=r"(high)
        : "r"(codes));
#endif
}

/* Transposes a matrix of 8 x 8 elements of 16 bits: lane 4 g + t has elements 2t and 2t + 1 of row g. */
static __device__ __forceinline__ unsigned transposed(unsigned pair) {
    unsigned to;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(pair));
    return to;
}

static __device__ __forceinline__ unsigned word_of(const uint4 &x, int i) {
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

/* The scores of tokens g and g + 8 for heads 2t and 2t + 1: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
   queries: [8, QUERY_BYTES], bf16 or f16. Two sums shorten the wait of one mma for another. */
template <int D, bool F8>
static __device__ __forceinline__ void tile_scores(float (&score)[4], const tile_keys<D, F8> &k,
                                                   const unsigned char *queries) {
    using shape = tile_shape<D, F8>;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const auto *q = (const uint4 *)(queries + g * shape::QUERY_BYTES + t * shape::CHUNK * 2);
    float c[2][4] = {};
#pragma unroll
    for (int i = 0; i < shape::KEY_LOADS; i++) {
        const uint4 low = k.of[0][i], high = k.of[1][i];
        if constexpr (F8) {
#pragma unroll
            for (int word = 0; word < 4; word++) {
                const uint4 b = q[i * 8 + word / 2];
                unsigned a[4];
                f8_pairs(a[0], a[2], word_of(low, word));
                f8_pairs(a[1], a[3], word_of(high, word));
                multiply_tile<true>(c[word % 2], a[0], a[1], a[2], a[3], word % 2 == 0 ? b.x : b.z,
                                    word % 2 == 0 ? b.y : b.w);
            }
        } else {
            const uint4 b = q[i * 4];
            multiply_tile<false>(c[0], low.x, high.x, low.y, high.y, b.x, b.y);
            multiply_tile<false>(c[1], low.z, high.z, low.w, high.w, b.z, b.w);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        score[i] = c[0][i] + c[1][i];
    }
}

/* Adds the values of a tile to the sums; weight: in the order of scores. */
template <int D, bool F8>
static __device__ __forceinline__ void add_values(float (&sum)[tile_shape<D, F8>::SUMS][4], const tile_values<D, F8> &v,
                                                  const float (&weight)[4]) {
    using shape = tile_shape<D, F8>;
    const unsigned low = F8 ? half_pair_of(weight[0], weight[1]) : pair_of(weight[0], weight[1]);
    const unsigned high = F8 ? half_pair_of(weight[2], weight[3]) : pair_of(weight[2], weight[3]);
    const unsigned b0 = transposed(low), b1 = transposed(high);
#pragma unroll
    for (int i = 0; i < shape::VALUE_LOADS; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const unsigned w[4] = {word_of(v.of[0][i], j), word_of(v.of[1][i], j), word_of(v.of[2][i], j),
                                   word_of(v.of[3][i], j)};
            if constexpr (F8) { /* four columns of each token */
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const unsigned order = half == 0 ? 0x5140 : 0x7362;
                    unsigned a[4];
                    f8_pairs(a[0], a[1], __byte_perm(w[0], w[1], order));
                    f8_pairs(a[2], a[3], __byte_perm(w[2], w[3], order));
                    multiply_tile<true>(sum[(i * 4 + j) * 2 + half], a[0], a[1], a[2], a[3], b0, b1);
                }
            } else { /* two */
                multiply_tile<false>(sum[i * 4 + j], __byte_perm(w[0], w[1], 0x5410), __byte_perm(w[0], w[1], 0x7632),
                                     __byte_perm(w[2], w[3], 0x5410), __byte_perm(w[2], w[3], 0x7632), b0, b1);
            }
        }
    }
}

/* The first column of accumulator i: its elements are (column, head 2t), (column, 2t + 1), and those of the next. */
template <int D, bool F8> static __device__ __forceinline__ int sum_column(int i) {
    constexpr int CHUNK = tile_shape<D, F8>::CHUNK, EACH = CHUNK / 2;
    return (i / EACH * 8 + (int)threadIdx.x % 32 / 4) * CHUNK + i % EACH * 2;
}

/* The largest of a number of the eight lanes that have the same t, and the sum. */
static __device__ __forceinline__ float column_largest(float x) {
#pragma unroll
    for (int apart = 4; apart < 32; apart *= 2) {
        x = fmaxf(x, __shfl_xor_sync(~0u, x, apart));
    }
    return x;
}

static __device__ __forceinline__ float column_sum(float x) {
#pragma unroll
    for (int apart = 4; apart < 32; apart *= 2) {
        x += __shfl_xor_sync(~0u, x, apart);
    }
    return x;
}

/* exp2f by the instruction alone: 0 for results below 2^-126. */
static __device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

} // namespace chain

#endif

/* Chunks of 64 tokens on tensor cores by mma.sync: tiles in shared memory, operands, products and the solve, for tiles/
   and keys/.

   A block walks one value head of one sequence. Tiles of q, k, v stay in 16 bits in shared memory; norms, gates and
   beta are applied as f32 factors before and after the products. For a chunk, with D[i,j] = e^{G[i]-G[j]} and
   normalised k and q,

       A[i,j] = D[i,j] k[i].k[j], j < i;   P[i,j] = scale D[i,j] q[i].k[j], j <= i
       rest = v - e^G k S - A (beta rest);   x = beta rest

   A warp takes 16 columns of V for all 64 tokens, transposed: [16, 64] and the state [16, K] stay in registers in
   the layout of the tensor cores' results, and are used again as left operands. So the solve by blocks of 16 tokens
   needs no other warp: A gives the terms of earlier blocks, and the inverse of I + A beta the terms inside a block
   (computed in f32, rounded, without its diagonal). */
#ifndef CARRY_DELTA_MMA_CUH
#define CARRY_DELTA_MMA_CUH

#include <cuda_pipeline.h>

#include "delta/cuda/device.cuh"

/* The kernels of keys/ are compiled once for each type (cmake/instances.cmake), each time in a separate namespace. */
#ifdef CARRY_INSTANCE_F16
#define DELTA_MMA delta_mma_f16
#else
#define DELTA_MMA delta_mma
#endif

namespace DELTA_MMA {

constexpr int C = 64, THREADS = 128, WARPS = 4;
constexpr int BLOCK = 16, BLOCKS = C / BLOCK;
constexpr int LC = C + 8, LB = BLOCK + 8, LF = BLOCK + 4; /* row lengths in shared memory that avoid bank conflicts */
constexpr double DEEPEST = -4096.0;                       /* as on the CPU (gate.c) */

__device__ __forceinline__ int warp_of() {
    return (int)threadIdx.x / 32;
}
__device__ __forceinline__ int lane_of() {
    return (int)threadIdx.x % 32;
}
/* The row of half r, and the column of the first element, that a lane has in a [16, 8] result. */
__device__ __forceinline__ int row_in(int r) {
    return lane_of() / 4 + 8 * r;
}
__device__ __forceinline__ int column_in() {
    return lane_of() % 4 * 2;
}

#ifdef CARRY_INSTANCE_F16
__device__ __forceinline__ uint16_t to_16(float x) {
    return __half_as_ushort(__float2half_rn(x));
}
__device__ __forceinline__ float low_of(unsigned pair) {
    return __half2float(__ushort_as_half((unsigned short)(pair & 0xffffu)));
}
__device__ __forceinline__ float high_of(unsigned pair) {
    return __half2float(__ushort_as_half((unsigned short)(pair >> 16)));
}
#else
__device__ __forceinline__ uint16_t to_16(float x) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
__device__ __forceinline__ float low_of(unsigned pair) {
    return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_of(unsigned pair) {
    return __uint_as_float(pair & 0xffff0000u);
}
#endif
__device__ __forceinline__ unsigned pack(float low, float high) {
    return (unsigned)to_16(low) | (unsigned)to_16(high) << 16;
}

template <bool TRANSPOSED> __device__ __forceinline__ void load_blocks(unsigned (&x)[4], const uint16_t *from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(from);
    if (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(at));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(at));
    }
}

/* Loads the left operand [16, 16] at (m, k) of a tile that is stored as [m][k], or as [k][m] (_t). */
template <int LD> __device__ __forceinline__ void load_left(unsigned (&a)[4], const uint16_t *tile, int m, int k) {
    const int lane = lane_of();
    load_blocks<false>(a, tile + (m + lane % 16) * LD + k + lane / 16 * 8);
}
template <int LD> __device__ __forceinline__ void load_left_t(unsigned (&a)[4], const uint16_t *tile, int m, int k) {
    const int lane = lane_of();
    load_blocks<true>(a, tile + (k + lane / 16 * 8 + lane % 8) * LD + m + lane / 8 % 2 * 8);
}

/* Loads the right operands of two adjacent results, [16, 8] each, at (k, n) of a tile that is stored as [n][k], or as
   [k][n] (_t). */
template <int LD> __device__ __forceinline__ void load_right(unsigned (&b)[4], const uint16_t *tile, int k, int n) {
    const int lane = lane_of();
    load_blocks<false>(b, tile + (n + lane / 16 * 8 + lane % 8) * LD + k + lane / 8 % 2 * 8);
}
template <int LD> __device__ __forceinline__ void load_right_t(unsigned (&b)[4], const uint16_t *tile, int k, int n) {
    const int lane = lane_of();
    load_blocks<true>(b, tile + (k + lane / 8 % 2 * 8 + lane % 8) * LD + n + lane / 16 * 8);
}

__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifdef CARRY_INSTANCE_F16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
__device__ __forceinline__ void multiply_two(float (&d0)[4], float (&d1)[4], const unsigned (&a)[4],
                                             const unsigned (&b)[4]) {
    multiply(d0, a, b[0], b[1]);
    multiply(d1, a, b[2], b[3]);
}

/* Packs two adjacent results as a left operand. */
__device__ __forceinline__ void as_left(unsigned (&a)[4], const float (&d0)[4], const float (&d1)[4]) {
    a[0] = pack(d0[0], d0[1]);
    a[1] = pack(d0[2], d0[3]);
    a[2] = pack(d1[0], d1[1]);
    a[3] = pack(d1[2], d1[3]);
}
__device__ __forceinline__ void negate(unsigned (&to)[4], const unsigned (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[i] = a[i] ^ 0x80008000u;
    }
}

template <int N> __device__ __forceinline__ void clear(float (&x)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0.0f;
    }
}

/* Results for a chunk that do not depend on the state. T is the inverse of I + A beta for diagonal blocks, U the
   inverse of I + beta A, both without the identity. norms are 1 / |k| and 1 / |q|, or 1. */
struct prepared {
    alignas(16) uint16_t A[C * LC];
    alignas(16) uint16_t P[C * LC];
    alignas(16) uint16_t T[BLOCKS][BLOCK * LB];
    alignas(16) uint16_t U[BLOCKS][BLOCK * LB];
    alignas(16) float diagonal[BLOCKS][BLOCK * LF];
    double G[C];
    float g[C], fade[C], left[C], beta[C], k_norm[C], q_norm[C];
};

__device__ __forceinline__ bool is_aligned(const carry_delta_array &a) {
    return ((uintptr_t)a.data % 16 | (uintptr_t)(a.batch % 8) | (uintptr_t)(a.token % 8) | (uintptr_t)(a.head % 8)) ==
           0;
}

/* Starts to copy `count` rows of `size` elements from token t of the sequence on, with zeros after them. Called by N
   threads. */
template <int D, int N = THREADS>
__device__ void load_tile(uint16_t *to, const carry_delta_array &from, const delta_place &place, int64_t t,
                          int64_t head, int count, int size) {
    constexpr int LD = D + 8, PIECES = D / 8;
    const uint16_t *start = static_cast<const uint16_t *>(from.data) + at_of(from, place.batch, place.start + t, head);
    const bool whole = is_aligned(from);
#pragma unroll
    for (int i = (int)threadIdx.x; i < C * PIECES; i += N) {
        const int row = i / PIECES, column = i % PIECES * 8;
        const uint16_t *there = start + (int64_t)row * from.token + column;
        uint16_t *here = to + row * LD + column;
        if (whole && row < count && column + 8 <= size) {
            __pipeline_memcpy_async(here, there, 16);
        } else {
            for (int e = 0; e < 8; e++) {
                here[e] = row < count && column + e < size ? there[e] : (uint16_t)0;
            }
        }
    }
}

template <int D>
__device__ void store_tile(const carry_delta_array &to, const uint16_t *from, const delta_place &place, int64_t t,
                           int64_t head, int count, int size) {
    constexpr int LD = D + 8, PIECES = D / 8;
    uint16_t *start = static_cast<uint16_t *>(to.data) + at_of(to, place.batch, place.start + t, head);
    const bool whole = is_aligned(to);
#pragma unroll
    for (int i = (int)threadIdx.x; i < C * PIECES; i += THREADS) {
        const int row = i / PIECES, column = i % PIECES * 8;
        uint16_t *there = start + (int64_t)row * to.token + column;
        const uint16_t *here = from + row * LD + column;
        if (whole && row < count && column + 8 <= size) {
            *reinterpret_cast<uint4 *>(there) = *reinterpret_cast<const uint4 *>(here);
        } else {
            for (int e = 0; e < 8 && row < count && column + e < size; e++) {
                there[e] = here[e];
            }
        }
    }
}

/* Stores the inverse of I + A beta for a warp's diagonal block, without the identity, in T. A lane has a column. With
   BOTH, the upper half of the warp stores the inverse of I + beta A in U. SUMS is the number of partial sums for a row,
   which determines the order of summation. */
template <int SUMS, bool BOTH>
__device__ __forceinline__ void invert_diagonal(const float *A, const float *beta, uint16_t *T, uint16_t *U) {
    const int column = lane_of() % BLOCK;
    const bool upper = lane_of() >= BLOCK;
    if (upper && !BOTH) {
        return;
    }
    uint16_t *to = upper ? U : T;
    float z[BLOCK];
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        float sum[SUMS] = {};
#pragma unroll
        for (int m = 0; m < i; m++) {
            sum[m % SUMS] = fmaf(A[i * LF + m], z[m], sum[m % SUMS]);
        }
        const float all = SUMS == 1 ? sum[0] : sum[0] + sum[SUMS - 1];
        const float x = (i == column ? 1.0f : 0.0f) - (upper ? beta[i] : 1.0f) * all;
        z[i] = upper ? x : beta[i] * x;
        to[i * LB + column] = i == column ? (uint16_t)0 : to_16(x);
    }
}

} // namespace DELTA_MMA

#endif

/* Chunks of 64 tokens on tensor cores by mma.sync, for K and V up to 64: what forward and backward share.

   A block walks one value head of one sequence. Tiles of q, k, v are bf16 in shared memory as they came: norms, gates
   and beta are factors in f32 around the products. Of a chunk, with D[i,j] = e^{G[i]-G[j]} and k, q after their norms,

       A[i,j] = D[i,j] k[i].k[j], j < i;   P[i,j] = scale D[i,j] q[i].k[j], j <= i
       rest = v - e^G k S - A (beta rest);   x = beta rest

   A warp takes 16 of V's columns, all 64 tokens of them, transposed: [16, 64] and the state [16, K] lie in registers as
   the tensor cores leave them, and go back in as left operands. So the solve by blocks of 16 tokens needs no other warp:
   what is before a block comes from A, and inside it the inverse of I + A beta (f32, rounded, without its diagonal). */
#ifndef CARRY_DELTA_TILES_CUH
#define CARRY_DELTA_TILES_CUH

#include <cuda_pipeline.h>

#include "delta/cuda/rows.cuh"

/* "keys64" is compiled once more for f16 (keys_f16_*.cu). */
#ifdef CARRY_DELTA_F16
#define DELTA_TILES delta_tiles_f16
#define DELTA_KEYS delta_keys_f16
#else
#define DELTA_TILES delta_tiles
#define DELTA_KEYS delta_keys
#endif

namespace DELTA_TILES {

constexpr int C = 64, THREADS = 128, WARPS = 4;
constexpr int BLOCK = 16, BLOCKS = C / BLOCK;
constexpr int LC = C + 8, LB = BLOCK + 8, LF = BLOCK + 4; /* rows in shared memory, without bank conflicts */
constexpr double DEEPEST = -4096.0;                       /* as on the CPU (gate.c) */

__device__ __forceinline__ int warp_of() {
    return (int)threadIdx.x / 32;
}
__device__ __forceinline__ int lane_of() {
    return (int)threadIdx.x % 32;
}
/* Where element e (0 or 1) of half r of a lane is, in a [16, 8] result. */
__device__ __forceinline__ int row_in(int r) {
    return lane_of() / 4 + 8 * r;
}
__device__ __forceinline__ int column_in() {
    return lane_of() % 4 * 2;
}

#ifdef CARRY_DELTA_F16
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

/* The left operand [16, 16] at (m, k) of a tile that is stored [m][k], or [k][m]. */
template <int LD> __device__ __forceinline__ void load_left(unsigned (&a)[4], const uint16_t *tile, int m, int k) {
    const int lane = lane_of();
    load_blocks<false>(a, tile + (m + lane % 16) * LD + k + lane / 16 * 8);
}
template <int LD> __device__ __forceinline__ void load_left_t(unsigned (&a)[4], const uint16_t *tile, int m, int k) {
    const int lane = lane_of();
    load_blocks<true>(a, tile + (k + lane / 16 * 8 + lane % 8) * LD + m + lane / 8 % 2 * 8);
}

/* The right operands of two results side by side, [16, 8] each, at (k, n) of a tile that is stored [n][k], or [k][n]. */
template <int LD> __device__ __forceinline__ void load_right(unsigned (&b)[4], const uint16_t *tile, int k, int n) {
    const int lane = lane_of();
    load_blocks<false>(b, tile + (n + lane / 16 * 8 + lane % 8) * LD + k + lane / 8 % 2 * 8);
}
template <int LD> __device__ __forceinline__ void load_right_t(unsigned (&b)[4], const uint16_t *tile, int k, int n) {
    const int lane = lane_of();
    load_blocks<true>(b, tile + (k + lane / 8 % 2 * 8 + lane % 8) * LD + n + lane / 16 * 8);
}

__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifdef CARRY_DELTA_F16
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

/* Two results side by side as a left operand. */
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

/* What is made of a chunk before the state comes to it. T is the inverse of I + A beta of diagonal blocks, U that of
   I + beta A, both without the identity. norms are 1 / |k| and 1 / |q|, or 1. */
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
    return ((uintptr_t)a.data % 16 | (uintptr_t)(a.batch % 8) | (uintptr_t)(a.token % 8) | (uintptr_t)(a.head % 8)) == 0;
}

/* Asks for `count` rows of `size` from token t of the sequence on; zeros behind them. By N threads. */
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

/* g of tokens 2 l and 2 l + 1 in lane l of warp 0, beta of them in warp 1. */
struct numbers {
    unsigned bits[2];

    __device__ __forceinline__ void fetch(const carry_delta_job &job, const delta_place &place, int64_t t, int64_t head,
                                          int count) {
        const carry_delta_array &from = warp_of() == 0 ? job.g : job.beta;
        const bool mine = warp_of() == 1 || (warp_of() == 0 && job.gated);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = 2 * lane_of() + e;
            bits[e] = mine && i < count ? load_bits(from, at_of(from, place.batch, place.start + t + i, head)) : 0;
        }
    }

    __device__ void put(prepared &s, const carry_delta_job &job, int64_t head, int count) const {
        const int lane = lane_of();
        if (warp_of() == 1) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s.beta[2 * lane + e] = 2 * lane + e < count ? beta_of(job, value_of(job.beta, bits[e])) : 0.0f;
            }
        }
        if (warp_of() != 0) {
            return;
        }
        double g[2], sum;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float one = job.gated && 2 * lane + e < count ? gate_of(job, value_of(job.g, bits[e]), head) : 0.0f;
            s.g[2 * lane + e] = one;
            g[e] = (double)one < DEEPEST ? DEEPEST : (double)one;
        }
        sum = g[0] + g[1];
#pragma unroll
        for (int far = 1; far < 32; far *= 2) {
            const double before = __shfl_up_sync(WARP, sum, far);
            sum += lane >= far ? before : 0.0;
        }
        const double last = __shfl_sync(WARP, sum, 31);
        const double before = __shfl_up_sync(WARP, sum, 1);
        g[0] += lane > 0 ? before : 0.0;
        g[1] = sum;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            s.G[2 * lane + e] = g[e];
            s.fade[2 * lane + e] = expf((float)g[e]);
            s.left[2 * lane + e] = expf((float)(last - g[e]));
        }
    }
};

/* 1 / |row| of q and k, two threads a row. */
template <int D> __device__ void make_norms(prepared &s, const uint16_t *q, const uint16_t *k, bool l2norm) {
    constexpr int LD = D + 8;
    const int row = (int)threadIdx.x / 2, half = (int)threadIdx.x % 2;
#pragma unroll
    for (int which = 0; which < 2; which++) {
        const uint16_t *from = (which == 0 ? q : k) + row * LD + half * (D / 2);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < D / 2; i += 2) {
            const unsigned two = *reinterpret_cast<const unsigned *>(from + i);
            sum = fmaf(low_of(two), low_of(two), sum);
            sum = fmaf(high_of(two), high_of(two), sum);
        }
        sum += __shfl_xor_sync(WARP, sum, 1);
        if (half == 0) {
            (which == 0 ? s.q_norm : s.k_norm)[row] = l2norm ? 1.0f / sqrtf(sum + 1e-6f) : 1.0f;
        }
    }
}

/* e^{G[i]-G[j]} of tokens j <= i. */
__device__ __forceinline__ float decay_between(const prepared &s, bool gated, int i, int j) {
    return gated ? expf((float)(s.G[i] - s.G[j])) : 1.0f;
}

/* A and P of a warp's 16 tokens with all before them; rest, unless it is NULL: what rounding left of P. */
template <int D>
__device__ void make_triangles(prepared &s, const uint16_t *q, const uint16_t *k, const carry_delta_job &job,
                               uint16_t *rest) {
    constexpr int LD = D + 8;
    const int warp = warp_of();
    unsigned of_q[D / 16][4], of_k[D / 16][4];
#pragma unroll
    for (int e = 0; e < D / 16; e++) {
        load_left<LD>(of_q[e], q, 16 * warp, 16 * e);
        load_left<LD>(of_k[e], k, 16 * warp, 16 * e);
    }
    for (int p = 0; p <= warp; p++) {
        float qk[2][4], kk[2][4];
        clear<2>(qk);
        clear<2>(kk);
#pragma unroll
        for (int e = 0; e < D / 16; e++) {
            unsigned b[4];
            load_right<LD>(b, k, 16 * e, 16 * p);
            multiply_two(qk[0], qk[1], of_q[e], b);
            multiply_two(kk[0], kk[1], of_k[e], b);
        }
#pragma unroll
        for (int at = 0; at < 4; at++) {
            const int h = at / 2, r = at % 2;
            const int i = 16 * warp + row_in(r), j = 16 * p + 8 * h + column_in();
            float a[2], b[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float d = j + e <= i ? decay_between(s, job.gated, i, j + e) * s.k_norm[j + e] : 0.0f;
                a[e] = j + e < i ? d * s.k_norm[i] * kk[h][2 * r + e] : 0.0f;
                b[e] = j + e <= i ? d * job.scale * s.q_norm[i] * qk[h][2 * r + e] : 0.0f;
                if (p == warp) {
                    s.diagonal[warp][row_in(r) * LF + 8 * h + column_in() + e] = a[e];
                }
            }
            *reinterpret_cast<unsigned *>(s.A + i * LC + j) = pack(a[0], a[1]);
            const unsigned P = pack(b[0], b[1]);
            *reinterpret_cast<unsigned *>(s.P + i * LC + j) = P;
            if (rest != nullptr) {
                *reinterpret_cast<unsigned *>(rest + i * LC + j) = pack(b[0] - low_of(P), b[1] - high_of(P));
            }
        }
    }
}

/* T by the lower half of a warp, U by the upper: a lane has a column. */
__device__ __forceinline__ void invert(prepared &s) {
    const int warp = warp_of(), column = lane_of() % 16;
    const bool upper = lane_of() >= 16;
    const float *A = s.diagonal[warp];
    uint16_t *to = upper ? s.U[warp] : s.T[warp];
    float z[BLOCK];
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        const float beta = s.beta[16 * warp + i];
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int m = 0; m < i; m++) {
            sum[m % 2] = fmaf(A[i * LF + m], z[m], sum[m % 2]);
        }
        const float x = (i == column ? 1.0f : 0.0f) - (upper ? beta : 1.0f) * (sum[0] + sum[1]);
        z[i] = upper ? x : beta * x;
        to[i * LB + column] = i == column ? (uint16_t)0 : to_16(x);
    }
}

/* All of it; the tiles are there. Ends with a barrier. */
template <int D>
__device__ void prepare(prepared &s, const uint16_t *q, const uint16_t *k, const carry_delta_job &job,
                        const numbers &of, int64_t head, int count, uint16_t *rest = nullptr) {
    of.put(s, job, head, count);
    make_norms<D>(s, q, k, job.l2norm);
    __syncthreads();
    make_triangles<D>(s, q, k, job, rest);
    __syncwarp();
    invert(s);
    __syncthreads();
}

/* A warp's 16 columns of a state, transposed: [16, D]. */
template <int D>
__device__ void load_slice(float (&S)[D / 8][4], const carry_delta_job &job, const float *states, int64_t at,
                           bool transposed) {
    const float *from = states + at * job.key * job.value;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const int v = 16 * warp_of() + row_in(x / 2), k = 8 * n + column_in() + x % 2;
            S[n][x] = v < job.value && k < job.key ? from[transposed ? v * job.key + k : k * job.value + v] : 0.0f;
        }
    }
}

template <int D>
__device__ void store_slice(float *states, int64_t at, const float (&S)[D / 8][4], const carry_delta_job &job,
                            bool transposed) {
    float *to = states + at * job.key * job.value;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const int v = 16 * warp_of() + row_in(x / 2), k = 8 * n + column_in() + x % 2;
            if (v < job.value && k < job.key) {
                to[transposed ? v * job.key + k : k * job.value + v] = S[n][x];
            }
        }
    }
}

} // namespace DELTA_TILES

#endif

/* T = (I + A)^-1 and W = P T of a chunk, by one warpgroup. A (zero on and above the diagonal) and P (zero above it) are
   in registers, in the layout of sums of products; each warp has 16 rows, a band.

   D[b] is the inverse of the diagonal block of I + A in band b, computed in f32 by elimination between lanes. With
   N[b,j] = D[b] A[b,j] for the bands j before b, the rows of T follow from those of the bands before:

       T[b] = D[b] - sum over j < b of N[b,j] T[j]

   Operands of products are stored as two parts, the rounded number and its rounding error. The product of the two
   errors is left out. The rows of T pass from band to band through shared memory. */
#ifndef CARRY_DELTA_CHUNK_SOLVE_CUH
#define CARRY_DELTA_CHUNK_SOLVE_CUH

#include "delta/cuda/chunk/device.cuh"

namespace DELTA_CHUNK {

/* A warp's 16 rows of A and P, as a thread holds them. For every 8 columns there are two words, each with two adjacent
   columns: of the thread's first row, and of the row 8 below. Four words are a left operand of 16 columns. [0] is the
   rounded number and [1] its rounding error. A and P have only the columns before the band, and A_own and P_own those
   of the band itself: all bands run the same code, in which every number has its register. A_own is three blocks of
   8 x 8 (upper left, lower left, lower right), two elements for each lane. Columns that a band does not have are zero:
   a register that only some bands set would be occupied all the time. */
struct band_rows {
    float A_own[3][2];
    uint32_t A[2][12], P[2][12], P_own[2][4];
};

/* Stores x and y as two parts: [0] the rounded pair, [1] its rounding error. */
template <int N> static __device__ __forceinline__ void split(uint32_t (&to)[2][N], int at, float x, float y) {
    uint32_t rounded = pack(x, y);
    to[0][at] = rounded;
    to[1][at] = pack(x - low_half(rounded), y - high_half(rounded));
}

/* Transposes an 8 x 8 matrix of which each lane has two elements of a row. */
static __device__ __forceinline__ uint32_t turned(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* d += a b with both operands in two parts. */
static __device__ __forceinline__ void product_of_parts(float *d, const uint32_t *a, const uint32_t *a_rest,
                                                        const uint32_t *b, const uint32_t *b_rest) {
    product_of_warp(d, a, b[0], b[1]);
    product_of_warp(d, a, b_rest[0], b_rest[1]);
    product_of_warp(d, a_rest, b[0], b[1]);
}

/* Replaces the diagonal block L by (I + L)^-1. Lane 4 g + t has columns 2t and 2t + 1 of row g. */
static __device__ __forceinline__ void invert_diagonal(float (&x)[3][2], int lane) {
    int g = lane / 4, t = lane % 4, row = lane & ~3;
    float X[2] = {g == 2 * t ? 1.0f : 0.0f, g == 2 * t + 1 ? 1.0f : 0.0f}, Y[2] = {X[0], X[1]}, Z[2] = {0.0f, 0.0f};
    float m[7];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float below = __shfl_sync(0xffffffffu, x[1][j % 2], row + j / 2);
        float x0 = __shfl_sync(0xffffffffu, X[0], 4 * j + t), x1 = __shfl_sync(0xffffffffu, X[1], 4 * j + t);
        Z[0] -= below * x0;
        Z[1] -= below * x1;
        if (j < 7) {
            float by = __shfl_sync(0xffffffffu, x[0][j % 2], row + j / 2);
            float y0 = __shfl_sync(0xffffffffu, Y[0], 4 * j + t), y1 = __shfl_sync(0xffffffffu, Y[1], 4 * j + t);
            m[j] = __shfl_sync(0xffffffffu, x[2][j % 2], row + j / 2);
            if (g > j) {
                X[0] -= by * x0;
                X[1] -= by * x1;
                Y[0] -= m[j] * y0;
                Y[1] -= m[j] * y1;
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 7; j++) {
        float z0 = __shfl_sync(0xffffffffu, Z[0], 4 * j + t), z1 = __shfl_sync(0xffffffffu, Z[1], 4 * j + t);
        if (g > j) {
            Z[0] -= m[j] * z0;
            Z[1] -= m[j] * z1;
        }
    }
#pragma unroll
    for (int c = 0; c < 2; c++) {
        x[0][c] = X[c];
        x[1][c] = Z[c];
        x[2][c] = Y[c];
    }
}

/* Replaces A by -N = -D A. */
static __device__ __forceinline__ void apply_diagonal(band_rows &m, int band) {
    uint32_t D[2][4];
    split(D, 0, m.A_own[0][0], m.A_own[0][1]);
    split(D, 1, m.A_own[1][0], m.A_own[1][1]);
    D[0][2] = D[1][2] = 0;
    split(D, 3, m.A_own[2][0], m.A_own[2][1]);
#pragma unroll
    for (int j = 0; j < 3; j++) {
        if (j < band) {
#pragma unroll
            for (int i = 2 * j; i < 2 * j + 2; i++) {
                uint32_t b[2] = {turned(m.A[0][2 * i]), turned(m.A[0][2 * i + 1])};
                uint32_t rest[2] = {turned(m.A[1][2 * i]), turned(m.A[1][2 * i + 1])};
                float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                product_of_parts(sum, D[0], D[1], b, rest);
                split(m.A, 2 * i, -sum[0], -sum[1]);
                split(m.A, 2 * i + 1, -sum[2], -sum[3]);
            }
        }
    }
}

/* Offsets from T: of W, and of the right half of a row. */
template <int W_, int RIGHT_> struct solve_layout { static constexpr int W = W_, RIGHT = RIGHT_; };

/* The addresses at which a lane loads and stores rows of T or W, for 16 rows and 16 columns at a time. rest: offset of
   T's rounding error from T. */
template <typename Layout> struct band_place {
    uint32_t even, odd, rest; /* of columns 0 to 15 and 16 to 31 */
    __device__ __forceinline__ band_place(uint32_t tile, uint32_t rest_of, int lane) {
        rest = rest_of - tile;
        even = kept_part(tile, (lane & 8) + lane % 8, lane / 16);
        odd = even ^ 32;
    }
    /* Of the rows of band j and the columns of band i. */
    __device__ __forceinline__ uint32_t at(int j, int i) const {
        return (i % 2 == 0 ? even : odd) + (uint32_t)(1024 * j + (i < 2 ? 0 : Layout::RIGHT));
    }
};

/* 16 rows of T or W, in the layout of sums: the columns before the band, and its own. */
struct band_sums {
    float before[6][4], own[2][4];
};

/* sums (16 columns) += a left operand of 16 columns, times the block of T at `from`. */
static __device__ __forceinline__ void times_block(float (*sums)[4], const uint32_t *left, const uint32_t *left_rest,
                                                   uint32_t from, uint32_t rest) {
    uint32_t b[4], b_rest[4];
    load_matrices_across(b, from);
    load_matrices_across(b_rest, from + rest);
    product_of_parts(sums[0], left, left_rest, b, b_rest);
    product_of_parts(sums[1], left, left_rest, b + 2, b_rest + 2);
}

/* The same for rows 16 j to 16 j + 15 of T, with j before the band. */
template <typename Layout>
static __device__ __forceinline__ void times_band(band_sums &sums, const uint32_t *left, const uint32_t *left_rest,
                                                  const band_place<Layout> &T, int j) {
#pragma unroll
    for (int i = 0; i <= j; i++) {
        times_block(sums.before + 2 * i, left, left_rest, T.at(j, i), T.rest);
    }
}

/* Stores 16 rows and 16 columns of T or W, multiplied by `by` (for both rows of a thread); if `rest` is not 0, also
   their rounding errors, `rest` bytes after them. */
static __device__ __forceinline__ void store_block(const float (*sums)[4], const float (&by)[2], uint32_t to,
                                                   uint32_t rest) {
    uint32_t parts[2][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        split(parts, i, by[i % 2] * sums[i / 2][i % 2 * 2], by[i % 2] * sums[i / 2][i % 2 * 2 + 1]);
    }
    store_matrices(to, parts[0][0], parts[0][1], parts[0][2], parts[0][3]);
    if (rest != 0) {
        store_matrices(to + rest, parts[1][0], parts[1][1], parts[1][2], parts[1][3]);
    }
}

/* Stores the band's rows, `offset` bytes after T. Columns after the band become zero. */
template <bool RESTS, typename Layout>
static __device__ __forceinline__ void store_band(const band_sums &sums, const float (&by)[2],
                                                  const band_place<Layout> &T, uint32_t offset, int band) {
    uint32_t rest = RESTS ? T.rest : 0;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        if (i < band) {
            store_block(sums.before + 2 * i, by, T.at(band, i) + offset, rest);
        }
    }
    store_block(sums.own, by, T.at(band, band) + offset, rest);
    if (band % 2 == 0) {
        uint32_t to = T.at(band, band + 1) + offset;
        store_matrices(to, 0, 0, 0, 0);
        if (RESTS) {
            store_matrices(to + rest, 0, 0, 0, 0);
        }
    }
}

/* Inverts the diagonal block and applies it to the columns before the band. */
static __device__ __forceinline__ void begin_band(band_rows &m, int band, int lane) {
    invert_diagonal(m.A_own, lane);
    apply_diagonal(m, band);
}

/* Computes the band's rows of T and of T's rounding error, and stores them in shared memory. Barrier first + 1 + j of
   the thread block signals that the rows of band j are stored. */
template <typename Layout>
static __device__ __forceinline__ void solve_band(const band_rows &m, const band_place<Layout> &T, int first,
                                                  int band) {
    band_sums sums = {};
#pragma unroll
    for (int c = 0; c < 2; c++) {
        sums.own[0][c] = m.A_own[0][c];
        sums.own[0][2 + c] = m.A_own[1][c];
        sums.own[1][2 + c] = m.A_own[2][c];
    }
#pragma unroll
    for (int j = 0; j < 3; j++) {
        if (j < band) {
            hopper::group_meet(first + 1 + j, 32 * (4 - j));
            times_band(sums, &m.A[0][4 * j], &m.A[1][4 * j], T, j);
        }
    }
    store_band<true>(sums, {1.0f, 1.0f}, T, 0, band);
    __syncwarp();
    if (band < 3) {
        hopper::group_tell(first + 1 + band, 32 * (4 - band));
    }
}

/* Computes the band's rows of W, multiplied by `by` (for both rows of a thread), in shared memory. */
template <typename Layout>
static __device__ __forceinline__ void apply_scores(const band_rows &m, const band_place<Layout> &T,
                                                    const float (&by)[2], int band) {
    band_sums sums = {};
#pragma unroll
    for (int j = 0; j < 3; j++) {
        if (j < band) {
            times_band(sums, &m.P[0][4 * j], &m.P[1][4 * j], T, j);
            times_block(sums.before + 2 * j, m.P_own[0], m.P_own[1], T.at(band, j), T.rest);
        }
    }
    times_block(sums.own, m.P_own[0], m.P_own[1], T.at(band, band), T.rest);
    store_band<false>(sums, by, T, Layout::W, band);
}

} // namespace DELTA_CHUNK

#endif

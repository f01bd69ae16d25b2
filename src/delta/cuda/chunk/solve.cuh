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
   rounded number and [1] its rounding error. A has only the columns before the band; `diagonal` has A's block on the
   diagonal as three blocks of 8 x 8 (upper left, lower left, lower right), two elements for each lane. */
struct band_rows {
    float diagonal[3][2];
    uint32_t A[2][12], P[2][16];
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
template <int BAND_OF> static __device__ __forceinline__ void apply_diagonal(band_rows &m) {
    uint32_t D[2][4];
    split(D, 0, m.diagonal[0][0], m.diagonal[0][1]);
    split(D, 1, m.diagonal[1][0], m.diagonal[1][1]);
    D[0][2] = D[1][2] = 0;
    split(D, 3, m.diagonal[2][0], m.diagonal[2][1]);
#pragma unroll
    for (int i = 0; i < 6; i++) {
        if (i / 2 < BAND_OF) {
            uint32_t b[2] = {turned(m.A[0][2 * i]), turned(m.A[0][2 * i + 1])};
            uint32_t rest[2] = {turned(m.A[1][2 * i]), turned(m.A[1][2 * i + 1])};
            float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            product_of_parts(sum, D[0], D[1], b, rest);
            split(m.A, 2 * i, -sum[0], -sum[1]);
            split(m.A, 2 * i + 1, -sum[2], -sum[3]);
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
    /* Of the rows of band j and columns 8 i to 8 i + 15. */
    __device__ __forceinline__ uint32_t at(int j, int i) const {
        return (i % 4 == 0 ? even : odd) + (uint32_t)(1024 * j + (i < 4 ? 0 : Layout::RIGHT));
    }
};

/* Adds the product of a left operand of 16 columns with rows 16 j to 16 j + 15 of T to `sums`, 8 columns each. */
template <typename Layout>
static __device__ __forceinline__ void times_band(float (&sums)[8][4], const uint32_t *left, const uint32_t *left_rest,
                                                  const band_place<Layout> &T, int j) {
#pragma unroll
    for (int i = 0; i <= 2 * j; i += 2) {
        uint32_t b[4], b_rest[4];
        load_matrices_across(b, T.at(j, i));
        load_matrices_across(b_rest, T.at(j, i) + T.rest);
        product_of_parts(sums[i], left, left_rest, b, b_rest);
        product_of_parts(sums[i + 1], left, left_rest, b + 2, b_rest + 2);
    }
}

/* Stores 16 rows of T or W, `offset` bytes after T. `parts` holds pairs of columns as in band_rows. Columns after the
   band become zero. */
template <int BAND_OF, typename Layout>
static __device__ __forceinline__ void store_band(const band_place<Layout> &T, uint32_t offset,
                                                  const uint32_t (&parts)[16]) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        if (i < 4 || BAND_OF > 1) {
            bool there = i / 2 <= BAND_OF;
            store_matrices(T.at(BAND_OF, i) + offset, there ? parts[2 * i] : 0, there ? parts[2 * i + 1] : 0,
                           there ? parts[2 * i + 2] : 0, there ? parts[2 * i + 3] : 0);
        }
    }
}

/* Inverts the diagonal block and applies it to the columns before the band. */
template <int BAND_OF> static __device__ __forceinline__ void begin_band(band_rows &m, int lane) {
    invert_diagonal(m.diagonal, lane);
    apply_diagonal<BAND_OF>(m);
}

/* Computes the band's rows of T and of T's rounding error, and stores them in shared memory. Barrier first + 1 + j of
   the thread block signals that the rows of band j are stored. */
template <int BAND_OF, typename Layout>
static __device__ __forceinline__ void solve_band(band_rows &m, const band_place<Layout> &T, int first) {
    float sums[8][4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        bool own = i / 2 == BAND_OF;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            sums[i][c] = own && i % 2 == 0 ? m.diagonal[0][c] : 0.0f;
            sums[i][2 + c] = own ? m.diagonal[1 + i % 2][c] : 0.0f;
        }
    }
#pragma unroll
    for (int j = 0; j < BAND_OF; j++) {
        hopper::group_meet(first + 1 + j, 32 * (4 - j));
        times_band(sums, &m.A[0][4 * j], &m.A[1][4 * j], T, j);
    }
    uint32_t parts[2][16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        split(parts, i, sums[i / 2][i % 2 * 2], sums[i / 2][i % 2 * 2 + 1]);
    }
    store_band<BAND_OF>(T, 0, parts[0]);
    store_band<BAND_OF>(T, T.rest, parts[1]);
    __syncwarp();
    if (BAND_OF < 3) {
        hopper::group_tell(first + 1 + BAND_OF, 32 * (4 - BAND_OF));
    }
}

/* Computes the band's rows of W, multiplied by `by` (for both rows of a thread), in shared memory. */
template <int BAND_OF, typename Layout>
static __device__ __forceinline__ void apply_scores(const band_rows &m, const band_place<Layout> &T,
                                                    const float (&by)[2]) {
    float sums[8][4] = {};
    uint32_t parts[16];
#pragma unroll
    for (int j = 0; j <= BAND_OF; j++) {
        times_band(sums, &m.P[0][4 * j], &m.P[1][4 * j], T, j);
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        parts[i] = pack(by[i % 2] * sums[i / 2][i % 2 * 2], by[i % 2] * sums[i / 2][i % 2 * 2 + 1]);
    }
    store_band<BAND_OF>(T, Layout::W, parts);
}

} // namespace DELTA_CHUNK

#endif

/* T = (I + A)^-1 and W = P T of a chunk, by one warpgroup. A (zero on and above the diagonal) and P (zero above it) are
   in registers, in the layout of sums of products; each warp has 16 rows, a band.

   D[b] is the inverse of the diagonal block of I + A in band b, computed in f32 by elimination between lanes. With
   N[b,j] = -D[b] A[b,j] for the bands j before b, I + A = D^-1 (I - N), so T = U D with U = (I - N)^-1, whose rows a
   warp finds from its own N, and from the N of bands 1 and 2, from the last column to the first:

       U[b,j] = N[b,j] + sum over i from j + 1 to b - 1 of U[b,i] N[i,j]

   So bands wait for each other twice: for N and D, and for T before W is computed. Operands of products are stored as
   two parts, the rounded number and its rounding error. The product of the two errors is left out. */
#ifndef CARRY_DELTA_CHUNK_SOLVE_CUH
#define CARRY_DELTA_CHUNK_SOLVE_CUH

#include "delta/cuda/chunk/device.cuh"

namespace DELTA_CHUNK {

/* A warp's 16 rows of A and P, as a thread holds them. For every 8 columns there are two words, each with two adjacent
   columns: of the thread's first row, and of the row 8 below. Four words are a left operand of 16 columns. A: [0] is the
   rounded number and [1] its rounding error, of the columns before the band; its own columns are A_own, three blocks of
   8 x 8 (upper left, lower left, lower right), two elements for each lane. P: for every 16 columns four rounded words
   and the four of their errors. All bands run the same code, in which every number has its register. Columns that a band
   does not have are zero: a register that only some bands set would be occupied all the time. */
struct band_rows {
    float A_own[3][2];
    uint32_t A[2][12], P[32];
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

/* Replaces A by N = -D A, and stores D as a left operand. */
static __device__ __forceinline__ void apply_diagonal(band_rows &m, uint32_t (&D)[2][4], int band) {
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
using kept_layout = solve_layout<KEPT, HALF - QUARTER>; /* as in the workspace */

/* The addresses at which a lane loads and stores rows of T or W, for 16 rows and 16 columns at a time. rest: offset of
   T's rounding error from T. */
template <typename Layout> struct band_place {
    uint32_t tile, even, odd, rest; /* even, odd: of columns 0 to 15 and 16 to 31 */
    __device__ __forceinline__ band_place(uint32_t tile_, uint32_t rest_of, int lane) {
        tile = tile_;
        rest = rest_of - tile;
        even = kept_part(tile, (lane & 8) + lane % 8, lane / 16);
        odd = even ^ 32;
    }
    /* Of the rows of band j and the columns of band i. */
    __device__ __forceinline__ uint32_t at(int j, int i) const {
        return (i % 2 == 0 ? even : odd) + (uint32_t)(1024 * j + (i < 2 ? 0 : Layout::RIGHT));
    }
    /* The address of a shared block for this lane: D[j], or N[b,j] of b = 1 and 2. Until W is stored, they are in its
       place: a block of 16 x 16 has 512 bytes, and then its rounding error. */
    __device__ __forceinline__ uint32_t shared_block(int i, int lane) const {
        return tile + (uint32_t)(Layout::W + (i < 4 ? 1024 * i : Layout::RIGHT + 1024 * (i - 2)) + 16 * lane);
    }
    __device__ __forceinline__ uint32_t block_of_D(int j, int lane) const {
        return shared_block(3 + j, lane);
    }
    __device__ __forceinline__ uint32_t block_of_N(int b, int j, int lane) const {
        return shared_block(b - 1 + j, lane);
    }
};
constexpr int BLOCK_REST = 512;

static __device__ __forceinline__ void store_block(uint32_t to, const uint32_t *left, const uint32_t *left_rest) {
    store_matrices(to, left[0], left[1], left[2], left[3]);
    store_matrices(to + BLOCK_REST, left_rest[0], left_rest[1], left_rest[2], left_rest[3]);
}

/* sums (16 columns) += a left operand of 16 columns, times the shared block at `from`. */
static __device__ __forceinline__ void times_block(float (*sums)[4], const uint32_t *left, const uint32_t *left_rest,
                                                   uint32_t from) {
    uint32_t b[4], b_rest[4];
    load_matrices_across(b, from);
    load_matrices_across(b_rest, from + BLOCK_REST);
    product_of_parts(sums[0], left, left_rest, b, b_rest);
    product_of_parts(sums[1], left, left_rest, b + 2, b_rest + 2);
}

/* Between a left operand of 16 columns in two parts and its sum of both in f32. */
static __device__ __forceinline__ void join_parts(float (&to)[2][4], const uint32_t *left, const uint32_t *left_rest) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[i / 2][i % 2 * 2] = low_half(left[i]) + low_half(left_rest[i]);
        to[i / 2][i % 2 * 2 + 1] = high_half(left[i]) + high_half(left_rest[i]);
    }
}
static __device__ __forceinline__ void split_block(uint32_t (&to)[2][4], const float (&from)[2][4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        split(to, i, from[i / 2][i % 2 * 2], from[i / 2][i % 2 * 2 + 1]);
    }
}

/* Stores 16 columns of the band's rows of T and of T's rounding error. */
template <typename Layout>
static __device__ __forceinline__ void store_columns(const band_place<Layout> &T, const uint32_t (&parts)[2][4],
                                                     int band, int i) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
        store_matrices(T.at(band, i) + (p == 0 ? 0 : T.rest), parts[p][0], parts[p][1], parts[p][2], parts[p][3]);
    }
}

/* Computes the band's rows of T and of T's rounding error, and stores them in shared memory. The warpgroup's barriers
   first + 1 and first + 2 are used. When it returns, all of T is there for products. */
template <typename Layout>
static __device__ __forceinline__ void solve_band(band_rows &m, const band_place<Layout> &T, int first, int band,
                                                  int lane) {
    uint32_t D[2][4], U[2][4];
    float sums[2][4];
    invert_diagonal(m.A_own, lane);
    apply_diagonal(m, D, band);
    if (band < 3) {
        store_block(T.block_of_D(band, lane), D[0], D[1]);
    }
    if (band == 1 || band == 2) {
        store_block(T.block_of_N(band, 0, lane), m.A[0], m.A[1]);
    }
    if (band == 2) {
        store_block(T.block_of_N(2, 1, lane), m.A[0] + 4, m.A[1] + 4);
    }
    __syncwarp();
    if (band == 0) {
        hopper::group_tell(first + 1, 128);
    } else {
        hopper::group_meet(first + 1, 128);
    }
    store_columns(T, D, band, band);
    if (band > 2) {
        float product[2][4] = {};
        times_block(product, m.A[0] + 8, m.A[1] + 8, T.block_of_D(2, lane));
        split_block(U, product);
        store_columns(T, U, band, 2);
    }
    if (band > 1) {
        float product[2][4] = {};
        join_parts(sums, m.A[0] + 4, m.A[1] + 4);
        if (band > 2) {
            times_block(sums, m.A[0] + 8, m.A[1] + 8, T.block_of_N(2, 1, lane));
        }
        split_block(U, sums);
        times_block(product, U[0], U[1], T.block_of_D(1, lane));
        join_parts(sums, m.A[0], m.A[1]);
        if (band > 2) {
            times_block(sums, m.A[0] + 8, m.A[1] + 8, T.block_of_N(2, 0, lane));
        }
        times_block(sums, U[0], U[1], T.block_of_N(1, 0, lane));
        split_block(U, product);
        store_columns(T, U, band, 1);
    } else {
        join_parts(sums, m.A[0], m.A[1]);
    }
    if (band > 0) {
        float product[2][4] = {};
        split_block(U, sums);
        times_block(product, U[0], U[1], T.block_of_D(0, lane));
        split_block(U, product);
        store_columns(T, U, band, 0);
    }
    if (band % 2 == 0) { /* columns after the band are zero */
        const uint32_t none[2][4] = {};
        store_columns(T, none, band, band + 1);
    }
    hopper::fence_async();
    hopper::group_meet(first + 2, 128);
}

/* Adds a b to the first 32 columns of d. */
static __device__ __forceinline__ void add_left_half(float (&d)[32], const uint32_t *a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32" HOPPER_K16
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, "
                 "1, 1, 1, 1;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* W = P T. P is in the layout of band_rows; of T, the first 32 rows have 32 columns, and the right half of the others is
   RIGHT bytes after the left one; `rest` is the rounding error of T. */
template <int RIGHT>
static __device__ __forceinline__ void apply_inverse(float (&W)[32], const uint32_t (&P)[32], uint32_t T,
                                                     uint32_t rest) {
    hopper::products_begin();
#pragma unroll
    /* For every 16 rows of T three products: both parts of P with T, and the first with `rest`. */
    for (int i = 11; i >= 0; i--) {
        const uint32_t *left = P + 4 * (i / 3 * 2 + i % 3 % 2);
        uint64_t rows = describe_half((i % 3 == 2 ? rest : T) + i / 3 * 1024, RIGHT);
        if (i < 6) {
            add_left_half(W, left, rows);
        } else {
            hopper::product_right(W, left, rows, i < 11);
        }
    }
    hopper::products_commit();
    hopper::products_wait<0>();
    hopper::keep_below(W);
}

/* Stores the band's rows of W, multiplied by `by` (for both rows of a thread), with zeros above the diagonal. */
template <typename Layout>
static __device__ __forceinline__ void store_weights(const band_place<Layout> &T, const float (&W)[32],
                                                     const float (&by)[2], int band, int lane) {
    int row = 16 * band + lane / 4;
    uint32_t packed[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int column = i / 2 * 8 + lane % 4 * 2, at = row + i % 2 * 8;
        packed[i] = pack(column <= at ? by[i % 2] * W[2 * i] : 0.0f, column < at ? by[i % 2] * W[2 * i + 1] : 0.0f);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i < 2 || band > 1) {
            store_matrices(T.at(band, i) + Layout::W, packed[4 * i], packed[4 * i + 1], packed[4 * i + 2],
                           packed[4 * i + 3]);
        }
    }
}

} // namespace DELTA_CHUNK

#endif

/* Products in f32: tiles of 4 x 4 results in the registers of a thread. */
#ifndef CARRY_SCAN_DENSE_TILES_CUH
#define CARRY_SCAN_DENSE_TILES_CUH

#include "scan/cuda/dense.cuh"

namespace dense {

template <typename E, int SIZE> struct slot {
    static constexpr int PAD = 16 / (int)sizeof(E); /* rows 16 bytes apart modulo 128: no two share a bank */
    static constexpr int ROW = SIZE + PAD;
    static constexpr int ELEMENTS = SIZE * ROW;
};

/* c += a b for the rows and columns of one thread, in f32, in the order of k. Rows are `apart` from each other, columns
   are groups of four, `across` from each other. With ACROSS, a is stored with k as rows, and the thread's rows are
   adjacent. Four k at a time: 8 loads of 16 bytes for 64 multiply-adds where the thread has 4 x 4 results. */
template <int EACH, bool ACROSS>
__device__ inline void multiply_tile(float (&c)[EACH][EACH], const float *a, int a_next, int apart, const float *b,
                                     int b_next, int across, int count) {
    static_assert(EACH % 4 == 0, "");
#pragma unroll 1
    for (int k = 0; k < count; k += 4) {
        float left[EACH][4]; /* [row][k], or with ACROSS [k][row] */
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float *from = ACROSS ? a + (k + i % 4) * a_next + i / 4 * 4 : a + i * apart * a_next + k;
            *(float4 *)left[i] = *(const float4 *)from;
        }
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            float right[EACH];
#pragma unroll
            for (int j = 0; j < EACH; j += 4) {
                *(float4 *)&right[j] = *(const float4 *)(b + (k + kk) * b_next + j / 4 * across);
            }
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                float x = ACROSS ? left[kk][i] : left[i][kk];
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    c[i][j] = fmaf(x, right[j], c[i][j]);
                }
            }
        }
    }
}

/* The product of two slots, in the registers of the block's threads. dense_block.cuh has it for 16-bit types. */
template <typename E, int SIZE> struct product;

/* f32 uses plain multiply-adds, since an accuracy of 1e-5 is required. SIDE x SIDE threads have EACH rows, SIDE apart,
   and EACH columns. */
template <int SIZE> struct product<float, SIZE> {
    static constexpr int ROW = slot<float, SIZE>::ROW;
    static constexpr int EACH = SIZE == 128 ? 8 : SIZE == 16 ? 1 : 4;
    static constexpr int SIDE = SIZE / EACH, USED = SIDE * SIDE;
    static_assert(USED <= THREADS, "");
    float c[EACH][EACH] = {};

    __device__ void multiply(const float *left, const float *right) {
        if (threadIdx.x >= USED) {
            return;
        }
        const float *a = left + (int)threadIdx.x / SIDE * ROW;
        const float *b = right + (int)threadIdx.x % SIDE * (EACH == 1 ? 1 : 4);
        if constexpr (EACH == 1) {
#pragma unroll 4
            for (int k = 0; k < SIZE; k++) {
                c[0][0] = fmaf(a[k], b[k * ROW], c[0][0]);
            }
        } else {
            multiply_tile<EACH, false>(c, a, ROW, SIDE, b, ROW, 4 * SIDE, SIZE);
        }
    }

    __device__ void write(float *to) const {
        if (threadIdx.x >= USED) {
            return;
        }
        float *corner = to + (int)threadIdx.x / SIDE * ROW + (int)threadIdx.x % SIDE * (EACH == 1 ? 1 : 4);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if constexpr (EACH == 1) {
                corner[0] = c[0][0];
            } else {
#pragma unroll
                for (int j = 0; j < EACH; j += 4) {
                    *(float4 *)(corner + i * SIDE * ROW + j * SIDE) = *(const float4 *)&c[i][j];
                }
            }
        }
    }
};

/* y = base + A x in f32 for states of 4 r rows and 4 c columns. A thread has 4 x 4 results. Threads that multiply
   transitions at the same time (product::USED) come last. */
template <int SIZE>
__device__ void apply_tiles(float *y, const float *base, const float *A, bool transposed, const float *x, int n,
                            int w) {
    constexpr int ROW = slot<float, SIZE>::ROW;
    constexpr int USED = product<float, SIZE>::USED;
    constexpr int FIRST = USED < THREADS ? THREADS - USED : 0;
    const int down = n / 4, across = w / 4;
    for (int i = ((int)threadIdx.x + FIRST) % THREADS; i < down * across; i += THREADS) {
        int row = i / across, column = (i - row * across) * 4;
        float sum[4][4] = {};
        if (transposed) {
            multiply_tile<4, true>(sum, A + 4 * row, ROW, 0, x + column, w, 0, n);
        } else {
            multiply_tile<4, false>(sum, A + row * ROW, ROW, down, x + column, w, 0, n);
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int at = (transposed ? 4 * row + r : row + r * down) * w + column;
            float4 old = *(const float4 *)(base + at);
            *(float4 *)(y + at) =
                make_float4(old.x + sum[r][0], old.y + sum[r][1], old.z + sum[r][2], old.w + sum[r][3]);
        }
    }
}

/* combine in f32 for two elements at once, of 32 x 32 transitions and states of 32 columns: 64 threads for each of the
   four products. The second element may be the earlier operand of the first: nothing is written before all is read. */
struct pair_of_elements {
    static constexpr int SIZE = 32, ROW = slot<float, SIZE>::ROW, ELEMENTS = slot<float, SIZE>::ELEMENTS;
    float c[4][4];

    __device__ static bool fits(const params &p) {
        return p.n == SIZE && p.width == SIZE;
    }

    /* Element `i` absorbs element i - reach, element i - 1 absorbs i - 1 - reach if there is `second`. */
    __device__ void combine(const params &p, float *slots, float *values, int64_t i, int64_t reach, bool second) {
        const int part = (int)threadIdx.x / 64, at = (int)threadIdx.x % 64, row = at / 8, column = at % 8 * 4;
        const int64_t mine = i - part / 2;
        const bool takes_part = part < 2 || second, applies = part % 2 == 1;
        float *later = slots + mine * ELEMENTS, *y = values + mine * (SIZE * SIZE);
        const float *earlier = later - reach * ELEMENTS, *x = y - reach * (SIZE * SIZE);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            c[r][0] = c[r][1] = c[r][2] = c[r][3] = 0.0f;
        }
        if (takes_part && applies && p.transposed) {
            multiply_tile<4, true>(c, later + 4 * row, ROW, 0, x + column, SIZE, 0, SIZE);
        } else if (takes_part) {
            const float *left = !applies && p.transposed ? earlier : later;
            const float *right = applies ? x : p.transposed ? later : earlier;
            multiply_tile<4, false>(c, left + row * ROW, ROW, 8, right + column, applies ? SIZE : ROW, 0, SIZE);
        }
        __syncthreads();
        if (takes_part) {
            write(p, applies ? y : later, applies, row, column);
        }
        __syncthreads();
    }

    __device__ void write(const params &p, float *to, bool applies, int row, int column) const {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float *place = to + (applies && p.transposed ? 4 * row + r : row + 8 * r) * (applies ? SIZE : ROW) + column;
            float4 sum = make_float4(c[r][0], c[r][1], c[r][2], c[r][3]);
            if (applies) {
                float4 old = *(const float4 *)place;
                sum = make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w);
            }
            *(float4 *)place = sum;
        }
    }
};

} // namespace dense

#endif

/* The inverse of I + A. Blocks of 16 are inverted by forward substitution, one column for each thread. Products in
   tf32, -X11 A10 X00, then combine them into blocks of 32 and of 64. */
#ifndef CARRY_DELTA_CHUNK_INVERSE_CUH
#define CARRY_DELTA_CHUNK_INVERSE_CUH

#include "delta/cuda/chunk/device.cuh"

namespace DELTA_CHUNK {

constexpr int ROW = 68;                /* floats in a row of a triangle, with padding */
constexpr int TRIANGLE = C * ROW + 16; /* floats for one value head */

/* Computes column `column` of the inverse of I + a. It overwrites a once all threads of the warp have read it. */
static __device__ __forceinline__ void invert_block(float *a, int column) {
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            float4 w = *(const float4 *)(a + i * ROW + j);
            sum -= w.x * x[j];
            if (j + 1 < i) {
                sum -= w.y * x[j + 1];
            }
            if (j + 2 < i) {
                sum -= w.z * x[j + 2];
            }
            if (j + 3 < i) {
                sum -= w.w * x[j + 3];
            }
        }
        x[i] = sum;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i++) {
        a[i * ROW + column] = x[i];
    }
}

static __device__ __forceinline__ uint32_t tf32(float x) {
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ void product_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* z = left middle right. left has 16 rows, the others are square, all have 8 N columns. The sums of the first product
   are used as the left operand of the second without moving them between lanes: columns 2t and 2t + 1 are where t and t
   + 4 are expected, and the rows of `right` are permuted in the same way. */
template <int N>
static __device__ __forceinline__ void triple(float (&z)[N][4], const float *left, const float *middle,
                                              const float *right, int lane) {
    float y[N][4] = {};
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int k = 0; k < N; k++) {
        uint32_t a[4] = {tf32(left[g * ROW + 8 * k + t]), tf32(left[(g + 8) * ROW + 8 * k + t]),
                         tf32(left[g * ROW + 8 * k + t + 4]), tf32(left[(g + 8) * ROW + 8 * k + t + 4])};
#pragma unroll
        for (int n = 0; n < N; n++) {
            product_tf32(y[n], a, tf32(middle[(8 * k + t) * ROW + 8 * n + g]),
                         tf32(middle[(8 * k + t + 4) * ROW + 8 * n + g]));
        }
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        uint32_t a[4] = {tf32(y[k][0]), tf32(y[k][2]), tf32(y[k][1]), tf32(y[k][3])};
#pragma unroll
        for (int n = 0; n < N; n++) {
            product_tf32(z[n], a, tf32(right[(8 * k + 2 * t) * ROW + 8 * n + g]),
                         tf32(right[(8 * k + 2 * t + 1) * ROW + 8 * n + g]));
        }
    }
}

template <int N> static __device__ __forceinline__ void store_negative(float *to, const float (&z)[N][4], int lane) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        float *at = to + lane / 4 * ROW + 8 * n + lane % 4 * 2;
        *(float2 *)at = {-z[n][0], -z[n][1]};
        *(float2 *)(at + 8 * ROW) = {-z[n][2], -z[n][3]};
    }
}

} // namespace DELTA_CHUNK

#endif

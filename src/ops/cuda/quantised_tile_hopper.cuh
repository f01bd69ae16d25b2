/* Parts of the kernels that multiply a few sequences with quantised matrices in tiles: formats, decoding to f16,
   multiplying on tensor cores, loading x and storing results. */
#ifndef CARRY_OPS_CUDA_QUANTISED_TILE_HOPPER_CUH
#define CARRY_OPS_CUDA_QUANTISED_TILE_HOPPER_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "ops/cuda/quantised_forms.cuh"

extern "C" {
#include "ops/quantised/tile_product.h"
}

namespace quantised {

constexpr float X_SCALE = 1.0f / 16.0f, X_MOST = 65504.0f;

static __device__ __forceinline__ void let_next_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

static __device__ __forceinline__ void await_previous() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

static __device__ __forceinline__ void multiply(float (&c)[4], const __half2 (&a)[4], unsigned b0, unsigned b1) {
    const unsigned *w = (const unsigned *)a;
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ __half2 half2_of(unsigned bits) {
    return *(const __half2 *)&bits;
}

/* Four codes of 8 bits. */
template <class F> static __device__ __forceinline__ void decode_8(__half2 &low, __half2 &high, unsigned word) {
    if constexpr (F::FLOATS) {
        unsigned a, b;
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
            : "=r"(a), "=r"(b)
            : "r"(word));
        low = half2_of(a);
        high = half2_of(b);
    } else { /* 0x6400 is 1024, and its last bit 1 */
        const __half2 middle = half2_of(0x64806480u);
        low = __hsub2(half2_of(__byte_perm(word, 0x64646464u, 0x4140)), middle);
        high = __hsub2(half2_of(__byte_perm(word, 0x64646464u, 0x4342)), middle);
    }
}

/* Eight codes of 4 bits. */
static __device__ __forceinline__ void decode_4(__half2 (&to)[4], unsigned word) {
    const __half2 middle = half2_of(0x64086408u);                                  /* 1024 + 8 */
    const __half2 sixteenth = half2_of(0x2c002c00u), less = half2_of(0xd480d480u); /* 1 / 16; -72 */
    const unsigned shifted = word >> 8;
    to[0] = __hsub2(half2_of((word & 0x000f000fu) | 0x64006400u), middle);
    to[1] = __hfma2(half2_of((word & 0x00f000f0u) | 0x64006400u), sixteenth, less);
    to[2] = __hsub2(half2_of((shifted & 0x000f000fu) | 0x64006400u), middle);
    to[3] = __hfma2(half2_of((shifted & 0x00f000f0u) | 0x64006400u), sixteenth, less);
}

/* Decodes a lane's weights of 32 columns for two multiplications of 16 columns each. 16 bytes of 4-bit codes have 64
   columns; half: 0 for the first 32, 1 for the second. */
template <class F> static __device__ __forceinline__ void decode(__half2 (&a)[2][4], const uint4 &w, int half) {
    if constexpr (F::BITS == 8) {
        decode_8<F>(a[0][0], a[0][2], w.x);
        decode_8<F>(a[0][1], a[0][3], w.y);
        decode_8<F>(a[1][0], a[1][2], w.z);
        decode_8<F>(a[1][1], a[1][3], w.w);
    } else {
        __half2 first[4], second[4];
        decode_4(first, half == 0 ? w.x : w.z);
        decode_4(second, half == 0 ? w.y : w.w);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            a[s][0] = first[2 * s];
            a[s][2] = first[2 * s + 1];
            a[s][1] = second[2 * s];
            a[s][3] = second[2 * s + 1];
        }
    }
}

/* Scales of fewer than 64 columns; half: 32 of 64 columns. */
template <class F>
static __device__ __forceinline__ void scale(__half2 (&a)[2][4], const unsigned (&words)[F::SCALE_WORDS], int half) {
    const __half2 by = half2_of(words[F::MINIMUM ? 2 * half : half]);
    const __half2 first = __low2half2(by), second = __high2half2(by);
    if constexpr (F::MINIMUM) {
        const __half2 less = __hneg2(half2_of(words[2 * half + 1]));
        const __half2 first_less = __low2half2(less), second_less = __high2half2(less);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            __half2 &w = a[i / 4][i % 4];
            w = i % 2 == 0 ? __hfma2(w, first, first_less) : __hfma2(w, second, second_less);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            a[i / 4][i % 4] = __hmul2(a[i / 4][i % 4], i % 2 == 0 ? first : second);
        }
    }
}

/* Loads eight columns of x from `column` on; columns past the end are 0. */
static __device__ __forceinline__ void take_x(float (&to)[8], const carry_tile_product &p, int sequence, int column) {
    const int64_t at = sequence * p.x_stride + column;
    const bool is_whole = column + 8 <= p.columns && p.x_is_aligned;
    if (is_whole && !p.x_is_wide) {
        const uint4 in = __ldcg((const uint4 *)((const __nv_bfloat16 *)p.x + at));
        const unsigned words[4] = {in.x, in.y, in.z, in.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[2 * i] = __uint_as_float(words[i] << 16);
            to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    } else if (is_whole) {
        *(float4 *)to = __ldcg((const float4 *)((const float *)p.x + at));
        *(float4 *)(to + 4) = __ldcg((const float4 *)((const float *)p.x + at) + 1);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            to[i] = column + i >= p.columns ? 0.0f
                    : p.x_is_wide           ? __ldcg((const float *)p.x + at + i)
                                  : __uint_as_float((unsigned)__ldcg((const unsigned short *)p.x + at + i) << 16);
        }
    }
}

/* One of a block's tiles. */
struct place_of {
    const unsigned char *tile;
    int row, rows, y_at; /* row: first row of the tile; rows: of the matrix */
};

static __device__ __forceinline__ void put_sum(const carry_tile_product &p, int sequence, int column, float sum) {
    const int64_t at = sequence * p.y_stride + column;
    if (p.output == CARRY_TILE_ADD && p.h != nullptr) {
        p.h[at] = sum;
    }
    if (p.y_is_wide) {
        ((float *)p.y)[at] = sum;
    } else {
        ((__nv_bfloat16 *)p.y)[at] = __float2bfloat16_rn(sum);
    }
}

} // namespace quantised

#endif

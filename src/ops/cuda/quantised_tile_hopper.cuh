/* Parts of the kernels that multiply a few sequences with quantised matrices in tiles: formats, decoding to f16,
   multiplying a chunk of 16 rows and 64 columns on tensor cores, loading x and storing results. */
#ifndef CARRY_OPS_CUDA_QUANTISED_TILE_HOPPER_CUH
#define CARRY_OPS_CUDA_QUANTISED_TILE_HOPPER_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

extern "C" {
#include "ops/quantised/tile_product.h"
}

namespace quantised {

constexpr int ROWS = CARRY_QUANT_TILE_ROWS, CHUNK = CARRY_QUANT_TILE_COLUMNS;
constexpr float X_SCALE = 1.0f / 16.0f, X_MOST = 65504.0f;

/* GROUP: columns per scale: 16, 32, or 64, which stands for 64 and more. */
template <int BITS_, bool FLOATS_, int GROUP_, bool MINIMUM_, bool WIDE_> struct form {
    static constexpr int BITS = BITS_, GROUP = GROUP_, UNITS = BITS / 4; /* 16-byte loads of a chunk */
    static constexpr bool FLOATS = FLOATS_, MINIMUM = MINIMUM_, WIDE = WIDE_, OF_SUMS = GROUP == 64;
    static constexpr int SCALE_WORDS = GROUP == 16 ? 2 : OF_SUMS ? (WIDE || MINIMUM ? 2 : 1) : MINIMUM ? 4 : 2;
};

using fp8_wide = form<8, true, 64, false, true>;
using int8_wide = form<8, false, 64, false, true>;
using int4_wide = form<4, false, 64, true, false>;
using int4_short = form<4, false, 32, true, false>;
using int4_plain = form<4, false, 32, false, false>;
using int8_short = form<8, false, 32, true, false>;
using int8_plain = form<8, false, 32, false, false>;
using int8_shortest = form<8, false, 16, false, false>;

/* Calls f with the form of a format. */
template <typename Function> static auto with_form(int format, const Function &f) {
    switch (format) {
    case CARRY_QUANT_IS_fp8_block:
        return f(fp8_wide());
    case CARRY_QUANT_IS_int8:
        return f(int8_wide());
    case CARRY_QUANT_IS_int4_g64:
    case CARRY_QUANT_IS_int4_g128:
        return f(int4_wide());
    case CARRY_QUANT_IS_q8_0:
        return f(int8_plain());
    case CARRY_QUANT_IS_q4_0:
        return f(int4_plain());
    case CARRY_QUANT_IS_q5_k:
        return f(int8_short());
    case CARRY_QUANT_IS_q6_k:
        return f(int8_shortest());
    default:
        return f(int4_short());
    }
}

static __device__ __forceinline__ void let_next_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

static __device__ __forceinline__ void await_previous() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

static __device__ __forceinline__ uint4 load_once(const void *from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
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

/* Decodes the weights of 32 columns for two multiplications of 16. */
template <class F>
static __device__ __forceinline__ void decode(__half2 (&a)[2][4], const uint4 (&codes)[F::UNITS], int unit) {
    if constexpr (F::BITS == 8) {
        const uint4 w = codes[unit];
        decode_8<F>(a[0][0], a[0][2], w.x);
        decode_8<F>(a[0][1], a[0][3], w.y);
        decode_8<F>(a[1][0], a[1][2], w.z);
        decode_8<F>(a[1][1], a[1][3], w.w);
    } else {
        const uint4 w = codes[0];
        __half2 first[4], second[4];
        decode_4(first, unit == 0 ? w.x : w.z);
        decode_4(second, unit == 0 ? w.y : w.w);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            a[s][0] = first[2 * s];
            a[s][2] = first[2 * s + 1];
            a[s][1] = second[2 * s];
            a[s][3] = second[2 * s + 1];
        }
    }
}

/* Scales of fewer than 64 columns. */
template <class F>
static __device__ __forceinline__ void scale(__half2 (&a)[2][4], const unsigned (&words)[F::SCALE_WORDS], int unit) {
    const __half2 by = half2_of(words[F::MINIMUM ? 2 * unit : unit]);
    const __half2 first = __low2half2(by), second = __high2half2(by);
    if constexpr (F::MINIMUM) {
        const __half2 less = __hneg2(half2_of(words[2 * unit + 1]));
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

/* The part of a chunk of a tile that a lane has loaded. */
template <class F> struct piece {
    uint4 codes[F::UNITS];
    unsigned scales[F::SCALE_WORDS];
};

/* Index of a lane's first word in the scales of a unit, for the first or the second chunk of the unit. */
template <class F> static __device__ __forceinline__ int scale_words_at(int half, int group_shift, int lane) {
    const int g = lane / 4;
    return (F::OF_SUMS       ? (half >> group_shift) * 8 + g
            : F::GROUP == 32 ? half * 8 + g
                             : (half * 8 + g) * 2 + lane % 4 / 2) *
           F::SCALE_WORDS;
}

template <class F>
static __device__ __forceinline__ void load(piece<F> &to, const unsigned char *tile, const carry_tile_product &p,
                                            int chunk, int lane) {
    constexpr int BYTES = ROWS * CHUNK * F::BITS / 8;
    const int half = chunk % 2;
    const unsigned char *codes = tile + (size_t)(chunk / 2) * p.unit_bytes + half * BYTES;
#pragma unroll
    for (int u = 0; u < F::UNITS; u++) {
        to.codes[u] = load_once(codes + u * 512 + lane * 16);
    }
    const unsigned *from =
        (const unsigned *)(codes + (2 - half) * BYTES) + scale_words_at<F>(half, p.group_shift, lane);
    if constexpr (F::SCALE_WORDS == 4) {
        *(uint4 *)to.scales = __ldg((const uint4 *)from);
    } else if constexpr (F::SCALE_WORDS == 2) {
        *(uint2 *)to.scales = __ldg((const uint2 *)from);
    } else {
        to.scales[0] = __ldg(from);
    }
}

/* One chunk: c += W x. x: f16, this lane's columns for sequence g; sums: the sums of x over the chunk, by sequence. */
template <class F, int NT>
static __device__ __forceinline__ void add_chunk(float (&c)[NT][4], const piece<F> &w, const uint4 (&x)[NT][2],
                                                 const float *sums, int t) {
    float part[NT][4] = {};
#pragma unroll
    for (int unit = 0; unit < 2; unit++) {
        __half2 a[2][4];
        decode<F>(a, w.codes, unit);
        if constexpr (!F::OF_SUMS) {
            scale<F>(a, w.scales, unit);
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float(&to)[4] = F::OF_SUMS ? part[n] : c[n];
            multiply(to, a[0], x[n][unit].x, x[n][unit].y);
            multiply(to, a[1], x[n][unit].z, x[n][unit].w);
        }
    }
    if constexpr (F::OF_SUMS) {
        float by[2], less[2] = {};
        if constexpr (F::WIDE) {
            by[0] = __uint_as_float(w.scales[0]);
            by[1] = __uint_as_float(w.scales[1]);
        } else {
            *(float2 *)by = __half22float2(half2_of(w.scales[0]));
            *(float2 *)less = __half22float2(half2_of(w.scales[1]));
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const float2 sum = F::MINIMUM ? *(const float2 *)(sums + n * 8 + 2 * t) : float2{};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if constexpr (F::MINIMUM) {
                    c[n][i] = fmaf(-less[i / 2], i % 2 == 0 ? sum.x : sum.y, c[n][i]);
                }
                c[n][i] = fmaf(by[i / 2], part[n][i], c[n][i]);
            }
        }
    }
}

/* Loads eight columns of x from `column` on, times the norm's factors; columns past the end are 0. */
static __device__ __forceinline__ void take_x(float (&to)[8], const carry_tile_product &p, int sequence, int column,
                                              float &squares) {
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
    if (p.norm != nullptr) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            squares = fmaf(to[i], to[i], squares);
            to[i] *= column + i < p.columns ? p.plus + __ldg(p.norm + column + i) : 0.0f;
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

static __device__ __forceinline__ void store(const carry_tile_product &p, int sequence, int column, float sum) {
    const int64_t at = sequence * p.y_stride + column;
    if (p.output == CARRY_TILE_ADD && p.h != nullptr) {
        sum += __ldcg(p.h + at);
    } else if (p.output == CARRY_TILE_ADD) {
        sum += p.y_is_wide ? ((const float *)p.base)[at] : __bfloat162float(((const __nv_bfloat16 *)p.base)[at]);
    }
    put_sum(p, sequence, column, sum);
}

} // namespace quantised

#endif

/* What the state that enters a rank adds to its outputs: o += R S, where R is what the tokens' queries see of the
   identity. A product for every head: [tokens, K] by [K, V].

   bf16 on tensor cores by mma.sync, S as two numbers of bf16 (its first 16 bits); other types in f32. Tiles of 64 tokens
   by 64 columns, K in steps. */
#include "device/cuda.h"

extern "C" {
#include "delta/ranks.h"
}

#include "ops/cuda/types.cuh"
#include "scan/cuda/value.cuh"

namespace {

constexpr int TILE = 64, STEP = 64, LD = STEP + 8; /* rows of shared memory start in other banks */
constexpr int NARROW = 16;                         /* K in a step of the f32 kernel */

__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned two(const uint16_t *at) {
    return *(const unsigned *)at;
}

/* Token t of a batch's item, head h: row (item tokens + t) heads + h of R and of o. */
__device__ __forceinline__ int64_t row_of(const carry_delta_correction &c, int64_t token) {
    return ((int64_t)(blockIdx.z / c.heads) * c.tokens + token) * c.heads + blockIdx.z % c.heads;
}

__global__ void __launch_bounds__(128) correct_bf16(carry_delta_correction c) {
    __shared__ uint16_t left[TILE * LD], high[TILE * LD], low[TILE * LD]; /* [token][k], [column][k] */
    const int64_t first = (int64_t)blockIdx.x * TILE;
    const int column = (int)blockIdx.y * TILE, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int group = lane / 4, pair = lane % 4 * 2;
    const float *S = c.state + (int64_t)blockIdx.z * c.key * c.value;
    const uint16_t *R = (const uint16_t *)c.response;
    float sum[TILE / 8][4] = {};
    for (int k0 = 0; k0 < c.key; k0 += STEP) {
        for (int i = (int)threadIdx.x; i < TILE * STEP; i += 128) {
            const int k = i % STEP;
            const int64_t token = first + i / STEP;
            left[i / STEP * LD + k] = token < c.tokens && k0 + k < c.key ? R[row_of(c, token) * c.key + k0 + k] : 0;
        }
        for (int i = (int)threadIdx.x; i < TILE * STEP; i += 128) {
            const int n = i % TILE, k = i / TILE;
            const float s = k0 + k < c.key && column + n < c.value ? S[(k0 + k) * c.value + column + n] : 0.0f;
            const uint16_t first_bits = type_bf16::narrow(s);
            high[n * LD + k] = first_bits;
            low[n * LD + k] = type_bf16::narrow(s - type_bf16::widen(first_bits));
        }
        __syncthreads();
        for (int k = 0; k < STEP; k += 16) {
            const uint16_t *at = left + (warp * 16 + group) * LD + k + pair;
            const unsigned a[4] = {two(at), two(at + 8 * LD), two(at + 8), two(at + 8 * LD + 8)};
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
                const int right = (n * 8 + group) * LD + k + pair;
                multiply(sum[n], a, two(high + right), two(high + right + 8));
                multiply(sum[n], a, two(low + right), two(low + right + 8));
            }
        }
        __syncthreads();
    }
    uint16_t *o = (uint16_t *)c.o;
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
        for (int i = 0; i < 4; i++) {
            const int64_t token = first + warp * 16 + group + i / 2 * 8;
            const int at = column + n * 8 + pair + i % 2;
            if (token < c.tokens && at < c.value) {
                uint16_t *to = o + row_of(c, token) * c.value + at;
                *to = type_bf16::narrow(type_bf16::widen(*to) + sum[n][i]);
            }
        }
    }
}

/* Threads of 4 tokens by 4 columns. */
__global__ void __launch_bounds__(256) correct_f32(carry_delta_correction c) {
    __shared__ float left[NARROW][TILE + 1], right[NARROW][TILE];
    const int64_t first = (int64_t)blockIdx.x * TILE;
    const int column = (int)blockIdx.y * TILE, x = (int)threadIdx.x % 16 * 4, y = (int)threadIdx.x / 16 * 4;
    const float *S = c.state + (int64_t)blockIdx.z * c.key * c.value;
    float sum[4][4] = {};
    for (int k0 = 0; k0 < c.key; k0 += NARROW) {
        for (int i = (int)threadIdx.x; i < TILE * NARROW; i += 256) {
            const int k = i % NARROW, n = i % TILE, row = i / TILE;
            const int64_t token = first + i / NARROW;
            left[k][i / NARROW] = token < c.tokens && k0 + k < c.key
                                      ? carry_value::load(c.response, c.dtype, row_of(c, token) * c.key + k0 + k)
                                      : 0.0f;
            right[row][n] = k0 + row < c.key && column + n < c.value ? S[(k0 + row) * c.value + column + n] : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < NARROW; k++) {
            for (int i = 0; i < 16; i++) {
                sum[i / 4][i % 4] += left[k][y + i / 4] * right[k][x + i % 4];
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 16; i++) {
        const int64_t token = first + y + i / 4;
        const int at = column + x + i % 4;
        if (token < c.tokens && at < c.value) {
            const int64_t to = row_of(c, token) * c.value + at;
            carry_value::store(c.o, c.dtype, to, carry_value::load(c.o, c.dtype, to) + sum[i / 4][i % 4]);
        }
    }
}

} // namespace

extern "C" carry_status carry_delta_correct(carry_ctx *ctx, int device, const carry_delta_correction *c) {
    int ordinal = 0;
    (void)carry_backend_of(device, &ordinal);
    const dim3 grid((unsigned)((c->tokens + TILE - 1) / TILE), (unsigned)((c->value + TILE - 1) / TILE),
                    (unsigned)(c->batch * c->heads));
    const cudaStream_t stream = (cudaStream_t)carry_ctx_stream(ctx, device);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    if (c->dtype == CARRY_BF16) {
        correct_bf16<<<grid, 128, 0, stream>>>(*c);
    } else {
        correct_f32<<<grid, 256, 0, stream>>>(*c);
    }
    CARRY_CUDA_TRY(cudaGetLastError(), "outputs cannot be corrected");
    return CARRY_OK;
}

/* Adds the effect of the state that enters a rank to its outputs: o += R S, where R is the output of the tokens'
   queries for the identity as the state. This is a product [tokens, K] by [K, V] for every head.

   bf16 with K up to 128, K a multiple of 16, V even and o aligned to 4 bytes uses tensor cores by mma.sync: each
   element of S is stored in shared memory as the sum of two bf16 numbers, its rounded value and the rounding error, and
   a block handles 512 tokens. All other cases are computed in f32, in tiles of 64 tokens by 64 columns. */
#include "device/cuda.h"

extern "C" {
#include "delta/ranks.h"
}

#include "ops/cuda/types.cuh"
#include "scan/cuda/value.cuh"

namespace {

/* LD: padded rows, so that consecutive rows start in different banks. */
constexpr int TILE = 64, KEYS = 128, LD = KEYS + 8;
constexpr int ROUNDS = 4;  /* rounds of 128 tokens in a block */
constexpr int NARROW = 16; /* keys in a step of the f32 kernel */

__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned two(const uint16_t *at) {
    return *(const unsigned *)at;
}

/* The row of R and of o for token t of batch item b and head h: (b tokens + t) heads + h. */
__device__ __forceinline__ int64_t row_of(const carry_delta_correction &c, int64_t token) {
    return ((int64_t)(blockIdx.z / c.heads) * c.tokens + token) * c.heads + blockIdx.z % c.heads;
}

/* Loads this block's columns of the state, each element as two bf16 numbers: [column][k]. */
__device__ __forceinline__ void load_state(const carry_delta_correction &c, int column, uint16_t *high, uint16_t *low) {
    const float *S = c.state + (int64_t)blockIdx.z * c.key * c.value;
    for (int i = (int)threadIdx.x; i < TILE * KEYS; i += 128) {
        const int n = i % TILE, k = i / TILE;
        const float s = k < c.key && column + n < c.value ? S[k * c.value + column + n] : 0.0f;
        const uint16_t first_bits = type_bf16::narrow(s);
        high[n * LD + k] = first_bits;
        low[n * LD + k] = type_bf16::narrow(s - type_bf16::widen(first_bits));
    }
    __syncthreads();
}

/* Loads elements k and k + 1 of R; k is even. */
__device__ __forceinline__ unsigned left_of(const carry_delta_correction &c, int64_t token, int k) {
    return token < c.tokens && k < c.key ? two((const uint16_t *)c.response + row_of(c, token) * c.key + k) : 0u;
}

__device__ __forceinline__ void add_two(const carry_delta_correction &c, int64_t token, int at, float x, float y) {
    if (token < c.tokens && at < c.value) { /* V is even */
        unsigned *to = (unsigned *)((uint16_t *)c.o + row_of(c, token) * c.value + at);
        const unsigned old = *to;
        const unsigned first = type_bf16::narrow(type_bf16::widen((uint16_t)old) + x);
        const unsigned second = type_bf16::narrow(type_bf16::widen((uint16_t)(old >> 16)) + y);
        *to = first | second << 16;
    }
}

/* Each warp handles 32 tokens by 64 columns at a time. */
__global__ void __launch_bounds__(128) correct_bf16(carry_delta_correction c) {
    __shared__ uint16_t high[TILE * LD], low[TILE * LD];
    const int column = (int)blockIdx.y * TILE, lane = (int)threadIdx.x % 32, group = lane / 4, pair = lane % 4 * 2;
    load_state(c, column, high, low);
    int64_t token = ((int64_t)blockIdx.x * ROUNDS * 4 + threadIdx.x / 32) * 32 + group;
    for (int round = 0; round < ROUNDS; round++, token += 4 * 32) {
        float sum[2][TILE / 8][4] = {};
        for (int k = pair; k < c.key; k += 16) {
            unsigned a[2][4];
#pragma unroll
            for (int i = 0; i < 8; i++) { /* rows group and group + 8, k and k + 8 */
                a[i / 4][i % 4] = left_of(c, token + i / 4 * 16 + i % 2 * 8, k + i % 4 / 2 * 8);
            }
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
                const uint16_t *h = high + (n * 8 + group) * LD + k, *l = low + (n * 8 + group) * LD + k;
                const unsigned b[4] = {two(h), two(h + 8), two(l), two(l + 8)};
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    multiply(sum[i][n], a[i], b[0], b[1]);
                    multiply(sum[i][n], a[i], b[2], b[3]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 2 * TILE / 8; i++) {
            const float(&d)[4] = sum[i % 2][i / 2];
            add_two(c, token + i % 2 * 16, column + i / 2 * 8 + pair, d[0], d[1]);
            add_two(c, token + i % 2 * 16 + 8, column + i / 2 * 8 + pair, d[2], d[3]);
        }
    }
}

/* Each thread computes 4 tokens by 4 columns. */
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
    const bool matrix =
        c->dtype == CARRY_BF16 && c->key <= KEYS && c->key % 16 == 0 && c->value % 2 == 0 && (uintptr_t)c->o % 4 == 0;
    const int64_t tokens = matrix ? ROUNDS * 128 : TILE;
    const dim3 grid((unsigned)((c->tokens + tokens - 1) / tokens), (unsigned)((c->value + TILE - 1) / TILE),
                    (unsigned)(c->batch * c->heads));
    const cudaStream_t stream = (cudaStream_t)carry_ctx_stream(ctx, device);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    if (matrix) {
        correct_bf16<<<grid, 128, 0, stream>>>(*c);
    } else {
        correct_f32<<<grid, 256, 0, stream>>>(*c);
    }
    CARRY_CUDA_TRY(cudaGetLastError(), "outputs cannot be corrected");
    return CARRY_OK;
}

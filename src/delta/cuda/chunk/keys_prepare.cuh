/* prepare for gates by key channel: one thread block for each chunk and value head. G is the sum of a channel's
   gates from the chunk's start.

       A[i,j] = beta[i] sum over c of k[i,c] k[j,c] e^(G[i,c]-G[j,c]), j < i
       P[i,j] = scale sum over c of q[i,c] k[j,c] e^(G[i,c]-G[j,c]), j <= i

   Tokens are handled in blocks of 16. G0 is G at the start of a block. For token i of the block and token j of an
   earlier one, e^(G[i]-G[j]) = e^(G[i]-G0) e^(G0-G[j]), and both factors are at most 1. For two tokens of the same
   block the second factor is at least 1. If the block's gates sum to CLOSE or more in every channel, such pairs use the
   two factors too; otherwise each of these pairs is summed in f32. So gates may be arbitrarily negative.

   keys_block.cuh computes the operands and sums of a block; the rest is as in prepare.cuh. */
#ifndef CARRY_DELTA_CHUNK_KEYS_PREPARE_CUH
#define CARRY_DELTA_CHUNK_KEYS_PREPARE_CUH

#include "delta/cuda/chunk/keys_block.cuh"

namespace DELTA_CHUNK {

/* The same as mark_bad in prepare.cuh. */
static __device__ __forceinline__ void mark_bad_keys(float *triangle, const float *beta, float *bad, int row,
                                                     int lane) {
    __syncwarp();
#pragma unroll 1
    for (int i = row; i < row + 16; i += 8) {
        float *part = triangle + i * ROW + lane % 4 * 16;
        float sum = beta[i];
        for (int j = 0; j < 16; j++) {
            sum += part[j];
        }
        sum *= 0.0f;
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (sum != 0.0f) {
            for (int j = 0; j < 16; j++) {
                part[j] = 0.0f;
            }
            bad[i] = __int_as_float(0x7fffffff);
        }
    }
}

/* Stores A in the triangle and P in `scores`. */
static __device__ __forceinline__ void weigh_keys(const float (&kk)[32], const float (&qk)[32], float scale,
                                                  const float *beta, float *bad, float *triangle, uint4 *scores,
                                                  int block, int lane) {
    int row = 16 * block + lane / 4;
    uint32_t P[4], rest[4];
    float by[2] = {beta[row], beta[row + 8]}, sum = by[0] + by[1];
#pragma unroll
    for (int n = 0; n < 8; n++) {
        int column = 8 * n + lane % 4 * 2;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = row + 8 * r;
            float2 A = {column < i ? by[r] * kk[4 * n + 2 * r] : 0.0f,
                        column + 1 < i ? by[r] * kk[4 * n + 2 * r + 1] : 0.0f};
            float p0 = column <= i ? scale * qk[4 * n + 2 * r] : 0.0f;
            float p1 = column + 1 <= i ? scale * qk[4 * n + 2 * r + 1] : 0.0f;
            *(float2 *)(triangle + i * ROW + column) = A;
            sum += A.x + A.y;
            uint32_t rounded = pack(p0, p1);
            P[n % 2 * 2 + r] = rounded;
            rest[n % 2 * 2 + r] = pack(p0 - low_half(rounded), p1 - high_half(rounded));
        }
        if (n % 2 == 1 && n / 2 <= block) {
            scores[(n - 1) * 32] = {P[0], P[1], P[2], P[3]};
            scores[n * 32] = {rest[0], rest[1], rest[2], rest[3]};
        }
    }
    if (__any_sync(0xffffffffu, sum * 0.0f != 0.0f)) {
        mark_bad_keys(triangle, beta, bad, row, lane);
    }
}

/* Replaces the triangle A by the inverse of I + A. Blocks of 16 x 16 above the diagonal blocks are not written. In the
   last step, two warps have half of the rows each. */
static __device__ __forceinline__ void invert_one(float *x, int warp, int lane) {
    /* Both halves of the warp compute the same block, since invert_block synchronises the warp. */
    invert_block(x + 16 * warp * (ROW + 1), lane % 16);
    __syncthreads();
    if (warp < 2) {
        float *own = x + 32 * warp * (ROW + 1), *below = own + 16 * ROW, z[2][4] = {};
        triple<2>(z, below + 16, below, own, lane);
        __syncwarp();
        store_negative<2>(below, z, lane);
    }
    __syncthreads();
    float *below = x + 32 * ROW, *strip = below + 16 * (warp % 2) * ROW, z[4][4] = {};
    if (warp < 2) {
        triple<4>(z, strip + 32, below, x, lane);
    }
    __syncthreads();
    if (warp < 2) {
        store_negative<4>(strip, z, lane);
    }
}

/* Stores T as bf16, and its rounding error in `rest`. */
static __device__ __forceinline__ void round_inverse(const float *triangle, uint32_t tile, uint32_t rest, int thread) {
#pragma unroll
    for (int s = 0; s < 4; s++) {
        int i = (thread + 128 * s) / 8, j = thread % 8 * 8;
        float x[8];
        *(float4 *)x = *(const float4 *)(triangle + i * ROW + j);
        *(float4 *)(x + 4) = *(const float4 *)(triangle + i * ROW + j + 4);
        uint32_t w[4], left[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            float even = j + 2 * c <= i ? x[2 * c] : 0.0f, odd = j + 2 * c + 1 <= i ? x[2 * c + 1] : 0.0f;
            w[c] = pack(even, odd);
            left[c] = pack(even - low_half(w[c]), odd - high_half(w[c]));
        }
        if (thread % 8 < 4 || i >= 32) {
            store_four(kept_part(tile, i, thread % 8), w);
            store_four(kept_part(rest, i, thread % 8), left);
        }
    }
}

__global__ void __launch_bounds__(128, 3) prepare_keys(const __grid_constant__ keys_args a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) char memory[];
    const shape &s = a.p.s;
    const int heads = s.value_heads >> s.shift;
    const int head = (int)(blockIdx.x % (unsigned)heads), slot = (int)(blockIdx.x / (unsigned)heads);
    const chunk_place at = chunk_of(s, slot);
    if (at.length <= 0) {
        return;
    }
    const int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32;
    /* The last block of tokens has the most products, so the warp that handles it varies between thread blocks. */
    const int block = (int)((unsigned)warp + blockIdx.x) % 4;
    const uint32_t start = hopper::shared_address(memory);
    char *page = a.p.tiles + ((int64_t)slot * heads + head) * KEYS_BYTES;
    float *beta = (float *)(memory + KEYS_NUMBERS), *bad = beta + 3 * C;
    float kk[32], qk[32];
    bool close;
    {
        keys_block m = {a, at, head, start, memory, page, warp, lane, block};
        const int key_head = head / (heads / s.heads);
        m.ask(a.k, OF_K, key_head);
        m.ask(a.q, OF_Q, key_head);
        m.load_gates();
        if (thread < C) {
            uint32_t bits = thread < at.length ? bits_at(a.p.beta, at.batch, at.first + thread, head) : 0;
            beta[thread] = thread < at.length ? beta_of(a.p, number_of(bits, a.p.beta.dtype)) : 0.0f;
            bad[thread] = 0.0f;
        }
        m.sum_gates();
        close = __all_sync(0xffffffffu, m.G[15][0] >= CLOSE && m.G[15][1] >= CLOSE && m.G[15][2] >= CLOSE &&
                                            m.G[15][3] >= CLOSE) != 0;
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        if (a.p.l2norm) {
            m.norms();
        }
        if (!close) {
            m.sum_pairs();
            __syncwarp();
        }
        m.fade(close);
        __syncthreads();
        m.multiply(kk, qk, close);
    }
    __syncthreads();
    float *triangle = (float *)(memory + KEYS_TRIANGLE);
    weigh_keys(kk, qk, a.p.scale, beta, bad, triangle, scores_of(memory, block, lane), block, lane);
    __syncthreads();
    invert_one(triangle, warp, lane);
    uint32_t P[32];
    float W[32];
    load_scores(P, scores_of(memory, warp, lane), warp);
    __syncthreads(); /* all threads have read the scores */
    round_inverse(triangle, start, start + KEYS_REST, thread);
    if (thread < C) {
        *(float *)(page + NUMBERS_AT + (BETA + thread) * 4) = beta[thread] + bad[thread];
    }
    hopper::fence_async();
    __syncthreads();
    apply_inverse(W, P, start, start + KEYS_REST);
    store_weights(start + KEPT, W, warp, lane);
    hopper::fence_async();
    __syncthreads();
    if (thread == 0) {
        hopper::store_bytes(page, start, 8192);
        hopper::store_bytes(page + 8192, start + 8192, NUMBERS_AT - 8192);
        hopper::stores_commit();
        hopper::stores_wait_read();
    }
#endif
}

} // namespace DELTA_CHUNK

#endif

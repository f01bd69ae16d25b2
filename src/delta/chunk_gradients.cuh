/* gradients: one block for a chunk and a head of q and k, its value heads one after the other, so that dq and dk are
   summed in registers. With D the decays, k^ and q^ what the norms leave, M = Y V'^T and dP = dO V'^T:

       dq^ = scale e^G (dO S^T) + (scale D dP) k^
       dk^ = (scale D dP)^T q^ + left (V' dS^T) - beta e^G (Y S^T) + (H + H^T) k^,   H = -beta D M below the diagonal

   One warpgroup makes dq, the other dk. What the gates and beta get are sums of these products' rows and columns. */
#ifndef CARRY_DELTA_CHUNK_GRADIENTS_CUH
#define CARRY_DELTA_CHUNK_GRADIENTS_CUH

#include "delta/chunk_gradient_parts.cuh"

namespace delta_chunk {

/* Everything of one value head; `more` bytes are copied besides by the caller. */
static __device__ __forceinline__ void copy_head(const gradient_args &a, const chunk_place &at, int slot, int head,
                                                 uint32_t start, int numbers, uint32_t rows, uint32_t states,
                                                 int more) {
    using namespace hopper;
    int64_t tile = (int64_t)slot * a.in.s.value_heads + head;
    barrier_expect(rows, 4 * TILE + NUMBERS_BYTES + more);
    copy_bytes(start + GV, a.values + tile * TILE, TILE, rows);
    copy_tile(start + GDO, &a.grad_o, at.first, 0, head, at.batch, rows);
    copy_bytes(start + GY, a.y + tile * TILE, TILE, rows);
    copy_bytes(start + GN + numbers * NUMBERS_BYTES, a.in.tiles + tile * CHUNK_BYTES + NUMBERS_AT, NUMBERS_BYTES, rows);
    copy_tile(start + GX, &a.v, at.first, 0, head, at.batch, rows);
    barrier_expect(states, 2 * STATE_BYTES);
    copy_bytes(start + GS, a.states + tile * STATE_BYTES, STATE_BYTES, states);
    copy_bytes(start + GDS, a.dstates + tile * STATE_BYTES, STATE_BYTES, states);
}

__global__ void __launch_bounds__(256, 1) gradients(const __grid_constant__ gradient_args a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace hopper;
    extern __shared__ char memory[];
    __shared__ gradient_numbers sums;
    const shape &s = a.in.s;
    int head = (int)(blockIdx.x % (unsigned)s.heads), slot = (int)(blockIdx.x / (unsigned)s.heads);
    chunk_place at = chunk_of(s, slot);
    int thread = (int)threadIdx.x, warp = thread % 128 / 32, lane = thread % 32, row = 16 * warp + lane / 4;
    int group = s.value_heads / s.heads, value_head = head * group;
    if (at.length <= 0) {
        for (int i = thread; a.partial != nullptr && i < 2 * group; i += 256) {
            a.partial[((int64_t)slot * s.value_heads + value_head) * 2 + i] = 0.0f;
        }
        return;
    }
    uint32_t start = (shared_address(memory) + 1023u) & ~1023u;
    const char *data = memory + (start - shared_address(memory));
    uint32_t rows = shared_address(&sums.rows), states = shared_address(&sums.states);
    uint32_t q = start, k = start + GK;
    bool queries = thread < 128;
    if (thread == 0) {
        barrier_init(rows, 1);
        barrier_init(states, 1);
        fence_async();
        copy_head(a, at, slot, value_head, start, 0, rows, states, 2 * TILE);
        copy_tile(k, &a.in.k, at.first, 0, head, at.batch, rows);
        copy_tile(q, &a.in.q, at.first, 0, head, at.batch, rows);
    }
    uint32_t mine = queries ? q : k, left = start + (queries ? GDO : GY);
    const char *mine_data = data + (queries ? 0 : GK);
    float sum[64], norm[2];
#pragma unroll
    for (int i = 0; i < 64; i++) {
        sum[i] = 0.0f;
    }
    __syncthreads();
    for (int e = 0; e < group; e++) {
        const float *n = (const float *)(data + GN + e % 2 * NUMBERS_BYTES);
        barrier_wait(rows, e % 2);
        if (at.length < C) { /* what others wrote there may be no number */
            clear_rows(mine, 2, at.length, thread % 128);
            clear_rows(start + (queries ? GDO : GX), 2, at.length, thread % 128);
            fence_async();
            __syncthreads();
        }
        norm[0] = n[(queries ? NORM_Q : NORM_K) + row];
        norm[1] = n[(queries ? NORM_Q : NORM_K) + row + 8];
        uint32_t operand[16];
        {
            float x[32], products[32];
            products_begin();
            rows_product(products, mine, k);
            rows_product(x, left, start + GV);
            products_commit();
            products_wait<0>();
            keep_below(products);
            keep_below(x);
            weigh_square(queries, a.in.scale, n, sums, x, products, operand, start + (queries ? GP : GH), warp, lane);
        }
        fence_async();
        barrier_wait(states, e % 2);
#pragma unroll 1
        for (int pass = 0; pass < (queries ? 1 : 2); pass++) { /* dO S; Y S, V' dS */
            float x[64], factor[2], more[2];
            state_product(x, pass == 0 ? left : start + GV, start + (pass == 0 ? GS : GDS));
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int i = row + 8 * r;
                factor[r] = queries     ? a.in.scale * fade_of(n, i)
                            : pass == 0 ? -fade_of(n, i)
                                        : decay_of(n, C - 1, i);
                more[r] = queries || pass == 1 ? 1.0f : n[BETA + i];
            }
            add_rows(sum, x, factor, more, norm, mine_data,
                     queries     ? sums.q_dot
                     : pass == 0 ? sums.w_dot
                                 : sums.left_dot,
                     row, lane);
        }
        inner_product(sums, data + GS, data + GDS, thread);
        finish_values(a, n, sums, at, value_head + e, data + GY, data + GX, thread);
        __syncthreads(); /* both squares are there, and everything else of this head has been read */
        if (thread == 128 && e + 1 < group) {
            copy_head(a, at, slot, value_head + e + 1, start, (e + 1) % 2, rows, states, 0);
        }
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            product_right(sum, operand + 4 * i, describe(k + i * 2048, BAND), 1);
        }
        products_commit();
        if (!queries) {
            products_begin();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                product_turned(sum, describe(start + GP + i * 2048, 0), describe(q + i * 2048, BAND), 1);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                product_turned(sum, describe(start + GH + i * 2048, 0), describe(k + i * 2048, BAND), 1);
            }
            products_commit();
        } else if (warp == 0) {
            finish_numbers(a, n, sums, at, slot, value_head + e, lane);
        }
        products_wait<0>();
        keep_below(sum);
        __syncthreads();
    }
    store_rows(queries ? &a.grad_q : &a.grad_k, queries ? a.dq : a.dk, sum, mine_data, norm, a.in.l2norm, at, head,
               left, queries ? 1 : 2, warp, lane);
#endif
}

/* Sums of the chunks' parts, a block for a value head, always in the same order. */
__global__ void __launch_bounds__(256) sum_partials(const float *partial, float *dA_log, float *ddt_bias, int slots,
                                                    int heads) {
    __shared__ float part[2][256];
    int head = (int)blockIdx.x, thread = (int)threadIdx.x;
    float sums[2] = {0.0f, 0.0f};
    for (int i = thread; i < slots; i += 256) {
        sums[0] += partial[((int64_t)i * heads + head) * 2];
        sums[1] += partial[((int64_t)i * heads + head) * 2 + 1];
    }
    part[0][thread] = sums[0];
    part[1][thread] = sums[1];
    for (int step = 128; step > 0; step /= 2) {
        __syncthreads();
        if (thread < step) {
            part[0][thread] += part[0][thread + step];
            part[1][thread] += part[1][thread + step];
        }
    }
    if (thread == 0) {
        dA_log[head] = part[0][0];
        ddt_bias[head] = part[1][0];
    }
}

} // namespace delta_chunk

#endif

/* gradients: one block for a chunk and a head of q and k, its value heads one after the other, so that dq and dk are
   summed in registers. With D the decays, k^ and q^ what the norms leave, M = Y V'^T and dP = dO V'^T:

       dq^ = scale e^G (dO S^T) + (scale D dP) k^
       dk^ = (scale D dP)^T q^ + left (V' dS^T) - beta e^G (Y S^T) + (H + H^T) k^,   H = -beta D M below the diagonal

   One warpgroup makes dq, the other dk. What the gates and beta get are sums of these products' rows and columns. */
#ifndef CARRY_DELTA_CHUNK_GRADIENTS_CUH
#define CARRY_DELTA_CHUNK_GRADIENTS_CUH

#include "delta/chunk_prepare.cuh"
#include "delta/chunk_scan.cuh"

namespace delta_chunk {

struct gradient_args {
    prepare_args in;
    CUtensorMap grad_o;
    carry_delta_view v, dq, dk, dv, dbeta, dg;
    const char *states, *values, *dstates, *y;
    float *partial; /* [slots, value heads, 2]: of A_log and dt_bias */
};

/* In shared memory. */
constexpr int GK = TILE, GDO = 2 * TILE, GV = 3 * TILE, GY = 4 * TILE, GS = 5 * TILE, GDS = GS + STATE_BYTES;
constexpr int GP = GDS + STATE_BYTES, GH = GP + BAND, GRADIENT_SHARED = 1024 + GH + BAND;

struct gradient_numbers {
    float row_p[C], row_m[C], column[8][C]; /* sums of dP P and M D kk; of the columns, by warp */
    float q_dot[C], w_dot[C], left_dot[C], yv[C];
    float inner[8]; /* S . dS, by warp */
    uint64_t rows, states;
};

/* Elements (row, 2 columns from `column`) of a tile of q or k. */
static __device__ __forceinline__ float2 pair_at(const char *tile, int row, int column) {
    uint32_t w = *(const uint32_t *)(tile + column / 64 * BAND + row * 128 + ((column % 64 / 8 ^ (row & 7)) << 4) +
                                     column % 8 * 2);
    return {low_half(w), high_half(w)};
}

static __device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

static __device__ __forceinline__ void store_number(const carry_delta_view &view, int batch, int token, int head,
                                                    float x) {
    int64_t at = batch * view.batch + token * view.token + head * view.head;
    if (view.dtype == 0) {
        ((float *)view.data)[at] = x;
    } else if (view.dtype == 1) {
        ((__nv_bfloat16 *)view.data)[at] = __float2bfloat16_rn(x);
    } else {
        ((__half *)view.data)[at] = __float2half_rn(x);
    }
}

/* x = a b^T over 128, both tiles of two bands with rows along it. */
static __device__ __forceinline__ void rows_product(float (&x)[32], uint32_t a, uint32_t b) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t along = i / 4 * BAND + i % 4 * 32;
        hopper::product_both(x, hopper::describe(a + along, 0), hopper::describe(b + along, 0), i > 0);
    }
}

/* x = a s: a is a tile [tokens, values], s a kept state. */
static __device__ __forceinline__ void state_product(float (&x)[64], uint32_t a, uint32_t s) {
    hopper::products_begin();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        hopper::product_across(x, hopper::describe(a + i / 4 * BAND + i % 4 * 32, 0),
                               hopper::describe(s + i * 2048, 2 * BAND), i > 0);
    }
    hopper::products_commit();
    hopper::products_wait<0>();
    hopper::keep_below(x);
}

/* sum += factor[row] x, and dot[row] = factor[row] (row of x) . (row of tile); factors of this thread's two rows. */
static __device__ __forceinline__ void add_rows(float (&sum)[64], const float (&x)[64], const float (&factor)[2],
                                                const float (&norm)[2], const char *tile, float *dot, int row,
                                                int lane) {
    float dots[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 16; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 t = pair_at(tile, row + 8 * r, 8 * i + lane % 4 * 2);
            float a = factor[r] * x[4 * i + 2 * r], b = factor[r] * x[4 * i + 2 * r + 1];
            dots[r] += a * t.x + b * t.y;
            sum[4 * i + 2 * r] += a;
            sum[4 * i + 2 * r + 1] += b;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float d = quad_sum(dots[r]) * norm[r];
        if (lane % 4 == 0) {
            dot[row + 8 * r] = d;
        }
    }
}

/* One of the two squares, dP (below and on the diagonal) or M (below): weights for the products that follow, as a left
   operand and as a tile, and the sums. products: q k or k k; x: dP or M. */
template <bool QUERIES>
static __device__ __forceinline__ void weigh_square(const prepare_args &a, const prepare_numbers &n,
                                                    gradient_numbers &sums, const float (&x)[32],
                                                    const float (&products)[32], uint32_t (&operand)[16],
                                                    uint32_t tile, int warp, int lane) {
    int row = 16 * warp + lane / 4;
    float total[2] = {0.0f, 0.0f};
    uint32_t packed[16];
#pragma unroll
    for (int block = 0; block < 8; block++) {
        int column = 8 * block + lane % 4 * 2;
        float2 h = *(const float2 *)&n.high[0][column], l = *(const float2 *)&n.low[0][column];
        float2 w = *(const float2 *)&n.inverse_norm[0][column];
        float2 down = {0.0f, 0.0f};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = row + 8 * r;
            float by = QUERIES ? a.scale : -n.beta[0][i], norm = n.inverse_norm[QUERIES ? 1 : 0][i];
            int last = QUERIES ? i : i - 1;
            float d0 = column <= last ? power_of_two((n.high[0][i] - h.x) + (n.low[0][i] - l.x)) : 0.0f;
            float d1 = column + 1 <= last ? power_of_two((n.high[0][i] - h.y) + (n.low[0][i] - l.y)) : 0.0f;
            float x0 = d0 * x[4 * block + 2 * r], x1 = d1 * x[4 * block + 2 * r + 1];
            float p0 = x0 * norm * w.x * products[4 * block + 2 * r];
            float p1 = x1 * norm * w.y * products[4 * block + 2 * r + 1];
            total[r] += p0 + p1; /* without `by` */
            down.x += by * p0;
            down.y += by * p1;
            x0 *= by;
            x1 *= by;
            operand[2 * block + r] = pack(x0 * w.x, x1 * w.y);
            packed[2 * block + r] = pack(x0 * norm, x1 * norm);
        }
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
            down.x += __shfl_xor_sync(0xffffffffu, down.x, step);
            down.y += __shfl_xor_sync(0xffffffffu, down.y, step);
        }
        if (lane < 4) {
            *(float2 *)&sums.column[(QUERIES ? 0 : 4) + warp][column] = down;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float d = quad_sum(total[r]);
        if (lane % 4 == 0) {
            (QUERIES ? sums.row_p : sums.row_m)[row + 8 * r] = QUERIES ? a.scale * d : d;
        }
    }
#pragma unroll
    for (int block = 0; block < 8; block += 2) {
        int to = 16 * warp + (lane & 8) + lane % 8;
        store_matrices(swizzled(tile, to, block + lane / 16), packed[2 * block], packed[2 * block + 1],
                       packed[2 * block + 2], packed[2 * block + 3]);
    }
}

/* dv = beta Y, and Y . v by rows; 256 threads, 16 a row. */
static __device__ __forceinline__ void finish_values(const gradient_args &a, const prepare_numbers &n,
                                                     gradient_numbers &sums, const chunk_place &at, int head,
                                                     const char *y, int thread) {
#pragma unroll
    for (int s = 0; s < 4; s++) {
        int row = thread / 16 + 16 * s, part = thread % 16;
        float dot = 0.0f;
        if (row < at.length) {
            int64_t token = at.first + row;
            uint4 w = *(const uint4 *)(y + part / 8 * BAND + row * 128 + ((part % 8 ^ (row & 7)) << 4));
            uint4 v = *(const uint4 *)((const __nv_bfloat16 *)a.v.data + at.batch * a.v.batch + token * a.v.token +
                                       head * a.v.head + part * 8);
            const uint32_t yw[4] = {w.x, w.y, w.z, w.w}, vw[4] = {v.x, v.y, v.z, v.w};
            uint32_t out[4];
            float beta = n.beta[0][row];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                dot += low_half(yw[i]) * low_half(vw[i]) + high_half(yw[i]) * high_half(vw[i]);
                out[i] = pack(beta * low_half(yw[i]), beta * high_half(yw[i]));
            }
            *(uint4 *)((__nv_bfloat16 *)a.dv.data + at.batch * a.dv.batch + token * a.dv.token + head * a.dv.head +
                       part * 8) = {out[0], out[1], out[2], out[3]};
        }
#pragma unroll
        for (int step = 1; step < 16; step *= 2) {
            dot += __shfl_xor_sync(0xffffffffu, dot, step);
        }
        if (part == 0) {
            sums.yv[row] = dot;
        }
    }
}

/* S . dS of this warp. */
static __device__ __forceinline__ void inner_product(gradient_numbers &sums, const char *s, const char *ds,
                                                     int thread) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < STATE_BYTES / 16 / 256; i++) {
        uint4 w = *(const uint4 *)(s + (thread + 256 * i) * 16), x = *(const uint4 *)(ds + (thread + 256 * i) * 16);
        const uint32_t sw[4] = {w.x, w.y, w.z, w.w}, xw[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sum += low_half(sw[j]) * low_half(xw[j]) + high_half(sw[j]) * high_half(xw[j]);
        }
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (thread % 32 == 0) {
        sums.inner[thread / 32] = sum;
    }
}

/* Gates and beta of one value head: a warp, two tokens a lane. */
static __device__ __forceinline__ void finish_numbers(const gradient_args &a, const prepare_numbers &n,
                                                      const gradient_numbers &sums, const chunk_place &at, int slot,
                                                      int head, int lane) {
    float x[2], dbeta[2], lefts = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int t = 2 * lane + i;
        float columns = 0.0f;
#pragma unroll
        for (int w = 0; w < 8; w++) {
            columns += sums.column[w][t];
        }
        x[i] = sums.q_dot[t] + sums.row_p[t] - n.beta[0][t] * sums.row_m[t] - columns + sums.w_dot[t] * n.beta[0][t] -
               sums.left_dot[t];
        dbeta[i] = sums.yv[t] + sums.w_dot[t] - sums.row_m[t];
        lefts += sums.left_dot[t];
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        lefts += __shfl_xor_sync(0xffffffffu, lefts, step);
    }
    if (lane == 31) {
        float inner = 0.0f;
        for (int w = 0; w < 8; w++) {
            inner += sums.inner[w];
        }
        x[1] += lefts + inner * power_of_two(n.high[0][C - 1] + n.low[0][C - 1]);
    }
    float sum = x[0] + x[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        float after = __shfl_down_sync(0xffffffffu, sum, step);
        if (lane + step < 32) {
            sum += after;
        }
    }
    float after = sum - (x[0] + x[1]);
    float dg[2] = {sum, after + x[1]};
    float rates = 0.0f, biases = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int t = 2 * lane + i;
        if (t < at.length) {
            if (a.in.beta_sigmoid) {
                dbeta[i] *= n.beta[0][t] * (1.0f - n.beta[0][t] / a.in.beta_factor);
            }
            store_number(a.dbeta, at.batch, at.first + t, head, dbeta[i]);
            if (a.in.g.data != nullptr) {
                float d = dg[i];
                if (a.in.gate_inside) {
                    float z = number_at(a.in.g, at.batch, at.first + t, head) + a.in.dt_bias[head];
                    float rate = -expf(a.in.A_log[head]);
                    rates += d * rate * (z > 20.0f ? z : log1pf(expf(z)));
                    d *= rate / (1.0f + expf(-z));
                    biases += d;
                }
                store_number(a.dg, at.batch, at.first + t, head, d);
            }
        }
    }
    if (a.partial != nullptr) {
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            rates += __shfl_xor_sync(0xffffffffu, rates, step);
            biases += __shfl_xor_sync(0xffffffffu, biases, step);
        }
        if (lane == 0) {
            float *to = a.partial + ((int64_t)slot * a.in.s.value_heads + head) * 2;
            to[0] = rates;
            to[1] = biases;
        }
    }
}

/* dq or dk, through the norm, to the outside. */
static __device__ __forceinline__ void store_rows(const carry_delta_view &to, const float (&x)[64], const char *tile,
                                                  const float *inverse_norm, bool l2norm, const chunk_place &at,
                                                  int head, int row, int lane) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = row + 8 * r;
        float norm = inverse_norm[i], dot = 0.0f;
        if (l2norm) {
#pragma unroll
            for (int b = 0; b < 16; b++) {
                float2 t = pair_at(tile, i, 8 * b + lane % 4 * 2);
                dot += t.x * x[4 * b + 2 * r] + t.y * x[4 * b + 2 * r + 1];
            }
            dot = quad_sum(dot) * norm * norm;
        }
        if (i < at.length) {
            __nv_bfloat16 *out = (__nv_bfloat16 *)to.data + at.batch * to.batch + (int64_t)(at.first + i) * to.token +
                                 head * to.head + lane % 4 * 2;
#pragma unroll
            for (int b = 0; b < 16; b++) {
                float2 t = {0.0f, 0.0f};
                if (l2norm) {
                    t = pair_at(tile, i, 8 * b + lane % 4 * 2);
                }
                *(uint32_t *)(out + 8 * b) = pack(norm * (x[4 * b + 2 * r] - t.x * dot),
                                                  norm * (x[4 * b + 2 * r + 1] - t.y * dot));
            }
        }
    }
}

static __device__ __forceinline__ void copy_head(const gradient_args &a, const chunk_place &at, int slot, int head,
                                                 uint32_t start, uint32_t rows, uint32_t states, int more) {
    using namespace hopper;
    int64_t tile = (int64_t)slot * a.in.s.value_heads + head;
    barrier_expect(rows, 3 * TILE + more);
    copy_tile(start + GDO, &a.grad_o, at.first, 0, head, at.batch, rows);
    copy_bytes(start + GV, a.values + tile * TILE, TILE, rows);
    copy_bytes(start + GY, a.y + tile * TILE, TILE, rows);
    barrier_expect(states, 2 * STATE_BYTES);
    copy_bytes(start + GS, a.states + tile * STATE_BYTES, STATE_BYTES, states);
    copy_bytes(start + GDS, a.dstates + tile * STATE_BYTES, STATE_BYTES, states);
}

__global__ void __launch_bounds__(256, 1) gradients(const __grid_constant__ gradient_args a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace hopper;
    extern __shared__ char memory[];
    __shared__ prepare_numbers n;
    __shared__ gradient_numbers sums;
    const shape &s = a.in.s;
    int head = (int)(blockIdx.x % (unsigned)s.heads), slot = (int)(blockIdx.x / (unsigned)s.heads);
    chunk_place at = chunk_of(s, slot);
    int thread = (int)threadIdx.x, warp = thread % 128 / 32, lane = thread % 32, row = 16 * warp + lane / 4;
    int group = s.value_heads / s.heads, value_head = head * group;
    if (at.length <= 0) {
        if (a.partial != nullptr && thread < 2 * group) {
            a.partial[((int64_t)slot * s.value_heads + value_head) * 2 + thread] = 0.0f;
        }
        return;
    }
    uint32_t start = (shared_address(memory) + 1023u) & ~1023u;
    const char *data = memory + (start - shared_address(memory));
    uint32_t rows = shared_address(&sums.rows), states = shared_address(&sums.states);
    uint32_t q = start, k = start + GK;
    bool for_queries = thread < 128;
    if (thread == 0) {
        barrier_init(rows, 1);
        barrier_init(states, 1);
        fence_async();
        copy_head(a, at, slot, value_head, start, rows, states, 2 * TILE);
        copy_tile(q, &a.in.q, at.first, 0, head, at.batch, rows);
        copy_tile(k, &a.in.k, at.first, 0, head, at.batch, rows);
    }
    float sum[64];
#pragma unroll
    for (int i = 0; i < 64; i++) {
        sum[i] = 0.0f;
    }
    __syncthreads();
    for (int e = 0; e < group; e++) {
        if (thread < 32) {
            load_numbers(a.in, at, value_head + e, n, 0, lane);
        }
        barrier_wait(rows, e % 2);
        if (at.length < C) {
            uint32_t tile = start + (for_queries ? GDO : 0u);
            clear_rows(tile, 2, at.length, thread % 128);
            if (!for_queries) {
                clear_rows(k, 2, at.length, thread % 128);
            }
            fence_async();
            __syncthreads();
        }
        if (e == 0 && thread < 128) {
            n.inverse_norm[thread / C][thread % C] = a.in.l2norm ? inverse_norm(thread < C ? k : q, thread % C) : 1.0f;
        }
        uint32_t operand[16];
        {
            float x[32], products[32];
            products_begin();
            rows_product(products, for_queries ? q : k, k);
            rows_product(x, start + (for_queries ? GDO : GY), start + GV);
            products_commit();
            __syncthreads(); /* numbers and norms */
            products_wait<0>();
            keep_below(products);
            keep_below(x);
            if (for_queries) {
                weigh_square<true>(a.in, n, sums, x, products, operand, start + GP, warp, lane);
            } else {
                weigh_square<false>(a.in, n, sums, x, products, operand, start + GH, warp, lane);
            }
        }
        fence_async();
        barrier_wait(states, e % 2);
        {
            float x[64], factor[2], norm[2];
            state_product(x, start + (for_queries ? GDO : GY), start + GS);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int i = row + 8 * r;
                float fade = power_of_two(n.high[0][i] + n.low[0][i]);
                factor[r] = for_queries ? a.in.scale * fade : -fade;
                norm[r] = n.inverse_norm[for_queries ? 1 : 0][i];
            }
            if (for_queries) {
                add_rows(sum, x, factor, norm, data, sums.q_dot, row, lane);
            } else {
                float beta[2] = {n.beta[0][row], n.beta[0][row + 8]};
#pragma unroll
                for (int i = 0; i < 64; i++) { /* the dot is without beta */
                    x[i] *= factor[i / 2 % 2];
                }
                float dots[2] = {0.0f, 0.0f};
#pragma unroll
                for (int i = 0; i < 16; i++) {
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        float2 t = pair_at(data + GK, row + 8 * r, 8 * i + lane % 4 * 2);
                        dots[r] += x[4 * i + 2 * r] * t.x + x[4 * i + 2 * r + 1] * t.y;
                        sum[4 * i + 2 * r] += beta[r] * x[4 * i + 2 * r];
                        sum[4 * i + 2 * r + 1] += beta[r] * x[4 * i + 2 * r + 1];
                    }
                }
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float d = quad_sum(dots[r]) * norm[r];
                    if (lane % 4 == 0) {
                        sums.w_dot[row + 8 * r] = d;
                    }
                }
                state_product(x, start + GV, start + GDS);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    int i = row + 8 * r;
                    factor[r] = power_of_two((n.high[0][C - 1] - n.high[0][i]) + (n.low[0][C - 1] - n.low[0][i]));
                }
                add_rows(sum, x, factor, norm, data + GK, sums.left_dot, row, lane);
            }
        }
        inner_product(sums, data + GS, data + GDS, thread);
        finish_values(a, n, sums, at, value_head + e, data + GY, thread);
        __syncthreads(); /* both squares are there */
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            product_right(sum, operand + 4 * i, describe(k + i * 2048, BAND), 1);
        }
        products_commit();
        if (!for_queries) {
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
        }
        if (thread == 0 && e + 1 < group) { /* everything of this head but the squares has been read */
            copy_head(a, at, slot, value_head + e + 1, start, rows, states, 0);
        }
        if (thread < 32) {
            finish_numbers(a, n, sums, at, slot, value_head + e, lane);
        }
        products_wait<0>();
        keep_below(sum);
        __syncthreads();
    }
    store_rows(for_queries ? a.dq : a.dk, sum, data + (for_queries ? 0 : GK), n.inverse_norm[for_queries ? 1 : 0],
               a.in.l2norm, at, head, row, lane);
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

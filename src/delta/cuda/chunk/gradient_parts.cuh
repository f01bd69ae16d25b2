/* Steps of the kernel `gradients`: squares of tokens, rows, gradients of gates and betas, and stores. */
#ifndef CARRY_DELTA_CHUNK_GRADIENT_PARTS_CUH
#define CARRY_DELTA_CHUNK_GRADIENT_PARTS_CUH

#include "delta/cuda/chunk/gradient_args.cuh"

namespace DELTA_CHUNK {

/* The layout of shared memory: two buffers of (q, k), two of (dO, dv), then V', S, dS, and two of numbers. The squares
   overwrite dO. */
constexpr int GQ = 0, GO = 4 * TILE, GV = 8 * TILE, GS = 9 * TILE, GDS = GS + STATE_BYTES, GN = GDS + STATE_BYTES;
constexpr int GRADIENT_SHARED = 1024 + GN + 2 * NUMBERS_BYTES;
constexpr int GRADIENT_THREADS = 3 * 128; /* the last warpgroup copies */

/* Sums for one value head. */
struct gradient_numbers {
    float row_p[C], row_m[C], column[8][C];                   /* sums of dP P and M D kk by row; by column and warp */
    float q_dot[C], w_dot[C], left_dot[C], yv[C], y_value[C]; /* yv: dv . V', y_value: Y . v where beta is tiny */
    float inner[4];                                           /* S . dS, by warp */
    float held[2][C]; /* results of the first parts of a head's values: for gates, for beta */
};

/* Barriers of the buffers in shared memory. full: the copy into a buffer has arrived; empty: the buffer has been read
   and may be overwritten. qk: the two buffers of q and k; row: the two of dO, Y and the numbers of a tile (device.cuh);
   full[] and empty[]: the single buffers of V', S and dS, indexed by enum single. */
struct gradient_barriers {
    uint64_t qk_full[2], qk_empty[2], row_full[2], row_empty[2], full[3], empty[3];
};
enum single { V_TILE, S_TILE, DS_TILE };

static __device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

static __device__ __forceinline__ void store_number(const carry_delta_array &view, int batch, int token, int head,
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

/* x = a b^T. The summed dimension has 128 elements: both tiles have rows of 128 elements along it, in two bands of
   64. */
static __device__ __forceinline__ void rows_product(float (&x)[32], uint32_t a, uint32_t b) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t along = i / 4 * BAND + i % 4 * 32;
        hopper::product_both(x, hopper::describe(a + along, 0), hopper::describe(b + along, 0), i > 0);
    }
}

/* x = a s, where a is a tile [tokens, values] and s a kept state. */
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

/* Loads columns 16 i to 16 i + 15 of a tile of q or k in the layout of a warp's sums of 16 rows: [2 e + r] is the pair
   of elements in row + 8 r and the e-th group of eight columns. */
static __device__ __forceinline__ void load_rows(uint32_t (&to)[4], uint32_t tile, int i, int warp, int lane) {
    load_matrices(to, swizzled(tile + i / 4 * BAND, 16 * warp + (lane & 8) + lane % 8, i % 4 * 2 + lane / 16));
}

/* sum += factor[row] more[row] x, and dot[row] = factor[row] norm[row] (row of x . row of tile), for the two rows of
   this thread. */
static __device__ __forceinline__ void add_rows(float (&sum)[64], const float (&x)[64], const float (&factor)[2],
                                                const float (&more)[2], const float (&norm)[2], uint32_t tile,
                                                float *dot, int row, int warp, int lane) {
    float dots[2][2] = {}, by[2] = {factor[0] * more[0], factor[1] * more[1]};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t t[4];
        load_rows(t, tile, i, warp, lane);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int at = 8 * i + 2 * j, r = j % 2;
            dots[r][0] = fmaf(x[at], low_half(t[j]), dots[r][0]);
            dots[r][1] = fmaf(x[at + 1], high_half(t[j]), dots[r][1]);
            sum[at] = fmaf(by[r], x[at], sum[at]);
            sum[at + 1] = fmaf(by[r], x[at + 1], sum[at + 1]);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float d = quad_sum(dots[r][0] + dots[r][1]) * (factor[r] * norm[r]);
        if (lane % 4 == 0) {
            dot[row + 8 * r] = d;
        }
    }
}

/* Applies decays and factors to one of the two squares: x is dP (queries: below and on the diagonal) or M (below the
   diagonal; gradients.cuh). The result is packed twice, as a left operand and for storing as a tile. Also multiplies x,
   element by element, by decays and `products` (q k^T or k k^T), and sums that by row and by column. */
static __device__ __forceinline__ void weigh_square(bool queries, float scale, const float *n, gradient_numbers &sums,
                                                    const float (&x)[32], const float (&products)[32],
                                                    uint32_t (&operand)[16], uint32_t (&packed)[16], int warp,
                                                    int lane) {
    int row = 16 * warp + lane / 4;
    float total[2] = {0.0f, 0.0f}, high[2], low[2], by[2], norm[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = row + 8 * r;
        high[r] = n[HIGH + i];
        low[r] = n[LOW + i];
        by[r] = queries ? scale : -left_beta(n[BETA + i]);
        norm[r] = n[(queries ? NORM_Q : NORM_K) + i];
    }
#pragma unroll
    for (int block = 0; block < 8; block++) {
        int column = 8 * block + lane % 4 * 2;
        float2 h = *(const float2 *)(n + HIGH + column), l = *(const float2 *)(n + LOW + column);
        float2 w = *(const float2 *)(n + NORM_K + column), down = {0.0f, 0.0f};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = row + 8 * r, last = i - (queries ? 0 : 1);
            float d0 = column <= last ? power_of_two((high[r] - h.x) + (low[r] - l.x)) : 0.0f;
            float d1 = column + 1 <= last ? power_of_two((high[r] - h.y) + (low[r] - l.y)) : 0.0f;
            float x0 = d0 * x[4 * block + 2 * r], x1 = d1 * x[4 * block + 2 * r + 1];
            float p0 = x0 * norm[r] * w.x * products[4 * block + 2 * r];
            float p1 = x1 * norm[r] * w.y * products[4 * block + 2 * r + 1];
            total[r] += p0 + p1; /* without the factor `by` */
            down.x += by[r] * p0;
            down.y += by[r] * p1;
            x0 *= by[r];
            x1 *= by[r];
            operand[2 * block + r] = pack(x0 * w.x, x1 * w.y);
            packed[2 * block + r] = pack(x0 * norm[r], x1 * norm[r]);
            if (!queries && i / 2 * 2 == column) { /* the diagonal of M */
                sums.yv[i] = i % 2 == 0 ? x[4 * block + 2 * r] : x[4 * block + 2 * r + 1];
            }
        }
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
            down.x += __shfl_xor_sync(0xffffffffu, down.x, step);
            down.y += __shfl_xor_sync(0xffffffffu, down.y, step);
        }
        if (lane < 4) {
            *(float2 *)&sums.column[(queries ? 0 : 4) + warp][column] = down;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float d = quad_sum(total[r]);
        if (lane % 4 == 0) {
            (queries ? sums.row_p : sums.row_m)[row + 8 * r] = queries ? scale * d : d;
        }
    }
}

/* Stores a square as a tile. No thread of the warpgroup may still read the tile. */
static __device__ __forceinline__ void store_square(uint32_t tile, const uint32_t (&packed)[16], int warp, int lane) {
#pragma unroll
    for (int block = 0; block < 8; block += 2) {
        int to = 16 * warp + (lane & 8) + lane % 8;
        store_matrices(swizzled(tile, to, block + lane / 16), packed[2 * block], packed[2 * block + 1],
                       packed[2 * block + 2], packed[2 * block + 3]);
    }
    hopper::fence_async();
}

/* Computes S . dS with the 96 threads that have no other work. */
constexpr int INNER_WARPS = 3;
static __device__ __forceinline__ void inner_product(gradient_numbers &sums, const char *s, const char *ds,
                                                     int thread) {
    float sum = 0.0f;
#pragma unroll 2
    for (int i = thread; i < STATE_BYTES / 16; i += 32 * INNER_WARPS) {
        uint4 w = *(const uint4 *)(s + i * 16), x = *(const uint4 *)(ds + i * 16);
        const uint32_t sw[4] = {w.x, w.y, w.z, w.w}, xw[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sum = fmaf(low_half(sw[j]), low_half(xw[j]), sum);
            sum = fmaf(high_half(sw[j]), high_half(xw[j]), sum);
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

/* Adds the results of the parts of a value head of 256 or 512, part after part. True after the last. */
static __device__ __forceinline__ bool add_parts(float (*held)[C], float (&dg)[2], float (&dbeta)[2], int part,
                                                 int last, int lane) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int t = 2 * lane + i;
        if (part > 0) {
            dg[i] += held[0][t];
            dbeta[i] += held[1][t];
        }
        if (part < last) {
            held[0][t] = dg[i];
            held[1][t] = dbeta[i];
        }
    }
    return part == last;
}

/* Adds the results of the two halves of 256 keys. True once both have been added. */
static __device__ __forceinline__ bool add_halves(const gradient_args &a, int64_t tile, float (&dg)[2],
                                                  float (&dbeta)[2], int lane) {
    float2 *of_g = (float2 *)(a.numbers + tile * 2 * C) + lane, *of_beta = of_g + C / 2;
    if (a.last_turn()) {
        dg[0] += of_g->x;
        dg[1] += of_g->y;
        dbeta[0] += of_beta->x;
        dbeta[1] += of_beta->y;
    } else {
        *of_g = {dg[0], dg[1]};
        *of_beta = {dbeta[0], dbeta[1]};
    }
    return a.last_turn();
}

/* Computes the gradients of gates and beta for one value head. One warp, two tokens for each lane. */
static __device__ __forceinline__ void finish_numbers(const gradient_args &a, const float *n,
                                                      const gradient_numbers &sums, float (*held)[C],
                                                      const chunk_place &at, int slot, int value_head, int lane) {
    float x[2], dbeta[2], lefts = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int t = 2 * lane + i;
        float columns = 0.0f;
#pragma unroll
        for (int w = 0; w < 8; w++) {
            columns += sums.column[w][t];
        }
        float beta = n[BETA + t], by = left_beta(beta); /* beta times the gradient of beta is Y . V' */
        x[i] = sums.q_dot[t] + sums.row_p[t] - by * sums.row_m[t] - columns + by * sums.w_dot[t] - sums.left_dot[t];
        float whole = !a.last_turn() ? 0.0f : tiny(beta) ? sums.y_value[t] : sums.yv[t] / (beta * beta);
        dbeta[i] = whole + (tiny(beta) ? sums.w_dot[t] - sums.row_m[t] : 0.0f);
        lefts += sums.left_dot[t];
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        lefts += __shfl_xor_sync(0xffffffffu, lefts, step);
    }
    if (lane == 31) {
        float inner = 0.0f;
        for (int w = 0; w < INNER_WARPS; w++) {
            inner += sums.inner[w];
        }
        x[1] += lefts + inner * fade_of(n, C - 1);
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
    int head = value_head >> a.in.s.shift, last = (1 << a.in.s.shift) - 1;
    if (last > 0 && !add_parts(held, dg, dbeta, value_head & last, last, lane)) {
        return;
    }
    if (a.turns > 1 && !add_halves(a, tile_of(a.in.s, slot, value_head), dg, dbeta, lane)) {
        return;
    }
    float rates = 0.0f, biases = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int t = 2 * lane + i;
        if (t < at.length) {
            if (a.in.beta_sigmoid) {
                dbeta[i] *= n[BETA + t] * (1.0f - n[BETA + t] / a.in.beta_factor);
            }
            store_number(a.dbeta, at.batch, at.first + t, head, dbeta[i]);
            if (a.in.g.data != nullptr) {
                float d = dg[i];
                if (a.in.gate_inside) {
                    float z =
                        number_of(bits_at(a.in.g, at.batch, at.first + t, head), a.in.g.dtype) + a.in.dt_bias[head];
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
            float *to = a.partial + tile_of(a.in.s, slot, value_head) * 2;
            to[0] = rates;
            to[1] = biases;
        }
    }
}

/* For K = 256: stores the dot products of a thread's two rows over the first 128 keys. In the second launch, adds them
   to those over the other 128 keys and stores the sums. Returns true once the sums cover all keys. */
static __device__ __forceinline__ bool add_dots(const gradient_args &a, float *dots, float (&dot)[2], int row,
                                                int lane) {
    if (a.last_turn()) {
        dot[0] += dots[row];
        dot[1] += dots[row + 8];
    }
    __syncwarp();
    if (lane % 4 == 0) {
        dots[row] = dot[0];
        dots[row + 8] = dot[1];
    }
    return a.last_turn();
}

/* Stores dq or dk of a warpgroup, after the gradient of the norm, by way of the shared buffer `to`. `to` is in use
   until the first thread's stores have read it. For the first half of 256 keys, finish_norms applies the gradient of
   the norm. */
static __device__ __forceinline__ void store_rows(const gradient_args &a, const CUtensorMap *map,
                                                  const carry_delta_array &view, float (&x)[64], uint32_t tile,
                                                  const float (&norm)[2], float *dots, const chunk_place &at, int head,
                                                  uint32_t to, int barrier, int warp, int lane) {
    using namespace hopper;
    float dot[2] = {0.0f, 0.0f};
    uint32_t t[4];
    int parts = 8 * a.in.s.key_bands;
    if (a.in.l2norm) {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            if (i % 4 == 0) {
                load_rows(t, tile, i / 4, warp, lane);
            }
            dot[i % 2] += low_half(t[i % 4]) * x[2 * i] + high_half(t[i % 4]) * x[2 * i + 1];
        }
        dot[0] = quad_sum(dot[0]) * norm[0] * norm[0];
        dot[1] = quad_sum(dot[1]) * norm[1] * norm[1];
    }
    if (a.in.l2norm && (a.turns == 1 || add_dots(a, dots, dot, 16 * warp + lane / 4, lane))) {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            if (i % 4 == 0) {
                load_rows(t, tile, i / 4, warp, lane);
            }
            x[2 * i] = norm[i % 2] * (x[2 * i] - low_half(t[i % 4]) * dot[i % 2]);
            x[2 * i + 1] = norm[i % 2] * (x[2 * i + 1] - high_half(t[i % 4]) * dot[i % 2]);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        store_matrices(swizzled(to + i / 4 * BAND, 16 * warp + (lane & 8) + lane % 8, i % 4 * 2 + lane / 16),
                       pack(x[8 * i], x[8 * i + 1]), pack(x[8 * i + 2], x[8 * i + 3]), pack(x[8 * i + 4], x[8 * i + 5]),
                       pack(x[8 * i + 6], x[8 * i + 7]));
    }
    fence_async();
    group_meet(barrier, 128);
    int thread = 32 * warp + lane;
    if (at.length == C) {
        if (thread == 0) {
            store_tile(map, to, at.first, 2 * a.turn, head, at.batch);
            stores_commit();
        }
        return;
    }
    __nv_bfloat16 *out = (__nv_bfloat16 *)view.data + at.batch * view.batch + (int64_t)at.first * view.token +
                         head * view.head + a.turn * D;
    for (int i = thread; i < at.length * parts; i += 128) {
        int token = i / parts, part = i % parts;
        uint4 w;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                     : "r"(swizzled(to + part / 8 * BAND, token, part % 8)));
        *(uint4 *)(out + token * view.token + part * 8) = w;
    }
}

} // namespace DELTA_CHUNK

#endif

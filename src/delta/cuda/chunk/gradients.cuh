/* gradients: one block for a chunk and a head of q and k, its value heads one after the other, so that dq and dk are
   summed in registers. D[i,j] = e^(G[i]-G[j]), j <= i, k^ and q^ are k and q after normalisation, Y is as in scan.cuh,
   M = Y V'^T and dP = dO V'^T:

       dq^ = scale e^G (dO S^T) + (scale D dP) k^
       dk^ = (scale D dP)^T q^ + left (V' dS^T) - beta e^G (Y S^T) + (H + H^T) k^,   H = -beta D M below the diagonal

   One warpgroup makes dq, the other dk. dv = beta Y is stored in place of Y (device.cuh). The gradients of the gates
   and of beta are sums over rows and columns of these products. */
#ifndef CARRY_DELTA_CHUNK_GRADIENTS_CUH
#define CARRY_DELTA_CHUNK_GRADIENTS_CUH

#include "delta/cuda/chunk/gradient_betas.cuh"

namespace DELTA_CHUNK {

struct gradient_places {
    uint32_t start, barriers;
    const char *data;
    __device__ __forceinline__ uint32_t qk_full(int n) const {
        return barriers + 8 * (n % 2);
    }
    __device__ __forceinline__ uint32_t qk_empty(int n) const {
        return barriers + 16 + 8 * (n % 2);
    }
    __device__ __forceinline__ uint32_t row_full(int n) const {
        return barriers + 32 + 8 * (n % 2);
    }
    __device__ __forceinline__ uint32_t row_empty(int n) const {
        return barriers + 48 + 8 * (n % 2);
    }
    __device__ __forceinline__ uint32_t full(single which) const {
        return barriers + 64 + 8 * which;
    }
    __device__ __forceinline__ uint32_t empty(single which) const {
        return barriers + 88 + 8 * which;
    }
    __device__ __forceinline__ int qk(int n) const {
        return GQ + n % 2 * 2 * TILE;
    }
    __device__ __forceinline__ int rows(int n) const { /* offset of dO, which Y follows */
        return GO + n % 2 * 2 * TILE;
    }
    __device__ __forceinline__ const float *numbers(int n) const {
        return (const float *)(data + GN + n % 2 * NUMBERS_BYTES);
    }
};

static __device__ __forceinline__ void copy_state(const shape &s, uint32_t to, const char *from, uint32_t barrier) {
    hopper::barrier_expect(barrier, state_bytes(s));
    for (int band = 0; band < s.key_bands; band++) {
        hopper::copy_bytes(to + band * 2 * BAND, from + band * value_bytes(s), value_bytes(s), barrier);
    }
}

/* Writes zeros where tiles of values and states are smaller than their buffer. No copy writes there. */
static __device__ __forceinline__ void clear_places(const shape &s, uint32_t start, int thread) {
    if (s.bands + s.key_bands == 4) {
        return;
    }
    for (int at = GV + thread * 16; at < GN; at += GRADIENT_THREADS * 16) {
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(start + (uint32_t)at), "r"(0) : "memory");
    }
    hopper::fence_async();
}

/* Run by one thread: copies all tiles of this block's chunks, each as soon as its buffer is free. */
static __device__ __forceinline__ void copy_items(const gradient_args &a, const gradient_places &p) {
    using namespace hopper;
    const shape &s = a.in.s;
    int group = s.value_heads / s.heads, done = 0, n = 0; /* items and value heads done */
    int first = a.turn * state_bytes(s);
    for (int item = (int)blockIdx.x; item < a.items; item += (int)gridDim.x) {
        gradient_item one = item_of(a, item);
        const chunk_place &at = one.at;
        int head = one.head;
        if (at.length <= 0) {
            continue;
        }
        uint32_t qk = p.start + p.qk(done);
        barrier_wait(p.qk_empty(done), done / 2 % 2 ^ 1);
        barrier_expect(p.qk_full(done), 2 * TILE);
        copy_tile(qk + TILE, &a.in.k, at.first, 2 * a.turn, head, at.batch, p.qk_full(done));
        copy_tile(qk, &a.in.q, at.first, 2 * a.turn, head, at.batch, p.qk_full(done));
        done++;
        for (int e = 0; e < group; e++, n++) {
            int value_head = head * group + e;
            int64_t tile = tile_of(s, one.slot, value_head);
            int64_t kept = one.kept * s.value_heads + value_head, back = one.back * s.value_heads + value_head;
            uint32_t rows = p.start + p.rows(n), full = p.row_full(n);
            barrier_wait(p.row_empty(n), n / 2 % 2 ^ 1);
            barrier_expect(full, 2 * TILE + NUMBERS_BYTES);
            copy_bytes(p.start + GN + n % 2 * NUMBERS_BYTES, a.in.tiles + tile * CHUNK_BYTES + NUMBERS_AT,
                       NUMBERS_BYTES, full);
            copy_tile(rows, &a.grad_o, at.first, 0, value_head, at.batch, full);
            copy_tile(rows + TILE, &a.grad_v, at.first, 0, value_head, at.batch, full);
            barrier_wait(p.empty(V_TILE), n % 2 ^ 1);
            barrier_expect(p.full(V_TILE), value_bytes(s));
            copy_bytes(p.start + GV, a.values + kept * value_bytes(s), value_bytes(s), p.full(V_TILE));
            barrier_wait(p.empty(DS_TILE), n % 2 ^ 1);
            copy_state(s, p.start + GDS, a.dstates + back * a.kept_bytes + first, p.full(DS_TILE));
            barrier_wait(p.empty(S_TILE), n % 2 ^ 1);
            copy_state(s, p.start + GS, a.states + kept * a.kept_bytes + first, p.full(S_TILE));
        }
    }
}

/* Computes the inner product S . dS for every value head, in the warps next to the one that issues copies. The first
   warp of the warpgroup of dq waits for the result. */
static __device__ __forceinline__ void inner_items(const gradient_args &a, const gradient_places &p,
                                                   gradient_numbers *sums, int thread) {
    using namespace hopper;
    int group = a.in.s.value_heads / a.in.s.heads, n = 0;
    for (int item = (int)blockIdx.x; item < a.items; item += (int)gridDim.x) {
        if (item_of(a, item).at.length <= 0) {
            continue;
        }
        for (int e = 0; e < group; e++, n++) {
            barrier_wait(p.full(DS_TILE), n % 2);
            barrier_wait(p.full(S_TILE), n % 2);
            inner_product(sums[n % 2], p.data + GS, p.data + GDS, thread);
            __syncwarp();
            if (thread % 32 < ARRIVING) {
                barrier_arrive(p.empty(DS_TILE));
                barrier_arrive(p.empty(S_TILE));
            }
            group_meet(6, 32 * (INNER_WARPS + 1));
        }
    }
}

/* A warpgroup that computes dq (queries) or dk. */
struct gradient_worker {
    const gradient_args &a;
    const gradient_places &p;
    gradient_numbers *all; /* two of them */
    bool queries;
    int warp, lane;

    float sum[64], norm[2];
    int row, thread, item_index, n; /* item_index, n: items and value heads that this block has done */
    uint32_t q, k, mine, left;
    const float *numbers;
    chunk_place at;

    __device__ __forceinline__ void arrive(uint32_t barrier) {
        __syncwarp();
        if (lane < ARRIVING) {
            hopper::barrier_arrive(barrier);
        }
    }
    /* sum += factor * more * (left s) by row, and stores the dot products of its rows with the rows of q or k. */
    __device__ __forceinline__ void add_state(uint32_t from, single which, float *dot, const float (&factor)[2],
                                              const float (&more)[2]) {
        float x[64];
        hopper::barrier_wait(p.full(which), n % 2);
        state_product(x, from, p.start + (which == S_TILE ? GS : GDS));
        arrive(p.empty(which));
        if (which == DS_TILE) {
            arrive(p.empty(V_TILE));
        }
        add_rows(sum, x, factor, more, norm, mine, dot, row, warp, lane);
    }
    __device__ __forceinline__ void squares(gradient_numbers &sums, uint32_t (&operand)[16], uint32_t (&packed)[16]) {
        using namespace hopper;
        float x[32], products[32];
        products_begin();
        rows_product(products, mine, k);
        rows_product(x, left, p.start + GV);
        products_commit();
        products_wait<0>();
        keep_below(products);
        keep_below(x);
        if (queries) {
            arrive(p.empty(V_TILE));
        }
        weigh_square(queries, a.in.scale, numbers, sums, x, products, operand, packed, warp, lane);
    }
    /* Adds the products with states: dO S^T for dq, V' dS^T and Y S^T for dk. Then the squares overwrite dO,
       which is not read again. */
    __device__ __forceinline__ void states(gradient_numbers &sums, const uint32_t (&packed)[16], int value_head) {
        using namespace hopper;
#pragma unroll 1 /* one copy of the code for all passes, to save instruction fetches */
        for (int pass = 0; pass < (queries ? 1 : 2); pass++) {
            bool from_s = queries || pass == 1;
            float factor[2], more[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int i = row + 8 * r;
                factor[r] = queries     ? a.in.scale * fade_of(numbers, i)
                            : pass == 0 ? decay_of(numbers, C - 1, i)
                                        : -fade_of(numbers, i);
                more[r] = from_s && !queries ? left_beta(numbers[BETA + i]) : 1.0f;
            }
            add_state(from_s ? left : p.start + GV, from_s ? S_TILE : DS_TILE,
                      queries     ? sums.q_dot
                      : pass == 0 ? sums.left_dot
                                  : sums.w_dot,
                      factor, more);
        }
        if (queries) {
            group_meet(2, 128); /* dO has been read */
            store_square(left, packed, warp, lane);
            group_tell(5, 256);
        } else {
            small_betas(a, numbers, sums, at, value_head, p.data + (left - p.start), thread);
            group_meet(5, 256);
            store_square(left - TILE + BAND, packed, warp, lane);
        }
    }
    __device__ __forceinline__ void one_head(int slot, int value_head) {
        using namespace hopper;
        uint32_t operand[16], packed[16];
        gradient_numbers &sums = all[n % 2];
        uint32_t rows = p.start + p.rows(n);
        left = queries ? rows : rows + TILE;
        numbers = p.numbers(n);
        barrier_wait(p.row_full(n), n / 2 % 2);
        barrier_wait(p.full(V_TILE), n % 2);
        if (at.length < C) { /* rows beyond the end may hold NaN or infinity; one_item clears q and k */
            clear_rows(left, 2, at.length, thread);
            fence_async();
            group_meet(1, 256);
        }
        norm[0] = numbers[(queries ? NORM_Q : NORM_K) + row];
        norm[1] = numbers[(queries ? NORM_Q : NORM_K) + row + 8];
        squares(sums, operand, packed);
        states(sums, packed, value_head);
        group_meet(1, 256); /* both squares and all sums are written */
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
                product_turned(sum, describe(rows + i * 2048, 0), describe(q + i * 2048, BAND), 1);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                product_turned(sum, describe(rows + BAND + i * 2048, 0), describe(k + i * 2048, BAND), 1);
            }
            products_commit();
            if (a.last_turn()) { /* runs while the products are computed */
                finish_values(a, numbers, at, value_head, p.data + (left - p.start), thread);
            }
        } else if (warp == 0) {
            group_meet(6, 32 * (INNER_WARPS + 1));
            finish_numbers(a, numbers, sums, all->held, at, slot, value_head, lane);
        }
        products_wait<0>();
        keep_below(sum);
    }
    __device__ __forceinline__ void one_item(int slot, int head) {
        using namespace hopper;
        int group = a.in.s.value_heads / a.in.s.heads;
        q = p.start + p.qk(item_index);
        k = q + TILE;
        mine = queries ? q : k;
#pragma unroll
        for (int i = 0; i < 64; i++) {
            sum[i] = 0.0f;
        }
        barrier_wait(p.qk_full(item_index), item_index / 2 % 2);
        if (at.length < C) { /* once for all value heads, before any product reads them */
            clear_rows(mine, 2, at.length, thread);
        }
        for (int e = 0; e < group; e++) {
            if (e > 0) {
                arrive(p.row_empty(n));
                n++;
            }
            one_head(slot, head * group + e);
        }
        if (queries) { /* wait until the other warpgroup has read the squares stored over dO */
            group_meet(4, 256);
        } else { /* wait until every warp of this warpgroup has read Y */
            group_meet(3, 128);
            group_tell(4, 256);
        }
        float *dots = a.dots + (((int64_t)slot * a.in.s.heads + head) * 2 + (queries ? 0 : 1)) * C;
        store_rows(a, queries ? &a.grad_q : &a.grad_k, queries ? a.dq : a.dk, sum, mine, norm, dots, at, head, left,
                   queries ? 2 : 3, warp, lane);
        arrive(p.qk_empty(item_index));
        if (thread == 0) {
            stores_wait_read();
        }
        arrive(p.row_empty(n));
        n++;
        item_index++;
    }
    __device__ __forceinline__ void run() {
        const shape &s = a.in.s;
        int group = s.value_heads / s.heads;
        for (int item = (int)blockIdx.x; item < a.items; item += (int)gridDim.x) {
            gradient_item one = item_of(a, item);
            at = one.at;
            if (at.length > 0) {
                one_item(one.slot, one.head);
            } else if (queries && a.partial != nullptr && a.r.each == 0 && a.r.count == 0) {
                for (int i = thread; i < 2 * (group >> s.shift); i += 128) {
                    a.partial[tile_of(s, one.slot, one.head * group) * 2 + i] = 0.0f;
                }
            }
        }
    }
};

__global__ void __launch_bounds__(GRADIENT_THREADS, 1) gradients(const __grid_constant__ gradient_args a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace hopper;
    extern __shared__ char memory[];
    __shared__ gradient_numbers sums[2];
    __shared__ gradient_barriers b;
    gradient_places p;
    p.start = (shared_address(memory) + 1023u) & ~1023u;
    p.data = memory + (p.start - shared_address(memory));
    p.barriers = shared_address(&b);
    int thread = (int)threadIdx.x;
    if (thread == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(p.qk_full(i), 1);
            barrier_init(p.qk_empty(i), 8 * ARRIVING);
            barrier_init(p.row_full(i), 1);
            barrier_init(p.row_empty(i), 8 * ARRIVING);
        }
        for (int i = 0; i < 3; i++) {
            barrier_init(p.full((single)i), 1);
            barrier_init(p.empty((single)i), ARRIVING * (i == V_TILE ? 8 : (i == S_TILE ? 8 : 4) + INNER_WARPS));
        }
        fence_async();
    }
    clear_places(a.in.s, p.start, thread);
    __syncthreads();
    if (thread >= 256) {
        registers_give<40>();
        if (thread == 256) {
            copy_items(a, p);
        } else if (thread >= 288) {
            inner_items(a, p, sums, thread - 288);
        }
    } else {
        registers_take<232>();
        int warp = thread % 128 / 32, lane = thread % 32;
        gradient_worker me = {a, p, sums, thread < 128, warp, lane};
        me.row = 16 * warp + lane / 4;
        me.thread = thread % 128;
        me.item_index = 0;
        me.n = 0;
        me.run();
    }
#endif
}

/* For the first 128 of 256 key channels: applies the gradient of the norm to dq and dk, once the dot products cover
   all channels. A block processes its items in turn, 8 rows at a time with 16 threads per row. */
static __global__ void __launch_bounds__(128)
    finish_norms(const __grid_constant__ gradient_args a, const __grid_constant__ carry_delta_array q,
                 const __grid_constant__ carry_delta_array k) {
    for (int index = (int)blockIdx.x; index < a.items; index += (int)gridDim.x) {
        gradient_item item = item_of(a, index);
        const shape &s = a.in.s;
        const float *dots = a.dots + ((int64_t)item.slot * s.heads + item.head) * 2 * C;
        int group = s.value_heads / s.heads;
        for (int i = (int)threadIdx.x; i < 2 * 16 * item.at.length; i += 128) {
            int row = i / 16 % item.at.length, part = i % 16;
            bool keys = i >= 16 * item.at.length;
            const carry_delta_array &in = keys ? k : q, &out = keys ? a.dk : a.dq;
            const float *numbers =
                (const float *)(a.in.tiles + tile_of(s, item.slot, item.head * group) * CHUNK_BYTES + NUMBERS_AT);
            float norm = numbers[(keys ? NORM_K : NORM_Q) + row], dot = dots[(keys ? C : 0) + row];
            int64_t token = item.at.first + row;
            uint4 t = *(const uint4 *)((const uint16_t *)in.data + item.at.batch * in.batch + token * in.token +
                                       item.head * in.head + 8 * part);
            uint4 *place = (uint4 *)((uint16_t *)out.data + item.at.batch * out.batch + token * out.token +
                                     item.head * out.head + 8 * part);
            uint4 x = *place;
            const uint32_t ts[4] = {t.x, t.y, t.z, t.w};
            uint32_t xs[4] = {x.x, x.y, x.z, x.w};
            for (int j = 0; j < 4; j++) {
                xs[j] = pack(norm * (low_half(xs[j]) - low_half(ts[j]) * dot),
                             norm * (high_half(xs[j]) - high_half(ts[j]) * dot));
            }
            *place = {xs[0], xs[1], xs[2], xs[3]};
        }
    }
}

/* Sums the partial results of chunks, always in the same order. One block for each value head. */
__global__ void __launch_bounds__(256)
    sum_partials(const float *partial, float *dA_log, float *ddt_bias, int slots, int heads, bool add) {
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
        dA_log[head] = part[0][0] + (add ? dA_log[head] : 0.0f);
        ddt_bias[head] = part[1][0] + (add ? ddt_bias[head] : 0.0f);
    }
}

} // namespace DELTA_CHUNK

#endif

/* A mixture of experts for one token of each of a few sequences: only the matrices of chosen experts and of the shared
   expert are read, once for each sequence.

   experts_up: a block processes some rows of one expert that a sequence has chosen, or of the shared one; it determines
   the expert itself, from the router's logits. A warp multiplies a row of the gate matrix and the same row of the up
   matrix with the input. experts_down: a warp computes elements of the result, each of which is a sum over all experts
   of the sequence. The activations of these experts are adjacent in one row; those of each expert are first multiplied
   by the router's weight for it.

   The order of sums depends only on the shape: the results of a sequence have the same bits whichever other sequences
   are in the step. */
#ifndef CARRY_ENGINE_CHAIN_EXPERTS_CUH
#define CARRY_ENGINE_CHAIN_EXPERTS_CUH

#include "engine/cuda/chain_kernel.cuh"

namespace chain {

constexpr int LANE_LOGITS = CARRY_CHAIN_EXPERTS_MOST / 32;
constexpr int STEP = 8 * 32;                /* elements of a row that a warp loads at once */
constexpr int UP_AHEAD = 4, DOWN_AHEAD = 6; /* loads of a row in flight */

/* Bits in the order of the numbers; NaN is the largest. */
static __device__ __forceinline__ unsigned order_of(float x) {
    const unsigned bits = __float_as_uint(x);
    return isnan(x) ? 0xfffffffeu : bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* One warp finds choice number `wanted` of a sequence, counted from 0: *expert gets its index, and its weight is
   returned. Among equal logits the expert with the lower index is chosen. */
static __device__ __forceinline__ float choose(const carry_chain_experts &e, int sequence, int wanted, int *expert) {
    const int lane = threadIdx.x % 32;
    unsigned order[LANE_LOGITS];
    float logit[LANE_LOGITS], largest = 0.0f, sum = 0.0f, own = 0.0f;
#pragma unroll
    for (int i = 0; i < LANE_LOGITS; i++) {
        const int at = lane + 32 * i;
        logit[i] = at < e.experts ? load_bf16(e.logits, (size_t)sequence * e.logits_stride + at) : 0.0f;
        order[i] = at < e.experts ? order_of(logit[i]) : 0u;
    }
    for (int turn = 0; turn < e.chosen; turn++) {
        unsigned best = 0;
#pragma unroll
        for (int i = 0; i < LANE_LOGITS; i++) {
            best = max(best, order[i]);
        }
        const unsigned most = __reduce_max_sync(~0u, best);
        unsigned first = ~0u;
#pragma unroll
        for (int i = LANE_LOGITS - 1; i >= 0; i--) {
            first = order[i] == most ? (unsigned)(lane + 32 * i) : first;
        }
        const unsigned taken = __reduce_min_sync(~0u, first);
        float value = 0.0f;
#pragma unroll
        for (int i = 0; i < LANE_LOGITS; i++) {
            if (taken == (unsigned)(lane + 32 * i)) {
                value = logit[i];
                order[i] = 0u;
            }
        }
        value = __shfl_sync(~0u, value, (int)taken % 32);
        largest = turn == 0 ? value : largest;
        sum += e.normalise ? expf(value - largest) : 0.0f;
        if (turn == wanted) {
            own = value;
            *expert = (int)taken;
        }
    }
    if (!e.normalise) {
#pragma unroll
        for (int i = 0; i < LANE_LOGITS; i++) {
            sum += lane + 32 * i < e.experts ? expf(logit[i] - largest) : 0.0f;
        }
        sum = warp_sum(sum);
    }
    return e.scale * expf(own - largest) / sum;
}

/* Adds the products of eight neighbouring weights with x, in order. */
static __device__ __forceinline__ float add_eight(float sum, const uint4 &w, const float *x) {
    const float4 a = *(const float4 *)x, b = *(const float4 *)(x + 4);
    sum = fmaf(low_of(w.x), a.x, sum);
    sum = fmaf(high_of(w.x), a.y, sum);
    sum = fmaf(low_of(w.y), a.z, sum);
    sum = fmaf(high_of(w.y), a.w, sum);
    sum = fmaf(low_of(w.z), b.x, sum);
    sum = fmaf(high_of(w.z), b.y, sum);
    sum = fmaf(low_of(w.w), b.z, sum);
    return fmaf(high_of(w.w), b.w, sum);
}

/* Loads the sequence's input, multiplied by the norm's weights, into shared memory; returns 1 / rms. */
static __device__ __forceinline__ float load_input(const carry_chain_experts &e, int sequence, float *x,
                                                   float *squares) {
    const unsigned *low = (const unsigned *)e.low + (size_t)sequence * (e.columns / 2);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < e.columns / 2; i += THREADS) {
        const unsigned pair = __ldcg(low + i);
        const float a = low_of(pair), b = high_of(pair);
        const float2 factor = __ldg((const float2 *)e.norm + i);
        sum += a * a;
        sum += b * b;
        const unsigned scaled = pair_of(a * (e.plus + factor.x), b * (e.plus + factor.y));
        x[2 * i] = low_of(scaled);
        x[2 * i + 1] = high_of(scaled);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) {
        squares[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        sum += squares[w];
    }
    return rsqrtf(sum / (float)e.columns + e.eps);
}

/* Pieces of rows that are being loaded. */
template <int COUNT> struct loads { uint4 w[COUNT]; };

/* The product of one row with x, summed over the warp. */
static __device__ __forceinline__ float one_row(const __nv_bfloat16 *w, const float *x, int columns) {
    float sum = 0.0f;
    for (int at = 8 * (int)(threadIdx.x % 32); at < columns; at += STEP) {
        sum = add_eight(sum, load_once(w + at), x + at);
    }
    return warp_sum(sum);
}

/* The matrices and rows of a block of experts_up. */
struct up_work {
    const __nv_bfloat16 *gate, *up;
    int first, end; /* rows */
};

/* Multiplies rows first + warp, first + warp + 8, ... of gate and up. The next piece of a row, or of the next row, is
   loaded before the current one is multiplied. */
static __device__ __forceinline__ void multiply_rows(const carry_chain_experts &e, const up_work &work, const float *x,
                                                     float rate, __nv_bfloat16 *to) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int pieces = (e.columns + UP_AHEAD * STEP - 1) / (UP_AHEAD * STEP);
    const int rows = work.end - work.first > warp ? (work.end - work.first - warp + WARPS - 1) / WARPS : 0;
    auto load = [&](loads<2 * UP_AHEAD> &l, int i) {
        const size_t row = (size_t)(work.first + warp + i / pieces * WARPS) * e.columns;
        const int at = i % pieces * UP_AHEAD * STEP + 8 * lane;
#pragma unroll
        for (int u = 0; u < UP_AHEAD; u++) {
            if (i < rows * pieces && at + u * STEP < e.columns) {
                l.w[2 * u] = load_once(work.gate + row + at + u * STEP);
                l.w[2 * u + 1] = load_once(work.up + row + at + u * STEP);
            }
        }
    };
    float gate = 0.0f, up = 0.0f;
    auto use = [&](const loads<2 * UP_AHEAD> &l, int i) {
        const int at = i % pieces * UP_AHEAD * STEP + 8 * lane;
#pragma unroll
        for (int u = 0; u < UP_AHEAD; u++) {
            if (at + u * STEP < e.columns) {
                gate = add_eight(gate, l.w[2 * u], x + at + u * STEP);
                up = add_eight(up, l.w[2 * u + 1], x + at + u * STEP);
            }
        }
        if (i % pieces == pieces - 1) {
            gate = rate * warp_sum(gate);
            up = rate * warp_sum(up);
            if (lane == 0) {
                to[work.first + warp + i / pieces * WARPS] = __float2bfloat16_rn(silu(gate) * up);
            }
            gate = up = 0.0f;
        }
    };
    loads<2 * UP_AHEAD> now, next;
    load(now, 0);
    for (int i = 0; i < rows * pieces; i += 2) {
        load(next, i + 1);
        use(now, i);
        if (i + 1 < rows * pieces) {
            load(now, i + 2);
            use(next, i + 1);
        }
    }
}

/* Prefetches this block's share of the bytes of down into the L2 cache, while the products with up are computed. */
static __device__ __forceinline__ void ask_for_down(const void *down, size_t bytes, int part, int parts) {
    const size_t all = bytes / 16, first = all * part / parts, end = all * (part + 1) / parts;
    if (threadIdx.x == 0 && end > first) {
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"((const char *)down + first * 16),
                     "r"((unsigned)(end - first) * 16)
                     : "memory");
    }
}

static __global__ __launch_bounds__(THREADS, 2) void experts_up(const __grid_constant__ carry_chain_experts e,
                                                                int each) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) float input[];
    __shared__ float squares[WARPS];
    __shared__ int own;
    const int own_tiles = (e.width + each - 1) / each, shared_tiles = (e.shared_width + each - 1) / each;
    const int tiles = e.chosen * own_tiles + shared_tiles, sequence = (int)blockIdx.x / tiles;
    const int tile = (int)blockIdx.x % tiles, warp = threadIdx.x / 32;
    const bool is_shared = tile >= e.chosen * own_tiles;
    const int unit = is_shared ? e.chosen : tile / own_tiles;
    const int part = is_shared ? tile - e.chosen * own_tiles : tile % own_tiles;
    let_next_begin();
    await_previous();
    if (warp == 0 && !is_shared) {
        int expert = 0;
        const float weight = choose(e, sequence, unit, &expert);
        if (threadIdx.x == 0) {
            own = expert;
            if (part == 0) {
                e.numbers[sequence * CARRY_CHAIN_CHOSEN_MOST + unit] = expert;
                e.weights[sequence * (CARRY_CHAIN_CHOSEN_MOST + 1) + unit] = weight;
            }
        }
    }
    const float rate = load_input(e, sequence, input, squares); /* it synchronises all threads */
    const int width = is_shared ? e.shared_width : e.width;
    const size_t matrix = (size_t)e.width * e.columns;
    up_work work = {(const __nv_bfloat16 *)e.shared_gate, (const __nv_bfloat16 *)e.shared_up, part * each,
                    min((part + 1) * each, width)};
    const __nv_bfloat16 *down = (const __nv_bfloat16 *)e.shared_down;
    if (!is_shared) {
        work.gate = (const __nv_bfloat16 *)e.up + 2 * own * matrix;
        work.up = work.gate + matrix;
        down = (const __nv_bfloat16 *)e.down + own * matrix;
    }
    if (gridDim.x <= 2 * tiles) { /* the rows of more sequences would not fit into the L2 cache */
        ask_for_down(down, (size_t)e.columns * width * sizeof *down, part, is_shared ? shared_tiles : own_tiles);
    }
    multiply_rows(e, work, input, rate,
                  (__nv_bfloat16 *)e.activated + (size_t)sequence * e.activated_stride + unit * e.width);
    if (is_shared && part == 0 && warp == 0) {
        const __nv_bfloat16 *scale = (const __nv_bfloat16 *)e.shared_scale;
        const float weight = scale != nullptr ? sigmoid(rate * one_row(scale, input, e.columns)) : 1.0f;
        if (threadIdx.x == 0) {
            e.weights[sequence * (CARRY_CHAIN_CHOSEN_MOST + 1) + e.chosen] = weight;
        }
    }
#endif
}

static __global__ __launch_bounds__(THREADS, 2) void experts_down(const __grid_constant__ carry_chain_experts e,
                                                                  int each) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) float input[];
    __shared__ int numbers[CARRY_CHAIN_CHOSEN_MOST];
    const int tiles = (e.columns + each - 1) / each, sequence = (int)blockIdx.x / tiles;
    const int first = (int)blockIdx.x % tiles * each, end = min(first + each, e.columns);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int inner = e.chosen * e.width, all = inner + e.shared_width;
    const float *weights = e.weights + sequence * (CARRY_CHAIN_CHOSEN_MOST + 1);
    let_next_begin();
    await_previous();
    if ((int)threadIdx.x < e.chosen) {
        numbers[threadIdx.x] = __ldcg(e.numbers + sequence * CARRY_CHAIN_CHOSEN_MOST + threadIdx.x);
    }
    const unsigned *active =
        (const unsigned *)((const __nv_bfloat16 *)e.activated + (size_t)sequence * e.activated_stride);
    for (int i = threadIdx.x; i < all / 2; i += THREADS) {
        const unsigned pair = __ldcg(active + i);
        const float weight = __ldcg(weights + (2 * i < inner ? 2 * i / e.width : e.chosen));
        input[2 * i] = weight * low_of(pair);
        input[2 * i + 1] = weight * high_of(pair);
    }
    __syncthreads();
    const int pieces = (all + DOWN_AHEAD * STEP - 1) / (DOWN_AHEAD * STEP);
    const int rows = end - first > warp ? (end - first - warp + WARPS - 1) / WARPS : 0;
    auto load = [&](loads<DOWN_AHEAD> &l, int piece) {
        const int row = first + warp + piece / pieces * WARPS;
#pragma unroll
        for (int u = 0; u < DOWN_AHEAD; u++) {
            const int i = (piece % pieces * DOWN_AHEAD + u) * STEP + 8 * lane;
            if (piece < rows * pieces && i < inner) {
                const int unit = i / e.width;
                const size_t at = ((size_t)numbers[unit] * e.columns + row) * e.width + i - unit * e.width;
                l.w[u] = load_once((const __nv_bfloat16 *)e.down + at);
            } else if (piece < rows * pieces && i < all) {
                l.w[u] = load_once((const __nv_bfloat16 *)e.shared_down + (size_t)row * e.shared_width + i - inner);
            }
        }
    };
    float sum = 0.0f;
    auto use = [&](const loads<DOWN_AHEAD> &l, int piece) {
#pragma unroll
        for (int u = 0; u < DOWN_AHEAD; u++) {
            const int i = (piece % pieces * DOWN_AHEAD + u) * STEP + 8 * lane;
            if (i < all) {
                sum = add_eight(sum, l.w[u], input + i);
            }
        }
        if (piece % pieces == pieces - 1) {
            const size_t at = (size_t)sequence * e.columns + first + warp + piece / pieces * WARPS;
            sum = warp_sum(sum);
            if (lane == 0) {
                sum += __ldcg(e.h + at);
                e.h[at] = sum;
                ((__nv_bfloat16 *)e.low)[at] = __float2bfloat16_rn(sum);
            }
            sum = 0.0f;
        }
    };
    loads<DOWN_AHEAD> now, next;
    load(now, 0);
    for (int piece = 0; piece < rows * pieces; piece += 2) {
        load(next, piece + 1);
        use(now, piece);
        if (piece + 1 < rows * pieces) {
            load(now, piece + 2);
            use(next, piece + 1);
        }
    }
#endif
}

} // namespace chain

#endif

/* A mixture of experts for one token of a few sequences: of the weights of experts, only those that are chosen are
   read, once for each sequence.

   experts_up: a block has a sequence and eight rows of one of its experts, or of the shared one; it finds the expert
   itself, from the router's logits. A warp multiplies a row of the gate and the one of up. experts_down: a warp has an
   element of the result, the sum over all experts of the sequence, whose activations are one row, times their weights.
   Sums depend on the shape alone: a sequence has the same bits beside any others. */
#ifndef CARRY_ENGINE_CHAIN_EXPERTS_CUH
#define CARRY_ENGINE_CHAIN_EXPERTS_CUH

#include "engine/cuda/chain_kernel.cuh"

namespace chain {

constexpr int LANE_LOGITS = CARRY_CHAIN_EXPERTS_MOST / 32;
constexpr int STEP = 8 * 32; /* elements of a row that a warp loads at once */
constexpr int UP_AHEAD = 4, DOWN_AHEAD = 6;

/* Larger for larger numbers; NaN comes first. */
static __device__ __forceinline__ unsigned order_of(float x) {
    const unsigned bits = __float_as_uint(x);
    return isnan(x) ? 0xfffffffeu : bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Choice `wanted` of a sequence and its weight, by one warp; *all: the number of the expert. Of equal logits the first
   is chosen. */
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

/* The products of a weight's eight neighbours with x, in their order. */
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

/* The sequence's input with the factors of its norm, in shared memory; returns 1 / rms. */
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

/* Sums of two rows with x; b NULL: of one. */
static __device__ __forceinline__ float2 two_rows(const __nv_bfloat16 *a, const __nv_bfloat16 *b, const float *x,
                                                  int columns) {
    const int lane = threadIdx.x % 32;
    float2 sum = {0.0f, 0.0f};
    for (int at = 8 * lane; at < columns; at += UP_AHEAD * STEP) {
        uint4 w[UP_AHEAD][2] = {};
#pragma unroll
        for (int u = 0; u < UP_AHEAD; u++) {
            if (at + u * STEP < columns) {
                w[u][0] = load_once(a + at + u * STEP);
                w[u][1] = b != nullptr ? load_once(b + at + u * STEP) : make_uint4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (int u = 0; u < UP_AHEAD; u++) {
            if (at + u * STEP < columns) {
                sum.x = add_eight(sum.x, w[u][0], x + at + u * STEP);
                sum.y = add_eight(sum.y, w[u][1], x + at + u * STEP);
            }
        }
    }
    return make_float2(warp_sum(sum.x), warp_sum(sum.y));
}

static __global__ __launch_bounds__(THREADS, 3) void experts_up(const __grid_constant__ carry_chain_experts e) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) float input[];
    __shared__ float squares[WARPS];
    __shared__ int own;
    const int tiles = (e.width + WARPS - 1) / WARPS, shared_tiles = (e.shared_width + WARPS - 1) / WARPS;
    const int each = e.chosen * tiles + shared_tiles, sequence = (int)blockIdx.x / each;
    const int tile = (int)blockIdx.x % each, warp = threadIdx.x / 32;
    const bool is_shared = tile >= e.chosen * tiles;
    const int unit = is_shared ? e.chosen : tile / tiles;
    const int row = (is_shared ? tile - e.chosen * tiles : tile % tiles) * WARPS + warp;
    let_next_begin();
    await_previous();
    if (warp == 0 && !is_shared) {
        int expert = 0;
        const float weight = choose(e, sequence, unit, &expert);
        if (threadIdx.x == 0) {
            own = expert;
            if (tile % tiles == 0) {
                e.numbers[sequence * CARRY_CHAIN_CHOSEN_MOST + unit] = expert;
                e.weights[sequence * (CARRY_CHAIN_CHOSEN_MOST + 1) + unit] = weight;
            }
        }
    }
    const float rate = load_input(e, sequence, input, squares); /* all threads meet in it */
    const int width = is_shared ? e.shared_width : e.width;
    const size_t matrix = (size_t)e.width * e.columns;
    const __nv_bfloat16 *gate =
        is_shared ? (const __nv_bfloat16 *)e.shared_gate : (const __nv_bfloat16 *)e.up + 2 * own * matrix;
    const __nv_bfloat16 *up = is_shared ? (const __nv_bfloat16 *)e.shared_up : gate + matrix;
    if (row < width) {
        const float2 sum = two_rows(gate + (size_t)row * e.columns, up + (size_t)row * e.columns, input, e.columns);
        if (threadIdx.x % 32 == 0) {
            ((__nv_bfloat16 *)e.activated)[(size_t)sequence * e.activated_stride + unit * e.width + row] =
                __float2bfloat16_rn(silu(rate * sum.x) * (rate * sum.y));
        }
    }
    if (is_shared && row == 0) {
        float weight = 1.0f;
        if (e.shared_scale != nullptr) {
            weight = sigmoid(rate * two_rows((const __nv_bfloat16 *)e.shared_scale, nullptr, input, e.columns).x);
        }
        if (threadIdx.x == 0) {
            e.weights[sequence * (CARRY_CHAIN_CHOSEN_MOST + 1) + e.chosen] = weight;
        }
    }
#endif
}

static __global__ __launch_bounds__(THREADS, 3) void experts_down(const __grid_constant__ carry_chain_experts e) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) float input[];
    const int tiles = (e.columns + WARPS - 1) / WARPS, sequence = (int)blockIdx.x / tiles;
    const int row = (int)blockIdx.x % tiles * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const int inner = e.chosen * e.width, all = inner + e.shared_width;
    const int32_t *numbers = e.numbers + sequence * CARRY_CHAIN_CHOSEN_MOST;
    const float *weights = e.weights + sequence * (CARRY_CHAIN_CHOSEN_MOST + 1);
    let_next_begin();
    await_previous();
    for (int i = threadIdx.x; i < all; i += THREADS) {
        const int unit = i < inner ? i / e.width : e.chosen;
        input[i] = __ldcg(weights + unit) * load_bf16(e.activated, (size_t)sequence * e.activated_stride + i);
    }
    __syncthreads();
    if (row >= e.columns) {
        return;
    }
    float sum = 0.0f;
    for (int at = 8 * lane; at < all; at += DOWN_AHEAD * STEP) {
        uint4 w[DOWN_AHEAD];
#pragma unroll
        for (int u = 0; u < DOWN_AHEAD; u++) {
            const int i = at + u * STEP;
            if (i < inner) {
                const size_t matrix = (size_t)__ldcg(numbers + i / e.width) * e.columns;
                w[u] = load_once((const __nv_bfloat16 *)e.down + (matrix + row) * e.width + i % e.width);
            } else if (i < all) {
                w[u] = load_once((const __nv_bfloat16 *)e.shared_down + (size_t)row * e.shared_width + i - inner);
            }
        }
#pragma unroll
        for (int u = 0; u < DOWN_AHEAD; u++) {
            if (at + u * STEP < all) {
                sum = add_eight(sum, w[u], input + at + u * STEP);
            }
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) {
        float *h = e.h + (size_t)sequence * e.columns + row;
        sum += __ldcg(h);
        *h = sum;
        ((__nv_bfloat16 *)e.low)[(size_t)sequence * e.columns + row] = __float2bfloat16_rn(sum);
    }
#endif
}

} // namespace chain

#endif

/* The kernels of chain_experts.cuh for quantised experts (ops/quantised/tiles.h): only the tiles of chosen experts and
   of the shared one are read, once for each sequence.

   The units of a block's tiles are dealt to its warps in turn. A warp loads its next units while it multiplies some,
   and writes its sums of each tile to shared memory; they are added at the end, in an order that depends only on the
   shape and on the number of tiles of a block. */
#ifndef CARRY_ENGINE_CHAIN_TILE_EXPERTS_CUH
#define CARRY_ENGINE_CHAIN_TILE_EXPERTS_CUH

#include "engine/cuda/chain_experts.cuh"
#include "ops/cuda/quantised_rows.cuh"

namespace chain {

constexpr int TILE_ROWS = CARRY_QUANT_TILE_ROWS, UNIT = CARRY_QUANT_UNIT_COLUMNS;
constexpr int TILES_MOST = 4;                             /* of a block; of gate and up as many each */
constexpr int UNITS_AHEAD = 2, PARTS = WARPS * TILE_ROWS; /* units that a warp loads at once; sums of a tile */

/* Calls use(unit, i) for i = warp, warp + WARPS, ... below count. find(i): the address of unit i. */
template <class F, typename Find, typename Use>
static __device__ __forceinline__ void each_unit(int count, const Find &find, const Use &use) {
    constexpr int STRIDE = UNITS_AHEAD * WARPS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    quantised::lane_unit<F> now[UNITS_AHEAD], next[UNITS_AHEAD];
    const auto load = [&](quantised::lane_unit<F>(&to)[UNITS_AHEAD], int first) {
#pragma unroll
        for (int u = 0; u < UNITS_AHEAD; u++) {
            if (first + u * WARPS < count) {
                quantised::load_unit<F>(to[u], find(first + u * WARPS), lane);
            }
        }
    };
    const auto spend = [&](const quantised::lane_unit<F>(&from)[UNITS_AHEAD], int first) {
#pragma unroll
        for (int u = 0; u < UNITS_AHEAD; u++) {
            if (first + u * WARPS < count) {
                use(from[u], first + u * WARPS);
            }
        }
    };
    load(now, warp);
#pragma unroll 1
    for (int i = warp; i < count; i += 2 * STRIDE) {
        load(next, i + STRIDE);
        spend(now, i);
        load(now, i + 2 * STRIDE);
        spend(next, i + STRIDE);
    }
}

/* Writes a warp's sums of the rows of a tile, [warp][row], and clears them. */
static __device__ __forceinline__ void put_rows(float *parts, float (&sum)[2][1]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int second = 0; second < 2; second++) {
        const float all = quantised::sum_of_four(sum[second][0]);
        if (lane % 4 == 0) {
            parts[warp * TILE_ROWS + lane / 4 + 8 * second] = all;
        }
        sum[second][0] = 0.0f;
    }
}

static __device__ __forceinline__ float sum_row(const float *parts, int row) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        sum += parts[w * TILE_ROWS + row];
    }
    return sum;
}

/* A row's factor in the tile. */
static __device__ __forceinline__ float factor_of(const unsigned char *tile, const carry_quant_tiles &l, int row) {
    return __ldg((const float *)(tile + l.factors_at) + row);
}

/* A block has `each` tiles of gate and the same tiles of up. */
template <class F>
static __global__ __launch_bounds__(THREADS, 2) void tile_experts_up(const __grid_constant__ carry_chain_experts e,
                                                                     int each) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) float input[];
    __shared__ float squares[WARPS], parts[2 * TILES_MOST * PARTS];
    __shared__ int own;
    const carry_quant_tiles &l = e.up_tiles;
    const int own_blocks = (e.width / TILE_ROWS + each - 1) / each;
    const int shared_blocks = (e.shared_width / TILE_ROWS + each - 1) / each;
    const int blocks = e.chosen * own_blocks + shared_blocks, sequence = (int)blockIdx.x / blocks;
    const int block = (int)blockIdx.x % blocks, warp = threadIdx.x / 32;
    const bool is_shared = block >= e.chosen * own_blocks;
    const int slot = is_shared ? e.chosen : block / own_blocks;
    const int part = is_shared ? block - e.chosen * own_blocks : block % own_blocks;
    let_next_begin();
    for (int i = threadIdx.x; i < 2 * each * PARTS; i += THREADS) {
        parts[i] = 0.0f; /* a tile may have fewer units than there are warps */
    }
    await_previous();
    if (warp == 0 && !is_shared) {
        int expert = 0;
        const float weight = choose(e, sequence, slot, &expert);
        if (threadIdx.x == 0) {
            own = expert;
            if (part == 0) {
                e.numbers[sequence * CARRY_CHAIN_CHOSEN_MOST + slot] = expert;
                e.weights[sequence * (CARRY_CHAIN_CHOSEN_MOST + 1) + slot] = weight;
            }
        }
    }
    const float rate = load_input(e, sequence, input, squares); /* it synchronises all threads */
    const int all = (is_shared ? e.shared_width : e.width) / TILE_ROWS, first = part * each;
    const int tiles = min(each, all - first), units = (int)l.units;
    const unsigned char *gate = (const unsigned char *)e.shared_gate, *up = (const unsigned char *)e.shared_up;
    const unsigned char *down = (const unsigned char *)e.shared_down;
    if (!is_shared) {
        gate = (const unsigned char *)e.up + own * l.all_bytes;
        up = gate + (size_t)all * l.tile_bytes;
        down = (const unsigned char *)e.down + own * e.down_tiles.all_bytes;
    }
    gate += (size_t)first * l.tile_bytes;
    up += (size_t)first * l.tile_bytes;
    if (gridDim.x <= 2 * blocks) { /* the rows of more sequences would not fit into the L2 cache */
        ask_for_down(down, is_shared ? e.shared_tiles.all_bytes : e.down_tiles.all_bytes, part,
                     is_shared ? shared_blocks : own_blocks);
    }
    /* Unit i belongs to tile i / units: of gate, of up, of the next tile of gate, ... */
    const int count = 2 * tiles * units;
    const auto find = [&](int i) {
        const int item = i / units;
        return (item % 2 == 0 ? gate : up) + (size_t)(item / 2) * l.tile_bytes +
               (size_t)(i - item * units) * quantised::unit_of<F>::BYTES;
    };
    float sum[2][1] = {};
    const auto use = [&](const quantised::lane_unit<F> &u, int i) {
        const int item = i / units;
        quantised::add_unit_rows<F, 1>(sum, u, input + (i - item * units) * UNIT + 8 * (threadIdx.x % 4), 0);
        if (i + WARPS >= count || (i + WARPS) / units != item) {
            put_rows(parts + item * PARTS, sum);
        }
    };
    each_unit<F>(count, find, use);
    __syncthreads();
    __nv_bfloat16 *to = (__nv_bfloat16 *)e.activated + (size_t)sequence * e.activated_stride + slot * e.width;
    for (int i = threadIdx.x; i < tiles * TILE_ROWS; i += THREADS) {
        const int tile = i / TILE_ROWS, row = i % TILE_ROWS;
        const size_t at = (size_t)tile * l.tile_bytes;
        const float a = rate * factor_of(gate + at, l, row) * sum_row(parts + 2 * tile * PARTS, row);
        const float b = rate * factor_of(up + at, l, row) * sum_row(parts + (2 * tile + 1) * PARTS, row);
        to[first * TILE_ROWS + i] = __float2bfloat16_rn(silu(a) * b);
    }
    if (is_shared && part == 0 && warp == 0) {
        const __nv_bfloat16 *scale = (const __nv_bfloat16 *)e.shared_scale;
        const float weight = scale != nullptr ? sigmoid(rate * one_row(scale, input, e.columns)) : 1.0f;
        if (threadIdx.x == 0) {
            e.weights[sequence * (CARRY_CHAIN_CHOSEN_MOST + 1) + e.chosen] = weight;
        }
    }
#endif
}

/* Loads the activations of all experts of a sequence, multiplied by the experts' weights; each expert has whole units.
 */
static __device__ __forceinline__ void load_activated(const carry_chain_experts &e, int sequence, float *input) {
    const int padded = (int)e.down_tiles.units * UNIT, inner = e.chosen * padded;
    const int all = inner + (e.shared_width > 0 ? (int)e.shared_tiles.units * UNIT : 0);
    const float *weights = e.weights + sequence * (CARRY_CHAIN_CHOSEN_MOST + 1);
    const unsigned *active =
        (const unsigned *)((const __nv_bfloat16 *)e.activated + (size_t)sequence * e.activated_stride);
    for (int i = 2 * (int)threadIdx.x; i < all; i += 2 * THREADS) {
        const int slot = i < inner ? i / padded : e.chosen, column = i - slot * padded;
        const bool is_there = column < (i < inner ? e.width : e.shared_width);
        const unsigned pair = is_there ? __ldcg(active + (slot * e.width + column) / 2) : 0u;
        const float weight = __ldcg(weights + slot);
        input[i] = weight * low_of(pair);
        input[i + 1] = weight * high_of(pair);
    }
}

/* A block has `each` tiles of the rows of all experts of a sequence. */
template <class F>
static __global__ __launch_bounds__(THREADS, 2) void tile_experts_down(const __grid_constant__ carry_chain_experts e,
                                                                       int each) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) float input[];
    __shared__ float parts[TILES_MOST * PARTS];
    __shared__ int numbers[CARRY_CHAIN_CHOSEN_MOST];
    const carry_quant_tiles &l = e.down_tiles, &s = e.shared_tiles;
    const int all = e.columns / TILE_ROWS, blocks = (all + each - 1) / each, sequence = (int)blockIdx.x / blocks;
    const int first = (int)blockIdx.x % blocks * each, tiles = min(each, all - first);
    const int units = (int)l.units, inner = e.chosen * units;
    const int of_tile = inner + (e.shared_width > 0 ? (int)s.units : 0), lane = threadIdx.x % 32;
    let_next_begin();
    for (int i = threadIdx.x; i < each * PARTS; i += THREADS) {
        parts[i] = 0.0f;
    }
    await_previous();
    if ((int)threadIdx.x < e.chosen) {
        numbers[threadIdx.x] = __ldcg(e.numbers + sequence * CARRY_CHAIN_CHOSEN_MOST + threadIdx.x);
    }
    load_activated(e, sequence, input);
    __syncthreads();
    const int count = tiles * of_tile;
    const auto tile_at = [&](int tile, int j) {
        return j < inner ? (const unsigned char *)e.down + numbers[j / units] * l.all_bytes +
                               (size_t)(first + tile) * l.tile_bytes
                         : (const unsigned char *)e.shared_down + (size_t)(first + tile) * s.tile_bytes;
    };
    const auto find = [&](int i) {
        const int tile = i / of_tile, j = i - tile * of_tile;
        return tile_at(tile, j) + (size_t)(j < inner ? j % units : j - inner) * quantised::unit_of<F>::BYTES;
    };
    float sum[2][1] = {};
    const auto use = [&](const quantised::lane_unit<F> &u, int i) {
        const int tile = i / of_tile, j = i - tile * of_tile;
        if constexpr (F::WIDE) { /* all factors are 1 */
            quantised::add_unit_rows<F, 1>(sum, u, input + j * UNIT + 8 * (lane % 4), 0);
        } else {
            const unsigned char *at = tile_at(tile, j);
            const carry_quant_tiles &layout = j < inner ? l : s;
            float own[2][1] = {};
            quantised::add_unit_rows<F, 1>(own, u, input + j * UNIT + 8 * (lane % 4), 0);
            sum[0][0] = fmaf(factor_of(at, layout, lane / 4), own[0][0], sum[0][0]);
            sum[1][0] = fmaf(factor_of(at, layout, lane / 4 + 8), own[1][0], sum[1][0]);
        }
        if (i + WARPS >= count || (i + WARPS) / of_tile != tile) {
            put_rows(parts + tile * PARTS, sum);
        }
    };
    each_unit<F>(count, find, use);
    __syncthreads();
    for (int i = threadIdx.x; i < tiles * TILE_ROWS; i += THREADS) {
        const size_t at = (size_t)sequence * e.columns + first * TILE_ROWS + i;
        const float value = sum_row(parts + i / TILE_ROWS * PARTS, i % TILE_ROWS) + __ldcg(e.h + at);
        e.h[at] = value;
        ((__nv_bfloat16 *)e.low)[at] = __float2bfloat16_rn(value);
    }
#endif
}

} // namespace chain

#endif

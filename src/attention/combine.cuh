/* The last step of attention in pieces. Each piece of a tile has sums relative to its own largest score. They are
   scaled to the largest score of all pieces and added in order, so that results are reproducible; o is the sum of
   values divided by the sum of exponentials. One warp computes one query. */
#ifndef CARRY_ATTENTION_COMBINE_CUH
#define CARRY_ATTENTION_COMBINE_CUH

#include <type_traits>

#include "attention/kernels.cuh"

constexpr int COMBINE_WARPS = 8;

template <int D> __global__ void attention_combine(const __grid_constant__ attention_job job) {
    constexpr int EACH = D / 32;
    using vector = std::conditional_t<EACH == 4, float4, float2>;
    const attention_cut &c = job.cut;
    int lane = (int)threadIdx.x % 32;
    int index = (int)blockIdx.x * COMBINE_WARPS + (int)threadIdx.x / 32;
    int tile = c.whole + index / c.rows;
    int row = tile % c.row_tiles * c.rows + index % c.rows, head = tile / c.row_tiles;
    if (index >= c.rest * c.rows || row >= job.queries) {
        return;
    }
    int64_t first = (int64_t)(index / c.rows) * c.pieces * c.rows + index % c.rows;
    const float2 *weights = (const float2 *)c.weights;
    const vector *sums = (const vector *)c.sums + lane;
    float largest = -INFINITY, sum = 0.0f, o[EACH] = {};
#pragma unroll 8
    for (int i = 0; i < c.pieces; i++) {
        largest = fmaxf(largest, weights[first + i * c.rows].x);
    }
#pragma unroll 8 /* many loads in flight */
    for (int i = 0; i < c.pieces; i++) {
        float2 weight = weights[first + i * c.rows];
        vector part = sums[(first + i * c.rows) * 32];
        float factor = exp2_fast(weight.x - largest);
        sum = fmaf(factor, weight.y, sum);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            o[j] = fmaf(factor, ((const float *)&part)[j], o[j]);
        }
    }
    uint16_t *to = job.o + row * job.o_row + head * job.o_head + lane * EACH;
#pragma unroll
    for (int j = 0; j < EACH; j += 2) {
        *(uint32_t *)(to + j) = pack_bf16(o[j] / sum, o[j + 1] / sum);
    }
    if (job.lse != NULL && lane == 0) {
        job.lse[(int64_t)head * job.queries + row] = lse_of(largest, sum);
    }
}

#endif
